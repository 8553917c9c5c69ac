//! Turns over the engine: several calls that depend on each other.

mod edges;
mod errors;

use std::collections::BTreeMap;

use parking_lot::Mutex;
use steadfast_core::id::{Namespace, ToolName, ToolRef};
use steadfast_core::turn::trace::{Event, EventType, Fact, Note};
use steadfast_core::turn::{EndedBy, Limits, Outcome, Plan, Strategy, TurnStatus};
use steadfast_executor::{
    BreakerKey, Found, NotDone, Shelf, Steer, TurnAbout, TurnOptions, TurnRefused, TurnStory, Turned,
};

use super::*;

/// What a tool of the shelf does in its n-th run.
type Script = Box<dyn Fn(u32, Attempt) -> Answering + Send + Sync>;
type Answering = std::pin::Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Tools by name, with how often each ran.
#[derive(Clone, Default)]
struct Tools {
    scripts: Arc<BTreeMap<&'static str, Script>>,
    runs: Arc<Mutex<BTreeMap<String, Vec<String>>>>,
}

impl Tools {
    fn new(scripts: impl IntoIterator<Item = (&'static str, Script)>) -> Self {
        Self { scripts: Arc::new(scripts.into_iter().collect()), runs: Arc::default() }
    }

    fn runs(&self, tool: &str) -> usize {
        self.runs.lock().get(tool).map_or(0, Vec::len)
    }

    /// The arguments of the last run.
    fn last(&self, tool: &str) -> String {
        self.runs.lock().get(tool).and_then(|runs| runs.last()).unwrap().clone()
    }
}

impl Shelf for Tools {
    fn find<'a>(
        &'a self,
        envelope: &'a CallEnvelope,
    ) -> std::pin::Pin<Box<dyn Future<Output = Option<Found>> + Send + 'a>> {
        let name = envelope.tool_name.to_string();
        let found = self.scripts.contains_key(name.as_str()).then(|| {
            let this = self.clone();
            Found::new(move |attempt: Attempt| {
                let number = {
                    let mut runs = this.runs.lock();
                    let ran = runs.entry(name.clone()).or_default();
                    ran.push(attempt.params().to_owned());
                    u32::try_from(ran.len()).unwrap()
                };
                (this.scripts.get(name.as_str()).unwrap())(number, attempt)
            })
        });
        Box::pin(async move { found })
    }
}

/// A tool by what it does in its n-th run.
fn script<F: Future<Output = Answer> + Send + 'static>(
    run: impl Fn(u32) -> F + Send + Sync + 'static,
) -> Script {
    Box::new(move |number, _| Box::pin(run(number)))
}

fn says(output: &'static str) -> Script {
    Box::new(move |_, _| Box::pin(async move { Ok(said(output)) }))
}

fn said(output: &str) -> Output {
    Output { content: RawJson::from_trusted(output), metadata: None }
}

fn invalid() -> Answer {
    Err(Fault::new(Source::Http { status: 400 }, "Invalid airport code: XYZ").into())
}

fn refuses() -> Script {
    Box::new(|_, _| Box::pin(async { invalid() }))
}

/// Works until it is told to stop.
fn hangs() -> Script {
    Box::new(|_, attempt| {
        Box::pin(async move {
            attempt.cancelled().await;
            reset()
        })
    })
}

fn plan(text: &str) -> Arc<Plan> {
    Arc::new(Plan::parse(text.as_bytes(), &Limits::DEFAULT).unwrap())
}

fn options() -> TurnOptions {
    TurnOptions::of(pay(1, None).target)
}

/// The profile by which the requirements of errors are measured, with as much time for retries as they need.
fn measured(class: ToolClass) -> Policy {
    let mut policy = Profile::Measured.policy(class);
    policy.retry.total = None;
    policy
}

async fn turn(engine: &Engine, tools: &Tools, text: &str) -> Turned {
    engine.turn(plan(text), Arc::new(tools.clone()), options()).await.unwrap()
}

async fn story(engine: &Engine, turned: &Turned) -> TurnStory {
    engine.story(&turned.trace.to_string()).await.unwrap().unwrap()
}

fn sentences(story: &TurnStory) -> Vec<&str> {
    story.events.iter().map(|event| event.sentence.as_str()).collect()
}

#[track_caller]
fn tells(story: &TurnStory, sentence: &str) {
    assert!(sentences(story).iter().any(|told| told.starts_with(sentence)), "{:#?}", sentences(story));
}

fn outcomes(turned: &Turned) -> Vec<(&str, Outcome)> {
    turned.result.calls.iter().map(|call| (call.id.as_str(), call.outcome)).collect()
}

fn events(story: &TurnStory, event_type: EventType) -> Vec<&Event> {
    story.events.iter().filter(|event| event.event_type == event_type).collect()
}

const SEARCHES: &str = r#"{"deadlineMs":300000,"calls":[{"id":"f","tool":"t/flight_search"},
    {"id":"h","tool":"t/hotel_search"},{"id":"a","tool":"t/activity_search"}]}"#;

