//! The scenarios of the requirements, step by step, with their notifications.

use super::*;
use crate::trust::{PromptLevel, ReportedFailure, TrustReport, TrustScope, TrustTarget};

const UNAVAILABLE: FinishedOutcome =
    FinishedOutcome::Failure { severity: Severity::ServerError, recoverable: true };

#[test]
fn rp_14_a_service_degrades_and_comes_back() {
    let mut one = SingleToolLedger::new(TrustRule::default());
    let host = domain("api.example.com");
    let call = |one: &mut SingleToolLedger, finished, second| {
        let subject = TrustSubject { tool: &one.tool, signature: &one.signature, domain: Some(&host) };
        one.ledger.record(TrustRules { signature: &one.rule, domain: None }, subject, finished, at(second))
    };

    // Turns 1 and 2: the service answers 503.
    assert!(call(&mut one, UNAVAILABLE, 0).is_empty());
    assert_eq!(one.state(0), TrustState::Trusted);
    assert!(call(&mut one, UNAVAILABLE, 60).is_empty());
    assert_eq!(one.state(60), TrustState::Trusted);

    // Turn 3: trust is lost with the third failure, and a notification is sent.
    let changes = call(&mut one, UNAVAILABLE, 120);
    assert_eq!(one.state(120), TrustState::Escalated);
    assert_eq!(changes.len(), 1);
    assert!(changes[0].notify);
    assert_eq!(changes[0].domain, Some(host.clone()));
    assert_eq!(
        changes[0].message(),
        "web/http_request at api.example.com needs approval until 2025-11-05T00:32:00.000Z: 3 failures in 1 h; \
         3 successful calls after that restore trust"
    );

    // Turn 4: one call is approved; it fails again and the tool is still escalated.
    let TrustDecision::NeedsApproval(prompt) = one.standing(180) else { panic!("it asks") };
    assert_eq!((prompt.reason.as_str(), prompt.failures), ("3 failures in 1 h", 3));
    assert!(call(&mut one, UNAVAILABLE, 180).is_empty());
    assert_eq!(one.state(180), TrustState::Escalated);

    // Turn 5: half an hour after the escalation the tool works again without approval.
    assert_eq!(one.state(120 + 1799), TrustState::Escalated);
    assert_eq!(one.state(120 + 1800), TrustState::Recovering);
    let changes = call(&mut one, OK, 120 + 1800);
    assert_eq!(one.state(120 + 1800), TrustState::Recovering);
    assert_eq!(changes.iter().filter(|change| change.notify).count(), 0);

    // Turns 6 and 7: two more successes, and a notification is sent.
    assert!(call(&mut one, OK, 2000).is_empty());
    let changes = call(&mut one, OK, 2060);
    assert_eq!(one.state(2060), TrustState::Trusted);
    assert_eq!(changes.len(), 1);
    assert!(changes[0].notify);
    assert_eq!(
        changes[0].message(),
        "web/http_request at api.example.com is trusted again: 3 successful calls"
    );
}

