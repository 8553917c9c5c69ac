//! The clients: they send, resend, lose patience, cancel and receive.

use std::time::Duration;

use steadfast_core::call::{CallEvent, OtherWaiters};

use crate::invariants::InvariantViolation;
use crate::system::{Dispatch, SimulatedConnection, SimulatedWorld};
use crate::transition::SimulationEvent;

/// Maximum number of tries, after which a client gives up unless it is a patient one.
const MOST_ATTEMPTS: u64 = 8;

/// The way in which a caller leaves its call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Departure {
    Cancels,
    Disconnects,
}

impl SimulatedWorld {
    pub(crate) fn send(&mut self, goal: usize) -> Result<(), InvariantViolation> {
        if self.model.goals[goal].over {
            return Ok(());
        }
        if self.has_equal_goal_open(goal) {
            let pause = self.rng.between(1_000, 5_000);
            self.later(pause, SimulationEvent::Send { goal });
            return Ok(());
        }
        let there = self.model.matching_effects(&self.model.goals[goal]);
        let target = &mut self.model.goals[goal];
        target.tries += 1;
        target.before.get_or_insert(there);
        let (client, answered_by) = (target.client, target.answered_by);
        // A client that got a response returns to the same process most of the time.
        let node = match answered_by {
            Some(node) if self.rng.chance(70) => node,
            Some(_) | None => self.any_node(),
        };
        let connection = self.line(client, node);
        let receipts = self.receipts.get(&connection).cloned().unwrap_or_default();
        let call = self.model.goals[goal].calls;
        self.dispatches.push(Dispatch::new((goal, call), connection, receipts, self.now));
        let dispatch = self.dispatches.len() - 1;
        let travel = self.rng.between(0, 5);
        self.later(travel, SimulationEvent::Arrive { dispatch });
        if self.faults_active() {
            let patience = self.rng.between(500, 90_000);
            self.later(patience, SimulationEvent::Impatient { dispatch });
            if let Some(soon) = self.draw_early_departure() {
                self.later(soon, SimulationEvent::Impatient { dispatch });
            }
        }
        if self.fault(self.weather.connection_breaks) {
            let after = self.rng.between(0, 10_000);
            self.later(after, SimulationEvent::Break { connection });
        }
        Ok(())
    }

    pub(crate) fn any_node(&mut self) -> usize {
        usize::try_from(self.rng.between(0, self.nodes.len() as u64 - 1)).unwrap_or(0)
    }

    /// Returns a connection of a client to a process, and opens it if need be. Some clients have two.
    pub(crate) fn line(&mut self, client: usize, node: usize) -> usize {
        let line = (client, node, self.draw_second_connection());
        let open = self.lines.get(&line).copied().filter(|line| self.connections[*line].open);
        let connection = open.unwrap_or_else(|| {
            self.connections.push(SimulatedConnection {
                node,
                generation: self.nodes[node].identity.started,
                open: true,
            });
            self.connections.len() - 1
        });
        self.lines.insert(line, connection);
        connection
    }

    /// Schedules another try of a client. Some do not try for ever. Obedient ones try less often when it takes long.
    pub(crate) fn send_again(&mut self, goal: usize) {
        let (target, obedient) = (&self.model.goals[goal], self.is_obedient(goal));
        let tries = u64::from(target.tries);
        if target.over || !obedient && tries >= MOST_ATTEMPTS {
            self.model.goals[goal].over = true;
            return;
        }
        let [short, long] = self.weather.pauses;
        let pause = self.rng.between(short, long) + 1_000 * tries.saturating_sub(MOST_ATTEMPTS);
        self.repeat(goal, pause);
    }

    /// Ends the caller's wait for this dispatch: it cancels, disconnects, or ignores the answer.
    pub(crate) fn impatient(&mut self, dispatch: usize) -> Result<(), InvariantViolation> {
        let Dispatch { goal, connection, answered, sent, taken, .. } = self.dispatches[dispatch];
        if answered || !self.connections[connection].open || !self.faults_active() {
            return Ok(());
        }
        // An answer that comes now is later than any that counts as delivered, unless the process has not even begun.
        let late_after = self.weather.policy.dedupe.late_after + Duration::from_secs(1);
        let is_late = self.now.since(sent) > late_after
            && taken.is_some_and(|taken| taken.since(sent) < Duration::from_millis(500))
            && self.cannot_begin(dispatch);
        if is_late && self.rng.chance(60) {
            self.log_event(format!(
                "wish {goal}: its client does not listen to dispatch {dispatch} any more"
            ));
            let given_up = &mut self.dispatches[dispatch];
            (given_up.answered, given_up.given_up) = (true, true);
            self.send_again(goal);
            return Ok(());
        }
        if self.fault(self.weather.cancels) {
            self.dispatches[dispatch].answered = true;
            if self.is_obedient(goal) {
                self.send_again(goal);
            } else {
                self.model.goals[goal].over = true;
            }
            let node = self.connections[connection].node;
            self.dispatches[dispatch].given_up = true;
            self.crosses_its_answer(node, dispatch);
            let number = self.nodes[node]
                .calls
                .iter()
                .find(|(_, running)| running.dispatch == dispatch)
                .map(|(number, _)| *number);
            self.log_event(format!("wish {goal} is cancelled"));
            return match number {
                Some(number) => self.leave(node, number, Departure::Cancels),
                None => Ok(()),
            };
        }
        self.break_connection(connection)
    }

