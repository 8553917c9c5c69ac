//! A server that runs as a child process: its lines, its exits and its recovery.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use steadfast_core::classify::{AttemptFault, FaultSource, TransportError};
use steadfast_core::policy::SettlingPolicy;
use steadfast_core::server_name::ServerFailure;
use steadfast_mcp::delivery::DeliveryLink;
use steadfast_mcp::lines::{
    LONGEST_LINE, LineItem, LineReader, LineSender, ReadPossibility, WriteQueueLimits, line_writer,
};
use steadfast_mcp::message::RpcMessage;
use steadfast_process::{
    ChildExit, Incarnation, IncarnationEnd, IncarnationNumber, IncarnationReceiver, SendProgress,
    ServerStatus, State, Supervisor, with_stderr_lines,
};
use tokio::sync::watch;
use tokio::time::timeout;

use super::{
    Generation, HANDSHAKE, NotificationReceivers, PendingRequest, PendingRequests, SEND_TIMEOUT,
    ServerConnection, ServerEvent, ServerRecovery, UpstreamServer, not_sent,
};
use crate::servers::health::failure_of;
use crate::servers::views::{EndView, InstanceState, InstanceView};

/// The connection to a child process.
pub(super) struct ChildConnection {
    supervisor: Supervisor,
    line: watch::Sender<Option<IncarnationLine>>,
    /// The newest generation that hangs and gets no new request.
    hangs: watch::Sender<Generation>,
    /// The newest generation whose output was read to its end.
    drained: watch::Sender<Generation>,
}

/// The connection to one incarnation.
#[derive(Clone, Debug)]
struct IncarnationLine {
    number: IncarnationNumber,
    sender: LineSender,
    status: watch::Receiver<ServerStatus>,
}

impl From<IncarnationNumber> for Generation {
    fn from(number: IncarnationNumber) -> Self {
        Self(number.get())
    }
}

/// Returns the incarnation that exists in this state.
fn incarnation(state: &State) -> Option<IncarnationNumber> {
    match state {
        State::Starting(number) | State::Up(number) | State::Ending(number) => Some(*number),
        State::Idle | State::BackingOff { .. } | State::Down(_) | State::Closed => None,
    }
}

/// The number of stderr lines that are shown.
const LINES_SHOWN: usize = 20;
/// The maximum wait for the exit of a server that closed its output, to report the cause.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

impl ChildConnection {
    pub(super) fn new(supervisor: Supervisor) -> Self {
        let (hangs, drained) = (watch::Sender::new(Generation::NONE), watch::Sender::new(Generation::NONE));
        Self { supervisor, line: watch::Sender::new(None), hangs, drained }
    }

    /// Returns its state, with this number of tools.
    pub(super) fn instance_view(&self, tools: usize) -> InstanceView {
        let status = self.supervisor.status().borrow().clone();
        InstanceView {
            state: InstanceState::from(&status.state),
            restarts: status.restarts,
            last_end: status.last_end.map(|last| EndView { at_ms: last.at, reason: last.end.to_string() }),
            stderr: self.supervisor.stderr().tail(LINES_SHOWN),
            tools,
        }
    }

    /// Returns its last failure if it is down because of that.
    pub(super) fn failure(&self) -> Option<ServerFailure> {
        let status = self.supervisor.status().borrow().clone();
        let is_down = matches!(status.state, State::Down(_) | State::BackingOff { .. });
        status.last_end.filter(|_| is_down).map(|end| failure_of(&end))
    }

    pub(super) async fn send(
        &self,
        server: &UpstreamServer,
        request: &RpcMessage,
        receivers: NotificationReceivers,
    ) -> Result<PendingRequest, AttemptFault> {
        let number = self.up().await?;
        let line = self.line_of(number)?;
        line.send(server, request, receivers).await
    }

    /// Returns an incarnation that is ready and does not hang.
    async fn up(&self) -> Result<IncarnationNumber, AttemptFault> {
        loop {
            let mut status = self.supervisor.status();
            let number =
                self.supervisor.wait_until_ready().await.map_err(|unavailable| unavailable.fault())?;
            if Generation::from(number) > *self.hangs.borrow() {
                return Ok(number);
            }
            let _ = status.wait_for(|status| incarnation(&status.state) != Some(number)).await;
        }
    }

