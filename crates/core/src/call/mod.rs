//! The one path of a call: an event in, one step out, notices beside.
//!
//! The order is part of the promise, and it stands in this module, each stage with the reason for its place:
//!
//! 1. **Refusals that need no wait** (deadline, arguments, guard, breaker, trust). Before refusing, the key is
//!    looked up: a finished answer is still an answer, and a call in flight is still followed. Nothing is
//!    taken on this way.
//! 2. **Claim**, so that everything after it happens once.
//! 3. **Ask** a person, if needed. After the claim, so that duplicates wait for one answer.
//! 4. **Admission**: limits and breaker, before every attempt.
//! 5. **Attempt**, bounded in time.
//! 6. **Classify**, and record into the breaker: each attempt counts.
//! 7. **Retry or stop.**
//! 8. **Save** under the fence, or release. Trust and guard count the finished call, once. An outcome that is not known
//!    goes the way of `settle.rs`, and who finds one waits for its end (`AwaitingEnd`) where it has the time.
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

/// The small machines that calls share. The driver lends them for the length of one step.
#[derive(Debug)]
pub struct Shared<'a> {
    /// The tool's own breaker.
    pub breaker: &'a mut Breaker,
    /// The coarser one, where the caller asked for it.
    pub dependency: Option<&'a mut Breaker>,
    /// The retries of this dependency.
    pub budget: &'a mut RetryBudget,
    /// The limits of this tool.
    pub limiter: &'a mut Limiter,
    /// The limits of everything on this dependency.
    pub dependency_limiter: &'a mut Limiter,
    /// The guard of this session.
    pub guard: &'a mut LoopGuard,
    /// The trust of this tenant.
    pub trust: &'a mut TrustLedger,
    /// The approvals of this tenant.
    pub approvals: &'a Approvals,
}

/// An event that does not belong to the state; the machine is left as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misuse {
    /// The state.
    pub state: &'static str,
    /// The event.
    pub event: &'static str,
}

impl std::fmt::Display for Misuse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the event {} does not belong to the state {}: the driver answered a step that it was not given",
            self.event, self.state
        )
    }
}

impl std::error::Error for Misuse {}

/// One call on its way.
#[derive(Debug)]
pub struct Call {
    request: Request,
    policy: Arc<Policy>,
    seed: u64,
    arrived: Timestamp,
    /// The turn, as far as the guard knows.
    turn: Option<TurnId>,
    retry_safe: bool,
    /// Claims made so far; numbers the owner tokens.
    claims: u32,
    /// The grant that was spent for it, and in whose name.
    spent: Option<(GrantId, Owner)>,
    /// Whether what was approved was a call of a blocked tool.
    approved_blocked: bool,
    /// The record that is ours, as we claimed it.
    record: Option<Arc<Record>>,
    /// Claims that may have been written without our knowing. They are given back when the call ends.
    claims_in_doubt: Vec<Owner>,
    /// Whether the store has the claim.
    store: StoreSight,
    /// When a holder that nobody heard of may count as gone, by our own clock: counted from when the store was asked.
    lease_until: Timestamp,
    schedule: Option<Schedule>,
    first_attempt: Option<Timestamp>,
    /// Since when its outcome is unknown.
    settling_since: Option<Timestamp>,
    attempts: u32,
    facts: Vec<AttemptFact>,
    /// How they ended, for whoever replays the call one day.
    outcomes: Vec<AttemptOutcome>,
    retries: Vec<Retried>,
    /// Why the last attempt failed.
    last: Option<(Classified, Failure)>,
    /// What its tool said; nothing if it worked.
    trouble: Option<failed::LastTrouble>,
    /// How bad the failure is that the call ended with, if it ran.
    severity: Option<Severity>,
    caller: Caller,
    /// Whether the guard knows that the call is under way.
    entered: bool,
    /// Whether trust and guard have counted this call.
    judged: bool,
    /// How it counts for the scores of its tool, if it does.
    scored: Option<stats::Outcome>,
    /// Whether something spoke against a run when the call came; it is asked again before a run.
    held_back: bool,
    /// The refusal that shadow mode did not carry out, until it is known whether there is a run to speak against.
    withheld: Option<Code>,
    shadow_told: bool,
    state: State,
}

/// How things stand between the call and the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreSight {
    /// It knows of the call, or was not asked to.
    Fine,
    /// It is down; the call goes on without it.
    Down,
    /// It has declared the outcome unknown, because we were silent for too long. Our answer still counts, but
    /// others were told: nothing more may be started.
    MarkedUnknown,
    /// The record is another's: nothing more may be started in its name.
    FenceLost,
}

/// Whether somebody waits for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    Waiting,
    /// It was answered, or is gone; the run goes on for the record.
    Gone,
    /// It has given up, and the tool was told to stop: the attempt may still answer, but nothing more is started.
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
    /// A claim is given back, to be made anew.
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

/// An attempt that runs.
#[derive(Debug)]
struct Attempt {
    number: u32,
    started: Timestamp,
    watchdog: Option<Watchdog>,
    deadline: Option<Timestamp>,
    tickets: Tickets,
    /// The cut that was asked for.
    cut: Option<Cut>,
}

/// What breakers and limiters gave out for an attempt.
#[derive(Debug, Default)]
struct Tickets {
    tool: Option<Ticket>,
    dependency: Option<Ticket>,
    places: Places,
}

/// Whether an attempt has a place among those that run at once, to be given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Places {
    #[default]
    NotAsked,
    Taken,
}

