//! An MCP server that counts its effects and misbehaves on request. It runs on stdio, or, with `--listening` as the
//! second argument, over HTTP on the socket that is its stdin. With `--modern` as the last argument it uses the modern
//! era, otherwise the older one. With `--run` and the name of a tool it is not a server but that tool, as a command
//! that runs once.
//!
//! Every event is a line of the ledger, a file whose path is the first argument: `start PID`, `initialize`, `pay ID`,
//! `look ID`, `ask ID`, `heard ID NAME`, `level LEVEL`, `resources/subscribe URI`, `cancelled`, `stdin closed`. All
//! listed tools take `{"id": …, "fault": …, "times": …, "size": …}`: the fault occurs in the first `times` runs with
//! this id (always, without `times`), and the effect is in the ledger before it. Some faults take more fields: `text`
//! is the message of an error, `code` its number, `lines` what is written verbatim (`$ID` is the id of the request,
//! `hex:` begins bytes). Over HTTP, `body` answers with the status, the content type and the text of these names
//! instead of a stream. `gate` waits until there is no file `LEDGER.gate`. `huge` answers with a text of `size` bytes,
//! with its id first, or where `text` says: `last`, `nowhere`, or as a whole `body` of HTTP. `pulse` reports progress
//! until then. `stderr` writes the text to stderr. `ask` takes `{"id": …, "times": …}`, takes effect, and asks its
//! client for a name this many times before it answers. `tell` sends the messages that servers send unasked. These two
//! tools are not listed.
//!
//! Files beside the ledger change its behavior while they exist: with `LEDGER.slow` it lists nothing, with
//! `LEDGER.lists` its ledger records requests for its tools, with `LEDGER.pages` its list has a second page that fails,
//! with `LEDGER.deaf` it accepts no notification over HTTP. `LEDGER.names` contains the names of more tools, one per
//! line, and `LEDGER.required` those of more arguments that its tools require. `LEDGER.handshake` contains the status
//! with which every handshake over HTTP is refused.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a server of tests says what is wrong by ending"
)]

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead as _, Write as _};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

mod http;
mod modern;

/// Questions that wait for the client, by id.
static QUESTIONS: Mutex<Option<HashMap<String, mpsc::Sender<Value>>>> = Mutex::new(None);

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--modern");
    let ledger = arguments.next().unwrap();
    note(&ledger, &format!("start {}", std::process::id()));
    match (arguments.next(), arguments.next()) {
        (Some(_), Some(tool)) => return run(&ledger, &tool),
        (Some(_), None) => return http::serve(&ledger),
        (None, _) => {}
    }
    for line in io::stdin().lock().lines() {
        let Ok(message) = serde_json::from_str::<Value>(&line.unwrap()) else { continue };
        let ledger = ledger.clone();
        // A call that hangs must not block others.
        thread::spawn(move || received(&ledger, &message, &AnswerOutput::Line));
    }
    note(&ledger, "stdin closed");
}

/// Runs a tool once, as a command: its arguments come from stdin, its answer goes to stdout, and its errors to stderr.
fn run(ledger: &str, tool: &str) {
    let arguments: Value = serde_json::from_reader(io::stdin()).unwrap();
    let Some(result) =
        called(ledger, &Value::Null, &json!({ "name": tool, "arguments": arguments }), &AnswerOutput::Line)
    else {
        return;
    };
    let text = &result["content"][0]["text"];
    if result["isError"] == true {
        eprintln!("{}", text.as_str().unwrap());
        std::process::exit(1);
    }
    println!("{text}");
}

/// The output for answers.
enum AnswerOutput {
    Line,
    Http(Mutex<http::HttpAnswer>),
}

impl AnswerOutput {
    fn send(&self, message: &Value) {
        match self {
            Self::Line => write_line(message.to_string().as_bytes()),
            Self::Http(answer) => answer.lock().unwrap().event(message.to_string().as_bytes()),
        }
    }

    /// Writes something that is not a message, or only a part of one.
    fn write_fragment(&self, text: &str) {
        match self {
            Self::Line => {
                print!("{text}");
                io::stdout().flush().unwrap();
            }
            Self::Http(answer) => answer.lock().unwrap().event(text.as_bytes()),
        }
    }

    /// Writes a line with any content.
    fn write(&self, line: &[u8]) {
        match self {
            Self::Line => write_line(line),
            Self::Http(answer) => answer.lock().unwrap().event(line),
        }
    }
}

