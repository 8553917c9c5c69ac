//! Futures that the thread of JavaScript polls itself as long as nothing has to wait.
//!
//! A crossing to another thread and back costs more than a whole call. So a call is polled where it was made, and again
//! where its tool reports. Only timers, stores and other calls wake it on a thread of the runtime.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use tokio::runtime::Handle;

/// A task that any thread may poll, one at a time.
pub(crate) struct InPlaceTask {
    state: AtomicU8,
    future: Mutex<Option<TaskFuture>>,
    runtime: &'static Handle,
    /// Called with the payload of a panic, which ends the task.
    panicked: Box<dyn Fn(&(dyn Any + Send)) + Send + Sync>,
}

type TaskFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Nothing is to be done until a wake.
const IDLE: u8 = 0;
/// It was woken. Without `RUNNING`, a thread of the runtime will poll it.
const WOKEN: u8 = 1;
/// A thread polls it, or has taken the right to do so.
const RUNNING: u8 = 2;
/// It has ended.
const DONE: u8 = 4;

impl InPlaceTask {
    /// Creates a task. The caller has the right to poll it, and uses it with [`poll`](Self::poll).
    pub(crate) fn new(
        runtime: &'static Handle,
        future: impl Future<Output = ()> + Send + 'static,
        panicked: impl Fn(&(dyn Any + Send)) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            state: AtomicU8::new(RUNNING),
            future: Mutex::new(Some(Box::pin(future))),
            runtime,
            panicked: Box::new(panicked),
        })
    }

    /// Takes the right to poll, if no other thread polls or is about to. A caller that gets it must call
    /// [`poll`](Self::poll).
    pub(crate) fn claim(&self) -> bool {
        self.state.compare_exchange(IDLE, RUNNING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Polls the task until it waits. The caller has the right to.
    pub(crate) fn poll(self: &Arc<Self>) {
        let _context = self.runtime.enter();
        let waker = Waker::from(self.clone());
        let mut context = Context::from_waker(&waker);
        let mut slot = self.future.lock();
        loop {
            let Some(future) = slot.as_mut() else { return };
            let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context)));
            match polled {
                Ok(Poll::Pending) => {}
                Ok(Poll::Ready(())) => break,
                Err(panic) => {
                    (self.panicked)(&*panic);
                    break;
                }
            }
            if self.state.compare_exchange(RUNNING, IDLE, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return;
            }
            // Woken meanwhile.
            self.state.store(RUNNING, Ordering::Release);
        }
        self.state.store(DONE, Ordering::Release);
        // What the future holds may panic when it is dropped, and may wake this task.
        let ended = slot.take();
        drop(slot);
        let _ = catch_unwind(AssertUnwindSafe(|| drop(ended)));
    }

    fn poll_if_woken(self: &Arc<Self>) {
        if self.state.compare_exchange(WOKEN, RUNNING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.poll();
        }
    }
}

impl Wake for InPlaceTask {
    fn wake(self: Arc<Self>) {
        if self.state.fetch_or(WOKEN, Ordering::AcqRel) == IDLE {
            let runtime = self.runtime;
            runtime.spawn(async move { self.poll_if_woken() });
        }
    }
}
