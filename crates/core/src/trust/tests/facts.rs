//! Fields of changes, effects of resets, and data restored after a restart, field by field.

use super::*;
use crate::trust::account::{State, TrustAccount};
use crate::trust::{
    HistoryEntry, NotifyChoice, ReportedFailure, TrustBounds, TrustReport, TrustSnapshot, TrustSnapshotError,
    TrustTarget, changes_between,
};

const BAD: FinishedOutcome = FinishedOutcome::Failure { severity: Severity::Crash, recoverable: true };

fn restored(ledger: &TrustLedger, bounds: TrustBounds) -> TrustLedger {
    let text = serde_json::to_string(&ledger.snapshot(at(5000))).unwrap();
    TrustLedger::restore(TrustSnapshot::read(&text).unwrap(), bounds).unwrap()
}

/// Returns the only account of a signature.
fn account(ledger: &TrustLedger) -> &TrustAccount {
    assert_eq!(ledger.signatures.items.len(), 1);
    ledger.signatures.items.values().next().unwrap()
}

// ---- fields of changes ----

#[test]
fn every_change_has_its_reason_and_its_numbers() {
    let mut one = SingleToolLedger::escalated(TrustRule::default(), 0);
    let summary_of = |changes: &[TrustChange]| {
        let [change] = changes else { panic!("{changes:?}") };
        (change.to, change.reason.clone(), change.failures, change.successes_needed)
    };
    let recovering = one.record(OK, 1800);
    let over = "the escalation has expired".to_owned();
    assert_eq!(summary_of(&recovering), (TrustState::Recovering, over, 3, 3));
    one.record(OK, 1801);
    let (to, reason, failures, _) = summary_of(&one.record(OK, 1802));
    assert_eq!((to, failures), (TrustState::Trusted, 3));
    assert!(reason.contains('3'), "{reason}");

    let mut one = SingleToolLedger::escalated(TrustRule::default(), 0);
    let target = TrustTarget::Signature(&one.tool, &one.signature);
    let (to, reason, ..) = summary_of(&one.ledger.approve_recovery(target, at(1)));
    assert_eq!((to, reason.as_str()), (TrustState::Recovering, "recovery approved by an operator"));

    let mut one = SingleToolLedger::escalated(TrustRule { block_after: n(2), ..TrustRule::default() }, 0);
    assert_eq!(one.record(BAD, 1), []);
    let (to, _, failures, _) = summary_of(&one.record(BAD, 2));
    assert_eq!((to, failures), (TrustState::Blocked, 5));
}

#[test]
fn states_and_errors_have_readable_names() {
    let names = [TrustState::Trusted, TrustState::Recovering, TrustState::Escalated, TrustState::Blocked];
    assert_eq!(names.map(|state| state.to_string()), ["TRUSTED", "RECOVERING", "ESCALATED", "BLOCKED"]);
    let error = TrustSnapshotError::UnknownVersion { found: 9 }.to_string();
    assert!(error.contains("version 9") && error.contains("use a newer program"), "{error}");
}

#[test]
fn of_two_that_are_equally_bad_the_tool_as_a_whole_is_named() {
    let mut one = SingleToolLedger::escalated(TrustRule { block_after: n(1), ..TrustRule::default() }, 0);
    one.record(BAD, 1);
    assert_eq!(one.state(1), TrustState::Blocked);
    one.ledger.block_tool(&one.tool, "stopped by hand", NotifyChoice::No, at(2));
    assert_eq!(one.reason(2), "stopped by hand");
}

#[test]
fn only_refusals_of_access_make_a_refusal_of_access_one_too_many() {
    let mut one = SingleToolLedger::new(TrustRule::default());
    one.records(&[failure(Severity::NotFound); 5], 0);
    one.record(failure(Severity::Permission), 1);
    assert_eq!(one.state(1), TrustState::Trusted);
    one.records(&[failure(Severity::Permission); 2], 2);
    assert_eq!(one.state(2), TrustState::Escalated);
}

#[test]
fn access_that_is_refused_too_often_counts_for_the_tool_that_is_on_trial_too() {
    let mut one = SingleToolLedger::new(TrustRule::default());
    let report = TrustReport { tool: &one.tool, signature: None, domain: None, service: None };
    let reported = ReportedFailure { classified: Severity::Crash, severity: None, recoverable: true };
    for _ in 0..3 {
        one.ledger.report_failure(TrustRules { signature: &one.rule, domain: None }, report, reported, at(0));
    }
    assert_eq!(one.state(1799), TrustState::Escalated);
    assert_eq!(one.state(1800), TrustState::Recovering);
    one.records(&[failure(Severity::Permission); 3], 1800);
    let of_tool = &one.ledger.tools.items[&one.tool];
    assert_eq!(of_tool.state(&one.rule, at(1800)), TrustState::Escalated);
}

