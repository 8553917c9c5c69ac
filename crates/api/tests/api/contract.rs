//! Rules for all endpoints: the spelling of fields, and the refusal of requests with unknown names. The endpoints are
//! those of the OpenAPI document, which is made from the same descriptions as the router.

use http::{HeaderMap, Request, StatusCode};
use serde_json::{Map, Value, json};
use steadfast_api::Api;

use crate::support::{ApiTestWorld, api, get, send_bytes};

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

/// Returns the names of all properties of all nested schemas.
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

#[tokio::test(start_paused = true)]
async fn an_unknown_query_parameter_is_refused_by_name_and_the_known_ones_are_listed() {
    let (api, _steadfast) = api().await;
    let (_, document) = get(&api, "/openapi.json").await;
    for DocumentedOperation { method, path, operation } in operations(&document) {
        let refused = send(&api, method, &format!("{}?colour=red", filled(path)), "").await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{method} {path}: {}", refused.message);
        assert!(refused.message.contains("`colour`"), "{method} {path}: {}", refused.message);
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let known: Vec<_> = parameters
            .filter(|parameter| parameter["in"] == "query")
            .flat_map(|parameter| match parameter["schema"].get("properties") {
                // Several parameters with rules for combining them.
                Some(parts) => parts.as_object().unwrap().keys().map(|name| format!("`{name}`")).collect(),
                None => vec![format!("`{}`", parameter["name"].as_str().unwrap())],
            })
            .collect();
        let takes = if known.is_empty() { "no query parameters".to_owned() } else { known.join(", ") };
        let whole = format!("{} {path} takes {takes}", method.to_uppercase());
        assert!(refused.message.ends_with(&whole), "{whole}: {}", refused.message);
    }
    let (_, two) = get(&api, "/v1/status?a=1&b=2").await;
    let message = two["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("unknown query parameters `a`, `b`: GET /v1/status takes"), "{message}");
    let many: Vec<_> = (0..100).map(|number| format!("p{number}=1")).collect();
    let refused = send(&api, "GET", &format!("/v1/status?{}", many.join("&")), "").await;
    assert!(refused.message.contains("`p9`: ") && !refused.message.contains("`p10`"), "{}", refused.message);
}

#[tokio::test(start_paused = true)]
async fn a_wrong_method_is_refused_by_name_and_the_right_ones_are_listed() {
    let (api, _steadfast) = api().await;
    let (_, document) = get(&api, "/openapi.json").await;
    let page = (String::from("/page/main.js"), json!({ "get": {} }));
    let paths = document["paths"].as_object().unwrap().clone().into_iter().chain([page]);
    for (path, operations) in paths {
        let mut allowed: Vec<_> =
            operations.as_object().unwrap().keys().map(|method| method.to_uppercase()).collect();
        if operations.get("get").is_some() {
            allowed.push("HEAD".to_owned());
        }
        allowed.sort();
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
            if allowed.iter().any(|allowed| allowed == method) {
                continue;
            }
            let refused = send(&api, method, &filled(&path), "").await;
            assert_eq!(refused.status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
            assert!(
                refused.message.contains(&format!("does not take the method {method}")),
                "{}",
                refused.message
            );
            let mut header: Vec<_> =
                refused.headers["allow"].to_str().unwrap().split(", ").map(str::to_owned).collect();
            header.sort();
            assert_eq!(header, allowed, "{method} {path}");
            assert!(allowed.iter().all(|one| refused.message.contains(one.as_str())), "{}", refused.message);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_id_is_refused_with_its_kind_and_name() {
    let (api, _steadfast) = api().await;
    let (_, document) = get(&api, "/openapi.json").await;
    for DocumentedOperation { method, path, operation } in
        operations(&document).into_iter().filter(|one| one.path.contains('{'))
    {
        // Any session can be ended, and a breaker can be forced open before the first call of its tool.
        let (kind, body) = match operation["operationId"].as_str().unwrap() {
            "endSession" => continue,
            "reportCall" => ("call", json!({ "attempt": 1, "output": { "content": 1 } })),
            "heartbeat" => ("call", json!({ "attempt": 1 })),
            "cancelCall" => ("call", json!({})),
            "cancelTurn" => ("turn", json!({})),
            "score" | "toolFailures" | "toolAnnotations" => ("tool", json!({})),
            "result" => ("result", json!({})),
            "story" => ("request id", json!({})),
            "trace" => ("turn", json!({})),
            "steerBreaker" => ("breaker", json!({ "to": "reset" })),
            "resetTrust" | "approveRecovery" => ("tool or domain", json!({})),
            "answerApproval" => ("approval", json!({ "decision": "once" })),
            "resolve" => ("record", json!({ "ran": true })),
            other => panic!("how does {other} answer to an unknown id?"),
        };
        let hex = "7c".repeat(32);
        for (id, shown) in [("web%2Fnobody", "`web/nobody`"), ("47", "`47`"), (&hex, &format!("`{hex}`"))] {
            let place = path.find('{').unwrap()..=path.find('}').unwrap();
            let mut uri = path.to_owned();
            uri.replace_range(place, id);
            let refused = send(&api, method, &uri, &body.to_string()).await;
            assert_eq!(refused.status, StatusCode::NOT_FOUND, "{method} {uri}: {}", refused.message);
            let message = &refused.message;
            assert!(message.contains(kind) && message.contains(shown), "{method} {uri}: {message}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_path_is_refused_by_name_and_without_secrets() {
    let (api, _steadfast) = api().await;
    for path in ["/v1/nothing", "/v2/status", "/v1/status/", "/V1/status"] {
        let refused = send(&api, "GET", &format!("{path}?colour=red"), "").await;
        assert_eq!(refused.status, StatusCode::NOT_FOUND, "{path}");
        assert!(refused.message.starts_with(&format!("there is no path `{path}`;")), "{}", refused.message);
    }
    let secret = "sk-live-4f9a8b7c6d5e4f3a2b1c";
    for path in [format!("/v1/{secret}"), format!("/v1/history/{secret}"), format!("/v1/status?{secret}=1")] {
        let refused = send(&api, "GET", &path, "").await;
        assert!(refused.status.is_client_error() && !refused.message.contains(secret), "{}", refused.message);
    }
    let long = send(&api, "GET", &format!("/v1/history/{}", "x".repeat(5000)), "").await;
    assert!(long.message.len() < 400, "{}", long.message);
}

/// A command that cannot be started, a certificate that is not accepted: the server is unavailable, and a retry cannot
/// help.
#[tokio::test(start_paused = true)]
async fn a_permanent_failure_is_not_a_retriable_error() {
    let world =
        ApiTestWorld::new(&[("guard.mode", "off"), ("trust.mode", "off"), ("breaker.mode", "off")]).await;
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
    let mut outcomes = Map::new();
    for (number, source) in sources.iter().enumerate() {
        let envelope =
            crate::support::keyed("host/tool", json!({ "number": number }), &format!("k-{number}"));
        let order = world.post("/v1/calls/begin", &[], &envelope.to_string()).await;
        let mut next = order.body;
        while next["next"] == "run" {
            let path = format!("/v1/calls/{}/report", next["id"].as_str().unwrap());
            let message = "invalid peer certificate: the certificate has expired";
            let failure = json!({ "message": message, "source": source });
            let report = json!({ "attempt": next["attempt"], "failure": failure });
            next = world.post(&path, &[], &report.to_string()).await.body;
        }
        // Every response is checked for agreement of the status and `retriable`.
        let result = &next["result"];
        let outcome = format!("{} {}", result["status"].as_str().unwrap(), result["error"]["retriable"]);
        outcomes.insert(outcome, source.clone());
    }
    for outcome in ["error false", "retry_exhausted true"] {
        assert!(outcomes.contains_key(outcome), "{outcome}: {outcomes:?}");
    }
}

/// Former mismatches: requests that match the document and were answered with 400, and requests that do not match it
/// and were accepted. The generator in the tests of the gateway covers all other requests.
#[tokio::test(start_paused = true)]
async fn a_body_is_refused_with_400_exactly_if_it_does_not_fit_the_document() {
    let world = ApiTestWorld::new(&[]).await;
    let document = &world.document;
    // Each is a separate call: an equal one would wait for it.
    let envelope = |pointer: &str, value: Value| {
        let mut envelope = crate::support::envelope("host/tool", json!({ pointer: value }));
        envelope["payload"]["callHints"] = json!({});
        envelope["transport"] = json!({ "retryBudget": {} });
        let (object, field) = pointer.rsplit_once('/').unwrap();
        envelope.pointer_mut(object).unwrap()[field] = value;
        envelope
    };
    let plan = |calls: Value| {
        let target = json!({ "sessionKey": "s", "actorId": "ann" });
        json!({ "contractVersion": "1.1", "target": target, "plan": { "calls": calls } })
    };
    let failed = |error: Value| json!({ "toolName": "t", "error": error });
    let (call, report) = ("/v1/calls/begin", "/v1/failures");
    let (fits, does_not, contradicts) = (true, false, StatusCode::UNPROCESSABLE_ENTITY);
    let heartbeat = "/v1/calls/x/heartbeat";
    let cases = [
        (call, envelope("/payload/callHints/timeoutMs", json!(0)), does_not, StatusCode::BAD_REQUEST),
        (call, envelope("/payload/callHints/timeoutMs", json!(23.0)), fits, StatusCode::OK),
        (call, envelope("/payload/callHints/timeoutMs", json!(23.5)), does_not, StatusCode::BAD_REQUEST),
        (call, envelope("/transport/retryBudget/maxAttempts", json!(0)), does_not, StatusCode::BAD_REQUEST),
        (call, envelope("/transport/retryBudget/maxAttempts", json!(u64::MAX)), fits, StatusCode::OK),
        (call, envelope("/toolCallId", Value::Null), fits, StatusCode::OK),
        (heartbeat, json!({ "attempt": 23.0 }), fits, StatusCode::NOT_FOUND),
        (report, failed(Value::Null), does_not, StatusCode::BAD_REQUEST),
        (report, failed(json!("")), does_not, StatusCode::BAD_REQUEST),
        (report, failed(json!({})), does_not, StatusCode::BAD_REQUEST),
        (report, failed(json!({ "why": "no disk" })), fits, StatusCode::OK),
        (report, failed(json!(" ")), fits, StatusCode::OK),
        ("/v1/turns", plan(json!([])), does_not, StatusCode::BAD_REQUEST),
        ("/v1/turns", plan(json!([{ "id": "a", "tool": "t" }])), does_not, StatusCode::BAD_REQUEST),
        ("/v1/turns", plan(json!([{ "id": "a", "tool": "t/x", "dependsOn": ["b"] }])), fits, contradicts),
        ("/v1/turns", plan(json!([{ "id": "a", "tool": "t/x", "dependsOn": ["a"] }])), fits, contradicts),
    ];
    for (path, body, is_valid_body, status) in cases {
        let template = path.replace("/x/", "/{id}/");
        let schema =
            &document["paths"][&template]["post"]["requestBody"]["content"]["application/json"]["schema"];
        let whole = json!({ "allOf": [schema], "components": document["components"] });
        let validator = jsonschema::draft202012::new(&whole).unwrap();
        assert_eq!(validator.is_valid(&body), is_valid_body, "{path}: {body}");
        let response = world.post(path, &[("authorization", "Bearer person")], &body.to_string()).await;
        assert_eq!(response.status, status, "{path} {body}: {}", response.body);
    }
}

/// Mutually exclusive query parameters are in the document, and so are cursors and names.
#[tokio::test(start_paused = true)]
async fn a_query_is_refused_with_400_exactly_if_it_does_not_fit_the_document() {
    let (api, _steadfast) = api().await;
    let (_, document) = get(&api, "/openapi.json").await;
    let key = "7c".repeat(32);
    let long = "ä".repeat(257);
    let cases = [
        ("delete", "/v1/records", json!({}), false),
        ("delete", "/v1/records", json!({ "key": key }), true),
        ("delete", "/v1/records", json!({ "key": key, "tool": "a/b" }), false),
        ("delete", "/v1/records", json!({ "tool": "a/b", "tenant": "acme" }), true),
        ("delete", "/v1/records", json!({ "tool": "a" }), false),
        ("get", "/v1/records", json!({ "tenant": "" }), false),
        ("get", "/v1/records", json!({ "tenant": "ä".repeat(256) }), true),
        ("get", "/v1/records", json!({ "tenant": long }), false),
        ("get", "/v1/records", json!({ "tenant": "a\u{7f}b" }), false),
        ("get", "/v1/records", json!({ "after": "" }), false),
        ("get", "/v1/records", json!({ "after": key }), true),
        ("get", "/v1/history", json!({ "after": "99999999999999999999-0" }), true),
        ("get", "/v1/history", json!({ "after": "7" }), false),
        ("get", "/v1/approvals", json!({ "after": "+5" }), false),
        ("get", "/v1/approvals", json!({ "after": "99999999999999999999" }), true),
        ("get", "/v1/breakers", json!({ "after": "tool:a=C3=A4:b" }), true),
        ("get", "/v1/breakers", json!({ "after": "dependency:=C3" }), false),
        ("get", "/v1/breakers", json!({ "after": "dependency:=2A" }), false),
        ("get", "/v1/breakers", json!({ "after": "dependency:=C2=85" }), false),
        ("get", "/v1/tools", json!({ "after": "dependency:=ED=A0=80" }), false),
        ("get", "/v1/tools", json!({ "after": "dependency:*" }), true),
    ];
    for (method, path, query, fits) in cases {
        let parameters = document["paths"][path][method]["parameters"].as_array().unwrap();
        let named = |name: &str| parameters.iter().find(|one| one["name"] == name && one["in"] == "query");
        let fits_schema = |schema: &Value, value: &Value| {
            let whole = json!({ "allOf": [schema], "components": document["components"] });
            jsonschema::draft202012::new(&whole).unwrap().is_valid(value)
        };
        let is_valid = match named("which") {
            Some(which) => fits_schema(&which["schema"], &query),
            None => query
                .as_object()
                .unwrap()
                .iter()
                .all(|(name, value)| fits_schema(&named(name).unwrap()["schema"], value)),
        };
        assert_eq!(is_valid, fits, "{method} {path} {query}");
        let pairs: Vec<_> = query
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, value)| {
                let bytes = value.as_str().unwrap().bytes();
                format!("{name}={}", bytes.map(|byte| format!("%{byte:02X}")).collect::<String>())
            })
            .collect();
        let response = send(&api, method, &format!("{path}?{}", pairs.join("&")), "").await;
        let expected = if fits { StatusCode::OK } else { StatusCode::BAD_REQUEST };
        assert_eq!(response.status, expected, "{method} {path} {query}: {}", response.message);
    }
}

struct DocumentedOperation<'d> {
    method: &'d str,
    path: &'d str,
    operation: &'d Value,
}

fn operations(document: &Value) -> Vec<DocumentedOperation<'_>> {
    let paths = document["paths"].as_object().unwrap();
    let all: Vec<_> = paths
        .iter()
        .flat_map(|(path, operations)| {
            let operations = operations.as_object().unwrap();
            operations.iter().map(move |(method, operation)| DocumentedOperation { method, path, operation })
        })
        .collect();
    assert!(all.len() > 40, "{} operations", all.len());
    all
}

/// Returns a path with a value for each parameter.
fn filled(path: &str) -> String {
    let parts = path.split('/').map(|part| if part.starts_with('{') { "x" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

struct RefusedRequest {
    status: StatusCode,
    headers: HeaderMap,
    message: String,
}

/// Sends a request as the admin.
async fn send(api: &Api, method: &str, uri: &str, body: &str) -> RefusedRequest {
    let request = Request::builder().method(method.to_uppercase().as_str()).uri(uri);
    let request = request.header("authorization", "Bearer person");
    let response = send_bytes(api, request, body.as_bytes().to_vec()).await;
    let message = response.body["error"]["message"].as_str().unwrap_or_default().to_owned();
    RefusedRequest { status: response.status, headers: response.headers, message }
}
