//! Tests of every notice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::breaker::{BreakerTransition, State, TransitionReason};
use steadfast_core::call::{BreakerScope, CallNotice, CutReason, FailedAttempt, ShadowDecision};
use steadfast_core::classify::{AttemptReach, FaultNature, Severity};
use steadfast_core::code::Code;
use steadfast_core::dedupe::{ReplayReason, Resolution, UnknownOutcomeReason};
use steadfast_core::envelope::ErrorBody;
use steadfast_core::guard::GuardLayer;
use steadfast_core::policy::{SilencePolicy, ToolClass};
use steadfast_core::retry::RetryStop;
use steadfast_core::trust::{TrustChange, TrustScope, TrustState};
use steadfast_executor::{
    Attempt, AuditAction, AuditEntry, EngineListener, NoticeContext, OperatorIdentity, OperatorSurface,
    RejectedCall, SystemEvent,
};
use steadfast_store::{MemoryOptions, MemoryStore, StoreError, StoreErrorKind, StoreEvent};

use super::*;
use crate::{CATALOGUE, FeedItem, StoreCensus};

const AT: Timestamp = Timestamp::from_millis(1_000_000);

/// Returns every notice, with the names of its log line and of the metric that counts it.
fn every_notice() -> Vec<(CallNotice, Option<&'static str>, Option<&'static str>)> {
    let failure = FailedAttempt {
        nature: FaultNature::Transient,
        reach: AttemptReach::Unknown,
        severity: Severity::Transient,
        rule: "connection_reset".into(),
        observed: UnknownOutcomeReason::ConnectionLost,
        message: "read ECONNRESET".into(),
    };
    let transition = BreakerTransition {
        from: State::Closed,
        to: State::Open,
        reason: TransitionReason::Consecutive,
        at: AT,
    };
    let change = TrustChange {
        subject: "bank/pay".into(),
        scope: TrustScope::Signature,
        tool: None,
        signature: None,
        domain: None,
        from: TrustState::Trusted,
        to: TrustState::Escalated,
        reason: "3 failures in an hour".to_owned(),
        failures: 3,
        until: None,
        successes_needed: 3,
        notify: true,
        at: AT,
    };
    let took = Duration::from_millis(5);
    vec![
        (
            CallNotice::CallStarted { at: AT },
            Some("tool_call_start"),
            Some("tool_info{tool=\"bank/pay\",class=\"mutating\"} 1"),
        ),
        (
            CallNotice::CallBlocked { code: Code::InFlight, retriable: true, breaker: Some(State::HalfOpen) },
            Some("tool_call_blocked"),
            Some("tool_idempotency_hits_total{tool=\"bank/pay\",state=\"inflight\"} 1"),
        ),
        (
            CallNotice::Following,
            Some("tool_call_following"),
            Some("tool_idempotency_hits_total{tool=\"bank/pay\",state=\"inflight\"} 2"),
        ),
        (
            CallNotice::Replayed { reason: ReplayReason::SameKey },
            Some("tool_call_replayed"),
            Some("tool_events_total{tool=\"bank/pay\",event=\"tool_call_replayed\"} 1"),
        ),
        (
            CallNotice::TookOver,
            Some("tool_call_taken_over"),
            Some("tool_events_total{tool=\"bank/pay\",event=\"tool_call_taken_over\"} 1"),
        ),
        (
            CallNotice::KeyConflict,
            Some("tool_call_conflict"),
            Some("tool_idempotency_conflicts_total{tool=\"bank/pay\"} 1"),
        ),
        (CallNotice::ApprovalRequested, Some("tool_call_approval_asked"), None),
        (CallNotice::ApprovalEnded { granted: true }, Some("tool_call_approval_ended"), None),
        (CallNotice::AttemptStarted { attempt: 1, at: AT }, Some("tool_call_attempt_start"), None),
        (
            CallNotice::AttemptEnded { attempt: 1, took, failure: Some(failure) },
            Some("tool_call_attempt_end"),
            None,
        ),
        (
            CallNotice::RetryScheduled { attempt: 2, at: AT + took },
            Some("tool_call_retry"),
            Some("tool_retry_attempts_total{tool=\"bank/pay\",reason=\"connection_reset\"} 1"),
        ),
        (
            CallNotice::RetryStopped { stop: RetryStop::Budget },
            Some("tool_call_retry_stopped"),
            Some("tool_events_total{tool=\"bank/pay\",event=\"tool_call_retry_stopped\"} 1"),
        ),
        (
            CallNotice::AttemptCut { cut: CutReason::Silent(took) },
            Some("tool_call_attempt_cut"),
            Some("watchdog_total{tool=\"bank/pay\",cut=\"silent\"} 1"),
        ),
        (
            CallNotice::AnsweredEarly { code: Code::InFlight },
            Some("tool_call_answered_early"),
            Some("tool_events_total{tool=\"bank/pay\",event=\"tool_call_answered_early\"} 1"),
        ),
        (
            CallNotice::OutcomeUnknown { of_earlier: None },
            Some("tool_call_outcome_unknown"),
            Some("tool_events_total{tool=\"bank/pay\",event=\"tool_call_outcome_unknown\"} 1"),
        ),
        (
            CallNotice::BreakerChanged { scope: BreakerScope::Tool, transition },
            Some("tool_call_circuit_state"),
            Some(
                "tool_circuit_breaker_transitions_total{tool=\"bank/pay\",from_state=\"CLOSED\",to_state=\"OPEN\"} 1",
            ),
        ),
        (
            CallNotice::TrustChanged(change),
            Some("tool_call_trust_state"),
            Some(
                "tool_trust_transitions_total{tool=\"bank/pay\",from_state=\"TRUSTED\",to_state=\"ESCALATED\"} 1",
            ),
        ),
        (
            CallNotice::GuardTripped { layer: GuardLayer::Loop },
            Some("tool_call_guard"),
            Some("tool_guard_trips_total{tool=\"bank/pay\",layer=\"loop\"} 1"),
        ),
        (
            CallNotice::InputRequired,
            Some("tool_call_input_required"),
            Some("tool_events_total{tool=\"bank/pay\",event=\"tool_call_input_required\"} 1"),
        ),
        (
            CallNotice::FenceLost,
            Some("tool_call_fence_lost"),
            Some("tool_events_total{tool=\"bank/pay\",event=\"tool_call_fence_lost\"} 1"),
        ),
        (
            CallNotice::StoreFailed { continues: true },
            Some("tool_call_store_failed"),
            Some("tool_events_total{tool=\"bank/pay\",event=\"tool_call_store_failed\"} 1"),
        ),
        (
            CallNotice::Shadowed(ShadowDecision::Refused(Code::CircuitOpen)),
            Some("tool_call_shadow"),
            Some("tool_events_total{tool=\"bank/pay\",event=\"tool_call_shadow\"} 1"),
        ),
        (
            CallNotice::Verified {
                resolution: Some(Resolution::Ran),
                words: "bank/payments shows it".into(),
            },
            Some("tool_call_verified"),
            Some("tool_events_total{tool=\"bank/pay\",event=\"tool_call_verified\"} 1"),
        ),
        (CallNotice::ProbeMoved { scope: BreakerScope::Tool }, None, None),
        // The end is logged with the result, not with the notice.
        (CallNotice::CallFinished { code: None, took, attempts: 1, replayed: false }, None, None),
    ]
}

