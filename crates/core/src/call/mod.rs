//! State machine of a call: each event returns one step, and adds notices for logs, metrics and audit.
//!
//! The order of the stages is part of the contract. It is defined in this module, with the reason for each position:
//!
//! 1. **Refusals without a wait** (deadline, arguments, guard, breaker, trust). Before it refuses, the call looks up
//!    its idempotency key: a finished result is still replayed, and a call in flight is still waited for. Nothing is
//!    claimed on this path.
//! 2. **Claim**, so that everything after it happens once.
//! 3. **Approval**, if required. After the claim, so that duplicates wait for one decision.
//! 4. **Admission**: limits and breaker, before every attempt.
//! 5. **Attempt**, bounded in time.
//! 6. **Classify**, and record into the breaker: each attempt counts.
//! 7. **Retry or stop.**
//! 8. **Save** under the fencing token, or release. Trust and guard count the finished call once. `settling.rs` handles
//!    an unknown outcome. A call that finds one waits for its end (`AwaitingEnd`) if its time allows.
//!
//! ```text
//!            ┌──────── refused, nothing found ─────────────────────────────┐
//!            │                                                             ▼
//!  begin ─▶ Looking ─▶ Following ◀─┐                                   Finished
//!    │                   │ woke    │ held by another                       ▲
//!    ├─▶ Claiming ◀──────┘─────────┘                                       │
//!    │      │ mine                                                         │
//!    │      ├─▶ AwaitingApproval ─▶ Spending ─▶ Starting ─┐                │
//!    │      │                                             ▼                │
//!    └──────┴────────────────▶ (Probing ─▶) Attempting ─▶ Saving ──────────┤
//!                                  ▲            │  └────▶ Releasing ───────┘
//!                                  │            ▼
//!                       Renewing ◀─┴─────── BackingOff
//! ```
//!
//! The machine serves a driver that runs the tool and a driver whose host runs it: `begin`, `report`
//! ([`CallEvent::Ran`]), `heartbeat` ([`CallEvent::Progressed`]), `cancel` ([`CallEvent::Cancelled`]).

mod approvals;
mod attempt;
mod cancellation;
mod claim;
mod completion;
mod failure_record;
mod intake;
mod messages;
mod notice;
mod outcome;
mod recorded_attempt;
mod request;
mod settling;
mod step;

use std::sync::Arc;

pub use intake::IntakeContext;
pub use notice::{BreakerScope, CallNotice, FailedAttempt, ShadowDecision};
pub use recorded_attempt::{RecordedAttempt, RecordedFailure, RecordedFailureKind};
pub use request::{
    AttemptEndVisibility, CallId, CallRequest, CallerHints, CallerKeyScope, CallerPatience, Deduplication,
    EqualCallPolicy, RunnerKind, UpstreamKey,
};
pub use step::{
    ApprovalOutcome, ApprovalRequest, AttemptCommand, AttemptReport, CallEvent, CallResult, CutReason,
    DeferredWrite, NextStep, OtherWaiters, Provenance, RecordStatus, ResultStage, RetriedAttempt, StoreFault,
    UnknownOutcomeInfo, UpstreamSignal, WakeReason,
};

use crate::Timestamp;
use crate::approval::{self, ApprovalLedger, ApprovalPlan, ApprovalSubject, ArgumentRisk, GrantId};
use crate::breaker::{self, BreakerTicket, CircuitBreaker};
use crate::classify::{Classification, Severity};
use crate::code::Code;
use crate::dedupe::{
    AttemptRecord, CallFailure, Claim, ClaimIntent, ClaimOwner, ClaimRole, ClaimVerdict, DedupeRecord,
    FoundRecords, LocalKnowledge, RecordAddress, ReleaseRequest, RenewVerdict, RunOutcome, StartVerdict,
    decide_claim,
};
use crate::guard::{GuardedCall, LoopGuard};
use crate::id::TurnId;
use crate::key::RecordKey;
use crate::limit::Limiter;
use crate::output::ToolOutput;
use crate::policy::{
    ApprovalTrigger, ArgumentCheck, CallPolicy, EnforcementMode, StoreFailurePolicy, ToolClass,
    UnknownOutcomePolicy,
};
use crate::retry::{RetryBudget, RetrySchedule};
use crate::stats;
use crate::trust::{Escalation, TrustDecision, TrustLedger, TrustRules, TrustSubject};
use crate::watchdog::Watchdog;
use settling::SettlingOutcome;

