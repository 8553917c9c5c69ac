//! The reactions of clients to a response.
//!
//! Obedient clients follow the response. After a pending unknown-outcome response they wait for the announced time and
//! call again. After a final one they verify, and call again only if the effect is not there. They make equal calls one
//! after the other, because a read could not tell their effects apart. Careful clients do the same, and verify before
//! they repeat a call for any reason.
//!
//! Naive clients repeat a call at will, and verify or not.

use steadfast_core::call::{CallResult, RecordStatus, ResultStage};
use steadfast_core::code::Code;
use steadfast_core::dedupe::ClaimOwner;
use steadfast_core::key::RecordKey;

use crate::invariants::{self, InvariantViolation};
use crate::model::{CallIdentity, GoalStatus};
use crate::scenario::ClientBehavior;
use crate::system::{Dispatch, SimulatedWorld};
use crate::transition::SimulationEvent;
use crate::unknown_outcomes::ResponseKind;

impl SimulatedWorld {
    pub(crate) fn is_obedient(&self, goal: usize) -> bool {
        self.weather.agents[self.model.goals[goal].client] != ClientBehavior::Naive
    }

    fn is_careful(&self, goal: usize) -> bool {
        self.weather.agents[self.model.goals[goal].client] == ClientBehavior::Careful
    }

    /// Schedules another call of a client after this many milliseconds. A careful client verifies first. Turns are
    /// resubmitted whole.
    pub(crate) fn repeat(&mut self, goal: usize, pause: u64) {
        let target = &self.model.goals[goal];
        if self.is_careful(goal) && !matches!(target.kind, CallIdentity::Turn(_)) {
            return self.verify(target.client, None, Some(goal), None, pause);
        }
        self.later(pause, SimulationEvent::Send { goal });
    }

    /// Draws an operator that resolves the outcome without waiting.
    fn may_be_resolved(&mut self, about: Option<&(RecordKey, ClaimOwner)>) {
        if let Some((key, _)) = about
            && self.fault(self.weather.resolved)
        {
            let soon = self.rng.between(1, 10_000);
            self.later(soon, SimulationEvent::Resolve { key: *key, tries: 0 });
        }
    }

    /// Returns true if an obedient client has to wait with a goal because an equal one is still open.
    pub(crate) fn has_equal_goal_open(&self, goal: usize) -> bool {
        let target = &self.model.goals[goal];
        if !self.is_obedient(goal) || !target.is_indexed() || target.before.is_some() {
            return false;
        }
        self.model.goals.iter().any(|other| {
            other.client == target.client
                && other.arguments == target.arguments
                && other.is_indexed()
                && other.before.is_some()
                && !other.over
        })
    }

    pub(crate) fn received(
        &mut self,
        dispatch: usize,
        result: &CallResult,
        about: Option<(RecordKey, ClaimOwner)>,
    ) -> Result<(), InvariantViolation> {
        let Dispatch { goal, connection, answered, given_up, .. } = self.dispatches[dispatch];
        let now = self.now;
        let client = self.model.goals[goal].client;
        if !self.connections[connection].open || given_up {
            return Ok(());
        }
        self.crossing.retain(|crossed| *crossed != dispatch);
        let kind = ResponseKind::of(result);
        if let Some((_, owner)) = &about {
            match kind {
                ResponseKind::Result => drop(self.model.delivered_at.entry(owner.clone()).or_insert(now)),
                ResponseKind::FinalUnknown => self.model.record_final_response(owner, client, now),
                ResponseKind::PendingUnknown(_) | ResponseKind::StillRunning | ResponseKind::Refusal => {}
            }
        }
        if let Some(receipt) = &result.receipt {
            self.receipts.entry(connection).or_default().push(receipt.clone());
        }
        if answered {
            return Ok(());
        }
        self.dispatches[dispatch].answered = true;
        if let (Ok(output), CallIdentity::Explicit(key), RecordStatus::Yes) =
            (&result.outcome, self.model.goals[goal].kind, result.recorded)
            && result.stage == ResultStage::Final
        {
            let content = output.content.as_str().to_owned();
            invariants::recorded(&mut self.model, key, &content, now)?;
        }
        self.model.goals[goal].answered_by = Some(self.connections[connection].node);
        if self.is_obedient(goal) {
            self.obey(dispatch, result, kind, about)
        } else {
            self.react_naively(dispatch, result, kind, about.as_ref());
            Ok(())
        }
    }

