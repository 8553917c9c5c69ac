//! A model that does what a test says, behind the API of OpenAI.
//!
//! A user message that contains `[script NAME]` is answered by the script of that name. Every request is kept, so that
//! tests can count model calls and read what the model was shown.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use serde_json::{Value, json};

/// What the model answers to one request.
#[derive(Clone, Debug)]
pub(crate) enum ModelReply {
    Text(String),
    Calls(Vec<ModelToolCall>),
}

/// A tool call of the model.
#[derive(Clone, Debug)]
pub(crate) struct ModelToolCall {
    /// The id. Without one, the model draws one that is unique.
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    /// The arguments, as the text that the model wrote.
    pub(crate) arguments: String,
}

/// A request to the model.
#[derive(Clone, Debug)]
pub(crate) struct ModelRequest {
    /// Number of the request within its script, from 1.
    pub(crate) number: usize,
    pub(crate) messages: Vec<Value>,
    /// Names of the tools that the model may call.
    pub(crate) tools: Vec<String>,
}

/// The number of requests after which a script ends, so that no loop is endless.
const MOST_REQUESTS: usize = 40;

type Script = Box<dyn FnMut(&ModelRequest) -> ModelReply + Send>;

/// The model. It lives as long as the process.
#[derive(Clone)]
pub(crate) struct ScriptedModel {
    pub(crate) address: SocketAddr,
    scripts: Arc<Mutex<BTreeMap<String, RunningScript>>>,
}

#[derive(Default)]
struct RunningScript {
    script: Option<Script>,
    requests: Vec<ModelRequest>,
}

impl ModelReply {
    pub(crate) fn call(name: &str, arguments: Value) -> Self {
        Self::Calls(vec![ModelToolCall { id: None, name: name.to_owned(), arguments: arguments.to_string() }])
    }

    pub(crate) fn call_with_id(id: &str, name: &str, arguments: Value) -> Self {
        Self::Calls(vec![ModelToolCall {
            id: Some(id.to_owned()),
            name: name.to_owned(),
            arguments: arguments.to_string(),
        }])
    }
}

impl ModelToolCall {
    /// Returns a call with arguments in the words of the model.
    pub(crate) fn written(name: &str, arguments: &str) -> Self {
        Self { id: None, name: name.to_owned(), arguments: arguments.to_owned() }
    }
}

impl ModelRequest {
    /// Returns the text of the newest result of a tool.
    pub(crate) fn last_result(&self) -> Option<String> {
        self.messages.iter().rev().find(|message| message["role"] == "tool").map(text_of)
    }

    /// Returns the texts of all messages of users.
    pub(crate) fn user_texts(&self) -> Vec<String> {
        self.messages.iter().filter(|message| message["role"] == "user").map(text_of).collect()
    }

    /// Returns the texts of the results of tools since the newest message that names a script.
    pub(crate) fn results(&self) -> Vec<String> {
        let begin = self.messages.iter().rposition(|message| script_of(message).is_some()).unwrap_or(0);
        let since = self.messages.get(begin..).unwrap_or_default();
        since.iter().filter(|message| message["role"] == "tool").map(text_of).collect()
    }
}

