//! What is behind and before a gateway: its servers and its clients.

use schemars::JsonSchema;
use serde::Serialize;
use steadfast_gateway::{ServerView, SessionView};

use super::paging::{asks, fits};
use crate::Around;

asks! {
    /// Which servers are asked for.
    ServersAsked by String {
        /// Those whose name begins so.
        prefix: String,
    }
}

/// A page of the servers of the configuration.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Servers {
    /// In the order of their names.
    pub servers: Vec<ServerView>,
    /// What to ask for `after` next; nothing at the end.
    pub next: Option<String>,
}

/// The servers, and each process of them.
pub fn servers(around: &Around, asked: &ServersAsked) -> Result<Servers, String> {
    let page = asked.page()?;
    let all = around.servers.iter().map(|server| server.look());
    let all = all.filter(|server| asked.prefix.as_ref().is_none_or(|prefix| server.name.starts_with(prefix)));
    let listed = page.of(all, |server| server.name.clone());
    Ok(Servers { servers: listed.rows, next: listed.next })
}

asks! {
    /// Which clients are asked for.
    SessionsAsked by String {
        /// Those that reach this server.
        server: String,
        /// Those of this actor.
        actor: String,
    }
}

/// A page of the clients that are connected.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Sessions {
    /// In the order of their doors and names.
    pub sessions: Vec<SessionView>,
    /// What to ask for `after` next; nothing at the end.
    pub next: Option<String>,
}

/// The clients that are connected.
pub fn sessions(around: &Around, asked: &SessionsAsked) -> Result<Sessions, String> {
    let page = asked.page()?;
    let all = around.listeners.iter().flat_map(|listener| listener.look()).filter(|session| {
        asked.server.as_ref().is_none_or(|server| session.servers.contains(server))
            && fits(asked.actor.as_ref(), Some(&session.actor))
    });
    // Whoever has no session has one place at a door, under its own name.
    let listed = page.of(all, |one| match &one.session {
        Some(session) => format!("{} session {session}", one.door),
        None => format!("{} actor {}", one.door, one.actor),
    });
    Ok(Sessions { sessions: listed.rows, next: listed.next })
}
