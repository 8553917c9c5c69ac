//! Logs and metrics of turns. Their calls are handled like all others (`mapping`).

use steadfast_core::millis;
use steadfast_executor::{TurnContext, TurnSpan, TurnSummary};
use steadfast_turn::trace::{ToolFailureDetails, TraceEventType, TraceNote, TurnFact};
use steadfast_turn::{CallNeed, FailureStrategy, TurnStatus};

use crate::Telemetry;
use crate::logs::{LogField, LogLineLevel};
use crate::names;

type TurnLogFields<'a> = Vec<(&'static str, LogField<'a>)>;

impl Telemetry {
    /// Logs and counts a note of a turn.
    pub(crate) fn record_turn_note(&self, about: &TurnContext<'_>, note: &TraceNote) {
        if let TurnFact::Decision { strategy, .. } = &note.fact {
            self.metrics.on.turn_decisions.add([names::strategy(*strategy).into()]);
        }
        let event = note.fact.event_type();
        let Some(level) = level(&note.fact).filter(|level| self.is_enabled(*level)) else { return };
        let note = note.clone().redacted();
        let (sentence, trace) = (note.sentence(), about.trace.to_string());
        let (target, tool) = (about.target, note.tool.as_ref());
        let identity = [
            ("turnId", LogField::text(about.turn.map(|turn| turn.as_str()))),
            ("toolCallId", LogField::text(note.call.as_ref().map(|call| call.as_str()))),
            ("toolName", LogField::text(tool.map(|tool| tool.tool.as_str()))),
            ("toolNamespace", LogField::text(tool.map(|tool| tool.namespace.as_str()))),
            ("tenantId", LogField::text(target.tenant_id.as_ref().map(|tenant| tenant.as_str()))),
            ("sessionKey", LogField::Text(target.session_key.as_str())),
            ("correlationId", LogField::text(target.correlation_id.as_ref().map(|id| id.as_str()))),
            ("traceId", LogField::Own(&trace)),
            ("message", LogField::Text(&sentence)),
        ];
        self.write(level, names::turn_event(event), note.at, &[&identity, &fields(&note.fact)]);
    }

    /// Logs, counts and traces the end of a turn.
    pub(crate) fn record_turn_end(&self, turn: &TurnSummary, span: &TurnSpan<'_>) {
        let at = span.span.ended_at.unwrap_or(span.span.started_at);
        let took = at.since(span.span.started_at);
        let status = names::turn_status(turn.status);
        self.metrics.on.turns.add([status.into()]);
        self.metrics.on.turn_duration_seconds.observe([status.into()], took);
        let level = match turn.status {
            Some(TurnStatus::Completed | TurnStatus::Partial) if !turn.escalated => LogLineLevel::Info,
            Some(TurnStatus::Completed | TurnStatus::Partial | TurnStatus::Failed) | None => {
                LogLineLevel::Warn
            }
        };
        let trace = turn.trace_id.to_string();
        let message = turn.summary.as_deref().unwrap_or("The caller no longer waits for the turn");
        let fields = [
            ("turnId", LogField::text(turn.turn_id.as_ref().map(|id| id.as_str()))),
            ("tenantId", LogField::text(turn.tenant.as_ref().map(|tenant| tenant.as_str()))),
            ("sessionKey", LogField::Text(turn.session.as_str())),
            ("traceId", LogField::Own(&trace)),
            ("message", LogField::Text(message)),
            ("status", LogField::Own(status)),
            ("calls", number(turn.calls)),
            ("escalated", LogField::Flag(turn.escalated)),
            ("elapsedMs", LogField::Number(millis(took))),
        ];
        self.write(level, names::turn_event(TraceEventType::TurnEnded), at, &[&fields]);
    }
}

