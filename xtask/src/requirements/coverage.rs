//! Compares the catalogue with the tests.

use std::collections::BTreeMap;
use std::fmt;

use super::catalogue::{Catalogue, EvidenceKind, Requirement};
use super::scan::TestFunction;
use super::surface::Surface;

/// Tests of each requirement by surface. Printed, it is a table.
pub(crate) struct Coverage<'c> {
    catalogue: &'c Catalogue,
    tests: BTreeMap<String, BTreeMap<Surface, usize>>,
    unknown_ids: Vec<String>,
}

impl<'c> Coverage<'c> {
    pub(crate) fn of(catalogue: &'c Catalogue, tests: &[TestFunction]) -> Self {
        let all = catalogue.seeds.iter().flat_map(|seed| &seed.requirements);
        let mut counts: BTreeMap<String, BTreeMap<Surface, usize>> =
            all.map(|requirement| (requirement.id.clone(), BTreeMap::new())).collect();
        let mut unknown_ids = Vec::new();
        for TestFunction { name, file, line } in tests {
            let Some(id) = catalogue.id_carried_by(name) else { continue };
            match counts.get_mut(&id) {
                Some(count) => *count.entry(Surface::of(file)).or_default() += 1,
                None => unknown_ids.push(format!(
                    "{file}:{line}: {name} carries {id}, which requirements.toml does not have"
                )),
            }
        }
        Self { catalogue, tests: counts, unknown_ids }
    }

    /// Returns the ids without a test.
    pub(crate) fn missing(&self) -> Vec<&'c str> {
        self.lacking(|_| true)
    }

    /// Returns the ids without a test that must have one by now.
    pub(crate) fn missing_and_due(&self) -> Vec<&'c str> {
        self.lacking(|requirement| requirement.due <= self.catalogue.current)
    }

    /// Returns the ids that have tests, but none on a surface that users have, or none in the simulation if that is
    /// required.
    pub(crate) fn unreached(&self) -> Vec<&'c str> {
        let is_unreached = |requirement: &&Requirement| {
            let surfaces = self.surfaces_of(requirement);
            let shows = |surface: &Surface| match requirement.shown_by {
                EvidenceKind::Surface => surface.is_of_users(),
                EvidenceKind::Simulation => *surface == Surface::Simulation,
            };
            surfaces.is_some_and(|tests| !tests.is_empty() && !tests.keys().any(shows))
        };
        self.all().filter(is_unreached).map(|requirement| requirement.id.as_str()).collect()
    }

    /// Returns the tests whose names begin with an unknown id, which is most likely a typo.
    pub(crate) fn unknown_ids(&self) -> &[String] {
        &self.unknown_ids
    }

    fn all(&self) -> impl Iterator<Item = &'c Requirement> {
        self.catalogue.seeds.iter().flat_map(|seed| &seed.requirements)
    }

    fn lacking(&self, counts: impl Fn(&Requirement) -> bool) -> Vec<&'c str> {
        let lacking = self.all().filter(|requirement| !self.has_tests(requirement) && counts(requirement));
        lacking.map(|requirement| requirement.id.as_str()).collect()
    }

    fn surfaces_of(&self, requirement: &Requirement) -> Option<&BTreeMap<Surface, usize>> {
        self.tests.get(&requirement.id)
    }

    fn has_tests(&self, requirement: &Requirement) -> bool {
        self.surfaces_of(requirement).is_some_and(|tests| !tests.is_empty())
    }

    /// Formats the numbers of tests: "MCP 3, HTTP 1, unit 2".
    fn shown(&self, requirement: &Requirement) -> String {
        let tests = self.surfaces_of(requirement).into_iter().flatten();
        let shown: Vec<_> = tests.map(|(surface, count)| format!("{surface} {count}")).collect();
        match shown.as_slice() {
            [] if requirement.due <= self.catalogue.current => "MISSING".to_owned(),
            [] => format!("issue {}", requirement.due),
            shown => shown.join(", "),
        }
    }
}

