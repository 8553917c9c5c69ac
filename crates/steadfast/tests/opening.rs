//! Opening an instance: configuration, store, telemetry and engine together.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says so by panicking")]

mod support;

use std::fs;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use steadfast::call::classify::{AttemptFault, FaultSource, TransportError};
use steadfast::call::code::{CallStatus, Code};
use steadfast::call::envelope::CallEnvelope;
use steadfast::call::{EnvelopeBuilder, ResolvedTool, ToolRegistry, ToolResult, output::ToolOutput};
use steadfast::config::{ConfigEvent, ConfigFile, FileRequirement, Reload, Sources, Switches};
use steadfast::policy::EnforcementMode;
use steadfast::store::{FileDamagePolicy, RuntimeClock};
use steadfast::telemetry::{CallNotice, CallResult, EngineListener, LogOutput, NoticeContext};
use steadfast::turn::{TurnLimits, TurnPlan};
use steadfast::turn::{TurnOptions, TurnQuery};
use steadfast::{Attempt, CallResponse, OpenError, Steadfast, SteadfastBuilder};
use steadfast_store::DocumentKind;
use tokio::sync::broadcast::error::RecvError;

use support::{folder, sources};

/// Time limit of waits. Only a test that hangs reaches it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until the condition is true.
async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap();
}

/// Opens an instance with the clock of the runtime, which a test may have paused.
async fn opened(sources: Sources) -> Steadfast {
    Steadfast::builder().sources(sources).clock(Arc::new(RuntimeClock::new())).build().await.unwrap()
}

async fn open(test: &str, text: &str, environment: &[(&str, &str)]) -> Steadfast {
    opened(sources(&folder(test), "steadfast.toml", text, environment)).await
}

fn pay(amount: u32) -> CallEnvelope {
    EnvelopeBuilder::new("bank/pay").args(&[("amount", amount)]).build().unwrap()
}

fn keyed(key: &str) -> CallEnvelope {
    EnvelopeBuilder::new("bank/pay").key(key).build().unwrap()
}

async fn works(_: Attempt) -> ToolResult {
    Ok(ToolOutput::text("paid"))
}

async fn fails(_: Attempt) -> ToolResult {
    Err(AttemptFault::new(FaultSource::Http { status: 500 }, "internal error").into())
}

async fn drops(_: Attempt) -> ToolResult {
    let source = FaultSource::Transport { error: TransportError::ConnectionRefused, written: false };
    Err(AttemptFault::new(source, "connection refused").into())
}

fn code(called: &CallResponse) -> Option<Code> {
    called.result.error.as_ref().map(|error| error.code)
}

/// Makes failing calls until one is refused, and returns their number.
async fn failures_until_refused(steadfast: &Steadfast, most: u32) -> Option<u32> {
    for amount in 0..most {
        let called = steadfast.call_envelope(pay(amount), fails).await;
        if code(&called) == Some(Code::ApprovalRequired) {
            return Some(amount);
        }
    }
    None
}

/// Trust only: no other mechanism stops a tool that fails.
const ONLY_TRUST: &str = "[retry]\nmode = \"off\"\n[breaker]\nmode = \"off\"\n[guard]\nmode = \"off\"\n";

/// Returns the time between the attempts of one call of a tool that always fails, in milliseconds.
async fn waits(steadfast: &Steadfast, tool: &str, status: u16) -> Vec<u128> {
    let starts = Arc::new(Mutex::new(Vec::new()));
    let recorder = starts.clone();
    let failing = move |_: Attempt| {
        recorder.lock().unwrap().push(tokio::time::Instant::now());
        async move { Err(AttemptFault::new(FaultSource::Http { status }, "Service unavailable").into()) }
    };
    steadfast.call_envelope(EnvelopeBuilder::new(format!("t/{tool}")).build().unwrap(), failing).await;
    let starts = starts.lock().unwrap();
    starts.iter().zip(starts.iter().skip(1)).map(|(start, next)| (*next - *start).as_millis()).collect()
}

