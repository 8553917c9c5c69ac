//! How tools stand: breakers, trust, the guard, and what waits for a person.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use steadfast::Engine;
use steadfast::approval::Parked;
use steadfast_core::Timestamp;
use steadfast_core::breaker::State;
use steadfast_core::id::{Digest, Domain, ModelId, Namespace, SessionKey, TenantId, ToolName, ToolRef};
use steadfast_core::trust::{
    Escalation, Level, Scope, Signature, ToolReliabilityState, TrustState, TrustStatus,
};
use steadfast_executor::{BreakerKey, BreakerView, DomainView, GuardView, ModelScore, StoppedSession, Trip};

use super::paging::{NamedTool, asks, fits};
use super::view::view;

asks! {
    /// Which breakers are asked for.
    BreakersAsked by BreakerKey {
        /// Those of this tenant; otherwise those that belong to none.
        tenant: TenantId,
        /// That of this tool: `namespace/tool`.
        tool: NamedTool,
        /// Those of the tools of this group or server.
        namespace: Namespace,
        /// Those that stand so.
        state: State,
    }
}

/// A page of breakers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Breakers {
    /// Those of tools first, in the order of their keys.
    pub breakers: Vec<BreakerView>,
    /// What to ask for `after` next; nothing at the end.
    pub next: Option<String>,
}

/// The breakers that anything is known of.
pub async fn breakers(engine: &Engine, asked: &BreakersAsked) -> Result<Breakers, String> {
    let page = asked.page()?;
    let all = engine.breakers(asked.tenant.as_ref()).await.into_iter().filter(|breaker| {
        let tool = match &breaker.key {
            BreakerKey::Tool(tool) => Some(tool),
            BreakerKey::Dependency(_) => None,
        };
        fits(asked.tool.as_ref().map(|named| &named.0), tool)
            && fits(asked.namespace.as_ref(), tool.map(|tool| &tool.namespace))
            && fits(asked.state.as_ref(), Some(&breaker.view.state))
    });
    let listed = page.of(all, |breaker| breaker.key.clone());
    Ok(Breakers { breakers: listed.rows, next: listed.next })
}

asks! {
    /// Whose trust is asked for.
    TrustAsked by String {
        /// That of this tenant; otherwise what belongs to none.
        tenant: TenantId,
        /// Of this tool: `namespace/tool`.
        tool: NamedTool,
        /// Of the tools of this group or server.
        namespace: Namespace,
        /// Those that stand so.
        state: TrustState,
    }
}

/// A page of tools, signatures and domains that are not simply trusted.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Trust {
    /// Each as it stands.
    pub trust: Vec<TrustView>,
    /// What to ask for `after` next; nothing at the end.
    pub next: Option<String>,
}

/// Whoever is not simply trusted.
pub fn trust(engine: &Engine, asked: &TrustAsked) -> Result<Trust, String> {
    let page = asked.page()?;
    let all =
        engine.trust(asked.tenant.as_ref()).into_iter().filter(|TrustStatus { standing: one, .. }| {
            asked.tool.as_ref().is_none_or(|NamedTool(tool)| {
                one.tool().is_some_and(|one| {
                    one.tool == tool.tool && (one.namespace == tool.namespace || one.is_in_any_namespace())
                })
            }) && fits(asked.namespace.as_ref(), one.plugin_name.as_ref())
                && fits(asked.state.as_ref(), Some(&one.state))
        });
    let listed = page.of(all, |TrustStatus { standing: one, .. }| {
        named(&(&one.plugin_name, &one.tool_name, &one.signature, &one.domain, one.scope))
    });
    Ok(Trust { trust: listed.rows.into_iter().map(TrustView::from).collect(), next: listed.next })
}

