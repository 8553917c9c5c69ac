//! Conditions for the loss of trust: thresholds, window, filter.

use super::*;
use crate::policy::Ratio;

const BAD: FinishedOutcome = FinishedOutcome::Failure { severity: Severity::ServerError, recoverable: true };
const MISTAKE: FinishedOutcome =
    FinishedOutcome::Failure { severity: Severity::InvalidInput, recoverable: true };

#[test]
fn rp_3_the_third_failure_within_the_window_escalates_with_exact_texts() {
    let mut one = SingleToolLedger::new(TrustRule::default());
    one.record(BAD, 0);
    one.record(BAD, 1800);
    assert_eq!(one.state(1800), TrustState::Trusted);
    one.record(BAD, 3600);
    assert_eq!((one.state(3600), one.reason(3600)), (TrustState::Escalated, "3 failures in 1 h".to_owned()));
}

#[test]
fn rp_3_a_failure_older_than_the_window_does_not_count() {
    let mut one = SingleToolLedger::new(TrustRule::default());
    one.record(BAD, 0);
    one.record(BAD, 1800);
    one.record(BAD, 3601);
    assert_eq!(one.state(3601), TrustState::Trusted);
}

#[test]
fn rp_3_successes_between_do_not_save_a_tool_from_its_count() {
    let mut one = SingleToolLedger::new(TrustRule::default());
    one.records(&[BAD, OK, BAD, OK, OK], 0);
    assert_eq!(one.state(0), TrustState::Trusted);
    one.record(BAD, 1);
    assert_eq!(one.state(1), TrustState::Escalated);
}

#[test]
fn rp_3_only_severities_in_the_filter_count() {
    for severity in [
        Severity::Informational,
        Severity::Transient,
        Severity::NotFound,
        Severity::InvalidInput,
        Severity::Validation,
    ] {
        let mut one = SingleToolLedger::new(TrustRule::default());
        one.records(&[failure(severity); 50], 0);
        assert_eq!(one.state(0), TrustState::Trusted, "{severity:?}");
    }
    for severity in [Severity::ServerError, Severity::Crash, Severity::Timeout, Severity::Corruption] {
        let mut one = SingleToolLedger::new(TrustRule::default());
        one.records(&[failure(severity); 3], 0);
        assert_eq!(one.state(0), TrustState::Escalated, "{severity:?}");
    }
}

#[test]
fn rp_3_a_success_ends_a_run_of_failures_and_uncounted_failures_do_not_affect_it() {
    let rule = TrustRule { count: None, consecutive: Some(n(3)), ..TrustRule::default() };
    let mut one = SingleToolLedger::new(rule.clone());
    one.records(&[BAD, BAD, OK, BAD, BAD], 0);
    assert_eq!(one.state(0), TrustState::Trusted);

    let mut one = SingleToolLedger::new(rule.clone());
    one.records(&[MISTAKE, MISTAKE, MISTAKE, BAD, MISTAKE, BAD, MISTAKE], 0);
    assert_eq!(one.state(0), TrustState::Trusted);
    one.record(BAD, 1);
    assert_eq!((one.state(1), one.reason(1)), (TrustState::Escalated, "3 failures in a row".to_owned()));

    let mut one = SingleToolLedger::new(rule);
    one.records(&[BAD, BAD], 0);
    one.record(BAD, 3601);
    assert_eq!(one.state(3601), TrustState::Trusted, "the first two are older than the window");
}

#[test]
fn rp_3_the_rate_is_that_of_the_window_and_not_of_all_time() {
    let rule = TrustRule {
        count: None,
        rate: Some(Ratio::percent(50)),
        window: 10 * MINUTE,
        ..TrustRule::default()
    };
    let mut one = SingleToolLedger::new(rule);
    one.records(&[OK; 100], 0);
    one.records(&[BAD; 4], 601);
    assert_eq!(one.state(601), TrustState::Trusted, "fewer than five calls say nothing");
    one.record(BAD, 602);
    assert_eq!(
        (one.state(602), one.reason(602)),
        (TrustState::Escalated, "5 of 5 calls failed in 10 min".to_owned())
    );
}

#[test]
fn rp_3_the_rate_counts_every_finished_call_but_only_filtered_failures() {
    let rule = TrustRule { count: None, rate: Some(Ratio::percent(50)), ..TrustRule::default() };
    let mut one = SingleToolLedger::new(rule);
    one.records(&[OK, MISTAKE, MISTAKE, BAD, BAD], 0);
    assert_eq!(one.state(0), TrustState::Trusted);
    one.record(BAD, 0);
    assert_eq!(
        (one.state(0), one.reason(0)),
        (TrustState::Escalated, "3 of 6 calls failed in 1 h".to_owned())
    );
}

#[test]
fn rp_3_several_thresholds_mean_any_of_them() {
    let rule = TrustRule { count: Some(n(5)), consecutive: Some(n(2)), ..TrustRule::default() };
    let mut one = SingleToolLedger::new(rule.clone());
    one.records(&[BAD, BAD], 0);
    assert_eq!(one.reason(0), "2 failures in a row");
    let mut one = SingleToolLedger::new(rule);
    one.records(&[BAD, OK, BAD, OK, BAD, OK, BAD, OK, BAD], 0);
    assert_eq!(one.reason(0), "5 failures in 1 h");
}

