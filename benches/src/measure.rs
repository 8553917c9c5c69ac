//! Measurements in turns, and counters.
//!
//! Contestants run in many short rounds, in an order that rotates. A disturbance of the machine then affects all of
//! them, and the median over rounds ignores it. The ratio is the median of the ratios of single rounds, not the ratio
//! of two medians, because neighbours in time run under the same conditions.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The method, for readers of the table.
pub(crate) const METHOD: &str = "\
Steadfast and its peers took turns in many short rounds within one run. Figures are medians over rounds, the ratio is the
median of the ratios of single rounds (Steadfast's figure divided by the peer's), and allocations are counted in a
build of its own, because counting slows down the side that allocates most. A row without budget is for information.";

const ROUNDS: usize = 201;
const WARM_UP: usize = 5;
/// True for quick runs during development, with a tenth of the rounds.
static QUICK: AtomicBool = AtomicBool::new(false);

/// Reduces all further runs to a tenth of the rounds. Their figures are for development, not for the report.
pub(crate) fn set_quick() {
    QUICK.store(true, Ordering::Relaxed);
}

pub(crate) fn is_quick() -> bool {
    QUICK.load(Ordering::Relaxed)
}

/// Runs this many operations and returns their duration. Its preparation does not count.
pub(crate) type Contestant<'a> = Box<dyn FnMut(u32) -> Duration + 'a>;

/// Nanoseconds per operation: the median of each contestant, and its ratio to the first, round by round.
pub(crate) struct ContestTimes {
    pub(crate) nanos: Vec<f64>,
    pub(crate) first_to: Vec<f64>,
}

/// Runs the contestants in turns, `operations` at a time.
pub(crate) fn contest(operations: u32, contestants: &mut [Contestant<'_>]) -> ContestTimes {
    contest_in(ROUNDS, operations, contestants)
}

/// Runs the contestants with fewer rounds, for operations that take long.
pub(crate) fn contest_in(rounds: usize, operations: u32, contestants: &mut [Contestant<'_>]) -> ContestTimes {
    let rounds = if is_quick() { rounds.div_ceil(10) } else { rounds };
    let count = contestants.len();
    let mut samples = vec![Vec::with_capacity(rounds); count];
    for round in 0..rounds + WARM_UP {
        for turn in 0..count {
            let index = (turn + round) % count;
            let (Some(contestant), Some(samples)) = (contestants.get_mut(index), samples.get_mut(index))
            else {
                continue;
            };
            let took = contestant(operations);
            if round >= WARM_UP {
                samples.push(took.as_secs_f64() * 1e9 / f64::from(operations));
            }
        }
    }
    let first = samples.first().cloned().unwrap_or_default();
    let first_to = samples.iter().map(|of| median(first.iter().zip(of).map(|(first, other)| first / other)));
    ContestTimes {
        first_to: first_to.collect(),
        nanos: samples.iter().map(|of| median(of.iter().copied())).collect(),
    }
}

/// Returns a contestant that repeats one operation. It receives the number of the operation, for those that need a
/// clock.
pub(crate) fn repeat<'a, T>(mut operation: impl FnMut(u64) -> T + 'a) -> Contestant<'a> {
    let mut number = 0;
    Box::new(move |operations| {
        let started = Instant::now();
        for _ in 0..operations {
            number += 1;
            black_box(operation(black_box(number)));
        }
        started.elapsed()
    })
}

/// True if this build counts allocations instead of measuring time.
pub(crate) const COUNTS: bool = cfg!(feature = "count-allocations");

/// Returns the allocations of this thread per operation. The result is meaningless in a build that does not count.
pub(crate) fn allocations<T>(mut operation: impl FnMut(u64) -> T) -> f64 {
    const OPERATIONS: u32 = 10_000;
    // One-time setup does not count.
    black_box(operation(0));
    let total = count_allocations(|| {
        for number in 1..=u64::from(OPERATIONS) {
            black_box(operation(number));
        }
    });
    total / f64::from(OPERATIONS)
}

#[cfg(feature = "count-allocations")]
fn count_allocations(work: impl FnOnce()) -> f64 {
    allocation_counter::measure(work).count_total as f64
}

#[cfg(not(feature = "count-allocations"))]
fn count_allocations(work: impl FnOnce()) -> f64 {
    work();
    f64::NAN
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
