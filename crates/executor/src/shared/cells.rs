//! The state machines that calls share, each behind its own lock that is never held over an await.
//!
//! A call looks its machines up once, when it begins, and borrows them for the length of one step. They are always
//! locked in the order in which [`CallMachines::with`] names them, so no two calls can wait for each other.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use steadfast_core::Timestamp;
use steadfast_core::approval::ApprovalLedger;
use steadfast_core::breaker::CircuitBreaker;
use steadfast_core::call::{Call, CallMechanisms, CallResult};
use steadfast_core::guard::LoopGuard;
use steadfast_core::id::{SessionKey, TenantId};
use steadfast_core::limit::Limiter;
use steadfast_core::policy::CallPolicy;
use steadfast_core::retry::RetryBudget;
use steadfast_core::stats::Statistics;
use steadfast_core::trust::{TrustBounds, TrustLedger};
use tokio::sync::Notify;

use crate::keys::{DependencyKey, SessionId, ToolKey};

/// The shared state machines of an engine.
#[derive(Debug)]
pub(crate) struct MachineRegistry {
    pub(crate) tools: SharedRegistry<ToolKey, ToolCell>,
    pub(crate) dependencies: SharedRegistry<DependencyKey, DependencyCell>,
    pub(crate) sessions: SharedRegistry<SessionId, Mutex<LoopGuard>>,
    pub(crate) tenants: SharedRegistry<Option<TenantId>, TenantState>,
}

/// State that the calls of one tool share.
pub(crate) type ToolCell = Mutex<ToolState>;

/// The circuit breaker and the limits of a tool.
#[derive(Debug)]
pub(crate) struct ToolState {
    pub(crate) breaker: CircuitBreaker,
    limiter: Limiter,
    /// Figures about its calls in this process, for views.
    pub(crate) counts: Option<ToolCallCounts>,
}

/// Figures about the calls of one tool in this process.
#[derive(Clone, Debug)]
pub(crate) struct ToolCallCounts {
    /// Policy of the last call.
    pub(crate) policy: Arc<CallPolicy>,
    pub(crate) calls: u64,
    /// Number of calls that ran and failed.
    pub(crate) failures: u64,
    /// Number of calls that were refused without a run.
    pub(crate) refused: u64,
    pub(crate) last: Timestamp,
}

impl ToolState {
    /// Counts a call that has ended.
    pub(crate) fn record_call(&mut self, policy: &Arc<CallPolicy>, result: &CallResult, now: Timestamp) {
        let counts = self.counts.get_or_insert_with(|| ToolCallCounts {
            policy: policy.clone(),
            calls: 0,
            failures: 0,
            refused: 0,
            last: now,
        });
        if !Arc::ptr_eq(&counts.policy, policy) {
            counts.policy = policy.clone();
        }
        counts.calls += 1;
        counts.failures += u64::from(result.outcome.is_err() && result.attempts > 0);
        counts.refused += u64::from(result.is_refused());
        counts.last = now;
    }
}

/// State that the calls of one dependency share.
#[derive(Debug)]
pub(crate) struct DependencyCell {
    pub(crate) breaker: Mutex<CircuitBreaker>,
    pub(crate) load: Mutex<DependencyLoad>,
    /// Policy of the last call that its circuit breaker judged.
    pub(crate) policy: Mutex<Option<Arc<CallPolicy>>>,
}

/// The limits that protect a dependency from load.
#[derive(Debug, Default)]
pub(crate) struct DependencyLoad {
    budget: RetryBudget,
    limiter: Limiter,
}

/// State that the calls of one tenant share.
#[derive(Debug)]
pub(crate) struct TenantState {
    pub(crate) judged: Mutex<TenantTrust>,
    /// Notified when a request for approval is added or decided.
    pub(crate) approvals_changed: Notify,
    /// Number of pending requests in the last report.
    pub(crate) waiting: AtomicUsize,
    /// Lock held while the approvals of the tenant are changed in the store or loaded from it.
    pub(crate) changing_approvals: Arc<tokio::sync::Mutex<()>>,
    /// Lowest id of a request that was not seen yet.
    unseen_from: AtomicU64,
    /// Success statistics of the tenant's tools and models.
    pub(crate) scores: Mutex<Statistics>,
}

impl TenantState {
    /// Marks these requests as seen and returns the lowest id that was not seen before.
    pub(crate) fn mark_seen(&self, approvals: &ApprovalLedger) -> u64 {
        let next = approvals.parked(Timestamp::ZERO).last().map_or(0, |(last, _)| last.0 + 1);
        self.unseen_from.fetch_max(next, Ordering::Relaxed)
    }
}

/// Trust in the tools of a tenant, and its approvals.
#[derive(Debug)]
pub(crate) struct TenantTrust {
    pub(crate) trust: TrustLedger,
    /// Trust of single sessions, where it ends with the session. The number orders the sessions by last use.
    of_sessions: BTreeMap<SessionKey, (u64, TrustLedger)>,
    used: u64,
    bounds: TrustBounds,
    pub(crate) approvals: ApprovalLedger,
}

