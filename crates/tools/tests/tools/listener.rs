//! A server with scripted responses that records its requests.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Reply to a request.
pub(crate) enum ListenerReply {
    /// These bytes, unchanged.
    Raw(Vec<u8>),
    /// These bytes, after which the connection is closed.
    Broken(Vec<u8>),
    /// The connection is closed without a response.
    Cut,
    /// No response until the client disconnects.
    Hang,
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct ListenerRequest {
    pub(crate) line: String,
    head: String,
    pub(crate) body: String,
}

impl ListenerRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

pub(crate) struct ToolTestServer {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<ListenerRequest>>>,
    /// Counts connections that the client closed while a request was hanging.
    left: Arc<Semaphore>,
    arrived: Arc<Semaphore>,
    connections: Arc<AtomicUsize>,
}

impl ToolTestServer {
    /// Starts a server that answers each request by its number, counted from zero.
    pub(crate) async fn start(reply: impl Fn(usize) -> ListenerReply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            requests: Arc::default(),
            left: Arc::new(Semaphore::new(0)),
            arrived: Arc::new(Semaphore::new(0)),
            connections: Arc::default(),
        };
        let connections = server.connections.clone();
        let (requests, left, arrived) =
            (server.requests.clone(), server.left.clone(), server.arrived.clone());
        let reply = Arc::new(reply);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                let (requests, left, arrived) = (requests.clone(), left.clone(), arrived.clone());
                tokio::spawn(serve(stream, requests, left, arrived, reply.clone()));
            }
        });
        server
    }

    /// Returns a tool `t` that calls this server, with this method, path and more settings.
    pub(crate) fn tool(&self, method: &str, path: &str, more: &str) -> String {
        format!("[http_tools.t]\nmethod = \"{method}\"\nurl = \"http://{}{path}\"\n{more}\n", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<ListenerRequest> {
        self.requests.lock().unwrap().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) async fn wait_for_request(&self) {
        self.arrived.acquire().await.unwrap().forget();
    }

    pub(crate) async fn left(&self) {
        self.left.acquire().await.unwrap().forget();
    }
}

/// Returns a response with a status, headers that each end with a line break, and a body.
pub(crate) fn answer(status: &str, headers: &str, body: impl AsRef<[u8]>) -> ListenerReply {
    let body = body.as_ref();
    let mut raw =
        format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len()).into_bytes();
    raw.extend_from_slice(body);
    ListenerReply::Raw(raw)
}

async fn serve(
    mut stream: TcpStream,
    requests: Arc<Mutex<Vec<ListenerRequest>>>,
    left: Arc<Semaphore>,
    arrived: Arc<Semaphore>,
    reply: Arc<dyn Fn(usize) -> ListenerReply + Send + Sync>,
) {
    let mut buffer = Vec::new();
    while let Some(request) = request(&mut stream, &mut buffer).await {
        let number = {
            let mut requests = requests.lock().unwrap();
            requests.push(request);
            requests.len() - 1
        };
        arrived.add_permits(1);
        match reply(number) {
            ListenerReply::Raw(raw) => {
                if stream.write_all(&raw).await.is_err() {
                    return;
                }
            }
            ListenerReply::Broken(raw) => {
                let _ = stream.write_all(&raw).await;
                return;
            }
            ListenerReply::Cut => return,
            ListenerReply::Hang => {
                while stream.read_buf(&mut buffer).await.is_ok_and(|read| read > 0) {}
                left.add_permits(1);
                return;
            }
        }
    }
}

async fn request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<ListenerRequest> {
    let end = loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let text = String::from_utf8(buffer.drain(..end + 4).collect()).unwrap();
    let (line, head) = text.split_once("\r\n").unwrap();
    let mut request = ListenerRequest { line: line.to_owned(), head: head.to_owned(), body: String::new() };
    let length = request.header("content-length").map_or(0, |length| length.parse().unwrap());
    while buffer.len() < length {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    request.body = String::from_utf8(buffer.drain(..length).collect()).unwrap();
    Some(request)
}
