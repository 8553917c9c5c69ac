//! The turns of the seed: several calls that depend on each other, of which one fails.

use steadfast::telemetry::{EngineListener, TurnContext};
use steadfast::turn::trace::{TraceNote, TurnFact};
use steadfast::turn::{TurnCallOutcome, TurnEndReason, TurnStatus};

use super::*;

/// Enough time for all retries.
const UNHURRIED: &str = "retry.total = \"none\"\n";

#[tokio::test(start_paused = true)]
async fn eh_4_1_an_attempt_ends_at_the_timeout_of_its_tool_and_is_retried() {
    let engine = engine(UNHURRIED).await;
    let tools = ScriptedTools::new([(
        "flight_search",
        script(async |number| if number == 1 { std::future::pending().await } else { ok() }),
    )]);
    let before = tokio::time::Instant::now();
    let text = r#"{"calls":[{"id":"f","tool":"t/flight_search","timeoutMs":30000}]}"#;
    let turned = turn(&engine, &tools, text).await;
    assert_eq!(turned.result.status, TurnStatus::Completed);
    assert_eq!(tools.runs("flight_search"), 2);
    assert_eq!(before.elapsed().as_secs(), 30, "ended at thirty seconds, and made again after a short wait");
    let story = story(&engine, &turned).await;
    // EH-4.4: with its limit; EH-4.3: as a transient error; EH-6.2: which is retried, and the reason.
    let timeouts = events(&story, TraceEventType::ToolTimeout);
    assert_eq!(timeouts.len(), 1, "{:#?}", sentences(&story));
    assert_eq!(timeouts[0].timeout_ms, Some(30_000));
    assert_eq!(timeouts[0].tool_id.as_ref().unwrap().as_str(), "flight_search");
    assert_eq!(timeouts[0].decision, Some(FailureStrategy::Retry));
}

#[tokio::test(start_paused = true)]
async fn eh_4_3_a_timeout_is_a_transient_error() {
    let engine = engine(UNHURRIED).await;
    let tools = ScriptedTools::new([("flight_search", hangs())]);
    let text = r#"{"calls":[{"id":"f","tool":"t/flight_search","timeoutMs":1000}]}"#;
    let turned = turn(&engine, &tools, text).await;
    let story = story(&engine, &turned).await;
    let timeouts = events(&story, TraceEventType::ToolTimeout);
    assert_eq!(timeouts.len(), 5, "each of the attempts: {:#?}", sentences(&story));
    let transient = Some(FaultNature::Transient);
    assert!(timeouts.iter().all(|event| event.classification == transient));
    assert_eq!(events(&story, TraceEventType::ToolRetry).len(), 4);
}

#[tokio::test(start_paused = true)]
async fn eh_4_2_at_the_deadline_finished_calls_are_returned_and_the_others_are_listed() {
    for (class, hotel, sentence) in [
        (
            "read_only",
            TurnCallOutcome::Cancelled,
            "Completed flight search, but hotel search and activity search timed out",
        ),
        (
            "idempotent",
            TurnCallOutcome::Cancelled,
            "Completed flight search, but hotel search and activity search timed out",
        ),
        (
            "mutating",
            TurnCallOutcome::LeftRunning,
            "Completed flight search, but hotel search and activity search timed out and are still running",
        ),
    ] {
        let slow = format!("{UNHURRIED}timeout = \"1h\"\ntotal_timeout = \"2h\"\n");
        let engine = opened(class, &slow, None).await;
        let tools = ScriptedTools::new([
            ("flight_search", replies(r#"{"best":1}"#)),
            ("hotel_search", hangs()),
            ("activity_search", hangs()),
        ]);
        let before = tokio::time::Instant::now();
        let turned = turn(&engine, &tools, SEARCHES).await;
        assert_eq!(before.elapsed(), Duration::from_secs(300));
        assert_eq!(outcomes(&turned), [("f", TurnCallOutcome::Succeeded), ("h", hotel), ("a", hotel)]);
        assert_eq!(turned.result.ended_by, TurnEndReason::Deadline);
        assert_eq!(turned.result.summary, sentence);
        settle().await;
        let open = if class == "mutating" { 2 } else { 0 };
        assert_eq!(engine.in_flight_calls(), open, "what can be stopped is, what may have an effect goes on");
    }
}

#[tokio::test(start_paused = true)]
async fn eh_5_1_eh_5_2_eh_5_4_dependants_of_a_failed_call_do_not_run_and_other_calls_do() {
    let engine = engine(UNHURRIED).await;
    let tools = ScriptedTools::new([
        ("flight_search", refuses()),
        ("compare_prices", replies("1")),
        ("create_itinerary", replies("1")),
        ("hotel_search", replies("1")),
    ]);
    let turned = turn(
        &engine,
        &tools,
        r#"{"calls":[{"id":"a","tool":"t/flight_search"},
            {"id":"b","tool":"t/compare_prices","required":false,"dependsOn":["a"]},
            {"id":"c","tool":"t/create_itinerary","dependsOn":["b"]},
            {"id":"d","tool":"t/hotel_search"}]}"#,
    )
    .await;
    let skipped = TurnCallOutcome::Skipped;
    assert_eq!(
        outcomes(&turned),
        [("a", TurnCallOutcome::Failed), ("b", skipped), ("c", skipped), ("d", TurnCallOutcome::Succeeded)]
    );
    assert_eq!((tools.runs("compare_prices"), tools.runs("create_itinerary")), (0, 0));
    assert!(!turned.result.calls[1].escalated && turned.result.calls[2].escalated);
    assert_sentence(&story(&engine, &turned).await, "Required tool skipped due to dependency failure");
}

