//! The connection for commands: a single one, shared by all callers, and reconnected when it breaks.
//!
//! A command without a connection waits for the one in progress. If that fails, commands are refused at once for a
//! short while, instead of each trying to connect. A probe keeps trying until the server is back.
//!
//! A connection is replaced when it breaks, when its server has become a replica, or when a command timed out and
//! nothing was received on it since: a machine that vanished closes no connections.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use redis::aio::{ConnectionLike, MultiplexedConnection, PubSub};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, RedisResult, TlsCertificates, TlsMode, Value,
};
use steadfast_store::StoreError;

use crate::fault::{self, CommandStage};
use crate::health::{HealthPart, RedisHealth};
use crate::options::{HostPort, Options, RedisAddress, RedisLogin, RedisTls};
use crate::random;

/// The first pause after a failed attempt to connect, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// A cluster connection repairs itself. It is only replaced after a silence of this length.
const CLUSTER_SILENCE: Duration = Duration::from_secs(10);

/// The connection to the server, in any state.
pub(crate) struct RedisLink {
    options: Arc<Options>,
    shown: String,
    state: Mutex<State>,
    lines: AtomicU64,
    health: RedisHealth,
}

/// One connection.
pub(crate) struct CommandConnection {
    connection: RedisConnection,
    /// Distinguishes a replaced connection from its successor.
    number: u64,
    made: Instant,
    /// Time of the last input, in microseconds since the connection was made.
    last_input: AtomicU64,
}

