//! One replay: recorded calls on the machines of today, in virtual time.
//!
//! A call is on its *recorded path* for as long as its machine asks for what it asked for then: it is told what happened
//! next, at the moment and in the order in which it did, and only what the store decides is decided anew. Once it asks for
//! something else it is on a path of its own: its timers, its attempts with the lengths that they had, and the wishes of its
//! caller are put on a calendar, and what nobody can know ends it as not known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::facts::{AttemptOutcome, Ending, FailedOutcome, Manner, Moment, Recorded, What, nothing};
use super::machines::{Believed, Machines, Uses};
use super::{End, NotKnown, Replayed, WhyTaken};
use crate::Timestamp;
use crate::approval::{Approvals, Decision, GrantId, Grantor, Spend, Wanted};
use crate::breaker::Verdict;
use crate::call::{
    Approval, Call, CallResult, Duplicates, Event, Notice, Others, Outcome, Request, Step, StoreFault, Wake,
};
use crate::classify::{Fault, Nature, Reach, Severity, Source};
use crate::code::{Code, Status};
use crate::dedupe::{
    Absence, Address, Claim, ClaimVerdict, Ending as Kept, Failure, Intent, LeaseSight, Owner, Record,
    RecordState, Records, Role, Rules, Save,
};
use crate::guard::{self, GuardedCall};
use crate::key::Key;
use crate::policy::{ComputedKeys, Mode, Policy, ToolClass};
use crate::trust::{Escalation, Finished, Rules as TrustRules, Subject};

/// Something that was recorded, in the order in which it happened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Happened {
    pub(super) at: Timestamp,
    pub(super) call: usize,
    /// Which of its moments; nothing where only its end is known.
    pub(super) moment: Option<usize>,
}

/// A replay under way.
pub(super) struct World<'a> {
    calls: &'a [Recorded],
    policies: &'a mut dyn FnMut(&Recorded) -> Arc<Policy>,
    /// The replay that this one is compared with. Without one, the recording itself is what has to come out.
    before: Option<&'a Replayed>,
    /// The call whose steps are kept.
    told: Option<usize>,
    machines: Machines,
    /// The store that all share, and the memory of each engine.
    records: BTreeMap<Memory, Records>,
    active: BTreeMap<usize, Active>,
    followers: BTreeMap<Key, BTreeSet<usize>>,
    /// How leaders were refused for whom somebody waited.
    refusals: BTreeMap<Key, Failure>,
    calendar: BTreeMap<(Timestamp, u64), (usize, Due)>,
    put: u64,
    uncertain: BTreeSet<Touched>,
    replayed: Replayed,
    /// Where we are in the recording.
    place: usize,
}

/// A call under way.
struct Active {
    call: Call,
    uses: Uses,
    /// What people had allowed it.
    approvals: Approvals,
    /// What it asked for last, and has not got yet.
    pending: Step,
    /// The moment that it was told last.
    moment: usize,
    /// Whether it has left its recorded path.
    own: bool,
    /// The attempt that runs, and since when.
    attempt: Option<(u32, Timestamp)>,
    held: Option<Key>,
    following: Option<Key>,
}

/// What is due for a call on a path of its own.
#[derive(Clone, Debug)]
enum Due {
    Wake,
    Ran(u32),
    Progress(u32),
    Cancelled(Others),
    Gone(Others),
    Over(Option<Box<Failure>>),
}

/// What a run of which nobody knows the outcome has left its traces on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Touched {
    Tool(crate::id::ToolRef),
    Session(Option<crate::id::SessionKey>),
    Record(Key),
}

impl<'a> World<'a> {
    pub(super) fn new(
        calls: &'a [Recorded],
        policies: &'a mut dyn FnMut(&Recorded) -> Arc<Policy>,
        before: Option<&'a Replayed>,
        told: Option<usize>,
    ) -> Self {
        Self {
            calls,
            policies,
            before,
            told,
            machines: Machines::default(),
            records: BTreeMap::new(),
            active: BTreeMap::new(),
            followers: BTreeMap::new(),
            refusals: BTreeMap::new(),
            calendar: BTreeMap::new(),
            put: 0,
            uncertain: BTreeSet::new(),
            replayed: Replayed::of(calls.len()),
            place: 0,
        }
    }

    pub(super) fn run(mut self, order: &[Happened], progress: &mut dyn FnMut(usize)) -> Replayed {
        let before = self.before;
        for (place, happened) in order.iter().enumerate() {
            if place % 4096 == 0 {
                progress(place);
                self.records.values_mut().for_each(|records| records.sweep(happened.at));
            }
            self.place = place;
            self.do_what_is_due(happened.at);
            if let Some((call, believed)) = before.and_then(|before| before.wrong.get(&place)) {
                self.forget(*call, *believed, happened.at);
            }
            self.happened(*happened);
        }
        self.do_what_is_due(Timestamp::MAX);
        // Nothing is left that could end them.
        for index in self.active.keys().copied().collect::<Vec<_>>() {
            self.end_as(index, End::NotKnown(NotKnown::Run { attempt: 0 }));
        }
        self.replayed
    }

