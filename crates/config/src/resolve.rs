//! Resolves the policy of a call, and records which rule decided each of its settings.
//!
//! Resolving is total: every tool, known or not, has a policy.

use std::borrow::Cow;
use std::sync::Arc;

use steadfast_core::classify::{ArgumentTargets, signature};
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::{Domain, Namespace, ToolRef};
use steadfast_core::policy::{AnnotationHints, ComputedKeyPolicy, ToolClass, TrustRule};
use steadfast_json::JsonValue;

use crate::config::{Config, ConfigParts};
use crate::policy::{CLASS, PolicyDraft, settings};
use crate::resolved_policy::{
    CacheVariant, ExplainedSetting, Explanation, Origins, ResolvedPolicy, SettingOrigin,
};
use crate::rule::{Rule, Selector};
use crate::sources::PolicyStart;
use crate::switch::Switches;

impl ConfigParts {
    /// Returns the starting point of the policy of a tool of this class.
    pub(crate) fn base(&self, class: ToolClass) -> PolicyDraft {
        let policy = self.global.profile.policy(class);
        PolicyDraft::of(match self.start {
            PolicyStart::Library => policy,
            PolicyStart::Gateway => policy.for_gateway(),
        })
    }
}

impl Config {
    /// Returns the policy of a call from its envelope and parsed parameters. Its domain is the one that the caller
    /// names, or else the target of its parameters.
    pub fn resolve_call(
        &self,
        call: &CallEnvelope,
        params: JsonValue<'_>,
        annotations: AnnotationHints,
    ) -> ResolvedPolicy {
        match &call.target.domain {
            Some(domain) => self.resolve_at(&call.tool(), annotations, Some(domain)),
            None => self.resolve(&call.tool(), annotations, params),
        }
    }

    /// Returns the policy of a call with these arguments.
    pub fn resolve(
        &self,
        tool: &ToolRef,
        annotations: AnnotationHints,
        params: JsonValue<'_>,
    ) -> ResolvedPolicy {
        let domain =
            self.parts.rules.know_domains().then(|| signature::domain(tool, &ArgumentTargets::of(params)));
        self.resolve_at(tool, annotations, domain.as_ref())
    }

    /// Returns the policy of a call whose dependency is known.
    pub fn resolve_at(
        &self,
        tool: &ToolRef,
        annotations: AnnotationHints,
        domain: Option<&Domain>,
    ) -> ResolvedPolicy {
        let tool = &configured(tool);
        let domain = domain.and_then(|domain| self.parts.rules.about_domain(domain));
        let hinted = self.hinted(tool, annotations);
        self.cache.of(tool, CacheVariant { domain, hinted }, || {
            let (draft, origins) = self.draft(tool, hinted, domain);
            let mut policy = draft.finish();
            policy.domain_trust = domain.and_then(|at| self.domain_trust(at));
            ResolvedPolicy { policy: Arc::new(policy), origins: Arc::new(Origins(origins)) }
        })
    }

    /// Explains the policy of a call.
    pub fn explain(
        &self,
        tool: &ToolRef,
        annotations: AnnotationHints,
        domain: Option<&Domain>,
    ) -> Explanation {
        let named = configured(tool);
        let at = domain.and_then(|domain| self.parts.rules.about_domain(domain));
        let (draft, origins) = self.draft(&named, self.hinted(&named, annotations), at);
        let explained = settings().iter().zip(origins).filter_map(|(setting, origin)| {
            Some(ExplainedSetting { setting: setting.path, value: setting.show(&draft)?, origin })
        });
        Explanation {
            tool: tool.clone(),
            domain: at.and_then(|_| domain.cloned()),
            settings: explained.collect(),
        }
    }

    /// Returns true if the server is trusted when it marks a tool as safe to repeat.
    pub fn trusts_annotations(&self, server: &Namespace) -> bool {
        self.servers().get(&server.configured()).is_none_or(|server| server.trust_annotations)
    }

    /// Returns the class that follows from the annotations of a tool.
    fn hinted(&self, tool: &ToolRef, annotations: AnnotationHints) -> ToolClass {
        let is_trusted = self.trusts_annotations(&tool.namespace);
        let AnnotationHints { read_only, destructive, idempotent } =
            if is_trusted { annotations } else { annotations.without_safe_claims() };
        match (read_only, idempotent) {
            (Some(true), _) => ToolClass::ReadOnly,
            (_, Some(true)) => ToolClass::Idempotent,
            (Some(false), _) => ToolClass::Mutating,
            (None, _) if destructive == Some(true) => ToolClass::Mutating,
            (None, _) => ToolClass::Unknown,
        }
    }

