//! The machines under test and the world around them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::approval::GrantId;
use steadfast_core::breaker::CircuitBreaker;
use steadfast_core::call::{
    AttemptEndVisibility, AttemptReport, BreakerScope, Call, CallEvent, CallMechanisms, CallNotice,
    CallRequest, CutReason, DeferredWrite, NextStep, WakeReason,
};
use steadfast_core::classify::RetryAfter;
use steadfast_core::code::Code;
use steadfast_core::dedupe::{
    ClaimOwner, ClaimVerdict, DedupeState, DeliveryReceipt, LeaseOwnerState, MarkerWatch, ProcessIdentity,
    RenewVerdict, RunOutcome, SettleTime, StoreMarker,
};
use steadfast_core::guard::LoopGuard;
use steadfast_core::id::{SessionKey, ToolRef};
use steadfast_core::key::RecordKey;
use steadfast_core::limit::Limiter;
use steadfast_core::policy::CallPolicy;
use steadfast_core::retry::RetryBudget;
use steadfast_core::trust::TrustLedger;

use crate::breakers::ExpectedBreaker;
use crate::coverage::TableCoverage;
use crate::invariants::{self, InvariantViolation};
use crate::judgements::ToolObservations;
use crate::model::{CallIdentity, GroundTruth, TurnCall};
use crate::rng::Rng;
use crate::scenario::{OwnerLiveness, Scenario};
use crate::settling::{AttemptEvent, AttemptWork};
use crate::store::SimulatedStore;
use crate::transition::SimulationEvent;
use crate::turns::{TurnMembership, TurnSubmission};
use crate::unknown_outcomes::ResponseKind;
use crate::verification::VerificationRead;
use crate::{Defect, SimulationFailure};

/// Counters of one simulated world.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Calls that were begun.
    pub calls: u64,
    /// Effects of tools.
    pub effects: u64,
    /// Answers that were replayed.
    pub replays: u64,
    /// Outcomes that became unknown or were found to be unknown.
    pub unknown: u64,
    /// Pending unknown-outcome responses.
    pub pending_responses: u64,
    /// Final unknown-outcome responses.
    pub final_responses: u64,
    /// Verification reads.
    pub reads: u64,
    /// Claims that were granted although an equal run is of unknown outcome.
    pub run_again: u64,
    /// Unknown outcomes that an operator resolved.
    pub resolved: u64,
    /// Number of times that the store lost everything.
    pub emptyings: u64,
    /// Calls that were refused because the store had noticed a loss.
    pub refused_after_loss: u64,
    /// Turn submissions, resubmissions included.
    pub turns: u64,
    /// Events in total.
    pub events: u64,
    /// Coverage of the tables.
    pub coverage: TableCoverage,
}

/// The state of a call as the world sees it.
pub(crate) struct ActiveCall {
    pub(crate) call: Call,
    pub(crate) goal: usize,
    pub(crate) dispatch: usize,
    /// The number of the attempt that runs.
    pub(crate) attempt: Option<RunningAttempt>,
    pub(crate) last_attempt: u64,
    /// Start of the first attempt.
    pub(crate) first_attempt: Option<Timestamp>,
    pub(crate) follows: Option<RecordKey>,
    /// The record whose end it waits for.
    pub(crate) awaits: Option<RecordKey>,
    /// The record that its last claim found.
    pub(crate) found: Option<(RecordKey, ClaimOwner)>,
    /// Position among received messages and handed-over answers.
    pub(crate) received: u64,
    /// True if the store has failed it, and if another call owns its record.
    pub(crate) store_failed: bool,
    pub(crate) fence_lost: bool,
    /// True if its process makes sure that the attempt ends.
    pub(crate) child_is_ending: bool,
    /// Events that arrived while the call waited for the store.
    pub(crate) deferred: VecDeque<AttemptEvent>,
    pub(crate) woken_at: Option<Timestamp>,
    pub(crate) answered: bool,
    /// Number of the current store command. A late reply to an earlier command is not taken for the reply to a new one.
    pub(crate) command: u64,
    /// Time at which the last renewal has arrived.
    pub(crate) renewed_by: Timestamp,
    pub(crate) sent: bool,
    pub(crate) counted: bool,
    /// Time at which it last asked to be the probe, and true if the store received that.
    pub(crate) probe_request: Option<(Timestamp, bool)>,
    /// The turn of which the call is part.
    pub(crate) in_turn: Option<TurnMembership>,
    /// Number of attempts so far.
    pub(crate) attempts: u32,
    /// True if an operator allowed the call.
    pub(crate) granted: bool,
    pub(crate) grant: Option<GrantId>,
    /// True if the attempt was cut because the caller's time was up.
    pub(crate) out_of_time: bool,
    /// Time at which it was admitted as a probe.
    pub(crate) admitted: Option<Timestamp>,
    /// True if it has just asked to probe the dependency of its tool.
    pub(crate) dependency_probe_requested: bool,
    /// True if its caller was answered or has left, so that its result reaches no one.
    pub(crate) caller_is_done: bool,
    /// True if it has just learned that its claim is lost or over.
    pub(crate) claim_lost: bool,
    /// Delay that the last failure asked for.
    pub(crate) retry_after: Option<Duration>,
    /// Reason why its attempt was cut.
    pub(crate) cut: Option<CutReason>,
    /// True if its breakers have received the result of its attempt.
    pub(crate) is_judged: bool,
}

impl ActiveCall {
    /// Returns true if its unknown outcome is being recorded.
    pub(crate) fn is_marking(&self) -> bool {
        self.call.state() == "Marking"
    }