    // ---- what was recorded ----

    fn happened(&mut self, happened: Happened) {
        let Happened { call: index, moment, .. } = happened;
        let Some(recorded) = self.calls.get(index) else { return };
        let Some(at) = moment else {
            self.end_as(index, End::Taken(WhyTaken::TooLittleIsKnown));
            return self.take(index, recorded.ended);
        };
        let now = recorded.moment_at(at);
        let is_last = at + 1 == recorded.trail.len();
        let taken = self.before.and_then(|before| before.calls.get(index)).map(|before| &before.end);
        if let Some(End::Taken(why)) = taken {
            self.end_as(index, End::Taken(*why));
        }
        if matches!(self.end_of(index), Some(End::Taken(_))) {
            if is_last {
                self.take(index, now);
            }
        } else if at == 0 {
            self.begin(index, recorded, now);
        } else {
            self.go_on(index, recorded, at, now);
        }
    }

    fn begin(&mut self, index: usize, recorded: &Recorded, now: Timestamp) {
        let policy = self.policy(recorded);
        let request = request(recorded, &policy);
        let approvals = allowed(recorded, &policy, now);
        let uses = Uses::of(recorded);
        let mut notices = Vec::new();
        let (call, step) = self.machines.lend(&uses, &approvals, |shared| {
            Call::begin(shared, request, policy, recorded.seed, now, &mut notices)
        });
        self.keep_steps(index, notices, now);
        let active = Active {
            call,
            uses,
            approvals,
            pending: Step::Stay,
            moment: 0,
            own: false,
            attempt: None,
            held: None,
            following: None,
        };
        self.settle(index, active, step, now);
    }

    fn go_on(&mut self, index: usize, recorded: &Recorded, at: usize, now: Timestamp) {
        let Some(mut active) = self.active.remove(&index) else { return };
        let Some(moment) = recorded.trail.get(at).filter(|_| !active.own) else {
            self.active.insert(index, active);
            return;
        };
        active.moment = at;
        let (event, is_same) = self.again(index, &mut active, moment.what, now);
        let step = self.on(index, &mut active, event, now);
        match (is_same, self.before) {
            (true, _) => self.settle(index, active, step, now),
            (false, None) => {
                active.pending = step;
                self.not_explained(index, active, now);
            }
            (false, Some(_)) => {
                self.leave(index, &mut active, now);
                self.carry_out(index, active, step, now);
            }
        }
    }

    /// The event that was, and whether it still is the same.
    fn again(&mut self, index: usize, active: &mut Active, what: What, now: Timestamp) -> (Event, bool) {
        let event = match what {
            // What was in the way then is not in the recording; it is taken as it was.
            What::Full => Event::Claimed(ClaimVerdict::Full),
            What::Closed => Event::Claimed(ClaimVerdict::Closed),
            What::Mine
            | What::Follow
            | What::Busy
            | What::Replay
            | What::Unknown
            | What::Conflict
            | What::Nothing
            | What::Started
            | What::NotStarted
            | What::Probed
            | What::Saved
            | What::NotSaved
            | What::Released => {
                let step = std::mem::replace(&mut active.pending, Step::Stay);
                match self.asked_of_store(index, active, &step, now) {
                    Some(event) => event,
                    None => Event::Woke(Wake::Time),
                }
            }
            What::Renewed | What::RenewedUnknown | What::RenewedLost => self.renew(index, active, now),
            What::Spent => Event::Spent(Spend::Spent),
            What::NotSpent => Event::Spent(Spend::Lost),
            What::LeaderRefused => {
                let refusal = active.following.and_then(|key| self.refusals.get(&key));
                Event::Woke(
                    refusal.map_or(Wake::Changed, |failure| Wake::LeaderRefused(Box::new(failure.clone()))),
                )
            }
            What::Changed => Event::Woke(Wake::Changed),
            What::Came | What::Time => Event::Woke(Wake::Time),
            What::StoreFailed => Event::StoreFailed(StoreFault::NotDone),
            What::StoreUnanswered => Event::StoreFailed(StoreFault::Unanswered),
            What::Granted => Event::Answered(Approval::Granted(Some(GrantId(0)))),
            What::GrantedHere => Event::Answered(Approval::Granted(None)),
            What::Denied => Event::Answered(Approval::Denied),
            What::Nobody => Event::Answered(Approval::Nobody),
            What::PutToCaller => Event::Answered(Approval::PutToCaller(nothing())),
            What::Ran => Event::Ran(self.outcome(index, active)),
            What::Progressed => Event::Progressed,
            What::Cancelled => Event::Cancelled(Others::None),
            What::CancelledByOne => Event::Cancelled(Others::Waiting),
            What::Gone => Event::Disconnected(Others::None),
            What::OneGone => Event::Disconnected(Others::Waiting),
        };
        let is_same = What::of(&event) == what;
        (event, is_same)
    }