#[tokio::test(start_paused = true)]
async fn eh_2_5_eh_1_5_a_tool_manifest_sets_retries_and_classification_of_its_tool_only() {
    let manifest = r#"{"id": "custom_api", "classification": {"503": "permanent"},
        "retry_policy": {"initial_delay_ms": 50, "max_delay_ms": 2000, "max_attempts": 3}}"#;
    let folder = folder("eh-2-5");
    let mut sources = sources(&folder, "manifest.json", manifest, &[]);
    let path = folder.join("steadfast.toml");
    fs::write(&path, "profile = \"measured\"\n").unwrap();
    sources.files.push(ConfigFile { path, needed: FileRequirement::Always });
    let steadfast = opened(sources).await;
    for (tool, status, expected) in [
        ("custom_api", 502, &[50, 100][..]),
        ("flight_search", 502, &[100, 200, 400, 800]),
        ("custom_api", 503, &[]),
        ("hotel_search", 503, &[100, 200, 400, 800]),
    ] {
        let waits = waits(&steadfast, tool, status).await;
        assert_eq!(waits.len(), expected.len(), "{tool} {status}: {waits:?}");
        let near =
            waits.iter().zip(expected).all(|(wait, expected)| wait.abs_diff(*expected) <= expected / 10);
        assert!(near, "{tool} {status}: {waits:?}, not {expected:?} give or take a tenth");
    }
}

#[tokio::test(start_paused = true)]
async fn rp_17_the_jaato_file_configures_the_engine() {
    let rule = r#"{"default_rule": {"count_threshold": 2, "window_seconds": 60},
                   "tool_rules": {"pay": {"count_threshold": 4}}, "persist_across_sessions": false}"#;
    let folder = folder("rp-17-file");
    let mut sources = sources(&folder, "reliability.json", rule, &[]);
    let path = folder.join("steadfast.toml");
    fs::write(&path, ONLY_TRUST).unwrap();
    sources.files.push(ConfigFile { path, needed: FileRequirement::Always });
    let steadfast = opened(sources).await;
    assert_eq!(failures_until_refused(&steadfast, 9).await, Some(4), "{:?}", steadfast.config().notes());
    let other = |amount: u32| EnvelopeBuilder::new("bank/send").args(&[("amount", amount)]).build().unwrap();
    for amount in 0..2 {
        assert_ne!(code(&steadfast.call_envelope(other(amount), fails).await), Some(Code::ApprovalRequired));
    }
    assert_eq!(
        code(&steadfast.call_envelope(other(9), works).await),
        Some(Code::ApprovalRequired),
        "the default rule"
    );
}

#[tokio::test(start_paused = true)]
async fn rp_17_the_jaato_variables_configure_the_engine() {
    let usual = open("rp-17-usual", ONLY_TRUST, &[]).await;
    assert_eq!(failures_until_refused(&usual, 9).await, Some(3));
    let five = open("rp-17-five", ONLY_TRUST, &[("JAATO_RELIABILITY_THRESHOLD", "5")]).await;
    assert_eq!(failures_until_refused(&five, 9).await, Some(5));
    let off = open("rp-17-off", ONLY_TRUST, &[("JAATO_RELIABILITY_ENABLED", "off")]).await;
    assert_eq!(failures_until_refused(&off, 9).await, None);
}

#[tokio::test]
async fn rp_17_persist_controls_if_trust_outlives_the_process() {
    for (persist, refused) in [("yes", true), ("no", false)] {
        let folder = folder(&format!("rp-17-persist-{persist}"));
        let file = format!("{ONLY_TRUST}[store]\nkind = \"sqlite\"\npath = \"state.db\"\n");
        let environment = [("JAATO_RELIABILITY_PERSIST", persist), ("STEADFAST_STORE_KIND", "sqlite")];
        let open = async || {
            let steadfast = Steadfast::open(sources(&folder, "steadfast.toml", &file, &environment)).await;
            steadfast.unwrap()
        };
        let first = open().await;
        assert_eq!(failures_until_refused(&first, 9).await, Some(3));
        if refused {
            // It is written in the background, and a shutdown waits for a slow disk only for a limited time.
            until(async || !first.store().documents(DocumentKind::Trust).await.unwrap().is_empty()).await;
        }
        first.shutdown(PATIENCE).await;
        drop(first);
        let called = open().await.call_envelope(pay(77), works).await;
        assert_eq!(code(&called) == Some(Code::ApprovalRequired), refused, "{persist}");
    }
}

