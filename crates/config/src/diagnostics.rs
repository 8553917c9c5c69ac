//! Errors of a configuration, reported all at once in a readable form.
//!
//! Each problem names its place, shows the line with a caret below it, and says what to write instead. Lines
//! are redacted: an error in the line of a password must not print the password.

use std::collections::BTreeSet;
use std::fmt;

use crate::location::{SettingPosition, SourceLocation, SourceText};

/// Maximum number of problems that are printed. A file of the wrong kind would fill the screen otherwise.
const MOST_SHOWN: usize = 50;
/// Maximum length of the printed part of a line, in characters.
const LONGEST_LINE: usize = 160;

/// All errors of a configuration, in the order in which they are written.
#[derive(Clone, Debug)]
pub struct ConfigErrors {
    problems: Vec<ConfigProblem>,
    unread: BTreeSet<Section>,
}

/// A part of the configuration that other checks depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// `listen`.
    Listen,
    /// `[store]`.
    Store,
    /// `[tokens]`.
    Tokens,
}

impl Section {
    pub(crate) const ALL: [Self; 3] = [Self::Listen, Self::Store, Self::Tokens];

    /// Returns the name of the section at the top level of a file.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Listen => "listen",
            Self::Store => "store",
            Self::Tokens => "tokens",
        }
    }

    /// Returns the section with this name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|section| section.name() == name)
    }
}

impl ConfigErrors {
    /// Returns `None` if there are no problems.
    pub(crate) fn of(mut problems: Vec<ConfigProblem>, unread: BTreeSet<Section>) -> Option<Self> {
        if problems.is_empty() {
            return None;
        }
        problems.sort_by_key(|problem| (problem.layer, problem.offset().unwrap_or_default()));
        Some(Self { problems, unread })
    }

    /// Returns true if a part of this section could not be read, so its settings are unreliable.
    pub fn concern(&self, section: Section) -> bool {
        self.unread.contains(&section)
    }

    /// Returns the single problems.
    pub fn problems(&self) -> &[ConfigProblem] {
        &self.problems
    }
}

// Not derived: the text is a report of many lines, which no format string of `thiserror` expresses.
impl std::error::Error for ConfigErrors {}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in self.problems.iter().take(MOST_SHOWN) {
            writeln!(f, "{problem}")?;
        }
        let count = self.problems.len();
        if count > MOST_SHOWN {
            writeln!(f, "and {} more\n", count - MOST_SHOWN)?;
        }
        match count {
            1 => write!(f, "1 error in the configuration"),
            count => write!(f, "{count} errors in the configuration"),
        }
    }
}

/// One error in the configuration.
#[derive(Clone, Debug)]
pub struct ConfigProblem {
    place: Option<SourceLocation>,
    /// Position of the source among all sources, for sorting.
    layer: usize,
    message: String,
    help: Option<String>,
}

impl ConfigProblem {
    pub(crate) fn new(place: &SourceLocation, message: impl Into<String>) -> Self {
        Self { place: Some(place.clone()), layer: 0, message: message.into(), help: None }
    }

    /// Returns a problem about something that cannot be shown, such as an unreadable file.
    pub(crate) fn nowhere(message: impl Into<String>) -> Self {
        Self { place: None, layer: 0, message: message.into(), help: None }
    }

    pub(crate) fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// Returns the offset in its file at which the problem begins.
    pub(crate) fn offset(&self) -> Option<usize> {
        match &self.place {
            Some(SourceLocation::File(_, span)) => Some(span.start),
            Some(SourceLocation::Variable(_) | SourceLocation::Flag(_)) | None => None,
        }
    }

    pub(crate) fn in_layer(self, layer: usize) -> Self {
        Self { layer, ..self }
    }

    /// Returns the position of the problem, if it has one.
    pub fn at(&self) -> Option<SettingPosition> {
        self.place.as_ref().map(SourceLocation::written)
    }