    /// How the attempt ended that runs on the recorded path.
    fn outcome(&mut self, index: usize, active: &mut Active) -> Outcome {
        let number = active.attempt.take().map_or(0, |(number, _)| number);
        self.recorded_outcome(index, active, number).unwrap_or_else(neutral)
    }

    fn recorded_outcome(&self, index: usize, active: &Active, number: u32) -> Option<Outcome> {
        let outcome = self.calls.get(index)?.outcomes.get(place(number)?)?;
        Some(outcome.again(active.call.policy(), active.call.request().number))
    }

    /// After a step on the recorded path: whether the recording goes on with what it asks for.
    fn settle(&mut self, index: usize, mut active: Active, step: Step, now: Timestamp) {
        let Some(recorded) = self.calls.get(index) else { return };
        if let Step::Finish { result, .. } = step {
            return self.finish(index, active, &result, now);
        }
        self.note(index, &mut active, step, now);
        let wake = active.call.wake_at();
        let next = recorded
            .trail
            .get(active.moment + 1)
            .map(|next| (next.what, recorded.moment_at(active.moment + 1)));
        let fits = next.is_some_and(|(what, _)| fits(&active.pending, what));
        match self.before {
            None => {
                if let Some(call) = self.replayed.calls.get_mut(index) {
                    call.wakes.push(wake);
                }
                if fits {
                    self.active.insert(index, active);
                } else {
                    self.not_explained(index, active, now);
                }
            }
            Some(before) => {
                let then =
                    before.calls.get(index).and_then(|call| call.wakes.get(active.moment).copied()).flatten();
                let in_time = next.is_some_and(|(what, at)| {
                    wake == then || (what != What::Time && wake.is_none_or(|wake| at <= wake))
                });
                if fits && in_time {
                    self.active.insert(index, active);
                } else {
                    self.leave(index, &mut active, now);
                    self.on_its_own(index, active, now);
                }
            }
        }
    }

    /// Notes what a call asks for.
    fn note(&mut self, index: usize, active: &mut Active, step: Step, now: Timestamp) {
        if let Some(record) = active.call.claimed() {
            active.held = Some(record.key);
        }
        if !matches!(step, Step::Stay | Step::Answer { .. } | Step::CancelUpstream)
            && let Some(key) = active.following.take()
            && let Some(followers) = self.followers.get_mut(&key)
        {
            followers.remove(&index);
            if followers.is_empty() {
                self.followers.remove(&key);
            }
        }
        match &step {
            Step::Stay | Step::Answer { .. } | Step::CancelUpstream => return,
            Step::Run(run) => active.attempt = Some((run.attempt, now)),
            Step::Cut(_) => {
                if let (Some(call), Some((number, _))) = (self.replayed.calls.get_mut(index), active.attempt)
                {
                    call.cut.push(number);
                }
            }
            Step::Follow(key) => {
                active.following = Some(*key);
                self.followers.entry(*key).or_default().insert(index);
            }
            Step::Claim(_)
            | Step::Ask(_)
            | Step::Spend { .. }
            | Step::Start { .. }
            | Step::Probe(_)
            | Step::Renew
            | Step::Wait
            | Step::Save(_)
            | Step::Release(_)
            | Step::Finish { .. } => {}
        }
        active.pending = step;
    }

    // ---- what the recording does not explain ----

    /// The replay under the configuration of then comes to something else than what was: the recording is right.
    fn not_explained(&mut self, index: usize, mut active: Active, now: Timestamp) {
        let blocked = self.replayed.calls.get(index).and_then(|call| call.blocked);
        self.clean_up(index, &mut active, now);
        self.over(index, &active, None, now);
        self.end_as(index, End::Taken(WhyTaken::NotExplained));
        self.was_wrong(index, blocked, now);
        let is_last = self.calls.get(index).is_some_and(|call| active.moment + 1 >= call.trail.len());
        if is_last {
            self.take(index, now);
        }
    }

    fn was_wrong(&mut self, index: usize, blocked: Option<Code>, now: Timestamp) {
        let recorded = self.calls.get(index).and_then(|call| call.ending.code);
        let believed = match blocked {
            Some(code) if recorded == Some(code) => None,
            Some(Code::CircuitOpen) => Some(Believed::ToolIsDown),
            Some(Code::LoopDetected | Code::ToolErrorLimit) => Some(Believed::ModelLoops),
            Some(Code::ApprovalRequired | Code::ToolBlocked) => Some(Believed::TrustIsLost),
            Some(_) | None => None,
        };
        if let Some(believed) = believed {
            self.forget(index, believed, now);
            self.replayed.wrong.insert(self.place, (index, believed));
        }
    }

