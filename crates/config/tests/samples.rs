//! Sample files, valid and invalid, each named for its subject. The expected messages are stored beside them. To
//! update them, run with `UPDATE_SAMPLES=1` and read the difference.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use steadfast_config::{Config, ConfigFile, FileRequirement, Sources};

fn load(path: &Path) -> Result<Config, String> {
    let environment = BTreeMap::from([("HOME".to_owned(), "/home/me".to_owned())]);
    let file = ConfigFile { path: path.to_owned(), needed: FileRequirement::Always };
    let sources = Sources { files: vec![file], environment, ..Sources::default() };
    Config::load(&sources).map_err(|errors| format!("{errors}\n"))
}

/// Returns the samples of a folder. Paths are relative, so that messages are the same on every machine.
fn samples(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(Path::new("tests/samples").join(folder)).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension != "said"));
    paths.sort();
    assert!(!paths.is_empty());
    paths
}

fn compare(path: &Path, actual: &str) {
    let expected = path.with_extension("said");
    if env::var_os("UPDATE_SAMPLES").is_some() {
        fs::write(&expected, actual).unwrap();
    }
    assert_eq!(fs::read_to_string(&expected).unwrap_or_default(), actual, "{}", path.display());
}

#[test]
fn every_error_is_reported_with_its_line_and_advice() {
    for path in samples("invalid") {
        let Err(errors) = load(&path) else { panic!("{} was accepted", path.display()) };
        compare(&path, &errors);
        for error in errors.split("error: ").skip(1) {
            assert!(error.contains("\n    = ") || error.contains("\n   = "), "no advice: {error}");
            assert!(error.contains('^'), "no caret: {error}");
        }
    }
}

#[test]
fn ten_errors_of_a_file_are_reported_at_once() {
    let Err(errors) = load(Path::new("tests/samples/invalid/ten-mistakes.toml")) else { panic!("accepted") };
    assert!(errors.ends_with("10 errors in the configuration\n"), "{errors}");
    for number in 1..=10 {
        assert!(errors.contains(&format!(" # {number} ")), "mistake {number} is not shown:\n{errors}");
    }
}

#[test]
fn valid_samples_are_accepted() {
    for path in samples("valid") {
        if let Err(errors) = load(&path) {
            panic!("{}:\n{errors}", path.display());
        }
    }
}

#[test]
fn rp_17_imports_of_foreign_files_are_reported() {
    for path in samples("imported") {
        let actual = match load(&path) {
            Ok(config) => config.notes().iter().fold(String::new(), |mut text, note| {
                let _ = writeln!(text, "{note}");
                text
            }),
            Err(actual) => actual,
        };
        compare(&path, &actual);
    }
}
