//! The engine in a Rust program: a real runtime with paused time, and scripted tools.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod faulty;
mod hosts;
mod keyless;
mod turns;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use steadfast_core::approval::{ApprovalChannel, ApprovalDecision, Grantor};
use steadfast_core::breaker::State;
use steadfast_core::classify::{AttemptFault, FaultSource, TransportError};
use steadfast_core::code::{CallStatus, Code};
use steadfast_core::envelope::{CallEnvelope, UnknownFieldPolicy};
use steadfast_core::policy::{
    ApprovalTrigger, CallPolicy, EnforcementMode, MechanismModes, PolicyProfile, ToolClass,
};
use steadfast_core::trust::TrustState;
use steadfast_executor::{
    Attempt, CallFacts, CallOptions, CallResponse, Engine, FailureQuery, HeartbeatReply, HookFuture, Hooks,
    HostError, HostStep, OperatorIdentity, OperatorSurface, RuntimeClock, ShutdownReport, ToolHandler,
    ToolResult, TrustFile,
};
use steadfast_store::{DocumentKind, Journal, JournalQuery, MemoryOptions, MemoryStore, StateStore};
use tokio::sync::Semaphore;

use faulty::{FaultMode, FaultyStore};
use turns::scripted::{ok, reset, settle};

async fn engine(policy: CallPolicy) -> Engine {
    Engine::builder().clock(Arc::new(RuntimeClock::new())).policies(Arc::new(policy)).start().await
}

fn by() -> OperatorIdentity {
    OperatorIdentity::new("ann", OperatorSurface::Library)
}

fn standard(class: ToolClass) -> CallPolicy {
    PolicyProfile::Standard.policy(class)
}

/// Returns a call of `bank/pay`, with or without an idempotency key.
fn pay(amount: u32, key: Option<&str>) -> CallEnvelope {
    let key = key.map_or(String::new(), |key| format!(r#","idempotencyKey":"{key}""#));
    let text = format!(
        r#"{{"contractVersion":"1.1","requestId":"r","toolName":"pay","toolNamespace":"bank",
            "target":{{"sessionKey":"s","actorId":"ann"}},
            "payload":{{"version":"1.0","params":{{"amount":{amount}}}{key}}}}}"#
    );
    CallEnvelope::parse(text.as_bytes(), UnknownFieldPolicy::Refuse).unwrap()
}

fn broken() -> ToolResult {
    Err(AttemptFault::new(FaultSource::Http { status: 500 }, "internal error").into())
}

/// A tool that counts its runs and waits for permission to end each of them.
#[derive(Clone)]
struct GatedTool {
    runs: Arc<AtomicU32>,
    leave: Arc<Semaphore>,
}

impl GatedTool {
    fn new() -> Self {
        Self { runs: Arc::default(), leave: Arc::new(Semaphore::new(0)) }
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }
}

impl ToolHandler for GatedTool {
    fn run(&self, _attempt: Attempt) -> impl Future<Output = ToolResult> + Send + 'static {
        let this = self.clone();
        async move {
            this.runs.fetch_add(1, Ordering::SeqCst);
            this.leave.acquire().await.unwrap().forget();
            ok()
        }
    }
}

fn code(called: &CallResponse) -> Option<Code> {
    called.result.error.as_ref().map(|error| error.code)
}

#[tokio::test(start_paused = true)]
async fn a_call_runs_its_tool_and_brings_its_answer() {
    let engine = engine(standard(ToolClass::Unknown)).await;
    let called = engine.call(pay(1, None), async |_: Attempt| ok()).await;
    assert_eq!(called.result.status, CallStatus::Success);
    assert_eq!(called.result.attempts, 1);
    assert_eq!(called.result.output.unwrap().content.as_str(), "\"paid\"");
}

