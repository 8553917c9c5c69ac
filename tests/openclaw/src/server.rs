//! An MCP server over stdio for tests. Each call of a tool is a line in the file that is its first argument.

use std::fs::OpenOptions;
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use std::{env, fs, thread};

use serde_json::{Value, json};

fn main() -> ExitCode {
    let Some(ledger) = env::args().nth(1) else {
        eprintln!("usage: steadfast-openclaw-server LEDGER");
        return ExitCode::FAILURE;
    };
    let server = TestServer { ledger };
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
        if let Some(response) = server.handle(&message) {
            let mut stdout = io::stdout().lock();
            if writeln!(stdout, "{response}").and_then(|()| stdout.flush()).is_err() {
                break;
            }
        }
    }
    ExitCode::SUCCESS
}

struct TestServer {
    ledger: String,
}

impl TestServer {
    fn handle(&self, message: &Value) -> Option<Value> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let result = match message["method"].as_str()? {
            "initialize" => json!({
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": { "tools": {} },
                "serverInfo": { "name": "test", "version": "1" },
            }),
            "ping" => json!({}),
            "tools/list" => json!({ "tools": tools() }),
            "tools/call" => {
                let params = &message["params"];
                self.call(&text(&params["name"]), &params["arguments"])?
            }
            "notifications/cancelled" => {
                self.record("cancelled", &json!({}));
                return None;
            }
            _ => return None,
        };
        Some(json!({ "jsonrpc": "2.0", "id": message.get("id")?, "result": result }))
    }

    /// Runs a tool. A tool that hangs has no result.
    fn call(&self, tool: &str, arguments: &Value) -> Option<Value> {
        let before = self.count(tool, arguments);
        self.record(tool, arguments);
        match tool {
            "pay" => Some(answer(&format!("paid {}", arguments["amount"]))),
            "order" => Some(answer(&format!("ordered {}", arguments["number"].as_str().unwrap_or_default()))),
            "echo" => Some(answer(arguments["text"].as_str().unwrap_or_default())),
            "flaky" if before < arguments["failures"].as_u64().unwrap_or(1) => {
                Some(error("503 Service Unavailable: try again"))
            }
            "flaky" => Some(answer("recovered")),
            "status" if before < arguments["pending"].as_u64().unwrap_or(0) => Some(answer("pending")),
            "status" => Some(answer("done")),
            "fail" => Some(error(arguments["message"].as_str().unwrap_or("no such account"))),
            "unstable" => Some(error("503 Service Unavailable")),
            "gate" => {
                self.wait_for_gate(arguments["id"].as_str().unwrap_or_default());
                Some(answer("open"))
            }
            "hang" => None,
            _ => Some(error("no such tool")),
        }
    }

    /// Waits until the test opens the gate, by a file.
    fn wait_for_gate(&self, id: &str) {
        while !Path::new(&format!("{}-{id}", self.ledger)).exists() {
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn record(&self, tool: &str, arguments: &Value) {
        let line = format!("{tool} {arguments}\n");
        let file = OpenOptions::new().create(true).append(true).open(&self.ledger);
        if let Err(problem) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            eprintln!("cannot write {}: {problem}", self.ledger);
        }
    }

    /// Returns the number of earlier calls with the same arguments, by any process.
    fn count(&self, tool: &str, arguments: &Value) -> u64 {
        let line = format!("{tool} {arguments}");
        let text = fs::read_to_string(&self.ledger).unwrap_or_default();
        text.lines().filter(|known| *known == line).map(|_| 1).sum()
    }
}

fn answer(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

fn error(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }], "isError": true })
}

fn tools() -> Value {
    let tool = |name: &str, properties: Value, required: &[&str]| {
        let schema = json!({ "type": "object", "properties": properties, "required": required });
        json!({ "name": name, "description": format!("{name}, for tests"), "inputSchema": schema })
    };
    let text = json!({ "type": "string" });
    let number = json!({ "type": "number" });
    json!([
        tool("pay", json!({ "to": text, "amount": number }), &["to", "amount"]),
        tool("order", json!({ "number": text }), &["number"]),
        tool("echo", json!({ "text": text }), &["text"]),
        tool("flaky", json!({ "id": text, "failures": number }), &["id"]),
        tool("status", json!({ "id": text, "pending": number }), &["id"]),
        tool("fail", json!({ "id": text, "message": text }), &["id"]),
        tool("unstable", json!({ "id": text }), &["id"]),
        tool("gate", json!({ "id": text }), &["id"]),
        tool("hang", json!({ "id": text }), &["id"]),
    ])
}
