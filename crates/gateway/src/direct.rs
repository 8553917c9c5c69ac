//! The tools of servers for callers that speak no MCP, such as those of the HTTP API: to the servers, we are the client.
//!
//! Every caller has servers of its own, as every MCP client has; they end when it has wanted nothing of them for a while.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use steadfast_core::classify::Fault;
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::{ActorId, Namespace, TenantId};
use steadfast_executor::{Answer, Attempt, Tool, ToolInfo};
use steadfast_mcp::http::LEGACY;
use steadfast_mcp::message::{Id, Message, code};
use steadfast_mcp::raw::{self, RawJson};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use crate::call::{run, sent};
use crate::configured::Configured;
use crate::pieces::json;
use crate::server::{FromServer, HANDSHAKE, Handshake, Life, Owner, Server, gone, initialized};

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
    /// Whether it may have other tools by now than it has listed.
    is_stale: AtomicBool,
    calls: AtomicUsize,
    used: Mutex<Instant>,
    kept: Mutex<Option<AbortHandle>>,
}

/// A tool of a server.
#[derive(Clone)]
pub struct DirectTool(Arc<Line>);

/// How long a call waits for what its server has to say of its tools before it goes on without.
const LISTED: Duration = Duration::from_secs(10);
/// The most pages of a list that are read.
const MOST_PAGES: usize = 64;
/// A server that nobody used for so long is ended.
const UNUSED: Duration = Duration::from_secs(5 * 60);
/// How often those are looked for.
const LOOK: Duration = Duration::from_secs(60);

impl Direct {
    /// The tools of these servers.
    pub fn new(servers: impl IntoIterator<Item = Configured>) -> Arc<Self> {
        let servers = servers.into_iter().map(|server| (server.name.clone(), server)).collect();
        Arc::new(Self { servers, lines: Mutex::default() })
    }

    /// The tool that a call wants, and what its server says of it. None if there is no such server, or if it is known not
    /// to have such a tool.
    pub async fn find(&self, envelope: &CallEnvelope) -> Option<(DirectTool, Option<Arc<ToolInfo>>)> {
        let line = self.line(envelope)?;
        let using = line.used();
        // One that is not there has its call all the same: how often it is tried and what is said then is for the engine.
        let listed = timeout(LISTED, line.ready()).await;
        drop(using);
        let tool = line.server.catalog.tool(envelope.tool_name.as_str());
        if tool.is_none() && matches!(listed, Ok(Ok(()))) {
            return None;
        }
        Some((DirectTool(line), tool))
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

    fn line(&self, envelope: &CallEnvelope) -> Option<Arc<Line>> {
        let configured = self.servers.get(&envelope.tool_namespace)?;
        let target = &envelope.target;
        let whose = Whose { tenant: target.tenant_id.clone(), actor: target.actor_id.clone() };
        let mut lines = self.lines.lock();
        let line = lines.entry((configured.name.clone(), whose)).or_insert_with(|| Line::new(configured));
        // Known before anybody can look for what is not used.
        *line.used.lock() = Instant::now();
        Some(line.clone())
    }
}

impl Line {
    fn new(configured: &Configured) -> Arc<Self> {
        let (server, keeping) = configured.make(Handshake::default());
        let line = Arc::new(Self {
            server: server.clone(),
            greeted: tokio::sync::Mutex::new(false),
            is_stale: AtomicBool::new(true),
            calls: AtomicUsize::new(0),
            used: Mutex::new(Instant::now()),
            kept: Mutex::default(),
        });
        let kept = tokio::spawn(server.keep(keeping, Arc::new(Hearing(Arc::downgrade(&line)))));
        *line.kept.lock() = Some(kept.abort_handle());
        line
    }

    /// Waits until it knows us, and we know its tools.
    async fn ready(&self) -> Result<(), Fault> {
        let mut greeted = self.greeted.lock().await;
        if !*greeted {
            match timeout(HANDSHAKE, self.greet()).await {
                Ok(done) => done?,
                Err(_) => return Err(gone("the server did not answer the handshake in time")),
            }
            *greeted = true;
        }
        if self.is_stale.swap(false, Ordering::AcqRel) {
            let listed = self.list().await;
            if listed.is_err() {
                self.is_stale.store(true, Ordering::Release);
            }
            listed?;
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
        let mut cursor: Option<RawJson> = None;
        for _ in 0..MOST_PAGES {
            let params = cursor.as_ref().map(|cursor| json(&format!(r#"{{"cursor":{}}}"#, cursor.as_str())));
            let request = Message::request(&Id::number(0), "tools/list", params.as_ref());
            let answer = self.server.send(&request, None).await?.answer().await?;
            self.server.catalog.learn(&request, &answer);
            match answer.result().and_then(|result| raw::get(result, "nextCursor")) {
                Some(next) if next.starts_with('"') => cursor = Some(json(next)),
                Some(_) | None => break,
            }
        }
        Ok(())
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
}

/// Keeps a server from being ended for want of use.
struct Using(Arc<Line>);

impl Drop for Using {
    fn drop(&mut self) {
        *self.0.used.lock() = Instant::now();
        self.0.calls.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Tool for DirectTool {
    fn run(&self, attempt: Attempt) -> impl Future<Output = Answer> + Send + 'static {
        let line = self.0.clone();
        async move {
            let _using = line.used();
            line.ready().await?;
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
            run(line.server.clone(), sent(&request, &attempt), Some(Arc::new(hear)), attempt).await
        }
    }
}

/// Hears a server without keeping it.
struct Hearing(Weak<Line>);

impl Owner for Hearing {
    fn heard(&self, event: FromServer) -> BoxFuture<'_, ()> {
        async {
            let Some(line) = self.0.upgrade() else { return };
            match event {
                FromServer::Told(told) if told.method() == Some("notifications/tools/list_changed") => {
                    line.is_stale.store(true, Ordering::Release);
                }
                FromServer::Recovered(recovery) if recovery.tools_changed => {
                    line.is_stale.store(true, Ordering::Release);
                }
                FromServer::Asked(life, question) => line.refuse(life, question.id()).await,
                FromServer::Told(_) | FromServer::Died(_) | FromServer::Recovered(_) => {}
            }
        }
        .boxed()
    }
}

impl Line {
    /// We said that we can do nothing for a server.
    async fn refuse(&self, life: Life, question: Option<Id>) {
        let why = "the caller of this tool is a program that cannot be asked anything";
        let refusal = Message::error_response(question.as_ref(), code::METHOD_NOT_FOUND, why, None);
        self.server.answer(life, &refusal).await;
    }
}
