//! The one thread of this process that writes.
//!
//! It takes all operations that wait, runs them in one transaction, and answers them when that is on disk: however
//! many callers there are, they share the sync. The transaction begins as a reading one, so that operations that turn
//! out to write nothing never wait for another process; the first write makes it a writing one, and where somebody
//! else was faster it begins again, this time asking for the right to write first, with bounded patience.
//!
//! An operation that fails takes nobody with it. If it has spoilt the transaction, everything is rolled back and each
//! operation gets a transaction of its own.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use steadfast_store::{StoreError, Trouble};
use tokio::sync::oneshot;

use crate::fault::{Fault, free_bytes};
use crate::open;
use crate::queue::{Lane, Queue};
use crate::recent::Recent;
use crate::shared::{Link, Shared, Step, jittered};
use crate::tx::{Finished, Tx};
use crate::view::View;

/// The most operations in one transaction.
pub(crate) const BATCH: usize = 256;

/// How long the writer stays awake for the next operation. Whoever was just answered often asks again at once, and
/// waking a thread takes about this long.
const LINGER: Duration = Duration::from_micros(50);

/// How long the log grows before it is brought into the file.
const LOG_PAGES: i32 = 1000;
/// How long it is when it is worth its full size: most processes write less, and a disk that gives each a share of its time
/// stalls when hundreds start at once and each writes megabytes of nothing.
const FEW_PAGES: i32 = 50;
/// A page of the file.
const PAGE_BYTES: u64 = 4096;
/// So much log, and the largest batches on top of it.
const LOG_BYTES: u64 = 6 << 20;
/// So much must be free for that.
const ROOM: u64 = 64 << 20;

/// An operation that waits for the writer.
pub(crate) trait Operation: Send {
    /// Runs it. May happen more than once, if the transaction has to be begun again.
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), Fault>;
    /// Tells its caller: what came of it, or why nothing did.
    fn answer(self: Box<Self>, how: Result<(), StoreError>);
    /// When its caller stops waiting for other processes.
    fn until(&self) -> Instant;
}

pub(crate) type Operations = Queue<Box<dyn Operation>>;

/// An operation made of a function.
pub(crate) struct Asked<F, T> {
    work: F,
    value: Option<T>,
    reply: oneshot::Sender<Result<T, StoreError>>,
    until: Instant,
}

impl<F, T> Asked<F, T> {
    pub(crate) fn new(work: F, patience: Duration) -> (Self, oneshot::Receiver<Result<T, StoreError>>) {
        let (reply, answer) = oneshot::channel();
        (Self { work, value: None, reply, until: Instant::now() + patience }, answer)
    }
}

impl<F, T> Operation for Asked<F, T>
where
    F: FnMut(&mut Tx<'_>) -> Result<T, Fault> + Send,
    T: Send,
{
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), Fault> {
        self.value = Some((self.work)(tx)?);
        Ok(())
    }

    fn answer(self: Box<Self>, how: Result<(), StoreError>) {
        let Self { value, reply, .. } = *self;
        let never_ran = || StoreError::not_done(Trouble::Closed, "the operation was not run");
        // A caller that is gone does not want to know.
        let _ = reply.send(how.and_then(|()| value.ok_or_else(never_ran)));
    }

    fn until(&self) -> Instant {
        self.until
    }
}

/// The writer, on its thread.
pub(crate) struct Writer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) queue: Arc<Operations>,
    pub(crate) link: Link,
    pub(crate) recent: Recent,
}

/// How a transaction begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    /// As a reader.
    Reading,
    /// With the right to write.
    Writing,
}

/// What became of a transaction.
enum Ended {
    /// Everything is answered.
    Answered,
    /// Everything is answered, but nobody knows whether it happened.
    InDoubt,
    /// Somebody else holds the file; what is left waits.
    Busy(Fault),
    /// It was spoilt, and nothing happened; what is left should be tried one by one.
    Spoilt(Fault),
}

