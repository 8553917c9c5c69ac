//! The same conversation with a bare server and through the gateway, compared message by message.

use std::fs;
use std::path::Path;
use std::thread;

use serde_json::{Value, json};

use super::conversation::{RecordedAnswer, RecordingClient};
use super::{RealServer, RealServerFolder, ServerRoute};

/// Holds the conversation both ways and compares everything that the client receives. The server and the conversation
/// get a folder for their data, one for each way.
pub(crate) fn assert_same(
    test: &str,
    server: impl Fn(&Path) -> RealServer + Sync,
    conversation: impl Fn(&mut RecordingClient, &Path) + Sync,
) {
    let place = RealServerFolder::new(test, CONFIG);
    let hold = |route| {
        let data = place.folder().join(format!("{route:?}"));
        fs::create_dir(&data).unwrap();
        let mut talk = RecordingClient::start(server(&data).command(&place, route));
        conversation(&mut talk, &data);
        NormalizedTranscript::of(&talk, &data, route)
    };
    let (bare, through) = thread::scope(|scope| {
        let bare = scope.spawn(|| hold(ServerRoute::Bare));
        let through = hold(ServerRoute::Through);
        (bare.join().expect("the conversation with the bare server"), through)
    });
    let differences = through.differences(&bare);
    assert!(differences.is_empty(), "{} differences\n\n{}", differences.len(), differences.join("\n\n"));
}

/// The messages that a client received, without the parts that differ from run to run.
struct NormalizedTranscript {
    answers: Vec<RecordedAnswer>,
    server_messages: Vec<Value>,
}

impl NormalizedTranscript {
    fn of(talk: &RecordingClient, data: &Path, route: ServerRoute) -> Self {
        let comparable = |message: &Value| {
            let mut message = message.clone();
            if let Some(members) = message.as_object_mut() {
                members.remove("id");
            }
            // A cancelled request is one that the client knows: its number in the order.
            if message["method"] == "notifications/cancelled" {
                let id = &message["params"]["requestId"];
                message["params"]["requestId"] =
                    json!(talk.server_messages.iter().position(|earlier| earlier.get("id") == Some(id)));
            }
            without_logging(&mut message);
            if route == ServerRoute::Through {
                remove_gateway_parts(&mut message);
            }
            mask_changing_parts(&mut message, &data.display().to_string());
            message
        };
        let answers = talk
            .answers
            .iter()
            .map(|answer| RecordedAnswer { message: comparable(&answer.message), ..answer.clone() });
        Self {
            answers: answers.collect(),
            server_messages: talk.server_messages.iter().map(comparable).collect(),
        }
    }

    fn differences(&self, bare: &Self) -> Vec<String> {
        let mut found = Vec::new();
        for (actual, expected) in self.answers.iter().zip(&bare.answers) {
            if actual.message != expected.message {
                let (bare, through) = (&expected.message, &actual.message);
                found.push(format!("answer to {}\n  bare:    {bare}\n  through: {through}", expected.to));
            }
            if actual.messages_before < expected.messages_before {
                found.push(format!("the answer to {} came before what was told before it", expected.to));
            }
        }
        if self.answers.len() != bare.answers.len() {
            found.push(format!("{} answers bare, {} through", bare.answers.len(), self.answers.len()));
        }
        for at in 0..self.server_messages.len().max(bare.server_messages.len()) {
            let (bare, through) = (bare.server_messages.get(at), self.server_messages.get(at));
            if bare != through {
                let shown = |message: Option<&Value>| message.map_or("nothing".into(), Value::to_string);
                found.push(format!(
                    "told as number {at}\n  bare:    {}\n  through: {}",
                    shown(bare),
                    shown(through)
                ));
            }
        }
        found
    }
}

// ---- intended differences ----

/// By default, equal calls without a key within 20 ms are one call that was dispatched twice, and run once. A program's
/// conversation is that fast.
const CONFIG: &str = "[tools.\"real/*\"]\ndedupe.double_dispatch = false\n";

/// Removes the gateway's additions, and nothing else. All of them are listed here.
fn remove_gateway_parts(message: &mut Value) {
    // Its mark for programs: the answer is that of another call.
    if let Some(meta) = message.pointer_mut("/result/_meta").and_then(Value::as_object_mut) {
        let before = meta.len();
        meta.retain(|name, _| !name.starts_with("dev.steadfast/"));
        if meta.is_empty() && before > 0 {
            message["result"].as_object_mut().expect("it has members").remove("_meta");
        }
    }
    // The guard's remark for a model whose call was refused as malformed: a block after the server's own, or text after
    // that of an error.
    if message["result"]["isError"] == true
        && let Some(blocks) = message.pointer_mut("/result/content").and_then(Value::as_array_mut)
    {
        blocks.retain(|block| !block["text"].as_str().is_some_and(is_remark));
    }
    if let Some(Value::String(words)) = message.pointer_mut("/error/message")
        && let Some((server_text, remark)) = words.split_once("\n\n[")
        && is_remark(&format!("[{remark}"))
    {
        *words = server_text.to_owned();
    }
}

