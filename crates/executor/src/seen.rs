//! Tools as people and agents see them: what became of their calls, how well they do, how they stand.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use steadfast_core::Timestamp;
use steadfast_core::breaker::State;
use steadfast_core::call::{Call, CallResult, Request};
use steadfast_core::classify::Severity;
use steadfast_core::envelope::{CallEnvelope, UnknownFields};
use steadfast_core::id::{Domain, ModelId, Namespace, TenantId, ToolName, ToolRef};
use steadfast_core::policy::{Annotations, Policy, Profile, ToolClass, TrustRule};
use steadfast_core::stats::{Outcome, Place, Score};
use steadfast_core::trust::{Scope, TrustLedger, TrustState, TrustStatus};
use steadfast_store::{Journal, Query};

use crate::cells::{Cells, ToolKey};
use crate::engine::{Engine, Inner};
use crate::history::CallFacts;

/// A tool as people see it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolView {
    /// The tool.
    pub tool: ToolRef,
    /// What running it twice would do.
    pub class: ToolClass,
    /// Whether anything is known of a call of it. Of the others only that they can be called.
    pub called: bool,
    /// Calls that are over.
    pub calls: u64,
    /// Those that ran and failed.
    pub failures: u64,
    /// Those that were refused without a run.
    pub refused: u64,
    /// When the last one was over; nothing if it was not called.
    #[serde(rename = "lastCallAtMs", skip_serializing_if = "Option::is_none")]
    pub last_call_at: Option<Timestamp>,
    /// Where these numbers come from.
    pub counted: Counted,
    /// How its breaker stands.
    pub breaker: State,
    /// How far it is trusted; the worst of its signatures counts.
    pub trust: TrustState,
    /// How well it does; nothing if nobody used it since this process began, nor in the part of the history before that it
    /// has read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<Score>,
}

/// A tool that can be called here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered {
    /// The tool.
    pub tool: ToolRef,
    /// What is said of it.
    pub annotations: Annotations,
}

/// Where the numbers of a tool come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Counted {
    /// This process has counted since it began.
    SinceStart,
    /// This process has not seen it: the newest part of the history was counted, in which others may have written.
    InHistory,
}

/// How well a tool does, for an agent that has to choose one.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolScore {
    /// The tool.
    pub tool: ToolRef,
    /// How well it does.
    #[serde(flatten)]
    pub score: Score,
    /// How its breaker stands: a good tool may be down.
    pub breaker: State,
    /// How far it is trusted: a person may have to be asked.
    pub trust: TrustState,
}

/// How calls to one host or server went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DomainView {
    /// The host or server.
    pub domain: Domain,
    /// Calls that succeeded.
    pub successes: u64,
    /// Calls that failed.
    pub failures: u64,
    /// The failed calls by severity.
    pub failures_by_severity: BTreeMap<Severity, u64>,
    /// The time of the last success.
    #[serde(rename = "lastSuccessAtMs", skip_serializing_if = "Option::is_none")]
    pub last_success_at: Option<Timestamp>,
    /// The time of the last failure.
    #[serde(rename = "lastFailureAtMs", skip_serializing_if = "Option::is_none")]
    pub last_failure_at: Option<Timestamp>,
    /// The trust in the domain as a whole. Only a domain with a trust rule of its own can lose it.
    pub trust: TrustState,
}

/// How well a model does with a tool.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ModelScore {
    /// The model; null for all models beyond the limit together.
    pub model: Option<ModelId>,
    /// The tool; null for all tools of this model beyond the limit together.
    pub tool: Option<ToolRef>,
    /// The score. Mistakes of the model, such as arguments that the tool cannot accept, count against it.
    #[serde(flatten)]
    pub score: Score,
}

impl Engine {
    /// Returns how calls to each host or server went, in the order of their names.
    pub fn domains(&self, tenant: Option<&TenantId>) -> Vec<DomainView> {
        let tenant = tenant.cloned();
        let states: BTreeMap<_, _> = self
            .inner
            .trust_status(&tenant)
            .into_iter()
            .filter(|one| one.standing.scope == Scope::Domain)
            .filter_map(|one| Some((one.standing.domain?, one.standing.state)))
            // Each session may have its own; the worst comes first, and the last one that is collected counts.
            .rev()
            .collect();
        let Some(cell) = self.inner.machines.tenants.find(&tenant) else { return Vec::new() };
        let judged = cell.judged.lock();
        let mut views: BTreeMap<&Domain, DomainView> = BTreeMap::new();
        for (domain, stats) in judged.ledgers().flat_map(TrustLedger::all_domain_stats) {
            let view = views.entry(domain).or_insert_with(|| DomainView {
                domain: domain.clone(),
                successes: 0,
                failures: 0,
                failures_by_severity: BTreeMap::new(),
                last_success_at: None,
                last_failure_at: None,
                trust: states.get(domain).copied().unwrap_or(TrustState::Trusted),
            });
            view.successes += stats.total_successes;
            view.failures += stats.total_failures;
            for (severity, times) in &stats.failures_by_severity {
                *view.failures_by_severity.entry(*severity).or_default() += times;
            }
            view.last_success_at = view.last_success_at.max(stats.last_success);
            view.last_failure_at = view.last_failure_at.max(stats.last_failure);
        }
        views.into_values().collect()
    }