#[tokio::test(start_paused = true)]
async fn eh_5_3_a_default_replaces_a_missing_output() {
    let engine = engine(UNHURRIED).await;
    let echo: ToolScript = Box::new(|_, attempt| {
        let params = attempt.params().to_owned();
        Box::pin(async move { Ok(tool_output(&params)) })
    });
    let tools = ScriptedTools::new([("flight_search", refuses()), ("compare_prices", echo)]);
    let turned = turn(
        &engine,
        &tools,
        r#"{"calls":[{"id":"a","tool":"t/flight_search"},{"id":"b","tool":"t/compare_prices",
            "params":{"best":{"$from":"a","path":"/best"}},"dependsOn":[{"id":"a","default":{"best":"none"}}]}]}"#,
    )
    .await;
    assert_eq!(outcomes(&turned), [("a", TurnCallOutcome::Failed), ("b", TurnCallOutcome::Succeeded)]);
    assert_eq!(turned.result.calls[1].output.as_ref().unwrap().as_str(), r#"{"best":"none"}"#);
    assert_sentence(&story(&engine, &turned).await, "Used default value for compare_prices");
}

/// A listener that records the notes of turns.
#[derive(Default)]
struct NoteListener(Mutex<Vec<(Option<String>, TraceNote)>>);

impl EngineListener for NoteListener {
    fn turn(&self, about: &TurnContext<'_>, note: &TraceNote) {
        self.0.lock().push((about.turn.map(ToString::to_string), note.clone()));
    }
}

