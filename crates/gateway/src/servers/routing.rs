//! The servers behind one client, and the routing of its messages to them.
//!
//! A single server gets everything unchanged. With several, the prefix of a tool or prompt names its server, and a
//! resource or task belongs to the server that listed it. Lists and handshakes are merged. For anything else the
//! servers are asked one after the other, until one knows it.

use std::borrow::Cow;
use std::collections::HashMap;

use parking_lot::Mutex;
use steadfast_json::scan;
use steadfast_mcp::message::RpcMessage;

use crate::json_parts::{json, with_text};
use crate::servers::backing::BackingServer;
use crate::servers::merge::{self, MergedListKind};

/// The servers behind one client.
pub(crate) struct SessionServers {
    all: Box<[BackingServer]>,
    /// The servers of resources and tasks, by name.
    known: Mutex<HashMap<String, usize>>,
}

/// The destination of a request.
#[derive(Debug)]
pub(crate) enum Route {
    /// One server, with the request as that server knows it.
    To(usize, RpcMessage),
    /// All servers, whose answers are merged.
    All(MergeMethod),
    /// One server after the other, until one knows the subject of the request.
    EachInTurn,
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
            _ => Route::EachInTurn,
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
            if let Some(name) = scan::get(item, member).and_then(scan::string) {
                self.learn(at, name);
            }
        }
    }

    /// Stores the task id in the result of a call, if there is one.
    pub(crate) fn learn_task(&self, at: usize, result: &str) {
        if self.is_plain() {
            return;
        }
        let task = scan::get(result, "task").unwrap_or(result);
        if let Some(id) = scan::get(task, "taskId").and_then(scan::string) {
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
            None => Route::EachInTurn,
        }
    }

    fn completed(&self, request: &RpcMessage) -> Route {
        let reference = request.param("ref").unwrap_or("{}");
        let text = |name| scan::get(reference, name).and_then(scan::string);
        match (text("uri"), text("name")) {
            (Some(uri), _) => self.route_by_name(request, Some(uri)),
            (None, Some(name)) => match self.named(&name) {
                Some((at, plain)) => match with_text(reference, "name", |_| plain.to_owned()) {
                    Some(reference) => {
                        Route::To(at, request.rewrite().param("ref", json(&reference)).finish())
                    }
                    None => Route::EachInTurn,
                },
                None => Route::Unknown(format!("Unknown prompt: {name}")),
            },
            (None, None) => Route::EachInTurn,
        }
    }
}
