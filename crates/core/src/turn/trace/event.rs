//! Events: what can happen in a turn, the flat form in which it is stored, and the sentence for it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::breaker::State;
use crate::classify::Nature;
use crate::code::Code;
use crate::id::{Namespace, ToolCallId, ToolName, ToolRef};
use crate::{Timestamp, millis, redact};

use super::iso;
use super::{SpanId, TraceId};
use crate::turn::clip;
use crate::turn::handler::Strategy;
use crate::turn::plan::Need;
use crate::turn::result::Outcome;

/// Something that happened in a turn, not yet tied to a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// When.
    pub at: Timestamp,
    /// To which call of the plan.
    pub call: Option<ToolCallId>,
    /// With which tool.
    pub tool: Option<ToolRef>,
    /// What.
    pub fact: Fact,
}

impl Note {
    /// The same as others may see it: what tools say may hold secrets. A text is redacted before it is cut, because half a
    /// secret is not known for one.
    #[must_use]
    pub fn redacted(mut self) -> Self {
        match &mut self.fact {
            Fact::ToolError(fault) | Fact::ToolTimeout { fault, .. } => {
                fault.error = redact::text(&fault.error).into_owned();
            }
            Fact::TurnEnded { summary, .. } => *summary = redact::text(summary).into_owned(),
            Fact::TurnStarted { .. }
            | Fact::CallRestored { .. }
            | Fact::ToolStarted
            | Fact::ToolRetry { .. }
            | Fact::ToolSucceeded { .. }
            | Fact::Decision { .. }
            | Fact::CircuitBreaker { .. }
            | Fact::AlternativeUsed { .. }
            | Fact::DefaultUsed { .. }
            | Fact::ToolSkipped { .. }
            | Fact::ToolCancelled
            | Fact::ToolLeftRunning
            | Fact::LateResult { .. }
            | Fact::TurnTimeout { .. }
            | Fact::TurnCancelled => {}
        }
        self
    }

    /// It as a person reads it.
    pub fn sentence(&self) -> String {
        sentence(self)
    }
}

/// What can happen in a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The turn began.
    TurnStarted {
        /// Calls in its plan.
        calls: usize,
    },
    /// A call was finished by an earlier submission of the same turn and does not run again.
    CallRestored {
        /// How it ended then.
        outcome: Outcome,
    },
    /// A tool was started.
    ToolStarted,
    /// A tool is tried again.
    ToolRetry {
        /// The attempt to come, counted from one.
        attempt: u32,
        /// After this wait.
        delay: Duration,
    },
    /// A tool did its job.
    ToolSucceeded {
        /// Attempts it took.
        attempts: u32,
    },
    /// A tool failed.
    ToolError(ToolFault),
    /// A tool took too long.
    ToolTimeout {
        /// What it was allowed.
        timeout: Duration,
        /// The rest of what is known.
        fault: ToolFault,
    },
    /// The error handler decided.
    Decision {
        /// What to do.
        strategy: Strategy,
        /// Why.
        reason: String,
    },
    /// A breaker changed its state.
    CircuitBreaker {
        /// To this.
        state: State,
    },
    /// Another tool does the job.
    AlternativeUsed {
        /// The planned tool.
        instead_of: ToolRef,
    },
    /// A default stands in for an output.
    DefaultUsed {
        /// The call whose output is missing.
        dependency: ToolCallId,
    },
    /// A call does not run.
    ToolSkipped {
        /// Why not.
        because: SkipReason,
        /// Whether the turn needed it.
        need: Need,
        /// Whether a person should know.
        escalated: bool,
    },
    /// The end of the turn stopped a running call.
    ToolCancelled,
    /// The end of the turn left a call running.
    ToolLeftRunning,
    /// A call that was cut off by the end of the turn has ended after all.
    LateResult {
        /// Why it failed, if it did.
        code: Option<Code>,
    },
    /// The time of the turn is over.
    TurnTimeout {
        /// What it was allowed.
        timeout: Duration,
    },
    /// The caller withdrew the turn.
    TurnCancelled,
    /// The turn ended.
    TurnEnded {
        /// The sentence for the user.
        summary: String,
        /// Whether a person should know.
        escalated: bool,
    },
}

