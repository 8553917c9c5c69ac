//! Clients over streamable HTTP and their sessions: what `steadfast serve` and `steadfast wrap --listen` do.
//!
//! In the older era a session begins with `initialize` and ends when its client says so or has been silent for long. In
//! the modern one every request stands alone; those of one client share what they need.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_core::id::{ActorId, Digest, SessionKey};
use steadfast_executor::Engine;
use steadfast_mcp::http::front::{
    self, AdminToken, Caller, Front, Holder, Listening, NotAdmitted, Principal, Refusal, Resumed, SessionId,
    StreamLimits, Tokens,
};
use steadfast_mcp::http::{Era, MODERN};
use steadfast_mcp::message::Message;
use steadfast_mcp::raw;
use steadfast_store::Store;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::client::{Client, Reply};
use crate::configured::{Configured, Sharing};
use crate::large_results::LargeResults;
use crate::look::SessionView;
use crate::memory::{Agreements, Memory};
use crate::pool::{Pool, Sharers};
use crate::reliability::OwnTools;
use crate::server::Handshake;
use crate::session::{Incoming, Returned, Session};
use crate::who::Connection;

/// What is behind one address, and for whom.
#[derive(Clone)]
pub struct Door {
    /// Runs the calls.
    pub engine: Engine,
    /// Where sessions are kept that outlive us.
    pub store: Arc<dyn Store>,
    /// What this door is called. A session of one is none of another.
    pub name: Arc<str>,
    /// The servers behind it.
    pub servers: Vec<Configured>,
    /// The tools of our own that its clients see.
    pub own_tools: OwnTools,
    /// Texts of results that are longer than clients are to be given.
    pub large_results: Arc<LargeResults>,
    /// The servers that sessions share, also those of other doors.
    pub pool: Arc<Pool>,
    /// Who may come in.
    pub tokens: Tokens,
    /// Who asks without a token, as long as no client has one. Nobody, where others than those of this machine can ask.
    pub local: Option<ActorId>,
    /// The holder of the admin token, who makes calls like a client.
    pub operator: Option<Operator>,
}

/// The operator of a gateway as a client of it.
#[derive(Clone, Debug)]
pub struct Operator {
    /// What the operator sends.
    pub token: AdminToken,
    /// As whom the calls are made.
    pub actor: ActorId,
}

/// The sessions of all clients of a door.
pub struct Listener {
    door: Door,
    sessions: Mutex<HashMap<SessionId, Arc<Attached>>>,
    /// What those have who have no session.
    sessionless: Mutex<HashMap<Principal, Arc<Attached>>>,
    /// How many sessions have ended for good.
    ended: AtomicU64,
    stop: CancellationToken,
}

/// A client and what keeps it connected.
struct Attached {
    /// Nothing in the modern era.
    streams: Option<Arc<front::Session>>,
    principal: Principal,
    session: Arc<Session>,
    inbox: mpsc::Sender<Incoming>,
    /// When something was last heard of the client.
    heard: Mutex<Instant>,
    taking: JoinHandle<()>,
    kept: Vec<JoinHandle<()>>,
    /// Nothing is waited for any more.
    stop: CancellationToken,
}

/// The most sessions at a time where they share their servers.
const MOST_SESSIONS: usize = 1024;
/// Messages of one session that wait to be looked at.
const INBOX: usize = 256;
/// A session of which nothing was heard for so long is ended.
const IDLE: Duration = Duration::from_secs(30 * 60);
/// The same for one whose server never answered.
const STILLBORN: Duration = Duration::from_secs(60);
/// A session of which nothing was heard for so long makes room where there is none.
const SILENT: Duration = Duration::from_secs(60);
/// How often a session is looked for in the store while others end.
const LOOKS: u32 = 8;
/// How often idle sessions are looked for.
const LOOK: Duration = Duration::from_secs(60);
/// When a client that finds no room may ask again.
const LATER: Duration = Duration::from_secs(5);

