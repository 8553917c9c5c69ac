//! Queries over HTTP, and their agreement with the OpenAPI document.

use std::time::Duration;

use http::{Request, StatusCode};
use serde_json::{Value, json};
use steadfast::call::classify::{AttemptFault, FaultSource};
use steadfast::call::id::{Namespace, TenantId, ToolName};
use steadfast::call::{EnvelopeBuilder, ToolResult};
use steadfast::policy::AnnotationHints;
use steadfast::{Attempt, Steadfast};
use steadfast_api::{AccessRules, AdminToken, Api};
use steadfast_testkit::redis::RedisServer;

use crate::support::{
    ApiTestWorld, TEST_TIMEOUT, access_of, api, envelope, fits, get, in_session, send_request, settle,
};

#[tokio::test(start_paused = true)]
async fn the_status_lists_problems_and_their_solutions() {
    let (api, _steadfast) = api().await;
    let (status, body) = get(&api, "/v1/status").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!((&body["verdict"], &body["counts"]["escalated"]), (&json!("attention"), &json!(1)), "{body}");
    assert!(body["findings"][0]["todo"].as_str().unwrap().contains("steadfast reset"), "{body}");
    assert_eq!(body["store"], json!({ "kind": "memory" }));
}

#[tokio::test(start_paused = true)]
async fn the_status_shows_problems_of_tenants_beside_those_without_a_tenant() {
    let (api, steadfast) = api().await;
    let fails = async |_: Attempt| -> ToolResult {
        Err(AttemptFault::new(FaultSource::Http { status: 500 }, "no").into())
    };
    for amount in 0..3 {
        let mut envelope = EnvelopeBuilder::new("bank/fails").args(&[("amount", amount)]).build().unwrap();
        envelope.target.tenant_id = Some(TenantId::new("acme").unwrap());
        steadfast.call_envelope(envelope, fails).await;
    }
    let (_, body) = get(&api, "/v1/status").await;
    assert_eq!(body["counts"]["escalated"], 2, "{body}");
    let findings = body["findings"].to_string();
    assert!(findings.contains("tenant acme: 1 tool has lost trust"), "{findings}");
}

