//! Notifications (RP-8): changes of trust, pending requests for approval, unknown outcomes. Webhooks, the log, event
//! streams and clients receive the same ones.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;

use super::service::ReceivedRequest;
use super::trust::{STRICT, lose_trust};
use super::{ApiGateway, ApiTestResponse, envelope};
use crate::client::McpTestClient;
use crate::world::{LISTEN, start_gateway, wait};

/// A text with the shape of a secret.
const TOKEN: &str = "ghp_abcdefghijklmnopqrstuvwxyz0123456789";
const SECRET: &str = "whsec_c3RlYWRmYXN0LXN0ZWFkZmFzdC1zdGVhZGZhc3Q=";

/// Returns a configuration with three receivers: one that fails at first, one for messages in Slack, and one that never
/// answers.
fn with_receivers(rest: &str) -> String {
    let ops =
        format!("[notify.ops]\nurl = \"http://{{service}}/ops?fault=503&times=1\"\nsecret = \"{SECRET}\"\n");
    let chat = "[notify.chat]\nurl = \"http://{service}/chat\"\nformat = \"slack\"\nevents = [\"outcome_unknown\"]\n";
    let dead = "[notify.dead]\nurl = \"http://{service}/dead?fault=hang\"\n";
    format!("{rest}{ops}{chat}{dead}")
}

/// Returns the requests that a receiver got.
fn sent(gateway: &ApiGateway, receiver: &str) -> Vec<ReceivedRequest> {
    let path = format!("POST /{receiver}");
    gateway.service.requests().into_iter().filter(|request| request.line.starts_with(&path)).collect()
}

fn body(request: &ReceivedRequest) -> Value {
    serde_json::from_str(&request.body).unwrap()
}

/// Waits for this many notifications of this kind that a receiver got and accepted.
fn taken(gateway: &ApiGateway, event: &str, times: usize) -> Vec<Value> {
    let all = || {
        // The first one was refused, and sent again.
        let taken = sent(gateway, "ops").into_iter().skip(1);
        taken.map(|request| body(&request)).filter(|body| body["event"] == event).collect::<Vec<_>>()
    };
    wait(|| all().len() >= times, || format!("{times} times {event} in {:#?}", all()));
    all()
}

