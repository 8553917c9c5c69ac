//! Mutation testing of the core and of turns: applies one small change at a time, and expects a test to fail.
//!
//! `cargo-mutants` makes the changes and runs the tests of their package. A mutant that passes them is tried in the
//! simulation next. A mutant that passes both has survived: the line is not tested, or the change makes no difference.
//! The latter are listed in `tests/mutants.toml`, each with its reason, and are not tried.
//!
//! All changes are made in a copy of the repository below `target`. The copy is kept, so builds there are incremental.
//! Results are also kept, by the name of the mutant (file, line, column, change). So an interrupted run continues, and
//! a later one tries only new mutants and survivors.

mod copy;
mod equivalent;
mod mutant;
mod results;
mod simulate;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::Args;

use crate::invocation::Invocation;
use crate::machine::CARGO_MUTANTS;
use crate::{TaskFailure, step, workspace};
use copy::RepositoryCopy;
use mutant::Mutant;
use results::{MutantResults, MutationScore};

/// Options of `cargo xtask mutants`.
#[derive(Args)]
pub(crate) struct Options {
    /// Test only this module of the core, or this file of a module: `dedupe`, `dedupe/claim`. May be repeated
    #[arg(long = "module", alias = "file", value_name = "NAME")]
    modules: Vec<String>,
    /// Test only a part of the mutants: every n-th, starting at the k-th, counted from 0
    #[arg(long, value_name = "K/N")]
    shard: Option<Shard>,
    /// Test only mutants in lines that changed since this commit
    #[arg(long, value_name = "COMMIT")]
    since: Option<String>,
    /// Simulated worlds for each mutant that passes the tests; 0 skips the simulation
    #[arg(long, default_value_t = 3000)]
    seeds: u32,
    /// Test nothing; print the score of earlier runs
    #[arg(long)]
    score: bool,
    /// Discard the results of earlier runs
    #[arg(long, conflicts_with = "score")]
    fresh: bool,
}

/// Modules of the core that make decisions.
const MODULES: [&str; 8] = ["dedupe", "call", "breaker", "retry", "guard", "trust", "classify", "key"];

/// Package with these modules, and its sources.
const CORE: &str = "steadfast-core";
const CORE_SOURCES: &str = "crates/core/src";

/// Package whose modules all make decisions, and its sources. Here it is the module `turn`.
const TURN: &str = "steadfast-turn";
const TURN_SOURCES: &str = "crates/turn/src";

/// Cargo profile with fast builds.
const PROFILE: &str = "mutants";

/// Runs `cargo xtask mutants`.
pub(crate) fn run(options: &Options) -> Result<(), TaskFailure> {
    let missing = step::set_up([&CARGO_MUTANTS])?;
    if !missing.is_empty() {
        return Err(missing.into_values().collect::<Vec<_>>().join("; "));
    }
    let place = MutantFolders::new()?;
    if options.fresh {
        place.forget()?;
    }
    let mut results = MutantResults::load(&place.results)?;
    // An interrupted run left its results there.
    results.add_lists(&place.lists)?;
    let all = list(None)?;
    let equivalent = equivalent::load(&all)?;
    let mut chosen = choose(&all, options)?;
    if let Some(commit) = &options.since {
        let changed = changed_since(commit, &place)?;
        chosen.retain(|mutant| changed.contains(&mutant.name));
    }
    let candidates: Vec<&Mutant> =
        chosen.iter().filter(|mutant| !equivalent.contains(&mutant.name)).copied().collect();
    if !options.score {
        let open = candidates.iter().filter(|mutant| !results.is_settled(&mutant.name)).count();
        eprintln!("{} mutants, {open} to test", candidates.len());
        if open > 0 {
            // Not earlier, because another run may be using it.
            let copy = RepositoryCopy::of_the_repository(&place.tree)?;
            test(&place, &all, &candidates, &mut results)?;
            simulate::run(&place, &copy, &candidates, options.seeds, &mut results)?;
        }
    }
    let score = MutationScore::of(&chosen, &equivalent, &results);
    print!("{score}");
    match score.survived() {
        0 => Ok(()),
        some => Err(format!("{some} mutants survived; write a test, or list them in {}", equivalent::FILE)),
    }
}

/// Folders and files that are kept between runs.
struct MutantFolders {
    /// Copy of the repository in which changes are made.
    tree: PathBuf,
    /// Cargo's output for the copy.
    target: PathBuf,
    /// Output folder of cargo-mutants.
    output: PathBuf,
    /// Its lists of mutants by result.
    lists: PathBuf,
    /// Results so far.
    results: PathBuf,
}

