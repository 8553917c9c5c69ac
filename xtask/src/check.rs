//! Static checks of the sources.

use crate::Failure;
use crate::invocation::Invocation;
use crate::machine::{CARGO_DENY, CLIPPY, PROMTOOL, PYTHON, RUSTFMT, TYPOS};
use crate::step::{self, Counts, Step};

/// Runs `cargo xtask check`.
pub(crate) fn run() -> Result<(), Failure> {
    step::run_all(&steps())
}

/// Returns the steps, cheapest first.
pub(crate) fn steps() -> Vec<Step> {
    vec![
        Step {
            name: "format",
            run: Invocation::cargo(&["fmt", "--all", "--check"]),
            needs: &[&RUSTFMT],
            counts: Counts::Itself,
        },
        Step {
            name: "links, words and names",
            run: Invocation::xtask(&["docs"]),
            needs: &[],
            counts: Counts::Itself,
        },
        Step {
            name: "spelling",
            run: Invocation::of("typos", &[]),
            needs: &[&PYTHON, &TYPOS],
            counts: Counts::Itself,
        },
        Step {
            name: "dependencies and licences",
            run: Invocation::cargo(&["deny", "check", "bans", "licenses", "sources"]),
            needs: &[&CARGO_DENY],
            counts: Counts::Itself,
        },
        Step {
            name: "alert rules",
            run: Invocation::of("promtool", &["check", "rules", "docs/operating/alerts.yml"]),
            needs: &[&PROMTOOL],
            counts: Counts::Itself,
        },
        Step {
            name: "alert rules, tested",
            run: Invocation::of("promtool", &["test", "rules", "docs/operating/alerts.test.yml"]),
            needs: &[&PROMTOOL],
            counts: Counts::Itself,
        },
        Step {
            name: "clippy",
            run: Invocation::cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
            needs: &[&CLIPPY],
            counts: Counts::Itself,
        },
        Step {
            name: "documentation",
            run: Invocation::cargo(&["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"),
            needs: &[],
            counts: Counts::Itself,
        },
        Step {
            name: "generated files",
            run: Invocation::xtask(&["gen", "--check"]),
            needs: &[],
            counts: Counts::Itself,
        },
    ]
}
