//! The entry point of the crate: calls, subscriptions and shutdown.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::call::RunnerKind;
use steadfast_core::envelope::{CallEnvelope, EnvelopeError, ErrorBody, UnknownFieldPolicy};
use steadfast_core::id::ActorId;
use steadfast_core::notification::Notification;
use steadfast_core::policy::CallPolicy;
use tokio::sync::broadcast;
use tokio_util::sync::DropGuard;

use crate::admin::engine_admin::EngineAdmin;
use crate::call::options::CallOptions;
use crate::call::pending::PendingCall;
use crate::call::tool::ToolHandler;
use crate::drive::host_calls::HostCalls;
use crate::drive::services::CallServices;
use crate::observe::listener::EngineEvent;
use crate::shared::tool_lists::ToolLists;
use crate::turns::runner::EngineTurns;
use crate::turns::trace_journal::TraceJournal;
use crate::writes::deliveries::DeliveryHandle;

/// Runs calls with deduplication, retries, circuit breakers, approvals and the other mechanisms of Steadfast.
/// Cheap to clone; all clones are one engine.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(super) inner: Arc<EngineInner>,
    /// Ends the engine's own tasks when the last clone is dropped.
    pub(super) _life: Arc<DropGuard>,
}

/// The components that all clones of an engine share.
pub(super) struct EngineInner {
    pub(super) calls: Arc<CallServices>,
    pub(super) hosted: HostCalls,
    pub(super) turns: EngineTurns,
    pub(super) traces: Arc<TraceJournal>,
    pub(super) tool_lists: Arc<ToolLists>,
}

/// Result of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownReport {
    /// Number of calls that had to be ended. Their outcome is recorded as unknown, unless they are safe to run again.
    pub aborted: usize,
    /// Number of store operations that did not complete and are lost with this process.
    pub lost: usize,
}

impl Engine {
    /// Parses a call. A call that cannot be parsed is reported to the listeners, and the error is the response.
    pub fn read(&self, text: &[u8], unknown: UnknownFieldPolicy) -> Result<CallEnvelope, EnvelopeError> {
        self.read_from(text, unknown, None)
    }

    /// Parses a call like [`read`](Self::read). If the sender is known, it becomes the actor of a call that names none.
    pub fn read_from(
        &self,
        text: &[u8],
        unknown: UnknownFieldPolicy,
        sender: Option<&ActorId>,
    ) -> Result<CallEnvelope, EnvelopeError> {
        CallEnvelope::parse_from(text, unknown, sender).inspect_err(|error| {
            self.inner.calls.reject(None, &ErrorBody::from(error));
        })
    }

    /// Makes a call. The tool runs as often as the policy allows, and the future completes in bounded time.
    ///
    /// Dropping the future is a disconnect: an attempt that has not started is abandoned and its claim released. One
    /// that has started continues, and its result is recorded.
    pub fn call(&self, envelope: CallEnvelope, tool: impl ToolHandler) -> PendingCall {
        self.call_with(envelope, tool, CallOptions::default())
    }

    /// Makes a call like [`call`](Self::call), with facts that the envelope does not contain.
    pub fn call_with(
        &self,
        envelope: CallEnvelope,
        tool: impl ToolHandler,
        options: CallOptions,
    ) -> PendingCall {
        self.inner.calls.dispatch(Arc::new(envelope), Arc::new(tool), options, RunnerKind::Driver)
    }

    /// Marks a response as delivered. From now on, equal calls without an idempotency key are new calls.
    pub fn mark_delivered(&self, arrival: DeliveryHandle) {
        self.inner.calls.mark_delivered(arrival);
    }

    /// Returns the policy for an envelope, for surfaces that do more with a tool's server than call it.
    pub fn policy_of(&self, envelope: &CallEnvelope) -> Result<Arc<CallPolicy>, EnvelopeError> {
        self.inner.calls.policies.of_envelope(envelope)
    }

    /// Returns the current time of the engine's clock.
    pub fn now(&self) -> Timestamp {
        self.inner.calls.clock.now()
    }

    /// Subscribes to the events of all calls. A reader that is too slow misses events and gets an error that says so.
    pub fn events(&self) -> broadcast::Receiver<EngineEvent> {
        self.inner.calls.telemetry.stream()
    }

    /// Subscribes to the notifications for operators. A reader that is too slow misses some and gets an error that says
    /// so.
    pub fn notifications(&self) -> broadcast::Receiver<Arc<Notification>> {
        self.inner.calls.telemetry.notifications()
    }

    /// Returns the number of calls in flight.
    pub fn in_flight_calls(&self) -> usize {
        self.inner.calls.gate.in_flight()
    }

    /// Accepts no more calls, waits for those in flight, and ends them after `limit`. Calls that may have taken effect
    /// are recorded with an unknown outcome.
    ///
    /// It also waits for calls whose caller already has a response. These continue only while their record is open: a
    /// result that comes in time is saved and turns the unknown outcome into a known one. Ending them sooner would only
    /// leave calls that an operator has to resolve.
    pub async fn shutdown(&self, limit: Duration) -> ShutdownReport {
        let (calls, state) = (&self.inner.calls, &self.inner.calls.state);
        calls.gate.close();
        let drained = tokio::time::timeout(limit, calls.gate.empty()).await.is_ok();
        let aborted = if drained { 0 } else { self.in_flight_calls() };
        state.stopping.cancel();
        // Calls that were told to end still have a last chance to report and one store operation.
        let _ = tokio::time::timeout(LAST_STEPS, calls.gate.empty()).await;
        let _ = tokio::time::timeout(LAST_STEPS, calls.retries.drain()).await;
        state.background_tasks.close();
        let _ = tokio::time::timeout(LAST_STEPS, state.background_tasks.wait()).await;
        let _ = tokio::time::timeout(LAST_STEPS, calls.persister.write_now()).await;
        let _ = tokio::time::timeout(LAST_STEPS, calls.history.write_now()).await;
        let _ = tokio::time::timeout(LAST_STEPS, calls.failures.write_now()).await;
        let _ = tokio::time::timeout(LAST_STEPS, self.inner.traces.write_now()).await;
        ShutdownReport { aborted, lost: calls.retries.len() }
    }

    /// Returns the component through which operators read and change the state of the engine.
    pub fn admin(&self) -> &EngineAdmin {
        &self.inner.calls.admin
    }
}

impl fmt::Debug for EngineInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("store", &self.calls.store.kind())
            .field("open", &self.calls.gate.in_flight())
            .finish_non_exhaustive()
    }
}

/// Time that calls have to end after they were told to.
const LAST_STEPS: Duration = Duration::from_secs(5);
