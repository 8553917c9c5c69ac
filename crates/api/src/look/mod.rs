//! What there is to see. The HTTP API, the page and the command line all show these, so they cannot disagree.

mod around;
mod endpoints;
mod history;
mod recent;
mod records;
mod settings;
mod status;

pub use around::{Servers, Sessions, servers, sessions};
pub(crate) use endpoints::endpoints;
pub use history::{History, HistoryAsked, HistoryWanted, history};
pub use recent::{Running, Story, running, series, story};
pub use records::{RecordState, RecordView, Records, RecordsAsked, RecordsWanted, records};
pub use settings::{Setting, Settings, settings};
pub use status::{Counts, Finding, Level, Status, StoreSeen, Verdict, reach, status};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steadfast::approval::Parked;
use steadfast::{Engine, StoreError};
use steadfast_core::id::TenantId;
use steadfast_core::trust::ToolReliabilityState;
use steadfast_executor::{AuditEntry, AuditPage, BreakerView, ToolView};

/// That all is well.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Health {
    /// Always true: otherwise there is another answer.
    pub ok: bool,
}

/// Tools, signatures and domains that are not simply trusted.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Trust {
    /// Each as it stands.
    pub trust: Vec<ToolReliabilityState>,
}

/// Whoever is not simply trusted.
pub fn trust(engine: &Engine, tenant: Option<&TenantId>) -> Trust {
    Trust { trust: engine.trust(tenant) }
}

/// Breakers, those of tools first.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Breakers {
    /// Each as it stands.
    pub breakers: Vec<BreakerView>,
}

/// All breakers that anything is known of.
pub async fn breakers(engine: &Engine, tenant: Option<&TenantId>) -> Breakers {
    Breakers { breakers: engine.breakers(tenant).await }
}

/// Tools that were called.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Tools {
    /// In the order of their names.
    pub tools: Vec<ToolView>,
}

/// The tools that were called of late.
pub async fn tools(engine: &Engine, tenant: Option<&TenantId>) -> Tools {
    Tools { tools: engine.tools(tenant).await }
}

/// What people changed by hand.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Audit {
    /// The newest first.
    pub audit: Vec<AuditEntry>,
}

/// How much of it is asked for.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditAsked {
    /// So many, up to 500.
    #[schemars(range(min = 1, max = 500))]
    limit: Option<usize>,
}

impl AuditAsked {
    /// How many are meant, or what is wrong with it.
    pub fn read(self) -> Result<usize, String> {
        limit(self.limit, 500)
    }
}

/// What people changed by hand of late.
pub async fn audit(engine: &Engine, limit: usize) -> Result<Audit, StoreError> {
    Ok(Audit { audit: engine.audit(&AuditPage { limit, ..AuditPage::default() }).await? })
}

/// Requests that wait for a person.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Approvals {
    /// The oldest first.
    pub approvals: Vec<Waiting>,
}

/// One of them.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Waiting {
    /// Its number, by which it is answered.
    pub id: u64,
    /// What is asked.
    #[serde(flatten)]
    pub request: Parked,
}

/// What waits for a person.
pub fn approvals(engine: &Engine, tenant: Option<&TenantId>) -> Approvals {
    let waiting = engine.approvals(tenant).into_iter();
    Approvals { approvals: waiting.map(|(id, request)| Waiting { id: id.0, request }).collect() }
}

/// A tool as it is written in a query: `namespace/tool`.
pub(crate) fn tool(text: &str) -> Result<steadfast_core::id::ToolRef, String> {
    use steadfast_core::id::{Namespace, ToolName, ToolRef};
    let wrong = || format!("`{text}` names no tool: write it as namespace/tool");
    let (namespace, tool) = text.split_once('/').ok_or_else(wrong)?;
    Ok(ToolRef {
        namespace: Namespace::new(namespace).map_err(|_| wrong())?,
        tool: ToolName::new(tool).map_err(|_| wrong())?,
    })
}

/// How many are given at once, as far as that was asked for.
fn limit(asked: Option<usize>, most: usize) -> Result<usize, String> {
    const USUAL: usize = 50;
    match asked {
        None => Ok(USUAL.min(most)),
        Some(asked) if (1..=most).contains(&asked) => Ok(asked),
        Some(asked) => Err(format!("limit={asked}: from 1 to {most} can be had at once")),
    }
}
