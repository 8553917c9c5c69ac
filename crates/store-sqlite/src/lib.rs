//! The embedded durable store: one SQLite file that all processes of a user share.
//!
//! Every record operation is one atomic step over the tables of the core, and on disk when it returns. It survives
//! `kill -9` at any moment. Callers of one process share their syncs: one thread writes for all of them (`writer`),
//! others read (`reader`), and one watches other processes while a caller waits for them (`watch`). None of this runs
//! on a thread of the async runtime.
//!
//! A claim ends when its owner's process is gone, and only then. If that cannot be checked, it ends by time.

mod columns;
mod commit_note;
mod fault;
mod files;
mod followers;
mod library_copy;
mod queue;
mod reader;
mod recent_records;
mod schema;
mod shared;
mod state_file;
mod transaction;
mod view;
mod watcher;
mod writer;

#[cfg(test)]
mod tests;

use std::fmt;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::dedupe::{
    Claim, ClaimIntent, ClaimOwner, ClaimRole, ClaimVerdict, DedupeRecord, DedupeRules, DeliveryReceipt,
    LocalKnowledge, ProcessIdentity, RecordLoss, ReleaseRequest, RenewVerdict, ResolutionRequest,
    ResolveVerdict, SaveRequest, SaveVerdict, StartVerdict,
};
use steadfast_core::key::RecordKey;
use steadfast_core::policy::RecordLifetimes;
use steadfast_store::{
    Document, DocumentKind, DocumentName, DocumentWrite, DocumentWriteOutcome, FlushTarget, Journal,
    JournalEntry, JournalLimits, JournalPosition, JournalQuery, LocalProcessMonitor, ProcessMonitor,
    RecordCodec, RecordFilter, RecordPage, StateStore, StoreError, StoreErrorKind, StoreEvent, StoreFuture,
    SweepResult, SystemClock, TimeSource, this_process,
};
use tokio::sync::{broadcast, oneshot};

pub use state_file::{CommitLossPolicy, FileDamagePolicy, SqliteOpenError};

use crate::commit_note::{BootId, NoteFileState};
use crate::fault::SqliteFault;
use crate::library_copy::LibraryCopyLock;
use crate::queue::{QueueError, QueueLane};
use crate::reader::{LookupFunction, LookupQueue, SqliteReader};
use crate::recent_records::RecentRecords;
use crate::shared::{FileConnection, FileLimits, SqliteParts, SqliteShared, closed, overloaded};
use crate::state_file::{ConnectionRole as Connected, StateFile};
use crate::transaction::{SWEEP, WriteTransaction};
use crate::view::FileView;
use crate::watcher::FileWatcher;
use crate::writer::{OperationFunction, SqliteWriter, WriterQueue};

/// Options of a state file.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// The path. The folder is created if needed. Both are accessible for this user only.
    pub path: PathBuf,
    /// The clock. All processes on one file must have the same time.
    pub clock: Arc<dyn TimeSource>,
    /// This process, as the owner of records.
    pub process: ProcessIdentity,
    /// Checks if the owners of records still live.
    pub sight: Arc<dyn ProcessMonitor>,
    /// The encoding of records.
    pub codec: RecordCodec,
    /// The action for a file that cannot be used.
    pub on_damage: FileDamagePolicy,
    /// The action after a loss of committed records.
    pub on_loss: CommitLossPolicy,
    /// Time that an operation waits for other processes before it fails. A higher value hides a process that hangs. A
    /// lower value fails calls on a slow disk.
    pub patience: Duration,
    /// The most records. Each needs about 1 KiB on disk, and its output.
    pub most_records: u64,
    /// The approximate limit of bytes on disk. The next sweeps remove the excess, finished records first.
    pub most_bytes: u64,
}

impl SqliteOptions {
    /// Returns the options for this file and this process, with the default limits and no encryption.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let process = this_process();
        Self {
            path: path.into(),
            clock: Arc::new(SystemClock::default()),
            sight: Arc::new(LocalProcessMonitor::of(process.clone())),
            process,
            codec: RecordCodec::default(),
            on_damage: FileDamagePolicy::default(),
            on_loss: CommitLossPolicy::default(),
            patience: Duration::from_secs(5),
            most_records: 250_000,
            most_bytes: 4 << 30,
        }
    }
}

