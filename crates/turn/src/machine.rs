//! The state machine of a turn: it takes one event and returns the next steps.
//!
//! The driver starts the calls that the steps name, reports the result of each call, and sends a tick at
//! [`TurnMachine::deadline`]. Everything else is decided here, in the order of the plan, so that the same events give the same
//! turn.
#![expect(
    clippy::indexing_slicing,
    reason = "every index is a place in the plan that the slots were made from"
)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::breaker::State as BreakerState;
use steadfast_core::classify::{AttemptReach, FaultNature};
use steadfast_core::code::Code;
use steadfast_core::id::{ToolCallId, ToolRef};
use steadfast_json::{JsonLimits, RawJson};

use super::choice::{CandidateChoice, SubmissionHistory};
use super::draft::CallNeed;
use super::event::{
    PlannedCallEnd, ToolFacts, TurnCallFailure, TurnEndEffect, TurnEvent, TurnMisuse, TurnStep,
    UnknownOutcomeHandling,
};
use super::handler::{
    DependantCounts, FailureDecision, FailureFacts, FailureStrategy, alternative_may_run, decide, refuses,
};
use super::params::{ArgumentResolveError, OutputParts, OutputReference};
use super::plan::{PlannedCall, TurnPlan};
use super::result::{self, TurnCallOutcome, TurnCallResult, TurnEndReason, TurnResult};
use super::trace::{SkipReason, ToolFailureDetails, TraceNote, TurnFact};
use super::{TurnLimits, clip};

/// A turn that has started.
#[derive(Clone, Debug)]
pub struct TurnMachine {
    plan: Arc<TurnPlan>,
    tools: BTreeMap<ToolRef, ToolFacts>,
    started: Timestamp,
    latest: Timestamp,
    slots: Vec<PlanSlot>,
    /// Calls that can run and wait for a free slot, in the order of the plan.
    ready: BTreeSet<usize>,
    running: usize,
    /// Calls that have not ended.
    open: usize,
    succeeded: usize,
    stored_bytes: usize,
    /// Calls that the end of the turn cut off and that have not reported since.
    cut_off: BTreeSet<usize>,
    is_over: bool,
    submitted: SubmissionHistory,
}

/// The state of a call of the plan.
///
/// ```text
///            dependencies          a slot              it, or its last
///              ended              is free             alternative, ended
///   Waiting ──────────────▶ Ready ─────────▶ Running ───────────────────▶ Ended
///      │                      │               │   ▲                        ▲
///      │                      │               └───┘ next alternative       │
///      └──────────────────────┴────────────────────────────────────────────┘
///        a dependency did not succeed and has no default; deadline; cancel
/// ```
#[derive(Clone, Debug)]
enum State {
    /// The call waits for this number of dependencies.
    Waiting { open: usize },
    /// The call waits for a free slot, or for the end of the turn if it comes first.
    Ready,
    /// The call runs with this candidate: 0 is the planned tool, then the alternatives.
    Running { candidate: usize },
    /// The call has ended.
    Ended(EndedTurnCall),
}

#[derive(Clone, Debug)]
struct EndedTurnCall {
    outcome: TurnCallOutcome,
    tool: ToolRef,
    code: Option<Code>,
    message: Option<String>,
    escalated: bool,
    output: Option<OutputParts>,
}

#[derive(Clone, Debug)]
struct PlanSlot {
    state: State,
    tried: BTreeSet<usize>,
    /// The last candidate that was started.
    ran_with: Option<usize>,
    /// True if a candidate ran and failed.
    failed_once: bool,
    attempts: u32,
}

