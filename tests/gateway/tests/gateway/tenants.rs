//! Several clients of one gateway, each with a token of its own: separation of tenants, over HTTP and over MCP (SF-7).

use std::fs;
use std::net::SocketAddr;
use std::thread;

use serde_json::{Value, json};

use crate::client::McpTestClient;
use crate::raw::{RawRequest, RawResponse, send};
use crate::world::{GatewayWorld, LISTEN, TestTransport, wait};

/// Ann and Bob belong to two tenants. Grafana is a viewer.
const TOKENS: &str = r#"
[tokens.ann]
token = "${TOKEN_OF_ANN}"
tenant = "acme"

[tokens.bob]
token = "${TOKEN_OF_BOB}"
tenant = "umbra"

[tokens.grafana]
token = "${TOKEN_OF_GRAFANA}"
role = "viewer"
"#;

const ANN: &str = "of-ann-0123456789abcdef";
const BOB: &str = "of-bob-0123456789abcdef";
const GRAFANA: &str = "of-grafana-0123456789abcdef";
const NEXT: &str = "of-ann-next-0123456789abcdef";

/// A gateway that all of them use.
struct SharedGateway {
    /// Keeps the gateway running.
    gateway: McpTestClient,
    world: GatewayWorld,
}

impl SharedGateway {
    fn new(test: &str, more: &str) -> Self {
        let world =
            GatewayWorld::of(test, &format!("{TOKENS}{more}"), TestTransport::Http, TestTransport::Stdio);
        let mut command = world.wrap(&LISTEN);
        for (name, token) in [
            ("TOKEN_OF_ANN", ANN),
            ("TOKEN_OF_BOB", BOB),
            ("TOKEN_OF_GRAFANA", GRAFANA),
            ("NEXT_TOKEN", NEXT),
        ] {
            command.env(name, token);
        }
        let gateway = McpTestClient::over_http(command);
        Self { gateway, world }
    }

    fn address(&self) -> SocketAddr {
        self.gateway.address()
    }

    /// Returns an MCP client with this token that has initialized.
    fn client(&self, token: &str) -> McpTestClient {
        let mut client =
            McpTestClient::at(self.address()).with_headers(&format!("authorization: Bearer {token}\r\n"));
        client.initialize();
        client.request("tools/list", json!({}));
        client
    }

    /// Returns the same in the modern era.
    fn modern(&self, token: &str) -> McpTestClient {
        let mut client =
            McpTestClient::at(self.address()).with_headers(&format!("authorization: Bearer {token}\r\n"));
        client.without_handshake(json!({}));
        client
    }

    fn request(&self, token: &str, line: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = RawRequest::to(self.address()).header("accept", "application/json");
        let request = request.header("authorization", &format!("Bearer {token}"));
        let RawResponse { status, body, .. } =
            send(&request.line(&format!("{line} HTTP/1.1")).body(body)).unwrap();
        (status, serde_json::from_slice(&body).unwrap_or_else(|_| String::from_utf8_lossy(&body).into()))
    }

    fn post(&self, token: &str, path: &str, body: &Value) -> (u16, Value) {
        self.request(token, &format!("POST {path}"), body)
    }

    fn get(&self, token: &str, path: &str) -> (u16, Value) {
        self.request(token, &format!("GET {path}"), &Value::Null)
    }

