//! Redaction of JSON as JSON: the text around a masked part stays unchanged and valid.

use std::borrow::Cow;
use std::ops::Range;

use steadfast_json::{JsonKind, JsonValue};

use super::{ELLIPSIS, MASK, is_secret_name, names, scan, shapes, up_to, within};

/// Returns the text of a whole document without its secrets, or `None` if it has none.
pub(super) fn redact(root: JsonValue<'_>, nested_texts: u8) -> Option<String> {
    let mut edits = DocumentEdits { nested_texts, done: Vec::new() };
    edits.value(root, None);
    edits.applied_to(root)
}

/// Returns the text of a Steadfast response without secrets in the names that callers chose, or `None` if it has none.
pub(super) fn response(root: JsonValue<'_>) -> Option<String> {
    let mut edits = DocumentEdits { nested_texts: 0, done: Vec::new() };
    edits.chosen_names(root, None);
    edits.applied_to(root)
}

/// Returns a redacted summary of a value, as JSON of at most `most` bytes.
pub(super) fn summary(value: JsonValue<'_>, most: usize) -> String {
    let mut out = String::new();
    summarise(value, None, most, MAX_SUMMARY_DEPTH, &mut out);
    out
}

/// The replacements in the text of a document, in the order of the text.
struct DocumentEdits {
    nested_texts: u8,
    done: Vec<(Range<usize>, String)>,
}

impl DocumentEdits {
    /// Returns the text of a document with all replacements, or `None` if there are none.
    fn applied_to(&self, root: JsonValue<'_>) -> Option<String> {
        if self.done.is_empty() {
            return None;
        }
        let offset = root.span().start;
        let text = root.raw();
        let mut out = String::with_capacity(text.len());
        let mut copied_to = 0;
        for (place, replacement) in &self.done {
            let (start, end) = (place.start - offset, place.end - offset);
            out.push_str(text.get(copied_to..start).unwrap_or_default());
            out.push_str(replacement);
            copied_to = end;
        }
        out.push_str(text.get(copied_to..).unwrap_or_default());
        Some(out)
    }

    /// `field` is the name of the field that contains the value, if it holds a name that a caller chose.
    fn chosen_names(&mut self, value: JsonValue<'_>, field: Option<&str>) {
        match value.kind() {
            JsonKind::Null | JsonKind::Bool(_) | JsonKind::Number(_) => {}
            JsonKind::String(text) => {
                let Some(field) = field.filter(|_| !is_own_id(&text)) else { return };
                if let Cow::Owned(redacted) = within(&text, Some(field), self.nested_texts) {
                    self.done.push((value.span(), quoted(&redacted)));
                }
            }
            JsonKind::Array(items) => items.for_each(|item| self.chosen_names(item, field)),
            JsonKind::Object(members) => {
                for (name, member) in members {
                    self.chosen_names(member, Some(&*name).filter(|name| names::holds_a_chosen_name(name)));
                }
            }
        }
    }

    fn value(&mut self, value: JsonValue<'_>, label: Option<&str>) {
        match value.kind() {
            JsonKind::Null | JsonKind::Bool(_) => {}
            JsonKind::Number(digits) if is_card(digits) => self.mask(value),
            JsonKind::Number(_) => {}
            JsonKind::String(text) => {
                if let Cow::Owned(redacted) = within(&text, label, self.nested_texts) {
                    self.done.push((value.span(), quoted(&redacted)));
                }
            }
            JsonKind::Array(items) => {
                let mut secrets = SecretItems::of(value);
                for item in items {
                    if secrets.is_secret(item) { self.mask(item) } else { self.value(item, None) }
                }
            }
            JsonKind::Object(members) => {
                let named = names_a_secret(value);
                let mut before = value.span().start + 1;
                let mut masked_names = 0;
                for (name, member) in members {
                    let masked = matches!(scan::scan(&name, None), Cow::Owned(_));
                    if masked {
                        masked_names += 1;
                        self.name(value, before..member.span().start, masked_names);
                    }
                    if is_secret_member(&name, named) {
                        self.mask(member);
                    } else {
                        // A second redaction does not see a masked name.
                        self.value(member, Some(name.as_ref()).filter(|_| !masked));
                    }
                    before = member.span().end;
                }
            }
        }
    }

    fn mask(&mut self, value: JsonValue<'_>) {
        if is_worth_masking(value) {
            self.done.push((value.span(), quoted(MASK)));
        }
    }

    /// Replaces a name that is itself a secret. `gap` is the text between the neighbours, with the name in it.
    fn name(&mut self, object: JsonValue<'_>, gap: Range<usize>, number: usize) {
        let offset = object.span().start;
        let text = object.raw().get(gap.start - offset..gap.end - offset).unwrap_or_default();
        let (Some(open), Some(close)) = (text.find('"'), text.rfind('"')) else {
            return;
        };
        // Two masked names must differ, because a reader would refuse an object with two equal names.
        let name = if number > 1 { format!("{MASK} {number}") } else { MASK.to_owned() };
        self.done.push((gap.start + open..gap.start + close + 1, quoted(&name)));
    }
}

