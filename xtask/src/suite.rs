//! Builds the test binaries of the workspace and runs them.
//!
//! `cargo test` runs the same binaries, but cannot say how many tests are left. Here the total is known before the first
//! test runs, which is what progress reports need, and `--stress` can run the binaries many times in random order.

use std::hash::{BuildHasher, RandomState};
use std::hint;
use std::io::{self, BufRead, BufReader};
use std::num::NonZero;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use clap::Args;
use serde::Deserialize;

use crate::invocation::Invocation;
use crate::{TaskFailure, workspace};

/// Options of `cargo xtask suite`.
#[derive(Args)]
pub(crate) struct Options {
    /// Run in random order beside four busy loops per core, and repeat every test that touches processes, sockets, time or
    /// a store
    #[arg(long)]
    stress: bool,
    /// Number of runs of those tests under stress
    #[arg(long, default_value_t = 20, requires = "stress")]
    rounds: u32,
    /// Repeats the order of an earlier run; without it the order is new
    #[arg(long, requires = "stress")]
    seed: Option<u64>,
    /// Runs only the binaries whose name contains one of these, for example `gateway`
    #[arg(value_name = "BINARY")]
    only: Vec<String>,
}

/// `cargo xtask suite`.
pub(crate) fn run(options: &Options) -> Result<(), TaskFailure> {
    let mut binaries = build()?;
    binaries.retain(|binary| {
        options.only.is_empty() || options.only.iter().any(|part| binary.name.contains(part))
    });
    let runs = if options.stress {
        let seed = options.seed.unwrap_or_else(|| RandomState::new().hash_one(()));
        println!("order: --seed {seed}");
        shuffled_rounds(&binaries, options.rounds, seed)
    } else {
        binaries.iter().map(|binary| BinaryRun { binary, stress: None }).collect()
    };
    println!("{TOTAL}{}", runs.iter().map(|run| run.binary.tests).sum::<usize>());
    let failed = if options.stress { beside_busy_loops(|| run_side_by_side(&runs)) } else { run_all(&runs) }?;
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// The line that announces how many tests there are, before the first one runs.
pub(crate) const TOTAL: &str = "tests to run: ";

/// One executable with tests.
struct TestBinary {
    /// Package and target, for example `steadfast-api::api`.
    name: String,
    executable: PathBuf,
    package_root: PathBuf,
    tests: usize,
    is_pure: bool,
}

/// Packages whose tests compute: no processes, sockets, time or stores. Repeating them finds nothing new.
const PURE: &[&str] = &[
    "steadfast-core",
    "steadfast-fuzz-bodies",
    "steadfast-json",
    "steadfast-redact",
    "steadfast-replay",
    "steadfast-simulation",
    "steadfast-turn",
];

/// A test binary that is run once.
struct BinaryRun<'b> {
    binary: &'b TestBinary,
    stress: Option<StressRun>,
}

/// One of many runs under stress.
#[derive(Clone, Copy)]
struct StressRun {
    round: u32,
    /// The tests run in an order drawn from it.
    seed: u64,
}

/// Builds all test binaries, and asks each for its tests.
fn build() -> Result<Vec<TestBinary>, TaskFailure> {
    let messages =
        Invocation::cargo(&["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"])
            .output()?;
    messages
        .lines()
        .filter_map(executable_of)
        .map(|(artifact, executable)| artifact.binary(executable))
        .collect()
}

/// A target that cargo has built, as it reports it.
#[derive(Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    package_id: String,
    target: CargoTarget,
    profile: CargoProfile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct CargoTarget {
    name: String,
}

#[derive(Deserialize)]
struct CargoProfile {
    test: bool,
}

/// The test binary that a message of cargo reports, if it reports one.
fn executable_of(message: &str) -> Option<(Artifact, PathBuf)> {
    let artifact: Artifact = serde_json::from_str(message).ok()?;
    let executable = artifact.executable.clone()?;
    artifact.profile.test.then_some((artifact, executable))
}

impl Artifact {
    fn binary(self, executable: PathBuf) -> Result<TestBinary, TaskFailure> {
        let package = package_name(&self.package_id);
        let root = self.manifest_path.parent().unwrap_or(workspace::root()).to_owned();
        let name = format!("{package}::{}", self.target.name);
        let is_pure = PURE.contains(&package);
        let mut binary = TestBinary { name, executable, package_root: root, tests: 0, is_pure };
        binary.tests = binary.list()?;
        Ok(binary)
    }
}

