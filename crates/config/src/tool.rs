//! Tools that are not MCP servers: an HTTP request, or a command.
//!
//! These settings only say how to run a tool. Timeouts, retries, classes and everything else about its calls are
//! set in `[tools."http/NAME"]` and `[tools."command/NAME"]`, as for the tools of servers.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use serde_json::Value as Json;
use steadfast_core::id::ToolName;

use crate::kind::{FilePath, ListKind, MapKind, PlainText, SecretMap, SettingKind, Text, WordKind};
use crate::node::ConfigNode;
use crate::read_context::ReadContext;
use crate::setting::{Setting, setting};
use crate::template::{Template, UrlTemplate};

/// Namespace of all HTTP tools.
pub const HTTP_NAMESPACE: &str = "http";
/// Namespace of all command tools.
pub const COMMAND_NAMESPACE: &str = "command";

/// A tool that is one HTTP request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpToolSettings {
    /// Name of the tool.
    pub name: ToolName,
    /// Method of the request.
    pub method: HttpMethod,
    /// URL of the request.
    pub url: UrlTemplate,
    /// Headers of every request.
    pub headers: SecretMap,
}

/// Method of an HTTP tool.
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
    /// Name of the tool.
    pub name: ToolName,
    /// Program and arguments. Never empty.
    pub command: Vec<String>,
    /// Environment variables in addition to a small allow-list.
    pub env: SecretMap,
    /// Working folder.
    pub cwd: Option<PathBuf>,
}

/// The written settings of an HTTP tool.
#[derive(Clone, Debug, Default)]
pub(crate) struct HttpDraft {
    method: Option<HttpMethod>,
    url: Option<UrlTemplate>,
    headers: SecretMap,
}

/// The written settings of a command tool.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommandDraft {
    command: Arc<[String]>,
    env: SecretMap,
    cwd: Option<PathBuf>,
}

/// A required setting that is missing, and an example of it.
pub(crate) struct MissingSetting {
    pub(crate) setting: &'static str,
    pub(crate) help: &'static str,
}

impl HttpDraft {
    pub(crate) fn finish(self, name: ToolName) -> Result<HttpToolSettings, MissingSetting> {
        let Self { method, url, headers } = self;
        let url = url.ok_or(MissingSetting { setting: "URL", help: "add `url = \"https://…\"`" })?;
        // The method is required: it is not guessed whether a request changes something.
        let help =
            "add `method = \"POST\"` to send the parameters as a body, or \"GET\" to send them as the query";
        let method = method.ok_or(MissingSetting { setting: "method", help })?;
        Ok(HttpToolSettings { name, method, url, headers })
    }
}

impl CommandDraft {
    pub(crate) fn finish(self, name: ToolName) -> Result<CommandToolSettings, MissingSetting> {
        let Self { command, env, cwd } = self;
        if command.is_empty() {
            return Err(MissingSetting {
                setting: "command",
                help: "add `command = [\"program\", \"argument\"]`",
            });
        }
        Ok(CommandToolSettings { name, command: command.to_vec(), env, cwd })
    }
}

/// Returns the table of settings of HTTP tools.
pub(crate) fn http_settings() -> &'static [Setting<HttpDraft>] {
    static SETTINGS: LazyLock<Vec<Setting<HttpDraft>>> = LazyLock::new(|| {
        vec![
            setting!(
                HttpDraft,
                "method",
                method,
                WordKind(METHODS),
                "The method of the request. The parameters of a call are the JSON body of POST, PUT and PATCH, and \
                 the query of the others."
            ),
            setting!(
                HttpDraft,
                "url",
                url,
                Template,
                "The URL of the request. `{name}` is replaced by the parameter with that name, which is then left \
                 out of the body or query. Redirects are not followed."
            ),
            setting!(
                HttpDraft,
                "headers",
                headers,
                HeaderMapKind(MapKind { most: 64 }),
                "Headers of every request."
            ),
        ]
    });
    &SETTINGS
}

/// Returns the table of settings of command tools.
pub(crate) fn command_settings() -> &'static [Setting<CommandDraft>] {
    static SETTINGS: LazyLock<Vec<Setting<CommandDraft>>> = LazyLock::new(|| {
        let words = ListKind { item: PlainText(Text { most: 32 << 10 }), least: 1, most: 1024 };
        vec![
            setting!(
                CommandDraft,
                "command",
                command,
                words,
                "The program and its arguments. It gets the parameters of a call as JSON on its input, and answers \
                 with JSON or text on its output; any exit code but 0 is a failure, reported with the text on \
                 stderr."
            ),
            setting!(
                CommandDraft,
                "env",
                env,
                MapKind { most: 256 },
                "The environment of the process, in addition to a small allow-list."
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
struct HeaderMapKind(MapKind);

/// Headers that Steadfast sets itself. Setting them in the configuration would have no effect or do harm.
const RESERVED_HEADERS: [&str; 7] = [
    "baggage",
    "connection",
    "content-length",
    "host",
    "idempotency-key",
    "traceparent",
    "transfer-encoding",
];

impl SettingKind<SecretMap> for HeaderMapKind {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<SecretMap> {
        let map = self.0.read(node, cx)?;
        let before = cx.problems.len();
        let mut known = BTreeSet::new();
        for entry in node.table().into_iter().flat_map(|table| &table.0) {
            let (name, lower) = (entry.key.as_str(), entry.key.to_ascii_lowercase());
            // The values are secrets, so the message describes the problem without the value.
            let value = map.get(name).map_or("", |value| value.expose().as_str());
            let refused = if !name.bytes().all(is_token) {
                Some(("is not a valid header name", "use letters, digits and `-`"))
            } else if RESERVED_HEADERS.contains(&lower.as_str()) {
                Some(("is a header that Steadfast sets on every request", "leave it out"))
            } else if !known.insert(lower) {
                Some(("is there twice: names of headers do not differ by case", "keep one of them"))
            } else if value.chars().any(|c| (c.is_control() && c != '\t') || !c.is_ascii()) {
                Some(("has a value that no header can have", "use printable ASCII characters in one line"))
            } else {
                None
            };
            if let Some((problem, help)) = refused {
                cx.refuse(&entry.key_place, format!("`{}.{name}` {problem}", cx.name), help);
            }
        }
        (cx.problems.len() == before).then_some(map)
    }

    fn show(&self, value: &SecretMap) -> String {
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

/// Returns true if this byte is allowed in the name of a header (RFC 9110).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