#[tokio::test(start_paused = true)]
async fn the_status_counts_the_problems_of_all_tenants_with_the_worst_first() {
    let down = [("tools.\"web/down\".retry.attempts", "1"), ("tools.\"web/down\".trust.mode", "off")];
    let world = ApiTestWorld::new(&down).await;
    let reported = async |query: &str, tool: &str, severity: &str, times: u32| {
        let recoverable = severity != "security";
        let report = json!({
            "toolName": tool, "pluginName": "web", "error": "no", "severity": severity, "recoverable": recoverable,
        });
        for _ in 0..times {
            let response = world.post(&format!("/v1/failures{query}"), &[], &report.to_string()).await;
            assert_eq!(response.status, StatusCode::OK, "{}", response.body);
        }
    };
    reported("", "better", "server_error", 3).await;
    tokio::time::advance(Duration::from_secs(31 * 60)).await;
    let worked = json!({ "toolName": "better", "pluginName": "web" }).to_string();
    world.post("/v1/successes", &[], &worked).await;
    reported("", "lost", "server_error", 3).await;
    world.works("web/lost");
    assert_eq!(world.call(&envelope("web/lost", json!({}))).await.code(), "approval_required");
    reported("?tenant=acme", "gone", "security", 1).await;
    world.fails("web/down", 503);
    for number in 0..5 {
        let call = envelope("web/down", json!({ "number": number }));
        world.call(&in_session(call, &format!("s-{number}"))).await;
    }
    world.send_as_admin("post", "/v1/breakers/tool:web:held", &json!({ "to": "open" })).await;
    for _ in 0..3 {
        world.call(&in_session(envelope("web/none", json!({})), "loops")).await;
    }
    world.send_as_admin("put", "/v1/switches", &json!({ "retry": "shadow" })).await;
    world.tool("web/slow", async |_, _| std::future::pending().await);
    let slow = in_session(envelope("web/slow", json!({})), "slow");
    let body = tokio::select! {
        biased;
        response = world.call(&slow) => unreachable!("it never ends: {}", response.body),
        body = async { settle().await; world.send_as_admin("get", "/v1/status", &Value::Null).await } => body,
    };
    let counts = json!({
        "openCalls": 1, "approvals": 1, "escalated": 1, "recovering": 1, "blocked": 1, "openBreakers": 2,
        "forcedBreakers": 1, "stoppedSessions": 1, "unknownOutcomes": 0, "serversDown": 0,
    });
    assert_eq!((&body["verdict"], &body["counts"]), (&json!("trouble"), &counts), "{body}");
    let descriptions: Vec<_> = body["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["what"].as_str().unwrap())
        .collect();
    let expected = [
        "1 tool keeps failing and its circuit breaker is open",
        "tenant acme: 1 tool is blocked",
        "1 call waits for approval",
        "1 tool has lost trust",
        "1 breaker is forced open",
        "1 session is in a loop and is stopped",
        "switched: retries in shadow mode",
    ];
    assert_eq!(descriptions, expected, "{body}");
}

/// A client token does not allow any query about other callers, and without a token only the health checks are allowed.
#[tokio::test(start_paused = true)]
async fn sf_7_if_clients_have_tokens_queries_require_the_admin_token() {
    let (_, steadfast) = api().await;
    let access = AccessRules { admin: AdminToken::new("person"), ..access_of(&[("ann", None)]) };
    let api = Api::new(steadfast, access);
    let (_, document) = get(&api, "/openapi.json").await;
    let is_let_in = async |path: &str, token: Option<&str>| {
        let request = Request::get(path.replace(['{', '}'], "")).header("host", "127.0.0.1");
        let request = token
            .into_iter()
            .fold(request, |request, token| request.header("authorization", format!("Bearer {token}")));
        // The status only: the event stream never ends.
        let status = api.respond(request.body(String::new()).unwrap()).await.status();
        status != StatusCode::UNAUTHORIZED && status != StatusCode::FORBIDDEN
    };
    let mut looked = 0;
    for (path, _) in document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .filter(|(_, operations)| operations.get("get").is_some())
    {
        let expected = match path.as_str() {
            "/healthz" | "/readyz" | "/openapi.json" => [true, true],
            // An agent chooses its tools by it.
            "/v1/tools/{name}/score" => [false, true],
            // The text of a result belongs to the caller.
            "/v1/results/{id}" => [false, true],
            _ => [false, false],
        };
        looked += 1;
        assert_eq!(
            [is_let_in(path, None).await, is_let_in(path, Some("token of ann")).await],
            expected,
            "{path}"
        );
        assert!(is_let_in(path, Some("person")).await, "{path}");
    }
    assert!(looked > 15, "{looked}");
}

#[tokio::test(start_paused = true)]
async fn rp_13_lost_trust_is_shown_with_its_reason() {
    let (api, _steadfast) = api().await;
    let (_, body) = get(&api, "/v1/trust").await;
    let states = body["trust"].as_array().unwrap();
    assert!(
        states.iter().any(|state| state["toolName"] == "fails" && state["state"] == "escalated"),
        "{body}"
    );
}

#[tokio::test(start_paused = true)]
async fn records_come_in_pages_and_without_outputs() {
    let (api, _steadfast) = api().await;
    let (_, first) = get(&api, "/v1/records?tool=bank/pay&limit=1").await;
    assert_eq!(first["records"].as_array().unwrap().len(), 1);
    let next = first["next"].as_str().unwrap();
    let (_, second) = get(&api, &format!("/v1/records?tool=bank/pay&limit=1&after={next}")).await;
    assert_ne!(first["records"][0]["key"], second["records"][0]["key"]);
    assert_eq!(second["records"][0]["state"], "done");
    let all = get(&api, "/v1/records").await.1.to_string();
    assert!(!all.contains("sk-live"), "{all}");
}

#[tokio::test(start_paused = true)]
async fn the_history_is_found_by_tool_session_and_status() {
    let (api, _steadfast) = api().await;
    let count = async |query: &str| {
        let (status, body) = get(&api, &format!("/v1/history?{query}")).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        body["calls"].as_array().unwrap().len()
    };
    assert_eq!(count("").await, 6);
    assert_eq!(count("tool=bank/pay").await, 3);
    assert_eq!(count("session=s-2").await, 3);
    assert_eq!(count("tool=bank/pay&status=success&limit=2").await, 2);
    let (_, body) = get(&api, "/v1/history?tool=bank/pay").await;
    let replayed: Vec<_> = body["calls"].as_array().unwrap().iter().map(|call| &call["replayed"]).collect();
    assert_eq!(replayed, [false, true, false], "the newest first");
}

#[tokio::test(start_paused = true)]
async fn sf_6_a_call_is_shown_step_by_step_with_the_deciding_rules_and_without_secrets() {
    let (api, steadfast) = api().await;
    let (_, body) = get(&api, "/v1/history?tool=bank/fails&limit=1").await;
    let id = body["calls"][0]["requestId"].as_str().unwrap().to_owned();
    let (status, story) = get(&api, &format!("/v1/history/{id}")).await;
    assert_eq!(status, StatusCode::OK, "{story}");
    let (_, document) = get(&api, "/openapi.json").await;
    fits(&document, &document["paths"]["/v1/history/{id}"]["get"], status, &story);
    let trace = &story["traces"][0];
    assert_eq!(
        (&trace["arrivedAtMs"], &trace["ended"]["rule"]),
        (&story["calls"][0]["arrivedAtMs"], &body["calls"][0]["rule"])
    );
    let kinds: Vec<_> =
        trace["steps"].as_array().unwrap().iter().map(|step| step["kind"].as_str().unwrap()).collect();
    assert!(kinds.starts_with(&["started", "attempt_started", "attempt_ended"]), "{kinds:?}");
    assert!(trace["steps"][2]["rule"].is_string(), "{trace}");
    // The message of a tool may contain anything.
    let leaks = async |_: Attempt| -> ToolResult {
        Err(AttemptFault::new(FaultSource::Http { status: 400 }, "no such key: sk-live-4f9a8b7c6d5e4f3a2b1c")
            .into())
    };
    let leaked = EnvelopeBuilder::new("bank/leaks").session("s-3").build().unwrap();
    let id = leaked.request_id.to_string();
    steadfast.call_envelope(leaked, leaks).await;
    let story = get(&api, &format!("/v1/history/{id}")).await.1.to_string();
    assert!(story.contains("no such key") && !story.contains("sk-live"), "{story}");
    assert_eq!(get(&api, "/v1/history/nobody").await.0, StatusCode::NOT_FOUND);
    assert_eq!(get(&api, "/v1/running").await.1, json!({ "calls": [], "next": null }));
}

#[tokio::test(start_paused = true)]
async fn the_last_hour_is_summarized_by_minute() {
    let (api, _steadfast) = api().await;
    let (_, series) = get(&api, "/v1/series").await;
    let minutes = series["minutes"].as_array().unwrap();
    assert_eq!(minutes.len(), 60);
    let sum = |field: &str| minutes.iter().map(|minute| minute[field].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("calls"), sum("successes"), sum("failures"), sum("duplicates")), (6, 3, 3, 1));
    assert_eq!(series["sinceStart"]["calls"], 6);
}