    fn draft(
        &self,
        tool: &ToolRef,
        hinted: ToolClass,
        domain: Option<usize>,
    ) -> (PolicyDraft, Vec<SettingOrigin>) {
        let ConfigParts { rules, start, global, .. } = &*self.parts;
        // The class is resolved first, because it decides which rules apply. Only rules about tools may set it, so the
        // class that is passed here makes no difference.
        let mut probe = self.parts.base(hinted);
        for one in rules.matching(tool, hinted, domain).flat_map(|rule| &rule.written) {
            if one.setting == CLASS {
                (one.patch)(&mut probe);
            }
        }
        let class = probe.class;
        let mut draft = self.parts.base(class);
        let mut origins = vec![SettingOrigin::Profile(global.profile, class, *start); settings().len()];
        if class != ToolClass::Unknown
            && let Some(origin) = origins.get_mut(CLASS)
        {
            *origin = SettingOrigin::Annotations;
        }
        for rule in rules.matching(tool, class, domain) {
            apply(rule, &mut draft, &mut origins);
        }
        lower(self.switches, &mut draft, &mut origins);
        (draft, origins)
    }

    /// Returns the rule that judges a domain as a whole. There is one if the trust of the domain is configured.
    fn domain_trust(&self, at: usize) -> Option<TrustRule> {
        let rules = &self.parts.rules;
        let rule = rules.get(at)?;
        let is_about_trust = |index: usize| {
            settings()
                .get(index)
                .is_some_and(|one| one.path.starts_with("trust.") && one.path != "trust.mode")
        };
        rule.written.iter().any(|one| is_about_trust(one.setting)).then(|| {
            let mut draft = self.parts.base(ToolClass::Unknown);
            let everything = rules.all().iter().filter(|rule| rule.selector == Selector::Everything);
            for one in everything.chain([rule]).flat_map(|rule| &rule.written) {
                (one.patch)(&mut draft);
            }
            draft.trust
        })
    }
}

/// Returns the tool under the name by which the configuration knows its server.
fn configured(tool: &ToolRef) -> Cow<'_, ToolRef> {
    if tool.namespace.as_str().contains(Namespace::MARK) {
        return Cow::Owned(ToolRef { namespace: tool.namespace.configured(), tool: tool.tool.clone() });
    }
    Cow::Borrowed(tool)
}

fn apply(rule: &Rule, draft: &mut PolicyDraft, origins: &mut [SettingOrigin]) {
    let name: Arc<str> = rule.selector.to_string().into();
    for one in &rule.written {
        (one.patch)(draft);
        let origin = SettingOrigin::Rule { rule: name.clone(), at: one.place.written() };
        let decides = settings().get(one.setting).map_or(&[][..], |setting| setting.decides);
        for (setting, slot) in settings().iter().zip(origins.iter_mut()) {
            if decides.contains(&setting.path) {
                *slot = origin.clone();
            }
        }
        if let Some(slot) = origins.get_mut(one.setting) {
            *slot = origin;
        }
    }
}

fn lower(switches: Switches, draft: &mut PolicyDraft, origins: &mut [SettingOrigin]) {
    let (before, lowered) = (draft.modes, switches.lower(draft.modes));
    let computed = if switches.derive { draft.dedupe.computed_keys } else { ComputedKeyPolicy::Never };
    let changes = [
        ("dedupe.mode", before.dedupe != lowered.dedupe),
        ("retry.mode", before.retry != lowered.retry),
        ("breaker.mode", before.breaker != lowered.breaker),
        ("guard.mode", before.guard != lowered.guard),
        ("trust.mode", before.trust != lowered.trust),
        ("dedupe.computed_keys", draft.dedupe.computed_keys != computed),
    ];
    (draft.modes, draft.dedupe.computed_keys) = (lowered, computed);
    for (setting, slot) in settings().iter().zip(origins.iter_mut()) {
        if changes.contains(&(setting.path, true)) {
            *slot = SettingOrigin::Switch;
        }
    }
}

#[cfg(test)]
mod tests {
    use steadfast_core::id::{Namespace, ToolName};

    use super::*;
    use crate::resolved_policy::MOST_TOOLS;
    use crate::sources::Sources;

    fn tool(name: &str) -> ToolRef {
        ToolRef { namespace: Namespace::new("s").unwrap(), tool: ToolName::new(name).unwrap() }
    }

    #[test]
    fn resolved_policies_are_cached_and_the_cache_is_bounded() {
        let config = Config::load(&Sources::default()).unwrap();
        let of = |name: &str| config.resolve_at(&tool(name), AnnotationHints::default(), None).policy;
        assert!(Arc::ptr_eq(&of("a"), &of("a")));
        for number in 0..MOST_TOOLS + 100 {
            of(&number.to_string());
        }
        assert_eq!(config.cache.tools(), MOST_TOOLS);
        assert!(Arc::ptr_eq(&of("a"), &of("a")));
        assert!(!Arc::ptr_eq(&of("late"), &of("late")), "there was no room for it");
    }
}
