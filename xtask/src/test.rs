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
    /// Run only the tests, in random order on a busy machine; those that touch processes, sockets, time or a store run 20
    /// times. Finds tests whose result depends on the pace of the machine. Takes hours
    #[arg(long, conflicts_with = "long")]
    stress: bool,
}

/// `cargo xtask test`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let steps = if options.stress {
        let mut steps = real_programs();
        steps.push(tests(Invocation::xtask(&["suite", "--stress"])));
        steps
    } else {
        let mut steps = check::steps();
        steps.extend(real_programs());
        let suite = Invocation::xtask(&["suite"]);
        steps.push(tests(if options.long { suite.env("LONG_TESTS", "1") } else { suite }));
        steps.extend([
            doc_tests(),
            simulation(if options.long { "100000" } else { "10000" }),
            requirements(),
        ]);
        steps
    };
    step::run_all(&steps)
}

/// The servers, clients and the browser that the tests use. Each is a step of its own: where it cannot be installed, the tests
/// that need it fail and all others still run.
fn real_programs() -> Vec<Step> {
    vec![
        Step {
            name: "a redis server to test with",
            run: Invocation::of("redis-server", &["--version"]),
            needs: &[&REDIS],
            counts: Counts::Itself,
        },
        Step {
            name: "servers and clients to test with",
            run: Invocation::xtask(&["setup"]),
            needs: &[&NPM, &PYTHON],
            counts: Counts::Itself,
        },
        Step {
            name: "a browser to test with",
            run: Invocation::of("chromium-headless-shell", &["--version"]),
            needs: &[&CHROMIUM],
            counts: Counts::Itself,
        },
    ]
}

fn tests(run: Invocation) -> Step {
    Step { name: "tests", run, needs: &[], counts: Counts::CargoTests }
}

fn doc_tests() -> Step {
    Step {
        name: "examples in the documentation",
        run: Invocation::cargo(&["test", "--workspace", "--doc"]),
        needs: &[],
        counts: Counts::CargoTests,
    }
}

fn simulation(seeds: &str) -> Step {
    Step {
        name: "simulation",
        run: simulation::invocation(&["--seeds", seeds, "--check-coverage"]),
        needs: &[],
        counts: Counts::Itself,
    }
}

fn requirements() -> Step {
    Step {
        name: "requirements",
        run: Invocation::xtask(&["requirements"]),
        needs: &[],
        counts: Counts::Itself,
    }
}
