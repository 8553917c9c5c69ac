//! Supervision of one server.
//!
//! A task owns the child and is the only one that starts it, so there are never two instances of one server.
//! [`steadfast_core::restart`] decides when it may be started again; this module performs and reports it. Each
//! *incarnation* has a number and is handed to the owner with its pipes. The owner communicates with it, reports when
//! it is ready, and reports when it is no longer usable.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use steadfast_core::classify::{AttemptFault, FaultSource, RetryAfter, TransportError};
use steadfast_core::restart::{
    DownPeriod, RestartPolicy, RestartTracker, ServerExit, ServerState, StartDecision,
};
use steadfast_core::{Timestamp, millis};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use crate::child::ChildProcess;
use crate::exit::{ChildExit, last_stderr_lines};
use crate::launch::{Launch, StopTimeouts};
use crate::leash::Leash;
use crate::stderr::StderrLog;

/// Number of a start of a server: one for the first, and one more for each further start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IncarnationNumber(u64);

impl IncarnationNumber {
    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for IncarnationNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A server that was just started.
#[derive(Debug)]
pub struct Incarnation {
    /// Its number.
    pub number: IncarnationNumber,
    /// Its process id.
    pub pid: u32,
    /// Its stdin. Drop it when the state is `Ending`.
    pub stdin: ChildStdin,
    /// Its stdout. It may end before the server does (then [`Supervisor::condemn`] it) and may stay open after the end
    /// of the server, so rely on the state and not on the end of this stream.
    pub stdout: ChildStdout,
}

/// State of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It does not run. It starts on request.
    Idle,
    /// It is being started, or was started and is not ready yet.
    Starting(IncarnationNumber),
    /// It is ready.
    Up(IncarnationNumber),
    /// It died or is being stopped, and some of its processes may still exist.
    Ending(IncarnationNumber),
    /// It died and will be restarted automatically.
    BackingOff {
        /// Time of the restart.
        until: Timestamp,
    },
    /// It is not restarted for now. [`ServerStatus::last_end`] has the reason of its last end.
    Down(DownPeriod),
    /// The supervision has ended.
    Closed,
}

/// State and history of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStatus {
    /// Its state.
    pub state: State,
    /// Number of restarts after it had died.
    pub restarts: u64,
    /// Its last end, except those that the owner requested.
    pub last_end: Option<Arc<LastEnd>>,
}

/// End of an incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastEnd {
    /// Number of the incarnation.
    pub incarnation: IncarnationNumber,
    /// Reason of the end.
    pub end: IncarnationEnd,
    /// Time of the end.
    pub at: Timestamp,
    /// The last lines that it wrote to stderr, redacted.
    pub stderr: Vec<String>,
}

/// Reason of the end of an incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IncarnationEnd {
    /// It exited by itself.
    Exited(ChildExit),
    /// The owner declared it unusable, and it was ended.
    Condemned {
        /// Reason given by the owner.
        reason: String,
        /// Exit of the process.
        exit: ChildExit,
    },
    /// It could not be started.
    NotStarted {
        /// Reason.
        reason: String,
    },
}

impl fmt::Display for IncarnationEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(exit) => write!(f, "it {exit}"),
            Self::Condemned { reason, exit } => write!(f, "it was ended: {reason}; it {exit}"),
            Self::NotStarted { reason } => f.write_str(reason),
        }
    }
}

/// Reason why a server is unavailable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServerUnavailable {
    /// It is not restarted for now.
    #[error("the server is down: {down}{}", last_end_text(last_end.as_deref()))]
    Down {
        /// Reason, and end of this state.
        down: DownPeriod,
        /// Its last end.
        last_end: Option<Arc<LastEnd>>,
    },
    /// The supervision has ended.
    #[error("the server was shut down")]
    Closed,
}

impl ServerUnavailable {
    /// Returns the fault of a call to this server: it was not sent, and may be retried when the server is back.
    pub fn fault(&self) -> AttemptFault {
        let source = FaultSource::Transport { error: TransportError::ConnectionRefused, written: false };
        let retry_after = match self {
            Self::Down { down, .. } => Some(RetryAfter::At(down.until)),
            Self::Closed => None,
        };
        AttemptFault { retry_after, ..AttemptFault::new(source, self.to_string()) }
    }
}

