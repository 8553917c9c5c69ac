//! Guarantees of this store beyond the suite for all stores (`tests/suite.rs`).

mod crash;
mod files;
mod loss;
mod processes;
mod sharing;
pub(crate) mod steps;
pub(crate) mod world;
