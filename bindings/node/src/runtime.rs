//! The threads that run what has to wait. They are started by the first `open` and live as long as the process: threads
//! of JavaScript come and go, engines stay.

use std::sync::OnceLock;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::failure::Failure;

static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();

/// Two threads: timers and stores keep one busy at most, and a tool is never run here.
const THREADS: usize = 2;

/// Returns the runtime, and starts it if necessary.
pub(crate) fn handle() -> Result<&'static Handle, Failure> {
    let start = || {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(THREADS).thread_name("steadfast").enable_all().build().ok()
    };
    match RUNTIME.get_or_init(start) {
        Some(runtime) => Ok(runtime.handle()),
        None => Err(Failure::open("open_failed", "the operating system refused to start a thread")),
    }
}
