//! The engine: its calls, its builder and its shutdown.

pub(crate) mod api;
pub(crate) mod approval;
pub(crate) mod builder;
mod host_calls;
mod reports;
pub(crate) mod server_names;
mod tasks;
mod tool_lists;
mod turns;
pub(crate) mod undelivered;
