//! Adaptive trust: a tool that keeps failing needs approval for each call until it has recovered.
//!
//! Trust is lost and restored per *signature* (the tool and the relevant part of its arguments), so that one dead host
//! does not affect the others. If a rule for the *domain* exists, trust is also lost per domain, because the rule then
//! means one server as a whole. It is lost for the *tool* as a whole after a security concern or a report without
//! arguments. The worst of the three counts.
//!
//! Finished calls are counted, not attempts, and only failures whose severity is in the rule's filter: a model with
//! wrong arguments says nothing about the tool. Expiry is decided on each query, so there are no timers, and
//! [`TrustLedger::check`] never writes.
//!
//! | file | subject |
//! | --- | --- |
//! | `account` | the state machine of one tool, signature or domain |
//! | `window` | the failures that still count: in the window, in a row, as a share |
//! | `ledger` | the accounts that a call affects, and the worst of them |
//! | `prompt` | the texts of prompts and notifications |
//! | `entries` | the entries of a ledger in status reports and in storage |
//! | `bounded_map` | the bounded map, and its eviction |
//! | `status` | the current status of all accounts |
//! | `snapshot` | the stored form across a restart |
//! | `lenient` | parsing of the form that hosts write |

mod account;
mod bounded_map;
mod entries;
mod ledger;
mod lenient;
mod prompt;
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
use crate::classify::signature::Signature;
use crate::id::{Domain, ToolRef};
use crate::policy::TrustRule;

pub use entries::{DomainStats, HistoryEntry, ToolReliabilityState};
pub use ledger::{NotifyChoice, TrustBounds, TrustLedger};
pub use snapshot::{TrustSnapshot, TrustSnapshotError};
pub use status::{TrustStatus, changes_between};

/// The trust in a tool, from best to worst.
///
/// ```text
///             a threshold is reached, or access was denied repeatedly
///   TRUSTED ───────────────────────────────────────────────────────► ESCALATED ◄─┐
///      ▲                                                              │  │       │ a counted failure
///      │                                       duration and cool-down │  │       │ (fresh expiry)
///      │                                   over, or operator approves │  │       │
///      │                    N successes                               ▼  │       │
///      └──────────────────────────────────────────────────── RECOVERING ─┼───────┘
///                                                                        │ `block_after` further counted
///   any state ── security concern, for the whole tool ──► BLOCKED ◄──────┘ failures
///   any state ── reset by an operator ──► TRUSTED
/// ```
///
/// A success while ESCALATED (of an approved call) changes nothing. Time and N successes do. Only a reset leads out of
/// BLOCKED.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TrustState {
    /// Calls run.
    Trusted,
    /// Calls run, and trust is restored after enough successes.
    Recovering,
    /// Each call needs approval.
    Escalated,
    /// Only an operator can let a call run.
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

/// The subject of a trust decision.
#[derive(Clone, Copy, Debug)]
pub struct TrustSubject<'a> {
    /// The tool.
    pub tool: &'a ToolRef,
    /// The tool with the relevant part of its arguments.
    pub signature: &'a Signature,
    /// The host or server that it depends on.
    pub domain: Option<&'a Domain>,
}

/// The rules of a trust decision.
#[derive(Clone, Copy, Debug)]
pub struct TrustRules<'a> {
    /// The rule for the signature, and for the tool as a whole.
    pub signature: &'a TrustRule,
    /// The rule for the domain, if there is one.
    pub domain: Option<&'a TrustRule>,
}

/// The content of an approval prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Escalation {
    /// The trust state that requires approval.
    pub state: TrustState,
    /// The reason.
    pub reason: String,
    /// Failures counted since trust was lost.
    pub failures: u32,
    /// The window in which failures are counted, as text.
    pub window: String,
    /// The condition that restores trust, as text.
    pub recovery_hint: String,
    /// True if only an operator can let it recover.
    #[serde(default)]
    pub waits_for_recovery: bool,
    /// The host or server that has lost trust, if it is not the tool itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<Domain>,
    /// One line for the head of the prompt.
    pub summary: String,
    /// Lines of warning.
    pub warnings: Vec<String>,
    /// The severity of the prompt.
    pub level: PromptLevel,
    /// The format of the lines, for hosts that can show diffs and code. It is plain text.
    pub format_hint: String,
}

/// The severity of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PromptLevel {
    /// A routine approval.
    Info,
    /// Trust is lost.
    Warning,
    /// A dangerous call, or a blocked tool.
    Error,
}

/// The trust decision for a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustDecision {
    /// The call may run.
    Allowed(TrustState),
    /// The call needs approval.
    NeedsApproval(Escalation),
    /// The call needs the approval of an operator.
    Blocked(Escalation),
}

/// The result of a finished call, reduced to the data that trust needs.
#[derive(Clone, Copy, Debug)]
pub enum FinishedOutcome {
    /// The call succeeded.
    Success,
    /// The call failed.
    Failure {
        /// The severity of the failure.
        severity: Severity,
        /// True if trust can recover with time, false if only an operator can restore it.
        recoverable: bool,
    },
}

/// A report about a tool from outside a call: from a plugin, a host or an operator.
#[derive(Clone, Copy, Debug)]
pub struct TrustReport<'a> {
    /// The tool.
    pub tool: &'a ToolRef,
    /// The tool with the relevant part of its arguments. Without it the report is about the tool as a whole.
    pub signature: Option<&'a Signature>,
    /// The host that it depends on.
    pub domain: Option<&'a Domain>,
    /// The server or service that it depends on. It replaces the domain if there is none.
    pub service: Option<&'a Domain>,
}

/// A reported failure.
#[derive(Clone, Copy, Debug)]
pub struct ReportedFailure {
    /// The severity from the classification of the error.
    pub classified: Severity,
    /// The severity from the reporter. It takes precedence.
    pub severity: Option<Severity>,
    /// True if trust can recover with time, false if only an operator can restore it.
    pub recoverable: bool,
}

/// The target of a trust operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrustTarget<'a> {
    /// One signature of one tool.
    Signature(&'a ToolRef, &'a Signature),
    /// All tools that depend on one host or server.
    Domain(&'a Domain),
    /// A tool as a whole, with all its signatures.
    Tool(&'a ToolRef),
    /// All targets.
    All,
}

/// The scope of a trust account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TrustScope {
    /// The tool as a whole.
    Tool,
    /// One signature of it.
    Signature,
    /// A host or server, with all tools that depend on it.
    Domain,
}

/// A change of trust, with the facts for a notification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TrustChange {
    /// The subject: the text of the tool, signature or domain.
    pub subject: Arc<str>,
    /// The scope of the subject.
    pub scope: TrustScope,
    /// The tool. For a domain, the tool whose call caused the change, if a call did.
    pub tool: Option<ToolRef>,
    /// The signature, if a call or the account of a signature changed.
    pub signature: Option<Signature>,
    /// The host or server, if known.
    pub domain: Option<Domain>,
    /// The state before.
    pub from: TrustState,
    /// The state after.
    pub to: TrustState,
    /// The reason.
    pub reason: String,
    /// Failures counted since trust was lost.
    pub failures: u32,
    /// Time at which an escalation ends at the earliest. Absent if only an operator can end it or nothing is escalated.
    pub until: Option<Timestamp>,
    /// Successes that restore trust after that.
    pub successes_needed: u32,
    /// True if a notification is sent. The start of a recovery is for metrics only.
    pub notify: bool,
    /// Time of the change.
    pub at: Timestamp,
}