impl SqliteOptions {
    fn place(&self) -> StateFile {
        StateFile {
            // SQLite puts its other files beside the target of a link, and so is the note.
            path: match fs::read_link(&self.path) {
                Ok(_) => fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone()),
                Err(_) => self.path.clone(),
            },
            on_damage: self.on_damage,
            on_loss: self.on_loss,
            // SQLite counts in 31 bits, and an hour is longer than any operation waits.
            patience: self.patience.min(Duration::from_secs(3600)),
            boot: BootId::of(&self.process.boot),
        }
    }
}

/// A store in a file. Needs a runtime with timers enabled.
pub struct SqliteStore {
    shared: Arc<SqliteShared>,
    operations: Arc<WriterQueue>,
    questions: Arc<LookupQueue>,
    set_aside: Option<PathBuf>,
    loss: Option<RecordLoss>,
    /// The last record in which the sweeps have searched for expired open records.
    swept: AtomicI64,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The resources to close a store.
struct SqliteShutdown {
    shared: Arc<SqliteShared>,
    operations: Arc<WriterQueue>,
    questions: Arc<LookupQueue>,
    threads: Vec<JoinHandle<()>>,
}

impl SqliteShutdown {
    /// Finishes all queued operations first.
    fn run(self) {
        self.questions.close();
        self.shared.followers.close();
        // The writer is the first thread and ends last. If connections close at the same moment, each takes the other
        // for one that stays, and the WAL is left. A backup that is then put back would be mixed with it.
        let mut threads = self.threads.into_iter();
        let writer = threads.next();
        for thread in threads {
            // A thread that panicked has no result.
            let _ = thread.join();
        }
        self.operations.close();
        if let Some(writer) = writer {
            let _ = writer.join();
            // Another process may have died since the writer closed, so this process may be the last one.
            if !state_file::has_log(&self.shared.place) {
                self.shared.close_note();
            }
        }
    }
}

/// The most operations that wait for the writer. More would wait longer than their callers do.
const MOST_OPERATIONS: usize = 4096;
/// The most lookups that wait.
const MOST_QUESTIONS: usize = 4096;
/// More than one, so that a long lookup does not delay short ones.
const READERS: usize = 2;
/// Records that one step of a flush removes.
const FLUSH: usize = 500;
/// Time limit of the disk, in addition to the wait for other processes.
const DISK: Duration = Duration::from_secs(1);
const HANGS: &str = "the state file did not respond in time; check its disk";

/// The reason why a thread of the store did not respond.
enum ThreadReplyError {
    Gone,
    Hangs,
}

impl SqliteStore {
    /// Checks that the file could be opened, without changes. Damage is only detected when it is opened.
    pub fn inspect(options: &SqliteOptions) -> Result<(), SqliteOpenError> {
        state_file::inspect(&options.place())
    }

    /// Returns true if records were ever committed to this file, according to the files beside it. Changes nothing.
    pub fn held_records(path: &Path) -> bool {
        let place = SqliteOptions::at(path).place();
        match place.note().read() {
            Ok(NoteFileState::Sound(noted)) => noted.last.number > 0,
            Ok(NoteFileState::Damaged) => true,
            Ok(NoteFileState::Missing) | Err(_) => state_file::has_log(&place),
        }
    }

