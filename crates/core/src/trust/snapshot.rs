//! What is kept across a restart: everything that is not trusted, a bounded history, and domain statistics.
//!
//! Accounts that are trusted are not written; the failures that still count for them are in the history and
//! are put back into their windows from there. Which calls went well beside them is not known any more, so after
//! a restart they count, but they join neither a run nor a share of failures.
//!
//! The same form is read from hosts that keep such a file themselves: dates as ISO 8601 texts, entries that do not say
//! their scope or the plugin of their tool, and counts that are not whole (`lenient`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::account::{Account, Blocked, Escalated, Recovering, State};
use super::lenient;
use super::shelf::Shelf;
use super::window::Failed;
use super::{Bounds, Finished, Scope, Signature, TrustLedger, TrustState};
use crate::Timestamp;
use crate::classify::Severity;
use crate::id::{Domain, Namespace, ToolName, ToolRef};

/// A ledger as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The version of this format.
    #[serde(default = "first_version")]
    pub version: u32,
    /// What is not trusted, by a name that people can read.
    #[serde(default)]
    pub tool_states: BTreeMap<String, ToolReliabilityState>,
    /// The newest failures, oldest first.
    #[serde(default)]
    pub failure_history: Vec<HistoryEntry>,
    /// Sums per host or server.
    #[serde(default)]
    pub domain_stats: BTreeMap<Domain, DomainStats>,
    /// Set when everything is blocked because there was no room to tell the blocked tools apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_blocked: Option<BlockedSince>,
    /// When it was written; zero if it does not say so.
    #[serde(default, deserialize_with = "lenient::moment")]
    pub last_updated: Timestamp,
    /// When the ledger began; zero if it does not say so.
    #[serde(default, deserialize_with = "lenient::moment")]
    pub created: Timestamp,
}

/// When and why everything was blocked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedSince {
    /// When.
    #[serde(deserialize_with = "lenient::moment")]
    pub at: Timestamp,
    /// Why.
    pub reason: String,
}

/// The state of one tool, signature or domain, for status and storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ToolReliabilityState {
    /// Whether a tool, a signature or a domain is meant. An entry that does not say it is about whichever it names.
    #[serde(default = "of_tool")]
    #[cfg_attr(feature = "schema", schemars(required))]
    pub scope: Scope,
    /// The tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<ToolName>,
    /// The plugin or server that it belongs to; `*`, or nothing, for the tool of this name
    /// wherever it belongs.
    #[serde(default, deserialize_with = "lenient::plugin", skip_serializing_if = "Option::is_none")]
    pub plugin_name: Option<Namespace>,
    /// The signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
    /// The host or server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<Domain>,
    /// How far it is trusted.
    #[serde(deserialize_with = "lenient::word")]
    pub state: TrustState,
    /// Failures counted since the trouble began.
    #[serde(default, deserialize_with = "lenient::count")]
    #[cfg_attr(feature = "schema", schemars(required))]
    pub failures_in_window: u32,
    /// Failures since the last success, counted or not.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(required))]
    pub consecutive_failures: u32,
    /// The last failure, counted or not.
    #[serde(default, deserialize_with = "lenient::optional_moment", skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<Timestamp>,
    /// The last success.
    #[serde(default, deserialize_with = "lenient::optional_moment", skip_serializing_if = "Option::is_none")]
    pub last_success: Option<Timestamp>,
    /// When trust was lost.
    #[serde(default, deserialize_with = "lenient::optional_moment", skip_serializing_if = "Option::is_none")]
    pub escalated_at: Option<Timestamp>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalation_reason: Option<String>,
    /// The end of the escalation, before the cool-down is looked at.
    #[serde(default, deserialize_with = "lenient::optional_moment", skip_serializing_if = "Option::is_none")]
    pub escalation_expires: Option<Timestamp>,
    /// When recovery began.
    #[serde(default, deserialize_with = "lenient::optional_moment", skip_serializing_if = "Option::is_none")]
    pub recovery_started: Option<Timestamp>,
    /// Successes since then.
    #[serde(default)]
    pub successes_since_recovery: u32,
    /// Successes that restore trust.
    #[serde(default)]
    pub successes_needed: u32,
    /// Failures that bring a block nearer.
    #[serde(default)]
    pub failures_while_escalated: u32,
    /// The last failure that counted; the cool-down runs from there.
    #[serde(default, deserialize_with = "lenient::optional_moment", skip_serializing_if = "Option::is_none")]
    pub last_counted_failure: Option<Timestamp>,
    /// Whether time can heal it.
    #[serde(default = "yes")]
    pub recoverable: bool,
}

