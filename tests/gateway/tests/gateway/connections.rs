//! Limits of connections (SF-5): idle connections take no slot, health checks and operators find one, and all other
//! clients are answered.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::client::{McpTestClient, ToolResponse};
use crate::raw::{PersistentConnection, RawRequest, RawResponse, send};
use crate::serve::TwoServerGateway;
use crate::world::{GatewayWorld, LISTEN, TEST_TIMEOUT, TestTransport, wait};

/// Returns a gateway in front of the server of this world. Its operator has the token `person`.
fn gateway(world: &GatewayWorld, change: impl FnOnce(Command) -> Command) -> McpTestClient {
    let mut command = change(world.wrap(&LISTEN));
    command.env("STEADFAST_ADMIN_TOKEN", "person");
    McpTestClient::over_http(command)
}

/// Raises the file limit of this process to what a test needs.
fn many_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

fn get(address: SocketAddr, path: &str) -> RawRequest {
    RawRequest::to(address).line(&format!("GET {path} HTTP/1.1")).header("accept", "application/json")
}

/// Returns an operator's view of the gateway.
fn operator(address: SocketAddr, path: &str) -> RawResponse {
    send(&get(address, path).header("authorization", "Bearer person")).expect("an answer")
}

/// Opens connections on which nothing arrives, or only the beginning of a request.
fn half_open(address: SocketAddr, many: usize) -> Vec<TcpStream> {
    let beginnings = ["", "P", "POST /mcp HTTP/1.1\r\nhost: x\r\n"];
    let start_request = |beginning: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        // Some may have been closed before.
        let _ = stream.write_all(beginning.as_bytes());
        stream
    };
    beginnings.iter().cycle().take(many).map(|beginning| start_request(beginning)).collect()
}

/// Checks that regular clients are answered.
fn assert_serving(address: SocketAddr) {
    assert_eq!(send(&get(address, "/readyz")).expect("an answer").status, 200);
    assert_eq!(operator(address, "/v1/status").status, 200);
    let mut client = McpTestClient::at(address);
    assert!(client.initialize()["result"].is_object());
    assert!(client.call("look", json!({ "id": "a" })).text.starts_with("look a, run "));
}

/// With 1,150 half-open connections, a health check got no answer.
#[test]
fn sf_5_half_open_connections_block_no_client() {
    many_files();
    let world = GatewayWorld::of("sf_5_half_open", "", TestTransport::Http, TestTransport::Stdio);
    let mut client = gateway(&world, |command| command);
    client.initialize();
    let waiting = half_open(client.address(), 1_150);
    assert_serving(client.address());
    assert_eq!(client.call("look", json!({ "id": "b" })).text, "look b, run 1", "those before go on");
    // A connection that was closed to make room gets a response, unless it had sent nothing that could be answered.
    let mut first = &waiting[1];
    first.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let mut response = String::new();
    first.read_to_string(&mut response).unwrap();
    assert!(
        response.starts_with("HTTP/1.1 503 ") && response.contains("\r\nretry-after: 1\r\n"),
        "{response:?}"
    );
    drop(waiting);
    assert_serving(client.address());
}

/// The same with connections that stay open after an answer, for longer than any health check waits.
#[test]
fn sf_5_idle_connections_block_no_client() {
    many_files();
    let world = GatewayWorld::of("sf_5_idle", "", TestTransport::Http, TestTransport::Stdio);
    let client = gateway(&world, |command| command);
    let open_idle = |_| {
        let mut connection = PersistentConnection::to(client.address());
        connection.request(&get(client.address(), "/healthz"));
        connection
    };
    let _idle: Vec<_> = (0..1_150).map(open_idle).collect();
    assert_serving(client.address());
}

/// A process may have a file limit below the limit of connections.
#[test]
fn sf_5_half_open_connections_do_not_use_up_the_files_of_the_gateway() {
    many_files();
    let world = GatewayWorld::of("sf_5_files", "", TestTransport::Http, TestTransport::Stdio);
    let client = gateway(&world, |command| {
        let mut limited = Command::new("/bin/sh");
        limited.args(["-c", "ulimit -n 400; exec \"$0\" \"$@\""]).arg(command.get_program());
        limited.args(command.get_args()).current_dir(world.folder());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => limited.env(name, value),
                None => limited.env_remove(name),
            };
        }
        limited.stderr(fs::File::create(world.folder().join("log")).unwrap());
        limited
    });
    let _waiting = half_open(client.address(), 600);
    assert_serving(client.address());
    let log = fs::read_to_string(world.folder().join("log")).unwrap();
    assert!(log.contains("connections instead of 1024"), "{log}");
}

