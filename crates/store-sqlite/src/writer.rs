//! The only thread of this process that writes.
//!
//! It takes all queued operations, runs them in one transaction, and responds when that is on disk: any number of
//! callers share the sync. The transaction begins as a read transaction, so that operations that turn out to write
//! nothing never wait for another process. The first write upgrades it. If another process was faster, it starts
//! again, and takes the write lock first, with a bounded wait.
//!
//! A failed operation does not affect the others. If it has spoilt the transaction, everything is rolled back, and
//! each operation gets a transaction of its own.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use steadfast_store::{StoreError, StoreErrorKind};
use tokio::sync::oneshot;

use crate::fault::{SqliteFault, free_bytes};
use crate::files;
use crate::queue::{QueueLane, WorkQueue};
use crate::recent_records::RecentRecords;
use crate::shared::{FileConnection, SqliteShared, WriterStep, jittered};
use crate::transaction::{TransactionEffects, WriteTransaction};
use crate::view::FileView;

/// The most operations in one transaction.
pub(crate) const BATCH: usize = 256;

/// Time that the writer stays awake for the next operation. A caller often sends the next one at once, and waking a
/// thread takes about this long.
const LINGER: Duration = Duration::from_micros(50);

/// Size of the WAL at which it is checkpointed.
const LOG_PAGES: i32 = 1000;
/// Size at which the WAL is enlarged to its full size. Most processes write less, and a disk with a limited rate
/// stalls when hundreds of processes start at once and each writes megabytes of zeros.
const FEW_PAGES: i32 = 50;
/// Bytes in a page of the file.
const PAGE_BYTES: u64 = 4096;
/// Full size of the WAL, with room for the largest batches.
const LOG_BYTES: u64 = 6 << 20;
/// Free disk space that is needed for that.
const NEEDED_SPACE: u64 = 64 << 20;

/// An operation for the writer.
pub(crate) trait WriterOperation: Send {
    /// Runs the operation. May run more than once, if the transaction has to be restarted.
    fn run(&mut self, tx: &mut WriteTransaction<'_>) -> Result<(), SqliteFault>;
    /// Sends the result, or the error, to the caller.
    fn answer(self: Box<Self>, result: Result<(), StoreError>);
    /// Time at which the caller stops waiting for other processes.
    fn until(&self) -> Instant;
}

pub(crate) type WriterQueue = WorkQueue<Box<dyn WriterOperation>>;

/// An operation made from a function.
pub(crate) struct OperationFunction<F, T> {
    work: F,
    value: Option<T>,
    reply: oneshot::Sender<Result<T, StoreError>>,
    until: Instant,
}

impl<F, T> OperationFunction<F, T> {
    pub(crate) fn new(work: F, patience: Duration) -> (Self, oneshot::Receiver<Result<T, StoreError>>) {
        let (reply, answer) = oneshot::channel();
        (Self { work, value: None, reply, until: Instant::now() + patience }, answer)
    }
}

impl<F, T> WriterOperation for OperationFunction<F, T>
where
    F: FnMut(&mut WriteTransaction<'_>) -> Result<T, SqliteFault> + Send,
    T: Send,
{
    fn run(&mut self, tx: &mut WriteTransaction<'_>) -> Result<(), SqliteFault> {
        self.value = Some((self.work)(tx)?);
        Ok(())
    }

    fn answer(self: Box<Self>, result: Result<(), StoreError>) {
        let Self { value, reply, .. } = *self;
        let never_ran = || StoreError::not_done(StoreErrorKind::Closed, "the operation was not run");
        // The caller may have gone.
        let _ = reply.send(result.and_then(|()| value.ok_or_else(never_ran)));
    }

    fn until(&self) -> Instant {
        self.until
    }
}

/// The writer, on its thread.
pub(crate) struct SqliteWriter {
    pub(crate) shared: Arc<SqliteShared>,
    pub(crate) queue: Arc<WriterQueue>,
    pub(crate) link: FileConnection,
    pub(crate) recent: RecentRecords,
}

/// The type of a transaction at its start.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TransactionMode {
    /// A read transaction.
    Reading,
    /// A write transaction.
    Writing,
}

/// The result of a transaction.
enum TransactionOutcome {
    /// All callers have their results.
    Answered,
    /// All callers have a response, but it is unknown if the transaction was committed.
    InDoubt,
    /// Another process holds the file. The remaining operations wait.
    Busy(SqliteFault),
    /// The transaction was rolled back. The remaining operations must be tried one by one.
    Failed(SqliteFault),
}

impl SqliteWriter {
    pub(crate) fn run(mut self) {
        let queue = self.queue.clone();
        let _consumer = queue.consumer();
        let mut batch = Vec::new();
        let (mut enlarged, mut longest) = (false, self.longest_log());
        while let Some(lane) = self.queue.take(&mut batch, BATCH) {
            match lane {
                QueueLane::Soon => {
                    self.work(&mut batch, lane);
                    self.queue.linger(LINGER);
                }
                QueueLane::Later => self.work_unsynced(&mut batch),
            }
            if !enlarged && self.link.log() >= FEW_PAGES {
                self.enlarge_log();
                enlarged = true;
            }
            if self.link.log() >= longest {
                self.checkpoint();
                longest = self.longest_log();
            }
        }
        // While the connection is still open, so that the WAL exists.
        self.shared.close_note();
    }

