//! Several servers behind one gateway: `steadfast serve`.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::client::{McpTestClient, ToolResponse};
use crate::raw::{RawRequest, send};
use crate::world::{
    GatewayTestFolder, GatewayWorld, LISTEN, TestProcess, TestTransport, initialized, is_running, kill,
    signal, start_gateway, wait,
};

/// A gateway with the servers `bank` and `mail` behind it.
pub(crate) struct TwoServerGateway {
    /// The gateway and its address, if it listens. The address changes with every start.
    gateway: Option<(TestProcess, SocketAddr)>,
    folder: GatewayTestFolder,
}

impl TwoServerGateway {
    /// Creates one with these lines in the configuration beside those of the two servers.
    pub(crate) fn new(test: &str, more: &str) -> Self {
        let mut served = Self::quiet(test, more);
        served.start();
        served
    }

    fn quiet(test: &str, more: &str) -> Self {
        let folder = GatewayTestFolder::new(test);
        let server = |name: &str| {
            fs::write(folder.join(name), "").unwrap();
            format!(
                "[servers.{name}]\ncommand = [{:?}, {:?}]\n",
                env!("CARGO_BIN_EXE_steadfast-test-server"),
                folder.join(name)
            )
        };
        let config = format!("{}{}{more}", server("bank"), server("mail"));
        fs::write(folder.join("steadfast.toml"), config).unwrap();
        Self { gateway: None, folder }
    }

    fn start(&mut self) {
        self.gateway = Some(start_gateway(&mut self.command(&LISTEN)));
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast-tested"));
        command.arg("serve").args(arguments).current_dir(&*self.folder).env("HOME", &*self.folder);
        command.env_remove("XDG_STATE_HOME").env_remove("CLAUDE_CODE_SESSION_ID");
        let log = fs::OpenOptions::new().create(true).append(true).open(self.folder.join("log")).unwrap();
        command.stderr(log);
        command
    }

    fn client(&self, path: &str) -> McpTestClient {
        let mut client = McpTestClient::at(self.address()).behind(path);
        client.initialize();
        client
    }

    /// Returns a client over stdio.
    fn on_streams(&self) -> McpTestClient {
        McpTestClient::on_streams(self.command(&["--stdio"]))
    }

    /// Makes a server behave like this until the file is removed.
    fn set_behavior(&self, server: &str, behavior: &str) -> PathBuf {
        let file = self.folder.join(format!("{server}.{behavior}"));
        fs::write(&file, "").unwrap();
        file
    }

    /// Returns the address of the gateway.
    pub(crate) fn address(&self) -> SocketAddr {
        self.gateway.as_ref().expect("it listens").1
    }

