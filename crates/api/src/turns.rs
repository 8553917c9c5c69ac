//! Turns over plain HTTP: runs the calls of a plan and returns the results so far at the deadline.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts as _, Request, State as Shared};
use bytes::Bytes;
use futures_util::stream;
use http::{Method, StatusCode};
use schemars::JsonSchema;
use serde::Serialize;
use steadfast_core::envelope::{CallerIdentity, TurnEnvelope};
use steadfast_executor::{TurnOptions, TurnRejection, TurnResponse};
use steadfast_gateway::ReadMethod;
use steadfast_turn::trace::TraceEvent;
use steadfast_turn::{TurnLimits, TurnPlan};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

use crate::access::{DefaultActor, Permission, Requester};
use crate::calls::{CallQuery, apply_identity};
use crate::encoding::{EVENTS, KEEP_ALIVE_INTERVAL, accepts, event, json as answer, whole};
use crate::endpoint::Endpoint;
use crate::extractors::{PathParam, QueryParams, body};
use crate::problem::ApiProblem;
use crate::queries::EventView;
use crate::results::reader;
use crate::{ApiState, HandlerResult, State};

/// The endpoints for turns.
pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::POST,
            "/v1/turns",
            "runTurn",
            "Runs several calls that depend on each other, and returns the results at the deadline",
            Permission::Caller,
            run,
        )
        .takes_query::<CallQuery>()
        .reads_header(
            "Accept",
            "`text/event-stream` for events: `event` for each event, and a final `result`",
        )
        .takes::<TurnEnvelope>()
        .gives::<TurnResponse>("the turn has ended, with its `status` and the `outcome` of each call")
        .gives_text("the events of the turn", EVENTS)
        .or_contradiction("the plan is inconsistent, or a strict request has unknown fields")
        .or_conflict()
        .or_overloaded()
        .reads_the_store(),
        Endpoint::new(
            Method::POST,
            "/v1/turns/{id}/cancel",
            "cancelTurn",
            "Cancels a turn that runs in this process, by its name or its trace id",
            Permission::Caller,
            cancel,
        )
        .gives::<CancelTurnResponse>("no further call starts, and calls in flight are asked to stop"),
    ]
}

/// The response to the cancellation of a turn.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(crate) struct CancelTurnResponse {
    /// The number of turns with this name or trace that were cancelled.
    pub withdrawn: usize,
}

/// `POST /v1/turns`. If the client disconnects, the engine decides about calls in flight. No other call of the turn
/// starts until the turn is submitted again.
async fn run(Shared(State(inner)): Shared<State>, request: Request) -> HandlerResult {
    let accepts_events = accepts(request.headers(), EVENTS);
    let (plan, options) = read(request).await?;
    let plan = Arc::new(plan);
    if accepts_events {
        return follow(inner, plan, options).await;
    }
    Ok(answer(StatusCode::OK, &turned(&inner, plan, options).await?))
}

/// Runs a turn and shortens large results.
async fn turned(
    inner: &ApiState,
    plan: Arc<TurnPlan>,
    options: TurnOptions,
) -> Result<TurnResponse, TurnRejection> {
    let (engine, reader) = (inner.steadfast.engine(), reader(&options.target));
    let mut turned = engine.turn(plan, inner.gateway.tools.clone(), options).await?;
    let large = &inner.gateway.large_results;
    large.shorten_turn(&mut turned, &reader, ReadMethod::Http, engine.now()).await;
    Ok(turned)
}

/// Reads the plan of a request and its options.
async fn read(request: Request) -> Result<(TurnPlan, TurnOptions), ApiProblem> {
    let (mut parts, content) = request.into_parts();
    let QueryParams(query) = QueryParams::<CallQuery>::from_request_parts(&mut parts, &()).await?;
    let text = body(content, steadfast_json::JsonLimits::ENVELOPE.bytes).await?;
    let caller = parts.extensions.remove::<Requester>().unwrap_or(Requester::Unauthenticated);
    let DefaultActor(sender) = parts.extensions.remove::<DefaultActor>().unwrap_or_default();
    let envelope = TurnEnvelope::parse_from(&text, query.unknown_fields(), sender.as_ref())
        .map_err(|error| ApiProblem::wrong_envelope(&error))?;
    let TurnEnvelope { mut target, control, trace, plan, .. } = envelope;
    apply_identity(&caller, &mut target)?;
    let plan = TurnPlan::parse(plan.as_str().as_bytes(), &TurnLimits::DEFAULT)
        .map_err(|errors| ApiProblem::wrong_plan(&errors))?;
    Ok((plan, TurnOptions { control, trace, ..TurnOptions::of(target) }))
}

