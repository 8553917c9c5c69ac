//! Stored data: across a restart, and beyond the limits.

use super::*;
use crate::trust::{
    ReportedFailure, TrustBounds, TrustReport, TrustSnapshot, TrustSnapshotError, TrustTarget,
};

const BAD: FinishedOutcome = FinishedOutcome::Failure { severity: Severity::Crash, recoverable: true };

fn restarted(ledger: &TrustLedger, second: u64) -> TrustLedger {
    let text = serde_json::to_string(&ledger.snapshot(at(second))).unwrap();
    TrustLedger::restore(TrustSnapshot::read(&text).unwrap(), TrustBounds::default()).unwrap()
}

#[test]
fn rp_11_only_untrusted_states_are_stored_with_a_version_and_the_known_field_names() {
    let mut one = SingleToolLedger::escalated(TrustRule::default(), 0);
    let other = tool("p", "fine");
    let rules = TrustRules { signature: &one.rule, domain: None };
    let fine = signature("fine");
    let host = domain("h");
    let subject = TrustSubject { tool: &other, signature: &fine, domain: Some(&host) };
    one.ledger.record(rules, subject, BAD, at(1));
    one.ledger.record(rules, subject, OK, at(2));
    let stored = serde_json::to_value(one.ledger.snapshot(at(60))).unwrap();
    let names: Vec<_> = stored.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["created", "domain_stats", "failure_history", "last_updated", "tool_states", "version"]
    );
    assert_eq!(stored["version"], 1);
    let states = stored["tool_states"].as_object().unwrap();
    assert_eq!(states.len(), 1);
    let state = states.values().next().unwrap();
    for (name, value) in [
        ("tool_name", serde_json::json!("http_request")),
        ("plugin_name", serde_json::json!("web")),
        ("state", serde_json::json!("escalated")),
        ("failures_in_window", serde_json::json!(3)),
        ("consecutive_failures", serde_json::json!(3)),
        ("last_failure", serde_json::json!(at(0))),
        ("escalated_at", serde_json::json!(at(0))),
        ("escalation_reason", serde_json::json!("3 failures in 1 h")),
        ("escalation_expires", serde_json::json!(at(1800))),
        ("successes_needed", serde_json::json!(3)),
    ] {
        assert_eq!(state[name], value, "{name}");
    }
    assert_eq!(stored["failure_history"].as_array().unwrap().len(), 4);
    assert_eq!(stored["domain_stats"]["h"]["total_failures"], 1);
    assert_eq!(stored["domain_stats"]["h"]["total_successes"], 1);
    assert_eq!(stored["domain_stats"]["h"]["failures_by_severity"]["crash"], 1);
    assert_eq!(
        (&stored["created"], &stored["last_updated"]),
        (&serde_json::json!(at(0)), &serde_json::json!(at(60)))
    );
}

#[test]
fn rp_11_failures_of_a_trusted_tool_count_on_after_a_restart() {
    let mut one = SingleToolLedger::new(TrustRule::default());
    one.records(&[BAD; 2], 0);
    one.ledger = restarted(&one.ledger, 1);
    assert_eq!(one.state(1), TrustState::Trusted);
    one.record(BAD, 2);
    assert_eq!(one.reason(2), "3 failures in 1 h");
}

#[test]
fn rp_11_cleared_failures_stay_cleared_after_a_restart() {
    let mut recovered = SingleToolLedger::escalated(TrustRule::default(), 0);
    recovered.records(&[OK; 3], 1800);
    let mut reset = SingleToolLedger::escalated(TrustRule::default(), 1800);
    reset.ledger.reset(TrustTarget::Signature(&reset.tool, &reset.signature), at(1800));
    for mut one in [recovered, reset] {
        one.ledger = restarted(&one.ledger, 1800);
        one.records(&[BAD; 2], 1801);
        assert_eq!(one.state(1801), TrustState::Trusted);
        assert_eq!(one.ledger.history(None).count(), 5, "forgiven is not forgotten");
    }
}

