//! The API as it is asked: what there is to see, and what a person changes.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on says so by panicking"
)]

mod events;
mod looking;
mod steering;
mod support;
