//! The canonical form of JSON parameters: one text for all JSON texts with the same meaning.
//!
//! It is RFC 8785 (names in the order of their UTF-16 code units, no white space, shortest numbers, fewest escapes)
//! with some deviations. Most keep two different calls from looking alike. One makes two spellings of one call look
//! alike:
//!
//! - **Numbers are compared by value, and keep it.** `-0` is `0`, `1.0` is `1`, `1e2` is `100`, as in the RFC. A whole
//!   number keeps all its digits, where the RFC would round those beyond 2^53 to a double: ids of that size are common,
//!   and two of them must not become one. It is written in the RFC's format (from 10^21 on as `1.5e+21`), so `1e400` is
//!   short and unlike anything else. A number with a fraction is rounded to a double as in the RFC, unless that would
//!   make it whole, zero or infinite (`0.99999999999999999999`, `9007199254740993.5`, `1e-400`). Then it keeps its
//!   digits too.
//! - **Strings** follow the tool's [`StringRule`]. In all of them CRLF equals LF, and therefore CR CR LF too. A string
//!   with a line break is otherwise compared exactly. Names are always compared exactly, because otherwise two members
//!   could become one.
//! - **Volatile members** of the top level are left out.
//!
//! Absent equals undefined: JSON has no undefined, so the hosts' languages must leave such members out. `null` is a
//! value and differs from absent.
//!
//! The form is a fixed point: the canonical form of a canonical form is itself.

use std::cmp::Ordering;

use steadfast_json::{JsonValue, NameSpelling, NodeShape, escape};

use crate::policy::StringRule;

/// The rules for comparing parameters.
#[derive(Clone, Copy, Debug)]
pub struct CanonicalForm<'a> {
    /// Comparison of strings.
    pub strings: StringRule,
    /// Members of the top level that are ignored.
    pub volatile: &'a [Box<str>],
}

impl CanonicalForm<'static> {
    /// Exact comparison of everything.
    pub const EXACT: Self = Self { strings: StringRule::Exact, volatile: &[] };
}

/// A writer of canonical forms. Reuses its buffers.
#[derive(Clone, Debug, Default)]
pub struct Canonicalizer {
    text: String,
    /// Containers that are being written, innermost last.
    open: Vec<OpenContainer>,
    /// Names of the open objects, sorted within each object.
    names: Vec<MemberName>,
}

/// A name of an object that is being written.
#[derive(Clone, Copy, Debug)]
struct MemberName {
    place: usize,
    head: NameHead,
}

/// The first eight bytes of a name, which decide nearly every comparison without reading the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NameHead(u64);

impl NameHead {
    /// The head of a name that cannot be compared by its head, because its order is not that of bytes.
    const NONE: Self = Self(u64::MAX);

    fn of(name: NameSpelling<'_>) -> Self {
        match name {
            NameSpelling::Plain(plain) => {
                let mut head = [0; 8];
                head.iter_mut().zip(plain.bytes()).for_each(|(place, byte)| *place = byte);
                let is_ascii = head.is_ascii();
                if is_ascii { Self(u64::from_be_bytes(head)) } else { Self::NONE }
            }
            NameSpelling::Escaped(_) => Self::NONE,
        }
    }

    /// Returns the order of two names, if their heads decide it. No plain name contains a zero, so a name that has
    /// ended sorts before one that continues.
    fn compare(self, other: Self) -> Option<Ordering> {
        let decides = self != other && self != Self::NONE && other != Self::NONE;
        decides.then(|| self.cmp(&other))
    }
}

/// A container that is being written. Positions are those of the document's table.
#[derive(Clone, Copy, Debug)]
enum OpenContainer {
    Array {
        next: usize,
        end: usize,
    },
    /// `first` and `next` are positions in the list of names.
    Object {
        first: usize,
        next: usize,
    },
}

impl Canonicalizer {
    /// Returns the canonical form of a value.
    pub fn write(&mut self, value: JsonValue<'_>, form: CanonicalForm<'_>) -> &str {
        self.text.clear();
        self.text.reserve(value.raw().len());
        self.open.clear();
        self.names.clear();
        let mut next = Some((value, form.volatile));
        while let Some((value, volatile)) = next {
            self.begin(value, form.strings, volatile);
            // Only the outermost members can be volatile. Further in, a name belongs to the tool.
            next = self.find_next(value).map(|value| (value, &[][..]));
        }
        &self.text
    }

