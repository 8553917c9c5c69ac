//! Input that nobody means well with (SF-5): from clients on our streams and over HTTP, and from servers. Each gets the answer
//! that the specification asks for, the next good call works, and nothing of it is kept.

mod client;
mod http;
mod server;

use std::fs;

/// What a process has in memory, in KiB.
pub(crate) fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
    line.trim().trim_end_matches(" kB").trim().parse().unwrap()
}

/// More than allocators keep back, and less than anything that is kept of each message would come to.
pub(crate) const SLACK: u64 = 48 << 10;