impl TurnMachine {
    /// Begins a turn.
    ///
    /// The results of an earlier submission of the same turn are not known here. The engine has the records of the
    /// calls and replays their results. Only the choices that led to a call are taken over, so that the same calls are
    /// made again.
    pub fn begin(
        plan: Arc<TurnPlan>,
        tools: &BTreeMap<ToolRef, ToolFacts>,
        submitted: SubmissionHistory,
        now: Timestamp,
        notes: &mut Vec<TraceNote>,
    ) -> (Self, Vec<TurnStep>) {
        let tools = plan
            .tools()
            .into_iter()
            .map(|tool| (tool.clone(), tools.get(tool).copied().unwrap_or_default()))
            .collect();
        let slots = plan.calls().iter().map(|planned| PlanSlot::new(planned, &submitted)).collect();
        let open = plan.calls().len();
        let mut turn = Self {
            plan,
            tools,
            started: now,
            latest: now,
            slots,
            ready: BTreeSet::new(),
            running: 0,
            open,
            succeeded: 0,
            stored_bytes: 0,
            cut_off: BTreeSet::new(),
            is_over: false,
            submitted,
        };
        notes.push(TraceNote {
            at: now,
            call: None,
            tool: None,
            fact: TurnFact::TurnStarted { calls: open },
        });
        for call in 0..turn.slots.len() {
            turn.wake_if_ready(call);
        }
        let mut steps = Vec::new();
        turn.advance(notes, &mut steps);
        (turn, steps)
    }

    /// Handles an event and returns the next steps.
    pub fn handle_event(
        &mut self,
        now: Timestamp,
        event: TurnEvent,
        notes: &mut Vec<TraceNote>,
    ) -> Result<Vec<TurnStep>, TurnMisuse> {
        let mut steps = Vec::new();
        self.latest = self.latest.max(now);
        match event {
            TurnEvent::Ended { id, end, replayed } => {
                self.call_ended(&id, end, replayed, notes, &mut steps)?;
            }
            TurnEvent::BreakerChanged { tool, state } => self.breaker_changed(&tool, state, notes),
            TurnEvent::Tick if !self.is_over && self.latest >= self.deadline() => {
                self.handle_deadline(notes, &mut steps);
            }
            TurnEvent::Tick => {}
            TurnEvent::ToolKnown { tool, stop } => {
                self.tools.entry(tool).and_modify(|facts| facts.stop = stop);
            }
            TurnEvent::NotStarted { id } => self.not_started(&id)?,
            TurnEvent::Cancel if self.is_over => {}
            TurnEvent::Cancel => {
                self.note(None, None, TurnFact::TurnCancelled, notes);
                self.finish(TurnEndReason::Cancel, notes, &mut steps);
            }
        }
        self.advance(notes, &mut steps);
        Ok(steps)
    }

    /// Returns the time at which the turn ends at the latest. The driver sends a [`TurnEvent::Tick`] then.
    pub fn deadline(&self) -> Timestamp {
        self.started + self.plan.deadline()
    }

    /// Returns true if [`TurnStep::Done`] was returned.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the number of calls that run now.
    pub fn running(&self) -> usize {
        self.running
    }

    fn call_ended(
        &mut self,
        id: &ToolCallId,
        end: PlannedCallEnd,
        replayed: bool,
        notes: &mut Vec<TraceNote>,
        steps: &mut Vec<TurnStep>,
    ) -> Result<(), TurnMisuse> {
        let call = self.plan.position(id).ok_or_else(|| TurnMisuse::UnknownCall(id.clone()))?;
        if self.cut_off.remove(&call) {
            let code = match end {
                PlannedCallEnd::Succeeded { .. } => None,
                PlannedCallEnd::Failed(failure) => Some(failure.code),
            };
            self.note(Some(call), None, TurnFact::LateResult { code }, notes);
            return Ok(());
        }
        let State::Running { candidate } = self.slots[call].state else {
            return Err(TurnMisuse::NotRunning(id.clone()));
        };
        self.running = self.running.saturating_sub(1);
        let tool = self.tool(call, candidate);
        if replayed {
            let outcome = match &end {
                PlannedCallEnd::Succeeded { .. } => TurnCallOutcome::Succeeded,
                PlannedCallEnd::Failed(_) => TurnCallOutcome::Failed,
            };
            self.note(Some(call), Some(&tool), TurnFact::CallRestored { outcome }, notes);
        }
        match end {
            PlannedCallEnd::Succeeded { output, attempts } => {
                self.slots[call].attempts = self.slots[call].attempts.saturating_add(attempts);
                self.note(Some(call), Some(&tool), TurnFact::ToolSucceeded { attempts }, notes);
                let ended_call = self.success(call, tool, output);
                self.settle(call, ended_call);
                self.propagate(VecDeque::from([call]), notes);
            }
            PlannedCallEnd::Failed(failure) => {
                self.slots[call].failed_once = true;
                let failure = TurnCallFailure { reach: self.reach(call, &failure, replayed), ..failure };
                if let Some(next) = self.failed(call, candidate, failure, notes) {
                    self.run(call, next, notes, steps);
                }
            }
        }
        Ok(())
    }

