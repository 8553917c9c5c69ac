//! A setting: its name, its type, its meaning, and the field that its value goes into.
//!
//! Settings are rows of tables (`policy`, `global`, `server`, `tool`, `token`). Everything else is made from these
//! tables: the reader, the messages, the JSON Schema, the reference page, the names of variables, `explain`. A
//! setting is defined in no other place.

use std::sync::Arc;

use serde_json::Value as Json;

use crate::diagnostics::nearest;
use crate::kind::SettingKind;
use crate::location::SourceLocation;
use crate::node::{ConfigNode, ConfigTable, TableEntry};
use crate::read_context::{ReadContext, last_part};

/// Writes a value into its field of the draft.
pub(crate) type Patch<D> = Arc<dyn Fn(&mut D) + Send + Sync>;

/// A setting that was written in a source.
pub(crate) struct WrittenSetting<D> {
    /// Index in the table of settings.
    pub(crate) setting: usize,
    pub(crate) place: SourceLocation,
    pub(crate) patch: Patch<D>,
}

impl<D> Clone for WrittenSetting<D> {
    fn clone(&self) -> Self {
        Self { setting: self.setting, place: self.place.clone(), patch: self.patch.clone() }
    }
}

/// Places in which a setting may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettingScope {
    Anywhere,
    /// In `[tools.…]` only, because it is a promise about particular tools.
    Tools,
}

/// One row of a table of settings.
pub(crate) struct Setting<D> {
    /// Name, at most one section deep: `timeout`, `retry.attempts`.
    pub(crate) path: &'static str,
    /// Meaning of the setting, and the cost of raising it.
    pub(crate) about: &'static str,
    pub(crate) scope: SettingScope,
    /// Other settings that it decides too. They are explained by it.
    pub(crate) decides: &'static [&'static str],
    /// Settings that cannot be written beside it in the same rule.
    pub(crate) excludes: &'static [&'static str],
    also: Option<fn(&mut D)>,
    shown_if: fn(&D) -> bool,
    field: Box<dyn SettingField<D>>,
}

/// One row: draft, name, field, kind, meaning.
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
        getter: fn(&D) -> &T,
        reach: fn(&mut D) -> &mut T,
        kind: impl SettingKind<T> + 'static,
    ) -> Self {
        Self {
            path,
            about,
            scope: SettingScope::Anywhere,
            decides: &[],
            excludes: &[],
            also: None,
            shown_if: |_| true,
            field: Box::new(TypedField { getter, reach, kind: Box::new(kind) }),
        }
    }

    pub(crate) fn only_for_tools(self) -> Self {
        Self { scope: SettingScope::Tools, ..self }
    }

    pub(crate) fn decides(self, decides: &'static [&'static str]) -> Self {
        Self { decides, ..self }
    }

    pub(crate) fn excludes(self, excludes: &'static [&'static str]) -> Self {
        Self { excludes, ..self }
    }

    /// Adds an effect of setting it.
    pub(crate) fn also(self, also: fn(&mut D)) -> Self {
        Self { also: Some(also), ..self }
    }

    /// Shows it only under a condition. Otherwise another setting is shown in its place.
    pub(crate) fn shown_if(self, shown_if: fn(&D) -> bool) -> Self {
        Self { shown_if, ..self }
    }

    /// Returns its value as it would be written.
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

    /// Describes the accepted values in words.
    pub(crate) fn takes(&self) -> String {
        self.field.takes()
    }

    /// Returns true if a variable or a flag can hold it.
    pub(crate) fn is_scalar(&self) -> bool {
        self.field.is_scalar()
    }

    /// Returns the variable that sets it.
    pub(crate) fn variable(&self) -> String {
        format!("STEADFAST_{}", self.path.replace('.', "_").to_uppercase())
    }

    pub(crate) fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<Patch<D>> {
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

/// A typed field of a row, with its type erased.
trait SettingField<D>: Send + Sync {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<Patch<D>>;
    fn show(&self, draft: &D) -> String;
    fn schema(&self) -> Json;
    fn takes(&self) -> String;
    fn is_scalar(&self) -> bool;
}

struct TypedField<D, T> {
    getter: fn(&D) -> &T,
    reach: fn(&mut D) -> &mut T,
    kind: Box<dyn SettingKind<T>>,
}

impl<D: 'static, T: Clone + Send + Sync + 'static> SettingField<D> for TypedField<D, T> {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<Patch<D>> {
        let (value, reach) = (self.kind.read(node, cx)?, self.reach);
        Some(Arc::new(move |draft| value.clone_into(reach(draft))))
    }

    fn show(&self, draft: &D) -> String {
        self.kind.show((self.getter)(draft))
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

/// Reads the settings of a table, and reports names that are not settings.
///
/// `title` is the name of the table in messages. `others` are the names that are allowed beside the settings.
pub(crate) fn read_table<D: 'static>(
    settings: &[Setting<D>],
    title: &str,
    allows: impl Fn(&Setting<D>) -> bool,
    table: &ConfigTable,
    others: &[&str],
    cx: &mut ReadContext<'_>,
) -> Vec<WrittenSetting<D>> {
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
            let known_names =
                settings.iter().map(|setting| first_part(setting.path)).chain(others.iter().copied());
            unknown(settings, title, entry, known_names, cx);
        }
    }
    // The order of the table, in which a general setting comes before the particular ones.
    written.sort_by_key(|one| one.setting);
    report_contradictions(settings, title, &written, cx);
    written
}

