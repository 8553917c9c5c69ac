//! Names of servers. Two servers with the same name and different commands are different servers.
//!
//! Trust, breakers and history are stored by name. The first server of a name has the plain name. Another server with
//! the same name and another command or URL gets a mark: `db~3f2a91`. It has the rules that the configuration sets for
//! `db`. If only the version in the command of a server changes, in the same configuration, the server keeps its name.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::dedupe::{LeaseOwnerState, ProcessIdentity};
use crate::id::{Digest, Namespace};

/// A server as configured in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerIdentity {
    /// Digest of its command and arguments, or of its URL.
    pub digest: Digest,
    /// Digest of the same without versions: see [`without_version`].
    pub program: Digest,
    /// Its command or URL for display, without secrets.
    pub runs: String,
    /// Place of its configuration: a file, or the folder of a command line.
    pub place: String,
}

/// All servers of one name, as they are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerNameRecord {
    claims: Vec<ServerClaim>,
    /// Last failures, by the name that the server's tools have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    failures: BTreeMap<Namespace, ServerFailure>,
}

/// The last failure of a server. It is cleared when the server works again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerFailure {
    /// Time of the failure.
    #[serde(rename = "atMs")]
    pub at: Timestamp,
    /// Reason of the failure, without secrets.
    #[serde(rename = "why")]
    pub reason: String,
}

/// A claim of a server to a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerClaim {
    /// Name that its tools have.
    pub name: Namespace,
    /// Its command or URL, for display.
    pub runs: String,
    digest: String,
    /// Absent in records of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    program: Option<String>,
    place: String,
    /// Process that had the name last.
    process: ProcessIdentity,
    /// Time of that use.
    #[serde(rename = "seenMs")]
    last_used: Timestamp,
}

/// Time after which an unused server is dropped.
pub const RETENTION: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Time for which a failure of an unused server is reported.
const REPORTED: Duration = Duration::from_secs(24 * 60 * 60);
/// Time for which a server on another machine counts as running after its start.
const ASSUMED_RUNNING: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum number of servers per name. Beyond that the oldest is dropped.
const MOST: usize = 64;

impl ServerNameRecord {
    /// Claims a name for a server that a process starts. Returns the name that its tools have.
    pub fn claim(
        &mut self,
        name: &Namespace,
        server: &ServerIdentity,
        process: &ProcessIdentity,
        sight: impl Fn(&ProcessIdentity) -> LeaseOwnerState,
        now: Timestamp,
    ) -> Namespace {
        let digest = server.digest.to_hex();
        self.claims.retain(|claim| now.since(claim.last_used) < RETENTION || claim.is_live(&sight, now));
        let own = self.claims.iter().position(|claim| claim.digest == digest);
        let program = server.program.to_hex();
        let replaced = || {
            self.claims.iter().position(|claim| {
                claim.program.as_ref() == Some(&program)
                    && claim.place == server.place
                    && !claim.is_live(&sight, now)
            })
        };
        let before = own.or_else(replaced).map(|at| self.claims.remove(at));
        let named = match before {
            Some(claim) => claim.name,
            None if self.claims.iter().all(|claim| claim.name != *name) => name.clone(),
            None => name.marked(&digest),
        };
        self.claims.push(ServerClaim {
            name: named.clone(),
            runs: server.runs.clone(),
            digest,
            program: Some(program.clone()),
            place: server.place.clone(),
            process: process.clone(),
            last_used: now,
        });
        if self.claims.len() > MOST {
            self.claims.remove(0);
        }
        named
    }

    /// Records a failure of the server with this name, or clears it.
    pub fn set_failure(&mut self, name: &Namespace, failure: Option<&ServerFailure>, now: Timestamp) {
        self.failures.retain(|_, failure| now.since(failure.at) < RETENTION);
        match failure {
            None => _ = self.failures.remove(name),
            Some(failure) => {
                self.failures.insert(name.clone(), failure.clone());
                if self.failures.len() > MOST {
                    self.failures.pop_first();
                }
            }
        }
    }

    /// Returns the last failure of the server with this name, if it did not work since.
    pub fn failure(&self, name: &Namespace) -> Option<&ServerFailure> {
        self.failures.get(name)
    }

    /// Returns the recent failures of servers that did not work since.
    pub fn failed(&self, now: Timestamp) -> impl Iterator<Item = (&Namespace, &ServerFailure)> {
        self.failures.iter().filter(move |(_, failure)| now.since(failure.at) < REPORTED)
    }