/// State machines that calls share. The driver lends them for the length of one step.
#[derive(Debug)]
pub struct CallMechanisms<'a> {
    /// Circuit breaker of the tool.
    pub breaker: &'a mut CircuitBreaker,
    /// Circuit breaker of the dependency, if the caller asked for one.
    pub dependency: Option<&'a mut CircuitBreaker>,
    /// Retry budget of this dependency.
    pub budget: &'a mut RetryBudget,
    /// Limits of this tool.
    pub limiter: &'a mut Limiter,
    /// Limits of the dependency, shared by all its tools.
    pub dependency_limiter: &'a mut Limiter,
    /// Loop guard of this session.
    pub guard: &'a mut LoopGuard,
    /// Trust ledger of this tenant.
    pub trust: &'a mut TrustLedger,
    /// Approvals of this tenant.
    pub approvals: &'a ApprovalLedger,
}

/// An event that does not belong to the current state. The state machine is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "event {event} is not valid in state {state}: the driver answered a step that the call did not return"
)]
pub struct CallMisuse {
    /// Name of the state.
    pub state: &'static str,
    /// Name of the event.
    pub event: &'static str,
}

/// The state machine of one call.
#[derive(Debug)]
pub struct Call {
    request: CallRequest,
    policy: Arc<CallPolicy>,
    seed: u64,
    arrived: Timestamp,
    /// Turn of the call, as far as the guard knows it.
    turn: Option<TurnId>,
    retry_safe: bool,
    /// Number of claims made so far. It numbers the owner tokens.
    claims: u32,
    /// The grant that was spent for the call, and the owner that spent it.
    spent: Option<(GrantId, ClaimOwner)>,
    /// True if the approval was for a blocked tool.
    approved_blocked: bool,
    /// The record that this call claimed.
    record: Option<Arc<DedupeRecord>>,
    /// Claims that may have been written although no answer came. They are released when the call ends.
    claims_in_doubt: Vec<ClaimOwner>,
    /// State of the claim in the store.
    store: StoreState,
    /// Time at which the lease may have expired, by the local clock. It counts from when the store was asked.
    lease_until: Timestamp,
    schedule: Option<RetrySchedule>,
    first_attempt: Option<Timestamp>,
    /// Time since which the outcome is unknown.
    settling_since: Option<Timestamp>,
    attempts: u32,
    facts: Vec<AttemptRecord>,
    /// Outcomes of the attempts, for a later replay of the call.
    outcomes: Vec<RecordedAttempt>,
    retries: Vec<RetriedAttempt>,
    /// Classification of the last failed attempt, and its failure.
    last: Option<(Classification, CallFailure)>,
    /// Error details of the last attempt; `None` if it succeeded.
    trouble: Option<failure_record::LastAttemptError>,
    /// Severity of the failure that the call ended with, if it ran.
    severity: Option<Severity>,
    caller: CallerState,
    /// True if the guard knows that the call is in flight.
    entered: bool,
    /// True if trust and guard have counted this call.
    judged: bool,
    /// Outcome for the scores of the tool, if the call counts for them.
    scored: Option<stats::ScoreOutcome>,
    /// True if a refusal was pending when the call arrived. The check is repeated before a run.
    held_back: bool,
    /// Code of the refusal that shadow mode did not enforce, until it is known whether the call would have run.
    withheld: Option<Code>,
    shadow_reported: bool,
    state: State,
}

/// State of the claim in the store, as this call knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreState {
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

/// State of the caller of this call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallerState {
    Waiting,
    /// The caller was answered or has disconnected. The run continues for the record.
    Gone,
    /// The caller has cancelled, and the tool was asked to stop. The attempt may still answer, but no new one starts.
    GaveUp,
}

