//! Live events.

use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use serde_json::Value;
use steadfast::admin::{BreakerKey, BreakerOverride, OperatorIdentity, OperatorSurface};
use steadfast::call::id::{ActorId, TenantId};
use steadfast::call::{EnvelopeBuilder, ToolResult, output::ToolOutput};
use steadfast::{Attempt, Steadfast};
use steadfast_api::Api;
use steadfast_mcp::http::server::TokenHolder;
use tokio::time::{Instant, timeout};

use crate::support::{access_of, api, assert_readable, get};

/// The keep-alive comment.
const KEEP_ALIVE: &str = ": keep-alive\n\n";

/// An open event stream.
struct EventListener(Response);

/// One event.
#[derive(Debug)]
struct ReceivedEvent {
    id: String,
    name: String,
    data: Value,
}

async fn listen(api: &Api, path: &str, last: Option<&str>) -> EventListener {
    let mut request = Request::get(path);
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    listen_by(api, request).await
}

async fn listen_by(api: &Api, request: http::request::Builder) -> EventListener {
    let request = request.header("host", "127.0.0.1").body(Empty::<Bytes>::new()).unwrap();
    let response = api.respond(request).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    EventListener(response)
}

impl EventListener {
    /// Returns the next part of the stream, which may be no event.
    async fn piece(&mut self) -> String {
        let piece = timeout(Duration::from_secs(60), self.0.body_mut().frame()).await;
        let piece = piece.unwrap().unwrap().unwrap().into_data().unwrap();
        let text = String::from_utf8(piece.to_vec()).unwrap();
        assert!(text.ends_with("\n\n"), "{text:?}");
        text
    }

    /// Returns the next event. Each event arrives as its own chunk.
    async fn next(&mut self) -> ReceivedEvent {
        loop {
            let text = self.piece().await;
            assert_ne!(text, KEEP_ALIVE, "an event was to come");
            let field =
                |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            if let Some(name) = field("event") {
                let data = serde_json::from_str(field("data").unwrap()).unwrap();
                assert_readable(&data);
                let id = field("id").unwrap_or_default().to_owned();
                return ReceivedEvent { id, name: name.to_owned(), data };
            }
        }
    }

    /// Returns the next event of this name.
    async fn named(&mut self, name: &str) -> ReceivedEvent {
        loop {
            let event = self.next().await;
            if event.name == name {
                return event;
            }
        }
    }
}

