//! An MCP server on stdio that counts what it does and misbehaves when it is told to.
//!
//! Everything that happens is a line of the ledger, a file whose path is the only argument: `start PID`, `initialize`,
//! `pay ID`, `look ID`, `cancelled`, `stdin closed`. Both tools take
//! `{"id": …, "fault": …, "times": …, "size": …}`: the fault shows in the first `times` runs with this id (always,
//! without), and the effect is in the ledger before it, except for `die_before`.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a server of tests says what is wrong by ending"
)]

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead as _, Write as _};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

fn main() {
    let ledger = std::env::args().nth(1).unwrap();
    note(&ledger, &format!("start {}", std::process::id()));
    for line in io::stdin().lock().lines() {
        let Ok(message) = serde_json::from_str::<Value>(&line.unwrap()) else { continue };
        let ledger = ledger.clone();
        // A call that hangs is in nobody's way.
        thread::spawn(move || received(&ledger, &message));
    }
    note(&ledger, "stdin closed");
}

fn received(ledger: &str, message: &Value) {
    let (id, params) = (&message["id"], &message["params"]);
    let result = match message["method"].as_str() {
        Some("initialize") => {
            note(ledger, "initialize");
            json!({
                "protocolVersion": params["protocolVersion"],
                "capabilities": { "tools": { "listChanged": true } },
                "serverInfo": { "name": "test", "version": "1" },
            })
        }
        Some("tools/list") => json!({ "tools": tools() }),
        Some("tools/call") => match called(ledger, params) {
            Some(result) => result,
            None => return,
        },
        Some("notifications/cancelled") => return note(ledger, "cancelled"),
        Some("test/echo") => json!({ "params": params }),
        Some(method) if !id.is_null() => {
            let error =
                json!({ "code": -32601, "message": format!("no method {method}"), "data": { "a": 1 } });
            return say(&json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string());
        }
        Some(_) | None => return,
    };
    say(&json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string());
}

fn tools() -> Value {
    let tool = |name: &str, annotations: Value| {
        let schema =
            json!({ "type": "object", "properties": { "id": { "type": "string" } }, "required": ["id"] });
        json!({ "name": name, "inputSchema": schema, "annotations": annotations, "vendor": { "kept": true } })
    };
    json!([
        tool("pay", json!({ "readOnlyHint": false, "destructiveHint": true })),
        tool("look", json!({ "readOnlyHint": true })),
    ])
}

/// The result of a call; nothing if it gets none.
fn called(ledger: &str, params: &Value) -> Option<Value> {
    let (tool, arguments) = (params["name"].as_str().unwrap_or(""), &params["arguments"]);
    if !["pay", "look"].contains(&tool) {
        return Some(failed(&format!("Unknown tool: {tool}")));
    }
    let Some(id) = arguments["id"].as_str() else {
        note(ledger, &format!("refused {tool}"));
        return Some(failed("Invalid arguments: missing required property 'id'"));
    };
    let did = format!("{tool} {id}");
    let before = fs::read_to_string(ledger).unwrap().lines().filter(|line| **line == did).count();
    let shows = arguments["times"].as_u64().is_none_or(|times| u64::try_from(before).unwrap() < times);
    let fault = arguments["fault"].as_str().filter(|_| shows).unwrap_or("");
    if fault == "die_before" {
        note(ledger, &did);
        std::process::exit(3);
    }
    note(ledger, &did);
    let size = usize::try_from(arguments["size"].as_u64().unwrap_or(0)).unwrap();
    match fault {
        "die_after" => std::process::exit(4),
        "hang" => return None,
        "slow" => thread::sleep(Duration::from_millis(arguments["size"].as_u64().unwrap())),
        "progress" => {
            for step in 0..size {
                let params = json!({ "progressToken": params["_meta"]["progressToken"], "progress": step });
                say(&json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params })
                    .to_string());
                thread::sleep(Duration::from_millis(100));
            }
        }
        "garbage" => say("this is no message {"),
        "half_line" => {
            print!("{{\"jsonrpc\":\"2.0\",\"id\":");
            io::stdout().flush().unwrap();
            std::process::exit(5);
        }
        "flood" => {
            for number in 0..size {
                let params = json!({ "level": "info", "data": number });
                say(&json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params })
                    .to_string());
            }
        }
        "long_line" => return Some(json!({ "content": [{ "type": "text", "text": "x".repeat(size) }] })),
        "error" => return Some(failed("HTTP 503 Service Unavailable")),
        _ => {}
    }
    Some(json!({ "content": [{ "type": "text", "text": format!("{did}, run {}", before + 1) }] }))
}

fn failed(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }], "isError": true })
}

fn say(line: &str) {
    let mut out = io::stdout().lock();
    // Whoever does not read any more is about to end us.
    let _ = out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush());
}

fn note(ledger: &str, line: &str) {
    let mut file = OpenOptions::new().create(true).append(true).open(ledger).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}
