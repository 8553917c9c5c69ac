//! Views of an engine for operators, and the changes that they make.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod faulty;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use steadfast_core::approval::{ApprovalDecision, Grantor};
use steadfast_core::breaker::{State, TransitionReason};
use steadfast_core::classify::{AttemptFault, FaultSource};
use steadfast_core::code::{CallStatus, Code};
use steadfast_core::dedupe::{Resolution, ResolveVerdict};
use steadfast_core::envelope::{CallEnvelope, UnknownFieldPolicy};
use steadfast_core::guard::GuardLayer;
use steadfast_core::id::{Namespace, SessionKey, TenantId, ToolName, ToolRef};
use steadfast_core::key::RecordKey;
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{AnnotationHints, ApprovalTrigger, CallPolicy, PolicyProfile, ToolClass};
use steadfast_core::report::{ReportKind, ToolReport};
use steadfast_core::trust::{TrustState, TrustTarget};
use steadfast_executor::{
    Attempt, AuditAction, AuditChange, AuditEntry, AuditQuery, AvailableTool, BreakerKey, BreakerOverride,
    CallResponse, ChangeScope, CountSource, Engine, EngineListener, OperatorIdentity, OperatorSurface,
    RuntimeClock, SystemEvent, TenantFilter, ToolResult,
};
use steadfast_json::RawJson;
use steadfast_store::{
    FlushTarget, MemoryOptions, MemoryStore, RecordFilter, RecordPage, StateStore, TimeSource,
};
use steadfast_testkit::effort::TestEffort;
use tokio::sync::Semaphore;

use faulty::{FaultMode, FaultyStore};

fn policy() -> CallPolicy {
    let mut policy = PolicyProfile::Standard.policy(ToolClass::Idempotent);
    policy.retry.attempts = std::num::NonZeroU32::MIN;
    // These tests fail on purpose; the loop guard and trust are not their subject.
    policy.guard.identical = std::num::NonZeroU32::new(1000).unwrap();
    policy.guard.per_turn = std::num::NonZeroU32::new(1000).unwrap();
    policy.trust.count = None;
    policy
}

fn by() -> OperatorIdentity {
    OperatorIdentity::new("ann", OperatorSurface::Cli)
}

/// Several engines on one store, like processes that come and go.
struct SharedStoreWorld {
    clock: Arc<RuntimeClock>,
    store: Arc<FaultyStore>,
}

impl SharedStoreWorld {
    fn new() -> Self {
        let clock = Arc::new(RuntimeClock::new());
        let store = Arc::new(FaultyStore::new(MemoryStore::new(MemoryOptions::new(clock.clone()))));
        Self { clock, store }
    }

    async fn engine(&self, policy: CallPolicy) -> Engine {
        let builder = Engine::builder().clock(self.clock.clone()).store(self.store.clone());
        let engine = builder.policies(Arc::new(policy)).start().await;
        // It listens to its store in a task of its own.
        tokio::time::sleep(Duration::from_millis(1)).await;
        engine
    }