/// Regression: a host reported the tool without its namespace. Its failures counted again after a restart, although
/// trust had been restored under its full name, or by a reset of that name.
#[test]
fn rp_11_cleared_failures_of_a_tool_in_any_namespace_stay_cleared_after_a_restart() {
    let reported = || {
        let mut one = SingleToolLedger::new(TrustRule::default());
        let any = ToolRef::in_any_namespace(one.tool.tool.clone());
        let report = TrustReport { tool: &any, signature: None, domain: None, service: None };
        let failed = ReportedFailure { classified: Severity::Crash, severity: None, recoverable: true };
        for _ in 0..3 {
            one.ledger.report_failure(
                TrustRules { signature: &one.rule, domain: None },
                report,
                failed,
                at(0),
            );
        }
        assert_eq!(one.state(0), TrustState::Escalated);
        one
    };
    let mut recovered = reported();
    recovered.records(&[OK; 3], 1800);
    let mut reset = reported();
    reset.ledger.reset(TrustTarget::Tool(&reset.tool), at(1800));
    for mut one in [recovered, reset] {
        assert!(one.ledger.history(None).all(|entry| !entry.counts_for_call));
        one.ledger = restarted(&one.ledger, 1800);
        let any = ToolRef::in_any_namespace(one.tool.tool.clone());
        let report = TrustReport { tool: &any, signature: None, domain: None, service: None };
        let failed = ReportedFailure { classified: Severity::Crash, severity: None, recoverable: true };
        for second in [1801, 1802] {
            let rules = TrustRules { signature: &one.rule, domain: None };
            assert_eq!(one.ledger.report_failure(rules, report, failed, at(second)), []);
        }
    }
}

#[test]
fn rp_11_a_failure_rate_includes_successes_after_a_restart() {
    let rate = Some(crate::policy::Ratio::percent(50));
    let mut one = SingleToolLedger::new(TrustRule { count: None, rate, ..TrustRule::default() });
    one.records(&[OK; 50], 0);
    one.records(&[BAD; 20], 0);
    one.ledger = restarted(&one.ledger, 1);
    one.record(BAD, 2);
    assert_eq!(one.state(2), TrustState::Trusted);
}

#[test]
fn rp_11_every_state_survives_a_restart() {
    let host = domain("h");
    let of_host = TrustRule { count: Some(n(2)), ..TrustRule::default() };
    let (t, s, blocked) = (tool("p", "t"), signature("t"), tool("p", "blocked"));
    let subject = TrustSubject { tool: &t, signature: &s, domain: Some(&host) };
    let by = TrustRules { signature: &of_host, domain: Some(&of_host) };
    let mut ledger = TrustLedger::default();
    ledger.record(by, subject, BAD, at(0));
    ledger.record(by, subject, BAD, at(0));
    ledger.record(by, TrustSubject { tool: &blocked, ..subject }, failure(Severity::Security), at(0));
    ledger.record(by, subject, OK, at(1900));
    let again = restarted(&ledger, 1901);
    assert_eq!(again.snapshot(at(1901)), ledger.snapshot(at(1901)));
    let states = |ledger: &TrustLedger| ledger.status(|_, _| TrustRule::default(), at(1901));
    assert_eq!(states(&again), states(&ledger));
    let names: Vec<_> = states(&again).iter().map(|one| one.standing.state).collect();
    assert_eq!(names, [TrustState::Blocked, TrustState::Recovering, TrustState::Recovering]);
}