#[derive(Debug)]
enum State {
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
        kept: Vec<DeferredWrite>,
    },
    Finished,
}

/// An attempt in flight.
#[derive(Debug)]
struct AttemptInFlight {
    number: u32,
    started: Timestamp,
    watchdog: Option<Watchdog>,
    deadline: Option<Timestamp>,
    tickets: Tickets,
    /// The cut that was requested.
    cut: Option<CutReason>,
}

/// Permits that breakers and limiters gave out for an attempt.
#[derive(Debug, Default)]
struct Tickets {
    tool: Option<BreakerTicket>,
    dependency: Option<BreakerTicket>,
    permits: PermitState,
}

/// State of the attempt's concurrency permits, which have to be returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PermitState {
    #[default]
    NotAsked,
    Taken,
}

impl AttemptInFlight {
    /// Returns its concurrency permits.
    fn release_permits(&mut self, shared: &mut CallMechanisms<'_>) {
        if std::mem::take(&mut self.tickets.permits) == PermitState::Taken {
            shared.limiter.release();
            shared.dependency_limiter.release();
        }
    }

    fn has_permits(&self) -> bool {
        self.tickets.permits == PermitState::Taken
    }
}

/// A refusal that has not been returned yet.
#[derive(Clone, Debug)]
struct CallRefusal {
    failure: CallFailure,
    breaker: Option<breaker::State>,
    by: RefusalOrigin,
}

#[derive(Clone, Debug)]
enum RefusalOrigin {
    /// A refusal that no mechanism counts.
    Steadfast,
    /// The guard, which counts its own refusals.
    Guard(crate::guard::GuardLayer),
    /// Trust: the request is kept for an operator.
    Trust(Box<ApprovalRequest>),
}

/// The approval that a call needs.
#[derive(Clone, Debug)]
enum ApprovalNeed {
    NotNeeded,
    Spend(GrantId),
    Ask(Box<ApprovalRequest>),
    Refuse(Box<CallRefusal>),
}

/// Number of repeats of a claim without answer before the call treats the store as unavailable.
const CLAIM_REPEATS: u32 = 2;