impl Writer {
    pub(crate) fn run(mut self) {
        let queue = self.queue.clone();
        let _taker = queue.taker();
        let mut batch = Vec::new();
        let (mut enlarged, mut longest) = (false, self.longest_log());
        while let Some(lane) = self.queue.take(&mut batch, BATCH) {
            match lane {
                Lane::Soon => {
                    self.work(&mut batch, lane);
                    self.queue.linger(LINGER);
                }
                Lane::Later => self.work_unsynced(&mut batch),
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
        // While the connection is still open, so that the log is there.
        self.shared.close_note();
    }

    /// Runs and answers everything in the batch, without a sync. It reaches the disk with the next one.
    fn work_unsynced(&mut self, batch: &mut Vec<Box<dyn Operation>>) {
        // A connection that cannot do this syncs, or says with the next operation what is wrong.
        self.synchronous("NORMAL");
        self.work(batch, Lane::Later);
        if !self.synchronous("FULL") {
            self.link.forget();
        }
    }

    /// Not as a cached statement: this one takes effect when it is prepared.
    fn synchronous(&mut self, how: &str) -> bool {
        let connection = self.link.connection(&self.shared).ok();
        connection.is_some_and(|sql| sql.pragma_update(None, "synchronous", how).is_ok())
    }

    /// How long the log may grow, in pages. It takes no more than a quarter of what is free: what is in it has to fit into the
    /// file too.
    fn longest_log(&self) -> i32 {
        let quarter = free_bytes(&self.shared.place.path).map(|free| free / 4 / PAGE_BYTES);
        let pages = quarter.and_then(|pages| i32::try_from(pages).ok()).unwrap_or(LOG_PAGES);
        pages.clamp(FEW_PAGES, LOG_PAGES)
    }

    /// Brings what is in the log into the file, so that the log can begin anew. SQLite would do it within a commit, while
    /// callers wait.
    fn checkpoint(&mut self) {
        let last = self.shared.last();
        if let Ok(sql) = self.link.connection(&self.shared) {
            // Where it does not work the log grows, and the next commit leads here again.
            let pages = sql.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
            });
            if let Ok((0, log, done)) = pages
                && log == done
            {
                self.shared.brought_into_file(last);
            }
        }
    }

    /// Writing into a file that grows takes two or three times as long to reach the disk as writing over what is
    /// there. So the log of a process that writes much gets at once the size at which it begins anew. While we have
    /// the right to write nobody else adds to it, and readers of a log stop where its frames end.
    fn enlarge_log(&mut self) {
        let log = open::beside(&self.shared.place.path, "-wal");
        let Ok(sql) = self.link.connection(&self.shared) else { return };
        // Where this does not work everything is as it was, and slower.
        if let Ok(open) = Open::begin(sql, Begin::Writing) {
            let _ = enlarge(&log);
            drop(open);
        }
    }

    /// Runs and answers everything in the batch.
    fn work(&mut self, batch: &mut Vec<Box<dyn Operation>>, lane: Lane) {
        let mut ended = self.attempt(batch, Begin::Reading, lane);
        let mut tries = 0;
        loop {
            match ended {
                Ended::Answered | Ended::InDoubt => return,
                Ended::Busy(fault) => {
                    give_up_the_late(batch, &fault, &self.shared);
                    if batch.is_empty() {
                        return;
                    }
                    thread::sleep(pause(tries));
                    tries += 1;
                    match lane {
                        Lane::Soon => self.queue.take_more(batch, BATCH),
                        // What must be on disk does not go with what need not.
                        Lane::Later => {}
                    }
                    ended = self.attempt(batch, Begin::Writing, lane);
                }
                Ended::Spoilt(fault) => {
                    let path = &self.shared.place.path;
                    if batch.len() > 1 {
                        for operation in std::mem::take(batch) {
                            self.work(&mut vec![operation], lane);
                        }
                    } else if fault.is_about_one_record() {
                        batch.drain(..).for_each(|operation| operation.answer(Err(fault.not_done(path))));
                    } else {
                        answer_all(batch, &Err(fault.not_done(path)), &self.shared);
                    }
                    return;
                }
            }
        }
    }

    /// One transaction. What it answers is taken out of the batch.
    fn attempt(&mut self, batch: &mut Vec<Box<dyn Operation>>, begin: Begin, lane: Lane) -> Ended {
        let ended = match self.link.connection(&self.shared) {
            Ok(sql) => transact(View { sql, shared: &self.shared }, &mut self.recent, batch, begin, lane),
            Err(fault) => {
                answer_all(batch, &Err(fault.not_done(&self.shared.place.path)), &self.shared);
                return Ended::Answered;
            }
        };
        match ended {
            Ok(Ended::InDoubt) => {
                self.link.forget();
                Ended::InDoubt
            }
            Ok(ended) => ended,
            Err(fault) if fault.is_busy() => Ended::Busy(fault),
            Err(fault) => {
                if fault.breaks_connection() {
                    self.link.forget();
                }
                Ended::Spoilt(fault)
            }
        }
    }
}

