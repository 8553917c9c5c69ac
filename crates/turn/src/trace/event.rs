//! Trace events of a turn: the facts, the flat stored form, and a sentence for each.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use steadfast_core::breaker::State;
use steadfast_core::classify::FaultNature;
use steadfast_core::code::Code;
use steadfast_core::id::{Namespace, ToolCallId, ToolName, ToolRef};
use steadfast_core::{Timestamp, millis};

use super::iso;
use super::{SpanId, TraceId};
use crate::clip;
use crate::draft::CallNeed;
use crate::handler::FailureStrategy;
use crate::result::TurnCallOutcome;

/// A fact about a turn, not yet part of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceNote {
    /// Time of the fact.
    pub at: Timestamp,
    /// The call of the plan.
    pub call: Option<ToolCallId>,
    /// The tool.
    pub tool: Option<ToolRef>,
    /// The fact.
    pub fact: TurnFact,
}

impl TraceNote {
    /// Returns the note with secrets redacted, because texts of tools may hold secrets. A text is redacted before it is
    /// cut, because half a secret is not recognised.
    #[must_use]
    pub fn redacted(mut self) -> Self {
        match &mut self.fact {
            TurnFact::ToolError(fault) | TurnFact::ToolTimeout { fault, .. } => {
                fault.error = steadfast_redact::text(&fault.error).into_owned();
            }
            TurnFact::TurnEnded { summary, .. } => *summary = steadfast_redact::text(summary).into_owned(),
            TurnFact::TurnStarted { .. }
            | TurnFact::CallRestored { .. }
            | TurnFact::ToolStarted
            | TurnFact::ToolRetry { .. }
            | TurnFact::ToolSucceeded { .. }
            | TurnFact::Decision { .. }
            | TurnFact::CircuitBreaker { .. }
            | TurnFact::AlternativeUsed { .. }
            | TurnFact::DefaultUsed { .. }
            | TurnFact::ToolSkipped { .. }
            | TurnFact::ToolCancelled
            | TurnFact::ToolLeftRunning
            | TurnFact::LateResult { .. }
            | TurnFact::TurnTimeout { .. }
            | TurnFact::TurnCancelled => {}
        }
        self
    }

    /// Returns the note as a sentence.
    pub fn sentence(&self) -> String {
        sentence(self)
    }
}

/// A fact about a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnFact {
    /// The turn started.
    TurnStarted {
        /// Calls in its plan.
        calls: usize,
    },
    /// A call was finished by an earlier submission of the same turn and does not run again.
    CallRestored {
        /// The earlier outcome.
        outcome: TurnCallOutcome,
    },
    /// A tool was started.
    ToolStarted,
    /// A tool is retried.
    ToolRetry {
        /// The next attempt, counted from one.
        attempt: u32,
        /// The delay before it.
        delay: Duration,
    },
    /// A tool succeeded.
    ToolSucceeded {
        /// Attempts made.
        attempts: u32,
    },
    /// A tool failed.
    ToolError(ToolFailureDetails),
    /// A tool timed out.
    ToolTimeout {
        /// The timeout.
        timeout: Duration,
        /// Details of the failure.
        fault: ToolFailureDetails,
    },
    /// The error handler decided.
    Decision {
        /// The action.
        strategy: FailureStrategy,
        /// The reason.
        reason: String,
    },
    /// A circuit breaker changed its state.
    CircuitBreaker {
        /// The new state.
        state: State,
    },
    /// An alternative tool runs.
    AlternativeUsed {
        /// The planned tool.
        instead_of: ToolRef,
    },
    /// A default replaces an output.
    DefaultUsed {
        /// The call whose output is missing.
        dependency: ToolCallId,
    },
    /// A call is skipped.
    ToolSkipped {
        /// The reason.
        because: SkipReason,
        /// Required or optional.
        need: CallNeed,
        /// True if the skip is reported to the user.
        escalated: bool,
    },
    /// The end of the turn stopped a running call.
    ToolCancelled,
    /// The end of the turn left a call running.
    ToolLeftRunning,
    /// A call that was cut off by the end of the turn has ended.
    LateResult {
        /// The error code, if it failed.
        code: Option<Code>,
    },
    /// The deadline of the turn passed.
    TurnTimeout {
        /// The time the turn had.
        timeout: Duration,
    },
    /// The caller cancelled the turn.
    TurnCancelled,
    /// The turn ended.
    TurnEnded {
        /// The summary for the user.
        summary: String,
        /// True if a call of the turn is reported to the user.
        escalated: bool,
    },
}

