//! The configuration as it is now.

use schemars::JsonSchema;
use serde::Serialize;
use steadfast::{Config, Switches};

/// The settings that are not of a tool, and where each comes from.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Settings {
    /// Each with its value.
    pub settings: Vec<Setting>,
    /// The servers, by name.
    pub servers: Vec<String>,
    /// The switches that stand over everything.
    pub switches: Switches,
    /// What was noticed when it was read.
    pub notes: Vec<String>,
}

/// One setting.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Setting {
    /// Its name.
    pub name: String,
    /// Its value as it would be written; no secrets.
    pub value: String,
    /// Where that is written.
    pub from: String,
}

/// The settings that are not of a tool.
pub fn settings(config: &Config) -> Settings {
    let shown = config.shown().into_iter();
    Settings {
        settings: shown
            .map(|shown| Setting {
                name: shown.setting.to_owned(),
                value: shown.value,
                from: shown.at.to_string(),
            })
            .collect(),
        servers: config.servers().keys().map(ToString::to_string).collect(),
        switches: config.switches(),
        notes: config.notes().to_vec(),
    }
}
