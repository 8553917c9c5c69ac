//! A client on standard streams and its servers, for `steadfast wrap -- COMMAND` and `steadfast serve --stdio`.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use steadfast_executor::Engine;
use steadfast_mcp::delivery::Link;
use steadfast_mcp::lines::{LONGEST_LINE, LineReader, LineSender, QueueLimits, Received, line_writer};
use steadfast_mcp::long::LongMessage;
use steadfast_mcp::message::{Message, code};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::client::{Client, Reply};
use crate::configured::Configured;
use crate::large_results::LargeResults;
use crate::reliability::OwnTools;
use crate::server::Handshake;
use crate::session::{Incoming, Session};
use crate::who::Connection;

/// The streams of a client and its servers.
pub struct Wrapped<R, W> {
    /// The stream that the client writes.
    pub input: R,
    /// The stream that the client reads.
    pub output: W,
    /// The identity of the client.
    pub connection: Connection,
    /// The servers.
    pub servers: Vec<Configured>,
    /// The built-in tools that the client sees.
    pub own_tools: OwnTools,
    /// Stores result texts that exceed the limit of their tool.
    pub large_results: Arc<LargeResults>,
}

/// The time limit for calls in flight at shutdown.
const DRAIN: Duration = Duration::from_secs(10);
/// The time limit for writing remaining messages to a client that is gone.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Passes messages between client and servers until the client has left and its calls have ended, or until `stop`.
/// Shuts the engine down at the end.
pub async fn wrap<R, W>(engine: &Engine, wrapped: Wrapped<R, W>, stop: CancellationToken)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let Wrapped { input, output, connection, servers, own_tools, large_results } = wrapped;
    let link = Link::new();
    let (client, writing) = line_writer(output, link.clone(), QueueLimits::default());
    let writing = tokio::spawn(writing);
    let (behind, keeping) = servers.iter().map(|server| server.alone(Handshake::default())).unzip();
    let line = Client::Line(client.clone());
    let session =
        Session::new(engine.clone(), behind, line, connection, own_tools, large_results.clone(), None);
    let tidying = tokio::spawn(large_results.clone().tidy(engine.clone()));
    let kept = session.keep_servers(keeping);
    let mut lines = LineReader::new(input, LONGEST_LINE);
    let taking = async {
        while let Some(Ok(received)) = lines.next().await {
            take(&session, received, &client, &link).await;
        }
    };
    // Cancellation works even while a message is processed: a client that does not read blocks that.
    stop.run_until_cancelled(taking).await;
    link.close();
    session.finish(&stop).await;
    engine.shutdown(DRAIN).await;
    session.stop().await;
    tidying.abort();
    large_results.clear();
    for kept in kept {
        kept.abort();
        // The output closes when the last sender is dropped.
        let _ = kept.await;
    }
    drop((session, client));
    let _ = tokio::time::timeout(LAST_WORDS, writing).await;
}

async fn take(session: &Arc<Session>, received: Received, client: &LineSender, link: &Link) {
    let refusal = match received {
        Received::Message(message) => {
            link.heard_beside_writing(&message).await;
            let reply = message.is_request().then(|| Reply::Line(client.clone()));
            let headers = HeaderMap::new();
            return session.take(Incoming { message, reply, headers, from: None }).await;
        }
        Received::NotAMessage { why, .. } => why.answer(),
        Received::TooLong(said) => {
            let id = match said.message() {
                LongMessage::Request(id) => Some(id),
                LongMessage::Response(_)
                | LongMessage::Notification
                | LongMessage::Unclear
                | LongMessage::NotAMessage => None,
            };
            let why = format!(
                "the line is too long: it has {} bytes, and the limit is {LONGEST_LINE}",
                said.bytes()
            );
            Message::error_response(id.as_ref(), code::INVALID_REQUEST, &why, None)
        }
        Received::Half(_) => return,
    };
    let _ = client.send(&refusal).await;
}
