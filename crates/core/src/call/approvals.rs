//! Requests for approval, and the `started` mark that is written before an attempt.

use std::sync::Arc;

use super::admission::AdmissionStage;
use super::context::StepContext;
use super::grant::{ApprovalNeed, GrantCoverage, SpentGrant};
use super::messages;
use super::notice::{CallNotice, ShadowDecision};
use super::refusal::CallRefusal;
use super::state::{Call, State, StoreState};
use super::step::{ApprovalOutcome, ApprovalRequest, CallResult, NextStep, ResultStage};
use crate::approval::{self, ApprovalPlan, ApprovalSubject, ArgumentRisk, GrantId};
use crate::dedupe::ReleaseRequest;
use crate::output::ToolOutput;
use crate::policy::{ApprovalTrigger, EnforcementMode};
use crate::trust::{Escalation, TrustDecision};

impl Call {
    /// Returns the trust in the tool.
    pub(super) fn standing(&self, cx: &StepContext<'_, '_>) -> TrustDecision {
        cx.shared.trust.check(self.trust_rules(), self.subject(), cx.now)
    }

    /// Returns true if only an operator lets the tool run.
    pub(super) fn is_blocked(standing: TrustDecision) -> bool {
        matches!(standing, TrustDecision::Blocked(_))
    }

    /// Returns the approval that this call needs.
    pub(super) fn need(&self, cx: &StepContext<'_, '_>) -> ApprovalNeed {
        let standing = self.standing(cx);
        if self.policy.approval.when != ApprovalTrigger::Always
            && self.request.danger.is_none()
            && matches!(standing, TrustDecision::Allowed(_))
        {
            return ApprovalNeed::NotNeeded;
        }
        let blocked = matches!(standing, TrustDecision::Blocked(_));
        let subject = ApprovalSubject {
            tool: &self.request.tool,
            arguments: self.request.digest,
            signature: &self.request.signature,
            session: self.request.session.as_ref(),
            blocked,
        };
        let plan = approval::plan(
            approval::ApprovalInput {
                standing: &standing,
                policy: &self.policy.approval,
                shape: if self.request.danger.is_some() {
                    ArgumentRisk::Dangerous
                } else {
                    ArgumentRisk::Ordinary
                },
                channel: self.request.channel,
                grant: cx.shared.approvals.grant_for(subject, cx.now),
                deadline: self.latest_start(),
            },
            cx.now,
        );
        let escalation = match (standing, &self.request.danger) {
            (TrustDecision::NeedsApproval(escalation) | TrustDecision::Blocked(escalation), _) => escalation,
            (TrustDecision::Allowed(_), Some(danger)) => Escalation::dangerous(&self.request.tool, danger),
            (TrustDecision::Allowed(_), None) => Escalation::routine(&self.request.tool),
        };
        let ask = |until| Box::new(ApprovalRequest { escalation, operator_only: blocked, until });
        match plan {
            ApprovalPlan::Go => ApprovalNeed::NotNeeded,
            ApprovalPlan::Spend(grant) => ApprovalNeed::Spend(grant),
            ApprovalPlan::Ask { until } => ApprovalNeed::Ask(ask(until)),
            ApprovalPlan::Park | ApprovalPlan::RefuseBlocked => {
                ApprovalNeed::Refuse(Box::new(CallRefusal::trust(&self.request, ask(cx.now))))
            }
        }
    }

    /// Asks for approval if the call needs one, and goes on otherwise.
    pub(super) fn ask_or_start(&mut self, cx: &mut StepContext<'_, '_>) -> NextStep {
        let need = match self.policy.modes.trust {
            // The call was approved before its claim was lost and made again.
            _ if self.spent.is_some() => ApprovalNeed::NotNeeded,
            EnforcementMode::Off => ApprovalNeed::NotNeeded,
            EnforcementMode::Enforce => self.need(cx),
            EnforcementMode::Shadow => {
                if let ApprovalNeed::Ask(_) | ApprovalNeed::Spend(_) = self.need(cx) {
                    self.shadow_report.send(ShadowDecision::ApprovalRequested, cx.notices);
                }
                ApprovalNeed::NotNeeded
            }
        };
        match need {
            ApprovalNeed::NotNeeded => self.start_or_attempt(cx),
            // Trust was lost while the claim was being made. The claim says that an attempt may have been sent, which
            // it must not say while the call waits for approval.
            ApprovalNeed::Spend(_) | ApprovalNeed::Ask(_) if self.claims_start_too_early() => {
                self.repeat_claim()
            }
            ApprovalNeed::Spend(grant) => self.spend(grant, GrantCoverage::for_standing(self.standing(cx))),
            ApprovalNeed::Ask(ask) => {
                cx.notices.push(CallNotice::ApprovalRequested);
                self.state = State::AwaitingApproval { ask: ask.clone() };
                NextStep::Ask(ask)
            }
            ApprovalNeed::Refuse(refusal) => self.refuse(*refusal, cx),
        }
    }