#[tokio::test(start_paused = true)]
async fn sf_7_the_page_is_public_and_loads_only_its_own_files() {
    let (api, _steadfast) = api().await;
    for (path, kind) in
        [("/", "text/html"), ("/page/main.js", "text/javascript"), ("/page/page.css", "text/css")]
    {
        let request = Request::get(path).header("host", "127.0.0.1").body(String::new()).unwrap();
        let response = api.respond(request).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let headers = response.headers();
        assert!(headers["content-type"].to_str().unwrap().starts_with(kind));
        assert_eq!(headers["cache-control"], "no-store");
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("default-src 'none'; script-src 'self'; style-src 'self'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
    }
    let elsewhere = Request::get("/").header("host", "evil.example").body(String::new()).unwrap();
    assert_eq!(api.respond(elsewhere).await.status(), StatusCode::FORBIDDEN, "under no name but ours");
}

#[tokio::test(start_paused = true)]
async fn sf_5_an_invalid_query_is_refused_with_the_reason() {
    let (api, _steadfast) = api().await;
    for (path, word) in [
        ("/v1/records?limit=0", "from 1 to 1000"),
        ("/v1/records?limit=many", "limit"),
        ("/v1/records?limit=9999999999999999999999", "limit"),
        ("/v1/records?after=xyz", "not a cursor of this list"),
        ("/v1/records?tool=pay", "namespace/tool"),
        ("/v1/records?colour=red", "colour"),
        ("/v1/history?status=fine", "fine"),
        ("/v1/history?since=-1", "since"),
        ("/v1/history/%ff", "path"),
    ] {
        let (status, body) = get(&api, path).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}");
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains(word), "{path}: {message}");
    }
    assert_eq!(get(&api, "/v1/nothing").await.0, StatusCode::NOT_FOUND);
    assert_eq!(send_request(&api, Request::post("/v1/status"), "").await.0, StatusCode::METHOD_NOT_ALLOWED);
}

