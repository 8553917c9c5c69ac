//! The machine of a turn, the handler of its errors, the hold on a turn, and the reach of its calls.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::breaker::State as Circuit;
use steadfast_core::call::{CallNotice, CutReason, FailedAttempt};
use steadfast_core::classify::{AttemptReach, FaultNature, Severity};
use steadfast_core::code::Code;
use steadfast_core::dedupe::{LeaseOwnerState, ProcessIdentity, UnknownOutcomeReason};
use steadfast_core::id::{Namespace, ToolCallId, ToolName, ToolRef};
use steadfast_json::RawJson;
use steadfast_turn::{
    CallNeed, CallProgress, CandidateChoice, DependantCounts, DraftAlternative, DraftCall, DraftDependency,
    FailureFacts, FailureStrategy, PlanDraft, PlannedCallEnd, RepeatSafety, SubmissionHistory, ToolFacts,
    TurnAcquisition, TurnCallFailure, TurnCallOutcome, TurnDocument, TurnEndEffect, TurnEndReason, TurnEvent,
    TurnHolder, TurnLease, TurnLimits, TurnMachine, TurnMisuse, TurnPlan, TurnStatus, TurnStep,
    TurnWriteConflict, UnknownOutcomeHandling, decide,
};

use super::{MachineTrace, agree, millis, next_moment, optional};
use crate::invariants::InvariantViolation;
use crate::rng::Rng;

const PROMISE: &str = "turns take their path";

const CODES: [Code; 12] = [
    Code::ToolError,
    Code::ToolError,
    Code::Timeout,
    Code::RetryExhausted,
    Code::CircuitOpen,
    Code::OutcomeUnknown,
    Code::StoreUnavailable,
    Code::ApprovalDenied,
    Code::Cancelled,
    Code::InFlight,
    Code::DeadlineExceeded,
    Code::ToolErrorLimit,
];

pub(super) fn check(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    for _ in 0..4 {
        handler(rng, machine_trace)?;
        holds(rng, machine_trace)?;
        progress(rng, machine_trace)?;
    }
    turns(rng, machine_trace)
}

/// Returns true if another tool may do the job: not if the call ran or runs or could not be looked up, not if an
/// approval was denied, and not if the turn may make no more calls.
fn another_may(code: Code) -> bool {
    !matches!(
        code,
        Code::IdempotencyConflict
            | Code::InFlight
            | Code::OutcomeUnknown
            | Code::ResultNotKept
            | Code::ResultTooLarge
            | Code::StoreUnavailable
            | Code::ApprovalDenied
            | Code::DeadlineExceeded
            | Code::ToolErrorLimit
            | Code::Cancelled
    )
}

fn lets_through(circuit: Circuit) -> bool {
    matches!(circuit, Circuit::Closed | Circuit::HalfOpen)
}

/// Returns the strategy for a failure: the cheapest one that can still bring the result, an operator last.
fn strategy(facts: &FailureFacts) -> FailureStrategy {
    let in_doubt = facts.reach == AttemptReach::Unknown;
    if facts.code == Code::OutcomeUnknown || in_doubt && facts.repeat == RepeatSafety::Unsafe {
        return FailureStrategy::Escalate;
    }
    if facts.remaining == Duration::ZERO || facts.code == Code::Cancelled {
        return if facts.succeeded > 0 {
            FailureStrategy::PartialSuccess
        } else {
            FailureStrategy::GracefulFailure
        };
    }
    let is_transient = facts.nature == FaultNature::Transient;
    if is_transient && lets_through(facts.breaker) && facts.attempts_left > 0 && facts.wait < facts.remaining
    {
        return FailureStrategy::Retry;
    }
    let twice = in_doubt && facts.repeat == RepeatSafety::BySameTool;
    if facts.alternatives > 0 && another_may(facts.code) && !twice {
        return FailureStrategy::AlternativeTool;
    }
    let DependantCounts { covered, stranded } = facts.dependants;
    if facts.need == CallNeed::Optional || covered > 0 && stranded == 0 {
        return FailureStrategy::PartialSuccess;
    }
    if is_transient && stranded == 0 { FailureStrategy::GracefulFailure } else { FailureStrategy::Escalate }
}

