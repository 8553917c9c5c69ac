//! The description of a server to start, and the errors of a failed start.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::environment::Environment;

/// A server to be started as a child.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The command: a path, or a name that is looked up in the child's own `PATH`.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its working folder. Default: that of this process.
    pub folder: Option<PathBuf>,
    /// All its environment variables.
    pub environment: Environment,
    /// Time limits of the steps that end it.
    pub patience: StopTimeouts,
}

/// Time limits of the steps that end a child. A step that is not needed takes no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopTimeouts {
    /// Time from the end of its stdin until it is asked to end (SIGTERM). A higher value gives slow servers time to
    /// save their state, and delays every stop of a server that ignores its stdin.
    pub stdin: Duration,
    /// Time from SIGTERM until it is killed (SIGKILL). The leash uses the same time when the gateway is gone.
    pub term: Duration,
    /// Time from SIGKILL until the wait for its end is given up.
    pub kill: Duration,
}

impl Default for StopTimeouts {
    fn default() -> Self {
        Self { stdin: Duration::from_secs(2), term: Duration::from_secs(3), kill: Duration::from_secs(6) }
    }
}

/// Reason why a server could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The command does not exist.
    #[error("there is no command `{}`{}", .program.display(), hint(.program))]
    NotFound {
        /// The command as it was given.
        program: OsString,
    },
    /// The file exists and cannot be executed.
    #[error("`{path}` is there but cannot be executed; is it a program, and may you run it?")]
    NotExecutable {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file exists, but the program that its first line names does not.
    #[error(
        "`{path}` is there, but not the program that its first line names; install that, or name it as the command"
    )]
    InterpreterMissing {
        /// Path of the file.
        path: PathBuf,
    },
    /// The working folder does not exist, or is not a folder.
    #[error("there is no folder `{folder}` to run in; make it, or give another")]
    FolderMissing {
        /// The folder as it was given.
        folder: PathBuf,
    },
    /// The system refused to start it.
    #[error("`{path}` could not be started: {source}")]
    Refused {
        /// Path of the program.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A pipe or the leash failed.
    #[error("the supervising process (leash) of the server could not be started: {source}")]
    Leash {
        /// The error.
        source: io::Error,
    },
}

impl Launch {
    /// Returns its working folder, as an absolute path.
    pub(crate) fn folder(&self) -> Result<PathBuf, LaunchError> {
        let own = || env::current_dir().map_err(|source| LaunchError::Leash { source });
        let Some(folder) = &self.folder else { return own() };
        if !folder.is_dir() {
            return Err(LaunchError::FolderMissing { folder: folder.clone() });
        }
        // The leash runs in another folder, so a relative path must become absolute.
        if folder.is_absolute() { Ok(folder.clone()) } else { Ok(own()?.join(folder)) }
    }

    /// Returns the path of the command, as the child would look it up.
    pub(crate) fn path(&self, folder: &Path) -> Result<PathBuf, LaunchError> {
        let mut blocked = None;
        for candidate in self.candidates(folder) {
            if is_executable(&candidate) {
                return Ok(candidate);
            }
            if blocked.is_none() && candidate.exists() {
                blocked = Some(candidate);
            }
        }
        Err(match blocked {
            Some(path) => LaunchError::NotExecutable { path },
            None => LaunchError::NotFound { program: self.program.clone() },
        })
    }

    fn candidates(&self, folder: &Path) -> Vec<PathBuf> {
        let program = Path::new(&self.program);
        let places = match program.components().count() {
            0 => Vec::new(),
            1 if !has_separator(&self.program) => {
                let path = self.environment.value("PATH").unwrap_or(OsStr::new(DEFAULT_PATH));
                env::split_paths(path).map(|place| folder.join(place).join(program)).collect()
            }
            _ => vec![folder.join(program)],
        };
        places.into_iter().flat_map(spellings).collect()
    }
}

impl LaunchError {
    /// Returns true if another try would fail in the same way until the cause is fixed.
    pub const fn is_lasting(&self) -> bool {
        match self {
            Self::NotFound { .. }
            | Self::NotExecutable { .. }
            | Self::InterpreterMissing { .. }
            | Self::FolderMissing { .. } => true,
            Self::Refused { .. } | Self::Leash { .. } => false,
        }
    }
}

/// The `PATH` of systems that define none.
const DEFAULT_PATH: &str = if cfg!(windows) { "" } else { "/usr/local/bin:/usr/bin:/bin" };

/// Returns what to do about a program that does not exist.
fn hint(program: &OsStr) -> &'static str {
    if has_separator(program) {
        "; check its path"
    } else {
        " in PATH; give its full path, or a PATH in the server's environment"
    }
}

fn has_separator(program: &OsStr) -> bool {
    program.as_encoded_bytes().iter().any(|byte| *byte == b'/' || (cfg!(windows) && *byte == b'\\'))
}

#[cfg(unix)]
fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(path: &Path) -> bool {
    path.is_file()
}

#[cfg(unix)]
fn spellings(path: PathBuf) -> [PathBuf; 1] {
    [path]
}

/// Returns the candidates for a command name: `npx` is `npx.cmd` on Windows.
#[cfg(not(unix))]
fn spellings(path: PathBuf) -> Vec<PathBuf> {
    let with = |ending: &str| {
        let mut name = path.clone().into_os_string();
        name.push(ending);
        PathBuf::from(name)
    };
    let endings = [".exe", ".cmd", ".bat", ".com"].map(with);
    let written_out = path.extension().is_some().then_some(path.clone());
    written_out.into_iter().chain(endings).collect()
}
