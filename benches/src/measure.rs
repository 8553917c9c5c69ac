//! Taking turns, and counting.
//!
//! Contestants run in many short rounds, in an order that rotates. A disturbance of the machine then hits
//! all of them, and the median over rounds forgets it. The ratio is the median of the ratios of single
//! rounds, not the ratio of two medians, because neighbours in time share their weather.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The same for those who read the table.
pub(crate) const METHOD: &str = "\
Ours and its peers took turns in many short rounds within one run. Figures are medians over rounds, the ratio is the
median of the ratios of single rounds (ours divided by the peer's), and allocations are counted in a
build of its own, because counting slows down whoever allocates most. A row without budget is for information.";

const ROUNDS: usize = 201;
const WARM_UP: usize = 5;
/// A look while one changes the code takes a tenth of the rounds.
static QUICK: AtomicBool = AtomicBool::new(false);

/// From now on a tenth of the rounds: figures for whoever is at work, not for the report.
pub(crate) fn quickly() {
    QUICK.store(true, Ordering::Relaxed);
}

pub(crate) fn is_quick() -> bool {
    QUICK.load(Ordering::Relaxed)
}

/// Runs so many operations and says how long they took; what it prepares does not count.
pub(crate) type Contestant<'a> = Box<dyn FnMut(u32) -> Duration + 'a>;

/// Nanoseconds per operation: the median of each, and how each compares to the first, round by round.
pub(crate) struct Standing {
    pub(crate) nanos: Vec<f64>,
    pub(crate) first_to: Vec<f64>,
}

/// Lets them take turns, `operations` at a time.
pub(crate) fn contest(operations: u32, contestants: &mut [Contestant<'_>]) -> Standing {
    contest_in(ROUNDS, operations, contestants)
}

/// The same with fewer rounds, for operations that take long.
pub(crate) fn contest_in(rounds: usize, operations: u32, contestants: &mut [Contestant<'_>]) -> Standing {
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
    Standing {
        first_to: first_to.collect(),
        nanos: samples.iter().map(|of| median(of.iter().copied())).collect(),
    }
}

/// A contestant that repeats one thing. The number of the operation comes in, for those that need a clock.
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

/// Whether this build counts allocations instead of measuring time.
pub(crate) const COUNTS: bool = cfg!(feature = "count-allocations");

/// Allocations of this thread per operation; nothing that means anything in a build that does not count.
pub(crate) fn allocations<T>(mut operation: impl FnMut(u64) -> T) -> f64 {
    const OPERATIONS: u32 = 10_000;
    // What is set up once does not count.
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
