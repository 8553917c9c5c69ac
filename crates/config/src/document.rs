//! Reads a tree of written values as a layer of settings.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use steadfast_core::id::{ActorId, Domain, Namespace, ToolName};
use toml::de::DeTable;

use crate::diagnostics::{ConfigProblem, Section, nearest};
use crate::global::{self, GlobalSettings};
use crate::kind::NameKind;
use crate::location::SourceLocation;
use crate::node::{ConfigNode, ConfigTable, RawNode, TableEntry};
use crate::policy::{self, PolicyDraft, classes};
use crate::read_context::ReadContext;
use crate::rule::{Rule, Selector};
use crate::server::{self, ServerDraft};
use crate::setting::{Setting, SettingScope, WrittenSetting, first_part, list, read_table};
use crate::sources::{CONFIG_VARIABLE, CommandLineFlag};
use crate::token::{self, TokenDraft};
use crate::tool::{self, CommandDraft, HttpDraft};
use crate::webhook::{self, WebhookDraft};

/// The settings of one source.
#[derive(Default)]
pub(crate) struct SourceLayer {
    pub(crate) global: Vec<WrittenSetting<GlobalSettings>>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) servers: Vec<NamedLayer<Namespace, ServerDraft>>,
    pub(crate) http_tools: Vec<NamedLayer<ToolName, HttpDraft>>,
    pub(crate) command_tools: Vec<NamedLayer<ToolName, CommandDraft>>,
    pub(crate) tokens: Vec<NamedLayer<ActorId, TokenDraft>>,
    pub(crate) webhooks: Vec<NamedLayer<Namespace, WebhookDraft>>,
    /// Sections in which something could not be read.
    pub(crate) unread: BTreeSet<Section>,
    /// True if a global setting is wrong.
    pub(crate) has_bad_globals: bool,
    /// True if a rule is wrong.
    pub(crate) has_bad_rules: bool,
}

impl SourceLayer {
    /// Marks the layer as incomplete, so that no missing settings are reported for it.
    pub(crate) fn mark_incomplete(&mut self) {
        (self.has_bad_globals, self.has_bad_rules) = (true, true);
        self.unread = Section::ALL.into();
        self.servers.iter_mut().for_each(|one| one.is_sound = false);
        self.http_tools.iter_mut().for_each(|one| one.is_sound = false);
        self.command_tools.iter_mut().for_each(|one| one.is_sound = false);
        self.tokens.iter_mut().for_each(|one| one.is_sound = false);
        self.webhooks.iter_mut().for_each(|one| one.is_sound = false);
    }
}

/// The settings of one source for one server, tool, token or webhook.
pub(crate) struct NamedLayer<N, D> {
    pub(crate) name: N,
    pub(crate) place: SourceLocation,
    pub(crate) written: Vec<WrittenSetting<D>>,
    /// True if everything in it could be read, so that an absent setting is really missing.
    pub(crate) is_sound: bool,
}

/// Sections that hold rules, servers, tools, tokens and webhooks by name.
const NAMED: [&str; 8] =
    ["tools", "domains", "classes", "servers", "http_tools", "command_tools", "tokens", "notify"];

