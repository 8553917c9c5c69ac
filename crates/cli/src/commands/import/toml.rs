//! TOML, as Codex writes it.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::tree::{SpannedNode, SpannedValue, SyntaxError, TableMember};

/// Parses a text.
pub(super) fn read(text: &str) -> Result<SpannedNode, SyntaxError> {
    let body = text.strip_prefix('\u{feff}').unwrap_or(text);
    let shift = text.len() - body.len();
    let (root, errors) = DeTable::parse_recoverable(body);
    match errors.first() {
        Some(error) => {
            let offset = error.span().unwrap_or_default().start + shift;
            Err(SyntaxError::new(
                offset,
                format!("this is not TOML: {}", steadfast_redact::text(error.message())),
            ))
        }
        None => Ok(SpannedNode { span: 0..text.len(), value: table(root.get_ref(), shift) }),
    }
}

fn table(table: &DeTable<'_>, shift: usize) -> SpannedValue {
    let mut members: Vec<_> = table
        .iter()
        .map(|(key, value)| TableMember {
            name: key.get_ref().to_string(),
            name_span: moved(key.span(), shift),
            node: node(value, shift),
        })
        .collect();
    // Restores the order of the text. The map has another order.
    members.sort_by_key(|member| member.name_span.start);
    SpannedValue::Table(members)
}

fn node(value: &Spanned<DeValue<'_>>, shift: usize) -> SpannedNode {
    let read = match value.get_ref() {
        DeValue::String(text) => SpannedValue::Text(text.to_string()),
        DeValue::Integer(_) | DeValue::Float(_) => SpannedValue::Other("a number"),
        DeValue::Boolean(_) => SpannedValue::Other("a boolean"),
        DeValue::Datetime(_) => SpannedValue::Other("a date"),
        DeValue::Array(items) => SpannedValue::List(items.iter().map(|item| node(item, shift)).collect()),
        DeValue::Table(inner) => table(inner, shift),
    };
    SpannedNode { span: moved(value.span(), shift), value: read }
}

fn moved(span: Range<usize>, shift: usize) -> Range<usize> {
    span.start + shift..span.end + shift
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::import::tree::member;

    #[test]
    fn keys_and_values_have_byte_spans() {
        let text =
            "\u{feff}[mcp_servers.\"a b\"]\r\ncommand = 'npx' # why\r\nargs = [\"-y\", # yes\r\n  \"x\"]\r\n";
        let root = read(text).unwrap();
        let servers = member(root.members().unwrap(), "mcp_servers").unwrap().unwrap();
        let server = member(servers.node.members().unwrap(), "a b").unwrap().unwrap();
        let [command, args] = server.node.members().unwrap() else { panic!("{server:?}") };
        assert_eq!(&text[command.name_span.clone()], "command");
        assert_eq!(&text[command.node.span.clone()], "'npx'");
        assert_eq!(&text[args.node.span.clone()], "[\"-y\", # yes\r\n  \"x\"]");
        let items: Vec<_> = args.node.list().unwrap().iter().map(|item| &text[item.span.clone()]).collect();
        assert_eq!(items, ["\"-y\"", "\"x\""]);
    }
}
