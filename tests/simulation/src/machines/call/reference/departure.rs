//! Callers that leave, and claims that are lost.

use super::*;

impl ReferenceCall {
    pub(super) fn cancelled(&mut self, state: ReferenceCallState, others: OtherWaiters) -> ExpectedStep {
        let response = self.response(Err(cancelled()));
        match state {
            ReferenceCallState::Looking(_)
            | ReferenceCallState::Following(_)
            | ReferenceCallState::AwaitingEnd(..) => {
                self.abandon();
                self.finish(response, Vec::new())
            }
            ReferenceCallState::Claiming(..) | ReferenceCallState::GivingBack => {
                self.abandon();
                self.doubt();
                self.finish(response, Vec::new())
            }
            ReferenceCallState::Attempting(attempt) => self.cancel_attempt(attempt, response, others),
            ReferenceCallState::Settling(settling) => self.leaves_settling(settling, Some(response)),
            ReferenceCallState::Marking(_)
            | ReferenceCallState::Saving(..)
            | ReferenceCallState::Releasing(..)
            | ReferenceCallState::Finished => self.no_change(state),
            state if others == OtherWaiters::Waiting => match self.is_waited_for() {
                true => self.answer_early(state, response, UpstreamSignal::NoSignal),
                false => self.no_change(state),
            },
            state => {
                match state {
                    ReferenceCallState::AwaitingApproval { .. } => {
                        self.notices.push(CallNotice::ApprovalEnded { granted: false });
                    }
                    ReferenceCallState::Probing(_, tickets) => self.step_back(tickets),
                    _ => {}
                }
                self.abandon();
                self.release(response, Vec::new())
            }
        }
    }

    pub(super) fn cancel_attempt(
        &mut self,
        mut attempt: ReferenceAttempt,
        response: ExpectedResponse,
        others: OtherWaiters,
    ) -> ExpectedStep {
        match (others, self.caller) {
            (OtherWaiters::None, _) if attempt.cut.is_some() => {
                self.caller = CallerPresence::GaveUp;
                self.no_change(ReferenceCallState::Attempting(attempt))
            }
            (OtherWaiters::Waiting, CallerPresence::Waiting) if attempt.cut.is_none() => {
                self.answer_early(ReferenceCallState::Attempting(attempt), response, UpstreamSignal::NoSignal)
            }
            (OtherWaiters::Waiting, _) => self.no_change(ReferenceCallState::Attempting(attempt)),
            (OtherWaiters::None, _) if self.may_be_cut() => {
                self.caller = CallerPresence::GaveUp;
                self.notices.push(CallNotice::AttemptCut { cut: CutReason::Cancelled });
                attempt.cut = Some(CutReason::Cancelled);
                self.state = ReferenceCallState::Attempting(attempt);
                ExpectedStep::Cut(CutReason::Cancelled)
            }
            (OtherWaiters::None, CallerPresence::Waiting) => {
                self.answer_early(ReferenceCallState::Attempting(attempt), response, UpstreamSignal::Cancel)
            }
            (OtherWaiters::None, CallerPresence::Gone) => {
                self.caller = CallerPresence::GaveUp;
                self.state = ReferenceCallState::Attempting(attempt);
                ExpectedStep::CancelUpstream
            }
            (OtherWaiters::None, CallerPresence::GaveUp) => {
                self.no_change(ReferenceCallState::Attempting(attempt))
            }
        }
    }

    pub(super) fn leaves_settling(
        &mut self,
        mut settling: ReferenceSettling,
        response: Option<ExpectedResponse>,
    ) -> ExpectedStep {
        match response.filter(|_| self.is_waited_for()) {
            Some(response) if settling.attempt.is_none() && settling.by.is_some() => {
                self.abandon();
                let follow_ups = self.unsaved(&mut settling);
                self.finish(response, follow_ups)
            }
            Some(response) => {
                self.answer_early(ReferenceCallState::Settling(settling), response, UpstreamSignal::NoSignal)
            }
            None => {
                if self.is_waited_for() {
                    self.caller = CallerPresence::Gone;
                }
                self.marked(settling)
            }
        }
    }

    pub(super) fn disconnected(&mut self, state: ReferenceCallState, others: OtherWaiters) -> ExpectedStep {
        let was_sent = self.attempts > 0;
        match state {
            ReferenceCallState::Settling(settling) => self.leaves_settling(settling, None),
            // A disconnect never ends a started attempt.
            ReferenceCallState::Attempting(_)
            | ReferenceCallState::Marking(_)
            | ReferenceCallState::BackingOff(_)
            | ReferenceCallState::Saving(..)
            | ReferenceCallState::Releasing(..)
            | ReferenceCallState::Finished => self.is_left(state),
            ReferenceCallState::Probing(..) | ReferenceCallState::Renewing if was_sent => self.is_left(state),
            state => self.cancelled(state, others),
        }
    }

    pub(super) fn is_left(&mut self, state: ReferenceCallState) -> ExpectedStep {
        if self.is_waited_for() {
            self.caller = CallerPresence::Gone;
        }
        self.no_change(state)
    }

    pub(super) fn renewed(&mut self, verdict: RenewVerdict, sent: Timestamp) {
        match verdict {
            RenewVerdict::Renewed => {
                let until = sent.min(self.now) + self.policy.dedupe.keep.lease;
                self.lease_until = self.lease_until.max(until);
            }
            RenewVerdict::MarkedUnknown => self.sight = ClaimCondition::MarkedUnknown,
            RenewVerdict::Lost => self.fence_is_lost(),
        }
    }

    pub(super) fn fence_is_lost(&mut self) {
        if self.sight == ClaimCondition::Fine {
            self.notices.push(CallNotice::FenceLost);
        }
        self.sight = ClaimCondition::Lost;
    }
}
