//! The tools of servers for callers that speak no MCP, such as those of the HTTP API: to the servers, we are the client.
//!
//! Every caller has servers of its own, as every MCP client has; they end when it has wanted nothing of them for a while, or
//! when another caller needs the room.

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use steadfast_core::call::AttemptEnd;
use steadfast_core::classify::{Fault, Source};
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::{ActorId, Namespace, TenantId};
use steadfast_core::policy::SettlingPolicy;
use steadfast_executor::{Answer, Attempt, Offered, Tool, ToolInfo};
use steadfast_mcp::http::LEGACY;
use steadfast_mcp::message::{Id, Message, code};
use steadfast_mcp::raw::RawJson;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use crate::call::{SentTo, end, run, sent};
use crate::configured::{Configured, Sharing};
use crate::pieces::json;
use crate::server::{
    FromServer, HANDSHAKE, Handshake, LATELY, LISTED, Life, Owner, Server, gone, initialized,
};

/// The servers of a configuration, for callers that speak no MCP.
pub struct Direct {
    servers: BTreeMap<Namespace, Configured>,
    lines: Mutex<HashMap<(Namespace, Whose), Arc<Line>>>,
}

/// Whose servers they are. Nobody shares one with another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Whose {
    tenant: Option<TenantId>,
    actor: ActorId,
}

/// A server of one caller.
struct Line {
    server: Arc<Server>,
    /// Whether it was greeted. Held while it is, so that it is greeted once.
    greeted: tokio::sync::Mutex<bool>,
    /// How often its tools may have become others than it had listed.
    changes: AtomicU64,
    /// At which of those changes they were listed last. Held while they are.
    listed: tokio::sync::Mutex<Option<u64>>,
    /// When it last failed to say what it has.
    failed: Mutex<Option<Instant>>,
    calls: AtomicUsize,
    used: Mutex<Instant>,
    kept: Mutex<Option<AbortHandle>>,
}

/// A tool of a server; of none where there is no room for one more.
#[derive(Clone)]
pub struct DirectTool(Option<Arc<Using>>, SentTo);

/// The most callers that have a process of a server at a time where the configuration does not say how many.
const MOST_CALLERS: usize = 64;
/// A server that nobody used for so long is ended.
const UNUSED: Duration = Duration::from_secs(5 * 60);
/// How often those are looked for.
const LOOK: Duration = Duration::from_secs(60);

impl Direct {
    /// The tools of these servers.
    pub fn new(servers: impl IntoIterator<Item = Configured>) -> Arc<Self> {
        let servers = servers.into_iter().map(|server| (server.name.configured(), server)).collect();
        Arc::new(Self { servers, lines: Mutex::default() })
    }

    /// Whether there is a server of this name.
    pub fn has(&self, server: &Namespace) -> bool {
        self.servers.contains_key(&server.configured())
    }

    /// The name that the tools of a server have.
    pub fn name(&self, server: &Namespace) -> Option<Namespace> {
        self.servers.get(&server.configured()).map(|configured| configured.name.clone())
    }

    /// The tool that a call wants, and what its server says of it. None if there is no such server, or if it is known not
    /// to have such a tool.
    pub async fn find(&self, envelope: &CallEnvelope) -> Option<(DirectTool, Option<Arc<ToolInfo>>)> {
        let (line, in_the_way) = self.line(envelope)?;
        if let Some(in_the_way) = in_the_way {
            in_the_way.stop().await;
        }
        let Some(line) = line else { return Some((DirectTool(None, SentTo::default()), None)) };
        let info = || line.server.catalog.tool(envelope.tool_name.as_str());
        // A call that is not to run at all must not wait for its server: what is known already is enough, and one that did not
        // say what it has a moment ago is not waited for again.
        let is_listed = match info() {
            None if !line.failed_lately() => line.is_listed().await,
            Some(_) | None => false,
        };
        match info() {
            None if is_listed => None,
            // One that is not there has its call all the same: how often it is tried and what is said then is for the engine.
            info => Some((DirectTool(Some(Arc::new(line)), SentTo::default()), info)),
        }
    }