    /// Returns true if only the end of its attempt can finish it.
    fn awaits_end(&self) -> bool {
        self.call.awaits_end()
            || self.is_marking() && self.call.request().end == AttemptEndVisibility::Visible
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningAttempt {
    pub(crate) number: u64,
    pub(crate) epoch: u64,
    pub(crate) probe: Option<ProbeAttempt>,
    pub(crate) started: Timestamp,
    /// Time of its last sign of life, or of its start.
    pub(crate) last_progress: Timestamp,
    pub(crate) over: bool,
    /// True if its tool received a cancellation.
    pub(crate) cancelled: bool,
    /// Transitions of the tool's breaker and of its dependency's breaker when the attempt began.
    pub(crate) epochs: [u64; 2],
    /// Last time at which its breakers received a sign of life.
    pub(crate) alive: Timestamp,
}

/// A probe of a half-open breaker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeAttempt {
    /// The epoch, counted the same by all processes that share the breaker.
    pub(crate) epoch: u64,
    /// Time at which it was admitted.
    pub(crate) since: Timestamp,
    /// True if the store could not be asked, so that no other process knows of the probe.
    pub(crate) alone: bool,
}

/// One process that drives calls.
pub(crate) struct SimulatedProcess {
    pub(crate) identity: ProcessIdentity,
    /// Offset of its machine's clock from the store's clock, in milliseconds. Negative if it is behind.
    pub(crate) ahead: i64,
    pub(crate) alive: bool,
    pub(crate) frozen_until: Timestamp,
    pub(crate) breaker: CircuitBreaker,
    /// Its knowledge of the store's marker.
    pub(crate) watch: MarkerWatch,
    /// Number of store losses before it started.
    pub(crate) started_after: usize,
    /// Number of store losses when this process last stored the state of its breaker.
    pub(crate) shared_after: usize,
    /// Transitions of the breaker so far.
    pub(crate) epoch: u64,
    pub(crate) budget: RetryBudget,
    pub(crate) limiter: Limiter,
    pub(crate) dependency_limiter: Limiter,
    /// Breaker of the dependency that all tools share, in worlds that have one.
    pub(crate) dependency: Option<CircuitBreaker>,
    /// Expected state of the two breakers.
    pub(crate) expected: ExpectedBreaker,
    pub(crate) expected_of_dependency: ExpectedBreaker,
    /// Observations that guard and trust may use.
    pub(crate) observations: ToolObservations,
    pub(crate) guards: BTreeMap<usize, LoopGuard>,
    pub(crate) trust: TrustLedger,
    /// Machines of tools that only turns call.
    pub(crate) cells: BTreeMap<ToolRef, SharedToolMachines>,
    pub(crate) calls: BTreeMap<u64, ActiveCall>,
    pub(crate) next_call: u64,
    pub(crate) deferred: Vec<(Timestamp, DeferredWrite)>,
    /// True if an operator has blocked its tool, and since when.
    pub(crate) blocked: bool,
    pub(crate) blocked_at: Option<Timestamp>,
    /// Answers in transit.
    pub(crate) written: Vec<SentAnswer>,
    /// Deliveries that this process knows of.
    pub(crate) known: Vec<(DeliveryReceipt, Timestamp)>,
    /// Answers that were handed over, in order.
    pub(crate) handed: Vec<AnswerHandover>,
    /// Runs whose answers were handed over before they could be saved, in order.
    pub(crate) unsaved: Vec<(ClaimOwner, u64)>,
    /// Runs with an unknown outcome whose final response is known to have reached a client.
    pub(crate) final_responses: BTreeMap<ClaimOwner, usize>,
    /// Runs that this client has verified since.
    pub(crate) verified: BTreeMap<ClaimOwner, usize>,
}

/// An answer that was handed over, and whether its process knows that it has arrived.
#[derive(Clone, Debug)]
pub(crate) struct AnswerHandover {
    pub(crate) owner: ClaimOwner,
    pub(crate) at: u64,
    pub(crate) dispatch: usize,
    pub(crate) has_arrived: bool,
}

/// An answer in transit.
#[derive(Clone, Debug)]
pub(crate) struct SentAnswer {
    pub(crate) connection: usize,
    pub(crate) dispatch: usize,
    pub(crate) receipt: DeliveryReceipt,
    pub(crate) kind: ResponseKind,
}

/// The machines that all calls of one tool share in a process.
#[derive(Debug, Default)]
pub(crate) struct SharedToolMachines {
    pub(crate) breaker: CircuitBreaker,
    budget: RetryBudget,
    pub(crate) limiter: Limiter,
}

/// A client's connection to one process.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedConnection {
    pub(crate) node: usize,
    pub(crate) generation: u64,
    pub(crate) open: bool,
}

/// One transmission of a goal.
#[derive(Clone, Debug)]
pub(crate) struct Dispatch {
    pub(crate) goal: usize,
    /// Number of the call among those for this goal. Each has its own call id.
    pub(crate) call: u32,
    pub(crate) connection: usize,
    pub(crate) answered: bool,
    /// True if its client no longer waits for it.
    pub(crate) given_up: bool,
    /// True if its process knows that the client has cancelled it. Nothing is written to it then.
    pub(crate) withdrawn: bool,
    /// Answers that this client had received on this connection when it sent the call.
    pub(crate) receipts: Vec<DeliveryReceipt>,
    pub(crate) sent: Timestamp,
    /// Time at which a process took it up.
    pub(crate) taken: Option<Timestamp>,
}