/// One failure in the history. Arguments are not kept, only the signature made from them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HistoryEntry {
    /// The tool.
    pub tool_name: ToolName,
    /// The plugin or server that it belongs to; `*` if that was not said.
    #[serde(default = "lenient::any_plugin", deserialize_with = "lenient::plugin_or_any")]
    #[cfg_attr(feature = "schema", schemars(required))]
    pub plugin_name: Namespace,
    /// The signature; without one the tool as a whole was reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
    /// The host or server that it depended on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<Domain>,
    /// The service that a report named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Domain>,
    /// How bad it was.
    #[serde(deserialize_with = "lenient::word")]
    pub severity: Severity,
    /// Whether time can heal it.
    #[serde(default = "yes")]
    #[cfg_attr(feature = "schema", schemars(required))]
    pub recoverable: bool,
    /// When.
    #[serde(deserialize_with = "lenient::moment")]
    pub timestamp: Timestamp,
    /// Whether it still counts for the signature or tool: not after a recovery or a reset.
    #[serde(default)]
    pub counts_for_call: bool,
    /// The same for the domain.
    #[serde(default)]
    pub counts_for_domain: bool,
}

/// Sums per host or server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainStats {
    /// Calls that went well.
    pub total_successes: u64,
    /// Calls that failed.
    pub total_failures: u64,
    /// How they failed.
    pub failures_by_severity: BTreeMap<Severity, u64>,
    /// The last success.
    #[serde(default, deserialize_with = "lenient::optional_moment", skip_serializing_if = "Option::is_none")]
    pub last_success: Option<Timestamp>,
    /// The last failure.
    #[serde(default, deserialize_with = "lenient::optional_moment", skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<Timestamp>,
}

/// Why a stored ledger cannot be used. Whoever read it should put it aside and not write over it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SnapshotError {
    /// It cannot be read.
    Unreadable {
        /// The line of the mistake, from 1.
        line: usize,
        /// The column of it.
        column: usize,
        /// What is wrong there.
        problem: String,
    },
    /// A version that this program does not know.
    UnknownVersion {
        /// The version found.
        found: u32,
    },
    /// A state that lacks what such a state must have.
    Inconsistent {
        /// The name of the entry.
        entry: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// It holds more than the ledger may.
    TooMany {
        /// Of what.
        what: Scope,
        /// How many were found.
        found: usize,
        /// How many are allowed.
        allowed: usize,
    },
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { line, column, problem } => {
                write!(f, "the stored trust cannot be read: line {line}, column {column}: {problem}")
            }
            Self::UnknownVersion { found } => write!(
                f,
                "the stored trust has version {found}, this program knows version {}; use a newer program",
                Snapshot::VERSION
            ),
            Self::Inconsistent { entry, problem } => {
                write!(f, "the stored trust of {entry:?} is wrong: {problem}")
            }
            Self::TooMany { what, found, allowed } => write!(
                f,
                "the stored trust has {found} entries of scope {what:?}, {allowed} are allowed; raise the bound"
            ),
        }
    }
}

impl std::error::Error for SnapshotError {}

impl Snapshot {
    /// The version that is written.
    pub const VERSION: u32 = 1;

    /// Reads a stored ledger of any version that is known, and brings it to the present one.
    pub fn read(text: &str) -> Result<Self, SnapshotError> {
        #[derive(Deserialize)]
        struct Header {
            #[serde(default = "first_version")]
            version: u32,
            /// With this a list, whose members would be taken for the fields in their order, is refused.
            #[serde(flatten)]
            _fields: IgnoredAny,
        }
        let header: Header = serde_json::from_str(text).map_err(unreadable)?;
        // A later version adds an arm here that reads the older type and converts it.
        match header.version {
            Self::VERSION => serde_json::from_str(text).map_err(unreadable),
            found => Err(SnapshotError::UnknownVersion { found }),
        }
    }
}

