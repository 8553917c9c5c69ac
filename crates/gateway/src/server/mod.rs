//! A server behind us, as those see it who want something of it: requests go in, answers come out, and when it dies it
//! is started again and made what it was.
//!
//! One task takes the incarnations as they come and reads what each says. Answers go to whoever asked; all else goes to
//! the one who owns the server, and is with it before the next message is read: nothing overtakes it.

mod handshake;
mod pending;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::classify::{Fault, Source, Transport};
use steadfast_core::id::Namespace;
use steadfast_mcp::delivery::Link;
use steadfast_mcp::lines::{LONGEST_LINE, LineReader, LineSender, QueueLimits, Received, line_writer};
use steadfast_mcp::message::{Kind, Message};
use steadfast_process::{End, Incarnation, IncarnationNumber, Incarnations, Sent, State, Supervisor};
use tokio::sync::watch;
use tokio::time::timeout;

pub(crate) use self::handshake::Handshake;
use self::pending::Pending;
pub(crate) use self::pending::{Hear, Place};

/// A server and the way to it.
pub(crate) struct Server {
    pub(crate) name: Namespace,
    pub(crate) handshake: Handshake,
    supervisor: Supervisor,
    line: watch::Sender<Option<Line>>,
    pending: Arc<Pending>,
}

/// The way to one incarnation.
#[derive(Clone, Debug)]
struct Line {
    number: IncarnationNumber,
    sender: LineSender,
}

/// Whoever owns a server hears what it does without being asked.
pub(crate) trait Owner: Send + Sync + 'static {
    /// The server is not listened to before this has come back.
    fn heard(&self, event: FromServer) -> impl Future<Output = ()> + Send;
}

/// What a server does without being asked.
#[derive(Debug)]
pub(crate) enum FromServer {
    /// It tells something.
    Told(Message),
    /// It wants something of a client; the answer goes to this incarnation.
    Asked(IncarnationNumber, Message),
    /// This incarnation is gone, and with it what it wanted.
    Died(IncarnationNumber),
    /// It is back after it had died. What it knew may be gone.
    Recovered(Recovery),
}

/// How a server came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recovery {
    /// Whether its tools are others than before.
    pub(crate) tools_changed: bool,
}

/// How long a server may take to answer the handshake: the first start of one that has to be fetched takes long.
const HANDSHAKE: Duration = Duration::from_secs(120);
/// How long the end of a server that closed its output is waited for, to tell what it died of.
const LAST_WORDS: Duration = Duration::from_millis(500);

impl Server {
    /// A server that is started when it is wanted, and listened to by [`Server::keep`].
    pub(crate) fn new(name: Namespace, supervisor: Supervisor) -> Arc<Self> {
        Arc::new(Self {
            name,
            handshake: Handshake::default(),
            supervisor,
            line: watch::Sender::new(None),
            pending: Arc::default(),
        })
    }

    /// Sends a request to a server that is ready, and waits for one to become so. The answer is waited for apart: what
    /// was sent may have its effect, what was not cannot.
    pub(crate) async fn send(&self, request: &Message, hear: Option<Hear>) -> Result<Place, Fault> {
        let number = self.supervisor.up().await.map_err(|unavailable| unavailable.fault())?;
        let line = self.line_of(number).await?;
        self.send_on(&line, request, hear).await
    }

    /// The same for the first words of a client, which make a server ready.
    pub(crate) async fn send_first(&self, request: &Message) -> Result<Place, Fault> {
        let line = self.first_line().await?;
        self.send_on(&line, request, None).await
    }

    /// Tells a server that runs something; one that does not has nothing to be told.
    pub(crate) async fn tell(&self, notification: &Message) {
        let line = self.line.borrow().clone();
        if let Some(line) = line {
            let _ = line.sender.send(notification).await;
        }
    }

    /// Answers what this incarnation asked.
    pub(crate) async fn answer(&self, asked_by: IncarnationNumber, answer: &Message) {
        let line = self.line.borrow().clone().filter(|line| line.number == asked_by);
        if let Some(line) = line {
            let _ = line.sender.send(answer).await;
        }
    }

    /// The server is ready: its client's handshake has been answered.
    pub(crate) async fn is_ready(&self) {
        let number = self.line.borrow().as_ref().map(|line| line.number);
        if let Some(number) = number {
            self.supervisor.ready(number).await;
        }
    }

    /// Stops it and waits until nothing of it is left.
    pub(crate) async fn stop(&self) {
        self.line.send_replace(None);
        self.supervisor.stop().await;
    }

    async fn first_line(&self) -> Result<Line, Fault> {
        let (mut status, mut line) = (self.supervisor.status(), self.line.subscribe());
        self.supervisor.ask().await;
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
                // It says why.
                return match self.supervisor.up().await {
                    Err(unavailable) => Err(unavailable.fault()),
                    Ok(number) => self.line_of(number).await,
                };
            }
            tokio::select! {
                changed = line.changed() => if changed.is_err() { return Err(gone("the server is not there")) },
                changed = status.changed() => if changed.is_err() { return Err(gone("the server is not there")) },
            }
        }
    }

    async fn line_of(&self, number: IncarnationNumber) -> Result<Line, Fault> {
        let line = self.line.borrow().clone();
        line.filter(|line| line.number == number).ok_or_else(|| gone("the server has just ended"))
    }

    async fn send_on(&self, line: &Line, request: &Message, hear: Option<Hear>) -> Result<Place, Fault> {
        let wants_progress = request.progress_token().is_some();
        let place = self.pending.enter(line.number, hear);
        let mut sent = request.rewrite().id(&place.id());
        if wants_progress {
            sent = sent.meta("progressToken", place.id().to_json());
        }
        match line.sender.send(&sent.finish()).await {
            Ok(()) => Ok(place),
            Err(failed) => Err(gone(&failed.to_string())),
        }
    }
}