impl Fact {
    /// What it is called in a trace.
    pub const fn event_type(&self) -> EventType {
        match self {
            Self::TurnStarted { .. } => EventType::TurnStarted,
            Self::CallRestored { .. } => EventType::CallRestored,
            Self::ToolStarted => EventType::ToolStarted,
            Self::ToolRetry { .. } => EventType::ToolRetry,
            Self::ToolSucceeded { .. } => EventType::ToolSucceeded,
            Self::ToolError(_) => EventType::ToolError,
            Self::ToolTimeout { .. } => EventType::ToolTimeout,
            Self::Decision { .. } => EventType::Decision,
            Self::CircuitBreaker { .. } => EventType::CircuitBreaker,
            Self::AlternativeUsed { .. } => EventType::AlternativeUsed,
            Self::DefaultUsed { .. } => EventType::DefaultUsed,
            Self::ToolSkipped { .. } => EventType::ToolSkipped,
            Self::ToolCancelled => EventType::ToolCancelled,
            Self::ToolLeftRunning => EventType::ToolLeftRunning,
            Self::LateResult { .. } => EventType::LateResult,
            Self::TurnTimeout { .. } => EventType::TurnTimeout,
            Self::TurnCancelled => EventType::TurnCancelled,
            Self::TurnEnded { .. } => EventType::TurnEnded,
        }
    }
}

/// What is known about a tool that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolFault {
    /// What was said.
    pub error: String,
    /// The rule that says what kind of failure that is.
    pub rule: Option<String>,
    /// The code.
    pub code: Code,
    /// Whether it can succeed later.
    pub nature: Nature,
    /// The tool's breaker.
    pub breaker: State,
    /// Attempts made.
    pub attempts: u32,
    /// What the error handler decided.
    pub decision: Strategy,
}

/// Why a call does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// Something it depends on did not succeed.
    Dependency(ToolCallId),
    /// The time of the turn was over first.
    Deadline,
    /// The turn was withdrawn first.
    Cancelled,
}

/// One event of a trace, as it is stored and exported: one JSON object, one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    /// What happened.
    pub event_type: EventType,
    /// The group it belongs to.
    pub kind: Kind,
    /// When, in ISO 8601 with milliseconds.
    #[serde(with = "iso")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub timestamp: Timestamp,
    /// The trace.
    pub trace_id: TraceId,
    /// The span, if it belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span_id: Option<SpanId>,
    /// Its place among the events of the trace.
    pub sequence: u64,
    /// The call of the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<ToolCallId>,
    /// The tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_id: Option<ToolName>,
    /// The namespace of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_namespace: Option<Namespace>,
    /// The event as a sentence.
    pub sentence: String,
    /// What was allowed, for time-outs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The wait before a retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// What was said by what failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The rule that says what kind of failure that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The code of what failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// Whether trying again can help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub classification: Option<Nature>,
    /// The state of the tool's breaker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub circuit_breaker_state: Option<State>,
    /// Retries made so far: attempts without the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_count: Option<u32>,
    /// What the error handler decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Strategy>,
    /// Why it decided so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How a call ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// The call that something was missing from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dependency_id: Option<ToolCallId>,
    /// Whether a person should know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalated: Option<bool>,
    /// Events that were left out before this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<u64>,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[expect(missing_docs, reason = "the variants are those of `Fact`, and of the cut")]
pub enum EventType {
    TurnStarted,
    CallRestored,
    ToolStarted,
    ToolRetry,
    ToolSucceeded,
    ToolError,
    ToolTimeout,
    Decision,
    CircuitBreaker,
    AlternativeUsed,
    DefaultUsed,
    ToolSkipped,
    ToolCancelled,
    ToolLeftRunning,
    LateResult,
    TurnTimeout,
    TurnCancelled,
    TurnEnded,
    TraceCut,
}

/// The coarse group of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Kind {
    /// A tool began or ended.
    ToolInvocation,
    /// Something failed.
    Error,
    /// Something was decided about a failure.
    Decision,
    /// Something was seen that concerns more than one call.
    Observation,
    /// The turn as a whole.
    Summary,
}

