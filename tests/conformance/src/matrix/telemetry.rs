//! TR-12 to TR-15: hooks, notices, the switch, and secrets.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use steadfast_config::{AnnotationHints, Config, Sources, Switches};
use steadfast_core::classify::{AttemptFault, FaultSource, TransportError};
use steadfast_core::code::Code;
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::policy::{CallPolicy, EnforcementMode, PolicyProfile, ToolClass};
use steadfast_executor::{Attempt, Engine, HookFuture, Hooks, ToolResult};
use steadfast_json::RawJson;
use steadfast_telemetry::{LogLineFormat, LogLineLevel, LogSink, Options, Telemetry};

use crate::calls::{
    CountingTool, OPEN, SUCCESS, TEST_TIMEOUT, call, envelope, fail, http, keyed, paid, read, single, status,
    text_result,
};
use crate::world::{ConformanceWorld, plain};

/// Records everything that its hooks receive.
#[derive(Default)]
struct HookRecorder(Mutex<Vec<String>>);

impl HookRecorder {
    fn note(&self, entry: String) -> HookFuture<'_, ()> {
        self.0.lock().push(entry);
        Box::pin(async {})
    }

    fn taken(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

impl Hooks for HookRecorder {
    fn before_attempt<'a>(&'a self, call: &'a CallEnvelope, attempt: u32) -> HookFuture<'a, ()> {
        self.note(format!("before {attempt} of {}", call.tool_name))
    }

    fn after_attempt<'a>(
        &'a self,
        call: &'a CallEnvelope,
        attempt: u32,
        answer: &'a ToolResult,
    ) -> HookFuture<'a, ()> {
        let outcome = if answer.is_ok() { "good" } else { "bad" };
        self.note(format!("after {attempt} of {}: {outcome}", call.tool_name))
    }

    fn short_circuit<'a>(&'a self, call: &'a CallEnvelope, code: Option<Code>) -> HookFuture<'a, ()> {
        self.note(format!("short {}: {}", call.tool_name, code.map_or("replayed", Code::as_str)))
    }
}

pub(super) async fn tr_12_hooks_fire_once_per_attempt_and_once_for_a_short_circuit(world: ConformanceWorld) {
    let recorder = Arc::new(HookRecorder::default());
    let policy = Arc::new(plain(ToolClass::Idempotent));
    let engine = world.builder().await.policies(policy).hooks(recorder.clone()).start().await;
    let flaky = || CountingTool::new(|run| if run < 3 { http(503) } else { paid() });
    let called = engine.call(keyed("k"), flaky()).await;
    assert_eq!(called.result.attempts, 3);
    assert_eq!(
        recorder.taken(),
        [
            "before 1 of pay",
            "after 1 of pay: bad",
            "before 2 of pay",
            "after 2 of pay: bad",
            "before 3 of pay",
            "after 3 of pay: good"
        ]
    );
    assert!(engine.call(keyed("k"), flaky()).await.result.from_cache);
    assert_eq!(recorder.taken(), ["short pay: replayed"]);
    engine
        .call(call(json!({ "payload": { "idempotencyKey": "k", "params": { "to": "eve" } } })), flaky())
        .await;
    assert_eq!(recorder.taken(), ["short pay: idempotency_conflict"]);
    world.stop_clock();
    fail(&engine, 5).await;
    assert_eq!(recorder.taken().len(), 10);
    assert_eq!(status(&engine.call(single(1), flaky()).await), OPEN);
    assert_eq!(recorder.taken(), ["short pay: circuit_open"]);

    // With or without hooks, parameters and answers are the same.
    let bare = world.engine(&plain(ToolClass::Idempotent)).await;
    let params = r#"{"b":1.50,"a":[ 1, 2 ],"to":"bob"}"#;
    for engine in [&engine, &bare] {
        let mut request = call(json!({ "toolName": "echo" }));
        request.payload.params = RawJson::from_trusted(params);
        let called = engine.call(request, async |attempt: Attempt| text_result(attempt.params())).await;
        assert_eq!(called.result.output, Some(text_result(params).unwrap()));
    }
}

/// The output of telemetry.
#[derive(Clone, Default)]
struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An engine with all telemetry, and its output.
struct TelemetryWorld {
    telemetry: Arc<Telemetry>,
    paper: LogBuffer,
    engine: Engine,
}

