//! Calls whose tool is run by the host: `begin`, `report`, `heartbeat`, `cancel`.
//!
//! The host asks for permission to run, runs its tool, and reports the result. Everything in between is the same
//! machine as for other calls. The response to a report may be another order to run: then the attempt failed and is to
//! be repeated, and the backoff has already passed.
//!
//! Both run the machine in place, on the thread of the host ([`CallTask`]). If nothing has to wait, they complete at
//! their first poll.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::call::RunnerKind;
use steadfast_core::classify::{AttemptFault, FaultSource, TransportError};
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::RunId;
use tokio::sync::{Notify, oneshot};

use super::services::CallServices;
use crate::call::options::{CallOptions, HostLocation};
use crate::call::slot::{CallResponse, CallerSlot};
use crate::call::task::CallTask;
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

/// End of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderEnd {
    /// The result is no longer wanted. Stop the tool if that is safe, and report the outcome.
    NotWanted,
    /// The order was reported or returned.
    Reported,
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
    task: Arc<CallTask>,
    orders: Arc<HostOrders>,
    location: HostLocation,
}

/// The orders of a call to its host.
#[derive(Debug, Default)]
struct HostOrders {
    state: Mutex<OrderState>,
    changed: Notify,
    /// The last attempt whose report came.
    reported: AtomicU32,
}

/// State of the current order.
#[derive(Debug, Default)]
enum OrderState {
    /// There is no order, or its report has come.
    #[default]
    None,
    /// The order was made.
    Pending(PendingOrder),
    /// The host has left without the order or the response. It gets no further order.
    Abandoned,
}

/// An order to the host, and the channel for its report.
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
        let orders = Arc::<HostOrders>::default();
        let tool = Arc::new(HostTool { orders: orders.clone() });
        let location = options.host.location;
        let run_by = match location {
            HostLocation::Remote => RunnerKind::Host,
            HostLocation::InProcess => RunnerKind::InProcessHost,
        };
        let calling = calls.dispatch(Arc::new(envelope), tool, options, run_by);
        let desk = calling.desk.clone();
        let call = Arc::new(HostCall { desk, task: calling.into_task(), orders, location });
        let ticket = self.enter(call.clone());
        let presence = HostPresence::new(self, ticket, &call);
        call.task.change_and_poll(|| ());
        presence.next_step().await
    }

    /// Reports the result of an attempt by the host.
    pub(crate) async fn report(
        &self,
        ticket: HostCallId,
        attempt: u32,
        answer: ToolResult,
    ) -> Result<HostStep, HostError> {
        let call = self.find(ticket)?;
        let reported = match call.orders.take(attempt) {
            Some(report) => {
                let send = || {
                    let sent = report.send(answer).is_ok();
                    if sent {
                        call.orders.reported.store(attempt, Ordering::Release);
                    }
                    sent
                };
                let sent = call.task.change_and_poll(send);
                call.orders.changed.notify_waiters();
                sent
            }
            None => false,
        };
        match (reported, call.location) {
            (true, _) => {}
            // The attempt was ended before. The host still has its call.
            (false, HostLocation::Remote) => return Err(HostError::NotThisAttempt),
            // It was told so, and it is here to continue: with the next attempt, or with the response.
            (false, HostLocation::InProcess) if call.orders.has_ended(attempt) => {}
            (false, HostLocation::InProcess) => return Err(HostError::NotThisAttempt),
        }
        Ok(HostPresence::new(self, ticket, &call).next_step().await)
    }

    /// Reports that the host's tool still runs.
    pub(crate) fn heartbeat(&self, call: HostCallId, attempt: u32) -> Result<HeartbeatReply, HostError> {
        let host = self.find(call)?;
        let is_closed = host.orders.is_report_closed(attempt)?;
        host.desk.control.progress();
        let unwanted = is_closed || host.desk.unwanted.is_cancelled(attempt);
        Ok(if unwanted { HeartbeatReply::Stop } else { HeartbeatReply::Continue })
    }

    /// Cancels a call on behalf of its caller.
    pub(crate) fn cancel(&self, call: HostCallId) -> Result<(), HostError> {
        self.find(call)?.desk.control.cancel();
        Ok(())
    }

    /// Waits for the end of an order.
    pub(crate) fn order_end(&self, order: &RunOrder) -> impl Future<Output = OrderEnd> + Send + use<> {
        let (call, attempt) = (self.find(order.call).ok(), order.attempt);
        async move {
            let Some(call) = call else { return OrderEnd::Reported };
            loop {
                let changed = call.orders.changed.notified();
                if call.desk.unwanted.is_cancelled(attempt) {
                    return OrderEnd::NotWanted;
                }
                if call.orders.is_report_closed(attempt).is_err() {
                    return OrderEnd::Reported;
                }
                tokio::select! {
                    () = call.desk.unwanted.cancelled(attempt) => {}
                    () = changed => {}
                }
            }
        }
    }

    /// Returns an order that never reached the host, so that nothing ran. The call ends and does not count for its
    /// tool.
    pub(crate) async fn return_order(&self, order: &RunOrder) -> Result<(), HostError> {
        self.report(order.call, order.attempt, Err(not_received())).await.map(|_| ())
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

impl HostOrders {
    /// Makes an order, and returns the receiver of its report. Returns `None` if the host has left.
    fn make(&self, attempt: &Attempt) -> Option<oneshot::Receiver<ToolResult>> {
        let (report, reported) = oneshot::channel();
        {
            let mut state = self.state.lock();
            if matches!(*state, OrderState::Abandoned) {
                return None;
            }
            *state = OrderState::Pending(PendingOrder {
                attempt: attempt.number,
                deadline: attempt.deadline,
                run: attempt.run.clone(),
                fetched: false,
                report,
            });
        }
        self.changed.notify_waiters();
        Some(reported)
    }

    /// Returns the order if the host does not have it yet.
    fn fetch(&self, call: HostCallId) -> Option<RunOrder> {
        let mut state = self.state.lock();
        let OrderState::Pending(order) = &mut *state else { return None };
        if std::mem::replace(&mut order.fetched, true) {
            return None;
        }
        Some(RunOrder { call, attempt: order.attempt, deadline: order.deadline, run: order.run.clone() })
    }

    /// Takes the channel for the report of this attempt.
    fn take(&self, attempt: u32) -> Option<oneshot::Sender<ToolResult>> {
        let mut state = self.state.lock();
        match std::mem::take(&mut *state) {
            OrderState::Pending(order) if order.attempt == attempt => Some(order.report),
            other @ (OrderState::None | OrderState::Pending(_) | OrderState::Abandoned) => {
                *state = other;
                None
            }
        }
    }

    /// Returns true if this attempt was ordered and ended without its report, and the host has no later order.
    fn has_ended(&self, attempt: u32) -> bool {
        if attempt <= self.reported.load(Ordering::Acquire) {
            return false;
        }
        match &*self.state.lock() {
            OrderState::Pending(order) => order.attempt > attempt && !order.fetched,
            OrderState::None => true,
            OrderState::Abandoned => false,
        }
    }

    /// Returns true if nothing waits for the report of this attempt any more.
    fn is_report_closed(&self, attempt: u32) -> Result<bool, HostError> {
        match &*self.state.lock() {
            OrderState::Pending(order) if order.attempt == attempt => Ok(order.report.is_closed()),
            OrderState::None | OrderState::Pending(_) | OrderState::Abandoned => {
                Err(HostError::NotThisAttempt)
            }
        }
    }

    /// Ends all orders, because the host has left. Returns the channel of an order that the host did not receive.
    fn abandon(&self) -> Option<oneshot::Sender<ToolResult>> {
        match std::mem::replace(&mut *self.state.lock(), OrderState::Abandoned) {
            OrderState::Pending(order) => Some(order.report),
            OrderState::None | OrderState::Abandoned => None,
        }
    }
}

/// A host that waits for its next step. If it leaves before it receives the step, the call learns that: an order that
/// the host did not receive is returned, because no attempt was made.
struct HostPresence<'c> {
    calls: &'c HostCalls,
    ticket: HostCallId,
    call: &'c HostCall,
    is_waiting: bool,
}

