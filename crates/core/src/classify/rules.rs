//! The built-in rules: the meaning of structured facts, and the additions from message texts.
//!
//! Each table is complete: every status, code and close code has a verdict and a rule name. The progress of the call
//! follows one list (DESIGN, D4): only the proofs named there lead to [`Reach::Refused`].

use std::borrow::Cow;
use std::time::Duration;

use super::text::{self, Facts};
use super::{Classified, Fault, Mistake, Nature, Reach, Severity, Source, SourceKind, Transport};
use crate::code::Code;

/// A verdict and the name of its rule.
#[derive(Clone, Debug)]
pub(super) struct Decision {
    pub(super) verdict: Verdict,
    pub(super) rule: Cow<'static, str>,
}

/// The verdict of a rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verdict {
    pub(super) nature: Nature,
    pub(super) reach: Reach,
    pub(super) severity: Severity,
    pub(super) mistake: Option<Mistake>,
    pub(super) code: Code,
}

impl Decision {
    pub(super) fn into_classified(self, retry_after: Option<Duration>) -> Classified {
        let Verdict { nature, reach, severity, mistake, code } = self.verdict;
        Classified { nature, reach, severity, mistake, retry_after, code, rule: self.rule }
    }
}

impl Verdict {
    pub(super) const fn transient(reach: Reach, severity: Severity, code: Code) -> Self {
        Self { nature: Nature::Transient, reach, severity, mistake: None, code }
    }

    pub(super) const fn permanent(reach: Reach, severity: Severity) -> Self {
        Self { nature: Nature::Permanent, reach, severity, mistake: None, code: Code::ToolError }
    }

    pub(super) const fn mistake(reach: Reach, mistake: Mistake) -> Self {
        let (severity, code) = match mistake {
            Mistake::Arguments => (Severity::InvalidInput, Code::InvalidArguments),
            Mistake::UnknownTool => (Severity::NotFound, Code::UnknownTool),
        };
        Self { nature: Nature::Permanent, reach, severity, mistake: Some(mistake), code }
    }

    fn by(self, rule: impl Into<Cow<'static, str>>) -> Decision {
        Decision { verdict: self, rule: rule.into() }
    }

    const fn reaching(mut self, reach: Reach) -> Self {
        self.reach = reach;
        self
    }
}

/// Returns the verdict of the built-in rules. `unknown` is the classification of a transport error that no rule
/// matches.
pub(super) fn decide(fault: &Fault, facts: &Facts<'_>, unknown: Nature) -> Decision {
    use Reach::{Refused, Unknown};
    match fault.source {
        Source::Transport { error, written } => transport(error, written, facts, unknown),
        Source::Http { status } => {
            let mut verdict = http(status, fault.retry_after.is_some(), unknown);
            // A strict tool may also use these three for its arguments. Only the message distinguishes them.
            if matches!(status, 400 | 404 | 422)
                && let Some(mistake) = text::mistake(facts)
            {
                verdict = Verdict::mistake(verdict.reach, mistake);
            }
            verdict.by(format!("http.{status}"))
        }
        Source::JsonRpc { code } => json_rpc(code, facts, unknown),
        Source::SessionLost => {
            Verdict::transient(Refused, Severity::Transient, Code::UpstreamUnavailable).by("session-lost")
        }
        Source::IsError | Source::Tool => told(facts, unknown),
        Source::WebSocket { code } => {
            let verdict = web_socket(code, unknown);
            match (code, text::decide(facts)) {
                (4000.., Some((said, rule))) => said.by(rule),
                _ => verdict.by(format!("websocket.{code}")),
            }
        }
        Source::Exit { code, signal } => exit(code, signal),
        Source::Timeout { .. } => Verdict::transient(Unknown, Severity::Timeout, Code::Timeout).by("timeout"),
        // A panic is a mistake in the tool's own code, in the process of Steadfast, so it would happen again. The
        // tool's progress before the panic is unknown.
        Source::Panic => Verdict::permanent(Unknown, Severity::Crash).by("panic"),
        // A response arrived, but its content does not show that the tool refused: it may as well have succeeded. A
        // retry would most likely give the same response.
        Source::BadAnswer => Verdict::permanent(Unknown, Severity::Validation).by("bad-answer"),
        // The tool ran to its end, since it responded, and would give the same response again.
        Source::TooLarge => {
            let verdict = Verdict::permanent(Reach::Answered, Severity::Validation);
            Verdict { code: Code::ResultTooLarge, ..verdict }.by("too-large")
        }
    }
}

