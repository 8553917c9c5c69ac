//! Failures of requests to a server, by how far the request got.

use std::io;

use steadfast_core::classify::{AttemptFault, FaultSource, RetryAfter, TransportError};

use crate::message::{RpcMessage, code};

/// The failure of a message that got no usable response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamFailure {
    /// Nothing of the message was sent.
    #[error("not sent: {text}")]
    NotSent {
        /// The transport error.
        error: TransportError,
        /// The error text.
        text: String,
    },
    /// The connection broke after a part of the message may have been sent.
    #[error("the connection was lost: {text}")]
    Lost {
        /// The transport error.
        error: TransportError,
        /// The error text.
        text: String,
    },
    /// The server does not know the session, or no longer knows it.
    #[error("the server does not know the session")]
    SessionLost,
    /// The server returned a status that is not a success.
    #[error(
        "status {status}: {}",
        .error.as_ref().map_or(text.into(), |error| error.error_text().unwrap_or_default())
    )]
    Status {
        /// The status.
        status: u16,
        /// The wait that the server asked for.
        retry_after: Option<RetryAfter>,
        /// The JSON-RPC error in the body, if there is one.
        error: Option<Box<RpcMessage>>,
        /// The beginning of any other body.
        text: String,
    },
    /// The server responded, but not as the protocol defines it.
    #[error("not a valid MCP response: {text}")]
    BadAnswer {
        /// Description of the violation.
        text: String,
    },
    /// The response is longer than the limit.
    #[error("{}", too_large(*.announced, *.limit))]
    TooLarge {
        /// The length of the response, if the server announced it.
        announced: Option<u64>,
        /// The limit in bytes.
        limit: usize,
    },
}

impl UpstreamFailure {
    /// Returns the fault for the core to classify.
    ///
    /// If the body has a JSON-RPC error, its code is more specific than the HTTP status. The exceptions are statuses
    /// about access and load (authorization, rate limits, availability), not about the call.
    pub fn fault(&self) -> AttemptFault {
        match self {
            Self::NotSent { error, text } => {
                AttemptFault::new(FaultSource::Transport { error: *error, written: false }, text.clone())
            }
            Self::Lost { error, text } => {
                AttemptFault::new(FaultSource::Transport { error: *error, written: true }, text.clone())
            }
            Self::SessionLost => {
                AttemptFault::new(FaultSource::SessionLost, "the server does not know the session")
            }
            Self::Status { status, retry_after, error, text } => {
                let code = error.as_ref().and_then(|error| error.error_code());
                let source = match (status, code) {
                    (400 | 404 | 422 | 500, Some(code)) => FaultSource::JsonRpc { code },
                    (status, _) => FaultSource::Http { status: *status },
                };
                let error_text = error.as_ref().and_then(|error| error.error_text());
                let message = match error_text {
                    Some(error_text) => error_text.into_owned(),
                    // The text must not be empty.
                    None if text.trim().is_empty() => format!("the server answered with the status {status}"),
                    None => text.clone(),
                };
                AttemptFault { retry_after: *retry_after, ..AttemptFault::new(source, message) }
            }
            Self::BadAnswer { text } => AttemptFault::new(FaultSource::BadAnswer, text.clone()),
            Self::TooLarge { announced, limit } => {
                AttemptFault::new(FaultSource::TooLarge, too_large(*announced, *limit))
            }
        }
    }

    /// Returns true if the error is from a server of the modern era. Then the request must be corrected, and the era
    /// stays the same.
    pub fn is_modern(&self) -> bool {
        const MODERN: [i64; 3] = [code::HEADER_MISMATCH, code::MISSING_CAPABILITY, code::UNSUPPORTED_VERSION];
        match self {
            Self::Status { error, .. } => {
                error.as_ref().and_then(|error| error.error_code()).is_some_and(|code| MODERN.contains(&code))
            }
            Self::NotSent { .. }
            | Self::Lost { .. }
            | Self::SessionLost
            | Self::BadAnswer { .. }
            | Self::TooLarge { .. } => false,
        }
    }

    pub(super) fn not_sent(error: &io::Error) -> Self {
        Self::NotSent { error: transport(error), text: error.to_string() }
    }

    /// Returns the failure for an error of a connection that was in use.
    pub(super) fn lost(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::Lost { error: transport_of(error), text: message_of(error) }
    }
}