impl TurnFact {
    /// Returns the event type in a trace.
    pub const fn event_type(&self) -> TraceEventType {
        match self {
            Self::TurnStarted { .. } => TraceEventType::TurnStarted,
            Self::CallRestored { .. } => TraceEventType::CallRestored,
            Self::ToolStarted => TraceEventType::ToolStarted,
            Self::ToolRetry { .. } => TraceEventType::ToolRetry,
            Self::ToolSucceeded { .. } => TraceEventType::ToolSucceeded,
            Self::ToolError(_) => TraceEventType::ToolError,
            Self::ToolTimeout { .. } => TraceEventType::ToolTimeout,
            Self::Decision { .. } => TraceEventType::Decision,
            Self::CircuitBreaker { .. } => TraceEventType::CircuitBreaker,
            Self::AlternativeUsed { .. } => TraceEventType::AlternativeUsed,
            Self::DefaultUsed { .. } => TraceEventType::DefaultUsed,
            Self::ToolSkipped { .. } => TraceEventType::ToolSkipped,
            Self::ToolCancelled => TraceEventType::ToolCancelled,
            Self::ToolLeftRunning => TraceEventType::ToolLeftRunning,
            Self::LateResult { .. } => TraceEventType::LateResult,
            Self::TurnTimeout { .. } => TraceEventType::TurnTimeout,
            Self::TurnCancelled => TraceEventType::TurnCancelled,
            Self::TurnEnded { .. } => TraceEventType::TurnEnded,
        }
    }
}

/// Details of the failure of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolFailureDetails {
    /// The error message.
    pub error: String,
    /// The classification rule that matched the failure.
    pub rule: Option<String>,
    /// The error code.
    pub code: Code,
    /// Transient or permanent.
    pub nature: FaultNature,
    /// The state of the tool's circuit breaker.
    pub breaker: State,
    /// Attempts made.
    pub attempts: u32,
    /// The decision of the error handler.
    pub decision: FailureStrategy,
}

/// The reason for skipping a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// A dependency did not succeed.
    Dependency(ToolCallId),
    /// The deadline of the turn passed first.
    Deadline,
    /// The turn was cancelled first.
    Cancelled,
}

/// One event of a trace, as stored and exported: one JSON object per line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TraceEvent {
    /// Type of the event.
    pub event_type: TraceEventType,
    /// Group of the event.
    pub kind: TraceEventKind,
    /// Time of the event, in ISO 8601 with milliseconds.
    #[serde(with = "iso")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub timestamp: Timestamp,
    /// Id of the trace.
    pub trace_id: TraceId,
    /// Id of the span, if the event belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span_id: Option<SpanId>,
    /// Position among the events of the trace.
    pub sequence: u64,
    /// Id of the call in the plan.
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
    /// The timeout, for timeouts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The delay before a retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// The error message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The classification rule that matched the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The error code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// Transient if a retry can help, permanent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub classification: Option<FaultNature>,
    /// The state of the tool's circuit breaker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub circuit_breaker_state: Option<State>,
    /// Retries made so far: attempts without the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_count: Option<u32>,
    /// The decision of the error handler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<FailureStrategy>,
    /// The reason for the decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The outcome of a call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<TurnCallOutcome>,
    /// The dependency that did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dependency_id: Option<ToolCallId>,
    /// True if it is reported to the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalated: Option<bool>,
    /// Number of events that were dropped before this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<u64>,
}

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[expect(missing_docs, reason = "the variants are those of `Fact`, and of the cut")]
pub enum TraceEventType {
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

/// The group of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum TraceEventKind {
    /// A tool started or ended.
    ToolInvocation,
    /// A failure.
    Error,
    /// A decision about a failure.
    Decision,
    /// An observation that concerns more than one call.
    Observation,
    /// The turn as a whole.
    Summary,
}

