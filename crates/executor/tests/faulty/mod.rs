//! A store with failures on demand.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::dedupe::{
    Claim, ClaimOwner, ClaimVerdict, DedupeRecord, DedupeRules, DeliveryReceipt, LocalKnowledge,
    ReleaseRequest, RenewVerdict, ResolutionRequest, ResolveVerdict, SaveRequest, SaveVerdict, StartVerdict,
};
use steadfast_core::key::RecordKey;
use steadfast_core::policy::RecordLifetimes;
use steadfast_store::{
    Document, DocumentKind, DocumentName, DocumentWrite, DocumentWriteOutcome, FlushTarget, Journal,
    JournalEntry, JournalLimits, JournalPosition, JournalQuery, MemoryStore, RecordFilter, RecordPage,
    StateStore, StoreError, StoreErrorKind, StoreEvent, StoreFuture, SweepResult,
};
use tokio::sync::{broadcast, watch};

/// A memory store that fails on demand.
#[derive(Debug)]
pub(crate) struct FaultyStore {
    inner: MemoryStore,
    health: watch::Sender<FaultMode>,
    events: broadcast::Sender<StoreEvent>,
}

/// Behavior of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultMode {
    /// It works.
    Up,
    /// Every operation takes 100 ms, without a limit of concurrency.
    Slow,
    /// It performs operations, but their responses are lost.
    #[allow(dead_code, reason = "not every test that has this store needs it")]
    Unheard,
    /// It works, but appends to this journal stay in flight until the mode changes.
    #[allow(dead_code, reason = "not every test that has this store needs it")]
    Holds(Journal),
    /// It works, but writes of documents stay in flight until the mode changes.
    #[allow(dead_code, reason = "not every test that has this store needs it")]
    HoldsDocuments,
    /// Every operation fails at once.
    Down,
    /// No operation is performed, and none returns until the mode changes.
    Silent,
}

impl FaultyStore {
    pub(crate) fn new(inner: MemoryStore) -> Self {
        Self { inner, health: watch::Sender::new(FaultMode::Up), events: broadcast::Sender::new(16) }
    }

    /// Sets the mode. Listeners are informed when it becomes `Up`.
    pub(crate) fn becomes(&self, health: FaultMode) {
        self.health.send_replace(health);
        if health == FaultMode::Up {
            self.events.send(StoreEvent::Available).unwrap();
        }
    }

    fn if_up<'a, T: Send + 'a>(&'a self, done: StoreFuture<'a, T>) -> StoreFuture<'a, T> {
        let mut health = self.health.subscribe();
        Box::pin(async move {
            let now = *health.wait_for(|health| *health != FaultMode::Silent).await.unwrap();
            match now {
                FaultMode::Up | FaultMode::Holds(_) | FaultMode::HoldsDocuments => done.await,
                FaultMode::Slow => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    done.await
                }
                FaultMode::Unheard => {
                    done.await?;
                    Err(StoreError::outcome_unknown(
                        StoreErrorKind::Unreachable,
                        "its answer was lost by a test",
                    ))
                }
                FaultMode::Down | FaultMode::Silent => {
                    Err(StoreError::not_done(StoreErrorKind::Unreachable, "taken away by a test"))
                }
            }
        })
    }
}

