//! Attempts of a counting tool: their number, their times, and the reports about them.
//!
//! All tests use the unchanged profile. If a test changes a setting, its requirement or the comment beside it gives the
//! reason.

use std::pin::Pin;

use steadfast::admin::breaker::State;
use steadfast::call::classify::{AttemptFault, FaultSource, TransportError};
use steadfast::call::code::{CallStatus, Code};
use steadfast::call::envelope::{CallEnvelope, UnknownFieldPolicy};
use steadfast::call::{ResolvedTool, ToolRegistry};
use steadfast::turn::{TurnCallOutcome, TurnStatus};
use steadfast::{Attempt, CallResponse, ToolHandler};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::*;

/// A tool for calls and turns that records the start of each attempt.
#[derive(Clone)]
struct TimedTool {
    script: Arc<ToolScript>,
    starts: Arc<Mutex<Vec<Instant>>>,
}

impl TimedTool {
    fn new(script: ToolScript) -> Self {
        Self { script: Arc::new(script), starts: Arc::default() }
    }

    /// Returns the n-th result in the n-th run, and the last one in all further runs.
    fn answers<const N: usize>(answers: [fn() -> ToolResult; N]) -> Self {
        Self::new(script(move |number| {
            let number = usize::try_from(number).unwrap();
            let answer = answers.iter().take(number).next_back().unwrap()();
            async move { answer }
        }))
    }

    fn runs(&self) -> usize {
        self.starts.lock().len()
    }

    /// Returns the time from the first start to each start.
    fn starts(&self) -> Vec<Duration> {
        let mut so_far = Duration::ZERO;
        let later = self.waits().into_iter().map(|wait| {
            so_far += wait;
            so_far
        });
        [Duration::ZERO].into_iter().chain(later).collect()
    }

    /// Returns the time from each start to the next.
    fn waits(&self) -> Vec<Duration> {
        let starts = self.starts.lock();
        starts.iter().zip(starts.iter().skip(1)).map(|(start, next)| next.duration_since(*start)).collect()
    }
}

impl ToolHandler for TimedTool {
    fn run(&self, attempt: Attempt) -> impl Future<Output = ToolResult> + Send + 'static {
        let number = {
            let mut starts = self.starts.lock();
            starts.push(Instant::now());
            u32::try_from(starts.len()).unwrap()
        };
        (self.script)(number, attempt)
    }
}

impl ToolRegistry for TimedTool {
    fn find<'a>(
        &'a self,
        _: &'a CallEnvelope,
    ) -> Pin<Box<dyn Future<Output = Option<ResolvedTool>> + Send + 'a>> {
        Box::pin(async { Some(ResolvedTool::new(self.clone())) })
    }
}

/// The unchanged profile.
const AS_MEASURED: &str = "";

fn code(called: &CallResponse) -> Option<Code> {
    called.result.error.as_ref().map(|error| error.code)
}

/// Returns the n-th call of a tool, with its own arguments and its own turn, so that it neither counts as a loop nor
/// adds to the errors of a turn.
fn nth(number: u32, tool: &str) -> CallEnvelope {
    let text = format!(
        r#"{{"contractVersion":"1.1","requestId":"r{number}","toolName":"{tool}","toolNamespace":"t",
            "target":{{"sessionKey":"s","actorId":"ann","turnId":"turn-{number}"}},
            "payload":{{"version":"1.0","params":{{"number":{number}}}}}}}"#
    );
    CallEnvelope::parse(text.as_bytes(), UnknownFieldPolicy::Refuse).unwrap()
}

fn search(number: u32) -> CallEnvelope {
    nth(number, "flight_search")
}

fn failure(source: FaultSource, words: &str) -> ToolResult {
    Err(AttemptFault::new(source, words).into())
}

/// A timeout, with the text of the seed.
fn timed_out() -> ToolResult {
    failure(FaultSource::Tool, "Connection timeout after 30s")
}

fn rate_limited() -> ToolResult {
    failure(FaultSource::Tool, "Rate limit exceeded (429)")
}

fn invalid_input() -> ToolResult {
    failure(FaultSource::Tool, "Invalid airport code: XYZ")
}

