//! Resolved policies with their origins, and the cache of them.
//!
//! Because of the cache, resolving usually costs one lookup in a map. The map is bounded. An unknown tool that does not
//! fit is resolved again each time.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use steadfast_core::id::{Domain, ToolRef};
use steadfast_core::policy::{CallPolicy, PolicyProfile, ToolClass};

use crate::location::{DEFAULTS_NAME, SettingPosition};
use crate::policy::{class_name, settings};
use crate::sources::PolicyStart;

/// The policy of a call with its origins.
#[derive(Clone, Debug)]
pub struct ResolvedPolicy {
    /// The policy.
    pub policy: Arc<CallPolicy>,
    /// Origin of each setting.
    pub origins: Arc<Origins>,
}

/// Origins of all settings of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origins(pub(crate) Vec<SettingOrigin>);

impl Origins {
    /// Returns the origin of the setting with this name, such as `retry.attempts`. Returns `None` if there is no such
    /// setting.
    pub fn of(&self, setting: &str) -> Option<&SettingOrigin> {
        let at = settings().iter().position(|known| known.path == setting)?;
        self.0.get(at)
    }
}

/// Source that decided a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingOrigin {
    /// The default of this profile for this class. The setting is not written anywhere.
    Profile(PolicyProfile, ToolClass, PolicyStart),
    /// A rule.
    Rule {
        /// Name of the rule as it is written: `[tools."bank/pay"]`.
        rule: Arc<str>,
        /// Position at which the rule writes the setting.
        at: SettingPosition,
    },
    /// The annotations that the server gives for its tool.
    Annotations,
    /// A switch that lowered it.
    Switch,
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Profile(profile, class, start) => {
                let profile = match profile {
                    PolicyProfile::Standard => "standard",
                    PolicyProfile::Measured => "measured",
                    PolicyProfile::Stepped => "stepped",
                };
                let start = match start {
                    PolicyStart::Library => "",
                    PolicyStart::Gateway => ", gateway",
                };
                write!(f, "profile {profile}, class {}{start}", class_name(*class))
            }
            Self::Rule { at: at @ SettingPosition::File { file, .. }, .. } if &**file == DEFAULTS_NAME => {
                write!(f, "{at}")
            }
            Self::Rule { rule, at } => write!(f, "{at}, {rule}"),
            Self::Annotations => f.write_str("annotations of the server"),
            Self::Switch => f.write_str("a switch"),
        }
    }
}

/// Explains the policy of a call. Printed, it is a table.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The tool.
    pub tool: ToolRef,
    /// The dependency of the call, if a rule is about that.
    pub domain: Option<Domain>,
    /// All settings.
    pub settings: Vec<ExplainedSetting>,
}

/// A setting of a policy with its value and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedSetting {
    /// Name of the setting.
    pub setting: &'static str,
    /// Value as it would be written.
    pub value: String,
    /// Origin of the value.
    pub origin: SettingOrigin,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.tool)?;
        if let Some(domain) = &self.domain {
            write!(f, " at {domain}")?;
        }
        writeln!(f)?;
        let width = |of: fn(&ExplainedSetting) -> &str| {
            self.settings.iter().map(|one| of(one).len()).max().unwrap_or(0)
        };
        let (names, values) = (width(|one| one.setting), width(|one| &one.value).min(40));
        for ExplainedSetting { setting, value, origin } in &self.settings {
            writeln!(f, "  {setting:<names$}  {value:<values$}  {origin}")?;
        }
        Ok(())
    }
}

/// Maximum number of cached tools.
pub(crate) const MOST_TOOLS: usize = 4096;
/// Maximum number of cached variants of one tool.
const MOST_VARIANTS: usize = 32;

/// Cache of resolved policies.
#[derive(Default)]
pub(crate) struct PolicyCache(RwLock<HashMap<ToolRef, Vec<(CacheVariant, ResolvedPolicy)>>>);

/// Inputs besides the tool that can change the policy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheVariant {
    pub(crate) domain: Option<usize>,
    pub(crate) hinted: ToolClass,
}

impl PolicyCache {
    pub(crate) fn of(
        &self,
        tool: &ToolRef,
        variant: CacheVariant,
        resolve: impl FnOnce() -> ResolvedPolicy,
    ) -> ResolvedPolicy {
        let find = |variants: &Vec<(CacheVariant, ResolvedPolicy)>| {
            variants.iter().find(|(known, _)| *known == variant).map(|(_, resolved)| resolved.clone())
        };
        if let Some(found) = self.0.read().get(tool).and_then(find) {
            return found;
        }
        // Two callers may both get here. They resolve the same.
        let resolved = resolve();
        let mut tools = self.0.write();
        if tools.len() < MOST_TOOLS || tools.contains_key(tool) {
            let variants = tools.entry(tool.clone()).or_default();
            if variants.len() < MOST_VARIANTS && !variants.iter().any(|(known, _)| *known == variant) {
                variants.push((variant, resolved.clone()));
            }
        }
        resolved
    }

    #[cfg(test)]
    pub(crate) fn tools(&self) -> usize {
        self.0.read().len()
    }
}
