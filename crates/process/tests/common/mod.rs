//! Shared helpers of the tests of this crate.
#![allow(dead_code, unused_imports, reason = "each test program uses a part of it")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on says so by panicking")]

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::time::Duration;

use steadfast_process::{Environment, Launch, StopTimeouts};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Limit against hanging, not a measurement.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(120);
/// A time that no test reaches, for limits that must not end a test.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// Returns a shell with this script, as a server.
pub(crate) fn sh(script: &str) -> Launch {
    command(&["sh", "-c", script])
}

/// Returns a command with its arguments, as a server with short stop timeouts.
pub(crate) fn command(words: &[&str]) -> Launch {
    let mut words = words.iter().map(OsString::from);
    Launch {
        program: words.next().unwrap_or_default(),
        args: words.collect(),
        folder: None,
        environment: Environment::allowed_and(env::vars_os(), &BTreeMap::new()),
        patience: StopTimeouts {
            stdin: Duration::from_millis(300),
            term: Duration::from_millis(300),
            kill: TEST_TIMEOUT,
        },
    }
}

/// Waits for an event that must come soon.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, future).await.expect("it happens in time")
}

/// Reads everything until the end of the stream.
pub(crate) async fn all(from: &mut (impl AsyncRead + Unpin)) -> String {
    let mut text = String::new();
    soon(from.read_to_string(&mut text)).await.unwrap();
    text
}

/// Reads the next line, without its line break.
pub(crate) async fn line(from: &mut (impl AsyncRead + Unpin)) -> String {
    let mut line = Vec::new();
    loop {
        match soon(from.read_u8()).await.expect("there is another line") {
            b'\n' => return String::from_utf8(line).unwrap(),
            byte => line.push(byte),
        }
    }
}

#[cfg(target_os = "linux")]
pub(crate) use linux::{PolledProcess, parent, signal};

#[cfg(target_os = "linux")]
mod linux {
    use std::fs;
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::retry_on_intr;
    use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

    /// A process that is not a child of the test, and whose end can be waited for.
    pub(crate) struct PolledProcess {
        pub(crate) pid: u32,
        handle: OwnedFd,
    }

    impl PolledProcess {
        pub(crate) fn new(pid: u32) -> Self {
            Self { pid, handle: pidfd_open(raw(pid), PidfdFlags::empty()).expect("it is there") }
        }

        pub(crate) fn ends_within(&self, span: Duration) -> bool {
            let limit = Timespec::try_from(span).unwrap();
            let poll_exit = || poll(&mut [PollFd::new(&self.handle, PollFlags::IN)], Some(&limit));
            retry_on_intr(poll_exit).unwrap() == 1
        }

        /// Kills it, if it exists.
        pub(crate) fn end(&self) {
            let _ = pidfd_send_signal(&self.handle, Signal::KILL);
        }

        pub(crate) fn is_there(&self) -> bool {
            !self.ends_within(Duration::ZERO)
        }
    }

    pub(crate) fn signal(pid: u32, signal: Signal) {
        kill_process(raw(pid), signal).expect("it is there");
    }

    /// Returns the parent of a process, if it exists.
    pub(crate) fn parent(pid: u32) -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, fields) = stat.rsplit_once(')')?;
        fields.split_ascii_whitespace().nth(1)?.parse().ok()
    }

    fn raw(pid: u32) -> Pid {
        Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
    }
}
