//! One replay: recorded calls on the current machines, in virtual time.
//!
//! A call is on its *recorded path* as long as its machine requests the same steps as in the recording. It then gets
//! the recorded events, at the recorded times and in the recorded order. Only decisions of the store are made again.
//! Once the machine requests another step, the call is on a path of its own: its timers, its attempts with their
//! recorded durations and the requests of its caller are put on a calendar. It ends as not known where the recording
//! has no result.

mod own;
mod taken;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::facts::{AttemptOutcome, Ending, FailedOutcome, Manner, Moment, Recorded, What, nothing};
use super::machines::{Believed, Machines, Uses};
use super::{End, NOT_YET, NotKnown, Replayed, WhyTaken};
use crate::Timestamp;
use crate::approval::{Approvals, Decision, GrantId, Grantor, Spend, Wanted};
use crate::breaker::Verdict;
use crate::call::{
    Approval, BreakerScope, Call, CallResult, Duplicates, Event, Notice, Others, Outcome, Request, Step,
    StoreFault, Wake,
};
use crate::classify::{Fault, Nature, Reach, Severity, Source};
use crate::code::{Code, Status};
use crate::dedupe::{
    Absence, Address, Claim, ClaimVerdict, Ending as RecordEnding, Failure, Intent, Known, LeaseSight,
    Observed, Owner, RecordState, Records, Role, Rules, Save, UnknownEnding,
};
use crate::guard::{self, GuardedCall};
use crate::key::Key;
use crate::policy::{ComputedKeys, Mode, Policy, ToolClass};
use crate::trust::{Escalation, Finished, Rules as TrustRules, Subject};

/// A recorded event, in the order of the recording.
#[derive(Clone, Copy, Debug)]
pub(super) struct Happened {
    pub(super) at: Timestamp,
    pub(super) call: usize,
    /// The index of the moment. None if only the end of the call is known.
    pub(super) moment: Option<usize>,
}

/// A running replay.
pub(super) struct World<'a> {
    calls: &'a [Recorded],
    policies: &'a mut dyn FnMut(&Recorded) -> Arc<Policy>,
    against: Against<'a>,
    /// The calls whose notices are stored.
    told: BTreeSet<usize>,
    machines: Machines,
    /// The shared store, and the memory of each engine.
    records: BTreeMap<Memory, Records>,
    active: BTreeMap<usize, Active>,
    followers: BTreeMap<Key, BTreeSet<usize>>,
    /// The refusals of leaders that had followers.
    refusals: BTreeMap<Key, Failure>,
    calendar: BTreeMap<(Timestamp, u64), (usize, Due)>,
    put: u64,
    uncertain: BTreeSet<Touched>,
    replayed: Replayed,
    /// The position in the recording.
    place: usize,
}

/// The reference of a replay.
#[derive(Clone, Copy)]
pub(super) enum Against<'a> {
    /// The recording itself, which has to be reproduced. Calls that an earlier replay of this kind took from the
    /// recording are taken from it again.
    Recording(Option<&'a Replayed>),
    /// A replay against the recording.
    Before(&'a Replayed),
}

impl<'a> Against<'a> {
    /// Returns the earlier replay.
    const fn earlier(self) -> Option<&'a Replayed> {
        match self {
            Self::Recording(earlier) => earlier,
            Self::Before(before) => Some(before),
        }
    }

    const fn is_recording(self) -> bool {
        matches!(self, Self::Recording(_))
    }
}

/// A running call.
struct Active {
    call: Call,
    uses: Uses,
    /// Approvals that existed before the call.
    approvals: Approvals,
    /// The last requested step that has no result yet.
    pending: Step,
    /// The index of the last moment that it got.
    moment: usize,
    /// True if it has left its recorded path.
    own: bool,
    /// The running attempt and its start.
    attempt: Option<(u32, Timestamp)>,
    held: Option<Key>,
    following: Option<Key>,
    /// Steps left on a path of its own.
    steps_left: u32,
}

/// The maximum number of steps of one call on a path of its own: enough for progress events over a day. A recording may
/// make no sense at all, and a replay has to end.
const MOST_STEPS: u32 = 5_000;

impl Active {
    /// Returns the number of the running attempt, or of the next one.
    fn next(&self) -> u32 {
        let made = u32::try_from(self.call.attempts().len()).unwrap_or(u32::MAX);
        self.attempt.map_or(made.saturating_add(1), |(number, _)| number)
    }
}

/// A due event of a call on a path of its own.
#[derive(Clone, Debug)]
enum Due {
    Wake,
    Ran(u32),
    Progress(u32),
    Cancelled(Others),
    Gone(Others),
    Over(Option<Box<Failure>>),
}

