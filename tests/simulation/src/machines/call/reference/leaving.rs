//! Callers that leave, and claims that are lost.

use super::*;

impl Reference {
    pub(super) fn cancelled(&mut self, state: State, others: Others) -> Due {
        let told = self.told(Err(cancelled()));
        match state {
            State::Looking(_) | State::Following(_) | State::AwaitingEnd(..) => {
                self.abandon();
                self.finish(told, Vec::new())
            }
            State::Claiming(..) | State::GivingBack => {
                self.abandon();
                self.doubt();
                self.finish(told, Vec::new())
            }
            State::Attempting(attempt) => self.cancel_attempt(attempt, told, others),
            State::Settling(settling) => self.leaves_settling(settling, Some(told)),
            State::Marking(_) | State::Saving(..) | State::Releasing(..) | State::Finished => {
                self.stay(state)
            }
            state if others == Others::Waiting => match self.is_waited_for() {
                true => self.answer_early(state, told, Upstream::LeaveAlone),
                false => self.stay(state),
            },
            state => {
                match state {
                    State::AwaitingApproval { .. } => {
                        self.notices.push(Notice::ApprovalEnded { granted: false });
                    }
                    State::Probing(_, tickets) => self.step_back(tickets),
                    _ => {}
                }
                self.abandon();
                self.release(told, Vec::new())
            }
        }
    }

    pub(super) fn cancel_attempt(&mut self, mut attempt: Attempt, told: Told, others: Others) -> Due {
        match (others, self.caller) {
            (Others::None, _) if attempt.cut.is_some() => {
                self.caller = Caller::GaveUp;
                self.stay(State::Attempting(attempt))
            }
            (Others::Waiting, Caller::Waiting) if attempt.cut.is_none() => {
                self.answer_early(State::Attempting(attempt), told, Upstream::LeaveAlone)
            }
            (Others::Waiting, _) => self.stay(State::Attempting(attempt)),
            (Others::None, _) if self.may_be_cut() => {
                self.caller = Caller::GaveUp;
                self.notices.push(Notice::AttemptCut { cut: Cut::Cancelled });
                attempt.cut = Some(Cut::Cancelled);
                self.state = State::Attempting(attempt);
                Due::Cut(Cut::Cancelled)
            }
            (Others::None, Caller::Waiting) => {
                self.answer_early(State::Attempting(attempt), told, Upstream::Cancel)
            }
            (Others::None, Caller::Gone) => {
                self.caller = Caller::GaveUp;
                self.state = State::Attempting(attempt);
                Due::CancelUpstream
            }
            (Others::None, Caller::GaveUp) => self.stay(State::Attempting(attempt)),
        }
    }

    pub(super) fn leaves_settling(&mut self, mut settling: Settling, told: Option<Told>) -> Due {
        match told.filter(|_| self.is_waited_for()) {
            Some(told) if settling.attempt.is_none() && settling.by.is_some() => {
                self.abandon();
                let kept = self.unsaved(&mut settling);
                self.finish(told, kept)
            }
            Some(told) => self.answer_early(State::Settling(settling), told, Upstream::LeaveAlone),
            None => {
                if self.is_waited_for() {
                    self.caller = Caller::Gone;
                }
                self.marked(settling)
            }
        }
    }

    pub(super) fn disconnected(&mut self, state: State, others: Others) -> Due {
        let was_sent = self.attempts > 0;
        match state {
            State::Settling(settling) => self.leaves_settling(settling, None),
            // A disconnect never ends a started attempt.
            State::Attempting(_)
            | State::Marking(_)
            | State::BackingOff(_)
            | State::Saving(..)
            | State::Releasing(..)
            | State::Finished => self.is_left(state),
            State::Probing(..) | State::Renewing if was_sent => self.is_left(state),
            state => self.cancelled(state, others),
        }
    }

    pub(super) fn is_left(&mut self, state: State) -> Due {
        if self.is_waited_for() {
            self.caller = Caller::Gone;
        }
        self.stay(state)
    }

    pub(super) fn renewed(&mut self, verdict: RenewVerdict, sent: Timestamp) {
        match verdict {
            RenewVerdict::Renewed => {
                let until = sent.min(self.now) + self.policy.dedupe.keep.lease;
                self.lease_until = self.lease_until.max(until);
            }
            RenewVerdict::MarkedUnknown => self.sight = Sight::MarkedUnknown,
            RenewVerdict::Lost => self.fence_is_lost(),
        }
    }

    pub(super) fn fence_is_lost(&mut self) {
        if self.sight == Sight::Fine {
            self.notices.push(Notice::FenceLost);
        }
        self.sight = Sight::Lost;
    }
}
