//! Creation, checks and repair of the file before it is used.
//!
//! Several processes may start at once, and one of them may find the file missing, old or damaged. A healthy file is
//! only checked. Changes of the whole file (creating, migrating or setting it aside) happen under a lock file beside
//! it, after a second check. The same is true for a loss of commits: the note beside the file (see [`note`]) is read
//! before the file is, and a file that is behind its note has lost some.

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, params};
use steadfast_core::Timestamp;
use steadfast_core::dedupe::{
    Commit, CommitHistory, CommitNote, CommitNoteState, RecordLoss, StoreMarker, detect_loss,
};
use steadfast_store::loss_name;

use crate::columns::last_commit;
use crate::commit_note::{self, BootId, CommitNoteContent, CommitNoteFile, NoteFileState};
use crate::fault::is_busy;
use crate::files::{beside, folder_of, private};
use crate::schema;

/// The path of the file, and the actions allowed on it.
#[derive(Clone, Debug)]
pub(crate) struct StateFile {
    pub(crate) path: PathBuf,
    pub(crate) on_damage: FileDamagePolicy,
    pub(crate) on_loss: CommitLossPolicy,
    /// Time to wait for other processes.
    pub(crate) patience: Duration,
    pub(crate) boot: BootId,
}

impl StateFile {
    pub(crate) fn note(&self) -> CommitNoteFile {
        CommitNoteFile::at(commit_note::beside(&self.path), self.boot)
    }
}

/// The action for a file that is damaged or foreign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileDamagePolicy {
    /// Opening the file fails, and the error contains a solution.
    #[default]
    Refuse,
    /// The file is renamed, and an empty file takes its place. Its content is lost, which is handled according to
    /// [`CommitLossPolicy`].
    SetAside,
}

/// The action after a loss of committed records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommitLossPolicy {
    /// Calls with an explicit key for tools that are not safe to repeat are refused until the loss is accepted, or
    /// until everything that was lost would have expired.
    #[default]
    RefuseKeyed,
    /// The loss is only reported. Calls that ran may run again.
    ReportOnly,
}

/// The result of preparing a file.
#[derive(Debug)]
pub(crate) struct PreparedFile {
    /// The last commit in the file, with its marker.
    pub(crate) last: Commit,
    /// The loss of records that was detected now.
    pub(crate) loss: Option<RecordLoss>,
    /// The new path of a file that was found at the path and could not be used.
    pub(crate) set_aside: Option<PathBuf>,
}

/// The reason why a state file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SqliteOpenError {
    /// The folder is missing and cannot be created, or is not writable.
    #[error(
        "the state folder {folder} cannot be used: {error}; make it writable for this user, or set `store.path` to another \
         place"
    )]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The cause.
        #[source]
        error: io::Error,
    },
    /// The file, or one that SQLite keeps beside it, cannot be read and written.
    #[error(
        "the state file {path} cannot be used: {reason}; make it and its folder writable for this user, or set `store.path` \
         to another place"
    )]
    File {
        /// The path.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// The file is not a state file of Steadfast.
    #[error(
        "{path} is {kind}, not a state file of steadfast: set `store.path` to another place, or move it away"
    )]
    Foreign {
        /// The path.
        path: PathBuf,
        /// The type of the file, as far as it is known.
        kind: String,
    },
    /// The state file is damaged.
    #[error(
        "the state file {path} is damaged ({damage}): restore a backup, or move it away to start with an empty one; calls \
         with a key that it contains are then refused until `steadfast state accept`"
    )]
    Damaged {
        /// The path.
        path: PathBuf,
        /// The damage.
        damage: String,
    },
    /// A newer version of Steadfast has written the file.
    #[error(
        "the state file {path} has version {found}, this program supports up to {}: update steadfast, or set `store.path` \
         to another place",
        schema::VERSION
    )]
    Newer {
        /// The path.
        path: PathBuf,
        /// The version of the file.
        found: i64,
    },
    /// Another copy of this library has the file open in this process.
    #[error(
        "the state file {path} is already open in this process by another copy of the steadfast library: load the library \
         once, or give each copy a `store.path` of its own"
    )]
    OtherCopy {
        /// The path.
        path: PathBuf,
    },
    /// Another process holds the file, and does not release it.
    #[error("the state file {path} is held by another process for too long: check for a process that hangs")]
    Busy {
        /// The path.
        path: PathBuf,
    },
}

