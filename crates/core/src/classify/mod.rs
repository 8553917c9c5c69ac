//! Classification of faults: retriable or not, progress of the call, and severity.
//!
//! Only faults are classified. The output of a success is never searched for error words. A tool's own [`Overrides`]
//! come first, then structured facts (status, code, signal), then anchored patterns over the first statement of the
//! message. The result always names the rule that decided, so a surprising verdict can be explained and overridden.
//!
//! Two principles keep side effects from happening twice. Text never proves that a tool did not run: only structured
//! facts lead to [`AttemptReach::NotSent`] or [`AttemptReach::Refused`]. And an error about a timeout, a lost connection or a failing
//! gateway, as a result (`isError`) or in place of one, leaves open if the tool took effect ([`AttemptReach::Unknown`]).
//!
//! The module also contains other judgements that need only the facts of a call: [`signature`] (the unit by which trust
//! is counted) and [`danger`] (commands that must not run without approval), both based on the targets of the call
//! ([`ArgumentTargets`]), and [`record`] (failure records, and failures hidden in successful results).

pub mod danger;
mod failure_fields;
mod overrides;
pub mod record;
mod retry_after;
mod rules;
mod shell;
pub mod signature;
mod targets;
mod text;
mod verdict;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use overrides::{FaultMatcher, InvalidOverride, OverrideProblem, OverrideRule, Overrides};
pub use targets::ArgumentTargets;

use crate::Timestamp;
use crate::code::Code;

/// Classifies a fault for a tool with these overrides.
pub fn classify(fault: &AttemptFault, overrides: &Overrides, now: Timestamp) -> Classification {
    let facts = text::FaultFacts::of(fault);
    let built_in = rules::decide(fault, &facts, overrides.unknown());
    let retry_after = fault.retry_after.and_then(|requested| requested.resolve(now));
    let Some((index, rule)) = overrides.first_match(&facts) else {
        return built_in.into_classified(retry_after);
    };
    let mut decided = built_in.into_classified(retry_after.or(rule.retry_after));
    rule.apply(&mut decided);
    decided.rule = rule.display_name(index);
    decided
}

/// Returns true if the fault means that a server does not know the session, or no longer, so that a new session is needed.
pub fn is_session_lost(fault: &AttemptFault) -> bool {
    classify(fault, &Overrides::default(), Timestamp::ZERO).rule.ends_with("session-lost")
}

/// A fault of an attempt, as observed by the shell that ran it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptFault {
    /// Structured part of the fault.
    pub source: FaultSource,
    /// Message in free text.
    pub message: String,
    /// Time of the next call that the other side asked for.
    pub retry_after: Option<RetryAfter>,
    /// Exit code of a command that responded with it ([`FaultSource::Tool`]). It proves nothing by itself, but a rule of the
    /// tool may give it a meaning.
    pub exit: Option<i32>,
}

impl AttemptFault {
    /// Returns a fault without a retry time from the other side.
    pub fn new(source: FaultSource, message: impl Into<String>) -> Self {
        Self { source, message: message.into(), retry_after: None, exit: None }
    }
}

impl fmt::Display for AttemptFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

// Not derived: `thiserror` takes a field named `source` for the cause of the error.
impl std::error::Error for AttemptFault {}

/// The source of a fault, with the facts that this kind of source has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultSource {
    /// The connection, before or after the request was sent.
    Transport {
        /// Transport error.
        error: TransportError,
        /// True if any part of the request may have reached the other side.
        written: bool,
    },
    /// An HTTP response that is not a success.
    Http {
        /// Status of the response.
        status: u16,
    },
    /// A JSON-RPC error.
    JsonRpc {
        /// Code of the error.
        code: i64,
    },
    /// The server no longer knows the session (HTTP 404 to a request with a session id).
    SessionLost,
    /// A result that the server itself marked as an error (`isError`).
    IsError,
    /// An error that the tool returned or threw in place of a result, as reported by its host.
    Tool,
    /// A WebSocket that was closed.
    WebSocket {
        /// Close code of the WebSocket.
        code: u16,
    },
    /// A child process that ended while a call was pending. A command that ran to its end and reported a failure by its
    /// exit code has responded: that is [`FaultSource::Tool`].
    Exit {
        /// Exit code, if the process ended by itself.
        code: Option<i32>,
        /// Signal that ended the process.
        signal: Option<i32>,
    },
    /// Steadfast's timeout ended the attempt.
    Timeout {
        /// Time after which the attempt ended.
        after: Duration,
    },
    /// The tool panicked in the process of Steadfast.
    Panic,
    /// The response violates the tool's own output schema, or is not valid in the protocol.
    BadAnswer,
    /// The response is longer than the limit, and its content is unknown.
    TooLarge,
}

/// The kinds of [`FaultSource`] by name, for rules and records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the variants are those of `Source`")]
pub enum FaultSourceKind {
    Transport,
    Http,
    JsonRpc,
    SessionLost,
    IsError,
    Tool,
    WebSocket,
    Exit,
    Timeout,
    Panic,
    BadAnswer,
    TooLarge,
}

