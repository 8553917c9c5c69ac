//! What this store promises beyond the suite that all stores pass (`tests/suite.rs`).

mod crash;
mod files;
mod loss;
mod processes;
mod sharing;
pub(crate) mod steps;
pub(crate) mod world;
