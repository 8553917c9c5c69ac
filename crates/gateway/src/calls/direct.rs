//! Tools of MCP servers for callers without MCP, such as those of the HTTP API. To the servers, the gateway is the
//! client.
//!
//! Each caller has its own server instances, as each MCP client has. They end after a period without use, or when
//! another caller needs the slot.

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use steadfast_core::call::AttemptEndVisibility;
use steadfast_core::classify::{AttemptFault, FaultSource};
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::{ActorId, Namespace, TenantId};
use steadfast_core::policy::SettlingPolicy;
use steadfast_executor::{Attempt, AvailableTool, ToolHandler, ToolInfo, ToolResult};
use steadfast_mcp::http::LEGACY;
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::{RpcId, RpcMessage, code};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use crate::calls::upstream_tool::{SentAttempt, end, run, sent};
use crate::json_parts::json;
use crate::servers::configured::{ConfiguredServer, ServerSharing};
use crate::servers::upstream::{
    Generation, HANDSHAKE, Handshake, LIST_BACKOFF, LIST_TIMEOUT, ServerEvent, ServerOwner, UpstreamServer,
    initialized, not_sent,
};

/// The servers of a configuration, for callers without MCP.
pub struct DirectServers {
    servers: BTreeMap<Namespace, ConfiguredServer>,
    lines: Mutex<HashMap<(Namespace, InstanceOwner), Arc<DirectInstance>>>,
}

/// The owner of a server instance. Instances are never shared between callers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct InstanceOwner {
    tenant: Option<TenantId>,
    actor: ActorId,
}

/// A server instance of one caller.
struct DirectInstance {
    server: Arc<UpstreamServer>,
    /// True after the handshake. Locked during it, so that it happens once.
    is_initialized: tokio::sync::Mutex<bool>,
    /// The number of times that its tools may have changed.
    changes: AtomicU64,
    /// The value of `changes` at the last listing. Locked while the server lists its tools.
    listed: tokio::sync::Mutex<Option<u64>>,
    /// Time of the last failed listing.
    failed: Mutex<Option<Instant>>,
    calls: AtomicUsize,
    used: Mutex<Instant>,
    task: Mutex<Option<AbortHandle>>,
}

/// A tool of a server, or a placeholder if there is no slot for the caller.
#[derive(Clone)]
pub struct DirectTool(Option<Arc<InstanceUse>>, SentAttempt);

/// The maximum number of callers with an instance of a server if the configuration sets none.
const MOST_CALLERS: usize = 64;
/// The time without use after which an instance is ended.
const UNUSED: Duration = Duration::from_secs(5 * 60);
/// The interval between checks for unused instances.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

impl DirectServers {
    /// Creates the tools of these servers.
    pub fn new(servers: impl IntoIterator<Item = ConfiguredServer>) -> Arc<Self> {
        let servers = servers.into_iter().map(|server| (server.name.configured(), server)).collect();
        Arc::new(Self { servers, lines: Mutex::default() })
    }

    /// Returns true if there is a server of this name.
    pub fn has(&self, server: &Namespace) -> bool {
        self.servers.contains_key(&server.configured())
    }

    /// Returns the namespace of the tools of a server.
    pub fn name(&self, server: &Namespace) -> Option<Namespace> {
        self.servers.get(&server.configured()).map(|configured| configured.name.clone())
    }

    /// Finds the tool of a call and the information that its server gives about it. Returns `None` if there is no such
    /// server, or if the server is known not to have the tool.
    pub async fn find(&self, envelope: &CallEnvelope) -> Option<(DirectTool, Option<Arc<ToolInfo>>)> {
        let (line, evicted) = self.line(envelope)?;
        if let Some(evicted) = evicted {
            evicted.stop().await;
        }
        let Some(line) = line else { return Some((DirectTool(None, SentAttempt::default()), None)) };
        let info = || line.server.catalog.tool(envelope.tool_name.as_str());
        // A call that may be refused anyway must not wait for its server. Known information is enough, and a server
        // that failed to list its tools recently is not waited for again.
        let is_listed = match info() {
            None if !line.failed_lately() => line.is_listed().await,
            Some(_) | None => false,
        };
        match info() {
            None if is_listed => None,
            // An unreachable server still gets the call: the engine decides on retries and on the error.
            info => Some((DirectTool(Some(Arc::new(line)), SentAttempt::default()), info)),
        }
    }