    /// All tools of these servers that are known so far.
    pub fn tools(&self) -> Vec<Offered> {
        self.servers.values().flat_map(Configured::tools).collect()
    }

    /// Ends servers that are not used any more, until it is dropped.
    pub async fn tidy(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let unused: Vec<_> = {
                let mut lines = self.lines.lock();
                lines.extract_if(|_, line| line.is_unused()).map(|(_, line)| line).collect()
            };
            join_all(unused.iter().map(|line| line.stop())).await;
        }
    }

    /// Ends all.
    pub async fn close(&self) {
        let all: Vec<_> = self.lines.lock().drain().map(|(_, line)| line).collect();
        join_all(all.iter().map(|line| line.stop())).await;
    }

    /// The line of the caller to the server that it wants, where there is such a server. A new one may take the place of one
    /// that is not in use and is to be stopped then; where all are, there is none.
    fn line(&self, envelope: &CallEnvelope) -> Option<(Option<Using>, Option<Arc<Line>>)> {
        let configured = self.servers.get(&envelope.tool_namespace.configured())?;
        let target = &envelope.target;
        let whose = Whose { tenant: target.tenant_id.clone(), actor: target.actor_id.clone() };
        let key = (configured.name.clone(), whose);
        let mut lines = self.lines.lock();
        if let Some(line) = lines.get(&key) {
            return Some((Some(line.used()), None));
        }
        let most = match configured.sharing {
            Sharing::Shared => MOST_CALLERS,
            Sharing::PerSession { most } => most,
        };
        let of_server = lines.iter().filter(|((server, _), _)| *server == configured.name);
        let mut in_the_way = None;
        if of_server.clone().count() >= most {
            let idle = of_server.filter(|(_, line)| line.calls.load(Ordering::Acquire) == 0);
            let Some(oldest) = idle.min_by_key(|(_, line)| *line.used.lock()).map(|(key, _)| key.clone())
            else {
                return Some((None, None));
            };
            in_the_way = lines.remove(&oldest);
        }
        let line = Line::new(configured);
        let using = line.used();
        lines.insert(key, line);
        Some((Some(using), in_the_way))
    }
}

impl Line {
    fn new(configured: &Configured) -> Arc<Self> {
        let (server, keeping) = configured.make(Handshake::default());
        let line = Arc::new(Self {
            server: server.clone(),
            greeted: tokio::sync::Mutex::new(false),
            changes: AtomicU64::new(0),
            listed: tokio::sync::Mutex::new(None),
            failed: Mutex::default(),
            calls: AtomicUsize::new(0),
            used: Mutex::new(Instant::now()),
            kept: Mutex::default(),
        });
        let kept = tokio::spawn(server.keep(keeping, Arc::new(Hearing(Arc::downgrade(&line)))));
        *line.kept.lock() = Some(kept.abort_handle());
        line
    }

    /// Waits a while for what it has to say of its tools. Says whether it has.
    async fn is_listed(&self) -> bool {
        let is_listed = matches!(timeout(LISTED, self.ready()).await, Ok(Ok(())));
        *self.failed.lock() = (!is_listed).then(Instant::now);
        is_listed
    }

    fn failed_lately(&self) -> bool {
        self.failed.lock().is_some_and(|failed| failed.elapsed() < LATELY)
    }

    /// Waits until it knows us, and we know its tools.
    async fn ready(&self) -> Result<(), Fault> {
        self.greeted().await?;
        let mut listed = self.listed.lock().await;
        let changes = self.changes.load(Ordering::Acquire);
        if *listed != Some(changes) {
            self.list().await?;
            // Whoever gives up before this leaves the list to the next.
            *listed = Some(changes);
        }
        Ok(())
    }