impl TenantTrust {
    /// Maximum number of sessions with their own trust. Beyond it, the least recently used is removed.
    const MOST_SESSIONS: usize = 1000;

    fn new(bounds: TrustBounds) -> Self {
        Self {
            trust: TrustLedger::new(bounds),
            of_sessions: BTreeMap::new(),
            used: 0,
            bounds,
            approvals: ApprovalLedger::default(),
        }
    }

    /// Returns all trust ledgers.
    pub(crate) fn ledgers(&self) -> impl Iterator<Item = &TrustLedger> {
        std::iter::once(&self.trust).chain(self.of_sessions.values().map(|(_, ledger)| ledger))
    }

    /// Returns all trust ledgers for changes.
    pub(crate) fn ledgers_mut(&mut self) -> impl Iterator<Item = &mut TrustLedger> {
        std::iter::once(&mut self.trust).chain(self.of_sessions.values_mut().map(|(_, ledger)| ledger))
    }

    /// Removes the trust of a session that has ended.
    pub(crate) fn end_session(&mut self, session: &SessionKey) {
        self.of_sessions.remove(session);
    }

    /// Returns the ledger that judges a call of this session, and the approvals.
    fn of(&mut self, session: Option<&SessionKey>) -> (&mut TrustLedger, &mut ApprovalLedger) {
        let Some(session) = session else { return (&mut self.trust, &mut self.approvals) };
        self.used += 1;
        if self.of_sessions.len() >= Self::MOST_SESSIONS && !self.of_sessions.contains_key(session) {
            let oldest = self.of_sessions.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = oldest.map(|(session, _)| session.clone()) {
                self.of_sessions.remove(&oldest);
            }
        }
        let made = || (0, TrustLedger::new(self.bounds));
        let (used, ledger) = self.of_sessions.entry(session.clone()).or_insert_with(made);
        *used = self.used;
        (ledger, &mut self.approvals)
    }
}

/// The machines of one call.
#[derive(Clone, Debug)]
pub(crate) struct CallMachines {
    pub(crate) tool: Arc<ToolCell>,
    /// The dependency whose retry budget the call shares.
    pub(crate) dependency: Arc<DependencyCell>,
    /// The coarser circuit breaker that the caller asked for.
    pub(crate) coarser: Option<Arc<DependencyCell>>,
    pub(crate) guard: Arc<Mutex<LoopGuard>>,
    pub(crate) tenant: Arc<TenantState>,
    /// The session whose trust counts, if each session has its own.
    pub(crate) trust_of: Option<SessionKey>,
}

impl CallMachines {
    /// Updates the counts and scores of the tool after a call.
    pub(crate) fn record_end(&self, call: &Call, result: &CallResult, now: Timestamp) {
        let policy = call.shared_policy();
        self.tool.lock().record_call(policy, result, now);
        if let Some(coarser) = &self.coarser {
            *coarser.policy.lock() = Some(policy.clone());
        }
        if let Some(outcome) = call.score_outcome() {
            let request = call.request();
            let mut scores = self.tenant.scores.lock();
            scores.record(&request.tool, request.model.as_ref(), outcome, Some(result.took), now);
        }
    }

    /// Lends the machines for one step.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut CallMechanisms<'_>) -> R) -> R {
        let mut tool = self.tool.lock();
        let ToolState { breaker, limiter, .. } = &mut *tool;
        let mut coarser = self.coarser.as_ref().map(|cell| cell.breaker.lock());
        let mut load = self.dependency.load.lock();
        let DependencyLoad { budget, limiter: dependency_limiter } = &mut *load;
        let mut guard = self.guard.lock();
        let mut judged = self.tenant.judged.lock();
        let (trust, approvals) = judged.of(self.trust_of.as_ref());
        act(&mut CallMechanisms {
            breaker,
            dependency: coarser.as_deref_mut(),
            budget,
            limiter,
            dependency_limiter,
            guard: &mut guard,
            trust,
            approvals,
        })
    }
}

impl MachineRegistry {
    /// Maximum number of tools, dependencies, sessions and tenants in memory. Beyond it, entries that are not in use
    /// are removed, the least recently used first.
    const MOST: usize = 10_000;

