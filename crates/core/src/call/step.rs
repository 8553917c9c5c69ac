//! What goes into the machine and what comes out.

use std::time::Duration;

use super::notice::BreakerScope;
use crate::Timestamp;
use crate::approval::{GrantId, Spend};
use crate::breaker;
use crate::classify::{Fault, Severity, Source};
use crate::code::Code;
use crate::dedupe::{
    Claim, ClaimVerdict, Failure, Observed, Owner, Receipt, Release, RenewVerdict, ReplayReason, RunId, Save,
    SaveVerdict, StartVerdict,
};
use crate::guard::Remark;
use crate::key::Key;
use crate::output::Output;
use crate::rehearse::FailedOutcome;
use crate::trust::Escalation;

/// Something that happened. Each one is answered by the machine with one [`Step`].
#[derive(Clone, Debug)]
pub enum Event {
    /// The store decided on [`Step::Claim`].
    Claimed(ClaimVerdict),
    /// The moment that [`Call::wake_at`](super::Call::wake_at) named has come, or the followed record changed.
    Woke(Wake),
    /// A person answered [`Step::Ask`].
    Answered(Approval),
    /// The store decided on [`Step::Spend`].
    Spent(Spend),
    /// The store decided on [`Step::Start`].
    Started(StartVerdict),
    /// The store did [`Step::Probe`]: the breaker knows now who probes.
    Probed,
    /// The attempt of [`Step::Run`] ended, or was ended on [`Step::Cut`].
    Ran(Outcome),
    /// The attempt shows a sign of life. May come at any time while it runs.
    Progressed,
    /// Nothing is left of the attempt whose outcome is unknown: it can take no effect any more. Comes after everything that it
    /// still said.
    Settled,
    /// Whoever drives the call ends, and waits for nothing any more.
    DriverEnds,
    /// The store decided on a renewal, on [`Step::Renew`] or at any time in between. One of another claim is ignored.
    Renewed {
        /// Whose lease it was, as [`Call::record`](super::Call::record) named it.
        owner: Owner,
        /// When the store was asked: nobody knows when it was done, and the lease runs no longer than from here.
        sent: Timestamp,
        /// What the store said.
        verdict: RenewVerdict,
    },
    /// The store decided on [`Step::Save`].
    Saved(SaveVerdict),
    /// The store did [`Step::Release`].
    Released,
    /// The store did not do what the last step asked for.
    StoreFailed(StoreFault),
    /// The caller withdrew the call.
    Cancelled(Others),
    /// The caller is gone.
    Disconnected(Others),
}

/// Why a waiting call is woken.
#[derive(Clone, Debug)]
pub enum Wake {
    /// The moment has come.
    Time,
    /// The followed record changed, or its lease ended.
    Changed,
    /// The call that was followed, in this process, was refused; so is this one.
    LeaderRefused(Box<Failure>),
}

/// What a person answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Approval {
    /// Yes. A grant that was stored has to be spent; one that was said to this very call has not.
    Granted(Option<GrantId>),
    /// No.
    Denied,
    /// Nobody could be reached.
    Nobody,
    /// The question goes to the caller as the answer of this call, and the call comes again with the decision. Nobody
    /// waits meanwhile.
    PutToCaller(Output),
}

/// What came of an attempt.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The tool answered.
    Success {
        /// What.
        output: Output,
        /// What its structure says about a failure, for trust only.
        concern: Option<Severity>,
    },
    /// The tool wants to know something first. It has done nothing yet: the work is done when the call is sent again
    /// with what was asked for, and that is another call.
    InputRequired {
        /// The question, for the caller.
        output: Output,
    },
    /// Whoever was to run the tool is gone and has not begun: a host that was not reached with its order. It says nothing
    /// about the tool, and nobody is left to try again.
    NotRun {
        /// How that is known.
        fault: Fault,
    },
    /// It did not, or said no.
    Failure {
        /// How.
        fault: Fault,
        /// What the tool itself said, word for word.
        output: Option<Output>,
    },
    /// It did not, some other day, and only what was made of that is known still; see [`rehearse`](crate::rehearse).
    Remembered(Box<FailedOutcome>),
}

impl Outcome {
    /// Returns true if the tool has answered with more than what is taken. That is an answer, whatever was in it.
    pub(super) fn is_too_large(&self) -> bool {
        match self {
            Self::Failure { fault, .. } => fault.source == Source::TooLarge,
            Self::Remembered(failed) => failed.code == Code::ResultTooLarge,
            Self::Success { .. } | Self::InputRequired { .. } | Self::NotRun { .. } => false,
        }
    }
}

/// How a store failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// It surely did nothing.
    NotDone,
    /// It may have done it; the answer was lost.
    Unanswered,
}

/// Whether other callers in this process wait for the same run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// None.
    None,
    /// Some.
    Waiting,
}