/// Prepares the file: afterwards it has the current version, is undamaged, and any loss of commits was detected.
/// `known` is the last commit that this process knows, if it had the file open before.
pub(crate) fn prepare(
    place: &StateFile,
    known: Option<Commit>,
    now: Timestamp,
) -> Result<PreparedFile, SqliteOpenError> {
    make_folder(&place.path)?;
    let before = PreOpenState::read(place)?;
    match look(place, IntegrityCheck::Checked) {
        Ok(FileCheck::Sound(last))
            if before.is_of(last) && before.loss(CommitHistory::UpTo(last), known, now).is_none() =>
        {
            // Without a WAL everything is in the file, which was synced before the WAL was removed.
            if !has_log(place) {
                before.file.raise_in_file(last);
            }
            restrict_permissions(&place.path);
            return Ok(PreparedFile { last, loss: None, set_aside: None });
        }
        Ok(FileCheck::Sound(_) | FileCheck::Empty | FileCheck::Older(_)) => {}
        Err(error) if may_be_set_aside(place, &error) => {}
        Err(error) => return Err(error),
    }
    let lock = lock(place)?;
    let prepared = repair(place, known, now);
    drop(lock);
    restrict_permissions(&place.path);
    prepared
}

/// Returns the reason why there could be no file of the current version at this path, as far as it can be found
/// without changes.
pub(crate) fn inspect(place: &StateFile) -> Result<(), SqliteOpenError> {
    let folder = folder_of(&place.path);
    may_be_written(&folder).map_err(|error| SqliteOpenError::Folder { folder, error })?;
    match look(place, IntegrityCheck::Unchecked) {
        Ok(FileCheck::Sound(_) | FileCheck::Empty | FileCheck::Older(_)) => Ok(()),
        Err(error) if may_be_set_aside(place, &error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Connects to a prepared file.
pub(crate) fn connect(place: &StateFile, role: ConnectionRole) -> rusqlite::Result<Connection> {
    let file = plain_connection(&place.path)?;
    file.set_prepared_statement_cache_capacity(64);
    file.pragma_update(None, "synchronous", "FULL")?;
    // On macOS, a sync without this option ends in the cache of the disk. On other systems it has no effect.
    file.pragma_update(None, "fullfsync", true)?;
    match role {
        ConnectionRole::Writer => {
            // The writer itself waits, because it can handle operations without writes meanwhile.
            file.busy_timeout(Duration::ZERO)?;
            file.pragma_update(None, "cache_size", -8192)?;
            file.pragma_update(None, "journal_size_limit", 64 << 20)?;
        }
        ConnectionRole::Reader => {
            file.busy_timeout(place.patience)?;
            file.pragma_update(None, "query_only", true)?;
            file.pragma_update(None, "cache_size", -1024)?;
        }
    }
    Ok(file)
}

/// The role of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionRole {
    Writer,
    Reader,
}

/// The result of a check.
enum FileCheck {
    /// A valid file, with this last commit.
    Sound(Commit),
    /// No file, or an empty one.
    Empty,
    /// A file of this version, or a current one without WAL mode, such as a copy made by `VACUUM INTO`.
    Older(usize),
}

/// The extent of the damage check. A full check reads the whole file, and takes longer for a larger file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IntegrityCheck {
    Checked,
    Unchecked,
}

fn look(place: &StateFile, integrity: IntegrityCheck) -> Result<FileCheck, SqliteOpenError> {
    let path = &place.path;
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(FileCheck::Empty),
        Err(error) => return Err(file_error(path, &error)),
        Ok(found) if !found.is_file() => {
            let kind = if found.is_dir() { "a folder" } else { "no plain file" };
            return Err(file_error(path, &format!("it is {kind}")));
        }
        Ok(found) if found.len() == 0 => return Ok(FileCheck::Empty),
        Ok(_) => {}
    }
    let sql = |error: rusqlite::Error| sql_error(path, &error);
    let file = plain_connection(path).map_err(sql)?;
    file.busy_timeout(place.patience).map_err(sql)?;
    // A check changes nothing, not even as the last connection: the WAL stays.
    file.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(sql)?;
    if file.is_readonly("main").map_err(sql)? {
        return Err(file_error(path, &"it is read-only"));
    }
    // One snapshot for all reads: another process may be creating the file just now, and a half-written file looks
    // foreign.
    let _moment = file.unchecked_transaction().map_err(sql)?;
    let number = |name: &str| file.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).map_err(sql);
    let (application, version) = (number("application_id")?, number("user_version")?);
    let tables: i64 =
        file.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(sql)?;
    if application == 0 && version == 0 && tables == 0 {
        return Ok(FileCheck::Empty);
    }
    if application != i64::from(schema::APPLICATION) {
        return Err(foreign(path, "a SQLite file of another program"));
    }
    let version = usize::try_from(version)
        .ok()
        .filter(|version| *version <= schema::VERSION)
        .ok_or_else(|| SqliteOpenError::Newer { path: path.clone(), found: version })?;
    if integrity == IntegrityCheck::Checked {
        // The full integrity check also compares each index with its table. That takes three times as long (two
        // seconds for 250,000 records), and would delay every start.
        let check: String = file
            .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
            .map_err(|error| damage(path, &error))?;
        if check != "ok" {
            return Err(SqliteOpenError::Damaged { path: path.clone(), damage: check });
        }
    }
    let mode: String = file.query_row("PRAGMA journal_mode", [], |row| row.get(0)).map_err(sql)?;
    if version < schema::VERSION || mode != "wal" {
        return Ok(FileCheck::Older(version));
    }
    let last = last_commit(&file).map_err(|error| damage(path, &error))?;
    Ok(FileCheck::Sound(last))
}