impl Dispatch {
    pub(crate) fn new(
        (goal, call): (usize, u32),
        connection: usize,
        receipts: Vec<DeliveryReceipt>,
        sent: Timestamp,
    ) -> Self {
        Self {
            goal,
            call,
            connection,
            answered: false,
            given_up: false,
            withdrawn: false,
            receipts,
            sent,
            taken: None,
        }
    }
}

/// The whole simulated world.
pub(crate) struct SimulatedWorld {
    pub(crate) seed: u64,
    pub(crate) defect: Option<Defect>,
    pub(crate) rng: Rng,
    /// Generator for decisions that were added later.
    pub(crate) side: Rng,
    /// Generator for decisions that were added after those.
    pub(crate) third: Rng,
    pub(crate) weather: Scenario,
    pub(crate) now: Timestamp,
    queue: BTreeMap<(Timestamp, u64), SimulationEvent>,
    ticks: u64,
    pub(crate) model: GroundTruth,
    pub(crate) store: SimulatedStore,
    pub(crate) nodes: Vec<SimulatedProcess>,
    pub(crate) connections: Vec<SimulatedConnection>,
    /// Open connections of a client to a process: the first and the second.
    pub(crate) lines: BTreeMap<(usize, usize, bool), usize>,
    /// Answers that a client has received on a connection.
    pub(crate) receipts: BTreeMap<usize, Vec<DeliveryReceipt>>,
    pub(crate) dispatches: Vec<Dispatch>,
    /// Answers that count as delivered and have not arrived yet.
    pub(crate) crossing: Vec<usize>,
    pub(crate) reads: Vec<VerificationRead>,
    pub(crate) attempts: u64,
    /// Work that attempts have started.
    pub(crate) works: BTreeMap<u64, AttemptWork>,
    /// Runs whose end no process will observe, although one should.
    pub(crate) unseen: BTreeSet<ClaimOwner>,
    /// Counter of received messages and handed-over answers.
    pub(crate) order: u64,
    /// Time of the last fault that could not be foreseen.
    pub(crate) disturbed: Timestamp,
    /// Owners whose process died while they held a claim.
    pub(crate) died: BTreeSet<ProcessIdentity>,
    pub(crate) sent: BTreeSet<ClaimOwner>,
    /// Owners whose tool asked for input instead of running.
    pub(crate) questions: BTreeSet<ClaimOwner>,
    pub(crate) turn_policy: Arc<CallPolicy>,
    pub(crate) submissions: Vec<TurnSubmission>,
    /// Clock jumps with their lengths.
    pub(crate) jumps: Vec<(Timestamp, Duration)>,
    pub(crate) summary: Summary,
    /// The scenario and the most recent events.
    trace: VecDeque<String>,
    /// Number of lines that are missing between them.
    forgotten: usize,
}

/// Time at which a world begins. Clocks that are behind show less, but never zero.
pub(crate) const WORLD_START: Timestamp = Timestamp::from_millis(1_000_000);
/// Maximum difference between a machine's clock and the store's clock, in milliseconds.
const MOST_SKEW: u64 = 300_000;
/// Long enough for every lease, hold and lingering attempt to be over.
const SETTLE_MS: u64 = 4 * 3600 * 1000;
/// Maximum number of events. A world that needs more is in a loop.
const MOST_EVENTS: u64 = 200_000;
const LONGEST_TRACE: usize = 4000;

impl SimulatedWorld {
    pub(crate) fn new(seed: u64, defect: Option<Defect>) -> Self {
        let (mut rng, mut side) = (Rng::new(seed), Rng::separate(seed));
        let (mut third, mut fourth) = (Rng::third(seed), Rng::fourth(seed));
        let mut weather = Scenario::of(&mut rng, &mut side);
        weather.shared_breakers = match defect {
            Some(Defect::ProbeNotShared | Defect::ByHandOvertaken) => true,
            // A breaker that opens early hides unrelated defects.
            Some(_) => false,
            None => side.chance(50),
        };
        weather.tool_input_requests = match defect {
            None if side.chance(30) => side.between(1, 60),
            Some(_) | None => 0,
        };
        if weather.shared_breakers || defect == Some(Defect::LateBreakerResultCounted) {
            // A breaker that opens at once reveals its own defects soonest.
            Arc::make_mut(&mut weather.policy).breaker.consecutive = Some(NonZeroU32::MIN);
        }
        crate::turns::draw(&mut weather, seed, defect);
        if defect.is_none() {
            weather.draw_more(&mut third);
            weather.draw_last(&mut fourth);
            weather.draw_limits(&mut Rng::fifth(seed));
            weather.draw_rates(&mut Rng::sixth(seed));
        }
        if defect.is_some_and(Defect::needs_unknown_outcomes) {
            weather.set_unknown_outcomes();
        }
        if defect == Some(Defect::FailedDispatchDoesNotStandBack) {
            weather.set_interfering_dispatches();
        }
        let marker = StoreMarker(side.next());
        if defect.is_some_and(Defect::needs_an_emptied_store) {
            weather.emptyings = 2;
        }
        let mut world = Self {
            seed,
            defect,
            rng,
            side,
            third,
            now: WORLD_START,
            queue: BTreeMap::new(),
            ticks: 0,
            model: GroundTruth::default(),
            store: SimulatedStore::new(marker, defect),
            nodes: Vec::new(),
            connections: Vec::new(),
            lines: BTreeMap::new(),
            receipts: BTreeMap::new(),
            dispatches: Vec::new(),
            crossing: Vec::new(),
            reads: Vec::new(),
            attempts: 0,
            works: BTreeMap::new(),
            unseen: BTreeSet::new(),
            order: 0,
            disturbed: Timestamp::ZERO,
            died: BTreeSet::new(),
            sent: BTreeSet::new(),
            questions: BTreeSet::new(),
            turn_policy: Arc::new(weather.policy.for_turn()),
            submissions: Vec::new(),
            jumps: Vec::new(),
            summary: Summary::default(),
            trace: VecDeque::new(),
            forgotten: 0,
            weather,
        };
        world.log_event(format!("the world of seed {seed}: {:?}", world.weather));
        for number in 0..world.weather.processes {
            let skew = fourth.between(0, 2 * MOST_SKEW).cast_signed() - MOST_SKEW.cast_signed();
            // Processes that share a breaker compare times.
            let ahead = if world.weather.shared_breakers { 0 } else { skew };
            let dependency = world.weather.dependency.then(CircuitBreaker::default);
            let ahead = if number == 1 && world.weather.twins { world.nodes[0].ahead } else { ahead };
            world.nodes.push(SimulatedProcess { ahead, dependency, ..world.born(number, 0) });
            world.observe_marker(number);
        }
        world.schedule_initial_events();
        world
    }

