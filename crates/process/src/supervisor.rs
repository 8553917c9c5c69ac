//! One server kept alive.
//!
//! A task owns the child and is the only one that starts it, so there are never two of one server. When it may be
//! started again is decided by [`steadfast_core::restart`]; this only does it, and tells. Each *incarnation* has a
//! number and is handed to the owner with its pipes; the owner speaks with it, says when it is ready, and says so
//! when it is of no use any more.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use steadfast_core::classify::{Fault, RetryAfter, Source, Transport};
use steadfast_core::restart::{Death, Decision, Down, RestartPolicy, Restarts, Standing};
use steadfast_core::{Timestamp, millis};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use crate::child::{Child, Patience};
use crate::exit::{Exit, last_words};
use crate::launch::Launch;
use crate::leash::Leash;
use crate::stderr::Stderr;

/// Which start of a server: one for the first, and one more for each further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IncarnationNumber(u64);

impl IncarnationNumber {
    /// The number.
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
    /// Which one.
    pub number: IncarnationNumber,
    /// The number of its process.
    pub pid: u32,
    /// What it reads. To be dropped when the state says that it is ending.
    pub stdin: ChildStdin,
    /// What it writes. It may end before the server does (then [`Supervisor::condemn`] it) and may stay open after
    /// it, so the state counts and not the end of this.
    pub stdout: ChildStdout,
}

/// How a server stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It does not run; whoever asks for it gets it started.
    Idle,
    /// It is being started, or was started and is not ready yet.
    Starting(IncarnationNumber),
    /// It is ready.
    Up(IncarnationNumber),
    /// It died or is being stopped, and something of it may still be there.
    Ending(IncarnationNumber),
    /// It died and is started again by itself.
    BackingOff {
        /// When.
        until: Timestamp,
    },
    /// It is left alone. [`Status::last_end`] has what it died of.
    Down(Down),
    /// It is over: nobody keeps it alive any more.
    Closed,
}

/// How a server stands and what it has been through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// How it stands.
    pub state: State,
    /// How often it was started again after it had died.
    pub restarts: u64,
    /// How it last ended, unless we stopped it.
    pub last_end: Option<Arc<LastEnd>>,
}

/// How an incarnation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastEnd {
    /// Which one.
    pub incarnation: IncarnationNumber,
    /// How.
    pub end: End,
    /// When.
    pub at: Timestamp,
    /// The last lines that it wrote to stderr, without their secrets.
    pub stderr: Vec<String>,
}

/// How an incarnation came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself.
    Exited(Exit),
    /// It was of no use any more, for this reason, and was ended.
    Condemned {
        /// In the owner's words.
        why: String,
        /// How it took that.
        exit: Exit,
    },
    /// It never was.
    NotStarted {
        /// Why not.
        why: String,
    },
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(exit) => write!(f, "it {exit}"),
            Self::Condemned { why, exit } => write!(f, "it was ended: {why}; it {exit}"),
            Self::NotStarted { why } => f.write_str(why),
        }
    }
}

/// Why there is no server to be had.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unavailable {
    /// It is left alone for a while.
    Down {
        /// Why, and until when.
        down: Down,
        /// What it died of.
        last_end: Option<Arc<LastEnd>>,
    },
    /// Nobody keeps it alive any more.
    Closed,
}

impl Unavailable {
    /// What a call makes of it: it was not sent, and is worth trying again when the server is.
    pub fn fault(&self) -> Fault {
        let source = Source::Transport { error: Transport::ConnectionRefused, written: false };
        let retry_after = match self {
            Self::Down { down, .. } => Some(RetryAfter::At(down.until)),
            Self::Closed => None,
        };
        Fault { retry_after, ..Fault::new(source, self.to_string()) }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down { down, last_end } => {
                write!(f, "the server is down: {down}")?;
                if let Some(last) = last_end {
                    write!(f, ". Last time: {}", last.end)?;
                    if let Some(words) = last_words(&last.stderr) {
                        write!(f, ". Its last words: {words}")?;
                    }
                }
                Ok(())
            }
            Self::Closed => f.write_str("the server was shut down"),
        }
    }
}

