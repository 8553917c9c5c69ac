//! The process that holds the leash. It waits, and ends the group when its owner or its leader is gone. On Linux it
//! also ends all daemons that left the group.

use std::collections::HashSet;
use std::env;
#[cfg(target_os = "linux")]
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::ExitCode;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use super::stage;
use super::wire::{self, KILL, LeashReport, TERM};
use crate::exit::ChildExit;

/// Holds one server until none of its processes is left, and exits with the server's exit.
pub(super) fn hold(grace: Duration) -> ExitCode {
    let result = Builder::new_current_thread()
        .enable_all()
        .build()
        .and_then(|runtime| runtime.block_on(try_hold(grace)));
    let code = match result {
        Ok(ChildExit::Code(code)) => code,
        Ok(ChildExit::Signal(signal)) => 128 + signal,
        Ok(ChildExit::Unknown) | Err(_) => return ExitCode::FAILURE,
    };
    u8::try_from(code & 0xff).map_or(ExitCode::FAILURE, ExitCode::from)
}

async fn try_hold(grace: Duration) -> io::Result<ChildExit> {
    let control = StdUnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // The working folder must not keep a disk from being unmounted.
    env::set_current_dir("/")?;
    // Set up before there is a server: none of these signals may end this process and leave the server behind.
    let mut child_ended = signal(SignalKind::child())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut quit = signal(SignalKind::quit())?;
    adopt_orphans();

    let (ends, order) = wire::receive(&control)?;
    let started = stage::start(ends, &order);
    control.set_nonblocking(true)?;
    let mut control = UnixStream::from_std(control)?;
    let (mut commands, mut reports) = control.split();
    let leader = match started {
        Ok(leader) => leader,
        Err(failed) => {
            reports.write_all(LeashReport::Failed(failed).to_string().as_bytes()).await?;
            return Ok(ChildExit::Unknown);
        }
    };
    let pid = u32::try_from(leader.as_raw_nonzero().get()).unwrap_or_default();
    let mut owner_is_there =
        reports.write_all(LeashReport::Started(pid).to_string().as_bytes()).await.is_ok();

    let mut group = ProcessGroup { leader, exit: None, has_children: true, signaled: HashSet::new() };
    let mut phase = if owner_is_there { LeashPhase::Holding } else { group.ask_to_end(grace) };
    loop {
        // The leader is not reaped before its group was asked to end: until then its process id, and that of the group,
        // cannot be reused.
        if phase == LeashPhase::Holding && group.leader_has_ended() {
            phase = group.ask_to_end(grace);
        }
        if phase == LeashPhase::Holding {
            group.collect_adopted();
        } else if let Some(exit) = group.collect() {
            // The owner may be gone.
            let _ = reports.write_all(LeashReport::Ended(exit).to_string().as_bytes()).await;
        }
        if group.is_empty() {
            break;
        }
        match phase {
            LeashPhase::Holding => {}
            LeashPhase::Ending { .. } => group.ask_adopted_to_end(),
            LeashPhase::Killed { .. } => group.end_adopted(),
        }
        let mut command = [0];
        tokio::select! {
            _ = child_ended.recv() => {}
            _ = terminated.recv() => phase = phase.ending(|| group.ask_to_end(grace)),
            _ = interrupted.recv() => phase = phase.ending(|| group.ask_to_end(grace)),
            _ = hangup.recv() => phase = phase.ending(|| group.ask_to_end(grace)),
            _ = quit.recv() => phase = phase.ending(|| group.ask_to_end(grace)),
            read = commands.read(&mut command), if owner_is_there => match (read, command) {
                (Ok(1..), [TERM]) => group.signal(Signal::TERM),
                (Ok(1..), [KILL]) => phase = group.end(),
                (Ok(1..), _) => {}
                (Ok(0) | Err(_), _) => {
                    owner_is_there = false;
                    phase = phase.ending(|| group.ask_to_end(grace));
                }
            },
            () = phase.next_check() => {}
        }
        match phase {
            LeashPhase::Ending { kill_at } if kill_at <= Instant::now() => phase = group.end(),
            // The kernel cannot end it now. It will, when the disk that it waits for responds.
            LeashPhase::Killed { give_up_at } if give_up_at <= Instant::now() => break,
            LeashPhase::Holding | LeashPhase::Ending { .. } | LeashPhase::Killed { .. } => {}
        }
    }
    let _ = reports.write_all(LeashReport::Gone.to_string().as_bytes()).await;
    Ok(group.exit.unwrap_or(ChildExit::Unknown))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeashPhase {
    Holding,
    Ending { kill_at: Instant },
    Killed { give_up_at: Instant },
}

impl LeashPhase {
    /// Starts to end the group, unless that has already begun.
    fn ending(self, ask: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Holding => ask(),
            Self::Ending { .. } | Self::Killed { .. } => self,
        }
    }

    /// Waits until the next check. While the group ends, members that are not children of this process end without a
    /// signal to it.
    async fn next_check(self) {
        let limit = match self {
            Self::Holding => return std::future::pending().await,
            Self::Ending { kill_at } => kill_at,
            Self::Killed { give_up_at } => give_up_at,
        };
        sleep_until(limit.min(Instant::now() + CHECK_INTERVAL)).await;
    }
}

