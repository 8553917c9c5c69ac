//! Listens for clients over HTTP: one address, an MCP endpoint for each path, and the HTTP API.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZero;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use http::{Request, Response};
use http_body_util::Either;
use steadfast::call::ToolRegistries;
use steadfast::config::{Config, StartupPlan, StoreKind, listen_address};
use steadfast::{Engine, Steadfast};
use steadfast_api::{Api, GatewayParts, ResponseBody};
use steadfast_core::large_result::LargeResultBounds;
use steadfast_gateway::{
    BuiltinTools, ClientIdentity, ConfiguredServer, DirectServers, GatewayEndpoint, LargeResults, Listener,
    OperatorAccess, ServerPool,
};
use steadfast_mcp::http::server::{
    AllowedHosts, ConnectionPeer, EndpointBody, EndpointSettings, EventStreamLimiter, HttpEndpoint,
    HttpRefusal, HttpService, ListenerLimits, OVERLOADED, RequestBody, serve,
};
use tokio::net::TcpListener;
use tokio::runtime::{self, Runtime};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::access::AcceptedTokens;
use crate::support::admin_token;
use crate::support::failure::CommandFailure;
use crate::support::gateways::{self, Announcement};
use crate::support::output;
use crate::support::plain_tools::PlainTools;
use crate::support::preflight;
use crate::support::server_tools::ServerTools;

/// Host names under which clients reach the gateway.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct HostOptions {
    /// A host name or address under which remote clients reach the gateway, without a port. May be given more than
    /// once. Loopback names and the listening address itself are always accepted. Everything else is refused, so that
    /// no web page can reach the gateway under a host name of its own.
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
}

/// A gateway that listens at an address.
pub(crate) struct ListeningGateway {
    engine: Engine,
    address: SocketAddr,
    listeners: Vec<Arc<Listener>>,
    direct: Arc<DirectServers>,
    tidying: Vec<JoinHandle<()>>,
    serving: JoinHandle<()>,
    stop: CancellationToken,
    announced: Option<Announcement>,
}

/// Time for the last responses to be sent.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

impl ListeningGateway {
    /// Listens at this address, with an endpoint for the servers of each path.
    pub(crate) async fn open(
        steadfast: &Steadfast,
        address: SocketAddr,
        hosts: &HostOptions,
        access: AcceptedTokens,
        listen_paths: Vec<(String, Vec<ConfiguredServer>)>,
    ) -> Result<Self, CommandFailure> {
        let cannot = |error| preflight::cannot_listen(address, &error);
        let listener = TcpListener::bind(address).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let names = names(hosts, address);
        let limits = limits_of(&steadfast.config());
        let streams_of_one = size(steadfast.config().global().gateway.streams_per_principal);
        let streams = EventStreamLimiter::new(streams_of_one, limits.connections);
        let pool = Arc::new(ServerPool::default());
        // A server with several endpoints counts once.
        let all = listen_paths.iter().flat_map(|(_, servers)| servers);
        let servers: BTreeMap<_, _> = all.map(|server| (server.name.clone(), server.clone())).collect();
        let admin = admin_token::find_or_create(&steadfast.config());
        let operator =
            admin.clone().map(|token| OperatorAccess { token, actor: ClientIdentity::of_parent().actor });
        let large_results = LargeResults::new(large_result_bounds(&steadfast.config()));
        let (mut listeners, mut endpoints) = (Vec::new(), Vec::new());
        for (path, servers) in listen_paths {
            let listener = Listener::new(GatewayEndpoint {
                engine: steadfast.engine().clone(),
                store: steadfast.store().clone(),
                name: path.as_str().into(),
                servers,
                own_tools: own_tools(&steadfast.config()),
                large_results: large_results.clone(),
                pool: pool.clone(),
                tokens: access.tokens.clone(),
                local: access.local.clone(),
                operator: operator.clone(),
            });
            let settings = EndpointSettings {
                names: names.clone(),
                streams: streams.clone(),
                ..EndpointSettings::default()
            };
            endpoints.push((path, HttpEndpoint::new(listener.clone(), settings)));
            listeners.push(listener);
        }
        let direct = DirectServers::new(servers.values().cloned());
        let mut tidying: Vec<_> =
            listeners.iter().map(|listener| tokio::spawn(listener.clone().tidy())).collect();
        tidying.push(tokio::spawn(direct.clone().tidy()));
        tidying.push(tokio::spawn(large_results.clone().tidy(steadfast.engine().clone())));
        tidying.push(tokio::spawn(access.clone().follow(steadfast.clone(), listeners.clone())));
        let tools =
            ToolRegistries(vec![Arc::new(PlainTools::of(steadfast)?), Arc::new(ServerTools(direct.clone()))]);
        let api = Api::with_gateway(
            steadfast.clone(),
            steadfast_api::AccessRules {
                names,
                tokens: access.tokens.clone(),
                reach: access.reach(),
                admin,
                user: Some(ClientIdentity::of_parent().actor),
            },
            GatewayParts {
                tools: Arc::new(tools),
                servers: servers.into_values().collect(),
                listeners: listeners.clone(),
                large_results,
                streams,
            },
        );
        let service = GatewayService(Arc::new(Routes::new(endpoints, api)));
        let stop = CancellationToken::new();
        let serving = serve(listener, limits, service, stop.clone());
        let serving = tokio::spawn(async move { _ = serving.await });
        let engine = steadfast.engine().clone();
        let announced = announce(&steadfast.config(), address);
        Ok(Self { engine, address, listeners, direct, tidying, serving, stop, announced })
    }

