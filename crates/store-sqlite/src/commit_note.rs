//! The note of the last commit, in a small file beside the database.
//!
//! The note is updated after each synced commit, by one write at a fixed offset. It is not synced itself: it survives
//! `kill -9` like any write, and after a power cut it can only be behind. If the database is behind its note, commits
//! were lost.
//!
//! After a power cut the number may be too low to show that a WAL is missing. So the note also records if it is
//! *exact*: synced with the last commit before the process closed the database. If it is not exact, commits may be in
//! the WAL only, and a missing WAL means that they are lost. The first commit after that makes the note inexact
//! again, with one sync.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..8 | file type |
//! | 8..32 | marker of the database, number and time of the last commit |
//! | 32..40 | number of a commit that is in the database itself, and not only in its WAL |
//! | 40..56 | the boot of the machine |
//! | 56 | exact or not |
//! | 57..73 | checksum of the above |
//! | 256.. | the loss that no operator has accepted: its length, checksum, text |
//!
//! Every process with the database open updates it, under a short lock and only forward. The note is created before
//! the first commit is counted, and its name is on disk by then. So if commits were counted and there is no note, it
//! was deleted.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::dedupe::{Commit, RecordLoss, StoreMarker};
use steadfast_core::id::Digest;

#[cfg(unix)]
use crate::files::folder_of;
use crate::files::{FileIdentity, private};

const MAGIC: [u8; 8] = *b"STDFNOTE";
const PAYLOAD: usize = 57;
const CHECK: usize = 16;
const HEAD: usize = PAYLOAD + CHECK;
const LOSS_AT: u64 = 256;
/// A description of a loss is far shorter.
const LONGEST_LOSS: usize = 1 << 16;

/// Tries for the lock. Another process holds it for some microseconds, and rarely syncs.
const ATTEMPTS: u32 = 1020;
/// After this number of tries, there is a pause between them.
const QUICK_ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(1);

/// The content of a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommitNoteContent {
    pub(crate) last: Commit,
    /// Number of a commit that no longer needs the WAL. An older database under this WAL does not have it.
    pub(crate) in_file: u64,
    pub(crate) exact: bool,
    pub(crate) boot: BootId,
    pub(crate) loss: Option<RecordLoss>,
}

/// The state of a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoteFileState {
    /// There is no note, or it was never written.
    Missing,
    /// The content is not a valid note.
    Damaged,
    /// The note is valid.
    Sound(CommitNoteContent),
}

impl NoteFileState {
    pub(crate) fn noted(&self) -> Option<&CommitNoteContent> {
        match self {
            Self::Missing | Self::Damaged => None,
            Self::Sound(noted) => Some(noted),
        }
    }
}

/// Identifies a boot of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BootId([u8; 16]);

impl BootId {
    pub(crate) fn of(name: &str) -> Self {
        Self(check(name.as_bytes()))
    }
}

/// The file of a note.
#[derive(Debug)]
pub(crate) struct CommitNoteFile {
    path: PathBuf,
    boot: BootId,
    open: Mutex<Option<(File, Option<FileIdentity>)>>,
}

impl CommitNoteFile {
    pub(crate) fn at(path: PathBuf, boot: BootId) -> Self {
        Self { path, boot, open: Mutex::new(None) }
    }

    pub(crate) fn boot(&self) -> BootId {
        self.boot
    }

    /// Reads the note. An error means that this process cannot read the file, which is independent of its content.
    pub(crate) fn read(&self) -> io::Result<NoteFileState> {
        match private().read(true).write(true).open(&self.path) {
            Ok(mut file) => locked(&mut file, read).unwrap_or_else(|| read(&mut file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(NoteFileState::Missing),
            Err(error) => Err(error),
        }
    }

    /// Replaces the content, durably.
    pub(crate) fn replace(&self, noted: &CommitNoteContent) -> io::Result<()> {
        let mut file = private().read(true).write(true).create(true).truncate(false).open(&self.path)?;
        let written = locked(&mut file, |file| {
            write_loss(file, noted.loss.as_ref())?;
            write_head(file, noted)?;
            self.sync(file)
        });
        written.unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()))
    }

