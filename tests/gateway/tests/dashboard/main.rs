//! The dashboard for the operator, in a real browser, in front of the real program.
#![cfg(unix)]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that cannot go on says so by panicking"
)]

mod actions;
mod browser;
#[expect(dead_code, reason = "a part of what the tests of the gateway use")]
#[path = "../gateway/client.rs"]
mod client;
mod hostile_data;
mod layout;
mod notifications;
mod outcomes;
mod pictures;
mod tenants;
mod tool;
mod turns;
mod views;
#[expect(dead_code, reason = "a part of what the tests of the gateway use")]
#[path = "../gateway/world.rs"]
mod world;

use std::fs;
use std::net::SocketAddr;

use crate::client::McpTestClient;
use crate::world::{GatewayWorld, TestTransport};

/// The admin token of every gateway here.
pub(crate) const TOKEN: &str = "the-person-who-runs-this";

/// A gateway with the test server behind it, and one client.
pub(crate) struct DashboardGateway {
    pub(crate) world: GatewayWorld,
    pub(crate) client: McpTestClient,
}

impl DashboardGateway {
    pub(crate) fn new(test: &str, config: &str) -> Self {
        Self::with_tools(test, config, &[])
    }

    /// Creates one whose server has additional tools.
    pub(crate) fn with_tools(test: &str, config: &str, tools: &[String]) -> Self {
        let world =
            GatewayWorld::of(&format!("dashboard_{test}"), config, TestTransport::Http, TestTransport::Stdio);
        fs::write(world.folder().join("ledger.names"), tools.join("\n")).unwrap();
        let client = world.client_of("bank", |command| {
            command.env("STEADFAST_ADMIN_TOKEN", TOKEN);
        });
        Self { world, client }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.client.address()
    }
}