#[tokio::test(start_paused = true)]
async fn eh_4_1_an_attempt_ends_at_the_time_out_of_its_tool_and_is_made_again() {
    let engine = engine(measured(ToolClass::ReadOnly)).await;
    let tools = Tools::new([(
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
    // EH-4.4: with its limit; EH-4.3: as a transient error; EH-6.2: which is made again, and why.
    let timeouts = events(&story, EventType::ToolTimeout);
    assert_eq!(timeouts.len(), 1, "{:#?}", sentences(&story));
    assert_eq!(timeouts[0].timeout_ms, Some(30_000));
    assert_eq!(timeouts[0].tool_id.as_ref().unwrap().as_str(), "flight_search");
    assert_eq!(timeouts[0].decision, Some(Strategy::Retry));
}

#[tokio::test(start_paused = true)]
async fn eh_4_3_a_time_out_is_a_transient_error() {
    let engine = engine(measured(ToolClass::ReadOnly)).await;
    let tools = Tools::new([("flight_search", hangs())]);
    let text = r#"{"calls":[{"id":"f","tool":"t/flight_search","timeoutMs":1000}]}"#;
    let turned = turn(&engine, &tools, text).await;
    let story = story(&engine, &turned).await;
    let timeouts = events(&story, EventType::ToolTimeout);
    assert_eq!(timeouts.len(), 5, "each of the attempts: {:#?}", sentences(&story));
    let transient = Some(steadfast_core::classify::Nature::Transient);
    assert!(timeouts.iter().all(|event| event.classification == transient));
    assert_eq!(events(&story, EventType::ToolRetry).len(), 4);
}

#[tokio::test(start_paused = true)]
async fn eh_4_2_at_the_deadline_what_is_finished_is_returned_and_the_rest_is_named() {
    for (class, hotel, sentence) in [
        (
            ToolClass::ReadOnly,
            Outcome::Cancelled,
            "Completed flight search, but hotel search and activity search timed out",
        ),
        (
            ToolClass::Idempotent,
            Outcome::Cancelled,
            "Completed flight search, but hotel search and activity search timed out",
        ),
        (
            ToolClass::Mutating,
            Outcome::LeftRunning,
            "Completed flight search, but hotel search and activity search timed out and are still running",
        ),
    ] {
        let mut policy = measured(class);
        policy.time.attempt = Duration::from_secs(3600);
        policy.time.total = Duration::from_secs(7200);
        let engine = engine(policy).await;
        let tools = Tools::new([
            ("flight_search", says(r#"{"best":1}"#)),
            ("hotel_search", hangs()),
            ("activity_search", hangs()),
        ]);
        let before = tokio::time::Instant::now();
        let turned = turn(&engine, &tools, SEARCHES).await;
        assert_eq!(before.elapsed(), Duration::from_secs(300));
        assert_eq!(outcomes(&turned), [("f", Outcome::Succeeded), ("h", hotel), ("a", hotel)]);
        assert_eq!(turned.result.ended_by, EndedBy::Deadline);
        assert_eq!(turned.result.summary, sentence);
        settle().await;
        let open = if class == ToolClass::Mutating { 2 } else { 0 };
        assert_eq!(engine.open_calls(), open, "what can be stopped is, what may have an effect goes on");
    }
}

#[tokio::test(start_paused = true)]
async fn eh_5_1_eh_5_2_eh_5_4_what_depends_on_a_failure_does_not_run_and_the_rest_does() {
    let engine = engine(measured(ToolClass::ReadOnly)).await;
    let tools = Tools::new([
        ("flight_search", refuses()),
        ("compare_prices", says("1")),
        ("create_itinerary", says("1")),
        ("hotel_search", says("1")),
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
    let skipped = Outcome::Skipped;
    assert_eq!(
        outcomes(&turned),
        [("a", Outcome::Failed), ("b", skipped), ("c", skipped), ("d", Outcome::Succeeded)]
    );
    assert_eq!((tools.runs("compare_prices"), tools.runs("create_itinerary")), (0, 0));
    assert!(!turned.result.calls[1].escalated && turned.result.calls[2].escalated);
    tells(&story(&engine, &turned).await, "Required tool skipped due to dependency failure");
}

#[tokio::test(start_paused = true)]
async fn eh_5_3_a_default_stands_in_for_an_output() {
    let engine = engine(measured(ToolClass::ReadOnly)).await;
    let tools = Tools::new([("flight_search", refuses()), ("compare_prices", says("1"))]);
    let turned = turn(
        &engine,
        &tools,
        r#"{"calls":[{"id":"a","tool":"t/flight_search"},{"id":"b","tool":"t/compare_prices",
            "params":{"best":{"$from":"a","path":"/best"}},"dependsOn":[{"id":"a","default":{"best":"none"}}]}]}"#,
    )
    .await;
    assert_eq!(outcomes(&turned), [("a", Outcome::Failed), ("b", Outcome::Succeeded)]);
    assert_eq!(tools.last("compare_prices"), r#"{"best":"none"}"#);
    tells(&story(&engine, &turned).await, "Used default value for compare_prices");
}

/// Writes down what it hears of turns.
#[derive(Default)]
struct Handler(Mutex<Vec<(Option<String>, Note)>>);

impl Listener for Handler {
    fn turn(&self, about: &TurnAbout<'_>, note: &Note) {
        self.0.lock().push((about.turn.map(ToString::to_string), note.clone()));
    }
}

#[tokio::test(start_paused = true)]
async fn eh_6_1_eh_6_2_the_error_handler_is_told_of_each_error_and_decides() {
    let handler = Arc::new(Handler::default());
    let engine = Engine::builder()
        .clock(Arc::new(RuntimeClock::new()))
        .policies(Arc::new(measured(ToolClass::ReadOnly)))
        .listener(handler.clone())
        .start()
        .await;
    let tools =
        Tools::new([("flight_search", script(async |number| if number == 1 { reset() } else { ok() }))]);
    turn(&engine, &tools, r#"{"turnId":"t-1","calls":[{"id":"f","tool":"t/flight_search"}]}"#).await;
    let heard = handler.0.lock();
    let (whose, error) = heard.iter().find(|(_, note)| matches!(note.fact, Fact::ToolError(_))).unwrap();
    let Fact::ToolError(fault) = &error.fact else { unreachable!() };
    assert_eq!(whose.as_deref(), Some("t-1"), "the turn");
    assert_eq!(error.tool.as_ref().unwrap().tool.as_str(), "flight_search");
    assert_eq!((fault.attempts, fault.decision), (1, Strategy::Retry));
    assert!(!fault.error.is_empty());
    let decided = heard.iter().find_map(|(_, note)| {
        let Fact::Decision { strategy, reason } = &note.fact else { return None };
        Some((*strategy, reason.as_str()))
    });
    let reason = "transient error, circuit closed, retries available (4 left)";
    assert_eq!(decided, Some((Strategy::Retry, reason)));
}

#[tokio::test(start_paused = true)]
async fn eh_6_3_a_retry_that_succeeds_is_told_as_such() {
    let engine = engine(measured(ToolClass::ReadOnly)).await;
    let tools =
        Tools::new([("flight_search", script(async |number| if number == 1 { reset() } else { ok() }))]);
    let turned = turn(&engine, &tools, r#"{"calls":[{"id":"f","tool":"t/flight_search"}]}"#).await;
    assert_eq!(turned.result.status, TurnStatus::Completed);
    tells(&story(&engine, &turned).await, "Tool succeeded on retry 2");
}

const WITH_BACKUP: &str = r#"{"turnId":"trip","calls":[{"id":"f","tool":"t/flight_search","params":{"to":"LIS"},
    "alternatives":["t/flight_search_backup"]}]}"#;

#[tokio::test(start_paused = true)]
async fn eh_6_4_gr_5_an_alternative_steps_in_for_a_tool_that_failed_for_good() {
    let engine = engine(measured(ToolClass::ReadOnly)).await;
    let tools = Tools::new([("flight_search", refuses()), ("flight_search_backup", says("1"))]);
    let turned = turn(&engine, &tools, WITH_BACKUP).await;
    assert_eq!(outcomes(&turned), [("f", Outcome::Succeeded)]);
    assert_eq!(turned.result.calls[0].tool.tool.as_str(), "flight_search_backup");
    assert_eq!((tools.runs("flight_search"), tools.runs("flight_search_backup")), (1, 1));
    let story = story(&engine, &turned).await;
    tells(&story, "Used alternative tool");
    tells(&story, "Tool failed: flight_search");
}

#[tokio::test(start_paused = true)]
async fn eh_6_5_a_permanent_error_is_escalated_and_the_user_is_told() {
    let engine = engine(measured(ToolClass::ReadOnly)).await;
    let tools = Tools::new([("flight_search", refuses())]);
    let turned = turn(&engine, &tools, r#"{"calls":[{"id":"f","tool":"t/flight_search"}]}"#).await;
    assert!(turned.result.escalated && turned.result.calls[0].escalated);
    let summary = "Nothing was completed: flight search failed; flight search needs your attention";
    assert_eq!(turned.result.summary, summary);
    assert_eq!(tools.runs("flight_search"), 1);
}

#[tokio::test(start_paused = true)]
async fn eh_6_6_eh_3_1_the_trace_has_each_error_with_its_class_breaker_decision_and_outcome() {
    let engine = engine(measured(ToolClass::ReadOnly)).await;
    let tools = Tools::new([("flight_search", script(async |_| reset()))]);
    let turned = turn(&engine, &tools, r#"{"calls":[{"id":"f","tool":"t/flight_search"}]}"#).await;
    let story = story(&engine, &turned).await;
    let errors = events(&story, EventType::ToolError);
    assert_eq!(errors.len(), 5, "{:#?}", sentences(&story));
    for error in &errors {
        assert!(error.error.is_some() && error.classification.is_some() && error.decision.is_some());
        assert!(
            error.circuit_breaker_state.is_some() && error.retry_count.is_some() && error.span_id.is_some()
        );
    }
    // In the words of the tool, also where it is tried again; the rule is for machines.
    assert!(errors.iter().all(|error| error.rule.as_deref() == Some("transport.reset")), "{errors:#?}");
    let again = errors.iter().filter(|error| error.decision == Some(Strategy::Retry));
    let told: Vec<_> = again.map(|error| error.sentence.as_str()).collect();
    assert_eq!(told, ["Tool failed: flight_search, connection reset"; 4]);
    tells(&story, "Circuit breaker opened for flight_search");
    assert_eq!(events(&story, EventType::Decision).len(), 5);
    assert_eq!(story.turn.status, Some(TurnStatus::Failed));
    // The turn and its one call, each with an end.
    assert_eq!(story.spans.len(), 2);
    assert!(story.spans.iter().all(|span| span.ended_at.is_some()));
    assert_eq!(story.spans[1].parent_span_id, Some(story.spans[0].span_id));
}

#[tokio::test(start_paused = true)]
async fn eh_7_3_a_retry_that_takes_too_long_is_ended_and_made_again() {
    let engine = engine(measured(ToolClass::ReadOnly)).await;
    let tools = Tools::new([(
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
    let mut policy = measured(ToolClass::ReadOnly);
    policy.time.attempt = Duration::from_secs(40);
    let engine = engine(policy).await;
    let tools = Tools::new([
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
        ("hotel_search", says("1")),
    ]);
    let text = r#"{"deadlineMs":60000,"calls":[{"id":"f","tool":"t/flight_search","timeoutMs":40000},
        {"id":"h","tool":"t/hotel_search"}]}"#;
    let before = tokio::time::Instant::now();
    let turned = turn(&engine, &tools, text).await;
    assert_eq!(before.elapsed().as_secs(), 60);
    assert_eq!(outcomes(&turned), [("f", Outcome::Cancelled), ("h", Outcome::Succeeded)]);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(tools.runs("flight_search"), 2, "nothing is tried after the deadline");
}

// ---- submitted again ----

async fn on(store: Arc<dyn Store>, policy: Policy) -> Engine {
    let clock = Arc::new(RuntimeClock::new());
    Engine::builder().clock(clock).store(store).policies(Arc::new(policy)).start().await
}

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(MemoryOptions::new(Arc::new(RuntimeClock::new()))))
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_comes_again_runs_only_what_was_not_finished() {
    for class in [ToolClass::ReadOnly, ToolClass::Mutating] {
        let store = memory();
        let mut policy = measured(class);
        policy.time.attempt = Duration::from_secs(3600);
        policy.time.total = Duration::from_secs(7200);
        let tools = Tools::new([
            ("flight_search", says(r#"{"best":1}"#)),
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
        // Another engine, as after a crash: it has nothing but the store.
        let engine = on(store, policy).await;
        let second = turn(&engine, &tools, &text).await;
        assert_eq!((tools.runs("flight_search"), tools.runs("hotel_search")), (1, 1), "{class:?}");
        assert_eq!(second.result.calls[0].output, first.result.calls[0].output);
        assert_eq!(second.result.calls[1].code, first.result.calls[1].code);
        // What may have an effect was told to end when the process did, and nobody knows what it did.
        let third = if class == ToolClass::ReadOnly { Outcome::Succeeded } else { Outcome::Failed };
        assert_eq!(second.result.calls[2].outcome, third);
        tells(&story(&engine, &second).await, "Finished earlier, not run again: flight_search");
    }
}

#[tokio::test(start_paused = true)]
async fn an_alternative_that_did_the_job_is_not_followed_by_the_tool_that_is_well_again() {
    let store = memory();
    let engine = on(store.clone(), measured(ToolClass::Mutating)).await;
    let tools = Tools::new([("flight_search", says("1")), ("flight_search_backup", says("2"))]);
    let name = |name: &str| ToolName::new(name).unwrap();
    let namespace = Namespace::new("t").unwrap();
    let key = BreakerKey::Tool(ToolRef { namespace, tool: name("flight_search") });
    engine.steer_breaker(None, &key, Steer::Open { until: None }, &by()).await;
    let first = turn(&engine, &tools, WITH_BACKUP).await;
    assert_eq!(first.result.calls[0].output.as_ref().unwrap().as_str(), "2");
    engine.steer_breaker(None, &key, Steer::Reset, &by()).await;
    let engine = on(store, measured(ToolClass::Mutating)).await;
    let second = turn(&engine, &tools, WITH_BACKUP).await;
    assert_eq!((tools.runs("flight_search"), tools.runs("flight_search_backup")), (0, 1));
    assert_eq!(second.result.calls[0].output, first.result.calls[0].output);
}

#[tokio::test(start_paused = true)]
async fn of_two_submissions_at_once_one_runs_and_the_other_is_told() {
    let engine = engine(measured(ToolClass::ReadOnly)).await;
    let tools = Tools::new([("flight_search", hangs()), ("flight_search_backup", says("1"))]);
    let running = {
        let (engine, tools) = (engine.clone(), tools.clone());
        tokio::spawn(async move { turn(&engine, &tools, WITH_BACKUP).await })
    };
    settle().await;
    let refused = engine.turn(plan(WITH_BACKUP), Arc::new(tools.clone()), options()).await.unwrap_err();
    assert!(matches!(refused, TurnRefused::InFlight(_)), "{refused}");
    assert_eq!(tools.runs("flight_search"), 1);
    // Nobody waits for it any more: it is free again.
    running.abort();
    settle().await;
    let taken = engine.turn(plan(WITH_BACKUP), Arc::new(tools.clone()), options());
    assert!(tokio::time::timeout(Duration::from_secs(900), taken).await.unwrap().is_ok());
}

/// A lease that has to be renewed would end while the store is away, and two would run the turn at once.
#[tokio::test(start_paused = true)]
async fn nobody_takes_a_turn_that_somebody_runs_however_long_the_store_was_away() {
    let store = Arc::new(Faulty::new(MemoryStore::new(MemoryOptions::new(Arc::new(RuntimeClock::new())))));
    let engine = on(store.clone(), measured(ToolClass::Mutating)).await;
    let tools = Tools::new([("flight_search", hangs()), ("flight_search_backup", says("1"))]);
    let running = {
        let (engine, tools) = (engine.clone(), tools.clone());
        tokio::spawn(async move { turn(&engine, &tools, WITH_BACKUP).await })
    };
    settle().await;
    store.becomes(Health::Down);
    tokio::time::sleep(Duration::from_secs(120)).await;
    store.becomes(Health::Up);
    let refused = engine.turn(plan(WITH_BACKUP), Arc::new(tools.clone()), options()).await.unwrap_err();
    assert!(matches!(refused, TurnRefused::InFlight(_)), "{refused}");
    running.abort();
}

/// The store took the turn and did not say so: nobody runs it, and nobody else would be let to before its deadline.
#[tokio::test(start_paused = true)]
async fn a_turn_that_was_taken_unheard_is_given_back() {
    let store = Arc::new(Faulty::new(MemoryStore::new(MemoryOptions::new(Arc::new(RuntimeClock::new())))));
    let engine = on(store.clone(), measured(ToolClass::Mutating)).await;
    let tools = Tools::new([("flight_search", says("1"))]);
    store.becomes(Health::Slow);
    let submitting = {
        let (engine, tools) = (engine.clone(), Arc::new(tools.clone()));
        tokio::spawn(async move { engine.turn(plan(WITH_BACKUP), tools, options()).await })
    };
    // It is read, and then written.
    tokio::time::sleep(Duration::from_millis(150)).await;
    store.becomes(Health::Unheard);
    tokio::time::sleep(Duration::from_millis(10)).await;
    submitting.abort();
    tokio::time::sleep(Duration::from_secs(2)).await;
    store.becomes(Health::Up);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(turn(&engine, &tools, WITH_BACKUP).await.result.status, TurnStatus::Completed);
}

/// The first tool was refused by its breaker, the second one failed, and the first one was well again: then the document
/// still said that the second one was chosen, and the turn that came again went on from there.
#[tokio::test(start_paused = true)]
async fn a_turn_that_went_back_to_the_tool_of_its_plan_does_so_again() {
    let store = memory();
    let engine = on(store.clone(), measured(ToolClass::Mutating)).await;
    let steered = engine.clone();
    let tools = Tools::new([
        ("flight_search", says("1")),
        (
            "flight_search_backup",
            script(move |_| {
                let engine = steered.clone();
                async move {
                    engine.steer_breaker(None, &first_tool(), Steer::Reset, &by()).await;
                    invalid()
                }
            }),
        ),
        ("third", says("3")),
    ]);
    let text = r#"{"turnId":"trip","calls":[{"id":"f","tool":"t/flight_search",
        "alternatives":["t/flight_search_backup","t/third"]}]}"#;
    engine.steer_breaker(None, &first_tool(), Steer::Open { until: None }, &by()).await;
    let first = turn(&engine, &tools, text).await;
    assert_eq!(first.result.calls[0].output.as_ref().unwrap().as_str(), "1");
    let second = turn(&on(store, measured(ToolClass::Mutating)).await, &tools, text).await;
    assert_eq!(second.result.calls[0].output, first.result.calls[0].output);
    assert_eq!(["flight_search", "flight_search_backup", "third"].map(|tool| tools.runs(tool)), [1, 1, 0]);
}

fn first_tool() -> BreakerKey {
    let (namespace, tool) = (Namespace::new("t").unwrap(), ToolName::new("flight_search").unwrap());
    BreakerKey::Tool(ToolRef { namespace, tool })
}

/// At the gateway a call that says nothing for too long is answered while it may still do its work: as `stuck_call`, not as
/// `outcome_unknown`. Its turn took that for a call that was never sent.
#[tokio::test(start_paused = true)]
async fn what_may_still_do_its_work_is_not_replaced() {
    let mut policy = measured(ToolClass::Mutating).for_gateway();
    policy.time.attempt = Duration::from_secs(5);
    let engine = engine(policy).await;
    let tools = Tools::new([
        ("flight_search", script(async |_| std::future::pending().await)),
        ("flight_search_backup", says("2")),
    ]);
    let turned = turn(&engine, &tools, WITH_BACKUP).await;
    assert_eq!(turned.result.calls[0].code, Some(Code::StuckCall));
    assert_eq!((tools.runs("flight_search"), tools.runs("flight_search_backup")), (1, 0));
    assert!(turned.result.escalated, "nobody knows what it did");
}

/// A tool of which nothing is known is called again where nobody knows if it ran. That it may have run is still so when the
/// turn comes again and finds nothing but its failure.
#[tokio::test(start_paused = true)]
async fn what_may_have_run_before_is_not_replaced_when_the_turn_comes_again() {
    let store = memory();
    let policy = measured(ToolClass::Unknown);
    let tools =
        Tools::new([("flight_search", script(async |_| reset())), ("flight_search_backup", says("2"))]);
    for _ in 0..2 {
        let turned = turn(&on(store.clone(), policy.clone()).await, &tools, WITH_BACKUP).await;
        assert_eq!(turned.result.calls[0].outcome, Outcome::Failed);
        assert_eq!(tools.runs("flight_search_backup"), 0);
    }
}

/// The first submission did it; in the second one the store cannot be asked. That is no reason to have it done by another.
#[tokio::test(start_paused = true)]
async fn what_nobody_can_look_up_is_not_replaced() {
    for breaker in [Steer::Reset, Steer::Open { until: None }] {
        let (engine, store) = on_faulty().await;
        let tools = Tools::new([("flight_search", says("1")), ("flight_search_backup", says("2"))]);
        turn(&engine, &tools, WITH_BACKUP).await;
        engine.steer_breaker(None, &first_tool(), breaker, &by()).await;
        let turned = turn_that_loses_its_store(&engine, &store, &tools).await;
        assert_eq!(turned.result.calls[0].code, Some(Code::StoreUnavailable));
        assert_eq!(tools.runs("flight_search_backup"), 0);
    }
}

/// Its end and the deadline come in the same moment. Told of a breaker first, the turn was over before it heard of the call, and
/// nobody told its caller.
#[tokio::test(start_paused = true)]
async fn what_ends_at_the_very_deadline_counts() {
    let engine = engine(measured(ToolClass::Mutating)).await;
    let slow = script(async |_| {
        tokio::time::sleep(Duration::from_secs(10)).await;
        Ok(said("1"))
    });
    let tools = Tools::new([("slow", slow), ("next", says("2"))]);
    let text = r#"{"deadlineMs":10000,"calls":[{"id":"s","tool":"t/slow"},{"id":"n","tool":"t/next","dependsOn":["s"]}]}"#;
    let turned = tokio::time::timeout(Duration::from_secs(11), turn(&engine, &tools, text)).await.unwrap();
    assert_eq!(outcomes(&turned), [("s", Outcome::Succeeded), ("n", Outcome::Skipped)]);
    assert_eq!((turned.result.ended_by, tools.runs("next")), (EndedBy::Deadline, 0));
}

/// Neither the wish to run it, nor a choice that has to be kept, nor the way back may hold a turn for ever.
#[tokio::test(start_paused = true)]
async fn a_turn_ends_by_its_deadline_although_the_store_says_nothing() {
    let (engine, store) = on_faulty().await;
    let tools = Tools::new([("flight_search", says("1")), ("flight_search_backup", says("2"))]);
    let text = r#"{"turnId":"trip","deadlineMs":10000,"calls":[{"id":"f","tool":"t/flight_search",
        "alternatives":["t/flight_search_backup"]},{"id":"g","tool":"t/flight_search"}]}"#;
    let before = tokio::time::Instant::now();
    store.becomes(Health::Silent);
    let refused = engine.turn(plan(text), Arc::new(tools.clone()), options()).await.unwrap_err();
    assert!(matches!(refused, TurnRefused::Store(_)), "{refused}");
    assert_eq!(before.elapsed(), Duration::from_secs(10));

    store.becomes(Health::Slow);
    engine.steer_breaker(None, &first_tool(), Steer::Open { until: None }, &by()).await;
    let submitting = {
        let (engine, tools) = (engine.clone(), tools.clone());
        tokio::spawn(async move { turn(&engine, &tools, text).await })
    };
    let before = tokio::time::Instant::now();
    tokio::time::sleep(Duration::from_millis(150)).await;
    store.becomes(Health::Silent);
    let turned = submitting.await.unwrap();
    assert_eq!(before.elapsed(), Duration::from_secs(12), "its deadline, and the grace for the way back");
    assert_eq!(outcomes(&turned), [("f", Outcome::Failed), ("g", Outcome::Skipped)]);
    assert!(turned.result.calls[0].message.as_ref().unwrap().starts_with("not sent"));
    assert_eq!(tools.runs("flight_search") + tools.runs("flight_search_backup"), 0);
    assert_eq!(turned.result.ended_by, EndedBy::Deadline);
}

/// What is tried again in the background ends by itself: with the engine, and at the latest when nobody is kept from the turn
/// any more.
#[tokio::test(start_paused = true)]
async fn a_turn_that_cannot_be_given_back_keeps_nothing_alive() {
    for (health, engine_lives) in [(Health::Down, true), (Health::Down, false), (Health::Silent, true)] {
        let (engine, store) = on_faulty().await;
        let others = Arc::strong_count(&store);
        let tools = Tools::new([("flight_search", says("1"))]);
        store.becomes(Health::Slow);
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
    let tools = Tools::new([("flight_search", hangs()), ("flight_search_backup", says("1"))]);
    let running = {
        let (engine, tools) = (engine.clone(), Arc::new(tools.clone()));
        tokio::spawn(async move { engine.turn(plan(WITH_BACKUP), tools, options()).await })
    };
    settle().await;
    store.becomes(Health::Down);
    running.abort();
    settle().await;
    store.becomes(Health::Slow);
    engine.shutdown(Duration::ZERO).await;
    store.becomes(Health::Up);
    let next = on(store, measured(ToolClass::Mutating)).await;
    assert!(next.turn(plan(WITH_BACKUP), Arc::new(tools), options()).await.is_ok());
}

/// The turn is read and being taken, and then the store is away.
async fn turn_that_loses_its_store(engine: &Engine, store: &Faulty, tools: &Tools) -> Turned {
    store.becomes(Health::Slow);
    let submitting = {
        let (engine, tools) = (engine.clone(), tools.clone());
        tokio::spawn(async move { turn(&engine, &tools, WITH_BACKUP).await })
    };
    tokio::time::sleep(Duration::from_millis(150)).await;
    store.becomes(Health::Down);
    submitting.await.unwrap()
}

async fn on_faulty() -> (Engine, Arc<Faulty>) {
    let store = Arc::new(Faulty::new(MemoryStore::new(MemoryOptions::new(Arc::new(RuntimeClock::new())))));
    (on(store.clone(), measured(ToolClass::Mutating)).await, store)
}

#[tokio::test(start_paused = true)]
async fn a_question_of_a_tool_is_no_answer_to_those_who_depend_on_it() {
    let engine = engine(measured(ToolClass::Mutating)).await;
    let tools = Tools::new([
        ("book", script(async |_| Err(NotDone::InputRequired(said(r#""which seat?""#))))),
        ("pay", says("1")),
    ]);
    let text =
        r#"{"calls":[{"id":"b","tool":"t/book"},{"id":"p","tool":"t/pay","params":{"x":{"$from":"b"}}}]}"#;
    let turned = turn(&engine, &tools, text).await;
    assert_eq!(outcomes(&turned), [("b", Outcome::Failed), ("p", Outcome::Skipped)]);
    assert!(turned.result.calls[0].message.as_ref().unwrap().contains("asks for input"));
    assert_eq!(tools.runs("pay"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_withdrawn_ends_at_once() {
    let engine = engine(measured(ToolClass::ReadOnly)).await;
    let tools =
        Tools::new([("flight_search", says("1")), ("hotel_search", hangs()), ("activity_search", hangs())]);
    let options = options();
    let withdrawn = options.withdrawn.clone();
    let running = {
        let (engine, tools) = (engine.clone(), Arc::new(tools.clone()));
        tokio::spawn(async move { engine.turn(plan(SEARCHES), tools, options).await.unwrap() })
    };
    settle().await;
    withdrawn.cancel();
    let turned = running.await.unwrap();
    assert_eq!(turned.result.ended_by, EndedBy::Cancel);
    assert_eq!(outcomes(&turned)[0].1, Outcome::Succeeded);
    settle().await;
    assert_eq!(engine.open_calls(), 0, "what ran was told to stop");
}

/// The tool fails for good, and the store becomes so with it.
fn failing_with(store: &Arc<Faulty>, health: Health) -> Tools {
    let store = store.clone();
    let fails = script(move |_| {
        store.becomes(health);
        async { invalid() }
    });
    Tools::new([("flight_search", fails), ("flight_search_backup", says("1"))])
}

#[tokio::test(start_paused = true)]
async fn without_a_store_to_keep_a_choice_in_the_call_is_not_sent() {
    let store = Arc::new(Faulty::new(MemoryStore::new(MemoryOptions::new(Arc::new(RuntimeClock::new())))));
    let engine = on(store.clone(), measured(ToolClass::Mutating)).await;
    let tools = failing_with(&store, Health::Down);
    let turned = turn(&engine, &tools, WITH_BACKUP).await;
    assert_eq!(tools.runs("flight_search_backup"), 0);
    assert_eq!(turned.result.calls[0].code, Some(Code::StoreUnavailable));
}

/// Who asked while the last lines of a turn were on their way to the store was told that it still runs.
#[tokio::test(start_paused = true)]
async fn a_turn_that_was_answered_is_over_for_everybody_who_asks() {
    let store = Arc::new(Faulty::new(MemoryStore::new(MemoryOptions::new(Arc::new(RuntimeClock::new())))));
    let engine = on(store.clone(), measured(ToolClass::ReadOnly)).await;
    let tools = Tools::new([("flight_search", says("1"))]);
    let turned = turn(&engine, &tools, r#"{"calls":[{"id":"f","tool":"t/flight_search"}]}"#).await;
    store.becomes(Health::Slow);
    // By now the writer has taken the lines, and the store has not.
    tokio::time::sleep(Duration::from_millis(50)).await;
    store.becomes(Health::Up);
    assert_eq!(story(&engine, &turned).await.turn.status, Some(TurnStatus::Completed));
}

#[tokio::test(start_paused = true)]
async fn sf_6_what_tools_say_is_redacted_in_the_trace() {
    let engine = engine(measured(ToolClass::ReadOnly)).await;
    const SECRET: &str = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
    let tools = Tools::new([(
        "flight_search",
        script(async |_| {
            let fault = Fault::new(Source::Http { status: 400 }, format!("bad token {SECRET}"));
            Err(fault.into())
        }),
    )]);
    let turned = turn(&engine, &tools, r#"{"calls":[{"id":"f","tool":"t/flight_search"}]}"#).await;
    let text = serde_json::to_string(&story(&engine, &turned).await).unwrap();
    assert!(text.contains("bad token") && !text.contains(SECRET), "{text}");
}

/// What is told again was counted when it was first told.
#[tokio::test(start_paused = true)]
async fn a_turn_that_comes_again_goes_on_however_often_its_failures_are_told() {
    let engine = on(memory(), measured(ToolClass::Mutating)).await;
    let tools = Tools::new([
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
async fn a_shutdown_waits_for_history_and_traces_that_are_on_their_way() {
    for journal in [Journal::History, Journal::Traces] {
        let clock = Arc::new(RuntimeClock::new());
        let store = Arc::new(Faulty::new(MemoryStore::new(MemoryOptions::new(clock.clone()))));
        let policies = Arc::new(measured(ToolClass::ReadOnly));
        let engine = Engine::builder().clock(clock).store(store.clone()).policies(policies).start().await;
        store.becomes(Health::Holds(journal));
        let tools = Tools::new([("flight_search", says("1"))]);
        turn(&engine, &tools, r#"{"calls":[{"id":"f","tool":"t/flight_search"}]}"#).await;
        // Longer than lines are gathered: they are with the store, which has not taken them yet.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let shutdown = tokio::spawn(async move { engine.shutdown(Duration::from_secs(1)).await });
        settle().await;
        assert!(!shutdown.is_finished(), "{journal:?}: a process would end now, and the lines with it");
        store.becomes(Health::Up);
        assert_eq!(shutdown.await.unwrap(), Drained { ended: 0, lost: 0 });
        assert!(!store.entries(&Query::newest(journal, 10)).await.unwrap().is_empty(), "{journal:?}");
    }
}

/// What happens while the store cannot be reached is what somebody wants to read afterwards.
#[tokio::test(start_paused = true)]
async fn what_happened_while_the_store_was_away_is_written_when_it_is_back() {
    let (engine, store) = on_faulty().await;
    let away = store.clone();
    let tools = Tools::new([(
        "flight_search",
        script(move |_| {
            away.becomes(Health::Down);
            async { Ok(said("1")) }
        }),
    )]);
    let turned = turn(&engine, &tools, r#"{"calls":[{"id":"f","tool":"t/flight_search"}]}"#).await;
    assert!(engine.story(&turned.trace.to_string()).await.is_err(), "nobody can look now");
    tokio::time::sleep(Duration::from_secs(60)).await;
    store.becomes(Health::Up);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let story = TurnStory::read(&*store, &turned.trace.to_string()).await.unwrap().unwrap();
    assert_eq!(story.turn.status, Some(TurnStatus::Completed));
    let mut told = sentences(&story);
    let all = told.len();
    told.dedup();
    assert_eq!((told.first(), told.len()), (Some(&"Turn started with 1 call"), all), "all of it, once");
    tells(&story, "Tool succeeded: flight_search");
    assert_eq!(store.entries(&Query::newest(Journal::History, 10)).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reader_who_goes_away_takes_no_line_along() {
    let (engine, store) = on_faulty().await;
    let tools = Tools::new([("flight_search", says("1"))]);
    let turned = turn(&engine, &tools, r#"{"calls":[{"id":"f","tool":"t/flight_search"}]}"#).await;
    store.becomes(Health::Slow);
    let trace = turned.trace.to_string();
    let reading = engine.story(&trace);
    // What waits is on its way to the store.
    assert!(tokio::time::timeout(Duration::from_millis(50), reading).await.is_err());
    store.becomes(Health::Up);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let story = TurnStory::read(&*store, &trace).await.unwrap().unwrap();
    assert_eq!(story.turn.status, Some(TurnStatus::Completed));
}