/// One tool, signature or domain that is not simply trusted, as it stands under the rule that judges it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrustView {
    /// Its state and counters.
    #[serde(flatten)]
    pub standing: TrustCounters,
    /// When it recovers by itself, if it does.
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
        /// What the entry is about: a tool, a signature or a domain.
        scope: Scope,
        /// The trust state.
        state: TrustState,
        /// Failures counted since the trouble began.
        failures_in_window: u32,
        /// Failures since the last success, counted or not.
        consecutive_failures: u32,
        /// Successes since recovery began.
        successes_since_recovery: u32,
        /// Successes that restore trust.
        successes_needed: u32,
        /// Failures that bring a block nearer.
        failures_while_escalated: u32,
        /// `true` if it can recover without a person.
        recoverable: bool,
    } {
        /// The tool.
        tool_name: ToolName,
        /// The plugin or server that it belongs to; `*`, or nothing, for the tool of this name wherever it belongs.
        plugin_name: Namespace,
        /// The signature.
        signature: Signature,
        /// The host or server.
        domain: Domain,
        /// The last failure, counted or not.
        last_failure: Timestamp,
        /// The last success.
        last_success: Timestamp,
        /// When trust was lost.
        escalated_at: Timestamp,
        /// Why.
        escalation_reason: String,
        /// The end of the escalation, before the cool-down is looked at.
        escalation_expires: Timestamp,
        /// When recovery began.
        recovery_started: Timestamp,
        /// The last failure that counted; the cool-down runs from there.
        last_counted_failure: Timestamp,
    }
}

asks! {
    /// Which domains are asked for.
    DomainsAsked by String {
        /// As this tenant uses them; otherwise as those do who belong to none.
        tenant: TenantId,
        /// This host or server.
        domain: Domain,
        /// Those that have failed, or those that have not.
        failed: bool,
    }
}

/// A page of hosts and servers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Domains {
    /// In the order of their names.
    pub domains: Vec<DomainView>,
    /// What to ask for `after` next; nothing at the end.
    pub next: Option<String>,
}

/// Lists how calls to hosts and servers went.
pub fn domains(engine: &Engine, asked: &DomainsAsked) -> Result<Domains, String> {
    let page = asked.page()?;
    let all = engine.domains(asked.tenant.as_ref()).into_iter().filter(|view| {
        fits(asked.domain.as_ref(), Some(&view.domain))
            && fits(asked.failed.as_ref(), Some(&(view.failures > 0)))
    });
    let listed = page.of(all, |view| view.domain.to_string());
    Ok(Domains { domains: listed.rows, next: listed.next })
}

asks! {
    /// Which models are asked for.
    ModelsAsked by String {
        /// As this tenant uses them; otherwise as those do who belong to none.
        tenant: TenantId,
        /// This model.
        model: ModelId,
        /// How they do with this tool: `namespace/tool`.
        tool: NamedTool,
    }
}

/// A page of scores of models.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Models {
    /// One for each model and tool, in the order of their names.
    pub models: Vec<ModelScore>,
    /// What to ask for `after` next; nothing at the end.
    pub next: Option<String>,
}

/// Lists how well models do with tools.
pub fn models(engine: &Engine, asked: &ModelsAsked) -> Result<Models, String> {
    let page = asked.page()?;
    let all = engine.model_scores(asked.tenant.as_ref()).into_iter().filter(|one| {
        fits(asked.model.as_ref(), one.model.as_ref())
            && fits(asked.tool.as_ref().map(|named| &named.0), one.tool.as_ref())
    });
    let listed = page.of(all, |one| named(&(&one.model, &one.tool)));
    Ok(Models { models: listed.rows, next: listed.next })
}

asks! {
    /// Which requests are asked for.
    ApprovalsAsked by u64 {
        /// Those of this tenant; otherwise those that belong to none.
        tenant: TenantId,
        /// For this tool: `namespace/tool`.
        tool: NamedTool,
        /// Of this conversation.
        session: SessionKey,
    }
}

/// A page of requests that wait for a person.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Approvals {
    /// The oldest first.
    pub approvals: Vec<ApprovalView>,
    /// What to ask for `after` next; nothing at the end.
    pub next: Option<String>,
}

/// A request that waits for an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ApprovalView {
    /// Its number, by which it is answered.
    pub id: u64,
    /// The request.
    #[serde(flatten)]
    pub request: ApprovalRequest,
}

view! {
    /// The request of a call that needs approval.
    ApprovalRequest of Parked {
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
        askers: u32,
        /// When the first of them was made.
        asked_at: Timestamp,
        /// When the last of them was made.
        last_asked: Timestamp,
        /// When it is dropped unanswered.
        expires: Timestamp,
    } {
        /// The conversation.
        session: SessionKey,
        /// The arguments as far as they may be shown.
        shown: Arc<str>,
    }
}

