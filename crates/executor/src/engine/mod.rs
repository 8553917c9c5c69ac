//! The engine: its calls, its options, its builder and its shutdown.

pub(crate) mod api;
pub(crate) mod host_calls;
pub(crate) mod reports;
pub(crate) mod server_names;
pub(crate) mod undelivered;
