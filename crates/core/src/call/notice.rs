//! Facts for logs, metrics, traces and the audit log. No decision depends on them.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::step::{BreakerScope, CutReason};
use crate::Timestamp;
use crate::breaker::{self, BreakerTransition};
use crate::classify::{AttemptReach, FaultNature, Severity};
use crate::code::Code;
use crate::dedupe::{ClaimOwner, ReplayReason, Resolution, UnknownOutcomeReason};
use crate::guard::GuardLayer;
use crate::retry::RetryStop;
use crate::trust::TrustChange;

/// A fact about a call.
#[derive(Clone, Debug, PartialEq)]
pub enum CallNotice {
    /// The call arrived.
    CallStarted {
        /// Time of arrival.
        at: Timestamp,
    },
    /// The call was refused without a run.
    CallBlocked {
        /// Code of the refusal.
        code: Code,
        /// True if calling again later can help.
        retriable: bool,
        /// State of the tool's breaker, or of the dependency's breaker if that refused the call.
        breaker: Option<breaker::State>,
    },
    /// The call is a duplicate of a run in flight.
    Following,
    /// The call got an earlier result.
    Replayed {
        /// Reason for the replay.
        reason: ReplayReason,
    },
    /// The call took over the run of an owner that is gone.
    TookOver,
    /// The idempotency key was used for another call. An alarm.
    KeyConflict,
    /// Approval was requested.
    ApprovalRequested,
    /// The request for approval has ended: by a decision, by timeout, or because the call was cancelled.
    ApprovalEnded {
        /// True if the call may run.
        granted: bool,
    },
    /// An attempt starts.
    AttemptStarted {
        /// Number of the attempt.
        attempt: u32,
        /// Start time.
        at: Timestamp,
    },
    /// An attempt ended.
    AttemptEnded {
        /// Number of the attempt.
        attempt: u32,
        /// Duration of the attempt.
        took: Duration,
        /// Details of the failure; `None` if the attempt succeeded.
        failure: Option<FailedAttempt>,
    },
    /// The tool asks for input before it does anything. The claim was released, and another call repeats
    /// the work.
    InputRequired,
    /// Another attempt is scheduled.
    RetryScheduled {
        /// Number of the attempt.
        attempt: u32,
        /// Time of the attempt.
        at: Timestamp,
    },
    /// There is no further attempt, although one might help.
    RetryStopped {
        /// Reason for the stop.
        stop: RetryStop,
    },
    /// Steadfast ends a running attempt.
    AttemptCut {
        /// Reason for the cut.
        cut: CutReason,
    },
    /// The caller was answered while the attempt continues.
    AnsweredEarly {
        /// Code of the response.
        code: Code,
    },
    /// The outcome of the call is unknown.
    OutcomeUnknown {
        /// Claim of the earlier call that the outcome belongs to; `None` if it is the outcome of this call.
        of_earlier: Option<ClaimOwner>,
    },
    /// A verification checked whether a call took effect.
    Verified {
        /// Result of the verification; `None` if it was inconclusive.
        resolution: Option<Resolution>,
        /// The verification tool and its finding.
        words: Arc<str>,
    },
    /// A breaker changed its state.
    BreakerChanged {
        /// Scope of the breaker.
        scope: BreakerScope,
        /// The transition.
        transition: BreakerTransition,
    },
    /// The probe permit was returned or extended. Every process that shares the breaker has to know.
    ProbeMoved {
        /// Scope of the breaker.
        scope: BreakerScope,
    },
    /// Trust in a tool changed.
    TrustChanged(TrustChange),
    /// The guard acted.
    GuardTripped {
        /// Layer that acted.
        layer: GuardLayer,
    },
    /// Another call owns the record, so the result was not recorded.
    FenceLost,
    /// The store failed.
    StoreFailed {
        /// True if the call continues without the store.
        continues: bool,
    },
    /// A decision that shadow mode did not enforce. Only the first one per call is reported.
    Shadowed(ShadowDecision),
    /// The call ended.
    CallFinished {
        /// Code of the failure; `None` if the call succeeded.
        code: Option<Code>,
        /// Time from arrival to end.
        took: Duration,
        /// Number of attempts.
        attempts: u32,
        /// True if an earlier result was returned.
        replayed: bool,
    },
}

/// Details of a failed attempt: the verdict of the classifier, and the message that it is based on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the verdict of the classifier, field by field")]
pub struct FailedAttempt {
    pub nature: FaultNature,
    pub reach: AttemptReach,
    pub severity: Severity,
    pub rule: Cow<'static, str>,
    pub observed: UnknownOutcomeReason,
    /// Message, as the caller would have seen it if this had been the last attempt. Not redacted. Empty if a replay
    /// does not know it.
    pub message: Arc<str>,
}

/// A decision that shadow mode did not enforce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowDecision {
    /// The call would have been answered without a run.
    Duplicate,
    /// The call would have been refused.
    Refused(Code),
    /// Approval would have been requested.
    ApprovalRequested,
    /// The call would have been tried again.
    Retried,
    /// The caller would not have waited any longer.
    Cut,
    /// The call failed, and the caller would have received this code.
    Failed(Code),
    /// The response would have carried a remark for the model.
    GuardRemark(GuardLayer),
}
