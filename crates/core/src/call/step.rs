//! Events, steps and results of the call state machine.

use std::time::Duration;

use super::recorded_attempt::RecordedFailure;
use crate::approval::{GrantId, SpendVerdict};
use crate::classify::{AttemptFault, FaultSource, Severity};
use crate::code::Code;
use crate::dedupe::{
    CallFailure, Claim, ClaimOwner, ClaimVerdict, DeliveryReceipt, ReleaseRequest, RenewVerdict,
    ReplayReason, SaveRequest, SaveVerdict, StartVerdict, UnknownOutcomeReason,
};
use crate::guard::GuardRemark;
use crate::id::RunId;
use crate::key::RecordKey;
use crate::output::ToolOutput;
use crate::trust::Escalation;
use crate::{Timestamp, breaker};

/// An event that the driver reports. The machine returns one [`NextStep`] for each.
#[derive(Clone, Debug)]
pub enum CallEvent {
    /// The store decided on [`NextStep::Claim`].
    Claimed(ClaimVerdict),
    /// The time of [`Call::wake_at`](super::Call::wake_at) has come, or the followed record changed.
    Woke(WakeReason),
    /// A decision on [`NextStep::Ask`].
    Answered(ApprovalOutcome),
    /// The store decided on [`NextStep::Spend`].
    Spent(SpendVerdict),
    /// The store decided on [`NextStep::Start`].
    Started(StartVerdict),
    /// The store processed [`NextStep::Probe`]: the breaker knows now which process probes.
    Probed,
    /// The attempt of [`NextStep::Run`] ended, or was ended on [`NextStep::Cut`].
    Ran(AttemptReport),
    /// The attempt reports progress. May come at any time while it runs.
    Progressed,
    /// The attempt with an unknown outcome can no longer take effect. Comes after its last result or error.
    Settled,
    /// The driver shuts down and waits for nothing further.
    DriverEnds,
    /// The store decided on a renewal, on [`NextStep::Renew`] or at any time in between. A renewal of another claim is
    /// ignored.
    Renewed {
        /// Owner of the lease, as named by [`Call::record`](super::Call::record).
        owner: ClaimOwner,
        /// Time at which the store was asked. The time of the renewal itself is not known, so the lease counts from
        /// here.
        sent: Timestamp,
        /// Verdict of the store.
        verdict: RenewVerdict,
    },
    /// The store decided on [`NextStep::Save`].
    Saved(SaveVerdict),
    /// The store processed [`NextStep::Release`].
    Released,
    /// The store did not do what the last step required.
    StoreFailed(StoreFault),
    /// The caller cancelled the call.
    Cancelled(OtherWaiters),
    /// The caller has disconnected.
    Disconnected(OtherWaiters),
}

/// The reason why a waiting call is woken.
#[derive(Clone, Debug)]
pub enum WakeReason {
    /// The time has come.
    Time,
    /// The followed record changed, or its lease ended.
    Changed,
    /// The followed call, in this process, was refused, so this call is refused too.
    LeaderRefused(Box<CallFailure>),
}

/// A decision on an approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalOutcome {
    /// Approved. A stored grant has to be spent; an approval of this very call does not.
    Granted(Option<GrantId>),
    /// Denied.
    Denied,
    /// No approver could be reached.
    Unreachable,
    /// The question is returned to the caller as the result of this call, and the caller calls again with the decision.
    /// Nothing waits in the meantime.
    ReturnedToCaller(ToolOutput),
}

/// The outcome of an attempt.
#[derive(Clone, Debug)]
pub enum AttemptReport {
    /// The tool returned a result.
    Success {
        /// The result.
        output: ToolOutput,
        /// Severity of a failure that the structure of the result reports; for trust only.
        concern: Option<Severity>,
    },
    /// The tool asks for input first. It has done nothing yet: the work is done by another call that carries the input.
    InputRequired {
        /// The question, for the caller.
        output: ToolOutput,
    },
    /// The runner of the tool is gone and did not start: for example, a host that did not receive its order. It proves
    /// nothing about the tool, and there is no runner left for a retry.
    NotRun {
        /// Fault that proves it.
        fault: AttemptFault,
    },
    /// The tool failed, or returned an error.
    Failure {
        /// The fault.
        fault: AttemptFault,
        /// Output of the tool itself, unchanged.
        output: Option<ToolOutput>,
    },
    /// A failure from a recorded call, of which only the classification is known.
    Replayed(Box<RecordedFailure>),
}

