//! External services and settings for tests. For tests only.
//!
//! Everything that is started here ends when its value is dropped, so that no test leaves anything behind. A fixture
//! that cannot start panics with the reason.
#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a fixture that cannot start has nothing better to do than to fail its test"
)]

pub mod effort;
pub mod redis;
