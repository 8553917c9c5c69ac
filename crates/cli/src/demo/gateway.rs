//! The gateway of the demo: what `steadfast wrap --listen` makes, in this process, with the bank behind it.

use std::net::SocketAddr;
use std::time::Duration;

use steadfast::id::Namespace;
use steadfast::{Engine, Logging, Sources, Steadfast};
use steadfast_core::restart::RestartPolicy;
use steadfast_gateway::{Configured, Sharing};
use steadfast_process::{Launch, Leash};

use crate::access::Access;
use crate::behind;
use crate::failure::Failure;
use crate::listening::{Hosts, Listened};

/// A gateway that takes clients.
pub(super) struct Gateway {
    steadfast: Steadfast,
    listened: Listened,
    url: String,
}

/// What the mechanisms of the gateway do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mechanisms {
    On,
    Off,
}

/// How long a statement of the bank may take. In life that is minutes; nobody watches that. The other tools have the minutes:
/// they answer, and a machine with much to do must not make them late.
pub(super) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(2);

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
            .set("tools.\"bank/statement\".timeout", &format!("{}s", STATEMENT_TIMEOUT.as_secs()))
            .set("tools.\"bank/pay\".verify", "call the tool `payments` with the invoice")
            .logging(logging)
            .owns_process()
            .open()
            .await?;
        let name = Namespace::new("bank").map_err(|error| Failure::World(error.to_string()))?;
        let start = behind::child(launch, leash, RestartPolicy::default());
        let bank = Configured::new(name, Sharing::PerSession { most: 64 }, start);
        let doors = vec![(PATH.to_owned(), vec![bank])];
        let access = Access::of_everybody_here();
        let listened = Listened::open(&steadfast, address, &Hosts::default(), access, doors).await?;
        let url = listened.url(PATH);
        Ok(Self { steadfast, listened, url })
    }

    /// Where clients find it.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// What its calls are under way in.
    pub(super) fn engine(&self) -> &Engine {
        self.steadfast.engine()
    }

    /// Ends it and every server behind it.
    pub(super) async fn close(self) {
        self.listened.close(DRAIN).await;
        self.steadfast.shutdown(Duration::ZERO).await;
    }
}

/// What is under way when we are asked to end is a demo.
const DRAIN: Duration = Duration::from_millis(200);
const PATH: &str = "/mcp";
