//! One replay: recorded calls on the current machines, in virtual time.
//!
//! A call is on its *recorded path* as long as its machine requests the same steps as in the recording. It then gets
//! the recorded events, at the recorded times and in the recorded order. Only decisions of the store are made again.
//! Once the machine requests another step, the call is on a path of its own: its timers, its attempts with their
//! recorded durations and the requests of its caller are put on a calendar. It ends as not known where the recording
//! has no result.

mod deviation;
mod recorded;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::approval::{
    ApprovalDecision, ApprovalLedger, ApprovalSubject, GrantId, Grantor, SpendVerdict,
};
use steadfast_core::breaker::BreakerVerdict;
use steadfast_core::call::{
    ApprovalOutcome, AttemptReport, BreakerScope, Call, CallEvent, CallNotice, CallRequest, CallResult,
    Deduplication, NextStep, OtherWaiters, RecordedAttempt, RecordedFailure, RecordedFailureKind, StoreFault,
    WakeReason,
};
use steadfast_core::classify::{AttemptFault, AttemptReach, FaultNature, FaultSource, Severity};
use steadfast_core::code::{CallStatus, Code};
use steadfast_core::dedupe::{
    CallFailure, Claim, ClaimIntent, ClaimOwner, ClaimRole, ClaimVerdict, DedupeRules, DedupeState,
    LeaseOwnerState, LocalKnowledge, MemoryRecords, RecordAbsence, RecordAddress, RunOutcome as RecordEnding,
    SaveRequest, UnknownOutcomeReason, UnknownOutcomeReport,
};
use steadfast_core::guard::{self, GuardedCall};
use steadfast_core::key::RecordKey;
use steadfast_core::policy::{CallPolicy, ComputedKeyPolicy, EnforcementMode, ToolClass};
use steadfast_core::trust::{Escalation, FinishedOutcome, TrustRules, TrustSubject};

use super::machines::{FalseRefusalCause, MachineKeys, ReplayMachines};
use super::recording::{
    RecordedCall, RecordedEvent, RecordedEventKind, RecordedResult, outcome_of, unknown_output,
};
use super::{ReplayEnd, ReplayResult, TakenReason, UNFINISHED, UnknownResult};

/// A recorded event, in the order of the recording.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplayEvent {
    pub(super) at: Timestamp,
    pub(super) call: usize,
    /// The index of the moment. None if only the end of the call is known.
    pub(super) moment: Option<usize>,
}

/// A running replay.
pub(super) struct ReplayWorld<'a> {
    calls: &'a [RecordedCall],
    policies: &'a mut dyn FnMut(&RecordedCall) -> Arc<CallPolicy>,
    against: ReplayReference<'a>,
    /// The calls whose notices are stored.
    traced: BTreeSet<usize>,
    machines: ReplayMachines,
    /// The shared store, and the memory of each engine.
    records: BTreeMap<RecordMemory, MemoryRecords>,
    active: BTreeMap<usize, ReplayCallState>,
    followers: BTreeMap<RecordKey, BTreeSet<usize>>,
    /// The refusals of leaders that had followers.
    refusals: BTreeMap<RecordKey, CallFailure>,
    calendar: BTreeMap<(Timestamp, u64), (usize, DueEvent)>,
    put: u64,
    uncertain: BTreeSet<DoubtSubject>,
    replayed: ReplayResult,
    /// The position in the recording.
    place: usize,
}

