//! Restart policy for servers that crash.
//!
//! Restarting a crashing server at once, for ever, wastes the machine and hides the error message. Never restarting it
//! takes its tools away. So each crash makes the next wait longer. After too many crashes within a window the server is
//! *down*: calls are refused at once, with the time of the next start. After that pause it gets one trial start per
//! request. A crash in a trial doubles the next pause.
//!
//! Two things are reset at different times. A healthy period resets the waits, and crashes leave the window by time
//! alone. So in any window of time there are never more starts after a crash than the crash limit allows.
//!
//! Like the circuit breaker, this has no timer: expiry is checked against `now` on each request.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use crate::Timestamp;
use crate::policy::Jitter;
use crate::retry::JitterSequence;

/// Limits and waits for a server that crashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartPolicy {
    /// Number of crashes within the window after which the server is down. Values above [`MAX_CRASHES`] count as that.
    pub crashes: NonZeroU32,
    /// Window of `crashes`, and first pause of a server that is down.
    pub window: Duration,
    /// Wait after the first crash. Each further crash doubles it. The actual wait is between half and all of it.
    pub first_wait: Duration,
    /// Maximum wait. A higher value starts a flapping server less often, and its tools are unavailable for longer.
    pub longest_wait: Duration,
    /// Uptime after which a server counts as healthy, so that earlier crashes no longer make its waits longer.
    pub well_after: Duration,
    /// Maximum pause, unless the window is longer.
    pub longest_rest: Duration,
}

/// Maximum value of `crashes`: every crash within the window is stored.
pub const MAX_CRASHES: u32 = 1000;

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            crashes: const { NonZeroU32::new(5).unwrap() },
            window: Duration::from_secs(60),
            first_wait: Duration::from_millis(100),
            longest_wait: Duration::from_secs(10),
            well_after: Duration::from_secs(60),
            longest_rest: Duration::from_secs(15 * 60),
        }
    }
}

/// State of a server.
///
/// ```text
///               asked                ready
///    ┌──────┐ ────────► ┌──────────┐ ────────► ┌────┐
///    │ IDLE │           │ STARTING │           │ UP │
///    └──────┘           └──────────┘           └────┘
///       ▲ stopped        ▲   ▲   │ died          │ died
///       │ (from any but  │   │   ▼               │
///       │  DOWN); reset  │  ┌─────────────┐ ◄────┘
///       │                │  │ BACKING_OFF │
///       │   asked after  │  └─────────────┘
///       │       the rest │       │ died too often, died on
///       │                │       ▼ trial, or cannot start
///       │                │  ┌──────┐
///       └─── reset ──────┴─ │ DOWN │
///                           └──────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// Not running, and not wanted.
    Idle,
    /// Being started.
    Starting {
        /// Time of the start.
        since: Timestamp,
    },
    /// Running and ready.
    Up {
        /// Time at which it became ready.
        since: Timestamp,
    },
    /// Crashed, and to be started again soon.
    BackingOff {
        /// Time of the next start.
        until: Timestamp,
    },
    /// Not started for now.
    Down(DownPeriod),
}

/// A server that is not started for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DownPeriod {
    /// Time from which a request starts it again.
    pub until: Timestamp,
    /// Reason why it is down.
    pub reason: DownReason,
}

/// The reason why a server is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownReason {
    /// It crashed too often.
    Crashes {
        /// Number of crashes.
        count: u32,
        /// Window in which they happened.
        within: Duration,
    },
    /// It crashed in its trial start after a pause.
    Relapse,
    /// It could not be started at all, and another try would fail in the same way.
    CannotStart,
}

/// Formats the reason and the next step as a clause of a sentence.
impl fmt::Display for DownPeriod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            DownReason::Crashes { count, within } => write!(f, "it crashed {count} times within {within:?}")?,
            DownReason::Relapse => f.write_str("it crashed again after a pause")?,
            DownReason::CannotStart => f.write_str("it could not be started")?,
        }
        write!(f, "; the first call after {} starts it again, or a reset at once", self.until)
    }
}

/// The way in which a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerExit {
    /// By itself, or because it had become unusable: it exited, was killed or sent invalid messages.
    Crashed,
    /// It never started, for a permanent reason: no such command, no such folder.
    CannotStart,
    /// Steadfast stopped it and no longer needs it. Does not count.
    Stopped,
}

/// The next step for a request that needs the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartDecision {
    /// Start the server now. Its state is [`ServerState::Starting`] from here on, so that no other request starts it too.
    Start,
    /// Wait for the start in progress.
    WaitForStart,
    /// Use the server.
    Use,
    /// Ask again at this time.
    WaitUntil(Timestamp),
    /// Continue without the server.
    Refuse(DownPeriod),
}

