//! `steadfast`: the command line.
//!
//! One file or folder per command; what they share is `sources` (where the configuration comes from), `output` (how things
//! are said) and `failure` (how things go wrong, and the exit code that tells it).

mod admin_token;
mod approvals;
mod behind;
mod check;
mod config;
mod demo;
mod failure;
mod import;
mod listening;
#[cfg(test)]
mod operating;
mod output;
mod plain_tools;
mod reset;
mod resolve;
mod serve;
mod server_tools;
mod sources;
mod state;
mod stop;
mod streams;
mod watched;
mod wrap;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::failure::Failure;

/// Makes every tool call of an agent safe to make.
#[derive(Debug, Parser)]
#[command(name = "steadfast", version, max_term_width = 100, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str =
    "Exit codes: 0 good, 1 it failed, 2 the command line or the configuration is not right.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows what Steadfast does, in half a minute: a server that misbehaves, without the gateway and with it.
    Demo(demo::Options),
    /// The server of the demo.
    #[command(name = demo::bank::COMMAND, hide = true)]
    DemoBank(demo::bank::Options),
    /// Stands in front of one MCP server: `steadfast wrap -- COMMAND ARGUMENTS`.
    Wrap(wrap::Options),
    /// Stands in front of the MCP servers of the configuration, at one address.
    Serve(serve::Options),
    /// Puts the MCP servers of Claude Code, Claude Desktop, Cursor, VS Code, Codex and OpenClaw behind us, or back.
    Import(import::Options),
    /// Reads the configuration and says everything that is wrong with it; opens nothing.
    Check(check::Options),
    /// Shows the calls that wait for a person's approval.
    Approvals(approvals::List),
    /// Lets a call run that waits for approval, or the next such call.
    Approve(approvals::Approve),
    /// Refuses a call that waits for approval.
    Deny(approvals::Deny),
    /// Forgives a tool what counts against it, so that it is trusted again.
    Reset(reset::Options),
    /// Says of a call whose outcome is unknown whether it ran.
    Resolve(resolve::Options),
    /// Looks into the configuration.
    #[command(subcommand)]
    Config(config::Config),
}

/// Does what the command line says. To be called before anything else.
pub fn main() -> ExitCode {
    // Beside every server there is this program once more, which ends the server if we cannot.
    if let Some(code) = steadfast_process::leash_main(std::env::args_os()) {
        return code;
    }
    let done = match Cli::parse().command {
        Command::Demo(options) => demo::run(&options),
        Command::DemoBank(options) => {
            demo::bank::run(&options);
            Ok(())
        }
        Command::Wrap(options) => wrap::run(&options),
        Command::Serve(options) => serve::run(&options),
        Command::Import(options) => import::run(&options),
        Command::Check(options) => check::run(&options),
        Command::Approvals(options) => approvals::list(&options),
        Command::Approve(options) => approvals::approve(&options),
        Command::Deny(options) => approvals::deny(&options),
        Command::Reset(options) => reset::run(&options),
        Command::Resolve(options) => resolve::run(&options),
        Command::Config(config::Config::Explain(options)) => config::explain(&options),
    };
    done.map_or_else(|failure: Failure| failure.tell(), |()| ExitCode::SUCCESS)
}