impl Listener {
    /// Takes clients. As long as none has a token, everybody who can reach us is the local one, where there is one.
    pub fn new(door: Door) -> Arc<Self> {
        let (sessions, sessionless) = (Mutex::default(), Mutex::default());
        let ended = AtomicU64::new(0);
        Arc::new(Self { door, sessions, sessionless, ended, stop: CancellationToken::new() })
    }

    /// The clients that are connected.
    pub fn look(&self) -> Vec<SessionView> {
        let mut attached: Vec<_> = self.sessions.lock().values().cloned().collect();
        attached.extend(self.sessionless.lock().values().cloned());
        attached.iter().map(|one| one.look(&self.door)).collect()
    }

    /// Ends the sessions of these, whose tokens do not count any more. What they agreed on stays in the store: whoever of them
    /// is let in again goes on there.
    pub fn turn_out(&self, is_out: impl Fn(&Principal) -> bool) {
        let is_out = |one: &Attached| is_out(&one.principal);
        let mut gone: Vec<_> =
            self.sessions.lock().extract_if(|_, one| is_out(one)).map(|(_, one)| one).collect();
        gone.extend(self.sessionless.lock().extract_if(|_, one| is_out(one)).map(|(_, one)| one));
        for one in gone {
            drop(one.end());
        }
    }