    fn forget(&mut self, index: usize, believed: Believed, now: Timestamp) {
        if let Some(recorded) = self.calls.get(index) {
            self.machines.forget(&Uses::of(recorded), believed, now);
        }
    }

    /// A call that is taken as it was recorded: what it did to breaker, trust, guard and records is done, as far as it is
    /// known. What a replay makes of those without it is for others to find out.
    fn take(&mut self, index: usize, now: Timestamp) {
        let Some(recorded) = self.calls.get(index) else { return };
        if recorded.attempts.is_empty() {
            return;
        }
        let policy = self.policy(recorded);
        let request = request(recorded, &policy);
        let uses = Uses::of(recorded);
        let failed = match recorded.outcomes.last() {
            Some(AttemptOutcome::Failed(failed)) => Some(failed),
            Some(AttemptOutcome::Answered { .. } | AttemptOutcome::InputRequired) | None => None,
        };
        self.machines.lend(&uses, &Approvals::default(), |shared| {
            for (attempt, number) in recorded.attempts.iter().zip(0..) {
                let took = attempt.finished.since(attempt.started);
                let outcome = recorded.outcomes.get::<usize>(number);
                let lost = matches!(outcome, Some(AttemptOutcome::Failed(failed)) if failed.manner == Manner::SessionLost);
                let verdict = match &attempt.rule {
                    None => Verdict::Success { took },
                    Some(_) if attempt.retriable && !lost => Verdict::Failure { took },
                    Some(_) => Verdict::Neutral,
                };
                if policy.modes.breaker != Mode::Off
                    && let Ok((ticket, _)) = shared.breaker.admit(&policy.breaker, attempt.started)
                {
                    shared.breaker.record(&policy.breaker, ticket, verdict, attempt.finished);
                }
            }
            let ended_well = recorded.ending.status == Status::Success && !recorded.ending.input_required;
            let finished = match failed {
                Some(failed) if !ended_well => {
                    Some(Finished::Failure { severity: failed.severity, recoverable: true })
                }
                Some(_) | None => ended_well.then_some(Finished::Success),
            };
            if let (Some(finished), true) = (finished, policy.modes.trust != Mode::Off) {
                let rules = TrustRules { signature: &policy.trust, domain: policy.domain_trust.as_ref() };
                let subject = Subject {
                    tool: &request.tool,
                    signature: &request.signature,
                    domain: request.domain.as_ref(),
                };
                drop(shared.trust.record_begun(rules, subject, finished, recorded.arrived, now));
            }
            if policy.modes.guard != Mode::Off {
                let call = GuardedCall {
                    tool: &request.tool,
                    arguments: request.digest,
                    turn: request.turn.as_ref(),
                };
                let ending = match failed {
                    Some(failed) if !ended_well => {
                        guard::Ending::Failure { message: &failed.error, mistake: failed.mistake }
                    }
                    Some(_) | None => guard::Ending::Success { result: None },
                };
                drop(shared.guard.end(&policy.guard, call, ending, now));
            }
        });
        self.take_record(&request, &policy, recorded, now);
    }

    fn take_record(&mut self, request: &Request, policy: &Policy, recorded: &Recorded, now: Timestamp) {
        let Some(address) = request.address().filter(|_| policy.modes.dedupe == Mode::Enforce) else {
            return;
        };
        let done = recorded.ending.status == Status::Success && !recorded.ending.input_required;
        let ending = match recorded.ending.code {
            None if done => Kept::Done(Some(nothing())),
            Some(Code::OutcomeUnknown) => Kept::Unknown,
            Some(_) | None => return,
        };
        let claim = claim(request, address, policy, recorded);
        let records = self.records.entry(memory(recorded, policy)).or_default();
        if let ClaimVerdict::Mine(claimed) = records.claim(&claim, &[], |_| LeaseSight::Alive, now) {
            let attempts = recorded.attempts.clone();
            let keep = policy.dedupe.keep;
            let save = Save { claimed, ending, attempts, delivered: None, hold: false, keep };
            records.save(&save, now);
        }
    }

    // ---- a path of its own ----

    /// From here on the recording says nothing about it, but what its caller wanted.
    fn leave(&mut self, index: usize, active: &mut Active, now: Timestamp) {
        active.own = true;
        let Some(recorded) = self.calls.get(index) else { return };
        for (at, moment) in recorded.trail.iter().enumerate().skip(active.moment + 1) {
            let due = [
                (What::Cancelled, Due::Cancelled(Others::None)),
                (What::CancelledByOne, Due::Cancelled(Others::Waiting)),
                (What::Gone, Due::Gone(Others::None)),
                (What::OneGone, Due::Gone(Others::Waiting)),
            ];
            if let Some((_, due)) = due.into_iter().find(|(what, _)| *what == moment.what) {
                self.put(recorded.moment_at(at).max(now), index, due);
            }
        }
    }

