//! Clients over streamable HTTP and their sessions, for `steadfast serve` and `steadfast wrap --listen`.
//!
//! In the legacy era a session begins with `initialize` and ends when its client deletes it or has been idle for long.
//! In the modern era each request stands alone, and the requests of one principal share their servers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_core::id::{Digest, SessionKey};
use steadfast_mcp::http::server::{
    self, AdmissionError, EndpointHandler, HttpCaller, HttpRefusal, ListenRequest, McpSessionId, Principal,
    StreamLimits, StreamResumption, TokenHolder,
};
use steadfast_mcp::http::{MODERN, ProtocolEra};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::client::connection::{ClientConnection, ResponseChannel};
use crate::client::identity::ClientIdentity;
use crate::listeners::client_session::{ClientIntroduction, ClientSession, SessionView, introduction};
use crate::listeners::endpoint::GatewayEndpoint;
use crate::servers::configured::ServerSharing;
use crate::servers::pool::SharingGroup;
use crate::session::store::SessionStore;
use crate::session::{ClientMessage, GatewaySession, ResumedClient};

/// The sessions of all clients of an endpoint.
pub struct Listener {
    endpoint: GatewayEndpoint,
    sessions: Mutex<HashMap<McpSessionId, Arc<ClientSession>>>,
    /// The clients of the modern era, which has no sessions.
    sessionless: Mutex<HashMap<Principal, Arc<ClientSession>>>,
    /// The number of sessions that have ended for good.
    ended_count: AtomicU64,
    stop: CancellationToken,
}

/// The maximum number of sessions if they share their servers.
const MOST_SESSIONS: usize = 1024;
/// The maximum number of messages of one session that wait to be processed.
const INBOX: usize = 256;
/// The idle time after which a session can be evicted for a new one.
const EVICTABLE_IDLE: Duration = Duration::from_secs(60);
/// The number of attempts to read a session from the store while others end.
const READ_ATTEMPTS: u32 = 8;
/// The interval between checks for idle sessions.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// The retry delay for a client that is refused because of the session limit.
const RETRY_DELAY: Duration = Duration::from_secs(5);

impl Listener {
    /// Creates a listener. While no client token exists, requests without a token act as the local actor, if there is
    /// one.
    pub fn new(endpoint: GatewayEndpoint) -> Arc<Self> {
        let (sessions, sessionless) = (Mutex::default(), Mutex::default());
        let ended_count = AtomicU64::new(0);
        Arc::new(Self { endpoint, sessions, sessionless, ended_count, stop: CancellationToken::new() })
    }

    /// Returns the connected clients.
    pub fn session_views(&self) -> Vec<SessionView> {
        let mut attached: Vec<_> = self.sessions.lock().values().cloned().collect();
        attached.extend(self.sessionless.lock().values().cloned());
        attached.iter().map(|one| one.session_view(&self.endpoint)).collect()
    }

    /// Ends the sessions of principals whose tokens are no longer valid. Their stored state stays, so that a principal
    /// who is admitted again can continue.
    pub fn end_sessions(&self, is_out: impl Fn(&Principal) -> bool) {
        let is_out = |one: &ClientSession| is_out(&one.principal);
        let mut removed: Vec<_> =
            self.sessions.lock().extract_if(|_, one| is_out(one)).map(|(_, one)| one).collect();
        removed.extend(self.sessionless.lock().extract_if(|_, one| is_out(one)).map(|(_, one)| one));
        for one in removed {
            drop(one.end());
        }
    }