    pub(crate) fn ledger(&self, server: &str) -> Vec<String> {
        let text = fs::read_to_string(self.folder.join(server)).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn count(&self, server: &str, line: &str) -> usize {
        self.ledger(server).iter().filter(|written| written.starts_with(line)).count()
    }

    fn process(&self, server: &str) -> u32 {
        let ledger = self.ledger(server);
        let start = ledger.iter().rev().find_map(|line| line.strip_prefix("start "));
        start.expect("a server was started").parse().unwrap()
    }

    /// Kills the gateway and starts another one, which these clients use from then on.
    fn restart(&mut self, clients: &mut [&mut McpTestClient]) {
        drop(self.gateway.take());
        self.start();
        for client in clients {
            client.moves_to_address(self.address());
        }
    }
}

/// Returns the names of the tools that are used here, as they are listed.
fn names(listed: &Value) -> Vec<&str> {
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names = tools.iter().map(|tool| tool["name"].as_str().unwrap());
    names.filter(|name| ["pay", "look", "status", "reset"].iter().any(|end| name.ends_with(end))).collect()
}

#[test]
fn several_servers_are_one_to_their_client_and_each_is_also_available_alone() {
    let served = TwoServerGateway::new("several", "");
    let mut client = McpTestClient::at(served.address());
    let agreed = client.initialize();
    assert_eq!(agreed["result"]["protocolVersion"], "2025-11-25");
    assert_eq!(agreed["result"]["capabilities"]["tools"]["listChanged"], true);
    assert_eq!(agreed["result"]["serverInfo"]["name"], "steadfast");
    let listed = client.request("tools/list", json!({}));
    assert_eq!(names(&listed), ["bank__pay", "bank__look", "mail__pay", "mail__look"]);
    assert_eq!(listed["result"]["tools"][0]["vendor"]["kept"], true);
    assert_eq!(client.call("bank__pay", json!({ "id": "a" })).text, "pay a, run 1");
    assert_eq!(client.call("mail__pay", json!({ "id": "b" })).text, "pay b, run 1");
    assert_eq!((served.count("bank", "pay"), served.count("mail", "pay")), (1, 1));
    assert_eq!((served.count("bank", "pay a"), served.count("mail", "pay b")), (1, 1));
    // A request for no server in particular is answered by the server that knows it.
    assert_eq!(client.request("test/echo", json!({ "x": 1 }))["result"]["params"]["x"], 1);
    assert_eq!(client.request("test/unheard", json!({}))["error"]["code"], -32601);

    let mut alone = served.client("/mcp/mail");
    assert_eq!(names(&alone.request("tools/list", json!({}))), ["pay", "look"]);
    assert_eq!(alone.call("pay", json!({ "id": "c" })).text, "pay c, run 1");
}

#[test]
fn sessions_share_a_process_unless_each_is_to_have_its_own() {
    for (isolation, processes) in [("shared", 1), ("per_session", 3)] {
        let more = format!("isolation = \"{isolation}\"\n");
        let served = TwoServerGateway::new(&format!("isolation_{isolation}"), &more);
        let mut clients: Vec<_> = ["/mcp", "/mcp", "/mcp/mail"].map(|path| served.client(path)).into();
        for (number, client) in clients.iter_mut().enumerate() {
            let tool = if number == 2 { "look" } else { "mail__look" };
            assert!(!client.call(tool, json!({ "id": number.to_string() })).is_error);
        }
        assert_eq!(served.count("mail", "start"), processes, "{isolation}");
        assert_eq!(served.count("mail", "initialize"), processes, "{isolation}");
        // The bank is shared in both.
        assert_eq!(served.count("bank", "start"), 1);
        // A new process for all clients that share it. It receives their session state again.
        let mail = served.process("mail");
        kill(mail);
        wait(|| !is_running(mail), || "its end".to_owned());
        for client in &mut clients[..2] {
            assert!(!client.call("mail__look", json!({ "id": "again" })).is_error);
        }
        assert_eq!(served.count("bank", "start"), 1);
    }
}

#[test]
fn rp_16_one_server_that_fails_loses_its_trust_and_the_others_do_not() {
    let served = TwoServerGateway::new(
        "rp_16",
        "[trust]\ncount = 2\nseverities = [\"crash\"]\n[breaker]\nconsecutive = 100\n",
    );
    let mut client = served.client("/mcp");
    client.request("tools/list", json!({}));
    for number in 0..2 {
        let response =
            client.call("bank__pay", json!({ "id": format!("dies {number}"), "fault": "die_after" }));
        assert_eq!(response.code.as_deref(), Some("outcome_unknown"), "{response:?}");
    }
    let refused = client.call("bank__pay", json!({ "id": "well" }));
    assert_eq!(refused.code.as_deref(), Some("approval_required"), "{refused:?}");
    assert_eq!(served.count("bank", "pay well"), 0);
    assert_eq!(client.call("mail__pay", json!({ "id": "well" })).text, "pay well, run 1");
}

#[test]
fn sf_12_a_server_that_cannot_be_started_is_missing_and_the_others_continue() {
    let more = "[servers.ghost]\ncommand = [\"no-such-program-anywhere\"]\n";
    let served = TwoServerGateway::new("ghost", more);
    let mut client = served.client("/mcp");
    assert_eq!(names(&client.request("tools/list", json!({}))).len(), 4);
    let response = client.call("ghost__walk", json!({}));
    assert!(response.is_error && response.text.contains("no-such-program-anywhere"), "{response:?}");
    assert_eq!(client.call("bank__pay", json!({ "id": "a" })).text, "pay a, run 1");
    // Its state is not reported as healthy.
    let response = send(&RawRequest::to(served.address()).line("GET /v1/status HTTP/1.1")).unwrap();
    let status: Value = serde_json::from_slice(&response.body).unwrap();
    let findings = status["findings"].as_array().unwrap();
    let found = findings.iter().find(|one| one["what"].as_str().unwrap().starts_with("server ghost is down"));
    assert!(found.is_some() && status["verdict"] == "trouble", "{status}");
}

#[test]
fn gr_8_a_server_that_dies_is_back_for_its_clients_and_its_neighbour_never_noticed() {
    let served = TwoServerGateway::new("neighbour", "");
    let mut client = served.client("/mcp");
    assert!(!client.call("mail__look", json!({ "id": "a" })).is_error);
    let mail = served.process("mail");
    for round in 0..3 {
        let bank = served.process("bank");
        kill(bank);
        wait(|| !is_running(bank), || "its end".to_owned());
        let response = client.call("bank__look", json!({ "id": format!("after {round}") }));
        assert!(!response.is_error, "{response:?}");
    }
    assert!(is_running(mail));
    assert_eq!(served.count("mail", "start"), 1);
}

#[test]
fn gr_9_a_session_of_several_servers_outlives_the_gateway() {
    let mut served = TwoServerGateway::new("outlives", "");
    let mut client = served.client("/mcp");
    assert_eq!(client.call("bank__pay", json!({ "id": "before" })).text, "pay before, run 1");
    served.restart(&mut [&mut client]);
    assert_eq!(client.call("bank__pay", json!({ "id": "after" })).text, "pay after, run 1");
    assert_eq!(names(&client.request("tools/list", json!({}))).len(), 4);
    assert_eq!(served.count("bank", "pay before"), 1);
}

#[test]
fn gr_9_subscriptions_at_a_shared_server_outlive_the_gateway_and_end_with_their_session() {
    let mut served = TwoServerGateway::new("watches", "");
    let mut first = served.client("/mcp/bank");
    let mut second = served.client("/mcp/bank");
    let watch = |client: &mut McpTestClient, uri: &str| {
        let answer = client.request("resources/subscribe", json!({ "uri": uri }));
        assert!(answer.get("result").is_some(), "{answer}");
    };
    first.request("logging/setLevel", json!({ "level": "debug" }));
    watch(&mut first, "note://a");
    watch(&mut first, "note://b");
    watch(&mut second, "note://b");
    for round in 1..3 {
        served.restart(&mut [&mut first, &mut second]);
        assert!(!first.call("look", json!({ "id": format!("first {round}") })).is_error);
        // Each client repeats its own subscriptions, and nothing else.
        let times = |line: &str| served.count("bank", line);
        wait(
            || times("resources/subscribe note://b") == 2 * round + 1,
            || format!("{:?}", served.ledger("bank")),
        );
        assert_eq!((times("level debug"), times("resources/subscribe note://a")), (round + 1, round + 1));
        assert!(!second.call("look", json!({ "id": format!("second {round}") })).is_error);
        wait(
            || times("resources/subscribe note://b") == 2 * round + 2,
            || format!("{:?}", served.ledger("bank")),
        );
        assert_eq!((times("level debug"), times("resources/subscribe note://a")), (round + 1, round + 1));
    }
    // A client that leaves ends subscriptions that no other one has.
    let delete = RawRequest::to(served.address()).line("DELETE /mcp/bank HTTP/1.1");
    send(&delete.header("mcp-session-id", &first.session())).unwrap();
    wait(
        || served.count("bank", "resources/unsubscribe note://a") == 1,
        || format!("{:?}", served.ledger("bank")),
    );
    assert!(!second.call("look", json!({ "id": "last" })).is_error);
    assert_eq!(served.count("bank", "resources/unsubscribe note://b"), 0);
    second.request("resources/unsubscribe", json!({ "uri": "note://b" }));
    assert_eq!(served.count("bank", "resources/unsubscribe note://b"), 1);
}

#[test]
fn tg_1_a_model_that_insists_on_a_missing_tool_is_stopped() {
    let served = TwoServerGateway::new("insists", "");
    let mut client = served.client("/mcp");
    let mut responses: Vec<ToolResponse> =
        (0..3).map(|_| client.call("shop__buy", json!({ "id": "a" }))).collect();
    assert!(responses.iter().all(|response| response.is_error));
    let last = responses.pop().unwrap();
    assert_eq!(last.code.as_deref(), Some("loop_detected"), "{last:?}");
}

#[test]
fn servers_are_read_from_the_file_or_the_text_of_a_client_and_served_over_stdio() {
    let served = TwoServerGateway::quiet("of_a_client", "");
    fs::remove_file(served.folder.join("steadfast.toml")).unwrap();
    let file = served.folder.join("mcp.json");
    let server = |name: &str| json!({ "command": env!("CARGO_BIN_EXE_steadfast-test-server"), "args": [served.folder.join(name)] });
    let servers = json!({ "mcpServers": { "bank": server("bank"), "mail": server("mail") } });
    fs::write(&file, servers.to_string()).unwrap();
    for (run, given) in [file.to_str().unwrap(), &servers.to_string()].iter().enumerate() {
        let mut client = McpTestClient::on_streams(served.command(&["--stdio", "--mcp-config", given]));
        client.initialize();
        assert_eq!(names(&client.request("tools/list", json!({}))).len(), 4, "{given}");
        let id = run.to_string();
        assert_eq!(client.call("mail__pay", json!({ "id": id })).text, format!("pay {id}, run 1"));
        let (bank, mail) = (served.process("bank"), served.process("mail"));
        assert!(client.hang_up().success());
        assert!(!is_running(bank) && !is_running(mail));
    }
}

#[test]
fn without_a_server_the_error_explains_how_to_name_one() {
    let served = TwoServerGateway::quiet("nobody", "");
    fs::write(served.folder.join("steadfast.toml"), "").unwrap();
    let mut command = served.command(&[]);
    let output = command.stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("[servers.files]") && stderr.contains("--mcp-config"), "{stderr}");
}

