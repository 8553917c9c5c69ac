//! A child with a leash: see [`crate::leash`].

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use steadfast_core::millis;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Take};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child as LeashProcess, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{COMMAND_CAPACITY, ChildCommand, ChildProcess, ChildState, SpawnedChild, read_stderr};
use crate::exit::ChildExit;
use crate::launch::{Launch, LaunchError};
use crate::leash::wire::{self, ChildPipes, LaunchOrder, LeashReport, StartFailure};
use crate::leash::{HOLD, LEASH_ARGUMENT, Leash};
use crate::stderr::StderrLog;

/// Starts a leash and, through it, the child.
pub(crate) async fn start(
    launch: &Launch,
    folder: &Path,
    path: &Path,
    leash: &Leash,
    stderr: &StderrLog,
) -> Result<SpawnedChild, LaunchError> {
    let own_fault = |source| LaunchError::Leash { source };
    let order = order(launch, folder, path)?;
    let pipes = ParentPipes::new().map_err(own_fault)?;
    let (socket, leash_socket) = StdUnixStream::pair().map_err(own_fault)?;
    let mut process = spawn(launch, leash, leash_socket).map_err(own_fault)?;
    let mut control = LeashControl::new(socket, &pipes.child_ends).map_err(own_fault)?;
    drop(pipes.child_ends);
    let report = match timeout(LIMIT, control.order(&order)).await {
        Ok(report) => report.map_err(own_fault),
        Err(_) => Err(own_fault(io::ErrorKind::TimedOut.into())),
    };
    let failure = match report {
        Ok(LeashReport::Started(pid)) => {
            let (exit_sender, exit_signal) = oneshot::channel();
            let reader = tokio::spawn(read_stderr(stderr.clone(), pipes.stderr, exit_signal));
            let (commands, command_receiver) = mpsc::channel(COMMAND_CAPACITY);
            let (state_sender, state) = watch::channel(ChildState::Running);
            let leash_task = LeashTask {
                control,
                process,
                pid,
                command_receiver,
                state: state_sender,
                exit_sender,
                reader,
            };
            tokio::spawn(leash_task.run());
            return Ok(SpawnedChild {
                child: ChildProcess { pid, commands, state },
                stdin: pipes.stdin,
                stdout: pipes.stdout,
            });
        }
        Ok(LeashReport::Failed(failed)) => explain(failed, path, folder),
        Ok(LeashReport::Ended(_) | LeashReport::Gone) => own_fault(io::ErrorKind::InvalidData.into()),
        Err(error) => error,
    };
    // It ends by itself when its socket closes. If it hangs, it is killed.
    drop(control);
    if timeout(LIMIT, process.wait()).await.is_err() {
        let _ = process.kill().await;
    }
    Err(failure)
}

fn order(launch: &Launch, folder: &Path, path: &Path) -> Result<Vec<u8>, LaunchError> {
    let order = LaunchOrder {
        path: path.into(),
        name: launch.program.clone(),
        folder: folder.into(),
        args: launch.args.clone(),
        environment: launch.environment.iter().map(|(name, value)| (name.into(), value.into())).collect(),
    };
    let refused = |source| LaunchError::Refused { path: path.into(), source };
    if order.has_zero_bytes() {
        let reason = "a zero byte in its arguments or variables";
        return Err(refused(io::Error::new(io::ErrorKind::InvalidInput, reason)));
    }
    wire::framed(&order.to_bytes()).map_err(refused)
}

fn spawn(launch: &Launch, leash: &Leash, control: StdUnixStream) -> io::Result<LeashProcess> {
    // Process lists show the name of the program. They do not show its arguments, which may hold secrets.
    let shown = Path::new(&launch.program).file_name().map(OsString::from).unwrap_or_default();
    let mut command = Command::new(leash.program());
    command
        .arg0("steadfast")
        .args([LEASH_ARGUMENT, HOLD, &millis(launch.patience.term).to_string()])
        .arg(shown)
        .env_clear()
        .stdin(OwnedFd::from(control))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C in a terminal signals the gateway's group. The leash must end the child in its own way instead.
        .process_group(0);
    command.spawn()
}

/// Converts the error of the system to one for the author of the configuration.
fn explain(failed: StartFailure, path: &Path, folder: &Path) -> LaunchError {
    let error = io::Error::from_raw_os_error;
    match failed {
        StartFailure::Folder(_) => LaunchError::FolderMissing { folder: folder.into() },
        StartFailure::Leash(errno) => LaunchError::Leash { source: error(errno) },
        StartFailure::Command(errno) => {
            let source = error(errno);
            let is = |kind| source.kind() == kind;
            if is(io::ErrorKind::NotFound) && path.exists() {
                // The file was found a moment ago: the program in its first line is missing.
                LaunchError::InterpreterMissing { path: path.into() }
            } else if is(io::ErrorKind::NotFound) {
                LaunchError::NotFound { program: path.into() }
            } else if is(io::ErrorKind::PermissionDenied) {
                LaunchError::NotExecutable { path: path.into() }
            } else {
                LaunchError::Refused { path: path.into(), source }
            }
        }
    }
}

