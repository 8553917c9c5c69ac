//! What a fault means: whether trying again can help, how far the call got, how bad it is.
//!
//! Only faults are classified; the output of a success is never searched for error words. A tool's own
//! [`Overrides`] come first, then structured facts (status, code, signal), then anchored patterns over the
//! first statement of the message. The rule that decided is always named, so that a surprising verdict can
//! be explained and overridden.
//!
//! Two principles keep side effects from running twice. Text never proves that a tool did not run: only
//! structure can say [`Reach::NotSent`] or [`Reach::Refused`]. And an error that tells of a time-out, a lost connection or
//! a failing gateway, as an answer (`isError`) or in place of one, does not say whether the tool had its effect
//! ([`Reach::Unknown`]).
//!
//! Beside the classifier stand the other judgements that are made of a call's facts alone:
//! [`signature`] (what trust counts by), [`danger`] (commands that nobody should run unasked), both of what the
//! call is aimed at ([`Aims`]), and [`record`] (failure records, and failures hidden in successful results).

mod aims;
pub mod danger;
mod overrides;
pub mod record;
mod retry_after;
mod rules;
mod shell;
pub mod signature;
mod text;

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use aims::Aims;
pub use overrides::{InvalidOverride, Match, OverrideProblem, OverrideRule, Overrides};

use crate::Timestamp;
use crate::code::Code;

/// What a fault means for a tool with these overrides.
pub fn classify(fault: &Fault, overrides: &Overrides, now: Timestamp) -> Classified {
    let facts = text::Facts::of(fault);
    let built_in = rules::decide(fault, &facts, overrides.unknown());
    let told = fault.retry_after.and_then(|asked| asked.resolve(now));
    let Some((index, rule)) = overrides.first_match(&facts) else {
        return built_in.into_classified(told);
    };
    let mut decided = built_in.into_classified(told.or(rule.retry_after));
    rule.apply(&mut decided);
    decided.rule = rule.known_as(index);
    decided
}

/// Whether this says, in whatever words, that a server does not know our session (any more): then it wants another one.
pub fn is_session_lost(fault: &Fault) -> bool {
    classify(fault, &Overrides::default(), Timestamp::ZERO).rule.ends_with("session-lost")
}

/// Something went wrong with an attempt, as the shell that ran it saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The structured part.
    pub source: Source,
    /// What was said, in whatever words.
    pub message: String,
    /// When the other side asked to be called again.
    pub retry_after: Option<RetryAfter>,
    /// The exit code of a command that answered by it ([`Source::Tool`]). It proves nothing by itself; a rule of the tool may
    /// say what it means.
    pub exit: Option<i32>,
}

impl Fault {
    /// A fault whose other side did not say when to call again.
    pub fn new(source: Source, message: impl Into<String>) -> Self {
        Self { source, message: message.into(), retry_after: None, exit: None }
    }
}

/// Where a fault comes from, with the facts that this kind of source has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The connection, before or after the request was on its way.
    Transport {
        /// What broke.
        error: Transport,
        /// Whether any of the request may have reached the other side.
        written: bool,
    },
    /// An HTTP answer that is not a success.
    Http {
        /// Its status.
        status: u16,
    },
    /// A JSON-RPC error.
    JsonRpc {
        /// Its code.
        code: i64,
    },
    /// The server does not know our session any more (HTTP 404 to a request with a session id).
    SessionLost,
    /// A result that the server itself marked as an error (`isError`).
    IsError,
    /// An error that the tool returned or threw in place of an answer, as its host reports it.
    Tool,
    /// A WebSocket that was closed.
    WebSocket {
        /// The close code.
        code: u16,
    },
    /// A child process that ended while a call was pending. A command that ran to its end and reported a
    /// failure by its exit code has answered: that is [`Source::Tool`].
    Exit {
        /// Its exit code, if it ended by itself.
        code: Option<i32>,
        /// The signal that ended it.
        signal: Option<i32>,
    },
    /// Our own clock cut the attempt.
    Timeout {
        /// After how long.
        after: Duration,
    },
    /// The tool panicked in our process.
    Panic,
    /// The answer breaks the tool's own output schema, or is not in the protocol at all.
    BadAnswer,
    /// There is an answer, and it is longer than what is taken. Of what it says nothing is known.
    TooLarge,
}