/// Returns the part of a message about the last end of a server, or an empty text.
fn last_end_text(last_end: Option<&LastEnd>) -> String {
    let Some(last) = last_end else { return String::new() };
    let lines = last_stderr_lines(&last.stderr).map(|lines| format!(". Last lines of stderr: {lines}"));
    format!(". Last time: {}{}", last.end, lines.unwrap_or_default())
}

/// Supervisor of one server. Dropping it stops the server.
#[derive(Debug)]
pub struct Supervisor {
    commands: mpsc::Sender<SupervisorCommand>,
    status: watch::Receiver<ServerStatus>,
    stderr: StderrLog,
    clock: SupervisorClock,
}

/// Receiver of the incarnations of a server. Dropping it stops the server.
#[derive(Debug)]
pub struct IncarnationReceiver {
    receiver: mpsc::Receiver<Incarnation>,
}

impl IncarnationReceiver {
    /// Returns the next incarnation, or `None` if there will be none. One that was not received in time may be dead
    /// already. Cancel safe.
    pub async fn next(&mut self) -> Option<Incarnation> {
        self.receiver.recv().await
    }
}

impl Supervisor {
    /// Creates a supervisor of a server that starts on request. The seed spreads the backoff between its starts.
    pub fn new(
        launch: Launch,
        leash: Leash,
        policy: RestartPolicy,
        seed: u64,
    ) -> (Self, IncarnationReceiver) {
        let (commands, command_receiver) = mpsc::channel(COMMAND_CAPACITY);
        let (sender, receiver) = mpsc::channel(1);
        let (status_sender, status) =
            watch::channel(ServerStatus { state: State::Idle, restarts: 0, last_end: None });
        let (stderr, clock) = (StderrLog::new(), SupervisorClock::new());
        let task = SupervisorTask {
            launch,
            leash,
            policy,
            restarts: RestartTracker::new(seed),
            clock,
            stderr: stderr.clone(),
            status: status_sender,
            sender,
            number: IncarnationNumber(0),
            current: None,
        };
        tokio::spawn(task.run(command_receiver));
        (Self { commands, status, stderr, clock }, IncarnationReceiver { receiver })
    }

    /// Subscribes to its status.
    pub fn status(&self) -> watch::Receiver<ServerStatus> {
        self.status.clone()
    }

    /// Returns its last stderr output, of all incarnations.
    pub const fn stderr(&self) -> &StderrLog {
        &self.stderr
    }

    /// Requests a start, if it is allowed, and returns at once.
    pub async fn request_start(&self) {
        let _ = self.commands.send(SupervisorCommand::Ask).await;
    }

    /// Requests a start if needed, and waits until the server is ready or known to be unavailable. There is no timeout:
    /// the owner must condemn an incarnation that never becomes ready.
    pub async fn wait_until_ready(&self) -> Result<IncarnationNumber, ServerUnavailable> {
        let mut status = self.status.clone();
        loop {
            let is_wanted = {
                let current = status.borrow_and_update();
                match &current.state {
                    State::Up(number) => return Ok(*number),
                    State::Down(down) if self.clock.now() < down.until => {
                        return Err(ServerUnavailable::Down {
                            down: *down,
                            last_end: current.last_end.clone(),
                        });
                    }
                    State::Closed => return Err(ServerUnavailable::Closed),
                    State::Idle | State::Down(_) => true,
                    State::Starting(_) | State::Ending(_) | State::BackingOff { .. } => false,
                }
            };
            if is_wanted {
                self.request_start().await;
            }
            if status.changed().await.is_err() {
                return Err(ServerUnavailable::Closed);
            }
        }
    }

    /// Marks the incarnation as ready. Has no effect for an older one.
    pub async fn ready(&self, number: IncarnationNumber) {
        let _ = self.commands.send(SupervisorCommand::Ready(number)).await;
    }

    /// Ends an incarnation that is no longer usable (it hangs, sends invalid messages, or closed its stdout), and
    /// counts that as a death. Has no effect for an older one. Drop its stdin before.
    pub async fn condemn(&self, number: IncarnationNumber, reason: impl Into<String>) {
        let _ = self.commands.send(SupervisorCommand::Condemn(number, reason.into())).await;
    }

    /// Stops it until the next request, and waits until none of its processes is left. Drop its stdin before.
    pub async fn stop(&self) {
        self.and_wait(SupervisorCommand::Stop).await;
    }