#[test]
fn rp_13_a_model_can_see_the_trust_of_its_tools_and_only_an_operator_can_restore_it() {
    let failing = "[trust]\ncount = 1\nseverities = [\"crash\"]\n[gateway]\nreliability_tools = true\n";
    let served = TwoServerGateway::new("rp_13", failing);
    let mut client = served.client("/mcp");
    let listed = client.request("tools/list", json!({}));
    let names = names(&listed);
    assert_eq!(names[4..], ["reliability_status", "reliability_reset"], "{names:?}");
    let before = client.call("reliability_status", json!({}));
    assert_eq!((before.text.as_str(), before.is_error), ("all tools are trusted", false));
    client.call("bank__pay", json!({ "id": "a", "fault": "die_after" }));
    let after = client.call("reliability_status", json!({ "tool_name": "bank/pay" }));
    assert!(after.text.starts_with("bank/pay: escalated"), "{after:?}");
    let refused = client.call("reliability_reset", json!({ "tool_name": "bank/pay" }));
    assert!(refused.is_error && refused.text.contains("steadfast approve"), "{refused:?}");
    // Off unless configured.
    let plain = TwoServerGateway::new("rp_13_off", "");
    let mut client = plain.client("/mcp/bank");
    let listed = client.request("tools/list", json!({}));
    assert_eq!(self::names(&listed), ["pay", "look"]);
}

