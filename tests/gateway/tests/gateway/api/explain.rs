//! `steadfast explain` and `steadfast rehearse`: the reasons for the results of calls, and their results under another
//! configuration.

use std::fs;

use serde_json::{Value, json};

use super::{ApiGateway, PLAIN, envelope, keyed, within};
use crate::world::wait;

/// A secret in the parameters and answers of a tool.
const SECRET: &str = "hunter2hunter2";

/// Returns a gateway with a history: a call that was retried, one that its caller did not wait for, one that the
/// breaker refused, and a duplicate.
fn with_history(test: &str, config: &str) -> ApiGateway {
    let each = "breaker.consecutive = 2\nbreaker.cooldown = \"10m\"\nsettling.settle = \"0s\"\n";
    let gateway = ApiGateway::with(test, &format!("{PLAIN}{config}"), each, |_| {});
    let named = |mut envelope: Value, id: &str| {
        envelope["requestId"] = id.into();
        envelope
    };
    let fault = json!({ "id": SECRET, "fault": "503", "times": 1, "text": format!("busy, token={SECRET}") });
    let retried = gateway.call(&named(envelope("http/look", &fault), "r-retried"));
    assert_eq!(retried.body["attempts"], 2, "{}", retried.body);
    // Long enough for the tool to be called. Otherwise the call would be retried.
    let mut hangs = envelope("command/pay", &json!({ "id": "x", "fault": "hang" }));
    hangs["transport"]["dedupeMode"] = "disabled".into();
    let slow = gateway.call(&named(within(hangs, 5_000), "r-slow"));
    assert_eq!(slow.code(), "outcome_unknown", "{}", slow.body);
    for id in ["r-bad-1", "r-bad-2"] {
        // Two different payments: the same one would not run again while its outcome is unknown.
        let bad = gateway.call(&named(envelope("http/pay", &json!({ "id": id, "fault": "503" })), id));
        assert_eq!(bad.code(), "outcome_unknown", "{}", bad.body);
    }
    let refused = gateway.call(&named(envelope("http/pay", &json!({ "id": "y" })), "r-refused"));
    assert_eq!(refused.code(), "circuit_open", "{}", refused.body);
    for id in ["r-first", "r-again"] {
        let response = gateway.call(&named(keyed("command/pay", &json!({ "id": "z" }), "once"), id));
        assert_eq!(response.text(), "pay z, run 1", "{}", response.body);
    }
    let calls = || gateway.get("/v1/history")["calls"].as_array().unwrap().len();
    wait(|| calls() == 7, || format!("seven calls in the history, not {}", calls()));
    gateway
}

impl ApiGateway {
    /// Returns the output of a command, and its exit code. Checks that it contains neither parameters nor secrets of
    /// tools.
    fn command_output(&self, arguments: &[&str]) -> (String, i32) {
        let output = self.run(arguments);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!text.contains(SECRET), "{arguments:?}: {text}");
        (text, output.status.code().unwrap())
    }

    pub(super) fn command_json(&self, arguments: &[&str]) -> (Value, i32) {
        let (text, code) = self.command_output(&[arguments, &["--json"]].concat());
        (serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")), code)
    }

    /// Returns a copy of its configuration with a change.
    fn changed(&self, from: &str, to: &str) -> String {
        let text = fs::read_to_string(self.folder.join("steadfast.toml")).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(self.folder.join("new.toml"), text.replace(from, to)).unwrap();
        "new.toml".to_owned()
    }
}

/// Returns the position of a setting in the file, in the form of the output.
fn place(gateway: &ApiGateway, table: &str, setting: &str) -> String {
    let text = fs::read_to_string(gateway.folder.join("steadfast.toml")).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let table = lines.iter().position(|line| *line == table).unwrap();
    let line = lines.iter().skip(table).position(|line| line.starts_with(setting)).unwrap();
    format!("/steadfast.toml:{}:", table + line + 1)
}

