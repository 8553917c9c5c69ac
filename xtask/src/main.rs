//! The commands for developers and CI: `cargo xtask <command>`.
//!
//! Every task of this repository is a command here, so that a new machine needs only Rust. Each command is a list of
//! command lines of other programs. The command line that is printed after a failure can be run alone.

mod bench;
mod check;
mod circles;
mod documents;
mod fuzz;
mod generated;
mod invocation;
mod machine;
mod mutants;
mod real_packages;
mod requirements;
mod rust_tokens;
mod simulation;
mod step;
mod suite;
mod tally;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Message of a failed command. Empty if it was already printed.
type TaskFailure = String;

#[derive(Parser)]
#[command(bin_name = "cargo xtask", about = "Set up, check, test, simulate, measure", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: XtaskCommand,
}

#[derive(Subcommand)]
enum XtaskCommand {
    /// Install what is missing and run everything: checks, tests, simulation, requirements
    Test(test::Options),
    /// Build and run all tests without the checks; `--stress` repeats them in random order on a busy machine
    Suite(suite::Options),
    /// Install the servers and clients that the gateway is tested with, from npm and PyPI; part of `test`
    Setup,
    /// Format, links and words, clippy, licences and dependencies, documentation, generated files
    Check,
    /// Check the Markdown files: links within the repository, the table of contents, words to avoid
    Docs,
    /// List circles between the modules of a crate
    Circles(circles::Options),
    /// Run the simulation, for example `sim --seeds 1000` or `sim --seed 42`
    Sim(simulation::Options),
    /// List the requirement ids and the tests that show them
    Requirements(requirements::Options),
    /// Write the generated files
    Gen(generated::Options),
    /// Run benchmarks and write the results to BENCHMARKS.md
    Bench(bench::Options),
    /// Search for inputs that break an invariant
    Fuzz(fuzz::Options),
    /// Run mutation tests of the core: apply small changes and expect the tests or the simulation to fail
    Mutants(mutants::Options),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        XtaskCommand::Test(options) => test::run(&options),
        XtaskCommand::Suite(options) => suite::run(&options),
        XtaskCommand::Setup => real_packages::run(),
        XtaskCommand::Check => check::run(),
        XtaskCommand::Docs => documents::run(),
        XtaskCommand::Circles(options) => circles::run(&options),
        XtaskCommand::Sim(options) => simulation::run(&options),
        XtaskCommand::Requirements(options) => requirements::run(&options),
        XtaskCommand::Gen(options) => generated::run(&options),
        XtaskCommand::Bench(options) => bench::run(&options),
        XtaskCommand::Fuzz(options) => fuzz::run(&options),
        XtaskCommand::Mutants(options) => mutants::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_empty() {
                eprintln!("error: {failure}");
            }
            ExitCode::FAILURE
        }
    }
}
