//! Calls whose tool is run by the host: `begin`, `report`, `heartbeat`, `cancel`.
//!
//! The host asks for permission to run, runs its tool, and reports the result. Everything in between is the same
//! machine as for other calls. The response to a report may be another order to run: then the attempt failed and is to
//! be repeated, and the backoff has already passed.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::call::RunnerKind;
use steadfast_core::classify::{AttemptFault, FaultSource, TransportError};
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::RunId;
use tokio::sync::{Notify, oneshot};

use super::services::CallServices;
use crate::call::options::CallOptions;
use crate::call::slot::{CallResponse, CallerSlot};
use crate::call::tool::{Attempt, AttemptError, ToolHandler, ToolResult};

/// Id of a call that the host runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostCallId(pub u64);

/// The next action of the host.
#[derive(Clone, Debug)]
pub enum HostStep {
    /// Run the tool, then report.
    Run(RunOrder),
    /// Do nothing: this is the response to the call.
    Answered(Box<CallResponse>),
}

/// Permission to run a tool once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOrder {
    /// The call.
    pub call: HostCallId,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Time at which the attempt counts as lost, unless the host sends heartbeats.
    pub deadline: Option<Timestamp>,
    /// Id of the run, for upstreams that deduplicate.
    pub run: RunId,
}

/// Response to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeartbeatReply {
    /// Continue.
    Continue,
    /// The result is no longer wanted. Stop if that is safe, and report the outcome.
    Stop,
}

/// Reason for the rejection of a report or heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// There is no such call: it was never begun, or ended long ago.
    #[error("there is no such call: it was never begun here, or it has ended. Begin it again")]
    NoSuchCall,
    /// This attempt was ended. Another one may have been ordered since.
    #[error("this attempt was ended before the report came; what it did is not known here")]
    NotThisAttempt,
}

impl HostError {
    /// Returns true if the call itself does not exist, rather than this attempt of it.
    pub const fn is_no_such_call(&self) -> bool {
        match self {
            Self::NoSuchCall => true,
            Self::NotThisAttempt => false,
        }
    }
}

/// The calls that hosts run.
#[derive(Debug, Default)]
pub(crate) struct HostCalls {
    calls: Mutex<HostCallTable>,
}

#[derive(Debug, Default)]
struct HostCallTable {
    next: u64,
    calls: BTreeMap<HostCallId, Arc<HostCall>>,
}

/// Maximum number of calls. Beyond it, the oldest are removed, for hosts that never came back.
const MOST: usize = 10_000;

/// A call that a host runs.
#[derive(Debug)]
struct HostCall {
    desk: Arc<CallerSlot>,
    ordered: Mutex<Option<PendingOrder>>,
    changed: Notify,
}

/// An order that was given to the host, and the channel for its report.
#[derive(Debug)]
struct PendingOrder {
    attempt: u32,
    deadline: Option<Timestamp>,
    run: RunId,
    fetched: bool,
    report: oneshot::Sender<ToolResult>,
}

impl HostCalls {
    /// Begins a call whose tool the host runs, and returns an order to run it or the response.
    pub(crate) async fn begin(
        &self,
        calls: &Arc<CallServices>,
        envelope: CallEnvelope,
        options: CallOptions,
    ) -> HostStep {
        let host = HostTool::default();
        let slot = host.call.clone();
        let mut calling = calls.dispatch(Arc::new(envelope), Arc::new(host), options, RunnerKind::Host);
        let call = Arc::new(HostCall {
            desk: calling.desk.clone(),
            ordered: Mutex::default(),
            changed: Notify::new(),
        });
        *slot.lock() = Some(call.clone());
        let ticket = self.enter(call.clone());
        calling.detach();
        self.next(ticket, &call).await
    }

    /// Reports the result of an attempt by the host.
    pub(crate) async fn report(
        &self,
        call: HostCallId,
        attempt: u32,
        answer: ToolResult,
    ) -> Result<HostStep, HostError> {
        let host = self.find(call)?;
        let report = {
            let mut ordered = host.ordered.lock();
            match ordered.take_if(|ordered| ordered.attempt == attempt) {
                Some(ordered) => ordered.report,
                None => return Err(HostError::NotThisAttempt),
            }
        };
        // The attempt may have been ended a moment ago; then nothing receives the report.
        report.send(answer).map_err(|_| HostError::NotThisAttempt)?;
        Ok(self.next(call, &host).await)
    }