/// Returns the number of a notice. A new notice needs a number here, and a place in the table above.
fn number(notice: &CallNotice) -> usize {
    match notice {
        CallNotice::CallStarted { .. } => 0,
        CallNotice::CallBlocked { .. } => 1,
        CallNotice::Following => 2,
        CallNotice::Replayed { .. } => 3,
        CallNotice::TookOver => 4,
        CallNotice::KeyConflict => 5,
        CallNotice::ApprovalRequested => 6,
        CallNotice::ApprovalEnded { .. } => 7,
        CallNotice::AttemptStarted { .. } => 8,
        CallNotice::AttemptEnded { .. } => 9,
        CallNotice::RetryScheduled { .. } => 10,
        CallNotice::RetryStopped { .. } => 11,
        CallNotice::AttemptCut { .. } => 12,
        CallNotice::AnsweredEarly { .. } => 13,
        CallNotice::OutcomeUnknown { .. } => 14,
        CallNotice::BreakerChanged { .. } => 15,
        CallNotice::TrustChanged(_) => 16,
        CallNotice::GuardTripped { .. } => 17,
        CallNotice::FenceLost => 18,
        CallNotice::StoreFailed { .. } => 19,
        CallNotice::Shadowed(_) => 20,
        CallNotice::ProbeMoved { .. } => 21,
        CallNotice::CallFinished { .. } => 22,
        CallNotice::Verified { .. } => 23,
        CallNotice::InputRequired => 24,
    }
}

