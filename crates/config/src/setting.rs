//! A setting: its name, what it takes, what it means, and where its value goes.
//!
//! Settings stand in tables (`policy`, `global`, `server`, `tool`, `token`). From these tables everything is made: the
//! reader, the messages, the JSON Schema, the reference page, the names of variables, `explain`. There is no
//! second place that knows a setting.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::diagnostics::{Problem, nearest};
use crate::kind::Kind;
use crate::node::{Entry, Node, Table};
use crate::place::Place;

/// What is known while values are read, and the place for what is wrong with them.
#[derive(Clone)]
pub(crate) struct Context<'c> {
    pub(crate) problems: Vec<Problem>,
    /// The full name of what is being read, for messages.
    pub(crate) name: String,
    /// What relative paths are relative to.
    pub(crate) folder: PathBuf,
    pub(crate) environment: &'c BTreeMap<String, String>,
    pub(crate) form: Form,
}

/// How what is being read is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The embedded defaults, which do not insist on a home folder.
    BuiltIn,
    /// Our own file, where a setting is `name = value`.
    Ours,
    /// A variable, a flag or a file of others, where only the value is ours.
    Bare,
}

impl Context<'_> {
    /// A value is not what the setting takes.
    pub(crate) fn wrong(&mut self, node: &Node, takes: &str, help: impl Into<String>) {
        let what = format!("`{}` takes {takes}, not {}", self.name, node.describe());
        self.problems.push(Problem::new(&node.place, what).help(help));
    }

    /// Anything else that is wrong with a value.
    pub(crate) fn refuse(&mut self, place: &Place, what: impl Into<String>, help: impl Into<String>) {
        self.problems.push(Problem::new(place, what).help(help));
    }

    /// How this value would be written.
    pub(crate) fn with(&self, value: impl std::fmt::Display) -> String {
        match self.form {
            Form::BuiltIn | Form::Ours => format!("`{} = {value}`", last_part(&self.name)),
            Form::Bare => format!("`{value}`"),
        }
    }
}

/// Puts a value where it belongs.
pub(crate) type Patch<D> = Arc<dyn Fn(&mut D) + Send + Sync>;

/// A setting that was written somewhere.
pub(crate) struct Written<D> {
    /// Its position in the table of settings.
    pub(crate) setting: usize,
    pub(crate) place: Place,
    pub(crate) patch: Patch<D>,
}

impl<D> Clone for Written<D> {
    fn clone(&self) -> Self {
        Self { setting: self.setting, place: self.place.clone(), patch: self.patch.clone() }
    }
}

/// Where a setting may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Anywhere,
    /// In `[tools.…]` only: it is a promise about particular tools.
    Tools,
}

/// One row of a table of settings.
pub(crate) struct Setting<D> {
    /// Its name, at most one section deep: `timeout`, `retry.attempts`.
    pub(crate) path: &'static str,
    /// What it means, and what it costs when raised.
    pub(crate) about: &'static str,
    pub(crate) scope: Scope,
    /// Other settings that it decides too; they are explained by it.
    pub(crate) decides: &'static [&'static str],
    /// Settings that cannot stand beside it in the same rule.
    pub(crate) excludes: &'static [&'static str],
    also: Option<fn(&mut D)>,
    shown_if: fn(&D) -> bool,
    field: Box<dyn Field<D>>,
}

/// One row: draft, name, field, what it takes, what it means.
macro_rules! setting {
    ($draft:ty, $path:literal, $($field:ident).+, $kind:expr, $about:expr $(,)?) => {
        crate::setting::Setting::new(
            $path,
            $about,
            |draft: &$draft| &draft.$($field).+,
            |draft: &mut $draft| &mut draft.$($field).+,
            $kind,
        )
    };
}
pub(crate) use setting;