    /// Runs the batch without a sync. It reaches the disk with the next sync.
    fn work_unsynced(&mut self, batch: &mut Vec<Box<dyn WriterOperation>>) {
        // If the connection refuses this, it syncs, or the next operation reports the error.
        self.synchronous("NORMAL");
        self.work(batch, QueueLane::Later);
        if !self.synchronous("FULL") {
            self.link.forget();
        }
    }

    /// Not a cached statement, because this one takes effect when it is prepared.
    fn synchronous(&mut self, mode: &str) -> bool {
        let connection = self.link.connection(&self.shared).ok();
        connection.is_some_and(|sql| sql.pragma_update(None, "synchronous", mode).is_ok())
    }

    /// Returns the longest allowed WAL, in pages. At most a quarter of the free space, because its content must fit
    /// into the file too.
    fn longest_log(&self) -> i32 {
        let quarter = free_bytes(&self.shared.place.path).map(|free| free / 4 / PAGE_BYTES);
        let pages = quarter.and_then(|pages| i32::try_from(pages).ok()).unwrap_or(LOG_PAGES);
        pages.clamp(FEW_PAGES, LOG_PAGES)
    }

    /// Checkpoints the WAL, so that it can restart. SQLite would do it within a commit, while callers wait.
    fn checkpoint(&mut self) {
        let last = self.shared.last();
        if let Ok(sql) = self.link.connection(&self.shared) {
            // If this fails, the WAL grows, and the next commit tries again.
            let pages = sql.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
            });
            if let Ok((0, log, done)) = pages
                && log == done
            {
                self.shared.record_checkpoint(last);
            }
        }
    }

    /// Enlarges the WAL. A write that extends a file takes two or three times as long to reach the disk as an
    /// overwrite. So the WAL of a process that writes much gets its full size at once. While this process holds the
    /// write lock, no other one appends to the WAL, and its readers stop at the last frame.
    fn enlarge_log(&mut self) {
        let log = files::with_suffix(&self.shared.place.path, "-wal");
        let Ok(sql) = self.link.connection(&self.shared) else { return };
        // If this fails, nothing changes except the speed.
        if let Ok(open) = OpenTransaction::begin(sql, TransactionMode::Writing) {
            let _ = enlarge(&log);
            drop(open);
        }
    }

    /// Runs the batch and responds to all its callers.
    fn work(&mut self, batch: &mut Vec<Box<dyn WriterOperation>>, lane: QueueLane) {
        let mut outcome = self.attempt(batch, TransactionMode::Reading, lane);
        let mut tries = 0;
        loop {
            match outcome {
                TransactionOutcome::Answered | TransactionOutcome::InDoubt => return,
                TransactionOutcome::Busy(fault) => {
                    fail_expired(batch, &fault, &self.shared);
                    if batch.is_empty() {
                        return;
                    }
                    thread::sleep(pause(tries));
                    tries += 1;
                    match lane {
                        QueueLane::Soon => self.queue.take_more(batch, BATCH),
                        // Durable operations are not mixed with others.
                        QueueLane::Later => {}
                    }
                    outcome = self.attempt(batch, TransactionMode::Writing, lane);
                }
                TransactionOutcome::Failed(fault) => {
                    let path = &self.shared.place.path;
                    if batch.len() > 1 {
                        for operation in std::mem::take(batch) {
                            self.work(&mut vec![operation], lane);
                        }
                    } else if fault.is_about_one_record() {
                        batch.drain(..).for_each(|operation| operation.answer(Err(fault.not_done(path))));
                    } else {
                        reply_all(batch, &Err(fault.not_done(path)), &self.shared);
                    }
                    return;
                }
            }
        }
    }

    /// Runs one transaction. Removes the operations that got a response from the batch.
    fn attempt(
        &mut self,
        batch: &mut Vec<Box<dyn WriterOperation>>,
        begin: TransactionMode,
        lane: QueueLane,
    ) -> TransactionOutcome {
        let outcome = match self.link.connection(&self.shared) {
            Ok(sql) => transact(FileView { sql, shared: &self.shared }, &mut self.recent, batch, begin, lane),
            Err(fault) => {
                reply_all(batch, &Err(fault.not_done(&self.shared.place.path)), &self.shared);
                return TransactionOutcome::Answered;
            }
        };
        match outcome {
            Ok(TransactionOutcome::InDoubt) => {
                self.link.forget();
                TransactionOutcome::InDoubt
            }
            Ok(outcome) => outcome,
            Err(fault) if fault.is_busy() => TransactionOutcome::Busy(fault),
            Err(fault) => {
                if fault.breaks_connection() {
                    self.link.forget();
                }
                TransactionOutcome::Failed(fault)
            }
        }
    }
}

