//! The leash: a small process beside each child that ends the child's whole group when the gateway is gone. On Linux it
//! also ends processes that left the group (`setsid`).
//!
//! ```text
//!   gateway ──────── control (a socket) ───────▶ leash ──▶ stage ═ exec ═▶ the server
//!      │   sends the child's ends of three            (one process: it sets up its
//!      │   pipes, and the program to start              folder and pipes, and becomes the server)
//!      └───────── stdin, stdout, stderr: pipes straight to the server ────────▶
//! ```
//!
//! A killed gateway runs no handler, but the kernel closes its end of the control socket, and the leash notices that.
//! The leash is not in the data path: it passes the child's ends of the pipes on and closes them. On Linux it also
//! adopts the processes that the child leaves behind. It therefore finds daemons in any group or session, and no zombie
//! waits for an init that a container may not have. On other systems a process that left the group is not found and
//! continues.
//!
//! The leash is the gateway's own binary, started again with a hidden first argument, because no other program is sure
//! to be installed. Everything works without `unsafe`: the stage runs the code that would stand between `fork` and
//! `exec`. It is the same binary once more, before it becomes the server. The leash also makes the kernel's "end me
//! when my parent ends" usable, which would otherwise depend on one thread of the gateway.

#[cfg(unix)]
mod holder;
#[cfg(unix)]
mod stage;
#[cfg(unix)]
pub(crate) mod wire;

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Location of the program that holds the leash.
#[derive(Clone, Debug)]
pub struct Leash {
    #[cfg_attr(not(unix), expect(dead_code, reason = "there is no leash there"))]
    program: PathBuf,
}

impl Leash {
    /// Uses the current program. Its `main` must begin with [`leash_main`].
    pub fn of_this_program() -> io::Result<Self> {
        // Still the same program after an update has replaced the file.
        let running = Path::new("/proc/self/exe");
        if running.exists() { Ok(Self::of(running)) } else { Ok(Self::of(env::current_exe()?)) }
    }

    /// Uses the program at this path, whose `main` must begin with [`leash_main`].
    pub fn of(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into() }
    }

    #[cfg(unix)]
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }
}

/// Runs the leash if this program was started as one, and returns the exit code to end with. Call it before anything
/// else in `main`, with all arguments: `leash_main(std::env::args_os())`.
pub fn leash_main(args: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut args = args.into_iter().skip(1);
    if args.next()? != LEASH_ARGUMENT {
        return None;
    }
    Some(run(args))
}

/// The hidden first argument of a leash.
pub(crate) const LEASH_ARGUMENT: &str = "__leash";
/// The second argument for the process that holds the leash. The third is the grace period of the group in
/// milliseconds.
#[cfg(unix)]
pub(crate) const HOLD: &str = "hold";
/// The second argument for the process that becomes the server. The third is the process id of its leash.
#[cfg(unix)]
const EXEC: &str = "exec";

#[cfg(unix)]
fn run(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let role = args.next().unwrap_or_default();
    let number = args.next().and_then(|number| number.to_str()?.parse::<u64>().ok());
    match (role.to_str(), number) {
        (Some(HOLD), Some(grace_ms)) => holder::hold(std::time::Duration::from_millis(grace_ms)),
        (Some(EXEC), Some(leash)) => stage::exec_server(leash),
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
        assert!(!made(&[]) && !made(&["steadfast"]) && !made(&["steadfast", "wrap", LEASH_ARGUMENT]));
        assert!(made(&["steadfast", LEASH_ARGUMENT]) && made(&["steadfast", LEASH_ARGUMENT, "hold", "soon"]));
    }
}
