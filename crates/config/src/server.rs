//! The servers whose tools are called.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use steadfast_core::id::Namespace;
use steadfast_redact::Redacted;

use crate::kind::{
    BoolKind, Count, DurationKind, FilePath, ListKind, MapKind, OptionalKind, PlainText, SecretMap,
    SettingKind, Text, Url, WordKind,
};
use crate::node::ConfigNode;
use crate::read_context::ReadContext;
use crate::setting::{Setting, setting};

/// A server whose tools are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// Name of the server, and the namespace of its tools.
    pub name: Namespace,
    /// Transport to the server.
    pub reach: ServerTarget,
    /// True if the server is trusted when it marks a tool as safe to repeat.
    pub trust_annotations: bool,
    /// Number of crashes within the window after which the server is not started again.
    pub crashes: NonZeroU32,
    /// Window in which crashes are counted.
    pub crash_window: Duration,
}

/// Transport to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerTarget {
    /// A child process, with messages over its standard input and output.
    Command {
        /// Program and arguments. Never empty.
        command: Vec<String>,
        /// Environment variables in addition to a small allow-list.
        env: SecretMap,
        /// Working folder.
        cwd: Option<PathBuf>,
        /// Sharing of its process between sessions.
        isolation: Isolation,
    },
    /// A server that already runs, over HTTP.
    Url {
        /// URL of the server.
        url: Redacted<String>,
        /// Headers of every request.
        headers: SecretMap,
    },
}

/// Sharing of a server process between sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// All sessions of a tenant share one process.
    Shared,
    /// Each session has its own process.
    PerSession {
        /// Maximum number of concurrent processes.
        most: NonZeroU32,
    },
}

/// The written settings of a server.
#[derive(Clone, Debug)]
pub(crate) struct ServerDraft {
    command: Arc<[String]>,
    url: Option<Redacted<String>>,
    env: SecretMap,
    headers: SecretMap,
    cwd: Option<PathBuf>,
    per_session: bool,
    most_sessions: NonZeroU32,
    trust_annotations: Option<bool>,
    crashes: NonZeroU32,
    crash_window: Duration,
}

impl Default for ServerDraft {
    fn default() -> Self {
        Self {
            command: Arc::default(),
            url: None,
            env: SecretMap::new(),
            headers: SecretMap::new(),
            cwd: None,
            per_session: false,
            most_sessions: const { NonZeroU32::new(16).unwrap() },
            trust_annotations: None,
            crashes: const { NonZeroU32::new(5).unwrap() },
            crash_window: Duration::from_secs(60),
        }
    }
}

/// Reason for which a draft is not a complete server.
pub(crate) enum IncompleteServer {
    /// It has neither a command nor a URL.
    Nowhere,
    /// It has this setting, but nothing that says how to reach the server.
    Idle(&'static str),
}

impl ServerDraft {
    pub(crate) fn finish(self, name: Namespace) -> Result<ServerSettings, IncompleteServer> {
        let by_command = !self.command.is_empty();
        // A server that is started here was configured on this machine, and so was one that listens on it.
        let near = by_command || self.url.as_ref().is_some_and(|url| is_on_this_machine(url.expose()));
        let reach = match self.url {
            None if !by_command => return Err(IncompleteServer::Nowhere),
            None if !self.headers.is_empty() => return Err(IncompleteServer::Idle("headers")),
            None => ServerTarget::Command {
                command: self.command.to_vec(),
                env: self.env,
                cwd: self.cwd,
                isolation: match self.per_session {
                    true => Isolation::PerSession { most: self.most_sessions },
                    false => Isolation::Shared,
                },
            },
            Some(_) if !self.env.is_empty() => return Err(IncompleteServer::Idle("env")),
            Some(_) if self.cwd.is_some() => return Err(IncompleteServer::Idle("cwd")),
            Some(_) if self.per_session => return Err(IncompleteServer::Idle("isolation")),
            Some(url) => ServerTarget::Url { url, headers: self.headers },
        };
        let trust_annotations = self.trust_annotations.unwrap_or(near);
        Ok(ServerSettings {
            name,
            reach,
            trust_annotations,
            crashes: self.crashes,
            crash_window: self.crash_window,
        })
    }
}

impl ServerSettings {
    /// Returns the host of the server. Returns `None` for a command.
    pub fn host(&self) -> Option<&str> {
        match &self.reach {
            ServerTarget::Url { url, .. } => Some(host_of(url.expose())),
            ServerTarget::Command { .. } => None,
        }
    }
}

/// Returns the host of a URL, without the brackets of an IPv6 address.
fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    match host.strip_prefix('[') {
        Some(inner) => inner.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    }
}

