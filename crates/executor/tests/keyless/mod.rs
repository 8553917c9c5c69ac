//! Calls without an idempotency key, as a surface such as the gateway makes them: equal arguments are not equal intent,
//! and a response is replayed until it has arrived.

use steadfast_core::call::{CallId, EqualCallPolicy};
use steadfast_core::id::ToolCallId;
use steadfast_core::key::DedupeMode;

use super::*;

/// Returns an engine whose deduplication can be turned off and on.
async fn switched() -> (Engine, impl Fn(EnforcementMode)) {
    let mode = Arc::new(parking_lot::Mutex::new(EnforcementMode::Enforce));
    let now = mode.clone();
    let policies = move |_: &CallEnvelope| {
        let mut policy = standard(ToolClass::Mutating);
        policy.modes.dedupe = *now.lock();
        Arc::new(policy)
    };
    let clock = Arc::new(RuntimeClock::new());
    let engine = Engine::builder().clock(clock).policies(policies).start().await;
    (engine, move |new_mode| *mode.lock() = new_mode)
}

/// Returns options that join equal calls, with the client's id of the dispatch if it has one.
fn joined(call_id: Option<&str>) -> CallOptions {
    let call_id = call_id.map(|id| CallId::Unique(ToolCallId::new(id).unwrap()));
    CallOptions { equal_calls: EqualCallPolicy::Joined, call_id, ..CallOptions::default() }
}

/// Returns a tool that pays, and its number of runs.
fn counted() -> (Arc<AtomicU32>, impl ToolHandler + Clone) {
    let runs = Arc::new(AtomicU32::new(0));
    let counts = runs.clone();
    let tool = move |_: Attempt| {
        counts.fetch_add(1, Ordering::SeqCst);
        async { ok() }
    };
    (runs, tool)
}

