//! Persistence of the shared machines: breakers, trust, approvals and loop guards.
//!
//! Nothing here is on the path of a call. A change marks a document. A background task writes the newest state a moment
//! later, once, with a comparison against the stored version. Writes of other processes are adopted when the store
//! reports them. While the store is down the marks stay, so that the documents are written after it recovers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use steadfast_core::breaker::{self, BreakerTransition, CircuitBreaker};
use steadfast_core::call::{BreakerScope, CallNotice, CallRequest};
use steadfast_core::guard::{self, LoopGuard, UnsupportedGuardSnapshot};
use steadfast_core::id::{Domain, Namespace, SessionKey, TenantId, ToolName, ToolRef};
use steadfast_core::notification::Notification;
use steadfast_core::trust::{TrustBounds, TrustLedger, TrustSnapshot, changes_between};
use steadfast_store::{
    DocumentKind, DocumentName, DocumentWrite, DocumentWriteOutcome, StoreError, StoreErrorKind, StoreEvent,
};
use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;

use crate::engine::api::EngineInner;
use crate::shared::cells::{DependencyKey, SessionId, ToolKey};
use crate::shared::trust_file::TrustStorage;

/// The documents to write.
#[derive(Debug, Default)]
pub(crate) struct DirtyDocuments {
    marked: Mutex<BTreeSet<DirtyDocument>>,
    changed: Notify,
    /// Held by the only writer, so that a shutdown also waits for a write by the background task.
    writing: tokio::sync::Mutex<()>,
}

/// A document whose stored version is out of date.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DirtyDocument {
    Tool(ToolKey),
    Dependency(DependencyKey),
    Trust(Option<TenantId>),
    Session(SessionId),
}

/// The name of a document: readable and unambiguous.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DocumentId {
    Tool(Option<TenantId>, Namespace, ToolName),
    Dependency(Option<TenantId>, Arc<str>),
    Tenant(Option<TenantId>),
    Session(Option<TenantId>, Option<SessionKey>),
}

/// Time for which changes are collected before they are written.
const GATHER: Duration = Duration::from_millis(50);
/// Pause after a failed write.
const PAUSE: Duration = Duration::from_secs(2);
/// Maximum time that a change by an operator waits for the store.
const PATIENCE: Duration = Duration::from_secs(5);
/// The interval at which an unavailable store is probed, so that its recovery is noticed.
const PROBE_EVERY: Duration = Duration::from_secs(2);
/// Maximum number of tries of a write that loses against concurrent writers.
const TRIES: u32 = 8;
/// Time for which a loop guard is stored.
const SESSION_LASTS: Duration = Duration::from_secs(24 * 3600);
/// Time for which a breaker is stored. Without activity for this long it is closed anyway.
const BREAKER_LASTS: Duration = Duration::from_secs(7 * 24 * 3600);

impl DirtyDocuments {
    /// Marks the documents that these notices change.
    pub(crate) fn note(
        &self,
        request: &CallRequest,
        coarser: impl Fn() -> Option<DependencyKey>,
        notices: &[CallNotice],
    ) {
        for notice in notices {
            let marked = match notice {
                CallNotice::BreakerChanged { scope, .. } | CallNotice::ProbeMoved { scope } => {
                    match DirtyDocument::breaker(*scope, request, &coarser) {
                        Some(marked) => marked,
                        None => continue,
                    }
                }
                CallNotice::TrustChanged(_) => DirtyDocument::Trust(request.tenant.clone()),
                CallNotice::GuardTripped { .. } => DirtyDocument::Session(SessionId {
                    tenant: request.tenant.clone(),
                    session: request.session.clone(),
                }),
                CallNotice::CallStarted { .. }
                | CallNotice::CallBlocked { .. }
                | CallNotice::Following
                | CallNotice::Replayed { .. }
                | CallNotice::TookOver
                | CallNotice::KeyConflict
                | CallNotice::ApprovalAsked
                | CallNotice::ApprovalEnded { .. }
                | CallNotice::AttemptStarted { .. }
                | CallNotice::AttemptEnded { .. }
                | CallNotice::InputRequired
                | CallNotice::RetryScheduled { .. }
                | CallNotice::RetryStopped { .. }
                | CallNotice::AttemptCut { .. }
                | CallNotice::AnsweredEarly { .. }
                | CallNotice::OutcomeUnknown { .. }
                | CallNotice::Verified { .. }
                | CallNotice::FenceLost
                | CallNotice::StoreFailed { .. }
                | CallNotice::WouldHave(_)
                | CallNotice::CallFinished { .. } => continue,
            };
            self.mark(marked);
        }
    }

