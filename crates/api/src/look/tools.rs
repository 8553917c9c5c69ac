//! The tools there are.

use schemars::JsonSchema;
use serde::Serialize;
use steadfast::{Engine, StoreError, Timestamp};
use steadfast_core::id::{Namespace, TenantId, ToolRef};
use steadfast_executor::{BreakerKey, Shelf, ToolView};

use super::paging::{asks, fits};

asks! {
    /// Which tools are asked for.
    ToolsAsked by BreakerKey {
        /// As this tenant uses them; otherwise as those do who belong to none.
        tenant: TenantId,
        /// Those of this group or server.
        namespace: Namespace,
        /// Those whose `namespace/tool` begins so.
        prefix: String,
        /// Those that were called, or those that were not.
        called: bool,
    }
}

/// A page of tools.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Tools {
    /// In the order of their names.
    pub tools: Vec<ToolView>,
    /// What to ask for `after` next; nothing at the end.
    pub next: Option<String>,
}

/// The annotations of a tool, as its server sent them last.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolAnnotations {
    /// The tool.
    pub tool: ToolRef,
    /// Whether it only reads; nothing if the server did not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only_hint: Option<bool>,
    /// Whether it may destroy something; nothing if the server did not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destructive_hint: Option<bool>,
    /// Whether calling it again changes nothing more; nothing if the server did not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotent_hint: Option<bool>,
    /// Whether the server's own word that a tool is safe to repeat is believed (`trust_annotations`).
    pub trusted: bool,
    /// When they were seen.
    #[serde(rename = "seenAtMs")]
    pub seen_at: Timestamp,
}

/// The annotations of a tool that were seen last; nothing if it was never seen.
pub async fn annotations(engine: &Engine, tool: ToolRef) -> Result<Option<ToolAnnotations>, StoreError> {
    let seen = engine.last_annotations(&tool).await?;
    Ok(seen.map(|seen| ToolAnnotations {
        tool,
        read_only_hint: seen.annotations.read_only,
        destructive_hint: seen.annotations.destructive,
        idempotent_hint: seen.annotations.idempotent,
        trusted: seen.are_trusted,
        seen_at: seen.at,
    }))
}

/// The tools that can be called here, as far as they are known, and those that were.
pub async fn tools(engine: &Engine, shelf: &dyn Shelf, asked: &ToolsAsked) -> Result<Tools, String> {
    let page = asked.page()?;
    let all = engine.tools(asked.tenant.as_ref(), shelf.list()).await.into_iter().filter(|view| {
        fits(asked.namespace.as_ref(), Some(&view.tool.namespace))
            && asked.prefix.as_ref().is_none_or(|prefix| view.tool.to_string().starts_with(prefix))
            && fits(asked.called.as_ref(), Some(&view.called))
    });
    // As its breaker is called, which is the name of no other tool, whatever letters are in it.
    let listed = page.of(all, |view| BreakerKey::Tool(view.tool.clone()));
    Ok(Tools { tools: listed.rows, next: listed.next })
}

/// Whether anything is known of a tool: it can be called here, or it was called or reported on by any tenant.
pub(crate) async fn is_known(engine: &Engine, shelf: &dyn Shelf, tool: &ToolRef) -> bool {
    for tenant in engine.tenants() {
        let known = engine.tools(tenant.as_ref(), shelf.list()).await;
        if known.iter().any(|view| view.tool == *tool) || engine.score(tenant.as_ref(), tool).is_some() {
            return true;
        }
    }
    false
}
