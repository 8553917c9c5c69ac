//! The ground floor: the identity of an engine, its numbers and its life. It depends on no other room.

use std::io::Write as _;
use std::sync::{Arc, LazyLock};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use steadfast_core::dedupe::{ClaimOwner, ProcessIdentity};
use steadfast_core::id::{Digest, RunId};
use steadfast_store::TimeSource;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The identity, the numbers and the life of an engine.
#[derive(Debug)]
pub(crate) struct EngineState {
    pub(crate) process: ProcessIdentity,
    /// The runtime that the engine was started on. Its calls run there when nothing polls them.
    pub(crate) runtime: Handle,
    /// Name of this engine in the ids of its runs and in its history.
    pub(crate) tag: Arc<str>,
    /// Cancelled when calls in flight have to end.
    pub(crate) stopping: CancellationToken,
    /// Background tasks that a shutdown waits for: turns that are released because their runner is gone, writes of tool
    /// lists, and checks of open records.
    pub(crate) background_tasks: TaskTracker,
    /// Sequence number of all events that are fed to call machines, in their order.
    sequence: AtomicU64,
    seed: u64,
    /// True once the state that was stored before this process started has been loaded.
    is_loaded: AtomicBool,
}

/// Number of the next call of this process, across all its engines. Owner tokens are made of it and the process, and
/// two engines on one store must not make the same token.
///
/// A process can load this library twice, and each copy counts for itself. So each begins at a number of its own out of
/// 2^64, far from all others.
static CALLS: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(first_call_number()));

/// Returns the number of the next call of this process.
pub(crate) fn next_call_number() -> u64 {
    CALLS.fetch_add(1, Ordering::Relaxed)
}

/// Returns the number at which this copy of the library begins.
fn first_call_number() -> u64 {
    getrandom::u64().unwrap_or_else(|_| {
        // Without randomness, the place of this copy in memory and the time distinguish it.
        let place = std::ptr::from_ref(&CALLS).addr() as u64;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        spread(spread(place) ^ u64::from(now.subsec_nanos()) ^ now.as_secs().rotate_left(32))
    })
}

impl EngineState {
    pub(crate) fn new(process: ProcessIdentity, clock: &dyn TimeSource, runtime: Handle) -> Self {
        // Makes this engine differ from another one of this process that started in the same millisecond.
        let number = next_call_number();
        let me = ClaimOwner { process: process.clone(), call: number, claim: 0 }.digest();
        Self {
            process,
            runtime,
            tag: me.fingerprint().into(),
            stopping: CancellationToken::new(),
            background_tasks: TaskTracker::new(),
            sequence: AtomicU64::new(1),
            seed: seed(me, clock.now().as_millis()),
            is_loaded: AtomicBool::new(false),
        }
    }

    /// Returns the sequence number of the next event for a machine. Take it while the machine is borrowed, so that the
    /// numbers follow the order of the events.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the seed of this engine, which no other engine shares.
    pub(crate) const fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns a seed for this call number that no other engine shares.
    pub(crate) fn seed_of(&self, number: u64) -> u64 {
        spread(self.seed ^ number)
    }

    /// Returns the id of a run, made of the engine's name and the number of the call.
    pub(crate) fn run_id(&self, number: u64) -> RunId {
        // Both parts are short, so that the text needs no allocation before it is shared.
        let mut text = [0; 64];
        let mut rest = &mut text[..];
        let _ = write!(rest, "{}-{number:x}", self.tag);
        let left = rest.len();
        let written = text.get(..text.len() - left).unwrap_or_default();
        RunId(std::str::from_utf8(written).unwrap_or_default().into())
    }

    /// Returns true once the state that was stored before this process started has been loaded.
    pub(crate) fn is_loaded(&self) -> bool {
        self.is_loaded.load(Ordering::Acquire)
    }

    pub(crate) fn set_loaded(&self) {
        self.is_loaded.store(true, Ordering::Release);
    }
}

/// Returns a seed for jitter. It only has to differ between processes and calls; no safety depends on it.
fn seed(me: Digest, now: u64) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *me.as_bytes();
    spread(u64::from_be_bytes([a, b, c, d, e, f, g, h]) ^ now)
}

/// SplitMix64: maps neighbouring numbers to unrelated ones.
fn spread(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two copies of the library are as two processes with the same identity: only this number distinguishes them.
    #[test]
    fn copies_of_the_library_begin_at_numbers_far_from_each_other() {
        let mut firsts: Vec<u64> = (0..64).map(|_| first_call_number()).collect();
        firsts.sort_unstable();
        let nearest = firsts.windows(2).map(|pair| pair[1] - pair[0]).min();
        assert!(nearest > Some(1 << 32), "{nearest:?}");
    }

    #[test]
    fn each_call_of_a_process_has_a_number_of_its_own() {
        let (first, second) = (next_call_number(), next_call_number());
        assert_eq!(second, first.wrapping_add(1));
    }
}
