//! One child: its pipes, its exit and its termination.

#[cfg(unix)]
mod with_leash;
#[cfg(not(unix))]
mod without_leash;

#[cfg(unix)]
use with_leash::start;
#[cfg(not(unix))]
use without_leash::start;

use std::time::Duration;

use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::exit::ChildExit;
use crate::launch::{Launch, LaunchError, StopTimeouts};
use crate::leash::Leash;
use crate::stderr::{LineSplitter, StderrLog};

/// A started child with its pipes.
#[derive(Debug)]
pub struct SpawnedChild {
    /// The child. If this is dropped, the child is asked to end and then killed.
    pub child: ChildProcess,
    /// Its stdin. Dropping it tells a server to end.
    pub stdin: ChildStdin,
    /// Its stdout. It can end before the child does. It can stay open after the child's end if the child gave it to a
    /// process that left its group.
    pub stdout: ChildStdout,
}

impl Launch {
    /// Starts the server. Its stderr output goes to `stderr`.
    pub async fn start(&self, leash: &Leash, stderr: &StderrLog) -> Result<SpawnedChild, LaunchError> {
        let folder = self.folder()?;
        let path = self.path(&folder)?;
        start(self, &folder, &path, leash, stderr).await
    }
}

/// A child process.
#[derive(Debug)]
pub struct ChildProcess {
    pid: u32,
    commands: mpsc::Sender<ChildCommand>,
    state: watch::Receiver<ChildState>,
}

impl ChildProcess {
    /// Returns its process id, which is also that of its group.
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until it has exited. Processes that it left behind may still exist.
    pub async fn exited(&self) -> ChildExit {
        self.until(|state| match state {
            ChildState::Running => None,
            ChildState::Exited(exit) | ChildState::Gone(exit) => Some(exit),
        })
        .await
    }

    /// Waits until nothing of it is left: no member of its group, no zombie, no unread line of stderr.
    pub async fn wait_until_gone(&self) -> ChildExit {
        self.until(|state| match state {
            ChildState::Running | ChildState::Exited(_) => None,
            ChildState::Gone(exit) => Some(exit),
        })
        .await
    }

    /// Ends it in the way that MCP specifies, and waits until it is gone. The first step is to close its stdin, which
    /// its holder must do before.
    pub async fn stop(&self, patience: &StopTimeouts) -> ChildExit {
        let steps = [
            (patience.stdin, ChildCommand::Term),
            (patience.term, ChildCommand::Kill),
            (patience.kill, ChildCommand::Abandon),
        ];
        for (span, command) in steps {
            if let Ok(exit) = timeout(span, self.wait_until_gone()).await {
                return exit;
            }
            // The queue has room for all commands, and its reader ends only after the child is gone.
            let _ = self.commands.try_send(command);
        }
        self.wait_until_gone().await
    }

    async fn until(&self, reached: impl Fn(ChildState) -> Option<ChildExit>) -> ChildExit {
        let mut state = self.state.clone();
        match state.wait_for(|state| reached(*state).is_some()).await {
            Ok(state) => reached(*state).unwrap_or(ChildExit::Unknown),
            // The runtime ends, and with it the task that watched the child.
            Err(_) => ChildExit::Unknown,
        }
    }
}

/// Progress of the life of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChildState {
    Running,
    Exited(ChildExit),
    Gone(ChildExit),
}

/// A command to the task that watches a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChildCommand {
    Term,
    Kill,
    /// Kill as much as possible without the leash, and stop waiting.
    Abandon,
}

/// Capacity of the command queue: each command, several times.
const COMMAND_CAPACITY: usize = 16;

/// Reads the child's stderr until it ends, or until the child is gone and no more output comes.
async fn read_stderr(stderr: StderrLog, mut from: ChildStderr, exit_signal: oneshot::Receiver<()>) {
    let mut cutter = LineSplitter::default();
    {
        let reading = stderr.read(&mut from, &mut cutter);
        tokio::pin!(reading);
        tokio::select! {
            () = &mut reading => {}
            _ = exit_signal => {
                // The rest of the pipe is read at once. A process that left the group may keep it open forever.
                let _ = timeout(STDERR_GRACE, reading).await;
            }
        }
    }
    stderr.close(&mut cutter);
}

const STDERR_GRACE: Duration = Duration::from_millis(50);