fn handler(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    let number = |rng: &mut Rng, most| usize::try_from(rng.between(0, most)).unwrap_or(0);
    let span = |rng: &mut Rng| millis(*rng.pick(&[0, 1, 1_000]));
    let facts = FailureFacts {
        code: *rng.pick(&CODES),
        nature: *rng.pick(&[FaultNature::Transient, FaultNature::Permanent]),
        reach: *rng.pick(&[
            AttemptReach::NotSent,
            AttemptReach::Refused,
            AttemptReach::Unknown,
            AttemptReach::Answered,
        ]),
        repeat: *rng.pick(&[RepeatSafety::Safe, RepeatSafety::BySameTool, RepeatSafety::Unsafe]),
        breaker: circuit(rng),
        attempts: 1,
        attempts_left: u32::try_from(rng.between(0, 1)).unwrap_or(0),
        wait: span(rng),
        remaining: span(rng),
        alternatives: number(rng, 1),
        need: *rng.pick(&[CallNeed::Required, CallNeed::Optional]),
        dependants: DependantCounts { covered: number(rng, 1), stranded: number(rng, 1) },
        succeeded: number(rng, 1),
    };
    let decision = decide(facts);
    machine_trace.log(|| format!("{decision:?}"));
    agree(PROMISE, "what is done about a failure", &decision.strategy, &strategy(&facts))
}

fn circuit(rng: &mut Rng) -> Circuit {
    *rng.pick(&[Circuit::Closed, Circuit::Closed, Circuit::HalfOpen, Circuit::Open, Circuit::ForcedOpen])
}

// ---- the hold on a turn ----

fn holds(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    let process = |pid| ProcessIdentity { boot: "boot".into(), pid, started: 0 };
    let now = Timestamp::from_millis(10_000);
    let call = id(0);
    let choice = CandidateChoice { candidate: usize::from(rng.chance(50)), ..CandidateChoice::default() };
    let until = now.before(millis(1)) + millis(rng.between(0, 2));
    let holder = optional(rng, |_| TurnHolder { process: process(1), number: 5, until });
    let mut choices = BTreeMap::new();
    if rng.chance(50) {
        choices.insert(call.clone(), CandidateChoice { candidate: 1, ..CandidateChoice::default() });
    }
    let document =
        TurnDocument { format: TurnDocument::FORMAT, holder: holder.clone(), choices: choices.clone() };
    let found = optional(rng, |_| (3, document));
    let me = TurnHolder { process: process(2), number: 8, until: now + millis(1_000) };
    let sight = *rng.pick(&[LeaseOwnerState::Alive, LeaseOwnerState::Gone, LeaseOwnerState::Time]);
    let taken = TurnLease::take(found.clone(), me.clone(), |_| sight, now);
    machine_trace.log(|| format!("{found:?}, its holder is {sight:?}: {taken:?}"));
    let current =
        holder.filter(|holder| found.is_some() && now < holder.until && sight != LeaseOwnerState::Gone);
    let (mut hold, submitted) = match (taken, current) {
        (TurnAcquisition::Busy(until), Some(holder)) => {
            return agree(PROMISE, "until when", &until, &holder.until);
        }
        (TurnAcquisition::Acquired(hold, submitted), None) => (hold, submitted),
        (taken, current) => return Err((PROMISE, format!("{taken:?}, and it is held by {current:?}"))),
    };
    let choices = if found.is_some() { choices } else { BTreeMap::new() };
    let due =
        if found.is_some() { SubmissionHistory::Repeated(choices.clone()) } else { SubmissionHistory::First };
    agree(PROMISE, "whether it came before", &submitted, &due)?;
    agree(PROMISE, "who holds it", &hold.document().holder, &Some(me.clone()))?;
    agree(PROMISE, "what was chosen", &hold.document().choices, &choices)?;
    agree(PROMISE, "what it replaces", &hold.replaced_version(), &found.map(|(version, _)| version))?;
    // A choice is written unless the document has the same one, or has none and the choice is the planned one.
    let is_known = choices.get(&call).map_or(choice == CandidateChoice::default(), |known| *known == choice);
    let written = hold.document_with_choice(&call, &choice);
    agree(PROMISE, "whether a choice is written", &written.is_none(), &is_known)?;
    if let Some(document) = written {
        agree(PROMISE, "the choice that is written", &document.choices.get(&call), &Some(&choice))?;
        agree(PROMISE, "who chose", &document.holder, &Some(me.clone()))?;
        hold.record_write(document.clone(), 9);
        agree(
            PROMISE,
            "what is written",
            &(hold.document(), hold.replaced_version()),
            &(&document, Some(9)),
        )?;
    }
    agree(PROMISE, "holder after the release", &hold.released_document().holder, &None)?;
    let there = match rng.between(0, 3) {
        0 => None,
        1 => Some(None),
        2 => Some(Some(TurnHolder { number: 9, ..me.clone() })),
        _ => Some(Some(TurnHolder { until: me.until + millis(1), ..me.clone() })),
    };
    let document = there.clone().map(|holder| TurnDocument {
        format: TurnDocument::FORMAT,
        holder,
        choices: BTreeMap::new(),
    });
    let is_own = |holder: &TurnHolder| holder.process == me.process && holder.number == me.number;
    let due = match &there {
        None => TurnWriteConflict::Retry,
        Some(holder) if holder.as_ref().is_some_and(is_own) => TurnWriteConflict::Retry,
        Some(_) => TurnWriteConflict::Lost,
    };
    let before = hold.replaced_version();
    agree(
        PROMISE,
        "a write that came too late",
        &hold.resolve_conflict(document.as_ref().map(|document| (12, document))),
        &due,
    )?;
    let due = if due == TurnWriteConflict::Lost { before } else { document.map(|_| 12) };
    agree(PROMISE, "what it replaces then", &hold.replaced_version(), &due)
}