impl AttemptReport {
    /// Returns true if the tool returned more than the limit allows. That counts as an answer, whatever it contained.
    pub(super) fn is_too_large(&self) -> bool {
        match self {
            Self::Failure { fault, .. } => fault.source == FaultSource::TooLarge,
            Self::Replayed(failed) => failed.code == Code::ResultTooLarge,
            Self::Success { .. } | Self::InputRequired { .. } | Self::NotRun { .. } => false,
        }
    }
}

/// The way in which a store failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// The store certainly did nothing.
    NotDone,
    /// The store may have done it; its answer was lost.
    Unanswered,
}

/// Other callers in this process that wait for the same run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherWaiters {
    /// No other caller waits.
    None,
    /// At least one other caller waits.
    Waiting,
}

/// The one thing to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum NextStep {
    /// One atomic store operation: look up, or claim. Answer with [`CallEvent::Claimed`].
    Claim(Box<Claim>),
    /// Wait until the record changes or its lease ends. Answer with [`CallEvent::Woke`].
    Follow(RecordKey),
    /// Wait until a run of this process with this key changes or ends. A run elsewhere is looked up when the time
    /// comes. Answer with [`CallEvent::Woke`].
    AwaitEnd(RecordKey),
    /// Ask for approval. Answer with [`CallEvent::Answered`].
    Ask(Box<ApprovalRequest>),
    /// Spend the grant in the name of this owner. Answer with [`CallEvent::Spent`].
    Spend {
        /// The grant.
        grant: GrantId,
        /// The owner that spends it.
        owner: ClaimOwner,
    },
    /// Mark the record as started. Answer with [`CallEvent::Started`].
    Start {
        /// The record.
        key: RecordKey,
        /// Its owner.
        owner: ClaimOwner,
    },
    /// The next attempt is the probe of this breaker. Compare it with the stored breaker: adopt that one if it is
    /// newer, else store this one. Answer with [`CallEvent::Probed`] in either case; the breaker itself names the owner of
    /// the probe.
    Probe(BreakerScope),
    /// Renew the lease before the next attempt. Answer with [`CallEvent::Renewed`].
    Renew,
    /// Make an attempt. Answer with [`CallEvent::Ran`]. A host that runs its own tool is asked to run it.
    Run(AttemptCommand),
    /// End the running attempt, at the upstream too. Answer with [`CallEvent::Ran`], with the result if that arrived first.
    Cut(CutReason),
    /// Wait. Answer with [`CallEvent::Woke`].
    Wait,
    /// Save under the fencing token. Answer with [`CallEvent::Saved`].
    Save(Box<SaveRequest>),
    /// Release the claim. Answer with [`CallEvent::Released`].
    Release(ReleaseRequest),
    /// Answer the caller now; the attempt continues. Comes at most once.
    Answer {
        /// The result. Without a receipt it never counts as delivered.
        result: Box<CallResult>,
        /// Message to the upstream, if any.
        upstream: UpstreamSignal,
    },
    /// Ask the tool to cancel. Its caller was answered or is gone, and no other caller waits. The attempt itself
    /// continues until it ends, because its result still counts.
    CancelUpstream,
    /// Nothing new: the current work continues.
    Stay,
    /// The call has ended. The caller gets the result, unless it was answered before.
    Finish {
        /// The result.
        result: Box<CallResult>,
        /// Store operations to repeat until they succeed.
        deferred: Vec<DeferredWrite>,
    },
}

/// A store operation that is repeated until it succeeds, after the caller was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeferredWrite {
    /// Save this result.
    Save(Box<SaveRequest>),
    /// Keep this request for an operator. When it is granted, the next such call passes.
    Park(Box<ApprovalRequest>),
    /// Release this claim, but only after the claim command itself has arrived or is void: a release must not overtake
    /// it.
    Release(ReleaseRequest),
    /// Return a grant that this owner spent: the tool asked for input and did nothing. Best done before the caller gets
    /// the response, because it may call again at once.
    GiveBack {
        /// The grant.
        grant: GrantId,
        /// The owner that spent it.
        owner: ClaimOwner,
    },
}

