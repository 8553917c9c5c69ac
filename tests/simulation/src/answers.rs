//! The ends of calls: operators that answer, answers in transit, deferred writes, and crashes.

use steadfast_core::approval::{ApprovalDecision, Grantor, ParkedRequestId};
use steadfast_core::breaker::CircuitBreaker;
use steadfast_core::call::{
    ApprovalOutcome, CallEvent, CallResult, DeferredWrite, Provenance, ResultStage, WakeReason,
};
use steadfast_core::code::Code;
use steadfast_core::dedupe::{ClaimOwner, DedupeRecord, DedupeState};
use steadfast_core::guard::GuardLayer;
use steadfast_core::key::RecordKey;
use steadfast_core::retry::CallerLimits;

use crate::Defect;
use crate::invariants::{self, InvariantViolation};
use crate::model::CallIdentity;
use crate::system::{AnswerHandover, Dispatch, SentAnswer, SimulatedProcess, SimulatedWorld};
use crate::transition::{COMMAND_LIFETIME, SimulationEvent};
use crate::unknown_outcomes::ResponseKind;

impl SimulatedWorld {
    pub(crate) fn person(&mut self, node: usize, number: u64) -> Result<(), InvariantViolation> {
        let now = self.clock(node);
        let Some(running) = self.nodes[node].calls.get(&number) else { return Ok(()) };
        if running.call.state() != "AwaitingApproval" {
            return Ok(());
        }
        let request = running.call.request();
        let parked: Option<ParkedRequestId> = self
            .store
            .approvals
            .parked(now)
            .find(|(_, parked)| parked.arguments == request.digest && parked.session == request.session)
            .map(|(id, _)| id);
        if let Some(answer) = self.draw_other_approval(parked, now) {
            return self.drive(node, number, CallEvent::Answered(answer));
        }
        let approves = self.rng.chance(self.weather.approvals);
        // After the faults an operator is always available.
        let is_absent = self.fault(self.weather.absences);
        let answer = match parked {
            Some(parked) if approves => {
                match self.store.approvals.decide(parked, ApprovalDecision::Once, Grantor::Operator, now) {
                    Ok(steadfast_core::approval::DecisionEffect::Granted { grant, .. }) => {
                        self.store.grants(grant, self.now);
                        ApprovalOutcome::Granted(Some(grant))
                    }
                    Ok(steadfast_core::approval::DecisionEffect::Denied) | Err(_) => {
                        ApprovalOutcome::Unreachable
                    }
                }
            }
            Some(_) if !is_absent => ApprovalOutcome::Denied,
            Some(_) | None => ApprovalOutcome::Unreachable,
        };
        self.drive(node, number, CallEvent::Answered(answer))
    }

    pub(crate) fn finish(
        &mut self,
        node: usize,
        number: u64,
        result: CallResult,
        deferred: Vec<DeferredWrite>,
    ) -> Result<(), InvariantViolation> {
        let generation = self.nodes[node].identity.started;
        let Some(running) = self.nodes[node].calls.get(&number) else { return Ok(()) };
        let record = running.call.claimed_record().cloned();
        let key = record.as_ref().map(|record| record.key);
        if let (Some(Defect::RefusalStored), Some(record), Err(failure)) =
            (self.defect, &record, &result.outcome)
            && failure.code == Code::CircuitOpen
        {
            self.store
                .put_directly(DedupeRecord { state: DedupeState::Failed(failure.clone()), ..record.clone() });
        }
        self.approval_outlives_a_question(node, number, &result, &deferred)?;
        self.answer(node, number, result.clone())?;
        self.order += 1;
        let at = self.order;
        let unsaved = deferred.iter().filter_map(|write| match write {
            DeferredWrite::Save(save) => Some((save.claimed.owner.clone(), at)),
            DeferredWrite::Release(_) | DeferredWrite::Park(_) | DeferredWrite::GiveBack { .. } => None,
        });
        self.nodes[node].unsaved.extend(unsaved);
        self.nodes[node].calls.remove(&number);
        // Followers of a refused leader in the same process get that refusal; other calls never do.
        if let (Some(key), Err(failure)) = (key, &result.outcome)
            && result.is_refused_for_all()
        {
            let followers: Vec<_> = self.nodes[node]
                .calls
                .iter()
                .filter(|(_, other)| other.follows == Some(key))
                .map(|(number, _)| *number)
                .collect();
            for follower in followers {
                self.drive(
                    node,
                    follower,
                    CallEvent::Woke(WakeReason::LeaderRefused(Box::new(failure.clone()))),
                )?;
            }
        }
        let deferred: Vec<_> =
            deferred.into_iter().filter(|write| !matches!(write, DeferredWrite::Park(_))).collect();
        if !deferred.is_empty() {
            // Not before a command in transit has arrived or is void: a release must not overtake its claim.
            let due = self.now + COMMAND_LIFETIME;
            self.nodes[node].deferred.extend(deferred.into_iter().map(|write| (due, write)));
            self.later(1_000, SimulationEvent::Keep { node, generation });
        }
        Ok(())
    }

