//! Upstream servers: their configuration, their instances, and the routing of requests to them.
//!
//! | module | purpose |
//! | --- | --- |
//! | `configured` | a configured server and its instances |
//! | `names` | names for servers without a configured one |
//! | `upstream/` | one instance: requests and responses, restarts and recovery |
//! | `upstream/bridge/` | translation between a client of one protocol era and a server of the other |
//! | `shared`, `pool` | instances that several sessions share |
//! | `backing`, `outbox` | a server behind a client, and the messages for it that need no response |
//! | `routing`, `merge` | several servers behind one client: routing, and merged responses |
//! | `catalog` | the known tools of a server |
//! | `health` | the last failure of a server |
//! | `views` | views of servers for operators |

pub(crate) mod backing;
pub(crate) mod catalog;
pub(crate) mod configured;
pub(crate) mod health;
pub(crate) mod merge;
pub(crate) mod names;
pub(crate) mod outbox;
pub(crate) mod pool;
pub(crate) mod routing;
pub(crate) mod shared;
pub(crate) mod upstream;
pub(crate) mod views;
