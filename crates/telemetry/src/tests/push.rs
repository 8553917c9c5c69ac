//! Tests of the push to a collector.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use steadfast_executor::Attempt;

use super::*;
use crate::OtlpOptions;

/// Starts a collector, and returns the heads and bodies of the pushes to it.
pub(super) fn collector() -> (String, mpsc::Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/", listener.local_addr().unwrap());
    let (pushes, pushed) = mpsc::channel();
    thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let (head, body) = read_push(&mut connection);
            // Before the response, because the test checks it once the push has returned.
            let _ = pushes.send((head, body));
            connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        }
    });
    (endpoint, pushed)
}

fn read_push(connection: &mut TcpStream) -> (String, Vec<u8>) {
    let mut received = Vec::new();
    let mut piece = [0; 65536];
    loop {
        let read = connection.read(&mut piece).unwrap();
        assert_ne!(read, 0, "a push that ends in the middle");
        received.extend_from_slice(&piece[..read]);
        let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(received[..end].to_vec()).unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if received.len() == end + 4 + length.parse::<usize>().unwrap() {
            return (head, received.split_off(end + 4));
        }
    }
}

#[tokio::test]
async fn spans_and_metrics_are_pushed_to_a_collector() {
    let (endpoint, pushed) = collector();
    let options = Options { otlp: Some(OtlpOptions::to(endpoint)), ..Options::default() };
    let telemetry = Arc::new(Telemetry::start(options).unwrap());
    let engine = Engine::builder().listener(telemetry.clone()).start().await;
    engine.call(pay(1, "k"), async |_: Attempt| paid()).await;
    telemetry.shutdown(TEST_TIMEOUT);
    // On a slow machine, periodic pushes happen before the end, in any number of pieces.
    let (mut spans, mut metrics) = (Vec::new(), Vec::new());
    for (head, body) in pushed.try_iter() {
        assert!(head.contains("\r\ncontent-type: application/x-protobuf"), "{head}");
        match head.lines().next().unwrap() {
            "POST /v1/traces HTTP/1.1" => spans.extend(body),
            "POST /v1/metrics HTTP/1.1" => metrics.extend(body),
            other => panic!("{other}"),
        }
    }
    // Texts are unchanged in protobuf.
    let holds = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|piece| piece == text.as_bytes());
    for text in
        ["tool_execution", "tool_attempt", "service.name", "steadfast", "idempotency.key", "tool.name"]
    {
        assert!(holds(&spans, text), "{text}");
    }
    for text in [
        "steadfast_tool_calls",
        "steadfast_tool_call_duration_ms",
        "steadfast_tool_info",
        "bank/pay",
        "status",
    ] {
        assert!(holds(&metrics, text), "{text}");
    }
}

#[tokio::test]
async fn a_collector_that_is_not_there_holds_up_no_call() {
    // This port is never assigned to a socket that asks for any.
    let options = Options { otlp: Some(OtlpOptions::to("http://127.0.0.1:1")), ..Options::default() };
    let telemetry = Arc::new(Telemetry::start(options).unwrap());
    let engine = Engine::builder().listener(telemetry.clone()).start().await;
    let called = engine.call(pay(1, "k"), async |_: Attempt| paid()).await;
    assert_eq!(called.result.status, steadfast_core::code::CallStatus::Success);
}

#[test]
fn an_address_that_cannot_be_pushed_to_is_refused_before_anything_starts() {
    let options = Options { otlp: Some(OtlpOptions::to("ftp://collector:4318")), ..Options::default() };
    let error = Telemetry::start(options).unwrap_err().to_string();
    assert_eq!(
        error,
        "the OTLP endpoint cannot be used: not an http or https URL; write it as http://127.0.0.1:4318"
    );
}