/// `path+file:///somewhere/crates/api#steadfast-api@0.1.0`, and without the name where it is that of the folder.
fn package_name(id: &str) -> &str {
    let (path, end) = id.rsplit_once('#').unwrap_or(("", id));
    match end.rsplit_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next().unwrap_or(end),
    }
}

/// The seed of the property tests in a normal run.
const PROPERTY_SEED: &str = "1";

/// In all rounds together as many as in a normal run, which has 256.
const PROPERTY_CASES_PER_ROUND: &str = "13";

impl TestBinary {
    /// The binary, as cargo would start it.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.package_root).env("CARGO_MANIFEST_DIR", &self.package_root);
        command.env("PATH", workspace::search_path()).stdin(Stdio::null());
        command
    }

    /// The number of its tests.
    fn list(&self) -> Result<usize, TaskFailure> {
        let output = self.command().args(["--list", "--format", "terse"]).output();
        let output = output.map_err(|error| format!("cannot list the tests of {}: {error}", self.name))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter(|line| line.ends_with(": test")).count())
    }
}

impl BinaryRun<'_> {
    fn command(&self) -> Command {
        let mut command = self.binary.command();
        // Most tests wait for processes and sockets more than they compute.
        let threads = cores() * 4;
        if let Some(StressRun { round, seed }) = self.stress {
            // The standard test harness shuffles only where unstable options are allowed. Only the binary is told: cargo
            // would build everything again.
            command
                .args(["-Z", "unstable-options", "--shuffle-seed", &seed.to_string()])
                .env("RUSTC_BOOTSTRAP", "1")
                // Tests that repeat themselves do less: they are repeated here.
                .env("STRESS_TESTS", round.to_string());
            if !self.binary.is_pure {
                command.env("PROPTEST_CASES", PROPERTY_CASES_PER_ROUND);
            }
        } else if std::env::var_os("LONG_TESTS").is_none() {
            // The same cases in every run: a test fails because of a change, never by chance. Long runs and stress runs
            // draw new cases.
            command.env("PROPTEST_RNG_SEED", PROPERTY_SEED);
        }
        command.arg(format!("--test-threads={threads}"));
        command
    }

    /// Returns true if all tests passed. Their output goes to the terminal.
    fn passes(&self) -> Result<bool, TaskFailure> {
        let status = self.command().status().map_err(|error| self.did_not_start(&error))?;
        Ok(status.success())
    }

    /// Does the same while others run. Lines of the output stay whole, and the details of failures stay together.
    fn passes_beside_others(&self) -> Result<bool, TaskFailure> {
        let mut child =
            self.command().stdout(Stdio::piped()).spawn().map_err(|error| self.did_not_start(&error))?;
        let mut output = format!("\n{}\n", self.binary.name);
        let lines = child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
        for line in lines.map_while(Result::ok) {
            match line.starts_with("test ") {
                true => println!("{line}"),
                false => output.extend([line.as_str(), "\n"]),
            }
        }
        let status = child.wait().map_err(|error| self.did_not_start(&error))?;
        if !status.success() {
            println!("{output}");
        }
        Ok(status.success())
    }

    fn did_not_start(&self, error: &io::Error) -> TaskFailure {
        format!("{} did not start: {error}", self.binary.name)
    }
}

/// Runs them one after the other. Returns the names of binaries with failed tests.
fn run_all(runs: &[BinaryRun<'_>]) -> Result<Vec<String>, TaskFailure> {
    let mut failed = Vec::new();
    for run in runs.iter().filter(|run| run.binary.tests > 0) {
        println!("\n{}", run.binary.name);
        if !run.passes()? && !failed.contains(&run.binary.name) {
            failed.push(run.binary.name.clone());
        }
    }
    Ok(failed)
}

/// So many binaries run at a time under stress. The last tests of one mostly wait, and the cores are not idle meanwhile.
const SIDE_BY_SIDE: usize = 8;

/// Runs several at a time. Returns the names of binaries with failed tests.
fn run_side_by_side(runs: &[BinaryRun<'_>]) -> Result<Vec<String>, TaskFailure> {
    let left = Mutex::new(runs.iter().filter(|run| run.binary.tests > 0));
    let failed = Mutex::new(Vec::new());
    let lane = || -> Result<(), TaskFailure> {
        loop {
            let next = lock(&left).next();
            let Some(run) = next else { return Ok(()) };
            if !run.passes_beside_others()? {
                lock(&failed).push(run.binary.name.clone());
            }
        }
    };
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..SIDE_BY_SIDE).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().try_for_each(|lane| lane.join().unwrap_or_else(|_| Err("a lane panicked".into())))
    })?;
    let mut failed = failed.into_inner().unwrap_or_default();
    failed.sort();
    failed.dedup();
    Ok(failed)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Every binary in the first round, those that are not pure in all of them, each round in an order of its own. The binary
