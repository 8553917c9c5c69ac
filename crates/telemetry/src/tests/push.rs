//! Pushing to a collector.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;

use steadfast_executor::Attempt;

use super::*;
use crate::OtlpOptions;

/// A collector, and the heads and bodies of what is pushed to it.
pub(super) fn collector() -> (String, mpsc::Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/", listener.local_addr().unwrap());
    let (pushes, pushed) = mpsc::channel();
    thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let mut heard = Vec::new();
            let mut piece = [0; 65536];
            let (head, body) = loop {
                let read = connection.read(&mut piece).unwrap();
                heard.extend_from_slice(&piece[..read]);
                let Some(end) = heard.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
                let head = String::from_utf8(heard[..end].to_vec()).unwrap();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
                if heard.len() == end + 4 + length.parse::<usize>().unwrap() {
                    break (head, heard.split_off(end + 4));
                }
            };
            // Before it is answered: whoever pushed looks for it as soon as it has the answer.
            let _ = pushes.send((head, body));
            connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        }
    });
    (endpoint, pushed)
}

#[tokio::test]
async fn spans_and_metrics_are_pushed_to_a_collector() {
    let (endpoint, pushed) = collector();
    let options = Options { otlp: Some(OtlpOptions::to(endpoint)), ..Options::default() };
    let telemetry = Arc::new(Telemetry::start(options).unwrap());
    let engine = Engine::builder().listener(telemetry.clone()).start().await;
    engine.call(pay(1, "k"), async |_: Attempt| paid()).await;
    telemetry.shutdown(Duration::from_secs(20));
    let mut pushes: Vec<(String, Vec<u8>)> = pushed.try_iter().collect();
    pushes.sort();
    let [(metrics_head, metrics), (spans_head, spans)] = &pushes[..] else {
        panic!("{} pushes", pushes.len())
    };
    assert!(metrics_head.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{metrics_head}");
    assert!(spans_head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{spans_head}");
    assert!(spans_head.contains("\r\ncontent-type: application/x-protobuf"), "{spans_head}");
    // Texts stand in protobuf as they are.
    let holds = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|piece| piece == text.as_bytes());
    for text in
        ["tool_execution", "tool_attempt", "service.name", "steadfast", "idempotency.key", "tool.name"]
    {
        assert!(holds(spans, text), "{text}");
    }
    for text in [
        "steadfast_tool_calls",
        "steadfast_tool_call_duration_ms",
        "steadfast_tool_info",
        "bank/pay",
        "status",
    ] {
        assert!(holds(metrics, text), "{text}");
    }
}

#[tokio::test]
async fn a_collector_that_is_not_there_holds_up_no_call() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options = Options { otlp: Some(OtlpOptions::to(format!("http://{gone}"))), ..Options::default() };
    let telemetry = Arc::new(Telemetry::start(options).unwrap());
    let engine = Engine::builder().listener(telemetry.clone()).start().await;
    let called = engine.call(pay(1, "k"), async |_: Attempt| paid()).await;
    assert_eq!(called.result.status, steadfast_core::code::Status::Success);
}

#[test]
fn an_address_that_cannot_be_pushed_to_is_refused_before_anything_starts() {
    let options = Options { otlp: Some(OtlpOptions::to("https://collector:4318")), ..Options::default() };
    let error = Telemetry::start(options).unwrap_err().to_string();
    assert_eq!(
        error,
        "the OTLP endpoint cannot be https: put a collector in between; write it as http://127.0.0.1:4318"
    );
}
