//! JSON in the configuration files of clients: with comments and trailing commas (VS Code), and with unquoted names,
//! single quotes and everything else of JSON5 (OpenClaw).
//!
//! The reader of the core is strict on purpose. This reader can be lenient: the text stays as it is, so text that the
//! client does not understand is neither improved nor damaged.

use jsonc_parser::ast::Value;
use jsonc_parser::common::{Range, Ranged as _};
use jsonc_parser::{CollectOptions, ParseOptions};

use super::tree::{SpannedNode, SpannedValue, SyntaxError, TableMember};

/// Parses a text. An empty text is an empty table, as for the clients.
pub(super) fn read(text: &str) -> Result<SpannedNode, SyntaxError> {
    let body = text.strip_prefix('\u{feff}').unwrap_or(text);
    let shift = text.len() - body.len();
    let options = ParseOptions { allow_missing_commas: false, ..ParseOptions::default() };
    match jsonc_parser::parse_to_ast(body, &CollectOptions::default(), &options) {
        Ok(parsed) => Ok(match parsed.value {
            Some(root) => node(&root, shift),
            None => SpannedNode { span: 0..text.len(), value: SpannedValue::Table(Vec::new()) },
        }),
        Err(error) => {
            let message = format!("this is not JSON: {}", error.kind());
            Err(SyntaxError::new(error.range().start + shift, message))
        }
    }
}

fn node(value: &Value<'_>, shift: usize) -> SpannedNode {
    let read = match value {
        Value::StringLit(text) => SpannedValue::Text(text.value.to_string()),
        Value::NumberLit(_) => SpannedValue::Other("a number"),
        Value::BooleanLit(_) => SpannedValue::Other("a boolean"),
        Value::NullKeyword(_) => SpannedValue::Other("null"),
        Value::Array(list) => {
            SpannedValue::List(list.elements.iter().map(|item| node(item, shift)).collect())
        }
        Value::Object(table) => SpannedValue::Table(
            table
                .properties
                .iter()
                .map(|member| TableMember {
                    name: member.name.as_str().to_owned(),
                    name_span: moved(member.name.range(), shift),
                    node: node(&member.value, shift),
                })
                .collect(),
        ),
    };
    SpannedNode { span: moved(value.range(), shift), value: read }
}

fn moved(range: Range, shift: usize) -> std::ops::Range<usize> {
    range.start + shift..range.end + shift
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::import::tree::member;

    fn text_of<'n>(root: &'n SpannedNode, name: &str) -> &'n str {
        member(root.members().unwrap(), name).unwrap().unwrap().node.text().unwrap()
    }

    #[test]
    fn comments_commas_at_the_end_and_json5_are_understood() {
        let text = "\u{feff}// top\n{ /* a */ plain: 'it''s'.length }";
        assert!(read(text).is_err(), "but it is no JavaScript");
        let text = "// top\n{ plain: 'say \"hi\"', /* , } */ \"b\\u0062\": \"\\ud83d\\ude00\\x41\\\n!\", $n: +.5e3,\n list: [1, 0xff, null, true, -Infinity,], }\n// end";
        let root = read(text).unwrap();
        assert_eq!(text_of(&root, "plain"), "say \"hi\"");
        assert_eq!(text_of(&root, "bb"), "\u{1f600}A!");
        let list = member(root.members().unwrap(), "list").unwrap().unwrap();
        assert_eq!(&text[list.node.span.clone()], "[1, 0xff, null, true, -Infinity,]");
        assert_eq!(list.node.list().unwrap().len(), 5);
    }

    #[test]
    fn invalid_json_is_refused_with_its_position() {
        for (text, offset) in [
            ("{\"a\": 1 \"b\": 2}", 7),
            ("{\"a\": }", 6),
            ("{\"a\" 1}", 5),
            ("{\"a\": \"b}", 6),
            ("{\"a\": 1} x", 9),
            ("{\"a\": /* 1}", 6),
            ("{\"a\": /*/ 1}", 6),
            ("{\"a\": [1, 2}", 11),
            ("{\"a\": yes}", 6),
            ("{\"a\": \"\\u12\"}", 7),
            ("{,}", 1),
            ("{", 0),
        ] {
            assert_eq!(read(text).unwrap_err().offset, offset, "{text}");
        }
    }

    #[test]
    fn depth_is_bounded_and_half_of_a_pair_is_refused() {
        assert!(read(&"[".repeat(1 << 20)).unwrap_err().message.contains("depth"));
        assert!(read(r#"{"a": "\ud83dx"}"#).unwrap_err().message.contains("surrogate"));
    }

    #[test]
    fn nothing_is_a_table_without_members() {
        for empty in ["", " \n", "// nothing yet\n"] {
            assert_eq!(read(empty).unwrap().members().unwrap().len(), 0);
        }
    }
}
