//! The servers behind one client, and the routing of its messages to them.
//!
//! A single server gets everything unchanged. With several, the prefix of a tool or prompt names its server, and a
//! resource or task belongs to the server that listed it. Lists and handshakes are merged. For anything else the
//! servers are asked one after the other, until one knows it.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use steadfast_mcp::json_text;
use steadfast_mcp::message::RpcMessage;

use crate::json_parts::{json, with_text};
use crate::merge::{self, MergedListKind};
use crate::outbox::Outbox;
use crate::server::UpstreamServer;
use crate::shared_server::SharedServer;

/// The servers behind one client.
pub(crate) struct SessionServers {
    all: Box<[BackingServer]>,
    /// The servers of resources and tasks, by name.
    known: Mutex<HashMap<String, usize>>,
}

/// One of the servers.
pub(crate) struct BackingServer {
    pub(crate) server: Arc<UpstreamServer>,
    /// The prefix of the names of its tools and prompts.
    pub(crate) prefix: Option<Box<str>>,
    /// The shared instance, if it is shared.
    pub(crate) shared: Option<Arc<SharedServer>>,
    /// The messages of its client that need no response.
    pub(crate) outbox: Arc<Outbox>,
    /// True if a list was returned without its items.
    missed: AtomicBool,
    /// The lists that arrived too late for a response, the last of each kind.
    late: Mutex<BTreeMap<&'static str, RpcMessage>>,
}

/// Returns read-only tools of a server, by the names that clients use.
pub(crate) fn reads_of(server: &UpstreamServer, prefix: Option<&str>) -> Arc<[Box<str>]> {
    let reads = server.catalog.reads();
    match prefix {
        None => reads,
        Some(prefix) => reads.iter().map(|name| merge::prefixed(prefix, name).into()).collect(),
    }
}

/// The destination of a request.
#[derive(Debug)]
pub(crate) enum Route {
    /// One server, with the request as that server knows it.
    To(usize, RpcMessage),
    /// All servers, whose answers are merged.
    All(MergeMethod),
    /// One server after the other, until one knows the subject of the request.
    FirstToKnow,
    /// No server has it.
    Unknown(String),
}

/// The way in which answers are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MergeMethod {
    /// Handshakes are merged.
    Handshake,
    /// Lists are merged.
    List(MergedListKind),
    /// Any successful answer is used.
    Any,
    /// There is no answer while the subscription lasts.
    Listening,
}

/// The maximum number of names that are stored. For others the servers are asked.
const MOST_KNOWN: usize = 10_000;

impl BackingServer {
    pub(crate) fn new(
        server: Arc<UpstreamServer>,
        prefix: Option<Box<str>>,
        shared: Option<Arc<SharedServer>>,
    ) -> Self {
        let (outbox, missed, late) = (Arc::default(), AtomicBool::new(false), Mutex::default());
        Self { server, prefix, shared, outbox, missed, late }
    }

    /// Returns its read-only tools, by the names that clients use.
    pub(crate) fn reads(&self) -> Arc<[Box<str>]> {
        reads_of(&self.server, self.prefix.as_deref())
    }

    /// Stores a list that arrived too late. Returns true if it differs from the last one.
    pub(crate) fn came_late(&self, list: MergedListKind, answer: RpcMessage) -> bool {
        let mut late = self.late.lock();
        let is_new = late.get(list.member).is_none_or(|before| before.result() != answer.result());
        late.insert(list.member, answer);
        is_new
    }

    /// Returns the last list that arrived too late.
    pub(crate) fn last_late(&self, list: MergedListKind) -> Option<RpcMessage> {
        self.late.lock().get(list.member).cloned()
    }

    /// Discards a late list after one that arrived in time.
    pub(crate) fn came_in_time(&self, list: MergedListKind) {
        self.late.lock().remove(list.member);
    }

    /// Records that a list was returned without its items.
    pub(crate) fn is_missed(&self) {
        self.missed.store(true, Ordering::Relaxed);
    }

    /// Returns true if a list was returned without its items, and resets that.
    pub(crate) fn was_missed(&self) -> bool {
        self.missed.swap(false, Ordering::Relaxed)
    }
}

