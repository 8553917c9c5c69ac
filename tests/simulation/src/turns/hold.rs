//! The hold on a turn: its document, on the way to the store and back.

use std::time::Duration;

use steadfast_core::dedupe::{LeaseOwnerState, ProcessIdentity};
use steadfast_turn::{
    SubmissionHistory, TurnAcquisition, TurnDocument, TurnHolder, TurnLease, TurnWriteConflict,
};

use crate::Defect;
use crate::invariants::InvariantViolation;
use crate::scenario::OwnerLiveness;
use crate::system::SimulatedWorld;
use crate::transition::SimulationEvent;
use crate::turns::{SimulatedTurnEvent, SubmissionStage, TurnAnswer, TurnSubmission};

/// A request to the store.
#[derive(Clone, Debug)]
pub(crate) enum TurnDocumentRequest {
    Read,
    Write { replaces: Option<u64>, document: TurnDocument },
}

/// The store's reply.
#[derive(Clone, Debug)]
pub(crate) enum TurnDocumentReply {
    Found(Option<(u64, TurnDocument)>),
    Written(u64),
    Stale(Option<(u64, TurnDocument)>),
    Failed,
}

/// Extra time for which a turn is held, because clocks do not agree to the millisecond.
const SLACK: Duration = Duration::from_secs(1);

impl SimulatedWorld {
    pub(super) fn ask_store(&mut self, submission: usize, request: TurnDocumentRequest) {
        let TurnSubmission { node, generation, .. } = self.submissions[submission];
        self.submissions[submission].command += 1;
        let command = self.submissions[submission].command;
        if self.fault(self.weather.store_lost) {
            let patience = self.rng.between(10, 500);
            let reply = Box::new(TurnDocumentReply::Failed);
            let lost = SimulatedTurnEvent::Stored { node, generation, submission, command, reply };
            return self.later(patience, SimulationEvent::Turn(lost));
        }
        let unanswered = self.fault(self.weather.store_unanswered);
        let travel = self.rng.between(0, 3);
        let event =
            SimulatedTurnEvent::StoreRequest { submission, command, request: Box::new(request), unanswered };
        self.later(travel, SimulationEvent::Turn(event));
    }

    pub(crate) fn handle_store_request(
        &mut self,
        submission: usize,
        command: u64,
        request: TurnDocumentRequest,
        unanswered: bool,
    ) {
        let TurnSubmission { turn, node, generation, .. } = self.submissions[submission];
        let reply = match request {
            TurnDocumentRequest::Read => TurnDocumentReply::Found(self.store.turns.get(&turn).cloned()),
            TurnDocumentRequest::Write { replaces, document } => {
                match self.store.write_turn(turn, replaces, document) {
                    Ok(version) => TurnDocumentReply::Written(version),
                    Err(there) => TurnDocumentReply::Stale(there),
                }
            }
        };
        let reply = Box::new(if unanswered { TurnDocumentReply::Failed } else { reply });
        let delay = self.rng.between(0, 3);
        let stored = SimulatedTurnEvent::Stored { node, generation, submission, command, reply };
        self.later(delay, SimulationEvent::Turn(stored));
    }

    pub(crate) fn turn_stored(
        &mut self,
        submission: usize,
        command: u64,
        reply: TurnDocumentReply,
    ) -> Result<(), InvariantViolation> {
        if self.submissions[submission].command != command {
            return Ok(());
        }
        match (std::mem::replace(&mut self.submissions[submission].stage, SubmissionStage::Over), reply) {
            (SubmissionStage::Reading, TurnDocumentReply::Found(found)) => self.take(submission, found),
            (SubmissionStage::Taking(_), TurnDocumentReply::Stale(there)) => self.take(submission, there),
            (SubmissionStage::Taking(submitted), TurnDocumentReply::Written(version)) => {
                if let Some(hold) = &mut self.submissions[submission].hold {
                    hold.record_write(hold.document().clone(), version);
                }
                self.begin_turn(submission, submitted)
            }
            (stage @ (SubmissionStage::Reading | SubmissionStage::Taking(_)), _) => {
                // The process may hold the turn without knowing, and no process runs it.
                if let SubmissionStage::Taking(_) = stage {
                    self.give_back_soon(submission, 0);
                }
                self.answer_turn(submission, TurnAnswer::Refused)
            }
            (stage @ (SubmissionStage::Running | SubmissionStage::Releasing(_)), reply) => {
                self.submissions[submission].stage = stage;
                self.wrote(submission, reply)
            }
            (SubmissionStage::Sent | SubmissionStage::Over, _) => Ok(()),
        }
    }