    /// Returns all tools of these servers that are known so far.
    pub fn tools(&self) -> Vec<AvailableTool> {
        self.servers.values().flat_map(ConfiguredServer::tools).collect()
    }

    /// Ends unused instances periodically, until this future is dropped.
    pub async fn tidy(self: Arc<Self>) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let unused: Vec<_> = {
                let mut lines = self.lines.lock();
                lines.extract_if(|_, line| line.is_unused()).map(|(_, line)| line).collect()
            };
            join_all(unused.iter().map(|line| line.stop())).await;
        }
    }

    /// Ends all instances.
    pub async fn close(&self) {
        let all: Vec<_> = self.lines.lock().drain().map(|(_, line)| line).collect();
        join_all(all.iter().map(|line| line.stop())).await;
    }

    /// Returns the caller's instance of the server of a call, or `None` if there is no such server. At the limit, the
    /// second value is an idle instance that was removed for it and has to be stopped. If all instances are in use, the
    /// first value is `None`.
    fn line(&self, envelope: &CallEnvelope) -> Option<(Option<InstanceUse>, Option<Arc<DirectInstance>>)> {
        let configured = self.servers.get(&envelope.tool_namespace.configured())?;
        let target = &envelope.target;
        let owner = InstanceOwner { tenant: target.tenant_id.clone(), actor: target.actor_id.clone() };
        let key = (configured.name.clone(), owner);
        let mut lines = self.lines.lock();
        if let Some(line) = lines.get(&key) {
            return Some((Some(line.used()), None));
        }
        let most = match configured.sharing {
            ServerSharing::Shared => MOST_CALLERS,
            ServerSharing::PerSession { most } => most,
        };
        let of_server = lines.iter().filter(|((server, _), _)| *server == configured.name);
        let mut evicted = None;
        if of_server.clone().count() >= most {
            let idle = of_server.filter(|(_, line)| line.calls.load(Ordering::Acquire) == 0);
            let Some(oldest) = idle.min_by_key(|(_, line)| *line.used.lock()).map(|(key, _)| key.clone())
            else {
                return Some((None, None));
            };
            evicted = lines.remove(&oldest);
        }
        let line = DirectInstance::new(configured);
        let using = line.used();
        lines.insert(key, line);
        Some((Some(using), evicted))
    }
}

impl DirectInstance {
    fn new(configured: &ConfiguredServer) -> Arc<Self> {
        let (server, processes) = configured.make(Handshake::default());
        let line = Arc::new(Self {
            server: server.clone(),
            is_initialized: tokio::sync::Mutex::new(false),
            changes: AtomicU64::new(0),
            listed: tokio::sync::Mutex::new(None),
            failed: Mutex::default(),
            calls: AtomicUsize::new(0),
            used: Mutex::new(Instant::now()),
            task: Mutex::default(),
        });
        let task = tokio::spawn(server.keep(processes, Arc::new(DirectEventHandler(Arc::downgrade(&line)))));
        *line.task.lock() = Some(task.abort_handle());
        line
    }

    /// Waits for the tool list, up to a limit. Returns true if the server has listed its tools.
    async fn is_listed(&self) -> bool {
        let is_listed = matches!(timeout(LIST_TIMEOUT, self.ready()).await, Ok(Ok(())));
        *self.failed.lock() = (!is_listed).then(Instant::now);
        is_listed
    }

    fn failed_lately(&self) -> bool {
        self.failed.lock().is_some_and(|failed| failed.elapsed() < LIST_BACKOFF)
    }

    /// Waits until the handshake is done and the tools are listed.
    async fn ready(&self) -> Result<(), AttemptFault> {
        self.ensure_initialized().await?;
        let mut listed = self.listed.lock().await;
        let changes = self.changes.load(Ordering::Acquire);
        if *listed != Some(changes) {
            self.list().await?;
            // A caller that gives up before this leaves the listing to the next one.
            *listed = Some(changes);
        }
        Ok(())
    }

