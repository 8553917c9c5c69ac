//! Sources of the configuration.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use steadfast::Steadfast;
use steadfast::config::{
    CommandLineFlag, Config, ConfigFile, FileRequirement, InlineJson, PolicyStart, Sources, usual_sources,
};
use steadfast::store::FileDamagePolicy;
use steadfast::telemetry::LogOutput;

use crate::support::failure::CommandFailure;

/// Opens Steadfast for a gateway, with a log on standard error. A damaged state file is set aside, so that clients
/// keep their tools.
pub(crate) async fn open(sources: Sources) -> Result<Steadfast, CommandFailure> {
    let opening = Steadfast::builder()
        .sources(sources)
        .logging(LogOutput::Stderr)
        .owns_process()
        .on_damage(FileDamagePolicy::SetAside);
    Ok(opening.build().await?)
}

/// Returns the same sources with this kind of store, if one was named.
pub(crate) fn with_store(mut sources: Sources, kind: Option<&String>) -> Sources {
    if let Some(kind) = kind {
        let setting = "store.kind".to_owned();
        sources.flags.push(CommandLineFlag { name: "--store".to_owned(), setting, value: kind.clone() });
    }
    sources
}

/// Configuration files from the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConfigFileOptions {
    /// A file to read instead of steadfast.toml of this folder. Of several, later ones are stronger. .json files of
    /// other programs (reliability.json, openclaw.json, tool manifests, mcpServers) are imported.
    #[arg(long = "config", value_name = "FILE")]
    files: Vec<PathBuf>,
}

impl ConfigFileOptions {
    /// Selects these files instead of the default files.
    pub(crate) fn of(files: Vec<PathBuf>) -> Self {
        Self { files }
    }

    /// Returns all sources, from weakest to strongest.
    pub(crate) fn sources(&self) -> Sources {
        let mut sources = usual_sources(PolicyStart::Gateway);
        if !self.files.is_empty() {
            // The last of the default files is that of the project.
            sources.files.pop();
            sources.files.extend(self.files.iter().map(named));
        }
        sources
    }

    /// Returns the files that were named.
    pub(crate) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Returns all sources, and `mcpServers` of clients: from these files, or from JSON text that is given instead of
    /// a file. Text that begins with a brace is taken as JSON, because no file name does.
    pub(crate) fn sources_and(&self, of_clients: &[OsString]) -> Sources {
        let mut sources = self.sources();
        for given in of_clients {
            match given.to_str().filter(|text| text.trim_start().starts_with('{')) {
                Some(json) => {
                    sources.texts.push(InlineJson { name: "--mcp-config".to_owned(), json: json.to_owned() });
                }
                None => sources.files.push(named(given)),
            }
        }
        sources
    }

    /// Loads the configuration, or returns all its errors.
    pub(crate) fn load(&self) -> Result<Config, CommandFailure> {
        Config::load(&self.sources()).map_err(CommandFailure::from)
    }
}

fn named(path: impl Into<PathBuf>) -> ConfigFile {
    ConfigFile { path: path.into(), needed: FileRequirement::Always }
}
