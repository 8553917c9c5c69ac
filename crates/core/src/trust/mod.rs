//! Adaptive trust: a tool that keeps failing has to be approved by a person until it has proved itself again.
//!
//! Trust is lost and won per *signature* (the tool and the part of its arguments that matters), so that one
//! dead host does not cost the others their freedom; where a rule for the *domain* exists also per domain,
//! because then one server is meant as a whole; and for the *tool* as a whole after a security concern or a
//! report that names no arguments. The worst of the three counts.
//!
//! What is counted are finished calls, not attempts, and only failures whose severity is in the rule's filter:
//! a model that mistypes arguments says nothing about the tool. Anything that merely expires is decided when
//! asked, so there are no timers, and [`TrustLedger::standing`] never writes.
//!
//! | file | what is decided there |
//! | --- | --- |
//! | `account` | the state machine of one holder of trust |
//! | `window` | which failures still count, how many in a row, what share |
//! | `ledger` | whose account a call touches, and which of them is the worst |
//! | `prompt` | the words that people read |
//! | `shelf` | what is forgotten when there is no room |
//! | `status` | how everything stands, for people |
//! | `snapshot` | what is kept across a restart |
//! | `lenient` | the same as hosts write it |

mod account;
mod ledger;
mod lenient;
mod prompt;
mod shelf;
mod snapshot;
mod status;
#[cfg(test)]
mod tests;
mod window;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::classify::Severity;
use crate::id::{Domain, ToolRef};
use crate::policy::TrustRule;

pub use ledger::{Bounds, Notify, TrustLedger};
pub use snapshot::{DomainStats, HistoryEntry, Snapshot, SnapshotError, ToolReliabilityState};
pub use status::{TrustStatus, changes_between};

/// What failures are counted by: the tool and the part of its arguments that matters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Signature(pub Arc<str>);

/// How far a tool is trusted. The order is from best to worst.
///
/// ```text
///             a threshold is reached, or access was denied again and again
///   TRUSTED ───────────────────────────────────────────────────────► ESCALATED ◄─┐
///      ▲                                                              │  │       │ a counted failure
///      │                                        duration and cool-down│  │       │ (fresh expiry)
///      │                                     over, or a person says so│  │       │
///      │                    N successes                               ▼  │       │
///      └──────────────────────────────────────────────────── RECOVERING ─┼───────┘
///                                                                        │ `block_after` further counted
///   any state ── security concern, for the whole tool ──► BLOCKED ◄──────┘ failures
///   any state ── reset by hand ──► TRUSTED
/// ```
///
/// A success while ESCALATED (of a call that a person approved) changes nothing; time and N successes do.
/// Nothing but a reset leads out of BLOCKED.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TrustState {
    /// It runs.
    Trusted,
    /// It runs and has to earn trust back.
    Recovering,
    /// A person is asked.
    Escalated,
    /// Nobody but an operator can let it run.
    Blocked,
}

impl fmt::Display for TrustState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Trusted => "TRUSTED",
            Self::Recovering => "RECOVERING",
            Self::Escalated => "ESCALATED",
            Self::Blocked => "BLOCKED",
        })
    }
}

/// Who is judged.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The tool.
    pub tool: &'a ToolRef,
    /// With the part of its arguments that matters.
    pub signature: &'a Signature,
    /// What it depends on.
    pub domain: Option<&'a Domain>,
}

/// By which rules.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// For the signature, and for the tool as a whole.
    pub signature: &'a TrustRule,
    /// For the domain, where one exists.
    pub domain: Option<&'a TrustRule>,
}

/// What a prompt for approval has to say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Escalation {
    /// The state that asks.
    pub state: TrustState,
    /// Why.
    pub reason: String,
    /// Failures counted since the trouble began.
    pub failures: u32,
    /// In what window, in words.
    pub window: String,
    /// What ends it, in words.
    pub recovery_hint: String,
    /// Whether nothing ends it but a person who lets it recover.
    #[serde(default)]
    pub waits_for_recovery: bool,
    /// The host or server that has lost trust, where it is not the tool itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<Domain>,
    /// One line for the head of the prompt.
    pub summary: String,
    /// Lines of warning.
    pub warnings: Vec<String>,
    /// How loud the prompt should be.
    pub level: Level,
    /// How the lines are to be shown; hosts that can show diffs and code need to know that this is neither.
    pub format_hint: String,
}

/// How loud a prompt should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Asked as a matter of routine.
    Info,
    /// Trust is lost.
    Warning,
    /// Something dangerous, or a blocked tool.
    Error,
}

/// Whether a call may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It may.
    Free(TrustState),
    /// If a person says so.
    Ask(Escalation),
    /// Only if an operator says so.
    Blocked(Escalation),
}

/// A finished call, as trust sees it.
#[derive(Clone, Copy, Debug)]
pub enum Finished {
    /// It worked.
    Success,
    /// It failed.
    Failure {
        /// How badly.
        severity: Severity,
        /// Whether time can heal it; otherwise only a person.
        recoverable: bool,
    },
}

/// What somebody else than the call itself says about a tool: a plugin, a host, an operator.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// The tool.
    pub tool: &'a ToolRef,
    /// With the part of its arguments that matters; without it the report is about the tool as a whole.
    pub signature: Option<&'a Signature>,
    /// The host that it depends on.
    pub domain: Option<&'a Domain>,
    /// The server or service that it depends on; stands in for the domain where none is given.
    pub service: Option<&'a Domain>,
}

/// How bad a reported failure is.
#[derive(Clone, Copy, Debug)]
pub struct ReportedFailure {
    /// What classification made of the error.
    pub classified: Severity,
    /// What the reporter says; it counts if given.
    pub severity: Option<Severity>,
    /// Whether time can heal it; otherwise only a person.
    pub recoverable: bool,
}

/// Whose trust something is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// One signature of one tool.
    Signature(&'a ToolRef, &'a Signature),
    /// Everything that depends on one host or server.
    Domain(&'a Domain),
    /// A tool as a whole, with all its signatures.
    Tool(&'a ToolRef),
    /// Everything.
    All,
}

/// What kind of holder of trust an account belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The tool as a whole.
    Tool,
    /// One signature of it.
    Signature,
    /// A host or server, with all tools that depend on it.
    Domain,
}

/// A change that people may want to know about, with the facts that a notification needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TrustChange {
    /// Whose: the text of the tool, signature or domain.
    pub subject: Arc<str>,
    /// Which of these it is.
    pub scope: Scope,
    /// The tool; for a domain the one whose call brought the change, if a call did.
    pub tool: Option<ToolRef>,
    /// The signature, if a call or a signature's account is meant.
    pub signature: Option<Signature>,
    /// The host or server, where one is known.
    pub domain: Option<Domain>,
    /// Before.
    pub from: TrustState,
    /// After.
    pub to: TrustState,
    /// Why.
    pub reason: String,
    /// Failures counted since the trouble began.
    pub failures: u32,
    /// When an escalation ends at the earliest; nothing if only a person can end it or nothing is escalated.
    pub until: Option<Timestamp>,
    /// Successes that earn trust back after that.
    pub successes_needed: u32,
    /// Whether people are told. Beginning to recover is for metrics only.
    pub notify: bool,
    /// When.
    pub at: Timestamp,
}