    /// Writes a value, or the beginning of a container.
    fn begin(&mut self, value: JsonValue<'_>, strings: StringRule, volatile: &[Box<str>]) {
        match value.shape() {
            NodeShape::Null | NodeShape::True | NodeShape::False => self.text.push_str(value.raw()),
            NodeShape::Number => write_number(&mut self.text, value.raw()),
            NodeShape::Plain | NodeShape::Escaped => write_string(&mut self.text, value, strings),
            NodeShape::Array => {
                self.text.push('[');
                self.open.push(OpenContainer::Array { next: value.place() + 1, end: value.place_after() });
            }
            NodeShape::Object => {
                self.text.push('{');
                let first = self.names.len();
                self.list_names(value, volatile);
                self.open.push(OpenContainer::Object { first, next: first });
            }
        }
    }

    /// Closes containers that end here and returns the value to write next, if there is one. `value` is any value of
    /// the document.
    fn find_next<'d>(&mut self, value: JsonValue<'d>) -> Option<JsonValue<'d>> {
        while let Some(open) = self.open.last_mut() {
            match open {
                OpenContainer::Array { next, end } if *next < *end => {
                    let item = value.at(*next);
                    *next = item.place_after();
                    separate(&mut self.text);
                    return Some(item);
                }
                OpenContainer::Array { .. } => self.text.push(']'),
                OpenContainer::Object { first, next } => {
                    if let Some(MemberName { place, .. }) = self.names.get(*next) {
                        *next += 1;
                        separate(&mut self.text);
                        write_name(&mut self.text, value.at(*place).spelling());
                        return Some(value.at(*place + 1));
                    }
                    self.names.truncate(*first);
                    self.text.push('}');
                }
            }
            self.open.pop();
        }
        None
    }

    /// Adds the names of an object to the list, sorted.
    fn list_names(&mut self, object: JsonValue<'_>, volatile: &[Box<str>]) {
        let first = self.names.len();
        let (mut place, end) = (object.place() + 1, object.place_after());
        while place < end {
            let name = object.at(place).spelling();
            if !volatile.iter().any(|left_out| name.is(left_out)) {
                self.names.push(MemberName { place, head: NameHead::of(name) });
            }
            place = object.at(place + 1).place_after();
        }
        let names = self.names.get_mut(first..).unwrap_or_default();
        names.sort_unstable_by(|a, b| {
            let in_full = || compare(object.at(a.place).spelling(), object.at(b.place).spelling());
            a.head.compare(b.head).unwrap_or_else(in_full)
        });
    }
}

/// Writes a comma, unless the container has just begun.
fn separate(text: &mut String) {
    if !text.ends_with(['[', '{']) {
        text.push(',');
    }
}

/// Compares names by their UTF-16 code units, without creating any.
fn compare(a: NameSpelling<'_>, b: NameSpelling<'_>) -> Ordering {
    // Code units sort like characters, except that the surrogates (all beyond U+FFFF) come before U+E000. The same
    // holds for the first bytes of UTF-8: 0xEE and 0xEF come last.
    let (NameSpelling::Plain(plain_a), NameSpelling::Plain(plain_b)) = (a, b) else {
        let rank = |character| match character {
            '\u{e000}'..='\u{ffff}' => u32::from(character) + 0x11_0000,
            _ => u32::from(character),
        };
        return a.decoded().map(rank).cmp(b.decoded().map(rank));
    };
    let rank = |byte| if matches!(byte, 0xEE | 0xEF) { (1, byte) } else { (0, byte) };
    match plain_a.bytes().zip(plain_b.bytes()).find(|(a, b)| a != b) {
        Some((a, b)) => rank(a).cmp(&rank(b)),
        None => plain_a.len().cmp(&plain_b.len()),
    }
}

fn write_name(text: &mut String, name: NameSpelling<'_>) {
    text.push('"');
    match name {
        NameSpelling::Plain(plain) => text.push_str(plain),
        NameSpelling::Escaped(_) => name.decoded().for_each(|character| write_character(text, character)),
    }
    text.push_str("\":");
}

