//! The error of opening an instance.

use std::fmt;
use std::io;

use steadfast_config::ConfigErrors;
use steadfast_store::StoreError;
use steadfast_store_sqlite::SqliteOpenError;
use steadfast_telemetry::OtlpError;
use tokio::task::JoinError;

/// Reason why an instance cannot be opened.
///
/// ```
/// use steadfast::{Steadfast, Store, ToolPolicy};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let opening = Steadfast::builder().store(Store::memory()).tool("bank/pay", ToolPolicy::mutating().attempts(0));
/// let error = opening.build().await.err().unwrap();
/// assert_eq!(error.code(), "invalid_configuration");
/// assert!(error.is_configuration());
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The configuration has errors. Contains all of them.
    #[error("{0}")]
    Configuration(#[source] ConfigErrors),
    /// A setting has a valid form but cannot be used.
    #[error("`{setting}` cannot be used: {reason}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// Reason, and advice.
        reason: String,
    },
    /// A section of the configuration has a valid form but cannot be used.
    #[error("[{section}]: {reason}")]
    Section {
        /// The section, such as `notify.ops`.
        section: String,
        /// Reason.
        reason: String,
    },
    /// The state file cannot be used.
    #[error("{0}")]
    Sqlite(#[source] SqliteOpenError),
    /// The redis server cannot be used.
    #[error("{0}")]
    Redis(#[source] StoreError),
    /// The connection to the collector cannot be set up.
    #[error("{0}")]
    Otlp(#[source] OtlpError),
    /// The log cannot be written.
    #[error("the log cannot be written: {0}")]
    Logs(#[source] io::Error),
    /// A thread that was opening a part ended without a result.
    #[error("a thread of the opening ended without a result: {0}")]
    Ended(#[source] JoinError),
}

impl OpenError {
    /// Returns the stable code of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Configuration(_) | Self::Setting { .. } | Self::Section { .. } => "invalid_configuration",
            Self::Sqlite(_) | Self::Redis(_) => "store_unusable",
            Self::Otlp(_) => "telemetry_unusable",
            Self::Logs(_) => "log_unusable",
            Self::Ended(_) => "start_interrupted",
        }
    }

    /// Returns true if a change of the configuration helps, rather than a change of the environment.
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Configuration(_) | Self::Setting { .. } | Self::Section { .. } | Self::Otlp(_) => true,
            Self::Sqlite(_) | Self::Redis(_) | Self::Logs(_) | Self::Ended(_) => false,
        }
    }

    pub(crate) fn setting(setting: &'static str, reason: impl fmt::Display) -> Self {
        Self::Setting { setting, reason: reason.to_string() }
    }
}
