//! Writes generated files, or checks that they are up to date.
//!
//! The folders listed here belong to the generator. A file in them that the generator does not write is obsolete.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::invocation::Invocation;
use crate::requirements::Catalogue;
use crate::{TaskFailure, workspace};

/// Options of `cargo xtask gen`.
#[derive(Args)]
pub(crate) struct Options {
    /// Change nothing; fail if a file is out of date
    #[arg(long)]
    check: bool,
}

const FOLDERS: [&str; 2] = ["docs/reference", "schema"];
/// Files in these folders that are not generated.
const BY_HAND: [&str; 2] = ["docs/reference/cli.md", "docs/reference/http-api.md"];

/// Runs `cargo xtask gen`.
pub(crate) fn run(options: &Options) -> Result<(), TaskFailure> {
    let expected = produce()?;
    let mut found = collect(workspace::root(), &FOLDERS)?;
    found.retain(|file, _| !BY_HAND.contains(&file.as_str()));
    let changes = differences(&expected, &found);
    if options.check && !changes.is_empty() {
        let list: Vec<String> =
            changes.iter().map(|(file, change)| format!("{file} {}", change.word())).collect();
        return Err(format!("{}; run `cargo xtask gen`", list.join(", ")));
    }
    for (file, change) in changes {
        let path = workspace::root().join(&file);
        match change {
            FileChange::Write(text) => workspace::write(&path, text)?,
            FileChange::Remove => {
                fs::remove_file(&path).map_err(|error| format!("cannot remove {file}: {error}"))?
            }
        }
        eprintln!("{file}");
    }
    Ok(())
}

/// Texts by their paths from the root of the repository.
type Files = BTreeMap<String, String>;

/// Returns all generated files.
fn produce() -> Result<Files, TaskFailure> {
    let mut files = examples()?;
    files.insert("docs/reference/requirements.md".to_owned(), Catalogue::load()?.page());
    files.insert("docs/reference/metrics.md".to_owned(), metrics()?);
    Ok(files)
}

/// Returns the page of all metrics, as printed by an example of the telemetry crate.
fn metrics() -> Result<String, TaskFailure> {
    example("metrics_reference").output()
}

/// Returns the command of an example of a crate, built in the whole workspace as the tests are. With a `--package`,
/// cargo would select other features of its dependencies and compile them again.
fn example(name: &str) -> Invocation {
    Invocation::cargo(&["run", "--example", name])
}

/// Returns the files that the examples of the crates generate from their types and tables.
fn examples() -> Result<Files, TaskFailure> {
    let stage = workspace::scratch("gen")?;
    for folder in FOLDERS.map(|folder| stage.join(folder)).iter().filter(|folder| folder.exists()) {
        fs::remove_dir_all(folder)
            .map_err(|error| format!("cannot empty {}: {error}", workspace::shown(folder)))?;
    }
    let written =
        |name, folder: PathBuf| example(name).args(["--".to_owned(), folder.display().to_string()]).run();
    written("schema", stage.join("schema"))?;
    written("generate", stage.clone())?;
    collect(&stage, &FOLDERS)
}

#[derive(Debug, PartialEq, Eq)]
enum FileChange<'w> {
    Write(&'w str),
    Remove,
}

impl FileChange<'_> {
    fn word(&self) -> &'static str {
        match self {
            Self::Write(_) => "is not up to date",
            Self::Remove => "is no longer generated",
        }
    }
}

fn differences<'w>(expected: &'w Files, found: &Files) -> Vec<(String, FileChange<'w>)> {
    let writes = expected.iter().filter(|&(file, text)| found.get(file) != Some(text));
    let removals = found.keys().filter(|&file| !expected.contains_key(file));
    let writes = writes.map(|(file, text)| (file.clone(), FileChange::Write(text)));
    writes.chain(removals.map(|file| (file.clone(), FileChange::Remove))).collect()
}

/// Returns the files in these folders of `root`, recursively.
fn collect(root: &Path, folders: &[&str]) -> Result<Files, TaskFailure> {
    let mut files = Files::new();
    let mut open: Vec<PathBuf> =
        folders.iter().map(|folder| root.join(folder)).filter(|path| path.exists()).collect();
    while let Some(folder) = open.pop() {
        let cannot = |error: std::io::Error| format!("cannot list {}: {error}", workspace::shown(&folder));
        for entry in fs::read_dir(&folder).map_err(cannot)? {
            let path = entry.map_err(cannot)?.path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
                files.insert(name, workspace::read(&path)?);
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(list: &[(&str, &str)]) -> Files {
        list.iter().map(|&(name, text)| (name.to_owned(), text.to_owned())).collect()
    }

    #[test]
    fn changed_and_new_files_are_written_and_old_ones_removed() {
        let expected = files(&[("same", "1"), ("other", "2"), ("new", "3")]);
        let found = files(&[("same", "1"), ("other", "x"), ("old", "4")]);
        assert_eq!(
            differences(&expected, &found),
            [
                ("new".to_owned(), FileChange::Write("3")),
                ("other".to_owned(), FileChange::Write("2")),
                ("old".to_owned(), FileChange::Remove)
            ]
        );
        assert_eq!(differences(&expected, &expected), []);
    }
}
