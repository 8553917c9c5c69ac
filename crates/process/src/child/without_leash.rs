//! A child without a leash, for systems without process groups.

use std::path::Path;
use std::process::Stdio;

use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::{COMMAND_CAPACITY, ChildCommand, ChildProcess, ChildState, SpawnedChild, read_stderr};
use crate::exit::ChildExit;
use crate::launch::{Launch, LaunchError};
use crate::leash::Leash;
use crate::stderr::StderrLog;

/// Starts the child itself.
pub(crate) async fn start(
    launch: &Launch,
    folder: &Path,
    path: &Path,
    _leash: &Leash,
    stderr: &StderrLog,
) -> Result<SpawnedChild, LaunchError> {
    let mut command = Command::new(path);
    command
        .args(&launch.args)
        .current_dir(folder)
        .env_clear()
        .envs(launch.environment.iter())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut process = command.spawn().map_err(|source| LaunchError::Refused { path: path.into(), source })?;
    let (Some(stdin), Some(stdout), Some(errors)) =
        (process.stdin.take(), process.stdout.take(), process.stderr.take())
    else {
        return Err(LaunchError::Leash { source: std::io::ErrorKind::BrokenPipe.into() });
    };
    let pid = process.id().unwrap_or_default();
    let (exit_sender, exit_signal) = oneshot::channel();
    let reader = tokio::spawn(read_stderr(stderr.clone(), errors, exit_signal));
    let (commands, command_receiver) = mpsc::channel(COMMAND_CAPACITY);
    let (state_sender, state) = watch::channel(ChildState::Running);
    tokio::spawn(keep(process, command_receiver, state_sender, exit_sender, reader));
    Ok(SpawnedChild { child: ChildProcess { pid, commands, state }, stdin, stdout })
}

async fn keep(
    mut process: Child,
    mut command_receiver: mpsc::Receiver<ChildCommand>,
    state: watch::Sender<ChildState>,
    exit_sender: oneshot::Sender<()>,
    reader: JoinHandle<()>,
) {
    // It cannot be asked to end, so every command kills it, and so does the end of its owner.
    let status = tokio::select! {
        status = process.wait() => status,
        _ = command_receiver.recv() => {
            let _ = process.start_kill();
            process.wait().await
        }
    };
    let exit = status.ok().and_then(|status| status.code()).map_or(ChildExit::Unknown, ChildExit::Code);
    state.send_replace(ChildState::Exited(exit));
    drop(exit_sender);
    let _ = reader.await;
    state.send_replace(ChildState::Gone(exit));
}
