//! A client that speaks MCP and knows nothing of a gateway: over the stdio of a command, or over HTTP.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::world::{TEST_TIMEOUT, TestProcess, start_gateway};

pub(crate) struct McpTestClient {
    /// The gateway, if this client has one of its own.
    child: Option<TestProcess>,
    transport: TestClientTransport,
    incoming: Receiver<Value>,
    next: u64,
    /// The client fields of every request, in the era without a handshake.
    about: Option<Value>,
    /// Messages that came while the client waited for another one.
    pub(crate) received: Vec<Value>,
}

enum TestClientTransport {
    Line(Option<ChildStdin>),
    Http(HttpTestTransport),
}

impl McpTestClient {
    /// Connects over the stdio of this command.
    pub(crate) fn on_streams(mut command: Command) -> Self {
        let mut child = TestProcess::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let (sender, incoming) = channel();
        let (stdin, stdout) = child.streams();
        let out = BufReader::new(stdout);
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let message = serde_json::from_str(&line).expect("every line is a message");
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let transport = TestClientTransport::Line(Some(stdin));
        Self { child: Some(child), transport, incoming, next: 1, about: None, received: Vec::new() }
    }

    /// Connects over HTTP to the gateway that this command starts.
    pub(crate) fn over_http(mut command: Command) -> Self {
        let (gateway, address) = start_gateway(&mut command);
        let mut client = Self::at(address);
        client.child = Some(gateway);
        client
    }

    /// Connects over HTTP to a gateway that is already running.
    pub(crate) fn at(address: SocketAddr) -> Self {
        let (messages, incoming) = channel();
        let (path, headers) = ("/mcp".to_owned(), String::new());
        let (session, open, last_event) = (Arc::default(), Arc::default(), Arc::default());
        let history = Arc::default();
        let transport = TestClientTransport::Http(HttpTestTransport {
            address,
            path,
            headers,
            session,
            messages,
            open,
            last_event,
            history,
        });
        Self { child: None, transport, incoming, next: 1, about: None, received: Vec::new() }
    }

    /// Uses this path instead of the usual one.
    pub(crate) fn behind(mut self, path: &str) -> Self {
        let TestClientTransport::Http(http) = &mut self.transport else { panic!("only HTTP has paths") };
        http.path = path.to_owned();
        self
    }

    /// Adds these headers to those that every client sends. Each ends with a line break.
    pub(crate) fn with_headers(mut self, more: &str) -> Self {
        let TestClientTransport::Http(http) = &mut self.transport else { panic!("only HTTP has headers") };
        http.headers = more.to_owned();
        self
    }

    /// Continues the session with the gateway that this command starts.
    pub(crate) fn moves_to(&mut self, mut command: Command) {
        let (gateway, address) = start_gateway(&mut command);
        self.child = Some(gateway);
        self.moves_to_address(address);
    }

    /// Continues the session with a gateway that is already running.
    pub(crate) fn moves_to_address(&mut self, address: SocketAddr) {
        let TestClientTransport::Http(http) = &mut self.transport else {
            panic!("only a session over HTTP outlives its gateway")
        };
        http.address = address;
    }

    pub(crate) fn address(&self) -> SocketAddr {
        let TestClientTransport::Http(http) = &self.transport else { panic!("only HTTP has one") };
        http.address
    }

    /// Returns the id of its session.
    pub(crate) fn session(&self) -> String {
        let TestClientTransport::Http(http) = &self.transport else { panic!("only HTTP has one") };
        http.session.lock().clone().expect("it is past the handshake")
    }

    pub(crate) fn initialize(&mut self) -> Value {
        self.initialize_with(json!({}))
    }

