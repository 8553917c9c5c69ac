//! The known tools.

use schemars::JsonSchema;
use serde::Serialize;
use steadfast::store::StoreError;
use steadfast::{Engine, Timestamp};
use steadfast_core::id::{Namespace, TenantId, ToolRef};
use steadfast_executor::{BreakerKey, ToolRegistry, ToolView};

use super::paging::{fits, list_query};

list_query! {
    /// Filters for tools.
    ToolsQuery by BreakerKey {
        /// The state of tools for this tenant. By default, for calls of no tenant.
        tenant: TenantId,
        /// Only tools in this namespace.
        namespace: Namespace,
        /// Only tools whose `namespace/tool` begins with this.
        prefix: String,
        /// If true, only tools that were called; if false, only those that were not.
        called: bool,
    }
}

/// A page of tools.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ToolPage {
    /// The tools in the order of their names.
    pub tools: Vec<ToolView>,
    /// Cursor of the next page, for `after`. `null` on the last page.
    pub next: Option<String>,
}

/// The annotations of a tool, as its server sent them last.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolAnnotations {
    /// The tool.
    pub tool: ToolRef,
    /// True if the tool only reads. Absent if the server did not send it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only_hint: Option<bool>,
    /// True if the tool may destroy something. Absent if the server did not send it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destructive_hint: Option<bool>,
    /// True if a repeated call has no further effect. Absent if the server did not send it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotent_hint: Option<bool>,
    /// True if annotations of this server may make a tool safe to repeat (`trust_annotations`).
    pub trusted: bool,
    /// Time at which they were received.
    #[serde(rename = "seenAtMs")]
    pub seen_at: Timestamp,
}

/// Returns the last annotations of a tool, or `None` if there are none.
pub async fn annotations(engine: &Engine, tool: ToolRef) -> Result<Option<ToolAnnotations>, StoreError> {
    let record = engine.last_annotations(&tool).await?;
    Ok(record.map(|record| ToolAnnotations {
        tool,
        read_only_hint: record.annotations.read_only,
        destructive_hint: record.annotations.destructive,
        idempotent_hint: record.annotations.idempotent,
        trusted: record.are_trusted,
        seen_at: record.at,
    }))
}

/// Returns the tools that can be called here, as far as they are known, and the tools that were called.
pub async fn tools(
    engine: &Engine,
    registry: &dyn ToolRegistry,
    query: &ToolsQuery,
) -> Result<ToolPage, String> {
    let page = query.page()?;
    let all = engine.admin().tools(query.tenant.as_ref(), registry.list()).await.into_iter().filter(|view| {
        fits(query.namespace.as_ref(), Some(&view.tool.namespace))
            && query.prefix.as_ref().is_none_or(|prefix| view.tool.to_string().starts_with(prefix))
            && fits(query.called.as_ref(), Some(&view.called))
    });
    // The key of its breaker is unique, whatever characters the name contains.
    let listed = page.of(all, |view| BreakerKey::Tool(view.tool.clone()));
    Ok(ToolPage { tools: listed.rows, next: listed.next })
}

/// Returns true if a tool is known: it can be called here, or was called or reported on for any tenant.
pub(crate) async fn is_known(engine: &Engine, registry: &dyn ToolRegistry, tool: &ToolRef) -> bool {
    for tenant in engine.admin().tenants() {
        let known = engine.admin().tools(tenant.as_ref(), registry.list()).await;
        if known.iter().any(|view| view.tool == *tool)
            || engine.admin().score(tenant.as_ref(), tool).is_some()
        {
            return true;
        }
    }
    false
}
