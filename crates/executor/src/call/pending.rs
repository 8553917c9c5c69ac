//! A call in flight, for its caller.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

use super::slot::{CallResponse, CallerSlot};
use super::task::{CallTask, DriveFuture};

/// A call in flight. Dropping it leaves the call to the engine.
///
/// It may be polled and dropped on any thread, also on one without a runtime. Its timers and the rest of the call
/// belong to the runtime that the engine was started on.
#[must_use = "a call that is not awaited is a disconnect"]
pub struct PendingCall {
    pub(crate) drive: Option<DriveFuture>,
    pub(crate) desk: Arc<CallerSlot>,
    /// The runtime of the engine.
    pub(crate) runtime: Handle,
}

impl PendingCall {
    /// Cancels the call. The call must still be awaited, because the cancellation may come too late.
    pub fn cancel(&self) {
        self.desk.control.cancel();
    }

    /// Returns true if no mechanism acts on the call, by the policy that it began with. Returns false until the call
    /// has begun, because its policy is not known before.
    pub fn is_bypassed(&self) -> bool {
        self.desk.left_alone.load(Ordering::Acquire)
    }

    /// Returns a handle that cancels the call from elsewhere.
    pub fn canceller(&self) -> CallCanceller {
        CallCanceller { desk: self.desk.clone() }
    }

    /// Returns a receiver of the progress signals of the call's attempts.
    pub fn progress_signals(&self) -> ProgressSignals {
        ProgressSignals { desk: self.desk.clone(), last_count: 0 }
    }

    /// Makes a task of the call, which its host may also poll in place. Nothing has polled it yet.
    pub(crate) fn into_task(mut self) -> Arc<CallTask> {
        CallTask::new(self.drive.take(), self.desk.clone(), self.runtime.clone())
    }

    /// Moves the rest of the call to a task of its own.
    fn detach(&mut self) {
        if let Some(drive) = self.drive.take() {
            self.runtime.spawn(drive);
        }
    }
}

impl Future for PendingCall {
    type Output = CallResponse;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CallResponse> {
        let this = self.get_mut();
        if let Some(drive) = &mut this.drive {
            // Timers belong to the runtime that the call is moved to when its caller leaves.
            let _entered = this.runtime.enter();
            if drive.as_mut().poll(context).is_ready() {
                this.drive = None;
            }
        }
        let Some(called) = this.desk.take() else { return Poll::Pending };
        // The caller has its response: the rest continues without it.
        this.detach();
        Poll::Ready(called)
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if self.drive.is_some() {
            self.desk.control.disconnect();
            self.detach();
        }
    }
}

impl fmt::Debug for PendingCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingCall").field("over", &self.drive.is_none()).finish_non_exhaustive()
    }
}

/// A handle that cancels a call from elsewhere.
#[derive(Clone, Debug)]
pub struct CallCanceller {
    desk: Arc<CallerSlot>,
}

impl CallCanceller {
    /// Cancels the call. The cancellation may come too late.
    pub fn cancel(&self) {
        self.desk.control.cancel();
    }
}

/// A receiver of the progress signals of a call's attempts. A call that waits for another run has none.
#[derive(Debug)]
pub struct ProgressSignals {
    desk: Arc<CallerSlot>,
    last_count: u32,
}

impl ProgressSignals {
    /// Waits for the next signal. Several signals since the last wait count as one.
    pub async fn next(&mut self) {
        self.last_count = self.desk.control.wait_for_progress(self.last_count).await;
    }
}
