//! Failed calls of tools.

use std::cmp::Reverse;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steadfast::Engine;
use steadfast::store::StoreError;
use steadfast_core::classify::record::FailureRecord;
use steadfast_core::id::{TenantId, ToolRef};
use steadfast_executor::{FailureQuery, TenantFilter};
use steadfast_store::JournalPosition;

use super::paging::{CursorText, NamedTool, list_query};

list_query! {
    /// Filters for failures.
    FailuresQuery by Reverse<JournalPosition> {
        /// Only failures of this tenant.
        tenant: TenantId,
        /// Only failures of this tool: `namespace/tool`.
        tool: NamedTool,
    }
}

/// Filters for failures of one tool.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolFailuresQuery {
    /// Only failures of this tenant.
    tenant: Option<TenantId>,
    /// Only entries after this cursor: `next` of the previous page.
    after: Option<CursorText<Reverse<JournalPosition>>>,
    /// Maximum number of entries, up to 1000. The default is 100.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
}

impl FailuresQuery {
    /// Returns the query, or a description of the error.
    pub fn read(self) -> Result<FailureQuery, String> {
        let page = self.page()?;
        Ok(FailureQuery {
            tenants: self.tenant.map_or(TenantFilter::All, |tenant| TenantFilter::One(Some(tenant))),
            tool: self.tool.map(|named| named.0),
            behind: page.after.map(|Reverse(place)| place),
            limit: page.limit,
        })
    }
}

impl ToolFailuresQuery {
    /// Adds the tool.
    pub fn of(self, tool: ToolRef) -> FailuresQuery {
        let Self { tenant, after, limit } = self;
        FailuresQuery { tenant, tool: Some(NamedTool(tool)), after, limit }
    }
}

/// A page of failed calls.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Failures {
    /// The failures, newest first.
    pub failures: Vec<FailureRecord>,
    /// Cursor of the next page, for `after`. `null` on the last page.
    pub next: Option<String>,
}

/// Returns the newest failures that match.
pub async fn failures(engine: &Engine, query: &FailureQuery) -> Result<Failures, StoreError> {
    let part = engine.admin().failures(query).await?;
    Ok(Failures { failures: part.found, next: part.next.map(|place| place.to_string()) })
}