    /// Returns how far the call got, over all submissions of the turn. It decides if another tool may do the job. The
    /// records of the calls know it, except if a call with an unknown outcome is made again: an earlier attempt may
    /// have done the job, whatever the last one returned.
    fn reach(&self, call: usize, failure: &TurnCallFailure, replayed: bool) -> AttemptReach {
        let is_repeated = replayed || matches!(self.submitted, SubmissionHistory::Repeated(_));
        let replaceable = alternative_may_run(failure.code) && self.untried(call).next().is_some();
        match failure.unknown_outcome {
            UnknownOutcomeHandling::Rerun if is_repeated && replaceable => AttemptReach::Unknown,
            UnknownOutcomeHandling::Rerun | UnknownOutcomeHandling::Reported => failure.reach,
        }
    }

    fn breaker_changed(&mut self, tool: &ToolRef, state: BreakerState, notes: &mut Vec<TraceNote>) {
        let Some(facts) = self.tools.get_mut(tool) else { return };
        if !self.is_over && facts.breaker != state {
            facts.breaker = state;
            self.note(None, Some(tool), TurnFact::CircuitBreaker { state }, notes);
        }
    }

    /// Starts the calls that can start before the deadline, and ends the turn if no call is open. Only a tick ends the
    /// turn at the deadline, so that results from before the deadline still count if they are reported a moment later.
    fn advance(&mut self, notes: &mut Vec<TraceNote>, steps: &mut Vec<TurnStep>) {
        if self.is_over {
            return;
        }
        while self.latest < self.deadline()
            && self.running < self.plan.parallelism().get()
            && let Some(call) = self.ready.pop_first()
        {
            match self.first_candidate(call).map_err(alternative_removed) {
                Ok(candidate) => self.run(call, candidate, notes, steps),
                Err(failure) => drop(self.failed(call, 0, failure, notes)),
            }
        }
        if self.open == 0 {
            self.finish(TurnEndReason::Finished, notes, steps);
        }
    }

    fn handle_deadline(&mut self, notes: &mut Vec<TraceNote>, steps: &mut Vec<TurnStep>) {
        self.note(None, None, TurnFact::TurnTimeout { timeout: self.plan.deadline() }, notes);
        self.finish(TurnEndReason::Deadline, notes, steps);
    }

    /// Puts a call that was not started back to ready. It waits for the end of the turn and is not started before it.
    fn not_started(&mut self, id: &ToolCallId) -> Result<(), TurnMisuse> {
        let call = self.plan.position(id).ok_or_else(|| TurnMisuse::UnknownCall(id.clone()))?;
        let State::Running { .. } = self.slots[call].state else {
            return Err(TurnMisuse::NotRunning(id.clone()));
        };
        self.running = self.running.saturating_sub(1);
        self.slots[call].state = State::Ready;
        Ok(())
    }