/// Returns the level of a fact, or `None` if it is logged elsewhere.
fn level(fact: &TurnFact) -> Option<LogLineLevel> {
    let level = match fact {
        TurnFact::TurnStarted { .. }
        | TurnFact::AlternativeUsed { .. }
        | TurnFact::DefaultUsed { .. }
        | TurnFact::ToolSkipped { need: CallNeed::Optional, .. }
        | TurnFact::ToolCancelled
        | TurnFact::LateResult { .. }
        | TurnFact::TurnCancelled => LogLineLevel::Info,
        TurnFact::ToolError(fault) | TurnFact::ToolTimeout { fault, .. } => match fault.decision {
            FailureStrategy::Retry => LogLineLevel::Debug,
            FailureStrategy::AlternativeTool
            | FailureStrategy::PartialSuccess
            | FailureStrategy::Escalate
            | FailureStrategy::GracefulFailure => LogLineLevel::Warn,
        },
        TurnFact::ToolSkipped { need: CallNeed::Required, .. }
        | TurnFact::ToolLeftRunning
        | TurnFact::TurnTimeout { .. } => LogLineLevel::Warn,
        // The decision is also in the line of the failure. The reason is only for debugging.
        TurnFact::CallRestored { .. }
        | TurnFact::ToolStarted
        | TurnFact::ToolRetry { .. }
        | TurnFact::ToolSucceeded { .. }
        | TurnFact::Decision { .. } => LogLineLevel::Debug,
        // The call itself logs it, with more details. The end of the turn is logged with its span, which has its
        // status.
        TurnFact::CircuitBreaker { .. } | TurnFact::TurnEnded { .. } => return None,
    };
    Some(level)
}

/// Returns the fields of a line, other than the turn and the sentence.
fn fields(fact: &TurnFact) -> TurnLogFields<'_> {
    match fact {
        TurnFact::TurnStarted { calls } => vec![("calls", number(*calls))],
        TurnFact::CallRestored { outcome } => vec![("outcome", LogField::Own(names::outcome(*outcome)))],
        TurnFact::ToolRetry { attempt, delay } => {
            vec![
                ("attempt", LogField::Number((*attempt).into())),
                ("delayMs", LogField::Number(millis(*delay))),
            ]
        }
        TurnFact::ToolSucceeded { attempts } => vec![("attempt", LogField::Number((*attempts).into()))],
        TurnFact::ToolError(fault) => of_fault(fault),
        TurnFact::ToolTimeout { timeout, fault } => {
            let mut fields = of_fault(fault);
            fields.push(("timeoutMs", LogField::Number(millis(*timeout))));
            fields
        }
        TurnFact::Decision { strategy, reason } => {
            vec![("decision", LogField::Own(names::strategy(*strategy))), ("reason", LogField::Text(reason))]
        }
        TurnFact::AlternativeUsed { instead_of } => {
            vec![("insteadOf", LogField::Text(instead_of.tool.as_str()))]
        }
        TurnFact::DefaultUsed { dependency } => vec![("dependency", LogField::Text(dependency.as_str()))],
        TurnFact::ToolSkipped { because, need, escalated } => vec![
            ("reason", LogField::Own(names::skip_reason(because))),
            ("need", LogField::Own(names::need(*need))),
            ("escalated", LogField::Flag(*escalated)),
        ],
        TurnFact::LateResult { code } => vec![("errorCode", LogField::own(code.map(|code| code.as_str())))],
        TurnFact::TurnTimeout { timeout } => vec![("timeoutMs", LogField::Number(millis(*timeout)))],
        TurnFact::ToolStarted
        | TurnFact::ToolCancelled
        | TurnFact::ToolLeftRunning
        | TurnFact::TurnCancelled
        | TurnFact::CircuitBreaker { .. }
        | TurnFact::TurnEnded { .. } => Vec::new(),
    }
}

fn of_fault(fault: &ToolFailureDetails) -> TurnLogFields<'_> {
    vec![
        ("decision", LogField::Own(names::strategy(fault.decision))),
        ("error", LogField::Text(&fault.error)),
        ("rule", LogField::text(fault.rule.as_deref())),
        ("errorCode", LogField::Own(fault.code.as_str())),
        ("nature", LogField::Own(names::nature(fault.nature))),
        ("breakerState", LogField::Own(names::breaker_state(fault.breaker))),
        ("attempt", LogField::Number(fault.attempts.into())),
    ]
}

fn number(count: usize) -> LogField<'static> {
    LogField::Number(u64::try_from(count).unwrap_or(u64::MAX))
}