/// A listener that counts, and panics on request.
#[derive(Default)]
struct CountingListener {
    notices: AtomicU32,
    finished: AtomicU32,
    panics: bool,
}

impl EngineListener for CountingListener {
    fn notice(&self, _: &NoticeContext<'_>, _: &CallNotice) {
        self.notices.fetch_add(1, Ordering::SeqCst);
        assert!(!self.panics, "a listener that panics");
    }

    fn finished(&self, _: &NoticeContext<'_>, _: &CallResult) {
        self.finished.fetch_add(1, Ordering::SeqCst);
        assert!(!self.panics, "a listener that panics");
    }
}

#[tokio::test(start_paused = true)]
async fn rp_18_a_listener_that_fails_breaks_neither_the_call_nor_the_other_listeners() {
    let (bad, good) = (
        Arc::new(CountingListener { panics: true, ..CountingListener::default() }),
        Arc::new(CountingListener::default()),
    );
    let opening = Steadfast::builder().sources(sources(&folder("rp-18"), "steadfast.toml", "", &[]));
    let opening = opening.clock(Arc::new(RuntimeClock::new())).listener(bad.clone()).listener(good.clone());
    let steadfast = opening.build().await.unwrap();
    let mut slow = steadfast.engine().events();
    let called = steadfast.call_envelope(keyed("k"), works).await;
    assert_eq!(called.result.status, CallStatus::Success);
    assert_eq!(good.finished.load(Ordering::SeqCst), 1);
    let notices = good.notices.load(Ordering::SeqCst);
    assert!(notices >= 4 && notices == bad.notices.load(Ordering::SeqCst), "{notices}");
    let first = slow.recv().await.unwrap();
    assert!(matches!(first.notice, CallNotice::CallStarted { .. }));
    // A reader that never reads blocks nothing: it misses events and gets an error that says so.
    for amount in 0..600 {
        steadfast.call_envelope(pay(amount), works).await;
    }
    assert!(matches!(slow.recv().await, Err(RecvError::Lagged(_))));
}

#[tokio::test]
async fn rp_12_trust_lives_in_the_file_that_is_configured() {
    let folder = folder("rp-12-file");
    let file = format!("{ONLY_TRUST}[trust_state]\nfile = \"reliability.json\"\n");
    let steadfast = Steadfast::open(sources(&folder, "steadfast.toml", &file, &[])).await.unwrap();
    assert_eq!(failures_until_refused(&steadfast, 9).await, Some(3));
    let file = folder.join("reliability.json");
    until(async || fs::read_to_string(&file).is_ok_and(|text| text.to_lowercase().contains("escalated")))
        .await;
}

#[tokio::test(start_paused = true)]
async fn rp_17_the_switches_of_the_environment_configure_the_engine() {
    let attempts = async |environment: &[(&str, &str)]| {
        let steadfast = open("rp-17-switches", "", environment).await;
        steadfast.call_envelope(pay(1), drops).await.result.attempts
    };
    assert_eq!(attempts(&[]).await, 4);
    assert_eq!(attempts(&[("TOOL_RELIABILITY_ENABLED", "no")]).await, 1);

    let refused = async |environment: &[(&str, &str)]| {
        let steadfast =
            open("rp-17-open-mode", "[retry]\nmode = \"off\"\n[guard]\nmode = \"off\"\n", environment).await;
        for amount in 0..5 {
            steadfast.call_envelope(pay(amount), drops).await;
        }
        code(&steadfast.call_envelope(pay(9), works).await) == Some(Code::CircuitOpen)
    };
    assert!(refused(&[]).await);
    assert!(!refused(&[("TOOL_RELIABILITY_OPEN_MODE", "0")]).await);

    let replayed = async |environment: &[(&str, &str)]| {
        let steadfast = open("rp-17-derive", "", environment).await;
        let mut enforced = pay(1);
        enforced.transport.dedupe_mode = Some(steadfast::call::DedupeMode::Enforced);
        steadfast.call_envelope(enforced.clone(), works).await;
        steadfast.call_envelope(enforced, works).await.result.from_cache
    };
    assert!(replayed(&[]).await);
    assert!(!replayed(&[("TOOL_RELIABLE_DERIVE_IDEMPOTENCY", "false")]).await);
    assert!(!replayed(&[("TOOL_RELIABILITY_DERIVE_IDEMPOTENCY", "false")]).await);
}