impl MutantFolders {
    fn new() -> Result<Self, TaskFailure> {
        let folder = workspace::scratch("mutants")?;
        let output = folder.clone();
        Ok(Self {
            tree: folder.join("tree"),
            target: folder.join("target"),
            lists: output.join("mutants.out"),
            output,
            results: folder.join("results.json"),
        })
    }

    fn forget(&self) -> Result<(), TaskFailure> {
        if self.lists.exists() {
            fs::remove_dir_all(&self.lists)
                .map_err(|error| format!("cannot remove {}: {error}", workspace::shown(&self.lists)))?;
        }
        workspace::write(&self.results, "{}")
    }

    /// Returns a cargo command on the copy.
    fn cargo(&self, command: &[&str]) -> Invocation {
        Invocation::cargo(command)
            .args(in_workspace(&self.tree))
            .env("CARGO_TARGET_DIR", &self.target.display().to_string())
            .env("CARGO_INCREMENTAL", "1")
    }
}

/// Returns the arguments that select the workspace for cargo.
fn in_workspace(folder: &Path) -> [String; 2] {
    ["--manifest-path".to_owned(), folder.join("Cargo.toml").display().to_string()]
}

/// Returns all mutants of all modules in the current repository. With a diff, only those in lines that it adds.
fn list(diff: Option<&Path>) -> Result<Vec<Mutant>, TaskFailure> {
    let arguments =
        ["--list".to_owned(), "--json".to_owned()].into_iter().chain(in_workspace(workspace::root()));
    let diff = diff.map(|diff| ["--in-diff".to_owned(), diff.display().to_string()]);
    let arguments = arguments.chain(diff.into_iter().flatten());
    let json = Invocation::cargo(&["mutants"]).args(selection()).args(arguments).output()?;
    serde_json::from_str(&json).map_err(|error| format!("cannot read the list of mutants: {error}"))
}

/// Returns the names of the mutants in lines that changed since a commit.
fn changed_since(commit: &str, place: &MutantFolders) -> Result<BTreeSet<String>, TaskFailure> {
    let diff =
        Invocation::of("git", &["diff", "--unified=0", commit, "--", CORE_SOURCES, TURN_SOURCES]).output()?;
    let file = place.output.join("since.diff");
    workspace::write(&file, &diff)?;
    Ok(list(Some(&file))?.into_iter().map(|mutant| mutant.name).collect())
}

/// Returns the arguments that select the mutants of cargo-mutants.
fn selection() -> impl Iterator<Item = String> {
    let files = MODULES.iter().flat_map(|module| {
        // A module is a folder or a file.
        ["/**/*.rs", ".rs"].map(|end| ["--file".to_owned(), format!("{CORE_SOURCES}/{module}{end}")])
    });
    let packages = ["--no-config", "--package", CORE, "--package", TURN].map(str::to_owned);
    let turn = ["--file".to_owned(), format!("{TURN_SOURCES}/**/*.rs")];
    packages.into_iter().chain(files.flatten()).chain(turn)
}

/// Returns the requested mutants.
fn choose<'m>(all: &'m [Mutant], options: &Options) -> Result<Vec<&'m Mutant>, TaskFailure> {
    for name in &options.modules {
        if !all.iter().any(|mutant| mutant.is_below(name)) {
            return Err(format!("no mutants in {name}; there are the modules {}, turn", MODULES.join(", ")));
        }
    }
    let selected = all.iter().filter(|mutant| {
        options.modules.is_empty() || options.modules.iter().any(|name| mutant.is_below(name))
    });
    let shard = options.shard.unwrap_or(Shard { number: 0, of: 1 });
    Ok(selected
        .enumerate()
        .filter(|(at, _)| at % shard.of == shard.number)
        .map(|(_, mutant)| mutant)
        .collect())
}

/// Runs the tests of its package against each mutant without a known result.
fn test(
    place: &MutantFolders,
    all: &[Mutant],
    candidates: &[&Mutant],
    results: &mut MutantResults,
) -> Result<(), TaskFailure> {
    let took = time_unchanged(place)?;
    let limit = (took * 5).max(Duration::from_secs(20));
    let open: BTreeSet<&str> = candidates
        .iter()
        .map(|mutant| mutant.name.as_str())
        .filter(|name| !results.is_settled(name))
        .collect();
    // `--iterate` skips the mutants in this file.
    let skipped: String = all
        .iter()
        .filter(|mutant| !open.contains(mutant.name.as_str()))
        .map(|mutant| format!("{}\n", mutant.name))
        .collect();
    results.save(&place.results)?;
    if place.lists.exists() {
        fs::remove_dir_all(&place.lists)
            .map_err(|error| format!("cannot remove {}: {error}", workspace::shown(&place.lists)))?;
    }
    workspace::write(&place.lists.join("previously_caught.txt"), &skipped)?;
    let output = place.output.display().to_string();
    let run = place
        .cargo(&["mutants", "--in-place", "--iterate", "--output", &output])
        .args(selection())
        // The baseline passed a moment ago.
        .args(["--baseline=skip".to_owned(), format!("--timeout={}", limit.as_secs())])
        .args(["--profile", PROFILE, "--cargo-arg=--lib"].map(str::to_owned));
    // It fails if a mutant survives. Its lists have the results.
    let outcome = run.run();
    let found = results.add_lists(&place.lists)?;
    results.save(&place.results)?;
    if found < open.len() {
        outcome?;
        return Err(format!("{} of {} mutants were tested", found, open.len()));
    }
    Ok(())
}

