//! Tests of the client side of streamable HTTP, against the server side of this crate and against scripted servers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{LONG, META, PausedRuntimeClock, TEST_TIMEOUT, progress, result, settle};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use steadfast_core::classify::{RetryAfter, TransportError};
use steadfast_mcp::delivery::{DeliveryOutcome, GRACE};
use steadfast_mcp::http::server::{self, PushOutcome, StreamResumption};
use steadfast_mcp::http::upstream::{
    ConnectionPoolLimits, EventStream, HttpUpstream, HttpUpstreamSettings, InvalidServerUrl, MessageContext,
    StreamItem, UpstreamContent, UpstreamFailure,
};
use steadfast_mcp::message::{RpcId, RpcMessage};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};

fn server_at(address: SocketAddr) -> HttpUpstream {
    HttpUpstream::new(&format!("http://{address}/mcp"), patient()).unwrap()
}

/// Settings whose timeouts and idle times are never reached.
fn patient() -> HttpUpstreamSettings {
    let pool = ConnectionPoolLimits { connect: LONG, idle_time: LONG, ..ConnectionPoolLimits::default() };
    HttpUpstreamSettings { pool, ..HttpUpstreamSettings::default() }
}

fn modern() -> MessageContext {
    MessageContext { version: Some("2026-07-28".into()), ..MessageContext::default() }
}

fn legacy(session: &str) -> MessageContext {
    MessageContext {
        version: Some("2025-11-25".into()),
        session: Some(session.into()),
        ..MessageContext::default()
    }
}

fn call(id: u32) -> RpcMessage {
    let text = format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"größe","n":1.0,{META}}}}}"#
    );
    RpcMessage::parse(text, 10_000).unwrap()
}

