//! The small machines of the core, each tested alone beside a reference that recomputes its results.
//!
//! In a world a machine meets only the events that its callers happen to produce, and a limit that is off by one may
//! never be reached. Here each machine gets extreme settings and commands in any sequence, at the very times at which
//! something changes and a millisecond beside them. Every answer is compared with a reference that is written from the
//! documentation and keeps its whole input, so that it can look at all of it again.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a reference looks at a few cases of many; the core names every one of them"
)]

mod approval;
mod breaker;
mod call;
mod classify;
mod guard;
mod limit;
mod records;
mod restart;
mod retry;
mod trust;
mod turn;
mod watchdog;

use std::num::NonZeroU32;
use std::time::Duration;

use steadfast_core::Timestamp;

use crate::SimulationFailure;
use crate::coverage::TableCoverage;
use crate::invariants::InvariantViolation;
use crate::rng::Rng;

/// Drives one machine beside its reference.
type MachineCheck = fn(&mut Rng, &mut MachineTrace) -> Result<(), InvariantViolation>;

const MACHINES: [MachineCheck; 12] = [
    approval::check,
    breaker::check,
    call::check,
    classify::check,
    guard::check,
    limit::check,
    records::check,
    restart::check,
    retry::check,
    trust::check,
    turn::check,
    watchdog::check,
];

/// Runs every machine through the commands of this seed. Returns the coverage of the tables.
pub(crate) fn run(seed: u64) -> Result<TableCoverage, Box<SimulationFailure>> {
    let mut untraced = MachineTrace::default();
    for (place, check) in (0..).zip(MACHINES) {
        if check(&mut Rng::of_machine(seed, place), &mut untraced).is_err() {
            // Run it again, with a trace.
            let mut machine_trace = MachineTrace { lines: Some(Vec::new()), ..MachineTrace::default() };
            let broken = check(&mut Rng::of_machine(seed, place), &mut machine_trace);
            let (invariant, description) =
                broken.err().unwrap_or(("the same again", "it broke once only".to_owned()));
            return Err(Box::new(SimulationFailure {
                seed,
                invariant,
                description,
                trace: machine_trace.lines.unwrap_or_default(),
            }));
        }
    }
    Ok(untraced.coverage)
}

/// The trace of a machine.
#[derive(Default)]
pub(crate) struct MachineTrace {
    /// The commands, for the report of a failure. Most runs succeed and need none.
    lines: Option<Vec<String>>,
    /// Coverage of the tables.
    coverage: TableCoverage,
}

impl MachineTrace {
    pub(crate) fn log(&mut self, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(line());
        }
    }
}

/// Fails if two values that have to agree do not.
fn agree<T: PartialEq + std::fmt::Debug>(
    promise: &'static str,
    label: &str,
    got: &T,
    due: &T,
) -> Result<(), InvariantViolation> {
    if got == due { Ok(()) } else { Err((promise, format!("{label}: got {got:?}, due is {due:?}"))) }
}

/// Draws the next time: often one of these, or a millisecond beside it.
fn next_moment(rng: &mut Rng, now: Timestamp, moments: &[Timestamp]) -> Timestamp {
    let ahead: Vec<Timestamp> = moments.iter().copied().filter(|moment| *moment >= now).collect();
    let near = match rng.between(0, 9) {
        0..3 => return now,
        3 => return now + millis(rng.between(1, 20)),
        4 => return now + millis(rng.between(1, 100_000)),
        _ if ahead.is_empty() => return now + millis(rng.between(0, 3_000)),
        _ => *rng.pick(&ahead),
    };
    let off = match rng.between(0, 3) {
        0 => near.before(millis(1)),
        1 => near + millis(1),
        _ => near,
    };
    off.max(now)
}

const fn millis(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// Draws a whole number from `low` to `high`. Zero becomes one.
fn few(rng: &mut Rng, low: u64, high: u64) -> NonZeroU32 {
    u32::try_from(rng.between(low, high)).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN)
}

/// Draws a value in half of the cases.
fn optional<T>(rng: &mut Rng, draw: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    rng.chance(50).then(|| draw(rng))
}
