//! The state machine of one holder of trust; its picture is above [`TrustState`].
//!
//! The step from ESCALATED to RECOVERING happens by the passing of time alone. It is worked out whenever the
//! account is looked at, and written down when the account is next changed, so looking never writes.

use std::sync::Arc;

use super::TrustState;
use super::prompt;
use super::window::{Failed, MOST_FAILURES, Window, exceeds};
use crate::Timestamp;
use crate::classify::Severity;
use crate::id::Domain;
use crate::policy::{Recovery, TrustRule};

/// After so many refusals of access within the window somebody's credentials are wrong.
const REFUSALS_OF_ACCESS: u32 = 3;

/// The trust that one tool, signature or domain enjoys.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    pub(super) state: State,
    pub(super) window: Window,
    pub(super) last_failure: Option<Timestamp>,
    pub(super) last_success: Option<Timestamp>,
    /// The host or server of the last failure; for a signature this is what people know it by.
    pub(super) domain: Option<Domain>,
    /// When it was last trusted again, by what it did or by a person. Trouble that began earlier is over, whoever still has it
    /// written down.
    pub(super) trusted_again: Option<Timestamp>,
}

/// A state with what it has to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    #[default]
    Trusted,
    Escalated(Escalated),
    Recovering(Recovering),
    Blocked(Blocked),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Escalated {
    pub(super) at: Timestamp,
    pub(super) reason: Arc<str>,
    pub(super) expires: Timestamp,
    /// Counted failures since the trouble began.
    pub(super) failures: u32,
    /// Those among them of calls that began after the escalation.
    pub(super) further: u32,
    pub(super) last_counted: Timestamp,
    pub(super) successes_needed: u32,
    /// A failure was reported that time cannot heal.
    pub(super) by_hand: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recovering {
    pub(super) at: Timestamp,
    pub(super) reason: Arc<str>,
    pub(super) failures: u32,
    pub(super) successes: u32,
    pub(super) successes_needed: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blocked {
    pub(super) at: Timestamp,
    pub(super) reason: Arc<str>,
    pub(super) failures: u32,
}

/// A failure as it reaches an account.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    pub(super) severity: Severity,
    pub(super) recoverable: bool,
    /// When the call began. Calls that were under way when trust was lost are no defiance of that.
    pub(super) began: Timestamp,
}

/// A transition that took place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) from: TrustState,
    pub(super) to: TrustState,
    pub(super) reason: Arc<str>,
    pub(super) failures: u32,
    pub(super) until: Option<Timestamp>,
    pub(super) successes_needed: u32,
}

impl Account {
    /// The state at this moment.
    pub(super) fn state(&self, rule: &TrustRule, now: Timestamp) -> TrustState {
        match &self.state {
            State::Escalated(escalated) if escalated.is_over(rule, now) => TrustState::Recovering,
            state @ (State::Trusted | State::Escalated(_) | State::Recovering(_) | State::Blocked(_)) => {
                state.name()
            }
        }
    }

    /// A call went well.
    pub(super) fn succeed(&mut self, rule: &TrustRule, now: Timestamp, steps: &mut Vec<Step>) {
        self.settle(rule, now, steps);
        self.window.success(rule, now);
        self.last_success = Some(now);
        match &mut self.state {
            State::Recovering(recovering) => {
                recovering.successes = recovering.successes.saturating_add(1);
                if recovering.successes >= recovering.successes_needed {
                    let reason = prompt::successes(recovering.successes).into();
                    let failures = recovering.failures;
                    // The fence: what led here is forgiven and does not count again.
                    self.window = Window::default();
                    self.trusted_again = Some(now);
                    let step = Step { reason, failures, ..self.enter(State::Trusted) };
                    steps.push(step);
                }
            }
            State::Trusted | State::Escalated(_) | State::Blocked(_) => {}
        }
    }