impl TrustLedger {
    /// What is worth keeping across a restart.
    pub fn snapshot(&self, now: Timestamp) -> Snapshot {
        Snapshot {
            version: Snapshot::VERSION,
            tool_states: self.not_trusted().map(|(state, _)| (state.name(), state)).collect(),
            failure_history: self.history.iter().cloned().collect(),
            domain_stats: self.stats.items.clone(),
            all_blocked: self
                .everything
                .as_ref()
                .map(|blocked| BlockedSince { at: blocked.at, reason: blocked.reason.as_ref().to_owned() }),
            last_updated: now,
            created: self.created.unwrap_or(now),
        }
    }

    /// The ledger that was stored. Of a longer history the newest part is kept, and of more statistics those
    /// of the domains that were seen last; a state is never left out.
    pub fn restore(snapshot: Snapshot, bounds: Bounds) -> Result<Self, SnapshotError> {
        if snapshot.version != Snapshot::VERSION {
            return Err(SnapshotError::UnknownVersion { found: snapshot.version });
        }
        let now = snapshot.last_updated;
        let mut ledger = Self::new(bounds);
        ledger.created = [snapshot.created, now].into_iter().find(|at| *at != Timestamp::ZERO);
        ledger.everything = snapshot.all_blocked.map(|BlockedSince { at, reason }| Blocked {
            at,
            reason: reason.into(),
            failures: 1,
        });
        let mut runs = Vec::new();
        // We write nothing about what is trusted; a host may.
        let doubted = |(_, stored): &(String, ToolReliabilityState)| stored.state != TrustState::Trusted;
        for (entry, stored) in snapshot.tool_states.into_iter().filter(doubted) {
            runs.push((stored.holder(&entry)?, stored.consecutive_failures));
            ledger.put_back(entry, stored)?;
        }
        ledger.check_bounds(bounds)?;
        let surplus = snapshot.failure_history.len().saturating_sub(bounds.history);
        for entry in snapshot.failure_history.into_iter().skip(surplus) {
            ledger.recount(&entry);
            ledger.history.push_back(entry);
        }
        // Only now are the failures there that the runs are made of.
        for (holder, run) in runs {
            let account = match holder {
                Holder::Tool(tool) => ledger.tools.items.get_mut(&tool),
                Holder::Signature(key) => ledger.signatures.items.get_mut(&key),
                Holder::Domain(domain) => ledger.domains.items.get_mut(&domain),
            };
            if let Some(account) = account {
                account.window.set_run(run);
            }
        }
        let mut stats: Vec<_> = snapshot.domain_stats.into_iter().collect();
        stats.sort_by_key(|(_, stats)| stats.last_failure.max(stats.last_success));
        for (domain, stored) in stats {
            if let Some(stats) = ledger.stats.get_or_make(domain, now) {
                *stats = stored;
            }
        }
        Ok(ledger)
    }

    /// Takes over what another process stored, entry by entry whichever is newer. What is not trusted here and is
    /// missing there was reset there, unless something happened here since. What is trusted here and not there has lost its
    /// trust there, unless that is the trouble after which it is trusted again.
    ///
    /// Single failures are not taken over: they count in the process that saw them.
    pub fn adopt(&mut self, snapshot: Snapshot) -> Result<(), SnapshotError> {
        let written = snapshot.last_updated;
        let bounds = Bounds {
            tools: self.tools.most,
            signatures: self.signatures.most,
            domains: self.domains.most,
            history: self.most_history,
        };
        let theirs = Self::restore(snapshot, bounds)?;
        self.tools.adopt(theirs.tools, written);
        self.signatures.adopt(theirs.signatures, written);
        self.domains.adopt(theirs.domains, written);
        self.everything = match (self.everything.take(), theirs.everything) {
            (Some(ours), None) if ours.at > written => Some(ours),
            (_, theirs) => theirs,
        };
        Ok(())
    }

    fn put_back(&mut self, entry: String, stored: ToolReliabilityState) -> Result<(), SnapshotError> {
        let account = stored.account(&entry)?;
        let twice = match stored.holder(&entry)? {
            // A host may judge one tool by several targets that mean nothing here: the worst of them counts.
            Holder::Tool(tool) if tool.is_in_any_namespace() => {
                let known = self.tools.items.entry(tool).or_default();
                if (known.state.name(), known.trouble()) < (account.state.name(), account.trouble()) {
                    *known = account;
                }
                None
            }
            Holder::Tool(tool) => self.tools.items.insert(tool, account),
            Holder::Signature(key) => self.signatures.items.insert(key, account),
            Holder::Domain(domain) => self.domains.items.insert(domain, account),
        };
        match twice {
            None => Ok(()),
            Some(_) => Err(SnapshotError::Inconsistent { entry, problem: "it is there twice" }),
        }
    }

