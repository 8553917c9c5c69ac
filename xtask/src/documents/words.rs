//! Phrases to avoid, with what to write instead. The list is a data file that may only grow.

use std::iter;
use std::path::Path;

use serde::Deserialize;

use super::DocumentProblem;
use super::code::{CodeRules, RustFile, documentation_of, texts_of};
use super::markdown::MarkdownPage;
use crate::{TaskFailure, workspace};

/// Path of the list from the root of the repository.
const FILE: &str = "xtask/src/documents/words.toml";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PhraseRules {
    /// Files, and folders (with `/` at the end), whose language is checked.
    checked: Vec<String>,
    /// Names of files that are checked in every folder.
    checked_names: Vec<String>,
    /// Exceptions that are not rewritten yet.
    not_yet: Vec<String>,
    phrases: Vec<Phrase>,
    code: CodeRules,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Phrase {
    /// Spellings to look for, in any case.
    find: Vec<String>,
    /// The suggestion.
    write: String,
}

impl PhraseRules {
    pub(super) fn load() -> Result<Self, TaskFailure> {
        let rules: Self = toml::from_str(&workspace::read(&workspace::root().join(FILE))?)
            .map_err(|error| format!("cannot read {FILE}: {error}"))?;
        rules.validated()
    }

    fn validated(self) -> Result<Self, TaskFailure> {
        let is_missing = |path: &&String| !workspace::root().join(Path::new(path.as_str())).exists();
        if let Some(path) = self.checked.iter().chain(&self.not_yet).find(is_missing) {
            return Err(format!("{FILE} names {path}, which does not exist; remove it"));
        }
        let empty = |phrase: &&Phrase| {
            phrase.write.trim().is_empty()
                || phrase.find.is_empty()
                || phrase.find.iter().any(|text| text.trim().is_empty())
        };
        match self.phrases.iter().find(empty) {
            Some(phrase) => {
                Err(format!("{FILE}: the phrase {:?} has nothing to find or to write", phrase.find))
            }
            None => Ok(self),
        }
    }

    /// Reports phrases in the pages that are checked, and exceptions that nothing needs.
    pub(super) fn check(&self, pages: &[MarkdownPage]) -> Vec<DocumentProblem> {
        let has_name = |path: &str| {
            let name = path.rsplit('/').next().unwrap_or(path);
            self.checked_names.iter().any(|checked| checked == name)
        };
        let checked =
            || pages.iter().filter(|page| covers(&self.checked, &page.path) || has_name(&page.path));
        let mut findings: Vec<DocumentProblem> = checked()
            .filter(|page| !covers(&self.not_yet, &page.path))
            .flat_map(|page| self.findings(page))
            .collect();
        findings.extend(self.not_yet.iter().filter_map(|exception| {
            let needed = checked()
                .filter(|page| covers(std::slice::from_ref(exception), &page.path))
                .any(|page| !self.findings(page).is_empty());
            (!needed).then(|| DocumentProblem {
                file: FILE.to_owned(),
                line: 1,
                problem: format!("{exception} no longer has any of the phrases; remove it from `not_yet`"),
            })
        }));
        findings
    }

    /// Reports the same phrases in the documentation, the comments and the texts of the code, and violations of the rules
    /// for code alone.
    pub(super) fn check_code(&self, files: &[RustFile]) -> Vec<DocumentProblem> {
        let documented = files.iter().map(|file| MarkdownPage::new(&file.path, &documentation_of(file)));
        let texts = files.iter().map(|file| MarkdownPage::plain(&file.path, texts_of(file)));
        let phrases = documented.chain(texts).flat_map(|page| self.findings(&page));
        phrases.chain(self.code.check(files)).collect()
    }

    fn findings(&self, page: &MarkdownPage) -> Vec<DocumentProblem> {
        let text = NormalizedText::new(&page.prose);
        let found = |phrase: &Phrase| -> Vec<DocumentProblem> {
            phrase
                .find
                .iter()
                .flat_map(|spelling| text.positions(spelling).map(move |at| (spelling, at)))
                .map(|(spelling, at)| DocumentProblem {
                    file: page.path.clone(),
                    line: page.line(at),
                    problem: format!("\"{spelling}\": write {}", phrase.write),
                })
                .collect()
        };
        self.phrases.iter().flat_map(found).collect()
    }
}

/// Returns true if a path is one of these files or below one of these folders.
fn covers(list: &[String], path: &str) -> bool {
    list.iter().any(|entry| path == entry || (entry.ends_with('/') && path.starts_with(entry.as_str())))
}

/// A text in lower case, with one space for every run of white space and the plain apostrophe.
struct NormalizedText {
    text: String,
    /// Offset in the original, for each byte.
    offsets: Vec<usize>,
}

impl NormalizedText {
    fn new(original: &str) -> Self {
        let mut normalized = Self { text: String::new(), offsets: Vec::new() };
        for (at, character) in original.char_indices() {
            if character.is_whitespace() {
                if !normalized.text.ends_with(' ') {
                    normalized.push(' ', at);
                }
            } else if character == '’' {
                normalized.push('\'', at);
            } else {
                for lower in character.to_lowercase() {
                    normalized.push(lower, at);
                }
            }
        }
        normalized
    }

    fn push(&mut self, character: char, at: usize) {
        self.text.push(character);
        self.offsets.extend(iter::repeat_n(at, character.len_utf8()));
    }

    /// Returns the offsets in the original at which a phrase occurs as whole words.
    fn positions(&self, phrase: &str) -> impl Iterator<Item = usize> {
        let phrase = Self::new(phrase).text;
        let found: Vec<usize> = self
            .text
            .match_indices(&phrase)
            .filter(|&(at, _)| {
                let before = self.text.get(..at).and_then(|text| text.chars().next_back());
                let after = self.text.get(at + phrase.len()..).and_then(|text| text.chars().next());
                ![before, after].into_iter().flatten().any(|next| next.is_alphanumeric() || next == '_')
            })
            .filter_map(|(at, _)| self.offsets.get(at).copied())
            .collect();
        found.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> PhraseRules {
        toml::from_str(
            r#"
            checked = ["README.md", "docs/"]
            checked_names = ["Cargo.toml"]
            not_yet = ["docs/old/"]
            [[phrases]]
            find = ["nobody knows", "somebody"]
            write = "the outcome is unknown"
            [code]
            openings = []
            not_names = []
            nouns = []
            may_repeat = []
            not_identifiers = []
            "#,
        )
        .unwrap()
    }

    fn problems(pages: &[(&str, &str)]) -> Vec<String> {
        let pages: Vec<MarkdownPage> =
            pages.iter().map(|(path, text)| MarkdownPage::new(path, text)).collect();
        let found = rules().check(&pages);
        found
            .into_iter()
            .map(|finding| format!("{}:{}: {}", finding.file, finding.line, finding.problem))
            .collect()
    }

    const OLD: (&str, &str) = ("docs/old/a.md", "somebody");

    #[test]
    fn a_phrase_is_found_over_a_line_break_and_in_any_case() {
        assert_eq!(
            problems(&[OLD, ("docs/a.md", "# Title\n\nWhere Nobody\n  knows it.")]),
            ["docs/a.md:3: \"nobody knows\": write the outcome is unknown"]
        );
    }

    #[test]
    fn code_parts_of_words_and_files_that_are_not_checked_are_left_out() {
        assert_eq!(
            problems(&[
                OLD,
                ("README.md", "`somebody` somebodyelse not_somebody"),
                ("CONTRIBUTING.md", "somebody"),
                ("clippy.toml", "somebody")
            ]),
            [""; 0]
        );
    }

    #[test]
    fn files_are_checked_by_their_name() {
        let cargo = ("crates/a/Cargo.toml", "[package]\ndescription = \"Somebody\"");
        assert_eq!(
            problems(&[OLD, cargo]),
            ["crates/a/Cargo.toml:2: \"somebody\": write the outcome is unknown"]
        );
    }

    #[test]
    fn documentation_comments_and_texts_of_the_code_are_checked() {
        let text = "/// Somebody.\nfn f() {\n    // Nobody\n    // knows.\n    g(\"if somebody\");\n}\n";
        let found = rules().check_code(&[RustFile { path: "a.rs".to_owned(), text: text.to_owned() }]);
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [1, 3, 5]);
    }

    #[test]
    fn an_exception_that_nothing_needs_is_reported() {
        let found = problems(&[("docs/old/a.md", "clean")]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("docs/old/ no longer has any of the phrases"), "{found:?}");
    }

    #[test]
    fn the_list_is_valid_and_its_exceptions_only_shrink() {
        let rules = PhraseRules::load().unwrap();
        let first = ["docs/decisions/", "docs/errors/", "docs/operating/", "docs/reference/", "CHANGELOG.md"];
        for exception in &rules.not_yet {
            assert!(first.contains(&exception.as_str()), "{exception} was checked before");
        }
    }

    #[test]
    fn rules_are_added_and_exceptions_from_them_are_not() {
        let PhraseRules { checked, checked_names, phrases, code, .. } = PhraseRules::load().unwrap();
        let spellings: usize = phrases.iter().map(|phrase| phrase.find.len()).sum();
        for (list, count, minimum) in [
            ("checked", checked.len(), 13),
            ("checked_names", checked_names.len(), 1),
            ("phrases", spellings, 173),
            ("openings", code.openings.len(), 12),
            ("not_names", code.not_names.len(), 43),
            ("not_identifiers", code.not_identifiers.len(), 27),
        ] {
            assert!(
                count >= minimum,
                "{list} has {count} entries, and had {minimum}: entries are only added"
            );
        }
        for (list, count, maximum) in
            [("nouns", code.nouns.len(), 4), ("may_repeat", code.may_repeat.len(), 7)]
        {
            assert!(count <= maximum, "{list} has {count} entries, and had {maximum}: rename instead");
        }
    }
}