/// Follows an event stream until this is dropped. Otherwise returns the response.
fn follow(request: &RawRequest) -> Result<TcpStream, RawResponse> {
    let mut stream = TcpStream::connect(request.address()).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let request = request.clone().header("accept", "text/event-stream");
    stream.write_all(&request.bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
    if line.starts_with("HTTP/1.1 200 ") { Ok(stream) } else { Err(send(&request).expect("an answer")) }
}

/// Listens in a session of its own.
fn listen(address: SocketAddr, token: Option<&str>) -> Result<TcpStream, RawResponse> {
    let authorization = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let mut client = McpTestClient::at(address).with_headers(&authorization);
    client.initialize();
    let request = get(address, "/mcp").header("mcp-session-id", &client.session());
    follow(&match token {
        Some(token) => request.header("authorization", &format!("Bearer {token}")),
        None => request,
    })
}

fn is_full(refused: &RawResponse) -> bool {
    let has_retry_after =
        refused.header("retry-after").is_some_and(|wait| wait.parse::<u64>().is_ok_and(|wait| wait > 0));
    refused.status == 503 && has_retry_after && serde_json::from_slice::<Value>(&refused.body).is_ok()
}

const ANN: &str = "ann-has-this-token";
const BOB: &str = "bob-has-this-token";

#[test]
fn sf_5_the_event_streams_of_one_principal_are_bounded_apart_from_those_of_others() {
    let config = format!(
        "[gateway]\nstreams_per_principal = 3\n\n[tokens.ann]\ntoken = \"{ANN}\"\n\n[tokens.bob]\ntoken = \"{BOB}\"\n"
    );
    let world = GatewayWorld::of("sf_5_streams", &config, TestTransport::Http, TestTransport::Stdio);
    let gateway = gateway(&world, |command| command);
    let address = gateway.address();
    let mut own: Vec<_> = (0..3).map(|_| listen(address, Some(ANN)).expect("a stream")).collect();
    let refused = listen(address, Some(ANN)).expect_err("no more streams");
    assert!(is_full(&refused), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.body).contains("gateway.streams_per_principal"), "{refused:?}");
    let _other = listen(address, Some(BOB)).expect("a stream of another principal");
    let events = get(address, "/v1/events").header("authorization", "Bearer person");
    let _events: Vec<_> = (0..3).map(|_| follow(&events).expect("events")).collect();
    let refused = follow(&events).expect_err("no more events");
    assert!(is_full(&refused), "{refused:?}");
    assert_eq!(operator(address, "/v1/status").status, 200);
    own.pop();
    wait(|| listen(address, Some(ANN)).is_ok(), || "a stream instead of the one that has ended".to_owned());
}

#[test]
fn sf_5_two_hundred_sessions_of_this_machine_listen_and_call() {
    many_files();
    // Sessions share their servers here.
    let served = TwoServerGateway::new("sf_5_local", "");
    let sessions: Vec<_> = (0..200).map(|_| listen(served.address(), None).expect("a stream")).collect();
    let mut client = McpTestClient::at(served.address());
    client.initialize();
    assert_eq!(client.call("bank__look", json!({ "id": "a" })).text, "look a, run 1");
    assert_eq!(send(&get(served.address(), "/readyz")).expect("an answer").status, 200);
    drop(sessions);
}

#[test]
fn sf_5_with_all_connections_busy_health_checks_and_operators_are_served_and_others_are_refused() {
    let config = "stuck_after = \"10m\"\nanswer_by = \"none\"\n\n[gateway]\nconnections = 8\n";
    let world = GatewayWorld::of("sf_5_reserve", config, TestTransport::Http, TestTransport::Stdio);
    let mut client = gateway(&world, |command| command);
    let address = client.address();
    client.initialize();
    client.request("tools/list", json!({}));
    let gate = world.set_behavior("gate");
    let calls: Vec<_> =
        (0..8).map(|id| client.send_call("pay", json!({ "id": id.to_string(), "fault": "gate" }))).collect();
    (0..8).for_each(|id| world.until(&format!("pay {id}"), 1));
    let ping = RawRequest::to(address).body(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
    for request in [
        ping.clone(),
        // However long its body is, its client can read the reason.
        ping.clone().body("x".repeat(4 << 20)),
        get(address, "/v1/status"),
        get(address, "/v1/events").header("authorization", "Bearer person"),
        get(address, "/v1/calls").line("POST /v1/calls HTTP/1.1").header("authorization", "Bearer person"),
    ] {
        let refused = send(&request).expect("an answer");
        assert!(is_full(&refused), "{refused:?}");
    }
    let half = half_open(address, 200);
    for path in ["/readyz", "/healthz"] {
        assert_eq!(send(&get(address, path)).expect("an answer").status, 200, "{path}");
    }
    for path in ["/v1/status", "/metrics", "/v1/running"] {
        assert_eq!(operator(address, path).status, 200, "{path}");
    }
    drop(half);
    fs::remove_file(gate).unwrap();
    for (id, call) in calls.into_iter().enumerate() {
        assert_eq!(
            ToolResponse::of(&client.answer(call)).text,
            format!("pay {id}, run 1"),
            "no call was closed"
        );
    }
    wait(
        || {
            send(&ping.clone().header("mcp-session-id", &client.session()))
                .is_some_and(|answer| answer.status == 200)
        },
        || "room again".to_owned(),
    );
}
