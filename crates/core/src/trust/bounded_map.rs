//! A bounded map, with its eviction order.
//!
//! Names of tools, hosts and folders come from outside, so their number is unlimited. Trusted entries are evicted
//! first, then recovering ones, then expired escalations, the least recent first. An active escalation or a block is
//! never evicted. If only those are left, a new entry is refused.

use std::collections::BTreeMap;

use super::account::{State, TrustAccount};
use super::entries::DomainStats;
use crate::Timestamp;

/// The rank of a trusted entry, which can be evicted without loss.
const TRUSTED: u8 = 0;

/// An entry with an eviction rank.
pub(super) trait EvictionRank {
    /// Returns the rank. The lowest rank is evicted first. None means never.
    fn rank(&self, now: Timestamp) -> Option<(u8, Timestamp)>;
}

impl EvictionRank for TrustAccount {
    fn rank(&self, now: Timestamp) -> Option<(u8, Timestamp)> {
        match &self.state {
            State::Trusted => {
                Some((TRUSTED, self.last_failure.max(self.last_success).unwrap_or(Timestamp::ZERO)))
            }
            State::Recovering(recovering) => Some((1, recovering.at)),
            State::Escalated(escalated) if !escalated.needs_operator && escalated.expires <= now => {
                Some((2, escalated.expires))
            }
            State::Escalated(_) | State::Blocked(_) => None,
        }
    }
}

impl EvictionRank for DomainStats {
    fn rank(&self, _now: Timestamp) -> Option<(u8, Timestamp)> {
        Some((TRUSTED, self.last_failure.max(self.last_success).unwrap_or(Timestamp::ZERO)))
    }
}

/// A bounded map by name.
#[derive(Clone, Debug)]
pub(super) struct BoundedMap<K, V> {
    pub(super) most: usize,
    pub(super) items: BTreeMap<K, V>,
}

impl<K: Ord + Clone, V: EvictionRank + Default> BoundedMap<K, V> {
    pub(super) const fn new(most: usize) -> Self {
        Self { most, items: BTreeMap::new() }
    }

    /// Returns the entry of this name, and creates it if there is none. None if there is no room for it.
    pub(super) fn get_or_insert(&mut self, key: K, now: Timestamp) -> Option<&mut V> {
        if !self.items.contains_key(&key) && !self.make_room(now) {
            return None;
        }
        Some(self.items.entry(key).or_default())
    }

    /// Evicts a sixteenth of the trusted entries at once, so that a flood of new names does not search the whole map
    /// each time.
    fn make_room(&mut self, now: Timestamp) -> bool {
        if self.items.len() < self.most {
            return true;
        }
        let ranked = self.items.iter().filter_map(|(key, value)| Some((value.rank(now)?, key)));
        let mut ranked: Vec<_> = ranked.map(|(rank, key)| (rank, key.clone())).collect();
        ranked.sort_unstable();
        // Entries that are not trusted are evicted one by one, because each of them may still matter.
        let trusted = ranked.iter().take_while(|((class, _), _)| *class == TRUSTED).count();
        for (_, key) in ranked.into_iter().take((self.most / 16).min(trusted).max(1)) {
            self.items.remove(&key);
        }
        self.items.len() < self.most
    }
}
