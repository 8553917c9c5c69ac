//! Which module needs which of its siblings.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{ModulePath, SourceModule};

/// The needs of the children of one module: from, to, and the first line that shows it.
pub(super) type SiblingEdges = BTreeMap<(String, String), String>;

/// Aliases may stand for each other. Longer chains are not followed.
const LONGEST_CHAIN: u32 = 12;

/// Returns the edges between the children of each module.
///
/// A path needs every module that it goes through, and the one in which its item is defined. So a path to a re-export of
/// a parent needs the child that the parent re-exports.
pub(super) fn sibling_edges(
    modules: &BTreeMap<ModulePath, SourceModule>,
) -> BTreeMap<ModulePath, SiblingEdges> {
    let mut edges: BTreeMap<ModulePath, SiblingEdges> = BTreeMap::new();
    for (from, module) in modules {
        for path in &module.paths {
            let mut visited = BTreeSet::new();
            visit(modules, from, &path.segments, LONGEST_CHAIN, &mut visited);
            for to in &visited {
                let shared = from.iter().zip(to).take_while(|(from, to)| from == to).count();
                let (Some(one), Some(other)) = (from.get(shared), to.get(shared)) else { continue };
                let parent = from.iter().take(shared).cloned().collect();
                let line = || format!("{}:{}: {}", module.file, path.line, path.segments.join("::"));
                let edges = edges.entry(parent).or_default();
                edges.entry((one.clone(), other.clone())).or_insert_with(line);
            }
        }
    }
    edges
}

/// Adds the modules that a path goes through.
fn visit(
    modules: &BTreeMap<ModulePath, SourceModule>,
    from: &ModulePath,
    segments: &[String],
    chain: u32,
    visited: &mut BTreeSet<ModulePath>,
) {
    let mut at = from.clone();
    for (number, name) in segments.iter().enumerate() {
        match name.as_str() {
            "crate" => at.clear(),
            "super" => drop(at.pop()),
            "self" => {}
            name => {
                let Some(module) = modules.get(&at) else { return };
                let rest = segments.get(number + 1..).unwrap_or_default();
                let follow = |start: &[String], visited: &mut BTreeSet<ModulePath>| {
                    if chain > 0 {
                        visit(modules, &at, &[start, rest].concat(), chain - 1, visited);
                    }
                };
                if let Some(path) = module.aliases.get(name) {
                    follow(path, visited);
                }
                let child = [at.as_slice(), &[name.to_owned()]].concat();
                if modules.contains_key(&child) {
                    at = child;
                } else {
                    if !module.aliases.contains_key(name) && !module.items.contains(name) {
                        for glob in &module.globs {
                            if defines(modules, &at, glob, name) {
                                follow(&[glob.as_slice(), &[name.to_owned()]].concat(), visited);
                            }
                        }
                    }
                    return;
                }
            }
        }
        visited.insert(at.clone());
    }
}

/// Returns true if the module behind `use …::*` has a name.
fn defines(
    modules: &BTreeMap<ModulePath, SourceModule>,
    from: &ModulePath,
    glob: &[String],
    name: &str,
) -> bool {
    let mut at = from.clone();
    for segment in glob {
        match segment.as_str() {
            "crate" => at.clear(),
            "super" => drop(at.pop()),
            "self" => {}
            segment => at.push(segment.to_owned()),
        }
    }
    modules.get(&at).is_some_and(|module| {
        module.items.contains(name)
            || module.aliases.contains_key(name)
            || modules.contains_key(&[at.as_slice(), &[name.to_owned()]].concat())
    })
}

/// Returns the circles: groups of modules of which each needs each other, directly or through others.
pub(super) fn circles(edges: &SiblingEdges) -> Vec<Vec<&str>> {
    let mut needed: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in edges.keys() {
        needed.entry(from).or_default().insert(to);
    }
    let reached = |from: &str| {
        let mut reached = BTreeSet::new();
        let mut open: Vec<&str> = needed.get(from).into_iter().flatten().copied().collect();
        while let Some(next) = open.pop() {
            if reached.insert(next) {
                open.extend(needed.get(next).into_iter().flatten());
            }
        }
        reached
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> = needed.keys().map(|from| (*from, reached(from))).collect();
    let mut circles: Vec<Vec<&str>> = Vec::new();
    for (from, to) in &reached {
        if to.contains(from) && !circles.iter().any(|circle| circle.contains(from)) {
            let back = |other: &&str| reached.get(other).is_some_and(|reached| reached.contains(from));
            circles.push(to.iter().copied().filter(back).collect());
        }
    }
    circles
}

#[cfg(test)]
mod tests {
    use super::super::source::modules;
    use super::*;

    /// Returns the edges of a crate as lines: parent, from, to.
    fn edges(root: &str) -> Vec<String> {
        let modules = modules("lib.rs", &mut |file| (file == "lib.rs").then(|| root.to_owned()));
        let found = sibling_edges(&modules);
        let lines = found.iter().flat_map(|(parent, edges)| {
            edges.keys().map(move |(from, to)| format!("{}: {from} {to}", parent.join("::")))
        });
        lines.collect()
    }

    #[test]
    fn siblings_need_each_other_by_any_path() {
        let text = "mod a { use crate::b::X; } mod b { fn f() { super::c::g() } } mod c { mod d { type E = super::super::a::F; } }";
        assert_eq!(edges(text), [": a b", ": b c", ": c a"]);
    }

    #[test]
    fn edges_between_parents_and_children_are_ignored_and_levels_are_separate() {
        let text = "use a::B; mod a { use b::C; use super::D; pub struct B; mod b { use crate::D; use super::c::E; } mod c { use super::B; } } struct D;";
        assert_eq!(edges(text), ["a: b c"]);
    }

    #[test]
    fn a_reexport_of_a_parent_is_the_child_behind_it() {
        let text = "pub use a::b::B as Beta; use c::*; mod a { pub mod b { pub struct B; } }
            mod c { pub use d::D; mod d {} } mod e { use crate::{Beta, D}; }";
        assert_eq!(edges(text), [": e a", ": e c"]);
    }

    #[test]
    fn a_module_that_is_brought_in_is_followed() {
        let text = "mod a { use super::b; fn f() { b::C::new(); std::d::e(); } } mod b { pub use crate::d::C; } mod d { pub struct C; }";
        assert_eq!(edges(text), [": a b", ": a d", ": b d"]);
    }

    #[test]
    fn recursive_aliases_end() {
        assert_eq!(edges("use a; use b as c; use c as b; mod d { use super::{a, b}; }"), [""; 0]);
    }

    #[test]
    fn circles_are_found_whole_and_once() {
        let pairs =
            [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("f", "g"), ("g", "f"), ("f", "a")];
        let edges = pairs.map(|(from, to)| ((from.to_owned(), to.to_owned()), String::new())).into();
        assert_eq!(circles(&edges), [vec!["a", "b", "c"], vec!["f", "g"]]);
    }
}
