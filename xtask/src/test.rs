//! The one command: set up what is missing and run everything.

use clap::Args;

use crate::invocation::Invocation;
use crate::machine::{CHROMIUM, NPM, PYTHON, REDIS};
use crate::step::{self, StepCounting, TaskStep};
use crate::{TaskFailure, check, simulation};

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
pub(crate) fn run(options: &Options) -> Result<(), TaskFailure> {
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
fn real_programs() -> Vec<TaskStep> {
    vec![
        TaskStep {
            name: "a redis server to test with",
            run: Invocation::of("redis-server", &["--version"]),
            needs: &[&REDIS],
            counts: StepCounting::Itself,
        },
        TaskStep {
            name: "servers and clients to test with",
            run: Invocation::xtask(&["setup"]),
            needs: &[&NPM, &PYTHON],
            counts: StepCounting::Itself,
        },
        TaskStep {
            name: "a browser to test with",
            run: Invocation::of("chromium-headless-shell", &["--version"]),
            needs: &[&CHROMIUM],
            counts: StepCounting::Itself,
        },
    ]
}

fn tests(run: Invocation) -> TaskStep {
    TaskStep { name: "tests", run, needs: &[], counts: StepCounting::CargoTests }
}

fn doc_tests() -> TaskStep {
    TaskStep {
        name: "examples in the documentation",
        run: Invocation::cargo(&["test", "--workspace", "--doc"]),
        needs: &[],
        counts: StepCounting::CargoTests,
    }
}

fn simulation(seeds: &str) -> TaskStep {
    TaskStep {
        name: "simulation",
        run: simulation::invocation(&["--seeds", seeds, "--check-coverage"]),
        needs: &[],
        counts: StepCounting::Itself,
    }
}

fn requirements() -> TaskStep {
    TaskStep {
        name: "requirements",
        run: Invocation::xtask(&["requirements"]),
        needs: &[],
        counts: StepCounting::Itself,
    }
}
