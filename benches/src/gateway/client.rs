//! A plain, synchronous client, so that its own cost is small and the same for all: the handshake of the era with
//! sessions, and then calls of `echo`, one after the other.
//!
//! The clock of a call stops when its answer is complete. A stream without further messages is read to its end after
//! that, before the next call.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::process::{GroupedProcess, kill_unless_notified};
use crate::engine::MeasurementError;

const VERSION: &str = "2025-06-18";
/// Maximum duration of the handshake over stdio. Some processes take seconds to load.
const HANDSHAKE: Duration = Duration::from_secs(60);
const ANSWER: Duration = Duration::from_secs(20);
/// Idle time after which a connection is reopened before the clock of a call runs.
const MAX_IDLE: Duration = Duration::from_secs(1);

/// A client that makes calls.
pub(crate) struct BenchClient {
    transport: BenchTransport,
    tool: String,
}

enum BenchTransport {
    Lines(StdioBenchClient),
    Http(HttpBenchClient),
}

impl BenchClient {
    /// Starts this command and uses its stdio.
    pub(crate) fn of_command(
        command: &mut Command,
        words: &Path,
        tool: &str,
    ) -> Result<Self, MeasurementError> {
        let (process, stdin, answers) = GroupedProcess::start_with_streams(command, words)?;
        let mut lines = StdioBenchClient { stdin, answers: BufReader::new(answers), process };
        let ready = kill_unless_notified(lines.process.id(), HANDSHAKE);
        lines.ask(&initialize())?;
        while !is_answer(&lines.next()?, 0)? {}
        lines.ask(&initialized())?;
        let mut client = Self { transport: BenchTransport::Lines(lines), tool: tool.to_owned() };
        client.call()?;
        // If it took too long, the receiver is gone and the call has failed already.
        let _ = ready.send(());
        Ok(client)
    }

    /// Connects to a listening server.
    pub(crate) fn of_address(port: u16, path: &str, tool: &str) -> Result<Self, MeasurementError> {
        let mut http =
            HttpBenchClient { port, path: path.to_owned(), session: String::new(), connection: None };
        http.make_ready()?;
        http.post(&initialize().to_string(), "\"id\":0")?;
        http.make_ready()?;
        http.post(&initialized().to_string(), "")?;
        let mut client = Self { transport: BenchTransport::Http(http), tool: tool.to_owned() };
        client.call()?;
        Ok(client)
    }

    /// Makes one call. Returns the time until its answer.
    pub(crate) fn call(&mut self) -> Result<Duration, MeasurementError> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // The text differs each time, because some gateways treat equal calls as one.
        let mark = format!("call {number} of many");
        let message = format!("{mark}, {FILLING}");
        let call = json!({
            "jsonrpc": "2.0", "id": number, "method": "tools/call",
            "params": { "name": self.tool, "arguments": { "message": message } },
        });
        match &mut self.transport {
            BenchTransport::Lines(lines) => {
                let mut call = call.to_string();
                call.push('\n');
                let started = Instant::now();
                lines.stdin.write_all(call.as_bytes())?;
                loop {
                    let line = lines.next()?;
                    if contains(&line, mark.as_bytes()) {
                        return Ok(started.elapsed());
                    }
                    if is_answer(&line, number)? {
                        return Err(unexpected(&line));
                    }
                }
            }
            BenchTransport::Http(http) => {
                http.make_ready()?;
                let call = call.to_string();
                let started = Instant::now();
                let answer = http.post(&call, &mark)?;
                let took = started.elapsed();
                if contains(&answer, mark.as_bytes()) { Ok(took) } else { Err(unexpected(&answer)) }
            }
        }
    }
}

/// Padding for a message of about 200 bytes.
const FILLING: &str = "with arguments of the size that calls of tools often have: a path, a pattern, a few words of a \
                       question, or the first lines of a text";

fn initialize() -> Value {
    json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": {
            "protocolVersion": VERSION,
            "capabilities": {},
            "clientInfo": { "name": "steadfast-benches", "version": "1" },
        },
    })
}

fn initialized() -> Value {
    json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })
}

/// Returns true if this is the answer to the request with this id. Returns an error if it is an error answer.
fn is_answer(line: &[u8], id: u64) -> Result<bool, MeasurementError> {
    let message: Value = serde_json::from_slice(line).map_err(|_| unexpected(line))?;
    match message.get("error") {
        Some(_) => Err(unexpected(line)),
        None => Ok(message.get("id").and_then(Value::as_u64) == Some(id)),
    }
}

fn unexpected(response: &[u8]) -> MeasurementError {
    let text = String::from_utf8_lossy(response);
    let text: String = text.chars().take(300).collect();
    MeasurementError::because(format!("it answered `{}`", text.trim()))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len().max(1)).any(|window| window == part)
}

struct StdioBenchClient {
    stdin: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// The process ends after its input, which is dropped first.
    process: GroupedProcess,
}

impl StdioBenchClient {
    fn ask(&mut self, message: &Value) -> Result<(), MeasurementError> {
        Ok(self.stdin.write_all(format!("{message}\n").as_bytes())?)
    }

    fn next(&mut self) -> Result<Vec<u8>, MeasurementError> {
        let mut line = Vec::new();
        match self.answers.read_until(b'\n', &mut line)? {
            0 => Err(MeasurementError::because("it ended")),
            _ => Ok(line),
        }
    }
}

/// One persistent connection, as long as the server keeps it open.
struct HttpBenchClient {
    port: u16,
    path: String,
    /// The header with the session, once there is one.
    session: String,
    connection: Option<BenchConnection>,
}

struct BenchConnection {
    reader: BufReader<TcpStream>,
    rest: RemainingBody,
    used: Instant,
}

