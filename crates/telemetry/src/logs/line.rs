//! How one line is made.

use std::fmt::Write as _;

use steadfast_core::{Timestamp, redact};

use super::{Format, Level};

/// The value of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Field<'a> {
    /// A text from outside: it leaves redacted, and cut where it is long.
    Text(&'a str),
    /// A word, fingerprint or trace id that we made ourselves.
    Own(&'a str),
    /// A number.
    Number(u64),
    /// A truth.
    Flag(bool),
    /// Nothing: the field is left out.
    Absent,
}

impl<'a> Field<'a> {
    /// A text from outside, if there is one.
    pub(crate) fn text(text: Option<&'a str>) -> Self {
        text.map_or(Self::Absent, Self::Text)
    }

    /// A word of ours, if there is one.
    pub(crate) fn own(text: Option<&'a str>) -> Self {
        text.map_or(Self::Absent, Self::Own)
    }
}

/// What a line will say. Whoever tells something waits for no more than the copy of it: secrets are looked for, and the
/// line is written, by the thread that writes.
#[derive(Debug)]
pub(super) struct Entry {
    at: Timestamp,
    level: Level,
    event: Box<str>,
    fields: Vec<(&'static str, Kept)>,
}

#[derive(Debug)]
enum Kept {
    Text(Box<str>),
    Own(Box<str>),
    Number(u64),
    Flag(bool),
}

impl Entry {
    pub(super) fn new(level: Level, event: &str, at: Timestamp) -> Self {
        Self { at, level, event: beginning(event).into(), fields: Vec::with_capacity(FIELDS) }
    }

    pub(super) fn field(&mut self, name: &'static str, field: &Field<'_>) {
        let kept = match *field {
            Field::Text(text) => Kept::Text(beginning(text).into()),
            Field::Own(text) => Kept::Own(text.into()),
            Field::Number(number) => Kept::Number(number),
            Field::Flag(flag) => Kept::Flag(flag),
            Field::Absent => return,
        };
        self.fields.push((name, kept));
    }

    /// Adds the line.
    pub(super) fn write(&self, format: Format, out: &mut String) {
        match format {
            Format::Json => {
                let _ = write!(
                    out,
                    "{{\"time\":\"{}\",\"level\":\"{}\",\"event\":",
                    self.at,
                    self.level.as_str()
                );
                json_string(&shown(&self.event), out);
            }
            Format::Human => {
                let level = self.level.as_str().to_uppercase();
                let _ = write!(out, "{} {level:<5} {}", self.at, shown(&self.event));
            }
        }
        for (name, field) in &self.fields {
            match format {
                Format::Json => {
                    out.push(',');
                    json_string(name, out);
                    out.push(':');
                }
                Format::Human => {
                    out.push(' ');
                    out.push_str(name);
                    out.push('=');
                }
            }
            match field {
                Kept::Text(text) => quoted(format, &shown(text), out),
                Kept::Own(text) => quoted(format, text, out),
                Kept::Number(number) => _ = write!(out, "{number}"),
                Kept::Flag(flag) => _ = write!(out, "{flag}"),
            }
        }
        out.push_str(match format {
            Format::Json => "}\n",
            Format::Human => "\n",
        });
    }
}

fn quoted(format: Format, text: &str, out: &mut String) {
    let plain = |c: char| c.is_alphanumeric() || "-_./:@+[]".contains(c);
    match format {
        Format::Human if !text.is_empty() && text.chars().all(plain) => out.push_str(text),
        Format::Human | Format::Json => json_string(text, out),
    }
}

/// As much of a text as decides what is shown of it.
fn beginning(text: &str) -> &str {
    let mut end = text.len().min(LOOKED_AT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

fn shown(text: &str) -> String {
    redact::excerpt(text, MOST_BYTES)
}

fn json_string(text: &str, out: &mut String) {
    // Only something that cannot be written to fails, and a text can.
    let json = serde_json::to_string(text).unwrap_or_default();
    out.push_str(&json);
}

/// The most that is shown of one text. With it a line has a bound, and with that the queue.
const MOST_BYTES: usize = 512;

/// More than [`redact::excerpt`] looks at to find out what may be shown.
const LOOKED_AT: usize = 5 * MOST_BYTES;

/// As many fields as most lines have.
const FIELDS: usize = 12;