/// The kinds of [`Source`] by name, for rules and records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the variants are those of `Source`")]
pub enum SourceKind {
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

impl SourceKind {
    /// The name in files and records.
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

impl Source {
    /// Which kind it is.
    pub const fn kind(&self) -> SourceKind {
        match self {
            Self::Transport { .. } => SourceKind::Transport,
            Self::Http { .. } => SourceKind::Http,
            Self::JsonRpc { .. } => SourceKind::JsonRpc,
            Self::SessionLost => SourceKind::SessionLost,
            Self::IsError => SourceKind::IsError,
            Self::Tool => SourceKind::Tool,
            Self::WebSocket { .. } => SourceKind::WebSocket,
            Self::Exit { .. } => SourceKind::Exit,
            Self::Timeout { .. } => SourceKind::Timeout,
            Self::Panic => SourceKind::Panic,
            Self::BadAnswer => SourceKind::BadAnswer,
            Self::TooLarge => SourceKind::TooLarge,
        }
    }
}

/// What can break on the way to a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Nobody listens there.
    ConnectionRefused,
    /// The other side cut the connection.
    ConnectionReset,
    /// The connection ended.
    ConnectionClosed,
    /// It took too long on the wire.
    TimedOut,
    /// The name could not be resolved.
    NameNotFound,
    /// There is no way to the host.
    Unreachable,
    /// TLS could not be agreed on.
    Tls,
    /// Something else.
    Other,
}

/// When the other side asked to be called again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryAfter {
    /// In so long.
    Delay(Duration),
    /// At this moment.
    At(Timestamp),
}

/// What a fault means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classified {
    /// Whether the same call can succeed later.
    pub nature: Nature,
    /// How far it got.
    pub reach: Reach,
    /// How bad it is, for trust.
    pub severity: Severity,
    /// What the guard makes of it.
    pub mistake: Option<Mistake>,
    /// How long the other side asked us to wait.
    pub retry_after: Option<Duration>,
    /// The code that the caller gets if this is the end.
    pub code: Code,
    /// The rule that decided.
    pub rule: Cow<'static, str>,
}

/// Whether the same call can succeed later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Nature {
    /// Trying again can help; a breaker counts it.
    Transient,
    /// Trying again cannot help; a breaker does not count it.
    Permanent,
}

/// How far a call got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// It never left.
    NotSent,
    /// It is proved that the tool did not run.
    Refused,
    /// It may have run.
    Unknown,
    /// The tool said no. It may have done a part of its work before, so repeating it needs the same care
    /// as [`Reach::Unknown`]; but the call ends with the tool's own answer.
    Answered,
}

impl Reach {
    /// Whether repeating the call cannot cause a second effect, whatever the tool does.
    pub const fn proves_not_run(self) -> bool {
        match self {
            Self::NotSent | Self::Refused => true,
            Self::Unknown | Self::Answered => false,
        }
    }
}

/// How bad a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// An answer that no rule knows. Outside every filter unless configured.
    Informational,
    /// It passes by itself.
    Transient,
    /// What was asked for is not there.
    NotFound,
    /// The model's mistake, not the tool's.
    InvalidInput,
    /// Access was denied.
    Permission,
    /// The service answered in a form that it should not have.
    Validation,
    /// It took too long.
    Timeout,
    /// The service is broken.
    ServerError,
    /// The tool's process died.
    Crash,
    /// Data was damaged.
    Corruption,
    /// Something dangerous was asked for or reported.
    Security,
    /// Access was denied again and again.
    RepeatedAuth,
}

impl Severity {
    /// All of them with the words that stand for them where people write them.
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

/// Mistakes of the model that the guard treats without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mistake {
    /// The arguments will never be accepted.
    Arguments,
    /// There is no such tool.
    UnknownTool,
}

#[cfg(test)]
mod tests;