view! {
    /// The text of a prompt for approval.
    ApprovalPrompt of Escalation {
        /// The state that asks.
        state: TrustState,
        /// Why.
        reason: String,
        /// Failures counted since the trouble began.
        failures: u32,
        /// In what window, in words.
        window: String,
        /// How trust can be restored, in words.
        recovery_hint: String,
        /// `true` if recovery starts only after an operator approves it.
        waits_for_recovery: bool,
        /// One line for the head of the prompt.
        summary: String,
        /// Lines of warning.
        warnings: Vec<String>,
        /// The severity of the prompt.
        level: Level,
        /// How the lines are to be shown; hosts that can show diffs and code need to know that this is neither.
        format_hint: String,
    } {
        /// The host or server that has lost trust, where it is not the tool itself.
        domain: Domain,
    }
}

/// What waits for a person.
pub fn approvals(engine: &Engine, asked: &ApprovalsAsked) -> Result<Approvals, String> {
    let page = asked.page()?;
    let all = engine.approvals(asked.tenant.as_ref()).into_iter().filter(|(_, request)| {
        fits(asked.tool.as_ref().map(|named| &named.0), Some(&request.tool))
            && fits(asked.session.as_ref(), request.session.as_ref())
    });
    let all = all.map(|(id, request)| ApprovalView { id: id.0, request: request.into() });
    let listed = page.of(all, |waiting| waiting.id);
    Ok(Approvals { approvals: listed.rows, next: listed.next })
}

asks! {
    /// What is asked of the guard.
    GuardAsked by String {
        /// Conversations of this tenant; otherwise those that belong to none.
        tenant: TenantId,
        /// What is about this tool: `namespace/tool`.
        tool: NamedTool,
        /// What is in this conversation.
        session: SessionKey,
    }
}

/// A page of what the guard does. Whoever is stopped comes first, then when it acted; a page may have some of both.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Guard {
    /// Who is stopped now, in the order of their conversations.
    pub stopped: Vec<StoppedSession>,
    /// When a guard of this process last acted, those last that began last.
    pub trips: Vec<Trip>,
    /// What to ask for `after` next; nothing at the end.
    pub next: Option<String>,
}

/// One row of the two lists.
enum Guarded {
    Stopped(StoppedSession),
    Trip(Trip),
}

/// Whom the guard stops, and when it acted.
pub fn guard(engine: &Engine, asked: &GuardAsked) -> Result<Guard, String> {
    let page = asked.page()?;
    let GuardView { stopped, trips } = engine.guard(asked.tenant.as_ref());
    let tool = asked.tool.as_ref().map(|named| &named.0);
    let session = asked.session.as_ref();
    let stopped = stopped
        .into_iter()
        .filter(|one| fits(tool, one.stopped.tool.as_ref()) && fits(session, one.session.as_ref()));
    let trips =
        trips.into_iter().filter(|trip| fits(tool, Some(&trip.tool)) && fits(session, trip.session.as_ref()));
    let listed = page.of(stopped.map(Guarded::Stopped).chain(trips.map(Guarded::Trip)), |row| match row {
        // Since when it is stopped may change while it is.
        Guarded::Stopped(StoppedSession { session, stopped }) => {
            let what = (session, &stopped.tool, &stopped.arguments, &stopped.turn, stopped.layer);
            format!("stopped {}", named(&what))
        }
        // When it first happened does not, and has one length.
        Guarded::Trip(trip) => {
            format!(
                "trip {:020} {}",
                trip.at_ms.as_millis(),
                named(&(&trip.session, &trip.tool, trip.digest))
            )
        }
    });
    let mut guard = Guard { stopped: Vec::new(), trips: Vec::new(), next: listed.next };
    for row in listed.rows {
        match row {
            Guarded::Stopped(stopped) => guard.stopped.push(stopped),
            Guarded::Trip(trip) => guard.trips.push(trip),
        }
    }
    Ok(guard)
}

/// Several names as one, which is that of no other several.
fn named(names: &impl Serialize) -> String {
    serde_json::to_string(names).unwrap_or_default()
}