fn unauthenticated() -> ToolResult {
    failure(FaultSource::Tool, "Authentication failed (401)")
}

#[track_caller]
fn about(wait: Duration, expected: u64) {
    let (wait, most) = (wait.as_millis(), u128::from(expected / 10));
    assert!(wait.abs_diff(expected.into()) <= most, "{wait} ms is not {expected} ms give or take a tenth");
}

const ONE_SEARCH: &str = r#"{"calls":[{"id":"f","tool":"t/flight_search"}]}"#;

// ---- 1: classification ----

/// Handling of an error: its entry in the trace, and the reason of the decision.
struct HandledError {
    error: TraceEvent,
    reason: String,
    turned: TurnResponse,
    /// Runs of the tool in a turn, and in a call without one.
    runs: (usize, usize),
}

/// Runs a tool that fails once in this way and would then succeed.
async fn judged(fails: fn() -> ToolResult) -> HandledError {
    let in_turn = TimedTool::answers([fails, ok]);
    let engine = engine(AS_MEASURED).await;
    let turned = engine.turn(plan(ONE_SEARCH), Arc::new(in_turn.clone()), options()).await.unwrap();
    let story = story(&engine, &turned).await;
    let error = story.events.iter().find(|event| event.classification.is_some()).unwrap().clone();
    let reason = events(&story, TraceEventType::Decision).first().unwrap().reason.clone().unwrap();

    let alone = TimedTool::answers([fails, ok]);
    let called = super::engine(AS_MEASURED).await.call(search(1), alone.clone()).await;
    assert_eq!(called.result.attempts as usize, alone.runs());
    assert_eq!(called.result.status == CallStatus::Success, alone.runs() == 2);
    HandledError { error, reason, turned, runs: (in_turn.runs(), alone.runs()) }
}

async fn is_transient(fails: fn() -> ToolResult) {
    let judged = judged(fails).await;
    assert_eq!(judged.error.classification, Some(FaultNature::Transient), "{:?}", judged.error);
    assert_eq!(judged.error.decision, Some(FailureStrategy::Retry));
    assert!(judged.reason.starts_with("transient error"), "{}", judged.reason);
    assert_eq!((judged.runs, judged.turned.result.status), ((2, 2), TurnStatus::Completed));
}

async fn is_permanent(fails: fn() -> ToolResult) {
    let judged = judged(fails).await;
    assert_eq!(judged.error.classification, Some(FaultNature::Permanent), "{:?}", judged.error);
    assert_ne!(judged.error.decision, Some(FailureStrategy::Retry));
    assert!(judged.reason.starts_with("permanent error (no retry helps)"), "{}", judged.reason);
    assert_eq!((judged.runs, judged.turned.result.status), ((1, 1), TurnStatus::Failed));
}

