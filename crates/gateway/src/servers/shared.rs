//! A server that several sessions share.
//!
//! It gets one handshake, from the first session, and all sessions receive its notifications. A request of the server
//! belongs to some call. If that call is not certain, the request is refused, so that no client gets a request that is
//! meant for another.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use steadfast_core::classify::AttemptFault;
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::{RpcId, RpcMessage, code};
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::servers::upstream::{
    Generation, HANDSHAKE, ServerEvent, ServerOwner, ServerProcesses, UpstreamServer, not_sent,
};

/// A session that uses a shared server.
pub(crate) trait SharedServerUser: Send + Sync + 'static {
    /// Handles an event of the server at this index among those of the session.
    fn take_from_server(&self, at: usize, event: ServerEvent) -> BoxFuture<'_, ()>;

    /// Returns the number of calls of the session in flight at the server at this index.
    fn calls_at(&self, at: usize) -> usize;
}

/// A server that several sessions share.
pub(crate) struct SharedServer {
    pub(crate) server: Arc<UpstreamServer>,
    /// The sessions that use it, with its index among the servers of each.
    users: Mutex<Vec<(Weak<dyn SharedServerUser>, usize)>>,
    /// The result of the first `initialize`.
    introduced: OnceCell<JsonText>,
    /// True after it got `initialized`.
    is_initialized: AtomicBool,
    /// The number of sessions that watch each resource.
    watched: Mutex<BTreeMap<String, usize>>,
    /// Time at which the last session left.
    last_used_at: Mutex<Instant>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// The maximum number of resources that the sessions watch together.
const MOST_WATCHED: usize = 4096;

impl SharedServer {
    pub(crate) fn new(server: Arc<UpstreamServer>, processes: ServerProcesses) -> Arc<Self> {
        let shared = Arc::new(Self {
            server: server.clone(),
            users: Mutex::default(),
            introduced: OnceCell::new(),
            is_initialized: AtomicBool::new(false),
            watched: Mutex::default(),
            last_used_at: Mutex::new(Instant::now()),
            task: Mutex::default(),
        });
        let task =
            tokio::spawn(server.keep(processes, Arc::new(SharedEventHandler(Arc::downgrade(&shared)))));
        *shared.task.lock() = Some(task);
        shared
    }

    /// Adds a session that uses it, as the server at this index.
    pub(crate) fn join<U: SharedServerUser>(&self, session: &Arc<U>, at: usize) {
        let mut users = self.users.lock();
        users.retain(|(user, _)| user.strong_count() > 0);
        let session: Weak<U> = Arc::downgrade(session);
        let session: Weak<dyn SharedServerUser> = session;
        users.push((session, at));
    }

    /// Marks the server as used before a session joins.
    pub(crate) fn mark_used(&self) {
        *self.last_used_at.lock() = Instant::now();
    }

    /// Removes a session.
    pub(crate) fn leave(&self, session: &impl SharedServerUser) {
        let is_other =
            |(user, _): &(Weak<dyn SharedServerUser>, usize)| !std::ptr::addr_eq(user.as_ptr(), session);
        self.users.lock().retain(is_other);
        *self.last_used_at.lock() = Instant::now();
    }

    /// Returns the result of the handshake. The first session runs it; the others share the result, because their
    /// introductions are equal.
    pub(crate) async fn introduce(&self, initialize: &RpcMessage) -> Result<&JsonText, AttemptFault> {
        self.introduced.get_or_try_init(|| self.ask_first(initialize)).await
    }

    async fn ask_first(&self, initialize: &RpcMessage) -> Result<JsonText, AttemptFault> {
        let answered = async { self.server.send_first(initialize).await?.answer().await };
        let answer = match timeout(HANDSHAKE, answered).await {
            Ok(answer) => answer?,
            Err(_) => return Err(not_sent("the server did not answer the handshake in time")),
        };
        let Some(result) = answer.result_json() else {
            return Err(not_sent(&answer.error_text().unwrap_or_default()));
        };
        self.server.handshake.answered(initialize, &answer);
        self.server.mark_ready().await;
        Ok(result)
    }

