//! A store with failures on demand.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::dedupe::{
    Claim, ClaimVerdict, Known, Owner, Receipt, Record, Release, RenewVerdict, Resolve, ResolveVerdict,
    Rules, Save, SaveVerdict, StartVerdict,
};
use steadfast_core::key::Key;
use steadfast_core::policy::Lifetimes;
use steadfast_store::{
    Document, DocumentKind, DocumentName, DocumentWrite, Entry, Flush, Journal, Keep, MemoryStore, News,
    Page, Position, Query, Selection, Store, StoreError, StoreFuture, Swept, Trouble, Written,
};
use tokio::sync::{broadcast, watch};

/// A memory store that fails on demand.
#[derive(Debug)]
pub(crate) struct Faulty {
    inner: MemoryStore,
    health: watch::Sender<Health>,
    news: broadcast::Sender<News>,
}

/// Behavior of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
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

impl Faulty {
    pub(crate) fn new(inner: MemoryStore) -> Self {
        Self { inner, health: watch::Sender::new(Health::Up), news: broadcast::Sender::new(16) }
    }

    /// Sets the mode. Listeners are informed when it becomes `Up`.
    pub(crate) fn becomes(&self, health: Health) {
        self.health.send_replace(health);
        if health == Health::Up {
            self.news.send(News::Back).unwrap();
        }
    }

    fn if_up<'a, T: Send + 'a>(&'a self, done: StoreFuture<'a, T>) -> StoreFuture<'a, T> {
        let mut health = self.health.subscribe();
        Box::pin(async move {
            let now = *health.wait_for(|health| *health != Health::Silent).await.unwrap();
            match now {
                Health::Up | Health::Holds(_) | Health::HoldsDocuments => done.await,
                Health::Slow => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    done.await
                }
                Health::Unheard => {
                    done.await?;
                    Err(StoreError::unanswered(Trouble::Unreachable, "its answer was lost by a test"))
                }
                Health::Down | Health::Silent => {
                    Err(StoreError::not_done(Trouble::Unreachable, "taken away by a test"))
                }
            }
        })
    }
}

impl Store for Faulty {
    fn kind(&self) -> &'static str {
        "faulty"
    }

    fn now(&self) -> Timestamp {
        self.inner.now()
    }

    fn claim<'a>(&'a self, claim: &'a Claim, known: &'a Known) -> StoreFuture<'a, ClaimVerdict> {
        self.if_up(Box::pin(async move { self.inner.claim(claim, known).await }))
    }

    fn start<'a>(&'a self, key: Key, owner: &'a Owner) -> StoreFuture<'a, StartVerdict> {
        self.if_up(Box::pin(async move { self.inner.start(key, owner).await }))
    }

    fn renew<'a>(&'a self, claimed: &'a Record, keep: &'a Lifetimes) -> StoreFuture<'a, RenewVerdict> {
        self.if_up(Box::pin(async move { self.inner.renew(claimed, keep).await }))
    }

    fn save<'a>(&'a self, save: &'a Save) -> StoreFuture<'a, SaveVerdict> {
        self.if_up(Box::pin(async move { self.inner.save(save).await }))
    }

    fn release<'a>(&'a self, release: &'a Release) -> StoreFuture<'a, ()> {
        self.if_up(Box::pin(async move { self.inner.release(release).await }))
    }

    fn delivered<'a>(&'a self, receipt: &'a Receipt, at: Timestamp) -> StoreFuture<'a, ()> {
        self.if_up(Box::pin(async move { self.inner.delivered(receipt, at).await }))
    }

    fn resolve<'a>(&'a self, resolve: &'a Resolve, rules: &'a Rules) -> StoreFuture<'a, ResolveVerdict> {
        self.if_up(Box::pin(async move { self.inner.resolve(resolve, rules).await }))
    }

    fn mark_abandoned<'a>(&'a self, key: Key, rules: &'a Rules) -> StoreFuture<'a, Option<Record>> {
        self.if_up(Box::pin(async move { self.inner.mark_abandoned(key, rules).await }))
    }

    fn settled<'a>(&'a self, key: Key) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        self.inner.settled(key)
    }

    fn record(&self, key: Key) -> StoreFuture<'_, Option<Record>> {
        self.if_up(self.inner.record(key))
    }

    fn records<'a>(&'a self, selection: &'a Selection, page: Page) -> StoreFuture<'a, Vec<Record>> {
        self.if_up(self.inner.records(selection, page))
    }

    fn flush<'a>(&'a self, flush: &'a Flush) -> StoreFuture<'a, u64> {
        self.if_up(Box::pin(async move { self.inner.flush(flush).await }))
    }

    fn sweep(&self) -> StoreFuture<'_, Swept> {
        self.if_up(Box::pin(async move { self.inner.sweep().await }))
    }

    fn read<'a>(&'a self, name: &'a DocumentName) -> StoreFuture<'a, Option<Document>> {
        self.if_up(self.inner.read(name))
    }

    fn write<'a>(&'a self, name: &'a DocumentName, write: DocumentWrite) -> StoreFuture<'a, Written> {
        let mut health = self.health.subscribe();
        self.if_up(Box::pin(async move {
            health.wait_for(|health| *health != Health::HoldsDocuments).await.unwrap();
            self.inner.write(name, write).await
        }))
    }

    fn documents(&self, kind: DocumentKind) -> StoreFuture<'_, Vec<(DocumentName, Document)>> {
        self.if_up(self.inner.documents(kind))
    }

    fn append<'a>(&'a self, journal: Journal, entries: &'a [Entry], keep: Keep) -> StoreFuture<'a, ()> {
        let mut health = self.health.subscribe();
        self.if_up(Box::pin(async move {
            health.wait_for(|health| *health != Health::Holds(journal)).await.unwrap();
            self.inner.append(journal, entries, keep).await
        }))
    }

    fn entries<'a>(&'a self, query: &'a Query) -> StoreFuture<'a, Vec<(Position, Entry)>> {
        self.if_up(self.inner.entries(query))
    }

    fn news(&self) -> broadcast::Receiver<News> {
        self.news.subscribe()
    }
}