#[test]
fn rp_15_a_dangerous_command_blocks_the_whole_tool() {
    let rule = TrustRule::default();
    let bash = tool("cli", "bash");
    let [rm, cat, ls] = ["rm", "cat", "ls"].map(|word| signature(&format!("bash|command={word}")));
    let mut ledger = TrustLedger::default();
    let subject = |signature| TrustSubject { tool: &bash, signature, domain: None };
    let by = TrustRules { signature: &rule, domain: None };
    let state = |ledger: &TrustLedger, signature| state_of(&ledger.check(by, subject(signature), at(60)));

    // Turns 1 and 2: access is denied, which is not a security concern.
    ledger.record(by, subject(&rm), failure(Severity::Permission), at(0));
    ledger.record(by, subject(&cat), failure(Severity::Permission), at(10));
    assert_eq!((state(&ledger, &rm), state(&ledger, &cat)), (TrustState::Trusted, TrustState::Trusted));

    // Turn 3: the command ran and was denied too, and its shape alone is enough.
    let changes = ledger.record(by, subject(&rm), failure(Severity::Security), at(20));
    assert_eq!(changes.len(), 1);
    assert_eq!(
        (changes[0].scope, changes[0].from, changes[0].to),
        (TrustScope::Tool, TrustState::Trusted, TrustState::Blocked)
    );
    assert!(changes[0].notify);
    assert_eq!(changes[0].message(), "cli/bash is blocked until an operator resets it: security concern");

    // Every signature of the tool is blocked, also an unknown one. Other tools are not affected.
    for signature in [&rm, &cat, &ls] {
        let TrustDecision::Blocked(prompt) = ledger.check(by, subject(signature), at(1_000_000)) else {
            panic!("{signature:?} is blocked")
        };
        assert_eq!((prompt.reason.as_str(), prompt.level), ("security concern", PromptLevel::Error));
    }
    let other = tool("cli", "python");
    let free = ledger.check(by, TrustSubject { tool: &other, signature: &ls, domain: None }, at(60));
    assert_eq!(free, TrustDecision::Allowed(TrustState::Trusted));

    // Calls that an operator approves change nothing, with any result. A reset of one signature does not either.
    assert!(ledger.record(by, subject(&ls), OK, at(100)).is_empty());
    assert!(ledger.record(by, subject(&ls), failure(Severity::Security), at(101)).is_empty());
    ledger.reset(TrustTarget::Signature(&bash, &rm), at(102));
    assert_eq!(state(&ledger, &rm), TrustState::Blocked);

    // The reset of the tool does.
    let changes = ledger.reset(TrustTarget::Tool(&bash), at(103));
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].message(), "cli/bash is trusted again: reset by an operator");
    assert_eq!(state(&ledger, &rm), TrustState::Trusted);
}

#[test]
fn rp_15_a_dangerous_command_blocks_from_every_state_and_names_its_shape() {
    let mut one = SingleToolLedger::escalated(TrustRule::default(), 0);
    let tool = one.tool.clone();
    let changes = one.ledger.block_tool(
        &tool,
        "dangerous command: sudo rm -rf /",
        crate::trust::NotifyChoice::Yes,
        at(5),
    );
    assert_eq!(one.reason(5), "dangerous command: sudo rm -rf /");
    assert_eq!(changes[0].to, TrustState::Blocked);
    assert!(one.record(failure(Severity::Security), 6).is_empty());
    assert_eq!(one.reason(6), "dangerous command: sudo rm -rf /", "the first reason stays");
}

#[test]
fn rp_16_one_server_fails_and_the_others_stay_free() {
    let atlassian = domain("atlassian");
    let github = domain("github");
    let of_atlassian = TrustRule { count: Some(n(2)), window: 5 * MINUTE, ..TrustRule::default() };
    let tools =
        [tool("atlassian", "search"), tool("atlassian", "create_issue"), tool("atlassian", "comment")];
    let signatures = ["search", "create_issue", "comment"].map(signature);
    let mut ledger = TrustLedger::default();
    let subject = |index: usize| TrustSubject {
        tool: &tools[index],
        signature: &signatures[index],
        domain: Some(&atlassian),
    };
    let by = TrustRules { signature: &of_atlassian, domain: Some(&of_atlassian) };

    assert!(ledger.record(by, subject(0), failure(Severity::Timeout), at(0)).is_empty());
    let changes = ledger.record(by, subject(1), failure(Severity::Timeout), at(300));
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].scope, TrustScope::Domain);
    assert_eq!(
        changes[0].message(),
        "everything that uses atlassian needs approval until 2025-11-05T00:35:00.000Z: 2 failures in 5 min; \
         3 successful calls after that restore trust"
    );
    // All tools of the server need approval, also one that never failed.
    for index in 0..3 {
        let TrustDecision::NeedsApproval(prompt) = ledger.check(by, subject(index), at(301)) else {
            panic!("it asks")
        };
        assert!(prompt.summary.contains("everything that uses atlassian"), "{}", prompt.summary);
    }
    // A tool of the same name on another server does not.
    let other = tool("github", "search");
    let elsewhere = TrustSubject { tool: &other, signature: &signatures[0], domain: Some(&github) };
    let standing = ledger.check(TrustRules { domain: None, ..by }, elsewhere, at(301));
    assert_eq!(standing, TrustDecision::Allowed(TrustState::Trusted));
    // Successes of any of its tools restore trust in the server, also through the domain's own rule.
    for index in 0..3 {
        ledger.record(by, subject(index), OK, at(2100));
    }
    assert_eq!(ledger.check(by, subject(0), at(2100)), TrustDecision::Allowed(TrustState::Trusted));
}

