//! Runs a list of steps, reports progress, and prints a summary at the end.
//!
//! Every step runs, even after a failed one. The output of a step goes to a file. Of a failed step, the end of its
//! output is printed, with the command that repeats it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::invocation::Invocation;
use crate::machine::RequiredProgram;
use crate::suite;
use crate::tally::Tally;
use crate::{TaskFailure, workspace};

/// A command to run, with its needs.
pub(crate) struct TaskStep {
    pub(crate) name: &'static str,
    pub(crate) run: Invocation,
    pub(crate) needs: &'static [&'static RequiredProgram],
    pub(crate) counts: StepCounting,
}

/// Contribution of a step to the summary.
#[derive(Clone, Copy)]
pub(crate) enum StepCounting {
    /// The step itself: it passed or failed.
    Itself,
    /// The tests that cargo's test binaries report.
    CargoTests,
}

/// Runs all steps. Progress goes to stderr, and only the summary line to stdout.
pub(crate) fn run_all(steps: &[TaskStep]) -> Result<(), TaskFailure> {
    eprintln!(
        "{} steps; their outputs are in {}",
        steps.len(),
        workspace::shown(&workspace::scratch("logs")?)
    );
    let missing = set_up(steps.iter().flat_map(|step| step.needs.iter().copied()))?;
    let mut total = Tally::default();
    let mut failed = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let unmet: Vec<&str> =
            step.needs.iter().filter_map(|need| missing.get(need.name)).map(String::as_str).collect();
        let tally =
            if unmet.is_empty() { run(step, (number + 1, steps.len()))? } else { not_run(step, &unmet) };
        if tally.failed > 0 {
            failed.push(step.name);
        }
        total += tally;
    }
    if !failed.is_empty() {
        eprintln!("\nfailed: {}", failed.join(", "));
    }
    println!("{total}");
    if failed.is_empty() { Ok(()) } else { Err(TaskFailure::new()) }
}

/// Installs missing needs. Returns the needs that are still missing, by name, with advice.
pub(crate) fn set_up<'n>(
    needs: impl IntoIterator<Item = &'n RequiredProgram>,
) -> Result<BTreeMap<&'static str, String>, TaskFailure> {
    let mut missing = BTreeMap::new();
    let by_name: BTreeMap<_, _> = needs.into_iter().map(|need| (need.name, need)).collect();
    for need in by_name.values().filter(|need| !need.is_met()) {
        let label = format!("install {}", need.name);
        let problem = match need.installer() {
            Err(reason) => {
                eprintln!("  {:<8}{label} ({reason})", "FAILED");
                true
            }
            Ok(installer) => {
                let log = log_file(&label)?;
                let result = watched(&format!("{label} (once)"), &installer, &log);
                result.print(&label, &installer, &log);
                !need.is_met()
            }
        };
        if problem {
            missing.insert(need.name, need.advice());
        }
    }
    Ok(missing)
}

fn run(step: &TaskStep, (number, of): (usize, usize)) -> Result<Tally, TaskFailure> {
    let log = log_file(step.name)?;
    let result = watched(&format!("{} (step {number} of {of})", step.name), &step.run, &log);
    let tally = result.tally(step.counts);
    result.print(step.name, &step.run, &log);
    Ok(tally)
}

fn not_run(step: &TaskStep, unmet: &[&str]) -> Tally {
    eprintln!("  {:<8}{} (not run)", "FAILED", step.name);
    for advice in unmet {
        eprintln!("          {advice}");
    }
    Tally::FAIL
}

/// Result of a command.
struct StepResult {
    success: bool,
    took: Duration,
    output: String,
}

impl StepResult {
    /// Counts its tests. A failed command has at least one failure, whatever it counted before.
    fn tally(&self, counts: StepCounting) -> Tally {
        let mut tally = match (counts, self.success) {
            (StepCounting::CargoTests, _) => Tally::of_cargo_test(&self.output),
            (StepCounting::Itself, true) => Tally::PASS,
            (StepCounting::Itself, false) => Tally::FAIL,
        };
        if !self.success && tally.failed == 0 {
            tally += Tally::FAIL;
        }
        tally
    }

    fn print(&self, name: &str, run: &Invocation, log: &Path) {
        let word = if self.success { "ok" } else { "FAILED" };
        eprintln!("  {word:<8}{name:<34}{:>7.1} s", self.took.as_secs_f64());
        if self.success {
            return;
        }
        for line in relevant_lines(&self.output) {
            eprintln!("          | {line}");
        }
        eprintln!("          repeat with:  {run}");
        eprintln!("          whole output: {}", workspace::shown(log));
    }
}

