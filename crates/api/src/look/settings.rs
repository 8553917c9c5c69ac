//! The configuration as it is now.

use schemars::JsonSchema;
use serde::Serialize;
use steadfast::{Config, Switches};

use super::paging::asks;

asks! {
    /// Which settings are asked for.
    SettingsAsked by String {
        /// Those whose name begins so.
        prefix: String,
    }
}

/// The settings that are not of a tool, and where each comes from.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Settings {
    /// Each with its value, in the order of their names.
    pub settings: Vec<Setting>,
    /// What to ask for `after` next, for more settings; nothing at the end. All else is in every page.
    pub next: Option<String>,
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
pub fn settings(config: &Config, asked: &SettingsAsked) -> Result<Settings, String> {
    let page = asked.page()?;
    let shown = config.shown().into_iter();
    let shown =
        shown.filter(|shown| asked.prefix.as_ref().is_none_or(|prefix| shown.setting.starts_with(prefix)));
    let listed = page.of(shown, |shown| shown.setting.to_owned());
    Ok(Settings {
        settings: listed
            .rows
            .into_iter()
            .map(|shown| Setting {
                name: shown.setting.to_owned(),
                value: shown.value,
                from: shown.at.to_string(),
            })
            .collect(),
        next: listed.next,
        servers: config.servers().keys().map(ToString::to_string).collect(),
        switches: config.switches(),
        notes: config.notes().to_vec(),
    })
}
