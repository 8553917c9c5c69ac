//! The content of JSON strings: escapes.

use std::borrow::Cow;

/// The characters of a string whose escapes are not resolved yet.
///
/// An invalid escape yields its backslash unchanged. The reader accepts no such string.
#[derive(Clone, Debug)]
pub struct DecodedChars<'d>(&'d str);

impl<'d> DecodedChars<'d> {
    /// Returns the characters of the text between the quotes.
    pub fn new(inner: &'d str) -> Self {
        Self(inner)
    }
}

impl Iterator for DecodedChars<'_> {
    type Item = char;
    fn next(&mut self) -> Option<char> {
        let mut rest = self.0.chars();
        let mut character = rest.next()?;
        self.0 = rest.as_str();
        if character == '\\'
            && let Ok((decoded, length)) = escape(self.0.as_bytes())
        {
            character = decoded;
            self.0 = self.0.get(length..).unwrap_or_default();
        }
        Some(character)
    }
}

/// Returns the text between the quotes with its escapes resolved.
pub(super) fn unescape(inner: &str) -> Cow<'_, str> {
    if !inner.contains('\\') {
        return Cow::Borrowed(inner);
    }
    let mut text = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some((before, after)) = rest.split_once('\\') {
        text.push_str(before);
        let (decoded, length) = escape(after.as_bytes()).unwrap_or(('\\', 0));
        text.push(decoded);
        rest = after.get(length..).unwrap_or_default();
    }
    text.push_str(rest);
    Cow::Owned(text)
}

/// An invalid escape, with its offset after the backslash.
pub struct InvalidEscape {
    pub(super) offset: usize,
    pub(super) problem: &'static str,
}

/// Returns the character of an escape and its length. `rest` is the text after the backslash.
pub fn escape(rest: &[u8]) -> Result<(char, usize), InvalidEscape> {
    let bad = |offset, problem| Err(InvalidEscape { offset, problem });
    let decoded = match rest.first() {
        Some(b'"') => '"',
        Some(b'\\') => '\\',
        Some(b'/') => '/',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        Some(b'u') => {
            let Some(first) = four_hex_digits(rest, 1) else {
                return bad(1, "expected four hex digits after \\u");
            };
            if let Some(decoded) = char::from_u32(first) {
                return Ok((decoded, 5));
            }
            // All that is not a character is half of a pair, and only the high half can come first.
            let second = match rest.get(5..7) {
                Some(b"\\u") => four_hex_digits(rest, 7),
                _ => None,
            };
            return match (first, second) {
                (0xD800..=0xDBFF, Some(second @ 0xDC00..=0xDFFF)) => {
                    let number = 0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00);
                    char::from_u32(number).map_or_else(|| bad(0, LONE), |decoded| Ok((decoded, 11)))
                }
                _ => bad(0, LONE),
            };
        }
        _ => return bad(0, "expected one of \" \\ / b f n r t u after a backslash"),
    };
    Ok((decoded, 1))
}

const LONE: &str = "half of a surrogate pair stands alone";

fn four_hex_digits(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..at + 4)?;
    digits.iter().try_fold(0, |number, digit| Some(number << 4 | char::from(*digit).to_digit(16)?))
}