// ---- the reach of a call ----

fn progress(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    let now = Timestamp::from_millis(1_000);
    let mut progress = CallProgress::default();
    // The reach of every attempt that was begun; unknown as long as it runs.
    let mut reaches: Vec<AttemptReach> = Vec::new();
    let (mut failed, mut input_required, mut followed, mut cut) = (None, false, false, None);
    for number in 1..=rng.between(0, 4) {
        let attempt = u32::try_from(number).unwrap_or(1);
        match rng.between(0, 3) {
            0 => {
                progress.record(&CallNotice::Following);
                followed = true;
            }
            _ => {
                progress.record(&CallNotice::AttemptStarted { attempt, at: now });
                reaches.push(AttemptReach::Unknown);
                (failed, input_required, cut) = (None, false, None);
                if rng.chance(20) {
                    let allowed = millis(number);
                    progress.record(&CallNotice::AttemptCut { cut: CutReason::Silent(allowed) });
                    cut = Some(allowed);
                }
                let reach = *rng.pick(&[
                    AttemptReach::NotSent,
                    AttemptReach::Refused,
                    AttemptReach::Unknown,
                    AttemptReach::Answered,
                ]);
                let attempt_failure = FailedAttempt {
                    nature: FaultNature::Transient,
                    reach,
                    severity: Severity::Transient,
                    rule: "a rule".into(),
                    observed: UnknownOutcomeReason::NoAnswer,
                    message: "".into(),
                };
                let ends = rng.between(0, 4);
                let failure = (ends > 1).then(|| attempt_failure.clone());
                if ends > 0 {
                    progress.record(&CallNotice::AttemptEnded {
                        attempt,
                        took: Duration::ZERO,
                        failure: failure.clone(),
                    });
                    cut = cut.filter(|_| failure.is_some());
                    if failure.is_some() {
                        reaches.pop();
                        reaches.push(reach);
                    }
                    failed = failure;
                }
                if ends == 1 && rng.chance(50) {
                    progress.record(&CallNotice::InputRequired);
                    reaches.pop();
                    reaches.push(AttemptReach::Answered);
                    input_required = true;
                }
            }
        }
        machine_trace.log(|| format!("{progress:?}"));
        // Once an attempt may have run, the call may have run, whatever came later.
        let due = if reaches.contains(&AttemptReach::Unknown) {
            Some(AttemptReach::Unknown)
        } else {
            reaches.last().copied()
        };
        agree(PROMISE, "reach", &progress.reach(), &due.unwrap_or(AttemptReach::NotSent))?;
        agree(PROMISE, "failure", &progress.failure(), &failed.as_ref())?;
        agree(PROMISE, "question", &progress.is_input_required(), &input_required)?;
        agree(PROMISE, "start", &progress.has_started(), &(followed || !reaches.is_empty()))?;
        agree(PROMISE, "cut", &progress.timed_out_after(), &cut)?;
    }
    Ok(())
}

