//! The built-in rules: the meaning of structured facts, and the additions from message texts.
//!
//! Each table is complete: every status, code and close code has a verdict and a rule name. The progress of the call
//! follows one list (DESIGN, D4): only the proofs named there lead to [`AttemptReach::Refused`].

use std::borrow::Cow;

use super::text::{self, FaultFacts};
use super::verdict::{RuleDecision, RuleVerdict};
use super::{
    AttemptFault, AttemptReach, FaultNature, FaultSource, FaultSourceKind, ModelMistake, Severity,
    TransportError,
};
use crate::code::Code;

/// Returns the verdict of the built-in rules. `unknown` is the classification of a transport error that no rule
/// matches.
pub(super) fn decide(fault: &AttemptFault, facts: &FaultFacts<'_>, unknown: FaultNature) -> RuleDecision {
    use AttemptReach::{Refused, Unknown};
    match fault.source {
        FaultSource::Transport { error, written } => transport(error, written, facts, unknown),
        FaultSource::Http { status } => {
            let mut verdict = http(status, fault.retry_after.is_some(), unknown);
            // A strict tool may also use these three for its arguments. Only the message distinguishes them.
            if matches!(status, 400 | 404 | 422)
                && let Some(mistake) = text::mistake(facts)
            {
                verdict = RuleVerdict::mistake(verdict.reach, mistake);
            }
            verdict.by(format!("http.{status}"))
        }
        FaultSource::JsonRpc { code } => json_rpc(code, facts, unknown),
        FaultSource::SessionLost => {
            RuleVerdict::transient(Refused, Severity::Transient, Code::UpstreamUnavailable).by("session-lost")
        }
        FaultSource::IsError | FaultSource::Tool => classify_message(facts, unknown),
        FaultSource::WebSocket { code } => {
            let verdict = web_socket(code, unknown);
            match (code, text::decide(facts)) {
                (4000.., Some((text_verdict, rule))) => text_verdict.by(rule),
                _ => verdict.by(format!("websocket.{code}")),
            }
        }
        FaultSource::Exit { code, signal } => exit(code, signal),
        FaultSource::Timeout { .. } => {
            RuleVerdict::transient(Unknown, Severity::Timeout, Code::Timeout).by("timeout")
        }
        // A panic is a mistake in the tool's own code, in the process of Steadfast, so it would happen again. The
        // tool's progress before the panic is unknown.
        FaultSource::Panic => RuleVerdict::permanent(Unknown, Severity::Crash).by("panic"),
        // A response arrived, but its content does not show that the tool refused: it may as well have succeeded. A
        // retry would most likely give the same response.
        FaultSource::BadAnswer => RuleVerdict::permanent(Unknown, Severity::Validation).by("bad-answer"),
        // The tool ran to its end, since it responded, and would give the same response again.
        FaultSource::TooLarge => {
            let verdict = RuleVerdict::permanent(AttemptReach::Answered, Severity::Validation);
            RuleVerdict { code: Code::ResultTooLarge, ..verdict }.by("too-large")
        }
    }
}

fn transport(
    error: TransportError,
    written: bool,
    facts: &FaultFacts<'_>,
    unknown: FaultNature,
) -> RuleDecision {
    let reach = if written { AttemptReach::Unknown } else { AttemptReach::NotSent };
    let lost = |reach| RuleVerdict::transient(reach, Severity::Transient, Code::UpstreamUnavailable);
    match error {
        // Refused counts only before the first byte is written. After that, the refusal came too late.
        TransportError::ConnectionRefused if !written => lost(AttemptReach::Refused).by("transport.refused"),
        TransportError::ConnectionRefused => lost(reach).by("transport.refused"),
        TransportError::ConnectionReset => lost(reach).by("transport.reset"),
        TransportError::ConnectionClosed => lost(reach).by("transport.closed"),
        TransportError::TimedOut => {
            RuleVerdict::transient(reach, Severity::Timeout, Code::Timeout).by("transport.timed-out")
        }
        TransportError::NameNotFound => lost(reach).by("transport.name-not-found"),
        TransportError::Unreachable => lost(reach).by("transport.unreachable"),
        // A handshake that was cut may succeed next time. A certificate that is not accepted will not be.
        TransportError::Tls if text::mentions_certificate(facts) => {
            let verdict = RuleVerdict::permanent(reach, Severity::ServerError);
            RuleVerdict { code: Code::UpstreamUnavailable, ..verdict }.by("transport.certificate")
        }
        TransportError::Tls => lost(reach).by("transport.tls"),
        TransportError::Other => match text::decide(facts) {
            Some((text_verdict, rule)) => text_verdict.reaching(reach).by(rule),
            None => of_unknown_transport(reach, unknown),
        },
    }
}

