//! The gateway of the demo: the same as `steadfast wrap --listen`, in this process, in front of the bank.

use std::net::SocketAddr;
use std::time::Duration;

use steadfast::call::id::Namespace;
use steadfast::config::Sources;
use steadfast::telemetry::LogOutput;
use steadfast::{Engine, Steadfast};
use steadfast_core::restart::RestartPolicy;
use steadfast_gateway::{ConfiguredServer, ServerSharing};
use steadfast_process::{Launch, Leash};

use crate::support::access::AcceptedTokens;
use crate::support::failure::CommandFailure;
use crate::support::listener::{HostOptions, ListeningGateway};
use crate::support::upstream;

/// A running gateway.
pub(super) struct DemoGateway {
    steadfast: Steadfast,
    listened: ListeningGateway,
    url: String,
}

/// Mode of the mechanisms of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DemoMechanisms {
    On,
    Off,
}

/// Timeout for a statement of the bank. In practice it is minutes, which is too long for a demo. The other tools keep
/// minutes: they always answer, and a busy machine must not make them time out.
pub(super) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(2);

impl DemoGateway {
    /// Listens at this address. Reads no file and no variable, so that the demo is the same everywhere.
    pub(super) async fn open(
        address: SocketAddr,
        launch: Launch,
        leash: Leash,
        mechanisms: DemoMechanisms,
        logging: LogOutput,
    ) -> Result<Self, CommandFailure> {
        let sources = Sources { start: steadfast::config::PolicyStart::Gateway, ..Sources::default() };
        let mode = match mechanisms {
            DemoMechanisms::On => "enforce",
            DemoMechanisms::Off => "off",
        };
        let steadfast = Steadfast::builder()
            .sources(sources)
            .set("store.kind", "memory")
            .set("mode", mode)
            .set("tools.\"bank/statement\".timeout", &format!("{}s", STATEMENT_TIMEOUT.as_secs()))
            .set("tools.\"bank/pay\".verify", "call the tool `payments` with the invoice")
            .logging(logging)
            .owns_process()
            .build()
            .await?;
        let name = Namespace::new("bank").map_err(|error| CommandFailure::Environment(error.to_string()))?;
        let start = upstream::child(launch, leash, RestartPolicy::default());
        let bank = ConfiguredServer::new(name, ServerSharing::PerSession { most: 64 }, start);
        let endpoints = vec![(PATH.to_owned(), vec![bank])];
        let access = AcceptedTokens::all_local_callers();
        let listened =
            ListeningGateway::open(&steadfast, address, &HostOptions::default(), access, endpoints).await?;
        let url = listened.url(PATH);
        Ok(Self { steadfast, listened, url })
    }

    /// Returns its URL.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the engine that runs its calls.
    pub(super) fn engine(&self) -> &Engine {
        self.steadfast.engine()
    }

    /// Ends the gateway and every server behind it.
    pub(super) async fn close(self) {
        self.listened.close(DRAIN).await;
        self.steadfast.shutdown(Duration::ZERO).await;
    }
}

/// Time for calls in flight at shutdown. They are only a demo.
const DRAIN: Duration = Duration::from_millis(200);
const PATH: &str = "/mcp";
