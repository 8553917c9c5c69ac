//! TR-8 to TR-10, EH-3.4 and EH-3.5: the breaker of a failing tool opens, probes, and closes again.
//!
//! A cool-down during which something must happen is far longer than any test. The test waits for one that must be
//! over.

use std::ops::Range;
use std::thread;

use serde_json::{Value, json};

use super::{ApiGateway, ApiTestResponse, KINDS, PLAIN, envelope, keyed};
use crate::raw::PersistentConnection;
use crate::world::wait;

/// Makes one failing call for each number, all at once. The tool reports the failure. On a slow machine a timeout of
/// the gateway's could come before the tool was even called, which is another failure.
fn fail(gateway: &ApiGateway, kind: &str, numbers: Range<u32>) {
    thread::scope(|scope| {
        for number in numbers {
            scope.spawn(move || {
                let response = gateway.call(&failing(&format!("{kind}/pay"), &format!("bad {number}")));
                assert_eq!(response.body["attempts"], 1, "{}", response.body);
                assert!(response.body["error"].is_object() && !is_open(&response), "{}", response.body);
            });
        }
    });
}

/// Returns a call that fails, and is made once.
fn failing(tool: &str, id: &str) -> Value {
    let mut call = envelope(tool, &json!({ "id": id, "fault": "503" }));
    call["transport"]["retryBudget"] = json!({ "maxAttempts": 1, "maxElapsedMs": 60_000 });
    call
}

fn pay(gateway: &ApiGateway, kind: &str, id: &str) -> ApiTestResponse {
    gateway.call(&envelope(&format!("{kind}/pay"), &json!({ "id": id })))
}

fn is_open(response: &ApiTestResponse) -> bool {
    response.code() == "circuit_open"
}

#[test]
fn tr_8_five_failing_mutations_open_the_breaker_and_the_next_calls_are_refused_without_running() {
    let gateway = ApiGateway::with(
        "tr_8",
        concat!("guard.mode = \"off\"\ntrust.mode = \"off\"\n", short_settle_times!()),
        "breaker.cooldown = \"10m\"\n",
        |_| {},
    );
    for kind in KINDS {
        let tool = format!("{kind}/pay");
        fail(&gateway, kind, 0..4);
        assert_eq!(gateway.breaker(&tool)["state"], "CLOSED", "four are not enough");
        fail(&gateway, kind, 4..5);
        assert_eq!(gateway.breaker(&tool)["state"], "OPEN", "{}", gateway.get("/v1/breakers"));
        // It would succeed, and is refused with a retry-after delay.
        let refused = pay(&gateway, kind, "good");
        assert_eq!((refused.status, refused.code()), (503, "circuit_open"), "{}", refused.body);
        assert_eq!(refused.body["status"], "circuit_open");
        let seconds: u64 = refused.answered.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=600).contains(&seconds), "{seconds}");
        let request =
            gateway.request("POST /v1/calls").body(envelope(&tool, &json!({ "id": "good" })).to_string());
        let mut connection = PersistentConnection::to(gateway.address);
        for _ in 0..20 {
            let response: Value = serde_json::from_slice(&connection.request(&request)).unwrap();
            assert_eq!(
                (&response["status"], &response["attempts"]),
                (&json!("circuit_open"), &json!(0)),
                "{response}"
            );
        }
        assert_eq!(gateway.count(kind, "pay good"), 0);
        // Another tool of the server is not affected.
        let answer = gateway.call(&envelope(&format!("{kind}/look"), &json!({ "id": "a" })));
        assert_eq!(answer.text(), "look a, run 1", "{}", answer.body);
    }
}

/// Returns a gateway with the profile that seed 002 measures. An open breaker stays open for longer than any test.
fn measured(test: &str) -> ApiGateway {
    let config = format!("profile = \"measured\"\n{PLAIN}");
    ApiGateway::with(test, &config, "breaker.cooldown = \"10m\"\n", |_| {})
}

/// Makes a read that fails once like this: over HTTP with a status, elsewhere in the words of the seed.
fn fails_once(
    gateway: &ApiGateway,
    kind: &str,
    number: usize,
    (status, words): (&str, &str),
) -> ApiTestResponse {
    let id = format!("bad {number}");
    let params = match kind {
        "http" => json!({ "id": id, "fault": status }),
        _ => json!({ "id": id, "fault": "error", "text": words }),
    };
    let mut call = envelope(&format!("{kind}/look"), &params);
    call["transport"]["retryBudget"] = json!({ "maxAttempts": 1, "maxElapsedMs": 60_000 });
    let response = gateway.call(&call);
    assert_eq!(
        (&response.body["attempts"], gateway.count(kind, &format!("look {id}"))),
        (&json!(1), 1),
        "{}",
        response.body
    );
    assert!(response.body["error"].is_object() && !is_open(&response), "{}", response.body);
    response
}

#[test]
fn eh_3_4_permanent_errors_leave_the_breaker_closed() {
    let gateway = measured("eh_3_4");
    let (invalid, unauthenticated) =
        (("400", "Invalid airport code: XYZ"), ("401", "Authentication failed (401)"));
    let errors = [invalid, unauthenticated, ("404", "Not found (404)"), invalid, unauthenticated];
    for kind in KINDS {
        for (number, error) in errors.into_iter().enumerate() {
            let response = fails_once(&gateway, kind, number, error);
            assert_eq!(response.body["error"]["terminal"], true, "{}", response.body);
            let breaker = gateway.breaker(&format!("{kind}/look"));
            assert!(breaker["state"] != "OPEN" && breaker["inARow"].as_u64().unwrap_or(0) == 0, "{breaker}");
        }
        let good = gateway.call(&envelope(&format!("{kind}/look"), &json!({ "id": "good" })));
        assert_eq!((good.text(), &good.body["attempts"]), ("look good, run 1", &json!(1)), "{}", good.body);
    }
}