/// Reads a whole tree.
pub(crate) fn read(root: &ConfigTable, cx: &mut ReadContext<'_>) -> SourceLayer {
    let mut layer = SourceLayer::default();
    let (mut global, mut everything) = (ConfigTable::default(), ConfigTable::default());
    for entry in &root.0 {
        let key = entry.key.as_str();
        if has(global::settings(), key) {
            global.0.push(entry.clone());
        } else if has(policy::settings(), key) {
            everything.0.push(entry.clone());
        } else if !NAMED.contains(&key) {
            unknown(entry, cx);
            layer.unread.extend(nearest(key, Section::ALL.map(Section::name)).and_then(Section::of));
        }
    }
    layer.unread.extend([Section::Listen, Section::Store].into_iter().filter(|section| {
        let of_it = |entry: &&TableEntry| entry.key == section.name();
        let alone = ConfigTable(global.0.iter().filter(of_it).cloned().collect());
        let mut scratch = ReadContext { problems: Vec::new(), ..cx.clone() };
        read_table(global::settings(), "the top level", |_| true, &alone, &[], &mut scratch);
        !scratch.problems.is_empty()
    }));
    // An unknown name may be a typo for any of them.
    layer.global = read_table(global::settings(), "the top level", |_| true, &global, &[], cx);
    layer.has_bad_globals = !cx.problems.is_empty();
    let before_rules = cx.problems.len();
    layer.rules.push(read_rule(Selector::Everything, &everything, None, cx));
    for (entry, table) in named(root, "classes", cx) {
        match classes().find(|(name, _)| *name == entry.key) {
            Some((_, class)) => layer.rules.push(read_rule(Selector::Class(class), table, Some(entry), cx)),
            None => {
                let names: Vec<&str> = classes().map(|(name, _)| name).collect();
                let help = match nearest(&entry.key, names.iter().copied()) {
                    Some(name) => format!("did you mean `{name}`?"),
                    None => format!("there are {}", list(&names)),
                };
                cx.refuse(&entry.key_place, format!("`{}` is not a class", entry.key), help);
            }
        }
    }
    for (entry, table) in named(root, "domains", cx) {
        match Domain::new(&entry.key) {
            Ok(domain) if !entry.key.contains(['*', '/']) => {
                let selector = Selector::Domain(domain.as_str().to_lowercase());
                layer.rules.push(read_rule(selector, table, Some(entry), cx));
            }
            Ok(_) | Err(_) => {
                let message = format!("{:?} is not a domain", entry.key);
                cx.refuse(
                    &entry.key_place,
                    message,
                    "write a host or a server: `[domains.\"api.example.com\"]`",
                );
            }
        }
    }
    for (entry, table) in named(root, "tools", cx) {
        match Selector::of_tools(&entry.key) {
            Ok(selector) => layer.rules.push(read_rule(selector, table, Some(entry), cx)),
            Err(reason) => cx.refuse(&entry.key_place, format!("{:?} names no tools", entry.key), reason),
        }
    }
    layer.has_bad_rules = cx.problems.len() > before_rules;
    for (entry, table) in named(root, "servers", cx) {
        let name = section_name(entry, "a server", cx, |text| Namespace::new(text).ok());
        layer.servers.extend(read_named("servers", name, server::settings(), (entry, table), cx));
    }
    let tool_name = |text: &str| ToolName::new(text).ok();
    for (entry, table) in named(root, "http_tools", cx) {
        let name = section_name(entry, "a tool", cx, tool_name);
        layer.http_tools.extend(read_named("http_tools", name, tool::http_settings(), (entry, table), cx));
    }
    for (entry, table) in named(root, "command_tools", cx) {
        let name = section_name(entry, "a tool", cx, tool_name);
        let settings = tool::command_settings();
        layer.command_tools.extend(read_named("command_tools", name, settings, (entry, table), cx));
    }
    let before_tokens = cx.problems.len();
    for (entry, table) in named(root, "tokens", cx) {
        let name = section_name(entry, "a client", cx, |text| ActorId::new(text).ok());
        layer.tokens.extend(read_named("tokens", name, token::settings(), (entry, table), cx));
    }
    layer.unread.extend((cx.problems.len() > before_tokens).then_some(Section::Tokens));
    for (entry, table) in named(root, "notify", cx) {
        let name = section_name(entry, "a webhook", cx, |text| Namespace::new(text).ok());
        layer.webhooks.extend(read_named("notify", name, webhook::settings(), (entry, table), cx));
    }
    layer
}

fn read_rule(
    selector: Selector,
    table: &ConfigTable,
    entry: Option<&TableEntry>,
    cx: &mut ReadContext<'_>,
) -> Rule {
    let for_tools = match &selector {
        Selector::Server(_) | Selector::Tool(_) => true,
        Selector::Everything | Selector::Class(_) | Selector::Domain(_) => false,
    };
    let allows = |setting: &Setting<PolicyDraft>| match setting.scope {
        SettingScope::Anywhere => true,
        SettingScope::Tools => for_tools,
    };
    let written = read_table(policy::settings(), &selector.to_string(), allows, table, &[], cx);
    Rule { selector, written, place: entry.map(|entry| entry.key_place.clone()) }
}

