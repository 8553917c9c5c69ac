//! A circuit breaker shared by many attempts.
//!
//! The state machine is behind a lock that is held for a few nanoseconds and never across an await. Two atomic words
//! beside it avoid the lock in nearly every attempt:
//! - One means "closed, in this epoch". While it is set, an admission takes no lock. This is safe because a ticket
//!   counts only in its epoch. If the breaker opens a moment later, the result belongs to an older epoch and is
//!   ignored, as if the attempt had been admitted a moment earlier.
//! - The first word of the [`SuccessTally`] counts successes while there are no failures.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::tally::SuccessTally;
use super::{
    BreakerPhase, BreakerRefusal, BreakerTicket, BreakerTransition, BreakerVerdict, CircuitBreaker, State,
    TicketRenewal, is_slow,
};
use crate::Timestamp;
use crate::policy::BreakerPolicy;

/// A circuit breaker behind a lock.
#[derive(Debug)]
pub struct SharedBreaker {
    /// Epoch plus one while closed, otherwise zero. Written only under the lock.
    closed: CachePadded<AtomicU64>,
    tally: CachePadded<SuccessTally>,
    breaker: CachePadded<Mutex<CircuitBreaker>>,
}

/// A value on its own cache line, because its neighbours change more or less often.
#[derive(Debug)]
#[repr(align(64))]
struct CachePadded<T>(T);

impl Default for SharedBreaker {
    fn default() -> Self {
        Self::new(CircuitBreaker::default())
    }
}

impl SharedBreaker {
    /// Wraps this breaker, new or restored.
    pub fn new(breaker: CircuitBreaker) -> Self {
        Self {
            closed: CachePadded(AtomicU64::new(closed_word(&breaker))),
            tally: CachePadded(SuccessTally::default()),
            breaker: CachePadded(Mutex::new(breaker)),
        }
    }

    /// Admits or refuses an attempt. The permit is released when dropped.
    #[inline]
    pub fn admit(
        &self,
        policy: &BreakerPolicy,
        now: Timestamp,
    ) -> Result<(BreakerPermit<'_>, Option<BreakerTransition>), BreakerRefusal> {
        let (ticket, change) = self.take(policy, now)?;
        Ok((BreakerPermit { breaker: self, ticket: Some(ticket) }, change))
    }

    /// Checks if an attempt would be refused now.
    pub fn check(&self, policy: &BreakerPolicy, now: Timestamp) -> Result<(), BreakerRefusal> {
        if !policy.forced_open && self.closed.0.load(Ordering::Acquire) != 0 {
            return Ok(());
        }
        self.lock().check(policy, now)
    }

    /// Returns the current state.
    pub fn state(&self, policy: &BreakerPolicy, now: Timestamp) -> State {
        self.lock().state(policy, now)
    }

    /// Runs any other operation under the lock: force open, reset, adopt, snapshot.
    pub fn with<R>(&self, act: impl FnOnce(&mut CircuitBreaker) -> R) -> R {
        let mut breaker = self.lock();
        let result = act(&mut breaker);
        self.closed.0.store(closed_word(&breaker), Ordering::Release);
        result
    }

    /// Locks the breaker. The first to take the lock moves the outcomes that were counted beside it into the window.
    #[inline]
    fn lock(&self) -> MutexGuard<'_, CircuitBreaker> {
        let mut breaker = self.breaker.0.lock();
        if self.tally.0.is_open() {
            self.settle(&mut breaker);
        }
        breaker
    }

    /// A separate function, because in most cases there is nothing to move.
    #[inline(never)]
    fn settle(&self, breaker: &mut CircuitBreaker) {
        breaker.count_successes(self.tally.0.close());
    }

    fn record(
        &self,
        policy: &BreakerPolicy,
        ticket: BreakerTicket,
        verdict: BreakerVerdict,
        now: Timestamp,
    ) -> Option<BreakerTransition> {
        let mut breaker = self.lock();
        let change = breaker.record(policy, ticket, verdict, now);
        if change.is_some() {
            self.closed.0.store(closed_word(&breaker), Ordering::Release);
        } else if breaker.has_no_failures() {
            self.tally.0.open(breaker.epoch);
        }
        change
    }

    #[inline]
    fn take(
        &self,
        policy: &BreakerPolicy,
        now: Timestamp,
    ) -> Result<(BreakerTicket, Option<BreakerTransition>), BreakerRefusal> {
        if !policy.forced_open
            && let Some(epoch) = self.closed.0.load(Ordering::Acquire).checked_sub(1)
        {
            return Ok((BreakerTicket { epoch, probe: None }, None));
        }
        self.take_under_lock(policy, now)
    }

    #[cold]
    fn take_under_lock(
        &self,
        policy: &BreakerPolicy,
        now: Timestamp,
    ) -> Result<(BreakerTicket, Option<BreakerTransition>), BreakerRefusal> {
        // An admission never closes a breaker and never opens a closed one, so the word stays correct.
        self.lock().admit(policy, now)
    }
}