    /// Ends sessions that are not used any more, until it is dropped.
    pub async fn tidy(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let idle: Vec<SessionId> = {
                let sessions = self.sessions.lock();
                sessions.iter().filter(|(_, one)| one.is_idle()).map(|(id, _)| id.clone()).collect()
            };
            for id in idle {
                self.drop_session(&id).await;
            }
            self.door.pool.tidy().await;
        }
    }

    /// Ends every session, after what is under way has had the time that the engine gives it.
    pub async fn close(&self, drain: Duration) {
        self.door.engine.shutdown(drain).await;
        self.stop.cancel();
        let mut attached: Vec<_> = self.sessions.lock().drain().map(|(_, one)| one).collect();
        attached.extend(self.sessionless.lock().drain().map(|(_, one)| one));
        let ending: Vec<_> = attached.into_iter().map(|one| one.end()).collect();
        for one in ending {
            let _ = one.await;
        }
        self.door.pool.close().await;
    }

    async fn drop_session(&self, id: &SessionId) {
        let found = self.sessions.lock().get(id).cloned();
        if let Some(found) = found {
            // First: whoever speaks in it meanwhile would bring it back.
            found.session.forget().await;
        }
        let gone = {
            let mut sessions = self.sessions.lock();
            self.ended.fetch_add(1, Ordering::Release);
            sessions.remove(id)
        };
        if let Some(gone) = gone {
            // Whoever says that it is done does not wait for what it began.
            drop(gone.end());
        }
    }

    /// Makes a client one that can be spoken with.
    fn attach(
        &self,
        streams: Option<Arc<front::Session>>,
        principal: Principal,
        first: First,
    ) -> Arc<Attached> {
        let memory = streams.as_ref().map(|streams| self.memory(streams.id(), &principal));
        let client = streams.clone().map_or(Client::Answers, Client::Streams);
        // Who knows the name of a session can speak in it, so it is not written down.
        let key = streams.as_ref().map(|streams| Digest::of(streams.id().as_str().as_bytes()).fingerprint());
        let session = key.and_then(|key| SessionKey::new(format!("mcp:{key}")).ok());
        let Principal { actor, tenant } = principal.clone();
        let connection = Connection { actor, tenant, session };
        let sharers = first.introduction().map(|said| Sharers { principal: principal.clone(), said });
        let behind = self.door.servers.iter().map(|server| match (server.sharing, &sharers) {
            (Sharing::Shared, Some(sharers)) => (self.door.pool.get(server, sharers), None),
            (Sharing::Shared | Sharing::PerSession { .. }, _) => server.alone(first.handshake(server)),
        });
        let (behind, keeping) = behind.unzip();
        let (engine, own_tools) = (self.door.engine.clone(), self.door.own_tools);
        let large = self.door.large_results.clone();
        let session = Session::new(engine, behind, client, connection, own_tools, large, memory);
        let kept = session.keep_servers(keeping);
        let (inbox, mut messages) = mpsc::channel(INBOX);
        let taking = session.clone();
        // One after the other: what a client says first is heard first.
        let taking = tokio::spawn(async move {
            if let First::Before(agreements) = first {
                taking.recall(&agreements).await;
            }
            while let Some(incoming) = messages.recv().await {
                taking.take(incoming).await;
            }
        });
        Arc::new(Attached {
            streams,
            principal,
            session,
            inbox,
            heard: Mutex::new(Instant::now()),
            taking,
            kept,
            stop: self.stop.clone(),
        })
    }

    fn memory(&self, id: &SessionId, principal: &Principal) -> Memory {
        Memory::new(self.door.store.clone(), id, &self.door.name, principal)
    }

    /// A session that another process of ours had, or that had to make room for others.
    async fn recall(&self, id: &SessionId, principal: &Principal) -> Option<Arc<Attached>> {
        for _ in 0..LOOKS {
            let ended = self.ended.load(Ordering::Acquire);
            let agreements = self.memory(id, principal).find().await?;
            let mut sessions = self.sessions.lock();
            if let Some(found) = sessions.get(id) {
                return Some(found.clone());
            }
            // It may have been this one that its client has just ended: what was read of it may not be true any more.
            if self.ended.load(Ordering::Acquire) != ended {
                continue;
            }
            if !self.has_room(&mut sessions) {
                return None;
            }
            let streams = front::Session::again(id.clone(), StreamLimits::default());
            let attached = self.attach(Some(streams), principal.clone(), First::Before(agreements));
            sessions.insert(id.clone(), attached.clone());
            return Some(attached);
        }
        None
    }

    /// Whether one more session has a place here. If there is none, the one makes room of which nothing was heard for the
    /// longest time, if nobody waits for anything in it. What it agreed on stays in the store: it comes back if it speaks.
    fn has_room(&self, sessions: &mut HashMap<SessionId, Arc<Attached>>) -> bool {
        if sessions.len() < self.most_sessions() {
            return true;
        }
        let silent = sessions.iter().filter(|(_, one)| one.is_silent_for(SILENT));
        let Some(longest) = silent.min_by_key(|(_, one)| *one.heard.lock()).map(|(id, _)| id.clone()) else {
            return false;
        };
        if let Some(gone) = sessions.remove(&longest) {
            tracing::info!(event = "session.made_room", door = &*self.door.name);
            drop(gone.end());
        }
        true
    }

    /// As many as the scarcest server allows.
    fn most_sessions(&self) -> usize {
        let most = self.door.servers.iter().map(|server| match server.sharing {
            Sharing::Shared => MOST_SESSIONS,
            Sharing::PerSession { most } => most,
        });
        most.min().unwrap_or(MOST_SESSIONS)
    }

    /// The client that this message is of; in the older era `initialize` makes it one.
    fn client_of(&self, incoming: &front::Incoming) -> Result<Arc<Attached>, Refusal> {
        let id = incoming.message.id();
        match (incoming.era, &incoming.session) {
            (Era::Modern, _) => {
                let principal = &incoming.caller.principal;
                let mut sessionless = self.sessionless.lock();
                if let Some(found) = sessionless.get(principal) {
                    return Ok(found.clone());
                }
                let attached = self.attach(None, principal.clone(), First::Nothing);
                sessionless.insert(principal.clone(), attached.clone());
                Ok(attached)
            }
            (Era::Legacy, Some(session)) => {
                let found = self.sessions.lock().get(session.id()).cloned();
                found.ok_or_else(|| Refusal::unknown_session(id.as_ref()))
            }
            (Era::Legacy, None) => {
                let mut sessions = self.sessions.lock();
                if !self.has_room(&mut sessions) {
                    return Err(Refusal::overloaded(id.as_ref(), LATER));
                }
                let name = new_id();
                let streams = front::Session::new(name.clone(), StreamLimits::default());
                let principal = incoming.caller.principal.clone();
                let first = First::Now(introduction(&incoming.message));
                let attached = self.attach(Some(streams), principal, first);
                sessions.insert(name, attached.clone());
                Ok(attached)
            }
        }
    }
}

