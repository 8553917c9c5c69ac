//! Restarts of servers: the wait before a restart, and the point at which a server is no longer restarted.

use std::num::NonZeroU32;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::restart::{
    DownPeriod, DownReason, RestartPolicy, RestartTracker, ServerExit, ServerState, StartDecision,
};

use super::{MachineTrace, agree, few, millis, next_moment};
use crate::invariants::InvariantViolation;
use crate::rng::Rng;

const PROMISE: &str = "servers are restarted as documented";

/// The history of one server.
#[derive(Debug)]
struct ReferenceRestart {
    standing: ServerState,
    /// Its deaths since restarts were last suspended or reset.
    deaths: Vec<Timestamp>,
    /// Deaths since it was last healthy, and the number of suspensions since.
    row: u32,
    rests: u32,
}

impl ReferenceRestart {
    fn request_start(&mut self, now: Timestamp) -> StartDecision {
        let decision = match self.standing {
            ServerState::Starting { .. } => StartDecision::WaitForStart,
            ServerState::Up { .. } => StartDecision::Use,
            ServerState::BackingOff { until } if until > now => StartDecision::WaitUntil(until),
            ServerState::Down(down) if down.until > now => StartDecision::Refuse(down),
            ServerState::Idle | ServerState::BackingOff { .. } | ServerState::Down(_) => StartDecision::Start,
        };
        if decision == StartDecision::Start {
            self.standing = ServerState::Starting { since: now };
        }
        decision
    }

    /// Returns its standing after a death. If a wait has jitter, the shortest and the longest one.
    fn died(&mut self, policy: &RestartPolicy, death: ServerExit, now: Timestamp) -> [ServerState; 2] {
        let runs = matches!(self.standing, ServerState::Starting { .. } | ServerState::Up { .. });
        if let ServerState::Up { since } = self.standing
            && now >= since + policy.well_after
        {
            (self.row, self.rests) = (0, 0);
        }
        let due = match death {
            ServerExit::Stopped if matches!(self.standing, ServerState::Down(_)) => self.standing,
            ServerExit::Stopped => ServerState::Idle,
            ServerExit::Crashed | ServerExit::CannotStart if !runs => self.standing,
            ServerExit::CannotStart => self.left_alone(policy, DownReason::CannotStart, now),
            ServerExit::Crashed if self.rests > 0 => self.left_alone(policy, DownReason::Relapse, now),
            ServerExit::Crashed => {
                self.deaths.push(now);
                let count = self.deaths.iter().filter(|death| **death + policy.window > now).count();
                let count = u32::try_from(count).unwrap_or(u32::MAX);
                if count >= policy.crashes.get() {
                    self.left_alone(policy, DownReason::Crashes { count, within: policy.window }, now)
                } else {
                    let longest = twice(policy.first_wait, self.row).min(policy.longest_wait);
                    self.row += 1;
                    let waits = |span| ServerState::BackingOff { until: now + span };
                    return [waits(longest / 2), waits(longest)];
                }
            }
        };
        self.standing = due;
        [due, due]
    }

    fn left_alone(&mut self, policy: &RestartPolicy, because: DownReason, now: Timestamp) -> ServerState {
        let rest = twice(policy.window, self.rests).min(policy.longest_rest).max(policy.window);
        self.rests += 1;
        self.deaths.clear();
        ServerState::Down(DownPeriod { until: now + rest, reason: because })
    }

    fn reset(&mut self) {
        self.deaths.clear();
        (self.row, self.rests) = (0, 0);
        if matches!(self.standing, ServerState::BackingOff { .. } | ServerState::Down(_)) {
            self.standing = ServerState::Idle;
        }
    }
}

pub(super) fn check(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    let window = millis(rng.between(1, 4) * 500);
    let policy = RestartPolicy {
        crashes: few(rng, 1, 4),
        window,
        first_wait: millis(rng.between(0, 2) * 100),
        longest_wait: millis(rng.between(1, 8) * 100),
        well_after: millis(rng.between(1, 4) * 300),
        longest_rest: window
            * NonZeroU32::MIN.saturating_add(u32::try_from(rng.between(0, 5)).unwrap_or(0)).get(),
    };
    let mut restarts = RestartTracker::new(rng.next());
    let mut reference =
        ReferenceRestart { standing: ServerState::Idle, deaths: Vec::new(), row: 0, rests: 0 };
    let mut now = Timestamp::from_millis(1_000);
    let mut deaths = Vec::new();
    for _ in 0..60 {
        let mut moments = match reference.standing {
            ServerState::BackingOff { until } | ServerState::Down(DownPeriod { until, .. }) => vec![until],
            ServerState::Up { since } => vec![since + policy.well_after],
            ServerState::Idle | ServerState::Starting { .. } => Vec::new(),
        };
        moments.extend(deaths.iter().map(|death: &Timestamp| *death + window));
        now = next_moment(rng, now, &moments);
        match rng.between(0, 9) {
            0..4 => {
                let (got, due) = (restarts.request_start(now), reference.request_start(now));
                machine_trace.log(|| format!("{}: asked: {got:?}", now.as_millis()));
                agree(PROMISE, "asked", &got, &due)?;
            }
            4 | 5 => {
                machine_trace.log(|| format!("{}: ready", now.as_millis()));
                restarts.record_ready(now);
                if matches!(reference.standing, ServerState::Starting { .. }) {
                    reference.standing = ServerState::Up { since: now };
                }
            }
            6..9 => {
                let death = *rng.pick(&[
                    ServerExit::Crashed,
                    ServerExit::Crashed,
                    ServerExit::Crashed,
                    ServerExit::CannotStart,
                    ServerExit::Stopped,
                ]);
                let [least, most] = reference.died(&policy, death, now);
                let got = restarts.record_exit(&policy, death, now);
                machine_trace.log(|| format!("{}: {death:?}: {got:?}, {policy:?}", now.as_millis()));
                deaths.push(now);
                match (got, least, most) {
                    (
                        ServerState::BackingOff { until },
                        ServerState::BackingOff { until: from },
                        ServerState::BackingOff { until: to },
                    ) if (from..=to).contains(&until) => {
                        reference.standing = got;
                    }
                    _ => agree(PROMISE, "after a death", &got, &most)?,
                }
            }
            _ => {
                restarts.reset();
                reference.reset();
            }
        }
        agree(PROMISE, "standing", &restarts.state(), &reference.standing)?;
    }
    Ok(())
}

fn twice(span: Duration, times: u32) -> Duration {
    (0..times).fold(span, |span, _| span.saturating_mul(2))
}
