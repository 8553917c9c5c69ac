//! Reads and replaces files of other programs atomically.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

/// Maximum size of a file. Claude Code keeps histories in its own.
const MOST_BYTES: u64 = 64 << 20;

/// A file as it was read.
#[derive(Debug)]
pub(super) struct OriginalFile {
    /// Real path: links are followed, not replaced.
    real: PathBuf,
    pub(super) text: String,
}

/// Error of reading or writing a file, with advice.
#[derive(Debug)]
pub(super) struct FileError(pub(super) String);

/// Result for the backup.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Backup {
    /// It was created.
    Created(PathBuf),
    /// An older one exists and was kept.
    Kept(PathBuf),
    /// It was removed, because the file now has the same contents.
    Removed(PathBuf),
    /// There is none.
    None,
}

/// Reads a file. Returns `None` if there is none.
pub(super) fn read(path: &Path) -> Result<Option<OriginalFile>, FileError> {
    let cannot = |error: io::Error| FileError(format!("it cannot be read: {error}; check its permissions"));
    let real = match fs::canonicalize(path) {
        Ok(real) => real,
        // A link with a missing target is a file that does not exist yet.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(cannot(error)),
    };
    // Checked before opening, because opening a pipe waits for its other end.
    if !fs::metadata(&real).map_err(cannot)?.is_file() {
        return Err(FileError("it is not a file; name the file itself with --file".to_owned()));
    }
    let mut bytes = Vec::new();
    File::open(&real).map_err(cannot)?.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(FileError(format!(
            "it is larger than {} MiB, the limit for a configuration file",
            MOST_BYTES >> 20
        )));
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| FileError("it is not UTF-8; save it as UTF-8 and run this again".to_owned()))?;
    Ok(Some(OriginalFile { real, text }))
}

impl OriginalFile {
    /// Returns the real path of the file.
    pub(super) fn real(&self) -> &Path {
        &self.real
    }

    /// Backs up the file under another name, and replaces it with a text.
    pub(super) fn replace_with_backup(&self, text: &str) -> Result<Backup, FileError> {
        let path = self.backup();
        let made = match self.fill(&path, &self.text) {
            Ok(()) => Backup::Created(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Backup::Kept(path),
            Err(error) => {
                return Err(FileError(format!(
                    "no backup can be written beside it, so it was not changed: {error}"
                )));
            }
        };
        let replaced = self.replace(text);
        if let (Err(_), Backup::Created(path)) = (&replaced, &made) {
            // Nothing was changed, so no backup is needed.
            let _ = fs::remove_file(path);
        }
        replaced.map(|()| made)
    }

    /// Replaces the file with a text, and removes the backup if both are equal.
    pub(super) fn replace_and_drop_backup(&self, text: &str) -> Result<Backup, FileError> {
        self.replace(text)?;
        let path = self.backup();
        match fs::read(&path) {
            Err(_) => Ok(Backup::None),
            Ok(content) if content == text.as_bytes() && fs::remove_file(&path).is_ok() => {
                Ok(Backup::Removed(path))
            }
            Ok(_) => Ok(Backup::Kept(path)),
        }
    }

    fn backup(&self) -> PathBuf {
        self.sibling_path("steadfast-backup")
    }

    fn replace(&self, text: &str) -> Result<(), FileError> {
        let cannot = |error: io::Error| {
            FileError(format!(
                "it cannot be written, and is unchanged: {error}; check the permissions of its folder"
            ))
        };
        if fs::metadata(&self.real).map_err(cannot)?.permissions().readonly() {
            return Err(FileError(
                "it is read-only, so it was not changed; make it writable and run this again".to_owned(),
            ));
        }
        let new = self.sibling_path(&format!("steadfast-new-{}", std::process::id()));
        let done = self.fill(&new, text).map_err(cannot).and_then(|()| {
            // Clients write their files too, and a concurrent change must not be lost.
            match fs::read(&self.real) {
                Ok(now) if now == self.text.as_bytes() => fs::rename(&new, &self.real).map_err(cannot),
                Ok(_) => Err(FileError(
                    "its client wrote to it in the meantime, so it was not changed; close the client and run this again"
                        .to_owned(),
                )),
                Err(error) => Err(cannot(error)),
            }
        });
        if done.is_err() {
            let _ = fs::remove_file(&new);
        }
        done?;
        // The rename is durable only after the folder is synced. Some systems cannot sync folders.
        if let Some(folder) = self.real.parent().and_then(|folder| File::open(folder).ok()) {
            let _ = folder.sync_all();
        }
        Ok(())
    }

    /// Returns the path of a file beside it.
    fn sibling_path(&self, ending: &str) -> PathBuf {
        let mut name = self.real.file_name().unwrap_or_default().to_owned();
        name.push(".");
        name.push(ending);
        self.real.with_file_name(name)
    }

    /// Creates a new file with the permissions of the original, and syncs it to the disk.
    fn fill(&self, path: &Path, text: &str) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        // Never readable for other users, because it may contain secrets.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path)?;
        let filled = self
            .copy_ownership(&file)
            .and_then(|()| file.write_all(text.as_bytes()))
            .and_then(|()| file.sync_all());
        if filled.is_err() {
            let _ = fs::remove_file(path);
        }
        filled
    }

    fn copy_ownership(&self, file: &File) -> io::Result<()> {
        let original = fs::metadata(&self.real)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::{MetadataExt as _, fchown};
            let own = file.metadata()?;
            if (own.uid(), own.gid()) != (original.uid(), original.gid()) {
                fchown(file, Some(original.uid()), Some(original.gid()))?;
            }
        }
        file.set_permissions(original.permissions())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_concurrent_change_of_a_client_is_not_lost() {
        let folder = std::env::temp_dir().join(format!("steadfast-import-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("mcp.json");
        fs::write(&path, "old").unwrap();
        let original = read(&path).unwrap().unwrap();
        fs::write(&path, "of the client").unwrap();
        let FileError(reason) = original.replace_with_backup("ours").unwrap_err();
        let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert!(reason.contains("in the meantime"), "{reason}");
        assert_eq!((text.as_str(), left), ("of the client", vec!["mcp.json".into()]));
    }
}