    /// Opens the file, and creates it if it is missing. Checks all of it, so this blocks for as long as the disk
    /// needs: do not call it on a thread that others wait for.
    pub fn open(options: SqliteOptions) -> Result<Self, SqliteOpenError> {
        let place = options.place();
        let SqliteOptions { clock, process, sight, codec, .. } = options;
        state_file::make_folder(&place.path)?;
        let copy = LibraryCopyLock::acquire(&place.path)?;
        let prepared = state_file::prepare(&place, None, clock.now())?;
        let sql = |error: rusqlite::Error| state_file::sql_error(&place.path, &error);
        let first = state_file::connect(&place, Connected::Reader).map_err(sql)?;
        let number = |query: &str| first.query_row(query, [], |row| row.get::<_, i64>(0)).map_err(sql);
        let handle = number("SELECT random()")?;
        let document = columns::unsigned(number("SELECT value FROM meta WHERE name = 'document'")?);
        let bounds = FileLimits { records: options.most_records.max(1), bytes: options.most_bytes };
        let given = SqliteParts { place: place.clone(), clock, process, sight, codec, bounds, copy };
        let shared = Arc::new(SqliteShared::new(given, handle, prepared.last));
        let store = Self {
            shared: shared.clone(),
            operations: Arc::new(WriterQueue::new(MOST_OPERATIONS)),
            questions: Arc::new(LookupQueue::new(MOST_QUESTIONS)),
            set_aside: prepared.set_aside,
            loss: prepared.loss,
            swept: AtomicI64::new(0),
            threads: Mutex::default(),
        };
        let link = FileConnection::to(&place, Connected::Writer)?;
        let (queue, recent) = (store.operations.clone(), RecentRecords::default());
        let writer = SqliteWriter { shared: shared.clone(), queue, link, recent };
        store.spawn("writer", move || writer.run())?;
        for _ in 0..READERS {
            let link = FileConnection::to(&place, Connected::Reader)?;
            let reader = SqliteReader { shared: shared.clone(), queue: store.questions.clone(), link };
            store.spawn("reader", move || reader.run())?;
        }
        let watch = FileWatcher { shared, link: FileConnection::to(&place, Connected::Reader)?, document };
        store.spawn("watch", move || watch.run())?;
        Ok(store)
    }

    /// Returns the new path of a file that was found at the path and could not be used.
    pub fn set_aside(&self) -> Option<&Path> {
        self.set_aside.as_deref()
    }

    /// Returns the loss of committed records that was noticed when the file was opened.
    pub fn detected_loss(&self) -> Option<&RecordLoss> {
        self.loss.as_ref()
    }

    /// The first caller gets the threads. There is nothing left to wait for in later calls.
    fn ending(&self) -> SqliteShutdown {
        let threads = std::mem::take(&mut *self.threads.lock());
        let (shared, operations, questions) =
            (self.shared.clone(), self.operations.clone(), self.questions.clone());
        SqliteShutdown { shared, operations, questions, threads }
    }

    fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), SqliteOpenError> {
        let thread = thread::Builder::new().name(format!("sqlite-{name}")).spawn(work);
        let path = &self.shared.place.path;
        self.threads.lock().push(thread.map_err(|error| state_file::file_error(path, &error))?);
        Ok(())
    }