/// Runs a command with its output to a file, and reports its progress.
fn watched(label: &str, run: &Invocation, log: &Path) -> StepResult {
    let began = Instant::now();
    let (finished, end) = mpsc::channel::<()>();
    let success = thread::scope(|scope| {
        scope.spawn(move || report_progress(label, log, began, &end));
        let success = into_file(run, log);
        drop(finished);
        success
    });
    let mut output = read_log(log);
    if let Err(problem) = &success {
        output.push_str(problem);
    }
    StepResult { success: success == Ok(true), took: began.elapsed(), output }
}

fn into_file(run: &Invocation, log: &Path) -> Result<bool, TaskFailure> {
    let file = File::create(log).and_then(|file| Ok((file.try_clone()?, file)));
    let (out, err) = file.map_err(|error| format!("cannot write {}: {error}", workspace::shown(log)))?;
    let mut command = run.command();
    // Disables colours in the file. rustfmt reads the name of the terminal instead of checking for one.
    command.env("CARGO_TERM_COLOR", "never").env("NO_COLOR", "1").env("TERM", "dumb").stdout(out).stderr(err);
    // Cargo's progress bar shows the state of a build; `progress_suffix` reads it.
    command.env("CARGO_TERM_PROGRESS_WHEN", "always").env("CARGO_TERM_PROGRESS_WIDTH", "80");
    let status = command.status();
    Ok(status.map_err(|error| run.did_not_start(&error))?.success())
}

/// Returns the output of a command as a terminal would show it: of overwritten lines only the last version.
fn read_log(log: &Path) -> String {
    let bytes = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    text.split_inclusive('\n').map(|line| line.rsplit_once('\r').map_or(line, |(_, last)| last)).collect()
}

/// Reports that a command is running, and its progress. On a terminal, one line is updated each second. Otherwise a
/// line is printed at the start and then every half minute.
fn report_progress(label: &str, log: &Path, began: Instant, end: &mpsc::Receiver<()>) {
    let mut terminal = io::stderr();
    let is_terminal = terminal.is_terminal();
    let pause = Duration::from_secs(if is_terminal { 1 } else { 30 });
    let mut far = String::new();
    loop {
        // A terminal that cannot be written to must not stop the step.
        let _ = if is_terminal {
            write!(terminal, "\r  {:<8}{label}{far}, {} s{:8}", "…", began.elapsed().as_secs(), "")
        } else if far.is_empty() && began.elapsed() < pause {
            writeln!(terminal, "  {:<8}{label}", "…")
        } else {
            writeln!(terminal, "  {:<8}{label}{far}, {} s", "…", began.elapsed().as_secs())
        };
        match end.recv_timeout(pause) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
        }
        far = progress_suffix(&String::from_utf8_lossy(&std::fs::read(log).unwrap_or_default()));
    }
    if is_terminal {
        let _ = write!(terminal, "\r{:100}\r", "");
    }
}

/// Returns the progress of a command from its output so far: tests that have ended, or crates that were built.
fn progress_suffix(output: &str) -> String {
    if let Some((_, rest)) = output.split_once(suite::TOTAL) {
        let total = rest.lines().next().unwrap_or_default();
        let finished =
            rest.lines().filter(|line| line.starts_with("test ") && line.contains(" ... ")).count();
        return format!(": {finished} of {total} tests");
    }
    let bar = output.rsplit("Building [").next().filter(|_| output.contains("Building ["));
    let count =
        bar.and_then(|bar| bar.split_once("] ")).and_then(|(_, rest)| rest.split([':', ' ', '\r']).next());
    match count.and_then(|count| count.split_once('/')) {
        Some((built, all)) => format!(": built {built} of {all}"),
        None => String::new(),
    }
}

/// Returns the useful lines of an output: the names and messages of failed tests, and the end.
fn relevant_lines(output: &str) -> Vec<String> {
    const TAIL: usize = 40;
    let lines: Vec<&str> = output.lines().collect();
    let (before, tail) = lines.split_at(lines.len().saturating_sub(TAIL));
    let failed = before.iter().filter(|line| line.starts_with("test ") && line.ends_with("FAILED"));
    failed.copied().chain(failed_test_output(before)).chain(tail.iter().copied()).map(cut).collect()
}

/// Returns the beginning of each block for a failed test.
fn failed_test_output<'a>(lines: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    const BLOCK: usize = 30;
    let heads = lines.iter().enumerate().filter(|(_, line)| is_head_of_failed_test(line));
    heads.flat_map(|(at, _)| {
        let ends = |line: &&str| *line == "failures:" || is_head_of_failed_test(line);
        let block = lines.get(at + 1..).unwrap_or_default().iter().take_while(move |line| !ends(line));
        lines.get(at).into_iter().chain(block.take(BLOCK)).copied()
    })
}

fn is_head_of_failed_test(line: &str) -> bool {
    line.starts_with("---- ") && line.ends_with(" ----")
}

/// Shortens a line. The log has the whole line.
fn cut(line: &str) -> String {
    const WIDTH: usize = 400;
    match line.char_indices().nth(WIDTH) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or(line)),
        None => line.to_owned(),
    }
}

