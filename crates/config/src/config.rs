//! A configuration that was read, checked and joined from its layers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use steadfast_core::id::{ActorId, Domain, Namespace, ToolName};
use steadfast_core::policy::ToolClass;

use crate::diagnostics::{ConfigErrors, ConfigProblem, Section, nearest};
use crate::document::{self, NamedLayer, SECRET_VARIABLES, SourceLayer};
use crate::global::{self, GlobalSettings, StoreKind};
use crate::import::{self, ImportedConfig};
use crate::location::{DEFAULTS_NAME, SettingPosition, SourceLocation, SourceText};
use crate::node::{self, ConfigTable};
use crate::policy::{self, CLASS, contradictions};
use crate::read_context::{ReadContext, SourceFormat};
use crate::resolved_policy::PolicyCache;
use crate::rule::{Rule, RuleSet, Selector};
use crate::server::{self, IncompleteServer, ServerSettings};
use crate::sources::{FileContents, InlineJson, PolicyStart, ProgramText, Sources};
use crate::switch::{self, Switches};
use crate::token::{InvalidToken, Token, TokenDraft};
use crate::tool::{
    COMMAND_NAMESPACE, CommandDraft, CommandToolSettings, HTTP_NAMESPACE, HttpDraft, HttpToolSettings,
    MissingSetting,
};
use crate::webhook::{Webhook, WebhookDraft};

/// The embedded defaults: every setting with its meaning. This is the lowest layer.
pub const DEFAULTS: &str = include_str!("../defaults.toml");

/// Name of the file in the state folder that records malformed calls.
const MALFORMED_CALLS: &str = "malformed-calls.jsonl";

/// A complete and valid configuration. It does not change. [`crate::LiveConfig`] replaces it as a whole.
pub struct Config {
    pub(crate) parts: Arc<ConfigParts>,
    pub(crate) switches: Switches,
    pub(crate) cache: PolicyCache,
}

/// The parts of a configuration that do not depend on switches.
pub(crate) struct ConfigParts {
    pub(crate) start: PolicyStart,
    pub(crate) global: GlobalSettings,
    /// Position at which each global setting is written. The last one counts.
    global_written: Vec<(usize, SettingPosition)>,
    behind: ConfiguredUpstreams,
    tokens: BTreeMap<ActorId, Token>,
    webhooks: BTreeMap<Namespace, Webhook>,
    pub(crate) rules: RuleSet,
    notes: Vec<String>,
}

/// All servers and tools that calls can go to.
struct ConfiguredUpstreams {
    servers: BTreeMap<Namespace, ServerSettings>,
    http_tools: BTreeMap<ToolName, HttpToolSettings>,
    command_tools: BTreeMap<ToolName, CommandToolSettings>,
}

/// A global setting with its value and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownSetting {
    /// Name of the setting.
    pub setting: &'static str,
    /// Value as it would be written, without secrets.
    pub value: String,
    /// Position at which the value is written.
    pub at: SettingPosition,
}

impl Config {
    /// Reads all sources. Returns a valid configuration, or all errors at once.
    pub fn load(sources: &Sources) -> Result<Self, ConfigErrors> {
        Self::of(sources, &sources.read())
    }

    /// Reads all sources. Returns the settings that could be read, together with all errors. Settings that could not
    /// be read have their defaults or are left out, so nothing may be started with the result if there are errors.
    pub fn examine(sources: &Sources) -> (Self, Option<ConfigErrors>) {
        Self::read(sources, &sources.read())
    }

    /// Reads all sources like [`Self::load`], for files whose contents are already known.
    pub(crate) fn of(sources: &Sources, contents: &[FileContents]) -> Result<Self, ConfigErrors> {
        let (config, errors) = Self::read(sources, contents);
        errors.map_or(Ok(config), Err)
    }

