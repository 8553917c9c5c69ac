//! Listeners for clients.
//!
//! | module | purpose |
//! | --- | --- |
//! | `http` | clients over HTTP and their sessions |
//! | `endpoint` | the parts of the gateway at one address |
//! | `client_session` | one client over HTTP |
//! | `stdio` | a client on standard streams |

pub(crate) mod client_session;
pub(crate) mod endpoint;
pub(crate) mod http;
pub(crate) mod stdio;
