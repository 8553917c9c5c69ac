//! State shared by the threads of a store.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rusqlite::Connection;
use rusqlite::hooks::Wal;
use steadfast_core::Timestamp;
use steadfast_core::dedupe::{Commit, MarkerStatus, MarkerWatch, ProcessIdentity, RecordAbsence};
use steadfast_store::{ProcessMonitor, RecordCodec, StoreError, StoreErrorKind, StoreEvent, TimeSource};
use tokio::sync::broadcast;

use crate::commit_note::CommitNoteFile;
use crate::fault::SqliteFault;
use crate::files::FileIdentity;
use crate::library_copy::LibraryCopyLock;
use crate::followers::RecordFollowers;
use crate::state_file::{self, ConnectionRole, PreparedFile, SqliteOpenError, StateFile};

/// Time during which a process that knew a lost file makes no new claim of a call that must not run twice.
const LEASE: Duration = Duration::from_secs(120);

/// Pause after a failure to reopen the file.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct SqliteShared {
    pub(crate) place: StateFile,
    pub(crate) clock: Arc<dyn TimeSource>,
    pub(crate) process: ProcessIdentity,
    pub(crate) sight: Arc<dyn ProcessMonitor>,
    pub(crate) codec: RecordCodec,
    pub(crate) bounds: FileLimits,
    /// Held as long as anything of this store uses the file.
    _copy: LibraryCopyLock,
    /// Distinguishes documents written by this store from those of others.
    pub(crate) handle: i64,
    pub(crate) followers: RecordFollowers,
    pub(crate) events: broadcast::Sender<StoreEvent>,
    marker: Mutex<MarkerWatch>,
    note: CommitNoteFile,
    /// The last commit that this process knows of.
    last: Mutex<Commit>,
    lost: AtomicBool,
    #[cfg(test)]
    pub(crate) steps: crate::tests::steps::WriterStepCounter,
}

/// A point at which a process could die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriterStep {
    /// Before a statement that writes.
    Write,
    /// Before a commit.
    Commit,
    /// After the commit, before it is recorded in the note.
    Committed,
    /// After that, before a caller gets its response.
    Noted,
}

/// Limits of the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileLimits {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
}

/// The unchangeable parts of a store.
pub(crate) struct SqliteParts {
    pub(crate) place: StateFile,
    pub(crate) clock: Arc<dyn TimeSource>,
    pub(crate) process: ProcessIdentity,
    pub(crate) sight: Arc<dyn ProcessMonitor>,
    pub(crate) codec: RecordCodec,
    pub(crate) bounds: FileLimits,
    pub(crate) copy: LibraryCopyLock,
}

impl SqliteShared {
    pub(crate) fn new(given: SqliteParts, handle: i64, last: Commit) -> Self {
        let SqliteParts { place, clock, process, sight, codec, bounds, copy } = given;
        let mut watch = MarkerWatch::default();
        watch.observe(last.marker, LEASE, clock.now());
        Self {
            note: place.note(),
            last: Mutex::new(last),
            place,
            clock,
            sight,
            process,
            codec,
            bounds,
            _copy: copy,
            handle,
            followers: RecordFollowers::default(),
            events: broadcast::Sender::new(256),
            marker: Mutex::new(watch),
            lost: AtomicBool::new(false),
            #[cfg(test)]
            steps: crate::tests::steps::WriterStepCounter::default(),
        }
    }

    /// Called at every change of the file, so that a test can stop there.
    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "only tests use it"))]
    pub(crate) fn step(&self, step: WriterStep) {
        #[cfg(test)]
        self.steps.take(step);
        #[cfg(not(test))]
        let _ = step;
    }

    /// Returns true if a new claim is allowed, after the file was lost.
    pub(crate) fn admits(&self, retry_safe: bool, now: Timestamp) -> bool {
        self.marker.lock().admits(retry_safe, now)
    }

    /// Returns the meaning of a missing record for its owner.
    pub(crate) fn absence(&self, now: Timestamp) -> RecordAbsence {
        self.marker.lock().absence(now)
    }

    /// Records a successful write. Sends an event if writes failed before.
    pub(crate) fn record_write(&self) {
        if self.lost.load(Ordering::Relaxed) && self.lost.swap(false, Ordering::Relaxed) {
            self.send_event(StoreEvent::Available);
        }
    }

    /// Records a failure. Sends an event once until the next successful write. A successful read does not count,
    /// because it says nothing about the disk.
    pub(crate) fn record_failure(&self, error: &StoreError) {
        if error.kind() != StoreErrorKind::Closed && !self.lost.swap(true, Ordering::Relaxed) {
            self.send_event(StoreEvent::Unavailable(error.to_string().into()));
        }
    }

    /// Records a durable commit.
    pub(crate) fn record_commit(&self, commit: Commit, accepts_loss: bool) {
        *self.last.lock() = commit;
        self.note.raise(commit);
        if accepts_loss {
            self.note.forget_loss(commit.marker);
        }
    }

    /// Records that the whole WAL was checkpointed after this commit, and the file synced.
    pub(crate) fn record_checkpoint(&self, commit: Commit) {
        self.note.raise_in_file(commit);
    }

    pub(crate) fn last(&self) -> Commit {
        *self.last.lock()
    }

    /// Makes the note exact. Every commit of this process is in the note. Before the file is closed, this must also
    /// survive a power cut, because its WAL may be removed then.
    pub(crate) fn close_note(&self) {
        let marker = self.last.lock().marker;
        self.note.mark_exact(marker);
    }

    /// An event without receivers is dropped.
    pub(crate) fn send_event(&self, event: StoreEvent) {
        let _ = self.events.send(event);
    }

    fn see(&self, prepared: &PreparedFile) {
        let mut last = self.last.lock();
        if last.marker != prepared.last.marker || last.number < prepared.last.number {
            *last = prepared.last;
        }
        drop(last);
        let status = self.marker.lock().observe(prepared.last.marker, LEASE, self.clock.now());
        match status {
            MarkerStatus::First | MarkerStatus::Same => {}
            MarkerStatus::Emptied => self.send_event(StoreEvent::Emptied),
        }
    }
}