    /// Resets the restart history, for example after a repair. A server that is down or waits for a restart then starts
    /// on request.
    pub async fn reset(&self) {
        self.and_wait(SupervisorCommand::Reset).await;
    }

    async fn and_wait(&self, command: impl FnOnce(oneshot::Sender<()>) -> SupervisorCommand) {
        let (done, is_done) = oneshot::channel();
        if self.commands.send(command(done)).await.is_ok() {
            let _ = is_done.await;
        }
    }
}

/// A command of the owner.
enum SupervisorCommand {
    Ask,
    Ready(IncarnationNumber),
    Condemn(IncarnationNumber, String),
    Stop(oneshot::Sender<()>),
    Reset(oneshot::Sender<()>),
}

/// Capacity of the command queue. Senders wait if it is full.
const COMMAND_CAPACITY: usize = 64;
/// Number of stderr lines in the record of an end.
const LAST_LINES: usize = 20;

/// Milliseconds since the epoch that never go backwards, based on the clock of the timers.
#[derive(Clone, Copy, Debug)]
struct SupervisorClock {
    began: Instant,
    at: Timestamp,
}

impl SupervisorClock {
    fn new() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { began: Instant::now(), at: Timestamp::from_millis(millis(since_epoch)) }
    }

    fn now(&self) -> Timestamp {
        self.at + self.began.elapsed()
    }

    /// Returns the moment at which this clock shows `moment`.
    fn instant(&self, moment: Timestamp) -> Instant {
        // Limited, so that the addition cannot overflow.
        self.began + moment.since(self.at).min(Duration::from_secs(86_400 * 365))
    }
}

/// The current incarnation.
struct CurrentIncarnation {
    child: ChildProcess,
    /// The incarnation, until the owner has taken it.
    undelivered: Option<Incarnation>,
}

struct SupervisorTask {
    launch: Launch,
    leash: Leash,
    policy: RestartPolicy,
    restarts: RestartTracker,
    clock: SupervisorClock,
    stderr: StderrLog,
    status: watch::Sender<ServerStatus>,
    sender: mpsc::Sender<Incarnation>,
    /// Number of the newest incarnation.
    number: IncarnationNumber,
    current: Option<CurrentIncarnation>,
}

impl SupervisorTask {
    async fn run(mut self, mut command_receiver: mpsc::Receiver<SupervisorCommand>) {
        self.keep(&mut command_receiver).await;
        self.stop().await;
        self.status.send_modify(|status| status.state = State::Closed);
    }

    /// Supervises the server until its owner is gone.
    async fn keep(&mut self, command_receiver: &mut mpsc::Receiver<SupervisorCommand>) {
        loop {
            let wake = match self.restarts.state() {
                ServerState::BackingOff { until } => Some(self.clock.instant(until)),
                ServerState::Idle
                | ServerState::Starting { .. }
                | ServerState::Up { .. }
                | ServerState::Down(_) => None,
            };
            let is_undelivered = self.current.as_ref().is_some_and(|current| current.undelivered.is_some());
            tokio::select! {
                command = command_receiver.recv() => match command {
                    None => return,
                    Some(SupervisorCommand::Ask) => self.start_if_allowed().await,
                    Some(SupervisorCommand::Ready(number)) => self.ready(number),
                    Some(SupervisorCommand::Condemn(number, reason)) => self.condemn(number, reason).await,
                    Some(SupervisorCommand::Stop(done)) => {
                        self.stop().await;
                        let _ = done.send(());
                    }
                    Some(SupervisorCommand::Reset(done)) => {
                        self.restarts.reset();
                        self.publish();
                        let _ = done.send(());
                    }
                },
                () = exited(self.current.as_ref()) => self.exited().await,
                room = self.sender.clone().reserve_owned(), if is_undelivered => {
                    let Ok(room) = room else { return };
                    if let Some(incarnation) = self.current.as_mut().and_then(|current| current.undelivered.take()) {
                        room.send(incarnation);
                    }
                }
                () = self.sender.closed() => return,
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => self.start_if_allowed().await,
            }
        }
    }