fn write_string(text: &mut String, value: JsonValue<'_>, rule: StringRule) {
    text.push('"');
    match (value.spelling(), rule) {
        // Characters without an escape in the text need none here.
        (NameSpelling::Plain(plain), StringRule::Exact) => text.push_str(plain),
        (NameSpelling::Escaped(inner), StringRule::Exact) => write_exactly(text, inner),
        (spelling, StringRule::Trim | StringRule::Collapse) => write_loosely(text, spelling, rule),
    }
    text.push('"');
}

/// Writes every character unchanged, except a CR before a LF.
fn write_exactly(text: &mut String, inner: &str) {
    let mut returns = 0_usize;
    let mut rest = inner;
    loop {
        // The reader accepts line breaks only as escapes.
        let (run, behind) = rest.split_once('\\').map_or((rest, None), |(run, behind)| (run, Some(behind)));
        let escaped = behind.and_then(|behind| escape(behind.as_bytes()).ok());
        let follows_at_once = run.is_empty() && matches!(escaped, Some(('\n' | '\r', _)));
        if !follows_at_once {
            (0..std::mem::take(&mut returns)).for_each(|_| text.push_str("\\r"));
        }
        text.push_str(run);
        match escaped {
            Some(('\r', _)) => returns += 1,
            Some((character, _)) => {
                returns = 0;
                write_character(text, character);
            }
            None => return,
        }
        rest = behind.zip(escaped).and_then(|(behind, (_, length))| behind.get(length..)).unwrap_or_default();
    }
}

/// Writes single lines without white space at their ends, and with runs of it as one space if the rule requires it.
fn write_loosely(text: &mut String, spelling: NameSpelling<'_>, rule: StringRule) {
    let inner = match spelling {
        // A plain string has no tab and no line break, so most need no second pass.
        NameSpelling::Plain(inner) if inner.is_ascii() && has_single_spaces(inner) => {
            return text.push_str(inner);
        }
        NameSpelling::Plain(inner) | NameSpelling::Escaped(inner) => inner,
    };
    if spelling.decoded().any(is_line_break) {
        return write_exactly(text, inner);
    }
    let length = spelling.decoded().zip(1..).fold(
        0,
        |length, (character, count)| {
            if character.is_whitespace() { length } else { count }
        },
    );
    let mut space_before = false;
    for character in spelling.decoded().take(length).skip_while(|character| character.is_whitespace()) {
        let is_space = rule == StringRule::Collapse && character.is_whitespace();
        match (is_space, space_before) {
            (true, true) => {}
            (true, false) => text.push(' '),
            (false, _) => write_character(text, character),
        }
        space_before = is_space;
    }
}

/// Returns true if neither end is a space and there are no two spaces in a row.
fn has_single_spaces(text: &str) -> bool {
    let bytes = text.as_bytes();
    let together = bytes.iter().zip(bytes.iter().skip(1)).any(|pair| pair == (&b' ', &b' '));
    !together && bytes.first() != Some(&b' ') && bytes.last() != Some(&b' ')
}

