//! A scanner that masks the secrets of a text in one pass from left to right.
//!
//! The text is split into *blobs*: runs of the characters that tokens, names and paths consist of. Each blob is first
//! checked for tokens. The rest of it may be a name followed by a value, the scheme of a URL, a flag, or the word
//! `Bearer`. A secret is replaced, and the scan continues after it as if the text began there. A second scan of the
//! result sees the same, which makes the scan idempotent. Nothing is examined more than a fixed number of times, which
//! makes it linear.

use std::borrow::Cow;
use std::ops::Range;

use super::{MASK, names, shapes};

/// Masks the secrets of a text. `label` is the name of the field that has the text as its value, if there is one.
pub(super) fn scan<'t>(text: &'t str, label: Option<&str>) -> Cow<'t, str> {
    let mut scanner = SecretScanner {
        text,
        bytes: text.as_bytes(),
        label,
        at: 0,
        word: None,
        last_sign: 0,
        out: None,
        copied_to: 0,
    };
    scanner.run();
    match scanner.out {
        None => Cow::Borrowed(text),
        Some(mut out) => {
            out.push_str(text.get(scanner.copied_to..).unwrap_or_default());
            Cow::Owned(out)
        }
    }
}

struct SecretScanner<'t, 'l> {
    text: &'t str,
    bytes: &'t [u8],
    label: Option<&'l str>,
    /// Position up to which everything is decided.
    at: usize,
    /// The blob before the current one, if no part of it was masked.
    word: Option<Range<usize>>,
    /// Position of the last `@` found, so that it is not searched twice.
    last_sign: usize,
    /// Output so far, once it differs from the text. Covers the text up to `copied_to`.
    out: Option<String>,
    copied_to: usize,
}

