//! Facts for logs, metrics, traces and the audit. Nothing is decided by them.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::step::Cut;
use crate::Timestamp;
use crate::breaker::{self, Transition};
use crate::classify::{Nature, Reach, Severity};
use crate::code::Code;
use crate::dedupe::{Observed, Owner, ReplayReason, Resolution};
use crate::guard::Layer;
use crate::retry::Stop;
use crate::trust::TrustChange;

/// A fact about a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// The call came.
    CallStarted {
        /// When.
        at: Timestamp,
    },
    /// It was refused without a run.
    CallBlocked {
        /// By what.
        code: Code,
        /// Whether calling again later can help.
        retriable: bool,
        /// The state of the tool's breaker, or of the coarser one that refused it.
        breaker: Option<breaker::State>,
    },
    /// It is a duplicate of a run in flight.
    Following,
    /// It got an earlier answer.
    Replayed {
        /// Why.
        reason: ReplayReason,
    },
    /// It took over the run of a holder that is gone.
    TookOver,
    /// The key stands for another call. An alarm.
    KeyConflict,
    /// A person is asked.
    ApprovalAsked,
    /// Nobody is asked any more: a person, or time, answered, or the call was withdrawn.
    ApprovalEnded {
        /// Whether it may run.
        granted: bool,
    },
    /// An attempt starts.
    AttemptStarted {
        /// Which one.
        attempt: u32,
        /// When.
        at: Timestamp,
    },
    /// An attempt ended.
    AttemptEnded {
        /// Which one.
        attempt: u32,
        /// How long it took.
        took: Duration,
        /// How it failed; nothing if it did not.
        failure: Option<FailedAttempt>,
    },
    /// The tool asks for input before it does anything; the call was given back, and comes again as another one.
    InputRequired,
    /// There will be another attempt.
    RetryScheduled {
        /// Which one.
        attempt: u32,
        /// When.
        at: Timestamp,
    },
    /// There will be none, although it might help.
    RetryStopped {
        /// Why.
        stop: Stop,
    },
    /// A running attempt is ended by us.
    AttemptCut {
        /// Why.
        cut: Cut,
    },
    /// The caller was answered while the attempt goes on.
    AnsweredEarly {
        /// With what.
        code: Code,
    },
    /// Nobody knows whether the call had its effect.
    OutcomeUnknown {
        /// The claim of the earlier call whose outcome it is; nothing if it is that of this call.
        of_earlier: Option<Owner>,
    },
    /// A verification has begun to find out whether a call took effect, and this is what it showed.
    Verified {
        /// What it says; nothing where it shows neither.
        resolution: Option<Resolution>,
        /// The tool that was called, and what it did not show.
        words: Arc<str>,
    },
    /// A breaker changed.
    BreakerChanged {
        /// Which one.
        scope: BreakerScope,
        /// How.
        transition: Transition,
    },
    /// The place of the probe was given back or is held for longer: those who share the breaker have to know.
    ProbeMoved {
        /// Of which breaker.
        scope: BreakerScope,
    },
    /// Trust in a tool changed.
    TrustChanged(TrustChange),
    /// The guard acted.
    GuardTripped {
        /// Which layer.
        layer: Layer,
    },
    /// The record is another's; the answer was not recorded.
    FenceLost,
    /// The store failed.
    StoreFailed {
        /// What the call does about it.
        goes_on: bool,
    },
    /// What would have been done if the mechanism were not in shadow mode. Only the first per call is told.
    WouldHave(Shadowed),
    /// The call ended.
    CallFinished {
        /// How; nothing if it succeeded.
        code: Option<Code>,
        /// From arrival to end.
        took: Duration,
        /// Attempts made.
        attempts: u32,
        /// Whether an earlier answer was given.
        replayed: bool,
    },
}

/// How an attempt failed: the verdict of the classifier, and the words that it was made of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the verdict of the classifier, field by field")]
pub struct FailedAttempt {
    pub nature: Nature,
    pub reach: Reach,
    pub severity: Severity,
    pub rule: Cow<'static, str>,
    pub observed: Observed,
    /// What was said, as the caller would have been told it if this had been the last attempt. Not redacted.
    /// Empty where a replay does not know it.
    pub said: Arc<str>,
}

/// Which breaker of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerScope {
    /// The tool's own.
    Tool,
    /// The coarser one that the caller asked for.
    Dependency,
}

/// A decision that shadow mode kept from being carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shadowed {
    /// The call would have been answered without a run.
    Duplicate,
    /// It would have been refused.
    Refused(Code),
    /// A person would have been asked.
    Asked,
    /// It would have been tried again.
    Retried,
    /// Its caller would not have been kept waiting any longer.
    Cut,
    /// It failed, and that would have been told as this.
    Told(Code),
    /// The model would have been told something beside the answer.
    Remarked(Layer),
}
