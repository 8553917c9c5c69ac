//! Requests to the API: calls, queries, and changes by operators.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on says so by panicking"
)]

mod admin;
mod calls;
mod connections;
mod contract;
mod events;
mod host_calls;
mod keyless;
mod lists;
mod queries;
mod reporting;
mod support;
mod turns;
