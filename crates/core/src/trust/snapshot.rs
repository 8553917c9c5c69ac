//! The stored form of a ledger: all accounts that are not trusted, a bounded history, and domain statistics.
//!
//! Trusted accounts are not stored. Their failures that still count are in the history and are put back into their
//! windows from there. The successes between those failures are not stored. So after a restart the failures count, but
//! not as failures in a row and not for a share of failures.
//!
//! The same form is read from hosts that write such a file themselves: with dates as ISO 8601 texts, entries without a
//! scope or without the plugin of their tool, and counts that are not integers (`lenient`).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::account::{BlockedState, EscalatedState, RecoveringState, State, TrustAccount};
use super::bounded_map::BoundedMap;
use super::entries::{DomainStats, HistoryEntry, ToolReliabilityState};
use super::lenient;
use super::window::WindowFailure;
use super::{TrustBounds, TrustLedger, TrustScope, TrustState};
use crate::Timestamp;
use crate::classify::signature::Signature;
use crate::id::{Domain, ToolRef};

/// A stored ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrustSnapshot {
    /// The version of this format.
    #[serde(default = "first_version")]
    pub version: u32,
    /// Accounts that are not trusted, by readable name.
    #[serde(default)]
    pub tool_states: BTreeMap<String, ToolReliabilityState>,
    /// The newest failures, oldest first.
    #[serde(default)]
    pub failure_history: Vec<HistoryEntry>,
    /// Statistics per host or server.
    #[serde(default)]
    pub domain_stats: BTreeMap<Domain, DomainStats>,
    /// Set if everything is blocked because there was no room for the accounts of the blocked tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_blocked: Option<GlobalBlock>,
    /// Time at which it was written. Zero if it is missing.
    #[serde(default, deserialize_with = "lenient::moment")]
    pub last_updated: Timestamp,
    /// Time at which the ledger was created. Zero if it is missing.
    #[serde(default, deserialize_with = "lenient::moment")]
    pub created: Timestamp,
}

/// The time and the reason of the block of everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GlobalBlock {
    /// Time of the block.
    #[serde(deserialize_with = "lenient::moment")]
    pub at: Timestamp,
    /// The reason.
    pub reason: String,
}

/// The reason why a stored ledger cannot be used. The reader should put the file aside and not overwrite it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrustSnapshotError {
    /// The text cannot be parsed.
    #[error("the stored trust cannot be read: line {line}, column {column}: {problem}")]
    Unreadable {
        /// The line of the error, from 1.
        line: usize,
        /// The column of the error.
        column: usize,
        /// The error.
        problem: String,
    },
    /// This program does not know the version.
    #[error(
        "the stored trust has version {found}, this program knows version {}; use a newer program",
        TrustSnapshot::VERSION
    )]
    UnknownVersion {
        /// The version found.
        found: u32,
    },
    /// An entry lacks data that its state requires.
    #[error("the stored trust of {entry:?} is wrong: {problem}")]
    Inconsistent {
        /// The name of the entry.
        entry: String,
        /// The error.
        problem: &'static str,
    },
    /// The stored ledger exceeds a limit.
    #[error(
        "the stored trust has {found} entries of scope {scope:?}, {allowed} are allowed; raise the bound"
    )]
    TooMany {
        /// The scope of the entries.
        scope: TrustScope,
        /// Number found.
        found: usize,
        /// Number allowed.
        allowed: usize,
    },
}

impl TrustSnapshot {
    /// The version that is written.
    pub const VERSION: u32 = 1;

    /// Reads a stored ledger of any known version and converts it to the current one.
    pub fn read(text: &str) -> Result<Self, TrustSnapshotError> {
        #[derive(Deserialize)]
        struct SnapshotHeader {
            #[serde(default = "first_version")]
            version: u32,
            /// Makes serde refuse a list, whose elements would otherwise be read as the fields in order.
            #[serde(flatten)]
            _fields: IgnoredAny,
        }
        let header: SnapshotHeader = serde_json::from_str(text).map_err(unreadable)?;
        // A later version adds an arm here that reads the older type and converts it.
        match header.version {
            Self::VERSION => serde_json::from_str(text).map_err(unreadable),
            found => Err(TrustSnapshotError::UnknownVersion { found }),
        }
    }
}

