//! Sources of a configuration. Files are read only in this module, and the environment is passed in.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::diagnostics::ConfigProblem;
use crate::location::SourceText;
use crate::node::LARGEST_FILE;

/// Sources of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Starting point of policies.
    pub start: PolicyStart,
    /// Files, from weakest to strongest: the user's before the project's. `.toml` files have the format of Steadfast.
    /// `.json` files are those of other programs that can be imported.
    pub files: Vec<ConfigFile>,
    /// JSON of other programs that was given as text, such as `mcpServers`. It is stronger than the files.
    pub texts: Vec<InlineJson>,
    /// Settings of the program as text, in the format of `steadfast.toml`. They are stronger than the files, and the
    /// environment is stronger than they are. A running program can [replace](crate::LiveConfig::reconfigure) them.
    pub program: Option<ProgramText>,
    /// Environment variables.
    pub environment: BTreeMap<String, String>,
    /// Settings from the command line.
    pub flags: Vec<CommandLineFlag>,
    /// Files in which a host keeps trust. The first that exists counts. They are used if `trust_state.file` is not
    /// set.
    pub trust_files: Vec<PathBuf>,
}

/// Starting point of policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyStart {
    /// A program that protects its own tools.
    #[default]
    Library,
    /// The gateway. Calls may be long, and writes are not repeated unless that is known to be safe.
    Gateway,
}

/// A file to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Requirement that the file exists.
    pub needed: FileRequirement,
}

/// JSON of another program that was given as text instead of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlineJson {
    /// Name of the source in messages: `--mcp-config`.
    pub name: String,
    /// The JSON text.
    pub json: String,
}

/// Settings that a program passes as text, in the format of `steadfast.toml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramText {
    /// Name of the source in messages: `pluginConfig`.
    pub name: String,
    /// The settings.
    pub toml: String,
}

/// Requirement that a file exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileRequirement {
    /// The file was named explicitly and must exist.
    Always,
    /// The file is read if it exists.
    IfThere,
}

/// A setting from the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLineFlag {
    /// Name of the flag in messages: `--listen`.
    pub name: String,
    /// Name of the setting: `listen`, `retry.attempts`, `tools."bank/pay".timeout`.
    pub setting: String,
    /// Its value, without quotes.
    pub value: String,
}

/// Name of the configuration file.
pub const FILE_NAME: &str = "steadfast.toml";
/// Variable that names a file to read instead of the project's.
pub const CONFIG_VARIABLE: &str = "STEADFAST_CONFIG";

/// Folder in which jaato keeps trust, in the project and in the home folder.
const HOST_FOLDER: &str = ".jaato";
const HOST_TRUST_FILE: &str = "reliability.json";

impl Sources {
    /// Returns the usual sources: the user's file, then that of the working folder or the one that `STEADFAST_CONFIG`
    /// names.
    pub fn discover(start: PolicyStart, environment: BTreeMap<String, String>, folder: &Path) -> Self {
        let set = |name: &str| environment.get(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let settings = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")));
        let user = settings.map(|folder| folder.join("steadfast").join(FILE_NAME));
        let user = user.map(|path| ConfigFile { path, needed: FileRequirement::IfThere });
        let project = match set(CONFIG_VARIABLE) {
            Some(path) => ConfigFile { path: folder.join(path), needed: FileRequirement::Always },
            None => ConfigFile { path: folder.join(FILE_NAME), needed: FileRequirement::IfThere },
        };
        let files = user.into_iter().chain([project]).collect();
        let homes = [Some(folder.to_owned()), set("HOME")].into_iter().flatten();
        let trust_files = homes.map(|home| home.join(HOST_FOLDER).join(HOST_TRUST_FILE)).collect();
        Self { start, files, environment, trust_files, ..Self::default() }
    }

    /// Returns the file in which a host keeps trust, if there is one.
    pub(crate) fn trust_file(&self) -> Option<PathBuf> {
        self.trust_files.iter().find(|path| path.is_file()).cloned()
    }

    /// Reads the files.
    pub(crate) fn read(&self) -> Vec<FileContents> {
        self.files.iter().map(|file| FileContents::read(&file.path)).collect()
    }
}

/// Contents of a file at one moment.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum FileContents {
    Missing,
    Text(Arc<[u8]>),
    Unreadable(String),
}

impl FileContents {
    fn read(path: &Path) -> Self {
        let limit = LARGEST_FILE as u64 + 1;
        let mut bytes = Vec::new();
        match File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)) {
            Ok(_) if bytes.len() > LARGEST_FILE => {
                Self::Unreadable(format!("it is larger than {} MiB", LARGEST_FILE >> 20))
            }
            Ok(_) => Self::Text(bytes.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::Missing,
            Err(error) => Self::Unreadable(error.to_string()),
        }
    }

    /// Returns the text. Returns `None` if the file is optional and absent.
    pub(crate) fn text(&self, file: &ConfigFile) -> Result<Option<Arc<SourceText>>, ConfigProblem> {
        let name = file.path.display();
        match (self, file.needed) {
            (Self::Missing, FileRequirement::IfThere) => Ok(None),
            (Self::Missing, FileRequirement::Always) => {
                Err(ConfigProblem::nowhere(format!("{name} does not exist"))
                    .help("check the path; a file is only needed where one is named"))
            }
            (Self::Unreadable(reason), _) => {
                Err(ConfigProblem::nowhere(format!("{name} cannot be read: {reason}"))
                    .help("check that it is a file and that this user may read it"))
            }
            (Self::Text(bytes), _) => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Some(SourceText::new(name.to_string(), text.trim_start_matches('\u{feff}')))),
                Err(error) => {
                    let line =
                        1 + bytes.iter().take(error.valid_up_to()).filter(|byte| **byte == b'\n').count();
                    Err(ConfigProblem::nowhere(format!("{name}:{line} is not UTF-8"))
                        .help("save the file as UTF-8"))
                }
            },
        }
    }
}
