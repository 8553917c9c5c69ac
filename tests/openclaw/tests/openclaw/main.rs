//! The OpenClaw plugin on a real OpenClaw.
//!
//! The model is scripted and the tools are ours, so that tests count what happens: requests to the model, runs of tools,
//! lines in logs. `cargo xtask setup` installs the host.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on has failed"
)]

mod approvals;
mod corpus;
mod duplicates;
mod faults;
mod host;
mod install;
mod loops;
mod model;
mod plugin;
mod settings;
mod tool_search;
mod watchdog;