impl std::error::Error for Unavailable {}

/// Keeps one server alive. When this is dropped the server is stopped.
#[derive(Debug)]
pub struct Supervisor {
    wishes: mpsc::Sender<Wish>,
    status: watch::Receiver<Status>,
    stderr: Stderr,
    clock: Clock,
}

/// Where the incarnations of a server come out. When this is dropped the server is stopped.
#[derive(Debug)]
pub struct Incarnations {
    handed: mpsc::Receiver<Incarnation>,
}

impl Incarnations {
    /// The next incarnation; nothing when there will be none. One that nobody took in time may be dead already.
    /// Nothing is lost if this is cancelled.
    pub async fn next(&mut self) -> Option<Incarnation> {
        self.handed.recv().await
    }
}

impl Supervisor {
    /// A server that is started when it is asked for. The seed spreads the waits between its starts.
    pub fn new(launch: Launch, leash: Leash, policy: RestartPolicy, seed: u64) -> (Self, Incarnations) {
        let (wishes, wished) = mpsc::channel(WISHES);
        let (handing, handed) = mpsc::channel(1);
        let (told, status) = watch::channel(Status { state: State::Idle, restarts: 0, last_end: None });
        let (stderr, clock) = (Stderr::new(), Clock::new());
        let keeper = Keeper {
            launch,
            leash,
            policy,
            restarts: Restarts::new(seed),
            clock,
            stderr: stderr.clone(),
            status: told,
            handing,
            number: IncarnationNumber(0),
            current: None,
        };
        tokio::spawn(keeper.run(wished));
        (Self { wishes, status, stderr, clock }, Incarnations { handed })
    }

    /// How it stands, and every change of that.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// What it wrote to stderr lately, over all incarnations.
    pub const fn stderr(&self) -> &Stderr {
        &self.stderr
    }

    /// Has it started if it may be, and comes back at once.
    pub async fn ask(&self) {
        let _ = self.wishes.send(Wish::Ask).await;
    }

    /// Has it started if need be, and waits until it is ready or is known not to become so. This has no limit of its
    /// own: an incarnation that never becomes ready is for the owner to condemn.
    pub async fn up(&self) -> Result<IncarnationNumber, Unavailable> {
        let mut status = self.status.clone();
        loop {
            let is_wanted = {
                let seen = status.borrow_and_update();
                match &seen.state {
                    State::Up(number) => return Ok(*number),
                    State::Down(down) if self.clock.now() < down.until => {
                        return Err(Unavailable::Down { down: *down, last_end: seen.last_end.clone() });
                    }
                    State::Closed => return Err(Unavailable::Closed),
                    State::Idle | State::Down(_) => true,
                    State::Starting(_) | State::Ending(_) | State::BackingOff { .. } => false,
                }
            };
            if is_wanted {
                self.ask().await;
            }
            if status.changed().await.is_err() {
                return Err(Unavailable::Closed);
            }
        }
    }

    /// The incarnation answers. Of an older one this means nothing.
    pub async fn ready(&self, number: IncarnationNumber) {
        let _ = self.wishes.send(Wish::Ready(number)).await;
    }

    /// The incarnation is of no use any more (it hangs, speaks nonsense, closed its stdout): it is ended, and that
    /// counts as a death. Of an older one this means nothing. Drop its stdin before.
    pub async fn condemn(&self, number: IncarnationNumber, why: impl Into<String>) {
        let _ = self.wishes.send(Wish::Condemn(number, why.into())).await;
    }

    /// Stops it until it is asked for again, and waits until nothing of it is left. Drop its stdin before.
    pub async fn stop(&self) {
        self.and_wait(Wish::Stop).await;
    }