/// Runs the tests without a change. They must pass, and their duration determines the timeout for mutants.
fn time_unchanged(place: &MutantFolders) -> Result<Duration, TaskFailure> {
    let tests = |more: &[&str]| {
        let all = ["test", "--quiet", "--package", CORE, "--package", TURN, "--lib", "--profile", PROFILE];
        place.cargo(&all).args(more.iter().map(|&word| word.to_owned()))
    };
    tests(&["--no-run"]).run()?;
    let began = Instant::now();
    tests(&[]).output()?;
    Ok(began.elapsed())
}

/// A part of the mutants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shard {
    number: usize,
    of: usize,
}

impl FromStr for Shard {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
        match numbers {
            Some((number, of)) if number < of => Ok(Self { number, of }),
            Some(_) | None => Err("a shard is K/N with K below N, for example 0/4"),
        }
    }
}

/// Returns a path in the sources without its extension: `dedupe/claim`, `turn/plan`.
fn module_path(file: &Path) -> Option<String> {
    let in_turn = || Some(Path::new("turn").join(file.strip_prefix(TURN_SOURCES).ok()?));
    let path = file.strip_prefix(CORE_SOURCES).ok().map(Path::to_owned).or_else(in_turn)?;
    Some(path.with_extension("").display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(modules: &[&str], shard: Option<&str>) -> Options {
        Options {
            modules: modules.iter().map(|&name| name.to_owned()).collect(),
            shard: shard.map(|text| text.parse().unwrap()),
            since: None,
            seeds: 0,
            score: true,
            fresh: false,
        }
    }

    fn all() -> Vec<Mutant> {
        ["dedupe/claim", "dedupe/owner", "call/mod", "callback"].map(Mutant::in_file).into()
    }

    #[test]
    fn a_module_is_a_folder_or_a_file_of_it() {
        let all = all();
        let names = |modules: &[&str]| -> Vec<String> {
            let chosen = choose(&all, &options(modules, None)).unwrap();
            chosen.iter().map(|mutant| module_path(&mutant.file).unwrap()).collect()
        };
        assert_eq!(names(&[]).len(), 4);
        assert_eq!(names(&["dedupe"]), ["dedupe/claim", "dedupe/owner"]);
        assert_eq!(names(&["dedupe/owner", "call"]), ["dedupe/owner", "call/mod"]);
        let failure = choose(&all, &options(&["nothing"], None)).unwrap_err();
        assert!(failure.contains("nothing") && failure.contains("dedupe"), "{failure}");
    }

    #[test]
    fn the_turn_crate_is_a_module() {
        let path = |file: &str| module_path(Path::new(file));
        assert_eq!(path("crates/turn/src/trace/id.rs").as_deref(), Some("turn/trace/id"));
        assert_eq!(path("crates/core/src/key/mod.rs").as_deref(), Some("key/mod"));
        assert_eq!(path("crates/json/src/lib.rs"), None);
    }

    #[test]
    fn shards_have_everything_once() {
        let all = all();
        let part = |text| choose(&all, &options(&[], Some(text))).unwrap();
        let (first, second) = (part("0/2"), part("1/2"));
        assert_eq!((first.len(), second.len()), (2, 2));
        assert!(first.iter().all(|mutant| !second.iter().any(|other| other.name == mutant.name)));
    }

    #[test]
    fn a_shard_is_a_number_below_the_number_of_shards() {
        assert_eq!("3/4".parse(), Ok(Shard { number: 3, of: 4 }));
        for wrong in ["4/4", "1", "a/b", "0/0"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_module_is_there() {
        for module in MODULES {
            let path = workspace::root().join(CORE_SOURCES).join(module);
            assert!(path.is_dir() || path.with_extension("rs").is_file(), "{module}");
        }
        assert!(workspace::root().join(TURN_SOURCES).is_dir());
    }
}
