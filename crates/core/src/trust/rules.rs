//! Which rule applies: the most specific one, tool before domain before plugin before default.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Rules;
use crate::id::{Domain, Namespace, ToolName, ToolRef};
use crate::policy::{Recovery, TrustRule};

/// All rules of trust of a configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrustRules {
    /// For everything that no other rule is about.
    pub default: TrustRule,
    /// For all tools of a plugin or server.
    pub plugins: BTreeMap<Namespace, TrustRule>,
    /// For everything that depends on a host or server.
    pub domains: BTreeMap<Domain, TrustRule>,
    /// For tools of this name, in whatever plugin.
    pub tool_names: BTreeMap<ToolName, TrustRule>,
    /// For one tool of one plugin.
    pub tools: BTreeMap<ToolRef, TrustRule>,
}

/// Where a rule comes from, so that it can be explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleSource {
    /// It names the tool.
    Tool,
    /// It names what the tool depends on.
    Domain,
    /// It names the plugin or server that the tool belongs to.
    Plugin,
    /// No other rule applies.
    Default,
}

impl TrustRules {
    /// The rule for one tool, and who said so. The plugin is the namespace of the tool.
    pub fn rule_for(&self, tool: &ToolRef, domain: Option<&Domain>) -> (&TrustRule, RuleSource) {
        if let Some(rule) = self.tools.get(tool).or_else(|| self.tool_names.get(&tool.tool)) {
            return (rule, RuleSource::Tool);
        }
        if let Some(rule) = domain.and_then(|domain| self.domains.get(domain)) {
            return (rule, RuleSource::Domain);
        }
        if let Some(rule) = self.plugins.get(&tool.namespace) {
            return (rule, RuleSource::Plugin);
        }
        (&self.default, RuleSource::Default)
    }

    /// The rules that a call is judged by. A domain is judged as a whole only where a rule names it: sharing a
    /// host is no reason to share its failures unless somebody said so.
    pub fn for_call(&self, tool: &ToolRef, domain: Option<&Domain>) -> Rules<'_> {
        Rules {
            signature: self.rule_for(tool, domain).0,
            domain: domain.and_then(|domain| self.domains.get(domain)),
        }
    }

    /// The same rules without automatic recovery: a person lets every recovery begin.
    pub fn ask_before_recovery(mut self) -> Self {
        let Self { default, plugins, domains, tool_names, tools } = &mut self;
        let named = plugins.values_mut().chain(domains.values_mut());
        let named = named.chain(tool_names.values_mut()).chain(tools.values_mut());
        for rule in named.chain([default]) {
            rule.recovery = Recovery::Ask;
        }
        self
    }
}
