//! The configuration: its sources, its errors, the settings in force with their origins, and its changes at run time.
//!
//! ```
//! use steadfast::config::{Config, Sources};
//!
//! let config = Config::load(&Sources::default())?;
//! assert!(config.servers().is_empty());
//! # Ok::<(), steadfast::config::ConfigErrors>(())
//! ```

use std::collections::BTreeMap;

pub use steadfast_config::{
    COMMAND_NAMESPACE, CommandLineFlag, Config, ConfigErrors, ConfigFile, ConfigProblem, ExplainedSetting,
    Explanation, FileRequirement, HTTP_NAMESPACE, InlineJson, Isolation, PolicyStart, ProgramText, Reload, Section,
    ServerSettings, ServerTarget, SettingPosition, Sources, StoreKind, SwitchChange, Switches, Token,
    TokenRole, listen_address, nearest, parse_span,
};

pub use crate::live_config::{ConfigChange, ConfigEvent};
pub use crate::plan::StartupPlan;

/// Returns the usual sources of a configuration: the user's file, that of the working folder (or the one that
/// `STEADFAST_CONFIG` names), and the environment.
///
/// ```
/// use steadfast::config::{PolicyStart, usual_sources};
///
/// let sources = usual_sources(PolicyStart::Library);
/// assert!(sources.flags.is_empty());
/// ```
pub fn usual_sources(start: PolicyStart) -> Sources {
    // A variable that is not valid text cannot be a setting.
    let environment: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    Sources::discover(start, environment, &std::env::current_dir().unwrap_or_default())
}