/// Where an event stands.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) trace: TraceId,
    pub(super) span: Option<SpanId>,
    pub(super) sequence: u64,
}

impl Event {
    /// The flat form of a note.
    pub(super) fn of(place: Place, note: &Note) -> Self {
        let mut event = Self {
            call_id: note.call.clone(),
            tool_id: note.tool.as_ref().map(|tool| tool.tool.clone()),
            tool_namespace: note.tool.as_ref().map(|tool| tool.namespace.clone()),
            ..Self::blank(place, note.fact.event_type(), note.at, note.sentence())
        };
        let retries = |attempts: u32| Some(attempts.saturating_sub(1));
        let mut fault_fields = |fault: &ToolFault| {
            event.error = Some(clip(&fault.error, TEXT_BYTES));
            event.rule = fault.rule.clone();
            event.code = Some(fault.code);
            event.classification = Some(fault.nature);
            event.circuit_breaker_state = Some(fault.breaker);
            event.retry_count = retries(fault.attempts);
            event.decision = Some(fault.decision);
        };
        match &note.fact {
            Fact::ToolStarted
            | Fact::TurnStarted { .. }
            | Fact::AlternativeUsed { .. }
            | Fact::TurnCancelled => {}
            Fact::CallRestored { outcome } => event.outcome = Some(*outcome),
            Fact::ToolRetry { attempt, delay } => {
                event.retry_count = retries(*attempt);
                event.delay_ms = Some(millis(*delay));
            }
            Fact::ToolSucceeded { attempts } => {
                event.retry_count = retries(*attempts);
                event.outcome = Some(Outcome::Succeeded);
            }
            Fact::ToolError(fault) => fault_fields(fault),
            Fact::ToolTimeout { timeout, fault } => {
                fault_fields(fault);
                event.timeout_ms = Some(millis(*timeout));
            }
            Fact::Decision { strategy, reason } => {
                event.decision = Some(*strategy);
                event.reason = Some(clip(reason, TEXT_BYTES));
            }
            Fact::CircuitBreaker { state } => event.circuit_breaker_state = Some(*state),
            Fact::DefaultUsed { dependency } => event.dependency_id = Some(dependency.clone()),
            Fact::ToolSkipped { because, need: _, escalated } => {
                event.outcome = Some(Outcome::Skipped);
                event.escalated = Some(*escalated);
                event.code = Some(match because {
                    SkipReason::Dependency(dependency) => {
                        event.dependency_id = Some(dependency.clone());
                        Code::DependencyFailed
                    }
                    SkipReason::Deadline => Code::DeadlineExceeded,
                    SkipReason::Cancelled => Code::Cancelled,
                });
            }
            Fact::ToolCancelled => event.outcome = Some(Outcome::Cancelled),
            Fact::ToolLeftRunning => event.outcome = Some(Outcome::LeftRunning),
            Fact::LateResult { code } => event.code = *code,
            Fact::TurnTimeout { timeout } => event.timeout_ms = Some(millis(*timeout)),
            Fact::TurnEnded { summary: _, escalated } => event.escalated = Some(*escalated),
        }
        event
    }

    /// An event that says no more than its sentence.
    pub(super) fn blank(place: Place, event_type: EventType, at: Timestamp, sentence: String) -> Self {
        Self {
            event_type,
            kind: kind(event_type),
            timestamp: at,
            trace_id: place.trace,
            span_id: place.span,
            sequence: place.sequence,
            call_id: None,
            tool_id: None,
            tool_namespace: None,
            sentence,
            timeout_ms: None,
            delay_ms: None,
            error: None,
            rule: None,
            code: None,
            classification: None,
            circuit_breaker_state: None,
            retry_count: None,
            decision: None,
            reason: None,
            outcome: None,
            dependency_id: None,
            escalated: None,
            dropped: None,
        }
    }
}

/// The longest text of a tool that is kept in one event.
pub(super) const TEXT_BYTES: usize = 1024;

