//! Finds the tests of this repository by reading its sources.
//!
//! Reading needs no build, unlike asking the test runners, and it works the same for every language. It finds only
//! plain tests. A test that is ignored or skipped does not count, because it shows nothing.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{TaskFailure, workspace};

/// A test with its location.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TestFunction {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) line: usize,
}

/// Returns all tests below a folder, in the order of their files.
pub(crate) fn tests_below(root: &Path) -> Result<Vec<TestFunction>, TaskFailure> {
    let mut files = Vec::new();
    collect(root, root, &mut files)?;
    files.sort();
    let mut tests = Vec::new();
    for (path, find) in files {
        let text = workspace::read(&path)?;
        let file = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        tests.extend(find(&text).into_iter().map(|(line, name)| TestFunction {
            name,
            file: file.clone(),
            line,
        }));
    }
    Ok(tests)
}

/// Returns the tests of a text with their lines.
type Finder = fn(&str) -> Vec<(usize, String)>;

fn finder_for(path: &Path) -> Option<Finder> {
    match path.extension()?.to_str()? {
        "rs" => Some(rust_tests),
        "py" => Some(python_tests),
        "js" | "mjs" | "ts" => Some(javascript_tests),
        _ => None,
    }
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<(PathBuf, Finder)>) -> Result<(), TaskFailure> {
    let cannot = |error: std::io::Error| format!("cannot list {}: {error}", workspace::shown(folder));
    for entry in fs::read_dir(folder).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(cannot)?);
        if kind.is_dir() {
            if !is_foreign(root, &path) {
                collect(root, &path, files)?;
            }
        } else if kind.is_file()
            && let Some(finder) = finder_for(&path)
        {
            files.push((path, finder));
        }
    }
    Ok(())
}

/// Returns true for dependencies, build output, and this program, whose texts contain examples of tests.
fn is_foreign(root: &Path, folder: &Path) -> bool {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.starts_with('.')
        || ["node_modules", "target", "dist"].contains(&name)
        || folder == root.join("xtask")
}

/// Finds functions with an attribute whose path ends in `test`: `#[test]`, `#[tokio::test]`, also inside `proptest!`.
/// Attributes and comments may be between it and the function.
fn rust_tests(text: &str) -> Vec<(usize, String)> {
    let mut tests = Vec::new();
    let mut above = Attributes::default();
    let mut unfinished = String::new();
    let mut in_comment = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if in_comment || line.starts_with("/*") {
            in_comment = !line.contains("*/");
            continue;
        }
        if line.is_empty() || line.starts_with("//") {
            continue;
        }
        unfinished.push_str(line);
        unfinished.push(' ');
        let Some(code) = above.take_from(&unfinished) else { continue };
        if !code.is_empty() {
            if let Some(name) = function_name(code)
                && above.is_test
                && !above.is_ignored
            {
                tests.push((number + 1, name.to_owned()));
            }
            above = Attributes::default();
        }
        unfinished.clear();
    }
    tests
}

/// Facts from the attributes of a function.
#[derive(Default)]
struct Attributes {
    is_test: bool,
    is_ignored: bool,
}

impl Attributes {
    /// Reads the attributes at the beginning of a text and returns the rest. Returns `None` if the last one has not
    /// ended yet.
    fn take_from<'t>(&mut self, text: &'t str) -> Option<&'t str> {
        let mut rest = text.trim();
        while let Some(body) = rest.strip_prefix("#[") {
            let end = closing_bracket(body)?;
            let (attribute, after) = body.split_at(end);
            let path = attribute.split(['(', '=', ' ']).next().unwrap_or_default();
            self.is_test |= path.rsplit("::").next() == Some("test");
            self.is_ignored |= path == "ignore";
            rest = after.trim_start_matches(']').trim_start();
        }
        Some(rest)
    }
}

/// Returns the position of the bracket that closes one that was opened before this text.
fn closing_bracket(text: &str) -> Option<usize> {
    let (mut depth, mut in_string, mut escaped) = (0, false, false);
    for (at, character) in text.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            _ if in_string => {}
            '[' => depth += 1,
            ']' if depth == 0 => return Some(at),
            ']' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn function_name(code: &str) -> Option<&str> {
    let mut words = code.split_whitespace();
    let qualifiers = ["pub", "pub(crate)", "pub(super)", "async", "const", "unsafe"];
    words.find(|word| !qualifiers.contains(word)).filter(|&word| word == "fn")?;
    let name = words.next()?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
    name.get(..end)
}

/// Finds pytest functions and methods. Their names begin with `test_`, and the id comes after it.
fn python_tests(text: &str) -> Vec<(usize, String)> {
    let mut tests = Vec::new();
    let mut is_skipped = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('@') {
            is_skipped |= line.contains("skip") || line.contains("xfail");
            continue;
        }
        let definition = line.strip_prefix("async ").unwrap_or(line).strip_prefix("def test_");
        if let Some(name) = definition.and_then(|rest| rest.split('(').next())
            && !is_skipped
        {
            tests.push((number + 1, name.to_owned()));
        }
        is_skipped = false;
    }
    tests
}

