//! A server that is wanted behind clients.

use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use steadfast_core::id::Namespace;

use crate::look::ServerView;
use crate::server::{Backend, Handshake, Keeping, Server};
use crate::servers::Behind;

/// Makes the way to a server: a process of its own, or a connection.
pub type Start = Arc<dyn Fn() -> Backend + Send + Sync>;

/// A server that is wanted behind clients. Copies are the same one, under whatever prefix.
#[derive(Clone)]
pub struct Configured {
    /// What it is called, and the namespace of its tools.
    pub name: Namespace,
    /// What stands before the names of its tools and prompts, where it is not the only one.
    pub prefix: Option<Box<str>>,
    /// Who has it for himself.
    pub sharing: Sharing,
    start: Start,
    /// What was made of it and is still there.
    made: Arc<Mutex<Vec<Weak<Server>>>>,
}

/// Whether sessions share a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Those of one client share it.
    Shared,
    /// Each session has its own.
    PerSession {
        /// The most of them at a time.
        most: usize,
    },
}

impl Configured {
    /// A server of this name, under the names that it gives its tools itself.
    pub fn new(name: Namespace, sharing: Sharing, start: Start) -> Self {
        Self { name, prefix: None, sharing, start, made: Arc::default() }
    }

    /// The same, with something done at each start.
    pub fn started_by(mut self, change: impl FnOnce(Start) -> Start) -> Self {
        self.start = change(self.start);
        self
    }

    /// One for whoever asks, which was told this before.
    pub(crate) fn alone(&self, handshake: Handshake) -> (Behind, Option<Keeping>) {
        let (server, keeping) = self.make(handshake);
        (Behind::new(server, self.prefix.clone(), None), Some(keeping))
    }

    /// The same by itself.
    pub(crate) fn make(&self, handshake: Handshake) -> (Arc<Server>, Keeping) {
        let (server, keeping) = Server::new(self.name.clone(), (self.start)(), handshake);
        let mut made = self.made.lock();
        made.retain(|server| server.strong_count() > 0);
        made.push(Arc::downgrade(&server));
        (server, keeping)
    }

    /// How it stands.
    pub fn look(&self) -> ServerView {
        let made: Vec<_> = self.made.lock().iter().filter_map(Weak::upgrade).collect();
        ServerView {
            name: self.name.to_string(),
            shared: self.sharing == Sharing::Shared,
            instances: made.iter().map(|server| server.look()).collect(),
        }
    }
}

impl fmt::Debug for Configured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Configured").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
impl Configured {
    /// One that nobody ever reaches.
    pub(crate) fn nowhere(sharing: Sharing) -> Self {
        Self::at("bank", "127.0.0.1:9", sharing)
    }

    /// One of this name at this address.
    pub(crate) fn at(name: &str, address: &str, sharing: Sharing) -> Self {
        let url = format!("http://{address}/mcp");
        let start = move || {
            let settings = steadfast_mcp::http::back::Settings::default();
            let server = steadfast_mcp::http::back::Server::new(&url, settings).unwrap();
            Backend::Remote(server, http::HeaderMap::new())
        };
        Self::new(Namespace::new(name).unwrap(), sharing, Arc::new(start))
    }
}