/// The one thing to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// One atomic store operation: look, or claim. Answer with [`Event::Claimed`].
    Claim(Box<Claim>),
    /// Wait until the record changes or its lease ends. Answer with [`Event::Woke`].
    Follow(Key),
    /// Wait until a run of this process under this key changes or ends; a run elsewhere is looked at when the time comes. Answer
    /// with [`Event::Woke`].
    AwaitEnd(Key),
    /// Put it before a person. Answer with [`Event::Answered`].
    Ask(Box<Ask>),
    /// Spend the grant in this owner's name. Answer with [`Event::Spent`].
    Spend {
        /// The grant.
        grant: GrantId,
        /// In whose name.
        owner: Owner,
    },
    /// Mark the record as started. Answer with [`Event::Started`].
    Start {
        /// The record.
        key: Key,
        /// Its owner.
        owner: Owner,
    },
    /// The next attempt is the probe of this breaker. Compare it with the stored one: adopt that, if it is newer, else
    /// store this one. Answer with [`Event::Probed`] in either case; the breaker itself says whose the probe is.
    Probe(BreakerScope),
    /// Renew the lease before the next attempt. Answer with [`Event::Renewed`].
    Renew,
    /// Make an attempt. Answer with [`Event::Ran`]; a host that runs its own tool is told to run it.
    Run(Run),
    /// End the running attempt, upstream too. Answer with [`Event::Ran`]: with its answer if it was there first.
    Cut(Cut),
    /// Wait. Answer with [`Event::Woke`].
    Wait,
    /// Save under the fence. Answer with [`Event::Saved`].
    Save(Box<Save>),
    /// Give the claim back. Answer with [`Event::Released`].
    Release(Release),
    /// Answer the caller now; what was going on goes on. Comes at most once.
    Answer {
        /// The answer. Without a receipt it never counts as delivered.
        result: Box<CallResult>,
        /// Whether the tool is told.
        upstream: Upstream,
    },
    /// Tell the tool to cancel. Its caller was answered or is gone, and nobody else is left; the attempt itself goes
    /// on until it ends, because its answer still counts.
    CancelUpstream,
    /// Nothing new: what was going on goes on.
    Stay,
    /// The end. The caller gets the result, unless it was answered before.
    Finish {
        /// The result.
        result: Box<CallResult>,
        /// Store operations to repeat until they are through.
        kept: Vec<Kept>,
    },
}

/// A store operation that has to be repeated until it is through, after the caller has gone on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Save this answer.
    Save(Box<Save>),
    /// Keep this request for an operator; when granted, the next such call passes.
    Park(Box<Ask>),
    /// Give this claim back. Not before the claim's own command has arrived or is void: a release must not
    /// overtake it.
    Release(Release),
    /// Give back a grant that this owner spent: the tool asked for input and did nothing. Best before the caller hears of
    /// it, who may call again at once.
    GiveBack {
        /// The grant.
        grant: GrantId,
        /// In whose name it was spent.
        owner: Owner,
    },
}

/// What a person is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Why, and all that a prompt shows.
    pub escalation: Escalation,
    /// Whether only an operator may say yes.
    pub operator_only: bool,
    /// When the call gives up waiting.
    pub until: Timestamp,
}

/// An attempt to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Which one, from 1.
    pub attempt: u32,
    /// When it will be cut at the latest; travels upstream as the deadline.
    pub deadline: Option<Timestamp>,
    /// The id of the run; travels upstream where the caller gave no key.
    pub run: RunId,
}

/// Why an attempt is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// No sign of life for so long.
    Silent(Duration),
    /// The whole call took too long.
    TooLong,
    /// The caller's deadline.
    Deadline,
    /// The caller withdrew it.
    Cancelled,
}

/// Whether the tool is told that its caller has gone on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upstream {
    /// It is left alone.
    LeaveAlone,
    /// It is told to cancel.
    Cancel,
}

/// What a caller gets.
#[derive(Clone, Debug, PartialEq)]
pub struct CallResult {
    /// The tool's answer, or why there is none.
    pub ended: Result<Output, Failure>,
    /// Whether that is what was called for, or a question that comes before it.
    pub stage: Stage,
    /// Where it comes from.
    pub provenance: Provenance,
    /// Attempts that were made for it by this call.
    pub attempts: u32,
    /// The waits between them.
    pub retries: Vec<Retried>,
    /// From the arrival of the call to its end.
    pub took: Duration,
    /// Whether the store has it.
    pub recorded: Recorded,
    /// For marking its arrival; nothing if it does not count as delivered.
    pub receipt: Option<Receipt>,
    /// That it is the answer of another call, where its caller may have meant a new one.
    pub note: Option<&'static str>,
    /// What the guard adds.
    pub remarks: Vec<Remark>,
    /// The breaker that refused it.
    pub breaker: Option<breaker::State>,
    /// Whether a person has to look at it.
    pub escalated: bool,
    /// What is known where nobody knows whether the call had its effect.
    pub unknown: Option<ToldUnknown>,
}

/// What a caller is told of a call of which nobody knows whether it had its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToldUnknown {
    /// What was seen of it.
    pub observed: Observed,
    /// Whether it can have no effect any more.
    pub ended: bool,
}

/// Whether an answer is the end of what was called for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It is.
    Final,
    /// The tool asks for input first. Nothing was done, nothing is stored, and the answer is this caller's alone.
    InputRequired,
}

/// Where an answer comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Provenance {
    /// From a run of this call, or from us.
    Fresh,
    /// From an earlier run.
    Replayed {
        /// Why.
        reason: ReplayReason,
        /// How old it is.
        age: Duration,
        /// What logs and answers show of the key.
        fingerprint: String,
    },
}

/// Whether the store has an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Nobody asked for that, or there is nothing to record.
    NotAsked,
    /// Yes.
    Yes,
    /// It should, and does not.
    No,
}

/// A failed attempt and the wait after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retried {
    /// The attempt that failed.
    pub attempt: u32,
    /// How long it took.
    pub latency: Duration,
    /// How long was waited after it.
    pub delay: Duration,
    /// The rule that classified it.
    pub reason: std::borrow::Cow<'static, str>,
}

impl Event {
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
