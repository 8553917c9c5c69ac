//! The state machine of one trust account. Its diagram is above [`TrustState`].
//!
//! The step from ESCALATED to RECOVERING happens by time alone. It is computed on each query and stored with the next
//! change of the account, so a query never writes.

use std::sync::Arc;

use super::TrustState;
use super::prompt;
use super::window::{FailureWindow, MOST_FAILURES, WindowFailure, exceeds};
use crate::Timestamp;
use crate::classify::Severity;
use crate::id::Domain;
use crate::policy::{TrustRecovery, TrustRule};

/// Number of denials of access within the window after which the credentials must be wrong.
const REFUSALS_OF_ACCESS: u32 = 3;

/// The trust account of one tool, signature or domain.
#[derive(Clone, Debug, Default)]
pub(super) struct TrustAccount {
    pub(super) state: State,
    pub(super) window: FailureWindow,
    pub(super) last_failure: Option<Timestamp>,
    pub(super) last_success: Option<Timestamp>,
    /// The host or server of the last failure. For a signature it is part of the name that is shown.
    pub(super) domain: Option<Domain>,
    /// Time at which trust was last restored, by successes or by an operator. A loss of trust before that time is over,
    /// even if a stored snapshot still has it.
    pub(super) trust_restored_at: Option<Timestamp>,
}

