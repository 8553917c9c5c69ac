//! The last failures of each tool, stored for a month.
//!
//! They are written in the background, like the history. No decision depends on them.

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::classify::record::FailureRecord;
use steadfast_core::id::{TenantId, ToolRef};
use steadfast_store::{
    Journal, JournalEntry, JournalLimits, JournalPage, JournalPosition, JournalQuery, StateStore, StoreError,
    filter_entries,
};

use super::audit::TenantFilter;
use super::telemetry_hooks::TelemetryHooks;
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

/// The journal of failures.
#[derive(Debug)]
pub(crate) struct FailureLog {
    store: Arc<dyn StateStore>,
    hooks: Arc<TelemetryHooks>,
    queue: WriteQueue<FailureRecord>,
}

impl FailureLog {
    pub(crate) fn new(store: Arc<dyn StateStore>, hooks: Arc<TelemetryHooks>) -> Self {
        Self { store, hooks, queue: WriteQueue::new(Journal::Failures, |_| 1) }
    }

    pub(crate) fn add(&self, record: FailureRecord) {
        self.queue.add(record, WAITING);
    }

    /// Returns the failed calls of tools, newest first.
    pub(crate) async fn page(
        self: &Arc<Self>,
        page: &FailureQuery,
    ) -> Result<JournalPage<FailureRecord>, StoreError> {
        // Queued failures are written first, so that the result includes them. They are written in a task of their
        // own, so that none is lost if the caller drops this future.
        let log = self.clone();
        let _ = tokio::spawn(async move { log.write_now().await }).await;
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
        let parse_matching = |entry: &JournalEntry| serde_json::from_str(&entry.body).ok().filter(fits);
        filter_entries(&*self.store, &query, LOOKED_THROUGH, parse_matching).await
    }

    /// Writes failures, for as long as the engine lives.
    pub(crate) async fn run(&self) {
        loop {
            self.queue.due().await;
            self.write_now().await;
        }
    }

    /// Writes the queued failures.
    pub(crate) async fn write_now(&self) {
        let failed = |error: &StoreError| self.hooks.store_failed(self.store.kind(), error);
        let written = self.queue.write(
            &*self.store,
            KEEP,
            |records| records.iter().filter_map(entry).collect(),
            failed,
        );
        written.await;
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