#[test]
fn tr_13_every_notice_is_logged_and_counted_as_in_the_table() {
    let harness = TestTelemetry::new();
    let envelope = pay(1, "k");
    let mut policy = standard(ToolClass::Mutating);
    policy.time.silence = SilencePolicy::Stuck;
    let request = request(&envelope, &policy);
    let about = NoticeContext { envelope: &envelope, request: &request, policy: &policy, at: AT };
    let mut numbers = BTreeSet::new();
    for (notice, event, counted) in every_notice() {
        numbers.insert(number(&notice));
        let before = harness.lines().len();
        harness.telemetry.notice(&about, &notice);
        let lines = harness.lines().split_off(before);
        let logged: Vec<&str> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
        assert_eq!(logged, event.into_iter().collect::<Vec<_>>(), "{notice:?}");
        for line in &lines {
            assert_eq!(line["requestId"], "req-1");
            assert_eq!(line["toolName"], "pay");
            assert_eq!(line["sessionKey"], "session-1");
            assert_eq!(line["correlationId"], "corr-1");
            assert_eq!(line["time"], AT.to_string());
            assert_eq!(line["idempotencyKeyHash"], request.address().unwrap().own().fingerprint());
        }
        if let Some(counted) = counted {
            harness.assert_counted(&format!("steadfast_{counted}"));
        }
    }
    assert_eq!(numbers.into_iter().collect::<Vec<_>>(), (0..25).collect::<Vec<_>>());
    harness.assert_counted("steadfast_tool_circuit_breaker_state{tool=\"bank/pay\",state=\"OPEN\"} 1");
    harness.assert_counted("steadfast_tool_circuit_breaker_state{tool=\"bank/pay\",state=\"CLOSED\"} 0");
    harness.assert_counted("steadfast_tool_trust_state{tool=\"bank/pay\",state=\"ESCALATED\"} 1");
    harness.assert_counted("steadfast_tool_dedupe_ttl_seconds{tool=\"bank/pay\",state=\"done\"} 86400");
}

#[tokio::test(start_paused = true)]
async fn tr_13_every_metric_of_the_catalogue_is_shown_with_its_labels() {
    let harness = TestTelemetry::new();
    let mut policy = standard(ToolClass::Mutating);
    policy.time.silence = SilencePolicy::Stuck;
    let clock = Arc::new(RuntimeClock::new());
    let store = Arc::new(MemoryStore::new(MemoryOptions::new(clock.clone())));
    let engine = Engine::builder()
        .clock(clock)
        .store(store.clone())
        .policies(Arc::new(policy.clone()))
        .listener(harness.telemetry.clone())
        .start()
        .await;
    engine.call(pay(1, "k"), async |_: Attempt| paid()).await;
    turns::turn(&engine, None, turns::TRIP).await;
    let envelope = pay(1, "k");
    let request = request(&envelope, &policy);
    let about = NoticeContext { envelope: &envelope, request: &request, policy: &policy, at: AT };
    for (notice, _, _) in every_notice() {
        harness.telemetry.notice(&about, &notice);
    }
    harness.telemetry.store_failed("redis", &StoreError::not_done(StoreErrorKind::Full, "full"));
    harness.telemetry.store_event("redis", &StoreEvent::Emptied);
    harness.telemetry.system_event(&SystemEvent::ByHand(&entry(AuditAction::Flushed)));
    harness.telemetry.metrics().server_changed("files", None, Some("up"), 1);
    harness.telemetry.metrics().show(&StoreCensus::take(&*store, 10).await.unwrap());

    let metrics = harness.metrics();
    let mut shown = BTreeMap::new();
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_once('{').unwrap();
        let (labels, _) = rest.rsplit_once('}').unwrap();
        let names = labels.split(',').filter_map(|label| label.split_once('=')).map(|(name, _)| name);
        let names: Vec<&str> = names.filter(|name| *name != "le").collect();
        let name =
            ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name);
        shown.insert(name.strip_prefix("steadfast_").unwrap(), names);
    }
    let catalogue: BTreeMap<_, _> =
        CATALOGUE.iter().map(|metric| (metric.name, metric.labels.to_vec())).collect();
    assert_eq!(shown, catalogue);
}

