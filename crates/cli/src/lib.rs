//! `steadfast`: the command line.
//!
//! One file or folder per command; what they share is `sources` (where the configuration comes from), `reach` (whom to ask: a
//! gateway that runs, or the store), `seen` (what was answered, as tables), `output` (how things are said) and `failure` (how
//! things go wrong, and the exit code that tells it).

mod accept;
mod access;
mod admin_token;
mod approvals;
mod behind;
mod bench;
mod breaker;
mod check;
mod completions;
mod config;
mod demo;
mod doctor;
mod explain;
mod failure;
mod failures;
mod flush;
mod gateways;
mod import;
mod listening;
#[cfg(test)]
mod operating;
mod output;
mod own;
mod peer;
mod plain_tools;
mod preflight;
mod reach;
mod recorded;
mod rehearse;
mod resolve;
mod seen;
mod serve;
mod server_tools;
mod sources;
mod state;
mod status;
mod stop;
mod streams;
mod tail;
mod trace;
mod trust;
mod unknown;
mod watched;
mod waterfall;
mod wrap;

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Parser, Subcommand};
use steadfast::Timestamp;
use steadfast_core::millis;

use crate::failure::Failure;

/// Makes every tool call of an agent safe to make.
#[derive(Debug, Parser)]
#[command(name = "steadfast", version, max_term_width = 100, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 good, 1 it failed, 2 the command line or the configuration is not right; status and \
                          doctor: 3 somebody should look, 4 something is wrong; rehearse: 3 answers would change.";

/// What time it is.
fn now() -> Timestamp {
    Timestamp::from_millis(millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
}

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
    /// Reports everything that keeps a gateway from starting with this configuration; changes nothing.
    Check(check::Options),
    /// Says whether anything is wrong, and what needs an answer.
    ///
    /// The exit code is 3 if somebody should look and 4 if calls fail, at any of the gateways that run here. With --json one
    /// gateway is what it says at /v1/status; several are {"verdict", "gateways": [{"gateway", "status"}]}, the worst verdict
    /// and what each says.
    Status(status::Options),
    /// Shows the calls that wait for a person's approval.
    Approvals(approvals::List),
    /// Lets a call run that waits for approval, or the next such call.
    Approve(approvals::Approve),
    /// Refuses a call that waits for approval.
    Deny(approvals::Deny),
    /// Shows which tools are left alone because they fail, and opens or resets their breakers.
    Breaker(breaker::Options),
    /// Forgives a tool what counts against it, so that it is trusted again.
    Reset(trust::Options),
    /// Lets a tool that has lost trust run again without approval; after enough successes it is trusted.
    Recover(trust::Options),
    /// Shows how calls of tools failed, the newest first.
    Failures(failures::Options),
    /// Shows the calls whose outcome is unknown.
    Unknown(unknown::Options),
    /// Says of a call whose outcome is unknown whether it ran.
    Resolve(resolve::Options),
    /// Forgets calls, so that they run when they come again.
    Flush(flush::Options),
    /// Looks after the state as a whole.
    #[command(subcommand)]
    State(accept::State),
    /// Shows what happens, as it happens.
    Tail(tail::Options),
    /// Shows what happened in a turn: which call ran when, what it waited for, what went wrong, and how it ended.
    Trace(trace::Options),
    /// Tells the story of a call or a turn: what happened, which rule decided, and where that rule comes from.
    Explain(explain::Options),
    /// Replays recorded calls under another configuration, and shows which answers would be others.
    Rehearse(rehearse::Options),
    /// Looks at everything that one trips over: configuration, state, servers, clients.
    Doctor(doctor::Options),
    /// Measures your own server, alone and behind us.
    Bench(bench::Options),
    /// Looks into the configuration.
    #[command(subcommand)]
    Config(config::Config),
    /// Writes what a shell needs to complete our command lines.
    Completions(completions::Options),
}

/// Does what the command line says. To be called before anything else.
pub fn main() -> ExitCode {
    // Beside every server there is this program once more, which ends the server if we cannot.
    if let Some(code) = steadfast_process::leash_main(std::env::args_os()) {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // What was typed stands in it, and others may have chosen that.
        Err(mistake) if mistake.use_stderr() => {
            output::remark(&mistake.to_string());
            return ExitCode::from(2);
        }
        Err(asked) => asked.exit(),
    };
    let done = match cli.command {
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
        Command::Status(options) => status::run(&options),
        Command::Breaker(options) => breaker::run(&options),
        Command::Flush(options) => flush::run(&options),
        Command::State(state) => accept::run(&state),
        Command::Tail(options) => tail::run(&options),
        Command::Trace(options) => trace::run(&options),
        Command::Explain(options) => explain::run(&options),
        Command::Rehearse(options) => rehearse::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Completions(options) => completions::run(&options),
        Command::Reset(options) => trust::reset(&options),
        Command::Recover(options) => trust::recover(&options),
        Command::Failures(options) => failures::run(&options),
        Command::Unknown(options) => unknown::run(&options),
        Command::Resolve(options) => resolve::run(&options),
        Command::Config(config::Config::Explain(options)) => config::explain(&options),
    };
    done.map_or_else(|failure: Failure| failure.tell(), |()| ExitCode::SUCCESS)
}
