//! Planted secrets (SF-6, TR-15): whatever their shape and their way in, they are found in no output.

use std::fs;
use std::io::Read as _;
use std::thread;

use serde_json::{Value, json};
use steadfast_testkit::effort::TestEffort;

use super::{ADMIN, ApiGateway, ApiTestResponse, KINDS, envelope, keyed, within};
use crate::client::McpTestClient;
use crate::world::wait;

/// The planted secrets. Those without a recognizable shape have a recognizable name.
const PASSWORD: &str = "hunter2-of-ann";
const TOKEN: &str = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
const CLOUD: &str = "AKIAIOSFODNN7EXAMPLE";
const LIVE: &str = "sk-live-4f9a8b7c6d5e4f3a2b1c";
const JWT: &str = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJlLW9mLWFubg";
const RANDOM: &str = "q7Zt2Lm9Xw4Rb8Kc5Vn1Hs6Jd3Fg0PyA2eUoT7iB";
const IN_URL: &str = "s3cr3t-of-the-url";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const KEY: &str = "key-of-ann-hZ8sQ2vN7kR4tW1xY6bM3cL9";
const KEY_OF_HANGING: &str = "key-of-ann-pT4gB8wE1zR6vX3nC7mK2jH5";
const CONFIGURED: &str = "configured-credential-of-ann";
const GIVEN: &str = "environment-credential-of-ann";
const CLIENT: &str = "token-of-the-agents-5521";
const SECRETS: [&str; 13] = [
    PASSWORD,
    TOKEN,
    CLOUD,
    LIVE,
    JWT,
    RANDOM,
    IN_URL,
    KEY,
    KEY_OF_HANGING,
    CONFIGURED,
    GIVEN,
    CLIENT,
    ADMIN,
];

/// Returns all of them in a text.
fn words() -> String {
    format!(
        "cannot log in: password={PASSWORD} token {TOKEN}, tried {CLOUD} and {LIVE}; Authorization: Bearer {JWT} at \
         https://ann:{IN_URL}@bank.example.com/v1?api_key={CONFIGURED} ({RANDOM})"
    )
}

/// Returns all of them in arguments.
fn leaky(id: &str, fault: &str) -> Value {
    json!({
        "id": id, "fault": fault, "text": words(), "password": PASSWORD, "note": format!("use {TOKEN} or {CLOUD}"),
        "apiKey": CONFIGURED, "list": [LIVE, RANDOM], "url": format!("https://ann:{IN_URL}@bank.example.com/v1"),
        "headers": { "Authorization": format!("Bearer {JWT}"), "Cookie": format!("session={RANDOM}") },
        "nested": format!("{{\"client_secret\":\"{PASSWORD}\"}}"),
    })
}

/// Returns the same without a record. A record keeps the words of its tool, for a caller that did not receive them.
fn unrecorded(mut envelope: Value) -> Value {
    envelope["transport"]["dedupeMode"] = "disabled".into();
    envelope
}

/// Returns the secrets that a text contains.
fn found(text: &[u8]) -> Vec<&'static str> {
    let mut begins = [false; 256];
    for secret in SECRETS {
        begins[usize::from(secret.as_bytes()[0])] = true;
    }
    // Once through the text for all of them, because it is long.
    let mut found = [false; SECRETS.len()];
    for (at, _) in text.iter().enumerate().filter(|(_, byte)| begins[usize::from(**byte)]) {
        for (found, secret) in found.iter_mut().zip(SECRETS) {
            *found |= text[at..].starts_with(secret.as_bytes());
        }
    }
    SECRETS.into_iter().zip(found).filter(|(_, found)| *found).map(|(secret, _)| secret).collect()
}