fn is_on_this_machine(url: &str) -> bool {
    let host = host_of(url);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Returns the table of settings.
pub(crate) fn settings() -> &'static [Setting<ServerDraft>] {
    static SETTINGS: LazyLock<Vec<Setting<ServerDraft>>> = LazyLock::new(|| {
        let words = ListKind { item: PlainText(Text { most: 32 << 10 }), least: 1, most: 1024 };
        vec![
            setting!(
                ServerDraft,
                "command",
                command,
                words,
                "The program and its arguments. It is started as a child process and communicates over its standard \
                 input and output."
            )
            .also(|draft| draft.url = None)
            .excludes(&["url"]),
            setting!(
                ServerDraft,
                "url",
                url,
                OptionalKind(Url { schemes: &["http", "https"] }),
                "The URL of a server that already runs."
            )
            .also(|draft| draft.command = Arc::default()),
            setting!(
                ServerDraft,
                "env",
                env,
                MapKind { most: 256 },
                "The environment of the process, in addition to a small allow-list."
            ),
            setting!(
                ServerDraft,
                "headers",
                headers,
                MapKind { most: 64 },
                "Headers of every request to the URL."
            ),
            setting!(ServerDraft, "cwd", cwd, FilePath, "The folder that the process runs in."),
            setting!(
                ServerDraft,
                "isolation",
                per_session,
                WordKind(&[("shared", false), ("per_session", true)]),
                "The sharing of a process between sessions. A process for each session costs its memory each time."
            ),
            setting!(
                ServerDraft,
                "most_sessions",
                most_sessions,
                Count(1..=10_000),
                "Maximum number of concurrent processes if each session has its own."
            ),
            setting!(
                ServerDraft,
                "trust_annotations",
                trust_annotations,
                AnnotationTrustKind,
                "True: trust the server's annotations that a tool is safe to repeat. By default, only servers on \
                 this machine are trusted."
            ),
            setting!(
                ServerDraft,
                "crashes",
                crashes,
                Count(1..=1000),
                "Number of crashes within `crash_window` after which it is not restarted."
            ),
            setting!(
                ServerDraft,
                "crash_window",
                crash_window,
                DurationKind(Duration::from_secs(1)..=Duration::from_secs(86_400)),
                "The window of `crashes`."
            ),
        ]
    });
    &SETTINGS
}

/// True, false, or by the location of the server.
struct AnnotationTrustKind;

impl SettingKind<Option<bool>> for AnnotationTrustKind {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<Option<bool>> {
        BoolKind.read(node, cx).map(Some)
    }

    fn show(&self, value: &Option<bool>) -> String {
        value.map_or_else(|| "by where the server is".to_owned(), |truth| truth.to_string())
    }

    fn takes(&self) -> String {
        BoolKind.takes()
    }

    fn schema(&self) -> serde_json::Value {
        BoolKind.schema()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_this_machine_are_on_this_machine() {
        for url in ["http://127.0.0.1:3001/mcp", "http://localhost/x", "https://u:p@[::1]:9/"] {
            assert!(is_on_this_machine(url), "{url}");
        }
        for url in [
            "http://127.0.0.1.example.com/",
            "http://localhost@example.com/",
            "https://10.0.0.1/",
            "http://[",
        ] {
            assert!(!is_on_this_machine(url), "{url}");
        }
    }
}
