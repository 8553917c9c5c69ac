//! The program under test.

use std::process::ExitCode;

fn main() -> ExitCode {
    steadfast_cli::main()
}