    /// Ends idle sessions periodically, until this future is dropped.
    pub async fn tidy(self: Arc<Self>) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let idle: Vec<McpSessionId> = {
                let sessions = self.sessions.lock();
                sessions.iter().filter(|(_, one)| one.is_idle()).map(|(id, _)| id.clone()).collect()
            };
            for id in idle {
                self.drop_session(&id).await;
            }
            self.endpoint.pool.tidy().await;
        }
    }

    /// Ends every session after the calls in flight had `drain` time to finish.
    pub async fn close(&self, drain: Duration) {
        self.endpoint.engine.shutdown(drain).await;
        self.stop.cancel();
        let mut attached: Vec<_> = self.sessions.lock().drain().map(|(_, one)| one).collect();
        attached.extend(self.sessionless.lock().drain().map(|(_, one)| one));
        let ending: Vec<_> = attached.into_iter().map(|one| one.end()).collect();
        for one in ending {
            let _ = one.await;
        }
        self.endpoint.pool.close().await;
    }

    async fn drop_session(&self, id: &McpSessionId) {
        let found = self.sessions.lock().get(id).cloned();
        if let Some(found) = found {
            // Deleted first: a message that arrives in the meantime would restore the session.
            found.session.forget().await;
        }
        let removed = {
            let mut sessions = self.sessions.lock();
            self.ended_count.fetch_add(1, Ordering::Release);
            sessions.remove(id)
        };
        if let Some(removed) = removed {
            // The client does not wait for the requests that are still in flight.
            drop(removed.end());
        }
    }

    /// Creates the session of a client and starts its tasks.
    fn attach(
        &self,
        streams: Option<Arc<server::SessionStreams>>,
        principal: Principal,
        first: ClientIntroduction,
    ) -> Arc<ClientSession> {
        let memory = streams.as_ref().map(|streams| self.memory(streams.id(), &principal));
        let client = streams.clone().map_or(ClientConnection::Answers, ClientConnection::Streams);
        // The session id grants access to the session, so only its digest is recorded.
        let key = streams.as_ref().map(|streams| Digest::of(streams.id().as_str().as_bytes()).fingerprint());
        let session = key.and_then(|key| SessionKey::new(format!("mcp:{key}")).ok());
        let Principal { actor, tenant } = principal.clone();
        let connection = ClientIdentity { actor, tenant, session };
        let sharers = first
            .introduction()
            .map(|introduction| SharingGroup { principal: principal.clone(), introduction });
        let behind = self.endpoint.servers.iter().map(|server| match (server.sharing, &sharers) {
            (ServerSharing::Shared, Some(sharers)) => (self.endpoint.pool.get(server, sharers), None),
            (ServerSharing::Shared | ServerSharing::PerSession { .. }, _) => {
                server.create_exclusive(first.handshake(server))
            }
        });
        let (behind, processes) = behind.unzip();
        let (engine, own_tools) = (self.endpoint.engine.clone(), self.endpoint.own_tools);
        let large = self.endpoint.large_results.clone();
        let session = GatewaySession::new(engine, behind, client, connection, own_tools, large, memory);
        let tasks = session.run_servers(processes);
        let (inbox, mut messages) = mpsc::channel(INBOX);
        let taking = session.clone();
        // Messages are processed in the order of their arrival.
        let taking = tokio::spawn(async move {
            if let ClientIntroduction::Before(agreements) = first {
                taking.recall(&agreements).await;
            }
            while let Some(incoming) = messages.recv().await {
                taking.take(incoming).await;
            }
        });
        Arc::new(ClientSession {
            streams,
            principal,
            session,
            inbox,
            last_message: Mutex::new(Instant::now()),
            taking,
            tasks,
            stop: self.stop.clone(),
        })
    }

    fn memory(&self, id: &McpSessionId, principal: &Principal) -> SessionStore {
        SessionStore::new(self.endpoint.store.clone(), id, &self.endpoint.name, principal)
    }

    /// Restores a session of an earlier process, or one that was evicted.
    async fn recall(&self, id: &McpSessionId, principal: &Principal) -> Option<Arc<ClientSession>> {
        for _ in 0..READ_ATTEMPTS {
            let ended_count = self.ended_count.load(Ordering::Acquire);
            let agreements = self.memory(id, principal).find().await?;
            let mut sessions = self.sessions.lock();
            if let Some(found) = sessions.get(id) {
                return Some(found.clone());
            }
            // The client may just have ended this very session, so the state that was read may be outdated.
            if self.ended_count.load(Ordering::Acquire) != ended_count {
                continue;
            }
            if !self.has_room(&mut sessions) {
                return None;
            }
            let streams = server::SessionStreams::restored(id.clone(), StreamLimits::default());
            let attached =
                self.attach(Some(streams), principal.clone(), ClientIntroduction::Before(agreements));
            sessions.insert(id.clone(), attached.clone());
            return Some(attached);
        }
        None
    }

    /// Returns true if there is room for one more session. At the limit, evicts the session that has been idle longest
    /// and has no request in flight. Its stored state stays, so that it is restored with its next message.
    fn has_room(&self, sessions: &mut HashMap<McpSessionId, Arc<ClientSession>>) -> bool {
        if sessions.len() < self.most_sessions() {
            return true;
        }
        let silent = sessions.iter().filter(|(_, one)| one.is_silent_for(EVICTABLE_IDLE));
        let Some(longest) = silent.min_by_key(|(_, one)| *one.last_message.lock()).map(|(id, _)| id.clone())
        else {
            return false;
        };
        if let Some(removed) = sessions.remove(&longest) {
            tracing::info!(event = "session.made_room", door = &*self.endpoint.name);
            drop(removed.end());
        }
        true
    }

    /// Returns the session limit: the lowest limit of all servers.
    fn most_sessions(&self) -> usize {
        let most = self.endpoint.servers.iter().map(|server| match server.sharing {
            ServerSharing::Shared => MOST_SESSIONS,
            ServerSharing::PerSession { most } => most,
        });
        most.min().unwrap_or(MOST_SESSIONS)
    }

    /// Returns the client of this message. In the legacy era, `initialize` creates it.
    fn client_of(&self, incoming: &server::IncomingMessage) -> Result<Arc<ClientSession>, HttpRefusal> {
        let id = incoming.message.id();
        match (incoming.era, &incoming.session) {
            (ProtocolEra::Modern, _) => {
                let principal = &incoming.caller.principal;
                let mut sessionless = self.sessionless.lock();
                if let Some(found) = sessionless.get(principal) {
                    return Ok(found.clone());
                }
                let attached = self.attach(None, principal.clone(), ClientIntroduction::Nothing);
                sessionless.insert(principal.clone(), attached.clone());
                Ok(attached)
            }
            (ProtocolEra::Legacy, Some(session)) => {
                let found = self.sessions.lock().get(session.id()).cloned();
                found.ok_or_else(|| HttpRefusal::unknown_session(id.as_ref()))
            }
            (ProtocolEra::Legacy, None) => {
                let mut sessions = self.sessions.lock();
                if !self.has_room(&mut sessions) {
                    return Err(HttpRefusal::overloaded(id.as_ref(), RETRY_DELAY));
                }
                let name = new_id();
                let streams = server::SessionStreams::new(name.clone(), StreamLimits::default());
                let principal = incoming.caller.principal.clone();
                let first = ClientIntroduction::Now(introduction(&incoming.message));
                let attached = self.attach(Some(streams), principal, first);
                sessions.insert(name, attached.clone());
                Ok(attached)
            }
        }
    }
}

