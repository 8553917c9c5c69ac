//! What a call has to do next, worked out from the path of a call in ARCHITECTURE.md and from the decisions in the design.
//!
//! The machines that calls share are the core's own, a second time: here it is decided what a call tells them, and afterwards
//! they have to be as the ones that the call itself was lent.

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::approval::{self, Approvals, GrantId, Plan, Shape, Situation};
use steadfast_core::breaker::{self, Breaker, Held, Ticket, Transition, Verdict};
use steadfast_core::call::{
    Approval, AttemptEnd, BreakerScope, Cut, Duplicates, Event, FailedAttempt, Notice, Others, Outcome,
    Recorded, Request, RunBy, SentKey, StoreFault, ToldUnknown, Upstream, Waits, Wake,
};
use steadfast_core::classify::{Classified, Fault, Mistake, Nature, Reach, Severity, Source, classify};
use steadfast_core::code::Code;
use steadfast_core::dedupe::{
    Address, Claim, ClaimVerdict, End, Found, Intent, Known, Observed, Owner, Receipt, Record, Release,
    RenewVerdict, ReplayReason, Role, Rules, SaveVerdict, SettlesIn, StartVerdict, Unsettled, decide_claim,
};
use steadfast_core::guard::{Ending, GuardedCall, Layer, LoopGuard};
use steadfast_core::key::Key;
use steadfast_core::limit::{Limiter, Overloaded};
use steadfast_core::output::Output;
use steadfast_core::policy::{
    AfterUnknown, Ambiguous, ArgumentCheck, AskWhen, CacheFailures, Dangerous, Mode, OnStoreFailure, Policy,
    Silence, ToolClass,
};
use steadfast_core::retry::{RetryBudget, Schedule, Stop};
use steadfast_core::trust::{Finished, Standing, Subject, TrustLedger};
use steadfast_core::watchdog::{self, Watchdog};

use crate::transition::wanted;

/// The machines that a call shares with others.
#[derive(Clone, Debug)]
pub(super) struct Machines {
    pub(super) breaker: Breaker,
    pub(super) dependency: Option<Breaker>,
    pub(super) budget: RetryBudget,
    pub(super) limiter: Limiter,
    pub(super) dependency_limiter: Limiter,
    pub(super) guard: LoopGuard,
    pub(super) trust: TrustLedger,
    pub(super) approvals: Approvals,
}

/// The step that is due.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Due {
    Claim(Box<Claim>),
    Follow(Key),
    AwaitEnd(Key),
    Ask { operator_only: bool, until: Timestamp },
    Spend(GrantId, Owner),
    Start(Key, Owner),
    Probe(BreakerScope),
    Renew,
    Run { attempt: u32, deadline: Option<Timestamp>, run: String },
    Cut(Cut),
    Wait,
    Save(Saved),
    Release(Release),
    Answer(Told, Upstream),
    CancelUpstream,
    Stay,
    Finish(Told, Vec<Kept>),
}

/// What is to be saved, and under which claim.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Saved {
    pub(super) owner: Owner,
    pub(super) key: Key,
    pub(super) started: bool,
    pub(super) ending: Ended,
    /// The attempts that the record remembers: number, start, end, the code of a failure, and whether it may pass.
    pub(super) attempts: Vec<(u32, Timestamp, Timestamp, Option<Code>, bool)>,
    pub(super) hold: bool,
}

/// How a record ends.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ended {
    Done(Option<Output>),
    Failed(Failed),
    Unknown(SettlesIn, Observed, Option<Output>),
}

/// What has to be done after the end of a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kept {
    Save(Saved),
    Park { operator_only: bool },
    Release(Release),
    GiveBack(GrantId, Owner),
}

/// A failure, but for the words.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Failed {
    pub(super) code: Code,
    pub(super) rule: Option<String>,
    pub(super) retriable: bool,
    pub(super) retry_after: Option<Duration>,
}

/// What a caller is told, but for the words.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Told {
    pub(super) ended: Result<Option<Output>, Failed>,
    pub(super) asks: bool,
    pub(super) replayed: Option<ReplayReason>,
    pub(super) attempts: u32,
    /// Each retry: after which attempt, how long that took, how long was waited.
    pub(super) retries: Vec<(u32, Duration, Duration)>,
    pub(super) took: Duration,
    pub(super) recorded: Recorded,
    pub(super) receipt: Option<Receipt>,
    pub(super) remarks: usize,
    pub(super) breaker: Option<breaker::State>,
    pub(super) unknown: Option<ToldUnknown>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Caller {
    Waiting,
    Gone,
    GaveUp,
}

/// How things stand between the call and its record.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sight {
    Fine,
    Down,
    MarkedUnknown,
    Lost,
}

#[derive(Debug)]
struct Attempt {
    number: u32,
    started: Timestamp,
    watchdog: Watchdog,
    tickets: Tickets,
    cut: Option<Cut>,
}

#[derive(Debug, Default)]
struct Tickets {
    tool: Option<Ticket>,
    dependency: Option<Ticket>,
    has_places: bool,
}

#[derive(Debug)]
enum State {
    Looking(Refusal),
    Claiming(Role, u32),
    Following(Key),
    AwaitingEnd(Key, Timestamp),
    AwaitingApproval { operator_only: bool, until: Timestamp },
    GivingBack,
    Spending,
    Starting,
    Probing(BreakerScope, Tickets),
    Attempting(Attempt),
    BackingOff(Timestamp),
    Renewing,
    Marking(Settling),
    Settling(Settling),
    Saving(Told, Ended),
    Releasing(Told, Vec<Kept>),
    Finished,
}

/// An outcome that is not known.
#[derive(Debug)]
struct Settling {
    attempt: Option<Attempt>,
    observed: Observed,
    output: Option<Output>,
    severity: Option<Severity>,
    /// The code and the rule under which it is told.
    code: Code,
    rule: String,
    settles: SettlesIn,
    by: Option<Timestamp>,
    cancel: bool,
    receipt: Option<Receipt>,
    /// Before this moment the tool may still say that it was never reached.
    speaks_until: Option<Timestamp>,
    unsaved: bool,
    save_at: Option<Timestamp>,
}

#[derive(Clone, Debug)]
struct Refusal {
    failed: Failed,
    breaker: Option<breaker::State>,
    by: By,
}

#[derive(Clone, Copy, Debug)]
enum By {
    Us,
    Guard(Layer),
    Trust { operator_only: bool },
}

enum Need {
    Nobody,
    Spend(GrantId),
    Ask { operator_only: bool, until: Timestamp },
    Refuse { operator_only: bool },
}

/// One call, as it should go.
#[derive(Debug)]
pub(super) struct Reference {
    pub(super) machines: Machines,
    pub(super) notices: Vec<Notice>,
    request: Request,
    policy: Arc<Policy>,
    seed: u64,
    arrived: Timestamp,
    now: Timestamp,
    claims: u32,
    doubts: Vec<Owner>,
    record: Option<Record>,
    sight: Sight,
    lease_until: Timestamp,
    spent: Option<(GrantId, Owner)>,
    approved_blocked: bool,
    schedule: Option<Schedule>,
    first: Option<Timestamp>,
    settling_since: Option<Timestamp>,
    attempts: u32,
    facts: Vec<(u32, Timestamp, Timestamp, Option<Code>, bool)>,
    retries: Vec<(u32, Duration, Duration)>,
    last: Option<(Classified, Failed)>,
    caller: Caller,
    is_entered: bool,
    is_judged: bool,
    held_back: bool,
    state: State,
}

fn failed(code: Code, rule: &str, retriable: bool) -> Failed {
    Failed { code, rule: Some(rule.to_owned()), retriable, retry_after: None }
}

impl Reference {
    pub(super) fn begin(
        machines: Machines,
        request: Request,
        policy: Arc<Policy>,
        seed: u64,
        now: Timestamp,
    ) -> (Self, Due) {
        let mut call = Self {
            machines,
            notices: vec![Notice::CallStarted { at: now }],
            request,
            policy,
            seed,
            arrived: now,
            now,
            claims: 0,
            doubts: Vec::new(),
            record: None,
            sight: Sight::Fine,
            lease_until: now,
            spent: None,
            approved_blocked: false,
            schedule: None,
            first: None,
            settling_since: None,
            attempts: 0,
            facts: Vec::new(),
            retries: Vec::new(),
            last: None,
            caller: Caller::Waiting,
            is_entered: false,
            is_judged: false,
            held_back: false,
            state: State::Finished,
        };
        let due = match call.refusal() {
            Some(refusal) if call.dedupes() => {
                call.state = State::Looking(refusal);
                Due::Claim(Box::new(call.claim(Intent::Look, Role::Fresh)))
            }
            Some(refusal) => call.refuse(refusal),
            None => {
                call.enter();
                call.claim_or_go(Role::Fresh)
            }
        };
        (call, due)
    }

