//! Messages to an operator, and the commands that they name: status and its lists, for every tenant.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::thread;

use serde_json::{Value, json};

use crate::client::McpTestClient;
use crate::raw::{RawRequest, send};
use crate::world::{
    GatewayWorld, LISTEN, ReservedPort, TestProcess, TestTransport, initialized, start_gateway, wait,
};

const TOKENS: &str = "
[tokens.ann]
token = \"of-ann-0123456789abcdef\"
tenant = \"acme\"
[tokens.bob]
token = \"of-bob-0123456789abcdef\"
tenant = \"of umbra\"
";

/// Returns a client of one of the two tenants.
fn client_of(gateway: &McpTestClient, actor: &str) -> McpTestClient {
    let headers = format!("authorization: Bearer of-{actor}-0123456789abcdef\r\n");
    initialized(McpTestClient::at(gateway.address()).with_headers(&headers))
}

/// Returns the JSON output of a command.
fn command_json(world: &GatewayWorld, arguments: &[&str]) -> Value {
    let (output, _) = world.steadfast(&[arguments, &["--json"]].concat());
    serde_json::from_str(&output).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {output}"))
}

/// Returns the command that a finding of this kind names for this tenant, split like in a shell.
fn command_named(status: &Value, prefix: &str, kind: &str) -> Vec<String> {
    let findings = status["findings"].as_array().unwrap();
    let is_it = |one: &&Value| {
        let text = one["what"].as_str().unwrap();
        text.starts_with(prefix) && text.contains(kind)
    };
    let finding = findings.iter().find(is_it).unwrap_or_else(|| panic!("{kind} in {status:#}"));
    let todo = finding["todo"].as_str().unwrap();
    let command = todo.split('`').nth(1).unwrap_or(todo);
    let split = Command::new("sh").args(["-c", &format!("printf '%s\\n' {command}")]).output().unwrap();
    let words = String::from_utf8(split.stdout).unwrap();
    let mut words = words.lines().map(str::to_owned);
    assert_eq!(words.next().as_deref(), Some("steadfast"), "{todo}");
    words.collect()
}

