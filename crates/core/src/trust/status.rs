//! The status of every tool, signature and domain that is not trusted.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

use super::ledger::{account_of, subject};
use super::{ToolReliabilityState, TrustChange, TrustLedger, TrustScope, TrustState};
use crate::Timestamp;
use crate::id::{Domain, ToolRef};
use crate::policy::TrustRule;
use crate::time::millis;

/// The status of one tool, signature or domain that is not trusted, under its current rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TrustStatus {
    /// The state and counters.
    #[serde(flatten)]
    pub standing: ToolReliabilityState,
    /// Time at which it recovers without an operator, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovers_at: Option<Timestamp>,
    /// True if it stays escalated until an operator approves its recovery.
    pub waits_for_approval: bool,
    /// The window in which failures are counted, in milliseconds.
    pub window_ms: u64,
    /// Minimum time that it stays escalated after the last counted failure, in milliseconds.
    pub cooldown_ms: u64,
}

impl TrustLedger {
    /// Returns the current status of everything that is not trusted, worst first. An entry without tool and domain
    /// means that everything is blocked.
    ///
    /// `rule_of` returns the rule for a tool and the domain that it depends on, if known, or for a domain alone.
    pub fn status(
        &self,
        rule_of: impl Fn(Option<&ToolRef>, Option<&Domain>) -> TrustRule,
        now: Timestamp,
    ) -> Vec<TrustStatus> {
        let mut all: Vec<_> = self
            .not_trusted()
            .map(|(mut standing, account)| {
                let rule = rule_of(standing.tool().as_ref(), standing.domain.as_ref());
                standing.state = account.state(&rule, now);
                let recovers_at = account.recovers_at(&rule).filter(|at| *at > now);
                let waits_for_approval = standing.state == TrustState::Escalated && recovers_at.is_none();
                TrustStatus {
                    standing,
                    recovers_at,
                    waits_for_approval,
                    window_ms: millis(rule.window),
                    cooldown_ms: millis(rule.cooldown),
                }
            })
            .collect();
        if let Some(blocked) = &self.all_blocked {
            let rule = rule_of(None, None);
            all.push(TrustStatus {
                standing: ToolReliabilityState::of(TrustScope::Tool, None, None, None, &account_of(blocked)),
                recovers_at: None,
                waits_for_approval: false,
                window_ms: millis(rule.window),
                cooldown_ms: millis(rule.cooldown),
            });
        }
        all.sort_by_key(|one| Reverse(one.standing.state));
        all
    }
}

/// Returns the changes between two states of one ledger, before and after it merged a snapshot of another process. Only
/// the states are known here. The reason of a restored trust is not.
///
/// `rule_of` is as in [`TrustLedger::status`].
pub fn changes_between(
    before: &[TrustStatus],
    after: &[TrustStatus],
    rule_of: impl Fn(Option<&ToolRef>, Option<&Domain>) -> TrustRule,
    now: Timestamp,
) -> Vec<TrustChange> {
    let name = |one: &TrustStatus| {
        let domain = one.standing.domain.clone().filter(|_| one.standing.scope == TrustScope::Domain);
        (one.standing.scope, one.standing.tool(), one.standing.signature.clone(), domain)
    };
    let mut pairs: BTreeMap<_, (Option<&TrustStatus>, Option<&TrustStatus>)> = BTreeMap::new();
    for one in before {
        pairs.entry(name(one)).or_default().0 = Some(one);
    }
    for one in after {
        pairs.entry(name(one)).or_default().1 = Some(one);
    }
    let mut changes = Vec::new();
    for (before, after) in pairs.into_values() {
        let state = |one: Option<&TrustStatus>| one.map_or(TrustState::Trusted, |one| one.standing.state);
        let (from, to) = (state(before), state(after));
        let Some(known) = after.or(before).filter(|_| from != to) else { continue };
        let standing = &known.standing;
        let (tool, domain) = (standing.tool(), standing.domain.clone());
        let is_held = to != TrustState::Trusted;
        let reason = standing.escalation_reason.clone().filter(|_| is_held);
        changes.push(TrustChange {
            subject: subject(standing.scope, tool.as_ref(), standing.signature.as_ref(), domain.as_ref()),
            scope: standing.scope,
            from,
            to,
            reason: reason.unwrap_or_else(|| "changed by another process".to_owned()),
            failures: if is_held { standing.failures_in_window } else { 0 },
            until: known.recovers_at.filter(|_| to == TrustState::Escalated),
            successes_needed: if is_held { standing.successes_needed } else { 0 },
            notify: to != TrustState::Recovering && rule_of(tool.as_ref(), domain.as_ref()).notify,
            signature: standing.signature.clone(),
            tool,
            domain,
            at: now,
        });
    }
    changes
}
