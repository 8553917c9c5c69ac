//! The driver of turns: a process carries out the steps of the turn machine.

use std::collections::BTreeMap;

use steadfast_core::breaker::State as BreakerState;
use steadfast_core::call::{self, CallResult, CallerPatience, Provenance, RecordStatus};
use steadfast_core::classify::{AttemptReach, FaultNature};
use steadfast_core::code::Code;
use steadfast_core::id::{Digest, ToolCallId, ToolRef, TurnId};
use steadfast_core::key::RecordKey;
use steadfast_core::policy::ToolClass;
use steadfast_json::RawJson;
use steadfast_turn::{
    CallProgress, CandidateChoice, PlannedCallEnd, RepeatSafety, SubmissionHistory, ToolFacts,
    TurnCallFailure, TurnEndEffect, TurnEvent, TurnMachine, TurnPlan, TurnStep, UnknownOutcomeHandling,
};

use crate::Defect;
use crate::invariants::InvariantViolation;
use crate::model::{CallIdentity, ClientGoal, TurnCall};
use crate::system::{Dispatch, SimulatedWorld, is_shared};
use crate::transition::{SimulationEvent, key};
use crate::turns::hold::TurnDocumentRequest;
use crate::turns::{
    ChoiceWrite, SimulatedTurnEvent, SubmissionStage, TurnAnswer, TurnMembership, TurnSubmission, places,
};

impl SimulatedWorld {
    pub(crate) fn turn_arrives(&mut self, submission: usize) -> Result<(), InvariantViolation> {
        let TurnSubmission { node, generation, line, .. } = self.submissions[submission];
        if !self.connections[line].open && self.defect != Some(Defect::TurnGoesOnByItself) {
            return Ok(());
        }
        let home = &self.nodes[node];
        if !home.alive || home.identity.started != generation {
            return self.break_connection(line);
        }
        if home.frozen_until > self.now {
            let until = home.frozen_until;
            self.at(until, SimulationEvent::Turn(SimulatedTurnEvent::Arrives { submission }));
            return Ok(());
        }
        self.summary.turns += 1;
        let arrived = &mut self.submissions[submission];
        // Its time counts from here, however long the store takes to allow the start.
        (arrived.arrived, arrived.stage) = (self.now, SubmissionStage::Reading);
        arrived.deadline = self.now + arrived.plan.deadline();
        self.ask_store(submission, TurnDocumentRequest::Read);
        Ok(())
    }

    pub(super) fn begin_turn(
        &mut self,
        submission: usize,
        submitted: SubmissionHistory,
    ) -> Result<(), InvariantViolation> {
        self.one_submission(submission)?;
        let TurnSubmission { turn, node, generation, arrived, deadline, .. } = self.submissions[submission];
        let plan = self.submissions[submission].plan.clone();
        let submitted = match (self.defect, submitted) {
            (Some(Defect::ChosenByItsPlace), SubmissionHistory::Repeated(choices)) => {
                choices_by_index(&plan, choices)
            }
            (_, submitted) => submitted,
        };
        let stop = match self.weather.policy.class {
            ToolClass::ReadOnly | ToolClass::Idempotent => TurnEndEffect::Cancel,
            ToolClass::Mutating | ToolClass::Unknown => TurnEndEffect::Leave,
        };
        let facts: BTreeMap<ToolRef, ToolFacts> = plan
            .tools()
            .into_iter()
            .map(|tool| (tool.clone(), ToolFacts { breaker: self.breaker_of(node, tool), stop }))
            .collect();
        self.log_event(format!(
            "process {node}: submission {submission} of turn {turn} begins, {submitted:?}"
        ));
        let (machine, steps) =
            TurnMachine::begin(plan, &facts, submitted, self.nodes[node].clock(arrived), &mut Vec::new());
        let running = &mut self.submissions[submission];
        running.machine = Some(machine);
        running.queue = steps.into();
        running.stage = SubmissionStage::Running;
        if self.defect != Some(Defect::DeadlineNotKept) {
            self.at(
                deadline.max(self.now),
                SimulationEvent::Turn(SimulatedTurnEvent::Tick { node, generation, submission }),
            );
        }
        self.work(submission)
    }

    fn breaker_of(&self, node: usize, tool: &ToolRef) -> BreakerState {
        let home = &self.nodes[node];
        let breaker = if is_shared(tool) {
            Some(&home.breaker)
        } else {
            home.cells.get(tool).map(|cell| &cell.breaker)
        };
        let policy = &self.weather.policy.breaker;
        breaker.map_or(BreakerState::Closed, |breaker| breaker.state(policy, self.clock(node)))
    }