#[test]
fn rp_11_an_unreadable_snapshot_is_a_typed_error_with_a_position() {
    let good =
        serde_json::to_value(SingleToolLedger::escalated(TrustRule::default(), 0).ledger.snapshot(at(0)))
            .unwrap();
    let entry = good["tool_states"].as_object().unwrap().keys().next().unwrap().clone();
    let changed = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut value = good.clone();
        change(&mut value);
        TrustSnapshot::read(&value.to_string())
            .and_then(|snapshot| TrustLedger::restore(snapshot, TrustBounds::default()))
            .err()
    };
    assert_eq!(changed(&|_| ()), None);
    assert_eq!(
        changed(&|value| value["version"] = 2.into()),
        Some(TrustSnapshotError::UnknownVersion { found: 2 })
    );
    for lost in ["escalation_expires", "tool_name", "signature"] {
        let error = changed(&|value| {
            value["tool_states"][&entry].as_object_mut().unwrap().remove(lost);
        });
        assert!(matches!(error, Some(TrustSnapshotError::Inconsistent { .. })), "{lost}: {error:?}");
    }
    for broken in ["", "null", "[]", "{\"version\":\"x\"}", "{\"version\":1,"] {
        assert!(
            matches!(TrustSnapshot::read(broken), Err(TrustSnapshotError::Unreadable { .. })),
            "{broken:?}"
        );
    }
    let Err(TrustSnapshotError::Unreadable { line, problem, .. }) =
        TrustSnapshot::read("{\"version\": 1,\n \"tool_states\": 7}")
    else {
        panic!("it cannot be read")
    };
    assert!(line == 2 && problem.contains("invalid type"), "{line}: {problem}");
    // A file without a version has version 1.
    let mut old = good.clone();
    old.as_object_mut().unwrap().remove("version");
    assert!(TrustSnapshot::read(&old.to_string()).is_ok());
    // With duplicate entries the winner would be arbitrary.
    let doubled = changed(&|value| value["tool_states"]["again"] = value["tool_states"][&entry].clone());
    assert!(matches!(doubled, Some(TrustSnapshotError::Inconsistent { .. })));
}

/// A file as the reliability plugin of seed 004 saves it, with `json.dumps(default=str)`.
const OF_A_HOST: &str = r#"{
  "version": 1,
  "tool_states": {
    "http_request": {
      "tool_name": "http_request", "state": "TrustState.ESCALATED", "failures_in_window": 3.4,
      "consecutive_failures": 4, "last_failure": "2026-11-18 10:00:00.500000", "last_success": null,
      "escalated_at": "2026-11-18T10:00:00.500000", "escalation_reason": "3 failures in 3600s",
      "escalation_expires": "2026-11-18T12:30:00+02:00", "recovery_started": null,
      "successes_since_recovery": 0, "successes_needed": 3
    },
    "bash|command=rm": {
      "tool_name": "bash", "state": "blocked", "failures_in_window": 1, "consecutive_failures": 1,
      "last_failure": "2026-11-18T10:00:01Z"
    },
    "bash|command=ls": {
      "tool_name": "bash", "state": "escalated", "last_failure": "2026-11-18T10:00:01Z",
      "escalated_at": "2026-11-18T10:00:01Z", "escalation_expires": "2026-11-18T10:30:01Z"
    },
    "fine": { "tool_name": "fine", "state": "trusted" }
  },
  "failure_history": [
    { "tool_name": "http_request", "plugin_name": "", "timestamp": "2026-11-18 10:00:00.500000",
      "severity": "FailureSeverity.SERVER_ERROR", "arguments_hash": "0" }
  ]
}"#;