    fn read(sources: &Sources, contents: &[FileContents]) -> (Self, Option<ConfigErrors>) {
        let mut reader = LayerReader::new(sources);
        reader.read_defaults();
        for (file, contents) in sources.files.iter().zip(contents) {
            reader.layer += 1;
            match contents.text(file) {
                Ok(Some(text)) => reader.read_file(&text, file.path.parent().map(PathBuf::from)),
                Ok(None) => {}
                Err(problem) => {
                    reader.unread = Section::ALL.into();
                    reader.keep(vec![problem]);
                }
            }
        }
        for InlineJson { name, json } in &sources.texts {
            reader.layer += 1;
            reader.read_json(&SourceText::new(name, json), PathBuf::new());
        }
        if let Some(ProgramText { name, toml }) = &sources.program {
            reader.layer += 1;
            reader.read_file(&SourceText::new(name, toml), None);
        }
        reader.read_environment();
        reader.read_flags();
        reader.finish()
    }

    /// Returns the global settings.
    pub fn global(&self) -> &GlobalSettings {
        &self.parts.global
    }

    /// Returns the servers whose tools are called, by name.
    pub fn servers(&self) -> &BTreeMap<Namespace, ServerSettings> {
        &self.parts.behind.servers
    }

    /// Returns the tools that are one HTTP request, by name. Their namespace is [`HTTP_NAMESPACE`].
    pub fn http_tools(&self) -> &BTreeMap<ToolName, HttpToolSettings> {
        &self.parts.behind.http_tools
    }

    /// Returns true if a configured tool or server uses this host.
    pub fn is_own_host(&self, domain: &Domain) -> bool {
        let tools = self.http_tools().values().map(|tool| tool.url.host());
        let servers = self.servers().values().filter_map(ServerSettings::host);
        tools.chain(servers).any(|host| host.eq_ignore_ascii_case(domain.as_str()))
    }

    /// Returns the tools that are a command, by name. Their namespace is [`COMMAND_NAMESPACE`].
    pub fn command_tools(&self) -> &BTreeMap<ToolName, CommandToolSettings> {
        &self.parts.behind.command_tools
    }

    /// Returns the webhooks that notifications are sent to, by name.
    pub fn webhooks(&self) -> &BTreeMap<Namespace, Webhook> {
        &self.parts.webhooks
    }

    /// Returns the clients and viewers that have a token of their own, by name.
    pub fn tokens(&self) -> &BTreeMap<ActorId, Token> {
        &self.parts.tokens
    }

    /// Returns notes as plain sentences: how foreign files were imported, and settings that look odd without being
    /// wrong.
    pub fn notes(&self) -> &[String] {
        &self.parts.notes
    }

    /// Returns the switches that are in effect.
    pub fn switches(&self) -> Switches {
        self.switches
    }

    /// Returns the same configuration with other switches.
    pub fn with_switches(&self, switches: Switches) -> Self {
        Self { parts: self.parts.clone(), switches, cache: PolicyCache::default() }
    }

    /// Returns the global settings with their origins.
    pub fn shown(&self) -> Vec<ShownSetting> {
        let written = &self.parts.global_written;
        let of = |(index, setting): (usize, &crate::setting::Setting<GlobalSettings>)| {
            let (_, at) = written.iter().rev().find(|(written, _)| *written == index)?;
            Some(ShownSetting {
                setting: setting.path,
                value: setting.show(&self.parts.global)?,
                at: at.clone(),
            })
        };
        global::settings().iter().enumerate().filter_map(of).collect()
    }
}

/// Reads one layer after another and collects the problems.
struct LayerReader<'s> {
    sources: &'s Sources,
    problems: Vec<ConfigProblem>,
    notes: Vec<String>,
    layers: Vec<SourceLayer>,
    layer: usize,
    /// Sections in which something could not be read.
    unread: BTreeSet<Section>,
}

impl<'s> LayerReader<'s> {
    fn new(sources: &'s Sources) -> Self {
        let (problems, notes, layers) = (Vec::new(), Vec::new(), Vec::new());
        Self { sources, problems, notes, layers, layer: 0, unread: BTreeSet::new() }
    }