/// The reference of a replay.
#[derive(Clone, Copy)]
pub(super) enum ReplayReference<'a> {
    /// The recording itself, which has to be reproduced. Calls that an earlier replay of this kind took from the
    /// recording are taken from it again.
    Recording(Option<&'a ReplayResult>),
    /// A replay against the recording.
    Before(&'a ReplayResult),
}

impl<'a> ReplayReference<'a> {
    /// Returns the earlier replay.
    const fn earlier(self) -> Option<&'a ReplayResult> {
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
struct ReplayCallState {
    call: Call,
    uses: MachineKeys,
    /// Approvals that existed before the call.
    approvals: ApprovalLedger,
    /// The last requested step that has no result yet.
    pending: NextStep,
    /// The index of the last moment that it got.
    moment: usize,
    /// True if it has left its recorded path.
    own: bool,
    /// The running attempt and its start.
    attempt: Option<(u32, Timestamp)>,
    claimed: Option<RecordKey>,
    following: Option<RecordKey>,
    /// Steps left on a path of its own.
    steps_left: u32,
}

/// The maximum number of steps of one call on a path of its own: enough for progress events over a day. A recording may
/// make no sense at all, and a replay has to end.
const MOST_STEPS: u32 = 5_000;

impl ReplayCallState {
    /// Returns the number of the running attempt, or of the next one.
    fn next(&self) -> u32 {
        let made = u32::try_from(self.call.attempts().len()).unwrap_or(u32::MAX);
        self.attempt.map_or(made.saturating_add(1), |(number, _)| number)
    }
}

/// A due event of a call on a path of its own.
#[derive(Clone, Debug)]
enum DueEvent {
    Wake,
    Ran(u32),
    Progress(u32),
    Cancelled(OtherWaiters),
    Gone(OtherWaiters),
    Over(Option<Box<CallFailure>>),
}

/// A thing that a run with an unknown result may have changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DoubtSubject {
    Tool(steadfast_core::id::ToolRef),
    Session(Option<steadfast_core::id::SessionKey>),
    Record(RecordKey),
}

impl<'a> ReplayWorld<'a> {
    pub(super) fn new(
        calls: &'a [RecordedCall],
        policies: &'a mut dyn FnMut(&RecordedCall) -> Arc<CallPolicy>,
        against: ReplayReference<'a>,
        traced: &[usize],
    ) -> Self {
        Self {
            calls,
            policies,
            against,
            traced: traced.iter().copied().collect(),
            machines: ReplayMachines::default(),
            records: BTreeMap::new(),
            active: BTreeMap::new(),
            followers: BTreeMap::new(),
            refusals: BTreeMap::new(),
            calendar: BTreeMap::new(),
            put: 0,
            uncertain: BTreeSet::new(),
            replayed: ReplayResult::of(calls.len()),
            place: 0,
        }
    }

    pub(super) fn run(mut self, order: &[ReplayEvent], progress: &mut dyn FnMut(usize)) -> ReplayResult {
        let earlier = self.against.earlier();
        for (place, happened) in order.iter().enumerate() {
            if place % 4096 == 0 {
                progress(place);
                self.records.values_mut().for_each(|records| records.sweep(happened.at));
            }
            self.place = place;
            self.run_due_events(happened.at);
            if let Some((call, believed)) = earlier.and_then(|earlier| earlier.false_refusals.get(&place)) {
                self.forget(*call, *believed, happened.at);
            }
            self.happened(*happened);
        }
        self.run_due_events(Timestamp::MAX);
        // The calls left have no event that could end them, or a recording that makes no sense.
        for (index, call) in self.replayed.calls.iter_mut().enumerate() {
            let left = self.active.get(&index);
            if left.is_some() || call.end == UNFINISHED {
                call.end = match self.against {
                    ReplayReference::Recording(_) => ReplayEnd::Taken(TakenReason::NotExplained),
                    ReplayReference::Before(_) => ReplayEnd::NotKnown(UnknownResult::Run {
                        attempt: left.map_or(1, ReplayCallState::next),
                    }),
                };
            }
        }
        self.replayed
    }

    // ---- recorded events ----

    fn happened(&mut self, happened: ReplayEvent) {
        let ReplayEvent { call: index, moment, .. } = happened;
        let Some(recorded) = self.calls.get(index) else { return };
        let Some(at) = moment else {
            self.end_as(index, ReplayEnd::Taken(TakenReason::InsufficientRecord));
            return self.apply_recorded(index, recorded.finished);
        };
        let now = recorded.moment_at(at);
        let is_last = at + 1 == recorded.trail.len();
        let taken =
            self.against.earlier().and_then(|earlier| earlier.calls.get(index)).map(|earlier| &earlier.end);
        if let Some(ReplayEnd::Taken(reason)) = taken {
            self.end_as(index, ReplayEnd::Taken(*reason));
        }
        if matches!(self.end_of(index), Some(ReplayEnd::Taken(_))) {
            if is_last {
                self.apply_recorded(index, now);
            }
        } else if at == 0 {
            self.begin(index, recorded, now);
        } else {
            self.continue_recorded(index, recorded, at, now);
        }
    }

    fn begin(&mut self, index: usize, recorded: &RecordedCall, now: Timestamp) {
        let policy = self.policy(recorded);
        let request = request(recorded, &policy);
        let approvals = existing_approvals(recorded, &policy, now);
        let uses = MachineKeys::of(recorded);
        let mut notices = Vec::new();
        let (call, step) = self.machines.lend(&uses, &approvals, |shared| {
            Call::begin(shared, request, policy, recorded.seed, now, &mut notices)
        });
        self.keep_steps(index, &uses, notices, now);
        let active = ReplayCallState {
            call,
            uses,
            approvals,
            pending: NextStep::Stay,
            moment: 0,
            own: false,
            attempt: None,
            claimed: None,
            following: None,
            steps_left: MOST_STEPS,
        };
        self.settle(index, active, step, now);
    }

    fn continue_recorded(&mut self, index: usize, recorded: &RecordedCall, at: usize, now: Timestamp) {
        let Some(mut active) = self.active.remove(&index) else { return };
        let Some(moment) = recorded.trail.get(at).filter(|_| !active.own) else {
            self.active.insert(index, active);
            return;
        };
        active.moment = at;
        let (event, is_same) = self.recorded_event(index, &mut active, moment.kind, now);
        let step = self.on(index, &mut active, event, now);
        match (is_same, self.against) {
            (true, _) => self.settle(index, active, step, now),
            (false, ReplayReference::Recording(_)) => {
                active.pending = step;
                self.not_explained(index, active, now);
            }
            (false, ReplayReference::Before(_)) => {
                self.leave_recorded_path(index, &mut active, now);
                self.carry_out(index, active, step, now);
            }
        }
    }

    /// Returns the recorded event, and true if it is still the same.
    fn recorded_event(
        &mut self,
        index: usize,
        active: &mut ReplayCallState,
        kind: RecordedEventKind,
        now: Timestamp,
    ) -> (CallEvent, bool) {
        let event = match kind {
            // The recording does not have the cause of these verdicts, so they are taken from it.
            RecordedEventKind::Full => CallEvent::Claimed(ClaimVerdict::Full),
            RecordedEventKind::Closed => CallEvent::Claimed(ClaimVerdict::StoreRecovering),
            RecordedEventKind::RecordsLost => CallEvent::Claimed(ClaimVerdict::RecordsLost),
            RecordedEventKind::Acquired
            | RecordedEventKind::Follow
            | RecordedEventKind::Busy
            | RecordedEventKind::Replay
            | RecordedEventKind::Unknown
            | RecordedEventKind::Conflict
            | RecordedEventKind::Nothing
            | RecordedEventKind::Started
            | RecordedEventKind::NotStarted
            | RecordedEventKind::Probed
            | RecordedEventKind::Saved
            | RecordedEventKind::NotSaved
            | RecordedEventKind::Released => {
                let step = std::mem::replace(&mut active.pending, NextStep::Stay);
                match self.store_event(index, active, &step, now) {
                    Some(event) => event,
                    None => CallEvent::Woke(WakeReason::Time),
                }
            }
            RecordedEventKind::Renewed
            | RecordedEventKind::RenewedUnknown
            | RecordedEventKind::RenewedLost => self.renew(index, active, now),
            RecordedEventKind::Spent => CallEvent::Spent(SpendVerdict::Spent),
            RecordedEventKind::NotSpent => CallEvent::Spent(SpendVerdict::Lost),
            RecordedEventKind::LeaderRefused => {
                let refusal = active.following.and_then(|key| self.refusals.get(&key));
                CallEvent::Woke(refusal.map_or(WakeReason::Changed, |failure| {
                    WakeReason::LeaderRefused(Box::new(failure.clone()))
                }))
            }
            RecordedEventKind::Changed => CallEvent::Woke(WakeReason::Changed),
            RecordedEventKind::Arrived | RecordedEventKind::Time => CallEvent::Woke(WakeReason::Time),
            RecordedEventKind::StoreFailed => CallEvent::StoreFailed(StoreFault::NotDone),
            RecordedEventKind::StoreUnanswered => CallEvent::StoreFailed(StoreFault::Unanswered),
            RecordedEventKind::Granted => CallEvent::Answered(ApprovalOutcome::Granted(Some(GrantId(0)))),
            RecordedEventKind::GrantedDirectly => CallEvent::Answered(ApprovalOutcome::Granted(None)),
            RecordedEventKind::Denied => CallEvent::Answered(ApprovalOutcome::Denied),
            RecordedEventKind::Unreachable => CallEvent::Answered(ApprovalOutcome::Unreachable),
            RecordedEventKind::ReturnedToCaller => {
                CallEvent::Answered(ApprovalOutcome::ReturnedToCaller(unknown_output()))
            }
            RecordedEventKind::Ran => CallEvent::Ran(self.outcome(index, active)),
            RecordedEventKind::Progressed => CallEvent::Progressed,
            RecordedEventKind::Settled => CallEvent::Settled,
            RecordedEventKind::DriverEnded => CallEvent::DriverEnds,
            RecordedEventKind::Cancelled => CallEvent::Cancelled(OtherWaiters::None),
            RecordedEventKind::CancelledByOne => CallEvent::Cancelled(OtherWaiters::Waiting),
            RecordedEventKind::Disconnected => CallEvent::Disconnected(OtherWaiters::None),
            RecordedEventKind::OneDisconnected => CallEvent::Disconnected(OtherWaiters::Waiting),
        };
        let is_same = RecordedEventKind::of(&event) == kind;
        (event, is_same)
    }

    /// Returns the result of the attempt that runs on the recorded path.
    fn outcome(&mut self, index: usize, active: &mut ReplayCallState) -> AttemptReport {
        let number = active.attempt.take().map_or(0, |(number, _)| number);
        self.recorded_outcome(index, active, number).unwrap_or_else(neutral)
    }

    fn recorded_outcome(&self, index: usize, active: &ReplayCallState, number: u32) -> Option<AttemptReport> {
        let outcome = self.calls.get(index)?.outcomes.get(place(number)?)?;
        Some(outcome_of(outcome, active.call.policy(), active.call.request().number))
    }

    /// After a step on the recorded path: continues if the next recorded event fits the requested step.
    fn settle(&mut self, index: usize, mut active: ReplayCallState, step: NextStep, now: Timestamp) {
        let Some(recorded) = self.calls.get(index) else { return };
        if let NextStep::Finish { result, .. } = step {
            return self.finish(index, active, &result, now);
        }
        self.note(index, &mut active, step, now);
        let wake = active.call.wake_at();
        let next = recorded
            .trail
            .get(active.moment + 1)
            .map(|next| (next.kind, recorded.moment_at(active.moment + 1)));
        let fits = next.is_some_and(|(kind, _)| fits(&active.pending, kind));
        match self.against {
            ReplayReference::Recording(_) => {
                if let Some(call) = self.replayed.calls.get_mut(index) {
                    call.wakes.push(wake);
                }
                if fits {
                    self.active.insert(index, active);
                } else {
                    self.not_explained(index, active, now);
                }
            }
            ReplayReference::Before(before) => {
                let then =
                    before.calls.get(index).and_then(|call| call.wakes.get(active.moment).copied()).flatten();
                let in_time = next.is_some_and(|(kind, at)| {
                    wake == then || (kind != RecordedEventKind::Time && wake.is_none_or(|wake| at <= wake))
                });
                if fits && in_time {
                    self.active.insert(index, active);
                } else {
                    self.leave_recorded_path(index, &mut active, now);
                    self.deviate(index, active, now);
                }
            }
        }
    }

    /// Records the requested step of a call.
    fn note(&mut self, index: usize, active: &mut ReplayCallState, step: NextStep, now: Timestamp) {
        if let Some(record) = active.call.claimed_record() {
            active.claimed = Some(record.key);
        }
        if !matches!(step, NextStep::Stay | NextStep::Answer { .. } | NextStep::CancelUpstream)
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
            NextStep::Answer { .. } | NextStep::CancelUpstream
                if matches!(active.pending, NextStep::Save(_) | NextStep::Stay) =>
            {
                active.pending = NextStep::Wait;
                return;
            }
            NextStep::Stay | NextStep::Answer { .. } | NextStep::CancelUpstream => return,
            NextStep::Run(run) => active.attempt = Some((run.attempt, now)),
            NextStep::Cut(_) => {
                if let (Some(call), Some((number, _))) = (self.replayed.calls.get_mut(index), active.attempt)
                {
                    call.cut.push(number);
                }
            }
            NextStep::Follow(key) => {
                active.following = Some(*key);
                self.followers.entry(*key).or_default().insert(index);
            }
            NextStep::Claim(_)
            | NextStep::AwaitEnd(_)
            | NextStep::Ask(_)
            | NextStep::Spend { .. }
            | NextStep::Start { .. }
            | NextStep::Probe(_)
            | NextStep::Renew
            | NextStep::Wait
            | NextStep::Save(_)
            | NextStep::Release(_)
            | NextStep::Finish { .. } => {}
        }
        active.pending = step;
    }

    // ---- steps of all calls ----

    fn on(
        &mut self,
        index: usize,
        active: &mut ReplayCallState,
        event: CallEvent,
        now: Timestamp,
    ) -> NextStep {
        let mut notices = Vec::new();
        let ReplayCallState { call, approvals, uses, .. } = active;
        let step =
            self.machines.lend(uses, approvals, |shared| call.handle_event(shared, now, event, &mut notices));
        self.keep_steps(index, &active.uses, notices, now);
        // An event that does not fit leaves the machine unchanged.
        step.unwrap_or(NextStep::Stay)
    }

    fn keep_steps(&mut self, index: usize, uses: &MachineKeys, notices: Vec<CallNotice>, now: Timestamp) {
        let Some(call) = self.replayed.calls.get_mut(index) else { return };
        for notice in &notices {
            if let CallNotice::CallBlocked { code, .. } = notice {
                call.blocked = Some(*code);
            } else if let CallNotice::BreakerChanged { scope, transition } = notice {
                self.machines.changed(uses, *scope, transition, index);
            }
        }
        if self.traced.contains(&index) {
            call.steps.extend(notices.into_iter().map(|notice| (now, notice)));
        }
    }

    /// Returns the records that hold the record of this call.
    fn records_of(&mut self, index: usize, active: &ReplayCallState) -> &mut MemoryRecords {
        let memory = self.calls.get(index).and_then(|recorded| memory(recorded, active.call.policy()));
        self.records.entry(memory).or_default()
    }

    /// Returns the event of the store for a step, if the step is one for the store.
    fn store_event(
        &mut self,
        index: usize,
        active: &mut ReplayCallState,
        step: &NextStep,
        now: Timestamp,
    ) -> Option<CallEvent> {
        Some(match step {
            NextStep::Claim(claim) => {
                let known = self.deliveries(index, active, claim, now);
                let records = self.records_of(index, active);
                CallEvent::Claimed(records.claim(claim, &known, |_| LeaseOwnerState::Alive, now))
            }
            NextStep::Start { key, owner } => {
                CallEvent::Started(self.records_of(index, active).start(key, owner, now))
            }
            NextStep::Spend { .. } => CallEvent::Spent(SpendVerdict::Spent),
            NextStep::Probe(_) => CallEvent::Probed,
            NextStep::Renew => self.renew(index, active, now),
            NextStep::Save(save) => CallEvent::Saved(self.records_of(index, active).save(save, now)),
            NextStep::Release(release) => {
                self.records_of(index, active).release(release);
                CallEvent::Released
            }
            NextStep::Follow(_)
            | NextStep::AwaitEnd(_)
            | NextStep::Ask(_)
            | NextStep::Run(_)
            | NextStep::Cut(_)
            | NextStep::Wait
            | NextStep::Answer { .. }
            | NextStep::CancelUpstream
            | NextStep::Stay
            | NextStep::Finish { .. } => return None,
        })
    }

    fn renew(&mut self, index: usize, active: &ReplayCallState, now: Timestamp) -> CallEvent {
        let Some(record) = active.call.claimed_record().cloned() else {
            return CallEvent::Woke(WakeReason::Time);
        };
        let keep = active.call.policy().dedupe.keep;
        let verdict = self.records_of(index, active).renew(&record, &keep, RecordAbsence::Removed, now);
        CallEvent::Renewed { owner: record.owner, sent: now, verdict }
    }

    /// Returns the deliveries that the recording implies. Deliveries are not recorded. But if a call without a key ran
    /// although an equal one was over, the response of that one had been delivered.
    fn deliveries(
        &mut self,
        index: usize,
        active: &ReplayCallState,
        claim: &Claim,
        now: Timestamp,
    ) -> LocalKnowledge {
        let first = self.calls.get(index).and_then(|recorded| {
            recorded.trail.iter().find(|moment| moment.kind.is_claim()).map(|moment| moment.kind)
        });
        if claim.role != ClaimRole::Fresh || first != Some(RecordedEventKind::Acquired) {
            return LocalKnowledge::default();
        }
        let records = self.records_of(index, active);
        let indexed = records.indexed(claim.address.index());
        let over = indexed.filter(|record| !matches!(record.state, DedupeState::Inflight));
        let delivered = over.map(|record| (record.receipt(), now.before(claim.rules.after_telling)));
        LocalKnowledge { delivered: delivered.into_iter().collect(), ..LocalKnowledge::default() }
    }

    fn finish(&mut self, index: usize, active: ReplayCallState, result: &CallResult, now: Timestamp) {
        let ending = RecordedResult::of(result, active.call.attempts().len());
        if ending.code == Some(Code::CircuitOpen) && self.traced.contains(&index) {
            let opened_by = self.machines.opened_by(&active.uses, &active.call.policy().breaker, now);
            if let Some(call) = self.replayed.calls.get_mut(index) {
                call.opened_by = opened_by;
            }
        }
        let refusal = result.outcome.as_ref().err().filter(|_| result.is_refused());
        self.wake_followers(index, &active, refusal, now);
        let recorded = self.calls.get(index);
        let is_explained =
            recorded.is_some_and(|call| call.ending == ending && active.moment + 1 == call.trail.len());
        if self.against.is_recording() && !is_explained {
            let blocked = self.replayed.calls.get(index).and_then(|call| call.blocked);
            self.end_as(index, ReplayEnd::Taken(TakenReason::NotExplained));
            self.record_false_refusal(index, blocked, now);
            if recorded.is_some_and(|call| active.moment + 1 >= call.trail.len()) && ending.attempts == 0 {
                self.apply_recorded(index, now);
            }
            return;
        }
        self.end_as(index, ReplayEnd::Ended(ending));
        let is_in_doubt = self.is_in_doubt(&active);
        if let Some(call) = self.replayed.calls.get_mut(index) {
            call.in_doubt = is_in_doubt;
        }
    }

    fn is_in_doubt(&self, active: &ReplayCallState) -> bool {
        if self.uncertain.is_empty() {
            return false;
        }
        let request = active.call.request();
        let keys = request.address().into_iter().flat_map(|address| [Some(address.own()), address.index()]);
        let touched =
            [DoubtSubject::Tool(request.tool.clone()), DoubtSubject::Session(request.session.clone())];
        keys.flatten().map(DoubtSubject::Record).chain(touched).any(|one| self.uncertain.contains(&one))
    }

    /// Ends the run of a call and wakes its followers. Followers on their recorded path are woken at their recorded
    /// times.
    fn wake_followers(
        &mut self,
        index: usize,
        active: &ReplayCallState,
        refusal: Option<&CallFailure>,
        now: Timestamp,
    ) {
        if let Some(key) = active.following
            && let Some(followers) = self.followers.get_mut(&key)
        {
            followers.remove(&index);
        }
        let Some(key) = active.claimed else { return };
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
            self.schedule(now, follower, DueEvent::Over(refusal.cloned().map(Box::new)));
        }
    }

    fn schedule(&mut self, at: Timestamp, index: usize, due: DueEvent) {
        self.put += 1;
        self.calendar.insert((at, self.put), (index, due));
    }

    fn end_of(&self, index: usize) -> Option<&ReplayEnd> {
        self.replayed.calls.get(index).map(|call| &call.end)
    }

    fn end_as(&mut self, index: usize, end: ReplayEnd) {
        if let Some(call) = self.replayed.calls.get_mut(index) {
            call.end = end;
        }
    }

    fn policy(&mut self, recorded: &RecordedCall) -> Arc<CallPolicy> {
        let policy = (self.policies)(recorded);
        if recorded.in_turn { Arc::new(policy.for_turn()) } else { policy }
    }
}

