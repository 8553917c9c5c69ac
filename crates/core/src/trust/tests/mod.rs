//! Tests of the trust ledger, by requirement.

mod facts;
mod keeping;
mod machine;
mod stories;
mod thresholds;

use std::num::NonZeroU32;
use std::time::Duration;

use super::{FinishedOutcome, TrustChange, TrustDecision, TrustLedger, TrustRules, TrustState, TrustSubject};
use crate::Timestamp;
use crate::classify::Severity;
use crate::classify::signature::Signature;
use crate::id::{Domain, Namespace, ToolName, ToolRef};
use crate::policy::TrustRule;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

const OK: FinishedOutcome = FinishedOutcome::Success;

/// Returns the time this number of seconds after the start of the test.
fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(1_762_300_800_000 + seconds * 1000)
}

fn n(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).unwrap()
}

fn failure(severity: Severity) -> FinishedOutcome {
    FinishedOutcome::Failure { severity, recoverable: true }
}

fn tool(namespace: &str, tool: &str) -> ToolRef {
    ToolRef { namespace: Namespace::new(namespace).unwrap(), tool: ToolName::new(tool).unwrap() }
}

fn signature(text: &str) -> Signature {
    Signature(text.into())
}

fn domain(text: &str) -> Domain {
    Domain::new(text).unwrap()
}

/// One tool with one signature, and a ledger for only these.
struct SingleToolLedger {
    ledger: TrustLedger,
    rule: TrustRule,
    tool: ToolRef,
    signature: Signature,
}

impl SingleToolLedger {
    fn new(rule: TrustRule) -> Self {
        let (tool, signature) =
            (tool("web", "http_request"), signature("http_request|domain=api.example.com"));
        Self { ledger: TrustLedger::default(), rule, tool, signature }
    }

    /// Returns one that lost trust at the given second.
    fn escalated(rule: TrustRule, second: u64) -> Self {
        let mut one = Self::new(rule);
        for _ in 0..3 {
            one.record(failure(Severity::ServerError), second);
        }
        assert_eq!(one.state(second), TrustState::Escalated);
        one
    }

    fn record(&mut self, finished: FinishedOutcome, second: u64) -> Vec<TrustChange> {
        let subject = TrustSubject { tool: &self.tool, signature: &self.signature, domain: None };
        self.ledger.record(TrustRules { signature: &self.rule, domain: None }, subject, finished, at(second))
    }

    fn records(&mut self, finished: &[FinishedOutcome], second: u64) {
        for one in finished {
            self.record(*one, second);
        }
    }

    fn standing(&self, second: u64) -> TrustDecision {
        let subject = TrustSubject { tool: &self.tool, signature: &self.signature, domain: None };
        self.ledger.check(TrustRules { signature: &self.rule, domain: None }, subject, at(second))
    }

    fn state(&self, second: u64) -> TrustState {
        state_of(&self.standing(second))
    }

    fn reason(&self, second: u64) -> String {
        match self.standing(second) {
            TrustDecision::NeedsApproval(escalation) | TrustDecision::Blocked(escalation) => {
                escalation.reason
            }
            TrustDecision::Allowed(state) => format!("free: {state}"),
        }
    }
}

fn state_of(standing: &TrustDecision) -> TrustState {
    match standing {
        TrustDecision::Allowed(state) => *state,
        TrustDecision::NeedsApproval(escalation) => {
            assert_eq!(escalation.state, TrustState::Escalated);
            TrustState::Escalated
        }
        TrustDecision::Blocked(escalation) => {
            assert_eq!(escalation.state, TrustState::Blocked);
            TrustState::Blocked
        }
    }
}