/// Under the lock: checks again, and makes the necessary changes.
fn repair(place: &StateFile, known: Option<Commit>, now: Timestamp) -> Result<PreparedFile, SqliteOpenError> {
    let before = PreOpenState::read(place)?;
    let mut set_aside = None;
    let looked = match look(place, IntegrityCheck::Checked) {
        Err(error) if may_be_set_aside(place, &error) => {
            set_aside = Some(move_aside(&place.path, now)?);
            None
        }
        // A WAL without its file is the rest of a lost file, and SQLite would delete it. Without a note, it is the
        // only evidence. A process that dies while it creates the file also leaves a WAL, but its file has no header.
        Ok(FileCheck::Empty) if before.has_log && (before.note.noted().is_some() || has_no_head(place)) => {
            set_aside = Some(move_aside(&place.path, now)?);
            before.note.noted().map(|_| FileCheck::Empty)
        }
        other => Some(other?),
    };
    let last = match looked {
        Some(FileCheck::Sound(last)) => last,
        Some(FileCheck::Older(version)) => make(place, version)?,
        Some(FileCheck::Empty) | None => make(place, 0)?,
    };
    let found = match looked {
        Some(FileCheck::Sound(_) | FileCheck::Older(_)) => CommitHistory::UpTo(last),
        Some(FileCheck::Empty) => CommitHistory::Nothing,
        None => CommitHistory::Unusable,
    };
    let loss = before.loss(found, known, now).map(|loss| RecordLoss {
        set_aside: set_aside.iter().map(|path| path.display().to_string()).collect(),
        ..loss
    });
    let last = before.settle(place, last, loss.as_ref(), now)?;
    Ok(PreparedFile { last, loss, set_aside })
}

/// Migrates the existing file, or creates it, in the current version.
fn make(place: &StateFile, from: usize) -> Result<Commit, SqliteOpenError> {
    let path = &place.path;
    create(path)?;
    let sql = |error: rusqlite::Error| sql_error(path, &error);
    let mut file = plain_connection(path).map_err(sql)?;
    file.busy_timeout(place.patience).map_err(sql)?;
    let mode: String = file.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(sql)?;
    if mode != "wal" {
        let reason = format!("its file system cannot share it between processes (journal mode {mode})");
        return Err(file_error(path, &reason));
    }
    let step = file.transaction().map_err(sql)?;
    schema::migrate(&step, from).map_err(sql)?;
    step.commit().map_err(sql)?;
    drop(file);
    match look(place, IntegrityCheck::Checked)? {
        FileCheck::Sound(last) => Ok(last),
        FileCheck::Empty | FileCheck::Older(_) => Err(file_error(path, &"it does not keep writes")),
    }
}

