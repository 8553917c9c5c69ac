//! The language of the Rust code: how documentation begins, the names of types, functions and variables, and the comments
//! and texts.
//!
//! The code is formatted by rustfmt, so a definition and a line of documentation are each found at the start of a line.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::DocumentProblem;
use super::markdown::{blank, without_spans};
use crate::rust_tokens::{self, SourcePieceKind};

/// The section `code` of the list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CodeRules {
    /// Words with which no documentation begins.
    pub(super) openings: Vec<String>,
    /// Names that say too little to stand alone.
    pub(super) not_names: Vec<String>,
    /// Nouns that look like participles.
    pub(super) nouns: Vec<String>,
    /// Names that several modules may define.
    pub(super) may_repeat: Vec<String>,
    /// Names that no function, field or variable has.
    pub(super) not_identifiers: Vec<String>,
}

/// A Rust file.
pub(super) struct RustFile {
    /// The path from the root of the repository, with `/`.
    pub(super) path: String,
    pub(super) text: String,
}

impl CodeRules {
    /// Reports documentation that begins with a question word, names of types that are vague or taken, and vague names of
    /// anything else.
    pub(super) fn check(&self, files: &[RustFile]) -> Vec<DocumentProblem> {
        let openings = files.iter().flat_map(|file| self.openings(file));
        let identifiers = files.iter().flat_map(|file| self.identifiers(file));
        openings.chain(identifiers).chain(self.names(files)).collect()
    }

    fn identifiers(&self, file: &RustFile) -> Vec<DocumentProblem> {
        let vague = rust_tokens::tokens(&file.text)
            .into_iter()
            .filter(|token| self.not_identifiers.iter().any(|name| name == token.text));
        vague
            .map(|token| DocumentProblem {
                file: file.path.clone(),
                line: token.line,
                problem: format!(
                    "`{}` does not say what the value is or what the function does; name that",
                    token.text
                ),
            })
            .collect()
    }

    fn openings(&self, file: &RustFile) -> Vec<DocumentProblem> {
        let mut findings = Vec::new();
        let mut before = None;
        for (line, text) in numbered(&file.text) {
            let documentation = documentation(text);
            if let (None, Some(summary)) = (before, documentation) {
                let first =
                    summary.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
                if self.openings.iter().any(|word| word.eq_ignore_ascii_case(first)) {
                    let problem = format!(
                        "documentation begins with \"{first}\": name the thing, or write \"Returns …\""
                    );
                    findings.push(DocumentProblem { file: file.path.clone(), line, problem });
                }
            }
            before = documentation;
        }
        findings
    }

    fn names(&self, files: &[RustFile]) -> Vec<DocumentProblem> {
        let mut places: BTreeMap<&str, Vec<(&RustFile, usize)>> = BTreeMap::new();
        for file in files {
            for (line, text) in numbered(&file.text) {
                if let Some(name) = defined_type(text) {
                    places.entry(name).or_default().push((file, line));
                }
            }
        }
        let mut findings = Vec::new();
        for (name, places) in places {
            let has = |list: &[String]| list.iter().any(|entry| entry == name);
            let is_one_word = name.chars().filter(char::is_ascii_uppercase).count() == 1;
            let participle = is_one_word && (name.ends_with("ed") || name.ends_with("ing"));
            let vague = has(&self.not_names) || (participle && !has(&self.nouns));
            for (at, (file, line)) in places.iter().enumerate() {
                let problem = if vague {
                    format!("`{name}` does not say what the type is; name the thing")
                } else if at > 0 && !has(&self.may_repeat) {
                    let (first, line) = places.first().map_or(("", 0), |(file, line)| (&file.path, *line));
                    format!("`{name}` is defined in {first}:{line} too; a name has one meaning")
                } else {
                    continue;
                };
                findings.push(DocumentProblem { file: file.path.clone(), line: *line, problem });
            }
        }
        findings
    }
}