fn transport(error: Transport, written: bool, facts: &Facts<'_>, unknown: Nature) -> Decision {
    let reach = if written { Reach::Unknown } else { Reach::NotSent };
    let lost = |reach| Verdict::transient(reach, Severity::Transient, Code::UpstreamUnavailable);
    match error {
        // Refused counts only before the first byte is written. After that, the refusal came too late.
        Transport::ConnectionRefused if !written => lost(Reach::Refused).by("transport.refused"),
        Transport::ConnectionRefused => lost(reach).by("transport.refused"),
        Transport::ConnectionReset => lost(reach).by("transport.reset"),
        Transport::ConnectionClosed => lost(reach).by("transport.closed"),
        Transport::TimedOut => {
            Verdict::transient(reach, Severity::Timeout, Code::Timeout).by("transport.timed-out")
        }
        Transport::NameNotFound => lost(reach).by("transport.name-not-found"),
        Transport::Unreachable => lost(reach).by("transport.unreachable"),
        // A handshake that was cut may succeed next time. A certificate that is not accepted will not be.
        Transport::Tls if text::is_about_a_certificate(facts) => {
            let verdict = Verdict::permanent(reach, Severity::ServerError);
            Verdict { code: Code::UpstreamUnavailable, ..verdict }.by("transport.certificate")
        }
        Transport::Tls => lost(reach).by("transport.tls"),
        Transport::Other => match text::decide(facts) {
            Some((said, rule)) => said.reaching(reach).by(rule),
            None => of_unknown_transport(reach, unknown),
        },
    }
}

/// Returns the verdict for a transport error that no rule matches.
fn of_unknown_transport(reach: Reach, unknown: Nature) -> Decision {
    let verdict = Verdict::transient(reach, Severity::ServerError, Code::UpstreamUnavailable);
    Verdict { nature: unknown, ..verdict }.by("unknown.transport")
}

fn http(status: u16, asked_to_wait: bool, unknown: Nature) -> Verdict {
    use Reach::{Answered, Refused, Unknown};
    let busy = |reach, severity| Verdict::transient(reach, severity, Code::UpstreamUnavailable);
    match status {
        401 | 402 | 403 | 407 | 451 => Verdict::permanent(Answered, Severity::Permission),
        404 | 410 => Verdict::permanent(Answered, Severity::NotFound),
        408 => Verdict::transient(Unknown, Severity::Timeout, Code::Timeout),
        413 => Verdict::permanent(Refused, Severity::InvalidInput),
        400 | 405 | 406 | 411 | 414..=417 | 422 | 431 => Verdict::permanent(Answered, Severity::InvalidInput),
        425 => busy(Answered, Severity::Transient),
        429 => busy(Refused, Severity::Transient),
        // A conflict, a lock, a failed precondition: no mistake, and no sign of a broken service.
        401..500 => Verdict::permanent(Answered, Severity::Informational),
        500 => Verdict::transient(Unknown, Severity::ServerError, Code::ToolError),
        501 | 505 | 506 | 508 | 510 | 511 => Verdict::permanent(Answered, Severity::ServerError),
        503 if asked_to_wait => busy(Refused, Severity::ServerError),
        501..600 => busy(Unknown, Severity::ServerError),
        // A redirect that was not followed is a response, if an unusual one.
        300..400 => Verdict::permanent(Answered, Severity::Validation),
        _ => Verdict { nature: unknown, ..busy(Unknown, Severity::Validation) },
    }
}

fn json_rpc(code: i64, facts: &Facts<'_>, unknown: Nature) -> Decision {
    if let Some(decision) = json_rpc_by_code(code, facts) {
        return decision;
    }
    if let Some((said, rule)) = text::decide(facts) {
        return said.by(rule);
    }
    if code == -32001 {
        // A local timeout and a forgotten session share this number. Both are errors of the transport.
        return of_unknown_transport(Reach::Unknown, unknown);
    }
    Verdict::permanent(Reach::Answered, Severity::Informational).by("unknown.jsonrpc")
}

/// Returns the verdict for a JSON-RPC code, if needed with a message that has a meaning only for this code.
fn json_rpc_by_code(code: i64, facts: &Facts<'_>) -> Option<Decision> {
    use Reach::{Answered, Refused, Unknown};
    let rule = format!("jsonrpc.{code}");
    let mistake = || text::mistake(facts);
    // A session may be lost while the tool runs in it. The message does not prove that nothing ran.
    if matches!(code, -32600 | 32600 | -32000 | -32001 | -32002) && text::is_about_a_lost_session(facts) {
        let verdict = Verdict::transient(Unknown, Severity::Transient, Code::UpstreamUnavailable);
        return Some(verdict.by("text.session-lost"));
    }
    Some(match code {
        -32700 | -32600 => Verdict::permanent(Answered, Severity::Validation).by(rule),
        -32601 => Verdict::mistake(Refused, Mistake::UnknownTool).by(rule),
        -32602 => Verdict::mistake(Refused, mistake().unwrap_or(Mistake::Arguments)).by(rule),
        // Some proxies turn -32602 into -32603, but keep the message.
        -32603 => match mistake() {
            Some(mistake) => Verdict::mistake(Answered, mistake).by(mistake.rule()),
            None => Verdict::transient(Unknown, Severity::ServerError, Code::ToolError).by(rule),
        },
        -32002 => Verdict::permanent(Answered, Severity::NotFound).by(rule),
        // Header mismatch, missing client capability, unsupported protocol version.
        -32022..=-32020 => Verdict::permanent(Answered, Severity::Validation).by(rule),
        // The user has to visit a page first: a response, not a failure.
        -32042 => Verdict::permanent(Answered, Severity::Informational).by(rule),
        _ => return None,
    })
}