    /// The step that an event leads to.
    pub(super) fn on(&mut self, event: &Event, now: Timestamp) -> Due {
        self.now = now;
        let state = std::mem::replace(&mut self.state, State::Finished);
        match (state, event) {
            (state, Event::Cancelled(others)) => self.cancelled(state, *others),
            (state, Event::Disconnected(others)) => self.disconnected(state, *others),
            (State::Renewing, Event::Renewed { owner, sent, verdict }) if self.owns(owner) => {
                self.renewed(*verdict, *sent);
                self.attempt()
            }
            (state, Event::Renewed { owner, sent, verdict }) => {
                let ends = matches!(
                    state,
                    State::Saving(..) | State::Releasing(..) | State::Marking(_) | State::Settling(_)
                );
                if self.owns(owner) && !ends {
                    self.renewed(*verdict, *sent);
                }
                self.stay(state)
            }
            (State::Looking(refusal), Event::Claimed(verdict)) => match verdict {
                ClaimVerdict::Nothing | ClaimVerdict::Mine(_) | ClaimVerdict::Full | ClaimVerdict::Closed => {
                    self.refuse(refusal)
                }
                found => {
                    self.held_back = true;
                    self.enter();
                    self.found(found)
                }
            },
            (State::Looking(refusal), Event::StoreFailed(_)) => {
                if self.is_explicit() {
                    self.notices.push(Notice::StoreFailed { goes_on: false });
                }
                self.sight = Sight::Down;
                self.refuse(refusal)
            }
            (State::Claiming(..), Event::Claimed(verdict)) => self.found(verdict),
            (State::Claiming(role, repeats), Event::StoreFailed(fault)) => {
                if *fault == StoreFault::Unanswered {
                    self.doubt();
                }
                self.claim_failed(role, repeats)
            }
            (State::Following(key), Event::Woke(wake)) => self.woke(key, wake),
            (State::AwaitingEnd(key, _), Event::Woke(wake)) => {
                let wake = if matches!(wake, Wake::Time) { &Wake::Changed } else { wake };
                self.woke(key, wake)
            }
            (State::AwaitingApproval { operator_only, .. }, Event::Answered(answer)) => {
                self.answered(operator_only, answer)
            }
            (State::AwaitingApproval { operator_only, until }, Event::Woke(_)) if now >= until => {
                self.answered(operator_only, &Approval::Nobody)
            }
            (State::GivingBack, Event::Released) => self.claim_or_go(Role::Fresh),
            (State::GivingBack, Event::StoreFailed(_)) => {
                self.notices.push(Notice::StoreFailed { goes_on: false });
                let told = self.told(Err(store_unavailable()));
                let told = self.judge(told, None);
                self.doubt();
                self.finish(told, Vec::new())
            }
            (State::Spending, Event::Spent(spend)) if spend.may_run() => self.start_or_go(),
            (State::Spending, Event::Spent(_)) => {
                self.spent = None;
                match self.need() {
                    Need::Ask { operator_only, until } => self.ask(operator_only, until),
                    Need::Refuse { operator_only } => self.refuse(not_approved(operator_only)),
                    Need::Spend(_) | Need::Nobody => self.refuse(by_us(approval_lost())),
                }
            }
            (State::Starting, Event::Started(StartVerdict::Started)) => {
                let since = now.since(self.arrived);
                if let Some(record) = &mut self.record {
                    record.started = true;
                    record.seen_end_by = record.seen_end_by.map(|by| by + since);
                }
                self.attempt()
            }
            (State::Starting, Event::Started(StartVerdict::Lost)) => self.look_again(),
            (State::Starting, Event::StoreFailed(_)) if self.goes_on() => {
                self.notices.push(Notice::StoreFailed { goes_on: true });
                self.sight = Sight::Down;
                self.attempt()
            }
            (State::Spending | State::Starting, Event::StoreFailed(_)) => {
                self.notices.push(Notice::StoreFailed { goes_on: false });
                self.refuse(by_us(store_unavailable()))
            }
            (State::Probing(scope, tickets), Event::Probed) => {
                match scope {
                    BreakerScope::Tool => {
                        tickets.tool.iter().for_each(|ticket| self.machines.breaker.agreed(ticket));
                    }
                    BreakerScope::Dependency => {
                        if let (Some(ticket), Some(breaker)) =
                            (&tickets.dependency, &mut self.machines.dependency)
                        {
                            breaker.agreed(ticket);
                        }
                    }
                }
                self.probed(scope, tickets)
            }
            (State::Probing(scope, tickets), Event::StoreFailed(_)) => self.probed(scope, tickets),
            (State::Attempting(attempt), Event::Ran(outcome)) => self.ran(attempt, outcome),
            (State::Attempting(attempt), Event::Progressed) => self.progressed(attempt),
            (State::Attempting(attempt), Event::Woke(_)) => self.time_is_up(attempt),
            (State::BackingOff(until), Event::Woke(_)) if now >= until => self.attempt(),
            (State::Renewing, Event::StoreFailed(_)) => {
                self.notices.push(Notice::StoreFailed { goes_on: false });
                self.give_up()
            }
            (State::Marking(mut settling), Event::Saved(verdict)) => {
                match verdict {
                    SaveVerdict::Saved(receipt) => {
                        (settling.unsaved, settling.receipt) = (false, Some(receipt.clone()));
                        settling.by = by(settling.settles, now);
                    }
                    SaveVerdict::FenceLost => {
                        self.fence_is_lost();
                        (settling.unsaved, settling.receipt) = (false, None);
                    }
                }
                self.marked(settling)
            }
            (State::Marking(settling), Event::StoreFailed(_)) => {
                self.notices.push(Notice::StoreFailed { goes_on: true });
                let save_at = Some(now + Duration::from_secs(1));
                self.marked(Settling { unsaved: true, save_at, ..settling })
            }
            (State::Settling(settling), Event::Ran(outcome)) => self.ran_late(settling, outcome),
            (State::Settling(settling), Event::Settled) => self.end_was_seen(settling),
            (State::Settling(settling), Event::Woke(_)) => self.marked(settling),
            (State::Settling(settling), Event::DriverEnds) => self.close(settling),
            (State::Saving(told, _), Event::Saved(verdict)) => {
                let (recorded, receipt) = match verdict {
                    SaveVerdict::Saved(receipt) => (Recorded::Yes, Some(receipt.clone())),
                    SaveVerdict::FenceLost => {
                        if self.sight == Sight::Fine {
                            self.notices.push(Notice::FenceLost);
                        }
                        (Recorded::No, None)
                    }
                };
                self.finish(Told { recorded, receipt, ..told }, Vec::new())
            }
            (State::Saving(told, ending), Event::StoreFailed(_)) => {
                self.notices.push(Notice::StoreFailed { goes_on: true });
                let kept = self.saved(ending).map(Kept::Save).into_iter().collect();
                self.finish(Told { recorded: Recorded::No, receipt: None, ..told }, kept)
            }
            (State::Releasing(told, kept), Event::Released) => self.finish(told, kept),
            (State::Releasing(told, mut kept), Event::StoreFailed(_)) => {
                kept.extend(self.release_of_claim().map(Kept::Release));
                self.finish(told, kept)
            }
            (state, _) => self.stay(state),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Finished)
    }

    /// When the call wants to be woken.
    pub(super) fn wakes_at(&self) -> Option<Timestamp> {
        match &self.state {
            State::Following(_) => Some(self.follows_until()),
            State::AwaitingApproval { until, .. } | State::BackingOff(until) => Some(*until),
            State::AwaitingEnd(_, look_at) => Some(*look_at),
            State::Attempting(attempt) if attempt.cut.is_none() => {
                let waits = |at: Option<Timestamp>| at.filter(|_| self.is_waited_for());
                let limits = [waits(self.request.limits.deadline), waits(self.answers_by())];
                limits.into_iter().flatten().chain([attempt.watchdog.due()]).min()
            }
            State::Settling(settling) => self.settling_wakes_at(settling),
            _ => None,
        }
    }

    /// The claim that is renewed while the call is open.
    pub(super) fn renews(&self) -> Option<&Record> {
        let ends = matches!(
            self.state,
            State::Saving(..) | State::Releasing(..) | State::Marking(_) | State::Settling(_)
        );
        self.record.as_ref().filter(|_| self.sight == Sight::Fine && !ends)
    }

    pub(super) fn awaits_end(&self) -> bool {
        matches!(&self.state, State::Settling(settling) if settling.by.is_none() && self.request.end == AttemptEnd::Seen)
    }

    // ---- what is known ----

    fn dedupes(&self) -> bool {
        self.policy.modes.dedupe == Mode::Enforce && self.request.duplicates != Duplicates::Allowed
    }

    fn address(&self) -> Option<Address> {
        match self.request.duplicates {
            Duplicates::Allowed => None,
            Duplicates::Joined(address) | Duplicates::Refused(address) => Some(address),
        }
    }

    fn is_explicit(&self) -> bool {
        matches!(self.address(), Some(Address::Explicit(_)))
    }

    fn is_waited_for(&self) -> bool {
        self.caller == Caller::Waiting
    }

    fn owns(&self, owner: &Owner) -> bool {
        self.record.as_ref().is_some_and(|record| record.owner == *owner)
    }

    fn owner(&self) -> Owner {
        Owner { process: self.request.process.clone(), call: self.request.number, claim: self.claims }
    }

    fn doubt(&mut self) {
        let owner = self.owner();
        if !self.doubts.contains(&owner) {
            self.doubts.push(owner);
        }
    }

    fn retry_safe(&self) -> bool {
        let repeat = &self.policy.repeat;
        let vouched = repeat.retry_safe || repeat.honours_key && self.request.sent_key == SentKey::Given;
        match self.policy.class {
            ToolClass::ReadOnly | ToolClass::Idempotent => true,
            ToolClass::Mutating => vouched,
            ToolClass::Unknown => {
                vouched || self.request.hints.expected_retry_safe || repeat.ambiguous == Ambiguous::Retry
            }
        }
    }

    /// Whether it goes on where the store cannot be asked (D17).
    fn goes_on(&self) -> bool {
        let dedupe = &self.policy.dedupe;
        let refuses_key =
            self.is_explicit() && dedupe.explicit_key_on_store_failure == OnStoreFailure::Refuse;
        !self.request.hints.safety_critical
            && !refuses_key
            && match self.policy.class {
                ToolClass::ReadOnly | ToolClass::Idempotent => true,
                ToolClass::Mutating => false,
                ToolClass::Unknown => dedupe.on_store_failure == OnStoreFailure::GoOn,
            }
    }

    /// Whether an unknown outcome is held until a person resolves it.
    fn holds(&self) -> bool {
        self.request.hints.safety_critical || self.policy.dedupe.after_unknown == AfterUnknown::Hold
    }

    fn latest_start(&self) -> Option<Timestamp> {
        [self.request.limits.deadline, self.request.limits.start_by].into_iter().flatten().min()
    }

    fn is_late(&self) -> bool {
        self.latest_start().is_some_and(|latest| self.now >= latest)
    }

    fn patience(&self) -> Option<Duration> {
        self.policy.time.answer_by.filter(|_| self.request.waits == Waits::NotForLong)
    }

    fn follows_until(&self) -> Timestamp {
        let total = self.policy.time.total;
        let spans = [self.patience().unwrap_or(total), self.request.limits.elapsed.unwrap_or(total)];
        let until = spans.into_iter().min().map_or(self.arrived, |span| self.arrived + span);
        self.latest_start().map_or(until, |latest| until.min(latest))
    }

    /// Until when its caller is kept waiting for the end of a run.
    fn waits_until(&self) -> Timestamp {
        let spans = [Some(self.policy.dedupe.late_after), self.patience(), self.request.limits.elapsed];
        let until = spans.into_iter().flatten().min().map_or(self.arrived, |span| self.arrived + span);
        self.latest_start().map_or(until, |latest| until.min(latest))
    }

    fn can_wait(&self, end: End) -> bool {
        match end {
            End::Settled => true,
            End::NotYet(Some(left)) => self.now + left <= self.waits_until(),
            End::NotYet(None) => self.now < self.waits_until(),
        }
    }

    /// When its caller is told that it is still running.
    fn answers_by(&self) -> Option<Timestamp> {
        let is_found_again = self.dedupes() && self.record.is_some();
        self.patience().filter(|_| is_found_again).map(|span| self.arrived + span)
    }

