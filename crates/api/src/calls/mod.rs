//! Calls over plain HTTP: the gateway runs the tool of a call envelope and returns its result.
//!
//! | module | purpose |
//! | --- | --- |
//! | `call_request` | reads and authorizes the envelope in a request |
//! | `call_response` | builds the response for the result of a call |
//! | `stream` | sends a call as events while it runs |
//! | `host` | calls whose tool the host runs: `begin`, `report`, `heartbeat`, `cancel` |
//! | `call_ids` | unguessable ids for those calls |

mod host;
mod read;
mod said;
mod seal;
mod stream;

pub use host::{Beat, Beating, Failed, HostReport, How, Next, Withdrawn};
pub(crate) use host::{begin, cancel, heartbeat, report};
pub use read::CallAsked;
pub(crate) use read::{bound_tenant, make_own};
pub(crate) use seal::Seal;

use axum::extract::{Request, State as Shared};
use http::Method;
use steadfast::CallOptions;
use steadfast::path::Waits;
use steadfast_core::call::EqualCalls;
use steadfast_core::envelope::{CallEnvelope, ResultEnvelope};
use steadfast_executor::Found;
use steadfast_gateway::ReadBy;

use self::read::HeaderKey;
use crate::access::Who;
use crate::answer::{EVENTS, accepts};
use crate::endpoint::Endpoint;
use crate::results::reader;
use crate::{Answered, State};

use self::stream::Results;

/// The endpoints for calls.
pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(Method::POST, "/v1/calls", "call", "Calls a tool", Who::Caller, call)
            .asks::<CallAsked>()
            .heeds_only::<HeaderKey>("Idempotency-Key", KEY)
            .heeds("Accept", "`text/event-stream` for events: `attempt`, `progress`, and a final `result`")
            .takes::<CallEnvelope>()
            .or_contradiction(CONTRADICTION)
            .gives_what_came_of_a_call::<ResultEnvelope>()
            .gives_text("the events of the call", EVENTS),
        Endpoint::new(
            Method::POST,
            "/v1/calls/begin",
            "beginCall",
            "Begins a call of a tool that the host runs",
            Who::Caller,
            begin,
        )
        .asks::<CallAsked>()
        .heeds_only::<HeaderKey>("Idempotency-Key", KEY)
        .takes::<CallEnvelope>()
        .or_contradiction(CONTRADICTION)
        .gives_what_came_of_a_call::<Next>()
        .or_unavailable(),
        Endpoint::new(
            Method::POST,
            "/v1/calls/{id}/report",
            "reportCall",
            "Reports the outcome of an attempt",
            Who::Caller,
            report,
        )
        .takes::<HostReport>()
        .gives_what_came_of_a_call::<Next>()
        .or_unavailable()
        .or_conflict(),
        Endpoint::new(
            Method::POST,
            "/v1/calls/{id}/heartbeat",
            "heartbeat",
            "Sends a heartbeat of an attempt",
            Who::Caller,
            heartbeat,
        )
        .takes::<Beat>()
        .gives::<Beating>("the heartbeat is recorded")
        .or_conflict(),
        Endpoint::new(
            Method::POST,
            "/v1/calls/{id}/cancel",
            "cancelCall",
            "Cancels a call",
            Who::Caller,
            cancel,
        )
        .gives::<Withdrawn>("the cancellation is accepted"),
    ]
}

const CONTRADICTION: &str =
    "the header and the envelope have different idempotency keys, or a strict request has unknown fields";
const KEY: &str = "the idempotency key, as an alternative to `payload.idempotencyKey`";

/// `POST /v1/calls`. If the client disconnects before the answer, the engine decides about the call.
pub(crate) async fn call(Shared(State(inner)): Shared<State>, request: Request) -> Answered {
    let engine = inner.steadfast.engine();
    let (wanted, mut envelope) = read::call(engine, request).await?;
    let tool = envelope.tool();
    let found = inner.around.tools.find(&envelope).await;
    let found = found.unwrap_or_else(|| Found::nobody(&tool));
    found.complete(&mut envelope);
    let Found { run, info, reads, .. } = found;
    let shelf = Some(inner.around.tools.clone());
    let (large, reader) = (&inner.around.large_results, reader(&envelope.target));
    if accepts(&wanted.headers, EVENTS) {
        let options = CallOptions { tool: info, reads, shelf, ..patient() };
        let results = Results { large: large.clone(), reader };
        return Ok(stream::answer(engine, envelope, run, options, wanted, results));
    }
    let options = CallOptions { tool: info, reads, shelf, ..keyless_as_over_mcp() };
    let mut called = engine.call_with(envelope, run, options).await;
    large.shorten(&mut called, &reader, ReadBy::Http, engine.now()).await;
    Ok(said::answer(engine, called, wanted))
}

/// Options for calls without an idempotency key. Equal calls of one session are deduplicated as over MCP. Every
/// envelope has a session key, so such calls never come from unrelated clients.
fn keyless_as_over_mcp() -> CallOptions {
    CallOptions { equal_calls: EqualCalls::Joined, ..CallOptions::default() }
}

/// Options for a call whose client gets events while it runs.
fn patient() -> CallOptions {
    CallOptions { waits: Waits::AsLongAsItTakes, ..keyless_as_over_mcp() }
}
