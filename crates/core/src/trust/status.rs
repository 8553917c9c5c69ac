//! The status of every tool, signature and domain that is not trusted.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::ledger::account_of;
use super::{Scope, Signature, ToolReliabilityState, TrustChange, TrustLedger, TrustState};
use crate::Timestamp;
use crate::id::{Domain, ToolRef};
use crate::policy::TrustRule;
use crate::time::millis;

/// One tool, signature or domain that is not simply trusted, as it stands under the rule that judges it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TrustStatus {
    /// Its state and counters.
    #[serde(flatten)]
    pub standing: ToolReliabilityState,
    /// When it recovers by itself, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovers_at: Option<Timestamp>,
    /// Whether it stays escalated until an operator approves its recovery.
    pub waits_for_approval: bool,
    /// The window in which failures are counted, in milliseconds.
    pub window_ms: u64,
    /// How long after the last counted failure it stays escalated at least, in milliseconds.
    pub cooldown_ms: u64,
}

impl TrustLedger {
    /// Everything that is not simply trusted, as it stands at this moment, worst first. An entry without tool and domain says
    /// that everything is blocked.
    ///
    /// `rule_of` gives the rule for a tool, and the domain that it depends on where one is known; or for a domain alone.
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
        if let Some(blocked) = &self.everything {
            let rule = rule_of(None, None);
            all.push(TrustStatus {
                standing: ToolReliabilityState::of(Scope::Tool, None, None, None, &account_of(blocked)),
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

/// Compares two states of one ledger, before and after it took over what another process stored, and says what changed. Only the
/// states are known here: of what is trusted again, not why.
///
/// `rule_of` is as in [`TrustLedger::status`].
pub fn changes_between(
    before: &[TrustStatus],
    after: &[TrustStatus],
    rule_of: impl Fn(Option<&ToolRef>, Option<&Domain>) -> TrustRule,
    now: Timestamp,
) -> Vec<TrustChange> {
    let name = |one: &TrustStatus| {
        let domain = one.standing.domain.clone().filter(|_| one.standing.scope == Scope::Domain);
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
            reason: reason.unwrap_or_else(|| "another process says so".to_owned()),
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

/// How the holder of an account is called.
pub(super) fn subject(
    scope: Scope,
    tool: Option<&ToolRef>,
    signature: Option<&Signature>,
    domain: Option<&Domain>,
) -> Arc<str> {
    match (scope, tool, signature, domain) {
        (Scope::Domain, _, _, Some(domain)) => domain.as_str().into(),
        (Scope::Signature, _, Some(signature), _) => Arc::clone(&signature.0),
        (Scope::Tool | Scope::Signature | Scope::Domain, Some(tool), _, _) => tool.to_string().into(),
        (Scope::Tool | Scope::Signature | Scope::Domain, None, _, _) => "everything".into(),
    }
}