impl From<TurnRejection> for ApiProblem {
    fn from(refused: TurnRejection) -> Self {
        let message = refused.to_string();
        match refused {
            TurnRejection::InFlight(wait) => {
                Self::new(StatusCode::CONFLICT, "in_flight", message).after(wait)
            }
            TurnRejection::Overloaded => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "overloaded", message).after(RETRY_DELAY)
            }
            TurnRejection::Store(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", message)
            }
            _ => Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message),
        }
    }
}

const RETRY_DELAY: std::time::Duration = std::time::Duration::from_secs(1);

/// `POST /v1/turns/{id}/cancel`. A client can cancel its own turns only.
async fn cancel(
    Shared(State(inner)): Shared<State>,
    caller: axum::Extension<Requester>,
    PathParam(id): PathParam,
) -> HandlerResult {
    let is_of_caller = |target: &CallerIdentity| match &*caller {
        Requester::Client(own) => own.actor == target.actor_id && own.tenant == target.tenant_id,
        Requester::Admin | Requester::Viewer(_) | Requester::Local | Requester::Unauthenticated => true,
    };
    match inner.steadfast.engine().cancel_turn(&id, is_of_caller) {
        0 => Err(ApiProblem::no_such("turn that runs here with the name or trace", &id)),
        withdrawn => Ok(answer(StatusCode::OK, &CancelTurnResponse { withdrawn })),
    }
}

/// Runs a turn as an event stream. A refused turn gets an ordinary error response.
async fn follow(inner: Arc<ApiState>, plan: Arc<TurnPlan>, mut options: TurnOptions) -> HandlerResult {
    let (sender, mut receiver) = unbounded_channel();
    options.follower = Some(sender);
    // In its own task: a client that reads slowly must not delay the turn.
    let mut turn = TurnTask(tokio::spawn(async move { turned(&inner, plan, options).await }));
    // A refused turn has no first event.
    let Some(first) = receiver.recv().await else {
        return match (&mut turn.0).await {
            Ok(turned) => Ok(answer(StatusCode::OK, &turned?)),
            Err(_) => Err(ApiProblem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "unavailable",
                "the turn could not start",
            )),
        };
    };
    let following = TurnEventStream { first: Some(first), events: receiver, turn: Some(turn) };
    let events = stream::unfold(following, |mut following| async move {
        let event = following.next().await?;
        Some((Ok::<_, Infallible>(event), following))
    });
    Ok(whole(StatusCode::OK, EVENTS, Body::from_stream(events)))
}

/// The event stream of a turn.
struct TurnEventStream {
    first: Option<TraceEvent>,
    events: UnboundedReceiver<TraceEvent>,
    /// `None` after the result was sent.
    turn: Option<TurnTask>,
}

/// The task of a turn. If the client disconnects it is aborted.
struct TurnTask(JoinHandle<Result<TurnResponse, TurnRejection>>);

impl Drop for TurnTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl TurnEventStream {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(event("event", &EventView::from(first)));
        }
        let turn = &mut self.turn.as_mut()?.0;
        tokio::select! {
            biased;
            Some(trace_event) = self.events.recv() => Some(event("event", &EventView::from(trace_event))),
            turned = turn => {
                self.turn = None;
                // A turn that panicked has no result, and its stream just ends.
                turned.ok()?.ok().map(|turned| event("result", &turned))
            }
            () = tokio::time::sleep(KEEP_ALIVE_INTERVAL) => Some(Bytes::from_static(b":\n\n")),
        }
    }
}
