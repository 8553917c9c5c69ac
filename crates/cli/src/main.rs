//! `steadfast`: the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    steadfast_cli::main()
}