fn received(ledger: &str, message: &Value, out: &AnswerOutput) {
    let (id, params) = (&message["id"], &message["params"]);
    if modern::is_era() {
        if let Some(answer) = modern::answer(ledger, message, out) {
            out.send(&answer);
        }
        return;
    }
    let result = match message["method"].as_str() {
        Some("initialize") => {
            note(ledger, "initialize");
            json!({
                "protocolVersion": params["protocolVersion"],
                "capabilities": {
                    "tools": { "listChanged": true },
                    "resources": { "subscribe": true },
                    "logging": {},
                },
                "serverInfo": { "name": "test", "version": "1" },
            })
        }
        Some("tools/list") => {
            if has(ledger, "lists") {
                note(ledger, "tools/list");
            }
            wait_for(ledger, "slow");
            match (has(ledger, "pages"), &params["cursor"]) {
                (false, _) => json!({ "tools": tools(ledger) }),
                (true, Value::Null) => json!({ "tools": tools(ledger), "nextCursor": "2" }),
                (true, _) => return fail(id, -32603, out),
            }
        }
        Some("tools/call") => match called(ledger, id, params, out) {
            Some(result) => result,
            None => return,
        },
        Some("notifications/cancelled") => return note(ledger, "cancelled"),
        Some("logging/setLevel") => {
            note(ledger, &format!("level {}", params["level"].as_str().unwrap()));
            json!({})
        }
        Some(method @ ("resources/subscribe" | "resources/unsubscribe")) => {
            note(ledger, &format!("{method} {}", params["uri"].as_str().unwrap()));
            json!({})
        }
        None => {
            let sender =
                QUESTIONS.lock().unwrap().as_mut().and_then(|questions| questions.remove(id.as_str()?));
            if let Some(sender) = sender {
                let _ = sender.send(message["result"].clone());
            }
            return;
        }
        Some("test/silence") => return,
        Some("test/fail") => {
            note(ledger, "fail");
            match params["code"].as_i64() {
                Some(code) => return fail(id, code, out),
                None => std::process::exit(6),
            }
        }
        Some("test/echo") => json!({ "params": params }),
        Some(method) if !id.is_null() => {
            let error =
                json!({ "code": -32601, "message": format!("no method {method}"), "data": { "a": 1 } });
            return out.send(&json!({ "jsonrpc": "2.0", "id": id, "error": error }));
        }
        Some(_) => return,
    };
    out.send(&json!({ "jsonrpc": "2.0", "id": id, "result": result }));
}

fn fail(id: &Value, code: i64, out: &AnswerOutput) {
    let error = json!({ "code": code, "message": "it went wrong" });
    out.send(&json!({ "jsonrpc": "2.0", "id": id, "error": error }));
}

/// Returns true if this file exists beside the ledger.
fn has(ledger: &str, name: &str) -> bool {
    fs::exists(format!("{ledger}.{name}")).unwrap()
}

/// Waits until the file is gone.
fn wait_for(ledger: &str, name: &str) {
    while has(ledger, name) {
        thread::sleep(Duration::from_millis(10));
    }
}

fn tools(ledger: &str) -> Value {
    let more = fs::read_to_string(format!("{ledger}.required")).unwrap_or_default();
    let required: Vec<&str> = ["id"].into_iter().chain(more.lines()).collect();
    let tool = |name: &str, annotations: Value| {
        let schema =
            json!({ "type": "object", "properties": { "id": { "type": "string" } }, "required": required });
        json!({ "name": name, "inputSchema": schema, "annotations": annotations, "vendor": { "kept": true } })
    };
    let known = [
        tool("pay", json!({ "readOnlyHint": false, "destructiveHint": true })),
        tool("look", json!({ "readOnlyHint": true })),
    ];
    // The class of these tools is unknown.
    let others = TOOLS.iter().skip(known.len()).map(|name| tool(name, json!({})));
    let more = names(ledger);
    let more = more.lines().map(|name| tool(name, json!({})));
    known.iter().cloned().chain(others).chain(more).collect()
}

/// Returns the names of additional tools.
fn names(ledger: &str) -> String {
    fs::read_to_string(format!("{ledger}.names")).unwrap_or_default()
}

const TOOLS: [&str; 6] = ["pay", "look", "draw", "fold", "send", "sort"];