    pub(crate) fn mark(&self, marked: DirtyDocument) {
        self.marked.lock().insert(marked);
        self.changed.notify_one();
    }
}

impl EngineInner {
    /// Writes the marked documents, for as long as the engine lives.
    pub(crate) async fn persist(&self) {
        loop {
            self.marks.changed.notified().await;
            tokio::time::sleep(GATHER).await;
            if !self.persist_now().await {
                tokio::time::sleep(PAUSE).await;
                self.marks.changed.notify_one();
            }
        }
    }

    /// Writes the marked documents. Returns true if all writes succeeded; then everything that was marked before is in
    /// the store.
    pub(crate) async fn persist_now(&self) -> bool {
        let _writing = self.marks.writing.lock().await;
        let marked = std::mem::take(&mut *self.marks.marked.lock());
        let mut through = true;
        for marked in marked {
            if let Err(error) = self.write(&marked).await {
                self.telemetry_hooks.store_failed(self.store.kind(), &error);
                self.marks.marked.lock().insert(marked);
                through = false;
            }
        }
        through
    }

    /// Loads all stored state.
    pub(crate) async fn load(&self) {
        for kind in DocumentKind::ALL.into_iter().filter(|kind| is_of_machines(*kind)) {
            self.load_kind(kind).await;
        }
    }

    /// Loads all documents of a kind.
    pub(crate) async fn load_kind(&self, kind: DocumentKind) {
        match self.store.documents(kind).await {
            Ok(documents) => {
                for (name, document) in documents {
                    let _changing = self.lock_approvals(&name).await;
                    self.adopt(&name, &document.body);
                }
            }
            Err(error) => self.telemetry_hooks.store_failed(self.store.kind(), &error),
        }
    }

    /// Loads the stored version of a document.
    pub(crate) async fn reload_marked(&self, marked: &DirtyDocument) -> Result<(), StoreError> {
        let name = marked.document()?;
        if let Some(document) = self.store.read(&name).await? {
            self.adopt(&name, &document.body);
        }
        Ok(())
    }

    /// Handles events of the store, for as long as the engine lives.
    pub(crate) async fn listen_to_store(&self) {
        let mut news = self.store.events();
        let mut is_lost = false;
        loop {
            let told = tokio::select! {
                told = news.recv() => told,
                // If no other process writes, only a probe shows that the store accepts writes again.
                () = tokio::time::sleep(PROBE_EVERY), if is_lost => {
                    _ = steadfast_store::probe(&*self.store).await;
                    continue;
                }
            };
            match told {
                Ok(told) => {
                    match &told {
                        StoreEvent::Unavailable(_) => is_lost = true,
                        StoreEvent::Available => is_lost = false,
                        StoreEvent::DocumentChanged(_) | StoreEvent::Emptied => {}
                    }
                    self.telemetry_hooks.store_news(self.store.kind(), &told);
                    match told {
                        StoreEvent::DocumentChanged(name) => self.reload(&name).await,
                        StoreEvent::Available => {
                            self.keeper.make_due(self.clock.now());
                            self.load().await;
                        }
                        StoreEvent::Emptied => self.mark_everything(),
                        StoreEvent::Unavailable(_) => {}
                    }
                }
                Err(RecvError::Lagged(_)) => self.load().await,
                Err(RecvError::Closed) => return,
            }
        }
    }

    async fn reload(&self, name: &DocumentName) {
        let _changing = self.lock_approvals(name).await;
        match self.store.read(name).await {
            Ok(Some(document)) => self.adopt(name, &document.body),
            Ok(None) => {}
            Err(error) => self.telemetry_hooks.store_failed(self.store.kind(), &error),
        }
    }

