//! The servers behind one client, and which of them a message is for.
//!
//! One server alone gets everything as it came. Of several, a tool or prompt says whose it is by its name, a resource or a
//! task by who listed it; lists and handshakes are those of all. What nobody can tell is asked of one after the other, as
//! long as they say that they know nothing of it.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use steadfast_mcp::message::Message;
use steadfast_mcp::raw;

use crate::merge::{self, List};
use crate::outbox::Outbox;
use crate::pieces::{json, with_text};
use crate::server::Server;
use crate::shared::Shared;

/// The servers behind one client.
pub(crate) struct Servers {
    all: Box<[Behind]>,
    /// Who has what is named without saying whose it is.
    known: Mutex<HashMap<String, usize>>,
}

/// One of them.
pub(crate) struct Behind {
    pub(crate) server: Arc<Server>,
    /// What stands before the names of its tools and prompts.
    pub(crate) prefix: Option<Box<str>>,
    /// With whom it is shared, if it is.
    pub(crate) shared: Option<Arc<Shared>>,
    /// What its client has to say to it.
    pub(crate) outbox: Arc<Outbox>,
    /// Whether a list was given without it.
    missed: AtomicBool,
    /// The lists that came too late to be given, the last of each kind.
    late: Mutex<BTreeMap<&'static str, Message>>,
}

/// Tools of a server that only read, by the names that clients know.
pub(crate) fn reads_of(server: &Server, prefix: Option<&str>) -> Arc<[Box<str>]> {
    let reads = server.catalog.reads();
    match prefix {
        None => reads,
        Some(prefix) => reads.iter().map(|name| merge::prefixed(prefix, name).into()).collect(),
    }
}

/// Where a request goes.
#[derive(Debug)]
pub(crate) enum Route {
    /// To this server, in words that it knows.
    To(usize, Message),
    /// To all of them, whose answers become one.
    All(Joining),
    /// To one after the other, until one does not say that it does not know what is meant.
    Whoever,
    /// To nobody: none of them has that.
    Nobody(String),
}

/// How answers become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joining {
    /// They are handshakes.
    Handshake,
    /// They are lists.
    List(List),
    /// Any of them will do that is not an error.
    Any,
    /// There is none as long as the client listens.
    Listening,
}

/// The most names that are remembered; whose others are is found by asking.
const MOST_KNOWN: usize = 10_000;

impl Behind {
    pub(crate) fn new(server: Arc<Server>, prefix: Option<Box<str>>, shared: Option<Arc<Shared>>) -> Self {
        let (outbox, missed, late) = (Arc::default(), AtomicBool::new(false), Mutex::default());
        Self { server, prefix, shared, outbox, missed, late }
    }

    /// Tools of it that only read, by the names that clients know.
    pub(crate) fn reads(&self) -> Arc<[Box<str>]> {
        reads_of(&self.server, self.prefix.as_deref())
    }

    /// A list came too late to be given. Says whether it is another one than the last that did.
    pub(crate) fn came_late(&self, list: List, answer: Message) -> bool {
        let mut late = self.late.lock();
        let is_new = late.get(list.member).is_none_or(|before| before.result() != answer.result());
        late.insert(list.member, answer);
        is_new
    }

    /// The list that came too late the last time.
    pub(crate) fn last_late(&self, list: List) -> Option<Message> {
        self.late.lock().get(list.member).cloned()
    }

    /// A list came in time: none that came too late is of any use.
    pub(crate) fn came_in_time(&self, list: List) {
        self.late.lock().remove(list.member);
    }

    /// A list is given without what it has.
    pub(crate) fn is_missed(&self) {
        self.missed.store(true, Ordering::Relaxed);
    }

    /// Whether a list was given without it; it is not any more.
    pub(crate) fn was_missed(&self) -> bool {
        self.missed.swap(false, Ordering::Relaxed)
    }
}

