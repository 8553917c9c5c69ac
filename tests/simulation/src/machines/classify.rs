//! The classification of faults: reach, whether a retry can help, and severity (D4, D21, D28, D29, D40, D41).

use steadfast_core::Timestamp;
use steadfast_core::classify::{
    AttemptFault, AttemptReach, Classification, FaultNature, FaultSource, ModelMistake, Overrides,
    RetryAfter, Severity, TransportError, classify,
};
use steadfast_core::code::Code;

use super::{MachineTrace, agree, millis, optional};
use crate::invariants::InvariantViolation;
use crate::rng::Rng;

const PROMISE: &str = "faults mean what they say";

/// The meaning of a fault: nature, reach, severity, mistake, and the code that is reported.
type FaultMeaning = (FaultNature, AttemptReach, Severity, Option<ModelMistake>, Code);

const TRANSPORTS: [TransportError; 7] = [
    TransportError::ConnectionRefused,
    TransportError::ConnectionReset,
    TransportError::ConnectionClosed,
    TransportError::TimedOut,
    TransportError::NameNotFound,
    TransportError::Unreachable,
    TransportError::Tls,
];

pub(super) fn check(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    for _ in 0..8 {
        one(rng, machine_trace)?;
    }
    Ok(())
}

fn one(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    let now = Timestamp::from_millis(1_000_000);
    let requested = rng.chance(40).then(|| match rng.chance(50) {
        true => RetryAfter::Delay(millis(rng.between(0, 5_000))),
        false => RetryAfter::At(Timestamp::from_millis(999_999 + rng.between(0, 2_000))),
    });
    let source = match rng.between(0, 6) {
        0 => FaultSource::Transport { error: *rng.pick(&TRANSPORTS), written: rng.chance(50) },
        1 | 2 => FaultSource::Http {
            status: u16::try_from(*rng.pick(&[
                400, 401, 403, 404, 408, 409, 410, 413, 422, 425, 429, 500, 501, 502, 503, 504, 505,
            ]))
            .unwrap_or(500),
        },
        3 => FaultSource::JsonRpc { code: *rng.pick(&[-32601, -32602, -32603, -32700, -32600, -32002]) },
        4 => FaultSource::WebSocket { code: *rng.pick(&[1000, 1001, 1006, 1008, 1009, 1011, 1012, 1002]) },
        5 => FaultSource::Exit {
            code: optional(rng, |rng| *rng.pick(&[1, 126, 127])),
            signal: optional(rng, |_| 9),
        },
        _ => rng
            .pick(&[
                FaultSource::SessionLost,
                FaultSource::Timeout { after: millis(5) },
                FaultSource::Panic,
                FaultSource::BadAnswer,
                FaultSource::TooLarge,
            ])
            .clone(),
    };
    let fault = AttemptFault { retry_after: requested, ..AttemptFault::new(source, "it did not work") };
    let got = classify(&fault, &Overrides::default(), now);
    machine_trace.log(|| format!("{fault:?}: {got:?}"));
    let Classification { nature, reach, severity, mistake, code, retry_after, .. } = got;
    agree(PROMISE, "a fault", &(nature, reach, severity, mistake, code), &meaning(&fault))?;
    let due = match requested {
        None => None,
        Some(RetryAfter::Delay(delay)) => Some(delay),
        Some(RetryAfter::At(at)) => (at > now).then(|| at.since(now)),
    };
    agree(PROMISE, "how long to wait", &retry_after, &due)
}

fn meaning(fault: &AttemptFault) -> FaultMeaning {
    use AttemptReach::{Answered, NotSent, Refused, Unknown};
    use FaultNature::{Permanent, Transient};
    let passes = |reach, severity| (Transient, reach, severity, None, Code::UpstreamUnavailable);
    let stays = |reach, severity| (Permanent, reach, severity, None, Code::ToolError);
    match &fault.source {
        FaultSource::Transport { error, written } => {
            let reach = if *written { Unknown } else { NotSent };
            match error {
                TransportError::ConnectionRefused if !written => passes(Refused, Severity::Transient),
                TransportError::TimedOut => (Transient, reach, Severity::Timeout, None, Code::Timeout),
                _ => passes(reach, Severity::Transient),
            }
        }
        FaultSource::Http { status } => match status {
            408 => (Transient, Unknown, Severity::Timeout, None, Code::Timeout),
            425 => passes(Answered, Severity::Transient),
            429 => passes(Refused, Severity::Transient),
            500 => (Transient, Unknown, Severity::ServerError, None, Code::ToolError),
            503 if fault.retry_after.is_some() => passes(Refused, Severity::ServerError),
            502..505 => passes(Unknown, Severity::ServerError),
            501 | 505 => stays(Answered, Severity::ServerError),
            401 | 403 => stays(Answered, Severity::Permission),
            404 | 410 => stays(Answered, Severity::NotFound),
            413 => stays(Refused, Severity::InvalidInput),
            400 | 422 => stays(Answered, Severity::InvalidInput),
            _ => stays(Answered, Severity::Informational),
        },
        FaultSource::JsonRpc { code } => match code {
            -32601 => {
                (Permanent, Refused, Severity::NotFound, Some(ModelMistake::UnknownTool), Code::UnknownTool)
            }
            -32602 => (
                Permanent,
                Refused,
                Severity::InvalidInput,
                Some(ModelMistake::Arguments),
                Code::InvalidArguments,
            ),
            -32603 => (Transient, Unknown, Severity::ServerError, None, Code::ToolError),
            -32002 => stays(Answered, Severity::NotFound),
            _ => stays(Answered, Severity::Validation),
        },
        FaultSource::WebSocket { code } => match code {
            1000 | 1001 | 1006 | 1012 => passes(Unknown, Severity::Transient),
            1011 => passes(Unknown, Severity::ServerError),
            1008 => stays(Answered, Severity::Permission),
            1009 => stays(Answered, Severity::InvalidInput),
            _ => stays(Answered, Severity::Validation),
        },
        FaultSource::Exit { signal: None, code: Some(126) } => {
            (Permanent, NotSent, Severity::Permission, None, Code::UpstreamUnavailable)
        }
        FaultSource::Exit { signal: None, code: Some(127) } => {
            (Permanent, NotSent, Severity::NotFound, None, Code::UpstreamUnavailable)
        }
        FaultSource::Exit { .. } => passes(Unknown, Severity::Crash),
        FaultSource::SessionLost => passes(Refused, Severity::Transient),
        FaultSource::Timeout { .. } => (Transient, Unknown, Severity::Timeout, None, Code::Timeout),
        FaultSource::Panic => stays(Unknown, Severity::Crash),
        FaultSource::BadAnswer => stays(Unknown, Severity::Validation),
        FaultSource::TooLarge => (Permanent, Answered, Severity::Validation, None, Code::ResultTooLarge),
        FaultSource::IsError | FaultSource::Tool => stays(Answered, Severity::Informational),
    }
}