#[test]
fn rp_16_the_worse_of_signature_and_domain_counts() {
    let host = domain("h");
    let rule =
        TrustRule { count: Some(n(2)), duration: 5 * MINUTE, cooldown: MINUTE, ..TrustRule::default() };
    let of_host = TrustRule { count: Some(n(4)), ..TrustRule::default() };
    let (t, s) = (tool("p", "t"), signature("t"));
    let subject = TrustSubject { tool: &t, signature: &s, domain: Some(&host) };
    let by = TrustRules { signature: &rule, domain: Some(&of_host) };
    let mut ledger = TrustLedger::default();
    for second in 0..4 {
        ledger.record(by, subject, UNAVAILABLE, at(second));
    }
    assert_eq!(state_of(&ledger.check(by, subject, at(400))), TrustState::Escalated, "the domain still is");
    assert_eq!(ledger.check(by, subject, at(1803)), TrustDecision::Allowed(TrustState::Recovering));
    ledger.reset(TrustTarget::Domain(&host), at(1803));
    assert_eq!(
        ledger.check(by, subject, at(1803)),
        TrustDecision::Allowed(TrustState::Recovering),
        "the signature still is"
    );
}

#[test]
fn rp_8_notifications_carry_the_facts_and_can_be_turned_off() {
    let mut one = SingleToolLedger::new(TrustRule::default());
    one.records(&[UNAVAILABLE; 2], 0);
    let changes = one.record(UNAVAILABLE, 0);
    let [change] = changes.as_slice() else { panic!("one change") };
    assert_eq!(change.tool.as_ref(), Some(&one.tool));
    assert_eq!(change.signature.as_ref(), Some(&one.signature));
    assert_eq!((change.from, change.to), (TrustState::Trusted, TrustState::Escalated));
    assert_eq!((change.reason.as_str(), change.failures), ("3 failures in 1 h", 3));
    assert_eq!((change.until, change.successes_needed, change.at), (Some(at(1800)), 3, at(0)));
    assert!(change.notify);

    let changes: Vec<_> = (0..3).flat_map(|second| one.record(OK, 1800 + second)).collect();
    let actual: Vec<_> = changes.iter().map(|change| (change.from, change.to, change.notify)).collect();
    assert_eq!(
        actual,
        [
            (TrustState::Escalated, TrustState::Recovering, false),
            (TrustState::Recovering, TrustState::Trusted, true),
        ]
    );

    let mut quiet = SingleToolLedger::new(TrustRule { notify: false, ..TrustRule::default() });
    quiet.records(&[UNAVAILABLE; 2], 0);
    let changes = quiet.record(UNAVAILABLE, 0);
    assert!(changes.len() == 1 && !changes[0].notify, "it is told to metrics all the same");
}

fn about<'a>(tool: &'a ToolRef, signature: Option<&'a Signature>) -> TrustReport<'a> {
    TrustReport { tool, signature, domain: None, service: None }
}

#[test]
fn rp_9_a_reported_severity_beats_the_classified_one() {
    let rule = TrustRule::default();
    let rules = TrustRules { signature: &rule, domain: None };
    let (t, s) = (tool("p", "t"), signature("t"));
    let subject = TrustSubject { tool: &t, signature: &s, domain: None };
    for (severity, expected) in [
        (None, TrustState::Trusted),
        (Some(Severity::Corruption), TrustState::Escalated),
        (Some(Severity::Security), TrustState::Blocked),
        (Some(Severity::RepeatedAuth), TrustState::Escalated),
    ] {
        let mut ledger = TrustLedger::default();
        for _ in 0..3 {
            let failure = ReportedFailure { classified: Severity::NotFound, severity, recoverable: true };
            ledger.report_failure(rules, about(&t, Some(&s)), failure, at(0));
        }
        assert_eq!(state_of(&ledger.check(rules, subject, at(0))), expected, "{severity:?}");
    }
}

