//! Hints for invalid arguments, based on the tool's own schema.
//!
//! A model that only gets "invalid arguments" sends the same arguments again. With the missing members, the sent types
//! and the expected types it usually succeeds with the next call.
//!
//! This is not a JSON Schema validator. It checks `type`, `required`, `enum` and `additionalProperties: false` in an
//! object and a few levels below it, because models get these wrong. It ignores the rest (`$ref`, `anyOf`, `pattern`,
//! ranges, …). So arguments without a problem may still be refused by the tool, but arguments with a problem are wrong
//! under any reading of the schema.

use std::fmt::{self, Write as _};

use steadfast_json::{JsonKind, JsonValue};

use super::text::beginning;

/// A violation of the schema in the arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentProblem {
    /// Path of the value, as a JSON Pointer. Empty for the arguments as a whole.
    pub at: String,
    /// The violation.
    pub wrong: SchemaViolation,
}

/// A kind of schema violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchemaViolation {
    /// A required member is missing.
    Missing {
        /// The description of the member in the schema.
        expected: String,
    },
    /// The value has another type.
    Type {
        /// The description of the value in the schema.
        expected: String,
        /// The type that was sent.
        sent: &'static str,
    },
    /// The value is not one of the allowed values.
    NotOneOf {
        /// The allowed values.
        allowed: String,
    },
    /// The schema has no such member and allows no others.
    Unexpected,
}

impl fmt::Display for ArgumentProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.at.is_empty() { "the arguments" } else { self.at.trim_start_matches('/') };
        match &self.wrong {
            SchemaViolation::Missing { expected } => write!(f, "\"{place}\" is missing ({expected})"),
            SchemaViolation::Type { expected, sent } if self.at.is_empty() => {
                write!(f, "{place} are {sent} instead of {expected}")
            }
            SchemaViolation::Type { expected, sent } => {
                write!(f, "\"{place}\" is {sent} instead of {expected}")
            }
            SchemaViolation::NotOneOf { allowed } => write!(f, "\"{place}\" is not one of {allowed}"),
            SchemaViolation::Unexpected => write!(f, "\"{place}\" is not known to the tool"),
        }
    }
}

/// Returns the first few violations of the schema in these arguments. The argument `injected` may be missing, because
/// it is added before the tool gets the arguments.
pub fn check_arguments(
    schema: JsonValue<'_>,
    arguments: JsonValue<'_>,
    injected: Option<&str>,
) -> Vec<ArgumentProblem> {
    let mut search = SchemaCheck { at: String::new(), problems: Vec::new(), injected };
    search.visit(schema, arguments, DEEPEST);
    search.problems
}

/// Returns the hint for a model whose arguments were refused: the problems, the arguments sent, the arguments expected.
///
/// It names the members and types of the arguments sent, never their values. `message` is the error message of the
/// tool. Members mentioned in it are described first. Names come from outside, so the caller redacts the text like any
/// other.
pub fn hint(schema: JsonValue<'_>, sent: JsonValue<'_>, message: &str, injected: Option<&str>) -> String {
    let problems = check_arguments(schema, sent, injected);
    let mut text = String::new();
    if !problems.is_empty() {
        let listed: Vec<String> = problems.iter().map(ArgumentProblem::to_string).collect();
        // Writing to a string cannot fail, here and below.
        let _ = write!(text, "What is wrong: {}. ", listed.join("; "));
    }
    let _ = write!(
        text,
        "You sent: {}. The schema wants: {}.",
        outline(sent),
        list_members(schema, &problems, message)
    );
    let cut = beginning(&text, LONGEST_HINT);
    if cut.len() < text.len() {
        let length = cut.len();
        text.truncate(length);
        text.push('…');
    }
    text
}

struct SchemaCheck<'a> {
    at: String,
    problems: Vec<ArgumentProblem>,
    injected: Option<&'a str>,
}

