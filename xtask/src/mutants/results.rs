//! Results of all mutants over all runs, and the score.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::mutant::Mutant;
use crate::{TaskFailure, workspace};

/// Result of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum MutantOutcome {
    /// It does not compile.
    Unviable,
    /// A test failed.
    CaughtByTests,
    /// The tests passed, and the simulation failed.
    CaughtBySimulation,
    /// The tests or the simulation timed out.
    TimedOut,
    /// All tests passed, and the simulation too if it was used.
    Survived,
}

/// Results by the names of mutants.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct MutantResults(BTreeMap<String, MutantOutcome>);

impl MutantResults {
    pub(super) fn load(path: &Path) -> Result<Self, TaskFailure> {
        if !path.exists() {
            return Ok(Self::default());
        }
        serde_json::from_str(&workspace::read(path)?)
            .map_err(|error| format!("cannot read {}: {error}; use --fresh", workspace::shown(path)))
    }

    pub(super) fn save(&self, path: &Path) -> Result<(), TaskFailure> {
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        workspace::write(path, &text)
    }

    /// Adds the lists of cargo-mutants, even from an interrupted run. Returns the number of mutants in its lists.
    pub(super) fn add_lists(&mut self, folder: &Path) -> Result<usize, TaskFailure> {
        let mut count = 0;
        for (file, outcome) in [
            ("unviable.txt", MutantOutcome::Unviable),
            ("caught.txt", MutantOutcome::CaughtByTests),
            ("timeout.txt", MutantOutcome::TimedOut),
            ("missed.txt", MutantOutcome::Survived),
        ] {
            let path = folder.join(file);
            if !path.exists() {
                continue;
            }
            for name in workspace::read(&path)?.lines() {
                count += 1;
                // A result of the simulation is better than one of the tests that passed.
                if !(outcome == MutantOutcome::Survived && self.is_settled(name)) {
                    self.set(name, outcome);
                }
            }
        }
        Ok(count)
    }

    pub(super) fn set(&mut self, name: &str, outcome: MutantOutcome) {
        self.0.insert(name.to_owned(), outcome);
    }

    pub(super) fn get(&self, name: &str) -> Option<MutantOutcome> {
        self.0.get(name).copied()
    }

    /// Returns true if it need not be tested again. A survivor is tested again, because there may be a new test.
    pub(super) fn is_settled(&self, name: &str) -> bool {
        self.get(name).is_some_and(|outcome| outcome != MutantOutcome::Survived)
    }
}

/// Results per module. Printed, it is a table and a list of the survivors.
pub(super) struct MutationScore {
    modules: BTreeMap<String, MutantCounts>,
    survivors: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MutantCounts {
    by_tests: usize,
    by_simulation: usize,
    timed_out: usize,
    survived: usize,
    unviable: usize,
    equivalent: usize,
    untested: usize,
}

impl MutationScore {
    pub(super) fn of(chosen: &[&Mutant], equivalent: &BTreeSet<String>, results: &MutantResults) -> Self {
        let mut score = Self { modules: BTreeMap::new(), survivors: Vec::new() };
        for mutant in chosen {
            let counts = score.modules.entry(mutant.module()).or_default();
            let count = match results.get(&mutant.name) {
                _ if equivalent.contains(&mutant.name) => &mut counts.equivalent,
                None => &mut counts.untested,
                Some(MutantOutcome::Unviable) => &mut counts.unviable,
                Some(MutantOutcome::CaughtByTests) => &mut counts.by_tests,
                Some(MutantOutcome::CaughtBySimulation) => &mut counts.by_simulation,
                Some(MutantOutcome::TimedOut) => &mut counts.timed_out,
                Some(MutantOutcome::Survived) => {
                    score.survivors.push(mutant.name.clone());
                    &mut counts.survived
                }
            };
            *count += 1;
        }
        score
    }

    pub(super) fn survived(&self) -> usize {
        self.survivors.len()
    }
}

impl MutantCounts {
    /// Returns the number of tested mutants that compile and make a difference.
    fn viable(self) -> usize {
        self.caught() + self.survived
    }

    fn caught(self) -> usize {
        self.by_tests + self.by_simulation + self.timed_out
    }

