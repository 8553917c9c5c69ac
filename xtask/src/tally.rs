//! Counts passed and failed tests over all steps.

use std::fmt;
use std::ops::AddAssign;

/// Counts of test results. Printed, it is the last line of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// Tests that exist and were not run. They do not fail a run, but they are reported.
    pub(crate) skipped: u64,
}

impl Tally {
    /// One success.
    pub(crate) const PASS: Self = Self { passed: 1, failed: 0, skipped: 0 };
    /// One failure.
    pub(crate) const FAIL: Self = Self { passed: 0, failed: 1, skipped: 0 };

    /// Returns the sum of the `test result:` lines that cargo's test binaries print, one each.
    pub(crate) fn of_cargo_test(output: &str) -> Self {
        let mut sum = Self::default();
        for line in output.lines() {
            let Some(counts) = line.trim_start().strip_prefix("test result: ") else { continue };
            for part in counts.split(['.', ';']) {
                let mut words = part.split_whitespace();
                let (Some(count), Some(kind)) = (words.next(), words.next()) else { continue };
                let Ok(count) = count.parse::<u64>() else { continue };
                match kind {
                    "passed" => sum.passed += count,
                    "failed" => sum.failed += count,
                    "ignored" => sum.skipped += count,
                    _ => {}
                }
            }
        }
        sum
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_results_of_all_binaries_are_added() {
        let output = "\
running 3 tests
test a ... ok
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s

test says_test_result ... ok
test result: FAILED. 40 passed; 2 failed; 1 ignored; 0 measured; 7 filtered out; finished in 12.50s
";
        assert_eq!(Tally::of_cargo_test(output), Tally { passed: 43, failed: 2, skipped: 1 });
    }

    #[test]
    fn output_without_results_counts_nothing() {
        assert_eq!(Tally::of_cargo_test("error: could not compile\n"), Tally::default());
        assert_eq!(Tally::of_cargo_test("test result: \n"), Tally::default());
    }

    #[test]
    fn the_closing_line_names_skipped_tests_only_if_there_are_some() {
        assert_eq!(Tally { passed: 7, failed: 0, skipped: 0 }.to_string(), "7 passed, 0 failed");
        assert_eq!(Tally { passed: 7, failed: 1, skipped: 2 }.to_string(), "7 passed, 1 failed, 2 skipped");
    }
}
