//! As much of streamable HTTP as a server needs to misbehave over it: every POST of a request is answered by a stream.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::Mutex;
use std::thread;

use serde_json::Value;

use crate::{Out, modern, note, received, wait_for};

/// Serves until this process ends, at the socket that is its standard input: whoever started it listens there already, and the
/// next process will listen there too. Sessions of another process are not known.
pub(crate) fn serve(ledger: &str) {
    let listener = TcpListener::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let session = format!("session-{}", std::process::id());
    for connection in listener.incoming() {
        let (ledger, session) = (ledger.to_owned(), session.clone());
        thread::spawn(move || serve_one(&ledger, &session, connection.unwrap()));
    }
}

/// One request on each connection.
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
    let mut answer = Answer { stream, session: session.to_owned(), begun: false };
    if !head.first()?.starts_with("POST ") {
        answer.refuse("405 Method Not Allowed", "");
        return None;
    }
    let mut body = vec![0; header("content-length")?.1.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    let message: Value = serde_json::from_slice(&body).ok()?;
    let is_known = match modern::is_era() {
        // There the headers have to say what the body says.
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
    // What stands beside the ledger is said to whoever introduces itself, as long as it stands there.
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
        received(ledger, &message, &Out::Line);
        return None;
    }
    received(ledger, &message, &Out::Http(Mutex::new(answer)));
    Some(())
}

/// The answer to a request.
pub(crate) struct Answer {
    stream: TcpStream,
    session: String,
    begun: bool,
}

impl Answer {
    /// A status and nothing else. The connection ends with it.
    pub(crate) fn refuse(&mut self, status: &str, headers: &str) {
        let _ = write!(
            self.stream,
            "HTTP/1.1 {status}\r\n{headers}content-length: 0\r\nconnection: close\r\n\r\n"
        );
    }

    /// An answer in one piece, which need not be one.
    pub(crate) fn whole(&mut self, status: &str, kind: &str, body: &[u8]) {
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        let _ = self.stream.write_all(&[head.as_bytes(), body].concat());
    }

    pub(crate) fn event(&mut self, data: &[u8]) {
        let mut text = Vec::new();
        if !self.begun {
            self.begun = true;
            let session = &self.session;
            text.extend_from_slice(format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nmcp-session-id: {session}\r\nconnection: close\r\n\r\n"
            ).as_bytes());
        }
        text.extend_from_slice(&[b"data: ", data.trim_ascii_end(), b"\n\n"].concat());
        // Whoever does not read any more has its reasons.
        let _ = self.stream.write_all(&text);
    }
}
