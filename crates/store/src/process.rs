//! Which process we are, and whether another one still lives.
//!
//! On one machine a claim ends when, and only when, its process is gone: a resend after `kill -9` need not wait,
//! and a laptop that slept is not declared dead. A process is told apart by the boot of its machine, its number
//! and its start; where any of that cannot be judged, time decides.

use std::fmt;
use std::fs;
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::dedupe::{LeaseSight, Process};

/// This process.
pub fn this_process() -> Process {
    let pid = std::process::id();
    // A machine that tells nothing gets a boot of its own, so that nobody is taken for somebody else.
    let boot = boot().unwrap_or_else(|| format!("unknown-{pid}-{:?}", std::time::SystemTime::now()).into());
    Process { boot, pid, started: started(pid).unwrap_or(0) }
}

/// The process with this number on this machine, if there is one and it can be told from the next of that number.
pub fn process(pid: u32) -> Option<Process> {
    Some(Process { boot: boot()?, pid, started: started(pid)? })
}

/// Judges whether the process that owns a record still lives.
pub trait Sight: fmt::Debug + Send + Sync {
    /// What is known of a process.
    fn sight(&self, process: &Process) -> LeaseSight;
}

/// Judges the owners of records on this machine.
#[derive(Debug)]
pub struct Neighbours {
    own: Process,
    /// The last process that was found gone. Records of a crashed process come in numbers; a dead process stays
    /// dead.
    gone: Mutex<Option<Process>>,
}

impl Neighbours {
    /// As this process sees them.
    pub fn of(own: Process) -> Self {
        Self { own, gone: Mutex::new(None) }
    }
}

impl Sight for Neighbours {
    fn sight(&self, process: &Process) -> LeaseSight {
        if *process == self.own {
            return LeaseSight::Alive;
        }
        // Another boot: of another machine on a shared file, or of this one before it was started again. The two
        // cannot be told apart.
        if process.boot != self.own.boot {
            return LeaseSight::Time;
        }
        if self.gone.lock().as_ref() == Some(process) {
            return LeaseSight::Gone;
        }
        match started(process.pid) {
            Some(started) if started == process.started => LeaseSight::Alive,
            Some(_) | None => {
                *self.gone.lock() = Some(process.clone());
                LeaseSight::Gone
            }
        }
    }
}

/// The machine's boot, and the namespace in which process numbers mean something.
#[cfg(target_os = "linux")]
fn boot() -> Option<Arc<str>> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{}/{}", boot.trim(), namespace.display()).into())
}

/// When a process started, in ticks since the boot; nothing if there is none.
#[cfg(target_os = "linux")]
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in brackets and may hold anything, brackets too; the fields behind it are plain.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    // A zombie has ended; nobody has collected it yet.
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Elsewhere nobody can be judged, and time decides.
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
        let neighbours = Neighbours::of(this_process());
        assert_eq!(neighbours.sight(&this_process()), LeaseSight::Alive);

        /// Ended also when the test panics.
        struct Ended(std::process::Child);

        impl Drop for Ended {
            fn drop(&mut self) {
                let _ = self.0.kill();
                let _ = self.0.wait();
            }
        }

        let child = Ended(std::process::Command::new("sleep").arg("600").spawn().unwrap());
        let pid = child.0.id();
        let process = Process { pid, started: started(pid).unwrap(), ..this_process() };
        assert_eq!(neighbours.sight(&process), LeaseSight::Alive);
        let namesake = Process { started: process.started + 1, ..process.clone() };
        assert_eq!(neighbours.sight(&namesake), LeaseSight::Gone, "another process had this number");
        let stranger = Process { boot: "another machine".into(), ..process.clone() };
        assert_eq!(neighbours.sight(&stranger), LeaseSight::Time);

        drop(child);
        assert_eq!(neighbours.sight(&process), LeaseSight::Gone);
        assert_eq!(neighbours.sight(&process), LeaseSight::Gone, "and stays so");
    }
}
