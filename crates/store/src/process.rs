//! The identity of this process, and the check if another process still lives.
//!
//! On one machine a claim ends when its process ends, and only then. So a retry after `kill -9` need not wait, and a
//! process on a laptop that slept is not declared dead. A process is identified by the boot of its machine, its
//! number and its start time. If any of these cannot be compared, the lease time decides.

use std::fmt;
use std::fs;
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::dedupe::{LeaseOwnerState, ProcessIdentity};

/// Returns the identity of this process.
pub fn this_process() -> ProcessIdentity {
    let pid = std::process::id();
    // If the boot is unknown, this process gets one of its own, so that it cannot be mistaken for another one.
    let boot = boot().unwrap_or_else(|| format!("unknown-{pid}-{:?}", std::time::SystemTime::now()).into());
    ProcessIdentity { boot, pid, started: started(pid).unwrap_or(0) }
}

/// Returns the process with this number on this machine, if it exists and can be distinguished from a later one with
/// the same number.
pub fn process(pid: u32) -> Option<ProcessIdentity> {
    Some(ProcessIdentity { boot: boot()?, pid, started: started(pid)? })
}

/// Checks if the process that owns a record still lives.
pub trait ProcessMonitor: fmt::Debug + Send + Sync {
    /// Returns the state of a process.
    fn check_process(&self, process: &ProcessIdentity) -> LeaseOwnerState;
}

/// Checks the processes of this machine.
#[derive(Debug)]
pub struct LocalProcessMonitor {
    own: ProcessIdentity,
    /// The last process that was found gone. A crashed process may have many records, and it stays dead.
    dead: Mutex<Option<ProcessIdentity>>,
}

impl LocalProcessMonitor {
    /// Creates a checker, as seen from this process.
    pub fn of(own: ProcessIdentity) -> Self {
        Self { own, dead: Mutex::new(None) }
    }
}

impl ProcessMonitor for LocalProcessMonitor {
    fn check_process(&self, process: &ProcessIdentity) -> LeaseOwnerState {
        if *process == self.own {
            return LeaseOwnerState::Alive;
        }
        // A different boot: either another machine with a shared file, or this one before a restart. The two cases
        // cannot be distinguished.
        if process.boot != self.own.boot {
            return LeaseOwnerState::Time;
        }
        if self.dead.lock().as_ref() == Some(process) {
            return LeaseOwnerState::Gone;
        }
        match started(process.pid) {
            Some(started) if started == process.started => LeaseOwnerState::Alive,
            Some(_) | None => {
                *self.dead.lock() = Some(process.clone());
                LeaseOwnerState::Gone
            }
        }
    }
}

/// Returns the boot of the machine, and the namespace of its process numbers.
#[cfg(target_os = "linux")]
fn boot() -> Option<Arc<str>> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{}/{}", boot.trim(), namespace.display()).into())
}

/// Returns the start time of a process, in ticks since the boot. Returns `None` if there is no such process.
#[cfg(target_os = "linux")]
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain anything, even parentheses. The fields after it are plain.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    // A zombie has ended, but its parent has not collected it yet.
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// On other systems no process can be checked, and the lease time decides.
#[cfg(not(target_os = "linux"))]
fn boot() -> Option<Arc<str>> {
    None
}

#[cfg(not(target_os = "linux"))]
fn started(_pid: u32) -> Option<u64> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_alive_until_it_ends_and_its_number_alone_proves_nothing() {
        let neighbours = LocalProcessMonitor::of(this_process());
        assert_eq!(neighbours.check_process(&this_process()), LeaseOwnerState::Alive);

        /// Kills the child also if the test panics.
        struct KillOnDrop(std::process::Child);

        impl Drop for KillOnDrop {
            fn drop(&mut self) {
                let _ = self.0.kill();
                let _ = self.0.wait();
            }
        }

        let child = KillOnDrop(std::process::Command::new("sleep").arg("600").spawn().unwrap());
        let pid = child.0.id();
        let process = ProcessIdentity { pid, started: started(pid).unwrap(), ..this_process() };
        assert_eq!(neighbours.check_process(&process), LeaseOwnerState::Alive);
        let namesake = ProcessIdentity { started: process.started + 1, ..process.clone() };
        assert_eq!(
            neighbours.check_process(&namesake),
            LeaseOwnerState::Gone,
            "another process had this number"
        );
        let stranger = ProcessIdentity { boot: "another machine".into(), ..process.clone() };
        assert_eq!(neighbours.check_process(&stranger), LeaseOwnerState::Time);

        drop(child);
        assert_eq!(neighbours.check_process(&process), LeaseOwnerState::Gone);
        assert_eq!(neighbours.check_process(&process), LeaseOwnerState::Gone, "and stays so");
    }
}
