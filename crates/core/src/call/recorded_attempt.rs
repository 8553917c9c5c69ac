//! The result of an attempt, as it is recorded for a replay. It has no output of the tool.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::classify::{
    AttemptFault, AttemptReach, Classification, FaultNature, FaultSource, ModelMistake, Severity,
    is_session_lost,
};
use crate::code::Code;
use crate::dedupe::UnknownOutcomeReason;
use crate::guard;
use crate::id::Digest;
use crate::millis;
use crate::output::ToolOutput;

/// The result of an attempt, reduced to the data that affects decisions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RecordedAttempt {
    /// The tool responded.
    Answered {
        /// Size of the response in bytes.
        size: u64,
        /// The severity of a failure that the structure of the response shows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        concern: Option<Severity>,
        /// The digest of the response, if repeated successes are watched.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<Digest>,
    },
    /// The tool asked for input.
    InputRequired,
    /// The attempt failed.
    Failed(Box<RecordedFailure>),
}

/// The classification of a failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the verdict of the classifier, field by field")]
pub struct RecordedFailure {
    pub nature: FaultNature,
    pub reach: AttemptReach,
    pub severity: Severity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mistake: Option<ModelMistake>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    pub code: Code,
    pub rule: Cow<'static, str>,
    #[serde(default, skip_serializing_if = "RecordedFailureKind::is_plain")]
    pub manner: RecordedFailureKind,
    /// The observation about the attempt if its outcome is unknown. Absent in recordings of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<UnknownOutcomeReason>,
    /// A digest that is equal for errors that the loop guard treats as equal.
    pub error: String,
    /// The error message. Absent in recordings of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words: Option<String>,
}

/// The kind of a failure, in addition to its classification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RecordedFailureKind {
    /// No special kind.
    #[default]
    Plain,
    /// The attempt timed out.
    TimedOut,
    /// The server had lost the session.
    SessionLost,
    /// The host that was to run the tool was gone before it started.
    NotRun,
}

impl RecordedFailureKind {
    pub(super) fn of(fault: &AttemptFault) -> Self {
        if matches!(fault.source, FaultSource::Timeout { .. }) {
            Self::TimedOut
        } else if is_session_lost(fault) {
            Self::SessionLost
        } else {
            Self::Plain
        }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "required by serde")]
    fn is_plain(&self) -> bool {
        *self == Self::Plain
    }
}

impl RecordedAttempt {
    /// Returns the recorded form of a success. The digest of the result is present if the loop guard asked for it.
    pub fn of_success(output: &ToolOutput, concern: Option<Severity>, result: Option<Digest>) -> Self {
        let size = u64::try_from(output.len()).unwrap_or(u64::MAX);
        Self::Answered { size, concern, result }
    }

    /// Returns the recorded form of a failure with this message of the tool. `words` is the part of the message to
    /// show.
    pub fn of_failure(
        classified: &Classification,
        manner: RecordedFailureKind,
        observed: UnknownOutcomeReason,
        message: &str,
        words: String,
    ) -> Self {
        let Classification { nature, reach, severity, mistake, retry_after, code, rule } = classified;
        Self::Failed(Box::new(RecordedFailure {
            nature: *nature,
            reach: *reach,
            severity: *severity,
            mistake: *mistake,
            retry_after_ms: retry_after.map(millis),
            code: *code,
            rule: rule.clone(),
            manner,
            observed: (*reach == AttemptReach::Unknown).then_some(observed),
            error: guard::error_digest(message),
            words: Some(words).filter(|words| !words.is_empty()),
        }))
    }

    /// Returns the result without secrets, and with at most `longest` bytes of the message.
    #[must_use]
    pub fn redacted(&self, longest: usize) -> Self {
        let mut outcome = self.clone();
        if let Self::Failed(failed) = &mut outcome {
            failed.words = failed.words.as_deref().map(|words| steadfast_redact::excerpt(words, longest));
        }
        outcome
    }
}

impl RecordedFailure {
    /// Returns the recorded classification.
    pub(super) fn classified(&self) -> Classification {
        Classification {
            nature: self.nature,
            reach: self.reach,
            severity: self.severity,
            mistake: self.mistake,
            retry_after: self.retry_after_ms.map(Duration::from_millis),
            code: self.code,
            rule: self.rule.clone(),
        }
    }
}