/// The server and all processes that it started.
struct ProcessGroup {
    leader: Pid,
    /// Exit of the leader, once it was reaped.
    exit: Option<ChildExit>,
    /// True if this process has children. A process that left the group becomes a child of this process when its parent
    /// has ended (Linux). Without children, nothing of the server is left.
    has_children: bool,
    /// Children outside of the group that were asked to end.
    signaled: HashSet<Pid>,
}

impl ProcessGroup {
    fn ask_to_end(&self, grace: Duration) -> LeashPhase {
        self.signal(Signal::TERM);
        LeashPhase::Ending { kill_at: Instant::now() + grace }
    }

    fn end(&self) -> LeashPhase {
        self.signal(Signal::KILL);
        LeashPhase::Killed { give_up_at: Instant::now() + UNKILLABLE }
    }

    /// Sends a signal to the group. An error means that the group is empty, which is the goal.
    fn signal(&self, signal: Signal) {
        let _ = rustix::process::kill_process_group(self.leader, signal);
        let has_left = || rustix::process::getpgid(Some(self.leader)) != Ok(self.leader);
        if self.exit.is_none() && has_left() {
            let _ = rustix::process::kill_process(self.leader, signal);
        }
    }

    /// Asks the processes that left the group to end, each once. Only this process can reap its children, so their
    /// process ids are still valid.
    fn ask_adopted_to_end(&mut self) {
        for child in children().unwrap_or_default() {
            let is_in_group = rustix::process::getpgid(Some(child)) == Ok(self.leader);
            if child != self.leader && !is_in_group && self.signaled.insert(child) {
                let _ = rustix::process::kill_process(child, Signal::TERM);
            }
        }
    }

    /// Kills all children. Their own children then become children of this process, and are killed in the next round.
    fn end_adopted(&self) {
        for child in children().unwrap_or_default() {
            let _ = rustix::process::kill_process(child, Signal::KILL);
        }
    }

    fn leader_has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match rustix::process::waitid(WaitId::Pid(self.leader), options) {
            Ok(None) | Err(Errno::INTR) => false,
            // An error means that it was reaped elsewhere.
            Ok(Some(_)) | Err(_) => true,
        }
    }

    /// Reaps the ended processes that left the group, and not the leader.
    fn collect_adopted(&self) {
        for child in children().unwrap_or_default() {
            if child != self.leader {
                let _ = rustix::process::waitpid(Some(child), WaitOptions::NOHANG);
            }
        }
    }

    /// Reaps all ended processes, including adopted ones. Returns the exit of the leader if it was among them.
    fn collect(&mut self) -> Option<ChildExit> {
        let mut leader_exit = None;
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.leader => {
                    self.exit = Some(exit_of(status));
                    leader_exit = self.exit;
                }
                Ok(Some((pid, _))) => _ = self.signaled.remove(&pid),
                Err(Errno::INTR) => {}
                Ok(None) => return leader_exit,
                Err(_) => {
                    self.has_children = false;
                    // If the leader was a child, its exit was reaped elsewhere.
                    if self.exit.is_none() {
                        self.exit = Some(ChildExit::Unknown);
                        leader_exit = self.exit;
                    }
                    return leader_exit;
                }
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.exit.is_some()
            && (!self.has_children || children().is_none())
            && rustix::process::test_kill_process_group(self.leader) == Err(Errno::SRCH)
    }
}

fn exit_of(status: WaitStatus) -> ChildExit {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => ChildExit::Code(code),
        (None, Some(signal)) => ChildExit::Signal(signal),
        (None, None) => ChildExit::Unknown,
    }
}

/// Makes this process the parent of processes that the server leaves behind, so that it can reap them.
fn adopt_orphans() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// Returns the children of this process, if the system lists them.
#[cfg(target_os = "linux")]
fn children() -> Option<Vec<Pid>> {
    listed_children().or_else(children_by_parent)
}

#[cfg(not(target_os = "linux"))]
fn children() -> Option<Vec<Pid>> {
    None
}

/// Returns the children of each thread, as the kernel lists them.
#[cfg(target_os = "linux")]
fn listed_children() -> Option<Vec<Pid>> {
    let mut children = Vec::new();
    for thread in fs::read_dir("/proc/self/task").ok()? {
        let listed = fs::read_to_string(thread.ok()?.path().join("children")).ok()?;
        children.extend(listed.split_ascii_whitespace().filter_map(pid_of));
    }
    Some(children)
}

/// Returns the children by the parent of each process, for kernels without that list.
#[cfg(target_os = "linux")]
fn children_by_parent() -> Option<Vec<Pid>> {
    let own = rustix::process::getpid();
    let is_child = |pid: &Pid| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        // The name in brackets can contain any characters.
        let fields = stat.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
        fields.split_ascii_whitespace().nth(1).and_then(pid_of) == Some(own)
    };
    let processes = fs::read_dir("/proc").ok()?.filter_map(|entry| pid_of(entry.ok()?.file_name().to_str()?));
    Some(processes.filter(is_child).collect())
}

#[cfg(target_os = "linux")]
fn pid_of(text: &str) -> Option<Pid> {
    text.parse().ok().and_then(Pid::from_raw)
}

/// Interval of the checks for an empty group.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum time that the kernel may take to end a killed process.
const UNKILLABLE: Duration = Duration::from_secs(5);
