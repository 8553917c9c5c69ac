//! Real processes: their environment, their end, and the absence of leftovers.
#![cfg(unix)]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on says so by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod children;
mod launch;
#[cfg(target_os = "linux")]
mod owners;
mod supervision;

use steadfast_process::{Launch, Leash, SpawnedChild, StderrLog};

fn leash() -> Leash {
    Leash::of(env!("CARGO_BIN_EXE_steadfast-process-actor"))
}

async fn start(launch: &Launch) -> SpawnedChild {
    common::soon(launch.start(&leash(), &StderrLog::new())).await.unwrap()
}
