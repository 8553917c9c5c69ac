//! The part of streamable HTTP that a misbehaving server needs: every POST of a request is answered by a stream.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::Mutex;
use std::thread;

use serde_json::Value;

use crate::{AnswerOutput, modern, note, received, wait_for};

/// Serves until this process ends, on the socket that is its stdin. The parent process listens there already, and the
/// next server process will use it too. Sessions of another process are not known.
pub(crate) fn serve(ledger: &str) {
    let listener = TcpListener::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let session = format!("session-{}", std::process::id());
    for connection in listener.incoming() {
        let (ledger, session) = (ledger.to_owned(), session.clone());
        thread::spawn(move || serve_one(&ledger, &session, connection.unwrap()));
    }
}

/// Serves one request on each connection.
fn serve_one(ledger: &str, session: &str, stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let (mut head, mut line) = (Vec::new(), String::new());
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        head.push(line.trim().to_owned());
    }
    let header = |name: &str| {
        head.iter().filter_map(|line| line.split_once(": ")).find(|(n, _)| n.eq_ignore_ascii_case(name))
    };
    let mut answer = HttpAnswer { stream, session: session.to_owned(), started: false };
    if !head.first()?.starts_with("POST ") {
        answer.refuse("405 Method Not Allowed", "");
        return None;
    }
    let mut body = vec![0; header("content-length")?.1.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    let message: Value = serde_json::from_slice(&body).ok()?;
    let is_known = match modern::is_era() {
        // In this era the headers must repeat fields of the body.
        true => {
            message["id"].is_null()
                || header("mcp-method").map(|(_, name)| name) == message["method"].as_str()
        }
        false => header("mcp-session-id").map(|(_, id)| id) == Some(session),
    };
    if message["method"] != "initialize" && !is_known {
        answer.refuse("404 Not Found", "");
        return None;
    }
    // While a file beside the ledger contains a status, every handshake is refused with it.
    if let (true, Ok(status)) =
        (message["method"] == "initialize", fs::read_to_string(format!("{ledger}.handshake")))
    {
        note(ledger, "refused initialize");
        answer.refuse(status.trim(), "");
        return None;
    }
    if message["id"].is_null() || message["method"].is_null() {
        wait_for(ledger, "deaf");
        answer.refuse("202 Accepted", "");
        received(ledger, &message, &AnswerOutput::Line);
        return None;
    }
    received(ledger, &message, &AnswerOutput::Http(Mutex::new(answer)));
    Some(())
}

/// The answer to a request.
pub(crate) struct HttpAnswer {
    stream: TcpStream,
    session: String,
    started: bool,
}

impl HttpAnswer {
    /// Sends a status without a body, and closes the connection.
    pub(crate) fn refuse(&mut self, status: &str, headers: &str) {
        let _ = write!(
            self.stream,
            "HTTP/1.1 {status}\r\n{headers}content-length: 0\r\nconnection: close\r\n\r\n"
        );
    }

    /// Sends an answer in one piece, which need not be valid.
    pub(crate) fn whole(&mut self, status: &str, kind: &str, body: &[u8]) {
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        let _ = self.stream.write_all(&[head.as_bytes(), body].concat());
    }

    pub(crate) fn event(&mut self, data: &[u8]) {
        let mut text = Vec::new();
        if !self.started {
            self.started = true;
            let session = &self.session;
            text.extend_from_slice(format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nmcp-session-id: {session}\r\nconnection: close\r\n\r\n"
            ).as_bytes());
        }
        text.extend_from_slice(&[b"data: ", data.trim_ascii_end(), b"\n\n"].concat());
        // A client may have stopped reading.
        let _ = self.stream.write_all(&text);
    }
}