#[test]
fn rp_3_a_tool_is_judged_by_its_failures_above_the_expected_rate() {
    let rate = Some(Ratio::percent(20));
    let rule =
        TrustRule { count: None, rate, expected_failure_rate: Ratio::percent(50), ..TrustRule::default() };
    let mut one = SingleToolLedger::new(rule);
    one.records(&[BAD, OK, BAD, OK, BAD, OK], 0);
    assert_eq!(one.state(0), TrustState::Trusted, "half of the calls fail, as expected");
    one.records(&[BAD, BAD], 1);
    assert_eq!(one.state(1), TrustState::Trusted, "5 of 8");
    one.records(&[BAD, BAD], 2);
    assert_eq!(
        (one.state(2), one.reason(2)),
        (TrustState::Escalated, "7 of 10 calls failed in 1 h".to_owned())
    );
}

#[test]
fn rp_3_the_third_refusal_of_access_escalates_under_any_filter() {
    let mut one = SingleToolLedger::new(TrustRule::default());
    one.records(&[failure(Severity::Permission); 2], 0);
    assert_eq!(one.state(0), TrustState::Trusted);
    one.record(failure(Severity::Permission), 3600);
    assert_eq!(one.reason(3600), "access denied 3 times in 1 h");

    let mut one = SingleToolLedger::new(TrustRule::default());
    one.records(&[failure(Severity::Permission); 2], 0);
    one.record(failure(Severity::Permission), 3601);
    assert_eq!(one.state(3601), TrustState::Trusted, "two of them are older than the window");
}

#[test]
fn a_rule_without_thresholds_never_escalates() {
    let mut one = SingleToolLedger::new(TrustRule { count: None, ..TrustRule::default() });
    one.records(&[BAD; 300], 0);
    assert_eq!(one.state(0), TrustState::Trusted);
}

/// Returns a rule that loses trust fast and restores it slowly.
fn conservative() -> TrustRule {
    TrustRule {
        count: Some(n(2)),
        window: 30 * MINUTE,
        severities: [Severity::ServerError, Severity::Crash].into(),
        duration: HOUR,
        cooldown: 30 * MINUTE,
        successes_to_recover: n(5),
        ..TrustRule::default()
    }
}

/// Returns a rule that loses trust slowly and restores it fast.
fn lenient() -> TrustRule {
    TrustRule {
        count: Some(n(5)),
        severities: [Severity::Crash, Severity::Security].into(),
        duration: 15 * MINUTE,
        cooldown: 10 * MINUTE,
        successes_to_recover: n(2),
        ..TrustRule::default()
    }
}

/// Returns a rule with only a share of failures.
fn rate_based() -> TrustRule {
    TrustRule {
        count: None,
        rate: Some(Ratio::percent(50)),
        window: 10 * MINUTE,
        duration: 20 * MINUTE,
        ..TrustRule::default()
    }
}

#[test]
fn rp_5_the_conservative_rule_escalates_quickly_and_recovers_slowly() {
    let mut one = SingleToolLedger::new(conservative());
    one.record(BAD, 0);
    one.record(BAD, 1800);
    assert_eq!(one.state(1800), TrustState::Escalated);
    assert_eq!(one.state(1800 + 3599), TrustState::Escalated);
    assert_eq!(one.state(1800 + 3600), TrustState::Recovering);
    one.records(&[OK; 4], 5400);
    assert_eq!(one.state(5400), TrustState::Recovering);
    one.record(OK, 5401);
    assert_eq!(one.state(5401), TrustState::Trusted);
}

#[test]
fn rp_5_the_lenient_rule_ignores_transient_failures_and_restores_trust_soon() {
    let mut one = SingleToolLedger::new(lenient());
    one.records(&[BAD; 20], 0);
    one.records(&[failure(Severity::Timeout); 20], 0);
    one.records(&[failure(Severity::Crash); 4], 0);
    assert_eq!(one.state(0), TrustState::Trusted);
    one.record(failure(Severity::Crash), 0);
    assert_eq!(one.state(0), TrustState::Escalated);
    assert_eq!(one.state(900), TrustState::Recovering);
    one.records(&[OK; 2], 900);
    assert_eq!(one.state(900), TrustState::Trusted);
    one.record(failure(Severity::Security), 901);
    assert_eq!(one.state(901), TrustState::Blocked);
}

#[test]
fn rp_5_the_rate_based_rule_allows_any_number_of_failures_if_most_calls_succeed() {
    let mut one = SingleToolLedger::new(rate_based());
    for _ in 0..40 {
        one.records(&[OK, OK, BAD], 0);
    }
    assert_eq!(one.state(0), TrustState::Trusted);
    one.records(&[BAD; 39], 1);
    assert_eq!(one.state(1), TrustState::Trusted, "79 of 159");
    one.record(BAD, 1);
    assert_eq!(
        (one.state(1), one.reason(1)),
        (TrustState::Escalated, "80 of 160 calls failed in 10 min".to_owned())
    );
    assert_eq!(one.state(1200), TrustState::Escalated);
    assert_eq!(one.state(1201), TrustState::Recovering);
}
