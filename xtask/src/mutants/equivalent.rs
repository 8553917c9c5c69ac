//! Equivalent mutants: they make no difference, so no test can fail because of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Deserialize;

use super::mutant::Mutant;
use crate::{TaskFailure, workspace};

/// Path of the list from the root of the repository.
pub(super) const FILE: &str = "tests/mutants.toml";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EquivalentMutants {
    equivalent: Vec<EquivalentEntry>,
}

/// One or more mutants of one line. Lines are found by their text, because line numbers change.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EquivalentEntry {
    file: PathBuf,
    /// Part of the line in which they begin.
    line: String,
    /// Changes that make no difference there, as named by cargo-mutants.
    changes: Vec<String>,
    /// Reason why they make none.
    reason: String,
}

/// Returns the names of the listed mutants. An entry without a matching mutant is an error, because its source has
/// changed.
pub(super) fn load(all: &[Mutant]) -> Result<BTreeSet<String>, TaskFailure> {
    let listed: EquivalentMutants = toml::from_str(&workspace::read(&workspace::root().join(FILE))?)
        .map_err(|error| format!("cannot read {FILE}: {error}"))?;
    let mut texts = BTreeMap::new();
    for entry in &listed.equivalent {
        if !texts.contains_key(&entry.file) {
            texts.insert(entry.file.clone(), workspace::read(&workspace::root().join(&entry.file))?);
        }
    }
    names(&listed, all, &texts)
}

fn names(
    listed: &EquivalentMutants,
    all: &[Mutant],
    texts: &BTreeMap<PathBuf, String>,
) -> Result<BTreeSet<String>, TaskFailure> {
    let mut names = BTreeSet::new();
    for EquivalentEntry { file, line, changes, reason } in &listed.equivalent {
        let text = texts.get(file).map(String::as_str).unwrap_or_default();
        if reason.is_empty() {
            return Err(format!("{FILE}: `{line}` in {} has no reason", file.display()));
        }
        for change in changes {
            let fits = |mutant: &&Mutant| {
                mutant.file == *file && mutant.change() == change && mutant.begins_in(line, text)
            };
            let before = names.len();
            names.extend(all.iter().filter(fits).map(|mutant| mutant.name.clone()));
            if names.len() == before {
                let file = file.display();
                return Err(format!(
                    "{FILE}: no mutant \"{change}\" at `{line}` in {file}; remove it or correct it"
                ));
            }
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str, change: &str) -> Result<BTreeSet<String>, TaskFailure> {
        let listed = EquivalentMutants {
            equivalent: vec![EquivalentEntry {
                file: "crates/core/src/key.rs".into(),
                line: line.to_owned(),
                changes: vec![change.to_owned()],
                reason: "both are the same at the limit".to_owned(),
            }],
        };
        let change = "replace < with <= in f";
        let all = [
            Mutant::replacing("key", change, (1, 3), (1, 4), "<="),
            Mutant::replacing("key", change, (2, 3), (2, 4), "<="),
        ];
        let text = ("crates/core/src/key.rs".into(), "a < b\nc < d\n".to_owned());
        names(&listed, &all, &BTreeMap::from([text]))
    }

    #[test]
    fn a_mutant_is_found_by_its_change_and_the_text_of_its_line() {
        let names = found("c < d", "replace < with <= in f").unwrap();
        assert_eq!(
            names.into_iter().collect::<Vec<_>>(),
            ["crates/core/src/key.rs:2:3: replace < with <= in f"]
        );
    }

    #[test]
    fn an_entry_that_fits_nothing_is_an_error() {
        for (line, change) in [("e < f", "replace < with <= in f"), ("c < d", "replace < with > in f")] {
            let failure = found(line, change).unwrap_err();
            assert!(failure.contains(line) && failure.contains(change), "{failure}");
        }
    }
}