#[tokio::test(start_paused = true)]
async fn rp_17_switches_can_be_turned_at_run_time_and_stay_turned() {
    let folder = folder("rp-17-run-time");
    let alone = "[breaker]\nmode = \"off\"\n";
    let steadfast = opened(sources(&folder, "steadfast.toml", alone, &[])).await;
    let mut events = steadfast.config_events();
    assert_eq!(steadfast.call_envelope(pay(1), drops).await.result.attempts, 4);
    steadfast.switch(|_| Switches { retry: EnforcementMode::Off, ..Switches::default() });
    assert_eq!(steadfast.call_envelope(pay(2), drops).await.result.attempts, 1);
    assert!(matches!(events.try_recv(), Ok(ConfigEvent::Switched(_))));
    fs::write(folder.join("steadfast.toml"), format!("{alone}[retry]\nattempts = 2\n")).unwrap();
    assert!(matches!(steadfast.reload(), Reload::Replaced { .. }));
    assert_eq!(
        steadfast.call_envelope(pay(3), drops).await.result.attempts,
        1,
        "a file does not turn it back"
    );
    steadfast.switch(|_| Switches::default());
    assert_eq!(steadfast.call_envelope(pay(4), drops).await.result.attempts, 2);
}

#[tokio::test(start_paused = true)]
async fn a_changed_file_applies_to_new_calls_and_not_to_running_ones() {
    let folder = folder("reload");
    let path = folder.join("steadfast.toml");
    let text = "timeout = \"10s\"\n[retry]\nattempts = 1\n";
    let steadfast = opened(sources(&folder, "steadfast.toml", text, &[])).await;
    let mut events = steadfast.config_events();
    let silent = async |_: Attempt| std::future::pending::<ToolResult>().await;
    let began = tokio::time::Instant::now();
    let running = tokio::spawn(steadfast.call_envelope(pay(1), silent));
    tokio::task::yield_now().await;
    fs::write(&path, "timeout = \"3s\"\n[retry]\nattempts = 1\n[log]\nlevel = \"debug\"\n").unwrap();
    // Without a reload: the files are watched.
    let event = events.recv().await.unwrap();
    let ConfigEvent::Replaced { after_restart, .. } = event else { panic!("{event:?}") };
    assert_eq!(after_restart, ["log.level"]);
    let later = tokio::time::Instant::now();
    assert_eq!(code(&steadfast.call_envelope(pay(2), silent).await), Some(Code::Timeout));
    assert_eq!(later.elapsed().as_secs(), 3);
    assert_eq!(code(&running.await.unwrap()), Some(Code::Timeout));
    assert_eq!(began.elapsed().as_secs(), 10);

    fs::write(&path, "timeout = 3\nattemps = 1\n").unwrap();
    let event = events.recv().await.unwrap();
    let ConfigEvent::Rejected(errors) = event else { panic!("{event:?}") };
    assert_eq!(errors.problems().len(), 2);
    let later = tokio::time::Instant::now();
    steadfast.call_envelope(pay(3), silent).await;
    assert_eq!(later.elapsed().as_secs(), 3, "the running one stays");
}

#[tokio::test(start_paused = true)]
async fn a_domain_rule_applies_by_the_arguments_and_by_the_domain_of_the_caller() {
    let text = "[breaker]\nmode = \"off\"\n[retry]\nattempts = 3\n[domains.\"api.example.com\".retry]\nattempts = 2\n";
    let steadfast = open("domains", text, &[]).await;
    let to = |url: &str| EnvelopeBuilder::new("web/fetch").args(&[("url", url)]).build().unwrap();
    let attempts = async |call: CallEnvelope| steadfast.call_envelope(call, drops).await.result.attempts;
    assert_eq!(attempts(to("https://api.example.com/a")).await, 2);
    assert_eq!(attempts(to("https://elsewhere.example.com/a")).await, 3);
    let mut named = to("https://elsewhere.example.com/b");
    named.target.domain = Some(steadfast::call::id::Domain::new("api.example.com").unwrap());
    assert_eq!(attempts(named).await, 2);
}