#[test]
fn a_server_whose_name_begins_with_that_of_another_has_tools_of_its_own() {
    let served = TwoServerGateway::quiet("longer_name", "");
    let file = served.folder.join("steadfast.toml");
    let config = fs::read_to_string(&file).unwrap().replace("[servers.mail]", "[servers.bank__mail]");
    fs::write(&file, config).unwrap();
    let mut client = served.on_streams();
    client.initialize();
    client.request("tools/list", json!({}));
    assert_eq!(client.call("bank__mail__pay", json!({ "id": "a" })).text, "pay a, run 1");
    assert_eq!((served.count("bank", "pay"), served.count("mail", "pay")), (0, 1));
}

#[test]
fn a_request_that_one_server_may_have_run_is_not_sent_to_another() {
    let served = TwoServerGateway::new("done_once", "");
    let mut client = served.client("/mcp");
    let refused = client.request("test/fail", json!({ "code": -32603 }));
    assert_eq!(refused["error"]["code"], -32603, "{refused}");
    assert_eq!((served.count("bank", "fail"), served.count("mail", "fail")), (1, 0));
    // The request ran, and its outcome is unknown.
    let lost = client.request("test/fail", json!({}));
    assert_eq!(lost["error"]["code"], -31_004, "{lost}");
    assert_eq!((served.count("bank", "fail"), served.count("mail", "fail")), (2, 0));
    // A server that does not know the method has done nothing.
    let unknown = client.request("test/fail", json!({ "code": -32601 }));
    assert_eq!(unknown["error"]["code"], -32601, "{unknown}");
    assert_eq!((served.count("bank", "fail"), served.count("mail", "fail")), (3, 1));
}

