//! The way to the simulation, which is a program of its own.
//!
//! It is an example of its package, and run from the whole workspace: cargo then builds it from the crates that the tests
//! were built from. A `--package` would select other features of its dependencies and compile them once more.

use clap::Args;

use crate::Failure;
use crate::invocation::Invocation;

/// Options of `cargo xtask sim`. The simulation knows them and explains them; nothing is read here.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// What the simulation is given; `--help` lists it
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// `cargo xtask sim`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    invocation(&[]).args(options.arguments.iter().cloned()).run()
}

/// The simulation with these arguments.
pub(crate) fn invocation(arguments: &[&str]) -> Invocation {
    let words = arguments.iter().map(|&argument| argument.to_owned());
    Invocation::cargo(&["run", "--quiet", "--example", "simulate", "--"]).args(words)
}