impl EndpointHandler for Listener {
    fn admit(&self, bearer: Option<&[u8]>) -> Result<Principal, AdmissionError> {
        let GatewayEndpoint { tokens, local, operator, .. } = &self.endpoint;
        if let (Some(operator), Some(bearer)) = (operator, bearer)
            && operator.token.is(bearer)
        {
            return Ok(Principal::new(operator.actor.clone()));
        }
        match bearer.and_then(|bearer| tokens.holder(bearer)) {
            Some(TokenHolder::Client(principal)) => Ok(principal),
            Some(TokenHolder::Viewer(_)) => Err(AdmissionError::VIEWER),
            None => match local {
                Some(local) if !tokens.have_clients() => Ok(Principal::new(local.clone())),
                Some(_) | None => Err(AdmissionError::TOKEN),
            },
        }
    }

    fn versions(&self) -> Vec<String> {
        // Legacy versions are negotiated in the handshake. The list of supported versions contains the modern ones
        // only.
        vec![MODERN.to_owned()]
    }

    async fn session(&self, id: &McpSessionId, principal: &Principal) -> Option<Arc<server::SessionStreams>> {
        let found = self.sessions.lock().get(id).cloned();
        let found = match found {
            Some(found) => found,
            None => self.recall(id, principal).await?,
        };
        *found.last_message.lock() = Instant::now();
        found.streams.clone().filter(|_| found.principal == *principal)
    }