    /// Runs an operation on the writer. It is on disk when this returns.
    async fn operate<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut WriteTransaction<'_>) -> Result<T, SqliteFault> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.ask(work, QueueLane::Soon).await
    }

    /// Runs an operation on the writer when it has time. It is visible when this returns, and reaches the disk with a
    /// later operation.
    async fn operate_later<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut WriteTransaction<'_>) -> Result<T, SqliteFault> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.ask(work, QueueLane::Later).await
    }

    async fn ask<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut WriteTransaction<'_>) -> Result<T, SqliteFault> + Send + 'static,
        lane: QueueLane,
    ) -> Result<T, StoreError> {
        let (operation, answer) = OperationFunction::new(work, self.shared.place.patience);
        self.operations.push(Box::new(operation), lane).map_err(refused)?;
        match self.in_time(answer).await {
            Ok(answer) => answer,
            // The writer responds to everything that it takes, unless it panicked.
            Err(ThreadReplyError::Gone) => Err(StoreError::outcome_unknown(
                StoreErrorKind::Closed,
                "the writer of the state file has ended",
            )),
            Err(ThreadReplyError::Hangs) => {
                Err(StoreError::outcome_unknown(StoreErrorKind::Unreachable, HANGS))
            }
        }
    }

    /// Runs a lookup on a reader.
    async fn look_up<T: Send + 'static>(
        &self,
        work: impl FnOnce(FileView<'_>) -> Result<T, SqliteFault> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (question, answer) = LookupFunction::new(work);
        self.questions.push(Box::new(question), QueueLane::Soon).map_err(refused)?;
        match self.in_time(answer).await {
            Ok(answer) => answer,
            Err(ThreadReplyError::Gone) => Err(closed()),
            Err(ThreadReplyError::Hangs) => Err(StoreError::not_done(StoreErrorKind::Unreachable, HANGS)),
        }
    }

    /// Waits for a thread of the store, but no longer than a working disk takes, because a thread that waits in the
    /// kernel cannot be cancelled.
    async fn in_time<T>(&self, answer: oneshot::Receiver<T>) -> Result<T, ThreadReplyError> {
        let limit = self.shared.place.patience + DISK;
        match tokio::time::timeout(limit, answer).await {
            Ok(answer) => answer.map_err(|_| ThreadReplyError::Gone),
            Err(_) => {
                self.shared.record_failure(&StoreError::not_done(StoreErrorKind::Unreachable, HANGS));
                Err(ThreadReplyError::Hangs)
            }
        }
    }

    async fn look_and_claim(
        &self,
        claim: &Claim,
        known: &LocalKnowledge,
    ) -> Result<ClaimVerdict, StoreError> {
        let claim = Arc::new(claim.clone());
        let known = Arc::new(known.clone());
        // A verdict that writes nothing may use any view of the file that is not older than the request. So it need
        // not wait for the writer while that waits for the disk. An idle writer is as fast.
        let look = match (claim.intent, claim.role) {
            (ClaimIntent::Look, _) | (ClaimIntent::Take { .. }, ClaimRole::Waiter { .. }) => true,
            (ClaimIntent::Take { .. }, ClaimRole::Fresh) => self.operations.is_busy(),
        };
        if look {
            let (claim, known) = (claim.clone(), known.clone());
            match self.look_up(move |view| view.look(&claim, &known)).await {
                Ok(Some(verdict)) => return Ok(verdict),
                Ok(None) => {}
                Err(error) => return Err(error),
            }
        }
        self.operate(move |tx| tx.claim(&claim, &known)).await
    }

    async fn flush_finished(&self, selection: &RecordFilter) -> Result<u64, StoreError> {
        let mut removed = 0;
        let mut after = None;
        loop {
            let selection = selection.clone();
            let found = self.look_up(move |view| view.finished(&selection, after, FLUSH)).await?;
            let Some((last, _)) = found.last().copied() else { return Ok(removed) };
            let full = found.len() == FLUSH;
            removed += self.operate(move |tx| tx.remove_finished(&found)).await?;
            if !full {
                return Ok(removed);
            }
            after = Some(last);
        }
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqliteStore({})", self.shared.place.path.display())
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.ending().run();
    }
}

fn refused(error: QueueError) -> StoreError {
    match error {
        QueueError::Full => overloaded(),
        QueueError::Closed => closed(),
    }
}

