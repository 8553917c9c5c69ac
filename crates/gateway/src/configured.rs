//! A server that is wanted behind clients.

use std::sync::Arc;

use steadfast_core::id::Namespace;

use crate::server::{Backend, Handshake, Keeping, Server};
use crate::servers::Behind;

/// Makes the way to a server: a process of its own, or a connection.
pub type Start = Arc<dyn Fn() -> Backend + Send + Sync>;

/// A server that is wanted behind clients.
#[derive(Clone)]
pub struct Configured {
    /// What it is called, and the namespace of its tools.
    pub name: Namespace,
    /// What stands before the names of its tools and prompts, where it is not the only one.
    pub prefix: Option<Box<str>>,
    /// Who has it for himself.
    pub sharing: Sharing,
    /// Makes the way to it.
    pub start: Start,
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
    /// One for whoever asks, which was told this before.
    pub(crate) fn alone(&self, handshake: Handshake) -> (Behind, Option<Keeping>) {
        let (server, keeping) = Server::new(self.name.clone(), (self.start)(), handshake);
        (Behind::new(server, self.prefix.clone(), None), Some(keeping))
    }
}

#[cfg(test)]
impl Configured {
    /// One that nobody ever reaches.
    pub(crate) fn nowhere(sharing: Sharing) -> Self {
        let start = || {
            let settings = steadfast_mcp::http::back::Settings::default();
            let server = steadfast_mcp::http::back::Server::new("http://127.0.0.1:9/mcp", settings).unwrap();
            Backend::Remote(server, http::HeaderMap::new())
        };
        let name = Namespace::new("bank").unwrap();
        Self { name, prefix: None, sharing, start: Arc::new(start) }
    }
}