/// The position of an event.
#[derive(Clone, Copy)]
pub(super) struct EventPosition {
    pub(super) trace: TraceId,
    pub(super) span: Option<SpanId>,
    pub(super) sequence: u64,
}

impl TraceEvent {
    /// Returns the flat form of a note.
    pub(super) fn of(place: EventPosition, note: &TraceNote) -> Self {
        let mut event = Self {
            call_id: note.call.clone(),
            tool_id: note.tool.as_ref().map(|tool| tool.tool.clone()),
            tool_namespace: note.tool.as_ref().map(|tool| tool.namespace.clone()),
            ..Self::blank(place, note.fact.event_type(), note.at, note.sentence())
        };
        let retries = |attempts: u32| Some(attempts.saturating_sub(1));
        let mut fault_fields = |fault: &ToolFailureDetails| {
            event.error = Some(clip(&fault.error, TEXT_BYTES));
            event.rule = fault.rule.clone();
            event.code = Some(fault.code);
            event.classification = Some(fault.nature);
            event.circuit_breaker_state = Some(fault.breaker);
            event.retry_count = retries(fault.attempts);
            event.decision = Some(fault.decision);
        };
        match &note.fact {
            TurnFact::ToolStarted
            | TurnFact::TurnStarted { .. }
            | TurnFact::AlternativeUsed { .. }
            | TurnFact::TurnCancelled => {}
            TurnFact::CallRestored { outcome } => event.outcome = Some(*outcome),
            TurnFact::ToolRetry { attempt, delay } => {
                event.retry_count = retries(*attempt);
                event.delay_ms = Some(millis(*delay));
            }
            TurnFact::ToolSucceeded { attempts } => {
                event.retry_count = retries(*attempts);
                event.outcome = Some(TurnCallOutcome::Succeeded);
            }
            TurnFact::ToolError(fault) => fault_fields(fault),
            TurnFact::ToolTimeout { timeout, fault } => {
                fault_fields(fault);
                event.timeout_ms = Some(millis(*timeout));
            }
            TurnFact::Decision { strategy, reason } => {
                event.decision = Some(*strategy);
                event.reason = Some(clip(reason, TEXT_BYTES));
            }
            TurnFact::CircuitBreaker { state } => event.circuit_breaker_state = Some(*state),
            TurnFact::DefaultUsed { dependency } => event.dependency_id = Some(dependency.clone()),
            TurnFact::ToolSkipped { because, need: _, escalated } => {
                event.outcome = Some(TurnCallOutcome::Skipped);
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
            TurnFact::ToolCancelled => event.outcome = Some(TurnCallOutcome::Cancelled),
            TurnFact::ToolLeftRunning => event.outcome = Some(TurnCallOutcome::LeftRunning),
            TurnFact::LateResult { code } => event.code = *code,
            TurnFact::TurnTimeout { timeout } => event.timeout_ms = Some(millis(*timeout)),
            TurnFact::TurnEnded { summary: _, escalated } => event.escalated = Some(*escalated),
        }
        event
    }

    /// Returns an event that has only a sentence.
    pub(super) fn blank(
        place: EventPosition,
        event_type: TraceEventType,
        at: Timestamp,
        sentence: String,
    ) -> Self {
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

/// The longest text of a tool that is stored in one event.
pub(super) const TEXT_BYTES: usize = 1024;

const fn kind(event_type: TraceEventType) -> TraceEventKind {
    match event_type {
        TraceEventType::CallRestored
        | TraceEventType::ToolStarted
        | TraceEventType::ToolRetry
        | TraceEventType::ToolSucceeded
        | TraceEventType::ToolCancelled
        | TraceEventType::ToolLeftRunning
        | TraceEventType::LateResult => TraceEventKind::ToolInvocation,
        TraceEventType::ToolError | TraceEventType::ToolTimeout | TraceEventType::TurnTimeout => {
            TraceEventKind::Error
        }
        TraceEventType::Decision
        | TraceEventType::AlternativeUsed
        | TraceEventType::DefaultUsed
        | TraceEventType::ToolSkipped => TraceEventKind::Decision,
        TraceEventType::CircuitBreaker | TraceEventType::TraceCut => TraceEventKind::Observation,
        TraceEventType::TurnStarted | TraceEventType::TurnCancelled | TraceEventType::TurnEnded => {
            TraceEventKind::Summary
        }
    }
}

/// Returns a note as a sentence.
fn sentence(note: &TraceNote) -> String {
    let tool = note.tool.as_ref().map_or("the tool", |tool| tool.tool.as_str());
    match &note.fact {
        TurnFact::TurnStarted { calls: 1 } => "Turn started with 1 call".to_owned(),
        TurnFact::TurnStarted { calls } => format!("Turn started with {calls} calls"),
        TurnFact::CallRestored { .. } => format!("Finished earlier, not run again: {tool}"),
        TurnFact::ToolStarted => format!("Started {tool}"),
        TurnFact::ToolRetry { attempt, delay } => {
            format!("Retry of {tool}: attempt {attempt} in {} ms", millis(*delay))
        }
        TurnFact::ToolSucceeded { attempts: 0 | 1 } => format!("Tool succeeded: {tool}"),
        TurnFact::ToolSucceeded { attempts } => format!("Tool succeeded on retry {attempts}: {tool}"),
        TurnFact::ToolError(fault) if fault.error.is_empty() => format!("Tool failed: {tool}"),
        TurnFact::ToolError(fault) => format!("Tool failed: {tool}, {}", clip(&fault.error, 200)),
        TurnFact::ToolTimeout { timeout, .. } => {
            format!("Tool timeout after {} ms: {tool}", millis(*timeout))
        }
        TurnFact::Decision { strategy, reason } => {
            let verb = match strategy {
                FailureStrategy::Retry => "retry",
                FailureStrategy::AlternativeTool => "use an alternative",
                FailureStrategy::PartialSuccess => "continue without it",
                FailureStrategy::Escalate => "escalate",
                FailureStrategy::GracefulFailure => "give up",
            };
            format!("Decided to {verb} for {tool}: {}", clip(reason, 200))
        }
        TurnFact::CircuitBreaker { state } => match state {
            State::Open => format!("Circuit breaker opened for {tool}"),
            State::ForcedOpen => format!("Circuit breaker forced open for {tool}"),
            State::HalfOpen => format!("Circuit breaker half-opened for {tool}"),
            State::Closed => format!("Circuit breaker closed for {tool}"),
        },
        TurnFact::AlternativeUsed { instead_of } => {
            format!("Used alternative tool {tool} instead of {}", instead_of.tool)
        }
        TurnFact::DefaultUsed { dependency } => {
            format!("Used default value for {tool} in place of the output of {dependency}")
        }
        TurnFact::ToolSkipped { because, need, .. } => {
            let label = match need {
                CallNeed::Required => "Required",
                CallNeed::Optional => "Optional",
            };
            match because {
                SkipReason::Dependency(dependency) => {
                    format!("{label} tool skipped due to dependency failure: {tool} needs {dependency}")
                }
                SkipReason::Deadline => {
                    format!("{label} tool skipped because the turn's deadline passed: {tool}")
                }
                SkipReason::Cancelled => {
                    format!("{label} tool skipped because the turn was cancelled: {tool}")
                }
            }
        }
        TurnFact::ToolCancelled => format!("Stopped {tool} at the end of the turn"),
        TurnFact::ToolLeftRunning => format!("Left {tool} running at the end of the turn"),
        TurnFact::LateResult { code: None } => format!("Succeeded after the end of the turn: {tool}"),
        TurnFact::LateResult { code: Some(code) } => {
            format!("Failed after the end of the turn: {tool} ({code})")
        }
        TurnFact::TurnTimeout { timeout } => format!("Turn timeout after {} ms", millis(*timeout)),
        TurnFact::TurnCancelled => "Turn cancelled".to_owned(),
        TurnFact::TurnEnded { summary, .. } => clip(summary, 2 * TEXT_BYTES),
    }
}