#[tokio::test(start_paused = true)]
async fn sf_1_sixty_four_callers_of_one_key_are_one_run() {
    let engine = engine(standard(ToolClass::Mutating)).await;
    let tool = GatedTool::new();
    let callers: Vec<_> =
        (0..64).map(|_| tokio::spawn(engine.call(pay(1, Some("k")), tool.clone()))).collect();
    settle().await;
    assert_eq!(tool.runs(), 1);
    tool.leave.add_permits(64);
    let mut replayed = 0;
    for caller in callers {
        let called = caller.await.unwrap();
        assert_eq!(called.result.status, CallStatus::Success);
        replayed += u32::from(called.result.from_cache);
    }
    assert_eq!((tool.runs(), replayed), (1, 63));
    assert_eq!(engine.in_flight_calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_tool_is_a_terminal_error_and_not_a_lost_call() {
    let engine = engine(standard(ToolClass::ReadOnly)).await;
    let called =
        engine.call(pay(1, None), async |_: Attempt| -> ToolResult { panic!("no such account") }).await;
    let error = called.result.error.unwrap();
    assert_eq!(called.result.attempts, 1);
    assert!(error.terminal && error.message.contains("no such account"), "{error:?}");
    let called = engine.call(pay(1, None), async |_: Attempt| ok()).await;
    assert_eq!(called.result.status, CallStatus::Success, "the engine goes on");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_leaves_a_recorded_answer() {
    let engine = engine(standard(ToolClass::Mutating)).await;
    let tool = GatedTool::new();
    let caller = tokio::spawn(engine.call(pay(1, Some("k")), tool.clone()));
    settle().await;
    caller.abort();
    settle().await;
    assert_eq!(engine.in_flight_calls(), 1, "the attempt goes on without its caller");
    tool.leave.add_permits(1);
    settle().await;
    assert_eq!(engine.in_flight_calls(), 0);
    let called = engine.call(pay(1, Some("k")), tool.clone()).await;
    assert!(called.result.from_cache);
    assert_eq!(tool.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn tr_5_transient_faults_are_retried_until_one_attempt_succeeds() {
    let engine = engine(standard(ToolClass::Idempotent)).await;
    let runs = Arc::new(AtomicU32::new(0));
    let counted = runs.clone();
    let called = engine
        .call(pay(1, Some("k")), move |_: Attempt| {
            let run = counted.fetch_add(1, Ordering::SeqCst);
            async move { if run < 2 { reset() } else { ok() } }
        })
        .await;
    assert_eq!(called.result.status, CallStatus::Success);
    assert_eq!((called.result.attempts, runs.load(Ordering::SeqCst)), (3, 3));
    assert_eq!(called.result.retried_by.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_tool_without_progress_is_cancelled_and_ended() {
    let mut policy = standard(ToolClass::ReadOnly);
    policy.retry.attempts = 1.try_into().unwrap();
    let engine = engine(policy).await;
    let cancellations = Arc::new(AtomicU32::new(0));
    let counter = cancellations.clone();
    let called = engine
        .call(pay(1, None), move |attempt: Attempt| {
            let counter = counter.clone();
            async move {
                attempt.cancelled().await;
                counter.fetch_add(1, Ordering::SeqCst);
                std::future::pending().await
            }
        })
        .await;
    assert_eq!(code(&called), Some(Code::Timeout));
    assert_eq!(cancellations.load(Ordering::SeqCst), 1);
    assert_eq!(engine.in_flight_calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_mutating_tool_that_falls_silent_is_unknown_and_its_late_answer_is_kept() {
    let engine = engine(standard(ToolClass::Mutating)).await;
    let tool = GatedTool::new();
    let called = engine.call(pay(1, Some("k")), tool.clone()).await;
    assert_eq!(code(&called), Some(Code::OutcomeUnknown));
    assert_eq!(engine.in_flight_calls(), 1, "the attempt may still answer");
    tool.leave.add_permits(1);
    settle().await;
    let called = engine.call(pay(1, Some("k")), tool.clone()).await;
    assert_eq!((called.result.status, called.result.from_cache), (CallStatus::Success, true));
    assert_eq!(tool.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_withdrawn_call_is_over_and_others_that_wait_for_its_run_are_not() {
    let engine = engine(standard(ToolClass::Mutating)).await;
    let tool = GatedTool::new();
    let first = engine.call(pay(1, Some("k")), tool.clone());
    let cancel = first.canceller();
    let first = tokio::spawn(first);
    settle().await;
    let second = tokio::spawn(engine.call(pay(1, Some("k")), tool.clone()));
    settle().await;
    cancel.cancel();
    assert_eq!(code(&first.await.unwrap()), Some(Code::Cancelled));
    tool.leave.add_permits(1);
    let second = second.await.unwrap();
    assert_eq!(second.result.status, CallStatus::Success);
    assert_eq!(tool.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_then_records_what_is_open_as_unknown() {
    let engine = engine(standard(ToolClass::Mutating)).await;
    let tool = GatedTool::new();
    let caller = tokio::spawn(engine.call(pay(1, Some("k")), tool.clone()));
    settle().await;
    let drained = engine.shutdown(Duration::from_secs(10)).await;
    assert_eq!(drained, ShutdownReport { aborted: 1, lost: 0 });
    let called = caller.await.unwrap();
    assert!(matches!(code(&called), Some(Code::Cancelled | Code::OutcomeUnknown)), "{called:?}");
    assert_eq!(engine.in_flight_calls(), 0);
    let late = engine.call(pay(2, None), tool.clone()).await;
    assert_eq!(code(&late), Some(Code::Overloaded));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_what_was_answered_as_unknown_and_becomes_done() {
    let policy = standard(ToolClass::Mutating);
    let timeout = policy.time.attempt;
    let clock = Arc::new(RuntimeClock::new());
    let store = Arc::new(MemoryStore::new(MemoryOptions::new(clock.clone())));
    let builder = || {
        let builder = Engine::builder().clock(clock.clone()).store(store.clone());
        builder.policies(Arc::new(policy.clone()))
    };
    let engine = builder().start().await;
    let tool = GatedTool::new();
    let response = engine.call(pay(1, Some("k")), tool.clone()).await;
    assert_eq!((code(&response), engine.in_flight_calls()), (Some(Code::OutcomeUnknown), 1));
    let ending = engine.clone();
    let shutdown = tokio::spawn(async move { ending.shutdown(timeout).await });
    tokio::time::sleep(timeout / 2).await;
    tool.leave.add_permits(1);
    assert_eq!(shutdown.await.unwrap(), ShutdownReport { aborted: 0, lost: 0 });
    let found = builder().start().await.call(pay(1, Some("k")), tool.clone()).await;
    assert_eq!((found.result.status, found.result.from_cache, tool.runs()), (CallStatus::Success, true, 1));
}

#[tokio::test(start_paused = true)]
async fn tr_8_five_failures_open_the_breaker_and_the_next_call_runs_nothing() {
    let mut policy = standard(ToolClass::Unknown);
    policy.retry.attempts = 1.try_into().unwrap();
    policy.modes.guard = EnforcementMode::Off;
    policy.modes.trust = EnforcementMode::Off;
    let engine = engine(policy).await;
    let runs = Arc::new(AtomicU32::new(0));
    let mut last = None;
    for amount in 0..6 {
        let counted = runs.clone();
        let tool = move |_: Attempt| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { reset() }
        };
        last = Some(engine.call(pay(amount, None), tool).await);
    }
    assert_eq!(code(&last.unwrap()), Some(Code::CircuitOpen));
    assert_eq!(runs.load(Ordering::SeqCst), 5);
}

#[tokio::test(start_paused = true)]
async fn a_host_runs_its_own_tool_and_reports() {
    let engine = engine(standard(ToolClass::Idempotent)).await;
    let HostStep::Run(order) = engine.begin(pay(1, Some("k")), CallOptions::default()).await else {
        panic!()
    };
    assert_eq!(order.attempt, 1);
    assert_eq!(engine.heartbeat(order.call, 1), Ok(HeartbeatReply::Continue));
    let Ok(HostStep::Run(again)) = engine.report(order.call, 1, reset()).await else { panic!("a retry") };
    assert_eq!((again.attempt, &again.run), (2, &order.run));
    assert_eq!(engine.report(order.call, 1, ok()).await.unwrap_err(), HostError::NotThisAttempt);
    let Ok(HostStep::Answered(called)) = engine.report(order.call, 2, ok()).await else { panic!() };
    assert_eq!((called.result.status, called.result.attempts), (CallStatus::Success, 2));
    assert_eq!(engine.heartbeat(order.call, 2), Err(HostError::NoSuchCall));
    let HostStep::Answered(replayed) = engine.begin(pay(1, Some("k")), CallOptions::default()).await else {
        panic!()
    };
    assert!(replayed.result.from_cache);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_never_reports_does_not_hold_its_call_open_for_ever() {
    let mut policy = standard(ToolClass::ReadOnly);
    policy.retry.attempts = 1.try_into().unwrap();
    let timeout = policy.time.attempt;
    let engine = engine(policy).await;
    let HostStep::Run(order) = engine.begin(pay(1, None), CallOptions::default()).await else { panic!() };
    tokio::time::sleep(timeout / 2).await;
    assert_eq!(engine.heartbeat(order.call, 1), Ok(HeartbeatReply::Continue));
    tokio::time::sleep(timeout * 3 / 4).await;
    assert_eq!(engine.in_flight_calls(), 1, "a sign of life pushes the time-out back");
    tokio::time::sleep(timeout).await;
    assert_eq!(engine.in_flight_calls(), 0);
    assert_eq!(engine.report(order.call, 1, ok()).await.unwrap_err(), HostError::NotThisAttempt);
}

#[tokio::test(start_paused = true)]
async fn hosts_that_never_come_back_make_room_for_others() {
    let mut policy = standard(ToolClass::ReadOnly);
    policy.retry.attempts = 1.try_into().unwrap();
    policy.modes.breaker = EnforcementMode::Off;
    policy.modes.guard = EnforcementMode::Off;
    policy.modes.trust = EnforcementMode::Off;
    let engine = engine(policy).await;
    let mut calls = Vec::new();
    for amount in 0..=10_000 {
        let HostStep::Run(order) = engine.begin(pay(amount, None), CallOptions::default()).await else {
            panic!()
        };
        calls.push(order.call);
        if amount % 500 == 499 {
            // The time of the calls is over, and their results are stored.
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert_eq!(engine.in_flight_calls(), 0);
        }
    }
    assert_eq!(engine.heartbeat(calls[0], 1), Err(HostError::NoSuchCall));
    assert_ne!(engine.heartbeat(calls[1], 1), Err(HostError::NoSuchCall));
    assert_eq!(engine.heartbeat(calls[10_000], 1), Ok(HeartbeatReply::Continue));
}

#[tokio::test(start_paused = true)]
async fn in_shadow_a_host_that_never_reports_is_given_up_when_the_time_of_its_call_is_over() {
    let mut policy = standard(ToolClass::ReadOnly);
    policy.modes = MechanismModes::all(EnforcementMode::Shadow);
    let (timeout, total) = (policy.time.attempt, policy.time.total);
    let engine = engine(policy).await;
    let HostStep::Run(order) = engine.begin(pay(1, None), CallOptions::default()).await else { panic!() };
    tokio::time::sleep(total - timeout / 2).await;
    assert_eq!(engine.heartbeat(order.call, 1), Ok(HeartbeatReply::Continue));
    tokio::time::sleep(timeout * 3 / 4).await;
    assert_eq!(engine.in_flight_calls(), 1, "a host that shows signs of life is left alone");
    tokio::time::sleep(timeout).await;
    assert_eq!(engine.in_flight_calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn hosts_that_vanish_count_neither_for_the_breaker_nor_for_trust_nor_for_the_score_of_their_tool() {
    for class in [ToolClass::Idempotent, ToolClass::Mutating] {
        let policy = standard(class);
        let (timeout, total) = (policy.time.attempt, policy.time.total);
        let engine = engine(policy).await;
        for amount in 0..12 {
            let call = pay(amount, Some(&format!("key {amount}")));
            let HostStep::Run(lost) = engine.begin(call, CallOptions::default()).await else {
                panic!("{class:?}: {amount} runs")
            };
            // In one case the order never arrives, in the other the host dies while it runs.
            if amount % 2 == 0 {
                engine.return_order(&lost).await.unwrap();
            } else {
                assert_eq!(engine.heartbeat(lost.call, 1), Ok(HeartbeatReply::Continue));
            }
        }
        settle().await;
        assert_eq!(engine.in_flight_calls(), 6, "{class:?}: what was given back is over");
        tokio::time::sleep(timeout * 2).await;
        let view = &engine.admin().tools(None, []).await[0];
        let neutral = (State::Closed, TrustState::Trusted, None);
        assert_eq!((view.breaker, view.trust, view.score), neutral, "{class:?}");
        tokio::time::sleep(total).await;
        assert_eq!(engine.in_flight_calls(), 0, "{class:?}");
        let called = engine.call(pay(99, None), async |_: Attempt| ok()).await;
        assert_eq!(called.result.status, CallStatus::Success);
    }
}

#[tokio::test(start_paused = true)]
async fn with_everything_off_a_tool_that_hangs_is_ended_once_its_caller_is_gone() {
    let mut policy = standard(ToolClass::Mutating);
    policy.modes = MechanismModes::all(EnforcementMode::Off);
    let time = policy.time.total * 2;
    let engine = engine(policy).await;
    let tool = GatedTool::new();
    let caller = tokio::spawn(engine.call(pay(1, Some("k")), tool.clone()));
    tokio::time::sleep(time).await;
    assert_eq!((tool.runs(), engine.in_flight_calls()), (1, 1), "somebody waits for the answer");
    caller.abort();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(engine.in_flight_calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn in_shadow_a_tool_that_hangs_is_ended_once_its_caller_is_gone() {
    let mut policy = standard(ToolClass::Mutating);
    policy.modes = MechanismModes::all(EnforcementMode::Shadow);
    let time = policy.time.total * 2;
    let engine = engine(policy).await;
    let tool = GatedTool::new();
    let caller = tokio::spawn(engine.call(pay(1, Some("k")), tool.clone()));
    tokio::time::sleep(time).await;
    assert_eq!((tool.runs(), engine.in_flight_calls()), (1, 1), "somebody waits for the answer");
    caller.abort();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(engine.in_flight_calls(), 0);
}

/// The policies of later calls do not matter for it.
#[tokio::test(start_paused = true)]
async fn a_call_reports_if_it_is_bypassed() {
    for (mode, expected) in
        [(EnforcementMode::Off, true), (EnforcementMode::Shadow, true), (EnforcementMode::Enforce, false)]
    {
        let mut policy = standard(ToolClass::ReadOnly);
        policy.modes = MechanismModes::all(mode);
        let engine = engine(policy).await;
        let mut calling = engine.call(pay(1, None), GatedTool::new());
        assert!(!calling.is_bypassed(), "{mode:?}: nobody has looked at it yet");
        let _ = tokio::time::timeout(Duration::from_millis(1), &mut calling).await;
        assert_eq!(calling.is_bypassed(), expected, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_learns_that_the_result_is_no_longer_wanted() {
    let engine = engine(standard(ToolClass::Mutating)).await;
    let HostStep::Run(order) = engine.begin(pay(1, Some("k")), CallOptions::default()).await else {
        panic!()
    };
    engine.cancel(order.call).unwrap();
    settle().await;
    assert_eq!(engine.heartbeat(order.call, 1), Ok(HeartbeatReply::Stop));
    let Ok(HostStep::Answered(called)) = engine.report(order.call, 1, ok()).await else { panic!() };
    assert_eq!(code(&called), Some(Code::Cancelled));
    settle().await;
    let HostStep::Answered(again) = engine.begin(pay(1, Some("k")), CallOptions::default()).await else {
        panic!()
    };
    assert_eq!(
        (again.result.status, again.result.from_cache),
        (CallStatus::Success, true),
        "its answer is kept"
    );
}

/// Hooks that record their calls, and panic or hang on request.
#[derive(Default)]
struct RecordingHooks {
    log: parking_lot::Mutex<Vec<String>>,
    panics: bool,
    hangs: bool,
}

impl RecordingHooks {
    fn note(&self, entry: String) -> HookFuture<'_, ()> {
        self.log.lock().push(entry);
        assert!(!self.panics, "a hook that panics");
        let hangs = self.hangs;
        Box::pin(async move {
            if hangs {
                std::future::pending().await
            }
        })
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().clone()
    }
}

impl Hooks for RecordingHooks {
    fn key<'a>(&'a self, call: &'a CallEnvelope) -> HookFuture<'a, Option<String>> {
        let key = call.payload.params.as_str().contains("42").then(|| "from the hook".to_owned());
        Box::pin(async { key })
    }

    fn before_attempt<'a>(&'a self, _: &'a CallEnvelope, attempt: u32) -> HookFuture<'a, ()> {
        self.note(format!("before {attempt}"))
    }

    fn after_attempt<'a>(
        &'a self,
        _: &'a CallEnvelope,
        attempt: u32,
        answer: &'a ToolResult,
    ) -> HookFuture<'a, ()> {
        self.note(format!("after {attempt} {}", if answer.is_ok() { "good" } else { "bad" }))
    }

    fn short_circuit<'a>(&'a self, _: &'a CallEnvelope, code: Option<Code>) -> HookFuture<'a, ()> {
        self.note(format!("short {}", code.map_or("replayed", Code::as_str)))
    }
}

async fn hooked(policy: CallPolicy, hooks: RecordingHooks) -> (Engine, Arc<RecordingHooks>) {
    let hooks = Arc::new(hooks);
    let engine = Engine::builder()
        .clock(Arc::new(RuntimeClock::new()))
        .policies(Arc::new(policy))
        .hooks(hooks.clone())
        .start()
        .await;
    (engine, hooks)
}

/// A tool that fails a number of times, then succeeds.
fn flaky(failures: u32) -> impl ToolHandler {
    let runs = AtomicU32::new(0);
    move |_: Attempt| {
        let run = runs.fetch_add(1, Ordering::SeqCst);
        async move { if run < failures { broken() } else { ok() } }
    }
}

#[tokio::test(start_paused = true)]
async fn tr_12_hooks_fire_once_per_attempt_and_once_for_a_short_circuit() {
    let (engine, hooks) = hooked(standard(ToolClass::Idempotent), RecordingHooks::default()).await;
    engine.call(pay(1, Some("k")), flaky(1)).await;
    assert_eq!(hooks.log(), ["before 1", "after 1 bad", "before 2", "after 2 good"]);
    let replayed = engine.call(pay(1, Some("k")), flaky(0)).await;
    assert!(replayed.result.from_cache);
    assert_eq!(hooks.log()[4..], ["short replayed"]);
    let conflict = engine.call(pay(2, Some("k")), flaky(0)).await;
    assert_eq!(code(&conflict), Some(Code::IdempotencyConflict));
    assert_eq!(hooks.log()[5..], ["short idempotency_conflict"]);
}

#[tokio::test(start_paused = true)]
async fn tr_12_a_hook_that_panics_or_hangs_does_not_break_a_call() {
    for misbehaved in [
        RecordingHooks { panics: true, ..RecordingHooks::default() },
        RecordingHooks { hangs: true, ..RecordingHooks::default() },
    ] {
        let (engine, hooks) = hooked(standard(ToolClass::Mutating), misbehaved).await;
        let called = engine.call(pay(1, Some("k")), flaky(0)).await;
        assert_eq!(called.result.status, CallStatus::Success);
        assert_eq!(hooks.log(), ["before 1", "after 1 good"]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_key_hook_gives_a_key_to_a_call_that_has_none() {
    let (engine, _) = hooked(standard(ToolClass::Mutating), RecordingHooks::default()).await;
    for replayed in [false, true] {
        let called = engine.call(pay(42, None), flaky(0)).await;
        assert_eq!(called.result.from_cache, replayed);
        let called = engine.call(pay(7, None), flaky(0)).await;
        assert!(!called.result.from_cache, "a call without a key is a call of its own");
    }
}

/// Starts an engine on a shared store, as after a restart of the process.
async fn restarted(store: &Arc<dyn StateStore>, clock: &Arc<RuntimeClock>, policy: &CallPolicy) -> Engine {
    Engine::builder()
        .store(store.clone())
        .clock(clock.clone())
        .policies(Arc::new(policy.clone()))
        .start()
        .await
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_and_lost_trust_survive_a_restart() {
    let clock = Arc::new(RuntimeClock::new());
    let store: Arc<dyn StateStore> = Arc::new(MemoryStore::new(MemoryOptions::new(clock.clone())));
    let mut policy = standard(ToolClass::Unknown);
    policy.retry.attempts = 1.try_into().unwrap();
    policy.modes.guard = EnforcementMode::Off;
    policy.modes.trust = EnforcementMode::Shadow;
    let engine = restarted(&store, &clock, &policy).await;
    for amount in 0..5 {
        engine.call(pay(amount, None), flaky(1)).await;
    }
    engine.shutdown(Duration::from_secs(1)).await;
    policy.modes.trust = EnforcementMode::Off;
    let engine = restarted(&store, &clock, &policy).await;
    assert_eq!(code(&engine.call(pay(9, None), flaky(0)).await), Some(Code::CircuitOpen));
    policy.modes.trust = EnforcementMode::Enforce;
    policy.modes.breaker = EnforcementMode::Off;
    let engine = restarted(&store, &clock, &policy).await;
    assert_eq!(code(&engine.call(pay(9, None), flaky(0)).await), Some(Code::ApprovalRequired));

    // An operator approves, and the next such call runs. The one after asks again.
    settle().await;
    let (id, parked) = engine.admin().approvals(None).pop().unwrap();
    assert_eq!(parked.tool.tool.as_str(), "pay");
    engine.admin().decide(None, id, ApprovalDecision::Once, Grantor::Operator, &by()).await.unwrap();
    let other = restarted(&store, &clock, &policy).await;
    assert_eq!(other.call(pay(9, None), flaky(0)).await.result.status, CallStatus::Success);
    assert_eq!(code(&other.call(pay(9, None), flaky(0)).await), Some(Code::ApprovalRequired));
    assert_eq!(
        code(&engine.call(pay(9, None), flaky(0)).await),
        Some(Code::ApprovalRequired),
        "spent elsewhere"
    );
}

/// The stored state is read before it is written. It was written while the tool was not trusted.
#[tokio::test(start_paused = true)]
async fn rp_8_trust_that_was_won_back_stays_when_it_is_stored() {
    let clock = Arc::new(RuntimeClock::new());
    let store: Arc<dyn StateStore> = Arc::new(MemoryStore::new(MemoryOptions::new(clock.clone())));
    let mut policy = standard(ToolClass::Unknown);
    policy.retry.attempts = 1.try_into().unwrap();
    (policy.modes.guard, policy.modes.breaker) = (EnforcementMode::Off, EnforcementMode::Off);
    let engine = restarted(&store, &clock, &policy).await;
    for amount in 0..3 {
        engine.call(pay(amount, None), flaky(1)).await;
    }
    assert_eq!(engine.admin().trust(None).len(), 1);
    tokio::time::sleep(Duration::from_secs(31 * 60)).await;
    for amount in 3..6 {
        assert_eq!(engine.call(pay(amount, None), flaky(0)).await.result.status, CallStatus::Success);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(engine.admin().trust(None).is_empty(), "{:?}", engine.admin().trust(None));
    let other = restarted(&store, &clock, &policy).await;
    assert!(other.admin().trust(None).is_empty(), "{:?}", other.admin().trust(None));
}

#[tokio::test(start_paused = true)]
async fn an_approval_in_time_lets_the_waiting_call_run() {
    let mut policy = standard(ToolClass::Mutating);
    policy.approval.when = ApprovalTrigger::Always;
    let engine = engine(policy).await;
    let options = CallOptions { channel: ApprovalChannel::Interactive, ..CallOptions::default() };
    for (decision, expected) in
        [(ApprovalDecision::Once, None), (ApprovalDecision::Deny, Some(Code::ApprovalDenied))]
    {
        let key = format!("{decision:?}");
        let calling = tokio::spawn(engine.call_with(pay(1, Some(&key)), flaky(0), options.clone()));
        settle().await;
        let (id, _) = engine.admin().approvals(None).pop().expect("it asks");
        engine.admin().decide(None, id, decision, Grantor::Operator, &by()).await.unwrap();
        assert_eq!(code(&calling.await.unwrap()), expected, "{decision:?}");
    }
    let unanswered = engine.call_with(pay(1, Some("nobody")), flaky(0), options).await;
    assert_eq!(code(&unanswered), Some(Code::ApprovalRequired), "the wait is bounded");
}

/// A refusal is not stored: a follower that missed it would request the same approval again.
#[tokio::test(start_paused = true)]
async fn followers_of_a_denied_call_are_denied_without_another_request() {
    let mut policy = standard(ToolClass::Mutating);
    policy.approval.when = ApprovalTrigger::Always;
    let engine = engine(policy).await;
    let options = CallOptions { channel: ApprovalChannel::Interactive, ..CallOptions::default() };
    let call = || tokio::spawn(engine.call_with(pay(1, Some("k")), flaky(0), options.clone()));
    let callers = [call(), call(), call()];
    settle().await;
    let [(id, _)] = engine.admin().approvals(None).try_into().expect("one asks for all");
    engine.admin().decide(None, id, ApprovalDecision::Deny, Grantor::Operator, &by()).await.unwrap();
    for caller in callers {
        assert_eq!(code(&caller.await.unwrap()), Some(Code::ApprovalDenied));
    }
    assert_eq!(engine.admin().approvals(None).len(), 0);
}

/// A folder that is unique to a test and process, and removed at the end of the test.
struct EngineTestFolder(std::path::PathBuf);

impl EngineTestFolder {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("steadfast-{name}-{}", std::process::id())))
    }
}

impl Drop for EngineTestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test(start_paused = true)]
async fn rp_11_trust_in_a_file_is_written_whole_and_read_at_the_next_start() {
    let folder = EngineTestFolder::new("trust");
    let file = TrustFile::at(folder.0.join("reliability.json"));
    let mut policy = standard(ToolClass::Unknown);
    policy.retry.attempts = 1.try_into().unwrap();
    policy.modes.guard = EnforcementMode::Off;
    policy.modes.breaker = EnforcementMode::Off;
    let build = || {
        let builder = Engine::builder().clock(Arc::new(RuntimeClock::new()));
        builder.policies(Arc::new(policy.clone())).trust_file(file.clone()).start()
    };
    let engine = build().await;
    for amount in 0..3 {
        engine.call(pay(amount, None), flaky(1)).await;
    }
    engine.shutdown(Duration::from_secs(1)).await;
    let text = file.read().unwrap().unwrap();
    assert!(text.contains("\"escalated\"") && text.contains("\"version\": 1"), "{text}");
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1, "nothing unfinished is left behind");
    let engine = build().await;
    assert_eq!(code(&engine.call(pay(9, None), flaky(0)).await), Some(Code::ApprovalRequired));

    // A damaged file does not prevent a start, and is not overwritten, even if there is something to write.
    let damaged = "{\"version\": 1, \"tool_states\"";
    file.write(damaged).unwrap();
    let engine = build().await;
    assert_eq!(engine.call(pay(9, None), flaky(0)).await.result.status, CallStatus::Success);
    for amount in 0..3 {
        engine.call(pay(amount, None), flaky(1)).await;
    }
    assert_eq!(code(&engine.call(pay(9, None), flaky(0)).await), Some(Code::ApprovalRequired));
    engine.shutdown(Duration::from_secs(1)).await;
    assert_eq!(file.read().unwrap().as_deref(), Some(damaged));
    assert!(file.check().unwrap_err().contains("line 1, column "), "{:?}", file.check());
}

#[tokio::test(start_paused = true)]
async fn rp_12_a_file_of_a_host_keeps_its_form_of_dates_and_what_we_do_not_know() {
    let folder = EngineTestFolder::new("of-a-host");
    let file = TrustFile::at(folder.0.join("reliability.json"));
    let mut policy = standard(ToolClass::Unknown);
    policy.retry.attempts = 1.try_into().unwrap();
    policy.modes.guard = EnforcementMode::Off;
    policy.modes.breaker = EnforcementMode::Off;
    for (last, form) in [
        ("\"2020-01-02T03:04:05.000Z\"", "offset"),
        ("\"2020-01-02T03:04:05.000006\"", "local"),
        ("1577934245000", "millis"),
    ] {
        let text = format!(
            r#"{{ "settings": {{ "nudge_level": "gentle" }}, "default_rule": {{ "count_threshold": 5 }},
                "tool_states": {{ "other": {{ "tool_name": "other", "state": "blocked", "total_failures": 7,
                "last_failure": {last} }} }}, "last_updated": {last} }}"#
        );
        file.write(&text).unwrap();
        let builder = Engine::builder().clock(Arc::new(RuntimeClock::new()));
        let engine = builder.policies(Arc::new(policy.clone())).trust_file(file.clone()).start().await;
        for amount in 0..3 {
            engine.call(pay(amount, None), flaky(1)).await;
        }
        engine.shutdown(Duration::from_secs(1)).await;
        let now: serde_json::Value = serde_json::from_str(&file.read().unwrap().unwrap()).unwrap();
        assert_eq!(file.check(), Ok(Some(2)), "{now:#}");
        assert_eq!(now["settings"]["nudge_level"], "gentle", "{now:#}");
        assert_eq!(now["default_rule"]["count_threshold"], 5, "{now:#}");
        let other = &now["tool_states"]["other"];
        assert_eq!((&other["total_failures"], &other["state"]), (&7.into(), &"blocked".into()), "{now:#}");
        let moments = [&other["last_failure"], &now["last_updated"], &now["failure_history"][0]["timestamp"]];
        for moment in moments {
            let text = moment.as_str().unwrap_or_default();
            let found = match (moment.is_u64(), text.ends_with('Z')) {
                (true, _) => "millis",
                (false, true) => "offset",
                (false, false) => "local",
            };
            assert_eq!(found, form, "{now:#}");
        }
        // The same moment, to the millisecond.
        assert_eq!(other["last_failure"].to_string(), last.replace("000006", "000000"), "{now:#}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_history_of_a_call_says_what_became_of_it_and_not_what_was_in_it() {
    let clock = Arc::new(RuntimeClock::new());
    let store: Arc<dyn StateStore> = Arc::new(MemoryStore::new(MemoryOptions::new(clock.clone())));
    let engine = restarted(&store, &clock, &standard(ToolClass::Idempotent)).await;
    engine.call(pay(314_159, Some("a-key-of-mine")), flaky(1)).await;
    engine.shutdown(Duration::ZERO).await;
    let query = JournalQuery { subject: Some("r".into()), ..JournalQuery::newest(Journal::History, 10) };
    let entries = store.entries(&query).await.unwrap();
    assert_eq!(entries.len(), 1);
    let body = &entries[0].1.body;
    assert!(!body.contains("314159") && !body.contains("a-key-of-mine") && !body.contains("paid"), "{body}");
    let facts: CallFacts = serde_json::from_str(body).unwrap();
    assert_eq!((facts.attempts.len(), facts.status, facts.recorded), (2, CallStatus::Success, Some(true)));
}

/// A regression: call numbers once started at zero in every engine, so that two engines made the same owner. The second
/// took the claim of the first for its own unconfirmed one, and ran the tool again.
#[tokio::test(start_paused = true)]
async fn two_engines_of_one_process_on_one_store_are_two_owners() {
    let clock = Arc::new(RuntimeClock::new());
    let store: Arc<dyn StateStore> = Arc::new(MemoryStore::new(MemoryOptions::new(clock.clone())));
    let policy = standard(ToolClass::Mutating);
    let (one, other) = (restarted(&store, &clock, &policy).await, restarted(&store, &clock, &policy).await);
    let tool = GatedTool::new();
    let first = tokio::spawn(one.call(pay(1, Some("k")), tool.clone()));
    settle().await;
    let second = tokio::spawn(other.call(pay(1, Some("k")), tool.clone()));
    settle().await;
    assert_eq!(tool.runs(), 1);
    tool.leave.add_permits(2);
    assert!(!first.await.unwrap().result.from_cache);
    assert!(second.await.unwrap().result.from_cache);
    assert_eq!(tool.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn engines_that_share_a_store_send_one_probe() {
    let clock = Arc::new(RuntimeClock::new());
    let store: Arc<dyn StateStore> = Arc::new(MemoryStore::new(MemoryOptions::new(clock.clone())));
    let mut policy = standard(ToolClass::Mutating);
    (policy.modes.guard, policy.modes.trust) = (EnforcementMode::Off, EnforcementMode::Off);
    let start = || {
        let builder = Engine::builder().clock(clock.clone()).store(store.clone());
        builder.policies(Arc::new(policy.clone())).start()
    };
    let first = start().await;
    for amount in 0..5 {
        first.call(pay(amount, None), async |_: Attempt| broken()).await;
    }
    // The others find it open, and all see at the same moment that the cool-down is over.
    tokio::time::sleep(Duration::from_secs(31)).await;
    let engines = [first, start().await, start().await];
    let tool = GatedTool::new();
    let mut amounts = 10..;
    let mut call = |engine: &Engine| engine.call(pay(amounts.next().unwrap(), None), tool.clone());
    let calls = engines.each_ref().map(|engine| tokio::spawn(call(engine)));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(tool.runs(), 1);
    tool.leave.add_permits(1);
    let mut refused = 0;
    for call in calls {
        refused += u32::from(code(&call.await.unwrap()) == Some(Code::CircuitOpen));
    }
    assert_eq!((tool.runs(), refused), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn tools_of_one_server_share_its_limit() {
    let mut policy = standard(ToolClass::Mutating);
    policy.dependency_limits.concurrency = std::num::NonZeroU32::new(1);
    let engine = engine(policy).await;
    let mut other = pay(2, None);
    other.tool_name = steadfast_core::id::ToolName::new("refund").unwrap();
    let tool = GatedTool::new();
    let first = tokio::spawn(engine.call(pay(1, None), tool.clone()));
    settle().await;
    let refused = engine.call(other.clone(), tool.clone()).await;
    assert_eq!(code(&refused), Some(Code::Overloaded));
    assert_eq!(refused.result.error.unwrap().rule.as_deref(), Some("limit.dependency_concurrency"));
    tool.leave.add_permits(2);
    first.await.unwrap();
    assert_eq!(engine.call(other, tool).await.result.status, CallStatus::Success);
}

/// Returns an engine whose store failed while a tool was running: the caller has the result, the store has not.
async fn unsaved(calls: u32) -> (Engine, Arc<FaultyStore>) {
    let clock = Arc::new(RuntimeClock::new());
    let store = Arc::new(FaultyStore::new(MemoryStore::new(MemoryOptions::new(clock.clone()))));
    let policy = standard(ToolClass::Mutating);
    let engine = restarted(&(store.clone() as Arc<dyn StateStore>), &clock, &policy).await;
    let tool = GatedTool::new();
    let call = |number: u32| engine.call(pay(1, Some(&format!("k{number}"))), tool.clone());
    let callers: Vec<_> = (1..=calls).map(|number| tokio::spawn(call(number))).collect();
    settle().await;
    assert_eq!(tool.runs(), calls);
    store.becomes(FaultMode::Down);
    tool.leave.add_permits(calls as usize);
    for caller in callers {
        let called = caller.await.unwrap();
        assert_eq!((called.result.status, called.result.recorded), (CallStatus::Success, Some(false)));
    }
    (engine, store)
}

/// A regression: a result that could not be saved once waited for its next retry, up to half a minute, although the
/// store was back. By then a timed lease is over, and callers got an unknown outcome that was in fact known.
#[tokio::test(start_paused = true)]
async fn a_result_that_was_kept_is_saved_as_soon_as_the_store_is_back() {
    let (engine, store) = unsaved(1).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    let before = tokio::time::Instant::now();
    store.becomes(FaultMode::Up);
    settle().await;
    let again = engine.call(pay(1, Some("k1")), GatedTool::new()).await;
    assert!(again.result.from_cache, "{again:?}");
    assert_eq!(before.elapsed(), Duration::ZERO, "nothing was waited for");
}

/// A regression: a save that was being retried at a shutdown was once missed. The shutdown neither waited for it nor
/// reported it as lost.
#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_a_save_in_flight_and_reports_its_loss() {
    for (healed, lost) in [(true, 0), (false, 1)] {
        let (engine, store) = unsaved(1).await;
        store.becomes(FaultMode::Silent);
        tokio::time::sleep(Duration::from_secs(100)).await;
        let shutdown = tokio::spawn(async move { engine.shutdown(Duration::from_secs(1)).await });
        settle().await;
        if healed {
            store.becomes(FaultMode::Up);
        }
        assert_eq!(shutdown.await.unwrap(), ShutdownReport { aborted: 0, lost });
    }
}

/// A regression: the background task had taken the marks, and a shutdown that found none left did not wait for it. If
/// the process ended then, an open breaker was closed after the restart.
#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_a_breaker_that_is_being_written() {
    let clock = Arc::new(RuntimeClock::new());
    let store = Arc::new(FaultyStore::new(MemoryStore::new(MemoryOptions::new(clock.clone()))));
    let mut policy = standard(ToolClass::Unknown);
    policy.retry.attempts = 1.try_into().unwrap();
    (policy.modes.guard, policy.modes.trust) = (EnforcementMode::Off, EnforcementMode::Off);
    let engine = restarted(&(store.clone() as Arc<dyn StateStore>), &clock, &policy).await;
    store.becomes(FaultMode::HoldsDocuments);
    for amount in 0..5 {
        engine.call(pay(amount, None), flaky(1)).await;
    }
    // Longer than changes are collected: the store has the document, but has not accepted it yet.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let shutdown = tokio::spawn(async move { engine.shutdown(Duration::ZERO).await });
    settle().await;
    assert!(!shutdown.is_finished(), "a process would end now, and the document with it");
    store.becomes(FaultMode::Up);
    assert_eq!(shutdown.await.unwrap(), ShutdownReport { aborted: 0, lost: 0 });
    assert_eq!(store.documents(DocumentKind::Breaker).await.unwrap().len(), 1);
}

/// A server that syncs each write to disk and to a replica is slow, and after an outage there is much to save. With one
/// save after the other, a shutdown once gave up on hundreds of results.
#[tokio::test(start_paused = true)]
async fn a_shutdown_saves_many_results_that_were_kept_also_where_each_save_takes_its_time() {
    let (engine, store) = unsaved(200).await;
    store.becomes(FaultMode::Slow);
    assert_eq!(engine.shutdown(Duration::from_secs(1)).await, ShutdownReport { aborted: 0, lost: 0 });
}

/// The caller disconnects while its call is being claimed: nothing was sent, and nothing is sent later.
#[tokio::test(start_paused = true)]
async fn a_call_whose_caller_goes_while_it_claims_is_not_made() {
    for cancels in [false, true] {
        let clock = Arc::new(RuntimeClock::new());
        let store = Arc::new(FaultyStore::new(MemoryStore::new(MemoryOptions::new(clock.clone()))));
        let policies = Arc::new(standard(ToolClass::Mutating));
        let engine = Engine::builder().clock(clock).store(store.clone()).policies(policies).start().await;
        let runs = Arc::new(AtomicU32::new(0));
        store.becomes(FaultMode::Slow);
        let calling = {
            let runs = runs.clone();
            engine.call(pay(1, Some("k")), move |_: Attempt| {
                runs.fetch_add(1, Ordering::SeqCst);
                async { ok() }
            })
        };
        let canceller = calling.canceller();
        let call = tokio::spawn(calling);
        tokio::time::sleep(Duration::from_millis(50)).await;
        if cancels {
            canceller.cancel();
        } else {
            call.abort();
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(runs.load(Ordering::SeqCst), 0, "cancels: {cancels}");
        store.becomes(FaultMode::Up);
        let again = engine.call(pay(1, Some("k")), async |_: Attempt| ok()).await;
        assert_eq!(code(&again), None, "it is free again");
    }
}

/// A regression: a listing of failures that was dropped while the store was slow once took the failures with it.
#[tokio::test(start_paused = true)]
async fn a_dropped_listing_of_failures_loses_none_of_them() {
    let clock = Arc::new(RuntimeClock::new());
    let store = Arc::new(FaultyStore::new(MemoryStore::new(MemoryOptions::new(clock.clone()))));
    let mut policy = standard(ToolClass::Unknown);
    policy.retry.attempts = 1.try_into().unwrap();
    let engine = restarted(&(store.clone() as Arc<dyn StateStore>), &clock, &policy).await;
    settle().await;
    store.becomes(FaultMode::Holds(Journal::Failures));
    engine.call(pay(1, None), async |_: Attempt| broken()).await;
    let admin = engine.admin();
    let all = FailureQuery::newest(10);
    let dropped = tokio::time::timeout(Duration::ZERO, admin.failures(&all)).await;
    assert!(dropped.is_err(), "the store holds the write");
    store.becomes(FaultMode::Up);
    settle().await;
    assert_eq!(admin.failures(&all).await.unwrap().found.len(), 1);
}

/// A regression: a start that was cancelled while it loaded once left the task that listens to the store behind.
#[tokio::test(start_paused = true)]
async fn a_cancelled_start_leaves_nothing_behind() {
    let clock = Arc::new(RuntimeClock::new());
    let store = Arc::new(FaultyStore::new(MemoryStore::new(MemoryOptions::new(clock.clone()))));
    store.becomes(FaultMode::Silent);
    let starting = Engine::builder().clock(clock).store(store.clone()).start();
    assert!(tokio::time::timeout(Duration::from_millis(1), starting).await.is_err(), "it loads");
    settle().await;
    assert_eq!(Arc::strong_count(&store), 1, "the store has no other user");
}
