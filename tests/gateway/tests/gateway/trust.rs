//! The scenarios of adaptive trust (RP-14 to RP-16) as clients and operators see them, and the notifications about
//! trust.
//!
//! Settings are the defaults, except for times that no test can wait for: the cool-down of a breaker, and the wait
//! between retries.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{McpTestClient, ToolResponse};
use crate::world::{GatewayWorld, TestTransport, wait};

const FAST_RETRY: &str = "retry.base = \"1ms\"\n";
/// The cool-down is that of a class of tools, so it is set for the tool.
const PAUSE: &str = "[tools.\"bank/look\"]\nbreaker.cooldown = \"100ms\"\n";

/// Calls a tool in a turn of its own, and returns the response.
fn turn(client: &mut McpTestClient, number: u32, tool: &str, arguments: Value) -> ToolResponse {
    let id = in_turn(client, number, tool, arguments);
    ToolResponse::of(&client.answer(id))
}

/// Calls a tool in a turn of its own.
fn in_turn(client: &mut McpTestClient, turn: u32, tool: &str, arguments: Value) -> u64 {
    client.send_call_with(tool, arguments, json!({ "dev.steadfast/turn": format!("turn-{turn}") }))
}

/// Repeats a call until the cool-down of the breaker is over, as in the next turn of a user. Returns the id of the
/// call, and the first message after it. A call that comes too early is refused, and is repeated in a turn of its own.
fn call_after_pause(
    client: &mut McpTestClient,
    turn: &mut u32,
    tool: &str,
    arguments: &Value,
) -> (u64, Value) {
    loop {
        *turn += 1;
        let id = in_turn(client, *turn, tool, arguments.clone());
        let message = client.next();
        if !is_refused(&message) {
            return (id, message);
        }
    }
}

/// Returns true if a call was refused by the breaker, or because its client repeats itself. A call that ran and ended
/// because it opened the breaker was not refused.
fn is_refused(message: &Value) -> bool {
    let response = ToolResponse::of(message);
    let code = response.code.as_deref();
    let is_refusal = ["circuit_open", "loop_detected", "tool_error_limit"].map(Some).contains(&code);
    is_refusal && response.gateway_meta["attempts"] == 0
}

/// Returns the trust states of a tool, as notified. A second gateway that shares the state sends the same
/// notifications.
fn states(world: &GatewayWorld) -> Vec<(String, String)> {
    let is_own = |line: &Value| line["notification"] == "trust_changed" && line["fromElsewhere"] != true;
    let changes = world.logged("notification").into_iter().filter(is_own);
    let text = |line: &Value, name: &str| line[name].as_str().unwrap().to_owned();
    changes.map(|line| (text(&line, "fromState"), text(&line, "trustState"))).collect()
}

/// Decision 0020 defines which refusal comes first if both the breaker and trust apply.
#[test]
fn rp_14_a_service_degrades_and_comes_back() {
    let file = "[trust_state]\nfile = \"reliability.json\"\n";
    let world = GatewayWorld::of(
        "rp_14",
        &format!("{FAST_RETRY}{PAUSE}{file}"),
        TestTransport::Stdio,
        TestTransport::Stdio,
    );
    let start = || world.client_that_can(json!({ "elicitation": {} }));
    let mut client = start();
    let data = |fault: &str| json!({ "id": "data", "url": "https://api.example.com/data", "fault": fault });
    // Turns 1 to 3: the service is unavailable. No approval is requested yet.
    let mut turn = 0;
    for _ in 1..=3 {
        let response = ToolResponse::of(&call_after_pause(&mut client, &mut turn, "look", &data("503")).1);
        assert!(
            response.is_error && response.code.as_deref() != Some("approval_required"),
            "turn {turn}: {response:?}"
        );
    }
    let notifications = world.logged_times("notification", 1);
    let message = notifications[0]["message"].as_str().unwrap();
    for part in
        ["bank/look at api.example.com", "needs approval until", "3 failures in 1 h", "3 successful calls"]
    {
        assert!(message.contains(part), "{part} in {message}");
    }
    // Turn 4: the user approves one run. It fails again, and the tool is still escalated.
    let (id, question) = call_after_pause(&mut client, &mut turn, "look", &data("503"));
    assert!(question["params"]["message"].as_str().unwrap().contains("3 failures in 1 h"), "{question}");
    client.reply(&question, json!({ "action": "accept", "content": { "decision": "once" } }));
    let response = ToolResponse::of(&client.answer(id));
    assert!(response.is_error && response.text.contains("503"), "{response:?}");
    client.hang_up();
    // Half an hour later: the stored times are moved back by that much.
    let file = world.folder().join("reliability.json");
    let written: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let [state] = written["tool_states"].as_object().unwrap().values().collect::<Vec<_>>()[..] else {
        panic!("{written}")
    };
    assert_eq!(state["state"], "escalated", "{written}");
    let expires = state["escalation_expires"].as_u64().unwrap();
    assert_eq!(expires - state["escalated_at"].as_u64().unwrap(), 30 * 60 * 1000, "{state}");
    fs::write(&file, older(written, 31 * 60 * 1000).to_string()).unwrap();
    // Turns 5 to 7: it answers without approval, and is trusted again.
    let mut client = start();
    for id in 5..=7 {
        let data = json!({ "id": id.to_string(), "url": "https://api.example.com/data" });
        let response = ToolResponse::of(&call_after_pause(&mut client, &mut turn, "look", &data).1);
        assert_eq!(response.text, format!("look {id}, run 1"), "{response:?}");
    }
    wait(|| states(&world).len() == 3, || format!("{:?}", states(&world)));
    let transitions = states(&world);
    let transitions: Vec<_> = transitions.iter().map(|(from, to)| (from.as_str(), to.as_str())).collect();
    assert_eq!(
        transitions,
        [("TRUSTED", "ESCALATED"), ("ESCALATED", "RECOVERING"), ("RECOVERING", "TRUSTED")]
    );
    let last = world.logged("notification").pop().unwrap();
    let message = last["message"].as_str().unwrap();
    assert_eq!(message, "bank/look at api.example.com is trusted again: 3 successful calls");
}