    fn context(&self, folder: PathBuf, form: SourceFormat) -> ReadContext<'s> {
        ReadContext {
            problems: Vec::new(),
            name: String::new(),
            folder,
            environment: &self.sources.environment,
            form,
        }
    }

    fn keep(&mut self, problems: Vec<ConfigProblem>) {
        let layer = self.layer;
        self.problems.extend(problems.into_iter().map(|problem| problem.in_layer(layer)));
    }

    fn read_defaults(&mut self) {
        let (table, problems) = node::read_toml(&SourceText::new(DEFAULTS_NAME, DEFAULTS));
        self.keep(problems);
        self.read_table(&table, PathBuf::new(), SourceFormat::BuiltIn);
    }

    fn read_file(&mut self, text: &Arc<SourceText>, folder: Option<PathBuf>) {
        let folder = folder.unwrap_or_default();
        if text.name.to_ascii_lowercase().ends_with(".json") {
            return self.read_json(text, folder);
        }
        let (table, syntax) = node::read_toml(text);
        // Text after a syntax error may have ended up in the wrong section, so checks do not report problems after it.
        let sure = syntax.iter().filter_map(ConfigProblem::offset).min().unwrap_or(usize::MAX);
        let before = self.problems.len();
        self.read_table(&table, folder, SourceFormat::Ours);
        if let (false, Some(layer)) = (syntax.is_empty(), self.layers.last_mut()) {
            layer.mark_incomplete();
        }
        let mut own = self.problems.split_off(before);
        own.retain(|problem| problem.offset().is_none_or(|offset| offset < sure));
        self.problems.append(&mut own);
        self.keep(syntax);
    }

    /// Reads the JSON file of another program.
    fn read_json(&mut self, text: &Arc<SourceText>, folder: PathBuf) {
        match import::read(text) {
            Ok(ImportedConfig { table, notes, problems }) => {
                self.notes.extend(notes);
                self.keep(problems);
                self.read_table(&table, folder, SourceFormat::Bare);
            }
            Err(problem) => self.keep(vec![problem]),
        }
    }

    fn read_table(&mut self, table: &ConfigTable, folder: PathBuf, form: SourceFormat) {
        let mut cx = self.context(folder, form);
        self.layers.push(document::read(table, &mut cx));
        self.keep(cx.problems);
    }

    fn read_environment(&mut self) {
        self.layer += 1;
        let table = document::of_environment(&self.sources.environment, &mut self.notes);
        self.read_table(&table, PathBuf::new(), SourceFormat::Bare);
    }

    fn read_flags(&mut self) {
        for flag in &self.sources.flags {
            self.layer += 1;
            match document::of_flag(flag) {
                Ok(table) => self.read_table(&table, PathBuf::new(), SourceFormat::Bare),
                Err(problem) => {
                    self.unread.extend(flag.setting.split('.').next().and_then(Section::of));
                    self.keep(vec![problem]);
                }
            }
        }
    }

    fn finish(mut self) -> (Config, Option<ConfigErrors>) {
        let mut problems = Vec::new();
        let switches = switch::from_environment(&self.sources.environment, &mut problems);
        self.keep(problems);
        let layers = std::mem::take(&mut self.layers);
        let (global, global_written) = self.join_global(&layers);
        let (http_tools, missing_http) =
            join_tools("http_tools", &layers, |layer| &layer.http_tools, HttpDraft::finish);
        let (command_tools, missing_command) =
            join_tools("command_tools", &layers, |layer| &layer.command_tools, CommandDraft::finish);
        let behind = ConfiguredUpstreams { servers: self.join_servers(&layers), http_tools, command_tools };
        self.keep(missing_http);
        self.keep(missing_command);
        self.report_shared_namespaces(&layers, &behind);
        let (tokens, wrong) = self.join_tokens(&layers);
        self.unread.extend((!wrong.is_empty()).then_some(Section::Tokens));
        self.keep(wrong);
        let (webhooks, wrong) = join_webhooks(&layers);
        self.keep(wrong);
        self.unread.extend(layers.iter().flat_map(|layer| &layer.unread));
        let has_bad_rules = layers.iter().any(|layer| layer.has_bad_rules);
        let rules = RuleSet::of(layers.into_iter().flat_map(|layer| layer.rules));
        self.note_unknown_names(&rules, &behind);
        let parts = ConfigParts {
            start: self.sources.start,
            global,
            global_written,
            behind,
            tokens,
            webhooks,
            rules,
            notes: Vec::new(),
        };
        // Contradictions are checked only if every single value is valid.
        if !has_bad_rules {
            let problems = rules_that_contradict_themselves(&parts);
            self.keep(problems);
        }
        let parts = Arc::new(ConfigParts { notes: self.notes, ..parts });
        (
            Config { parts, switches, cache: PolicyCache::default() },
            ConfigErrors::of(self.problems, self.unread),
        )
    }

    fn join_global(&mut self, layers: &[SourceLayer]) -> (GlobalSettings, Vec<(usize, SettingPosition)>) {
        let mut global = GlobalSettings::default();
        let mut written = Vec::new();
        let mut place = None;
        let mut is_trust_file_set = false;
        let mut is_malformed_set = false;
        for one in layers.iter().flat_map(|layer| &layer.global) {
            (one.patch)(&mut global);
            written.push((one.setting, one.place.written()));
            let path = global::settings().get(one.setting).map_or("", |setting| setting.path);
            if ["store.kind", "store.url"].contains(&path) {
                place = Some(one.place.clone());
            }
            // An explicit "none" outside the embedded defaults is a choice of the user.
            is_malformed_set |= path == "log.malformed_calls" && !one.place.is_in(DEFAULTS_NAME);
            is_trust_file_set |= path == "trust_state.file" && !one.place.is_in(DEFAULTS_NAME);
        }
        if !is_malformed_set && global.store.kind != StoreKind::Memory {
            let folder = global.store.path.as_ref().and_then(|file| file.parent());
            global.log.malformed_calls = folder.map(|folder| folder.join(MALFORMED_CALLS));
            global.log.malformed_calls_beside_state = true;
        }
        if !is_trust_file_set {
            global.trust_state.host_file = self.sources.trust_file();
        }
        let wrong = match (global.store.kind, &global.store.url) {
            (StoreKind::Redis, None) => Some((
                "`store.kind` is \"redis\" and there is no `store.url`",
                "add `url = \"redis://host:6379\"` to `[store]`",
            )),
            (StoreKind::Memory | StoreKind::Sqlite, Some(_)) => Some((
                "`store.url` is set and `store.kind` is not \"redis\"",
                "write `kind = \"redis\"` in `[store]`, or remove the URL",
            )),
            (StoreKind::Redis, Some(_)) | (StoreKind::Memory | StoreKind::Sqlite, None) => None,
        };
        // A URL that could not be read was already reported.
        if let (Some((message, help)), Some(place)) = (wrong, place)
            && !layers.iter().any(|layer| layer.has_bad_globals)
        {
            self.unread.insert(Section::Store);
            self.keep(vec![ConfigProblem::new(&place, message).help(help)]);
        }
        (global, written)
    }

    fn join_servers(&mut self, layers: &[SourceLayer]) -> BTreeMap<Namespace, ServerSettings> {
        let mut servers = BTreeMap::new();
        for (name, JoinedEntry { draft, place, written, is_sound }) in joined(layers, |layer| &layer.servers)
        {
            match draft.finish(name.clone()) {
                Ok(server) => drop(servers.insert(name, server)),
                // A command that could not be read was already reported.
                Err(IncompleteServer::Nowhere) if !is_sound => {}
                Err(IncompleteServer::Nowhere) => {
                    let message = format!("the server `{name}` has neither a command nor a URL");
                    let help = "add `command = [\"program\", \"argument\"]` or `url = \"https://…\"`";
                    self.keep(vec![ConfigProblem::new(&place, message).help(help)]);
                }
                Err(IncompleteServer::Idle(setting)) => {
                    let path = |index: usize| server::settings().get(index).map(|one| one.path);
                    let at = written.iter().find(|(index, _)| path(*index) == Some(setting));
                    let (is, help) = match setting {
                        "headers" => ("a command", "headers go with `url`; a command is given `env`"),
                        _ => (
                            "at a URL",
                            "it is only valid with `command`; a server at a URL is not started here",
                        ),
                    };
                    let message = format!("`{setting}` does nothing for the server `{name}`, which is {is}");
                    let place = at.map_or(&place, |(_, place)| place);
                    self.keep(vec![ConfigProblem::new(place, message).help(help)]);
                }
            }
        }
        servers
    }

    /// Returns the tokens, and the problems of the invalid ones. Two callers with the same token could not be
    /// distinguished.
    fn join_tokens(&self, layers: &[SourceLayer]) -> (BTreeMap<ActorId, Token>, Vec<ConfigProblem>) {
        let (mut tokens, mut problems) = (BTreeMap::<ActorId, Token>::new(), Vec::new());
        let variables = SECRET_VARIABLES.iter().filter_map(|(name, _)| {
            let secret = self.sources.environment.get(*name)?.trim();
            Some(((*name).to_owned(), secret.to_owned()))
        });
        let mut known: Vec<(String, String)> = variables.collect();
        for (name, JoinedEntry { draft, place, is_sound, .. }) in joined(layers, |layer| &layer.tokens) {
            let section = format!("`[tokens.{name}]`");
            match TokenDraft::finish(draft, name.clone()) {
                Ok(token) => {
                    let secret = token.secret.expose();
                    match known.iter().find(|(_, other)| other == secret) {
                        Some((other, _)) => {
                            let message = format!("{section} has the same token as {other}");
                            let help = "give each its own: callers are identified by their tokens";
                            problems.push(ConfigProblem::new(&place, message).help(help));
                        }
                        None => known.push((section, secret.clone())),
                    }
                    tokens.insert(name, token);
                }
                // A token that could not be read was already reported.
                Err(InvalidToken { .. }) if !is_sound => {}
                Err(InvalidToken { problem, help }) => {
                    problems.push(ConfigProblem::new(&place, format!("{section} {problem}")).help(help));
                }
            }
        }
        (tokens, problems)
    }

    /// Reports servers that share their namespace with tools that are configured one by one.
    fn report_shared_namespaces(&mut self, layers: &[SourceLayer], behind: &ConfiguredUpstreams) {
        for server in layers.iter().flat_map(|layer| &layer.servers) {
            let section = match server.name.as_str() {
                HTTP_NAMESPACE if !behind.http_tools.is_empty() => "http_tools",
                COMMAND_NAMESPACE if !behind.command_tools.is_empty() => "command_tools",
                _ => continue,
            };
            let message = format!(
                "the tools of the server `{0}` would be called as those of `[{section}]`",
                server.name
            );
            self.keep(vec![ConfigProblem::new(&server.place, message).help("give the server another name")]);
        }
    }

    /// Notes rules about servers and tools that are not configured. They are most likely typos. They are not errors,
    /// because a host that embeds Steadfast names its plugins as it likes.
    fn note_unknown_names(&mut self, rules: &RuleSet, behind: &ConfiguredUpstreams) {
        let namespaces = behind.namespaces();
        if namespaces.is_empty() {
            return;
        }
        for rule in rules.all() {
            let Some(server) = rule.selector.server() else { continue };
            let (kind, suggestion) = match behind.tools_of(server) {
                None if namespaces.contains(&server) => continue,
                None => ("server", nearest(server, namespaces.iter().copied())),
                // All tools of this namespace are known, so a typo in the name of a tool can be found too.
                Some(tools) => match rule.selector.whole_tool() {
                    Some(tool) if !tools.contains(&tool) => ("tool", nearest(tool, tools)),
                    Some(_) | None => continue,
                },
            };
            let suggestion = suggestion.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
            let at = rule.place.as_ref().map(|place| format!("{}: ", place.written())).unwrap_or_default();
            self.notes
                .push(format!("{at}{} is about a {kind} that is not configured{suggestion}", rule.selector));
        }
    }
}

