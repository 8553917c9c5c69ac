//! How one line is made.

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

/// A line that is being written.
pub(super) struct Line {
    format: Format,
    text: String,
}

impl Line {
    pub(super) fn begin(format: Format, at: Timestamp, level: Level, event: &str) -> Self {
        let text = String::with_capacity(256);
        let mut line = Self { format, text };
        match format {
            Format::Json => {
                line.text.push('{');
                line.field("time", &Field::Own(&at.to_string()));
                line.field("level", &Field::Own(level.as_str()));
                line.field("event", &Field::Text(event));
            }
            Format::Human => {
                let level = level.as_str().to_uppercase();
                line.text.push_str(&format!("{at} {level:<5} {}", shown(event)));
            }
        }
        line
    }

    pub(super) fn field(&mut self, name: &str, field: &Field<'_>) {
        let value = match *field {
            Field::Text(text) => self.quoted(&shown(text)),
            Field::Own(text) => self.quoted(text),
            Field::Number(number) => number.to_string(),
            Field::Flag(flag) => flag.to_string(),
            Field::Absent => return,
        };
        match self.format {
            Format::Json => {
                if !self.text.ends_with('{') {
                    self.text.push(',');
                }
                self.text.push_str(&json_string(name));
                self.text.push(':');
            }
            Format::Human => {
                self.text.push(' ');
                self.text.push_str(name);
                self.text.push('=');
            }
        }
        self.text.push_str(&value);
    }

    pub(super) fn end(mut self) -> String {
        match self.format {
            Format::Json => self.text.push_str("}\n"),
            Format::Human => self.text.push('\n'),
        }
        self.text
    }

    fn quoted(&self, text: &str) -> String {
        let plain = |c: char| c.is_alphanumeric() || "-_./:@+[]".contains(c);
        match self.format {
            Format::Human if !text.is_empty() && text.chars().all(plain) => text.to_owned(),
            Format::Human | Format::Json => json_string(text),
        }
    }
}

fn shown(text: &str) -> String {
    redact::excerpt(text, MOST_BYTES)
}

fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The most that is shown of one text. With it a line has a bound, and with that the queue.
const MOST_BYTES: usize = 512;