    /// Somebody says that it is mended: what was is forgotten, and a server that is down or waits is started when it
    /// is asked for.
    pub async fn reset(&self) {
        self.and_wait(Wish::Reset).await;
    }

    async fn and_wait(&self, wish: impl FnOnce(oneshot::Sender<()>) -> Wish) {
        let (done, is_done) = oneshot::channel();
        if self.wishes.send(wish(done)).await.is_ok() {
            let _ = is_done.await;
        }
    }
}

/// What an owner wants.
enum Wish {
    Ask,
    Ready(IncarnationNumber),
    Condemn(IncarnationNumber, String),
    Stop(oneshot::Sender<()>),
    Reset(oneshot::Sender<()>),
}

/// More wait for their turn.
const WISHES: usize = 64;
/// So many of its last lines are kept with the end of a server.
const LAST_LINES: usize = 20;

/// Milliseconds since the epoch that never go backwards, on the clock that waits are counted by.
#[derive(Clone, Copy, Debug)]
struct Clock {
    began: Instant,
    at: Timestamp,
}

impl Clock {
    fn new() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { began: Instant::now(), at: Timestamp::from_millis(millis(since_epoch)) }
    }

    fn now(&self) -> Timestamp {
        self.at + self.began.elapsed()
    }

    /// The moment at which this clock shows it.
    fn instant(&self, moment: Timestamp) -> Instant {
        // Never so far away that it could not be counted.
        self.began + moment.since(self.at).min(Duration::from_secs(86_400 * 365))
    }
}

/// The incarnation that runs.
struct Current {
    child: Child,
    /// Until the owner has taken it.
    to_hand: Option<Incarnation>,
}

struct Keeper {
    launch: Launch,
    leash: Leash,
    policy: RestartPolicy,
    restarts: Restarts,
    clock: Clock,
    stderr: Stderr,
    status: watch::Sender<Status>,
    handing: mpsc::Sender<Incarnation>,
    /// Of the newest incarnation.
    number: IncarnationNumber,
    current: Option<Current>,
}

impl Keeper {
    async fn run(mut self, mut wished: mpsc::Receiver<Wish>) {
        self.keep(&mut wished).await;
        self.stop().await;
        self.status.send_modify(|status| status.state = State::Closed);
    }

    /// Until nobody is there any more to keep it for.
    async fn keep(&mut self, wished: &mut mpsc::Receiver<Wish>) {
        loop {
            let wake = match self.restarts.standing() {
                Standing::BackingOff { until } => Some(self.clock.instant(until)),
                Standing::Idle | Standing::Starting { .. } | Standing::Up { .. } | Standing::Down(_) => None,
            };
            let is_to_hand = self.current.as_ref().is_some_and(|current| current.to_hand.is_some());
            tokio::select! {
                wish = wished.recv() => match wish {
                    None => return,
                    Some(Wish::Ask) => self.asked().await,
                    Some(Wish::Ready(number)) => self.ready(number),
                    Some(Wish::Condemn(number, why)) => self.condemn(number, why).await,
                    Some(Wish::Stop(done)) => {
                        self.stop().await;
                        let _ = done.send(());
                    }
                    Some(Wish::Reset(done)) => {
                        self.restarts.reset();
                        self.tell();
                        let _ = done.send(());
                    }
                },
                () = exited(self.current.as_ref()) => self.exited().await,
                room = self.handing.clone().reserve_owned(), if is_to_hand => {
                    let Ok(room) = room else { return };
                    if let Some(incarnation) = self.current.as_mut().and_then(|current| current.to_hand.take()) {
                        room.send(incarnation);
                    }
                }
                () = self.handing.closed() => return,
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => self.asked().await,
            }
        }
    }

