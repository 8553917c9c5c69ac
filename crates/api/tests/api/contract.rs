//! Rules for all endpoints together: how fields are spelled. The endpoints are those of the OpenAPI document, which is made of the
//! same rows as the router.

use serde_json::{Map, Value, json};

use crate::support::{World, api, get};

/// Field names of the document that are data: a map from severities to numbers may list its keys.
const SEVERITIES: &[&str] = &["not_found", "invalid_input", "server_error", "repeated_auth"];

#[tokio::test(start_paused = true)]
async fn every_field_in_the_document_is_in_camel_case() {
    let (api, _steadfast) = api().await;
    let (_, document) = get(&api, "/openapi.json").await;
    let mut names = Vec::new();
    field_names(&document, &mut names);
    for operations in operations(&document) {
        let parameters = operations.operation["parameters"].as_array().into_iter().flatten();
        names.extend(parameters.map(|parameter| parameter["name"].as_str().unwrap().to_owned()));
    }
    assert!(names.len() > 300, "{names:?}");
    let snake: Vec<_> =
        names.iter().filter(|name| name.contains('_') && !SEVERITIES.contains(&name.as_str())).collect();
    assert!(snake.is_empty(), "not in camelCase: {snake:?}");
}

/// The names of all properties of all schemas within.
fn field_names(schema: &Value, names: &mut Vec<String>) {
    match schema {
        Value::Object(fields) => {
            for (keyword, value) in fields {
                if keyword == "properties" {
                    names.extend(value.as_object().unwrap().keys().cloned());
                }
                field_names(value, names);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| field_names(item, names)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A command that cannot be started, a certificate that is not accepted: the server is away, and trying again cannot help.
#[tokio::test(start_paused = true)]
async fn a_failure_that_does_not_pass_is_no_retriable_error() {
    let world = World::new(&[("guard.mode", "off"), ("trust.mode", "off"), ("breaker.mode", "off")]).await;
    let sources = [
        json!({ "kind": "exit", "code": 127 }),
        json!({ "kind": "exit", "code": 126 }),
        json!({ "kind": "exit", "code": 1 }),
        json!({ "kind": "transport", "error": "tls", "written": false }),
        json!({ "kind": "transport", "error": "connection_refused", "written": false }),
        json!({ "kind": "http", "status": 503 }),
        json!({ "kind": "http", "status": 404 }),
        json!({ "kind": "json_rpc", "code": -32603 }),
        json!({ "kind": "web_socket", "code": 1012 }),
        json!({ "kind": "bad_answer" }),
        json!({ "kind": "is_error" }),
        json!({ "kind": "timeout", "afterMs": 5 }),
    ];
    let mut seen = Map::new();
    for (number, source) in sources.iter().enumerate() {
        let envelope =
            crate::support::keyed("host/tool", json!({ "number": number }), &format!("k-{number}"));
        let begun = world.post("/v1/calls/begin", &[], &envelope.to_string()).await;
        let mut next = begun.body;
        while next["next"] == "run" {
            let path = format!("/v1/calls/{}/report", next["id"].as_str().unwrap());
            let message = "invalid peer certificate: the certificate has expired";
            let failure = json!({ "message": message, "source": source });
            let report = json!({ "attempt": next["attempt"], "failure": failure });
            next = world.post(&path, &[], &report.to_string()).await.body;
        }
        // That status and `retriable` agree is looked at in every answer.
        let result = &next["result"];
        let told = format!("{} {}", result["status"].as_str().unwrap(), result["error"]["retriable"]);
        seen.insert(told, source.clone());
    }
    for told in ["error false", "retry_exhausted true"] {
        assert!(seen.contains_key(told), "{told}: {seen:?}");
    }
}

struct Operation<'d> {
    operation: &'d Value,
}

fn operations(document: &Value) -> Vec<Operation<'_>> {
    let paths = document["paths"].as_object().unwrap();
    let all: Vec<_> = paths
        .values()
        .flat_map(|operations| {
            let operations = operations.as_object().unwrap();
            operations.values().map(|operation| Operation { operation })
        })
        .collect();
    assert!(all.len() > 40, "{} operations", all.len());
    all
}
