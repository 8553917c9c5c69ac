//! The program `steadfast`, for MCP servers behind the gateway.

use std::process::ExitCode;

fn main() -> ExitCode {
    steadfast_cli::main()
}