    /// Carries out the queued steps in order, until one has to wait for the store.
    pub(super) fn work(&mut self, submission: usize) -> Result<(), InvariantViolation> {
        loop {
            let working = &mut self.submissions[submission];
            if working.writing.is_some() || !matches!(working.stage, SubmissionStage::Running) {
                return Ok(());
            }
            if let Some(step) = working.queue.pop_front() {
                self.step(submission, step)?;
            } else if let Some(event) = working.inbox.pop_front() {
                self.advance_turn(submission, event)?;
            } else if std::mem::take(&mut working.is_due) {
                self.advance_turn(submission, TurnEvent::Tick)?;
            } else {
                return Ok(());
            }
        }
    }

    fn advance_turn(&mut self, submission: usize, event: TurnEvent) -> Result<(), InvariantViolation> {
        let now = self.clock(self.submissions[submission].node);
        let running = &mut self.submissions[submission];
        let Some(machine) = &mut running.machine else { return Ok(()) };
        let name = format!("{event:?}");
        if !matches!(event, TurnEvent::Tick) {
            running.last_event = self.now;
        }
        match machine.handle_event(now, event, &mut Vec::new()) {
            Ok(steps) => {
                let line = format!("submission {submission}: {name} -> {steps:?}");
                running.queue.extend(steps);
                self.log_event(line.chars().take(300).collect());
                Ok(())
            }
            Err(misuse) => Err(("no misuse", format!("{misuse} in submission {submission}"))),
        }
    }

    fn step(&mut self, submission: usize, step: TurnStep) -> Result<(), InvariantViolation> {
        let now = self.now;
        match step {
            TurnStep::Run { ref id, .. } if now >= self.submissions[submission].deadline => {
                if self.defect == Some(Defect::NotStartedToldAsRunning) {
                    return Ok(());
                }
                self.advance_turn(submission, TurnEvent::NotStarted { id: id.clone() })
            }
            TurnStep::Run { ref id, ref choice, .. } => {
                let document = self.choosing(submission, id, choice);
                match document {
                    None => self.start_call(submission, step),
                    Some(document) => {
                        self.write(submission, document, Some(step));
                        Ok(())
                    }
                }
            }
            TurnStep::Cancel { id } => {
                let node = self.submissions[submission].node;
                let is_it = |in_turn: &TurnMembership| in_turn.submission == submission && in_turn.id == id;
                let number = self.nodes[node]
                    .calls
                    .iter()
                    .find(|(_, running)| running.in_turn.as_ref().is_some_and(is_it))
                    .map(|(number, _)| *number);
                match number {
                    Some(number) => {
                        let others = self.others(node, number);
                        self.drive(node, number, call::CallEvent::Cancelled(others))
                    }
                    None => Ok(()),
                }
            }
            TurnStep::Leave { .. } => Ok(()),
            TurnStep::Done(result) => {
                self.one_true_state(submission, &result)?;
                self.log_event(format!("submission {submission} ends: {}", result.summary));
                let done = &mut self.submissions[submission];
                let (inner, document) =
                    (done.inner, done.hold.as_ref().map(steadfast_turn::TurnLease::released_document));
                done.stage = SubmissionStage::Releasing(Box::new(result));
                self.break_connection(inner)?;
                match document {
                    Some(document) => self.write(submission, document, None),
                    None => return self.turn_is_over(submission),
                }
                Ok(())
            }
        }
    }

    /// Returns the choice that must be written before a call is sent.
    fn choosing(
        &self,
        submission: usize,
        id: &ToolCallId,
        choice: &CandidateChoice,
    ) -> Option<steadfast_turn::TurnDocument> {
        let document = self.submissions[submission].hold.as_ref()?.document_with_choice(id, choice)?;
        match self.defect {
            Some(Defect::ChoiceNotKept) => None,
            Some(Defect::BackToPlanNotKept) if *choice == CandidateChoice::default() => None,
            Some(_) | None => Some(document),
        }
    }

    fn write(&mut self, submission: usize, document: steadfast_turn::TurnDocument, run: Option<TurnStep>) {
        let writing = &mut self.submissions[submission];
        let replaces = writing.hold.as_ref().and_then(steadfast_turn::TurnLease::replaced_version);
        writing.writing = Some(ChoiceWrite { document: document.clone(), again: false, run });
        self.ask_store(submission, TurnDocumentRequest::Write { replaces, document });
    }

    /// Handles a choice that could not be stored. The call is not sent, because a later submission could not know of
    /// it.
    pub(super) fn handle_unstored_choice(
        &mut self,
        submission: usize,
        run: TurnStep,
    ) -> Result<(), InvariantViolation> {
        let TurnStep::Run { id, .. } = run else { return Ok(()) };
        if self.defect == Some(Defect::UnkeptForgotten) {
            return Ok(());
        }
        let end = unsent(Code::StoreUnavailable);
        self.advance_turn(submission, TurnEvent::Ended { id, end, replayed: false })
    }

