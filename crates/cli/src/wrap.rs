//! `steadfast wrap`: one server behind us, as if it stood there itself.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use steadfast::id::Namespace;
use steadfast::{Logging, OnDamage, Steadfast};
use steadfast_core::restart::RestartPolicy;
use steadfast_gateway::{Connection, Wrapped, namespace_of, wrap};
use steadfast_process::{Environment, Launch, Leash, Patience, Supervisor};
use tokio::runtime;

use crate::failure::Failure;
use crate::sources::Chosen;
use crate::stop;

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    chosen: Chosen,
    /// Where calls are remembered: memory, sqlite or redis. Stronger than the configuration.
    #[arg(long, value_name = "KIND")]
    store: Option<String>,
    /// What the server is called in the configuration and in what is told of it. Without it: its program and a digest.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The command of the server, and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// `steadfast wrap`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::World(format!("no threads can be started: {error}")))?;
    let done = runtime.block_on(carry(options));
    // Reading our own input cannot be taken back, and would be waited for.
    runtime.shutdown_background();
    done
}

async fn carry(options: &Options) -> Result<(), Failure> {
    let launch = launch(&options.command)?;
    let name = match &options.name {
        Some(name) => Namespace::new(name)
            .map_err(|error| Failure::Usage(format!("a server cannot be called `{name}`: {error}")))?,
        None => namespace_of(&launch),
    };
    let mut opening = Steadfast::opening(options.chosen.sources())
        .logging(Logging::Stderr)
        .owns_process()
        .on_damage(OnDamage::SetAside);
    if let Some(kind) = &options.store {
        opening = opening.set("store.kind", kind);
    }
    let steadfast = opening.open().await?;
    let leash = Leash::of_this_program()
        .map_err(|error| Failure::World(format!("this program cannot find itself: {error}")))?;
    let (supervisor, incarnations) =
        Supervisor::new(launch, leash, RestartPolicy::default(), u64::from(std::process::id()));
    let wrapped = Wrapped {
        input: tokio::io::stdin(),
        output: tokio::io::stdout(),
        connection: Connection::of_parent(),
        name,
        supervisor,
        incarnations,
    };
    wrap(steadfast.engine(), wrapped, stop::asked()).await;
    steadfast.shutdown(Duration::ZERO).await;
    Ok(())
}

fn launch(command: &[OsString]) -> Result<Launch, Failure> {
    let (program, args) = command
        .split_first()
        .ok_or_else(|| Failure::Usage("say which server: steadfast wrap -- COMMAND ARGUMENTS".to_owned()))?;
    Ok(Launch {
        program: program.clone(),
        args: args.to_vec(),
        folder: None,
        environment: Environment::inherited_and(env::vars_os(), &BTreeMap::new()),
        patience: Patience::default(),
    })
}