/// Every query is in the document, and its response matches it.
#[tokio::test(start_paused = true)]
async fn responses_match_the_openapi_document() {
    let (api, steadfast) = api().await;
    let pay = (
        ToolName::new("pay").unwrap(),
        AnnotationHints { read_only: Some(false), ..AnnotationHints::default() },
    );
    steadfast.engine().register_tools(Namespace::new("bank").unwrap(), vec![pay]);
    settle().await;
    let (_, document) = get(&api, "/openapi.json").await;
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 10, "{:?}", paths.keys());
    // Responses that end: the event stream never ends.
    let ends =
        |operation: &Value| operation["responses"]["200"]["content"].get("text/event-stream").is_none();
    let is_asked = |operations: &Value| operations.get("get").is_some_and(ends);
    for (path, operations) in paths.iter().filter(|(_, operations)| is_asked(operations)) {
        let uri = path.replace("{name}", "bank%2Fpay");
        let (status, body) =
            send_request(&api, Request::get(&uri).header("authorization", "Bearer person"), "").await;
        let expected = if uri.contains('{') { StatusCode::NOT_FOUND } else { StatusCode::OK };
        assert_eq!(status, expected, "{path}");
        fits(&document, &operations["get"], status, &body);
    }
}

/// A real store that fails.
#[tokio::test(flavor = "multi_thread")]
async fn readyz_fails_while_the_store_is_unavailable() {
    let mut redis = RedisServer::start();
    let opening = Steadfast::builder().set("store.kind", "redis");
    let steadfast = opening.set("store.url", &redis.url()).build().await.unwrap();
    let api = Api::new(steadfast, AccessRules::default());
    let (_, document) = get(&api, "/openapi.json").await;
    let ready = async || {
        let (status, body) = get(&api, "/readyz").await;
        fits(&document, &document["paths"]["/readyz"]["get"], status, &body);
        (status, body)
    };
    // The store is checked at most once a second, and on a busy machine a working one may not answer in time.
    let becomes = async |expected: StatusCode| {
        let polling = async {
            loop {
                let (status, body) = ready().await;
                if status == expected {
                    break body;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, polling).await.expect("its readiness changes")
    };
    assert_eq!(becomes(StatusCode::OK).await, json!({ "ok": true }));
    redis.kill();
    for _ in 0..2 {
        let body = becomes(StatusCode::SERVICE_UNAVAILABLE).await;
        assert_eq!(body["error"]["code"], "store_unavailable", "{body}");
    }
    assert_eq!(get(&api, "/healthz").await.0, StatusCode::OK, "the process is well");
    redis.restart();
    assert_eq!(becomes(StatusCode::OK).await, json!({ "ok": true }));
}
