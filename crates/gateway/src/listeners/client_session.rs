//! A client over HTTP with its session: its introduction, its idle time and its end.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use steadfast_core::id::Digest;
use steadfast_json::scan;
use steadfast_mcp::http::server::{self, Principal};
use steadfast_mcp::message::RpcMessage;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::listeners::endpoint::GatewayEndpoint;
use crate::servers::configured::ConfiguredServer;
use crate::servers::upstream::Handshake;
use crate::session::store::SessionHandshakes;
use crate::session::{ClientMessage, GatewaySession};

/// A connected client with its session and tasks.
pub(super) struct ClientSession {
    /// `None` in the modern era.
    pub(super) streams: Option<Arc<server::SessionStreams>>,
    pub(super) principal: Principal,
    pub(super) session: Arc<GatewaySession>,
    pub(super) inbox: mpsc::Sender<ClientMessage>,
    /// Time of the last message from the client.
    pub(super) last_message: Mutex<Instant>,
    pub(super) taking: JoinHandle<()>,
    pub(super) tasks: Vec<JoinHandle<()>>,
    /// Cancelled when requests in flight are no longer waited for.
    pub(super) stop: CancellationToken,
}

/// A connected client.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionView {
    /// The session key in records and logs. Absent in the protocol era without sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The tenant of the client's token, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The name of the endpoint that the client is connected to.
    #[serde(rename = "door")]
    pub endpoint: String,
    /// The servers behind that endpoint.
    pub servers: Vec<String>,
    /// The actor of the client.
    pub actor: String,
    /// Time since the last message of the client, in milliseconds.
    pub silent_ms: u64,
    /// True if the client has an open event stream.
    pub listens: bool,
    /// The number of requests that the client waits for.
    pub waiting: usize,
}

/// The idle time after which a session is ended.
const IDLE: Duration = Duration::from_secs(30 * 60);
/// The idle time after which a session is ended whose server never answered.
const UNANSWERED_IDLE: Duration = Duration::from_secs(60);

impl ClientSession {
    pub(super) fn session_view(&self, endpoint: &GatewayEndpoint) -> SessionView {
        let connection = self.session.connection();
        SessionView {
            session: connection.session.as_ref().map(ToString::to_string),
            endpoint: endpoint.name.to_string(),
            servers: endpoint.servers.iter().map(|server| server.name.to_string()).collect(),
            actor: connection.actor.to_string(),
            tenant: connection.tenant.as_ref().map(ToString::to_string),
            silent_ms: steadfast_core::millis(self.last_message.lock().elapsed()),
            listens: self.streams.as_ref().is_some_and(|streams| streams.is_listening()),
            waiting: self.session.waiting(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.is_silent_for(if self.session.has_started() { IDLE } else { UNANSWERED_IDLE })
    }

    /// Returns true if the client has no open stream, no request in flight, and was idle for this long.
    pub(super) fn is_silent_for(&self, patience: Duration) -> bool {
        let listens = self.streams.as_ref().is_some_and(|streams| streams.is_listening());
        !listens && !self.session.is_busy() && self.last_message.lock().elapsed() >= patience
    }

    /// Stops reading messages, waits for requests in flight within their limits, and ends the servers.
    pub(super) fn end(&self) -> JoinHandle<()> {
        if let Some(streams) = &self.streams {
            streams.close();
        }
        self.taking.abort();
        let handles: Vec<_> = self.tasks.iter().map(JoinHandle::abort_handle).collect();
        let (session, stop) = (self.session.clone(), self.stop.clone());
        tokio::spawn(async move {
            session.finish(&stop).await;
            session.stop().await;
            for handle in handles {
                handle.abort();
            }
        })
    }
}

/// The introduction of a client.
pub(super) enum ClientIntroduction {
    /// It sends `initialize` now; this is the digest of its introduction.
    Now(Digest),
    /// It sent `initialize` to an earlier process.
    Before(SessionHandshakes),
    /// It sends none, in the modern era.
    Nothing,
}

impl ClientIntroduction {
    pub(super) fn introduction(&self) -> Option<Digest> {
        match self {
            Self::Now(digest) => Some(*digest),
            Self::Before(agreements) => agreements
                .values()
                .find_map(|handshake| handshake.initialize())
                .map(|request| introduction(&request)),
            Self::Nothing => None,
        }
    }

    pub(super) fn handshake(&self, server: &ConfiguredServer) -> Handshake {
        match self {
            Self::Before(agreements) => match agreements.get(server.name.as_str()) {
                Some(handshake) => Handshake::restored(handshake.clone()),
                None => Handshake::default(),
            },
            Self::Now(_) | Self::Nothing => Handshake::default(),
        }
    }
}

/// Returns a digest of the client's protocol version and capabilities. Clients with equal digests can share a server.
pub(super) fn introduction(initialize: &RpcMessage) -> Digest {
    let param = |name| initialize.param(name).unwrap_or_default();
    let version = scan::string(param("protocolVersion")).unwrap_or_default();
    Digest::of(format!("{version}\n{}", param("capabilities")).as_bytes())
}