#[test]
fn rp_12_a_file_of_a_host_is_read_without_scopes_and_plugins_and_with_other_dates() {
    let snapshot = TrustSnapshot::read(OF_A_HOST).unwrap();
    assert_eq!(snapshot.failure_history[0].severity, Severity::ServerError);
    let mut ledger = TrustLedger::restore(snapshot, TrustBounds::default()).unwrap();
    let then = Timestamp::parse_iso("2026-11-18T10:10:00Z").unwrap();
    let rule = TrustRule::default();
    let rules = TrustRules { signature: &rule, domain: None };
    let (here, signature) = (signature("any"), |name: &str| tool("whichever", name));
    let state = |ledger: &TrustLedger, name: &str, at| match ledger.check(
        rules,
        TrustSubject { tool: &signature(name), signature: &here, domain: None },
        at,
    ) {
        TrustDecision::Allowed(state) => state,
        TrustDecision::NeedsApproval(_) => TrustState::Escalated,
        TrustDecision::Blocked(_) => TrustState::Blocked,
    };
    // The tool of that name is meant in any server. The worst of several entries counts.
    assert_eq!(state(&ledger, "http_request", then), TrustState::Escalated);
    assert_eq!(state(&ledger, "bash", then), TrustState::Blocked);
    assert_eq!(state(&ledger, "fine", then), TrustState::Trusted);
    // The offset of the date counts: 12:30 there is 10:30 here.
    let later = Timestamp::parse_iso("2026-11-18T10:30:00Z").unwrap();
    assert_eq!(state(&ledger, "http_request", later), TrustState::Recovering);
    // It is stored under its own name again, and recovers and is reset like any other.
    let stored = ledger.snapshot(then);
    let names: Vec<_> = stored.tool_states.keys().map(String::as_str).collect();
    assert_eq!(names, ["bash", "http_request"]);
    assert_eq!(stored.tool_states["bash"].tool().map(|tool| tool.to_string()).as_deref(), Some("*/bash"));
    assert_eq!(stored.created, then);
    let web = signature("http_request");
    for _ in 0..3 {
        let subject = TrustSubject { tool: &web, signature: &here, domain: None };
        ledger.record(rules, subject, OK, later);
    }
    assert_eq!(state(&ledger, "http_request", later), TrustState::Trusted);
    ledger.reset(TrustTarget::Tool(&signature("bash")), later);
    assert_eq!(state(&ledger, "bash", later), TrustState::Trusted);
    // An invalid date is reported with its position.
    let wrong = OF_A_HOST.replace("2026-11-18T12:30:00+02:00", "tomorrow");
    let Err(TrustSnapshotError::Unreadable { line, problem, .. }) = TrustSnapshot::read(&wrong) else {
        panic!("it is read")
    };
    assert!(line == 8 && problem.contains("tomorrow") && problem.contains("ISO 8601"), "{line}: {problem}");
}

#[test]
fn rp_11_more_states_than_fit_are_refused_and_not_dropped() {
    let one = SingleToolLedger::escalated(TrustRule::default(), 0);
    let bounds = TrustBounds { signatures: 0, ..TrustBounds::default() };
    let error = TrustLedger::restore(one.ledger.snapshot(at(0)), bounds).err();
    assert_eq!(
        error,
        Some(TrustSnapshotError::TooMany {
            scope: crate::trust::TrustScope::Signature,
            found: 1,
            allowed: 0
        })
    );
}

#[test]
fn rp_11_history_is_bounded_and_keeps_the_newest() {
    let mut one = SingleToolLedger::new(TrustRule::default());
    one.ledger = TrustLedger::new(TrustBounds { history: 5, ..TrustBounds::default() });
    for second in 0..20 {
        one.record(failure(Severity::NotFound), second);
    }
    let timestamps: Vec<_> = one.ledger.history(None).map(|entry| entry.timestamp).collect();
    assert_eq!(timestamps, [15, 16, 17, 18, 19].map(at));
    let smaller = TrustBounds { history: 2, ..TrustBounds::default() };
    let restored = TrustLedger::restore(one.ledger.snapshot(at(20)), smaller).unwrap();
    assert_eq!(restored.history(None).map(|entry| entry.timestamp).collect::<Vec<_>>(), [18, 19].map(at));
}

/// Calls with their own signature each, in a ledger with room for four.
struct SignatureCrowd {
    ledger: TrustLedger,
    rule: TrustRule,
    tool: ToolRef,
}