    /// Records a commit that was made. Without this, the note is behind, and a loss is only harder to detect.
    pub(crate) fn raise(&self, commit: Commit) {
        self.change(|boot, noted| match noted {
            // Another process has replaced the database. The commit belongs to the previous one.
            Some(noted) if noted.last.marker != commit.marker => None,
            Some(noted) if noted.last.number >= commit.number => None,
            noted => {
                let was_open = noted.is_some_and(|noted| !noted.exact && noted.boot == boot);
                let in_file = noted.map_or(0, |noted| noted.in_file);
                let changed = CommitNoteContent { last: commit, in_file, exact: false, boot, loss: None };
                Some((changed, if was_open { NoteSync::No } else { NoteSync::Yes }))
            }
        });
    }

    /// Makes the note exact, durably. Called before and after the database with this marker is closed.
    pub(crate) fn mark_exact(&self, marker: StoreMarker) {
        self.change(|boot, noted| {
            noted
                .filter(|noted| !noted.exact && noted.last.marker == marker)
                .map(|noted| (CommitNoteContent { exact: true, boot, ..noted.clone() }, NoteSync::Yes))
        });
    }

    /// Records that this commit is in the database itself, and synced there.
    pub(crate) fn raise_file(&self, commit: Commit) {
        self.change(|_, noted| {
            noted
                .filter(|noted| noted.last.marker == commit.marker && noted.in_file < commit.number)
                .map(|noted| (CommitNoteContent { in_file: commit.number, ..noted.clone() }, NoteSync::No))
        });
    }

    /// Records that the loss was accepted in the database with this marker.
    pub(crate) fn clear_loss(&self, marker: StoreMarker) {
        self.with_file(|file| {
            if read(file)?.noted().is_some_and(|noted| noted.last.marker == marker) {
                write_loss(file, None)?;
            }
            Ok(())
        });
    }

    /// Changes everything except the loss.
    fn change(
        &self,
        to: impl Fn(BootId, Option<&CommitNoteContent>) -> Option<(CommitNoteContent, NoteSync)>,
    ) {
        self.with_file(|file| {
            let found = read(file)?;
            let Some((noted, sync)) = to(self.boot, found.noted()) else { return Ok(()) };
            write_head(file, &noted)?;
            if sync == NoteSync::Yes { self.sync(file) } else { Ok(()) }
        });
    }