/// Finds `test("…")` and `it("…")`. Their names are sentences with spaces, which are read as underscores.
fn javascript_tests(text: &str) -> Vec<(usize, String)> {
    let name_of = |line: &str| {
        let argument = line.strip_prefix("test(").or_else(|| line.strip_prefix("it("))?;
        let quote = argument.chars().next().filter(|c| ['"', '\'', '`'].contains(c))?;
        let name = argument.get(1..)?.split(quote).next()?;
        Some(name.to_lowercase().replace(|c: char| !c.is_alphanumeric(), "_"))
    };
    text.lines().enumerate().filter_map(|(number, line)| Some((number + 1, name_of(line.trim())?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(tests: Vec<(usize, String)>) -> Vec<String> {
        tests.into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn a_rust_test_is_a_function_with_a_test_attribute() {
        let text = r##"
            #[test]
            fn plain() {}

            #[tokio::test(start_paused = true)]
            async fn paused() {}

            /// With words about it.
            #[test]
            // And more words.
            #[should_panic(expected = "a ] in a \" string")]
            pub(crate) fn documented() {}

            #[test] fn on_one_line() {}

            #[test]
            #[expect(
                clippy::unwrap_used,
                reason = "so"
            )]
            fn over_several_lines() {}

            proptest! {
                #![proptest_config(ProptestConfig::with_cases(64))]
                #[test]
                fn property(x in 0..10u32) {}
            }
        "##;
        assert_eq!(
            names(rust_tests(text)),
            ["plain", "paused", "documented", "on_one_line", "over_several_lines", "property"]
        );
    }

    #[test]
    fn functions_that_only_look_like_rust_tests_are_ignored() {
        for text in [
            "fn helper() {}",
            "#[inline]\nfn helper() {}",
            "#[test]\n#[ignore]\nfn ignored() {}",
            "#[ignore = \"slow\"]\n#[test]\nfn ignored() {}",
            "// #[test]\nfn commented() {}",
            "#[test]\n// fn commented() {}",
            "/*\n#[test]\nfn commented() {}\n*/",
            "#[cfg(test)]\nmod tests {\nfn helper() {}\n}",
            "#[test]\nfn",
            "#[test",
            "let text = \"#[test] fn quoted() {}\";",
        ] {
            assert_eq!(names(rust_tests(text)), [""; 0], "{text}");
        }
    }

    #[test]
    fn an_attribute_belongs_to_the_next_function_only() {
        assert_eq!(names(rust_tests("#[test]\nfn one() {}\nfn two() {}")), ["one"]);
        assert_eq!(names(rust_tests("#[test]\n#[ignore]\nfn one() {}\n#[test]\nfn two() {}")), ["two"]);
    }

    #[test]
    fn a_test_is_found_at_its_line() {
        assert_eq!(rust_tests("\n#[test]\nfn one() {}"), [(3, "one".to_owned())]);
    }

    #[test]
    fn a_python_test_is_a_function_that_pytest_would_run() {
        let text = "
def helper(): pass
def test_tr_2_one_run(store):
class TestMore:
    async def test_tr_3_replay(self):
    @pytest.mark.skip(reason='later')
    def test_tr_4_conflict(self):
    @pytest.mark.parametrize('x', [1])
    def test_tr_5_retry(self):
# def test_tr_6_terminal():
";
        assert_eq!(names(python_tests(text)), ["tr_2_one_run", "tr_3_replay", "tr_5_retry"]);
    }

    #[test]
    fn a_javascript_test_is_named_by_its_first_argument() {
        let text = r#"
test("tg_10_the_log_names_the_model", async () => {
  it('TG-11 the plugin installs', () => {});
it(`EH-2.1 waits double`, () => {});
test.skip("tg_8_not_run", () => {});
it.todo("tg_8_not_written");
test(name, () => {});
// test("tg_8_commented", () => {});
"#;
        assert_eq!(
            names(javascript_tests(text)),
            ["tg_10_the_log_names_the_model", "tg_11_the_plugin_installs", "eh_2_1_waits_double"]
        );
    }

    #[test]
    fn folders_that_are_built_or_foreign_are_not_searched() {
        let root = workspace::scratch("scan").unwrap();
        for file in [
            "a/tests.rs",
            "target/tests.rs",
            "a/node_modules/x/test.rs",
            ".venv/test.rs",
            "xtask/src/test.rs",
        ] {
            workspace::write(&root.join(file), "#[test]\nfn found() {}\n").unwrap();
        }
        let tests = tests_below(&root).unwrap();
        assert_eq!(
            tests,
            [TestFunction { name: "found".to_owned(), file: "a/tests.rs".to_owned(), line: 2 }]
        );
    }
}
