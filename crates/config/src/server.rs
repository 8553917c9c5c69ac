//! The servers whose tools are called.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use steadfast_core::id::Namespace;
use steadfast_core::redact::Redacted;

use crate::kind::{Count, FilePath, Flag, Hidden, Kind, ListOf, Map, OrNone, Plain, Span, Text, Url, Words};
use crate::node::Node;
use crate::setting::{Context, Setting, setting};

/// A server whose tools are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// What it is called, and the namespace of its tools.
    pub name: Namespace,
    /// How to reach it.
    pub reach: Reached,
    /// Whether its own word that a tool is safe to repeat is believed.
    pub trust_annotations: bool,
    /// So many crashes within the window, and it is not started again.
    pub crashes: NonZeroU32,
    /// The window.
    pub crash_window: Duration,
}

/// How a server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reached {
    /// It is started here and spoken to through its input and output.
    Command {
        /// The program and its arguments; never empty.
        command: Vec<String>,
        /// The environment that it is given besides a small allow-list.
        env: Hidden,
        /// The folder that it runs in.
        cwd: Option<PathBuf>,
        /// Who shares one process of it.
        isolation: Isolation,
    },
    /// It runs already and is spoken to over HTTP.
    Url {
        /// Where.
        url: Redacted<String>,
        /// Headers that every request carries.
        headers: Hidden,
    },
}

/// Who shares one process of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// All sessions of a tenant.
    Shared,
    /// Nobody: each session has its own.
    PerSession {
        /// The most processes at a time.
        most: NonZeroU32,
    },
}

/// A server taken apart into what is written.
#[derive(Clone, Debug)]
pub(crate) struct ServerDraft {
    command: Arc<[String]>,
    url: Option<Redacted<String>>,
    env: Hidden,
    headers: Hidden,
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
            env: Hidden::new(),
            headers: Hidden::new(),
            cwd: None,
            per_session: false,
            most_sessions: const { NonZeroU32::new(16).unwrap() },
            trust_annotations: None,
            crashes: const { NonZeroU32::new(5).unwrap() },
            crash_window: Duration::from_secs(60),
        }
    }
}

/// Why a draft is no server.
pub(crate) enum Incomplete {
    /// It has neither command nor URL.
    Nowhere,
    /// It has this setting, which says nothing about how it is reached.
    Idle(&'static str),
}

impl ServerDraft {
    pub(crate) fn finish(self, name: Namespace) -> Result<Server, Incomplete> {
        let by_command = !self.command.is_empty();
        // What is started here was configured by hand on this machine, and so was what listens on it.
        let near = by_command || self.url.as_ref().is_some_and(|url| is_on_this_machine(url.expose()));
        let reach = match self.url {
            None if !by_command => return Err(Incomplete::Nowhere),
            None if !self.headers.is_empty() => return Err(Incomplete::Idle("headers")),
            None => Reached::Command {
                command: self.command.to_vec(),
                env: self.env,
                cwd: self.cwd,
                isolation: match self.per_session {
                    true => Isolation::PerSession { most: self.most_sessions },
                    false => Isolation::Shared,
                },
            },
            Some(_) if !self.env.is_empty() => return Err(Incomplete::Idle("env")),
            Some(_) if self.cwd.is_some() => return Err(Incomplete::Idle("cwd")),
            Some(_) if self.per_session => return Err(Incomplete::Idle("isolation")),
            Some(url) => Reached::Url { url, headers: self.headers },
        };
        let trust_annotations = self.trust_annotations.unwrap_or(near);
        Ok(Server { name, reach, trust_annotations, crashes: self.crashes, crash_window: self.crash_window })
    }
}

impl Server {
    /// The host that it is at; nothing for a command.
    pub fn host(&self) -> Option<&str> {
        match &self.reach {
            Reached::Url { url, .. } => Some(host_of(url.expose())),
            Reached::Command { .. } => None,
        }
    }
}

/// The host of a URL, without the brackets of an address.
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

/// The table.
pub(crate) fn settings() -> &'static [Setting<ServerDraft>] {
    static SETTINGS: LazyLock<Vec<Setting<ServerDraft>>> = LazyLock::new(|| {
        let words = ListOf { item: Plain(Text { most: 32 << 10 }), least: 1, most: 1024 };
        vec![
            setting!(
                ServerDraft,
                "command",
                command,
                words,
                "The program and its arguments. It is started here and spoken to through its input \
                 and output."
            )
            .also(|draft| draft.url = None)
            .excludes(&["url"]),
            setting!(
                ServerDraft,
                "url",
                url,
                OrNone(Url { schemes: &["http", "https"] }),
                "Where the server listens, if it runs already."
            )
            .also(|draft| draft.command = Arc::default()),
            setting!(
                ServerDraft,
                "env",
                env,
                Map { most: 256 },
                "The environment of the process, besides a small allow-list."
            ),
            setting!(
                ServerDraft,
                "headers",
                headers,
                Map { most: 64 },
                "Headers that every request to the URL carries."
            ),
            setting!(ServerDraft, "cwd", cwd, FilePath, "The folder that the process runs in."),
            setting!(
                ServerDraft,
                "isolation",
                per_session,
                Words(&[("shared", false), ("per_session", true)]),
                "Whether sessions share one process. A process for each costs its memory each time."
            ),
            setting!(
                ServerDraft,
                "most_sessions",
                most_sessions,
                Count(1..=10_000),
                "The most processes at a time when each session has its own."
            ),
            setting!(
                ServerDraft,
                "trust_annotations",
                trust_annotations,
                Believed,
                "Whether the server's own word that a tool is safe to repeat is believed. By default \
                 that of servers on this machine is."
            ),
            setting!(
                ServerDraft,
                "crashes",
                crashes,
                Count(1..=1000),
                "So many crashes within `crash_window`, and it is not started again."
            ),
            setting!(
                ServerDraft,
                "crash_window",
                crash_window,
                Span(Duration::from_secs(1)..=Duration::from_secs(86_400)),
                "The window of `crashes`."
            ),
        ]
    });
    &SETTINGS
}

/// Yes, no, or by where the server is.
struct Believed;

impl Kind<Option<bool>> for Believed {
    fn read(&self, node: &Node, cx: &mut Context<'_>) -> Option<Option<bool>> {
        Flag.read(node, cx).map(Some)
    }

    fn show(&self, value: &Option<bool>) -> String {
        value.map_or_else(|| "by where the server is".to_owned(), |truth| truth.to_string())
    }

    fn takes(&self) -> String {
        Flag.takes()
    }

    fn schema(&self) -> serde_json::Value {
        Flag.schema()
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