    /// Syncs the file, and its folder because its name may be new.
    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()?;
        sync_folder(&self.path)
    }

    fn with_file(&self, work: impl FnOnce(&mut File) -> io::Result<()>) {
        let mut open = self.open.lock();
        let there = FileIdentity::of(&self.path);
        if there.is_none() || open.as_ref().is_none_or(|(_, identity)| *identity != there) {
            *open = None;
            let made = private().read(true).write(true).create(true).truncate(false).open(&self.path);
            let Ok(file) = made else { return };
            *open = Some((file, FileIdentity::of(&self.path)));
        }
        if let Some((file, _)) = open.as_mut() {
            // If the note cannot be written, the database usually cannot either, and that is reported.
            let _ = locked(file, work);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum NoteSync {
    Yes,
    No,
}

/// Runs a function under the lock shared by all processes. If a stopped process keeps the lock, this gives up after a
/// while and does nothing.
fn locked<T>(file: &mut File, work: impl FnOnce(&mut File) -> T) -> Option<T> {
    let is_locked = (0..ATTEMPTS).any(|tried| {
        let got = file.try_lock().is_ok();
        match got {
            true => {}
            false if tried < QUICK_ATTEMPTS => thread::yield_now(),
            false => thread::sleep(PAUSE),
        }
        got
    });
    let done = is_locked.then(|| work(file));
    if is_locked {
        // Otherwise it is released with the file handle.
        let _ = file.unlock();
    }
    done
}

fn read(file: &mut File) -> io::Result<NoteFileState> {
    let mut head = Vec::with_capacity(HEAD);
    file.seek(SeekFrom::Start(0))?;
    Read::by_ref(file).take(HEAD as u64).read_to_end(&mut head)?;
    // After a power cut, a file that was created and not yet written contains zeros.
    if head.iter().all(|byte| *byte == 0) {
        return Ok(NoteFileState::Missing);
    }
    Ok(match read_head(&head) {
        Some(noted) => NoteFileState::Sound(CommitNoteContent { loss: read_loss(file), ..noted }),
        None => NoteFileState::Damaged,
    })
}

fn read_head(head: &[u8]) -> Option<CommitNoteContent> {
    let (payload, checksum) = head.split_first_chunk::<PAYLOAD>()?;
    if *checksum != check(payload) {
        return None;
    }
    let mut payload = payload.as_slice();
    if next::<8>(&mut payload)? != MAGIC {
        return None;
    }
    let mut word = || next(&mut payload).map(u64::from_le_bytes);
    let (marker, number, at) = (StoreMarker(word()?), word()?, Timestamp::from_millis(word()?));
    let in_file = word()?;
    let boot = BootId(next(&mut payload)?);
    let [exact] = next(&mut payload)?;
    let last = Commit { marker, number, at };
    Some(CommitNoteContent { last, in_file, exact: exact == 1, boot, loss: None })
}

fn read_loss(file: &mut File) -> Option<RecordLoss> {
    let mut length = [0; 4];
    let mut checksum = [0; CHECK];
    file.seek(SeekFrom::Start(LOSS_AT)).ok()?;
    file.read_exact(&mut length).and_then(|()| file.read_exact(&mut checksum)).ok()?;
    let length = usize::try_from(u32::from_le_bytes(length)).ok()?;
    if length == 0 || length > LONGEST_LOSS {
        return None;
    }
    let mut text = vec![0; length];
    file.read_exact(&mut text).ok()?;
    if check(&text) != checksum {
        return None;
    }
    RecordLoss::from_text(std::str::from_utf8(&text).ok()?)
}

fn next<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

fn write_head(file: &mut File, noted: &CommitNoteContent) -> io::Result<()> {
    let mut head = Vec::with_capacity(HEAD);
    head.extend(MAGIC);
    head.extend(noted.last.marker.0.to_le_bytes());
    head.extend(noted.last.number.to_le_bytes());
    head.extend(noted.last.at.as_millis().to_le_bytes());
    head.extend(noted.in_file.to_le_bytes());
    head.extend(noted.boot.0);
    head.push(u8::from(noted.exact));
    head.extend(check(&head));
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&head)
}

fn write_loss(file: &mut File, loss: Option<&RecordLoss>) -> io::Result<()> {
    let text = loss.map(RecordLoss::to_text).filter(|text| text.len() <= LONGEST_LOSS).unwrap_or_default();
    let mut body = Vec::with_capacity(4 + CHECK + text.len());
    body.extend(u32::try_from(text.len()).unwrap_or(0).to_le_bytes());
    body.extend(check(text.as_bytes()));
    body.extend(text.as_bytes());
    file.seek(SeekFrom::Start(LOSS_AT))?;
    file.write_all(&body)
}

fn check(bytes: &[u8]) -> [u8; CHECK] {
    let mut short = [0; CHECK];
    short.iter_mut().zip(Digest::of(bytes).as_bytes()).for_each(|(to, from)| *to = *from);
    short
}

#[cfg(unix)]
fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}

