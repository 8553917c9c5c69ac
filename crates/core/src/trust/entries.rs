//! The entries of a ledger in status reports and in storage.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::account::{State, TrustAccount};
use super::{FinishedOutcome, TrustScope, TrustState, lenient};
use crate::Timestamp;
use crate::classify::Severity;
use crate::classify::signature::Signature;
use crate::id::{Domain, Namespace, ToolName, ToolRef};

/// The state of one tool, signature or domain, for status and storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ToolReliabilityState {
    /// The scope: a tool, a signature or a domain. Without it the scope follows from the names in the entry.
    #[serde(default = "of_tool")]
    #[cfg_attr(feature = "schema", schemars(required))]
    pub scope: TrustScope,
    /// Name of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<ToolName>,
    /// The plugin or server of the tool. `*` or an absent value means the tool of this name in any plugin.
    #[serde(default, deserialize_with = "lenient::plugin", skip_serializing_if = "Option::is_none")]
    pub plugin_name: Option<Namespace>,
    /// The signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
    /// The host or server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<Domain>,
    /// The trust state.
    #[serde(deserialize_with = "lenient::word")]
    pub state: TrustState,
    /// Failures counted since trust was lost.
    #[serde(default, deserialize_with = "lenient::count")]
    #[cfg_attr(feature = "schema", schemars(required))]
    pub failures_in_window: u32,
    /// Failures since the last success, counted or not.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(required))]
    pub consecutive_failures: u32,
    /// Time of the last failure, counted or not.
    #[serde(default, deserialize_with = "lenient::optional_moment", skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<Timestamp>,
    /// Time of the last success.
    #[serde(default, deserialize_with = "lenient::optional_moment", skip_serializing_if = "Option::is_none")]
    pub last_success: Option<Timestamp>,
    /// Time at which trust was lost.
    #[serde(default, deserialize_with = "lenient::optional_moment", skip_serializing_if = "Option::is_none")]
    pub escalated_at: Option<Timestamp>,
    /// The reason for the escalation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalation_reason: Option<String>,
    /// The end of the escalation, without the cool-down.
    #[serde(default, deserialize_with = "lenient::optional_moment", skip_serializing_if = "Option::is_none")]
    pub escalation_expires: Option<Timestamp>,
    /// Time at which recovery started.
    #[serde(default, deserialize_with = "lenient::optional_moment", skip_serializing_if = "Option::is_none")]
    pub recovery_started: Option<Timestamp>,
    /// Successes since the start of the recovery.
    #[serde(default)]
    pub successes_since_recovery: u32,
    /// Successes that restore trust.
    #[serde(default)]
    pub successes_needed: u32,
    /// Failures that count towards a block.
    #[serde(default)]
    pub failures_while_escalated: u32,
    /// Time of the last counted failure. The cool-down starts there.
    #[serde(default, deserialize_with = "lenient::optional_moment", skip_serializing_if = "Option::is_none")]
    pub last_counted_failure: Option<Timestamp>,
    /// True if trust can recover with time.
    #[serde(default = "yes")]
    pub recoverable: bool,
}

impl ToolReliabilityState {
    pub(super) fn of(
        scope: TrustScope,
        tool: Option<&ToolRef>,
        signature: Option<&Signature>,
        domain: Option<&Domain>,
        account: &TrustAccount,
    ) -> Self {
        let trusted = Self {
            scope,
            tool_name: tool.map(|tool| tool.tool.clone()),
            plugin_name: tool.map(|tool| tool.namespace.clone()),
            signature: signature.cloned(),
            domain: domain.cloned(),
            state: account.state.name(),
            failures_in_window: 0,
            consecutive_failures: account.window.run(),
            last_failure: account.last_failure,
            last_success: account.last_success,
            escalated_at: None,
            escalation_reason: None,
            escalation_expires: None,
            recovery_started: None,
            successes_since_recovery: 0,
            successes_needed: 0,
            failures_while_escalated: 0,
            last_counted_failure: None,
            recoverable: true,
        };
        let text = |reason: &Arc<str>| Some(reason.as_ref().to_owned());
        match &account.state {
            State::Trusted => trusted,
            State::Escalated(escalated) => Self {
                failures_in_window: escalated.failures,
                escalated_at: Some(escalated.at),
                escalation_reason: text(&escalated.reason),
                escalation_expires: Some(escalated.expires),
                successes_needed: escalated.successes_needed,
                failures_while_escalated: escalated.further,
                last_counted_failure: Some(escalated.last_counted),
                recoverable: !escalated.needs_operator,
                ..trusted
            },
            State::Recovering(recovering) => Self {
                failures_in_window: recovering.failures,
                escalation_reason: text(&recovering.reason),
                recovery_started: Some(recovering.at),
                successes_since_recovery: recovering.successes,
                successes_needed: recovering.successes_needed,
                ..trusted
            },
            State::Blocked(blocked) => Self {
                failures_in_window: blocked.failures,
                escalated_at: Some(blocked.at),
                escalation_reason: text(&blocked.reason),
                recoverable: false,
                ..trusted
            },
        }
    }

