//! A conversation with a server that records everything that the client receives.

use std::process::Command;

use serde_json::{Value, json};

use super::line::ServerLine;
use super::parity::is_line_of_the_log;

/// A client that answers the server's requests, and records all messages that it receives.
pub(crate) struct RecordingClient {
    line: ServerLine,
    next: u64,
    /// The client fields of every request, in the era without a handshake.
    about: Option<Value>,
    /// Requests and notifications of the server, in order.
    pub(crate) server_messages: Vec<Value>,
    /// The answers, in the order of their requests.
    pub(crate) answers: Vec<RecordedAnswer>,
}

/// An answer of the server.
#[derive(Clone, Debug)]
pub(crate) struct RecordedAnswer {
    /// The request.
    pub(crate) to: String,
    pub(crate) message: Value,
    /// Number of requests and notifications before it.
    pub(crate) messages_before: usize,
}

/// Returns the capabilities of a client that can do everything.
pub(crate) fn everything() -> Value {
    json!({
        "sampling": {},
        "elicitation": { "form": {}, "url": {} },
        "roots": { "listChanged": true },
        "tasks": {
            "list": {},
            "cancel": {},
            "requests": { "sampling": { "createMessage": {} }, "elicitation": { "create": {} } },
        },
        "experimental": { "vendor/thing": { "on": true } },
    })
}

impl RecordingClient {
    pub(crate) fn start(command: Command) -> Self {
        let line = ServerLine::start(command);
        Self { line, next: 0, about: None, server_messages: Vec::new(), answers: Vec::new() }
    }

    pub(crate) fn initialize(&mut self, capabilities: Value) {
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": capabilities,
            "clientInfo": { "name": "tests", "version": "1", "title": "Tests" },
        });
        self.request("initialize", params);
        self.notify("notifications/initialized", json!({}));
    }

    /// Switches to the newer era: each request names its client.
    pub(crate) fn without_handshake(&mut self, capabilities: Value) {
        self.about = Some(json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": capabilities,
            "io.modelcontextprotocol/clientInfo": { "name": "tests", "version": "1" },
        }));
    }

    /// Sends a request, and returns its result or error.
    pub(crate) fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params.clone());
        self.answer(&id, &format!("{method} {params}"))
    }

    pub(crate) fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.request("tools/call", json!({ "name": tool, "arguments": arguments }))
    }

    /// Sends a request with an id that is sometimes a number and sometimes a text.
    pub(crate) fn send(&mut self, method: &str, mut params: Value) -> Value {
        for (name, value) in self.about.iter().flat_map(|about| about.as_object()).flatten() {
            params["_meta"][name] = value.clone();
        }
        self.next += 1;
        let id = if self.next.is_multiple_of(2) {
            json!(self.next)
        } else {
            json!(format!("client-{}", self.next))
        };
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.line.send(&request);
        id
    }

    pub(crate) fn notify(&mut self, method: &str, params: Value) {
        self.line.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    /// Waits for the answer to the request with this id.
    pub(crate) fn answer(&mut self, id: &Value, description: &str) -> Value {
        loop {
            if let Some(message) = self.receive(description) {
                assert_eq!(message["id"], *id, "an answer to something else than {description}: {message}");
                let messages_before = self.server_messages.len();
                self.answers.push(RecordedAnswer {
                    to: description.to_owned(),
                    message: message.clone(),
                    messages_before,
                });
                return message.get("result").or_else(|| message.get("error")).cloned().unwrap_or_default();
            }
        }
    }

    /// Waits until the server has sent this many such messages.
    pub(crate) fn until(&mut self, description: &str, times: usize, is: impl Fn(&Value) -> bool) {
        while self.server_messages.iter().filter(|message| is(message)).count() < times {
            let answer = self.receive(description);
            assert_eq!(answer, None, "an answer to nothing, while waiting for {description}");
        }
    }

    /// Returns true if this repeats a message that comes every few seconds. The number of repetitions until the server
    /// stops depends on the speed of the machine, and not on the server.
    fn is_already_recorded(&self, message: &Value) -> bool {
        is_repeated(message)
            && self
                .server_messages
                .iter()
                .any(|earlier| is_repeated(earlier) && earlier["method"] == message["method"])
    }

    /// Receives one message, and returns it if it is an answer.
    fn receive(&mut self, description: &str) -> Option<Value> {
        let message = self.line.receive(description);
        let Some(method) = message["method"].as_str() else { return Some(message) };
        if let Some(id) = message.get("id")
            && message["params"]["message"] != "never mind"
        {
            let mut answer = reply(method, &message["params"]);
            answer["jsonrpc"] = json!("2.0");
            answer["id"] = id.clone();
            self.line.send(&answer);
        }
        if !self.is_already_recorded(&message) {
            self.server_messages.push(message);
        }
        None
    }
}

/// Returns true for messages that a server repeats every few seconds until it is stopped.
fn is_repeated(message: &Value) -> bool {
    message["method"] == "notifications/resources/updated"
        || is_line_of_the_log(&message["params"]["data"].to_string())
}

/// Returns the client's answer to a request of the server.
fn reply(method: &str, params: &Value) -> Value {
    let result = match method {
        "ping" => json!({}),
        "roots/list" => json!({ "roots": [{ "uri": "file:///somewhere", "name": "somewhere", "x-own": 1 }] }),
        "sampling/createMessage" if params.to_string().contains("refuse this") => {
            return json!({ "error": { "code": -1, "message": "the user refused", "data": { "why": [1] } } });
        }
        "sampling/createMessage" => json!({
            "role": "assistant",
            "content": { "type": "text", "text": "words", "x-own": 1.50 },
            "model": "none",
            "stopReason": "endTurn",
        }),
        "elicitation/create" if params["mode"] == "url" => json!({ "action": "accept" }),
        "elicitation/create" => {
            json!({ "action": "accept", "content": { "name": "Ada", "interpretation": "snake" } })
        }
        other => return json!({ "error": { "code": -32601, "message": format!("no {other} here") } }),
    };
    json!({ "result": result })
}