    pub(super) fn start_call(&mut self, submission: usize, run: TurnStep) -> Result<(), InvariantViolation> {
        let TurnStep::Run { id, tool, arguments, timeout, choice } = run else { return Ok(()) };
        self.call_may_begin(submission, &id)?;
        let TurnSubmission { turn, node, inner, deadline, .. } = self.submissions[submission];
        let client = self.model.turns[turn].client;
        let place = places(&self.submissions[submission].plan).get(&id).copied().unwrap_or_default();
        let made = TurnCall { turn, call: place, candidate: choice.candidate };
        let arguments = number_of(&arguments);
        self.model.made.entry(made).or_default().insert((tool.clone(), arguments));
        self.model
            .goals
            .push(ClientGoal { over: true, ..ClientGoal::new(client, CallIdentity::Turn(made), arguments) });
        let goal = self.model.goals.len() - 1;
        self.dispatches.push(Dispatch::new((goal, 0), inner, Vec::new(), self.now));
        let dispatch = self.dispatches.len() - 1;
        let number = self.nodes[node].next_call;
        self.nodes[node].next_call += 1;
        let mut request = self.request(node, number, (goal, 0));
        request.tool = tool;
        request.tool_call = Some(id.clone());
        request.turn = TurnId::new(format!("turn-{turn}")).ok();
        request.in_turn = true;
        request.waits = CallerPatience::UntilDone;
        request.limits.attempt = timeout;
        request.limits.start_by = match self.defect {
            Some(Defect::DeadlineNotPassedOn) => None,
            Some(_) | None => Some(self.nodes[node].clock(deadline)),
        };
        let in_turn = TurnMembership { submission, id, choice, progress: CallProgress::default() };
        let (number, step) = self.begin(node, request, goal, dispatch, Some(in_turn))?;
        self.act(node, number, step)
    }

    pub(crate) fn turn_key(&self, call: TurnCall) -> RecordKey {
        let TurnCall { turn, call, candidate } = call;
        match self.defect {
            Some(Defect::KeyWithoutCandidate) => key(&format!("turn {turn} call {call}")),
            Some(Defect::KeyOfSubmission) => {
                let submission = self.submissions.len();
                key(&format!("turn {turn} call {call} candidate {candidate} submission {submission}"))
            }
            Some(_) | None => key(&format!("turn {turn} call {call} candidate {candidate}")),
        }
    }

    /// Handles the answer of a call. The turn receives it later.
    pub(crate) fn report_call_to_turn(&mut self, node: usize, in_turn: TurnMembership, result: CallResult) {
        let generation = self.nodes[node].identity.started;
        let (in_turn, result) = (Box::new(in_turn), Box::new(result));
        let travel = self.rng.between(0, 1);
        self.later(
            travel,
            SimulationEvent::Turn(SimulatedTurnEvent::CallEnded { node, generation, in_turn, result }),
        );
    }

    pub(crate) fn turn_call_ended(
        &mut self,
        in_turn: &TurnMembership,
        result: &CallResult,
    ) -> Result<(), InvariantViolation> {
        let TurnMembership { submission, id, choice, .. } = in_turn;
        let TurnSubmission { turn, node, arrived, .. } = self.submissions[*submission];
        let plan = self.submissions[*submission].plan.clone();
        let place = places(&plan).get(id).copied().unwrap_or_default();
        let made = TurnCall { turn, call: place, candidate: choice.candidate };
        self.own_key(made, result)?;
        let truth = &mut self.submissions[*submission].truth;
        truth.open.remove(id);
        if is_done(result) {
            truth.succeeded.insert(id.clone());
            if result.recorded == RecordStatus::Yes {
                let now = self.now;
                self.model.succeeded.entry((turn, place)).or_insert((now, arrived));
            }
        }
        if !matches!(self.submissions[*submission].stage, SubmissionStage::Running) {
            return Ok(());
        }
        for tool in plan.calls()[place].tools() {
            let (tool, state) = (tool.clone(), self.breaker_of(node, tool));
            self.submissions[*submission].inbox.push_back(TurnEvent::BreakerChanged { tool, state });
        }
        let end = self.end_of(in_turn, result);
        let replayed = matches!(result.provenance, Provenance::Replayed { .. });
        self.submissions[*submission].inbox.push_back(TurnEvent::Ended { id: id.clone(), end, replayed });
        self.work(*submission)
    }

