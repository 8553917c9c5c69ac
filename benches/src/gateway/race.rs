//! Rounds of the same calls, in turns.
//!
//! In each round every entrant makes calls for about the same time, so slow ones make fewer. Entrants with calls of
//! several milliseconds run in every fourth round only. The comparison uses neighbours in time: the difference or the
//! ratio of two entrants within one round, and then the median over rounds.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use super::client::BenchClient;
use super::setup::{BenchPaths, BenchServer, BenchTarget, GatewayKind, TransportShape};
use crate::engine::MeasurementError;
use crate::measure::{is_quick, median};
use crate::report::BenchReport;

/// Number of concurrent callers, where it is not one.
pub(crate) const CALLERS: usize = 8;
/// Duration of one round of one entrant.
const ALONE: Duration = Duration::from_millis(40);
const TOGETHER: Duration = Duration::from_millis(80);
/// Time for just-in-time compilers to warm up.
const WARM_UP: Duration = Duration::from_millis(700);
/// Duration of a call that is too long for every round.
const SLOW: Duration = Duration::from_millis(2);
const SLOW_CALL_INTERVAL: usize = 4;

/// An entrant, and its results.
pub(crate) struct RaceEntrant {
    /// Declared before the front, so that the front does not wait for them when it ends.
    clients: Vec<BenchClient>,
    pub(crate) front: BenchTarget,
    pace: RacePace,
    /// By round: the median of its calls in nanoseconds, and its calls per second.
    alone: Vec<Option<(f64, f64)>>,
    /// Duration of each call of one caller, in nanoseconds.
    calls: Vec<f64>,
    /// By round: calls per second of all callers.
    together: Vec<Option<f64>>,
}

struct RacePace {
    calls: u32,
    every: usize,
}

/// The number of callers of a race.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallerCounts {
    One,
    /// One in some rounds, and [`CALLERS`] in others.
    OneAndMany,
}

/// Starts all entrants and lets them run. Returns the bare server first and the others in the given order. Peers that
/// cannot take part are left out, with a remark.
pub(crate) fn run(
    report: &mut BenchReport,
    place: &BenchPaths,
    shape: TransportShape,
    server: BenchServer,
    others: &[GatewayKind],
    callers: CallerCounts,
) -> Result<Vec<RaceEntrant>, MeasurementError> {
    let mut parties = vec![RaceEntrant::of(place, BenchTarget::bare(place, shape, server)?)?];
    // They start concurrently, because most of them take long.
    let upstream = parties.first().and_then(|bare| bare.front.listening());
    let fronts: Vec<_> = installed(report, place, others.iter().copied())
        .into_iter()
        .map(|between| (between, BenchTarget::start(place, between, shape, server, upstream)))
        .collect();
    for (between, front) in fronts {
        match front.and_then(|front| RaceEntrant::of(place, front)) {
            Ok(party) => parties.push(party),
            Err(problem) => leave_out(report, between, shape, server, problem)?,
        }
    }
    let (rounds_alone, rounds_together) = if is_quick() { (8, 3) } else { (80, 40) };
    take_turns(report, &mut parties, (shape, server), rounds_alone, RaceEntrant::round_alone)?;
    if callers == CallerCounts::OneAndMany {
        for index in (0..parties.len()).rev() {
            if let Some(party) = parties.get_mut(index)
                && let Err(problem) = party.connect_other_callers(place)
            {
                let between = parties.remove(index).front.between();
                leave_out(report, between, shape, server, problem)?;
            }
        }
        take_turns(report, &mut parties, (shape, server), rounds_together, RaceEntrant::round_together)?;
    }
    Ok(parties)
}

/// Returns the installed gateways. The report gets a remark about each missing one.
pub(crate) fn installed(
    report: &mut BenchReport,
    place: &BenchPaths,
    all: impl Iterator<Item = GatewayKind>,
) -> Vec<GatewayKind> {
    let (there, missing): (Vec<_>, Vec<_>) = all.partition(|between| between.is_installed(place));
    for between in missing {
        report.remark(&format!("Left out: {}, which is not installed.", between.name()));
    }
    there
}

