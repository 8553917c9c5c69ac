//! A server that does almost no work, so that the cost of a gateway shows: one tool, `echo`, on stdio or over HTTP, in
//! the era with sessions. An answer over HTTP is one JSON text in one write, on a persistent connection.

use std::io::{self, BufRead as _, BufReader, Read as _, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::engine::MeasurementError;

/// Argument that makes this program the server.
pub(crate) const CHILD: &str = "fast-server";
/// Argument after it for stdio. Otherwise it is a port.
pub(crate) const ON_STDIO: &str = "stdio";

/// Runs the server in its own process until its input ends, or for ever.
pub(crate) fn child(on: &str) -> Result<(), MeasurementError> {
    if on == ON_STDIO {
        return serve_lines();
    }
    let port = on.parse().map_err(|_| MeasurementError::because(format!("`{on}` is not a port")))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    for connection in listener.incoming() {
        let connection = connection?;
        // Its client has gone, or breaks the protocol. Either way only this connection ends.
        thread::spawn(move || serve_connection(&connection));
    }
    Ok(())
}

fn serve_lines() -> Result<(), MeasurementError> {
    let mut output = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        if let Some(BenchAnswer { mut text, .. }) = answer(line?.as_bytes()) {
            text.push('\n');
            output.write_all(text.as_bytes())?;
            output.flush()?;
        }
    }
    Ok(())
}

fn serve_connection(connection: &TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let (mut reader, mut writer) = (BufReader::new(connection), connection);
    let mut body = Vec::new();
    loop {
        let Some(request) = BenchRequest::read(&mut reader)? else { return Ok(()) };
        body.resize(request.length, 0);
        reader.read_exact(&mut body)?;
        let response = match request.kind {
            BenchRequestKind::Post => match answer(&body) {
                Some(BenchAnswer { text, begins_session }) => {
                    let length = text.len();
                    let session = if begins_session { session() } else { String::new() };
                    format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{session}content-length: {length}\r\n\r\n{text}"
                    )
                }
                None => "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n".to_owned(),
            },
            BenchRequestKind::Delete => "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned(),
            BenchRequestKind::Other => {
                "HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n".to_owned()
            }
        };
        writer.write_all(response.as_bytes())?;
    }
}

struct BenchRequest {
    kind: BenchRequestKind,
    length: usize,
}

enum BenchRequestKind {
    Post,
    Delete,
    Other,
}

impl BenchRequest {
    /// Reads the head of the next request. `None` if the client has gone.
    fn read(reader: &mut BufReader<&TcpStream>) -> io::Result<Option<Self>> {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let kind = match line.split(' ').next() {
            Some("POST") => BenchRequestKind::Post,
            Some("DELETE") => BenchRequestKind::Delete,
            _ => BenchRequestKind::Other,
        };
        let mut length = 0;
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            match line.trim_end().split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.trim().parse().unwrap_or(0);
                }
                Some(_) => {}
                None => return Ok(Some(Self { kind, length })),
            }
        }
    }
}

/// Returns a header with a new session. Later requests may name any session.
fn session() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("mcp-session-id: session-{}\r\n", NUMBER.fetch_add(1, Ordering::Relaxed))
}

struct BenchAnswer {
    text: String,
    begins_session: bool,
}

/// Returns the answer to a message, if it has one.
fn answer(message: &[u8]) -> Option<BenchAnswer> {
    let message: Value = serde_json::from_slice(message).ok()?;
    let id = message.get("id")?;
    let method = message.get("method")?.as_str()?;
    let result = match method {
        "tools/call" => {
            json!({ "content": [{ "type": "text", "text": message.pointer("/params/arguments/message") }] })
        }
        "initialize" => json!({
            // A request for an era without sessions gets the last version with sessions.
            "protocolVersion": message
                .pointer("/params/protocolVersion")
                .and_then(Value::as_str)
                .filter(|version| *version < LAST_SESSION_VERSION)
                .unwrap_or(LAST_SESSION_VERSION),
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "fast", "version": "1" },
        }),
        "tools/list" => json!({ "tools": [{
            "name": "echo",
            "description": "Says it again.",
            "inputSchema": {
                "type": "object",
                "properties": { "message": { "type": "string" } },
                "required": ["message"],
            },
        }] }),
        "ping" => json!({}),
        _ => {
            let error = json!({ "code": -32601, "message": format!("there is no method {method}") });
            let text = json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string();
            return Some(BenchAnswer { text, begins_session: false });
        }
    };
    let text = json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string();
    Some(BenchAnswer { text, begins_session: method == "initialize" })
}

/// The last version of the protocol that has sessions.
const LAST_SESSION_VERSION: &str = "2025-11-25";
