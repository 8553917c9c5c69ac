//! The gateway between MCP clients and MCP servers.
//!
//! Messages are passed on byte for byte; only the fields that routing needs are parsed. `tools/call` goes through the
//! engine, which deduplicates and retries calls if the server, the client or the gateway fails.
//!
//! | module | purpose |
//! | --- | --- |
//! | `listeners/` | clients over HTTP and on standard streams |
//! | `session/` | the session of one client and its servers: routes each message |
//! | `builtin_tools/` | tools of the gateway itself: the reset of trust, and turns |
//! | `calls/` | one call: envelope, upstream tool, approval, response, large results |
//! | `client/` | the client's side: connections, identity, notifications |
//! | `servers/` | upstream servers: instances, recovery, sharing, routing |
//! | `protocol` | names and messages of the protocol that several parts use |
//! | `json_parts` | JSON assembled from parts |
//! | `seal` | seals on texts that clients carry |
//!
//! A module uses only modules below it in this table.

mod builtin_tools;
mod calls;
mod client;
mod json_parts;
mod listeners;
mod protocol;
mod seal;
mod servers;
mod session;

pub use builtin_tools::BuiltinTools;
pub use calls::direct::{DirectServers, DirectTool};
pub use calls::large_results::{LargeResults, ReadMethod, ResultPage, ResultReadError};
pub use client::identity::{ClientIdentity, RequestContext, UnusableKey};
pub use listeners::client_session::SessionView;
pub use listeners::endpoint::{GatewayEndpoint, OperatorAccess};
pub use listeners::http::Listener;
pub use listeners::stdio::{StdioClient, wrap};
pub use seal::SealKey;
pub use servers::configured::{BackendFactory, ConfiguredServer, ServerSharing};
pub use servers::names::{namespace_of, namespace_of_url};
pub use servers::pool::ServerPool;
pub use servers::upstream::Backend;
pub use servers::views::{EndView, InstanceState, InstanceView, ServerView};
