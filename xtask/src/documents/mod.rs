//! Checks of the Markdown files: links that lead nowhere, pages that the table of contents lacks, and words to avoid.
//!
//! Everything is read from this repository; addresses elsewhere are not asked.

mod links;
mod markdown;
mod words;

use std::fs;
use std::path::Path;

use markdown::Page;

use crate::{Failure, workspace};

/// One thing to correct.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    file: String,
    line: usize,
    problem: String,
}

/// `cargo xtask docs`.
pub(crate) fn run() -> Result<(), Failure> {
    let root = workspace::root();
    let pages = pages(root)?;
    let rules = words::Rules::load()?;
    let mut findings = links::check(&pages, |path| root.join(path).exists());
    findings.extend(rules.check(&pages));
    findings.sort();
    for Finding { file, line, problem } in &findings {
        eprintln!("{file}:{line}: {problem}");
    }
    match findings.len() {
        0 => Ok(()),
        1 => Err("1 problem in the Markdown files".to_owned()),
        count => Err(format!("{count} problems in the Markdown files")),
    }
}

/// Every Markdown file of the repository. What is hidden, built or installed is not part of it.
fn pages(root: &Path) -> Result<Vec<Page>, Failure> {
    let mut pages = Vec::new();
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
            } else if name.ends_with(".md") {
                let below = path.strip_prefix(root).unwrap_or(&path);
                pages.push(Page::new(&below.display().to_string(), &workspace::read(&path)?));
            }
        }
    }
    pages.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_this_repository_are_found_and_built_ones_are_not() {
        let pages = pages(workspace::root()).unwrap();
        let has = |path: &str| pages.iter().any(|page| page.path == path);
        assert!(has("README.md") && has("docs/reference/settings.md"));
        assert!(!pages.iter().any(|page| page.path.starts_with("target/")));
    }
}