/// A request for approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalRequest {
    /// The reason, and everything that a prompt shows.
    pub escalation: Escalation,
    /// True if only an operator may approve.
    pub operator_only: bool,
    /// Time at which the call stops waiting.
    pub until: Timestamp,
}

/// An attempt to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptCommand {
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Time at which the attempt is cut at the latest. It is sent upstream as the deadline.
    pub deadline: Option<Timestamp>,
    /// Id of the run. It is sent upstream if the caller gave no idempotency key.
    pub run: RunId,
}

/// The reason why an attempt is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutReason {
    /// No sign of life for this time.
    Silent(Duration),
    /// The whole call took too long.
    TooLong,
    /// The caller's deadline.
    Deadline,
    /// The caller cancelled the call.
    Cancelled,
}

/// A message to the upstream when its caller no longer waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamSignal {
    /// No message.
    NoSignal,
    /// A cancellation.
    Cancel,
}

/// The response to a call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallResult {
    /// The result of the tool, or the failure.
    pub outcome: Result<ToolOutput, CallFailure>,
    /// Stage that the response belongs to: the result itself, or a question that comes before it.
    pub stage: ResultStage,
    /// Origin of the result.
    pub provenance: Provenance,
    /// Number of attempts that this call made.
    pub attempts: u32,
    /// The failed attempts that were retried, and the waits between them.
    pub retries: Vec<RetriedAttempt>,
    /// Time from the arrival of the call to its end.
    pub took: Duration,
    /// State of the result in the store.
    pub recorded: RecordStatus,
    /// Receipt that marks the delivery; `None` if the result does not count as delivered.
    pub receipt: Option<DeliveryReceipt>,
    /// Note that the result is from another call, where the caller may have meant a new one.
    pub note: Option<&'static str>,
    /// Remarks of the guard.
    pub remarks: Vec<GuardRemark>,
    /// State of the breaker that refused the call.
    pub breaker: Option<breaker::State>,
    /// True if the call needs an operator's attention.
    pub escalated: bool,
    /// Facts about an unknown outcome.
    pub unknown: Option<UnknownOutcomeInfo>,
}

/// Facts that a caller gets about an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownOutcomeInfo {
    /// Observation about the attempt.
    pub observed: UnknownOutcomeReason,
    /// True if the attempt can no longer take effect.
    pub is_final: bool,
}

/// The stage of the call that a response belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultStage {
    /// The call has ended.
    Final,
    /// The tool asks for input first. Nothing was done or stored, and the response is for this caller alone.
    InputRequired,
}

/// The origin of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Provenance {
    /// A run of this call, or a decision of Steadfast.
    Fresh,
    /// An earlier run.
    Replayed {
        /// Reason for the replay.
        reason: ReplayReason,
        /// Age of the result.
        age: Duration,
        /// Fingerprint of the key, for logs and responses.
        fingerprint: String,
    },
}

/// State of a result in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordStatus {
    /// Recording was not requested, or there is nothing to record.
    NotAsked,
    /// The result is stored.
    Yes,
    /// The result should be stored and is not.
    No,
}

/// A failed attempt and the wait after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetriedAttempt {
    /// Number of the failed attempt.
    pub attempt: u32,
    /// Duration of the attempt.
    pub latency: Duration,
    /// Wait after the attempt.
    pub delay: Duration,
    /// Rule that classified the failure.
    pub reason: std::borrow::Cow<'static, str>,
}

/// The scope of a circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerScope {
    /// The breaker of the tool.
    Tool,
    /// The breaker of the dependency, if the caller asked for one.
    Dependency,
}

impl CallEvent {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Claimed(_) => "Claimed",
            Self::Woke(_) => "Woke",
            Self::Answered(_) => "Answered",
            Self::Spent(_) => "Spent",
            Self::Started(_) => "Started",
            Self::Probed => "Probed",
            Self::Ran(_) => "Ran",
            Self::Progressed => "Progressed",
            Self::Settled => "Settled",
            Self::DriverEnds => "DriverEnds",
            Self::Renewed { .. } => "Renewed",
            Self::Saved(_) => "Saved",
            Self::Released => "Released",
            Self::StoreFailed(_) => "StoreFailed",
            Self::Cancelled(_) => "Cancelled",
            Self::Disconnected(_) => "Disconnected",
        }
    }
}
