//! Helpers for the tests.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use steadfast::call::classify::{AttemptFault, FaultSource, TransportError};
use steadfast::call::envelope::CallEnvelope;
use steadfast::call::id::{ActorId, Domain, Namespace, TenantId, ToolName, ToolRef};
use steadfast::call::{EnvelopeBuilder, ToolResult, output::ToolOutput};
use steadfast::policy::AnnotationHints;
use steadfast::store::RuntimeClock;
use steadfast::{Attempt, Steadfast, SteadfastBuilder};
use steadfast_api::{AccessRules, AdminToken, Api, GatewayParts};
use steadfast_executor::AvailableTool;
use steadfast_executor::{ResolvedTool, ToolRegistry};
use steadfast_mcp::http::server::{BearerTokens, Principal, TokenHolder};
use tokio::sync::Semaphore;

/// The time limit of a test that hangs. No test measures it.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// The API of an engine with some calls: two that succeeded, one of them twice, and three that cost a tool its trust.
pub(crate) async fn api() -> (Api, Steadfast) {
    let steadfast = Steadfast::builder()
        .clock(Arc::new(RuntimeClock::new()))
        .set("store.kind", "memory")
        .set("tools.\"bank/pay\".class", "mutating")
        .set("tools.\"bank/fails\".breaker.mode", "off")
        .set("tools.\"bank/fails\".retry.attempts", "1")
        .build()
        .await
        .unwrap();
    let pay =
        async |_: Attempt| -> ToolResult { Ok(ToolOutput::text("paid, token sk-live-4f9a8b7c6d5e4f3a2b1c")) };
    let fails = async |_: Attempt| -> ToolResult {
        Err(AttemptFault::new(FaultSource::Http { status: 500 }, "no").into())
    };
    for key in ["a", "a", "b"] {
        let envelope =
            EnvelopeBuilder::new("bank/pay").args(&[("invoice", key)]).key(key).session("s-1").build();
        steadfast.call_envelope(envelope.unwrap(), pay).await;
    }
    for amount in 0..3 {
        let envelope = EnvelopeBuilder::new("bank/fails").args(&[("amount", amount)]).session("s-2").build();
        steadfast.call_envelope(envelope.unwrap(), fails).await;
    }
    gathered_is_written().await;
    let access = AccessRules { admin: AdminToken::new("person"), ..AccessRules::default() };
    (Api::new(steadfast.clone(), access), steadfast)
}

/// Sends a query.
pub(crate) async fn get(api: &Api, path: &str) -> (StatusCode, Value) {
    send_request(api, Request::get(path), "").await
}

/// Sends a local request with this body.
pub(crate) async fn send_request(
    api: &Api,
    request: http::request::Builder,
    body: &str,
) -> (StatusCode, Value) {
    let request = request.header("host", "127.0.0.1").body(Full::new(Bytes::from(body.to_owned()))).unwrap();
    let response = api.respond(request).await;
    let status = response.status();
    let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(body.to_vec()).unwrap();
    let value = if kind == "application/json" { serde_json::from_str(&text).unwrap() } else { text.into() };
    (status, value)
}

