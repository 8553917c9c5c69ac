//! A session keeps answering whatever its calls do (GR-3 to GR-7).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::Said;
use crate::world::{World, wait};

#[test]
fn gr_3_three_transient_failures_exhaust_the_retries_and_the_session_goes_on() {
    World::each("gr_3_stepped", "profile = \"stepped\"\n", |world| {
        let mut client = world.client();
        let began = Instant::now();
        let said = client.call("look", json!({ "id": "a", "fault": "error" }));
        assert!(said.is_error && said.text.contains("503 Service Unavailable"), "{said:?}");
        assert_eq!(world.count("look a"), 3);
        assert!(
            began.elapsed() >= Duration::from_millis(600),
            "waits of 100 and 500 ms: {:?}",
            began.elapsed()
        );
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
fn gr_4_a_heartbeat_between_two_attempts_is_answered_at_once() {
    World::each(
        "gr_4_between",
        "retry.base = \"3s\"\nretry.cap = \"3s\"\nretry.jitter = \"none\"\n",
        |world| {
            let mut client = world.client();
            let pending = client.send_call("look", json!({ "id": "a", "fault": "error", "times": 1 }));
            world.logged_times("tool_call_retry", 1);
            let began = Instant::now();
            client.request("ping", json!({}));
            assert_eq!(client.call("pay", json!({ "id": "b" })).text, "pay b, run 1", "other calls too");
            assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
            assert_eq!(Said::of(&client.answer(pending)).text, "look a, run 2");
        },
    );
}

#[test]
fn gr_5_an_agent_that_is_told_of_an_error_goes_on_with_another_tool() {
    World::each("gr_5_other_tool", "timeout = \"500ms\"\n", |world| {
        let mut client = world.client();
        let said = client.call("pay", json!({ "id": "a", "fault": "hang" }));
        // What it is told is enough to decide by.
        assert!(said.is_error && !said.text.is_empty(), "{said:?}");
        let error = &said.ours["error"];
        assert_eq!(
            (&error["code"], &error["retriable"]),
            (&json!("outcome_unknown"), &json!(false)),
            "{said:?}"
        );
        assert_eq!(client.call("draw", json!({ "id": "instead" })).text, "draw instead, run 1");
    });
}

#[test]
fn gr_6_after_any_failure_the_error_is_recorded_and_the_next_message_is_answered() {
    let once = "[tools.\"bank/pay\"]\nretry.attempts = 1\n[tools.\"bank/look\"]\nretry.attempts = 1\n";
    let config = format!("timeout = \"1s\"\nguard.mode = \"off\"\ntrust.mode = \"off\"\n{once}");
    World::each("gr_6_any", &config, |world| {
        let mut client = world.client();
        let faults = ["hang", "die_after", "error", "503", "400", "code", "half_line", "instead"];
        for (number, fault) in faults.into_iter().enumerate() {
            let arguments =
                json!({ "id": fault, "fault": fault, "code": -32603, "text": "oh", "lines": ["no message"] });
            for tool in ["pay", "look"] {
                let began = Instant::now();
                let said = client.call(tool, arguments.clone());
                assert!(said.is_error, "{fault}: {said:?}");
                assert!(began.elapsed() < Duration::from_secs(15), "{fault}: {:?}", began.elapsed());
                client.request("ping", json!({}));
                let next = format!("{tool} {number}");
                assert_eq!(
                    client.call("draw", json!({ "id": next })).text,
                    format!("draw {next}, run 1"),
                    "{fault}"
                );
            }
        }
        // Each is told of: as failed, or as one of which nobody knows what came of it.
        let told = || -> BTreeSet<String> {
            let lines = world.log().into_iter().filter(|line| {
                line["errorCode"].is_string()
                    && (line["event"] == "tool_call_end" || line["event"] == "tool_call_answered_early")
            });
            lines.map(|line| line["requestId"].to_string()).collect()
        };
        wait(|| told().len() == 2 * faults.len(), || format!("{:#?}", told()));
    });
}

#[test]
fn gr_7_a_call_that_reports_progress_outlives_the_watchdog() {
    World::each("gr_7_pulse", "stuck_after = \"1s\"\n", |world| {
        let mut client = world.client();
        let params = |id: &str, fault: &str| {
            let arguments = json!({ "id": id, "fault": fault, "size": 20 });
            json!({ "name": "pay", "arguments": arguments, "_meta": { "progressToken": id } })
        };
        // Twice as long as silence may last, and never silent for long.
        let answer = client.request("tools/call", params("a", "progress"));
        assert_eq!(Said::of(&answer).text, "pay a, run 1");
        assert_eq!(world.count("cancelled"), 0);
        let began = Instant::now();
        let said = Said::of(&client.request("tools/call", params("b", "hang")));
        assert!(said.is_error && said.code.is_some(), "{said:?}");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        world.until("cancelled", 1);
    });
}