impl FaultSourceKind {
    /// Returns the name in files and records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Transport => "transport",
            Self::Http => "http",
            Self::JsonRpc => "json_rpc",
            Self::SessionLost => "session_lost",
            Self::IsError => "is_error",
            Self::Tool => "tool",
            Self::WebSocket => "web_socket",
            Self::Exit => "exit",
            Self::Timeout => "timeout",
            Self::Panic => "panic",
            Self::BadAnswer => "bad_answer",
            Self::TooLarge => "too_large",
        }
    }
}

impl FaultSource {
    /// Returns the kind of the source.
    pub const fn kind(&self) -> FaultSourceKind {
        match self {
            Self::Transport { .. } => FaultSourceKind::Transport,
            Self::Http { .. } => FaultSourceKind::Http,
            Self::JsonRpc { .. } => FaultSourceKind::JsonRpc,
            Self::SessionLost => FaultSourceKind::SessionLost,
            Self::IsError => FaultSourceKind::IsError,
            Self::Tool => FaultSourceKind::Tool,
            Self::WebSocket { .. } => FaultSourceKind::WebSocket,
            Self::Exit { .. } => FaultSourceKind::Exit,
            Self::Timeout { .. } => FaultSourceKind::Timeout,
            Self::Panic => FaultSourceKind::Panic,
            Self::BadAnswer => FaultSourceKind::BadAnswer,
            Self::TooLarge => FaultSourceKind::TooLarge,
        }
    }
}

/// An error of the transport to a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TransportError {
    /// No server listens at the address.
    ConnectionRefused,
    /// The other side reset the connection.
    ConnectionReset,
    /// The connection was closed.
    ConnectionClosed,
    /// The transport timed out.
    TimedOut,
    /// The name could not be resolved.
    NameNotFound,
    /// The host is unreachable.
    Unreachable,
    /// TLS could not be established.
    Tls,
    /// Any other error.
    Other,
}

/// The retry time that the other side asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryAfter {
    /// A delay from now.
    Delay(Duration),
    /// A point in time.
    At(Timestamp),
}

/// The classification of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classification {
    /// Transient or permanent.
    pub nature: FaultNature,
    /// Progress of the call.
    pub reach: AttemptReach,
    /// Severity for trust.
    pub severity: Severity,
    /// Mistake of the model, for the loop guard.
    pub mistake: Option<ModelMistake>,
    /// Delay that the other side asked for.
    pub retry_after: Option<Duration>,
    /// Error code for the caller if the call ends here.
    pub code: Code,
    /// Name of the rule that decided.
    pub rule: Cow<'static, str>,
}

/// The chance that the same call succeeds later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FaultNature {
    /// A retry can help. A circuit breaker counts the failure.
    Transient,
    /// A retry cannot help. A circuit breaker does not count the failure.
    Permanent,
}

/// The progress of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AttemptReach {
    /// The call was never sent.
    NotSent,
    /// The tool provably did not run.
    Refused,
    /// The call may have run.
    Unknown,
    /// The tool responded with an error. It may have done a part of its work before, so repeating the call needs the
    /// same care as [`AttemptReach::Unknown`]. But the call ends with the tool's own response.
    Answered,
}

impl AttemptReach {
    /// Returns true if repeating the call cannot cause a second effect, for any tool.
    pub const fn proves_not_run(self) -> bool {
        match self {
            Self::NotSent | Self::Refused => true,
            Self::Unknown | Self::Answered => false,
        }
    }
}

/// The severity of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// A response that no rule matches. Not counted unless configured.
    Informational,
    /// A failure that passes by itself.
    Transient,
    /// The requested object does not exist.
    NotFound,
    /// A mistake of the model, not of the tool.
    InvalidInput,
    /// Access was denied.
    Permission,
    /// The service responded in an invalid form.
    Validation,
    /// The attempt took too long.
    Timeout,
    /// The service is broken.
    ServerError,
    /// The tool's process died.
    Crash,
    /// Data was damaged.
    Corruption,
    /// A dangerous action was requested or reported.
    Security,
    /// Access was denied repeatedly.
    RepeatedAuth,
}

impl Severity {
    /// All severities with the words that stand for them in settings.
    pub const WORDS: &[(&str, Self)] = &[
        ("informational", Self::Informational),
        ("transient", Self::Transient),
        ("not_found", Self::NotFound),
        ("invalid_input", Self::InvalidInput),
        ("permission", Self::Permission),
        ("validation", Self::Validation),
        ("timeout", Self::Timeout),
        ("server_error", Self::ServerError),
        ("crash", Self::Crash),
        ("corruption", Self::Corruption),
        ("security", Self::Security),
        ("repeated_auth", Self::RepeatedAuth),
    ];
}

/// Invalid calls by the model, which the loop guard handles at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ModelMistake {
    /// The arguments will never be accepted.
    Arguments,
    /// The tool does not exist.
    UnknownTool,
}

/// Returns the beginning of a text, at most this many bytes, cut between characters.
fn cut(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    end.and_then(|end| text.get(..end)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