    /// Runs until nothing more happens, then checks the final invariants.
    pub(crate) fn run_to_end(mut self) -> Result<Summary, Box<SimulationFailure>> {
        let end = WORLD_START + Duration::from_millis(self.weather.storm + SETTLE_MS);
        while let Some(((at, _), happening)) = self.queue.pop_first() {
            self.now = self.now.max(at);
            self.summary.events += 1;
            if self.now > end || self.summary.events > MOST_EVENTS {
                let open = self.still_open();
                return Err(self.failed(("an end", format!("the world does not come to rest: {open}"))));
            }
            let check_promises = |world: &Self| {
                world.model.broken.clone().or(world.store.tables.broken.clone()).map_or(Ok(()), Err)
            };
            if let Err(broken) = self
                .happen(happening)
                .and_then(|()| check_promises(&self))
                .and_then(|()| self.notify_followers())
            {
                return Err(self.failed(broken));
            }
        }
        if let Err(broken) = self.check_at_rest() {
            return Err(self.failed(broken));
        }
        self.summary.coverage = std::mem::take(&mut self.store.tables.coverage);
        Ok(self.summary)
    }

    fn failed(self, (invariant, description): InvariantViolation) -> Box<SimulationFailure> {
        let mut trace = Vec::from(self.trace);
        if self.forgotten > 0 {
            trace.insert(1, format!("... {} lines are left out ...", self.forgotten));
        }
        Box::new(SimulationFailure { seed: self.seed, invariant, description, trace })
    }

    pub(crate) fn log_event(&mut self, line: String) {
        self.trace.push_back(format!("{}  {line}", invariants::clock(self.now)));
        if self.trace.len() > LONGEST_TRACE {
            self.trace.remove(1);
            self.forgotten += 1;
        }
    }

    /// Creates an engine of this process. Two engines of one process number their calls together.
    pub(crate) fn born(&self, number: usize, generation: u64) -> SimulatedProcess {
        let born = SimulatedProcess::born(number, generation);
        match self.weather.twins && number == 1 {
            true => {
                let identity = ProcessIdentity { pid: 0, ..born.identity };
                SimulatedProcess { identity, next_call: 1_000_000, ..born }
            }
            false => born,
        }
    }

    /// Returns this engine and the other one that shares its process.
    pub(crate) fn engines(&self, node: usize) -> Vec<usize> {
        if self.weather.twins && node < 2 { vec![0, 1] } else { vec![node] }
    }

    /// Returns the time that the clock of a process shows.
    pub(crate) fn clock(&self, node: usize) -> Timestamp {
        self.nodes[node].clock(self.now)
    }

    /// Returns true while faults may still occur.
    pub(crate) fn faults_active(&self) -> bool {
        self.now < WORLD_START + Duration::from_millis(self.weather.storm)
    }

    /// Draws a fault with this likelihood, while faults may still occur.
    pub(crate) fn fault(&mut self, percent: u64) -> bool {
        percent > 0 && self.faults_active() && self.rng.chance(percent)
    }

    pub(crate) fn later(&mut self, millis: u64, happening: SimulationEvent) {
        self.at(self.now + Duration::from_millis(millis), happening);
    }

    pub(crate) fn at(&mut self, at: Timestamp, happening: SimulationEvent) {
        self.ticks += 1;
        self.queue.insert((at, self.ticks), happening);
    }

    /// Applies the effects of a clock jump: the processes were asleep, while tools and the store went on.
    pub(crate) fn effects_until(&mut self, until: Timestamp) -> Result<(), InvariantViolation> {
        let continues = |happening: &SimulationEvent| {
            matches!(happening, SimulationEvent::Effect { .. } | SimulationEvent::Command { .. })
        };
        let mut from = (Timestamp::ZERO, 0);
        loop {
            // One event may cause more within the same span.
            let mut due = self.queue.range(from..(until, u64::MAX));
            let Some(at) = due.find(|(_, happening)| continues(happening)).map(|(at, _)| *at) else {
                return Ok(());
            };
            if let Some(happening) = self.queue.remove(&at) {
                self.now = self.now.max(at.0);
                self.happen(happening)?;
            }
            from = (self.now, 0);
        }
    }

    pub(crate) fn policy(&self) -> Arc<CallPolicy> {
        self.weather.policy.clone()
    }

