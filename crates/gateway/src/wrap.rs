//! One server in front of one client, each on a line of its own: what `steadfast wrap -- COMMAND` does.

use std::time::Duration;

use steadfast_core::id::Namespace;
use steadfast_executor::Engine;
use steadfast_mcp::delivery::Link;
use steadfast_mcp::lines::{LONGEST_LINE, LineReader, QueueLimits, line_writer};
use steadfast_process::{Incarnations, Supervisor};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::server::Server;
use crate::session::Session;
use crate::who::Connection;

/// A client's line and the server that is wanted behind it.
pub struct Wrapped<R, W> {
    /// What the client writes.
    pub input: R,
    /// What the client reads.
    pub output: W,
    /// Who the client is.
    pub connection: Connection,
    /// What the server is called, and the namespace of its tools.
    pub name: Namespace,
    /// The server.
    pub supervisor: Supervisor,
    /// Its incarnations.
    pub incarnations: Incarnations,
}

/// How long what is left to say to a client that is gone may take.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Carries messages between client and server until the client has gone and what it began is over, or until `stop`. The
/// engine is shut down with it.
pub async fn wrap<R, W>(engine: &Engine, wrapped: Wrapped<R, W>, stop: CancellationToken)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let Wrapped { input, output, connection, name, supervisor, incarnations } = wrapped;
    let link = Link::new();
    let (client, writing) = line_writer(output, link.clone(), QueueLimits::default());
    let writing = tokio::spawn(writing);
    let server = Server::new(name, supervisor);
    let session = Session::new(engine.clone(), server.clone(), client, link, connection);
    let kept = tokio::spawn(server.clone().keep(incarnations, session.clone()));
    session.run(LineReader::new(input, LONGEST_LINE), stop).await;
    drop(session);
    server.stop().await;
    kept.abort();
    // The session ends with the last who knows it, and with it the line to the client.
    let _ = kept.await;
    let _ = tokio::time::timeout(LAST_WORDS, writing).await;
}