async fn message(stream: &mut EventStream) -> RpcMessage {
    match stream.next().await {
        Some(Ok(StreamItem::Message(message))) => message,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_modern_call_goes_through_front_and_back_as_it_is() {
    let mut front = common::EndpointTestServer::start().await;
    let back = server_at(front.address);
    let (sent, context) = (call(7), modern());
    let (answer, ()) = tokio::join!(back.post(&sent, &context), async {
        let incoming = front.next().await;
        assert_eq!(incoming.message.bytes(), sent.bytes());
        assert_eq!(incoming.caller.headers["mcp-name"], "=?base64?Z3LDtsOfZQ==?=");
        incoming.responder.unwrap().finish(result(&RpcId::number(7), r#"{"x":1.0}"#));
    });
    let UpstreamContent::One(answer) = answer.unwrap().content else { panic!("not one message") };
    assert_eq!(answer, result(&RpcId::number(7), r#"{"x":1.0}"#));
}

#[tokio::test]
async fn a_stream_brings_progress_and_the_answer_and_its_connection_is_used_again() {
    let mut front = common::EndpointTestServer::start().await;
    let back = server_at(front.address);
    let mut links = Vec::new();
    for id in 1..4 {
        let (sent, context) = (call(id), modern());
        let (answer, responder) = tokio::join!(back.post(&sent, &context), async {
            let incoming = front.next().await;
            links.push(incoming.caller.address.unwrap().port());
            let responder = incoming.responder.unwrap();
            responder.send(progress(1)).unwrap();
            responder
        });
        let UpstreamContent::Stream(mut stream) = answer.unwrap().content else { panic!("not a stream") };
        assert_eq!(message(&mut stream).await, progress(1));
        responder.finish(result(&RpcId::number(u64::from(id)), "{}"));
        assert_eq!(message(&mut stream).await, result(&RpcId::number(u64::from(id)), "{}"));
        assert!(stream.next().await.is_none());
        // The connection knows the end of the response a moment after the client.
        settle().await;
    }
    links.dedup();
    assert_eq!(links.len(), 1, "one connection for all");
}

#[tokio::test]
async fn dropping_a_call_or_its_stream_cancels_it_at_the_other_side() {
    let mut front = common::EndpointTestServer::start().await;
    let back = server_at(front.address);
    let sent = call(1);
    let context = modern();
    let responder = tokio::select! {
        _ = back.post(&sent, &context) => panic!("nobody answered"),
        incoming = front.next() => incoming.responder.unwrap(),
    };
    responder.closed().await;
    let (answer, responder) = tokio::join!(back.post(&sent, &context), async {
        let responder = front.next().await.responder.unwrap();
        responder.send(progress(1)).unwrap();
        responder
    });
    assert!(!responder.is_gone());
    drop(answer);
    responder.closed().await;
    let delivery = responder.finish(result(&RpcId::number(1), "{}"));
    assert_eq!(delivery.settled(GRACE).await, DeliveryOutcome::Lost);
}

#[tokio::test]
async fn a_legacy_session_is_opened_streamed_resumed_and_closed() {
    let mut front = common::EndpointTestServer::start().await;
    let back = server_at(front.address);
    let hello = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#;
    let hello = RpcMessage::parse(hello, 1000).unwrap();
    let session = front.session("s1");
    let context = MessageContext::default();
    let (answer, ()) = tokio::join!(back.post(&hello, &context), async {
        let responder = front.next().await.responder.unwrap();
        responder.open_session(&session);
        responder.finish(result(&RpcId::number(0), "{}"));
    });
    let answer = answer.unwrap();
    assert_eq!(answer.session.as_deref(), Some("s1"));
    let context = legacy("s1");
    let notification = RpcMessage::notification("notifications/initialized", None);
    assert!(matches!(back.post(&notification, &context).await.unwrap().content, UpstreamContent::Accepted));
    front.next().await;

    let mut listening = back.listen(&context, None).await.unwrap();
    assert_eq!(front.listening.recv().await.unwrap().resumed, StreamResumption::Fresh);
    assert_eq!(session.push(progress(5)), Ok(PushOutcome::Sent));
    assert_eq!(message(&mut listening).await, progress(5));
    assert_eq!(listening.retry(), Some(Duration::from_secs(1)));
    let last = listening.last_event_id().unwrap().to_owned();
    drop(listening);
    let mut listening = back.listen(&context, Some(&last)).await.unwrap();
    assert_eq!(front.listening.recv().await.unwrap().resumed, StreamResumption::Yes);
    assert_eq!(session.push(progress(6)), Ok(PushOutcome::Sent));
    assert_eq!(message(&mut listening).await, progress(6));

    back.end(&context).await.unwrap();
    assert!(listening.next().await.is_none());
    assert_eq!(back.post(&notification, &context).await.unwrap_err(), UpstreamFailure::SessionLost);
    assert_eq!(back.listen(&context, None).await.unwrap_err(), UpstreamFailure::SessionLost);
}

#[tokio::test]
async fn refusals_come_back_with_their_status_and_their_error() {
    let mut front = common::EndpointTestServer::start().await;
    let back = server_at(front.address);
    let sent = call(7);
    let context = modern();
    let refuse = |incoming: server::IncomingMessage| {
        let wait = Duration::from_secs(3);
        incoming.responder.unwrap().refuse(server::HttpRefusal::overloaded(Some(&RpcId::number(7)), wait));
    };
    let (answer, ()) = tokio::join!(back.post(&sent, &context), async { refuse(front.next().await) });
    let Err(UpstreamFailure::Status { status: 503, retry_after, error: Some(error), .. }) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(retry_after, Some(RetryAfter::Delay(Duration::from_secs(3))));
    assert_eq!((error.id(), error.error_code()), (Some(RpcId::number(7)), Some(-32603)));
    let old = MessageContext { version: Some("1900-01-01".into()), ..MessageContext::default() };
    let ping = RpcMessage::request(&RpcId::number(1), "ping", None);
    let failure = back.post(&ping, &old).await.unwrap_err();
    assert!(failure.is_modern(), "{failure:?}");
}

/// A server that sends one of these texts on each connection in turn, after it has read a request, and then closes
/// it.
async fn scripted(answers: Vec<String>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 64 << 10];
            let _ = stream.read(&mut request).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    address
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn failures_of_a_server_are_distinguished() {
    let json = "Content-Type: application/json\r\n";
    let good = answer("200 OK", json, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    type FailureCheck = fn(&UpstreamFailure) -> bool;
    let cases: Vec<(String, FailureCheck)> = vec![
        (String::new(), |f| {
            matches!(f, UpstreamFailure::Lost { error: TransportError::ConnectionClosed, .. })
        }),
        (good[..40].to_owned(), |f| matches!(f, UpstreamFailure::Lost { .. })),
        (good[..good.len() - 4].to_owned(), |f| matches!(f, UpstreamFailure::Lost { .. })),
        ("garbage\r\n\r\n".to_owned(), |f| matches!(f, UpstreamFailure::Lost { .. })),
        (answer("200 OK", json, "garbage"), |f| matches!(f, UpstreamFailure::BadAnswer { .. })),
        (answer("200 OK", "Content-Type: text/html\r\n", "<html>"), |f| {
            matches!(f, UpstreamFailure::BadAnswer { .. })
        }),
        (answer("302 Found", "Location: http://x/\r\n", ""), |f| {
            matches!(f, UpstreamFailure::Status { status: 302, .. })
        }),
        (answer("401 Unauthorized", "", ""), |f| {
            matches!(f, UpstreamFailure::Status { status: 401, error: None, .. })
        }),
        (
            answer("404 Not Found", "", "nothing here"),
            |f| matches!(f, UpstreamFailure::Status { status: 404, text, .. } if text == "nothing here"),
        ),
        (
            answer("429 Slow", "Retry-After: 5\r\nretry-after-ms: 20\r\n", ""),
            |f| matches!(f, UpstreamFailure::Status { status: 429, retry_after: Some(RetryAfter::Delay(wait)), .. } if wait.as_millis() == 20),
        ),
        (
            answer("500 Oh", json, r#"{"jsonrpc":"2.0","id":1,"error":{"code":-5,"message":"m"}}"#),
            |f| matches!(f, UpstreamFailure::Status { status: 500, error: Some(error), .. } if error.error_code() == Some(-5)),
        ),
    ];
    let address = scripted(cases.iter().map(|(text, _)| text.clone()).collect()).await;
    let back = server_at(address);
    for (text, expected) in cases {
        let failure = back.post(&call(1), &modern()).await.map(|answer| answer.content).unwrap_err();
        assert!(expected(&failure), "{text:?} gave {failure:?}");
    }
}

#[tokio::test]
async fn a_404_is_a_lost_session_unless_it_is_about_the_method() {
    let unknown = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"m"}}"#;
    let address =
        scripted(vec![answer("404 Not Found", "", unknown), answer("404 Not Found", "", "x")]).await;
    let back = server_at(address);
    let first = back.post(&call(1), &legacy("s")).await.unwrap_err();
    assert!(matches!(first, UpstreamFailure::Status { status: 404, .. }), "{first:?}");
    assert_eq!(back.post(&call(1), &legacy("s")).await.unwrap_err(), UpstreamFailure::SessionLost);
}

#[tokio::test]
async fn a_server_that_is_not_there_got_nothing() {
    // The port is bound, but no socket listens on it.
    let taken = TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let back = server_at(taken.local_addr().unwrap());
    let failure = back.post(&call(1), &modern()).await.unwrap_err();
    assert!(
        matches!(failure, UpstreamFailure::NotSent { error: TransportError::ConnectionRefused, .. }),
        "{failure:?}"
    );
    let back =
        HttpUpstream::new("http://does-not-exist.invalid/mcp", HttpUpstreamSettings::default()).unwrap();
    let failure = back.post(&call(1), &modern()).await.unwrap_err();
    assert!(matches!(failure, UpstreamFailure::NotSent { .. }), "{failure:?}");
}

#[tokio::test]
async fn events_without_a_message_are_reported_and_the_stream_continues_until_it_breaks() {
    let events = "event: endpoint\ndata: /x\n\n: comment\nid: 9\ndata: {\"jsonrpc\":\"2.0\",\ndata: \"method\":\"m\"}\n\ndata: garbage\n\n";
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = format!("{:x}\r\n{events}\r\n", events.len());
    let long = format!("data: {}\n\n", "x".repeat(500));
    let broken = format!("{head}{chunk}{:x}\r\n{long}\r\n", long.len());
    let address = scripted(vec![broken]).await;
    let settings = HttpUpstreamSettings { message_bytes: 300, ..patient() };
    let back = HttpUpstream::new(&format!("http://{address}"), settings).unwrap();
    let UpstreamContent::Stream(mut stream) = back.post(&call(1), &modern()).await.unwrap().content else {
        panic!("no stream")
    };
    assert_eq!(message(&mut stream).await.bytes(), "{\"jsonrpc\":\"2.0\",\n\"method\":\"m\"}");
    assert_eq!(stream.last_event_id(), Some("9"));
    assert!(matches!(stream.next().await, Some(Ok(StreamItem::NotAMessage { .. }))));
    assert!(matches!(stream.next().await, Some(Ok(StreamItem::TooLong(long))) if long.bytes() == 500));
    assert!(matches!(stream.next().await, Some(Err(UpstreamFailure::Lost { .. }))));
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn a_response_that_is_too_long_is_not_buffered() {
    let text = "x".repeat(10_000);
    let json = "Content-Type: application/json\r\n";
    let sized = answer("200 OK", json, &text);
    let chunked =
        format!("HTTP/1.1 200 OK\r\n{json}Transfer-Encoding: chunked\r\n\r\n2710\r\n{text}\r\n0\r\n\r\n");
    for (answer, announced) in [(sized, Some(10_000)), (chunked, None)] {
        let address = scripted(vec![answer]).await;
        let settings = HttpUpstreamSettings { message_bytes: 1000, ..patient() };
        let back = HttpUpstream::new(&format!("http://{address}/"), settings).unwrap();
        let failure = back.post(&call(1), &modern()).await.unwrap_err();
        assert_eq!(failure, UpstreamFailure::TooLarge { announced, limit: 1000 });
    }
}

#[tokio::test]
async fn an_idle_connection_that_closed_is_replaced_transparently() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let back = server_at(listener.local_addr().unwrap());
    let body = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    let response =
        answer("200 OK", "Content-Type: application/json\r\n", body).replace("Connection: close\r\n", "");
    let (closed_sender, mut closed_receiver) = tokio::sync::mpsc::unbounded_channel();
    let serving = async {
        for _ in 0..5 {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 64 << 10];
            let read = stream.read(&mut request).await.unwrap();
            assert!(read > 0);
            stream.write_all(response.as_bytes()).await.unwrap();
            // The connection ends a moment after its response. The peer that has seen it ends the other half.
            stream.shutdown().await.unwrap();
            assert_eq!(stream.read(&mut request).await.unwrap(), 0);
            closed_sender.send(()).unwrap();
        }
    };
    let asking = async {
        for _ in 0..5 {
            back.post(&call(1), &modern()).await.unwrap();
            // The end of the connection was seen, as between two calls of an agent.
            closed_receiver.recv().await.unwrap();
        }
    };
    tokio::join!(serving, asking);
}

#[tokio::test]
async fn a_connection_is_not_pooled_longer_than_its_server_announces() {
    for (hint, connections) in
        [("Keep-Alive: timeout=1\r\n", 3), ("Keep-Alive: timeout=60, max=9\r\n", 1), ("", 1)]
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let back = server_at(listener.local_addr().unwrap());
        let headers = format!("Content-Type: application/json\r\n{hint}");
        let text = answer("200 OK", &headers, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
        let text = text.replace("Connection: close\r\n", "");
        let accepted = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&accepted);
        let serving = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
                let text = text.clone();
                tokio::spawn(async move {
                    let mut request = vec![0; 64 << 10];
                    while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                        stream.write_all(text.as_bytes()).await.unwrap();
                    }
                });
            }
        });
        for _ in 0..3 {
            back.post(&call(1), &modern()).await.unwrap();
            settle().await;
        }
        assert_eq!(accepted.load(Ordering::Relaxed), connections, "{hint}");
        serving.abort();
    }
}