impl ConfiguredUpstreams {
    /// Returns the namespaces that calls can name.
    fn namespaces(&self) -> Vec<&str> {
        let tools =
            [HTTP_NAMESPACE, COMMAND_NAMESPACE].into_iter().filter(|one| self.tools_of(one).is_some());
        self.servers.keys().map(Namespace::as_str).chain(tools).collect()
    }

    /// Returns the tools of a namespace whose tools are all configured one by one.
    fn tools_of(&self, namespace: &str) -> Option<Vec<&str>> {
        let tools: Vec<&str> = match namespace {
            HTTP_NAMESPACE => self.http_tools.keys().map(ToolName::as_str).collect(),
            COMMAND_NAMESPACE => self.command_tools.keys().map(ToolName::as_str).collect(),
            _ => return None,
        };
        (!tools.is_empty()).then_some(tools)
    }
}

/// Returns the webhooks, and the problems of the invalid ones.
fn join_webhooks(layers: &[SourceLayer]) -> (BTreeMap<Namespace, Webhook>, Vec<ConfigProblem>) {
    let (mut webhooks, mut problems) = (BTreeMap::new(), Vec::new());
    for (name, JoinedEntry { draft, place, is_sound, .. }) in joined(layers, |layer| &layer.webhooks) {
        match WebhookDraft::finish(draft, name.clone()) {
            Some(webhook) => {
                webhooks.insert(name, webhook);
            }
            None if !is_sound => {}
            None => {
                let problem = ConfigProblem::new(&place, format!("`[notify.{name}]` has no url"));
                problems.push(problem.help("add `url = \"https://…\"`, to which notifications are sent"));
            }
        }
    }
    (webhooks, problems)
}