impl SchemaCheck<'_> {
    fn visit(&mut self, schema: JsonValue<'_>, value: JsonValue<'_>, levels: usize) {
        // The target of a reference is elsewhere, and older drafts ignore its siblings.
        if schema.get("$ref").is_some() || schema.get("$dynamicRef").is_some() || self.is_full() {
            return;
        }
        if !has_declared_type(schema, value) {
            let wrong = SchemaViolation::Type { expected: describe(schema), sent: type_name(value) };
            return self.report(wrong);
        }
        if let Some(allowed) = schema.get("enum").filter(|allowed| !is_one_of(*allowed, value)) {
            return self.report(SchemaViolation::NotOneOf { allowed: list_of(allowed) });
        }
        let Some(levels) = levels.checked_sub(1) else { return };
        match value.kind() {
            JsonKind::Object(_) => self.visit_object(schema, value, levels),
            JsonKind::Array(items) => {
                let Some(schema) = schema.get("items") else { return };
                for (index, item) in items.take(MOST_MEMBERS).enumerate() {
                    self.below(&index.to_string(), |search| search.visit(schema, item, levels));
                }
            }
            JsonKind::Null | JsonKind::Bool(_) | JsonKind::Number(_) | JsonKind::String(_) => {}
        }
    }

    fn visit_object(&mut self, schema: JsonValue<'_>, object: JsonValue<'_>, levels: usize) {
        let properties = schema.get("properties");
        let property = |name: &str| properties.and_then(|properties| properties.get(name));
        for name in items(schema.get("required")).take(MOST_MEMBERS).filter_map(JsonValue::as_str) {
            let is_injected = self.at.is_empty() && self.injected == Some(&*name);
            if object.get(&name).is_none() && !is_injected {
                let expected = property(&name).map_or_else(|| "anything".to_owned(), describe);
                self.below(&name, |search| search.report(SchemaViolation::Missing { expected }));
            }
        }
        let closed = schema
            .get("additionalProperties")
            .is_some_and(|more| matches!(more.kind(), JsonKind::Bool(false)))
            && schema.get("patternProperties").is_none();
        let JsonKind::Object(members) = object.kind() else { return };
        for (name, value) in members.take(MOST_MEMBERS) {
            match property(&name) {
                Some(schema) => self.below(&name, |search| search.visit(schema, value, levels)),
                None if closed => self.below(&name, |search| search.report(SchemaViolation::Unexpected)),
                None => {}
            }
        }
    }

    fn below(&mut self, name: &str, visit: impl FnOnce(&mut Self)) {
        let length = self.at.len();
        self.at.push('/');
        self.at.push_str(&shown(name).replace('~', "~0").replace('/', "~1"));
        visit(self);
        self.at.truncate(length);
    }

    fn report(&mut self, wrong: SchemaViolation) {
        if !self.is_full() {
            self.problems.push(ArgumentProblem { at: self.at.clone(), wrong });
        }
    }

    fn is_full(&self) -> bool {
        self.problems.len() >= MOST_PROBLEMS
    }
}

/// Returns true if a value has a type of the schema. An unknown type allows any value.
fn has_declared_type(schema: JsonValue<'_>, value: JsonValue<'_>) -> bool {
    let nullable = schema.get("nullable").is_some_and(|flag| matches!(flag.kind(), JsonKind::Bool(true)));
    if nullable && matches!(value.kind(), JsonKind::Null) {
        return true;
    }
    let Some(declared) = schema.get("type") else { return true };
    match declared.kind() {
        JsonKind::String(name) => is_of_type(value, &name),
        JsonKind::Array(mut names) => {
            names.any(|name| name.as_str().is_none_or(|name| is_of_type(value, &name)))
        }
        JsonKind::Null | JsonKind::Bool(_) | JsonKind::Number(_) | JsonKind::Object(_) => true,
    }
}

fn is_of_type(value: JsonValue<'_>, name: &str) -> bool {
    match name {
        "null" => matches!(value.kind(), JsonKind::Null),
        "boolean" => matches!(value.kind(), JsonKind::Bool(_)),
        "number" => matches!(value.kind(), JsonKind::Number(_)),
        "integer" => matches!(value.kind(), JsonKind::Number(digits) if is_whole(digits)),
        "string" => matches!(value.kind(), JsonKind::String(_)),
        "array" => matches!(value.kind(), JsonKind::Array(_)),
        "object" => matches!(value.kind(), JsonKind::Object(_)),
        _ => true,
    }
}