/// The documentation of a file alone: every other line is empty.
pub(super) fn documentation_of(file: &RustFile) -> String {
    let line = |text| documentation(text).unwrap_or_default();
    file.text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// The ordinary comments and the texts of a file. Everything else is replaced by spaces, and so are the texts of tests:
/// test data may say anything.
pub(super) fn texts_of(file: &RustFile) -> String {
    let is_test = file.path.split('/').any(|part| matches!(part, "tests" | "tests.rs"));
    let mut prose = String::with_capacity(file.text.len());
    let mut tests = TestItems::default();
    for piece in rust_tokens::pieces(&file.text) {
        match piece.kind {
            SourcePieceKind::Comment if documentation(piece.text).is_none() => {
                let text = piece.text.trim_start_matches(['/', '*']);
                blank(&mut prose, piece.text.strip_suffix(text).unwrap_or_default());
                prose.push_str(&without_spans(text));
            }
            SourcePieceKind::StringLiteral if !is_test && !tests.is_inside() => {
                prose.push_str(&literal_text(piece.text));
            }
            SourcePieceKind::Token => {
                tests.pass(piece.text);
                blank(&mut prose, piece.text);
            }
            SourcePieceKind::Comment | SourcePieceKind::StringLiteral | SourcePieceKind::Other => {
                blank(&mut prose, piece.text);
            }
        }
    }
    prose
}

/// Returns a string literal with spaces instead of escapes and code. A literal of one word is a name and is left out. The
/// quotes stay, so that no phrase continues in the next literal.
fn literal_text(literal: &str) -> String {
    let mut text = String::with_capacity(literal.len());
    if !literal.contains(char::is_whitespace) {
        blank(&mut text, literal);
        return text;
    }
    let is_raw = literal.split('"').next().is_some_and(|prefix| prefix.contains('r'));
    let mut is_escaped = false;
    for character in literal.chars() {
        let is_escape = character == '\\' && !is_raw && !is_escaped;
        if is_escape || is_escaped {
            blank(&mut text, character.encode_utf8(&mut [0; 4]));
        } else {
            text.push(character);
        }
        is_escaped = is_escape;
    }
    without_spans(&text)
}

/// Finds the items that are compiled for tests only, in the tokens of a file.
#[derive(Default)]
struct TestItems {
    /// All tokens so far.
    code: String,
    /// True after the attribute of an item, until its body or end.
    is_next: bool,
    /// Number of open braces of the item.
    depth: u32,
}

impl TestItems {
    fn is_inside(&self) -> bool {
        self.is_next || self.depth > 0
    }

    fn pass(&mut self, token: &str) {
        self.code.push_str(token);
        match token {
            "{" if self.is_inside() => (self.is_next, self.depth) = (false, self.depth + 1),
            "}" if self.depth > 0 => self.depth -= 1,
            "}" | ";" => self.is_next = false,
            "test" if self.depth == 0 => {
                let attributes = ["#[cfg(test", "#[cfg(all(test"];
                self.is_next |= attributes.iter().any(|attribute| self.code.ends_with(attribute));
            }
            _ => {}
        }
    }
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(at, line)| (at + 1, line))
}

/// The text of a line of documentation.
fn documentation(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let text = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))?;
    (!text.starts_with('/')).then(|| text.trim())
}

