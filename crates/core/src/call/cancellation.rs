//! Callers that cancel or disconnect.

use super::caller::CallerState;
use super::context::StepContext;
use super::in_flight::AttemptInFlight;
use super::messages;
use super::notice::CallNotice;
use super::state::{Call, State};
use super::step::{CallResult, CutReason, NextStep, OtherWaiters, UpstreamSignal};
use crate::policy::EnforcementMode;

impl Call {
    /// Handles a caller that cancels.
    pub(super) fn cancelled(
        &mut self,
        state: State,
        others: OtherWaiters,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        let result = self.failed(messages::cancelled(), cx.now);
        match (state, others) {
            (State::Looking { .. } | State::Following { .. } | State::AwaitingEnd { .. }, _) => {
                self.abandon(cx);
                self.finish(result, Vec::new(), cx)
            }
            (State::Claiming { .. } | State::GivingBack, _) => {
                self.abandon(cx);
                self.doubt_claim();
                self.finish(result, Vec::new(), cx)
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
                CallerState::Waiting => {
                    self.answer_early(state, result, UpstreamSignal::NoSignal, cx.notices)
                }
                CallerState::Gone | CallerState::Cancelled => self.stay(state),
            },
            (State::AwaitingApproval { .. }, OtherWaiters::None) => {
                cx.notices.push(CallNotice::ApprovalEnded { granted: false });
                self.abandon(cx);
                self.release(result, Vec::new(), cx)
            }
            (
                State::Spending | State::Starting | State::BackingOff { .. } | State::Renewing,
                OtherWaiters::None,
            ) => {
                self.abandon(cx);
                self.release(result, Vec::new(), cx)
            }
            (State::Probing { tickets, .. }, OtherWaiters::None) => {
                tickets.return_unused(cx);
                self.abandon(cx);
                self.release(result, Vec::new(), cx)
            }
            (State::Attempting(attempt), others) => self.cancel_attempt(attempt, result, others, cx.notices),
            (State::Settling(settling), _) => self.left_settling(settling, Some(result), cx),
            // The end is near, and it will be recorded.
            (
                state
                @ (State::Marking(_) | State::Saving { .. } | State::Releasing { .. } | State::Finished),
                _,
            ) => self.stay(state),
        }
    }

    /// Handles a caller that disconnects.
    pub(super) fn disconnected(
        &mut self,
        state: State,
        others: OtherWaiters,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        match state {
            // A claim whose attempt was never sent is released.
            state @ (State::Probing { .. } | State::Renewing) if self.attempts == 0 => {
                self.cancelled(state, others, cx)
            }
            // With every mechanism off, nothing else would ever end the attempt. It ends with its caller, as it would
            // without Steadfast.
            state @ State::Attempting(_) if self.policy.modes.strongest() == EnforcementMode::Off => {
                self.cancelled(state, others, cx)
            }
            State::Settling(settling) => self.left_settling(settling, None, cx),
            // A disconnect never ends an attempt that has started.
            state @ (State::Attempting(_)
            | State::Marking(_)
            | State::Probing { .. }
            | State::BackingOff { .. }
            | State::Renewing
            | State::Saving { .. }
            | State::Releasing { .. }
            | State::Finished) => {
                self.caller.disconnect();
                self.stay(state)
            }
            state @ (State::Looking { .. }
            | State::Claiming { .. }
            | State::Following { .. }
            | State::AwaitingEnd { .. }
            | State::AwaitingApproval { .. }
            | State::GivingBack
            | State::Spending
            | State::Starting) => self.cancelled(state, others, cx),
        }
    }

    /// Handles a caller that cancels while an attempt runs.
    fn cancel_attempt(
        &mut self,
        mut attempt: AttemptInFlight,
        result: CallResult,
        others: OtherWaiters,
        notices: &mut Vec<CallNotice>,
    ) -> NextStep {
        match others {
            // The attempt is being ended already, or its caller was answered: nothing is left to cancel.
            OtherWaiters::None if attempt.cut.is_some() => {
                self.caller = CallerState::Cancelled;
                self.stay(State::Attempting(attempt))
            }
            OtherWaiters::Waiting if attempt.cut.is_some() => self.stay(State::Attempting(attempt)),
            OtherWaiters::Waiting if !self.caller.is_waiting() => self.stay(State::Attempting(attempt)),
            OtherWaiters::Waiting => {
                self.answer_early(State::Attempting(attempt), result, UpstreamSignal::NoSignal, notices)
            }
            OtherWaiters::None if self.may_be_cut() => {
                self.caller = CallerState::Cancelled;
                notices.push(CallNotice::AttemptCut { cut: CutReason::Cancelled });
                attempt.cut = Some(CutReason::Cancelled);
                self.state = State::Attempting(attempt);
                NextStep::Cut(CutReason::Cancelled)
            }
            OtherWaiters::None => match self.caller {
                CallerState::Waiting => {
                    self.answer_early(State::Attempting(attempt), result, UpstreamSignal::Cancel, notices)
                }
                // The first caller left before; now the last one has.
                CallerState::Gone => {
                    self.caller = CallerState::Cancelled;
                    self.state = State::Attempting(attempt);
                    NextStep::CancelUpstream
                }
                CallerState::Cancelled => self.stay(State::Attempting(attempt)),
            },
        }
    }
}
