//! Trust in a JSON file, where the host wants to read and carry it.
//!
//! The file of the project comes before that of the user. It is written whole: to a temporary file beside it, which
//! is synced and renamed over it, and the folder is synced; so a reader, or a crash at any moment, finds either the
//! old state or the new one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use steadfast_core::trust::Snapshot;
use steadfast_store::{StoreError, Trouble};

use crate::engine::Inner;
use crate::persist::adopt_trust;

/// The name of the file within its folder.
const FILE: &str = "reliability.json";

/// Where trust is kept beyond this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TrustKept {
    /// With everything else.
    #[default]
    InStore,
    /// That of calls without a tenant in this file, that of tenants in the store.
    InFile(TrustFile),
    /// Not at all: every process begins with full trust.
    Nowhere,
}

/// Where trust is kept as a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustFile {
    path: PathBuf,
}

impl TrustFile {
    /// This very file.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The file of the project if its folder exists, else that of the user. Both are folders that hold a host's
    /// settings, such as `.jaato` in the project and in the home of the user.
    pub fn find(project: &Path, user: &Path) -> Self {
        let folder = if project.is_dir() { project } else { user };
        Self::at(folder.join(FILE))
    }

    /// Which file it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it says; nothing if there is none yet.
    pub fn read(&self) -> io::Result<Option<String>> {
        match fs::read_to_string(&self.path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces what it says.
    pub fn write(&self, text: &str) -> io::Result<()> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let unfinished = self.path.with_extension(format!("json.{}.tmp", std::process::id()));
        let written = replace(&unfinished, &self.path, text);
        if written.is_err() {
            // Half a file is of no use to anybody; that it cannot be removed either changes nothing.
            let _ = fs::remove_file(&unfinished);
        }
        written?;
        File::open(folder)?.sync_all()
    }
}

fn replace(unfinished: &Path, path: &Path, text: &str) -> io::Result<()> {
    let mut file = private(unfinished)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(unfinished, path)
}

/// A new file that only its owner may read: it tells which tools a person uses.
fn private(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

impl Inner {
    /// Takes over what the file says.
    pub(crate) fn load_trust_file(&self, file: &TrustFile) {
        let read = file.read().map_err(|error| error.to_string()).and_then(|text| match text {
            Some(text) => Snapshot::read(&text).map_err(|error| error.to_string()).map(Some),
            None => Ok(None),
        });
        let adopted = read.and_then(|snapshot| match snapshot {
            Some(snapshot) => {
                let tenant = self.machines.tenants.get(&None);
                adopt_trust(&mut tenant.judged.lock().trust, snapshot, self.trust_bounds)
            }
            None => Ok(()),
        });
        if let Err(why) = adopted {
            tracing::warn!(event = "trust.unreadable", file = %file.path.display(), %why);
        }
    }

    pub(crate) async fn write_trust_file(&self, file: &TrustFile) -> Result<(), StoreError> {
        let snapshot = self.machines.tenants.get(&None).judged.lock().trust.snapshot(self.clock.now());
        let file = file.clone();
        let written = tokio::task::spawn_blocking(move || {
            file.write(&serde_json::to_string_pretty(&snapshot).map_err(io::Error::other)?).map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!("trust cannot be written to {}: {error}", file.path.display()),
                )
            })
        });
        match written.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(StoreError::not_done(Trouble::Refused, error.to_string())),
            Err(error) => Err(StoreError::not_done(Trouble::Closed, error.to_string())),
        }
    }
}