#[test]
fn d_48_the_commands_that_status_names_list_the_counted_items_of_each_tenant() {
    let config = "
[trust]
count = 1
severities = [\"crash\"]
[tools.\"bank/draw\"]
approval = \"always\"
[tools.\"bank/look\"]
breaker.consecutive = 1
breaker.cooldown = \"1h\"
retry.attempts = 1
";
    let world = GatewayWorld::of(
        "d_48_tenants",
        &format!("{config}{TOKENS}"),
        TestTransport::Http,
        TestTransport::Stdio,
    );
    let gateway = McpTestClient::over_http(world.wrap(&LISTEN));
    let (mut ann, mut bob) = (client_of(&gateway, "ann"), client_of(&gateway, "bob"));
    for client in [&mut ann, &mut bob] {
        client.call("draw", json!({ "id": "a" }));
        client.call("look", json!({ "id": "a", "fault": "error", "text": "HTTP 503 Service Unavailable" }));
    }
    ann.call("pay", json!({ "id": "a", "fault": "die_after" }));
    let status = command_json(&world, &["status"]);
    for tenant in ["acme", "of umbra"] {
        let prefix = format!("tenant {tenant}: ");
        for (kind, shown) in [("waits for approval", "bank/draw"), ("keeps failing", "tool:bank:look")] {
            let command = command_named(&status, &prefix, kind);
            let (output, succeeded) =
                world.steadfast(&command.iter().map(String::as_str).collect::<Vec<_>>());
            let rows: Vec<_> = output.lines().filter(|line| line.contains(shown)).collect();
            assert!(succeeded && rows.len() == 1 && rows[0].contains(tenant), "{command:?}: {output}");
        }
    }
    let unknown = command_named(&status, "tenant acme: ", "unknown outcome");
    let (output, _) = world.steadfast(&unknown.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(output.contains("bank/pay") && output.contains("acme"), "{output}");
    // Without a tenant every list contains all tenants.
    for (command, rows) in [(&["approvals"][..], 2), (&["breaker"], 2), (&["failures"], 2), (&["unknown"], 1)]
    {
        let (output, _) = world.steadfast(command);
        let of = |tenant: &str| output.lines().filter(|line| line.contains(tenant)).count();
        assert!(output.contains("TENANT") && of("acme") >= 1, "{command:?}: {output}");
        assert_eq!(of("of umbra") >= 1, rows == 2, "{command:?}: {output}");
    }
    let (output, _) = world.steadfast(&["status"]);
    for title in ["pending approvals", "open circuit breakers", "not trusted", "calls to hosts and servers"] {
        let section =
            output.split(title).nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap_or_default();
        assert!(section.contains("acme"), "{title} in {output}");
    }
    // An answer goes to one tenant, as the notification says too.
    let notices = world.logged("notification");
    let named = notices.iter().filter_map(|one| one["message"].as_str());
    let named: Vec<_> = named.filter(|text| text.contains("`steadfast approve 0 --tenant acme`")).collect();
    assert_eq!(named.len(), 1, "{notices:#?}");
    let (output, succeeded) = world.steadfast(&["approve", "0"]);
    assert!(!succeeded && output.contains("belongs to a tenant: add `--tenant"), "{output}");
    let id = command_json(&world, &["approvals", "--tenant", "acme"])["approvals"][0]["id"].to_string();
    let (output, succeeded) = world.steadfast(&["approve", &id, "--tenant", "acme"]);
    assert!(succeeded && output.contains("bank/draw"), "{output}");
    assert_eq!(ann.call("draw", json!({ "id": "a" })).text, "draw a, run 1");
    // A reset without a tenant applies to all of them.
    let (output, _) = world.steadfast(&["reset", "bank/pay"]);
    assert!(output.contains("add `--tenant acme`"), "{output}");
    assert!(world.steadfast(&["reset", "--all"]).1);
    assert_eq!(command_json(&world, &["status"])["counts"]["escalated"], 0);
    // Each call with an unknown outcome has its own command, and it works.
    let unknown = command_json(&world, &["unknown"]);
    let resolve = unknown["unknown"][0]["resolve"]["ran"].as_str().unwrap();
    assert!(world.steadfast(&["unknown"]).0.contains(resolve), "{unknown}");
    let (output, succeeded) = world.steadfast(&resolve.split(' ').skip(1).collect::<Vec<_>>());
    assert!(succeeded && output.contains("the call of bank/pay ran"), "{resolve}: {output}");
}

#[test]
fn the_runbook_opens_and_resets_the_breakers_of_every_tenant() {
    let world = GatewayWorld::of(
        "all_breakers",
        &format!("trust.mode = \"off\"\n{TOKENS}"),
        TestTransport::Http,
        TestTransport::Stdio,
    );
    let gateway = McpTestClient::over_http(world.wrap(&LISTEN));
    let (mut ann, mut bob) = (client_of(&gateway, "ann"), client_of(&gateway, "bob"));
    for client in [&mut ann, &mut bob] {
        assert!(!client.call("look", json!({ "id": "a" })).is_error);
    }
    let (output, succeeded) = world.steadfast(&["breaker", "open", "--all"]);
    assert!(succeeded && output.contains("tool:bank:look of tenant acme is open"), "{output}");
    for client in [&mut ann, &mut bob] {
        for tool in ["look", "pay"] {
            let refused = client.call(tool, json!({ "id": "b" }));
            assert_eq!(refused.code.as_deref(), Some("circuit_open"), "{refused:?}");
        }
    }
    assert_eq!(
        command_json(&world, &["status"])["counts"]["openBreakers"].as_u64().map(|open| open >= 4),
        Some(true)
    );
    assert!(world.steadfast(&["breaker", "reset", "--all"]).1);
    for client in [&mut ann, &mut bob] {
        assert!(!client.call("look", json!({ "id": "c" })).is_error);
    }
    assert_eq!(command_json(&world, &["status"])["counts"]["openBreakers"], 0);
}

/// Returns a gateway with a breaker that cannot be changed.
fn half_a_gateway() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(send_partial_response));
    address
}

fn send_partial_response(mut stream: TcpStream) {
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    let (mut first, mut length) = (String::new(), 0);
    lines.read_line(&mut first).unwrap();
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        match line.to_lowercase().split_once(':') {
            Some(("content-length", value)) => length = value.trim().parse().unwrap(),
            Some(_) => {}
            None => break,
        }
    }
    lines.read_exact(&mut vec![0; length]).unwrap();
    let path = first.split(' ').nth(1).unwrap();
    let (status, body) = match path.split('?').next().unwrap() {
        "/v1/breakers" => {
            ("200 OK", json!({ "breakers": [{ "key": "tool:bank:a" }, { "key": "tool:bank:b" }] }))
        }
        "/v1/breakers/tool%3Abank%3Aa" => (
            "503 Service Unavailable",
            json!({ "error": { "code": "unavailable", "message": "not just now" } }),
        ),
        "/v1/breakers/tool%3Abank%3Ab" => ("200 OK", json!({ "breaker": { "key": "tool:bank:b" } })),
        _ => ("200 OK", json!({ "tools": [], "trust": [] })),
    };
    let body = body.to_string();
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n");
    let _ = write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len());
}