    fn check_bounds(&self, bounds: Bounds) -> Result<(), SnapshotError> {
        for (what, found, allowed) in [
            (Scope::Tool, self.tools.items.len(), bounds.tools),
            (Scope::Signature, self.signatures.items.len(), bounds.signatures),
            (Scope::Domain, self.domains.items.len(), bounds.domains),
        ] {
            if found > allowed {
                return Err(SnapshotError::TooMany { what, found, allowed });
            }
        }
        Ok(())
    }

    /// Puts a failure that still counts back where it counts.
    fn recount(&mut self, entry: &HistoryEntry) {
        let at = entry.timestamp;
        let tool = ToolRef { namespace: entry.plugin_name.clone(), tool: entry.tool_name.clone() };
        let of_call = match (&entry.signature, entry.counts_for_call) {
            (_, false) => None,
            (Some(signature), true) => self.signatures.get_or_make((tool, signature.clone()), at),
            (None, true) => self.tools.get_or_make(tool, at),
        };
        let of_domain = entry.domain.as_ref().filter(|_| entry.counts_for_domain);
        let of_domain = of_domain.and_then(|domain| self.domains.get_or_make(domain.clone(), at));
        for account in of_call.into_iter().chain(of_domain) {
            let failed = Failed { at, severity: entry.severity, recoverable: entry.recoverable };
            account.window.remember(failed);
            account.last_failure = account.last_failure.max(Some(at));
            account.domain = entry.domain.clone();
        }
    }
}

impl<K: Ord + Clone> Shelf<K, Account> {
    /// Takes over accounts that were stored at `written`.
    fn adopt(&mut self, theirs: Self, written: Timestamp) {
        for (key, account) in &mut self.items {
            let reset = theirs.items.get(key).is_none_or(|stored| stored.state == State::Trusted);
            if account.state != State::Trusted && reset && account.touched() < written {
                *account = Account { trusted_again: Some(written), ..Account::default() };
            }
        }
        for (key, stored) in theirs.items.into_iter().filter(|(_, stored)| stored.state != State::Trusted) {
            if let Some(account) = self.get_or_make(key, written)
                && account.is_behind(&stored)
            {
                // The failures that were seen here stay; the state is theirs.
                let window = std::mem::take(&mut account.window);
                *account = Account { window, ..stored };
            }
        }
    }
}

impl Account {
    /// Whether another process knows more of it, which does not trust it.
    fn is_behind(&self, stored: &Self) -> bool {
        match &self.state {
            State::Trusted => self.trusted_again < stored.trouble(),
            State::Escalated(_) | State::Recovering(_) | State::Blocked(_) => {
                self.touched() < stored.touched()
            }
        }
    }

    /// When something last happened to it.
    fn touched(&self) -> Timestamp {
        self.trouble().max(self.last_failure).max(self.last_success).unwrap_or_default()
    }

    /// When it last got to where it is, if it is not trusted.
    fn trouble(&self) -> Option<Timestamp> {
        match &self.state {
            State::Trusted => None,
            State::Escalated(escalated) => Some(escalated.at.max(escalated.last_counted)),
            State::Recovering(recovering) => Some(recovering.at),
            State::Blocked(blocked) => Some(blocked.at),
        }
    }
}

/// Whose account it is.
enum Holder {
    Tool(ToolRef),
    Signature((ToolRef, Signature)),
    Domain(Domain),
}

