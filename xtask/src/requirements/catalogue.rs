//! Reads and validates `requirements.toml`.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde::Deserialize;

use crate::{TaskFailure, workspace};

/// All requirements.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Catalogue {
    /// The current issue. Requirements that are due up to here must have a test.
    pub(crate) current: u32,
    #[serde(rename = "seed")]
    pub(crate) seeds: Vec<RequirementSource>,
}

/// The requirements from one document.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequirementSource {
    /// Prefix of its ids.
    pub(crate) prefix: String,
    /// Name of the document.
    pub(crate) source: String,
    pub(crate) title: String,
    pub(crate) requirements: Vec<Requirement>,
}

/// One requirement.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Requirement {
    pub(crate) id: String,
    /// Issue that adds its first test.
    pub(crate) due: u32,
    /// Kind of test that shows it.
    #[serde(default)]
    pub(crate) shown_by: EvidenceKind,
    #[serde(rename = "what")]
    pub(crate) demand: String,
}

/// Kind of test that shows a requirement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EvidenceKind {
    /// A test on a surface that users have.
    #[default]
    Surface,
    /// The simulation, because the requirement is about the simulation.
    Simulation,
}

impl Catalogue {
    pub(crate) fn load() -> Result<Self, TaskFailure> {
        let path = workspace::root().join("requirements.toml");
        Self::parse(&workspace::read(&path)?).map_err(|problem| format!("requirements.toml: {problem}"))
    }

    pub(crate) fn parse(text: &str) -> Result<Self, TaskFailure> {
        let catalogue: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut ids = BTreeSet::new();
        for seed in &catalogue.seeds {
            for Requirement { id, .. } in &seed.requirements {
                if seed.id_from(&seed.test_prefix(id)).as_ref() != Some(id) {
                    return Err(format!(
                        "{id} is not an id of {}: it should look like {0}-1 or {0}-1.2",
                        seed.prefix
                    ));
                }
                if !ids.insert(id) {
                    return Err(format!("{id} is there twice"));
                }
            }
        }
        Ok(catalogue)
    }

    /// Returns the id in the name of a test, even if the catalogue does not have it.
    pub(crate) fn id_carried_by(&self, test: &str) -> Option<String> {
        self.seeds.iter().find_map(|seed| seed.id_from(test))
    }

    /// Returns a page with all requirements.
    pub(crate) fn page(&self) -> String {
        let mut page = String::from(
            "<!-- written by `cargo xtask gen` from requirements.toml -->\n\n# Requirements\n\n\
             What Steadfast promises, by id. The tests that show a promise begin their names with its id: TR-2 is shown\n\
             by `tr_2_…`, EH-2.1 by `eh_2_1_…`. `cargo xtask requirements` lists which have tests today. The last column\n\
             is the issue that brings the first test.\n",
        );
        for seed in &self.seeds {
            let _ = write!(
                page,
                "\n## {}: {}\n\n| id | what it demands | issue |\n| --- | --- | --- |\n",
                seed.prefix, seed.title
            );
            for Requirement { id, due, demand, .. } in &seed.requirements {
                let _ = writeln!(page, "| {id} | {demand} | {due} |");
            }
        }
        page
    }
}

impl RequirementSource {
    /// Returns the id at the beginning of a test's name: `tr_02_a_sentence` gives `TR-2`. A sentence must follow the
    /// number. If the ids of a seed have two numbers, both are read.
    fn id_from(&self, test: &str) -> Option<String> {
        let rest = test.strip_prefix(&self.prefix.to_lowercase())?.strip_prefix('_')?;
        let mut parts = rest.split('_');
        let mut number = || parts.next().and_then(|part| part.parse::<u32>().ok());
        let id = if self.has_sections() {
            format!("{}-{}.{}", self.prefix, number()?, number()?)
        } else {
            format!("{}-{}", self.prefix, number()?)
        };
        parts.next().filter(|sentence| !sentence.is_empty())?;
        Some(id)
    }

    fn has_sections(&self) -> bool {
        self.requirements.iter().any(|requirement| requirement.id.contains('.'))
    }

    /// Returns the prefix of a test name for this id.
    fn test_prefix(&self, id: &str) -> String {
        format!("{}_x", id.to_lowercase().replace(['-', '.'], "_"))
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
        requirements = [{ id = "TR-1", due = 2, what = "a" }, { id = "TR-12", due = 3, what = "b" }]
        [[seed]]
        prefix = "EH"
        source = "seed 002"
        title = "the second"
        requirements = [{ id = "EH-2.1", due = 2, what = "c" }]
    "#;

    #[test]
    fn a_name_carries_the_id_that_it_begins_with() {
        let catalogue = Catalogue::parse(SMALL).unwrap();
        for (name, id) in [
            ("tr_1_a_sentence", Some("TR-1")),
            ("tr_01_a_sentence", Some("TR-1")),
            ("tr_12_a_sentence", Some("TR-12")),
            ("tr_12_3_times_is_enough", Some("TR-12")),
            ("tr_99_is_not_in_the_list", Some("TR-99")),
            ("eh_2_1_a_sentence", Some("EH-2.1")),
            ("eh_2_1_5_failures_open_it", Some("EH-2.1")),
            ("eh_2_a_sentence", None),
            ("tr_1", None),
            ("tr_1_", None),
            ("trees_1_grow", None),
            ("a_sentence_about_tr_1_too", None),
        ] {
            assert_eq!(catalogue.id_carried_by(name).as_deref(), id, "{name}");
        }
    }

    #[test]
    fn an_invalid_catalogue_is_refused_with_a_reason() {
        let twice = SMALL.replace("TR-12", "TR-1");
        assert_eq!(Catalogue::parse(&twice).unwrap_err(), "TR-1 is there twice");
        let foreign = SMALL.replace("TR-12", "TG-12");
        assert!(Catalogue::parse(&foreign).unwrap_err().starts_with("TG-12 is not an id of TR"));
        let mixed = SMALL.replace("TR-12", "TR-1.2");
        assert!(Catalogue::parse(&mixed).unwrap_err().starts_with("TR-1 is not an id of TR"));
        let unknown = SMALL.replace("what = \"c\"", "what = \"c\", owner = \"me\"");
        assert!(Catalogue::parse(&unknown).unwrap_err().contains("unknown field `owner`"));
    }

    #[test]
    fn the_catalogue_of_this_repository_is_valid() {
        let catalogue = Catalogue::load().unwrap();
        assert!(catalogue.seeds.iter().map(|seed| seed.requirements.len()).sum::<usize>() > 90);
    }

    #[test]
    fn the_page_has_every_id() {
        let page = Catalogue::parse(SMALL).unwrap().page();
        assert!(page.contains("## TR: the first"));
        for row in ["| TR-1 | a | 2 |", "| TR-12 | b | 3 |", "| EH-2.1 | c | 2 |"] {
            assert!(page.contains(row), "{row}");
        }
    }
}