    /// Feeds one event to a call and returns its step, with the invariants on notices checked.
    pub(crate) fn feed(
        &mut self,
        node: usize,
        number: u64,
        event: CallEvent,
    ) -> Result<Option<NextStep>, InvariantViolation> {
        let now = self.clock(node);
        let attempt = self.nodes[node].calls.get(&number).and_then(|running| running.attempt);
        let ran = matches!(event, CallEvent::Ran(_));
        if let CallEvent::Ran(outcome) = &event {
            self.note_end(node, number, outcome);
        }
        let retry_after = requested_delay(&event);
        let claim_lost = learns_of_lost_claim(&event);
        let is_gone = matches!(event, CallEvent::Settled);
        let found = if let CallEvent::Claimed(ClaimVerdict::Unknown(unsettled)) = &event {
            Some(&unsettled.receipt)
        } else if let CallEvent::Claimed(ClaimVerdict::Replay(replay)) = &event {
            Some(&replay.receipt)
        } else {
            None
        };
        let found = found.map(|receipt| (receipt.key, receipt.owner.clone()));
        let name = format!("{event:?}");
        if let Some(running) = self.nodes[node].calls.get(&number) {
            self.store.tables.coverage.event(running.call.state(), &event);
        }
        let stopped = self.stopped(node, number);
        let mut notices = Vec::new();
        let Some((running, mut shared)) = self.nodes[node].lend(number, &self.store) else { return Ok(None) };
        running.granted |= matches!(&event, CallEvent::Spent(spend) if spend.may_run());
        running.caller_is_done |= matches!(&event, CallEvent::Cancelled(_) | CallEvent::Disconnected(_));
        running.retry_after = retry_after;
        running.claim_lost = claim_lost;
        running.found = found.or(running.found.take());
        let before = running.call.state();
        let awaited_end = running.awaits_end();
        let step = match running.call.handle_event(&mut shared, now, event, &mut notices) {
            Ok(step) => step,
            Err(misuse) => return Err(("no misuse", format!("{misuse} in call {number} of process {node}"))),
        };
        self.log_event(format!(
            "process {node} call {number}: {} -> {}",
            brief(&name),
            brief(&format!("{step:?}"))
        ));
        if !matches!(before, "Marking" | "Settling") {
            self.attempt_given_up(node, number);
        } else if awaited_end
            && !is_gone
            && matches!(step, NextStep::Save(_))
            && self.is_marking(node, number)
        {
            self.child_end_unseen(node, number);
        }
        // A question counts for no statistic, although the claim is released as after a refusal.
        if !notices.contains(&CallNotice::InputRequired) {
            self.count_failure(node, number, &step);
        }
        self.check_breakers(node, number, attempt, &notices)?;
        self.check_retries(node, number, attempt, &notices)?;
        self.no_refusal_prolongs(node, number, &stopped, &notices)?;
        self.check_judgements(node, number, attempt, &notices)?;
        self.check_notices(node, number, before, &notices, attempt.filter(|_| ran))?;
        Ok(Some(step))
    }

    fn is_marking(&self, node: usize, number: u64) -> bool {
        self.nodes[node].calls.get(&number).is_some_and(ActiveCall::is_marking)
    }

    /// Counts a call whose failure is decided once for its session, however many attempts it made.
    fn count_failure(&mut self, node: usize, number: u64, step: &NextStep) {
        let fails = match step {
            NextStep::Save(save) => !matches!(save.ending, RunOutcome::Done(_)),
            NextStep::Release(_) => true,
            NextStep::Answer { result, .. } | NextStep::Finish { result, .. } => match &result.outcome {
                Ok(_) => false,
                Err(failure) => !matches!(
                    failure.code,
                    Code::InFlight | Code::Cancelled | Code::LoopDetected | Code::ToolErrorLimit
                ),
            },
            NextStep::Claim(_)
            | NextStep::Follow(_)
            | NextStep::AwaitEnd(_)
            | NextStep::Ask(_)
            | NextStep::Spend { .. }
            | NextStep::Start { .. }
            | NextStep::Probe(_)
            | NextStep::Renew
            | NextStep::Run(_)
            | NextStep::Cut(_)
            | NextStep::Wait
            | NextStep::CancelUpstream
            | NextStep::Stay => false,
        };
        let generation = self.nodes[node].identity.started;
        if let Some(running) =
            self.nodes[node].calls.get_mut(&number).filter(|running| fails && !running.counted)
            && !running.caller_is_done
        {
            running.counted = true;
            let goal = &self.model.goals[running.goal];
            *self.model.failures.entry((node, generation, goal.client, goal.arguments)).or_default() += 1;
        }
        if let (NextStep::Answer { .. }, Some(running)) = (step, self.nodes[node].calls.get_mut(&number)) {
            running.caller_is_done = true;
        }
    }