impl Servers {
    pub(crate) fn new(all: Vec<Behind>) -> Self {
        Self { all: all.into_boxed_slice(), known: Mutex::default() }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Behind> {
        self.all.iter()
    }

    pub(crate) fn get(&self, at: usize) -> Option<&Behind> {
        self.all.get(at)
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is but one, under its own names.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(&*self.all, [one] if one.prefix.is_none())
    }

    /// Whose tool or prompt this is, and what it is called there.
    pub(crate) fn named<'n>(&self, name: &'n str) -> Option<(usize, &'n str)> {
        let prefixed = self.all.iter().enumerate().filter_map(|(at, one)| {
            let plain = merge::stripped(one.prefix.as_deref()?, name)?;
            Some((at, plain))
        });
        // The name of a server can begin with that of another: the longer one is meant.
        prefixed.min_by_key(|(_, plain)| plain.len()).or_else(|| {
            let mut unprefixed = self.all.iter().enumerate().filter(|(_, one)| one.prefix.is_none());
            let first = unprefixed.clone().next();
            let lists = |(_, one): &(usize, &Behind)| one.server.catalog.tool(name).is_some();
            unprefixed.find(lists).or(first).map(|(at, _)| (at, name))
        })
    }

    /// Where a request goes that is no call.
    pub(crate) fn route(&self, request: &Message) -> Route {
        if self.is_plain() {
            return Route::To(0, request.clone());
        }
        let method = request.method().unwrap_or_default();
        if let Some(list) = List::of(method) {
            return Route::All(Joining::List(list));
        }
        match method {
            "initialize" | "server/discover" => Route::All(Joining::Handshake),
            "logging/setLevel" => Route::All(Joining::Any),
            "subscriptions/listen" => Route::All(Joining::Listening),
            "prompts/get" => {
                let name = request.name().unwrap_or_default();
                match self.named(&name) {
                    Some((at, plain)) => Route::To(at, request.rewrite().name(plain).finish()),
                    None => Route::Nobody(format!("Unknown prompt: {name}")),
                }
            }
            "completion/complete" => self.completed(request),
            "resources/read" | "resources/subscribe" | "resources/unsubscribe" => {
                self.whose(request, request.param_text("uri"))
            }
            "tasks/get" | "tasks/result" | "tasks/update" | "tasks/cancel" => {
                self.whose(request, request.param_text("taskId"))
            }
            _ => Route::Whoever,
        }
    }

    /// A server listed these, which are its own.
    pub(crate) fn learn_list(&self, at: usize, list: List, result: &str) {
        let member = match list.member {
            "resources" => "uri",
            "tasks" => "taskId",
            _ => return,
        };
        for item in list.items(result) {
            if let Some(name) = raw::get(item, member).and_then(raw::string) {
                self.learn(at, name);
            }
        }
    }

    /// A server answered a call; with a task of its own, perhaps.
    pub(crate) fn learn_task(&self, at: usize, result: &str) {
        if self.is_plain() {
            return;
        }
        let task = raw::get(result, "task").unwrap_or(result);
        if let Some(id) = raw::get(task, "taskId").and_then(raw::string) {
            self.learn(at, id);
        }
    }

    /// What this one has, and nobody else.
    pub(crate) fn learn(&self, at: usize, name: Cow<'_, str>) {
        let mut known = self.known.lock();
        if known.len() < MOST_KNOWN || known.contains_key(&*name) {
            known.insert(name.into_owned(), at);
        }
    }

    fn whose(&self, request: &Message, name: Option<Cow<'_, str>>) -> Route {
        let known = name.and_then(|name| self.known.lock().get(&*name).copied());
        match known {
            Some(at) => Route::To(at, request.clone()),
            None => Route::Whoever,
        }
    }

    fn completed(&self, request: &Message) -> Route {
        let reference = request.param("ref").unwrap_or("{}");
        let text = |name| raw::get(reference, name).and_then(raw::string);
        match (text("uri"), text("name")) {
            (Some(uri), _) => self.whose(request, Some(uri)),
            (None, Some(name)) => match self.named(&name) {
                Some((at, plain)) => match with_text(reference, "name", |_| plain.to_owned()) {
                    Some(reference) => {
                        Route::To(at, request.rewrite().param("ref", json(&reference)).finish())
                    }
                    None => Route::Whoever,
                },
                None => Route::Nobody(format!("Unknown prompt: {name}")),
            },
            (None, None) => Route::Whoever,
        }
    }
}
