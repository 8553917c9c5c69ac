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
pub(crate) use read::bound_tenant;
pub(crate) use seal::Seal;

use axum::extract::{Request, State as Shared};
use futures_util::FutureExt as _;
use http::header::ACCEPT;
use http::{HeaderMap, Method};
use steadfast::path::Waits;
use steadfast::{Attempt, CallOptions};
use steadfast_core::classify::{Fault, Source};
use steadfast_core::envelope::{CallEnvelope, ResultEnvelope};
use steadfast_core::id::ToolRef;

use crate::access::Who;
use crate::answer::EVENTS;
use crate::endpoint::Endpoint;
use crate::shelf::{Found, Run};
use crate::{Answered, State};

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
        .heeds("Idempotency-Key", KEY)
        .heeds("Accept", "`text/event-stream` for events: `attempt`, `progress`, and at the end `result`")
        .takes::<CallEnvelope>()
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
        .heeds("Idempotency-Key", KEY)
        .takes::<CallEnvelope>()
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

const KEY: &str = "the same as `payload.idempotencyKey`: same key, same call";

/// `POST /v1/calls`. Whoever goes away before the answer leaves the call to the engine, which decides what that means.
pub(crate) async fn call(Shared(State(inner)): Shared<State>, request: Request) -> Answered {
    let engine = inner.steadfast.engine();
    let (wanted, mut envelope) = read::call(engine, request).await?;
    let tool = envelope.tool();
    let found = inner.around.tools.find(&envelope).await;
    let Found { run, domain, info } = found.unwrap_or_else(|| nobody(&tool));
    if envelope.target.domain.is_none() {
        envelope.target.domain = domain;
    }
    if wants_events(&wanted.headers) {
        let options = CallOptions { tool: info, ..patient() };
        return Ok(stream::answer(engine, envelope, run, options, wanted));
    }
    let options = CallOptions { tool: info, ..CallOptions::default() };
    let called = engine.call_with(envelope, run, options).await;
    Ok(said::answer(engine, called, wanted))
}

/// Whether the client reads events.
fn wants_events(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted
        .flat_map(|value| value.split(','))
        .any(|kind| kind.split(';').next().is_some_and(|kind| kind.trim() == EVENTS))
}

/// Stands for a tool that nobody has. The call goes the way of all calls, so that a model which asks for it again and again
/// is stopped like any other that loops.
fn nobody(tool: &ToolRef) -> Found {
    let why = format!(
        "Unknown tool: {tool}. Nobody here has it: tools of [http_tools.NAME] are `http/NAME`, those of [command_tools.NAME] are `command/NAME`, those of a server are `SERVER/NAME`"
    );
    let run: Run = Box::new(move |_: Attempt| {
        let fault = Fault::new(Source::JsonRpc { code: METHOD_NOT_FOUND }, why.clone());
        async move { Err(fault.into()) }.boxed()
    });
    Found { run, domain: None, info: None }
}

/// Which proves that nothing ran.
const METHOD_NOT_FOUND: i64 = -32601;

/// A call whose client hears of it meanwhile.
fn patient() -> CallOptions {
    CallOptions { waits: Waits::AsLongAsItTakes, ..CallOptions::default() }
}