#[tokio::test]
async fn connections_are_bounded_pooled_for_a_moment_and_then_closed() {
    let clock = PausedRuntimeClock::new();
    let mut front = common::EndpointTestServer::start().await;
    let (connect, idle_time) = (Duration::from_secs(5), Duration::from_secs(4));
    let pool = ConnectionPoolLimits { connections: 1, connect, idle_time, ..ConnectionPoolLimits::default() };
    let url = format!("http://{}/mcp", front.address);
    let back =
        HttpUpstream::new(&url, HttpUpstreamSettings { pool, ..HttpUpstreamSettings::default() }).unwrap();
    let sent = call(1);
    let context = modern();
    let (first, second) = tokio::join!(back.post(&sent, &context), async {
        let incoming = front.next().await;
        let (second, ()) = tokio::join!(back.post(&sent, &context), clock.pass(connect));
        let link = incoming.caller.link.clone();
        incoming.responder.unwrap().finish(result(&RpcId::number(1), "{}"));
        (second, link)
    });
    assert!(first.is_ok());
    let (second, link) = second;
    assert!(
        matches!(second, Err(UpstreamFailure::NotSent { error: TransportError::TimedOut, .. })),
        "{second:?}"
    );
    clock.pass(idle_time / 2).await;
    assert!(link.is_open());
    clock.pass(idle_time).await;
    clock.go_on();
    tokio::time::timeout(TEST_TIMEOUT, link.closed()).await.expect("not kept for ever");
}