impl TrustLedger {
    /// Returns the stored form of the ledger.
    pub fn snapshot(&self, now: Timestamp) -> TrustSnapshot {
        TrustSnapshot {
            version: TrustSnapshot::VERSION,
            tool_states: self.not_trusted().map(|(state, _)| (state.name(), state)).collect(),
            failure_history: self.history.iter().cloned().collect(),
            domain_stats: self.stats.items.clone(),
            all_blocked: self
                .all_blocked
                .as_ref()
                .map(|blocked| GlobalBlock { at: blocked.at, reason: blocked.reason.as_ref().to_owned() }),
            last_updated: now,
            created: self.created.unwrap_or(now),
        }
    }

    /// Restores a stored ledger. A history that is too long loses its oldest part, and too many statistics lose the
    /// domains that were used least recently. No state is ever dropped.
    pub fn restore(snapshot: TrustSnapshot, bounds: TrustBounds) -> Result<Self, TrustSnapshotError> {
        if snapshot.version != TrustSnapshot::VERSION {
            return Err(TrustSnapshotError::UnknownVersion { found: snapshot.version });
        }
        let now = snapshot.last_updated;
        let mut ledger = Self::new(bounds);
        ledger.created = [snapshot.created, now].into_iter().find(|at| *at != Timestamp::ZERO);
        ledger.all_blocked = snapshot.all_blocked.map(|GlobalBlock { at, reason }| BlockedState {
            at,
            reason: reason.into(),
            failures: 1,
        });
        let mut runs = Vec::new();
        // Snapshots of this program have no trusted entries, but a host may write them.
        let doubted = |(_, stored): &(String, ToolReliabilityState)| stored.state != TrustState::Trusted;
        for (entry, stored) in snapshot.tool_states.into_iter().filter(doubted) {
            runs.push((stored.holder(&entry)?, stored.consecutive_failures));
            ledger.restore_entry(entry, stored)?;
        }
        ledger.check_bounds(bounds)?;
        let surplus = snapshot.failure_history.len().saturating_sub(bounds.history);
        for entry in snapshot.failure_history.into_iter().skip(surplus) {
            ledger.recount(&entry);
            ledger.history.push_back(entry);
        }
        // The failures of the runs are restored only now.
        for (holder, run) in runs {
            let account = match holder {
                AccountHolder::Tool(tool) => ledger.tools.items.get_mut(&tool),
                AccountHolder::Signature(key) => ledger.signatures.items.get_mut(&key),
                AccountHolder::Domain(domain) => ledger.domains.items.get_mut(&domain),
            };
            if let Some(account) = account {
                account.window.set_run(run);
            }
        }
        let mut stats: Vec<_> = snapshot.domain_stats.into_iter().collect();
        stats.sort_by_key(|(_, stats)| stats.last_failure.max(stats.last_success));
        for (domain, stored) in stats {
            if let Some(stats) = ledger.stats.get_or_insert(domain, now) {
                *stats = stored;
            }
        }
        Ok(ledger)
    }

    /// Merges a snapshot of another process, entry by entry, with the newer entry winning. An entry that is not trusted
    /// here and missing there was reset there, unless it changed here since. An entry that is trusted here and not
    /// there has lost trust there, unless trust was restored here after that loss.
    ///
    /// Single failures are not merged. They count in the process that recorded them.
    pub fn adopt(&mut self, snapshot: TrustSnapshot) -> Result<(), TrustSnapshotError> {
        let written = snapshot.last_updated;
        let bounds = TrustBounds {
            tools: self.tools.most,
            signatures: self.signatures.most,
            domains: self.domains.most,
            history: self.most_history,
        };
        let other = Self::restore(snapshot, bounds)?;
        self.tools.adopt(other.tools, written);
        self.signatures.adopt(other.signatures, written);
        self.domains.adopt(other.domains, written);
        self.all_blocked = match (self.all_blocked.take(), other.all_blocked) {
            (Some(own), None) if own.at > written => Some(own),
            (_, other) => other,
        };
        Ok(())
    }

