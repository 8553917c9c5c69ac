//! The audit log: changes by operators, with their time, author and subject.
//!
//! Every such change goes through one function, after it was made. An entry that cannot be written undoes nothing.
//! Every entry is also logged, and so is a failure to write one.

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::id::TenantId;
use steadfast_store::{
    Journal, JournalEntry, JournalLimits, JournalPage, JournalPosition, JournalQuery, StateStore, StoreError,
    TimeSource, filter_entries,
};

use super::audit_entry::{AuditAction, AuditChange, AuditEntry, OperatorIdentity};
use super::listener::SystemEvent;
use super::telemetry_hooks::TelemetryHooks;

/// Filter for entries of the audit log. The newest come first.
#[derive(Clone, Debug)]
pub struct AuditQuery {
    /// Tenants.
    pub tenants: TenantFilter,
    /// Earliest time.
    pub since: Timestamp,
    /// Name of the author.
    pub by: Option<String>,
    /// Type of the change.
    pub deed: Option<AuditAction>,
    /// Position after which to continue: the end of the previous page.
    pub behind: Option<JournalPosition>,
    /// Maximum number of entries.
    pub limit: usize,
}

/// Filter for tenants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenantFilter {
    /// All data, for operators of the whole installation.
    All,
    /// Data of one tenant, or data without a tenant.
    One(Option<TenantId>),
}

impl Default for AuditQuery {
    fn default() -> Self {
        Self {
            tenants: TenantFilter::All,
            since: Timestamp::ZERO,
            by: None,
            deed: None,
            behind: None,
            limit: 100,
        }
    }
}

/// The audit log in the store.
#[derive(Debug)]
pub(crate) struct AuditLog {
    store: Arc<dyn StateStore>,
    clock: Arc<dyn TimeSource>,
    hooks: Arc<TelemetryHooks>,
}

impl AuditLog {
    pub(crate) const fn new(
        store: Arc<dyn StateStore>,
        clock: Arc<dyn TimeSource>,
        hooks: Arc<TelemetryHooks>,
    ) -> Self {
        Self { store, clock, hooks }
    }

    /// Returns the entries, newest first.
    pub(crate) async fn page(&self, page: &AuditQuery) -> Result<JournalPage<AuditEntry>, StoreError> {
        let query = JournalQuery {
            subject: page.by.as_deref().map(Into::into),
            since: page.since,
            before: page.behind,
            ..JournalQuery::newest(Journal::Audit, page.limit)
        };
        let fits = |entry: &AuditEntry| {
            entry.format == FORMAT
                && page.deed.is_none_or(|deed| entry.deed == deed)
                && match &page.tenants {
                    TenantFilter::All => true,
                    TenantFilter::One(tenant) => entry.tenant == *tenant,
                }
        };
        let parse_matching = |entry: &JournalEntry| serde_json::from_str(&entry.body).ok().filter(fits);
        filter_entries(&*self.store, &query, usize::MAX, parse_matching).await
    }

    /// Records a change. A failure is logged.
    pub(crate) async fn record(&self, by: &OperatorIdentity, done: AuditChange<'_>) {
        let shown = |text: String| steadfast_redact::excerpt(&text, LONGEST_TEXT);
        let entry = AuditEntry {
            format: FORMAT,
            at: self.clock.now(),
            by: OperatorIdentity::new(&by.name, by.from),
            deed: done.deed,
            tenant: done.tenant.cloned(),
            on: shown(done.on),
            before: done.before.map(shown),
            after: done.after.map(shown),
        };
        self.hooks.outside(&SystemEvent::ByHand(&entry));
        let written = match serde_json::to_string(&entry) {
            Ok(body) => {
                let subject: Arc<str> = entry.by.name.as_str().into();
                let entries = [JournalEntry { at: entry.at, subject, body: body.into() }];
                tokio::time::timeout(PATIENCE, self.store.append(Journal::Audit, &entries, KEEP))
                    .await
                    .map_or_else(
                        |_| Err("the store did not answer".to_owned()),
                        |done| {
                            done.map_err(|error| {
                                self.hooks.store_failed(self.store.kind(), &error);
                                error.to_string()
                            })
                        },
                    )
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = written {
            tracing::warn!(
                event = "audit.lost",
                by = %entry.by,
                deed = ?entry.deed,
                on = entry.on,
                "why" = error,
                "a change by an operator was made but could not be written to the audit log"
            );
        }
    }
}

const FORMAT: u32 = 1;
/// Size of the audit log.
const KEEP: JournalLimits =
    JournalLimits { most: 10_000, most_per_subject: None, age: Duration::from_secs(365 * 86_400) };
/// Maximum time that a change waits for its entry.
const PATIENCE: Duration = Duration::from_secs(5);
const LONGEST_TEXT: usize = 512;