    fn may_be_cut(&self) -> bool {
        self.retry_safe() || self.record.is_none() || !self.dedupes()
    }

    fn standing(&self) -> Standing {
        let rules = steadfast_core::trust::Rules {
            signature: &self.policy.trust,
            domain: self.policy.domain_trust.as_ref(),
        };
        let subject = Subject {
            tool: &self.request.tool,
            signature: &self.request.signature,
            domain: self.request.domain.as_ref(),
        };
        self.machines.trust.standing(rules, subject, self.now)
    }

    fn need(&self) -> Need {
        let standing = self.standing();
        let operator_only = matches!(standing, Standing::Blocked(_));
        let is_dangerous = self.request.danger.is_some();
        if matches!(standing, Standing::Free(_))
            && self.policy.approval.when != AskWhen::Always
            && !is_dangerous
        {
            return Need::Nobody;
        }
        let situation = Situation {
            standing: &standing,
            policy: &self.policy.approval,
            shape: if is_dangerous { Shape::Dangerous } else { Shape::Ordinary },
            channel: self.request.channel,
            grant: self.machines.approvals.grant_for(wanted(&self.request, operator_only), self.now),
            deadline: self.latest_start(),
        };
        match approval::plan(situation, self.now) {
            Plan::Go => Need::Nobody,
            Plan::Spend(grant) => Need::Spend(grant),
            Plan::Ask { until } => Need::Ask { operator_only, until },
            Plan::Park | Plan::RefuseBlocked => Need::Refuse { operator_only },
        }
    }

    // ---- refusals ----

    fn refusal(&self) -> Option<Refusal> {
        if self.is_late() {
            return Some(by_us(deadline_passed()));
        }
        if self.policy.arguments == ArgumentCheck::Enforce && self.request.invalid_arguments.is_some() {
            return Some(by_us(failed(Code::InvalidArguments, "schema", false)));
        }
        let modes = self.policy.modes;
        if modes.guard == Mode::Enforce
            && let Some(refused) =
                self.machines.guard.would_refuse(&self.policy.guard, self.guarded(), self.now)
        {
            let failed = failed(refused.code, refused.layer.as_str(), false);
            return Some(Refusal { failed, breaker: None, by: By::Guard(refused.layer) });
        }
        let breakers = [Some(&self.machines.breaker), self.machines.dependency.as_ref()];
        let mut refused = breakers
            .into_iter()
            .flatten()
            .filter_map(|breaker| breaker.check(&self.policy.breaker, self.now).err());
        if modes.breaker == Mode::Enforce
            && let Some(refused) = refused.next()
        {
            return Some(self.circuit_open(refused));
        }
        match self.need() {
            Need::Refuse { operator_only } if modes.trust == Mode::Enforce => {
                Some(not_approved(operator_only))
            }
            Need::Refuse { .. } | Need::Nobody | Need::Spend(_) | Need::Ask { .. } => None,
        }
    }

    fn circuit_open(&self, refused: breaker::Refused) -> Refusal {
        let retry_after = refused.retry_at.map(|at| at.since(self.now));
        let failed = Failed { retry_after, ..failed(Code::CircuitOpen, refused.by.rule(), true) };
        Refusal { failed, breaker: Some(refused.state), by: By::Us }
    }

    fn refuse(&mut self, refusal: Refusal) -> Due {
        // Nobody could look whether there is an answer: that is told instead.
        let unlooked =
            self.is_explicit() && self.dedupes() && self.sight == Sight::Down && self.attempts == 0;
        let refusal = if unlooked { by_us(store_unavailable()) } else { refusal };
        let state = self.machines.breaker.state(&self.policy.breaker, self.now);
        let breaker = refusal.breaker.or(Some(state));
        self.notices.push(Notice::CallBlocked { code: refusal.failed.code, retriable: false, breaker });
        let mut told = Told { breaker: refusal.breaker, ..self.told(Err(refusal.failed)) };
        let mut kept = Vec::new();
        match refusal.by {
            By::Us => told = self.judge(told, None),
            By::Guard(layer) => {
                self.notices.push(Notice::GuardTripped { layer });
                self.abandon();
                self.is_judged = true;
                let _counted =
                    self.with_guard(|guard, policy, call, now| guard.check(&policy.guard, call, now));
            }
            By::Trust { operator_only } => {
                kept.push(Kept::Park { operator_only });
                told = self.judge(told, None);
            }
        }
        self.release(told, kept)
    }

    // ---- claims ----

    fn claim(&self, intent: Intent, role: Role) -> Claim {
        let (request, policy) = (&self.request, &self.policy);
        let address = self.address().expect("only calls that are recognised are claimed");
        let mut rules = Rules::from(&**policy);
        if request.hints.safety_critical {
            rules.after_unknown = AfterUnknown::Hold;
        }
        rules.computed_since = request.computed_since.filter(|_| request.sent_key == SentKey::Run);
        let to_end = policy.settling.grace + policy.settling.drain + Duration::from_secs(10);
        Claim {
            address,
            intent,
            role,
            owner: self.owner(),
            digest: request.digest,
            retry_safe: self.retry_safe(),
            best_effort: matches!(request.duplicates, Duplicates::Refused(_)),
            arrived: self.arrived,
            age: self.now.since(self.arrived),
            seen_end_within: (request.end == AttemptEnd::Seen).then_some(policy.time.total + to_end),
            run: request.run.clone(),
            rules,
            tool: request.tool.clone(),
            request: request.id.clone(),
            tool_call: request.tool_call.clone(),
            context: request.context.clone(),
            session: request.session.clone(),
            actor: request.actor.clone(),
            tenant: request.tenant.clone(),
        }
    }

    fn take(&mut self, role: Role, repeats: u32, started: bool) -> Due {
        self.state = State::Claiming(role, repeats);
        self.lease_until = self.now + self.policy.dedupe.keep.lease;
        Due::Claim(Box::new(self.claim(Intent::Take { started }, role)))
    }

    fn claim_or_go(&mut self, role: Role) -> Due {
        if !self.dedupes() {
            return self.ask_or_go();
        }
        self.claims += 1;
        let at_once = self.policy.modes.trust != Mode::Enforce || matches!(self.need(), Need::Nobody);
        self.take(role, 0, at_once)
    }

    fn look_again(&mut self) -> Due {
        let own = self.address().map(|address| address.own());
        let Some(followed) = self.record.take().map(|record| record.key).or(own) else { return Due::Stay };
        self.claims += 1;
        self.take(Role::Waiter { followed }, 0, false)
    }

    fn claim_failed(&mut self, role: Role, repeats: u32) -> Due {
        if repeats < 2 {
            return self.take(role, repeats + 1, false);
        }
        let goes_on = self.goes_on();
        self.notices.push(Notice::StoreFailed { goes_on });
        if goes_on {
            let claim = self.claim(Intent::Take { started: true }, role);
            let decided = decide_claim(&claim, Found::default(), &Known::default(), self.now);
            if let ClaimVerdict::Mine(record) = decided.verdict {
                self.doubts.retain(|owner| *owner != record.owner);
                self.record = Some((*record).clone());
            }
            self.sight = Sight::Down;
            return self.ask_or_go();
        }
        self.turned_away(store_unavailable())
    }

    /// Refused without a claim.
    fn turned_away(&mut self, failed: Failed) -> Due {
        let breaker = Some(self.machines.breaker.state(&self.policy.breaker, self.now));
        self.notices.push(Notice::CallBlocked { code: failed.code, retriable: false, breaker });
        let told = self.told(Err(failed));
        let told = self.judge(told, None);
        self.finish(told, Vec::new())
    }

    fn found(&mut self, verdict: &ClaimVerdict) -> Due {
        match verdict {
            ClaimVerdict::Mine(record) => {
                if record.run != self.request.run {
                    self.notices.push(Notice::TookOver);
                }
                self.doubts.retain(|owner| *owner != record.owner);
                self.record = Some((**record).clone());
                self.sight = Sight::Fine;
                self.ask_or_go()
            }
            ClaimVerdict::Follow(key) => {
                self.notices.push(Notice::Following);
                self.state = State::Following(*key);
                Due::Follow(*key)
            }
            ClaimVerdict::Replay(replay) => {
                self.notices.push(Notice::Replayed { reason: replay.reason });
                let ended = match &replay.answer {
                    Ok(Some(output)) => Ok(Some(output.clone())),
                    Ok(None) => Err(Failed {
                        code: Code::ResultNotKept,
                        rule: None,
                        retriable: false,
                        retry_after: None,
                    }),
                    Err(failure) => Err(of_failure(failure)),
                };
                let told = Told {
                    replayed: Some(replay.reason),
                    recorded: Recorded::Yes,
                    receipt: Some(replay.receipt.clone()),
                    ..self.told(ended)
                };
                let told = self.judge(told, None);
                self.finish(told, Vec::new())
            }
            ClaimVerdict::Unknown(unsettled) if unsettled.receipt.owner == self.owner() => {
                // Others have taken it for a run that was lost: nothing is sent under it.
                self.doubt();
                self.turned_away(failed(Code::Overloaded, "lease", true))
            }
            ClaimVerdict::Unknown(unsettled) => self.found_unknown(unsettled),
            ClaimVerdict::Busy => self.turned_away(in_flight()),
            ClaimVerdict::Conflict => {
                self.notices.push(Notice::KeyConflict);
                self.turned_away(failed(Code::IdempotencyConflict, "key.conflict", false))
            }
            ClaimVerdict::Full => self.turned_away(failed(Code::Overloaded, "store.full", true)),
            ClaimVerdict::Closed | ClaimVerdict::Nothing => self.turned_away(store_unavailable()),
        }
    }

    fn found_unknown(&mut self, unsettled: &Unsettled) -> Due {
        if unsettled.end != End::Settled && self.can_wait(unsettled.end) {
            let half = Duration::from_millis(500);
            let left = if let End::NotYet(Some(left)) = unsettled.end { left.min(half) } else { half };
            let key = unsettled.receipt.key;
            self.state = State::AwaitingEnd(key, (self.now + left).min(self.waits_until()));
            return Due::AwaitEnd(key);
        }
        let owner = unsettled.receipt.owner.clone();
        self.notices.push(Notice::OutcomeUnknown { of_earlier: Some(owner) });
        let is_over = unsettled.end == End::Settled;
        let retry_after = self.comes_again(unsettled.end, unsettled.runs_in);
        let told = Told {
            recorded: Recorded::Yes,
            receipt: Some(unsettled.receipt.clone()).filter(|_| is_over),
            unknown: Some(ToldUnknown { observed: unsettled.observed, ended: is_over }),
            ..self.told(Err(Failed { retry_after, ..failed(Code::OutcomeUnknown, "unknown", false) }))
        };
        let told = self.judge(told, None);
        self.finish(told, Vec::new())
    }

