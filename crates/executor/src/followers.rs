//! Callers in this process that wait for one run.
//!
//! A run that is ours is entered here while it is under way, so that duplicates in this process wait without
//! asking the store, learn of a refusal that is never stored, and so that a cancel knows whether others wait.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::call::Others;
use steadfast_core::dedupe::Failure;
use steadfast_core::key::Key;
use tokio::sync::watch;

/// The runs of this process.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    runs: Mutex<HashMap<Key, Arc<watch::Sender<Run>>>>,
}

/// How a run stands.
#[derive(Clone, Debug)]
pub(crate) enum Run {
    /// It is under way.
    Open,
    /// It is over, and the store says how it ended.
    Over,
    /// It was refused. That is not stored: whoever waited here gets the same refusal.
    Refused(Box<Failure>),
}

impl Runs {
    /// A run of ours begins. It is over when the guard is dropped.
    pub(crate) fn enter(self: &Arc<Self>, key: Key) -> Entered {
        let (sender, _) = watch::channel(Run::Open);
        let sender = Arc::new(sender);
        self.runs.lock().insert(key, sender.clone());
        Entered { runs: self.clone(), key, sender }
    }

    /// Waits for a run of this process, if it is one.
    pub(crate) fn follow(&self, key: Key) -> Option<watch::Receiver<Run>> {
        self.runs.lock().get(&key).map(|sender| sender.subscribe())
    }
}

/// A run of ours that is under way.
#[derive(Debug)]
pub(crate) struct Entered {
    runs: Arc<Runs>,
    key: Key,
    sender: Arc<watch::Sender<Run>>,
}

impl Entered {
    /// Whether others in this process wait for it.
    pub(crate) fn others(&self) -> Others {
        if self.sender.receiver_count() > 0 { Others::Waiting } else { Others::None }
    }

    /// It was refused; whoever waits gets the same refusal.
    pub(crate) fn refused(&self, failure: &Failure) {
        self.sender.send_replace(Run::Refused(Box::new(failure.clone())));
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut runs = self.runs.runs.lock();
        // A run that was taken over under the same key has an entry of its own.
        if runs.get(&self.key).is_some_and(|sender| Arc::ptr_eq(sender, &self.sender)) {
            runs.remove(&self.key);
        }
        drop(runs);
        self.sender.send_if_modified(|run| match run {
            Run::Open => {
                *run = Run::Over;
                true
            }
            Run::Over | Run::Refused(_) => false,
        });
    }
}