#[test]
fn requests_for_no_server_in_particular_are_answered_although_one_server_cannot_be_started() {
    // It comes first.
    let served =
        TwoServerGateway::new("absent", "[servers.absent]\ncommand = [\"no-such-program-anywhere\"]\n");
    let mut client = served.client("/mcp");
    assert_eq!(client.request("test/echo", json!({ "x": 1 }))["result"]["params"]["x"], 1);
    let nobodys = client.request("test/unheard", json!({}));
    assert_eq!(nobodys["error"]["code"], -31_002, "it may be the one that knows it: {nobodys}");
}

#[test]
fn a_list_without_one_of_its_pages_is_none() {
    let served = TwoServerGateway::new("pages", "");
    served.set_behavior("mail", "pages");
    let mut client = served.client("/mcp");
    assert_eq!(names(&client.request("tools/list", json!({}))), ["bank__pay", "bank__look"]);
}

#[test]
fn a_server_that_lists_its_tools_too_late_is_announced_when_it_has() {
    let served = TwoServerGateway::quiet("late_list", "");
    let mut client = served.on_streams();
    client.initialize();
    let slow = served.set_behavior("mail", "slow");
    assert_eq!(names(&client.request("tools/list", json!({}))), ["bank__pay", "bank__look"]);
    fs::remove_file(slow).unwrap();
    client.next_notification("notifications/tools/list_changed");
    assert_eq!(names(&client.request("tools/list", json!({}))).len(), 4);
}

