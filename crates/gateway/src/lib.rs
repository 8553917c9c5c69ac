//! The gateway between MCP clients and MCP servers.
//!
//! Messages are passed on byte for byte; only the fields that routing needs are parsed. `tools/call` goes through the
//! engine, which deduplicates and retries calls if the server, the client or the gateway fails.
//!
//! | module | purpose |
//! | --- | --- |
//! | `session` | routes the messages of one client and its servers |
//! | `session/requests` | requests other than calls |
//! | `session/client_settings` | log level and resource subscriptions of one client of shared servers |
//! | `session/redelivery` | responses that were not delivered, for a client that returns for them |
//! | `servers`, `merge` | several servers behind one client: routing, and merged responses |
//! | `shared_server`, `pool` | servers that several sessions share |
//! | `configured_server` | a configured server |
//! | `client` | connections to a client: a line, the streams of a session, the responses to single requests |
//! | `server/` | an upstream server: requests and responses, restarts and recovery |
//! | `server/bridge/` | translation between a client of one protocol era and a server of the other |
//! | `call` | the envelope of a call, and the upstream tool that the engine runs |
//! | `approval` | approval requests to the user of the client |
//! | `request_notifications` | progress and other notifications that belong to a request |
//! | `identity` | the identity of a caller, and the idempotency key of a call |
//! | `responses` | the MCP response for the result of a call |
//! | `large_results`, `session/result_pages` | result texts that exceed the limit of their tool |
//! | `catalog` | the known tools of a server |
//! | `direct_servers` | tools of MCP servers for callers without MCP |
//! | `views` | views of servers and sessions for operators |
//! | `listener` | clients over HTTP and their sessions |
//! | `stdio_client` | a client on standard streams |
//! | `session_store` | sessions that survive a restart of the gateway |
//! | `reliability` | built-in tools for the status and the reset of trust |
//! | `turn` | a built-in tool that runs several calls |
//! | `json_parts` | JSON assembled from parts |
//! | `local` | the identity of the local client, and names for servers without one |
//! | `seal` | seals on texts that clients carry |

mod approval;
mod call;
mod catalog;
mod client;
mod configured_server;
mod direct_servers;
mod health;
mod identity;
mod json_parts;
mod large_results;
mod listener;
mod local;
mod merge;
mod merged_channel;
mod outbox;
mod pool;
mod reliability;
mod request_notifications;
mod responses;
mod seal;
mod server;
mod servers;
mod session;
mod session_store;
mod shared_server;
mod stdio_client;
mod turn;
mod views;

pub use configured_server::{BackendFactory, ConfiguredServer, ServerSharing};
pub use direct_servers::{DirectServers, DirectTool};
pub use identity::{ClientIdentity, RequestContext, UnusableKey};
pub use large_results::{LargeResults, ReadMethod, ResultPage, ResultReadError};
pub use listener::{GatewayEndpoint, Listener, OperatorAccess};
pub use local::{namespace_of, namespace_of_url};
pub use pool::ServerPool;
pub use reliability::BuiltinTools;
pub use seal::SealKey;
pub use server::Backend;
pub use stdio_client::{StdioClient, wrap};
pub use views::{EndView, InstanceState, InstanceView, ServerView, SessionView};
