//! A server as one client sees it: its instance, its prefix and the messages that wait for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use steadfast_mcp::message::RpcMessage;

use crate::servers::merge::{self, MergedListKind};
use crate::servers::outbox::Outbox;
use crate::servers::shared::SharedServer;
use crate::servers::upstream::UpstreamServer;

/// A server behind a client.
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
    pub(crate) fn store_late(&self, list: MergedListKind, answer: RpcMessage) -> bool {
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
    pub(crate) fn clear_late(&self, list: MergedListKind) {
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