/// Returns the verdict for a transport error that no rule matches.
fn of_unknown_transport(reach: AttemptReach, unknown: FaultNature) -> RuleDecision {
    let verdict = RuleVerdict::transient(reach, Severity::ServerError, Code::UpstreamUnavailable);
    RuleVerdict { nature: unknown, ..verdict }.by("unknown.transport")
}

fn http(status: u16, has_retry_after: bool, unknown: FaultNature) -> RuleVerdict {
    use AttemptReach::{Answered, Refused, Unknown};
    let busy = |reach, severity| RuleVerdict::transient(reach, severity, Code::UpstreamUnavailable);
    match status {
        401 | 402 | 403 | 407 | 451 => RuleVerdict::permanent(Answered, Severity::Permission),
        404 | 410 => RuleVerdict::permanent(Answered, Severity::NotFound),
        408 => RuleVerdict::transient(Unknown, Severity::Timeout, Code::Timeout),
        413 => RuleVerdict::permanent(Refused, Severity::InvalidInput),
        400 | 405 | 406 | 411 | 414..=417 | 422 | 431 => {
            RuleVerdict::permanent(Answered, Severity::InvalidInput)
        }
        425 => busy(Answered, Severity::Transient),
        429 => busy(Refused, Severity::Transient),
        // A conflict, a lock, a failed precondition: no mistake, and no sign of a broken service.
        401..500 => RuleVerdict::permanent(Answered, Severity::Informational),
        500 => RuleVerdict::transient(Unknown, Severity::ServerError, Code::ToolError),
        501 | 505 | 506 | 508 | 510 | 511 => RuleVerdict::permanent(Answered, Severity::ServerError),
        503 if has_retry_after => busy(Refused, Severity::ServerError),
        501..600 => busy(Unknown, Severity::ServerError),
        // A redirect that was not followed is a response, if an unusual one.
        300..400 => RuleVerdict::permanent(Answered, Severity::Validation),
        _ => RuleVerdict { nature: unknown, ..busy(Unknown, Severity::Validation) },
    }
}

fn json_rpc(code: i64, facts: &FaultFacts<'_>, unknown: FaultNature) -> RuleDecision {
    if let Some(decision) = json_rpc_by_code(code, facts) {
        return decision;
    }
    if let Some((text_verdict, rule)) = text::decide(facts) {
        return text_verdict.by(rule);
    }
    if code == -32001 {
        // A local timeout and a forgotten session share this number. Both are errors of the transport.
        return of_unknown_transport(AttemptReach::Unknown, unknown);
    }
    RuleVerdict::permanent(AttemptReach::Answered, Severity::Informational).by("unknown.jsonrpc")
}

/// Returns the verdict for a JSON-RPC code, if needed with a message that has a meaning only for this code.
fn json_rpc_by_code(code: i64, facts: &FaultFacts<'_>) -> Option<RuleDecision> {
    use AttemptReach::{Answered, Refused, Unknown};
    let rule = format!("jsonrpc.{code}");
    let mistake = || text::mistake(facts);
    // A session may be lost while the tool runs in it. The message does not prove that nothing ran.
    if matches!(code, -32600 | 32600 | -32000 | -32001 | -32002) && text::mentions_lost_session(facts) {
        let verdict = RuleVerdict::transient(Unknown, Severity::Transient, Code::UpstreamUnavailable);
        return Some(verdict.by("text.session-lost"));
    }
    Some(match code {
        -32700 | -32600 => RuleVerdict::permanent(Answered, Severity::Validation).by(rule),
        -32601 => RuleVerdict::mistake(Refused, ModelMistake::UnknownTool).by(rule),
        -32602 => RuleVerdict::mistake(Refused, mistake().unwrap_or(ModelMistake::Arguments)).by(rule),
        // Some proxies turn -32602 into -32603, but keep the message.
        -32603 => match mistake() {
            Some(mistake) => RuleVerdict::mistake(Answered, mistake).by(mistake.rule()),
            None => RuleVerdict::transient(Unknown, Severity::ServerError, Code::ToolError).by(rule),
        },
        -32002 => RuleVerdict::permanent(Answered, Severity::NotFound).by(rule),
        // Header mismatch, missing client capability, unsupported protocol version.
        -32022..=-32020 => RuleVerdict::permanent(Answered, Severity::Validation).by(rule),
        // The user has to visit a page first: a response, not a failure.
        -32042 => RuleVerdict::permanent(Answered, Severity::Informational).by(rule),
        _ => return None,
    })
}

