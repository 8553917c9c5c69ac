//! The process that becomes the server.

use std::env;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::process::Pid;

use super::wire::{self, ChildPipes, LaunchOrder, LeashReport, StartFailure};
use super::{EXEC, LEASH_ARGUMENT, Leash};

/// Starts the stage in its own group, and waits until it has become the server or reports an error.
pub(super) fn start(ends: ChildPipes, order: &[u8]) -> Result<Pid, StartFailure> {
    try_start(ends, order).unwrap_or_else(|error| Err(StartFailure::Leash(error.raw_os_error().unwrap_or(0))))
}

fn try_start(ends: ChildPipes, order: &[u8]) -> io::Result<Result<Pid, StartFailure>> {
    let (socket, stage_socket) = UnixStream::pair()?;
    let mut command = Command::new(Leash::of_this_program()?.program());
    command
        .arg0("steadfast")
        .args([LEASH_ARGUMENT, EXEC, &std::process::id().to_string()])
        .env_clear()
        .stdin(OwnedFd::from(stage_socket))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    let mut stage = command.spawn()?;
    // The command holds the other end of the socket.
    drop(command);
    let reply = hand_over(socket, ends, order);
    let failed = match reply.as_deref() {
        Ok([]) => match i32::try_from(stage.id()).ok().and_then(Pid::from_raw) {
            Some(pid) => return Ok(Ok(pid)),
            None => StartFailure::Leash(0),
        },
        Ok(reply) => match LeashReport::parse(reply) {
            Some(LeashReport::Failed(failed)) => failed,
            Some(LeashReport::Started(_) | LeashReport::Ended(_) | LeashReport::Gone) | None => {
                StartFailure::Leash(0)
            }
        },
        Err(error) => StartFailure::Leash(error.raw_os_error().unwrap_or(0)),
    };
    let _ = stage.kill();
    let _ = stage.wait();
    Ok(Err(failed))
}

/// Returns the output of the stage: nothing if it has become the server. The socket closes at that moment, and not
/// before.
fn hand_over(socket: UnixStream, ends: ChildPipes, order: &[u8]) -> io::Result<Vec<u8>> {
    socket.set_read_timeout(Some(LIMIT))?;
    socket.set_write_timeout(Some(LIMIT))?;
    wire::send(&socket, &ends, order)?;
    drop(ends);
    let mut reply = Vec::new();
    socket.take(LeashReport::MAX_BYTES).read_to_end(&mut reply)?;
    Ok(reply)
}

/// Sets up folder and pipes, and becomes the server. Returns only after a failure.
pub(super) fn exec_server(leash: u64) -> ExitCode {
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from) else {
        return ExitCode::FAILURE;
    };
    let failed = match end_with_parent(leash).and_then(|()| wire::receive(&socket)) {
        Ok((ends, order)) => follow(&order, &ends),
        Err(error) => StartFailure::Leash(error.raw_os_error().unwrap_or(0)),
    };
    let _ = (&socket).write_all(LeashReport::Failed(failed).to_string().as_bytes());
    ExitCode::FAILURE
}

fn follow(order: &[u8], [stdin, stdout, stderr]: &ChildPipes) -> StartFailure {
    let number = |error: io::Error| error.raw_os_error().unwrap_or(0);
    let Some(order) = LaunchOrder::from_bytes(order) else { return StartFailure::Leash(0) };
    if let Err(error) = env::set_current_dir(&order.folder) {
        return StartFailure::Folder(number(error));
    }
    let connected = rustix::stdio::dup2_stdin(stdin)
        .and_then(|()| rustix::stdio::dup2_stdout(stdout))
        .and_then(|()| rustix::stdio::dup2_stderr(stderr));
    if let Err(error) = connected {
        return StartFailure::Leash(error.raw_os_error());
    }
    let mut server = Command::new(&order.path);
    server
        .arg0(&order.name)
        .args(&order.args)
        .env_clear()
        .envs(order.environment.iter().map(|(name, value)| (name, value)));
    StartFailure::Command(number(server.exec()))
}

/// Makes the kernel end this process with its parent: if gateway and leash are killed at once, nothing else could.
#[cfg(target_os = "linux")]
fn end_with_parent(leash: u64) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // The leash may have ended before this took effect.
    let parent = rustix::process::getppid().map(|parent| parent.as_raw_nonzero().get());
    if parent.and_then(|parent| u64::try_from(parent).ok()) == Some(leash) {
        Ok(())
    } else {
        Err(io::ErrorKind::BrokenPipe.into())
    }
}

#[cfg(not(target_os = "linux"))]
fn end_with_parent(_leash: u64) -> io::Result<()> {
    Ok(())
}

/// Limit against a file system that hangs: it must not make the leash hang.
const LIMIT: Duration = Duration::from_secs(10);
