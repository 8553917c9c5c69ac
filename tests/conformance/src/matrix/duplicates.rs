//! TR-1 to TR-4, and SF-1 within one process: invalid input and duplicates.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use steadfast_core::call::CallNotice;
use steadfast_core::code::{CallStatus, Code};
use steadfast_core::envelope::CacheMatch;
use steadfast_core::policy::{KeyConflictPolicy, ToolClass};

use crate::calls::{
    CountingTool, SUCCESS, call, envelope, keyed, paid, read, status, text_result, wait_for_notice, within,
};
use crate::world::{ConformanceWorld, plain};

pub(super) async fn tr_1_a_malformed_envelope_runs_nothing_and_leaves_nothing_behind(
    world: ConformanceWorld,
) {
    let engine = world.engine(&plain(ToolClass::Mutating)).await;
    let tool = CountingTool::paying();
    let nameless = envelope(json!({ "toolName": null, "payload": { "idempotencyKey": "k" } }));
    let foreign = envelope(json!({ "contractVersion": "9.9", "payload": { "idempotencyKey": "k" } }));
    for (malformed, named) in [(nameless, "toolName"), (foreign, "contractVersion")] {
        let error = match read(&malformed) {
            Ok(envelope) => panic!("it passed: {:?}", engine.call(envelope, tool.clone()).await),
            Err(error) => error,
        };
        assert!(error.terminal && !error.retriable && error.message.contains(named), "{error:?}");
    }
    assert_eq!((tool.runs(), world.records().await), (0, Vec::new()));
    // A valid call with the same key still executes.
    let called = engine.call(keyed("k"), tool.clone()).await;
    assert_eq!((status(&called), called.result.from_cache), (SUCCESS, false));
    assert_eq!((tool.runs(), world.records().await.len()), (1, 1));
}

/// Returns a call with this key and this deduplication mode.
fn requesting(mode: &str) -> steadfast_core::envelope::CallEnvelope {
    call(json!({ "payload": { "idempotencyKey": "k" }, "transport": { "dedupeMode": mode } }))
}

pub(super) async fn tr_2_a_duplicate_in_flight_waits_and_runs_nothing(world: ConformanceWorld) {
    let engine = world.engine(&plain(ToolClass::Mutating)).await;
    let (tool, mut events) = (CountingTool::gated(), engine.events());
    let first = tokio::spawn(engine.call(requesting("enabled"), tool.clone()));
    tool.wait_for_runs(1).await;
    let second = tokio::spawn(engine.call(requesting("enabled"), tool.clone()));
    wait_for_notice(&mut events, |notice| *notice == CallNotice::Following).await;
    // A call that does not want to wait learns that it is in flight.
    let busy = within("it does not wait", engine.call(requesting("bestEffort"), tool.clone())).await;
    assert_eq!(status(&busy), (CallStatus::RetriableError, Some(Code::InFlight)));
    tool.finish_runs(1);
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!((status(&first), status(&second)), (SUCCESS, SUCCESS));
    assert!(!first.result.from_cache && second.result.from_cache);
    assert_eq!(second.result.cache.unwrap().matched_on, CacheMatch::Inflight);
    assert_eq!((second.result.output, tool.runs()), (first.result.output, 1));

    // Where deduplication is disabled, duplicates do not block each other.
    let tool = CountingTool::gated();
    let concurrent_calls = [(); 2].map(|()| tokio::spawn(engine.call(requesting("disabled"), tool.clone())));
    tool.wait_for_runs(2).await;
    tool.finish_runs(2);
    for call in concurrent_calls {
        let called = call.await.unwrap();
        assert_eq!((status(&called), called.result.from_cache), (SUCCESS, false));
    }
}

/// Like in two processes: each has an engine and a handle to the store of its own.
pub(super) async fn tr_2_a_duplicate_in_another_engine_waits_and_runs_nothing(world: ConformanceWorld) {
    let policy = plain(ToolClass::Mutating);
    let (here, there) = (world.engine(&policy).await, world.engine(&policy).await);
    let (tool, mut events) = (CountingTool::gated(), there.events());
    let first = tokio::spawn(here.call(requesting("enabled"), tool.clone()));
    tool.wait_for_runs(1).await;
    let second = tokio::spawn(there.call(requesting("enabled"), tool.clone()));
    wait_for_notice(&mut events, |notice| *notice == CallNotice::Following).await;
    tool.finish_runs(1);
    let (first, second) = (first.await.unwrap(), within("it is woken", second).await.unwrap());
    assert_eq!((status(&first), status(&second)), (SUCCESS, SUCCESS));
    assert!(!first.result.from_cache && second.result.from_cache);
    assert_eq!((second.result.output, tool.runs()), (first.result.output, 1));
}

