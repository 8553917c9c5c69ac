//! The gateway of the demo: what `steadfast wrap --listen` makes, in this process, with the bank behind it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use steadfast::id::Namespace;
use steadfast::{Logging, Sources, Steadfast};
use steadfast_core::restart::RestartPolicy;
use steadfast_gateway::{Backend, Connection, Listener, Start};
use steadfast_mcp::http::front::{Endpoint, ServeLimits, Settings, Tokens, not_found, serve};
use steadfast_process::{Launch, Leash, Supervisor};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;

/// A gateway that takes clients.
pub(super) struct Gateway {
    steadfast: Steadfast,
    sessions: Arc<Listener>,
    tidying: JoinHandle<()>,
    serving: JoinHandle<()>,
    stop: CancellationToken,
    url: String,
}

/// What the mechanisms of the gateway do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mechanisms {
    On,
    Off,
}

/// How long the tools of the bank may be silent. In life that is minutes; nobody watches that.
pub(super) const TOOL_TIMEOUT: Duration = Duration::from_secs(2);

impl Gateway {
    /// Takes clients at this address. Reads no file and no variable: the story is the same everywhere.
    pub(super) async fn open(
        address: SocketAddr,
        launch: Launch,
        leash: Leash,
        mechanisms: Mechanisms,
        logging: Logging,
    ) -> Result<Self, Failure> {
        let sources = Sources { start: steadfast::Start::Gateway, ..Sources::default() };
        let mode = match mechanisms {
            Mechanisms::On => "enforce",
            Mechanisms::Off => "off",
        };
        let steadfast = Steadfast::opening(sources)
            .set("store.kind", "memory")
            .set("mode", mode)
            .set("tools.\"bank/*\".timeout", &format!("{}s", TOOL_TIMEOUT.as_secs()))
            .set("tools.\"bank/pay\".verify", "call the tool `payments` with the invoice")
            .logging(logging)
            .owns_process()
            .open()
            .await?;
        let cannot = |error| Failure::World(format!("cannot listen on {address}: {error}"));
        let listener = TcpListener::bind(address).await.map_err(cannot)?;
        let url = format!("http://{}/mcp", listener.local_addr().map_err(cannot)?);
        let name = Namespace::new("bank").map_err(|error| Failure::World(error.to_string()))?;
        let local = Some(Connection::of_parent().actor);
        let sessions = Listener::new(
            (steadfast.engine().clone(), steadfast.store().clone()),
            name,
            Tokens::default(),
            local,
            start(launch, leash),
        );
        let tidying = tokio::spawn(sessions.clone().tidy());
        let endpoint = Arc::new(Endpoint::new(sessions.clone(), Settings::default()));
        let service = move |request: Request<_>, peer| {
            let endpoint = endpoint.clone();
            async move {
                match request.uri().path() {
                    "/mcp" => endpoint.respond(request, peer).await,
                    _ => not_found(&peer),
                }
            }
        };
        let stop = CancellationToken::new();
        let serving = serve(listener, ServeLimits::default(), service, stop.clone());
        let serving = tokio::spawn(async move { _ = serving.await });
        Ok(Self { steadfast, sessions, tidying, serving, stop, url })
    }

    /// Where clients find it.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Ends it and every server behind it.
    pub(super) async fn close(self) {
        self.stop.cancel();
        self.tidying.abort();
        self.sessions.close(DRAIN).await;
        let _ = tokio::time::timeout(LAST_WORDS, self.serving).await;
        self.steadfast.shutdown(Duration::ZERO).await;
    }
}

/// What is under way when we are asked to end is a demo.
const DRAIN: Duration = Duration::from_millis(200);
const LAST_WORDS: Duration = Duration::from_secs(1);

fn start(launch: Launch, leash: Leash) -> Start {
    let seed = u64::from(std::process::id());
    Box::new(move || {
        let (supervisor, incarnations) =
            Supervisor::new(launch.clone(), leash.clone(), RestartPolicy::default(), seed);
        Backend::Child(supervisor, incarnations)
    })
}