fn read_named<N, D: 'static>(
    section: &str,
    name: Option<N>,
    settings: &[Setting<D>],
    (entry, table): (&TableEntry, &ConfigTable),
    cx: &mut ReadContext<'_>,
) -> Option<NamedLayer<N, D>> {
    let title = format!("[{section}.{}]", entry.key);
    let before = cx.problems.len();
    let written = read_table(settings, &title, |_| true, table, &[], cx);
    let is_sound = cx.problems.len() == before;
    Some(NamedLayer { name: name?, place: entry.key_place.clone(), written, is_sound })
}

/// Returns the name of a section, if servers, tools and clients can have that name.
fn section_name<N>(
    entry: &TableEntry,
    owner: &str,
    cx: &mut ReadContext<'_>,
    of: impl Fn(&str) -> Option<N>,
) -> Option<N> {
    let name = Some(entry.key.as_str()).filter(|name| NameKind { extra: "-." }.fits(name)).and_then(of);
    if name.is_none() {
        let message = format!("{:?} cannot be the name of {owner}", entry.key);
        cx.refuse(
            &entry.key_place,
            message,
            "use letters, digits, `_`, `-` and `.`, and begin with a letter",
        );
    }
    name
}

/// Returns the tables within one of the named sections.
fn named<'t>(
    root: &'t ConfigTable,
    section: &str,
    cx: &mut ReadContext<'_>,
) -> Vec<(&'t TableEntry, &'t ConfigTable)> {
    let Some(entry) = root.get(section) else { return Vec::new() };
    let Some(table) = entry.node.table() else {
        let message = format!("`{section}` is a section, not {}", entry.node.describe());
        cx.refuse(&entry.node.place, message, format!("write `[{section}.\"name\"]` above its settings"));
        return Vec::new();
    };
    let mut tables = Vec::new();
    for inner in &table.0 {
        match inner.node.table() {
            Some(table) => tables.push((inner, table)),
            None => {
                let message =
                    format!("`{section}.{}` is a section, not {}", inner.key, inner.node.describe());
                let help = format!("write `[{section}.{:?}]` above its settings", inner.key);
                cx.refuse(&inner.node.place, message, help);
            }
        }
    }
    tables
}

fn has<D>(settings: &[Setting<D>], key: &str) -> bool {
    settings.iter().any(|setting| first_part(setting.path) == key)
}

/// Reports an unknown name at the top level.
fn unknown(entry: &TableEntry, cx: &mut ReadContext<'_>) {
    let key = entry.key.as_str();
    let globals = global::settings().iter().map(|setting| setting.path);
    let policies = policy::settings().iter().map(|setting| setting.path);
    let owner = [
        ("servers", has(server::settings(), key)),
        ("http_tools", has(tool::http_settings(), key)),
        ("command_tools", has(tool::command_settings(), key)),
        ("tokens", has(token::settings(), key)),
        ("notify", has(webhook::settings(), key)),
    ];
    let owner = owner.into_iter().find_map(|(section, is_its)| is_its.then_some(section));
    let paths: Vec<&str> = globals.chain(policies).collect();
    let known_names = paths.iter().map(|path| first_part(path)).chain(NAMED);
    let below = paths.iter().find(|path| path.rsplit('.').next() == Some(key));
    let help = match (nearest(key, known_names), below) {
        (Some(name), _) => format!("did you mean `{name}`?"),
        (None, Some(path)) => format!("there is a setting `{path}`; did you mean that?"),
        (None, None) => match owner {
            Some(section) => format!("`{key}` belongs into `[{section}.NAME]`"),
            None => "docs/reference/settings.md lists all settings".to_owned(),
        },
    };
    cx.refuse(&entry.key_place, format!("`{key}` is not a setting"), help);
}