    fn obey(
        &mut self,
        dispatch: usize,
        result: &CallResult,
        kind: ResponseKind,
        about: Option<(RecordKey, ClaimOwner)>,
    ) -> Result<(), InvariantViolation> {
        let Dispatch { goal, connection, .. } = self.dispatches[dispatch];
        let client = self.model.goals[goal].client;
        match (kind, &result.outcome) {
            (ResponseKind::Result, Ok(output)) => {
                let content = output.content.as_str();
                let Some(effect) = self.model.effect_of(content) else {
                    return Err(("right arguments", format!("wish {goal} was answered with {content}")));
                };
                self.finish_or_repeat(goal, effect.goal);
            }
            (ResponseKind::FinalUnknown, Err(failure)) => {
                let unresolved = about.map(|(key, _)| key).filter(|_| failure.retry_after.is_none());
                let delay = self.rng.between(1, 2_000);
                self.model.goals[goal].calls += 1;
                self.verify(client, Some(connection), Some(goal), unresolved, delay);
            }
            (ResponseKind::PendingUnknown(patience), _) => {
                self.model.goals[goal].calls += 1;
                let millis = u64::try_from(patience.as_millis()).unwrap_or(0);
                let more = self.rng.between(0, 200);
                self.repeat(goal, millis + more);
                self.may_be_resolved(about.as_ref());
            }
            (_, Err(failure)) => match failure.code {
                Code::ApprovalDenied | Code::IdempotencyConflict => {
                    self.model.goals[goal].fate = GoalStatus::Refused;
                    self.model.goals[goal].over = true;
                }
                // The call ran, and the result is lost.
                Code::ResultNotKept | Code::ResultTooLarge => {
                    let owner = about.map(|(_, owner)| owner);
                    let effect = self.model.effects.iter().find(|effect| effect.owner == owner);
                    let made_for = effect.map_or(goal, |effect| effect.goal);
                    self.finish_or_repeat(goal, made_for);
                }
                // The client does something else for a while.
                Code::LoopDetected | Code::ToolErrorLimit => {
                    self.model.goals[goal].calls += 1;
                    let pause = self.rng.between(100_000, 400_000);
                    self.repeat(goal, pause);
                }
                Code::InvalidEnvelope
                | Code::UnsupportedVersion
                | Code::InvalidArguments
                | Code::UnknownTool
                | Code::InFlight
                | Code::CircuitOpen
                | Code::Overloaded
                | Code::RetryExhausted
                | Code::Timeout
                | Code::DeadlineExceeded
                | Code::ApprovalRequired
                | Code::ToolBlocked
                | Code::Cancelled
                | Code::StuckCall
                | Code::OutcomeUnknown
                | Code::DependencyFailed
                | Code::StoreUnavailable
                | Code::UpstreamUnavailable
                | Code::ToolError => {
                    self.model.goals[goal].calls += u32::from(kind != ResponseKind::StillRunning);
                    self.send_again(goal);
                }
            },
            (_, Ok(_)) => self.send_again(goal),
        }
        Ok(())
    }

    /// Handles a result that has arrived. If a replay says that the earlier call was made for another goal, the client
    /// calls once more.
    fn finish_or_repeat(&mut self, goal: usize, made_for: usize) {
        let target = &mut self.model.goals[goal];
        if target.is_indexed() && made_for != goal {
            target.calls += 1;
            self.send_again(goal);
        } else {
            self.is_done(goal);
        }
    }

    fn is_done(&mut self, goal: usize) {
        self.model.goals[goal].fate = GoalStatus::Done;
        self.model.goals[goal].over = true;
    }

    /// Handles the verification of an effect by an obedient client. If the call is not run again by itself, the client
    /// asks an operator to resolve it.
    pub(crate) fn has_verified(&mut self, goal: usize, is_there: bool, unresolved: Option<RecordKey>) {
        if is_there {
            return self.is_done(goal);
        }
        let pause = match unresolved {
            Some(key) => {
                let think_time = self.rng.between(1_000, 20_000);
                self.later(think_time, SimulationEvent::Resolve { key, tries: 5 });
                think_time + 1_000
            }
            None => self.rng.between(1, 3_000),
        };
        self.later(pause, SimulationEvent::Send { goal });
    }

    fn react_naively(
        &mut self,
        dispatch: usize,
        result: &CallResult,
        kind: ResponseKind,
        about: Option<&(RecordKey, ClaimOwner)>,
    ) {
        let Dispatch { goal, connection, .. } = self.dispatches[dispatch];
        let client = self.model.goals[goal].client;
        let again = match kind {
            ResponseKind::Result => false,
            ResponseKind::FinalUnknown | ResponseKind::PendingUnknown(_) => {
                if self.rng.chance(50) {
                    let delay = self.rng.between(1, 8_000);
                    self.verify(client, Some(connection), None, None, delay);
                }
                self.may_be_resolved(about);
                self.model.goals[goal].calls += 1;
                self.rng.chance(85)
            }
            ResponseKind::StillRunning => true,
            ResponseKind::Refusal => match &result.outcome {
                Ok(_) => true,
                Err(failure) => {
                    matches!(failure.code, Code::CircuitOpen | Code::StoreUnavailable | Code::Overloaded)
                }
            },
        };
        if again {
            self.send_again(goal);
        } else {
            self.model.goals[goal].over = true;
        }
    }
}
