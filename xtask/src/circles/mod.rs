//! Circles between modules.
//!
//! The children of a module form a circle if each of them needs each other, directly or through others. What a module
//! needs is read from the paths in its source; calls of methods are not seen, and tests are left out. Items of the
//! parent itself belong to no child.

mod edges;
mod source;

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{TaskFailure, workspace};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Folders of crates to check, for example `crates/core`. Without any, all crates are checked
    crates: Vec<String>,
}

/// Runs `cargo xtask circles`.
pub(crate) fn run(options: &Options) -> Result<(), TaskFailure> {
    let mut found = 0_usize;
    for member in members()? {
        if !options.crates.is_empty() && !options.crates.contains(&member) {
            continue;
        }
        let circles = circles_of(&member);
        found += circles.len();
        for circle in circles {
            eprintln!("{circle}");
        }
    }
    match found {
        0 => Ok(()),
        1 => Err("1 circle between modules".to_owned()),
        count => Err(format!("{count} circles between modules")),
    }
}

/// Returns the folders of all crates, except for those that only contain tests.
fn members() -> Result<Vec<String>, TaskFailure> {
    #[derive(Deserialize)]
    struct Manifest {
        workspace: Members,
    }
    #[derive(Deserialize)]
    struct Members {
        members: Vec<String>,
    }
    let text = workspace::read(&workspace::root().join("Cargo.toml"))?;
    let manifest: Manifest =
        toml::from_str(&text).map_err(|error| format!("cannot read Cargo.toml: {error}"))?;
    let members = manifest.workspace.members.into_iter();
    Ok(members.filter(|member| !member.starts_with("tests/")).collect())
}

/// Returns the circles of a crate as text, each with a line for each of its edges.
fn circles_of(member: &str) -> Vec<String> {
    let mut read = |file: &str| std::fs::read_to_string(workspace::root().join(file)).ok();
    let mut found = Vec::new();
    for root in ["lib", "main"] {
        let modules = source::modules(&format!("{member}/src/{root}.rs"), &mut read);
        for (parent, edges) in edges::sibling_edges(&modules) {
            for circle in edges::circles(&edges) {
                found.push(shown(member, &parent, &circle, &edges));
            }
        }
    }
    found
}

fn shown(
    member: &str,
    parent: &[String],
    circle: &[&str],
    edges: &BTreeMap<(String, String), String>,
) -> String {
    let place = [&[member.to_owned()], parent].concat().join("::");
    let mut text = format!("{place}: a circle of {}", circle.join(", "));
    for ((from, to), line) in edges {
        if circle.contains(&from.as_str()) && circle.contains(&to.as_str()) {
            text.push_str(&format!("\n  {from} needs {to}: {line}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_shown_with_a_line_for_each_edge() {
        let files = BTreeMap::from([
            ("x/src/lib.rs", "mod a; mod b; mod c;"),
            ("x/src/a.rs", "use crate::b::B;"),
            ("x/src/b.rs", "\nuse super::a;"),
            ("x/src/c.rs", "use crate::{a, b};"),
        ]);
        let modules =
            source::modules("x/src/lib.rs", &mut |file| files.get(file).map(|text| (*text).to_owned()));
        let edges = edges::sibling_edges(&modules).remove(&Vec::new()).unwrap();
        let circles = edges::circles(&edges);
        let texts: Vec<String> = circles.iter().map(|circle| shown("x", &[], circle, &edges)).collect();
        assert_eq!(
            texts,
            [
                "x: a circle of a, b\n  a needs b: x/src/a.rs:1: crate::b::B\n  b needs a: x/src/b.rs:2: super::a"
            ]
        );
    }
}
