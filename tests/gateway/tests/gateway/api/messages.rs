//! The messages for calls that went wrong: the request, the response, its source, and the next step.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::{ApiGateway, PLAIN, envelope, within};
use crate::client::McpTestClient;

const CONFIG: &str = "breaker.mode = \"off\"\nretry.mode = \"off\"\nsettling.linger = \"500ms\"\n\
    settling.settle = \"500ms\"\nsettling.grace = \"200ms\"\nsettling.drain = \"200ms\"\n";

/// Servers that never take a call: one is not a program, the other ends before it has sent anything. No process listens
/// on the port of the tool.
const NEVER: &str = "[servers.absent]\ncommand = [\"/no/such/program\"]\n\
    [servers.mute]\ncommand = [\"false\"]\n\
    [http_tools.closed]\nmethod = \"POST\"\nurl = \"http://127.0.0.1:9/\"\n";

/// A failing call, and its messages. `OVER` stands for the sentence that every call that is over gets.
struct FailureMessageCase {
    tool: &'static str,
    params: Value,
    code: &'static str,
    observed: Option<&'static str>,
    expected_message: &'static str,
    /// The attempt in the history. `took` stands for its duration.
    attempt: &'static str,
}

/// The message of a limit of the caller.
const STUCK: &str = "the call gave no sign of life for too long and was cancelled; ";
const OVER: &str = "The call has ended: it took effect, or it never will. ";
const AGAIN: &str = ". If the effect is missing, repeat the call and it runs. Without a check, it runs again after 10 s. An operator \
    can resolve it with `steadfast resolve KEY --ran` or `--did-not-run`";

const SILENT: &str = "no response arrived in time; a retry may help";

fn rows() -> Vec<FailureMessageCase> {
    let unknown = "the outcome of this call is unknown: ";
    let row = |tool, params, code, observed, expected_message: String, attempt| FailureMessageCase {
        tool,
        params,
        code,
        observed,
        expected_message: Box::leak(expected_message.into_boxed_str()),
        attempt,
    };
    let over = |observation: &str, check: &str| format!("{unknown}{observation}. {OVER}{check}{AGAIN}");
    let (advice, whether) = ("Check first, for example with look", "Check first whether it took effect");
    vec![
        // Never written.
        row(
            "mute/pay",
            json!({}),
            "upstream_unavailable",
            None,
            "the server ended with exit code 1".to_owned(),
            "the request was never sent (the server ended with exit code 1); a retry may help",
        ),
        row(
            "http/closed",
            json!({}),
            "upstream_unavailable",
            None,
            "Connection refused (os error 111)".to_owned(),
            "the request was refused (Connection refused (os error 111)); a retry may help",
        ),
        // Written, and no answer: cut by the gateway.
        row(
            "bank/pay",
            json!({ "fault": "hang" }),
            "stuck_call",
            Some("no_answer"),
            format!("{STUCK}{}", over("no response arrived in time", advice)),
            SILENT,
        ),
        row(
            "http/pay",
            json!({ "fault": "hang" }),
            "stuck_call",
            Some("no_answer"),
            format!("{STUCK}{}", over("no response arrived in time", whether)),
            SILENT,
        ),
        row(
            "http/pay",
            json!({ "fault": "close" }),
            "outcome_unknown",
            Some("connection_lost"),
            over(
                "the request was sent, and the connection was lost before a response arrived (connection closed before \
                 message completed)",
                whether,
            ),
            "the request was sent, and the connection was lost before a response arrived (connection closed before message completed); a retry may help",
        ),
        row(
            "bank/pay",
            json!({ "fault": "die_after" }),
            "outcome_unknown",
            Some("process_died"),
            over(
                "the process running the call ended before it responded (the server ended with exit code 4)",
                advice,
            ),
            "the process running the call ended before it responded (the server ended with exit code 4); a retry may help",
        ),
        // Error answers.
        row(
            "http/pay",
            json!({ "fault": "503" }),
            "outcome_unknown",
            Some("error_answer"),
            over("the tool returned an error (HTTP 503: {\"error\":\"busy\"})", whether),
            "the tool returned an error ({\"error\":\"busy\"}); a retry may help",
        ),
        row(
            "bank/pay",
            json!({ "fault": "error", "text": "Request timed out" }),
            "outcome_unknown",
            Some("error_answer"),
            over("the tool returned an error", advice),
            "the tool returned an error (Request timed out); a retry may help",
        ),
        row(
            "bank/pay",
            json!({ "fault": "code", "code": -32603, "text": "lost the backend" }),
            "outcome_unknown",
            Some("error_answer"),
            over("the tool returned an error", advice),
            "the tool returned an error (lost the backend); a retry may help",
        ),
        row(
            "http/pay",
            json!({ "fault": "400" }),
            "tool_error",
            None,
            "{\"error\":\"no such account\"}".to_owned(),
            "the tool returned an error ({\"error\":\"no such account\"}); a retry would not help",
        ),
        row(
            "bank/pay",
            json!({ "fault": "400" }),
            "tool_error",
            None,
            "HTTP 400 Bad Request".to_owned(),
            "the tool returned an error (HTTP 400 Bad Request); a retry would not help",
        ),
    ]
}