#[test]
fn a_server_that_could_not_be_started_is_announced_when_it_comes() {
    let served = TwoServerGateway::quiet("comes_later", "");
    let (there, ledger) = (served.folder.join("there"), served.folder.join("late"));
    let command =
        format!("test -f {there:?} && exec {:?} {ledger:?}", env!("CARGO_BIN_EXE_steadfast-test-server"));
    let config = served.folder.join("steadfast.toml");
    let more = format!(
        "[servers.late]\ncommand = [\"sh\", \"-c\", {command:?}]\ncrashes = 1\ncrash_window = \"1s\"\n"
    );
    fs::write(&config, fs::read_to_string(&config).unwrap() + &more).unwrap();
    let mut client = served.on_streams();
    client.initialize();
    assert_eq!(names(&client.request("tools/list", json!({}))).len(), 4);
    fs::write(&there, "").unwrap();
    let mut tried = 0;
    wait(
        || {
            tried += 1;
            !client.call("late__look", json!({ "id": tried.to_string() })).is_error
        },
        || "the server that comes late".to_owned(),
    );
    client.next_notification("notifications/tools/list_changed");
    assert_eq!(names(&client.request("tools/list", json!({}))).len(), 6);
}

#[test]
fn a_server_that_hangs_does_not_delay_broadcasts() {
    let served = TwoServerGateway::quiet("level", "");
    let mut client = served.on_streams();
    client.initialize();
    let mail = served.process("mail");
    signal(mail, "-STOP");
    // It is answered while the other one still hangs.
    assert!(client.request("logging/setLevel", json!({ "level": "error" }))["result"].is_object());
    assert_eq!(served.count("bank", "level error"), 1);
    signal(mail, "-CONT");
    wait(|| served.count("mail", "level error") == 1, || "the level at the other one".to_owned());
}

#[test]
fn a_client_that_listens_to_several_servers_gets_one_acknowledgement() {
    let served = TwoServerGateway::quiet("listens", "");
    let mut client = served.on_streams();
    client.without_handshake(json!({}));
    let listened =
        client.send("subscriptions/listen", json!({ "notifications": { "toolsListChanged": true } }));
    let promised = client.next_notification("notifications/subscriptions/acknowledged");
    assert_eq!(promised["params"]["notifications"], json!({ "toolsListChanged": true }));
    let id = &promised["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"];
    assert_eq!(*id, json!(listened));
    for tool in ["bank__tell", "mail__tell"] {
        client.call(tool, json!({}));
        client.next_notification("notifications/tools/list_changed");
    }
    let promises = client
        .received
        .iter()
        .filter(|message| message["method"] == "notifications/subscriptions/acknowledged");
    assert_eq!(promises.count(), 0, "{:?}", client.received);
}

#[test]
fn a_question_of_a_shared_server_reaches_no_client_while_calls_of_several_sessions_run() {
    let served = TwoServerGateway::new("whose_question", "");
    let mut clients: Vec<McpTestClient> = (0..2).map(|_| McpTestClient::at(served.address())).collect();
    for client in &mut clients {
        client.initialize_with(json!({ "elicitation": {} }));
    }
    let [first, second] = &mut clients[..] else { panic!("two of them") };
    let gate = served.set_behavior("bank", "gate");
    let busy = second.send_call("bank__look", json!({ "id": "b", "fault": "gate" }));
    wait(|| served.count("bank", "look b") == 1, || "the call of the other".to_owned());
    let response = first.call("bank__ask", json!({ "id": "a" }));
    assert_eq!(response.text, "a is for nobody", "{response:?}");
    fs::remove_file(gate).unwrap();
    second.answer(busy);
    for client in &mut clients {
        assert!(
            client.received.iter().all(|message| message.get("method").is_none()),
            "{:?}",
            client.received
        );
    }
    assert_eq!(served.count("bank", "start"), 1, "they share it");
    // With one call in flight it is clear to which client the question belongs.
    let first = &mut clients[0];
    let asking = first.send_call("bank__ask", json!({ "id": "c" }));
    let question = first.next_request();
    first.reply(&question, json!({ "action": "accept", "content": { "name": "ann" } }));
    assert_eq!(ToolResponse::of(&first.answer(asking)).text, "c is for ann");
}