    /// Starts a call with a candidate, or with the next candidate whose arguments can be resolved.
    fn run(&mut self, call: usize, first: usize, notes: &mut Vec<TraceNote>, steps: &mut Vec<TurnStep>) {
        let mut candidate = first;
        loop {
            let is_first_try = self.slots[call].ran_with.is_none();
            self.slots[call].tried.insert(candidate);
            let tool = self.tool(call, candidate);
            let defaults = self.defaults(call);
            match self.arguments(call, candidate) {
                Ok(arguments) => {
                    if is_first_try {
                        self.note_defaults(call, &defaults, &tool, notes);
                    }
                    self.slots[call].ran_with = Some(candidate);
                    if candidate > 0 {
                        let instead_of = self.call(call).tool.clone();
                        self.note(Some(call), Some(&tool), TurnFact::AlternativeUsed { instead_of }, notes);
                    }
                    self.note(Some(call), Some(&tool), TurnFact::ToolStarted, notes);
                    self.slots[call].state = State::Running { candidate };
                    self.running += 1;
                    let (id, timeout) = (self.call(call).id.clone(), self.call(call).timeout);
                    let choice =
                        CandidateChoice { candidate, defaults, tool: (candidate > 0).then(|| tool.clone()) };
                    steps.push(TurnStep::Run { id, tool, arguments, timeout, choice });
                    return;
                }
                Err(error) => match self.failed(call, candidate, unresolved(&error), notes) {
                    Some(next) => candidate = next,
                    None => return,
                },
            }
        }
    }

    /// Returns the planned tool, or the first alternative that can run if the circuit breakers of the candidates before
    /// it are open. If all breakers are open, it returns the planned tool: the engine refuses the call without delay.
    /// In a resubmitted turn the candidate that may have run before comes first, in any state of its breaker: it may
    /// have a stored result, and an alternative would do the same work twice. Returns an error with the earlier choice
    /// if the plan no longer has that candidate.
    fn first_candidate(&self, call: usize) -> Result<usize, &CandidateChoice> {
        let planned = self.call(call);
        let SubmissionHistory::Repeated(choices) = &self.submitted else {
            return Ok(self.untried(call).next().unwrap_or(0));
        };
        let Some(chosen) = choices.get(&planned.id) else { return Ok(0) };
        let there = planned.candidate(chosen.candidate).map(|(tool, _)| tool);
        match (there, &chosen.tool) {
            (Some(there), Some(tool)) if there != tool => Err(chosen),
            (Some(_), _) => Ok(chosen.candidate),
            (None, _) => Err(chosen),
        }
    }

    /// Returns the dependencies of a call whose outputs are replaced by their defaults, because there is no output or
    /// because an earlier submission ran the call with the default.
    fn defaults(&self, call: usize) -> Vec<ToolCallId> {
        let planned = self.call(call);
        planned
            .depends_on
            .iter()
            .filter(|dependency| {
                dependency.default.is_some() && !self.provides_output(planned, &dependency.on)
            })
            .map(|dependency| dependency.on.clone())
            .collect()
    }

    /// Returns true if a call takes the output of this dependency and not its default.
    fn provides_output(&self, planned: &PlannedCall, dependency: &ToolCallId) -> bool {
        let pinned = match &self.submitted {
            SubmissionHistory::First => None,
            SubmissionHistory::Repeated(choices) => choices.get(&planned.id),
        };
        let succeeded = self
            .plan
            .position(dependency)
            .and_then(|dependency| self.ended_call(dependency))
            .is_some_and(|ended_call| ended_call.outcome == TurnCallOutcome::Succeeded);
        succeeded && !pinned.is_some_and(|chosen| chosen.defaults.contains(dependency))
    }

    /// Returns the candidates that were not tried and whose circuit breakers admit calls.
    fn untried(&self, call: usize) -> impl Iterator<Item = usize> {
        self.call(call).tools().enumerate().filter_map(move |(candidate, tool)| {
            let is_open = self.tools.get(tool).is_some_and(|facts| refuses(facts.breaker));
            (!is_open && !self.slots[call].tried.contains(&candidate)).then_some(candidate)
        })
    }

    fn arguments(&self, call: usize, candidate: usize) -> Result<RawJson, ArgumentResolveError> {
        let planned = self.call(call);
        let Some((_, params)) = planned.candidate(candidate) else { return Ok(RawJson::from_trusted("{}")) };
        params.resolve(self.plan.limits().argument_bytes, |reference| self.piece(planned, reference))
    }