    /// When a caller who is told of an unknown outcome comes again.
    fn comes_again(&self, end: End, runs_in: Option<Duration>) -> Option<Duration> {
        let settling = &self.policy.settling;
        match end {
            End::Settled => runs_in,
            End::NotYet(Some(left)) => Some(left),
            End::NotYet(None) => Some(settling.to_end_child() + settling.after_child()),
        }
    }

    fn woke(&mut self, key: Key, wake: &Wake) -> Due {
        match wake {
            Wake::LeaderRefused(failure) => {
                let refused = of_failure(failure);
                self.turned_away(refused)
            }
            Wake::Time if self.now >= self.follows_until() => {
                let failed = if self.is_late() { deadline_passed() } else { in_flight() };
                self.turned_away(failed)
            }
            Wake::Time | Wake::Changed => {
                let role = Role::Waiter { followed: key };
                match self.refusal().filter(|_| self.held_back) {
                    Some(refusal) => {
                        self.state = State::Looking(refusal);
                        Due::Claim(Box::new(self.claim(Intent::Look, role)))
                    }
                    None => self.claim_or_go(role),
                }
            }
        }
    }

    // ---- approvals ----

    fn ask(&mut self, operator_only: bool, until: Timestamp) -> Due {
        self.notices.push(Notice::ApprovalAsked);
        self.state = State::AwaitingApproval { operator_only, until };
        Due::Ask { operator_only, until }
    }

    fn ask_or_go(&mut self) -> Due {
        let is_asked = self.spent.is_none() && self.policy.modes.trust == Mode::Enforce;
        let need = if is_asked { self.need() } else { Need::Nobody };
        let says_started =
            self.attempts == 0 && self.dedupes() && self.renews().is_some_and(|record| record.started);
        match need {
            Need::Nobody => self.start_or_go(),
            Need::Refuse { operator_only } => self.refuse(not_approved(operator_only)),
            Need::Spend(_) | Need::Ask { .. } if says_started => {
                let release = self.release_of_claim();
                self.record = None;
                self.state = State::GivingBack;
                release.map_or(Due::Stay, Due::Release)
            }
            Need::Spend(grant) => {
                let blocked = matches!(self.standing(), Standing::Blocked(_));
                self.spend(grant, blocked)
            }
            Need::Ask { operator_only, until } => self.ask(operator_only, until),
        }
    }

    fn spend(&mut self, grant: GrantId, blocked: bool) -> Due {
        let owner = self.owner();
        self.approved_blocked = blocked;
        self.spent = Some((grant, owner.clone()));
        self.state = State::Spending;
        Due::Spend(grant, owner)
    }

    fn answered(&mut self, operator_only: bool, answer: &Approval) -> Due {
        self.notices.push(Notice::ApprovalEnded { granted: matches!(answer, Approval::Granted(_)) });
        match answer {
            Approval::Granted(Some(grant)) => self.spend(*grant, operator_only),
            Approval::Granted(None) => self.start_or_go(),
            Approval::Denied => self.refuse(by_us(failed(Code::ApprovalDenied, "approval", false))),
            Approval::Nobody => self.refuse(not_approved(operator_only)),
            Approval::PutToCaller(question) => self.ask_caller(question),
        }
    }

    fn ask_caller(&mut self, question: &Output) -> Due {
        self.notices.push(Notice::InputRequired);
        self.put_off();
        let told = Told { asks: true, ..self.told(Ok(Some(question.clone()))) };
        let unused = self.spent.take().filter(|_| self.attempts <= 1);
        let kept = unused.map(|(grant, owner)| Kept::GiveBack(grant, owner));
        self.release(told, kept.into_iter().collect())
    }

    fn start_or_go(&mut self) -> Due {
        if matches!(self.sight, Sight::Lost | Sight::MarkedUnknown) {
            return self.lost_the_claim();
        }
        match self.renews().filter(|record| !record.started) {
            Some(record) => {
                let due = Due::Start(record.key, record.owner.clone());
                self.state = State::Starting;
                due
            }
            None => self.attempt(),
        }
    }

    fn lost_the_claim(&mut self) -> Due {
        match self.sight {
            Sight::MarkedUnknown => self.refuse(by_us(failed(Code::Overloaded, "lease", true))),
            Sight::Lost | Sight::Fine | Sight::Down => self.look_again(),
        }
    }

    // ---- attempts ----

    /// One predicate guards every attempt (D43).
    fn attempt(&mut self) -> Due {
        if self.caller == Caller::GaveUp {
            self.abandon();
            let told = self.told(Err(cancelled()));
            return self.release(told, Vec::new());
        }
        if matches!(self.sight, Sight::Lost | Sight::MarkedUnknown) {
            return if self.attempts == 0 { self.lost_the_claim() } else { self.give_up() };
        }
        if self.renews().is_some() && self.now >= self.lease_until {
            self.state = State::Renewing;
            return Due::Renew;
        }
        let late = match &self.schedule {
            None => self.is_late().then_some(Stop::Deadline),
            Some(schedule) => schedule.may_start(self.now).err(),
        };
        if let Some(stop) = late {
            if self.attempts == 0 {
                return self.refuse(by_us(deadline_passed()));
            }
            self.notices.push(Notice::RetryStopped { stop });
            return self.too_late(stop);
        }
        let is_blocked = matches!(self.standing(), Standing::Blocked(_));
        if self.policy.modes.trust == Mode::Enforce && !self.approved_blocked && is_blocked {
            let refusal = match self.need() {
                Need::Refuse { operator_only } | Need::Ask { operator_only, .. } => {
                    not_approved(operator_only)
                }
                Need::Nobody | Need::Spend(_) => by_us(approval_lost()),
            };
            return if self.attempts == 0 { self.refuse(refusal) } else { self.refused_again(refusal) };
        }
        match self.admit() {
            Err(refusal) if self.attempts == 0 => self.refuse(refusal),
            Err(refusal) => self.refused_again(refusal),
            Ok(tickets) if is_probe(&tickets.tool) => self.probe(BreakerScope::Tool, tickets),
            Ok(tickets) if is_probe(&tickets.dependency) => self.probe(BreakerScope::Dependency, tickets),
            Ok(tickets) => self.go(tickets),
        }
    }

    fn admit(&mut self) -> Result<Tickets, Refusal> {
        let (now, policy) = (self.now, self.policy.clone());
        let machines = &mut self.machines;
        let overloaded = |overloaded: Overloaded, rules: [&str; 2]| {
            let (rule, retry_after) = match overloaded {
                Overloaded::Concurrency => (rules[0], None),
                Overloaded::Rate(at) => (rules[1], Some(at.since(now))),
            };
            by_us(Failed { retry_after, ..failed(Code::Overloaded, rule, true) })
        };
        if let Err(reason) = machines.limiter.enter(&policy.limits, now) {
            return Err(overloaded(reason, ["limit.concurrency", "limit.rate"]));
        }
        if let Err(reason) = machines.dependency_limiter.enter(&policy.dependency_limits, now) {
            machines.limiter.withdraw();
            return Err(overloaded(reason, ["limit.dependency_concurrency", "limit.dependency_rate"]));
        }
        let mut tickets = Tickets { has_places: true, ..Tickets::default() };
        if policy.modes.breaker == Mode::Off {
            return Ok(tickets);
        }
        let mut refused = None;
        match machines.breaker.admit(&policy.breaker, now) {
            Err(reason) => refused = Some(reason),
            Ok((ticket, change)) => {
                tickets.tool = Some(ticket);
                self.notices.extend(changed(BreakerScope::Tool, change));
                match machines.dependency.as_mut().map(|breaker| breaker.admit(&policy.breaker, now)) {
                    None => {}
                    Some(Err(reason)) => refused = Some(reason),
                    Some(Ok((ticket, change))) => {
                        tickets.dependency = Some(ticket);
                        self.notices.extend(changed(BreakerScope::Dependency, change));
                    }
                }
            }
        }
        match refused {
            None => Ok(tickets),
            Some(refused) => {
                self.step_back(tickets);
                Err(self.circuit_open(refused))
            }
        }
    }

    /// Gives back what was taken for an attempt that is not made.
    fn step_back(&mut self, mut tickets: Tickets) {
        self.release_tickets(&mut tickets);
        if tickets.has_places {
            self.machines.limiter.withdraw();
            self.machines.dependency_limiter.withdraw();
        }
    }

    fn release_tickets(&mut self, tickets: &mut Tickets) {
        if let Some(ticket) = tickets.tool.take() {
            if ticket.is_probe() {
                self.notices.push(Notice::ProbeMoved { scope: BreakerScope::Tool });
            }
            self.machines.breaker.release(ticket);
        }
        if let (Some(ticket), Some(breaker)) = (tickets.dependency.take(), &mut self.machines.dependency) {
            if ticket.is_probe() {
                self.notices.push(Notice::ProbeMoved { scope: BreakerScope::Dependency });
            }
            breaker.release(ticket);
        }
    }

    fn probe(&mut self, scope: BreakerScope, tickets: Tickets) -> Due {
        self.state = State::Probing(scope, tickets);
        Due::Probe(scope)
    }

    fn probed(&mut self, scope: BreakerScope, tickets: Tickets) -> Due {
        let policy = &self.policy.breaker;
        let holds = |breaker: &Breaker, ticket: &Option<Ticket>| {
            ticket.as_ref().is_none_or(|ticket| breaker.holds(policy, ticket, self.now))
        };
        let all_hold = holds(&self.machines.breaker, &tickets.tool)
            && self.machines.dependency.as_ref().is_none_or(|breaker| holds(breaker, &tickets.dependency));
        let is_late = match &self.schedule {
            None => self.is_late(),
            Some(schedule) => schedule.may_start(self.now).is_err(),
        };
        let is_over = self.renews().is_some() && self.now >= self.lease_until;
        let is_blocked = self.policy.modes.trust == Mode::Enforce
            && !self.approved_blocked
            && matches!(self.standing(), Standing::Blocked(_));
        let is_lost =
            matches!(self.sight, Sight::Lost | Sight::MarkedUnknown) || self.caller == Caller::GaveUp;
        if !all_hold || is_late || is_over || is_blocked || is_lost {
            self.step_back(tickets);
            return self.attempt();
        }
        if scope == BreakerScope::Tool && is_probe(&tickets.dependency) {
            return self.probe(BreakerScope::Dependency, tickets);
        }
        self.go(tickets)
    }