#[tokio::test(start_paused = true)]
async fn eh_6_1_eh_6_2_the_error_handler_receives_each_error_and_decides() {
    let handler = Arc::new(NoteListener::default());
    let engine = opened("read_only", UNHURRIED, Some(handler.clone())).await;
    let tools = ScriptedTools::new([(
        "flight_search",
        script(async |number| if number == 1 { reset() } else { ok() }),
    )]);
    turn(&engine, &tools, r#"{"turnId":"t-1","calls":[{"id":"f","tool":"t/flight_search"}]}"#).await;
    let notes = handler.0.lock();
    let (turn_id, error) =
        notes.iter().find(|(_, note)| matches!(note.fact, TurnFact::ToolError(_))).unwrap();
    let TurnFact::ToolError(fault) = &error.fact else { unreachable!() };
    assert_eq!(turn_id.as_deref(), Some("t-1"), "the turn");
    assert_eq!(error.tool.as_ref().unwrap().tool.as_str(), "flight_search");
    assert_eq!((fault.attempts, fault.decision), (1, FailureStrategy::Retry));
    assert!(!fault.error.is_empty());
    let decided = notes.iter().find_map(|(_, note)| {
        let TurnFact::Decision { strategy, reason } = &note.fact else { return None };
        Some((*strategy, reason.as_str()))
    });
    let reason = "transient error, circuit closed, retries available (4 left)";
    assert_eq!(decided, Some((FailureStrategy::Retry, reason)));
}

#[tokio::test(start_paused = true)]
async fn eh_6_3_a_retry_that_succeeds_is_reported_as_such() {
    let engine = engine(UNHURRIED).await;
    let tools = ScriptedTools::new([(
        "flight_search",
        script(async |number| if number == 1 { reset() } else { ok() }),
    )]);
    let turned = turn(&engine, &tools, r#"{"calls":[{"id":"f","tool":"t/flight_search"}]}"#).await;
    assert_eq!(turned.result.status, TurnStatus::Completed);
    assert_sentence(&story(&engine, &turned).await, "Tool succeeded on retry 2");
}

#[tokio::test(start_paused = true)]
async fn eh_6_4_gr_5_an_alternative_steps_in_for_a_tool_that_failed_for_good() {
    let engine = engine(UNHURRIED).await;
    let tools = ScriptedTools::new([("flight_search", refuses()), ("flight_search_backup", replies("1"))]);
    let turned = turn(&engine, &tools, WITH_BACKUP).await;
    assert_eq!(outcomes(&turned), [("f", TurnCallOutcome::Succeeded)]);
    assert_eq!(turned.result.calls[0].tool.tool.as_str(), "flight_search_backup");
    assert_eq!((tools.runs("flight_search"), tools.runs("flight_search_backup")), (1, 1));
    let story = story(&engine, &turned).await;
    assert_sentence(&story, "Used alternative tool");
    assert_sentence(&story, "Tool failed: flight_search");
}

#[tokio::test(start_paused = true)]
async fn eh_6_5_a_permanent_error_is_escalated_and_reported_to_the_user() {
    let engine = engine(UNHURRIED).await;
    let tools = ScriptedTools::new([("flight_search", refuses())]);
    let turned = turn(&engine, &tools, r#"{"calls":[{"id":"f","tool":"t/flight_search"}]}"#).await;
    assert!(turned.result.escalated && turned.result.calls[0].escalated);
    let summary = "Nothing was completed: flight search failed; flight search needs your attention";
    assert_eq!(turned.result.summary, summary);
    assert_eq!(tools.runs("flight_search"), 1);
}

#[tokio::test(start_paused = true)]
async fn eh_6_6_eh_3_1_the_trace_has_each_error_with_its_class_breaker_decision_and_outcome() {
    let engine = engine(UNHURRIED).await;
    let tools = ScriptedTools::new([("flight_search", script(async |_| reset()))]);
    let turned = turn(&engine, &tools, r#"{"calls":[{"id":"f","tool":"t/flight_search"}]}"#).await;
    let story = story(&engine, &turned).await;
    let errors = events(&story, TraceEventType::ToolError);
    assert_eq!(errors.len(), 5, "{:#?}", sentences(&story));
    for error in &errors {
        assert!(error.error.is_some() && error.classification.is_some() && error.decision.is_some());
        assert!(
            error.circuit_breaker_state.is_some() && error.retry_count.is_some() && error.span_id.is_some()
        );
    }
    // The message is that of the tool, also for a retry. The rule is for machines.
    assert!(errors.iter().all(|error| error.rule.as_deref() == Some("transport.reset")), "{errors:#?}");
    let again = errors.iter().filter(|error| error.decision == Some(FailureStrategy::Retry));
    let texts: Vec<_> = again.map(|error| error.sentence.as_str()).collect();
    assert_eq!(texts, ["Tool failed: flight_search, connection reset"; 4]);
    assert_sentence(&story, "Circuit breaker opened for flight_search");
    assert_eq!(events(&story, TraceEventType::Decision).len(), 5);
    assert_eq!(story.turn.status, Some(TurnStatus::Failed));
    // The turn and its one call, each with an end.
    assert_eq!(story.spans.len(), 2);
    assert!(story.spans.iter().all(|span| span.ended_at.is_some()));
    assert_eq!(story.spans[1].parent_span_id, Some(story.spans[0].span_id));
}

#[tokio::test(start_paused = true)]
async fn eh_7_3_a_retry_that_takes_too_long_is_ended_and_made_again() {
    let engine = engine(UNHURRIED).await;
    let tools = ScriptedTools::new([(
        "flight_search",
        script(async |number| match number {
            1 => {
                tokio::time::sleep(Duration::from_secs(25)).await;
                reset()
            }
            2 => std::future::pending().await,
            _ => ok(),
        }),
    )]);
    let text = r#"{"deadlineMs":60000,"calls":[{"id":"f","tool":"t/flight_search","timeoutMs":30000}]}"#;
    let before = tokio::time::Instant::now();
    let turned = turn(&engine, &tools, text).await;
    assert_eq!(turned.result.status, TurnStatus::Completed);
    assert_eq!((tools.runs("flight_search"), before.elapsed().as_secs()), (3, 55));
}

#[tokio::test(start_paused = true)]
async fn eh_7_4_the_deadline_of_the_turn_ends_a_retry_and_nothing_is_tried_after_it() {
    let engine = engine(&format!("{UNHURRIED}timeout = \"40s\"\n")).await;
    let tools = ScriptedTools::new([
        (
            "flight_search",
            script(async |number| {
                if number > 1 {
                    return std::future::pending().await;
                }
                tokio::time::sleep(Duration::from_secs(25)).await;
                reset()
            }),
        ),
        ("hotel_search", replies("1")),
    ]);
    let text = r#"{"deadlineMs":60000,"calls":[{"id":"f","tool":"t/flight_search","timeoutMs":40000},
        {"id":"h","tool":"t/hotel_search"}]}"#;
    let before = tokio::time::Instant::now();
    let turned = turn(&engine, &tools, text).await;
    assert_eq!(before.elapsed().as_secs(), 60);
    assert_eq!(outcomes(&turned), [("f", TurnCallOutcome::Cancelled), ("h", TurnCallOutcome::Succeeded)]);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(tools.runs("flight_search"), 2, "nothing is tried after the deadline");
}