#[tokio::test]
async fn answers_are_replayed_after_a_restart_and_encrypted_if_a_key_is_given() {
    let folder = folder("restart");
    fs::write(folder.join("key"), "0f".repeat(32)).unwrap();
    let text = "[store]\npath = \"deep/state.db\"\nkey_file = \"key\"\n";
    let environment = [("STEADFAST_STORE_KIND", "sqlite")];
    let open =
        async || Steadfast::open(sources(&folder, "steadfast.toml", text, &environment)).await.unwrap();
    let first = open().await;
    assert!(!first.call_envelope(keyed("k"), works).await.result.from_cache);
    first.shutdown(PATIENCE).await;
    drop(first);
    let second = open().await;
    assert!(second.call_envelope(keyed("k"), works).await.result.from_cache);
    assert_eq!(second.store().kind(), "sqlite");
    let bytes = fs::read(folder.join("deep/state.db")).unwrap();
    assert!(!bytes.windows(6).any(|window| window == b"\"paid\""));
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_set_aside_only_where_that_is_allowed() {
    let folder = folder("set-aside");
    fs::write(folder.join("state.db"), "my diary, not yours. ".repeat(100)).unwrap();
    let text = "[store]\npath = \"state.db\"\n";
    let opening = || {
        let environment = [("STEADFAST_STORE_KIND", "sqlite")];
        Steadfast::builder().sources(sources(&folder, "steadfast.toml", text, &environment))
    };
    let error = refused(opening()).await;
    assert!(matches!(error, OpenError::Sqlite(_)) && error.to_string().contains("move it away"), "{error}");
    let steadfast = opening().on_damage(FileDamagePolicy::SetAside).build().await.unwrap();
    let aside = fs::read_to_string(steadfast.set_aside().unwrap()).unwrap();
    assert!(aside.starts_with("my diary"), "nothing of it is lost");
    let loss = steadfast.record_loss().await.unwrap().expect("it may have held records");
    assert_eq!(loss.set_aside, [steadfast.set_aside().unwrap().display().to_string()]);
    assert!(!steadfast.call_envelope(keyed("k"), works).await.result.from_cache);
}

/// A writer that keeps its input.
#[derive(Clone, Default)]
struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for SharedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn logs_and_metrics_are_written_as_configured() {
    let paper = SharedBuffer::default();
    let text = "[metrics]\nnamespace = \"openclaw\"\n[log]\nformat = \"text\"\n";
    let steadfast = Steadfast::builder()
        .sources(sources(&folder("telling"), "steadfast.toml", text, &[]))
        .logging(LogOutput::To(Box::new(paper.clone())))
        .build()
        .await
        .unwrap();
    steadfast.call_envelope(keyed("k"), works).await;
    let metrics = steadfast.metrics().await;
    assert!(metrics.contains("openclaw_tool_calls_total{tool=\"bank/pay\",status=\"success\""), "{metrics}");
    assert!(metrics.contains("openclaw_tool_dedupe_cache_size{tool=\"bank/pay\""), "{metrics}");
    steadfast.shutdown(PATIENCE).await;
    steadfast.call_envelope(keyed("late"), works).await;
    steadfast.telemetry().shutdown(PATIENCE);
    let lines = String::from_utf8(paper.0.lock().unwrap().clone()).unwrap();
    for event in ["INFO  tool_call_start", "INFO  tool_call_end", "WARN  tool_call_turned_away"] {
        assert!(lines.contains(event), "{lines}");
    }
}

/// A registry in which every tool succeeds.
struct WorkingTools;

impl ToolRegistry for WorkingTools {
    fn find<'a>(
        &'a self,
        _: &'a CallEnvelope,
    ) -> std::pin::Pin<Box<dyn Future<Output = Option<ResolvedTool>> + Send + 'a>> {
        Box::pin(async { Some(ResolvedTool::new(works)) })
    }
}

