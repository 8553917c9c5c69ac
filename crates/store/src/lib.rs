//! What Steadfast remembers, and where.
//!
//! A [`Store`] adds atomicity to the tables of [`steadfast_core::dedupe`], and nothing else: each of its record
//! operations finds the records, asks the table, and writes what the table says, all in one. Beside the records it
//! keeps small [documents](Document) with versions (breakers, trust, approvals, sessions) and [journals](Journal) that are
//! only appended to (history, traces, the audit).
//!
//! The trait is the same for a map in memory, a file and a server; [`StoreError`] says what a caller has to know
//! about a failure: whether the operation may have happened.

mod clock;
mod codec;
mod document;
mod error;
mod journal;
mod loss;
mod memory;
mod news;
mod process;
mod select;
#[cfg(feature = "suite")]
pub mod suite;

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use steadfast_core::Timestamp;
use steadfast_core::dedupe::{
    Claim, ClaimVerdict, Known, Owner, Receipt, Record, Release, RenewVerdict, Resolve, ResolveVerdict,
    Rules, Save, SaveVerdict, StartVerdict,
};
use steadfast_core::key::Key;
use steadfast_core::policy::Lifetimes;
use tokio::sync::broadcast;

pub use clock::{Clock, ManualClock, SystemClock};
pub use codec::{Codec, InvalidSecret, Unreadable};
pub use document::{Document, DocumentKind, DocumentName, DocumentWrite, Written, probe, update_document};
pub use error::{StoreError, Trouble};
pub use journal::{Entry, InvalidPosition, Journal, Keep, Part, Position, Query, look_through};
pub use loss::{accept_loss, loss_name, record_loss};
pub use memory::{MemoryOptions, MemoryStore};
pub use news::News;
pub use process::{Neighbours, Sight, process, this_process};
pub use select::{Flush, Page, Selection, Swept};

/// What a store operation gives back.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Where calls are remembered.
///
/// Every record operation is atomic and decided inside by the table of its name. An operation whose future is
/// dropped may still happen.
pub trait Store: fmt::Debug + Send + Sync {
    /// What it is called in logs and errors: `memory`, `sqlite`, `redis`.
    fn kind(&self) -> &'static str;

    /// What time it is for the records of this store. Leases and lifetimes are counted in it.
    fn now(&self) -> Timestamp;

    /// Looks for the record of a call, and takes it if it may. `known` is what the process of the caller knows beside what the
    /// store knows.
    fn claim<'a>(&'a self, claim: &'a Claim, known: &'a Known) -> StoreFuture<'a, ClaimVerdict>;

    /// Marks that an attempt may have been sent.
    fn start<'a>(&'a self, key: Key, owner: &'a Owner) -> StoreFuture<'a, StartVerdict>;

    /// Extends the lease of a claim; writes the claim again where the store has lost everything.
    fn renew<'a>(&'a self, claimed: &'a Record, keep: &'a Lifetimes) -> StoreFuture<'a, RenewVerdict>;

    /// Saves an answer under the fence.
    fn save<'a>(&'a self, save: &'a Save) -> StoreFuture<'a, SaveVerdict>;

    /// Gives a claim back.
    fn release<'a>(&'a self, release: &'a Release) -> StoreFuture<'a, ()>;

    /// Marks the answer that this receipt names as arrived at its caller. May be written late.
    fn delivered<'a>(&'a self, receipt: &'a Receipt, at: Timestamp) -> StoreFuture<'a, ()>;

    /// Resolves an unknown outcome.
    fn resolve<'a>(&'a self, resolve: &'a Resolve, rules: &'a Rules) -> StoreFuture<'a, ResolveVerdict>;

    /// Records that the outcome of the run under this key is unknown, if its holder is gone and nobody has recorded it yet: then
    /// it returns the record as it is now. Of several that look at once, one gets it.
    fn mark_abandoned<'a>(&'a self, key: Key, rules: &'a Rules) -> StoreFuture<'a, Option<Record>>;

    /// Waits until the record under this key is no longer in flight under a living holder: it is finished, gone, or
    /// its lease has ended. Looks for itself after it has begun to listen, so nothing is missed; may come back
    /// early. A store that fails meanwhile comes back too, for the claim that follows to say so.
    fn settled<'a>(&'a self, key: Key) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

    /// The record under this key, unless it is past its lifetime.
    fn record(&self, key: Key) -> StoreFuture<'_, Option<Record>>;

    /// Records for a person to look at, in the order of their keys.
    fn records<'a>(&'a self, selection: &'a Selection, page: Page) -> StoreFuture<'a, Vec<Record>>;

    /// Forgets records; says how many.
    fn flush<'a>(&'a self, flush: &'a Flush) -> StoreFuture<'a, u64>;

    /// Removes what is past its lifetime: records, documents and entries. Bounded work; says whether more is left.
    fn sweep(&self) -> StoreFuture<'_, Swept>;

    /// A document, unless it is past its lifetime.
    fn read<'a>(&'a self, name: &'a DocumentName) -> StoreFuture<'a, Option<Document>>;

    /// Writes a document if it is still the one that was read.
    fn write<'a>(&'a self, name: &'a DocumentName, write: DocumentWrite) -> StoreFuture<'a, Written>;

    /// All documents of a kind.
    fn documents(&self, kind: DocumentKind) -> StoreFuture<'_, Vec<(DocumentName, Document)>>;

    /// Adds entries to a journal, within its bounds. Need not survive a crash of this process.
    fn append<'a>(&'a self, journal: Journal, entries: &'a [Entry], keep: Keep) -> StoreFuture<'a, ()>;

    /// Reads entries of a journal, each with its place; those first that were written last.
    fn entries<'a>(&'a self, query: &'a Query) -> StoreFuture<'a, Vec<(Position, Entry)>>;

    /// What other processes did to the documents, and what happened to the store itself. A receiver that lags has
    /// to read everything again.
    fn news(&self) -> broadcast::Receiver<News>;

    /// Ends the work on the store when nothing is under way any more, so that what it holds is left in order. Operations fail from
    /// then on.
    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}