/// The state beside the file before it is opened: the content of the note, and the existence of a WAL.
struct PreOpenState {
    file: CommitNoteFile,
    note: NoteFileState,
    has_log: bool,
    /// The last commit in the file without its WAL, if there is a WAL.
    in_file: Option<u64>,
}

impl PreOpenState {
    fn read(place: &StateFile) -> Result<Self, SqliteOpenError> {
        let file = place.note();
        let note = file.read().map_err(|error| note_error(place, &error))?;
        let has_log = has_log(place);
        let in_file = if has_log { commits_in_file(&place.path) } else { None };
        Ok(Self { file, note, has_log, in_file })
    }

    /// Returns true if the note belongs to the file with this commit.
    fn is_of(&self, last: Commit) -> bool {
        self.note.noted().is_some_and(|noted| noted.last.marker == last.marker)
    }

    fn loss(&self, found: CommitHistory, known: Option<Commit>, now: Timestamp) -> Option<RecordLoss> {
        let note = match &self.note {
            NoteFileState::Missing => CommitNoteState::Missing,
            NoteFileState::Damaged => CommitNoteState::Damaged,
            NoteFileState::Sound(noted) => CommitNoteState::Sound(CommitNote {
                last: noted.last,
                log_is_missing: !noted.exact && noted.boot != self.file.boot() && !self.has_log,
                file_is_older: self.in_file.is_some_and(|found| found < noted.in_file),
            }),
        };
        detect_loss(found, note, known, now)
    }

    /// Makes file and note consistent, and records the loss in both. A process that dies in between leaves a note
    /// with a new marker and without a commit, and the next one to open the file continues from there.
    fn settle(
        &self,
        place: &StateFile,
        last: Commit,
        loss: Option<&RecordLoss>,
        now: Timestamp,
    ) -> Result<Commit, SqliteOpenError> {
        let replace = |last, loss| {
            // The commit in the file itself is detected at the next start without a WAL.
            let noted = CommitNoteContent { last, in_file: 0, exact: true, boot: self.file.boot(), loss };
            self.file.replace(&noted).map_err(|error| note_error(place, &error))
        };
        let sql = |error: rusqlite::Error| sql_error(&place.path, &error);
        let mut file = plain_connection(&place.path).map_err(sql)?;
        file.busy_timeout(place.patience).map_err(sql)?;
        let earlier = match self.note.noted() {
            Some(noted) => noted.loss.clone(),
            None => stored_loss(&file).map_err(sql)?,
        };
        let is_unfinished = self.note.noted().is_some() && earlier.is_some() && !self.is_of(last);
        if loss.is_none() && !is_unfinished {
            if !self.is_of(last) {
                replace(last, earlier)?;
            }
            return Ok(last);
        }
        let pending_loss = match (place.on_loss, loss.cloned()) {
            (CommitLossPolicy::ReportOnly, _) => None,
            (CommitLossPolicy::RefuseKeyed, Some(loss)) => Some(loss.after(earlier)),
            (CommitLossPolicy::RefuseKeyed, None) => earlier,
        };
        let random: i64 = file.query_row("SELECT random()", [], |row| row.get(0)).map_err(sql)?;
        let marker = StoreMarker(random.cast_unsigned());
        replace(Commit { marker, number: 0, at: now }, pending_loss.clone())?;
        let step = file.transaction().map_err(sql)?;
        step.execute("UPDATE meta SET value = ?1 WHERE name = 'marker'", [random]).map_err(sql)?;
        step.execute("UPDATE meta SET value = value + 1 WHERE name = 'commits'", []).map_err(sql)?;
        if let Some(pending_loss) = &pending_loss {
            store_loss(&step, pending_loss).map_err(sql)?;
        }
        let last = last_commit(&step).map_err(sql)?;
        step.commit().map_err(sql)?;
        replace(last, pending_loss)?;
        Ok(last)
    }
}

fn has_no_head(place: &StateFile) -> bool {
    fs::metadata(&place.path).map_or(true, |file| file.len() == 0)
}