/// Returns the text without its key, which differs for each call.
fn without_key(text: &str) -> String {
    match text.split_once("steadfast resolve ") {
        Some((before, after)) => {
            let rest = after.split_once(' ').map_or("", |(_, rest)| rest);
            format!("{before}steadfast resolve KEY {rest}")
        }
        None => text.to_owned(),
    }
}

#[test]
fn sf_12_every_answer_has_the_observation_and_the_next_step() {
    let gateway = ApiGateway::new("messages", &format!("{PLAIN}{CONFIG}{NEVER}"));
    for (number, FailureMessageCase { tool, mut params, code, observed, expected_message, attempt }) in
        rows().into_iter().enumerate()
    {
        params["id"] = format!("h-{number}").into();
        let mut request = envelope(tool, &params);
        if params["fault"] == "hang" {
            request = within(request, 5000);
        }
        request["requestId"] = format!("r-{number}").into();
        let response = gateway.call(&request);
        let error = &response.body["error"];
        let message = without_key(response.message());
        // Whether it could still be written to depends on timing. That it ended does not.
        let without_timing = |text: &str| text.replace(" before it read this", "");
        let message = without_timing(&message);
        let actual = (response.code(), error["observed"].as_str(), message);
        assert_eq!(
            actual,
            (code, observed, expected_message.to_owned()),
            "{tool} {params}: {}",
            response.body
        );
        // The field for programs has the same time as the text.
        let names_time = response.message().contains("after 10 s");
        assert_eq!(error["retryAfterMs"] == json!(10_000), names_time, "{}", response.body);
        // The later explanation has the same text, and the tool's own words.
        let (explanation, _) = gateway.command_json(&["explain", &format!("r-{number}")]);
        let stored = explanation["call"]["message"].as_str().unwrap_or_default();
        assert!(
            !stored.is_empty() && response.message().starts_with(stored),
            "{tool} {params}: {explanation:#}"
        );
        let steps = explanation["steps"].as_array().into_iter().flatten();
        let failed: Vec<_> =
            steps.filter_map(|step| step["text"].as_str()?.split_once(" failed after ")).collect();
        let reported =
            failed.first().and_then(|(_, rest)| rest.split_once(": ")).map(|(_, text)| without_timing(text));
        assert_eq!(reported.as_deref(), Some(attempt), "{tool} {params}: {explanation:#}");
    }
    // Cut by the caller: the call continues. On a slow machine it has not begun by then, and gets more time.
    for seconds in (1..8).map(|doubled| 1 << doubled) {
        let id = format!("within {seconds}");
        let mut request = envelope("bank/pay", &json!({ "id": id, "fault": "hang" }));
        let soon = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(seconds);
        request["control"]["deadlineAtMs"] = u64::try_from(soon.as_millis()).unwrap().into();
        let response = gateway.call(&request);
        if gateway.count("bank", &format!("pay {id}")) == 1 {
            let expected = "the deadline of this call passed while it was running, so its outcome is unknown. The call continues: \
                           repeat it later to get its result";
            assert_eq!(
                (response.code(), response.message()),
                ("outcome_unknown", expected),
                "{}",
                response.body
            );
            return;
        }
    }
    panic!("the call never ran");
}

/// The same over MCP, where the tool's own text comes first, word for word.
#[test]
fn sf_10_the_message_of_a_tool_is_unchanged_and_followed_by_that_of_the_gateway() {
    let hangs = "[tools.\"bank/draw\"]\nclass = \"mutating\"\ntimeout = \"5s\"\n";
    let gateway = ApiGateway::new("messages_mcp", &format!("{PLAIN}{CONFIG}{hangs}"));
    let mut client = McpTestClient::at(gateway.address);
    client.initialize();
    client.request("tools/list", json!({}));
    let rows = rows().into_iter().enumerate().filter(|(_, row)| row.tool == "bank/pay");
    for (number, FailureMessageCase { mut params, code, observed, expected_message, .. }) in rows {
        params["id"] = format!("m-{number}").into();
        let own = match params["fault"].as_str() {
            Some("error") => "Request timed out\n",
            Some("code") => "lost the backend\n",
            _ => "",
        };
        // Here the limit is one of the configuration.
        let (code, expected_message) = match expected_message.strip_prefix(STUCK) {
            Some(expected_message) => ("outcome_unknown", expected_message),
            None => (code, expected_message),
        };
        let tool = if params["fault"] == "hang" { "draw" } else { "pay" };
        let response = client.call(tool, params.clone());
        assert_eq!(without_key(&response.text), format!("{own}{expected_message}"), "{params}: {response:?}");
        if observed.is_some() {
            let error = &response.gateway_meta["error"];
            let actual = (error["code"].as_str(), error["observed"].as_str());
            assert_eq!(actual, (Some(code), observed), "{params}: {response:?}");
        }
    }
}
