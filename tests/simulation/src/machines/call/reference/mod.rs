//! The next step of a call, derived from the path of a call in ARCHITECTURE.md and from the decisions in the design.
//!
//! The machines that calls share are a second copy of the core's own. The reference decides what a call reports to
//! them. Afterwards they have to equal those that the call itself was lent.

mod attempts;
mod claims;
mod ends;
mod leaving;
mod unknown;

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

/// The expected step.
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

/// The expected save, and its claim.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Saved {
    pub(super) owner: Owner,
    pub(super) key: Key,
    pub(super) started: bool,
    pub(super) ending: Ended,
    /// The attempts in the record: number, start, end, the code of a failure, and whether it is transient.
    pub(super) attempts: Vec<(u32, Timestamp, Timestamp, Option<Code>, bool)>,
    pub(super) hold: bool,
}

/// The end that a record gets.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ended {
    Done(Option<Output>),
    Failed(Failed),
    Unknown(SettlesIn, Observed, Option<Output>),
}

/// The work that is left after the end of a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kept {
    Save(Saved),
    Park { operator_only: bool },
    Release(Release),
    GiveBack(GrantId, Owner),
}

/// A failure without its texts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Failed {
    pub(super) code: Code,
    pub(super) rule: Option<String>,
    pub(super) retriable: bool,
    pub(super) retry_after: Option<Duration>,
}

/// A response without its texts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Told {
    pub(super) ended: Result<Option<Output>, Failed>,
    pub(super) asks: bool,
    pub(super) replayed: Option<ReplayReason>,
    pub(super) attempts: u32,
    /// Each retry: number of the failed attempt, its duration, and the wait after it.
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

/// The relation between the call and its record.
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

/// An unknown outcome.
#[derive(Debug)]
struct Settling {
    attempt: Option<Attempt>,
    observed: Observed,
    output: Option<Output>,
    severity: Option<Severity>,
    /// The code and the rule with which it is reported.
    code: Code,
    rule: String,
    settles: SettlesIn,
    by: Option<Timestamp>,
    cancel: bool,
    receipt: Option<Receipt>,
    /// Before this time the tool may still say that it was never reached.
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

/// The reference of one call.
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

    /// Returns the step that follows from an event.
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
                ClaimVerdict::Nothing
                | ClaimVerdict::Mine(_)
                | ClaimVerdict::Full
                | ClaimVerdict::Closed
                | ClaimVerdict::RecordsLost => self.refuse(refusal),
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

    /// Returns the time at which the call has to be woken.
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

    /// Returns the claim that is renewed while the call is open.
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

    // ---- queries ----

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

    /// Returns true if it continues when the store cannot be asked (D17).
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

    /// Returns true if an unknown outcome is held until an operator resolves it.
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

    /// Returns the time until which its caller waits for the end of a run.
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

    /// Returns the time at which its caller learns that the call is still running.
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
}

/// The reason for making no further attempt.
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