impl SignatureCrowd {
    fn new() -> Self {
        let bounds = TrustBounds { signatures: 4, tools: 1, domains: 2, history: 10 };
        let rule = TrustRule {
            count: Some(n(2)),
            block_after: n(1),
            successes_to_recover: n(2),
            ..TrustRule::default()
        };
        Self { ledger: TrustLedger::new(bounds), rule, tool: tool("p", "t") }
    }

    fn record(&mut self, name: &str, finished: &[FinishedOutcome], second: u64) {
        let signature = signature(name);
        let subject = TrustSubject { tool: &self.tool, signature: &signature, domain: None };
        for finished in finished {
            self.ledger.record(
                TrustRules { signature: &self.rule, domain: None },
                subject,
                *finished,
                at(second),
            );
        }
    }

    fn state(&self, name: &str, second: u64) -> TrustState {
        let signature = signature(name);
        let subject = TrustSubject { tool: &self.tool, signature: &signature, domain: None };
        state_of(&self.ledger.check(TrustRules { signature: &self.rule, domain: None }, subject, at(second)))
    }
}

#[test]
fn trusted_entries_are_dropped_before_untrusted_ones() {
    let mut crowd = SignatureCrowd::new();
    crowd.record("blocked", &[BAD; 3], 0);
    crowd.record("escalated", &[BAD; 2], 1);
    for name in 0..100 {
        crowd.record(&format!("passing {name}"), &[BAD], 2 + name);
    }
    assert_eq!(crowd.state("blocked", 102), TrustState::Blocked);
    assert_eq!(crowd.state("escalated", 102), TrustState::Escalated);
    // The last one is stored: its second failure escalates it.
    crowd.record("passing 99", &[BAD], 103);
    assert_eq!(crowd.state("passing 99", 103), TrustState::Escalated);
}

#[test]
fn then_goes_the_oldest_on_trial_and_never_a_block_or_a_running_escalation() {
    let mut crowd = SignatureCrowd::new();
    crowd.record("blocked", &[BAD; 3], 0);
    crowd.record("trial 1", &[BAD; 2], 1);
    crowd.record("trial 2", &[BAD; 2], 2);
    crowd.record("trial 1", &[OK], 1801);
    crowd.record("trial 2", &[OK], 1802);
    crowd.record("fresh", &[BAD; 2], 1803);
    crowd.record("newcomer", &[BAD; 2], 1804);
    assert_eq!(crowd.state("trial 1", 1804), TrustState::Trusted, "it was forgotten");
    assert_eq!(crowd.state("trial 2", 1804), TrustState::Recovering);
    assert_eq!(crowd.state("newcomer", 1804), TrustState::Escalated);
    crowd.record("trial 2", &[BAD], 1805);
    for (name, state) in [("blocked", TrustState::Blocked), ("trial 2", TrustState::Escalated)] {
        assert_eq!(crowd.state(name, 1805), state);
    }
    // Now everything is escalated or blocked, so there is no room for a new account.
    crowd.record("late", &[BAD; 2], 1806);
    assert_eq!(crowd.state("late", 1806), TrustState::Trusted);
    // An expired escalation makes room again.
    crowd.record("later", &[BAD; 2], 1803 + 1800);
    assert_eq!(crowd.state("later", 1803 + 1800), TrustState::Escalated);
    assert_eq!(crowd.state("blocked", 1803 + 1800), TrustState::Blocked);
}

