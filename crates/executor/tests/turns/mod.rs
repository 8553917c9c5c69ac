//! Turns in the engine: several calls that depend on each other.

mod edges;
pub(crate) mod scripted;

use parking_lot::Mutex;
use steadfast_core::id::{Namespace, ToolName, ToolRef};
use steadfast_executor::{
    AttemptError, BreakerKey, BreakerOverride, ResolvedTool, ToolRegistry, TurnOptions, TurnRejection,
    TurnResponse, TurnTraceView,
};
use steadfast_turn::{TurnCallOutcome, TurnEndReason, TurnStatus};

use super::*;
use scripted::*;

/// Returns the profile of the error handling requirements (tested in the crate `steadfast`), with enough time for all
/// retries.
fn measured(class: ToolClass) -> CallPolicy {
    let mut policy = PolicyProfile::Measured.policy(class);
    policy.retry.total = None;
    policy
}

// ---- submitted again ----

async fn on(store: Arc<dyn StateStore>, policy: CallPolicy) -> Engine {
    let clock = Arc::new(RuntimeClock::new());
    Engine::builder().clock(clock).store(store).policies(Arc::new(policy)).start().await
}

fn memory() -> Arc<dyn StateStore> {
    Arc::new(MemoryStore::new(MemoryOptions::new(Arc::new(RuntimeClock::new()))))
}