/// Runs the batch in one transaction. `Err` means that nothing happened for the operations left in the batch.
fn transact(
    view: FileView<'_>,
    recent: &mut RecentRecords,
    batch: &mut Vec<Box<dyn WriterOperation>>,
    begin: TransactionMode,
    lane: QueueLane,
) -> Result<TransactionOutcome, SqliteFault> {
    let FileView { sql, shared } = view;
    let mut open = OpenTransaction::begin(sql, begin)?;
    view.check_format()?;
    let mut tx = WriteTransaction::new(view, recent);
    let mut ran = Vec::with_capacity(batch.len());
    let mut waiting = std::mem::take(batch).into_iter();
    while let Some(mut operation) = waiting.next() {
        let before = tx.writes();
        match operation.run(&mut tx) {
            // The result was only read, so nothing needs to be on disk for it.
            Ok(()) if tx.writes() == 0 => operation.answer(Ok(())),
            Ok(()) => ran.push(operation),
            Err(fault) if fault.is_about_one_record() && tx.writes() == before => {
                operation.answer(Err(fault.not_done(&shared.place.path)));
            }
            Err(fault) => {
                // In the order of their arrival.
                ran.push(operation);
                ran.extend(waiting);
                *batch = ran;
                return Err(fault);
            }
        }
    }
    if ran.is_empty() {
        drop(open);
        return Ok(TransactionOutcome::Answered);
    }
    let TransactionEffects { settled, commit, accepts_loss } = match tx.finish(lane) {
        Ok(finished) => finished,
        Err(fault) => {
            *batch = ran;
            return Err(fault);
        }
    };
    shared.step(WriterStep::Commit);
    match open.commit() {
        Ok(()) => {
            shared.step(WriterStep::Committed);
            if let Some(commit) = commit {
                shared.record_commit(commit, accepts_loss);
            }
            shared.step(WriterStep::Noted);
            shared.followers.wake(&settled);
            reply_all(&mut ran, &Ok(()), shared);
        }
        // Only the file can show if the commit happened.
        Err(fault) => {
            reply_all(&mut ran, &Err(fault.unanswered(&shared.place.path)), shared);
            return Ok(TransactionOutcome::InDoubt);
        }
    }
    Ok(TransactionOutcome::Answered)
}

fn reply_all(
    batch: &mut Vec<Box<dyn WriterOperation>>,
    result: &Result<(), StoreError>,
    shared: &SqliteShared,
) {
    match result {
        Ok(()) => shared.record_write(),
        Err(error) => shared.record_failure(error),
    }
    for operation in batch.drain(..) {
        operation.answer(result.clone());
    }
}

/// Fails the operations that have waited long enough for other processes.
fn fail_expired(batch: &mut Vec<Box<dyn WriterOperation>>, fault: &SqliteFault, shared: &SqliteShared) {
    let now = Instant::now();
    let (mut late, waiting): (Vec<_>, Vec<_>) =
        batch.drain(..).partition(|operation| operation.until() <= now);
    *batch = waiting;
    if !late.is_empty() {
        reply_all(&mut late, &Err(fault.not_done(&shared.place.path)), shared);
    }
}

fn enlarge(log: &Path) -> io::Result<()> {
    // On a small disk, space matters more than speed.
    if free_bytes(log).is_some_and(|free| free < NEEDED_SPACE) {
        return Ok(());
    }
    let mut file = OpenOptions::new().append(true).open(log)?;
    let length = file.metadata()?.len();
    let nothing = io::repeat(0).take(LOG_BYTES.saturating_sub(length));
    io::copy(&mut io::BufReader::with_capacity(1 << 16, nothing), &mut file)?;
    file.sync_data()
}

/// Returns how long to leave the file to other processes: longer each time, and random. Not much longer than a commit
/// takes, because a busy process leaves gaps only between its own commits.
fn pause(tries: u32) -> Duration {
    jittered(Duration::from_micros(100 << tries.min(3)))
}

/// An open transaction, rolled back unless it is committed.
struct OpenTransaction<'c> {
    sql: &'c Connection,
}

impl<'c> OpenTransaction<'c> {
    fn begin(sql: &'c Connection, begin: TransactionMode) -> Result<Self, SqliteFault> {
        let words = match begin {
            TransactionMode::Reading => "BEGIN",
            TransactionMode::Writing => "BEGIN IMMEDIATE",
        };
        sql.prepare_cached(words)?.execute([])?;
        Ok(Self { sql })
    }

    fn commit(&mut self) -> Result<(), SqliteFault> {
        self.sql.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }
}

impl Drop for OpenTransaction<'_> {
    fn drop(&mut self) {
        if !self.sql.is_autocommit() {
            // If even this fails, the connection is unusable, which the next transaction will report.
            let _ = self.sql.prepare_cached("ROLLBACK").and_then(|mut rollback| rollback.execute([]));
        }
    }
}