fn closed_word(breaker: &CircuitBreaker) -> u64 {
    match breaker.phase {
        BreakerPhase::Closed => breaker.epoch.saturating_add(1),
        BreakerPhase::Open { .. } | BreakerPhase::HalfOpen { .. } | BreakerPhase::ForcedOpen { .. } => 0,
    }
}

/// The permission to make one attempt. If it is dropped without a result it is released and nothing is recorded: a
/// cancelled attempt gives no information about the tool.
#[derive(Debug)]
#[must_use = "a permit that is dropped at once admits nothing"]
pub struct BreakerPermit<'b> {
    breaker: &'b SharedBreaker,
    /// `None` once the ticket was returned.
    ticket: Option<BreakerTicket>,
}

impl BreakerPermit<'_> {
    /// Returns the ticket with the result of the attempt.
    #[inline]
    pub fn record(
        mut self,
        policy: &BreakerPolicy,
        verdict: BreakerVerdict,
        now: Timestamp,
    ) -> Option<BreakerTransition> {
        let ticket = self.ticket.take()?;
        let shared = self.breaker;
        if let BreakerVerdict::Success { took } = verdict
            && !ticket.is_probe()
            && !policy.forced_open
            && !is_slow(policy, took)
            && shared.tally.0.count(ticket.epoch, now)
        {
            return None;
        }
        shared.record(policy, ticket, verdict, now)
    }

    /// Renews the ticket during the attempt. Returns if the attempt still counts.
    pub fn renew(&self, policy: &BreakerPolicy, now: Timestamp) -> TicketRenewal {
        self.ticket
            .as_ref()
            .map_or(TicketRenewal::Lost, |ticket| self.breaker.lock().renew(policy, ticket, now))
    }

    /// Returns true if this attempt is a probe.
    pub fn is_probe(&self) -> bool {
        self.ticket.as_ref().is_some_and(BreakerTicket::is_probe)
    }
}

