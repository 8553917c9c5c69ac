//! `steadfast completions`: what a shell needs to complete our command lines.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::failure::Failure;
use crate::output;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The shell that will read it.
    #[arg(value_enum)]
    shell: Shell,
}

/// `steadfast completions`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut crate::Cli::command(), "steadfast", &mut script);
    output::say(&String::from_utf8_lossy(&script));
    Ok(())
}
