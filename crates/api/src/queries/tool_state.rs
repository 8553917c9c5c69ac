//! The state of tools: circuit breakers, trust, the loop guard, and pending approvals.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use steadfast::Engine;
use steadfast::admin::approval::ParkedRequest;
use steadfast_core::Timestamp;
use steadfast_core::breaker::State;
use steadfast_core::classify::signature::Signature;
use steadfast_core::id::{Digest, Domain, ModelId, Namespace, SessionKey, TenantId, ToolName, ToolRef};
use steadfast_core::trust::{
    Escalation, PromptLevel, ToolReliabilityState, TrustScope, TrustState, TrustStatus,
};
use steadfast_executor::{
    BreakerKey, BreakerView, DomainView, GuardTrip, GuardView, ModelScore, StoppedSession,
};

use super::paging::{NamedTool, fits, list_query};
use super::view::view;

list_query! {
    /// Filters for circuit breakers.
    BreakersQuery by BreakerKey {
        /// Only breakers of this tenant. By default, those of no tenant.
        tenant: TenantId,
        /// Only the breaker of this tool: `namespace/tool`.
        tool: NamedTool,
        /// Only breakers of tools in this namespace.
        namespace: Namespace,
        /// Only breakers in this state.
        state: State,
    }
}

/// A page of circuit breakers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Breakers {
    /// The breakers of tools first, in the order of their keys.
    pub breakers: Vec<BreakerView>,
    /// Cursor of the next page, for `after`. `null` on the last page.
    pub next: Option<String>,
}

/// Returns the known circuit breakers.
pub async fn breakers(engine: &Engine, query: &BreakersQuery) -> Result<Breakers, String> {
    let page = query.page()?;
    let all = engine.admin().breakers(query.tenant.as_ref()).await.into_iter().filter(|breaker| {
        let tool = match &breaker.key {
            BreakerKey::Tool(tool) => Some(tool),
            BreakerKey::Dependency(_) => None,
        };
        fits(query.tool.as_ref().map(|named| &named.0), tool)
            && fits(query.namespace.as_ref(), tool.map(|tool| &tool.namespace))
            && fits(query.state.as_ref(), Some(&breaker.view.state))
    });
    let listed = page.of(all, |breaker| breaker.key.clone());
    Ok(Breakers { breakers: listed.rows, next: listed.next })
}

list_query! {
    /// Filters for trust.
    TrustQuery by String {
        /// Only entries of this tenant. By default, those of no tenant.
        tenant: TenantId,
        /// Only entries of this tool: `namespace/tool`.
        tool: NamedTool,
        /// Only entries of tools in this namespace.
        namespace: Namespace,
        /// Only entries in this state.
        state: TrustState,
    }
}

/// A page of tools, signatures and domains that are not fully trusted.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Trust {
    /// The entries.
    pub trust: Vec<TrustView>,
    /// Cursor of the next page, for `after`. `null` on the last page.
    pub next: Option<String>,
}

/// Returns the tools, signatures and domains that are not fully trusted.
pub fn trust(engine: &Engine, query: &TrustQuery) -> Result<Trust, String> {
    let page = query.page()?;
    let all = engine.admin().trust(query.tenant.as_ref()).into_iter().filter(
        |TrustStatus { standing: one, .. }| {
            query.tool.as_ref().is_none_or(|NamedTool(tool)| {
                one.tool().is_some_and(|one| {
                    one.tool == tool.tool && (one.namespace == tool.namespace || one.is_in_any_namespace())
                })
            }) && fits(query.namespace.as_ref(), one.plugin_name.as_ref())
                && fits(query.state.as_ref(), Some(&one.state))
        },
    );
    let listed = page.of(all, |TrustStatus { standing: one, .. }| {
        named(&(&one.plugin_name, &one.tool_name, &one.signature, &one.domain, one.scope))
    });
    Ok(Trust { trust: listed.rows.into_iter().map(TrustView::from).collect(), next: listed.next })
}

/// A tool, signature or domain that is not fully trusted, with the limits of its trust policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrustView {
    /// The state and the counters.
    #[serde(flatten)]
    pub standing: TrustCounters,
    /// Time at which recovery begins without an approval, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovers_at: Option<Timestamp>,
    /// `true` if it stays escalated until an operator approves its recovery.
    pub waits_for_approval: bool,
    /// The window in which failures are counted, in milliseconds.
    pub window_ms: u64,
    /// The cooldown: the minimum time between the last counted failure and recovery, in milliseconds.
    pub cooldown_ms: u64,
}

impl From<TrustStatus> for TrustView {
    fn from(status: TrustStatus) -> Self {
        let TrustStatus { standing, recovers_at, waits_for_approval, window_ms, cooldown_ms } = status;
        Self { standing: standing.into(), recovers_at, waits_for_approval, window_ms, cooldown_ms }
    }
}