    /// Creates the machines. `seed` differs between all processes that share a store: it is the base of their probe
    /// numbers.
    pub(crate) fn new(seed: u64, trust: TrustBounds) -> Self {
        let breaker = move || CircuitBreaker::numbered_from(seed);
        Self {
            tools: SharedRegistry::new(Self::MOST, move || {
                Mutex::new(ToolState { breaker: breaker(), limiter: Limiter::default(), counts: None })
            })
            // A breaker that was forced by an operator must not be evicted. One that is locked is in use.
            .pinning(|cell: &ToolCell| {
                cell.try_lock().is_none_or(|state| state.breaker.is_forced_by_operator())
            }),
            dependencies: SharedRegistry::new(Self::MOST, move || DependencyCell {
                breaker: Mutex::new(breaker()),
                load: Mutex::default(),
                policy: Mutex::default(),
            })
            .pinning(|cell| cell.breaker.try_lock().is_none_or(|breaker| breaker.is_forced_by_operator())),
            sessions: SharedRegistry::new(Self::MOST, Mutex::default),
            tenants: SharedRegistry::new(Self::MOST, move || TenantState {
                judged: Mutex::new(TenantTrust::new(trust)),
                approvals_changed: Notify::new(),
                waiting: AtomicUsize::new(0),
                changing_approvals: Arc::default(),
                unseen_from: AtomicU64::new(0),
                scores: Mutex::default(),
            }),
        }
    }
}

/// A map with names chosen by clients as keys. The hash has a secret per map, and the maps are bounded: names that are
/// made to collide by guessing cost no more than a scan of one bounded map.
type KeyedHashMap<K, V> = std::collections::HashMap<K, V, foldhash::quality::RandomState>;

/// A bounded map of shared values by name, created on first use.
pub(crate) struct SharedRegistry<K, V> {
    entries: RwLock<KeyedHashMap<K, SharedEntry<V>>>,
    make: Box<dyn Fn() -> V + Send + Sync>,
    /// Returns true for a value that must stay although it is not in use.
    pinned: fn(&V) -> bool,
    most: usize,
    /// Number of look-ups. It replaces the time, because only the order matters.
    tick: AtomicU64,
}

#[derive(Debug)]
struct SharedEntry<V> {
    value: Arc<V>,
    used: AtomicU64,
}

impl<K: Eq + Hash + Clone + Ord, V> SharedRegistry<K, V> {
    fn new(most: usize, make: impl Fn() -> V + Send + Sync + 'static) -> Self {
        let (make, tick) = (Box::new(make), AtomicU64::new(0));
        Self { entries: RwLock::default(), make, pinned: |_| false, most, tick }
    }

    fn pinning(self, pinned: fn(&V) -> bool) -> Self {
        Self { pinned, ..self }
    }

    /// Returns the value of this name, and creates it if needed.
    pub(crate) fn get(&self, name: &K) -> Arc<V> {
        let tick = self.tick.fetch_add(1, Ordering::Relaxed);
        if let Some(entry) = self.entries.read().get(name) {
            entry.used.store(tick, Ordering::Relaxed);
            return entry.value.clone();
        }
        let mut entries = self.entries.write();
        if entries.len() >= self.most && !entries.contains_key(name) {
            make_room(&mut entries, self.pinned);
        }
        let entry = entries
            .entry(name.clone())
            .or_insert_with(|| SharedEntry { value: Arc::new((self.make)()), used: AtomicU64::new(tick) });
        entry.value.clone()
    }

    /// Returns the value of this name, if there is one.
    pub(crate) fn find(&self, name: &K) -> Option<Arc<V>> {
        self.entries.read().get(name).map(|entry| entry.value.clone())
    }

    /// Returns all values, ordered by name.
    pub(crate) fn all(&self) -> Vec<(K, Arc<V>)> {
        let mut all: Vec<_> =
            self.entries.read().iter().map(|(name, entry)| (name.clone(), entry.value.clone())).collect();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all
    }
}

impl<K, V> std::fmt::Debug for SharedRegistry<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedRegistry").field("entries", &self.entries.read().len()).finish_non_exhaustive()
    }
}

/// Removes a tenth of the values that are not in use, the least recently used first: removing one by one would sort
/// each time. Values in use stay even beyond the bound: two machines for one tool would be worse than one value too
/// many.
fn make_room<K: Eq + Hash + Clone, V>(entries: &mut KeyedHashMap<K, SharedEntry<V>>, pinned: fn(&V) -> bool) {
    let mut idle: Vec<(u64, K)> = entries
        .iter()
        .filter(|(_, entry)| Arc::strong_count(&entry.value) == 1 && !pinned(&entry.value))
        .map(|(name, entry)| (entry.used.load(Ordering::Relaxed), name.clone()))
        .collect();
    idle.sort_by_key(|(used, _)| *used);
    let spare = entries.len() / 10 + 1;
    for (_, name) in idle.into_iter().take(spare) {
        entries.remove(&name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pinned_stays_although_there_is_no_room() {
        let registry = SharedRegistry::new(10, || Mutex::new(false)).pinning(|pinned| *pinned.lock());
        *registry.get(&0).lock() = true;
        for name in 1..1000 {
            registry.get(&name);
        }
        assert!(registry.all().len() <= 10);
        assert!(registry.find(&0).is_some_and(|entry| *entry.lock()) && registry.find(&1).is_none());
    }
}