    /// A call failed.
    pub(super) fn fail(&mut self, rule: &TrustRule, failure: Failure, now: Timestamp, steps: &mut Vec<Step>) {
        self.settle(rule, now, steps);
        let Failure { severity, recoverable, began } = failure;
        self.window.failure(rule, Failed { at: now, severity, recoverable });
        self.last_failure = Some(now);
        if !counts(rule, severity) {
            return;
        }
        match &mut self.state {
            State::Trusted => {
                if let Some(reason) = self.broken_threshold(rule, severity, now) {
                    let failures = self.window.count(rule.window, now, |severity| counts(rule, severity));
                    let by_hand =
                        self.window.needs_a_person(rule.window, now, |severity| counts(rule, severity));
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
                escalated.by_hand |= !recoverable;
                if began >= escalated.at {
                    escalated.further = escalated.further.saturating_add(1);
                    if escalated.further >= rule.block_after.get() {
                        let reason = prompt::kept_failing(escalated.further, &escalated.reason);
                        let failures = escalated.failures;
                        steps.push(self.block(reason.into(), failures, now));
                    }
                }
            }
            State::Blocked(blocked) => blocked.failures = blocked.failures.saturating_add(1),
        }
    }

    /// Blocks at once, from any state. An account that is blocked keeps its first reason.
    pub(super) fn block(&mut self, reason: Arc<str>, failures: u32, now: Timestamp) -> Step {
        let blocked = Blocked { at: now, reason: Arc::clone(&reason), failures };
        Step { reason, failures, ..self.enter(State::Blocked(blocked)) }
    }

    /// A person lets the recovery begin, whatever the clock or the rule says. Nothing happens to an account
    /// that is not escalated; out of BLOCKED only a reset leads.
    pub(super) fn approve_recovery(&mut self, now: Timestamp) -> Option<Step> {
        match &self.state {
            State::Escalated(escalated) => {
                let recovering = escalated.recovering(now);
                Some(Step { reason: "recovery approved by hand".into(), ..self.recover(recovering) })
            }
            State::Trusted | State::Recovering(_) | State::Blocked(_) => None,
        }
    }

    /// When the recovery begins; nothing if only a person can let it begin, or if there is none to begin.
    pub(super) fn recovers_at(&self, rule: &TrustRule) -> Option<Timestamp> {
        match &self.state {
            State::Escalated(escalated) => escalated.recovers_at(rule),
            State::Trusted | State::Recovering(_) | State::Blocked(_) => None,
        }
    }

    /// Whether this refusal of access is one too many.
    pub(super) fn is_repeated_refusal(&self, rule: &TrustRule, now: Timestamp) -> bool {
        self.window.count(rule.window, now, is_refusal).saturating_add(1) >= REFUSALS_OF_ACCESS
    }

    /// Writes down the step that time alone brought.
    fn settle(&mut self, rule: &TrustRule, now: Timestamp, steps: &mut Vec<Step>) {
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

    fn recover(&mut self, recovering: Recovering) -> Step {
        let (failures, successes_needed) = (recovering.failures, recovering.successes_needed);
        let reason = "the time of escalation is over".into();
        Step { reason, failures, successes_needed, ..self.enter(State::Recovering(recovering)) }
    }

    fn escalate(
        &mut self,
        rule: &TrustRule,
        reason: String,
        failures: u32,
        by_hand: bool,
        now: Timestamp,
    ) -> Step {
        let escalated = Escalated {
            at: now,
            reason: reason.into(),
            expires: now + rule.duration,
            failures,
            further: 0,
            last_counted: now,
            successes_needed: rule.successes_to_recover.get(),
            by_hand,
        };
        let step = Step {
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

    fn enter(&mut self, state: State) -> Step {
        let (from, to) = (self.state.name(), state.name());
        self.state = state;
        Step { from, to, reason: Arc::default(), failures: 0, until: None, successes_needed: 0 }
    }

    /// Which threshold the failure that was just noted has broken, in words. Several thresholds mean any.
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

impl Step {
    /// Back to TRUSTED by the hand of a person.
    pub(super) fn to_trusted(from: TrustState, reason: &str) -> Self {
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

impl Escalated {
    /// The later of the end of the escalation and the end of the cool-down.
    fn recovers_at(&self, rule: &TrustRule) -> Option<Timestamp> {
        match rule.recovery {
            Recovery::Auto if !self.by_hand => Some(self.expires.max(self.last_counted + rule.cooldown)),
            Recovery::Auto | Recovery::Ask => None,
        }
    }

    fn is_over(&self, rule: &TrustRule, now: Timestamp) -> bool {
        self.recovers_at(rule).is_some_and(|at| now >= at)
    }

    fn recovering(&self, at: Timestamp) -> Recovering {
        Recovering {
            at,
            reason: Arc::clone(&self.reason),
            failures: self.failures,
            successes: 0,
            successes_needed: self.successes_needed,
        }
    }
}

/// Whether failures of this severity count. Critical ones do whatever the filter says.
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
