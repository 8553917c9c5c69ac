//! Static checks of the sources.

use crate::TaskFailure;
use crate::invocation::Invocation;
use crate::machine::{CARGO_DENY, CLIPPY, PROMTOOL, PYTHON, RUSTFMT, TYPOS};
use crate::step::{self, StepCounting, TaskStep};

/// Runs `cargo xtask check`.
pub(crate) fn run() -> Result<(), TaskFailure> {
    step::run_all(&steps())
}

/// Returns the steps, cheapest first.
pub(crate) fn steps() -> Vec<TaskStep> {
    vec![
        TaskStep {
            name: "format",
            run: Invocation::cargo(&["fmt", "--all", "--check"]),
            needs: &[&RUSTFMT],
            counts: StepCounting::Itself,
        },
        TaskStep {
            name: "links, words and names",
            run: Invocation::xtask(&["docs"]),
            needs: &[],
            counts: StepCounting::Itself,
        },
        TaskStep {
            name: "circles between modules",
            run: Invocation::xtask(&["circles"]),
            needs: &[],
            counts: StepCounting::Itself,
        },
        TaskStep {
            name: "spelling",
            run: Invocation::of("typos", &[]),
            needs: &[&PYTHON, &TYPOS],
            counts: StepCounting::Itself,
        },
        TaskStep {
            name: "dependencies and licences",
            run: Invocation::cargo(&["deny", "check", "bans", "licenses", "sources"]),
            needs: &[&CARGO_DENY],
            counts: StepCounting::Itself,
        },
        TaskStep {
            name: "alert rules",
            run: Invocation::of("promtool", &["check", "rules", "docs/operating/alerts.yml"]),
            needs: &[&PROMTOOL],
            counts: StepCounting::Itself,
        },
        TaskStep {
            name: "alert rules, tested",
            run: Invocation::of("promtool", &["test", "rules", "docs/operating/alerts.test.yml"]),
            needs: &[&PROMTOOL],
            counts: StepCounting::Itself,
        },
        TaskStep {
            name: "clippy",
            run: Invocation::cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
            needs: &[&CLIPPY],
            counts: StepCounting::Itself,
        },
        TaskStep {
            name: "documentation",
            run: Invocation::cargo(&["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"),
            needs: &[],
            counts: StepCounting::Itself,
        },
        TaskStep {
            name: "generated files",
            run: Invocation::xtask(&["gen", "--check"]),
            needs: &[],
            counts: StepCounting::Itself,
        },
    ]
}
