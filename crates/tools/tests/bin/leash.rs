//! What the tests start beside every command: a leash, and nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    steadfast_process::leash_main(std::env::args_os()).unwrap_or(ExitCode::FAILURE)
}