#[tokio::test(start_paused = true)]
async fn a_resubmitted_turn_runs_only_unfinished_calls() {
    for class in [ToolClass::ReadOnly, ToolClass::Mutating] {
        let store = memory();
        let mut policy = measured(class);
        policy.time.attempt = Duration::from_secs(3600);
        policy.time.total = Duration::from_secs(7200);
        let tools = ScriptedTools::new([
            ("flight_search", replies(r#"{"best":1}"#)),
            ("hotel_search", refuses()),
            (
                "activity_search",
                script(async |number| if number == 1 { std::future::pending().await } else { ok() }),
            ),
        ]);
        let text = SEARCHES.replacen('{', r#"{"turnId":"trip","#, 1);
        let first = {
            let engine = on(store.clone(), policy.clone()).await;
            let first = turn(&engine, &tools, &text).await;
            engine.shutdown(Duration::ZERO).await;
            first
        };
        // Another engine, as after a crash: it has only the store.
        let engine = on(store, policy).await;
        let second = turn(&engine, &tools, &text).await;
        assert_eq!((tools.runs("flight_search"), tools.runs("hotel_search")), (1, 1), "{class:?}");
        assert_eq!(second.result.calls[0].output, first.result.calls[0].output);
        assert_eq!(second.result.calls[1].code, first.result.calls[1].code);
        // A call that may have an effect was ended with its process, and its outcome is unknown.
        let third =
            if class == ToolClass::ReadOnly { TurnCallOutcome::Succeeded } else { TurnCallOutcome::Failed };
        assert_eq!(second.result.calls[2].outcome, third);
        assert_sentence(&story(&engine, &second).await, "Finished earlier, not run again: flight_search");
    }
}

#[tokio::test(start_paused = true)]
async fn an_alternative_that_did_the_job_is_not_followed_by_the_tool_that_is_well_again() {
    let store = memory();
    let engine = on(store.clone(), measured(ToolClass::Mutating)).await;
    let tools = ScriptedTools::new([("flight_search", replies("1")), ("flight_search_backup", replies("2"))]);
    let name = |name: &str| ToolName::new(name).unwrap();
    let namespace = Namespace::new("t").unwrap();
    let key = BreakerKey::Tool(ToolRef { namespace, tool: name("flight_search") });
    engine.admin().update_breaker(None, &key, BreakerOverride::Open { until: None }, &by()).await;
    let first = turn(&engine, &tools, WITH_BACKUP).await;
    assert_eq!(first.result.calls[0].output.as_ref().unwrap().as_str(), "2");
    engine.admin().update_breaker(None, &key, BreakerOverride::Reset, &by()).await;
    let engine = on(store, measured(ToolClass::Mutating)).await;
    let second = turn(&engine, &tools, WITH_BACKUP).await;
    assert_eq!((tools.runs("flight_search"), tools.runs("flight_search_backup")), (0, 1));
    assert_eq!(second.result.calls[0].output, first.result.calls[0].output);
}

#[tokio::test(start_paused = true)]
async fn of_two_concurrent_submissions_one_runs_and_the_other_is_refused() {
    let engine = engine(measured(ToolClass::ReadOnly)).await;
    let tools = ScriptedTools::new([("flight_search", hangs()), ("flight_search_backup", replies("1"))]);
    let running = {
        let (engine, tools) = (engine.clone(), tools.clone());
        tokio::spawn(async move { turn(&engine, &tools, WITH_BACKUP).await })
    };
    settle().await;
    let refused = engine.turn(plan(WITH_BACKUP), Arc::new(tools.clone()), options()).await.unwrap_err();
    assert!(matches!(refused, TurnRejection::InFlight(_)), "{refused}");
    assert_eq!(tools.runs("flight_search"), 1);
    // The caller is gone, and the turn is released.
    running.abort();
    settle().await;
    let taken = engine.turn(plan(WITH_BACKUP), Arc::new(tools.clone()), options());
    assert!(tokio::time::timeout(Duration::from_secs(900), taken).await.unwrap().is_ok());
}

/// With a lease that needs renewal, the turn would be free while the store is unavailable, and could run twice at once.
#[tokio::test(start_paused = true)]
async fn a_running_turn_is_not_taken_over_after_a_store_outage() {
    let store =
        Arc::new(FaultyStore::new(MemoryStore::new(MemoryOptions::new(Arc::new(RuntimeClock::new())))));
    let engine = on(store.clone(), measured(ToolClass::Mutating)).await;
    let tools = ScriptedTools::new([("flight_search", hangs()), ("flight_search_backup", replies("1"))]);
    let running = {
        let (engine, tools) = (engine.clone(), tools.clone());
        tokio::spawn(async move { turn(&engine, &tools, WITH_BACKUP).await })
    };
    settle().await;
    store.becomes(FaultMode::Down);
    tokio::time::sleep(Duration::from_secs(120)).await;
    store.becomes(FaultMode::Up);
    let refused = engine.turn(plan(WITH_BACKUP), Arc::new(tools.clone()), options()).await.unwrap_err();
    assert!(matches!(refused, TurnRejection::InFlight(_)), "{refused}");
    running.abort();
}

/// The store granted the turn, but its response was lost. The turn does not run, and others would be kept from it until
/// its deadline.
#[tokio::test(start_paused = true)]
async fn a_turn_with_a_lost_store_response_is_released() {
    let store =
        Arc::new(FaultyStore::new(MemoryStore::new(MemoryOptions::new(Arc::new(RuntimeClock::new())))));
    let engine = on(store.clone(), measured(ToolClass::Mutating)).await;
    let tools = ScriptedTools::new([("flight_search", replies("1"))]);
    store.becomes(FaultMode::Slow);
    let submitting = {
        let (engine, tools) = (engine.clone(), Arc::new(tools.clone()));
        tokio::spawn(async move { engine.turn(plan(WITH_BACKUP), tools, options()).await })
    };
    // It is read, and then written.
    tokio::time::sleep(Duration::from_millis(150)).await;
    store.becomes(FaultMode::Unheard);
    tokio::time::sleep(Duration::from_millis(10)).await;
    submitting.abort();
    tokio::time::sleep(Duration::from_secs(2)).await;
    store.becomes(FaultMode::Up);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(turn(&engine, &tools, WITH_BACKUP).await.result.status, TurnStatus::Completed);
}

/// A regression: the breaker refused the first tool, the second one failed, and the first one recovered. The document
/// still had the choice of the second one, and the next submission continued from there.
#[tokio::test(start_paused = true)]
async fn a_turn_that_went_back_to_the_tool_of_its_plan_does_so_again() {
    let store = memory();
    let engine = on(store.clone(), measured(ToolClass::Mutating)).await;
    let steered = engine.clone();
    let tools = ScriptedTools::new([
        ("flight_search", replies("1")),
        (
            "flight_search_backup",
            script(move |_| {
                let engine = steered.clone();
                async move {
                    engine.admin().update_breaker(None, &first_tool(), BreakerOverride::Reset, &by()).await;
                    invalid()
                }
            }),
        ),
        ("third", replies("3")),
    ]);
    let text = r#"{"turnId":"trip","calls":[{"id":"f","tool":"t/flight_search",
        "alternatives":["t/flight_search_backup","t/third"]}]}"#;
    engine.admin().update_breaker(None, &first_tool(), BreakerOverride::Open { until: None }, &by()).await;
    let first = turn(&engine, &tools, text).await;
    assert_eq!(first.result.calls[0].output.as_ref().unwrap().as_str(), "1");
    let second = turn(&on(store, measured(ToolClass::Mutating)).await, &tools, text).await;
    assert_eq!(second.result.calls[0].output, first.result.calls[0].output);
    assert_eq!(["flight_search", "flight_search_backup", "third"].map(|tool| tools.runs(tool)), [1, 1, 0]);
}

