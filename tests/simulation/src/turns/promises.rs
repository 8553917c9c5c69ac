//! The invariants of turns. Their names are those of the table in `invariants`.

use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::call::CallResult;
use steadfast_core::code::Code;
use steadfast_core::id::ToolCallId;
use steadfast_turn::{TurnCallOutcome, TurnEndReason, TurnEvent, TurnResult};

use crate::invariants::{InvariantViolation, clock};
use crate::model::{CallIdentity, Effect, GroundTruth, TurnCall, UniqueEffect};
use crate::system::SimulatedWorld;
use crate::turns::{SubmissionStage, TurnSubmission};

/// Time that a turn may take to end after its deadline: the writing of a choice and the release, each with the full
/// timeout of the store.
const GRACE: Duration = Duration::from_secs(3);

/// Checks that over all submissions of a turn no two candidates of one call have an effect.
pub(crate) fn done_once(model: &GroundTruth, made: TurnCall, new: &Effect) -> Result<(), InvariantViolation> {
    if model.unprotected_turns.contains(&(made.turn, made.call)) {
        return Ok(());
    }
    for other in &model.effects {
        let Some(UniqueEffect::Turn(before)) = other.intent else { continue };
        let same = (before.turn, before.call) == (made.turn, made.call) && before.candidate != made.candidate;
        let since = other.submitted.into_iter().chain(new.submitted).min();
        if same && !since.is_some_and(|since| emptied_since(model, since)) {
            return Err((
                "done once in a turn",
                format!("{before:?} had its effect at {}, and then {made:?}", clock(other.at)),
            ));
        }
    }
    Ok(())
}

/// Returns true if the store lost everything since then, and with it the holder of a turn and its choices.
fn emptied_since(model: &GroundTruth, since: Timestamp) -> bool {
    model.emptyings.iter().any(|emptying| emptying.at >= since)
}

