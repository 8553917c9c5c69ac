//! The open calls, with the state that later notices need from earlier ones.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::call::CallRequest;

use crate::labels::Label;
use crate::spans::CallSpans;

/// State of a call until it ends.
#[derive(Debug, Default)]
pub(crate) struct OpenCall {
    /// The rule that classified the last failed attempt: the reason for a retry.
    pub(crate) rule: Option<Label>,
    /// The spans of the call, if tracing is enabled.
    pub(crate) spans: Option<CallSpans>,
}

/// The open calls. Beyond the limit, a call is still logged and counted, but has no spans.
#[derive(Debug)]
pub(crate) struct OpenCalls([Mutex<HashMap<Arc<str>, OpenCall>>; SHARDS]);

impl Default for OpenCalls {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl OpenCalls {
    /// Adds a call.
    pub(crate) fn enter(&self, request: &CallRequest) {
        let mut calls = self.shard(request).lock();
        if calls.len() < MOST_PER_SHARD {
            // The run id also distinguishes calls of different engines in one process.
            calls.insert(request.run.0.clone(), OpenCall::default());
        }
    }

    /// Runs a function on the state of a call.
    pub(crate) fn with<R>(&self, request: &CallRequest, apply: impl FnOnce(&mut OpenCall) -> R) -> R {
        match self.shard(request).lock().get_mut(&request.run.0) {
            Some(open) => apply(open),
            None => apply(&mut OpenCall::default()),
        }
    }

    /// Removes a call and returns its state.
    pub(crate) fn leave(&self, request: &CallRequest) -> OpenCall {
        self.shard(request).lock().remove(&request.run.0).unwrap_or_default()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|shard| shard.lock().len()).sum()
    }

    #[expect(clippy::indexing_slicing, reason = "the remainder is less than the number of shards")]
    fn shard(&self, request: &CallRequest) -> &Mutex<HashMap<Arc<str>, OpenCall>> {
        &self.0[usize::try_from(request.number % SHARDS as u64).unwrap_or_default()]
    }
}

const SHARDS: usize = 16;
/// With all shards, more calls than an engine runs concurrently.
const MOST_PER_SHARD: usize = 1024;