    fn take(
        &mut self,
        submission: usize,
        found: Option<(u64, TurnDocument)>,
    ) -> Result<(), InvariantViolation> {
        let TurnSubmission { node, ref plan, .. } = self.submissions[submission];
        let lasts = match self.defect {
            Some(Defect::HoldShorterThanTurn) => Duration::from_secs(2),
            Some(_) | None => plan.deadline() + SLACK,
        };
        let (process, number) = (self.nodes[node].identity.clone(), submission as u64);
        let me = TurnHolder { process, number, until: self.now + lasts };
        let known = |process: &ProcessIdentity| {
            let lives = self.nodes.iter().any(|node| node.alive && node.identity == *process);
            match (self.weather.leases, self.defect) {
                (_, Some(Defect::HoldNotChecked)) => LeaseOwnerState::Gone,
                (OwnerLiveness::Time, _) => LeaseOwnerState::Time,
                (OwnerLiveness::Process, _) if lives => LeaseOwnerState::Alive,
                (OwnerLiveness::Process, _) => LeaseOwnerState::Gone,
            }
        };
        match TurnLease::take(found, me, known, self.now) {
            TurnAcquisition::Busy(_) => self.answer_turn(submission, TurnAnswer::Refused),
            TurnAcquisition::Acquired(hold, submitted) => {
                let submitted = match self.defect {
                    Some(Defect::BreakerBeforeRecord) => SubmissionHistory::First,
                    Some(_) | None => submitted,
                };
                let request = TurnDocumentRequest::Write {
                    replaces: hold.replaced_version(),
                    document: hold.document().clone(),
                };
                let taken = &mut self.submissions[submission];
                (taken.hold, taken.stage) = (Some(hold), SubmissionStage::Taking(submitted));
                self.ask_store(submission, request);
                Ok(())
            }
        }
    }

    /// Handles a completed or failed write of a choice or of a release.
    fn wrote(&mut self, submission: usize, reply: TurnDocumentReply) -> Result<(), InvariantViolation> {
        let running = &mut self.submissions[submission];
        let (Some(mut writing), Some(hold)) = (running.writing.take(), running.hold.as_mut()) else {
            return Ok(());
        };
        let done = match reply {
            TurnDocumentReply::Written(version) => {
                hold.record_write(writing.document, version);
                true
            }
            TurnDocumentReply::Stale(there) => {
                let there = there.as_ref().map(|(version, document)| (*version, document));
                if hold.resolve_conflict(there) == TurnWriteConflict::Retry
                    && !std::mem::replace(&mut writing.again, true)
                {
                    let request = TurnDocumentRequest::Write {
                        replaces: hold.replaced_version(),
                        document: writing.document.clone(),
                    };
                    running.writing = Some(writing);
                    self.ask_store(submission, request);
                    return Ok(());
                }
                false
            }
            TurnDocumentReply::Found(_) | TurnDocumentReply::Failed => false,
        };
        match writing.run {
            Some(run) if done => self.start_call(submission, run)?,
            Some(run) => self.handle_unstored_choice(submission, run)?,
            None => {
                if !done {
                    self.give_back_soon(submission, 1_000);
                }
                return self.turn_is_over(submission);
            }
        }
        self.work(submission)
    }

    fn give_back_soon(&mut self, submission: usize, millis: u64) {
        let TurnSubmission { node, generation, .. } = self.submissions[submission];
        self.later(
            millis,
            SimulationEvent::Turn(SimulatedTurnEvent::Release { node, generation, submission }),
        );
    }

    /// Gives a turn back. Repeated until it succeeds or is no longer needed.
    pub(crate) fn give_back(&mut self, submission: usize) {
        let turn = self.submissions[submission].turn;
        let Some(hold) = &self.submissions[submission].hold else { return };
        if hold.holder().until <= self.now {
            return;
        }
        if self.fault(self.weather.store_lost) {
            return self.give_back_soon(submission, 1_000);
        }
        let Some(hold) = &mut self.submissions[submission].hold else { return };
        for _ in 0..2 {
            let document = hold.released_document();
            match self.store.write_turn(turn, hold.replaced_version(), document) {
                Ok(_) => return,
                Err(there) => {
                    if hold.resolve_conflict(there.as_ref().map(|(version, document)| (*version, document)))
                        == TurnWriteConflict::Lost
                    {
                        return;
                    }
                }
            }
        }
    }
}
