//! Edge cases of turns: nothing runs twice, whatever fails.

use std::pin::Pin;

use steadfast_core::call::CallNotice;
use steadfast_core::envelope::EnvelopeTrace;
use steadfast_core::policy::AnnotationHints;
use steadfast_executor::{EngineListener, NoticeContext, PolicySource, ToolInfo};
use steadfast_json::JsonValue;
use steadfast_store::{DocumentKind, DocumentWrite, DocumentWriteOutcome};
use tokio::sync::Notify;

use super::*;

/// A registry of tools with these annotations. One of them is found only after a notification.
#[derive(Clone)]
struct AnnotatedTools {
    tools: ScriptedTools,
    annotations: AnnotationHints,
    found: Option<(&'static str, Arc<Notify>)>,
    lookup_started: Arc<Notify>,
}

impl AnnotatedTools {
    fn of(tools: &ScriptedTools, annotations: AnnotationHints) -> Self {
        Self { tools: tools.clone(), annotations, found: None, lookup_started: Arc::default() }
    }
}

impl ToolRegistry for AnnotatedTools {
    fn find<'a>(
        &'a self,
        envelope: &'a CallEnvelope,
    ) -> Pin<Box<dyn Future<Output = Option<ResolvedTool>> + Send + 'a>> {
        Box::pin(async move {
            if let Some((name, when)) = &self.found
                && *name == envelope.tool_name.as_str()
            {
                self.lookup_started.notify_one();
                when.notified().await;
            }
            let info = ToolInfo { annotations: self.annotations, input_schema: None };
            self.tools.find(envelope).await.map(|found| ResolvedTool { info: Some(Arc::new(info)), ..found })
        })
    }
}

/// Policies that trust the annotations of servers, as the gateway does.
struct AnnotationPolicies(fn(ToolClass) -> CallPolicy);

impl PolicySource for AnnotationPolicies {
    fn policy(&self, _: &CallEnvelope, _: JsonValue<'_>, annotations: AnnotationHints) -> Arc<CallPolicy> {
        let class = match annotations {
            AnnotationHints { read_only: Some(true), .. } => ToolClass::ReadOnly,
            AnnotationHints { idempotent: Some(true), .. } => ToolClass::Idempotent,
            _ => ToolClass::Unknown,
        };
        Arc::new(self.0(class))
    }
}

async fn believing(store: Arc<dyn StateStore>) -> Engine {
    let gateway = |class| measured(class).for_gateway();
    let clock = Arc::new(RuntimeClock::new());
    Engine::builder().clock(clock).store(store).policies(AnnotationPolicies(gateway)).start().await
}

const READS: AnnotationHints = AnnotationHints { read_only: Some(true), destructive: None, idempotent: None };
const MAY_RUN_TWICE: AnnotationHints =
    AnnotationHints { read_only: None, destructive: None, idempotent: Some(true) };

/// The class of most MCP tools comes from their server. A regression: the turn treated all as tools without a class.
#[tokio::test(start_paused = true)]
async fn eh_6_4_a_tool_annotated_as_read_only_is_replaced_when_it_does_not_answer() {
    let engine = believing(memory()).await;
    let tools = ScriptedTools::new([
        ("flight_search", script(async |_| reset())),
        ("flight_search_backup", replies("2")),
    ]);
    let shelf = Arc::new(AnnotatedTools::of(&tools, READS));
    let turned = engine.turn(plan(WITH_BACKUP), shelf, options()).await.unwrap();
    assert_eq!(outcomes(&turned), [("f", TurnCallOutcome::Succeeded)], "{}", turned.result.summary);
}