#[test]
fn a_block_that_cannot_be_stored_blocks_all_tools_until_all_are_reset() {
    let mut crowd = SignatureCrowd::new();
    crowd.record("a", &[failure(Severity::Security)], 0);
    let second = tool("p", "second");
    crowd.ledger.block_tool(&second, "security concern", crate::trust::NotifyChoice::Yes, at(1));
    crowd.tool = tool("p", "third");
    assert_eq!(crowd.state("a", 2), TrustState::Blocked);
    let status = crowd.ledger.status(|_, _| TrustRule::default(), at(2));
    assert_eq!(status.iter().filter(|one| one.standing.tool().is_none()).count(), 1);
    crowd.ledger = restarted(&crowd.ledger, 2);
    assert_eq!(crowd.state("a", 2), TrustState::Blocked);
    crowd.ledger.reset(TrustTarget::Tool(&second), at(3));
    assert_eq!(crowd.state("a", 3), TrustState::Blocked);
    crowd.ledger.reset(TrustTarget::All, at(4));
    assert_eq!(crowd.state("a", 4), TrustState::Trusted);
}

#[test]
fn statistics_of_domains_are_bounded() {
    let mut crowd = SignatureCrowd::new();
    let signature = signature("s");
    for second in 0..50 {
        let host = domain(&format!("host{second}"));
        let subject = TrustSubject { tool: &crowd.tool, signature: &signature, domain: Some(&host) };
        crowd.ledger.record(TrustRules { signature: &crowd.rule, domain: None }, subject, OK, at(second));
    }
    let domains: Vec<_> = crowd.ledger.snapshot(at(50)).domain_stats.into_keys().collect();
    assert_eq!(domains, [domain("host48"), domain("host49")]);
}

#[test]
fn a_success_of_a_trusted_tool_is_not_stored() {
    let mut crowd = SignatureCrowd::new();
    for name in 0..1000 {
        crowd.record(&format!("fine {name}"), &[OK], name);
    }
    assert!(crowd.ledger.signatures.items.is_empty());
}

#[test]
fn rp_11_two_processes_exchange_trust_and_the_newer_change_applies() {
    let escalated = SingleToolLedger::escalated(TrustRule::default(), 10);
    let mut other = SingleToolLedger::new(TrustRule::default());
    other.records(&[BAD; 2], 5);
    other.ledger.adopt(escalated.ledger.snapshot(at(20))).unwrap();
    assert_eq!(other.state(20), TrustState::Escalated, "it was escalated elsewhere");

    // After a reset in the other process the snapshot no longer has it.
    let mut reset = escalated.ledger.clone();
    reset.reset(TrustTarget::Signature(&other.tool, &other.signature), at(30));
    let stored = reset.snapshot(at(30));
    let mut failed_since = SingleToolLedger::new(TrustRule::default());
    failed_since.ledger = other.ledger.clone();
    failed_since.record(BAD, 31);
    other.ledger.adopt(stored.clone()).unwrap();
    assert_eq!(other.state(32), TrustState::Trusted);
    failed_since.ledger.adopt(stored).unwrap();
    assert_eq!(failed_since.state(32), TrustState::Escalated, "something happened here after the reset");
}

/// A snapshot from before the restored trust is read again before the current state is written.
#[test]
fn rp_11_restored_trust_survives_an_older_snapshot() {
    for second in [10, 1810] {
        let mut one = SingleToolLedger::escalated(TrustRule::default(), 10);
        one.record(OK, second);
        let before = one.ledger.snapshot(at(second));
        let mut forgiven = SingleToolLedger::new(TrustRule::default());
        forgiven.ledger = one.ledger.clone();
        forgiven.ledger.reset(TrustTarget::All, at(1811));
        one.records(&[OK; 3], 1811);
        for (single, case) in [(&mut one, "won"), (&mut forgiven, "given back")] {
            assert_eq!(single.state(1811), TrustState::Trusted, "{case}");
            single.ledger.adopt(before.clone()).unwrap();
            assert_eq!(single.state(1812), TrustState::Trusted, "{case}, and stored at {second}");
            // A new failure counts.
            let later = SingleToolLedger::escalated(TrustRule::default(), 1820);
            single.ledger.adopt(later.ledger.snapshot(at(1821))).unwrap();
            assert_eq!(single.state(1822), TrustState::Escalated, "{case}");
        }
    }
}
