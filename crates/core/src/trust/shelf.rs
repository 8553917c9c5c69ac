//! A bounded map, and what it forgets when there is no room.
//!
//! Names of tools, hosts and folders come from outside, so there can be any number of them. What is trusted
//! is forgotten first, then what is on trial, then escalations whose time is over; the least recent first. A
//! running escalation or a block is never forgotten: then the newcomer finds no room.

use std::collections::BTreeMap;

use super::account::{Account, State};
use super::snapshot::DomainStats;
use crate::Timestamp;

/// The rank of what nobody misses.
const TRUSTED: u8 = 0;

/// How dear a thing is to us.
pub(super) trait Ranked {
    /// The lowest rank is forgotten first; nothing means never.
    fn rank(&self, now: Timestamp) -> Option<(u8, Timestamp)>;
}

impl Ranked for Account {
    fn rank(&self, now: Timestamp) -> Option<(u8, Timestamp)> {
        match &self.state {
            State::Trusted => {
                Some((TRUSTED, self.last_failure.max(self.last_success).unwrap_or(Timestamp::ZERO)))
            }
            State::Recovering(recovering) => Some((1, recovering.at)),
            State::Escalated(escalated) if !escalated.by_hand && escalated.expires <= now => {
                Some((2, escalated.expires))
            }
            State::Escalated(_) | State::Blocked(_) => None,
        }
    }
}

impl Ranked for DomainStats {
    fn rank(&self, _now: Timestamp) -> Option<(u8, Timestamp)> {
        Some((TRUSTED, self.last_failure.max(self.last_success).unwrap_or(Timestamp::ZERO)))
    }
}

/// At most so many things by name.
#[derive(Clone, Debug)]
pub(super) struct Shelf<K, V> {
    pub(super) most: usize,
    pub(super) items: BTreeMap<K, V>,
}

impl<K: Ord + Clone, V: Ranked + Default> Shelf<K, V> {
    pub(super) const fn new(most: usize) -> Self {
        Self { most, items: BTreeMap::new() }
    }

    /// The thing of this name, new if there is none yet; nothing if there is no room for it.
    pub(super) fn get_or_make(&mut self, key: K, now: Timestamp) -> Option<&mut V> {
        if !self.items.contains_key(&key) && !self.make_room(now) {
            return None;
        }
        Some(self.items.entry(key).or_default())
    }

    /// Forgets a sixteenth of what is trusted at once, so that a flood of new names does not search the whole shelf each time.
    fn make_room(&mut self, now: Timestamp) -> bool {
        if self.items.len() < self.most {
            return true;
        }
        let ranked = self.items.iter().filter_map(|(key, value)| Some((value.rank(now)?, key)));
        let mut ranked: Vec<_> = ranked.map(|(rank, key)| (rank, key.clone())).collect();
        ranked.sort_unstable();
        // What is not trusted goes one by one: each of them is a memory that somebody may need.
        let trusted = ranked.iter().take_while(|((class, _), _)| *class == TRUSTED).count();
        for (_, key) in ranked.into_iter().take((self.most / 16).min(trusted).max(1)) {
            self.items.remove(&key);
        }
        self.items.len() < self.most
    }
}
