//! Result texts as files, for a client on this machine that has no other way to read them.
//!
//! Each process has its own folder beside the state, accessible to its user only, with a locked file beside it. The
//! operating system releases the lock when the process ends, in whatever way. A folder without a held lock was left
//! behind and is removed by the next process.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

/// The folder with the files of this process.
#[derive(Debug)]
pub(super) struct ResultFolder {
    /// The parent folder of the folders of all processes.
    all: PathBuf,
    own: PathBuf,
    /// Locked while this process uses the folder. `None` before the first write.
    lock: Arc<Mutex<Option<File>>>,
}

/// A file with a text, removed on drop.
#[derive(Debug)]
pub(super) struct ResultFile(PathBuf);

/// The file extensions of a lock, and of a lock file before it is locked.
const LOCK: &str = "lock";
const FRESH: &str = "new";

impl ResultFolder {
    /// Creates a handle for a folder of this name. The folder is created on the first write. Folders that other
    /// processes left behind are removed now.
    pub(super) fn new(all: PathBuf, name: &str) -> Self {
        remove_left_behind(&all);
        let own = all.join(name);
        Self { all, own, lock: Arc::default() }
    }

    /// Writes a text to the file of this id.
    pub(super) async fn write(&self, id: &str, text: String) -> Result<ResultFile, String> {
        let file = self.own.join(format!("{id}.txt"));
        let (all, own, lock, path) = (self.all.clone(), self.own.clone(), self.lock.clone(), file.clone());
        let writing = tokio::task::spawn_blocking(move || {
            let mut lock = lock.lock();
            if lock.is_none() {
                *lock = Some(locked(&all, &own)?);
            }
            drop(lock);
            let written = private_file().open(&path).and_then(|mut file| file.write_all(text.as_bytes()));
            // A partly written file is removed.
            written.inspect_err(|_| _ = fs::remove_file(&path))
        });
        match writing.await {
            Ok(Ok(())) => Ok(ResultFile(file)),
            Ok(Err(error)) => Err(format!("{} cannot be written: {error}", file.display())),
            Err(error) => Err(format!("{} cannot be written: {error}", file.display())),
        }
    }

    /// Removes the folder with its content.
    pub(super) fn remove(&self) {
        if let Some(lock) = self.lock.lock().take() {
            remove(&self.own);
            drop(lock);
        }
    }
}

impl ResultFile {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ResultFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Creates the folder of this process and its lock. The lock file gets its final name only after it is locked, so that
/// no other process takes the folder for one that was left behind.
fn locked(all: &Path, own: &Path) -> io::Result<File> {
    private_folder().create(all)?;
    let fresh = own.with_extension(FRESH);
    let lock = private_file().open(&fresh)?;
    lock.lock()?;
    fs::rename(&fresh, own.with_extension(LOCK))?;
    private_folder().create(own)?;
    Ok(lock)
}

/// Removes the folders of processes that have ended.
fn remove_left_behind(all: &Path) {
    let Ok(entries) = fs::read_dir(all) else { return };
    let paths = entries.flatten().map(|entry| entry.path());
    for path in paths.filter(|path| path.extension().is_some_and(|extension| extension == LOCK)) {
        let Ok(lock) = File::open(&path) else { continue };
        if lock.try_lock().is_ok() {
            remove(&path.with_extension(""));
        }
    }
}

/// Removes a folder and then its lock. After an interruption, the remaining lock leads the next process to the rest.
fn remove(own: &Path) {
    match fs::remove_dir_all(own) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(event = "result.left_behind", folder = %own.display(), "why" = %error);
        }
        Ok(()) | Err(_) => _ = fs::remove_file(own.with_extension(LOCK)),
    }
}

fn private_folder() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
}

fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of one test, removed on drop.
    struct ResultTestFolder(PathBuf);

    impl ResultTestFolder {
        fn new(test: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("steadfast-{test}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            Self(folder)
        }
    }

    impl Drop for ResultTestFolder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[tokio::test]
    async fn a_file_is_readable_only_by_its_user_and_removed_with_its_result() {
        let all = ResultTestFolder::new("result-files");
        let folder = ResultFolder::new(all.0.clone(), "mark");
        assert!(!all.0.exists(), "nothing is made before it is needed");
        let file = folder.write("mark-1", "0123€".to_owned()).await.unwrap();
        let path = file.path().to_owned();
        assert_eq!(fs::read_to_string(&path).unwrap(), "0123€");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            let folder = path.parent().unwrap();
            assert_eq!((mode(&path), mode(folder), mode(&all.0)), (0o600, 0o700, 0o700));
        }
        drop(file);
        assert!(!path.exists());
        let last = folder.write("mark-2", "a".to_owned()).await.unwrap();
        folder.remove();
        assert_eq!(fs::read_dir(&all.0).unwrap().count(), 0);
        drop(last);
    }

    #[tokio::test]
    async fn files_of_dead_processes_are_removed_and_those_of_living_ones_stay() {
        let all = ResultTestFolder::new("result-files-left");
        let living = ResultFolder::new(all.0.clone(), "living");
        let stored = living.write("living-1", "a".to_owned()).await.unwrap();
        let dead = ResultFolder::new(all.0.clone(), "dead");
        let left = dead.write("dead-1", "b".to_owned()).await.unwrap().path().to_owned();
        fs::write(&left, "b").unwrap();
        // The effect of the end of its process.
        drop(dead);
        ResultFolder::new(all.0.clone(), "next");
        assert!(!left.exists() && stored.path().exists());
        let names = fs::read_dir(&all.0).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        assert_eq!(names, ["living", "living.lock"]);
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_written_is_reported() {
        let all = ResultTestFolder::new("result-files-not");
        fs::write(&all.0, "a file in its place").unwrap();
        let error =
            ResultFolder::new(all.0.clone(), "mark").write("mark-1", "a".to_owned()).await.unwrap_err();
        assert!(error.contains("mark-1.txt cannot be written: "), "{error}");
        fs::remove_file(&all.0).unwrap();
    }
}