struct ParentPipes {
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: ChildStderr,
    child_ends: ChildPipes,
}

impl ParentPipes {
    fn new() -> io::Result<Self> {
        let (child_stdin, stdin) = io::pipe()?;
        let (stdout, child_stdout) = io::pipe()?;
        let (stderr, child_stderr) = io::pipe()?;
        Ok(Self {
            stdin: ChildStdin::from_std(OwnedFd::from(stdin).into())?,
            stdout: ChildStdout::from_std(OwnedFd::from(stdout).into())?,
            stderr: ChildStderr::from_std(OwnedFd::from(stderr).into())?,
            child_ends: [child_stdin.into(), child_stdout.into(), child_stderr.into()],
        })
    }
}

/// The gateway's end of the socket to the leash.
struct LeashControl {
    reports: Take<BufReader<OwnedReadHalf>>,
    orders: OwnedWriteHalf,
}

impl LeashControl {
    fn new(socket: StdUnixStream, child_ends: &ChildPipes) -> io::Result<Self> {
        wire::send_ends(&socket, child_ends)?;
        socket.set_nonblocking(true)?;
        let (reports, orders) = UnixStream::from_std(socket)?.into_split();
        Ok(Self { reports: BufReader::new(reports).take(LeashReport::MAX_BYTES), orders })
    }

    async fn order(&mut self, order: &[u8]) -> io::Result<LeashReport> {
        self.orders.write_all(order).await?;
        self.report().await?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Returns the next report, or `None` if the leash is gone or the program is not a leash.
    async fn report(&mut self) -> io::Result<Option<LeashReport>> {
        let mut line = Vec::new();
        self.reports.read_until(b'\n', &mut line).await?;
        Ok(LeashReport::parse(&line))
    }
}

/// Watches one child, executes the commands of its owner, and reaps the leash.
struct LeashTask {
    control: LeashControl,
    process: LeashProcess,
    pid: u32,
    command_receiver: mpsc::Receiver<ChildCommand>,
    state: watch::Sender<ChildState>,
    exit_sender: oneshot::Sender<()>,
    reader: JoinHandle<()>,
}

impl LeashTask {
    async fn run(self) {
        let Self { control, mut process, pid, mut command_receiver, state, exit_sender, reader } = self;
        let LeashControl { mut reports, orders } = control;
        // The leash ends the group when no more commands can come.
        let mut orders = Some(orders);
        let (mut exit, mut is_gone, mut line) = (ChildExit::Unknown, false, Vec::new());
        while !is_gone {
            tokio::select! {
                // The line is outside of the loop, so that a command in between does not lose a part of it.
                read = reports.read_until(b'\n', &mut line) => {
                    match (read, LeashReport::parse(&line)) {
                        (Ok(1..), Some(LeashReport::Ended(reported))) => {
                            exit = reported;
                            state.send_replace(ChildState::Exited(exit));
                        }
                        (Ok(1..), Some(LeashReport::Gone)) => is_gone = true,
                        (Ok(1..), Some(LeashReport::Started(_) | LeashReport::Failed(_))) => {}
                        (Ok(_) | Err(_), _) => break,
                    }
                    line.clear();
                }
                command = command_receiver.recv(), if orders.is_some() => match (command, orders.as_mut()) {
                    (Some(ChildCommand::Term), Some(leash)) => drop(leash.write_all(&[wire::TERM]).await),
                    (Some(ChildCommand::Kill), Some(leash)) => drop(leash.write_all(&[wire::KILL]).await),
                    (Some(ChildCommand::Abandon), _) => break,
                    (None, _) | (Some(_), None) => orders = None,
                },
            }
        }
        if !is_gone {
            // Without a working leash, nothing else can be done.
            tracing::warn!(pid, "the leash of a server does not respond; its group is ended without it");
            let _ = process.start_kill();
            end_group(pid);
        }
        if timeout(LIMIT, process.wait()).await.is_err() {
            let _ = process.kill().await;
        }
        drop(exit_sender);
        let _ = reader.await;
        state.send_replace(ChildState::Gone(exit));
    }
}

fn end_group(pid: u32) {
    if let Some(leader) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process_group(leader, Signal::KILL);
    }
}

/// Time limit for immediate actions of the leash. It is long, for machines under extreme load.
const LIMIT: Duration = Duration::from_secs(20);