/// Returns the places that contain secrets, with their surroundings.
fn leaks<T: AsRef<[u8]>>(places: impl IntoIterator<Item = (String, T)>) -> Vec<String> {
    let mut leaks = Vec::new();
    for (place, text) in places {
        let text = text.as_ref();
        for secret in found(text) {
            let at = text.windows(secret.len()).position(|window| window == secret.as_bytes()).unwrap_or(0);
            let around = &text[at.saturating_sub(120)..text.len().min(at + 60)];
            leaks.push(format!("{secret} in {place}: …{}…", String::from_utf8_lossy(around)));
        }
    }
    leaks
}

/// Returns a gateway whose configuration and environment contain secrets too.
fn gateway(test: &str) -> ApiGateway {
    let config = format!(
        "guard.mode = \"shadow\"\nlog.level = \"trace\"\nlog.malformed_calls = \"malformed.jsonl\"\nretry.base = \"1ms\"\nretry.attempts = 2\n\
         [http_tools.away]\nmethod = \"GET\"\nurl = \"http://127.0.0.1:1/x?api_key={CONFIGURED}\"\n\
         headers = {{ Authorization = \"Bearer ${{GIVEN}}\", X-Api-Key = \"{CONFIGURED}\" }}\n\
         [command_tools.env]\ncommand = [\"sh\", \"-c\", \"echo no luck with $BANK_PASSWORD >&2; exit 1\", \"--password={CONFIGURED}\"]\n\
         env = {{ BANK_PASSWORD = \"${{GIVEN}}\" }}\n\
         [command_tools.asks]\ncommand = [\"true\"]\n[tools.\"command/asks\"]\napproval = \"always\"\n\
         [servers.gone]\ncommand = [\"no-such-program\", \"--token\", \"{CONFIGURED}\"]\nenv = {{ API_KEY = \"{CONFIGURED}\" }}\n\
         [servers.far]\nurl = \"http://127.0.0.1:1/mcp?token={CONFIGURED}\"\nheaders = {{ Authorization = \"Bearer ${{GIVEN}}\" }}\n"
    );
    ApiGateway::with(test, &config, "", |command| {
        command.env("GIVEN", GIVEN).env("STEADFAST_TOKEN", CLIENT);
    })
}

/// Sends a request with the token of the agents, and with the secrets in its headers too.
fn agent(gateway: &ApiGateway, line: &str, body: &str) -> ApiTestResponse {
    let request = gateway
        .request(line)
        .header("authorization", &format!("Bearer {CLIENT}"))
        .header("x-api-key", CONFIGURED)
        .header("cookie", &format!("session={RANDOM}"))
        .header("user-agent", &format!("agent/{TOKEN}"))
        .header("referer", &format!("https://ann:{IN_URL}@bank.example.com/"));
    ApiTestResponse::to(&request.body(body))
}

