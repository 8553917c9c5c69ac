//! How tools stand: breakers, trust, the guard, and what waits for a person.

use schemars::JsonSchema;
use serde::Serialize;
use steadfast::Engine;
use steadfast::approval::Parked;
use steadfast_core::breaker::State;
use steadfast_core::id::{Domain, ModelId, Namespace, SessionKey, TenantId};
use steadfast_core::trust::{TrustState, TrustStatus};
use steadfast_executor::{BreakerKey, BreakerView, DomainView, GuardView, ModelScore, StoppedSession, Trip};

use super::paging::{NamedTool, asks, fits};

asks! {
    /// Which breakers are asked for.
    BreakersAsked {
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
    let page = asked.page::<BreakerKey>()?;
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
    TrustAsked {
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
    pub trust: Vec<TrustStatus>,
    /// What to ask for `after` next; nothing at the end.
    pub next: Option<String>,
}

/// Whoever is not simply trusted.
pub fn trust(engine: &Engine, asked: &TrustAsked) -> Result<Trust, String> {
    let page = asked.page::<String>()?;
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
    Ok(Trust { trust: listed.rows, next: listed.next })
}

asks! {
    /// Which domains are asked for.
    DomainsAsked {
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
    let page = asked.page::<String>()?;
    let all = engine.domains(asked.tenant.as_ref()).into_iter().filter(|view| {
        fits(asked.domain.as_ref(), Some(&view.domain))
            && fits(asked.failed.as_ref(), Some(&(view.failures > 0)))
    });
    let listed = page.of(all, |view| view.domain.to_string());
    Ok(Domains { domains: listed.rows, next: listed.next })
}

asks! {
    /// Which models are asked for.
    ModelsAsked {
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
    let page = asked.page::<String>()?;
    let all = engine.model_scores(asked.tenant.as_ref()).into_iter().filter(|one| {
        fits(asked.model.as_ref(), one.model.as_ref())
            && fits(asked.tool.as_ref().map(|named| &named.0), one.tool.as_ref())
    });
    let listed = page.of(all, |one| named(&(&one.model, &one.tool)));
    Ok(Models { models: listed.rows, next: listed.next })
}

asks! {
    /// Which requests are asked for.
    ApprovalsAsked {
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
    pub approvals: Vec<Waiting>,
    /// What to ask for `after` next; nothing at the end.
    pub next: Option<String>,
}

/// One of them.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Waiting {
    /// Its number, by which it is answered.
    pub id: u64,
    /// What is asked.
    #[serde(flatten)]
    pub request: Parked,
}

/// What waits for a person.
pub fn approvals(engine: &Engine, asked: &ApprovalsAsked) -> Result<Approvals, String> {
    let page = asked.page::<u64>()?;
    let all = engine.approvals(asked.tenant.as_ref()).into_iter().filter(|(_, request)| {
        fits(asked.tool.as_ref().map(|named| &named.0), Some(&request.tool))
            && fits(asked.session.as_ref(), request.session.as_ref())
    });
    let listed =
        page.of(all.map(|(id, request)| Waiting { id: id.0, request }), |waiting: &Waiting| waiting.id);
    Ok(Approvals { approvals: listed.rows, next: listed.next })
}

asks! {
    /// What is asked of the guard.
    GuardAsked {
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
    let page = asked.page::<String>()?;
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