/// A regression: at the gateway, a call without progress gets the response `stuck_call` instead of `outcome_unknown`
/// while it may still take effect. Its turn treated that as a call that was never sent.
#[tokio::test(start_paused = true)]
async fn a_call_that_may_still_take_effect_is_not_replaced() {
    let mut policy = measured(ToolClass::Mutating).for_gateway();
    policy.time.attempt = Duration::from_secs(5);
    let engine = engine(policy).await;
    let tools = ScriptedTools::new([
        ("flight_search", script(async |_| std::future::pending().await)),
        ("flight_search_backup", replies("2")),
    ]);
    let turned = turn(&engine, &tools, WITH_BACKUP).await;
    assert_eq!(turned.result.calls[0].code, Some(Code::StuckCall));
    assert_eq!((tools.runs("flight_search"), tools.runs("flight_search_backup")), (1, 0));
    assert!(turned.result.escalated, "nobody knows what it did");
}

/// A tool without a class is called again although it is unknown if it ran. It may still have run when a later
/// submission of the turn finds only its failure.
#[tokio::test(start_paused = true)]
async fn a_call_that_may_have_run_is_not_replaced_when_the_turn_is_resubmitted() {
    let store = memory();
    let policy = measured(ToolClass::Unknown);
    let tools = ScriptedTools::new([
        ("flight_search", script(async |_| reset())),
        ("flight_search_backup", replies("2")),
    ]);
    for _ in 0..2 {
        let turned = turn(&on(store.clone(), policy.clone()).await, &tools, WITH_BACKUP).await;
        assert_eq!(turned.result.calls[0].outcome, TurnCallOutcome::Failed);
        assert_eq!(tools.runs("flight_search_backup"), 0);
    }
}

/// The first submission ran the call. In the second one the store fails. That must not lead to an alternative.
#[tokio::test(start_paused = true)]
async fn a_call_with_an_unreadable_record_is_not_replaced() {
    for breaker in [BreakerOverride::Reset, BreakerOverride::Open { until: None }] {
        let (engine, store) = on_faulty().await;
        let tools =
            ScriptedTools::new([("flight_search", replies("1")), ("flight_search_backup", replies("2"))]);
        turn(&engine, &tools, WITH_BACKUP).await;
        engine.admin().update_breaker(None, &first_tool(), breaker, &by()).await;
        let turned = turn_that_loses_its_store(&engine, &store, &tools).await;
        assert_eq!(turned.result.calls[0].code, Some(Code::StoreUnavailable));
        assert_eq!(tools.runs("flight_search_backup"), 0);
    }
}

