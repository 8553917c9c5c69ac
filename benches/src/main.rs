//! Speed of Steadfast beside its peers.
//!
//! ```text
//! steadfast-benches core|engine|gateway [FILTER…] [--markdown FILE] [--quick]
//! ```
//!
//! A ratio is only meaningful if both sides ran on the same machine at the same time, so every row is measured in
//! rounds that take turns (see [`measure`]). Allocations are counted by a second build of this program, which the first
//! one starts. A subject is a module with a `run` that adds rows to the [`BenchReport`]; add it to its suite in [`SUITES`].

mod breaker;
mod call;
mod engine;
mod gateway;
mod key;
mod machine;
mod measure;
mod peers;
mod redis;
mod report;
mod sample;
mod sqlite;
mod stores;

use std::process::{Command, ExitCode, Stdio};

use engine::MeasurementError;
use gateway::TransportShape;
use measure::COUNTS;
use report::BenchReport;

/// The suites that the command line can name.
const SUITES: &[BenchSuite] = &[
    BenchSuite {
        name: "core",
        subjects: &[
            BenchSubject { name: "breaker", run: breaker::run },
            BenchSubject { name: "key", run: key::run },
            BenchSubject { name: "call", run: call::run },
        ],
        method: measure::METHOD,
        allocations: AllocationCounting::Counted,
    },
    BenchSuite {
        name: "engine",
        subjects: &[
            BenchSubject { name: "call", run: engine::run },
            BenchSubject { name: "call", run: peers::run },
            BenchSubject { name: "turn", run: engine::run_turn },
            BenchSubject { name: "memory", run: engine::run_footprint },
            BenchSubject { name: "sqlite", run: sqlite::run },
            BenchSubject { name: "redis", run: redis::run },
        ],
        method: measure::METHOD,
        allocations: AllocationCounting::Counted,
    },
    BenchSuite {
        name: "gateway",
        subjects: &[
            BenchSubject {
                name: "HTTP to HTTP",
                run: |report| gateway::run(report, TransportShape::HttpToHttp),
            },
            BenchSubject {
                name: "stdio behind HTTP",
                run: |report| gateway::run(report, TransportShape::StdioBehindHttp),
            },
            BenchSubject {
                name: "stdio to stdio",
                run: |report| gateway::run(report, TransportShape::StdioToStdio),
            },
            BenchSubject {
                name: "HTTP behind stdio",
                run: |report| gateway::run(report, TransportShape::HttpBehindStdio),
            },
            BenchSubject { name: "sqlite", run: gateway::run_sqlite },
            BenchSubject { name: "memory", run: gateway::run_memory },
        ],
        method: gateway::METHOD,
        allocations: AllocationCounting::InOtherProcesses,
    },
];

/// A list of subjects that belong together.
struct BenchSuite {
    name: &'static str,
    subjects: &'static [BenchSubject],
    /// The method of measurement, for readers of the table.
    method: &'static str,
    allocations: AllocationCounting,
}

/// The origin of the rows about allocations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AllocationCounting {
    Counted,
    /// The measured code runs in other processes.
    InOtherProcesses,
}

struct BenchSubject {
    name: &'static str,
    /// Adds its rows, or returns the reason why it could not.
    run: fn(&mut BenchReport) -> Result<(), MeasurementError>,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (first, second) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    match first.as_str() {
        engine::FOOTPRINT => return exit_code(engine::footprint_child(&second)),
        gateway::FAST_SERVER => return exit_code(gateway::fast_server_child(&second)),
        _ => {}
    }
    match parse(std::env::args().skip(1)) {
        Ok(selection) => run(&selection),
        Err(problem) => {
            let suites: Vec<_> = SUITES.iter().map(|suite| suite.name).collect();
            eprintln!(
                "{problem}\nusage: steadfast-benches {} [FILTER…] [--markdown FILE] [--quick]",
                suites.join("|")
            );
            ExitCode::from(2)
        }
    }
}

struct RunSelection {
    suite: &'static BenchSuite,
    filters: Vec<String>,
    markdown: Option<String>,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<RunSelection, String> {
    let name = arguments.next().ok_or("name a suite")?;
    let suite = SUITES.iter().find(|suite| suite.name == name);
    let suite = suite.ok_or_else(|| format!("there is no suite `{name}`"))?;
    let mut selection = RunSelection { suite, filters: Vec::new(), markdown: None };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => measure::set_quick(),
            "--markdown" => selection.markdown = Some(arguments.next().ok_or("--markdown needs a file")?),
            option if option.starts_with('-') => return Err(format!("there is no option `{option}`")),
            _ => selection.filters.push(argument),
        }
    }
    Ok(selection)
}

fn run(selection: &RunSelection) -> ExitCode {
    // Before the first measurement. Afterwards the load would be our own.
    let facts = machine::facts(selection.suite.name);
    let mut report = BenchReport::new(selection.filters.clone());
    for subject in selection.suite.subjects {
        report.begin(subject.name);
        if let Err(problem) = (subject.run)(&mut report) {
            // A report without one of its subjects would look complete.
            return exit_code(Err(problem));
        }
    }
    if COUNTS {
        println!("{}", report.rows());
        return ExitCode::SUCCESS;
    }
    // Counting takes a build of its own, so a quick run has to name it.
    let is_requested =
        !measure::is_quick() || selection.filters.iter().any(|filter| filter.contains("alloc"));
    if is_requested && selection.suite.allocations == AllocationCounting::Counted {
        match counted(selection) {
            Ok(rows) => report.append(&rows),
            Err(problem) => {
                eprintln!("allocations were not counted: {problem}");
                return ExitCode::FAILURE;
            }
        }
    }
    let markdown = format!(
        "## {}\n\n{facts}{}\n\n{}\n\n{}",
        selection.suite.name,
        report.remarks(),
        selection.suite.method,
        report.markdown()
    );
    println!("{markdown}");
    if let Some(path) = &selection.markdown
        && let Err(problem) = std::fs::write(path, markdown)
    {
        eprintln!("{path}: {problem}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn exit_code(outcome: Result<(), MeasurementError>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the rows of the build that counts allocations.
fn counted(selection: &RunSelection) -> Result<String, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["run", "--quiet", "--release", "--package", "steadfast-benches"])
        .args(["--features", "count-allocations", "--", selection.suite.name])
        .args(&selection.filters)
        .args(measure::is_quick().then_some("--quick"))
        .stderr(Stdio::inherit())
        .output()
        .map_err(|problem| problem.to_string())?;
    if !output.status.success() {
        return Err(output.status.to_string());
    }
    String::from_utf8(output.stdout).map_err(|problem| problem.to_string())
}
