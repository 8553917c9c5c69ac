//! `steadfast demo`, run by a user and by a script.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

#[path = "support/folder.rs"]
mod folder;
#[path = "support/waiting.rs"]
mod waiting;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::folder::CliTestFolder;
use crate::waiting::{ChildGuard, wait};

/// A folder for temporary files of one test. Its name is in the environment of every process of the demo.
struct DemoFolder {
    folder: CliTestFolder,
}

struct DemoRun {
    code: i32,
    out: String,
    err: String,
}

impl DemoFolder {
    fn new(test: &str) -> Self {
        Self { folder: CliTestFolder::new(&format!("demo_{test}")) }
    }

    /// Returns the demo command with nothing in its environment except the temporary folder: no home, no terminal.
    fn demo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast"));
        command.arg("demo").args(arguments).current_dir("/").env_clear().env("TMPDIR", &self.folder);
        command
    }

    fn run(&self, arguments: &[&str]) -> DemoRun {
        let output = self.demo(arguments).stdin(Stdio::null()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        DemoRun { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Asserts that no file of the demo is left, and soon no process.
    fn assert_unchanged(&self) {
        assert_eq!(fs::read_dir(&self.folder).unwrap().count(), 0, "its files are gone");
        wait(|| self.processes().is_empty(), || format!("the end of {:?}", self.processes()));
    }

    /// Returns the processes with this folder in their environment.
    fn processes(&self) -> Vec<PathBuf> {
        let mark = format!("TMPDIR={}", self.folder.display());
        let is_own = |path: &PathBuf| {
            let environment = fs::read(path.join("environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        };
        let all = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
        all.filter(is_own).collect()
    }
}

#[test]
fn the_demo_succeeds_in_eighty_plain_columns_and_leaves_nothing_behind() {
    let place = DemoFolder::new("story");
    let DemoRun { code, out, err } = place.run(&["--once"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(!out.contains('\x1b') && !out.contains('\r'), "{out}");
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    assert!(!out.contains("DIFFERS"), "{out}");
    let row = |number: u32, words: &[&str]| {
        let beginning = format!(" {number} ");
        out.lines().any(|line| line.starts_with(&beginning) && words.iter().all(|word| line.contains(word)))
    };
    assert!(row(1, &["no answer", "answered in"]), "{out}");
    assert!(row(2, &["paid twice", "paid once, told to check"]), "{out}");
    assert!(row(3, &["paid twice", "paid once, both answered"]), "{out}");
    assert!(row(4, &["no answer in", "answered in"]), "{out}");
    assert!(row(5, &["20 requests, no end", "requests, then none"]), "{out}");
    assert!(row(6, &["12 of 12", "2 of 12"]), "{out}");
    assert!(row(7, &["paid twice", "paid once, answer kept"]), "{out}");
    assert!(!out.contains("Ctrl-C"), "nobody is there to press it: {out}");
    place.assert_unchanged();
}

#[test]
fn programs_get_the_observations_as_json() {
    let place = DemoFolder::new("json");
    let DemoRun { code, out, err } = place.run(&["--json"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["ok"], true);
    assert_eq!(
        (&report["paidCents"]["without"], &report["paidCents"]["with"]),
        (&52_000.into(), &26_000.into())
    );
    let scenes = report["scenes"].as_array().unwrap();
    assert_eq!(scenes.len(), 7);
    for (scene, name, without, with) in [
        (2, "payments", 2, 1),
        (3, "payments", 2, 1),
        (5, "requestsWhileDown", 20, 7),
        (6, "reachedTheServer", 12, 2),
        (7, "payments", 2, 1),
    ] {
        let scene = &scenes[scene - 1];
        let fact = |side: &str| scene[side]["facts"][name].as_u64();
        assert_eq!((fact("without"), fact("with")), (Some(without), Some(with)), "{scene}");
    }
    assert!(
        scenes.iter().all(|scene| scene["asExpected"] == true && scene["surprises"] == serde_json::json!([]))
    );
    place.assert_unchanged();
}

/// With a gateway that does nothing, every scene fails. That shows that nothing is staged.
#[test]
fn a_demo_with_unexpected_results_fails_and_shows_them() {
    let place = DemoFolder::new("off");
    let DemoRun { code, out, err } = place.run(&["--json", "--off"]);
    assert_eq!((code, err.as_str()), (1, ""), "{out}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["ok"], false);
    for scene in report["scenes"].as_array().unwrap() {
        assert_eq!(scene["asExpected"], false, "{scene}");
        assert!(
            scene["surprises"].as_array().unwrap().iter().all(|surprise| surprise["side"] == "with"),
            "{scene}"
        );
    }
    let twice = serde_json::json!({ "side": "with", "what": "payments", "observed": "2", "expected": "1" });
    assert_eq!(report["scenes"][1]["surprises"][0], twice);
    place.assert_unchanged();
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    for (signal, until) in [("-INT", "1  "), ("-TERM", "4  ")] {
        // The demo continues until the signal arrives, and may have ended by then. In that case there was nothing to
        // interrupt.
        let is_interrupted = (0..ATTEMPTS).any(|_| interrupted(signal, until));
        assert!(is_interrupted, "{signal} ends no story");
    }
}

const ATTEMPTS: u32 = 10;

/// Returns true if the demo was interrupted before its end. Asserts that nothing is left of it in both cases.
fn interrupted(signal: &str, until: &str) -> bool {
    let place = DemoFolder::new(&format!("interrupted{signal}"));
    let mut demo = ChildGuard(place.demo(&["--once"]).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with(until)));
    if Path::new("/proc/self/environ").exists() {
        let is_running = || place.processes().len() > 1 || demo.try_wait().unwrap().is_some();
        wait(is_running, || "a server beside the demo".to_owned());
    }
    // Not to a process that has ended, because its process id may belong to another one.
    if demo.try_wait().unwrap().is_none() {
        let sent = Command::new("kill").args([signal, &demo.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
    let is_reported = lines.any(|line| line.contains("balance, should be"));
    let code = demo.wait().unwrap().code();
    assert_eq!(code, Some(if is_reported { 0 } else { 130 }), "{signal}");
    place.assert_unchanged();
    !is_reported
}

#[test]
fn an_unusable_address_is_reported_before_the_demo_starts() {
    let place = DemoFolder::new("address");
    let DemoRun { code, out, err } = place.run(&["--listen", "0.0.0.0:0"]);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(err.contains("listen on 127.0.0.1"), "{err}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let DemoRun { code, out, err } = place.run(&["--listen", &taken.local_addr().unwrap().to_string()]);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.contains("cannot listen on"), "{err}");
    place.assert_unchanged();
}

#[test]
fn without_a_temporary_folder_the_demo_fails_with_advice() {
    let place = DemoFolder::new("nowhere");
    let output = place.demo(&["--once"]).env("TMPDIR", place.folder.join("missing")).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(err.contains("the demo needs one temporary file") && err.contains("missing"), "{err}");
}