impl<'c> HostPresence<'c> {
    const fn new(calls: &'c HostCalls, ticket: HostCallId, call: &'c HostCall) -> Self {
        Self { calls, ticket, call, is_waiting: true }
    }

    /// Waits for the next order or for the response.
    async fn next_step(self) -> HostStep {
        loop {
            let (answered, changed) =
                (self.call.desk.answered.notified(), self.call.orders.changed.notified());
            if let Some(called) = self.call.desk.take() {
                self.calls.leave(self.ticket);
                self.stay();
                return HostStep::Answered(Box::new(called));
            }
            if let Some(order) = self.call.orders.fetch(self.ticket) {
                self.stay();
                return HostStep::Run(order);
            }
            self.call.task.resume_panic();
            tokio::select! {
                () = answered => {}
                () = changed => {}
            }
        }
    }

    /// Ends the wait of a host that has not left.
    fn stay(mut self) {
        self.is_waiting = false;
    }
}

impl Drop for HostPresence<'_> {
    fn drop(&mut self) {
        if !self.is_waiting {
            return;
        }
        self.calls.leave(self.ticket);
        match self.call.orders.abandon() {
            // If nothing receives it, the attempt was ended before.
            Some(report) => drop(report.send(Err(not_received()))),
            None => self.call.desk.control.disconnect(),
        }
        self.call.task.schedule();
    }
}

/// Returns the end of an attempt whose order never reached the host.
fn not_received() -> AttemptError {
    let source = FaultSource::Transport { error: TransportError::ConnectionClosed, written: false };
    AttemptError::NotRun(AttemptFault::new(source, "the host was gone before it received the order to run"))
}

/// The tool that represents the host: an attempt is an order, and lasts until its report.
#[derive(Debug)]
struct HostTool {
    orders: Arc<HostOrders>,
}

impl ToolHandler for HostTool {
    fn run(&self, attempt: Attempt) -> impl Future<Output = ToolResult> + Send + 'static {
        let orders = self.orders.clone();
        async move {
            let Some(reported) = orders.make(&attempt) else { return Err(not_received()) };
            match reported.await {
                Ok(answer) => answer,
                // The host's order was dropped; only the timeout ends the attempt now.
                Err(_) => std::future::pending().await,
            }
        }
    }
}