    /// Carries an approval over to the next call if the approved tool only asked for input.
    fn approval_outlives_a_question(
        &self,
        node: usize,
        number: u64,
        result: &CallResult,
        deferred: &[DeferredWrite],
    ) -> Result<(), InvariantViolation> {
        let Some(running) = self.nodes[node].calls.get(&number) else { return Ok(()) };
        let is_question =
            result.stage == ResultStage::InputRequired && result.attempts == 1 && running.granted;
        let Some(spent) = running.grant.filter(|_| is_question) else { return Ok(()) };
        let is_back =
            |write: &DeferredWrite| matches!(write, DeferredWrite::GiveBack { grant, .. } if *grant == spent);
        match deferred.iter().any(is_back) {
            true => Ok(()),
            false => Err((
                "grants once",
                format!("call {number} of process {node} was only asked something, and keeps {spent:?}"),
            )),
        }
    }

    pub(crate) fn answer(
        &mut self,
        node: usize,
        number: u64,
        mut result: CallResult,
    ) -> Result<(), InvariantViolation> {
        let generation = self.nodes[node].identity.started;
        let about = self.about(node, number, &result);
        let Some(running) = self.nodes[node].calls.get_mut(&number) else { return Ok(()) };
        if std::mem::replace(&mut running.answered, true) {
            return Ok(());
        }
        let dispatch = running.dispatch;
        let in_turn = running.in_turn.clone();
        self.check_answer(node, number, &result)?;
        self.check_unknown_response(node, number, &result, about.as_ref())?;
        let kind = ResponseKind::of(&result);
        let is_late = result.took > self.weather.policy.dedupe.late_after;
        let wrongly = match (self.defect, kind) {
            (Some(Defect::NotYetCountsAsDelivered), ResponseKind::PendingUnknown(_)) => true,
            (Some(Defect::LateCountsAsDelivered), ResponseKind::Result | ResponseKind::FinalUnknown) => {
                is_late
            }
            _ => false,
        };
        if wrongly && result.receipt.is_none() {
            result.receipt = self.current_receipt(about.as_ref());
        }
        self.order += 1;
        if let Some(receipt) = &result.receipt {
            let (owner, at) = (receipt.owner.clone(), self.order);
            self.nodes[node].handed.push(AnswerHandover { owner, at, dispatch, has_arrived: false });
        }
        if let Some(in_turn) = in_turn {
            self.dispatches[dispatch].answered = true;
            self.report_call_to_turn(node, in_turn, result);
            return Ok(());
        }
        let Dispatch { connection, withdrawn, .. } = self.dispatches[dispatch];
        if !self.connections[connection].open || withdrawn {
            return Ok(());
        }
        if let Some(receipt) = &result.receipt {
            if self.defect == Some(Defect::DeliveredBeforeWrite) {
                let now = self.now;
                self.store.delivered(receipt, now);
            }
            let written = SentAnswer { connection, dispatch, receipt: receipt.clone(), kind };
            self.nodes[node].written.push(written);
            self.later(
                5_000,
                SimulationEvent::StillOpen { node, generation, connection, receipt: receipt.clone() },
            );
        }
        if self.fault(self.weather.answer_breaks) {
            self.log_event(format!(
                "the answer to wish {} breaks on the wire",
                self.dispatches[dispatch].goal
            ));
            return self.break_connection(connection);
        }
        let travel = self.rng.between(0, 5);
        self.later(travel, SimulationEvent::Delivered { dispatch, result: Box::new(result), about });
        Ok(())
    }

    pub(crate) fn check_answer(
        &mut self,
        node: usize,
        number: u64,
        result: &CallResult,
    ) -> Result<(), InvariantViolation> {
        let Some(running) = self.nodes[node].calls.get(&number) else { return Ok(()) };
        self.check_claimed_history(running, result)?;
        let goal = self.model.goals[running.goal].clone();
        let receipts = &self.dispatches[running.dispatch].receipts;
        let limits = running.call.request().limits;
        let is_limited = limits != CallerLimits { attempts: limits.attempts, ..CallerLimits::default() };
        if result.outcome.as_ref().is_err_and(|failure| failure.code == Code::DeadlineExceeded) && !is_limited
        {
            return Err((
                "a caller's limit judges nobody",
                format!("call {number} has no deadline, and its response says that it was exceeded"),
            ));
        }
        if matches!(result.provenance, Provenance::Replayed { .. }) {
            if let Err(failure) = &result.outcome
                && invariants::is_refusal(failure.code)
            {
                return Err(("no refusal again", format!("call {number} got {} again", failure.code)));
            }
            if goal.kind == CallIdentity::Keyless
                && result.receipt.as_ref().is_some_and(|receipt| receipts.contains(receipt))
                && !result.was_followed()
            {
                return Err((
                    "two meant as two",
                    format!(
                        "wish {} came on the connection that had brought the answer it was given again",
                        running.goal
                    ),
                ));
            }
        }
        if let Ok(output) = &result.outcome
            && let Some(origin) = self.model.effect_of(output.content.as_str())
            && origin.equal.1 != goal.arguments
        {
            return Err((
                "right arguments",
                format!(
                    "wish {} for arguments {} got the answer to {}",
                    running.goal, goal.arguments, origin.equal.1
                ),
            ));
        }
        let looped = result.remarks.iter().any(|remark| remark.layer == GuardLayer::Loop)
            || matches!(&result.outcome, Err(failure) if failure.code == Code::LoopDetected);
        let failure_key = (node, self.nodes[node].identity.started, goal.client, goal.arguments);
        let failures = self.model.failures.get(&failure_key).copied().unwrap_or(0);
        if looped && failures < 2 {
            return Err((
                "guard counts calls",
                format!("client {} got a loop response after {failures} failures", goal.client),
            ));
        }
        Ok(())
    }