#[tokio::test(start_paused = true)]
async fn traces_of_turns_are_stored_within_the_configured_limits() {
    // A turn of one call has eleven entries.
    for (test, text, count) in [
        ("traces", "", 3),
        ("traces-keep", "[traces]\nkeep = \"3m\"\n", 2),
        ("traces-entries", "[traces]\nentries = 12\n", 1),
    ] {
        let steadfast = open(test, text, &[]).await;
        for turn in ["first", "second", "third"] {
            tokio::time::advance(Duration::from_secs(120)).await;
            let plan = format!(r#"{{"turnId":"{turn}","calls":[{{"id":"p","tool":"bank/pay"}}]}}"#);
            let plan = Arc::new(TurnPlan::parse(plan.as_bytes(), &TurnLimits::DEFAULT).unwrap());
            let options = TurnOptions::of(pay(1).target);
            steadfast.engine().turn(plan, Arc::new(WorkingTools), options).await.unwrap();
            // Its queued entries are written when the trace is read.
            steadfast.engine().turn_trace(turn).await.unwrap().unwrap();
        }
        let query = TurnQuery { limit: 10, ..TurnQuery::default() };
        let found = steadfast.engine().turns(&query).await.unwrap().found;
        let names: Vec<_> = found.iter().map(|head| head.turn_id.as_ref().unwrap().as_str()).collect();
        assert_eq!(names, ["third", "second", "first"][..count], "{test}");
        let story = steadfast.engine().turn_trace("third").await.unwrap().unwrap();
        assert_eq!((story.spans.len(), story.events.len()), (2, 4), "{test}: the newest is whole");
    }
}

async fn refused(opening: SteadfastBuilder) -> OpenError {
    opening.build().await.err().unwrap_or_else(|| panic!("this must not open"))
}

#[tokio::test]
async fn a_start_that_cannot_succeed_makes_nothing() {
    let folder = folder("nothing-made");
    for (text, setting) in [
        (
            "[store]\npath = \"state/state.db\"\n[otlp]\nendpoint = \"ftp://collector:4318\"\n",
            "otlp.endpoint",
        ),
        ("[store]\npath = \"state/state.db\"\n[metrics]\nnamespace = \"a:b\"\n", "metrics.namespace"),
        ("[store]\npath = \"state/state.db\"\nkey_file = \"missing\"\n", "store.key_file"),
        ("retry.attempts = \"many\"\n[store]\npath = \"state/state.db\"\n", "retry.attempts"),
    ] {
        let sources = sources(&folder, "steadfast.toml", text, &[("STEADFAST_STORE_KIND", "sqlite")]);
        let error = refused(Steadfast::builder().sources(sources)).await;
        assert!(error.is_configuration() && error.to_string().contains(setting), "{error}");
        assert!(!folder.join("state").exists(), "{setting}");
    }
}

#[tokio::test(start_paused = true)]
async fn policies_are_resolved_once_and_again_after_a_reload() {
    let folder = folder("cached");
    let steadfast = opened(sources(&folder, "steadfast.toml", "", &[])).await;
    let resolved = || steadfast.config().resolve_at(&pay(1).tool(), Default::default(), None).policy;
    assert!(Arc::ptr_eq(&resolved(), &resolved()));
    let before = resolved();
    fs::write(folder.join("steadfast.toml"), "timeout = \"1s\"\n").unwrap();
    steadfast.reload();
    assert!(!Arc::ptr_eq(&before, &resolved()));
    assert_eq!(resolved().time.attempt, Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn listeners_of_the_program_are_called() {
    struct FinishedCounter(AtomicU32);
    impl EngineListener for FinishedCounter {
        fn finished(&self, _: &NoticeContext<'_>, _: &CallResult) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let counting = Arc::new(FinishedCounter(AtomicU32::new(0)));
    let opening = Steadfast::builder().set("store.kind", "memory").listener(counting.clone());
    let steadfast = opening.clock(Arc::new(RuntimeClock::new())).build().await.unwrap();
    steadfast.call_envelope(pay(1), works).await;
    assert_eq!(counting.0.load(Ordering::SeqCst), 1);
}