/// The same call three times in a row, by a client that names no turns: the guard reports a loop, and no approval is
/// requested for a call that the model only repeats. Only the time between attempts is set.
#[test]
fn rp_14_a_failing_call_repeated_at_once_is_reported_as_a_loop_without_a_request_for_approval() {
    GatewayWorld::each("rp_14_loop", FAST_RETRY, |world| {
        let mut client = world.client_that_can(json!({ "elicitation": {} }));
        let data = json!({ "id": "data", "url": "https://api.example.com/data", "fault": "503" });
        let responses = [(); 3].map(|()| client.call("look", data.clone()));
        assert!(responses[0].is_error && !responses[0].text.contains("[LOOP DETECTED]"), "{responses:?}");
        assert!(responses[1].is_error && responses[1].text.contains("[LOOP DETECTED]"), "{responses:?}");
        assert_eq!(
            responses[2].code.as_deref(),
            Some("loop_detected"),
            "the guard speaks first: {responses:?}"
        );
        assert!(
            client.received.iter().all(|message| message["method"] != "elicitation/create"),
            "{:?}",
            client.received
        );
        assert_eq!(states(&world), [], "a refusal is no failure of the tool");
    });
}

/// A client that names no turns: turns are guessed from the pauses between calls. Pauses are short here, and so is the
/// cool-down of the breaker. The stored times are moved back by half an hour. All rules are the defaults.
#[test]
fn rp_14_a_service_degrades_and_comes_back_for_a_client_that_names_no_turns() {
    let gap = "guard.turn_gap = \"50ms\"\n";
    let world = GatewayWorld::of(
        "rp_14_no_turns",
        &format!("{FAST_RETRY}{gap}{PAUSE}{TRUST_FILE}"),
        TestTransport::Stdio,
        TestTransport::Stdio,
    );
    let start = || world.client_that_can(json!({ "elicitation": {} }));
    let data = |fault: &str| json!({ "id": "data", "url": "https://api.example.com/data", "fault": fault });
    let mut client = start();
    // Turns 1 to 3.
    for number in 1..=3 {
        assert_eq!(states(&world), [], "before failure {number}");
        let response = ToolResponse::of(&look_after_pause(&mut client, &data("503")).1);
        assert!(
            response.is_error && response.code.as_deref() != Some("approval_required"),
            "{number}: {response:?}"
        );
    }
    let notifications = world.logged_times("notification", 1);
    assert_eq!(notifications[0]["trustState"], "ESCALATED", "{notifications:?}");
    // Turn 4.
    let (id, question) = look_after_pause(&mut client, &data("503"));
    assert!(question["params"]["message"].as_str().unwrap().contains("3 failures in 1 h"), "{question}");
    client.reply(&question, json!({ "action": "accept", "content": { "decision": "once" } }));
    let response = ToolResponse::of(&client.answer(id));
    assert!(response.is_error && response.text.contains("503"), "{response:?}");
    client.hang_up();
    // Half an hour later: turns 5 to 7.
    passes(&world, 31);
    let mut client = start();
    for run in 5..=7 {
        let (_, message) = look_after_pause(&mut client, &data(""));
        assert_eq!(
            ToolResponse::of(&message).text,
            format!("look data, run {}", world.count("look data")),
            "{run}"
        );
    }
    wait(|| states(&world).len() == 3, || format!("{:?}", states(&world)));
    let transitions = states(&world);
    let transitions: Vec<_> = transitions.iter().map(|(from, to)| (from.as_str(), to.as_str())).collect();
    assert_eq!(
        transitions,
        [("TRUSTED", "ESCALATED"), ("ESCALATED", "RECOVERING"), ("RECOVERING", "TRUSTED")]
    );
}