/// Checks that every field of a response is in camelCase, and that a failed call is not both retriable and final.
pub(crate) fn assert_readable(body: &Value) {
    match body {
        Value::Array(items) => items.iter().for_each(assert_readable),
        Value::Object(fields) => {
            for (name, value) in fields {
                assert!(!name.contains('_'), "the field {name} is not in camelCase: {body}");
                if !FREE_FORM.contains(&name.as_str()) {
                    assert_readable(value);
                }
            }
            if let Some(retriable) = body["error"]["retriable"].as_bool() {
                let status = body["status"].as_str().unwrap();
                assert!(retriable || status != "retriable_error", "{body}");
                assert!(!retriable || status != "error", "{body}");
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Fields whose nested names are data: values of tools and hosts, and failures by severity.
const FREE_FORM: &[&str] = &["output", "context", "argumentSummary", "failuresBySeverity"];

/// Checks that a response is one of those that the document lists for this operation, and matches its schema.
pub(crate) fn fits(document: &Value, operation: &Value, status: StatusCode, body: &Value) {
    let answer = &operation["responses"][status.as_str()];
    assert!(answer["content"].is_object(), "{} answers {status}: {body}", operation["operationId"]);
    let Some(schema) = answer["content"]["application/json"].get("schema") else { return };
    if operation["operationId"] != "openapi" {
        assert_readable(body);
    }
    // References point into the document.
    let whole = json!({ "allOf": [schema], "components": document["components"] });
    let validator = jsonschema::draft202012::new(&whole).unwrap();
    let wrong: Vec<_> = validator.iter_errors(body).map(|error| error.to_string()).collect();
    assert!(wrong.is_empty(), "{}: {wrong:?} in {body}", operation["operationId"]);
}

/// An API with tools of the test, on a clock that the test can advance.
pub(crate) struct ApiTestWorld {
    pub(crate) api: Api,
    pub(crate) tools: Arc<TestTools>,
    pub(crate) document: Value,
}

/// The tools of a test, with the number of runs of each.
#[derive(Default)]
pub(crate) struct TestTools {
    tools: Mutex<BTreeMap<String, (TestToolFn, Arc<AtomicU32>)>>,
}

type TestToolFn = Arc<dyn Fn(u32, Attempt) -> BoxFuture<'static, ToolResult> + Send + Sync>;

impl ApiTestWorld {
    pub(crate) async fn new(settings: &[(&str, &str)]) -> Self {
        Self::opened(Steadfast::builder(), settings, AccessRules::default()).await
    }

    /// Creates it with a different setup and access rules.
    pub(crate) async fn opened(
        opening: SteadfastBuilder,
        settings: &[(&str, &str)],
        access: AccessRules,
    ) -> Self {
        let opening = opening.clock(Arc::new(RuntimeClock::new())).set("store.kind", "memory");
        let opening = settings.iter().fold(opening, |opening, (name, value)| opening.set(name, value));
        let steadfast = opening.build().await.unwrap();
        let access = AccessRules { admin: AdminToken::new("person"), ..access };
        let tools = Arc::new(TestTools::default());
        let api = Api::with_gateway(
            steadfast,
            access,
            GatewayParts { tools: tools.clone(), ..GatewayParts::default() },
        );
        let (_, document) = get(&api, "/openapi.json").await;
        Self { api, tools, document }
    }

    /// Adds a tool that gets the number of its run, from 1.
    pub(crate) fn tool<F: Future<Output = ToolResult> + Send + 'static>(
        &self,
        name: &str,
        run: impl Fn(u32, Attempt) -> F + Send + Sync + 'static,
    ) {
        self.tools.tool(name, run);
    }

    /// Adds a tool that succeeds.
    pub(crate) fn works(&self, name: &str) {
        self.tools.works(name);
    }

    /// Adds a tool that always fails with this status.
    pub(crate) fn fails(&self, name: &str, status: u16) {
        self.tool(name, move |_, _| async move { Err(http_fault(status)) });
    }

    pub(crate) fn runs(&self, name: &str) -> u32 {
        self.tools.tools.lock().unwrap().get(name).map_or(0, |(_, runs)| runs.load(Ordering::SeqCst))
    }

    /// Makes a call, and checks the response against the document.
    pub(crate) async fn call(&self, envelope: &Value) -> ApiTestReply {
        self.post("/v1/calls", &[], &envelope.to_string()).await
    }

    /// Posts this body, and checks the response against the document.
    pub(crate) async fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> ApiTestReply {
        self.send("post", path, headers, body).await
    }

    /// Posts this body as the admin.
    pub(crate) async fn send_as_admin(&self, method: &str, path: &str, body: &Value) -> Value {
        let response =
            self.send(method, path, &[("authorization", "Bearer person")], &body.to_string()).await;
        assert_eq!(response.status, StatusCode::OK, "{method} {path}: {}", response.body);
        response.body
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> ApiTestReply {
        let mut request = Request::builder().method(method.to_uppercase().as_str()).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = send_bytes(&self.api, request, body.to_owned().into_bytes()).await;
        let operation = &self.document["paths"][template(path)][method];
        match response.header("content-type").unwrap() {
            "application/json" => fits(&self.document, operation, response.status, &response.body),
            kind => {
                assert!(
                    operation["responses"][response.status.as_str()]["content"][kind].is_object(),
                    "{kind}"
                )
            }
        }
        response
    }
}

/// Returns the path as in the document.
fn template(path: &str) -> String {
    let parts: Vec<_> = path.split('?').next().unwrap().split('/').collect();
    match &parts[..] {
        ["", "v1", "calls", _, action] => format!("/v1/calls/{{id}}/{action}"),
        ["", "v1", "turns", _, "cancel"] => "/v1/turns/{id}/cancel".to_owned(),
        ["", "v1", "traces", _] => "/v1/traces/{id}".to_owned(),
        ["", "v1", "history", _] => "/v1/history/{id}".to_owned(),
        ["", "v1", "tools", _, "score"] => "/v1/tools/{name}/score".to_owned(),
        ["", "v1", "approvals", _] => "/v1/approvals/{id}".to_owned(),
        ["", "v1", "breakers", _] => "/v1/breakers/{key}".to_owned(),
        ["", "v1", "trust", _, "reset"] => "/v1/trust/{key}/reset".to_owned(),
        ["", "v1", "records", _, "resolve"] => "/v1/records/{key}/resolve".to_owned(),
        parts => parts.join("/"),
    }
}

impl TestTools {
    fn tool<F: Future<Output = ToolResult> + Send + 'static>(
        &self,
        name: &str,
        run: impl Fn(u32, Attempt) -> F + Send + Sync + 'static,
    ) {
        let made: TestToolFn = Arc::new(move |number, attempt| run(number, attempt).boxed());
        let mut tools = self.tools.lock().unwrap();
        // The same tool, run in another way.
        let runs = tools.get(name).map(|(_, runs)| runs.clone()).unwrap_or_default();
        tools.insert(name.to_owned(), (made, runs));
    }

    /// Adds a tool that succeeds.
    pub(crate) fn works(&self, name: &str) {
        self.tool(name, async |number: u32, _| Ok(ToolOutput::text(&format!("run {number}"))));
    }
}

impl ToolRegistry for TestTools {
    fn find<'a>(&'a self, envelope: &'a CallEnvelope) -> BoxFuture<'a, Option<ResolvedTool>> {
        let made = self.tools.lock().unwrap().get(&envelope.tool().to_string()).cloned();
        let found = made.map(|(made, runs)| {
            // Counted at the place of the effect.
            let run = move |attempt| made(runs.fetch_add(1, Ordering::SeqCst) + 1, attempt);
            ResolvedTool { domain: Domain::new("bench.example").ok(), ..ResolvedTool::new(run) }
        });
        ready(found).boxed()
    }

    fn runs(&self, namespace: &Namespace) -> bool {
        namespace.as_str() == "bank"
    }

    fn list(&self) -> Vec<AvailableTool> {
        let tools = self.tools.lock().unwrap();
        let named = |name: &String| {
            let (namespace, tool) = name.split_once('/').unwrap();
            ToolRef { namespace: Namespace::new(namespace).unwrap(), tool: ToolName::new(tool).unwrap() }
        };
        let annotations = AnnotationHints::default();
        tools.keys().map(|name| AvailableTool { tool: named(name), annotations }).collect()
    }
}

/// A tool that signals its start, and ends on request.
pub(crate) fn gated(world: &ApiTestWorld, name: &str) -> (Arc<Semaphore>, Arc<Semaphore>) {
    let (started, may_end) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let gates = (started.clone(), may_end.clone());
    world.tool(name, move |number, _| {
        let (started, may_end) = gates.clone();
        async move {
            started.add_permits(1);
            may_end.acquire().await.unwrap().forget();
            Ok(ToolOutput::text(&format!("run {number}")))
        }
    });
    (started, may_end)
}

/// A tool whose connection breaks at its first run, after the request was sent; later runs succeed.
pub(crate) fn lose_outcome_once(world: &ApiTestWorld, name: &str) {
    world.tool(name, async |number: u32, _| {
        let source = FaultSource::Transport { error: TransportError::ConnectionReset, written: true };
        match number {
            1 => Err(AttemptFault::new(source, "gone").into()),
            _ => Ok(ToolOutput::text(&format!("run {number}"))),
        }
    });
}

/// A response.
pub(crate) struct ApiTestReply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl ApiTestReply {
    pub(crate) fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Sends a local request with these bytes.
pub(crate) async fn send_bytes(api: &Api, request: http::request::Builder, body: Vec<u8>) -> ApiTestReply {
    let request = request.header("host", "127.0.0.1").body(Full::new(Bytes::from(body))).unwrap();
    let response = api.respond(request).await;
    let (status, headers) = (response.status(), response.headers().clone());
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(body.to_vec()).unwrap();
    let body = match headers["content-type"].to_str().unwrap() {
        "application/json" => serde_json::from_str(&text).unwrap(),
        _ => text.into(),
    };
    ApiTestReply { status, headers, body }
}

/// The access rules with these tokens: `token of ann`, of this tenant if there is one.
pub(crate) fn access_of(clients: &[(&str, Option<&str>)]) -> AccessRules {
    let tokens = BearerTokens::default();
    for (name, tenant) in clients {
        let tenant = tenant.map(|tenant| TenantId::new(tenant).unwrap());
        let principal = Principal { actor: ActorId::new(name).unwrap(), tenant };
        tokens.add(&format!("token of {name}"), TokenHolder::Client(principal));
    }
    AccessRules { tokens, ..AccessRules::default() }
}

/// A call of a tool, with all required fields.
pub(crate) fn envelope(tool: &str, params: Value) -> Value {
    let (namespace, name) = tool.split_once('/').unwrap();
    json!({
        "contractVersion": "1.1", "requestId": "r-1", "toolName": name, "toolNamespace": namespace,
        "target": { "sessionKey": "s-1", "actorId": "ann" },
        "payload": { "version": "1.0", "params": params },
    })
}

/// A call with an idempotency key.
pub(crate) fn keyed(tool: &str, params: Value, key: &str) -> Value {
    let mut envelope = envelope(tool, params);
    envelope["payload"]["idempotencyKey"] = key.into();
    envelope
}

pub(crate) fn http_fault(status: u16) -> steadfast_executor::AttemptError {
    AttemptFault::new(FaultSource::Http { status }, "the tool's own words").into()
}

/// Waits until the engine has written its deferred writes. Only under paused time, with a store in memory: the wait is
/// then longer than the delay of the engine, however slow the machine is.
pub(crate) async fn gathered_is_written() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

/// Runs all tasks until none is ready.
pub(crate) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// A call in another session.
pub(crate) fn in_session(mut envelope: Value, session: &str) -> Value {
    envelope["target"]["sessionKey"] = session.into();
    envelope
}