/// How a client begins.
enum First {
    /// It introduces itself, and says this of what it can.
    Now(Digest),
    /// It did so before, to another process of ours.
    Before(Agreements),
    /// It never does, in the modern era.
    Nothing,
}

impl First {
    fn introduction(&self) -> Option<Digest> {
        match self {
            Self::Now(said) => Some(*said),
            Self::Before(agreements) => {
                agreements.values().find_map(|told| told.initialize()).map(|request| introduction(&request))
            }
            Self::Nothing => None,
        }
    }

    fn handshake(&self, server: &Configured) -> Handshake {
        match self {
            Self::Before(agreements) => match agreements.get(server.name.as_str()) {
                Some(told) => Handshake::restored(told.clone()),
                None => Handshake::default(),
            },
            Self::Now(_) | Self::Nothing => Handshake::default(),
        }
    }
}

/// What a client says of itself as far as a server acts on it: those who say the same can share one.
fn introduction(initialize: &Message) -> Digest {
    let said = |name| initialize.param(name).unwrap_or_default();
    let version = raw::string(said("protocolVersion")).unwrap_or_default();
    Digest::of(format!("{version}\n{}", said("capabilities")).as_bytes())
}

impl Front for Listener {
    fn admit(&self, bearer: Option<&[u8]>) -> Result<Principal, NotAdmitted> {
        let Door { tokens, local, operator, .. } = &self.door;
        if let (Some(operator), Some(bearer)) = (operator, bearer)
            && operator.token.is(bearer)
        {
            return Ok(Principal::new(operator.actor.clone()));
        }
        match bearer.and_then(|bearer| tokens.holder(bearer)) {
            Some(Holder::Client(principal)) => Ok(principal),
            Some(Holder::Viewer(_)) => Err(NotAdmitted::VIEWER),
            None => match local {
                Some(local) if !tokens.have_clients() => Ok(Principal::new(local.clone())),
                Some(_) | None => Err(NotAdmitted::TOKEN),
            },
        }
    }

    fn versions(&self) -> Vec<String> {
        // Those of the older era are agreed on in its handshake; a server lists these, and no others, when it is asked
        // what it supports.
        vec![MODERN.to_owned()]
    }

    async fn session(&self, id: &SessionId, principal: &Principal) -> Option<Arc<front::Session>> {
        let found = self.sessions.lock().get(id).cloned();
        let found = match found {
            Some(found) => found,
            None => self.recall(id, principal).await?,
        };
        *found.heard.lock() = Instant::now();
        found.streams.clone().filter(|_| found.principal == *principal)
    }

    fn message(&self, incoming: front::Incoming) -> Result<(), Refusal> {
        let client = self.client_of(&incoming)?;
        let front::Incoming { message, caller, era, responder, .. } = incoming;
        if let (Some(responder), Some(streams), Some("initialize")) =
            (&responder, &client.streams, message.method())
        {
            responder.open_session(streams);
        }
        let id = responder.as_ref().map(|responder| responder.id().clone());
        let reply = responder.map(|responder| Reply::Http(responder, era));
        // Those without a session share one, and are still each somebody.
        let Principal { actor, tenant } = caller.principal;
        let from = (era == Era::Modern).then_some(Connection { actor, tenant, session: None });
        let taken = client.inbox.try_send(Incoming { message, reply, headers: caller.headers, from });
        taken.map_err(|untaken| match untaken {
            TrySendError::Full(_) => Refusal::overloaded(id.as_ref(), LATER),
            TrySendError::Closed(_) => Refusal::unknown_session(id.as_ref()),
        })
    }

    fn listening(&self, listening: Listening) {
        match listening.resumed {
            Resumed::Fresh | Resumed::Yes => {}
            Resumed::Unknown(last) => {
                let found = self.sessions.lock().get(listening.session.id()).cloned();
                if let Some(found) = found {
                    found.session.give_missed(Returned { last, stream: listening.stream });
                }
            }
        }
    }

