//! Runs with an unknown outcome: the responses about them, and the promises that depend on these.

use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::call::{CallResult, RecordStatus, ResultStage};
use steadfast_core::code::Code;
use steadfast_core::dedupe::{
    CallFailure, Claim, ClaimOwner, ClaimRole, DedupeRecord, DedupeRules, DedupeState, DeliveryReceipt,
    Resolution, ResolveVerdict,
};
use steadfast_core::key::RecordKey;

use crate::invariants::{self, InvariantViolation, clock};
use crate::model::{Effect, GroundTruth};
use crate::system::{SimulatedWorld, lease_sight};
use crate::transition::SimulationEvent;

/// The meaning of an answer for the client that receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseKind {
    /// The result of the run.
    Result,
    /// The outcome is unknown, and the run is settled.
    FinalUnknown,
    /// The outcome is unknown, and the run is settled after at most this time.
    PendingUnknown(Duration),
    /// The run is still in flight.
    StillRunning,
    /// A refusal, or a question that comes before the run.
    Refusal,
}

impl ResponseKind {
    pub(crate) fn of(result: &CallResult) -> Self {
        match (&result.outcome, result.unknown) {
            (Ok(_), _) if result.stage == ResultStage::Final => Self::Result,
            (Ok(_), _) => Self::Refusal,
            (Err(_), Some(info)) if info.is_final => Self::FinalUnknown,
            (Err(failure), Some(_)) => match failure.retry_after {
                Some(patience) => Self::PendingUnknown(patience),
                // The caller's time is up, and the run goes on.
                None => Self::StillRunning,
            },
            (Err(CallFailure { code: Code::InFlight, .. }), None) => Self::StillRunning,
            (Err(failure), None) if invariants::is_refusal(failure.code) => Self::Refusal,
            (Err(_), None) => Self::Result,
        }
    }
}

/// The responses about a run with an unknown outcome, and their consequences.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnknownRun {
    /// The first final response, whether or not it arrived.
    final_given: Option<Timestamp>,
    /// The first final response that reached a client, and which client.
    final_received: Option<(Timestamp, usize)>,
    /// The first success of a verification read that began after that.
    verified: Option<Timestamp>,
    /// Time at which a client or operator first acted on it: an equal call was claimed, or the run was resolved as not
    /// run.
    relied_on: Option<Timestamp>,
}

impl GroundTruth {
    /// Records that a final unknown-outcome response has reached its client.
    pub(crate) fn record_final_response(&mut self, owner: &ClaimOwner, client: usize, now: Timestamp) {
        self.unknown_runs.entry(owner.clone()).or_default().final_received.get_or_insert((now, client));
    }

    /// Returns the runs with an unknown outcome that this client knows to be settled.
    pub(crate) fn reported_as_settled(&self, client: usize) -> Vec<ClaimOwner> {
        let knows_final =
            |run: &UnknownRun| run.final_received.is_some_and(|(_, recipient)| recipient == client);
        self.unknown_runs.iter().filter(|(_, run)| knows_final(run)).map(|(owner, _)| owner.clone()).collect()
    }

    /// Records that a verification read of these runs has succeeded.
    pub(crate) fn verified(&mut self, owners: &[ClaimOwner], now: Timestamp) {
        for owner in owners {
            self.unknown_runs.entry(owner.clone()).or_default().verified.get_or_insert(now);
        }
    }

    /// Returns true if an equal call may run although the outcome of this run is unknown.
    pub(crate) fn may_run_again(&self, owner: &ClaimOwner, after_telling: Duration, now: Timestamp) -> bool {
        let Some(run) = self.unknown_runs.get(owner) else { return false };
        let verified = run.verified.is_some_and(|at| at <= now);
        run.final_received.is_some_and(|(at, _)| at <= now && (verified || now.since(at) >= after_telling))
    }

    fn rely_on(&mut self, owner: &ClaimOwner, now: Timestamp) {
        self.unknown_runs.entry(owner.clone()).or_default().relied_on.get_or_insert(now);
    }