    /// Returns the tool, if there is one.
    pub fn tool(&self) -> Option<ToolRef> {
        let tool = self.tool_name.clone()?;
        Some(match self.plugin_name.clone() {
            Some(namespace) => ToolRef { namespace, tool },
            None => ToolRef::in_any_namespace(tool),
        })
    }

    /// Returns a readable name that is unique among the entries.
    pub(super) fn name(&self) -> String {
        // Hosts without plugin names find the entry by the tool alone.
        let tool = match self.tool() {
            Some(tool) if tool.is_in_any_namespace() => tool.tool.to_string(),
            Some(tool) => tool.to_string(),
            None => String::new(),
        };
        match (self.scope, &self.signature, &self.domain) {
            (TrustScope::Domain, _, Some(domain)) => format!("domain {domain}"),
            (TrustScope::Signature, Some(signature), _) => format!("{tool} {}", signature.0),
            (TrustScope::Tool | TrustScope::Signature | TrustScope::Domain, _, _) => tool,
        }
    }
}

/// One failure in the history. Arguments are not stored, only the signature derived from them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HistoryEntry {
    /// Name of the tool.
    pub tool_name: ToolName,
    /// The plugin or server of the tool. `*` if it was not given.
    #[serde(default = "lenient::any_plugin", deserialize_with = "lenient::plugin_or_any")]
    #[cfg_attr(feature = "schema", schemars(required))]
    pub plugin_name: Namespace,
    /// The signature. Absent if the tool as a whole was reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
    /// The host or server that it depended on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<Domain>,
    /// The service in a report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Domain>,
    /// The severity of the failure.
    #[serde(deserialize_with = "lenient::word")]
    pub severity: Severity,
    /// True if trust can recover with time.
    #[serde(default = "yes")]
    #[cfg_attr(feature = "schema", schemars(required))]
    pub recoverable: bool,
    /// Time of the failure.
    #[serde(deserialize_with = "lenient::moment")]
    pub timestamp: Timestamp,
    /// True if it still counts for the signature or tool. False after a recovery or a reset.
    #[serde(default)]
    pub counts_for_call: bool,
    /// True if it still counts for the domain.
    #[serde(default)]
    pub counts_for_domain: bool,
}

impl HistoryEntry {
    /// Returns true if it is about this tool.
    pub fn is_about(&self, tool: &ToolRef) -> bool {
        self.tool_name == tool.tool && self.plugin_name == tool.namespace
    }
}

/// Statistics of a host or server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainStats {
    /// Successful calls.
    pub total_successes: u64,
    /// Failed calls.
    pub total_failures: u64,
    /// Failed calls by severity.
    pub failures_by_severity: BTreeMap<Severity, u64>,
    /// Time of the last success.
    #[serde(default, deserialize_with = "lenient::optional_moment", skip_serializing_if = "Option::is_none")]
    pub last_success: Option<Timestamp>,
    /// Time of the last failure.
    #[serde(default, deserialize_with = "lenient::optional_moment", skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<Timestamp>,
}

impl DomainStats {
    pub(super) fn count(&mut self, finished: FinishedOutcome, now: Timestamp) {
        match finished {
            FinishedOutcome::Success => {
                self.total_successes = self.total_successes.saturating_add(1);
                self.last_success = Some(now);
            }
            FinishedOutcome::Failure { severity, .. } => {
                self.total_failures = self.total_failures.saturating_add(1);
                let count = self.failures_by_severity.entry(severity).or_default();
                *count = count.saturating_add(1);
                self.last_failure = Some(now);
            }
        }
    }
}

const fn of_tool() -> TrustScope {
    TrustScope::Tool
}

const fn yes() -> bool {
    true
}