impl<'t> SecretScanner<'t, '_> {
    fn run(&mut self) {
        while let Some(byte) = self.byte(self.at) {
            if byte == b'\\' {
                self.at = self.after_escape(self.at);
            } else if self.starts_with(self.at, MASK) {
                self.at += MASK.len();
                self.word = None;
                self.masked_scheme();
            } else if byte == b'-' && self.starts_with(self.at, PEM_BEGIN) && self.private_key() {
                self.word = None;
            } else if is_blob(byte) {
                self.blob();
            } else if let Some(length) = invisible(self.bytes.get(self.at..).unwrap_or_default()) {
                self.escape(length);
            } else {
                self.at += 1;
            }
        }
    }

    fn blob(&mut self) {
        let start = self.at;
        let whole = self.end_of(start, is_blob);
        // A private key may begin right after a word or a token.
        let end = self.before_key(whole);
        let rest = self.tokens(start, end);
        if rest > start {
            self.word = None;
        }
        if self.starts_with(rest.max(end), "://") {
            self.word = None;
            self.url(rest.max(end) + "://".len());
        } else if rest < end {
            self.at = end;
            self.name(rest..end);
        } else {
            self.at = self.end_of_padding(rest);
            self.masked_scheme();
        }
    }

    /// Treats a mask that ends here as the scheme of a URL, if one follows.
    fn masked_scheme(&mut self) {
        if self.starts_with(self.at, "://") {
            self.url(self.at + "://".len());
        }
    }

    /// Returns `end`, or the start of the private key whose first line begins right before it.
    fn before_key(&self, end: usize) -> usize {
        let start = end.saturating_sub(PEM_BEGIN.trim_ascii_end().len());
        let is_key = self.starts_with(start, PEM_BEGIN) && self.end_of_private_key(start).is_some();
        if is_key { start } else { end }
    }

    /// Masks the tokens within a blob. Returns the start of the unmasked rest.
    fn tokens(&mut self, start: usize, end: usize) -> usize {
        let mut from = start;
        let mut at = start;
        while at < end {
            let boundary = at == from || !self.byte(at - 1).is_some_and(|byte| byte.is_ascii_alphanumeric());
            let rest = self.bytes.get(at..).unwrap_or_default();
            let shape = match boundary {
                true => shapes::known_shape(rest).or_else(|| {
                    // The digits of a fraction, or a telephone number.
                    let is_part = at > from && matches!(self.byte(at - 1), Some(b'.' | b'+'));
                    if is_part { None } else { shapes::card_number(rest) }
                }),
                false => None,
            };
            if let Some(length) = shape {
                self.random_parts(from, at);
                from = self.before_key(at + length);
                self.mask(at..from);
                at = from;
            } else {
                at += 1;
            }
        }
        if from >= end { from } else { self.random_parts(from, end) }
    }

    /// Masks random parts between two positions of a blob. Returns the start of the unmasked rest.
    fn random_parts(&mut self, start: usize, end: usize) -> usize {
        let (mut from, mut rest) = (start, start);
        while from < end {
            let piece_end = self.end_within(from, end, |byte| !matches!(byte, b'.' | b'~'));
            rest = self.random_piece(from, piece_end).unwrap_or(rest);
            from = piece_end + 1;
        }
        rest
    }

    /// Masks a piece, which has no dots. It is masked as a whole if it looks random as a whole. Otherwise its parts
    /// between slashes are masked if they look random.
    fn random_piece(&mut self, start: usize, end: usize) -> Option<usize> {
        let mut rest = None;
        let mut from = start;
        'pieces: while from < end {
            from = self.end_within(from, end, |byte| byte == b'/');
            if shapes::is_integrity(self.slice(from, end)) {
                break;
            }
            if self.is_random_whole(from, end) {
                self.mask(from..end);
                return Some(end);
            }
            let mut segment = from;
            while segment < end {
                let segment_end = self.end_within(segment, end, |byte| byte != b'/');
                if shapes::looks_random(self.slice(segment, segment_end), || self.public_hex(segment)) {
                    // From now on, the text before is examined alone.
                    if self.is_random_whole(from, segment) {
                        self.mask(from..segment);
                    }
                    self.mask(segment..segment_end);
                    rest = Some(segment_end);
                    from = segment_end;
                    continue 'pieces;
                }
                segment = segment_end + 1;
            }
            break;
        }
        rest
    }

    fn is_random_whole(&self, start: usize, end: usize) -> bool {
        end.saturating_sub(start) <= MAX_SLASHED
            && shapes::looks_random(self.slice(start, end), || self.public_hex(start))
    }

    /// Returns true if a name before the blob makes hexadecimal harmless.
    fn public_hex(&self, start: usize) -> bool {
        // Directly after a mask no name is left.
        if self.out.is_some() && self.copied_to == start {
            return false;
        }
        match &self.word {
            Some(word) => {
                let gap = self.bytes.get(word.end..start).unwrap_or_default();
                gap.len() <= 4
                    && gap.iter().all(|byte| matches!(byte, b' ' | b':' | b'=' | b'"' | b'\'' | b'\t'))
                    && names::is_digest_name(self.slice(word.start, word.end))
            }
            None => start == 0 && self.label.is_some_and(names::is_digest_name),
        }
    }

    /// Returns the end of the `=` that pad base64, unless a following character makes them a separator.
    fn end_of_padding(&mut self, masked: usize) -> usize {
        let end = self.end_of(masked, |byte| byte == b'=');
        let separates =
            self.byte(end).is_some_and(|byte| is_blob(byte) || matches!(byte, b'"' | b'\'' | b'['));
        if end - masked > 2 || separates {
            return masked;
        }
        self.copied_to = end;
        end
    }

    /// Checks if the rest of a blob is the name of a secret.
    fn name(&mut self, name: Range<usize>) {
        let before = self.word.replace(name.clone());
        let text = self.slice(name.start, name.end);
        let spaced = self.end_of(name.end, is_space);
        if text.eq_ignore_ascii_case("bearer") || text.eq_ignore_ascii_case("basic") {
            self.credentials(text.len() == "basic".len(), name.end, spaced);
        }
        if self.at > name.end {
            return;
        }
        if matches!(text, "-u" | "--user" | "--proxy-user") {
            let user = match self.quote(spaced) {
                Some(quote) => quote.inner..self.closing(&quote),
                None => spaced..self.end_of(spaced, |byte| !ends_value(byte)),
            };
            if spaced > name.end && self.slice(user.start, user.end).contains(':') {
                self.mask_value(user);
            }
            return;
        }
        // Most words are not such a name, so that is checked first.
        let marker = name.start.checked_sub(1).and_then(|at| self.byte(at));
        let element = marker == Some(b'<') && self.byte(name.end) == Some(b'>');
        let value = if element { Some(name.end + 1) } else { self.behind_separator(name.end) };
        let flag = text.starts_with('-') && spaced > name.end && self.byte(spaced) != Some(b'-');
        let Some(value) = value.or(flag.then_some(spaced)) else {
            return;
        };
        let secret = if matches!(marker, Some(b'?' | b'&')) {
            names::is_secret_parameter(text)
        } else {
            names::ends_in_secret_name(text) || self.is_secret_phrase(before.as_ref(), &name)
        };
        // Parsers report "Unexpected token: …".
        let unexpected = text.eq_ignore_ascii_case("token")
            && before.is_some_and(|word| self.slice(word.start, word.end).eq_ignore_ascii_case("unexpected"));
        let folder = names::is_working_folder(text) && matches!(self.byte(value), Some(b'/' | b'~'));
        if secret && !unexpected && !folder {
            self.value(value, names::is_header_name(text));
        }
    }

    /// Returns true if two words with a space between them are one secret name: "API key".
    fn is_secret_phrase(&self, before: Option<&Range<usize>>, name: &Range<usize>) -> bool {
        before.is_some_and(|word| {
            word.end + 1 == name.start
                && self.byte(word.end) == Some(b' ')
                && names::is_secret_phrase(self.slice(word.start, word.end), self.slice(name.start, name.end))
        })
    }

    /// Returns the start of the value, if a separator follows a name that ends here.
    fn behind_separator(&self, end: usize) -> Option<usize> {
        let (mut at, mut quoted) = (end, false);
        if let Some(opening) = self.quote(at) {
            (at, quoted) = (at + opening.length(), true);
        }
        if self.byte(at) == Some(b']') {
            at += 1;
        }
        at = self.end_of(at, is_space);
        let separator = self.end_of(at, |byte| matches!(byte, b':' | b'='));
        let width = separator - at;
        let path = self.starts_with(at, "::") || self.starts_with(at, "://");
        if width == 0 || width > 3 || path {
            return None;
        }
        at = separator + usize::from(self.byte(separator) == Some(b'>'));
        Some(if quoted {
            self.end_of(at, |byte| byte.is_ascii_whitespace())
        } else {
            self.end_of(at, is_space)
        })
    }

    /// Masks the value of a secret name.
    fn value(&mut self, at: usize, header: bool) {
        // Letters that may come before a string in source code.
        let prefix = self
            .end_within(at, at + 2, |byte| matches!(byte.to_ascii_lowercase(), b'b' | b'r' | b'f' | b'u'));
        let quote = self.quote(at).or_else(|| self.quote(prefix).filter(|quote| quote.escapes == 0));
        if self.starts_with(at, MASK) {
            self.at = at + MASK.len();
            self.word = None;
        } else if self.starts_with(at, PEM_BEGIN) {
            self.at = at;
        } else if let Some(quote) = quote {
            let close = self.closing(&quote);
            self.mask_value(quote.inner..close);
        } else if matches!(self.byte(at), Some(b'{' | b'[' | b'(')) {
            let end = self.end_of_group(at, MAX_GROUP).unwrap_or_else(|open| open);
            if end > at + 2 {
                self.mask_value(at..end);
            }
        } else if header {
            let end = self.end_of(at, |byte| !matches!(byte, b'\r' | b'\n' | b'"' | b'\'' | b'`' | b'\\'));
            self.mask_value(at..end);
        } else {
            let mut end = self.end_of(at, |byte| !ends_value(byte));
            // `Some("…")` and similar.
            let open = self.end_within(at, end, |byte| !matches!(byte, b'(' | b'{' | b'['));
            if open < end
                && let Ok(closed) = self.end_of_group(open, MAX_INNER_GROUP)
            {
                end = end.max(closed);
            }
            if !is_literal(self.slice(at, end)) {
                self.mask_value(at..end);
            }
        }
    }

    /// Masks the text after `Bearer` or `Basic`, unless it is prose.
    fn credentials(&mut self, basic: bool, end: usize, at: usize) {
        let close = self.end_of(at, |byte| is_blob(byte) || byte == b'=');
        let text = self.slice(at, close).trim_end_matches('.');
        let capital = text.bytes().skip(1).any(|byte| byte.is_ascii_uppercase());
        let is_distinctive = capital
            || text.bytes().any(|byte| byte.is_ascii_digit() || matches!(byte, b'=' | b'+' | b'_' | b'~'));
        let least = if basic || is_distinctive { 8 } else { 16 };
        if at > end && text.len() >= least && (is_distinctive || !basic) {
            self.mask_value(at..at + text.len());
        }
    }

    /// Masks the user information of a URL whose authority begins here.
    fn url(&mut self, start: usize) {
        self.at = start;
        let mut end = self.end_of_authority(start);
        let mut sign = self.last_sign_within(start, end);
        // A password may contain characters that would end the authority. In that case no port follows the colon.
        let colon = self.end_within(start, end, |byte| byte != b':');
        let port = self.byte(colon + 1).is_none_or(|byte| byte.is_ascii_digit());
        if sign.is_none() && colon + 1 < end && !port && self.byte(start) != Some(b'[') {
            let next = self.next_sign(end);
            let between = self.bytes.get(end..next.min(end + MAX_PASSWORD)).unwrap_or_default();
            if next <= end + MAX_PASSWORD && next < self.bytes.len() && !between.iter().copied().any(ends_url)
            {
                end = self.end_of_authority(next);
                sign = self.last_sign_within(next, end);
            }
        }
        if let Some(sign) = sign
            && !is_plain_user(self.slice(start, sign))
            && !self.slice(start, sign).contains(MASK)
        {
            self.mask_value(start..sign);
        }
    }

    fn end_of_authority(&self, start: usize) -> usize {
        self.end_of(start, |byte| !ends_url(byte) && !matches!(byte, b'/' | b'?' | b'#'))
    }

    fn last_sign_within(&self, start: usize, end: usize) -> Option<usize> {
        let place = self.bytes.get(start..end)?.iter().rposition(|byte| *byte == b'@')?;
        Some(start + place)
    }

    fn next_sign(&mut self, from: usize) -> usize {
        if self.last_sign < from {
            self.last_sign = self.end_of(from, |byte| byte != b'@');
        }
        self.last_sign
    }

    /// Masks a private key in PEM, with real or escaped line ends. One that was cut off ends at the first invalid line.
    fn private_key(&mut self) -> bool {
        let start = self.at;
        let Some(end) = self.end_of_private_key(start) else { return false };
        self.mask(start..end);
        self.at = end;
        true
    }

    /// Returns the end of the private key whose first line begins here, if there is one.
    fn end_of_private_key(&self, start: usize) -> Option<usize> {
        let label = start + PEM_BEGIN.len();
        let label_end =
            self.end_within(label, label + MAX_PEM_LABEL, |byte| byte.is_ascii_uppercase() || byte == b' ');
        if !self.slice(label, label_end).contains("PRIVATE KEY") {
            return None;
        }
        let mut at = label_end;
        while let Some(byte) = self.byte(at) {
            if self.starts_with(at, PEM_END) {
                at = self.end_of(at + PEM_END.len(), |byte| byte.is_ascii_uppercase() || byte == b' ');
                at = self.end_within(at, at + 5, |byte| byte == b'-');
                break;
            }
            let escape = byte == b'\\' && self.after_escape(at) > at + 1;
            if escape {
                at = self.after_escape(at);
            } else if is_blob(byte)
                || byte.is_ascii_whitespace()
                || matches!(byte, b'=' | b':' | b',' | b'(' | b')')
            {
                at += 1;
            } else {
                break;
            }
        }
        Some(at)
    }

    /// Returns the end of a value including the private keys that begin in it. The rules for a value stop at a blank or
    /// at the end of a line, but the lines of a key continue.
    fn end_with_keys(&self, value: &Range<usize>) -> usize {
        let (mut from, mut end) = (value.start, value.end);
        while from < end {
            let last = (end + PEM_BEGIN.len() - 1).min(self.bytes.len());
            let begins = self.bytes.get(from..last).unwrap_or_default();
            let begin = begins.windows(PEM_BEGIN.len()).position(|part| part == PEM_BEGIN.as_bytes());
            let Some(begin) = begin.map(|place| from + place) else { break };
            // Text that was searched for a key is not searched again.
            from = match self.end_of_private_key(begin) {
                Some(key) => {
                    end = end.max(key);
                    key
                }
                None => begin + PEM_BEGIN.len(),
            };
        }
        end
    }

    /// Masks a value and continues after it.
    fn mask_value(&mut self, value: Range<usize>) {
        let value = if value.is_empty() { value } else { value.start..self.end_with_keys(&value) };
        self.at = value.end.max(self.at);
        if !value.is_empty() && self.slice(value.start, value.end) != MASK {
            self.mask(value);
        }
        self.word = None;
    }

    fn mask(&mut self, secret: Range<usize>) {
        self.replace(secret, MASK);
    }

    /// Escapes a character that would hide or rearrange others.
    fn escape(&mut self, length: usize) {
        let place = self.at..self.at + length;
        let code = self.slice(place.start, place.end).chars().next().map_or(0, u32::from);
        self.at = place.end;
        self.replace(place, &format!("\\u{code:04x}"));
    }

    fn replace(&mut self, place: Range<usize>, with: &str) {
        let unchanged = self.text.get(self.copied_to..place.start).unwrap_or_default();
        let out = self.out.get_or_insert_with(String::new);
        out.push_str(unchanged);
        out.push_str(with);
        self.copied_to = place.end;
    }

    /// Returns the quote at this position. It may be escaped because the text is a string within a string.
    fn quote(&self, at: usize) -> Option<Quote> {
        let sign = self.end_within(at, at + 8, |byte| byte == b'\\');
        let escapes = sign - at;
        let quote = self.byte(sign).filter(|byte| matches!(byte, b'"' | b'\'' | b'`'))?;
        // Each level of strings within strings doubles the escapes and adds one.
        (escapes + 1).is_power_of_two().then_some(Quote { sign: quote, escapes, inner: sign + 1 })
    }

    /// Returns the end of the quoted text: before its closing quote, at the end of a surrounding text, or at the end.
    fn closing(&self, quote: &Quote) -> usize {
        let mut escapes = 0;
        for (place, byte) in self.bytes.iter().enumerate().skip(quote.inner) {
            if *byte == b'\\' {
                escapes += 1;
                continue;
            }
            let closes = escapes % (2 * (quote.escapes + 1)) == quote.escapes;
            if *byte == quote.sign && (closes || escapes < quote.escapes) {
                return place - escapes.min(quote.escapes);
            }
            escapes = 0;
        }
        self.bytes.len()
    }

    /// Returns the end of a bracketed group, or the end of the search if it is not closed.
    fn end_of_group(&self, start: usize, most: usize) -> Result<usize, usize> {
        let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
        let mut last = start;
        for (place, byte) in self.bytes.iter().enumerate().skip(start).take(most) {
            last = place + 1;
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => quoted = !quoted,
                b'{' | b'[' | b'(' if !quoted => depth += 1,
                b'}' | b']' | b')' if !quoted => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return Ok(last);
                    }
                }
                _ => {}
            }
        }
        while !self.text.is_char_boundary(last) {
            last += 1;
        }
        Err(last)
    }

    /// Returns the position after the escape that begins here. The escaped character is no letter of the following
    /// word.
    fn after_escape(&self, start: usize) -> usize {
        let sign = self.end_of(start, |byte| byte == b'\\');
        match self.byte(sign) {
            Some(b'u')
                if self.end_within(sign + 1, sign + 5, |byte| byte.is_ascii_hexdigit()) == sign + 5 =>
            {
                sign + 5
            }
            Some(b'n' | b'r' | b't' | b'b' | b'f' | b'v' | b'0') => sign + 1,
            Some(_) | None => sign,
        }
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.bytes.get(at).copied()
    }

    fn starts_with(&self, at: usize, expected: &str) -> bool {
        self.bytes.get(at..).is_some_and(|rest| rest.starts_with(expected.as_bytes()))
    }

    fn slice(&self, start: usize, end: usize) -> &'t str {
        self.text.get(start..end).unwrap_or_default()
    }

    fn end_of(&self, start: usize, within: impl Fn(u8) -> bool) -> usize {
        self.end_within(start, self.bytes.len(), within)
    }

    fn end_within(&self, start: usize, limit: usize, within: impl Fn(u8) -> bool) -> usize {
        let rest = self.bytes.get(start..limit.min(self.bytes.len())).unwrap_or_default();
        start + rest.iter().position(|byte| !within(*byte)).unwrap_or(rest.len())
    }
}