/// Sends every secret in by every way. Returns the gateway's own answers, because tools respond with any text.
fn plant(gateway: &ApiGateway) -> Vec<(String, String)> {
    let mut answers = Vec::new();
    let mut record =
        |description: String, answer: &ApiTestResponse| answers.push((description, answer.body.to_string()));
    // A caller that names another principal learns the one of its token.
    let refused = agent(gateway, "POST /v1/calls", &envelope("bank/pay", &leaky("x", "")).to_string());
    assert_eq!(refused.status, 403, "{}", refused.body);
    let actor = refused.message().split('`').nth(1).unwrap().to_owned();
    let named = |mut call: Value| {
        call["target"]["actorId"] = actor.as_str().into();
        call["trace"] = json!({
            "traceparent": format!("00-{TRACE}-b7ad6b7169203331-01"),
            "baggage": { "who": TOKEN, "password": PASSWORD },
        });
        call["control"]["requestTags"] = json!([TOKEN]);
        call
    };
    let call = |envelope: Value| agent(gateway, "POST /v1/calls", &named(envelope).to_string());
    for kind in KINDS {
        for tool in ["pay", "look"] {
            let name = format!("{kind}/{tool}");
            let leaky = |id: &str, fault: &str| {
                let mut params = leaky(id, fault);
                // A query cannot contain an object.
                if name == "http/look" {
                    params["headers"] = format!("Authorization: Bearer {JWT}").into();
                }
                params
            };
            record(format!("{name} works"), &call(keyed(&name, &leaky("good", ""), KEY)));
            record(format!("{name} is replayed"), &call(keyed(&name, &leaky("good", ""), KEY)));
            record(format!("{name} conflicts"), &call(keyed(&name, &leaky("other", ""), KEY)));
            record(
                format!("{name} hangs"),
                &call(within(keyed(&name, &leaky("hang", "hang"), KEY_OF_HANGING), 300)),
            );
            // A tool's answer goes unchanged to its caller, and nowhere else.
            for fault in ["400", "503"] {
                let response = call(unrecorded(envelope(&name, &leaky(fault, fault))));
                assert!(
                    name != "http/pay" || fault != "400" || response.message().contains(TOKEN),
                    "{}",
                    response.body
                );
            }
        }
    }
    record("a server's stderr".into(), &call(envelope("bank/look", &leaky("stderr", "stderr"))));
    record("a server dies".into(), &call(envelope("bank/look", &leaky("dies", "die_after"))));
    for tool in ["http/away", "command/env", "command/asks", "gone/x", "far/x", "http/none"] {
        record(tool.to_owned(), &call(envelope(tool, &leaky("x", ""))));
    }
    // A turn, and an invalid plan. The turn has no name: with one, the words of its tools would be kept for a
    // resubmission.
    let turn = |plan: Value| {
        let turn = json!({ "contractVersion": "1.1", "target": envelope("bank/pay", &json!({}))["target"], "plan": plan });
        agent(gateway, "POST /v1/turns", &named(turn).to_string())
    };
    let turned = turn(json!({ "calls": [
        { "id": "a", "tool": "http/pay", "params": leaky("turn", "400"), "alternatives": ["command/env"] },
        { "id": "b", "tool": "command/env", "params": leaky("turn", "") },
    ] }));
    assert_eq!(turned.status, 200, "{}", turned.body);
    record(
        "a wrong plan".into(),
        &turn(json!({ "calls": [{ "id": TOKEN, TOKEN: LIVE, "dependsOn": [words()] }] })),
    );
    // An invalid call.
    let mut malformed = envelope("bank/pay", &leaky("x", ""));
    malformed["contractVersion"] = format!("9.9 {TOKEN}").into();
    malformed["payload"]["idempotencyKey"] = json!([KEY]);
    malformed["target"]["sessionKey"] = json!({ "password": PASSWORD });
    record("malformed".into(), &call(malformed));
    record("no JSON".into(), &agent(gateway, "POST /v1/calls", &format!("{{ {}", words())));
    // Reports of hosts, and calls that they run.
    let report = json!({
        "toolName": "search", "error": words(), "severity": "server_error", "arguments": leaky("x", ""),
        "context": leaky("x", ""),
    });
    for _ in 0..3 {
        record("report".into(), &agent(gateway, "POST /v1/failures", &report.to_string()));
    }
    let started = agent(
        gateway,
        "POST /v1/calls/begin",
        &named(unrecorded(envelope("host/run", &leaky("x", "")))).to_string(),
    );
    let id = started.body["id"].as_str().unwrap_or_else(|| panic!("{}", started.body));
    let path = format!("POST /v1/calls/{id}/report");
    let failed = json!({ "attempt": 1, "failure": { "message": words(), "source": { "kind": "http", "status": 400 } } });
    agent(gateway, &path, &failed.to_string());
    // An operator makes changes, with typing errors.
    let operator = |line: &str, body: &str| {
        let request = gateway.request(line).header("authorization", &format!("Bearer {ADMIN}"));
        ApiTestResponse::to(&request.header("x-operator", &format!("ann {TOKEN}")).body(body))
    };
    record("a breaker".into(), &operator("POST /v1/breakers/tool:http:pay", r#"{"to":"open"}"#));
    record("a slip".into(), &operator(&format!("POST /v1/breakers/{TOKEN}"), r#"{"to":"open"}"#));
    record("a query".into(), &operator(&format!("GET /v1/records?tool={TOKEN}"), ""));
    record("a field".into(), &operator("PUT /v1/switches", &json!({ TOKEN: "off" }).to_string()));
    record(
        "a wrong token".into(),
        &ApiTestResponse::to(
            &gateway.request("GET /v1/status").header("authorization", &format!("Bearer {LIVE}")),
        ),
    );
    record(
        "a token in a query".into(),
        &ApiTestResponse::to(&gateway.request(&format!("GET /v1/status?token={ADMIN}"))),
    );
    // The same over MCP.
    let mut client =
        McpTestClient::at(gateway.address).with_headers(&format!("authorization: Bearer {CLIENT}\r\n"));
    client.initialize();
    client.request("tools/list", json!({}));
    for fault in ["", "400", "error"] {
        let meta = json!({ "dev.steadfast/idempotency-key": format!("{KEY}{fault}"), "baggage": TOKEN });
        client.call_with("bank__look", leaky(&format!("mcp {fault}"), fault), meta);
    }
    client.request(&format!("no/{TOKEN}"), leaky("x", ""));
    answers
}

/// Returns all answers of the HTTP API.
fn endpoint_texts(gateway: &ApiGateway) -> Vec<(String, String)> {
    let document = gateway.get("/openapi.json");
    let mut lines = vec!["/".to_owned(), "/page/main.js".to_owned(), "/v1/history/r-1".to_owned()];
    for tool in ["http%2Fpay", "command%2Flook", "bank%2Flook", "host%2Fsearch"] {
        lines.push(format!("/v1/tools/{tool}/score"));
    }
    let paths = document["paths"].as_object().unwrap().iter();
    // Event streams never end, and the text of a result is what the tool gave its caller.
    let others = ["/v1/events", "/v1/results/{id}"];
    let looked_at = paths
        .filter(|(path, operations)| operations.get("get").is_some() && !others.contains(&path.as_str()));
    lines.extend(looked_at.map(|(path, _)| {
        // An entry with each of these ids exists.
        let id = if path.starts_with("/v1/traces") { TRACE } else { "r-1" };
        // Only tools of servers have annotations.
        let name = if path.ends_with("/annotations") { "bank%2Flook" } else { "http%2Fpay" };
        path.replace("{id}", id).replace("{name}", name)
    }));
    assert!(lines.len() > 20, "{lines:?}");
    let ask = |path: String| {
        let response = gateway.request_as_operator(&format!("GET {path}"), &Value::Null);
        assert_eq!(response.status, 200, "{path}: {}", response.body);
        (path, String::from_utf8_lossy(&response.answered.body).into_owned())
    };
    lines.into_iter().map(ask).collect()
}

/// Returns the output of every command, as text and as JSON.
fn command_outputs(gateway: &ApiGateway) -> Vec<(String, String)> {
    let waiting = gateway.get("/v1/approvals");
    let id = waiting["approvals"][0]["id"].to_string();
    let open = gateway.get("/v1/records?open=true");
    let key = open["records"][0]["key"].as_str().expect("a call with an unknown outcome").to_owned();
    let commands: Vec<Vec<&str>> = vec![
        vec!["status"],
        vec!["approvals"],
        vec!["breaker"],
        vec!["tail", "--once", "-n", "100"],
        vec!["tail", "--once", "--all"],
        vec!["doctor"],
        vec!["check"],
        vec!["check", "--open"],
        vec!["import"],
        vec!["config", "explain", "bank/pay"],
        vec!["config", "explain", "http/away"],
        vec!["config", "explain", "bank/pay", "--arguments", "{}"],
        vec!["deny", &id],
        vec!["approve", "99999"],
        vec!["resolve", &key, "--ran"],
        vec!["breaker", "reset", "tool:http:pay"],
        vec!["reset", "host/search"],
        vec!["flush", "--tool", "bank/pay"],
        vec!["bench", "gone"],
    ];
    let forms = TestEffort::of_this_run().cases(vec![&[][..], &["--json"], &["--gateway", "none"]]);
    let mut all = Vec::new();
    for command in commands {
        for more in &forms {
            let arguments = [&command[..], more].concat();
            let mut line = gateway.command(&arguments);
            let output = line.env("GIVEN", GIVEN).output().unwrap();
            let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            all.push((format!("steadfast {}", arguments.join(" ")), text));
        }
    }
    all
}

/// Returns all files in the folder except those written by others: ledgers, and our configuration.
fn written(gateway: &ApiGateway) -> Vec<(String, Vec<u8>)> {
    let (mut files, mut folders) = (Vec::new(), vec![gateway.folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = entry.file_name();
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false if KINDS.iter().any(|kind| name == *kind) || name == "steadfast.toml" => {}
                // For example a socket, or a file that is gone already.
                false => files
                    .extend(fs::read(entry.path()).map(|bytes| (entry.path().display().to_string(), bytes))),
            }
        }
    }
    files
}

/// Secrets in names that callers choose were shown, and a control character for writing direction reversed a line of
/// the log.
#[test]
fn sf_6_names_that_look_like_secrets_are_never_shown() {
    let turned = "s-\u{202e}drac";
    let mut gateway = ApiGateway::new("sf_6_names", "log.format = \"text\"\nlog.level = \"debug\"\n");
    for session in [format!("session-{TOKEN}"), turned.to_owned()] {
        let mut call = envelope(&format!("host/pay-{TOKEN}"), &json!({}));
        call["requestId"] = format!("request-{TOKEN}").into();
        call["toolCallId"] = TOKEN.into();
        call["target"]["sessionKey"] = session.into();
        call["target"]["turnId"] = format!("turn-{LIVE}").into();
        let started = gateway.post("/v1/calls/begin", &call);
        let id = started.body["id"].as_str().unwrap_or_else(|| panic!("{}", started.body));
        let failed = json!({ "attempt": 1, "failure": { "message": "no", "source": { "kind": "http", "status": 400 } } });
        gateway.post(&format!("/v1/calls/{id}/report"), &failed);
        let report =
            json!({ "toolName": format!("search-{TOKEN}"), "error": "no", "severity": "server_error" });
        for _ in 0..3 {
            gateway.post("/v1/failures", &report);
        }
    }
    wait(
        || gateway.get("/v1/history")["calls"].as_array().map_or(0, Vec::len) == 2,
        || "the history of two calls".to_owned(),
    );
    let mut places = Vec::new();
    for path in [
        "status",
        "history",
        "tools",
        "failures",
        "breakers",
        "records",
        "sessions",
        "running",
        "trust",
        "guard",
        "series",
        "domains",
        "models",
        "approvals",
        "traces",
        "servers",
        "audit",
    ] {
        places.push((path.to_owned(), gateway.get(&format!("/v1/{path}")).to_string()));
    }
    for command in
        [&["status"][..], &["tail", "--once", "--all"], &["failures"], &["breaker"], &["status", "--json"]]
    {
        for gateway_option in [&[][..], &["--gateway", "none"]] {
            let output = gateway.run(&[command, gateway_option].concat());
            places.push((
                command.join(" "),
                String::from_utf8([output.stdout, output.stderr].concat()).unwrap(),
            ));
        }
    }
    gateway.stop();
    places.push(("the log".to_owned(), fs::read_to_string(gateway.folder.join("log")).unwrap()));
    let leaked = leaks(places.clone());
    assert!(leaked.is_empty(), "{leaked:#?}");
    // The texts with the redacted secrets exist.
    for place in ["history", "the log"] {
        let (_, text) = places.iter().find(|(own, _)| own == place).unwrap();
        for shown in ["pay-[redacted]", "request-[redacted]", "s-\\\\u202edrac"] {
            assert!(text.contains(shown), "{shown} in {place}: {text}");
        }
    }
    let reordered: Vec<_> = places.iter().filter(|(_, text)| text.contains('\u{202e}')).collect();
    assert!(reordered.is_empty(), "{reordered:#?}");
}

#[test]
fn sf_6_tr_15_planted_secrets_are_in_no_output() {
    let mut gateway = gateway("sf_6");
    // All events, from the beginning to the end.
    let mut events = gateway.listen("");
    let event_stream = thread::spawn(move || {
        let mut happened = Vec::new();
        let _ = events.0.read_to_end(&mut happened);
        happened
    });
    let mut leaked = leaks(plant(&gateway));
    // A request for approval is stored asynchronously.
    let waiting = || gateway.get("/v1/approvals")["approvals"].as_array().map_or(0, Vec::len);
    wait(|| waiting() > 0, || "a request".to_owned());
    // So are history and traces.
    for path in ["/v1/history/r-1".to_owned(), format!("/v1/traces/{TRACE}")] {
        let response = || gateway.request_as_operator(&format!("GET {path}"), &Value::Null);
        let is_stored = || response().status == 200 && response().body.to_string().contains("cannot log in");
        wait(is_stored, || format!("{path}: {}", response().body));
    }
    let (endpoints, outputs) = (endpoint_texts(&gateway), command_outputs(&gateway));
    leaked.extend(leaks(endpoints.clone()));
    leaked.extend(leaks(outputs));
    // The files that were open while it ran, and those that remain after it has ended.
    leaked.extend(leaks(written(&gateway)));
    gateway.stop();
    let written = written(&gateway);
    leaked.extend(leaks(written.clone()));
    let happened = event_stream.join().unwrap();
    leaked.extend(leaks([("the events".to_owned(), happened.clone())]));
    assert!(leaked.is_empty(), "{leaked:#?}");

    // The checked texts exist everywhere.
    let names: Vec<_> = written.iter().map(|(path, _)| path).collect();
    for suffix in ["/log", "state.db", "malformed.jsonl"] {
        assert!(names.iter().any(|name| name.ends_with(suffix)), "no {suffix}: {names:?}");
    }
    let happened = String::from_utf8_lossy(&happened).into_owned();
    let log = fs::read_to_string(gateway.folder.join("log")).unwrap();
    for event in ["tool_call_end", "tool_call_retry", "tool_call_conflict", "tool_call_malformed", "audit"] {
        assert!(happened.contains(event) && log.contains(event), "{event}");
    }
    let of =
        |path: &str| endpoints.iter().find(|(own, _)| own == path).map(|(_, text)| text.clone()).unwrap();
    for (path, part) in [
        ("/v1/servers", "cannot log in"),
        ("/v1/approvals", "[redacted]"),
        ("/v1/history/r-1", "cannot log in"),
        (&format!("/v1/traces/{TRACE}"), "cannot log in"),
        ("/v1/trust", "search"),
        ("/v1/config", "bank"),
        ("/metrics", "bank/look"),
        ("/v1/audit", "breaker_forced_open"),
    ] {
        assert!(of(path).contains(part), "{part} in {path}: {}", of(path));
    }
    // The tools themselves received their arguments unchanged.
    let requests = gateway.service.requests();
    let paid = requests.iter().find(|request| request.line.starts_with("POST /pay")).unwrap();
    assert!(
        paid.body.contains(TOKEN)
            && paid.body.contains(PASSWORD)
            && paid.header("idempotency-key") == Some(KEY)
    );
    assert!(happened.contains("[redacted]"), "secrets are masked, and the rest is told");
}
