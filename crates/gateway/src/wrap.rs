//! A client on a line and the servers behind it: what `steadfast wrap -- COMMAND` and `steadfast serve --stdio` do.

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

/// A client's line and the servers that are wanted behind it.
pub struct Wrapped<R, W> {
    /// What the client writes.
    pub input: R,
    /// What the client reads.
    pub output: W,
    /// Who the client is.
    pub connection: Connection,
    /// The servers.
    pub servers: Vec<Configured>,
    /// As whom it may use the tools of our own, if they are offered.
    pub own_tools: OwnTools,
    /// Texts of results that are longer than the client is to be given.
    pub large_results: Arc<LargeResults>,
}

/// How long calls that are under way may take when we are asked to end.
const DRAIN: Duration = Duration::from_secs(10);
/// How long what is left to say to a client that is gone may take.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Carries messages between client and servers until the client has gone and what it began is over, or until `stop`. The
/// engine is shut down with it.
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
    // Heard also while a message is being taken: a client that does not read holds that up.
    stop.run_until_cancelled(taking).await;
    link.close();
    session.finish(&stop).await;
    engine.shutdown(DRAIN).await;
    session.stop().await;
    tidying.abort();
    large_results.clear();
    for kept in kept {
        kept.abort();
        // The line to the client ends with the last who knows it.
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
                "the line is too long: it has {} bytes, and at most {LONGEST_LINE} are taken",
                said.bytes()
            );
            Message::error_response(id.as_ref(), code::INVALID_REQUEST, &why, None)
        }
        Received::Half(_) => return,
    };
    let _ = client.send(&refusal).await;
}