#[tokio::test]
async fn https_is_supported_and_untrusted_certificates_are_refused() {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut request = vec![0; 64 << 10];
            let _ = stream.read(&mut request).await;
            let body = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
            let text = answer("200 OK", "Content-Type: application/json\r\n", body);
            let _ = stream.write_all(text.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    let client = |roots| {
        let config = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let settings = HttpUpstreamSettings { tls: Some(Arc::new(config)), ..patient() };
        HttpUpstream::new(&format!("https://localhost:{port}/mcp"), settings).unwrap()
    };
    let mut roots = rustls::RootCertStore::empty();
    let stranger = client(roots.clone()).post(&call(1), &modern()).await.unwrap_err();
    assert!(matches!(stranger, UpstreamFailure::NotSent { error: TransportError::Tls, .. }), "{stranger:?}");
    roots.add(made.cert.der().clone()).unwrap();
    assert!(matches!(
        client(roots).post(&call(1), &modern()).await.unwrap().content,
        UpstreamContent::One(_)
    ));
}

#[test]
fn urls_that_cannot_be_used_are_refused_when_they_are_read() {
    let error = |url: &str| HttpUpstream::new(url, HttpUpstreamSettings::default()).unwrap_err();
    for url in ["", "mcp", "/mcp", "ftp://x/", "http://", "http:///x", "localhost:80"] {
        assert_eq!(error(url), InvalidServerUrl::NotHttp, "{url}");
    }
    assert_eq!(error("http://me:secret@x/"), InvalidServerUrl::Credentials);
}
