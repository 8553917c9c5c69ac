//! What to start, and in clear words why it cannot be.

use std::env;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::child::{self, Patience, Started};
use crate::environment::Environment;
use crate::leash::Leash;
use crate::stderr::Stderr;

/// A server to be started as a child.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The command: a path, or a name that is looked up in the child's own `PATH`.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// The folder it runs in; ours if none is given.
    pub folder: Option<PathBuf>,
    /// All variables it gets.
    pub environment: Environment,
    /// How long each step of ending it may take.
    pub patience: Patience,
}

/// Why a server could not be started.
#[derive(Debug)]
#[non_exhaustive]
pub enum LaunchError {
    /// There is no such command.
    NotFound {
        /// As it was given.
        program: OsString,
    },
    /// It is there and cannot be executed.
    NotExecutable {
        /// Where it was found.
        path: PathBuf,
    },
    /// It is there, but the program that its first line names is not.
    InterpreterMissing {
        /// Where it was found.
        path: PathBuf,
    },
    /// The folder that it should run in is not there, or is no folder.
    FolderMissing {
        /// As it was given.
        folder: PathBuf,
    },
    /// The system refused.
    Refused {
        /// What should have been started.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// Our own part did not work: no pipe, no leash.
    Leash {
        /// What went wrong.
        source: io::Error,
    },
}

impl Launch {
    /// Starts it. Lines that it writes to stderr go to `stderr`.
    pub async fn start(&self, leash: &Leash, stderr: &Stderr) -> Result<Started, LaunchError> {
        let folder = self.folder()?;
        let path = self.path(&folder)?;
        child::start(self, &folder, &path, leash, stderr).await
    }

    fn folder(&self) -> Result<PathBuf, LaunchError> {
        let own = || env::current_dir().map_err(|source| LaunchError::Leash { source });
        let Some(folder) = &self.folder else { return own() };
        if !folder.is_dir() {
            return Err(LaunchError::FolderMissing { folder: folder.clone() });
        }
        // The leash runs elsewhere, so what is relative to us must not stay so.
        if folder.is_absolute() { Ok(folder.clone()) } else { Ok(own()?.join(folder)) }
    }

    /// Where the command is, as the child would look for it.
    fn path(&self, folder: &Path) -> Result<PathBuf, LaunchError> {
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
    /// Whether another try would end the same way, as long as nobody changes something.
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

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { program } if has_separator(program) => {
                write!(f, "there is no command `{}`; check its path", program.display())
            }
            Self::NotFound { program } => write!(
                f,
                "there is no command `{}` in PATH; give its full path, or a PATH in the server's environment",
                program.display()
            ),
            Self::NotExecutable { path } => {
                write!(
                    f,
                    "`{}` is there but cannot be executed; is it a program, and may you run it?",
                    path.display()
                )
            }
            Self::InterpreterMissing { path } => write!(
                f,
                "`{}` is there, but not the program that its first line names; install that, or name it as the command",
                path.display()
            ),
            Self::FolderMissing { folder } => {
                write!(f, "there is no folder `{}` to run in; make it, or give another", folder.display())
            }
            Self::Refused { path, source } => {
                write!(f, "`{}` could not be started: {source}", path.display())
            }
            Self::Leash { source } => {
                write!(f, "the process that watches over the server could not be started: {source}")
            }
        }
    }
}

impl Error for LaunchError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Refused { source, .. } | Self::Leash { source } => Some(source),
            Self::NotFound { .. }
            | Self::NotExecutable { .. }
            | Self::InterpreterMissing { .. }
            | Self::FolderMissing { .. } => None,
        }
    }
}

/// Where commands are where nobody says it.
const DEFAULT_PATH: &str = if cfg!(windows) { "" } else { "/usr/local/bin:/usr/bin:/bin" };

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

/// `npx` is `npx.cmd` there.
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
