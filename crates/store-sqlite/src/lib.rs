//! The embedded durable store: one SQLite file that all processes of a user share.
//!
//! Every record operation is one atomic step over the tables of the core, and on disk when it is answered. It survives
//! `kill -9` at any moment. Callers of one process share their syncs: one thread writes for all of them (`writer`),
//! others read (`reader`), and one watches what other processes do while somebody waits for them (`watch`). None of
//! this runs on a thread of the async runtime.
//!
//! A claim ends when, and only when, its owner's process is gone; where that cannot be judged, by time.

mod fault;
mod note;
mod open;
mod queue;
mod reader;
mod recent;
mod schema;
mod shared;
mod tx;
mod view;
mod watch;
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
    Claim, ClaimVerdict, Intent, Known, Owner, Process, Receipt, Record, RecordLoss, Release, RenewVerdict,
    Resolve, ResolveVerdict, Role, Rules, Save, SaveVerdict, StartVerdict,
};
use steadfast_core::key::Key;
use steadfast_core::policy::Lifetimes;
use steadfast_store::{
    Clock, Codec, Document, DocumentKind, DocumentName, DocumentWrite, Entry, Flush, Journal, Keep,
    Neighbours, News, Page, Position, Query, Selection, Sight, Store, StoreError, StoreFuture, Swept,
    SystemClock, Trouble, Written, this_process,
};
use tokio::sync::{broadcast, oneshot};

pub use open::{OnDamage, OnLoss, OpenError};

use crate::fault::Fault;
use crate::note::{Boot, NoteState};
use crate::open::{Place, Role as Connected};
use crate::queue::{Lane, Refused};
use crate::reader::{Questions, Reader, Sought};
use crate::recent::Recent;
use crate::shared::{Bounds, Given, Link, Shared, closed, overloaded};
use crate::tx::{SWEEP, Tx};
use crate::view::View;
use crate::watch::Watch;
use crate::writer::{Asked, Operations, Writer};

/// How a state file is opened.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// The file. Its folder is made if need be, both for this user alone.
    pub path: PathBuf,
    /// Where the time comes from. All processes on one file should have the same.
    pub clock: Arc<dyn Clock>,
    /// Who we are, as owners of records.
    pub process: Process,
    /// Whether the owners of records still live.
    pub sight: Arc<dyn Sight>,
    /// How records are written down.
    pub codec: Codec,
    /// What to do with a file that cannot be used.
    pub on_damage: OnDamage,
    /// What to do after committed records were lost.
    pub on_loss: OnLoss,
    /// How long an operation waits for other processes before it fails. Longer hides a process that hangs; shorter
    /// fails calls on a slow disk.
    pub patience: Duration,
    /// The most records. Each costs about a kilobyte on disk, and its output.
    pub most_records: u64,
    /// About the most bytes on disk; what is beyond goes with the next sweeps, finished records first.
    pub most_bytes: u64,
}

impl SqliteOptions {
    /// This file, for this process, with the usual bounds and no encryption.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let process = this_process();
        Self {
            path: path.into(),
            clock: Arc::new(SystemClock::default()),
            sight: Arc::new(Neighbours::of(process.clone())),
            process,
            codec: Codec::default(),
            on_damage: OnDamage::default(),
            on_loss: OnLoss::default(),
            patience: Duration::from_secs(5),
            most_records: 250_000,
            most_bytes: 4 << 30,
        }
    }
}

impl SqliteOptions {
    fn place(&self) -> Place {
        Place {
            // What SQLite keeps beside the file lies where a link leads, and so does the note.
            path: match fs::read_link(&self.path) {
                Ok(_) => fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone()),
                Err(_) => self.path.clone(),
            },
            on_damage: self.on_damage,
            on_loss: self.on_loss,
            // SQLite counts in 31 bits, and nobody waits for an hour.
            patience: self.patience.min(Duration::from_secs(3600)),
            boot: Boot::of(&self.process.boot),
        }
    }
}