impl Call {
    /// Starts a call. `seed` decides its jitter and nothing else.
    pub fn begin(
        shared: &mut CallMechanisms<'_>,
        mut request: CallRequest,
        policy: Arc<CallPolicy>,
        seed: u64,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> (Self, NextStep) {
        notices.push(CallNotice::CallStarted { at: now });
        // Decided once: a call does not change its turn because another call arrived.
        let turn = match request.turn.clone() {
            None if policy.modes.guard != EnforcementMode::Off => {
                request.trace.take().filter(|trace| shared.guard.is_turn(trace))
            }
            known => known,
        };
        if !policy.modes.is_pass_through() {
            request.turn.clone_from(&turn);
        }
        let retry_safe = request.is_retry_safe(&policy);
        let mut call = Self {
            request,
            policy,
            seed,
            arrived: now,
            turn,
            retry_safe,
            claims: 0,
            claims_in_doubt: Vec::new(),
            spent: None,
            approved_blocked: false,
            record: None,
            store: StoreState::Available,
            lease_until: now,
            schedule: None,
            first_attempt: None,
            settling_since: None,
            attempts: 0,
            facts: Vec::new(),
            outcomes: Vec::new(),
            trouble: None,
            severity: None,
            retries: Vec::new(),
            last: None,
            caller: CallerState::Waiting,
            entered: false,
            judged: false,
            scored: None,
            held_back: false,
            withheld: None,
            shadow_reported: false,
            state: State::Finished,
        };
        let step = match call.refusal(shared, now) {
            Some(refusal) if call.dedupe() == EnforcementMode::Enforce => {
                call.state = State::Looking { refusal };
                call.claim_step(ClaimIntent::Look, ClaimRole::Fresh, now)
            }
            Some(refusal) => call.refuse(shared, *refusal, now, notices),
            None => {
                call.enter(shared, now);
                call.claim_or_start(shared, ClaimRole::Fresh, now, notices)
            }
        };
        (call, step)
    }

    /// Processes an event and returns the next step.
    pub fn handle_event(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        now: Timestamp,
        event: CallEvent,
        notices: &mut Vec<CallNotice>,
    ) -> Result<NextStep, CallMisuse> {
        match (std::mem::replace(&mut self.state, State::Finished), event) {
            (State::Looking { refusal }, CallEvent::Claimed(verdict)) => Ok(match verdict {
                ClaimVerdict::Nothing
                | ClaimVerdict::Acquired(_)
                | ClaimVerdict::Full
                | ClaimVerdict::StoreRecovering
                | ClaimVerdict::RecordsLost => self.refuse(shared, *refusal, now, notices),
                verdict @ (ClaimVerdict::Follow(_)
                | ClaimVerdict::Busy
                | ClaimVerdict::Replay(_)
                | ClaimVerdict::Unknown(_)
                | ClaimVerdict::Conflict) => {
                    self.held_back = true;
                    self.enter(shared, now);
                    self.handle_claim_verdict(shared, verdict, now, notices)
                }
            }),
            (State::Looking { refusal }, CallEvent::StoreFailed(_)) => {
                if self.is_explicit() {
                    notices.push(CallNotice::StoreFailed { continues: false });
                }
                self.store = StoreState::Down;
                Ok(self.refuse(shared, *refusal, now, notices))
            }

            (State::Claiming { .. }, CallEvent::Claimed(verdict)) => {
                Ok(self.handle_claim_verdict(shared, verdict, now, notices))
            }
            (State::Claiming { role, repeats }, CallEvent::StoreFailed(fault)) => {
                if fault == StoreFault::Unanswered {
                    self.doubt_claim();
                }
                Ok(self.claim_failed(shared, role, repeats, now, notices))
            }

            (State::Following { record }, CallEvent::Woke(wake)) => {
                Ok(self.wake_follower(shared, record, wake, now, notices))
            }

            // If no time is left, the caller gets a response that says that the earlier call has not ended.
            (State::AwaitingEnd { record, .. }, CallEvent::Woke(WakeReason::Time)) => {
                Ok(self.wake_follower(shared, record, WakeReason::Changed, now, notices))
            }
            (State::AwaitingEnd { record, .. }, CallEvent::Woke(wake)) => {
                Ok(self.wake_follower(shared, record, wake, now, notices))
            }

            (State::AwaitingApproval { ask }, CallEvent::Answered(answer)) => {
                Ok(self.answered(shared, *ask, answer, now, notices))
            }
            (State::AwaitingApproval { ask }, CallEvent::Woke(_)) if now >= ask.until => {
                Ok(self.answered(shared, *ask, ApprovalOutcome::Unreachable, now, notices))
            }
            (state @ State::AwaitingApproval { .. }, CallEvent::Woke(_)) => Ok(self.stay(state)),

            (State::GivingBack, CallEvent::Released) => {
                Ok(self.claim_or_start(shared, ClaimRole::Fresh, now, notices))
            }
            (State::Spending, CallEvent::Spent(spend)) if spend.may_run() => {
                Ok(self.start_or_go(shared, now, notices))
            }
            (State::Spending, CallEvent::Spent(_)) => {
                self.spent = None;
                // What the lost grant covered is not covered by an approval that follows.
                self.approved_blocked = false;
                Ok(self.lost_the_grant(shared, now, notices))
            }
            (State::Starting, CallEvent::Started(StartVerdict::Started)) => {
                Ok(self.started(shared, now, notices))
            }
            (State::Starting, CallEvent::Started(StartVerdict::Lost)) => Ok(self.look_again(now)),
            // In shadow mode the record protects nothing.
            (State::Starting, CallEvent::StoreFailed(_)) if self.dedupe() == EnforcementMode::Shadow => {
                if !self.continues_without_store() {
                    self.report_shadow_decision(ShadowDecision::Refused(Code::StoreUnavailable), notices);
                }
                Ok(self.attempt(shared, now, notices))
            }
            (State::Starting, CallEvent::StoreFailed(_)) if self.continues_without_store() => {
                notices.push(CallNotice::StoreFailed { continues: true });
                self.store = StoreState::Down;
                Ok(self.attempt(shared, now, notices))
            }
            (State::GivingBack, CallEvent::StoreFailed(_)) => {
                notices.push(CallNotice::StoreFailed { continues: false });
                let result = self.failed(messages::store_unavailable(&self.request), now);
                let result = self.judge(shared, result, now, notices);
                self.doubt_claim();
                Ok(self.finish(result, Vec::new(), now, notices))
            }
            (State::Spending | State::Starting, CallEvent::StoreFailed(_)) => {
                notices.push(CallNotice::StoreFailed { continues: false });
                let refusal = CallRefusal::by_steadfast(messages::store_unavailable(&self.request));
                Ok(self.refuse(shared, refusal, now, notices))
            }

            (State::Probing { scope, tickets }, CallEvent::Probed) => {
                tickets.agreed(scope, shared);
                Ok(self.probed(shared, scope, tickets, now, notices))
            }
            // If the store is unavailable, each process probes for itself.
            (State::Probing { scope, tickets }, CallEvent::StoreFailed(_)) => {
                Ok(self.probed(shared, scope, tickets, now, notices))
            }

            (State::Attempting(attempt), CallEvent::Ran(outcome)) => {
                Ok(self.ran(shared, attempt, outcome, now, notices))
            }
            (State::Attempting(attempt), CallEvent::Progressed) => {
                Ok(self.progressed(shared, attempt, now, notices))
            }
            (State::Attempting(attempt), CallEvent::Woke(_)) => {
                Ok(self.check_limits(shared, attempt, now, notices))
            }

            (State::BackingOff { until }, CallEvent::Woke(_)) if now >= until => {
                Ok(self.attempt(shared, now, notices))
            }
            (state @ State::BackingOff { .. }, CallEvent::Woke(_)) => Ok(self.stay(state)),
            (State::Renewing, CallEvent::Renewed { owner, sent, verdict }) if self.owns(&owner) => {
                self.renewed(verdict, sent.min(now), notices);
                Ok(self.attempt(shared, now, notices))
            }
            (State::Renewing, CallEvent::StoreFailed(_)) if self.dedupe() == EnforcementMode::Shadow => {
                // A shadow record blocks nothing.
                self.record = None;
                Ok(self.attempt(shared, now, notices))
            }
            (State::Renewing, CallEvent::StoreFailed(_)) => {
                // Without a renewal, the call cannot know that it still owns the record.
                notices.push(CallNotice::StoreFailed { continues: false });
                Ok(self.give_up(shared, now, notices))
            }

            (State::Marking(settling), CallEvent::Saved(verdict)) => {
                Ok(self.mark_saved(shared, settling, verdict, now, notices))
            }
            (State::Marking(settling), CallEvent::StoreFailed(_)) => {
                Ok(self.mark_failed(shared, settling, now, notices))
            }
            (State::Settling(settling), CallEvent::Ran(outcome)) => {
                Ok(self.ran_late(shared, settling, outcome, now, notices))
            }
            (State::Settling(settling), CallEvent::Settled) => {
                Ok(self.end_was_seen(shared, settling, now, notices))
            }
            (State::Settling(settling), CallEvent::Woke(_)) => {
                Ok(self.marked(shared, settling, now, notices))
            }
            (State::Settling(settling), CallEvent::DriverEnds) => {
                Ok(self.driver_ends(shared, settling, now, notices))
            }
            // The result of an attempt that ended by itself decides how it counts.
            (state @ (State::Attempting(_) | State::Saving { .. }), CallEvent::Settled) => {
                Ok(self.stay(state))
            }

            (State::Saving { result, .. }, CallEvent::Saved(verdict)) => {
                Ok(self.saved(result, verdict, now, notices))
            }
            (State::Saving { result, ending }, CallEvent::StoreFailed(_)) => {
                notices.push(CallNotice::StoreFailed { continues: true });
                let kept = self.save_of(ending).map(DeferredWrite::Save);
                let result = CallResult { recorded: RecordStatus::No, receipt: None, ..*result };
                Ok(self.finish(result, kept.into_iter().collect(), now, notices))
            }
            (State::Releasing { result, kept }, CallEvent::Released) => {
                Ok(self.finish(result, kept, now, notices))
            }
            (State::Releasing { result, mut kept }, CallEvent::StoreFailed(_)) => {
                kept.extend(self.deferred_release());
                Ok(self.finish(result, kept, now, notices))
            }

            (state, CallEvent::Cancelled(others)) if !matches!(state, State::Finished) => {
                Ok(self.cancelled(shared, state, others, now, notices))
            }
            (state, CallEvent::Disconnected(others)) if !matches!(state, State::Finished) => {
                Ok(self.disconnected(shared, state, others, now, notices))
            }
            // The lease can be renewed at any time while the call is open; a progress event may be late.
            (
                state @ (State::Saving { .. }
                | State::Releasing { .. }
                | State::Marking(_)
                | State::Settling(_)),
                CallEvent::Renewed { .. },
            ) => Ok(self.stay(state)),
            (state, CallEvent::Renewed { owner, sent, verdict }) if !matches!(state, State::Finished) => {
                if self.owns(&owner) {
                    self.renewed(verdict, sent.min(now), notices);
                }
                Ok(self.stay(state))
            }
            (state, CallEvent::Progressed) if !matches!(state, State::Finished) => Ok(self.stay(state)),
            // A timer that fires late, or a record that changes once more, is not a misuse by the driver.
            (state, CallEvent::Woke(_)) if !matches!(state, State::Finished) => Ok(self.stay(state)),

            (state, event) => {
                let misuse = CallMisuse { state: state.name(), event: event.name() };
                self.state = state;
                Err(misuse)
            }
        }
    }

    /// Returns the time at which the machine needs [`CallEvent::Woke`] if no other event comes before.
    pub fn wake_at(&self) -> Option<Timestamp> {
        match &self.state {
            State::Following { .. } => Some(self.follow_until()),
            State::AwaitingApproval { ask } => Some(ask.until),
            State::AwaitingEnd { look_at, .. } => Some(*look_at),
            State::BackingOff { until } => Some(*until),
            State::Attempting(attempt) => self.attempt_wakes_at(attempt),
            State::Settling(settling) => self.settling_wakes_at(settling),
            State::Looking { .. }
            | State::Claiming { .. }
            | State::GivingBack
            | State::Spending
            | State::Starting
            | State::Probing { .. }
            | State::Renewing
            | State::Marking(_)
            | State::Saving { .. }
            | State::Releasing { .. }
            | State::Finished => None,
        }
    }

    /// Returns true if the outcome is unknown and the call continues until it is settled.
    pub fn is_settling(&self) -> bool {
        matches!(self.state, State::Settling(_))
    }

    /// Returns true if the store has recorded the outcome as unknown.
    pub fn is_recorded_as_unknown(&self) -> bool {
        matches!(&self.state, State::Settling(settling) if !settling.unsaved)
    }

    /// Returns true if the call waits for [`CallEvent::Settled`]: the attempt was given up, and its end can be observed.
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
        self.scored
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

    // ---- 1. refusals without a wait ----

    fn refusal(&mut self, shared: &mut CallMechanisms<'_>, now: Timestamp) -> Option<Box<CallRefusal>> {
        let rest = self.policy.modes.strongest();
        if rest == EnforcementMode::Off {
            return None;
        }
        let late = self.is_late(now).then(|| CallRefusal::by_steadfast(messages::deadline_passed()));
        if let Some(refusal) = self.enforce_or_withhold(rest, late) {
            return Some(Box::new(refusal));
        }
        let invalid = match (self.policy.arguments, &self.request.invalid_arguments) {
            (ArgumentCheck::Enforce, Some(problem)) => {
                Some(CallRefusal::by_steadfast(messages::invalid_arguments(problem)))
            }
            // Without its idempotency key the call might run twice.
            (_, Some(problem)) if self.policy.dedupe.key.is_some() => {
                Some(CallRefusal::by_steadfast(messages::invalid_arguments(problem)))
            }
            (ArgumentCheck::Enforce | ArgumentCheck::Assist | ArgumentCheck::Off, _) => None,
        };
        if let Some(refusal) = self.enforce_or_withhold(rest, invalid) {
            return Some(Box::new(refusal));
        }
        let guard =
            shared.guard.would_refuse(&self.policy.guard, self.guarded(), now).map(|refused| CallRefusal {
                failure: messages::guard(&refused),
                breaker: None,
                by: RefusalOrigin::Guard(refused.layer),
            });
        if let Some(refusal) = self.enforce_or_withhold(self.policy.modes.guard, guard) {
            return Some(Box::new(refusal));
        }
        let breakers = [Some(&*shared.breaker), shared.dependency.as_deref()];
        let refused =
            breakers.into_iter().flatten().find_map(|breaker| breaker.check(&self.policy.breaker, now).err());
        let breaker = refused.map(|refused| self.circuit_open(refused, now));
        if let Some(refusal) = self.enforce_or_withhold(self.policy.modes.breaker, breaker) {
            return Some(Box::new(refusal));
        }
        let trust = match self.need(shared, now) {
            ApprovalNeed::Refuse(refusal) => Some(*refusal),
            ApprovalNeed::NotNeeded | ApprovalNeed::Spend(_) | ApprovalNeed::Ask(_) => None,
        };
        self.enforce_or_withhold(self.policy.modes.trust, trust).map(Box::new)
    }

    fn is_late(&self, now: Timestamp) -> bool {
        self.latest_start().is_some_and(|latest| latest <= now)
    }

    /// Returns the time from which no attempt may start.
    fn latest_start(&self) -> Option<Timestamp> {
        let limits = &self.request.limits;
        [limits.deadline, limits.start_by].into_iter().flatten().min()
    }

    /// Applies a mode to a refusal: enforces it, [reports it](Self::report_withheld) once it is known that there would
    /// have been a run, or drops it.
    fn enforce_or_withhold(
        &mut self,
        mode: EnforcementMode,
        refusal: Option<CallRefusal>,
    ) -> Option<CallRefusal> {
        let refusal = refusal?;
        match mode {
            EnforcementMode::Enforce => Some(refusal),
            EnforcementMode::Shadow => {
                self.withheld.get_or_insert(refusal.failure.code);
                None
            }
            EnforcementMode::Off => None,
        }
    }

    /// Reports the withheld refusal. Only the tool would have answered, so the refusal would have taken effect.
    fn report_withheld(&mut self, notices: &mut Vec<CallNotice>) {
        if let Some(code) = self.withheld.take() {
            self.report_shadow_decision(ShadowDecision::Refused(code), notices);
        }
    }

    /// Applies a mode to a refusal of a run that is about to start: enforces it, reports it, or drops it.
    fn enforce_or_report(
        &mut self,
        mode: EnforcementMode,
        refusal: CallRefusal,
        notices: &mut Vec<CallNotice>,
    ) -> Option<CallRefusal> {
        match mode {
            EnforcementMode::Enforce => Some(refusal),
            EnforcementMode::Shadow => {
                self.report_shadow_decision(ShadowDecision::Refused(refusal.failure.code), notices);
                None
            }
            EnforcementMode::Off => None,
        }
    }

    /// Reports the first decision that would have been different, once per call.
    fn report_shadow_decision(&mut self, shadowed: ShadowDecision, notices: &mut Vec<CallNotice>) {
        if !std::mem::replace(&mut self.shadow_reported, true) {
            notices.push(CallNotice::WouldHave(shadowed));
        }
    }

    fn circuit_open(&self, refused: breaker::BreakerRefusal, now: Timestamp) -> CallRefusal {
        CallRefusal {
            failure: messages::circuit_open(&self.request, refused, now),
            breaker: Some(refused.state),
            by: RefusalOrigin::Steadfast,
        }
    }

    fn standing(&self, shared: &CallMechanisms<'_>, now: Timestamp) -> TrustDecision {
        shared.trust.check(self.trust_rules(), self.subject(), now)
    }

    fn is_blocked(standing: TrustDecision) -> bool {
        matches!(standing, TrustDecision::Blocked(_))
    }

    /// Returns the approval that this call needs.
    fn need(&self, shared: &CallMechanisms<'_>, now: Timestamp) -> ApprovalNeed {
        let standing = self.standing(shared, now);
        if self.policy.approval.when != ApprovalTrigger::Always
            && self.request.danger.is_none()
            && matches!(standing, TrustDecision::Allowed(_))
        {
            return ApprovalNeed::NotNeeded;
        }
        let blocked = matches!(standing, TrustDecision::Blocked(_));
        let wanted = ApprovalSubject {
            tool: &self.request.tool,
            arguments: self.request.digest,
            signature: &self.request.signature,
            session: self.request.session.as_ref(),
            blocked,
        };
        let plan = approval::plan(
            approval::ApprovalInput {
                standing: &standing,
                policy: &self.policy.approval,
                shape: if self.request.danger.is_some() {
                    ArgumentRisk::Dangerous
                } else {
                    ArgumentRisk::Ordinary
                },
                channel: self.request.channel,
                grant: shared.approvals.grant_for(wanted, now),
                deadline: self.latest_start(),
            },
            now,
        );
        let escalation = match (standing, &self.request.danger) {
            (TrustDecision::NeedsApproval(escalation) | TrustDecision::Blocked(escalation), _) => escalation,
            (TrustDecision::Allowed(_), Some(danger)) => Escalation::dangerous(&self.request.tool, danger),
            (TrustDecision::Allowed(_), None) => Escalation::routine(&self.request.tool),
        };
        let ask = |until| Box::new(ApprovalRequest { escalation, operator_only: blocked, until });
        match plan {
            ApprovalPlan::Go => ApprovalNeed::NotNeeded,
            ApprovalPlan::Spend(grant) => ApprovalNeed::Spend(grant),
            ApprovalPlan::Ask { until } => ApprovalNeed::Ask(ask(until)),
            ApprovalPlan::Park | ApprovalPlan::RefuseBlocked => {
                ApprovalNeed::Refuse(Box::new(CallRefusal::trust(&self.request, ask(now))))
            }
        }
    }

    /// Reports to the guard that the call is in flight.
    fn enter(&mut self, shared: &mut CallMechanisms<'_>, now: Timestamp) {
        if self.policy.modes.guard != EnforcementMode::Off && !std::mem::replace(&mut self.entered, true) {
            shared.guard.begin(&self.policy.guard, self.guarded(), now);
        }
    }

    // ---- accessors ----

    fn guarded(&self) -> GuardedCall<'_> {
        GuardedCall { tool: &self.request.tool, arguments: self.request.digest, turn: self.turn.as_ref() }
    }

    fn subject(&self) -> TrustSubject<'_> {
        TrustSubject {
            tool: &self.request.tool,
            signature: &self.request.signature,
            domain: self.request.domain.as_ref(),
        }
    }

    fn trust_rules(&self) -> TrustRules<'_> {
        TrustRules { signature: &self.policy.trust, domain: self.policy.domain_trust.as_ref() }
    }
}

impl CallRefusal {
    fn by_steadfast(failure: CallFailure) -> Self {
        Self { failure, breaker: None, by: RefusalOrigin::Steadfast }
    }

    fn trust(request: &CallRequest, ask: Box<ApprovalRequest>) -> Self {
        Self { failure: messages::approval(request, &ask), breaker: None, by: RefusalOrigin::Trust(ask) }
    }
}

impl State {
    fn name(&self) -> &'static str {
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

#[cfg(test)]
mod tests;