/// Starts and crashes of one server.
#[derive(Clone, Debug)]
pub struct RestartTracker {
    standing: ServerState,
    /// Crashes that may still be in the window, oldest first; never more than the limit.
    crashes: VecDeque<Timestamp>,
    /// Number of crashes since the server was last healthy.
    in_a_row: u32,
    /// Number of times the server went down since it was last healthy. While this is not zero, the next start is a
    /// trial.
    rests: u32,
    spread: JitterSequence,
}

impl RestartTracker {
    /// Returns the state of a server that was never started. The seed spreads its waits.
    pub fn new(seed: u64) -> Self {
        Self {
            standing: ServerState::Idle,
            crashes: VecDeque::new(),
            in_a_row: 0,
            rests: 0,
            spread: JitterSequence::new(seed),
        }
    }

    /// Returns the state of the server.
    pub const fn state(&self) -> ServerState {
        self.standing
    }

    /// Returns the next step for a request, or after a wait is over.
    pub fn request_start(&mut self, now: Timestamp) -> StartDecision {
        match self.standing {
            ServerState::Starting { .. } => return StartDecision::WaitForStart,
            ServerState::Up { .. } => return StartDecision::Use,
            ServerState::BackingOff { until } if now < until => return StartDecision::WaitUntil(until),
            ServerState::Down(down) if now < down.until => return StartDecision::Refuse(down),
            ServerState::Idle | ServerState::BackingOff { .. } | ServerState::Down(_) => {}
        }
        self.standing = ServerState::Starting { since: now };
        StartDecision::Start
    }

    /// Records that the server is ready. Ignored for a server that is not being started: it crashed in the meantime.
    pub fn record_ready(&mut self, now: Timestamp) {
        match self.standing {
            ServerState::Starting { .. } => self.standing = ServerState::Up { since: now },
            ServerState::Idle
            | ServerState::Up { .. }
            | ServerState::BackingOff { .. }
            | ServerState::Down(_) => {}
        }
    }

    /// Records that the server ended. For a server that was not running only [`ServerExit::Stopped`] counts: it is no longer
    /// wanted.
    pub fn record_exit(&mut self, policy: &RestartPolicy, death: ServerExit, now: Timestamp) -> ServerState {
        let ran = match self.standing {
            ServerState::Starting { .. } => true,
            ServerState::Up { since } => {
                if now.since(since) >= policy.well_after {
                    (self.in_a_row, self.rests) = (0, 0);
                }
                true
            }
            ServerState::Idle | ServerState::BackingOff { .. } | ServerState::Down(_) => false,
        };
        self.standing = match (death, self.standing) {
            // A stop must not shorten the pause.
            (ServerExit::Stopped, ServerState::Down(down)) => ServerState::Down(down),
            (ServerExit::Stopped, _) => ServerState::Idle,
            (_, standing) if !ran => standing,
            (ServerExit::CannotStart, _) => self.down(policy, DownReason::CannotStart, now),
            (ServerExit::Crashed, _) => self.crashed(policy, now),
        };
        self.standing
    }

    /// Clears all crashes, because an operator reports that the server is repaired.
    pub fn reset(&mut self) {
        self.crashes.clear();
        (self.in_a_row, self.rests) = (0, 0);
        match self.standing {
            ServerState::BackingOff { .. } | ServerState::Down(_) => self.standing = ServerState::Idle,
            ServerState::Idle | ServerState::Starting { .. } | ServerState::Up { .. } => {}
        }
    }

    fn crashed(&mut self, policy: &RestartPolicy, now: Timestamp) -> ServerState {
        if self.rests > 0 {
            return self.down(policy, DownReason::Relapse, now);
        }
        self.crashes.push_back(now);
        self.crashes.retain(|crash| now.since(*crash) < policy.window);
        let count = u32::try_from(self.crashes.len()).unwrap_or(u32::MAX);
        if count >= policy.crashes.get().min(MAX_CRASHES) {
            return self.down(policy, DownReason::Crashes { count, within: policy.window }, now);
        }
        let whole = doubled(policy.first_wait, self.in_a_row).min(policy.longest_wait);
        self.in_a_row = self.in_a_row.saturating_add(1);
        let half = whole / 2;
        ServerState::BackingOff { until: now + half + self.spread.over(whole - half, Jitter::Full) }
    }

    fn down(&mut self, policy: &RestartPolicy, because: DownReason, now: Timestamp) -> ServerState {
        let rest = doubled(policy.window, self.rests).min(policy.longest_rest).max(policy.window);
        self.rests = self.rests.saturating_add(1);
        // No pause is shorter than the window, so all crashes will have left it.
        self.crashes.clear();
        ServerState::Down(DownPeriod { until: now + rest, reason: because })
    }
}

fn doubled(span: Duration, times: u32) -> Duration {
    span.saturating_mul(1_u32.checked_shl(times).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
