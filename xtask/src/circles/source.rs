//! The modules of a crate, with the paths that each of them contains.

use std::collections::{BTreeMap, BTreeSet};

use crate::rust_tokens::{SourceToken, tokens};

/// Names of modules from the root of a crate.
pub(super) type ModulePath = Vec<String>;

/// A module, without its tests.
#[derive(Debug, Default)]
pub(super) struct SourceModule {
    pub(super) file: String,
    /// All paths that are written in it. The groups of `use` are resolved.
    pub(super) paths: Vec<PathUse>,
    /// The names that `use` brings in, with the paths they stand for.
    pub(super) aliases: BTreeMap<String, Vec<String>>,
    /// The modules whose names `use …::*` brings in.
    pub(super) globs: Vec<Vec<String>>,
    /// The items that it defines.
    pub(super) items: BTreeSet<String>,
}

/// A path in a source.
#[derive(Debug)]
pub(super) struct PathUse {
    pub(super) segments: Vec<String>,
    pub(super) line: usize,
}

/// Keywords of items that end at the brace that closes their body, or at a semicolon.
const ITEMS: [&str; 10] =
    ["mod", "fn", "const", "async", "unsafe", "struct", "enum", "impl", "trait", "type"];

/// Reads the modules of a crate, from the file of its root. `read` returns the text of a file, if there is one.
pub(super) fn modules(
    root: &str,
    read: &mut dyn FnMut(&str) -> Option<String>,
) -> BTreeMap<ModulePath, SourceModule> {
    let mut modules = BTreeMap::new();
    let folder = root.rsplit_once('/').map_or("", |(folder, _)| folder);
    if let Some(text) = read(root) {
        read_module(&mut modules, read, Vec::new(), root, folder, &text);
    }
    modules
}

fn read_module(
    modules: &mut BTreeMap<ModulePath, SourceModule>,
    read: &mut dyn FnMut(&str) -> Option<String>,
    path: ModulePath,
    file: &str,
    folder: &str,
    text: &str,
) {
    let tokens = tokens(text);
    let mut parser = SourceParser { tokens: &tokens, at: 0, file, modules, outside: Vec::new() };
    parser.module(&path);
    for child in parser.outside {
        let below = child.get(path.len()..).unwrap_or_default().join("/");
        let folder = format!("{folder}/{below}");
        for file in [format!("{folder}.rs"), format!("{folder}/mod.rs")] {
            if let Some(text) = read(&file) {
                read_module(modules, read, child.clone(), &file, &folder, &text);
            }
        }
    }
}

/// Reads one file.
struct SourceParser<'t, 'm> {
    tokens: &'t [SourceToken<'t>],
    at: usize,
    file: &'t str,
    modules: &'m mut BTreeMap<ModulePath, SourceModule>,
    /// The modules in files of their own.
    outside: Vec<ModulePath>,
}