impl Drop for BreakerPermit<'_> {
    #[inline]
    fn drop(&mut self) {
        // Only a probe holds a slot that has to be freed.
        if let Some(ticket) = self.ticket.take_if(|ticket| ticket.is_probe()) {
            self.breaker.lock().release(ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::policy::{PolicyProfile, RateRule, Ratio, SlowRule, ToolClass};

    const FAILED: BreakerVerdict = BreakerVerdict::Failure { took: Duration::ZERO };
    const GOOD: BreakerVerdict = BreakerVerdict::Success { took: Duration::ZERO };

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn policy() -> BreakerPolicy {
        PolicyProfile::Measured.policy(ToolClass::Unknown).breaker
    }

    fn opened() -> SharedBreaker {
        let shared = SharedBreaker::default();
        for _ in 0..5 {
            shared.admit(&policy(), at(0)).unwrap().0.record(&policy(), FAILED, at(0));
        }
        shared
    }

    #[test]
    fn a_dropped_permit_frees_the_probe_and_counts_nothing() {
        let shared = opened();
        let (permit, change) = shared.admit(&policy(), at(30)).unwrap();
        assert!(permit.is_probe() && change.is_some());
        assert_eq!(shared.admit(&policy(), at(31)).unwrap_err().state, State::HalfOpen);
        drop(permit);
        assert_eq!(shared.state(&policy(), at(31)), State::HalfOpen);
        let (permit, _) = shared.admit(&policy(), at(31)).unwrap();
        assert!(permit.record(&policy(), GOOD, at(31)).is_some());
        assert_eq!(shared.state(&policy(), at(31)), State::Closed);
    }

    #[test]
    fn an_admission_without_the_lock_observes_every_change() {
        let shared = opened();
        assert_eq!(shared.admit(&policy(), at(1)).unwrap_err().state, State::Open);
        assert!(shared.check(&policy(), at(1)).is_err());
        shared.with(|breaker| breaker.reset(at(1)));
        let (before, _) = shared.admit(&policy(), at(1)).unwrap();
        assert!(!before.is_probe());
        shared.with(|breaker| breaker.force_open(None, at(2)));
        assert_eq!(shared.admit(&policy(), at(2)).unwrap_err().state, State::ForcedOpen);
        shared.with(|breaker| breaker.reset(at(3)));
        before.record(&policy(), FAILED, at(3));
        assert_eq!(shared.with(|breaker| breaker.counts().in_a_row), 0, "an answer of an older epoch");
        let forced = BreakerPolicy { forced_open: true, ..policy() };
        assert_eq!(shared.admit(&forced, at(3)).unwrap_err().state, State::ForcedOpen);
    }

    proptest! {
        /// Makes the same calls through a shared breaker and through a bare one, with a clock that stands, runs, leaps
        /// and steps back, and with runs of successes that are longer than the tally.
        #[test]
        fn counting_beside_the_lock_gives_the_same_decisions(
            calls in prop::collection::vec((0_u8..5, 0_u8..10, 1_usize..30), 1..60),
        ) {
            let last = NonZeroU32::new(8).unwrap();
            let rate = RateRule { threshold: Ratio::percent(50), last, at_least: last };
            let slow = SlowRule { slower_than: Duration::from_secs(1), rate };
            let window = Duration::from_secs(10);
            let policy = BreakerPolicy { consecutive: None, rate: Some(rate), slow: Some(slow), window, ..policy() };
            let (shared, mut bare, mut now) = (SharedBreaker::default(), CircuitBreaker::default(), at(100));
            for (clock, kind, times) in calls {
                let (verdict, times) = match kind {
                    0..6 => (GOOD, times),
                    6..8 => (FAILED, 1),
                    8 => (BreakerVerdict::Success { took: Duration::from_secs(2) }, 1),
                    _ => (BreakerVerdict::Neutral, 1),
                };
                for _ in 0..times {
                    now = match clock {
                        0 => now,
                        1 => now + Duration::from_millis(1),
                        2 => now + Duration::from_millis(700),
                        3 => now + Duration::from_secs(7),
                        _ => now.before(Duration::from_millis(900)),
                    };
                    let through = shared.admit(&policy, now).map(|(permit, _)| permit.record(&policy, verdict, now));
                    let directly = bare.admit(&policy, now).map(|(ticket, _)| bare.record(&policy, ticket, verdict, now));
                    prop_assert_eq!(through, directly);
                }
            }
            prop_assert_eq!(shared.with(|breaker| breaker.counts()), bare.counts());
            prop_assert_eq!(shared.state(&policy, now), bare.state(&policy, now));
        }
    }

    #[test]
    fn a_success_of_an_older_epoch_is_not_tallied() {
        let shared = SharedBreaker::default();
        let (old, _) = shared.admit(&policy(), at(0)).unwrap();
        shared.with(|breaker| breaker.reset(at(0)));
        for _ in 0..3 {
            shared.admit(&policy(), at(0)).unwrap().0.record(&policy(), GOOD, at(0));
        }
        old.record(&policy(), GOOD, at(0));
        assert_eq!(shared.with(|breaker| breaker.counts().calls), 3);
    }

    #[test]
    fn results_of_many_threads_are_all_counted() {
        let last = NonZeroU32::new(1000).unwrap();
        let rate = RateRule { threshold: Ratio::percent(100), last, at_least: last };
        let policy = BreakerPolicy { consecutive: None, rate: Some(rate), ..policy() };
        let shared = SharedBreaker::default();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let shared = &shared;
                scope.spawn(move || {
                    for number in 0..200 {
                        let failed = thread == 0 && number % 2 == 0;
                        let verdict = if failed { FAILED } else { GOOD };
                        shared.admit(&policy, at(0)).unwrap().0.record(&policy, verdict, at(0));
                    }
                });
            }
        });
        let counts = shared.with(|breaker| breaker.counts());
        assert_eq!((counts.calls, counts.failures), (800, 100));
    }

    #[test]
    fn a_storm_in_half_open_admits_one() {
        let shared = opened();
        let admit = || (0..100).filter_map(|_| shared.admit(&policy(), at(30)).ok()).collect::<Vec<_>>();
        let admitted: Vec<_> = std::thread::scope(|scope| {
            let storm: Vec<_> = (0..8).map(|_| scope.spawn(admit)).collect();
            storm.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(admitted.len(), 1);
        assert_ne!(admitted[0].0.renew(&policy(), at(100)), TicketRenewal::Lost);
    }
}