// ---- the machine ----

/// A call of the plan and its state.
#[derive(Clone, Debug)]
struct ReferenceTurnCall {
    candidates: Vec<ToolRef>,
    /// The calls that it depends on, each with true if there is a default for it.
    depends: Vec<(usize, bool)>,
    need: CallNeed,
    place: TurnCallState,
    tried: BTreeSet<usize>,
    ran_with: Option<usize>,
    has_failed: bool,
    attempts: u32,
}

#[derive(Clone, Debug, PartialEq)]
enum TurnCallState {
    Waiting,
    Ready,
    /// It was to be started and was not.
    Put,
    Running(usize),
    Ended(TurnCallEnd),
}

#[derive(Clone, Debug, PartialEq)]
struct TurnCallEnd {
    outcome: TurnCallOutcome,
    tool: ToolRef,
    code: Option<Code>,
    escalated: bool,
}

struct ReferenceTurn {
    calls: Vec<ReferenceTurnCall>,
    facts: BTreeMap<ToolRef, ToolFacts>,
    chosen: Option<BTreeMap<ToolCallId, CandidateChoice>>,
    parallelism: usize,
    deadline: Timestamp,
    now: Timestamp,
    cut_off: BTreeSet<usize>,
    over: Option<TurnEndReason>,
    steps: Vec<ExpectedTurnStep>,
}

/// A step without its texts.
#[derive(Clone, Debug, PartialEq)]
enum ExpectedTurnStep {
    Run { call: usize, tool: ToolRef, candidate: usize, defaults: Vec<ToolCallId>, named: Option<ToolRef> },
    Cancel(usize),
    Leave(usize),
    Done { by: TurnEndReason, status: TurnStatus, escalated: bool, calls: Vec<(TurnCallEnd, u32)> },
}

impl ReferenceTurn {
    fn succeeded(&self, call: usize) -> bool {
        matches!(&self.calls[call].place, TurnCallState::Ended(end) if end.outcome == TurnCallOutcome::Succeeded)
    }

    fn choice(&self, call: usize) -> Option<&CandidateChoice> {
        self.chosen.as_ref()?.get(&id(call))
    }

    fn untried(&self, call: usize) -> Vec<usize> {
        let is_open = |tool: &ToolRef| self.facts.get(tool).is_some_and(|facts| !lets_through(facts.breaker));
        let one = &self.calls[call];
        let all = one.candidates.iter().enumerate();
        all.filter(|(candidate, tool)| !one.tried.contains(candidate) && !is_open(tool))
            .map(|(candidate, _)| candidate)
            .collect()
    }

    /// Starts calls whose dependencies have all ended, with success or with a default for them.
    fn propagate(&mut self) {
        loop {
            let waiting =
                (0..self.calls.len()).filter(|call| self.calls[*call].place == TurnCallState::Waiting);
            let mut changed = false;
            for call in waiting.collect::<Vec<_>>() {
                let has_ended =
                    |dependency: usize| matches!(self.calls[dependency].place, TurnCallState::Ended(_));
                let depends = self.calls[call].depends.clone();
                let fails = |(dependency, default): &(usize, bool)| {
                    has_ended(*dependency) && !self.succeeded(*dependency) && !default
                };
                if depends.iter().any(fails) {
                    let escalated = self.calls[call].need == CallNeed::Required;
                    self.ends(call, TurnCallOutcome::Skipped, 0, Some(Code::DependencyFailed), escalated);
                    changed = true;
                } else if depends.iter().all(|(dependency, _)| has_ended(*dependency)) {
                    self.calls[call].place = TurnCallState::Ready;
                    changed = true;
                }
            }
            if !changed {
                return;
            }
        }
    }

    fn ends(
        &mut self,
        call: usize,
        outcome: TurnCallOutcome,
        candidate: usize,
        code: Option<Code>,
        escalated: bool,
    ) {
        let tool = self.calls[call].candidates[candidate].clone();
        self.calls[call].place = TurnCallState::Ended(TurnCallEnd { outcome, tool, code, escalated });
    }

