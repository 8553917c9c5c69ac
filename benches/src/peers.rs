//! The alternatives of programs in other languages, in processes of their own.
//!
//! Each process prints its runtime, and then answers lines `<what> <count>` with the nanoseconds that this many calls
//! took. So they take turns with the engine, round by round, like all contestants here. The cost of the pipe is not in
//! their figures. They do a part of the engine's work, which their names say.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::engine::{EngineCallScenario, EngineCaller, EngineKeyChoice, MeasurementError, runtime};
use crate::measure::{Contestant, contest_in};
use crate::report::{BenchBudget, BenchReport};
use crate::sample;

/// Variable with the folder where `cargo xtask bench` has installed them.
pub(crate) const FOLDER: &str = "STEADFAST_BENCH_PEERS";

const NODE: &str = "node";
const PYTHON: &str = "python";

/// Each call of Steadfast, with the calls of the peers beside it and their names.
const RACES: &[(EngineCallScenario, &str, &[PeerLibrary])] = &[
    (
        EngineCallScenario::Fresh,
        "fresh, 1 KiB, explicit key",
        &[
            PeerLibrary {
                language: NODE,
                command: "cockatiel-fresh",
                name: "cockatiel, retry + breaker + timeout",
            },
            PeerLibrary { language: NODE, command: "opossum-fresh", name: "opossum, breaker + timeout" },
            PeerLibrary {
                language: PYTHON,
                command: "tenacity-fresh",
                name: "tenacity + pybreaker, retry + breaker",
            },
            PeerLibrary {
                language: PYTHON,
                command: "powertools-fresh",
                name: "AWS Powertools, duplicates alone, arguments parsed before",
            },
        ],
    ),
    (
        EngineCallScenario::Replayed,
        "replay, 1 KiB",
        &[PeerLibrary {
            language: PYTHON,
            command: "powertools-replay",
            name: "AWS Powertools, arguments parsed before",
        }],
    ),
    (
        EngineCallScenario::RefusedByBreaker,
        "refused by the open breaker, 1 KiB",
        &[
            PeerLibrary { language: NODE, command: "cockatiel-open", name: "cockatiel" },
            PeerLibrary { language: NODE, command: "opossum-open", name: "opossum" },
            PeerLibrary { language: PYTHON, command: "pybreaker-open", name: "pybreaker" },
        ],
    ),
];

struct PeerLibrary {
    language: &'static str,
    command: &'static str,
    name: &'static str,
}

pub(crate) fn run(report: &mut BenchReport) -> Result<(), MeasurementError> {
    if !RACES.iter().any(|(_, title, _)| report.is_selected(title)) {
        return Ok(());
    }
    let folder = std::env::var_os(FOLDER).ok_or_else(|| {
        MeasurementError::because("the peers are not installed; run `cargo xtask bench engine`")
    })?;
    let folder = Path::new(&folder);
    let runtime = runtime()?;
    let mut runtimes = Vec::new();
    for (scenario, title, peers) in RACES {
        if !report.is_selected(title) {
            continue;
        }
        let mut caller = EngineCaller::new(&runtime, None, *scenario, EngineKeyChoice::Key)?;
        let mut contestants: Vec<Contestant<'_>> = vec![Box::new(move |calls| caller.calls(calls))];
        for peer in *peers {
            let mut process = PeerProcess::start(folder, peer.language)?;
            if !runtimes.contains(&process.runs_on) {
                runtimes.push(process.runs_on.clone());
            }
            contestants.push(Box::new(move |calls| process.calls(peer.command, calls)));
        }
        let standing = contest_in(101, 200, &mut contestants);
        let names: Vec<_> = peers.iter().map(|peer| (peer.name, BenchBudget::None)).collect();
        report.add_peers(title, &standing, &names);
    }
    report.remark(&format!("Peers in other languages: {}.", runtimes.join("; ")));
    Ok(())
}

/// A program in another language that makes calls on request.
struct PeerProcess {
    child: Child,
    stdin: ChildStdin,
    answers: BufReader<ChildStdout>,
    runs_on: String,
}

impl PeerProcess {
    fn start(folder: &Path, language: &str) -> Result<Self, MeasurementError> {
        let here = folder.join(language);
        let mut command = match language {
            NODE => Command::new(here.join("node_modules/.bin/node")),
            _ => Command::new(here.join("bin/python")),
        };
        let script = if language == NODE { "peer.mjs" } else { "peer.py" };
        let mut child = command
            .arg(here.join(script))
            .arg(sample::params(1024))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(stdin), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(MeasurementError::because("a child was started without its pipes"));
        };
        let mut process = Self { child, stdin, answers: BufReader::new(answers), runs_on: String::new() };
        process.runs_on = process.line()?;
        Ok(process)
    }

    /// Lets it make this many calls. Returns the time that it took.
    fn calls(&mut self, command: &str, count: u32) -> Duration {
        let took = writeln!(self.stdin, "{command} {count}")
            .map_err(MeasurementError::from)
            .and_then(|()| self.line())
            .and_then(|line| line.parse().map_err(|_| MeasurementError::because("no number")));
        // Its error message is on stderr. An absurd figure shows that the measurement failed.
        took.map_or(Duration::MAX, Duration::from_nanos)
    }

    fn line(&mut self) -> Result<String, MeasurementError> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        match line.trim() {
            "" => {
                Err(MeasurementError::because("a peer has nothing to say; what it wrote to stderr says why"))
            }
            line => Ok(line.to_owned()),
        }
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // It ends with its input. A failure means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
