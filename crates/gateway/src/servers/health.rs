//! The health of a server: its last failure, until it works again.
//!
//! The failure outlives every process and connection of the server. It is stored, so that it can be read without an
//! HTTP listener and after the gateway has ended.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::id::Namespace;
use steadfast_core::server_name::ServerFailure;
use steadfast_executor::Engine;
use steadfast_process::{LastEnd, ServerStatus, State, last_stderr_lines};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The maximum length of a failure description.
const LONGEST_REASON: usize = 1024;
/// The time limit for recording the last process states when the gateway stops.
const FINAL_REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// The health of a server across its processes and connections.
#[derive(Debug, Default)]
pub(crate) struct ServerHealth {
    known: Mutex<HealthRecord>,
    /// Locked while writing, so that the newest failure is the last one written.
    writing: tokio::sync::Mutex<()>,
    following: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct HealthRecord {
    failure: Option<ServerFailure>,
    /// The failure in the store. `None` before the first read.
    stored: Option<Option<ServerFailure>>,
}

impl ServerHealth {
    pub(crate) fn failure(&self) -> Option<ServerFailure> {
        self.known.lock().failure.clone()
    }

    /// Returns the failure to store if it differs from the stored one, and counts it as stored.
    fn take_unstored(&self) -> Option<Option<ServerFailure>> {
        let mut known = self.known.lock();
        let unstored = (known.stored.as_ref() != Some(&known.failure)).then(|| known.failure.clone());
        known.stored = Some(known.failure.clone());
        unstored
    }
}

/// Reports the health of a server, for one of its processes or connections.
#[derive(Clone)]
pub(crate) struct HealthReporter {
    pub(crate) health: Arc<ServerHealth>,
    pub(crate) name: Namespace,
    /// The engine that stores the health, if there is one.
    pub(crate) engine: Option<Engine>,
}

impl HealthReporter {
    /// Records a failure. A repeated failure is ignored.
    pub(crate) fn record_failure(&self, reason: &str) {
        let reason = steadfast_redact::excerpt(reason, LONGEST_REASON);
        let is_known = self.health.known.lock().failure.as_ref().is_some_and(|known| known.reason == reason);
        if !is_known {
            let at = self.engine.as_ref().map_or(Timestamp::ZERO, Engine::now);
            self.set_failure(Some(ServerFailure { at, reason }));
        }
    }

    pub(crate) fn record_success(&self) {
        self.set_failure(None);
    }

    fn set_failure(&self, failure: Option<ServerFailure>) {
        let is_new = {
            let mut known = self.health.known.lock();
            known.failure = failure;
            known.stored.as_ref() != Some(&known.failure)
        };
        if let (true, Some(_), Ok(runtime)) = (is_new, &self.engine, Handle::try_current()) {
            let reporter = self.clone();
            runtime.spawn(async move { reporter.store().await });
        }
    }

    async fn store(&self) {
        let Some(engine) = &self.engine else { return };
        let _turn = self.health.writing.lock().await;
        if let Some(failure) = self.health.take_unstored() {
            engine.note_server(&self.name, failure.as_ref()).await;
        }
    }

    /// Follows the status of a process until it ends.
    pub(crate) fn follow(&self, status: watch::Receiver<ServerStatus>) {
        if let Ok(runtime) = Handle::try_current() {
            let mut following = self.health.following.lock();
            following.retain(|one| !one.is_finished());
            following.push(runtime.spawn(followed(status, self.clone())));
        }
    }

    /// Waits until the final states of all processes are recorded and stored. The processes have ended.
    pub(crate) async fn settle(&self) {
        let following = std::mem::take(&mut *self.health.following.lock());
        for one in following {
            let _ = timeout(FINAL_REPORT_TIMEOUT, one).await;
        }
        self.store().await;
    }
}

async fn followed(mut status: watch::Receiver<ServerStatus>, reporter: HealthReporter) {
    let mut reported = None;
    loop {
        let (end, is_up) = {
            let current = status.borrow_and_update();
            (current.last_end.clone(), matches!(current.state, State::Up(_)))
        };
        if let Some(end) = end.filter(|end| reported.as_ref() != Some(end)) {
            reporter.set_failure(Some(failure_of(&end)));
            reported = Some(end);
        }
        if is_up {
            reporter.record_success();
        }
        if status.changed().await.is_err() {
            return;
        }
    }
}

/// Describes how a process ended, with its last lines of stderr.
pub(crate) fn failure_of(end: &LastEnd) -> ServerFailure {
    let words = last_stderr_lines(&end.stderr)
        .map(|words| format!(". Last lines of stderr: {words}"))
        .unwrap_or_default();
    ServerFailure {
        at: end.at,
        reason: steadfast_redact::excerpt(&format!("{}{words}", end.end), LONGEST_REASON),
    }
}
