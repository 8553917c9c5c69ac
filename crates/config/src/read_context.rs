//! The state while values are read, with the problems found so far.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::diagnostics::ConfigProblem;
use crate::location::SourceLocation;
use crate::node::ConfigNode;

/// State while values are read, with the problems found so far.
#[derive(Clone)]
pub(crate) struct ReadContext<'c> {
    pub(crate) problems: Vec<ConfigProblem>,
    /// Full name of the value that is being read, for messages.
    pub(crate) name: String,
    /// Folder that relative paths start from.
    pub(crate) folder: PathBuf,
    pub(crate) environment: &'c BTreeMap<String, String>,
    pub(crate) form: SourceFormat,
}

/// Format of the source that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceFormat {
    /// The embedded defaults, which do not require a home folder.
    BuiltIn,
    /// A `steadfast.toml`, where a setting is `name = value`.
    Ours,
    /// A variable, a flag or a foreign file, where only the value follows the format of Steadfast.
    Bare,
}

impl ReadContext<'_> {
    /// Reports a value that the setting does not take.
    pub(crate) fn wrong(&mut self, node: &ConfigNode, takes: &str, help: impl Into<String>) {
        let message = format!("`{}` takes {takes}, not {}", self.name, node.describe());
        self.problems.push(ConfigProblem::new(&node.place, message).help(help));
    }

    /// Reports any other problem with a value.
    pub(crate) fn refuse(
        &mut self,
        place: &SourceLocation,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.problems.push(ConfigProblem::new(place, message).help(help));
    }

    /// Returns this value as it would be written.
    pub(crate) fn with(&self, value: impl std::fmt::Display) -> String {
        match self.form {
            SourceFormat::BuiltIn | SourceFormat::Ours => format!("`{} = {value}`", last_part(&self.name)),
            SourceFormat::Bare => format!("`{value}`"),
        }
    }
}

/// Returns the last part of the name of a setting.
pub(crate) fn last_part(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or_default()
}
