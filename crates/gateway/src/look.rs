//! What there is to see of servers and of sessions.

use serde::Serialize;
use steadfast_core::Timestamp;
use steadfast_core::server_name::ServerFailure;
use steadfast_process::State;

/// A server of the configuration.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ServerView {
    /// What it is called, and the namespace of its tools.
    pub name: String,
    /// Whether sessions share it.
    pub shared: bool,
    /// Each process or connection of it that there is now.
    pub instances: Vec<InstanceView>,
    /// How it failed last, if it did not work since: also where that process or connection is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<EndView>,
}

/// A process of a server, or a connection to one.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InstanceView {
    /// How it stands.
    pub state: InstanceState,
    /// How often it was started again after it had died.
    pub restarts: u64,
    /// How it last ended by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_end: Option<EndView>,
    /// What it wrote to stderr lately, without secrets.
    pub stderr: Vec<String>,
    /// How many tools it has listed.
    pub tools: usize,
}

/// How a process of a server stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum InstanceState {
    /// It is started when it is wanted.
    Idle,
    /// It is being started.
    Starting,
    /// It is ready.
    Up,
    /// It is coming to its end.
    Ending,
    /// It died and is started again in a moment.
    BackingOff,
    /// It died too often and is left alone for a while.
    Down,
    /// Nobody keeps it alive any more.
    Closed,
    /// It runs somewhere else, and is connected to when it is wanted.
    Elsewhere,
}

/// How a process of a server ended.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EndView {
    /// When.
    pub at_ms: Timestamp,
    /// How.
    pub why: String,
}

impl From<ServerFailure> for EndView {
    fn from(failure: ServerFailure) -> Self {
        Self { at_ms: failure.at, why: failure.why }
    }
}

/// A client that is connected.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionView {
    /// What the conversation is called in records and in the log. In the era without sessions there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// On whose behalf it calls, where its token says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Which door it came in by.
    pub door: String,
    /// The servers behind that door.
    pub servers: Vec<String>,
    /// Who it is.
    pub actor: String,
    /// How long nothing was heard of it.
    pub silent_ms: u64,
    /// Whether it listens for what happens.
    pub listens: bool,
    /// The requests that it waits for.
    pub waiting: usize,
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