#[test]
fn calls_of_a_blocked_tool_are_in_the_history_and_do_not_count() {
    let rate = Some(crate::policy::Ratio::percent(50));
    let mut one = SingleToolLedger::new(TrustRule { rate, ..TrustRule::default() });
    one.ledger.block_tool(&one.tool, "a test", NotifyChoice::No, at(0));
    let before = format!("{:?}", one.ledger.tools);
    assert_eq!(one.record(OK, 1), []);
    assert_eq!(one.record(BAD, 2), []);
    assert_eq!(format!("{:?}", one.ledger.tools), before);
    assert!(one.ledger.signatures.items.is_empty());
    let entries: Vec<_> = one.ledger.history(None).collect();
    assert!(matches!(entries[..], [entry] if !entry.counts_for_call && !entry.counts_for_domain));
}

// ---- failures cleared by a reset ----

/// Two tools with two signatures each, of two domains, and one failure of each. All of them count.
struct EightFailures {
    ledger: TrustLedger,
    rule: TrustRule,
    tools: [ToolRef; 2],
    signatures: [Signature; 2],
    domains: [Domain; 2],
}

impl EightFailures {
    fn new() -> Self {
        // One failure is enough, and one success after it as well.
        let rule = TrustRule { count: Some(n(1)), successes_to_recover: n(1), ..TrustRule::default() };
        let mut eight = Self {
            ledger: TrustLedger::default(),
            rule,
            // The same name at two servers.
            tools: [tool("a", "t"), tool("b", "t")],
            signatures: [signature("s"), signature("r")],
            domains: [domain("h"), domain("g")],
        };
        for number in 0..8 {
            eight.record(number, BAD, 0);
        }
        assert_eq!(eight.counting(|entry| entry.counts_for_call), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(eight.counting(|entry| entry.counts_for_domain), [0, 1, 2, 3, 4, 5, 6, 7]);
        eight
    }

    /// Records a call. Tool, signature and domain are the bits of the number.
    fn record(&mut self, number: usize, finished: FinishedOutcome, second: u64) -> Vec<TrustChange> {
        let subject = TrustSubject {
            tool: &self.tools[number >> 2],
            signature: &self.signatures[(number >> 1) & 1],
            domain: Some(&self.domains[number & 1]),
        };
        let rules = TrustRules { signature: &self.rule, domain: Some(&self.rule) };
        self.ledger.record(rules, subject, finished, at(second))
    }

    /// Returns the numbers of the failures that count.
    fn counting(&self, counts: impl Fn(&HistoryEntry) -> bool) -> Vec<usize> {
        let counting = self.ledger.history(None).enumerate().filter(|(_, entry)| counts(entry));
        counting.map(|(number, _)| number).collect()
    }

    /// Returns the tools and signatures, by their numbers, that are not trusted.
    fn escalated(&self) -> Vec<(usize, usize)> {
        let all = [(0, 0), (0, 1), (1, 0), (1, 1)];
        let is_escalated = |&(of, with): &(usize, usize)| {
            let key = (self.tools[of].clone(), self.signatures[with].clone());
            self.ledger.signatures.items[&key].state != State::Trusted
        };
        all.into_iter().filter(is_escalated).collect()
    }
}

#[test]
fn a_reset_clears_its_target_and_nothing_else() {
    let mut eight = EightFailures::new();
    let (tools, signatures, domains) = (eight.tools.clone(), eight.signatures.clone(), eight.domains.clone());
    eight.ledger.reset(TrustTarget::Signature(&tools[0], &signatures[0]), at(1));
    assert_eq!(eight.counting(|entry| entry.counts_for_call), [2, 3, 4, 5, 6, 7]);
    assert_eq!(eight.escalated(), [(0, 1), (1, 0), (1, 1)]);
    eight.ledger.reset(TrustTarget::Tool(&tools[1]), at(2));
    assert_eq!(eight.counting(|entry| entry.counts_for_call), [2, 3]);
    assert_eq!(eight.escalated(), [(0, 1)]);
    assert_eq!(eight.counting(|entry| entry.counts_for_domain).len(), 8);
    eight.ledger.reset(TrustTarget::Domain(&domains[0]), at(3));
    assert_eq!(eight.counting(|entry| entry.counts_for_domain), [1, 3, 5, 7]);
    let domain = |at: usize| &eight.ledger.domains.items[&domains[at]].state;
    assert_eq!((domain(0) == &State::Trusted, domain(1) == &State::Trusted), (true, false));
    eight.ledger.reset(TrustTarget::All, at(4));
    assert_eq!(eight.counting(|entry| entry.counts_for_call || entry.counts_for_domain), [0; 0]);
}

#[test]
fn restored_trust_clears_its_own_failures_and_nothing_else() {
    let mut eight = EightFailures::new();
    let changes = eight.record(0, OK, 1800);
    let trusted = changes.iter().filter(|change| change.to == TrustState::Trusted).count();
    assert_eq!(trusted, 2, "the signature and the domain: {changes:?}");
    assert_eq!(eight.counting(|entry| entry.counts_for_call), [2, 3, 4, 5, 6, 7]);
    assert_eq!(eight.counting(|entry| entry.counts_for_domain), [1, 3, 5, 7]);
}

#[test]
fn failures_count_until_trust_is_earned_back() {
    let mut one = SingleToolLedger::escalated(TrustRule::default(), 0);
    let counts =
        |one: &SingleToolLedger| one.ledger.history(None).filter(|entry| entry.counts_for_call).count();
    one.record(OK, 1800);
    assert_eq!((one.state(1800), counts(&one)), (TrustState::Recovering, 3));
    one.records(&[OK; 2], 1801);
    assert_eq!((one.state(1801), counts(&one)), (TrustState::Trusted, 0));
}

#[test]
fn a_failure_counts_for_its_domain_only_where_a_rule_judges_that() {
    let (t, s, host) = (tool("p", "t"), signature("s"), domain("h"));
    let subject = TrustSubject { tool: &t, signature: &s, domain: Some(&host) };
    let rule = TrustRule::default();
    let mut ledger = TrustLedger::default();
    ledger.record(TrustRules { signature: &rule, domain: None }, subject, BAD, at(0));
    ledger.record(TrustRules { signature: &rule, domain: Some(&rule) }, subject, BAD, at(1));
    let counts: Vec<_> = ledger.history(None).map(|entry| entry.counts_for_domain).collect();
    assert_eq!(counts, [false, true]);
    assert_eq!(ledger.history(Some(&tool("other", "t"))).count(), 0, "the same name elsewhere");
}

// ---- after a restart, and from another process ----

#[test]
fn every_state_is_the_same_after_a_restart_also_without_a_history() {
    let rule = || TrustRule { block_after: n(2), ..TrustRule::default() };
    let by_hand = FinishedOutcome::Failure { severity: Severity::Crash, recoverable: false };
    let mut escalated = SingleToolLedger::escalated(rule(), 0);
    escalated.record(by_hand, 1);
    let mut recovering = SingleToolLedger::escalated(rule(), 0);
    recovering.record(OK, 1800);
    let mut blocked = SingleToolLedger::escalated(rule(), 0);
    blocked.records(&[BAD; 2], 1);
    for one in [escalated, recovering, blocked] {
        let again = restored(&one.ledger, TrustBounds { history: 0, ..TrustBounds::default() });
        let (before, after) = (account(&one.ledger), account(&again));
        assert_eq!(after.state, before.state);
        assert_eq!((after.last_failure, after.last_success), (before.last_failure, before.last_success));
        let with_history = restored(&one.ledger, TrustBounds::default());
        assert_eq!(account(&with_history).window.run(), before.window.run(), "failures in a row");
    }
}

#[test]
fn an_account_has_its_domain_after_a_restart() {
    let (t, s, host) = (tool("p", "t"), signature("s"), domain("h"));
    let subject = TrustSubject { tool: &t, signature: &s, domain: Some(&host) };
    let rule = TrustRule::default();
    let mut ledger = TrustLedger::default();
    for _ in 0..3 {
        ledger.record(TrustRules { signature: &rule, domain: None }, subject, BAD, at(0));
    }
    let again = restored(&ledger, TrustBounds { history: 0, ..TrustBounds::default() });
    assert_eq!(account(&again).domain, Some(host));
}

#[test]
fn failures_that_need_an_operator_are_marked_as_not_recoverable() {
    let shown = |one: &SingleToolLedger| {
        one.ledger.status(|_, _| TrustRule::default(), at(2))[0].standing.recoverable
    };
    let mut one = SingleToolLedger::escalated(TrustRule { block_after: n(1), ..TrustRule::default() }, 0);
    assert!(shown(&one));
    one.record(BAD, 1);
    assert_eq!((one.state(1), shown(&one)), (TrustState::Blocked, false));
    // A snapshot of a version without that field has only failures that time can heal.
    let mut stored =
        serde_json::to_value(SingleToolLedger::escalated(TrustRule::default(), 0).ledger.snapshot(at(0)))
            .unwrap();
    for state in stored["tool_states"].as_object_mut().unwrap().values_mut() {
        state.as_object_mut().unwrap().remove("recoverable");
    }
    let snapshot = TrustSnapshot::read(&stored.to_string()).unwrap();
    assert!(snapshot.tool_states.values().all(|state| state.recoverable));
}

#[test]
fn as_many_states_as_fit_are_restored() {
    let one = SingleToolLedger::escalated(TrustRule::default(), 0);
    let again = restored(&one.ledger, TrustBounds { signatures: 1, ..TrustBounds::default() });
    assert_eq!(again.signatures.items.len(), 1);
}

#[test]
fn a_block_of_all_tools_is_lifted_by_a_later_snapshot() {
    let empty = TrustLedger::default();
    for (written, blocked) in [(49, true), (50, false), (60, false)] {
        let mut ledger = TrustLedger::new(TrustBounds { tools: 0, ..TrustBounds::default() });
        ledger.block_tool(&tool("p", "t"), "a test", NotifyChoice::No, at(50));
        assert!(ledger.all_blocked.is_some());
        ledger.adopt(empty.snapshot(at(written))).unwrap();
        assert_eq!(ledger.all_blocked.is_some(), blocked, "stored at {written}");
    }
}

#[test]
fn a_reset_of_another_process_is_not_undone_by_an_earlier_snapshot() {
    let one = SingleToolLedger::escalated(TrustRule::default(), 10);
    let earlier = one.ledger.snapshot(at(15));
    let mut there = SingleToolLedger::new(TrustRule::default());
    there.ledger = one.ledger.clone();
    there.ledger.reset(TrustTarget::All, at(20));
    let mut here = SingleToolLedger::new(TrustRule::default());
    here.ledger = one.ledger;
    here.ledger.adopt(there.ledger.snapshot(at(30))).unwrap();
    assert_eq!(here.state(30), TrustState::Trusted);
    here.ledger.adopt(earlier).unwrap();
    assert_eq!(here.state(30), TrustState::Trusted);
}

#[test]
fn a_reset_of_another_process_counts_despite_later_failures_there() {
    let one = SingleToolLedger::escalated(TrustRule::default(), 10);
    for (stored_at, state) in [(40, TrustState::Trusted), (10, TrustState::Escalated)] {
        let mut there = SingleToolLedger::new(TrustRule::default());
        there.ledger = one.ledger.clone();
        there.ledger.reset(TrustTarget::All, at(20));
        there.record(BAD, 30);
        let mut here = SingleToolLedger::new(TrustRule::default());
        here.ledger = one.ledger.clone();
        here.ledger.adopt(there.ledger.snapshot(at(stored_at))).unwrap();
        assert_eq!(here.state(41), state, "stored at {stored_at}");
    }
}

#[test]
fn of_two_losses_of_trust_the_latest_counts() {
    let escalated =
        || SingleToolLedger::escalated(TrustRule { block_after: n(1), ..TrustRule::default() }, 10);
    let blocked_at = |second| {
        let mut one = escalated();
        one.record(BAD, second);
        assert_eq!(one.state(second), TrustState::Blocked);
        one
    };
    let mut older = escalated();
    older.ledger.adopt(blocked_at(20).ledger.snapshot(at(20))).unwrap();
    assert_eq!(older.state(21), TrustState::Blocked);
    let mut newer = blocked_at(20);
    newer.ledger.adopt(escalated().ledger.snapshot(at(10))).unwrap();
    assert_eq!(newer.state(21), TrustState::Blocked);
    let mut same = escalated();
    same.ledger.adopt(blocked_at(10).ledger.snapshot(at(10))).unwrap();
    assert_eq!(same.state(21), TrustState::Escalated, "its own word");
    // Trust that was restored at the time of the failure stays.
    let mut forgiven = escalated();
    forgiven.ledger.reset(TrustTarget::All, at(10));
    forgiven.ledger.adopt(escalated().ledger.snapshot(at(10))).unwrap();
    assert_eq!(forgiven.state(11), TrustState::Trusted);
}

#[test]
fn changes_of_another_process_are_reported_with_the_known_facts() {
    let rule = TrustRule { block_after: n(1), ..TrustRule::default() };
    for notify in [true, false] {
        let rule_of = |_: Option<&ToolRef>, _: Option<&Domain>| TrustRule { notify, ..rule.clone() };
        let between = |before: &TrustLedger, after: &TrustLedger, now: u64| {
            let (before, after) = (before.status(rule_of, at(now)), after.status(rule_of, at(now)));
            changes_between(&before, &after, rule_of, at(now))
        };
        let (empty, one) = (TrustLedger::default(), SingleToolLedger::escalated(rule.clone(), 10));
        let lost = between(&empty, &one.ledger, 10).remove(0);
        // The same as in the process that recorded it.
        let mut there = SingleToolLedger::new(TrustRule { notify, ..rule.clone() });
        there.records(&[failure(Severity::ServerError); 2], 10);
        assert_eq!(lost, there.record(failure(Severity::ServerError), 10).remove(0));
        assert_eq!(between(&one.ledger, &one.ledger, 10), []);
        // The time of escalation is over in both. Nothing changed.
        assert_eq!(between(&one.ledger, &one.ledger, 4000), []);
        let mut blocked = one.ledger.clone();
        let subject = TrustSubject { tool: &one.tool, signature: &one.signature, domain: None };
        blocked.record(TrustRules { signature: &rule, domain: None }, subject, BAD, at(20));
        let change = between(&one.ledger, &blocked, 20).remove(0);
        assert_eq!(
            (change.from, change.to, change.until),
            (TrustState::Escalated, TrustState::Blocked, None)
        );
        let won = between(&blocked, &empty, 30).remove(0);
        assert_eq!(
            (won.to, won.reason.as_str(), won.failures),
            (TrustState::Trusted, "changed by another process", 0)
        );
        assert_eq!((won.notify, won.tool, won.at), (notify, Some(one.tool.clone()), at(30)));
    }
}

#[test]
fn local_failures_stay_when_a_snapshot_is_adopted() {
    let mut here = SingleToolLedger::new(TrustRule::default());
    here.records(&[BAD; 2], 5);
    here.ledger.adopt(SingleToolLedger::escalated(TrustRule::default(), 10).ledger.snapshot(at(10))).unwrap();
    assert_eq!(here.state(11), TrustState::Escalated);
    assert_eq!(account(&here.ledger).window.count(HOUR, at(11), |_| true), 2);
}

#[test]
fn a_full_ledger_drops_a_sixteenth_of_the_trusted_entries_and_others_one_by_one() {
    let rule = TrustRule { count: Some(n(2)), ..TrustRule::default() };
    let t = tool("p", "t");
    let filled = |failures: usize| {
        let mut ledger = TrustLedger::new(TrustBounds { signatures: 64, ..TrustBounds::default() });
        for number in 0..64_u64 {
            let s = signature(&number.to_string());
            let subject = TrustSubject { tool: &t, signature: &s, domain: None };
            for _ in 0..failures {
                ledger.record(TrustRules { signature: &rule, domain: None }, subject, BAD, at(number));
            }
        }
        let s = signature("newcomer");
        let subject = TrustSubject { tool: &t, signature: &s, domain: None };
        ledger.record(TrustRules { signature: &rule, domain: None }, subject, BAD, at(100_000));
        ledger.signatures.items.len()
    };
    assert_eq!(filled(1), 64 - 4 + 1, "trusted");
    assert_eq!(filled(2), 64, "escalations whose time is over");
}

#[test]
fn restored_trust_in_a_whole_tool_clears_only_reports_about_the_whole_tool() {
    let rule = TrustRule { count: Some(n(1)), successes_to_recover: n(1), ..TrustRule::default() };
    let rules = TrustRules { signature: &rule, domain: None };
    let (first, other, with) = (tool("a", "t"), tool("b", "t"), signature("s"));
    let mut ledger = TrustLedger::default();
    let of = |tool, signature| TrustReport { tool, signature, domain: None, service: None };
    let reported = ReportedFailure { classified: Severity::Crash, severity: None, recoverable: true };
    for report in [of(&first, None), of(&first, Some(&with)), of(&other, None)] {
        ledger.report_failure(rules, report, reported, at(0));
    }
    let changes = ledger.report_success(rules, of(&first, None), at(1800));
    assert_eq!(changes.last().map(|change| change.to), Some(TrustState::Trusted));
    let counts: Vec<_> = ledger.history(None).map(|entry| entry.counts_for_call).collect();
    assert_eq!(counts, [false, true, true]);
}