    /// What it asked for last is not what the recording has next.
    fn on_its_own(&mut self, index: usize, mut active: Active, now: Timestamp) {
        if matches!(active.pending, Step::Run(_)) {
            // It runs already.
            return self.wait_for_attempt(index, active, now);
        }
        let step = std::mem::replace(&mut active.pending, Step::Stay);
        self.carry_out(index, active, step, now);
    }

    /// Does what it asks for, until it has to wait.
    fn carry_out(&mut self, index: usize, mut active: Active, mut step: Step, now: Timestamp) {
        loop {
            if let Step::Finish { result, .. } = step {
                return self.finish(index, active, &result, now);
            }
            self.note(index, &mut active, step.clone(), now);
            let event = match self.asked_of_store(index, &mut active, &step, now) {
                Some(event) => event,
                None => match step {
                    Step::Run(_) => return self.wait_for_attempt(index, active, now),
                    Step::Cut(_) => Event::Ran(self.cut(index, &mut active, now)),
                    Step::Ask(_) => return self.not_known(index, active, NotKnown::Asked, now),
                    Step::Claim(_)
                    | Step::Follow(_)
                    | Step::Spend { .. }
                    | Step::Start { .. }
                    | Step::Probe(_)
                    | Step::Renew
                    | Step::Wait
                    | Step::Save(_)
                    | Step::Release(_)
                    | Step::Answer { .. }
                    | Step::CancelUpstream
                    | Step::Stay
                    | Step::Finish { .. } => return self.wait(index, active, now),
                },
            };
            step = self.on(index, &mut active, event, now);
        }
    }

    fn wait(&mut self, index: usize, active: Active, now: Timestamp) {
        if let Some(wake) = active.call.wake_at() {
            // A machine that was just woken and stays as it is has nothing more to say at this moment.
            let soonest = if wake <= now { now + Duration::from_millis(1) } else { wake };
            self.put(soonest, index, Due::Wake);
        }
        self.active.insert(index, active);
    }

    /// An attempt takes as long as it did; one that was never made leads to where nobody knows.
    fn wait_for_attempt(&mut self, index: usize, active: Active, now: Timestamp) {
        let (Some(recorded), Some((number, started))) = (self.calls.get(index), active.attempt) else {
            return self.wait(index, active, now);
        };
        let made = place(number).and_then(|at| recorded.attempts.get(at).zip(recorded.outcomes.get(at)));
        let Some((fact, _)) = made else {
            return self.not_known(index, active, NotKnown::Run { attempt: number }, now);
        };
        for (at, moment) in recorded.trail.iter().enumerate() {
            let then = recorded.moment_at(at);
            if moment.what == What::Progressed && then >= fact.started && then < fact.finished {
                let again = started + then.since(fact.started);
                if again > now {
                    self.put(again, index, Due::Progress(number));
                }
            }
        }
        let ends = started + fact.finished.since(fact.started);
        self.put(ends.max(now), index, Due::Ran(number));
        self.wait(index, active, now);
    }

    /// We end an attempt. One that was ended then as well said what it said.
    fn cut(&self, index: usize, active: &mut Active, now: Timestamp) -> Outcome {
        let Some((number, started)) = active.attempt.take() else { return neutral() };
        let was_cut = self.was_cut(index, number);
        let recorded = self.recorded_outcome(index, active, number).filter(|_| was_cut);
        recorded.unwrap_or_else(|| {
            let source = Source::Timeout { after: now.since(started) };
            Outcome::Failure { fault: Fault::new(source, "the tool did not answer in time"), output: None }
        })
    }

    fn was_cut(&self, index: usize, number: u32) -> bool {
        let before = self.before.and_then(|before| before.calls.get(index));
        before.is_some_and(|call| call.cut.contains(&number))
    }

    fn do_what_is_due(&mut self, until: Timestamp) {
        while let Some(((now, put), _)) = self.calendar.first_key_value().map(|(key, _)| (*key, ()))
            && now < until
        {
            if let Some((index, due)) = self.calendar.remove(&(now, put)) {
                self.do_due(index, due, now);
            }
        }
    }