    /// Returns the time since which no session uses it, or `None` if it is used.
    pub(crate) fn is_idle_since(&self) -> Option<Instant> {
        let is_used = self.users.lock().iter().any(|(user, _)| user.strong_count() > 0);
        (!is_used).then(|| *self.last_used_at.lock())
    }

    /// Returns true if the server needs this notification.
    pub(crate) fn is_needed(&self, notification: &RpcMessage) -> bool {
        match notification.method() {
            Some("notifications/initialized") => !self.is_initialized.swap(true, Ordering::Relaxed),
            _ => true,
        }
    }

    /// Adds a session that watches this resource. Returns false if the limit is reached.
    pub(crate) fn watch(&self, uri: &str) -> bool {
        let mut watched = self.watched.lock();
        if watched.len() >= MOST_WATCHED && !watched.contains_key(uri) {
            return false;
        }
        *watched.entry(uri.to_owned()).or_default() += 1;
        true
    }

    /// Returns true if a session watches this resource.
    pub(crate) fn is_watched(&self, uri: &str) -> bool {
        self.watched.lock().contains_key(uri)
    }

    /// Removes a session that watches this resource. Returns true if no other session does.
    pub(crate) fn unwatch(&self, uri: &str) -> bool {
        let mut watched = self.watched.lock();
        match watched.get_mut(uri) {
            Some(count) if *count > 1 => {
                *count -= 1;
                false
            }
            Some(_) | None => {
                watched.remove(uri);
                true
            }
        }
    }

    /// Stops the server.
    pub(crate) async fn stop(&self) {
        self.server.stop().await;
        let task = self.task.lock().take();
        if let Some(task) = task {
            task.abort();
        }
    }

    fn users(&self) -> Vec<(Arc<dyn SharedServerUser>, usize)> {
        let users = self.users.lock();
        users.iter().filter_map(|(user, at)| Some((user.upgrade()?, *at))).collect()
    }

    async fn dispatch_event(&self, event: ServerEvent) {
        let users = self.users();
        match event {
            ServerEvent::Request(generation, question) => match request_owner(&users) {
                Some((user, at)) => {
                    user.take_from_server(*at, ServerEvent::Request(generation, question)).await
                }
                None => self.refuse(generation, question.id()).await,
            },
            event @ (ServerEvent::Notification(_) | ServerEvent::Died(_) | ServerEvent::Recovered(_)) => {
                for (user, at) in users {
                    user.take_from_server(at, event.clone()).await;
                }
            }
        }
    }

    async fn refuse(&self, generation: Generation, question: Option<RpcId>) {
        let reason = "several clients share this server, and the call of this request cannot be determined";
        let refusal = RpcMessage::error_response(question.as_ref(), code::INVALID_REQUEST, reason, None);
        self.server.answer(generation, &refusal).await;
    }
}

/// Returns the session that a server request belongs to: the only one, or the only one with a call in flight, if it has
/// exactly one.
fn request_owner(
    users: &[(Arc<dyn SharedServerUser>, usize)],
) -> Option<&(Arc<dyn SharedServerUser>, usize)> {
    if let [one] = users {
        return Some(one);
    }
    let mut busy = users.iter().filter(|(user, at)| user.calls_at(*at) > 0);
    let one = busy.next().filter(|(user, at)| user.calls_at(*at) == 1)?;
    busy.next().is_none().then_some(one)
}

/// Handles events of the server, without keeping it alive.
struct SharedEventHandler(Weak<SharedServer>);

impl ServerOwner for SharedEventHandler {
    fn handle_event(&self, event: ServerEvent) -> BoxFuture<'_, ()> {
        async {
            if let Some(shared) = self.0.upgrade() {
                shared.dispatch_event(event).await;
            }
        }
        .boxed()
    }
}