#[test]
fn explain_shows_the_events_the_deciding_rule_and_its_position() {
    let mut gateway = with_history("explain", "retry.attempts = 5\n");
    let breaker = place(&gateway, "[tools.\"http/pay\"]", "breaker.consecutive");
    for is_running in [true, false] {
        if !is_running {
            gateway.stop();
        }
        let (output, code) = gateway.command_output(&["explain", "r-retried"]);
        assert_eq!(code, 0, "{output}");
        for part in [
            "call r-retried",
            "http/look",
            "session s-1",
            "class read only",
            "the tool returned an error ({\"error\":\"busy, token=[redacted]\"}); a retry may help",
            "by the rule http.503 (built in)",
            "by retry.attempts = 5 (",
            "/steadfast.toml:3:",
            "ended: success, 2 attempts",
        ] {
            assert!(output.contains(part), "{part}: {output}");
        }
        let (output, code) = gateway.command_output(&["explain", "r-slow"]);
        assert_eq!(code, 0, "{output}");
        for part in ["by timeoutMs = 5000, set by its caller", "ended: outcome_unknown by timeout"] {
            assert!(output.contains(part), "{part}: {output}");
        }
        let (output, code) = gateway.command_output(&["explain", "r-bad-2"]);
        assert_eq!(code, 0, "{output}");
        for part in [
            "by breaker.consecutive = 2 (",
            &breaker,
            "ended: outcome_unknown by http.503",
            "told: the outcome of this call is unknown",
        ] {
            assert!(output.contains(part), "{part}: {output}");
        }
        let (output, code) = gateway.command_output(&["explain", "r-refused"]);
        assert_eq!(code, 0, "{output}");
        for part in [
            "ended: circuit_open by breaker, 0 attempts",
            "the breaker was opened at ",
            " by the call r-bad-2 of http/pay, by breaker.consecutive = 2 (",
        ] {
            assert!(output.contains(part), "{part}: {output}");
        }
        let (output, code) = gateway.command_output(&["explain", "r-again"]);
        assert_eq!(code, 0, "{output}");
        for part in ["by dedupe.mode = ", "ended: success, replayed"] {
            assert!(output.contains(part), "{part}: {output}");
        }
    }
    let (json, _) = gateway.command_json(&["explain", "r-refused"]);
    assert_eq!(
        (&json["openedBy"]["requestId"], &json["openedBy"]["tool"], &json["openedBy"]["reason"]),
        (&json!("r-bad-2"), &json!("http/pay"), &json!("consecutive")),
        "{json:#}"
    );
    let (output, code) = gateway.command_output(&["explain", "r-nobody"]);
    assert_eq!(code, 1, "{output}");
    assert!(output.contains("no stored call or turn has the id `r-nobody`"), "{output}");
}

#[test]
fn explain_shows_the_result_under_another_profile() {
    // Random waits of two profiles could be the same by chance.
    let gateway = with_history("explain_profile", "retry.jitter = \"none\"\n");
    for (id, would) in [
        ("r-retried", "under the profile measured this would have changed:"),
        ("r-again", "under the profile measured nothing would have changed"),
    ] {
        let (output, code) = gateway.command_output(&["explain", id, "--profile", "measured"]);
        assert_eq!(code, 0, "{output}");
        assert!(output.contains(would), "{output}");
    }
    let (json, _) = gateway.command_json(&["explain", "r-retried", "--profile", "measured"]);
    assert_eq!(
        (&json["replayed"], &json["under"]["profile"], &json["under"]["differs"]),
        (&json!(true), &json!("measured"), &json!(true)),
        "{json:#}"
    );
    let settings = json["under"]["settings"].as_array().unwrap();
    assert!(settings.iter().any(|one| one["setting"] == "retry.base"), "{json:#}");
    let (output, code) = gateway.command_output(&["explain", "r-retried", "--profile", "none-such"]);
    assert_eq!(code, 2, "{output}");
}