    fn do_due(&mut self, index: usize, due: Due, now: Timestamp) {
        let Some(mut active) = self.active.remove(&index) else { return };
        let runs = active.attempt.map(|(number, _)| number);
        let event = match due {
            Due::Wake if active.call.wake_at().is_some_and(|wake| wake <= now) => {
                Some(Event::Woke(Wake::Time))
            }
            Due::Ran(number) if runs == Some(number) && self.was_cut(index, number) => {
                return self.not_known(index, active, NotKnown::Run { attempt: number }, now);
            }
            Due::Ran(number) if runs == Some(number) => Some(Event::Ran(self.outcome(index, &mut active))),
            Due::Progress(number) if runs == Some(number) => Some(Event::Progressed),
            Due::Cancelled(others) => Some(Event::Cancelled(others)),
            Due::Gone(others) => Some(Event::Disconnected(others)),
            Due::Over(failure) if active.following.is_some() => {
                if !active.own {
                    self.leave(index, &mut active, now);
                }
                Some(Event::Woke(failure.map_or(Wake::Changed, Wake::LeaderRefused)))
            }
            Due::Wake | Due::Ran(_) | Due::Progress(_) | Due::Over(_) => None,
        };
        match event {
            Some(event) => {
                let step = self.on(index, &mut active, event, now);
                self.carry_out(index, active, step, now);
            }
            None => drop(self.active.insert(index, active)),
        }
    }

    /// What happens next nobody knows. It leaves no traces but the doubt.
    fn not_known(&mut self, index: usize, mut active: Active, what: NotKnown, now: Timestamp) {
        let is_in_doubt = self.is_in_doubt(&active);
        if let Some(call) = self.replayed.calls.get_mut(index) {
            call.in_doubt = is_in_doubt;
        }
        let Uses { tool, session, .. } = active.uses.clone();
        let address = active.call.request().address();
        let keys = address.into_iter().flat_map(|address| [Some(address.own()), address.index()]).flatten();
        self.uncertain.extend(keys.map(Touched::Record));
        self.uncertain.insert(Touched::Tool(tool.1));
        self.uncertain.insert(Touched::Session(session.1));
        self.clean_up(index, &mut active, now);
        active.own = true;
        self.over(index, &active, None, now);
        self.end_as(index, End::NotKnown(what));
    }

    /// Takes a call out of the world without a trace.
    fn clean_up(&mut self, index: usize, active: &mut Active, now: Timestamp) {
        let mut pending = std::mem::replace(&mut active.pending, Step::Stay);
        let told = self.told.take();
        let mut event = Event::Cancelled(Others::None);
        // Every state is left within a few steps.
        for _ in 0..8 {
            let mut step = self.on(index, active, event, now);
            if matches!(step, Step::Stay) {
                step = std::mem::replace(&mut pending, Step::Stay);
            }
            event = match self.asked_of_store(index, active, &step, now) {
                Some(event) => event,
                None if active.call.is_finished() => break,
                None => Event::Ran(neutral()),
            };
        }
        self.told = told;
        if let Some(key) = active.following.take()
            && let Some(followers) = self.followers.get_mut(&key)
        {
            followers.remove(&index);
        }
    }

    // ---- what all of them do ----

    fn on(&mut self, index: usize, active: &mut Active, event: Event, now: Timestamp) -> Step {
        let mut notices = Vec::new();
        let Active { call, approvals, uses, .. } = active;
        let step = self.machines.lend(uses, approvals, |shared| call.on(shared, now, event, &mut notices));
        self.keep_steps(index, notices, now);
        // An event that does not belong there leaves the machine as it is.
        step.unwrap_or(Step::Stay)
    }

    fn keep_steps(&mut self, index: usize, notices: Vec<Notice>, now: Timestamp) {
        let Some(call) = self.replayed.calls.get_mut(index) else { return };
        for notice in &notices {
            if let Notice::CallBlocked { code } = notice {
                call.blocked = Some(*code);
            }
        }
        if self.told == Some(index) {
            call.steps.extend(notices.into_iter().map(|notice| (now, notice)));
        }
    }

    /// The records among which that of this call is.
    fn records_of(&mut self, index: usize, active: &Active) -> &mut Records {
        let memory = self.calls.get(index).and_then(|recorded| memory(recorded, active.call.policy()));
        self.records.entry(memory).or_default()
    }

    /// What the store says to a step, where it is one for the store.
    fn asked_of_store(
        &mut self,
        index: usize,
        active: &mut Active,
        step: &Step,
        now: Timestamp,
    ) -> Option<Event> {
        Some(match step {
            Step::Claim(claim) => {
                self.see_deliveries(index, active, claim, now);
                let records = self.records_of(index, active);
                Event::Claimed(records.claim(claim, &[], |_| LeaseSight::Alive, now))
            }
            Step::Start { key, owner } => {
                Event::Started(self.records_of(index, active).start(key, owner, now))
            }
            Step::Spend { .. } => Event::Spent(Spend::Spent),
            Step::Probe(_) => Event::Probed,
            Step::Renew => self.renew(index, active, now),
            Step::Save(save) => Event::Saved(self.records_of(index, active).save(save, now)),
            Step::Release(release) => {
                self.records_of(index, active).release(release);
                Event::Released
            }
            Step::Follow(_)
            | Step::Ask(_)
            | Step::Run(_)
            | Step::Cut(_)
            | Step::Wait
            | Step::Answer { .. }
            | Step::CancelUpstream
            | Step::Stay
            | Step::Finish { .. } => return None,
        })
    }