impl TelemetryWorld {
    async fn of(world: &ConformanceWorld, policy: CallPolicy) -> Self {
        let paper = LogBuffer::default();
        let logs = LogSink::to(paper.clone(), LogLineLevel::Trace, LogLineFormat::Json).unwrap();
        let options = Options { logs: Some(logs), most_tools: 3, ..Options::default() };
        let telemetry = Arc::new(Telemetry::start(options).unwrap());
        let builder = world.builder().await.policies(Arc::new(policy)).listener(telemetry.clone());
        Self { telemetry, paper, engine: builder.start().await }
    }

    fn log(&self) -> String {
        self.telemetry.shutdown(TEST_TIMEOUT);
        String::from_utf8(self.paper.0.lock().clone()).unwrap()
    }

    fn metrics(&self) -> String {
        self.telemetry.metrics().encode()
    }
}

pub(super) async fn tr_13_every_transition_is_counted_and_logged_within_bounds(world: ConformanceWorld) {
    let policy = plain(ToolClass::Idempotent);
    let telemetry = TelemetryWorld::of(&world, policy.clone()).await;
    let engine = &telemetry.engine;
    engine.call(keyed("good"), CountingTool::paying()).await;
    engine.call(keyed("good"), CountingTool::paying()).await;
    engine.call(keyed("retried"), CountingTool::new(|run| if run < 2 { http(503) } else { paid() })).await;
    engine.call(keyed("bad"), CountingTool::new(|_| http(400))).await;
    world.stop_clock();
    fail(engine, 5).await;
    engine.call(single(1), CountingTool::paying()).await;
    world.advance_clock(policy.breaker.cooldown.first);
    fail(engine, 1).await;
    world.advance_clock(policy.breaker.cooldown.first);
    engine.call(single(2), CountingTool::paying()).await;
    engine.call(single(3), CountingTool::paying()).await;

    let metrics = telemetry.metrics();
    let counted = |line: &str| {
        let line = format!("steadfast_tool_{line}");
        assert!(metrics.lines().any(|counted| counted == line), "no {line} in\n{metrics}");
    };
    for (status, count) in [("success", 5), ("error", 1), ("circuit_open", 1)] {
        let calls: Vec<&str> = metrics
            .lines()
            .filter(|line| {
                line.starts_with("steadfast_tool_calls_total{")
                    && line.contains(&format!("status=\"{status}\""))
            })
            .collect();
        let sum: u32 =
            calls.iter().map(|line| line.rsplit(' ').next().unwrap().parse::<u32>().unwrap()).sum();
        assert_eq!(sum, count, "{status}: {calls:?}");
    }
    counted(r#"idempotency_hits_total{tool="bank/pay",state="done"} 1"#);
    let transitions = [
        ("CLOSED", "OPEN", 1),
        ("OPEN", "HALF_OPEN", 2),
        ("HALF_OPEN", "OPEN", 1),
        ("HALF_OPEN", "CLOSED", 1),
    ];
    for (from, to, count) in transitions {
        counted(&format!(
            r#"circuit_breaker_transitions_total{{tool="bank/pay",from_state="{from}",to_state="{to}"}} {count}"#
        ));
    }
    counted(r#"circuit_breaker_state{tool="bank/pay",state="CLOSED"} 1"#);
    counted(r#"circuit_breaker_state{tool="bank/pay",state="OPEN"} 0"#);
    // However many tools there are, the number of series is bounded.
    for number in 0..50 {
        engine.call(call(json!({ "toolName": format!("tool-{number}") })), CountingTool::paying()).await;
    }
    let metrics = telemetry.metrics();
    let series = metrics.lines().filter(|line| {
        line.starts_with("steadfast_tool_calls_total{") && line.contains("status=\"success\"")
    });
    assert!(series.count() <= 2 * 4, "{metrics}");

    let log = telemetry.log();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |event: &str| lines.iter().filter(|line| line["event"] == event).count();
    assert_eq!((count("tool_call_circuit_state"), count("tool_call_retry")), (5, 1));
    assert_eq!(count("tool_call_start"), count("tool_call_end"));
}

/// Returns an engine with the policies of this configuration, and with switches that can be changed.
async fn configured(world: &ConformanceWorld, config: Config) -> (Engine, Arc<Mutex<Config>>) {
    let config = Arc::new(Mutex::new(config));
    let shared_config = config.clone();
    let policies = move |call: &CallEnvelope| {
        shared_config.lock().resolve_at(&call.tool(), AnnotationHints::default(), None).policy
    };
    (world.builder().await.policies(policies).start().await, config)
}

pub(super) async fn tr_14_switched_off_a_call_goes_straight_through(world: ConformanceWorld) {
    let environment = BTreeMap::from([("TOOL_RELIABILITY_ENABLED".to_owned(), "false".to_owned())]);
    let off = Config::load(&Sources { environment, ..Sources::default() }).unwrap();
    let (engine, config) = configured(&world, off).await;
    // No call is stored, joined, retried, counted or refused: each one runs.
    let tool =
        CountingTool::new(|run| if run % 2 == 0 { http(503) } else { text_result(&format!("run {run}")) });
    for run in 1..=20 {
        let called = engine.call(keyed("k"), tool.clone()).await;
        assert_eq!((tool.runs(), called.result.attempts, called.result.from_cache), (run, 1, false));
        match run % 2 {
            0 => assert_eq!(called.result.error.unwrap().message, "the server said 503"),
            _ => assert_eq!(called.result.output, Some(text_result(&format!("run {run}")).unwrap())),
        }
    }
    let both = CountingTool::gated();
    let pair = [(); 2].map(|()| tokio::spawn(engine.call(keyed("k"), both.clone())));
    both.wait_for_runs(2).await;
    both.finish_runs(2);
    for one in pair {
        assert_eq!(status(&one.await.unwrap()), SUCCESS);
    }
    assert_eq!(world.records().await, Vec::new());
    // Switching back and forth is safe: on, it protects at once; off again, it passes calls through at once.
    let turn = |all| {
        let mut config = config.lock();
        *config = config.with_switches(Switches { all, ..Switches::default() });
    };
    turn(EnforcementMode::Enforce);
    let tool = CountingTool::paying();
    for _ in 0..3 {
        assert_eq!(status(&engine.call(keyed("on"), tool.clone()).await), SUCCESS);
    }
    assert_eq!((tool.runs(), world.records().await.len()), (1, 1));
    turn(EnforcementMode::Off);
    assert!(!engine.call(keyed("on"), tool.clone()).await.result.from_cache);
    assert_eq!(tool.runs(), 2);
}

pub(super) async fn tr_15_secrets_are_neither_logged_nor_stored(world: ConformanceWorld) {
    const TOKEN: &str = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
    const SECRETS: [&str; 5] =
        [TOKEN, "hunter2-of-ann", "s3cr3t-pass", "sk-live-51Habcdefghijkl", "key-of-ann-4711"];
    let leaky = |amount: u32| {
        read(&envelope(json!({
            "payload": { "idempotencyKey": format!("key-of-ann-4711-{amount}"), "params": {
                "amount": amount, "password": "hunter2-of-ann", "token": TOKEN,
                "url": "https://ann:s3cr3t-pass@bank.example.com/v1", "headers": { "x": "sk-live-51Habcdefghijkl" },
            } },
            "trace": { "baggage": { "who": TOKEN } },
        })))
        .unwrap()
    };
    // All mechanisms are on, so that each produces output.
    let telemetry = TelemetryWorld::of(&world, PolicyProfile::Standard.policy(ToolClass::Mutating)).await;
    let message = format!("Authorization: Bearer {TOKEN} rejected, password=hunter2-of-ann");
    let transient = FaultSource::Transport { error: TransportError::ConnectionRefused, written: false };
    let sources = [
        transient,
        FaultSource::Http { status: 401 },
        FaultSource::IsError,
        FaultSource::Tool,
        FaultSource::Http { status: 500 },
    ];
    for (source, amount) in sources.into_iter().zip(1..) {
        let message = message.clone();
        for _ in 0..2 {
            let (source, message) = (source.clone(), message.clone());
            let tool =
                CountingTool::new(move |_| Err(AttemptFault::new(source.clone(), message.clone()).into()));
            telemetry.engine.call(leaky(amount), tool).await;
        }
    }
    telemetry.engine.call(leaky(100), CountingTool::paying()).await;
    telemetry.engine.shutdown(TEST_TIMEOUT).await;
    let (log, stored) = (telemetry.log(), world.stored_bytes().await);
    assert!(log.lines().count() > 20 && !stored.is_empty(), "there is something to look at");
    let (metrics, stored) = (telemetry.metrics(), String::from_utf8_lossy(&stored).into_owned());
    for secret in SECRETS {
        for (place, text) in [("log", &log), ("metrics", &metrics), ("store", &stored)] {
            assert!(!text.contains(secret), "{secret} in the {place}:\n{text}");
        }
    }
    // Redaction concerns output for others: the caller's own answer is unchanged.
    let bare = world.engine(&plain(ToolClass::ReadOnly)).await;
    let request = call(json!({ "toolName": "whoami", "payload": { "params": { "token": TOKEN } } }));
    let answer = bare.call(request, async |attempt: Attempt| text_result(attempt.params())).await;
    assert!(answer.result.output.unwrap().content.as_str().contains(TOKEN));
}
