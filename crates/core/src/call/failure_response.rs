//! The response of a tool that failed.

use std::borrow::Cow;
use std::sync::Arc;

use super::messages;
use super::recorded_attempt::{RecordedAttempt, RecordedFailure, RecordedFailureKind};
use crate::classify::{AttemptFault, Classification, FaultNature, FaultSource, TransportError};
use crate::dedupe::UnknownOutcomeReason;
use crate::output::ToolOutput;

/// The response of a tool that failed.
#[derive(Clone)]
pub(super) struct FailureResponse {
    pub(super) message: String,
    pub(super) output: Option<ToolOutput>,
    pub(super) manner: RecordedFailureKind,
    /// Observation for the case that the outcome is unknown.
    pub(super) observed: UnknownOutcomeReason,
    /// HTTP status of the response.
    pub(super) status: Option<u16>,
    /// Text to show if the message only stands for the original: in a replay.
    pub(super) shown: Option<String>,
}

impl FailureResponse {
    pub(super) fn of(fault: AttemptFault, output: Option<ToolOutput>) -> Self {
        let observed = observed(&fault.source);
        let status = if let FaultSource::Http { status } = fault.source { Some(status) } else { None };
        Self {
            manner: RecordedFailureKind::of(&fault),
            message: fault.message,
            output,
            observed,
            status,
            shown: None,
        }
    }

    /// Returns the message for callers that get an unknown outcome; `None` if the tool has its own output, which is
    /// passed on unchanged.
    pub(super) fn words(&self) -> Option<String> {
        let message = messages::shorten_message(self.message.clone());
        match (&self.output, self.status) {
            (Some(_), _) => None,
            (None, Some(status)) if !message.contains(&status.to_string()) => {
                Some(format!("HTTP {status}: {message}"))
            }
            (None, Some(_) | None) => Some(message),
        }
    }

    /// Restores a recorded failure, of which only the classification is known.
    pub(super) fn remembered(failed: &RecordedFailure) -> Self {
        let observed = match (failed.observed, failed.manner) {
            (Some(observed), _) => observed,
            (None, RecordedFailureKind::TimedOut) => UnknownOutcomeReason::NoAnswer,
            (
                None,
                RecordedFailureKind::Plain | RecordedFailureKind::SessionLost | RecordedFailureKind::NotRun,
            ) => UnknownOutcomeReason::ErrorAnswer,
        };
        Self {
            message: failed.error.clone(),
            output: None,
            manner: failed.manner,
            observed,
            status: None,
            shown: Some(failed.words.clone().unwrap_or_default()),
        }
    }

    /// Returns the recorded outcome of the attempt.
    pub(super) fn outcome(&self, classified: &Classification) -> RecordedAttempt {
        RecordedAttempt::of_failure(classified, self.manner, self.observed, &self.message, self.shown())
    }

    /// Returns the message for logs and the audit log.
    pub(super) fn shown(&self) -> String {
        self.shown.clone().unwrap_or_else(|| messages::shorten_message(self.message.clone()))
    }

    /// Returns the details of the failure for the failure record of the call.
    pub(super) fn last_error(&self, classified: &Classification) -> LastAttemptError {
        LastAttemptError {
            rule: classified.rule.clone(),
            message: self.shown().into(),
            http_status: self.status,
            transient: classified.nature == FaultNature::Transient,
        }
    }
}

/// Error details of the last attempt, if it failed.
#[derive(Clone, Debug)]
pub(super) struct LastAttemptError {
    pub(super) rule: Cow<'static, str>,
    pub(super) message: Arc<str>,
    pub(super) http_status: Option<u16>,
    pub(super) transient: bool,
}

/// Returns the observation for a failure source.
fn observed(source: &FaultSource) -> UnknownOutcomeReason {
    match source {
        FaultSource::Timeout { .. } => UnknownOutcomeReason::NoAnswer,
        FaultSource::Transport { error: TransportError::TimedOut, .. } => UnknownOutcomeReason::NoAnswer,
        FaultSource::Transport { .. } | FaultSource::WebSocket { .. } => UnknownOutcomeReason::ConnectionLost,
        FaultSource::Exit { .. } => UnknownOutcomeReason::ProcessDied,
        FaultSource::Http { .. }
        | FaultSource::JsonRpc { .. }
        | FaultSource::SessionLost
        | FaultSource::IsError
        | FaultSource::Tool
        | FaultSource::Panic
        | FaultSource::BadAnswer
        | FaultSource::TooLarge => UnknownOutcomeReason::ErrorAnswer,
    }
}