pub(super) async fn tr_3_a_duplicate_after_completion_gets_the_recorded_answer(world: ConformanceWorld) {
    let policy = plain(ToolClass::Mutating);
    let engine = world.engine(&policy).await;
    let tool = CountingTool::new(|run| text_result(&format!("paid by run {run}")));
    let first = engine.call(keyed("k"), tool.clone()).await;
    let digest = world.records().await[0].digest;
    assert_eq!((status(&first), first.result.recorded), (SUCCESS, Some(true)));
    let restarted = world.engine(&policy).await;
    for engine in [&engine, &restarted] {
        let second = engine.call(keyed("k"), tool.clone()).await;
        assert_eq!((status(&second), second.result.from_cache), (SUCCESS, true));
        assert_eq!(second.result.cache.unwrap().matched_on, CacheMatch::Completed);
        assert_eq!((&second.result.output, second.result.attempts), (&first.result.output, 0));
    }
    assert_eq!(tool.runs(), 1);
    // The digest of the payload is unchanged, and the same call in another session is another call.
    let records = world.records().await;
    assert_eq!((records.len(), records[0].digest), (1, digest));
    let elsewhere = json!({ "target": { "sessionKey": "s-2" }, "payload": { "idempotencyKey": "k" } });
    let other = engine.call(call(elsewhere), tool.clone()).await;
    assert_eq!((other.result.from_cache, tool.runs()), (false, 2));
    assert!(world.records().await.iter().all(|record| record.digest == digest), "the same parameters");
}

pub(super) async fn tr_4_the_same_key_with_other_parameters_is_a_conflict_or_another_call(
    world: ConformanceWorld,
) {
    let with =
        |key: &str, to: Value| call(json!({ "payload": { "idempotencyKey": key, "params": { "to": to } } }));
    let mut policy = plain(ToolClass::Mutating);
    let engine = world.engine(&policy).await;
    let mut events = engine.events();
    let tool = CountingTool::gated();
    let first = tokio::spawn(engine.call(with("k", json!("bob")), tool.clone()));
    tool.wait_for_runs(1).await;
    // In flight and done, for every other shape of the parameter.
    for _ in 0..2 {
        for other in [json!("eve"), json!("bob "), json!(["bob"]), json!(true)] {
            let conflict = within("no wait", engine.call(with("k", other.clone()), tool.clone())).await;
            assert_eq!(status(&conflict), (CallStatus::Error, Some(Code::IdempotencyConflict)), "{other}");
            assert!(conflict.result.error.unwrap().terminal && conflict.result.output.is_none());
            wait_for_notice(&mut events, |notice| *notice == CallNotice::KeyConflict).await;
        }
        tool.finish_runs(1);
        while engine.in_flight_calls() > 0 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!((status(&first.await.unwrap()), tool.runs()), (SUCCESS, 1));
    // No unexpected collision: the first call still has its own answer, and a re-ordered object is the same call.
    let again = call(json!({ "payload": { "idempotencyKey": "k", "params": { "amount": 5, "to": "bob" } } }));
    let again = engine.call(again, tool.clone()).await;
    assert_eq!((again.result.from_cache, again.result.output), (true, Some(paid().unwrap())));

    policy.dedupe.conflict = KeyConflictPolicy::Separate;
    let separate = world.engine(&policy).await;
    for (to, replayed) in [("ann", false), ("eve", false), ("ann", true), ("eve", true)] {
        let named = to.to_owned();
        let called =
            separate.call(with("s", json!(to)), CountingTool::new(move |_| text_result(&named))).await;
        assert_eq!((status(&called), called.result.from_cache), (SUCCESS, replayed), "{to}");
        assert_eq!(called.result.output, Some(text_result(to).unwrap()));
    }
}

/// Half of them in another engine, with a handle of its own to the store.
pub(super) async fn sf_1_sixty_four_callers_of_one_key_get_one_answer(world: ConformanceWorld) {
    for class in [ToolClass::Mutating, ToolClass::Idempotent, ToolClass::Unknown] {
        let policy = plain(class);
        let engines = [world.engine(&policy).await, world.engine(&policy).await];
        let tool = CountingTool::new(|run| text_result(&format!("{run}")));
        let callers: Vec<_> = (0..64)
            .map(|number| {
                let envelope = keyed(&format!("of 64, {class:?}"));
                tokio::spawn(engines[number % 2].call(envelope, tool.clone()))
            })
            .collect();
        let (mut answers, mut fresh) = (BTreeSet::new(), 0);
        for caller in callers {
            let called = within("every caller is answered", caller).await.unwrap();
            assert_eq!(status(&called), SUCCESS, "{called:?}");
            fresh += u32::from(!called.result.from_cache);
            answers.insert(called.result.output.unwrap().content.as_str().to_owned());
        }
        assert_eq!((tool.runs(), fresh, answers.len()), (1, 1, 1), "{class:?}");
    }
}
