//! The calls that are on their way: what a later fact about them needs from an earlier one.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::call::Request;

use crate::labels::Label;
use crate::spans::CallSpans;

/// What is remembered of a call until it ends.
#[derive(Debug, Default)]
pub(crate) struct Open {
    /// The rule that classified its last failed attempt: why there is a retry.
    pub(crate) rule: Option<Label>,
    /// Its spans, where there are any.
    pub(crate) spans: Option<CallSpans>,
}

/// The calls that are on their way. Beyond the limit a call is logged and counted like any other, and has no spans.
#[derive(Debug)]
pub(crate) struct Calls([Mutex<HashMap<Arc<str>, Open>>; SHARDS]);

impl Default for Calls {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl Calls {
    /// A call comes.
    pub(crate) fn enter(&self, request: &Request) {
        let mut calls = self.shard(request).lock();
        if calls.len() < MOST_PER_SHARD {
            // The id of a run tells calls of different engines in one process apart too.
            calls.insert(request.run.0.clone(), Open::default());
        }
    }

    /// What is known about a call, for a moment.
    pub(crate) fn with<R>(&self, request: &Request, look: impl FnOnce(&mut Open) -> R) -> R {
        match self.shard(request).lock().get_mut(&request.run.0) {
            Some(open) => look(open),
            None => look(&mut Open::default()),
        }
    }

    /// A call goes.
    pub(crate) fn leave(&self, request: &Request) -> Open {
        self.shard(request).lock().remove(&request.run.0).unwrap_or_default()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|shard| shard.lock().len()).sum()
    }

    #[expect(clippy::indexing_slicing, reason = "the remainder is less than the number of shards")]
    fn shard(&self, request: &Request) -> &Mutex<HashMap<Arc<str>, Open>> {
        &self.0[usize::try_from(request.number % SHARDS as u64).unwrap_or_default()]
    }
}

const SHARDS: usize = 16;
/// With the shards, more calls than an engine takes at once.
const MOST_PER_SHARD: usize = 1024;