    /// Returns the URL of the endpoint at this path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Logs the URL of the dashboard, and the location of the token for it.
    pub(crate) fn log_dashboard_url(&self, config: &Config) {
        let ip = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip @ (IpAddr::V4(_) | IpAddr::V6(_)) => ip,
        };
        let address = SocketAddr::new(ip, self.address.port());
        output::print_message(&format!("dashboard: http://{address}/"));
        output::print_message(&format!("admin token: {}", admin_token::described(config)));
    }

    /// Ends every session, after calls in flight had this long to finish.
    pub(crate) async fn close(self, drain: Duration) {
        // The port is free from now on, and its next owner must not be mistaken for this gateway.
        drop(self.announced);
        self.stop.cancel();
        for tidying in &self.tidying {
            tidying.abort();
        }
        self.engine.shutdown(drain).await;
        for listener in &self.listeners {
            listener.close(Duration::ZERO).await;
        }
        self.direct.close().await;
        let _ = tokio::time::timeout(CLOSE_GRACE, self.serving).await;
    }
}

/// The MCP endpoints and the HTTP API of one address.
struct GatewayService(Arc<Routes>);

struct Routes {
    endpoints: Vec<(String, HttpEndpoint<Listener>)>,
    api: Api,
    began: Instant,
    /// Minute of the last logged refusal.
    logged: AtomicU64,
}

impl Routes {
    fn new(endpoints: Vec<(String, HttpEndpoint<Listener>)>, api: Api) -> Self {
        Self { endpoints, api, began: Instant::now(), logged: AtomicU64::new(0) }
    }

    /// Logs that a request was refused because every connection has a request in flight. Such requests come in
    /// numbers, so this logs at most once a minute.
    fn log_overloaded(&self) {
        let minute = self.began.elapsed().as_secs() / 60 + 1;
        if self.logged.swap(minute, Ordering::Relaxed) != minute {
            let reason = "every connection has a request in flight; raise gateway.connections or find out which clients hold them";
            tracing::warn!(event = "http.overloaded", "why" = reason);
        }
    }

    /// Returns the MCP endpoint at this path.
    fn endpoint(&self, path: &str) -> Option<&HttpEndpoint<Listener>> {
        self.endpoints.iter().find(|(own, _)| own == path).map(|(_, endpoint)| endpoint)
    }
}

impl HttpService for GatewayService {
    type Body = Either<EndpointBody, ResponseBody>;

    fn respond(
        &self,
        mut request: Request<RequestBody>,
        peer: ConnectionPeer,
    ) -> impl Future<Output = Response<Self::Body>> + Send + 'static {
        let routes = self.0.clone();
        async move {
            match routes.endpoint(request.uri().path()) {
                Some(endpoint) => endpoint.respond(request, peer).await.map(Either::Left),
                None => {
                    // Delivery of responses is tracked by this connection.
                    request.extensions_mut().insert(peer.link);
                    routes.api.respond(request).await.map(Either::Right)
                }
            }
        }
    }

    fn is_essential(&self, request: &Request<RequestBody>) -> bool {
        self.0.endpoint(request.uri().path()).is_none() && self.0.api.is_essential(request)
    }

    fn overloaded(&self, request: &Request<RequestBody>) -> Bytes {
        self.0.log_overloaded();
        match self.0.endpoint(request.uri().path()) {
            Some(_) => HttpRefusal::no_connection().error.bytes().clone(),
            None => OVERLOADED,
        }
    }
}