    fn renew(&mut self, index: usize, active: &Active, now: Timestamp) -> Event {
        let Some(record) = active.call.claimed().cloned() else { return Event::Woke(Wake::Time) };
        let keep = active.call.policy().dedupe.keep;
        let verdict = self.records_of(index, active).renew(&record, &keep, Absence::Removed, now);
        Event::Renewed { owner: record.owner, sent: now, verdict }
    }

    /// When an answer reached its caller is not recorded. But a call without a key that ran although an equal one was over
    /// says that the answer to that one had arrived.
    fn see_deliveries(&mut self, index: usize, active: &Active, claim: &Claim, now: Timestamp) {
        let Some(recorded) = self.calls.get(index) else { return };
        let first = recorded.trail.iter().find(|moment| moment.what.is_claim());
        if claim.role != Role::Fresh || first.is_none_or(|moment| moment.what != What::Mine) {
            return;
        }
        let records = self.records_of(index, active);
        let indexed = records.indexed(claim.address.index());
        let over = indexed.filter(|record| !matches!(record.state, RecordState::Inflight));
        if let Some(receipt) = over.map(Record::receipt) {
            records.delivered(&receipt, now.before(claim.rules.after_telling));
        }
    }

    fn finish(&mut self, index: usize, active: Active, result: &CallResult, now: Timestamp) {
        let ending = Ending::of(result, active.call.attempts().len());
        let refusal = result.ended.as_ref().err().filter(|_| result.is_refused());
        self.over(index, &active, refusal, now);
        let recorded = self.calls.get(index);
        let is_explained =
            recorded.is_some_and(|call| call.ending == ending && active.moment + 1 == call.trail.len());
        if self.before.is_none() && !is_explained {
            let blocked = self.replayed.calls.get(index).and_then(|call| call.blocked);
            self.end_as(index, End::Taken(WhyTaken::NotExplained));
            self.was_wrong(index, blocked, now);
            if recorded.is_some_and(|call| active.moment + 1 >= call.trail.len()) && ending.attempts == 0 {
                self.take(index, now);
            }
            return;
        }
        self.end_as(index, End::Ended(ending));
        let is_in_doubt = self.is_in_doubt(&active);
        if let Some(call) = self.replayed.calls.get_mut(index) {
            call.in_doubt = is_in_doubt;
        }
    }

    fn is_in_doubt(&self, active: &Active) -> bool {
        if self.uncertain.is_empty() {
            return false;
        }
        let request = active.call.request();
        let keys = request.address().into_iter().flat_map(|address| [Some(address.own()), address.index()]);
        let touched = [Touched::Tool(request.tool.clone()), Touched::Session(request.session.clone())];
        keys.flatten().map(Touched::Record).chain(touched).any(|one| self.uncertain.contains(&one))
    }

    /// Its run is over: whoever waits for it hears of that. Those on their recorded path know when they did.
    fn over(&mut self, index: usize, active: &Active, refusal: Option<&Failure>, now: Timestamp) {
        if let Some(key) = active.following
            && let Some(followers) = self.followers.get_mut(&key)
        {
            followers.remove(&index);
        }
        let Some(key) = active.held else { return };
        let Some(followers) = self.followers.get(&key).filter(|followers| !followers.is_empty()) else {
            return;
        };
        match refusal {
            Some(failure) => drop(self.refusals.insert(key, failure.clone())),
            None => drop(self.refusals.remove(&key)),
        }
        let is_own = |index: &&usize| active.own || self.active.get(index).is_some_and(|one| one.own);
        let woken: Vec<usize> = followers.iter().filter(is_own).copied().collect();
        for follower in woken {
            self.put(now, follower, Due::Over(refusal.cloned().map(Box::new)));
        }
    }

    fn put(&mut self, at: Timestamp, index: usize, due: Due) {
        self.put += 1;
        self.calendar.insert((at, self.put), (index, due));
    }

    fn end_of(&self, index: usize) -> Option<&End> {
        self.replayed.calls.get(index).map(|call| &call.end)
    }

    fn end_as(&mut self, index: usize, end: End) {
        if let Some(call) = self.replayed.calls.get_mut(index) {
            call.end = end;
        }
    }

    fn policy(&mut self, recorded: &Recorded) -> Arc<Policy> {
        let policy = (self.policies)(recorded);
        if recorded.in_turn { Arc::new(policy.in_turn()) } else { policy }
    }
}

impl Recorded {
    pub(super) fn moment_at(&self, at: usize) -> Timestamp {
        let after = self.trail.get(at).map_or(0, |moment: &Moment| moment.after_ms);
        self.arrived + Duration::from_millis(after)
    }
}

/// Whose memory a record is in; nobody's is the store that all share.
type Memory = Option<Arc<str>>;