/// Returns true for an integer of JSON Schema, which includes `1.0` and `1e3`.
fn is_whole(digits: &str) -> bool {
    !digits.contains(['.', 'e', 'E']) || digits.parse::<f64>().is_ok_and(|number| number.fract() == 0.0)
}

fn type_name(value: JsonValue<'_>) -> &'static str {
    match value.kind() {
        JsonKind::Null => "null",
        JsonKind::Bool(_) => "boolean",
        JsonKind::Number(_) => "number",
        JsonKind::String(_) => "string",
        JsonKind::Array(_) => "array",
        JsonKind::Object(_) => "object",
    }
}

fn is_one_of(allowed: JsonValue<'_>, value: JsonValue<'_>) -> bool {
    match allowed.kind() {
        JsonKind::Array(mut values) => values.any(|allowed| is_equal(allowed, value)),
        JsonKind::Null
        | JsonKind::Bool(_)
        | JsonKind::Number(_)
        | JsonKind::String(_)
        | JsonKind::Object(_) => true,
    }
}

/// Returns true if two values may be equal. Of containers only the kind is compared: an `enum` of containers is rare,
/// and in doubt the tool decides.
fn is_equal(one: JsonValue<'_>, another: JsonValue<'_>) -> bool {
    match (one.kind(), another.kind()) {
        (JsonKind::Null, JsonKind::Null)
        | (JsonKind::Array(_), JsonKind::Array(_))
        | (JsonKind::Object(_), JsonKind::Object(_)) => true,
        (JsonKind::Bool(one), JsonKind::Bool(another)) => one == another,
        (JsonKind::String(one), JsonKind::String(another)) => one == another,
        (JsonKind::Number(one), JsonKind::Number(another)) => {
            one == another || one.parse::<f64>() == another.parse::<f64>()
        }
        (
            JsonKind::Null
            | JsonKind::Bool(_)
            | JsonKind::Number(_)
            | JsonKind::String(_)
            | JsonKind::Array(_)
            | JsonKind::Object(_),
            JsonKind::Null
            | JsonKind::Bool(_)
            | JsonKind::Number(_)
            | JsonKind::String(_)
            | JsonKind::Array(_)
            | JsonKind::Object(_),
        ) => false,
    }
}

/// Returns a short description of a schema: its values if it lists them, else its type.
fn describe(schema: JsonValue<'_>) -> String {
    if let Some(allowed) = schema.get("enum") {
        return format!("one of {}", list_of(allowed));
    }
    let Some(declared) = schema.get("type") else { return "any type".to_owned() };
    match declared.kind() {
        JsonKind::String(name) => shown(&name),
        JsonKind::Array(names) => {
            let names: Vec<String> =
                names.take(MOST_LISTED).filter_map(JsonValue::as_str).map(|name| shown(&name)).collect();
            names.join(" or ")
        }
        JsonKind::Null | JsonKind::Bool(_) | JsonKind::Number(_) | JsonKind::Object(_) => {
            "any type".to_owned()
        }
    }
}

fn list_of(values: JsonValue<'_>) -> String {
    let mut listed: Vec<String> =
        items(Some(values)).take(MOST_LISTED + 1).map(|value| shown(value.raw())).collect();
    if listed.len() > MOST_LISTED {
        listed.truncate(MOST_LISTED);
        listed.push("…".to_owned());
    }
    listed.join(", ")
}

/// Returns the names and types of the arguments sent.
fn outline(sent: JsonValue<'_>) -> String {
    let JsonKind::Object(mut members) = sent.kind() else { return type_name(sent).to_owned() };
    let listed: Vec<String> = members
        .by_ref()
        .take(MOST_LISTED)
        .map(|(name, value)| format!("{}: {}", shown(&name), type_name(value)))
        .collect();
    if listed.is_empty() {
        return "an empty object".to_owned();
    }
    let more = if members.next().is_some() { ", …" } else { "" };
    format!("{{{}{more}}}", listed.join(", "))
}

/// Returns the members in the schema: first those with a problem, then those mentioned in the tool's message, then the
/// required ones, then the others.
fn list_members(schema: JsonValue<'_>, problems: &[ArgumentProblem], message: &str) -> String {
    let Some(JsonKind::Object(members)) = schema.get("properties").map(JsonValue::kind) else {
        return describe(schema);
    };
    let required: Vec<_> =
        items(schema.get("required")).take(MOST_MEMBERS).filter_map(JsonValue::as_str).collect();
    let mut ranked: Vec<(u8, String)> = members
        .take(MOST_MEMBERS)
        .map(|(name, member)| {
            let is_required = required.contains(&name);
            let has_problem = problems.iter().any(|problem| problem.at.split('/').nth(1) == Some(&name));
            let rank = match (has_problem, mentions(message, &name), is_required) {
                (true, _, _) => 0,
                (false, true, _) => 1,
                (false, false, true) => 2,
                (false, false, false) => 3,
            };
            let duty = if is_required { ", required" } else { "" };
            (rank, format!("{} ({}{duty})", shown(&name), describe(member)))
        })
        .collect();
    if ranked.is_empty() {
        return "an empty object".to_owned();
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    let more = if ranked.len() > MOST_LISTED { ", …" } else { "" };
    let listed: Vec<String> = ranked.into_iter().take(MOST_LISTED).map(|(_, member)| member).collect();
    format!("{}{more}", listed.join(", "))
}

/// Returns true if the message has the name as a separate word.
fn mentions(message: &str, name: &str) -> bool {
    beginning(message, LONGEST_HINT)
        .split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-')
        .any(|word| word == name)
}

fn items(list: Option<JsonValue<'_>>) -> impl Iterator<Item = JsonValue<'_>> {
    let items = match list.map(JsonValue::kind) {
        Some(JsonKind::Array(items)) => Some(items),
        Some(
            JsonKind::Null
            | JsonKind::Bool(_)
            | JsonKind::Number(_)
            | JsonKind::String(_)
            | JsonKind::Object(_),
        )
        | None => None,
    };
    items.into_iter().flatten()
}

/// Returns a name or value from outside, shortened and on one line.
fn shown(text: &str) -> String {
    let short = beginning(text, LONGEST_NAME);
    let mut clean: String = short.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if short.len() < text.len() {
        clean.push('…');
    }
    clean
}

/// Maximum depth of the schema check.
const DEEPEST: usize = 4;
/// Maximum number of problems in a hint.
const MOST_PROBLEMS: usize = 8;
/// Maximum number of members, items or required names of one value that are checked.
const MOST_MEMBERS: usize = 256;
/// Maximum number of names or values in one list.
const MOST_LISTED: usize = 12;
/// Maximum length of one name or value, in bytes.
const LONGEST_NAME: usize = 64;
/// Maximum length of a hint, in bytes.
const LONGEST_HINT: usize = 1500;

#[cfg(test)]
mod tests {
    use steadfast_json::{JsonDocument, JsonLimits};

    use super::*;

    const READ: &str = r#"{"type":"object","required":["path"],"additionalProperties":false,"properties":{
        "offset":{"type":"integer"},"path":{"type":"string"},"mode":{"enum":["text","binary"]},
        "limit":{"type":["integer","null"]},"edits":{"type":"array","items":{"type":"object","required":["oldText"]}}}}"#;

    fn with<R>(schema: &str, arguments: &str, check: impl FnOnce(JsonValue<'_>, JsonValue<'_>) -> R) -> R {
        let schema = JsonDocument::parse(schema.as_bytes(), JsonLimits::ENVELOPE).unwrap();
        let arguments = JsonDocument::parse(arguments.as_bytes(), JsonLimits::ENVELOPE).unwrap();
        check(schema.root(), arguments.root())
    }

    fn problems(schema: &str, arguments: &str) -> Vec<String> {
        with(schema, arguments, |schema, sent| check_arguments(schema, sent, None))
            .iter()
            .map(ArgumentProblem::to_string)
            .collect()
    }

    #[test]
    fn an_argument_that_the_tool_is_given_by_others_may_be_missing_and_must_fit_where_it_is_sent() {
        let schema = r#"{"type":"object","properties":{"key":{"type":"string"},"in":{"required":["key"]}},
            "required":["key","id"]}"#;
        let found = |arguments: &str| -> Vec<String> {
            let problems = with(schema, arguments, |schema, sent| check_arguments(schema, sent, Some("key")));
            problems.iter().map(ArgumentProblem::to_string).collect()
        };
        assert_eq!(found(r#"{"id":"a"}"#), [""; 0]);
        assert_eq!(found("{}"), [r#""id" is missing (anything)"#]);
        assert_eq!(found(r#"{"id":"a","key":7}"#), [r#""key" is number instead of string"#]);
        assert_eq!(found(r#"{"id":"a","in":{}}"#), [r#""in/key" is missing (anything)"#]);
    }

    #[test]
    fn arguments_are_checked_for_common_errors_of_models() {
        for (arguments, found) in [
            (r#"{"path":"a"}"#, &[][..]),
            (r#"{"path":"a","limit":null,"offset":1.0,"mode":"text"}"#, &[]),
            ("{}", &[r#""path" is missing (string)"#]),
            ("null", &["the arguments are null instead of object"]),
            (r#"{"path":1}"#, &[r#""path" is number instead of string"#]),
            (r#"{"path":"a","offset":1.5}"#, &[r#""offset" is number instead of integer"#]),
            (r#"{"path":"a","mode":"hex"}"#, &[r#""mode" is not one of "text", "binary""#]),
            (r#"{"path":"a","file":"b"}"#, &[r#""file" is not known to the tool"#]),
            (r#"{"path":"a","edits":[{"oldText":"x"},{}]}"#, &[r#""edits/1/oldText" is missing (anything)"#]),
            (r#"{"file":"b"}"#, &[r#""path" is missing (string)"#, r#""file" is not known to the tool"#]),
        ] {
            assert_eq!(problems(READ, arguments), found, "{arguments}");
        }
    }

    #[test]
    fn unknown_schema_keywords_are_ignored() {
        for (schema, arguments) in [
            ("true", "{}"),
            ("{}", "null"),
            (r##"{"$ref":"#/x","required":["a"],"type":"string"}"##, "{}"),
            (r#"{"type":"file"}"#, "{}"),
            (r#"{"type":"object","required":true}"#, "{}"),
            (r#"{"type":"object","anyOf":[{"required":["a"]}]}"#, "{}"),
            (r#"{"additionalProperties":false,"patternProperties":{"^x":{}}}"#, r#"{"xa":1}"#),
            (r#"{"properties":{"a":{"type":"string","nullable":true}}}"#, r#"{"a":null}"#),
            (r#"{"properties":{"a":{"enum":[1]}}}"#, r#"{"a":1.0}"#),
            (r#"{"properties":{"a":{"enum":[{"b":1}]}}}"#, r#"{"a":{"b":2}}"#),
            (r#"{"required":["a"]}"#, "[]"),
        ] {
            assert_eq!(problems(schema, arguments), [""; 0], "{schema} {arguments}");
        }
    }

    #[test]
    fn a_hint_has_the_missing_the_sent_and_the_expected_members() {
        let text = with(READ, r#"{"file":"secret text"}"#, |schema, sent| {
            hint(schema, sent, "Validation failed: offset is odd", None)
        });
        assert_eq!(
            text,
            "What is wrong: \"path\" is missing (string); \"file\" is not known to the tool. \
             You sent: {file: string}. \
             The schema wants: path (string, required), offset (integer), mode (one of \"text\", \"binary\"), \
             limit (integer or null), edits (array)."
        );
        let nothing = with(READ, "{}", |schema, sent| hint(schema, sent, "", None));
        assert!(nothing.contains("You sent: an empty object."), "{nothing}");
        let null = with("true", "null", |schema, sent| hint(schema, sent, "", None));
        assert_eq!(null, "You sent: null. The schema wants: any type.");
    }

    #[test]
    fn every_type_of_json_is_distinct() {
        const VALUES: [(&str, &str); 6] = [
            ("null", "null"),
            ("boolean", "true"),
            ("number", "1.5"),
            ("string", "\"a\""),
            ("array", "[]"),
            ("object", "{}"),
        ];
        for (declared, _) in VALUES {
            for (sent, value) in VALUES {
                let schema = format!(r#"{{"properties":{{"a":{{"type":"{declared}"}}}}}}"#);
                let found = problems(&schema, &format!(r#"{{"a":{value}}}"#));
                let problem = format!(r#""a" is {sent} instead of {declared}"#);
                let expected = if declared == sent { vec![] } else { vec![problem] };
                assert_eq!(found, expected, "{declared} {value}");
            }
        }
    }

    #[test]
    fn a_value_is_one_of_those_that_are_allowed_only_if_it_equals_one() {
        for (allowed, value, is_allowed) in [
            ("[true]", "true", true),
            ("[true]", "false", false),
            ("[1]", "1", true),
            ("[1]", "1.0", true),
            ("[1]", "2", false),
            ("[null]", "null", true),
            ("[null]", "0", false),
        ] {
            let schema = format!(r#"{{"properties":{{"a":{{"enum":{allowed}}}}}}}"#);
            let found = problems(&schema, &format!(r#"{{"a":{value}}}"#));
            assert_eq!(found.is_empty(), is_allowed, "{allowed} {value}");
        }
    }

    #[test]
    fn a_schema_with_a_dynamic_reference_is_not_checked() {
        assert_eq!(problems(r##"{"$dynamicRef":"#x","type":"string"}"##, "{}"), [""; 0]);
    }

    #[test]
    fn up_to_twelve_values_and_members_are_listed_and_the_rest_is_left_out() {
        for (count, is_cut) in [(12, false), (13, true), (20, true)] {
            let numbers: Vec<String> = (0..count).map(|n| n.to_string()).collect();
            let schema = format!(r#"{{"properties":{{"a":{{"enum":[{}]}}}}}}"#, numbers.join(","));
            let listed = format!("{}{}", numbers[..12].join(", "), if is_cut { ", …" } else { "" });
            assert_eq!(problems(&schema, r#"{"a":"x"}"#), [format!(r#""a" is not one of {listed}"#)]);
            let members: Vec<String> = (0..count).map(|n| format!(r#""m{n}":{{}}"#)).collect();
            let schema = format!(r#"{{"properties":{{{}}}}}"#, members.join(","));
            let text = with(&schema, "{}", |schema, sent| hint(schema, sent, "", None));
            let end = if is_cut { "m11 (any type), …." } else { "m11 (any type)." };
            assert!(text.ends_with(end), "{count}: {text}");
        }
    }

    #[test]
    fn members_that_the_tool_mentions_by_name_are_described_first() {
        let schema_part = |message: &str| {
            let text = with(READ, r#"{"path":"a"}"#, |schema, sent| hint(schema, sent, message, None));
            text.split_once("The schema wants: ").map(|(_, schema_part)| schema_part.to_owned()).unwrap()
        };
        for mentions in ["limit is odd", "odd: 'limit'", "which limit?", "args.limit"] {
            assert!(schema_part(mentions).starts_with("limit "), "{mentions}: {}", schema_part(mentions));
        }
        for another in ["", "limits are odd", "no_limit", "the-limit", "edit-limits"] {
            assert!(schema_part(another).starts_with("path "), "{another}: {}", schema_part(another));
        }
    }

    #[test]
    fn a_long_name_is_shown_in_part_and_cut_at_a_character() {
        let name = format!("{}é", "n".repeat(LONGEST_NAME - 1));
        let found = problems(r#"{"additionalProperties":false}"#, &format!(r#"{{"{name}":1,"short":1}}"#));
        let cut = format!(r#""{}…" is not known to the tool"#, "n".repeat(LONGEST_NAME - 1));
        assert_eq!(found, [cut.as_str(), r#""short" is not known to the tool"#]);
    }

    #[test]
    fn a_hint_is_bounded_for_every_schema() {
        let name = "n".repeat(300);
        let members: Vec<String> =
            (0..400).map(|n| format!("\"{name}{n}\":{{\"enum\":[\"{name}\"]}}")).collect();
        let required: Vec<String> = (0..400).map(|n| format!("\"{name}{n}\"")).collect();
        let schema =
            format!("{{\"properties\":{{{}}},\"required\":[{}]}}", members.join(","), required.join(","));
        with(&schema, "{}", |schema, sent| {
            assert_eq!(check_arguments(schema, sent, None).len(), MOST_PROBLEMS);
            assert!(hint(schema, sent, &name, None).len() <= LONGEST_HINT + '…'.len_utf8());
        });
    }
}