    fn is_relied_on(&self, owner: &ClaimOwner) -> bool {
        self.unknown_runs.get(owner).is_some_and(|run| run.relied_on.is_some())
    }
}

impl SimulatedWorld {
    /// Checked when a claim is granted. `found` are the records that the claim could find before.
    pub(crate) fn check_run_again(
        &mut self,
        claim: &Claim,
        found: &[DedupeRecord],
    ) -> Option<InvariantViolation> {
        let now = self.now;
        if found.iter().any(|record| record.owner == claim.owner && record.is_open()) {
            return None;
        }
        let is_unknown = |record: &&DedupeRecord| {
            matches!(record.state, DedupeState::Unknown(_)) && !record.is_expired(now)
        };
        for record in found.iter().filter(is_unknown) {
            // Only equal calls run again by themselves, and only those that did not wait for the run.
            let is_equal = claim.role == ClaimRole::Fresh && record.key != claim.address.own();
            let after_telling = claim.rules.after_telling;
            if !is_equal || !self.model.may_run_again(&record.owner, after_telling, now) {
                let run = self.model.unknown_runs.get(&record.owner);
                return Some((
                    "told before run again",
                    format!(
                        "{:?} runs although the outcome of {:?} is unknown: {run:?}",
                        claim.owner, record.owner
                    ),
                ));
            }
            self.summary.run_again += 1;
            self.model.rely_on(&record.owner, now);
        }
        None
    }

    /// Checked when an answer is handed over: an unknown outcome is recorded before any caller receives it, and the
    /// announced time is long enough.
    pub(crate) fn check_unknown_response(
        &mut self,
        node: usize,
        number: u64,
        result: &CallResult,
        about: Option<&(RecordKey, ClaimOwner)>,
    ) -> Result<(), InvariantViolation> {
        let now = self.now;
        let kind = ResponseKind::of(result);
        let Some((key, owner)) = about else { return Ok(()) };
        let record = self.store.records.get(key).filter(|record| record.owner == *owner);
        let is_recorded = record.is_some_and(|record| record.state != DedupeState::Inflight);
        match kind {
            ResponseKind::FinalUnknown => {
                self.summary.final_responses += 1;
                self.model.unknown_runs.entry(owner.clone()).or_default().final_given.get_or_insert(now);
            }
            ResponseKind::PendingUnknown(patience) => {
                self.summary.pending_responses += 1;
                let started = record.map_or(now, |record| record.created);
                let deadline = SimulationEvent::SettleDeadline {
                    owner: owner.clone(),
                    key: *key,
                    started,
                    reported: now,
                };
                let slack = Duration::from_secs(1);
                self.at(now + patience + slack, deadline);
            }
            ResponseKind::Result | ResponseKind::StillRunning | ResponseKind::Refusal => return Ok(()),
        }
        let Some(running) = self.nodes[node].calls.get(&number) else { return Ok(()) };
        let arrived = self.nodes[node].moment(running.call.arrived());
        let is_own = running.call.claimed_record().is_some_and(|record| record.owner == *owner);
        let is_excused = running.store_failed
            || running.fence_lost
            || self.model.is_relied_on(owner)
            || self.model.emptyings.iter().any(|emptying| emptying.at >= arrived);
        if is_own && !is_excused && !(is_recorded && result.recorded == RecordStatus::Yes) {
            return Err((
                "recorded before told",
                format!("call {number} of process {node} answers {kind:?}, which is not recorded"),
            ));
        }
        Ok(())
    }

