//! One command line: to be run, or to be shown so that someone can run it again.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

use crate::{Failure, workspace};

/// A program with its arguments and what it wants in its environment.
#[derive(Clone, Debug)]
pub(crate) struct Invocation {
    program: Program,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

/// What is run. Cargo and this program are named apart from others because the command that runs them is
/// not the command that a person types.
#[derive(Clone, Debug)]
enum Program {
    Cargo,
    /// With the file that we were started from. It is asked for when the step is written down, before
    /// anything runs: a build may replace the file, and then the system no longer knows its name.
    Xtask(PathBuf),
    Other(String),
}

impl Invocation {
    /// The cargo that started us.
    pub(crate) fn cargo(arguments: &[&str]) -> Self {
        Self::new(Program::Cargo, arguments)
    }

    /// Another command of this program.
    pub(crate) fn xtask(arguments: &[&str]) -> Self {
        let program = env::current_exe().unwrap_or_else(|_| "xtask".into());
        Self::new(Program::Xtask(program), arguments)
    }

    /// Any other program.
    pub(crate) fn of(program: &str, arguments: &[&str]) -> Self {
        Self::new(Program::Other(program.to_owned()), arguments)
    }

    fn new(program: Program, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Self { program, arguments, environment: Vec::new() }
    }

    /// With more arguments.
    pub(crate) fn args(mut self, more: impl IntoIterator<Item = String>) -> Self {
        self.arguments.extend(more);
        self
    }

    /// With a variable in its environment.
    pub(crate) fn env(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }

    /// Ready to run, at the top of the repository, with our tools in reach.
    pub(crate) fn command(&self) -> Command {
        let program: OsString = match &self.program {
            Program::Cargo => env::var_os("CARGO").unwrap_or_else(|| "cargo".into()),
            Program::Xtask(path) => path.into(),
            Program::Other(name) => name.into(),
        };
        let mut command = Command::new(program);
        command
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env("PATH", workspace::search_path())
            .current_dir(workspace::root());
        command
    }

    /// Runs it in the open: what it prints is printed.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let status = self.command().status().map_err(|error| self.did_not_start(&error))?;
        self.judge(status)
    }

    /// Runs it and gives what it printed to stdout; what it says on stderr is shown.
    pub(crate) fn output(&self) -> Result<String, Failure> {
        let output = self.command().stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| self.did_not_start(&error))?;
        self.judge(output.status)?;
        String::from_utf8(output.stdout).map_err(|_| format!("`{self}` printed something that is not text"))
    }

    /// What it prints, if it runs and succeeds. Shows nothing.
    pub(crate) fn probe(&self) -> Option<String> {
        let output = self.command().output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The sentence for a program that is not there.
    pub(crate) fn did_not_start(&self, error: &std::io::Error) -> Failure {
        format!("`{self}` did not start: {error}")
    }

    fn judge(&self, status: ExitStatus) -> Result<(), Failure> {
        if status.success() { Ok(()) } else { Err(format!("`{self}` failed ({status})")) }
    }
}

/// As a person would type it at the top of the repository.
impl fmt::Display for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.environment {
            write!(f, "{name}={} ", quoted(value))?;
        }
        match &self.program {
            Program::Cargo => write!(f, "cargo")?,
            Program::Xtask(_) => write!(f, "cargo xtask")?,
            Program::Other(name) => write!(f, "{name}")?,
        }
        for argument in &self.arguments {
            write!(f, " {}", quoted(argument))?;
        }
        Ok(())
    }
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:@,+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_shown_as_a_person_would_type_it() {
        let doc = Invocation::cargo(&["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(doc.to_string(), "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
        assert_eq!(Invocation::xtask(&["gen", "--check"]).to_string(), "cargo xtask gen --check");
        assert_eq!(Invocation::of("echo", &["it's", ""]).to_string(), r"echo 'it'\''s' ''");
    }

    #[test]
    fn a_program_that_is_not_there_is_named_in_the_error() {
        let failure = Invocation::of("no-such-program-here", &[]).run().unwrap_err();
        assert!(failure.starts_with("`no-such-program-here` did not start"), "{failure}");
    }

    #[test]
    fn a_program_that_fails_is_named_with_its_exit_code() {
        let failure = Invocation::of("false", &[]).run().unwrap_err();
        assert!(failure.contains("`false` failed") && failure.contains('1'), "{failure}");
    }

    #[test]
    fn a_probe_tells_what_was_printed_or_nothing() {
        assert_eq!(Invocation::of("echo", &["tool 1.2.3"]).probe().as_deref(), Some("tool 1.2.3\n"));
        assert_eq!(Invocation::of("false", &[]).probe(), None);
        assert_eq!(Invocation::of("no-such-program-here", &[]).probe(), None);
    }
}