impl Attempt {
    /// Gives back its places among the calls that may run at once.
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

/// A refusal in the making.
#[derive(Clone, Debug)]
struct Refusal {
    failure: Failure,
    breaker: Option<breaker::State>,
    by: RefusedBy,
}

#[derive(Clone, Debug)]
enum RefusedBy {
    /// Something that nobody counts.
    Us,
    /// The guard, which counts its own refusals.
    Guard(crate::guard::Layer),
    /// Trust: the request is kept for an operator.
    Trust(Box<Ask>),
}

/// What a person has to do with a call.
#[derive(Clone, Debug)]
enum Need {
    Nobody,
    Spend(GrantId),
    Ask(Box<Ask>),
    Refuse(Box<Refusal>),
}

/// How often a claim without answer is repeated before the call gives up on the store.
const CLAIM_REPEATS: u32 = 2;

impl Call {
    /// A call comes in. `seed` decides its jitter and nothing else.
    pub fn begin(
        shared: &mut Shared<'_>,
        mut request: Request,
        policy: Arc<Policy>,
        seed: u64,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> (Self, Step) {
        notices.push(Notice::CallStarted { at: now });
        // Decided once: a call does not change its turn because another one came.
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

    /// Something happened; what to do next.
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

            // Whoever has no time left is told that it is not over yet.
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
            // In shadow the record is nobody's protection.
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
            // Where the store cannot be asked, each finds out for itself.
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
                // A shadow record holds nothing up.
                self.record = None;
                Ok(self.attempt(shared, now, notices))
            }
            (State::Renewing, Event::StoreFailed(_)) => {
                // Whoever cannot renew cannot know that the record is still its own.
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
            // What ended by itself is judged by what it said.
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
            // A renewal is made at any time while the call is open; a sign of life may be late.
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
            // A timer that fires late, or a record that changes once more, is no mistake of the driver.
            (state, Event::Woke(_)) if !matches!(state, State::Finished) => Ok(self.stay(state)),

            (state, event) => {
                let misuse = Misuse { state: state.name(), event: event.name() };
                self.state = state;
                Err(misuse)
            }
        }
    }

    /// When the machine wants [`Event::Woke`], if nothing else happens before.
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

    /// Whether the outcome is unknown, and the call goes on until that is settled.
    pub fn is_settling(&self) -> bool {
        matches!(self.state, State::Settling(_))
    }

    /// Whether the record says so.
    pub fn is_recorded_as_unknown(&self) -> bool {
        matches!(&self.state, State::Settling(settling) if !settling.unsaved)
    }

    /// Whether [`Event::Settled`] is waited for: the attempt was given up, and its end can be seen.
    pub fn awaits_end(&self) -> bool {
        let State::Settling(settling) = &self.state else { return false };
        settling.by.is_none() && self.request.end == AttemptEnd::Seen
    }

    /// The record that is ours and has to be renewed while the call is open. What is being saved or given back
    /// is not renewed any more, and a save or release is not sent before the last renewal is answered or void: after
    /// an emptied store, a renewal that comes too late would bring back what is over.
    pub fn record(&self) -> Option<&Record> {
        let ends = matches!(
            self.state,
            State::Saving { .. } | State::Releasing { .. } | State::Marking(_) | State::Settling(_)
        );
        self.record.as_deref().filter(|_| self.store == StoreSight::Fine && !ends)
    }

    /// The record that carries this run, also where the store does not have it yet.
    pub fn claimed(&self) -> Option<&Record> {
        self.record.as_deref()
    }

    /// What was asked for.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// By which policy it is decided.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// How it counts for the scores of its tool and its model; nothing as long as it says nothing about them.
    pub fn scored(&self) -> Option<stats::Outcome> {
        self.scored
    }

    /// The policy, for whoever keeps it.
    pub fn shared_policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// The last attempts that were made, as the record remembers them.
    pub fn attempts(&self) -> &[AttemptFact] {
        &self.facts
    }

    /// How the first attempts ended: as far as anything was decided by it.
    pub fn outcomes(&self) -> &[AttemptOutcome] {
        &self.outcomes
    }

    /// What decided its jitter.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// When it came.
    pub fn arrived(&self) -> Timestamp {
        self.arrived
    }

    /// The name of the state, for logs and tests.
    pub fn state(&self) -> &'static str {
        self.state.name()
    }

    /// Whether the call is over.
    pub fn is_finished(&self) -> bool {
        matches!(self.state, State::Finished)
    }

    // ---- 1. refusals that need no wait ----

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
            // Without its key the call might run twice.
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

    /// From when on no attempt may start.
    fn latest_start(&self) -> Option<Timestamp> {
        let limits = &self.request.limits;
        [limits.deadline, limits.start_by].into_iter().flatten().min()
    }

    /// A refusal under its mode: carried out, told [once it is known](Self::tell_withheld) that there is a run, or not made
    /// at all.
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

    /// Nothing but the tool would have answered, so that a refusal would have counted.
    fn tell_withheld(&mut self, notices: &mut Vec<Notice>) {
        if let Some(code) = self.withheld.take() {
            self.shadow(Shadowed::Refused(code), notices);
        }
    }

    /// A refusal of a run that is about to begin, under its mode: carried out, told, or not made at all.
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

    /// Tells the first decision that would have differed, once per call.
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

    /// What a person has to do with this call.
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

    /// The guard learns that the call is under way.
    fn enter(&mut self, shared: &mut Shared<'_>, now: Timestamp) {
        if self.policy.modes.guard != Mode::Off && !std::mem::replace(&mut self.entered, true) {
            shared.guard.begin(&self.policy.guard, self.guarded(), now);
        }
    }

    // ---- small views ----

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
