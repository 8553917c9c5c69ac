//! Verification reads, with which clients check whether a call with an unknown outcome took effect.
//!
//! When a read begins, the process remembers which runs its session knows to be settled: their final unknown-outcome
//! response was delivered. When the read succeeds, the session has verified those runs. A read that began earlier
//! proves nothing.

use steadfast_core::dedupe::ClaimOwner;
use steadfast_core::key::RecordKey;

use crate::Defect;
use crate::invariants::InvariantViolation;
use crate::model::CallIdentity;
use crate::system::{SimulatedConnection, SimulatedWorld};
use crate::transition::SimulationEvent;

/// One verification read.
#[derive(Clone, Debug)]
pub(crate) struct VerificationRead {
    client: usize,
    connection: usize,
    /// The goal whose client waits for the result, if any.
    goal: Option<usize>,
    /// The record of the run, if the same call is not run again before an operator has resolved it.
    unresolved: Option<RecordKey>,
    /// The runs that the process knew to be reported as settled when the read began.
    verifies: Vec<ClaimOwner>,
    /// The runs that were reported as settled, whatever the process knew.
    truly_verifies: Vec<ClaimOwner>,
    /// Number of such effects, once the read has counted them.
    found: Option<usize>,
    is_open: bool,
}

impl SimulatedWorld {
    /// Sends a verification read, on the given connection if it is still open.
    pub(crate) fn verify(
        &mut self,
        client: usize,
        connection: Option<usize>,
        goal: Option<usize>,
        unresolved: Option<RecordKey>,
        delay: u64,
    ) {
        let open = connection.filter(|connection| self.connections[*connection].open);
        let connection = open.unwrap_or_else(|| {
            let node = self.any_node();
            self.line(client, node)
        });
        self.reads.push(VerificationRead {
            client,
            connection,
            goal,
            unresolved,
            verifies: Vec::new(),
            truly_verifies: Vec::new(),
            found: None,
            is_open: true,
        });
        let read = self.reads.len() - 1;
        let travel = delay + self.rng.between(0, 5);
        self.later(travel, SimulationEvent::ReadArrives { read });
    }

    pub(crate) fn read_arrives(&mut self, read: usize) -> Result<(), InvariantViolation> {
        let VerificationRead { client, connection, is_open, .. } = self.reads[read];
        let SimulatedConnection { node, generation, open } = self.connections[connection];
        if !is_open {
            return Ok(());
        }
        if !open {
            self.verify_again(read);
            return Ok(());
        }
        let home = &self.nodes[node];
        if !home.alive || home.identity.started != generation {
            return self.break_connection(connection);
        }
        if home.frozen_until > self.now {
            let until = home.frozen_until;
            self.at(until, SimulationEvent::ReadArrives { read });
            return Ok(());
        }
        self.record_deliveries(node, connection, None);
        self.summary.reads += 1;
        self.reads[read].verifies = self.reported_as_settled(node, client);
        self.reads[read].truly_verifies = self.model.reported_as_settled(client);
        // It shows the state at some time while it runs.
        self.reads[read].found = self.rng.chance(50).then(|| self.count_effects(read));
        self.log_event(format!("process {node}: client {client} verifies, read {read}"));
        let takes = self.rng.between(1, 3_000);
        self.later(takes, SimulationEvent::ReadEnds { node, generation, read });
        Ok(())
    }

    /// Returns the runs whose final unknown-outcome response has reached the client, as far as this process knows.
    fn reported_as_settled(&self, node: usize, client: usize) -> Vec<ClaimOwner> {
        let settled = self.nodes[node].final_responses.iter().filter(|(_, recipient)| **recipient == client);
        settled.map(|(owner, _)| owner.clone()).collect()
    }

    fn count_effects(&self, read: usize) -> usize {
        self.reads[read].goal.map_or(0, |goal| self.model.matching_effects(&self.model.goals[goal]))
    }

    pub(crate) fn read_ends(&mut self, node: usize, read: usize) {
        let now = self.now;
        if self.faults_active() && self.rng.chance(20) {
            self.log_event(format!("process {node}: read {read} fails"));
            return self.verify_again(read);
        }
        let VerificationRead { client, connection, found, .. } = self.reads[read];
        let owners = match self.defect {
            Some(Defect::EarlierReadCounts) => self.reported_as_settled(node, client),
            Some(_) | None => self.reads[read].verifies.clone(),
        };
        for owner in owners {
            self.nodes[node].verified.insert(owner, client);
        }
        self.model.verified(&self.reads[read].truly_verifies, now);
        self.reads[read].found = found.or_else(|| Some(self.count_effects(read)));
        if !self.connections[connection].open {
            return self.verify_again(read);
        }
        let travel = self.rng.between(0, 5);
        self.later(travel, SimulationEvent::ReadAnswered { read });
    }

    pub(crate) fn read_answered(&mut self, read: usize) {
        let VerificationRead { connection, goal, unresolved, found, is_open, .. } = self.reads[read];
        if !is_open {
            return;
        }
        if !self.connections[connection].open {
            return self.verify_again(read);
        }
        self.reads[read].is_open = false;
        let Some(goal) = goal.filter(|goal| !self.model.goals[*goal].over) else { return };
        let found = found.unwrap_or(0);
        let before = match self.model.goals[goal].kind {
            CallIdentity::Explicit(_) => 0,
            CallIdentity::CallId | CallIdentity::Keyless | CallIdentity::Turn(_) => {
                self.model.goals[goal].before.unwrap_or(0)
            }
        };
        self.log_event(format!("wish {goal}: read {read} finds {found} effects, {before} of them are older"));
        self.has_verified(goal, found > before, unresolved);
    }

    /// Sends the read once more, if a client waits for its result.
    fn verify_again(&mut self, read: usize) {
        let VerificationRead { client, goal, unresolved, .. } = self.reads[read];
        if std::mem::replace(&mut self.reads[read].is_open, false) && goal.is_some() {
            let pause = self.rng.between(100, 2_000);
            self.verify(client, None, goal, unresolved, pause);
        }
    }

    /// Handles a broken connection: its reads are sent again.
    pub(crate) fn verifications_lost(&mut self, connection: usize) {
        for read in 0..self.reads.len() {
            if self.reads[read].is_open && self.reads[read].connection == connection {
                self.verify_again(read);
            }
        }
    }
}