/// Returns the number of the last commit in the file itself, without its WAL. Takes no lock: other processes may
/// checkpoint meanwhile, which only raises the number.
#[cfg(unix)]
fn commits_in_file(path: &Path) -> Option<u64> {
    use std::fmt::Write as _;
    use std::os::unix::ffi::OsStrExt as _;
    let mut uri = "file:".to_owned();
    for byte in std::path::absolute(path).ok()?.as_os_str().as_bytes() {
        write!(uri, "%{byte:02x}").ok()?;
    }
    uri.push_str("?immutable=1");
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let file = Connection::open_with_flags(uri, flags).ok()?;
    last_commit(&file).ok().map(|last| last.number)
}

/// On other systems, a WAL that belongs to another file is not detected.
#[cfg(not(unix))]
fn commits_in_file(_: &Path) -> Option<u64> {
    None
}

/// Returns true if there is a WAL that is not empty.
pub(crate) fn has_log(place: &StateFile) -> bool {
    fs::metadata(beside(&place.path, "-wal")).is_ok_and(|log| log.len() > 0)
}

fn note_error(place: &StateFile, error: &io::Error) -> SqliteOpenError {
    let note = commit_note::beside(&place.path);
    file_error(&place.path, &format!("{}: {error}", note.file_name().unwrap_or_default().display()))
}

/// Returns the loss that is recorded in the file.
fn stored_loss(file: &Connection) -> rusqlite::Result<Option<RecordLoss>> {
    let name = loss_name();
    let query = "SELECT body FROM document WHERE kind = ?1 AND id = ?2 AND body IS NOT NULL";
    let mut find = file.prepare(query)?;
    let mut rows = find.query(params![name.kind.name(), &*name.id])?;
    let text: Option<String> = rows.next()?.map(|row| row.get(0)).transpose()?;
    Ok(text.and_then(|text| RecordLoss::from_text(&text)))
}

fn store_loss(file: &Connection, loss: &RecordLoss) -> rusqlite::Result<()> {
    let name = loss_name();
    file.execute("UPDATE meta SET value = value + 1 WHERE name = 'document'", [])?;
    file.execute(
        "INSERT INTO document (kind, id, version, expires, writer, body)
         VALUES (?1, ?2, (SELECT value FROM meta WHERE name = 'document'), NULL, 0, ?3)
         ON CONFLICT (kind, id) DO UPDATE
         SET version = excluded.version, expires = NULL, writer = 0, body = excluded.body",
        params![name.kind.name(), &*name.id, loss.to_text()],
    )?;
    Ok(())
}

fn may_be_set_aside(place: &StateFile, error: &SqliteOpenError) -> bool {
    let unusable = match error {
        SqliteOpenError::Foreign { .. } | SqliteOpenError::Damaged { .. } => true,
        SqliteOpenError::Folder { .. }
        | SqliteOpenError::File { .. }
        | SqliteOpenError::Newer { .. }
        | SqliteOpenError::Busy { .. } => false,
    };
    unusable && place.on_damage == FileDamagePolicy::SetAside
}

fn plain_connection(path: &Path) -> rusqlite::Result<Connection> {
    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)
}

/// A new folder is accessible for its user only. An existing folder is not changed.
pub(crate) fn make_folder(path: &Path) -> Result<(), SqliteOpenError> {
    let folder = folder_of(path);
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(&folder).map_err(|error| SqliteOpenError::Folder { folder, error })
}

