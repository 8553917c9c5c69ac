//! A service over plain HTTP that counts its effects and misbehaves on request, like the server of these tests:
//! `{"id": …, "fault": …, "times": …, "text": …}` in the body or in the query, and a ledger of its effects.

use std::fs::{self, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

/// A service that listens until the test is over.
pub(super) struct RecordingService {
    pub(super) address: SocketAddr,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
}

/// A received request.
#[derive(Clone, Debug)]
pub(super) struct ReceivedRequest {
    pub(super) line: String,
    pub(super) headers: Vec<String>,
    pub(super) body: String,
}

impl RecordingService {
    pub(super) fn start(ledger: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::<Mutex<Vec<ReceivedRequest>>>::default();
        let shared = requests.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (ledger, requests) = (ledger.clone(), shared.clone());
                thread::spawn(move || serve(&ledger, &requests, stream));
            }
        });
        Self { address, requests }
    }

    /// Returns its requests, in order.
    pub(super) fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().clone()
    }
}

impl ReceivedRequest {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let headers = self.headers.iter().filter_map(|line| line.split_once(": "));
        headers.filter(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }

    /// Returns the command of the request: the name in its path, and its body or query.
    fn tool_call(&self) -> (String, Value) {
        let target = self.line.split(' ').nth(1).unwrap();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut params: Value = serde_json::from_str(&self.body).unwrap_or(json!({}));
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            let value = decoded(value);
            params[name] = match name {
                "times" => json!(value.parse::<u64>().unwrap()),
                _ => json!(value),
            };
        }
        (path.trim_start_matches('/').to_owned(), params)
    }
}

/// Decodes a text from a query.
fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits: String = rest.by_ref().take(2).map(char::from).collect();
                u8::from_str_radix(&digits, 16).unwrap()
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).unwrap()
}

fn serve(ledger: &Path, requests: &Mutex<Vec<ReceivedRequest>>, stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim() {
            "" => break,
            line => head.push(line.to_owned()),
        }
    }
    let mut request =
        ReceivedRequest { line: head.first()?.clone(), headers: head.split_off(1), body: String::new() };
    let length = request.header("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    request.body = String::from_utf8_lossy(&body).into_owned();
    requests.lock().push(request.clone());
    let (tool, params) = request.tool_call();
    let operation = format!("{tool} {}", params["id"].as_str().unwrap_or_default());
    let before = {
        // One after the other, so that each knows the number of its run.
        let _order = requests.lock();
        let done = fs::read_to_string(ledger).unwrap();
        let mut file = OpenOptions::new().append(true).open(ledger).unwrap();
        file.write_all(format!("{operation}\n").as_bytes()).unwrap();
        done.lines().filter(|line| **line == operation).count()
    };
    let shows = params["times"].as_u64().is_none_or(|times| u64::try_from(before).unwrap() < times);
    let text = params["text"].as_str();
    let (status, answer) = match params["fault"].as_str().filter(|_| shows).unwrap_or_default() {
        // For ever, until the client closes the connection.
        "hang" => {
            let _ = reader.read_to_end(&mut Vec::new());
            return None;
        }
        // Without an answer.
        "close" => return None,
        "gate" => {
            while fs::exists(ledger.with_extension("gate")).unwrap() {
                thread::sleep(Duration::from_millis(10));
            }
            ("200 OK", None)
        }
        "401" => ("401 Unauthorized", Some(json!({ "error": "no such user" }))),
        "404" => ("404 Not Found", Some(json!({ "error": "no such thing" }))),
        "429" => ("429 Too Many Requests", Some(json!({ "error": "slow down" }))),
        "400" => ("400 Bad Request", Some(json!({ "error": text.unwrap_or("no such account") }))),
        "504" => ("504 Gateway Timeout", Some(json!({ "error": "nobody answered in time" }))),
        "error" | "503" => ("503 Service Unavailable", Some(json!({ "error": text.unwrap_or("busy") }))),
        _ => ("200 OK", None),
    };
    let body = answer.unwrap_or_else(|| json!(format!("{operation}, run {}", before + 1))).to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let _ = reader.get_mut().write_all((head + &body).as_bytes());
    Some(())
}
