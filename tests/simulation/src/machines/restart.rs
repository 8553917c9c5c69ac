//! Restarts of servers: the wait before a restart, and the point at which a server is not restarted any more.

use std::num::NonZeroU32;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::restart::{Because, Death, Decision, Down, RestartPolicy, Restarts, Standing};

use super::{Story, agree, few, millis, next_moment};
use crate::invariants::Broken;
use crate::rng::Rng;

const PROMISE: &str = "servers are restarted as documented";

/// The history of one server.
#[derive(Debug)]
struct Reference {
    standing: Standing,
    /// Its deaths since restarts were last suspended or reset.
    deaths: Vec<Timestamp>,
    /// Deaths since it was last healthy, and the number of suspensions since.
    row: u32,
    rests: u32,
}

impl Reference {
    fn asked(&mut self, now: Timestamp) -> Decision {
        let decision = match self.standing {
            Standing::Starting { .. } => Decision::WaitForStart,
            Standing::Up { .. } => Decision::Use,
            Standing::BackingOff { until } if until > now => Decision::WaitUntil(until),
            Standing::Down(down) if down.until > now => Decision::Refuse(down),
            Standing::Idle | Standing::BackingOff { .. } | Standing::Down(_) => Decision::Start,
        };
        if decision == Decision::Start {
            self.standing = Standing::Starting { since: now };
        }
        decision
    }

    /// Returns its standing after a death. If a wait has jitter, the shortest and the longest one.
    fn died(&mut self, policy: &RestartPolicy, death: Death, now: Timestamp) -> [Standing; 2] {
        let runs = matches!(self.standing, Standing::Starting { .. } | Standing::Up { .. });
        if let Standing::Up { since } = self.standing
            && now >= since + policy.well_after
        {
            (self.row, self.rests) = (0, 0);
        }
        let due = match death {
            Death::Stopped if matches!(self.standing, Standing::Down(_)) => self.standing,
            Death::Stopped => Standing::Idle,
            Death::Crashed | Death::CannotStart if !runs => self.standing,
            Death::CannotStart => self.left_alone(policy, Because::CannotStart, now),
            Death::Crashed if self.rests > 0 => self.left_alone(policy, Because::Relapse, now),
            Death::Crashed => {
                self.deaths.push(now);
                let count = self.deaths.iter().filter(|death| **death + policy.window > now).count();
                let count = u32::try_from(count).unwrap_or(u32::MAX);
                if count >= policy.crashes.get() {
                    self.left_alone(policy, Because::Crashes { count, within: policy.window }, now)
                } else {
                    let longest = twice(policy.first_wait, self.row).min(policy.longest_wait);
                    self.row += 1;
                    let waits = |span| Standing::BackingOff { until: now + span };
                    return [waits(longest / 2), waits(longest)];
                }
            }
        };
        self.standing = due;
        [due, due]
    }

    fn left_alone(&mut self, policy: &RestartPolicy, because: Because, now: Timestamp) -> Standing {
        let rest = twice(policy.window, self.rests).min(policy.longest_rest).max(policy.window);
        self.rests += 1;
        self.deaths.clear();
        Standing::Down(Down { until: now + rest, because })
    }

    fn reset(&mut self) {
        self.deaths.clear();
        (self.row, self.rests) = (0, 0);
        if matches!(self.standing, Standing::BackingOff { .. } | Standing::Down(_)) {
            self.standing = Standing::Idle;
        }
    }
}

pub(super) fn check(rng: &mut Rng, story: &mut Story) -> Result<(), Broken> {
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
    let mut restarts = Restarts::new(rng.next());
    let mut reference = Reference { standing: Standing::Idle, deaths: Vec::new(), row: 0, rests: 0 };
    let mut now = Timestamp::from_millis(1_000);
    let mut deaths = Vec::new();
    for _ in 0..60 {
        let mut moments = match reference.standing {
            Standing::BackingOff { until } | Standing::Down(Down { until, .. }) => vec![until],
            Standing::Up { since } => vec![since + policy.well_after],
            Standing::Idle | Standing::Starting { .. } => Vec::new(),
        };
        moments.extend(deaths.iter().map(|death: &Timestamp| *death + window));
        now = next_moment(rng, now, &moments);
        match rng.between(0, 9) {
            0..4 => {
                let (got, due) = (restarts.asked(now), reference.asked(now));
                story.tell(|| format!("{}: asked: {got:?}", now.as_millis()));
                agree(PROMISE, "asked", &got, &due)?;
            }
            4 | 5 => {
                story.tell(|| format!("{}: ready", now.as_millis()));
                restarts.ready(now);
                if matches!(reference.standing, Standing::Starting { .. }) {
                    reference.standing = Standing::Up { since: now };
                }
            }
            6..9 => {
                let death = *rng.pick(&[
                    Death::Crashed,
                    Death::Crashed,
                    Death::Crashed,
                    Death::CannotStart,
                    Death::Stopped,
                ]);
                let [least, most] = reference.died(&policy, death, now);
                let got = restarts.died(&policy, death, now);
                story.tell(|| format!("{}: {death:?}: {got:?}, {policy:?}", now.as_millis()));
                deaths.push(now);
                match (got, least, most) {
                    (
                        Standing::BackingOff { until },
                        Standing::BackingOff { until: from },
                        Standing::BackingOff { until: to },
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
        agree(PROMISE, "standing", &restarts.standing(), &reference.standing)?;
    }
    Ok(())
}

fn twice(span: Duration, times: u32) -> Duration {
    (0..times).fold(span, |span, _| span.saturating_mul(2))
}
