//! Permits that breakers and limiters gave out for an attempt.

use super::context::{CallMechanisms, StepContext};
use super::notice::CallNotice;
use super::step::BreakerScope;
use crate::breaker::{BreakerTicket, BreakerTransition, CircuitBreaker};
use crate::policy::BreakerPolicy;

/// Permits that breakers and limiters gave out for an attempt.
#[derive(Debug, Default)]
pub(super) struct Tickets {
    pub(super) tool: Option<BreakerTicket>,
    pub(super) dependency: Option<BreakerTicket>,
    pub(super) permits: PermitState,
}

/// State of the attempt's concurrency permits, which have to be returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PermitState {
    #[default]
    NotAsked,
    Taken,
}

impl Tickets {
    /// Returns the tickets of the breakers without a verdict.
    pub(super) fn give_back(&mut self, cx: &mut StepContext<'_, '_>) {
        let mut release = |breaker: &mut CircuitBreaker, ticket: BreakerTicket, scope| {
            if ticket.is_probe() {
                cx.notices.push(CallNotice::ProbeMoved { scope });
            }
            breaker.release(ticket);
        };
        if let Some(ticket) = self.tool.take() {
            release(cx.shared.breaker, ticket, BreakerScope::Tool);
        }
        if let (Some(ticket), Some(breaker)) = (self.dependency.take(), cx.shared.dependency.as_deref_mut()) {
            release(breaker, ticket, BreakerScope::Dependency);
        }
    }

    /// Returns everything that was taken for an attempt that is not made.
    pub(super) fn return_unused(mut self, cx: &mut StepContext<'_, '_>) {
        self.give_back(cx);
        if self.permits == PermitState::Taken {
            cx.shared.limiter.withdraw();
            cx.shared.dependency_limiter.withdraw();
        }
    }

    /// Returns the scope of the first ticket that is a probe, after the one that was recorded.
    pub(super) fn probe_after(&self, recorded: Option<BreakerScope>) -> Option<BreakerScope> {
        let is_probe = |ticket: &Option<BreakerTicket>| ticket.as_ref().is_some_and(BreakerTicket::is_probe);
        match recorded {
            None if is_probe(&self.tool) => Some(BreakerScope::Tool),
            None | Some(BreakerScope::Tool) if is_probe(&self.dependency) => Some(BreakerScope::Dependency),
            None | Some(BreakerScope::Tool | BreakerScope::Dependency) => None,
        }
    }

    /// Marks the probe as known to all processes that share this breaker.
    pub(super) fn confirm_probe(&self, scope: BreakerScope, shared: &mut CallMechanisms<'_>) {
        match (scope, shared.dependency.as_deref_mut()) {
            (BreakerScope::Tool, _) => {
                self.tool.iter().for_each(|ticket| shared.breaker.confirm_probe(ticket))
            }
            (BreakerScope::Dependency, Some(breaker)) => {
                self.dependency.iter().for_each(|ticket| breaker.confirm_probe(ticket));
            }
            (BreakerScope::Dependency, None) => {}
        }
    }

    /// Returns true if all tickets are still valid.
    pub(super) fn hold(&self, policy: &BreakerPolicy, cx: &StepContext<'_, '_>) -> bool {
        let holds = |breaker: &CircuitBreaker, ticket: &Option<BreakerTicket>| {
            ticket.as_ref().is_none_or(|ticket| breaker.holds(policy, ticket, cx.now))
        };
        holds(cx.shared.breaker, &self.tool)
            && cx.shared.dependency.as_deref().is_none_or(|breaker| holds(breaker, &self.dependency))
    }
}

pub(super) fn report_transition(
    scope: BreakerScope,
    transition: Option<BreakerTransition>,
    notices: &mut Vec<CallNotice>,
) {
    if let Some(transition) = transition {
        notices.push(CallNotice::BreakerChanged { scope, transition });
    }
}
