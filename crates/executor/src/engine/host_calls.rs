//! Calls whose tool is run by the host: `begin`, `report`, `heartbeat`, `cancel`.

use steadfast_core::envelope::CallEnvelope;

use super::api::Engine;
use crate::call::options::CallOptions;
use crate::call::tool::ToolResult;
use crate::call::slot::CallResponse;
use crate::drive::answered::AnsweredCall;
use crate::drive::host_calls::{HeartbeatReply, HostCallId, HostError, HostStep, OrderEnd, RunOrder};

impl Engine {
    /// Begins a call whose tool the host runs, and returns an order to run it or the response.
    ///
    /// It runs in place and completes at the first poll if nothing has to wait. It may be polled on a thread without a
    /// runtime. Dropping the future is a disconnect: a call that has not started ends, and an order that was not
    /// received is returned.
    pub async fn begin(&self, envelope: CallEnvelope, options: CallOptions) -> HostStep {
        self.inner.hosted.begin(&self.inner.calls, envelope, options).await
    }

    /// Reports the result of an attempt by the host. It runs in place and may be dropped, as [`begin`](Self::begin).
    pub async fn report(
        &self,
        call: HostCallId,
        attempt: u32,
        answer: ToolResult,
    ) -> Result<HostStep, HostError> {
        self.inner.hosted.report(call, attempt, answer).await
    }

    /// Reports that the host's tool still runs.
    pub fn heartbeat(&self, call: HostCallId, attempt: u32) -> Result<HeartbeatReply, HostError> {
        self.inner.hosted.heartbeat(call, attempt)
    }

    /// Waits for the end of an order: the result is no longer wanted, or the order has been reported. The future belongs
    /// to no thread and may outlive the engine.
    pub fn order_end(&self, order: &RunOrder) -> impl Future<Output = OrderEnd> + Send + use<> {
        self.inner.hosted.order_end(order)
    }

    /// Counts a call that the host answered itself, because it never reached the tool or ran without an order. It
    /// counts for the loop guard, trust, scores and journals. It claims nothing, waits for no approval and passes no
    /// circuit breaker.
    ///
    /// The response is the host's answer with the remarks of the guard for the model, and its
    /// [verdict](CallResponse::verdict) for the host.
    pub fn answered(
        &self,
        envelope: CallEnvelope,
        options: CallOptions,
        answer: AnsweredCall,
    ) -> CallResponse {
        self.inner.calls.answered(envelope, options, answer)
    }

    /// Cancels a call on behalf of its caller.
    pub fn cancel(&self, call: HostCallId) -> Result<(), HostError> {
        self.inner.hosted.cancel(call)
    }

    /// Returns an order that never reached the host, so that nothing ran. The call ends and does not count for its
    /// tool.
    pub async fn return_order(&self, order: &RunOrder) -> Result<(), HostError> {
        self.inner.hosted.return_order(order).await
    }
}