/// Returns the reason why no file could be created in a folder, or in the folder that would be created. Uses the
/// errors of [`make_folder`].
fn may_be_written(folder: &Path) -> io::Result<()> {
    for ancestor in folder.ancestors() {
        let there = if ancestor.as_os_str().is_empty() { Path::new(".") } else { ancestor };
        match fs::metadata(there) {
            Ok(found) if found.is_dir() => return may_write_to(there),
            Ok(_) if ancestor == folder => return Err(not_a_folder()),
            // It is a file, so nothing can be below it.
            Ok(_) => return fs::metadata(there.join("folder")).map(|_| ()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(unix)]
fn may_write_to(folder: &Path) -> io::Result<()> {
    use rustix::fs::{Access, access};
    Ok(access(folder, Access::WRITE_OK | Access::EXEC_OK)?)
}

/// On other systems, this is only known after a try.
#[cfg(not(unix))]
fn may_write_to(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(unix)]
fn not_a_folder() -> io::Error {
    rustix::io::Errno::EXIST.into()
}

#[cfg(not(unix))]
fn not_a_folder() -> io::Error {
    io::ErrorKind::AlreadyExists.into()
}

/// SQLite gives the same permissions to the files beside it.
fn create(path: &Path) -> Result<(), SqliteOpenError> {
    match private().write(true).create_new(true).open(path) {
        Ok(_) => Ok(()),
        // The file is not opened here: when a process closes any handle of a file, it loses all locks that SQLite
        // holds on it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(SqliteOpenError::Folder { folder: folder_of(path), error }),
    }
}

/// Removes access for other users. A file that was copied or created by other means may be readable by all. SQLite
/// copies its permissions to the files beside it when it creates them.
fn restrict_permissions(path: &Path) {
    #[cfg(unix)]
    for suffix in ["", "-wal", "-shm", "-commits", ".lock"] {
        use std::os::unix::fs::PermissionsExt;
        let path = beside(path, suffix);
        if fs::metadata(&path).is_ok_and(|found| found.permissions().mode() & 0o077 != 0) {
            // If the file belongs to another user, that user decides who can access it.
            let _ = fs::set_permissions(&path, fs::Permissions::from_mode(0o600));
        }
    }
    #[cfg(not(unix))]
    let _ = path;
}

/// The lock is released with the file handle, and when the process ends.
fn lock(place: &StateFile) -> Result<File, SqliteOpenError> {
    let path = beside(&place.path, ".lock");
    let refused = |error| SqliteOpenError::Folder { folder: folder_of(&place.path), error };
    let file = private().write(true).create(true).truncate(false).open(&path).map_err(refused)?;
    let until = Instant::now() + place.patience;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                thread::sleep(Duration::from_millis(5))
            }
            Err(TryLockError::WouldBlock) => return Err(SqliteOpenError::Busy { path: place.path.clone() }),
            Err(TryLockError::Error(error)) => return Err(refused(error)),
        }
    }
}

/// The WAL is moved first: SQLite would replay it into a new empty file.
fn move_aside(path: &Path, now: Timestamp) -> Result<PathBuf, SqliteOpenError> {
    let free = |number: u32| {
        let again = if number == 0 { String::new() } else { format!(".{number}") };
        let name = beside(path, &format!(".damaged-{}{again}", now.as_millis()));
        (!name.exists()).then_some(name)
    };
    let aside = (0..1000)
        .find_map(free)
        .ok_or_else(|| file_error(path, &"there are too many damaged files beside it: remove some"))?;
    for suffix in ["-wal", "-shm", ""] {
        match fs::rename(beside(path, suffix), beside(&aside, suffix)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(file_error(path, &error)),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(aside)
}

pub(crate) fn file_error(path: &Path, reason: &dyn fmt::Display) -> SqliteOpenError {
    SqliteOpenError::File { path: path.to_owned(), reason: reason.to_string() }
}

fn foreign(path: &Path, kind: &str) -> SqliteOpenError {
    SqliteOpenError::Foreign { path: path.to_owned(), kind: kind.to_owned() }
}

/// If the file was known to be a state file, a missing table means damage.
fn damage(path: &Path, error: &rusqlite::Error) -> SqliteOpenError {
    if error.sqlite_error_code() == Some(rusqlite::ErrorCode::Unknown) {
        return SqliteOpenError::Damaged { path: path.to_owned(), damage: error.to_string() };
    }
    sql_error(path, error)
}

pub(crate) fn sql_error(path: &Path, error: &rusqlite::Error) -> SqliteOpenError {
    use rusqlite::ErrorCode::{CannotOpen, DatabaseCorrupt, NotADatabase};
    let path = path.to_owned();
    match error.sqlite_error_code() {
        _ if is_busy(error) => SqliteOpenError::Busy { path },
        Some(NotADatabase) => SqliteOpenError::Foreign { path, kind: "no SQLite file".into() },
        Some(DatabaseCorrupt) => SqliteOpenError::Damaged { path, damage: error.to_string() },
        Some(CannotOpen) => SqliteOpenError::File {
            path,
            reason: "it cannot be opened, or no file can be created beside it".into(),
        },
        Some(_) | None => SqliteOpenError::File { path, reason: error.to_string() },
    }
}
