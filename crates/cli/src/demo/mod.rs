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
mod gateway;
mod ledger;
mod scenes;
mod show;
mod stage;

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use clap::Args;
use serde_json::json;
use steadfast::Logging;
use steadfast_process::{Environment, Launch, Leash};
use tokio::runtime;

use self::bank::{BEGINNING, euros};
use self::gateway::{Gateway, Mechanisms, STATEMENT_TIMEOUT};
use self::ledger::{Kept, Ledger};
use self::scenes::{OWED, World, play};
use self::show::{Look, Show};
use self::stage::{Scene, Side};
use crate::failure::Failure;
use crate::listening;
use crate::{output, stop};

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Address of the gateway, on this machine. Default: a free port.
    #[arg(long, value_name = "ADDRESS", value_parser = listening::address)]
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
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::World(format!("the runtime cannot be started: {error}")))?;
    let done = runtime.block_on(carry(options));
    runtime.shutdown_background();
    done
}

async fn carry(options: &Options) -> Result<(), Failure> {
    let address = options.listen.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, 0).into());
    if !address.ip().is_loopback() {
        return Err(Failure::Usage(format!(
            "{address} can be reached from other machines, and the demo has no tokens: listen on 127.0.0.1"
        )));
    }
    let stop = stop::asked();
    let show = if options.json { Show::Silent } else { Show::of_stdout() };
    let (without, with) = (Kept::new("without")?, Kept::new("with")?);
    let leash = Leash::of_this_program().map_err(lost)?;
    let mechanisms = if options.off { Mechanisms::Off } else { Mechanisms::On };
    let logging = if options.log { Logging::Stderr } else { Logging::Nowhere };
    let gateway = Gateway::open(address, launch(&with)?, leash.clone(), mechanisms, logging).await?;
    let url = gateway.url().to_owned();
    let engine = gateway.engine().clone();
    let launch = launch(&without)?;
    let world = World { show, launch, leash, without, url, with, engine, mechanisms };

    let began = Instant::now();
    begin(show, mechanisms);
    let played = tokio::select! {
        played = play(&world) => Some(played),
        () = stop.cancelled() => None,
    };
    let ended = match played {
        None => {
            show.line(Look::Plain, "");
            Err(Failure::Told(INTERRUPTED))
        }
        Some(Err(failure)) => Err(failure),
        Some(Ok(scenes)) => {
            let is_true = scenes.iter().all(Scene::is_as_told) && world.with.paid() == OWED;
            if options.json {
                output::say_json(&json!({
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
                (false, Mechanisms::On) => show.paragraph(
                    Look::Surprising,
                    "This is not the expected result: NOT SO marks the differences.",
                ),
                (false, Mechanisms::Off) => show.paragraph(
                    Look::Plain,
                    "Without its mechanisms the gateway changes nothing: NOT SO marks the results that need them.",
                ),
            }
            if stays {
                stop.cancelled().await;
                show.line(Look::Plain, "");
            }
            if is_true { Ok(()) } else { Err(Failure::Told(1)) }
        }
    };
    gateway.close().await;
    ended
}

/// Exit code after Ctrl-C, as shells report it.
const INTERRUPTED: u8 = 130;

/// Returns how to start the bank with this ledger.
fn launch(ledger: &Ledger) -> Result<Launch, Failure> {
    Ok(Launch {
        program: env::current_exe().map_err(lost)?.into_os_string(),
        args: vec![OsString::from(bank::COMMAND), ledger.path().as_os_str().to_owned()],
        folder: None,
        environment: Environment::allowed_and(env::vars_os(), &BTreeMap::new()),
        patience: clients::SHORT,
    })
}

fn lost(error: io::Error) -> Failure {
    Failure::World(format!("this program cannot determine its own path: {error}"))
}

fn begin(show: Show, mechanisms: Mechanisms) {
    show.line(Look::Plain, "");
    show.line(Look::Bold, "Steadfast, the demo: one bank, seven bad days");
    show.line(Look::Plain, "");
    show.paragraph(
        Look::Plain,
        "An agent uses a small bank, a real MCP server that misbehaves. Every scene runs twice: against the bare server, and through the gateway. Nothing is staged: all numbers come from the responses and from the bank's own ledger.",
    );
    show.paragraph(
        Look::Dim,
        &format!(
            "Here the timeout of a statement is {} s; the default is 5 minutes.",
            STATEMENT_TIMEOUT.as_secs()
        ),
    );
    if mechanisms == Mechanisms::Off {
        show.paragraph(Look::Surprising, "The gateway only passes everything on (--off).");
    }
}

/// Prints a summary of all scenes.
fn table(world: &World, scenes: &[Scene]) {
    let show = world.show;
    let row = |mark: &str, title: &str, without: (Look, &str), with: (Look, &str)| {
        let without = show.paint(without.0, &format!("{:<19}", without.1));
        show.line(Look::Plain, &format!("{mark:>2} {title:<31} {without} {}", show.paint(with.0, with.1)));
    };
    let look = |is_good: bool| if is_good { Look::Good } else { Look::Surprising };
    show.line(Look::Plain, "");
    row("", "", (Look::Bold, "without"), (Look::Bold, "with Steadfast"));
    for scene in scenes {
        let mark = if scene.is_as_told() { "" } else { "!" };
        let (without, with) = (scene.short(Side::Without), scene.short(Side::With));
        row(
            &format!("{mark}{}", scene.number()),
            scene.title(),
            (Look::Bad, without),
            (look(scene.is_as_told()), with),
        );
    }
    let left = |ledger: &Ledger| euros(BEGINNING.saturating_sub(ledger.paid()));
    let (without, with) = (left(&world.without), left(&world.with));
    let title = format!("balance, should be {}", euros(BEGINNING - OWED));
    row("", &title, (Look::Bad, &without), (look(world.with.paid() == OWED), &with));
    show.line(Look::Plain, "");
}

/// Prints the next steps, with an address if the gateway keeps running.
fn invite(show: Show, url: Option<&str>) {
    if let Some(url) = url {
        show.line(Look::Bold, &format!("The gateway is still running in front of the bank: {url}"));
        show.line(Look::Plain, "");
        show.line(Look::Plain, "  Claude Code:");
        show.line(Look::Good, &format!("    claude mcp add --transport http demo {url}"));
        show.line(Look::Plain, "  Cursor and others:");
        let entry = json!({ "mcpServers": { "demo": { "type": "http", "url": url } } });
        show.line(Look::Good, &format!("    {entry}"));
        show.line(Look::Plain, "");
    }
    show.line(Look::Plain, "  Your own servers:");
    for (command, what) in [
        ("steadfast import", "imports the servers of Claude Code, Cursor and others"),
        ("steadfast wrap -- COMMAND", "runs a gateway in front of one server"),
    ] {
        let command = show.paint(Look::Good, &format!("{command:<25}"));
        show.line(Look::Plain, &format!("    {command}  {what}"));
    }
    if url.is_some() {
        show.line(Look::Plain, "");
        show.line(Look::Bold, "Ctrl-C to end.");
    }
}
