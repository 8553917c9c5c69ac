//! Generates the JSON Schema and the reference page from the tables of settings.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value as Json, json};
use steadfast_core::policy::{PolicyProfile, ToolClass};

use crate::config::Config;
use crate::document::{FOREIGN_VARIABLES, SECRET_VARIABLES};
use crate::global;
use crate::object_schema::{object, object_of, object_schema};
use crate::policy::{self, PolicyDraft, classes};
use crate::server::{self, ServerDraft};
use crate::setting::{Setting, SettingScope, first_part};
use crate::sources::{CONFIG_VARIABLE, Sources};
use crate::switch;
use crate::token;
use crate::tool;
use crate::webhook;

const TOOLS: &str = "Settings of tools: \"server/tool\", \"server/*\", \"server/get_*\", or \"tool\" for a tool of \
    any server.";

/// Returns the JSON Schema of `steadfast.toml`, for editors.
pub fn schema() -> Json {
    let mut shared = Map::new();
    let for_all =
        refer(object(policy::settings(), |setting| setting.scope == SettingScope::Anywhere), &mut shared);
    let for_tools = refer(object(policy::settings(), |_| true), &mut shared);
    let mut root = for_all.clone();
    root.extend(object(global::settings(), |_| true));
    shared.insert("policy".to_owned(), object_of(for_all));
    shared.insert("tool".to_owned(), object_of(for_tools));
    shared.insert("server".to_owned(), object_schema(server::settings()));
    shared.insert("http_tool".to_owned(), object_schema(tool::http_settings()));
    shared.insert("command_tool".to_owned(), object_schema(tool::command_settings()));
    shared.insert("token".to_owned(), object_schema(token::settings()));
    shared.insert("webhook".to_owned(), object_schema(webhook::settings()));
    let by_name = |about: &str, inner: &str| json!({ "type": "object", "description": about, "additionalProperties": reference(inner) });
    let classes = classes().map(|(name, _)| (name.to_owned(), reference("policy"))).collect();
    root.insert("classes".to_owned(), object_of(classes));
    root.insert(
        "domains".to_owned(),
        by_name("Settings of all calls that depend on a host or server.", "policy"),
    );
    root.insert("tools".to_owned(), by_name(TOOLS, "tool"));
    root.insert("servers".to_owned(), by_name("The servers whose tools are called.", "server"));
    let http = "Tools that are one HTTP request. Their server is called `http`.";
    root.insert("http_tools".to_owned(), by_name(http, "http_tool"));
    let command = "Tools that are a command. Their server is called `command`.";
    root.insert("command_tools".to_owned(), by_name(command, "command_tool"));
    root.insert("tokens".to_owned(), by_name("Clients and viewers that have a token of their own.", "token"));
    root.insert("notify".to_owned(), by_name("Webhooks that notifications are sent to.", "webhook"));
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "steadfast.toml",
        "type": "object",
        "properties": root,
        "additionalProperties": false,
        "$defs": shared,
    })
}

/// Moves the sections of a policy, which are allowed in many places, to one shared place.
fn refer(mut properties: Map<String, Json>, shared: &mut Map<String, Json>) -> Map<String, Json> {
    for section in sections(policy::settings()).into_iter().filter(|section| !section.is_empty()) {
        if let Some(schema) = properties.insert(section.to_owned(), reference(section)) {
            shared.insert(section.to_owned(), schema);
        }
    }
    properties
}

fn reference(name: &str) -> Json {
    json!({ "$ref": format!("#/$defs/{name}") })
}

/// Returns the reference page.
pub fn page() -> String {
    let mut page = String::from(HEAD);
    page.push_str(WHOLE);
    let shown: BTreeMap<&str, String> = default_values();
    rows(&mut page, global::settings(), |setting| shown.get(setting.path).cloned().unwrap_or_default());
    page.push_str(POLICIES);
    for section in sections(policy::settings()) {
        let title = if section.is_empty() { "Without a section" } else { section };
        let _ = writeln!(page, "\n### {title}");
        let of_section = policy::settings().iter().filter(|setting| section_of(setting.path) == section);
        rows(&mut page, of_section, policy_default);
    }
    page.push_str(RULES);
    rows(&mut page, policy::faults::rule_settings(), |_| String::new());
    page.push_str(SERVERS);
    rows(&mut page, server::settings(), server_default);
    page.push_str(HTTP_TOOLS);
    rows(&mut page, tool::http_settings(), |_| String::new());
    page.push_str(COMMAND_TOOLS);
    rows(&mut page, tool::command_settings(), |_| String::new());
    page.push_str(TOKENS);
    rows(&mut page, token::settings(), |setting| match setting.path {
        "role" => "`\"client\"`".to_owned(),
        _ => String::new(),
    });
    page.push_str(NOTIFY);
    rows(&mut page, webhook::settings(), |setting| match setting.path {
        "events" => "all".to_owned(),
        "format" => "`\"json\"`".to_owned(),
        _ => String::new(),
    });
    variables(&mut page);
    page
}