/// with the most tests comes first, because it takes longest: while it runs, there are always others to run beside it.
fn shuffled_rounds(binaries: &[TestBinary], rounds: u32, seed: u64) -> Vec<BinaryRun<'_>> {
    let mut random = ShuffleGenerator(seed);
    let mut runs = Vec::new();
    let most = binaries.iter().filter(|binary| !binary.is_pure).map(|binary| binary.tests).max();
    for round in 0..rounds {
        let begin = runs.len();
        let selected = binaries.iter().filter(|binary| round == 0 || !binary.is_pure);
        let stress = |random: &mut ShuffleGenerator| Some(StressRun { round, seed: random.next() });
        runs.extend(selected.map(|binary| BinaryRun { binary, stress: stress(&mut random) }));
        let of_round = runs.get_mut(begin..).unwrap_or_default();
        random.shuffle(of_round);
        of_round.sort_by_key(|run| Some(run.binary.tests) != most);
    }
    runs
}

/// Does it while four threads per core do nothing but compete for the cores.
fn beside_busy_loops<T>(work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..cores() * 4 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            });
        }
        let outcome = work();
        done.store(true, Ordering::Relaxed);
        outcome
    })
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// SplitMix64: enough to draw an order from.
struct ShuffleGenerator(u64);

impl ShuffleGenerator {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let chosen = usize::try_from(self.next() % (last as u64 + 1)).unwrap_or(last);
            items.swap(last, chosen);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binary(name: &str, is_pure: bool) -> TestBinary {
        let root = workspace::root().to_owned();
        TestBinary { name: name.to_owned(), executable: "true".into(), package_root: root, tests: 1, is_pure }
    }

    fn names(runs: &[BinaryRun<'_>]) -> Vec<String> {
        runs.iter().map(|run| run.binary.name.clone()).collect()
    }

    #[test]
    fn a_test_binary_is_found_in_the_messages_of_cargo() {
        let message = r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/api#steadfast-api@0.1.0",
            "manifest_path":"/w/crates/api/Cargo.toml","target":{"kind":["test"],"name":"api"},
            "profile":{"opt_level":"0","test":true},"executable":"/w/target/debug/deps/api-1"}"#;
        let (artifact, executable) = executable_of(message).unwrap();
        assert_eq!(package_name(&artifact.package_id), "steadfast-api");
        assert_eq!(executable, PathBuf::from("/w/target/debug/deps/api-1"));
        assert!(executable_of(&message.replace("\"test\":true", "\"test\":false")).is_none());
        assert!(executable_of(r#"{"reason":"build-finished","success":true}"#).is_none());
        assert_eq!(package_name("path+file:///w/xtask#0.1.0"), "xtask");
    }

    #[test]
    fn under_stress_pure_binaries_run_once_and_the_others_in_every_round() {
        let binaries = [binary("pure", true), binary("one", false), binary("two", false)];
        let runs = names(&shuffled_rounds(&binaries, 20, 7));
        for (name, times) in [("pure", 1), ("one", 20), ("two", 20)] {
            assert_eq!(runs.iter().filter(|run| *run == name).count(), times, "{name}");
        }
    }

    #[test]
    fn under_stress_each_round_begins_with_the_binary_that_takes_longest() {
        let mut binaries: Vec<_> = (0..20).map(|number| binary(&number.to_string(), false)).collect();
        binaries[11].tests = 300;
        let runs = names(&shuffled_rounds(&binaries, 3, 7));
        assert_eq!(runs.iter().step_by(20).collect::<Vec<_>>(), ["11", "11", "11"]);
    }

    #[test]
    fn a_seed_repeats_an_order_and_another_one_does_not() {
        let binaries: Vec<_> = (0..20).map(|number| binary(&number.to_string(), false)).collect();
        let order = |seed| names(&shuffled_rounds(&binaries, 1, seed));
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }

    #[test]
    fn a_binary_whose_tests_fail_is_named_once() {
        let (good, bad) =
            (binary("good", false), TestBinary { executable: "false".into(), ..binary("bad", false) });
        let runs = [&good, &bad, &bad].map(|binary| BinaryRun { binary, stress: None });
        assert_eq!(run_all(&runs).unwrap(), ["bad"]);
    }
}
