//! Calls over real connections: delivery of results to clients that read on, disconnect, or never read.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Instant;

use serde_json::{Value, json};
use steadfast::call::output::ToolOutput;
use steadfast_mcp::http::server::{ConnectionPeer, ListenerLimits, RequestBody, serve};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::support::{ApiTestWorld, TEST_TIMEOUT, keyed};

/// Serves the API of this world at a free port, as `steadfast serve` does.
async fn listen(world: &ApiTestWorld) -> (SocketAddr, DropGuard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (api, stop) = (world.api.clone(), CancellationToken::new());
    let service = move |mut request: http::Request<RequestBody>, peer: ConnectionPeer| {
        let api = api.clone();
        async move {
            request.extensions_mut().insert(peer.link);
            api.respond(request).await
        }
    };
    tokio::spawn(serve(listener, ListenerLimits::default(), service, stop.clone()));
    (address, stop.drop_guard())
}

fn post(call: &Value) -> Vec<u8> {
    let body = call.to_string();
    format!("POST /v1/calls HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

/// Reads one response with a content length.
async fn read(stream: &mut TcpStream) -> (u16, Value) {
    let mut all = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&all).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned)
            });
            if body.len() == length.unwrap().parse::<usize>().unwrap() {
                let status = head.split(' ').nth(1).unwrap().parse().unwrap();
                return (status, serde_json::from_str(body).unwrap());
            }
        }
        assert_ne!(stream.read_buf(&mut all).await.unwrap(), 0, "it ended in the middle: {text}");
    }
}

/// Returns the delivery time of the only record once it is known, or `None` once it is known to be undelivered.
async fn delivered(world: &ApiTestWorld) -> Value {
    world.send_as_admin("get", "/v1/records", &Value::Null).await["records"][0]["deliveredAtMs"].clone()
}

/// Waits until a condition holds.
async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < TEST_TIMEOUT, "waited in vain");
        // The condition depends on other tasks, and on sockets, which the runtime polls between them.
        tokio::task::yield_now().await;
    }
}

/// Keeps paused time from advancing while it exists, whatever the sockets of the runtime do. So the tested events do
/// not depend on time.
struct PausedTimeGuard(#[expect(dead_code, reason = "its end is what is waited for")] mpsc::Sender<()>);

impl PausedTimeGuard {
    /// Blocks the automatic advance of paused time, which happens only while the runtime is idle.
    fn begin() -> Self {
        tokio::time::pause();
        let (sender, until) = mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || until.recv());
        Self(sender)
    }
}

async fn world() -> ApiTestWorld {
    ApiTestWorld::new(&[("tools.\"bank/pay\".class", "mutating")]).await
}

#[tokio::test]
async fn an_answer_is_delivered_when_its_connection_brings_the_next_request() {
    let world = world().await;
    world.works("bank/pay");
    let (address, _stop) = listen(&world).await;
    let _time = PausedTimeGuard::begin();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&post(&keyed("bank/pay", json!({}), "k"))).await.unwrap();
    assert_eq!(read(&mut stream).await.0, 200);
    assert_eq!(delivered(&world).await, Value::Null, "nobody knows yet");
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").await.unwrap();
    assert_eq!(read(&mut stream).await.0, 200);
    until(async || delivered(&world).await.is_u64()).await;
}

/// The same for a client that reads events, and for a host that gets the result of its report.
async fn is_delivered_by_the_next_request(mode: &str) {
    let world = world().await;
    world.works("bank/pay");
    let (address, _stop) = listen(&world).await;
    let _time = PausedTimeGuard::begin();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let call = keyed("bank/pay", json!({}), "k");
    if mode == "streamed" {
        let accept = "HTTP/1.1\r\naccept: text/event-stream\r\n";
        let request = String::from_utf8(post(&call)).unwrap().replacen("HTTP/1.1\r\n", accept, 1);
        stream.write_all(request.as_bytes()).await.unwrap();
        // The last chunk of a body without content length.
        let mut all = String::new();
        while !all.ends_with("0\r\n\r\n") {
            let mut piece = Vec::new();
            assert_ne!(stream.read_buf(&mut piece).await.unwrap(), 0, "{all}");
            all.push_str(std::str::from_utf8(&piece).unwrap());
        }
    } else {
        let call = keyed("own/pay", json!({}), "k");
        let order = world.post("/v1/calls/begin", &[], &call.to_string()).await;
        let report = json!({ "attempt": 1, "output": { "content": 1 } });
        let path = format!("/v1/calls/{}/report", order.body["id"].as_str().unwrap());
        let request = String::from_utf8(post(&report)).unwrap().replacen("/v1/calls", &path, 1);
        stream.write_all(request.as_bytes()).await.unwrap();
        assert_eq!(read(&mut stream).await.0, 200);
    }
    assert_eq!(delivered(&world).await, Value::Null, "{mode}: nobody knows yet");
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").await.unwrap();
    assert_eq!(read(&mut stream).await.0, 200);
    until(async || delivered(&world).await.is_u64()).await;
}

#[tokio::test]
async fn a_streamed_answer_is_delivered_by_the_next_request() {
    is_delivered_by_the_next_request("streamed").await;
}

#[tokio::test]
async fn the_answer_to_a_report_of_a_host_is_delivered_by_the_next_request() {
    is_delivered_by_the_next_request("reported").await;
}

#[tokio::test]
async fn a_client_that_goes_before_the_answer_finds_it_by_calling_again() {
    let world = world().await;
    let (started, may_end) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let gates = (started.clone(), may_end.clone());
    world.tool("bank/pay", move |number, _| {
        let (started, may_end) = gates.clone();
        async move {
            started.add_permits(1);
            may_end.acquire().await.unwrap().forget();
            Ok(ToolOutput::text(&format!("run {number}")))
        }
    });
    let (address, _stop) = listen(&world).await;
    let call = keyed("bank/pay", json!({}), "k");
    let mut first = TcpStream::connect(address).await.unwrap();
    first.write_all(&post(&call)).await.unwrap();
    started.acquire().await.unwrap().forget();
    drop(first);
    let mut second = TcpStream::connect(address).await.unwrap();
    second.write_all(&post(&call)).await.unwrap();
    may_end.add_permits(1);
    let (status, body) = read(&mut second).await;
    assert_eq!((status, &body["output"]["content"]), (200, &json!("run 1")), "{body}");
    assert_eq!((world.runs("bank/pay"), started.available_permits()), (1, 0));
}
