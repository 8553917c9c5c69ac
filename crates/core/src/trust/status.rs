//! The status of every tool, signature and domain that is not trusted.

use std::cmp::Reverse;

use serde::Serialize;

use super::ledger::account_of;
use super::{Scope, ToolReliabilityState, TrustLedger, TrustState};
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
