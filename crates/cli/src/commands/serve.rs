//! `steadfast serve`: a gateway in front of many servers at one address.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use steadfast::Steadfast;
use steadfast::config::Config;
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
use crate::support::upstream;

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    chosen: ConfigFileOptions,
    /// A file with `mcpServers` in the format of clients, or such JSON itself. Its servers are added to those of the
    /// configuration. May be given more than once.
    #[arg(long = "mcp-config", value_name = "FILE OR JSON")]
    mcp_config: Vec<OsString>,
    /// Store for the calls: memory, sqlite or redis. Overrides the configuration.
    #[arg(long, value_name = "KIND")]
    store: Option<String>,
    /// Accept one client on standard input and output instead of many over HTTP.
    #[arg(long, conflicts_with = "listen")]
    stdio: bool,
    /// Address for clients. Overrides the configuration.
    #[arg(long, value_name = "ADDRESS", value_parser = listener::address)]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    hosts: HostOptions,
}

/// Time for calls in flight to finish at shutdown.
const DRAIN: Duration = Duration::from_secs(10);
/// Path of the endpoint for all servers. The endpoint of each single server is below it.
const ALL: &str = "/mcp";

/// Runs `steadfast serve`.
pub(crate) fn run(options: &Options) -> Result<(), CommandFailure> {
    let runtime = if options.stdio { stdio_runtime()? } else { runtime()? };
    let done = runtime.block_on(run_gateway(options));
    // A pending read of standard input cannot be cancelled, and would block the shutdown.
    runtime.shutdown_background();
    done
}

async fn run_gateway(options: &Options) -> Result<(), CommandFailure> {
    let sources =
        sources::with_store(options.chosen.sources_and(&options.mcp_config), options.store.as_ref());
    let address = |config: &Config| options.listen.unwrap_or_else(|| config.global().listen);
    let frontend =
        |config: &Config| if options.stdio { Frontend::Stdio } else { Frontend::Http(address(config)) };
    let config = preflight::examine(&sources, frontend, Upstreams::Needed).admit()?;
    let address = address(&config);
    let steadfast = sources::open(sources).await?;
    let config = steadfast.config();
    let servers: Vec<ConfiguredServer> =
        config.servers().values().map(upstream::of_config).collect::<Result<_, _>>()?;
    let servers = claimed(servers, &steadfast).await;
    let stop = shutdown::shutdown_token();
    if options.stdio {
        let (input, output) = streams::own();
        let wrapped = StdioClient {
            input,
            output,
            connection: ClientIdentity::of_parent(),
            servers: together(&servers),
            own_tools: own_tools(&config),
            large_results: stdio_large_results(&config),
        };
        wrap(steadfast.engine(), wrapped, stop).await;
    } else {
        let access = AcceptedTokens::to(address, &config)?;
        let listened =
            ListeningGateway::open(&steadfast, address, &options.hosts, access, endpoints(&servers)).await?;
        print_endpoints(&listened, &servers);
        listened.log_dashboard_url(&config);
        stop.cancelled().await;
        listened.close(DRAIN).await;
    }
    for server in &servers {
        server.settle().await;
    }
    steadfast.shutdown(Duration::ZERO).await;
    Ok(())
}

/// Returns the servers under the names that their tools have, with their processes counted from their start on.
async fn claimed(servers: Vec<ConfiguredServer>, steadfast: &Steadfast) -> Vec<ConfiguredServer> {
    let mut claimed = Vec::new();
    for server in servers {
        claimed.push(watched(server.claim_name(steadfast.engine()).await, steadfast.telemetry()));
    }
    claimed
}

/// Returns all servers for one endpoint. If there are several, their tools have the server's name as a prefix.
fn together(servers: &[ConfiguredServer]) -> Vec<ConfiguredServer> {
    let several = servers.len() > 1;
    let named = |server: &ConfiguredServer| {
        let mut named = server.clone();
        named.prefix = several.then(|| server.name.configured().as_str().into());
        named
    };
    servers.iter().map(named).collect()
}

/// Returns an endpoint for all servers, and one for each server with its own tool names. Returns none if there is no
/// server.
fn endpoints(servers: &[ConfiguredServer]) -> Vec<(String, Vec<ConfiguredServer>)> {
    if servers.is_empty() {
        return Vec::new();
    }
    let alone =
        servers.iter().map(|server| (format!("{ALL}/{}", server.name.configured()), vec![server.clone()]));
    std::iter::once((ALL.to_owned(), together(servers))).chain(alone).collect()
}

fn print_endpoints(listened: &ListeningGateway, servers: &[ConfiguredServer]) {
    let names: Vec<_> = servers.iter().map(|server| server.name.configured()).collect();
    let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    let all = listened.url(ALL);
    match &*names {
        [] => output::print_message(&format!("no server; tools are called at {}", listened.url("/v1/calls"))),
        [one] => output::print_message(&format!("{one} is at {all}")),
        _ => {
            output::print_message(&format!("{} servers are at {all}, and each separately:", names.len()));
            let width = names.iter().map(|name| name.len()).max().unwrap_or_default();
            for name in names {
                output::print_message(&format!(
                    "  {name:width$}  {}",
                    listened.url(&format!("{ALL}/{name}"))
                ));
            }
        }
    }
}