    /// Returns the current generation, or the last one.
    pub(super) fn generation(&self) -> Generation {
        self.line.borrow().as_ref().map_or(*self.drained.borrow(), |line| line.number.into())
    }

    /// Ends a generation in which a request with unknown outcome hangs. Returns when no process of it is left and its
    /// output was read to its end.
    pub(super) async fn end(
        &self,
        server: &Arc<UpstreamServer>,
        generation: Generation,
        settling: SettlingPolicy,
    ) {
        let up =
            |state: &State| matches!(state, State::Up(number) if Generation::from(*number) == generation);
        if up(&self.supervisor.status().borrow().state)
            && timeout(settling.grace, self.wait_until_gone(generation)).await.is_err()
        {
            let is_new = self.hangs.send_if_modified(|hangs| {
                let newer = *hangs < generation;
                *hangs = generation.max(*hangs);
                newer
            });
            if is_new {
                let reason = "it did not answer a cancelled call; it gets no new calls and is replaced";
                tracing::warn!(event = "server.hung", server = %server.name, "why" = reason);
            }
            // It gets no more calls, so it has to be replaced, even if the caller stops waiting for its end.
            let server = server.clone();
            let condemned = tokio::spawn(async move {
                if let ServerConnection::Child(child) = &server.connection {
                    child.replace(&server.pending, generation, settling.drain).await;
                }
            });
            let _ = condemned.await;
        }
        self.wait_until_gone(generation).await;
        let mut drained = self.drained.subscribe();
        // A process that left its group may hold the output open. It no longer counts as part of the server.
        let _ = timeout(EXIT_TIMEOUT, drained.wait_for(|drained| *drained >= generation)).await;
    }

    /// Replaces a generation that hangs. Its other requests may finish first; those that are safe to repeat run at the
    /// next generation.
    async fn replace(&self, pending: &PendingRequests, generation: Generation, drain: Duration) {
        let _ = timeout(drain, pending.wait_until_all_cancelled(generation)).await;
        let number = incarnation(&self.supervisor.status().borrow().state);
        if let Some(number) = number.filter(|number| Generation::from(*number) == generation) {
            self.line.send_if_modified(|line| line.take_if(|line| line.number == number).is_some());
            self.supervisor.condemn(number, "it did not end a call that was cancelled").await;
        }
    }

    /// Waits until no process of this generation is left. One that could not be ended never counts as gone.
    async fn wait_until_gone(&self, generation: Generation) {
        let mut status = self.supervisor.status();
        let waiting = status.wait_for(|status| {
            incarnation(&status.state).is_none_or(|number| Generation::from(number) != generation)
        });
        let survived = match waiting.await {
            Ok(status) => status.last_end.as_ref().is_some_and(|last| {
                Generation::from(last.incarnation) == generation
                    && matches!(
                        last.end,
                        IncarnationEnd::Exited(ChildExit::Unknown)
                            | IncarnationEnd::Condemned { exit: ChildExit::Unknown, .. }
                    )
            }),
            Err(_) => true,
        };
        if survived {
            std::future::pending::<()>().await;
        }
    }

    pub(super) async fn awake(&self) -> Result<(), AttemptFault> {
        self.up().await.map(drop)
    }

    pub(super) async fn send_first(
        &self,
        server: &UpstreamServer,
        request: &RpcMessage,
    ) -> Result<PendingRequest, AttemptFault> {
        let line = self.first_line().await?;
        line.send(server, request, NotificationReceivers::default()).await
    }

    pub(super) async fn notify(&self, notification: &RpcMessage) {
        let line = self.line.borrow().clone();
        if let Some(line) = line {
            let _ = timeout(SEND_TIMEOUT, line.sender.send(notification)).await;
        }
    }

    pub(super) async fn answer(&self, requested_by: Generation, answer: &RpcMessage) {
        let line = self.line.borrow().clone().filter(|line| Generation::from(line.number) == requested_by);
        if let Some(line) = line {
            let _ = timeout(SEND_TIMEOUT, line.sender.send(answer)).await;
        }
    }

    pub(super) async fn is_ready(&self) {
        let number = self.line.borrow().as_ref().map(|line| line.number);
        if let Some(number) = number {
            self.supervisor.ready(number).await;
        }
    }