    /// Marks everything in memory to be written again.
    fn mark_everything(&self) {
        for (key, _) in self.machines.tools.all() {
            self.marks.mark(DirtyDocument::Tool(key));
        }
        for (key, _) in self.machines.dependencies.all() {
            self.marks.mark(DirtyDocument::Dependency(key));
        }
        for (tenant, _) in self.machines.tenants.all() {
            self.marks.mark(DirtyDocument::Trust(tenant));
        }
    }

    /// Synchronizes the state in memory with the stored one: the newer one wins.
    pub(crate) async fn write(&self, marked: &DirtyDocument) -> Result<(), StoreError> {
        if let DirtyDocument::Trust(tenant) = marked {
            match &self.trust_kept {
                TrustStorage::InFile(file) if tenant.is_none() => return self.write_trust_file(file).await,
                TrustStorage::NotStored => return Ok(()),
                TrustStorage::InFile(_) | TrustStorage::InStore => {}
            }
        }
        self.change_together(marked, || ()).await
    }

    /// Changes the state in memory and the stored state together. Writes of other processes are adopted before the
    /// change and not after it: that would undo a change that only removes something. `change` may run more than once;
    /// the last run counts.
    async fn change_together<R>(
        &self,
        marked: &DirtyDocument,
        mut change: impl FnMut() -> R,
    ) -> Result<R, StoreError> {
        let name = marked.document()?;
        let mut found = self.store.read(&name).await?;
        for _ in 0..TRIES {
            if let Some(found) = &found {
                self.adopt(&name, &found.body);
            }
            let changed = change();
            let Some((body, lasts)) = self.body(marked)? else { return Ok(changed) };
            if found.as_ref().is_some_and(|found| *found.body == *body) {
                return Ok(changed);
            }
            let write = DocumentWrite {
                replaces: found.map(|found| found.version),
                body: Some(body.into()),
                expires: lasts.map(|lasts| self.store.now() + lasts),
            };
            match self.store.write(&name, write).await? {
                DocumentWriteOutcome::Written(_) => return Ok(changed),
                DocumentWriteOutcome::Stale(now) => found = now,
            }
        }
        Err(StoreError::not_done(StoreErrorKind::Full, "too many concurrent changes; try again"))
    }

    /// Changes the trust of a tenant, stored and in memory. `change` may run more than once; the last run counts.
    pub(crate) async fn change_trust<R>(
        &self,
        tenant: &Option<TenantId>,
        mut change: impl FnMut(&mut TrustLedger) -> R,
    ) -> Result<R, StoreError> {
        let marked = DirtyDocument::Trust(tenant.clone());
        match &self.trust_kept {
            TrustStorage::NotStored => {
                let cell = self.machines.tenants.get(tenant);
                let mut judged = cell.judged.lock();
                let mut result = change(&mut judged.trust);
                for trust in judged.ledgers_mut().skip(1) {
                    result = change(trust);
                }
                return Ok(result);
            }
            TrustStorage::InFile(_) if tenant.is_none() => {
                let result = change(&mut self.machines.tenants.get(tenant).judged.lock().trust);
                self.marks.mark(marked);
                return Ok(result);
            }
            TrustStorage::InFile(_) | TrustStorage::InStore => {}
        }
        let changed = || change(&mut self.machines.tenants.get(tenant).judged.lock().trust);
        self.change_together(&marked, changed).await
    }

    /// Changes a breaker for an operator, stored and in memory. Writes of other processes are adopted first. If the
    /// store fails, the change still applies in memory. `change` may run more than once, until it is stored.
    pub(crate) async fn change_breaker(
        &self,
        marked: &DirtyDocument,
        mut change: impl FnMut(&mut CircuitBreaker) -> Option<BreakerTransition>,
    ) -> (Option<BreakerTransition>, Result<(), StoreError>) {
        let mut told = None;
        let storing = self.change_together(marked, || {
            let changed = self.with_breaker(marked, &mut change);
            // A repeated change may find nothing to change: the first run determines the result.
            told = Some(told.take().flatten().or(changed));
        });
        // An operator who stops a tool in an emergency does not wait for a store that hangs.
        let stored = tokio::time::timeout(PATIENCE, storing).await.unwrap_or_else(|_| {
            Err(StoreError::outcome_unknown(StoreErrorKind::Unreachable, "the store did not answer in time"))
        });
        let told = told.unwrap_or_else(|| self.with_breaker(marked, &mut change));
        (told, stored)
    }