fn summarise(value: JsonValue<'_>, label: Option<&str>, most: usize, depth: usize, out: &mut String) {
    match value.kind() {
        JsonKind::Null | JsonKind::Bool(_) => out.push_str(value.raw()),
        JsonKind::Number(digits) if is_card(digits) => out.push_str(&quoted(MASK)),
        JsonKind::Number(digits) if digits.len() <= MAX_SUMMARY_NUMBER => out.push_str(digits),
        JsonKind::Number(digits) => out.push_str(&quoted(&short(digits, None))),
        JsonKind::String(text) => out.push_str(&quoted(&short(&text, label))),
        JsonKind::Array(items) => {
            let mut secrets = SecretItems::of(value);
            let parts = items.map(|item| (None, item, secrets.is_secret(item)));
            container(['[', ']'], parts, most, depth, out);
        }
        JsonKind::Object(members) => {
            let named = names_a_secret(value);
            let parts = members.map(|(name, member)| {
                let secret = is_secret_member(&name, named);
                (Some(name), member, secret)
            });
            container(['{', '}'], parts, most, depth, out);
        }
    }
}

/// Writes as many parts as fit, and the number of those that did not.
fn container<'d>(
    [open, close]: [char; 2],
    parts: impl Iterator<Item = (Option<Cow<'d, str>>, JsonValue<'d>, bool)>,
    most: usize,
    depth: usize,
    out: &mut String,
) {
    out.push(open);
    let begin = out.len();
    let limit = begin.saturating_add(most).saturating_sub(RESERVED);
    let (mut written, mut left_out) = (0_usize, 0_usize);
    for (name, value, secret) in parts {
        if left_out > 0 || written == MAX_SUMMARY_PARTS || depth == 0 {
            left_out += 1;
            continue;
        }
        let before = out.len();
        if written > 0 {
            out.push(',');
        }
        if let Some(name) = &name {
            out.push_str(&quoted(&short(name, None)));
            out.push(':');
        }
        if secret && is_worth_masking(value) {
            out.push_str(&quoted(MASK));
        } else {
            summarise(value, name.as_deref(), limit.saturating_sub(out.len()), depth - 1, out);
        }
        if out.len() > limit {
            out.truncate(before);
            left_out += 1;
        } else {
            written += 1;
        }
    }
    if left_out > 0 {
        let comma = if written > 0 { "," } else { "" };
        let name = if open == '{' { "\"…\":" } else { "" };
        out.push_str(&format!("{comma}{name}\"{left_out} more\""));
    }
    out.push(close);
}

/// Returns the beginning of a string, redacted before it is cut.
fn short(text: &str, label: Option<&str>) -> String {
    let window = up_to(text, MAX_SUMMARY_STRING * 8);
    let redacted = within(window, label, 1);
    if redacted.len() <= MAX_SUMMARY_STRING && window.len() == text.len() {
        return redacted.into_owned();
    }
    format!("{}{ELLIPSIS}", up_to(&redacted, MAX_SUMMARY_STRING))
}

/// The items of an array that are secret because of the item before them.
struct SecretItems {
    pair: bool,
    announced: bool,
}

impl SecretItems {
    fn of(array: JsonValue<'_>) -> Self {
        Self { pair: array.item(1).is_some() && array.item(2).is_none(), announced: false }
    }

    /// Returns true if the item is secret. Must be called for every item in order: `["--token", "…"]` and
    /// `["Authorization", "…"]`.
    fn is_secret(&mut self, item: JsonValue<'_>) -> bool {
        let text = item.as_str().unwrap_or_default();
        let flag = is_plain_name(&text)
            && text.starts_with("--")
            && matches!(scan::scan(&text, None), Cow::Borrowed(_));
        let secret = self.announced && !flag;
        let name = is_plain_name(&text) && (self.pair || text.starts_with('-'));
        self.announced = !secret && name && is_secret_name(&text);
        secret
    }
}

/// Returns true if an object is a name and a value, and the name is that of a secret: `{"name": "Authorization",
/// "value": "…"}`.
fn names_a_secret(object: JsonValue<'_>) -> bool {
    ["name", "key", "header"]
        .iter()
        .filter_map(|field| object.get(field)?.as_str())
        .any(|name| is_plain_name(&name) && is_secret_name(&name))
}

/// Returns true if a text is only a name. A text with a mask in it is not, so that decisions by name are made the first
/// time.
fn is_plain_name(text: &str) -> bool {
    text.len() <= 64
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b' '))
}

fn is_secret_member(name: &str, named: bool) -> bool {
    is_secret_name(name) || (named && name.eq_ignore_ascii_case("value"))
}

/// Returns true for ids that Steadfast made. They are hexadecimal and not secret.
fn is_own_id(text: &str) -> bool {
    text.len() <= MAX_OWN_ID && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

/// Returns true if these digits are a payment card number: the length, the prefix and the check digit fit.
fn is_card(digits: &str) -> bool {
    shapes::card_number(digits.as_bytes()) == Some(digits.len())
}

/// Returns false for null, booleans and empty containers, which reveal nothing, and for a mask.
fn is_worth_masking(value: JsonValue<'_>) -> bool {
    match value.kind() {
        JsonKind::Null | JsonKind::Bool(_) => false,
        JsonKind::Number(_) => true,
        JsonKind::String(text) => !text.is_empty() && text != MASK,
        JsonKind::Array(mut items) => items.next().is_some(),
        JsonKind::Object(mut members) => members.next().is_some(),
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The maximum length of ids that Steadfast makes.
const MAX_OWN_ID: usize = 64;
/// The maximum number of parts of one container in a summary.
const MAX_SUMMARY_PARTS: usize = 16;
/// The maximum depth of containers in a summary.
const MAX_SUMMARY_DEPTH: usize = 4;
/// The maximum bytes of one string in a summary.
const MAX_SUMMARY_STRING: usize = 96;
/// The maximum digits of one number in a summary.
const MAX_SUMMARY_NUMBER: usize = 40;
/// Space for the closing bracket and the note about left-out parts.
const RESERVED: usize = 48;
