//! How things go wrong. Everything that a command cannot do ends here, and nowhere else.

use std::process::ExitCode;

use steadfast::{ConfigErrors, OpenError};

use crate::output;

/// Why a command did not do what it was asked for.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The configuration is not right: that can be said in one go, and is repeated until it is.
    Configuration(String),
    /// What was given on the command line is not.
    Usage(String),
    /// Something that the configuration speaks of cannot be used.
    World(String),
    /// It was told already, in the form that was asked for.
    Told(u8),
}

impl Failure {
    /// The same without words, where it was told in the form that was asked for.
    pub(crate) fn told(self) -> Self {
        Self::Told(self.exit_code())
    }

    /// All of them as one; nothing where there are none.
    pub(crate) fn all(failures: Vec<Self>) -> Option<Self> {
        let code = failures.iter().map(Self::exit_code).max()?;
        let text = failures.iter().map(Self::text).collect::<Vec<_>>().join("\n");
        Some(if code == 2 {
            Self::Configuration(text)
        } else {
            Self::World(text.trim_start_matches("error: ").to_owned())
        })
    }

    /// The words that are said of it.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Configuration(text) => text.clone(),
            Self::Usage(text) | Self::World(text) => format!("error: {text}"),
            Self::Told(_) => String::new(),
        }
    }

    /// The words without what stands before an error.
    pub(crate) fn reason(&self) -> String {
        self.text().trim_start_matches("error: ").to_owned()
    }

    /// Says it, and what the process ends with.
    pub(crate) fn tell(self) -> ExitCode {
        match &self {
            Self::Configuration(_) | Self::Usage(_) | Self::World(_) => output::remark(&self.text()),
            Self::Told(_) => {}
        }
        ExitCode::from(self.exit_code())
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Configuration(_) | Self::Usage(_) => 2,
            Self::World(_) => 1,
            Self::Told(code) => *code,
        }
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        Self::Configuration(errors.to_string())
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        if let OpenError::Configuration(errors) = error {
            return errors.into();
        }
        let why = error.to_string();
        if error.is_configuration() { Self::Configuration(format!("error: {why}")) } else { Self::World(why) }
    }
}
