//! Reading and replacing files that belong to somebody else, without ever leaving half of one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

/// The largest file that is read. Claude Code keeps histories in its own.
const MOST_BYTES: u64 = 64 << 20;

/// A file as it was read.
#[derive(Debug)]
pub(super) struct Original {
    /// Where it really is: links are followed, not replaced.
    real: PathBuf,
    pub(super) text: String,
}

/// Why a file could not be read or written, and what to do.
#[derive(Debug)]
pub(super) struct Trouble(pub(super) String);

/// What became of the backup.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Backup {
    /// It was made.
    Made(PathBuf),
    /// There was one, which is older and stays.
    Kept(PathBuf),
    /// The file is as the backup has it, which therefore was taken away.
    Removed(PathBuf),
    /// There is none.
    None,
}

/// Reads a file; `None` if there is none.
pub(super) fn read(path: &Path) -> Result<Option<Original>, Trouble> {
    let cannot = |error: io::Error| Trouble(format!("it cannot be read: {error}; look at its permissions"));
    let real = match fs::canonicalize(path) {
        Ok(real) => real,
        // A link to nowhere is a file that is not there yet.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(cannot(error)),
    };
    // Asked before it is opened: opening a pipe waits for its other end.
    if !fs::metadata(&real).map_err(cannot)?.is_file() {
        return Err(Trouble("it is not a file; name the file itself with --file".to_owned()));
    }
    let mut bytes = Vec::new();
    File::open(&real).map_err(cannot)?.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(Trouble(format!(
            "it is larger than {} MiB, which no configuration is",
            MOST_BYTES >> 20
        )));
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| Trouble("it is not written in UTF-8; save it as that and come again".to_owned()))?;
    Ok(Some(Original { real, text }))
}

impl Original {
    /// Where the file really is.
    pub(super) fn real(&self) -> &Path {
        &self.real
    }

    /// Keeps the file under another name, and puts a text in its place.
    pub(super) fn replace_and_keep(&self, text: &str) -> Result<Backup, Trouble> {
        let path = self.backup();
        let made = match self.fill(&path, &self.text) {
            Ok(()) => Backup::Made(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Backup::Kept(path),
            Err(error) => {
                return Err(Trouble(format!(
                    "no backup can be made beside it, so it was left alone: {error}"
                )));
            }
        };
        let replaced = self.replace(text);
        if let (Err(_), Backup::Made(path)) = (&replaced, &made) {
            // Nothing was changed, so that there is nothing to go back to.
            let _ = fs::remove_file(path);
        }
        replaced.map(|()| made)
    }

    /// Puts a text in the place of the file, and takes the backup away if it has nothing that the file has not.
    pub(super) fn replace_and_settle(&self, text: &str) -> Result<Backup, Trouble> {
        self.replace(text)?;
        let path = self.backup();
        match fs::read(&path) {
            Err(_) => Ok(Backup::None),
            Ok(kept) if kept == text.as_bytes() && fs::remove_file(&path).is_ok() => {
                Ok(Backup::Removed(path))
            }
            Ok(_) => Ok(Backup::Kept(path)),
        }
    }

    fn backup(&self) -> PathBuf {
        self.beside("steadfast-backup")
    }

    fn replace(&self, text: &str) -> Result<(), Trouble> {
        let cannot = |error: io::Error| {
            Trouble(format!(
                "it cannot be written, and is as it was: {error}; look at the permissions of its folder"
            ))
        };
        if fs::metadata(&self.real).map_err(cannot)?.permissions().readonly() {
            return Err(Trouble(
                "it is read-only, so it was left alone; make it writable and come again".to_owned(),
            ));
        }
        let new = self.beside(&format!("steadfast-new-{}", std::process::id()));
        let done = self.fill(&new, text).map_err(cannot).and_then(|()| {
            // Clients write their files too, and what one wrote meanwhile must not be lost.
            match fs::read(&self.real) {
                Ok(now) if now == self.text.as_bytes() => fs::rename(&new, &self.real).map_err(cannot),
                Ok(_) => Err(Trouble(
                    "its client wrote to it meanwhile, so it was left alone; close the client and come again"
                        .to_owned(),
                )),
                Err(error) => Err(cannot(error)),
            }
        });
        if done.is_err() {
            let _ = fs::remove_file(&new);
        }
        done?;
        // The name is safe only when the folder is. Where folders cannot be synced, nothing more can be done.
        if let Some(folder) = self.real.parent().and_then(|folder| File::open(folder).ok()) {
            let _ = folder.sync_all();
        }
        Ok(())
    }

    /// The name of a file beside it.
    fn beside(&self, ending: &str) -> PathBuf {
        let mut name = self.real.file_name().unwrap_or_default().to_owned();
        name.push(".");
        name.push(ending);
        self.real.with_file_name(name)
    }

    /// Makes a file that nobody has made yet, for the same people as the original, and writes it to the disk.
    fn fill(&self, path: &Path, text: &str) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        // Not for others, not even for a moment: there may be secrets in it.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path)?;
        let filled = self
            .give_to_the_same(&file)
            .and_then(|()| file.write_all(text.as_bytes()))
            .and_then(|()| file.sync_all());
        if filled.is_err() {
            let _ = fs::remove_file(path);
        }
        filled
    }

    fn give_to_the_same(&self, file: &File) -> io::Result<()> {
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
    fn what_a_client_wrote_meanwhile_is_not_lost() {
        let folder = std::env::temp_dir().join(format!("steadfast-import-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("mcp.json");
        fs::write(&path, "old").unwrap();
        let original = read(&path).unwrap().unwrap();
        fs::write(&path, "of the client").unwrap();
        let Trouble(why) = original.replace_and_keep("ours").unwrap_err();
        let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert!(why.contains("meanwhile"), "{why}");
        assert_eq!((text.as_str(), left), ("of the client", vec!["mcp.json".into()]));
    }
}
