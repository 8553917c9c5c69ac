//! Compares requirements with the tests that show them.
//!
//! `requirements.toml` lists the requirements. A test shows a requirement if its name begins with the requirement's
//! id. This command lists both with the surface of each test. It finds requirements without a test, and those that
//! only have tests of internals.

mod catalogue;
mod coverage;
mod scan;
mod surface;

use clap::Args;

pub(crate) use catalogue::Catalogue;

use crate::{TaskFailure, workspace};
use coverage::Coverage;

/// Options of `cargo xtask requirements`.
#[derive(Args)]
pub(crate) struct Options {
    /// Fail on every id without a test, even if it is due in a later issue
    #[arg(long)]
    strict: bool,
}

/// Runs `cargo xtask requirements`.
pub(crate) fn run(options: &Options) -> Result<(), TaskFailure> {
    let catalogue = Catalogue::load()?;
    let tests = scan::tests_below(workspace::root())?;
    let coverage = Coverage::of(&catalogue, &tests);
    print!("{coverage}");
    let lacking = if options.strict { coverage.missing() } else { coverage.missing_and_due() };
    let mut problems: Vec<String> = coverage.unknown_ids().to_vec();
    if !lacking.is_empty() {
        problems.push(format!(
            "no test carries {}; a test carries an id by beginning its name with it (TR-2: `fn tr_2_…`)",
            lacking.join(", ")
        ));
    }
    let unreached = coverage.unreached();
    if !unreached.is_empty() {
        problems.push(format!(
            "no test where users see it carries {}; a promise is kept when a surface that they have shows it (MCP, HTTP, CLI, page, crate, host)",
            unreached.join(", ")
        ));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n       ")) }
}
