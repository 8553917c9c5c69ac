//! The hold on a turn: its document, on the way to the store and back.

use std::time::Duration;

use steadfast_core::dedupe::{LeaseSight, Process};
use steadfast_core::turn::{Hold, Holder, Kept, Stale, Submitted, Take};

use crate::Defect;
use crate::invariants::Broken;
use crate::system::World;
use crate::transition::Happening;
use crate::turns::{Stage, Submission, Told, TurnHappening};
use crate::weather::Leases;

/// A request to the store.
#[derive(Clone, Debug)]
pub(crate) enum Document {
    Read,
    Write { replaces: Option<u64>, kept: Kept },
}

/// The store's reply.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Found(Option<(u64, Kept)>),
    Written(u64),
    Stale(Option<(u64, Kept)>),
    Failed,
}

/// Extra time for which a turn is held, because clocks do not agree to the millisecond.
const SLACK: Duration = Duration::from_secs(1);

impl World {
    pub(super) fn ask_store(&mut self, submission: usize, what: Document) {
        let Submission { node, life, .. } = self.submissions[submission];
        self.submissions[submission].command += 1;
        let command = self.submissions[submission].command;
        if self.fault(self.weather.store_lost) {
            let patience = self.rng.between(10, 500);
            let reply = Box::new(Reply::Failed);
            let lost = TurnHappening::Stored { node, life, submission, command, reply };
            return self.later(patience, Happening::Turn(lost));
        }
        let unanswered = self.fault(self.weather.store_unanswered);
        let travel = self.rng.between(0, 3);
        let asked = TurnHappening::Asked { submission, command, what: Box::new(what), unanswered };
        self.later(travel, Happening::Turn(asked));
    }

    pub(crate) fn store_is_asked(
        &mut self,
        submission: usize,
        command: u64,
        what: Document,
        unanswered: bool,
    ) {
        let Submission { turn, node, life, .. } = self.submissions[submission];
        let reply = match what {
            Document::Read => Reply::Found(self.store.turns.get(&turn).cloned()),
            Document::Write { replaces, kept } => match self.store.write_turn(turn, replaces, kept) {
                Ok(version) => Reply::Written(version),
                Err(there) => Reply::Stale(there),
            },
        };
        let reply = Box::new(if unanswered { Reply::Failed } else { reply });
        let delay = self.rng.between(0, 3);
        let stored = TurnHappening::Stored { node, life, submission, command, reply };
        self.later(delay, Happening::Turn(stored));
    }

    pub(crate) fn turn_stored(
        &mut self,
        submission: usize,
        command: u64,
        reply: Reply,
    ) -> Result<(), Broken> {
        if self.submissions[submission].command != command {
            return Ok(());
        }
        match (std::mem::replace(&mut self.submissions[submission].stage, Stage::Over), reply) {
            (Stage::Reading, Reply::Found(found)) => self.take(submission, found),
            (Stage::Taking(_), Reply::Stale(there)) => self.take(submission, there),
            (Stage::Taking(submitted), Reply::Written(version)) => {
                if let Some(hold) = &mut self.submissions[submission].hold {
                    hold.wrote(hold.kept().clone(), version);
                }
                self.begin_turn(submission, submitted)
            }
            (stage @ (Stage::Reading | Stage::Taking(_)), _) => {
                // The process may hold the turn without knowing, and no process runs it.
                if let Stage::Taking(_) = stage {
                    self.give_back_soon(submission, 0);
                }
                self.answer_turn(submission, Told::Refused)
            }
            (stage @ (Stage::Running | Stage::Releasing(_)), reply) => {
                self.submissions[submission].stage = stage;
                self.wrote(submission, reply)
            }
            (Stage::Sent | Stage::Over, _) => Ok(()),
        }
    }

    fn take(&mut self, submission: usize, found: Option<(u64, Kept)>) -> Result<(), Broken> {
        let Submission { node, ref plan, .. } = self.submissions[submission];
        let lasts = match self.defect {
            Some(Defect::HoldShorterThanTurn) => Duration::from_secs(2),
            Some(_) | None => plan.deadline() + SLACK,
        };
        let (process, number) = (self.nodes[node].identity.clone(), submission as u64);
        let me = Holder { process, number, until: self.now + lasts };
        let known = |process: &Process| {
            let lives = self.nodes.iter().any(|node| node.alive && node.identity == *process);
            match (self.weather.leases, self.defect) {
                (_, Some(Defect::HoldNotChecked)) => LeaseSight::Gone,
                (Leases::Time, _) => LeaseSight::Time,
                (Leases::Process, _) if lives => LeaseSight::Alive,
                (Leases::Process, _) => LeaseSight::Gone,
            }
        };
        match Hold::take(found, me, known, self.now) {
            Take::Busy(_) => self.answer_turn(submission, Told::Refused),
            Take::Ours(hold, submitted) => {
                let submitted = match self.defect {
                    Some(Defect::BreakerBeforeRecord) => Submitted::First,
                    Some(_) | None => submitted,
                };
                let what = Document::Write { replaces: hold.replaces(), kept: hold.kept().clone() };
                let taken = &mut self.submissions[submission];
                (taken.hold, taken.stage) = (Some(hold), Stage::Taking(submitted));
                self.ask_store(submission, what);
                Ok(())
            }
        }
    }

    /// Handles a completed or failed write of a choice or of a release.
    fn wrote(&mut self, submission: usize, reply: Reply) -> Result<(), Broken> {
        let running = &mut self.submissions[submission];
        let (Some(mut writing), Some(hold)) = (running.writing.take(), running.hold.as_mut()) else {
            return Ok(());
        };
        let done = match reply {
            Reply::Written(version) => {
                hold.wrote(writing.kept, version);
                true
            }
            Reply::Stale(there) => {
                let there = there.as_ref().map(|(version, kept)| (*version, kept));
                if hold.stale(there) == Stale::Again && !std::mem::replace(&mut writing.again, true) {
                    let what = Document::Write { replaces: hold.replaces(), kept: writing.kept.clone() };
                    running.writing = Some(writing);
                    self.ask_store(submission, what);
                    return Ok(());
                }
                false
            }
            Reply::Found(_) | Reply::Failed => false,
        };
        match writing.run {
            Some(run) if done => self.start_call(submission, run)?,
            Some(run) => self.unkept(submission, run)?,
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
        let Submission { node, life, .. } = self.submissions[submission];
        self.later(millis, Happening::Turn(TurnHappening::GivesBack { node, life, submission }));
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
            let kept = hold.giving_back();
            match self.store.write_turn(turn, hold.replaces(), kept) {
                Ok(_) => return,
                Err(there) => {
                    if hold.stale(there.as_ref().map(|(version, kept)| (*version, kept))) == Stale::Lost {
                        return;
                    }
                }
            }
        }
    }
}