    fn piece<'s>(
        &'s self,
        planned: &'s PlannedCall,
        reference: &OutputReference,
    ) -> Result<&'s str, ArgumentResolveError> {
        let from = &reference.from;
        let not_kept = || ArgumentResolveError::NotKept { from: from.clone() };
        let ended_call = self
            .plan
            .position(from)
            .and_then(|dependency| self.ended_call(dependency))
            .ok_or_else(not_kept)?;
        let pieces = if self.provides_output(planned, from) {
            ended_call.output.as_ref()
        } else {
            planned.default_for(from)
        };
        pieces.ok_or_else(not_kept)?.piece(from, &reference.pointer)
    }

    /// Decides about a failure. Returns the candidate to run next, or ends the call.
    fn failed(
        &mut self,
        call: usize,
        candidate: usize,
        failure: TurnCallFailure,
        notes: &mut Vec<TraceNote>,
    ) -> Option<usize> {
        let tool = self.tool(call, candidate);
        self.slots[call].attempts = self.slots[call].attempts.saturating_add(failure.attempts);
        let decision = decide(self.facts(call, &tool, &failure));
        let strategy = decision.strategy;
        self.note_failure(call, &tool, &failure, decision, notes);
        let escalated = match strategy {
            FailureStrategy::AlternativeTool => match self.untried(call).next() {
                Some(next) => return Some(next),
                None => false,
            },
            FailureStrategy::Escalate => true,
            // A call that ended has no attempts left, so there is nothing to retry.
            FailureStrategy::Retry | FailureStrategy::PartialSuccess | FailureStrategy::GracefulFailure => {
                false
            }
        };
        let message = Some(clip(&failure.message, MESSAGE_BYTES));
        let code = Some(failure.code);
        self.settle(
            call,
            EndedTurnCall { outcome: TurnCallOutcome::Failed, tool, code, message, escalated, output: None },
        );
        self.propagate(VecDeque::from([call]), notes);
        None
    }

    fn facts(&self, call: usize, tool: &ToolRef, failure: &TurnCallFailure) -> FailureFacts {
        let planned = self.call(call);
        let mut dependants = DependantCounts::default();
        for &dependant in self.plan.graph().dependants(call) {
            match self.slots[dependant].state {
                State::Waiting { .. } if self.call(dependant).default_for(&planned.id).is_some() => {
                    dependants.covered += 1;
                }
                State::Waiting { .. } => dependants.stranded += 1,
                State::Ready | State::Running { .. } | State::Ended(_) => {}
            }
        }
        FailureFacts {
            code: failure.code,
            nature: failure.nature,
            reach: failure.reach,
            repeat: failure.repeat,
            breaker: self.tools.get(tool).copied().unwrap_or_default().breaker,
            attempts: failure.attempts,
            attempts_left: 0,
            wait: Duration::ZERO,
            remaining: self.deadline().since(self.latest),
            alternatives: self.untried(call).count(),
            need: planned.need,
            dependants,
            succeeded: self.succeeded,
        }
    }

    /// Builds the end of a successful call. Selects the parts of its output that other calls need in one pass, and
    /// drops an output that is too large.
    fn success(&mut self, call: usize, tool: ToolRef, output: RawJson) -> EndedTurnCall {
        let limits = *self.plan.limits();
        let bytes = output.as_str().len();
        let total = self.stored_bytes.saturating_add(bytes);
        let mut ended_call = EndedTurnCall {
            outcome: TurnCallOutcome::Succeeded,
            tool,
            code: None,
            message: None,
            escalated: false,
            output: None,
        };
        if bytes > limits.output_bytes || total > limits.stored_bytes {
            ended_call.code = Some(Code::ResultNotKept);
            ended_call.message =
                Some(format!("it succeeded, but its output of {bytes} bytes was too large to keep"));
        } else {
            self.stored_bytes = total;
            let json = JsonLimits { bytes: limits.output_bytes, depth: TurnLimits::OUTPUT_DEPTH };
            ended_call.output = Some(OutputParts::select(output, self.plan.referenced_parts(call), json));
        }
        ended_call
    }

    fn settle(&mut self, call: usize, ended_call: EndedTurnCall) {
        debug_assert!(self.ended_call(call).is_none(), "a call ends once");
        self.succeeded += usize::from(ended_call.outcome == TurnCallOutcome::Succeeded);
        self.open = self.open.saturating_sub(1);
        self.ready.remove(&call);
        self.slots[call].state = State::Ended(ended_call);
    }

    /// Reports ended calls to their dependants, transitively. It uses a queue and not recursion because chains may be
    /// long.
    fn propagate(&mut self, mut queue: VecDeque<usize>, notes: &mut Vec<TraceNote>) {
        let plan = Arc::clone(&self.plan);
        while let Some(call) = queue.pop_front() {
            let succeeded = self
                .ended_call(call)
                .is_some_and(|ended_call| ended_call.outcome == TurnCallOutcome::Succeeded);
            let id = &self.call(call).id.clone();
            for &dependant in plan.graph().dependants(call) {
                let State::Waiting { open } = &mut self.slots[dependant].state else { continue };
                if succeeded || plan.calls()[dependant].default_for(id).is_some() {
                    *open = open.saturating_sub(1);
                    self.wake_if_ready(dependant);
                } else {
                    self.skip(dependant, SkipReason::Dependency(id.clone()), notes);
                    queue.push_back(dependant);
                }
            }
        }
    }

    fn wake_if_ready(&mut self, call: usize) {
        if matches!(self.slots[call].state, State::Waiting { open: 0 }) {
            self.slots[call].state = State::Ready;
            self.ready.insert(call);
        }
    }

    /// Ends a call that never ran. Only the failure of a dependency is escalated, because the turn itself reports the
    /// end of its time.
    fn skip(&mut self, call: usize, because: SkipReason, notes: &mut Vec<TraceNote>) {
        let planned = self.call(call);
        let (need, tool) = (planned.need, planned.tool.clone());
        let (code, escalated, message) = match &because {
            SkipReason::Dependency(id) => (
                Code::DependencyFailed,
                need == CallNeed::Required,
                format!("skipped: it depends on {id:?}, which did not succeed"),
            ),
            SkipReason::Deadline => (
                Code::DeadlineExceeded,
                false,
                "skipped: the deadline of the turn passed before it could start".into(),
            ),
            SkipReason::Cancelled => {
                (Code::Cancelled, false, "skipped: the turn was cancelled before it could start".into())
            }
        };
        self.note(Some(call), Some(&tool), TurnFact::ToolSkipped { because, need, escalated }, notes);
        let (code, message) = (Some(code), Some(message));
        self.settle(
            call,
            EndedTurnCall { outcome: TurnCallOutcome::Skipped, tool, code, message, escalated, output: None },
        );
    }

    /// Ends the turn: no further call starts, running calls are stopped or left running, and the result is returned.
    fn finish(&mut self, by: TurnEndReason, notes: &mut Vec<TraceNote>, steps: &mut Vec<TurnStep>) {
        self.is_over = true;
        for call in 0..self.slots.len() {
            match self.slots[call].state {
                State::Ended(_) => {}
                State::Ready if self.slots[call].failed_once => self.give_up(call, by),
                State::Waiting { .. } | State::Ready => {
                    let because = match by {
                        TurnEndReason::Cancel => SkipReason::Cancelled,
                        TurnEndReason::Deadline | TurnEndReason::Finished => SkipReason::Deadline,
                    };
                    self.skip(call, because, notes);
                }
                State::Running { candidate } => self.cut_off(call, candidate, by, notes, steps),
            }
        }
        self.running = 0;
        let result = self.result(by);
        let fact = TurnFact::TurnEnded { summary: result.summary.clone(), escalated: result.escalated };
        self.note(None, None, fact, notes);
        steps.push(TurnStep::Done(result));
    }

    /// Ends a call after one of its tools failed and before the next one was sent.
    fn give_up(&mut self, call: usize, by: TurnEndReason) {
        let tool = self.tool(call, self.slots[call].ran_with.unwrap_or_default());
        let (code, reason) = match by {
            TurnEndReason::Cancel => (Code::Cancelled, "the turn was cancelled"),
            TurnEndReason::Deadline | TurnEndReason::Finished => {
                (Code::DeadlineExceeded, "the deadline of the turn passed")
            }
        };
        let (code, message) = (Some(code), Some(format!("{reason} before an alternative could start")));
        let outcome = TurnCallOutcome::Failed;
        self.settle(call, EndedTurnCall { outcome, tool, code, message, escalated: false, output: None });
    }

    /// Cuts a running call off. A cancel of the caller always goes to the upstream. The end of the time only goes to
    /// calls that can be stopped without harm (D31).
    fn cut_off(
        &mut self,
        call: usize,
        candidate: usize,
        by: TurnEndReason,
        notes: &mut Vec<TraceNote>,
        steps: &mut Vec<TurnStep>,
    ) {
        let tool = self.tool(call, candidate);
        let id = self.call(call).id.clone();
        let stop = self.tools.get(&tool).copied().unwrap_or_default().stop;
        steps.push(match (stop, by) {
            (TurnEndEffect::Cancel, _) | (TurnEndEffect::Leave, TurnEndReason::Cancel) => {
                TurnStep::Cancel { id }
            }
            (TurnEndEffect::Leave, TurnEndReason::Deadline | TurnEndReason::Finished) => {
                TurnStep::Leave { id }
            }
        });
        let (outcome, code, message, fact) = match (stop, by) {
            (TurnEndEffect::Leave, _) => (
                TurnCallOutcome::LeftRunning,
                Code::InFlight,
                "still running at the end of the turn; send the turn again to get the result",
                TurnFact::ToolLeftRunning,
            ),
            (TurnEndEffect::Cancel, TurnEndReason::Cancel) => (
                TurnCallOutcome::Cancelled,
                Code::Cancelled,
                "stopped: the turn was cancelled",
                TurnFact::ToolCancelled,
            ),
            (TurnEndEffect::Cancel, TurnEndReason::Deadline | TurnEndReason::Finished) => (
                TurnCallOutcome::Cancelled,
                Code::DeadlineExceeded,
                "stopped: the deadline of the turn passed",
                TurnFact::ToolCancelled,
            ),
        };
        self.note(Some(call), Some(&tool), fact, notes);
        self.cut_off.insert(call);
        let (code, message) = (Some(code), Some(message.to_owned()));
        self.settle(call, EndedTurnCall { outcome, tool, code, message, escalated: false, output: None });
    }

    fn result(&self, by: TurnEndReason) -> TurnResult {
        let calls: Vec<TurnCallResult> = (0..self.slots.len())
            .filter_map(|call| {
                let ended_call = self.ended_call(call)?;
                Some(TurnCallResult {
                    id: self.call(call).id.clone(),
                    tool: ended_call.tool.clone(),
                    outcome: ended_call.outcome,
                    code: ended_call.code,
                    message: ended_call.message.clone(),
                    escalated: ended_call.escalated,
                    output: ended_call.output.as_ref().map(|output| output.text().clone()),
                    shortened: None,
                    attempts: self.slots[call].attempts,
                })
            })
            .collect();
        debug_assert_eq!(calls.len(), self.slots.len(), "when the turn ends, every call has ended");
        TurnResult {
            turn_id: self.plan.turn().cloned(),
            status: result::status(&calls),
            ended_by: by,
            escalated: calls.iter().any(|call| call.escalated),
            summary: result::summary(&calls),
            calls,
            started_at_ms: self.started,
            ended_at_ms: self.latest,
        }
    }

    /// Returns the name of a call's state, for the table of states and events.
    #[cfg(test)]
    pub(super) fn state_name(&self, id: &ToolCallId) -> String {
        match self.plan.position(id).map(|call| &self.slots[call].state) {
            None => "unknown".to_owned(),
            Some(State::Waiting { .. }) => "Waiting".to_owned(),
            Some(State::Ready) => "Ready".to_owned(),
            Some(State::Running { .. }) => "Running".to_owned(),
            Some(State::Ended(ended_call)) => format!("{:?}", ended_call.outcome),
        }
    }

    fn call(&self, call: usize) -> &PlannedCall {
        &self.plan.calls()[call]
    }

    fn tool(&self, call: usize, candidate: usize) -> ToolRef {
        let planned = self.call(call);
        planned.candidate(candidate).map_or(&planned.tool, |(tool, _)| tool).clone()
    }

    fn ended_call(&self, call: usize) -> Option<&EndedTurnCall> {
        match &self.slots[call].state {
            State::Ended(ended_call) => Some(ended_call),
            State::Waiting { .. } | State::Ready | State::Running { .. } => None,
        }
    }

    fn note(&self, call: Option<usize>, tool: Option<&ToolRef>, fact: TurnFact, notes: &mut Vec<TraceNote>) {
        let planned = call.map(|call| self.call(call));
        let tool = tool.or_else(|| planned.map(|planned| &planned.tool)).cloned();
        notes.push(TraceNote {
            at: self.latest,
            call: planned.map(|planned| planned.id.clone()),
            tool,
            fact,
        });
    }

    /// Records the defaults when the call starts and not when the dependency failed, because only then are they used.
    fn note_defaults(
        &self,
        call: usize,
        defaults: &[ToolCallId],
        tool: &ToolRef,
        notes: &mut Vec<TraceNote>,
    ) {
        for dependency in defaults {
            let fact = TurnFact::DefaultUsed { dependency: dependency.clone() };
            self.note(Some(call), Some(tool), fact, notes);
        }
    }

    fn note_failure(
        &self,
        call: usize,
        tool: &ToolRef,
        failure: &TurnCallFailure,
        decision: FailureDecision,
        notes: &mut Vec<TraceNote>,
    ) {
        let fault = ToolFailureDetails {
            error: clip(&failure.message, MESSAGE_BYTES),
            rule: failure.rule.clone(),
            code: failure.code,
            nature: failure.nature,
            breaker: decision.facts.breaker,
            attempts: failure.attempts,
            decision: decision.strategy,
        };
        let fact = match failure.timed_out_after {
            Some(timeout) => TurnFact::ToolTimeout { timeout, fault },
            None => TurnFact::ToolError(fault),
        };
        self.note(Some(call), Some(tool), fact, notes);
        let fact = TurnFact::Decision { strategy: decision.strategy, reason: decision.reason };
        self.note(Some(call), Some(tool), fact, notes);
    }
}