/// Sends all messages that servers send unasked.
fn send_notifications(out: &AnswerOutput) -> Value {
    let notify = |method: &str, params: Value| {
        out.send(&json!({ "jsonrpc": "2.0", "method": format!("notifications/{method}"), "params": params }));
    };
    notify("message", json!({ "level": "debug", "data": "hardly worth a word" }));
    notify("message", json!({ "level": "warning", "data": "look out" }));
    notify("tools/list_changed", json!({}));
    notify("prompts/list_changed", json!({}));
    notify("resources/updated", json!({ "uri": "note://a" }));
    notify("resources/updated", json!({ "uri": "note://b" }));
    json!({ "content": [{ "type": "text", "text": "told" }] })
}

/// Returns the question to the client.
fn question() -> Value {
    let schema = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
    json!({ "message": "who?", "requestedSchema": schema })
}

/// Asks the client while the call runs, as in the older era.
fn ask(ledger: &str, params: &Value, out: &AnswerOutput) -> Value {
    let (id, times) = (params["arguments"]["id"].as_str().unwrap(), params["arguments"]["times"].as_u64());
    note(ledger, &format!("ask {id}"));
    let mut names = Vec::new();
    for round in 0..times.unwrap_or(1) {
        let question_id = format!("{id}-{round}");
        let (sender, answer) = mpsc::channel();
        QUESTIONS.lock().unwrap().get_or_insert_default().insert(question_id.clone(), sender);
        let request = json!({ "jsonrpc": "2.0", "id": question_id, "method": "elicitation/create", "params": question() });
        out.send(&request);
        let answer = answer.recv().unwrap();
        let name = answer["content"]["name"].as_str().unwrap_or("nobody").to_owned();
        note(ledger, &format!("heard {id} {name}"));
        names.push(name);
    }
    json!({ "content": [{ "type": "text", "text": format!("{id} is for {}", names.join(" and ")) }] })
}

/// Returns the result of a call. `None` if it gets none.
fn called(ledger: &str, id: &Value, params: &Value, out: &AnswerOutput) -> Option<Value> {
    let (tool, arguments) = (params["name"].as_str().unwrap_or(""), &params["arguments"]);
    match tool {
        "ask" => return Some(ask(ledger, params, out)),
        "tell" => return Some(send_notifications(out)),
        _ => {}
    }
    if !TOOLS.contains(&tool) && !names(ledger).lines().any(|name| name == tool) {
        return Some(failed(&format!("Unknown tool: {tool}")));
    }
    let Some(name) = arguments["id"].as_str() else {
        note(ledger, &format!("refused {tool}"));
        return Some(failed("Invalid arguments: missing required property 'id'"));
    };
    let operation = format!("{tool} {name}");
    let before = fs::read_to_string(ledger).unwrap().lines().filter(|line| **line == operation).count();
    let shows = arguments["times"].as_u64().is_none_or(|times| u64::try_from(before).unwrap() < times);
    let fault = arguments["fault"].as_str().filter(|_| shows).unwrap_or("");
    let (input_responses, state) = (&params["inputResponses"], &params["requestState"]);
    if input_responses.get("dev.steadfast/approval").is_some()
        || state.as_str().is_some_and(|s| s.starts_with("steadfast"))
    {
        note(ledger, "saw what is not for it");
    }
    if fault == "asks" && (input_responses.is_null() || state != "of the server") {
        note(ledger, &format!("asked {operation}"));
        let form = json!({ "mode": "form", "message": "who?", "requestedSchema": { "type": "object", "properties": {} } });
        return Some(json!({
            "resultType": "input_required",
            "inputRequests": { "who": { "method": "elicitation/create", "params": form } },
            "requestState": "of the server",
        }));
    }
    note(ledger, &operation);
    if let (AnswerOutput::Http(answer), Some((status, headers))) = (out, refusal(fault)) {
        answer.lock().unwrap().refuse(status, headers);
        return None;
    }
    let size = usize::try_from(arguments["size"].as_u64().unwrap_or(0)).unwrap();
    let text = arguments["text"].as_str();
    if let (AnswerOutput::Http(answer), "body") = (out, fault) {
        let head = ["status", "type"].map(|name| arguments[name].as_str().unwrap());
        answer.lock().unwrap().whole(head[0], head[1], &bytes(text.unwrap(), id));
        return None;
    }
    match fault {
        "die_after" => std::process::exit(4),
        // For ever, until the process ends.
        "hang" => loop {
            thread::park();
        },
        "gate" => {
            // A client that asked for progress learns that the call waits.
            if let Some(token) = params.pointer("/_meta/progressToken") {
                progress(token, 0, out);
            }
            wait_for(ledger, "gate");
        }
        "stderr" => eprintln!("{}", text.unwrap()),
        "slow" => thread::sleep(Duration::from_millis(arguments["size"].as_u64().unwrap())),
        "progress" => {
            for step in 0..size {
                progress(params.pointer("/_meta/progressToken").unwrap_or(&Value::Null), step, out);
            }
        }
        "pulse" => {
            let token = params.pointer("/_meta/progressToken").unwrap_or(&Value::Null);
            for step in 0.. {
                progress(token, step, out);
                thread::sleep(Duration::from_millis(50));
                if !has(ledger, "gate") {
                    break;
                }
            }
        }
        "garbage" => out.write_fragment("this is no message {\n"),
        "half_line" => {
            out.write_fragment("{\"jsonrpc\":\"2.0\",\"id\":");
            std::process::exit(5);
        }
        "flood" => {
            for number in 0..size {
                let params = json!({ "level": "info", "data": number });
                out.send(&json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params }));
            }
        }
        "huge" => {
            huge(size, text.unwrap_or("first"), id, out);
            return None;
        }
        "long_line" => return Some(json!({ "content": [{ "type": "text", "text": "x".repeat(size) }] })),
        "error" | "503" => return Some(failed(text.unwrap_or("HTTP 503 Service Unavailable"))),
        "400" => return Some(failed("HTTP 400 Bad Request")),
        "504" => return Some(failed("HTTP 504 Gateway Timeout")),
        "code" => {
            let error = json!({ "code": arguments["code"], "message": text, "data": { "a": [1] } });
            out.send(&json!({ "jsonrpc": "2.0", "id": id, "error": error }));
            return None;
        }
        "text" => return Some(json!({ "content": [{ "type": "text", "text": text }] })),
        "echo" => {
            return Some(json!({ "content": [{ "type": "text", "text": params.to_string() }] }));
        }
        "before" | "instead" => {
            for line in arguments["lines"].as_array().unwrap() {
                out.write(&bytes(line.as_str().unwrap(), id));
            }
            if fault == "instead" {
                return None;
            }
        }
        _ => {}
    }
    Some(json!({ "content": [{ "type": "text", "text": format!("{operation}, run {}", before + 1) }] }))
}