#[derive(Clone)]
enum RedisConnection {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

enum State {
    Idle,
    Connecting(ConnectFuture, Duration),
    Up(Arc<CommandConnection>),
    Down { error: RedisError, until: Instant, pause: Duration },
}

type ConnectFuture = Shared<BoxFuture<'static, RedisResult<RedisConnection>>>;

/// The target of a command in a Cluster. A single server gets all commands.
#[derive(Clone, Debug)]
pub(crate) enum CommandTarget<'a> {
    /// The node that has the keys of the command.
    Keys,
    /// The primary that has this key.
    Holder(&'a str),
    /// This node.
    Node(&'a HostPort),
}

/// A reply to a command.
pub(crate) struct CommandReply {
    pub(crate) value: Value,
    pub(crate) sent: Instant,
    pub(crate) received: Instant,
    pub(crate) line: Arc<CommandConnection>,
}

/// The error of a command.
#[derive(Debug)]
pub(crate) struct CommandError {
    pub(crate) error: RedisError,
    stage: CommandStage,
}

impl RedisLink {
    pub(crate) fn new(options: Arc<Options>, health: RedisHealth) -> Self {
        if options.tls != RedisTls::Off {
            // Another library in this process may have installed another provider. Any will do.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let shown = options.place.to_string();
        Self { options, shown, state: Mutex::new(State::Idle), lines: AtomicU64::new(0), health }
    }

    /// Returns the timeout of a command.
    pub(crate) fn command_timeout(&self) -> Duration {
        self.options.command_timeout
    }

    pub(crate) fn health(&self) -> &RedisHealth {
        &self.health
    }

    /// Sends a command and waits for its reply.
    pub(crate) async fn send(
        self: &Arc<Self>,
        command: &Cmd,
        target: CommandTarget<'_>,
    ) -> Result<CommandReply, CommandError> {
        let line = self.line().await.map_err(|error| {
            self.noticed(&error);
            CommandError { error, stage: CommandStage::Connecting }
        })?;
        self.send_on(line, command, target).await
    }

    /// Sends a command on this connection only.
    pub(crate) async fn send_on(
        self: &Arc<Self>,
        line: Arc<CommandConnection>,
        command: &Cmd,
        target: CommandTarget<'_>,
    ) -> Result<CommandReply, CommandError> {
        let sent = Instant::now();
        let result = line.connection.clone().send(command, target).await;
        let received = Instant::now();
        match result.and_then(refused) {
            Ok(value) => {
                line.record_activity(received);
                self.health.mark_working(HealthPart::Commands);
                Ok(CommandReply { value, sent, received, line })
            }
            Err(error) => {
                self.failed(&line, &error, sent, received);
                Err(CommandError { error, stage: CommandStage::Sent })
            }
        }
    }

    /// Opens a separate connection for subscriptions.
    pub(crate) async fn listen(&self, attempt: usize) -> Result<PubSub, StoreError> {
        let options = Arc::clone(&self.options);
        let listening = async move {
            let client = match &options.place {
                RedisAddress::Server(host) => client(&options, host)?,
                RedisAddress::Sentinel { service, sentinels } => {
                    primary(&options, service, sentinels).await?
                }
                // Messages reach every node of a Cluster, so any node will do. If one is gone, the next one is used.
                RedisAddress::Cluster(nodes) => match nodes.get(attempt % nodes.len().max(1)) {
                    Some(host) => client(&options, host)?,
                    None => {
                        return Err(RedisError::from((ErrorKind::InvalidClientConfig, "no node is given")));
                    }
                },
            };
            client.get_async_pubsub().await
        };
        let timed_out = || Err(RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut)));
        let result = tokio::time::timeout(self.options.connect_timeout, listening)
            .await
            .unwrap_or_else(|_| timed_out());
        result.map_err(|error| fault::store_error(&error, CommandStage::Connecting, &self.shown))
    }

    /// Returns the nodes that hold keys: all primaries of a Cluster, or a single `None` for one server.
    pub(crate) async fn nodes(self: &Arc<Self>) -> Result<Vec<Option<HostPort>>, StoreError> {
        let RedisAddress::Cluster(_) = self.options.place else { return Ok(vec![None]) };
        let slots = self.send(redis::cmd("CLUSTER").arg("SLOTS"), CommandTarget::Keys).await;
        let slots = slots.map_err(|failed| self.store_error(&failed))?.value;
        let mut nodes: Vec<Option<HostPort>> = Vec::new();
        for range in slots.into_sequence().unwrap_or_default() {
            // First slot, last slot, the primary, its replicas. A node is its address, port and id.
            let primary = range.into_sequence().ok().and_then(|parts| parts.into_iter().nth(2));
            let Some(Ok(parts)) = primary.map(Value::into_sequence) else { continue };
            let [name, port, ..] = parts.as_slice() else { continue };
            let (name, port) = (redis::from_redis_value_ref(name), redis::from_redis_value_ref(port));
            let (Ok(name), Ok(port)) = (name, port) else { continue };
            let node = Some(HostPort { name, port });
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        Ok(nodes)
    }

    /// Returns true if the keys are spread over several servers, each with a clock of its own.
    pub(crate) fn is_spread(&self) -> bool {
        matches!(self.options.place, RedisAddress::Cluster(_))
    }

    /// Returns the error for a caller.
    pub(crate) fn store_error(&self, failed: &CommandError) -> StoreError {
        fault::store_error(&failed.error, failed.stage, &self.shown)
    }

    async fn line(&self) -> RedisResult<Arc<CommandConnection>> {
        let connecting = {
            let mut state = self.state.lock();
            let pause = match &*state {
                State::Up(line) => return Ok(Arc::clone(line)),
                State::Down { error, until, .. } if Instant::now() < *until => return Err(error.clone()),
                State::Connecting(connecting, _) => Err(connecting.clone()),
                State::Down { pause, .. } => Ok(*pause),
                State::Idle => Ok(PAUSES.0),
            };
            pause.map_or_else(
                |connecting| connecting,
                |pause| {
                    let connecting = connect(Arc::clone(&self.options)).boxed().shared();
                    *state = State::Connecting(connecting.clone(), pause);
                    connecting
                },
            )
        };
        let result = connecting.clone().await;
        let mut state = self.state.lock();
        // The first of the waiting callers records the result.
        if let State::Connecting(current, pause) = &*state
            && current.ptr_eq(&connecting)
        {
            let pause = *pause;
            *state = match result.clone() {
                Ok(connection) => {
                    let number = self.lines.fetch_add(1, Ordering::Relaxed);
                    State::Up(Arc::new(CommandConnection {
                        connection,
                        number,
                        made: Instant::now(),
                        last_input: AtomicU64::new(0),
                    }))
                }
                Err(error) => State::Down {
                    error,
                    until: Instant::now() + random::around(pause),
                    pause: (pause * 2).min(PAUSES.1),
                },
            };
        }
        match (&*state, result) {
            (State::Up(line), Ok(_)) => Ok(Arc::clone(line)),
            (_, Err(error)) => Err(error),
            // The connection was made, used, and broken before this caller could use it.
            (_, Ok(_)) => Err(RedisError::from(std::io::Error::from(std::io::ErrorKind::NotConnected))),
        }
    }

    fn failed(self: &Arc<Self>, line: &CommandConnection, error: &RedisError, sent: Instant, now: Instant) {
        let silent = line.silence(now);
        let give_up = match line.connection {
            RedisConnection::One(_) => {
                fault::breaks_connection(error) || (error.is_timeout() && silent >= now - sent)
            }
            RedisConnection::Cluster(_) => error.is_io_error() && silent > CLUSTER_SILENCE,
        };
        if give_up {
            let mut state = self.state.lock();
            if matches!(&*state, State::Up(current) if current.number == line.number) {
                *state = State::Idle;
            }
        }
        // One slow command among others with replies is not an outage.
        if !error.is_timeout() || silent >= now - sent {
            self.noticed(error);
        }
    }

    fn noticed(self: &Arc<Self>, error: &RedisError) {
        let reason = || fault::store_error(error, CommandStage::Sent, &self.shown);
        if fault::refuses_writes(error) {
            self.health.mark_broken(HealthPart::Writes, reason());
        }
        if fault::is_outage(error) && self.health.mark_broken(HealthPart::Commands, reason()) {
            let link = Arc::downgrade(self);
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(random::around(PAUSES.1 / 2)).await;
                    let Some(link) = link.upgrade() else { return };
                    if !link.health.is_broken(HealthPart::Commands)
                        || link.send(&redis::cmd("PING"), CommandTarget::Keys).await.is_ok()
                    {
                        return;
                    }
                }
            });
        }
    }
}

