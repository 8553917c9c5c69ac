//! Shapes of dangerous commands, as they are written.
//!
//! ```toml
//! [[shapes.add]]
//! name     = "drop-database"
//! programs = ["psql", "mysql"]
//! options  = [["-c", "--command"]]
//! words    = ["DROP"]
//! ```

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use serde_json::{Value as Json, json};
use steadfast_core::classify::danger::{
    CommandShape, DangerousShapes, OperandRequirement, RequiredPrivileges,
};

use crate::diagnostics::nearest;
use crate::kind::{ListKind, OptionalKind, PlainText, SettingKind, Text, WordKind};
use crate::node::ConfigNode;
use crate::read_context::ReadContext;
use crate::setting::{Setting, list, read_table, setting};

/// Maximum number of shapes that can be added.
const MOST: usize = 64;

/// Name of a built-in shape.
pub(crate) struct ShapeName;

impl SettingKind<Arc<str>> for ShapeName {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<Arc<str>> {
        let names = names();
        let found = node.text().filter(|text| names.iter().any(|name| name == text));
        if found.is_none() {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let help = match node.text().and_then(|text| nearest(text, names.iter().copied())) {
                Some(name) => format!("did you mean {name:?}?"),
                None => format!("there are {}", list(&names)),
            };
            cx.wrong(node, &self.takes(), help);
        }
        found.map(Arc::from)
    }

    fn show(&self, value: &Arc<str>) -> String {
        format!("{value:?}")
    }

    fn takes(&self) -> String {
        "the name of a shape of a dangerous command".to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "enum": names() })
    }
}

fn names() -> Vec<String> {
    let shapes = DangerousShapes::default();
    let mut names: Vec<String> = shapes.names().map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

/// Shapes that are added to the table.
pub(crate) struct NewShapes;

#[derive(Clone, Debug)]
struct ShapeDraft {
    name: Option<String>,
    programs: Arc<[String]>,
    options: Arc<[Arc<[String]>]>,
    target: PlainTarget,
    words: Arc<[String]>,
    rights: RequiredPrivileges,
}

fn shape_settings() -> &'static [Setting<ShapeDraft>] {
    static SETTINGS: LazyLock<Vec<Setting<ShapeDraft>>> = LazyLock::new(|| {
        const TARGETS: WordKind<PlainTarget> = WordKind(&[
            ("anything", PlainTarget::Anything),
            ("system_folder", PlainTarget::SystemFolder),
            ("device", PlainTarget::Device),
        ]);
        const RIGHTS: WordKind<RequiredPrivileges> =
            WordKind(&[("any", RequiredPrivileges::Any), ("elevated", RequiredPrivileges::Elevated)]);
        let word = || PlainText(Text { most: 256 });
        let words = move |least| ListKind { item: word(), least, most: 32 };
        vec![
            setting!(
                ShapeDraft,
                "name",
                name,
                OptionalKind(PlainText(Text { most: 64 })),
                "The name of the shape in messages."
            ),
            setting!(
                ShapeDraft,
                "programs",
                programs,
                words(1),
                "The programs, without folder; a trailing `*` stands for any end."
            ),
            setting!(
                ShapeDraft,
                "options",
                options,
                ListKind { item: words(1), least: 0, most: 16 },
                "Of each group one option must be given; letters also within others (`-rf` has `-r`)."
            ),
            setting!(ShapeDraft, "target", target, TARGETS, "The target that one of the operands must have."),
            setting!(
                ShapeDraft,
                "words",
                words,
                words(1),
                "Words of which one must be an operand, instead of `target`."
            )
            .excludes(&["target"]),
            setting!(
                ShapeDraft,
                "rights",
                rights,
                RIGHTS,
                "The rights that make it dangerous: any, or only elevated ones, such as with sudo."
            ),
        ]
    });
    &SETTINGS
}

/// A target without words of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlainTarget {
    Anything,
    SystemFolder,
    Device,
}

impl SettingKind<Arc<[CommandShape]>> for NewShapes {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<Arc<[CommandShape]>> {
        let Some(items) = node.items().filter(|items| items.len() <= MOST) else {
            cx.wrong(node, &self.takes(), "write each shape as `[[shapes.add]]` with its settings below");
            return None;
        };
        let count = items.len();
        let shapes: Vec<CommandShape> = items.iter().filter_map(|item| read_shape(item, cx)).collect();
        (shapes.len() == count).then(|| shapes.into())
    }

    fn show(&self, value: &Arc<[CommandShape]>) -> String {
        format!("[{}]", value.iter().map(|shape| &*shape.name).collect::<Vec<_>>().join(", "))
    }

    fn takes(&self) -> String {
        format!("up to {MOST} shapes, each a table")
    }

    fn schema(&self) -> Json {
        json!({ "type": "array", "maxItems": MOST, "items": crate::object_schema::object_schema(shape_settings()) })
    }

    fn is_scalar(&self) -> bool {
        false
    }
}

fn read_shape(node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<CommandShape> {
    let Some(table) = node.table() else {
        cx.wrong(node, "shapes, each a table", "write `{ name = \"…\", programs = [\"…\"] }`");
        return None;
    };
    let before = cx.problems.len();
    let outer = cx.name.clone();
    let written = read_table(shape_settings(), "a shape", |_| true, table, &[], cx);
    cx.name = outer;
    let mut draft = ShapeDraft {
        name: None,
        programs: Arc::default(),
        options: Arc::default(),
        target: PlainTarget::Anything,
        words: Arc::default(),
        rights: RequiredPrivileges::Any,
    };
    for one in &written {
        (one.patch)(&mut draft);
    }
    let name = draft.name.filter(|_| !draft.programs.is_empty());
    if name.is_none() && cx.problems.len() == before {
        let message = "a shape has a `name` and `programs`";
        cx.refuse(&node.place, message, "add `name = \"…\"` and `programs = [\"…\"]`");
    }
    let owned = |texts: &[String]| texts.iter().cloned().map(Cow::Owned).collect::<Vec<Cow<'static, str>>>();
    Some(CommandShape {
        name: Cow::Owned(name?),
        programs: owned(&draft.programs),
        options: draft.options.iter().map(|group| owned(group)).collect(),
        target: match draft.target {
            _ if !draft.words.is_empty() => OperandRequirement::Words(owned(&draft.words)),
            PlainTarget::Anything => OperandRequirement::Anything,
            PlainTarget::SystemFolder => OperandRequirement::SystemFolder,
            PlainTarget::Device => OperandRequirement::Device,
        },
        rights: draft.rights,
    })
}
