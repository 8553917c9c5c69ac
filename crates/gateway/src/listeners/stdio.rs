//! A client on standard streams and its servers, for `steadfast wrap -- COMMAND` and `steadfast serve --stdio`.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use steadfast_executor::Engine;
use steadfast_mcp::delivery::DeliveryLink;
use steadfast_mcp::lines::{LONGEST_LINE, LineItem, LineReader, LineSender, WriteQueueLimits, line_writer};
use steadfast_mcp::long_text::LongMessage;
use steadfast_mcp::message::{RpcMessage, code};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::builtin_tools::BuiltinTools;
use crate::calls::large_results::LargeResults;
use crate::client::connection::{ClientConnection, ResponseChannel};
use crate::client::identity::ClientIdentity;
use crate::servers::configured::ConfiguredServer;
use crate::servers::upstream::Handshake;
use crate::session::{ClientMessage, GatewaySession};

/// The streams of a client and its servers.
pub struct StdioClient<R, W> {
    /// The stream that the client writes.
    pub input: R,
    /// The stream that the client reads.
    pub output: W,
    /// The identity of the client.
    pub connection: ClientIdentity,
    /// The servers.
    pub servers: Vec<ConfiguredServer>,
    /// The built-in tools that the client sees.
    pub own_tools: BuiltinTools,
    /// Stores result texts that exceed the limit of their tool.
    pub large_results: Arc<LargeResults>,
}

/// The time limit for calls in flight at shutdown.
const DRAIN: Duration = Duration::from_secs(10);
/// The time limit for writing remaining messages to a client that is gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// Passes messages between client and servers until the client has left and its calls have ended, or until `stop`.
/// Shuts the engine down at the end.
pub async fn wrap<R, W>(engine: &Engine, wrapped: StdioClient<R, W>, stop: CancellationToken)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let StdioClient { input, output, connection, servers, own_tools, large_results } = wrapped;
    let link = DeliveryLink::new();
    let (client, writing) = line_writer(output, link.clone(), WriteQueueLimits::default());
    let writing = tokio::spawn(writing);
    let (behind, processes) =
        servers.iter().map(|server| server.create_exclusive(Handshake::default())).unzip();
    let line = ClientConnection::Line(client.clone());
    let session =
        GatewaySession::new(engine.clone(), behind, line, connection, own_tools, large_results.clone(), None);
    let tidying = tokio::spawn(large_results.clone().tidy(engine.clone()));
    let tasks = session.run_servers(processes);
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
    for task in tasks {
        task.abort();
        // The output closes when the last sender is dropped.
        let _ = task.await;
    }
    drop((session, client));
    let _ = tokio::time::timeout(WRITE_TIMEOUT, writing).await;
}

async fn take(session: &Arc<GatewaySession>, received: LineItem, client: &LineSender, link: &DeliveryLink) {
    let refusal = match received {
        LineItem::Message(message) => {
            link.record_message_after_write(&message).await;
            let reply = message.is_request().then(|| ResponseChannel::Line(client.clone()));
            let headers = HeaderMap::new();
            return session.take(ClientMessage { message, reply, headers, from: None }).await;
        }
        LineItem::NotAMessage { error, .. } => error.answer(),
        LineItem::TooLong(long) => {
            let id = match long.message() {
                LongMessage::Request(id) => Some(id),
                LongMessage::Response(_)
                | LongMessage::Notification
                | LongMessage::Unclear
                | LongMessage::NotAMessage => None,
            };
            let reason = format!(
                "the line is too long: it has {} bytes, and the limit is {LONGEST_LINE}",
                long.bytes()
            );
            RpcMessage::error_response(id.as_ref(), code::INVALID_REQUEST, &reason, None)
        }
        LineItem::Half(_) => return,
    };
    let _ = client.send(&refusal).await;
}