/// Describes a message that is longer than the limit.
pub fn too_large(bytes: Option<u64>, limit: usize) -> String {
    match bytes {
        Some(bytes) => format!("it has {bytes} bytes, and the limit is {limit}"),
        None => format!("it has more than {limit} bytes, which is the limit"),
    }
}

/// Returns the transport error at the root of this error.
fn transport_of(error: &(dyn std::error::Error + 'static)) -> TransportError {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return transport(io);
        }
        if error
            .downcast_ref::<hyper::Error>()
            .is_some_and(|error| error.is_incomplete_message() || error.is_closed())
        {
            return TransportError::ConnectionClosed;
        }
        next = error.source();
    }
    TransportError::Other
}

pub(super) fn transport(error: &io::Error) -> TransportError {
    if error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) {
        return TransportError::Tls;
    }
    #[expect(clippy::wildcard_enum_match_arm, reason = "the list is the standard library's, and grows")]
    match error.kind() {
        io::ErrorKind::ConnectionRefused => TransportError::ConnectionRefused,
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted | io::ErrorKind::BrokenPipe => {
            TransportError::ConnectionReset
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::NotConnected => TransportError::ConnectionClosed,
        io::ErrorKind::TimedOut => TransportError::TimedOut,
        io::ErrorKind::NotFound => TransportError::NameNotFound,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => TransportError::Unreachable,
        _ => TransportError::Other,
    }
}

fn message_of(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text.push_str(": ");
        text.push_str(&error.to_string());
        next = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use steadfast_core::Timestamp;
    use steadfast_core::classify::{AttemptReach, FaultNature, Overrides, classify};

    use super::*;

    fn status(status: u16, code: Option<i64>, retry_after: Option<RetryAfter>) -> UpstreamFailure {
        let error = code.map(|code| Box::new(RpcMessage::error_response(None, code, "no", None)));
        UpstreamFailure::Status { status, retry_after, error, text: String::new() }
    }

    #[test]
    fn the_progress_of_a_message_decides_the_fault_of_its_failure() {
        let not_sent = |error| UpstreamFailure::NotSent { error, text: String::new() };
        let wait = Some(RetryAfter::Delay(std::time::Duration::from_secs(1)));
        for (failure, reach, nature) in [
            (not_sent(TransportError::ConnectionRefused), AttemptReach::Refused, FaultNature::Transient),
            (not_sent(TransportError::TimedOut), AttemptReach::NotSent, FaultNature::Transient),
            (not_sent(TransportError::NameNotFound), AttemptReach::NotSent, FaultNature::Transient),
            (
                UpstreamFailure::Lost { error: TransportError::ConnectionClosed, text: String::new() },
                AttemptReach::Unknown,
                FaultNature::Transient,
            ),
            (UpstreamFailure::SessionLost, AttemptReach::Refused, FaultNature::Transient),
            (status(429, None, None), AttemptReach::Refused, FaultNature::Transient),
            (status(429, Some(-32603), None), AttemptReach::Refused, FaultNature::Transient),
            (status(503, None, wait), AttemptReach::Refused, FaultNature::Transient),
            (status(503, Some(-32603), wait), AttemptReach::Refused, FaultNature::Transient),
            (status(503, None, None), AttemptReach::Unknown, FaultNature::Transient),
            (status(500, None, None), AttemptReach::Unknown, FaultNature::Transient),
            (status(500, Some(-32603), None), AttemptReach::Unknown, FaultNature::Transient),
            (status(400, Some(-32602), None), AttemptReach::Refused, FaultNature::Permanent),
            (status(404, Some(-32601), None), AttemptReach::Refused, FaultNature::Permanent),
            (status(401, Some(-32601), None), AttemptReach::Answered, FaultNature::Permanent),
            (
                UpstreamFailure::BadAnswer { text: String::new() },
                AttemptReach::Unknown,
                FaultNature::Permanent,
            ),
            (
                UpstreamFailure::TooLarge { announced: Some(9), limit: 8 },
                AttemptReach::Answered,
                FaultNature::Permanent,
            ),
        ] {
            let classified = classify(&failure.fault(), &Overrides::default(), Timestamp::ZERO);
            assert_eq!((classified.reach, classified.nature), (reach, nature), "{failure:?}");
        }
    }

    #[test]
    fn a_modern_server_is_recognized_by_its_codes() {
        for code in [-32020, -32021, -32022] {
            assert!(status(400, Some(code), None).is_modern());
        }
        for failure in
            [status(400, Some(-32600), None), status(400, None, None), UpstreamFailure::SessionLost]
        {
            assert!(!failure.is_modern());
        }
    }
}
