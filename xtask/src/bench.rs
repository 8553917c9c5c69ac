//! Benchmarks. Each suite is a command of the program in `benches`, which prints its report as Markdown. The report
//! replaces that suite's part of `BENCHMARKS.md`.

use std::fs;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::invocation::Invocation;
use crate::machine::{NPM, PYTHON, REDIS, RequiredProgram};
use crate::{TaskFailure, real_packages, step, workspace};

/// Options of `cargo xtask bench`.
#[derive(Args)]
pub(crate) struct Options {
    /// The suite to run
    suite: BenchmarkSuite,
    /// Run a tenth of the rounds and write nothing: for a quick check during development
    #[arg(long)]
    quick: bool,
    /// Run only benchmarks with one of these in their names, and write nothing
    filters: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum BenchmarkSuite {
    /// The core alone, compared with libraries that do a part of its work
    Core,
    /// The engine and its stores, compared with alternatives; installs them
    Engine,
    /// The gateway, compared with bare servers and other gateways; installs them, which takes half an hour the first
    /// time
    Gateway,
}

/// Runs `cargo xtask bench`.
pub(crate) fn run(options: &Options) -> Result<(), TaskFailure> {
    let name = match options.suite {
        BenchmarkSuite::Core => "core",
        BenchmarkSuite::Engine => "engine",
        BenchmarkSuite::Gateway => "gateway",
    };
    let mut arguments = vec!["run", "--quiet", "--release", "--package", "steadfast-benches", "--", name];
    arguments.extend(options.quick.then_some("--quick"));
    arguments.extend(options.filters.iter().map(String::as_str));
    let run = match options.suite {
        BenchmarkSuite::Core => Invocation::cargo(&arguments),
        BenchmarkSuite::Engine => {
            set_up(&[&NPM, &PYTHON, &REDIS])?;
            for install in [install_node("")?, install_python("")?].concat() {
                run_to_stderr(&install)?;
            }
            Invocation::cargo(&arguments).env("STEADFAST_BENCH_PEERS", &peers()?)
        }
        BenchmarkSuite::Gateway => {
            // Installs the server behind all gateways, and one of the alternatives.
            real_packages::run()?;
            install_gateways()?;
            run_to_stderr(&Invocation::cargo(&[
                "build",
                "--quiet",
                "--release",
                "--package",
                "steadfast-cli",
            ]))?;
            let program = workspace::target().join("release/steadfast").display().to_string();
            Invocation::cargo(&arguments)
                .env("STEADFAST_BENCH_PEERS", &peers()?)
                .env("STEADFAST_BENCH_REAL", &workspace::scratch("real")?.display().to_string())
                .env("STEADFAST_BENCH_PROGRAM", &program)
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

fn set_up(needs: &[&'static RequiredProgram]) -> Result<(), TaskFailure> {
    let missing = step::set_up(needs.iter().copied())?;
    if missing.is_empty() { Ok(()) } else { Err(missing.into_values().collect::<Vec<_>>().join("\n")) }
}

/// Returns the folder of the alternatives.
fn peers() -> Result<String, TaskFailure> {
    Ok(workspace::scratch("peers")?.display().to_string())
}

/// Installs other gateways. One that cannot be installed is not measured, and the report says so.
fn install_gateways() -> Result<(), TaskFailure> {
    for installs in [install_node("gateway/")?, install_python("gateway/")?, install_rust_proxy()?] {
        if let Err(failure) = installs.iter().try_for_each(run_to_stderr) {
            eprintln!("{failure}\ncontinuing without it");
        }
    }
    Ok(())
}

/// Returns the commands that install the npm packages that this folder of `benches/peers` pins. They are fast if the
/// packages are already installed: npm checks first, as pip does.
fn install_node(folder: &str) -> Result<Vec<Invocation>, TaskFailure> {
    let here = copied(&format!("{folder}node"))?.display().to_string();
    let quiet = "--loglevel=error";
    Ok(vec![Invocation::of(
        "npm",
        &["install", "--prefix", &here, "--no-package-lock", "--no-audit", "--no-fund", quiet],
    )])
}

/// Returns the commands for PyPI.
fn install_python(folder: &str) -> Result<Vec<Invocation>, TaskFailure> {
    let here = copied(&format!("{folder}python"))?;
    let pip = here.join("bin/pip").display().to_string();
    let requirements = here.join("requirements.txt").display().to_string();
    Ok(vec![
        Invocation::of("python3", &["-m", "venv", &here.display().to_string()]),
        Invocation::of(&pip, &["install", "--quiet", "--disable-pip-version-check", "-r", &requirements]),
    ])
}

/// Returns the commands that install the gateway written in Rust, if it is missing. It is built as its users have it,
/// optimized, which takes half an hour.
fn install_rust_proxy() -> Result<Vec<Invocation>, TaskFailure> {
    const VERSION: &str = "0.6.0";
    let here = workspace::scratch("peers/rust")?;
    // It has no version option. The list of installed crates has the version.
    let installed = fs::read_to_string(here.join(".crates.toml")).unwrap_or_default();
    if installed.contains(&format!("\"mcp-proxy {VERSION} ")) && here.join("bin/mcp-proxy").exists() {
        return Ok(Vec::new());
    }
    eprintln!("building mcp-proxy {VERSION} for comparison: half an hour, once");
    let (root, spec) = (here.display().to_string(), format!("mcp-proxy@{VERSION}"));
    let target = workspace::scratch("peers/rust-target")?.display().to_string();
    Ok(vec![
        Invocation::cargo(&["install", "--quiet", "--locked", "--root", &root, &spec])
            .env("CARGO_TARGET_DIR", &target),
    ])
}

/// Returns a folder with copies of the files of this folder of `benches/peers`.
fn copied(folder: &str) -> Result<PathBuf, TaskFailure> {
    let source = workspace::root().join("benches/peers").join(folder);
    let here = workspace::scratch(&format!("peers/{folder}"))?;
    let cannot = |error| format!("cannot copy {}: {error}", workspace::shown(&source));
    for file in fs::read_dir(&source).map_err(cannot)? {
        let file = file.map_err(cannot)?;
        fs::copy(file.path(), here.join(file.file_name())).map_err(cannot)?;
    }
    Ok(here)
}

/// Runs a command with its output on stderr, because stdout is used for the report.
fn run_to_stderr(invocation: &Invocation) -> Result<(), TaskFailure> {
    eprint!("{}", invocation.output()?);
    Ok(())
}

const HEAD: &str = "# Benchmarks

Written by `cargo xtask bench <suite>`. What counts are the ratios: everything in one table ran side by side on
one machine, in one run.
";

/// Returns the text with the part of this name replaced, or added at the end.
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
    fn an_incomplete_part_is_preserved_and_a_new_one_added() {
        let text = with_part("<!-- core -->\nhalf", "core", "whole");
        assert_eq!(text, "<!-- core -->\nhalf\n\n<!-- core -->\nwhole\n<!-- end of core -->\n");
    }
}
