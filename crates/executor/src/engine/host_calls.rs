//! Calls whose tool is run by the host: `begin`, `report`, `heartbeat`, `cancel`.

use steadfast_core::envelope::CallEnvelope;

use super::api::Engine;
use crate::call::options::CallOptions;
use crate::call::tool::ToolResult;
use crate::drive::host_calls::{HeartbeatReply, HostCallId, HostError, HostStep, RunOrder};

impl Engine {
    /// Begins a call whose tool the host runs, and returns an order to run it or the response.
    pub async fn begin(&self, envelope: CallEnvelope, options: CallOptions) -> HostStep {
        self.inner.hosted.begin(&self.inner.calls, envelope, options).await
    }

    /// Reports the result of an attempt by the host.
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
