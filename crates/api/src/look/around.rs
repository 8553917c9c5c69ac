//! What is behind and before a gateway: its servers and its clients.

use schemars::JsonSchema;
use serde::Serialize;
use steadfast_gateway::{ServerView, SessionView};

use crate::Around;

/// The servers of the configuration.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Servers {
    /// In the order of their names.
    pub servers: Vec<ServerView>,
}

/// The clients that are connected.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Sessions {
    /// Those first that spoke last.
    pub sessions: Vec<SessionView>,
}

/// The servers, and each process of them.
pub fn servers(around: &Around) -> Servers {
    let mut servers: Vec<_> = around.servers.iter().map(|server| server.look()).collect();
    servers.sort_by(|one, other| one.name.cmp(&other.name));
    Servers { servers }
}

/// The clients that are connected.
pub fn sessions(around: &Around) -> Sessions {
    let mut sessions: Vec<_> = around.listeners.iter().flat_map(|listener| listener.look()).collect();
    sessions.sort_by_key(|session| session.silent_ms);
    Sessions { sessions }
}
