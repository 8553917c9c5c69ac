//! Persistence of the shared machines: breakers, trust, approvals and loop guards.
//!
//! Nothing here is on the path of a call. A change marks a document. A background task writes the newest state a moment
//! later, once, with a comparison against the stored version. Writes of other processes are adopted when the store
//! reports them. While the store is down the marks stay, so that the documents are written after it recovers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::breaker::{self, BreakerTransition, CircuitBreaker};
use steadfast_core::guard::{self, LoopGuard, UnsupportedGuardSnapshot};
use steadfast_core::id::{Domain, TenantId, ToolRef};
use steadfast_core::notification::Notification;
use steadfast_core::trust::{TrustBounds, TrustLedger, TrustSnapshot, changes_between};
use steadfast_store::{
    DocumentKind, DocumentName, DocumentWrite, DocumentWriteOutcome, StateStore, StoreError, StoreErrorKind,
    TimeSource,
};

use super::approvals::ApprovalBook;
use super::cells::MachineRegistry;
use super::documents::{DirtyDocument, DirtyDocuments, DocumentId, unreadable};
use super::policies::PolicyResolver;
use super::trust_file::{TrustFile, TrustFileContent, TrustStorage};
use crate::keys::{DependencyKey, SessionId, ToolKey};
use crate::observe::telemetry_hooks::TelemetryHooks;
use crate::state::EngineState;

/// The stored copy of the shared machines.
#[derive(Debug)]
pub(crate) struct Persister {
    pub(crate) store: Arc<dyn StateStore>,
    pub(crate) clock: Arc<dyn TimeSource>,
    pub(crate) state: Arc<EngineState>,
    pub(crate) machines: Arc<MachineRegistry>,
    pub(crate) policies: Arc<PolicyResolver>,
    pub(crate) approvals: Arc<ApprovalBook>,
    pub(crate) hooks: Arc<TelemetryHooks>,
    pub(crate) trust_storage: TrustStorage,
    pub(crate) trust_bounds: TrustBounds,
    pub(crate) marks: DirtyDocuments,
}

/// Time for which changes are collected before they are written.
const GATHER: Duration = Duration::from_millis(50);
/// Pause after a failed write.
const PAUSE: Duration = Duration::from_secs(2);
/// Maximum time that a change by an operator waits for the store.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of tries of a write that loses against concurrent writers.
const TRIES: u32 = 8;
/// Time for which a loop guard is stored.
const SESSION_LASTS: Duration = Duration::from_secs(24 * 3600);
/// Time for which a breaker is stored. Without activity for this long it is closed anyway.
const BREAKER_LASTS: Duration = Duration::from_secs(7 * 24 * 3600);

impl Persister {
    /// Writes the marked documents, for as long as the engine lives.
    pub(crate) async fn run(&self) {
        loop {
            self.marks.changed.notified().await;
            tokio::time::sleep(GATHER).await;
            if !self.write_now().await {
                tokio::time::sleep(PAUSE).await;
                self.marks.changed.notify_one();
            }
        }
    }