/// A server, tool, token or webhook, joined from all layers.
struct JoinedEntry<D> {
    draft: D,
    place: SourceLocation,
    /// Settings that were written, and their positions.
    written: Vec<(usize, SourceLocation)>,
    /// True if everything in it could be read, so that an absent setting is really missing.
    is_sound: bool,
}

/// Joins the servers, tools, tokens or webhooks of all layers by name.
fn joined<N: Clone + Ord, D: Default>(
    layers: &[SourceLayer],
    of: fn(&SourceLayer) -> &[NamedLayer<N, D>],
) -> BTreeMap<N, JoinedEntry<D>> {
    let mut joined: BTreeMap<N, JoinedEntry<D>> = BTreeMap::new();
    for layer in layers.iter().flat_map(of) {
        let one = joined.entry(layer.name.clone()).or_insert_with(|| JoinedEntry {
            draft: D::default(),
            place: layer.place.clone(),
            written: Vec::new(),
            is_sound: true,
        });
        one.is_sound &= layer.is_sound;
        for written in &layer.written {
            (written.patch)(&mut one.draft);
            one.written.push((written.setting, written.place.clone()));
        }
    }
    joined
}

/// Returns the tools of a section, and the missing settings of the incomplete ones.
fn join_tools<D: Default, T>(
    section: &str,
    layers: &[SourceLayer],
    of: fn(&SourceLayer) -> &[NamedLayer<ToolName, D>],
    finish: fn(D, ToolName) -> Result<T, MissingSetting>,
) -> (BTreeMap<ToolName, T>, Vec<ConfigProblem>) {
    let (mut tools, mut problems) = (BTreeMap::new(), Vec::new());
    for (name, JoinedEntry { draft, place, is_sound, .. }) in joined(layers, of) {
        match finish(draft, name.clone()) {
            Ok(tool) => drop(tools.insert(name, tool)),
            Err(MissingSetting { .. }) if !is_sound => {}
            Err(MissingSetting { setting, help }) => {
                let message = format!("`[{section}.{name}]` has no {setting}");
                problems.push(ConfigProblem::new(&place, message).help(help));
            }
        }
    }
    (tools, problems)
}