    /// Returns the answer of this endpoint.
    fn get_as_viewer(&self, path: &str) -> Value {
        let (status, body) = self.get(GRAFANA, path);
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    fn admin(&self) -> String {
        let folder = self.world.folder().join(".local/state/steadfast");
        fs::read_to_string(folder.join("admin-token")).unwrap()
    }

    /// Replaces the configuration, and waits until its tokens are in use.
    fn configure(&self, config: &str) {
        let times = self.world.logged("tokens.replaced").len();
        self.world.configure(config);
        wait(
            || self.world.logged("tokens.replaced").len() > times,
            || format!("tokens in {:#?}", self.world.log()),
        );
    }

    fn ping(&self, token: &str, session: &str) -> RawRequest {
        RawRequest::to(self.address())
            .body(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#)
            .header("mcp-session-id", session)
            .header("authorization", &format!("Bearer {token}"))
    }
}

/// Returns a call without a caller.
fn call(tool: &str, params: Value, key: Option<&str>) -> Value {
    let (namespace, name) = tool.split_once('/').unwrap();
    json!({
        "contractVersion": "1.1", "requestId": "r-1", "toolNamespace": namespace, "toolName": name,
        "target": { "sessionKey": "same" },
        "payload": { "version": "1.0", "params": params, "idempotencyKey": key },
    })
}

#[test]
fn sf_7_the_same_key_of_two_tenants_is_two_calls() {
    let shared = SharedGateway::new("sf_7_tenants_keys", "");
    let (mut ann, mut bob) = (shared.client(ANN), shared.client(BOB));
    let arguments = json!({ "id": "m" });
    assert_eq!(ann.call_keyed("pay", arguments.clone(), "k").text, "pay m, run 1");
    let response = bob.call_keyed("pay", arguments.clone(), "k");
    assert_eq!((response.text.as_str(), response.from_cache), ("pay m, run 2", false), "{response:?}");
    for client in [&mut ann, &mut bob] {
        assert!(client.call_keyed("pay", arguments.clone(), "k").from_cache, "to each its own");
    }
    let pay = call("bank/pay", json!({ "id": "h" }), Some("h"));
    for (token, text) in [(ANN, "pay h, run 1"), (BOB, "pay h, run 2"), (ANN, "pay h, run 1")] {
        let (status, answer) = shared.post(token, "/v1/calls", &pay);
        assert_eq!(
            (status, &answer["output"]["content"]["content"][0]["text"]),
            (200, &json!(text)),
            "{answer}"
        );
    }
    assert_eq!((shared.world.count("pay m"), shared.world.count("pay h")), (2, 2));
    for (tenant, actor) in [("acme", "ann"), ("umbra", "bob")] {
        let body = shared.get_as_viewer(&format!("/v1/records?tenant={tenant}"));
        let records = body["records"].as_array().unwrap();
        assert_eq!(records.len(), 2, "{body}");
        assert!(
            records.iter().all(|record| record["tenant"] == tenant && record["actor"] == actor),
            "{body}"
        );
    }
    let body = shared.get_as_viewer("/v1/sessions");
    let mut sessions: Vec<_> =
        body["sessions"].as_array().unwrap().iter().map(|one| (&one["actor"], &one["tenant"])).collect();
    sessions.sort_by_key(|(actor, _)| actor.as_str());
    assert_eq!(sessions, [(&json!("ann"), &json!("acme")), (&json!("bob"), &json!("umbra"))]);
}

#[test]
fn sf_7_an_envelope_that_names_another_than_its_token_is_refused() {
    let shared = SharedGateway::new("sf_7_tenants_names", "");
    let pay = call("bank/pay", json!({ "id": "a" }), None);
    for (field, own, other) in [("actorId", "ann", "bob"), ("tenantId", "acme", "umbra")] {
        let mut named = pay.clone();
        named["target"][field] = own.into();
        assert_eq!(shared.post(ANN, "/v1/calls", &named).0, 200, "{field}");
        named["target"][field] = other.into();
        for path in ["/v1/calls", "/v1/calls/begin"] {
            let (status, answer) = shared.post(ANN, path, &named);
            let message = answer["error"]["message"].as_str().unwrap_or_default();
            assert_eq!(status, 403, "{answer}");
            assert!(message.contains(&format!("`{own}`")) && message.contains("omit it"), "{answer}");
        }
    }
    assert_eq!(shared.world.count("pay a"), 2);
    assert_eq!(shared.get(ANN, "/v1/tools/bank%2Fpay/score?tenant=umbra").0, 403);
}

#[test]
fn sf_7_a_tool_that_one_tenant_broke_works_for_the_other() {
    let config = "[trust]\ncount = 1\nseverities = [\"crash\"]\n[gateway]\nreliability_tools = true\n";
    let shared = SharedGateway::new("sf_7_tenants_trust", config);
    let (mut ann, mut bob) = (shared.client(ANN), shared.client(BOB));
    ann.call("pay", json!({ "id": "a", "fault": "die_after" }));
    // Trust, scores and requests for approval.
    assert!(ann.call("reliability_status", json!({})).text.starts_with("bank/pay: escalated"));
    assert_eq!(bob.call("reliability_status", json!({})).text, "all tools are trusted");
    let score = "/v1/tools/bank%2Fpay/score";
    assert_eq!((shared.get(ANN, score).0, shared.get(BOB, score).0), (200, 404));
    assert_eq!(ann.call("pay", json!({ "id": "b" })).code.as_deref(), Some("approval_required"));
    assert_eq!(shared.post(ANN, "/v1/calls", &call("bank/pay", json!({ "id": "b" }), None)).0, 409);
    let waiting = |tenant: &str| {
        let body = shared.get_as_viewer(&format!("/v1/approvals?tenant={tenant}"));
        body["approvals"].as_array().unwrap().len()
    };
    wait(|| waiting("acme") > 0, || "a request of Ann's".to_owned());
    assert_eq!(waiting("umbra"), 0);
    assert_eq!(bob.call("pay", json!({ "id": "b" })).text, "pay b, run 1");
    assert_eq!(shared.post(BOB, "/v1/calls", &call("bank/pay", json!({ "id": "b" }), None)).0, 200);
    // The breaker.
    let (status, answer) =
        shared.post(&shared.admin(), "/v1/breakers/tool:bank:look?tenant=acme", &json!({ "to": "open" }));
    assert_eq!(status, 200, "{answer}");
    let envelope = call("bank/look", json!({ "id": "c" }), None);
    assert_eq!(ann.call("look", json!({ "id": "c" })).code.as_deref(), Some("circuit_open"));
    assert_eq!(shared.post(ANN, "/v1/calls", &envelope).0, 503);
    assert_eq!(bob.call("look", json!({ "id": "c" })).text, "look c, run 1");
    // In the era without sessions each request names its session.
    let (mut ann, mut bob) = (shared.modern(ANN), shared.modern(BOB));
    assert_eq!(ann.call("look", json!({ "id": "d" })).code.as_deref(), Some("circuit_open"));
    assert_eq!(bob.call("look", json!({ "id": "d" })).text, "look d, run 1");
    assert_eq!(shared.post(BOB, "/v1/calls", &envelope).0, 200);
}

#[test]
fn sf_7_the_guard_stops_a_session_and_not_one_with_that_name_of_another_tenant() {
    let shared = SharedGateway::new("sf_7_tenants_guard", "");
    let burn = call("bank/burn", json!({}), None);
    let code = |token| shared.post(token, "/v1/calls", &burn).1["error"]["code"].clone();
    wait(|| code(ANN) == "loop_detected", || "that Ann is stopped".to_owned());
    assert_eq!(code(BOB), "unknown_tool");
    let stopped =
        |tenant: &str| shared.get_as_viewer(&format!("/v1/guard?tenant={tenant}"))["stopped"].clone();
    assert_eq!(stopped("acme").as_array().unwrap().len(), 1);
    assert_eq!(stopped("umbra"), json!([]));
    // The same over MCP, in a conversation with the same name for both.
    let (mut ann, mut bob) = (shared.client(ANN), shared.client(BOB));
    let meta = json!({ "dev.steadfast/session": "ours" });
    let code = |client: &mut McpTestClient| client.call_with("burn", json!({}), meta.clone()).code;
    wait(|| code(&mut ann).as_deref() == Some("loop_detected"), || "that Ann is stopped".to_owned());
    assert_ne!(code(&mut bob).as_deref(), Some("loop_detected"));
}

#[test]
fn sf_7_calls_that_hosts_run_and_sessions_of_another_tenant_are_not_there() {
    let shared = SharedGateway::new("sf_7_tenants_hosts", "");
    let (status, started) = shared.post(ANN, "/v1/calls/begin", &call("host/pay", json!({}), None));
    assert_eq!((status, &started["next"]), (200, &json!("run")), "{started}");
    let path = |action: &str| format!("/v1/calls/{}/{action}", started["id"].as_str().unwrap());
    let report = json!({ "attempt": 1, "output": { "content": "done" } });
    for (action, body) in
        [("report", &report), ("heartbeat", &json!({ "attempt": 1 })), ("cancel", &Value::Null)]
    {
        let (status, answer) = shared.post(BOB, &path(action), body);
        assert_eq!(status, 404, "{action}: {answer}");
    }
    assert_eq!(shared.post(ANN, &path("report"), &report).0, 200);
    let (ann, bob) = (shared.client(ANN), shared.client(BOB));
    for line in ["POST /mcp HTTP/1.1", "GET /mcp HTTP/1.1", "DELETE /mcp HTTP/1.1"] {
        assert_eq!(send(&shared.ping(BOB, &ann.session()).line(line)).unwrap().status, 404, "{line}");
    }
    for (token, client) in [(ANN, &ann), (BOB, &bob)] {
        assert_eq!(send(&shared.ping(token, &client.session())).unwrap().status, 200);
    }
}

#[test]
fn sf_7_a_client_cannot_report_on_a_tool_that_runs_here() {
    let shared = SharedGateway::new(
        "sf_7_reports",
        "[command_tools.date]\ncommand = [\"date\"]\n\
         [http_tools.rates]\nmethod = \"GET\"\nurl = \"https://api.example.com/rates\"\n\
         [servers.far]\nurl = \"https://mcp.example.org:8443/mcp\"\n",
    );
    for (tool, domain) in [
        ("bank", None),
        ("command", None),
        ("host", Some("bank")),
        ("host", Some("api.example.com")),
        ("host", Some("API.example.com")),
        ("host", Some("mcp.example.org")),
    ] {
        let failure = json!({ "toolName": "pay", "pluginName": tool, "domain": domain, "error": "no" });
        let success = json!({ "toolName": "pay", "pluginName": tool, "domain": domain });
        let mut begin = call(&format!("{tool}/pay"), json!({}), None);
        begin["target"]["domain"] = domain.into();
        for (path, body) in
            [("/v1/failures", &failure), ("/v1/successes", &success), ("/v1/calls/begin", &begin)]
        {
            let (status, answer) = shared.post(ANN, path, body);
            let message = answer["error"]["message"].as_str().unwrap_or_default();
            assert!(status == 403 && message.contains("runs in this gateway"), "{tool} {path}: {answer}");
        }
        assert_eq!(shared.post(&shared.admin(), "/v1/failures", &failure).0, 200);
    }
    // The same host in the arguments.
    let arguments = json!({ "url": "https://api.example.com/rates" });
    let failure = json!({ "toolName": "fetch", "error": "no", "arguments": arguments });
    assert_eq!(shared.post(ANN, "/v1/failures", &failure).0, 403);
    // A call of the host's own tool continues. It does not count for that domain.
    let (status, started) = shared.post(ANN, "/v1/calls/begin", &call("host/fetch", arguments, None));
    assert_eq!(status, 200, "{started}");
    let source = json!({ "kind": "exit", "code": 127 });
    let report = json!({ "attempt": 1, "failure": { "message": "no", "source": source } });
    let path = format!("/v1/calls/{}/report", started["id"].as_str().unwrap());
    let (_, answer) = shared.post(ANN, &path, &report);
    assert_eq!(answer["result"]["error"]["code"], "upstream_unavailable", "{answer}");
    let body = shared.get(&shared.admin(), "/v1/domains?tenant=acme").1;
    let of = |domain: &str| body["domains"].as_array().unwrap().iter().any(|one| one["domain"] == domain);
    assert!(of("host") && !of("api.example.com"), "{body}");
    // Tools that a host names otherwise are its own.
    for own in ["host", "web"] {
        let failure = json!({ "toolName": "pay", "pluginName": own, "error": "no" });
        assert_eq!(shared.post(ANN, "/v1/failures", &failure).0, 200, "{own}");
    }
}

#[test]
fn sf_7_a_viewer_reads_metrics_and_neither_calls_nor_makes_changes() {
    let shared = SharedGateway::new("sf_7_viewer", "");
    let pay = call("bank/pay", json!({ "id": "a" }), None);
    shared.post(ANN, "/v1/calls", &pay);
    let (status, metrics) = shared.get(GRAFANA, "/metrics");
    assert!(status == 200 && metrics.as_str().unwrap().contains("steadfast_tool_calls_total"), "{metrics}");
    assert_eq!(shared.get(ANN, "/metrics").0, 403);
    assert_eq!(shared.get("nobody", "/metrics").0, 401);
    assert_eq!(shared.post(GRAFANA, "/v1/calls", &pay).0, 403);
    assert_eq!(shared.request(GRAFANA, "PUT /v1/switches", &json!({ "all": "off" })).0, 403);
    assert_eq!(shared.get(GRAFANA, "/v1/audit").0, 403);
    let over_mcp = shared.ping(GRAFANA, "none").without("mcp-session-id");
    assert_eq!(send(&over_mcp).unwrap().status, 403);
    assert_eq!(shared.world.count("pay a"), 1);
}

#[test]
fn sf_6_sf_7_tokens_can_change_at_run_time_and_are_never_stored() {
    let shared = SharedGateway::new("sf_7_tokens_change", "");
    let (ann, bob) = (shared.client(ANN), shared.client(BOB));
    let pay = call("bank/pay", json!({ "id": "a" }), Some("k"));
    assert_eq!(shared.post(ANN, "/v1/calls", &pay).0, 200);
    let listening = shared.ping(BOB, &bob.session()).line("GET /mcp HTTP/1.1");
    let listening = thread::spawn(move || send(&listening).unwrap().status);
    let is_listening = || {
        let body = shared.get_as_viewer("/v1/sessions");
        body["sessions"].as_array().unwrap().iter().any(|one| one["listens"] == true)
    };
    wait(is_listening, || "that Bob listens".to_owned());
    let (_, others) = TOKENS.split_once("[tokens.grafana]").unwrap();
    let changed =
        format!("[tokens.ann]\ntoken = \"${{NEXT_TOKEN}}\"\ntenant = \"acme\"\n[tokens.grafana]{others}");
    shared.configure(&changed);
    wait(|| listening.is_finished(), || "that Bob's stream ends".to_owned());
    assert_eq!(listening.join().unwrap(), 200);
    for revoked in [ANN, BOB] {
        assert_eq!(shared.post(revoked, "/v1/calls", &pay).0, 401);
        assert_eq!(send(&shared.ping(revoked, &ann.session())).unwrap().status, 401);
    }
    // The same name with another token is another Ann.
    let (status, answer) = shared.post(NEXT, "/v1/calls", &pay);
    assert_eq!((status, &answer["fromCache"]), (200, &json!(true)), "{answer}");
    assert_eq!(send(&shared.ping(NEXT, &ann.session())).unwrap().status, 200, "her session goes on");
    // An invalid configuration keeps the current tokens.
    shared.world.configure("[tokens.ann]\ntoken = \"short\"\n");
    wait(|| !shared.world.logged("config.kept").is_empty(), || format!("{:#?}", shared.world.log()));
    assert_eq!(shared.post(NEXT, "/v1/calls", &pay).0, 200);
    assert!(!shared.get_as_viewer("/v1/config").to_string().contains("0123456789abcdef"));
    for (path, bytes) in shared.world.written() {
        let text = String::from_utf8_lossy(&bytes);
        assert!([ANN, BOB, GRAFANA, NEXT].iter().all(|token| !text.contains(token)), "{}", path.display());
    }
}

#[test]
fn sf_7_the_audit_log_distinguishes_commands_from_programs_and_names_the_operator() {
    let shared = SharedGateway::new("sf_7_audit", "");
    let admin = shared.admin();
    // The command line needs the tokens too if the configuration names them.
    let config = TOKENS.replace("${TOKEN_OF_ANN}", ANN).replace("${TOKEN_OF_BOB}", BOB);
    shared.world.configure(&config.replace("${TOKEN_OF_GRAFANA}", GRAFANA));
    let (output, succeeded) = shared.world.steadfast(&["breaker", "open", "bank/pay"]);
    assert!(succeeded, "{output}");
    assert_eq!(shared.request(&admin, "PUT /v1/switches", &json!({ "guard": "shadow" })).0, 200);
    let (_, audit) = shared.get(&admin, "/v1/audit");
    let entries = audit["audit"].as_array().unwrap();
    let by: Vec<_> = entries.iter().map(|entry| (&entry["deed"], &entry["by"]["from"])).collect();
    assert_eq!(by, [(&json!("switched"), &json!("http")), (&json!("breaker_forced_open"), &json!("cli"))]);
    assert_eq!(entries[0]["by"]["name"], "admin");
    assert!(entries.iter().all(|entry| entry["atMs"].is_u64()), "{audit}");
}

#[test]
fn sf_7_a_large_result_is_readable_only_by_the_caller() {
    let shared = SharedGateway::new("sf_7_tenants_results", "");
    shared.configure(&format!(
        "result_limit = \"1KiB\"\n{TOKENS}\n[tokens.eve]\ntoken = \"${{NEXT_TOKEN}}\"\ntenant = \"acme\"\n"
    ));
    let (mut ann, mut bob, mut eve) = (shared.client(ANN), shared.client(BOB), shared.client(NEXT));
    let text = "0123456789".repeat(300);
    let arguments = json!({ "id": "a", "fault": "text", "text": text });
    let response = ann.call("look", arguments.clone());
    let uri = response.gateway_meta["shortened"]["readAt"].as_str().unwrap().to_owned();
    let id = response.gateway_meta["shortened"]["id"].as_str().unwrap().to_owned();
    let (status, over_http) = shared.post(ANN, "/v1/calls", &call("bank/look", arguments, None));
    assert_eq!(status, 200, "{over_http}");
    let path = over_http["shortened"]["readAt"].as_str().unwrap().to_owned();
    // For others it does not exist, even in their own tenant.
    for (client, name) in [(&mut bob, "bob"), (&mut eve, "eve")] {
        for uri in [uri.clone(), uri.replace(&id, &path["/v1/results/".len()..])] {
            let answer = client.request("resources/read", json!({ "uri": uri }));
            assert_eq!(answer["error"]["code"], -32002, "{name}: {answer}");
            assert!(!answer.to_string().contains("0123456789"), "{name}: {answer}");
        }
    }
    let own = format!("/v1/results/{id}");
    for path in [&path, &own] {
        for (token, status) in [(BOB, 404), (NEXT, 404), (GRAFANA, 403), ("nobody's", 401), (ANN, 200)] {
            let (answered, body) = shared.get(token, path);
            assert_eq!(answered, status, "{token}: {body}");
            assert_eq!(body["text"] == text[..1024], status == 200, "{token}: {body}");
        }
        assert_eq!(shared.get(&shared.admin(), path).0, 200, "whoever may call for everybody");
    }
    let answer = ann.request("resources/read", json!({ "uri": uri }));
    assert_eq!(answer["result"]["contents"][0]["text"], text[..1024], "{answer}");
}
