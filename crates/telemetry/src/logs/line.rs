//! The format of a log line.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Write as _;

use steadfast_core::Timestamp;

use super::{LogLineFormat, LogLineLevel};

/// The value of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LogField<'a> {
    /// A text from outside. It is redacted, and cut if it is long.
    Text(&'a str),
    /// A built-in word, fingerprint or trace id, which needs no redaction.
    Own(&'a str),
    /// A number.
    Number(u64),
    /// A boolean.
    Flag(bool),
    /// No value: the field is omitted.
    Absent,
}

impl<'a> LogField<'a> {
    /// Returns the value for an optional text from outside.
    pub(crate) fn text(text: Option<&'a str>) -> Self {
        text.map_or(Self::Absent, Self::Text)
    }

    /// Returns the value for an optional built-in word.
    pub(crate) fn own(text: Option<&'a str>) -> Self {
        text.map_or(Self::Absent, Self::Own)
    }
}

/// The content of a log line. The caller only waits for the copy: the writer thread redacts and formats the line.
#[derive(Debug)]
pub(crate) struct LogEntry {
    at: Timestamp,
    level: LogLineLevel,
    event: LogValue,
    fields: Vec<(&'static str, LogValue)>,
}

#[derive(Debug)]
enum LogValue {
    Text(Box<str>),
    Own(Box<str>),
    Word(&'static str),
    Number(u64),
    Flag(bool),
}

impl LogEntry {
    /// Creates an entry for a built-in event with these fields.
    pub(crate) fn of(
        level: LogLineLevel,
        event: &'static str,
        at: Timestamp,
        fields: &[&[(&'static str, LogField<'_>)]],
    ) -> Self {
        let mut entry = Self::new(level, event, at);
        for (name, field) in fields.iter().copied().flatten() {
            entry.field(name, field);
        }
        entry
    }

    /// Creates an entry for a built-in event.
    pub(crate) fn new(level: LogLineLevel, event: &'static str, at: Timestamp) -> Self {
        Self { at, level, event: LogValue::Word(event), fields: Vec::with_capacity(FIELDS) }
    }

    /// Creates an entry for an event with a name from outside.
    pub(super) fn named(level: LogLineLevel, event: &str, at: Timestamp) -> Self {
        Self { at, level, event: LogValue::Text(beginning(event).into()), fields: Vec::new() }
    }

    pub(crate) fn field(&mut self, name: &'static str, field: &LogField<'_>) {
        let value = match *field {
            LogField::Text(text) => LogValue::Text(beginning(text).into()),
            LogField::Own(text) => LogValue::Own(text.into()),
            LogField::Number(number) => LogValue::Number(number),
            LogField::Flag(flag) => LogValue::Flag(flag),
            LogField::Absent => return,
        };
        self.fields.push((name, value));
    }

    pub(crate) fn level(&self) -> LogLineLevel {
        self.level
    }

    /// Returns the name of a built-in event.
    pub(crate) fn name(&self) -> &'static str {
        match &self.event {
            LogValue::Word(word) => word,
            LogValue::Text(_) | LogValue::Own(_) | LogValue::Number(_) | LogValue::Flag(_) => "log",
        }
    }

    /// Appends the line.
    pub(crate) fn write(&self, format: LogLineFormat, shown: &mut ShownTexts, out: &mut String) {
        match format {
            LogLineFormat::Json => {
                let _ = write!(
                    out,
                    "{{\"time\":\"{}\",\"level\":\"{}\",\"event\":",
                    self.at,
                    self.level.as_str()
                );
                self.event.write(format, shown, out);
            }
            LogLineFormat::Human => {
                let level = self.level.as_str().to_uppercase();
                let _ = write!(out, "{} {level:<5} ", self.at);
                self.event.write(format, shown, out);
            }
        }
        for (name, field) in &self.fields {
            match format {
                LogLineFormat::Json => {
                    out.push(',');
                    json_string(name, out);
                    out.push(':');
                }
                LogLineFormat::Human => {
                    out.push(' ');
                    out.push_str(name);
                    out.push('=');
                }
            }
            field.write(format, shown, out);
        }
        out.push_str(match format {
            LogLineFormat::Json => "}\n",
            LogLineFormat::Human => "\n",
        });
    }
}

impl LogValue {
    fn write(&self, format: LogLineFormat, shown: &mut ShownTexts, out: &mut String) {
        match self {
            Self::Text(text) => quoted(format, &shown.of(text), out),
            Self::Own(text) => quoted(format, text, out),
            Self::Word(word) => quoted(format, word, out),
            Self::Number(number) => _ = write!(out, "{number}"),
            Self::Flag(flag) => _ = write!(out, "{flag}"),
        }
    }
}

/// A cache of texts without secrets. The names of tools, servers and sessions occur again and again, and the search
/// for secrets in them costs more than the rest of a line.
#[derive(Debug, Default)]
pub(crate) struct ShownTexts {
    harmless: HashSet<Box<str>>,
}

impl ShownTexts {
    fn of<'t>(&mut self, text: &'t str) -> Cow<'t, str> {
        if self.harmless.contains(text) {
            return Cow::Borrowed(text);
        }
        let shown = steadfast_redact::excerpt(text, MOST_BYTES);
        if shown == text && text.len() <= LONGEST_KNOWN {
            if self.harmless.len() >= MOST_KNOWN {
                self.harmless.clear();
            }
            self.harmless.insert(text.into());
        }
        Cow::Owned(shown)
    }
}

fn quoted(format: LogLineFormat, text: &str, out: &mut String) {
    let plain = |c: char| c.is_alphanumeric() || "-_./:@+[]".contains(c);
    match format {
        LogLineFormat::Human if !text.is_empty() && text.chars().all(plain) => out.push_str(text),
        LogLineFormat::Human | LogLineFormat::Json => json_string(text, out),
    }
}

/// Returns the part of a text that decides how it is shown.
fn beginning(text: &str) -> &str {
    let mut end = text.len().min(SEARCHED_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

fn json_string(text: &str, out: &mut String) {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')) {
        out.push('"');
        out.push_str(text);
        out.push('"');
        return;
    }
    // This cannot fail for a text.
    let json = serde_json::to_string(text).unwrap_or_default();
    out.push_str(&json);
}

/// The longest text that is shown. It limits the length of a line, and so the size of the queue.
const MOST_BYTES: usize = 512;

/// More than [`steadfast_redact::excerpt`] reads to find the part to show.
const SEARCHED_BYTES: usize = 5 * MOST_BYTES;

/// Number of texts in the cache, and the longest of them.
const MOST_KNOWN: usize = 1024;
const LONGEST_KNOWN: usize = 128;

/// Number of fields in most lines.
const FIELDS: usize = 12;