    /// Reports that the host's tool still runs.
    pub(crate) fn heartbeat(&self, call: HostCallId, attempt: u32) -> Result<HeartbeatReply, HostError> {
        let host = self.find(call)?;
        let ordered = host.ordered.lock();
        let ordered = ordered.as_ref().filter(|ordered| ordered.attempt == attempt);
        let Some(ordered) = ordered else { return Err(HostError::NotThisAttempt) };
        host.desk.control.progress();
        let unwanted = host.desk.unwanted.is_cancelled(attempt) || ordered.report.is_closed();
        Ok(if unwanted { HeartbeatReply::Stop } else { HeartbeatReply::Continue })
    }

    /// Cancels a call on behalf of its caller.
    pub(crate) fn cancel(&self, call: HostCallId) -> Result<(), HostError> {
        self.find(call)?.desk.control.cancel();
        Ok(())
    }

    /// Returns an order that never reached the host, so that nothing ran. The call ends and does not count for its
    /// tool.
    pub(crate) async fn return_order(&self, order: &RunOrder) -> Result<(), HostError> {
        let source = FaultSource::Transport { error: TransportError::ConnectionClosed, written: false };
        let fault = AttemptFault::new(source, "the host was gone before it received the order to run");
        self.report(order.call, order.attempt, Err(AttemptError::NotRun(fault))).await.map(|_| ())
    }

    /// Waits for the next order or for the response.
    async fn next(&self, call: HostCallId, host: &HostCall) -> HostStep {
        loop {
            let (answered, changed) = (host.desk.answered.notified(), host.changed.notified());
            if let Some(called) = host.desk.take() {
                self.leave(call);
                return HostStep::Answered(Box::new(called));
            }
            if let Some(order) = host.order(call) {
                return HostStep::Run(order);
            }
            tokio::select! {
                () = answered => {}
                () = changed => {}
            }
        }
    }
}

impl HostCalls {
    fn enter(&self, call: Arc<HostCall>) -> HostCallId {
        let mut numbered = self.calls.lock();
        numbered.next += 1;
        let ticket = HostCallId(numbered.next);
        numbered.calls.insert(ticket, call);
        if numbered.calls.len() > MOST {
            numbered.calls.pop_first();
        }
        ticket
    }

    fn find(&self, call: HostCallId) -> Result<Arc<HostCall>, HostError> {
        self.calls.lock().calls.get(&call).cloned().ok_or(HostError::NoSuchCall)
    }

    fn leave(&self, call: HostCallId) {
        self.calls.lock().calls.remove(&call);
    }
}

impl HostCall {
    fn order(&self, call: HostCallId) -> Option<RunOrder> {
        let mut ordered = self.ordered.lock();
        let ordered = ordered.as_mut().filter(|ordered| !ordered.fetched)?;
        ordered.fetched = true;
        Some(RunOrder {
            call,
            attempt: ordered.attempt,
            deadline: ordered.deadline,
            run: ordered.run.clone(),
        })
    }
}

/// The tool that represents the host: an attempt is an order, and lasts until its report.
#[derive(Debug, Default)]
struct HostTool {
    call: Arc<Mutex<Option<Arc<HostCall>>>>,
}

impl ToolHandler for HostTool {
    fn run(&self, attempt: Attempt) -> impl Future<Output = ToolResult> + Send + 'static {
        let call = self.call.lock().clone();
        async move {
            let (report, reported) = oneshot::channel();
            if let Some(call) = call {
                *call.ordered.lock() = Some(PendingOrder {
                    attempt: attempt.number,
                    deadline: attempt.deadline,
                    run: attempt.run.clone(),
                    fetched: false,
                    report,
                });
                call.changed.notify_waiters();
            }
            match reported.await {
                Ok(answer) => answer,
                // The host's order was dropped; only the timeout ends the attempt now.
                Err(_) => std::future::pending().await,
            }
        }
    }
}
