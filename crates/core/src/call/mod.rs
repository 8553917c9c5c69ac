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
//! ([`Event::Ran`]), `heartbeat` ([`Event::Progressed`]), `cancel` ([`Event::Cancelled`]).

mod ask;
mod attempt;
mod claim;
mod failed;
mod finish;
mod intake;
mod leave;
mod notice;
mod outcome;
mod request;
mod say;
mod settle;
mod step;

use std::sync::Arc;

pub use intake::Intake;
pub use notice::{BreakerScope, FailedAttempt, Notice, Shadowed};
pub use request::{
    AttemptEnd, CallId, Duplicates, EqualCalls, Hints, KeysOf, Request, RunBy, SentKey, Waits,
};
pub use step::{
    Approval, Ask, CallResult, Cut, Event, Kept, Others, Outcome, Provenance, Recorded, Retried, Run, Stage,
    Step, StoreFault, ToldUnknown, Upstream, Wake,
};

use crate::Timestamp;
use crate::approval::{self, Approvals, GrantId, Plan, Shape, Wanted};
use crate::breaker::{self, Breaker, Ticket};
use crate::classify::{Classified, Severity};
use crate::code::Code;
use crate::dedupe::{
    Address, AttemptFact, Claim, ClaimVerdict, Ending, Failure, Found, Intent, Known, Owner, Record, Release,
    RenewVerdict, Role, StartVerdict, decide_claim,
};
use crate::guard::{GuardedCall, LoopGuard};
use crate::id::TurnId;
use crate::key::Key;
use crate::limit::Limiter;
use crate::output::Output;
use crate::policy::{AfterUnknown, ArgumentCheck, AskWhen, Mode, OnStoreFailure, Policy, ToolClass};
use crate::rehearse::AttemptOutcome;
use crate::retry::{RetryBudget, Schedule};
use crate::stats;
use crate::trust::{Escalation, Rules, Standing, Subject, TrustLedger};
use crate::watchdog::Watchdog;
use settle::Settling;

/// State machines that calls share. The driver lends them for the length of one step.
#[derive(Debug)]
pub struct Shared<'a> {
    /// Circuit breaker of the tool.
    pub breaker: &'a mut Breaker,
    /// Circuit breaker of the dependency, if the caller asked for one.
    pub dependency: Option<&'a mut Breaker>,
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
    pub approvals: &'a Approvals,
}

/// An event that does not belong to the current state. The state machine is unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misuse {
    /// Name of the state.
    pub state: &'static str,
    /// Name of the event.
    pub event: &'static str,
}

impl std::fmt::Display for Misuse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "event {} is not valid in state {}: the driver answered a step that the call did not return",
            self.event, self.state
        )
    }
}

impl std::error::Error for Misuse {}

/// The state machine of one call.
#[derive(Debug)]
pub struct Call {
    request: Request,
    policy: Arc<Policy>,
    seed: u64,
    arrived: Timestamp,
    /// Turn of the call, as far as the guard knows it.
    turn: Option<TurnId>,
    retry_safe: bool,
    /// Number of claims made so far. It numbers the owner tokens.
    claims: u32,
    /// The grant that was spent for the call, and the owner that spent it.
    spent: Option<(GrantId, Owner)>,
    /// True if the approval was for a blocked tool.
    approved_blocked: bool,
    /// The record that this call claimed.
    record: Option<Arc<Record>>,
    /// Claims that may have been written although no answer came. They are released when the call ends.
    claims_in_doubt: Vec<Owner>,
    /// State of the claim in the store.
    store: StoreSight,
    /// Time at which the lease may have expired, by the local clock. It counts from when the store was asked.
    lease_until: Timestamp,
    schedule: Option<Schedule>,
    first_attempt: Option<Timestamp>,
    /// Time since which the outcome is unknown.
    settling_since: Option<Timestamp>,
    attempts: u32,
    facts: Vec<AttemptFact>,
    /// Outcomes of the attempts, for a later replay of the call.
    outcomes: Vec<AttemptOutcome>,
    retries: Vec<Retried>,
    /// Classification of the last failed attempt, and its failure.
    last: Option<(Classified, Failure)>,
    /// Error details of the last attempt; `None` if it succeeded.
    trouble: Option<failed::LastTrouble>,
    /// Severity of the failure that the call ended with, if it ran.
    severity: Option<Severity>,
    caller: Caller,
    /// True if the guard knows that the call is in flight.
    entered: bool,
    /// True if trust and guard have counted this call.
    judged: bool,
    /// Outcome for the scores of the tool, if the call counts for them.
    scored: Option<stats::Outcome>,
    /// True if a refusal was pending when the call arrived. The check is repeated before a run.
    held_back: bool,
    /// Code of the refusal that shadow mode did not enforce, until it is known whether the call would have run.
    withheld: Option<Code>,
    shadow_told: bool,
    state: State,
}