impl ModelMistake {
    pub(super) const fn rule(self) -> &'static str {
        match self {
            Self::Arguments => "text.arguments",
            Self::UnknownTool => "text.unknown-tool",
        }
    }
}

/// Returns the verdict for a message of the tool, as a result (`isError`) or in place of one.
fn classify_message(facts: &FaultFacts<'_>, unknown: FaultNature) -> RuleDecision {
    let Some(RuleDecision { verdict, rule }) = classify_by_text(facts, unknown) else {
        return RuleVerdict::permanent(AttemptReach::Answered, Severity::Informational).by("unknown.tool");
    };
    // A proxy that wraps a protocol error into a result reports the transport behind it. Any other `isError` comes from
    // the tool itself.
    let answered = facts.kind == FaultSourceKind::IsError && facts.json_rpc.is_none();
    let reach = match verdict.reach {
        // A tool that reports a timeout or a lost connection may have taken effect before.
        AttemptReach::Unknown => AttemptReach::Unknown,
        // Text is no proof that nothing ran.
        AttemptReach::NotSent | AttemptReach::Refused | AttemptReach::Answered => AttemptReach::Answered,
    };
    let code = if answered && verdict.mistake.is_none() { Code::ToolError } else { verdict.code };
    RuleVerdict { reach, code, ..verdict }.by(rule)
}

fn classify_by_text(facts: &FaultFacts<'_>, unknown: FaultNature) -> Option<RuleDecision> {
    if let Some(decision) = facts.json_rpc.and_then(|code| json_rpc_by_code(code, facts)) {
        return Some(RuleDecision { rule: within_text(&decision.rule), ..decision });
    }
    let by_number = facts
        .status
        .map(|status| http(status, false, unknown).by(format!("text.http.{status}")))
        .or_else(|| facts.close.map(|code| web_socket(code, unknown).by(format!("text.websocket.{code}"))));
    match by_number {
        Some(decision) if decision.verdict.nature == FaultNature::Transient => Some(decision),
        // A permanent status may hide a mistake that the message names.
        Some(decision) => {
            let mistake = text::mistake(facts);
            Some(mistake.map_or(decision, |mistake| {
                RuleVerdict::mistake(AttemptReach::Answered, mistake).by(mistake.rule())
            }))
        }
        None => text::decide(facts).map(|(verdict, rule)| verdict.by(rule)),
    }
}

fn within_text(rule: &str) -> Cow<'static, str> {
    Cow::Owned(if rule.starts_with("text.") { rule.to_owned() } else { format!("text.{rule}") })
}

fn web_socket(code: u16, unknown: FaultNature) -> RuleVerdict {
    use AttemptReach::{Answered, Unknown};
    let lost = |severity| RuleVerdict::transient(Unknown, severity, Code::UpstreamUnavailable);
    match code {
        // Closed, going away, no reason, abnormal, restart, try later, TLS: the connection, not the call.
        1000 | 1001 | 1005 | 1006 | 1012 | 1013 | 1015 => lost(Severity::Transient),
        1011 | 1014 => lost(Severity::ServerError),
        1002 | 1003 | 1007 | 1010 => RuleVerdict::permanent(Answered, Severity::Validation),
        1008 | 3000 | 3003 => RuleVerdict::permanent(Answered, Severity::Permission),
        1009 => RuleVerdict::permanent(Answered, Severity::InvalidInput),
        3008 => RuleVerdict::transient(Unknown, Severity::Timeout, Code::Timeout),
        _ => RuleVerdict { nature: unknown, ..lost(Severity::ServerError) },
    }
}

fn exit(code: Option<i32>, signal: Option<i32>) -> RuleDecision {
    // With these two codes a shell reports that it could not start the command.
    let not_started = |severity| RuleVerdict {
        code: Code::UpstreamUnavailable,
        ..RuleVerdict::permanent(AttemptReach::NotSent, severity)
    };
    let died = RuleVerdict::transient(AttemptReach::Unknown, Severity::Crash, Code::UpstreamUnavailable);
    match (code, signal) {
        (_, Some(signal)) => died.by(format!("exit.signal.{signal}")),
        (Some(126), None) => not_started(Severity::Permission).by("exit.126"),
        (Some(127), None) => not_started(Severity::NotFound).by("exit.127"),
        (Some(code), None) => died.by(format!("exit.{code}")),
        (None, None) => died.by("exit"),
    }
}
