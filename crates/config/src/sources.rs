//! Where a configuration comes from. This is the edge: files are read here and nowhere else, and the
//! environment is handed in.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::diagnostics::Problem;
use crate::node::LARGEST_FILE;
use crate::place::SourceText;

/// Where a configuration comes from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// What policies start from.
    pub start: Start,
    /// Files, from weakest to strongest: the user's before the project's. `.toml` files are ours; `.json`
    /// files are those of others that we understand.
    pub files: Vec<ConfigFile>,
    /// JSON of others that was given as it is, such as `mcpServers`. Stronger than the files.
    pub texts: Vec<GivenText>,
    /// The environment.
    pub environment: BTreeMap<String, String>,
    /// What was given on the command line.
    pub flags: Vec<Flag>,
    /// Files in which a host keeps trust, the first that exists counts. Used where `trust_state.file` is not set.
    pub trust_files: Vec<PathBuf>,
}

/// What policies start from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// A program that guards its own tools.
    #[default]
    Library,
    /// The gateway: calls may be long, and writes are not repeated on a guess.
    Gateway,
}

/// A file to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    /// Where it is.
    pub path: PathBuf,
    /// Whether it must be there.
    pub needed: Needed,
}

/// What a file of others would hold, given without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenText {
    /// How it was given, for messages: `--mcp-config`.
    pub name: String,
    /// The JSON.
    pub json: String,
}

/// Whether a file must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needed {
    /// Somebody named it.
    Always,
    /// It is read where it exists.
    IfThere,
}

/// A setting that was given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// How it was given, for messages: `--listen`.
    pub name: String,
    /// The setting: `listen`, `retry.attempts`, `tools."bank/pay".timeout`.
    pub setting: String,
    /// Its value, without quotes.
    pub value: String,
}

/// The name of our file.
pub const FILE_NAME: &str = "steadfast.toml";
/// The variable that names a file to read instead of the project's.
pub const CONFIG_VARIABLE: &str = "STEADFAST_CONFIG";

/// Where jaato keeps trust, in the folder of a project and in that of the user.
const HOST_FOLDER: &str = ".jaato";
const HOST_TRUST_FILE: &str = "reliability.json";

impl Sources {
    /// The usual places: the user's file, then that of the working folder or the one that `STEADFAST_CONFIG`
    /// names.
    pub fn discover(start: Start, environment: BTreeMap<String, String>, folder: &Path) -> Self {
        let set = |name: &str| environment.get(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let settings = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")));
        let user = settings.map(|folder| folder.join("steadfast").join(FILE_NAME));
        let user = user.map(|path| ConfigFile { path, needed: Needed::IfThere });
        let project = match set(CONFIG_VARIABLE) {
            Some(path) => ConfigFile { path: folder.join(path), needed: Needed::Always },
            None => ConfigFile { path: folder.join(FILE_NAME), needed: Needed::IfThere },
        };
        let files = user.into_iter().chain([project]).collect();
        let homes = [Some(folder.to_owned()), set("HOME")].into_iter().flatten();
        let trust_files = homes.map(|home| home.join(HOST_FOLDER).join(HOST_TRUST_FILE)).collect();
        Self { start, files, environment, trust_files, ..Self::default() }
    }

    /// The file in which a host keeps trust, if there is one.
    pub(crate) fn trust_file(&self) -> Option<PathBuf> {
        self.trust_files.iter().find(|path| path.is_file()).cloned()
    }

    /// The files as they are now.
    pub(crate) fn read(&self) -> Vec<Contents> {
        self.files.iter().map(|file| Contents::read(&file.path)).collect()
    }
}

/// A file as it is now.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Contents {
    Missing,
    Text(Arc<[u8]>),
    Unreadable(String),
}

impl Contents {
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

    /// The text, if there is one; nothing if the file may be missing and is.
    pub(crate) fn text(&self, file: &ConfigFile) -> Result<Option<Arc<SourceText>>, Problem> {
        let name = file.path.display();
        match (self, file.needed) {
            (Self::Missing, Needed::IfThere) => Ok(None),
            (Self::Missing, Needed::Always) => Err(Problem::nowhere(format!("{name} does not exist"))
                .help("check the path; a file is only needed where one is named")),
            (Self::Unreadable(why), _) => Err(Problem::nowhere(format!("{name} cannot be read: {why}"))
                .help("check that it is a file and that this user may read it")),
            (Self::Text(bytes), _) => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Some(SourceText::new(name.to_string(), text.trim_start_matches('\u{feff}')))),
                Err(error) => {
                    let line =
                        1 + bytes.iter().take(error.valid_up_to()).filter(|byte| **byte == b'\n').count();
                    Err(Problem::nowhere(format!("{name}:{line} is not UTF-8"))
                        .help("save the file as UTF-8"))
                }
            },
        }
    }
}