#[test]
fn a_tool_timeout_is_not_counted_by_the_watchdog() {
    let harness = TestTelemetry::new();
    let (envelope, policy) = (pay(1, "k"), standard(ToolClass::Mutating));
    let request = request(&envelope, &policy);
    let about = NoticeContext { envelope: &envelope, request: &request, policy: &policy, at: AT };
    for cut in [CutReason::Silent(Duration::ZERO), CutReason::Deadline, CutReason::Cancelled] {
        harness.telemetry.notice(&about, &CallNotice::AttemptCut { cut });
    }
    assert!(!harness.metrics().contains("watchdog_total{"), "{}", harness.metrics());
    harness.telemetry.notice(&about, &CallNotice::AttemptCut { cut: CutReason::TooLong });
    harness.assert_counted("steadfast_watchdog_total{tool=\"bank/pay\",cut=\"too_long\"} 1");
}

#[test]
fn a_store_failure_is_counted_every_time_and_logged_once() {
    let harness = TestTelemetry::new();
    let error =
        StoreError::not_done(StoreErrorKind::Unreachable, "redis://me:hunter2@store: connection refused");
    for _ in 0..100 {
        harness.telemetry.store_failed("redis", &error);
    }
    harness.assert_counted("steadfast_store_failures_total{store=\"redis\",trouble=\"unreachable\"} 100");
    let lines = harness.lines_named("store_failed");
    assert_eq!(lines.len(), 1);
    assert!(!harness.text().contains("hunter2"), "{lines:?}");
}

#[test]
fn store_events_are_counted_and_logged() {
    let harness = TestTelemetry::new();
    for event in
        [StoreEvent::Unavailable("the disk is full".into()), StoreEvent::Available, StoreEvent::Emptied]
    {
        harness.telemetry.store_event("redis", &event);
    }
    for event in ["lost", "back", "emptied"] {
        harness
            .assert_counted(&format!("steadfast_store_events_total{{store=\"redis\",event=\"{event}\"}} 1"));
        assert_eq!(harness.lines_named(&format!("store_{event}")).len(), 1);
    }
}

#[test]
fn tr_13_overload_is_logged_once_a_minute_and_counted_every_time() {
    let harness = TestTelemetry::new();
    let (envelope, policy) = (pay(1, "k"), standard(ToolClass::Mutating));
    let request = request(&envelope, &policy);
    for second in 0..120 {
        let at = AT + Duration::from_secs(second);
        let about = NoticeContext { envelope: &envelope, request: &request, policy: &policy, at };
        harness.telemetry.notice(
            &about,
            &CallNotice::CallBlocked { code: Code::Overloaded, retriable: true, breaker: None },
        );
    }
    assert_eq!(harness.lines_named("tool_call_blocked").len(), 2);
    harness.assert_counted("steadfast_tool_events_total{tool=\"bank/pay\",event=\"tool_call_blocked\"} 120");
}