const fn kind(event_type: EventType) -> Kind {
    match event_type {
        EventType::CallRestored
        | EventType::ToolStarted
        | EventType::ToolRetry
        | EventType::ToolSucceeded
        | EventType::ToolCancelled
        | EventType::ToolLeftRunning
        | EventType::LateResult => Kind::ToolInvocation,
        EventType::ToolError | EventType::ToolTimeout | EventType::TurnTimeout => Kind::Error,
        EventType::Decision
        | EventType::AlternativeUsed
        | EventType::DefaultUsed
        | EventType::ToolSkipped => Kind::Decision,
        EventType::CircuitBreaker | EventType::TraceCut => Kind::Observation,
        EventType::TurnStarted | EventType::TurnCancelled | EventType::TurnEnded => Kind::Summary,
    }
}

/// A note as a person reads it.
fn sentence(note: &Note) -> String {
    let tool = note.tool.as_ref().map_or("the tool", |tool| tool.tool.as_str());
    match &note.fact {
        Fact::TurnStarted { calls: 1 } => "Turn started with 1 call".to_owned(),
        Fact::TurnStarted { calls } => format!("Turn started with {calls} calls"),
        Fact::CallRestored { .. } => format!("Finished earlier, not run again: {tool}"),
        Fact::ToolStarted => format!("Started {tool}"),
        Fact::ToolRetry { attempt, delay } => {
            format!("Retry of {tool}: attempt {attempt} in {} ms", millis(*delay))
        }
        Fact::ToolSucceeded { attempts: 0 | 1 } => format!("Tool succeeded: {tool}"),
        Fact::ToolSucceeded { attempts } => format!("Tool succeeded on retry {attempts}: {tool}"),
        Fact::ToolError(fault) if fault.error.is_empty() => format!("Tool failed: {tool}"),
        Fact::ToolError(fault) => format!("Tool failed: {tool}, {}", clip(&fault.error, 200)),
        Fact::ToolTimeout { timeout, .. } => format!("Tool timeout after {} ms: {tool}", millis(*timeout)),
        Fact::Decision { strategy, reason } => {
            let verb = match strategy {
                Strategy::Retry => "retry",
                Strategy::AlternativeTool => "use an alternative",
                Strategy::PartialSuccess => "go on without it",
                Strategy::Escalate => "escalate",
                Strategy::GracefulFailure => "give up",
            };
            format!("Decided to {verb} for {tool}: {}", clip(reason, 200))
        }
        Fact::CircuitBreaker { state } => match state {
            State::Open => format!("Circuit breaker opened for {tool}"),
            State::ForcedOpen => format!("Circuit breaker opened by hand for {tool}"),
            State::HalfOpen => format!("Circuit breaker half-opened for {tool}"),
            State::Closed => format!("Circuit breaker closed for {tool}"),
        },
        Fact::AlternativeUsed { instead_of } => {
            format!("Used alternative tool {tool} instead of {}", instead_of.tool)
        }
        Fact::DefaultUsed { dependency } => {
            format!("Used default value for {tool} in place of the output of {dependency}")
        }
        Fact::ToolSkipped { because, need, .. } => {
            let what = match need {
                Need::Required => "Required",
                Need::Optional => "Optional",
            };
            match because {
                SkipReason::Dependency(dependency) => {
                    format!("{what} tool skipped due to dependency failure: {tool} needs {dependency}")
                }
                SkipReason::Deadline => {
                    format!("{what} tool skipped because the turn's time was over: {tool}")
                }
                SkipReason::Cancelled => {
                    format!("{what} tool skipped because the turn was cancelled: {tool}")
                }
            }
        }
        Fact::ToolCancelled => format!("Stopped {tool} at the end of the turn"),
        Fact::ToolLeftRunning => format!("Left {tool} running at the end of the turn"),
        Fact::LateResult { code: None } => format!("Succeeded after the end of the turn: {tool}"),
        Fact::LateResult { code: Some(code) } => format!("Failed after the end of the turn: {tool} ({code})"),
        Fact::TurnTimeout { timeout } => format!("Turn timeout after {} ms", millis(*timeout)),
        Fact::TurnCancelled => "Turn cancelled".to_owned(),
        Fact::TurnEnded { summary, .. } => clip(summary, 2 * TEXT_BYTES),
    }
}
