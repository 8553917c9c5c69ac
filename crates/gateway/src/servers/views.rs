//! Views of servers for operators.

use serde::Serialize;
use steadfast_core::Timestamp;
use steadfast_core::server_name::ServerFailure;
use steadfast_process::State;

/// A configured upstream server.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ServerView {
    /// The name of the server, and the namespace of its tools.
    pub name: String,
    /// True if sessions share an instance.
    pub shared: bool,
    /// The current processes or connections of the server.
    pub instances: Vec<InstanceView>,
    /// The last failure, if the server has not worked since. It outlives its process or connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<EndView>,
}

/// A process of a server, or a connection to one.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InstanceView {
    /// The current state.
    pub state: InstanceState,
    /// The number of restarts after a crash.
    pub restarts: u64,
    /// The last end that was not requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_end: Option<EndView>,
    /// The last lines of stderr, with secrets redacted.
    pub stderr: Vec<String>,
    /// The number of tools that the server has listed.
    pub tools: usize,
}

/// The state of a server process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum InstanceState {
    /// Not running. It is started on the next request.
    Idle,
    /// Starting.
    Starting,
    /// Ready.
    Up,
    /// Shutting down.
    Ending,
    /// It ended unexpectedly and is restarted after a delay.
    BackingOff,
    /// It crashed too often and is not restarted for a while.
    Down,
    /// Stopped for good.
    Closed,
    /// A remote server, connected to on demand.
    Elsewhere,
}

/// The end of a server process, or a failure of a server.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EndView {
    /// Time of the end.
    pub at_ms: Timestamp,
    /// The reason.
    #[serde(rename = "why")]
    pub reason: String,
}

impl From<ServerFailure> for EndView {
    fn from(failure: ServerFailure) -> Self {
        Self { at_ms: failure.at, reason: failure.reason }
    }
}

impl From<&State> for InstanceState {
    fn from(state: &State) -> Self {
        match state {
            State::Idle => Self::Idle,
            State::Starting(_) => Self::Starting,
            State::Up(_) => Self::Up,
            State::Ending(_) => Self::Ending,
            State::BackingOff { .. } => Self::BackingOff,
            State::Down(_) => Self::Down,
            State::Closed => Self::Closed,
        }
    }
}
