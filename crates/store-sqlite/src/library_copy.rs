//! Refuses a state file that another copy of this library has open in the same process.
//!
//! A process can load a library twice: from two paths, or linked into two others. SQLite's own locks do not work between
//! two copies of it. The system releases all locks of a process on a file as soon as one copy closes it, so the other
//! copy would write without a lock. Each copy therefore holds a lock on a file that is named after the process. That
//! lock belongs to an open file instead of the process, so a second copy cannot get it. Stores that share one copy share
//! its lock, and other processes have files of their own.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_core::dedupe::ProcessIdentity;
use steadfast_store::this_process;

use crate::files::{beside, folder_of, private};
use crate::state_file::SqliteOpenError;

/// The files that this copy of the library has open, by the path of their lock.
static OPEN_FILES: Mutex<BTreeMap<PathBuf, OpenFile>> = Mutex::new(BTreeMap::new());

/// A state file that this copy of the library has open.
struct OpenFile {
    stores: usize,
    /// Released when it is closed.
    _lock: File,
}

/// The right of this copy of the library to use a state file. Released on drop.
#[derive(Debug)]
pub(crate) struct LibraryCopyLock {
    /// Path of the lock; `None` if the folder allows no further file.
    path: Option<PathBuf>,
}

/// The part of a lock's name between that of the state file and that of the process.
const MARK: &str = ".copy-";
/// Tries to get a lock, and the pause between them. A process that cleans up holds a lock for a moment.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(5);

impl LibraryCopyLock {
    /// Acquires the right for the state file at this path, in a folder that exists.
    pub(crate) fn acquire(state_file: &Path) -> Result<Self, SqliteOpenError> {
        let path = lock_path(state_file, &this_process());
        let mut open = OPEN_FILES.lock();
        if let Some(known) = open.get_mut(&path) {
            known.stores += 1;
            return Ok(Self { path: Some(path) });
        }
        remove_abandoned(&path);
        for _ in 0..TRIES {
            // Where no file can be created, the state file cannot be used either, and its own error says why.
            let Ok(lock) = private().write(true).create(true).truncate(false).open(&path) else {
                return Ok(Self { path: None });
            };
            match lock.try_lock() {
                // Another process may have removed it in between.
                Ok(()) if path.exists() => {
                    open.insert(path.clone(), OpenFile { stores: 1, _lock: lock });
                    return Ok(Self { path: Some(path) });
                }
                Ok(()) | Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
                // The file system has no locks.
                Err(TryLockError::Error(_)) => return Ok(Self { path: None }),
            }
        }
        Err(SqliteOpenError::OtherCopy { path: state_file.to_owned() })
    }
}

impl Drop for LibraryCopyLock {
    fn drop(&mut self) {
        let Some(path) = self.path.take() else { return };
        let mut open = OPEN_FILES.lock();
        let Some(known) = open.get_mut(&path) else { return };
        known.stores -= 1;
        if known.stores == 0 {
            // Removed before it is released. A leftover file only takes room until the next start.
            let _ = fs::remove_file(&path);
            open.remove(&path);
        }
    }
}

/// Returns the path of the lock of a process. Processes in two containers may have the same number.
pub(crate) fn lock_path(state_file: &Path, process: &ProcessIdentity) -> PathBuf {
    let folder = folder_of(state_file);
    let folder = fs::canonicalize(&folder).unwrap_or(folder);
    let named = state_file.file_name().map_or_else(|| folder.clone(), |name| folder.join(name));
    let file = fs::canonicalize(&named).unwrap_or(named);
    let space = fs::read_link("/proc/self/ns/pid").ok().and_then(|space| {
        let digits: String = space.to_str()?.chars().filter(char::is_ascii_digit).collect();
        Some(format!("-{digits}"))
    });
    beside(&file, &format!("{MARK}{}-{}{}", process.pid, process.started, space.unwrap_or_default()))
}

/// Removes the locks of processes that have ended. Only they can be acquired.
fn remove_abandoned(own: &Path) {
    let Some(name) = own.file_name().and_then(|name| name.to_str()) else { return };
    let Some(end) = name.rfind(MARK).map(|at| at + MARK.len()) else { return };
    let Some(prefix) = name.get(..end) else { return };
    let Ok(entries) = fs::read_dir(folder_of(own)) else { return };
    for entry in entries.flatten() {
        let is_other = entry.file_name().to_str().is_some_and(|other| other.starts_with(prefix) && other != name);
        if is_other
            && let Ok(lock) = File::open(entry.path())
            && lock.try_lock().is_ok()
        {
            // Nothing depends on it.
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("steadfast-copy-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn locks(&self) -> usize {
            fs::read_dir(&self.0).unwrap().count()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn stores_of_one_copy_share_a_file_and_the_last_one_removes_the_lock() {
        let folder = Folder::new("share");
        let file = folder.0.join("state.db");
        let first = LibraryCopyLock::acquire(&file).unwrap();
        let second = LibraryCopyLock::acquire(&file).unwrap();
        drop(first);
        assert_eq!(folder.locks(), 1);
        drop(second);
        assert_eq!(folder.locks(), 0);
    }

    /// A second copy has its own statics, so only the lock on the file shows it the first one.
    #[test]
    fn a_second_copy_of_the_library_in_this_process_is_refused_until_the_first_has_closed_the_file() {
        let folder = Folder::new("second");
        let file = folder.0.join("state.db");
        let other_copy = File::create(lock_path(&file, &this_process())).unwrap();
        other_copy.lock().unwrap();
        let refused = LibraryCopyLock::acquire(&file).unwrap_err();
        assert!(matches!(&refused, SqliteOpenError::OtherCopy { path } if *path == file), "{refused}");
        drop(other_copy);
        LibraryCopyLock::acquire(&file).unwrap();
    }

    #[test]
    fn locks_of_processes_that_have_ended_are_removed_and_those_of_living_ones_are_not() {
        let folder = Folder::new("abandoned");
        let file = folder.0.join("state.db");
        let process = |pid| ProcessIdentity { pid, ..this_process() };
        let living = File::create(lock_path(&file, &process(1_000_001))).unwrap();
        living.lock().unwrap();
        File::create(lock_path(&file, &process(1_000_002))).unwrap();
        let own = LibraryCopyLock::acquire(&file).unwrap();
        assert_eq!(folder.locks(), 2);
        assert!(lock_path(&file, &process(1_000_001)).exists());
        drop(own);
    }
}
