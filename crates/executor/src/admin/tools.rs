//! Views of tools for operators and agents: counts of their calls, scores, breaker and trust states.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast_core::Timestamp;
use steadfast_core::breaker::State;
use steadfast_core::classify::Severity;
use steadfast_core::id::{Domain, ModelId, Namespace, TenantId, ToolName, ToolRef};
use steadfast_core::policy::ToolClass;
use steadfast_core::stats::{PerformanceScore, ScoreOutcome, StatsKey};
use steadfast_core::trust::{TrustLedger, TrustScope, TrustState, TrustStatus};

use super::engine_admin::EngineAdmin;
use crate::call::registry::AvailableTool;
use crate::observe::history::CallFacts;

/// A tool, for views.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolView {
    /// The tool.
    pub tool: ToolRef,
    /// Class of the tool.
    pub class: ToolClass,
    /// True if a call of it is known. If not, the tool is only known to be available.
    pub called: bool,
    /// Calls that ended.
    pub calls: u64,
    /// Calls that ran and failed.
    pub failures: u64,
    /// Calls that were refused without a run.
    pub refused: u64,
    /// End of the last call. Absent if it was not called.
    #[serde(rename = "lastCallAtMs", skip_serializing_if = "Option::is_none")]
    pub last_call_at: Option<Timestamp>,
    /// Source of these counts.
    pub counted: CountSource,
    /// State of its breaker.
    pub breaker: State,
    /// Trust in it. The worst of its signatures counts.
    pub trust: TrustState,
    /// Score. Absent if no use is known, neither since the start of this process nor in the part of the history that it
    /// has read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<PerformanceScore>,
}

/// Source of the counts of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CountSource {
    /// Counted by this process since it started.
    SinceStart,
    /// Counted in the newest part of the history, which other processes may have written. This process has not called
    /// it.
    InHistory,
}

/// Score of a tool, for an agent that chooses between tools.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolScore {
    /// The tool.
    pub tool: ToolRef,
    /// The score.
    #[serde(flatten)]
    pub score: PerformanceScore,
    /// State of its breaker. A tool with a good score may be down.
    pub breaker: State,
    /// Trust in it. Calls may need approval.
    pub trust: TrustState,
}

/// Counts of the calls to one host or server.
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

/// Score of a model with a tool.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ModelScore {
    /// The model; null for all models beyond the limit together.
    pub model: Option<ModelId>,
    /// The tool; null for all tools of this model beyond the limit together.
    pub tool: Option<ToolRef>,
    /// The score. Invalid calls by the model, such as arguments that the tool cannot accept, count against it.
    #[serde(flatten)]
    pub score: PerformanceScore,
}

impl EngineAdmin {
    /// Returns the counts of the calls to each host or server, ordered by name.
    pub fn domains(&self, tenant: Option<&TenantId>) -> Vec<DomainView> {
        let tenant = tenant.cloned();
        let states: BTreeMap<_, _> = self
            .trust_status(&tenant)
            .into_iter()
            .filter(|one| one.standing.scope == TrustScope::Domain)
            .filter_map(|one| Some((one.standing.domain?, one.standing.state)))
            // Each session may have its own. The worst comes first, and the last one that is collected counts.
            .rev()
            .collect();
        let Some(cell) = self.machines.tenants.find(&tenant) else { return Vec::new() };
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

    /// Returns the scores of models with tools, ordered by name.
    pub fn model_scores(&self, tenant: Option<&TenantId>) -> Vec<ModelScore> {
        let Some(cell) = self.machines.tenants.find(&tenant.cloned()) else { return Vec::new() };
        let scores = cell.scores.lock();
        let all = scores.models(self.clock.now());
        all.map(|(model, tool, score)| ModelScore { model: named(model), tool: named(tool), score }).collect()
    }

    /// Returns the score of one model with one tool, or `None` if none of its calls of this tool is known.
    pub fn model_score(
        &self,
        tenant: Option<&TenantId>,
        model: &ModelId,
        tool: &ToolRef,
    ) -> Option<ToolScore> {
        let tenant = tenant.cloned();
        let cell = self.machines.tenants.find(&tenant)?;
        let score = cell.scores.lock().model_score(model, tool, self.clock.now())?;
        Some(self.scored(&tenant, tool, score))
    }
}

fn named<T: Clone>(place: &StatsKey<T>) -> Option<T> {
    match place {
        StatsKey::Named(name) => Some(name.clone()),
        StatsKey::Other => None,
    }
}

impl EngineAdmin {
    /// Returns the known tenants. The first one is `None`, for calls without a tenant.
    pub fn tenants(&self) -> Vec<Option<TenantId>> {
        let known = self.machines.tenants.all().into_iter().map(|(tenant, _)| tenant);
        let all: BTreeSet<_> = known.chain([None]).collect();
        all.into_iter().collect()
    }

