//! Resources after a hundred crashes are as before. Alone in its process, so that the counts are its own.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod common;

use std::fs;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use steadfast_core::restart::RestartPolicy;
use steadfast_process::{Leash, Supervisor};

use common::{TEST_TIMEOUT, parent, sh, soon};

#[tokio::test]
async fn sf_9_a_hundred_crashes_leave_no_process_no_handle_and_no_task() {
    // Resources that are created once and kept, such as the signal handler of the runtime, exist before the first
    // count.
    crash(1).await;
    let before = ResourceCounts::now();
    crash(100).await;
    // Resources of the last crash may take a moment to be freed.
    let deadline = Instant::now() + TEST_TIMEOUT;
    while ResourceCounts::now() != before && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(ResourceCounts::now(), before);
}

async fn crash(times: u64) {
    let policy = RestartPolicy {
        crashes: NonZeroU32::new(1000).unwrap(),
        first_wait: Duration::ZERO,
        longest_wait: Duration::ZERO,
        ..RestartPolicy::default()
    };
    // Each one leaves a process behind and writes a line.
    let launch = sh("sleep 600 & echo crashing >&2; kill -9 $$");
    let leash = Leash::of(env!("CARGO_BIN_EXE_steadfast-process-actor"));
    let (supervisor, mut incarnations) = Supervisor::new(launch, leash, policy, 1);
    let stderr = supervisor.stderr().clone();
    supervisor.request_start().await;
    for number in 1..=times {
        let incarnation = soon(incarnations.next()).await.unwrap();
        assert_eq!(incarnation.number.get(), number);
    }
    soon(supervisor.stop()).await;
    assert!(stderr.written() >= times - 1);
}

#[derive(Debug, PartialEq, Eq)]
struct ResourceCounts {
    children: usize,
    handles: usize,
    tasks: usize,
}

impl ResourceCounts {
    fn now() -> Self {
        let own = std::process::id();
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        Self {
            children: pids.filter(|pid| parent(*pid) == Some(own)).count(),
            handles: fs::read_dir("/proc/self/fd").unwrap().count(),
            tasks: tokio::runtime::Handle::current().metrics().num_alive_tasks(),
        }
    }
}
