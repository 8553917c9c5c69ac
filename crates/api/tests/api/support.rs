//! What the tests speak in.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use steadfast::classify::{Fault, Source};
use steadfast::{Answer, Attempt, Sources, Steadfast, call, output};
use steadfast_api::{Access, AdminToken, Api};

/// The API of an engine that has seen some calls: two that worked, one of them twice, and three that cost a tool its trust.
pub(crate) async fn api() -> (Api, Steadfast) {
    let steadfast = Steadfast::opening(Sources::default())
        .set("store.kind", "memory")
        .set("tools.\"bank/pay\".class", "mutating")
        .set("tools.\"bank/fails\".breaker.mode", "off")
        .set("tools.\"bank/fails\".retry.attempts", "1")
        .open()
        .await
        .unwrap();
    let pay = async |_: Attempt| -> Answer { Ok(output("paid, token sk-live-4f9a8b7c6d5e4f3a2b1c")) };
    let fails = async |_: Attempt| -> Answer { Err(Fault::new(Source::Http { status: 500 }, "no").into()) };
    for key in ["a", "a", "b"] {
        let envelope = call("bank", "pay").params(&[("invoice", key)]).key(key).session("s-1").envelope();
        steadfast.call(envelope.unwrap(), pay).await;
    }
    for amount in 0..3 {
        let envelope = call("bank", "fails").params(&[("amount", amount)]).session("s-2").envelope();
        steadfast.call(envelope.unwrap(), fails).await;
    }
    // The history is gathered for a moment before it is written.
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    let access = Access { admin: AdminToken::new("person"), ..Access::default() };
    (Api::new(steadfast.clone(), access), steadfast)
}

/// Asks for something that is to be seen.
pub(crate) async fn get(api: &Api, path: &str) -> (StatusCode, Value) {
    ask(api, Request::get(path), "").await
}

/// Asks with this body, on this machine.
pub(crate) async fn ask(api: &Api, request: http::request::Builder, body: &str) -> (StatusCode, Value) {
    let request = request.header("host", "127.0.0.1").body(Full::new(Bytes::from(body.to_owned()))).unwrap();
    let response = api.respond(request).await;
    let status = response.status();
    let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(body.to_vec()).unwrap();
    let value = if kind == "application/json" { serde_json::from_str(&text).unwrap() } else { text.into() };
    (status, value)
}

/// An answer is one of those that the document has for this operation, and looks as it says.
pub(crate) fn fits(document: &Value, operation: &Value, status: StatusCode, body: &Value) {
    let answer = &operation["responses"][status.as_str()];
    assert!(answer["content"].is_object(), "{} answers {status}: {body}", operation["operationId"]);
    let Some(schema) = answer["content"]["application/json"].get("schema") else { return };
    // References point into the document.
    let whole = json!({ "allOf": [schema], "components": document["components"] });
    let validator = jsonschema::draft202012::new(&whole).unwrap();
    let wrong: Vec<_> = validator.iter_errors(body).map(|error| error.to_string()).collect();
    assert!(wrong.is_empty(), "{}: {wrong:?} in {body}", operation["operationId"]);
}
