//! A call that runs without a caller that polls it, and whose host may poll it in place.
//!
//! A host begins a call and reports its result with two separate calls of the engine. In between, something must handle
//! the timers, the lease and the signals of the call. A spawned task could do all of it, but then each `begin` and each
//! `report` would wait for another thread, which takes about as long as the call itself. So the host polls the call in
//! place, and a task is spawned only if something wakes the call while nobody polls it.
//!
//! ```text
//!           poll in place             pending
//!   Idle ──────────────────▶ Polling ─────────▶ Idle
//!    │                        ▲   │ ready
//!    │ woken                  │   └───────────▶ Ended
//!    ▼      the task starts,  │
//!   Scheduled ────────────────┘
//!              or poll in place
//! ```
//!
//! The call always registers the waker of its own task, so it does not matter which thread polled it last.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::slot::CallerSlot;

/// The future that drives a call from its arrival to its end.
pub(crate) type DriveFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A call that runs without a caller that polls it.
pub(crate) struct CallTask {
    runtime: Handle,
    slot: Arc<CallerSlot>,
    state: Mutex<TaskState>,
}

enum TaskState {
    /// Nothing happens until the call is woken.
    Idle(DriveFuture),
    /// The call was woken, and a task that polls it was spawned.
    Scheduled(DriveFuture),
    /// A thread polls the call. If the call is woken meanwhile, this thread polls it again.
    Polling { woken: bool },
    /// The call ended. If it panicked, the panic is kept for the host that waits.
    Ended(Option<Box<dyn Any + Send>>),
}

/// Maximum number of polls in a row on the thread of a host.
const MOST_POLLS: usize = 8;

impl CallTask {
    /// Creates the task of a call that nothing has polled yet. It starts when it is polled or scheduled.
    pub(crate) fn new(drive: Option<DriveFuture>, slot: Arc<CallerSlot>, runtime: Handle) -> Arc<Self> {
        let state = drive.map_or(TaskState::Ended(None), TaskState::Idle);
        Arc::new(Self { runtime, slot, state: Mutex::new(state) })
    }

    /// Performs `change`, which may wake the call, and polls the call on this thread. If another thread polls it at
    /// this moment, that thread polls it again.
    pub(crate) fn change_and_poll<T>(self: &Arc<Self>, change: impl FnOnce() -> T) -> T {
        let drive = self.take_for_host();
        let changed = change();
        match drive {
            Some(drive) => self.poll(drive),
            // The change may have come after the last poll of the other thread.
            None => self.schedule(),
        }
        changed
    }

    /// Makes sure that the call is polled from now on, by a task if no thread polls it.
    pub(crate) fn schedule(self: &Arc<Self>) {
        let is_idle = {
            let mut state = self.state.lock();
            match mem::replace(&mut *state, TaskState::Polling { woken: true }) {
                TaskState::Idle(drive) => {
                    *state = TaskState::Scheduled(drive);
                    true
                }
                TaskState::Polling { .. } => false,
                other @ (TaskState::Scheduled(_) | TaskState::Ended(_)) => {
                    *state = other;
                    false
                }
            }
        };
        if is_idle {
            self.spawn();
        }
    }

    /// Continues the panic of the call in the host that waits for it, if there was one.
    pub(crate) fn resume_panic(&self) {
        let panic = match &mut *self.state.lock() {
            TaskState::Ended(panic) => panic.take(),
            TaskState::Idle(_) | TaskState::Scheduled(_) | TaskState::Polling { .. } => None,
        };
        if let Some(panic) = panic {
            std::panic::resume_unwind(panic);
        }
    }

    fn spawn(self: &Arc<Self>) {
        let poll = ScheduledPoll(Some(self.clone()));
        self.runtime.spawn(async move { poll.run() });
    }

    /// Takes the future for a poll in place. A task that was spawned for it finds nothing to do.
    fn take_for_host(&self) -> Option<DriveFuture> {
        let mut state = self.state.lock();
        match mem::replace(&mut *state, TaskState::Polling { woken: false }) {
            TaskState::Idle(drive) | TaskState::Scheduled(drive) => Some(drive),
            other @ (TaskState::Polling { .. } | TaskState::Ended(_)) => {
                *state = other;
                None
            }
        }
    }

    /// Takes the future for the spawned task, unless a host was faster.
    fn take_scheduled(&self) -> Option<DriveFuture> {
        let mut state = self.state.lock();
        match mem::replace(&mut *state, TaskState::Polling { woken: false }) {
            TaskState::Scheduled(drive) => Some(drive),
            other @ (TaskState::Idle(_) | TaskState::Polling { .. } | TaskState::Ended(_)) => {
                *state = other;
                None
            }
        }
    }

    /// Polls the call until nothing wakes it meanwhile.
    fn poll(self: &Arc<Self>, mut drive: DriveFuture) {
        let context = self.runtime.enter();
        let waker = Waker::from(self.clone());
        for _ in 0..MOST_POLLS {
            let polled =
                catch_unwind(AssertUnwindSafe(|| drive.as_mut().poll(&mut Context::from_waker(&waker))));
            let panic = match polled {
                Ok(polled) if polled.is_pending() => {
                    let mut state = self.state.lock();
                    // Only the thread that polls changes this state.
                    if let TaskState::Polling { woken } = &mut *state
                        && mem::take(woken)
                    {
                        continue;
                    }
                    *state = TaskState::Idle(drive);
                    return;
                }
                Ok(_) => None,
                Err(panic) => Some(panic),
            };
            let panicked = panic.is_some();
            *self.state.lock() = TaskState::Ended(panic);
            drop(drive);
            if panicked {
                self.slot.answered.notify_waiters();
            }
            return;
        }
        drop(context);
        *self.state.lock() = TaskState::Scheduled(drive);
        self.spawn();
    }
}

impl Wake for CallTask {
    fn wake(self: Arc<Self>) {
        self.schedule();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.schedule();
    }
}

/// The spawned task that polls a call once.
struct ScheduledPoll(Option<Arc<CallTask>>);

impl ScheduledPoll {
    fn run(mut self) {
        if let Some(task) = self.0.take()
            && let Some(drive) = task.take_scheduled()
        {
            task.poll(drive);
        }
    }
}

/// A runtime that shuts down drops its tasks without running them. The call ends with them: it holds wakers of itself,
/// so that nothing else would ever drop it.
impl Drop for ScheduledPoll {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            let drive = task.take_scheduled();
            if drive.is_some() {
                *task.state.lock() = TaskState::Ended(None);
            }
            drop(drive);
        }
    }
}

impl fmt::Debug for CallTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &*self.state.lock() {
            TaskState::Idle(_) => "idle",
            TaskState::Scheduled(_) => "scheduled",
            TaskState::Polling { .. } => "polling",
            TaskState::Ended(_) => "ended",
        };
        f.debug_struct("CallTask").field("state", &state).finish_non_exhaustive()
    }
}
