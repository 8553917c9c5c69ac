//! A client that speaks MCP over the standard streams of a command, and knows nothing of a gateway.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

pub(crate) struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    incoming: Receiver<Value>,
    next: u64,
    /// What came while something else was waited for.
    pub(crate) heard: Vec<Value>,
}

/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(30);

impl Client {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, incoming) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let message = serde_json::from_str(&line).expect("every line is a message");
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        Self { child, stdin, incoming, next: 1, heard: Vec::new() }
    }

    pub(crate) fn initialize(&mut self) -> Value {
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": { "name": "tests", "version": "1" },
        });
        let answer = self.request("initialize", params);
        self.tell("notifications/initialized", json!({}));
        answer
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        self.answer(id)
    }

    /// Sends a request; gives its id.
    pub(crate) fn send(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next;
        self.next += 1;
        self.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string());
        id
    }

    pub(crate) fn tell(&mut self, method: &str, params: Value) {
        self.say(&json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string());
    }

    pub(crate) fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("the client has not hung up");
        stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
        stdin.flush().unwrap();
    }

    /// The answer to the request of this id.
    pub(crate) fn answer(&mut self, id: u64) -> Value {
        let is_it = |message: &Value| message["id"] == id && message.get("method").is_none();
        if let Some(at) = self.heard.iter().position(is_it) {
            return self.heard.remove(at);
        }
        loop {
            let message = self.next();
            if is_it(&message) {
                return message;
            }
            self.heard.push(message);
        }
    }

    /// The next message of any kind.
    pub(crate) fn next(&mut self) -> Value {
        self.incoming.recv_timeout(PATIENCE).expect("an answer within the time")
    }

    pub(crate) fn call(&mut self, tool: &str, arguments: Value) -> Said {
        let id = self.send_call(tool, arguments);
        Said::of(&self.answer(id))
    }

    pub(crate) fn send_call(&mut self, tool: &str, arguments: Value) -> u64 {
        self.send("tools/call", json!({ "name": tool, "arguments": arguments }))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Closes what the program reads, and waits for its end.
    pub(crate) fn hang_up(mut self) -> ExitStatus {
        self.stdin = None;
        self.ended()
    }

    /// Waits for the end of the program.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        crate::world::wait(
            || {
                status = self.child.try_wait().unwrap();
                status.is_some()
            },
            || "the end of the gateway".to_owned(),
        );
        status.unwrap()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a call was answered with.
#[derive(Debug)]
pub(crate) struct Said {
    /// All its texts.
    pub(crate) text: String,
    pub(crate) is_error: bool,
    /// The code, where the gateway says something.
    pub(crate) code: Option<String>,
    pub(crate) from_cache: bool,
}

impl Said {
    pub(crate) fn of(message: &Value) -> Self {
        let result = &message["result"];
        let ours = &result["_meta"]["dev.steadfast/result"];
        let blocks = result["content"].as_array().map(Vec::as_slice).unwrap_or_default();
        let texts: Vec<_> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
        Self {
            text: texts.join("\n"),
            is_error: result["isError"] == true || message.get("error").is_some(),
            code: ours["error"]["code"].as_str().map(str::to_owned),
            from_cache: ours["fromCache"] == true,
        }
    }
}