    /// Returns the problem in one sentence.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns advice on what to write instead.
    pub fn advice(&self) -> Option<&str> {
        self.help.as_deref()
    }
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "error: {}", self.message)?;
        let margin = match &self.place {
            Some(SourceLocation::File(source, span)) => write_lines(f, source, span.start, span.end)?,
            Some(place @ (SourceLocation::Variable(_) | SourceLocation::Flag(_))) => {
                writeln!(f, "  --> {}", place.written())?;
                1
            }
            None => 1,
        };
        match &self.help {
            Some(help) => writeln!(f, "{:margin$} = {help}", ""),
            None => Ok(()),
        }
    }
}

/// Writes the place, the line, and a caret below the offending text. Returns the width of the margin.
fn write_lines(
    f: &mut fmt::Formatter<'_>,
    source: &SourceText,
    start: usize,
    end: usize,
) -> Result<usize, fmt::Error> {
    let from = source.position(start);
    let line = source.line(from.line);
    let margin = from.line.to_string().len() + 1;
    let bar = format!("{:margin$} |", "");
    writeln!(f, "{:width$}--> {}:{}:{}", "", source.name, from.line, from.column, width = margin)?;
    let clean = steadfast_redact::text(line);
    let shown: String =
        clean.chars().take(LONGEST_LINE).map(|c| if c.is_control() { ' ' } else { c }).collect();
    let more = if clean.chars().count() > LONGEST_LINE { "…" } else { "" };
    writeln!(f, "{bar}\n{:>number$} | {shown}{more}", from.line, number = margin)?;
    // Redaction may have moved the text below the caret.
    let indent = from.column - 1;
    let before: String = line.chars().take(indent).collect();
    if indent < LONGEST_LINE && clean.starts_with(&before) {
        let marked = source.text.get(start..end).unwrap_or_default().lines().next().unwrap_or_default();
        let room = shown.chars().count().saturating_sub(indent).max(1);
        let carets = "^".repeat(marked.chars().count().clamp(1, room));
        writeln!(f, "{bar} {:indent$}{carets}", "")?;
    }
    Ok(margin)
}

/// Returns the name that was probably meant.
pub fn nearest<'n>(written: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let folded = |name: &str| name.to_lowercase().replace('-', "_");
    let written = folded(written);
    let mut best: Option<(f64, &str)> = None;
    for name in names {
        let likeness = strsim::jaro_winkler(&written, &folded(name));
        let slips = strsim::damerau_levenshtein(&written, &folded(name));
        let near = likeness >= 0.87 || slips <= 1 + written.len() / 6;
        if near && best.is_none_or(|(most, _)| likeness > most) {
            best = Some((likeness, name));
        }
    }
    best.map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_words_are_suggested_and_others_are_not() {
        let names = ["attempts", "base", "factor", "cap", "total", "jitter"];
        for (written, expected) in
            [("attemps", "attempts"), ("Attempts", "attempts"), ("atempt", "attempts"), ("facter", "factor")]
        {
            assert_eq!(nearest(written, names), Some(expected));
        }
        for stranger in ["colour", "x", "retries"] {
            assert_eq!(nearest(stranger, names), None, "{stranger}");
        }
    }

    #[test]
    fn a_caret_is_below_the_offending_text() {
        let source = SourceText::new("steadfast.toml", "[retry]\nattemps = 3\n");
        let problem = ConfigProblem::new(&SourceLocation::File(source, 8..15), "`attemps` is not known")
            .help("did you mean?");
        assert_eq!(
            problem.to_string(),
            "error: `attemps` is not known\n  --> steadfast.toml:2:1\n   |\n 2 | attemps = 3\n   | ^^^^^^^\n\
             \x20  = did you mean?\n"
        );
    }

    #[test]
    fn sf_6_the_line_of_an_error_does_not_show_its_secret() {
        let source = SourceText::new("x.toml", "url = \"redis://:hunter2hunter2@h:6379/0\" # x\n");
        let problem = ConfigProblem::new(&SourceLocation::File(source, 41..44), "something").to_string();
        assert!(!problem.contains("hunter2"), "{problem}");
        assert!(!problem.contains('^'), "the caret would point to something else: {problem}");
    }
}