    /// Returns the running servers of this name, if there are several.
    pub fn clash(
        &self,
        sight: impl Fn(&ProcessIdentity) -> LeaseOwnerState,
        now: Timestamp,
    ) -> Option<Vec<&ServerClaim>> {
        let live: Vec<_> = self.claims.iter().filter(|claim| claim.is_live(&sight, now)).collect();
        (live.len() > 1).then_some(live)
    }
}

/// Removes the version at the end of a word of a command: the part after `@`, `==` or `:` that is `latest` or up to
/// three numbers. After a colon, which may also precede a port, it must contain a dot.
pub fn without_version(word: &str) -> &str {
    let is_version = |text: &str, least: usize| {
        let numbers = text.strip_prefix('v').unwrap_or(text);
        let numbers = numbers.split(['-', '+']).next().unwrap_or_default();
        let parts: Vec<_> = numbers.split('.').collect();
        let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|digit| digit.is_ascii_digit());
        text == "latest" || ((least..=3).contains(&parts.len()) && parts.iter().all(is_number))
    };
    [("@", 1), ("==", 1), (":", 2)]
        .into_iter()
        .find_map(|(sign, least)| {
            let (before, version) = word.rsplit_once(sign)?;
            (!before.is_empty() && is_version(version, least)).then_some(before)
        })
        .unwrap_or(word)
}