/// A trust state with its data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    #[default]
    Trusted,
    Escalated(EscalatedState),
    Recovering(RecoveringState),
    Blocked(BlockedState),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EscalatedState {
    pub(super) at: Timestamp,
    pub(super) reason: Arc<str>,
    pub(super) expires: Timestamp,
    /// Counted failures since trust was lost.
    pub(super) failures: u32,
    /// The failures among them of calls that started after the escalation.
    pub(super) further: u32,
    pub(super) last_counted: Timestamp,
    pub(super) successes_needed: u32,
    /// True if a failure was reported that time cannot heal.
    pub(super) needs_operator: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecoveringState {
    pub(super) at: Timestamp,
    pub(super) reason: Arc<str>,
    pub(super) failures: u32,
    pub(super) successes: u32,
    pub(super) successes_needed: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BlockedState {
    pub(super) at: Timestamp,
    pub(super) reason: Arc<str>,
    pub(super) failures: u32,
}

/// A failure of one account.
#[derive(Clone, Copy, Debug)]
pub(super) struct AccountFailure {
    pub(super) severity: Severity,
    pub(super) recoverable: bool,
    /// Start of the call. Calls that were in flight when trust was lost do not count towards a block.
    pub(super) began: Timestamp,
}

/// A transition of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AccountTransition {
    pub(super) from: TrustState,
    pub(super) to: TrustState,
    pub(super) reason: Arc<str>,
    pub(super) failures: u32,
    pub(super) until: Option<Timestamp>,
    pub(super) successes_needed: u32,
}

impl TrustAccount {
    /// Returns the state at this time.
    pub(super) fn state(&self, rule: &TrustRule, now: Timestamp) -> TrustState {
        match &self.state {
            State::Escalated(escalated) if escalated.is_over(rule, now) => TrustState::Recovering,
            state @ (State::Trusted | State::Escalated(_) | State::Recovering(_) | State::Blocked(_)) => {
                state.name()
            }
        }
    }

    /// Records a success.
    pub(super) fn succeed(&mut self, rule: &TrustRule, now: Timestamp, steps: &mut Vec<AccountTransition>) {
        self.settle(rule, now, steps);
        self.window.success(rule, now);
        self.last_success = Some(now);
        match &mut self.state {
            State::Recovering(recovering) => {
                recovering.successes = recovering.successes.saturating_add(1);
                if recovering.successes >= recovering.successes_needed {
                    let reason = prompt::successes(recovering.successes).into();
                    let failures = recovering.failures;
                    // The failures that led here are cleared and do not count again.
                    self.window = FailureWindow::default();
                    self.trust_restored_at = Some(now);
                    let step = AccountTransition { reason, failures, ..self.enter(State::Trusted) };
                    steps.push(step);
                }
            }
            State::Trusted | State::Escalated(_) | State::Blocked(_) => {}
        }
    }

    /// Records a failure.
    pub(super) fn fail(
        &mut self,
        rule: &TrustRule,
        failure: AccountFailure,
        now: Timestamp,
        steps: &mut Vec<AccountTransition>,
    ) {
        self.settle(rule, now, steps);
        let AccountFailure { severity, recoverable, began } = failure;
        self.window.failure(rule, WindowFailure { at: now, severity, recoverable });
        self.last_failure = Some(now);
        if !counts(rule, severity) {
            return;
        }
        match &mut self.state {
            State::Trusted => {
                if let Some(reason) = self.broken_threshold(rule, severity, now) {
                    let failures = self.window.count(rule.window, now, |severity| counts(rule, severity));
                    let by_hand =
                        self.window.needs_operator(rule.window, now, |severity| counts(rule, severity));
                    steps.push(self.escalate(rule, reason, failures, by_hand, now));
                }
            }
            State::Recovering(recovering) => {
                let failures = recovering.failures.saturating_add(1);
                let reason = prompt::failed_while_recovering(severity);
                steps.push(self.escalate(rule, reason, failures, !recoverable, now));
            }
            State::Escalated(escalated) => {
                escalated.last_counted = now;
                escalated.failures = escalated.failures.saturating_add(1);
                escalated.needs_operator |= !recoverable;
                if began >= escalated.at {
                    escalated.further = escalated.further.saturating_add(1);
                    if escalated.further >= rule.block_after.get() {
                        let reason = prompt::further_failures(escalated.further, &escalated.reason);
                        let failures = escalated.failures;
                        steps.push(self.block(reason.into(), failures, now));
                    }
                }
            }
            State::Blocked(blocked) => blocked.failures = blocked.failures.saturating_add(1),
        }
    }

    /// Blocks at once, from any state. A blocked account keeps its first reason.
    pub(super) fn block(&mut self, reason: Arc<str>, failures: u32, now: Timestamp) -> AccountTransition {
        let blocked = BlockedState { at: now, reason: Arc::clone(&reason), failures };
        AccountTransition { reason, failures, ..self.enter(State::Blocked(blocked)) }
    }

    /// Starts the recovery by approval of an operator, before its time. Has no effect on an account that is not
    /// escalated. Only a reset leads out of BLOCKED.
    pub(super) fn approve_recovery(&mut self, now: Timestamp) -> Option<AccountTransition> {
        match &self.state {
            State::Escalated(escalated) => {
                let recovering = escalated.recovering(now);
                Some(AccountTransition {
                    reason: "recovery approved by an operator".into(),
                    ..self.recover(recovering)
                })
            }
            State::Trusted | State::Recovering(_) | State::Blocked(_) => None,
        }
    }

    /// Returns the start of the recovery. None if only an operator can start it, or if the account is not escalated.
    pub(super) fn recovers_at(&self, rule: &TrustRule) -> Option<Timestamp> {
        match &self.state {
            State::Escalated(escalated) => escalated.recovers_at(rule),
            State::Trusted | State::Recovering(_) | State::Blocked(_) => None,
        }
    }

    /// Returns true if this denial of access reaches the limit.
    pub(super) fn is_repeated_refusal(&self, rule: &TrustRule, now: Timestamp) -> bool {
        self.window.count(rule.window, now, is_refusal).saturating_add(1) >= REFUSALS_OF_ACCESS
    }

    /// Stores the step that time alone caused.
    fn settle(&mut self, rule: &TrustRule, now: Timestamp, steps: &mut Vec<AccountTransition>) {
        let due = match &self.state {
            State::Escalated(escalated) if escalated.is_over(rule, now) => {
                escalated.recovers_at(rule).map(|at| escalated.recovering(at))
            }
            State::Trusted | State::Escalated(_) | State::Recovering(_) | State::Blocked(_) => None,
        };
        if let Some(recovering) = due {
            steps.push(self.recover(recovering));
        }
    }

    fn recover(&mut self, recovering: RecoveringState) -> AccountTransition {
        let (failures, successes_needed) = (recovering.failures, recovering.successes_needed);
        let reason = "the escalation has expired".into();
        AccountTransition { reason, failures, successes_needed, ..self.enter(State::Recovering(recovering)) }
    }

    fn escalate(
        &mut self,
        rule: &TrustRule,
        reason: String,
        failures: u32,
        by_hand: bool,
        now: Timestamp,
    ) -> AccountTransition {
        let escalated = EscalatedState {
            at: now,
            reason: reason.into(),
            expires: now + rule.duration,
            failures,
            further: 0,
            last_counted: now,
            successes_needed: rule.successes_to_recover.get(),
            needs_operator: by_hand,
        };
        let step = AccountTransition {
            from: self.state.name(),
            to: TrustState::Escalated,
            reason: Arc::clone(&escalated.reason),
            failures,
            until: escalated.recovers_at(rule),
            successes_needed: escalated.successes_needed,
        };
        self.state = State::Escalated(escalated);
        step
    }

    fn enter(&mut self, state: State) -> AccountTransition {
        let (from, to) = (self.state.name(), state.name());
        self.state = state;
        AccountTransition { from, to, reason: Arc::default(), failures: 0, until: None, successes_needed: 0 }
    }

    /// Returns the threshold that the new failure has reached, as text. Any one of several thresholds is enough.
    fn broken_threshold(&self, rule: &TrustRule, severity: Severity, now: Timestamp) -> Option<String> {
        let fits = |severity| counts(rule, severity);
        let most = u32::try_from(MOST_FAILURES).unwrap_or(u32::MAX);
        if severity == Severity::RepeatedAuth {
            let refusals = self.window.count(rule.window, now, is_refusal);
            return Some(prompt::refusals_of_access(refusals, rule.window));
        }
        if let Some(threshold) = rule.count {
            let failures = self.window.count(rule.window, now, fits);
            if failures >= threshold.get().min(most) {
                return Some(prompt::failures_in(failures, rule.window));
            }
        }
        if let Some(threshold) = rule.consecutive {
            let failures = self.window.consecutive(rule.window, now, fits);
            if failures >= threshold.get().min(most) {
                return Some(prompt::failures_in_a_row(failures));
            }
        }
        if let Some(rate) = rule.rate {
            let (failed, calls) = self.window.share(rule.window, now, fits);
            if calls >= rule.rate_at_least.get() && exceeds(rate, rule.expected_failure_rate, failed, calls) {
                return Some(prompt::share_failed(failed, calls, rule.window));
            }
        }
        None
    }
}

impl AccountTransition {
    /// Returns the transition to TRUSTED by an operator.
    pub(super) fn restored(from: TrustState, reason: &str) -> Self {
        let reason = reason.into();
        Self { from, to: TrustState::Trusted, reason, failures: 0, until: None, successes_needed: 0 }
    }
}

impl State {
    pub(super) const fn name(&self) -> TrustState {
        match self {
            Self::Trusted => TrustState::Trusted,
            Self::Escalated(_) => TrustState::Escalated,
            Self::Recovering(_) => TrustState::Recovering,
            Self::Blocked(_) => TrustState::Blocked,
        }
    }
}

impl EscalatedState {
    /// Returns the later of the end of the escalation and the end of the cool-down.
    fn recovers_at(&self, rule: &TrustRule) -> Option<Timestamp> {
        match rule.recovery {
            TrustRecovery::Auto if !self.needs_operator => {
                Some(self.expires.max(self.last_counted + rule.cooldown))
            }
            TrustRecovery::Auto | TrustRecovery::Ask => None,
        }
    }

    fn is_over(&self, rule: &TrustRule, now: Timestamp) -> bool {
        self.recovers_at(rule).is_some_and(|at| now >= at)
    }

    fn recovering(&self, at: Timestamp) -> RecoveringState {
        RecoveringState {
            at,
            reason: Arc::clone(&self.reason),
            failures: self.failures,
            successes: 0,
            successes_needed: self.successes_needed,
        }
    }
}

/// Returns true if failures of this severity count. Critical ones count with any filter.
fn counts(rule: &TrustRule, severity: Severity) -> bool {
    is_critical(severity) || rule.severities.contains(&severity)
}

const fn is_critical(severity: Severity) -> bool {
    match severity {
        Severity::Security | Severity::RepeatedAuth => true,
        Severity::Informational
        | Severity::Transient
        | Severity::NotFound
        | Severity::InvalidInput
        | Severity::Permission
        | Severity::Validation
        | Severity::Timeout
        | Severity::ServerError
        | Severity::Crash
        | Severity::Corruption => false,
    }
}

fn is_refusal(severity: Severity) -> bool {
    severity == Severity::Permission || severity == Severity::RepeatedAuth
}