/// Returns the limits of the configuration, lowered to the file descriptors that the operating system allows.
fn limits_of(config: &Config) -> ListenerLimits {
    let gateway = &config.global().gateway;
    let limits = ListenerLimits {
        connections: size(gateway.connections),
        unauthenticated_per_address: size(gateway.unauthenticated_per_address),
        ..ListenerLimits::default()
    };
    let Some(allowed) = file_descriptors(limits.connections + limits.reserve + RESERVED_FILES) else {
        return limits;
    };
    let connections = allowed.saturating_sub(limits.reserve + RESERVED_FILES).max(LEAST);
    if connections >= limits.connections {
        return limits;
    }
    let requested = limits.connections;
    output::print_message(&format!(
        "only {connections} connections instead of {requested}: this process may have {allowed} open files; raise the limit \
         (`ulimit -n`, `LimitNOFILE=`) to {}",
        requested + limits.reserve + RESERVED_FILES
    ));
    ListenerLimits { connections, ..limits }
}

/// File descriptors reserved for servers, the store and logs.
const RESERVED_FILES: usize = 256;
/// Minimum number of connections.
const LEAST: usize = 16;

/// Raises the soft limit of open files to this number, as far as the hard limit allows. Returns the new limit, or
/// `None` if the limit was high enough. The soft limit is often 1,024.
#[cfg(unix)]
fn file_descriptors(requested: usize) -> Option<usize> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let requested = u64::try_from(requested).ok()?;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let current = current?;
    if current >= requested {
        return None;
    }
    let raised = maximum.map_or(requested, |maximum| maximum.min(requested)).max(current);
    let set = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum });
    usize::try_from(if set.is_ok() { raised } else { current }).ok()
}

#[cfg(not(unix))]
fn file_descriptors(_: usize) -> Option<usize> {
    None
}

/// Converts a number of the configuration.
fn size(number: NonZero<u32>) -> usize {
    usize::try_from(number.get()).unwrap_or(usize::MAX)
}

/// Parses an address of the command line, in the format of the setting `listen`.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let reason =
        "write an IP address or `localhost`, and a port: 127.0.0.1:8931; host names are not resolved";
    listen_address(text).ok_or_else(|| reason.to_owned())
}

/// Returns the accepted host names, as clients write them.
fn names(hosts: &HostOptions, address: SocketAddr) -> AllowedHosts {
    let written = |host: &String| match host.parse() {
        Ok(IpAddr::V6(ip)) => format!("[{ip}]"),
        Ok(IpAddr::V4(_)) | Err(_) => host.clone(),
    };
    let own = (!address.ip().is_unspecified()).then(|| address.ip().to_string());
    AllowedHosts { hosts: hosts.hosts.iter().chain(&own).map(written).collect(), ..AllowedHosts::default() }
}

/// Announces the gateway to the other commands, if the state folder is known.
fn announce(config: &Config, address: SocketAddr) -> Option<Announcement> {
    let plan = StartupPlan::of(config).ok()?;
    let settings = &config.global().store;
    // The memory of one process is not shared, and one redis server can hold several stores.
    let own = match settings.kind {
        StoreKind::Memory => format!(" (pid {})", process::id()),
        StoreKind::Redis => format!(", keys {}", settings.prefix),
        StoreKind::Sqlite => String::new(),
    };
    gateways::announce(&gateways::folder(config)?, address, &format!("{}{own}", plan.store()))
}

/// Returns the permissions of clients for the gateway's own tools, if they are enabled. A token admits a client and
/// the model that uses it. It does not make them an operator.
pub(crate) fn own_tools(config: &Config) -> BuiltinTools {
    let gateway = &config.global().gateway;
    BuiltinTools { reliability: gateway.reliability_tools, turns: gateway.run_turn }
}

/// Returns the bounds for stored text of large results.
pub(crate) fn large_result_bounds(config: &Config) -> LargeResultBounds {
    let results = &config.global().results;
    let entries = usize::try_from(results.entries.get()).unwrap_or(usize::MAX);
    LargeResultBounds { keep: results.keep, entries, bytes: results.bytes }
}