#[test]
fn a_breaker_that_cannot_be_turned_does_not_keep_the_others_from_it() {
    let world = GatewayWorld::new("half_a_gateway");
    let address = half_a_gateway().to_string();
    let (output, succeeded) = world.steadfast(&["breaker", "open", "--all", "--gateway", &address]);
    assert!(!succeeded && output.contains("tool:bank:b is open"), "{output}");
    assert!(
        output.contains("1 of 2 breakers were not changed") && output.contains("tool:bank:a: not just now"),
        "{output}"
    );
}

#[test]
fn d_48_a_half_open_breaker_that_is_merely_idle_is_not_a_problem() {
    let config = "trust.mode = \"off\"\nguard.mode = \"off\"\n[tools.\"bank/look\"]\nbreaker.consecutive = 1\nbreaker.cooldown = \"100ms\"\nretry.attempts = 1\n";
    let world = GatewayWorld::of("d_48_half_open", config, TestTransport::Http, TestTransport::Stdio);
    let mut client = world.client();
    client.call("look", json!({ "id": "a", "fault": "error", "text": "HTTP 503 Service Unavailable" }));
    let state = || command_json(&world, &["breaker"])["breakers"][0]["state"].clone();
    wait(|| state() == "HALF_OPEN", || format!("half-open, not {}", state()));
    let (output, succeeded) = world.steadfast(&["status"]);
    assert!(succeeded && output.contains("all is well"), "{output}");
}

#[test]
fn a_failure_shows_its_type_its_http_status_and_the_context_of_the_host() {
    let world = GatewayWorld::of(
        "failure_facts",
        "trust.mode = \"off\"\n",
        TestTransport::Http,
        TestTransport::Stdio,
    );
    let client = McpTestClient::over_http(world.wrap(&LISTEN));
    let report = json!({
        "toolName": "search", "pluginName": "web", "severity": "server_error", "httpStatus": 502,
        "error": { "type": "UpstreamError", "message": "bad gateway" },
        "arguments": { "url": "https://example.com/rates" }, "context": { "region": "eu-1" },
    });
    let request =
        RawRequest::to(client.address()).line("POST /v1/failures HTTP/1.1").body(report.to_string());
    assert_eq!(send(&request).unwrap().status, 200);
    let (output, _) = world.steadfast(&["failures"]);
    for fact in ["web/search", "UpstreamError", "502", "example.com", "region=eu-1"] {
        assert!(output.contains(fact), "{fact} in {output}");
    }
}

/// Output of a Node program that cannot start: the reason is above its stack.
const STACK: &str = "cat >&2 <<'END'
node:internal/modules/cjs/loader:1143
  throw err;
  ^

Error: Cannot find module '/srv/missing-ledger.js'
    at Module._resolveFilename (node:internal/modules/cjs/loader:1140:15)
    at node:internal/main/run_main_module:28:49 {
  code: 'MODULE_NOT_FOUND',
  requireStack: []
}

Node.js v20.11.0

END
exit 1
";
const CAUSE: &str = "Error: Cannot find module '/srv/missing-ledger.js'";

/// `import` writes `wrap` over stdio. It does not listen, so only the store can show its state.
#[test]
fn d_48_d_49_a_server_that_cannot_start_behind_wrap_is_reported_with_the_relevant_line() {
    let world = GatewayWorld::new("d_48_wrap");
    let script = world.folder().join("server.sh");
    let start = || {
        McpTestClient::on_streams(world.wrap_alone(&["--name", "db", "--", "sh", script.to_str().unwrap()]))
    };
    fs::write(&script, STACK).unwrap();
    let mut client = start();
    let refused = client.initialize();
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains(CAUSE), "{refused}");
    client.hang_up();
    let (output, succeeded) = world.steadfast(&["status"]);
    assert!(
        !succeeded && output.contains("server db failed when it was last used") && output.contains(CAUSE),
        "{output}"
    );
    assert_eq!(command_json(&world, &["status"])["counts"]["serversDown"], 1);
    // The server works again, and that is known as well.
    let ledger = world.folder().join("ledger");
    let server = env!("CARGO_BIN_EXE_steadfast-test-server");
    fs::write(&script, format!("exec '{server}' '{}'\n", ledger.display())).unwrap();
    initialized(start()).hang_up();
    let (output, succeeded) = world.steadfast(&["status"]);
    assert!(succeeded && !output.contains("server db"), "{output}");
}