/// Checks every rule together with the weaker rules below it, and returns the contradictions.
fn rules_that_contradict_themselves(parts: &ConfigParts) -> Vec<ConfigProblem> {
    let mut problems = Vec::new();
    for rule in parts.rules.all() {
        let mut class = match &rule.selector {
            Selector::Class(class) => *class,
            Selector::Everything | Selector::Server(_) | Selector::Domain(_) | Selector::Tool(_) => {
                ToolClass::Unknown
            }
        };
        let mut draft = parts.base(class);
        for one in rule.written.iter().filter(|one| one.setting == CLASS) {
            (one.patch)(&mut draft);
            class = draft.class;
        }
        let mut draft = parts.base(class);
        let general = |other: &&Rule| match &other.selector {
            Selector::Everything => true,
            Selector::Class(named) => *named == class,
            Selector::Server(_) | Selector::Domain(_) | Selector::Tool(_) => false,
        };
        let weaker = parts.rules.all().iter().filter(general).filter(|other| other.selector < rule.selector);
        for one in weaker.chain([rule]).flat_map(|rule| &rule.written) {
            (one.patch)(&mut draft);
        }
        for (small, large, message) in contradictions(&draft) {
            let path = |index: usize| policy::settings().get(index).map_or("", |setting| setting.path);
            // The setting of the pair that this rule writes. A rule that writes neither is not at fault.
            let brought = rule.written.iter().rev().find(|one| [small, large].contains(&path(one.setting)));
            if let Some(one) = brought {
                problems.push(ConfigProblem::new(&one.place, message).help("change one of the two"));
            }
        }
    }
    problems
}