    fn go(&mut self, tickets: Tickets) -> Due {
        let (now, policy) = (self.now, self.policy.clone());
        if self.schedule.is_none() {
            self.machines.budget.deposit(&policy.retry.budget, now);
            let last = Some(policy.time.latest_retry());
            self.schedule = Some(Schedule::new(&policy.retry, &self.request.limits, last, self.seed, now));
        }
        let first = *self.first.get_or_insert(now);
        self.attempts += 1;
        self.notices.push(Notice::AttemptStarted { attempt: self.attempts, at: now });
        let mut time = policy.time;
        time.attempt = self.request.limits.attempt.map_or(time.attempt, |own| own.min(time.attempt));
        time.total = time.total.saturating_sub(now.since(first));
        let watchdog = Watchdog::new(&time, now);
        let deadline = [Some(watchdog.due()), self.request.limits.deadline].into_iter().flatten().min();
        let claimed = self.record.as_ref().filter(|_| self.dedupes());
        let run = claimed.map_or(&self.request.run, |record| &record.run).0.to_string();
        self.state =
            State::Attempting(Attempt { number: self.attempts, started: now, watchdog, tickets, cut: None });
        Due::Run { attempt: self.attempts, deadline, run }
    }

    fn progressed(&mut self, mut attempt: Attempt) -> Due {
        attempt.watchdog.progress(self.now);
        let mut renew = |breaker: &mut Breaker, ticket: &Option<Ticket>, scope| {
            let held = ticket.as_ref().map(|ticket| breaker.renew(&self.policy.breaker, ticket, self.now));
            if held == Some(Held::ForLonger) {
                self.notices.push(Notice::ProbeMoved { scope });
            }
        };
        renew(&mut self.machines.breaker, &attempt.tickets.tool, BreakerScope::Tool);
        if let Some(breaker) = &mut self.machines.dependency {
            renew(breaker, &attempt.tickets.dependency, BreakerScope::Dependency);
        }
        self.stay(State::Attempting(attempt))
    }

    fn time_is_up(&mut self, mut attempt: Attempt) -> Due {
        if attempt.cut.is_some() {
            return self.stay(State::Attempting(attempt));
        }
        let is_waited_for = self.is_waited_for();
        let is_due = self.request.limits.deadline.is_some_and(|deadline| deadline <= self.now);
        let cut = match attempt.watchdog.verdict(self.now) {
            watchdog::Verdict::TotalLimit => Some(Cut::TooLong),
            _ if is_waited_for && is_due => Some(Cut::Deadline),
            watchdog::Verdict::Stuck => Some(Cut::Silent(self.now.since(attempt.started))),
            watchdog::Verdict::Fine { .. } => None,
        };
        match cut {
            Some(cut) if self.may_be_cut() => {
                self.notices.push(Notice::AttemptCut { cut });
                attempt.cut = Some(cut);
                self.state = State::Attempting(attempt);
                Due::Cut(cut)
            }
            Some(Cut::Deadline) => {
                let unknown = Some(ToldUnknown { observed: Observed::NoAnswer, ended: false });
                let told = self.told(Err(failed(Code::OutcomeUnknown, "deadline", false)));
                let told = self.judge(Told { unknown, ..told }, None);
                self.answer_early(State::Attempting(attempt), told, Upstream::LeaveAlone)
            }
            Some(cut) => self.cut_unknown(attempt, cut),
            None if is_waited_for && self.answers_by().is_some_and(|by| by <= self.now) => {
                let told = self.told(Err(in_flight()));
                self.answer_early(State::Attempting(attempt), told, Upstream::LeaveAlone)
            }
            None => self.stay(State::Attempting(attempt)),
        }
    }

    /// Whether a host that runs the tool itself gives no sign of life.
    fn host_is_silent(&self, attempt: &Attempt) -> bool {
        self.request.run_by == RunBy::Host && !attempt.watchdog.shows_life(attempt.started, self.now)
    }

    /// Whether a cut says nothing about the tool: it had not used up its own time (D44).
    fn is_callers_limit(&self, attempt: &Attempt) -> bool {
        let time = &self.policy.time;
        attempt.cut.is_some()
            && self.now.since(attempt.watchdog.last_sign()) < time.attempt
            && self.now.since(attempt.started) < time.total
    }

    fn cut_unknown(&mut self, mut attempt: Attempt, cut: Cut) -> Due {
        let is_silent = self.host_is_silent(&attempt);
        if is_silent {
            self.abandon();
        }
        attempt.cut = Some(cut);
        let counts = !is_silent && !self.is_callers_limit(&attempt);
        let took = self.now.since(attempt.started);
        self.record_breakers(&mut attempt.tickets, counts.then_some(Verdict::Failure { took }));
        self.notices.push(Notice::AttemptCut { cut });
        let is_stuck = self.policy.time.silence == Silence::Stuck;
        let (code, rule) = match cut {
            Cut::Silent(_) | Cut::TooLong if is_stuck => (Code::StuckCall, "watchdog"),
            Cut::Silent(_) | Cut::TooLong => (Code::OutcomeUnknown, "timeout"),
            Cut::Deadline => (Code::OutcomeUnknown, "deadline"),
            Cut::Cancelled => (Code::OutcomeUnknown, "cancelled"),
        };
        let settles = match self.request.end {
            AttemptEnd::Seen => SettlesIn::WhenOwnerSays,
            AttemptEnd::Unseen => SettlesIn::After(self.policy.settling.linger),
        };
        let severity = counts.then_some(Severity::Timeout);
        let settling = Settling { cancel: true, ..self.settling(Observed::NoAnswer, severity, code, rule) };
        self.becomes_unknown(Settling { attempt: Some(attempt), ..settling }, settles)
    }

    fn settling(&self, observed: Observed, severity: Option<Severity>, code: Code, rule: &str) -> Settling {
        Settling {
            attempt: None,
            observed,
            output: None,
            severity,
            code,
            rule: rule.to_owned(),
            settles: SettlesIn::WhenOwnerSays,
            by: None,
            cancel: false,
            receipt: None,
            speaks_until: None,
            unsaved: false,
            save_at: None,
        }
    }

    fn record_breakers(&mut self, tickets: &mut Tickets, verdict: Option<Verdict>) {
        let (now, policy) = (self.now, self.policy.clone());
        let mut back = |breaker: &mut Breaker, ticket: Ticket, scope| {
            let is_probe = ticket.is_probe();
            let change = match verdict {
                Some(verdict) => breaker.record(&policy.breaker, ticket, verdict, now),
                None => {
                    breaker.release(ticket);
                    None
                }
            };
            match change {
                None if is_probe => self.notices.push(Notice::ProbeMoved { scope }),
                change => self.notices.extend(changed(scope, change)),
            }
        };
        if let Some(ticket) = tickets.tool.take() {
            back(&mut self.machines.breaker, ticket, BreakerScope::Tool);
        }
        if let (Some(ticket), Some(breaker)) = (tickets.dependency.take(), &mut self.machines.dependency) {
            back(breaker, ticket, BreakerScope::Dependency);
        }
    }

    fn leave_places(&mut self, attempt: &mut Attempt) {
        if std::mem::take(&mut attempt.tickets.has_places) {
            self.machines.limiter.leave();
            self.machines.dependency_limiter.leave();
        }
    }

    fn attempt_ended(&mut self, attempt: &Attempt, failure: Option<(&Classified, Observed)>) {
        let code = failure.map(|(classified, _)| classified.code);
        let is_transient = failure.is_some_and(|(classified, _)| classified.nature == Nature::Transient);
        self.facts.push((attempt.number, attempt.started, self.now, code, is_transient));
        self.facts.drain(..self.facts.len().saturating_sub(16));
        self.notices.push(Notice::AttemptEnded {
            attempt: attempt.number,
            took: self.now.since(attempt.started),
            failure: failure.map(|(classified, observed)| FailedAttempt {
                nature: classified.nature,
                reach: classified.reach,
                severity: classified.severity,
                rule: classified.rule.clone(),
                observed,
                said: "".into(),
            }),
        });
    }

    fn ran(&mut self, mut attempt: Attempt, outcome: &Outcome) -> Due {
        self.leave_places(&mut attempt);
        let took = self.now.since(attempt.started);
        match outcome {
            Outcome::Success { output, concern } => {
                self.record_breakers(&mut attempt.tickets, Some(Verdict::Success { took }));
                self.attempt_ended(&attempt, None);
                let told = self.told(Ok(Some(output.clone())));
                let told = self.judge_run(told, *concern, None);
                let kept = output.len() <= self.policy.dedupe.largest_output;
                self.save(told, Ended::Done(kept.then(|| output.clone())))
            }
            Outcome::InputRequired { output } => {
                self.record_breakers(&mut attempt.tickets, Some(Verdict::Success { took }));
                self.attempt_ended(&attempt, None);
                self.ask_caller(output)
            }
            Outcome::NotRun { fault } => {
                let classified = classify(fault, &self.policy.classify, self.now);
                self.never_began(attempt, fault, &classified, cancelled())
            }
            Outcome::Failure { fault, output } => {
                // What a tool says to our cut is the cut that it answers (D42). A host reports what it saw itself.
                let answers_cut = self.request.run_by == RunBy::Driver
                    && attempt.cut.is_some_and(|cut| cut != Cut::Cancelled);
                let timeout = Fault::new(Source::Timeout { after: took }, "");
                let (fault, output) = if answers_cut { (&timeout, &None) } else { (fault, output) };
                let classified = classify(fault, &self.policy.classify, self.now);
                self.went_wrong(attempt, fault, output.as_ref(), &classified)
            }
            Outcome::Remembered(_) => Due::Stay,
        }
    }

    /// An attempt of which it is certain that the tool did not run.
    fn never_began(
        &mut self,
        mut attempt: Attempt,
        fault: &Fault,
        classified: &Classified,
        why: Failed,
    ) -> Due {
        self.leave_places(&mut attempt);
        self.release_tickets(&mut attempt.tickets);
        self.attempt_ended(&attempt, Some((classified, observed(&fault.source))));
        self.put_off();
        let told = self.told(Err(why));
        self.release(told, Vec::new())
    }

