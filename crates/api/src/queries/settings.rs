//! The current configuration.

use schemars::JsonSchema;
use serde::Serialize;
use steadfast::config::{Config, Switches};

use super::paging::list_query;

list_query! {
    /// Filters for settings.
    SettingsQuery by String {
        /// Only settings whose name begins with this.
        prefix: String,
    }
}

/// A page of the settings that do not belong to a tool, with their sources.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Settings {
    /// The settings in the order of their names.
    pub settings: Vec<SettingView>,
    /// Cursor of the next page, for `after`. `null` on the last page. The other fields are the same in every page.
    pub next: Option<String>,
    /// The names of the servers.
    pub servers: Vec<String>,
    /// The switches, which override all settings.
    pub switches: Switches,
    /// Remarks from reading the configuration.
    pub notes: Vec<String>,
}

/// One setting.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SettingView {
    /// The name.
    pub name: String,
    /// The value as in a configuration file, without secrets.
    pub value: String,
    /// The source of the value.
    pub from: String,
}

/// Returns the settings that do not belong to a tool.
pub fn settings(config: &Config, query: &SettingsQuery) -> Result<Settings, String> {
    let page = query.page()?;
    let shown = config.shown().into_iter();
    let shown =
        shown.filter(|shown| query.prefix.as_ref().is_none_or(|prefix| shown.setting.starts_with(prefix)));
    let listed = page.of(shown, |shown| shown.setting.to_owned());
    Ok(Settings {
        settings: listed
            .rows
            .into_iter()
            .map(|shown| SettingView {
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