/// Repeats a call of `look` without a named turn until a pause of its user is long enough. Returns the id of the call,
/// and the first message after it. A call that comes too early is refused by the breaker or as a loop, and is repeated
/// after another pause.
fn look_after_pause(client: &mut McpTestClient, arguments: &Value) -> (u64, Value) {
    loop {
        // The user's pause is the input of this test. If it was too short, the call is refused and the loop pauses
        // again.
        std::thread::sleep(Duration::from_millis(100));
        let id = client.send_call("look", arguments.clone());
        let message = client.next();
        if !is_refused(&message) {
            return (id, message);
        }
    }
}

/// Returns the same with all its times moved back by this much.
fn older(mut written: Value, by: u64) -> Value {
    match &mut written {
        Value::Object(members) => {
            for (_, member) in members.iter_mut() {
                *member = older(member.take(), by);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = older(item.take(), by)),
        Value::Number(number) => {
            if let Some(time) = number.as_u64().filter(|number| *number > 1_000_000_000_000) {
                return json!(time - by);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
    written
}

#[test]
fn rp_15_a_dangerous_command_blocks_the_tool_until_an_operator_resets_it() {
    GatewayWorld::each("rp_15", FAST_RETRY, |world| {
        let mut client = world.client_that_can(json!({ "elicitation": {} }));
        assert_eq!(client.request("logging/setLevel", json!({ "level": "info" }))["result"], json!({}));
        let run = |client: &mut McpTestClient, turn: u32, command: &str| {
            let denied =
                json!({ "id": command, "command": command, "fault": "error", "text": "Permission denied" });
            let id = in_turn(client, turn, "draw", denied);
            ToolResponse::of(&client.answer(id))
        };
        // Turns 1 and 2: a permission error is nothing unusual.
        for (turn, command) in [(1, "rm /protected/file"), (2, "cat /protected/secrets")] {
            let response = run(&mut client, turn, command);
            assert!(response.is_error && response.text.contains("Permission denied"), "{response:?}");
        }
        assert_eq!(client.count_notifications("notifications/message"), 0);
        // Turn 3: a dangerous command costs the tool its trust at once, and a notification is sent.
        let response = run(&mut client, 3, "sudo rm -rf /");
        assert!(response.is_error && response.text.contains("Permission denied"), "{response:?}");
        let notifications = world.logged_times("notification", 1);
        assert_eq!(
            (&notifications[0]["trustState"], &notifications[0]["level"]),
            (&json!("BLOCKED"), &json!("error")),
            "{notifications:?}"
        );
        let message = notifications[0]["message"].as_str().unwrap();
        assert!(message.contains("bank/draw is blocked until an operator resets it"), "{message}");
        // From now on the tool does not run at all, and no approval is requested from the client's user.
        let refused = run(&mut client, 4, "ls");
        assert_eq!((refused.is_error, refused.code.as_deref()), (true, Some("tool_blocked")), "{refused:?}");
        assert_eq!(world.count("draw ls"), 0);
        // The state that other processes see is written asynchronously.
        let forgiven = || world.steadfast(&["reset", "bank/draw"]).0;
        wait(|| forgiven() == "trust restored: bank/draw\n", || "it is blocked for others too".to_owned());
        // One turn each, because a model that insists on a blocked tool is stopped.
        let mut turns = 5..;
        wait(
            || run(&mut client, turns.next().unwrap(), "ls").code.as_deref() != Some("tool_blocked"),
            || "the reset reaches the gateway".to_owned(),
        );
        assert!(world.count("draw ls") >= 1);
    });
}

#[test]
fn rp_16_one_server_fails_and_the_others_stay_free() {
    let rule = "[domains.\"atlassian\"]\ntrust.count = 2\ntrust.window = \"5m\"\n";
    // Only the hanging tool has a short timeout.
    let hanging =
        "[tools.\"atlassian/look\"]\ntimeout = \"300ms\"\n[tools.\"atlassian/draw\"]\ntimeout = \"300ms\"\n";
    GatewayWorld::each(
        "rp_16_others",
        &format!("{}{FAST_RETRY}{rule}{hanging}", short_settle_times!()),
        |world| {
            let mut atlassian = world.client_of("atlassian", |_| {});
            let mut github = world.client_of("github", |_| {});
            // Two failures, of two tools.
            for (tool, id) in [("look", "a"), ("draw", "b")] {
                let response = atlassian.call(tool, json!({ "id": id, "fault": "hang" }));
                assert!(
                    response.is_error && response.code.as_deref() != Some("approval_required"),
                    "{response:?}"
                );
            }
            // All tools of the server need approval, even those that never failed, and none of them runs.
            for tool in ["look", "draw", "pay", "sort"] {
                let response = atlassian.call(tool, json!({ "id": "c" }));
                assert_eq!(
                    (response.is_error, response.code.as_deref()),
                    (true, Some("approval_required")),
                    "{response:?}"
                );
                assert!(response.text.contains("atlassian"), "it says what has lost trust: {response:?}");
                assert_eq!(world.count(&format!("{tool} c")), 0);
            }
            // Tools of the other server do not, even with the same names, and even if that server starts only now.
            let mut later = world.client_of("github", |_| {});
            for tool in ["look", "draw", "pay", "sort"] {
                assert_eq!(github.call(tool, json!({ "id": "g" })).text, format!("{tool} g, run 1"));
                assert_eq!(later.call(tool, json!({ "id": "h" })).text, format!("{tool} h, run 1"));
            }
            // A gateway that starts later in front of the same server knows of it.
            let response = turn(&mut world.client_of("atlassian", |_| {}), 7, "sort", json!({ "id": "d" }));
            assert_eq!(response.code.as_deref(), Some("approval_required"), "{response:?}");
            // The session continues.
            atlassian.request("ping", json!({}));
            assert!(atlassian.request("tools/list", json!({}))["result"].is_object());
            // An operator restores trust in the server, and in nothing else.
            let (output, succeeded) = world.steadfast(&["reset", "domain:atlassian"]);
            assert!(succeeded && output == "trust restored: domain:atlassian\n", "{output}");
            let response = turn(&mut world.client_of("atlassian", |_| {}), 8, "sort", json!({ "id": "e" }));
            assert_eq!(response.text, "sort e, run 1");
        },
    );
}

/// TestTransport the default rules a tool is judged by itself: there is no rule for a domain, so no server as a whole loses trust.
/// Only the hanging tool has a short timeout, and pauses are short.
#[test]
fn rp_16_by_default_only_the_tool_that_times_out_requires_approval() {
    let config = format!(
        "{FAST_RETRY}{}[tools.\"atlassian/look\"]\ntimeout = \"200ms\"\nbreaker.cooldown = \"100ms\"\n",
        short_settle_times!()
    );
    GatewayWorld::each("rp_16_default", &config, |world| {
        let mut atlassian = world.client_of("atlassian", |_| {});
        let mut github = world.client_of("github", |_| {});
        let mut turn = 0;
        let mut call_look = |id: &str, fault: &str| {
            let arguments = json!({ "id": id, "fault": fault });
            ToolResponse::of(&call_after_pause(&mut atlassian, &mut turn, "look", &arguments).1)
        };
        for id in ["a", "b", "c"] {
            let response = call_look(id, "hang");
            assert!(
                response.is_error && response.code.as_deref() != Some("approval_required"),
                "{response:?}"
            );
        }
        let response = call_look("d", "");
        assert_eq!(response.code.as_deref(), Some("approval_required"), "{response:?}");
        assert!(response.text.contains("3 failures in 1 h"), "{response:?}");
        assert_eq!(world.count("look d"), 0);
        // The log is written asynchronously.
        wait(|| !states(&world).is_empty(), || format!("{:#?}", world.log()));
        assert_eq!(states(&world), [("TRUSTED".to_owned(), "ESCALATED".to_owned())], "of one tool");
        assert_eq!(atlassian.call("sort", json!({ "id": "e" })).text, "sort e, run 1");
        for tool in ["look", "sort"] {
            assert_eq!(github.call(tool, json!({ "id": "g" })).text, format!("{tool} g, run 1"));
        }
    });
}

#[test]
fn rp_8_a_client_with_notifications_receives_an_unknown_outcome() {
    GatewayWorld::each("rp_8_unknown", "guard.mode = \"off\"\n", |world| {
        let mut client = world.client();
        assert_eq!(client.request("logging/setLevel", json!({ "level": "info" }))["result"], json!({}));
        let response = client.call("pay", json!({ "id": "a", "fault": "die_after" }));
        assert_eq!(response.code.as_deref(), Some("outcome_unknown"), "{response:?}");
        let notification = client.next_notification("notifications/message");
        let data = &notification["params"]["data"];
        assert_eq!(
            (&data["event"], &data["tool"]["tool"]),
            (&json!("outcome_unknown"), &json!("pay")),
            "{notification}"
        );
        // In the newer era a call asks for itself.
        let mut modern = world.modern_client(json!({}));
        let loud = json!({ "io.modelcontextprotocol/logLevel": "info" });
        for (meta, expected) in [(json!({}), 0), (loud, 1)] {
            let arguments = json!({ "id": format!("b{expected}"), "fault": "die_after" });
            let response = modern.call_with("pay", arguments, meta);
            assert_eq!(response.code.as_deref(), Some("outcome_unknown"), "{response:?}");
            assert_eq!(modern.count_notifications("notifications/message"), expected);
        }
    });
}

#[test]
fn rp_8_a_client_with_notifications_off_receives_none_of_its_requests_and_outcomes() {
    let config = "guard.mode = \"off\"\n\
        [tools.\"bank/pay\".trust]\nnotify = false\n\
        [tools.\"bank/send\"]\napproval = \"always\"\ntrust.notify = false\n\
        [tools.\"bank/fold\"]\napproval = \"always\"\n";
    for back in TestTransport::cases() {
        // Over stdio, where messages keep their order.
        let world = GatewayWorld::of("rp_8_silent", config, TestTransport::Stdio, back);
        let mut client = world.client();
        client.request("logging/setLevel", json!({ "level": "info" }));
        for (tool, arguments, code) in [
            ("pay", json!({ "id": "a", "fault": "die_after" }), "outcome_unknown"),
            ("send", json!({ "id": "a" }), "approval_required"),
            ("fold", json!({ "id": "a" }), "approval_required"),
            ("draw", json!({ "id": "a", "fault": "die_after" }), "outcome_unknown"),
        ] {
            assert_eq!(client.call(tool, arguments).code.as_deref(), Some(code), "{tool}");
        }
        // All notifications are in the log. The client receives those that are not silenced.
        wait(|| world.logged("notification").len() == 4, || format!("{:?}", world.logged("notification")));
        for (tool, event) in [("fold", "approval_requested"), ("draw", "outcome_unknown")] {
            let notification = client.next_notification("notifications/message");
            let data = &notification["params"]["data"];
            assert_eq!(
                (&data["tool"]["tool"], &data["event"]),
                (&json!(tool), &json!(event)),
                "{notification}"
            );
        }
    }
}

/// Returns a configuration in which only trust acts, with these rules.
fn only_trust(rules: &str) -> String {
    format!("guard.mode = \"off\"\nbreaker.mode = \"off\"\nretry.attempts = 1\n{rules}")
}

const DOWN: &str = "HTTP 503 Service Unavailable";
const NOT_FOUND: &str = "Issue not found";
const SUCCESS: &str = "";

/// Calls `look`, which fails with this text, or succeeds without one.
fn call_look(client: &mut McpTestClient, id: &str, words: &str) -> ToolResponse {
    let fails = json!({ "id": id, "fault": "error", "text": words });
    client.call("look", if words.is_empty() { json!({ "id": id }) } else { fails })
}

/// Makes these calls. Returns the number that ran before approval was required.
fn calls_before_approval(client: &mut McpTestClient, calls: &[&str]) -> Option<usize> {
    calls.iter().enumerate().position(|(number, words)| {
        call_look(client, &number.to_string(), words).code.as_deref() == Some("approval_required")
    })
}

#[test]
fn rp_2_the_severity_of_a_failure_is_in_its_record() {
    let world = GatewayWorld::of(
        "rp_2",
        &only_trust("trust.mode = \"off\"\n"),
        TestTransport::Stdio,
        TestTransport::Stdio,
    );
    let mut client = world.client();
    let rows = [
        ("HTTP 401 Unauthorized", "permission"),
        ("HTTP 404 Not Found", "not_found"),
        ("HTTP 429 Too Many Requests", "transient"),
        (DOWN, "server_error"),
        ("The file does not exist", "not_found"),
        ("rm: cannot remove '/protected/file': Permission denied", "permission"),
        ("The request timed out", "timeout"),
        ("Quota exceeded for project", "transient"),
        ("name is required", "invalid_input"),
        ("odd", "informational"),
    ];
    for (number, (words, _)) in rows.iter().enumerate() {
        assert!(call_look(&mut client, &number.to_string(), words).is_error, "{words}");
    }
    client.hang_up();
    let (listed, succeeded) = world.steadfast(&["failures", "bank/look", "--json"]);
    assert!(succeeded, "{listed}");
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let records = listed["failures"].as_array().unwrap();
    for (words, severity) in rows {
        let of = |record: &&Value| record.to_string().contains(words);
        let record = records.iter().find(of).unwrap_or_else(|| panic!("{words} is not in {listed:#}"));
        assert_eq!(record["severity"], severity, "{words}");
    }
}

#[test]
fn rp_3_a_tool_loses_trust_by_count_by_run_and_by_rate_of_the_counted_failures() {
    let run = "trust.count = \"none\"\ntrust.consecutive = 2\n";
    let rate = "trust.count = \"none\"\ntrust.rate = 0.5\ntrust.rate_at_least = 4\n";
    for (name, rules, calls, expected) in [
        ("count", "", &[DOWN, SUCCESS, DOWN, SUCCESS, DOWN, SUCCESS][..], Some(5)),
        ("a run", run, &[DOWN, SUCCESS, DOWN, SUCCESS, DOWN, DOWN, SUCCESS], Some(6)),
        ("a rate", rate, &[DOWN, SUCCESS, SUCCESS, SUCCESS, DOWN, DOWN, SUCCESS], Some(6)),
        ("a rate of few", rate, &[DOWN, DOWN, DOWN, DOWN, SUCCESS], Some(4)),
        ("what is not counted", "", &[NOT_FOUND, NOT_FOUND, NOT_FOUND, NOT_FOUND, SUCCESS], None),
        (
            "a filter",
            "trust.severities = [\"not_found\"]\n",
            &[DOWN, DOWN, DOWN, NOT_FOUND, NOT_FOUND, NOT_FOUND, SUCCESS],
            Some(6),
        ),
    ] {
        let world = GatewayWorld::of("rp_3", &only_trust(rules), TestTransport::Stdio, TestTransport::Stdio);
        assert_eq!(calls_before_approval(&mut world.client(), calls), expected, "{name}");
    }
}

/// Moves the stored times of the trust in a file back by this many minutes.
fn passes(world: &GatewayWorld, minutes: u64) {
    let file = world.folder().join("reliability.json");
    let written: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    fs::write(&file, older(written, minutes * 60 * 1000).to_string()).unwrap();
}

const TRUST_FILE: &str = "[trust_state]\nfile = \"reliability.json\"\n";

#[test]
fn rp_5_the_conservative_the_lenient_and_the_rate_based_rule_do_as_they_are_called() {
    let crash = "[tools.\"bank/look\".classify]\nrules = [{ text = \"kaboom\", nature = \"transient\", severity = \"crash\" }]\n";
    let conservative =
        "trust.count = 2\ntrust.duration = \"1h\"\ntrust.cooldown = \"1h\"\ntrust.successes_to_recover = 5\n";
    let lenient = "trust.count = 5\ntrust.duration = \"15m\"\ntrust.cooldown = \"0s\"\ntrust.successes_to_recover = 2\n\
        trust.severities = [\"crash\", \"corruption\", \"security\"]\n";
    let rate = "trust.count = \"none\"\ntrust.rate = 0.5\n";
    let kaboom = "kaboom";
    // The rules, the calls, the number of them after which approval is required, the minutes after which it is not, and
    // the successes until the tool is trusted.
    for (name, rules, calls, expected, minutes, successes) in [
        ("conservative", conservative, vec![DOWN, DOWN, SUCCESS], 2, 61, 5),
        ("lenient", lenient, [vec![DOWN; 6], vec![kaboom; 5], vec![SUCCESS]].concat(), 11, 16, 2),
        ("rate", rate, [vec![SUCCESS; 5], vec![DOWN; 5], vec![SUCCESS]].concat(), 10, 31, 3),
    ] {
        let world = GatewayWorld::of(
            "rp_5",
            &only_trust(&format!("{rules}{crash}{TRUST_FILE}")),
            TestTransport::Stdio,
            TestTransport::Stdio,
        );
        let mut client = world.client();
        assert_eq!(calls_before_approval(&mut client, &calls), Some(expected), "{name}");
        client.hang_up();
        passes(&world, minutes);
        let mut client = world.client();
        for success in 1..=successes {
            assert!(
                !states(&world).iter().any(|(_, to)| to == "TRUSTED"),
                "{name}: before success {success}"
            );
            assert!(
                !call_look(&mut client, &format!("good {success}"), SUCCESS).is_error,
                "{name}: success {success}"
            );
        }
        wait(
            || states(&world).iter().any(|(_, to)| to == "TRUSTED"),
            || format!("{name}: {:?}", states(&world)),
        );
    }
}

#[test]
fn rp_6_trust_is_lost_regained_lost_in_recovery_and_restored_by_an_operator() {
    let world = GatewayWorld::of("rp_6", &only_trust(TRUST_FILE), TestTransport::Stdio, TestTransport::Stdio);
    let mut client = world.client();
    assert_eq!(calls_before_approval(&mut client, &[DOWN, DOWN, DOWN, SUCCESS]), Some(3));
    client.hang_up();
    passes(&world, 31);
    // In recovery it runs, and one failure is enough.
    let mut client = world.client();
    assert_eq!(calls_before_approval(&mut client, &[SUCCESS, DOWN, SUCCESS]), Some(2));
    client.hang_up();
    passes(&world, 31);
    let mut client = world.client();
    assert_eq!(
        calls_before_approval(&mut client, &[SUCCESS, SUCCESS, SUCCESS, DOWN, DOWN, SUCCESS]),
        None,
        "three successes make it whole"
    );
    assert_eq!(calls_before_approval(&mut client, &[DOWN, SUCCESS]), Some(1));
    // An operator restores trust.
    client.hang_up();
    let (output, succeeded) = world.steadfast(&["reset", "bank/look"]);
    assert!(succeeded && output.contains("trust restored"), "{output}");
    assert_eq!(
        calls_before_approval(&mut world.client(), &[DOWN, DOWN, SUCCESS]),
        None,
        "what was before does not count again"
    );
    let transitions = states(&world);
    let transitions: Vec<_> = transitions.iter().map(|(from, to)| (from.as_str(), to.as_str())).collect();
    let first = [
        ("TRUSTED", "ESCALATED"),
        ("ESCALATED", "RECOVERING"),
        ("RECOVERING", "ESCALATED"),
        ("ESCALATED", "RECOVERING"),
        ("RECOVERING", "TRUSTED"),
        ("TRUSTED", "ESCALATED"),
    ];
    assert_eq!(transitions, first);
}

#[test]
fn rp_10_failures_in_the_structure_of_an_answer_cost_trust_and_an_error_of_nothing_does_not() {
    for (result, needs_approval) in [
        (r#"{"content":[],"structuredContent":{"status_code":503,"body":"down"}}"#, true),
        (r#"{"content":[],"structuredContent":{"error":"The request timed out"}}"#, true),
        (r#"{"content":[],"structuredContent":{"error":null,"status_code":200}}"#, false),
        (r#"{"content":[{"type":"text","text":"error: timed out"}]}"#, false),
    ] {
        let world = GatewayWorld::of("rp_10", &only_trust(""), TestTransport::Stdio, TestTransport::Stdio);
        let mut client = world.client();
        let line = format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{result}}}"#);
        for number in 0..3 {
            let response =
                client.call("look", json!({ "id": number.to_string(), "fault": "instead", "lines": [line] }));
            assert_eq!(response.code, None, "the answer is passed on as it is: {response:?}");
        }
        let code = call_look(&mut client, "last", SUCCESS).code;
        assert_eq!(code.as_deref() == Some("approval_required"), needs_approval, "{result}: {code:?}");
    }
}

/// Returns a trust file in which one tool is not trusted, as jaato's plugin writes it.
fn of_jaato(tool: &str) -> String {
    format!(
        r#"{{
  "version": 1,
  "tool_states": {{
    "{tool}": {{
      "failure_key": "{tool}", "tool_name": "{tool}", "state": "escalated", "failures_in_window": 3.0,
      "consecutive_failures": 3, "total_failures": 3, "last_failure": "2026-01-02T03:04:05.000006",
      "escalated_at": "2026-01-02T03:04:05.000006", "escalation_reason": "3 failures in 3600s",
      "escalation_expires": "2099-01-02T03:04:05.000006", "recovery_started": null, "successes_needed": 3
    }}
  }},
  "settings": {{ "nudge_level": "gentle" }},
  "last_updated": "2026-01-02T03:04:05.000006"
}}"#
    )
}

#[test]
fn rp_12_the_trust_file_of_jaato_is_found_the_projects_before_the_users() {
    let world = GatewayWorld::of(
        "rp_12_found",
        "guard.mode = \"off\"\nretry.attempts = 1\n",
        TestTransport::Stdio,
        TestTransport::Stdio,
    );
    let home = world.folder().join("home");
    let (project, user) = (world.folder().join(".jaato"), home.join(".jaato"));
    for folder in [&project, &user] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(user.join("reliability.json"), of_jaato("draw")).unwrap();
    let client = || {
        world.client_of("bank", |command| {
            command.env("HOME", &home);
        })
    };
    // Arguments of their own: an equal call would get the answer of the first one, if that is not known to have
    // arrived.
    let codes = |id: &str| {
        let mut client = client();
        ["draw", "pay", "sort"].map(|tool| client.call(tool, json!({ "id": id })).code)
    };
    let approval_required = || Some("approval_required".to_owned());
    assert_eq!(codes("user"), [approval_required(), None, None], "that of the user");
    let file = project.join("reliability.json");
    fs::write(&file, of_jaato("pay")).unwrap();
    assert_eq!(codes("project"), [None, approval_required(), None], "that of the project goes first");
    // Trust that is lost here is written to that file, beside its other entries, with their dates unchanged.
    let mut failing = client();
    for id in ["x", "y", "z"] {
        failing.call("look", json!({ "id": id, "fault": "503" }));
    }
    assert_eq!(failing.call("look", json!({ "id": "w" })).code, approval_required());
    failing.hang_up();
    let written: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(written["settings"]["nudge_level"], "gentle", "{written:#}");
    assert_eq!(
        written["tool_states"]["pay"]["escalation_expires"], "2099-01-02T03:04:05.000000",
        "{written:#}"
    );
    assert_eq!(written["tool_states"]["pay"]["total_failures"], 3, "{written:#}");
    let entry = written["tool_states"].as_object().unwrap().iter().find(|(name, _)| name.contains("look"));
    assert!(entry.is_some_and(|(_, state)| state["last_failure"].as_str().is_some()), "{written:#}");
    // The user may write it with comments and without quotes. It is written back as JSON.
    let by_hand = of_jaato("pay").replacen('{', "{ // by hand\n  note: 'mine',", 1);
    assert!(serde_json::from_str::<Value>(&by_hand).is_err());
    fs::write(&file, &by_hand).unwrap();
    assert_eq!(codes("by hand"), [None, approval_required(), None], "as JSON5");
    let (output, succeeded) = world.steadfast(&["doctor", "--no-servers"]);
    assert!(succeeded || !output.contains("cannot be read"), "{output}");
    let mut failing = client();
    for id in ["x", "y", "z"] {
        failing.call("look", json!({ "id": id, "fault": "503" }));
    }
    failing.hang_up();
    let written: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(
        (&written["note"], &written["tool_states"]["pay"]["total_failures"]),
        (&json!("mine"), &json!(3))
    );
    // A configuration may name no file, or turn storing off.
    for (config, code) in [
        ("trust_state.file = \"none\"\n", None),
        ("trust_state.persist = false\n", None),
        ("trust_state.file = \"home/.jaato/reliability.json\"\n", None),
        ("", approval_required()),
    ] {
        world.configure(config);
        assert_eq!(client().call("pay", json!({ "id": format!("with {config}") })).code, code, "{config}");
    }
}

#[test]
fn rp_12_an_unreadable_trust_file_is_reported_with_its_position_and_stays_unchanged() {
    let config = "guard.mode = \"off\"\nretry.attempts = 1\n";
    let world = GatewayWorld::of("rp_12_unreadable", config, TestTransport::Stdio, TestTransport::Stdio);
    let file = world.folder().join(".jaato/reliability.json");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let broken = of_jaato("pay").replace("2099-01-02T03:04:05.000006", "soon");
    fs::write(&file, &broken).unwrap();
    let mut client = world.client();
    assert_eq!(client.call("pay", json!({ "id": "a" })).text, "pay a, run 1");
    for id in ["x", "y", "z"] {
        client.call("look", json!({ "id": id, "fault": "503" }));
    }
    client.hang_up();
    assert_eq!(fs::read_to_string(&file).unwrap(), broken, "it is as it was");
    let logged = world.logged("trust.unreadable");
    let logged = logged.first().expect("it is told").to_string();
    assert!(
        logged.contains("reliability.json") && logged.contains("line 8, column") && logged.contains("soon"),
        "{logged}"
    );
    for written in [format!("// by hand\n{broken}"), broken.clone()] {
        fs::write(&file, &written).unwrap();
        let line = if written == broken { "line 8, column" } else { "line 9, column" };
        let (output, succeeded) = world.steadfast(&["doctor", "--no-servers"]);
        assert!(
            !succeeded && output.contains("reliability.json cannot be read") && output.contains(line),
            "{output}"
        );
    }
    let (output, succeeded) = world.steadfast(&["check"]);
    assert!(succeeded && output.contains("note: ") && output.contains("line 8, column"), "{output}");
    // Once corrected, it is used.
    fs::write(&file, of_jaato("pay")).unwrap();
    let (output, _) = world.steadfast(&["doctor", "--no-servers"]);
    assert!(output.contains("1 not trusted"), "{output}");
}

#[test]
fn a_call_over_mcp_is_correlated_by_its_trace_or_by_a_field_of_its_client() {
    GatewayWorld::each("tr_9_correlated", "", |world| {
        let mut client = world.client();
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let parent = format!("00-{trace}-00f067aa0ba902b7-01");
        client.call_with("look", json!({ "id": "a" }), json!({ "traceparent": parent }));
        let meta = json!({ "traceparent": parent, "dev.steadfast/correlation-id": "c-1", "dev.steadfast/agent": "planner" });
        client.call_with("look", json!({ "id": "b" }), meta);
        client.call("look", json!({ "id": "c" }));
        let ends = world.logged_times("tool_call_end", 3);
        let correlations: Vec<_> =
            ends.iter().map(|end| (end["correlationId"].as_str(), end["agentId"].as_str())).collect();
        assert_eq!(correlations, [(Some(trace), None), (Some("c-1"), Some("planner")), (None, None)]);
    });
}