impl ServerClaim {
    fn is_live(&self, sight: impl Fn(&ProcessIdentity) -> LeaseOwnerState, now: Timestamp) -> bool {
        match sight(&self.process) {
            LeaseOwnerState::Alive => true,
            LeaseOwnerState::Gone => false,
            LeaseOwnerState::Time => now.since(self.last_used) < ASSUMED_RUNNING,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn at(time: Duration) -> Timestamp {
        Timestamp::ZERO + time
    }

    fn server(runs: &str, place: &str) -> ServerIdentity {
        ServerIdentity {
            digest: Digest::of(runs.as_bytes()),
            program: Digest::of(without_version(runs).as_bytes()),
            runs: runs.to_owned(),
            place: place.to_owned(),
        }
    }

    fn process(pid: u32) -> ProcessIdentity {
        ProcessIdentity { boot: "boot".into(), pid, started: 1 }
    }

    fn db() -> Namespace {
        Namespace::new("db").unwrap()
    }

    /// Claims a name for a process. The processes with the numbers in `lives` are alive.
    fn claim(
        names: &mut ServerNameRecord,
        (runs, place): (&str, &str),
        pid: u32,
        lives: &[u32],
        now: Timestamp,
    ) -> String {
        let sight = |process: &ProcessIdentity| {
            if lives.contains(&process.pid) { LeaseOwnerState::Alive } else { LeaseOwnerState::Gone }
        };
        names.claim(&db(), &server(runs, place), &process(pid), sight, now).to_string()
    }

    #[test]
    fn two_servers_of_one_name_get_different_names_at_once_or_in_turn() {
        for lives in [&[1, 2][..], &[]] {
            let mut names = ServerNameRecord::default();
            assert_eq!(claim(&mut names, ("postgres", "/a"), 1, lives, at(DAY)), "db");
            let other = claim(&mut names, ("sqlite", "/b"), 2, lives, at(DAY));
            assert!(other.starts_with("db~") && other.len() == "db~".len() + 6, "{other}");
            assert_eq!(Namespace::new(&other).unwrap().configured(), db());
            // Each server keeps its own name, wherever it is started from.
            assert_eq!(claim(&mut names, ("postgres", "/c"), 3, lives, at(2 * DAY)), "db");
            assert_eq!(claim(&mut names, ("sqlite", "/b"), 4, lives, at(2 * DAY)), other);
        }
    }

    #[test]
    fn another_program_in_the_same_place_is_another_server_although_the_first_one_has_ended() {
        let mut names = ServerNameRecord::default();
        assert_eq!(claim(&mut names, ("postgres", "/home"), 1, &[], at(DAY)), "db");
        let other = claim(&mut names, ("sqlite", "/home"), 2, &[], at(DAY));
        assert_ne!(other, "db");
        assert_eq!(claim(&mut names, ("postgres", "/home"), 3, &[], at(DAY)), "db");
        assert_eq!(claim(&mut names, ("sqlite", "/home"), 4, &[], at(DAY)), other);
    }

    #[test]
    fn versions_are_distinguished_from_ports_addresses_and_names() {
        for (word, without) in [
            ("server@1.2.3", "server"),
            ("@scope/server@0.4", "@scope/server"),
            ("@scope/server@latest", "@scope/server"),
            ("server@v2", "server"),
            ("server@1.0.0-beta.2", "server"),
            ("server==2024.1", "server"),
            ("image:1.25", "image"),
            ("image:latest", "image"),
            ("@scope/server", "@scope/server"),
            ("localhost:5432", "localhost:5432"),
            ("ann@10.0.0.1", "ann@10.0.0.1"),
            ("db1", "db1"),
            ("a@b", "a@b"),
            ("@1", "@1"),
        ] {
            assert_eq!(without_version(word), without, "{word}");
        }
    }

    #[test]
    fn a_failure_is_known_until_the_server_works_and_reported_for_a_day() {
        let mut names = ServerNameRecord::default();
        let other = Namespace::new("db~3f2a91").unwrap();
        let failure = ServerFailure { at: at(DAY), reason: "it ended with exit code 1".to_owned() };
        names.set_failure(&db(), Some(&failure), at(DAY));
        names.set_failure(&other, Some(&failure), at(DAY));
        assert_eq!(names.failed(at(DAY)).count(), 2);
        names.set_failure(&db(), None, at(DAY));
        let failed: Vec<_> = names.failed(at(2 * DAY - Duration::from_secs(1))).collect();
        assert_eq!(failed, [(&other, &failure)]);
        assert_eq!(names.failed(at(2 * DAY)).count(), 0, "it was not used for a day");
        let stored = serde_json::to_string(&names).unwrap();
        assert_eq!(serde_json::from_str::<ServerNameRecord>(&stored).unwrap(), names);
        assert!(serde_json::from_str::<ServerNameRecord>(r#"{"claims":[]}"#).is_ok(), "of an older version");
    }

    #[test]
    fn a_server_whose_version_is_changed_keeps_its_name_unless_the_old_one_still_runs() {
        let mut names = ServerNameRecord::default();
        assert_eq!(claim(&mut names, ("db@1", "/a"), 1, &[1], at(DAY)), "db");
        assert_eq!(claim(&mut names, ("db@2", "/a"), 2, &[], at(DAY)), "db");
        assert_ne!(claim(&mut names, ("db@3", "/a"), 3, &[2], at(DAY)), "db");
    }

    #[test]
    fn a_name_is_free_again_when_its_server_was_not_started_for_long() {
        let mut names = ServerNameRecord::default();
        assert_eq!(claim(&mut names, ("postgres", "/a"), 1, &[], at(DAY)), "db");
        assert_eq!(claim(&mut names.clone(), ("sqlite", "/b"), 2, &[], at(DAY + RETENTION)), "db");
        assert_ne!(
            claim(&mut names, ("sqlite", "/b"), 2, &[1], at(DAY + RETENTION)),
            "db",
            "it runs all the time"
        );
    }

    #[test]
    fn those_that_run_at_once_clash() {
        let mut names = ServerNameRecord::default();
        claim(&mut names, ("postgres", "/a"), 1, &[1], at(DAY));
        claim(&mut names, ("sqlite", "/b"), 2, &[1], at(DAY));
        let clash = |sight: LeaseOwnerState, now| names.clash(|_| sight, now).map(|live| live.len());
        assert_eq!(clash(LeaseOwnerState::Alive, at(9 * DAY)), Some(2));
        assert_eq!(clash(LeaseOwnerState::Gone, at(DAY)), None);
        assert_eq!(clash(LeaseOwnerState::Time, at(DAY + ASSUMED_RUNNING)), None);
        assert_eq!(clash(LeaseOwnerState::Time, at(DAY)), Some(2));
        let is_first_gone = |process: &ProcessIdentity| {
            if process.pid == 1 { LeaseOwnerState::Alive } else { LeaseOwnerState::Gone }
        };
        assert!(names.clash(is_first_gone, at(DAY)).is_none());
    }

    #[test]
    fn the_number_of_recorded_servers_is_bounded() {
        let mut names = ServerNameRecord::default();
        for number in 0..=MOST {
            claim(&mut names, (&number.to_string(), &number.to_string()), 1, &[], at(DAY));
        }
        assert_eq!(names.claims.len(), MOST);
    }
}
