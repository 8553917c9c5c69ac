//! The states of a call, and what the call knows beside its state.

use std::sync::Arc;
use std::time::Duration;

use super::accounting::CallAccounting;
use super::caller::CallerState;
use super::failure_response::LastAttemptError;
use super::grant::SpentGrant;
use super::in_flight::AttemptInFlight;
use super::recorded_attempt::RecordedAttempt;
use super::refusal::{ArrivalCheck, CallRefusal};
use super::request::{AttemptEndVisibility, CallRequest, CallerPatience};
use super::settling_outcome::SettlingOutcome;
use super::shadow::ShadowReport;
use super::step::{ApprovalRequest, BreakerScope, CallResult, DeferredWrite, NextStep, RetriedAttempt};
use super::tickets::Tickets;
use crate::Timestamp;
use crate::classify::Classification;
use crate::dedupe::{
    AttemptRecord, CallFailure, ClaimOwner, ClaimRole, DedupeRecord, RecordAddress, RunOutcome,
};
use crate::id::TurnId;
use crate::key::RecordKey;
use crate::policy::{CallPolicy, EnforcementMode};
use crate::retry::RetrySchedule;
use crate::stats;

/// The state machine of one call.
#[derive(Debug)]
pub struct Call {
    pub(super) request: CallRequest,
    pub(super) policy: Arc<CallPolicy>,
    pub(super) seed: u64,
    pub(super) arrived: Timestamp,
    /// Turn of the call, as far as the guard knows it.
    pub(super) turn: Option<TurnId>,
    pub(super) retry_safe: bool,
    /// Number of claims made so far. It numbers the owner tokens.
    pub(super) claims: u32,
    /// The grant that was spent for the call.
    pub(super) spent: Option<SpentGrant>,
    /// The record that this call claimed.
    pub(super) record: Option<Arc<DedupeRecord>>,
    /// Claims that may have been written although no answer came. They are released when the call ends.
    pub(super) claims_in_doubt: Vec<ClaimOwner>,
    /// State of the claim in the store.
    pub(super) store: StoreState,
    /// Time at which the lease may have expired, by the local clock. It counts from when the store was asked.
    pub(super) lease_until: Timestamp,
    pub(super) schedule: Option<RetrySchedule>,
    pub(super) first_attempt: Option<Timestamp>,
    /// Time since which the outcome is unknown.
    pub(super) settling_since: Option<Timestamp>,
    pub(super) attempts: u32,
    pub(super) facts: Vec<AttemptRecord>,
    /// Outcomes of the attempts, for a later replay of the call.
    pub(super) outcomes: Vec<RecordedAttempt>,
    pub(super) retries: Vec<RetriedAttempt>,
    /// Classification of the last failed attempt, and its failure.
    pub(super) last: Option<(Classification, CallFailure)>,
    /// Error details of the last attempt; `None` if it succeeded.
    pub(super) trouble: Option<LastAttemptError>,
    pub(super) caller: CallerState,
    pub(super) accounting: CallAccounting,
    pub(super) arrival_check: ArrivalCheck,
    pub(super) shadow_report: ShadowReport,
    pub(super) answered_by: AnswerSource,
    pub(super) state: State,
}

/// The side that wrote the answer of a call which did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerSource {
    /// Steadfast, whose refusals say what to do next.
    Steadfast,
    /// The host.
    Host,
}

/// State of the claim in the store, as this call knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreState {
    /// The store has the claim, or was not asked for one.
    Available,
    /// The store is unavailable; the call continues without it.
    Down,
    /// The store has declared the outcome unknown because the lease was not renewed in time. The result of this call
    /// still counts, but other callers have seen the unknown outcome, so no further attempt may start.
    MarkedUnknown,
    /// Another call owns the record; no further attempt may start in its name.
    FenceLost,
}

#[derive(Debug)]
pub(super) enum State {
    Looking {
        refusal: Box<CallRefusal>,
    },
    Claiming {
        role: ClaimRole,
        repeats: u32,
    },
    Following {
        record: RecordKey,
    },
    AwaitingEnd {
        record: RecordKey,
        look_at: Timestamp,
    },
    AwaitingApproval {
        ask: Box<ApprovalRequest>,
    },
    /// The claim is being released, to be made again.
    GivingBack,
    Spending,
    Starting,
    Probing {
        scope: BreakerScope,
        tickets: Tickets,
    },
    Attempting(AttemptInFlight),
    BackingOff {
        until: Timestamp,
    },
    Renewing,
    Marking(Box<SettlingOutcome>),
    Settling(Box<SettlingOutcome>),
    Saving {
        result: Box<CallResult>,
        ending: RunOutcome,
    },
    Releasing {
        result: Box<CallResult>,
        deferred: Vec<DeferredWrite>,
    },
    Finished,
}

impl Call {
    /// Returns true if the outcome is unknown and the call continues until it is settled.
    pub fn is_settling(&self) -> bool {
        matches!(self.state, State::Settling(_))
    }

    /// Returns true if the store has recorded the outcome as unknown.
    pub fn is_recorded_as_unknown(&self) -> bool {
        matches!(&self.state, State::Settling(settling) if !settling.unsaved)
    }