    /// Returns the end of a call in the form that its turn receives.
    fn end_of(&self, in_turn: &TurnMembership, result: &CallResult) -> PlannedCallEnd {
        let progress = &in_turn.progress;
        let attempts = result.attempts;
        let input_required =
            progress.is_input_required() && self.defect != Some(Defect::QuestionToldAsAnswer);
        let (code, message, retriable) = match &result.outcome {
            Ok(output) if !input_required => {
                return PlannedCallEnd::Succeeded { output: output.content.clone(), attempts };
            }
            Ok(_) => (Code::ToolError, "it asks for input", false),
            Err(_) if self.defect == Some(Defect::FailureToldAsNothing) => {
                return PlannedCallEnd::Succeeded { output: RawJson::from_trusted("null"), attempts };
            }
            Err(failure) => (failure.code, &*failure.message, failure.retriable),
        };
        let code = match (self.defect, code) {
            (Some(Defect::StoreFailureToldAsOverload), Code::StoreUnavailable) => Code::Overloaded,
            (_, code) => code,
        };
        let nature = if retriable { FaultNature::Transient } else { FaultNature::Permanent };
        let reach = match self.defect {
            Some(Defect::UnderWayCountsAsUnsent) if progress.failure().is_none() => AttemptReach::NotSent,
            Some(_) | None => progress.reach(),
        };
        let doubt = match self.defect {
            Some(Defect::EarlierAttemptsForgotten) => UnknownOutcomeHandling::Reported,
            Some(_) | None if self.retry_safe() => UnknownOutcomeHandling::Rerun,
            Some(_) | None => UnknownOutcomeHandling::Reported,
        };
        PlannedCallEnd::Failed(TurnCallFailure {
            code,
            message: message.into(),
            rule: None,
            nature,
            reach,
            repeat: match self.weather.policy.class {
                ToolClass::ReadOnly => RepeatSafety::Safe,
                ToolClass::Idempotent => RepeatSafety::BySameTool,
                ToolClass::Mutating | ToolClass::Unknown => RepeatSafety::Unsafe,
            },
            unknown_outcome: doubt,
            attempts,
            timed_out_after: None,
        })
    }

    pub(super) fn turn_is_over(&mut self, submission: usize) -> Result<(), InvariantViolation> {
        self.turn_ends_in_time(submission)?;
        match std::mem::replace(&mut self.submissions[submission].stage, SubmissionStage::Over) {
            SubmissionStage::Releasing(result) => {
                self.answer_turn(submission, TurnAnswer::Ended(result.status))
            }
            SubmissionStage::Sent
            | SubmissionStage::Reading
            | SubmissionStage::Taking(_)
            | SubmissionStage::Running
            | SubmissionStage::Over => Ok(()),
        }
    }

    /// Restarts turns after a restart of their process. Only a defect does that.
    pub(crate) fn restart_turns(&mut self, node: usize) -> Result<(), InvariantViolation> {
        if self.defect != Some(Defect::TurnGoesOnByItself) {
            return Ok(());
        }
        let pid = self.nodes[node].identity.pid;
        let is_owned = |document: &steadfast_turn::TurnDocument| {
            document.holder.as_ref().is_some_and(|holder| holder.process.pid == pid)
        };
        let turns: Vec<usize> = self
            .store
            .turns
            .iter()
            .filter(|(_, (_, document))| is_owned(document))
            .map(|(turn, _)| *turn)
            .collect();
        for turn in turns {
            let submission = self.submission(turn, node);
            let line = self.submissions[submission].line;
            self.connections[line].open = false;
            self.turn_arrives(submission)?;
        }
        Ok(())
    }
}

/// Returns true if the call has done its work.
pub(super) fn is_done(result: &CallResult) -> bool {
    result.outcome.is_ok() && result.stage == call::ResultStage::Final
}

/// Returns the end of a call that was never sent.
fn unsent(code: Code) -> PlannedCallEnd {
    PlannedCallEnd::Failed(TurnCallFailure::not_sent(code, FaultNature::Transient, "not sent".into()))
}

/// Returns the earlier choices by index alone. Another tool may have that index now, or none; then the last one is
/// used.
fn choices_by_index(plan: &TurnPlan, choices: BTreeMap<ToolCallId, CandidateChoice>) -> SubmissionHistory {
    let places = places(plan);
    let chosen = choices.into_iter().map(|(id, choice)| {
        let most = places.get(&id).map_or(0, |place| plan.calls()[*place].alternatives.len());
        (id, CandidateChoice { candidate: choice.candidate.min(most), tool: None, ..choice })
    });
    SubmissionHistory::Repeated(chosen.collect())
}

/// Returns arguments as the model counts them.
fn number_of(arguments: &RawJson) -> u64 {
    Digest::of(arguments.as_str().as_bytes())
        .as_bytes()
        .iter()
        .take(8)
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}
