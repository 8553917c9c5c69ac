//! Fuzzing, which takes hours and is not part of the tests.
//!
//! The bodies of the targets run in the normal tests over the inputs in `fuzz/corpus`. This command runs them over new
//! inputs. Interesting inputs are stored below `target`, so that the corpus stays hand-written. An input that breaks
//! something is added to the corpus manually, with the fix.

use std::fs;

use clap::Args;

use crate::invocation::Invocation;
use crate::machine::{CARGO_FUZZ, CXX};
use crate::{TaskFailure, step, workspace};

/// Options of `cargo xtask fuzz`.
#[derive(Args)]
pub(crate) struct Options {
    /// The target: a file in fuzz/fuzz_targets without its extension
    target: String,
    /// Duration in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

/// Runs `cargo xtask fuzz`.
pub(crate) fn run(options: &Options) -> Result<(), TaskFailure> {
    let targets = targets()?;
    if !targets.contains(&options.target) {
        return Err(format!("there is no fuzz target {}; there are {}", options.target, targets.join(", ")));
    }
    let missing = step::set_up([&CARGO_FUZZ, &CXX])?;
    if !missing.is_empty() {
        return Err(missing.into_values().collect::<Vec<_>>().join("; "));
    }
    let found = workspace::scratch("fuzz")?.join(&options.target);
    fs::create_dir_all(&found)
        .map_err(|error| format!("cannot make {}: {error}", workspace::shown(&found)))?;
    let written = workspace::root().join("fuzz/corpus").join(&options.target);
    Invocation::cargo(&["fuzz", "run", &options.target])
        .args([found, written].map(|folder| folder.display().to_string()))
        .args(["--".to_owned(), format!("-max_total_time={}", options.seconds)])
        // Sanitizers are unstable flags. Stable Rust accepts them only with this variable.
        .env("RUSTC_BOOTSTRAP", "1")
        .run()
}

fn targets() -> Result<Vec<String>, TaskFailure> {
    let folder = workspace::root().join("fuzz/fuzz_targets");
    let entries = fs::read_dir(&folder)
        .map_err(|error| format!("cannot list {}: {error}", workspace::shown(&folder)))?;
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| Some(entry.path().file_stem()?.to_str()?.to_owned())).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_does_not_exist_is_answered_with_those_that_do() {
        let failure = run(&Options { target: "nothing".to_owned(), seconds: 1 }).unwrap_err();
        assert!(
            failure.contains("there is no fuzz target nothing") && failure.contains("envelope"),
            "{failure}"
        );
    }
}