/// Returns the settings from the environment as a tree.
pub(crate) fn of_environment(environment: &BTreeMap<String, String>, notes: &mut Vec<String>) -> ConfigTable {
    let mut table = ConfigTable::default();
    let known = variables();
    for (name, value) in environment {
        let value = value.trim();
        if value.is_empty() {
            continue;
        }
        if let Some((_, path)) = known.iter().find(|(variable, _)| variable == name) {
            let seconds = name == JAATO_WINDOW && value.bytes().all(|byte| byte.is_ascii_digit());
            let value = if seconds { format!("{value}s") } else { value.to_owned() };
            let node =
                ConfigNode::new(RawNode::Loose(value), &SourceLocation::Variable(Arc::from(name.as_str())));
            let path: Vec<&str> = path.split('.').collect();
            // Variables come in the order of their names, so `STEADFAST_…` replaces `JAATO_…`.
            table.insert(&path, node);
        } else if let Some(own) = name.strip_prefix(VARIABLE_PREFIX).filter(|_| !is_no_setting(name)) {
            let known = known.iter().filter_map(|(variable, _)| variable.strip_prefix(VARIABLE_PREFIX));
            let suggestion =
                nearest(own, known).map(|name| format!("; did you mean {VARIABLE_PREFIX}{name}?"));
            let suggestion = suggestion.unwrap_or_default();
            notes.push(format!(
                "the variable {name} is not a setting of Steadfast and has no effect{suggestion}"
            ));
        }
    }
    table
}

fn is_no_setting(name: &str) -> bool {
    name == CONFIG_VARIABLE || SECRET_VARIABLES.iter().any(|(secret, _)| *secret == name)
}

/// Prefix of the environment variables of Steadfast.
const VARIABLE_PREFIX: &str = "STEADFAST_";
/// Variables with that prefix that are secrets instead of settings.
pub(crate) const SECRET_VARIABLES: [(&str, &str); 2] = [
    (
        "STEADFAST_TOKEN",
        "a token for clients that belong to no tenant; `[tokens.NAME]` gives each client its own",
    ),
    ("STEADFAST_ADMIN_TOKEN", "the admin token for operators, instead of the one beside the state file"),
];
const JAATO_WINDOW: &str = "JAATO_RELIABILITY_WINDOW";

/// Variables of other programs that set one of the settings.
pub(crate) const FOREIGN_VARIABLES: [(&str, &str, &str); 3] = [
    (
        "JAATO_RELIABILITY_THRESHOLD",
        "trust.count",
        "number of counted failures after which a tool loses trust, unless a rule sets another",
    ),
    (JAATO_WINDOW, "trust.window", "the window they are counted in; a plain number is seconds"),
    (
        "JAATO_RELIABILITY_PERSIST",
        "trust_state.persist",
        "off: lost trust is restored at the end of the session",
    ),
];

/// Returns all variables that set something, each with its setting.
pub(crate) fn variables() -> Vec<(String, &'static str)> {
    let global = global::settings().iter().filter(|setting| setting.is_scalar());
    let policy =
        policy::settings().iter().filter(|one| one.is_scalar() && one.scope == SettingScope::Anywhere);
    let native =
        global.map(|one| (one.variable(), one.path)).chain(policy.map(|one| (one.variable(), one.path)));
    let foreign = FOREIGN_VARIABLES.iter().map(|(name, path, _)| ((*name).to_owned(), *path));
    foreign.chain(native).collect()
}

/// Returns a setting from the command line as a tree with its place.
pub(crate) fn of_flag(flag: &CommandLineFlag) -> Result<ConfigTable, ConfigProblem> {
    let place = SourceLocation::Flag(Arc::from(flag.name.as_str()));
    let wrong = || {
        ConfigProblem::new(&place, format!("{:?} does not name a setting", flag.setting))
            .help("write it as in the file: `retry.attempts`, `tools.\"bank/pay\".timeout`")
    };
    if flag.setting.contains(['\n', '\r', '=', '#']) {
        return Err(wrong());
    }
    let line = format!("{} = 0", flag.setting);
    let parsed = DeTable::parse(&line).map_err(|_| wrong())?;
    let mut path = Vec::new();
    let mut table = parsed.get_ref();
    while let Some((key, value)) = table.iter().next() {
        path.push(key.get_ref().to_string());
        match value.get_ref().as_table() {
            Some(inner) => table = inner,
            None => break,
        }
    }
    let mut root = ConfigTable::default();
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    root.insert(&path, ConfigNode::new(RawNode::Loose(flag.value.clone()), &place));
    Ok(root)
}