impl fmt::Display for Coverage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for seed in &self.catalogue.seeds {
            let covered = seed.requirements.iter().filter(|&requirement| self.has_tests(requirement)).count();
            let (prefix, source, title) = (&seed.prefix, &seed.source, &seed.title);
            writeln!(f, "{prefix} ({source}: {title}): {covered} of {}", seed.requirements.len())?;
            for requirement in &seed.requirements {
                writeln!(f, "  {:<7} {}", requirement.id, requirement.demand)?;
                writeln!(f, "  {:<7}   {}", "", self.shown(requirement))?;
            }
            writeln!(f)?;
        }
        let (all, missing, due) = (self.tests.len(), self.missing().len(), self.missing_and_due().len());
        writeln!(
            f,
            "{} of {all} covered, {} of them where users do not see it, {due} missing, {} with later issues",
            all - missing,
            self.unreached().len(),
            missing - due
        )
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

    fn test(name: &str) -> TestFunction {
        test_in("x.rs", name)
    }

    fn test_in(file: &str, name: &str) -> TestFunction {
        TestFunction { name: name.to_owned(), file: file.to_owned(), line: 7 }
    }

    #[test]
    fn an_id_that_only_unit_tests_carry_is_not_reached() {
        let catalogue = Catalogue::parse(SMALL).unwrap();
        let tests = [
            test_in("crates/core/src/a.rs", "tr_1_one"),
            test_in("tests/gateway/tests/gateway/faults.rs", "tr_2_one"),
            test_in("crates/core/src/a.rs", "tr_2_two"),
        ];
        assert_eq!(Coverage::of(&catalogue, &tests).unreached(), ["TR-1"]);
    }

    #[test]
    fn the_simulation_shows_only_its_own_requirements() {
        let text = SMALL.replace("{ id = \"TR-2\",", "{ id = \"TR-2\", shown_by = \"simulation\",");
        let catalogue = Catalogue::parse(&text).unwrap();
        let simulated = "tests/simulation/src/tests.rs";
        let tests = [
            test_in(simulated, "tr_1_one"),
            test_in(simulated, "tr_2_one"),
            test_in("tests/gateway/tests/gateway/faults.rs", "tr_3_one"),
        ];
        assert_eq!(Coverage::of(&catalogue, &tests).unreached(), ["TR-1"]);
        let elsewhere = [test_in("tests/gateway/tests/gateway/faults.rs", "tr_2_one")];
        assert_eq!(Coverage::of(&catalogue, &elsewhere).unreached(), ["TR-2"]);
    }

    #[test]
    fn an_id_without_a_test_is_missing_and_due_only_if_its_issue_has_come() {
        let catalogue = Catalogue::parse(SMALL).unwrap();
        let coverage = Coverage::of(&catalogue, &[test("tr_1_one"), test("tr_01_two"), test("unrelated")]);
        assert_eq!(coverage.missing(), ["TR-2", "TR-3"]);
        assert_eq!(coverage.missing_and_due(), ["TR-2"]);
        assert_eq!(
            coverage.to_string(),
            "TR (seed 000: the first): 1 of 3\n  TR-1    a\n            unit 2\n  TR-2    b\n            MISSING\n  \
             TR-3    c\n            issue 3\n\n\
             1 of 3 covered, 1 of them where users do not see it, 1 missing, 1 with later issues\n"
        );
    }

    #[test]
    fn a_test_with_an_unknown_id_is_reported_with_its_location() {
        let catalogue = Catalogue::parse(SMALL).unwrap();
        let coverage = Coverage::of(&catalogue, &[test("tr_9_one")]);
        assert_eq!(
            coverage.unknown_ids(),
            ["x.rs:7: tr_9_one carries TR-9, which requirements.toml does not have"]
        );
    }
}
