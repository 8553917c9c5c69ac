//! Callers that cancel or disconnect, and renewals of the lease.

use super::*;

impl Call {
    pub(super) fn cancelled(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        state: State,
        others: OtherWaiters,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        let result = self.failed(messages::cancelled(), now);
        match (state, others) {
            (State::Looking { .. } | State::Following { .. } | State::AwaitingEnd { .. }, _) => {
                self.abandon(shared, now, notices);
                self.finish(result, Vec::new(), now, notices)
            }
            (State::Claiming { .. } | State::GivingBack, _) => {
                self.abandon(shared, now, notices);
                self.doubt_claim();
                self.finish(result, Vec::new(), now, notices)
            }
            // Other callers wait for this run, so it continues without its first caller.
            (
                state @ (State::AwaitingApproval { .. }
                | State::Spending
                | State::Starting
                | State::Probing { .. }
                | State::BackingOff { .. }
                | State::Renewing),
                OtherWaiters::Waiting,
            ) => match self.caller {
                CallerState::Waiting => self.answer_early(state, result, UpstreamSignal::NoSignal, notices),
                CallerState::Gone | CallerState::GaveUp => self.stay(state),
            },
            (State::AwaitingApproval { .. }, OtherWaiters::None) => {
                notices.push(CallNotice::ApprovalEnded { granted: false });
                self.abandon(shared, now, notices);
                self.release(result, Vec::new(), now, notices)
            }
            (
                State::Spending | State::Starting | State::BackingOff { .. } | State::Renewing,
                OtherWaiters::None,
            ) => {
                self.abandon(shared, now, notices);
                self.release(result, Vec::new(), now, notices)
            }
            (State::Probing { tickets, .. }, OtherWaiters::None) => {
                self.step_back(shared, tickets, notices);
                self.abandon(shared, now, notices);
                self.release(result, Vec::new(), now, notices)
            }
            (State::Attempting(attempt), others) => self.cancel_attempt(attempt, result, others, notices),
            (State::Settling(settling), _) => {
                self.left_settling(shared, settling, Some(result), now, notices)
            }
            // The end is near, and it will be recorded.
            (
                state
                @ (State::Marking(_) | State::Saving { .. } | State::Releasing { .. } | State::Finished),
                _,
            ) => self.stay(state),
        }
    }

    pub(super) fn disconnected(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        state: State,
        others: OtherWaiters,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        match state {
            // A claim whose attempt was never sent is released.
            state @ (State::Probing { .. } | State::Renewing) if self.attempts == 0 => {
                self.cancelled(shared, state, others, now, notices)
            }
            // With every mechanism off, nothing else would ever end the attempt. It ends with its caller, as it would
            // without Steadfast.
            state @ State::Attempting(_) if self.policy.modes.strongest() == EnforcementMode::Off => {
                self.cancelled(shared, state, others, now, notices)
            }
            State::Settling(settling) => self.left_settling(shared, settling, None, now, notices),
            // A disconnect never ends an attempt that has started.
            state @ (State::Attempting(_)
            | State::Marking(_)
            | State::Probing { .. }
            | State::BackingOff { .. }
            | State::Renewing
            | State::Saving { .. }
            | State::Releasing { .. }
            | State::Finished) => {
                if self.caller == CallerState::Waiting {
                    self.caller = CallerState::Gone;
                }
                self.stay(state)
            }
            state @ (State::Looking { .. }
            | State::Claiming { .. }
            | State::Following { .. }
            | State::AwaitingEnd { .. }
            | State::AwaitingApproval { .. }
            | State::GivingBack
            | State::Spending
            | State::Starting) => self.cancelled(shared, state, others, now, notices),
        }
    }

    pub(super) fn stay(&mut self, state: State) -> NextStep {
        self.state = state;
        NextStep::Stay
    }

    /// Returns true if this is the owner of the record that the call holds: a renewal of an earlier claim may arrive
    /// late.
    pub(super) fn owns(&self, owner: &ClaimOwner) -> bool {
        self.record.as_ref().is_some_and(|record| record.owner == *owner)
    }

    pub(super) fn renewed(&mut self, verdict: RenewVerdict, sent: Timestamp, notices: &mut Vec<CallNotice>) {
        match verdict {
            // A renewal that was overtaken by a later one does not shorten the lease that the later one gained.
            RenewVerdict::Renewed => {
                self.lease_until = self.lease_until.max(sent + self.policy.dedupe.keep.lease);
            }
            // A shadow record blocks nothing.
            RenewVerdict::MarkedUnknown | RenewVerdict::Lost if self.dedupe() == EnforcementMode::Shadow => {
                self.record = None
            }
            RenewVerdict::MarkedUnknown => self.store = StoreState::MarkedUnknown,
            RenewVerdict::Lost => {
                if self.store == StoreState::Available {
                    notices.push(CallNotice::FenceLost);
                }
                self.store = StoreState::FenceLost;
            }
        }
    }
}
