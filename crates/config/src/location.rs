//! Position at which something is written: a file with line and column, a variable, a flag.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use steadfast_json::TextPosition;

/// Name of the embedded defaults in the origin of a setting.
pub(crate) const DEFAULTS_NAME: &str = "built-in defaults.toml";

/// A text that settings were read from. It is kept as long as its settings, so that each of them can report its
/// position.
pub(crate) struct SourceText {
    /// Name of the file in messages.
    pub(crate) name: String,
    pub(crate) text: String,
    /// Offset at which each line begins, in bytes.
    lines: Vec<usize>,
}

impl SourceText {
    pub(crate) fn new(name: impl Into<String>, text: impl Into<String>) -> Arc<Self> {
        let text = text.into();
        let starts = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        let lines = std::iter::once(0).chain(starts).collect();
        Arc::new(Self { name: name.into(), text, lines })
    }

    /// Returns line and column of a byte, as an editor shows them.
    pub(crate) fn position(&self, offset: usize) -> TextPosition {
        let line = self.lines.partition_point(|start| *start <= offset).max(1);
        let start = self.lines.get(line - 1).copied().unwrap_or_default();
        let before = self.text.get(start..offset).unwrap_or_default();
        TextPosition { line, column: 1 + before.chars().count() }
    }

    /// Returns the text of a line, counted from one, without its line ending.
    pub(crate) fn line(&self, line: usize) -> &str {
        let start = self.lines.get(line.saturating_sub(1)).copied().unwrap_or(self.text.len());
        let rest = self.text.get(start..).unwrap_or_default();
        rest.lines().next().unwrap_or_default()
    }
}

/// The derived `Debug` would print whole files with all secrets in them.
impl fmt::Debug for SourceText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Position at which something is written.
#[derive(Clone, Debug)]
pub(crate) enum SourceLocation {
    /// In a file. The span is in bytes.
    File(Arc<SourceText>, Range<usize>),
    /// In an environment variable of this name.
    Variable(Arc<str>),
    /// In a command-line flag.
    Flag(Arc<str>),
}

impl SourceLocation {
    /// Returns true if the place is in the file of this name.
    pub(crate) fn is_in(&self, name: &str) -> bool {
        match self {
            Self::File(source, _) => source.name == name,
            Self::Variable(_) | Self::Flag(_) => false,
        }
    }

    /// Returns the position without the text.
    pub(crate) fn written(&self) -> SettingPosition {
        match self {
            Self::File(source, span) => {
                let TextPosition { line, column } = source.position(span.start);
                SettingPosition::File { file: Arc::from(source.name.as_str()), line, column }
            }
            Self::Variable(name) => SettingPosition::Variable(name.clone()),
            Self::Flag(name) => SettingPosition::Flag(name.clone()),
        }
    }
}

/// Position at which a setting is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingPosition {
    /// In a file.
    File {
        /// Name of the file.
        file: Arc<str>,
        /// Line, counted from one.
        line: usize,
        /// Character within the line, counted from one.
        column: usize,
    },
    /// In an environment variable.
    Variable(Arc<str>),
    /// In a command-line flag.
    Flag(Arc<str>),
}

impl fmt::Display for SettingPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Self::Variable(name) => write!(f, "${name}"),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_has_the_line_and_column_that_an_editor_shows() {
        let source = SourceText::new("x", "ä = 1\r\nb = 2\n");
        let at = |offset| {
            let TextPosition { line, column } = source.position(offset);
            (line, column)
        };
        assert_eq!((at(0), at(3), at(8), at(14), at(99)), ((1, 1), (1, 3), (2, 1), (3, 1), (3, 1)));
        assert_eq!(
            (source.line(1), source.line(2), source.line(3), source.line(9)),
            ("ä = 1", "b = 2", "", "")
        );
    }
}
