//! Tests with several processes on one file, and with processes that are killed.
//!
//! The test binary starts itself again, with one test and a role in it.

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rusqlite::Connection;
use steadfast_core::dedupe::{ClaimVerdict, DedupeState, LocalKnowledge};
use steadfast_store::StateStore;

use super::world::{SqliteTestFolder, begin, claim, is_replay, key, patient, save, take};
use crate::SqliteStore;

const FILE: &str = "STEADFAST_TEST_FILE";
const PART: &str = "STEADFAST_TEST_PART";

/// Starts this test again as another process, with a role. Its output is read line by line.
pub(super) fn spawn(test: &str, file: &Path, part: &str) -> Child {
    program_at(&env::current_exe().unwrap(), test, file, part).spawn().unwrap()
}

/// Returns the command for this test as another process, from a copy of this program.
pub(super) fn program_at(program: &Path, test: &str, file: &Path, part: &str) -> Command {
    let mut command = Command::new(program);
    command
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(FILE, file)
        .env(PART, part)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

/// Returns the role of this process, if it is a child.
pub(super) fn part() -> Option<(PathBuf, String)> {
    Some((env::var_os(FILE)?.into(), env::var(PART).ok()?))
}

pub(super) fn print_line(line: &str) {
    // On a line of its own, because the test harness writes too.
    writeln!(std::io::stdout(), "\n> {line}").unwrap();
}

/// Returns the lines of a process until it ends.
pub(super) fn output_lines(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    lines.filter_map(|line| line.strip_prefix("> ").map(str::to_owned))
}

/// Checks the invariants of every file, whatever happened to its writers.
pub(super) fn assert_sound(path: &Path) {
    let file = Connection::open(path).unwrap();
    let number = |sql: &str| file.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    let check: String = file.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
    let dangling = "SELECT count(*) FROM pointer LEFT JOIN record USING (key)
                  WHERE record.entry IS NOT pointer.entry";
    assert_eq!(number(dangling), 0, "every pointer leads to a record that knows of it");
    let last = number("SELECT coalesce(max(id), 0) FROM record");
    let last = last.max(number("SELECT value FROM meta WHERE name = 'last_removed'"));
    let counted = last - number("SELECT value FROM meta WHERE name = 'removed'");
    assert_eq!(counted, number("SELECT count(*) FROM record"), "the count is right");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

#[test]
fn sf_1_of_several_processes_one_runs_each_call() {
    const KEYS: usize = 40;
    if let Some((file, _)) = part() {
        let store = SqliteStore::open(patient(file)).unwrap();
        runtime().block_on(async {
            for n in 0..KEYS {
                let name = format!("call {n}");
                match store.claim(&claim(&name), &LocalKnowledge::default()).await.unwrap() {
                    ClaimVerdict::Acquired(record) => {
                        print_line(&name);
                        store.save(&save(&record, "paid")).await.unwrap();
                    }
                    ClaimVerdict::Follow(key) => store.settled(key).await,
                    ClaimVerdict::Replay(_) => {}
                    other @ (ClaimVerdict::Busy
                    | ClaimVerdict::Unknown(_)
                    | ClaimVerdict::Conflict
                    | ClaimVerdict::Nothing
                    | ClaimVerdict::Full
                    | ClaimVerdict::StoreRecovering
                    | ClaimVerdict::RecordsLost) => panic!("{other:?}"),
                }
            }
        });
        print_line("end");
        return;
    }
    let folder = SqliteTestFolder::new();
    let test = "tests::processes::sf_1_of_several_processes_one_runs_each_call";
    let mut children: Vec<_> = (0..4).map(|_| spawn(test, &folder.state(), "run")).collect();
    let mut runs = BTreeMap::<String, usize>::new();
    for child in &mut children {
        let lines: Vec<_> = output_lines(child).collect();
        assert!(child.wait().unwrap().success());
        assert_eq!(lines.last().map(String::as_str), Some("end"));
        lines.into_iter().for_each(|line| *runs.entry(line).or_default() += 1);
    }
    assert_eq!(runs.remove("end"), Some(4));
    assert_eq!(runs.len(), KEYS);
    assert!(runs.values().all(|count| *count == 1), "{runs:?}");
    assert_sound(&folder.state());
}

/// The other process stays alive, so that only its save can wake the follower.
#[test]
fn a_follower_is_woken_by_the_save_of_another_process() {
    if let Some((file, _)) = part() {
        let store = SqliteStore::open(patient(file)).unwrap();
        runtime().block_on(async {
            let record = take(&store, "held").await;
            print_line("held");
            std::io::stdin().read_line(&mut String::new()).unwrap();
            store.save(&save(&record, "paid")).await.unwrap();
        });
        // Until the other process closes it.
        std::io::stdin().read_line(&mut String::new()).unwrap();
        return;
    }
    let folder = SqliteTestFolder::new();
    let test = "tests::processes::a_follower_is_woken_by_the_save_of_another_process";
    let mut child = spawn(test, &folder.state(), "hold");
    assert_eq!(output_lines(&mut child).next().as_deref(), Some("held"));
    let mut stdin = child.stdin.take().unwrap();
    runtime().block_on(async {
        let store = folder.open();
        let verdict = store.claim(&claim("held"), &LocalKnowledge::default()).await.unwrap();
        assert_eq!(verdict, ClaimVerdict::Follow(key("held")));
        let mut settled = store.settled(key("held"));
        begin(&mut settled).await;
        writeln!(stdin, "save").unwrap();
        settled.await;
        assert!(is_replay(&store.claim(&claim("held"), &LocalKnowledge::default()).await.unwrap()));
    });
    assert!(child.try_wait().unwrap().is_none(), "it is still there");
    drop(stdin);
    child.wait().unwrap();
}

/// Kills the process at random moments, repeatedly on one file. Everything that it acknowledged is in the file.
#[test]
fn acknowledged_writes_survive_kill_9() {
    if let Some((file, round)) = part() {
        let store = Arc::new(SqliteStore::open(patient(file)).unwrap());
        runtime().block_on(async {
            let callers = (0..8).map(|caller| {
                let (store, round) = (store.clone(), round.clone());
                tokio::spawn(async move {
                    for n in 0.. {
                        let name = format!("{round} {caller} {n}");
                        let record = take(&store, &name).await;
                        print_line(&format!("claimed {name}"));
                        store.save(&save(&record, "paid")).await.unwrap();
                        print_line(&format!("saved {name}"));
                    }
                })
            });
            for caller in callers.collect::<Vec<_>>() {
                caller.await.unwrap();
            }
        });
        return;
    }
    let folder = SqliteTestFolder::new();
    let mut answered = BTreeMap::new();
    for round in 0..8 {
        let test = "tests::processes::acknowledged_writes_survive_kill_9";
        let mut child = spawn(test, &folder.state(), &round.to_string());
        let mut lines = output_lines(&mut child);
        let mut note = |line: String| {
            let (kind, name) = line.split_once(' ').unwrap();
            let saved = kind == "saved";
            *answered.entry(name.to_owned()).or_insert(false) |= saved;
        };
        lines.by_ref().take(37 + 53 * round).for_each(&mut note);
        child.kill().unwrap();
        lines.for_each(&mut note);
        child.wait().unwrap();

        let store = folder.open();
        runtime().block_on(async {
            for (name, saved) in &answered {
                let record = store.record(key(name)).await.unwrap().expect("what was claimed is there");
                if *saved {
                    assert!(matches!(record.state, DedupeState::Done(_)), "{name}");
                }
            }
            let (name, _) = answered
                .iter()
                .find(|(_, saved)| !**saved)
                .unwrap_or_else(|| answered.first_key_value().unwrap());
            // The process is gone, so there is no wait for a lease.
            let verdict = store.claim(&claim(name), &LocalKnowledge::default()).await.unwrap();
            assert!(is_replay(&verdict) || matches!(verdict, ClaimVerdict::Unknown(_)), "{verdict:?}");
        });
        drop(store);
        assert_sound(&folder.state());
    }
    assert!(answered.len() > 100);
}
