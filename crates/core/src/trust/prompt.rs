//! The words that people read: reasons, prompts and notifications. Every number in them is exact.

use std::time::Duration;

use super::{Escalation, Level, Scope, TrustChange, TrustState};
use crate::Timestamp;
use crate::classify::Severity;
use crate::id::{Domain, ToolRef};
use crate::millis;

/// How the lines of a prompt are shown.
const FORMAT_HINT: &str = "text";

/// What a prompt is made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) tool: &'a ToolRef,
    /// The domain, if it is the domain that lost trust.
    pub(super) domain: Option<&'a Domain>,
    pub(super) state: TrustState,
    pub(super) reason: &'a str,
    pub(super) failures: u32,
    pub(super) window: Duration,
    pub(super) recovers_at: Option<Timestamp>,
    pub(super) successes_needed: u32,
}

impl Escalation {
    pub(super) fn of(facts: Facts<'_>) -> Self {
        let Facts { tool, domain, state, reason, failures, window, recovers_at, successes_needed } = facts;
        let whom = match domain {
            Some(domain) => format!("{tool} (everything that uses {domain})"),
            None => tool.to_string(),
        };
        let (summary, recovery_hint, level) = match state {
            TrustState::Blocked => (
                format!("{whom} is blocked"),
                "only a reset by an operator ends this; until then an operator may approve single calls"
                    .to_owned(),
                Level::Error,
            ),
            TrustState::Escalated | TrustState::Recovering | TrustState::Trusted => (
                format!("{whom} has lost trust and needs approval"),
                match recovers_at {
                    Some(at) => format!(
                        "runs freely again after {at}; {} then restore trust",
                        successes(successes_needed)
                    ),
                    None => format!(
                        "a person has to let it recover; {} then restore trust",
                        successes(successes_needed)
                    ),
                },
                Level::Warning,
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

    /// The prompt for a tool that is trusted and asks before every call all the same.
    pub fn routine(tool: &ToolRef) -> Self {
        let reason = "this tool is set to ask before every call";
        Self::trusted(tool, format!("{tool} needs approval"), reason, Level::Info)
    }

    /// The prompt for a model that wants what counts against tools to be forgotten.
    pub fn forgiveness(tool: &ToolRef, forgiven: &str) -> Self {
        let reason = format!("the model asks to forget what counts against {forgiven}");
        let recovery_hint = format!("without it {forgiven} earns its trust back as its rule says");
        let summary = format!("Forgive {forgiven}?");
        Self { recovery_hint, ..Self::trusted(tool, summary, &reason, Level::Warning) }
    }

    /// The prompt for a command of a dangerous shape, before it runs.
    pub fn dangerous(tool: &ToolRef, shape: &str) -> Self {
        let reason = format!("the command has a dangerous shape: {shape}");
        Self::trusted(tool, format!("{tool} wants to run a dangerous command"), &reason, Level::Error)
    }

    fn trusted(tool: &ToolRef, summary: String, reason: &str, level: Level) -> Self {
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
    /// What a notification says.
    pub fn message(&self) -> String {
        let whom = match (self.scope, &self.tool, &self.domain) {
            (Scope::Domain, _, Some(domain)) => format!("everything that uses {domain}"),
            (Scope::Signature, Some(tool), Some(domain)) => format!("{tool} at {domain}"),
            (Scope::Signature | Scope::Tool, Some(tool), _) => tool.to_string(),
            (Scope::Domain | Scope::Signature | Scope::Tool, _, _) => self.subject.to_string(),
        };
        let reason = &self.reason;
        match self.to {
            TrustState::Escalated => {
                let end = match self.until {
                    Some(until) => format!("until {until}"),
                    None => "until a person lets it recover".to_owned(),
                };
                let needed = successes(self.successes_needed);
                format!("{whom} needs approval {end}: {reason}; {needed} after that restore trust")
            }
            TrustState::Blocked => format!("{whom} is blocked until an operator resets it: {reason}"),
            TrustState::Recovering => {
                format!("{whom} is on trial: {reason}; {} restore trust", successes(self.successes_needed))
            }
            TrustState::Trusted => format!("{whom} is trusted again: {reason}"),
        }
    }
}

/// So many failures in the window.
pub(super) fn failures_in(failures: u32, window: Duration) -> String {
    format!("{} in {}", plural(failures, "failure"), span(window))
}

/// So many failures without a success between them.
pub(super) fn failures_in_a_row(failures: u32) -> String {
    format!("{} in a row", plural(failures, "failure"))
}

/// Such a share of failures.
pub(super) fn share_failed(failed: u32, calls: u32, window: Duration) -> String {
    format!("{failed} of {} failed in {}", plural(calls, "call"), span(window))
}

/// Access denied too often; a report may say so without any refusal that we have seen.
pub(super) fn refusals_of_access(refusals: u32, window: Duration) -> String {
    match refusals {
        0 | 1 => "access is denied again and again".to_owned(),
        times => format!("access denied {times} times in {}", span(window)),
    }
}

/// A failure on trial.
pub(super) fn failed_while_recovering(severity: Severity) -> String {
    format!("failed again while recovering ({})", severity_name(severity))
}

/// Approved calls went on failing.
pub(super) fn kept_failing(further: u32, first: &str) -> String {
    format!("{} while approval was needed (first: {first})", plural(further, "more failure"))
}

/// So many successes.
pub(super) fn successes(count: u32) -> String {
    match count {
        1 => "1 successful call".to_owned(),
        many => format!("{many} successful calls"),
    }
}

/// The severity as it is written in configuration.
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

/// A span in the largest units that say it exactly.
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
