//! End of a call: refused, replayed, saved, released or answered early.

use super::caller::CallerState;
use super::context::StepContext;
use super::grant::SpentGrant;
use super::messages;
use super::notice::CallNotice;
use super::refusal::{CallRefusal, RefusalOrigin};
use super::request::RunnerKind;
use super::state::{Call, State, StoreState};
use super::step::{CallResult, DeferredWrite, NextStep, Provenance, RecordStatus, UpstreamSignal};
use crate::Timestamp;
use crate::dedupe::{CallFailure, ReleaseRequest, ReplayedResult, RunOutcome, SaveRequest, SaveVerdict};
use crate::output::ToolOutput;
use crate::policy::{EnforcementMode, UnknownOutcomePolicy};

impl Call {
    /// Refuses the call: releases its claim, and stores nothing.
    pub(super) fn refuse(&mut self, refusal: CallRefusal, cx: &mut StepContext<'_, '_>) -> NextStep {
        self.report_withheld(cx.notices);
        let refusal = if self.could_not_look() {
            CallRefusal::by_steadfast(messages::store_unavailable(&self.request))
        } else {
            refusal
        };
        let notice = self.blocked(&refusal.failure, cx);
        cx.notices.push(match (notice, refusal.breaker) {
            (CallNotice::CallBlocked { code, retriable, .. }, breaker @ Some(_)) => {
                CallNotice::CallBlocked { code, retriable, breaker }
            }
            (notice, _) => notice,
        });
        let mut deferred = Vec::new();
        let mut result = CallResult { breaker: refusal.breaker, ..self.failed(refusal.failure, cx.now) };
        match refusal.by {
            RefusalOrigin::Steadfast => result = self.count_response(result, cx),
            RefusalOrigin::Guard(layer) => {
                cx.notices.push(CallNotice::GuardTripped { layer });
                // A call that waited before it was refused is no longer in flight.
                self.abandon(cx);
                // The guard counts its own refusal, which may change its message.
                if let Err(refusal) = cx.shared.guard.check(&self.policy.guard, self.guarded(), cx.now) {
                    result.outcome = Err(messages::guard(&refusal));
                }
            }
            RefusalOrigin::Trust(ask) => {
                deferred.push(DeferredWrite::Park(ask));
                result = self.count_response(result, cx);
            }
        }
        self.release(result, deferred, cx)
    }

    /// Returns true if a result may be stored for the key and the lookup failed. A caller that only saw an open breaker
    /// would conclude that nothing ran and use another tool. That repetition is not harmless, whatever this tool is.
    fn could_not_look(&self) -> bool {
        self.is_explicit()
            && self.dedupe() == EnforcementMode::Enforce
            && matches!(self.store, StoreState::Down)
            && self.attempts == 0
    }

    /// Returns the notice that the call was refused without a run.
    pub(super) fn blocked(&self, failure: &CallFailure, cx: &StepContext<'_, '_>) -> CallNotice {
        let breaker = Some(cx.shared.breaker.state(&self.policy.breaker, cx.now));
        CallNotice::CallBlocked { code: failure.code, retriable: failure.retriable, breaker }
    }

    /// Ends a call that the store refused: nothing was claimed.
    pub(super) fn refuse_unclaimed(
        &mut self,
        failure: CallFailure,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        cx.notices.push(self.blocked(&failure, cx));
        let result = self.failed(failure, cx.now);
        self.conclude(result, cx)
    }

    /// Ends the call with the stored result.
    pub(super) fn replay(&mut self, replay: ReplayedResult, cx: &mut StepContext<'_, '_>) -> NextStep {
        cx.notices.push(CallNotice::Replayed { reason: replay.reason });
        let note = messages::replayed(replay.reason).filter(|_| !self.is_explicit());
        let result = CallResult { note, ..CallResult::replayed(replay, &self.policy) };
        let result = self.with_attempts(result, cx.now);
        self.conclude(result, cx)
    }

    /// Adds the attempts of this call to a result that was found.
    pub(super) fn with_attempts(&self, found: CallResult, now: Timestamp) -> CallResult {
        CallResult {
            attempts: self.attempts,
            retries: self.retries.clone(),
            took: now.since(self.arrived),
            ..found
        }
    }

    /// Ends a call that holds no claim.
    pub(super) fn conclude(&mut self, result: CallResult, cx: &mut StepContext<'_, '_>) -> NextStep {
        let result = self.count_response(result, cx);
        self.finish(result, Vec::new(), cx)
    }

    /// Returns a result for a failure, with the current state of the call.
    pub(super) fn failed(&self, failure: CallFailure, now: Timestamp) -> CallResult {
        self.result(Err(failure), now)
    }

    /// Returns a result with the current state of the call.
    pub(super) fn result(&self, outcome: Result<ToolOutput, CallFailure>, now: Timestamp) -> CallResult {
        self.with_attempts(CallResult::bare(outcome), now)
    }

    /// Saves the ending under the fencing token. Without a claim there is nothing to save.
    pub(super) fn save(
        &mut self,
        result: CallResult,
        ending: RunOutcome,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        let Some(save) = self.save_of(ending) else { return self.finish(result, Vec::new(), cx) };
        match self.store {
            StoreState::Available | StoreState::MarkedUnknown | StoreState::FenceLost => {
                self.state = State::Saving { result: Box::new(result), ending: save.ending.clone() };
                NextStep::Save(save)
            }
            StoreState::Down => {
                let result = CallResult { recorded: RecordStatus::No, ..result };
                self.finish(result, vec![DeferredWrite::Save(save)], cx)
            }
        }
    }