/// State of the claim in the store, as this call knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreSight {
    /// The store has the claim, or was not asked for one.
    Fine,
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
enum Caller {
    Waiting,
    /// The caller was answered or has disconnected. The run continues for the record.
    Gone,
    /// The caller has cancelled, and the tool was asked to stop. The attempt may still answer, but no new one starts.
    GaveUp,
}

#[derive(Debug)]
enum State {
    Looking {
        refusal: Box<Refusal>,
    },
    Claiming {
        role: Role,
        repeats: u32,
    },
    Following {
        record: Key,
    },
    AwaitingEnd {
        record: Key,
        look_at: Timestamp,
    },
    AwaitingApproval {
        ask: Box<Ask>,
    },
    /// The claim is being released, to be made again.
    GivingBack,
    Spending,
    Starting,
    Probing {
        scope: BreakerScope,
        tickets: Tickets,
    },
    Attempting(Attempt),
    BackingOff {
        until: Timestamp,
    },
    Renewing,
    Marking(Box<Settling>),
    Settling(Box<Settling>),
    Saving {
        result: Box<CallResult>,
        ending: Ending,
    },
    Releasing {
        result: Box<CallResult>,
        kept: Vec<Kept>,
    },
    Finished,
}

/// An attempt in flight.
#[derive(Debug)]
struct Attempt {
    number: u32,
    started: Timestamp,
    watchdog: Option<Watchdog>,
    deadline: Option<Timestamp>,
    tickets: Tickets,
    /// The cut that was requested.
    cut: Option<Cut>,
}

/// Permits that breakers and limiters gave out for an attempt.
#[derive(Debug, Default)]
struct Tickets {
    tool: Option<Ticket>,
    dependency: Option<Ticket>,
    places: Places,
}

/// State of the attempt's concurrency permits, which have to be returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Places {
    #[default]
    NotAsked,
    Taken,
}

impl Attempt {
    /// Returns its concurrency permits.
    fn leave_places(&mut self, shared: &mut Shared<'_>) {
        if std::mem::take(&mut self.tickets.places) == Places::Taken {
            shared.limiter.leave();
            shared.dependency_limiter.leave();
        }
    }

    fn has_places(&self) -> bool {
        self.tickets.places == Places::Taken
    }
}

/// A refusal that has not been returned yet.
#[derive(Clone, Debug)]
struct Refusal {
    failure: Failure,
    breaker: Option<breaker::State>,
    by: RefusedBy,
}

#[derive(Clone, Debug)]
enum RefusedBy {
    /// A refusal that no mechanism counts.
    Us,
    /// The guard, which counts its own refusals.
    Guard(crate::guard::Layer),
    /// Trust: the request is kept for an operator.
    Trust(Box<Ask>),
}

/// The approval that a call needs.
#[derive(Clone, Debug)]
enum Need {
    Nobody,
    Spend(GrantId),
    Ask(Box<Ask>),
    Refuse(Box<Refusal>),
}

/// Number of repeats of a claim without answer before the call treats the store as unavailable.
const CLAIM_REPEATS: u32 = 2;