#[tokio::test(start_paused = true)]
async fn eh_4_2_a_tool_annotated_as_read_only_is_stopped_at_the_deadline() {
    let engine = believing(memory()).await;
    let tools = ScriptedTools::new([("flight_search", hangs())]);
    let shelf = Arc::new(AnnotatedTools::of(&tools, READS));
    let text = r#"{"deadlineMs":10000,"calls":[{"id":"f","tool":"t/flight_search"}]}"#;
    let turned = engine.turn(plan(text), shelf, options()).await.unwrap();
    assert_eq!(outcomes(&turned), [("f", TurnCallOutcome::Cancelled)]);
    settle().await;
    assert_eq!(engine.in_flight_calls(), 0);
}

/// The first submission may have run the call, and its process is gone. The second one may call the same tool again,
/// and is refused. That says nothing about the first one.
#[tokio::test(start_paused = true)]
async fn a_call_annotated_as_repeatable_is_not_replaced_when_the_turn_is_resubmitted() {
    let store = memory();
    let tools = ScriptedTools::new([
        (
            "flight_search",
            script(async |number| match number {
                1 => std::future::pending().await,
                _ => Err(AttemptFault::new(
                    FaultSource::Transport { error: TransportError::ConnectionRefused, written: false },
                    "connection refused",
                )
                .into()),
            }),
        ),
        ("flight_search_backup", replies("2")),
    ]);
    let shelf = Arc::new(AnnotatedTools::of(&tools, MAY_RUN_TWICE));
    let first = believing(store.clone()).await;
    let submitted = {
        let (first, shelf) = (first.clone(), shelf.clone());
        tokio::spawn(async move { first.turn(plan(WITH_BACKUP), shelf, options()).await })
    };
    settle().await;
    assert_eq!(tools.runs("flight_search"), 1);
    submitted.abort();
    first.shutdown(Duration::ZERO).await;
    let turned = believing(store).await.turn(plan(WITH_BACKUP), shelf, options()).await.unwrap();
    assert!(tools.runs("flight_search") > 1);
    assert_eq!(tools.runs("flight_search_backup"), 0, "{}", turned.result.summary);
}

