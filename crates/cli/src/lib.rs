//! `steadfast`: the command line.
//!
//! `commands` has one file or folder per command, `support` the parts that commands share.

mod commands;
#[cfg(test)]
mod operator_docs;
mod support;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::commands::{
    approvals, bench, breaker, check, completions, config, demo, doctor, explain, failures, flush, import,
    rehearse, resolve, serve, state, status, tail, trace, trust, unknown, wrap,
};
use crate::support::failure::CommandFailure;
use crate::support::output;

/// A reliability layer that makes every tool call of an agent safe to make.
#[derive(Debug, Parser)]
#[command(name = "steadfast", version, max_term_width = 100, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

const EXIT_CODES: &str = "Exit codes: 0 success, 1 failure, 2 the command line or the configuration is not valid; status and doctor: 3 needs attention, 4 something is wrong; rehearse: 3 results would change.";

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Demonstrate Steadfast in half a minute: a server that misbehaves, without and with the gateway.
    Demo(demo::Options),
    /// The server of the demo.
    #[command(name = demo::bank::COMMAND, hide = true)]
    DemoBank(demo::bank::Options),
    /// Run a gateway in front of one MCP server: `steadfast wrap -- COMMAND ARGUMENTS`.
    Wrap(wrap::Options),
    /// Run a gateway in front of the MCP servers of the configuration, at one address.
    Serve(serve::Options),
    /// Put the MCP servers of Claude Code, Claude Desktop, Cursor, VS Code, Codex and OpenClaw behind Steadfast, or
    /// undo it.
    Import(import::Options),
    /// Check the configuration for everything that keeps a gateway from starting. Changes nothing.
    Check(check::Options),
    /// Show the health of the gateways, and what needs an operator.
    ///
    /// The exit code is 3 if something needs attention and 4 if calls fail, at any gateway on this machine. With --json
    /// the output for one gateway is its response to /v1/status. For several gateways it is {"verdict", "gateways":
    /// [{"gateway", "status"}]}, with the worst verdict and the response of each.
    Status(status::Options),
    /// List the calls that wait for approval.
    Approvals(approvals::ApprovalListOptions),
    /// Approve a call that waits for approval, or the next such call.
    Approve(approvals::ApproveOptions),
    /// Deny a call that waits for approval.
    Deny(approvals::DenyOptions),
    /// List circuit breakers, and open or reset them.
    Breaker(breaker::Options),
    /// Restore trust in a tool.
    Reset(trust::Options),
    /// Start the recovery of trust in a tool: it runs without approval, and is trusted after enough successes.
    Recover(trust::Options),
    /// List the failed calls of tools, newest first.
    Failures(failures::Options),
    /// List the calls with an unknown outcome.
    Unknown(unknown::Options),
    /// Resolve a call with an unknown outcome: report whether it ran.
    Resolve(resolve::Options),
    /// Delete stored calls, so that they run again when repeated.
    Flush(flush::Options),
    /// Manage the state as a whole.
    #[command(subcommand)]
    State(state::StateCommand),
    /// Follow events as they happen.
    Tail(tail::Options),
    /// Show the trace of a turn: when each call ran, what it waited for, what failed, and how it ended.
    Trace(trace::Options),
    /// Explain a call or a turn: its events, the rule that decided each, and the origin of that rule.
    Explain(explain::Options),
    /// Replay recorded calls under another configuration, and show which results would change.
    Rehearse(rehearse::Options),
    /// Check for common setup problems: configuration, state, servers, clients.
    Doctor(doctor::Options),
    /// Benchmark a server, alone and behind the gateway.
    Bench(bench::Options),
    /// Inspect the configuration.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Write shell completions.
    Completions(completions::Options),
}

/// Runs the command line. Must be called before anything else in the process.
pub fn main() -> ExitCode {
    // Each child process is accompanied by another instance of this program, which ends it if the gateway cannot.
    if let Some(code) = steadfast_process::leash_main(std::env::args_os()) {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // The message contains the command line, which may come from outside.
        Err(mistake) if mistake.use_stderr() => {
            output::print_message(&mistake.to_string());
            return ExitCode::from(2);
        }
        Err(help) => help.exit(),
    };
    let done = match cli.command {
        CliCommand::Demo(options) => demo::run(&options),
        CliCommand::DemoBank(options) => {
            demo::bank::run(&options);
            Ok(())
        }
        CliCommand::Wrap(options) => wrap::run(&options),
        CliCommand::Serve(options) => serve::run(&options),
        CliCommand::Import(options) => import::run(&options),
        CliCommand::Check(options) => check::run(&options),
        CliCommand::Approvals(options) => approvals::list(&options),
        CliCommand::Approve(options) => approvals::approve(&options),
        CliCommand::Deny(options) => approvals::deny(&options),
        CliCommand::Status(options) => status::run(&options),
        CliCommand::Breaker(options) => breaker::run(&options),
        CliCommand::Flush(options) => flush::run(&options),
        CliCommand::State(state) => state::run(&state),
        CliCommand::Tail(options) => tail::run(&options),
        CliCommand::Trace(options) => trace::run(&options),
        CliCommand::Explain(options) => explain::run(&options),
        CliCommand::Rehearse(options) => rehearse::run(&options),
        CliCommand::Doctor(options) => doctor::run(&options),
        CliCommand::Bench(options) => bench::run(&options),
        CliCommand::Completions(options) => completions::run(&options),
        CliCommand::Reset(options) => trust::reset(&options),
        CliCommand::Recover(options) => trust::recover(&options),
        CliCommand::Failures(options) => failures::run(&options),
        CliCommand::Unknown(options) => unknown::run(&options),
        CliCommand::Resolve(options) => resolve::run(&options),
        CliCommand::Config(config::ConfigCommand::Explain(options)) => config::explain(&options),
    };
    done.map_or_else(|failure: CommandFailure| failure.report(), |()| ExitCode::SUCCESS)
}