/// Starts `serve` in front of these servers. Returns it with its address, for its status.
fn serves(world: &GatewayWorld) -> (TestProcess, SocketAddr) {
    let mut serve = Command::new(world.wrap_alone(&[]).get_program());
    serve.arg("serve").args(LISTEN).current_dir(world.folder()).env("HOME", world.folder());
    serve.env_remove("XDG_STATE_HOME");
    start_gateway(&mut serve)
}

#[test]
fn d_48_a_dead_server_of_one_session_is_reported_after_that_session_has_ended() {
    let world = GatewayWorld::new("d_48_session");
    let script = world.folder().join("server.sh");
    let (server, ledger) = (env!("CARGO_BIN_EXE_steadfast-test-server"), world.folder().join("ledger"));
    fs::write(&script, format!("exec '{server}' '{}'\n", ledger.display())).unwrap();
    let config = format!("[servers.db]\nisolation = \"per_session\"\ncommand = [\"sh\", {script:?}]\n");
    world.configure(&config);
    let (_gateway, address) = serves(&world);
    let mut client = initialized(McpTestClient::at(address));
    // From its next start on it fails.
    fs::write(&script, STACK).unwrap();
    client.call("pay", json!({ "id": "a", "fault": "die_after" }));
    let down = |prefix: &str| {
        let status = get_json(address, "/v1/status");
        let findings = status["findings"].as_array().unwrap();
        let words = findings.iter().filter_map(|one| one["what"].as_str());
        words.filter(|text| text.starts_with(prefix) && text.contains(CAUSE)).count()
    };
    wait(|| down("server db is down: ") == 1, || get_json(address, "/v1/status").to_string());
    let bye =
        RawRequest::to(address).line("DELETE /mcp HTTP/1.1").header("mcp-session-id", &client.session());
    send(&bye).unwrap();
    let instances = || get_json(address, "/v1/servers")["servers"][0]["instances"].clone();
    wait(|| instances() == json!([]), || format!("no instance, not {}", instances()));
    assert_eq!(down("server db failed when it was last used: "), 1, "{}", get_json(address, "/v1/status"));
}

fn get_json(address: SocketAddr, path: &str) -> Value {
    let response = send(&RawRequest::to(address).line(&format!("GET {path} HTTP/1.1"))).unwrap();
    serde_json::from_slice(&response.body).unwrap()
}

#[test]
fn d_48_an_unreachable_server_at_a_url_is_reported_until_it_is_reachable() {
    let world = GatewayWorld::new("d_48_url");
    let port = ReservedPort::reserve();
    let [live, dead] = ["live", "dead"].map(|name| world.folder().join(name));
    let server = env!("CARGO_BIN_EXE_steadfast-test-server");
    fs::write(&live, "").unwrap();
    fs::write(&dead, "").unwrap();
    world.configure(&format!(
        "trust.mode = \"off\"\nguard.mode = \"off\"\nbreaker.mode = \"off\"\n[servers.live]\ncommand = [{server:?}, {live:?}]\n\
         [servers.away]\nurl = \"http://{}/mcp\"\n",
        port.address()
    ));
    let (_gateway, address) = serves(&world);
    let mut client = initialized(McpTestClient::at(address));
    assert!(client.call("away__look", json!({ "id": "a" })).is_error);
    let down = || {
        let status = get_json(address, "/v1/status");
        let findings = status["findings"].as_array().unwrap().clone();
        findings
            .into_iter()
            .find(|one| one["what"].as_str().unwrap().starts_with("server away cannot be reached: "))
    };
    let finding = down().unwrap_or_else(|| panic!("{}", get_json(address, "/v1/status")));
    assert!(finding["what"].as_str().unwrap().to_lowercase().contains("refused"), "{finding}");
    let listener = TcpListener::bind(port.address()).unwrap();
    let mut command = Command::new(server);
    command.arg(&dead).arg("--listening").stdin(OwnedFd::from(listener));
    let _server = TestProcess::spawn(&mut command);
    let mut next = initialized(McpTestClient::at(address));
    assert!(!next.call("away__look", json!({ "id": "b" })).is_error);
    assert_eq!(down(), None);
}