    /// Waits until the handshake is done.
    async fn ensure_initialized(&self) -> Result<(), AttemptFault> {
        let mut is_initialized = self.is_initialized.lock().await;
        if !*is_initialized {
            match timeout(HANDSHAKE, self.initialize()).await {
                Ok(done) => done?,
                Err(_) => return Err(not_sent("the server did not answer the handshake in time")),
            }
            *is_initialized = true;
        }
        Ok(())
    }

    async fn initialize(&self) -> Result<(), AttemptFault> {
        let params = format!(
            r#"{{"protocolVersion":"{}","capabilities":{{}},"clientInfo":{{"name":"steadfast","version":"{}"}}}}"#,
            LEGACY[0],
            env!("CARGO_PKG_VERSION")
        );
        let request = RpcMessage::request(&RpcId::number(0), "initialize", Some(&json(&params)));
        let answer = self.server.send_first(&request).await?.answer().await?;
        if answer.result().is_none() {
            return Err(not_sent(&answer.error_text().unwrap_or_default()));
        }
        self.server.handshake.answered(&request, &answer);
        self.server.mark_ready().await;
        self.server.notify(&initialized()).await;
        Ok(())
    }

    async fn list(&self) -> Result<(), AttemptFault> {
        // The recorded list shows later if a restarted server still has the same tools.
        let known = |request: &RpcMessage, answer: &RpcMessage| {
            self.server.handshake.answered(request, answer);
        };
        self.server.list(None, known).await
    }

    /// Lists the tools again after a change. This runs in its own task: the server is not read before this returns.
    fn has_others(self: Arc<Self>) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        tokio::spawn(async move { self.is_listed().await });
    }

    /// Marks the instance as used until the returned guard is dropped.
    fn used(self: &Arc<Self>) -> InstanceUse {
        self.calls.fetch_add(1, Ordering::AcqRel);
        InstanceUse(self.clone())
    }

    fn is_unused(&self) -> bool {
        self.calls.load(Ordering::Acquire) == 0 && self.used.lock().elapsed() >= UNUSED
    }

    async fn stop(&self) {
        self.server.stop().await;
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }

    /// Refuses a request of the server.
    async fn refuse(&self, generation: Generation, question: Option<RpcId>) {
        let reason = "the caller of this tool does not support requests of the server";
        let refusal = RpcMessage::error_response(question.as_ref(), code::METHOD_NOT_FOUND, reason, None);
        self.server.answer(generation, &refusal).await;
    }
}

/// Keeps an instance from being ended as unused, from the lookup of the tool to the end of the call.
struct InstanceUse(Arc<DirectInstance>);

impl Deref for InstanceUse {
    type Target = DirectInstance;

    fn deref(&self) -> &DirectInstance {
        &self.0
    }
}

impl Drop for InstanceUse {
    fn drop(&mut self) {
        *self.0.used.lock() = Instant::now();
        self.0.calls.fetch_sub(1, Ordering::AcqRel);
    }
}

impl DirectTool {
    /// Returns read-only tools of the same server.
    pub fn reads(&self) -> Arc<[Box<str>]> {
        self.0.as_ref().map(|line| line.server.catalog.reads()).unwrap_or_default()
    }
}

impl ToolHandler for DirectTool {
    fn run(&self, attempt: Attempt) -> impl Future<Output = ToolResult> + Send + 'static {
        let (using, sent_to) = (self.0.clone(), self.1.clone());
        async move {
            let Some(line) = using else {
                return Err(not_sent(
                    "the concurrency limit for callers of this server is reached; try again later",
                )
                .into());
            };
            // A call that is not sent yet is not sent after a cancellation.
            tokio::select! {
                // After any failure of the handshake, the call was not sent.
                ready = line.ensure_initialized() => ready.map_err(unsent)?,
                () = attempt.cancelled() => return Err(not_sent("the call was cancelled before the server was ready").into()),
            }
            let params = format!(
                r#"{{"name":{},"arguments":{},"_meta":{{"progressToken":0}}}}"#,
                JsonText::string(attempt.envelope.tool_name.as_str()).as_str(),
                attempt.params()
            );
            let request = RpcMessage::request(&RpcId::number(0), "tools/call", Some(&json(&params)));
            let pulse = attempt.clone();
            let on_notification = move |message: &RpcMessage| {
                if message.method() == Some("notifications/progress") {
                    pulse.progress();
                }
            };
            run(
                line.server.clone(),
                sent(&request, &attempt),
                Some(Arc::new(on_notification)),
                attempt,
                sent_to,
            )
            .await
        }
    }

    fn sees_end(&self) -> AttemptEndVisibility {
        self.0.as_ref().map_or(AttemptEndVisibility::Hidden, |line| line.server.end_visibility())
    }

    fn end(&self, settling: SettlingPolicy) -> impl Future<Output = ()> + Send + 'static {
        let (using, sent_to) = (self.0.clone(), self.1.clone());
        async move {
            match using {
                Some(line) => end(line.server.clone(), sent_to, settling).await,
                None => std::future::pending().await,
            }
        }
    }
}

