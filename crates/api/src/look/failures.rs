//! How calls of tools failed.

use std::cmp::Reverse;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steadfast::{Engine, StoreError};
use steadfast_core::classify::record::FailureRecord;
use steadfast_core::id::{TenantId, ToolRef};
use steadfast_executor::{FailuresPage, Tenants};
use steadfast_store::Position;

use super::paging::{After, NamedTool, asks};

asks! {
    /// Which failures are asked for.
    FailuresAsked by Reverse<Position> {
        /// Of this tenant.
        tenant: TenantId,
        /// Of this tool: `namespace/tool`.
        tool: NamedTool,
    }
}

/// Which failures of one tool are asked for.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolFailuresAsked {
    /// Of this tenant.
    tenant: Option<TenantId>,
    /// Those behind this place: `next` of the page before.
    after: Option<After<Reverse<Position>>>,
    /// So many at the most, up to 1000; otherwise 100.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
}

impl FailuresAsked {
    /// What is meant, or what is wrong with it.
    pub fn read(self) -> Result<FailuresPage, String> {
        let page = self.page()?;
        Ok(FailuresPage {
            tenants: self.tenant.map_or(Tenants::All, |tenant| Tenants::One(Some(tenant))),
            tool: self.tool.map(|named| named.0),
            behind: page.after.map(|Reverse(place)| place),
            limit: page.limit,
        })
    }
}

impl ToolFailuresAsked {
    /// The same of this tool.
    pub fn of(self, tool: ToolRef) -> FailuresAsked {
        let Self { tenant, after, limit } = self;
        FailuresAsked { tenant, tool: Some(NamedTool(tool)), after, limit }
    }
}

/// A page of failed calls.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Failures {
    /// The newest first.
    pub failures: Vec<FailureRecord>,
    /// What to ask for `after` next; nothing at the end.
    pub next: Option<String>,
}

/// The newest failures that fit.
pub async fn failures(engine: &Engine, wanted: &FailuresPage) -> Result<Failures, StoreError> {
    let part = engine.failures(wanted).await?;
    Ok(Failures { failures: part.found, next: part.next.map(|place| place.to_string()) })
}
