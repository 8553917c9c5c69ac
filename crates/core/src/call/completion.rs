//! End of a call: refused, replayed, saved, released or answered early.

use std::time::Duration;

use super::recorded_attempt::RecordedAttempt;
use super::{
    Call, CallMechanisms, CallNotice, CallRefusal, CallResult, CallerState, DeferredWrite, NextStep,
    Provenance, RecordStatus, RefusalOrigin, ResultStage, RunnerKind, ShadowDecision, State, StoreState,
    UnknownOutcomeInfo, UpstreamSignal, messages,
};
use crate::Timestamp;
use crate::classify::{ModelMistake, Severity};
use crate::code::Code;
use crate::dedupe::{
    CallFailure, ClaimVerdict, DeliveryReceipt, ReleaseRequest, ReplayReason, ReplayedResult, Resolution,
    RunOutcome, SaveRequest, SaveVerdict, SettleStatus, UnknownOutcomeStatus,
};
use crate::guard;
use crate::id::{Digest, ToolRef};
use crate::output::ToolOutput;
use crate::policy::{CallPolicy, DangerousCommandPolicy, EnforcementMode, UnknownOutcomePolicy};
use crate::stats::ScoreOutcome;
use crate::trust::FinishedOutcome;

impl Call {
    /// Refuses the call: releases its claim, and stores nothing.
    pub(super) fn refuse(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        refusal: CallRefusal,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        self.report_withheld(notices);
        let refusal = if self.could_not_look() {
            CallRefusal::by_steadfast(messages::store_unavailable(&self.request))
        } else {
            refusal
        };
        let seen = self.blocked(shared, &refusal.failure, now);
        notices.push(match (seen, refusal.breaker) {
            (CallNotice::CallBlocked { code, retriable, .. }, breaker @ Some(_)) => {
                CallNotice::CallBlocked { code, retriable, breaker }
            }
            (seen, _) => seen,
        });
        let mut kept = Vec::new();
        let mut result = CallResult { breaker: refusal.breaker, ..self.failed(refusal.failure, now) };
        match refusal.by {
            RefusalOrigin::Steadfast => result = self.judge(shared, result, now, notices),
            RefusalOrigin::Guard(layer) => {
                notices.push(CallNotice::GuardTripped { layer });
                // A call that waited before it was refused is no longer in flight.
                self.abandon(shared, now, notices);
                self.judged = true;
                // The guard counts its own refusal, which may change its message.
                if let Err(refusal) = shared.guard.check(&self.policy.guard, self.guarded(), now) {
                    result.ended = Err(messages::guard(&refusal));
                }
            }
            RefusalOrigin::Trust(ask) => {
                kept.push(DeferredWrite::Park(ask));
                result = self.judge(shared, result, now, notices);
            }
        }
        self.release(result, kept, now, notices)
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
    pub(super) fn blocked(
        &self,
        shared: &CallMechanisms<'_>,
        failure: &CallFailure,
        now: Timestamp,
    ) -> CallNotice {
        let breaker = Some(shared.breaker.state(&self.policy.breaker, now));
        CallNotice::CallBlocked { code: failure.code, retriable: failure.retriable, breaker }
    }

    /// Ends a call that the store refused: nothing was claimed.
    pub(super) fn refuse_unclaimed(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        failure: CallFailure,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        notices.push(self.blocked(shared, &failure, now));
        let result = self.failed(failure, now);
        self.conclude(shared, result, now, notices)
    }

    pub(super) fn replay(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        replay: ReplayedResult,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        notices.push(CallNotice::Replayed { reason: replay.reason });
        let note = messages::replayed(replay.reason).filter(|_| !self.is_explicit());
        let result = CallResult { note, ..CallResult::replayed(replay, &self.policy) };
        let result = self.with_attempts(result, now);
        self.conclude(shared, result, now, notices)
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
    pub(super) fn conclude(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        result: CallResult,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        let result = self.judge(shared, result, now, notices);
        self.finish(result, Vec::new(), now, notices)
    }

    /// Returns a result for a failure, with the current state of the call.
    pub(super) fn failed(&self, failure: CallFailure, now: Timestamp) -> CallResult {
        self.result(Err(failure), now)
    }

    /// Returns a result with the current state of the call.
    pub(super) fn result(&self, ended: Result<ToolOutput, CallFailure>, now: Timestamp) -> CallResult {
        self.with_attempts(CallResult::bare(ended), now)
    }

    // ---- counting by trust and guard ----

    /// Reports the response to the guard, once per call.
    pub(super) fn judge(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        result: CallResult,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> CallResult {
        self.judge_guard(shared, result, None, now, notices)
    }

    /// Reports a call that ran to trust and guard, once.
    pub(super) fn judge_run(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        result: CallResult,
        severity: Option<Severity>,
        mistake: Option<ModelMistake>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> CallResult {
        if self.judged {
            return result;
        }
        if !self.policy.modes.are_off() {
            let severity = severity.or(result.ended.is_err().then_some(Severity::Informational));
            self.severity = severity;
            self.scored = Some(ScoreOutcome::of(severity, mistake));
        }
        if self.policy.modes.trust != EnforcementMode::Off {
            let finished = match (&result.ended, severity) {
                (_, Some(severity)) => FinishedOutcome::Failure { severity, recoverable: true },
                (Ok(_), None) => FinishedOutcome::Success,
                (Err(_), None) => {
                    FinishedOutcome::Failure { severity: Severity::Informational, recoverable: true }
                }
            };
            let changes = shared.trust.record_with_start(
                self.trust_rules(),
                self.subject(),
                finished,
                self.arrived,
                now,
            );
            notices.extend(changes.into_iter().map(CallNotice::TrustChanged));
            self.record_danger(shared, now, notices);
        }
        self.judge_guard(shared, result, mistake, now, notices)
    }

    /// Lowers the trust in a tool that ran a dangerous command, whatever the outcome was.
    fn record_danger(&self, shared: &mut CallMechanisms<'_>, now: Timestamp, notices: &mut Vec<CallNotice>) {
        if self.request.danger.is_some() && self.policy.approval.dangerous == DangerousCommandPolicy::Record {
            let finished = FinishedOutcome::Failure { severity: Severity::Security, recoverable: true };
            let changes = shared.trust.record_with_start(
                self.trust_rules(),
                self.subject(),
                finished,
                self.arrived,
                now,
            );
            notices.extend(changes.into_iter().map(CallNotice::TrustChanged));
        }
    }

    /// Ends the counting of a call that its caller cancelled: it says nothing about the tool.
    pub(super) fn abandon(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) {
        if std::mem::replace(&mut self.judged, true) {
            return;
        }
        if self.entered {
            shared.guard.abandon(&self.policy.guard, self.guarded(), now);
        }
        if self.attempts > 0 && self.policy.modes.trust != EnforcementMode::Off {
            self.record_danger(shared, now, notices);
        }
    }

    /// Ends the counting of a call whose tool has not started. Neither guard nor trust has anything to count, a
    /// dangerous command included: that is still to come.
    pub(super) fn put_off(&mut self, shared: &mut CallMechanisms<'_>, now: Timestamp) {
        if self.entered && !std::mem::replace(&mut self.judged, true) {
            shared.guard.abandon(&self.policy.guard, self.guarded(), now);
        }
    }

    /// Returns the digest of a result, if the guard needs it. For a run it is computed when the run ends.
    pub(super) fn result_digest(&self, output: &ToolOutput) -> Option<Digest> {
        match self.outcomes.last() {
            Some(RecordedAttempt::Answered { result, .. }) => *result,
            Some(RecordedAttempt::InputRequired | RecordedAttempt::Failed(_)) | None => {
                (self.policy.modes.guard != EnforcementMode::Off)
                    .then(|| guard::result_digest(&self.policy.guard, output))
                    .flatten()
            }
        }
    }

    fn judge_guard(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        mut result: CallResult,
        mistake: Option<ModelMistake>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> CallResult {
        if std::mem::replace(&mut self.judged, true) || self.policy.modes.guard == EnforcementMode::Off {
            return result;
        }
        self.enter(shared, now);
        let told_before = self.request.in_turn
            && matches!(result.provenance, Provenance::Replayed { .. })
            && !result.was_followed();
        // The model cannot learn from a response that it never gets: only delivered responses count.
        if self.caller != CallerState::Waiting || told_before {
            shared.guard.abandon(&self.policy.guard, self.guarded(), now);
            return result;
        }
        let ending = match &result.ended {
            Ok(output) => guard::GuardedResult::Success { result: self.result_digest(output) },
            // These codes say nothing about the tool or the model. Neither does an unknown outcome: a caller that
            // follows its instructions calls again.
            Err(failure)
                if matches!(failure.code, Code::InFlight | Code::Cancelled)
                    || (result.unknown.is_some() && self.dedupe() == EnforcementMode::Enforce) =>
            {
                shared.guard.abandon(&self.policy.guard, self.guarded(), now);
                return result;
            }
            // Refusals by Steadfast differ only in their numbers, so the code identifies them.
            Err(failure) if self.attempts == 0 && failure.code.is_refusal() => {
                guard::GuardedResult::Failure { message: failure.code.as_str(), mistake }
            }
            Err(failure) => guard::GuardedResult::Failure { message: &failure.message, mistake },
        };
        let remarks = shared.guard.end(&self.policy.guard, self.guarded(), ending, now);
        // A refusal that says when to call again, or that approval is needed, must not come with "do not retry": one
        // response, one instruction. If the model calls earlier, the guard refuses the call.
        let says_when = result.ended.as_ref().is_err_and(|failure| {
            let asks =
                matches!(failure.code, Code::ApprovalRequired | Code::ApprovalDenied | Code::ToolBlocked);
            failure.retry_after.is_some() || asks
        });
        if self.policy.modes.guard == EnforcementMode::Enforce && says_when && result.is_refused() {
            notices.extend(remarks.iter().map(|remark| CallNotice::GuardTripped { layer: remark.layer }));
        } else if self.policy.modes.guard == EnforcementMode::Enforce {
            notices.extend(remarks.iter().map(|remark| CallNotice::GuardTripped { layer: remark.layer }));
            result.remarks = remarks;
        } else if let Some(remark) = remarks.first() {
            // In shadow mode the guard does not act: the response is sent unchanged.
            self.report_shadow_decision(ShadowDecision::Remarked(remark.layer), notices);
        }
        result
    }

    // ---- record ----

    /// Saves the ending under the fencing token. Without a claim there is nothing to save.
    pub(super) fn save(
        &mut self,
        result: CallResult,
        ending: RunOutcome,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        let Some(save) = self.save_of(ending) else { return self.finish(result, Vec::new(), now, notices) };
        match self.store {
            StoreState::Available | StoreState::MarkedUnknown | StoreState::FenceLost => {
                self.state = State::Saving { result: Box::new(result), ending: save.ending.clone() };
                NextStep::Save(save)
            }
            StoreState::Down => {
                let result = CallResult { recorded: RecordStatus::No, ..result };
                self.finish(result, vec![DeferredWrite::Save(save)], now, notices)
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

    pub(super) fn saved(
        &mut self,
        mut result: Box<CallResult>,
        verdict: SaveVerdict,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        (result.recorded, result.receipt) = match verdict {
            SaveVerdict::Saved(receipt) => (RecordStatus::Yes, Some(receipt)),
            SaveVerdict::FenceLost => {
                if self.store == StoreState::Available {
                    notices.push(CallNotice::FenceLost);
                }
                (RecordStatus::No, None)
            }
        };
        self.finish(result, Vec::new(), now, notices)
    }

    /// Releases the claim, then ends the call.
    pub(super) fn release(
        &mut self,
        result: CallResult,
        mut kept: Vec<DeferredWrite>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        let Some(record) = &self.record else { return self.finish(result, kept, now, notices) };
        if self.store == StoreState::Down {
            kept.extend(self.deferred_release());
            return self.finish(result, kept, now, notices);
        }
        let step = NextStep::Release(ReleaseRequest {
            key: record.key,
            index: record.index,
            owner: record.owner.clone(),
        });
        self.state = State::Releasing { result: Box::new(result), kept };
        step
    }

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
        let (grant, owner) = self.spent.take().filter(|_| self.attempts == 0)?;
        Some(DeferredWrite::GiveBack { grant, owner })
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
        self.caller = match upstream {
            UpstreamSignal::Cancel => CallerState::GaveUp,
            UpstreamSignal::NoSignal => CallerState::Gone,
        };
        if let Err(failure) = &result.ended {
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

    pub(super) fn finish(
        &mut self,
        result: impl Into<Box<CallResult>>,
        mut kept: Vec<DeferredWrite>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        kept.extend(self.unused_grant());
        kept.extend(self.releases_in_doubt());
        self.state = State::Finished;
        let mut result = result.into();
        result.took = now.since(self.arrived);
        self.drop_late_receipt(&mut result);
        if self.dedupe() == EnforcementMode::Shadow {
            // A shadow record is never replayed, so it does not count as recorded.
            result.recorded = RecordStatus::NotAsked;
        }
        notices.push(CallNotice::CallFinished {
            code: result.ended.as_ref().err().map(|failure| failure.code),
            took: result.took,
            attempts: result.attempts,
            replayed: matches!(result.provenance, Provenance::Replayed { .. }),
        });
        NextStep::Finish { result, deferred: kept }
    }
}

impl CallResult {
    /// Returns the response to a caller that [waits for a record](crate::dedupe::Claim::to_await_result); `None` while the
    /// run continues.
    pub fn from_verdict(verdict: ClaimVerdict, policy: &CallPolicy) -> Option<Self> {
        match verdict {
            ClaimVerdict::Replay(replay) => Some(Self::replayed(*replay, policy)),
            ClaimVerdict::Unknown(unsettled) => Some(Self::unknown(*unsettled, &[], policy)),
            ClaimVerdict::Acquired(_)
            | ClaimVerdict::Follow(_)
            | ClaimVerdict::Busy
            | ClaimVerdict::Conflict
            | ClaimVerdict::Nothing
            | ClaimVerdict::Full
            | ClaimVerdict::StoreRecovering
            | ClaimVerdict::RecordsLost => None,
        }
    }

    /// Returns the response for a stored result.
    pub(super) fn replayed(replay: ReplayedResult, policy: &CallPolicy) -> Self {
        let ended = match replay.answer {
            Ok(Some(output)) => Ok(output),
            Ok(None) => Err(messages::result_not_kept(policy)),
            Err(failure) => Err(failure),
        };
        let provenance = Provenance::Replayed {
            reason: replay.reason,
            age: replay.age,
            fingerprint: replay.receipt.key.fingerprint(),
        };
        Self { provenance, recorded: RecordStatus::Yes, receipt: Some(replay.receipt), ..Self::bare(ended) }
    }

    /// Returns the response for an unknown outcome.
    pub(super) fn unknown(unsettled: UnknownOutcomeStatus, reads: &[Box<str>], policy: &CallPolicy) -> Self {
        let UnknownOutcomeStatus { end, observed, details: words, output, runs_in, receipt } = unsettled;
        let unknown = messages::UnknownOutcomeMessage { end, observed, words, output, runs_in };
        let ended = Err(messages::outcome_unknown(reads, policy, unknown));
        // Only a final response can count as delivered.
        let receipt = Some(receipt).filter(|_| end == SettleStatus::Settled);
        let unknown = Some(UnknownOutcomeInfo { observed, ended: end == SettleStatus::Settled });
        Self { recorded: RecordStatus::Yes, receipt, unknown, ..Self::bare(ended) }
    }

    /// Replaces an unknown outcome by the finding of a verification with this tool. The receipt is that of the record
    /// that stores the finding.
    pub fn verified(self, tool: &ToolRef, resolution: Resolution, receipt: Option<DeliveryReceipt>) -> Self {
        let Some(unknown) = self.unknown else { return self };
        let failure = match resolution {
            Resolution::Ran => messages::verified_as_run(tool),
            Resolution::DidNotRun => messages::verified_as_not_run(tool, unknown.observed),
        };
        Self { ended: Err(failure), unknown: None, receipt, ..self }
    }

    /// Returns a result without any details.
    fn bare(ended: Result<ToolOutput, CallFailure>) -> Self {
        Self {
            ended,
            stage: ResultStage::Final,
            provenance: Provenance::Fresh,
            attempts: 0,
            retries: Vec::new(),
            took: Duration::ZERO,
            recorded: RecordStatus::NotAsked,
            receipt: None,
            note: None,
            remarks: Vec::new(),
            breaker: None,
            escalated: false,
            unknown: None,
        }
    }

    /// Returns true if the call was refused without an attempt. Such a response is never stored.
    pub fn is_refused(&self) -> bool {
        let code = self.ended.as_ref().err().map(|failure| failure.code);
        self.attempts == 0 && code.is_some_and(|code| code.is_refusal() && code != Code::Cancelled)
    }

    /// Returns true if the response says that the outcome of the call is unknown.
    pub fn is_unknown_outcome(&self) -> bool {
        self.ended.as_ref().is_err_and(|failure| failure.code.is_unknown_outcome())
    }

    /// Returns true if calls that waited for this one are refused too: the reason is not a limit of its own caller.
    pub fn is_refused_for_all(&self) -> bool {
        let code = self.ended.as_ref().err().map(|failure| failure.code);
        self.is_refused() && code != Some(Code::DeadlineExceeded)
    }

    /// Returns true if the result comes from a run that was in flight when the call arrived.
    pub fn was_followed(&self) -> bool {
        matches!(self.provenance, Provenance::Replayed { reason: ReplayReason::Waited, .. })
    }
}
