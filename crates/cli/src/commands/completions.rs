//! `steadfast completions`: shell completions.

use clap::{Args, Command, CommandFactory as _};
use clap_complete::Shell;

use crate::support::failure::CommandFailure;
use crate::support::output;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The shell to write completions for.
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs `steadfast completions`.
pub(crate) fn run(options: &Options) -> Result<(), CommandFailure> {
    let whole = crate::Cli::command();
    // Hidden commands are not meant to be typed.
    let shown = whole.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut command = Command::new("steadfast").version(env!("CARGO_PKG_VERSION")).subcommands(shown);
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut command, "steadfast", &mut script);
    output::print_data(&String::from_utf8_lossy(&script));
    Ok(())
}
