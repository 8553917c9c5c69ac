//! The clients of turns: they submit, lose patience, cancel and resubmit, to any process.

use std::collections::VecDeque;
use std::sync::Arc;

use steadfast_turn::{TurnEvent, TurnPlan, TurnStatus};

use crate::invariants::InvariantViolation;
use crate::rng::Rng;
use crate::system::{SimulatedConnection, SimulatedWorld};
use crate::transition::SimulationEvent;
use crate::turns::{SimulatedTurnEvent, SubmissionStage, SubmissionTruth, TurnAnswer, TurnSubmission};

/// Maximum number of submissions, after which a client gives up.
const MOST_ATTEMPTS: u32 = 8;

impl SimulatedWorld {
    pub(crate) fn submit(&mut self, turn: usize) {
        if self.model.turns[turn].over {
            return;
        }
        self.model.turns[turn].tries += 1;
        let node = usize::try_from(self.rng.between(0, self.nodes.len() as u64 - 1)).unwrap_or(0);
        let submission = self.submission(turn, node);
        self.log_event(format!("turn {turn} is submitted to process {node}: submission {submission}"));
        let travel = self.rng.between(0, 5);
        self.later(travel, SimulationEvent::Turn(SimulatedTurnEvent::Arrives { submission }));
        if self.faults_active() {
            let patience = self.rng.between(500, 90_000);
            self.later(patience, SimulationEvent::Turn(SimulatedTurnEvent::Impatient { submission }));
        }
        if self.fault(self.weather.connection_breaks) {
            let (after, connection) = (self.rng.between(0, 10_000), self.submissions[submission].line);
            self.later(after, SimulationEvent::Break { connection });
        }
    }

    /// Makes a submission with a client that waits for it.
    pub(super) fn submission(&mut self, turn: usize, node: usize) -> usize {
        let generation = self.nodes[node].identity.started;
        let line = self.connections.len();
        for _ in 0..2 {
            self.connections.push(SimulatedConnection { node, generation, open: true });
        }
        let plan = self.plan_of(turn);
        let deadline = self.now + plan.deadline();
        self.submissions.push(TurnSubmission {
            turn,
            plan,
            node,
            generation,
            line,
            inner: line + 1,
            arrived: self.now,
            deadline,
            stage: SubmissionStage::Sent,
            machine: None,
            hold: None,
            queue: VecDeque::new(),
            inbox: VecDeque::new(),
            is_due: false,
            last_event: self.now,
            command: 0,
            writing: None,
            truth: SubmissionTruth::default(),
        });
        self.submissions.len() - 1
    }

    /// Returns the plan with which a turn is submitted now.
    fn plan_of(&self, turn: usize) -> Arc<TurnPlan> {
        let goal = &self.model.turns[turn];
        let mut rng = Rng::separate(self.seed ^ 0x706c_616e ^ self.submissions.len() as u64);
        let comes_again = self.submissions.iter().any(|before| before.turn == turn);
        match goal.plans.split_first() {
            Some((_, others)) if comes_again && rng.chance(self.weather.replans) => rng.pick(others).clone(),
            _ => goal.plans[0].clone(),
        }
    }

    fn submit_again(&mut self, turn: usize) {
        let goal = &mut self.model.turns[turn];
        if goal.tries >= MOST_ATTEMPTS {
            goal.over = true;
        }
        if goal.over {
            return;
        }
        let [short, long] = self.weather.pauses;
        let pause = self.rng.between(short, long);
        self.later(pause, SimulationEvent::Turn(SimulatedTurnEvent::Submit { turn }));
        if self.fault(self.weather.double) {
            let delay = self.rng.between(short, long);
            self.later(delay, SimulationEvent::Turn(SimulatedTurnEvent::Submit { turn }));
        }
    }

    pub(crate) fn turn_impatient(&mut self, submission: usize) -> Result<(), InvariantViolation> {
        let line = self.submissions[submission].line;
        if !self.connections[line].open || !self.faults_active() {
            return Ok(());
        }
        if self.fault(self.weather.cancels) {
            self.log_event(format!("submission {submission} is withdrawn"));
            let TurnSubmission { node, generation, .. } = self.submissions[submission];
            let home = &self.nodes[node];
            if home.alive && home.identity.started == generation && home.frozen_until <= self.now {
                self.submissions[submission].inbox.push_back(TurnEvent::Cancel);
                return self.work(submission);
            }
            return Ok(());
        }
        self.break_connection(line)
    }

    /// Handles a broken connection. If a client waited on it for a turn, no client waits for that turn: its
    /// calls continue alone, and the turn is released.
    pub(crate) fn drop_turn(&mut self, connection: usize) -> Result<(), InvariantViolation> {
        let Some(submission) = self.submissions.iter().position(|submission| submission.line == connection)
        else {
            return Ok(());
        };
        let turn = self.submissions[submission].turn;
        self.submit_again(turn);
        let dropped = &mut self.submissions[submission];
        let stage = std::mem::replace(&mut dropped.stage, SubmissionStage::Over);
        let TurnSubmission { node, generation, inner, .. } = *dropped;
        match stage {
            SubmissionStage::Sent | SubmissionStage::Reading | SubmissionStage::Over => Ok(()),
            SubmissionStage::Taking(_) | SubmissionStage::Running | SubmissionStage::Releasing(_) => {
                self.later(
                    0,
                    SimulationEvent::Turn(SimulatedTurnEvent::Release { node, generation, submission }),
                );
                self.break_connection(inner)
            }
        }
    }

    /// Answers the client, if the connection still works.
    pub(super) fn answer_turn(
        &mut self,
        submission: usize,
        answer: TurnAnswer,
    ) -> Result<(), InvariantViolation> {
        self.submissions[submission].stage = SubmissionStage::Over;
        let line = self.submissions[submission].line;
        if !self.connections[line].open {
            return Ok(());
        }
        if self.fault(self.weather.answer_breaks) {
            return self.break_connection(line);
        }
        let travel = self.rng.between(0, 5);
        self.later(travel, SimulationEvent::Turn(SimulatedTurnEvent::Answered { submission, answer }));
        Ok(())
    }

    pub(crate) fn turn_answered(&mut self, submission: usize, answer: TurnAnswer) {
        let TurnSubmission { turn, line, .. } = self.submissions[submission];
        if !std::mem::replace(&mut self.connections[line].open, false) {
            return;
        }
        self.log_event(format!("turn {turn}: submission {submission} is answered: {answer:?}"));
        match answer {
            // Some clients ask again all the same.
            TurnAnswer::Ended(TurnStatus::Completed) if self.rng.chance(70) => {
                self.model.turns[turn].over = true
            }
            TurnAnswer::Ended(_) | TurnAnswer::Refused => self.submit_again(turn),
        }
    }
}
