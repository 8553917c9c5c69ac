//! One child: its pipes, its end, and how it is brought about.

#[cfg(not(unix))]
mod bare;
#[cfg(unix)]
mod leashed;

#[cfg(not(unix))]
pub(crate) use bare::start;
#[cfg(unix)]
pub(crate) use leashed::start;

use std::time::Duration;

use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::exit::Exit;
use crate::stderr::{Cutter, Stderr};

/// A child that was started, with what is written to it and read from it.
#[derive(Debug)]
pub struct Started {
    /// The child. When this is dropped the child is asked to end, and then ended.
    pub child: Child,
    /// Its stdin. Dropping it is how a server is told that nobody needs it any more.
    pub stdin: ChildStdin,
    /// Its stdout. It can end before the child does, and can stay open after it if the child gave it to a process
    /// that left its group.
    pub stdout: ChildStdout,
}

/// How long each step of ending a child may take. A step that is not needed takes no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// From the end of its stdin until it is asked to end (SIGTERM). Raising it lets slow servers write down what
    /// they have, and makes every stop of a server that ignores its stdin longer.
    pub stdin: Duration,
    /// From being asked until it is ended (SIGKILL). Also what the leash gives it when we are gone.
    pub term: Duration,
    /// From being ended until we no longer wait for it.
    pub kill: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { stdin: Duration::from_secs(2), term: Duration::from_secs(3), kill: Duration::from_secs(6) }
    }
}

/// A child process.
#[derive(Debug)]
pub struct Child {
    pid: u32,
    wishes: mpsc::Sender<Wish>,
    life: watch::Receiver<Life>,
}

impl Child {
    /// Its number, which is also that of its group.
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until it has ended. Processes that it left behind may still be there.
    pub async fn exited(&self) -> Exit {
        self.until(|life| match life {
            Life::Running => None,
            Life::Exited(exit) | Life::Gone(exit) => Some(exit),
        })
        .await
    }

    /// Waits until nothing of it is left: no member of its group, no zombie, no line of stderr that was not read.
    pub async fn gone(&self) -> Exit {
        self.until(|life| match life {
            Life::Running | Life::Exited(_) => None,
            Life::Gone(exit) => Some(exit),
        })
        .await
    }

    /// Ends it as MCP says, and waits until it is gone. First of all its stdin is closed, which whoever holds it has
    /// done before.
    pub async fn stop(&self, patience: &Patience) -> Exit {
        let steps =
            [(patience.stdin, Wish::Term), (patience.term, Wish::Kill), (patience.kill, Wish::Abandon)];
        for (span, wish) in steps {
            if let Ok(exit) = timeout(span, self.gone()).await {
                return exit;
            }
            // There is room for every wish there is; and whoever would read them ends only when it is gone.
            let _ = self.wishes.try_send(wish);
        }
        self.gone().await
    }

    async fn until(&self, reached: impl Fn(Life) -> Option<Exit>) -> Exit {
        let mut life = self.life.clone();
        match life.wait_for(|life| reached(*life).is_some()).await {
            Ok(life) => reached(*life).unwrap_or(Exit::Unknown),
            // The runtime ends, and with it whoever watched.
            Err(_) => Exit::Unknown,
        }
    }
}

/// How far a child is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Running,
    Exited(Exit),
    Gone(Exit),
}

/// What its owner wants of whoever watches a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Term,
    Kill,
    /// End what can be ended without the leash, and wait no longer.
    Abandon,
}

/// Each wish, a few times.
const WISHES: usize = 16;

/// Keeps what the child writes to stderr until that ends, or until the child is gone and nothing more comes.
async fn read_stderr(stderr: Stderr, mut from: ChildStderr, gone: oneshot::Receiver<()>) {
    let mut cutter = Cutter::default();
    {
        let reading = stderr.read(&mut from, &mut cutter);
        tokio::pin!(reading);
        tokio::select! {
            () = &mut reading => {}
            _ = gone => {
                // What is in the pipe is read at once; a process that left the group may keep it open for ever.
                let _ = timeout(LAST_WORDS, reading).await;
            }
        }
    }
    stderr.close(&mut cutter);
}

const LAST_WORDS: Duration = Duration::from_millis(50);