impl SimulatedWorld {
    /// Checked when a turn was taken: no other live process runs it with time left.
    pub(super) fn one_submission(&self, submission: usize) -> Result<(), InvariantViolation> {
        let new = &self.submissions[submission];
        if self.now >= new.deadline {
            return Ok(());
        }
        match self.running(new.turn).find(|(other, _)| *other != submission) {
            Some((other, running)) if !emptied_since(&self.model, running.arrived.min(new.arrived)) => Err((
                "one submission at a time",
                format!("submissions {other} and {submission} run turn {} at once", new.turn),
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the submissions of a turn that run in live processes and have time left.
    fn running(&self, turn: usize) -> impl Iterator<Item = (usize, &TurnSubmission)> {
        self.submissions.iter().enumerate().filter(move |(_, submission)| {
            let home = &self.nodes[submission.node];
            submission.turn == turn
                && matches!(submission.stage, SubmissionStage::Running)
                && home.alive
                && home.identity.started == submission.generation
                && self.now < submission.deadline
        })
    }

    /// Checked when a turn begins a call.
    pub(super) fn call_may_begin(
        &mut self,
        submission: usize,
        id: &ToolCallId,
    ) -> Result<(), InvariantViolation> {
        let beginning = &mut self.submissions[submission];
        let goal = &self.model.turns[beginning.turn];
        if !self.connections[beginning.line].open {
            return Err((
                "not unattended",
                format!("submission {submission} begins {id}, and no client waits for it"),
            ));
        }
        let planned = beginning.plan.calls().iter().find(|call| call.id == *id);
        for needed in planned.into_iter().flat_map(|call| &call.depends_on) {
            if needed.default.is_none() && !beginning.truth.succeeded.contains(&needed.on) {
                return Err((
                    "no dependant without",
                    format!("submission {submission} begins {id}, and {} has not succeeded", needed.on),
                ));
            }
        }
        beginning.truth.sent.insert(id.clone());
        beginning.truth.open.insert(id.clone());
        let open = beginning.truth.open.len();
        if open > goal.parallelism {
            return Err((
                "parallelism",
                format!(
                    "submission {submission} has {open} calls under way, and may have {}",
                    goal.parallelism
                ),
            ));
        }
        Ok(())
    }

    /// Checked when an attempt of a call of a turn starts.
    pub(crate) fn turn_may_start(
        &self,
        submission: usize,
        kind: CallIdentity,
        claimed: Timestamp,
        first: bool,
    ) -> Result<(), InvariantViolation> {
        let CallIdentity::Turn(TurnCall { turn, call, .. }) = kind else { return Ok(()) };
        let deadline = self.submissions[submission].deadline;
        if self.now >= deadline {
            return Err((
                "nothing after the deadline",
                format!(
                    "an attempt of submission {submission} starts, whose time was over at {}",
                    clock(deadline)
                ),
            ));
        }
        if first && self.running(turn).next().is_none() {
            return Err((
                "not unattended",
                format!("call {call} of turn {turn} starts, and no process runs the turn"),
            ));
        }
        let unprotected = self.model.unprotected_turns.contains(&(turn, call));
        match self.model.succeeded.get(&(turn, call)) {
            Some((at, since)) if claimed > *at && !unprotected && !emptied_since(&self.model, *since) => {
                Err((
                    "done once in a turn",
                    format!(
                        "call {call} of turn {turn} was recorded as done at {} and starts again",
                        clock(*at)
                    ),
                ))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Checked when a turn ends.
    pub(super) fn one_true_state(
        &self,
        submission: usize,
        result: &TurnResult,
    ) -> Result<(), InvariantViolation> {
        let TurnSubmission { plan, truth, inbox, .. } = &self.submissions[submission];
        // The turn may end before it receives the end of a call.
        let is_unread = |id: &ToolCallId| {
            inbox.iter().any(|event| matches!(event, TurnEvent::Ended { id: ended_id, .. } if ended_id == id))
        };
        let planned = plan.calls().iter().map(|call| &call.id);
        if !planned.eq(result.calls.iter().map(|call| &call.id)) {
            return Err((
                "one true state",
                format!("submission {submission} tells of other calls than planned"),
            ));
        }
        let state = &self.submissions[submission];
        let is_calm =
            self.disturbed < state.arrived && self.now.since(state.last_event) > Duration::from_secs(10);
        if result.ended_by == TurnEndReason::Deadline && is_calm && truth.open.is_empty() && inbox.is_empty()
        {
            return Err((
                "turns end",
                format!(
                    "submission {submission} waited for its deadline, and nothing of it ran any more: {truth:?}"
                ),
            ));
        }
        for call in &result.calls {
            let id = &call.id;
            let is_true = match call.outcome {
                TurnCallOutcome::Succeeded => truth.succeeded.contains(id),
                TurnCallOutcome::Failed => !truth.succeeded.contains(id) && !truth.open.contains(id),
                TurnCallOutcome::Skipped => !truth.sent.contains(id),
                TurnCallOutcome::Cancelled | TurnCallOutcome::LeftRunning => {
                    truth.open.contains(id) || is_unread(id)
                }
            };
            if !is_true {
                return Err((
                    "one true state",
                    format!("submission {submission} tells of {id} as {:?}: {truth:?}", call.outcome),
                ));
            }
        }
        Ok(())
    }

    /// Checked when a turn is answered. A process that was frozen, or whose clock jumped, has that time on top.
    pub(super) fn turn_ends_in_time(&self, submission: usize) -> Result<(), InvariantViolation> {
        let state = &self.submissions[submission];
        let jumps = self.jumps.iter().filter(|(at, _)| *at >= state.arrived).map(|(_, span)| *span).sum();
        let due = state.deadline.max(self.nodes[state.node].frozen_until) + GRACE + jumps;
        if self.now > due {
            return Err((
                "turns end",
                format!("submission {submission} should have ended at {}", clock(state.deadline)),
            ));
        }
        Ok(())
    }

    pub(crate) fn turns_at_rest(&self) -> Result<(), InvariantViolation> {
        for (number, submission) in self.submissions.iter().enumerate() {
            let home = &self.nodes[submission.node];
            let lives = home.alive && home.identity.started == submission.generation;
            if lives && !matches!(submission.stage, SubmissionStage::Over) {
                return Err(("turns end", format!("submission {number} is still {:?}", submission.stage)));
            }
        }
        Ok(())
    }

    /// Checked when a call of a turn ends.
    pub(super) fn own_key(&self, made: TurnCall, result: &CallResult) -> Result<(), InvariantViolation> {
        let conflicts = matches!(&result.outcome, Err(failure) if failure.code == Code::IdempotencyConflict);
        let once = self.model.made.get(&made).is_none_or(|calls| calls.len() < 2);
        if conflicts && once {
            return Err(("own key", format!("{made:?} got a key conflict")));
        }
        Ok(())
    }
}
