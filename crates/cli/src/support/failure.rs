//! Failures of the commands, with their messages and exit codes.

use std::process::ExitCode;

use steadfast::OpenError;
use steadfast::config::ConfigErrors;

use crate::support::output;

/// Reason for which a command failed.
#[derive(Debug)]
pub(crate) enum CommandFailure {
    /// The configuration is invalid. Repeating the command gives the same error.
    Configuration(String),
    /// The command line is invalid.
    Usage(String),
    /// Something that the configuration names cannot be used.
    Environment(String),
    /// The failure was already printed in the requested format. Carries the exit code.
    AlreadyReported(u8),
}

impl CommandFailure {
    /// Returns the failure without its message, for when it was already printed in the requested format.
    pub(crate) fn without_message(self) -> Self {
        Self::AlreadyReported(self.exit_code())
    }

    /// Joins failures into one. Returns `None` if there are none.
    pub(crate) fn all(failures: Vec<Self>) -> Option<Self> {
        let code = failures.iter().map(Self::exit_code).max()?;
        let text = failures.iter().map(Self::text).collect::<Vec<_>>().join("\n");
        Some(if code == 2 {
            Self::Configuration(text)
        } else {
            Self::Environment(text.trim_start_matches("error: ").to_owned())
        })
    }

    /// Returns the message.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Configuration(text) => text.clone(),
            Self::Usage(text) | Self::Environment(text) => format!("error: {text}"),
            Self::AlreadyReported(_) => String::new(),
        }
    }

    /// Returns the message without its prefix.
    pub(crate) fn reason(&self) -> String {
        self.text().trim_start_matches("error: ").to_owned()
    }

    /// Prints the message and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        match &self {
            Self::Configuration(_) | Self::Usage(_) | Self::Environment(_) => {
                output::print_message(&self.text())
            }
            Self::AlreadyReported(_) => {}
        }
        ExitCode::from(self.exit_code())
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Configuration(_) | Self::Usage(_) => 2,
            Self::Environment(_) => 1,
            Self::AlreadyReported(code) => *code,
        }
    }
}

impl From<ConfigErrors> for CommandFailure {
    fn from(errors: ConfigErrors) -> Self {
        Self::Configuration(errors.to_string())
    }
}

impl From<OpenError> for CommandFailure {
    fn from(error: OpenError) -> Self {
        if let OpenError::Configuration(errors) = error {
            return errors.into();
        }
        let message = error.to_string();
        if error.is_configuration() {
            Self::Configuration(format!("error: {message}"))
        } else {
            Self::Environment(message)
        }
    }
}