    fn went_wrong(
        &mut self,
        mut attempt: Attempt,
        fault: &Fault,
        output: Option<&Output>,
        classified: &Classified,
    ) -> Due {
        let took = self.now.since(attempt.started);
        let is_timeout = matches!(fault.source, Source::Timeout { .. });
        let is_lost = is_timeout && attempt.cut.is_some() && self.host_is_silent(&attempt);
        let says_nothing = attempt.cut == Some(Cut::Cancelled) || self.is_callers_limit(&attempt) || is_lost;
        let verdict = match classified.nature {
            _ if says_nothing => None,
            Nature::Transient if !is_session_lost(fault) => Some(Verdict::Failure { took }),
            Nature::Transient | Nature::Permanent => Some(Verdict::Neutral),
        };
        self.record_breakers(&mut attempt.tickets, verdict);
        let seen = observed(&fault.source);
        self.attempt_ended(&attempt, Some((classified, seen)));

        let proved = matches!(classified.reach, Reach::NotSent | Reach::Refused);
        if attempt.cut == Some(Cut::Cancelled) && (self.may_be_cut() || proved) {
            self.abandon();
            let told = self.told(Err(cancelled()));
            return self.release(told, Vec::new());
        }
        if is_lost {
            self.abandon();
        }
        let may_repeat = (proved || self.retry_safe()) && self.caller != Caller::GaveUp && !is_lost;
        let helps = classified.nature == Nature::Transient && may_repeat;
        let is_ours = matches!(self.sight, Sight::Fine | Sight::Down);
        let mut stop = None;
        if helps && is_ours && attempt.cut != Some(Cut::TooLong) {
            let last = self.last_word(classified, None, attempt.cut);
            self.last = Some((classified.clone(), last));
            match self.retry(&attempt, classified) {
                Ok(due) => return due,
                Err(why) => stop = Some(why),
            }
        }
        if let Some(Stopped::Schedule(stop)) = stop {
            self.notices.push(Notice::RetryStopped { stop });
        }
        let may_have_run = classified.reach == Reach::Unknown && !self.retry_safe();
        let answers_cancel =
            classified.reach == Reach::Answered && self.caller == Caller::GaveUp && !self.retry_safe();
        if self.record.is_some() && self.dedupes() && (may_have_run || answers_cancel) {
            let linger = self.caller == Caller::GaveUp && seen == Observed::ErrorAnswer;
            let settles = match (seen, self.request.end) {
                _ if linger => SettlesIn::After(self.policy.settling.linger),
                (Observed::ErrorAnswer, _) => SettlesIn::After(self.policy.settling.settle),
                (_, AttemptEnd::Seen) => SettlesIn::WhenOwnerSays,
                (_, AttemptEnd::Unseen) => SettlesIn::After(self.policy.settling.linger),
            };
            let severity = Some(classified.severity);
            let settling = self.settling(seen, severity, Code::OutcomeUnknown, &classified.rule);
            return self.becomes_unknown(Settling { output: output.cloned(), ..settling }, settles);
        }
        let failed = self.last_word(classified, stop, attempt.cut);
        let unknown =
            (failed.code == Code::OutcomeUnknown).then_some(ToldUnknown { observed: seen, ended: false });
        let breaker = matches!(stop, Some(Stopped::Breaker(_)))
            .then(|| self.machines.breaker.state(&self.policy.breaker, self.now));
        let mut told = Told { breaker, unknown, ..self.told(Err(failed)) };
        if self.is_callers_limit(&attempt) {
            told = self.judge(told, None);
            self.is_judged = true;
        }
        self.settle_failed(told, Some(classified))
    }

    fn retry(&mut self, attempt: &Attempt, classified: &Classified) -> Result<Due, Stopped> {
        let (now, policy) = (self.now, self.policy.clone());
        if policy.modes.retry == Mode::Off {
            return Err(Stopped::NotAsked);
        }
        let schedule = self.schedule.as_mut().ok_or(Stopped::NotAsked)?;
        let until = schedule
            .next(&policy.retry, attempt.started, classified.retry_after, now)
            .map_err(Stopped::Schedule)?;
        let breakers = [Some(&self.machines.breaker), self.machines.dependency.as_ref()];
        let mut refused =
            breakers.into_iter().flatten().filter_map(|breaker| breaker.check(&policy.breaker, until).err());
        if policy.modes.breaker == Mode::Enforce
            && let Some(refused) = refused.next()
        {
            return Err(Stopped::Breaker(refused));
        }
        if !self.machines.budget.withdraw(&policy.retry.budget, now) {
            return Err(Stopped::Schedule(Stop::Budget));
        }
        self.notices.push(Notice::RetryScheduled { attempt: self.attempts + 1, at: until });
        self.retries.push((attempt.number, now.since(attempt.started), until.since(now)));
        self.state = State::BackingOff(until);
        Ok(Due::Wait)
    }

    /// The failure that the caller gets.
    fn last_word(&self, classified: &Classified, stop: Option<Stopped>, cut: Option<Cut>) -> Failed {
        let is_transient = classified.nature == Nature::Transient;
        let rule = classified.rule.to_string();
        if classified.reach == Reach::Unknown && !self.retry_safe() {
            return failed(Code::OutcomeUnknown, &rule, false);
        }
        let is_stuck =
            self.policy.time.silence == Silence::Stuck && matches!(cut, Some(Cut::Silent(_) | Cut::TooLong));
        let deadline = || (Code::DeadlineExceeded, "deadline".to_owned());
        let (code, rule) = match stop {
            _ if cut == Some(Cut::Deadline) => deadline(),
            None | Some(Stopped::NotAsked) if is_stuck => (Code::StuckCall, rule),
            None | Some(Stopped::NotAsked) => (classified.code, rule),
            Some(Stopped::Breaker(refused)) => (Code::CircuitOpen, refused.by.rule().to_owned()),
            Some(Stopped::Schedule(Stop::Deadline)) => deadline(),
            Some(Stopped::Schedule(Stop::Budget)) => (Code::RetryExhausted, "retry_budget".to_owned()),
            Some(Stopped::Schedule(_)) if is_stuck => (Code::StuckCall, rule),
            Some(Stopped::Schedule(Stop::Attempts)) if self.attempts == 1 => (classified.code, rule),
            Some(Stopped::Schedule(_)) => (Code::RetryExhausted, rule),
        };
        let retry_after = match stop {
            Some(Stopped::Schedule(Stop::RetryAfter(wait))) => Some(wait),
            Some(Stopped::Breaker(refused)) => refused.retry_at.map(|at| at.since(self.now)),
            Some(Stopped::NotAsked | Stopped::Schedule(_)) | None => classified.retry_after,
        };
        Failed { code, rule: Some(rule), retriable: is_transient, retry_after }
    }

    fn too_late(&mut self, stop: Stop) -> Due {
        let Some((classified, last)) = self.last.take() else { return self.give_up() };
        let code = if stop == Stop::Deadline { Code::DeadlineExceeded } else { Code::RetryExhausted };
        let told = self.told(Err(Failed { code, ..last }));
        self.settle_failed(told, Some(&classified))
    }

    fn give_up(&mut self) -> Due {
        let last = self.last.take();
        let (classified, failed) =
            last.map_or((None, store_unavailable()), |(classified, last)| (Some(classified), last));
        let told = Told { recorded: Recorded::No, ..self.told(Err(failed)) };
        let told = match classified {
            Some(classified) => self.judge_run(told, Some(classified.severity), classified.mistake),
            None => self.judge(told, None),
        };
        let kept = self.release_of_claim().filter(|_| self.sight != Sight::Lost);
        self.finish(told, kept.map(Kept::Release).into_iter().collect())
    }

    fn refused_again(&mut self, refusal: Refusal) -> Due {
        let severity = self.last.take().map(|(classified, _)| classified.severity);
        let told = Told { breaker: refusal.breaker, ..self.told(Err(refusal.failed)) };
        let told = self.judge_run(told, severity, None);
        self.release(told, Vec::new())
    }

    /// What becomes of the record of a call that failed.
    fn settle_failed(&mut self, told: Told, classified: Option<&Classified>) -> Due {
        let severity = classified.map(|classified| classified.severity);
        let mistake = classified.and_then(|classified| classified.mistake);
        let told = self.judge_run(told, severity, mistake);
        let Err(failed) = told.ended.clone() else { return self.finish(told, Vec::new()) };
        // Others get what the tool did, not what our breaker or this caller's clock made of it.
        let kept = match (failed.code, classified) {
            (Code::CircuitOpen | Code::DeadlineExceeded, Some(classified)) => {
                Failed { code: classified.code, rule: Some(classified.rule.to_string()), ..failed }
            }
            _ => failed,
        };
        match classified.map(|classified| classified.reach) {
            Some(Reach::Unknown) if !self.retry_safe() => {
                self.notices.push(Notice::OutcomeUnknown { of_earlier: None });
                self.save(told, Ended::Unknown(SettlesIn::Settled, Observed::NoAnswer, None))
            }
            Some(Reach::Answered) => self.save(told, Ended::Failed(kept)),
            Some(_) if self.policy.dedupe.cache_failures == CacheFailures::All => {
                self.save(told, Ended::Failed(kept))
            }
            Some(_) | None => self.release(told, Vec::new()),
        }
    }

    // ---- unknown outcomes ----

    fn becomes_unknown(&mut self, settling: Settling, settles: SettlesIn) -> Due {
        self.notices.push(Notice::OutcomeUnknown { of_earlier: None });
        self.settling_since.get_or_insert(self.now);
        self.mark(settling, settles)
    }

    fn mark(&mut self, mut settling: Settling, settles: SettlesIn) -> Due {
        settling.settles = settles;
        settling.by = by(settles, self.now);
        let ending = Ended::Unknown(settles, settling.observed, settling.output.clone());
        match self.saved(ending).filter(|_| self.sight != Sight::Down) {
            Some(saved) => {
                self.state = State::Marking(settling);
                Due::Save(saved)
            }
            None => {
                settling.unsaved = self.record.is_some();
                settling.save_at = Some(self.now + Duration::from_secs(1));
                self.marked(settling)
            }
        }
    }

    fn marked(&mut self, mut settling: Settling) -> Due {
        let now = self.now;
        if settling.by.is_none() && self.observed_until(&settling).is_some_and(|until| until <= now) {
            return self.mark(settling, SettlesIn::After(self.policy.settling.linger));
        }
        let is_due = settling.save_at.is_some_and(|at| at <= now);
        if settling.attempt.is_some() && settling.unsaved && is_due {
            let left = left(settling.by, now);
            return self.mark(settling, left);
        }
        let is_settled = settling.by.is_some_and(|by| by <= now);
        if is_settled && let Some(mut attempt) = settling.attempt.take() {
            self.leave_places(&mut attempt);
            settling.attempt = Some(attempt);
        }
        if std::mem::take(&mut settling.cancel) && settling.attempt.is_some() {
            settling.speaks_until = Some(now + Duration::from_millis(100));
            self.state = State::Settling(settling);
            return Due::CancelUpstream;
        }
        let end = end(settling.by, now);
        let may_speak = speaks_until(&settling).is_none_or(|until| until <= now);
        if self.is_waited_for() && may_speak && (is_settled || !self.can_wait(end)) {
            return self.tell(settling);
        }
        let is_all = !self.is_waited_for() && settling.attempt.is_none() && settling.by.is_some();
        if is_all || self.observed_until(&settling).is_some_and(|until| until <= now) {
            return self.close(settling);
        }
        self.state = State::Settling(settling);
        Due::Wait
    }

