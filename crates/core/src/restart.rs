//! When a server that died may be started again.
//!
//! A server that is started again at once, for ever, burns the machine and buries its own error message; one that
//! is never started again takes its tools with it. So each death makes the next start wait longer, and when too
//! many deaths fall into a window the server is *down*: callers are told at once, and until when. After that rest
//! it gets one trial per asking; a trial that dies makes the next rest twice as long.
//!
//! Two things are forgiven at different times. Having been well for a while makes the waits short again; the
//! deaths in the window are forgotten by time alone. So whatever a server does, no window of time sees more starts
//! after a death than the budget has deaths.
//!
//! Like the breaker it has no timer: what merely expires is compared with `now` when someone asks.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use crate::Timestamp;
use crate::policy::Jitter;
use crate::retry::Spread;

/// How patient to be with a server that dies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartPolicy {
    /// So many deaths within the window, and it is down. More than [`MAX_CRASHES`] count as that many.
    pub crashes: NonZeroU32,
    /// The window of `crashes`, and the first rest of a server that is down.
    pub window: Duration,
    /// The wait after the first death. Each further one doubles it. The waits are spread between half and whole.
    pub first_wait: Duration,
    /// No wait is longer. Raising it leaves a flapping server alone for longer, and its callers without it.
    pub longest_wait: Duration,
    /// A server that was up for so long was well: what came before no longer makes its waits longer.
    pub well_after: Duration,
    /// No rest is longer, but for the window itself.
    pub longest_rest: Duration,
}

/// The most deaths that a budget can have: each is kept while it is in the window.
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

/// How a server stands.
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
pub enum Standing {
    /// It does not run, and nobody wants it to.
    Idle,
    /// It is on its way.
    Starting {
        /// Since when.
        since: Timestamp,
    },
    /// It answers.
    Up {
        /// Since when.
        since: Timestamp,
    },
    /// It died and is started again soon.
    BackingOff {
        /// When.
        until: Timestamp,
    },
    /// It is left alone.
    Down(Down),
}

/// A server that is left alone for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Down {
    /// Whoever asks for it at this moment or later gets it started.
    pub until: Timestamp,
    /// Why.
    pub because: Because,
}

/// Why a server is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    /// It died so often within so long.
    Crashes {
        /// How often.
        count: u32,
        /// Within how long.
        within: Duration,
    },
    /// It was given one more try after a rest, and died in it.
    Relapse,
    /// It could not be started at all, which another try would not change.
    CannotStart,
}

/// What happened, and the next thing to do, as a clause of a sentence.
impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.because {
            Because::Crashes { count, within } => write!(f, "it died {count} times within {within:?}")?,
            Because::Relapse => f.write_str("it died again after a rest")?,
            Because::CannotStart => f.write_str("it could not be started")?,
        }
        write!(f, "; it is tried again when it is asked for after {}, or at once after a reset", self.until)
    }
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// By itself, or because it was of no use any more: it ended, was killed, answered nonsense.
    Crashed,
    /// It never lived, for a reason that stays: no such command, no such folder.
    CannotStart,
    /// We ended it and do not want it back. Counts for nothing.
    Stopped,
}

/// What is to be done for someone who wants the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Start it now. From here on it is [`Standing::Starting`], so that nobody else starts it too.
    Start,
    /// Wait for the start that is under way.
    WaitForStart,
    /// Use it.
    Use,
    /// Ask again at this moment.
    WaitUntil(Timestamp),
    /// Do without it.
    Refuse(Down),
}

/// The starts and deaths of one server.
#[derive(Clone, Debug)]
pub struct Restarts {
    standing: Standing,
    /// Deaths that may still be in the window, oldest first; never more than the budget has.
    crashes: VecDeque<Timestamp>,
    /// Deaths since it was last well.
    in_a_row: u32,
    /// How often it went down since it was last well. While this is not zero, it is on trial.
    rests: u32,
    spread: Spread,
}