    async fn end(&self, session: Arc<front::Session>, _: Caller) {
        self.drop_session(session.id()).await;
    }
}

impl Attached {
    fn look(&self, door: &Door) -> SessionView {
        let connection = self.session.connection();
        SessionView {
            session: connection.session.as_ref().map(ToString::to_string),
            door: door.name.to_string(),
            servers: door.servers.iter().map(|server| server.name.to_string()).collect(),
            actor: connection.actor.to_string(),
            tenant: connection.tenant.as_ref().map(ToString::to_string),
            silent_ms: steadfast_core::millis(self.heard.lock().elapsed()),
            listens: self.streams.as_ref().is_some_and(|streams| streams.is_listening()),
            waiting: self.session.waiting(),
        }
    }

    fn is_idle(&self) -> bool {
        self.is_silent_for(if self.session.has_begun() { IDLE } else { STILLBORN })
    }

    /// Whether nobody listens and nobody waits for anything, and nothing was heard for so long.
    fn is_silent_for(&self, patience: Duration) -> bool {
        let listens = self.streams.as_ref().is_some_and(|streams| streams.is_listening());
        !listens && !self.session.is_busy() && self.heard.lock().elapsed() >= patience
    }

    /// Takes no more messages, waits for what is under way as long as calls may take, and ends the server.
    fn end(&self) -> JoinHandle<()> {
        if let Some(streams) = &self.streams {
            streams.close();
        }
        self.taking.abort();
        let kept: Vec<_> = self.kept.iter().map(JoinHandle::abort_handle).collect();
        let (session, stop) = (self.session.clone(), self.stop.clone());
        tokio::spawn(async move {
            session.finish(&stop).await;
            session.stop().await;
            for kept in kept {
                kept.abort();
            }
        })
    }
}