    fn message(&self, incoming: server::IncomingMessage) -> Result<(), HttpRefusal> {
        let client = self.client_of(&incoming)?;
        let server::IncomingMessage { message, caller, era, responder, .. } = incoming;
        if let (Some(responder), Some(streams), Some("initialize")) =
            (&responder, &client.streams, message.method())
        {
            responder.open_session(streams);
        }
        let id = responder.as_ref().map(|responder| responder.id().clone());
        let reply = responder.map(|responder| ResponseChannel::Http(responder, era));
        // Modern clients share a session here, so each message carries its own identity.
        let Principal { actor, tenant } = caller.principal;
        let from = (era == ProtocolEra::Modern).then_some(ClientIdentity { actor, tenant, session: None });
        let taken = client.inbox.try_send(ClientMessage { message, reply, headers: caller.headers, from });
        taken.map_err(|untaken| match untaken {
            TrySendError::Full(_) => HttpRefusal::overloaded(id.as_ref(), RETRY_DELAY),
            TrySendError::Closed(_) => HttpRefusal::unknown_session(id.as_ref()),
        })
    }

    fn listening(&self, listening: ListenRequest) {
        match listening.resumed {
            StreamResumption::Fresh | StreamResumption::Yes => {}
            StreamResumption::Unknown(last) => {
                let found = self.sessions.lock().get(listening.session.id()).cloned();
                if let Some(found) = found {
                    found.session.give_missed(ResumedClient { last, stream: listening.stream });
                }
            }
        }
    }

    async fn end(&self, session: Arc<server::SessionStreams>, _: HttpCaller) {
        self.drop_session(session.id()).await;
    }
}

