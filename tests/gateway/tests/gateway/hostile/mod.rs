//! Hostile input (SF-5): from clients over stdio and over HTTP, and from servers. Each gets the answer that the
//! specification demands, the next valid call works, and nothing of it is kept.

mod client;
mod http;
mod server;

use std::fs;

/// Returns the resident memory of a process in KiB.
pub(crate) fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
    line.trim().trim_end_matches(" kB").trim().parse().unwrap()
}

/// More than allocators retain, and less than the sum if a part of each message were kept.
pub(crate) const SLACK: u64 = 48 << 10;