    pub(crate) fn begin(
        &mut self,
        node: usize,
        request: CallRequest,
        goal: usize,
        dispatch: usize,
        in_turn: Option<TurnMembership>,
    ) -> Result<(u64, NextStep), InvariantViolation> {
        let policy = match in_turn {
            Some(_) => self.turn_policy.clone(),
            None => self.policy(),
        };
        let seed = self.rng.next();
        let (now, clock, number) = (self.now, self.clock(node), request.number);
        let client = self.model.goals[goal].client;
        let mut notices = Vec::new();
        self.order += 1;
        let received = self.order;
        let home = &mut self.nodes[node];
        let guard = home.guards.entry(client).or_default();
        let (breaker, budget, limiter) = if is_shared(&request.tool) {
            (&mut home.breaker, &mut home.budget, &mut home.limiter)
        } else {
            let cell = home.cells.entry(request.tool.clone()).or_default();
            (&mut cell.breaker, &mut cell.budget, &mut cell.limiter)
        };
        let mut shared = CallMechanisms {
            breaker,
            dependency: home.dependency.as_mut(),
            budget,
            limiter,
            dependency_limiter: &mut home.dependency_limiter,
            guard,
            trust: &mut home.trust,
            approvals: &self.store.approvals,
        };
        let (call, step) = Call::begin(&mut shared, request, policy, seed, clock, &mut notices);
        home.calls.insert(
            number,
            ActiveCall {
                call,
                goal,
                dispatch,
                attempt: None,
                last_attempt: 0,
                first_attempt: None,
                follows: None,
                awaits: None,
                found: None,
                received,
                store_failed: false,
                fence_lost: false,
                child_is_ending: false,
                deferred: VecDeque::new(),
                woken_at: None,
                answered: false,
                command: 0,
                renewed_by: now,
                sent: false,
                counted: false,
                probe_request: None,
                in_turn,
                attempts: 0,
                granted: false,
                grant: None,
                out_of_time: false,
                admitted: None,
                dependency_probe_requested: false,
                caller_is_done: false,
                claim_lost: false,
                retry_after: None,
                cut: None,
                is_judged: false,
            },
        );
        self.summary.calls += 1;
        self.log_event(format!(
            "process {node} call {number}: begins wish {goal} -> {}",
            brief(&format!("{step:?}"))
        ));
        self.count_failure(node, number, &step);
        self.check_breakers(node, number, None, &notices)?;
        self.check_judgements(node, number, None, &notices)?;
        self.healthy_tool_is_free(node, client)?;
        self.check_notices(node, number, "", &notices, None)?;
        Ok((number, step))
    }

    /// Compares the notices of the machines with the ground truth.
    fn check_notices(
        &mut self,
        node: usize,
        number: u64,
        before: &'static str,
        notices: &[CallNotice],
        ended_attempt: Option<RunningAttempt>,
    ) -> Result<(), InvariantViolation> {
        let running = self.nodes[node].calls.get_mut(&number);
        let shared = running.as_ref().is_none_or(|running| is_shared(&running.call.request().tool));
        if let Some(in_turn) = running.and_then(|running| running.in_turn.as_mut()) {
            notices.iter().for_each(|notice| in_turn.record_notice(notice, self.defect));
        }
        for notice in notices {
            self.store.tables.coverage.notice(notice);
            match notice {
                CallNotice::BreakerChanged { scope: BreakerScope::Dependency, .. }
                | CallNotice::ProbeMoved { scope: BreakerScope::Dependency } => {}
                CallNotice::BreakerChanged { .. } | CallNotice::ProbeMoved { .. } if !shared => {}
                CallNotice::BreakerChanged { transition, .. } => {
                    let out_of_time =
                        self.nodes[node].calls.get(&number).is_some_and(|running| running.out_of_time);
                    if out_of_time && ended_attempt.is_some() {
                        return Err((
                            "a caller's limit judges nobody",
                            format!(
                                "call {number} ran out of its caller's time, and the breaker goes {transition:?}"
                            ),
                        ));
                    }
                    let epoch = self.nodes[node].epoch;
                    if let Some(attempt) = ended_attempt.filter(|attempt| attempt.epoch != epoch) {
                        return Err((
                            "own epoch",
                            format!(
                                "attempt {} of epoch {} changed the breaker of process {node} in epoch {epoch}: {transition:?}",
                                attempt.number, attempt.epoch
                            ),
                        ));
                    }
                    self.nodes[node].epoch += 1;
                    self.share_soon(node);
                    self.log_event(format!(
                        "process {node}: the breaker goes {:?} -> {:?}",
                        transition.from, transition.to
                    ));
                }
                // Claims persist, and writes that have to be saved are deferred. After a store loss that may come too
                // late for the index.
                CallNotice::StoreFailed { .. }
                    if !matches!(before, "Claiming" | "Starting") && self.weather.emptyings == 0 =>
                {
                    if let Some(running) = self.nodes[node].calls.get_mut(&number) {
                        running.store_failed = true;
                    }
                }
                CallNotice::StoreFailed { continues: true } => {
                    if before == "Claiming" {
                        self.may_go_on(node, number)?;
                    }
                    if let Some(running) = self.nodes[node].calls.get_mut(&number) {
                        running.store_failed = true;
                    }
                    if let Some(running) = self.nodes[node].calls.get(&number) {
                        let goal = &self.model.goals[running.goal];
                        self.model.unprotected.insert((goal.client, goal.arguments));
                        match goal.kind {
                            CallIdentity::Explicit(key) => drop(self.model.unprotected_keys.insert(key)),
                            // A call that has ended continues only with what it has to save.
                            CallIdentity::Turn(TurnCall { turn, call, .. })
                                if !running.call.is_finished() =>
                            {
                                self.model.unprotected_turns.insert((turn, call));
                            }
                            CallIdentity::Turn(_) | CallIdentity::CallId | CallIdentity::Keyless => {}
                        }
                    }
                }
                CallNotice::InputRequired => {
                    let claimed =
                        self.nodes[node].calls.get(&number).and_then(|running| running.call.claimed_record());
                    self.questions.extend(claimed.map(|record| record.owner.clone()));
                }
                CallNotice::ProbeMoved { .. } => self.share_soon(node),
                CallNotice::Replayed { .. } => self.summary.replays += 1,
                CallNotice::OutcomeUnknown { .. } => self.summary.unknown += 1,
                CallNotice::Verified { .. } => {}
                CallNotice::FenceLost => {
                    if let Some(running) = self.nodes[node].calls.get_mut(&number) {
                        running.fence_lost = true;
                    }
                }
                CallNotice::CallStarted { .. }
                | CallNotice::CallBlocked { .. }
                | CallNotice::Following
                | CallNotice::TookOver
                | CallNotice::KeyConflict
                | CallNotice::ApprovalRequested
                | CallNotice::ApprovalEnded { .. }
                | CallNotice::AttemptStarted { .. }
                | CallNotice::AttemptEnded { .. }
                | CallNotice::RetryScheduled { .. }
                | CallNotice::RetryStopped { .. }
                | CallNotice::AttemptCut { .. }
                | CallNotice::AnsweredEarly { .. }
                | CallNotice::TrustChanged(_)
                | CallNotice::GuardTripped { .. }
                | CallNotice::StoreFailed { continues: false }
                | CallNotice::Shadowed(_)
                | CallNotice::CallFinished { .. } => {}
            }
        }
        Ok(())
    }

