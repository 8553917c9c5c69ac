//! `cargo xtask sim --seeds N [--seed S] [--coverage]`.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use steadfast_simulation::{Summary, run};

fn main() -> ExitCode {
    let (mut seeds, mut first) = (None, None);
    let mut coverage = CoverageDetail::Nothing;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().and_then(|text| text.parse::<u64>().ok());
        match argument.as_str() {
            "--coverage" => coverage = CoverageDetail::Coverage,
            "--check-coverage" => coverage = CoverageDetail::Unreached,
            "--seeds" => match number() {
                Some(number) => seeds = Some(number),
                None => return usage(),
            },
            "--seed" => match number() {
                Some(number) => first = Some(number),
                None => return usage(),
            },
            _ => return usage(),
        }
    }
    let range = match first {
        None => 0..seeds.unwrap_or(1000),
        Some(first) => first..first + seeds.unwrap_or(1),
    };
    let started = Instant::now();
    let mut total = Summary::default();
    let count = range.end - range.start;
    let mut progress = SimulationProgress::new(started, count);
    for (done, seed) in (0_u64..).zip(range) {
        progress.print(done);
        match run(seed, None) {
            Ok(summary) => total.add(summary),
            Err(failure) => {
                progress.clear();
                println!("{}", failure.trace.join("\n"));
                println!("\nseed {seed} breaks \"{}\": {}", failure.invariant, failure.description);
                println!("replay it with: cargo xtask sim --seed {seed}");
                return ExitCode::FAILURE;
            }
        }
    }
    progress.clear();
    println!(
        "{count} worlds in {:.1} s: {} calls, {} turn submissions, {} effects, {} replays, {} store losses, {} unknown outcomes ({} pending and {} final responses, {} verification reads, {} calls run again, {} resolved); every invariant held",
        started.elapsed().as_secs_f64(),
        total.calls,
        total.turns,
        total.effects,
        total.replays,
        total.emptyings,
        total.unknown,
        total.pending_responses,
        total.final_responses,
        total.reads,
        total.run_again,
        total.resolved,
    );
    let unreached = match coverage {
        CoverageDetail::Nothing => Vec::new(),
        CoverageDetail::Coverage => {
            println!("\n{}", total.coverage.report());
            total.coverage.unreached()
        }
        CoverageDetail::Unreached => total.coverage.unreached(),
    };
    for place in &unreached {
        println!("{place}");
    }
    if unreached.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The part of the coverage that is printed.
enum CoverageDetail {
    Nothing,
    /// All of it, with its errors.
    Coverage,
    /// Only its errors.
    Unreached,
}

fn usage() -> ExitCode {
    eprintln!("usage: cargo xtask sim [--seed FIRST] [--seeds COUNT] [--coverage | --check-coverage]");
    ExitCode::from(2)
}

/// The progress of a long run, on stderr. On a terminal one line is overwritten. Otherwise an occasional line is enough
/// for a log. A short run prints nothing.
struct SimulationProgress {
    started: Instant,
    count: u64,
    terminal: bool,
    next: Duration,
    shown: bool,
}

impl SimulationProgress {
    fn new(started: Instant, count: u64) -> Self {
        let terminal = io::stderr().is_terminal();
        let next = Duration::from_secs(if terminal { 3 } else { 30 });
        Self { started, count, terminal, next, shown: false }
    }

    fn print(&mut self, done: u64) {
        let spent = self.started.elapsed();
        if spent < self.next {
            return;
        }
        let line = format!("{done} of {} worlds after {} s", self.count, spent.as_secs());
        // A failure to print progress is no reason to stop.
        let _ = if self.terminal {
            write!(io::stderr(), "\r{line:60}")
        } else {
            writeln!(io::stderr(), "{line}")
        };
        self.next = spent + Duration::from_secs(if self.terminal { 1 } else { 30 });
        self.shown = true;
    }

    fn clear(&self) {
        if self.terminal && self.shown {
            let _ = write!(io::stderr(), "\r{:60}\r", "");
        }
    }
}