view! {
    /// The state of one tool, signature or domain. In the trust file the same fields are in snake_case.
    TrustCounters of ToolReliabilityState {
        /// The kind of entry: a tool, a signature or a domain.
        scope: TrustScope,
        /// The trust state.
        state: TrustState,
        /// Counted failures since trust began to drop.
        failures_in_window: u32,
        /// Failures since the last success, counted or not.
        consecutive_failures: u32,
        /// Successes since recovery began.
        successes_since_recovery: u32,
        /// Successes that restore trust.
        successes_needed: u32,
        /// Failures while escalated, which lead to a block.
        failures_while_escalated: u32,
        /// `true` if it can recover without an approval.
        recoverable: bool,
    } {
        /// The tool.
        tool_name: ToolName,
        /// The plugin or server of the tool. `*`, or absent, for the tool of this name in any of them.
        plugin_name: Namespace,
        /// The signature.
        signature: Signature,
        /// The host or server.
        domain: Domain,
        /// Time of the last failure, counted or not.
        last_failure: Timestamp,
        /// Time of the last success.
        last_success: Timestamp,
        /// Time at which trust was lost.
        escalated_at: Timestamp,
        /// The reason for the loss of trust.
        escalation_reason: String,
        /// The end of the escalation, before the cooldown is applied.
        escalation_expires: Timestamp,
        /// Time at which recovery began.
        recovery_started: Timestamp,
        /// Time of the last counted failure, at which the cooldown starts.
        last_counted_failure: Timestamp,
    }
}

list_query! {
    /// Filters for hosts and servers.
    DomainsQuery by String {
        /// Only calls of this tenant. By default, those of no tenant.
        tenant: TenantId,
        /// Only this host or server.
        domain: Domain,
        /// If true, only those with failures; if false, only those without.
        failed: bool,
    }
}

/// A page of hosts and servers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Domains {
    /// The hosts and servers in the order of their names.
    pub domains: Vec<DomainView>,
    /// Cursor of the next page, for `after`. `null` on the last page.
    pub next: Option<String>,
}

/// Returns the results of calls by host and server.
pub fn domains(engine: &Engine, query: &DomainsQuery) -> Result<Domains, String> {
    let page = query.page()?;
    let all = engine.admin().domains(query.tenant.as_ref()).into_iter().filter(|view| {
        fits(query.domain.as_ref(), Some(&view.domain))
            && fits(query.failed.as_ref(), Some(&(view.failures > 0)))
    });
    let listed = page.of(all, |view| view.domain.to_string());
    Ok(Domains { domains: listed.rows, next: listed.next })
}

list_query! {
    /// Filters for models.
    ModelsQuery by String {
        /// Only calls of this tenant. By default, those of no tenant.
        tenant: TenantId,
        /// Only this model.
        model: ModelId,
        /// Only scores with this tool: `namespace/tool`.
        tool: NamedTool,
    }
}

/// A page of scores of models.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Models {
    /// One score for each model and tool, in the order of their names.
    pub models: Vec<ModelScore>,
    /// Cursor of the next page, for `after`. `null` on the last page.
    pub next: Option<String>,
}

/// Returns the scores of models with tools.
pub fn models(engine: &Engine, query: &ModelsQuery) -> Result<Models, String> {
    let page = query.page()?;
    let all = engine.admin().model_scores(query.tenant.as_ref()).into_iter().filter(|one| {
        fits(query.model.as_ref(), one.model.as_ref())
            && fits(query.tool.as_ref().map(|named| &named.0), one.tool.as_ref())
    });
    let listed = page.of(all, |one| named(&(&one.model, &one.tool)));
    Ok(Models { models: listed.rows, next: listed.next })
}

list_query! {
    /// Filters for pending approvals.
    ApprovalsQuery by u64 {
        /// Only requests of this tenant. By default, those of no tenant.
        tenant: TenantId,
        /// Only requests for this tool: `namespace/tool`.
        tool: NamedTool,
        /// Only requests of this session.
        session: SessionKey,
    }
}

/// A page of pending approvals.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Approvals {
    /// The requests, oldest first.
    pub approvals: Vec<ApprovalView>,
    /// Cursor of the next page, for `after`. `null` on the last page.
    pub next: Option<String>,
}

/// A pending approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ApprovalView {
    /// The id, for answering the request.
    pub id: u64,
    /// The request.
    #[serde(flatten)]
    pub request: ApprovalRequest,
}

