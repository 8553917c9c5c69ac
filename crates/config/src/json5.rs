//! JSON5 as OpenClaw and editors allow it: JSON with comments, trailing commas, names without quotes, and so on.

use std::borrow::Cow;
use std::ops::Range;

use jsonc_parser::common::Ranged as _;
use jsonc_parser::{CollectOptions, ParseOptions, ast};
use serde::de::IgnoredAny;
use serde_json::{Number, json};

use crate::location::SourceText;

/// Maximum nesting depth of values.
pub(crate) const MOST_DEPTH: usize = 64;

/// Error of a text that is not JSON5, with its position.
pub(crate) struct Json5Error {
    pub(crate) at: Range<usize>,
    pub(crate) message: String,
}

/// Parses a text.
pub(crate) fn parse(text: &str) -> Result<ast::Value<'_>, Json5Error> {
    // Everything of JSON5 is allowed. A missing comma is not part of JSON5 and is usually a mistake.
    let options = ParseOptions { allow_missing_commas: false, ..ParseOptions::default() };
    let wrong = |start: usize, end: usize, message: String| {
        let end = text.len().min(end.max(start + 1));
        Json5Error { at: start.min(end)..end, message }
    };
    match jsonc_parser::parse_to_ast(text, &CollectOptions::default(), &options) {
        Ok(parsed) => parsed.value.ok_or_else(|| wrong(0, 1, "there is nothing in it".to_owned())),
        Err(error) => {
            let message = error.kind().to_string();
            let message =
                message.chars().take(1).flat_map(char::to_lowercase).chain(message.chars().skip(1)).collect();
            Err(wrong(error.range().start, error.range().end, message))
        }
    }
}

/// Parses a number of JSON5: also with a plus sign, in hexadecimal digits, and without digits before or after the
/// point. Returns `None` if the text is not a finite number.
pub(crate) fn number(text: &str) -> Option<Number> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let whole = match hexadecimal {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => digits.parse::<i64>().ok(),
    };
    match whole {
        Some(whole) => Some((sign * whole).into()),
        None => Number::from_f64(text.parse().ok()?),
    }
}

/// Returns the text as plain JSON, with each value in its original line, or an error with line and column.
pub fn plain_json(text: &str) -> Result<Cow<'_, str>, String> {
    if serde_json::from_str::<IgnoredAny>(text).is_ok() {
        return Ok(Cow::Borrowed(text));
    }
    let written = parse(text).and_then(|root| {
        let mut plain = PlainJsonWriter { text, json: String::with_capacity(text.len()), read: 0, column: 0 };
        plain.value(&root, MOST_DEPTH)?;
        Ok(plain.json)
    });
    written.map(Cow::Owned).map_err(|Json5Error { at, message }| {
        let place = SourceText::new("", text).position(at.start);
        format!("line {}, column {}: this is not JSON5: {message}", place.line, place.column)
    })
}

/// Plain JSON that is written while the original text is read.
struct PlainJsonWriter<'t> {
    text: &'t str,
    json: String,
    /// Position in the original text, in bytes.
    read: usize,
    /// Length of the current output line.
    column: usize,
}

impl PlainJsonWriter<'_> {
    fn value(&mut self, value: &ast::Value<'_>, depth: usize) -> Result<(), Json5Error> {
        let (start, end) = (value.range().start, value.range().end);
        let wrong = |message: &str| Json5Error { at: start..end, message: message.to_owned() };
        let within = depth.checked_sub(1).ok_or_else(|| wrong("it is nested too deeply"))?;
        match value {
            ast::Value::StringLit(text) => self.write(start, &json!(text.value).to_string()),
            ast::Value::NumberLit(digits) => {
                let number = number(digits.value).ok_or_else(|| wrong("a number without bounds"))?;
                self.write(start, &number.to_string());
            }
            ast::Value::BooleanLit(truth) => self.write(start, &truth.value.to_string()),
            ast::Value::NullKeyword(_) => self.write(start, "null"),
            ast::Value::Array(list) => {
                self.write(start, "[");
                for (at, item) in list.elements.iter().enumerate() {
                    self.comma(at);
                    self.value(item, within)?;
                }
                self.write(end.saturating_sub(1), "]");
            }
            ast::Value::Object(object) => {
                self.write(start, "{");
                for (at, member) in object.properties.iter().enumerate() {
                    self.comma(at);
                    self.write(member.range.start, &json!(member.name.as_str()).to_string());
                    self.put(":");
                    self.value(&member.value, within)?;
                }
                self.write(end.saturating_sub(1), "}");
            }
        }
        Ok(())
    }

    /// Writes the JSON for the original text at this position.
    fn write(&mut self, at: usize, json: &str) {
        let passed = self.text.get(self.read..at).unwrap_or_default();
        let lines = passed.matches('\n').count();
        if lines > 0 {
            self.json.extend(std::iter::repeat_n('\n', lines));
            self.column = 0;
        }
        let before = self.text.get(..at).unwrap_or_default();
        let column = at - before.rfind('\n').map_or(0, |end| end + 1);
        let missing = column.saturating_sub(self.column);
        self.json.extend(std::iter::repeat_n(' ', missing));
        self.column += missing;
        self.read = at.max(self.read);
        self.put(json);
    }

    fn comma(&mut self, at: usize) {
        if at > 0 {
            self.put(",");
        }
    }

    fn put(&mut self, json: &str) {
        self.json.push_str(json);
        self.column += json.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json5_becomes_json_at_the_same_places() {
        let text = "// of a host\n{ /* two */ \"a\": [1, 2,],\n  b: 'c\"d', 'e': +0x1F,\n  f: null, g: .5, h: 'x\\\n  y', i: true }\n";
        let plain = plain_json(text).unwrap();
        let value: serde_json::Value = serde_json::from_str(&plain).unwrap();
        let expected =
            json!({ "a": [1, 2], "b": "c\"d", "e": 31, "f": null, "g": 0.5, "h": "x  y", "i": true });
        assert_eq!(value, expected, "{plain}");
        for name in ["\"a\"", "[1"] {
            let place =
                |text: &str| text.lines().enumerate().find_map(|(line, text)| Some((line, text.find(name)?)));
            assert_eq!(place(&plain), place(text), "{name} in {plain}");
        }
        assert_eq!(plain.lines().position(|line| line.contains("\"i\"")), Some(4), "{plain}");
    }

    #[test]
    fn json_is_unchanged_and_invalid_text_is_reported_with_its_position() {
        assert!(matches!(plain_json("{\"a\": 1e400}").as_deref(), Ok("{\"a\": 1e400}") | Err(_)));
        assert!(matches!(plain_json("{\"a\": 1}"), Ok(Cow::Borrowed(_))));
        for (text, place) in [
            ("{\n  a: }", "line 2, column 6: "),
            ("", "line 1, column 1: "),
            ("{a: Infinity}", "line 1, column 5: "),
        ] {
            let error = plain_json(text).unwrap_err();
            assert!(error.starts_with(place), "{text}: {error}");
        }
        assert!(plain_json(&format!("{}// deep", "[".repeat(10_000))).is_err());
    }
}
