//! Runs the mutants that pass the tests in the simulation.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::copy::RepositoryCopy;
use super::mutant::Mutant;
use super::results::{MutantOutcome, MutantResults};
use super::{MutantFolders, PROFILE};
use crate::{TaskFailure, workspace};

/// Tries each survivor, and records the result.
pub(super) fn run(
    place: &MutantFolders,
    copy: &RepositoryCopy,
    candidates: &[&Mutant],
    seeds: u32,
    results: &mut MutantResults,
) -> Result<(), TaskFailure> {
    let survived = |mutant: &&&Mutant| results.get(&mutant.name) == Some(MutantOutcome::Survived);
    let survivors: Vec<&Mutant> = candidates.iter().filter(survived).copied().collect();
    if survivors.is_empty() || seeds == 0 {
        return Ok(());
    }
    eprintln!("{} mutants passed the tests; simulating {seeds} worlds with each", survivors.len());
    let began = Instant::now();
    if build_and_run(place, seeds, Duration::MAX)? != MutantOutcome::Survived {
        return Err("the simulation fails without any change".to_owned());
    }
    let limit = (began.elapsed() * 5).max(Duration::from_secs(60));
    for mutant in survivors {
        let outcome = copy.while_changed(mutant, || build_and_run(place, seeds, limit))?;
        let word = match outcome {
            MutantOutcome::CaughtBySimulation => "caught",
            MutantOutcome::TimedOut => "timeout",
            MutantOutcome::Survived | MutantOutcome::CaughtByTests | MutantOutcome::Unviable => "SURVIVED",
        };
        eprintln!("  {word:<9}{}", mutant.name);
        results.set(&mutant.name, outcome);
        results.save(&place.results)?;
    }
    Ok(())
}

fn build_and_run(place: &MutantFolders, seeds: u32, limit: Duration) -> Result<MutantOutcome, TaskFailure> {
    let arguments = ["build", "--quiet", "--package", "steadfast-simulation", "--example", "simulate"];
    place.cargo(&arguments).args(["--profile".to_owned(), PROFILE.to_owned()]).run()?;
    let program = place.target.join(PROFILE).join("examples/simulate");
    simulate(&program, seeds, limit)
}

fn simulate(program: &Path, seeds: u32, limit: Duration) -> Result<MutantOutcome, TaskFailure> {
    let describe = |error: io::Error| format!("cannot run {}: {error}", workspace::shown(program));
    let mut command = Command::new(program);
    command.args(["--seeds", &seeds.to_string()]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map_err(describe)?;
    let mut stdout = child.stdout.take().ok_or("the simulation has no output")?;
    let (sender, finished) = mpsc::channel();
    thread::spawn(move || {
        // The end of its output is the end of the program.
        io::copy(&mut stdout, &mut io::sink()).ok();
        sender.send(()).ok();
    });
    if finished.recv_timeout(limit).is_err() {
        child.kill().and_then(|()| child.wait()).map_err(describe)?;
        return Ok(MutantOutcome::TimedOut);
    }
    let status = child.wait().map_err(describe)?;
    Ok(if status.success() { MutantOutcome::Survived } else { MutantOutcome::CaughtBySimulation })
}
