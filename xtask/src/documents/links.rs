//! Checks links between files of the repository: the file must exist, and so must the heading that is named. Pages of the book
//! link only to each other, because the rendered book has nothing else.

use std::collections::{BTreeMap, BTreeSet};

use super::DocumentProblem;
use super::markdown::MarkdownPage;

/// Folder of the book. All its pages must be in its table of contents, and their links stay in it.
const BOOK: &str = "docs/";
const SUMMARY: &str = "docs/SUMMARY.md";

/// Checks all links of all pages. `exists` returns true if there is a file or folder at a path from the root of the
/// repository.
pub(super) fn check(pages: &[MarkdownPage], exists: impl Fn(&str) -> bool) -> Vec<DocumentProblem> {
    let anchors: BTreeMap<&str, &[String]> =
        pages.iter().map(|page| (page.path.as_str(), page.anchors.as_slice())).collect();
    let mut findings = Vec::new();
    let mut in_book = BTreeSet::new();
    for page in pages {
        for link in page.links() {
            let target = target(&page.path, &link.destination);
            if let (SUMMARY, Ok(LinkTarget::Here { path, .. })) = (page.path.as_str(), &target) {
                in_book.insert(path.clone());
            }
            let leaves_book =
                |path: &str| page.path.starts_with(BOOK) && !format!("{path}/").starts_with(BOOK);
            let problem = target.and_then(|target| match target {
                LinkTarget::Elsewhere => Ok(()),
                LinkTarget::Here { path, .. } if leaves_book(&path) => {
                    Err(format!("{path} is not in the book; write its path as code"))
                }
                LinkTarget::Here { path, .. } if !exists(&path) => Err(format!("there is no file {path}")),
                LinkTarget::Here { path, anchor: Some(anchor) } => match anchors.get(path.as_str()) {
                    Some(has) if !has.contains(&anchor) => Err(format!("{path} has no heading #{anchor}")),
                    Some(_) | None => Ok(()),
                },
                LinkTarget::Here { .. } => Ok(()),
            });
            if let Err(problem) = problem {
                let problem = format!("the link `{}` is broken: {problem}", link.destination);
                findings.push(DocumentProblem { file: page.path.clone(), line: link.line, problem });
            }
        }
    }
    if anchors.contains_key(SUMMARY) {
        let missing = |page: &&MarkdownPage| {
            page.path.starts_with(BOOK) && page.path != SUMMARY && !in_book.contains(&page.path)
        };
        findings.extend(pages.iter().filter(missing).map(|page| DocumentProblem {
            file: page.path.clone(),
            line: 1,
            problem: format!("the page is not in {SUMMARY}; add it to the table of contents"),
        }));
    }
    findings
}

#[derive(Debug, PartialEq, Eq)]
enum LinkTarget {
    /// An external address, which is not checked.
    Elsewhere,
    Here {
        path: String,
        anchor: Option<String>,
    },
}

/// Resolves a destination in the page at `from`.
fn target(from: &str, destination: &str) -> Result<LinkTarget, String> {
    if has_scheme(destination) || destination.starts_with("//") {
        return Ok(LinkTarget::Elsewhere);
    }
    if destination.is_empty() {
        return Err("it has no destination".to_owned());
    }
    if destination.starts_with('/') {
        return Err("write the path from this file, so that it works in every place".to_owned());
    }
    let (path, anchor) = match destination.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor.to_owned())),
        None => (destination, None),
    };
    if path.is_empty() {
        return Ok(LinkTarget::Here { path: from.to_owned(), anchor });
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    let path = path.replace("%20", " ");
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop().ok_or("it leaves the repository")?;
            }
            _ => parts.push(part),
        }
    }
    Ok(LinkTarget::Here { path: parts.join("/"), anchor })
}

fn has_scheme(destination: &str) -> bool {
    destination.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.chars().all(|other| other.is_ascii_alphanumeric() || matches!(other, '+' | '-' | '.'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(pages: &[(&str, &str)]) -> Vec<String> {
        let pages: Vec<MarkdownPage> =
            pages.iter().map(|(path, text)| MarkdownPage::new(path, text)).collect();
        let files =
            ["README.md", "docs", "docs/a.md", "docs/images/a b.png", "docs/errors", "docs/errors/x.md"];
        let found = check(&pages, |path| files.contains(&path));
        found
            .into_iter()
            .map(|finding| format!("{}:{}: {}", finding.file, finding.line, finding.problem))
            .collect()
    }

    #[test]
    fn links_with_a_target_are_accepted() {
        let a = "# Top\n[up](../docs), [self](#top), [folder](errors), [folder](errors/),\n\
                 ![picture](images/a%20b.png) [web](https://example.com/#x) [mail](mailto:a@example.com)";
        let x = ("docs/errors/x.md", "[a](../a.md#top)");
        assert_eq!(problems(&[("docs/a.md", a), x, ("README.md", "[a](./docs/a.md#top)")]), [""; 0]);
    }

    #[test]
    fn a_file_that_is_not_there_is_reported_with_its_line() {
        assert_eq!(
            problems(&[("docs/errors/x.md", "one\n\n[gone](../gone.md)")]),
            ["docs/errors/x.md:3: the link `../gone.md` is broken: there is no file docs/gone.md"]
        );
    }

    #[test]
    fn a_heading_that_is_not_there_is_reported() {
        assert_eq!(
            problems(&[("docs/a.md", "# Here\n[x](#there)"), ("README.md", "# Other\n[y](docs/a.md#top)")]),
            [
                "docs/a.md:2: the link `#there` is broken: docs/a.md has no heading #there",
                "README.md:2: the link `docs/a.md#top` is broken: docs/a.md has no heading #top",
            ]
        );
    }

    #[test]
    fn a_link_that_leaves_the_book_is_reported() {
        assert_eq!(
            problems(&[("docs/a.md", "[up](../README.md)"), ("README.md", "# Top")]),
            [
                "docs/a.md:1: the link `../README.md` is broken: README.md is not in the book; write its path as code"
            ]
        );
    }

    #[test]
    fn links_that_depend_on_the_place_or_leave_the_repository_are_reported() {
        let found = problems(&[("README.md", "[a](/docs/a.md) [b](../elsewhere.md) [c]()")]);
        assert_eq!(found.len(), 3, "{found:?}");
    }

    #[test]
    fn every_page_of_the_book_is_in_its_table_of_contents() {
        let summary = ("docs/SUMMARY.md", "# Summary\n- [A](a.md)");
        assert_eq!(
            problems(&[summary, ("docs/a.md", "a"), ("docs/errors/x.md", "x"), ("README.md", "r")]),
            ["docs/errors/x.md:1: the page is not in docs/SUMMARY.md; add it to the table of contents"]
        );
    }
}