    fn restore_entry(
        &mut self,
        entry: String,
        stored: ToolReliabilityState,
    ) -> Result<(), TrustSnapshotError> {
        let account = stored.account(&entry)?;
        let twice = match stored.holder(&entry)? {
            // A host may have several targets for one tool that are unknown here. The worst of them counts.
            AccountHolder::Tool(tool) if tool.is_in_any_namespace() => {
                let known = self.tools.items.entry(tool).or_default();
                if (known.state.name(), known.trust_lost_at())
                    < (account.state.name(), account.trust_lost_at())
                {
                    *known = account;
                }
                None
            }
            AccountHolder::Tool(tool) => self.tools.items.insert(tool, account),
            AccountHolder::Signature(key) => self.signatures.items.insert(key, account),
            AccountHolder::Domain(domain) => self.domains.items.insert(domain, account),
        };
        match twice {
            None => Ok(()),
            Some(_) => Err(TrustSnapshotError::Inconsistent { entry, problem: "it is a duplicate" }),
        }
    }

    fn check_bounds(&self, bounds: TrustBounds) -> Result<(), TrustSnapshotError> {
        for (scope, found, allowed) in [
            (TrustScope::Tool, self.tools.items.len(), bounds.tools),
            (TrustScope::Signature, self.signatures.items.len(), bounds.signatures),
            (TrustScope::Domain, self.domains.items.len(), bounds.domains),
        ] {
            if found > allowed {
                return Err(TrustSnapshotError::TooMany { scope, found, allowed });
            }
        }
        Ok(())
    }

    /// Restores a failure that still counts to its accounts.
    fn recount(&mut self, entry: &HistoryEntry) {
        let at = entry.timestamp;
        let tool = ToolRef { namespace: entry.plugin_name.clone(), tool: entry.tool_name.clone() };
        let of_call = match (&entry.signature, entry.counts_for_call) {
            (_, false) => None,
            (Some(signature), true) => self.signatures.get_or_insert((tool, signature.clone()), at),
            (None, true) => self.tools.get_or_insert(tool, at),
        };
        let of_domain = entry.domain.as_ref().filter(|_| entry.counts_for_domain);
        let of_domain = of_domain.and_then(|domain| self.domains.get_or_insert(domain.clone(), at));
        for account in of_call.into_iter().chain(of_domain) {
            let failed = WindowFailure { at, severity: entry.severity, recoverable: entry.recoverable };
            account.window.remember(failed);
            account.last_failure = account.last_failure.max(Some(at));
            account.domain = entry.domain.clone();
        }
    }
}

impl<K: Ord + Clone> BoundedMap<K, TrustAccount> {
    /// Merges accounts that were stored at `written`.
    fn adopt(&mut self, other: Self, written: Timestamp) {
        for (key, account) in &mut self.items {
            let reset = other.items.get(key).is_none_or(|stored| stored.state == State::Trusted);
            if account.state != State::Trusted && reset && account.touched() < written {
                *account = TrustAccount { trust_restored_at: Some(written), ..TrustAccount::default() };
            }
        }
        for (key, stored) in other.items.into_iter().filter(|(_, stored)| stored.state != State::Trusted) {
            if let Some(account) = self.get_or_insert(key, written)
                && account.is_older_than(&stored)
            {
                // The window of this process is kept. The state is taken from the snapshot.
                let window = std::mem::take(&mut account.window);
                *account = TrustAccount { window, ..stored };
            }
        }
    }
}