    /// Initializes as a client with these capabilities.
    pub(crate) fn initialize_with(&mut self, capabilities: Value) -> Value {
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": capabilities,
            "clientInfo": { "name": "tests", "version": "1" },
        });
        let answer = self.request("initialize", params);
        self.notify("notifications/initialized", json!({}));
        answer
    }

    /// Switches to the modern era.
    pub(crate) fn without_handshake(&mut self, capabilities: Value) {
        self.about = Some(json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": capabilities,
            "io.modelcontextprotocol/clientInfo": { "name": "tests", "version": "1" },
        }));
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        self.answer(id)
    }

    /// Sends a request and returns its id.
    pub(crate) fn send(&mut self, method: &str, mut params: Value) -> u64 {
        for (name, value) in self.about.iter().flat_map(|about| about.as_object()).flatten() {
            params["_meta"][name] = value.clone();
        }
        let id = self.next;
        self.next += 1;
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string();
        match &mut self.transport {
            TestClientTransport::Line(_) => self.send_line(&line),
            TestClientTransport::Http(http) => http.post(line.as_bytes(), ResponseWait::No),
        }
        id
    }

    pub(crate) fn notify(&mut self, method: &str, params: Value) {
        self.send_line(&json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string());
    }

    pub(crate) fn send_line(&mut self, line: &str) {
        self.send_bytes(line.as_bytes());
    }

    /// Sends bytes that need not be text.
    pub(crate) fn send_bytes(&mut self, line: &[u8]) {
        match &mut self.transport {
            TestClientTransport::Line(stdin) => {
                let stdin = stdin.as_mut().expect("the client has not hung up");
                stdin.write_all(&[line, b"\n"].concat()).unwrap();
                stdin.flush().unwrap();
            }
            TestClientTransport::Http(http) => http.post(line, ResponseWait::ForTheEnd),
        }
    }

    /// Waits for the answer to the request with this id.
    pub(crate) fn answer(&mut self, id: u64) -> Value {
        let is_it = |message: &Value| message["id"] == id && message.get("method").is_none();
        self.first(is_it)
    }

    /// Returns the first matching message, among those received and those to come.
    fn first(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.received.iter().position(&is_it) {
            return self.received.remove(at);
        }
        loop {
            let message = self.next();
            if is_it(&message) {
                return message;
            }
            self.received.push(message);
        }
    }

    /// Waits for the next request of the server.
    pub(crate) fn next_request(&mut self) -> Value {
        let is_it = |message: &Value| message.get("method").is_some() && message.get("id").is_some();
        self.first(is_it)
    }

    /// Waits for the next notification of this kind.
    pub(crate) fn next_notification(&mut self, method: &str) -> Value {
        self.first(|message| message["method"] == method && message.get("id").is_none())
    }

    /// Returns the number of notifications of this kind so far.
    pub(crate) fn count_notifications(&mut self, method: &str) -> usize {
        while let Ok(message) = self.incoming.try_recv() {
            self.received.push(message);
        }
        self.received.iter().filter(|message| message["method"] == method).count()
    }

    /// Answers a request of the server.
    pub(crate) fn reply(&mut self, request: &Value, result: Value) {
        self.send_line(&json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }).to_string());
    }

    /// Waits for the next message of any kind.
    pub(crate) fn next(&mut self) -> Value {
        let message = self.incoming.recv_timeout(TEST_TIMEOUT);
        message.unwrap_or_else(|_| panic!("no message within the time\n{}", self.connection_history()))
    }

    /// Returns the history of its connections, for the investigation of a missing answer.
    fn connection_history(&self) -> String {
        match &self.transport {
            TestClientTransport::Line(_) => String::new(),
            TestClientTransport::Http(http) => http.history.lock().join("\n"),
        }
    }

    pub(crate) fn call(&mut self, tool: &str, arguments: Value) -> ToolResponse {
        let id = self.send_call(tool, arguments);
        ToolResponse::of(&self.answer(id))
    }

    pub(crate) fn send_call(&mut self, tool: &str, arguments: Value) -> u64 {
        self.send("tools/call", json!({ "name": tool, "arguments": arguments }))
    }

    /// Calls a tool with this `_meta`.
    pub(crate) fn call_with(&mut self, tool: &str, arguments: Value, meta: Value) -> ToolResponse {
        let id = self.send_call_with(tool, arguments, meta);
        ToolResponse::of(&self.answer(id))
    }

    pub(crate) fn send_call_with(&mut self, tool: &str, arguments: Value, meta: Value) -> u64 {
        self.send("tools/call", json!({ "name": tool, "arguments": arguments, "_meta": meta }))
    }

    /// Calls a tool with an explicit key.
    pub(crate) fn call_keyed(&mut self, tool: &str, arguments: Value, key: &str) -> ToolResponse {
        self.call_with(tool, arguments, keyed(key))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("it has a gateway of its own").id()
    }

    /// Closes the input of the program, and waits for its end.
    pub(crate) fn hang_up(mut self) -> ExitStatus {
        self.close_input();
        self.wait_for_exit()
    }

    /// Closes the input of the program.
    pub(crate) fn close_input(&mut self) {
        self.transport = TestClientTransport::Line(None);
    }

    /// Breaks every connection, like a client that lost its network.
    pub(crate) fn disconnect(&self) {
        if let TestClientTransport::Http(http) = &self.transport {
            for connection in http.open.lock().drain(..) {
                let _ = connection.shutdown(Shutdown::Both);
            }
        }
    }

    /// Returns the id of the last event that had one.
    pub(crate) fn last_event(&self) -> Option<String> {
        let TestClientTransport::Http(http) = &self.transport else { panic!("only HTTP has events") };
        http.last_event.lock().clone()
    }

    /// Opens the stream for messages that belong to no request, over HTTP. They are received like all others.
    pub(crate) fn listen(&self) {
        if let TestClientTransport::Http(http) = &self.transport {
            http.send_http("GET", "", b"", ResponseWait::No);
        }
    }

    /// Resumes that stream after this event. Its messages are received like all others.
    pub(crate) fn listen_after(&self, event: &str) {
        let TestClientTransport::Http(http) = &self.transport else { panic!("only HTTP has events") };
        http.listen(event);
    }

    /// Waits for the end of the program.
    pub(crate) fn wait_for_exit(&mut self) -> ExitStatus {
        self.child.as_mut().expect("it has a gateway of its own").end()
    }
}