const HEAD: &str = "<!-- written by `cargo xtask gen` from the tables in crates/config -->

# Settings

All settings of `steadfast.toml`. The defaults are one commented file,
`crates/config/defaults.toml`. The JSON Schema for editors is `schema/config.schema.json`.

Sources, from weakest to strongest: the embedded defaults, the user's file (`~/.config/steadfast/steadfast.toml`), the
project's file (`steadfast.toml` in the working folder), the environment, flags. Between rules, the more specific one
applies, whichever source it comes from. A list replaces the list of a weaker rule as a whole.

Durations are written as `\"1500ms\"`, `\"30s\"`, `\"2m\"`, `\"24h\"`, `\"7d\"`; sizes as `\"64KiB\"`, `\"8MiB\"`; shares as `0.5`.
`\"none\"` removes a limit that is optional.
";

const WHOLE: &str = "
## Global settings

Write these at the top level of the file, or in the section with which their name begins.
";

const POLICIES: &str = "
## Policies

Write these at the top level, where they apply to everything, or in a rule: `[classes.read_only]` (or another class),
`[tools.\"server/*\"]`, `[domains.\"host\"]` or `[tools.\"server/tool\"]`. Later rules in this list are stronger.
`[tools.\"server/get_*\"]` and `[tools.tool]`, for a tool of any server, are weaker than a whole name with its server.
Settings marked **tools** are promises about particular tools and are allowed in `[tools.…]` only. The built-in defaults
of a class are weaker than anything that you write.
";

const RULES: &str = "
### Rules about faults

Write these in `[[classify.rules]]`, wherever `classify` is allowed. A rule names facts that must all be true, and their
meaning. An example is a message, or a table with a `message` and facts of the same names.
";

const SERVERS: &str = "
## Servers

Write these in `[servers.NAME]`. A server has a `command` or a `url`.
";

const HTTP_TOOLS: &str = "
## HTTP tools

Write these in `[http_tools.NAME]`: a tool that is one HTTP request. Its policies are in `[tools.\"http/NAME\"]`. In a
query, a parameter that is a list is repeated, one that is null is left out, and one that is an object is refused. Each
attempt carries the idempotency key as `Idempotency-Key`.

```toml
[http_tools.user]
method  = \"GET\"
url     = \"https://api.example.com/users/{id}\"
headers = { Authorization = \"Bearer ${API_TOKEN}\" }

[tools.\"http/user\"]
class = \"read_only\"
```
";

const COMMAND_TOOLS: &str = "
## Command tools

Write these in `[command_tools.NAME]`: a tool that is a command, run once for each attempt. Its policies are in
`[tools.\"command/NAME\"]`. In addition to its `env` it gets `TOOL_IDEMPOTENCY_KEY`, `TOOL_ATTEMPT` (from 1) and, if there
is a deadline, `TOOL_DEADLINE_MS` (since the epoch). A command that times out is ended with all processes that it
started. Processes that a command leaves behind are ended too. On Linux this includes processes that left its process
group (`setsid`, daemons). On other systems such a process is not found and continues to run.

```toml
[command_tools.convert]
command = [\"convert-units\", \"--json\"]

[tools.\"command/convert\"]
class   = \"read_only\"
timeout = \"5s\"
```
";

const TOKENS: &str = "
## Tokens

Write these in `[tokens.NAME]`: NAME has a token of its own, for the HTTP API and for MCP, and its calls are made in
that name. [How tokens are used](../operating/tokens.md).

```toml
[tokens.alice]
token  = \"${ALICE_TOKEN}\"
tenant = \"acme\"

[tokens.prometheus]
token = \"${PROMETHEUS_TOKEN}\"
role  = \"viewer\"
```
";

const NOTIFY: &str = "
## Webhooks

Write these in `[notify.NAME]`: a webhook that notifications are sent to. [What is sent, and how to check the
signature](../operating/notifications.md).

```toml
[notify.ops]
url    = \"https://hooks.example.com/steadfast\"
events = [\"outcome_unknown\", \"approval_requested\"]
secret = \"${WEBHOOK_SECRET}\"
```
";

fn sections<D>(settings: &[Setting<D>]) -> Vec<&'static str> {
    let mut names: Vec<&str> = Vec::new();
    for setting in settings {
        let section = section_of(setting.path);
        if !names.contains(&section) {
            names.push(section);
        }
    }
    names
}