/// Returns the store of large results for a stdio client: files beside the state, if the state folder is known.
pub(crate) fn stdio_large_results(config: &Config) -> Arc<LargeResults> {
    let state = config.global().store.path.as_ref().and_then(|path| path.parent());
    match state {
        Some(folder) => LargeResults::with_files(large_result_bounds(config), folder.join(RESULTS)),
        None => LargeResults::new(large_result_bounds(config)),
    }
}

/// Name of the folder with large results, in the state folder.
const RESULTS: &str = "results";

/// Returns the runtime for many clients. Clients and servers usually run on this machine and need its other cores.
/// Waking another thread costs a call more than the thread would save.
pub(crate) fn runtime() -> Result<Runtime, CommandFailure> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    built(runtime::Builder::new_multi_thread().worker_threads((cores / 2).clamp(1, MOST_WORKERS)))
}

const MOST_WORKERS: usize = 4;

/// Returns the runtime for one client. No thread has to wake another between its stream and that of its server.
pub(crate) fn stdio_runtime() -> Result<Runtime, CommandFailure> {
    built(&mut runtime::Builder::new_current_thread())
}

fn built(builder: &mut runtime::Builder) -> Result<Runtime, CommandFailure> {
    builder
        .enable_all()
        .build()
        .map_err(|error| CommandFailure::Environment(format!("the runtime cannot be started: {error}")))
}

#[cfg(all(test, unix))]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::{env, fs};

    use http::{HeaderMap, Uri};
    use serde_json::json;
    use steadfast::Attempt;
    use steadfast::call::{EnvelopeBuilder, ToolResult, output::ToolOutput};
    use tokio::sync::Notify;

    use super::*;

    #[test]
    fn clients_may_use_the_address_by_which_they_reach_the_gateway() {
        let hosts = HostOptions { hosts: vec!["gateway.example".to_owned(), "2001:db8::7".to_owned()] };
        for (address, host, is_accepted) in [
            ("[2001:db8::5]:8080", "[2001:db8::5]:8080", true),
            ("[2001:db8::5]:8080", "[2001:db8::6]:8080", false),
            ("192.0.2.5:8080", "192.0.2.5:8080", true),
            ("[::]:8080", "[2001:db8::7]:8080", true),
            ("[::]:8080", "gateway.example", true),
            ("[::]:8080", "[::]:8080", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(http::header::HOST, host.parse().unwrap());
            let admitted =
                names(&hosts, address.parse().unwrap()).admit(&Uri::from_static("/"), &headers).is_ok();
            assert_eq!(admitted, is_accepted, "{host} at {address}");
        }
    }

    #[tokio::test]
    async fn sf_7_a_gateway_that_gives_up_its_port_is_announced_no_longer() {
        let folder = env::temp_dir().join(format!("steadfast-listening-{}", process::id()));
        let _ = fs::remove_dir_all(&folder);
        let opening = Steadfast::builder()
            .set("store.kind", "memory")
            .set("store.path", folder.join("state.db").to_str().unwrap());
        let steadfast = opening.build().await.unwrap();
        let address = "127.0.0.1:0".parse().unwrap();
        let (hosts, access) = (HostOptions::default(), AcceptedTokens::all_local_callers());
        let listened = ListeningGateway::open(&steadfast, address, &hosts, access, Vec::new()).await.unwrap();
        let announced = || gateways::running(&folder.join("gateways")).len();
        assert_eq!(announced(), 1);
        let (started, end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (began, ends) = (started.clone(), end.clone());
        let slow = move |_: Attempt| {
            let (started, end) = (started.clone(), end.clone());
            async move {
                started.notify_one();
                end.notified().await;
                ToolResult::Ok(ToolOutput::text("paid"))
            }
        };
        let envelope = EnvelopeBuilder::new("bank/pay").args(&json!({})).build().unwrap();
        let calling = tokio::spawn(steadfast.engine().call(envelope, slow));
        began.notified().await;
        let mut closing = pin!(listened.close(Duration::from_secs(60)));
        let first = closing.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!((first, announced()), (Poll::Pending, 0), "what is under way is waited for");
        ends.notify_one();
        closing.await;
        calling.await.unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }
}