impl RecordedCall {
    pub(super) fn moment_at(&self, at: usize) -> Timestamp {
        let after = self.trail.get(at).map_or(0, |moment: &RecordedEvent| moment.after_ms);
        self.arrived + Duration::from_millis(after)
    }
}

/// The engine that holds a record in memory. None is the shared store.
type RecordMemory = Option<Arc<str>>;

/// Returns the memory of a call. Read-only calls are stored by their own engine, unless they belong to a turn.
fn memory(recorded: &RecordedCall, policy: &CallPolicy) -> RecordMemory {
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
fn request(recorded: &RecordedCall, policy: &CallPolicy) -> CallRequest {
    let mut request = recorded.request.clone();
    if policy.dedupe.computed_keys == ComputedKeyPolicy::Never {
        request.duplicates = match request.duplicates {
            Deduplication::Joined(RecordAddress::Keyless { .. }) => Deduplication::Allowed,
            Deduplication::Joined(RecordAddress::CallId { id, .. }) => {
                Deduplication::Joined(RecordAddress::CallId { id, index: id })
            }
            known @ (Deduplication::Allowed | Deduplication::Joined(_) | Deduplication::Refused(_)) => known,
        };
    }
    request
}

/// Returns the approvals given before the call arrived. The call used one without a request.
fn existing_approvals(recorded: &RecordedCall, policy: &CallPolicy, now: Timestamp) -> ApprovalLedger {
    let mut approvals = ApprovalLedger::default();
    let mut decided = recorded.trail.iter().filter(|moment| {
        matches!(
            moment.kind,
            RecordedEventKind::Spent
                | RecordedEventKind::NotSpent
                | RecordedEventKind::Granted
                | RecordedEventKind::GrantedDirectly
                | RecordedEventKind::Denied
        )
    });
    if decided
        .next()
        .is_some_and(|moment| matches!(moment.kind, RecordedEventKind::Spent | RecordedEventKind::NotSpent))
    {
        let request = &recorded.request;
        let subject = ApprovalSubject {
            tool: &request.tool,
            arguments: request.digest,
            signature: &request.signature,
            session: request.session.as_ref(),
            blocked: true,
        };
        let parked = approvals.ask(subject, &Escalation::routine(&request.tool), None, &policy.approval, now);
        // A request that was just added can be decided.
        drop(approvals.decide(parked.id, ApprovalDecision::Once, Grantor::Operator, now));
    }
    approvals
}

fn claim(
    request: &CallRequest,
    address: RecordAddress,
    policy: &CallPolicy,
    recorded: &RecordedCall,
) -> Claim {
    Claim {
        address,
        intent: ClaimIntent::Take { started: true },
        role: ClaimRole::Fresh,
        owner: ClaimOwner { process: request.process.clone(), call: request.number, claim: 0 },
        digest: request.digest,
        retry_safe: request.is_retry_safe(policy),
        best_effort: false,
        arrived: recorded.arrived,
        age: Duration::ZERO,
        end_observed_within: None,
        run: request.run.clone(),
        rules: DedupeRules::from(policy),
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
fn neutral() -> AttemptReport {
    AttemptReport::Replayed(Box::new(RecordedFailure {
        nature: FaultNature::Permanent,
        reach: AttemptReach::NotSent,
        severity: Severity::Informational,
        mistake: None,
        retry_after_ms: None,
        code: Code::ToolError,
        rule: "rehearsal".into(),
        manner: RecordedFailureKind::NotRun,
        observed: None,
        error: String::new(),
        words: None,
    }))
}

/// Returns true if an event can follow a step.
fn fits(pending: &NextStep, kind: RecordedEventKind) -> bool {
    let failed = matches!(kind, RecordedEventKind::StoreFailed | RecordedEventKind::StoreUnanswered);
    let renewed = matches!(
        kind,
        RecordedEventKind::Renewed | RecordedEventKind::RenewedUnknown | RecordedEventKind::RenewedLost
    );
    let meanwhile = matches!(
        kind,
        RecordedEventKind::Time
            | RecordedEventKind::Progressed
            | RecordedEventKind::Cancelled
            | RecordedEventKind::CancelledByOne
            | RecordedEventKind::Disconnected
            | RecordedEventKind::OneDisconnected
    );
    match pending {
        NextStep::Claim(_) => kind.is_claim() || failed,
        NextStep::Follow(_) | NextStep::AwaitEnd(_) => {
            matches!(kind, RecordedEventKind::Changed | RecordedEventKind::LeaderRefused) || meanwhile
        }
        NextStep::Ask(_) => {
            let answered = matches!(
                kind,
                RecordedEventKind::Granted
                    | RecordedEventKind::GrantedDirectly
                    | RecordedEventKind::Denied
                    | RecordedEventKind::Unreachable
                    | RecordedEventKind::ReturnedToCaller
            );
            answered || meanwhile || renewed
        }
        NextStep::Spend { .. } => {
            matches!(kind, RecordedEventKind::Spent | RecordedEventKind::NotSpent) || failed
        }
        NextStep::Start { .. } => {
            matches!(kind, RecordedEventKind::Started | RecordedEventKind::NotStarted) || failed
        }
        NextStep::Probe(_) => kind == RecordedEventKind::Probed || failed,
        NextStep::Renew => renewed || failed,
        NextStep::Run(_) => kind == RecordedEventKind::Ran || meanwhile || renewed,
        NextStep::Cut(_) => kind == RecordedEventKind::Ran,
        NextStep::Wait => {
            meanwhile
                || renewed
                || matches!(
                    kind,
                    RecordedEventKind::Ran | RecordedEventKind::Settled | RecordedEventKind::DriverEnded
                )
        }
        NextStep::Save(_) => matches!(kind, RecordedEventKind::Saved | RecordedEventKind::NotSaved) || failed,
        NextStep::Release(_) => kind == RecordedEventKind::Released || failed,
        NextStep::Answer { .. } | NextStep::CancelUpstream | NextStep::Stay | NextStep::Finish { .. } => {
            false
        }
    }
}