impl ScriptedModel {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let model = Self { address, scripts: Arc::default() };
        let serving = model.clone();
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let model = serving.clone();
                thread::spawn(move || model.serve(connection));
            }
        });
        model
    }

    /// Sets the script of this name. It gets each request, and its reply is the model's.
    pub(crate) fn script(
        &self,
        name: &str,
        script: impl FnMut(&ModelRequest) -> ModelReply + Send + 'static,
    ) {
        self.scripts().entry(name.to_owned()).or_default().script = Some(Box::new(script));
    }

    /// Returns the requests to the script of this name.
    pub(crate) fn requests(&self, name: &str) -> Vec<ModelRequest> {
        self.scripts().get(name).map(|running| running.requests.clone()).unwrap_or_default()
    }

    fn scripts(&self) -> MutexGuard<'_, BTreeMap<String, RunningScript>> {
        self.scripts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, connection: TcpStream) {
        let Some(body) = read_body(&connection) else { return };
        let reply = self.reply(&body);
        let model = body["model"].as_str().unwrap_or_default();
        // The host may have ended the run meanwhile.
        let _ = if body["stream"] == true {
            write_stream(&connection, model, &reply)
        } else {
            write_whole(&connection, model, &reply)
        };
    }

    fn reply(&self, body: &Value) -> ModelReply {
        let messages = body["messages"].as_array().cloned().unwrap_or_default();
        let tools = body["tools"].as_array().into_iter().flatten();
        let tools = tools.filter_map(|tool| tool["function"]["name"].as_str().map(str::to_owned)).collect();
        let Some(name) = messages.iter().rev().find_map(script_of) else {
            return ModelReply::Text("no script".to_owned());
        };
        let mut scripts = self.scripts();
        let running = scripts.entry(name).or_default();
        let request = ModelRequest { number: running.requests.len() + 1, messages, tools };
        running.requests.push(request.clone());
        // The host asks for a last answer without tools when it ends a loop.
        let may_call = !request.tools.is_empty() && request.number <= MOST_REQUESTS;
        match &mut running.script {
            Some(script) if may_call => script(&request),
            Some(_) => ModelReply::Text(format!("done after {} requests", request.number)),
            None => ModelReply::Text("no such script".to_owned()),
        }
    }
}

/// Returns the script that a message of a user names.
fn script_of(message: &Value) -> Option<String> {
    let text = (message["role"] == "user").then(|| text_of(message))?;
    let (_, rest) = text.rsplit_once("[script ")?;
    rest.split_once(']').map(|(name, _)| name.to_owned())
}

/// Returns the text of a message, whose content is a text or a list of blocks.
fn text_of(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
            texts.join("\n")
        }
        other => other.to_string(),
    }
}

fn read_body(connection: &TcpStream) -> Option<Value> {
    let mut reader = BufReader::new(connection);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    serde_json::from_slice(&body).ok()
}

/// Returns an id as models draw them.
fn drawn_id() -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("call_{:016x}", RandomState::new().hash_one(()))
}

fn tool_calls(calls: &[ModelToolCall]) -> Value {
    let calls = calls.iter().enumerate().map(|(index, call)| {
        let id = call.id.clone().unwrap_or_else(drawn_id);
        let function = json!({ "name": call.name, "arguments": call.arguments });
        json!({ "index": index, "id": id, "type": "function", "function": function })
    });
    Value::Array(calls.collect())
}

/// Returns the message of a reply, and the reason why it ends.
fn message_of(reply: &ModelReply) -> (Value, &'static str) {
    match reply {
        ModelReply::Text(text) => (json!({ "role": "assistant", "content": text }), "stop"),
        ModelReply::Calls(calls) => {
            (json!({ "role": "assistant", "content": null, "tool_calls": tool_calls(calls) }), "tool_calls")
        }
    }
}

fn usage() -> Value {
    json!({ "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2 })
}

fn write_stream(mut connection: &TcpStream, model: &str, reply: &ModelReply) -> std::io::Result<()> {
    let (message, reason) = message_of(reply);
    let chunk = |delta: Value, reason: Option<&str>, usage: Option<Value>| {
        let choices = json!([{ "index": 0, "delta": delta, "finish_reason": reason }]);
        let mut chunk = json!({ "id": "c", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": choices });
        if let Some(usage) = usage {
            chunk["usage"] = usage;
        }
        format!("data: {chunk}\n\n")
    };
    let events = [
        chunk(message, None, None),
        chunk(json!({}), Some(reason), Some(usage())),
        "data: [DONE]\n\n".to_owned(),
    ];
    write!(
        connection,
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n{}",
        events.concat()
    )
}

fn write_whole(mut connection: &TcpStream, model: &str, reply: &ModelReply) -> std::io::Result<()> {
    let (message, reason) = message_of(reply);
    let choices = json!([{ "index": 0, "message": message, "finish_reason": reason }]);
    let body = json!({ "id": "c", "object": "chat.completion", "created": 1, "model": model, "choices": choices, "usage": usage() });
    let body = body.to_string();
    write!(
        connection,
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}