    /// Returns the tools that appear in this process or in the newest part of the history, and the available tools that
    /// have not been called yet, ordered by name.
    pub async fn tools(
        &self,
        tenant: Option<&TenantId>,
        offered: impl IntoIterator<Item = AvailableTool>,
    ) -> Vec<ToolView> {
        let tenant = tenant.cloned();
        let mut views = BTreeMap::new();
        for (key, cell) in self.machines.tools.all() {
            let counts = cell.lock().counts.clone();
            if let Some(counts) = counts.filter(|_| key.tenant == tenant) {
                let view = ToolView {
                    called: true,
                    calls: counts.calls,
                    failures: counts.failures,
                    refused: counts.refused,
                    last_call_at: Some(counts.last),
                    ..ToolView::of(key.tool.clone(), counts.policy.class)
                };
                views.insert(key.tool, view);
            }
        }
        for facts in self
            .history
            .newest::<CallFacts>(LOOK_BACK)
            .await
            .into_iter()
            .filter(|facts| facts.tenant == tenant)
        {
            let over = facts.arrived + Duration::from_millis(facts.took_ms);
            let view = views.entry(facts.tool.clone()).or_insert_with(|| ToolView {
                called: true,
                counted: CountSource::InHistory,
                ..ToolView::of(facts.tool.clone(), facts.class)
            });
            if view.counted == CountSource::InHistory {
                let ran = !facts.attempts.is_empty();
                view.calls += 1;
                view.failures += u64::from(facts.code.is_some() && ran);
                view.refused += u64::from(facts.code.is_some_and(|code| code.is_refusal()) && !ran);
                view.last_call_at = view.last_call_at.max(Some(over));
            }
        }
        for AvailableTool { tool, annotations } in offered {
            views.entry(tool).or_insert_with_key(|tool| {
                let policy = self.policies.of_blank(&tenant, Some(tool), None, annotations);
                ToolView::of(tool.clone(), policy.class)
            });
        }
        let trust = self.trust_by_tool(&tenant);
        let mut views: Vec<_> = views.into_values().collect();
        for view in &mut views {
            view.breaker = self.policies.breaker_state(&tenant, &view.tool, self.clock.now());
            view.trust = trust.of(&view.tool);
            view.score = self.score_of(&tenant, &view.tool);
        }
        views
    }

    /// Returns the score of a tool: the weighted share of its calls that succeeded, with recent calls counting more,
    /// its confidence, and durations. Returns `None` if no call that counts is known. The calls are those of this
    /// process, those of all processes in the history at its start, and later reports of hosts.
    pub fn score(&self, tenant: Option<&TenantId>, tool: &ToolRef) -> Option<ToolScore> {
        let tenant = tenant.cloned();
        let score = self.score_of(&tenant, tool)?;
        Some(self.scored(&tenant, tool, score))
    }

    fn scored(&self, tenant: &Option<TenantId>, tool: &ToolRef, score: PerformanceScore) -> ToolScore {
        let (breaker, trust) = (
            self.policies.breaker_state(tenant, tool, self.clock.now()),
            self.trust_by_tool(tenant).of(tool),
        );
        ToolScore { tool: tool.clone(), score, breaker, trust }
    }
}

/// The part of [`CallFacts`] that a score needs. Thousands may be read before the first call.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScoreFacts {
    tool: ToolRef,
    tenant: Option<TenantId>,
    model: Option<ModelId>,
    #[serde(rename = "arrivedAtMs")]
    arrived: Timestamp,
    took_ms: u64,
    scored: Option<ScoreOutcome>,
}

impl ToolView {
    /// Returns a view of a tool without calls.
    fn of(tool: ToolRef, class: ToolClass) -> Self {
        Self {
            tool,
            class,
            called: false,
            calls: 0,
            failures: 0,
            refused: 0,
            last_call_at: None,
            counted: CountSource::SinceStart,
            breaker: State::Closed,
            trust: TrustState::Trusted,
            score: None,
        }
    }
}

/// Trust in the tools of a tenant that are not fully trusted.
struct TrustByTool {
    /// True if everything is blocked, because there are too many blocked tools to list them.
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

impl EngineAdmin {
    /// Loads the scores from the history. Each call in it counts once, and it is read before the first call.
    pub(crate) async fn load_scores(&self) {
        let newest: Vec<ScoreFacts> = self.history.newest(SCORES_LOOK_BACK).await;
        let over = |facts: &ScoreFacts| facts.arrived + Duration::from_millis(facts.took_ms);
        let mut scored: Vec<_> =
            newest.iter().filter_map(|facts| Some((over(facts), facts, facts.scored?))).collect();
        // The statistics need calls in the order of their ends, newest last.
        scored.sort_by_key(|(over, ..)| *over);
        for (over, facts, outcome) in scored {
            let took = Duration::from_millis(facts.took_ms);
            let cell = self.machines.tenants.get(&facts.tenant);
            cell.scores.lock().record(&facts.tool, facts.model.as_ref(), outcome, Some(took), over);
        }
    }

    fn score_of(&self, tenant: &Option<TenantId>, tool: &ToolRef) -> Option<PerformanceScore> {
        let cell = self.machines.tenants.find(tenant)?;
        let scores = cell.scores.lock();
        scores.score(tool, self.clock.now())
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
}

/// Number of calls of the history to search for tools that this process has not called.
const LOOK_BACK: usize = 1000;
/// Number of calls of the history to compute scores from. It is read before the first call, so it must not take long.
const SCORES_LOOK_BACK: usize = 5000;