/// Returns the fault of a failed handshake as one of a request that was not sent.
fn unsent(fault: AttemptFault) -> AttemptFault {
    if matches!(fault.source, FaultSource::Transport { written: false, .. }) {
        return fault;
    }
    AttemptFault { retry_after: fault.retry_after, ..not_sent(&fault.message) }
}

/// Handles events of a server without keeping it alive.
struct DirectEventHandler(Weak<DirectInstance>);

impl ServerOwner for DirectEventHandler {
    fn handle_event(&self, event: ServerEvent) -> BoxFuture<'_, ()> {
        async {
            let Some(line) = self.0.upgrade() else { return };
            match event {
                ServerEvent::Notification(notification)
                    if notification.method() == Some("notifications/tools/list_changed") =>
                {
                    line.has_others();
                }
                ServerEvent::Recovered(recovery) if recovery.tools_changed => line.has_others(),
                ServerEvent::Request(generation, question) => line.refuse(generation, question.id()).await,
                ServerEvent::Notification(_) | ServerEvent::Died(_) | ServerEvent::Recovered(_) => {}
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use steadfast_core::code::Code;
    use steadfast_core::envelope::IdempotencyKey;
    use steadfast_core::id::ToolName;
    use steadfast_core::policy::{PolicyProfile, ToolClass};
    use steadfast_executor::{Engine, RuntimeClock};

    use super::*;
    use crate::calls::envelope::envelope_of;
    use crate::client::identity::ClientIdentity;

    fn call_of(actor: &str) -> CallEnvelope {
        let connection = ClientIdentity { actor: ActorId::new(actor).unwrap(), tenant: None, session: None };
        envelope_of(&Namespace::new("bank").unwrap(), ToolName::new("pay").unwrap(), &connection)
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_instances_is_limited_and_idle_ones_are_replaced() {
        let direct = DirectServers::new([ConfiguredServer::nowhere(ServerSharing::PerSession { most: 1 })]);
        let find = async |actor: &str| direct.find(&call_of(actor)).await.unwrap().0;
        let anns = find("ann").await;
        assert!(anns.0.is_some() && find("bob").await.0.is_none());
        // The second call of the same caller finds the same instance.
        assert!(find("ann").await.0.is_some());
        drop(anns);
        assert!(find("bob").await.0.is_some());
        assert_eq!(direct.lines.lock().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_without_a_tool_list_is_called_and_waited_for_once() {
        let direct = DirectServers::new([ConfiguredServer::nowhere(ServerSharing::Shared)]);
        let (tool, info) = direct.find(&call_of("ann")).await.unwrap();
        assert!(tool.0.as_ref().is_some_and(|line| line.failed_lately()) && info.is_none());
        let began = Instant::now();
        assert!(direct.find(&call_of("ann")).await.is_some());
        assert_eq!(began.elapsed(), Duration::ZERO);
        let elsewhere = CallEnvelope { tool_namespace: Namespace::new("mail").unwrap(), ..call_of("ann") };
        assert!(direct.find(&elsewhere).await.is_none(), "there is no such server");
    }

    /// A server that accepts connections and never answers.
    fn silent() -> (Arc<DirectServers>, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (DirectServers::new([ConfiguredServer::at("bank", &address, ServerSharing::Shared)]), listener)
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_server_is_waited_for_once_per_interval() {
        let (direct, _listener) = silent();
        let waited = async || {
            let began = Instant::now();
            assert!(direct.find(&call_of("ann")).await.is_some());
            began.elapsed()
        };
        assert!(waited().await > Duration::ZERO);
        assert_eq!(waited().await, Duration::ZERO);
        tokio::time::advance(LIST_BACKOFF).await;
        assert!(waited().await > Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_cancelled_before_its_server_is_ready_ends_at_once() {
        let (direct, _listener) = silent();
        // The engine must not end it once it may have been sent: only the server can report that it was not.
        let policy = PolicyProfile::Standard.policy(ToolClass::Mutating);
        let engine = Engine::builder().clock(Arc::new(RuntimeClock::new())).policies(Arc::new(policy));
        let engine = engine.start().await;
        let mut call = call_of("ann");
        call.payload.idempotency_key = IdempotencyKey::new("k").ok();
        let (tool, _) = direct.find(&call).await.unwrap();
        let calling = engine.call(call, tool);
        let canceller = calling.canceller();
        let calling = tokio::spawn(calling);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(engine.in_flight_calls(), 1);
        let began = Instant::now();
        canceller.cancel();
        let called = calling.await.unwrap();
        assert_eq!(called.result.error.map(|error| error.code), Some(Code::Cancelled));
        while engine.in_flight_calls() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn the_least_recently_used_instance_is_replaced_first() {
        let direct = DirectServers::new([ConfiguredServer::nowhere(ServerSharing::PerSession { most: 2 })]);
        let find = async |actor: &str| direct.find(&call_of(actor)).await.unwrap().0;
        let anns = find("ann").await;
        for actor in ["bob", "ann"] {
            tokio::time::advance(Duration::from_secs(1)).await;
            drop(find(actor).await);
        }
        drop(anns);
        assert!(find("eve").await.0.is_some());
        let mut actors: Vec<_> =
            direct.lines.lock().keys().map(|(_, owner)| owner.actor.as_str().to_owned()).collect();
        actors.sort();
        assert_eq!(actors, ["ann", "eve"]);
    }

    #[tokio::test(start_paused = true)]
    async fn limits_are_separate_per_server_and_tenants_share_no_instance() {
        let sharing = ServerSharing::PerSession { most: 1 };
        let both = ["bank", "mail"].map(|name| ConfiguredServer::at(name, "127.0.0.1:9", sharing));
        let direct = DirectServers::new(both);
        let of_mail = CallEnvelope { tool_namespace: Namespace::new("mail").unwrap(), ..call_of("ann") };
        let anns = direct.find(&call_of("ann")).await.unwrap().0;
        assert!(anns.0.is_some());
        assert!(direct.find(&of_mail).await.unwrap().0.0.is_some(), "each has its own limit");
        let mut of_tenant = call_of("ann");
        of_tenant.target.tenant_id = Some(TenantId::new("acme").unwrap());
        assert!(direct.find(&of_tenant).await.unwrap().0.0.is_none(), "hers is not that of a namesake");

        let shared = DirectServers::new([ConfiguredServer::nowhere(ServerSharing::Shared)]);
        let mut used = Vec::new();
        for number in 0..=MOST_CALLERS {
            used.push(shared.find(&call_of(&format!("caller-{number}"))).await.unwrap().0.0.is_some_and(
                |line| {
                    // It stays in use until the end of the test.
                    std::mem::forget(line);
                    true
                },
            ));
        }
        assert_eq!(used.iter().filter(|used| **used).count(), MOST_CALLERS);
        assert_eq!(used.last(), Some(&false));
    }

    #[tokio::test(start_paused = true)]
    async fn an_unused_instance_is_ended_and_one_in_use_is_not() {
        let direct = DirectServers::new([ConfiguredServer::nowhere(ServerSharing::Shared)]);
        let tidying = tokio::spawn(direct.clone().tidy());
        let anns = direct.find(&call_of("ann")).await.unwrap().0;
        drop(direct.find(&call_of("bob")).await);
        let instances = || direct.lines.lock().len();
        tokio::time::sleep(UNUSED - Duration::from_secs(1)).await;
        assert_eq!(instances(), 2);
        tokio::time::sleep(CHECK_INTERVAL + CHECK_INTERVAL).await;
        assert_eq!(instances(), 1);
        drop(anns);
        tokio::time::sleep(UNUSED + CHECK_INTERVAL).await;
        assert_eq!(instances(), 0);
        tidying.abort();
    }
}