/// On other systems a folder cannot be synced, and needs no sync.
#[cfg(not(unix))]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Returns the path of the note of a database.
pub(crate) fn with_suffix(database: &Path) -> PathBuf {
    crate::files::with_suffix(database, "-commits")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::tests::world::SqliteTestFolder;

    fn commit(marker: u64, number: u64) -> Commit {
        Commit { marker: StoreMarker(marker), number, at: Timestamp::from_millis(number) }
    }

    fn note(folder: &SqliteTestFolder, boot: &str) -> CommitNoteFile {
        CommitNoteFile::at(folder.path.join("note"), BootId::of(boot))
    }

    impl CommitNoteFile {
        fn sound(&self) -> CommitNoteContent {
            self.read().unwrap().noted().cloned().unwrap()
        }
    }

    #[test]
    fn a_note_only_moves_forward_and_belongs_to_one_database() {
        let folder = SqliteTestFolder::new();
        let note = note(&folder, "boot");
        assert_eq!(note.read().unwrap(), NoteFileState::Missing);
        for (raised, expected) in [
            (commit(1, 5), commit(1, 5)),
            (commit(1, 4), commit(1, 5)),
            (commit(2, 9), commit(1, 5)),
            (commit(1, 6), commit(1, 6)),
        ] {
            note.raise(raised);
            assert_eq!(note.sound().last, expected, "{raised:?}");
        }
    }

    #[test]
    fn a_note_is_exact_from_a_close_to_the_next_commit() {
        let folder = SqliteTestFolder::new();
        let first = note(&folder, "one");
        first.raise(commit(1, 1));
        assert!(!first.sound().exact);
        first.mark_exact(StoreMarker(2));
        assert!(!first.sound().exact, "another database");
        first.mark_exact(StoreMarker(1));
        assert!(first.sound().exact);
        let second = note(&folder, "two");
        second.raise(commit(1, 2));
        let noted = second.sound();
        assert_eq!((noted.exact, noted.boot), (false, BootId::of("two")));
    }

    #[test]
    fn a_loss_stays_beside_the_numbers_until_it_is_accepted() {
        let folder = SqliteTestFolder::new();
        let note = note(&folder, "boot");
        let loss = RecordLoss {
            cause: steadfast_core::dedupe::LossCause::Missing,
            noticed: Timestamp::from_millis(7),
            commits: Some(3),
            after: None,
            until: None,
            set_aside: vec!["elsewhere".to_owned()],
        };
        let noted = CommitNoteContent {
            last: commit(1, 1),
            in_file: 1,
            exact: true,
            boot: note.boot(),
            loss: Some(loss.clone()),
        };
        note.replace(&noted).unwrap();
        note.raise(commit(1, 2));
        assert_eq!(note.sound().loss, Some(loss));
        note.clear_loss(StoreMarker(2));
        assert!(note.sound().loss.is_some(), "another database");
        note.clear_loss(StoreMarker(1));
        assert_eq!(note.sound().loss, None);
        assert_eq!(note.sound().last, commit(1, 2));
    }

    #[test]
    fn the_commit_in_the_file_only_moves_forward_and_survives_commits() {
        let folder = SqliteTestFolder::new();
        let note = note(&folder, "boot");
        note.raise(commit(1, 5));
        for (raised, expected) in [(commit(1, 3), 3), (commit(1, 2), 3), (commit(2, 9), 3), (commit(1, 5), 5)]
        {
            note.raise_file(raised);
            assert_eq!(note.sound().in_file, expected, "{raised:?}");
        }
        note.raise(commit(1, 6));
        note.mark_exact(StoreMarker(1));
        assert_eq!((note.sound().last, note.sound().in_file), (commit(1, 6), 5));
    }

    #[test]
    fn a_damaged_note_is_reported_and_recreated_like_a_removed_one() {
        let folder = SqliteTestFolder::new();
        let note = note(&folder, "boot");
        note.raise(commit(1, 1));
        let path = folder.path.join("note");
        let mut bytes = fs::read(&path).unwrap();
        bytes[20] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(note.read().unwrap(), NoteFileState::Damaged);
        note.raise(commit(1, 2));
        assert_eq!(note.sound().last, commit(1, 2));
        for empty in [&[][..], &[0; HEAD]] {
            fs::write(&path, empty).unwrap();
            assert_eq!(note.read().unwrap(), NoteFileState::Missing, "made, and never written");
        }
        fs::remove_file(&path).unwrap();
        note.raise(commit(1, 3));
        assert_eq!(note.sound().last, commit(1, 3));
    }
}
