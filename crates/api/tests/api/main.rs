//! Requests to the API: calls, queries, and changes by operators.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on says so by panicking"
)]

mod calling;
mod connections;
mod contract;
mod events;
mod hosting;
mod keyless;
mod lists;
mod looking;
mod reporting;
mod steering;
mod support;
mod turning;
