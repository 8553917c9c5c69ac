//! Measuring. Each suite is a command of the program in `benches`, which prints its report as Markdown;
//! the report replaces that suite's part of `BENCHMARKS.md` and leaves the other parts alone.

use std::fs;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::invocation::Invocation;
use crate::machine::{NPM, Need, PYTHON, REDIS};
use crate::{Failure, step, workspace};

/// Options of `cargo xtask bench`.
#[derive(Args)]
pub(crate) struct Options {
    /// What to measure
    suite: Suite,
    /// A tenth of the rounds, and nothing is written: for a look while one changes the code
    #[arg(long)]
    quick: bool,
    /// Measure only what has one of these in its name, and write nothing
    filters: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Suite {
    /// The decisions alone, beside the libraries that do a part of them
    Core,
    /// The engine and its stores, beside what programs use instead; installs that
    Engine,
}

/// `cargo xtask bench`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let name = match options.suite {
        Suite::Core => "core",
        Suite::Engine => "engine",
    };
    let mut arguments = vec!["run", "--quiet", "--release", "--package", "steadfast-benches", "--", name];
    arguments.extend(options.quick.then_some("--quick"));
    arguments.extend(options.filters.iter().map(String::as_str));
    let run = match options.suite {
        Suite::Core => Invocation::cargo(&arguments),
        Suite::Engine => {
            set_up(&[&NPM, &PYTHON, &REDIS])?;
            let peers = install_peers()?;
            Invocation::cargo(&arguments).env("STEADFAST_BENCH_PEERS", &peers.display().to_string())
        }
    };
    let report = run.output()?;
    print!("{report}");
    if options.quick || !options.filters.is_empty() {
        return Ok(());
    }
    let file = workspace::root().join("BENCHMARKS.md");
    let before = if file.exists() { workspace::read(&file)? } else { HEAD.to_owned() };
    workspace::write(&file, &with_part(&before, name, &report))?;
    eprintln!("written to {}", workspace::shown(&file));
    Ok(())
}

fn set_up(needs: &[&'static Need]) -> Result<(), Failure> {
    let missing = step::set_up(needs.iter().copied())?;
    if missing.is_empty() { Ok(()) } else { Err(missing.into_values().collect::<Vec<_>>().join("\n")) }
}

/// Installs the libraries of other languages into a folder of ours, at the versions that `benches/peers` pins.
/// Quick where they are there already: both installers look first.
fn install_peers() -> Result<PathBuf, Failure> {
    let folder = workspace::scratch("peers")?;
    let source = workspace::root().join("benches/peers");
    for (language, files) in
        [("node", ["package.json", "peer.mjs"]), ("python", ["requirements.txt", "peer.py"])]
    {
        let here = workspace::scratch(&format!("peers/{language}"))?;
        for file in files {
            fs::copy(source.join(language).join(file), here.join(file))
                .map_err(|error| format!("cannot copy {language}/{file}: {error}"))?;
        }
    }
    let node = folder.join("node").display().to_string();
    let python = folder.join("python");
    let pip = python.join("bin/pip").display().to_string();
    let requirements = python.join("requirements.txt").display().to_string();
    let python = python.display().to_string();
    let quiet = "--loglevel=error";
    for install in [
        Invocation::of(
            "npm",
            &["install", "--prefix", &node, "--no-package-lock", "--no-audit", "--no-fund", quiet],
        ),
        Invocation::of("python3", &["-m", "venv", &python]),
        Invocation::of(&pip, &["install", "--quiet", "--disable-pip-version-check", "-r", &requirements]),
    ] {
        // What they print is for whoever waits; stdout is the report's.
        eprint!("{}", install.output()?);
    }
    Ok(folder)
}

const HEAD: &str = "# Benchmarks

Written by `cargo xtask bench <suite>`. What counts are the ratios: everything in one table ran side by side on
one machine, in one run.
";

/// The text with the part of this name replaced, or added at the end.
fn with_part(text: &str, name: &str, part: &str) -> String {
    let (begin, end) = (format!("<!-- {name} -->"), format!("<!-- end of {name} -->"));
    let new = format!("{begin}\n{}\n{end}", part.trim());
    let old = text.find(&begin).and_then(|from| {
        let to = from + text.get(from..)?.find(&end)? + end.len();
        Some((text.get(..from)?, text.get(to..)?))
    });
    match old {
        Some((before, after)) => format!("{before}{new}{after}"),
        None => format!("{}\n\n{new}\n", text.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_replaces_its_own_part_and_no_other() {
        let once = with_part("# Head\n", "core", "one\n");
        assert_eq!(once, "# Head\n\n<!-- core -->\none\n<!-- end of core -->\n");
        let both = with_part(&once, "engine", "two");
        let again = with_part(&both, "core", "three");
        assert_eq!(
            again,
            "# Head\n\n<!-- core -->\nthree\n<!-- end of core -->\n\n<!-- engine -->\ntwo\n<!-- end of engine -->\n"
        );
    }

    #[test]
    fn a_part_that_was_cut_off_is_left_and_a_new_one_added() {
        let text = with_part("<!-- core -->\nhalf", "core", "whole");
        assert_eq!(text, "<!-- core -->\nhalf\n\n<!-- core -->\nwhole\n<!-- end of core -->\n");
    }
}