/// The type that a line defines. Aliases count at the top of a file only: elsewhere most belong to a trait.
fn defined_type(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    let is_indented = rest.len() < line.len();
    if let Some(after) = rest.strip_prefix("pub") {
        rest = match after.strip_prefix('(') {
            Some(scope) => scope.split_once(") ")?.1,
            None => after.strip_prefix(' ')?,
        };
    }
    let (keyword, name) = rest.split_once(' ')?;
    let defines = match keyword {
        "struct" | "enum" | "trait" | "union" => true,
        "type" => !is_indented,
        _ => false,
    };
    let name = name.split(|letter: char| !letter.is_alphanumeric()).next()?;
    (defines && name.starts_with(|first: char| first.is_ascii_uppercase())).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(files: &[(&str, &str)]) -> Vec<String> {
        let rules: CodeRules = toml::from_str(
            r#"
            openings = ["what", "whether"]
            not_names = ["Way"]
            nouns = ["Timing"]
            may_repeat = ["Error"]
            not_identifiers = ["told"]
            "#,
        )
        .unwrap();
        let files: Vec<_> = files
            .iter()
            .map(|&(path, text)| RustFile { path: path.to_owned(), text: text.to_owned() })
            .collect();
        let found = rules.check(&files).into_iter();
        found.map(|finding| format!("{}:{}: {}", finding.file, finding.line, finding.problem)).collect()
    }

    #[test]
    fn documentation_that_begins_with_a_question_word_is_reported() {
        let text = "//! What it is.\n\n/// A breaker.\n/// What follows is fine.\nstruct Breaker;\n    /// Whether.\n// What\n";
        assert_eq!(
            problems(&[("a.rs", text)]),
            [
                "a.rs:1: documentation begins with \"What\": name the thing, or write \"Returns …\"",
                "a.rs:6: documentation begins with \"Whether\": name the thing, or write \"Returns …\"",
            ]
        );
    }

    #[test]
    fn vague_names_and_names_with_two_meanings_are_reported() {
        let one =
            "pub(crate) struct Record<T> {\nstruct Error;\nenum Asked {\nstruct Timing;\ntype Way = ();\n";
        let other =
            "pub enum Record {\nstruct Error;\nimpl A {\n    type Record = ();\n}\nlet struct_record = 1;\n";
        assert_eq!(
            problems(&[("a.rs", one), ("b.rs", other)]),
            [
                "a.rs:3: `Asked` does not say what the type is; name the thing",
                "b.rs:1: `Record` is defined in a.rs:1 too; a name has one meaning",
                "a.rs:5: `Way` does not say what the type is; name the thing",
            ]
        );
    }

    fn texts(path: &str, text: &str) -> Vec<String> {
        let prose = texts_of(&RustFile { path: path.to_owned(), text: text.to_owned() });
        assert_eq!(prose.matches('\n').count(), text.matches('\n').count());
        let words = prose.split('"').map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
        words.filter(|words| !words.is_empty()).collect()
    }

    #[test]
    fn comments_and_texts_are_read_without_code_and_names() {
        let text = r##"
            /// Documentation.
            f("a `b` c\n\td {e} \
               g", "name", 'h', r#"i \n"#, b"j k"); // l
            /* m */
        "##;
        assert_eq!(texts("src/a.rs", text), ["a c d {e} g", "r#", "i \\n", "# b", "j k", "l m */"]);
    }

    #[test]
    fn texts_of_tests_are_left_out_and_their_comments_are_not() {
        let text = "\"a b\"\n#[cfg(test)]\nuse c::{d};\n\"e f\"\n#[cfg(all(test, unix))]\n#[x]\nmod tests {\n\
                    fn g() { \"h i\" }\n// j\n\"k l\"\n}\n\"m n\"\n#[cfg(test)]\nmod o;\n\"p q\"\n";
        assert_eq!(texts("src/a.rs", text), ["a b", "e f", "j", "m n", "p q"]);
        assert_eq!(texts("crates/a/tests/b.rs", text), ["j"]);
        assert_eq!(texts("crates/a/src/tests.rs", text), ["j"]);
    }

    #[test]
    fn vague_names_of_variables_are_reported_and_words_in_strings_are_not() {
        let text =
            "fn f() {\n    // told\n    let told_twice = \"told\";\n    let told = self.r#told();\n}\n";
        let report = "a.rs:4: `told` does not say what the value is or what the function does; name that";
        assert_eq!(problems(&[("a.rs", text)]), [report, report]);
    }
}
