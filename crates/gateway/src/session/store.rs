//! Sessions that survive a restart: the handshake of a client of the legacy era with its servers, in the store.
//!
//! A session id grants access to the session, so it is stored as a digest, together with its principal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use steadfast_core::id::{Digest, TenantId};
use steadfast_core::{Timestamp, millis};
use steadfast_mcp::http::server::{McpSessionId, Principal};
use steadfast_store::{
    DocumentKind, DocumentName, DocumentWrite, DocumentWriteOutcome as Outcome, StateStore,
};

use crate::servers::upstream::StoredHandshake;

/// The time that a session is stored after its last change.
const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// The number of attempts to write when other processes write at the same time.
const ATTEMPTS: u32 = 8;

/// The stored document of one session.
pub(crate) struct SessionStore {
    store: Arc<dyn StateStore>,
    name: DocumentName,
    endpoint: Arc<str>,
    principal: Principal,
    /// True if the session has ended.
    over: AtomicBool,
}

/// The handshake with each server, by server name.
pub(crate) type SessionHandshakes = BTreeMap<String, StoredHandshake>;

/// The handshakes of a session as stored.
#[derive(Deserialize, Serialize)]
struct StoredSession {
    format: u32,
    #[serde(rename = "door")]
    endpoint: String,
    principal: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(rename = "told")]
    handshakes: SessionHandshakes,
}

const FORMAT: u32 = 1;

impl SessionStore {
    pub(crate) fn new(
        store: Arc<dyn StateStore>,
        id: &McpSessionId,
        endpoint: &Arc<str>,
        principal: &Principal,
    ) -> Self {
        let id = Digest::of(id.as_str().as_bytes()).to_hex();
        let name = DocumentName { kind: DocumentKind::Agreement, id: id.into() };
        let over = AtomicBool::new(false);
        Self { store, name, endpoint: endpoint.clone(), principal: principal.clone(), over }
    }

    /// Stores the current handshakes. A failing store is tolerated: the session then does not survive a restart. A
    /// session that has ended is not stored again by requests that were still in flight.
    pub(crate) async fn keep(&self, handshakes: SessionHandshakes) {
        if self.is_over() {
            return;
        }
        let session = StoredSession {
            format: FORMAT,
            endpoint: self.endpoint.as_ref().to_owned(),
            principal: self.principal.actor.to_string(),
            tenant: self.principal.tenant.as_ref().map(ToString::to_string),
            handshakes,
        };
        let Ok(body) = serde_json::to_string(&session) else { return };
        self.write(Some(body.into())).await;
        if self.is_over() {
            self.write(None).await;
        }
    }

    /// Deletes the session from the store.
    pub(crate) async fn forget(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.write(None).await;
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Reads the handshakes, if they belong to this principal and endpoint.
    pub(crate) async fn find(&self) -> Option<SessionHandshakes> {
        let document = self.store.read(&self.name).await.ok()??;
        let session: StoredSession = serde_json::from_str(&document.body).ok()?;
        let Principal { actor, tenant } = &self.principal;
        let is_same_principal = session.principal == actor.as_str()
            && session.tenant.as_deref() == tenant.as_ref().map(TenantId::as_str);
        let is_valid = session.format == FORMAT && session.endpoint == *self.endpoint && is_same_principal;
        is_valid.then_some(session.handshakes)
    }

    async fn write(&self, body: Option<Arc<str>>) {
        let expires = Some(now() + RETENTION);
        let mut found = match self.store.read(&self.name).await {
            Ok(found) => found,
            Err(error) => return tracing::warn!(event = "session.not_kept", "why" = %error),
        };
        for _ in 0..ATTEMPTS {
            if found.is_none() && body.is_none() {
                return;
            }
            let replaces = found.as_ref().map(|document| document.version);
            let write = DocumentWrite { replaces, body: body.clone(), expires };
            match self.store.write(&self.name, write).await {
                Ok(Outcome::Written(_)) => return,
                Ok(Outcome::Stale(now)) => found = now,
                Err(error) => return tracing::warn!(event = "session.not_kept", "why" = %error),
            }
        }
    }
}

fn now() -> Timestamp {
    Timestamp::from_millis(millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
}
