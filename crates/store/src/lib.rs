//! Stores: the persistent state of Steadfast.
//!
//! A [`StateStore`] adds atomicity to the tables of [`steadfast_core::dedupe`], and nothing else. Each of its record
//! operations finds the records, applies the table, and writes the result, as one atomic step. Beside the records it
//! keeps small versioned [documents](Document) (breakers, trust, approvals, sessions) and append-only
//! [journals](Journal) (history, traces, audit log).
//!
//! The trait is the same for a map in memory, a file and a server. [`StoreError`] contains what a caller must know
//! about a failure: if the operation may have happened.

mod clock;
mod codec;
mod document;
mod error;
mod event;
mod journal;
mod loss;
mod memory;
mod process;
mod selection;
#[cfg(feature = "suite")]
pub mod suite;

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use steadfast_core::Timestamp;
use steadfast_core::dedupe::{
    Claim, ClaimOwner, ClaimVerdict, DedupeRecord, DedupeRules, DeliveryReceipt, LocalKnowledge,
    ReleaseRequest, RenewVerdict, ResolutionRequest, ResolveVerdict, SaveRequest, SaveVerdict, StartVerdict,
};
use steadfast_core::key::RecordKey;
use steadfast_core::policy::RecordLifetimes;
use tokio::sync::broadcast;

pub use clock::{ManualClock, SystemClock, TimeSource};
pub use codec::{DecodeError, InvalidSecret, RecordCodec};
pub use document::{
    Document, DocumentKind, DocumentName, DocumentWrite, DocumentWriteOutcome, probe, update_document,
};
pub use error::{StoreError, StoreErrorKind};
pub use event::StoreEvent;
pub use journal::{
    InvalidPosition, Journal, JournalEntry, JournalLimits, JournalPage, JournalPosition, JournalQuery,
    filter_entries,
};
pub use loss::{accept_loss, loss_name, record_loss};
pub use memory::{MemoryOptions, MemoryStore};
pub use process::{LocalProcessMonitor, ProcessMonitor, process, this_process};
pub use selection::{FlushTarget, RecordFilter, RecordPage, SweepResult};

/// The future of a store operation.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A store of call records, documents and journals.
///
/// Every record operation is atomic, and decided inside by the table with its name. An operation may still happen
/// after its future was dropped.
pub trait StateStore: fmt::Debug + Send + Sync {
    /// Returns the name of the store in logs and errors: `memory`, `sqlite`, `redis`.
    fn kind(&self) -> &'static str;

    /// Returns the current time of this store. Leases and lifetimes use it.
    fn now(&self) -> Timestamp;

    /// Looks up the record of a call, and claims it if that is allowed. `known` is the caller's knowledge that the
    /// store may not have.
    fn claim<'a>(&'a self, claim: &'a Claim, known: &'a LocalKnowledge) -> StoreFuture<'a, ClaimVerdict>;

    /// Records that an attempt may have been sent.
    fn start<'a>(&'a self, key: RecordKey, owner: &'a ClaimOwner) -> StoreFuture<'a, StartVerdict>;

    /// Extends the lease of a claim. Writes the claim again if the store has lost all data.
    fn renew<'a>(
        &'a self,
        claimed: &'a DedupeRecord,
        keep: &'a RecordLifetimes,
    ) -> StoreFuture<'a, RenewVerdict>;

    /// Saves a result, under the fence.
    fn save<'a>(&'a self, save: &'a SaveRequest) -> StoreFuture<'a, SaveVerdict>;

    /// Releases a claim.
    fn release<'a>(&'a self, release: &'a ReleaseRequest) -> StoreFuture<'a, ()>;

    /// Records that the result with this receipt was delivered to its caller. May be written late.
    fn delivered<'a>(&'a self, receipt: &'a DeliveryReceipt, at: Timestamp) -> StoreFuture<'a, ()>;

    /// Resolves an unknown outcome.
    fn resolve<'a>(
        &'a self,
        resolve: &'a ResolutionRequest,
        rules: &'a DedupeRules,
    ) -> StoreFuture<'a, ResolveVerdict>;

    /// Records that the outcome of the run under this key is unknown, if its owner is gone and this was not recorded
    /// yet. Then it returns the new record. Of several concurrent callers, one gets it.
    fn mark_abandoned<'a>(
        &'a self,
        key: RecordKey,
        rules: &'a DedupeRules,
    ) -> StoreFuture<'a, Option<DedupeRecord>>;

    /// Waits until the record under this key is no longer in flight with a live owner: it is finished or gone, or its
    /// lease has expired. Checks the record after it has begun to listen, so that no change is missed. May return
    /// early. Also returns if the store fails, so that the next claim reports the error.
    fn settled<'a>(&'a self, key: RecordKey) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

    /// Returns the record under this key, unless it has expired.
    fn record(&self, key: RecordKey) -> StoreFuture<'_, Option<DedupeRecord>>;

    /// Returns records for an operator, ordered by key.
    fn records<'a>(
        &'a self,
        selection: &'a RecordFilter,
        page: RecordPage,
    ) -> StoreFuture<'a, Vec<DedupeRecord>>;

    /// Removes records, and returns their number.
    fn flush<'a>(&'a self, flush: &'a FlushTarget) -> StoreFuture<'a, u64>;

    /// Removes expired records, documents and entries. The work is bounded, and the result shows if more is left.
    fn sweep(&self) -> StoreFuture<'_, SweepResult>;

    /// Returns a document, unless it has expired.
    fn read<'a>(&'a self, name: &'a DocumentName) -> StoreFuture<'a, Option<Document>>;

    /// Writes a document if it still has the version that was read.
    fn write<'a>(
        &'a self,
        name: &'a DocumentName,
        write: DocumentWrite,
    ) -> StoreFuture<'a, DocumentWriteOutcome>;

    /// Returns all documents of a kind.
    fn documents(&self, kind: DocumentKind) -> StoreFuture<'_, Vec<(DocumentName, Document)>>;

    /// Appends entries to a journal, within its limits. They may be lost if this process crashes.
    fn append<'a>(
        &'a self,
        journal: Journal,
        entries: &'a [JournalEntry],
        keep: JournalLimits,
    ) -> StoreFuture<'a, ()>;

    /// Returns entries of a journal with their positions, newest first.
    fn entries<'a>(
        &'a self,
        query: &'a JournalQuery,
    ) -> StoreFuture<'a, Vec<(JournalPosition, JournalEntry)>>;

    /// Returns events about documents that other processes changed, and about the state of the store. A receiver that
    /// lags must read everything again.
    fn events(&self) -> broadcast::Receiver<StoreEvent>;

    /// Closes the store after all operations in progress, so that its data is left in order. Later operations fail.
    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}