impl Call {
    /// Starts a call. `seed` decides its jitter and nothing else.
    pub fn begin(
        shared: &mut Shared<'_>,
        mut request: Request,
        policy: Arc<Policy>,
        seed: u64,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> (Self, Step) {
        notices.push(Notice::CallStarted { at: now });
        // Decided once: a call does not change its turn because another call arrived.
        let turn = match request.turn.clone() {
            None if policy.modes.guard != Mode::Off => {
                request.trace.take().filter(|trace| shared.guard.is_turn(trace))
            }
            known => known,
        };
        if !policy.modes.leave_alone() {
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
            store: StoreSight::Fine,
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
            caller: Caller::Waiting,
            entered: false,
            judged: false,
            scored: None,
            held_back: false,
            withheld: None,
            shadow_told: false,
            state: State::Finished,
        };
        let step = match call.refusal(shared, now) {
            Some(refusal) if call.dedupe() == Mode::Enforce => {
                call.state = State::Looking { refusal };
                call.claim_step(Intent::Look, Role::Fresh, now)
            }
            Some(refusal) => call.refuse(shared, *refusal, now, notices),
            None => {
                call.enter(shared, now);
                call.claim_or_go(shared, Role::Fresh, now, notices)
            }
        };
        (call, step)
    }

    /// Processes an event and returns the next step.
    pub fn on(
        &mut self,
        shared: &mut Shared<'_>,
        now: Timestamp,
        event: Event,
        notices: &mut Vec<Notice>,
    ) -> Result<Step, Misuse> {
        match (std::mem::replace(&mut self.state, State::Finished), event) {
            (State::Looking { refusal }, Event::Claimed(verdict)) => Ok(match verdict {
                ClaimVerdict::Nothing
                | ClaimVerdict::Mine(_)
                | ClaimVerdict::Full
                | ClaimVerdict::Closed
                | ClaimVerdict::RecordsLost => self.refuse(shared, *refusal, now, notices),
                verdict @ (ClaimVerdict::Follow(_)
                | ClaimVerdict::Busy
                | ClaimVerdict::Replay(_)
                | ClaimVerdict::Unknown(_)
                | ClaimVerdict::Conflict) => {
                    self.held_back = true;
                    self.enter(shared, now);
                    self.found(shared, verdict, now, notices)
                }
            }),
            (State::Looking { refusal }, Event::StoreFailed(_)) => {
                if self.is_explicit() {
                    notices.push(Notice::StoreFailed { goes_on: false });
                }
                self.store = StoreSight::Down;
                Ok(self.refuse(shared, *refusal, now, notices))
            }

            (State::Claiming { .. }, Event::Claimed(verdict)) => {
                Ok(self.found(shared, verdict, now, notices))
            }
            (State::Claiming { role, repeats }, Event::StoreFailed(fault)) => {
                if fault == StoreFault::Unanswered {
                    self.doubt_claim();
                }
                Ok(self.claim_failed(shared, role, repeats, now, notices))
            }

            (State::Following { record }, Event::Woke(wake)) => {
                Ok(self.woke_following(shared, record, wake, now, notices))
            }

            // If no time is left, the caller gets a response that says that the earlier call has not ended.
            (State::AwaitingEnd { record, .. }, Event::Woke(Wake::Time)) => {
                Ok(self.woke_following(shared, record, Wake::Changed, now, notices))
            }
            (State::AwaitingEnd { record, .. }, Event::Woke(wake)) => {
                Ok(self.woke_following(shared, record, wake, now, notices))
            }

            (State::AwaitingApproval { ask }, Event::Answered(answer)) => {
                Ok(self.answered(shared, *ask, answer, now, notices))
            }
            (State::AwaitingApproval { ask }, Event::Woke(_)) if now >= ask.until => {
                Ok(self.answered(shared, *ask, Approval::Nobody, now, notices))
            }
            (state @ State::AwaitingApproval { .. }, Event::Woke(_)) => Ok(self.stay(state)),

            (State::GivingBack, Event::Released) => Ok(self.claim_or_go(shared, Role::Fresh, now, notices)),
            (State::Spending, Event::Spent(spend)) if spend.may_run() => {
                Ok(self.start_or_go(shared, now, notices))
            }
            (State::Spending, Event::Spent(_)) => {
                self.spent = None;
                Ok(self.lost_the_grant(shared, now, notices))
            }
            (State::Starting, Event::Started(StartVerdict::Started)) => {
                Ok(self.started(shared, now, notices))
            }
            (State::Starting, Event::Started(StartVerdict::Lost)) => Ok(self.look_again(now)),
            // In shadow mode the record protects nothing.
            (State::Starting, Event::StoreFailed(_)) if self.dedupe() == Mode::Shadow => {
                if !self.goes_on_without_store() {
                    self.shadow(Shadowed::Refused(Code::StoreUnavailable), notices);
                }
                Ok(self.attempt(shared, now, notices))
            }
            (State::Starting, Event::StoreFailed(_)) if self.goes_on_without_store() => {
                notices.push(Notice::StoreFailed { goes_on: true });
                self.store = StoreSight::Down;
                Ok(self.attempt(shared, now, notices))
            }
            (State::GivingBack, Event::StoreFailed(_)) => {
                notices.push(Notice::StoreFailed { goes_on: false });
                let result = self.failed(say::store_unavailable(&self.request), now);
                let result = self.judge(shared, result, now, notices);
                self.doubt_claim();
                Ok(self.finish(result, Vec::new(), now, notices))
            }
            (State::Spending | State::Starting, Event::StoreFailed(_)) => {
                notices.push(Notice::StoreFailed { goes_on: false });
                let refusal = Refusal::us(say::store_unavailable(&self.request));
                Ok(self.refuse(shared, refusal, now, notices))
            }

            (State::Probing { scope, tickets }, Event::Probed) => {
                tickets.agreed(scope, shared);
                Ok(self.probed(shared, scope, tickets, now, notices))
            }
            // If the store is unavailable, each process probes for itself.
            (State::Probing { scope, tickets }, Event::StoreFailed(_)) => {
                Ok(self.probed(shared, scope, tickets, now, notices))
            }

            (State::Attempting(attempt), Event::Ran(outcome)) => {
                Ok(self.ran(shared, attempt, outcome, now, notices))
            }
            (State::Attempting(attempt), Event::Progressed) => {
                Ok(self.progressed(shared, attempt, now, notices))
            }
            (State::Attempting(attempt), Event::Woke(_)) => {
                Ok(self.time_is_up(shared, attempt, now, notices))
            }

            (State::BackingOff { until }, Event::Woke(_)) if now >= until => {
                Ok(self.attempt(shared, now, notices))
            }
            (state @ State::BackingOff { .. }, Event::Woke(_)) => Ok(self.stay(state)),
            (State::Renewing, Event::Renewed { owner, sent, verdict }) if self.owns(&owner) => {
                self.renewed(verdict, sent.min(now), notices);
                Ok(self.attempt(shared, now, notices))
            }
            (State::Renewing, Event::StoreFailed(_)) if self.dedupe() == Mode::Shadow => {
                // A shadow record blocks nothing.
                self.record = None;
                Ok(self.attempt(shared, now, notices))
            }
            (State::Renewing, Event::StoreFailed(_)) => {
                // Without a renewal, the call cannot know that it still owns the record.
                notices.push(Notice::StoreFailed { goes_on: false });
                Ok(self.give_up(shared, now, notices))
            }

            (State::Marking(settling), Event::Saved(verdict)) => {
                Ok(self.mark_saved(shared, settling, verdict, now, notices))
            }
            (State::Marking(settling), Event::StoreFailed(_)) => {
                Ok(self.mark_failed(shared, settling, now, notices))
            }
            (State::Settling(settling), Event::Ran(outcome)) => {
                Ok(self.ran_late(shared, settling, outcome, now, notices))
            }
            (State::Settling(settling), Event::Settled) => {
                Ok(self.end_was_seen(shared, settling, now, notices))
            }
            (State::Settling(settling), Event::Woke(_)) => Ok(self.marked(shared, settling, now, notices)),
            (State::Settling(settling), Event::DriverEnds) => {
                Ok(self.driver_ends(shared, settling, now, notices))
            }
            // The result of an attempt that ended by itself decides how it counts.
            (state @ (State::Attempting(_) | State::Saving { .. }), Event::Settled) => Ok(self.stay(state)),

            (State::Saving { result, .. }, Event::Saved(verdict)) => {
                Ok(self.saved(result, verdict, now, notices))
            }
            (State::Saving { result, ending }, Event::StoreFailed(_)) => {
                notices.push(Notice::StoreFailed { goes_on: true });
                let kept = self.save_of(ending).map(Kept::Save);
                let result = CallResult { recorded: Recorded::No, receipt: None, ..*result };
                Ok(self.finish(result, kept.into_iter().collect(), now, notices))
            }
            (State::Releasing { result, kept }, Event::Released) => {
                Ok(self.finish(result, kept, now, notices))
            }
            (State::Releasing { result, mut kept }, Event::StoreFailed(_)) => {
                kept.extend(self.kept_release());
                Ok(self.finish(result, kept, now, notices))
            }

            (state, Event::Cancelled(others)) if !matches!(state, State::Finished) => {
                Ok(self.cancelled(shared, state, others, now, notices))
            }
            (state, Event::Disconnected(others)) if !matches!(state, State::Finished) => {
                Ok(self.disconnected(shared, state, others, now, notices))
            }
            // The lease can be renewed at any time while the call is open; a progress event may be late.
            (
                state @ (State::Saving { .. }
                | State::Releasing { .. }
                | State::Marking(_)
                | State::Settling(_)),
                Event::Renewed { .. },
            ) => Ok(self.stay(state)),
            (state, Event::Renewed { owner, sent, verdict }) if !matches!(state, State::Finished) => {
                if self.owns(&owner) {
                    self.renewed(verdict, sent.min(now), notices);
                }
                Ok(self.stay(state))
            }
            (state, Event::Progressed) if !matches!(state, State::Finished) => Ok(self.stay(state)),
            // A timer that fires late, or a record that changes once more, is not a misuse by the driver.
            (state, Event::Woke(_)) if !matches!(state, State::Finished) => Ok(self.stay(state)),

            (state, event) => {
                let misuse = Misuse { state: state.name(), event: event.name() };
                self.state = state;
                Err(misuse)
            }
        }
    }

    /// Returns the time at which the machine needs [`Event::Woke`] if no other event comes before.
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

    /// Returns true if the call waits for [`Event::Settled`]: the attempt was given up, and its end can be observed.
    pub fn awaits_end(&self) -> bool {
        let State::Settling(settling) = &self.state else { return false };
        settling.by.is_none() && self.request.end == AttemptEnd::Seen
    }

    /// Returns the record that this call owns and has to renew while it is open.
    ///
    /// A record that is being saved or released is no longer renewed. The driver sends a save or release only after the
    /// last renewal was answered or is void: if the store was emptied, a late renewal would restore a record that has
    /// ended.
    pub fn record(&self) -> Option<&Record> {
        let ends = matches!(
            self.state,
            State::Saving { .. } | State::Releasing { .. } | State::Marking(_) | State::Settling(_)
        );
        self.record.as_deref().filter(|_| self.store == StoreSight::Fine && !ends)
    }

    /// Returns the record that carries this run, even if the store does not have it yet.
    pub fn claimed(&self) -> Option<&Record> {
        self.record.as_deref()
    }

    /// Returns the request of the call.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Returns the policy that the call follows.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the outcome for the scores of its tool and model; `None` if the call says nothing about them.
    pub fn scored(&self) -> Option<stats::Outcome> {
        self.scored
    }

    /// Returns the shared policy, for callers that store it.
    pub fn shared_policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// Returns the last attempts, as the record stores them.
    pub fn attempts(&self) -> &[AttemptFact] {
        &self.facts
    }

    /// Returns the outcomes of the first attempts, with everything that decisions were based on.
    pub fn outcomes(&self) -> &[AttemptOutcome] {
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

    fn refusal(&mut self, shared: &mut Shared<'_>, now: Timestamp) -> Option<Box<Refusal>> {
        let rest = self.policy.modes.furthest();
        if rest == Mode::Off {
            return None;
        }
        let late = self.is_late(now).then(|| Refusal::us(say::deadline_passed()));
        if let Some(refusal) = self.or_withheld(rest, late) {
            return Some(Box::new(refusal));
        }
        let invalid = match (self.policy.arguments, &self.request.invalid_arguments) {
            (ArgumentCheck::Enforce, Some(problem)) => Some(Refusal::us(say::invalid_arguments(problem))),
            // Without its idempotency key the call might run twice.
            (_, Some(problem)) if self.policy.dedupe.key.is_some() => {
                Some(Refusal::us(say::invalid_arguments(problem)))
            }
            (ArgumentCheck::Enforce | ArgumentCheck::Assist | ArgumentCheck::Off, _) => None,
        };
        if let Some(refusal) = self.or_withheld(rest, invalid) {
            return Some(Box::new(refusal));
        }
        let guard = shared.guard.would_refuse(&self.policy.guard, self.guarded(), now).map(|refused| {
            Refusal { failure: say::guard(&refused), breaker: None, by: RefusedBy::Guard(refused.layer) }
        });
        if let Some(refusal) = self.or_withheld(self.policy.modes.guard, guard) {
            return Some(Box::new(refusal));
        }
        let breakers = [Some(&*shared.breaker), shared.dependency.as_deref()];
        let refused =
            breakers.into_iter().flatten().find_map(|breaker| breaker.check(&self.policy.breaker, now).err());
        let breaker = refused.map(|refused| self.circuit_open(refused, now));
        if let Some(refusal) = self.or_withheld(self.policy.modes.breaker, breaker) {
            return Some(Box::new(refusal));
        }
        let trust = match self.need(shared, now) {
            Need::Refuse(refusal) => Some(*refusal),
            Need::Nobody | Need::Spend(_) | Need::Ask(_) => None,
        };
        self.or_withheld(self.policy.modes.trust, trust).map(Box::new)
    }

    fn is_late(&self, now: Timestamp) -> bool {
        self.latest_start().is_some_and(|latest| latest <= now)
    }

    /// Returns the time from which no attempt may start.
    fn latest_start(&self) -> Option<Timestamp> {
        let limits = &self.request.limits;
        [limits.deadline, limits.start_by].into_iter().flatten().min()
    }

    /// Applies a mode to a refusal: enforces it, [reports it](Self::tell_withheld) once it is known that there would
    /// have been a run, or drops it.
    fn or_withheld(&mut self, mode: Mode, refusal: Option<Refusal>) -> Option<Refusal> {
        let refusal = refusal?;
        match mode {
            Mode::Enforce => Some(refusal),
            Mode::Shadow => {
                self.withheld.get_or_insert(refusal.failure.code);
                None
            }
            Mode::Off => None,
        }
    }

    /// Reports the withheld refusal. Only the tool would have answered, so the refusal would have taken effect.
    fn tell_withheld(&mut self, notices: &mut Vec<Notice>) {
        if let Some(code) = self.withheld.take() {
            self.shadow(Shadowed::Refused(code), notices);
        }
    }

    /// Applies a mode to a refusal of a run that is about to start: enforces it, reports it, or drops it.
    fn or_told(&mut self, mode: Mode, refusal: Refusal, notices: &mut Vec<Notice>) -> Option<Refusal> {
        match mode {
            Mode::Enforce => Some(refusal),
            Mode::Shadow => {
                self.shadow(Shadowed::Refused(refusal.failure.code), notices);
                None
            }
            Mode::Off => None,
        }
    }

    /// Reports the first decision that would have been different, once per call.
    fn shadow(&mut self, shadowed: Shadowed, notices: &mut Vec<Notice>) {
        if !std::mem::replace(&mut self.shadow_told, true) {
            notices.push(Notice::WouldHave(shadowed));
        }
    }

    fn circuit_open(&self, refused: breaker::Refused, now: Timestamp) -> Refusal {
        Refusal {
            failure: say::circuit_open(&self.request, refused, now),
            breaker: Some(refused.state),
            by: RefusedBy::Us,
        }
    }

    fn standing(&self, shared: &Shared<'_>, now: Timestamp) -> Standing {
        shared.trust.standing(self.trust_rules(), self.subject(), now)
    }

    fn is_blocked(standing: Standing) -> bool {
        matches!(standing, Standing::Blocked(_))
    }

    /// Returns the approval that this call needs.
    fn need(&self, shared: &Shared<'_>, now: Timestamp) -> Need {
        let standing = self.standing(shared, now);
        if self.policy.approval.when != AskWhen::Always
            && self.request.danger.is_none()
            && matches!(standing, Standing::Free(_))
        {
            return Need::Nobody;
        }
        let blocked = matches!(standing, Standing::Blocked(_));
        let wanted = Wanted {
            tool: &self.request.tool,
            arguments: self.request.digest,
            signature: &self.request.signature,
            session: self.request.session.as_ref(),
            blocked,
        };
        let plan = approval::plan(
            approval::Situation {
                standing: &standing,
                policy: &self.policy.approval,
                shape: if self.request.danger.is_some() { Shape::Dangerous } else { Shape::Ordinary },
                channel: self.request.channel,
                grant: shared.approvals.grant_for(wanted, now),
                deadline: self.latest_start(),
            },
            now,
        );
        let escalation = match (standing, &self.request.danger) {
            (Standing::Ask(escalation) | Standing::Blocked(escalation), _) => escalation,
            (Standing::Free(_), Some(danger)) => Escalation::dangerous(&self.request.tool, danger),
            (Standing::Free(_), None) => Escalation::routine(&self.request.tool),
        };
        let ask = |until| Box::new(Ask { escalation, operator_only: blocked, until });
        match plan {
            Plan::Go => Need::Nobody,
            Plan::Spend(grant) => Need::Spend(grant),
            Plan::Ask { until } => Need::Ask(ask(until)),
            Plan::Park | Plan::RefuseBlocked => {
                Need::Refuse(Box::new(Refusal::trust(&self.request, ask(now))))
            }
        }
    }

    /// Reports to the guard that the call is in flight.
    fn enter(&mut self, shared: &mut Shared<'_>, now: Timestamp) {
        if self.policy.modes.guard != Mode::Off && !std::mem::replace(&mut self.entered, true) {
            shared.guard.begin(&self.policy.guard, self.guarded(), now);
        }
    }

    // ---- accessors ----

    fn guarded(&self) -> GuardedCall<'_> {
        GuardedCall { tool: &self.request.tool, arguments: self.request.digest, turn: self.turn.as_ref() }
    }

    fn subject(&self) -> Subject<'_> {
        Subject {
            tool: &self.request.tool,
            signature: &self.request.signature,
            domain: self.request.domain.as_ref(),
        }
    }

    fn trust_rules(&self) -> Rules<'_> {
        Rules { signature: &self.policy.trust, domain: self.policy.domain_trust.as_ref() }
    }
}

impl Refusal {
    fn us(failure: Failure) -> Self {
        Self { failure, breaker: None, by: RefusedBy::Us }
    }

    fn trust(request: &Request, ask: Box<Ask>) -> Self {
        Self { failure: say::approval(request, &ask), breaker: None, by: RefusedBy::Trust(ask) }
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