    async fn start_if_allowed(&mut self) {
        let has_died = match self.restarts.state() {
            ServerState::BackingOff { .. } | ServerState::Down(_) => true,
            ServerState::Idle | ServerState::Starting { .. } | ServerState::Up { .. } => false,
        };
        match self.restarts.request_start(self.clock.now()) {
            StartDecision::Start => {
                let more = u64::from(has_died);
                self.status.send_modify(|status| status.restarts = status.restarts.saturating_add(more));
                self.start().await;
            }
            StartDecision::WaitForStart
            | StartDecision::Use
            | StartDecision::WaitUntil(_)
            | StartDecision::Refuse(_) => {}
        }
    }

    async fn start(&mut self) {
        self.number = IncarnationNumber(self.number.0.saturating_add(1));
        self.publish();
        match self.launch.start(&self.leash, &self.stderr).await {
            Ok(started) => {
                let (number, pid) = (self.number, started.child.pid());
                let incarnation = Incarnation { number, pid, stdin: started.stdin, stdout: started.stdout };
                self.current =
                    Some(CurrentIncarnation { child: started.child, undelivered: Some(incarnation) });
            }
            Err(error) => {
                let death = if error.is_lasting() { ServerExit::CannotStart } else { ServerExit::Crashed };
                self.died(death, IncarnationEnd::NotStarted { reason: error.to_string() });
            }
        }
    }

    fn ready(&mut self, number: IncarnationNumber) {
        if self.runs(number) {
            self.restarts.record_ready(self.clock.now());
            self.publish();
        }
    }

    async fn condemn(&mut self, number: IncarnationNumber, reason: String) {
        if self.runs(number) {
            // An unusable server gets no time to end by itself.
            let exit = self.end(Duration::ZERO).await;
            self.died(ServerExit::Crashed, IncarnationEnd::Condemned { reason, exit });
        }
    }

    async fn exited(&mut self) {
        // The leash ends the remaining processes in its own steps. This limit begins where those should be over.
        let StopTimeouts { term, kill, .. } = self.launch.patience;
        let exit = self.end(term.saturating_add(kill)).await;
        self.died(ServerExit::Crashed, IncarnationEnd::Exited(exit));
    }

    async fn stop(&mut self) {
        if self.current.is_some() {
            self.end(self.launch.patience.stdin).await;
        }
        let _ = self.restarts.record_exit(&self.policy, ServerExit::Stopped, self.clock.now());
        self.publish();
    }

    /// Ends the incarnation completely, so that nothing of it is left when the next one starts. `by_itself` is its time
    /// to exit by itself.
    async fn end(&mut self, by_itself: Duration) -> ChildExit {
        let Some(CurrentIncarnation { child, undelivered }) = self.current.take() else {
            return ChildExit::Unknown;
        };
        self.publish_state(State::Ending(self.number));
        drop(undelivered);
        child.stop(&StopTimeouts { stdin: by_itself, ..self.launch.patience }).await
    }

    fn died(&mut self, death: ServerExit, end: IncarnationEnd) {
        let now = self.clock.now();
        let _ = self.restarts.record_exit(&self.policy, death, now);
        let stderr = match &end {
            IncarnationEnd::Exited(_) | IncarnationEnd::Condemned { .. } => self.stderr.tail(LAST_LINES),
            IncarnationEnd::NotStarted { .. } => Vec::new(),
        };
        tracing::warn!(incarnation = self.number.0, %end, standing = ?self.restarts.state(), "a server died");
        let last_end = Some(Arc::new(LastEnd { incarnation: self.number, end, at: now, stderr }));
        let state = self.state();
        self.status.send_modify(|status| (status.state, status.last_end) = (state, last_end));
    }

    fn runs(&self, number: IncarnationNumber) -> bool {
        self.current.is_some() && self.number == number
    }

    fn state(&self) -> State {
        match self.restarts.state() {
            ServerState::Idle => State::Idle,
            ServerState::Starting { .. } => State::Starting(self.number),
            ServerState::Up { .. } => State::Up(self.number),
            ServerState::BackingOff { until } => State::BackingOff { until },
            ServerState::Down(down) => State::Down(down),
        }
    }

    fn publish(&self) {
        self.publish_state(self.state());
    }

    fn publish_state(&self, state: State) {
        self.status.send_modify(|status| status.state = state);
    }
}

async fn exited(current: Option<&CurrentIncarnation>) {
    match current {
        Some(current) => drop(current.child.exited().await),
        None => std::future::pending().await,
    }
}