/// The end of the call and the deadline come at the same moment. A regression: if the breaker event came first, the
/// turn was over before it handled the end of the call, and its caller never got the result.
#[tokio::test(start_paused = true)]
async fn a_call_that_ends_exactly_at_the_deadline_counts() {
    let engine = engine(measured(ToolClass::Mutating)).await;
    let slow = script(async |_| {
        tokio::time::sleep(Duration::from_secs(10)).await;
        Ok(tool_output("1"))
    });
    let tools = ScriptedTools::new([("slow", slow), ("next", replies("2"))]);
    let text = r#"{"deadlineMs":10000,"calls":[{"id":"s","tool":"t/slow"},{"id":"n","tool":"t/next","dependsOn":["s"]}]}"#;
    let turned = tokio::time::timeout(Duration::from_secs(11), turn(&engine, &tools, text)).await.unwrap();
    assert_eq!(outcomes(&turned), [("s", TurnCallOutcome::Succeeded), ("n", TurnCallOutcome::Skipped)]);
    assert_eq!((turned.result.ended_by, tools.runs("next")), (TurnEndReason::Deadline, 0));
}

/// Neither the request to run a turn, nor a choice to store, nor the release may block a turn forever.
#[tokio::test(start_paused = true)]
async fn a_turn_ends_by_its_deadline_although_the_store_does_not_answer() {
    let (engine, store) = on_faulty().await;
    let tools = ScriptedTools::new([("flight_search", replies("1")), ("flight_search_backup", replies("2"))]);
    let text = r#"{"turnId":"trip","deadlineMs":10000,"calls":[{"id":"f","tool":"t/flight_search",
        "alternatives":["t/flight_search_backup"]},{"id":"g","tool":"t/flight_search"}]}"#;
    let before = tokio::time::Instant::now();
    store.becomes(FaultMode::Silent);
    let refused = engine.turn(plan(text), Arc::new(tools.clone()), options()).await.unwrap_err();
    assert!(matches!(refused, TurnRejection::Store(_)), "{refused}");
    assert_eq!(before.elapsed(), Duration::from_secs(10));

    store.becomes(FaultMode::Slow);
    engine.admin().update_breaker(None, &first_tool(), BreakerOverride::Open { until: None }, &by()).await;
    let submitting = {
        let (engine, tools) = (engine.clone(), tools.clone());
        tokio::spawn(async move { turn(&engine, &tools, text).await })
    };
    let before = tokio::time::Instant::now();
    tokio::time::sleep(Duration::from_millis(150)).await;
    store.becomes(FaultMode::Silent);
    let turned = submitting.await.unwrap();
    assert_eq!(before.elapsed(), Duration::from_secs(12), "its deadline, and the grace for the way back");
    assert_eq!(outcomes(&turned), [("f", TurnCallOutcome::Failed), ("g", TurnCallOutcome::Skipped)]);
    assert!(turned.result.calls[0].message.as_ref().unwrap().starts_with("not sent"));
    assert_eq!(tools.runs("flight_search") + tools.runs("flight_search_backup"), 0);
    assert_eq!(turned.result.ended_by, TurnEndReason::Deadline);
}