    /// Checked when the time has passed by which a run was announced to be settled.
    pub(crate) fn check_settled(
        &self,
        owner: &ClaimOwner,
        key: RecordKey,
        started: Timestamp,
        reported: Timestamp,
    ) -> Result<(), InvariantViolation> {
        let faulty_store = self.weather.store_lost + self.weather.store_unanswered > 0;
        let is_excused = self.disturbed >= started || faulty_store || self.unseen.contains(owner);
        let record = self.store.records.get(&key).filter(|record| record.owner == *owner);
        let is_settled = record.is_none_or(|record| match &record.state {
            DedupeState::Unknown(unknown) => unknown.is_settled(self.now),
            DedupeState::Inflight
            | DedupeState::Done(_)
            | DedupeState::Failed(_)
            | DedupeState::Cancelled => true,
        });
        if !is_settled && !is_excused {
            return Err((
                "patience is enough",
                format!(
                    "{owner:?} was announced at {} to be settled by now, {}, and is not",
                    clock(reported),
                    clock(self.now)
                ),
            ));
        }
        Ok(())
    }

    /// Checked when a tool takes effect.
    pub(crate) fn check_not_settled(&self, effect: &Effect) -> Result<(), InvariantViolation> {
        let Some(owner) = &effect.owner else { return Ok(()) };
        let mut records = self.store.records.iter().filter(|record| record.owner == *owner);
        let is_settled = records.any(|record| match &record.state {
            DedupeState::Unknown(unknown) => unknown.is_settled(self.now),
            DedupeState::Inflight
            | DedupeState::Done(_)
            | DedupeState::Failed(_)
            | DedupeState::Cancelled => false,
        });
        let run = self.model.unknown_runs.get(owner);
        let was_final = run.is_some_and(|run| run.final_given.is_some() || run.relied_on.is_some());
        if is_settled || was_final {
            return Err((
                "nothing after the end",
                format!("effect {} of {owner:?}, which was settled: {run:?}", effect.number),
            ));
        }
        Ok(())
    }

    /// Resolves a run after an operator has checked it. If it is too early, the operator tries again later.
    pub(crate) fn resolve(&mut self, key: RecordKey, tries: u32) {
        let now = self.now;
        let Some(record) = self.store.records.get(&key).filter(|record| record.is_open()) else {
            // The run has been settled meanwhile, and the operator learns that.
            let resolution = if self.third.chance(50) { Resolution::Ran } else { Resolution::DidNotRun };
            let (rules, nodes, leases) =
                (DedupeRules::from(&*self.weather.policy), &self.nodes, self.weather.leases);
            let _verdict =
                self.store.resolve(&key, resolution, &rules, |owner| lease_sight(nodes, leases, owner), now);
            return;
        };
        let owner = record.owner.clone();
        let ran = self.model.effects.iter().any(|effect| effect.owner.as_ref() == Some(&owner));
        let resolution = if ran { Resolution::Ran } else { Resolution::DidNotRun };
        let rules = DedupeRules::from(&*self.weather.policy);
        let (nodes, leases, before) = (&self.nodes, self.weather.leases, record.version);
        let verdict =
            self.store.resolve(&key, resolution, &rules, |owner| lease_sight(nodes, leases, owner), now);
        if self.store.records.get(&key).is_some_and(|record| record.owner == owner && record.version > before)
        {
            self.holder_missed(&owner);
        }
        self.log_event(format!("an operator resolves {owner:?} as {resolution:?}: {verdict:?}"));
        match verdict {
            ResolveVerdict::Resolved => {
                self.summary.resolved += 1;
                self.note_stored(&owner);
                match resolution {
                    Resolution::Ran => drop(self.model.finished_at.entry(owner).or_insert(now)),
                    Resolution::DidNotRun => self.model.rely_on(&owner, now),
                }
            }
            ResolveVerdict::NotSettled(_) if tries > 0 => {
                self.later(10_000, SimulationEvent::Resolve { key, tries: tries - 1 });
            }
            ResolveVerdict::NotSettled(_) | ResolveVerdict::NotUnknown => {}
        }
    }

    /// Returns the receipt of the current record. Only defects ask for it.
    pub(crate) fn current_receipt(&self, about: Option<&(RecordKey, ClaimOwner)>) -> Option<DeliveryReceipt> {
        let (key, owner) = about?;
        self.store.records.get(key).filter(|record| record.owner == *owner).map(DedupeRecord::receipt)
    }
}
