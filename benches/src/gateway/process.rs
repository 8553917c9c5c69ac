//! Processes under test. Their output goes to a file. They are ended by id, with all processes that they have started,
//! because most of them start children and not all of them end these.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::engine::MeasurementError;

/// Maximum time until a process that was asked to end has ended.
const GRACE: Duration = Duration::from_secs(2);
const PAGE: f64 = 4096.0;

/// A process that ends when it is dropped.
///
/// It is in our own process group, so that an interrupt from a terminal reaches it too.
pub(crate) struct GroupedProcess {
    child: Child,
    /// Open input. Some processes end when it closes.
    input: Option<ChildStdin>,
}

impl GroupedProcess {
    /// Starts it, with its output in the file.
    pub(crate) fn start(command: &mut Command, words: &Path) -> Result<Self, MeasurementError> {
        let words = File::create(words)?;
        command.stdin(Stdio::piped()).stdout(words.try_clone()?).stderr(words);
        Self::of(command)
    }

    /// Starts it with our pipes as its streams. Its stderr goes to the file.
    pub(crate) fn start_with_streams(
        command: &mut Command,
        words: &Path,
    ) -> Result<(Self, ChildStdin, ChildStdout), MeasurementError> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(words)?);
        let mut process = Self::of(command)?;
        match (process.input.take(), process.child.stdout.take()) {
            (Some(input), Some(output)) => Ok((process, input, output)),
            _ => Err(MeasurementError::because("a child was started without its pipes")),
        }
    }

    fn of(command: &mut Command) -> Result<Self, MeasurementError> {
        let mut child = command.spawn().map_err(|error| {
            MeasurementError::because(format!("{} did not start: {error}", command.get_program().display()))
        })?;
        let input = child.stdin.take();
        Ok(Self { child, input })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns true if it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Returns the bytes of its own memory.
    pub(crate) fn resident(&self) -> Option<f64> {
        resident(self.id())
    }

    /// Returns the bytes of memory of the process and all its descendants. Shared pages count for each.
    pub(crate) fn resident_with_children(&self) -> Option<f64> {
        Some(self.resident()? + descendants(self.id()).keys().filter_map(|id| resident(*id)).sum::<f64>())
    }
}

impl Drop for GroupedProcess {
    fn drop(&mut self) {
        let started = descendants(self.id());
        drop(self.input.take());
        signal("-TERM", self.id());
        let signalled_at = Instant::now();
        while !self.has_ended() && signalled_at.elapsed() < GRACE {
            thread::sleep(Duration::from_millis(5));
        }
        // A failure means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for (id, began) in started {
            // The id may belong to another process by now.
            if stat(id).is_some_and(|stat| stat.began == began) {
                signal("-KILL", id);
            }
        }
    }
}

/// Ends a process that does not answer, unless a message arrives in time.
pub(crate) fn kill_unless_notified(id: u32, within: Duration) -> std::sync::mpsc::Sender<()> {
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || {
        if receiver.recv_timeout(within) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            signal("-KILL", id);
        }
    });
    sender
}

/// Returns a port of this machine that is free at the moment.
pub(crate) fn free_port() -> Result<u16, MeasurementError> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

fn signal(name: &str, id: u32) {
    let _ = Command::new("kill").args([name, &id.to_string()]).stderr(Stdio::null()).status();
}

fn resident(id: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{id}/statm")).ok()?;
    Some(text.split_whitespace().nth(1)?.parse::<f64>().ok()? * PAGE)
}

/// Returns the descendants of a process with their start times, on systems with a Linux `/proc`.
fn descendants(of: u32) -> BTreeMap<u32, u64> {
    let ids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let all: Vec<_> = ids.filter_map(|id| Some((id, stat(id)?))).collect();
    let mut found = BTreeMap::new();
    let mut parents = vec![of];
    while let Some(parent) = parents.pop() {
        for (id, stat) in all.iter().filter(|(_, stat)| stat.parent == parent) {
            if found.insert(*id, stat.began).is_none() {
                parents.push(*id);
            }
        }
    }
    found
}

struct ProcessStat {
    parent: u32,
    began: u64,
}

fn stat(id: u32) -> Option<ProcessStat> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name is in parentheses and may contain anything.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let began = fields.nth(17)?.parse().ok()?;
    Some(ProcessStat { parent, began })
}
