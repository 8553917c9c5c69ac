//! A minimal MCP client that checks whether and how fast a server answers, over the streams of a process that it
//! starts or over HTTP.

#![expect(clippy::indexing_slicing, reason = "a member of a JSON value that is not there reads as null")]

use std::time::Duration;

use http::HeaderMap;
use serde_json::{Value, json};
use steadfast_mcp::http::back::{self, Content, Context, Server};
use steadfast_mcp::lines::{LONGEST_LINE, LineReader, Received};
use steadfast_mcp::message::Message;
use steadfast_process::{Child, Launch, Leash, Patience, Stderr};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::time::timeout;

/// A server that completed the initialization.
pub(crate) struct Peer {
    way: Way,
    next: u64,
    /// Name that the server reports.
    pub(crate) name: String,
}

enum Way {
    Lines { child: Child, stdin: ChildStdin, lines: Box<LineReader<ChildStdout>>, stderr: Stderr },
    Http { server: Server, context: Context },
}

/// Target of the connection.
pub(crate) enum Where {
    /// A process to start.
    Started(Box<Launch>, Leash),
    /// A URL, with these headers.
    Url(String, HeaderMap),
}

const VERSION: &str = "2025-11-25";
/// Shutdown timeouts of a server process.
const SHORT: Patience =
    Patience { stdin: Duration::from_secs(1), term: Duration::from_secs(1), kill: Duration::from_secs(2) };

impl Peer {
    /// Connects and initializes the session. Returns the reason if that fails.
    pub(crate) async fn meet(reached: &Where, patience: Duration) -> Result<Self, String> {
        let way = match reached {
            Where::Started(launch, leash) => {
                let stderr = Stderr::new();
                let started = launch.start(leash, &stderr).await.map_err(|error| error.to_string())?;
                let lines = Box::new(LineReader::new(started.stdout, LONGEST_LINE));
                Way::Lines { child: started.child, stdin: started.stdin, lines, stderr }
            }
            Where::Url(url, headers) => {
                let server =
                    Server::new(url, back::Settings::default()).map_err(|error| error.to_string())?;
                let context =
                    Context { version: Some(VERSION.into()), headers: headers.clone(), ..Context::default() };
                Way::Http { server, context }
            }
        };
        let mut peer = Self { way, next: 1, name: String::new() };
        let hello = json!({
            "protocolVersion": VERSION,
            "capabilities": {},
            "clientInfo": { "name": "steadfast", "version": env!("CARGO_PKG_VERSION") },
        });
        let greeted = peer.request("initialize", hello, patience).await;
        let greeted = match greeted {
            Ok(greeted) => greeted,
            Err(why) => {
                peer.leave().await;
                return Err(why);
            }
        };
        peer.name = greeted["serverInfo"]["name"].as_str().unwrap_or_default().to_owned();
        peer.tell(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        Ok(peer)
    }

    /// Sends a request and returns the result, or the reason why there is none.
    pub(crate) async fn request(
        &mut self,
        method: &str,
        params: Value,
        patience: Duration,
    ) -> Result<Value, String> {
        let id = self.next;
        self.next += 1;
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let answered = match &mut self.way {
            Way::Lines { stdin, lines, stderr, .. } => {
                match timeout(patience, exchange(stdin, lines, id, &request)).await {
                    Ok(Err(why)) => {
                        let last =
                            stderr.tail(1).pop().map(|line| format!("; it said: {line}")).unwrap_or_default();
                        Ok(Err(format!("{why}{last}")))
                    }
                    other => other,
                }
            }
            Way::Http { server, context } => timeout(patience, post(server, context, id, &request)).await,
        };
        let answer = answered
            .map_err(|_| format!("no answer to {method} within {} seconds", patience.as_secs()))??;
        match answer["error"]["message"].as_str() {
            Some(message) => Err(format!("{method} was answered with an error: {message}")),
            None => Ok(answer["result"].clone()),
        }
    }

    async fn tell(&mut self, notification: &Value) {
        match &mut self.way {
            Way::Lines { stdin, .. } => {
                let _ = stdin.write_all(format!("{notification}\n").as_bytes()).await;
            }
            Way::Http { server, context } => {
                if let Ok(message) = Message::parse(notification.to_string(), usize::MAX) {
                    let _ = timeout(SHORT.kill, server.post(&message, context)).await;
                }
            }
        }
    }

    /// Closes the connection.
    pub(crate) async fn leave(self) {
        match self.way {
            Way::Lines { child, stdin, .. } => {
                drop(stdin);
                child.stop(&SHORT).await;
            }
            Way::Http { server, context } if context.session.is_some() => {
                let _ = timeout(SHORT.kill, server.end(&context)).await;
            }
            Way::Http { .. } => {}
        }
    }
}

async fn exchange(
    stdin: &mut ChildStdin,
    lines: &mut LineReader<ChildStdout>,
    id: u64,
    request: &Value,
) -> Result<Value, String> {
    let ended = || "the server ended without an answer".to_owned();
    stdin.write_all(format!("{request}\n").as_bytes()).await.map_err(|_| ended())?;
    loop {
        match lines.next().await {
            Some(Ok(Received::Message(message))) => {
                if message.is_response() && message.id().and_then(|id| id.as_u64()) == Some(id) {
                    return serde_json::from_slice(message.bytes()).map_err(|error| error.to_string());
                }
            }
            Some(Ok(Received::NotAMessage { .. } | Received::TooLong(_) | Received::Half(_))) => {}
            Some(Err(_)) | None => return Err(ended()),
        }
    }
}

async fn post(server: &Server, context: &mut Context, id: u64, request: &Value) -> Result<Value, String> {
    let message = Message::parse(request.to_string(), usize::MAX).map_err(|error| error.to_string())?;
    let answer = server.post(&message, context).await.map_err(|failure| failure.fault().message)?;
    if answer.session.is_some() {
        context.session = answer.session;
    }
    let read = |message: &Message| serde_json::from_slice(message.bytes()).map_err(|error| error.to_string());
    match answer.content {
        Content::One(message) => read(&message),
        Content::Accepted => Err("the server accepted it and did not answer".to_owned()),
        Content::Stream(mut events) => loop {
            match events.next().await {
                Some(Ok(back::Received::Message(message))) => {
                    if message.is_response() && message.id().and_then(|id| id.as_u64()) == Some(id) {
                        return read(&message);
                    }
                }
                Some(Ok(back::Received::NotAMessage { .. } | back::Received::TooLong(_))) => {}
                Some(Err(failure)) => return Err(failure.fault().message),
                None => return Err("the connection ended without an answer".to_owned()),
            }
        },
    }
}
