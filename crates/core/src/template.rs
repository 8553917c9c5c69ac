//! Idempotency keys built from arguments: `{invoice}`, `order-{order.id}`.

use serde_json::Value as Json;

use steadfast_json::{JsonDocument, JsonKind, JsonLimits, JsonValue};

/// A template that builds the key of a call from its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyTemplate {
    text: Box<str>,
    parts: Box<[TemplatePart]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Text(Box<str>),
    /// The names that lead to an argument, outermost first.
    Argument(Box<[Box<str>]>),
}

/// The reason why a text is not a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTemplate {
    /// A brace is not closed, or not opened.
    #[error("has an unmatched brace")]
    Brace,
    /// A name is missing between braces, or between dots.
    #[error("has braces without an argument name")]
    NoName,
    /// No argument is named, so all calls would have the same key.
    #[error("names no argument, so all calls would have the same key")]
    Constant,
}

impl KeyTemplate {
    /// Parses a template.
    pub fn parse(text: &str) -> Result<Self, InvalidTemplate> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, behind)) = rest.split_once('{') {
            let (name, after) = behind.split_once('}').ok_or(InvalidTemplate::Brace)?;
            if before.contains('}') || name.contains('{') {
                return Err(InvalidTemplate::Brace);
            }
            let names: Box<[Box<str>]> = name.split('.').map(|part| part.trim().into()).collect();
            if names.iter().any(|part| part.is_empty()) {
                return Err(InvalidTemplate::NoName);
            }
            if !before.is_empty() {
                parts.push(TemplatePart::Text(before.into()));
            }
            parts.push(TemplatePart::Argument(names));
            rest = after;
        }
        if rest.contains('}') {
            return Err(InvalidTemplate::Brace);
        }
        if !rest.is_empty() {
            parts.push(TemplatePart::Text(rest.into()));
        }
        if !parts.iter().any(|part| matches!(part, TemplatePart::Argument(_))) {
            return Err(InvalidTemplate::Constant);
        }
        Ok(Self { text: text.into(), parts: parts.into() })
    }

    /// Returns the template as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the key of a call with these arguments, or the names of the missing arguments. Texts are inserted
    /// unchanged, with `%` and the characters around them escaped, so that no two calls with different arguments have
    /// the same key.
    pub fn fill(&self, arguments: JsonValue<'_>) -> Result<String, Vec<String>> {
        let (mut key, mut missing) = (String::new(), Vec::new());
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => key.push_str(text),
                TemplatePart::Argument(names) => {
                    let found = names.iter().try_fold(arguments, |value, name| value.get(name));
                    match found.and_then(|value| shown(value, self.is_alone())) {
                        Some(text) => key.push_str(&text),
                        None => missing.push(names.join(".")),
                    }
                }
            }
        }
        if missing.is_empty() { Ok(key) } else { Err(missing) }
    }

    /// Returns the key for arguments that are still a text.
    pub fn fill_text(&self, arguments: &str) -> Option<String> {
        let document = JsonDocument::parse(arguments.as_bytes(), JsonLimits::PARAMS).ok()?;
        self.fill(document.root()).ok()
    }

    /// Returns the argument itself, of any type, if the template is a single argument. Otherwise returns the text with
    /// the arguments inserted unchanged, or the names of the missing arguments.
    pub fn fill_value(&self, arguments: &Json) -> Result<Json, Vec<String>> {
        let found = |names: &[Box<str>]| names.iter().try_fold(arguments, |value, name| value.get(&**name));
        if let [TemplatePart::Argument(names)] = &*self.parts {
            return found(names).cloned().ok_or_else(|| vec![names.join(".")]);
        }
        let (mut filled, mut missing) = (String::new(), Vec::new());
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => filled.push_str(text),
                TemplatePart::Argument(names) => match found(names) {
                    Some(Json::String(text)) => filled.push_str(text),
                    Some(value) => filled.push_str(&value.to_string()),
                    None => missing.push(names.join(".")),
                },
            }
        }
        if missing.is_empty() { Ok(filled.into()) } else { Err(missing) }
    }

    /// Returns true if the key is a single argument.
    fn is_alone(&self) -> bool {
        matches!(&*self.parts, [TemplatePart::Argument(_)])
    }
}

/// Returns a value as it appears in a key, or `None` if it cannot.
fn shown(value: JsonValue<'_>, alone: bool) -> Option<String> {
    match value.kind() {
        JsonKind::String(text) if text.trim().is_empty() => None,
        JsonKind::String(text) if alone => Some(text.into_owned()),
        JsonKind::String(text) => {
            let escaped = |sign: char| match sign {
                sign if sign.is_alphanumeric() => sign.to_string(),
                sign => format!("%{:02X}", u32::from(sign)),
            };
            Some(text.chars().map(escaped).collect())
        }
        JsonKind::Number(digits) => Some(digits.to_owned()),
        JsonKind::Bool(flag) => Some(flag.to_string()),
        JsonKind::Null | JsonKind::Array(_) | JsonKind::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(template: &str, arguments: &str) -> Result<String, Vec<String>> {
        let document = JsonDocument::parse(arguments.as_bytes(), JsonLimits::PARAMS).unwrap();
        KeyTemplate::parse(template).unwrap().fill(document.root())
    }

    #[test]
    fn a_key_is_made_of_the_arguments_that_are_named() {
        for (template, arguments, key) in [
            ("{invoice}", r#"{"invoice":"INV-7","amount":3}"#, "INV-7"),
            ("{invoice}", r#"{"invoice":7}"#, "7"),
            ("pay {order.id} for {who}", r#"{"order":{"id":12},"who":"ann"}"#, "pay 12 for ann"),
        ] {
            assert_eq!(filled(template, arguments).as_deref(), Ok(key), "{template}");
        }
        assert_eq!(filled("{a}-{b.c}", r#"{"b":{}}"#), Err(vec!["a".to_owned(), "b.c".to_owned()]));
        for nothing in [r#"{"a":null}"#, r#"{"a":" "}"#, r#"{"a":[1]}"#, r#"{"a":{}}"#, "{}"] {
            assert_eq!(filled("{a}", nothing), Err(vec!["a".to_owned()]), "{nothing}");
        }
    }

    #[test]
    fn two_calls_with_different_arguments_have_two_keys() {
        let keys = [r#"{"a":"x-","b":"y"}"#, r#"{"a":"x","b":"-y"}"#, r#"{"a":"x%2D","b":"y"}"#]
            .map(|arguments| filled("{a}-{b}", arguments).unwrap());
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2], "{keys:?}");
    }

    #[test]
    fn invalid_templates_are_refused() {
        for (text, problem) in [
            ("invoice", InvalidTemplate::Constant),
            ("", InvalidTemplate::Constant),
            ("{invoice", InvalidTemplate::Brace),
            ("invoice}", InvalidTemplate::Brace),
            ("{a{b}}", InvalidTemplate::Brace),
            ("{}", InvalidTemplate::NoName),
            ("{a..b}", InvalidTemplate::NoName),
        ] {
            assert_eq!(KeyTemplate::parse(text).unwrap_err(), problem, "{text}");
        }
    }
}
