//! The way to the simulation, which is a program of its own.

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
    Invocation::cargo(&["run", "--quiet", "--package", "steadfast-simulation", "--"]).args(words)
}
