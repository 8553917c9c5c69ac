//! Where the configuration comes from.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use steadfast::{
    Config, ConfigFile, Flag, GivenText, Logging, Needed, OnDamage, Sources, Start, Steadfast, usual_sources,
};

use crate::failure::Failure;

/// Opens what stands in front of servers, with a log on the standard error stream. A state file that is damaged is set aside,
/// so that clients are not left without their tools.
pub(crate) async fn open(sources: Sources) -> Result<Steadfast, Failure> {
    let opening =
        Steadfast::opening(sources).logging(Logging::Stderr).owns_process().on_damage(OnDamage::SetAside);
    Ok(opening.open().await?)
}

/// The same sources with a store of this kind, if one was named.
pub(crate) fn with_store(mut sources: Sources, kind: Option<&String>) -> Sources {
    if let Some(kind) = kind {
        let setting = "store.kind".to_owned();
        sources.flags.push(Flag { name: "--store".to_owned(), setting, value: kind.clone() });
    }
    sources
}

/// Where the configuration comes from.
#[derive(Args, Clone, Debug)]
pub(crate) struct Chosen {
    /// A file to read instead of steadfast.toml of this folder. Of several, later ones are stronger; .json files of
    /// others (reliability.json, openclaw.json, tool manifests, mcpServers) are understood too.
    #[arg(long = "config", value_name = "FILE")]
    files: Vec<PathBuf>,
}

impl Chosen {
    /// These files, instead of those that are read without being named.
    pub(crate) fn of(files: Vec<PathBuf>) -> Self {
        Self { files }
    }

    /// All places, from weakest to strongest.
    pub(crate) fn sources(&self) -> Sources {
        let mut sources = usual_sources(Start::Gateway);
        if !self.files.is_empty() {
            // The last of the usual places is that of the project.
            sources.files.pop();
            sources.files.extend(self.files.iter().map(named));
        }
        sources
    }

    /// The files that were named.
    pub(crate) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The same, and what clients keep as `mcpServers`: in these files, or in a text that stands there itself. No file that
    /// anybody has begins with a brace.
    pub(crate) fn sources_and(&self, of_clients: &[OsString]) -> Sources {
        let mut sources = self.sources();
        for given in of_clients {
            match given.to_str().filter(|text| text.trim_start().starts_with('{')) {
                Some(json) => {
                    sources.texts.push(GivenText { name: "--mcp-config".to_owned(), json: json.to_owned() });
                }
                None => sources.files.push(named(given)),
            }
        }
        sources
    }

    /// The configuration, or everything that is wrong with it.
    pub(crate) fn load(&self) -> Result<Config, Failure> {
        Config::load(&self.sources()).map_err(Failure::from)
    }
}

fn named(path: impl Into<PathBuf>) -> ConfigFile {
    ConfigFile { path: path.into(), needed: Needed::Always }
}