/// Sends an answer of this size, with its id at this place.
fn huge(size: usize, place: &str, id: &Value, out: &AnswerOutput) {
    let result = format!(r#"{{"content":[{{"type":"text","text":"{}"}}]}}"#, "x".repeat(size));
    let answer = match place {
        "last" => format!(r#"{{"result":{result},"jsonrpc":"2.0","id":{id}}}"#),
        "nowhere" => format!(r#"{{"jsonrpc":"2.0","result":{result}}}"#),
        _ => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
    };
    match out {
        AnswerOutput::Http(http) if place == "body" => {
            http.lock().unwrap().whole("200 OK", "application/json", answer.as_bytes());
        }
        AnswerOutput::Http(_) | AnswerOutput::Line => out.write(answer.as_bytes()),
    }
}

fn progress(token: &Value, step: usize, out: &AnswerOutput) {
    let params = json!({ "progressToken": token, "progress": step });
    out.send(&json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }));
}

/// Returns the HTTP refusal for these faults.
fn refusal(fault: &str) -> Option<(&str, &str)> {
    match fault {
        "503" => Some(("503 Service Unavailable", "retry-after: 1\r\n")),
        "400" => Some(("400 Bad Request", "")),
        "504" => Some(("504 Gateway Timeout", "")),
        _ => None,
    }
}

/// Returns the bytes to write.
fn bytes(line: &str, id: &Value) -> Vec<u8> {
    match line.strip_prefix("hex:") {
        Some(digits) => {
            let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
            pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
        }
        None => line.replace("$ID", &id.to_string()).into_bytes(),
    }
}

fn failed(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }], "isError": true })
}

fn write_line(line: &[u8]) {
    let mut out = io::stdout().lock();
    // A gateway that has stopped reading is about to end this process.
    let _ = out.write_all(&[line, b"\n"].concat()).and_then(|()| out.flush());
}

fn note(ledger: &str, line: &str) {
    let mut file = OpenOptions::new().create(true).append(true).open(ledger).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}
