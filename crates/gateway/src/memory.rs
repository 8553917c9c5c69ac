//! Sessions that outlive us: what a client of the older era agreed on with its server, kept in the store.
//!
//! The name of a session lets whoever knows it speak in it, so it is kept as a digest, with the one it belongs to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use steadfast_core::id::{Digest, TenantId};
use steadfast_core::{Timestamp, millis};
use steadfast_mcp::http::front::{Principal, SessionId};
use steadfast_store::{DocumentKind, DocumentName, DocumentWrite, Store, Written as Outcome};

use crate::server::Written;

/// How long an agreement is kept after it changed last.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// How often a change is tried again because somebody else was faster.
const TRIES: u32 = 8;

/// Where one session is kept.
pub(crate) struct Memory {
    store: Arc<dyn Store>,
    name: DocumentName,
    door: Arc<str>,
    principal: Principal,
    /// Whether the session has ended.
    over: AtomicBool,
}

/// What each server was told, by its name.
pub(crate) type Agreements = BTreeMap<String, Written>;

/// An agreement as it lies in the store.
#[derive(Deserialize, Serialize)]
struct Kept {
    format: u32,
    door: String,
    principal: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    told: Agreements,
}

const FORMAT: u32 = 1;

impl Memory {
    pub(crate) fn new(store: Arc<dyn Store>, id: &SessionId, door: &Arc<str>, principal: &Principal) -> Self {
        let id = Digest::of(id.as_str().as_bytes()).to_hex();
        let name = DocumentName { kind: DocumentKind::Agreement, id: id.into() };
        let over = AtomicBool::new(false);
        Self { store, name, door: door.clone(), principal: principal.clone(), over }
    }

    /// Keeps what the client told its servers so far. A store that fails is no reason not to go on: the session then ends
    /// with us. One that has ended is not kept again by what was still under way in it.
    pub(crate) async fn keep(&self, told: Agreements) {
        if self.is_over() {
            return;
        }
        let kept = Kept {
            format: FORMAT,
            door: self.door.as_ref().to_owned(),
            principal: self.principal.actor.to_string(),
            tenant: self.principal.tenant.as_ref().map(ToString::to_string),
            told,
        };
        let Ok(body) = serde_json::to_string(&kept) else { return };
        self.write(Some(body.into())).await;
        if self.is_over() {
            self.write(None).await;
        }
    }

    /// The session has ended.
    pub(crate) async fn forget(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.write(None).await;
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// What was agreed on, if this one did.
    pub(crate) async fn find(&self) -> Option<Agreements> {
        let document = self.store.read(&self.name).await.ok()??;
        let kept: Kept = serde_json::from_str(&document.body).ok()?;
        let Principal { actor, tenant } = &self.principal;
        let is_theirs = kept.principal == actor.as_str()
            && kept.tenant.as_deref() == tenant.as_ref().map(TenantId::as_str);
        let is_ours = kept.format == FORMAT && kept.door == *self.door && is_theirs;
        is_ours.then_some(kept.told)
    }

    async fn write(&self, body: Option<Arc<str>>) {
        let expires = Some(now() + KEPT);
        let mut found = match self.store.read(&self.name).await {
            Ok(found) => found,
            Err(error) => return tracing::warn!(event = "session.not_kept", why = %error),
        };
        for _ in 0..TRIES {
            if found.is_none() && body.is_none() {
                return;
            }
            let replaces = found.as_ref().map(|document| document.version);
            let write = DocumentWrite { replaces, body: body.clone(), expires };
            match self.store.write(&self.name, write).await {
                Ok(Outcome::As(_)) => return,
                Ok(Outcome::Stale(now)) => found = now,
                Err(error) => return tracing::warn!(event = "session.not_kept", why = %error),
            }
        }
    }
}

fn now() -> Timestamp {
    Timestamp::from_millis(millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
}
