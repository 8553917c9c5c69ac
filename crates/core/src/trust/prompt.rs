//! Texts for users: reasons, prompts and notifications. Every number in them is exact.

use std::time::Duration;

use super::{Escalation, PromptLevel, TrustChange, TrustScope, TrustState};
use crate::Timestamp;
use crate::classify::Severity;
use crate::id::{Domain, ToolRef};
use crate::millis;

/// The format of the lines of a prompt.
const FORMAT_HINT: &str = "text";

/// The facts of a prompt.
#[derive(Clone, Copy, Debug)]
pub(super) struct PromptFacts<'a> {
    pub(super) tool: &'a ToolRef,
    /// The domain, if the domain lost trust.
    pub(super) domain: Option<&'a Domain>,
    pub(super) state: TrustState,
    pub(super) reason: &'a str,
    pub(super) failures: u32,
    pub(super) window: Duration,
    pub(super) recovers_at: Option<Timestamp>,
    pub(super) successes_needed: u32,
}

impl Escalation {
    pub(super) fn of(facts: PromptFacts<'_>) -> Self {
        let PromptFacts { tool, domain, state, reason, failures, window, recovers_at, successes_needed } =
            facts;
        let label = match domain {
            Some(domain) => format!("{tool} (everything that uses {domain})"),
            None => tool.to_string(),
        };
        let (summary, recovery_hint, level) = match state {
            TrustState::Blocked => (
                format!("{label} is blocked"),
                "only a reset by an operator ends this; until then an operator may approve single calls"
                    .to_owned(),
                PromptLevel::Error,
            ),
            TrustState::Escalated | TrustState::Recovering | TrustState::Trusted => (
                format!("{label} has lost trust and needs approval"),
                match recovers_at {
                    Some(at) => format!(
                        "runs without approval after {at}; {} then restore trust",
                        successes(successes_needed)
                    ),
                    None => format!(
                        "an operator has to approve its recovery; {} then restore trust",
                        successes(successes_needed)
                    ),
                },
                PromptLevel::Warning,
            ),
        };
        let window = span(window);
        let warnings = vec![
            format!("why: {reason}"),
            format!("counted failures: {failures} (window: {window})"),
            recovery_hint.clone(),
        ];
        let reason = reason.to_owned();
        let format_hint = FORMAT_HINT.to_owned();
        Self {
            state,
            reason,
            failures,
            window,
            recovery_hint,
            waits_for_recovery: state == TrustState::Escalated && recovers_at.is_none(),
            domain: domain.cloned(),
            summary,
            warnings,
            level,
            format_hint,
        }
    }

    /// Returns the prompt for a trusted tool that requires approval before every call.
    pub fn routine(tool: &ToolRef) -> Self {
        let reason = "this tool requires approval before every call";
        Self::trusted(tool, format!("{tool} needs approval"), reason, PromptLevel::Info)
    }

    /// Returns the prompt for a model that asks to restore trust in a tool.
    pub fn trust_restoration(tool: &ToolRef, forgiven: &str) -> Self {
        let reason = format!("the model asks to restore trust in {forgiven}");
        let recovery_hint = format!("without approval {forgiven} regains trust by its own rule");
        let summary = format!("Restore trust in {forgiven}?");
        Self { recovery_hint, ..Self::trusted(tool, summary, &reason, PromptLevel::Warning) }
    }

    /// Returns the prompt for a command with a dangerous shape, before it runs.
    pub fn dangerous(tool: &ToolRef, shape: &str) -> Self {
        let reason = format!("the command has a dangerous shape: {shape}");
        Self::trusted(tool, format!("{tool} wants to run a dangerous command"), &reason, PromptLevel::Error)
    }

    fn trusted(tool: &ToolRef, summary: String, reason: &str, level: PromptLevel) -> Self {
        Self {
            state: TrustState::Trusted,
            reason: reason.to_owned(),
            failures: 0,
            window: String::new(),
            recovery_hint: format!("{tool} has not lost trust; the policy decides when it asks"),
            waits_for_recovery: false,
            domain: None,
            summary,
            warnings: vec![format!("why: {reason}")],
            level,
            format_hint: FORMAT_HINT.to_owned(),
        }
    }
}