/// A name that nobody can guess.
#[expect(
    clippy::expect_used,
    reason = "hex digits; and who cannot draw a name must not give one that can be guessed"
)]
fn new_id() -> SessionId {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).expect("the system has randomness");
    SessionId::new(&Digest::from_bytes(bytes).to_hex()).expect("64 hex digits are a name")
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use http::HeaderMap;
    use steadfast_core::id::TenantId;
    use steadfast_core::large_result::KeptBounds;
    use steadfast_mcp::delivery::Link;
    use steadfast_store::MemoryStore;

    use super::*;

    const MOST: usize = 3;

    async fn listener() -> Arc<Listener> {
        Listener::new(Door {
            engine: Engine::builder().start().await,
            store: Arc::new(MemoryStore::default()),
            name: "door".into(),
            servers: vec![Configured::nowhere(Sharing::PerSession { most: MOST })],
            own_tools: OwnTools::default(),
            large_results: LargeResults::new(KeptBounds { keep: SILENT, entries: 0, bytes: 0 }),
            pool: Arc::default(),
            tokens: Tokens::default(),
            local: Some(me()),
            operator: AdminToken::new("person").map(|token| Operator { token, actor: me() }),
        })
    }

    fn me() -> ActorId {
        ActorId::new("me").unwrap()
    }

    fn principal() -> Principal {
        Principal::new(me())
    }

    /// A client introduces itself: the name of its session, if it has a place.
    fn comes(listener: &Listener) -> Option<SessionId> {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
        let address: Option<SocketAddr> = None;
        let caller = Caller { principal: principal(), headers: HeaderMap::new(), address, link: Link::new() };
        let attached = listener.client_of(&front::Incoming {
            message: Message::parse(text.to_owned(), usize::MAX).unwrap(),
            caller,
            era: Era::Legacy,
            version: None,
            session: None,
            responder: None,
        });
        attached.ok().and_then(|one| Some(one.streams.as_ref()?.id().clone()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_was_left_makes_room_and_comes_back_if_its_client_does() {
        let listener = listener().await;
        let mut first = Vec::new();
        for _ in 0..MOST {
            first.push(comes(&listener).unwrap());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(comes(&listener), None, "nobody was silent for long");
        listener.memory(&first[0], &principal()).keep(Agreements::new()).await;
        tokio::time::advance(SILENT).await;
        // The second one is heard of, the first one is not.
        assert!(listener.session(&first[1], &principal()).await.is_some());
        let late = comes(&listener).unwrap();
        let has = |id: &SessionId| listener.sessions.lock().contains_key(id);
        assert!(!has(&first[0]) && has(&first[1]) && has(&first[2]) && has(&late));
        // It comes back in the place of the one that is silent for the longest time now.
        assert!(listener.session(&first[0], &principal()).await.is_some());
        assert!(has(&first[0]) && has(&first[1]) && !has(&first[2]) && has(&late));
        assert_eq!(comes(&listener), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_in_which_somebody_waits_keeps_its_place() {
        let listener = listener().await;
        let sessions: Vec<_> = (0..MOST).map(|_| comes(&listener).unwrap()).collect();
        let of = |id: &SessionId| listener.sessions.lock().get(id).cloned().unwrap();
        let busy: Vec<_> = sessions.iter().map(|id| of(id).session.busy()).collect();
        tokio::time::advance(SILENT * 2).await;
        assert_eq!(comes(&listener), None);
        drop(busy);
        assert!(comes(&listener).is_some());
    }

    fn named(name: &str) -> ActorId {
        ActorId::new(name).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn sf_7_nobody_comes_in_without_a_token_as_soon_as_a_client_has_one() {
        let listener = listener().await;
        let tokens = &listener.door.tokens;
        tokens.add("view", Holder::Viewer(named("grafana")));
        assert_eq!(listener.admit(None), Ok(principal()));
        assert_eq!(listener.admit(Some(b"anything")), Ok(principal()));
        assert_eq!(listener.admit(Some(b"view")), Err(NotAdmitted::VIEWER));
        let ann = Principal { actor: named("ann"), tenant: TenantId::new("acme").ok() };
        tokens.add("call", Holder::Client(ann.clone()));
        assert_eq!(listener.admit(Some(b"call")), Ok(ann));
        for bearer in [None, Some(&b"anything"[..])] {
            assert_eq!(listener.admit(bearer), Err(NotAdmitted::TOKEN));
        }
        assert_eq!(listener.admit(Some(b"person")), Ok(principal()), "the admin may do everything");
        let reached = Listener::new(Door { tokens: Tokens::default(), local: None, ..listener.door.clone() });
        assert_eq!(reached.admit(None), Err(NotAdmitted::TOKEN), "others can reach it");
    }

    #[tokio::test(start_paused = true)]
    async fn sf_7_a_session_is_not_that_of_somebody_of_the_same_name_elsewhere() {
        let listener = listener().await;
        let id = comes(&listener).unwrap();
        listener.memory(&id, &principal()).keep(Agreements::new()).await;
        let namesake = Principal { tenant: TenantId::new("acme").ok(), ..principal() };
        assert!(listener.memory(&id, &namesake).find().await.is_none());
        assert!(listener.session(&id, &namesake).await.is_none());
        assert!(listener.session(&id, &principal()).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn sf_7_who_is_turned_out_goes_on_if_they_are_let_in_again() {
        let listener = listener().await;
        let id = comes(&listener).unwrap();
        listener.memory(&id, &principal()).keep(Agreements::new()).await;
        listener.turn_out(|one| *one != principal());
        assert!(listener.sessions.lock().contains_key(&id), "nobody else was meant");
        listener.turn_out(|one| *one == principal());
        assert!(listener.sessions.lock().is_empty());
        assert!(listener.session(&id, &principal()).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_has_ended_is_not_kept_by_what_was_under_way_in_it() {
        let listener = listener().await;
        let id = comes(&listener).unwrap();
        let memory = listener.memory(&id, &principal());
        memory.keep(Agreements::new()).await;
        assert!(memory.find().await.is_some());
        memory.forget().await;
        memory.keep(Agreements::new()).await;
        assert!(memory.find().await.is_none());
    }
}
