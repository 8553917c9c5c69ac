//! The catalogue and the tests side by side.

use std::collections::BTreeMap;
use std::fmt;

use super::catalogue::{Catalogue, Requirement};
use super::scan::Test;

/// How many tests each promise has. Printed, it is a table.
pub(crate) struct Coverage<'c> {
    catalogue: &'c Catalogue,
    tests: BTreeMap<String, usize>,
    strangers: Vec<String>,
}

impl<'c> Coverage<'c> {
    pub(crate) fn of(catalogue: &'c Catalogue, tests: &[Test]) -> Self {
        let all = catalogue.seeds.iter().flat_map(|seed| &seed.requirements);
        let mut counts: BTreeMap<String, usize> =
            all.map(|requirement| (requirement.id.clone(), 0)).collect();
        let mut strangers = Vec::new();
        for Test { name, file, line } in tests {
            let Some(id) = catalogue.id_carried_by(name) else { continue };
            match counts.get_mut(&id) {
                Some(count) => *count += 1,
                None => strangers.push(format!(
                    "{file}:{line}: {name} carries {id}, which requirements.toml does not have"
                )),
            }
        }
        Self { catalogue, tests: counts, strangers }
    }

    /// Ids without a test.
    pub(crate) fn missing(&self) -> Vec<&'c str> {
        self.lacking(|_| true)
    }

    /// Ids without a test that must have one by now.
    pub(crate) fn missing_and_due(&self) -> Vec<&'c str> {
        self.lacking(|requirement| requirement.due <= self.catalogue.current)
    }

    /// Tests whose names begin with an id that nobody asked for; most likely a slip of the pen.
    pub(crate) fn strangers(&self) -> &[String] {
        &self.strangers
    }

    fn lacking(&self, counts: impl Fn(&Requirement) -> bool) -> Vec<&'c str> {
        let all = self.catalogue.seeds.iter().flat_map(|seed| &seed.requirements);
        let lacking = all.filter(|requirement| self.tests_of(requirement) == 0 && counts(requirement));
        lacking.map(|requirement| requirement.id.as_str()).collect()
    }

    fn tests_of(&self, requirement: &Requirement) -> usize {
        self.tests.get(&requirement.id).copied().unwrap_or_default()
    }
}

impl fmt::Display for Coverage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for seed in &self.catalogue.seeds {
            let covered =
                seed.requirements.iter().filter(|&requirement| self.tests_of(requirement) > 0).count();
            let (prefix, source, title) = (&seed.prefix, &seed.source, &seed.title);
            writeln!(f, "{prefix} ({source}: {title}): {covered} of {}", seed.requirements.len())?;
            for requirement in &seed.requirements {
                let state = match self.tests_of(requirement) {
                    0 if requirement.due <= self.catalogue.current => "MISSING".to_owned(),
                    0 => format!("issue {}", requirement.due),
                    1 => "1 test".to_owned(),
                    many => format!("{many} tests"),
                };
                writeln!(f, "  {:<7} {state:<9} {}", requirement.id, requirement.what)?;
            }
            writeln!(f)?;
        }
        let (all, missing, due) = (self.tests.len(), self.missing().len(), self.missing_and_due().len());
        writeln!(f, "{} of {all} covered, {due} missing, {} with later issues", all - missing, missing - due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        current = 2
        [[seed]]
        prefix = "TR"
        source = "seed 000"
        title = "the first"
        requirements = [
            { id = "TR-1", due = 2, what = "a" },
            { id = "TR-2", due = 2, what = "b" },
            { id = "TR-3", due = 3, what = "c" },
        ]
    "#;

    fn test(name: &str) -> Test {
        Test { name: name.to_owned(), file: "x.rs".to_owned(), line: 7 }
    }

    #[test]
    fn an_id_without_a_test_is_missing_and_due_only_if_its_issue_has_come() {
        let catalogue = Catalogue::parse(SMALL).unwrap();
        let coverage = Coverage::of(&catalogue, &[test("tr_1_one"), test("tr_01_two"), test("unrelated")]);
        assert_eq!(coverage.missing(), ["TR-2", "TR-3"]);
        assert_eq!(coverage.missing_and_due(), ["TR-2"]);
        assert_eq!(
            coverage.to_string(),
            "TR (seed 000: the first): 1 of 3\n  TR-1    2 tests   a\n  TR-2    MISSING   b\n  TR-3    issue 3   c\n\n\
             1 of 3 covered, 1 missing, 1 with later issues\n"
        );
    }

    #[test]
    fn a_test_with_an_id_that_nobody_asked_for_is_told_with_its_place() {
        let catalogue = Catalogue::parse(SMALL).unwrap();
        let coverage = Coverage::of(&catalogue, &[test("tr_9_one")]);
        assert_eq!(
            coverage.strangers(),
            ["x.rs:7: tr_9_one carries TR-9, which requirements.toml does not have"]
        );
    }
}
