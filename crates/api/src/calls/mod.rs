//! Calls over plain HTTP: an envelope comes in, we run the tool, and what it came to goes out.
//!
//! | file | what it does |
//! | --- | --- |
//! | `read` | from a request to an envelope that its caller may send |
//! | `said` | from what a call came to, to status, headers and body |
//! | `stream` | the same as events while the call is under way |
//! | `host` | calls whose tool the host runs: `begin`, `report`, `heartbeat`, `cancel` |
//! | `seal` | names for those calls that nobody guesses |

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

/// What agents ask for to have tools run.
pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::POST,
            "/v1/calls",
            "call",
            "Runs a tool as often as it should be run",
            Who::Caller,
            call,
        )
        .asks::<CallAsked>()
        .heeds_only::<HeaderKey>("Idempotency-Key", KEY)
        .heeds("Accept", "`text/event-stream` for events: `attempt`, `progress`, and at the end `result`")
        .takes::<CallEnvelope>()
        .or_contradiction(CONTRADICTION)
        .gives_what_came_of_a_call::<ResultEnvelope>()
        .gives_text("the call as events", EVENTS),
        Endpoint::new(
            Method::POST,
            "/v1/calls/begin",
            "beginCall",
            "Asks whether a tool of the host's may run",
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
            "Tells what came of an attempt",
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
            "Shows that an attempt is still at work",
            Who::Caller,
            heartbeat,
        )
        .takes::<Beat>()
        .gives::<Beating>("it counts")
        .or_conflict(),
        Endpoint::new(
            Method::POST,
            "/v1/calls/{id}/cancel",
            "cancelCall",
            "Withdraws a call",
            Who::Caller,
            cancel,
        )
        .gives::<Withdrawn>("it is withdrawn"),
    ]
}

const CONTRADICTION: &str =
    "header and envelope give different keys, or a strict request has fields that are not known";
const KEY: &str = "the same as `payload.idempotencyKey`: same key, same call";

/// `POST /v1/calls`. Whoever goes away before the answer leaves the call to the engine, which decides what that means.
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

/// Without a key, equal calls of one conversation are recognised by the same rules as over MCP. Every envelope names its
/// conversation, so they are never those of strangers.
fn keyless_as_over_mcp() -> CallOptions {
    CallOptions { equal_calls: EqualCalls::Joined, ..CallOptions::default() }
}

/// A call whose client hears of it meanwhile.
fn patient() -> CallOptions {
    CallOptions { waits: Waits::AsLongAsItTakes, ..keyless_as_over_mcp() }
}