fn take_turns(
    report: &mut BenchReport,
    parties: &mut Vec<RaceEntrant>,
    (shape, server): (TransportShape, BenchServer),
    rounds: usize,
    run: fn(&mut RaceEntrant, usize) -> Result<(), MeasurementError>,
) -> Result<(), MeasurementError> {
    for round in 0..rounds {
        let count = parties.len();
        for turn in 0..count {
            let index = (turn + round) % count;
            let Some(party) = parties.get_mut(index) else { continue };
            if let Err(problem) = run(party, round) {
                let between = parties.remove(index).front.between();
                leave_out(report, between, shape, server, problem)?;
                // The entrants after it miss this round, which does no harm.
                break;
            }
        }
    }
    Ok(())
}

/// Leaves a peer out. Without the bare server or Steadfast there is nothing to report.
pub(crate) fn leave_out(
    report: &mut BenchReport,
    between: GatewayKind,
    shape: TransportShape,
    server: BenchServer,
    problem: MeasurementError,
) -> Result<(), MeasurementError> {
    let sentence = format!("{}, {}, {}: {problem}", between.name(), shape.name(), server.name());
    if !between.is_peer() {
        return Err(MeasurementError::because(sentence));
    }
    report.remark(&format!("Left out: {sentence}."));
    Ok(())
}

impl RaceEntrant {
    fn of(place: &BenchPaths, mut front: BenchTarget) -> Result<Self, MeasurementError> {
        let mut first = front.client(place)?;
        let warm_up = if is_quick() { WARM_UP / 5 } else { WARM_UP };
        let started = Instant::now();
        let mut took = vec![first.call()?.as_secs_f64()];
        while started.elapsed() < warm_up {
            took.push(first.call()?.as_secs_f64());
        }
        // The last calls are the warmest.
        let typical = median(took.iter().rev().take(20).copied());
        Ok(Self {
            front,
            clients: vec![first],
            pace: RacePace {
                calls: calls_in(ALONE, typical),
                every: if typical > SLOW.as_secs_f64() { SLOW_CALL_INTERVAL } else { 1 },
            },
            alone: Vec::new(),
            calls: Vec::new(),
            together: Vec::new(),
        })
    }

    fn round_alone(&mut self, round: usize) -> Result<(), MeasurementError> {
        if !round.is_multiple_of(self.pace.every) {
            self.alone.push(None);
            return Ok(());
        }
        let Some(client) = self.clients.first_mut() else { return Ok(()) };
        let started = Instant::now();
        let mut took = Vec::new();
        for _ in 0..self.pace.calls {
            took.push(client.call()?.as_secs_f64() * 1e9);
        }
        let rate = f64::from(self.pace.calls) / started.elapsed().as_secs_f64();
        self.calls.extend(&took);
        self.alone.push(Some((median(took.into_iter()), rate)));
        Ok(())
    }

    /// Connects the missing callers, each on a connection of its own, and sets the number of calls of each in a round.
    fn connect_other_callers(&mut self, place: &BenchPaths) -> Result<(), MeasurementError> {
        if self.front.listening().is_none() && self.pace.every > 1 {
            // Each caller would start a process of it, and a slow gateway starts even more slowly.
            return Ok(());
        }
        while self.clients.len() < CALLERS {
            self.clients.push(self.front.client(place)?);
        }
        self.pace.calls = 2;
        self.together_once()?;
        let (made, took) = self.together_once()?;
        self.pace.calls = calls_in(TOGETHER, took / f64::from(made) * CALLERS as f64);
        Ok(())
    }

    fn round_together(&mut self, round: usize) -> Result<(), MeasurementError> {
        let rate = match self.clients.len() == CALLERS && round.is_multiple_of(self.pace.every) {
            true => Some(self.together_once().map(|(made, took)| f64::from(made) / took)?),
            false => None,
        };
        self.together.push(rate);
        Ok(())
    }

