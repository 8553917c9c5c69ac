//! An endpoint of the gateway: the parts behind one address.

use std::sync::Arc;

use steadfast_core::id::ActorId;
use steadfast_executor::Engine;
use steadfast_mcp::http::server::{AdminToken, BearerTokens};
use steadfast_store::StateStore;

use crate::builtin_tools::BuiltinTools;
use crate::calls::large_results::LargeResults;
use crate::servers::configured::ConfiguredServer;
use crate::servers::pool::ServerPool;

/// The parts of the gateway at one address.
#[derive(Clone)]
pub struct GatewayEndpoint {
    /// Runs the calls.
    pub engine: Engine,
    /// Stores sessions that survive a restart.
    pub store: Arc<dyn StateStore>,
    /// The name of this endpoint. A session of one endpoint is not valid at another.
    pub name: Arc<str>,
    /// The servers behind it.
    pub servers: Vec<ConfiguredServer>,
    /// The built-in tools that its clients see.
    pub own_tools: BuiltinTools,
    /// Stores result texts that exceed the limit of their tool.
    pub large_results: Arc<LargeResults>,
    /// The servers that sessions share, including those of other endpoints.
    pub pool: Arc<ServerPool>,
    /// The accepted client tokens.
    pub tokens: BearerTokens,
    /// The actor of requests without a token while no client token exists. `None` if other machines can connect.
    pub local: Option<ActorId>,
    /// The holder of the admin token, who can make calls like a client.
    pub operator: Option<OperatorAccess>,
}

/// The operator of a gateway as a client of it.
#[derive(Clone, Debug)]
pub struct OperatorAccess {
    /// The token that the operator sends.
    pub token: AdminToken,
    /// The actor of the operator's calls.
    pub actor: ActorId,
}