    pub(super) async fn stop(&self) {
        self.line.send_replace(None);
        self.supervisor.stop().await;
    }

    async fn first_line(&self) -> Result<IncarnationLine, AttemptFault> {
        let (mut status, mut line) = (self.supervisor.status(), self.line.subscribe());
        self.supervisor.request_start().await;
        loop {
            if let Some(line) = &*line.borrow_and_update() {
                return Ok(line.clone());
            }
            let down = match &status.borrow_and_update().state {
                State::Down(_) | State::Closed => true,
                State::Idle
                | State::Starting(_)
                | State::Up(_)
                | State::Ending(_)
                | State::BackingOff { .. } => false,
            };
            if down {
                // The error states the reason.
                return match self.supervisor.wait_until_ready().await {
                    Err(unavailable) => Err(unavailable.fault()),
                    Ok(number) => self.line_of(number),
                };
            }
            tokio::select! {
                changed = line.changed() => if changed.is_err() { return Err(not_sent("the server was shut down")) },
                changed = status.changed() => if changed.is_err() { return Err(not_sent("the server was shut down")) },
            }
        }
    }

    fn line_of(&self, number: IncarnationNumber) -> Result<IncarnationLine, AttemptFault> {
        let line = self.line.borrow().clone();
        line.filter(|line| line.number == number).ok_or_else(|| not_sent("the server has just ended"))
    }

    /// Handles the incarnations one after the other.
    pub(super) async fn keep(&self, server: &Arc<UpstreamServer>, incarnations: IncarnationReceiver) {
        tokio::select! {
            () = self.run_each(server, incarnations) => {}
            never = self.log_stderr(server) => match never {},
        }
    }

    async fn run_each(&self, server: &Arc<UpstreamServer>, mut incarnations: IncarnationReceiver) {
        while let Some(Incarnation { number, stdin, stdout, .. }) = incarnations.next().await {
            let link = DeliveryLink::new();
            let (sender, writing) = line_writer(stdin, link, WriteQueueLimits::default());
            // Only the server holds the sender: when the server drops it, the child sees the end of its input.
            let restoring = self
                .restore_state(server, IncarnationLine { number, sender, status: self.supervisor.status() });
            let reading = read(server, number.into(), LineReader::new(stdout, LONGEST_LINE));
            // A successful end means that the sender was dropped, which does not end the rest.
            let writing = async {
                if writing.await.is_ok() {
                    std::future::pending::<()>().await;
                }
            };
            let mut side_tasks = pin!(async { tokio::join!(restoring, writing) });
            let fault = tokio::select! {
                reason = reading => {
                    self.line.send_replace(None);
                    let fault_of_end = self.fault_of_end(number, reason);
                    // A write in progress shows if the child still reads.
                    tokio::select! {
                        biased;
                        _ = &mut side_tasks => self.fault_of_end(number, reason).await,
                        fault = fault_of_end => fault,
                    }
                }
                _ = &mut side_tasks => {
                    self.line.send_replace(None);
                    self.fault_of_end(number, "it does not read its input").await
                }
            };
            server.pending.fail_all(number.into(), &fault);
            self.drained.send_replace(number.into());
            server.notify_owner(ServerEvent::Died(number.into())).await;
        }
    }

    /// Restores the state of the last incarnation in a new one. The first one is initialized by its client.
    async fn restore_state(&self, server: &Arc<UpstreamServer>, line: IncarnationLine) {
        self.line.send_replace(Some(line.clone()));
        if !server.handshake.has_started() {
            return;
        }
        let handshake = server.repeat(
            |request| {
                async { line.send(server, &{ request }, NotificationReceivers::default()).await }.boxed()
            },
            |notification| async { _ = line.sender.send(&{ notification }).await }.boxed(),
        );
        match timeout(HANDSHAKE, handshake).await {
            Ok(Ok(())) => {
                self.supervisor.ready(line.number).await;
                if line.number.get() > 1 {
                    let tools_changed = server
                        .handshake
                        .tools_changed(|list| async move {
                            line.send(server, &server.to_server_era(list), NotificationReceivers::default())
                                .await
                        })
                        .await;
                    server.notify_owner(ServerEvent::Recovered(ServerRecovery { tools_changed })).await;
                }
            }
            Ok(Err(fault)) => {
                tracing::warn!(event = "server.handshake", server = %server.name, "why" = %fault.message)
            }
            Err(_) => self.supervisor.condemn(line.number, "it did not answer the handshake in time").await,
        }
    }