    /// Lets all callers run. Returns the number of calls, and the seconds from the first to the last.
    fn together_once(&mut self) -> Result<(u32, f64), MeasurementError> {
        let calls = self.pace.calls;
        let start = Barrier::new(self.clients.len());
        let spans: Vec<_> = thread::scope(|scope| {
            let start = &start;
            let callers: Vec<_> = self
                .clients
                .iter_mut()
                .map(|client| {
                    scope.spawn(move || {
                        start.wait();
                        let started = Instant::now();
                        for _ in 0..calls {
                            client.call()?;
                        }
                        Ok::<_, MeasurementError>((started, Instant::now()))
                    })
                })
                .collect();
            callers
                .into_iter()
                .map(|caller| {
                    caller
                        .join()
                        .unwrap_or_else(|_| Err(MeasurementError::because("a caller thread panicked")))
                })
                .collect::<Result<_, _>>()
        })?;
        let first_start = spans.iter().map(|(started, _)| *started).min();
        let last_end = spans.iter().map(|(_, finished)| *finished).max();
        let (Some(first_start), Some(last_end)) = (first_start, last_end) else {
            return Err(MeasurementError::because("no calls were made"));
        };
        let callers = u32::try_from(spans.len()).unwrap_or(u32::MAX);
        Ok((calls * callers, (last_end - first_start).as_secs_f64()))
    }

    /// Returns the median duration of a call in nanoseconds.
    pub(crate) fn median(&self) -> f64 {
        median(self.alone.iter().flatten().map(|(median, _)| *median))
    }

    /// Returns the nanoseconds by which a call takes longer than with the other.
    pub(crate) fn added_to(&self, other: &Self) -> f64 {
        median(pairs(&self.alone, &other.alone).map(|((time, _), (other_time, _))| time - other_time))
    }

    /// Returns the nanoseconds of a call divided by the other's.
    pub(crate) fn time_to(&self, other: &Self) -> f64 {
        median(pairs(&self.alone, &other.alone).map(|((time, _), (other_time, _))| time / other_time))
    }

    /// Returns the 99th percentile of the durations in nanoseconds.
    pub(crate) fn p99(&self) -> f64 {
        let mut calls = self.calls.clone();
        calls.sort_by(f64::total_cmp);
        calls.get(calls.len() * 99 / 100).copied().unwrap_or(f64::NAN)
    }

    /// Returns the calls per second of one caller.
    pub(crate) fn rate(&self) -> f64 {
        median(self.alone.iter().flatten().map(|(_, rate)| *rate))
    }

    /// Returns the same divided by the other's.
    pub(crate) fn rate_to(&self, other: &Self) -> f64 {
        median(pairs(&self.alone, &other.alone).map(|((_, rate), (_, other_rate))| rate / other_rate))
    }

    /// Returns the calls per second of [`CALLERS`] callers, if it had so many.
    pub(crate) fn rate_together(&self) -> Option<f64> {
        Some(median(self.together.iter().flatten().copied())).filter(|rate| rate.is_finite())
    }

    /// Returns the same divided by the other's.
    pub(crate) fn rate_together_to(&self, other: &Self) -> f64 {
        median(pairs(&self.together, &other.together).map(|(rate, other_rate)| rate / other_rate))
    }
}

/// Returns pairs of results of the same round.
fn pairs<'a, T: Copy>(left: &'a [Option<T>], right: &'a [Option<T>]) -> impl Iterator<Item = (T, T)> {
    left.iter().zip(right).filter_map(|(left, right)| Some(((*left)?, (*right)?)))
}

/// Returns the number of calls of this duration that fit, within reason.
fn calls_in(time: Duration, seconds: f64) -> u32 {
    let fit = (time.as_secs_f64() / seconds).clamp(2.0, 400.0);
    (1..=400).rev().find(|calls| f64::from(*calls) <= fit).unwrap_or(2)
}