/// Returns true for every character that some reader takes for a line end. One too many only makes the comparison more
/// exact.
fn is_line_break(character: char) -> bool {
    matches!(character, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn write_character(text: &mut String, character: char) {
    match character {
        '"' => text.push_str("\\\""),
        '\\' => text.push_str("\\\\"),
        '\u{8}' => text.push_str("\\b"),
        '\t' => text.push_str("\\t"),
        '\n' => text.push_str("\\n"),
        '\u{c}' => text.push_str("\\f"),
        '\r' => text.push_str("\\r"),
        '\0'..='\u{1f}' => {
            text.push_str("\\u00");
            let code = u32::from(character);
            text.extend([code >> 4, code & 15].into_iter().filter_map(|digit| char::from_digit(digit, 16)));
        }
        _ => text.push(character),
    }
}

/// The number of digits before the point from which the RFC writes an exponent.
const LONGEST_PLAIN: usize = 21;

fn write_number(text: &mut String, raw: &str) {
    let digits = raw.strip_prefix('-').unwrap_or(raw);
    if digits.len() <= LONGEST_PLAIN && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.push_str(if digits == "0" { "0" } else { raw });
    }
    if is_shortest(digits) {
        return text.push_str(raw);
    }
    let (mantissa, exponent) = digits.split_once(['e', 'E']).unwrap_or((digits, ""));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let zeros = |digits: &mut dyn Iterator<Item = u8>| digits.take_while(|digit| *digit == b'0').count();
    let leading = zeros(&mut whole.bytes().chain(fraction.bytes()));
    let all = whole.len() + fraction.len();
    if leading == all {
        return text.push('0');
    }
    let trailing = zeros(&mut fraction.bytes().rev().chain(whole.bytes().rev()));
    let Some(shift) = small_exponent(exponent) else {
        if raw.starts_with('-') {
            text.push('-');
        }
        return write_large_exponent(text, mantissa, exponent);
    };
    let number = Decimal {
        digits: whole.chars().chain(fraction.chars()).skip(leading).take(all - leading - trailing),
        count: all - leading - trailing,
        point: shift.saturating_add(signed(whole.len())).saturating_sub(signed(leading)),
    };
    if number.point < signed(number.count)
        && let Ok(double) = raw.parse::<f64>()
        && double.is_finite()
        && double.fract() != 0.0
    {
        return text.push_str(ryu_js::Buffer::new().format_finite(double));
    }
    if raw.starts_with('-') {
        text.push('-');
    }
    number.write(text);
}

/// Returns true if a decimal fraction is already in canonical form. A double keeps any fifteen digits, so no shorter
/// spelling has the same value, and from 10^-6 on the RFC writes no exponent.
fn is_shortest(digits: &str) -> bool {
    let Some((whole, fraction)) = digits.split_once('.') else { return false };
    whole.len() + fraction.len() <= 15
        && !fraction.ends_with('0')
        && fraction.bytes().all(|byte| byte.is_ascii_digit())
        && !(whole == "0" && fraction.starts_with("000000"))
}

/// Returns an exponent that is small enough for arithmetic. The sizes of texts cannot carry it out of range.
fn small_exponent(exponent: &str) -> Option<i64> {
    let digits = exponent.trim_start_matches(['+', '-']).trim_start_matches('0');
    match digits.len() {
        0 => Some(0),
        1..=18 => exponent.parse().ok(),
        _ => None,
    }
}

/// Writes a number with a larger exponent as it is spelled, so that it at least equals no other number.
fn write_large_exponent(text: &mut String, mantissa: &str, exponent: &str) {
    text.push_str(mantissa);
    text.push_str(if exponent.starts_with('-') { "e-" } else { "e+" });
    text.push_str(exponent.trim_start_matches(['+', '-']).trim_start_matches('0'));
}

fn signed(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

/// A number above zero by its significant digits: `0.DIGITS` times ten to the power of `point`.
struct Decimal<Digits> {
    digits: Digits,
    count: usize,
    point: i64,
}

impl<Digits: Iterator<Item = char>> Decimal<Digits> {
    /// Writes the format of ECMAScript, which is the RFC's, for any number of digits.
    fn write(mut self, text: &mut String) {
        let zeros = |text: &mut String, count: usize| (0..count).for_each(|_| text.push('0'));
        match usize::try_from(self.point) {
            Ok(point @ 1..=LONGEST_PLAIN) => {
                text.extend(self.digits.by_ref().take(point));
                zeros(text, point.saturating_sub(self.count));
                self.write_fraction(text, point);
            }
            Ok(0) | Err(_) if self.point > -6 => {
                text.push_str("0.");
                zeros(text, usize::try_from(self.point.saturating_neg()).unwrap_or_default());
                text.extend(self.digits);
            }
            Ok(_) | Err(_) => {
                let exponent = self.point.saturating_sub(1);
                text.extend(self.digits.next());
                self.write_fraction(text, 1);
                text.push_str(if exponent < 0 { "e-" } else { "e+" });
                text.push_str(&exponent.unsigned_abs().to_string());
            }
        }
    }

    /// Writes the remaining digits, if any.
    fn write_fraction(&mut self, text: &mut String, written: usize) {
        if self.count > written {
            text.push('.');
            text.extend(self.digits.by_ref());
        }
    }
}