/// Runs the batch in one transaction. `Err` means that nothing happened of what is left in the batch.
fn transact(
    view: View<'_>,
    recent: &mut Recent,
    batch: &mut Vec<Box<dyn Operation>>,
    begin: Begin,
    lane: Lane,
) -> Result<Ended, Fault> {
    let View { sql, shared } = view;
    let mut open = Open::begin(sql, begin)?;
    view.is_of_today()?;
    let mut tx = Tx::new(view, recent);
    let mut ran = Vec::with_capacity(batch.len());
    let mut waiting = std::mem::take(batch).into_iter();
    while let Some(mut operation) = waiting.next() {
        let before = tx.writes();
        match operation.run(&mut tx) {
            // What was read is true, and nothing has to be on disk for it.
            Ok(()) if tx.writes() == 0 => operation.answer(Ok(())),
            Ok(()) => ran.push(operation),
            Err(fault) if fault.is_about_one_record() && tx.writes() == before => {
                operation.answer(Err(fault.not_done(&shared.place.path)));
            }
            Err(fault) => {
                // In the order in which they came.
                ran.push(operation);
                ran.extend(waiting);
                *batch = ran;
                return Err(fault);
            }
        }
    }
    if ran.is_empty() {
        drop(open);
        return Ok(Ended::Answered);
    }
    let Finished { settled, commit, accepts_loss } = match tx.finish(lane) {
        Ok(finished) => finished,
        Err(fault) => {
            *batch = ran;
            return Err(fault);
        }
    };
    shared.step(Step::Commit);
    match open.commit() {
        Ok(()) => {
            shared.step(Step::Committed);
            if let Some(commit) = commit {
                shared.committed(commit, accepts_loss);
            }
            shared.step(Step::Noted);
            shared.followers.wake(&settled);
            answer_all(&mut ran, &Ok(()), shared);
        }
        // Whether it is in the file, only the file knows.
        Err(fault) => {
            answer_all(&mut ran, &Err(fault.unanswered(&shared.place.path)), shared);
            return Ok(Ended::InDoubt);
        }
    }
    Ok(Ended::Answered)
}

fn answer_all(batch: &mut Vec<Box<dyn Operation>>, how: &Result<(), StoreError>, shared: &Shared) {
    match how {
        Ok(()) => shared.wrote(),
        Err(error) => shared.failed(error),
    }
    for operation in batch.drain(..) {
        operation.answer(how.clone());
    }
}

/// Whoever has waited long enough for other processes is told so.
fn give_up_the_late(batch: &mut Vec<Box<dyn Operation>>, fault: &Fault, shared: &Shared) {
    let now = Instant::now();
    let (mut late, waiting): (Vec<_>, Vec<_>) =
        batch.drain(..).partition(|operation| operation.until() <= now);
    *batch = waiting;
    if !late.is_empty() {
        answer_all(&mut late, &Err(fault.not_done(&shared.place.path)), shared);
    }
}

fn enlarge(log: &Path) -> io::Result<()> {
    // On a small disk the room is worth more than the speed.
    if free_bytes(log).is_some_and(|free| free < ROOM) {
        return Ok(());
    }
    let mut file = OpenOptions::new().append(true).open(log)?;
    let length = file.metadata()?.len();
    let nothing = io::repeat(0).take(LOG_BYTES.saturating_sub(length));
    io::copy(&mut io::BufReader::with_capacity(1 << 16, nothing), &mut file)?;
    file.sync_data()
}

/// How long to leave the file to others: longer each time, and never the same for two processes. Not much longer than a
/// commit takes, because a busy process leaves gaps only between its own.
fn pause(tries: u32) -> Duration {
    jittered(Duration::from_micros(100 << tries.min(3)))
}

/// An open transaction; ends with nothing done unless it is committed.
struct Open<'c> {
    sql: &'c Connection,
}

impl<'c> Open<'c> {
    fn begin(sql: &'c Connection, begin: Begin) -> Result<Self, Fault> {
        let words = match begin {
            Begin::Reading => "BEGIN",
            Begin::Writing => "BEGIN IMMEDIATE",
        };
        sql.prepare_cached(words)?.execute([])?;
        Ok(Self { sql })
    }

    fn commit(&mut self) -> Result<(), Fault> {
        self.sql.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.sql.is_autocommit() {
            // Where even this fails, the connection is beyond use and will say so at the next beginning.
            let _ = self.sql.prepare_cached("ROLLBACK").and_then(|mut rollback| rollback.execute([]));
        }
    }
}