    async fn asked(&mut self) {
        let has_died = match self.restarts.standing() {
            Standing::BackingOff { .. } | Standing::Down(_) => true,
            Standing::Idle | Standing::Starting { .. } | Standing::Up { .. } => false,
        };
        match self.restarts.asked(self.clock.now()) {
            Decision::Start => {
                let more = u64::from(has_died);
                self.status.send_modify(|status| status.restarts = status.restarts.saturating_add(more));
                self.start().await;
            }
            Decision::WaitForStart | Decision::Use | Decision::WaitUntil(_) | Decision::Refuse(_) => {}
        }
    }

    async fn start(&mut self) {
        self.number = IncarnationNumber(self.number.0.saturating_add(1));
        self.tell();
        match self.launch.start(&self.leash, &self.stderr).await {
            Ok(started) => {
                let (number, pid) = (self.number, started.child.pid());
                let incarnation = Incarnation { number, pid, stdin: started.stdin, stdout: started.stdout };
                self.current = Some(Current { child: started.child, to_hand: Some(incarnation) });
            }
            Err(error) => {
                let death = if error.is_lasting() { Death::CannotStart } else { Death::Crashed };
                self.died(death, End::NotStarted { why: error.to_string() });
            }
        }
    }

    fn ready(&mut self, number: IncarnationNumber) {
        if self.runs(number) {
            self.restarts.ready(self.clock.now());
            self.tell();
        }
    }

    async fn condemn(&mut self, number: IncarnationNumber, why: String) {
        if self.runs(number) {
            // What is of no use gets no time to end by itself.
            let exit = self.end(Duration::ZERO).await;
            self.died(Death::Crashed, End::Condemned { why, exit });
        }
    }

    async fn exited(&mut self) {
        // The leash ends what is left behind, in its own steps; ours begin where those should be over.
        let Patience { term, kill, .. } = self.launch.patience;
        let exit = self.end(term.saturating_add(kill)).await;
        self.died(Death::Crashed, End::Exited(exit));
    }

    async fn stop(&mut self) {
        if self.current.is_some() {
            self.end(self.launch.patience.stdin).await;
        }
        let _ = self.restarts.died(&self.policy, Death::Stopped, self.clock.now());
        self.tell();
    }

    /// Nothing may be left of an incarnation when the next one starts. It has so long to end by itself.
    async fn end(&mut self, by_itself: Duration) -> Exit {
        let Some(Current { child, to_hand }) = self.current.take() else { return Exit::Unknown };
        self.tell_state(State::Ending(self.number));
        drop(to_hand);
        child.stop(&Patience { stdin: by_itself, ..self.launch.patience }).await
    }

    fn died(&mut self, death: Death, end: End) {
        let now = self.clock.now();
        let _ = self.restarts.died(&self.policy, death, now);
        let stderr = match &end {
            End::Exited(_) | End::Condemned { .. } => self.stderr.tail(LAST_LINES),
            End::NotStarted { .. } => Vec::new(),
        };
        tracing::warn!(incarnation = self.number.0, %end, standing = ?self.restarts.standing(), "a server died");
        let last_end = Some(Arc::new(LastEnd { incarnation: self.number, end, at: now, stderr }));
        let state = self.state();
        self.status.send_modify(|status| (status.state, status.last_end) = (state, last_end));
    }

    fn runs(&self, number: IncarnationNumber) -> bool {
        self.current.is_some() && self.number == number
    }

    fn state(&self) -> State {
        match self.restarts.standing() {
            Standing::Idle => State::Idle,
            Standing::Starting { .. } => State::Starting(self.number),
            Standing::Up { .. } => State::Up(self.number),
            Standing::BackingOff { until } => State::BackingOff { until },
            Standing::Down(down) => State::Down(down),
        }
    }

    fn tell(&self) {
        self.tell_state(self.state());
    }

    fn tell_state(&self, state: State) {
        self.status.send_modify(|status| status.state = state);
    }
}

async fn exited(current: Option<&Current>) {
    match current {
        Some(current) => drop(current.child.exited().await),
        None => std::future::pending().await,
    }
}