    /// How long the attempt is listened to.
    fn observed_until(&self, settling: &Settling) -> Option<Timestamp> {
        if self.request.end == AttemptEnd::Seen && settling.by.is_none() {
            return self.settling_since.map(|since| since + self.policy.settling.to_end_child());
        }
        let total = settling.attempt.as_ref()?.watchdog.total_at();
        Some(speaks_until(settling).map_or(total, |until| until.max(total)))
    }

    fn settling_wakes_at(&self, settling: &Settling) -> Option<Timestamp> {
        let told = |at: Timestamp| speaks_until(settling).map_or(at, |until| until.max(at));
        let waits = self.is_waited_for().then(|| told(self.waits_until()));
        let by = settling.by.filter(|_| self.is_waited_for()).map(told);
        let has_places = settling.attempt.as_ref().is_some_and(|attempt| attempt.tickets.has_places);
        let leaves = settling.by.filter(|_| has_places);
        let saves = settling.save_at.filter(|_| settling.unsaved && settling.attempt.is_some());
        [waits, by, leaves, saves, self.observed_until(settling)].into_iter().flatten().min()
    }

    fn end_was_seen(&mut self, mut settling: Settling) -> Due {
        if settling.by.is_some() {
            return self.marked(settling);
        }
        self.drop_attempt(&mut settling);
        let after = self.policy.settling.after_child();
        let settles = if after.is_zero() { SettlesIn::Settled } else { SettlesIn::After(after) };
        self.mark(settling, settles)
    }

    fn drop_attempt(&mut self, settling: &mut Settling) {
        let Some(mut attempt) = settling.attempt.take() else { return };
        self.leave_places(&mut attempt);
        let fault = Fault::new(Source::Timeout { after: self.now.since(attempt.started) }, "");
        let classified = classify(&fault, &self.policy.classify, self.now);
        self.attempt_ended(&attempt, Some((&classified, Observed::NoAnswer)));
    }

    fn ran_late(&mut self, mut settling: Settling, outcome: &Outcome) -> Due {
        // A driver that could not send it says so, without any words of the tool.
        if let Outcome::Failure { fault, output: None } = outcome {
            let classified = classify(fault, &self.policy.classify, self.now);
            if classified.reach == Reach::NotSent
                && let Some(attempt) = settling.attempt.take()
            {
                return self.never_began(
                    attempt,
                    fault,
                    &classified,
                    failed(Code::UpstreamUnavailable, "not_sent", true),
                );
            }
        }
        let says_something = matches!(
            outcome,
            Outcome::Success { .. } | Outcome::InputRequired { .. } | Outcome::NotRun { .. }
        );
        match settling.attempt.take() {
            Some(attempt) if says_something => self.ran(attempt, outcome),
            attempt => {
                settling.attempt = attempt;
                self.drop_attempt(&mut settling);
                self.marked(settling)
            }
        }
    }

    fn tell(&mut self, mut settling: Settling) -> Due {
        let told = self.unknown(&settling);
        if settling.attempt.is_none() && settling.by.is_some() {
            let kept = self.unsaved(&mut settling);
            return self.finish(told, kept);
        }
        self.answer_early(State::Settling(settling), told, Upstream::LeaveAlone)
    }

    fn close(&mut self, mut settling: Settling) -> Due {
        self.drop_attempt(&mut settling);
        let told = self.unknown(&settling);
        let kept = self.unsaved(&mut settling);
        self.finish(told, kept)
    }

    /// What has to be recorded still. Where nobody will say that it is over, it is when its child was ended in any case.
    fn unsaved(&self, settling: &mut Settling) -> Vec<Kept> {
        if !std::mem::take(&mut settling.unsaved) {
            return Vec::new();
        }
        let policy = &self.policy.settling;
        let settles = match left(settling.by, self.now) {
            SettlesIn::WhenOwnerSays => {
                SettlesIn::After((policy.to_end_child() + policy.after_child()).max(policy.linger))
            }
            settles => settles,
        };
        let ending = Ended::Unknown(settles, settling.observed, settling.output.clone());
        self.saved(ending).map(Kept::Save).into_iter().collect()
    }

    fn unknown(&mut self, settling: &Settling) -> Told {
        let end = end(settling.by, self.now);
        let is_over = end == End::Settled;
        let is_keyless = self.address().is_some_and(|address| address.index().is_some());
        let runs_in = (is_keyless && !self.holds()).then_some(self.policy.dedupe.after_telling);
        let retry_after = self.comes_again(end, runs_in);
        let recorded = match (&self.record, &settling.receipt) {
            (None, _) => Recorded::NotAsked,
            (Some(_), Some(_)) => Recorded::Yes,
            (Some(_), None) => Recorded::No,
        };
        let told = Told {
            recorded,
            receipt: settling.receipt.clone().filter(|_| is_over),
            unknown: Some(ToldUnknown { observed: settling.observed, ended: is_over }),
            ..self.told(Err(Failed { retry_after, ..failed(settling.code, &settling.rule, false) }))
        };
        match settling.severity {
            Some(severity) => self.judge_run(told, Some(severity), None),
            None => self.judge(told, None),
        }
    }

    // ---- callers who leave ----

    fn cancelled(&mut self, state: State, others: Others) -> Due {
        let told = self.told(Err(cancelled()));
        match state {
            State::Looking(_) | State::Following(_) | State::AwaitingEnd(..) => {
                self.abandon();
                self.finish(told, Vec::new())
            }
            State::Claiming(..) | State::GivingBack => {
                self.abandon();
                self.doubt();
                self.finish(told, Vec::new())
            }
            State::Attempting(attempt) => self.cancel_attempt(attempt, told, others),
            State::Settling(settling) => self.leaves_settling(settling, Some(told)),
            State::Marking(_) | State::Saving(..) | State::Releasing(..) | State::Finished => {
                self.stay(state)
            }
            state if others == Others::Waiting => match self.is_waited_for() {
                true => self.answer_early(state, told, Upstream::LeaveAlone),
                false => self.stay(state),
            },
            state => {
                match state {
                    State::AwaitingApproval { .. } => {
                        self.notices.push(Notice::ApprovalEnded { granted: false });
                    }
                    State::Probing(_, tickets) => self.step_back(tickets),
                    _ => {}
                }
                self.abandon();
                self.release(told, Vec::new())
            }
        }
    }

    fn cancel_attempt(&mut self, mut attempt: Attempt, told: Told, others: Others) -> Due {
        match (others, self.caller) {
            (Others::None, _) if attempt.cut.is_some() => {
                self.caller = Caller::GaveUp;
                self.stay(State::Attempting(attempt))
            }
            (Others::Waiting, Caller::Waiting) if attempt.cut.is_none() => {
                self.answer_early(State::Attempting(attempt), told, Upstream::LeaveAlone)
            }
            (Others::Waiting, _) => self.stay(State::Attempting(attempt)),
            (Others::None, _) if self.may_be_cut() => {
                self.caller = Caller::GaveUp;
                self.notices.push(Notice::AttemptCut { cut: Cut::Cancelled });
                attempt.cut = Some(Cut::Cancelled);
                self.state = State::Attempting(attempt);
                Due::Cut(Cut::Cancelled)
            }
            (Others::None, Caller::Waiting) => {
                self.answer_early(State::Attempting(attempt), told, Upstream::Cancel)
            }
            (Others::None, Caller::Gone) => {
                self.caller = Caller::GaveUp;
                self.state = State::Attempting(attempt);
                Due::CancelUpstream
            }
            (Others::None, Caller::GaveUp) => self.stay(State::Attempting(attempt)),
        }
    }

    fn leaves_settling(&mut self, mut settling: Settling, told: Option<Told>) -> Due {
        match told.filter(|_| self.is_waited_for()) {
            Some(told) if settling.attempt.is_none() && settling.by.is_some() => {
                self.abandon();
                let kept = self.unsaved(&mut settling);
                self.finish(told, kept)
            }
            Some(told) => self.answer_early(State::Settling(settling), told, Upstream::LeaveAlone),
            None => {
                if self.is_waited_for() {
                    self.caller = Caller::Gone;
                }
                self.marked(settling)
            }
        }
    }

    fn disconnected(&mut self, state: State, others: Others) -> Due {
        let was_sent = self.attempts > 0;
        match state {
            State::Settling(settling) => self.leaves_settling(settling, None),
            // A disconnect never ends what was started.
            State::Attempting(_)
            | State::Marking(_)
            | State::BackingOff(_)
            | State::Saving(..)
            | State::Releasing(..)
            | State::Finished => self.is_left(state),
            State::Probing(..) | State::Renewing if was_sent => self.is_left(state),
            state => self.cancelled(state, others),
        }
    }

    fn is_left(&mut self, state: State) -> Due {
        if self.is_waited_for() {
            self.caller = Caller::Gone;
        }
        self.stay(state)
    }

    fn renewed(&mut self, verdict: RenewVerdict, sent: Timestamp) {
        match verdict {
            RenewVerdict::Renewed => {
                let until = sent.min(self.now) + self.policy.dedupe.keep.lease;
                self.lease_until = self.lease_until.max(until);
            }
            RenewVerdict::MarkedUnknown => self.sight = Sight::MarkedUnknown,
            RenewVerdict::Lost => self.fence_is_lost(),
        }
    }

    fn fence_is_lost(&mut self) {
        if self.sight == Sight::Fine {
            self.notices.push(Notice::FenceLost);
        }
        self.sight = Sight::Lost;
    }

    // ---- who counts it ----

