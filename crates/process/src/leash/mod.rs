//! The leash: a small process beside each child, which ends the child's whole group when we are gone, and on Linux also what left
//! the group (`setsid`).
//!
//! ```text
//!   gateway ──────── control (a socket) ───────▶ leash ──▶ stage ═ exec ═▶ the server
//!      │   hands over the child's ends of three       (one process: it only gets its
//!      │   pipes, and what to start                     folder, its pipes, and becomes the server)
//!      └───────── stdin, stdout, stderr: pipes straight to the server ────────▶
//! ```
//!
//! No handler of ours runs when we are killed, but the kernel closes our end of the control socket, and the leash
//! sees that. It is not in the way of the data: it passes the child's ends of the pipes on and closes them.
//! It also adopts what the child leaves behind (Linux): so it finds daemons, whatever group or session they are in, and nothing waits
//! as a zombie for an init that a container may not have. On other systems a process that left the group is not found and goes on.
//!
//! It is our own binary, started again with a hidden first argument, because nothing else is sure to be installed.
//! Everything is done without `unsafe`: what would need code between `fork` and `exec` is done by the stage, which is
//! our binary once more, before it becomes the server. The leash stands in the child's stead with the kernel's
//! "end me when my parent ends", which would otherwise be bound to one thread of ours.

#[cfg(unix)]
mod hold;
#[cfg(unix)]
mod stage;
#[cfg(unix)]
pub(crate) mod wire;

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Where the program is that holds the leash.
#[derive(Clone, Debug)]
pub struct Leash {
    #[cfg_attr(not(unix), expect(dead_code, reason = "there is no leash there"))]
    program: PathBuf,
}

impl Leash {
    /// The program that runs now. Its `main` begins with [`leash_main`].
    pub fn of_this_program() -> io::Result<Self> {
        // Still the same program after an update has replaced the file.
        let running = Path::new("/proc/self/exe");
        if running.exists() { Ok(Self::of(running)) } else { Ok(Self::of(env::current_exe()?)) }
    }

    /// This program, whose `main` begins with [`leash_main`].
    pub fn of(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into() }
    }

    #[cfg(unix)]
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }
}

/// Does the leash's work, if this program was started for it: then this is the code to end with. To be called before
/// anything else in `main`, with all arguments: `leash_main(std::env::args_os())`.
pub fn leash_main(args: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut args = args.into_iter().skip(1);
    if args.next()? != HIDDEN {
        return None;
    }
    Some(run(args))
}

/// The first argument that nobody types.
pub(crate) const HIDDEN: &str = "__leash";
/// The second, for the process that holds the leash; after it, how many milliseconds a group has to end by itself.
#[cfg(unix)]
pub(crate) const HOLD: &str = "hold";
/// The second, for the process that becomes the server; after it, the process that holds its leash.
#[cfg(unix)]
const EXEC: &str = "exec";

#[cfg(unix)]
fn run(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let role = args.next().unwrap_or_default();
    let number = args.next().and_then(|number| number.to_str()?.parse::<u64>().ok());
    match (role.to_str(), number) {
        (Some(HOLD), Some(grace_ms)) => hold::hold(std::time::Duration::from_millis(grace_ms)),
        (Some(EXEC), Some(leash)) => stage::become_the_server(leash),
        (Some(_) | None, _) => ExitCode::FAILURE,
    }
}

#[cfg(not(unix))]
fn run(_args: impl Iterator<Item = OsString>) -> ExitCode {
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_hidden_argument_makes_a_leash() {
        let made = |args: &[&str]| leash_main(args.iter().map(OsString::from)).is_some();
        assert!(!made(&[]) && !made(&["steadfast"]) && !made(&["steadfast", "wrap", HIDDEN]));
        assert!(made(&["steadfast", HIDDEN]) && made(&["steadfast", HIDDEN, "hold", "soon"]));
    }
}
