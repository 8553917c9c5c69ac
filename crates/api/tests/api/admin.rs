//! Changes by operators over HTTP: their effect, the audit log, and the required token.

use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use steadfast::call::{EnvelopeBuilder, ToolResult, output::ToolOutput};
use steadfast::{Attempt, Steadfast};
use steadfast_api::{AccessRules, AdminToken, Api};

use crate::support::{api, fits, gathered_is_written, get, send_request};

async fn send_as_admin(api: &Api, method: Method, path: &str, body: &Value) -> (StatusCode, Value) {
    let request = Request::builder().method(method).uri(path);
    let request = request.header("authorization", "Bearer person").header("x-operator", "ann");
    send_request(api, request, &body.to_string()).await
}

async fn deeds(api: &Api) -> Vec<(String, String)> {
    let (status, body) = send_as_admin(api, Method::GET, "/v1/audit", &Value::Null).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let audit = body["audit"].as_array().unwrap().iter();
    audit.map(|entry| (text(&entry["deed"]), text(&entry["by"]["name"]))).collect()
}

#[tokio::test(start_paused = true)]
async fn a_breaker_is_forced_open_and_reset() {
    let (api, steadfast) = api().await;
    let path = "/v1/breakers/tool:bank:pay";
    let (status, body) =
        send_as_admin(&api, Method::POST, path, &json!({ "to": "open", "for": "30m" })).await;
    assert_eq!((status, &body["breaker"]["state"]), (StatusCode::OK, &json!("FORCED_OPEN")), "{body}");
    let pay = async |_: Attempt| -> ToolResult { Ok(ToolOutput::text("paid")) };
    let refused =
        steadfast.call_envelope(EnvelopeBuilder::new("bank/pay").key("c").build().unwrap(), pay).await;
    let error = refused.result.error.unwrap();
    assert_eq!(
        (error.code.to_string().as_str(), error.rule.as_deref()),
        ("circuit_open", Some("breaker.forced_by_hand"))
    );
    let (_, body) = get(&api, "/v1/breakers").await;
    let forced =
        body["breakers"].as_array().unwrap().iter().find(|breaker| breaker["key"] == "tool:bank:pay");
    assert_eq!(forced.unwrap()["forced"]["by"], "hand", "{body}");
    let (status, body) = send_as_admin(&api, Method::POST, path, &json!({ "to": "reset" })).await;
    assert_eq!((status, &body["before"]), (StatusCode::OK, &json!("FORCED_OPEN")), "{body}");
    let ran = steadfast.call_envelope(EnvelopeBuilder::new("bank/pay").key("c").build().unwrap(), pay).await;
    assert!(ran.result.error.is_none());
    let by = |deed: &str| (deed.to_owned(), "ann".to_owned());
    assert_eq!(deeds(&api).await, [by("breaker_reset"), by("breaker_forced_open")]);
}

#[tokio::test(start_paused = true)]
async fn rp_13_trust_is_restored_through_the_api() {
    let (api, _steadfast) = api().await;
    let (status, body) =
        send_as_admin(&api, Method::POST, "/v1/trust/bank%2Ffails/reset", &Value::Null).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    assert_eq!(get(&api, "/v1/trust").await.1["trust"], json!([]));
    assert_eq!(get(&api, "/v1/status").await.1["verdict"], "fine");
    assert_eq!(deeds(&api).await.first().unwrap().0, "trust_reset");
    let (status, _) = send_as_admin(&api, Method::POST, "/v1/trust/bank%2Fnone/reset", &Value::Null).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_is_answered() {
    let (api, steadfast) = api().await;
    let works = async |_: Attempt| -> ToolResult { Ok(ToolOutput::text("done")) };
    let call = || EnvelopeBuilder::new("bank/fails").args(&[("amount", 7)]).session("s-2").build().unwrap();
    let parked = steadfast.call_envelope(call(), works).await;
    assert_eq!(parked.result.error.unwrap().code.to_string(), "approval_required");
    gathered_is_written().await;
    let (_, body) = get(&api, "/v1/approvals").await;
    let id = body["approvals"][0]["id"].as_u64().unwrap();
    let path = format!("/v1/approvals/{id}");
    let (status, body) =
        send_as_admin(&api, Method::POST, &path, &json!({ "decision": "time", "for": "soon" })).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
    let (status, body) = send_as_admin(&api, Method::POST, &path, &json!({ "decision": "once" })).await;
    assert_eq!((status, &body), (StatusCode::OK, &json!({ "granted": true })));
    assert!(steadfast.call_envelope(call(), works).await.result.error.is_none(), "it runs now");
    let (status, _) = send_as_admin(&api, Method::POST, &path, &json!({ "decision": "deny" })).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "it was answered");
}

#[tokio::test(start_paused = true)]
async fn a_call_runs_again_after_its_record_is_deleted() {
    let (api, steadfast) = api().await;
    let (_, body) = get(&api, "/v1/records?session=s-1").await;
    let key = body["records"][0]["key"].as_str().unwrap().to_owned();
    let (status, body) = send_as_admin(&api, Method::DELETE, "/v1/records", &Value::Null).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "nobody forgets everything by mistake: {body}");
    let (_, body) =
        send_as_admin(&api, Method::DELETE, &format!("/v1/records?key={key}"), &Value::Null).await;
    assert_eq!(body, json!({ "forgotten": 1 }));
    let (_, body) = send_as_admin(&api, Method::DELETE, "/v1/records?tool=bank/pay", &Value::Null).await;
    assert_eq!(body, json!({ "forgotten": 1 }));
    let pay = async |_: Attempt| -> ToolResult { Ok(ToolOutput::text("paid")) };
    let again =
        EnvelopeBuilder::new("bank/pay").args(&[("invoice", "a")]).key("a").session("s-1").build().unwrap();
    assert!(!steadfast.call_envelope(again, pay).await.result.from_cache);
    let (status, _) =
        send_as_admin(&api, Method::POST, &format!("/v1/records/{key}/resolve"), &json!({ "ran": true }))
            .await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test(start_paused = true)]