    fn still_open(&self) -> String {
        let calls = self.nodes.iter().enumerate().flat_map(|(node, home)| {
            home.calls.iter().map(move |(number, running)| {
                format!("process {node} call {number} is {}", running.call.state())
            })
        });
        calls.collect::<Vec<_>>().join("; ")
    }

    /// Checks the invariants that hold once nothing further happens.
    fn check_at_rest(&mut self) -> Result<(), InvariantViolation> {
        let open = self.still_open();
        if !open.is_empty() {
            return Err(("an end", open));
        }
        for dispatch in &self.dispatches {
            if !dispatch.answered && self.connections[dispatch.connection].open {
                return Err((
                    "an end",
                    format!("wish {} waits on an open connection and was never answered", dispatch.goal),
                ));
            }
        }
        if let Some((node, home)) = self.nodes.iter().enumerate().find(|(_, home)| !home.deferred.is_empty())
        {
            return Err(("bounded", format!("process {node} still keeps {:?}", home.deferred)));
        }
        self.check_slots_released()?;
        if self.store.records.len() > self.dispatches.len() {
            return Err((
                "bounded",
                format!("{} records for {} dispatches", self.store.records.len(), self.dispatches.len()),
            ));
        }
        for record in self.store.records.iter() {
            let lives = self.nodes.iter().any(|node| node.identity == record.owner.process);
            if record.is_open() && lives && self.model.answered.contains(&record.owner) {
                return Err((
                    "late answers count",
                    format!("{:?} got its answer, and its record says {:?}", record.owner, record.state),
                ));
            }
            if lives && record.state == DedupeState::Inflight {
                return Err(("an end", format!("{:?} lives and has left a claim behind", record.owner)));
            }
            let unknown = matches!(record.state, DedupeState::Unknown(_));
            if let DedupeState::Unknown(outcome) = &record.state
                && outcome.settles == SettleTime::WhenOwnerReports
                && lives
            {
                return Err(("an end", format!("{:?} lives and does not say that it is over", record.owner)));
            }
            if unknown && !self.sent.contains(&record.owner) && !self.died.contains(&record.owner.process) {
                return Err((
                    "not started, not unknown",
                    format!("{:?} never sent anything and its process lives", record.owner),
                ));
            }
        }
        self.turns_at_rest()?;
        self.obedient_at_rest()?;
        self.grants_at_rest()
    }

    /// Checks that an owner that spent a grant and still has it has started an attempt or died before.
    fn grants_at_rest(&self) -> Result<(), InvariantViolation> {
        for (grant, owners) in &self.store.spent {
            if owners.len() > 1 {
                return Err(("grants once", format!("{grant:?} was spent by {owners:?}")));
            }
            let of_its_call = |owner: &ClaimOwner, sent: &ClaimOwner| {
                (&sent.process, sent.call) == (&owner.process, owner.call)
            };
            let has_started = |owner: &&ClaimOwner| self.sent.iter().any(|sent| of_its_call(owner, sent));
            let unused =
                owners.iter().find(|owner| !self.died.contains(&owner.process) && !has_started(owner));
            if let Some(owner) = unused {
                return Err((
                    "grants once",
                    format!("{grant:?} was spent by {owner:?}, which started nothing"),
                ));
            }
        }
        Ok(())
    }

    /// Wakes followers of changed records, unless the message is lost. Then their own timer wakes them.
    fn notify_followers(&mut self) -> Result<(), InvariantViolation> {
        for key in std::mem::take(&mut self.store.changed) {
            let mut woken = Vec::new();
            for (node, home) in self.nodes.iter().enumerate() {
                woken.extend(
                    home.calls
                        .iter()
                        .filter(|(_, running)| running.follows == Some(key))
                        .map(|(number, _)| (node, *number)),
                );
                // Waiters for the end of a run are woken only by runs of their own process.
                let here = |key: &RecordKey| {
                    home.calls
                        .values()
                        .any(|run| run.call.claimed_record().is_some_and(|record| record.key == *key))
                };
                woken.extend(
                    home.calls
                        .iter()
                        .filter(|(_, running)| running.awaits == Some(key) && here(&key))
                        .map(|(number, _)| (node, *number)),
                );
            }
            for (node, number) in woken {
                if !self.fault(self.weather.wake_lost) {
                    let delay = self.rng.between(0, 5);
                    let generation = self.nodes[node].identity.started;
                    self.later(delay, SimulationEvent::Changed { node, generation, number, key });
                }
            }
        }
        Ok(())
    }
}

