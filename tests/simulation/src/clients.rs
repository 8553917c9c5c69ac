//! What clients do: they send, resend, lose patience, withdraw and receive.

use steadfast_core::call::{CallResult, Event, Others, Recorded, Stage};
use steadfast_core::code::Code;
use steadfast_core::key::Key;

use crate::invariants::{self, Broken};
use crate::model::Kind;
use crate::system::{Connection, Dispatch, World, is_final};

use crate::transition::Happening;

impl World {
    pub(crate) fn send(&mut self, wish: usize) -> Result<(), Broken> {
        if self.model.wishes[wish].over {
            return Ok(());
        }
        self.model.wishes[wish].tries += 1;
        let client = self.model.wishes[wish].client;
        let node = usize::try_from(self.rng.between(0, self.nodes.len() as u64 - 1)).unwrap_or(0);
        let open = self.lines.get(&(client, node)).copied().filter(|line| self.connections[*line].open);
        let connection = open.unwrap_or_else(|| {
            self.connections.push(Connection { node, life: self.nodes[node].identity.started, open: true });
            self.connections.len() - 1
        });
        self.lines.insert((client, node), connection);
        let heard = self.heard.get(&connection).cloned().unwrap_or_default();
        self.dispatches.push(Dispatch { wish, connection, answered: false, heard });
        let dispatch = self.dispatches.len() - 1;
        let travel = self.rng.between(0, 5);
        self.later(travel, Happening::Arrive { dispatch });
        if self.stormy() {
            let patience = self.rng.between(500, 90_000);
            self.later(patience, Happening::Impatient { dispatch });
        }
        if self.fault(self.weather.connection_breaks) {
            let after = self.rng.between(0, 10_000);
            self.later(after, Happening::Break { connection });
        }
        Ok(())
    }

    pub(crate) fn send_again(&mut self, wish: usize) {
        let wished = &self.model.wishes[wish];
        if wished.over || wished.tries >= 8 {
            self.model.wishes[wish].over = true;
            return;
        }
        let [short, long] = self.weather.pauses;
        let pause = self.rng.between(short, long);
        self.later(pause, Happening::Send { wish });
    }

    /// The caller gives up on this dispatch: it cancels, or just goes away.
    pub(crate) fn impatient(&mut self, dispatch: usize) -> Result<(), Broken> {
        let Dispatch { wish, connection, answered, .. } = self.dispatches[dispatch];
        if answered || !self.connections[connection].open || !self.stormy() {
            return Ok(());
        }
        if self.fault(self.weather.cancels) {
            self.dispatches[dispatch].answered = true;
            self.model.wishes[wish].over = true;
            let node = self.connections[connection].node;
            let number = self.nodes[node]
                .calls
                .iter()
                .find(|(_, running)| running.dispatch == dispatch)
                .map(|(number, _)| *number);
            self.tell(format!("wish {wish} is cancelled"));
            return match number {
                Some(number) => {
                    let others = self.others(node, number);
                    self.drive(node, number, Event::Cancelled(others))
                }
                None => Ok(()),
            };
        }
        self.break_connection(connection)
    }

    pub(crate) fn break_connection(&mut self, connection: usize) -> Result<(), Broken> {
        if !std::mem::replace(&mut self.connections[connection].open, false) {
            return Ok(());
        }
        self.tell(format!("connection {connection} breaks"));
        let waiting: Vec<_> = (0..self.dispatches.len())
            .filter(|&dispatch| {
                self.dispatches[dispatch].connection == connection && !self.dispatches[dispatch].answered
            })
            .collect();
        for dispatch in waiting {
            self.dispatches[dispatch].answered = true;
            let wish = self.dispatches[dispatch].wish;
            self.send_again(wish);
        }
        self.turn_is_dropped(connection)?;
        let Connection { node, life, .. } = self.connections[connection];
        if !self.nodes[node].alive || self.nodes[node].identity.started != life {
            return Ok(());
        }
        self.nodes[node].written.retain(|(line, _, _)| *line != connection);
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
            let others = self.others(node, number);
            self.drive(node, number, Event::Disconnected(others))?;
        }
        Ok(())
    }

    /// Whether others in the same process wait for the run of this call.
    pub(crate) fn others(&self, node: usize, number: u64) -> Others {
        let record = self.nodes[node]
            .calls
            .get(&number)
            .and_then(|running| running.call.record())
            .map(|record| record.key);
        let waiting =
            record.is_some() && self.nodes[node].calls.values().any(|other| other.follows == record);
        if waiting { Others::Waiting } else { Others::None }
    }

    pub(crate) fn received(
        &mut self,
        dispatch: usize,
        result: &CallResult,
        about: Option<Key>,
    ) -> Result<(), Broken> {
        let Dispatch { wish, connection, answered, .. } = self.dispatches[dispatch];
        if !self.connections[connection].open {
            return Ok(());
        }
        if let Some(key) = result.receipt.as_ref().map(|receipt| receipt.key).or(about)
            && is_final(result)
        {
            let now = self.now;
            self.model.told.entry(key).or_insert(now);
        }
        if let Some(receipt) = &result.receipt {
            self.heard.entry(connection).or_default().push(receipt.clone());
        }
        // Who withdrew its call does not read the answer, but it has arrived.
        if answered {
            return Ok(());
        }
        self.dispatches[dispatch].answered = true;
        let again = match &result.ended {
            // What was asked for comes with the call that is sent again.
            Ok(_) if result.stage == Stage::InputRequired => true,
            Ok(output) => {
                if let (Kind::Explicit(key), Recorded::Yes) = (self.model.wishes[wish].kind, result.recorded)
                {
                    let content = output.content.as_str().to_owned();
                    invariants::recorded(&mut self.model, key, &content)?;
                }
                false
            }
            Err(failure) => matches!(
                failure.code,
                Code::InFlight | Code::CircuitOpen | Code::StoreUnavailable | Code::Overloaded
            ),
        };
        if again {
            self.send_again(wish);
        } else {
            self.model.wishes[wish].over = true;
        }
        Ok(())
    }
}