/// The gateway has log messages of its own, so every handshake through it announces logging.
fn without_logging(message: &mut Value) {
    if message["result"]["protocolVersion"].is_string()
        && let Some(capabilities) = message.pointer_mut("/result/capabilities").and_then(Value::as_object_mut)
        && capabilities.get("logging") == Some(&json!({}))
    {
        capabilities.remove("logging");
    }
}

fn is_remark(text: &str) -> bool {
    ["[NON-RETRYABLE] ", "[LOOP DETECTED] ", "[TOOL ERROR LIMIT] "].iter().any(|mark| text.starts_with(mark))
}

// ---- parts that differ from run to run ----

/// Returns true if this is a line of the everything server's random log. One of its eight levels is written
/// differently.
pub(super) fn is_line_of_the_log(words: &str) -> bool {
    words.contains("level message") || words.contains("level-message")
}

/// Replaces everything that differs from run to run: random names, times, folders.
fn mask_changing_parts(value: &mut Value, data: &str) {
    match value {
        Value::Object(members) => {
            // The level is random, and with it the text.
            if members.get("data").and_then(Value::as_str).is_some_and(is_line_of_the_log) {
                members.insert("level".to_owned(), json!("<drawn>"));
                members.insert("data".to_owned(), json!("<drawn>"));
            }
            for (name, value) in members {
                match name.as_str() {
                    "taskId" | "elicitationId" | "requestState" | "createdAt" | "lastUpdatedAt" => {
                        *value = json!(format!("<{name}>"))
                    }
                    _ => mask_changing_parts(value, data),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| mask_changing_parts(value, data)),
        Value::String(text) => *text = lasting(&text.replace(data, "<data>")),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn lasting(text: &str) -> String {
    let line = |line: &str| {
        for begin in ["created: ", "modified: ", "accessed: ", "Elicitation ID: ", "Task created: "] {
            if line.starts_with(begin) {
                return format!("{begin}<…>");
            }
        }
        // In text, and in the bytes of a resource.
        for before in [" created at ", "IGNyZWF0ZWQgYXQg"] {
            if let Some((begin, _)) = line.split_once(before) {
                return format!("{begin}{before}<…>");
            }
        }
        line.to_owned()
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript(message: Value, server_messages: &[Value]) -> NormalizedTranscript {
        let answer = RecordedAnswer { to: "x".to_owned(), message, messages_before: server_messages.len() };
        NormalizedTranscript { answers: vec![answer], server_messages: server_messages.to_vec() }
    }

    #[test]
    fn a_field_that_is_lost_a_message_that_is_missing_and_one_that_is_late_are_found() {
        let bare = transcript(json!({ "result": { "a": 1, "execution": {} } }), &[json!({ "method": "m" })]);
        assert_eq!(
            transcript(json!({ "result": { "a": 1 } }), &bare.server_messages).differences(&bare).len(),
            1
        );
        let silent = transcript(bare.answers[0].message.clone(), &[]);
        assert_eq!(silent.differences(&bare).len(), 2, "missing, and so not before the answer");
        let late = NormalizedTranscript { server_messages: bare.server_messages.clone(), ..silent };
        assert_eq!(late.differences(&bare).len(), 1);
        assert!(bare.differences(&bare).is_empty());
    }

    #[test]
    fn only_the_parts_of_the_gateway_are_removed() {
        let mut message = json!({ "result": {
            "isError": true,
            "content": [{ "type": "text", "text": "no" }, { "type": "text", "text": "[NON-RETRYABLE] never" }],
            "_meta": { "dev.steadfast/result": {} },
        } });
        remove_gateway_parts(&mut message);
        let left = json!({ "result": { "isError": true, "content": [{ "type": "text", "text": "no" }] } });
        assert_eq!(message, left);
        let mut server_result =
            json!({ "result": { "_meta": {}, "content": [{ "text": "[NON-RETRYABLE] it says" }] } });
        let before = server_result.clone();
        remove_gateway_parts(&mut server_result);
        assert_eq!(server_result, before, "a result that is no error carries no remark of ours");
        let mut error = json!({ "error": { "code": -1, "message": "no\n\n[NON-RETRYABLE] never" } });
        remove_gateway_parts(&mut error);
        assert_eq!(error["error"]["message"], "no");
    }
}
