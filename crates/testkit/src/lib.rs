//! What tests need around them and cannot make out of nothing. For tests only.
//!
//! Everything started here ends with the value that stands for it: whatever a test does, nothing is left behind.
//! A fixture that cannot start panics, with the reason: its test has nothing better to do.
#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a fixture that cannot start has nothing better to do than to fail its test"
)]

pub mod effort;
pub mod redis;