impl TrustChange {
    /// Returns the text of a notification.
    pub fn message(&self) -> String {
        let label = match (self.scope, &self.tool, &self.domain) {
            (TrustScope::Domain, _, Some(domain)) => format!("everything that uses {domain}"),
            (TrustScope::Signature, Some(tool), Some(domain)) => format!("{tool} at {domain}"),
            (TrustScope::Signature | TrustScope::Tool, Some(tool), _) => tool.to_string(),
            (TrustScope::Domain | TrustScope::Signature | TrustScope::Tool, _, _) => self.subject.to_string(),
        };
        let reason = &self.reason;
        match self.to {
            TrustState::Escalated => {
                let end = match self.until {
                    Some(until) => format!("until {until}"),
                    None => "until an operator approves its recovery".to_owned(),
                };
                let needed = successes(self.successes_needed);
                format!("{label} needs approval {end}: {reason}; {needed} after that restore trust")
            }
            TrustState::Blocked => format!("{label} is blocked until an operator resets it: {reason}"),
            TrustState::Recovering => {
                format!("{label} is recovering: {reason}; {} restore trust", successes(self.successes_needed))
            }
            TrustState::Trusted => format!("{label} is trusted again: {reason}"),
        }
    }
}

/// Returns the text for failures in the window.
pub(super) fn failures_in(failures: u32, window: Duration) -> String {
    format!("{} in {}", plural(failures, "failure"), span(window))
}

/// Returns the text for failures without a success between them.
pub(super) fn failures_in_a_row(failures: u32) -> String {
    format!("{} in a row", plural(failures, "failure"))
}

/// Returns the text for a share of failures.
pub(super) fn share_failed(failed: u32, calls: u32, window: Duration) -> String {
    format!("{failed} of {} failed in {}", plural(calls, "call"), span(window))
}

/// Returns the text for repeated denials of access. A report may state them without any recorded denial.
pub(super) fn refusals_of_access(refusals: u32, window: Duration) -> String {
    match refusals {
        0 | 1 => "access is denied repeatedly".to_owned(),
        times => format!("access denied {times} times in {}", span(window)),
    }
}

/// Returns the text for a failure while recovering.
pub(super) fn failed_while_recovering(severity: Severity) -> String {
    format!("failed again while recovering ({})", severity_name(severity))
}

/// Returns the text for further failures of approved calls.
pub(super) fn further_failures(further: u32, first: &str) -> String {
    format!("{} while approval was needed (first: {first})", plural(further, "more failure"))
}

/// Returns the text for a number of successes.
pub(super) fn successes(count: u32) -> String {
    match count {
        1 => "1 successful call".to_owned(),
        many => format!("{many} successful calls"),
    }
}

/// Returns the name of a severity in the configuration.
fn severity_name(severity: Severity) -> &'static str {
    match severity {
        Severity::Informational => "informational",
        Severity::Transient => "transient",
        Severity::NotFound => "not_found",
        Severity::InvalidInput => "invalid_input",
        Severity::Permission => "permission",
        Severity::Validation => "validation",
        Severity::Timeout => "timeout",
        Severity::ServerError => "server_error",
        Severity::Crash => "crash",
        Severity::Corruption => "corruption",
        Severity::Security => "security",
        Severity::RepeatedAuth => "repeated_auth",
    }
}

fn plural(count: u32, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// Returns an exact duration in the largest possible units.
fn span(span: Duration) -> String {
    let total = millis(span);
    let parts = [
        (total / 3_600_000, "h"),
        (total / 60_000 % 60, "min"),
        (total / 1000 % 60, "s"),
        (total % 1000, "ms"),
    ];
    let words: Vec<_> = parts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, unit)| format!("{count} {unit}"))
        .collect();
    if words.is_empty() { "0 s".to_owned() } else { words.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_exact() {
        for (millis, words) in [
            (3_600_000, "1 h"),
            (5_400_000, "1 h 30 min"),
            (300_000, "5 min"),
            (90_500, "1 min 30 s 500 ms"),
            (0, "0 s"),
        ] {
            assert_eq!(span(Duration::from_millis(millis)), words);
        }
    }

    #[test]
    fn severities_are_named_as_in_configuration() {
        for severity in [Severity::InvalidInput, Severity::RepeatedAuth, Severity::ServerError] {
            assert_eq!(serde_json::to_value(severity).unwrap(), severity_name(severity));
        }
    }
}