    /// Returns the fault for requests without an answer. A server that closed its output mostly exits at the same
    /// moment.
    async fn fault_of_end(&self, number: IncarnationNumber, reason: &'static str) -> AttemptFault {
        self.supervisor.condemn(number, reason).await;
        let exit = exit_of(self.supervisor.status(), number).await;
        match exit {
            Some((exit, stderr)) => with_stderr_lines(exit.fault(SendProgress::Yes), &stderr),
            None => {
                let source =
                    FaultSource::Transport { error: TransportError::ConnectionClosed, written: true };
                let fault =
                    AttemptFault::new(source, format!("the connection to the server was lost: {reason}"));
                with_stderr_lines(fault, &self.supervisor.stderr().tail(LINES_SHOWN))
            }
        }
    }

    /// Logs the lines that the server writes to stderr. Never returns.
    async fn log_stderr(&self, server: &UpstreamServer) -> Infallible {
        let mut lines = self.supervisor.stderr().follow();
        while let Some(line) = lines.next().await {
            let line = line.shown();
            tracing::info!(event = "server.stderr", server = %server.name, line, "[{}] {line}", server.name);
        }
        std::future::pending().await
    }
}

impl IncarnationLine {
    async fn send(
        &self,
        server: &UpstreamServer,
        request: &RpcMessage,
        receivers: NotificationReceivers,
    ) -> Result<PendingRequest, AttemptFault> {
        let (place, sent) = server.enter(self.number.into(), request, receivers);
        let taken = ReadPossibility::default();
        server.pending.sent(place.number, taken.clone());
        match self.sender.send_marked(&sent, taken).await {
            Ok(()) => Ok(place),
            // It mostly exits at the same moment, and then the exit is reported.
            Err(failed) => Err(match exit_of(self.status.clone(), self.number).await {
                Some((exit, stderr)) => {
                    let before =
                        not_sent(&format!("{} before it read this", exit.fault(SendProgress::Yes).message));
                    with_stderr_lines(before, &stderr)
                }
                None => not_sent(&failed.to_string()),
            }),
        }
    }
}

/// Returns the exit of an incarnation that is ending, or of a later one, and its last lines of stderr.
async fn exit_of(
    mut status: watch::Receiver<ServerStatus>,
    number: IncarnationNumber,
) -> Option<(ChildExit, Vec<String>)> {
    let has_ended =
        |status: &ServerStatus| status.last_end.as_ref().is_some_and(|end| end.incarnation >= number);
    let status = timeout(EXIT_TIMEOUT, status.wait_for(has_ended)).await.ok()?.ok()?;
    let last = status.last_end.as_ref()?;
    match last.end {
        IncarnationEnd::Exited(exit) | IncarnationEnd::Condemned { exit, .. } => {
            Some((exit, last.stderr.clone()))
        }
        IncarnationEnd::NotStarted { .. } => None,
    }
}

/// Reads the output of an incarnation to its end. Returns the reason for the end.
async fn read(
    server: &Arc<UpstreamServer>,
    generation: Generation,
    mut lines: LineReader<impl tokio::io::AsyncRead + Unpin>,
) -> &'static str {
    loop {
        let message = match lines.next().await {
            None => return "it closed its output",
            Some(Err(_)) => return "its output cannot be read",
            Some(Ok(LineItem::Message(message))) => message,
            Some(Ok(LineItem::NotAMessage { line, error })) => {
                server.handle_malformed(&line, &error);
                let line = String::from_utf8_lossy(line.get(..200).unwrap_or(&line)).into_owned();
                let line = steadfast_redact::text(&line).into_owned();
                tracing::warn!(event = "server.garbage", server = %server.name, line, "why" = %error);
                continue;
            }
            Some(Ok(LineItem::TooLong(long))) => {
                if let Some(refusal) = server.handle_overlong(generation, &long, None).refusal {
                    server.answer(generation, &refusal).await;
                }
                continue;
            }
            Some(Ok(LineItem::Half(_))) => {
                tracing::warn!(event = "server.half_a_line", server = %server.name);
                continue;
            }
        };
        server.received(generation, message, None).await;
    }
}