impl ToolReliabilityState {
    pub(super) fn of(
        scope: Scope,
        tool: Option<&ToolRef>,
        signature: Option<&Signature>,
        domain: Option<&Domain>,
        account: &Account,
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
                recoverable: !escalated.by_hand,
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

    /// The tool, where there is one.
    pub fn tool(&self) -> Option<ToolRef> {
        let tool = self.tool_name.clone()?;
        Some(match self.plugin_name.clone() {
            Some(namespace) => ToolRef { namespace, tool },
            None => ToolRef::in_any_namespace(tool),
        })
    }

    /// A name that people can read and that no other entry has.
    fn name(&self) -> String {
        // Hosts that do not name plugins know the entry by the tool alone.
        let tool = match self.tool() {
            Some(tool) if tool.is_in_any_namespace() => tool.tool.to_string(),
            Some(tool) => tool.to_string(),
            None => String::new(),
        };
        match (self.scope, &self.signature, &self.domain) {
            (Scope::Domain, _, Some(domain)) => format!("domain {domain}"),
            (Scope::Signature, Some(signature), _) => format!("{tool} {}", signature.0),
            (Scope::Tool | Scope::Signature | Scope::Domain, _, _) => tool,
        }
    }

    fn holder(&self, entry: &str) -> Result<Holder, SnapshotError> {
        let lacks = |problem| SnapshotError::Inconsistent { entry: entry.to_owned(), problem };
        let tool = || self.tool().ok_or_else(|| lacks("it has no tool_name"));
        let named = match (self.scope, &self.signature, &self.tool_name, &self.domain) {
            (Scope::Tool, Some(_), ..) => Scope::Signature,
            (Scope::Tool, None, None, Some(_)) => Scope::Domain,
            (scope, ..) => scope,
        };
        match named {
            Scope::Tool => Ok(Holder::Tool(tool()?)),
            Scope::Signature => {
                let signature = self.signature.clone().ok_or_else(|| lacks("it has no signature"))?;
                Ok(Holder::Signature((tool()?, signature)))
            }
            Scope::Domain => self.domain.clone().map(Holder::Domain).ok_or_else(|| lacks("it has no domain")),
        }
    }

    fn account(&self, entry: &str) -> Result<Account, SnapshotError> {
        let lacks = |problem| SnapshotError::Inconsistent { entry: entry.to_owned(), problem };
        let reason: Arc<str> = self.escalation_reason.as_deref().unwrap_or("not recorded").into();
        // Hosts do not note when they blocked something, only the failure that made them.
        let escalated_at =
            || self.escalated_at.or(self.last_failure).ok_or_else(|| lacks("it has no escalated_at"));
        let failures = self.failures_in_window;
        let successes_needed = self.successes_needed;
        let state = match self.state {
            TrustState::Trusted => return Err(lacks("what is trusted is not stored")),
            TrustState::Escalated => State::Escalated(Escalated {
                at: escalated_at()?,
                reason,
                expires: self.escalation_expires.ok_or_else(|| lacks("it has no escalation_expires"))?,
                failures,
                further: self.failures_while_escalated,
                last_counted: self
                    .last_counted_failure
                    .or(self.last_failure)
                    .map_or_else(escalated_at, Ok)?,
                successes_needed,
                by_hand: !self.recoverable,
            }),
            TrustState::Recovering => State::Recovering(Recovering {
                at: self.recovery_started.ok_or_else(|| lacks("it has no recovery_started"))?,
                reason,
                failures,
                successes: self.successes_since_recovery,
                successes_needed,
            }),
            TrustState::Blocked => State::Blocked(Blocked { at: escalated_at()?, reason, failures }),
        };
        Ok(Account {
            state,
            last_failure: self.last_failure,
            last_success: self.last_success,
            domain: self.domain.clone(),
            ..Account::default()
        })
    }
}

impl HistoryEntry {
    /// Whether it is about this tool.
    pub fn is_about(&self, tool: &ToolRef) -> bool {
        self.tool_name == tool.tool && self.plugin_name == tool.namespace
    }
}

impl DomainStats {
    pub(super) fn count(&mut self, finished: Finished, now: Timestamp) {
        match finished {
            Finished::Success => {
                self.total_successes = self.total_successes.saturating_add(1);
                self.last_success = Some(now);
            }
            Finished::Failure { severity, .. } => {
                self.total_failures = self.total_failures.saturating_add(1);
                let count = self.failures_by_severity.entry(severity).or_default();
                *count = count.saturating_add(1);
                self.last_failure = Some(now);
            }
        }
    }
}

fn unreadable(error: serde_json::Error) -> SnapshotError {
    SnapshotError::Unreadable { line: error.line(), column: error.column(), problem: error.to_string() }
}

const fn of_tool() -> Scope {
    Scope::Tool
}

const fn first_version() -> u32 {
    1
}

const fn yes() -> bool {
    true
}