fn read_section<D: 'static>(
    settings: &[Setting<D>],
    title: &str,
    allows: &impl Fn(&Setting<D>) -> bool,
    section: &TableEntry,
    written: &mut Vec<WrittenSetting<D>>,
    cx: &mut ReadContext<'_>,
) {
    let key = &section.key;
    let Some(table) = section.node.table() else {
        let message = format!("`{key}` is a section, not {}", section.node.describe());
        let name = names_below(settings, key).next().unwrap_or_default();
        cx.refuse(
            &section.node.place,
            message,
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
    entry: &TableEntry,
    written: &mut Vec<WrittenSetting<D>>,
    cx: &mut ReadContext<'_>,
) {
    let Some((index, setting)) = settings.iter().enumerate().find(|(_, setting)| setting.path == path) else {
        return;
    };
    cx.name = path.to_owned();
    if !allows(setting) {
        let word = if title.starts_with('[') { "in" } else { "at" };
        let message = format!("`{path}` cannot stand {word} {title}");
        let help = "it is a promise about particular tools: write it in `[tools.\"server/tool\"]`";
        cx.refuse(&entry.key_place, message, help);
        return;
    }
    if let Some(patch) = setting.read(&entry.node, cx) {
        written.push(WrittenSetting { setting: index, place: entry.key_place.clone(), patch });
    }
}

fn unknown<'n, D>(
    settings: &'n [Setting<D>],
    title: &str,
    entry: &TableEntry,
    known_names: impl Iterator<Item = &'n str>,
    cx: &mut ReadContext<'_>,
) {
    let key = &entry.key;
    let mut known_names: Vec<&str> = known_names.collect();
    known_names.sort_unstable();
    known_names.dedup();
    let elsewhere =
        || settings.iter().find(|setting| last_part(setting.path) == *key).map(|setting| setting.path);
    let help = if let Some(name) = nearest(key, known_names.iter().copied()) {
        format!("did you mean `{name}`?")
    } else if let Some(path) = elsewhere() {
        match path == key {
            true => format!("`{key}` belongs one level up, outside of the section"),
            false => format!("there is a setting `{path}`; did you mean that?"),
        }
    } else {
        format!("there are {}", list(&known_names))
    };
    cx.refuse(&entry.key_place, format!("`{key}` is not a setting of {title}"), help);
}

fn report_contradictions<D>(
    settings: &[Setting<D>],
    title: &str,
    written: &[WrittenSetting<D>],
    cx: &mut ReadContext<'_>,
) {
    let path = |one: &WrittenSetting<D>| settings.get(one.setting).map_or("", |setting| setting.path);
    for one in written {
        let excludes = settings.get(one.setting).map_or(&[][..], |setting| setting.excludes);
        if let Some(other) = written.iter().find(|other| excludes.contains(&path(other))) {
            let (this, that) = (path(one), path(other));
            let message = format!("`{this}` and `{that}` are both in {title}");
            cx.refuse(
                &one.place,
                message,
                format!("keep one of them; `{that}` is at {}", other.place.written()),
            );
        }
    }
}

/// Returns the names of the settings in a section.
fn names_below<'n, D>(settings: &'n [Setting<D>], section: &str) -> impl Iterator<Item = &'n str> {
    settings.iter().filter_map(move |setting| setting.path.strip_prefix(section)?.strip_prefix('.'))
}

/// Returns the title of a section: `[retry]`, or `[tools."bank/pay".retry]` within that rule.
fn within(title: &str, section: &str) -> String {
    match title.strip_prefix('[').and_then(|title| title.strip_suffix(']')) {
        Some(outer) => format!("[{outer}.{section}]"),
        None => format!("[{section}]"),
    }
}

pub(crate) fn first_part(path: &str) -> &str {
    path.split('.').next().unwrap_or_default()
}

pub(crate) fn list(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
