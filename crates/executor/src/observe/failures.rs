//! The last failures of each tool, stored for a month.
//!
//! They are written in the background, like the history. No decision depends on them.

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::classify::record::FailureRecord;
use steadfast_core::id::{TenantId, ToolRef};
use steadfast_store::{
    Journal, JournalEntry, JournalLimits, JournalPage, JournalPosition, JournalQuery, StoreError,
    filter_entries,
};

use crate::engine::api::{Engine, EngineInner};
use crate::observe::audit::TenantFilter;
use crate::writes::queue::WriteQueue;

/// Filter for failures. The newest come first.
#[derive(Clone, Debug)]
pub struct FailureQuery {
    /// Tenants.
    pub tenants: TenantFilter,
    /// The tool. `None` selects all tools.
    pub tool: Option<ToolRef>,
    /// Position after which to continue: the end of the previous page.
    pub behind: Option<JournalPosition>,
    /// Maximum number of records.
    pub limit: usize,
}

impl FailureQuery {
    /// Selects the newest failures of all tenants and tools.
    pub const fn newest(limit: usize) -> Self {
        Self { tenants: TenantFilter::All, tool: None, behind: None, limit }
    }
}

impl Engine {
    /// Returns the failed calls of tools, newest first.
    pub async fn failures(&self, page: &FailureQuery) -> Result<JournalPage<FailureRecord>, StoreError> {
        // Queued failures are written first, so that the result includes them.
        self.inner.write_failures_now().await;
        let subject = match (&page.tool, &page.tenants) {
            (Some(tool), TenantFilter::One(tenant)) => Some(subject(tenant.as_ref(), tool)),
            (Some(_), TenantFilter::All) | (None, _) => None,
        };
        let query = JournalQuery {
            subject,
            before: page.behind,
            ..JournalQuery::newest(Journal::Failures, page.limit)
        };
        let fits = |record: &FailureRecord| {
            page.tool.as_ref().is_none_or(|tool| record.tool == *tool)
                && match &page.tenants {
                    TenantFilter::All => true,
                    TenantFilter::One(tenant) => record.tenant == *tenant,
                }
        };
        let wanted = |entry: &JournalEntry| serde_json::from_str(&entry.body).ok().filter(fits);
        filter_entries(&*self.inner.store, &query, LOOKED_THROUGH, wanted).await
    }
}

/// Creates the write queue of failures.
pub(crate) fn new_queue() -> WriteQueue<FailureRecord> {
    WriteQueue::new(Journal::Failures, |_| 1)
}

impl EngineInner {
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

    /// Writes the queued failures.
    pub(crate) async fn write_failures_now(&self) {
        self.failures.write(self, KEEP, |records| records.iter().filter_map(entry).collect()).await;
    }
}

fn entry(record: &FailureRecord) -> Option<JournalEntry> {
    let body = serde_json::to_string(record).ok()?.into();
    Some(JournalEntry { at: record.at, subject: subject(record.tenant.as_ref(), &record.tool), body })
}

/// Returns the journal subject of a tool of a tenant.
fn subject(tenant: Option<&TenantId>, tool: &ToolRef) -> Arc<str> {
    match tenant {
        Some(tenant) => format!("{tenant} {tool}").into(),
        None => tool.to_string().into(),
    }
}

/// Number of failures to store per tool, and in total.
const KEEP: JournalLimits =
    JournalLimits { most: 100_000, most_per_subject: Some(100), age: Duration::from_secs(30 * 86_400) };
/// Maximum number of records that wait to be written or are being written.
const WAITING: usize = 4096;
/// Number of records to search per page. If they contain too few matches, the next page continues.
const LOOKED_THROUGH: usize = 20_000;