async fn pay(steadfast: &Steadfast, tool: &str, session: &str) {
    let tool = EnvelopeBuilder::new(format!("bank/{tool}"))
        .args(&[("to", "sk-live-4f9a8b7c6d5e4f3a2b1c")])
        .session(session);
    steadfast
        .call_envelope(tool.build().unwrap(), async |_: Attempt| -> ToolResult {
            Ok(ToolOutput::text("paid"))
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn events_are_streamed_as_calls_happen() {
    let (api, steadfast) = api().await;
    let mut listening = listen(&api, "/v1/events", None).await;
    pay(&steadfast, "pay", "s-7").await;
    let started = listening.next().await;
    assert_eq!((&*started.name, &started.data["sessionKey"]), ("tool_call_start", &"s-7".into()));
    let end = listening.named("tool_call_end").await;
    assert_eq!(end.data["requestId"], started.data["requestId"]);
    assert_eq!(end.data["event"], "tool_call_end", "what is told is what the log has");
    assert!(!format!("{end:?}").contains("sk-live"), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reconnects_continues_after_its_last_event() {
    let (api, steadfast) = api().await;
    let mut listening = listen(&api, "/v1/events", None).await;
    pay(&steadfast, "pay", "first").await;
    let last_id = listening.named("tool_call_end").await.id;
    drop(listening);
    pay(&steadfast, "pay", "second").await;
    for mut again in [
        listen(&api, "/v1/events", Some(&last_id)).await,
        listen(&api, &format!("/v1/events?after={last_id}"), None).await,
    ] {
        assert_eq!(again.named("tool_call_start").await.data["sessionKey"], "second");
    }
    let mut other_process = listen(&api, "/v1/events", Some("1-1")).await;
    assert_eq!(other_process.named("tool_call_start").await.data["sessionKey"], "first", "all that is known");
    let (status, wrong) = get(&api, "/v1/events?after=yesterday").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(wrong["error"]["message"].as_str().unwrap().contains("`yesterday`"), "{wrong}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_client_gets_the_number_of_missed_events_and_then_the_rest() {
    let (api, steadfast) = api().await;
    let mut listening = listen(&api, "/v1/events", None).await;
    // No client reads in the meantime, and there are more events than are stored.
    for number in 0..600 {
        pay(&steadfast, "pay", &format!("s-{number}")).await;
    }
    let missed = listening.next().await;
    assert_eq!((missed.name.as_str(), missed.id.as_str()), ("missed", ""), "{missed:?}");
    let missed = missed.data["missed"].as_u64().unwrap();
    let rest = listening.next().await;
    // Event 1 came before: `bank/fails` lost its trust. A notification is stored even if no client reads.
    assert_eq!(rest.id.rsplit('-').next(), Some((missed + 2).to_string().as_str()), "{rest:?}");
    let mut last = listening.named("tool_call_end").await;
    while last.data["sessionKey"] != "s-599" {
        last = listening.named("tool_call_end").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_without_events_sends_keepalive_comments() {
    let (api, steadfast) = api().await;
    let mut listening = listen(&api, "/v1/events?tool=bank/other", None).await;
    let began = Instant::now();
    assert_eq!(listening.piece().await, ": connected\n\n");
    assert_eq!(began.elapsed(), Duration::ZERO, "at once");
    assert_eq!(listening.piece().await, KEEP_ALIVE);
    assert_eq!(began.elapsed(), Duration::from_secs(15));
    // Events of other tenants are not received.
    let others = async {
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            pay(&steadfast, "pay", "first").await;
        }
    };
    tokio::select! {
        () = others => unreachable!("it never ends"),
        piece = listening.piece() => assert_eq!(piece, KEEP_ALIVE),
    }
    assert!(began.elapsed() <= Duration::from_secs(31), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn events_can_be_those_of_one_tool_and_of_one_name() {
    let (api, steadfast) = api().await;
    let mut of_tool = listen(&api, "/v1/events?tool=bank/other", None).await;
    let mut of_name = listen(&api, "/v1/events?event=tool_call_end", None).await;
    pay(&steadfast, "pay", "first").await;
    pay(&steadfast, "other", "second").await;
    assert_eq!(of_tool.next().await.data["sessionKey"], "second");
    let ends = [of_name.next().await, of_name.next().await].map(|event| event.data["sessionKey"].clone());
    assert_eq!(ends, ["first", "second"]);
}

#[tokio::test(start_paused = true)]
async fn sf_7_events_can_be_those_of_one_tenant() {
    let (api, steadfast) = api().await;
    let mut of_tenant = listen(&api, "/v1/events?tenant=acme", None).await;
    pay(&steadfast, "pay", "nobody's").await;
    let mut envelope = EnvelopeBuilder::new("bank/pay").session("acme's").build().unwrap();
    for tenant in ["other", "acme"] {
        envelope.target.tenant_id = Some(TenantId::new(tenant).unwrap());
        let works = async |_: Attempt| -> ToolResult { Ok(ToolOutput::text("paid")) };
        steadfast.call_envelope(envelope.clone(), works).await;
    }
    let first = of_tenant.next().await;
    assert_eq!(
        (&first.data["tenantId"], &first.data["sessionKey"]),
        (&"acme".into(), &"acme's".into()),
        "{first:?}"
    );
    // Changes by operators to data of other tenants, or of no tenant, are not received either.
    let by = OperatorIdentity::new("ann", OperatorSurface::Library);
    let key: BreakerKey = "tool:bank:pay".parse().unwrap();
    for tenant in [None, Some("other"), Some("acme")] {
        let tenant = tenant.map(|tenant| TenantId::new(tenant).unwrap());
        steadfast
            .engine()
            .admin()
            .update_breaker(tenant.as_ref(), &key, BreakerOverride::Open { until: None }, &by)
            .await;
    }
    for name in ["tool_call_circuit_state", "audit"] {
        assert_eq!(of_tenant.named(name).await.data["tenantId"], "acme", "{name}");
    }
    let (status, wrong) = get(&api, "/v1/events?tool=pay").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(wrong["error"]["message"].as_str().unwrap().contains("namespace/tool"), "{wrong}");
}

#[tokio::test(start_paused = true)]
async fn sf_7_a_stream_ends_when_its_client_loses_its_token() {
    let steadfast = Steadfast::builder().set("store.kind", "memory").build().await.unwrap();
    let access = access_of(&[("ann", None)]);
    let tokens = access.tokens.clone();
    let viewer = |name: &str| TokenHolder::Viewer(ActorId::new(name).unwrap());
    tokens.add("of eve", viewer("eve"));
    tokens.add("of bob", viewer("bob"));
    let api = Api::new(steadfast.clone(), access);
    let as_viewer =
        |name: &str| Request::get("/v1/events").header("authorization", format!("Bearer of {name}"));
    let mut of_eve = listen_by(&api, as_viewer("eve")).await;
    let mut of_bob = listen_by(&api, as_viewer("bob")).await;
    pay(&steadfast, "pay", "before").await;
    for listening in [&mut of_eve, &mut of_bob] {
        listening.named("tool_call_end").await;
    }
    let left = access_of(&[("ann", None)]).tokens;
    left.add("of bob", viewer("bob"));
    tokens.replace(&left);
    pay(&steadfast, "pay", "afterwards").await;
    assert!(of_eve.0.body_mut().frame().await.is_none(), "it ends, and says nothing more");
    assert_eq!(of_bob.next().await.data["sessionKey"], "afterwards");
    // The same without events: at the next keep-alive.
    let mut idle = listen_by(&api, as_viewer("bob").uri("/v1/events?event=none")).await;
    idle.piece().await;
    tokens.replace(&access_of(&[("ann", None)]).tokens);
    assert!(idle.0.body_mut().frame().await.is_none());
}
