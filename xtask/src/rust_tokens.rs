//! The words and signs of a Rust source, its comments and its string literals.

/// A word, a number, `::`, or one other character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SourceToken<'t> {
    pub(crate) text: &'t str,
    pub(crate) line: usize,
}

impl SourceToken<'_> {
    pub(crate) fn is_word(&self) -> bool {
        self.text.starts_with(is_word_character)
    }
}

/// A part of a source, with the text as it is written. All parts together are the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SourcePiece<'t> {
    pub(crate) kind: SourcePieceKind,
    pub(crate) text: &'t str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SourcePieceKind {
    Token,
    /// A comment or documentation.
    Comment,
    /// A string literal with its quotes.
    StringLiteral,
    /// White space, a literal of one character, or a lifetime.
    Other,
}

/// Returns the tokens of a text.
pub(crate) fn tokens(text: &str) -> Vec<SourceToken<'_>> {
    let mut tokens = Vec::new();
    let mut line = 1;
    for SourcePiece { kind, text } in pieces(text) {
        if kind == SourcePieceKind::Token {
            tokens.push(SourceToken { text: text.strip_prefix("r#").unwrap_or(text), line });
        }
        line += text.matches('\n').count();
    }
    tokens
}

/// Splits a text into its parts.
pub(crate) fn pieces(text: &str) -> Vec<SourcePiece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (kind, length) = match skipped(rest) {
            Some(skipped) => skipped,
            None if is_word_character(first) => (SourcePieceKind::Token, word(rest)),
            None if rest.starts_with("::") => (SourcePieceKind::Token, 2),
            None => (SourcePieceKind::Token, first.len_utf8()),
        };
        let (text, after) = rest.split_at(length);
        pieces.push(SourcePiece { kind, text });
        rest = after;
    }
    pieces
}

/// Returns the length of the white space, comment, literal or lifetime at the beginning of a text.
fn skipped(text: &str) -> Option<(SourcePieceKind, usize)> {
    use SourcePieceKind::{Comment, Other, StringLiteral};
    let first = text.chars().next()?;
    match first {
        _ if first.is_whitespace() => Some((Other, first.len_utf8())),
        '/' if text.starts_with("//") => Some((Comment, text.find('\n').unwrap_or(text.len()))),
        '/' if text.starts_with("/*") => Some((Comment, block_comment(text))),
        '"' => Some((StringLiteral, quoted(text, '"'))),
        '\'' => {
            let mut after = text.chars().skip(1);
            let is_character = after.next() == Some('\\') || after.next() == Some('\'');
            Some((Other, if is_character { quoted(text, '\'') } else { 1 + word(text.get(1..)?) }))
        }
        'b' | 'c' | 'r' => {
            let prefix = text.find(|character| !matches!(character, 'b' | 'c' | 'r'))?;
            let (prefix, literal) = text.split_at(prefix);
            let (kind, length) = match literal.chars().next()? {
                '"' | '#' if prefix.ends_with('r') => (StringLiteral, raw(literal)?),
                '"' => (StringLiteral, quoted(literal, '"')),
                '\'' if prefix == "b" => (Other, quoted(literal, '\'')),
                _ => return None,
            };
            Some((kind, prefix.len() + length))
        }
        _ => None,
    }
}

/// Returns the length of a comment that may contain others.
fn block_comment(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0_u32);
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        if rest.starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest.starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Returns the length of a literal with escapes.
fn quoted(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if character == quote => return at + character.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

/// Returns the length of a raw string after its `r`. A raw identifier is none.
fn raw(text: &str) -> Option<usize> {
    let hashes = text.find(|character| character != '#')?;
    text.get(hashes..)?.strip_prefix('"')?;
    let end = format!("\"{}", text.get(..hashes)?);
    let body = text.get(hashes + 1..)?;
    Some(body.find(&end).map_or(text.len(), |at| hashes + 1 + at + end.len()))
}

/// Returns the length of the word at the beginning of a text. Raw identifiers have `r#` before them.
fn word(text: &str) -> usize {
    let prefix = if text.starts_with("r#") { 2 } else { 0 };
    let rest = text.get(prefix..).unwrap_or_default();
    prefix + rest.find(|character| !is_word_character(character)).unwrap_or(rest.len())
}

fn is_word_character(character: char) -> bool {
    character == '_' || character.is_alphanumeric()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_literals_and_lifetimes_are_not_tokens() {
        let text = r###"a /* b /* c */ d */ "e \" f" r#"g " h"# b"i" b'j' 'k' '\'' '"' &'static l // m
            r#type::n '\u{1f}' br##"o"#"## "p
q" r"###;
        let words: Vec<_> = tokens(text).into_iter().map(|token| (token.text, token.line)).collect();
        assert_eq!(words, [("a", 1), ("&", 1), ("l", 1), ("type", 2), ("::", 2), ("n", 2), ("r", 3)]);
    }

    #[test]
    fn comments_and_strings_are_parts_of_their_own_and_nothing_is_lost() {
        let text = "f(\"a \\\" b\", 'c', r#\"d\"#); // e\n/// g\n/* h */ i";
        let of_kind = |kind| -> Vec<_> {
            pieces(text).into_iter().filter(|piece| piece.kind == kind).map(|piece| piece.text).collect()
        };
        assert_eq!(of_kind(SourcePieceKind::StringLiteral), ["\"a \\\" b\"", "r#\"d\"#"]);
        assert_eq!(of_kind(SourcePieceKind::Comment), ["// e", "/// g", "/* h */"]);
        assert_eq!(pieces(text).iter().map(|piece| piece.text).collect::<String>(), text);
    }
}