/// Keeps everything in a file. Used on a runtime that has its timers on.
pub struct SqliteStore {
    shared: Arc<Shared>,
    operations: Arc<Operations>,
    questions: Arc<Questions>,
    set_aside: Option<PathBuf>,
    loss: Option<RecordLoss>,
    /// Up to which record the sweeps have looked for open ones that ended.
    swept: AtomicI64,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What there is to end of a store.
struct Ending {
    shared: Arc<Shared>,
    operations: Arc<Operations>,
    questions: Arc<Questions>,
    threads: Vec<JoinHandle<()>>,
}

impl Ending {
    /// What was asked for is done before.
    fn run(self) {
        self.questions.close();
        self.shared.followers.close();
        // The writer is the first of them and ends last. Connections that are closed at the same moment take each other for one
        // that stays, and leave the log where it is: somebody who then puts back a copy of the file would mix the two.
        let mut threads = self.threads.into_iter();
        let writer = threads.next();
        for thread in threads {
            // One that panicked has nothing more to say.
            let _ = thread.join();
        }
        self.operations.close();
        if let Some(writer) = writer {
            let _ = writer.join();
            // Another process may have died since the writer did this, and we were the last.
            if !open::has_log(&self.shared.place) {
                self.shared.close_note();
            }
        }
    }
}

/// The most operations that wait for the writer. More would wait longer than their callers do.
const MOST_OPERATIONS: usize = 4096;
/// The most look-ups that wait.
const MOST_QUESTIONS: usize = 4096;
/// A long one must not keep short ones waiting.
const READERS: usize = 2;
/// Records that one step of a flush removes.
const FLUSH: usize = 500;
/// How long the disk may take for what we do, beside the patience with other processes.
const DISK: Duration = Duration::from_secs(1);
const HANGS: &str = "the state file does not answer in time; look at its disk";

/// Why a thread of ours did not answer.
enum Silent {
    Gone,
    Hangs,
}

impl SqliteStore {
    /// Checks that the file could be opened, and makes and changes nothing. That it is damaged shows only when it is opened.
    pub fn inspect(options: &SqliteOptions) -> Result<(), OpenError> {
        open::inspect(&options.place())
    }

    /// Returns whether records were committed to this file once, by what lies beside it. Makes and changes nothing.
    pub fn held_records(path: &Path) -> bool {
        let place = SqliteOptions::at(path).place();
        match place.note().read() {
            Ok(NoteState::Sound(noted)) => noted.last.number > 0,
            Ok(NoteState::Damaged) => true,
            Ok(NoteState::Missing) | Err(_) => open::has_log(&place),
        }
    }

    /// Opens the file, makes it if there is none, and checks it. Reads all of it for that, so it blocks for as long as
    /// the disk needs: not to be called where others wait.
    pub fn open(options: SqliteOptions) -> Result<Self, OpenError> {
        let place = options.place();
        let SqliteOptions { clock, process, sight, codec, .. } = options;
        let prepared = open::prepare(&place, None, clock.now())?;
        let sql = |error: rusqlite::Error| open::sql_error(&place.path, &error);
        let first = open::connect(&place, Connected::Reader).map_err(sql)?;
        let number = |query: &str| first.query_row(query, [], |row| row.get::<_, i64>(0)).map_err(sql);
        let handle = number("SELECT random()")?;
        let document = view::unsigned(number("SELECT value FROM meta WHERE name = 'document'")?);
        let bounds = Bounds { records: options.most_records.max(1), bytes: options.most_bytes };
        let given = Given { place: place.clone(), clock, process, sight, codec, bounds };
        let shared = Arc::new(Shared::new(given, handle, prepared.last));
        let store = Self {
            shared: shared.clone(),
            operations: Arc::new(Operations::new(MOST_OPERATIONS)),
            questions: Arc::new(Questions::new(MOST_QUESTIONS)),
            set_aside: prepared.set_aside,
            loss: prepared.loss,
            swept: AtomicI64::new(0),
            threads: Mutex::default(),
        };
        let link = Link::to(&place, Connected::Writer)?;
        let (queue, recent) = (store.operations.clone(), Recent::default());
        let writer = Writer { shared: shared.clone(), queue, link, recent };
        store.spawn("writer", move || writer.run())?;
        for _ in 0..READERS {
            let link = Link::to(&place, Connected::Reader)?;
            let reader = Reader { shared: shared.clone(), queue: store.questions.clone(), link };
            store.spawn("reader", move || reader.run())?;
        }
        let watch = Watch { shared, link: Link::to(&place, Connected::Reader)?, document };
        store.spawn("watch", move || watch.run())?;
        Ok(store)
    }

    /// Where the file went that was found in place of ours and could not be used.
    pub fn set_aside(&self) -> Option<&Path> {
        self.set_aside.as_deref()
    }

