//! Tests of the server side of streamable HTTP, over real sockets with raw requests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{
    EndpointTestServer, LONG, MODERN, PausedRuntimeClock, TEST_TIMEOUT, get, legacy, modern, patient,
    patient_settings, post, progress, result,
};
use steadfast_core::id::ActorId;
use steadfast_mcp::delivery::{DeliveryOutcome, DeliveryProof, GRACE};
use steadfast_mcp::http::ProtocolEra;
use steadfast_mcp::http::server::{
    BearerTokens, EndpointSettings, HttpRefusal, ListenerLimits, McpSessionId, Principal, PushOutcome,
    SessionStreams, StreamLimits, StreamResumption, StreamSendError, TokenHolder,
};
use steadfast_mcp::message::{RpcId, RpcMessage};

fn code(body: &str) -> i64 {
    serde_json::from_str::<serde_json::Value>(body).unwrap()["error"]["code"].as_i64().unwrap()
}

#[tokio::test]
async fn a_final_response_that_comes_first_is_one_json_text() {
    let mut server = EndpointTestServer::start().await;
    let mut client = server.client().await;
    client.send(&modern("tools/list", 7)).await;
    let incoming = server.next().await;
    assert_eq!((incoming.era, incoming.version.as_deref()), (ProtocolEra::Modern, Some("2026-07-28")));
    assert_eq!((incoming.caller.principal.actor.as_str(), incoming.session.is_none()), ("local", true));
    incoming.responder.unwrap().finish(result(&RpcId::number(7), r#"{ "tools":[1.0] }"#));
    let head = client.head().await;
    assert_eq!((head.status, head.get("content-type")), (200, Some("application/json")));
    assert_eq!(client.body(&head).await, r#"{"jsonrpc":"2.0","id":7,"result":{ "tools":[1.0] }}"#);
    server.stopped().await;
}

#[tokio::test]
async fn a_response_after_other_messages_is_a_stream() {
    let mut server = EndpointTestServer::start().await;
    let mut client = server.client().await;
    client.send(&modern("tools/list", 7)).await;
    let responder = server.next().await.responder.unwrap();
    responder.send(progress(1)).unwrap();
    let head = client.head().await;
    assert_eq!((head.status, head.get("content-type")), (200, Some("text/event-stream")));
    assert_eq!(head.get("x-accel-buffering"), Some("no"));
    let expected = format!("data: {:?}\n\n", progress(1));
    assert_eq!(client.chunk().await.unwrap(), expected, "no ids in the modern era");
    responder.notifier().send(progress(2)).unwrap();
    assert!(client.chunk().await.unwrap().contains("\"progress\":2"));
    responder.finish(result(&RpcId::number(7), "{}"));
    assert_eq!(client.chunk().await.unwrap(), "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n\n");
    assert_eq!(client.chunk().await, None, "the answer ends the stream");
    // The connection stays usable.
    client.send(&modern("tools/list", 8)).await;
    server.next().await.responder.unwrap().finish(result(&RpcId::number(8), "{}"));
    assert_eq!(client.head().await.status, 200);
}

#[tokio::test]
async fn a_message_that_the_handler_refuses_is_not_accepted() {
    let server = EndpointTestServer::start().await;
    server.session("s1");
    server.front.is_full.store(true, Ordering::Relaxed);
    for body in [
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#,
    ] {
        let mut client = server.client().await;
        client.send(&post("Mcp-Session-Id: s1\r\n", body)).await;
        let head = client.head().await;
        assert_eq!((head.status, head.get("retry-after")), (503, Some("5")), "{body}");
    }
}

#[tokio::test]
async fn notifications_and_responses_are_accepted_without_a_body() {
    let mut server = EndpointTestServer::start().await;
    server.session("s1");
    for body in [
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
    ] {
        let answer = server.request(&post("Mcp-Session-Id: s1\r\n", body)).await;
        assert_eq!(answer, (202, String::new()), "{body}");
        let incoming = server.next().await;
        assert_eq!((incoming.era, incoming.message.bytes().as_ref()), (ProtocolEra::Legacy, body.as_bytes()));
        assert!(incoming.responder.is_none());
    }
}

#[tokio::test]
async fn invalid_requests_get_the_response_of_the_specification() {
    let settings = EndpointSettings { body_bytes: 2000, ..patient_settings() };
    let server = EndpointTestServer::with(settings, patient(), None).await;
    server.session("s1");
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let session = "Mcp-Session-Id: s1\r\n";
    let good = post(session, ping);
    let long = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#, "x".repeat(3000));
    let chunked = |body: &str| {
        let head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n";
        format!("{head}\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
    };
    for (request, status, error) in [
        (good.replace("Host: localhost", "Host: evil.example"), 403, -32600),
        (
            good.replace("Host: localhost\r\n", "Host: localhost\r\nOrigin: http://evil.example\r\n"),
            403,
            -32600,
        ),
        (good.replace("Host: localhost\r\n", ""), 400, -32600),
        (good.replace("application/json\r\nAccept", "text/plain\r\nAccept"), 415, -32600),
        (good.replace("application/json, text/event-stream", "application/json"), 406, -32600),
        (post(session, "{"), 400, -32700),
        (post(session, ""), 400, -32700),
        (post(session, &format!("[{ping}]")), 400, -32600),
        (post(session, r#"{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}"#), 400, -32600),
        (post(session, &long), 413, -32600),
        (chunked(&long), 413, -32600),
        (post("", ping), 400, -32600),
        (post("Mcp-Session-Id: nope\r\n", ping), 404, -32600),
        (post("Mcp-Session-Id: \u{fc}\r\n", ping), 404, -32600),
        (post("Mcp-Session-Id: s1\r\nMCP-Protocol-Version: 1900-01-01\r\n", ping), 400, -32022),
        (post(MODERN, ping), 400, -32020),
        (post(&format!("{MODERN}Mcp-Method: ping\r\n"), ping), 400, -32602),
        (post(MODERN, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#), 400, -32600),
        (get(""), 400, -32600),
        (get("Mcp-Session-Id: nope\r\n"), 404, -32600),
        (get(&format!("{session}{MODERN}")), 405, -32600),
        (get(&format!("{session}MCP-Protocol-Version: x\r\n")), 400, -32600),
        (get(session).replace("text/event-stream", "application/json"), 406, -32600),
        (get("").replace("GET", "DELETE"), 400, -32600),
        (get("Mcp-Session-Id: nope\r\n").replace("GET", "DELETE"), 404, -32600),
        (get(MODERN).replace("GET", "DELETE"), 405, -32600),
        (get(session).replace("GET", "PUT"), 405, -32600),
    ] {
        let (found, body) = server.request(&request).await;
        assert_eq!((found, code(&body)), (status, error), "{request}\n{body}");
    }
    let (_, body) = server.request(&post("Mcp-Session-Id: nope\r\n", ping)).await;
    assert!(body.contains("\"id\":1"), "the id is echoed: {body}");
    assert!(server.messages.is_empty(), "none of it reached the front");
}

#[tokio::test]
async fn heads_that_are_too_large_are_refused() {
    let server = EndpointTestServer::start().await;
    for headers in ["X: y\r\n".repeat(200), format!("X: {}\r\n", "y".repeat(100_000))] {
        let (status, _) = server.request(&post(&headers, "{}")).await;
        assert!(matches!(status, 400 | 431), "{status}");
    }
}

#[tokio::test]
async fn a_token_is_required_and_identifies_the_principal() {
    let tokens = BearerTokens::default();
    let ann = ActorId::new("ann").unwrap();
    tokens.add("s3cret", TokenHolder::Client(Principal::new(ann.clone())));
    tokens.add("view", TokenHolder::Viewer(ActorId::new("bob").unwrap()));
    let mut server = EndpointTestServer::with(patient_settings(), patient(), Some(tokens)).await;
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
    for headers in ["", "Authorization: Bearer wrong\r\n", "Authorization: s3cret\r\n"] {
        let mut client = server.client().await;
        client.send(&post(headers, body)).await;
        let head = client.head().await;
        assert_eq!((head.status, head.get("www-authenticate")), (401, Some("Bearer")), "{headers}");
    }
    let mut viewer = server.client().await;
    viewer.send(&post("Authorization: Bearer view\r\n", body)).await;
    assert_eq!(viewer.head().await.status, 403);
    let mut client = server.client().await;
    client.send(&post("Authorization: Bearer s3cret\r\n", body)).await;
    assert_eq!(server.next().await.caller.principal, Principal::new(ann));
    assert_eq!(client.head().await.status, 500, "given up without an answer");
}

#[tokio::test]
async fn errors_of_the_modern_era_have_a_status_of_their_own() {
    let mut server = EndpointTestServer::start().await;
    for (error, status) in [(-32601, 404), (-32021, 400), (-32022, 400), (-32602, 200), (-32603, 200)] {
        let mut client = server.client().await;
        client.send(&modern("x/y", 3)).await;
        let responder = server.next().await.responder.unwrap();
        responder.finish(RpcMessage::error_response(Some(&RpcId::number(3)), error, "no", None));
        let head = client.head().await;
        assert_eq!(head.status, status, "{error}");
        assert_eq!(code(&client.body(&head).await), error);
    }
    server.session("s1");
    let mut client = server.client().await;
    client.send(&legacy("s1", "x/y", 3)).await;
    server.next().await.responder.unwrap().finish(RpcMessage::error_response(
        Some(&RpcId::number(3)),
        -32601,
        "no",
        None,
    ));
    assert_eq!(client.head().await.status, 200, "in the older era they have none");
}

#[tokio::test]
async fn a_request_can_be_refused_by_status_and_always_gets_a_response() {
    let mut server = EndpointTestServer::start().await;
    let mut client = server.client().await;
    client.send(&modern("a", 1)).await;
    server.next().await.responder.unwrap().refuse(HttpRefusal::overloaded(None, Duration::from_millis(1500)));
    let head = client.head().await;
    assert_eq!((head.status, head.get("retry-after")), (503, Some("2")));
    client.body(&head).await;
    client.send(&modern("a", 2)).await;
    drop(server.next().await);
    let head = client.head().await;
    assert_eq!((head.status, code(&client.body(&head).await)), (500, -32603));
    // Within a stream it is too late for a status.
    client.send(&modern("a", 3)).await;
    let responder = server.next().await.responder.unwrap();
    responder.send(progress(1)).unwrap();
    drop(responder);
    let head = client.head().await;
    let body = client.body(&head).await;
    assert!(head.status == 200 && body.contains("-32603") && body.contains("\"id\":3"), "{body}");
}

#[tokio::test]
async fn the_responder_detects_that_the_stream_was_closed() {
    let mut server = EndpointTestServer::start().await;
    for before in [0, 1] {
        let mut client = server.client().await;
        client.send(&modern("tools/list", 7)).await;
        let responder = server.next().await.responder.unwrap();
        for number in 0..before {
            responder.send(progress(number)).unwrap();
            client.head().await;
        }
        assert!(!responder.is_gone());
        drop(client);
        responder.closed().await;
        assert_eq!(responder.send(progress(9)), Err(StreamSendError::Gone));
        let delivery = responder.finish(result(&RpcId::number(7), "{}"));
        assert_eq!(delivery.settled(GRACE).await, DeliveryOutcome::Lost);
    }
}

#[tokio::test]
async fn a_response_is_delivered_when_its_connection_brings_the_next_message() {
    let mut server = EndpointTestServer::start().await;
    let mut client = server.client().await;
    for (id, streamed) in [(1, false), (2, true)] {
        client.send(&modern("tools/list", id)).await;
        let responder = server.next().await.responder.unwrap();
        if streamed {
            responder.send(progress(1)).unwrap();
        }
        let mut delivery = responder.finish(result(&RpcId::number(u64::from(id)), "{}"));
        assert!(delivery.written().await);
        let head = client.head().await;
        client.body(&head).await;
        client.send(&modern("ping", 99)).await;
        assert_eq!(delivery.settled(LONG).await, DeliveryOutcome::Delivered(DeliveryProof::NextMessage));
        server.next().await.responder.unwrap().finish(result(&RpcId::number(99), "{}"));
        let head = client.head().await;
        client.body(&head).await;
    }
}

#[tokio::test]
async fn a_response_is_lost_when_its_connection_breaks_and_delivered_when_it_stays_open() {
    let mut server = EndpointTestServer::start().await;
    for (stays, fate) in
        [(false, DeliveryOutcome::Lost), (true, DeliveryOutcome::Delivered(DeliveryProof::StillOpen))]
    {
        let mut client = server.client().await;
        client.send(&modern("tools/list", 7)).await;
        let mut delivery = server.next().await.responder.unwrap().finish(result(&RpcId::number(7), "{}"));
        assert!(delivery.written().await);
        let client = stays.then_some(client);
        let grace = if stays { Duration::from_millis(50) } else { LONG };
        assert_eq!(delivery.settled(grace).await, fate);
        drop(client);
    }
}

#[tokio::test]
async fn a_response_is_delivered_when_its_client_has_read_it_and_ends_the_connection() {
    let mut server = EndpointTestServer::start().await;
    for (more, streamed) in [("", false), ("", true), ("connection: close\r\n", false)] {
        let mut client = server.client().await;
        client.send(&modern("tools/list", 7).replacen("\r\n", &format!("\r\n{more}"), 1)).await;
        let responder = server.next().await.responder.unwrap();
        if streamed {
            responder.send(progress(1)).unwrap();
        }
        let delivery = responder.finish(result(&RpcId::number(7), "{}"));
        let head = client.head().await;
        client.body(&head).await;
        drop(client);
        assert_eq!(delivery.settled(LONG).await, DeliveryOutcome::Delivered(DeliveryProof::ClosedByClient));
    }
}

#[tokio::test]
async fn initialize_opens_a_session_and_delete_ends_it() {
    let mut server = EndpointTestServer::start().await;
    let mut client = server.client().await;
    client
        .send(&post(
            "",
            r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}"#,
        ))
        .await;
    let session = server.session("s-42");
    let responder = server.next().await.responder.unwrap();
    responder.open_session(&session);
    responder.finish(result(&RpcId::number(0), "{}"));
    let head = client.head().await;
    assert_eq!((head.status, head.get("mcp-session-id")), (200, Some("s-42")));
    client.body(&head).await;
    client.send(&legacy("s-42", "ping", 1)).await;
    let incoming = server.next().await;
    assert_eq!(incoming.session.unwrap().id().as_str(), "s-42");
    incoming.responder.unwrap().finish(result(&RpcId::number(1), "{}"));
    client.head().await;
    let (status, _) = server.request(&get("Mcp-Session-Id: s-42\r\n").replace("GET", "DELETE")).await;
    assert_eq!(status, 204);
    assert_eq!(server.request(&legacy("s-42", "ping", 2)).await.0, 404);
    assert_eq!(session.push(progress(1)), Err(StreamSendError::Ended));
}

#[tokio::test]
async fn a_broken_stream_resumes_after_the_last_received_event() {
    let mut server = EndpointTestServer::start().await;
    server.session("s1");
    let mut client = server.client().await;
    client.send(&legacy("s1", "tools/call", 7)).await;
    let responder = server.next().await.responder.unwrap();
    responder.send(progress(1)).unwrap();
    client.head().await;
    assert_eq!(
        client.chunk().await.unwrap(),
        "id: 0-0\nretry: 1000\ndata: \n\n",
        "so that it can resume at once"
    );
    assert!(client.chunk().await.unwrap().starts_with("id: 0-1\ndata: {"));
    responder.send(progress(2)).unwrap();
    drop(client);
    responder.closed().await;
    responder.send(progress(3)).expect("a client may come back");
    let delivery = responder.finish(result(&RpcId::number(7), "{}"));
    let mut client = server.client().await;
    client.send(&get("Mcp-Session-Id: s1\r\nLast-Event-ID: 0-1\r\n")).await;
    let head = client.head().await;
    let body = client.body(&head).await;
    let ids: Vec<_> = body.lines().filter(|line| line.starts_with("id: ")).collect();
    assert_eq!(ids, ["id: 0-2", "id: 0-3", "id: 0-4"], "{body}");
    assert!(body.contains("\"result\":{}"));
    assert_eq!(server.listening.recv().await.unwrap().resumed, StreamResumption::Yes);
    client.send(&legacy("s1", "ping", 8)).await;
    assert_eq!(delivery.settled(LONG).await, DeliveryOutcome::Delivered(DeliveryProof::NextMessage));
}

#[tokio::test]
async fn an_unknown_event_id_gets_a_new_stream_and_is_reported_to_the_handler() {
    let mut server = EndpointTestServer::start().await;
    server.session("s1");
    server.session("s2");
    let mut client = server.client().await;
    client.send(&legacy("s1", "tools/call", 7)).await;
    server.next().await.responder.unwrap().send(progress(1)).unwrap();
    for last in ["0-1", "garbage", "99-1", "-"] {
        let mut client = server.client().await;
        client.send(&get(&format!("Mcp-Session-Id: s2\r\nLast-Event-ID: {last}\r\n"))).await;
        assert_eq!(client.head().await.status, 200);
        let listening = server.listening.recv().await.unwrap();
        assert_eq!(
            listening.resumed,
            StreamResumption::Unknown(last.into()),
            "events of another session are unknown"
        );
    }
}

#[tokio::test]
async fn messages_of_the_session_go_to_the_stream_that_listens_or_wait_for_one() {
    let mut server = EndpointTestServer::start().await;
    let session = server.session("s1");
    assert_eq!(session.push(progress(1)), Ok(PushOutcome::Queued));
    let mut first = server.client().await;
    first.send(&get("Mcp-Session-Id: s1\r\nMCP-Protocol-Version: 2025-06-18\r\n")).await;
    assert_eq!(server.listening.recv().await.unwrap().resumed, StreamResumption::Fresh);
    assert!(session.is_listening());
    first.head().await;
    assert!(
        first.chunk().await.unwrap().starts_with("id: 0-1\nretry: 1000\ndata: {"),
        "not primed: an older client"
    );
    let mut second = server.client().await;
    second.send(&get("Mcp-Session-Id: s1\r\n")).await;
    let link = server.listening.recv().await.unwrap().caller.link;
    second.head().await;
    assert_eq!(session.push(progress(2)), Ok(PushOutcome::Sent));
    assert!(second.chunk().await.unwrap().contains("\"progress\":2"), "on one of them only, the newest");
    drop(second);
    // Until the end of the connection is known, messages are sent on it.
    link.closed().await;
    assert_eq!(session.push(progress(3)), Ok(PushOutcome::Sent));
    assert!(first.chunk().await.unwrap().contains("\"progress\":3"));
    session.close();
    assert_eq!(first.chunk().await, None);
}

#[tokio::test]
async fn waiting_messages_are_bounded_and_the_response_always_fits() {
    let stream = StreamLimits { waiting_messages: 5, ..StreamLimits::default() };
    let mut server =
        EndpointTestServer::with(EndpointSettings { stream, ..patient_settings() }, patient(), None).await;
    let mut client = server.client().await;
    client.send(&modern("tools/list", 7)).await;
    let responder = server.next().await.responder.unwrap();
    // The task of the connection does not run in between, so no event is taken.
    for number in 0..5 {
        responder.send(progress(number)).unwrap();
    }
    assert_eq!(responder.send(progress(5)), Err(StreamSendError::Full));
    responder.finish(result(&RpcId::number(7), "{}"));
    let head = client.head().await;
    assert_eq!(client.body(&head).await.matches("data: ").count(), 6);
    let session = SessionStreams::new(McpSessionId::new("s").unwrap(), stream);
    let pushed = (0..1000).filter(|number| session.push(progress(*number)).is_ok()).count();
    assert_eq!(pushed, 64);
}

#[tokio::test]
async fn a_client_that_does_not_read_is_disconnected_and_reported() {
    // The timeout of this crate ends the connection, not that of the operating system.
    let limits = ListenerLimits { write_stall: Duration::from_millis(200), ..patient() };
    let mut server = EndpointTestServer::with(patient_settings(), limits, None).await;
    let mut client = server.client().await;
    client.send(&modern("tools/list", 7)).await;
    let responder = server.next().await.responder.unwrap();
    let long = RpcMessage::notification(
        "n",
        Some(&steadfast_mcp::json_text::JsonText::parse(format!("[\"{}\"]", "x".repeat(500_000))).unwrap()),
    );
    let flood = async {
        loop {
            if responder.send(long.clone()) == Err(StreamSendError::Gone) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, flood).await.expect("cut off");
    drop(client);
}

#[tokio::test]
async fn heads_and_bodies_that_do_not_come_in_time_end_the_wait() {
    let request = modern("tools/list", 7);
    let limits = ListenerLimits { head_time: Duration::from_millis(100), ..patient() };
    let server = EndpointTestServer::with(patient_settings(), limits, None).await;
    let mut silent = server.client().await;
    assert!(silent.is_closed().await);
    let mut slow = server.client().await;
    slow.send(&request[..30]).await;
    assert!(slow.is_closed().await);
    let settings = EndpointSettings { body_time: Duration::from_millis(100), ..patient_settings() };
    let server = EndpointTestServer::with(settings, patient(), None).await;
    let mut body = server.client().await;
    body.send(&request[..request.len() - 3]).await;
    assert_eq!(body.head().await.status, 408);
}

#[tokio::test]
async fn a_connection_may_rest_longer_than_a_head_may_take_but_not_for_ever() {
    let clock = PausedRuntimeClock::new();
    let (head_time, idle) = (Duration::from_secs(5), Duration::from_secs(40));
    let limits = ListenerLimits { head_time, idle, ..patient() };
    let mut server = EndpointTestServer::with(patient_settings(), limits, None).await;
    let mut client = server.client().await;
    for id in [1, 2] {
        client.send(&modern("a", id)).await;
        server.next().await.responder.unwrap().finish(result(&RpcId::number(u64::from(id)), "{}"));
        let head = client.head().await;
        client.body(&head).await;
        clock.pass(3 * head_time).await;
    }
    clock.pass(idle).await;
    clock.go_on();
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn a_slow_response_becomes_a_stream_with_keepalive_comments() {
    let (quiet, keep_alive) = (Duration::from_millis(30), Duration::from_millis(30));
    let settings = EndpointSettings { quiet, keep_alive, ..patient_settings() };
    let mut server = EndpointTestServer::with(settings, patient(), None).await;
    let mut client = server.client().await;
    client.send(&modern("tools/call", 7).replace("Mcp-Method", "Mcp-Name: \r\nMcp-Method")).await;
    assert_eq!(client.head().await.status, 400, "a name in the header and none in the body");
    let mut client = server.client().await;
    client.send(&modern("tools/list", 7)).await;
    let responder = server.next().await.responder.unwrap();
    assert_eq!(client.head().await.get("content-type"), Some("text/event-stream"));
    for _ in 0..3 {
        assert_eq!(client.chunk().await.unwrap(), ":\n", "a comment, and no blank line");
    }
    responder.finish(result(&RpcId::number(7), "{}"));
    let mut last = client.chunk().await.unwrap();
    while last == ":\n" {
        last = client.chunk().await.unwrap();
    }
    assert!(last.starts_with("data: {"));
}

#[tokio::test]
async fn stopping_lets_responses_finish_and_cuts_connections_that_do_not_end() {
    let clock = PausedRuntimeClock::new();
    let limits = ListenerLimits { stop: Duration::from_secs(5), ..patient() };
    let mut server = EndpointTestServer::with(patient_settings(), limits, None).await;
    let (mut answered, mut hangs) = (server.client().await, server.client().await);
    answered.send(&modern("a", 1)).await;
    let first = server.next().await.responder.unwrap();
    hangs.send(&modern("a", 2)).await;
    let second = server.next().await.responder.unwrap();
    server.stop.cancel();
    tokio::task::yield_now().await;
    first.finish(result(&RpcId::number(1), "{}"));
    let head = answered.head().await;
    assert_eq!((head.status, head.get("connection")), (200, Some("close")));
    assert!(!second.is_gone(), "there is still time for it");
    clock.pass(limits.stop).await;
    clock.go_on();
    server.done.await.unwrap();
    assert!(second.is_gone());
    assert!(hangs.is_closed().await);
}