impl SessionServers {
    pub(crate) fn new(all: Vec<BackingServer>) -> Self {
        Self { all: all.into_boxed_slice(), known: Mutex::default() }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &BackingServer> {
        self.all.iter()
    }

    pub(crate) fn get(&self, at: usize) -> Option<&BackingServer> {
        self.all.get(at)
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns true if there is a single server without prefix.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(&*self.all, [one] if one.prefix.is_none())
    }

    /// Returns the server of a tool or prompt, and its name there.
    pub(crate) fn named<'n>(&self, name: &'n str) -> Option<(usize, &'n str)> {
        let prefixed = self.all.iter().enumerate().filter_map(|(at, one)| {
            let plain = merge::stripped(one.prefix.as_deref()?, name)?;
            Some((at, plain))
        });
        // The name of a server can begin with that of another: the longest prefix wins.
        prefixed.min_by_key(|(_, plain)| plain.len()).or_else(|| {
            let mut unprefixed = self.all.iter().enumerate().filter(|(_, one)| one.prefix.is_none());
            let first = unprefixed.clone().next();
            let lists = |(_, one): &(usize, &BackingServer)| one.server.catalog.tool(name).is_some();
            unprefixed.find(lists).or(first).map(|(at, _)| (at, name))
        })
    }

    /// Returns the destination of a request that is not a call.
    pub(crate) fn route(&self, request: &RpcMessage) -> Route {
        if self.is_plain() {
            return Route::To(0, request.clone());
        }
        let method = request.method().unwrap_or_default();
        if let Some(list) = MergedListKind::of(method) {
            return Route::All(MergeMethod::List(list));
        }
        match method {
            "initialize" | "server/discover" => Route::All(MergeMethod::Handshake),
            "logging/setLevel" => Route::All(MergeMethod::Any),
            "subscriptions/listen" => Route::All(MergeMethod::Listening),
            "prompts/get" => {
                let name = request.name().unwrap_or_default();
                match self.named(&name) {
                    Some((at, plain)) => Route::To(at, request.rewrite().name(plain).finish()),
                    None => Route::Unknown(format!("Unknown prompt: {name}")),
                }
            }
            "completion/complete" => self.completed(request),
            "resources/read" | "resources/subscribe" | "resources/unsubscribe" => {
                self.route_by_name(request, request.param_text("uri"))
            }
            "tasks/get" | "tasks/result" | "tasks/update" | "tasks/cancel" => {
                self.route_by_name(request, request.param_text("taskId"))
            }
            _ => Route::FirstToKnow,
        }
    }

    /// Stores the names in a list of a server.
    pub(crate) fn learn_list(&self, at: usize, list: MergedListKind, result: &str) {
        let member = match list.member {
            "resources" => "uri",
            "tasks" => "taskId",
            _ => return,
        };
        for item in list.items(result) {
            if let Some(name) = json_text::get(item, member).and_then(json_text::string) {
                self.learn(at, name);
            }
        }
    }

    /// Stores the task id in the result of a call, if there is one.
    pub(crate) fn learn_task(&self, at: usize, result: &str) {
        if self.is_plain() {
            return;
        }
        let task = json_text::get(result, "task").unwrap_or(result);
        if let Some(id) = json_text::get(task, "taskId").and_then(json_text::string) {
            self.learn(at, id);
        }
    }

    /// Stores the server of a name.
    pub(crate) fn learn(&self, at: usize, name: Cow<'_, str>) {
        let mut known = self.known.lock();
        if known.len() < MOST_KNOWN || known.contains_key(&*name) {
            known.insert(name.into_owned(), at);
        }
    }

    fn route_by_name(&self, request: &RpcMessage, name: Option<Cow<'_, str>>) -> Route {
        let known = name.and_then(|name| self.known.lock().get(&*name).copied());
        match known {
            Some(at) => Route::To(at, request.clone()),
            None => Route::FirstToKnow,
        }
    }

    fn completed(&self, request: &RpcMessage) -> Route {
        let reference = request.param("ref").unwrap_or("{}");
        let text = |name| json_text::get(reference, name).and_then(json_text::string);
        match (text("uri"), text("name")) {
            (Some(uri), _) => self.route_by_name(request, Some(uri)),
            (None, Some(name)) => match self.named(&name) {
                Some((at, plain)) => match with_text(reference, "name", |_| plain.to_owned()) {
                    Some(reference) => {
                        Route::To(at, request.rewrite().param("ref", json(&reference)).finish())
                    }
                    None => Route::FirstToKnow,
                },
                None => Route::Unknown(format!("Unknown prompt: {name}")),
            },
            (None, None) => Route::FirstToKnow,
        }
    }
}
