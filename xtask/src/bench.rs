//! Measuring. Each suite is a command of the program in `benches`, which prints its report as Markdown;
//! the report replaces that suite's part of `BENCHMARKS.md` and leaves the other parts alone.

use clap::{Args, ValueEnum};

use crate::invocation::Invocation;
use crate::{Failure, workspace};

/// Options of `cargo xtask bench`.
#[derive(Args)]
pub(crate) struct Options {
    /// What to measure
    suite: Suite,
}

#[derive(Clone, Copy, ValueEnum)]
enum Suite {
    /// The decisions alone, beside the libraries that do a part of them
    Core,
}

/// `cargo xtask bench`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let name = match options.suite {
        Suite::Core => "core",
    };
    let run =
        Invocation::cargo(&["run", "--quiet", "--release", "--package", "steadfast-benches", "--", name]);
    let report = run.output()?;
    let file = workspace::root().join("BENCHMARKS.md");
    let before = if file.exists() { workspace::read(&file)? } else { HEAD.to_owned() };
    workspace::write(&file, &with_part(&before, name, &report))?;
    print!("{report}");
    eprintln!("written to {}", workspace::shown(&file));
    Ok(())
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