/// A call that is rejected because of the concurrency limit looks nothing up. Its alternative might be admitted later.
#[tokio::test(start_paused = true)]
async fn a_rejected_call_is_not_replaced_when_the_turn_is_submitted_again() {
    let store = memory();
    let clock = Arc::new(RuntimeClock::new());
    let builder = Engine::builder().clock(clock).store(store).max_calls(1);
    let engine = builder.policies(Arc::new(measured(ToolClass::Mutating))).start().await;
    let tools = ScriptedTools::new([("flight_search", replies("1")), ("flight_search_backup", replies("2"))]);
    turn(&engine, &tools, WITH_BACKUP).await;
    assert_eq!((tools.runs("flight_search"), tools.runs("flight_search_backup")), (1, 0));

    let leave = Arc::new(Notify::new());
    let blocker = {
        let (engine, leave) = (engine.clone(), leave.clone());
        tokio::spawn(async move {
            let tool = move |_: Attempt| {
                let leave = leave.clone();
                async move {
                    leave.notified().await;
                    ok()
                }
            };
            engine.call(pay(1, None), tool).await
        })
    };
    settle().await;
    let found = Arc::new(Notify::new());
    let mut shelf = AnnotatedTools::of(&tools, AnnotationHints::default());
    shelf.found = Some(("flight_search_backup", found.clone()));
    let lookup_started = shelf.lookup_started.clone();
    let submitted = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.turn(plan(WITH_BACKUP), Arc::new(shelf), options()).await })
    };
    // If the turn asks for the alternative, it could run.
    let _ = tokio::time::timeout(Duration::from_secs(1), lookup_started.notified()).await;
    leave.notify_one();
    blocker.await.unwrap();
    found.notify_one();
    let turned = submitted.await.unwrap().unwrap();
    assert_eq!(tools.runs("flight_search_backup"), 0, "{}", turned.result.summary);
    assert_eq!(turned.result.calls[0].code, Some(Code::Overloaded));
    assert_eq!(turn(&engine, &tools, WITH_BACKUP).await.result.status, TurnStatus::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_was_cancelled_before_it_began_makes_no_call() {
    let engine = engine(measured(ToolClass::Mutating)).await;
    let tools = ScriptedTools::new([("flight_search", replies("1"))]);
    let options = options();
    options.cancelled.cancel();
    let turned = engine.turn(plan(WITH_BACKUP), Arc::new(tools.clone()), options).await.unwrap();
    assert_eq!(tools.runs("flight_search"), 0);
    assert_eq!(outcomes(&turned), [("f", TurnCallOutcome::Skipped)]);
    assert_eq!(turned.result.ended_by, TurnEndReason::Cancel);
}

/// A regression: calls that ended at once left no moment in which the cancellation was handled.
#[tokio::test(start_paused = true)]
async fn a_turn_that_is_cancelled_while_its_calls_end_at_once_starts_no_other() {
    let engine = engine(measured(ToolClass::Mutating)).await;
    let options = options();
    let withdrawn = options.cancelled.clone();
    let tools = ScriptedTools::new([
        (
            "flight_search",
            script(move |_| {
                withdrawn.cancel();
                async { Ok(tool_output("1")) }
            }),
        ),
        ("hotel_search", replies("2")),
    ]);
    let text = r#"{"calls":[{"id":"f","tool":"t/flight_search"},{"id":"h","tool":"t/hotel_search","dependsOn":["f"]}]}"#;
    let turned = engine.turn(plan(text), Arc::new(tools.clone()), options).await.unwrap();
    assert_eq!(tools.runs("hotel_search"), 0);
    assert_eq!(outcomes(&turned), [("f", TurnCallOutcome::Succeeded), ("h", TurnCallOutcome::Skipped)]);
    assert_eq!(turned.result.ended_by, TurnEndReason::Cancel);
}

/// A regression: the choice was stored by its number, and a changed plan had another tool at that number.
#[tokio::test(start_paused = true)]
async fn a_turn_that_comes_again_with_other_alternatives_does_nothing_twice() {
    let with = |alternatives: &str| {
        format!(
            r#"{{"turnId":"trip","calls":[{{"id":"f","tool":"t/flight_search","alternatives":[{alternatives}]}}]}}"#
        )
    };
    for (first, second) in [
        (r#""t/second""#, r#""t/third","t/second""#),
        (r#""t/third","t/second""#, r#""t/third""#),
        (r#""t/second""#, ""),
    ] {
        let engine = on(memory(), measured(ToolClass::Mutating)).await;
        let tools = ScriptedTools::new([
            ("flight_search", replies("1")),
            ("second", replies("2")),
            ("third", replies("3")),
        ]);
        for name in ["flight_search", "third"] {
            let (namespace, tool) = (Namespace::new("t").unwrap(), ToolName::new(name).unwrap());
            let key = BreakerKey::Tool(ToolRef { namespace, tool });
            engine.admin().update_breaker(None, &key, BreakerOverride::Open { until: None }, &by()).await;
        }
        turn(&engine, &tools, &with(first)).await;
        assert_eq!(tools.runs("second"), 1);
        for name in ["flight_search", "third"] {
            let (namespace, tool) = (Namespace::new("t").unwrap(), ToolName::new(name).unwrap());
            let key = BreakerKey::Tool(ToolRef { namespace, tool });
            engine.admin().update_breaker(None, &key, BreakerOverride::Reset, &by()).await;
        }
        let again = turn(&engine, &tools, &with(second)).await;
        let runs = ["flight_search", "second", "third"].map(|tool| tools.runs(tool));
        assert_eq!(runs, [0, 1, 0], "{first} and then {second}");
        assert_eq!(again.result.calls[0].code, Some(Code::IdempotencyConflict));
        let message = again.result.calls[0].message.as_ref().unwrap();
        assert!(message.contains("t/second"), "{message}");
    }
}

/// Turns that wait for the store before they begin count toward the limit.
#[tokio::test(start_paused = true)]
async fn the_limit_of_turns_applies_also_while_the_store_is_silent() {
    let (engine, store) = on_faulty().await;
    let tools = ScriptedTools::new([("flight_search", replies("1"))]);
    store.becomes(FaultMode::Silent);
    let submitted: Vec<_> = (0..300)
        .map(|number| {
            let text = format!(r#"{{"turnId":"{number}","calls":[{{"id":"f","tool":"t/flight_search"}}]}}"#);
            let (engine, tools) = (engine.clone(), Arc::new(tools.clone()));
            tokio::spawn(async move { engine.turn(plan(&text), tools, options()).await })
        })
        .collect();
    settle().await;
    store.becomes(FaultMode::Up);
    let mut refused = 0;
    for submitted in submitted {
        refused += usize::from(matches!(submitted.await.unwrap(), Err(TurnRejection::Overloaded)));
    }
    assert_eq!(refused, 300 - 256);
}

/// Its server is still starting at the deadline: nothing of the call runs, neither now nor later.
#[tokio::test(start_paused = true)]
async fn a_call_that_was_never_sent_is_not_reported_as_running() {
    for withdraws in [false, true] {
        let engine = engine(measured(ToolClass::Mutating)).await;
        let tools = ScriptedTools::new([("flight_search", replies("1"))]);
        let mut shelf = AnnotatedTools::of(&tools, AnnotationHints::default());
        shelf.found = Some(("flight_search", Arc::new(Notify::new())));
        let options = options();
        let withdrawn = options.cancelled.clone();
        let text = r#"{"deadlineMs":10000,"calls":[{"id":"f","tool":"t/flight_search"}]}"#;
        let submitted = {
            let engine = engine.clone();
            tokio::spawn(async move { engine.turn(plan(text), Arc::new(shelf), options).await })
        };
        settle().await;
        if withdraws {
            withdrawn.cancel();
        }
        let turned = submitted.await.unwrap().unwrap();
        assert_eq!(outcomes(&turned), [("f", TurnCallOutcome::Skipped)], "{}", turned.result.summary);
        let by = if withdraws { TurnEndReason::Cancel } else { TurnEndReason::Deadline };
        assert_eq!(turned.result.ended_by, by);
    }
}

/// The store does not respond while a choice is written, and the caller cancels.
#[tokio::test(start_paused = true)]
async fn a_turn_that_is_cancelled_does_not_wait_for_the_store() {
    let (engine, store) = on_faulty().await;
    let tools = failing_with(&store, FaultMode::Slow);
    let options = options();
    let withdrawn = options.cancelled.clone();
    let submitted = {
        let (engine, tools) = (engine.clone(), Arc::new(tools.clone()));
        tokio::spawn(async move { engine.turn(plan(WITH_BACKUP), tools, options).await.unwrap() })
    };
    // Its failure is being recorded, and the choice is written after that.
    tokio::time::sleep(Duration::from_millis(50)).await;
    store.becomes(FaultMode::Silent);
    tokio::time::sleep(Duration::from_secs(1)).await;
    withdrawn.cancel();
    let turned = tokio::time::timeout(Duration::from_secs(3), submitted).await.unwrap().unwrap();
    assert_eq!(tools.runs("flight_search_backup"), 0);
    assert_eq!(outcomes(&turned), [("f", TurnCallOutcome::Failed)]);
    assert_eq!(turned.result.ended_by, TurnEndReason::Cancel);
}

/// A process that died at the end of its turn has left records that are younger than its choices. The choices must
/// live longer than these records.
#[tokio::test(start_paused = true)]
async fn choices_are_stored_as_long_as_their_results() {
    let mut policy = measured(ToolClass::Mutating);
    policy.time.total = Duration::from_secs(30);
    let day = policy.dedupe.keep.done;
    let store =
        Arc::new(FaultyStore::new(MemoryStore::new(MemoryOptions::new(Arc::new(RuntimeClock::new())))));
    let engine = on(store.clone(), policy.clone()).await;
    let tools = ScriptedTools::new([
        (
            "slow",
            script(async |number| {
                if number <= 11 {
                    tokio::time::sleep(Duration::from_secs(25)).await;
                }
                Ok(tool_output("1"))
            }),
        ),
        (
            "flight_search",
            script(async |_| {
                tokio::time::sleep(Duration::from_secs(20)).await;
                Ok(tool_output("1"))
            }),
        ),
        ("flight_search_backup", replies("2")),
    ]);
    let chain: Vec<_> = (0..11)
        .map(|place| {
            let after = if place == 0 { String::new() } else { format!(r#""s{}""#, place - 1) };
            format!(r#"{{"id":"s{place}","tool":"t/slow","params":{{"n":{place}}},"dependsOn":[{after}]}},"#)
        })
        .collect();
    let text = format!(
        r#"{{"turnId":"trip","calls":[{}{{"id":"f","tool":"t/flight_search","dependsOn":["s10"],
            "alternatives":["t/flight_search_backup"]}}]}}"#,
        chain.join("")
    );
    let submitted = {
        let (engine, tools, text) = (engine.clone(), Arc::new(tools.clone()), text.clone());
        tokio::spawn(async move { engine.turn(plan(&text), tools, options()).await })
    };
    // The last call is sent, and the turn is never released.
    tokio::time::sleep(Duration::from_secs(280)).await;
    assert_eq!(tools.runs("flight_search"), 1);
    store.becomes(FaultMode::Silent);
    submitted.abort();
    tokio::time::sleep(Duration::from_secs(30)).await;
    store.becomes(FaultMode::Up);
    // The record of the last call still exists, a moment before it expires.
    tokio::time::sleep(day - Duration::from_secs(60)).await;
    let engine = on(store, policy).await;
    engine.admin().update_breaker(None, &first_tool(), BreakerOverride::Open { until: None }, &by()).await;
    turn(&engine, &tools, &text).await;
    assert_eq!((tools.runs("flight_search"), tools.runs("flight_search_backup")), (1, 0));
}

/// Outside of a turn, a call of a tool without a class continues without the store. In a turn it must not: an earlier
/// submission may have run it.
#[tokio::test(start_paused = true)]
async fn finished_calls_do_not_run_again_while_the_store_is_unavailable() {
    let store =
        Arc::new(FaultyStore::new(MemoryStore::new(MemoryOptions::new(Arc::new(RuntimeClock::new())))));
    let engine = on(store.clone(), measured(ToolClass::Unknown)).await;
    let tools = ScriptedTools::new([("flight_search", replies("1"))]);
    turn(&engine, &tools, WITH_BACKUP).await;
    let turned = turn_that_loses_its_store(&engine, &store, &tools).await;
    assert_eq!(tools.runs("flight_search"), 1);
    assert_eq!(turned.result.calls[0].code, Some(Code::StoreUnavailable));
}

/// Nested deeper than any parser of arguments allows: it is refused without a stack overflow.
#[tokio::test(start_paused = true)]
async fn an_output_that_is_nested_without_end_is_refused_as_an_argument() {
    let engine = engine(measured(ToolClass::Mutating)).await;
    let deep = format!("{}{}", "[".repeat(400_000), "]".repeat(400_000));
    let tools = ScriptedTools::new([
        (
            "deep",
            Box::new(move |_, _| -> ScriptedAttempt {
                let output = tool_output(&deep);
                Box::pin(async move { Ok(output) })
            }) as ToolScript,
        ),
        ("use", replies("1")),
    ]);
    let text = r#"{"turnId":"deep","calls":[{"id":"d","tool":"t/deep"},{"id":"u","tool":"t/use","params":{"x":{"$from":"d"}}},
        {"id":"p","tool":"t/use","params":{"x":{"$from":"d","path":"/0/0"}}}]}"#;
    let turned = turn(&engine, &tools, text).await;
    assert_eq!(
        outcomes(&turned),
        [("d", TurnCallOutcome::Succeeded), ("u", TurnCallOutcome::Failed), ("p", TurnCallOutcome::Failed)]
    );
    assert_eq!(tools.runs("use"), 0);
    let [_, whole, part] = &turned.result.calls[..] else { panic!("three calls") };
    assert_eq!((whole.code, part.code), (Some(Code::InvalidEnvelope), Some(Code::DependencyFailed)));
    for call in [whole, part] {
        assert!(call.message.as_ref().unwrap().contains("levels deep"), "{:?}", call.message);
    }
    // It is stored and replayed without being parsed.
    assert_eq!(turn(&engine, &tools, text).await.result.calls[0].outcome, TurnCallOutcome::Succeeded);
    assert_eq!(tools.runs("deep"), 1);
    assert!(engine.turn_trace("deep").await.unwrap().is_some());
}

/// A call that is left to the engine at the deadline ends, and is not retried after it.
#[tokio::test(start_paused = true)]
async fn eh_7_4_a_call_left_running_is_not_retried_after_the_deadline_of_the_turn() {
    let engine = engine(measured(ToolClass::Unknown)).await;
    let tools = ScriptedTools::new([(
        "flight_search",
        script(async |_| {
            tokio::time::sleep(Duration::from_secs(4)).await;
            reset()
        }),
    )]);
    let text = r#"{"deadlineMs":10000,"calls":[{"id":"f","tool":"t/flight_search"}]}"#;
    let turned = turn(&engine, &tools, text).await;
    assert_eq!(outcomes(&turned), [("f", TurnCallOutcome::LeftRunning)]);
    assert_eq!(tools.runs("flight_search"), 3, "at 0, 4 and 8 seconds");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(tools.runs("flight_search"), 3);
    assert_eq!(engine.in_flight_calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn choices_are_stored_for_days_if_records_are() {
    let mut policy = measured(ToolClass::Mutating);
    policy.dedupe.keep.done = Duration::from_secs(72 * 3600);
    let engine = on(memory(), policy).await;
    let tools = ScriptedTools::new([("flight_search", replies("1")), ("flight_search_backup", replies("2"))]);
    engine.admin().update_breaker(None, &first_tool(), BreakerOverride::Open { until: None }, &by()).await;
    turn(&engine, &tools, WITH_BACKUP).await;
    engine.admin().update_breaker(None, &first_tool(), BreakerOverride::Reset, &by()).await;
    tokio::time::sleep(Duration::from_secs(48 * 3600)).await;
    turn(&engine, &tools, WITH_BACKUP).await;
    assert_eq!((tools.runs("flight_search"), tools.runs("flight_search_backup")), (0, 1));
}

/// A listener that records the turn ids of calls.
#[derive(Default)]
struct TurnIdListener(Mutex<Vec<Option<String>>>);

impl EngineListener for TurnIdListener {
    fn notice(&self, about: &NoticeContext<'_>, _: &CallNotice) {
        self.0.lock().push(about.request.turn.as_ref().map(ToString::to_string));
    }
}

#[tokio::test(start_paused = true)]
async fn the_calls_of_a_turn_belong_to_it_and_its_failures_have_a_limit() {
    let calls = Arc::new(TurnIdListener::default());
    let engine = Engine::builder()
        .clock(Arc::new(RuntimeClock::new()))
        .policies(Arc::new(measured(ToolClass::Mutating)))
        .listener(calls.clone())
        .start()
        .await;
    let tools = ScriptedTools::new([("flight_search", refuses())]);
    let planned = |name: &str| {
        let calls: Vec<_> = (0..6)
            .map(|number| {
                format!(r#"{{"id":"{number}","tool":"t/flight_search","params":{{"n":{number}}}}}"#)
            })
            .collect();
        format!(r#"{{{name}"parallelism":1,"calls":[{}]}}"#, calls.join(","))
    };
    for name in [r#""turnId":"trip","#, ""] {
        calls.0.lock().clear();
        let turned = turn(&engine, &tools, &planned(name)).await;
        assert_eq!(turned.result.calls[4].code, Some(Code::ToolError));
        assert_eq!(turned.result.calls[5].code, Some(Code::ToolErrorLimit));
        let expected = if name.is_empty() { turned.trace.to_string() } else { "trip".into() };
        assert!(calls.0.lock().iter().all(|turn| turn.as_ref() == Some(&expected)));
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_name_of_two_tenants_is_two_turns() {
    let engine = engine(measured(ToolClass::Mutating)).await;
    let tools = ScriptedTools::new([("flight_search", replies("1"))]);
    let tenant = |name: &str| Some(steadfast_core::id::TenantId::new(name).unwrap());
    for name in ["acme", "other"] {
        let mut options = options();
        options.target.tenant_id = tenant(name);
        engine.turn(plan(WITH_BACKUP), Arc::new(tools.clone()), options).await.unwrap();
    }
    assert_eq!(tools.runs("flight_search"), 2);
    for name in ["acme", "other"] {
        let query = steadfast_executor::TurnQuery { tenant: tenant(name), limit: 10, ..Default::default() };
        let found = engine.turns(&query).await.unwrap().found;
        assert_eq!(found.iter().map(|head| head.tenant.clone()).collect::<Vec<_>>(), [tenant(name)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_another_version_has_stored_does_not_start() {
    let store = memory();
    let engine = on(store.clone(), measured(ToolClass::Mutating)).await;
    let tools = ScriptedTools::new([("book", replies("1"))]);
    let text = r#"{"turnId":"trip","calls":[{"id":"b","tool":"t/book"}]}"#;
    turn(&engine, &tools, text).await;
    let (name, document) = store.documents(DocumentKind::Turn).await.unwrap().pop().unwrap();
    let body = document.body.replace(r#""format":1"#, r#""format":2"#);
    let write = DocumentWrite { replaces: Some(document.version), body: Some(body.into()), expires: None };
    assert!(matches!(store.write(&name, write).await, Ok(DocumentWriteOutcome::Written(_))));
    let refused = engine.turn(plan(text), Arc::new(tools.clone()), options()).await.unwrap_err();
    assert!(refused.to_string().contains("its format is 2, but this version reads format 1"), "{refused}");
    assert_eq!(tools.runs("book"), 1);
}

/// Both turns share the caller's trace, but each call is found by its own request id.
#[tokio::test(start_paused = true)]
async fn two_turns_of_one_trace_share_no_request() {
    let engine = on(memory(), measured(ToolClass::ReadOnly)).await;
    let tools = ScriptedTools::new([("look", replies("1"))]);
    let trace = "0af7651916cd43dd8448eb211c80319c";
    for _ in 0..2 {
        let traceparent = Some(format!("00-{trace}-b7ad6b7169203331-01"));
        let options =
            TurnOptions { trace: EnvelopeTrace { traceparent, ..EnvelopeTrace::default() }, ..options() };
        let text = r#"{"calls":[{"id":"a","tool":"t/look"},{"id":"b","tool":"t/look"}]}"#;
        engine.turn(plan(text), Arc::new(tools.clone()), options).await.unwrap();
    }
    let story = engine.turn_trace(trace).await.unwrap().unwrap();
    let requests: Vec<_> = story.spans.iter().filter_map(|span| span.request_id.as_ref()).collect();
    let distinct: std::collections::BTreeSet<_> = requests.iter().collect();
    assert_eq!((requests.len(), distinct.len()), (4, 4), "{requests:?}");
    let shown = steadfast_redact::text(requests[0].as_str());
    assert_eq!(shown, requests[0].as_str(), "who reads it in the log can ask for it");
}
