//! `steadfast wrap`: runs a gateway in front of one server and offers the server unchanged.

use std::env;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use steadfast::call::id::Namespace;
use steadfast::config::{CommandLineFlag, Sources};
use steadfast_gateway::{ClientIdentity, ConfiguredServer, StdioClient, wrap};

use crate::support::access::AcceptedTokens;
use crate::support::failure::CommandFailure;
use crate::support::listener::{
    self, HostOptions, ListeningGateway, own_tools, runtime, stdio_large_results, stdio_runtime,
};
use crate::support::output;
use crate::support::preflight::{self, Frontend, Upstreams};
use crate::support::process_metrics::watched;
use crate::support::shutdown;
use crate::support::sources::{self, ConfigFileOptions};
use crate::support::streams;
use crate::support::upstream::{self, ServerAddress};

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    chosen: ConfigFileOptions,
    /// Store for the calls: memory, sqlite or redis. Overrides the configuration.
    #[arg(long, value_name = "KIND")]
    store: Option<String>,
    /// Name of the server in the configuration, logs and metrics. Default: its program and a digest.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Accept clients over streamable HTTP at this address (path /mcp) instead of standard input and output.
    #[arg(long, value_name = "ADDRESS", value_parser = listener::address)]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    hosts: HostOptions,
    /// URL of the server if it speaks streamable HTTP, instead of a command.
    #[arg(long, value_name = "URL", group = "address", conflicts_with = "command")]
    url: Option<String>,
    /// The variable that holds the URL, for a URL that is a secret.
    #[arg(long, value_name = "VARIABLE", group = "address", conflicts_with = "command")]
    url_env: Option<String>,
    /// A header for every message to the URL, as `NAME: VALUE`. May be given more than once. `${VARIABLE}` is taken
    /// from the environment, so that no secret needs to be on the command line.
    #[arg(long = "header", value_name = "HEADER", requires = "address")]
    headers: Vec<String>,
    /// A header with the value of a variable, as `NAME=VARIABLE`. May be given more than once.
    #[arg(long = "header-env", value_name = "NAME=VARIABLE", requires = "address")]
    header_envs: Vec<String>,
    /// Written by `steadfast import`, which removes only what it added. It has no effect here.
    #[arg(long, hide = true, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    imported: Option<String>,
    /// The command of the server, and its arguments.
    #[arg(last = true, required_unless_present = "address", value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs `steadfast wrap`.
pub(crate) fn run(options: &Options) -> Result<(), CommandFailure> {
    let runtime = if options.listen.is_some() { runtime()? } else { stdio_runtime()? };
    let done = runtime.block_on(run_gateway(options));
    // A pending read of standard input cannot be cancelled, and would block the shutdown.
    runtime.shutdown_background();
    done
}

/// Time for calls in flight to finish at shutdown.
const DRAIN: Duration = Duration::from_secs(10);

async fn run_gateway(options: &Options) -> Result<(), CommandFailure> {
    let server = server(options)?;
    let sources = sources::with_store(sources(options, &server)?, options.store.as_ref());
    let frontend = options.listen.map_or(Frontend::Stdio, Frontend::Http);
    preflight::examine(&sources, |_| frontend, Upstreams::CommandLine).admit()?;
    let steadfast = sources::open(sources).await?;
    let server = watched(server.claim_name(steadfast.engine()).await, steadfast.telemetry());
    let (stop, supervised) = (shutdown::shutdown_token(), server.clone());
    match options.listen {
        Some(address) => {
            let access = AcceptedTokens::to(address, &steadfast.config())?;
            let endpoints = vec![(PATH.to_owned(), vec![server])];
            let listened =
                ListeningGateway::open(&steadfast, address, &options.hosts, access, endpoints).await?;
            output::print_message(&format!("listening on {}", listened.url(PATH)));
            listened.log_dashboard_url(&steadfast.config());
            stop.cancelled().await;
            listened.close(DRAIN).await;
        }
        None => {
            let (input, output) = streams::own();
            let wrapped = StdioClient {
                input,
                output,
                connection: ClientIdentity::of_parent(),
                servers: vec![server],
                own_tools: own_tools(&steadfast.config()),
                large_results: stdio_large_results(&steadfast.config()),
            };
            wrap(steadfast.engine(), wrapped, stop).await;
        }
    }
    supervised.settle().await;
    steadfast.shutdown(Duration::ZERO).await;
    Ok(())
}

/// Returns the sources of the configuration. A server at an unknown URL is added to it, because its location decides
/// whether its annotations are trusted.
fn sources(options: &Options, server: &ConfiguredServer) -> Result<Sources, CommandFailure> {
    let mut sources = options.chosen.sources();
    if let Some(address) = address(options)?
        && !options.chosen.load()?.servers().contains_key(&server.name)
    {
        let setting = format!("servers.\"{}\".url", server.name);
        sources.flags.push(CommandLineFlag { name: address.flag, setting, value: address.url });
    }
    Ok(sources)
}

/// Path of the server over HTTP.
const PATH: &str = "/mcp";

fn server(options: &Options) -> Result<ConfiguredServer, CommandFailure> {
    let name = match &options.name {
        Some(name) => Some(
            Namespace::new(name)
                .map_err(|error| error.to_string())
                .and_then(|name| match name.as_str().contains(Namespace::MARK) {
                    true => Err(format!(
                        "has a `{}`, which distinguishes servers with the same name",
                        Namespace::MARK
                    )),
                    false => Ok(name),
                })
                .map_err(|error| {
                    CommandFailure::Usage(format!("a server cannot be called `{name}`: {error}"))
                })?,
        ),
        None => None,
    };
    match address(options)? {
        Some(address) => upstream::of_url(&address, &options.headers, &options.header_envs, name),
        None => upstream::of_command(&options.command, name, &options.chosen.load()?),
    }
}

/// Returns the address of the server, if it is not started as a child process.
fn address(options: &Options) -> Result<Option<ServerAddress>, CommandFailure> {
    match (&options.url, &options.url_env) {
        (Some(url), _) => Ok(Some(ServerAddress {
            flag: "--url".to_owned(),
            shown: format!("--url {url}"),
            url: url.clone(),
        })),
        (None, Some(variable)) => {
            let flag = format!("--url-env {variable}");
            let url = env::var(variable)
                .map_err(|_| CommandFailure::Usage(format!("`{flag}`: {variable} is not set")))?;
            Ok(Some(ServerAddress { shown: flag.clone(), flag, url }))
        }
        (None, None) => Ok(None),
    }
}
