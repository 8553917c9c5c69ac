//! The errors of configured tools that cannot be used.

use std::error::Error;
use std::fmt;
use std::io;

use steadfast_core::id::ToolRef;
use steadfast_mcp::http::upstream::InvalidServerUrl;

/// A configured tool that cannot be used.
#[derive(Debug)]
pub struct UnusableTool {
    /// The tool.
    pub tool: ToolRef,
    /// The reason.
    pub reason: UnusableReason,
}

/// Reason for which a tool cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum UnusableReason {
    /// Its URL is invalid.
    Url(InvalidServerUrl),
    /// The header with this name is invalid.
    Header(String),
    /// Its command is empty.
    NoCommand,
    /// The path of this program is unknown, so it cannot be started as a leash.
    Leash(io::Error),
}

impl fmt::Display for UnusableTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let section = format!("[{}_tools.{}]", self.tool.namespace, self.tool.tool);
        match &self.reason {
            UnusableReason::Url(bad) => write!(f, "{section}: {bad}"),
            UnusableReason::Header(name) => {
                write!(f, "{section}: no header has the name {name}, or such a value")
            }
            UnusableReason::NoCommand => write!(f, "{section}: the command is empty"),
            UnusableReason::Leash(error) => {
                write!(f, "{section}: this program cannot determine its own path: {error}")
            }
        }
    }
}

impl Error for UnusableTool {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.reason {
            UnusableReason::Url(bad) => Some(bad),
            UnusableReason::Leash(error) => Some(error),
            UnusableReason::Header(_) | UnusableReason::NoCommand => None,
        }
    }
}
