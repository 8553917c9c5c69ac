//! The client's side of a session.
//!
//! | module | purpose |
//! | --- | --- |
//! | `connection` | connections to a client, and channels for responses |
//! | `request_channel` | the channel for other messages that belong to a request |
//! | `request_notifications` | progress and other notifications that belong to a request |
//! | `identity` | the identity of a caller, and the idempotency key of a call |
//! | `parent_process` | the identity of the client on standard streams |

pub(crate) mod connection;
pub(crate) mod identity;
mod parent_process;
pub(crate) mod request_channel;
pub(crate) mod request_notifications;
