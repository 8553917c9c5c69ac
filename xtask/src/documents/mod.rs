//! Checks of the texts of this repository: broken links, pages that are missing in the table of contents, and words to avoid
//! in documentation, comments and messages.
//!
//! Only files of this repository are read. External links are not checked.

mod code;
mod links;
mod markdown;
mod words;

use std::fs;
use std::path::Path;

use code::RustFile;
use markdown::MarkdownPage;

use crate::{TaskFailure, workspace};

/// A violation.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DocumentProblem {
    file: String,
    line: usize,
    problem: String,
}

/// Endings of files that are checked as plain text if the list of words names them.
const PLAIN: [&str; 3] = [".html", ".js", ".toml"];

/// Runs `cargo xtask docs`.
pub(crate) fn run() -> Result<(), TaskFailure> {
    let root = workspace::root();
    let texts = texts(root)?;
    let mut pages: Vec<MarkdownPage> =
        of_type(&texts, ".md").map(|(path, text)| MarkdownPage::new(path, text)).collect();
    let code: Vec<RustFile> = of_type(&texts, ".rs")
        .map(|(path, text)| RustFile { path: path.to_owned(), text: text.to_owned() })
        .collect();
    let rules = words::PhraseRules::load()?;
    let mut findings = links::check(&pages, |path| root.join(path).exists());
    let plain = PLAIN.iter().flat_map(|ending| of_type(&texts, ending));
    pages.extend(plain.map(|(path, text)| MarkdownPage::plain(path, without_comment_signs(text))));
    findings.extend(rules.check(&pages));
    findings.extend(rules.check_code(&code));
    findings.sort();
    for DocumentProblem { file, line, problem } in &findings {
        eprintln!("{file}:{line}: {problem}");
    }
    match findings.len() {
        0 => Ok(()),
        1 => Err("1 problem in documentation or code".to_owned()),
        count => Err(format!("{count} problems in documentation and code")),
    }
}

/// Returns the files of the repository that can be checked, with their texts. Hidden, built and installed files are left
/// out.
fn texts(root: &Path) -> Result<Vec<(String, String)>, TaskFailure> {
    let mut texts = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        let cannot = |error: std::io::Error| format!("cannot list {}: {error}", workspace::shown(&folder));
        for entry in fs::read_dir(&folder).map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let path = entry.path();
            if entry.file_type().map_err(cannot)?.is_dir() {
                if !name.starts_with('.') && name != "target" && name != "node_modules" {
                    open.push(path);
                }
            } else if [".md", ".rs"].iter().chain(&PLAIN).any(|ending| name.ends_with(ending)) {
                let below = path.strip_prefix(root).unwrap_or(&path);
                texts.push((below.display().to_string(), workspace::read(&path)?));
            }
        }
    }
    texts.sort();
    Ok(texts)
}

fn of_type<'t>(texts: &'t [(String, String)], ending: &'t str) -> impl Iterator<Item = (&'t str, &'t str)> {
    let named = texts.iter().map(|(path, text)| (path.as_str(), text.as_str()));
    named.filter(move |(path, _)| path.ends_with(ending))
}

/// Replaces the signs before comments by spaces, so that a phrase can continue in the next line.
fn without_comment_signs(text: &str) -> String {
    let line = |line: &str| {
        let text = line.trim_start_matches([' ', '/', '#']);
        format!("{}{text}\n", " ".repeat(line.len() - text.len()))
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_this_repository_are_found_and_built_ones_are_not() {
        let texts = texts(workspace::root()).unwrap();
        let has = |path: &str| texts.iter().any(|(other, _)| other == path);
        assert!(has("README.md") && has("docs/reference/settings.md") && has("xtask/src/documents/mod.rs"));
        assert!(has("xtask/src/documents/words.toml") && has("crates/api/src/page/index.html"));
        assert!(!texts.iter().any(|(path, _)| path.starts_with("target/")));
    }

    #[test]
    fn signs_of_comments_are_replaced_and_lines_stay() {
        assert_eq!(without_comment_signs("a # b\n  // c\n\n## d"), "a # b\n     c\n\n   d\n");
    }
}