    /// Returns true if the claim says that an attempt may have been sent, although none was.
    fn claims_start_too_early(&self) -> bool {
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

    /// Spends a grant in the name of the claim.
    pub(super) fn spend(&mut self, grant: GrantId, coverage: GrantCoverage) -> NextStep {
        let owner = self.owner();
        self.spent = Some(SpentGrant { grant, owner: owner.clone(), coverage });
        self.state = State::Spending;
        NextStep::Spend { grant, owner }
    }

    /// Continues with the decision on a request for approval.
    pub(super) fn answered(
        &mut self,
        ask: ApprovalRequest,
        answer: ApprovalOutcome,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        cx.notices.push(CallNotice::ApprovalEnded { granted: matches!(answer, ApprovalOutcome::Granted(_)) });
        match answer {
            ApprovalOutcome::Granted(Some(grant)) => self.spend(grant, GrantCoverage::for_request(&ask)),
            ApprovalOutcome::Granted(None) => self.start_or_attempt(cx),
            ApprovalOutcome::Denied => {
                self.refuse(CallRefusal::by_steadfast(messages::approval_denied(&self.request)), cx)
            }
            ApprovalOutcome::Unreachable => {
                let refusal = CallRefusal::trust(&self.request, Box::new(ask));
                self.refuse(refusal, cx)
            }
            ApprovalOutcome::ReturnedToCaller(question) => self.ask_caller(question, cx),
        }
    }

    /// Asks the caller for input. The requested work has not started, so nothing is stored and nothing is counted.
    pub(super) fn ask_caller(&mut self, question: ToolOutput, cx: &mut StepContext<'_, '_>) -> NextStep {
        cx.notices.push(CallNotice::InputRequired);
        self.put_off(cx);
        let result = CallResult { stage: ResultStage::InputRequired, ..self.result(Ok(question), cx.now) };
        // An earlier attempt may have done what was approved, although no result arrived.
        let unused = self.spent.take().filter(|_| self.attempts <= 1);
        let deferred = unused.map(SpentGrant::give_back);
        self.release(result, deferred.into_iter().collect(), cx)
    }

    /// Another call spent the grant first. Asks again, unless no approver can be reached.
    pub(super) fn handle_lost_grant(&mut self, cx: &mut StepContext<'_, '_>) -> NextStep {
        match self.need(cx) {
            // The shared view may lag behind the store. Trying the same grant again would loop.
            ApprovalNeed::Spend(_) | ApprovalNeed::NotNeeded => {
                let refusal = CallRefusal::by_steadfast(messages::approval_lost(&self.request));
                self.refuse(refusal, cx)
            }
            ApprovalNeed::Ask(ask) => {
                cx.notices.push(CallNotice::ApprovalRequested);
                self.state = State::AwaitingApproval { ask: ask.clone() };
                NextStep::Ask(ask)
            }
            ApprovalNeed::Refuse(refusal) => self.refuse(*refusal, cx),
        }
    }

    /// Writes `started` before the attempt, unless the claim already says so.
    pub(super) fn start_or_attempt(&mut self, cx: &mut StepContext<'_, '_>) -> NextStep {
        if matches!(self.store, StoreState::FenceLost | StoreState::MarkedUnknown) {
            return self.handle_lost_claim(cx);
        }
        match self.record() {
            Some(record) if !record.started => {
                let step = NextStep::Start { key: record.key, owner: record.owner.clone() };
                self.state = State::Starting;
                step
            }
            Some(_) | None => self.next_attempt(AdmissionStage::Begin, cx),
        }
    }

    /// Continues after the store has recorded `started`.
    pub(super) fn started(&mut self, cx: &mut StepContext<'_, '_>) -> NextStep {
        // The claim is no older than the call, by the local clock. The record has the time of the store.
        let since_claim = cx.now.since(self.arrived);
        if let Some(record) = &mut self.record {
            let record = Arc::make_mut(record);
            record.started = true;
            // Not earlier than in the store. The record is written again from here if the store is emptied.
            record.end_observed_by = record.end_observed_by.map(|by| by + since_claim);
        }
        self.next_attempt(AdmissionStage::Begin, cx)
    }
}
