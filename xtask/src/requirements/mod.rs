//! Which promise is shown by which test.
//!
//! `requirements.toml` lists what Steadfast promises. A test shows a promise by beginning its name with
//! the promise's id. This command puts the two side by side, with the surface that each test uses, so that a promise is seen
//! that has no test, or none but those of what is inside.

mod catalogue;
mod coverage;
mod scan;
mod surface;

use clap::Args;

pub(crate) use catalogue::Catalogue;

use crate::{Failure, workspace};
use coverage::Coverage;

/// Options of `cargo xtask requirements`.
#[derive(Args)]
pub(crate) struct Options {
    /// Fail on every id without a test, also on those that later issues bring
    #[arg(long)]
    strict: bool,
}

/// `cargo xtask requirements`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let catalogue = Catalogue::load()?;
    let tests = scan::tests_below(workspace::root())?;
    let coverage = Coverage::of(&catalogue, &tests);
    print!("{coverage}");
    let lacking = if options.strict { coverage.missing() } else { coverage.missing_and_due() };
    let mut problems: Vec<String> = coverage.strangers().to_vec();
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