    fn with_breaker<R: Default>(
        &self,
        marked: &DirtyDocument,
        act: impl FnOnce(&mut CircuitBreaker) -> R,
    ) -> R {
        match marked {
            DirtyDocument::Tool(key) => act(&mut self.machines.tools.get(key).lock().breaker),
            DirtyDocument::Dependency(key) => act(&mut self.machines.dependencies.get(key).breaker.lock()),
            DirtyDocument::Trust(_) | DirtyDocument::Session(_) => R::default(),
        }
    }

    /// Returns the text to write for a document, and how long it is stored.
    fn body(&self, marked: &DirtyDocument) -> Result<Option<(String, Option<Duration>)>, StoreError> {
        let json = |lasts: Option<Duration>, text: Result<String, serde_json::Error>| {
            text.map(|text| Some((text, lasts))).map_err(|error| unreadable(&error))
        };
        match marked {
            DirtyDocument::Tool(key) => match self.machines.tools.find(key) {
                Some(cell) => {
                    let snapshot = cell.lock().breaker.snapshot();
                    json(breaker_lasts(&snapshot), serde_json::to_string(&snapshot))
                }
                None => Ok(None),
            },
            DirtyDocument::Dependency(key) => match self.machines.dependencies.find(key) {
                Some(cell) => {
                    let snapshot = cell.breaker.lock().snapshot();
                    json(breaker_lasts(&snapshot), serde_json::to_string(&snapshot))
                }
                None => Ok(None),
            },
            DirtyDocument::Trust(tenant) => match self.machines.tenants.find(tenant) {
                Some(cell) => {
                    let snapshot = cell.judged.lock().trust.snapshot(self.clock.now());
                    json(None, serde_json::to_string(&snapshot))
                }
                None => Ok(None),
            },
            DirtyDocument::Session(session) => match self.machines.sessions.find(session) {
                Some(guard) => json(Some(SESSION_LASTS), serde_json::to_string(&guard.lock().snapshot())),
                None => Ok(None),
            },
        }
    }

    /// Adopts one document. One that cannot be read is logged and skipped: it may be from a newer version.
    fn adopt(&self, name: &DocumentName, body: &str) {
        if let Err(why) = self.try_adopt(name, body) {
            tracing::warn!(event = "store.unreadable", document = %name, %why);
        }
    }

