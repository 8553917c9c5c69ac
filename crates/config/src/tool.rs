//! Tools that are no MCP servers: a request over HTTP, or a command.
//!
//! Only what it takes to ask one of them is said here. Time-outs, retries, classes and everything else about their calls is
//! said in `[tools."http/NAME"]` and `[tools."command/NAME"]`, as for the tools of servers.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use serde_json::Value as Json;
use steadfast_core::id::ToolName;

use crate::kind::{FilePath, Hidden, Kind, ListOf, Map, Plain, Text, Words};
use crate::node::Node;
use crate::setting::{Context, Setting, setting};
use crate::template::{Template, UrlTemplate};

/// The namespace of all HTTP tools.
pub const HTTP_NAMESPACE: &str = "http";
/// The namespace of all command tools.
pub const COMMAND_NAMESPACE: &str = "command";

/// A tool that is one request over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpToolSettings {
    /// What it is called.
    pub name: ToolName,
    /// How it is asked.
    pub method: HttpMethod,
    /// Where.
    pub url: UrlTemplate,
    /// Headers that every request carries.
    pub headers: Hidden,
}

/// How an HTTP tool is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of HTTP")]
pub enum HttpMethod {
    Get,
    Head,
    Post,
    Put,
    Patch,
    Delete,
}

/// A tool that is a command, run once for each attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandToolSettings {
    /// What it is called.
    pub name: ToolName,
    /// The program and its arguments; never empty.
    pub command: Vec<String>,
    /// The environment that it is given besides a small allow-list.
    pub env: Hidden,
    /// The folder that it runs in.
    pub cwd: Option<PathBuf>,
}

/// An HTTP tool taken apart into what is written.
#[derive(Clone, Debug, Default)]
pub(crate) struct HttpDraft {
    method: Option<HttpMethod>,
    url: Option<UrlTemplate>,
    headers: Hidden,
}

/// A command tool taken apart into what is written.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommandDraft {
    command: Arc<[String]>,
    env: Hidden,
    cwd: Option<PathBuf>,
}

/// What a tool cannot be without, and how that is written.
pub(crate) struct Missing {
    pub(crate) what: &'static str,
    pub(crate) help: &'static str,
}

impl HttpDraft {
    pub(crate) fn finish(self, name: ToolName) -> Result<HttpToolSettings, Missing> {
        let Self { method, url, headers } = self;
        let url = url.ok_or(Missing { what: "URL", help: "add `url = \"https://…\"`" })?;
        // Whether asking changes something is not guessed.
        let help =
            "add `method = \"POST\"` to send the parameters as a body, or \"GET\" to send them as the query";
        let method = method.ok_or(Missing { what: "method", help })?;
        Ok(HttpToolSettings { name, method, url, headers })
    }
}

impl CommandDraft {
    pub(crate) fn finish(self, name: ToolName) -> Result<CommandToolSettings, Missing> {
        let Self { command, env, cwd } = self;
        if command.is_empty() {
            return Err(Missing { what: "command", help: "add `command = [\"program\", \"argument\"]`" });
        }
        Ok(CommandToolSettings { name, command: command.to_vec(), env, cwd })
    }
}

/// The table of HTTP tools.
pub(crate) fn http_settings() -> &'static [Setting<HttpDraft>] {
    static SETTINGS: LazyLock<Vec<Setting<HttpDraft>>> = LazyLock::new(|| {
        vec![
            setting!(
                HttpDraft,
                "method",
                method,
                Words(METHODS),
                "How it is asked. The parameters of a call are the JSON body of POST, PUT and PATCH, and the query of \
                 the others."
            ),
            setting!(
                HttpDraft,
                "url",
                url,
                Template,
                "Where it is asked. `{name}` is replaced by the parameter of that name, which is then left out of the \
                 body or query. Redirects are not followed."
            ),
            setting!(
                HttpDraft,
                "headers",
                headers,
                Headers(Map { most: 64 }),
                "Headers that every request carries."
            ),
        ]
    });
    &SETTINGS
}

/// The table of command tools.
pub(crate) fn command_settings() -> &'static [Setting<CommandDraft>] {
    static SETTINGS: LazyLock<Vec<Setting<CommandDraft>>> = LazyLock::new(|| {
        let words = ListOf { item: Plain(Text { most: 32 << 10 }), least: 1, most: 1024 };
        vec![
            setting!(
                CommandDraft,
                "command",
                command,
                words,
                "The program and its arguments. It gets the parameters of a call as JSON on its input, and answers \
                 with JSON or text on its output; any exit code but 0 is a failure, told by what it wrote to stderr."
            ),
            setting!(
                CommandDraft,
                "env",
                env,
                Map { most: 256 },
                "The environment of the process, besides a small allow-list."
            ),
            setting!(CommandDraft, "cwd", cwd, FilePath, "The folder that the process runs in."),
        ]
    });
    &SETTINGS
}

const METHODS: &[(&str, Option<HttpMethod>)] = &[
    ("GET", Some(HttpMethod::Get)),
    ("HEAD", Some(HttpMethod::Head)),
    ("POST", Some(HttpMethod::Post)),
    ("PUT", Some(HttpMethod::Put)),
    ("PATCH", Some(HttpMethod::Patch)),
    ("DELETE", Some(HttpMethod::Delete)),
];

/// Headers of a request.
struct Headers(Map);

/// Headers that a request has from us; written by hand they would do nothing, or harm.
const OURS: [&str; 7] = [
    "baggage",
    "connection",
    "content-length",
    "host",
    "idempotency-key",
    "traceparent",
    "transfer-encoding",
];

impl Kind<Hidden> for Headers {
    fn read(&self, node: &Node, cx: &mut Context<'_>) -> Option<Hidden> {
        let map = self.0.read(node, cx)?;
        let before = cx.problems.len();
        let mut seen = BTreeSet::new();
        for entry in node.table().into_iter().flat_map(|table| &table.0) {
            let (name, lower) = (entry.key.as_str(), entry.key.to_ascii_lowercase());
            // The values are secrets, so that what is wrong with one is said without it.
            let value = map.get(name).map_or("", |value| value.expose().as_str());
            let refused = if !name.bytes().all(is_token) {
                Some(("is no name of a header", "use letters, digits and `-`"))
            } else if OURS.contains(&lower.as_str()) {
                Some(("is a header that every request gets from us", "leave it out"))
            } else if !seen.insert(lower) {
                Some(("is there twice: names of headers do not differ by case", "keep one of them"))
            } else if value.chars().any(|c| (c.is_control() && c != '\t') || !c.is_ascii()) {
                Some(("has a value that no header can have", "use printable ASCII characters in one line"))
            } else {
                None
            };
            if let Some((what, help)) = refused {
                cx.refuse(&entry.key_place, format!("`{}.{name}` {what}", cx.name), help);
            }
        }
        (cx.problems.len() == before).then_some(map)
    }

    fn show(&self, value: &Hidden) -> String {
        self.0.show(value)
    }

    fn takes(&self) -> String {
        self.0.takes()
    }

    fn schema(&self) -> Json {
        self.0.schema()
    }

    fn is_scalar(&self) -> bool {
        self.0.is_scalar()
    }
}

/// Whether this can stand in the name of a header (RFC 9110).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