    /// Waits until it knows us.
    async fn greeted(&self) -> Result<(), Fault> {
        let mut greeted = self.greeted.lock().await;
        if !*greeted {
            match timeout(HANDSHAKE, self.greet()).await {
                Ok(done) => done?,
                Err(_) => return Err(gone("the server did not answer the handshake in time")),
            }
            *greeted = true;
        }
        Ok(())
    }

    async fn greet(&self) -> Result<(), Fault> {
        let params = format!(
            r#"{{"protocolVersion":"{}","capabilities":{{}},"clientInfo":{{"name":"steadfast","version":"{}"}}}}"#,
            LEGACY[0],
            env!("CARGO_PKG_VERSION")
        );
        let request = Message::request(&Id::number(0), "initialize", Some(&json(&params)));
        let answer = self.server.send_first(&request).await?.answer().await?;
        if answer.result().is_none() {
            return Err(gone(&answer.error_text().unwrap_or_default()));
        }
        self.server.handshake.answered(&request, &answer);
        self.server.is_ready().await;
        self.server.tell(&initialized()).await;
        Ok(())
    }

    async fn list(&self) -> Result<(), Fault> {
        // By this it is known whether a server that was started again still has the same.
        let known = |request: &Message, answer: &Message| {
            self.server.handshake.answered(request, answer);
        };
        self.server.list(None, known).await
    }

    /// It may have other tools by now. They are asked for beside everything else: it is not heard before this has come back.
    fn has_others(self: Arc<Self>) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        tokio::spawn(async move { self.is_listed().await });
    }

    /// It is in use as long as this is kept.
    fn used(self: &Arc<Self>) -> Using {
        self.calls.fetch_add(1, Ordering::AcqRel);
        Using(self.clone())
    }

    fn is_unused(&self) -> bool {
        self.calls.load(Ordering::Acquire) == 0 && self.used.lock().elapsed() >= UNUSED
    }

    async fn stop(&self) {
        self.server.stop().await;
        if let Some(kept) = self.kept.lock().take() {
            kept.abort();
        }
    }

    /// We said that we can do nothing for a server.
    async fn refuse(&self, life: Life, question: Option<Id>) {
        let why = "the caller of this tool is a program that cannot be asked anything";
        let refusal = Message::error_response(question.as_ref(), code::METHOD_NOT_FOUND, why, None);
        self.server.answer(life, &refusal).await;
    }
}

/// Keeps a server from being ended for want of use, from when a call looks for it to the end of the call.
struct Using(Arc<Line>);

impl Deref for Using {
    type Target = Line;

    fn deref(&self) -> &Line {
        &self.0
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        *self.0.used.lock() = Instant::now();
        self.0.calls.fetch_sub(1, Ordering::AcqRel);
    }
}

impl DirectTool {
    /// Read-only tools of the same server.
    pub fn reads(&self) -> Arc<[Box<str>]> {
        self.0.as_ref().map(|line| line.server.catalog.reads()).unwrap_or_default()
    }
}