impl<D: 'static> Setting<D> {
    pub(crate) fn new<T: Clone + Send + Sync + 'static>(
        path: &'static str,
        about: &'static str,
        look: fn(&D) -> &T,
        reach: fn(&mut D) -> &mut T,
        kind: impl Kind<T> + 'static,
    ) -> Self {
        Self {
            path,
            about,
            scope: Scope::Anywhere,
            decides: &[],
            excludes: &[],
            also: None,
            shown_if: |_| true,
            field: Box::new(Typed { look, reach, kind: Box::new(kind) }),
        }
    }

    pub(crate) fn only_for_tools(self) -> Self {
        Self { scope: Scope::Tools, ..self }
    }

    pub(crate) fn decides(self, decides: &'static [&'static str]) -> Self {
        Self { decides, ..self }
    }

    pub(crate) fn excludes(self, excludes: &'static [&'static str]) -> Self {
        Self { excludes, ..self }
    }

    /// What else happens when it is set.
    pub(crate) fn also(self, also: fn(&mut D)) -> Self {
        Self { also: Some(also), ..self }
    }

    /// When it says something; otherwise another setting stands in its place.
    pub(crate) fn shown_if(self, shown_if: fn(&D) -> bool) -> Self {
        Self { shown_if, ..self }
    }

    /// Its value as it would be written.
    pub(crate) fn show(&self, draft: &D) -> Option<String> {
        (self.shown_if)(draft).then(|| self.field.show(draft))
    }

    pub(crate) fn schema(&self) -> Json {
        let mut schema = self.field.schema();
        if let Some(object) = schema.as_object_mut() {
            object.insert("description".to_owned(), Json::from(self.about));
        }
        schema
    }

    /// What it takes, in words.
    pub(crate) fn takes(&self) -> String {
        self.field.takes()
    }

    /// Whether a variable or a flag can hold it.
    pub(crate) fn is_scalar(&self) -> bool {
        self.field.is_scalar()
    }

    /// The variable that sets it.
    pub(crate) fn variable(&self) -> String {
        format!("STEADFAST_{}", self.path.replace('.', "_").to_uppercase())
    }

    pub(crate) fn read(&self, node: &Node, cx: &mut Context<'_>) -> Option<Patch<D>> {
        let (set, also) = (self.field.read(node, cx)?, self.also);
        Some(match also {
            None => set,
            Some(also) => Arc::new(move |draft| {
                set(draft);
                also(draft);
            }),
        })
    }
}

/// A typed field behind a row, with its type forgotten.
trait Field<D>: Send + Sync {
    fn read(&self, node: &Node, cx: &mut Context<'_>) -> Option<Patch<D>>;
    fn show(&self, draft: &D) -> String;
    fn schema(&self) -> Json;
    fn takes(&self) -> String;
    fn is_scalar(&self) -> bool;
}

struct Typed<D, T> {
    look: fn(&D) -> &T,
    reach: fn(&mut D) -> &mut T,
    kind: Box<dyn Kind<T>>,
}

impl<D: 'static, T: Clone + Send + Sync + 'static> Field<D> for Typed<D, T> {
    fn read(&self, node: &Node, cx: &mut Context<'_>) -> Option<Patch<D>> {
        let (value, reach) = (self.kind.read(node, cx)?, self.reach);
        Some(Arc::new(move |draft| value.clone_into(reach(draft))))
    }

    fn show(&self, draft: &D) -> String {
        self.kind.show((self.look)(draft))
    }

    fn schema(&self) -> Json {
        self.kind.schema()
    }

    fn takes(&self) -> String {
        self.kind.takes()
    }

    fn is_scalar(&self) -> bool {
        self.kind.is_scalar()
    }
}

/// Reads what a table has of these settings, and says what it has that they do not know.
///
/// `title` is how the table is called in messages, `others` the names that stand beside the settings in it.
pub(crate) fn read_table<D: 'static>(
    settings: &[Setting<D>],
    title: &str,
    allows: impl Fn(&Setting<D>) -> bool,
    table: &Table,
    others: &[&str],
    cx: &mut Context<'_>,
) -> Vec<Written<D>> {
    let mut written = Vec::new();
    for entry in &table.0 {
        if others.contains(&entry.key.as_str()) {
            continue;
        }
        if settings.iter().any(|setting| setting.path == entry.key) {
            read_entry(settings, title, &allows, &entry.key, entry, &mut written, cx);
        } else if names_below(settings, &entry.key).next().is_some() {
            read_section(settings, title, &allows, entry, &mut written, cx);
        } else {
            let beside =
                settings.iter().map(|setting| first_part(setting.path)).chain(others.iter().copied());
            unknown(settings, title, entry, beside, cx);
        }
    }
    // The order of the table, in which a general setting stands before the particular ones.
    written.sort_by_key(|one| one.setting);
    say_contradictions(settings, title, &written, cx);
    written
}

