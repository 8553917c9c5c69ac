//! The copy of the repository in which the changes are made.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::mutant::Mutant;
use crate::invocation::Invocation;
use crate::{TaskFailure, workspace};

/// A folder with the current files of the repository, including uncommitted ones.
pub(super) struct RepositoryCopy {
    folder: PathBuf,
}

impl RepositoryCopy {
    /// Updates the copy. Unchanged files are not written, so that they are not built again.
    pub(super) fn of_the_repository(folder: &Path) -> Result<Self, TaskFailure> {
        let listed = Invocation::of("git", &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .output()?;
        let files = listed.split('\0').filter(|file| !file.is_empty()).map(PathBuf::from);
        // A removed file that is not committed yet is still listed.
        let files: BTreeSet<PathBuf> = files.filter(|file| workspace::root().join(file).is_file()).collect();
        Self::with(workspace::root(), &files, folder)
    }

    fn with(source: &Path, files: &BTreeSet<PathBuf>, folder: &Path) -> Result<Self, TaskFailure> {
        for file in files {
            let (from, to) = (source.join(file), folder.join(file));
            let bytes = fs::read(&from).map_err(|error| io_failure("read", &from, &error))?;
            if fs::read(&to).is_ok_and(|old| old == bytes) {
                continue;
            }
            let parent = to.parent().unwrap_or(folder);
            fs::create_dir_all(parent).map_err(|error| io_failure("make", parent, &error))?;
            fs::write(&to, bytes).map_err(|error| io_failure("write", &to, &error))?;
        }
        remove_others(folder, Path::new(""), files)?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// Runs an action with a mutant applied, and reverts it.
    pub(super) fn while_changed<T>(
        &self,
        mutant: &Mutant,
        action: impl FnOnce() -> Result<T, TaskFailure>,
    ) -> Result<T, TaskFailure> {
        let path = self.folder.join(&mutant.file);
        let before = workspace::read(&path)?;
        let changed = mutant.apply(&before).ok_or_else(|| format!("{} is not in the file", mutant.name))?;
        workspace::write(&path, &changed)?;
        let outcome = action();
        workspace::write(&path, &before)?;
        outcome
    }
}

fn remove_others(folder: &Path, below: &Path, files: &BTreeSet<PathBuf>) -> Result<(), TaskFailure> {
    let here = folder.join(below);
    let entries = fs::read_dir(&here).map_err(|error| io_failure("list", &here, &error))?;
    for entry in entries.flatten() {
        let (path, relative) = (entry.path(), below.join(entry.file_name()));
        if path.is_dir() {
            remove_others(folder, &relative, files)?;
        } else if !files.contains(&relative) && relative != Path::new("Cargo.lock") {
            fs::remove_file(&path).map_err(|error| io_failure("remove", &path, &error))?;
        }
    }
    Ok(())
}

fn io_failure(verb: &str, path: &Path, error: &std::io::Error) -> TaskFailure {
    format!("cannot {verb} {}: {error}", workspace::shown(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_matches_its_source_and_is_restored_after_a_change() {
        let place = std::env::temp_dir().join(format!("steadfast-mutants-copy-{}", std::process::id()));
        let (source, folder) = (place.join("source"), place.join("copy"));
        let file = PathBuf::from("crates/core/src/key.rs");
        workspace::write(&source.join(&file), "a < b\n").unwrap();
        workspace::write(&folder.join("old/gone.rs"), "").unwrap();
        let copy = RepositoryCopy::with(&source, &BTreeSet::from([file.clone()]), &folder).unwrap();
        let now = || workspace::read(&folder.join(&file)).unwrap();
        assert_eq!(now(), "a < b\n");
        assert!(!folder.join("old/gone.rs").exists());
        let mutant = Mutant::replacing("key", "replace < with >", (1, 3), (1, 4), ">");
        let content = copy.while_changed(&mutant, || Ok(now()));
        assert_eq!((content.unwrap().as_str(), now().as_str()), ("a > b\n", "a < b\n"));
        fs::remove_dir_all(place).unwrap();
    }
}