/// A thing that a run with an unknown result may have changed.
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
        against: Against<'a>,
        told: &[usize],
    ) -> Self {
        Self {
            calls,
            policies,
            against,
            told: told.iter().copied().collect(),
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
        let earlier = self.against.earlier();
        for (place, happened) in order.iter().enumerate() {
            if place % 4096 == 0 {
                progress(place);
                self.records.values_mut().for_each(|records| records.sweep(happened.at));
            }
            self.place = place;
            self.do_what_is_due(happened.at);
            if let Some((call, believed)) = earlier.and_then(|earlier| earlier.wrong.get(&place)) {
                self.forget(*call, *believed, happened.at);
            }
            self.happened(*happened);
        }
        self.do_what_is_due(Timestamp::MAX);
        // The calls left have no event that could end them, or a recording that makes no sense.
        for (index, call) in self.replayed.calls.iter_mut().enumerate() {
            let left = self.active.get(&index);
            if left.is_some() || call.end == NOT_YET {
                call.end = match self.against {
                    Against::Recording(_) => End::Taken(WhyTaken::NotExplained),
                    Against::Before(_) => {
                        End::NotKnown(NotKnown::Run { attempt: left.map_or(1, Active::next) })
                    }
                };
            }
        }
        self.replayed
    }

    // ---- recorded events ----

    fn happened(&mut self, happened: Happened) {
        let Happened { call: index, moment, .. } = happened;
        let Some(recorded) = self.calls.get(index) else { return };
        let Some(at) = moment else {
            self.end_as(index, End::Taken(WhyTaken::TooLittleIsKnown));
            return self.take(index, recorded.ended);
        };
        let now = recorded.moment_at(at);
        let is_last = at + 1 == recorded.trail.len();
        let taken =
            self.against.earlier().and_then(|earlier| earlier.calls.get(index)).map(|earlier| &earlier.end);
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
        self.keep_steps(index, &uses, notices, now);
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
            steps_left: MOST_STEPS,
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
        match (is_same, self.against) {
            (true, _) => self.settle(index, active, step, now),
            (false, Against::Recording(_)) => {
                active.pending = step;
                self.not_explained(index, active, now);
            }
            (false, Against::Before(_)) => {
                self.leave(index, &mut active, now);
                self.carry_out(index, active, step, now);
            }
        }
    }

    /// Returns the recorded event, and true if it is still the same.
    fn again(&mut self, index: usize, active: &mut Active, what: What, now: Timestamp) -> (Event, bool) {
        let event = match what {
            // The recording does not have the cause of these verdicts, so they are taken from it.
            What::Full => Event::Claimed(ClaimVerdict::Full),
            What::Closed => Event::Claimed(ClaimVerdict::Closed),
            What::RecordsLost => Event::Claimed(ClaimVerdict::RecordsLost),
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
            What::Settled => Event::Settled,
            What::DriverEnded => Event::DriverEnds,
            What::Cancelled => Event::Cancelled(Others::None),
            What::CancelledByOne => Event::Cancelled(Others::Waiting),
            What::Gone => Event::Disconnected(Others::None),
            What::OneGone => Event::Disconnected(Others::Waiting),
        };
        let is_same = What::of(&event) == what;
        (event, is_same)
    }

    /// Returns the result of the attempt that runs on the recorded path.
    fn outcome(&mut self, index: usize, active: &mut Active) -> Outcome {
        let number = active.attempt.take().map_or(0, |(number, _)| number);
        self.recorded_outcome(index, active, number).unwrap_or_else(neutral)
    }

    fn recorded_outcome(&self, index: usize, active: &Active, number: u32) -> Option<Outcome> {
        let outcome = self.calls.get(index)?.outcomes.get(place(number)?)?;
        Some(outcome.again(active.call.policy(), active.call.request().number))
    }

    /// After a step on the recorded path: continues if the next recorded event fits the requested step.
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
        match self.against {
            Against::Recording(_) => {
                if let Some(call) = self.replayed.calls.get_mut(index) {
                    call.wakes.push(wake);
                }
                if fits {
                    self.active.insert(index, active);
                } else {
                    self.not_explained(index, active, now);
                }
            }
            Against::Before(before) => {
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

    /// Records the requested step of a call.
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
            // The stored record stands, and the end of the call is awaited.
            Step::Answer { .. } | Step::CancelUpstream
                if matches!(active.pending, Step::Save(_) | Step::Stay) =>
            {
                active.pending = Step::Wait;
                return;
            }
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
            | Step::AwaitEnd(_)
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

    // ---- steps of all calls ----

    fn on(&mut self, index: usize, active: &mut Active, event: Event, now: Timestamp) -> Step {
        let mut notices = Vec::new();
        let Active { call, approvals, uses, .. } = active;
        let step = self.machines.lend(uses, approvals, |shared| call.on(shared, now, event, &mut notices));
        self.keep_steps(index, &active.uses, notices, now);
        // An event that does not fit leaves the machine unchanged.
        step.unwrap_or(Step::Stay)
    }

    fn keep_steps(&mut self, index: usize, uses: &Uses, notices: Vec<Notice>, now: Timestamp) {
        let Some(call) = self.replayed.calls.get_mut(index) else { return };
        for notice in &notices {
            if let Notice::CallBlocked { code, .. } = notice {
                call.blocked = Some(*code);
            } else if let Notice::BreakerChanged { scope, transition } = notice {
                self.machines.changed(uses, *scope, transition, index);
            }
        }
        if self.told.contains(&index) {
            call.steps.extend(notices.into_iter().map(|notice| (now, notice)));
        }
    }

    /// Returns the records that hold the record of this call.
    fn records_of(&mut self, index: usize, active: &Active) -> &mut Records {
        let memory = self.calls.get(index).and_then(|recorded| memory(recorded, active.call.policy()));
        self.records.entry(memory).or_default()
    }

    /// Returns the event of the store for a step, if the step is one for the store.
    fn asked_of_store(
        &mut self,
        index: usize,
        active: &mut Active,
        step: &Step,
        now: Timestamp,
    ) -> Option<Event> {
        Some(match step {
            Step::Claim(claim) => {
                let known = self.deliveries(index, active, claim, now);
                let records = self.records_of(index, active);
                Event::Claimed(records.claim(claim, &known, |_| LeaseSight::Alive, now))
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
            | Step::AwaitEnd(_)
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

    /// Returns the deliveries that the recording implies. Deliveries are not recorded. But if a call without a key ran
    /// although an equal one was over, the response of that one had been delivered.
    fn deliveries(&mut self, index: usize, active: &Active, claim: &Claim, now: Timestamp) -> Known {
        let first = self.calls.get(index).and_then(|recorded| {
            recorded.trail.iter().find(|moment| moment.what.is_claim()).map(|moment| moment.what)
        });
        if claim.role != Role::Fresh || first != Some(What::Mine) {
            return Known::default();
        }
        let records = self.records_of(index, active);
        let indexed = records.indexed(claim.address.index());
        let over = indexed.filter(|record| !matches!(record.state, RecordState::Inflight));
        let delivered = over.map(|record| (record.receipt(), now.before(claim.rules.after_telling)));
        Known { delivered: delivered.into_iter().collect(), ..Known::default() }
    }

    fn finish(&mut self, index: usize, active: Active, result: &CallResult, now: Timestamp) {
        let ending = Ending::of(result, active.call.attempts().len());
        if ending.code == Some(Code::CircuitOpen) && self.told.contains(&index) {
            let opened_by = self.machines.opened_by(&active.uses, &active.call.policy().breaker, now);
            if let Some(call) = self.replayed.calls.get_mut(index) {
                call.opened_by = opened_by;
            }
        }
        let refusal = result.ended.as_ref().err().filter(|_| result.is_refused());
        self.over(index, &active, refusal, now);
        let recorded = self.calls.get(index);
        let is_explained =
            recorded.is_some_and(|call| call.ending == ending && active.moment + 1 == call.trail.len());
        if self.against.is_recording() && !is_explained {
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

    /// Ends the run of a call and wakes its followers. Followers on their recorded path are woken at their recorded
    /// times.
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

/// The engine that holds a record in memory. None is the shared store.
type Memory = Option<Arc<str>>;

/// Returns the memory of a call. Read-only calls are stored by their own engine, unless they belong to a turn.
fn memory(recorded: &Recorded, policy: &Policy) -> Memory {
    match policy.class {
        ToolClass::ReadOnly if !recorded.in_turn => Some(recorded.engine.clone()),
        ToolClass::ReadOnly | ToolClass::Idempotent | ToolClass::Mutating | ToolClass::Unknown => None,
    }
}

/// Returns the index of an attempt number.
fn place(attempt: u32) -> Option<usize> {
    usize::try_from(attempt.checked_sub(1)?).ok()
}

/// Returns the recorded request, adapted to the current policy.
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

/// Returns the approvals given before the call arrived. The call used one without a request.
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
        // A request that was just added can be decided.
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
        age: Duration::ZERO,
        seen_end_within: None,
        run: request.run.clone(),
        rules: Rules::from(policy),
        tool: request.tool.clone(),
        request: request.id.clone(),
        tool_call: None,
        context: None,
        session: request.session.clone(),
        actor: request.actor.clone(),
        tenant: request.tenant.clone(),
    }
}

/// Returns a result of an attempt that has no effect on any machine.
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
        observed: None,
        error: String::new(),
        words: None,
    }))
}

/// Returns true if an event can follow a step.
fn fits(pending: &Step, what: What) -> bool {
    let failed = matches!(what, What::StoreFailed | What::StoreUnanswered);
    let renewed = matches!(what, What::Renewed | What::RenewedUnknown | What::RenewedLost);
    let meanwhile = matches!(
        what,
        What::Time | What::Progressed | What::Cancelled | What::CancelledByOne | What::Gone | What::OneGone
    );
    match pending {
        Step::Claim(_) => what.is_claim() || failed,
        Step::Follow(_) | Step::AwaitEnd(_) => {
            matches!(what, What::Changed | What::LeaderRefused) || meanwhile
        }
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
        Step::Wait => meanwhile || renewed || matches!(what, What::Ran | What::Settled | What::DriverEnded),
        Step::Save(_) => matches!(what, What::Saved | What::NotSaved) || failed,
        Step::Release(_) => what == What::Released || failed,
        Step::Answer { .. } | Step::CancelUpstream | Step::Stay | Step::Finish { .. } => false,
    }
}
