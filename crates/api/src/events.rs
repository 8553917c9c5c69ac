//! Live events: server-sent events, one for each line of the log at its most verbose level.
//!
//! A client that reconnects sends the id of the last event that it received, and continues after it. Events that are no
//! longer stored are reported as missed.

use std::borrow::Cow;
use std::convert::Infallible;

use axum::body::Body;
use axum::extract::{Extension, State as Shared};
use bytes::Bytes;
use futures_util::stream::unfold;
use http::{HeaderMap, Method, StatusCode, Uri};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::Value;
use steadfast::call::id::TenantId;
use steadfast::telemetry::{Feed, FeedEvent, FeedItem, FeedReader};
use steadfast_mcp::http::server::StreamPermit;
use tokio::time::{Instant, timeout_at};

use crate::access::{AccessRules, Permission, Requester};
use crate::encoding::{EVENTS, KEEP_ALIVE_INTERVAL, whole};
use crate::endpoint::Endpoint;
use crate::extractors::QueryParams;
use crate::problem::ApiProblem;
use crate::queries::NamedTool;
use crate::{HandlerResult, State};

/// The endpoints for events.
pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::GET,
            "/v1/events",
            "events",
            "Streams events as they happen",
            PERMISSION,
            events,
        )
        .takes_query::<EventsQuery>()
        .reads_header_as::<EventId>(
            "Last-Event-ID",
            "the id of the last event that you received; later events are sent first",
        )
        .gives_text("server-sent events, until you disconnect or your token is revoked", EVENTS)
        .or_unavailable(),
    ]
}

/// The permission to follow events.
const PERMISSION: Permission = Permission::Viewer;

/// Filters for events.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// Only events of this tenant.
    tenant: Option<TenantId>,
    /// Only events of this tool: `namespace/tool`.
    tool: Option<NamedTool>,
    /// Only events of this name.
    event: Option<String>,
    /// Only events after this id. For clients that cannot send the header `Last-Event-ID`.
    #[schemars(with = "Option<EventId>")]
    after: Option<String>,
}

/// The id of an event: an id of the process, and the number of the event in it.
struct EventId;

impl JsonSchema for EventId {
    fn schema_name() -> Cow<'static, str> {
        "EventId".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9a-f]{1,16}-[0-9]{1,19}$" })
    }
}

pub(crate) async fn events(
    Shared(State(inner)): Shared<State>,
    uri: Uri,
    headers: HeaderMap,
    Extension(caller): Extension<Requester>,
    QueryParams(query): QueryParams<EventsQuery>,
) -> HandlerResult {
    let feed = inner.steadfast.telemetry().feed();
    let last = headers.get("last-event-id").map(|value| value.to_str().unwrap_or_default());
    let after = last.or(query.after.as_deref()).map(|id| number(feed, id)).transpose()?;
    let filter = EventFilter {
        generation: feed.generation(),
        tenant: query.tenant,
        tool: query.tool,
        event: query.event,
    };
    let counted = inner.gateway.streams.open(caller.follower())?;
    // A first line at once, so that the client sees the open connection.
    let beginning = Some(Bytes::from_static(b": connected\n\n"));
    let reader = feed.read(after);
    let listening =
        OpenEventStream { reader, filter, access: inner.access.clone(), uri, headers, _counted: counted };
    let stream = unfold((listening, beginning), async |(mut listening, beginning)| {
        let piece = match beginning {
            Some(beginning) => beginning,
            None => listening.next().await?,
        };
        Some((Ok::<_, Infallible>(piece), (listening, None)))
    });
    Ok(whole(StatusCode::OK, EVENTS, Body::from_stream(stream)))
}

/// Returns the number of an event, or 0 if the event is of an earlier process.
fn number(feed: &Feed, id: &str) -> Result<u64, ApiProblem> {
    let parts = id.split_once('-').and_then(|(generation, number)| {
        Some((u64::from_str_radix(generation, 16).ok()?, number.parse::<u64>().ok()?))
    });
    match parts {
        Some((generation, number)) if generation == feed.generation() => Ok(number),
        Some(_) => Ok(0),
        None => Err(ApiProblem::misread(format!(
            "Last-Event-ID: `{id}` is not a valid event id; send the id of an event unchanged, or none for events from now on"
        ))),
    }
}

/// An open event stream, and the request that was authorized for it.
struct OpenEventStream {
    reader: FeedReader,
    filter: EventFilter,
    access: AccessRules,
    uri: Uri,
    headers: HeaderMap,
    /// The permit of the stream, held as long as it lasts.
    _counted: StreamPermit,
}

impl OpenEventStream {
    /// Returns the next part of the stream. The stream ends when its token is revoked.
    async fn next(&mut self) -> Option<Bytes> {
        let piece = next(&mut self.reader, &self.filter).await;
        self.access.admit(PERMISSION, &self.uri, &self.headers).ok()?;
        Some(piece)
    }
}

struct EventFilter {
    generation: u64,
    tenant: Option<TenantId>,
    tool: Option<NamedTool>,
    event: Option<String>,
}

/// Returns the next event that passes the filter, or a comment that keeps the connection alive.
async fn next(reader: &mut FeedReader, filter: &EventFilter) -> Bytes {
    let silent = Instant::now() + KEEP_ALIVE_INTERVAL;
    loop {
        match timeout_at(silent, reader.next()).await {
            Ok(FeedItem::Event(line)) if filter.has(&line) => {
                let FeedEvent { number, event, text } = &*line;
                return format!("id: {:x}-{number}\nevent: {event}\ndata: {text}\n\n", filter.generation)
                    .into();
            }
            Ok(FeedItem::Event(_)) => {}
            Ok(FeedItem::Missed(missed)) => {
                return format!("event: missed\ndata: {{\"missed\":{missed}}}\n\n").into();
            }
            Err(_) => return Bytes::from_static(b": keep-alive\n\n"),
        }
    }
}

impl EventFilter {
    fn has(&self, line: &FeedEvent) -> bool {
        if self.event.as_deref().is_some_and(|event| event != line.event) {
            return false;
        }
        if self.tenant.is_none() && self.tool.is_none() {
            return true;
        }
        let fields: Value = serde_json::from_str(&line.text).unwrap_or_default();
        let has = |name, value: &str| fields.get(name).and_then(Value::as_str) == Some(value);
        self.tenant.as_ref().is_none_or(|tenant| has("tenantId", tenant.as_str()))
            && self.tool.as_ref().is_none_or(|NamedTool(tool)| {
                has("toolNamespace", tool.namespace.as_str()) && has("toolName", tool.tool.as_str())
            })
    }
}