    /// Returns how well models do with tools, in the order of their names.
    pub fn model_scores(&self, tenant: Option<&TenantId>) -> Vec<ModelScore> {
        let Some(cell) = self.inner.machines.tenants.find(&tenant.cloned()) else { return Vec::new() };
        let scores = cell.scores.lock();
        let all = scores.models(self.inner.clock.now());
        all.map(|(model, tool, score)| ModelScore { model: named(model), tool: named(tool), score }).collect()
    }

    /// Returns how well one model does with one tool. Nothing if none of its calls of this tool is known.
    pub fn model_score(
        &self,
        tenant: Option<&TenantId>,
        model: &ModelId,
        tool: &ToolRef,
    ) -> Option<ToolScore> {
        let tenant = tenant.cloned();
        let cell = self.inner.machines.tenants.find(&tenant)?;
        let score = cell.scores.lock().model_score(model, tool, self.inner.clock.now())?;
        Some(self.scored(&tenant, tool, score))
    }
}

fn named<T: Clone>(place: &Place<T>) -> Option<T> {
    match place {
        Place::Named(name) => Some(name.clone()),
        Place::Other => None,
    }
}

impl Engine {
    /// The tenants of which anything is known, and first of all whoever is of none.
    pub fn tenants(&self) -> Vec<Option<TenantId>> {
        let known = self.inner.machines.tenants.all().into_iter().map(|(tenant, _)| tenant);
        let all: BTreeSet<_> = known.chain([None]).collect();
        all.into_iter().collect()
    }

    /// The tools that this process, or the newest part of the history, has seen, and those that are offered although nobody
    /// called them yet; in the order of their names.
    pub async fn tools(
        &self,
        tenant: Option<&TenantId>,
        offered: impl IntoIterator<Item = Offered>,
    ) -> Vec<ToolView> {
        let inner = &self.inner;
        let tenant = tenant.cloned();
        let mut views = BTreeMap::new();
        for (key, cell) in inner.machines.tools.all() {
            let seen = cell.lock().seen.clone();
            if let Some(seen) = seen.filter(|_| key.tenant == tenant) {
                let view = ToolView {
                    called: true,
                    calls: seen.calls,
                    failures: seen.failures,
                    refused: seen.refused,
                    last_call_at: Some(seen.last),
                    ..ToolView::of(key.tool.clone(), seen.policy.class)
                };
                views.insert(key.tool, view);
            }
        }
        for facts in inner
            .newest_history::<CallFacts>(LOOK_BACK)
            .await
            .into_iter()
            .filter(|facts| facts.tenant == tenant)
        {
            let over = facts.arrived + Duration::from_millis(facts.took_ms);
            let view = views.entry(facts.tool.clone()).or_insert_with(|| ToolView {
                called: true,
                counted: Counted::InHistory,
                ..ToolView::of(facts.tool.clone(), facts.class)
            });
            if view.counted == Counted::InHistory {
                let ran = !facts.attempts.is_empty();
                view.calls += 1;
                view.failures += u64::from(facts.code.is_some() && ran);
                view.refused += u64::from(facts.code.is_some_and(|code| code.is_refusal()) && !ran);
                view.last_call_at = view.last_call_at.max(Some(over));
            }
        }
        for Offered { tool, annotations } in offered {
            views.entry(tool).or_insert_with_key(|tool| {
                let policy = inner.policy_of_blank(&tenant, Some(tool), None, annotations);
                ToolView::of(tool.clone(), policy.class)
            });
        }
        let trust = inner.trust_by_tool(&tenant);
        let mut views: Vec<_> = views.into_values().collect();
        for view in &mut views {
            view.breaker = inner.breaker_state(&tenant, &view.tool);
            view.trust = trust.of(&view.tool);
            view.score = inner.score(&tenant, &view.tool);
        }
        views
    }

    /// How well a tool does: the share of its calls that worked, recent ones counting more, with its confidence, and how
    /// long they took. Nothing if this process has seen none that says anything about it. It has seen its own, and what the
    /// history had of anybody's when it began; what hosts report counts from then on.
    pub fn score(&self, tenant: Option<&TenantId>, tool: &ToolRef) -> Option<ToolScore> {
        let (inner, tenant) = (&self.inner, tenant.cloned());
        let score = inner.score(&tenant, tool)?;
        Some(self.scored(&tenant, tool, score))
    }