impl Mistake {
    pub(super) const fn rule(self) -> &'static str {
        match self {
            Self::Arguments => "text.arguments",
            Self::UnknownTool => "text.unknown-tool",
        }
    }
}

/// Returns the verdict for a message of the tool, as a result (`isError`) or in place of one.
fn told(facts: &Facts<'_>, unknown: Nature) -> Decision {
    let Some(Decision { verdict, rule }) = told_by_words(facts, unknown) else {
        return Verdict::permanent(Reach::Answered, Severity::Informational).by("unknown.tool");
    };
    // A proxy that wraps a protocol error into a result reports the transport behind it. Any other `isError` comes from
    // the tool itself.
    let answered = facts.kind == SourceKind::IsError && facts.json_rpc.is_none();
    let reach = match verdict.reach {
        // A tool that reports a timeout or a lost connection may have taken effect before.
        Reach::Unknown => Reach::Unknown,
        // Text is no proof that nothing ran.
        Reach::NotSent | Reach::Refused | Reach::Answered => Reach::Answered,
    };
    let code = if answered && verdict.mistake.is_none() { Code::ToolError } else { verdict.code };
    Verdict { reach, code, ..verdict }.by(rule)
}

fn told_by_words(facts: &Facts<'_>, unknown: Nature) -> Option<Decision> {
    if let Some(decision) = facts.json_rpc.and_then(|code| json_rpc_by_code(code, facts)) {
        return Some(Decision { rule: within_text(&decision.rule), ..decision });
    }
    let by_number = facts
        .status
        .map(|status| http(status, false, unknown).by(format!("text.http.{status}")))
        .or_else(|| facts.close.map(|code| web_socket(code, unknown).by(format!("text.websocket.{code}"))));
    match by_number {
        Some(decision) if decision.verdict.nature == Nature::Transient => Some(decision),
        // A permanent status may hide a mistake that the message names.
        Some(decision) => {
            let mistake = text::mistake(facts);
            Some(
                mistake.map_or(decision, |mistake| {
                    Verdict::mistake(Reach::Answered, mistake).by(mistake.rule())
                }),
            )
        }
        None => text::decide(facts).map(|(verdict, rule)| verdict.by(rule)),
    }
}

fn within_text(rule: &str) -> Cow<'static, str> {
    Cow::Owned(if rule.starts_with("text.") { rule.to_owned() } else { format!("text.{rule}") })
}

fn web_socket(code: u16, unknown: Nature) -> Verdict {
    use Reach::{Answered, Unknown};
    let lost = |severity| Verdict::transient(Unknown, severity, Code::UpstreamUnavailable);
    match code {
        // Closed, going away, no reason, abnormal, restart, try later, TLS: the connection, not the call.
        1000 | 1001 | 1005 | 1006 | 1012 | 1013 | 1015 => lost(Severity::Transient),
        1011 | 1014 => lost(Severity::ServerError),
        1002 | 1003 | 1007 | 1010 => Verdict::permanent(Answered, Severity::Validation),
        1008 | 3000 | 3003 => Verdict::permanent(Answered, Severity::Permission),
        1009 => Verdict::permanent(Answered, Severity::InvalidInput),
        3008 => Verdict::transient(Unknown, Severity::Timeout, Code::Timeout),
        _ => Verdict { nature: unknown, ..lost(Severity::ServerError) },
    }
}

fn exit(code: Option<i32>, signal: Option<i32>) -> Decision {
    // With these two codes a shell reports that it could not start the command.
    let not_started = |severity| Verdict {
        code: Code::UpstreamUnavailable,
        ..Verdict::permanent(Reach::NotSent, severity)
    };
    let died = Verdict::transient(Reach::Unknown, Severity::Crash, Code::UpstreamUnavailable);
    match (code, signal) {
        (_, Some(signal)) => died.by(format!("exit.signal.{signal}")),
        (Some(126), None) => not_started(Severity::Permission).by("exit.126"),
        (Some(127), None) => not_started(Severity::NotFound).by("exit.127"),
        (Some(code), None) => died.by(format!("exit.{code}")),
        (None, None) => died.by("exit"),
    }
}