impl StateStore for FaultyStore {
    fn kind(&self) -> &'static str {
        "faulty"
    }

    fn now(&self) -> Timestamp {
        self.inner.now()
    }

    fn claim<'a>(&'a self, claim: &'a Claim, known: &'a LocalKnowledge) -> StoreFuture<'a, ClaimVerdict> {
        self.if_up(Box::pin(async move { self.inner.claim(claim, known).await }))
    }

    fn start<'a>(&'a self, key: RecordKey, owner: &'a ClaimOwner) -> StoreFuture<'a, StartVerdict> {
        self.if_up(Box::pin(async move { self.inner.start(key, owner).await }))
    }

    fn renew<'a>(
        &'a self,
        claimed: &'a DedupeRecord,
        keep: &'a RecordLifetimes,
    ) -> StoreFuture<'a, RenewVerdict> {
        self.if_up(Box::pin(async move { self.inner.renew(claimed, keep).await }))
    }

    fn save<'a>(&'a self, save: &'a SaveRequest) -> StoreFuture<'a, SaveVerdict> {
        self.if_up(Box::pin(async move { self.inner.save(save).await }))
    }

    fn release<'a>(&'a self, release: &'a ReleaseRequest) -> StoreFuture<'a, ()> {
        self.if_up(Box::pin(async move { self.inner.release(release).await }))
    }

    fn delivered<'a>(&'a self, receipt: &'a DeliveryReceipt, at: Timestamp) -> StoreFuture<'a, ()> {
        self.if_up(Box::pin(async move { self.inner.delivered(receipt, at).await }))
    }

    fn resolve<'a>(
        &'a self,
        resolve: &'a ResolutionRequest,
        rules: &'a DedupeRules,
    ) -> StoreFuture<'a, ResolveVerdict> {
        self.if_up(Box::pin(async move { self.inner.resolve(resolve, rules).await }))
    }

    fn mark_abandoned<'a>(
        &'a self,
        key: RecordKey,
        rules: &'a DedupeRules,
    ) -> StoreFuture<'a, Option<DedupeRecord>> {
        self.if_up(Box::pin(async move { self.inner.mark_abandoned(key, rules).await }))
    }

    fn settled<'a>(&'a self, key: RecordKey) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        self.inner.settled(key)
    }

    fn record(&self, key: RecordKey) -> StoreFuture<'_, Option<DedupeRecord>> {
        self.if_up(self.inner.record(key))
    }

    fn records<'a>(
        &'a self,
        selection: &'a RecordFilter,
        page: RecordPage,
    ) -> StoreFuture<'a, Vec<DedupeRecord>> {
        self.if_up(self.inner.records(selection, page))
    }

    fn flush<'a>(&'a self, flush: &'a FlushTarget) -> StoreFuture<'a, u64> {
        self.if_up(Box::pin(async move { self.inner.flush(flush).await }))
    }

    fn sweep(&self) -> StoreFuture<'_, SweepResult> {
        self.if_up(Box::pin(async move { self.inner.sweep().await }))
    }

    fn read<'a>(&'a self, name: &'a DocumentName) -> StoreFuture<'a, Option<Document>> {
        self.if_up(self.inner.read(name))
    }

    fn write<'a>(
        &'a self,
        name: &'a DocumentName,
        write: DocumentWrite,
    ) -> StoreFuture<'a, DocumentWriteOutcome> {
        let mut health = self.health.subscribe();
        self.if_up(Box::pin(async move {
            health.wait_for(|health| *health != FaultMode::HoldsDocuments).await.unwrap();
            self.inner.write(name, write).await
        }))
    }

    fn documents(&self, kind: DocumentKind) -> StoreFuture<'_, Vec<(DocumentName, Document)>> {
        self.if_up(self.inner.documents(kind))
    }

    fn append<'a>(
        &'a self,
        journal: Journal,
        entries: &'a [JournalEntry],
        keep: JournalLimits,
    ) -> StoreFuture<'a, ()> {
        let mut health = self.health.subscribe();
        self.if_up(Box::pin(async move {
            health.wait_for(|health| *health != FaultMode::Holds(journal)).await.unwrap();
            self.inner.append(journal, entries, keep).await
        }))
    }

    fn entries<'a>(
        &'a self,
        query: &'a JournalQuery,
    ) -> StoreFuture<'a, Vec<(JournalPosition, JournalEntry)>> {
        self.if_up(self.inner.entries(query))
    }

    fn events(&self) -> broadcast::Receiver<StoreEvent> {
        self.events.subscribe()
    }
}