#[test]
fn a_gateway_that_stores_its_state_in_memory_is_queried() {
    let mut gateway = with_history("explain_memory", "store.kind = \"memory\"\n");
    let (output, code) = gateway.command_output(&["explain", "r-retried"]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("ended: success, 2 attempts"), "{output}");
    let (output, code) = gateway.command_output(&["rehearse", "--config", "steadfast.toml"]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("7 calls, and no result would change"), "{output}");
    gateway.stop();
    let (output, code) = gateway.command_output(&["explain", "r-retried"]);
    assert_eq!(code, 2, "{output}");
}

#[test]
fn rehearse_shows_which_results_would_change_under_another_configuration() {
    let gateway = with_history("rehearse", "");
    let (output, code) =
        gateway.command_output(&["rehearse", "--config", "steadfast.toml", "--since", "24h"]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("7 calls, and no result would change"), "{output}");
    assert!(!output.contains("taken as recorded"), "everything is explained: {output}");

    let new = gateway.changed("breaker.consecutive = 2", "breaker.consecutive = 1");
    let (output, code) = gateway.command_output(&["rehearse", "--config", &new, "--since", "24h"]);
    assert_eq!(code, 3, "{output}");
    for part in [
        "2 of 7 results would change",
        "refused by the breaker: ",
        "breaker.consecutive = 1 instead of 2 (new.toml:",
        "r-bad-2",
    ] {
        assert!(output.contains(part), "{part}: {output}");
    }
    let (json, code) = gateway.command_json(&["rehearse", "--config", &new]);
    assert_eq!((code, &json["calls"], &json["notExplained"]), (3, &json!(7), &json!(0)), "{json:#}");
    let kind = &json["kinds"][0];
    assert_eq!(kind["kind"], "refused_by_breaker", "{json:#}");
    let changed: Vec<_> = kind["examples"].as_array().unwrap().iter().map(|one| &one["requestId"]).collect();
    assert_eq!(changed, ["r-retried", "r-bad-2"], "{json:#}");
    let example = &kind["examples"][1];
    assert_eq!(
        (&example["was"]["code"], &example["would"]["code"]),
        (&json!("outcome_unknown"), &json!("circuit_open"))
    );

    // There are no calls in the last millisecond.
    let (output, code) = gateway.command_output(&["rehearse", "--config", &new, "--since", "1ms"]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("nothing to rehearse"), "{output}");
    let (output, code) = gateway.command_output(&["rehearse", "--config", &new, "--since", "soon"]);
    assert_eq!(code, 2, "{output}");
}

#[test]
fn explain_shows_a_turn_with_the_decision_on_each_of_its_calls() {
    let config = format!("{PLAIN}retry.attempts = 5\nretry.jitter = \"none\"\n");
    let gateway = ApiGateway::with("explain_turn", &config, "", |_| {});
    let fault = json!({ "id": SECRET, "fault": "503", "times": 1, "text": "busy" });
    let plan = json!({ "turnId": "trip", "calls": [{ "id": "seek", "tool": "http/look", "params": fault }] });
    let turn =
        json!({ "contractVersion": "1.1", "target": { "sessionKey": "s", "actorId": "ann" }, "plan": plan });
    let answer = gateway.post("/v1/turns", &turn);
    assert_eq!(answer.body["status"], "completed", "{}", answer.body);
    wait(
        || gateway.get("/v1/history")["calls"].as_array().unwrap().len() == 1,
        || "its call is kept".to_owned(),
    );
    let (output, code) = gateway.command_output(&["explain", "trip", "--profile", "measured"]);
    assert_eq!(code, 0, "{output}");
    for part in [
        "turn trip  1 call",
        "Tool succeeded on retry 2",
        "\nseek\n  call ",
        "by the rule http.503 (built in)",
        "by retry.attempts = 5 (",
        "ended: success, 2 attempts",
        "under the profile measured this would have changed:",
        "there retry.base = ",
    ] {
        assert!(output.contains(part), "{part}: {output}");
    }
    let (json, _) = gateway.command_json(&["explain", "trip"]);
    let call = &json["calls"][0];
    assert_eq!((&call["id"], &call["call"]["status"]), (&json!("seek"), &json!("success")), "{json:#}");
}
