//! The conformance suite of MCP: a server passes exactly the same checks behind the gateway as alone.
//!
//! The server is part of the tests (`scripts/conformance.cjs`) and has everything that the suite asks for by name, so that every
//! check is meaningful. `cargo xtask setup` installs the suite and the server's libraries.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fmt, fs, thread};

use serde_json::Value;
use steadfast_testkit::effort::TestEffort;

use crate::world::{GatewayTestFolder, LISTEN, ReservedPort, TestProcess, start_gateway};

#[test]
fn sf_4_the_conformance_suite_passes_the_same_checks_through_the_gateway_in_the_older_era() {
    SuiteComparison::begin("2025-11-25").assert_same_checks();
}

#[test]
fn sf_4_the_conformance_suite_passes_the_same_checks_through_the_gateway_in_the_modern_era() {
    SuiteComparison::begin("2026-07-28").assert_same_checks();
}

/// Checks that differ on purpose: scenario, id, and reason.
const INTENDED: [(&str, &str, &str); 4] = [
    (
        "server-sse-multiple-streams",
        "server-sse-streams-functional",
        "an answer that needs no stream is given as JSON, which the suite notes and does not judge",
    ),
    ("server-sse-polling", "server-sse-priming-event", RESUMED),
    ("server-sse-polling", "server-sse-retry-field", RESUMED),
    ("server-sse-polling", "server-sse-disconnect-resume", RESUMED),
];

const RESUMED: &str =
    "the server hangs up in the middle of a call; we come back for its answer, so that our client need not";

/// Scenarios that are not compared: the server has no tasks, so they call missing tools again and again. The guard
/// reports that as a loop.
const LEFT_OUT: &str = "tasks-";

/// The suite for one version of the protocol, against a server alone and behind the gateway.
struct SuiteComparison {
    version: &'static str,
    server: ListeningProgram,
    folder: GatewayTestFolder,
}

impl SuiteComparison {
    fn begin(version: &'static str) -> Self {
        let folder = GatewayTestFolder::new(&format!("conformance_{version}"));
        let server = ListeningProgram::server(&folder);
        Self { version, server, folder }
    }

    fn assert_same_checks(&self) {
        let all = ["--requirements", self.version];
        let ways = TestEffort::of_this_run().cases(vec![
            ("stdio", [vec!["--".into()], server_line()].concat()),
            ("http", vec!["--url".into(), self.server.url().into()]),
        ]);
        let (bare, through) = thread::scope(|scope| {
            let through: Vec<_> =
                ways.iter().map(|(name, server)| scope.spawn(|| self.through(server, name, &all))).collect();
            let bare = self.run(&self.server, "bare", &all);
            (bare, through.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>())
        });
        assert!(bare.failing().is_empty(), "the server itself fails: {:?}", bare.failing());
        for ((name, _), through) in ways.iter().zip(through) {
            eprintln!("{}: bare {bare}; server by {name} {through}", self.version);
            let differences = bare.differences(&through);
            assert!(differences.is_empty(), "{}, server by {name}: {differences:#?}", self.version);
        }
    }

    /// Runs the suite against a new gateway without a history.
    fn through(&self, server: &[OsString], name: &str, arguments: &[&str]) -> SuiteFindings {
        self.run(&ListeningProgram::gateway(&self.folder, server), name, arguments)
    }

    /// Runs the suite against a listening program.
    fn run(&self, started: &ListeningProgram, name: &str, arguments: &[&str]) -> SuiteFindings {
        let folder = self.folder.join(name);
        let _ = fs::remove_dir_all(&folder);
        let mut suite = program(&self.folder, installed().join(".bin/conformance"));
        suite.args(["server", "--url", &started.url(), "--output-dir"]).arg(&folder).args(arguments);
        suite.env("NODE_OPTIONS", format!("--require \"{}\"", script("patient.cjs").display()));
        // It fails if any check does. The results are in the folder.
        suite.stdout(Stdio::null()).status().unwrap();
        let scenarios = fs::read_dir(&folder).expect("the suite has left what it found");
        let mut found = SuiteFindings::default();
        for scenario in scenarios {
            found.add(&scenario.unwrap().path());
        }
        assert!(!found.0.is_empty(), "the suite found nothing in {}", folder.display());
        found
    }
}

/// The results of the suite, by scenario.
#[derive(Default)]
struct SuiteFindings(BTreeMap<String, ScenarioChecks>);

/// The checks of a scenario.
#[derive(Default, PartialEq, Eq)]
struct ScenarioChecks {
    /// Number of passes per check, by id and name. Some checks run more than once.
    passed: BTreeMap<(String, String), usize>,
    failed: usize,
}

