//! SF-2: processes that guard a tool with a counted side effect are killed at random moments and started again.
//!
//! Two processes share a store. Each round sends them new calls together with all unsettled calls and some of the
//! settled ones, some of them to both, and then kills one of the processes or both: at a random moment, or while calls
//! have had their effect and were not answered. The answers that arrived, and the ledger of the tool, must satisfy
//! this:
//!
//! - a key that must not run twice is executed at most once, ever, whether it was given, computed or the client's call
//!   id;
//! - a call without a key is not executed again before its caller received a final response with an unknown outcome; a
//!   pending one is not enough;
//! - an answer that was recorded stays, and stays the same, and its call is not executed again;
//! - an answer that was given was the answer of an execution; a tool that may run again never has an unknown outcome.
//!
//! `STEADFAST_SEED` repeats the calls and the moments of a run, as far as the timing of the machine allows.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use steadfast_testkit::effort::TestEffort;
use steadfast_testkit::redis::RedisServer;

use crate::calls::{TEST_TIMEOUT, envelope};
use crate::child::{CallingProcess, SURFACE};
use crate::ledger::{LedgerTool, began, draw};
use crate::world::{ConformanceFolder, unused_prefix};

/// Processes on one store.
const PROCESSES: usize = 2;
/// New calls in each round.
const NEW: usize = 24;
/// Calls that are sent at once at the end. Thousands would be too many for a store to answer in time.
const AT_ONCE: usize = 200;
/// Settled calls that are sent again in each round.
const REPEATED_CALLS: usize = 12;
/// In one of this many rounds a kill comes when calls have had their effect and none of them was answered.
const HELD_ROUND_INTERVAL: usize = 4;
/// Minimum number of such calls.
const HELD_CALLS: usize = 4;
/// Maximum number of rounds. They end earlier once every required case has happened.
const MOST_ROUNDS: usize = 4_000;
/// The kinds of new calls, in turn.
const KINDS: [CrashCallKind; 8] = [
    CrashCallKind::Keyed,
    CrashCallKind::Safe,
    CrashCallKind::Keyed,
    CrashCallKind::Keyless,
    CrashCallKind::Computed,
    CrashCallKind::Safe,
    CrashCallKind::Dispatched,
    CrashCallKind::Keyless,
];

#[test]
fn sf_2_kill_9_at_any_moment_with_a_file() {
    let folder = ConformanceFolder::new();
    let store = json!({ "store": "sqlite", "path": folder.file("state.db"), "lease_ms": 120_000 });
    CrashRun::new(folder, store, LeaseTermination::Process).run();
}

#[test]
fn sf_2_kill_9_at_any_moment_with_a_server() {
    let (folder, server) = (ConformanceFolder::new(), RedisServer::shared());
    let prefix = unused_prefix();
    let store = json!({ "store": "redis", "url": server.url(), "prefix": prefix, "lease_ms": 600 });
    CrashRun::new(folder, store, LeaseTermination::Time).run();
}

/// The event that ends the lease of a killed process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LeaseTermination {
    /// The end of the process.
    Process,
    /// Time. A slow but living holder may lose its lease too, and its late answer still counts.
    Time,
}

/// The effect of running a call twice, and its identification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CrashCallKind {
    /// Harm; it has a key.
    Keyed,
    /// Harm; its caller asked for a key that is made of its arguments.
    Computed,
    /// Harm; it has a call id.
    Dispatched,
    /// Harm; it is identified by its arguments alone. It may run again after its caller received a final unknown
    /// outcome.
    Keyless,
    /// No harm.
    Safe,
}

/// A call as its caller means it: the same, however often it is sent.
struct IntendedCall {
    kind: CrashCallKind,
    acknowledged: Option<AcknowledgedAnswer>,
    /// Times at which a final response with an unknown outcome arrived.
    unknown_reports: Vec<u64>,
    executed: usize,
}

/// A recorded answer that has arrived.
struct AcknowledgedAnswer {
    output: String,
    /// Number of executions of the call by then.
    executed: usize,
    at: u64,
}

impl IntendedCall {
    /// Returns true if two runs of it may be in flight at once: one whose lease has expired, and the one after the
    /// final response.
    fn may_run_twice(&self, leases: LeaseTermination) -> bool {
        self.kind == CrashCallKind::Keyless
            && leases == LeaseTermination::Time
            && !self.unknown_reports.is_empty()
    }