impl TrustAccount {
    /// Returns true if another process has newer data for it and does not trust it.
    fn is_older_than(&self, stored: &Self) -> bool {
        match &self.state {
            State::Trusted => self.trust_restored_at < stored.trust_lost_at(),
            State::Escalated(_) | State::Recovering(_) | State::Blocked(_) => {
                self.touched() < stored.touched()
            }
        }
    }

    /// Returns the time of its last event.
    fn touched(&self) -> Timestamp {
        self.trust_lost_at().max(self.last_failure).max(self.last_success).unwrap_or_default()
    }

    /// Returns the time at which it got to its current state, if it is not trusted.
    fn trust_lost_at(&self) -> Option<Timestamp> {
        match &self.state {
            State::Trusted => None,
            State::Escalated(escalated) => Some(escalated.at.max(escalated.last_counted)),
            State::Recovering(recovering) => Some(recovering.at),
            State::Blocked(blocked) => Some(blocked.at),
        }
    }
}

/// The holder of an account.
enum AccountHolder {
    Tool(ToolRef),
    Signature((ToolRef, Signature)),
    Domain(Domain),
}

impl ToolReliabilityState {
    fn holder(&self, entry: &str) -> Result<AccountHolder, TrustSnapshotError> {
        let lacks = |problem| TrustSnapshotError::Inconsistent { entry: entry.to_owned(), problem };
        let tool = || self.tool().ok_or_else(|| lacks("it has no tool_name"));
        let named = match (self.scope, &self.signature, &self.tool_name, &self.domain) {
            (TrustScope::Tool, Some(_), ..) => TrustScope::Signature,
            (TrustScope::Tool, None, None, Some(_)) => TrustScope::Domain,
            (scope, ..) => scope,
        };
        match named {
            TrustScope::Tool => Ok(AccountHolder::Tool(tool()?)),
            TrustScope::Signature => {
                let signature = self.signature.clone().ok_or_else(|| lacks("it has no signature"))?;
                Ok(AccountHolder::Signature((tool()?, signature)))
            }
            TrustScope::Domain => {
                self.domain.clone().map(AccountHolder::Domain).ok_or_else(|| lacks("it has no domain"))
            }
        }
    }

    fn account(&self, entry: &str) -> Result<TrustAccount, TrustSnapshotError> {
        let lacks = |problem| TrustSnapshotError::Inconsistent { entry: entry.to_owned(), problem };
        let reason: Arc<str> = self.escalation_reason.as_deref().unwrap_or("not recorded").into();
        // Hosts do not store the time of a block, only the time of the failure that caused it.
        let escalated_at =
            || self.escalated_at.or(self.last_failure).ok_or_else(|| lacks("it has no escalated_at"));
        let failures = self.failures_in_window;
        let successes_needed = self.successes_needed;
        let state = match self.state {
            TrustState::Trusted => return Err(lacks("trusted entries are not stored")),
            TrustState::Escalated => State::Escalated(EscalatedState {
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
                needs_operator: !self.recoverable,
            }),
            TrustState::Recovering => State::Recovering(RecoveringState {
                at: self.recovery_started.ok_or_else(|| lacks("it has no recovery_started"))?,
                reason,
                failures,
                successes: self.successes_since_recovery,
                successes_needed,
            }),
            TrustState::Blocked => State::Blocked(BlockedState { at: escalated_at()?, reason, failures }),
        };
        Ok(TrustAccount {
            state,
            last_failure: self.last_failure,
            last_success: self.last_success,
            domain: self.domain.clone(),
            ..TrustAccount::default()
        })
    }
}

fn unreadable(error: serde_json::Error) -> TrustSnapshotError {
    TrustSnapshotError::Unreadable { line: error.line(), column: error.column(), problem: error.to_string() }
}

const fn first_version() -> u32 {
    1
}