/// Calls that change nothing are remembered by their own engine, unless they belong to a turn.
fn memory(recorded: &Recorded, policy: &Policy) -> Memory {
    match policy.class {
        ToolClass::ReadOnly if !recorded.in_turn => Some(recorded.engine.clone()),
        ToolClass::ReadOnly | ToolClass::Idempotent | ToolClass::Mutating | ToolClass::Unknown => None,
    }
}

/// Where attempt number n stands in a list.
fn place(attempt: u32) -> Option<usize> {
    usize::try_from(attempt.checked_sub(1)?).ok()
}

/// The request of then, as far as the policy of now has a say in it.
fn request(recorded: &Recorded, policy: &Policy) -> Request {
    let mut request = recorded.request.clone();
    if policy.dedupe.computed_keys == ComputedKeys::Never {
        request.duplicates = match request.duplicates {
            Duplicates::Joined(Address::Keyless { .. }) => Duplicates::Allowed,
            Duplicates::Joined(Address::CallId { id, .. }) => {
                Duplicates::Joined(Address::CallId { id, index: id })
            }
            known @ (Duplicates::Allowed | Duplicates::Joined(_) | Duplicates::Refused(_)) => known,
        };
    }
    request
}

/// What a person had allowed before the call came: it spent that without asking.
fn allowed(recorded: &Recorded, policy: &Policy, now: Timestamp) -> Approvals {
    let mut approvals = Approvals::default();
    let mut decided = recorded.trail.iter().filter(|moment| {
        matches!(moment.what, What::Spent | What::NotSpent | What::Granted | What::GrantedHere | What::Denied)
    });
    if decided.next().is_some_and(|moment| matches!(moment.what, What::Spent | What::NotSpent)) {
        let request = &recorded.request;
        let wanted = Wanted {
            tool: &request.tool,
            arguments: request.digest,
            signature: &request.signature,
            session: request.session.as_ref(),
            blocked: true,
        };
        let asked = approvals.ask(wanted, &Escalation::routine(&request.tool), None, &policy.approval, now);
        // A request that was noted a moment ago can be decided.
        drop(approvals.decide(asked.id, Decision::Once, Grantor::Operator, now));
    }
    approvals
}

fn claim(request: &Request, address: Address, policy: &Policy, recorded: &Recorded) -> Claim {
    Claim {
        address,
        intent: Intent::Take { started: true },
        role: Role::Fresh,
        owner: Owner { process: request.process.clone(), call: request.number, claim: 0 },
        digest: request.digest,
        retry_safe: request.is_retry_safe(policy),
        best_effort: false,
        arrived: recorded.arrived,
        run: request.run.clone(),
        rules: Rules::from(&policy.dedupe),
        tool: request.tool.clone(),
        request: request.id.clone(),
        tool_call: None,
        session: request.session.clone(),
        actor: request.actor.clone(),
        tenant: request.tenant.clone(),
    }
}

/// An end of an attempt that says nothing about anything.
fn neutral() -> Outcome {
    Outcome::Remembered(Box::new(FailedOutcome {
        nature: Nature::Permanent,
        reach: Reach::NotSent,
        severity: Severity::Informational,
        mistake: None,
        retry_after_ms: None,
        code: Code::ToolError,
        rule: "rehearsal".into(),
        manner: Manner::NotRun,
        error: String::new(),
    }))
}

/// Whether this can be what came of a step.
fn fits(pending: &Step, what: What) -> bool {
    let failed = matches!(what, What::StoreFailed | What::StoreUnanswered);
    let renewed = matches!(what, What::Renewed | What::RenewedUnknown | What::RenewedLost);
    let meanwhile = matches!(
        what,
        What::Time | What::Progressed | What::Cancelled | What::CancelledByOne | What::Gone | What::OneGone
    );
    match pending {
        Step::Claim(_) => what.is_claim() || failed,
        Step::Follow(_) => matches!(what, What::Changed | What::LeaderRefused) || meanwhile,
        Step::Ask(_) => {
            let answered = matches!(
                what,
                What::Granted | What::GrantedHere | What::Denied | What::Nobody | What::PutToCaller
            );
            answered || meanwhile || renewed
        }
        Step::Spend { .. } => matches!(what, What::Spent | What::NotSpent) || failed,
        Step::Start { .. } => matches!(what, What::Started | What::NotStarted) || failed,
        Step::Probe(_) => what == What::Probed || failed,
        Step::Renew => renewed || failed,
        Step::Run(_) => what == What::Ran || meanwhile || renewed,
        Step::Cut(_) => what == What::Ran,
        Step::Wait => meanwhile || renewed,
        Step::Save(_) => matches!(what, What::Saved | What::NotSaved) || failed,
        Step::Release(_) => what == What::Released || failed,
        Step::Answer { .. } | Step::CancelUpstream | Step::Stay | Step::Finish { .. } => false,
    }
}