/// OpenClaw's own configuration is JSON5, and users write comments into the files of other programs.
#[test]
fn rp_17_foreign_configuration_is_read_as_json5_and_errors_have_a_position() {
    let world = GatewayWorld::of("rp_17_json5", "", TestTransport::Stdio, TestTransport::Stdio);
    let file = world.folder().join("openclaw.json");
    let text = r#"// Ours.
{
  gateway: {
    toolCallRetry: { maxAttempts: 0x4, backoffMs: [+100, 250,], /* as before */ transientPatterns: ['gone away'], },
  },
  mcpServers: { bank: { command: "bank", args: ['--ledger'], }, },
}
"#;
    fs::write(&file, text).unwrap();
    let (output, succeeded) = world.steadfast(&["check", "--config", "openclaw.json"]);
    assert!(succeeded && output.contains("openclaw.json:4") && output.contains("[servers.bank]"), "{output}");
    let (output, succeeded) =
        world.steadfast(&["config", "explain", "bank/pay", "--config", "openclaw.json"]);
    assert!(succeeded && output.contains("openclaw.json:4"), "{output}");
    for (from, to, at, part) in [
        ("250,]", "250 300]", "openclaw.json:4:", "comma"),
        ("0x4", "'four'", "openclaw.json:4:", "attempts"),
        ("args: ['--ledger'],", "command: 'other',", "openclaw.json:6:", "twice"),
        ("  mcpServers", "  /* mcpServers", "openclaw.json:", "comment"),
    ] {
        fs::write(&file, text.replace(from, to)).unwrap();
        let (output, succeeded) = world.steadfast(&["check", "--config", "openclaw.json"]);
        assert!(!succeeded && output.contains(at) && output.to_lowercase().contains(part), "{to}: {output}");
    }
}

/// Two servers with the same name that run different programs.
#[test]
fn servers_of_one_name_have_their_own_breakers_and_are_reported() {
    let config = "[tools.\"db/pay\"]\nbreaker.consecutive = 1\nbreaker.cooldown = \"1h\"\nclass = \"idempotent\"\nretry.attempts = 1\n";
    let world = GatewayWorld::of("d_47", config, TestTransport::Stdio, TestTransport::Stdio);
    let ledgers = ["one", "two"].map(|name| world.folder().join(name));
    let start = |ledger: &Path| {
        fs::write(ledger, "").unwrap();
        let mut command =
            world.wrap_alone(&["--name", "db", "--", env!("CARGO_BIN_EXE_steadfast-test-server")]);
        command.arg(ledger);
        initialized(McpTestClient::on_streams(command))
    };
    let [mut one, mut two] = ledgers.each_ref().map(|ledger| start(ledger));
    let fails = json!({ "id": "a", "fault": "error", "text": "HTTP 503 Service Unavailable" });
    let works = json!({ "id": "b" });
    one.call("pay", fails.clone());
    assert_eq!(one.call("pay", works.clone()).code.as_deref(), Some("circuit_open"));
    assert!(!two.call("pay", works.clone()).is_error, "the breaker of the other one is none of its business");
    // The rules of the name apply to both.
    two.call("pay", fails);
    assert_eq!(two.call("pay", works).code.as_deref(), Some("circuit_open"));
    let breakers = || world.steadfast(&["breaker"]).0;
    let both = |listed: &str| listed.contains("tool:db:pay") && listed.contains("tool:db~");
    wait(|| both(&breakers()), || format!("both breakers, in:\n{}", breakers()));
    for command in ["status", "doctor"] {
        let (output, _) = world.steadfast(&[command]);
        assert!(
            output.contains("have the name db") && output.contains("/one") && output.contains("/two"),
            "{output}"
        );
    }
    // Each finds its own state again.
    drop((one, two));
    let status = || world.steadfast(&["status"]).0;
    wait(|| !status().contains("have the name db"), || format!("none but one, in:\n{}", status()));
    let mut two = start(&ledgers[1]);
    assert_eq!(two.call("pay", json!({ "id": "c" })).code.as_deref(), Some("circuit_open"));
}