async fn switches_are_turned_one_by_one() {
    let (api, steadfast) = api().await;
    let (status, body) =
        send_as_admin(&api, Method::PUT, "/v1/switches", &json!({ "breaker": "shadow" })).await;
    assert_eq!(
        (status, &body["breaker"], &body["all"]),
        (StatusCode::OK, &json!("shadow"), &json!("enforce"))
    );
    let (_, body) = send_as_admin(&api, Method::PUT, "/v1/switches", &json!({ "all": "off" })).await;
    assert_eq!((&body["breaker"], &body["all"]), (&json!("shadow"), &json!("off")));
    let works = async |_: Attempt| -> ToolResult { Ok(ToolOutput::text("done")) };
    let replay =
        EnvelopeBuilder::new("bank/pay").args(&[("invoice", "a")]).key("a").session("s-1").build().unwrap();
    assert!(!steadfast.call_envelope(replay, works).await.result.from_cache, "nothing is decided any more");
    assert_eq!(deeds(&api).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn switches_turned_at_the_same_moment_are_all_turned() {
    let steadfast = Steadfast::builder().set("store.kind", "memory").build().await.unwrap();
    let api = Api::new(steadfast, AccessRules { admin: AdminToken::new("person"), ..AccessRules::default() });
    for _ in 0..20 {
        let mechanisms = ["all", "dedupe", "retry", "breaker", "guard", "trust"];
        let reset = json!({ "all": "enforce", "dedupe": "enforce", "retry": "enforce", "breaker": "enforce", "guard": "enforce", "trust": "enforce" });
        send_as_admin(&api, Method::PUT, "/v1/switches", &reset).await;
        let turning = mechanisms.map(|name| {
            let api = api.clone();
            tokio::spawn(async move {
                send_as_admin(&api, Method::PUT, "/v1/switches", &json!({ name: "shadow" })).await
            })
        });
        for turned in turning {
            assert_eq!(turned.await.unwrap().0, StatusCode::OK);
        }
        let (_, body) = send_as_admin(&api, Method::PUT, "/v1/switches", &json!({})).await;
        assert!(mechanisms.iter().all(|name| body[name] == "shadow"), "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_is_in_the_audit_log_with_its_operator_and_surface() {
    let (api, _steadfast) = api().await;
    for (headers, name, from) in [
        (&[][..], "admin", "http"),
        (&[("steadfast-surface", "cli"), ("x-operator", "ann")][..], "ann", "cli"),
        (&[("steadfast-surface", "dashboard")][..], "admin", "dashboard"),
        (&[("steadfast-surface", "somewhere else")][..], "admin", "http"),
    ] {
        let mut request = Request::put("/v1/switches").header("authorization", "Bearer person");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        assert_eq!(send_request(&api, request, r#"{"guard":"shadow"}"#).await.0, StatusCode::OK);
        let request = Request::get("/v1/audit?limit=1").header("authorization", "Bearer person");
        let (_, body) = send_request(&api, request, "").await;
        assert_eq!(body["audit"][0]["by"], json!({ "name": name, "from": from }));
    }
}

#[tokio::test(start_paused = true)]
async fn sf_7_admin_requests_without_the_token_are_refused_and_invalid_ones_change_nothing() {
    let (api, _steadfast) = api().await;
    let (_, document) = get(&api, "/openapi.json").await;
    let mut admin_requests = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            if operation["security"] != json!([{ "token": [] }]) {
                let is_of_callers =
                    ["/v1/calls", "/v1/turns", "/v1/failures", "/v1/successes", "/v1/sessions/{key}"];
                let is_of_callers = is_of_callers.iter().any(|part| path.starts_with(part));
                assert!(method == "get" || is_of_callers, "{path} changes something");
                continue;
            }
            admin_requests += 1;
            let uri = path.replace("{key}", "tool:bank:pay").replace("{id}", "1");
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let named: Vec<_> = operation["parameters"].as_array().into_iter().flatten().collect();
            let named = |name: &str| named.iter().any(|parameter| parameter["name"] == name);
            let is_signed = named("X-Operator") && named("Steadfast-Surface");
            assert!(is_signed || method == Method::GET, "{method} {path} does not say who and from where");
            let request = Request::builder().method(method.clone()).uri(&uri);
            let (status, body) = send_request(&api, request, "{}").await;
            assert_eq!(status, StatusCode::UNAUTHORIZED, "{method} {path}");
            fits(&document, operation, status, &body);
            for wrong in [json!({ "colour": "red" }), json!([1]), json!("x".repeat(70_000))] {
                let (status, body) = send_as_admin(&api, method.clone(), &uri, &wrong).await;
                assert!(
                    status.is_client_error() || operation.get("requestBody").is_none(),
                    "{method} {path}: {body}"
                );
                fits(&document, operation, status, &body);
            }
        }
    }
    assert!(admin_requests >= 7, "{admin_requests}");
    let done = deeds(&api).await;
    assert!(done.iter().all(|(deed, _)| deed != "switched" && deed != "approved"), "{done:?}");
}