    /// Repeats the deferred writes.
    pub(crate) fn keep(&mut self, node: usize) -> Result<(), InvariantViolation> {
        let generation = self.nodes[node].identity.started;
        let now = self.now;
        for (due, write) in std::mem::take(&mut self.nodes[node].deferred) {
            if now < due || self.fault(self.weather.store_lost) {
                self.nodes[node].deferred.push((due, write));
                continue;
            }
            self.observe_marker(node);
            match write {
                DeferredWrite::Save(save) => drop(self.save(&save)),
                DeferredWrite::Release(release) => self.store.release(&release),
                DeferredWrite::GiveBack { grant, owner } => {
                    if self.sent.contains(&owner) && !self.questions.contains(&owner) {
                        return Err((
                            "grants once",
                            format!("{owner:?} gives back a grant that it has used"),
                        ));
                    }
                    if self.defect != Some(Defect::GrantNotGivenBack) {
                        self.store.give_back(grant, &owner);
                    }
                }
                DeferredWrite::Park(_) => {}
            }
        }
        if !self.nodes[node].deferred.is_empty() {
            self.later(1_000, SimulationEvent::Keep { node, generation });
        }
        Ok(())
    }

    /// Returns the run that an answer concerns, and its record.
    fn about(&self, node: usize, number: u64, result: &CallResult) -> Option<(RecordKey, ClaimOwner)> {
        let running = self.nodes[node].calls.get(&number)?;
        let named = result.receipt.as_ref().map(|receipt| (receipt.key, receipt.owner.clone()));
        let own = || running.call.claimed_record().map(|record| (record.key, record.owner.clone()));
        let found = || running.found.clone();
        named.or_else(|| if result.attempts > 0 { own().or_else(found) } else { found().or_else(own) })
    }

    /// Shuts a process down in order. Its waiters are answered, and its deferred writes are repeated once.
    pub(crate) fn stop(&mut self, node: usize) -> Result<(), InvariantViolation> {
        if !self.nodes[node].alive || self.nodes[node].frozen_until > self.now {
            return Ok(());
        }
        self.log_event(format!("process {node} stops"));
        let settling: Vec<u64> = self.nodes[node]
            .calls
            .iter()
            .filter(|(_, running)| running.call.is_settling())
            .map(|(number, _)| *number)
            .collect();
        for number in settling {
            let awaits_end =
                self.nodes[node].calls.get(&number).is_some_and(|running| running.call.awaits_end());
            let from = self.nodes[node].deferred.len();
            self.drive(node, number, CallEvent::DriverEnds)?;
            if awaits_end {
                self.end_is_not_made_up(node, from)?;
            }
        }
        // Of a call that has ended only deferred writes are in transit. Only a release could overtake its claim.
        let now = self.now;
        let saves =
            self.nodes[node].deferred.iter_mut().filter(|(_, write)| matches!(write, DeferredWrite::Save(_)));
        saves.for_each(|(due, _)| *due = now);
        self.keep(node)?;
        self.crash(node)
    }

    /// Restarts a process, which knows nothing of its earlier generation.
    pub(crate) fn restart(&mut self, node: usize, generation: u64) -> Result<(), InvariantViolation> {
        let emptied = self.model.emptyings.len();
        let (ahead, dependency) =
            (self.nodes[node].ahead, self.weather.dependency.then(CircuitBreaker::default));
        self.nodes[node] = SimulatedProcess {
            ahead,
            dependency,
            started_after: emptied,
            shared_after: emptied,
            ..self.born(node, generation)
        };
        self.observe_marker(node);
        self.adopt_shared(node);
        self.log_event(format!("process {node} is back"));
        self.restart_turns(node)
    }

    pub(crate) fn crash(&mut self, node: usize) -> Result<(), InvariantViolation> {
        if !std::mem::replace(&mut self.nodes[node].alive, false) {
            return Ok(());
        }
        self.log_event(format!("process {node} CRASHES"));
        self.disturbed = self.now;
        self.died.insert(self.nodes[node].identity.clone());
        self.limit_orphans(node);
        self.nodes[node].calls.clear();
        self.nodes[node].deferred.clear();
        for connection in 0..self.connections.len() {
            if self.connections[connection].node == node {
                self.break_connection(connection)?;
            }
        }
        let away = self.rng.between(10, 30_000);
        self.later(away, SimulationEvent::Restart { node });
        Ok(())
    }
}