fn log_file(name: &str) -> Result<PathBuf, TaskFailure> {
    let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    Ok(workspace::scratch("logs")?.join(format!("{plain}.log")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step_result(success: bool, output: &str) -> StepResult {
        StepResult { success, took: Duration::ZERO, output: output.to_owned() }
    }

    #[test]
    fn a_test_run_that_does_not_compile_counts_as_one_failure() {
        assert_eq!(
            step_result(false, "error: could not compile").tally(StepCounting::CargoTests),
            Tally::FAIL
        );
    }

    #[test]
    fn a_test_binary_that_dies_fails_the_run_although_the_others_passed() {
        let output = "test result: ok. 5 passed; 0 failed; 0 ignored;\nerror: test failed (signal: 6)";
        let tally = step_result(false, output).tally(StepCounting::CargoTests);
        assert_eq!(tally, Tally { passed: 5, failed: 1, skipped: 0 });
    }

    #[test]
    fn failures_that_were_counted_are_not_counted_twice() {
        let output = "test result: FAILED. 5 passed; 2 failed; 0 ignored;";
        let tally = step_result(false, output).tally(StepCounting::CargoTests);
        assert_eq!(tally, Tally { passed: 5, failed: 2, skipped: 0 });
    }

    #[test]
    fn the_output_of_a_failed_step_is_its_end_and_the_names_of_failed_tests() {
        let mut output = String::from("test early::one ... FAILED\ntest early::two ... ok\n");
        for line in 0..100 {
            output.push_str(&format!("line {line}\n"));
        }
        let lines = relevant_lines(&output);
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        assert_eq!(lines.first(), Some(&"test early::one ... FAILED"));
        assert_eq!(lines.get(1), Some(&"line 60"));
        assert_eq!(lines.last(), Some(&"line 99"));
    }

    #[test]
    fn the_output_of_a_failed_test_is_reported_from_any_position() {
        let mut output = String::from(
            "test one ... FAILED\n\nfailures:\n\n---- one stdout ----\nleft: 1\nright: 2\n\n\
             ---- two stdout ----\nno answer\n\nfailures:\n    one\n    two\n",
        );
        output.push_str(&"later\n".repeat(100));
        let lines = relevant_lines(&output);
        let reported: Vec<&str> =
            lines.iter().map(String::as_str).take_while(|line| *line != "later").collect();
        let heads =
            ["---- one stdout ----", "left: 1", "right: 2", "", "---- two stdout ----", "no answer", ""];
        assert_eq!(reported, [&["test one ... FAILED"][..], &heads[..]].concat());
    }

    #[test]
    fn a_line_too_long_to_read_is_cut() {
        let lines = relevant_lines(&"é".repeat(1_000));
        assert_eq!(lines, [format!("{}…", "é".repeat(400))]);
    }

    #[test]
    fn progress_is_read_from_the_output_of_tests_and_builds() {
        let tests =
            "tests to run: 12\n\nsteadfast-api::api\nrunning 2 tests\ntest a ... ok\ntest b ... FAILED\n";
        assert_eq!(progress_suffix(tests), ": 2 of 12 tests");
        let build =
            "   Compiling a\n    Building [==>    ] 3/412: a\r    Building [===>   ] 41/412: b, c(build)\r";
        assert_eq!(progress_suffix(build), ": built 41 of 412");
        assert_eq!(progress_suffix("   Compiling a\n"), "");
    }

    #[test]
    fn the_last_version_of_an_overwritten_line_is_stored() {
        let log = log_file("test of a line that is written over").unwrap();
        std::fs::write(&log, "one\nBuilding 1/2\rBuilding 2/2\rdone\nend\n").unwrap();
        assert_eq!(read_log(&log), "one\ndone\nend\n");
    }

    #[test]
    fn a_step_that_cannot_start_fails_with_a_reason() {
        let log = log_file("test of a step that cannot start").unwrap();
        let result = watched("nothing", &Invocation::of("no-such-program-here", &[]), &log);
        assert!(!result.success);
        assert!(result.output.contains("did not start"), "{}", result.output);
    }

    #[test]
    fn the_output_of_a_step_is_written_to_its_log() {
        let log = log_file("test of a step that prints").unwrap();
        let result = watched("echo", &Invocation::of("echo", &["heard"]), &log);
        assert!(result.success);
        assert_eq!(result.output, "heard\n");
        assert_eq!(std::fs::read_to_string(log).unwrap(), "heard\n");
    }

    #[test]
    fn a_step_with_a_missing_need_fails() {
        let step = TaskStep {
            name: "x",
            run: Invocation::of("true", &[]),
            needs: &[],
            counts: StepCounting::Itself,
        };
        assert_eq!(not_run(&step, &["it is missing"]), Tally::FAIL);
    }
}
