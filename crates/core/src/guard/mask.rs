//! Masking of an error text: removes the parts that change from call to call.

use super::text::beginning;

/// Returns the error text with its variable parts masked, so that `request 123 failed` equals `request 124 failed`.
///
/// - Every word with a digit in it becomes `#`: numbers, sizes, durations, ids, UUIDs, hashes, addresses,
///   timestamps. Several that are joined by punctuation (`10:30:45.007`, `10.0.0.1:80`) become one.
/// - A word of eight or more hex letters becomes `#`: a hash may happen to have no digit.
/// - A number after `status`, `http`, `code`, `errno`, `exit` or `signal` stays: 404 and 500 are two errors.
/// - An absolute path becomes `<path>`, also within a URL: temporary files get a new name each time.
/// - Letters become lowercase, and runs of white space become one space.
///
/// Masking may make two different errors equal. That does little harm, because identical failures must also have the
/// same tool and the same arguments. Only the beginning of a very long text is used.
pub fn mask(message: &str) -> String {
    let beginning = beginning(message, LONGEST);
    let mut masked = MaskedText { text: String::with_capacity(beginning.len().min(256)), named: false };
    let mut rest = beginning;
    while let Some(first) = rest.chars().next() {
        let taken = if first.is_whitespace() {
            masked.space();
            first.len_utf8()
        } else if is_word(first) {
            let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            masked.word(rest.get(..length).unwrap_or(rest));
            length
        } else if let Some(length) = path_length(rest).filter(|_| masked.may_start_path()) {
            masked.path();
            length
        } else {
            let length = first.len_utf8();
            masked.small_letters(rest.get(..length).unwrap_or(rest));
            length
        };
        rest = rest.get(taken..).unwrap_or("");
    }
    masked.text.truncate(masked.text.trim_end().len());
    masked.text
}

struct MaskedText {
    text: String,
    /// True if the last word gives meaning to the number after it.
    named: bool,
}

impl MaskedText {
    fn space(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with(' ') {
            self.text.push(' ');
        }
    }

    fn word(&mut self, word: &str) {
        let is_named_number = self.named && word.len() <= 5 && word.bytes().all(|b| b.is_ascii_digit());
        let looks_random = word.bytes().any(|b| b.is_ascii_digit())
            || (word.len() >= 8 && word.bytes().all(|b| b.is_ascii_hexdigit()));
        if looks_random && !is_named_number {
            self.number();
        } else {
            self.small_letters(word);
        }
        self.named = NAMES.iter().any(|name| word.eq_ignore_ascii_case(name));
    }

    /// Appends text in lowercase. Every failure passes here, and most of its text is ASCII, which is copied as a whole.
    fn small_letters(&mut self, text: &str) {
        if text.is_ascii() {
            let start = self.text.len();
            self.text.push_str(text);
            if let Some(added) = self.text.get_mut(start..) {
                added.make_ascii_lowercase();
            }
        } else {
            self.text.extend(text.chars().flat_map(char::to_lowercase));
        }
    }

    /// Appends a masked number. A number that continues another one (`#:` before it) is merged into it.
    fn number(&mut self) {
        let joint =
            self.text.strip_suffix(['.', ':', ',', '/', '+']).is_some_and(|before| before.ends_with('#'));
        if joint {
            self.text.pop();
        } else if !self.text.ends_with('#') {
            self.text.push('#');
        }
    }

    fn path(&mut self) {
        self.named = false;
        self.text.push_str("<path>");
    }

    /// Returns true if a path may start here. A slash within a word (`and/or`) starts none.
    fn may_start_path(&self) -> bool {
        !self.text.ends_with(|c: char| is_word(c) || c == '#' || c == '>')
    }
}

/// Returns the length of the absolute path at the start of the text, if it has more than one part.
fn path_length(text: &str) -> Option<usize> {
    if !text.starts_with('/') {
        return None;
    }
    let length =
        text.find(|c: char| c.is_whitespace() || "\"'`<>()[]{},;|".contains(c)).unwrap_or(text.len());
    let path = text.get(..length)?.trim_end_matches(['.', ':']);
    (path.matches('/').count() >= 2).then_some(path.len())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '-'
}

/// Words before a number that has a meaning of its own.
const NAMES: [&str; 6] = ["status", "http", "code", "errno", "exit", "signal"];
/// Maximum length of a text that is used, in bytes.
const LONGEST: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accidents_do_not_make_an_error_another_one() {
        for (one, another) in [
            ("request 123 failed", "request 124 failed"),
            ("Request  1 failed\n", "request 2 failed"),
            ("id 6f1c2a9e-93b0-4c55-8a1e-000000000001 gone", "id 00000000-93b0-4c55-8a1e-00000000abcd gone"),
            ("object deadbeef missing", "object 0badcafe missing"),
            ("at 2026-11-05T10:30:45.007Z: no", "at 2026-11-05T10:30:46Z: no"),
            ("connect 10.0.0.1:8080 refused", "connect 10.0.0.27:443 refused"),
            ("took 1.5s, limit 1,000", "took 17s, limit 2"),
            ("cannot open '/tmp/abcdef/x'", "cannot open '/tmp/ghijkl/x'"),
            ("cannot open /tmp/abc/x: gone", "cannot open /tmp/def/x: gone"),
            ("GET https://host/one/two failed", "GET https://host/three/four failed"),
            ("0x7ffe12 is bad", "0x7fff99 is bad"),
        ] {
            assert_eq!(mask(one), mask(another), "{one:?} and {another:?}");
        }
    }

    #[test]
    fn errors_with_different_texts_are_distinct() {
        for (one, another) in [
            ("missing required parameter: path", "missing required parameter: oldText"),
            ("permission denied", "not found"),
            ("HTTP 404", "HTTP 500"),
            ("exit code 1", "exit code 2"),
            ("status: 404", "permission: 404"),
            ("yes and/or no", "yes or no"),
            ("", "something"),
        ] {
            assert_ne!(mask(one), mask(another), "{one:?} and {another:?}");
        }
    }

    #[test]
    fn the_masked_text_is_readable() {
        assert_eq!(
            mask("Request req_42 to  10.0.0.1:80 failed after 1.5 s: open '/tmp/a/b': HTTP 503"),
            "request # to # failed after # s: open '<path>': http 503"
        );
        assert_eq!(mask("Ошибка 5: файл"), "ошибка #: файл");
    }

    #[test]
    fn a_slash_within_a_word_starts_no_path() {
        assert_eq!(mask("either/or/both"), "either/or/both");
        assert_eq!(mask("1/a/b"), "#/a/b");
        assert_eq!(mask("<b>/a/b"), "<b>/a/b");
        assert_eq!(mask("in /a/b"), "in <path>");
    }

    #[test]
    fn a_huge_text_is_cut_at_a_character() {
        let huge = "é".repeat(LONGEST);
        assert_eq!(mask(&huge).len(), LONGEST);
        assert_eq!(mask(&"/".repeat(100_000)), "<path>");
    }

    #[test]
    fn any_text_is_masked_within_bounds() {
        proptest::proptest!(|(text in "[a-fA-F0-9 /:.,'#<>_é\u{130}-]{0,60}|\\PC{0,60}")| {
            let masked = mask(&text);
            proptest::prop_assert!(masked.len() <= 3 * text.len() + 6, "{text:?} became {masked:?}");
            proptest::prop_assert!(!masked.contains("  "));
        });
    }
}
