//! What this store promises beyond the suite that all stores pass (`tests/suite.rs`).

mod crash;
mod files;
mod processes;
mod sharing;
pub(crate) mod steps;
mod world;