    /// Returns the loss of committed records that was noticed when the file was opened.
    pub fn noticed_loss(&self) -> Option<&RecordLoss> {
        self.loss.as_ref()
    }

    /// Whoever is first has the threads; there is nothing left for the others to wait for.
    fn ending(&self) -> Ending {
        let threads = std::mem::take(&mut *self.threads.lock());
        let (shared, operations, questions) =
            (self.shared.clone(), self.operations.clone(), self.questions.clone());
        Ending { shared, operations, questions, threads }
    }

    fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), OpenError> {
        let thread = thread::Builder::new().name(format!("sqlite-{name}")).spawn(work);
        let path = &self.shared.place.path;
        self.threads.lock().push(thread.map_err(|why| open::file_error(path, &why))?);
        Ok(())
    }

    /// Has the writer do something. It is on disk when this comes back.
    async fn operate<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.ask(work, Lane::Soon).await
    }

    /// Has the writer do something when it has time. Everybody sees it when this comes back; it reaches the disk with
    /// what comes after it.
    async fn operate_later<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.ask(work, Lane::Later).await
    }

    async fn ask<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> Result<T, Fault> + Send + 'static,
        lane: Lane,
    ) -> Result<T, StoreError> {
        let (operation, answer) = Asked::new(work, self.shared.place.patience);
        self.operations.push(Box::new(operation), lane).map_err(refused)?;
        match self.in_time(answer).await {
            Ok(answer) => answer,
            // The writer answers everything that it takes, unless it died of it.
            Err(Silent::Gone) => {
                Err(StoreError::unanswered(Trouble::Closed, "the writer of the state file has ended"))
            }
            Err(Silent::Hangs) => Err(StoreError::unanswered(Trouble::Unreachable, HANGS)),
        }
    }

    /// Has a reader look something up.
    async fn look_up<T: Send + 'static>(
        &self,
        work: impl FnOnce(View<'_>) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (question, answer) = Sought::new(work);
        self.questions.push(Box::new(question), Lane::Soon).map_err(refused)?;
        match self.in_time(answer).await {
            Ok(answer) => answer,
            Err(Silent::Gone) => Err(closed()),
            Err(Silent::Hangs) => Err(StoreError::not_done(Trouble::Unreachable, HANGS)),
        }
    }

    /// Waits for one of our threads, but no longer than a disk may take that does not hang: nobody can call back a thread
    /// that waits in the kernel.
    async fn in_time<T>(&self, answer: oneshot::Receiver<T>) -> Result<T, Silent> {
        let limit = self.shared.place.patience + DISK;
        match tokio::time::timeout(limit, answer).await {
            Ok(answer) => answer.map_err(|_| Silent::Gone),
            Err(_) => {
                self.shared.failed(&StoreError::not_done(Trouble::Unreachable, HANGS));
                Err(Silent::Hangs)
            }
        }
    }

    async fn look_and_claim(&self, claim: &Claim, known: &Known) -> Result<ClaimVerdict, StoreError> {
        let claim = Arc::new(claim.clone());
        let known = Arc::new(known.clone());
        // A verdict for which nothing is written may come from any sight of the file that is no older than the
        // question. So it need not wait for the writer while that waits for the disk; an idle writer is as quick.
        let look = match (claim.intent, claim.role) {
            (Intent::Look, _) | (Intent::Take { .. }, Role::Waiter { .. }) => true,
            (Intent::Take { .. }, Role::Fresh) => self.operations.is_busy(),
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

    async fn flush_finished(&self, selection: &Selection) -> Result<u64, StoreError> {
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

fn refused(why: Refused) -> StoreError {
    match why {
        Refused::Full => overloaded(),
        Refused::Closed => closed(),
    }
}

impl Store for SqliteStore {
    fn kind(&self) -> &'static str {
        "sqlite"
    }

    fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    fn claim<'a>(&'a self, claim: &'a Claim, known: &'a Known) -> StoreFuture<'a, ClaimVerdict> {
        Box::pin(self.look_and_claim(claim, known))
    }

    fn start<'a>(&'a self, key: Key, owner: &'a Owner) -> StoreFuture<'a, StartVerdict> {
        let owner = owner.clone();
        Box::pin(self.operate(move |tx| tx.start(key, &owner)))
    }

    fn renew<'a>(&'a self, claimed: &'a Record, keep: &'a Lifetimes) -> StoreFuture<'a, RenewVerdict> {
        let (claimed, keep) = (claimed.clone(), *keep);
        Box::pin(self.operate(move |tx| tx.renew(&claimed, &keep)))
    }

    fn save<'a>(&'a self, save: &'a Save) -> StoreFuture<'a, SaveVerdict> {
        let save = save.clone();
        Box::pin(self.operate(move |tx| tx.save(&save)))
    }

    fn release<'a>(&'a self, release: &'a Release) -> StoreFuture<'a, ()> {
        let release = release.clone();
        Box::pin(self.operate(move |tx| tx.release(&release)))
    }

    fn delivered<'a>(&'a self, receipt: &'a Receipt, at: Timestamp) -> StoreFuture<'a, ()> {
        let receipt = receipt.clone();
        Box::pin(self.operate_later(move |tx| tx.delivered(&receipt, at)))
    }

    fn resolve<'a>(&'a self, resolve: &'a Resolve, rules: &'a Rules) -> StoreFuture<'a, ResolveVerdict> {
        let (resolve, rules) = (resolve.clone(), *rules);
        Box::pin(self.operate(move |tx| tx.resolve(&resolve, &rules)))
    }

    fn mark_abandoned<'a>(&'a self, key: Key, rules: &'a Rules) -> StoreFuture<'a, Option<Record>> {
        let rules = *rules;
        Box::pin(async move {
            let marked = self.operate(move |tx| tx.mark_abandoned(key, &rules)).await?;
            Ok(marked.map(Arc::unwrap_or_clone))
        })
    }

    fn settled<'a>(&'a self, key: Key) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            let look = async || self.look_up(move |view| view.holder(key)).await.unwrap_or(None);
            self.shared.followers.join(key).settled(look).await;
        })
    }

    fn record(&self, key: Key) -> StoreFuture<'_, Option<Record>> {
        Box::pin(self.look_up(move |view| view.record(key)))
    }

    fn records<'a>(&'a self, selection: &'a Selection, page: Page) -> StoreFuture<'a, Vec<Record>> {
        let selection = selection.clone();
        Box::pin(self.look_up(move |view| view.records(&selection, page)))
    }

    fn flush<'a>(&'a self, flush: &'a Flush) -> StoreFuture<'a, u64> {
        Box::pin(async move {
            match flush {
                Flush::Key(key) => {
                    let key = *key;
                    self.operate(move |tx| tx.remove(key).map(u64::from)).await
                }
                Flush::Finished(selection) => self.flush_finished(selection).await,
            }
        })
    }

    fn sweep(&self) -> StoreFuture<'_, Swept> {
        Box::pin(async move {
            let after = self.swept.load(Ordering::Relaxed);
            let (ended, next) = self.look_up(move |view| view.ended(after, SWEEP)).await?;
            self.swept.store(next, Ordering::Relaxed);
            self.operate(move |tx| tx.sweep(&ended)).await
        })
    }

    fn read<'a>(&'a self, name: &'a DocumentName) -> StoreFuture<'a, Option<Document>> {
        let name = name.clone();
        Box::pin(self.look_up(move |view| view.read(&name)))
    }

    fn write<'a>(&'a self, name: &'a DocumentName, write: DocumentWrite) -> StoreFuture<'a, Written> {
        let name = name.clone();
        Box::pin(self.operate(move |tx| tx.write(&name, &write)))
    }

    fn documents(&self, kind: DocumentKind) -> StoreFuture<'_, Vec<(DocumentName, Document)>> {
        Box::pin(self.look_up(move |view| view.documents(kind)))
    }

    fn append<'a>(&'a self, journal: Journal, entries: &'a [Entry], keep: Keep) -> StoreFuture<'a, ()> {
        let entries = entries.to_vec();
        Box::pin(self.operate_later(move |tx| tx.append(journal, &entries, keep)))
    }

    fn entries<'a>(&'a self, query: &'a Query) -> StoreFuture<'a, Vec<(Position, Entry)>> {
        let query = query.clone();
        Box::pin(self.look_up(move |view| view.entries(&query)))
    }

    fn news(&self) -> broadcast::Receiver<News> {
        let news = self.shared.news.subscribe();
        self.shared.followers.stir();
        news
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        let ending = self.ending();
        Box::pin(async {
            // It waits for the disk.
            tokio::task::spawn_blocking(|| ending.run()).await.map_err(|_| closed())
        })
    }
}
