//! Names of servers behind Steadfast.
//!
//! State is stored by the name of a server. Two servers that run different things must not share it, so each gets a
//! name of its own. One server in the files of two clients keeps its name.

use std::collections::BTreeMap;

/// Names in use, with what runs under each: a command with its arguments, or a URL.
#[derive(Clone, Debug, Default)]
pub(super) struct ServerNames {
    taken: BTreeMap<String, Vec<String>>,
}

impl ServerNames {
    /// Records a server that is already behind Steadfast under this name. The first one counts.
    pub(super) fn note(&mut self, name: String, runs: Vec<String>) {
        self.taken.entry(name).or_insert(runs);
    }

    /// Returns a name for a server: its own, or else the first numbered name that is free or belongs to this server.
    pub(super) fn take(&mut self, name: &str, runs: &[String]) -> String {
        let candidates =
            std::iter::once(name.to_owned()).chain((2..).map(|number| format!("{name}-{number}")));
        for candidate in candidates {
            match self.taken.get(&candidate) {
                Some(others) if others != runs => {}
                Some(_) => return candidate,
                None => {
                    self.taken.insert(candidate.clone(), runs.to_vec());
                    return candidate;
                }
            }
        }
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_belongs_to_one_command() {
        let runs = |text: &str| vec![text.to_owned()];
        let mut names = ServerNames::default();
        names.note("db-2".to_owned(), runs("old"));
        assert_eq!(names.take("db", &runs("one")), "db");
        assert_eq!(names.take("db", &runs("one")), "db");
        assert_eq!(names.take("db", &runs("two")), "db-3");
        assert_eq!(names.take("db", &runs("old")), "db-2");
        assert_eq!(names.take("db", &runs("two")), "db-3");
    }
}