impl<'t> SourceParser<'t, '_> {
    /// Reads a module until the brace that closes it, or the end of the file.
    fn module(&mut self, path: &ModulePath) {
        let mut module = SourceModule { file: self.file.to_owned(), ..SourceModule::default() };
        let mut depth = 0_u32;
        while let Some(token) = self.next() {
            match token.text {
                "#" if matches!((self.peek(0), self.peek(1)), ("[", _) | ("!", "[")) => self.skip_if_test(),
                "{" => depth += 1,
                "}" if depth == 0 => break,
                "}" => depth -= 1,
                "use" if self.peek(0) != "<" => self.use_tree(&mut module, Vec::new()),
                "mod" if depth == 0 && matches!(self.peek(1), "{" | ";") => {
                    let mut child = path.clone();
                    child.extend(self.next().map(|name| name.text.to_owned()));
                    let is_inside = self.next().is_some_and(|token| token.text == "{");
                    match (is_inside, child.last().is_some_and(|name| name == "tests")) {
                        (true, false) => self.module(&child),
                        (true, true) => self.skip_group(),
                        (false, false) => self.outside.push(child),
                        (false, true) => {}
                    }
                }
                "macro_rules" => {
                    module.items.extend(self.tokens.get(self.at + 1).map(|name| name.text.to_owned()))
                }
                "struct" | "enum" | "trait" | "type" | "union" | "fn" | "const" | "static" if depth == 0 => {
                    module.items.insert(self.peek(0).to_owned());
                }
                _ if token.is_word() && self.peek(0) == "::" => self.path(&mut module, token),
                _ => {}
            }
        }
        self.modules.insert(path.clone(), module);
    }

    /// Reads a path outside `use`.
    fn path(&mut self, module: &mut SourceModule, first: SourceToken<'t>) {
        let mut segments = vec![first.text.to_owned()];
        while self.peek(0) == "::" && self.tokens.get(self.at + 1).is_some_and(SourceToken::is_word) {
            self.at += 1;
            segments.extend(self.next().map(|token| token.text.to_owned()));
        }
        if segments.len() > 1 {
            module.paths.push(PathUse { segments, line: first.line });
        }
    }

    /// Reads what follows `use`, a comma or a brace, until the comma, brace or semicolon after it.
    fn use_tree(&mut self, module: &mut SourceModule, before: Vec<String>) {
        let mut segments = before;
        let mut name = None;
        while let Some(token) = self.next() {
            match token.text {
                "::" => {}
                "{" => {
                    while !matches!(self.peek(0), "}" | "") {
                        self.use_tree(module, segments.clone());
                        self.at += usize::from(self.peek(0) == ",");
                    }
                    self.at += 1;
                    return;
                }
                "*" => {
                    module.paths.push(PathUse { segments: segments.clone(), line: token.line });
                    module.globs.push(segments);
                    return;
                }
                "as" => name = self.next().map(|name| name.text.to_owned()),
                "self" if !segments.is_empty() => {}
                word => segments.push(word.to_owned()),
            }
            if matches!(self.peek(0), "," | "}" | ";" | "") {
                if let Some(name) = name.or_else(|| segments.last().cloned()) {
                    module.aliases.insert(name, segments.clone());
                }
                module.paths.push(PathUse { segments, line: token.line });
                return;
            }
        }
    }

    /// Reads an attribute after its `#`, and skips what follows if it is only compiled for tests.
    fn skip_if_test(&mut self) {
        if self.attribute() {
            self.skip_item();
        }
    }

    /// Reads an attribute after its `#`. Returns true if what follows is only compiled for tests.
    fn attribute(&mut self) -> bool {
        let begin = self.at;
        self.at += usize::from(self.peek(0) == "!");
        self.at += 1;
        self.skip_group();
        let words = self.tokens.get(begin..self.at).unwrap_or_default().iter().map(|token| token.text);
        let words: Vec<_> = words.filter(|word| !["[", "(", "all", "!"].contains(word)).take(2).collect();
        words == ["cfg", "test"]
    }

    /// Skips an item, a field, or a variant, with its other attributes.
    fn skip_item(&mut self) {
        while self.peek(0) == "#" {
            self.at += 1;
            self.attribute();
        }
        while self.peek(0) == "pub" {
            self.at += 1;
            if self.peek(0) == "(" {
                self.at += 1;
                self.skip_group();
            }
        }
        let first = self.peek(0);
        let is_constant = first == "const" && self.peek(1) != "fn";
        let ends_at_brace = first == "{" || (ITEMS.contains(&first) && !is_constant);
        let ends_at_comma = !ends_at_brace && !is_constant && !["use", "static", "let"].contains(&first);
        loop {
            match self.peek(0) {
                "" | "}" | ")" | "]" => return,
                "{" => {
                    self.at += 1;
                    self.skip_group();
                    if ends_at_brace {
                        return;
                    }
                }
                "(" | "[" => {
                    self.at += 1;
                    self.skip_group();
                }
                end => {
                    self.at += 1;
                    if end == ";" || (end == "," && ends_at_comma) {
                        return;
                    }
                }
            }
        }
    }

    /// Skips to the bracket that closes the one that was read last.
    fn skip_group(&mut self) {
        let mut depth = 1_u32;
        while depth > 0 {
            match self.next().map(|token| token.text) {
                Some("(" | "[" | "{") => depth += 1,
                Some(")" | "]" | "}") => depth -= 1,
                Some(_) => {}
                None => return,
            }
        }
    }

    fn next(&mut self) -> Option<SourceToken<'t>> {
        let token = self.tokens.get(self.at).copied();
        self.at += 1;
        token
    }

    /// Returns the text of a later token. At the end of the file it is empty.
    fn peek(&self, ahead: usize) -> &'t str {
        self.tokens.get(self.at + ahead).map_or("", |token| token.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> BTreeMap<ModulePath, SourceModule> {
        modules("src/lib.rs", &mut |file| (file == "src/lib.rs").then(|| text.to_owned()))
    }

    fn paths(text: &str) -> Vec<String> {
        let module = read(text).remove(&Vec::new()).unwrap();
        module.paths.iter().map(|path| format!("{}:{}", path.line, path.segments.join("::"))).collect()
    }

    #[test]
    fn groups_of_use_are_resolved() {
        let text = "use crate::{a::{self, B as C},\n super::d::*, r#e};\npub(crate) use f;\nfn g() -> impl H + use<'_>;";
        assert_eq!(paths(text), ["1:crate::a", "1:crate::a::B", "2:crate::super::d", "2:crate::e", "3:f"]);
        let module = read(text).remove(&Vec::new()).unwrap();
        assert_eq!(module.aliases.keys().collect::<Vec<_>>(), ["C", "a", "e", "f"]);
        assert_eq!(module.globs, [["crate", "super", "d"]]);
    }

    #[test]
    fn paths_in_code_end_at_generics() {
        let text = "fn a(b: super::c::D<crate::E>) -> Self { f::<G>::h(i::j!()); k.l::<m::N>() }";
        assert_eq!(paths(text), ["1:super::c::D", "1:crate::E", "1:i::j", "1:m::N"]);
    }

    #[test]
    fn tests_are_left_out() {
        let text = "#[cfg(test)]\n#[rustfmt::skip]\npub(crate) use a::{b, c};
            #[cfg(all(test, unix))] mod d { use e::f; }
            mod tests { use g::h; }
            struct I { #[cfg(test)] j: k::L<M, N>, o: p::Q }
            #[cfg(test)] const R: s::T = s::T { u: 1 };
            #[cfg(test)] const fn v() { w::x(); }
            #[cfg(not(test))] use y::z;";
        assert_eq!(paths(text), ["6:p::Q", "9:y::z"]);
    }

    #[test]
    fn modules_are_found_in_files_folders_and_braces() {
        let files = BTreeMap::from([
            ("src/main.rs", "mod a; pub mod b { pub struct C; mod d; } #[cfg(test)] mod e; mod tests;"),
            ("src/a/mod.rs", "mod f;"),
            ("src/a/f.rs", "mod g;"),
            ("src/a/f/g.rs", "fn h() {}"),
            ("src/b/d.rs", ""),
            ("src/e.rs", ""),
            ("src/tests.rs", ""),
        ]);
        let found = modules("src/main.rs", &mut |file| files.get(file).map(|text| (*text).to_owned()));
        let places: Vec<_> = found.iter().map(|(path, module)| (path.join("::"), &*module.file)).collect();
        assert_eq!(
            places.iter().map(|(path, file)| (path.as_str(), *file)).collect::<Vec<_>>(),
            [
                ("", "src/main.rs"),
                ("a", "src/a/mod.rs"),
                ("a::f", "src/a/f.rs"),
                ("a::f::g", "src/a/f/g.rs"),
                ("b", "src/main.rs"),
                ("b::d", "src/b/d.rs"),
            ]
        );
        let items = &found.get(&vec!["b".to_owned()]).unwrap().items;
        assert!(items.contains("C"), "{items:?}");
    }
}
