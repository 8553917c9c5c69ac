//! JSON in the configuration files of clients: with comments and trailing commas (VS Code), and with unquoted names,
//! single quotes and everything else of JSON5 (OpenClaw).
//!
//! The reader of the core is strict on purpose. This reader can be lenient: the text stays as it is, so text that the
//! client does not understand is neither improved nor damaged.

use super::tree::{SpannedNode, SpannedValue, SyntaxError, TableMember};

/// Maximum nesting depth.
const MOST_DEPTH: usize = 128;

/// Parses a text. An empty text is an empty table, as for the clients.
pub(super) fn read(text: &str) -> Result<SpannedNode, SyntaxError> {
    let mut reader = Json5Parser { text, at: 0 };
    reader.blanks()?;
    if reader.peek().is_none() {
        return Ok(SpannedNode { span: 0..text.len(), value: SpannedValue::Table(Vec::new()) });
    }
    let root = reader.value(MOST_DEPTH)?;
    reader.blanks()?;
    match reader.peek() {
        None => Ok(root),
        Some(_) => Err(reader.mistake("there is text after the end")),
    }
}

struct Json5Parser<'t> {
    text: &'t str,
    at: usize,
}

impl Json5Parser<'_> {
    fn value(&mut self, depth: usize) -> Result<SpannedNode, SyntaxError> {
        let start = self.at;
        let value = match self.peek() {
            None => return Err(self.mistake("it ends where a value is expected")),
            Some('{' | '[') if depth == 0 => return Err(self.mistake("it is nested too deeply")),
            Some('{') => self.table(depth - 1)?,
            Some('[') => self.list(depth - 1)?,
            Some('"' | '\'') => SpannedValue::Text(self.string()?),
            Some(_) => self.word()?,
        };
        Ok(SpannedNode { span: start..self.at, value })
    }

    fn table(&mut self, depth: usize) -> Result<SpannedValue, SyntaxError> {
        self.bump();
        let mut members = Vec::new();
        loop {
            self.blanks()?;
            if self.take('}') {
                return Ok(SpannedValue::Table(members));
            }
            let start = self.at;
            let name = match self.peek() {
                Some('"' | '\'') => self.string()?,
                Some(_) | None => self.name()?,
            };
            let name_span = start..self.at;
            self.blanks()?;
            if !self.take(':') {
                return Err(self.mistake("a colon is missing after a name"));
            }
            self.blanks()?;
            members.push(TableMember { name, name_span, node: self.value(depth)? });
            self.blanks()?;
            if !self.take(',') && self.peek() != Some('}') {
                return Err(self.mistake("a comma or a closing brace is missing"));
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<SpannedValue, SyntaxError> {
        self.bump();
        let mut items = Vec::new();
        loop {
            self.blanks()?;
            if self.take(']') {
                return Ok(SpannedValue::List(items));
            }
            items.push(self.value(depth)?);
            self.blanks()?;
            if !self.take(',') && self.peek() != Some(']') {
                return Err(self.mistake("a comma or a closing bracket is missing"));
            }
        }
    }

    fn string(&mut self) -> Result<String, SyntaxError> {
        let start = self.at;
        let unended = || SyntaxError::new(start, "a text without an end begins here");
        let quote = self.bump().ok_or_else(unended)?;
        let mut text = String::new();
        loop {
            match self.bump().ok_or_else(unended)? {
                '\n' => return Err(unended()),
                '\\' => self.escape(&mut text)?,
                end if end == quote => return Ok(text),
                other => text.push(other),
            }
        }
    }

    fn escape(&mut self, text: &mut String) -> Result<(), SyntaxError> {
        let escaped = self.bump();
        match escaped {
            None => return Err(self.mistake("it ends within a text")),
            Some('b') => text.push('\u{8}'),
            Some('f') => text.push('\u{c}'),
            Some('n') => text.push('\n'),
            Some('r') => text.push('\r'),
            Some('t') => text.push('\t'),
            Some('v') => text.push('\u{b}'),
            Some('0') => text.push('\0'),
            Some('x') => {
                let code = self.digits(2)?;
                text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            Some('u') => {
                let code = self.unicode()?;
                text.push(code);
            }
            // A line continuation.
            Some('\n') => {}
            Some('\r') => {
                self.take('\n');
            }
            Some(itself) => text.push(itself),
        }
        Ok(())
    }

    /// Parses the digits after `\u`, and the other half of a surrogate pair.
    fn unicode(&mut self) -> Result<char, SyntaxError> {
        let code = self.digits(4)?;
        let before = self.at;
        if (0xd800..0xdc00).contains(&code) && self.take('\\') && self.take('u') {
            let low = self.digits(4)?;
            if (0xdc00..0xe000).contains(&low) {
                let pair = 0x1_0000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                return Ok(char::from_u32(pair).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
        }
        if char::from_u32(code).is_none() {
            self.at = before;
        }
        Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn digits(&mut self, count: usize) -> Result<u32, SyntaxError> {
        let code = self.text.get(self.at..self.at + count);
        // `from_str_radix` would accept a sign.
        let code = code.filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let code = code.and_then(|code| u32::from_str_radix(code, 16).ok());
        let code = code.ok_or_else(|| self.mistake("an escape has too few digits"))?;
        self.at += count;
        Ok(code)
    }

    /// Parses an unquoted name.
    fn name(&mut self) -> Result<String, SyntaxError> {
        let start = self.at;
        while self.peek().is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$') {
            self.bump();
        }
        match self.text.get(start..self.at) {
            Some(name) if !name.is_empty() => Ok(name.to_owned()),
            Some(_) | None => Err(self.mistake("a name in quotes is missing")),
        }
    }

    /// Parses an unquoted value.
    fn word(&mut self) -> Result<SpannedValue, SyntaxError> {
        let start = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '+' | '-' | '.')) {
            self.bump();
        }
        let word = self.text.get(start..self.at).unwrap_or_default();
        let number = word.trim_start_matches(['+', '-']);
        match word {
            "true" | "false" => Ok(SpannedValue::Other("a boolean")),
            "null" => Ok(SpannedValue::Other("null")),
            _ if number == "Infinity" || number == "NaN" => Ok(SpannedValue::Other("a number")),
            _ if number.starts_with(|c: char| c.is_ascii_digit() || c == '.') => {
                Ok(SpannedValue::Other("a number"))
            }
            _ => Err(SyntaxError::new(start, "a value is missing or is not in quotes")),
        }
    }

    /// White space and comments.
    fn blanks(&mut self) -> Result<(), SyntaxError> {
        loop {
            let rest = self.text.get(self.at..).unwrap_or_default();
            if rest.starts_with("//") {
                self.at += rest.find('\n').unwrap_or(rest.len());
            } else if rest.starts_with("/*") {
                let end = rest.get(2..).and_then(|inner| inner.find("*/"));
                self.at += end.ok_or_else(|| self.mistake("a comment without an end begins here"))? + 4;
            } else if self.peek().is_some_and(|c| c.is_whitespace() || c == '\u{feff}') {
                self.bump();
            } else {
                return Ok(());
            }
        }
    }

    fn peek(&self) -> Option<char> {
        self.text.get(self.at..)?.chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.bump();
        }
        found
    }

    fn mistake(&self, what: &str) -> SyntaxError {
        SyntaxError::new(self.at, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::tree::member;

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
            ("{\"a\": 1 \"b\": 2}", 8),
            ("{\"a\": }", 6),
            ("{\"a\" 1}", 5),
            ("{\"a\": \"b}", 6),
            ("{\"a\": 1} x", 9),
            ("{\"a\": /* 1}", 6),
            ("{\"a\": /*/ 1}", 6),
            ("{\"a\": [1, 2}", 11),
            ("{\"a\": yes}", 6),
            ("{\"a\": \"\\u12\"}", 9),
            ("{,}", 1),
            ("{", 1),
        ] {
            assert_eq!(read(text).unwrap_err().offset, offset, "{text}");
        }
    }

    #[test]
    fn depth_is_bounded_and_halves_of_a_pair_do_not_break_it() {
        assert!(read(&"[".repeat(1 << 20)).unwrap_err().what.contains("deeply"));
        let root = read(r#"{"a": "\ud83dx", "b": "\ud83d\u0041"}"#).unwrap();
        assert_eq!((text_of(&root, "a"), text_of(&root, "b")), ("\u{fffd}x", "\u{fffd}A"));
    }

    #[test]
    fn nothing_is_a_table_without_members() {
        for empty in ["", " \n", "// nothing yet\n"] {
            assert_eq!(read(empty).unwrap().members().unwrap().len(), 0);
        }
    }
}