#[test]
fn tr_13_refused_calls_are_counted_every_time_and_logged() {
    let harness = TestTelemetry::new();
    let envelope = pay(1, "k");
    let full = ErrorBody::temporary(Code::Overloaded, "as many calls as allowed are under way");
    for second in 0..120 {
        let at = AT + Duration::from_secs(second);
        harness.telemetry.call_rejected(&RejectedCall { envelope: Some(&envelope), error: &full, at });
    }
    assert_eq!(harness.lines_named("tool_call_turned_away").len(), 2, "a flood is told once a minute");
    let event = "steadfast_tool_events_total{tool=\"bank/pay\",event=\"tool_call_turned_away\"} 120";
    harness.assert_counted(event);
    let status =
        "steadfast_tool_calls_total{tool=\"bank/pay\",status=\"retriable_error\",scope=\"session\"} 120";
    harness.assert_counted(status);
    let malformed = ErrorBody { code: Code::InvalidEnvelope, ..full };
    harness.telemetry.call_rejected(&RejectedCall { envelope: None, error: &malformed, at: AT });
    assert_eq!(harness.lines_named("tool_call_malformed")[0]["errorCode"], "invalid_envelope");
}

fn entry(action: AuditAction) -> AuditEntry {
    let by = OperatorIdentity::new("ann", OperatorSurface::Cli);
    let on = "bank/pay, password=hunter2hunter2".to_owned();
    AuditEntry {
        format: 1,
        at: AT,
        by,
        deed: action,
        tenant: None,
        on,
        before: None,
        after: Some("0".to_owned()),
    }
}

#[test]
fn operator_actions_are_counted_and_logged() {
    let harness = TestTelemetry::new();
    for action in [AuditAction::Approved, AuditAction::Switched, AuditAction::Switched] {
        harness.telemetry.system_event(&SystemEvent::ByHand(&entry(action)));
    }
    harness.assert_counted("steadfast_by_hand_total{deed=\"approved\"} 1");
    harness.assert_counted("steadfast_by_hand_total{deed=\"switched\"} 2");
    let lines = harness.lines_named("audit");
    assert_eq!(
        (lines.len(), &lines[0]["by"], &lines[0]["deed"]),
        (3, &"ann (cli)".into(), &"approved".into())
    );
    assert!(!harness.text().contains("hunter2"), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn operator_actions_are_in_the_feed() {
    let harness = TestTelemetry::new();
    let mut reader = harness.telemetry.feed().read(None);
    harness.telemetry.system_event(&SystemEvent::ByHand(&entry(AuditAction::Switched)));
    let next = tokio::time::timeout(Duration::from_secs(1), reader.next()).await;
    assert!(matches!(&next, Ok(FeedItem::Event(line)) if line.event == "audit"), "{next:?}");
}

#[test]
fn requests_that_wait_are_counted_as_they_come_and_go() {
    let harness = TestTelemetry::new();
    for (before, now) in [(0, 2), (2, 1), (0, 4), (1, 0)] {
        harness.telemetry.system_event(&SystemEvent::Waiting { before, now });
    }
    harness.assert_counted("steadfast_approvals_pending{} 4");
}

#[test]
fn processes_of_a_server_are_counted_by_state() {
    let harness = TestTelemetry::new();
    let metrics = harness.telemetry.metrics();
    metrics.server_changed("files", None, Some("starting"), 0);
    harness.assert_counted("steadfast_server_restarts_total{server=\"files\"} 0");
    metrics.server_changed("files", None, Some("up"), 0);
    metrics.server_changed("files", Some("starting"), Some("up"), 2);
    harness.assert_counted("steadfast_server_processes{server=\"files\",state=\"starting\"} 0");
    harness.assert_counted("steadfast_server_processes{server=\"files\",state=\"up\"} 2");
    harness.assert_counted("steadfast_server_restarts_total{server=\"files\"} 2");
    metrics.server_changed("files", Some("up"), None, 0);
    harness.assert_counted("steadfast_server_processes{server=\"files\",state=\"up\"} 1");
}