    fn running(&self) -> usize {
        self.calls.iter().filter(|call| matches!(call.place, TurnCallState::Running(_))).count()
    }

    fn advance(&mut self) {
        while self.over.is_none() && self.now < self.deadline && self.running() < self.parallelism {
            let Some(call) = self.calls.iter().position(|call| call.place == TurnCallState::Ready) else {
                break;
            };
            let candidate = match (&self.chosen, self.choice(call)) {
                (None, _) => Some(self.untried(call).first().copied().unwrap_or(0)),
                (Some(_), None) => Some(0),
                // A call that may have run is looked up first, if the plan still has it.
                (Some(_), Some(chosen)) => {
                    let there = self.calls[call].candidates.get(chosen.candidate);
                    there
                        .filter(|there| chosen.tool.as_ref().is_none_or(|tool| tool == *there))
                        .map(|_| chosen.candidate)
                }
            };
            match candidate {
                Some(candidate) => self.run(call, candidate),
                None => {
                    let failure = TurnCallFailure::not_sent(
                        Code::IdempotencyConflict,
                        FaultNature::Permanent,
                        String::new(),
                    );
                    self.fails(call, 0, &failure, failure.reach);
                }
            }
        }
        let all_ended = self.calls.iter().all(|call| matches!(call.place, TurnCallState::Ended(_)));
        if all_ended && self.over.is_none() {
            self.finish(TurnEndReason::Finished);
        }
    }

    fn run(&mut self, call: usize, candidate: usize) {
        let pinned = self.choice(call).map(|chosen| chosen.defaults.clone()).unwrap_or_default();
        let takes_default = |(dependency, default): &&(usize, bool)| {
            *default && (!self.succeeded(*dependency) || pinned.contains(&id(*dependency)))
        };
        let defaults = self.calls[call]
            .depends
            .iter()
            .filter(takes_default)
            .map(|(dependency, _)| id(*dependency))
            .collect();
        let one = &mut self.calls[call];
        one.tried.insert(candidate);
        (one.ran_with, one.place) = (Some(candidate), TurnCallState::Running(candidate));
        let tool = one.candidates[candidate].clone();
        let named = (candidate > 0).then(|| tool.clone());
        self.steps.push(ExpectedTurnStep::Run { call, tool, candidate, defaults, named });
    }

    fn fails(&mut self, call: usize, candidate: usize, failure: &TurnCallFailure, reach: AttemptReach) {
        let one = &self.calls[call];
        let waiting = |other: &&ReferenceTurnCall| other.place == TurnCallState::Waiting;
        let on_it = |default: bool| {
            self.calls.iter().filter(waiting).filter(|other| other.depends.contains(&(call, default))).count()
        };
        let facts = FailureFacts {
            code: failure.code,
            nature: failure.nature,
            reach,
            repeat: failure.repeat,
            breaker: self
                .facts
                .get(&one.candidates[candidate])
                .map_or(Circuit::Closed, |facts| facts.breaker),
            attempts: failure.attempts,
            attempts_left: 0,
            wait: Duration::ZERO,
            remaining: self.deadline.since(self.now),
            alternatives: self.untried(call).len(),
            need: one.need,
            dependants: DependantCounts { covered: on_it(true), stranded: on_it(false) },
            succeeded: (0..self.calls.len()).filter(|call| self.succeeded(*call)).count(),
        };
        self.calls[call].attempts += failure.attempts;
        let strategy = strategy(&facts);
        if strategy == FailureStrategy::AlternativeTool
            && let Some(next) = self.untried(call).first()
        {
            return self.run(call, *next);
        }
        self.ends(
            call,
            TurnCallOutcome::Failed,
            candidate,
            Some(failure.code),
            strategy == FailureStrategy::Escalate,
        );
        self.propagate();
    }