impl Tool for DirectTool {
    fn run(&self, attempt: Attempt) -> impl Future<Output = Answer> + Send + 'static {
        let (using, sent_to) = (self.0.clone(), self.1.clone());
        async move {
            let Some(line) = using else {
                return Err(gone("as many callers as may use this server at a time; try again later").into());
            };
            // What is not sent yet is not sent any more when nobody wants it.
            tokio::select! {
                // Whatever went wrong with the handshake, the call was not sent.
                ready = line.greeted() => ready.map_err(unsent)?,
                () = attempt.cancelled() => return Err(gone("it was withdrawn before the server was ready").into()),
            }
            let params = format!(
                r#"{{"name":{},"arguments":{},"_meta":{{"progressToken":0}}}}"#,
                RawJson::string(attempt.envelope.tool_name.as_str()).as_str(),
                attempt.params()
            );
            let request = Message::request(&Id::number(0), "tools/call", Some(&json(&params)));
            let pulse = attempt.clone();
            let hear = move |message: &Message| {
                if message.method() == Some("notifications/progress") {
                    pulse.progress();
                }
            };
            run(line.server.clone(), sent(&request, &attempt), Some(Arc::new(hear)), attempt, sent_to).await
        }
    }

    fn sees_end(&self) -> AttemptEnd {
        self.0.as_ref().map_or(AttemptEnd::Unseen, |line| line.server.sees_end())
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

/// Why a request was not sent: what went wrong before it could be.
fn unsent(fault: Fault) -> Fault {
    if matches!(fault.source, Source::Transport { written: false, .. }) {
        return fault;
    }
    Fault { retry_after: fault.retry_after, ..gone(&fault.message) }
}

/// Hears a server without keeping it.
struct Hearing(Weak<Line>);

impl Owner for Hearing {
    fn heard(&self, event: FromServer) -> BoxFuture<'_, ()> {
        async {
            let Some(line) = self.0.upgrade() else { return };
            match event {
                FromServer::Told(told) if told.method() == Some("notifications/tools/list_changed") => {
                    line.has_others();
                }
                FromServer::Recovered(recovery) if recovery.tools_changed => line.has_others(),
                FromServer::Asked(life, question) => line.refuse(life, question.id()).await,
                FromServer::Told(_) | FromServer::Died(_) | FromServer::Recovered(_) => {}
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
    use steadfast_core::policy::{Profile, ToolClass};
    use steadfast_executor::{Engine, RuntimeClock};

    use super::*;
    use crate::call::envelope_of;
    use crate::who::Connection;

    fn call_of(actor: &str) -> CallEnvelope {
        let connection = Connection { actor: ActorId::new(actor).unwrap(), tenant: None, session: None };
        envelope_of(&Namespace::new("bank").unwrap(), ToolName::new("pay").unwrap(), &connection)
    }

    #[tokio::test(start_paused = true)]
    async fn only_so_many_callers_have_a_server_and_whoever_does_not_use_it_makes_room() {
        let direct = Direct::new([Configured::nowhere(Sharing::PerSession { most: 1 })]);
        let find = async |actor: &str| direct.find(&call_of(actor)).await.unwrap().0;
        let anns = find("ann").await;
        assert!(anns.0.is_some() && find("bob").await.0.is_none());
        // Her own call finds her own.
        assert!(find("ann").await.0.is_some());
        drop(anns);
        assert!(find("bob").await.0.is_some());
        assert_eq!(direct.lines.lock().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_say_what_it_has_is_called_all_the_same_and_waited_for_once() {
        let direct = Direct::new([Configured::nowhere(Sharing::Shared)]);
        let (tool, info) = direct.find(&call_of("ann")).await.unwrap();
        assert!(tool.0.as_ref().is_some_and(|line| line.failed_lately()) && info.is_none());
        let began = Instant::now();
        assert!(direct.find(&call_of("ann")).await.is_some());
        assert_eq!(began.elapsed(), Duration::ZERO);
        let elsewhere = CallEnvelope { tool_namespace: Namespace::new("mail").unwrap(), ..call_of("ann") };
        assert!(direct.find(&elsewhere).await.is_none(), "there is no such server");
    }

    /// A server that takes connections and never says a word.
    fn silent() -> (Arc<Direct>, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (Direct::new([Configured::at("bank", &address, Sharing::Shared)]), listener)
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_says_nothing_is_waited_for_once_in_a_while() {
        let (direct, _listener) = silent();
        let waited = async || {
            let began = Instant::now();
            assert!(direct.find(&call_of("ann")).await.is_some());
            began.elapsed()
        };
        assert!(waited().await > Duration::ZERO);
        assert_eq!(waited().await, Duration::ZERO);
        tokio::time::advance(LATELY).await;
        assert!(waited().await > Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_withdrawn_before_its_server_was_ready_is_not_waited_for() {
        let (direct, _listener) = silent();
        // It must not be ended on our side once it may have been sent: only the server can say that it was not.
        let policy = Profile::Standard.policy(ToolClass::Mutating);
        let engine = Engine::builder().clock(Arc::new(RuntimeClock::new())).policies(Arc::new(policy));
        let engine = engine.start().await;
        let mut call = call_of("ann");
        call.payload.idempotency_key = IdempotencyKey::new("k").ok();
        let (tool, _) = direct.find(&call).await.unwrap();
        let calling = engine.call(call, tool);
        let canceller = calling.canceller();
        let calling = tokio::spawn(calling);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(engine.open_calls(), 1);
        let began = Instant::now();
        canceller.cancel();
        let called = calling.await.unwrap();
        assert_eq!(called.result.error.map(|error| error.code), Some(Code::Cancelled));
        while engine.open_calls() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_used_its_server_last_keeps_it_longest() {
        let direct = Direct::new([Configured::nowhere(Sharing::PerSession { most: 2 })]);
        let find = async |actor: &str| direct.find(&call_of(actor)).await.unwrap().0;
        let anns = find("ann").await;
        for actor in ["bob", "ann"] {
            tokio::time::advance(Duration::from_secs(1)).await;
            drop(find(actor).await);
        }
        drop(anns);
        assert!(find("eve").await.0.is_some());
        let mut kept: Vec<_> =
            direct.lines.lock().keys().map(|(_, whose)| whose.actor.as_str().to_owned()).collect();
        kept.sort();
        assert_eq!(kept, ["ann", "eve"]);
    }

    #[tokio::test(start_paused = true)]
    async fn servers_and_tenants_are_apart_and_nobody_has_more_than_there_are() {
        let sharing = Sharing::PerSession { most: 1 };
        let both = ["bank", "mail"].map(|name| Configured::at(name, "127.0.0.1:9", sharing));
        let direct = Direct::new(both);
        let of_mail = CallEnvelope { tool_namespace: Namespace::new("mail").unwrap(), ..call_of("ann") };
        let anns = direct.find(&call_of("ann")).await.unwrap().0;
        assert!(anns.0.is_some());
        assert!(direct.find(&of_mail).await.unwrap().0.0.is_some(), "each has its own limit");
        let mut of_tenant = call_of("ann");
        of_tenant.target.tenant_id = Some(TenantId::new("acme").unwrap());
        assert!(direct.find(&of_tenant).await.unwrap().0.0.is_none(), "hers is not that of a namesake");

        let shared = Direct::new([Configured::nowhere(Sharing::Shared)]);
        let mut used = Vec::new();
        for number in 0..=MOST_CALLERS {
            used.push(shared.find(&call_of(&format!("caller-{number}"))).await.unwrap().0.0.is_some_and(
                |line| {
                    // It is in use for as long as the test lasts.
                    std::mem::forget(line);
                    true
                },
            ));
        }
        assert_eq!(used.iter().filter(|used| **used).count(), MOST_CALLERS);
        assert_eq!(used.last(), Some(&false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_nobody_used_for_a_while_is_ended_and_one_in_use_is_not() {
        let direct = Direct::new([Configured::nowhere(Sharing::Shared)]);
        let tidying = tokio::spawn(direct.clone().tidy());
        let anns = direct.find(&call_of("ann")).await.unwrap().0;
        drop(direct.find(&call_of("bob")).await);
        let kept = || direct.lines.lock().len();
        tokio::time::sleep(UNUSED - Duration::from_secs(1)).await;
        assert_eq!(kept(), 2);
        tokio::time::sleep(LOOK + LOOK).await;
        assert_eq!(kept(), 1);
        drop(anns);
        tokio::time::sleep(UNUSED + LOOK).await;
        assert_eq!(kept(), 0);
        tidying.abort();
    }
}