impl PlanSlot {
    fn new(planned: &PlannedCall, submitted: &SubmissionHistory) -> Self {
        let tried = match submitted {
            SubmissionHistory::First => BTreeSet::new(),
            // They were tried before the chosen one, or could not be tried.
            SubmissionHistory::Repeated(choices) => {
                let chosen = choices.get(&planned.id).map_or(0, |chosen| chosen.candidate);
                (0..chosen.min(planned.alternatives.len())).collect()
            }
        };
        let state = State::Waiting { open: planned.depends_on.len() };
        Self { state, tried, ran_with: None, failed_once: false, attempts: 0 }
    }
}

/// Returns the failure of a call whose arguments cannot be resolved. The call was never sent.
fn unresolved(error: &ArgumentResolveError) -> TurnCallFailure {
    TurnCallFailure::not_sent(Code::DependencyFailed, FaultNature::Permanent, error.to_string())
}

/// Returns the failure of a call if the resubmitted plan no longer has the tool of the earlier submission.
fn alternative_removed(chosen: &CandidateChoice) -> TurnCallFailure {
    let tool = chosen.tool.as_ref().map_or_else(|| "an alternative".to_owned(), ToString::to_string);
    let message = format!(
        "not sent: an earlier submission of this turn used {tool}, which is no longer at the same position among the alternatives; submit the original plan again, or give the call another id"
    );
    TurnCallFailure::not_sent(Code::IdempotencyConflict, FaultNature::Permanent, message)
}

/// The longest message of a tool that a turn stores for each call.
const MESSAGE_BYTES: usize = 2048;