/// Longer than any double dispatch.
const A_WHILE: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn equal_calls_join_one_in_flight() {
    let engine = engine(standard(ToolClass::Mutating)).await;
    let tool = GatedTool::new();
    let call = |amount, id| tokio::spawn(engine.call_with(pay(amount, None), tool.clone(), joined(id)));
    let equal = [call(1, None), call(1, None), call(1, Some("a")), call(1, Some("b"))];
    settle().await;
    assert_eq!(tool.runs(), 1);
    let other = call(2, None);
    settle().await;
    assert_eq!(tool.runs(), 2, "other arguments are another call");
    tool.leave.add_permits(2);
    let mut replayed = 0;
    for call in equal {
        let called = call.await.unwrap();
        assert_eq!(called.result.status, CallStatus::Success);
        replayed += u32::from(called.result.from_cache);
    }
    assert!(!other.await.unwrap().result.from_cache);
    assert_eq!((tool.runs(), replayed), (2, 3), "who waited takes the answer, and it says so");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_did_not_arrive_is_given_again_and_one_that_did_is_history() {
    let engine = engine(standard(ToolClass::Mutating)).await;
    let (runs, tool) = counted();
    let call = || engine.call_with(pay(1, None), tool.clone(), joined(None));
    let mut called = call().await;
    for _ in 0..3 {
        tokio::time::sleep(A_WHILE).await;
        called = call().await;
        assert!(called.result.from_cache, "it broke on the wire again, for all that we know");
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    engine.mark_delivered(called.delivery.unwrap());
    let new = call().await;
    assert!(!new.result.from_cache, "this process knows at once");
    engine.mark_delivered(new.delivery.unwrap());
    settle().await;
    tokio::time::sleep(A_WHILE).await;
    assert!(!call().await.result.from_cache, "and so does the store");
    assert_eq!(runs.load(Ordering::SeqCst), 3);
}

/// The marks of deliveries are written one after the other: the next one must not be forgotten with the previous one.
#[tokio::test(start_paused = true)]
async fn a_delivery_that_waits_to_be_written_is_known_until_it_is() {
    let clock = Arc::new(RuntimeClock::new());
    let store = Arc::new(FaultyStore::new(MemoryStore::new(MemoryOptions::new(clock.clone()))));
    let policies = Arc::new(standard(ToolClass::Mutating));
    let engine = Engine::builder().clock(clock).store(store.clone()).policies(policies).start().await;
    let (runs, tool) = counted();
    let call = |amount| engine.call_with(pay(amount, None), tool.clone(), joined(None));
    let answered = [call(1).await, call(2).await];
    store.becomes(FaultMode::Slow);
    for called in answered {
        engine.mark_delivered(called.delivery.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(150)).await;
    store.becomes(FaultMode::Up);
    assert!(!call(2).await.result.from_cache, "its mark is being written");
    assert_eq!(runs.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_is_replayed_until_delivered_before_an_equal_call_runs_again() {
    let engine = engine(standard(ToolClass::Mutating)).await;
    let runs = Arc::new(AtomicU32::new(0));
    let counts = runs.clone();
    let tool = move |_: Attempt| {
        counts.fetch_add(1, Ordering::SeqCst);
        async { reset() }
    };
    let call = || engine.call_with(pay(1, None), tool.clone(), joined(None));
    let mut called = call().await;
    for _ in 0..2 {
        assert_eq!(code(&called), Some(Code::OutcomeUnknown));
        tokio::time::sleep(Duration::from_secs(60)).await;
        called = call().await;
    }
    engine.mark_delivered(called.delivery.unwrap());
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!(code(&call().await), Some(Code::OutcomeUnknown), "a parallel caller may not have heard it");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    tokio::time::sleep(A_WHILE).await;
    call().await;
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_resend_under_the_same_call_id_finds_its_dispatch_after_other_runs() {
    let engine = engine(standard(ToolClass::Mutating)).await;
    let (runs, tool) = counted();
    let call = async |id| {
        let called = engine.call_with(pay(1, None), tool.clone(), joined(id)).await;
        engine.mark_delivered(called.delivery.unwrap());
        tokio::time::sleep(A_WHILE).await;
        called.result.from_cache
    };
    assert!(!call(Some("a")).await);
    assert!(!call(Some("b")).await, "another dispatch is a new intent");
    assert!(!call(None).await);
    assert!(call(Some("a")).await && call(Some("b")).await, "a late duplicate");
    assert_eq!(runs.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn by_default_only_the_call_id_counts() {
    let engine = engine(standard(ToolClass::Mutating)).await;
    let (runs, tool) = counted();
    let apart = |id| CallOptions { equal_calls: EqualCallPolicy::Separate, ..joined(id) };
    for (id, replayed) in [(None, false), (None, false), (Some("a"), false), (None, false), (Some("a"), true)]
    {
        let called = engine.call_with(pay(1, None), tool.clone(), apart(id)).await;
        assert_eq!(called.result.from_cache, replayed, "{id:?}");
    }
    assert_eq!(runs.load(Ordering::SeqCst), 4);
}

/// A regression: results with computed keys were once replayed after deduplication had been off, although calls had run
/// meanwhile.
#[tokio::test(start_paused = true)]
async fn dedupe_that_is_turned_on_again_gives_no_answers_of_computed_keys_from_before() {
    let (engine, dedupe) = switched().await;
    let mut enforced = pay(1, None);
    enforced.transport.dedupe_mode = Some(DedupeMode::Enforced);
    let calls = [
        (enforced, joined(None)),
        (pay(2, None), joined(None)),
        (pay(3, None), joined(Some("a"))),
        (pay(4, Some("k")), joined(None)),
    ];
    let replayed = async || {
        tokio::time::sleep(A_WHILE).await;
        let mut replayed = Vec::new();
        for (envelope, options) in &calls {
            let called = engine.call_with(envelope.clone(), flaky(0), options.clone()).await;
            assert_eq!(called.result.status, CallStatus::Success);
            replayed.push(called.result.from_cache);
        }
        replayed
    };
    assert_eq!(replayed().await, [false; 4]);
    assert_eq!(replayed().await, [true; 4]);
    dedupe(EnforcementMode::Off);
    assert_eq!(replayed().await, [false; 4]);
    dedupe(EnforcementMode::Enforce);
    assert_eq!(replayed().await, [false, false, true, true], "a key or an id that was given still counts");
    assert_eq!(replayed().await, [true; 4], "what was recorded since counts");
}

#[tokio::test(start_paused = true)]
async fn calls_open_when_dedupe_was_turned_off_are_still_open_when_it_is_on_again() {
    let (engine, dedupe) = switched().await;
    let call = || engine.call_with(pay(1, None), |_: Attempt| async { reset() }, joined(None));
    assert_eq!(code(&call().await), Some(Code::OutcomeUnknown));
    let tool = GatedTool::new();
    let gated = || tokio::spawn(engine.call_with(pay(2, None), tool.clone(), joined(None)));
    let first = gated();
    settle().await;
    dedupe(EnforcementMode::Off);
    tokio::time::sleep(A_WHILE).await;
    engine.call(pay(3, None), flaky(0)).await;
    dedupe(EnforcementMode::Enforce);
    tokio::time::sleep(A_WHILE).await;
    let response = engine.call_with(pay(1, None), flaky(0), joined(None)).await;
    assert_eq!(code(&response), Some(Code::OutcomeUnknown));
    let second = gated();
    settle().await;
    assert_eq!(tool.runs(), 1);
    tool.leave.add_permits(1);
    assert!(!first.await.unwrap().result.from_cache && second.await.unwrap().result.from_cache);
}
