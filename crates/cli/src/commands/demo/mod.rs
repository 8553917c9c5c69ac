//! `steadfast demo`: a bank that misbehaves, and an agent that uses it without and with a gateway.
//!
//! | file | responsibility |
//! | --- | --- |
//! | `bank` | the server: this program started again, with a schedule of faults |
//! | `ledger` | the record of the bank: source of all numbers |
//! | `clients` | plain MCP clients of the bank and of the gateway |
//! | `gateway` | the gateway, in this process |
//! | `scenes` | the scenes |
//! | `stage` | observations compared with the expected ones |
//! | `display` | output |

pub(crate) mod bank;
mod clients;
mod display;
mod gateway;
mod ledger;
mod scenes;
mod stage;

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use clap::Args;
use serde_json::json;
use steadfast::telemetry::LogOutput;
use steadfast_process::{Environment, Launch, Leash};
use tokio::runtime;

use self::bank::{INITIAL_BALANCE, euros};
use self::display::{DemoOutput, DemoStyle};
use self::gateway::{DemoGateway, DemoMechanisms, STATEMENT_TIMEOUT};
use self::ledger::{BankLedger, LedgerFile};
use self::scenes::{AMOUNT_DUE, DemoEnvironment, play};
use self::stage::{DemoSide, Scene};
use crate::support::failure::CommandFailure;
use crate::support::listener;
use crate::support::output;
use crate::support::shutdown;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Address of the gateway, on this machine. Default: a free port.
    #[arg(long, value_name = "ADDRESS", value_parser = listener::address)]
    listen: Option<SocketAddr>,
    /// End after the demo instead of leaving the gateway running. This is the default if the output is not a terminal.
    #[arg(long)]
    once: bool,
    /// Print the observations as JSON, and end.
    #[arg(long)]
    json: bool,
    /// Switch off all mechanisms of the gateway, to show that nothing is staged: the demo then fails.
    #[arg(long)]
    off: bool,
    /// Write the log of the gateway to standard error.
    #[arg(long)]
    log: bool,
}

/// Runs `steadfast demo`.
pub(crate) fn run(options: &Options) -> Result<(), CommandFailure> {
    let runtime =
        runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(|error| {
            CommandFailure::Environment(format!("the runtime cannot be started: {error}"))
        })?;
    let done = runtime.block_on(carry(options));
    runtime.shutdown_background();
    done
}

async fn carry(options: &Options) -> Result<(), CommandFailure> {
    let address = options.listen.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, 0).into());
    if !address.ip().is_loopback() {
        return Err(CommandFailure::Usage(format!(
            "{address} can be reached from other machines, and the demo has no tokens: listen on 127.0.0.1"
        )));
    }
    let stop = shutdown::shutdown_token();
    let show = if options.json { DemoOutput::Silent } else { DemoOutput::of_stdout() };
    let (without, with) = (LedgerFile::new("without")?, LedgerFile::new("with")?);
    let leash = Leash::of_this_program().map_err(lost)?;
    let mechanisms = if options.off { DemoMechanisms::Off } else { DemoMechanisms::On };
    let logging = if options.log { LogOutput::Stderr } else { LogOutput::Disabled };
    let gateway = DemoGateway::open(address, launch(&with)?, leash.clone(), mechanisms, logging).await?;
    let url = gateway.url().to_owned();
    let engine = gateway.engine().clone();
    let launch = launch(&without)?;
    let world = DemoEnvironment { show, launch, leash, without, url, with, engine, mechanisms };

    let began = Instant::now();
    begin(show, mechanisms);
    let played = tokio::select! {
        played = play(&world) => Some(played),
        () = stop.cancelled() => None,
    };
    let outcome = match played {
        None => {
            show.line(DemoStyle::Plain, "");
            Err(CommandFailure::AlreadyReported(INTERRUPTED))
        }
        Some(Err(failure)) => Err(failure),
        Some(Ok(scenes)) => {
            let is_true = scenes.iter().all(Scene::is_as_expected) && world.with.paid() == AMOUNT_DUE;
            if options.json {
                output::print_json(&json!({
                    "ok": is_true,
                    "tookMs": u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
                    "scenes": scenes.iter().map(Scene::to_json).collect::<Vec<_>>(),
                    "paidCents": { "without": world.without.paid(), "with": world.with.paid() },
                }));
            }
            table(&world, &scenes);
            let stays = is_true && !options.once && !options.json && io::stdout().is_terminal();
            match (is_true, mechanisms) {
                (true, _) => invite(show, stays.then_some(world.url.as_str())),
                (false, DemoMechanisms::On) => show.paragraph(
                    DemoStyle::Surprising,
                    "This is not the expected result: DIFFERS marks each difference.",
                ),
                (false, DemoMechanisms::Off) => show.paragraph(
                    DemoStyle::Plain,
                    "Without its mechanisms the gateway changes nothing: DIFFERS marks the results that need them.",
                ),
            }
            if stays {
                stop.cancelled().await;
                show.line(DemoStyle::Plain, "");
            }
            if is_true { Ok(()) } else { Err(CommandFailure::AlreadyReported(1)) }
        }
    };
    gateway.close().await;
    outcome
}