#[test]
fn check_reports_an_address_without_tokens_beside_other_errors_as_serve_does() {
    let world = GatewayWorld::new("check_pass");
    let refusal = "can be reached from other machines";
    for (config, is_reported) in [
        ("listen = \"0.0.0.0:8931\"\n[retry]\nattemps = 3\n", true),
        ("listen = \"0.0.0.0:8931\"\ncolour = \"red\"\n", true),
        // The unreadable part may contain the tokens, or the address.
        ("listen = \"0.0.0.0:8931\"\n[tokenss.ann]\ntoken = \"of-ann-0123456789abcdef\"\n", false),
        ("listen = \"0.0.0.0:8931\"\n[tokens.ann]\ntokn = \"of-ann-0123456789abcdef\"\n", false),
        ("listen = \"0.0.0.0:\"\n[retry]\nattemps = 3\n", false),
    ] {
        world.configure(config);
        for command in ["check", "serve"] {
            let (output, succeeded) = world.steadfast(&[command]);
            assert!(!succeeded && output.contains(" in the configuration"), "{command}: {output}");
            assert_eq!(output.contains(refusal), is_reported, "{config}: {command}: {output}");
        }
    }
    // The same with an invalid state file.
    world.configure("colour = \"red\"\n[store]\npath = \"ledger/state.db\"\n");
    let (output, succeeded) = world.steadfast(&["check"]);
    assert!(!succeeded && output.contains("colour") && output.contains("/ledger cannot be used"), "{output}");
    // Without a server `serve` does not start, and that is reported with all other problems.
    world.configure("listen = \"0.0.0.0:8931\"\n");
    let (output, succeeded) = world.steadfast(&["serve"]);
    assert!(
        !succeeded && output.contains(refusal) && output.contains("the configuration has no server"),
        "{output}"
    );
    world.configure("");
    let (output, succeeded) = world.steadfast(&["check"]);
    assert!(succeeded && output.contains("`steadfast serve` cannot start"), "{output}");
}

/// Servers of one name that run one after the other, as clients start them in the home folder.
#[test]
fn d_47_another_server_of_the_name_has_trust_breakers_and_history_of_its_own_and_a_newer_version_has_not() {
    let config = "
[trust]
count = 1
severities = [\"crash\"]
[tools.\"db/look\"]
breaker.consecutive = 1
breaker.cooldown = \"1h\"
retry.attempts = 1
";
    let world = GatewayWorld::of("d_47_in_turn", config, TestTransport::Stdio, TestTransport::Stdio);
    let program = |name: &str| {
        let link = world.folder().join(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_steadfast-test-server"), &link).unwrap();
        link
    };
    let (old, new) = (program("server@1.0.0"), program("server@1.1.0"));
    let start = |program: &std::path::Path, ledger: &str| {
        let ledger = world.folder().join(ledger);
        fs::OpenOptions::new().create(true).append(true).open(&ledger).unwrap();
        let mut command = world.wrap_alone(&["--name", "db", "--"]);
        command.arg(program).arg(ledger);
        initialized(McpTestClient::on_streams(command))
    };
    let mut one = start(&old, "postgres");
    one.call("look", json!({ "id": "a", "fault": "error", "text": "HTTP 503 Service Unavailable" }));
    one.call("pay", json!({ "id": "a", "fault": "die_after" }));
    assert_eq!(one.call("pay", json!({ "id": "b" })).code.as_deref(), Some("approval_required"));
    one.hang_up();
    // Another program with that name has no such history.
    let mut other = start(&old, "sqlite");
    assert!(!other.call("pay", json!({ "id": "c" })).is_error);
    assert!(!other.call("look", json!({ "id": "c" })).is_error);
    other.hang_up();
    // Another version of the first one has it.
    let mut newer = start(&new, "postgres");
    assert_eq!(newer.call("pay", json!({ "id": "d" })).code.as_deref(), Some("approval_required"));
    assert_eq!(newer.call("look", json!({ "id": "d" })).code.as_deref(), Some("circuit_open"));
    newer.hang_up();
    let (history, _) = world.steadfast(&["tail", "--once", "-n", "100"]);
    let of = |name: &str| history.lines().filter(|line| line.contains(name)).count();
    assert_eq!((of(" db/"), of(" db~")), (5, 2), "{history}");
}