#[test]
fn rp_9_a_report_without_arguments_is_about_the_tool_as_a_whole() {
    let rule = TrustRule::default();
    let rules = TrustRules { signature: &rule, domain: None };
    let (t, one, other) = (tool("p", "t"), signature("t|path=/a"), signature("t|path=/b"));
    let subject = |signature| TrustSubject { tool: &t, signature, domain: None };
    let failed = ReportedFailure { classified: Severity::Crash, severity: None, recoverable: true };
    let mut ledger = TrustLedger::default();
    ledger.report_failure(rules, about(&t, None), failed, at(0));
    ledger.record(rules, subject(&one), UNAVAILABLE, at(0));
    ledger.record(rules, subject(&other), UNAVAILABLE, at(0));
    assert_eq!(
        ledger.check(rules, subject(&one), at(0)),
        TrustDecision::Allowed(TrustState::Trusted),
        "calls with different signatures do not add up to a report"
    );
    ledger.report_failure(rules, about(&t, None), failed, at(1));
    ledger.report_failure(rules, about(&t, None), failed, at(1));
    for signature in [&one, &other] {
        assert_eq!(state_of(&ledger.check(rules, subject(signature), at(2))), TrustState::Escalated);
    }
    // While recovering, any call of the tool counts, successes and failures.
    ledger.record(rules, subject(&one), OK, at(1801));
    ledger.record(rules, subject(&other), UNAVAILABLE, at(1802));
    assert_eq!(state_of(&ledger.check(rules, subject(&one), at(1802))), TrustState::Escalated);
    ledger.report_success(rules, about(&t, None), at(3602));
    ledger.record(rules, subject(&one), OK, at(3602));
    ledger.report_success(rules, about(&t, Some(&other)), at(3602));
    assert_eq!(ledger.check(rules, subject(&one), at(3602)), TrustDecision::Allowed(TrustState::Trusted));
}

#[test]
fn rp_9_a_report_has_a_domain_a_service_and_a_recoverable_flag() {
    let (host, service) = (domain("db.internal"), domain("billing"));
    let of_service = TrustRule { count: Some(n(1)), ..TrustRule::default() };
    let (t, s) = (tool("p", "t"), signature("t"));
    let failed = ReportedFailure { classified: Severity::Crash, severity: None, recoverable: false };

    // Only the service is given: it replaces the domain, and its rule applies.
    let mut ledger = TrustLedger::default();
    let report = TrustReport { service: Some(&service), ..about(&t, Some(&s)) };
    assert_eq!(report.depends_on(), Some(&service));
    let by = TrustRules { signature: &of_service, domain: Some(&of_service) };
    let changes = ledger.report_failure(by, report, failed, at(0));
    assert_eq!(
        changes.iter().map(|change| change.scope).collect::<Vec<_>>(),
        [TrustScope::Signature, TrustScope::Domain]
    );
    assert!(changes.iter().all(|change| change.until.is_none()), "time cannot heal it");
    let subject = TrustSubject { tool: &t, signature: &s, domain: Some(&service) };
    assert_eq!(state_of(&ledger.check(by, subject, at(1_000_000))), TrustState::Escalated);

    // Both are given: the domain is counted, and the service is stored in the history.
    let report = TrustReport { domain: Some(&host), ..report };
    ledger.report_failure(TrustRules { domain: None, ..by }, report, failed, at(1));
    let entry = ledger.history(Some(&t)).last().unwrap();
    assert_eq!(
        (&entry.domain, &entry.service, entry.recoverable),
        (&Some(host.clone()), &Some(service), false)
    );
    assert_eq!(ledger.domain_stats(&host).map(|stats| stats.total_failures), Some(1));
}
