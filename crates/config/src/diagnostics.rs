//! What is wrong with a configuration, all at once, in a form that a person likes to read.
//!
//! Each problem names its place, shows the line with a caret below it, and says what to write instead. Lines
//! go through redaction: a mistake in the line of a password must not print the password.

use std::collections::BTreeSet;
use std::fmt;

use steadfast_core::redact;

use crate::place::{Place, SourceText, WrittenAt};

/// The most problems that are printed; a wrong kind of file would fill the screen otherwise.
const MOST_SHOWN: usize = 50;
/// The longest part of a line that is printed, in characters.
const LONGEST_LINE: usize = 160;

/// Everything that is wrong with a configuration, in the order in which it is written.
#[derive(Clone, Debug)]
pub struct ConfigErrors {
    problems: Vec<Problem>,
    unread: BTreeSet<Section>,
}

/// A part of the configuration that other checks rest on.
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

    /// Its name at the top level of a file.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Listen => "listen",
            Self::Store => "store",
            Self::Tokens => "tokens",
        }
    }

    /// The one that is called so.
    pub(crate) fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|section| section.name() == name)
    }
}

impl ConfigErrors {
    /// Nothing if there are no problems.
    pub(crate) fn of(mut problems: Vec<Problem>, unread: BTreeSet<Section>) -> Option<Self> {
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

    /// One by one.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

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
            1 => write!(f, "1 mistake in the configuration"),
            count => write!(f, "{count} mistakes in the configuration"),
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug)]
pub struct Problem {
    place: Option<Place>,
    /// The position of the source among all, for sorting.
    layer: usize,
    what: String,
    help: Option<String>,
}

impl Problem {
    pub(crate) fn new(place: &Place, what: impl Into<String>) -> Self {
        Self { place: Some(place.clone()), layer: 0, what: what.into(), help: None }
    }

    /// About something that cannot be shown, such as a file that cannot be read.
    pub(crate) fn nowhere(what: impl Into<String>) -> Self {
        Self { place: None, layer: 0, what: what.into(), help: None }
    }

    pub(crate) fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// Where in its file it begins.
    pub(crate) fn offset(&self) -> Option<usize> {
        match &self.place {
            Some(Place::File(_, span)) => Some(span.start),
            Some(Place::Variable(_) | Place::Flag(_)) | None => None,
        }
    }

    pub(crate) fn in_layer(self, layer: usize) -> Self {
        Self { layer, ..self }
    }

    /// Where it is, if it is somewhere.
    pub fn at(&self) -> Option<WrittenAt> {
        self.place.as_ref().map(Place::written)
    }

    /// What is wrong, in one sentence.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// What to write instead.
    pub fn advice(&self) -> Option<&str> {
        self.help.as_deref()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "error: {}", self.what)?;
        let margin = match &self.place {
            Some(Place::File(source, span)) => write_lines(f, source, span.start, span.end)?,
            Some(place @ (Place::Variable(_) | Place::Flag(_))) => {
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

/// The place, the line, and a caret below what is meant. Gives the width of the margin.
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
    let clean = redact::text(line);
    let shown: String =
        clean.chars().take(LONGEST_LINE).map(|c| if c.is_control() { ' ' } else { c }).collect();
    let more = if clean.chars().count() > LONGEST_LINE { "…" } else { "" };
    writeln!(f, "{bar}\n{:>number$} | {shown}{more}", from.line, number = margin)?;
    // Redaction may have moved what the caret would point to.
    let indent = from.column - 1;
    let before: String = line.chars().take(indent).collect();
    if indent < LONGEST_LINE && clean.starts_with(&before) {
        let meant = source.text.get(start..end).unwrap_or_default().lines().next().unwrap_or_default();
        let room = shown.chars().count().saturating_sub(indent).max(1);
        let carets = "^".repeat(meant.chars().count().clamp(1, room));
        writeln!(f, "{bar} {:indent$}{carets}", "")?;
    }
    Ok(margin)
}

/// The name that was probably meant.
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
    fn slips_of_the_pen_are_recognised_and_other_words_are_not() {
        let names = ["attempts", "base", "factor", "cap", "total", "jitter"];
        for (written, meant) in
            [("attemps", "attempts"), ("Attempts", "attempts"), ("atempt", "attempts"), ("facter", "factor")]
        {
            assert_eq!(nearest(written, names), Some(meant));
        }
        for stranger in ["colour", "x", "retries"] {
            assert_eq!(nearest(stranger, names), None, "{stranger}");
        }
    }

    #[test]
    fn a_caret_stands_below_what_is_meant() {
        let source = SourceText::new("steadfast.toml", "[retry]\nattemps = 3\n");
        let problem =
            Problem::new(&Place::File(source, 8..15), "`attemps` is not known").help("did you mean?");
        assert_eq!(
            problem.to_string(),
            "error: `attemps` is not known\n  --> steadfast.toml:2:1\n   |\n 2 | attemps = 3\n   | ^^^^^^^\n\
             \x20  = did you mean?\n"
        );
    }

    #[test]
    fn sf_6_the_line_of_a_mistake_does_not_show_its_secret() {
        let source = SourceText::new("x.toml", "url = \"redis://:hunter2hunter2@h:6379/0\" # x\n");
        let problem = Problem::new(&Place::File(source, 41..44), "something").to_string();
        assert!(!problem.contains("hunter2"), "{problem}");
        assert!(!problem.contains('^'), "the caret would point to something else: {problem}");
    }
}