impl CommandConnection {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    fn record_activity(&self, at: Instant) {
        let micros = at.saturating_duration_since(self.made).as_micros();
        self.last_input.fetch_max(u64::try_from(micros).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn silence(&self, now: Instant) -> Duration {
        let last_input = self.made + Duration::from_micros(self.last_input.load(Ordering::Relaxed));
        now.saturating_duration_since(last_input)
    }
}

impl RedisConnection {
    async fn send(&mut self, command: &Cmd, target: CommandTarget<'_>) -> RedisResult<Value> {
        match self {
            Self::One(connection) => connection.send_packed_command(command).await,
            Self::Cluster(connection) => {
                let node = match target {
                    CommandTarget::Keys => return connection.req_packed_command(command).await,
                    CommandTarget::Holder(key) => {
                        SingleNodeRoutingInfo::SpecificNode(Route::with_key(key, SlotAddr::Master))
                    }
                    CommandTarget::Node(HostPort { name, port }) => {
                        SingleNodeRoutingInfo::ByAddress { host: name.clone(), port: *port }
                    }
                };
                let routing = RoutingInfo::SingleNode(node);
                Box::pin(connection.route_command(command.clone(), routing)).await
            }
        }
    }
}

/// Converts an error reply into an error. The client library leaves it as a value. Only the outermost value can be
/// one here.
#[expect(clippy::wildcard_enum_match_arm, reason = "the enums of the client library grow")]
fn refused(value: Value) -> RedisResult<Value> {
    match value {
        Value::ServerError(error) => Err(error.into()),
        answer => Ok(answer),
    }
}

async fn connect(options: Arc<Options>) -> RedisResult<RedisConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(options.connect_timeout))
        .set_response_timeout(Some(options.command_timeout));
    let connecting = async {
        match &options.place {
            RedisAddress::Server(host) => client(&options, host)?
                .get_multiplexed_async_connection_with_config(&config)
                .await
                .map(RedisConnection::One),
            RedisAddress::Sentinel { service, sentinels } => {
                let client = primary(&options, service, sentinels).await?;
                client.get_multiplexed_async_connection_with_config(&config).await.map(RedisConnection::One)
            }
            RedisAddress::Cluster(nodes) => {
                cluster(&options, nodes)?.get_async_connection().await.map(RedisConnection::Cluster)
            }
        }
    };
    let timed_out = || Err(RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut)));
    tokio::time::timeout(options.connect_timeout, connecting).await.unwrap_or_else(|_| timed_out())
}

fn client(options: &Options, host: &HostPort) -> RedisResult<Client> {
    let info = options.connection(host)?;
    match certificates(options) {
        Some(certificates) => Client::build_with_tls(info, certificates),
        None => Client::open(info),
    }
}

/// Asks the sentinels each time, because they know the primary after a failover. Waits for a silent sentinel until
/// the caller gives up.
async fn primary(options: &Options, service: &str, sentinels: &[HostPort]) -> RedisResult<Client> {
    let addresses = sentinels.iter().map(|sentinel| options.address(sentinel));
    let mut builder = SentinelClientBuilder::new(addresses, service, SentinelServerType::Master)?
        .set_client_to_redis_db(i64::from(options.database));
    let RedisLogin { user, password } = &options.login;
    if let Some(user) = user {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = password {
        builder = builder.set_client_to_redis_password(password);
    }
    let RedisLogin { user, password } = &options.sentinel_login;
    if let Some(user) = user {
        builder = builder.set_client_to_sentinel_username(user);
    }
    if let Some(password) = password {
        builder = builder.set_client_to_sentinel_password(password);
    }
    if options.tls != RedisTls::Off {
        builder = builder
            .set_client_to_redis_tls_mode(TlsMode::Secure)
            .set_client_to_sentinel_tls_mode(TlsMode::Secure);
    }
    if let Some(certificates) = certificates(options) {
        builder = builder
            .set_client_to_redis_certificates(certificates.clone())
            .set_client_to_sentinel_certificates(certificates);
    }
    let mut sentinels = builder.build()?;
    loop {
        match sentinels.async_get_client().await {
            // The client library always uses a timeout of half a second for a sentinel. The callers have their own
            // limit.
            Err(error) if error.is_timeout() => {}
            found => return found,
        }
    }
}

fn cluster(options: &Options, nodes: &[HostPort]) -> RedisResult<ClusterClient> {
    let nodes = nodes.iter().map(|node| options.connection(node)).collect::<RedisResult<Vec<_>>>()?;
    let mut builder = ClusterClientBuilder::new(nodes)
        .connection_timeout(options.connect_timeout)
        .response_timeout(options.command_timeout);
    if let Some(certificates) = certificates(options) {
        builder = builder.certs(certificates);
    }
    builder.build()
}

fn certificates(options: &Options) -> Option<TlsCertificates> {
    match &options.tls {
        RedisTls::Off | RedisTls::Trusted => None,
        RedisTls::Authority(pem) => Some(TlsCertificates { client_tls: None, root_cert: Some(pem.clone()) }),
    }
}

impl fmt::Debug for RedisLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Link").field(&self.shown).finish()
    }
}
