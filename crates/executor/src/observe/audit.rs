//! The audit log: changes by operators, with their time, author and subject.
//!
//! Every such change goes through one function, after it was made. An entry that cannot be written undoes nothing.
//! Every entry is also logged, and so is a failure to write one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast_core::Timestamp;
use steadfast_core::id::TenantId;
use steadfast_store::{
    Journal, JournalEntry, JournalLimits, JournalPage, JournalPosition, JournalQuery, StoreError,
    filter_entries,
};

use crate::engine::api::{Engine, EngineInner};
use crate::observe::listener::SystemEvent;

/// The author of a change, and the surface that it came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OperatorIdentity {
    /// Name of the operator, as authenticated.
    pub name: String,
    /// Surface that the change came from.
    pub from: OperatorSurface,
}

/// Surface that a change came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OperatorSurface {
    /// The command line.
    Cli,
    /// The HTTP API.
    Http,
    /// The dashboard.
    Dashboard,
    /// A tool of Steadfast that an MCP client called.
    Mcp,
    /// A program that embeds the engine.
    Library,
    /// The configured verification of a tool.
    Verify,
}

impl OperatorIdentity {
    /// Creates an author. The name is shown, so it is truncated and redacted.
    pub fn new(name: impl AsRef<str>, from: OperatorSurface) -> Self {
        Self { name: steadfast_redact::excerpt(name.as_ref(), LONGEST_NAME), from }
    }
}

impl fmt::Display for OperatorIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = match self.from {
            OperatorSurface::Cli => "cli",
            OperatorSurface::Http => "http",
            OperatorSurface::Dashboard => "dashboard",
            OperatorSurface::Mcp => "mcp",
            OperatorSurface::Library => "library",
            OperatorSurface::Verify => "verify",
        };
        write!(f, "{} ({from})", self.name)
    }
}

/// Type of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AuditAction {
    /// A request was approved.
    Approved,
    /// A request was denied.
    Denied,
    /// A breaker was forced open.
    BreakerForcedOpen,
    /// A breaker was reset.
    BreakerReset,
    /// Trust in a tool was restored.
    TrustReset,
    /// A tool may earn its trust back.
    RecoveryApproved,
    /// The loop guard of a session was reset.
    GuardReset,
    /// Records were deleted.
    Flushed,
    /// An unknown outcome was resolved.
    Resolved,
    /// Modes were switched.
    Switched,
    /// The loss of records was accepted.
    LossAccepted,
}

/// An entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AuditEntry {
    /// Format version. Readers skip a newer one.
    pub format: u32,
    /// Time of the change.
    #[serde(rename = "atMs")]
    pub at: Timestamp,
    /// Author.
    pub by: OperatorIdentity,
    /// Type of the change.
    pub deed: AuditAction,
    /// Tenant whose data was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    /// Subject: a tool, a breaker, a session, a request, or the fingerprint of a key.
    pub on: String,
    /// State before the change, if it is short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// State after the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// A change that has just been made, to be recorded.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "as in the entry that is made of it")]
pub struct AuditChange<'a> {
    pub deed: AuditAction,
    pub tenant: Option<&'a TenantId>,
    pub on: String,
    pub before: Option<String>,
    pub after: Option<String>,
}

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

impl Engine {
    /// Returns the entries of the audit log, newest first.
    pub async fn audit(&self, page: &AuditQuery) -> Result<JournalPage<AuditEntry>, StoreError> {
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
        let wanted = |entry: &JournalEntry| serde_json::from_str(&entry.body).ok().filter(fits);
        filter_entries(&*self.inner.store, &query, usize::MAX, wanted).await
    }

    /// Records a change that a surface made itself, such as a switch of modes.
    pub async fn audited(&self, by: &OperatorIdentity, done: AuditChange<'_>) {
        self.inner.audited(by, done).await;
    }
}

impl EngineInner {
    /// Records a change. A failure is logged.
    pub(crate) async fn audited(&self, by: &OperatorIdentity, done: AuditChange<'_>) {
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
        self.telemetry_hooks.outside(&SystemEvent::ByHand(&entry));
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
                                self.store_trouble(&*self.store, &error);
                                error.to_string()
                            })
                        },
                    )
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(why) = written {
            tracing::warn!(
                event = "audit.lost",
                by = %entry.by,
                deed = ?entry.deed,
                on = entry.on,
                why,
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
const LONGEST_NAME: usize = 128;
const LONGEST_TEXT: usize = 512;
