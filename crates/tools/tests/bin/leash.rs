//! The leash program that the tests start beside every command.

use std::process::ExitCode;

fn main() -> ExitCode {
    steadfast_process::leash_main(std::env::args_os()).unwrap_or(ExitCode::FAILURE)
}