/// The part of streamable HTTP that a client needs.
struct HttpTestTransport {
    address: SocketAddr,
    path: String,
    headers: String,
    session: Arc<Mutex<Option<String>>>,
    messages: Sender<Value>,
    open: Arc<Mutex<Vec<TcpStream>>>,
    last_event: Arc<Mutex<Option<String>>>,
    /// Per connection: the request, the answer, and the end of the connection.
    history: Arc<Mutex<Vec<String>>>,
}

#[derive(PartialEq)]
enum ResponseWait {
    No,
    ForTheEnd,
}

impl HttpTestTransport {
    /// Posts a message on a connection of its own. Its answers are received like all other messages.
    fn post(&self, body: &[u8], wait: ResponseWait) {
        self.send_http("POST", "", body, wait);
    }

    /// Listens on a connection of its own, after this event.
    fn listen(&self, last: &str) {
        self.send_http("GET", &format!("last-event-id: {last}\r\n"), b"", ResponseWait::No);
    }

    fn send_http(&self, method: &str, more: &str, body: &[u8], wait: ResponseWait) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let session = self.session.lock().as_ref().map(|id| format!("mcp-session-id: {id}\r\n"));
        let session = session.or_else(|| modern_headers(body));
        let head = format!(
            "{method} {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n{}accept: application/json, \
             text/event-stream\r\n{more}{}content-length: {}\r\nconnection: close\r\n\r\n",
            self.path,
            self.address,
            session.unwrap_or_default(),
            self.headers,
            body.len(),
        );
        // A request that is refused early is not read to its end.
        let sent = stream.write_all(&[head.as_bytes(), body].concat());
        let beginning: String = String::from_utf8_lossy(body).chars().take(120).collect();
        let number = {
            let mut history = self.history.lock();
            history.push(format!("{method} {beginning}: sent {sent:?}"));
            history.len() - 1
        };
        self.open.lock().push(stream.try_clone().unwrap());
        let (session, messages) = (self.session.clone(), self.messages.clone());
        let (last_event, history) = (self.last_event.clone(), self.history.clone());
        let reading = thread::spawn(move || {
            let mut lines = BufReader::new(&stream).lines();
            let end_reason = loop {
                let line = match lines.next() {
                    Some(Ok(line)) => line,
                    Some(Err(problem)) => break problem.to_string(),
                    None => break "closed".to_owned(),
                };
                if line.starts_with("HTTP/1.1 ") {
                    history.lock()[number].push_str(&format!(", {line}"));
                }
                if let Some(id) = line.strip_prefix("mcp-session-id: ") {
                    *session.lock() = Some(id.to_owned());
                }
                if let Some(id) = line.strip_prefix("id: ") {
                    *last_event.lock() = Some(id.to_owned());
                }
                // Bodies in one piece, events, and chunks of either: each message is one line.
                let text = line.strip_prefix("data: ").unwrap_or(&line);
                if let Ok(message @ Value::Object(_)) = serde_json::from_str(text) {
                    let _ = messages.send(message);
                }
            };
            history.lock()[number].push_str(&format!(", {end_reason}"));
            // The client closes a connection when it is done with it.
            let _ = stream.shutdown(Shutdown::Both);
        });
        if wait == ResponseWait::ForTheEnd {
            reading.join().unwrap();
        }
    }
}

/// Returns the `_meta` of a call with a key.
pub(crate) fn keyed(key: &str) -> Value {
    json!({ "dev.steadfast/idempotency-key": key })
}

/// Returns the headers that repeat fields of a modern request.
fn modern_headers(body: &[u8]) -> Option<String> {
    let message: Value = serde_json::from_slice(body).ok()?;
    let params = &message["params"];
    let version = params["_meta"]["io.modelcontextprotocol/protocolVersion"].as_str()?;
    let method = message["method"].as_str()?;
    let name = params["name"].as_str().or(params["uri"].as_str());
    let name = name.map(|name| format!("mcp-name: {name}\r\n")).unwrap_or_default();
    Some(format!("mcp-protocol-version: {version}\r\nmcp-method: {method}\r\n{name}"))
}

/// The response to a call.
#[derive(Debug)]
pub(crate) struct ToolResponse {
    /// All of its texts.
    pub(crate) text: String,
    pub(crate) is_error: bool,
    /// The code, if the gateway sets one.
    pub(crate) code: Option<String>,
    pub(crate) from_cache: bool,
    /// The `_meta` of the gateway.
    pub(crate) gateway_meta: Value,
    /// The structured content of the tool.
    pub(crate) structured: Value,
}

impl ToolResponse {
    pub(crate) fn of(message: &Value) -> Self {
        let result = &message["result"];
        let gateway_meta = &result["_meta"]["dev.steadfast/result"];
        let blocks = result["content"].as_array().map(Vec::as_slice).unwrap_or_default();
        let texts: Vec<_> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
        Self {
            text: texts.join("\n"),
            is_error: result["isError"] == true || message.get("error").is_some(),
            code: gateway_meta["error"]["code"].as_str().map(str::to_owned),
            from_cache: gateway_meta["fromCache"] == true,
            gateway_meta: gateway_meta.clone(),
            structured: result["structuredContent"].clone(),
        }
    }
}
