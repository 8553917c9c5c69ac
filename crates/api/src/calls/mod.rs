//! Calls over plain HTTP: the gateway runs the tool of a call envelope and returns its result.
//!
//! | module | purpose |
//! | --- | --- |
//! | `call_request` | reads and authorizes the envelope in a request |
//! | `call_response` | builds the response for the result of a call |
//! | `stream` | sends a call as events while it runs |
//! | `host` | calls whose tool the host runs: `begin`, `report`, `heartbeat`, `cancel`, `answered` |
//! | `call_ids` | unguessable ids for those calls |

mod call_ids;
mod call_request;
mod call_response;
mod host;
mod stream;

pub(crate) use call_ids::CallIdSeal;
pub use call_request::CallQuery;
pub(crate) use call_request::apply_identity;
pub use host::{
    AnsweredCallRequest, AnsweredCallResponse, CancelResponse, Heartbeat, HeartbeatResponse, HostAnswer, HostCallStep, HostFailure,
    HostFailureSource, HostReport,
};
pub(crate) use host::{answered, begin, cancel, heartbeat, report};

use axum::extract::{Request, State as Shared};
use http::Method;
use steadfast::call::CallOptions;
use steadfast::call::CallerPatience;
use steadfast_core::call::EqualCallPolicy;
use steadfast_core::envelope::{CallEnvelope, ResultEnvelope};
use steadfast_executor::ResolvedTool;
use steadfast_gateway::ReadMethod;

use self::call_request::HeaderKey;
use crate::access::Permission;
use crate::encoding::{EVENTS, accepts};
use crate::endpoint::Endpoint;
use crate::results::reader;
use crate::{HandlerResult, State};

use self::stream::ResultShortener;

/// The endpoints for calls.
pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(Method::POST, "/v1/calls", "call", "Calls a tool", Permission::Caller, call)
            .takes_query::<CallQuery>()
            .reads_header_as::<HeaderKey>("Idempotency-Key", KEY)
            .reads_header(
                "Accept",
                "`text/event-stream` for events: `attempt`, `progress`, and a final `result`",
            )
            .takes::<CallEnvelope>()
            .or_contradiction(CONTRADICTION)
            .gives_call_result::<ResultEnvelope>()
            .gives_text("the events of the call", EVENTS),
        Endpoint::new(
            Method::POST,
            "/v1/calls/begin",
            "beginCall",
            "Begins a call of a tool that the host runs",
            Permission::Caller,
            begin,
        )
        .takes_query::<CallQuery>()
        .reads_header_as::<HeaderKey>("Idempotency-Key", KEY)
        .takes::<CallEnvelope>()
        .or_contradiction(CONTRADICTION)
        .gives_call_result::<HostCallStep>()
        .or_unavailable(),
        Endpoint::new(
            Method::POST,
            "/v1/calls/{id}/report",
            "reportCall",
            "Reports the outcome of an attempt",
            Permission::Caller,
            report,
        )
        .takes::<HostReport>()
        .gives_call_result::<HostCallStep>()
        .or_unavailable()
        .or_conflict(),
        Endpoint::new(
            Method::POST,
            "/v1/calls/{id}/heartbeat",
            "heartbeat",
            "Sends a heartbeat of an attempt",
            Permission::Caller,
            heartbeat,
        )
        .takes::<Heartbeat>()
        .gives::<HeartbeatResponse>("the heartbeat is recorded")
        .or_conflict(),
        Endpoint::new(
            Method::POST,
            "/v1/calls/{id}/cancel",
            "cancelCall",
            "Cancels a call",
            Permission::Caller,
            cancel,
        )
        .gives::<CancelResponse>("the cancellation is accepted"),
        Endpoint::new(
            Method::POST,
            "/v1/calls/answered",
            "answeredCall",
            "Counts a call that the host answered itself",
            Permission::Caller,
            answered,
        )
        .takes_query::<CallQuery>()
        .takes::<AnsweredCallRequest>()
        .or_contradiction(CONTRADICTION)
        .gives::<AnsweredCallResponse>("the call is counted"),
    ]
}

const CONTRADICTION: &str =
    "the header and the envelope have different idempotency keys, or a strict request has unknown fields";
const KEY: &str = "the idempotency key, as an alternative to `payload.idempotencyKey`";

/// `POST /v1/calls`. If the client disconnects before the answer, the engine decides about the call.
pub(crate) async fn call(Shared(State(inner)): Shared<State>, request: Request) -> HandlerResult {
    let engine = inner.steadfast.engine();
    let (request, mut envelope) = call_request::call(engine, request).await?;
    let tool = envelope.tool();
    let found = inner.gateway.tools.find(&envelope).await;
    let found = found.unwrap_or_else(|| ResolvedTool::unknown_tool(&tool));
    found.complete(&mut envelope);
    let ResolvedTool { run, info, reads, .. } = found;
    let registry = Some(inner.gateway.tools.clone());
    let (large, reader) = (&inner.gateway.large_results, reader(&envelope.target));
    if accepts(&request.headers, EVENTS) {
        let options = CallOptions { tool: info, reads, registry, ..streaming_options() };
        let results = ResultShortener { large: large.clone(), reader };
        return Ok(stream::answer(engine, envelope, run, options, request, results));
    }
    let options = CallOptions { tool: info, reads, registry, ..keyless_as_over_mcp() };
    let mut called = engine.call_with(envelope, run, options).await;
    large.shorten(&mut called, &reader, ReadMethod::Http, engine.now()).await;
    Ok(call_response::answer(engine, called, request))
}

/// Options for calls without an idempotency key. Equal calls of one session are deduplicated as over MCP. Every
/// envelope has a session key, so such calls never come from unrelated clients.
fn keyless_as_over_mcp() -> CallOptions {
    CallOptions { equal_calls: EqualCallPolicy::Joined, ..CallOptions::default() }
}

/// Options for a call whose client gets events while it runs.
fn streaming_options() -> CallOptions {
    CallOptions { waits: CallerPatience::UntilDone, ..keyless_as_over_mcp() }
}
