//! A session keeps answering whatever its calls do (GR-3 to GR-7).

use std::collections::BTreeSet;
use std::fs;

use serde_json::json;

use crate::client::ToolResponse;
use crate::world::{GatewayWorld, wait};

#[test]
fn gr_3_three_transient_failures_exhaust_the_retries_and_the_session_continues() {
    GatewayWorld::each("gr_3_stepped", "profile = \"stepped\"\n", |world| {
        let mut client = world.client();
        let response = client.call("look", json!({ "id": "a", "fault": "error" }));
        assert!(response.is_error && response.text.contains("503 Service Unavailable"), "{response:?}");
        assert_eq!(world.count("look a"), 3);
        let retries = world.logged_times("tool_call_retry", 2);
        // The remaining part of 100 and 500 ms when it is reported.
        let waits: Vec<_> = retries.iter().filter_map(|retry| retry["delayMs"].as_u64()).collect();
        assert!(waits[0] <= 100 && waits[1] <= 500, "{waits:?}");
        let end = &world.logged_times("tool_call_end", 1)[0];
        assert_eq!(
            (&end["state"], &end["attempt"]),
            (&json!("failed"), &json!(3)),
            "the error is recorded: {end}"
        );
        client.request("ping", json!({}));
        assert_eq!(client.call("look", json!({ "id": "b" })).text, "look b, run 1");
    });
}

#[test]
fn gr_4_a_heartbeat_between_two_attempts_is_answered_before_the_second() {
    // The second attempt is made after the test is over.
    let waits =
        "retry.base = \"10m\"\nretry.cap = \"10m\"\nretry.jitter = \"none\"\nretry.total = \"none\"\n";
    let config = format!("{waits}last_retry = \"none\"\nanswer_by = \"none\"\n");
    GatewayWorld::each("gr_4_between", &config, |world| {
        let mut client = world.client();
        client.send_call("look", json!({ "id": "a", "fault": "error", "times": 1 }));
        world.logged_times("tool_call_retry", 1);
        client.request("ping", json!({}));
        assert_eq!(client.call("pay", json!({ "id": "b" })).text, "pay b, run 1", "other calls too");
        assert_eq!(world.count("look a"), 1);
        assert!(client.received.is_empty(), "the call still waits: {:?}", client.received);
    });
}

#[test]
fn gr_5_an_agent_that_gets_an_error_continues_with_another_tool() {
    GatewayWorld::each(
        "gr_5_other_tool",
        concat!(short_settle_times!(), "[tools.\"bank/pay\"]\ntimeout = \"3s\"\n"),
        |world| {
            let mut client = world.client();
            let response = client.call("pay", json!({ "id": "a", "fault": "hang" }));
            // The response is enough for a decision.
            assert!(response.is_error && !response.text.is_empty(), "{response:?}");
            let error = &response.gateway_meta["error"];
            assert_eq!(
                (&error["code"], &error["retriable"]),
                (&json!("outcome_unknown"), &json!(false)),
                "{response:?}"
            );
            assert_eq!(client.call("draw", json!({ "id": "instead" })).text, "draw instead, run 1");
        },
    );
}

#[test]
fn gr_6_after_any_failure_the_error_is_recorded_and_the_next_message_is_answered() {
    // All of these end as failures, so that their timeouts may be short.
    let failing = ["pay", "look"]
        .map(|tool| format!("[tools.\"bank/{tool}\"]\nretry.attempts = 1\ntimeout = \"500ms\"\n"));
    let config =
        format!("guard.mode = \"off\"\ntrust.mode = \"off\"\n{}{}", short_settle_times!(), failing.concat());
    // Two gateways, because a server that ends too often within a minute is not restarted.
    for faults in [["hang", "die_after", "error", "503"], ["400", "code", "half_line", "instead"]] {
        GatewayWorld::each(&format!("gr_6_{}", faults[0]), &config, |world| each_fails(&world, &faults));
    }
}

fn each_fails(world: &GatewayWorld, faults: &[&str]) {
    let mut client = world.client();
    for (number, fault) in faults.iter().enumerate() {
        let arguments =
            json!({ "id": fault, "fault": fault, "code": -32603, "text": "oh", "lines": ["no message"] });
        for tool in ["pay", "look"] {
            let response = client.call(tool, arguments.clone());
            assert!(response.is_error, "{fault}: {response:?}");
            client.request("ping", json!({}));
            let next = format!("{tool} {number}");
            assert_eq!(
                client.call("draw", json!({ "id": next })).text,
                format!("draw {next}, run 1"),
                "{fault}"
            );
        }
    }
    // Each is logged: as failed, or with an unknown outcome.
    let logged = || -> BTreeSet<String> {
        let lines = world.log().into_iter().filter(|line| {
            line["errorCode"].is_string()
                && (line["event"] == "tool_call_end" || line["event"] == "tool_call_answered_early")
        });
        lines.map(|line| line["requestId"].to_string()).collect()
    };
    wait(|| logged().len() == 2 * faults.len(), || format!("{:#?}", logged()));
}

#[test]
fn gr_7_a_call_that_reports_progress_outlives_the_watchdog() {
    // Far longer than the pauses between two signs of life, on any machine.
    GatewayWorld::each("gr_7_pulse", "stuck_after = \"15s\"\nanswer_by = \"none\"\n", |world| {
        let mut client = world.client();
        let gate = world.set_behavior("gate");
        let mut send = |id: &str, fault: &str| {
            let arguments = json!({ "id": id, "fault": fault });
            client.send_call_with("pay", arguments, json!({ "progressToken": id }))
        };
        let alive = send("a", "pulse");
        world.until("pay a", 1);
        let silent = send("b", "hang");
        // The second call began later and is ended for its silence. The first one goes on.
        let response = ToolResponse::of(&client.answer(silent));
        assert_eq!((response.is_error, response.code.as_deref()), (true, Some("stuck_call")), "{response:?}");
        world.until("cancelled", 1);
        assert!(client.received.iter().all(|message| message["id"] != alive), "it is still running");
        fs::remove_file(gate).unwrap();
        assert_eq!(ToolResponse::of(&client.answer(alive)).text, "pay a, run 1");
        assert_eq!(world.count("cancelled"), 1);
    });
}