/// Background retries end by themselves: with the engine, and at the latest when the turn is free anyway.
#[tokio::test(start_paused = true)]
async fn a_turn_that_cannot_be_released_does_not_keep_the_engine_alive() {
    for (health, engine_lives) in
        [(FaultMode::Down, true), (FaultMode::Down, false), (FaultMode::Silent, true)]
    {
        let (engine, store) = on_faulty().await;
        let others = Arc::strong_count(&store);
        let tools = ScriptedTools::new([("flight_search", replies("1"))]);
        store.becomes(FaultMode::Slow);
        let submitting = {
            let (engine, tools) = (engine.clone(), Arc::new(tools));
            tokio::spawn(async move { engine.turn(plan(WITH_BACKUP), tools, options()).await })
        };
        // It is read, and being taken.
        tokio::time::sleep(Duration::from_millis(150)).await;
        store.becomes(health);
        submitting.abort();
        settle().await;
        assert!(Arc::strong_count(&store) > others, "it is being given back");
        if engine_lives {
            tokio::time::sleep(Duration::from_secs(400)).await;
            assert_eq!(Arc::strong_count(&store), others, "{health:?}");
        } else {
            drop(engine);
            tokio::time::sleep(Duration::from_secs(30)).await;
            assert_eq!(Arc::strong_count(&store), 1, "{health:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_gives_turns_back_that_could_not_be_before() {
    let (engine, store) = on_faulty().await;
    let tools = ScriptedTools::new([("flight_search", hangs()), ("flight_search_backup", replies("1"))]);
    let running = {
        let (engine, tools) = (engine.clone(), Arc::new(tools.clone()));
        tokio::spawn(async move { engine.turn(plan(WITH_BACKUP), tools, options()).await })
    };
    settle().await;
    store.becomes(FaultMode::Down);
    running.abort();
    settle().await;
    store.becomes(FaultMode::Slow);
    engine.shutdown(Duration::ZERO).await;
    store.becomes(FaultMode::Up);
    let next = on(store, measured(ToolClass::Mutating)).await;
    assert!(next.turn(plan(WITH_BACKUP), Arc::new(tools), options()).await.is_ok());
}

/// Runs a turn whose store fails after it was read and while it is being taken.
async fn turn_that_loses_its_store(
    engine: &Engine,
    store: &FaultyStore,
    tools: &ScriptedTools,
) -> TurnResponse {
    store.becomes(FaultMode::Slow);
    let submitting = {
        let (engine, tools) = (engine.clone(), tools.clone());
        tokio::spawn(async move { turn(&engine, &tools, WITH_BACKUP).await })
    };
    tokio::time::sleep(Duration::from_millis(150)).await;
    store.becomes(FaultMode::Down);
    submitting.await.unwrap()
}

async fn on_faulty() -> (Engine, Arc<FaultyStore>) {
    let store =
        Arc::new(FaultyStore::new(MemoryStore::new(MemoryOptions::new(Arc::new(RuntimeClock::new())))));
    (on(store.clone(), measured(ToolClass::Mutating)).await, store)
}

#[tokio::test(start_paused = true)]
async fn an_input_request_of_a_tool_is_not_an_output_for_its_dependants() {
    let engine = engine(measured(ToolClass::Mutating)).await;
    let tools = ScriptedTools::new([
        ("book", script(async |_| Err(AttemptError::InputRequired(tool_output(r#""which seat?""#))))),
        ("pay", replies("1")),
    ]);
    let text =
        r#"{"calls":[{"id":"b","tool":"t/book"},{"id":"p","tool":"t/pay","params":{"x":{"$from":"b"}}}]}"#;
    let turned = turn(&engine, &tools, text).await;
    assert_eq!(outcomes(&turned), [("b", TurnCallOutcome::Failed), ("p", TurnCallOutcome::Skipped)]);
    assert!(turned.result.calls[0].message.as_ref().unwrap().contains("asks for input"));
    assert_eq!(tools.runs("pay"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_cancelled_ends_at_once() {
    let engine = engine(measured(ToolClass::ReadOnly)).await;
    let tools = ScriptedTools::new([
        ("flight_search", replies("1")),
        ("hotel_search", hangs()),
        ("activity_search", hangs()),
    ]);
    let options = options();
    let withdrawn = options.cancelled.clone();
    let running = {
        let (engine, tools) = (engine.clone(), Arc::new(tools.clone()));
        tokio::spawn(async move { engine.turn(plan(SEARCHES), tools, options).await.unwrap() })
    };
    settle().await;
    withdrawn.cancel();
    let turned = running.await.unwrap();
    assert_eq!(turned.result.ended_by, TurnEndReason::Cancel);
    assert_eq!(outcomes(&turned)[0].1, TurnCallOutcome::Succeeded);
    settle().await;
    assert_eq!(engine.in_flight_calls(), 0, "what ran was told to stop");
}

/// Returns tools of which the first fails permanently, and changes the mode of the store with it.
fn failing_with(store: &Arc<FaultyStore>, health: FaultMode) -> ScriptedTools {
    let store = store.clone();
    let fails = script(move |_| {
        store.becomes(health);
        async { invalid() }
    });
    ScriptedTools::new([("flight_search", fails), ("flight_search_backup", replies("1"))])
}

#[tokio::test(start_paused = true)]
async fn without_a_store_to_keep_a_choice_in_the_call_is_not_sent() {
    let store =
        Arc::new(FaultyStore::new(MemoryStore::new(MemoryOptions::new(Arc::new(RuntimeClock::new())))));
    let engine = on(store.clone(), measured(ToolClass::Mutating)).await;
    let tools = failing_with(&store, FaultMode::Down);
    let turned = turn(&engine, &tools, WITH_BACKUP).await;
    assert_eq!(tools.runs("flight_search_backup"), 0);
    assert_eq!(turned.result.calls[0].code, Some(Code::StoreUnavailable));
}

/// A regression: a reader was told that a turn still runs while its last entries were on their way to the store.
#[tokio::test(start_paused = true)]
async fn an_answered_turn_is_over_in_every_query() {
    let store =
        Arc::new(FaultyStore::new(MemoryStore::new(MemoryOptions::new(Arc::new(RuntimeClock::new())))));
    let engine = on(store.clone(), measured(ToolClass::ReadOnly)).await;
    let tools = ScriptedTools::new([("flight_search", replies("1"))]);
    let turned = turn(&engine, &tools, r#"{"calls":[{"id":"f","tool":"t/flight_search"}]}"#).await;
    store.becomes(FaultMode::Slow);
    // By now the writer has taken the entries, and the store has not accepted them.
    tokio::time::sleep(Duration::from_millis(50)).await;
    store.becomes(FaultMode::Up);
    assert_eq!(story(&engine, &turned).await.turn.status, Some(TurnStatus::Completed));
}

#[tokio::test(start_paused = true)]
async fn sf_6_tool_outputs_are_redacted_in_the_trace() {
    let engine = engine(measured(ToolClass::ReadOnly)).await;
    const SECRET: &str = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
    let tools = ScriptedTools::new([(
        "flight_search",
        script(async |_| {
            let fault = AttemptFault::new(FaultSource::Http { status: 400 }, format!("bad token {SECRET}"));
            Err(fault.into())
        }),
    )]);
    let turned = turn(&engine, &tools, r#"{"calls":[{"id":"f","tool":"t/flight_search"}]}"#).await;
    let text = serde_json::to_string(&story(&engine, &turned).await).unwrap();
    assert!(text.contains("bad token") && !text.contains(SECRET), "{text}");
}

/// A replayed failure was counted when it first occurred.
#[tokio::test(start_paused = true)]
async fn a_resubmitted_turn_continues_after_replayed_failures() {
    let engine = on(memory(), measured(ToolClass::Mutating)).await;
    let tools = ScriptedTools::new([
        ("flight_search", refuses()),
        ("hotel_search", refuses()),
        ("book", script(async |number| if number < 3 { std::future::pending().await } else { ok() })),
    ]);
    let text = r#"{"turnId":"trip","deadlineMs":10000,"calls":[{"id":"f","tool":"t/flight_search"},
        {"id":"h","tool":"t/hotel_search"},{"id":"b","tool":"t/book"},{"id":"n","tool":"t/new","dependsOn":["b"]}]}"#;
    for _ in 0..3 {
        turn(&engine, &tools, text).await;
    }
    let added = text.replace(r#"{"id":"n""#, r#"{"id":"c","tool":"t/book","params":{"c":1}},{"id":"n""#);
    turn(&engine, &tools, &added).await;
    let turned = turn(&engine, &tools, &added).await;
    assert_eq!((tools.runs("flight_search"), tools.runs("hotel_search")), (1, 1));
    let called = turned.result.calls.iter().find(|call| call.id.as_str() == "c").unwrap();
    assert_ne!(called.code, Some(Code::ToolErrorLimit), "{called:?}");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_history_and_traces_in_flight() {
    for journal in [Journal::History, Journal::Traces] {
        let clock = Arc::new(RuntimeClock::new());
        let store = Arc::new(FaultyStore::new(MemoryStore::new(MemoryOptions::new(clock.clone()))));
        let policies = Arc::new(measured(ToolClass::ReadOnly));
        let engine = Engine::builder().clock(clock).store(store.clone()).policies(policies).start().await;
        store.becomes(FaultMode::Holds(journal));
        let tools = ScriptedTools::new([("flight_search", replies("1"))]);
        turn(&engine, &tools, r#"{"calls":[{"id":"f","tool":"t/flight_search"}]}"#).await;
        // Longer than entries are collected: the store has them, but has not accepted them yet.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let shutdown = tokio::spawn(async move { engine.shutdown(Duration::from_secs(1)).await });
        settle().await;
        assert!(!shutdown.is_finished(), "{journal:?}: a process would end now, and the lines with it");
        store.becomes(FaultMode::Up);
        assert_eq!(shutdown.await.unwrap(), ShutdownReport { aborted: 0, lost: 0 });
        assert!(!store.entries(&JournalQuery::newest(journal, 10)).await.unwrap().is_empty(), "{journal:?}");
    }
}

/// Events during an outage of the store are needed afterwards.
#[tokio::test(start_paused = true)]
async fn history_from_a_store_outage_is_written_after_it() {
    let (engine, store) = on_faulty().await;
    let away = store.clone();
    let tools = ScriptedTools::new([(
        "flight_search",
        script(move |_| {
            away.becomes(FaultMode::Down);
            async { Ok(tool_output("1")) }
        }),
    )]);
    let turned = turn(&engine, &tools, r#"{"calls":[{"id":"f","tool":"t/flight_search"}]}"#).await;
    assert!(engine.turn_trace(&turned.trace.to_string()).await.is_err(), "nobody can look now");
    tokio::time::sleep(Duration::from_secs(60)).await;
    store.becomes(FaultMode::Up);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let story = TurnTraceView::read(&*store, &turned.trace.to_string()).await.unwrap().unwrap();
    assert_eq!(story.turn.status, Some(TurnStatus::Completed));
    let mut lines = sentences(&story);
    let all = lines.len();
    lines.dedup();
    assert_eq!((lines.first(), lines.len()), (Some(&"Turn started with 1 call"), all), "all of it, once");
    assert_sentence(&story, "Tool succeeded: flight_search");
    assert_eq!(store.entries(&JournalQuery::newest(Journal::History, 10)).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_disconnects_loses_no_entries() {
    let (engine, store) = on_faulty().await;
    let tools = ScriptedTools::new([("flight_search", replies("1"))]);
    let turned = turn(&engine, &tools, r#"{"calls":[{"id":"f","tool":"t/flight_search"}]}"#).await;
    store.becomes(FaultMode::Slow);
    let trace = turned.trace.to_string();
    let reading = engine.turn_trace(&trace);
    // The queued entries are on their way to the store.
    assert!(tokio::time::timeout(Duration::from_millis(50), reading).await.is_err());
    store.becomes(FaultMode::Up);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let story = TurnTraceView::read(&*store, &trace).await.unwrap().unwrap();
    assert_eq!(story.turn.status, Some(TurnStatus::Completed));
}
