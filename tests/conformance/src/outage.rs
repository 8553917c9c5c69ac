//! SF-3: Redis is killed, emptied, paused and failed over while two engines make the same calls at the same time.
//!
//! D17 holds throughout. Tools that may run again continue, and their answers say that they were not recorded. Tools
//! that must not run twice are refused, and were not run. Writes that could not be saved are deferred until the store
//! recovers. No acknowledged answer is lost, unless the store was emptied, which is noticed and reported.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use steadfast_core::call::CallNotice;
use steadfast_core::code::Code;
use steadfast_core::policy::{BreakerCooldown, ToolClass};
use steadfast_executor::{Attempt, CallResponse, Engine, EngineListener};
use steadfast_store::{DocumentKind, StateStore, StoreEvent};
use steadfast_store_redis::{Options, RedisStore, WriteConfirmation};
use steadfast_testkit::effort::TestEffort;
use steadfast_testkit::redis::{RedisSentinel, RedisServer};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::calls::{
    CountingTool, LONG, OPEN, SUCCESS, TEST_TIMEOUT, call, fail, status, text_result, wait_for_notice, within,
};
use crate::child::by_name;
use crate::world::{plain, redis_options, unused_prefix};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sf_3_every_call_is_answered_when_a_server_is_killed_under_load() {
    let mut server = RedisServer::durable();
    let load = OutageLoad::start(options(&server.url())).await;
    load.wait_until_recorded(20).await;
    server.kill();
    load.check_without_store().await;
    let _server = blocking(move || {
        server.restart();
        server
    })
    .await;
    load.wait_until_recorded(20).await;
    load.verify(StoreMemory::Everything).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sf_3_every_call_is_answered_when_a_server_is_paused_under_load() {
    let server = RedisServer::start();
    // Commands without an answer time out soon: while the server is paused, and sometimes when the machine is slow.
    let (command_timeout, connect_timeout) = (Duration::from_millis(250), Duration::from_millis(250));
    let load =
        OutageLoad::start(Options { command_timeout, connect_timeout, ..options(&server.url()) }).await;
    for _ in 0..3 {
        load.wait_until_recorded(20).await;
        server.pause();
        load.check_without_store().await;
        server.resume();
    }
    load.wait_until_recorded(20).await;
    load.verify(StoreMemory::Everything).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sf_3_nothing_acknowledged_is_lost_when_a_replica_takes_over_under_load() {
    let settings = ["--appendonly", "yes", "--appendfsync", "always", "--repl-diskless-sync-delay", "0"];
    let mut pair = blocking(move || RedisSentinel::start(&settings)).await;
    let confirm = WriteConfirmation::Replicas { count: 1, within: TEST_TIMEOUT };
    let load = OutageLoad::start(Options { confirm, ..options(&pair.url()) }).await;
    load.wait_until_recorded(100).await;
    // The server that takes over needs a replica of its own before any write counts.
    let (pair, replica) = blocking(move || {
        pair.fail_over();
        let primary = format!("127.0.0.1 {}", pair.primary().port());
        let replica = RedisServer::with(&[&settings[..], &["--replicaof", &primary]].concat());
        (pair, replica)
    })
    .await;
    load.wait_until_recorded(20).await;
    load.verify(StoreMemory::Everything).await;
    drop((pair, replica));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sf_3_an_emptied_server_is_noticed_and_nothing_that_is_held_runs_twice() {
    let mut server = RedisServer::start();
    let options = options(&server.url());
    let load = OutageLoad::start(options.clone()).await;
    let other = OutageLoad::engine(&options, Arc::default(), LONG).await;
    load.wait_until_recorded(20).await;
    // A call in flight while the server loses it, and a duplicate of it in another process.
    let holder = OutageLoad::engine(&options, Arc::default(), HELD_LEASE).await;
    let tool = CountingTool::gated();
    let in_flight = tokio::spawn(holder.call(keyed("pay", "held"), tool.clone()));
    tool.wait_for_runs(1).await;
    assert_eq!(status(&other.call(keyed("pay", "known"), CountingTool::paying()).await), SUCCESS);
    // A process whose leases are over at once.
    let brief = OutageLoad::engine(&options, Arc::default(), Duration::from_millis(1)).await;
    assert_eq!(status(&brief.call(keyed("pay", "brief"), CountingTool::paying()).await), SUCCESS);

    let _server = blocking(move || {
        server.restart_empty();
        server
    })
    .await;
    let mut events = other.events();
    let following =
        tokio::spawn(
            async move { wait_for_notice(&mut events, |notice| *notice == CallNotice::Following).await },
        );
    let duplicate = tokio::spawn({
        let (other, tool) = (other.clone(), tool.clone());
        async move {
            loop {
                let called = other.call(keyed("pay", "held"), tool.clone()).await;
                if code(&called) != Some(Code::StoreUnavailable) {
                    return called;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    let mut store_events = load.event_log.events.subscribe();
    within(
        "the loss of the store is reported",
        store_events.wait_for(|events| events.contains(&StoreEvent::Emptied)),
    )
    .await
    .unwrap();
    load.refuses_for_a_lease().await;
    let opened = async {
        for number in 0.. {
            let called = brief.call(keyed("pay", &format!("brief-{number}")), CountingTool::paying()).await;
            if (status(&called), called.result.recorded) == (SUCCESS, Some(true)) {
                return;
            }
            assert_eq!(code(&called), Some(Code::StoreUnavailable), "{called:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("after one lease it is open again", opened).await;
    // The holder has claimed it again.
    following.await.unwrap();
    tool.finish_runs(2);
    let original = in_flight.await.unwrap();
    assert_eq!((status(&original), original.result.recorded), (SUCCESS, Some(true)));
    let duplicate = within("the duplicate is answered", duplicate).await.unwrap();
    assert_eq!((duplicate.result.output, tool.runs()), (original.result.output, 1));
    load.verify(StoreMemory::SinceItWasEmptied).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sf_3_an_open_breaker_is_written_again_when_the_server_was_emptied() {
    let mut server = RedisServer::start();
    let options = options(&server.url());
    let mut policy = plain(ToolClass::Mutating);
    policy.breaker.cooldown = BreakerCooldown::constant(LONG);
    let engine = async || {
        let store = Arc::new(RedisStore::connect(options.clone()).await.unwrap());
        let engine = Engine::builder().store(store.clone()).policies(Arc::new(policy.clone())).start().await;
        (engine, store)
    };
    let (first, store) = engine().await;
    let written = async || {
        let stored = async {
            while !store.documents(DocumentKind::Breaker).await.is_ok_and(|found| !found.is_empty()) {
                // The loss is only noticed with the next command.
                first.call(keyed("get", "something"), CountingTool::paying()).await;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        within("the breaker is in the store", stored).await;
    };
    fail(&first, 5).await;
    written().await;
    let _server = blocking(move || {
        server.restart_empty();
        server
    })
    .await;
    written().await;
    let (second, _) = engine().await;
    let refused = second.call(keyed("pay", "k"), CountingTool::paying()).await;
    assert_eq!(status(&refused), OPEN);
}

/// A lease that is renewed soon (after a third of it), and not lost by a slow holder.
const HELD_LEASE: Duration = Duration::from_secs(30);

/// Returns options with long timeouts: a missing server refuses at once, and a running one may be slow.
fn options(url: &str) -> Options {
    redis_options(url, &unused_prefix())
}

/// Calls of all kinds, made continuously, each in both engines at once.
struct OutageLoad {
    options: Options,
    engines: [Engine; 2],
    event_log: Arc<StoreEventLog>,
    executions: ExecutionCounts,
    answers: watch::Sender<Vec<OutageAnswer>>,
    stop: watch::Sender<bool>,
    workers: Vec<JoinHandle<()>>,
}

/// Number of executions by key.
type ExecutionCounts = Arc<Mutex<BTreeMap<String, u32>>>;

/// The answer to a call.
#[derive(Clone, Debug)]
struct OutageAnswer {
    /// Index of the engine.
    at: usize,
    tool: &'static str,
    key: String,
    code: Option<Code>,
    recorded: Option<bool>,
    output: Option<String>,
}

impl OutageAnswer {
    fn of(at: usize, tool: &'static str, key: &str, called: &CallResponse) -> Self {
        Self {
            at,
            tool,
            key: key.to_owned(),
            code: code(called),
            recorded: called.result.recorded,
            output: output(called),
        }
    }
}

/// The memory of a store after its failure.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StoreMemory {
    Everything,
    SinceItWasEmptied,
}

/// The reported events of the store.
#[derive(Default)]
struct StoreEventLog {
    events: watch::Sender<Vec<StoreEvent>>,
}

impl EngineListener for StoreEventLog {
    fn store_event(&self, _store: &str, event: &StoreEvent) {
        self.events.send_modify(|events| events.push(event.clone()));
    }
}

/// Number of refused calls that are made again at the end.
const ENOUGH: usize = 50;
const WORKERS: usize = 8;
const TOOLS: [&str; 3] = ["pay", "put", "get"];

impl OutageLoad {
    async fn start(options: Options) -> Self {
        let event_log = Arc::new(StoreEventLog::default());
        let engines = [
            Self::engine(&options, event_log.clone(), LONG).await,
            Self::engine(&options, Arc::default(), LONG).await,
        ];
        let load = Self {
            engines,
            options,
            event_log,
            executions: Arc::default(),
            answers: watch::Sender::default(),
            stop: watch::Sender::new(false),
            workers: Vec::new(),
        };
        // Beside busy loops there is enough to wait for.
        let pause = Duration::from_millis(TestEffort::of_this_run().pick(25, 5, 5));
        let workers = (0..WORKERS).map(|worker| {
            let (engines, executions) = (load.engines.clone(), load.executions.clone());
            let (answers, stop) = (load.answers.clone(), load.stop.subscribe());
            tokio::spawn(async move {
                for number in 0_u32.. {
                    for tool in TOOLS {
                        if *stop.borrow() {
                            return;
                        }
                        let key = format!("{tool}-{worker}-{number}");
                        let [here, there] = &engines;
                        let both = tokio::join!(
                            here.call(keyed(tool, &key), counting(&executions)),
                            there.call(keyed(tool, &key), counting(&executions)),
                        );
                        let both = [
                            OutageAnswer::of(0, tool, &key, &both.0),
                            OutageAnswer::of(1, tool, &key, &both.1),
                        ];
                        answers.send_modify(|all| all.extend(both));
                    }
                    tokio::time::sleep(pause).await;
                }
            })
        });
        let workers = workers.collect();
        Self { workers, ..load }
    }

    /// Starts an engine whose claims have this lease. An emptied store stays closed to it for as long.
    async fn engine(options: &Options, event_log: Arc<StoreEventLog>, lease: Duration) -> Engine {
        let connected = async {
            loop {
                // With short timeouts a connection may need another try.
                if let Ok(store) = RedisStore::connect(options.clone()).await {
                    return Arc::new(store);
                }
            }
        };
        let store = within("it is connected", connected).await;
        Engine::builder().store(store).policies(by_name(lease)).listener(event_log).start().await
    }

    /// Waits for this many new answers of this kind.
    async fn have(&self, count: usize, condition: &str, kind: impl Fn(&OutageAnswer) -> bool) {
        let from = self.answers.borrow().len();
        let mut answers = self.answers.subscribe();
        let reached = answers.wait_for(|all| all[from..].iter().filter(|one| kind(one)).count() >= count);
        within(condition, reached).await.unwrap();
    }

    /// Waits until each engine has found the store again by itself.
    async fn wait_until_recorded(&self, count: usize) {
        for engine in [0, 1] {
            let recorded = |one: &OutageAnswer| {
                (one.at, one.tool, one.code, one.recorded) == (engine, "pay", None, Some(true))
            };
            self.have(count, "calls that must not run twice are recorded", recorded).await;
        }
    }

    /// Checks that tools that may run again continue, and that the others are refused.
    async fn check_without_store(&self) {
        let refused = |one: &OutageAnswer| one.tool == "pay" && one.code == Some(Code::StoreUnavailable);
        self.have(10, "calls that must not run twice are refused", refused).await;
        let unrecorded =
            |one: &OutageAnswer| one.tool == "put" && one.code.is_none() && one.recorded == Some(false);
        self.have(10, "calls that may run again go on unrecorded", unrecorded).await;
        self.have(10, "calls that change nothing go on", |one| one.tool == "get" && one.code.is_none()).await;
    }

    async fn refuses_for_a_lease(&self) {
        let refused = |one: &OutageAnswer| one.tool == "pay" && one.code == Some(Code::StoreUnavailable);
        self.have(3, "calls that must not run twice are refused for a lease", refused).await;
    }

    /// Stops the load, and checks all of its answers.
    async fn verify(self, remembers: StoreMemory) {
        self.stop.send_replace(true);
        for worker in self.workers {
            within("every call ends", worker).await.unwrap();
        }
        for engine in &self.engines {
            let drained = engine.shutdown(TEST_TIMEOUT).await;
            assert_eq!((drained.aborted, drained.lost), (0, 0), "what was kept is saved");
        }
        let answers = self.answers.borrow().clone();
        let runs = |key: &str| self.executions.lock().get(key).copied().unwrap_or(0);
        for answered in &answers {
            match (answered.tool, answered.code) {
                ("pay", None) => assert_eq!(runs(&answered.key), 1, "{answered:?}"),
                ("pay", Some(Code::StoreUnavailable)) => assert!(runs(&answered.key) <= 1, "{answered:?}"),
                ("put" | "get", None) => assert!(runs(&answered.key) >= 1, "{answered:?}"),
                _ => panic!("no answer that it may have: {answered:?}"),
            }
        }
        if remembers == StoreMemory::SinceItWasEmptied {
            return;
        }
        let (command_timeout, connect_timeout) = (TEST_TIMEOUT, TEST_TIMEOUT);
        let patient = Options { command_timeout, connect_timeout, ..self.options.clone() };
        let restarted = Self::engine(&patient, Arc::default(), LONG).await;
        let mut by_key: BTreeMap<&str, Vec<&OutageAnswer>> = BTreeMap::new();
        for answered in answers.iter().filter(|one| one.tool != "get") {
            by_key.entry(&answered.key).or_default().push(answered);
        }
        let mut refused = 0;
        for (key, given) in by_key {
            let before = runs(key);
            let outputs: Vec<_> = given.iter().filter(|one| one.code.is_none()).collect();
            if outputs.is_empty() && refused == ENOUGH {
                continue;
            }
            let again = restarted.call(keyed(given[0].tool, key), counting(&self.executions)).await;
            assert_eq!(status(&again), SUCCESS, "{given:?}");
            if outputs.is_empty() {
                // It was refused and not run, and can be run now.
                refused += 1;
                assert_eq!((before, runs(key)), (0, 1), "{given:?}");
                continue;
            }
            // Answers are replayed and nothing runs for them. That includes unrecorded answers, because they have been
            // saved since. Where both engines ran the call, one run counts, and certainly a recorded one.
            let replayed = output(&again);
            assert_eq!((again.result.from_cache, runs(key)), (true, before), "{given:?}: {again:?}");
            assert!(outputs.iter().any(|one| one.output == replayed), "{given:?}: {replayed:?}");
            for one in outputs.iter().filter(|one| one.recorded == Some(true) || one.tool == "pay") {
                assert_eq!(one.output, replayed, "{given:?}");
            }
        }
        assert!(refused > 0);
    }
}

/// Returns a tool that counts its executions by the key of the call.
fn counting(
    executions: &ExecutionCounts,
) -> impl Fn(Attempt) -> std::future::Ready<steadfast_executor::ToolResult> + Send + Sync + 'static {
    let executions = executions.clone();
    move |attempt: Attempt| {
        let key = attempt.idempotency_key();
        let mut executions = executions.lock();
        let runs = executions.entry(key.to_owned()).or_insert(0);
        *runs += 1;
        std::future::ready(text_result(&format!("{key}, run {runs}")))
    }
}

fn keyed(tool: &str, key: &str) -> steadfast_core::envelope::CallEnvelope {
    let payload: Value = json!({ "idempotencyKey": key });
    call(json!({ "toolName": tool, "payload": payload }))
}

fn output(called: &CallResponse) -> Option<String> {
    called.result.output.as_ref().map(|output| output.content.as_str().to_owned())
}

fn code(called: &CallResponse) -> Option<Code> {
    called.result.error.as_ref().map(|error| error.code)
}

/// Runs blocking work, such as starting and killing servers.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}