fn section_of(path: &'static str) -> &'static str {
    if path.contains('.') { first_part(path) } else { "" }
}

fn rows<'s, D: 'static>(
    page: &mut String,
    settings: impl IntoIterator<Item = &'s Setting<D>>,
    default: impl Fn(&Setting<D>) -> String,
) {
    page.push_str("\n| setting | takes | default | meaning |\n| --- | --- | --- | --- |\n");
    for setting in settings {
        let scope = match setting.scope {
            SettingScope::Anywhere => "",
            SettingScope::Tools => " **tools**",
        };
        let value = default(setting);
        let value = if value.is_empty() { "–".to_owned() } else { value };
        let takes = setting.takes().replace('|', "\\|");
        let _ = writeln!(
            page,
            "| `{}`{scope} | {takes} | {value} | {} |",
            setting.path,
            setting.about.replace('|', "\\|")
        );
    }
}

/// Returns the values of the embedded defaults.
fn default_values() -> BTreeMap<&'static str, String> {
    let config = Config::load(&Sources::default());
    let shown = config.map(|config| config.shown()).unwrap_or_default();
    // If these are not set, the value depends on the folders and files that exist.
    let found = [
        ("store.path", "`\"~/.local/state/steadfast/state.db\"`"),
        ("trust_state.file", "not set"),
        ("log.malformed_calls", "not set: `malformed-calls.jsonl` in the state folder"),
    ]
    .map(|(setting, value)| (setting, value.to_owned()));
    shown.into_iter().map(|one| (one.setting, format!("`{}`", one.value))).chain(found).collect()
}

/// Returns the default of a setting for each profile, for classes that differ, and for the gateway where it differs.
fn policy_default(setting: &Setting<PolicyDraft>) -> String {
    let value = |profile: PolicyProfile, class| setting.show(&PolicyDraft::of(profile.policy(class)));
    let code = |value: Option<String>| value.map_or_else(|| "–".to_owned(), |value| format!("`{value}`"));
    let profiles = [
        ("standard", PolicyProfile::Standard),
        ("measured", PolicyProfile::Measured),
        ("stepped", PolicyProfile::Stepped),
    ];
    let standard = value(PolicyProfile::Standard, ToolClass::Unknown);
    if setting.path == "mode" {
        return "`\"enforce\"`".to_owned();
    }
    if setting.path == "class" {
        return "from the annotations of the server, else `\"unknown\"`".to_owned();
    }
    let mut text = code(standard.clone());
    for (name, profile) in profiles {
        let other = value(profile, ToolClass::Unknown);
        if other != standard {
            let _ = write!(text, "; {name} {}", code(other));
        }
    }
    for (name, class) in classes() {
        let other = value(PolicyProfile::Standard, class);
        if other != standard && setting.path != "class" {
            let _ = write!(text, "; {name} {}", code(other));
        }
    }
    let gateway =
        setting.show(&PolicyDraft::of(PolicyProfile::Standard.policy(ToolClass::Unknown).for_gateway()));
    if gateway != standard {
        let _ = write!(text, "; gateway {}", code(gateway));
    }
    text
}

fn server_default(setting: &Setting<ServerDraft>) -> String {
    match setting.path {
        "command" | "url" | "env" | "headers" | "cwd" => String::new(),
        "trust_annotations" => "true on this machine, else false".to_owned(),
        _ => setting.show(&ServerDraft::default()).map(|value| format!("`{value}`")).unwrap_or_default(),
    }
}

fn variables(page: &mut String) {
    page.push_str(ENVIRONMENT);
    let _ = writeln!(page, "| `{CONFIG_VARIABLE}` | a file to read instead of the project's |");
    for (variable, meaning) in SECRET_VARIABLES {
        let _ = writeln!(page, "| `{variable}` | {meaning} |");
    }
    for (name, path, about) in FOREIGN_VARIABLES {
        let _ = writeln!(page, "| `{name}` | `{path}`: {about} |");
    }
    page.push_str(SWITCHES);
    for variable in &switch::VARIABLES {
        let _ = writeln!(page, "| `{}` | {} |", variable.name, variable.about);
    }
}

const ENVIRONMENT: &str = "
## Environment

Every global setting, and every policy that is one value or a list of values, can be set by a variable: `STEADFAST_`
and its name in capitals, with `_` for the dot. `retry.attempts` is `STEADFAST_RETRY_ATTEMPTS`; a list is written with
commas. A variable applies to everything, so a rule for a tool overrides it. An empty one counts as not set.

| variable | meaning |
| --- | --- |
";

const SWITCHES: &str = "
The following are switches. They override all files, can only lower what is configured, and can also be changed at
runtime. `false`, `0`, `off` and `no` are equal.

| switch | meaning |
| --- | --- |
";
