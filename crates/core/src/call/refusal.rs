//! Refusals of a call, and the refusals on its arrival that are not decided yet.

use super::messages;
use super::request::CallRequest;
use super::step::ApprovalRequest;
use crate::breaker;
use crate::code::Code;
use crate::dedupe::CallFailure;

/// A refusal that has not been returned yet.
#[derive(Clone, Debug)]
pub(super) struct CallRefusal {
    pub(super) failure: CallFailure,
    pub(super) breaker: Option<breaker::State>,
    pub(super) by: RefusalOrigin,
}

#[derive(Clone, Debug)]
pub(super) enum RefusalOrigin {
    /// A refusal that no mechanism counts.
    Steadfast,
    /// The guard, which counts its own refusals.
    Guard(crate::guard::GuardLayer),
    /// Trust: the request is kept for an operator.
    Trust(Box<ApprovalRequest>),
}

impl CallRefusal {
    pub(super) fn by_steadfast(failure: CallFailure) -> Self {
        Self { failure, breaker: None, by: RefusalOrigin::Steadfast }
    }

    pub(super) fn trust(request: &CallRequest, ask: Box<ApprovalRequest>) -> Self {
        Self { failure: messages::approval(request, &ask), breaker: None, by: RefusalOrigin::Trust(ask) }
    }
}

/// The refusals that were found when the call arrived and did not end it.
#[derive(Debug, Default)]
pub(super) struct ArrivalCheck {
    /// Code of the refusal that shadow mode did not enforce, until it is known whether the call would have run.
    withheld: Option<Code>,
    hold: ArrivalHold,
}

/// Effect of an enforced refusal on a call that has found an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ArrivalHold {
    /// No refusal was enforced on arrival.
    #[default]
    Free,
    /// The call may have the result of the earlier call. The check is repeated before a run.
    Deferred,
}

impl ArrivalCheck {
    /// Withholds a refusal that shadow mode does not enforce. The first one counts.
    pub(super) fn withhold(&mut self, code: Code) {
        self.withheld.get_or_insert(code);
    }

    /// Takes the withheld refusal.
    pub(super) fn take_withheld(&mut self) -> Option<Code> {
        self.withheld.take()
    }

    /// Records that the call found an earlier one before it was refused.
    pub(super) fn defer_refusal(&mut self) {
        self.hold = ArrivalHold::Deferred;
    }

    /// Returns true if a refusal applied when the call arrived, so that the check is repeated before a run.
    pub(super) fn is_refusal_deferred(&self) -> bool {
        self.hold == ArrivalHold::Deferred
    }
}
