//! A change to the sources, as listed by cargo-mutants.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::module_path;

/// A change and its location.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Mutant {
    /// File, line, column and change. Unique.
    pub(super) name: String,
    pub(super) file: PathBuf,
    span: SourceSpan,
    replacement: String,
}

/// The replaced range. The end is exclusive.
#[derive(Clone, Copy, Debug, Deserialize)]
struct SourceSpan {
    start: MutantPosition,
    end: MutantPosition,
}

/// Counted from 1, in characters.
#[derive(Clone, Copy, Debug, Deserialize)]
struct MutantPosition {
    line: usize,
    column: usize,
}

impl Mutant {
    /// Returns its module.
    pub(super) fn module(&self) -> String {
        let path = module_path(&self.file).unwrap_or_default();
        path.split('/').next().unwrap_or_default().to_owned()
    }

    /// Returns true if it is in this module, or in this file of a module.
    pub(super) fn is_below(&self, name: &str) -> bool {
        module_path(&self.file).is_some_and(|path| Path::new(&path).starts_with(name))
    }

    /// Returns the change without the location.
    pub(super) fn change(&self) -> &str {
        self.name.split_once(": ").map_or("", |(_, change)| change)
    }

    /// Returns true if it begins within this part of a line.
    pub(super) fn begins_in(&self, part: &str, text: &str) -> bool {
        let MutantPosition { line, column } = self.span.start;
        let line = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
        let column = line.chars().take(column.saturating_sub(1)).map(char::len_utf8).sum();
        line.match_indices(part).any(|(at, part)| (at..at + part.len()).contains(&column))
    }

    /// Returns the text of its file with the change applied.
    pub(super) fn apply(&self, text: &str) -> Option<String> {
        let (start, end) = (self.span.start.offset(text)?, self.span.end.offset(text)?);
        Some([text.get(..start)?, &self.replacement, text.get(end..)?].concat())
    }
}

impl MutantPosition {
    /// Returns the offset in bytes from the start of the text.
    fn offset(self, text: &str) -> Option<usize> {
        let mut lines = text.split_inclusive('\n');
        let before: usize = lines.by_ref().take(self.line.checked_sub(1)?).map(str::len).sum();
        let within = lines.next().unwrap_or_default().chars().take(self.column.checked_sub(1)?);
        Some(before + within.map(char::len_utf8).sum::<usize>())
    }
}

#[cfg(test)]
impl Mutant {
    /// Returns a mutant of this file: `dedupe/claim`.
    pub(super) fn in_file(path: &str) -> Self {
        Self::replacing(path, "replace < with <= in f", (1, 1), (1, 2), "<=")
    }

    pub(super) fn replacing(
        path: &str,
        change: &str,
        (line, column): (usize, usize),
        end: (usize, usize),
        replacement: &str,
    ) -> Self {
        let file = format!("{}/{path}.rs", super::CORE_SOURCES);
        Self {
            name: format!("{file}:{line}:{column}: {change}"),
            file: file.into(),
            span: SourceSpan {
                start: MutantPosition { line, column },
                end: MutantPosition { line: end.0, column: end.1 },
            },
            replacement: replacement.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_applied_at_its_span_even_after_wide_characters() {
        let text = "fn f() {\n    \"…\" < b\n}\n";
        let operator = Mutant::replacing("key", "replace < with > in f", (2, 9), (2, 10), ">");
        assert_eq!(operator.apply(text).unwrap(), "fn f() {\n    \"…\" > b\n}\n");
        assert!(operator.begins_in("\"…\" < b", text) && operator.begins_in("<", text));
        assert!(!operator.begins_in("\"…\"", text) && !operator.begins_in(" b", text));
        let body = Mutant::replacing("key", "replace f with ()", (1, 9), (3, 1), " () ");
        assert_eq!(body.apply(text).unwrap(), "fn f() { () }\n");
    }

    #[test]
    fn a_name_is_a_place_and_a_change() {
        let mutant = Mutant::in_file("dedupe/claim");
        assert_eq!((mutant.module().as_str(), mutant.change()), ("dedupe", "replace < with <= in f"));
        assert_eq!(Mutant::in_file("retry").module(), "retry");
    }
}