#[test]
fn rp_8_a_change_of_trust_is_sent_to_webhooks_log_events_and_clients() {
    let silent = "[tools.\"command/look\".trust]\nnotify = false\n";
    let gateway = ApiGateway::new("notify", &with_receivers(&format!("{STRICT}{silent}")));
    let mut client = McpTestClient::at(gateway.address);
    let initialized = client.initialize();
    assert!(initialized["result"]["capabilities"]["logging"].is_object(), "{initialized}");
    assert_eq!(client.request("logging/setLevel", json!({ "level": "warning" }))["result"], json!({}));
    client.listen();
    let mut unsubscribed = McpTestClient::at(gateway.address);
    unsubscribed.initialize();
    unsubscribed.listen();
    let mut events = gateway.listen("?event=notification");
    lose_trust(&gateway, "http");

    let first = taken(&gateway, "trust_changed", 1).remove(0);
    assert_eq!(first["tool"], json!({ "namespace": "http", "tool": "look" }), "{first}");
    let trust = &first["trust"];
    assert_eq!(
        (&trust["from"], &trust["to"], &trust["reason"], &trust["successesNeeded"]),
        (&json!("trusted"), &json!("escalated"), &json!("2 failures in 1 h"), &json!(3)),
        "{first}"
    );
    let message = first["message"].as_str().unwrap();
    for part in ["http/look", "needs approval until 20", "2 failures in 1 h", "3 successful calls"] {
        assert!(message.contains(part), "{part} in {message}");
    }
    assert!(trust["untilMs"].as_u64() > first["atMs"].as_u64(), "{first}");
    // It was refused at first, and is unchanged when it is sent again. Its signature can be verified with the secret.
    let tries = sent(&gateway, "ops");
    assert_eq!(
        (&tries[0].body, tries[0].header("webhook-id")),
        (&tries[1].body, tries[1].header("webhook-id"))
    );
    for request in &tries[..2] {
        let header = |name: &str| request.header(name).unwrap_or_else(|| panic!("{name} in {request:?}"));
        let signed = format!("{}.{}.{}", header("webhook-id"), header("webhook-timestamp"), request.body);
        let mut mac = Hmac::<Sha256>::new_from_slice(b"steadfast-steadfast-steadfast").unwrap();
        mac.update(signed.as_bytes());
        assert_eq!(
            header("webhook-signature"),
            format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
        );
    }
    // The same is in the log and in the event stream, and the client that asked for it receives it.
    let logged = gateway.logged_times("notification", 1).remove(0);
    let event = events.any();
    for notice in [&logged, &event] {
        assert_eq!(
            (&notice["message"], &notice["notification"]),
            (&json!(message), &json!("trust_changed")),
            "{notice}"
        );
        assert_eq!(
            (&notice["untilMs"], &notice["successesNeeded"]),
            (&trust["untilMs"], &json!(3)),
            "{notice}"
        );
    }
    let notification = client.next_notification("notifications/message");
    assert_eq!(
        (
            &notification["params"]["level"],
            &notification["params"]["logger"],
            &notification["params"]["data"]
        ),
        (&json!("warning"), &json!("steadfast"), &first),
        "{notification}"
    );

    // Where clients are not to be notified, only they are left out.
    lose_trust(&gateway, "command");
    taken(&gateway, "trust_changed", 2);
    lose_trust(&gateway, "bank");
    let notification = client.next_notification("notifications/message");
    assert_eq!(notification["params"]["data"]["tool"]["namespace"], "bank", "{notification}");
    gateway.logged_times("notification", 3);
    // A client that did not ask receives nothing.
    assert!(unsubscribed.request("ping", json!({}))["result"].is_object());
    assert_eq!(unsubscribed.count_notifications("notifications/message"), 0);
    // An operator restores trust: that is a notification too. A client that asked for warnings does not receive it.
    gateway.post_as_operator("POST /v1/trust/http%2Flook/reset", &Value::Null);
    let forgiven = taken(&gateway, "trust_changed", 4).remove(3);
    assert_eq!(
        (&forgiven["trust"]["to"], &forgiven["level"]),
        (&json!("trusted"), &json!("info")),
        "{forgiven}"
    );
    // The receiver that never answers got its request, and delayed no other one. The chat is not configured for trust.
    assert_eq!((sent(&gateway, "dead").len(), sent(&gateway, "chat").len()), (1, 0));
}