    fn record_end(&mut self, call: usize, end: &PlannedCallEnd, replayed: bool) -> bool {
        if self.cut_off.remove(&call) {
            return true;
        }
        let TurnCallState::Running(candidate) = self.calls[call].place else { return false };
        match end {
            PlannedCallEnd::Succeeded { attempts, .. } => {
                self.calls[call].attempts += attempts;
                self.ends(call, TurnCallOutcome::Succeeded, candidate, None, false);
                self.propagate();
            }
            PlannedCallEnd::Failed(failure) => {
                self.calls[call].has_failed = true;
                // If it is made again on a guess, an earlier attempt may have done the job, whatever came of the last
                // one.
                let is_earlier = replayed || self.chosen.is_some();
                let is_doubtful = failure.unknown_outcome == UnknownOutcomeHandling::Rerun
                    && is_earlier
                    && another_may(failure.code);
                let reach = if is_doubtful && !self.untried(call).is_empty() {
                    AttemptReach::Unknown
                } else {
                    failure.reach
                };
                self.fails(call, candidate, failure, reach);
            }
        }
        true
    }

    fn finish(&mut self, by: TurnEndReason) {
        self.over = Some(by);
        let code = if by == TurnEndReason::Cancel { Code::Cancelled } else { Code::DeadlineExceeded };
        for call in 0..self.calls.len() {
            let one = &self.calls[call];
            match one.place {
                TurnCallState::Ended(_) => {}
                TurnCallState::Ready | TurnCallState::Put if one.has_failed => {
                    self.ends(call, TurnCallOutcome::Failed, one.ran_with.unwrap_or(0), Some(code), false);
                }
                TurnCallState::Waiting | TurnCallState::Ready | TurnCallState::Put => {
                    self.ends(call, TurnCallOutcome::Skipped, 0, Some(code), false)
                }
                TurnCallState::Running(candidate) => {
                    let stop = self
                        .facts
                        .get(&one.candidates[candidate])
                        .map_or(TurnEndEffect::Leave, |facts| facts.stop);
                    let is_notified = stop == TurnEndEffect::Cancel || by == TurnEndReason::Cancel;
                    self.steps.push(if is_notified {
                        ExpectedTurnStep::Cancel(call)
                    } else {
                        ExpectedTurnStep::Leave(call)
                    });
                    let (outcome, code) = match stop {
                        TurnEndEffect::Leave => (TurnCallOutcome::LeftRunning, Code::InFlight),
                        TurnEndEffect::Cancel => (TurnCallOutcome::Cancelled, code),
                    };
                    self.cut_off.insert(call);
                    self.ends(call, outcome, candidate, Some(code), false);
                }
            }
        }
        let calls: Vec<(TurnCallEnd, u32)> = self
            .calls
            .iter()
            .filter_map(|call| {
                if let TurnCallState::Ended(end) = &call.place {
                    Some((end.clone(), call.attempts))
                } else {
                    None
                }
            })
            .collect();
        let done = calls.iter().filter(|(end, _)| end.outcome == TurnCallOutcome::Succeeded).count();
        let status = match done {
            0 => TurnStatus::Failed,
            done if done == calls.len() => TurnStatus::Completed,
            _ => TurnStatus::Partial,
        };
        let escalated = calls.iter().any(|(end, _)| end.escalated);
        self.steps.push(ExpectedTurnStep::Done { by, status, escalated, calls });
    }
}

fn id(call: usize) -> ToolCallId {
    ToolCallId::new(format!("call{call}")).expect("a name")
}

fn tool(number: u64) -> ToolRef {
    ToolRef {
        namespace: Namespace::new("bank").expect("a name"),
        tool: ToolName::new(format!("tool{number}")).expect("a name"),
    }
}

fn place_of(id: &ToolCallId) -> usize {
    id.as_str().trim_start_matches("call").parse().unwrap_or(0)
}

fn as_did(step: &TurnStep) -> ExpectedTurnStep {
    match step {
        TurnStep::Run { id, tool, choice, .. } => ExpectedTurnStep::Run {
            call: place_of(id),
            tool: tool.clone(),
            candidate: choice.candidate,
            defaults: choice.defaults.clone(),
            named: choice.tool.clone(),
        },
        TurnStep::Cancel { id } => ExpectedTurnStep::Cancel(place_of(id)),
        TurnStep::Leave { id } => ExpectedTurnStep::Leave(place_of(id)),
        TurnStep::Done(result) => ExpectedTurnStep::Done {
            by: result.ended_by,
            status: result.status,
            escalated: result.escalated,
            calls: result
                .calls
                .iter()
                .map(|call| {
                    (
                        TurnCallEnd {
                            outcome: call.outcome,
                            tool: call.tool.clone(),
                            code: call.code,
                            escalated: call.escalated,
                        },
                        call.attempts,
                    )
                })
                .collect(),
        },
    }
}

