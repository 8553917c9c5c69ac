//! `steadfast serve`: a gateway in front of many servers at one address.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use steadfast::{Config, Steadfast};
use steadfast_gateway::{Configured, Connection, Wrapped, wrap};

use crate::access::Access;
use crate::behind;
use crate::failure::Failure;
use crate::listening::{self, Hosts, Listened, own_tools, results_of_one, runtime, runtime_of_one};
use crate::output;
use crate::preflight::{self, Frontend, Upstreams};
use crate::sources::{self, Chosen};
use crate::stop;
use crate::streams;
use crate::watched::watched;

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    chosen: Chosen,
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
    #[arg(long, value_name = "ADDRESS", value_parser = listening::address)]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    hosts: Hosts,
}

/// Time for calls in flight to finish at shutdown.
const DRAIN: Duration = Duration::from_secs(10);
/// Path of the endpoint for all servers. The endpoint of each single server is below it.
const ALL: &str = "/mcp";

/// Runs `steadfast serve`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let runtime = if options.stdio { runtime_of_one()? } else { runtime()? };
    let done = runtime.block_on(carry(options));
    // A pending read of standard input cannot be cancelled, and would block the shutdown.
    runtime.shutdown_background();
    done
}

async fn carry(options: &Options) -> Result<(), Failure> {
    let sources =
        sources::with_store(options.chosen.sources_and(&options.mcp_config), options.store.as_ref());
    let address = |config: &Config| options.listen.unwrap_or_else(|| config.global().listen);
    let frontend =
        |config: &Config| if options.stdio { Frontend::Stdio } else { Frontend::Http(address(config)) };
    let config = preflight::examine(&sources, frontend, Upstreams::Needed).admit()?;
    let address = address(&config);
    let steadfast = sources::open(sources).await?;
    let config = steadfast.config();
    let servers: Vec<Configured> =
        config.servers().values().map(behind::of_config).collect::<Result<_, _>>()?;
    let servers = claimed(servers, &steadfast).await;
    let stop = stop::asked();
    if options.stdio {
        let (input, output) = streams::own();
        let wrapped = Wrapped {
            input,
            output,
            connection: Connection::of_parent(),
            servers: together(&servers),
            own_tools: own_tools(&config),
            large_results: results_of_one(&config),
        };
        wrap(steadfast.engine(), wrapped, stop).await;
    } else {
        let access = Access::to(address, &config)?;
        let listened = Listened::open(&steadfast, address, &options.hosts, access, doors(&servers)).await?;
        tell(&listened, &servers);
        listened.tell_operator(&config);
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
async fn claimed(servers: Vec<Configured>, steadfast: &Steadfast) -> Vec<Configured> {
    let mut claimed = Vec::new();
    for server in servers {
        claimed.push(watched(server.claimed(steadfast.engine()).await, steadfast.telemetry()));
    }
    claimed
}

/// Returns all servers for one endpoint. If there are several, their tools have the server's name as a prefix.
fn together(servers: &[Configured]) -> Vec<Configured> {
    let several = servers.len() > 1;
    let named = |server: &Configured| {
        let mut named = server.clone();
        named.prefix = several.then(|| server.name.configured().as_str().into());
        named
    };
    servers.iter().map(named).collect()
}

/// Returns an endpoint for all servers, and one for each server with its own tool names. Returns none if there is no
/// server.
fn doors(servers: &[Configured]) -> Vec<(String, Vec<Configured>)> {
    if servers.is_empty() {
        return Vec::new();
    }
    let alone =
        servers.iter().map(|server| (format!("{ALL}/{}", server.name.configured()), vec![server.clone()]));
    std::iter::once((ALL.to_owned(), together(servers))).chain(alone).collect()
}

fn tell(listened: &Listened, servers: &[Configured]) {
    let names: Vec<_> = servers.iter().map(|server| server.name.configured()).collect();
    let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    let all = listened.url(ALL);
    match &*names {
        [] => output::remark(&format!("no server; tools are called at {}", listened.url("/v1/calls"))),
        [one] => output::remark(&format!("{one} is at {all}")),
        _ => {
            output::remark(&format!("{} servers are at {all}, and each separately:", names.len()));
            let width = names.iter().map(|name| name.len()).max().unwrap_or_default();
            for name in names {
                output::remark(&format!("  {name:width$}  {}", listened.url(&format!("{ALL}/{name}"))));
            }
        }
    }
}
