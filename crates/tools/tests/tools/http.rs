//! Tools that are requests over HTTP.

use std::time::{Duration, SystemTime};

use steadfast_core::code::{CallStatus, Code};
use steadfast_core::policy::{EnforcementMode, MechanismModes, ToolClass};
use steadfast_tools::LONGEST_ANSWER;
use tokio::net::TcpListener;

use crate::listener::{ListenerReply, ToolTestServer, answer};
use crate::{StoppedClock, call, code, content, engine, message, once, soon, standard, tool, toolbox};

#[tokio::test]
async fn a_call_is_one_request_with_its_parameters_headers_and_key() {
    let server = ToolTestServer::start(|_| answer("200 OK", "", r#"{"flights": [1.50]}"#)).await;
    let text =
        server.tool("POST", "/{airline}/search?v=1", "headers = { Authorization = \"Bearer ${SECRET}\" }");
    let search = tool(&toolbox(&text), "http", "t");
    let engine = engine(standard(ToolClass::Mutating)).await;
    let mut envelope = call("http", r#"{"to": "LIS", "airline": "a/b", "seats": 2}"#, Some("order 7"));
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    envelope.trace.traceparent = Some(trace.to_owned());
    let called = soon(engine.call(envelope, search.clone())).await;
    assert_eq!(content(&called), r#"{"flights": [1.50]}"#);
    let request = &server.requests()[0];
    assert_eq!(request.line, "POST /a%2Fb/search?v=1 HTTP/1.1");
    assert_eq!(request.body, r#"{"to":"LIS","seats":2}"#);
    for (name, value) in [
        ("content-type", "application/json"),
        ("authorization", "Bearer hunter2 hunter2hunter2"),
        ("idempotency-key", "order 7"),
        ("traceparent", trace),
        ("host", server.address.to_string().as_str()),
        ("accept-encoding", "identity"),
    ] {
        assert_eq!(request.header(name), Some(value), "{name}");
    }

    // A key that no header can carry is encoded, so that it stays the same and unique.
    soon(engine.call(call("http", r#"{"airline": "x"}"#, Some("größe")), search.clone())).await;
    assert_eq!(server.requests()[1].header("idempotency-key"), Some("=?base64?Z3LDtsOfZQ==?="));
    // Without a key of the caller, it is the id of the run.
    soon(engine.call(call("http", r#"{"airline": "x"}"#, None), search.clone())).await;
    assert!(server.requests()[2].header("idempotency-key").is_some_and(|key| !key.is_empty()));
}

#[tokio::test]
async fn tr_14_switched_off_a_request_carries_no_key() {
    let server = ToolTestServer::start(|_| answer("200 OK", "", "")).await;
    let mut policy = standard(ToolClass::Mutating);
    policy.modes = MechanismModes::all(EnforcementMode::Off);
    let engine = engine(policy).await;
    let put = tool(&toolbox(&server.tool("PUT", "/", "")), "http", "t");
    let called = soon(engine.call(call("http", "{}", Some("k")), put)).await;
    assert_eq!(called.result.status, CallStatus::Success);
    assert_eq!(server.requests()[0].header("idempotency-key"), None);
}

#[tokio::test]
async fn an_answer_is_json_text_or_nothing_with_its_status_beside_it() {
    for (method, reply, content_is, status) in [
        ("POST", ("200 OK", "Content-Type: text/plain\r\n", " [1, 2.0] "), "[1, 2.0]", 200),
        ("GET", ("200 OK", "Content-Type: application/json\r\n", "plain words"), "\"plain words\"", 200),
        ("DELETE", ("202 Accepted", "", "later"), "\"later\"", 202),
        ("PATCH", ("200 OK", "", ""), "null", 200),
    ] {
        let (line, headers, body) = reply;
        let server = ToolTestServer::start(move |_| answer(line, headers, body)).await;
        let asking = tool(&toolbox(&server.tool(method, "/x", "")), "http", "t");
        let called =
            soon(engine(once(ToolClass::Unknown)).await.call(call("http", "{\"a\":1}", None), asking)).await;
        assert_eq!(content(&called), content_is, "{method}");
        let metadata = called.result.output.unwrap().metadata.unwrap();
        assert_eq!(metadata.as_str(), format!("{{\"status\":{status}}}"));
        let query = if matches!(method, "GET" | "DELETE") { "?a=1" } else { "" };
        assert_eq!(server.requests()[0].line, format!("{method} /x{query} HTTP/1.1"));
    }
    // A response without a body ends with its head.
    let head = || ListenerReply::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n".to_vec());
    let none = || ListenerReply::Raw(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec());
    for (method, server) in [
        ("HEAD", ToolTestServer::start(move |_| head()).await),
        ("GET", ToolTestServer::start(move |_| none()).await),
    ] {
        let asking = tool(&toolbox(&server.tool(method, "/x", "")), "http", "t");
        let called =
            soon(engine(once(ToolClass::Unknown)).await.call(call("http", "{}", None), asking)).await;
        assert_eq!(content(&called), "null", "{method}");
    }
}

#[tokio::test]
async fn tr_5_a_503_is_retried_after_the_requested_delay() {
    let server = ToolTestServer::start(|number| match number {
        0 => answer("503 Service Unavailable", "Retry-After: 1\r\n", "busy"),
        _ => answer("200 OK", "", "{}"),
    })
    .await;
    let pay = tool(&toolbox(&server.tool("POST", "/pay", "")), "http", "t");
    let called =
        soon(engine(standard(ToolClass::Mutating)).await.call(call("http", "{\"n\":1}", Some("k")), pay))
            .await;
    assert_eq!((called.result.status, called.result.attempts), (CallStatus::Success, 2));
    let waits: Vec<u64> = called.result.retried_by.iter().map(|retried| retried.delay_ms).collect();
    assert!(waits.len() == 1 && waits.iter().all(|wait| *wait >= 1000), "{waits:?}");
    let [first, second] = &*server.requests() else { panic!("two requests") };
    assert_eq!(first.header("idempotency-key"), second.header("idempotency-key"));
    assert_eq!((&*first.body, &*second.body), ("{\"n\":1}", "{\"n\":1}"));
}

#[tokio::test]
async fn a_date_in_retry_after_is_passed_on() {
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3600));
    let server = ToolTestServer::start(move |_| {
        answer("429 Too Many Requests", &format!("Retry-After: {date}\r\n"), "")
    })
    .await;
    let asking = tool(&toolbox(&server.tool("GET", "/", "")), "http", "t");
    let called =
        soon(engine(standard(ToolClass::ReadOnly)).await.call(call("http", "{}", None), asking)).await;
    let error = called.result.error.unwrap();
    let wait = error.retry_after_ms.expect("it is told when to come again");
    assert!((3_500_000..=3_600_000).contains(&wait), "{wait}");
    assert_eq!(server.requests().len(), 1, "an hour is not waited for");
}

#[tokio::test]
async fn sf_1_a_write_whose_connection_is_lost_is_unknown_and_does_not_run_again() {
    let server = ToolTestServer::start(|_| ListenerReply::Cut).await;
    let tools = toolbox(&server.tool("POST", "/pay", ""));
    let engine = engine(standard(ToolClass::Mutating)).await;
    for _ in 0..2 {
        let called = soon(engine.call(call("http", "{}", Some("k")), tool(&tools, "http", "t"))).await;
        assert_eq!(code(&called), Some(Code::OutcomeUnknown), "{called:?}");
        assert_eq!(server.requests().len(), 1);
    }
}

#[tokio::test]
async fn a_write_with_an_incomplete_response_is_unknown_and_a_read_is_retried() {
    for (class, runs, code_is) in
        [(ToolClass::Mutating, 1, Some(Code::OutcomeUnknown)), (ToolClass::ReadOnly, 2, None)]
    {
        let server = ToolTestServer::start(|number| match number {
            0 => ListenerReply::Broken(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf".to_vec()),
            _ => answer("200 OK", "", "{}"),
        })
        .await;
        let asking = tool(&toolbox(&server.tool("POST", "/", "")), "http", "t");
        let called = soon(engine(standard(class)).await.call(call("http", "{}", Some("k")), asking)).await;
        assert_eq!((code(&called), server.requests().len()), (code_is, runs), "{called:?}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_got_nothing_so_that_a_write_is_tried_again() {
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let text = format!("[http_tools.t]\nmethod = \"POST\"\nurl = \"http://{address}/\"\n");
    let mut policy = standard(ToolClass::Mutating);
    policy.retry.attempts = 2.try_into().unwrap();
    let called =
        soon(engine(policy).await.call(call("http", "{}", None), tool(&toolbox(&text), "http", "t"))).await;
    assert_eq!((called.result.attempts, code(&called)), (2, Some(Code::RetryExhausted)), "{called:?}");
}

#[tokio::test]
async fn unsendable_parameters_are_not_sent() {
    let server = ToolTestServer::start(|_| answer("200 OK", "", "")).await;
    let asking = tool(&toolbox(&server.tool("GET", "/users/{id}", "")), "http", "t");
    let engine = engine(standard(ToolClass::Mutating)).await;
    for params in ["{}", r#"{"id":".."}"#, r#"{"id":"../../admin"}"#, r#"{"id":"a","filter":{"x":1}}"#] {
        let called = soon(engine.call(call("http", params, None), asking.clone())).await;
        assert_eq!((code(&called), called.result.attempts), (Some(Code::InvalidArguments), 1), "{called:?}");
    }
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn hostile_values_arrive_as_one_segment_and_one_value() {
    let server = ToolTestServer::start(|_| answer("200 OK", "", "")).await;
    let asking = tool(&toolbox(&server.tool("DELETE", "/users/{id}/keys?q={q}", "")), "http", "t");
    let engine = engine(once(ToolClass::Mutating)).await;
    let hostile = r#"{"id":"a/b?x=1#y","q":"a&role=admin\r\nX-Evil: 1","größe &=":"日本/#"}"#;
    let called = soon(engine.call(call("http", hostile, None), asking)).await;
    assert_eq!(called.result.status, CallStatus::Success);
    let request = &server.requests()[0];
    assert_eq!(
        request.line,
        "DELETE /users/a%2Fb%3Fx%3D1%23y/keys?q=a%26role%3Dadmin%0D%0AX-Evil%3A%201\
         &gr%C3%B6%C3%9Fe%20%26%3D=%E6%97%A5%E6%9C%AC%2F%23 HTTP/1.1"
    );
    assert_eq!(request.header("x-evil"), None);
}

#[tokio::test]
async fn an_error_response_is_reported_with_the_text_of_the_server() {
    for (status, body, code_is, expected) in [
        ("404 Not Found", "no such\n user", Code::ToolError, "the status 404 (Not Found): no such user"),
        ("409 Conflict", "", Code::ToolError, "the status 409 (Conflict)"),
        ("400 Bad Request", r#"{"error":{"message":"balance too low"}}"#, Code::ToolError, "balance too low"),
        (
            "422 Unprocessable Entity",
            r#"{"error":"Missing required parameter: to"}"#,
            Code::InvalidArguments,
            "to",
        ),
        ("500 Internal Server Error", &"<p> x </p>".repeat(1000), Code::ToolError, "…"),
    ] {
        let body = body.to_owned();
        let server = ToolTestServer::start(move |_| answer(status, "", &body)).await;
        let asking = tool(&toolbox(&server.tool("POST", "/", "")), "http", "t");
        let called =
            soon(engine(once(ToolClass::ReadOnly)).await.call(call("http", "{}", None), asking)).await;
        assert_eq!(code(&called), Some(code_is), "{called:?}");
        assert!(message(&called).contains(expected), "{status}: {}", message(&called));
        assert!(message(&called).len() < 2000);
        assert_eq!(server.requests().len(), 1);
    }
}

#[tokio::test]
async fn redirects_are_reported_and_not_followed() {
    let away = "Location: https://evil.example/in?token=hunter2hunter2\r\n";
    let server = ToolTestServer::start(move |_| answer("302 Found", away, "")).await;
    let asking = tool(&toolbox(&server.tool("POST", "/", "")), "http", "t");
    let called =
        soon(engine(standard(ToolClass::ReadOnly)).await.call(call("http", "{}", None), asking)).await;
    assert_eq!((code(&called), server.requests().len()), (Some(Code::ToolError), 1));
    let text = message(&called);
    assert!(text.contains("https://evil.example") && text.contains("not followed"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}

#[tokio::test]
async fn a_response_that_is_too_long_or_compressed_is_a_fault() {
    let long = vec![b'x'; LONGEST_ANSWER + 1];
    let server = ToolTestServer::start(move |_| answer("200 OK", "", &long)).await;
    let packed = ToolTestServer::start(|_| answer("200 OK", "Content-Encoding: gzip\r\n", "\x1f")).await;
    for (server, expected) in
        [(server, "it has 67108865 bytes, and the limit is 67108864"), (packed, "compressed (gzip)")]
    {
        let asking = tool(&toolbox(&server.tool("POST", "/", "")), "http", "t");
        let called =
            soon(engine(standard(ToolClass::ReadOnly)).await.call(call("http", "{}", None), asking)).await;
        assert!(message(&called).contains(expected), "{called:?}");
    }
}

#[tokio::test]
async fn sf_6_headers_and_paths_are_in_no_error_and_no_debug_output() {
    let server = ToolTestServer::start(|_| {
        let repeated = "you sent authorization=Bearer hunter2 hunter2hunter2 and hunter2hunter2";
        answer("401 Unauthorized", "WWW-Authenticate: Bearer hunter2hunter2\r\n", repeated)
    })
    .await;
    let more = "headers = { Authorization = \"Bearer ${SECRET}\", X-Api-Key = \"hunter2hunter2\" }";
    let tools = toolbox(&server.tool("POST", "/hooks/hunter2hunter2?key=hunter2hunter2", more));
    let asking = tool(&tools, "http", "t");
    let called =
        soon(engine(once(ToolClass::Mutating)).await.call(call("http", "{}", None), asking.clone())).await;
    assert_eq!(server.requests().len(), 1);
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let away =
        format!("[http_tools.t]\nmethod = \"POST\"\nurl = \"http://{address}/hunter2hunter2\"\n{more}\n");
    let refused = soon(
        engine(once(ToolClass::Mutating))
            .await
            .call(call("http", "{}", None), tool(&toolbox(&away), "http", "t")),
    )
    .await;
    for text in [format!("{called:?}"), format!("{refused:?}"), format!("{tools:?} {asking:?} {tools:#?}")] {
        assert!(!text.contains("hunter2"), "{text}");
    }
    assert!(message(&called).contains("you sent"), "{called:?}");
}

#[tokio::test]
async fn a_cancelled_request_is_dropped() {
    let server = ToolTestServer::start(|_| ListenerReply::Hang).await;
    let asking = tool(&toolbox(&server.tool("GET", "/", "")), "http", "t");
    // Cancelled by the timeout, which is reported as such.
    let mut policy = once(ToolClass::ReadOnly);
    policy.time.attempt = Duration::from_secs(30);
    let clock = StoppedClock::new();
    let calling = tokio::spawn(engine(policy.clone()).await.call(call("http", "{}", None), asking.clone()));
    server.wait_for_request().await;
    clock.pass(policy.time.attempt).await;
    let called = soon(calling).await.unwrap();
    assert_eq!(code(&called), Some(Code::Timeout), "{called:?}");
    soon(server.left()).await;
    // Cancelled by the caller, for tools that are safe to repeat and for others.
    for class in [ToolClass::ReadOnly, ToolClass::Mutating] {
        let engine = engine(once(class)).await;
        let calling = engine.call(call("http", "{}", Some("k")), asking.clone());
        let cancel = calling.canceller();
        let calling = tokio::spawn(calling);
        soon(server.wait_for_request()).await;
        cancel.cancel();
        soon(server.left()).await;
        let called = soon(calling).await.unwrap();
        assert!(matches!(code(&called), Some(Code::Cancelled | Code::OutcomeUnknown)), "{called:?}");
    }
}

#[tokio::test]
async fn a_silent_write_has_an_unknown_outcome_and_leaves_nothing_open() {
    let server = ToolTestServer::start(|_| ListenerReply::Hang).await;
    let mut policy = standard(ToolClass::Mutating);
    policy.time.attempt = Duration::from_secs(30);
    let engine = engine(policy.clone()).await;
    let pay = tool(&toolbox(&server.tool("POST", "/", "")), "http", "t");
    let clock = StoppedClock::new();
    let calling = tokio::spawn(engine.call(call("http", "{}", Some("k")), pay.clone()));
    server.wait_for_request().await;
    clock.pass(policy.time.attempt).await;
    let again = tokio::spawn(engine.call(call("http", "{}", Some("k")), pay.clone()));
    for calling in [calling, again] {
        let called = soon(calling).await.unwrap();
        assert_eq!(code(&called), Some(Code::OutcomeUnknown), "{called:?}");
    }
    soon(server.left()).await;
    assert_eq!(server.requests().len(), 1);
    soon(async {
        while engine.in_flight_calls() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn tools_of_one_host_share_their_connections() {
    let server = ToolTestServer::start(|_| answer("200 OK", "", "{}")).await;
    let one = server.tool("POST", "/one", "");
    let text = format!("{one}{}", one.replace("http_tools.t", "http_tools.u").replace("/one", "/two"));
    let tools = toolbox(&text);
    let engine = engine(standard(ToolClass::ReadOnly)).await;
    for name in ["t", "u", "t"] {
        let called = soon(engine.call(call("http", "{}", None), tool(&tools, "http", name))).await;
        assert_eq!(called.result.status, CallStatus::Success);
        // The connection notices the end of the response slightly later.
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }
    let lines: Vec<String> = server.requests().into_iter().map(|request| request.line).collect();
    assert_eq!(lines, ["POST /one HTTP/1.1", "POST /two HTTP/1.1", "POST /one HTTP/1.1"]);
    assert_eq!(server.connections(), 1);
}