    /// Waits until all engines have adopted the writes of the others.
    async fn sync_engines(&self) {
        self.store.becomes(FaultMode::Up);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn call(tool: &str, params: &Value) -> CallEnvelope {
    let text = json!({
        "contractVersion": "1.1", "requestId": "r", "toolName": tool, "toolNamespace": "bank",
        "target": { "sessionKey": "s", "actorId": "ann", "modelId": "m" },
        "payload": { "version": "1.0", "params": params },
    });
    CallEnvelope::parse(text.to_string().as_bytes(), UnknownFieldPolicy::Refuse).unwrap()
}

fn ok() -> ToolResult {
    Ok(ToolOutput { content: RawJson::from_trusted("\"paid\""), metadata: None })
}

fn broken() -> ToolResult {
    Err(AttemptFault::new(FaultSource::Http { status: 500 }, "internal error").into())
}

async fn pay(engine: &Engine) -> CallResponse {
    engine.call(call("pay", &json!({ "amount": 1 })), async |_: Attempt| ok()).await
}

async fn fail(engine: &Engine) -> CallResponse {
    engine.call(call("pay", &json!({ "amount": 1 })), async |_: Attempt| broken()).await
}

fn code(called: &CallResponse) -> Option<Code> {
    called.result.error.as_ref().map(|error| error.code)
}

fn tool(name: &str) -> ToolRef {
    ToolRef { namespace: Namespace::new("bank").unwrap(), tool: ToolName::new(name).unwrap() }
}

fn key() -> BreakerKey {
    "tool:bank:pay".parse().unwrap()
}

async fn state(engine: &Engine) -> Option<State> {
    let all = engine.admin().breakers(None).await;
    all.iter().find(|breaker| breaker.key == key()).map(|breaker| breaker.view.state)
}

#[tokio::test(start_paused = true)]
async fn a_breaker_forced_open_refuses_and_names_the_operator() {
    let world = SharedStoreWorld::new();
    let engine = world.engine(policy()).await;
    assert_eq!(pay(&engine).await.result.status, CallStatus::Success);
    let until = engine.now() + Duration::from_secs(600);
    let steered = engine
        .admin()
        .update_breaker(None, &key(), BreakerOverride::Open { until: Some(until) }, &by())
        .await;
    assert_eq!(
        (steered.before, steered.known, steered.reach),
        (State::Closed, true, ChangeScope::Everywhere)
    );
    assert_eq!(
        steered.change.map(|change| (change.to, change.reason)),
        Some((State::ForcedOpen, TransitionReason::Forced))
    );

    let refused = pay(&engine).await.result;
    let error = refused.error.unwrap();
    assert_eq!(
        (refused.status, error.code, refused.attempts),
        (CallStatus::CircuitOpen, Code::CircuitOpen, 0)
    );
    assert_eq!(error.rule.as_deref(), Some("breaker.forced_by_hand"));
    assert!(
        error.message.contains("an operator opened the circuit breaker of bank/pay"),
        "{}",
        error.message
    );
    assert!(error.retry_after_ms.is_some_and(|wait| (599_000..=600_000).contains(&wait)));
    assert_eq!(error.breaker_state, Some(State::ForcedOpen));

    // After that, one call passes as a probe, as after a cool-down.
    tokio::time::advance(Duration::from_secs(601)).await;
    assert_eq!(state(&engine).await, Some(State::HalfOpen));
    for _ in 0..2 {
        assert_eq!(pay(&engine).await.result.status, CallStatus::Success);
    }
    assert_eq!(state(&engine).await, Some(State::Closed));
}

#[tokio::test(start_paused = true)]
async fn a_breaker_forced_open_stays_so_over_a_restart_for_weeks_and_in_other_processes_until_it_is_reset() {
    let world = SharedStoreWorld::new();
    let (first, second) = (world.engine(policy()).await, world.engine(policy()).await);
    pay(&second).await;
    first.admin().update_breaker(None, &key(), BreakerOverride::Open { until: None }, &by()).await;
    world.sync_engines().await;
    assert_eq!(code(&pay(&second).await), Some(Code::CircuitOpen), "another process");
    drop(first);
    let days = TestEffort::of_this_run().pick(1, 30, 30);
    tokio::time::sleep(Duration::from_secs(days * 86_400)).await;
    world.store.sweep().await.unwrap();
    let third = world.engine(policy()).await;
    let refused = pay(&third).await;
    assert_eq!(code(&refused), Some(Code::CircuitOpen), "much later, in a process that comes then");
    assert_eq!(refused.result.error.unwrap().rule.as_deref(), Some("breaker.forced_by_hand"));

    let reset = third.admin().update_breaker(None, &key(), BreakerOverride::Reset, &by()).await;
    assert_eq!((reset.before, reset.reach), (State::ForcedOpen, ChangeScope::Everywhere));
    assert_eq!(pay(&third).await.result.status, CallStatus::Success);
    world.sync_engines().await;
    assert_eq!(pay(&second).await.result.status, CallStatus::Success);
}

/// The second process has opened, probed and closed its breaker meanwhile, without access to the store.
#[tokio::test(start_paused = true)]
async fn an_operator_change_wins_over_a_process_that_diverged_during_a_store_outage() {
    let world = SharedStoreWorld::new();
    let (first, second) = (world.engine(policy()).await, world.engine(policy()).await);
    first.admin().update_breaker(None, &key(), BreakerOverride::Open { until: None }, &by()).await;
    world.store.becomes(FaultMode::Down);
    for _ in 0..3 {
        for _ in 0..5 {
            assert_eq!(code(&fail(&second).await), Some(Code::ToolError));
        }
        assert_eq!(state(&second).await, Some(State::Open));
        tokio::time::sleep(Duration::from_secs(31)).await;
        for _ in 0..2 {
            assert_eq!(pay(&second).await.result.status, CallStatus::Success);
        }
        assert_eq!(state(&second).await, Some(State::Closed));
    }
    world.sync_engines().await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(
        (state(&first).await, state(&second).await),
        (Some(State::ForcedOpen), Some(State::ForcedOpen))
    );
    assert_eq!(code(&pay(&second).await), Some(Code::CircuitOpen));
    drop((first, second));
    assert_eq!(state(&world.engine(policy()).await).await, Some(State::ForcedOpen));
}

#[tokio::test(start_paused = true)]
async fn an_operator_change_applies_here_at_once_and_to_other_processes_after_a_store_outage() {
    for health in [FaultMode::Down, FaultMode::Silent] {
        let world = SharedStoreWorld::new();
        let (first, second) = (world.engine(policy()).await, world.engine(policy()).await);
        world.store.becomes(health);
        let steered =
            first.admin().update_breaker(None, &key(), BreakerOverride::Open { until: None }, &by()).await;
        assert_eq!(steered.reach, ChangeScope::OnlyHere, "{health:?}");
        if health == FaultMode::Down {
            assert_eq!(code(&pay(&first).await), Some(Code::CircuitOpen));
        }
        world.sync_engines().await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        world.sync_engines().await;
        assert_eq!(code(&pay(&first).await), Some(Code::CircuitOpen));
        assert_eq!(code(&pay(&second).await), Some(Code::CircuitOpen), "{health:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_takes_its_time_is_waited_for() {
    let world = SharedStoreWorld::new();
    let (first, second) = (world.engine(policy()).await, world.engine(policy()).await);
    world.store.becomes(FaultMode::Slow);
    let steered =
        first.admin().update_breaker(None, &key(), BreakerOverride::Open { until: None }, &by()).await;
    assert_eq!(steered.reach, ChangeScope::Everywhere);
    world.sync_engines().await;
    assert_eq!(code(&pay(&second).await), Some(Code::CircuitOpen));
}

#[tokio::test(start_paused = true)]
async fn attempts_in_flight_at_a_change_do_not_count_for_the_breaker() {
    let world = SharedStoreWorld::new();
    let engine = world.engine(policy()).await;
    let leave = Arc::new(Semaphore::new(0));
    let started = Arc::new(AtomicU32::new(0));
    for steer in [BreakerOverride::Open { until: None }, BreakerOverride::Reset] {
        let calls: Vec<_> = (0..8)
            .map(|number| {
                let (leave, started) = (leave.clone(), started.clone());
                let tool = move |_: Attempt| {
                    let (leave, started) = (leave.clone(), started.clone());
                    async move {
                        started.fetch_add(1, Ordering::SeqCst);
                        leave.acquire().await.unwrap().forget();
                        broken()
                    }
                };
                tokio::spawn(engine.call(call("pay", &json!({ "amount": number })), tool))
            })
            .collect();
        while started.swap(0, Ordering::SeqCst) < 8 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        engine.admin().update_breaker(None, &key(), steer, &by()).await;
        let before = engine.admin().breakers(None).await;
        leave.add_permits(8);
        for call in calls {
            assert_eq!(code(&call.await.unwrap()), Some(Code::ToolError));
        }
        assert_eq!(engine.admin().breakers(None).await, before, "{steer:?}");
        engine.admin().update_breaker(None, &key(), BreakerOverride::Reset, &by()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn breakers_are_listed_with_their_details() {
    let world = SharedStoreWorld::new();
    let engine = world.engine(policy()).await;
    assert_eq!(engine.admin().breakers(None).await, []);
    pay(&engine).await;
    for _ in 0..5 {
        fail(&engine).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let listed = serde_json::to_value(engine.admin().breakers(None).await).unwrap();
    let breaker = &listed[0];
    let expected = [
        ("key", json!("tool:bank:pay")),
        ("about", json!({ "kind": "tool", "namespace": "bank", "tool": "pay" })),
        ("mode", json!("enforce")),
        ("state", json!("OPEN")),
        ("reason", json!("consecutive")),
        ("openedBy", json!("consecutive")),
        ("probing", json!(false)),
    ];
    for (field, value) in expected {
        assert_eq!(breaker[field], value, "{field} in {breaker}");
    }
    let since = breaker["since"].as_u64().unwrap();
    assert_eq!(breaker["nextProbeAt"].as_u64(), Some(since + 30_000));
    assert_eq!(breaker["policy"]["consecutive"], json!(5));
    assert_eq!(
        breaker["changes"],
        json!([{ "from": "CLOSED", "to": "OPEN", "reason": "consecutive", "at": since }])
    );
    // The stored breakers are listed in a process that has not called anything. Another tenant sees none of them.
    let other = world.engine(policy()).await;
    assert_eq!(serde_json::to_value(other.admin().breakers(None).await).unwrap()[0]["state"], json!("OPEN"));
    assert_eq!(other.admin().breakers(Some(&TenantId::new("t").unwrap())).await, []);
    // A coarser breaker is listed if callers use it.
    let global: BreakerKey = "dependency:*".parse().unwrap();
    let steered =
        other.admin().update_breaker(None, &global, BreakerOverride::Open { until: None }, &by()).await;
    assert!(!steered.known);
    assert!(other.admin().breakers(None).await.iter().any(|breaker| breaker.key == global));
}

const SECRET: &str =
    "sk-ant-api03-aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5bC7dE9fG1hJ3kL5mN7pQ9rS1tU3vW5xY7zA9bC-AAAA";

fn wrong() -> ToolResult {
    Err(AttemptFault::new(FaultSource::Tool, format!("Missing required parameter: path (token {SECRET})"))
        .into())
}

#[tokio::test(start_paused = true)]
async fn the_guard_shows_stopped_sessions_and_their_arguments_until_it_is_reset() {
    let world = SharedStoreWorld::new();
    let strict =
        CallPolicy { guard: PolicyProfile::Standard.policy(ToolClass::Idempotent).guard, ..policy() };
    let engine = world.engine(strict).await;
    let sent = json!({ "path": "x".repeat(9000), "token": SECRET });
    for _ in 0..5 {
        engine.call(call("read", &sent), async |_: Attempt| wrong()).await;
    }
    let view = engine.admin().guard(None);
    assert!(view.stopped.iter().any(|stopped| stopped.stopped.layer == GuardLayer::Loop
        && stopped.stopped.tool == Some(tool("read"))
        && stopped.session.as_ref().map(SessionKey::as_str) == Some("s")));
    assert_eq!(view.trips.len(), 1, "equal calls are one trip");
    let trip = &view.trips[0];
    assert!(trip.refused && trip.times >= 4 && trip.last_at_ms >= trip.at_ms);
    assert_eq!(trip.model.as_ref().map(|model| model.as_str()), Some("m"));
    assert!(
        trip.arguments.len() <= 2048 && trip.error.len() <= 2048 && trip.error.contains("[LOOP DETECTED]")
    );
    assert!(!serde_json::to_string(&view).unwrap().contains(SECRET), "{view:?}");
    assert_eq!(engine.admin().guard(Some(&TenantId::new("t").unwrap())).trips, []);

    let session = SessionKey::new("s").unwrap();
    let freed = engine.admin().reset_guard(None, Some(&session), &by()).await.unwrap();
    assert!(!freed.is_empty());
    assert_eq!(engine.admin().guard(None).stopped, []);
    let works = engine.call(call("read", &sent), async |_: Attempt| ok()).await;
    assert_eq!(works.result.status, CallStatus::Success);
    // Also for a process that comes later.
    drop(engine);
    assert_eq!(world.engine(policy()).await.admin().guard(None).stopped, []);
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_reset_in_one_process_is_reset_in_all_that_serve_the_conversation() {
    let world = SharedStoreWorld::new();
    let strict =
        CallPolicy { guard: PolicyProfile::Standard.policy(ToolClass::Idempotent).guard, ..policy() };
    let (one, other) = (world.engine(strict.clone()).await, world.engine(strict.clone()).await);
    let operators = world.engine(strict).await;
    let sent = json!({ "path": "x" });
    for serving in [&one, &other] {
        for _ in 0..3 {
            serving.call(call("read", &sent), async |_: Attempt| wrong()).await;
        }
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let session = SessionKey::new("s").unwrap();
    let freed = operators.admin().reset_guard(None, Some(&session), &by()).await.unwrap();
    assert!(!freed.is_empty(), "{freed:?}");
    world.sync_engines().await;
    for serving in [&one, &other, &operators] {
        assert_eq!(serving.admin().guard(None).stopped, []);
    }
    let works = other.call(call("read", &sent), async |_: Attempt| ok()).await;
    assert_eq!(works.result.status, CallStatus::Success);

    // A session that fails again is stopped again, and stored state of others from that time does not free it.
    for serving in [&one, &other] {
        for _ in 0..3 {
            serving.call(call("read", &sent), async |_: Attempt| wrong()).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(!one.admin().guard(None).stopped.is_empty() && !other.admin().guard(None).stopped.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_only_another_process_has_is_reset_too() {
    let world = SharedStoreWorld::new();
    let strict =
        CallPolicy { guard: PolicyProfile::Standard.policy(ToolClass::Idempotent).guard, ..policy() };
    let (serving, operators) = (world.engine(strict.clone()).await, world.engine(strict).await);
    // One failure stops no session yet, so none of it is stored.
    serving.call(call("read", &json!({})), async |_: Attempt| broken()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let session = SessionKey::new("s").unwrap();
    assert_eq!(operators.admin().reset_guard(None, Some(&session), &by()).await.unwrap(), []);
    world.sync_engines().await;
    serving.call(call("read", &json!({})), async |_: Attempt| broken()).await;
    assert_eq!(serving.admin().guard(None).stopped, [], "the second failure is the first after the reset");
}

#[tokio::test(start_paused = true)]
async fn trips_are_bounded() {
    let world = SharedStoreWorld::new();
    let strict =
        CallPolicy { guard: PolicyProfile::Standard.policy(ToolClass::Idempotent).guard, ..policy() };
    let engine = world.engine(strict).await;
    for number in 0..600 {
        engine.call(call("pay", &json!({ "amount": number })), async |_: Attempt| broken()).await;
    }
    assert_eq!(engine.admin().guard(None).trips.len(), 256);
}

#[derive(Default)]
struct SystemEventListener(Mutex<Vec<String>>);

impl EngineListener for SystemEventListener {
    fn system_event(&self, fact: &SystemEvent<'_>) {
        self.0.lock().push(match fact {
            SystemEvent::Breaker { change, .. } => format!("breaker {:?}", change.to),
            SystemEvent::Trust { change, .. } => format!("trust {}", change.to),
            SystemEvent::Waiting { before, now } => format!("{before} waited, {now} wait"),
            SystemEvent::ByHand(entry) => format!("{:?} by {}", entry.deed, entry.by),
        });
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_approval_request_is_not_counted_as_pending() {
    let listener = Arc::new(SystemEventListener::default());
    let mut policy = policy();
    policy.approval.when = ApprovalTrigger::Always;
    let expires = policy.approval.parked;
    let builder = Engine::builder().clock(Arc::new(RuntimeClock::new())).listener(listener.clone());
    let engine = builder.policies(Arc::new(policy)).start().await;
    assert_eq!(code(&pay(&engine).await), Some(Code::ApprovalRequired));
    // The request stays after the response was sent.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(*listener.0.lock(), ["0 waited, 1 wait"]);
    tokio::time::sleep(expires + Duration::from_secs(60)).await;
    assert_eq!(*listener.0.lock(), ["0 waited, 1 wait", "1 waited, 0 wait"]);
}

fn reported(text: &Value, kind: ReportKind) -> ToolReport {
    ToolReport::parse(text.to_string().as_bytes(), kind).unwrap()
}

/// Both read the same state, one of them is written first, and the other one is repeated on top of it.
#[tokio::test(start_paused = true)]
async fn rp_8_concurrent_operator_changes_in_two_processes_are_both_made_and_reported() {
    let world = SharedStoreWorld::new();
    let rules = CallPolicy { trust: PolicyProfile::Standard.policy(ToolClass::Unknown).trust, ..policy() };
    let (one, other) = (world.engine(rules.clone()).await, world.engine(rules).await);
    for name in ["pay", "draw"] {
        let failure =
            json!({ "toolName": name, "pluginName": "bank", "error": "x", "severity": "server_error" });
        for _ in 0..3 {
            one.record_report(None, &reported(&failure, ReportKind::Failure));
        }
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.sync_engines().await;
    let standing = |engine: &Engine| -> Vec<_> {
        engine.admin().trust(None).into_iter().map(|one| one.standing.state).collect()
    };
    assert_eq!(standing(&other), [TrustState::Escalated; 2]);
    world.store.becomes(FaultMode::HoldsDocuments);
    let (pay, draw, by) = (tool("pay"), tool("draw"), by());
    let (first, second, ()) = tokio::join!(
        one.admin().approve_recovery(None, TrustTarget::Tool(&pay), &by),
        other.admin().approve_recovery(None, TrustTarget::Tool(&draw), &by),
        async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            world.store.becomes(FaultMode::Up);
        }
    );
    assert_eq!((first.unwrap().len(), second.unwrap().len()), (1, 1));
    world.sync_engines().await;
    for engine in [&one, &other] {
        assert_eq!(standing(engine), [TrustState::Recovering; 2]);
    }
}

#[tokio::test(start_paused = true)]
async fn rp_9_reports_of_hosts_count_for_trust_and_scores_as_calls_do() {
    let world = SharedStoreWorld::new();
    let listener = Arc::new(SystemEventListener::default());
    let rules = CallPolicy { trust: PolicyProfile::Standard.policy(ToolClass::Unknown).trust, ..policy() };
    let builder = Engine::builder().clock(world.clock.clone()).store(world.store.clone());
    let engine = builder.policies(Arc::new(rules.clone())).listener(listener.clone()).start().await;
    let failure =
        json!({ "toolName": "pay", "pluginName": "bank", "error": "x", "severity": "server_error" });
    for _ in 0..2 {
        assert_eq!(engine.record_report(None, &reported(&failure, ReportKind::Failure)), []);
    }
    let mistake =
        json!({ "toolName": "pay", "pluginName": "bank", "error": "x", "severity": "invalid_input" });
    assert_eq!(
        engine.record_report(None, &reported(&mistake, ReportKind::Failure)),
        [],
        "the model's mistake"
    );
    let changes = engine.record_report(None, &reported(&failure, ReportKind::Failure));
    assert_eq!(changes.iter().map(|change| change.to).collect::<Vec<_>>(), [TrustState::Escalated]);
    assert_eq!(*listener.0.lock(), ["trust ESCALATED"]);
    assert_eq!(code(&pay(&engine).await), Some(Code::ApprovalRequired), "calls of that tool are asked about");
    let success = json!({ "toolName": "pay", "pluginName": "bank", "durationMs": 100 });
    engine.record_report(None, &reported(&success, ReportKind::Success));
    let score = engine.admin().score(None, &tool("pay")).unwrap();
    assert_eq!((score.score.samples, score.trust, score.breaker), (4, TrustState::Escalated, State::Closed));
    assert!((score.score.success_rate - 0.25).abs() < 1e-9);

    // Trust recovers with time and successes, as after calls. A tool that cannot recover does not.
    for (recoverable, expected) in [(true, TrustState::Recovering), (false, TrustState::Escalated)] {
        engine.admin().reset_trust(None, TrustTarget::All, &by()).await.unwrap();
        let mut failure = failure.clone();
        failure["recoverable"] = recoverable.into();
        for _ in 0..3 {
            engine.record_report(None, &reported(&failure, ReportKind::Failure));
        }
        tokio::time::advance(Duration::from_secs(2 * 3600)).await;
        assert_eq!(engine.admin().trust(None)[0].standing.state, expected, "recoverable: {recoverable}");
    }
    // A security concern blocks at once, and other processes adopt that.
    let concern = json!({ "toolName": "pay", "pluginName": "bank", "error": "x", "severity": "security" });
    engine.record_report(None, &reported(&concern, ReportKind::Failure));
    assert_eq!(code(&pay(&engine).await), Some(Code::ToolBlocked));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(code(&pay(&world.engine(rules).await).await), Some(Code::ToolBlocked));
}

#[tokio::test(start_paused = true)]
async fn tools_are_listed_with_their_counts_and_found_in_the_history_by_other_processes() {
    let world = SharedStoreWorld::new();
    let engine = world.engine(policy()).await;
    pay(&engine).await;
    fail(&engine).await;
    engine.admin().update_breaker(None, &key(), BreakerOverride::Open { until: None }, &by()).await;
    pay(&engine).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let unused = AvailableTool {
        tool: tool("unused"),
        annotations: AnnotationHints { read_only: Some(true), ..AnnotationHints::default() },
    };
    let pay_too = AvailableTool { tool: tool("pay"), annotations: AnnotationHints::default() };
    let tools = engine.admin().tools(None, [unused, pay_too]).await;
    assert_eq!(tools.len(), 2, "each once");
    let unused = serde_json::to_value(&tools[1]).unwrap();
    assert_eq!(
        (&unused["tool"]["tool"], &unused["called"], &unused["calls"], unused.get("lastCallAtMs")),
        (&json!("unused"), &json!(false), &json!(0), None)
    );
    let view = &tools[0];
    assert_eq!((view.calls, view.failures, view.refused, view.counted), (3, 1, 1, CountSource::SinceStart));
    assert_eq!(
        (view.breaker, view.trust, view.class),
        (State::ForcedOpen, TrustState::Trusted, ToolClass::Idempotent)
    );
    assert_eq!(view.score.unwrap().samples, 2, "a refusal says nothing about the tool");
    assert_eq!(engine.admin().score(None, &tool("unused")), None);
    let written = serde_json::to_value(view).unwrap();
    assert_eq!(
        (&written["tool"], &written["class"], &written["called"]),
        (&json!({ "namespace": "bank", "tool": "pay" }), &json!("idempotent"), &json!(true))
    );
    let later = world.engine(policy()).await.admin().tools(None, []).await;
    let elsewhere = &later[0];
    assert_eq!((elsewhere.calls, elsewhere.failures, elsewhere.refused), (3, 1, 1));
    assert_eq!((elsewhere.counted, elsewhere.breaker), (CountSource::InHistory, State::ForcedOpen));
}

#[tokio::test(start_paused = true)]
async fn scores_continue_after_a_restart() {
    let world = SharedStoreWorld::new();
    let engine = world.engine(policy()).await;
    let slow = async |_: Attempt| {
        tokio::time::sleep(Duration::from_millis(400)).await;
        ok()
    };
    fail(&engine).await;
    engine.call(call("read", &json!({})), async |_: Attempt| wrong()).await;
    // Old calls have less weight, also after a restart.
    tokio::time::sleep(Duration::from_secs(5 * 3600)).await;
    engine.call(call("pay", &json!({ "amount": 1 })), slow).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = engine.admin().score(None, &tool("pay")).unwrap();
    assert!(before.score.samples == 2 && before.score.success_rate > 0.6, "{before:?}");
    assert!(before.score.p95.is_some_and(|p95| p95 >= Duration::from_millis(400)), "{before:?}");
    let model_mistake = engine.admin().score(None, &tool("read"));
    drop(engine);
    let again = world.engine(policy()).await;
    assert_eq!(again.admin().score(None, &tool("pay")), Some(before));
    assert_eq!(again.admin().score(None, &tool("read")), model_mistake);
    pay(&again).await;
    assert_eq!(again.admin().score(None, &tool("pay")).unwrap().score.samples, 3);
}

#[tokio::test(start_paused = true)]
async fn every_operator_change_is_in_the_audit_log_with_operator_and_time() {
    let world = SharedStoreWorld::new();
    let asking = {
        let mut policy = policy();
        policy.approval.when = ApprovalTrigger::Always;
        policy
    };
    let engine = world.engine(asking).await;
    let began = engine.now();
    pay(&engine).await;
    while engine.admin().approvals(None).is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (id, _) = engine.admin().approvals(None)[0].clone();
    engine.admin().decide(None, id, ApprovalDecision::Once, Grantor::Operator, &by()).await.unwrap();
    engine.admin().update_breaker(None, &key(), BreakerOverride::Open { until: None }, &by()).await;
    engine.admin().update_breaker(None, &key(), BreakerOverride::Reset, &by()).await;
    engine.admin().reset_trust(None, TrustTarget::Tool(&tool("pay")), &by()).await.unwrap();
    engine.admin().reset_guard(None, Some(&SessionKey::new("s").unwrap()), &by()).await.unwrap();
    engine
        .admin()
        .flush(
            &FlushTarget::Finished(RecordFilter { tool: Some(tool("pay")), ..RecordFilter::default() }),
            &by(),
        )
        .await
        .unwrap();
    let nothing = RecordKey(steadfast_core::id::Digest::of(b"nothing"));
    assert_eq!(
        engine.admin().resolve(nothing, Resolution::Ran, &by()).await.unwrap(),
        ResolveVerdict::NotUnknown,
        "nothing changed, nothing is said"
    );
    let done = AuditChange {
        deed: AuditAction::Switched,
        tenant: Some(&TenantId::new("t").unwrap()),
        on: "trust".to_owned(),
        before: Some("enforce".to_owned()),
        after: Some("shadow; password=hunter2secret".to_owned()),
    };
    engine.admin().audited(&by(), done).await;

    let entries = engine.admin().audit(&AuditQuery::default()).await.unwrap().found;
    let actions: Vec<_> = entries.iter().rev().map(|entry| (entry.deed, entry.on.as_str())).collect();
    assert_eq!(
        actions,
        [
            (AuditAction::Approved, "request 0 of bank/pay"),
            (AuditAction::BreakerForcedOpen, "tool:bank:pay"),
            (AuditAction::BreakerReset, "tool:bank:pay"),
            (AuditAction::TrustReset, "bank/pay"),
            (AuditAction::GuardReset, "s"),
            (AuditAction::Flushed, "finished records of bank/pay"),
            (AuditAction::Switched, "trust"),
        ]
    );
    assert!(entries.iter().all(|entry| entry.by == by() && entry.at >= began && entry.at <= engine.now()));
    let reset = entries.iter().find(|entry| entry.deed == AuditAction::BreakerReset).unwrap();
    assert_eq!((reset.before.as_deref(), reset.after.as_deref()), (Some("FORCED_OPEN"), Some("CLOSED")));
    assert!(!format!("{entries:?}").contains("hunter2secret"));
    let written = serde_json::to_value(reset).unwrap();
    assert_eq!(
        (&written["by"], &written["deed"]),
        (&json!({ "name": "ann", "from": "cli" }), &json!("breaker_reset"))
    );
    // By tenant, and page by page.
    let of_none = AuditQuery { tenants: TenantFilter::One(None), limit: 2, ..AuditQuery::default() };
    let page = engine.admin().audit(&of_none).await.unwrap();
    let deeds = |entries: &[AuditEntry]| entries.iter().map(|entry| entry.deed).collect::<Vec<_>>();
    assert_eq!(deeds(&page.found), [AuditAction::Flushed, AuditAction::GuardReset]);
    let next = engine.admin().audit(&AuditQuery { behind: page.next, limit: 9, ..of_none }).await.unwrap();
    assert_eq!((deeds(&next.found), next.next), (deeds(&entries[3..]), None));
    let resets = AuditQuery { deed: Some(AuditAction::BreakerReset), ..AuditQuery::default() };
    assert_eq!(deeds(&engine.admin().audit(&resets).await.unwrap().found), [AuditAction::BreakerReset]);
    let nobodys = AuditQuery { by: Some("nobody".to_owned()), ..AuditQuery::default() };
    assert_eq!(engine.admin().audit(&nobodys).await.unwrap().found, []);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_cannot_be_written_to_the_audit_log_still_applies() {
    let world = SharedStoreWorld::new();
    let engine = world.engine(policy()).await;
    for health in [FaultMode::Down, FaultMode::Silent] {
        world.store.becomes(health);
        engine.admin().update_breaker(None, &key(), BreakerOverride::Open { until: None }, &by()).await;
        world.store.becomes(FaultMode::Up);
        assert_eq!(state(&engine).await, Some(State::ForcedOpen), "{health:?}");
        engine.admin().update_breaker(None, &key(), BreakerOverride::Reset, &by()).await;
    }
    let entries = engine.admin().audit(&AuditQuery::default()).await.unwrap().found;
    assert!(entries.iter().all(|entry| entry.deed == AuditAction::BreakerReset), "{entries:?}");
}

#[tokio::test(start_paused = true)]
async fn records_are_listed_from_memory_and_from_the_store() {
    let world = SharedStoreWorld::new();
    let engine = world.engine(CallPolicy { class: ToolClass::ReadOnly, ..policy() }).await;
    let mut keyed = call("read", &json!({}));
    keyed.payload.idempotency_key = Some(steadfast_core::envelope::IdempotencyKey::new("k").unwrap());
    engine.call(keyed, async |_: Attempt| ok()).await;
    let page = RecordPage { after: None, limit: 10 };
    let records = engine.admin().records(&RecordFilter::default(), page).await.unwrap();
    assert_eq!(records.len(), 1, "it is in memory only, because it changes nothing");
    assert!(world.store.records(&RecordFilter::default(), page).await.unwrap().is_empty());
    let found = engine.admin().record(records[0].key).await.unwrap();
    assert_eq!(found.map(|record| record.tool), Some(tool("read")));
    assert_eq!(engine.admin().flush(&FlushTarget::Key(records[0].key), &by()).await.unwrap(), 1);
    assert_eq!(engine.admin().record(records[0].key).await.unwrap(), None);
    assert!(world.clock.now() > steadfast_core::Timestamp::ZERO);
}