    fn guarded(&self) -> GuardedCall<'_> {
        GuardedCall {
            tool: &self.request.tool,
            arguments: self.request.digest,
            turn: self.request.turn.as_ref(),
        }
    }

    fn with_guard<R>(
        &mut self,
        act: impl FnOnce(&mut LoopGuard, &Policy, GuardedCall<'_>, Timestamp) -> R,
    ) -> R {
        let call = GuardedCall {
            tool: &self.request.tool,
            arguments: self.request.digest,
            turn: self.request.turn.as_ref(),
        };
        act(&mut self.machines.guard, &self.policy, call, self.now)
    }

    fn enter(&mut self) {
        if self.policy.modes.guard != Mode::Off && !std::mem::replace(&mut self.is_entered, true) {
            self.with_guard(|guard, policy, call, now| guard.begin(&policy.guard, call, now));
        }
    }

    fn leave_guard(&mut self) {
        self.with_guard(|guard, policy, call, now| guard.abandon(&policy.guard, call, now));
    }

    /// The guard hears of what a caller is told, once.
    fn judge(&mut self, told: Told, mistake: Option<Mistake>) -> Told {
        if std::mem::replace(&mut self.is_judged, true) || self.policy.modes.guard == Mode::Off {
            return told;
        }
        self.enter();
        let told_before =
            self.request.in_turn && told.replayed.is_some_and(|reason| reason != ReplayReason::Waited);
        let says_nothing = match &told.ended {
            Ok(_) => false,
            Err(failed) => {
                matches!(failed.code, Code::InFlight | Code::Cancelled)
                    || told.unknown.is_some() && self.dedupes()
            }
        };
        if !self.is_waited_for() || told_before || says_nothing {
            self.leave_guard();
            return told;
        }
        let is_ok = told.ended.is_ok();
        let remarks = self.with_guard(|guard, policy, call, now| {
            let ending = match is_ok {
                true => Ending::Success { result: None },
                false => Ending::Failure { message: "", mistake },
            };
            guard.end(&policy.guard, call, ending, now)
        });
        self.notices.extend(remarks.iter().map(|remark| Notice::GuardTripped { layer: remark.layer }));
        // One answer, one instruction: a refusal that says when to come again is not told with "do not retry".
        let is_refusal = told.ended.as_ref().is_err_and(|failed| {
            self.attempts == 0
                && failed.code.is_refusal()
                && (failed.retry_after.is_some()
                    || matches!(
                        failed.code,
                        Code::ApprovalRequired | Code::ApprovalDenied | Code::ToolBlocked
                    ))
        });
        Told { remarks: if is_refusal { 0 } else { remarks.len() }, ..told }
    }

    fn trust_hears(&mut self, finished: Finished) {
        let rules = steadfast_core::trust::Rules {
            signature: &self.policy.trust,
            domain: self.policy.domain_trust.as_ref(),
        };
        let subject = Subject {
            tool: &self.request.tool,
            signature: &self.request.signature,
            domain: self.request.domain.as_ref(),
        };
        let changes = self.machines.trust.record_begun(rules, subject, finished, self.arrived, self.now);
        self.notices.extend(changes.into_iter().map(Notice::TrustChanged));
    }

    /// A dangerous command that was run costs the tool its trust, whatever came of it.
    fn danger_counts(&mut self) {
        if self.request.danger.is_some() && self.policy.approval.dangerous == Dangerous::Record {
            self.trust_hears(Finished::Failure { severity: Severity::Security, recoverable: true });
        }
    }

    /// Trust and guard hear of a call that ran, once.
    fn judge_run(&mut self, told: Told, severity: Option<Severity>, mistake: Option<Mistake>) -> Told {
        if self.is_judged {
            return told;
        }
        if self.policy.modes.trust != Mode::Off {
            let severity = severity.or(told.ended.is_err().then_some(Severity::Informational));
            self.trust_hears(match severity {
                Some(severity) => Finished::Failure { severity, recoverable: true },
                None => Finished::Success,
            });
            self.danger_counts();
        }
        self.judge(told, mistake)
    }

    fn abandon(&mut self) {
        if std::mem::replace(&mut self.is_judged, true) {
            return;
        }
        if self.is_entered {
            self.leave_guard();
        }
        if self.attempts > 0 && self.policy.modes.trust != Mode::Off {
            self.danger_counts();
        }
    }

    /// What it was called for has not begun: neither counts anything.
    fn put_off(&mut self) {
        if self.is_entered && !std::mem::replace(&mut self.is_judged, true) {
            self.leave_guard();
        }
    }

    // ---- ends ----

    fn told(&self, ended: Result<Option<Output>, Failed>) -> Told {
        Told {
            ended,
            asks: false,
            replayed: None,
            attempts: self.attempts,
            retries: self.retries.clone(),
            took: self.now.since(self.arrived),
            recorded: Recorded::NotAsked,
            receipt: None,
            remarks: 0,
            breaker: None,
            unknown: None,
        }
    }

    fn saved(&self, ending: Ended) -> Option<Saved> {
        let record = self.record.as_ref()?;
        Some(Saved {
            owner: record.owner.clone(),
            key: record.key,
            started: record.started,
            ending,
            attempts: self.facts.clone(),
            hold: self.holds(),
        })
    }

    fn save(&mut self, told: Told, ending: Ended) -> Due {
        let Some(saved) = self.saved(ending.clone()) else { return self.finish(told, Vec::new()) };
        if self.sight == Sight::Down {
            return self.finish(Told { recorded: Recorded::No, ..told }, vec![Kept::Save(saved)]);
        }
        self.state = State::Saving(told, ending);
        Due::Save(saved)
    }

    fn release_of_claim(&self) -> Option<Release> {
        let record = self.record.as_ref()?;
        Some(Release { key: record.key, index: record.index, owner: record.owner.clone() })
    }

    fn release(&mut self, told: Told, mut kept: Vec<Kept>) -> Due {
        if self.attempts == 0
            && let Some((grant, owner)) = self.spent.take()
        {
            kept.push(Kept::GiveBack(grant, owner));
        }
        match self.release_of_claim() {
            None => self.finish(told, kept),
            Some(release) if self.sight == Sight::Down => {
                kept.push(Kept::Release(release));
                self.finish(told, kept)
            }
            Some(release) => {
                self.state = State::Releasing(told, kept);
                Due::Release(release)
            }
        }
    }

    /// An answer that comes late may have missed its caller: it is given again.
    fn if_in_time(&self, told: Told) -> Told {
        let has_waited = self.attempts == 0 || self.request.run_by == RunBy::Driver;
        let is_late = has_waited && told.took > self.policy.dedupe.late_after;
        let receipt = told.receipt.filter(|_| !is_late);
        Told { receipt, ..told }
    }

    fn answer_early(&mut self, state: State, told: Told, upstream: Upstream) -> Due {
        let told = self.if_in_time(told);
        if let Err(failed) = &told.ended {
            self.notices.push(Notice::AnsweredEarly { code: failed.code });
        }
        self.state = state;
        self.caller = if upstream == Upstream::Cancel { Caller::GaveUp } else { Caller::Gone };
        Due::Answer(told, upstream)
    }

    fn finish(&mut self, told: Told, mut kept: Vec<Kept>) -> Due {
        if let Some(address) = self.address() {
            let (key, index) = (address.own(), address.index());
            let doubts = std::mem::take(&mut self.doubts).into_iter();
            kept.extend(doubts.map(|owner| Kept::Release(Release { key, index, owner })));
        }
        let told = self.if_in_time(Told { took: self.now.since(self.arrived), ..told });
        self.notices.push(Notice::CallFinished {
            code: told.ended.as_ref().err().map(|failed| failed.code),
            took: told.took,
            attempts: told.attempts,
            replayed: told.replayed.is_some(),
        });
        self.state = State::Finished;
        Due::Finish(told, kept)
    }

    fn stay(&mut self, state: State) -> Due {
        self.state = state;
        Due::Stay
    }
}

/// Why there is no further attempt.
#[derive(Clone, Copy)]
enum Stopped {
    NotAsked,
    Schedule(Stop),
    Breaker(breaker::Refused),
}

fn is_probe(ticket: &Option<Ticket>) -> bool {
    ticket.as_ref().is_some_and(Ticket::is_probe)
}

fn is_session_lost(fault: &Fault) -> bool {
    fault.source == Source::SessionLost || steadfast_core::classify::is_session_lost(fault)
}

fn changed(scope: BreakerScope, change: Option<Transition>) -> Option<Notice> {
    change.map(|transition| Notice::BreakerChanged { scope, transition })
}

fn by(settles: SettlesIn, now: Timestamp) -> Option<Timestamp> {
    match settles {
        SettlesIn::WhenOwnerSays => None,
        SettlesIn::After(span) => Some(now + span),
        SettlesIn::Settled => Some(now),
    }
}

fn left(by: Option<Timestamp>, now: Timestamp) -> SettlesIn {
    match by {
        None => SettlesIn::WhenOwnerSays,
        Some(by) if by <= now => SettlesIn::Settled,
        Some(by) => SettlesIn::After(by.since(now)),
    }
}

fn end(by: Option<Timestamp>, now: Timestamp) -> End {
    match by {
        Some(by) if by <= now => End::Settled,
        by => End::NotYet(by.map(|by| by.since(now))),
    }
}

fn speaks_until(settling: &Settling) -> Option<Timestamp> {
    settling.speaks_until.filter(|_| settling.attempt.is_some())
}

fn observed(source: &Source) -> Observed {
    use steadfast_core::classify::Transport;
    match source {
        Source::Timeout { .. } | Source::Transport { error: Transport::TimedOut, .. } => Observed::NoAnswer,
        Source::Transport { .. } | Source::WebSocket { .. } => Observed::ConnectionLost,
        Source::Exit { .. } => Observed::ProcessDied,
        _ => Observed::ErrorAnswer,
    }
}

pub(super) fn of_failure(failure: &steadfast_core::dedupe::Failure) -> Failed {
    Failed {
        code: failure.code,
        rule: failure.rule.as_ref().map(ToString::to_string),
        retriable: failure.retriable,
        retry_after: failure.retry_after,
    }
}

fn by_us(failed: Failed) -> Refusal {
    Refusal { failed, breaker: None, by: By::Us }
}

fn not_approved(operator_only: bool) -> Refusal {
    let failed = match operator_only {
        true => failed(Code::ToolBlocked, "trust.blocked", false),
        false => failed(Code::ApprovalRequired, "trust.escalated", false),
    };
    Refusal { failed, breaker: None, by: By::Trust { operator_only } }
}

fn approval_lost() -> Failed {
    failed(Code::ApprovalRequired, "approval", false)
}

fn store_unavailable() -> Failed {
    failed(Code::StoreUnavailable, "store", true)
}

fn deadline_passed() -> Failed {
    failed(Code::DeadlineExceeded, "deadline", false)
}

fn in_flight() -> Failed {
    failed(Code::InFlight, "in_flight", true)
}

fn cancelled() -> Failed {
    Failed { code: Code::Cancelled, rule: None, retriable: false, retry_after: None }
}