/// The part of an answer that is still to be read.
#[derive(Clone, Copy)]
enum RemainingBody {
    Nothing,
    /// This many bytes.
    Bytes(usize),
    /// Chunks, up to an empty one.
    Chunks,
    /// Everything up to the end of the connection.
    Everything,
}

impl HttpBenchClient {
    /// Posts a message. Reads the answer up to the end of the part with the mark, or to its own end.
    fn post(&mut self, body: &str, mark: &str) -> Result<Vec<u8>, MeasurementError> {
        let request = format!(
            "POST {} HTTP/1.1\r\nhost: 127.0.0.1:{}\r\ncontent-type: application/json\r\naccept: application/json, text/event-stream\r\n{}content-length: {}\r\n\r\n{body}",
            self.path,
            self.port,
            self.session,
            body.len()
        );
        let connection =
            self.connection.as_mut().ok_or_else(|| MeasurementError::because("it is not connected"))?;
        connection.used = Instant::now();
        connection.reader.get_mut().write_all(request.as_bytes())?;
        let head = connection.head()?;
        if !(200..300).contains(&head.status) {
            return Err(MeasurementError::because(format!("it answered with HTTP status {}", head.status)));
        }
        if self.session.is_empty()
            && let Some(session) = &head.session
        {
            self.session = format!("mcp-session-id: {session}\r\nmcp-protocol-version: {VERSION}\r\n");
        }
        let answer = connection.body(head.is_stream, mark)?;
        if head.closes {
            self.connection = None;
        }
        Ok(answer)
    }

    /// Reads the rest of the last answer, and makes sure that there is a usable connection.
    fn make_ready(&mut self) -> Result<(), MeasurementError> {
        if let Some(connection) = &mut self.connection {
            match connection.rest {
                // An idle connection may be closed by the server: Node closes it after five seconds.
                _ if connection.used.elapsed() > MAX_IDLE => self.connection = None,
                RemainingBody::Everything => self.connection = None,
                RemainingBody::Nothing | RemainingBody::Bytes(_) | RemainingBody::Chunks => {
                    let mut left = Vec::new();
                    while connection.more(&mut left)? {}
                }
            }
        }
        if self.connection.is_none() {
            self.connection = Some(BenchConnection::open(self.port)?);
        }
        Ok(())
    }
}

struct BenchResponseHead {
    status: u16,
    session: Option<String>,
    is_stream: bool,
    closes: bool,
}

impl BenchConnection {
    fn open(port: u16) -> Result<Self, MeasurementError> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER))?;
        Ok(Self {
            reader: BufReader::with_capacity(16 * 1024, stream),
            rest: RemainingBody::Nothing,
            used: Instant::now(),
        })
    }

    fn line(&mut self) -> Result<String, MeasurementError> {
        let mut line = String::new();
        match self.reader.read_line(&mut line)? {
            0 => Err(MeasurementError::because("it closed the connection")),
            _ => Ok(line),
        }
    }

    fn head(&mut self) -> Result<BenchResponseHead, MeasurementError> {
        let line = self.line()?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status
            .ok_or_else(|| MeasurementError::because(format!("it answered `{}`, not HTTP", line.trim())))?;
        let mut head = BenchResponseHead { status, session: None, is_stream: false, closes: false };
        // Without a length, some statuses have no body, and the others have one up to the end of the connection.
        self.rest =
            if status == 202 || status == 204 { RemainingBody::Nothing } else { RemainingBody::Everything };
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { return Ok(head) };
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => {
                    let length =
                        value.parse().map_err(|_| MeasurementError::because("invalid Content-Length"))?;
                    self.rest = RemainingBody::Bytes(length);
                }
                "transfer-encoding" => self.rest = RemainingBody::Chunks,
                "content-type" => head.is_stream = value.starts_with("text/event-stream"),
                "mcp-session-id" => head.session = Some(value.to_owned()),
                "connection" => head.closes = value.eq_ignore_ascii_case("close"),
                _ => {}
            }
        }
    }

    /// Reads the body. Of a stream it reads only up to the end of the event with the mark.
    fn body(&mut self, is_stream: bool, mark: &str) -> Result<Vec<u8>, MeasurementError> {
        let mut body = Vec::new();
        loop {
            let is_there = is_stream && !mark.is_empty() && contains(&body, mark.as_bytes());
            if is_there && (body.ends_with(b"\n\n") || body.ends_with(b"\r\n\r\n")) {
                return Ok(body);
            }
            if !self.more(&mut body)? {
                return Ok(body);
            }
        }
    }

    /// Reads more of the body, if there is more.
    fn more(&mut self, body: &mut Vec<u8>) -> Result<bool, MeasurementError> {
        match self.rest {
            RemainingBody::Nothing => return Ok(false),
            RemainingBody::Bytes(length) => {
                self.exactly(length, body)?;
                self.rest = RemainingBody::Nothing;
            }
            RemainingBody::Chunks => {
                let line = self.line()?;
                let length = line.trim().split(';').next().unwrap_or_default();
                let length = usize::from_str_radix(length, 16)
                    .map_err(|_| MeasurementError::because("a chunk without length"))?;
                self.exactly(length, body)?;
                self.line()?;
                if length == 0 {
                    self.rest = RemainingBody::Nothing;
                }
            }
            RemainingBody::Everything => {
                self.reader.read_to_end(body)?;
                self.rest = RemainingBody::Nothing;
            }
        }
        Ok(true)
    }

    fn exactly(&mut self, length: usize, body: &mut Vec<u8>) -> Result<(), MeasurementError> {
        let from = body.len();
        body.resize(from + length, 0);
        match body.get_mut(from..) {
            Some(space) => Ok(self.reader.read_exact(space)?),
            None => Ok(()),
        }
    }
}