    fn scored(&self, tenant: &Option<TenantId>, tool: &ToolRef, score: Score) -> ToolScore {
        let inner = &self.inner;
        let (breaker, trust) = (inner.breaker_state(tenant, tool), inner.trust_by_tool(tenant).of(tool));
        ToolScore { tool: tool.clone(), score, breaker, trust }
    }
}

/// What a score needs of [`CallFacts`]; there may be thousands to read before the first call.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScoredFacts {
    tool: ToolRef,
    tenant: Option<TenantId>,
    model: Option<ModelId>,
    #[serde(rename = "arrivedAtMs")]
    arrived: Timestamp,
    took_ms: u64,
    scored: Option<Outcome>,
}

impl ToolView {
    /// One of which nothing happened.
    fn of(tool: ToolRef, class: ToolClass) -> Self {
        Self {
            tool,
            class,
            called: false,
            calls: 0,
            failures: 0,
            refused: 0,
            last_call_at: None,
            counted: Counted::SinceStart,
            breaker: State::Closed,
            trust: TrustState::Trusted,
            score: None,
        }
    }
}

/// How far the tools of a tenant are trusted, where it is not fully.
struct TrustByTool {
    /// Everything is blocked, because there was no room to tell the blocked tools apart.
    everything: bool,
    worst: BTreeMap<(Namespace, ToolName), TrustState>,
}

impl TrustByTool {
    fn of(&self, tool: &ToolRef) -> TrustState {
        if self.everything {
            return TrustState::Blocked;
        }
        let of = |namespace| self.worst.get(&(namespace, tool.tool.clone())).copied();
        let states = [of(tool.namespace.clone()), of(Namespace::any())];
        states.into_iter().flatten().max().unwrap_or(TrustState::Trusted)
    }
}

impl Inner {
    /// A call is over: its tool was used, and how well that went.
    pub(crate) fn note_end(&self, cells: &Cells, call: &Call, result: &CallResult) {
        let now = self.clock.now();
        let policy = call.shared_policy();
        cells.tool.lock().saw(policy, result, now);
        if let Some(coarser) = &cells.coarser {
            *coarser.policy.lock() = Some(policy.clone());
        }
        if let Some(outcome) = call.scored() {
            let request = call.request();
            let mut scores = cells.tenant.scores.lock();
            scores.record(&request.tool, request.model.as_ref(), outcome, Some(result.took), now);
        }
    }

    /// Scores go on where they were: what the history knows is counted once, before there is a call to count.
    pub(crate) async fn load_scores(&self) {
        let newest: Vec<ScoredFacts> = self.newest_history(SCORES_LOOK_BACK).await;
        let over = |facts: &ScoredFacts| facts.arrived + Duration::from_millis(facts.took_ms);
        let mut scored: Vec<_> =
            newest.iter().filter_map(|facts| Some((over(facts), facts, facts.scored?))).collect();
        // Hours are counted as they come, the newest last.
        scored.sort_by_key(|(over, ..)| *over);
        for (over, facts, outcome) in scored {
            let took = Duration::from_millis(facts.took_ms);
            let cell = self.machines.tenants.get(&facts.tenant);
            cell.scores.lock().record(&facts.tool, facts.model.as_ref(), outcome, Some(took), over);
        }
    }

    fn score(&self, tenant: &Option<TenantId>, tool: &ToolRef) -> Option<Score> {
        let cell = self.machines.tenants.find(tenant)?;
        let scores = cell.scores.lock();
        scores.score(tool, self.clock.now())
    }

    pub(crate) fn breaker_state(&self, tenant: &Option<TenantId>, tool: &ToolRef) -> State {
        let key = ToolKey { tenant: tenant.clone(), tool: tool.clone() };
        let Some(cell) = self.machines.tools.find(&key) else { return State::Closed };
        let policy = self.policy_of_tool(tenant, tool);
        cell.lock().breaker.state(&policy.breaker, self.clock.now())
    }

    fn trust_by_tool(&self, tenant: &Option<TenantId>) -> TrustByTool {
        let mut by_tool = TrustByTool { everything: false, worst: BTreeMap::new() };
        for TrustStatus { standing: stored, .. } in self.trust_status(tenant) {
            match (stored.plugin_name, stored.tool_name) {
                (Some(namespace), Some(tool)) => {
                    let worst = by_tool.worst.entry((namespace, tool)).or_insert(stored.state);
                    *worst = stored.state.max(*worst);
                }
                (None | Some(_), None | Some(_)) => by_tool.everything |= stored.domain.is_none(),
            }
        }
        by_tool
    }