    /// Handles a cancellation that was sent before the answer came: the client reads nothing that was written to this
    /// call.
    pub(crate) fn crosses_its_answer(&mut self, node: usize, dispatch: usize) {
        self.nodes[node].written.retain(|written| written.dispatch != dispatch);
    }

    /// Returns true if a call whose client no longer waits does nothing that other calls might do too: it has begun, or
    /// waits for a run without running itself. A call that waits in a sleeping process may wake long after its client
    /// was served elsewhere.
    fn cannot_begin(&self, dispatch: usize) -> bool {
        let calls = self.nodes.iter().flat_map(|home| home.calls.values());
        let mut own = calls.filter(|running| running.dispatch == dispatch);
        let wakeful = self.weather.freeze == 0 && self.weather.jump == 0;
        own.all(|running| running.sent || running.awaits.is_some() || running.follows.is_some() && wakeful)
    }

    pub(crate) fn break_connection(&mut self, connection: usize) -> Result<(), InvariantViolation> {
        if !std::mem::replace(&mut self.connections[connection].open, false) {
            return Ok(());
        }
        self.log_event(format!("connection {connection} breaks"));
        let waiting: Vec<_> = (0..self.dispatches.len())
            .filter(|&dispatch| {
                self.dispatches[dispatch].connection == connection && !self.dispatches[dispatch].answered
            })
            .collect();
        for dispatch in waiting {
            self.dispatches[dispatch].answered = true;
            let goal = self.dispatches[dispatch].goal;
            self.send_again(goal);
        }
        self.verifications_lost(connection);
        for crossed in std::mem::take(&mut self.crossing) {
            if self.dispatches[crossed].connection == connection {
                let goal = &self.model.goals[self.dispatches[crossed].goal];
                self.model.crossed.insert((goal.client, goal.arguments));
            } else {
                self.crossing.push(crossed);
            }
        }
        self.drop_turn(connection)?;
        let SimulatedConnection { node, generation, .. } = self.connections[connection];
        if !self.nodes[node].alive || self.nodes[node].identity.started != generation {
            return Ok(());
        }
        self.nodes[node].written.retain(|written| written.connection != connection);
        let numbers: Vec<_> = self.nodes[node]
            .calls
            .iter()
            .filter(|(_, running)| {
                self.dispatches[running.dispatch].connection == connection && !running.answered
            })
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            if let Some(running) = self.nodes[node].calls.get_mut(&number) {
                running.answered = true;
            }
            self.leave(node, number, Departure::Disconnects)?;
        }
        Ok(())
    }

    /// Makes a caller leave its call. A frozen process learns of it later. Turns are released where they are.
    pub(crate) fn leave(
        &mut self,
        node: usize,
        number: u64,
        departure: Departure,
    ) -> Result<(), InvariantViolation> {
        let home = &self.nodes[node];
        if let Some(running) = home.calls.get(&number)
            && home.frozen_until > self.now
            && running.in_turn.is_none()
        {
            let (until, generation, dispatch) = (home.frozen_until, home.identity.started, running.dispatch);
            self.at(until, SimulationEvent::Left { node, generation, number, dispatch, departure });
            return Ok(());
        }
        let others = self.others(node, number);
        if let (Departure::Cancels, Some(running)) = (departure, self.nodes[node].calls.get(&number)) {
            self.dispatches[running.dispatch].withdrawn = true;
        }
        let event = match departure {
            Departure::Cancels => CallEvent::Cancelled(others),
            Departure::Disconnects => CallEvent::Disconnected(others),
        };
        self.drive(node, number, event)
    }

    /// Returns whether other calls in the same process wait for the run of this call.
    pub(crate) fn others(&self, node: usize, number: u64) -> OtherWaiters {
        let record = self.nodes[node]
            .calls
            .get(&number)
            .and_then(|running| running.call.record())
            .map(|record| record.key);
        let waiting =
            record.is_some() && self.nodes[node].calls.values().any(|other| other.follows == record);
        if waiting { OtherWaiters::Waiting } else { OtherWaiters::None }
    }
}