struct Quote {
    sign: u8,
    /// Number of backslashes before the quote.
    escapes: usize,
    /// Start of the quoted text.
    inner: usize,
}

impl Quote {
    const fn length(&self) -> usize {
        self.escapes + 1
    }
}

const fn is_blob(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'+' | b'/' | b'.' | b'~')
}

const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Returns true for a character that ends a value without quotes.
const fn ends_value(byte: u8) -> bool {
    byte.is_ascii_whitespace()
        || matches!(byte, b'"' | b'\'' | b'`' | b',' | b';' | b'&' | b')' | b'}' | b']' | b'<' | b'>' | b'\\')
}

const fn ends_url(byte: u8) -> bool {
    byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'' | b'`' | b'<' | b'>' | b'\\')
}

/// Returns the length of the character that begins here, if it makes a text look different from its content: the
/// controls of writing direction (U+202A to U+202E, U+2066 to U+2069), and those of terminals beyond ASCII (U+0080 to
/// U+009F). The plain marks of direction stay, because texts in Arabic or Hebrew contain them.
const fn invisible(text: &[u8]) -> Option<usize> {
    match text {
        [0xe2, 0x80, 0xaa..=0xae, ..] | [0xe2, 0x81, 0xa6..=0xa9, ..] => Some(3),
        [0xc2, 0x80..=0x9f, ..] => Some(2),
        _ => None,
    }
}

/// Returns true for a user without a password, such as `git`, which reveals nothing.
fn is_plain_user(user: &str) -> bool {
    user.len() <= 12 && user.bytes().all(|byte| byte.is_ascii_lowercase())
}

/// Returns true for values that mean that there is no secret.
fn is_literal(value: &str) -> bool {
    ["null", "none", "nil", "undefined", "true", "false"]
        .iter()
        .any(|known| known.eq_ignore_ascii_case(value))
}

const PEM_BEGIN: &str = "-----BEGIN ";
const PEM_END: &str = "-----END ";
const MAX_PEM_LABEL: usize = 64;
/// The maximum length of a token with slashes. A longer text is checked part by part.
const MAX_SLASHED: usize = 256;
/// The maximum distance in which the closing bracket of a secret value is searched.
const MAX_GROUP: usize = 4096;
/// The maximum distance in which the closing bracket within a secret value is searched.
const MAX_INNER_GROUP: usize = 256;
/// The maximum distance in which the `@` after a password with slashes is searched.
const MAX_PASSWORD: usize = 256;