view! {
    /// The approval request of a call.
    ApprovalRequest of ParkedRequest {
        /// The tool.
        tool: ToolRef,
        /// The digest of its arguments.
        arguments: Digest,
        /// The part of the arguments that trust judges it by.
        signature: Signature,
        /// `true` if the tool is blocked, so that only an operator can answer.
        blocked: bool,
        /// The text of the prompt.
        prompt: ApprovalPrompt,
        /// The number of calls that made this request.
        #[serde(rename = "askers")]
        request_count: u32,
        /// Time of the first of them.
        #[serde(rename = "askedAt")]
        first_requested: Timestamp,
        /// Time of the last of them.
        #[serde(rename = "lastAsked")]
        last_requested: Timestamp,
        /// Time at which the request expires.
        expires: Timestamp,
    } {
        /// The session key.
        session: SessionKey,
        /// The arguments, as far as they may be shown.
        shown: Arc<str>,
    }
}

view! {
    /// The text of a prompt for approval.
    ApprovalPrompt of Escalation {
        /// The trust state that requires approval.
        state: TrustState,
        /// The reason.
        reason: String,
        /// Counted failures since trust began to drop.
        failures: u32,
        /// The window in which failures are counted, in words.
        window: String,
        /// The way in which trust can be restored, in words.
        recovery_hint: String,
        /// `true` if recovery starts only after an operator approves it.
        waits_for_recovery: bool,
        /// One line for the head of the prompt.
        summary: String,
        /// Warnings, one per line.
        warnings: Vec<String>,
        /// The severity of the prompt.
        level: PromptLevel,
        /// The format of the lines, for hosts that can also show diffs and code.
        format_hint: String,
    } {
        /// The host or server that has lost trust, if it is not the tool itself.
        domain: Domain,
    }
}

/// Returns the pending approvals.
pub fn approvals(engine: &Engine, query: &ApprovalsQuery) -> Result<Approvals, String> {
    let page = query.page()?;
    let all = engine.admin().approvals(query.tenant.as_ref()).into_iter().filter(|(_, request)| {
        fits(query.tool.as_ref().map(|named| &named.0), Some(&request.tool))
            && fits(query.session.as_ref(), request.session.as_ref())
    });
    let all = all.map(|(id, request)| ApprovalView { id: id.0, request: request.into() });
    let listed = page.of(all, |waiting| waiting.id);
    Ok(Approvals { approvals: listed.rows, next: listed.next })
}

list_query! {
    /// Filters for the loop guard.
    GuardQuery by String {
        /// Only sessions of this tenant. By default, those of no tenant.
        tenant: TenantId,
        /// Only entries about this tool: `namespace/tool`.
        tool: NamedTool,
        /// Only entries of this session.
        session: SessionKey,
    }
}

/// A page of the state of the loop guard. Stopped sessions come first, then trips; a page may contain both.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct GuardActivity {
    /// The stopped sessions, in the order of their keys.
    pub stopped: Vec<StoppedSession>,
    /// The recent trips of the loop guard in this process, oldest first.
    pub trips: Vec<GuardTrip>,
    /// Cursor of the next page, for `after`. `null` on the last page.
    pub next: Option<String>,
}

/// One row of the two lists.
enum GuardRow {
    Stopped(StoppedSession),
    Trip(GuardTrip),
}

/// Returns the stopped sessions and the recent trips of the loop guard.
pub fn guard(engine: &Engine, query: &GuardQuery) -> Result<GuardActivity, String> {
    let page = query.page()?;
    let GuardView { stopped, trips } = engine.admin().guard(query.tenant.as_ref());
    let tool = query.tool.as_ref().map(|named| &named.0);
    let session = query.session.as_ref();
    let stopped = stopped
        .into_iter()
        .filter(|one| fits(tool, one.stopped.tool.as_ref()) && fits(session, one.session.as_ref()));
    let trips =
        trips.into_iter().filter(|trip| fits(tool, Some(&trip.tool)) && fits(session, trip.session.as_ref()));
    let listed = page.of(stopped.map(GuardRow::Stopped).chain(trips.map(GuardRow::Trip)), |row| match row {
        // The time since which it is stopped may change, so it is not part of the key.
        GuardRow::Stopped(StoppedSession { session, stopped }) => {
            let key = (session, &stopped.tool, &stopped.arguments, &stopped.turn, stopped.layer);
            format!("stopped {}", named(&key))
        }
        // The time of the first trip does not change, and has a fixed length.
        GuardRow::Trip(trip) => {
            format!(
                "trip {:020} {}",
                trip.at_ms.as_millis(),
                named(&(&trip.session, &trip.tool, trip.digest))
            )
        }
    });
    let mut guard = GuardActivity { stopped: Vec::new(), trips: Vec::new(), next: listed.next };
    for row in listed.rows {
        match row {
            GuardRow::Stopped(stopped) => guard.stopped.push(stopped),
            GuardRow::Trip(trip) => guard.trips.push(trip),
        }
    }
    Ok(guard)
}

/// Joins several names into a unique key.
fn named(names: &impl Serialize) -> String {
    serde_json::to_string(names).unwrap_or_default()
}