#[test]
fn rp_8_a_pending_request_and_an_unknown_outcome_are_notified() {
    let gateway = ApiGateway::new("notify_unknown", &with_receivers(STRICT));
    // A domain is part of the texts, and may contain a secret.
    let url = json!(format!("https://{TOKEN}.example.com/data"));
    for id in ["1", "2"] {
        gateway.call(&envelope("bank/look", &json!({ "id": id, "url": url, "fault": "503" })));
    }
    let lost = taken(&gateway, "trust_changed", 1).remove(0);
    let subject = lost["trust"]["subject"].as_str().unwrap();
    assert!(
        subject.starts_with("bank/look|url=") && lost["message"].as_str().unwrap().contains(" at "),
        "{lost}"
    );
    lose_trust(&gateway, "http");
    let mut events = gateway.listen("?event=notification");
    let refused = gateway.call(&envelope("http/look", &json!({ "id": "asked", "token": "s3cr3t-s3cr3t" })));
    assert_eq!(refused.code(), "approval_required");
    let notification = taken(&gateway, "approval_requested", 1).remove(0);
    let number = notification["approval"]["id"].as_u64().unwrap();
    let message = notification["message"].as_str().unwrap();
    assert!(
        message.contains("http/look") && message.contains(&format!("steadfast approve {number}")),
        "{notification}"
    );
    let event = events.any();
    assert_eq!(
        (&event["notification"], &event["message"]),
        (&json!("approval_requested"), &json!(message)),
        "{event}"
    );
    assert!(
        notification["approval"]["expiresMs"].is_u64() && notification["requestId"].is_string(),
        "{notification}"
    );
    // A repeated request for approval causes no other notification.
    gateway.call(&envelope("http/look", &json!({ "id": "asked", "token": "s3cr3t-s3cr3t" })));

    let lost: ApiTestResponse =
        gateway.call(&envelope("http/pay", &json!({ "id": "lost", "fault": "close" })));
    assert_eq!(lost.code(), "outcome_unknown", "{}", lost.body);
    let unknown = taken(&gateway, "outcome_unknown", 1).remove(0);
    let key = unknown["key"].as_str().unwrap();
    let message = unknown["message"].as_str().unwrap();
    assert!(
        message.contains("http/pay") && message.contains(&format!("steadfast resolve {key}")),
        "{unknown}"
    );
    wait(|| sent(&gateway, "chat").len() == 1, || format!("{:?}", sent(&gateway, "chat")));
    assert_eq!(body(&sent(&gateway, "chat")[0]), json!({ "text": message }), "as Slack takes it");
    // The command in the message resolves it.
    let output = gateway.run(&["resolve", key, "--ran"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(taken(&gateway, "approval_requested", 1).len(), 1);
    let all: String = sent(&gateway, "ops").iter().map(|request| request.body.as_str()).collect();
    let logged = format!("{:?}", gateway.logged("notification"));
    for text in [all, logged] {
        assert!(!text.contains("s3cr3t") && !text.contains(TOKEN), "{text}");
    }
}

#[test]
fn rp_8_changes_of_another_process_are_events_here_and_its_webhooks_are_sent_there() {
    let mut gateway = ApiGateway::new("notify_elsewhere", &with_receivers(STRICT));
    let own = format!("[notify.second]\nurl = \"http://{}/second\"\n", gateway.service.address);
    fs::write(gateway.folder.join("second.toml"), own).unwrap();
    let mut command = gateway.command(&["serve", "--config", "steadfast.toml", "--config", "second.toml"]);
    let log = fs::File::create(gateway.folder.join("second log")).unwrap();
    let (_second, address) = start_gateway(command.args(LISTEN).stderr(log));
    let first = std::mem::replace(&mut gateway.address, address);
    let mut client = McpTestClient::at(address);
    client.initialize();
    client.request("logging/setLevel", json!({ "level": "warning" }));
    client.listen();
    let mut events = gateway.listen("?event=notification");

    gateway.address = first;
    lose_trust(&gateway, "http");
    let lost = events.any();
    assert_eq!(
        (&lost["notification"], &lost["toolNamespace"], &lost["trustState"], &lost["reason"]),
        (&json!("trust_changed"), &json!("http"), &json!("ESCALATED"), &json!("2 failures in 1 h")),
        "{lost}"
    );
    let notification = client.next_notification("notifications/message");
    let trust = &notification["params"]["data"]["trust"];
    assert_eq!((&trust["from"], &trust["to"]), (&json!("trusted"), &json!("escalated")), "{notification}");
    assert!(trust["untilMs"].is_u64(), "{notification}");
    let refused = gateway.call(&envelope("http/look", &json!({ "id": "asked" })));
    assert_eq!(refused.code(), "approval_required");
    let notification = events.any();
    assert_eq!(notification["notification"], "approval_requested", "{notification}");
    gateway.post_as_operator("POST /v1/trust/http%2Flook/reset", &Value::Null);
    let forgiven = events.any();
    assert_eq!(
        (&forgiven["notification"], &forgiven["trustState"]),
        (&json!("trust_changed"), &json!("TRUSTED"))
    );

    // The second process sends its own notifications, and no others.
    gateway.address = address;
    lose_trust(&gateway, "command");
    assert_eq!(events.any()["toolNamespace"], "command");
    // In the order of the events.
    wait(|| !sent(&gateway, "second").is_empty(), || "the webhook of the second".to_owned());
    let first = body(&sent(&gateway, "second")[0]);
    assert_eq!((&first["event"], &first["tool"]["namespace"]), (&json!("trust_changed"), &json!("command")));
}
