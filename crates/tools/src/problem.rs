//! The errors of configured tools that cannot be used.

use std::io;

use steadfast_core::id::ToolRef;
use steadfast_mcp::http::upstream::InvalidServerUrl;

/// A configured tool that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("[{}_tools.{}]: {reason}", tool.namespace, tool.tool)]
pub struct UnusableTool {
    /// The tool.
    pub tool: ToolRef,
    /// The reason.
    #[source]
    pub reason: UnusableReason,
}

/// Reason for which a tool cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnusableReason {
    /// Its URL is invalid.
    #[error("{0}")]
    Url(#[source] InvalidServerUrl),
    /// The header with this name is invalid.
    #[error("no header has the name {0}, or such a value")]
    Header(String),
    /// Its command is empty.
    #[error("the command is empty")]
    NoCommand,
    /// The path of this program is unknown, so it cannot be started as a leash.
    #[error("this program cannot determine its own path: {0}")]
    Leash(#[source] io::Error),
}
