//! Recorded calls, and the configurations that they are replayed under.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};
use steadfast::admin::replay::RecordedCall;
use steadfast::call::id::{Domain, ToolRef};
use steadfast::config::{Config, ExplainedSetting, StartupPlan};
use steadfast::policy::{AnnotationHints, CallPolicy};

use crate::support::failure::CommandFailure;
use crate::support::sources::ConfigFileOptions;
use crate::support::target::{ConnectionOptions, ConnectionPurpose, OperatorConnection};

/// Location of the recording, and the configuration in use.
#[derive(Args, Clone, Debug)]
pub(crate) struct RecordingOptions {
    /// The gateway to use, if it keeps its recording in memory: ADDRESS:PORT or a URL.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) gateway: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl RecordingOptions {
    /// Connects to the owner of the recording. A shared store is read directly, even if a gateway runs on it, because
    /// it may have more calls than a gateway returns at once.
    pub(crate) async fn find(
        &self,
        files: &[PathBuf],
        config: &Config,
    ) -> Result<OperatorConnection, CommandFailure> {
        let gateway = match &self.gateway {
            None if StartupPlan::of(config)?.is_shared() => Some("none".to_owned()),
            named => named.clone(),
        };
        let connection =
            ConnectionOptions { chosen: ConfigFileOptions::of(files.to_vec()), gateway, json: self.json };
        OperatorConnection::find(&connection, ConnectionPurpose::ExistingState).await
    }
}

/// Returns the policy of a recorded call under a configuration.
pub(crate) fn policy(config: &Config, call: &RecordedCall) -> Arc<CallPolicy> {
    let RecordedCall { request, annotations, .. } = call;
    config.resolve_at(&request.tool, *annotations, request.domain.as_ref()).policy
}

/// Returns the settings of a recorded call under a configuration, with their origins.
pub(crate) fn settings(config: &Config, call: &RecordedCall) -> Vec<ExplainedSetting> {
    config.explain(&call.request.tool, call.annotations, call.request.domain.as_ref()).settings
}

/// A setting that differs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SettingChange {
    pub(crate) setting: &'static str,
    pub(crate) from: String,
    pub(crate) to: String,
    /// Origin of the new value.
    pub(crate) by: String,
}

impl SettingChange {
    pub(crate) fn to_text(&self) -> String {
        let Self { setting, from, to, by } = self;
        format!("{setting} = {to} instead of {from} ({by})")
    }

    pub(crate) fn to_json(&self) -> Value {
        let Self { setting, from, to, by } = self;
        json!({ "setting": setting, "from": from, "to": to, "decidedBy": by })
    }

    /// Returns true if it depends on data that is not recorded.
    pub(crate) fn needs_unrecorded_data(&self) -> bool {
        NEEDS_PARAMETERS.iter().any(|known| self.setting.starts_with(known))
    }
}

/// Describes the number of other settings that may make the difference.
pub(crate) fn and_more(more: usize, are_named: bool) -> Option<String> {
    let settings = if more == 1 { "setting was" } else { "settings were" };
    match (more, are_named) {
        (0, _) => None,
        (_, true) => Some(format!("{more} other {settings} changed too and may be the reason")),
        (_, false) => Some(format!("{more} {settings} changed and may be the reason")),
    }
}

/// Settings that depend on parameters, results or messages of tools.
const NEEDS_PARAMETERS: [&str; 9] = [
    "classify.",
    "shapes.",
    "validate_arguments",
    "dedupe.computed_keys",
    "dedupe.conflict",
    "dedupe.scope",
    "dedupe.strings",
    "dedupe.volatile",
    "guard.repeated_success",
];

/// Everything that the settings of a call depend on: its tool, its dependency, and the annotations of its server.
type RecordedCallKind = (ToolRef, Option<Domain>, [Option<bool>; 3]);

/// Differences between two configurations, for each kind of call.
pub(crate) struct ConfigDiff<'c> {
    from: &'c Config,
    to: &'c Config,
    known: BTreeMap<RecordedCallKind, Vec<SettingChange>>,
}

impl<'c> ConfigDiff<'c> {
    pub(crate) fn between(from: &'c Config, to: &'c Config) -> Self {
        Self { from, to, known: BTreeMap::new() }
    }

    pub(crate) fn of(&mut self, call: &RecordedCall) -> &[SettingChange] {
        let AnnotationHints { read_only, destructive, idempotent } = call.annotations;
        let request = &call.request;
        let name = (request.tool.clone(), request.domain.clone(), [read_only, destructive, idempotent]);
        self.known.entry(name).or_insert_with(|| {
            let before = settings(self.from, call);
            let missing = || "nothing".to_owned();
            let changed = settings(self.to, call).into_iter().filter_map(|now| {
                let was = before.iter().find(|was| was.setting == now.setting);
                let from = was.map_or_else(missing, |was| was.value.clone());
                let by = now.origin.to_string();
                (from != now.value).then_some(SettingChange { setting: now.setting, from, to: now.value, by })
            });
            changed.collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use steadfast::call::id::{Namespace, ToolName};
    use steadfast::config::Sources;

    use super::*;

    #[test]
    fn each_setting_that_cannot_be_rehearsed_is_a_setting_of_calls() {
        let config = Config::load(&Sources::default()).unwrap();
        let tool =
            ToolRef { namespace: Namespace::new("bank").unwrap(), tool: ToolName::new("pay").unwrap() };
        let explained = config.explain(&tool, AnnotationHints::default(), None).settings;
        for known in NEEDS_PARAMETERS {
            assert!(explained.iter().any(|setting| setting.setting.starts_with(known)), "{known}");
        }
    }
}