fn read_section<D: 'static>(
    settings: &[Setting<D>],
    title: &str,
    allows: &impl Fn(&Setting<D>) -> bool,
    section: &Entry,
    written: &mut Vec<Written<D>>,
    cx: &mut Context<'_>,
) {
    let key = &section.key;
    let Some(table) = section.node.table() else {
        let what = format!("`{key}` is a section, not {}", section.node.describe());
        let name = names_below(settings, key).next().unwrap_or_default();
        cx.refuse(
            &section.node.place,
            what,
            format!("write `{key}.{name} = …`, or `[{key}]` above `{name} = …`"),
        );
        return;
    };
    for entry in &table.0 {
        let path = format!("{key}.{}", entry.key);
        if settings.iter().any(|setting| setting.path == path) {
            read_entry(settings, title, allows, &path, entry, written, cx);
        } else {
            unknown(settings, &within(title, key), entry, names_below(settings, key), cx);
        }
    }
}

fn read_entry<D: 'static>(
    settings: &[Setting<D>],
    title: &str,
    allows: &impl Fn(&Setting<D>) -> bool,
    path: &str,
    entry: &Entry,
    written: &mut Vec<Written<D>>,
    cx: &mut Context<'_>,
) {
    let Some((index, setting)) = settings.iter().enumerate().find(|(_, setting)| setting.path == path) else {
        return;
    };
    cx.name = path.to_owned();
    if !allows(setting) {
        let word = if title.starts_with('[') { "in" } else { "at" };
        let what = format!("`{path}` cannot stand {word} {title}");
        let help = "it is a promise about particular tools: write it in `[tools.\"server/tool\"]`";
        cx.refuse(&entry.key_place, what, help);
        return;
    }
    if let Some(patch) = setting.read(&entry.node, cx) {
        written.push(Written { setting: index, place: entry.key_place.clone(), patch });
    }
}

fn unknown<'n, D>(
    settings: &'n [Setting<D>],
    title: &str,
    entry: &Entry,
    beside: impl Iterator<Item = &'n str>,
    cx: &mut Context<'_>,
) {
    let key = &entry.key;
    let mut beside: Vec<&str> = beside.collect();
    beside.sort_unstable();
    beside.dedup();
    let elsewhere =
        || settings.iter().find(|setting| last_part(setting.path) == *key).map(|setting| setting.path);
    let help = if let Some(name) = nearest(key, beside.iter().copied()) {
        format!("did you mean `{name}`?")
    } else if let Some(path) = elsewhere() {
        match path == key {
            true => format!("`{key}` belongs one level up, outside of the section"),
            false => format!("there is a setting `{path}`; did you mean that?"),
        }
    } else {
        format!("there are {}", list(&beside))
    };
    cx.refuse(&entry.key_place, format!("`{key}` is not a setting of {title}"), help);
}

fn say_contradictions<D>(settings: &[Setting<D>], title: &str, written: &[Written<D>], cx: &mut Context<'_>) {
    let path = |one: &Written<D>| settings.get(one.setting).map_or("", |setting| setting.path);
    for one in written {
        let excludes = settings.get(one.setting).map_or(&[][..], |setting| setting.excludes);
        if let Some(other) = written.iter().find(|other| excludes.contains(&path(other))) {
            let (this, that) = (path(one), path(other));
            let what = format!("`{this}` and `{that}` are both in {title}");
            cx.refuse(
                &one.place,
                what,
                format!("keep one of them; `{that}` is at {}", other.place.written()),
            );
        }
    }
}

/// The names of the settings in a section.
fn names_below<'n, D>(settings: &'n [Setting<D>], section: &str) -> impl Iterator<Item = &'n str> {
    settings.iter().filter_map(move |setting| setting.path.strip_prefix(section)?.strip_prefix('.'))
}

/// How the section of a table is called: `[retry]`, or `[tools."bank/pay".retry]` within that.
fn within(title: &str, section: &str) -> String {
    match title.strip_prefix('[').and_then(|title| title.strip_suffix(']')) {
        Some(outer) => format!("[{outer}.{section}]"),
        None => format!("[{section}]"),
    }
}

pub(crate) fn first_part(path: &str) -> &str {
    path.split('.').next().unwrap_or_default()
}

fn last_part(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or_default()
}

pub(crate) fn list(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