/// Exit code after Ctrl-C, as shells report it.
const INTERRUPTED: u8 = 130;

/// Returns how to start the bank with this ledger.
fn launch(ledger: &BankLedger) -> Result<Launch, CommandFailure> {
    Ok(Launch {
        program: env::current_exe().map_err(lost)?.into_os_string(),
        args: vec![OsString::from(bank::COMMAND), ledger.path().as_os_str().to_owned()],
        folder: None,
        environment: Environment::allowed_and(env::vars_os(), &BTreeMap::new()),
        patience: clients::SHORT,
    })
}

fn lost(error: io::Error) -> CommandFailure {
    CommandFailure::Environment(format!("this program cannot determine its own path: {error}"))
}

fn begin(show: DemoOutput, mechanisms: DemoMechanisms) {
    show.line(DemoStyle::Plain, "");
    show.line(DemoStyle::Bold, "Steadfast, the demo: one bank, seven bad days");
    show.line(DemoStyle::Plain, "");
    show.paragraph(
        DemoStyle::Plain,
        "An agent uses a small bank, a real MCP server that misbehaves. Every scene runs twice: against the bare server, and through the gateway. Nothing is staged: all numbers come from the responses and from the bank's own ledger.",
    );
    show.paragraph(
        DemoStyle::Dim,
        &format!(
            "Here the timeout of a statement is {} s; the default is 5 minutes.",
            STATEMENT_TIMEOUT.as_secs()
        ),
    );
    if mechanisms == DemoMechanisms::Off {
        show.paragraph(DemoStyle::Surprising, "The gateway only passes everything on (--off).");
    }
}

/// Prints a summary of all scenes.
fn table(world: &DemoEnvironment, scenes: &[Scene]) {
    let show = world.show;
    let row = |mark: &str, title: &str, without: (DemoStyle, &str), with: (DemoStyle, &str)| {
        let without = show.paint(without.0, &format!("{:<19}", without.1));
        show.line(
            DemoStyle::Plain,
            &format!("{mark:>2} {title:<31} {without} {}", show.paint(with.0, with.1)),
        );
    };
    let style = |is_good: bool| if is_good { DemoStyle::Good } else { DemoStyle::Surprising };
    show.line(DemoStyle::Plain, "");
    row("", "", (DemoStyle::Bold, "without"), (DemoStyle::Bold, "with Steadfast"));
    for scene in scenes {
        let mark = if scene.is_as_expected() { "" } else { "!" };
        let (without, with) = (scene.short(DemoSide::Without), scene.short(DemoSide::With));
        row(
            &format!("{mark}{}", scene.number()),
            scene.title(),
            (DemoStyle::Bad, without),
            (style(scene.is_as_expected()), with),
        );
    }
    let left = |ledger: &BankLedger| euros(INITIAL_BALANCE.saturating_sub(ledger.paid()));
    let (without, with) = (left(&world.without), left(&world.with));
    let title = format!("balance, should be {}", euros(INITIAL_BALANCE - AMOUNT_DUE));
    row("", &title, (DemoStyle::Bad, &without), (style(world.with.paid() == AMOUNT_DUE), &with));
    show.line(DemoStyle::Plain, "");
}

/// Prints the next steps, with an address if the gateway keeps running.
fn invite(show: DemoOutput, url: Option<&str>) {
    if let Some(url) = url {
        show.line(DemoStyle::Bold, &format!("The gateway is still running in front of the bank: {url}"));
        show.line(DemoStyle::Plain, "");
        show.line(DemoStyle::Plain, "  Claude Code:");
        show.line(DemoStyle::Good, &format!("    claude mcp add --transport http demo {url}"));
        show.line(DemoStyle::Plain, "  Cursor and others:");
        let entry = json!({ "mcpServers": { "demo": { "type": "http", "url": url } } });
        show.line(DemoStyle::Good, &format!("    {entry}"));
        show.line(DemoStyle::Plain, "");
    }
    show.line(DemoStyle::Plain, "  Your own servers:");
    for (command, description) in [
        ("steadfast import", "imports the servers of your MCP clients"),
        ("steadfast wrap -- COMMAND", "runs a gateway in front of one server"),
    ] {
        let command = show.paint(DemoStyle::Good, &format!("{command:<25}"));
        show.line(DemoStyle::Plain, &format!("    {command}  {description}"));
    }
    if url.is_some() {
        show.line(DemoStyle::Plain, "");
        show.line(DemoStyle::Bold, "Ctrl-C to end.");
    }
}
