//! Runs the simulation, which is a program of its own.
//!
//! It is an example of its package, and built in the whole workspace, so that cargo uses the crates that the tests
//! were built from. A `--package` would select other features of its dependencies and compile them again.

use clap::Args;

use crate::TaskFailure;
use crate::invocation::Invocation;

/// Options of `cargo xtask sim`. They are passed on to the simulation, which parses them.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// Arguments of the simulation; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs `cargo xtask sim`.
pub(crate) fn run(options: &Options) -> Result<(), TaskFailure> {
    invocation(&[]).args(options.arguments.iter().cloned()).run()
}

/// Returns the command of the simulation with these arguments.
pub(crate) fn invocation(arguments: &[&str]) -> Invocation {
    let words = arguments.iter().map(|&argument| argument.to_owned());
    Invocation::cargo(&["run", "--quiet", "--example", "simulate", "--"]).args(words)
}
