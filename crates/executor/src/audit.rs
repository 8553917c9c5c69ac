//! What people changed by hand: who, when, on what.
//!
//! Every such change goes through one function, after it was made. An entry that cannot be written undoes nothing: it is
//! told of in the log, and so is every entry that can.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast_core::id::TenantId;
use steadfast_core::{Timestamp, redact};
use steadfast_store::{Entry, Journal, Keep, Part, Position, Query, StoreError, look_through};

use crate::engine::{Engine, Inner};
use crate::telling::Outside;

/// Who changes something by hand, and from where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct By {
    /// The operator, as whoever lets them in knows them.
    pub name: String,
    /// From where.
    pub from: Surface,
}

/// From where something is changed by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Surface {
    /// The command line.
    Cli,
    /// The HTTP API.
    Http,
    /// The page in the browser.
    Dashboard,
    /// A tool of ours that a client called.
    Mcp,
    /// A program that has the engine inside it.
    Library,
    /// The verification that a tool is set to have.
    Verify,
}

impl By {
    /// Somebody of this name. A name is shown, so it is cut and without secrets.
    pub fn new(name: impl AsRef<str>, from: Surface) -> Self {
        Self { name: redact::excerpt(name.as_ref(), LONGEST_NAME), from }
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = match self.from {
            Surface::Cli => "cli",
            Surface::Http => "http",
            Surface::Dashboard => "dashboard",
            Surface::Mcp => "mcp",
            Surface::Library => "library",
            Surface::Verify => "verify",
        };
        write!(f, "{} ({from})", self.name)
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Deed {
    /// A request was granted.
    Approved,
    /// A request was denied.
    Denied,
    /// A breaker was forced open.
    BreakerForcedOpen,
    /// A breaker was reset.
    BreakerReset,
    /// A tool was forgiven.
    TrustReset,
    /// A tool may earn its trust back.
    RecoveryApproved,
    /// A conversation was set free.
    GuardReset,
    /// Records were forgotten.
    Flushed,
    /// An unknown outcome was settled.
    Resolved,
    /// Modes were switched.
    Switched,
    /// The loss of records was accepted.
    LossAccepted,
}

/// One change by hand, as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AuditEntry {
    /// The format; readers leave out a newer one.
    pub format: u32,
    /// When.
    #[serde(rename = "atMs")]
    pub at: Timestamp,
    /// Who.
    pub by: By,
    /// What.
    pub deed: Deed,
    /// Whose data it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    /// On what: a tool, a breaker, a conversation, a request, the fingerprint of a key.
    pub on: String,
    /// How it was, where that is short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// How it is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// A change by hand that has just been made.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "as in the entry that is made of it")]
pub struct Done<'a> {
    pub deed: Deed,
    pub tenant: Option<&'a TenantId>,
    pub on: String,
    pub before: Option<String>,
    pub after: Option<String>,
}

/// Which entries of the audit to read; the newest come first.
#[derive(Clone, Debug)]
pub struct AuditPage {
    /// Whose.
    pub tenants: Tenants,
    /// Not older than this.
    pub since: Timestamp,
    /// By whom: the name alone.
    pub by: Option<String>,
    /// What.
    pub deed: Option<Deed>,
    /// Behind this place: where the page before ended.
    pub behind: Option<Position>,
    /// The most entries.
    pub limit: usize,
}

/// Whose data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tenants {
    /// Everybody's: for those who run it.
    All,
    /// That of one tenant; or what belongs to none.
    One(Option<TenantId>),
}

impl Default for AuditPage {
    fn default() -> Self {
        Self { tenants: Tenants::All, since: Timestamp::ZERO, by: None, deed: None, behind: None, limit: 100 }
    }
}

impl Engine {
    /// What people changed by hand, the newest first.
    pub async fn audit(&self, page: &AuditPage) -> Result<Part<AuditEntry>, StoreError> {
        let query = Query {
            subject: page.by.as_deref().map(Into::into),
            since: page.since,
            behind: page.behind,
            ..Query::newest(Journal::Audit, page.limit)
        };
        let fits = |entry: &AuditEntry| {
            entry.format == FORMAT
                && page.deed.is_none_or(|deed| entry.deed == deed)
                && match &page.tenants {
                    Tenants::All => true,
                    Tenants::One(tenant) => entry.tenant == *tenant,
                }
        };
        let wanted = |entry: &Entry| serde_json::from_str(&entry.body).ok().filter(fits);
        look_through(&*self.inner.store, &query, usize::MAX, wanted).await
    }

    /// Remembers a change by hand that a surface made itself, such as a switch that was turned.
    pub async fn audited(&self, by: &By, done: Done<'_>) {
        self.inner.audited(by, done).await;
    }
}

impl Inner {
    /// Remembers a change by hand, as well as it can.
    pub(crate) async fn audited(&self, by: &By, done: Done<'_>) {
        let shown = |text: String| redact::excerpt(&text, LONGEST_TEXT);
        let entry = AuditEntry {
            format: FORMAT,
            at: self.clock.now(),
            by: By::new(&by.name, by.from),
            deed: done.deed,
            tenant: done.tenant.cloned(),
            on: shown(done.on),
            before: done.before.map(shown),
            after: done.after.map(shown),
        };
        self.telling.outside(&Outside::ByHand(&entry));
        let written = match serde_json::to_string(&entry) {
            Ok(body) => {
                let subject: Arc<str> = entry.by.name.as_str().into();
                let entries = [Entry { at: entry.at, subject, body: body.into() }];
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
                "a change by hand was made and could not be written to the audit"
            );
        }
    }
}

const FORMAT: u32 = 1;
/// How much of the audit is kept.
const KEEP: Keep = Keep { most: 10_000, most_per_subject: None, age: Duration::from_secs(365 * 86_400) };
/// How long a change by hand waits for its entry.
const PATIENCE: Duration = Duration::from_secs(5);
const LONGEST_NAME: usize = 128;
const LONGEST_TEXT: usize = 512;