fn turns(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    let mut now = Timestamp::from_millis(1_000_000);
    let calls: Vec<ReferenceTurnCall> = (0..rng.between(1, 5))
        .map(|number| {
            let earlier = 0..usize::try_from(number).unwrap_or(0);
            ReferenceTurnCall {
                candidates: (0..=rng.between(0, 2))
                    .map(|candidate| tool(number % 2 * 3 + candidate))
                    .collect(),
                depends: earlier
                    .map(|on| (on, rng.chance(40), rng.chance(40)))
                    .filter_map(|(on, is_there, is_optional)| is_there.then_some((on, is_optional)))
                    .collect(),
                need: *rng.pick(&[CallNeed::Required, CallNeed::Optional]),
                place: TurnCallState::Waiting,
                tried: BTreeSet::new(),
                ran_with: None,
                has_failed: false,
                attempts: 0,
            }
        })
        .collect();
    let parallelism = NonZeroUsize::new(usize::try_from(rng.between(1, 3)).unwrap_or(1));
    let deadline = millis(*rng.pick(&[1, 1_000, 5_000]));
    let draft = PlanDraft {
        turn: None,
        deadline: Some(deadline),
        parallelism,
        calls: calls.iter().enumerate().map(|(number, call)| drafted(number, call)).collect(),
    };
    let plan = match TurnPlan::new(draft, &TurnLimits::DEFAULT) {
        Ok(plan) => Arc::new(plan),
        Err(errors) => return Err((PROMISE, format!("a plan is refused: {errors:?}"))),
    };
    let facts: BTreeMap<ToolRef, ToolFacts> = (0..6)
        .map(|number| {
            (
                tool(number),
                ToolFacts {
                    breaker: circuit(rng),
                    stop: *rng.pick(&[TurnEndEffect::Cancel, TurnEndEffect::Leave]),
                },
            )
        })
        .collect();
    let chosen = rng.chance(35).then(|| chosen(rng, &calls));
    let submitted = chosen.clone().map_or(SubmissionHistory::First, SubmissionHistory::Repeated);
    let mut reference = ReferenceTurn {
        facts: facts.clone(),
        parallelism: parallelism.map_or(1, NonZeroUsize::get),
        deadline: now + deadline,
        now,
        cut_off: BTreeSet::new(),
        over: None,
        steps: Vec::new(),
        calls,
        chosen,
    };
    // The candidates before the choice were tried, or could not be.
    for call in 0..reference.calls.len() {
        let tried = reference.choice(call).map_or(0, |chosen| chosen.candidate);
        let most = reference.calls[call].candidates.len() - 1;
        reference.calls[call].tried = (0..tried.min(most)).collect();
    }
    reference.propagate();
    reference.advance();
    let mut notes = Vec::new();
    let (mut turn, mut steps) = TurnMachine::begin(plan, &facts, submitted, now, &mut notes);
    for _ in 0..30 {
        machine_trace.log(|| format!("{}: {steps:?}", now.as_millis()));
        agree(
            PROMISE,
            "the steps",
            &steps.iter().map(as_did).collect(),
            &std::mem::take(&mut reference.steps),
        )?;
        agree(PROMISE, "whether it is over", &turn.is_over(), &reference.over.is_some())?;
        agree(PROMISE, "how many run", &turn.running(), &reference.running())?;
        now = next_moment(rng, now, &[reference.deadline]).min(reference.deadline + millis(1)).max(now);
        reference.now = now;
        let call = usize::try_from(rng.between(0, reference.calls.len() as u64 - 1)).unwrap_or(0);
        let event = event(rng, call);
        machine_trace.log(|| format!("{}: {event:?}", now.as_millis()));
        let fits = match &event {
            TurnEvent::Ended { end, replayed, .. } => reference.record_end(call, end, *replayed),
            TurnEvent::NotStarted { .. } => {
                let runs = matches!(reference.calls[call].place, TurnCallState::Running(_));
                if runs {
                    reference.calls[call].place = TurnCallState::Put;
                }
                runs
            }
            TurnEvent::BreakerChanged { tool, state } => {
                if reference.over.is_none()
                    && let Some(facts) = reference.facts.get_mut(tool)
                {
                    facts.breaker = *state;
                }
                true
            }
            TurnEvent::ToolKnown { tool, stop } => {
                if let Some(facts) = reference.facts.get_mut(tool) {
                    facts.stop = *stop;
                }
                true
            }
            TurnEvent::Tick => {
                if reference.over.is_none() && now >= reference.deadline {
                    reference.finish(TurnEndReason::Deadline);
                }
                true
            }
            TurnEvent::Cancel => {
                if reference.over.is_none() {
                    reference.finish(TurnEndReason::Cancel);
                }
                true
            }
        };
        if fits {
            reference.advance();
        }
        steps = match turn.handle_event(now, event, &mut notes) {
            Ok(steps) if fits => steps,
            Err(TurnMisuse::NotRunning(_)) if !fits => Vec::new(),
            other => return Err((PROMISE, format!("an event that fits ({fits}): {other:?}"))),
        };
    }
    Ok(())
}