    /// Returns true if the call waits for [`CallEvent::Settled`](super::CallEvent::Settled): the attempt was given up,
    /// and its end can be observed.
    pub fn awaits_end(&self) -> bool {
        let State::Settling(settling) = &self.state else { return false };
        settling.by.is_none() && self.request.end == AttemptEndVisibility::Visible
    }

    /// Returns the record that this call owns and has to renew while it is open.
    ///
    /// A record that is being saved or released is no longer renewed. The driver sends a save or release only after the
    /// last renewal was answered or is void: if the store was emptied, a late renewal would restore a record that has
    /// ended.
    pub fn record(&self) -> Option<&DedupeRecord> {
        let ends = matches!(
            self.state,
            State::Saving { .. } | State::Releasing { .. } | State::Marking(_) | State::Settling(_)
        );
        self.record.as_deref().filter(|_| self.store == StoreState::Available && !ends)
    }

    /// Returns the record that carries this run, even if the store does not have it yet.
    pub fn claimed_record(&self) -> Option<&DedupeRecord> {
        self.record.as_deref()
    }

    /// Returns the request of the call.
    pub fn request(&self) -> &CallRequest {
        &self.request
    }

    /// Returns the policy that the call follows.
    pub fn policy(&self) -> &CallPolicy {
        &self.policy
    }

    /// Returns the outcome for the scores of its tool and model; `None` if the call says nothing about them.
    pub fn score_outcome(&self) -> Option<stats::ScoreOutcome> {
        self.accounting.score()
    }

    /// Returns the shared policy, for callers that store it.
    pub fn shared_policy(&self) -> &Arc<CallPolicy> {
        &self.policy
    }

    /// Returns the last attempts, as the record stores them.
    pub fn attempts(&self) -> &[AttemptRecord] {
        &self.facts
    }

    /// Returns the outcomes of the first attempts, with everything that decisions were based on.
    pub fn outcomes(&self) -> &[RecordedAttempt] {
        &self.outcomes
    }

    /// Returns the seed of the jitter.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the arrival time of the call.
    pub fn arrived(&self) -> Timestamp {
        self.arrived
    }

    /// Returns the name of the state, for logs and tests.
    pub fn state(&self) -> &'static str {
        self.state.name()
    }

    /// Returns true if the call has ended.
    pub fn is_finished(&self) -> bool {
        matches!(self.state, State::Finished)
    }

    /// Stays in a state.
    pub(super) fn stay(&mut self, state: State) -> NextStep {
        self.state = state;
        NextStep::Stay
    }

    /// Returns true if this is the owner of the record that the call holds: a renewal of an earlier claim may arrive
    /// late.
    pub(super) fn owns(&self, owner: &ClaimOwner) -> bool {
        self.record.as_ref().is_some_and(|record| record.owner == *owner)
    }

    /// Returns the mode of deduplication. It is off without an address.
    pub(super) fn dedupe(&self) -> EnforcementMode {
        match self.request.address() {
            Some(_) => self.policy.modes.dedupe,
            None => EnforcementMode::Off,
        }
    }

    /// Returns true if its key was given explicitly.
    pub(super) fn is_explicit(&self) -> bool {
        matches!(self.request.address(), Some(RecordAddress::Explicit(_)))
    }

    /// Returns true if other calls find this run by its record.
    pub(super) fn is_recorded(&self) -> bool {
        self.record.is_some() && self.dedupe() == EnforcementMode::Enforce
    }

    /// Returns true if the attempt may be cut without an open outcome: it may run again, or no record of it is kept.
    pub(super) fn may_be_cut(&self) -> bool {
        self.retry_safe || self.record.is_none() || self.dedupe() != EnforcementMode::Enforce
    }

    /// Returns true if no further attempt may start.
    pub(super) fn is_late(&self, now: Timestamp) -> bool {
        self.latest_start().is_some_and(|latest| latest <= now)
    }

    /// Returns the time from which no attempt may start.
    pub(super) fn latest_start(&self) -> Option<Timestamp> {
        let limits = &self.request.limits;
        [limits.deadline, limits.start_by].into_iter().flatten().min()
    }

    /// Returns the time for which the caller waits, unless it is known to wait longer.
    pub(super) fn patience(&self) -> Option<Duration> {
        match self.request.waits {
            CallerPatience::MayGiveUp => self.policy.time.answer_by,
            CallerPatience::UntilDone => None,
        }
    }
}

impl State {
    /// Returns the name of the state.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Looking { .. } => "Looking",
            Self::Claiming { .. } => "Claiming",
            Self::Following { .. } => "Following",
            Self::AwaitingEnd { .. } => "AwaitingEnd",
            Self::AwaitingApproval { .. } => "AwaitingApproval",
            Self::GivingBack => "GivingBack",
            Self::Spending => "Spending",
            Self::Starting => "Starting",
            Self::Probing { .. } => "Probing",
            Self::Attempting(_) => "Attempting",
            Self::BackingOff { .. } => "BackingOff",
            Self::Renewing => "Renewing",
            Self::Marking(_) => "Marking",
            Self::Settling(_) => "Settling",
            Self::Saving { .. } => "Saving",
            Self::Releasing { .. } => "Releasing",
            Self::Finished => "Finished",
        }
    }
}