impl SimulatedProcess {
    pub(crate) fn born(number: usize, generation: u64) -> Self {
        let pid = u32::try_from(number).unwrap_or(0);
        Self {
            identity: ProcessIdentity { boot: "boot".into(), pid, started: generation },
            ahead: 0,
            alive: true,
            frozen_until: Timestamp::ZERO,
            watch: MarkerWatch::default(),
            started_after: 0,
            shared_after: 0,
            breaker: CircuitBreaker::numbered_from((number as u64 * 1_000 + generation) * 1_000),
            epoch: 0,
            budget: RetryBudget::default(),
            limiter: Limiter::default(),
            dependency_limiter: Limiter::default(),
            dependency: None,
            expected: ExpectedBreaker::default(),
            expected_of_dependency: ExpectedBreaker::default(),
            observations: ToolObservations::default(),
            guards: BTreeMap::new(),
            trust: TrustLedger::default(),
            cells: BTreeMap::new(),
            calls: BTreeMap::new(),
            next_call: 0,
            deferred: Vec::new(),
            blocked: false,
            blocked_at: None,
            written: Vec::new(),
            known: Vec::new(),
            handed: Vec::new(),
            unsaved: Vec::new(),
            final_responses: BTreeMap::new(),
            verified: BTreeMap::new(),
        }
    }

    /// Returns the time that its clock shows at this time of the store.
    pub(crate) fn clock(&self, at: Timestamp) -> Timestamp {
        Timestamp::from_millis(at.as_millis().saturating_add_signed(self.ahead))
    }

    /// Returns the time of the store at which its clock shows this time.
    pub(crate) fn moment(&self, shows: Timestamp) -> Timestamp {
        Timestamp::from_millis(shows.as_millis().saturating_add_signed(-self.ahead))
    }

    /// Lends a call and its shared machines for one step.
    pub(crate) fn lend<'n>(
        &'n mut self,
        number: u64,
        store: &'n SimulatedStore,
    ) -> Option<(&'n mut ActiveCall, CallMechanisms<'n>)> {
        let running = self.calls.get_mut(&number)?;
        let client = client_of(&running.call);
        let guard = self.guards.entry(client).or_default();
        let tool = &running.call.request().tool;
        let (breaker, budget, limiter) = if is_shared(tool) {
            (&mut self.breaker, &mut self.budget, &mut self.limiter)
        } else {
            let cell = self.cells.entry(tool.clone()).or_default();
            (&mut cell.breaker, &mut cell.budget, &mut cell.limiter)
        };
        let shared = CallMechanisms {
            breaker,
            dependency: self.dependency.as_mut(),
            budget,
            limiter,
            dependency_limiter: &mut self.dependency_limiter,
            guard,
            trust: &mut self.trust,
            approvals: &store.approvals,
        };
        Some((running, shared))
    }
}

/// Returns true if all processes share the breaker of this tool. Other breakers are not checked here.
pub(crate) fn is_shared(tool: &ToolRef) -> bool {
    *tool == crate::transition::tool()
}

/// Returns the knowledge that the store can have about an owner.
pub(crate) fn lease_sight(
    nodes: &[SimulatedProcess],
    leases: OwnerLiveness,
    owner: &ClaimOwner,
) -> LeaseOwnerState {
    match leases {
        OwnerLiveness::Time => LeaseOwnerState::Time,
        OwnerLiveness::Process => {
            let lives = nodes.iter().any(|node| node.alive && node.identity == owner.process);
            if lives { LeaseOwnerState::Alive } else { LeaseOwnerState::Gone }
        }
    }
}

/// Returns true if a call learns that it has no claim, so that its response proves nothing about limits.
fn learns_of_lost_claim(event: &CallEvent) -> bool {
    match event {
        CallEvent::Claimed(verdict) => !matches!(verdict, ClaimVerdict::Acquired(_)),
        CallEvent::Renewed { verdict, .. } => *verdict != RenewVerdict::Renewed,
        // It returns the refusal of the call for which it waited.
        CallEvent::Woke(WakeReason::LeaderRefused(_)) => true,
        CallEvent::Woke(WakeReason::Time | WakeReason::Changed)
        | CallEvent::Answered(_)
        | CallEvent::Spent(_)
        | CallEvent::Started(_)
        | CallEvent::Probed
        | CallEvent::Ran(_)
        | CallEvent::Progressed
        | CallEvent::Settled
        | CallEvent::DriverEnds
        | CallEvent::Saved(_)
        | CallEvent::Released
        | CallEvent::StoreFailed(_)
        | CallEvent::Cancelled(_)
        | CallEvent::Disconnected(_) => false,
    }
}

/// Returns the delay that a failed tool asks for.
fn requested_delay(event: &CallEvent) -> Option<Duration> {
    let CallEvent::Ran(AttemptReport::Failure { fault, .. }) = event else { return None };
    match fault.retry_after {
        Some(RetryAfter::Delay(delay)) => Some(delay),
        Some(RetryAfter::At(_)) | None => None,
    }
}

/// Returns the session of a client. Sessions are named after their client.
pub(crate) fn session_of(client: usize) -> Option<SessionKey> {
    SessionKey::new(format!("client-{client}")).ok()
}

fn client_of(call: &Call) -> usize {
    let session = call.request().session.as_ref().map(SessionKey::as_str);
    session.and_then(|text| text.strip_prefix("client-")).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Returns the head of a debug text, enough for a story.
pub(crate) fn brief(text: &str) -> String {
    text.chars().take(110).collect()
}

impl Summary {
    /// Adds the counters of another world.
    pub fn add(&mut self, other: Self) {
        self.coverage.add(&other.coverage);
        self.calls += other.calls;
        self.effects += other.effects;
        self.replays += other.replays;
        self.unknown += other.unknown;
        self.pending_responses += other.pending_responses;
        self.final_responses += other.final_responses;
        self.reads += other.reads;
        self.run_again += other.run_again;
        self.resolved += other.resolved;
        self.emptyings += other.emptyings;
        self.refused_after_loss += other.refused_after_loss;
        self.turns += other.turns;
        self.events += other.events;
    }
}
