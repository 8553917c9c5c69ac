//! A command line that can be run, or shown so that it can be repeated manually.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

use crate::{TaskFailure, workspace};

/// A program with its arguments and environment variables.
#[derive(Clone, Debug)]
pub(crate) struct Invocation {
    program: Program,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

/// The program to run. Cargo and this program are separate variants because they are run with another command than the
/// one that is shown.
#[derive(Clone, Debug)]
enum Program {
    Cargo,
    /// This program, with its path. The path is determined when the step is defined, before anything runs: a build may
    /// replace the file, and then the system no longer knows its name.
    Xtask(PathBuf),
    Other(String),
}

impl Invocation {
    /// Returns a command of the cargo that started this program.
    pub(crate) fn cargo(arguments: &[&str]) -> Self {
        Self::new(Program::Cargo, arguments)
    }

    /// Returns another command of this program.
    pub(crate) fn xtask(arguments: &[&str]) -> Self {
        let program = env::current_exe().unwrap_or_else(|_| "xtask".into());
        Self::new(Program::Xtask(program), arguments)
    }

    /// Returns a command of any other program.
    pub(crate) fn of(program: &str, arguments: &[&str]) -> Self {
        Self::new(Program::Other(program.to_owned()), arguments)
    }

    fn new(program: Program, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Self { program, arguments, environment: Vec::new() }
    }

    /// Adds arguments.
    pub(crate) fn args(mut self, more: impl IntoIterator<Item = String>) -> Self {
        self.arguments.extend(more);
        self
    }

    /// Adds an environment variable.
    pub(crate) fn env(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }

    /// Returns the command with the root of the repository as its working folder, and the installed tools in its
    /// `PATH`.
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

    /// Runs it with its output on the terminal.
    pub(crate) fn run(&self) -> Result<(), TaskFailure> {
        let status = self.command().status().map_err(|error| self.did_not_start(&error))?;
        self.judge(status)
    }

    /// Runs it and returns its stdout. Its stderr goes to the terminal.
    pub(crate) fn output(&self) -> Result<String, TaskFailure> {
        let output = self.command().stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| self.did_not_start(&error))?;
        self.judge(output.status)?;
        String::from_utf8(output.stdout).map_err(|_| format!("`{self}` printed something that is not text"))
    }

    /// Returns its stdout if it runs and succeeds. Prints nothing.
    pub(crate) fn probe(&self) -> Option<String> {
        let output = self.command().output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Returns the message for a program that is missing.
    pub(crate) fn did_not_start(&self, error: &std::io::Error) -> TaskFailure {
        format!("`{self}` did not start: {error}")
    }

    fn judge(&self, status: ExitStatus) -> Result<(), TaskFailure> {
        if status.success() { Ok(()) } else { Err(format!("`{self}` failed ({status})")) }
    }
}

/// Formats the command as typed at the root of the repository.
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
    fn a_command_line_is_shown_as_it_is_typed() {
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
    fn a_probe_returns_the_output_or_nothing() {
        assert_eq!(Invocation::of("echo", &["tool 1.2.3"]).probe().as_deref(), Some("tool 1.2.3\n"));
        assert_eq!(Invocation::of("false", &[]).probe(), None);
        assert_eq!(Invocation::of("no-such-program-here", &[]).probe(), None);
    }
}