    /// Returns the save command, if there is a claim.
    pub(super) fn save_of(&self, ending: RunOutcome) -> Option<Box<SaveRequest>> {
        let claimed = self.record.clone()?;
        let hold = self.request.hints.safety_critical
            || self.policy.dedupe.after_unknown == UnknownOutcomePolicy::Hold;
        let attempts = self.facts.clone();
        Some(Box::new(SaveRequest {
            claimed,
            ending,
            attempts,
            delivered: None,
            hold,
            keep: self.policy.dedupe.keep,
        }))
    }

    /// Ends the call after its result was saved, or was not because another call owns the record.
    pub(super) fn saved(
        &mut self,
        mut result: Box<CallResult>,
        verdict: SaveVerdict,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        (result.recorded, result.receipt) = match verdict {
            SaveVerdict::Saved(receipt) => (RecordStatus::Yes, Some(receipt)),
            SaveVerdict::FenceLost => {
                if self.store == StoreState::Available {
                    cx.notices.push(CallNotice::FenceLost);
                }
                (RecordStatus::No, None)
            }
        };
        self.finish(result, Vec::new(), cx)
    }

    /// Releases the claim, then ends the call.
    pub(super) fn release(
        &mut self,
        result: CallResult,
        mut deferred: Vec<DeferredWrite>,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        let Some(record) = &self.record else { return self.finish(result, deferred, cx) };
        if self.store == StoreState::Down {
            deferred.extend(self.deferred_release());
            return self.finish(result, deferred, cx);
        }
        let step = NextStep::Release(ReleaseRequest {
            key: record.key,
            index: record.index,
            owner: record.owner.clone(),
        });
        self.state = State::Releasing { result: Box::new(result), deferred };
        step
    }

    /// Returns the release of the claim, for later.
    pub(super) fn deferred_release(&self) -> Option<DeferredWrite> {
        let record = self.record.as_ref()?;
        Some(DeferredWrite::Release(ReleaseRequest {
            key: record.key,
            index: record.index,
            owner: record.owner.clone(),
        }))
    }

    /// Returns the spent grant of a call that made no attempt: the approval is still valid.
    fn unused_grant(&mut self) -> Option<DeferredWrite> {
        self.spent.take().filter(|_| self.attempts == 0).map(SpentGrant::give_back)
    }

    /// Marks the last claim as possibly written although no answer came.
    pub(super) fn doubt_claim(&mut self) {
        let owner = self.owner();
        if !self.claims_in_doubt.contains(&owner) {
            self.claims_in_doubt.push(owner);
        }
    }

    /// Releases the claims that may have been written although no answer came.
    fn releases_in_doubt(&mut self) -> Vec<DeferredWrite> {
        let owners = std::mem::take(&mut self.claims_in_doubt);
        let Some(address) = self.request.address() else { return Vec::new() };
        let address = if self.dedupe() == EnforcementMode::Shadow { address.shadowed() } else { address };
        let (key, index) = (address.own(), address.index());
        owners.into_iter().map(|owner| DeferredWrite::Release(ReleaseRequest { key, index, owner })).collect()
    }

    /// Answers the caller while the call continues.
    pub(super) fn answer_early(
        &mut self,
        state: State,
        mut result: CallResult,
        upstream: UpstreamSignal,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        self.drop_late_receipt(&mut result);
        self.state = state;
        self.caller = CallerState::answered(upstream);
        if let Err(failure) = &result.outcome {
            notices.push(CallNotice::AnsweredEarly { code: failure.code });
        }
        NextStep::Answer { result: Box::new(result), upstream }
    }

    /// Drops the receipt of a late response. The caller may have gone, so its delivery proves nothing, and the result
    /// is replayed.
    fn drop_late_receipt(&self, result: &mut CallResult) {
        // A host that runs the tool itself did not wait.
        let has_waited = self.attempts == 0 || self.request.run_by == RunnerKind::Driver;
        if has_waited && result.took > self.policy.dedupe.late_after {
            result.receipt = None;
        }
    }

    /// Ends the call.
    pub(super) fn finish(
        &mut self,
        result: impl Into<Box<CallResult>>,
        mut deferred: Vec<DeferredWrite>,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        deferred.extend(self.unused_grant());
        deferred.extend(self.releases_in_doubt());
        NextStep::Finish { result: self.end_with(result.into(), cx), deferred }
    }

    /// Marks the call as ended, and returns its result.
    pub(super) fn end_with(
        &mut self,
        mut result: Box<CallResult>,
        cx: &mut StepContext<'_, '_>,
    ) -> Box<CallResult> {
        self.state = State::Finished;
        result.took = cx.now.since(self.arrived);
        self.drop_late_receipt(&mut result);
        if self.dedupe() == EnforcementMode::Shadow {
            // A shadow record is never replayed, so it does not count as recorded.
            result.recorded = RecordStatus::NotAsked;
        }
        cx.notices.push(CallNotice::CallFinished {
            code: result.outcome.as_ref().err().map(|failure| failure.code),
            took: result.took,
            attempts: result.attempts,
            replayed: matches!(result.provenance, Provenance::Replayed { .. }),
        });
        result
    }
}