/// A connection that detects when its file is no longer at its path.
///
/// The file may be deleted, or set aside because of damage, while it is open. Writes to a deleted file would be lost.
/// So the identity of the file is compared before each transaction.
pub(crate) struct FileConnection {
    role: ConnectionRole,
    open: Option<(Connection, FileIdentity)>,
    failed: Option<(Instant, StoreErrorKind, String)>,
    opened: u64,
    /// Length of the WAL after the last commit of this connection, in pages.
    log: Arc<AtomicI32>,
}

impl FileConnection {
    pub(crate) fn to(place: &StateFile, role: ConnectionRole) -> Result<Self, SqliteOpenError> {
        let log = Arc::new(AtomicI32::new(0));
        let before = FileIdentity::of(&place.path);
        let sql = |error: rusqlite::Error| state_file::sql_error(&place.path, &error);
        let mut connection = state_file::connect(place, role).map_err(sql)?;
        let pages = log.clone();
        let note = move |_: &mut Wal, count| {
            pages.store(count, Ordering::Relaxed);
            Ok(())
        };
        connection.wal_hook(Some(note)).map_err(sql)?;
        // If the path changed while the file was opened, it is opened again before it is used.
        let open = before.map(|identity| (connection, identity));
        Ok(Self { role, open, failed: None, opened: 1, log })
    }

    /// Returns the length of the WAL in pages.
    pub(crate) fn log(&self) -> i32 {
        self.log.load(Ordering::Relaxed)
    }

    /// Returns the connection, reopened if needed.
    pub(crate) fn connection(&mut self, shared: &SqliteShared) -> Result<&Connection, SqliteFault> {
        let there = FileIdentity::of(&shared.place.path);
        let usable = matches!((&self.open, there), (Some((_, identity)), Some(there)) if *identity == there);
        if !usable {
            self.reopen(shared)?;
        }
        match &self.open {
            Some((connection, _)) => Ok(connection),
            None => Err(SqliteFault::Other(StoreErrorKind::Unreachable, "the state file was removed".into())),
        }
    }

    /// Returns how often the connection was opened. Counters of different connections cannot be compared.
    pub(crate) fn opened(&self) -> u64 {
        self.opened
    }

    /// Makes the next transaction open a new connection.
    pub(crate) fn forget(&mut self) {
        self.open = None;
    }

    fn reopen(&mut self, shared: &SqliteShared) -> Result<(), SqliteFault> {
        if let Some((when, trouble, message)) = &self.failed
            && when.elapsed() < PAUSE
        {
            return Err(SqliteFault::Other(*trouble, message.clone()));
        }
        self.open = None;
        let known = *shared.last.lock();
        let opened =
            state_file::prepare(&shared.place, Some(known), shared.clock.now()).and_then(|prepared| {
                shared.see(&prepared);
                Self::to(&shared.place, self.role)
            });
        match opened {
            Ok(link) => {
                *self = Self { opened: self.opened + 1, ..link };
                Ok(())
            }
            Err(error) => {
                let trouble = match error {
                    SqliteOpenError::Folder { .. } | SqliteOpenError::File { .. } => StoreErrorKind::Refused,
                    SqliteOpenError::Foreign { .. }
                    | SqliteOpenError::Damaged { .. }
                    | SqliteOpenError::Newer { .. } => StoreErrorKind::Unreadable,
                    SqliteOpenError::Busy { .. } => StoreErrorKind::Unreachable,
                };
                self.failed = Some((Instant::now(), trouble, error.to_string()));
                Err(SqliteFault::Other(trouble, error.to_string()))
            }
        }
    }
}

impl fmt::Debug for FileConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({:?}, {})", self.role, if self.open.is_some() { "open" } else { "closed" })
    }
}

/// Returns a random span between three and five quarters of this one, so that callers do not collide.
pub(crate) fn jittered(span: Duration) -> Duration {
    let quarters = 3 * 256 + RandomState::new().hash_one(0) % 512;
    span.mul_f64(quarters as f64 / 1024.0)
}

/// The error for too many queued operations.
pub(crate) fn overloaded() -> StoreError {
    StoreError::not_done(
        StoreErrorKind::Full,
        "too many operations wait for the state file: try again in a moment",
    )
}

/// The error for a closed store.
pub(crate) fn closed() -> StoreError {
    StoreError::not_done(StoreErrorKind::Closed, "the state file is being closed")
}