fn drafted(number: usize, call: &ReferenceTurnCall) -> DraftCall {
    DraftCall {
        id: id(number),
        tool: call.candidates[0].clone(),
        params: None,
        depends_on: call
            .depends
            .iter()
            .map(|(on, default)| DraftDependency {
                on: id(*on),
                default: default.then(|| RawJson::string("instead")),
            })
            .collect(),
        need: call.need,
        alternatives: call.candidates[1..]
            .iter()
            .map(|tool| DraftAlternative { tool: tool.clone(), params: None })
            .collect(),
        timeout: None,
    }
}

/// Draws the choices of an earlier submission. The plan may have changed since.
fn chosen(rng: &mut Rng, calls: &[ReferenceTurnCall]) -> BTreeMap<ToolCallId, CandidateChoice> {
    let mut chosen = BTreeMap::new();
    for (number, call) in calls.iter().enumerate() {
        if rng.chance(50) {
            continue;
        }
        let candidate = usize::try_from(rng.between(0, 2)).unwrap_or(0);
        let there = call.candidates.get(candidate).cloned().unwrap_or_else(|| tool(5));
        let named = if rng.chance(85) { there } else { tool(4) };
        let defaults =
            call.depends.iter().filter(|_| rng.chance(30)).map(|(dependency, _)| id(*dependency)).collect();
        chosen.insert(
            id(number),
            CandidateChoice { candidate, defaults, tool: (candidate > 0).then_some(named) },
        );
    }
    chosen
}

fn event(rng: &mut Rng, call: usize) -> TurnEvent {
    match rng.between(0, 19) {
        0 => TurnEvent::Tick,
        1 => TurnEvent::Cancel,
        2 => TurnEvent::BreakerChanged { tool: tool(rng.between(0, 5)), state: circuit(rng) },
        3 => TurnEvent::ToolKnown {
            tool: tool(rng.between(0, 5)),
            stop: *rng.pick(&[TurnEndEffect::Cancel, TurnEndEffect::Leave]),
        },
        4 => TurnEvent::NotStarted { id: id(call) },
        5..9 => TurnEvent::Ended {
            id: id(call),
            end: PlannedCallEnd::Succeeded { output: RawJson::string("done"), attempts: 2 },
            replayed: rng.chance(20),
        },
        9 | 10 => TurnEvent::Tick,
        _ => {
            let failure = TurnCallFailure {
                code: *rng.pick(&CODES),
                message: "it failed".to_owned(),
                rule: None,
                nature: *rng.pick(&[FaultNature::Transient, FaultNature::Permanent]),
                reach: *rng.pick(&[
                    AttemptReach::NotSent,
                    AttemptReach::Refused,
                    AttemptReach::Unknown,
                    AttemptReach::Answered,
                ]),
                repeat: *rng.pick(&[RepeatSafety::Safe, RepeatSafety::BySameTool, RepeatSafety::Unsafe]),
                unknown_outcome: *rng
                    .pick(&[UnknownOutcomeHandling::Reported, UnknownOutcomeHandling::Rerun]),
                attempts: 1,
                timed_out_after: None,
            };
            TurnEvent::Ended { id: id(call), end: PlannedCallEnd::Failed(failure), replayed: rng.chance(20) }
        }
    }
}