    /// Returns true if its caller received a final unknown outcome after each of these executions but the last, and
    /// before the next.
    fn was_reported_between(&self, runs: &[String], leases: LeaseTermination) -> bool {
        if runs.len() > 1 + self.unknown_reports.len() {
            return false;
        }
        let mut began: Vec<u64> = runs.iter().map(|run| began(run)).collect();
        began.sort_unstable();
        let is_reported = |from: u64, to: u64| self.unknown_reports.iter().any(|at| (from..=to).contains(at));
        // A holder whose lease has expired may begin after the final response.
        leases == LeaseTermination::Time || began.windows(2).all(|pair| is_reported(pair[0], pair[1]))
    }
}

struct CrashRun {
    orders: Value,
    leases: LeaseTermination,
    ledger: LedgerTool,
    intended_calls: BTreeMap<String, IntendedCall>,
    children: Vec<CallingProcess>,
    seed: u64,
    drawn: u64,
    replays: usize,
    _folder: ConformanceFolder,
}

impl CrashRun {
    fn new(folder: ConformanceFolder, mut orders: Value, leases: LeaseTermination) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
        let given = std::env::var("STEADFAST_SEED").ok().map(|seed| seed.parse().unwrap());
        let seed = given.unwrap_or(u64::from(now));
        println!("STEADFAST_SEED={seed}");
        orders["role"] = json!("calls");
        orders["ledger"] = json!(folder.file("ledger"));
        let ledger = LedgerTool::at(folder.file("ledger"), 0);
        let intended_calls = BTreeMap::new();
        let children = Vec::new();
        Self { orders, leases, ledger, intended_calls, children, seed, drawn: 0, replays: 0, _folder: folder }
    }

    fn run(mut self) {
        let least = TestEffort::of_this_run().pick(4, 40, 200);
        let mut rounds = 0;
        while rounds < least || !self.is_fully_covered() {
            assert!(rounds < MOST_ROUNDS, "seed {}: what is to be judged does not happen", self.seed);
            self.round(rounds);
            rounds += 1;
        }
        // After the faults stop, every call ends.
        let messages: Vec<Value> =
            std::mem::take(&mut self.children).into_iter().flat_map(CallingProcess::finish).collect();
        self.judge(rounds, &messages, &self.ledger.read());
        let all: Vec<String> = self.intended_calls.keys().cloned().collect();
        self.start_missing_processes();
        let mut messages = Vec::new();
        for some in all.chunks(AT_ONCE) {
            for child in &mut self.children {
                for name in some {
                    child.send_line(&Self::envelope(name, self.intended_calls[name].kind));
                }
            }
            for child in &self.children {
                let answers = std::iter::repeat_with(|| child.next());
                messages.extend(answers.filter(|message| message.get("answer").is_some()).take(some.len()));
            }
        }
        messages.extend(std::mem::take(&mut self.children).into_iter().flat_map(CallingProcess::finish));
        assert_eq!(messages.len(), PROCESSES * all.len(), "every call is answered once");
        self.judge(rounds, &messages, &self.ledger.read());
        let count = |which: fn(&IntendedCall) -> bool| {
            self.intended_calls.values().filter(|intended| which(intended)).count()
        };
        let unknown = count(|intended| !intended.unknown_reports.is_empty());
        let again = count(|intended| intended.executed > 1);
        let keyless_reruns =
            count(|intended| intended.kind == CrashCallKind::Keyless && intended.executed > 1);
        let acknowledged = count(|intended| intended.acknowledged.is_some());
        println!(
            "{} calls: {acknowledged} answered, {unknown} unknown, {again} executed again ({keyless_reruns} of those \
             without a key), {} replays",
            all.len(),
            self.replays
        );
        assert_eq!(
            count(|intended| intended.acknowledged.is_none() && intended.unknown_reports.is_empty()),
            0,
            "none is left open"
        );
        assert!(self.is_fully_covered());
        // A quarter of all calls may run again, and these are all answered in the end.
        assert!(acknowledged >= all.len() / 4 && self.replays > rounds);
    }

    /// Returns true if the kills caused another execution of calls without a key and of calls that may run again, and
    /// of no others.
    fn is_fully_covered(&self) -> bool {
        let is_any = |which: fn(&IntendedCall) -> bool| self.intended_calls.values().any(which);
        is_any(|intended| intended.kind == CrashCallKind::Keyless && intended.executed > 1)
            && is_any(|intended| intended.kind == CrashCallKind::Safe && intended.executed > 1)
            && is_any(|intended| {
                intended.kind != CrashCallKind::Keyless && !intended.unknown_reports.is_empty()
            })
    }

    fn round(&mut self, round: usize) {
        let is_held = round % HELD_ROUND_INTERVAL == HELD_ROUND_INTERVAL - 1;
        self.start_missing_processes();
        if is_held {
            self.ledger.hold();
        }
        let before = self.ledger.executions();
        self.send(round);
        if is_held {
            let deadline = Instant::now() + TEST_TIMEOUT;
            while self.ledger.executions() < before + HELD_CALLS {
                assert!(Instant::now() < deadline, "seed {}, round {round}: nothing is executed", self.seed);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let span = self.while_of_a_round();
        std::thread::sleep(span);
        // Every execution by now was preceded by the required response.
        let executed = self.ledger.read();
        let messages = self.kill();
        if is_held {
            self.ledger.resume();
        }
        self.judge(round, &messages, &executed);
    }

    /// Returns the next calls: new ones, all unsettled ones, and some of the settled ones.
    fn next_calls(&mut self, round: usize) -> Vec<String> {
        let settled =
            |intended: &IntendedCall| intended.acknowledged.is_some() || !intended.unknown_reports.is_empty();
        let (done, mut calls): (Vec<_>, Vec<_>) =
            self.intended_calls.iter().partition(|(_, intended)| settled(intended));
        let names =
            |list: Vec<(&String, &IntendedCall)>| list.into_iter().map(|(name, _)| name.clone()).collect();
        calls.truncate(10 * NEW);
        let (done, mut calls): (Vec<String>, Vec<String>) = (names(done), names(calls));
        for _ in 0..REPEATED_CALLS.min(done.len()) {
            let at = self.draw(done.len() as u64);
            calls.push(done[usize::try_from(at).unwrap()].clone());
        }
        for number in 0..NEW {
            let kind = KINDS[number % KINDS.len()];
            let name = format!("{round}-{number}");
            let intended =
                IntendedCall { kind, acknowledged: None, unknown_reports: Vec::new(), executed: 0 };
            self.intended_calls.insert(name.clone(), intended);
            // Some are sent twice at once.
            calls.extend(std::iter::repeat_n(name, 1 + usize::from(number % 5 == 0)));
        }
        calls
    }

    fn start_missing_processes(&mut self) {
        while self.children.len() < PROCESSES {
            self.orders["seed"] = json!(self.draw(u64::MAX));
            let child = CallingProcess::start(&self.orders);
            // Some are killed before they are up.
            if self.draw(10) > 0 {
                assert_eq!(child.next(), json!({ "ready": true }));
            }
            self.children.push(child);
        }
    }

    fn send(&mut self, round: usize) {
        for name in self.next_calls(round) {
            let (call, to) = (Self::envelope(&name, self.intended_calls[&name].kind), self.draw(4));
            for (number, child) in self.children.iter_mut().enumerate() {
                // To one process, to the other, or to both.
                if to >= 2 || to == number as u64 {
                    child.send_line(&call);
                }
            }
        }
    }

    /// Draws the time until a kill. Most kills come within some milliseconds, some late.
    fn while_of_a_round(&mut self) -> Duration {
        let longest = if self.draw(8) == 0 { 700_000 } else { 60_000 };
        Duration::from_micros(self.draw(longest))
    }

    /// Kills one process or both. Returns the lines of all of them.
    fn kill(&mut self) -> Vec<Value> {
        let which = usize::try_from(self.draw(3)).unwrap();
        let (mut messages, mut left) = (Vec::new(), Vec::new());
        for (number, mut child) in std::mem::take(&mut self.children).into_iter().enumerate() {
            if which == PROCESSES || which == number {
                messages.extend(child.kill());
            } else {
                messages.extend(child.take_messages());
                left.push(child);
            }
        }
        self.children = left;
        messages
    }

    fn envelope(name: &str, kind: CrashCallKind) -> Value {
        let mut call = envelope(json!({
            "requestId": name, "payload": { "params": { "name": name } },
        }));
        match kind {
            CrashCallKind::Computed => call["transport"] = json!({ "dedupeMode": "enforced" }),
            CrashCallKind::Dispatched => call[SURFACE] = json!({ "equalCalls": "joined", "callId": name }),
            CrashCallKind::Keyless => call[SURFACE] = json!({ "equalCalls": "joined" }),
            CrashCallKind::Keyed => call["payload"]["idempotencyKey"] = json!(name),
            CrashCallKind::Safe => {
                call["payload"]["idempotencyKey"] = json!(name);
                call["toolName"] = json!("put");
            }
        }
        call
    }

    /// Checks the answers, given the executions before they were read.
    fn judge(&mut self, round: usize, messages: &[Value], before: &BTreeMap<String, Vec<String>>) {
        let seed = self.seed;
        let executions = self.ledger.read();
        // All lines of one process come before those of the next: earlier lines count first.
        let mut responses: Vec<&Value> =
            messages.iter().filter(|message| message.get("answer").is_some()).collect();
        responses.sort_by_key(|response| response["at"].as_u64());
        for response in responses {
            let (answer, at) = (&response["answer"], response["at"].as_u64().unwrap());
            let started = response["begun"].as_u64().unwrap();
            let name = answer["requestId"].as_str().unwrap();
            let context = || {
                format!("seed {seed}, round {round}, {name}: {answer}\nexecuted: {:?}", executions.get(name))
            };
            let intended = self.intended_calls.get_mut(name).unwrap();
            let may_run_twice = intended.may_run_twice(self.leases);
            match (answer["status"].as_str().unwrap(), answer["error"]["code"].as_str()) {
                ("success", None) => {
                    let output = answer["output"]["content"].as_str().unwrap().to_owned();
                    let runs = executions.get(name).cloned().unwrap_or_default();
                    assert!(runs.contains(&output), "an answer that no execution gave: {}", context());
                    self.replays += usize::from(answer["fromCache"] == true);
                    if answer["recorded"] == false {
                        // Its lease has expired. The answer of another run counts.
                        assert!(self.leases == LeaseTermination::Time, "not recorded: {}", context());
                        continue;
                    }
                    if let Some(recorded) = &intended.acknowledged {
                        assert!(
                            may_run_twice || recorded.output == output,
                            "another answer than before: {}",
                            context()
                        );
                    } else {
                        assert!(
                            intended.unknown_reports.is_empty()
                                || intended.kind == CrashCallKind::Keyless
                                || self.leases == LeaseTermination::Time,
                            "it was not settled: {}",
                            context()
                        );
                        intended.acknowledged = Some(AcknowledgedAnswer { output, executed: runs.len(), at });
                    }
                }
                ("error", Some("outcome_unknown")) => {
                    let lost = intended.acknowledged.as_ref().is_some_and(|acknowledged| {
                        // Two concurrent callers may get this response one after the other, and it ran again meanwhile.
                        // Where leases expire there may be two runs: one was answered, and the other is unknown.
                        let was_reported =
                            intended.kind == CrashCallKind::Keyless && !intended.unknown_reports.is_empty();
                        !(may_run_twice || was_reported && started <= acknowledged.at)
                    });
                    assert!(!lost, "an acknowledged result is lost: {}", context());
                    assert_ne!(intended.kind, CrashCallKind::Safe, "it could have run again: {}", context());
                    if response["final"] == true {
                        intended.unknown_reports.push(at);
                    }
                }
                // A process that paused for longer than its lease has sent nothing, and says so.
                ("retriable_error", Some("overloaded")) if self.leases == LeaseTermination::Time => {
                    let sent = (&answer["attempts"], &answer["error"]["rule"]);
                    assert_eq!(sent, (&json!(0), &json!("lease")), "{}", context());
                    let process = format!(" {}.", response["process"]);
                    let mut runs = executions.get(name).into_iter().flatten();
                    let is_its =
                        |run: &String| run.contains(&process) && (started..=at).contains(&began(run));
                    assert!(!runs.any(is_its), "it was sent: {}", context());
                }
                _ => panic!("no answer that it may have: {}", context()),
            }
        }
        for (name, runs) in &executions {
            let intended = self.intended_calls.get_mut(name).unwrap();
            intended.executed = runs.len();
            let context = || format!("seed {seed}, round {round}, {name}, {:?}: {runs:?}", intended.kind);
            match intended.kind {
                CrashCallKind::Keyed | CrashCallKind::Computed | CrashCallKind::Dispatched => {
                    assert!(runs.len() <= 1, "a key ran twice: {}", context());
                }
                CrashCallKind::Keyless => {
                    let runs = before.get(name).map_or(&[][..], Vec::as_slice);
                    assert!(
                        intended.was_reported_between(runs, self.leases),
                        "again before the final response: {}",
                        context()
                    );
                }
                CrashCallKind::Safe => {}
            }
            // A holder whose lease has expired may still be running. That does no harm where the call may run again.
            let may_lag = intended.kind == CrashCallKind::Safe && self.leases == LeaseTermination::Time;
            let may_lag = may_lag || intended.may_run_twice(self.leases);
            if let Some(AcknowledgedAnswer { executed, .. }) = intended.acknowledged
                && !may_lag
            {
                assert_eq!(runs.len(), executed, "executed again after it was acknowledged: {}", context());
            }
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.drawn += 1;
        draw(self.seed.rotate_left(20) ^ self.drawn) % below
    }
}
