//! Stands between MCP clients and servers.
//!
//! Messages are carried as the bytes that came; what is parsed is what is routed by. `tools/call` goes down the one path
//! of the engine, so that a call runs as often as it should whatever becomes of the server, the client or us.
//!
//! | file | what it does |
//! | --- | --- |
//! | `session` | which message of a client or server goes where |
//! | `session/asking` | requests that are no calls |
//! | `session/wishes` | what one client wants of servers that others use too |
//! | `session/missed` | answers that never arrived, for a client that comes back for them |
//! | `servers`, `merge` | several servers behind one client: whose a message is, and what they say as one |
//! | `shared`, `pool` | servers that several sessions use |
//! | `configured` | a server that is wanted |
//! | `client` | the ways to a client: a line, the streams of a session, the answers to single requests |
//! | `server/` | a server behind us: requests and their answers, death and recovery |
//! | `server/bridge/` | a client of one era of the protocol and a server of the other |
//! | `call` | a call as the engine takes it, and the tool that it runs |
//! | `approval` | whether a call may run, asked of the person at the client |
//! | `news` | what a client hears of a request before its answer |
//! | `who` | who is calling, and by what a call is known again |
//! | `made` | the message that a client gets for what a call came to |
//! | `large_results`, `session/large` | texts of results that are longer than their callers want |
//! | `catalog` | what is known of a server's tools |
//! | `direct` | the tools of servers for callers that speak no MCP |
//! | `look` | what there is to see of servers and sessions |
//! | `listen` | clients over HTTP and their sessions |
//! | `wrap` | a client on a line |
//! | `memory` | sessions that outlive us |
//! | `reliability` | two tools of our own: how the others stand |
//! | `turn` | another one, which runs several calls at once |
//! | `pieces` | JSON that is made of pieces |
//! | `local` | who started us, and what a server is called that nobody gave a name |

mod approval;
mod call;
mod catalog;
mod client;
mod configured;
mod direct;
mod health;
mod joined;
mod large_results;
mod listen;
mod local;
mod look;
mod made;
mod memory;
mod merge;
mod news;
mod outbox;
mod pieces;
mod pool;
mod reliability;
mod server;
mod servers;
mod session;
mod shared;
mod turn;
mod who;
mod wrap;

pub use configured::{Configured, Sharing, Start};
pub use direct::{Direct, DirectTool};
pub use large_results::{LargeResults, ReadBy, ReadError, ResultPage};
pub use listen::{Door, Listener, Operator};
pub use local::{namespace_of, namespace_of_url};
pub use look::{EndView, InstanceState, InstanceView, ServerView, SessionView};
pub use pool::Pool;
pub use reliability::OwnTools;
pub use server::Backend;
pub use who::{Connection, Said, UnusableKey};
pub use wrap::{Wrapped, wrap};