impl Restarts {
    /// Of a server that was never started. The seed spreads its waits.
    pub fn new(seed: u64) -> Self {
        Self {
            standing: Standing::Idle,
            crashes: VecDeque::new(),
            in_a_row: 0,
            rests: 0,
            spread: Spread::new(seed),
        }
    }

    /// How it stands.
    pub const fn standing(&self) -> Standing {
        self.standing
    }

    /// Someone wants it, or a wait that was told is over.
    pub fn asked(&mut self, now: Timestamp) -> Decision {
        match self.standing {
            Standing::Starting { .. } => return Decision::WaitForStart,
            Standing::Up { .. } => return Decision::Use,
            Standing::BackingOff { until } if now < until => return Decision::WaitUntil(until),
            Standing::Down(down) if now < down.until => return Decision::Refuse(down),
            Standing::Idle | Standing::BackingOff { .. } | Standing::Down(_) => {}
        }
        self.standing = Standing::Starting { since: now };
        Decision::Start
    }

    /// It answers. Said of a server that was not on its way, it changes nothing: that one died meanwhile.
    pub fn ready(&mut self, now: Timestamp) {
        match self.standing {
            Standing::Starting { .. } => self.standing = Standing::Up { since: now },
            Standing::Idle | Standing::Up { .. } | Standing::BackingOff { .. } | Standing::Down(_) => {}
        }
    }

    /// It ended. Said of a server that did not run, only [`Death::Stopped`] has a meaning: it is not wanted back.
    pub fn died(&mut self, policy: &RestartPolicy, death: Death, now: Timestamp) -> Standing {
        let ran = match self.standing {
            Standing::Starting { .. } => true,
            Standing::Up { since } => {
                if now.since(since) >= policy.well_after {
                    (self.in_a_row, self.rests) = (0, 0);
                }
                true
            }
            Standing::Idle | Standing::BackingOff { .. } | Standing::Down(_) => false,
        };
        self.standing = match (death, self.standing) {
            // A stop must not be a way around the rest.
            (Death::Stopped, Standing::Down(down)) => Standing::Down(down),
            (Death::Stopped, _) => Standing::Idle,
            (_, standing) if !ran => standing,
            (Death::CannotStart, _) => self.down(policy, Because::CannotStart, now),
            (Death::Crashed, _) => self.crashed(policy, now),
        };
        self.standing
    }

    /// A person says that it is mended: nothing that was is held against it.
    pub fn reset(&mut self) {
        self.crashes.clear();
        (self.in_a_row, self.rests) = (0, 0);
        match self.standing {
            Standing::BackingOff { .. } | Standing::Down(_) => self.standing = Standing::Idle,
            Standing::Idle | Standing::Starting { .. } | Standing::Up { .. } => {}
        }
    }

    fn crashed(&mut self, policy: &RestartPolicy, now: Timestamp) -> Standing {
        if self.rests > 0 {
            return self.down(policy, Because::Relapse, now);
        }
        self.crashes.push_back(now);
        self.crashes.retain(|crash| now.since(*crash) < policy.window);
        let count = u32::try_from(self.crashes.len()).unwrap_or(u32::MAX);
        if count >= policy.crashes.get().min(MAX_CRASHES) {
            return self.down(policy, Because::Crashes { count, within: policy.window }, now);
        }
        let whole = doubled(policy.first_wait, self.in_a_row).min(policy.longest_wait);
        self.in_a_row = self.in_a_row.saturating_add(1);
        let half = whole / 2;
        Standing::BackingOff { until: now + half + self.spread.over(whole - half, Jitter::Full) }
    }

    fn down(&mut self, policy: &RestartPolicy, because: Because, now: Timestamp) -> Standing {
        let rest = doubled(policy.window, self.rests).min(policy.longest_rest).max(policy.window);
        self.rests = self.rests.saturating_add(1);
        // No rest is shorter than the window, so all of them will have left it.
        self.crashes.clear();
        Standing::Down(Down { until: now + rest, because })
    }
}

fn doubled(span: Duration, times: u32) -> Duration {
    span.saturating_mul(1_u32.checked_shl(times).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