#[test]
fn eh_3_5_transient_errors_of_any_kind_open_the_breaker_at_the_fifth() {
    let gateway = measured("eh_3_5");
    let (timed_out, limited) =
        (("504", "Connection timeout after 30s"), ("429", "Rate limit exceeded (429)"));
    let errors = [timed_out, limited, ("503", "Connection reset by peer"), timed_out, limited];
    for kind in KINDS {
        let tool = format!("{kind}/look");
        for (number, error) in errors.into_iter().enumerate() {
            fails_once(&gateway, kind, number, error);
            let breaker = gateway.breaker(&tool);
            let state = if number < 4 { "CLOSED" } else { "OPEN" };
            assert_eq!(
                (&breaker["state"], &breaker["inARow"]),
                (&json!(state), &json!(number + 1)),
                "{kind}: {breaker}"
            );
        }
        let refused = gateway.call(&envelope(&tool, &json!({ "id": "good" })));
        assert_eq!(
            (refused.code(), &refused.body["attempts"]),
            ("circuit_open", &json!(0)),
            "{}",
            refused.body
        );
        assert_eq!(gateway.count(kind, "look good"), 0);
    }
}

#[test]
fn tr_9_two_successful_probes_close_the_breaker() {
    let gateway = ApiGateway::with("tr_9", PLAIN, "breaker.cooldown = \"100ms\"\n", |_| {});
    thread::scope(|scope| {
        for kind in KINDS {
            let gateway = &gateway;
            scope.spawn(move || {
                let tool = format!("{kind}/pay");
                fail(gateway, kind, 0..5);
                // A call that comes too early is refused, which changes nothing.
                wait(|| !is_open(&pay(gateway, kind, "first")), || "a probe".to_owned());
                assert_eq!(gateway.breaker(&tool)["state"], "HALF_OPEN", "one good probe is not enough");
                assert_eq!(pay(gateway, kind, "second").text(), "pay second, run 1");
                assert_eq!(gateway.breaker(&tool)["state"], "CLOSED");
                // All calls run again, at the first attempt, concurrently: none is over before all have begun.
                let gate = gateway.gate(kind);
                thread::scope(|scope| {
                    for number in 0..8 {
                        scope.spawn(move || {
                            let params = json!({ "id": number.to_string(), "fault": "gate" });
                            let response = gateway.call(&envelope(&format!("{kind}/pay"), &params));
                            assert_eq!(
                                (response.status, &response.body["attempts"]),
                                (200, &json!(1)),
                                "{}",
                                response.body
                            );
                        });
                    }
                    for number in 0..8 {
                        gateway.until(kind, &format!("pay {number}"), 1);
                    }
                    drop(gate);
                });
                assert_eq!((gateway.count(kind, "pay first"), gateway.count(kind, "pay second")), (1, 1));
            });
        }
    });
    let changes = gateway.logged_times("tool_call_circuit_state", 9);
    for kind in KINDS {
        let of_kind: Vec<_> = changes
            .iter()
            .filter(|change| change["toolNamespace"] == kind)
            .map(|change| (change["fromState"].as_str().unwrap(), change["breakerState"].as_str().unwrap()))
            .collect();
        assert_eq!(of_kind, [("CLOSED", "OPEN"), ("OPEN", "HALF_OPEN"), ("HALF_OPEN", "CLOSED")], "{kind}");
    }
}

#[test]
fn tr_10_a_failing_probe_opens_the_breaker_again_with_a_new_cooldown() {
    // The second cool-down is far longer than the first one.
    let grows =
        "breaker.cooldown = \"600ms\"\nbreaker.cooldown_growth = 1000\nbreaker.cooldown_cap = \"10m\"\n";
    let gateway = ApiGateway::with("tr_10", PLAIN, grows, |_| {});
    thread::scope(|scope| {
        for kind in KINDS {
            let gateway = &gateway;
            scope.spawn(move || {
                let tool = format!("{kind}/pay");
                let before = keyed(&tool, &json!({ "id": "before" }), "k");
                assert_eq!(gateway.call(&before).text(), "pay before, run 1");
                fail(gateway, kind, 0..5);
                let probe = failing(&tool, "probe");
                wait(|| !is_open(&gateway.call(&probe)), || "a probe".to_owned());
                let refused = pay(gateway, kind, "after");
                assert_eq!(refused.code(), "circuit_open", "{}", refused.body);
                let seconds: u64 = refused.answered.header("retry-after").unwrap().parse().unwrap();
                assert!((2..=600).contains(&seconds), "the time began anew: {seconds}");
                assert_eq!(gateway.breaker(&tool)["state"], "OPEN");
                // Earlier successful answers are still replayed.
                let replayed = gateway.call(&before);
                assert_eq!(
                    (replayed.text(), &replayed.body["fromCache"]),
                    ("pay before, run 1", &json!(true))
                );
                let runs =
                    ["pay probe", "pay before", "pay after"].map(|operation| gateway.count(kind, operation));
                assert_eq!(runs, [1, 1, 0]);
            });
        }
    });
}
