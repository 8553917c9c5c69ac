//! The last failures of each tool, kept for a month.
//!
//! They are written beside the calls, like the history, and nothing is decided by them.

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::classify::record::FailureRecord;
use steadfast_core::id::{TenantId, ToolRef};
use steadfast_store::{Entry, Journal, Keep, Part, Position, Query, StoreError, look_through};

use crate::audit::Tenants;
use crate::engine::{Engine, Inner};
use crate::gathered::Gathered;

/// Which failures to read; the newest come first.
#[derive(Clone, Debug)]
pub struct FailuresPage {
    /// Whose.
    pub tenants: Tenants,
    /// Of these tools; nothing means of all.
    pub tool: Option<ToolRef>,
    /// Behind this place: where the page before ended.
    pub behind: Option<Position>,
    /// The most records.
    pub limit: usize,
}

impl FailuresPage {
    /// The newest failures of everybody's tools.
    pub const fn newest(limit: usize) -> Self {
        Self { tenants: Tenants::All, tool: None, behind: None, limit }
    }
}

impl Engine {
    /// How calls of tools failed, the newest first.
    pub async fn failures(&self, page: &FailuresPage) -> Result<Part<FailureRecord>, StoreError> {
        // What was told already is there for who asks now.
        self.inner.write_failures_now().await;
        let subject = match (&page.tool, &page.tenants) {
            (Some(tool), Tenants::One(tenant)) => Some(subject(tenant.as_ref(), tool)),
            (Some(_), Tenants::All) | (None, _) => None,
        };
        let query = Query { subject, behind: page.behind, ..Query::newest(Journal::Failures, page.limit) };
        let fits = |record: &FailureRecord| {
            page.tool.as_ref().is_none_or(|tool| record.tool == *tool)
                && match &page.tenants {
                    Tenants::All => true,
                    Tenants::One(tenant) => record.tenant == *tenant,
                }
        };
        let wanted = |entry: &Entry| serde_json::from_str(&entry.body).ok().filter(fits);
        look_through(&*self.inner.store, &query, LOOKED_THROUGH, wanted).await
    }
}

/// Where failures go.
pub(crate) fn gathered() -> Gathered<FailureRecord> {
    Gathered::new(Journal::Failures, |_| 1)
}

impl Inner {
    pub(crate) fn failed(&self, record: FailureRecord) {
        self.failures.add(record, WAITING);
    }

    /// Writes failures, for as long as the engine lives.
    pub(crate) async fn write_failures(&self) {
        loop {
            self.failures.due().await;
            self.write_failures_now().await;
        }
    }

    /// Writes those that wait.
    pub(crate) async fn write_failures_now(&self) {
        self.failures.write(self, KEEP, |records| records.iter().filter_map(entry).collect()).await;
    }
}

fn entry(record: &FailureRecord) -> Option<Entry> {
    let body = serde_json::to_string(record).ok()?.into();
    Some(Entry { at: record.at, subject: subject(record.tenant.as_ref(), &record.tool), body })
}

/// The name of a tool of a tenant.
fn subject(tenant: Option<&TenantId>, tool: &ToolRef) -> Arc<str> {
    match tenant {
        Some(tenant) => format!("{tenant} {tool}").into(),
        None => tool.to_string().into(),
    }
}

/// How many are kept of each tool, and of all.
const KEEP: Keep = Keep { most: 100_000, most_per_subject: Some(100), age: Duration::from_secs(30 * 86_400) };
/// The most records that wait to be written, or are on their way.
const WAITING: usize = 4096;
/// How many are looked through at once for those that fit. Where that is not enough, the next page goes on.
const LOOKED_THROUGH: usize = 20_000;