    /// Returns tenths of a percent, rounded down, so that 100% means complete.
    fn share(self) -> Option<usize> {
        (1000 * self.caught()).checked_div(self.viable())
    }
}

impl fmt::Display for MutationScore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<10}{:>8}{:>8}{:>12}{:>9}{:>10}{:>9}{:>12}{:>10}{:>10}",
            "module",
            "viable",
            "tests",
            "simulation",
            "timeout",
            "survived",
            "caught",
            "equivalent",
            "unviable",
            "untested"
        )?;
        let mut rows: Vec<(&str, MutantCounts)> =
            self.modules.iter().map(|(name, counts)| (name.as_str(), *counts)).collect();
        if rows.len() > 1 {
            rows.push((
                "all",
                rows.iter().fold(MutantCounts::default(), |sum, (_, counts)| sum.plus(*counts)),
            ));
        }
        for (name, counts) in rows {
            let share =
                counts.share().map_or("-".to_owned(), |share| format!("{}.{} %", share / 10, share % 10));
            let MutantCounts { by_tests, by_simulation, timed_out, survived, unviable, equivalent, untested } =
                counts;
            writeln!(
                f,
                "{name:<10}{:>8}{by_tests:>8}{by_simulation:>12}{timed_out:>9}{survived:>10}{share:>9}{equivalent:>12}{unviable:>10}{untested:>10}",
                counts.viable(),
            )?;
        }
        if !self.survivors.is_empty() {
            writeln!(f, "\nsurvived:")?;
        }
        self.survivors.iter().try_for_each(|name| writeln!(f, "  {name}"))
    }
}

impl MutantCounts {
    fn plus(self, other: Self) -> Self {
        Self {
            by_tests: self.by_tests + other.by_tests,
            by_simulation: self.by_simulation + other.by_simulation,
            timed_out: self.timed_out + other.timed_out,
            survived: self.survived + other.survived,
            unviable: self.unviable + other.unviable,
            equivalent: self.equivalent + other.equivalent,
            untested: self.untested + other.untested,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn lists_of_an_interrupted_run_are_added_to_the_results() {
        let folder = std::env::temp_dir().join(format!("steadfast-mutants-lists-{}", std::process::id()));
        workspace::write(&folder.join("caught.txt"), "a\nb\n").unwrap();
        workspace::write(&folder.join("missed.txt"), "c\nd\n").unwrap();
        let mut results = MutantResults::default();
        results.set("d", MutantOutcome::CaughtBySimulation);
        assert_eq!(results.add_lists(&folder), Ok(4));
        let settled = ["a", "b", "c", "d", "e"].map(|name| results.is_settled(name));
        assert_eq!(settled, [true, true, false, true, false]);
        results.save(&folder.join("results.json")).unwrap();
        let again = MutantResults::load(&folder.join("results.json")).unwrap();
        assert_eq!(again.get("c"), Some(MutantOutcome::Survived));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_score_counts_viable_mutants() {
        let mutants =
            ["dedupe/a", "dedupe/b", "dedupe/c", "dedupe/d", "dedupe/e", "call/a"].map(Mutant::in_file);
        let mut results = MutantResults::default();
        for (mutant, outcome) in mutants.iter().zip([
            MutantOutcome::CaughtByTests,
            MutantOutcome::TimedOut,
            MutantOutcome::Survived,
            MutantOutcome::Unviable,
            MutantOutcome::Survived,
        ]) {
            results.set(&mutant.name, outcome);
        }
        let equivalent = BTreeSet::from([mutants[4].name.clone()]);
        let score = MutationScore::of(&mutants.iter().collect::<Vec<_>>(), &equivalent, &results);
        assert_eq!(score.survivors, [mutants[2].name.clone()]);
        let dedupe = score.modules["dedupe"];
        assert_eq!((dedupe.viable(), dedupe.share()), (3, Some(666)));
        assert_eq!((dedupe.equivalent, dedupe.unviable), (1, 1));
        assert_eq!((score.modules["call"].untested, score.modules["call"].share()), (1, None));
        let table = score.to_string();
        assert!(table.contains("66.6 %") && table.contains("\nall "), "{table}");
    }
}