    fn try_adopt(&self, name: &DocumentName, body: &str) -> Result<(), String> {
        let text = |error: serde_json::Error| error.to_string();
        let now = self.clock.now();
        if !is_of_machines(name.kind) {
            return Ok(());
        }
        if name.kind == DocumentKind::Approvals {
            return self.adopt_stored_approvals(name, body).map_err(|error| error.to_string());
        }
        match serde_json::from_str(&name.id).map_err(text)? {
            DocumentId::Tool(tenant, namespace, tool) => {
                let key = ToolKey { tenant, tool: ToolRef { namespace, tool } };
                let snapshot: breaker::BreakerSnapshot = serde_json::from_str(body).map_err(text)?;
                self.machines.tools.get(&key).lock().breaker.adopt(&snapshot, now);
            }
            DocumentId::Dependency(tenant, name) => {
                let snapshot: breaker::BreakerSnapshot = serde_json::from_str(body).map_err(text)?;
                let cell = self.machines.dependencies.get(&DependencyKey { tenant, name });
                cell.breaker.lock().adopt(&snapshot, now);
            }
            DocumentId::Tenant(tenant) => {
                let elsewhere = match &self.trust_kept {
                    TrustStorage::InStore => false,
                    TrustStorage::InFile(_) => tenant.is_none(),
                    TrustStorage::NotStored => true,
                };
                if !elsewhere {
                    let snapshot = TrustSnapshot::read(body).map_err(|error| error.to_string())?;
                    self.adopt_trust(&tenant, snapshot)?;
                }
            }
            DocumentId::Session(tenant, session) => {
                let id = SessionId { tenant, session };
                let snapshot: guard::GuardSnapshot = serde_json::from_str(body).map_err(text)?;
                let unsupported = |error: UnsupportedGuardSnapshot| error.to_string();
                match self.machines.sessions.find(&id) {
                    Some(in_use) => in_use.lock().adopt(&snapshot).map_err(unsupported)?,
                    None => {
                        let restored = LoopGuard::restore(snapshot).map_err(unsupported)?;
                        *self.machines.sessions.get(&id).lock() = restored;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns how long a breaker is stored. One that an operator forced open is stored until an operator changes it.
fn breaker_lasts(snapshot: &breaker::BreakerSnapshot) -> Option<Duration> {
    match snapshot.state() {
        breaker::State::ForcedOpen => None,
        breaker::State::Closed | breaker::State::Open | breaker::State::HalfOpen => Some(BREAKER_LASTS),
    }
}

impl EngineInner {
    /// Adopts stored trust, and notifies operators of changes by other processes.
    pub(crate) fn adopt_trust(
        &self,
        tenant: &Option<TenantId>,
        snapshot: TrustSnapshot,
    ) -> Result<(), String> {
        let cell = self.machines.tenants.get(tenant);
        let now = self.clock.now();
        let rule_of = |tool: Option<&ToolRef>, domain: Option<&Domain>| self.trust_rule(tenant, tool, domain);
        let changes = {
            let trust = &mut cell.judged.lock().trust;
            let before = trust.status(rule_of, now);
            adopt_trust(trust, snapshot, self.trust_bounds)?;
            changes_between(&before, &trust.status(rule_of, now), rule_of, now)
        };
        if self.is_loaded.load(Ordering::Acquire) {
            for change in &changes {
                let changed = Notification::trust(tenant.as_ref(), change);
                self.telemetry_hooks.notify(Notification { is_from_elsewhere: true, ..changed });
            }
        }
        Ok(())
    }
}

/// Adopts stored trust. An empty ledger takes over everything, including single failures.
fn adopt_trust(trust: &mut TrustLedger, snapshot: TrustSnapshot, bounds: TrustBounds) -> Result<(), String> {
    let fresh =
        trust.history(None).next().is_none() && trust.snapshot(snapshot.last_updated).tool_states.is_empty();
    if fresh {
        *trust = TrustLedger::restore(snapshot, bounds).map_err(|error| error.to_string())?;
        return Ok(());
    }
    trust.adopt(snapshot).map_err(|error| error.to_string())
}

impl DirtyDocument {
    /// Returns the document of one of the breakers of a call.
    pub(crate) fn breaker(
        scope: BreakerScope,
        request: &CallRequest,
        coarser: impl Fn() -> Option<DependencyKey>,
    ) -> Option<Self> {
        match scope {
            BreakerScope::Tool => {
                Some(Self::Tool(ToolKey { tenant: request.tenant.clone(), tool: request.tool.clone() }))
            }
            BreakerScope::Dependency => coarser().map(Self::Dependency),
        }
    }

    fn document(&self) -> Result<DocumentName, StoreError> {
        let (kind, name) = match self {
            Self::Tool(key) => (
                DocumentKind::Breaker,
                DocumentId::Tool(key.tenant.clone(), key.tool.namespace.clone(), key.tool.tool.clone()),
            ),
            Self::Dependency(key) => {
                (DocumentKind::Breaker, DocumentId::Dependency(key.tenant.clone(), key.name.clone()))
            }
            Self::Trust(tenant) => (DocumentKind::Trust, DocumentId::Tenant(tenant.clone())),
            Self::Session(session) => {
                (DocumentKind::Session, DocumentId::Session(session.tenant.clone(), session.session.clone()))
            }
        };
        let id = serde_json::to_string(&name).map_err(|error| unreadable(&error))?;
        Ok(DocumentName { kind, id: id.into() })
    }
}

fn unreadable(error: &serde_json::Error) -> StoreError {
    StoreError::not_done(StoreErrorKind::Unreadable, error.to_string())
}

/// Returns true for kinds that hold the state of breakers, trust, approvals or guards. Other kinds are read on demand.
const fn is_of_machines(kind: DocumentKind) -> bool {
    match kind {
        DocumentKind::Breaker | DocumentKind::Trust | DocumentKind::Approvals | DocumentKind::Session => true,
        DocumentKind::Agreement
        | DocumentKind::Turn
        | DocumentKind::Server
        | DocumentKind::Tools
        | DocumentKind::Probe
        | DocumentKind::Loss => false,
    }
}
