//! The gateway as its users run it: the real program, a client that knows nothing of it, and a server that misbehaves.
#![cfg(unix)]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that cannot go on says so by panicking"
)]

/// Settings for tests in which the time until an attempt is settled does not matter.
macro_rules! short_settle_times {
    () => {
        "settling.linger = \"100ms\"\nsettling.settle = \"100ms\"\n"
    };
}

mod access;
mod agents;
mod api;
mod approvals;
mod bridge;
mod client;
mod conformance;
mod connections;
mod ends;
mod faults;
mod guard;
mod hostile;
mod large;
mod load;
mod matrix;
mod operator;
mod plain;
mod raw;
mod real;
mod serve;
mod session;
mod soak;
mod tenants;
mod trust;
mod turns;
mod world;
