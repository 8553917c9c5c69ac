//! The one command: set up what is missing and run everything.

use clap::Args;

use crate::invocation::Invocation;
use crate::machine::{CHROMIUM, NPM, PYTHON, REDIS};
use crate::step::{self, Counts, Step};
use crate::{Failure, check, simulation};

/// Options of `cargo xtask test`.
#[derive(Args)]
pub(crate) struct Options {
    /// Also run what takes longer: ten times the seeds, five times the crashes
    #[arg(long)]
    long: bool,
}

/// `cargo xtask test`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut steps = check::steps();
    // A step of its own: where it cannot be installed, the tests that need it fail and all others still run.
    steps.push(Step {
        name: "a redis server to test with",
        run: Invocation::of("redis-server", &["--version"]),
        needs: &[&REDIS],
        counts: Counts::Itself,
    });
    steps.push(Step {
        name: "servers and clients to test with",
        run: Invocation::xtask(&["setup"]),
        needs: &[&NPM, &PYTHON],
        counts: Counts::Itself,
    });
    steps.push(Step {
        name: "a browser to test with",
        run: Invocation::of("chromium", &["--version"]),
        needs: &[&CHROMIUM],
        counts: Counts::Itself,
    });
    let tests = Invocation::cargo(&["test", "--workspace", "--no-fail-fast"]);
    steps.push(Step {
        name: "tests",
        run: if options.long { tests.env("LONG_TESTS", "1") } else { tests },
        needs: &[],
        counts: Counts::CargoTests,
    });
    steps.push(Step {
        name: "simulation",
        run: simulation::invocation(&["--seeds", if options.long { "100000" } else { "10000" }]),
        needs: &[],
        counts: Counts::Itself,
    });
    steps.push(Step {
        name: "requirements",
        run: Invocation::xtask(&["requirements"]),
        needs: &[],
        counts: Counts::Itself,
    });
    step::run_all(&steps)
}
