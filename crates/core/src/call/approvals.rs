//! Requests for approval, and the `started` mark that is written before an attempt.

use super::*;

impl Call {
    pub(super) fn ask_or_start(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        let need = match self.policy.modes.trust {
            // The call was approved before its claim was lost and made again.
            _ if self.spent.is_some() => ApprovalNeed::NotNeeded,
            EnforcementMode::Off => ApprovalNeed::NotNeeded,
            EnforcementMode::Enforce => self.need(shared, now),
            EnforcementMode::Shadow => {
                if let ApprovalNeed::Ask(_) | ApprovalNeed::Spend(_) = self.need(shared, now) {
                    self.report_shadow_decision(ShadowDecision::Asked, notices);
                }
                ApprovalNeed::NotNeeded
            }
        };
        match need {
            ApprovalNeed::NotNeeded => self.start_or_go(shared, now, notices),
            // Trust was lost while the claim was being made. The claim says that an attempt may have been sent, which
            // it must not say while the call waits for approval.
            ApprovalNeed::Spend(_) | ApprovalNeed::Ask(_) if self.says_started_too_early() => {
                self.repeat_claim()
            }
            ApprovalNeed::Spend(grant) => self.spend(grant, Self::is_blocked(self.standing(shared, now))),
            ApprovalNeed::Ask(ask) => {
                notices.push(CallNotice::ApprovalAsked);
                self.state = State::AwaitingApproval { ask: ask.clone() };
                NextStep::Ask(ask)
            }
            ApprovalNeed::Refuse(refusal) => self.refuse(shared, *refusal, now, notices),
        }
    }

    fn says_started_too_early(&self) -> bool {
        self.attempts == 0
            && self.dedupe() == EnforcementMode::Enforce
            && self.record().is_some_and(|record| record.started)
    }

    /// Releases the claim, and makes another one that does not say that an attempt follows at once.
    fn repeat_claim(&mut self) -> NextStep {
        let Some(record) = self.record.take() else { return NextStep::Stay };
        self.state = State::GivingBack;
        NextStep::Release(ReleaseRequest {
            key: record.key,
            index: record.index,
            owner: record.owner.clone(),
        })
    }

    /// Spends a grant in the name of the claim. Only a grant from an operator allows a call of a blocked tool.
    fn spend(&mut self, grant: GrantId, blocked: bool) -> NextStep {
        self.approved_blocked = blocked;
        let owner = self.owner();
        self.spent = Some((grant, owner.clone()));
        self.state = State::Spending;
        NextStep::Spend { grant, owner }
    }

    pub(super) fn answered(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        ask: ApprovalRequest,
        answer: ApprovalOutcome,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        notices.push(CallNotice::ApprovalEnded { granted: matches!(answer, ApprovalOutcome::Granted(_)) });
        match answer {
            ApprovalOutcome::Granted(Some(grant)) => self.spend(grant, ask.operator_only),
            ApprovalOutcome::Granted(None) => self.start_or_go(shared, now, notices),
            ApprovalOutcome::Denied => self.refuse(
                shared,
                CallRefusal::by_steadfast(messages::approval_denied(&self.request)),
                now,
                notices,
            ),
            ApprovalOutcome::Unreachable => {
                let refusal = CallRefusal::trust(&self.request, Box::new(ask));
                self.refuse(shared, refusal, now, notices)
            }
            ApprovalOutcome::PutToCaller(question) => self.ask_caller(shared, question, now, notices),
        }
    }

    /// Asks the caller for input. The requested work has not started, so nothing is stored and nothing is counted.
    pub(super) fn ask_caller(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        question: ToolOutput,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        notices.push(CallNotice::InputRequired);
        self.put_off(shared, now);
        let result = CallResult { stage: ResultStage::InputRequired, ..self.result(Ok(question), now) };
        // An earlier attempt may have done what was approved, although no result arrived.
        let unused = self.spent.take().filter(|_| self.attempts <= 1);
        let kept = unused.map(|(grant, owner)| DeferredWrite::GiveBack { grant, owner });
        self.release(result, kept.into_iter().collect(), now, notices)
    }

    /// Another call spent the grant first. Asks again, unless no approver can be reached.
    pub(super) fn lost_the_grant(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        match self.need(shared, now) {
            // The shared view may lag behind the store. Trying the same grant again would loop.
            ApprovalNeed::Spend(_) | ApprovalNeed::NotNeeded => {
                let refusal = CallRefusal::by_steadfast(messages::approval_lost(&self.request));
                self.refuse(shared, refusal, now, notices)
            }
            ApprovalNeed::Ask(ask) => {
                notices.push(CallNotice::ApprovalAsked);
                self.state = State::AwaitingApproval { ask: ask.clone() };
                NextStep::Ask(ask)
            }
            ApprovalNeed::Refuse(refusal) => self.refuse(shared, *refusal, now, notices),
        }
    }

    /// Writes `started` before the attempt, unless the claim already says so.
    pub(super) fn start_or_go(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        if matches!(self.store, StoreState::FenceLost | StoreState::MarkedUnknown) {
            return self.lost_the_claim(shared, now, notices);
        }
        match self.record() {
            Some(record) if !record.started => {
                let step = NextStep::Start { key: record.key, owner: record.owner.clone() };
                self.state = State::Starting;
                step
            }
            Some(_) | None => self.attempt(shared, now, notices),
        }
    }

    pub(super) fn started(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        // The claim is no older than the call, by the local clock. The record has the time of the store.
        let since_claim = now.since(self.arrived);
        if let Some(record) = &mut self.record {
            let record = Arc::make_mut(record);
            record.started = true;
            // Not earlier than in the store. The record is written again from here if the store is emptied.
            record.seen_end_by = record.seen_end_by.map(|by| by + since_claim);
        }
        self.attempt(shared, now, notices)
    }
}
