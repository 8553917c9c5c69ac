//! Tests of the store against real servers.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod login;
mod outage;
mod refused;
mod suites;
mod trips;
mod world;