    /// What is not simply trusted, each under the rule that judges its calls.
    pub(crate) fn trust_status(&self, tenant: &Option<TenantId>) -> Vec<TrustStatus> {
        let Some(cell) = self.machines.tenants.find(tenant) else { return Vec::new() };
        let rule_of = |tool: Option<&ToolRef>, domain: Option<&Domain>| self.trust_rule(tenant, tool, domain);
        let (judged, now) = (cell.judged.lock(), self.clock.now());
        let mut all: Vec<_> = judged.ledgers().flat_map(|trust| trust.status(rule_of, now)).collect();
        all.sort_by_key(|one| Reverse(one.standing.state));
        all
    }

    /// The rule that judges a tool, or a domain alone.
    pub(crate) fn trust_rule(
        &self,
        tenant: &Option<TenantId>,
        tool: Option<&ToolRef>,
        domain: Option<&Domain>,
    ) -> TrustRule {
        let policy = self.policy_of_blank(tenant, tool, domain, Annotations::default());
        match (tool, &policy.domain_trust) {
            (None, Some(of_domain)) => of_domain.clone(),
            (None, None) | (Some(_), _) => policy.trust.clone(),
        }
    }

    /// The calls that ended last, in this process or another one. A store that fails has none.
    async fn newest_history<F: DeserializeOwned>(&self, limit: usize) -> Vec<F> {
        match self.store.entries(&Query::newest(Journal::History, limit)).await {
            Ok(entries) => {
                entries.iter().filter_map(|(_, entry)| serde_json::from_str(&entry.body).ok()).collect()
            }
            Err(error) => {
                self.store_trouble(&*self.store, &error);
                Vec::new()
            }
        }
    }

    /// The policy by which the last call of a tool was judged; without one, that of a call of which nothing else is known.
    pub(crate) fn policy_of_tool(&self, tenant: &Option<TenantId>, tool: &ToolRef) -> Arc<Policy> {
        let cell = self.machines.tools.find(&ToolKey { tenant: tenant.clone(), tool: tool.clone() });
        let seen = cell.and_then(|cell| cell.lock().seen.as_ref().map(|seen| seen.policy.clone()));
        seen.unwrap_or_else(|| self.policy_of_blank(tenant, Some(tool), None, Annotations::default()))
    }

    /// The policy of whatever depends on this host or server.
    pub(crate) fn policy_at(&self, tenant: &Option<TenantId>, name: &str) -> Arc<Policy> {
        let domain = Domain::new(name).ok();
        let tool = Namespace::new(name).ok().zip(ToolName::new("*").ok());
        let tool = tool.map(|(namespace, tool)| ToolRef { namespace, tool });
        self.policy_of_blank(tenant, tool.as_ref(), domain.as_ref(), Annotations::default())
    }

    /// The policy where neither tool nor server is known.
    pub(crate) fn policy_of_nothing(&self, tenant: &Option<TenantId>) -> Arc<Policy> {
        self.policy_of_blank(tenant, None, None, Annotations::default())
    }

    /// The policy of a call of which no more is known than this.
    pub(crate) fn policy_of_blank(
        &self,
        tenant: &Option<TenantId>,
        tool: Option<&ToolRef>,
        domain: Option<&Domain>,
        annotations: Annotations,
    ) -> Arc<Policy> {
        let Some(mut envelope) = BLANK.clone() else {
            return Arc::new(Profile::Standard.policy(ToolClass::Unknown));
        };
        if let Some(tool) = tool {
            (envelope.tool_namespace, envelope.tool_name) = (tool.namespace.clone(), tool.tool.clone());
        }
        (envelope.target.tenant_id, envelope.target.domain) = (tenant.clone(), domain.cloned());
        match Request::params(&envelope) {
            Ok(params) => self.policies.policy(&envelope, params.root(), annotations),
            Err(_) => Arc::new(Profile::Standard.policy(ToolClass::Unknown)),
        }
    }
}

/// A call that nobody makes, to ask for policies with.
static BLANK: LazyLock<Option<CallEnvelope>> = LazyLock::new(|| {
    let text = br#"{"contractVersion":"1.1","requestId":"-","toolName":"*","toolNamespace":"*",
        "target":{"sessionKey":"-","actorId":"-"},"payload":{"version":"1.0","params":{}}}"#;
    CallEnvelope::parse(text, UnknownFields::Refuse).ok()
});

/// How many calls of the history are looked at for tools that this process has not seen.
const LOOK_BACK: usize = 1000;
/// How many of the last calls scores go on from. It is read before the first call can come, so it must not take long.
const SCORES_LOOK_BACK: usize = 5000;
