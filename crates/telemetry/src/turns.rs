//! Logs and metrics of turns. Their calls are handled like all others (`mapping`).

use steadfast_core::millis;
use steadfast_core::turn::trace::{EventType, Fact, Note, ToolFault};
use steadfast_core::turn::{Need, Strategy, TurnStatus};
use steadfast_executor::{TurnAbout, TurnHead, TurnSpan};

use crate::Telemetry;
use crate::logs::{Field, Level};
use crate::words;

type Fields<'a> = Vec<(&'static str, Field<'a>)>;

impl Telemetry {
    /// Logs and counts a note of a turn.
    pub(crate) fn tell_turn(&self, about: &TurnAbout<'_>, note: &Note) {
        if let Fact::Decision { strategy, .. } = &note.fact {
            self.metrics.on.turn_decisions.add([words::strategy(*strategy).into()]);
        }
        let event = note.fact.event_type();
        let Some(level) = level(&note.fact).filter(|level| self.is_told(*level)) else { return };
        let note = note.clone().redacted();
        let (sentence, trace) = (note.sentence(), about.trace.to_string());
        let (target, tool) = (about.target, note.tool.as_ref());
        let whose = [
            ("turnId", Field::text(about.turn.map(|turn| turn.as_str()))),
            ("toolCallId", Field::text(note.call.as_ref().map(|call| call.as_str()))),
            ("toolName", Field::text(tool.map(|tool| tool.tool.as_str()))),
            ("toolNamespace", Field::text(tool.map(|tool| tool.namespace.as_str()))),
            ("tenantId", Field::text(target.tenant_id.as_ref().map(|tenant| tenant.as_str()))),
            ("sessionKey", Field::Text(target.session_key.as_str())),
            ("correlationId", Field::text(target.correlation_id.as_ref().map(|id| id.as_str()))),
            ("traceId", Field::Own(&trace)),
            ("message", Field::Text(&sentence)),
        ];
        self.write(level, words::turn_event(event), note.at, &[&whose, &fields(&note.fact)]);
    }

    /// Logs, counts and traces the end of a turn.
    pub(crate) fn tell_turn_end(&self, turn: &TurnHead, span: &TurnSpan<'_>) {
        let at = span.span.ended_at.unwrap_or(span.span.started_at);
        let took = at.since(span.span.started_at);
        let status = words::turn_status(turn.status);
        self.metrics.on.turns.add([status.into()]);
        self.metrics.on.turn_duration_seconds.observe([status.into()], took);
        let level = match turn.status {
            Some(TurnStatus::Completed | TurnStatus::Partial) if !turn.escalated => Level::Info,
            Some(TurnStatus::Completed | TurnStatus::Partial | TurnStatus::Failed) | None => Level::Warn,
        };
        let trace = turn.trace_id.to_string();
        let message = turn.summary.as_deref().unwrap_or("The caller no longer waits for the turn");
        let fields = [
            ("turnId", Field::text(turn.turn_id.as_ref().map(|id| id.as_str()))),
            ("tenantId", Field::text(turn.tenant.as_ref().map(|tenant| tenant.as_str()))),
            ("sessionKey", Field::Text(turn.session.as_str())),
            ("traceId", Field::Own(&trace)),
            ("message", Field::Text(message)),
            ("status", Field::Own(status)),
            ("calls", number(turn.calls)),
            ("escalated", Field::Flag(turn.escalated)),
            ("elapsedMs", Field::Number(millis(took))),
        ];
        self.write(level, words::turn_event(EventType::TurnEnded), at, &[&fields]);
    }
}

/// Returns the level of a fact, or `None` if it is logged elsewhere.
fn level(fact: &Fact) -> Option<Level> {
    let level = match fact {
        Fact::TurnStarted { .. }
        | Fact::AlternativeUsed { .. }
        | Fact::DefaultUsed { .. }
        | Fact::ToolSkipped { need: Need::Optional, .. }
        | Fact::ToolCancelled
        | Fact::LateResult { .. }
        | Fact::TurnCancelled => Level::Info,
        Fact::ToolError(fault) | Fact::ToolTimeout { fault, .. } => match fault.decision {
            Strategy::Retry => Level::Debug,
            Strategy::AlternativeTool
            | Strategy::PartialSuccess
            | Strategy::Escalate
            | Strategy::GracefulFailure => Level::Warn,
        },
        Fact::ToolSkipped { need: Need::Required, .. } | Fact::ToolLeftRunning | Fact::TurnTimeout { .. } => {
            Level::Warn
        }
        // The decision is also in the line of the failure. The reason is only for debugging.
        Fact::CallRestored { .. }
        | Fact::ToolStarted
        | Fact::ToolRetry { .. }
        | Fact::ToolSucceeded { .. }
        | Fact::Decision { .. } => Level::Debug,
        // The call itself logs it, with more details. The end of the turn is logged with its span, which has its
        // status.
        Fact::CircuitBreaker { .. } | Fact::TurnEnded { .. } => return None,
    };
    Some(level)
}

/// Returns the fields of a line, other than the turn and the sentence.
fn fields(fact: &Fact) -> Fields<'_> {
    match fact {
        Fact::TurnStarted { calls } => vec![("calls", number(*calls))],
        Fact::CallRestored { outcome } => vec![("outcome", Field::Own(words::outcome(*outcome)))],
        Fact::ToolRetry { attempt, delay } => {
            vec![("attempt", Field::Number((*attempt).into())), ("delayMs", Field::Number(millis(*delay)))]
        }
        Fact::ToolSucceeded { attempts } => vec![("attempt", Field::Number((*attempts).into()))],
        Fact::ToolError(fault) => of_fault(fault),
        Fact::ToolTimeout { timeout, fault } => {
            let mut fields = of_fault(fault);
            fields.push(("timeoutMs", Field::Number(millis(*timeout))));
            fields
        }
        Fact::Decision { strategy, reason } => {
            vec![("decision", Field::Own(words::strategy(*strategy))), ("reason", Field::Text(reason))]
        }
        Fact::AlternativeUsed { instead_of } => vec![("insteadOf", Field::Text(instead_of.tool.as_str()))],
        Fact::DefaultUsed { dependency } => vec![("dependency", Field::Text(dependency.as_str()))],
        Fact::ToolSkipped { because, need, escalated } => vec![
            ("reason", Field::Own(words::skip_reason(because))),
            ("need", Field::Own(words::need(*need))),
            ("escalated", Field::Flag(*escalated)),
        ],
        Fact::LateResult { code } => vec![("errorCode", Field::own(code.map(|code| code.as_str())))],
        Fact::TurnTimeout { timeout } => vec![("timeoutMs", Field::Number(millis(*timeout)))],
        Fact::ToolStarted
        | Fact::ToolCancelled
        | Fact::ToolLeftRunning
        | Fact::TurnCancelled
        | Fact::CircuitBreaker { .. }
        | Fact::TurnEnded { .. } => Vec::new(),
    }
}

fn of_fault(fault: &ToolFault) -> Fields<'_> {
    vec![
        ("decision", Field::Own(words::strategy(fault.decision))),
        ("error", Field::Text(&fault.error)),
        ("rule", Field::text(fault.rule.as_deref())),
        ("errorCode", Field::Own(fault.code.as_str())),
        ("nature", Field::Own(words::nature(fault.nature))),
        ("breakerState", Field::Own(words::breaker_state(fault.breaker))),
        ("attempt", Field::Number(fault.attempts.into())),
    ]
}

fn number(count: usize) -> Field<'static> {
    Field::Number(u64::try_from(count).unwrap_or(u64::MAX))
}
