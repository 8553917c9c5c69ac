//! Raw HTTP, for requests that violate its rules.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use crate::world::TEST_TIMEOUT;

/// A request of which every part can be wrong.
#[derive(Clone)]
pub(crate) struct RawRequest {
    address: SocketAddr,
    line: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl RawRequest {
    /// Creates an empty POST with the headers that every client sends.
    pub(crate) fn to(address: SocketAddr) -> Self {
        let headers = [
            ("host", address.to_string()),
            ("content-type", "application/json".to_owned()),
            ("accept", "application/json, text/event-stream".to_owned()),
            ("connection", "close".to_owned()),
        ];
        let headers = headers.map(|(name, value)| (name.to_owned(), value)).into();
        Self { address, line: "POST /mcp HTTP/1.1".to_owned(), headers, body: Vec::new() }
    }

    pub(crate) fn line(mut self, line: &str) -> Self {
        self.line = line.to_owned();
        self
    }

    /// Sets a header, in place of any others of that name.
    pub(crate) fn header(self, name: &str, value: &str) -> Self {
        let mut without = self.without(name);
        without.headers.push((name.to_owned(), value.to_owned()));
        without
    }

    /// Adds a header to those of that name.
    pub(crate) fn and(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(own, _)| own != name);
        self
    }

    pub(crate) fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = body.as_ref().to_vec();
        self
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut head = format!("{}\r\n", self.line);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !self
            .headers
            .iter()
            .any(|(name, _)| ["content-length", "transfer-encoding"].contains(&name.as_str()))
        {
            head.push_str(&format!("content-length: {}\r\n", self.body.len()));
        }
        [head.as_bytes(), b"\r\n", &self.body].concat()
    }
}

/// The response.
#[derive(Debug)]
pub(crate) struct RawResponse {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl RawResponse {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// Returns the code of the error in its body.
    pub(crate) fn code(&self) -> Option<i64> {
        serde_json::from_slice::<serde_json::Value>(&self.body).ok()?["error"]["code"].as_i64()
    }
}

/// Sends a request on a connection of its own and reads to its end. `None` if it was closed without an answer.
pub(crate) fn send(request: &RawRequest) -> Option<RawResponse> {
    let mut stream = TcpStream::connect(request.address).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    // A request that is refused early is not read to its end.
    let _ = stream.write_all(&request.bytes());
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n");
    let Some(end) = end else {
        assert!(
            !read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock),
            "no answer in time"
        );
        return None;
    };
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers =
        lines.filter_map(|line| line.split_once(": ")).map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
    Some(RawResponse { status, headers, body: answer[end + 4..].to_vec() })
}

/// A connection that is kept from one request to the next, as most clients do.
pub(crate) struct PersistentConnection(BufReader<TcpStream>);

impl PersistentConnection {
    pub(crate) fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        Self(BufReader::new(stream))
    }

    /// Sends a request whose answer comes in one piece, and returns that.
    pub(crate) fn request(&mut self, request: &RawRequest) -> Vec<u8> {
        self.0.get_mut().write_all(&request.clone().without("connection").bytes()).unwrap();
        let (mut line, mut length) = (String::new(), None);
        loop {
            line.clear();
            self.0.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().ok();
            }
        }
        let mut body = vec![0; length.expect("an answer in one piece")];
        self.0.read_exact(&mut body).unwrap();
        body
    }
}