#[tokio::test(start_paused = true)]
async fn eh_1_1_a_connection_that_times_out_is_transient_and_tried_again() {
    is_transient(timed_out).await;
    is_transient(|| failure(FaultSource::IsError, "Connection timeout after 30s")).await;
    is_transient(|| {
        let source = FaultSource::Transport { error: TransportError::TimedOut, written: true };
        failure(source, "Connection timeout after 30s")
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn eh_1_2_invalid_input_is_permanent_and_not_tried_again() {
    is_permanent(invalid_input).await;
    is_permanent(|| failure(FaultSource::IsError, "Invalid airport code: XYZ")).await;
    is_permanent(invalid).await;
}

#[tokio::test(start_paused = true)]
async fn eh_1_3_a_rate_limit_is_transient_and_tried_again() {
    is_transient(rate_limited).await;
    is_transient(|| failure(FaultSource::IsError, "Rate limit exceeded (429)")).await;
    is_transient(|| failure(FaultSource::Http { status: 429 }, "")).await;
}

#[tokio::test(start_paused = true)]
async fn eh_1_4_failed_authentication_is_permanent_and_not_tried_again() {
    is_permanent(unauthenticated).await;
    is_permanent(|| failure(FaultSource::IsError, "Authentication failed (401)")).await;
    is_permanent(|| failure(FaultSource::Http { status: 401 }, "")).await;
}

// ---- 2: retries ----

#[tokio::test(start_paused = true)]
async fn eh_2_1_five_attempts_start_100_200_400_and_800_ms_after_each_other() {
    let mut patterns = Vec::new();
    for run in 0..20 {
        // The duration of an attempt does not delay the next one: the backoff counts from start to start.
        let takes = Duration::from_millis(run * 4);
        let tool = TimedTool::new(script(move |_| async move {
            tokio::time::sleep(takes).await;
            timed_out()
        }));
        let called = engine(AS_MEASURED).await.call(search(1), tool.clone()).await;
        assert_eq!((tool.runs(), called.result.attempts), (5, 5));
        let waits = tool.waits();
        for (wait, expected) in waits.iter().zip([100, 200, 400, 800]) {
            about(*wait, expected);
        }
        about(tool.starts()[4], 1500);
        patterns.push(waits);
    }
    patterns.sort_unstable();
    patterns.dedup();
    assert!(patterns.len() > 10, "twenty runs, each with a jitter of its own: {patterns:?}");
}

#[tokio::test(start_paused = true)]
async fn eh_2_2_waits_are_spread_by_a_tenth_and_keep_their_mean() {
    for _ in 0..20 {
        // Ten retries with the same backoff. The breaker would end them at the fifth failure.
        let ten = "retry.attempts = 11\nretry.base = \"100ms\"\nretry.factor = 1\nbreaker.mode = \"off\"\n";
        let tool = TimedTool::answers([timed_out]);
        engine(ten).await.call(search(1), tool.clone()).await;
        let mut waits = tool.waits();
        assert_eq!(waits.len(), 10);
        waits.iter().for_each(|wait| about(*wait, 100));
        let mean = waits.iter().sum::<Duration>() / 10;
        assert!(mean.abs_diff(Duration::from_millis(100)) <= Duration::from_millis(5), "{waits:?}");
        waits.sort_unstable();
        waits.dedup();
        assert!(waits.len() >= 8, "at least 80 % are different: {waits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn eh_2_3_after_the_fifth_attempt_the_caller_gets_the_error_and_there_is_no_sixth() {
    let nothing_else = "breaker.mode = \"off\"\nretry.total = \"none\"\n";
    // With the profile, and with settings in which only the number of attempts is limited.
    for settings in [AS_MEASURED, nothing_else] {
        let tool = TimedTool::answers([timed_out]);
        let engine = engine(settings).await;
        let called = engine.call(search(1), tool.clone()).await;
        assert_eq!((called.result.status, called.result.attempts), (CallStatus::RetryExhausted, 5));
        let error = called.result.error.unwrap();
        assert_eq!(error.code, Code::RetryExhausted);
        assert!(error.message.contains("Connection timeout after 30s"), "{}", error.message);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!((tool.runs(), engine.in_flight_calls()), (5, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn eh_2_4_no_attempt_starts_when_two_seconds_are_over() {
    let takes = Duration::from_millis(600);
    let tool = TimedTool::new(script(move |_| async move {
        tokio::time::sleep(takes).await;
        timed_out()
    }));
    let engine = engine(AS_MEASURED).await;
    let before = Instant::now();
    let called = engine.call(search(1), tool.clone()).await;
    assert_eq!(tool.starts(), [0, 600, 1200, 1800].map(Duration::from_millis));
    assert_eq!(before.elapsed(), 4 * takes, "the caller is told when the fourth one ends");
    assert_eq!((code(&called), called.result.attempts), (Some(Code::RetryExhausted), 4));
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(tool.runs(), 4);
}

#[tokio::test(start_paused = true)]
async fn eh_2_5_the_settings_of_a_tool_are_heeded_and_those_of_others_stay() {
    let own = "[tools.\"t/custom_api\".retry]\nattempts = 3\nbase = \"50ms\"\ncap = \"2s\"\n";
    let engine = engine(own).await;
    for (number, name, expected) in [(1, "custom_api", &[50, 100][..]), (2, "other", &[100, 200, 400, 800])] {
        let tool = TimedTool::answers([timed_out]);
        let called = engine.call(nth(number, name), tool.clone()).await;
        assert_eq!((tool.runs(), called.result.attempts as usize), (expected.len() + 1, expected.len() + 1));
        tool.waits().into_iter().zip(expected).for_each(|(wait, expected)| about(wait, *expected));
    }
}

// ---- 3: the breaker ----

/// Returns the state of the tool's breaker, and its number of consecutive failures.
async fn breaker(engine: &Engine) -> (State, u32) {
    let breakers = engine.admin().breakers(None).await;
    let own = breakers.iter().find(|breaker| breaker.key == first_tool());
    own.map_or((State::Closed, 0), |breaker| (breaker.view.state, breaker.view.in_a_row))
}

fn not_found() -> ToolResult {
    failure(FaultSource::Http { status: 404 }, "Not found")
}

/// Returns a tool that records the state of its breaker in each run.
fn looking(
    engine: &Engine,
    answers: impl Fn(u32) -> ToolResult + Send + Sync + 'static,
) -> (TimedTool, BreakerObservations) {
    let looks = BreakerObservations::default();
    let (observations, engine, answers) = (looks.clone(), engine.clone(), Arc::new(answers));
    let tool = TimedTool::new(script(move |number| {
        let (observations, engine, answers) = (observations.clone(), engine.clone(), answers.clone());
        async move {
            let now = breaker(&engine).await;
            observations.lock().push(now);
            answers(number)
        }
    }));
    (tool, looks)
}

type BreakerObservations = Arc<Mutex<Vec<(State, u32)>>>;

/// Asserts that a call is refused without a run and without a wait.
async fn is_refused_at_once(engine: &Engine, tool: &TimedTool, number: u32) {
    let (runs, before) = (tool.runs(), Instant::now());
    let called = engine.call(search(number), tool.clone()).await;
    assert_eq!((code(&called), called.result.attempts), (Some(Code::CircuitOpen), 0), "{:?}", called.result);
    assert_eq!((tool.runs() - runs, before.elapsed()), (0, Duration::ZERO));
}

const CLOSED_FOUR_TIMES: [(State, u32); 5] =
    [(State::Closed, 0), (State::Closed, 1), (State::Closed, 2), (State::Closed, 3), (State::Closed, 4)];

#[tokio::test(start_paused = true)]
async fn eh_3_1_the_fifth_failure_opens_the_breaker_and_the_sixth_attempt_is_refused_at_once() {
    let engine = engine(AS_MEASURED).await;
    let (tool, looks) = looking(&engine, |_| timed_out());
    let first = engine.turn(plan(ONE_SEARCH), Arc::new(tool.clone()), options()).await.unwrap();
    assert_eq!((tool.runs(), &looks.lock()[..]), (5, &CLOSED_FOUR_TIMES[..]));
    assert_eq!(breaker(&engine).await.0, State::Open);
    let trace = story(&engine, &first).await;
    assert_sentence(&trace, "Circuit breaker opened for flight_search");
    assert_eq!(events(&trace, TraceEventType::CircuitBreaker).len(), 1);

    is_refused_at_once(&engine, &tool, 6).await;
    let before = Instant::now();
    let sixth = engine.turn(plan(ONE_SEARCH), Arc::new(tool.clone()), options()).await.unwrap();
    assert_eq!(sixth.result.calls[0].code, Some(Code::CircuitOpen));
    assert_eq!((tool.runs(), before.elapsed()), (5, Duration::ZERO));
}

/// Returns an engine with a breaker that five failures have just opened. `then` is the later behavior of the tool.
async fn opened(then: impl Fn(u32) -> ScriptedAttempt + Send + Sync + 'static) -> (Engine, TimedTool) {
    let engine = engine(AS_MEASURED).await;
    let tool = TimedTool::new(Box::new(move |number, _| match number {
        1..=5 => Box::pin(async { timed_out() }),
        _ => then(number - 5),
    }));
    engine.call(search(0), tool.clone()).await;
    assert_eq!((tool.runs(), breaker(&engine).await.0), (5, State::Open));
    (engine, tool)
}

#[tokio::test(start_paused = true)]
async fn eh_3_2_after_thirty_seconds_exactly_one_attempt_passes_and_decides() {
    let (second, tenth) = (Duration::from_secs(1), Duration::from_millis(100));
    for (answer, then) in [(ok as fn() -> ToolResult, State::Closed), (timed_out, State::Open)] {
        let leave = Arc::new(Semaphore::new(0));
        let waits_for = leave.clone();
        let (engine, tool) = opened(move |_| {
            let leave = waits_for.clone();
            Box::pin(async move {
                leave.acquire().await.unwrap().forget();
                answer()
            })
        })
        .await;
        is_refused_at_once(&engine, &tool, 1).await;
        tokio::time::sleep(15 * second).await;
        assert_eq!(breaker(&engine).await.0, State::Open);
        is_refused_at_once(&engine, &tool, 2).await;
        tokio::time::sleep(15 * second - tenth).await;
        assert_eq!(breaker(&engine).await.0, State::Open);
        is_refused_at_once(&engine, &tool, 3).await;
        tokio::time::sleep(tenth).await;
        assert_eq!(breaker(&engine).await.0, State::HalfOpen, "nobody has called yet");

        let probe = tokio::spawn(engine.call(search(4), tool.clone()));
        settle().await;
        assert_eq!(tool.runs(), 6);
        for number in 5..15 {
            is_refused_at_once(&engine, &tool, number).await;
        }
        tokio::time::sleep(10 * second).await;
        is_refused_at_once(&engine, &tool, 15).await;
        assert_eq!(breaker(&engine).await.0, State::HalfOpen);

        let before = Instant::now();
        leave.add_permits(1);
        probe.await.unwrap();
        assert_eq!((breaker(&engine).await.0, before.elapsed()), (then, Duration::ZERO));
        assert_eq!(tool.runs(), 6, "the probe is not tried again");
        leave.add_permits(100);
        if then == State::Open {
            // The thirty seconds start again.
            tokio::time::sleep(30 * second - tenth).await;
            assert_eq!(breaker(&engine).await.0, State::Open);
            is_refused_at_once(&engine, &tool, 16).await;
            tokio::time::sleep(tenth).await;
            assert_eq!(breaker(&engine).await.0, State::HalfOpen);
        }
        engine.call(search(17), tool.clone()).await;
        assert_eq!(tool.runs(), 7);
    }
}

#[tokio::test(start_paused = true)]
async fn eh_3_3_a_probe_that_succeeds_closes_the_breaker_and_counting_begins_at_nothing() {
    let (engine, probed) = opened(|_| Box::pin(async { ok() })).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(breaker(&engine).await.0, State::HalfOpen);
    let called = engine.call(search(1), probed.clone()).await;
    assert_eq!((called.result.status, probed.runs()), (CallStatus::Success, 6));
    assert_eq!(breaker(&engine).await, (State::Closed, 0));

    // As before: four failures are tolerated, and concurrent calls all run.
    let (tool, looks) = looking(&engine, |number| if number < 5 { timed_out() } else { ok() });
    let called = engine.call(search(2), tool.clone()).await;
    assert_eq!((called.result.status, called.result.attempts), (CallStatus::Success, 5));
    assert_eq!((tool.runs(), &looks.lock()[..]), (5, &CLOSED_FOUR_TIMES[..]));
    let leave = Arc::new(Semaphore::new(0));
    let waits_for = leave.clone();
    let gated = TimedTool::new(script(move |_| {
        let leave = waits_for.clone();
        async move {
            leave.acquire().await.unwrap().forget();
            ok()
        }
    }));
    let calls: Vec<_> = (3..13).map(|n| tokio::spawn(engine.call(search(n), gated.clone()))).collect();
    settle().await;
    assert_eq!(gated.runs(), 10);
    leave.add_permits(10);
    for call in calls {
        assert_eq!(call.await.unwrap().result.status, CallStatus::Success);
    }
}

#[tokio::test(start_paused = true)]
async fn eh_3_4_permanent_errors_do_not_change_the_breaker() {
    let engine = engine(AS_MEASURED).await;
    let tool =
        TimedTool::answers([invalid_input, unauthenticated, not_found, invalid_input, unauthenticated, ok]);
    for number in 1..=5 {
        let called = engine.call(search(number), tool.clone()).await;
        assert_eq!((code(&called), called.result.attempts), (Some(Code::ToolError), 1));
        assert_eq!((tool.runs(), breaker(&engine).await), (number as usize, (State::Closed, 0)));
    }
    let called = engine.call(search(6), tool.clone()).await;
    assert_eq!((called.result.status, tool.runs()), (CallStatus::Success, 6));
}

#[tokio::test(start_paused = true)]
async fn eh_3_5_transient_errors_of_any_kind_count_until_the_breaker_opens() {
    let errors = [timed_out, rate_limited, reset, timed_out, rate_limited];
    // As attempts of one call, and as separate calls without retries.
    for attempts in [5, 1] {
        let engine = engine(&format!("retry.attempts = {attempts}\n")).await;
        let (tool, looks) = looking(&engine, move |number| errors[number as usize - 1]());
        for number in 0..5 / attempts {
            engine.call(search(number), tool.clone()).await;
        }
        assert_eq!((tool.runs(), &looks.lock()[..]), (5, &CLOSED_FOUR_TIMES[..]));
        assert_eq!(breaker(&engine).await, (State::Open, 5));
        is_refused_at_once(&engine, &tool, 9).await;
    }
}

// ---- 4 to 6: turns ----

#[tokio::test(start_paused = true)]
async fn eh_4_4_a_timeout_is_in_the_trace_with_tool_limit_and_time() {
    let engine = engine(AS_MEASURED).await;
    let tool = TimedTool::new(hangs());
    let started = engine.now();
    let turned = engine.turn(plan(ONE_SEARCH), Arc::new(tool.clone()), options()).await.unwrap();
    assert_eq!(tool.runs(), 1, "after thirty seconds there is no time for retries");
    let story = story(&engine, &turned).await;
    let entries = events(&story, TraceEventType::ToolTimeout);
    assert_eq!(entries.len(), 1, "{:#?}", sentences(&story));
    assert_eq!(entries[0].timestamp, started + Duration::from_secs(30));
    let entry = serde_json::to_value(entries[0]).unwrap();
    assert_eq!((&entry["event_type"], &entry["tool_id"]), (&"ToolTimeout".into(), &"flight_search".into()));
    assert_eq!(entry["timeout_ms"], 30_000);
    let moment = chrono::DateTime::parse_from_rfc3339(entry["timestamp"].as_str().unwrap()).unwrap();
    assert_eq!(u64::try_from(moment.timestamp_millis()).unwrap(), started.as_millis() + 30_000);
}

#[tokio::test(start_paused = true)]
async fn eh_5_2_optional_dependants_of_a_failed_call_are_skipped_and_required_ones_escalate() {
    let engine = engine(AS_MEASURED).await;
    let tools = ScriptedTools::new([
        ("flight_search", refuses()),
        ("compare_prices", replies("1")),
        ("create_itinerary", replies("1")),
    ]);
    let turned = turn(
        &engine,
        &tools,
        r#"{"calls":[{"id":"a","tool":"t/flight_search"},
            {"id":"b","tool":"t/compare_prices","required":false,"dependsOn":["a"]},
            {"id":"c","tool":"t/create_itinerary","dependsOn":["a"]}]}"#,
    )
    .await;
    let skipped = TurnCallOutcome::Skipped;
    assert_eq!(outcomes(&turned), [("a", TurnCallOutcome::Failed), ("b", skipped), ("c", skipped)]);
    let escalated: Vec<_> = turned.result.calls[1..].iter().map(|call| call.escalated).collect();
    assert_eq!((escalated, turned.result.escalated), (vec![false, true], true));
    assert_eq!((tools.runs("compare_prices"), tools.runs("create_itinerary")), (0, 0));
    let story = story(&engine, &turned).await;
    let required = "Required tool skipped due to dependency failure";
    let about = |event: &&TraceEvent| event.sentence.starts_with(required);
    let call_ids: Vec<_> =
        story.events.iter().filter(about).map(|event| event.call_id.as_ref().unwrap()).collect();
    assert_eq!(call_ids.iter().map(|id| id.as_str()).collect::<Vec<_>>(), ["c"], "{:#?}", sentences(&story));
}

#[tokio::test(start_paused = true)]
async fn eh_6_2_a_first_timeout_with_a_closed_breaker_is_decided_as_a_retry_and_retried() {
    // A timeout of the network, and one of the engine: a second, which leaves time for a retry.
    let own = script(async |number| if number == 1 { std::future::pending().await } else { ok() });
    let network = script(async |number| if number == 1 { timed_out() } else { ok() });
    for (script, wait) in [(network, 100), (own, 1000)] {
        let engine = engine(AS_MEASURED).await;
        let tool = TimedTool::new(script);
        let text = r#"{"calls":[{"id":"f","tool":"t/flight_search","timeoutMs":1000}]}"#;
        let turned = engine.turn(plan(text), Arc::new(tool.clone()), options()).await.unwrap();
        let story = story(&engine, &turned).await;
        let error = story.events.iter().find(|event| event.classification.is_some()).unwrap();
        assert_eq!(error.classification, Some(FaultNature::Transient));
        assert_eq!((error.circuit_breaker_state, error.retry_count), (Some(State::Closed), Some(0)));
        let decided = events(&story, TraceEventType::Decision);
        assert_eq!((decided.len(), decided[0].decision), (1, Some(FailureStrategy::Retry)));
        let reason = "transient error, circuit closed, retries available (4 left)";
        assert_eq!(decided[0].reason.as_deref(), Some(reason));
        assert_eq!((tool.runs(), turned.result.status), (2, TurnStatus::Completed));
        about(tool.waits()[0], wait);
    }
}

// ---- 7: edges ----

#[tokio::test(start_paused = true)]
async fn eh_7_1_of_ten_rapid_failures_five_are_attempts_with_growing_delays_and_five_are_refused() {
    let engine = engine(AS_MEASURED).await;
    let tool = TimedTool::answers([timed_out]);
    let called = engine.call(search(1), tool.clone()).await;
    assert_eq!((called.result.attempts, called.result.retried_by.len()), (5, 4));
    tool.waits().into_iter().zip([100, 200, 400, 800]).for_each(|(wait, expected)| about(wait, expected));
    for number in 6..=10 {
        is_refused_at_once(&engine, &tool, number).await;
    }
    assert_eq!((tool.runs(), breaker(&engine).await.0), (5, State::Open));

    // A call with ten attempts is not retried against an open breaker either.
    let engine = super::engine("retry.attempts = 10\nretry.total = \"none\"\n").await;
    let tool = TimedTool::answers([timed_out]);
    let called = engine.call(search(1), tool.clone()).await;
    assert_ne!(called.result.status, CallStatus::Success);
    assert_eq!((tool.runs(), breaker(&engine).await.0), (5, State::Open));
}

/// The retry of the first error succeeds, so that only the third one counts when it comes.
#[tokio::test(start_paused = true)]
async fn eh_7_2_of_mixed_errors_the_transient_are_tried_again_and_counted_and_the_permanent_escalate() {
    let engine = engine(AS_MEASURED).await;
    let (tool, looks) = looking(&engine, |number| match number {
        1 => timed_out(),
        3 => invalid_input(),
        4 => rate_limited(),
        _ => ok(),
    });
    let mut decided = Vec::new();
    let mut escalated = Vec::new();
    for number in 1..=3 {
        let text =
            format!(r#"{{"calls":[{{"id":"f","tool":"t/flight_search","params":{{"number":{number}}}}}]}}"#);
        let turned = engine.turn(plan(&text), Arc::new(tool.clone()), options()).await.unwrap();
        let story = story(&engine, &turned).await;
        decided.extend(events(&story, TraceEventType::Decision).iter().filter_map(|event| event.decision));
        escalated.push(turned.result.escalated);
    }
    assert_eq!(decided, [FailureStrategy::Retry, FailureStrategy::Escalate, FailureStrategy::Retry]);
    assert_eq!((tool.runs(), escalated), (5, vec![false, true, false]));
    let counted: Vec<_> = looks.lock().iter().map(|(_, count)| *count).collect();
    assert_eq!(
        counted,
        [0, 1, 0, 0, 1],
        "before the first try, its retry, the second, the third and its retry"
    );
    assert!(looks.lock().iter().all(|(state, _)| *state == State::Closed));
}