    /// Writes the marked documents. Returns true if all writes succeeded; then everything that was marked before is in
    /// the store.
    pub(crate) async fn write_now(&self) -> bool {
        let _writing = self.marks.writing.lock().await;
        let marked = std::mem::take(&mut *self.marks.marked.lock());
        let mut through = true;
        for marked in marked {
            if let Err(error) = self.write(&marked).await {
                self.hooks.store_failed(self.store.kind(), &error);
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

    /// Loads the trust from the file, if it is stored in one.
    pub(crate) fn load_trust_file(&self) {
        let TrustStorage::InFile(file) = &self.trust_storage else { return };
        let adopted = file.contents().and_then(|contents| self.adopt_trust_file(contents.as_ref()));
        if let Err(error) = adopted {
            file.tell_unreadable(&error);
        }
    }

    /// Loads all documents of a kind.
    pub(crate) async fn load_kind(&self, kind: DocumentKind) {
        match self.store.documents(kind).await {
            Ok(documents) => {
                for (name, document) in documents {
                    let _changing = self.approvals.lock(&name).await;
                    self.adopt(&name, &document.body);
                }
            }
            Err(error) => self.hooks.store_failed(self.store.kind(), &error),
        }
    }

    /// Loads the stored version of a document.
    pub(crate) async fn reload_marked(&self, marked: &DirtyDocument) -> Result<(), StoreError> {
        let name = marked.name()?;
        if let Some(document) = self.store.read(&name).await? {
            self.adopt(&name, &document.body);
        }
        Ok(())
    }

    /// Loads one document that another process has changed.
    pub(crate) async fn reload(&self, name: &DocumentName) {
        let _changing = self.approvals.lock(name).await;
        match self.store.read(name).await {
            Ok(Some(document)) => self.adopt(name, &document.body),
            Ok(None) => {}
            Err(error) => self.hooks.store_failed(self.store.kind(), &error),
        }
    }

    /// Marks everything in memory to be written again.
    pub(crate) fn mark_everything(&self) {
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
            match &self.trust_storage {
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
        let name = marked.name()?;
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
        match &self.trust_storage {
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
        let mut transition = None;
        let storing = self.change_together(marked, || {
            let changed = self.with_breaker(marked, &mut change);
            // A repeated change may find nothing to change: the first run determines the result.
            transition = Some(transition.take().flatten().or(changed));
        });
        // An operator who stops a tool in an emergency does not wait for a store that hangs.
        let stored = tokio::time::timeout(PATIENCE, storing).await.unwrap_or_else(|_| {
            Err(StoreError::outcome_unknown(StoreErrorKind::Unreachable, "the store did not answer in time"))
        });
        let transition = transition.unwrap_or_else(|| self.with_breaker(marked, &mut change));
        (transition, stored)
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
        if let Err(error) = self.try_adopt(name, body) {
            tracing::warn!(event = "store.unreadable", document = %name, "why" = %error);
        }
    }

    fn try_adopt(&self, name: &DocumentName, body: &str) -> Result<(), String> {
        let text = |error: serde_json::Error| error.to_string();
        let now = self.clock.now();
        if !is_of_machines(name.kind) {
            return Ok(());
        }
        if name.kind == DocumentKind::Approvals {
            return self.approvals.adopt(name, body).map_err(|error| error.to_string());
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
                let elsewhere = match &self.trust_storage {
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

impl Persister {
    /// Adopts stored trust, and notifies operators of changes by other processes.
    fn adopt_trust(&self, tenant: &Option<TenantId>, snapshot: TrustSnapshot) -> Result<(), String> {
        let cell = self.machines.tenants.get(tenant);
        let now = self.clock.now();
        let rule_of =
            |tool: Option<&ToolRef>, domain: Option<&Domain>| self.policies.trust_rule(tenant, tool, domain);
        let changes = {
            let trust = &mut cell.judged.lock().trust;
            let before = trust.status(rule_of, now);
            adopt_trust(trust, snapshot, self.trust_bounds)?;
            changes_between(&before, &trust.status(rule_of, now), rule_of, now)
        };
        if self.state.is_loaded() {
            for change in &changes {
                let changed = Notification::trust(tenant.as_ref(), change);
                self.hooks.notify(Notification { is_from_elsewhere: true, ..changed });
            }
        }
        Ok(())
    }

    fn adopt_trust_file(&self, contents: Option<&TrustFileContent>) -> Result<(), String> {
        let Some(contents) = contents else { return Ok(()) };
        self.adopt_trust(&None, contents.snapshot.clone())
    }

    async fn write_trust_file(&self, file: &TrustFile) -> Result<(), StoreError> {
        let failed = |error: io::Error| {
            let message = format!("trust cannot be written to {}: {error}", file.path().display());
            StoreError::not_done(StoreErrorKind::Refused, message)
        };
        let join_failed =
            |error: tokio::task::JoinError| StoreError::not_done(StoreErrorKind::Closed, error.to_string());
        let reading = file.clone();
        let contents = tokio::task::spawn_blocking(move || reading.contents()).await.map_err(join_failed)?;
        let contents = match contents.and_then(|contents| {
            self.adopt_trust_file(contents.as_ref())?;
            Ok(contents)
        }) {
            Ok(contents) => contents,
            Err(error) => {
                // The file is not overwritten, because its content is worth more. Trust lasts as long as this process.
                file.tell_unreadable(&error);
                return Ok(());
            }
        };
        let snapshot = self.machines.tenants.get(&None).judged.lock().trust.snapshot(self.clock.now());
        let text = match contents {
            Some(contents) => contents.updated(&snapshot),
            None => serde_json::to_string_pretty(&snapshot),
        };
        let text = text.map_err(|error| failed(io::Error::other(error)))?;
        let writing = file.clone();
        let written = tokio::task::spawn_blocking(move || writing.write(&text)).await.map_err(join_failed)?;
        written.map_err(failed)
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