/// Returns a session id that cannot be guessed.
#[expect(
    clippy::expect_used,
    reason = "the id is made of hex digits; without randomness it could be guessed"
)]
fn new_id() -> McpSessionId {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).expect("the system has randomness");
    McpSessionId::new(&Digest::from_bytes(bytes).to_hex()).expect("64 hex digits are a name")
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use http::HeaderMap;
    use steadfast_core::id::{ActorId, TenantId};
    use steadfast_core::large_result::LargeResultBounds;
    use steadfast_executor::Engine;
    use steadfast_mcp::delivery::DeliveryLink;
    use steadfast_mcp::http::server::{AdminToken, BearerTokens};
    use steadfast_mcp::message::RpcMessage;
    use steadfast_store::MemoryStore;

    use super::*;
    use crate::builtin_tools::BuiltinTools;
    use crate::calls::large_results::LargeResults;
    use crate::listeners::endpoint::OperatorAccess;
    use crate::servers::configured::ConfiguredServer;
    use crate::session::store::SessionHandshakes;

    const MOST: usize = 3;

    async fn listener() -> Arc<Listener> {
        Listener::new(GatewayEndpoint {
            engine: Engine::builder().start().await,
            store: Arc::new(MemoryStore::default()),
            name: "door".into(),
            servers: vec![ConfiguredServer::nowhere(ServerSharing::PerSession { most: MOST })],
            own_tools: BuiltinTools::default(),
            large_results: LargeResults::new(LargeResultBounds {
                keep: EVICTABLE_IDLE,
                entries: 0,
                bytes: 0,
            }),
            pool: Arc::default(),
            tokens: BearerTokens::default(),
            local: Some(me()),
            operator: AdminToken::new("person").map(|token| OperatorAccess { token, actor: me() }),
        })
    }

    fn me() -> ActorId {
        ActorId::new("me").unwrap()
    }

    fn principal() -> Principal {
        Principal::new(me())
    }

    /// Sends `initialize`. Returns the session id, or `None` if the limit is reached.
    fn initialize_session(listener: &Listener) -> Option<McpSessionId> {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
        let address: Option<SocketAddr> = None;
        let caller = HttpCaller {
            principal: principal(),
            headers: HeaderMap::new(),
            address,
            link: DeliveryLink::new(),
        };
        let attached = listener.client_of(&server::IncomingMessage {
            message: RpcMessage::parse(text.to_owned(), usize::MAX).unwrap(),
            caller,
            era: ProtocolEra::Legacy,
            version: None,
            session: None,
            responder: None,
        });
        attached.ok().and_then(|one| Some(one.streams.as_ref()?.id().clone()))
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_session_is_evicted_and_restored_when_its_client_returns() {
        let listener = listener().await;
        let mut first = Vec::new();
        for _ in 0..MOST {
            first.push(initialize_session(&listener).unwrap());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(initialize_session(&listener), None, "nobody was silent for long");
        listener.memory(&first[0], &principal()).keep(SessionHandshakes::new()).await;
        tokio::time::advance(EVICTABLE_IDLE).await;
        // The second session gets a message, the first does not.
        assert!(listener.session(&first[1], &principal()).await.is_some());
        let late = initialize_session(&listener).unwrap();
        let has = |id: &McpSessionId| listener.sessions.lock().contains_key(id);
        assert!(!has(&first[0]) && has(&first[1]) && has(&first[2]) && has(&late));
        // It is restored and evicts the session that is now idle longest.
        assert!(listener.session(&first[0], &principal()).await.is_some());
        assert!(has(&first[0]) && has(&first[1]) && !has(&first[2]) && has(&late));
        assert_eq!(initialize_session(&listener), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_with_a_request_in_flight_is_not_evicted() {
        let listener = listener().await;
        let sessions: Vec<_> = (0..MOST).map(|_| initialize_session(&listener).unwrap()).collect();
        let of = |id: &McpSessionId| listener.sessions.lock().get(id).cloned().unwrap();
        let busy: Vec<_> = sessions.iter().map(|id| of(id).session.busy()).collect();
        tokio::time::advance(EVICTABLE_IDLE * 2).await;
        assert_eq!(initialize_session(&listener), None);
        drop(busy);
        assert!(initialize_session(&listener).is_some());
    }

    fn named(name: &str) -> ActorId {
        ActorId::new(name).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn sf_7_a_token_is_required_as_soon_as_a_client_has_one() {
        let listener = listener().await;
        let tokens = &listener.endpoint.tokens;
        tokens.add("view", TokenHolder::Viewer(named("grafana")));
        assert_eq!(listener.admit(None), Ok(principal()));
        assert_eq!(listener.admit(Some(b"anything")), Ok(principal()));
        assert_eq!(listener.admit(Some(b"view")), Err(AdmissionError::VIEWER));
        let ann = Principal { actor: named("ann"), tenant: TenantId::new("acme").ok() };
        tokens.add("call", TokenHolder::Client(ann.clone()));
        assert_eq!(listener.admit(Some(b"call")), Ok(ann));
        for bearer in [None, Some(&b"anything"[..])] {
            assert_eq!(listener.admit(bearer), Err(AdmissionError::TOKEN));
        }
        assert_eq!(listener.admit(Some(b"person")), Ok(principal()), "the admin may do everything");
        let reached = Listener::new(GatewayEndpoint {
            tokens: BearerTokens::default(),
            local: None,
            ..listener.endpoint.clone()
        });
        assert_eq!(reached.admit(None), Err(AdmissionError::TOKEN), "others can reach it");
    }

    #[tokio::test(start_paused = true)]
    async fn sf_7_a_session_is_not_valid_for_the_same_name_in_another_tenant() {
        let listener = listener().await;
        let id = initialize_session(&listener).unwrap();
        listener.memory(&id, &principal()).keep(SessionHandshakes::new()).await;
        let namesake = Principal { tenant: TenantId::new("acme").ok(), ..principal() };
        assert!(listener.memory(&id, &namesake).find().await.is_none());
        assert!(listener.session(&id, &namesake).await.is_none());
        assert!(listener.session(&id, &principal()).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn sf_7_a_principal_that_is_admitted_again_continues_the_session() {
        let listener = listener().await;
        let id = initialize_session(&listener).unwrap();
        listener.memory(&id, &principal()).keep(SessionHandshakes::new()).await;
        listener.end_sessions(|one| *one != principal());
        assert!(listener.sessions.lock().contains_key(&id), "nobody else was meant");
        listener.end_sessions(|one| *one == principal());
        assert!(listener.sessions.lock().is_empty());
        assert!(listener.session(&id, &principal()).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_ended_session_is_not_stored_again_by_requests_in_flight() {
        let listener = listener().await;
        let id = initialize_session(&listener).unwrap();
        let memory = listener.memory(&id, &principal());
        memory.keep(SessionHandshakes::new()).await;
        assert!(memory.find().await.is_some());
        memory.forget().await;
        memory.keep(SessionHandshakes::new()).await;
        assert!(memory.find().await.is_none());
    }
}