impl StateStore for SqliteStore {
    fn kind(&self) -> &'static str {
        "sqlite"
    }

    fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    fn claim<'a>(&'a self, claim: &'a Claim, known: &'a LocalKnowledge) -> StoreFuture<'a, ClaimVerdict> {
        Box::pin(self.look_and_claim(claim, known))
    }

    fn start<'a>(&'a self, key: RecordKey, owner: &'a ClaimOwner) -> StoreFuture<'a, StartVerdict> {
        let owner = owner.clone();
        Box::pin(self.operate(move |tx| tx.start(key, &owner)))
    }

    fn renew<'a>(
        &'a self,
        claimed: &'a DedupeRecord,
        keep: &'a RecordLifetimes,
    ) -> StoreFuture<'a, RenewVerdict> {
        let (claimed, keep) = (claimed.clone(), *keep);
        Box::pin(self.operate(move |tx| tx.renew(&claimed, &keep)))
    }

    fn save<'a>(&'a self, save: &'a SaveRequest) -> StoreFuture<'a, SaveVerdict> {
        let save = save.clone();
        Box::pin(self.operate(move |tx| tx.save(&save)))
    }

    fn release<'a>(&'a self, release: &'a ReleaseRequest) -> StoreFuture<'a, ()> {
        let release = release.clone();
        Box::pin(self.operate(move |tx| tx.release(&release)))
    }

    fn delivered<'a>(&'a self, receipt: &'a DeliveryReceipt, at: Timestamp) -> StoreFuture<'a, ()> {
        let receipt = receipt.clone();
        Box::pin(self.operate_later(move |tx| tx.delivered(&receipt, at)))
    }

    fn resolve<'a>(
        &'a self,
        resolve: &'a ResolutionRequest,
        rules: &'a DedupeRules,
    ) -> StoreFuture<'a, ResolveVerdict> {
        let (resolve, rules) = (resolve.clone(), *rules);
        Box::pin(self.operate(move |tx| tx.resolve(&resolve, &rules)))
    }

    fn mark_abandoned<'a>(
        &'a self,
        key: RecordKey,
        rules: &'a DedupeRules,
    ) -> StoreFuture<'a, Option<DedupeRecord>> {
        let rules = *rules;
        Box::pin(async move {
            let marked = self.operate(move |tx| tx.mark_abandoned(key, &rules)).await?;
            Ok(marked.map(Arc::unwrap_or_clone))
        })
    }

    fn settled<'a>(&'a self, key: RecordKey) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            let look = async || self.look_up(move |view| view.holder(key)).await.unwrap_or(None);
            self.shared.followers.join(key).settled(look).await;
        })
    }

    fn record(&self, key: RecordKey) -> StoreFuture<'_, Option<DedupeRecord>> {
        Box::pin(self.look_up(move |view| view.record(key)))
    }

    fn records<'a>(
        &'a self,
        selection: &'a RecordFilter,
        page: RecordPage,
    ) -> StoreFuture<'a, Vec<DedupeRecord>> {
        let selection = selection.clone();
        Box::pin(self.look_up(move |view| view.records(&selection, page)))
    }

    fn flush<'a>(&'a self, flush: &'a FlushTarget) -> StoreFuture<'a, u64> {
        Box::pin(async move {
            match flush {
                FlushTarget::Key(key) => {
                    let key = *key;
                    self.operate(move |tx| tx.remove(key).map(u64::from)).await
                }
                FlushTarget::Finished(selection) => self.flush_finished(selection).await,
            }
        })
    }

    fn sweep(&self) -> StoreFuture<'_, SweepResult> {
        Box::pin(async move {
            let after = self.swept.load(Ordering::Relaxed);
            let (expired, next) = self.look_up(move |view| view.expired(after, SWEEP)).await?;
            self.swept.store(next, Ordering::Relaxed);
            self.operate(move |tx| tx.sweep(&expired)).await
        })
    }

    fn read<'a>(&'a self, name: &'a DocumentName) -> StoreFuture<'a, Option<Document>> {
        let name = name.clone();
        Box::pin(self.look_up(move |view| view.read(&name)))
    }

    fn write<'a>(
        &'a self,
        name: &'a DocumentName,
        write: DocumentWrite,
    ) -> StoreFuture<'a, DocumentWriteOutcome> {
        let name = name.clone();
        Box::pin(self.operate(move |tx| tx.write(&name, &write)))
    }

    fn documents(&self, kind: DocumentKind) -> StoreFuture<'_, Vec<(DocumentName, Document)>> {
        Box::pin(self.look_up(move |view| view.documents(kind)))
    }

    fn append<'a>(
        &'a self,
        journal: Journal,
        entries: &'a [JournalEntry],
        keep: JournalLimits,
    ) -> StoreFuture<'a, ()> {
        let entries = entries.to_vec();
        Box::pin(self.operate_later(move |tx| tx.append(journal, &entries, keep)))
    }

    fn entries<'a>(
        &'a self,
        query: &'a JournalQuery,
    ) -> StoreFuture<'a, Vec<(JournalPosition, JournalEntry)>> {
        let query = query.clone();
        Box::pin(self.look_up(move |view| view.entries(&query)))
    }

    fn events(&self) -> broadcast::Receiver<StoreEvent> {
        let receiver = self.shared.events.subscribe();
        self.shared.followers.stir();
        receiver
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        let ending = self.ending();
        Box::pin(async {
            // This waits for the disk.
            tokio::task::spawn_blocking(|| ending.run()).await.map_err(|_| closed())
        })
    }
}