impl SuiteFindings {
    /// Adds a scenario from a folder named `server-SCENARIO-TIME`.
    fn add(&mut self, folder: &Path) {
        const TIME: usize = "-2026-11-16T04-50-44-191Z".len();
        let name = folder.file_name().unwrap().to_str().unwrap();
        let scenario = name.strip_prefix("server-").and_then(|name| name.get(..name.len() - TIME)).unwrap();
        if scenario.starts_with(LEFT_OUT) {
            return;
        }
        let checks = self.0.entry(scenario.to_owned()).or_default();
        let text = fs::read_to_string(folder.join("checks.json")).unwrap();
        for check in serde_json::from_str::<Vec<Value>>(&text).unwrap() {
            let text = |member: &str| check[member].as_str().unwrap_or_default().to_owned();
            match text("status").as_str() {
                "SUCCESS" => *checks.passed.entry((text("id"), text("name"))).or_default() += 1,
                "FAILURE" => checks.failed += 1,
                _ => {}
            }
        }
    }

    fn failing(&self) -> Vec<String> {
        self.0.iter().filter(|(_, checks)| checks.failed > 0).map(|(scenario, _)| scenario.clone()).collect()
    }

    /// Returns the unintended differences, by scenario.
    fn differences(&self, through: &Self) -> BTreeMap<String, String> {
        let all: BTreeSet<_> = self.checks().chain(through.checks()).collect();
        let differ = all.into_iter().filter(|(scenario, (id, _))| {
            !INTENDED.iter().any(|(of, intended, _)| of == scenario && intended == id)
        });
        let differ = differ.map(|(scenario, check)| {
            let times = |found: &Self| found.0.get(scenario).and_then(|all| all.passed.get(check)).copied();
            (scenario, check, times(self).unwrap_or(0), times(through).unwrap_or(0))
        });
        let differ = differ.filter(|(_, _, bare, through)| bare != through);
        differ
            .map(|(scenario, (id, name), bare, through)| {
                let words = format!("{id} ({name}): passed {bare} times bare, {through} times through us");
                (scenario.clone(), words)
            })
            .collect()
    }

    fn checks(&self) -> impl Iterator<Item = (&String, &(String, String))> {
        self.0.iter().flat_map(|(scenario, checks)| checks.passed.keys().map(move |check| (scenario, check)))
    }
}

impl fmt::Display for SuiteFindings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let passed: usize = self.0.values().flat_map(|checks| checks.passed.values()).sum();
        let failed: usize = self.0.values().map(|checks| checks.failed).sum();
        write!(f, "{passed} passed, {failed} failed")
    }
}

/// A program that listens until it is dropped.
struct ListeningProgram {
    _process: TestProcess,
    _port: Option<ReservedPort>,
    address: SocketAddr,
}

impl ListeningProgram {
    /// Starts the server over HTTP.
    fn server(folder: &Path) -> Self {
        let (port, line) = (ReservedPort::reserve(), server_line());
        let mut command = program(folder, &line[0]);
        let process = port.start(command.args(&line[1..]).arg(port.address().port().to_string()));
        Self { _process: process, address: port.address(), _port: Some(port) }
    }

    /// Starts the gateway in front of a server.
    fn gateway(folder: &Path, server: &[OsString]) -> Self {
        let mut command = program(folder, env!("CARGO_BIN_EXE_steadfast-tested"));
        command.args(["wrap", "--store", "memory", "--name", "conformance"]).args(LISTEN).args(server);
        let (process, address) = start_gateway(&mut command);
        Self { _process: process, _port: None, address }
    }

    fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }
}

/// Returns the program and arguments of the server on stdio.
fn server_line() -> Vec<OsString> {
    vec![installed().join(".bin/node").into(), script("conformance.cjs").into()]
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(name)
}

/// Returns a program with this folder as its home, which finds the installed Node and libraries.
fn program(folder: &Path, path: impl AsRef<Path>) -> Command {
    let inherited = env::var_os("PATH").unwrap_or_default();
    let installed_bin = std::iter::once(installed().join(".bin"));
    let log = fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).unwrap();
    let mut command = Command::new(path.as_ref());
    command.current_dir(folder).env("HOME", folder).env_remove("XDG_STATE_HOME").stderr(log);
    command.env("PATH", env::join_paths(installed_bin.chain(env::split_paths(&inherited))).unwrap());
    command.env("NODE_PATH", installed());
    command
}

/// Returns the folder where `cargo xtask setup` installed the npm packages.
fn installed() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is below the target folder");
    let folder = target.join("xtask/real/node");
    // This file is written last.
    let is_whole = fs::exists(folder.join("installed")).is_ok_and(|there| there);
    assert!(is_whole, "the suite is not installed: run `cargo xtask setup`");
    folder.join("node_modules")
}
