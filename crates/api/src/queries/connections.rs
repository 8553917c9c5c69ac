//! The servers and the clients of a gateway.

use schemars::JsonSchema;
use serde::Serialize;
use steadfast_gateway::{ServerView, SessionView};

use super::paging::{fits, list_query};
use crate::GatewayParts;

list_query! {
    /// Filters for servers.
    ServersQuery by String {
        /// Only servers whose name begins with this.
        prefix: String,
    }
}

/// A page of the configured servers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ServerPage {
    /// The servers in the order of their names.
    pub servers: Vec<ServerView>,
    /// Cursor of the next page, for `after`. `null` on the last page.
    pub next: Option<String>,
}

/// Returns the servers with their processes.
pub fn servers(gateway: &GatewayParts, query: &ServersQuery) -> Result<ServerPage, String> {
    let page = query.page()?;
    let all = gateway.servers.iter().map(|server| server.view());
    let all = all.filter(|server| query.prefix.as_ref().is_none_or(|prefix| server.name.starts_with(prefix)));
    let listed = page.of(all, |server| server.name.clone());
    Ok(ServerPage { servers: listed.rows, next: listed.next })
}

list_query! {
    /// Filters for clients.
    SessionsQuery by String {
        /// Only clients that reach this server.
        server: String,
        /// Only clients of this actor.
        actor: String,
    }
}

/// A page of the connected clients.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SessionPage {
    /// The clients in the order of endpoints and sessions.
    pub sessions: Vec<SessionView>,
    /// Cursor of the next page, for `after`. `null` on the last page.
    pub next: Option<String>,
}

/// Returns the connected clients.
pub fn sessions(gateway: &GatewayParts, query: &SessionsQuery) -> Result<SessionPage, String> {
    let page = query.page()?;
    let all = gateway.listeners.iter().flat_map(|listener| listener.session_views()).filter(|session| {
        query.server.as_ref().is_none_or(|server| session.servers.contains(server))
            && fits(query.actor.as_ref(), Some(&session.actor))
    });
    // A client without a session has one entry per endpoint, by its actor.
    let listed = page.of(all, |one| match &one.session {
        Some(session) => format!("{} session {session}", one.endpoint),
        None => format!("{} actor {}", one.endpoint, one.actor),
    });
    Ok(SessionPage { sessions: listed.rows, next: listed.next })
}