/// Nothing of it was written.
pub(crate) fn gone(why: &str) -> Fault {
    Fault::new(Source::Transport { error: Transport::ConnectionClosed, written: false }, why)
}

/// Makes a new incarnation what the last one was. The first is made by its client.
async fn greet(server: &Server, line: Line, owner: &impl Owner) {
    server.line.send_replace(Some(line.clone()));
    let Some(words) = server.handshake.words() else { return };
    let said = async {
        for request in &words.requests {
            let mut place = server.send_on(&line, request, None).await?;
            place.answer().await?;
            if request.method() == Some("initialize") {
                let _ = line.sender.send(&handshake::initialized()).await;
            }
        }
        Ok::<(), Fault>(())
    };
    match timeout(HANDSHAKE, said).await {
        Ok(Ok(())) => {
            server.supervisor.ready(line.number).await;
            if line.number.get() > 1 {
                let tools_changed = server.handshake.tools_changed(server, &line).await;
                owner.heard(FromServer::Recovered(Recovery { tools_changed })).await;
            }
        }
        Ok(Err(fault)) => {
            tracing::warn!(event = "server.handshake", server = %server.name, why = %fault.message)
        }
        Err(_) => server.supervisor.condemn(line.number, "it did not answer the handshake in time").await,
    }
}

/// Reads what an incarnation says, until it has nothing more to say.
async fn read(
    server: &Server,
    number: IncarnationNumber,
    mut lines: LineReader<impl tokio::io::AsyncRead + Unpin>,
    owner: &impl Owner,
) -> &'static str {
    loop {
        let message = match lines.next().await {
            None => return "it closed its output",
            Some(Err(_)) => return "what it writes cannot be read",
            Some(Ok(Received::Message(message))) => message,
            Some(Ok(Received::NotAMessage { line, why })) => {
                let line = String::from_utf8_lossy(line.get(..200).unwrap_or(&line)).into_owned();
                let line = steadfast_core::redact::text(&line).into_owned();
                tracing::warn!(event = "server.garbage", server = %server.name, line, %why);
                continue;
            }
            Some(Ok(Received::TooLong { bytes })) => {
                tracing::warn!(event = "server.line_too_long", server = %server.name, bytes);
                continue;
            }
            Some(Ok(Received::Half(_))) => {
                tracing::warn!(event = "server.half_a_line", server = %server.name);
                continue;
            }
        };
        let event = match message.kind() {
            Kind::Result { id } | Kind::Error { id: Some(id) } => {
                server.pending.answered(number, &id, message);
                continue;
            }
            Kind::Error { id: None } => {
                tracing::warn!(event = "server.error", server = %server.name, why = %message.error_text().unwrap_or_default());
                continue;
            }
            Kind::Notification { .. } if server.pending.heard(number, &message) => continue,
            Kind::Notification { .. } => FromServer::Told(message),
            Kind::Request { .. } => FromServer::Asked(number, message),
        };
        owner.heard(event).await;
    }
}

impl Server {
    /// Takes the incarnations as they come, one after the other.
    pub(crate) async fn keep(self: Arc<Self>, mut incarnations: Incarnations, owner: Arc<impl Owner>) {
        while let Some(Incarnation { number, stdin, stdout, .. }) = incarnations.next().await {
            let link = Link::new();
            let (sender, writing) = line_writer(stdin, link, QueueLimits::default());
            // Kept nowhere but with the server: when that lets go of it, the child sees the end of its input.
            let greeting = greet(&self, Line { number, sender }, &*owner);
            let reading = read(&self, number, LineReader::new(stdout, LONGEST_LINE), &*owner);
            // It ends well only when its line is let go, which is not what ends the rest.
            let writing = async {
                if writing.await.is_ok() {
                    std::future::pending::<()>().await;
                }
            };
            let mut reading = pin!(reading);
            let mut beside = pin!(async { tokio::join!(greeting, writing) });
            let why = tokio::select! {
                why = &mut reading => why,
                _ = &mut beside => "it does not read what it is sent",
            };
            self.line.send_replace(None);
            let fault = self.last_words(number, why).await;
            self.pending.lost(number, &fault);
            owner.heard(FromServer::Died(number)).await;
        }
    }

    /// What requests are told that will have no answer. A server that closed its output mostly dies in the same moment.
    async fn last_words(&self, number: IncarnationNumber, why: &'static str) -> Fault {
        self.supervisor.condemn(number, why).await;
        let mut status = self.supervisor.status();
        let ended =
            status.wait_for(|status| status.last_end.as_ref().is_some_and(|end| end.incarnation == number));
        let exit = match timeout(LAST_WORDS, ended).await {
            Ok(Ok(status)) => status.last_end.as_ref().and_then(|last| match last.end {
                End::Exited(exit) | End::Condemned { exit, .. } => Some(exit),
                End::NotStarted { .. } => None,
            }),
            Ok(Err(_)) | Err(_) => None,
        };
        match exit {
            Some(exit) => exit.fault(Sent::Yes),
            None => {
                let source = Source::Transport { error: Transport::ConnectionClosed, written: true };
                Fault::new(source, format!("the connection to the server was lost: {why}"))
            }
        }
    }
}
