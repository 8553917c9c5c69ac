//! Calls whose tool is run by the host: `begin`, `report`, `heartbeat`, `cancel`.
//!
//! The host asks for permission to run, runs its tool, and reports the result. Everything in between is the same
//! machine as for other calls. The response to a report may be another order to run: then the attempt failed and is to
//! be repeated, and the backoff has already passed.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::call::RunBy;
use steadfast_core::classify::{Fault, Source, Transport};
use steadfast_core::dedupe::RunId;
use steadfast_core::envelope::CallEnvelope;
use tokio::sync::{Notify, oneshot};

use crate::engine::{CallOptions, Called, Desk, Engine};
use crate::tool::{Answer, Attempt, NotDone, Tool};

/// Id of a call that the host runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The next action of the host.
#[derive(Clone, Debug)]
pub enum Begun {
    /// Run the tool, then report.
    Run(Order),
    /// Do nothing: this is the response to the call.
    Answered(Box<Called>),
}

/// Permission to run a tool once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The call.
    pub call: Ticket,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Time at which the attempt counts as lost, unless the host sends heartbeats.
    pub deadline: Option<Timestamp>,
    /// Id of the run, for upstreams that deduplicate.
    pub run: RunId,
}

/// Response to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulse {
    /// Continue.
    Wanted,
    /// The result is no longer wanted. Stop if that is safe, and report the outcome.
    Unwanted,
}

/// Reason for the rejection of a report or heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostError {
    /// There is no such call: it was never begun, or ended long ago.
    NoSuchCall,
    /// This attempt was ended. Another one may have been ordered since.
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

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchCall => {
                "there is no such call: it was never begun here, or it has ended. Begin it again"
            }
            Self::NotThisAttempt => {
                "this attempt was ended before the report came; what it did is not known here"
            }
        })
    }
}

impl std::error::Error for HostError {}

/// The calls that hosts run.
#[derive(Debug, Default)]
pub(crate) struct HostCalls {
    calls: Mutex<Numbered>,
}

#[derive(Debug, Default)]
struct Numbered {
    next: u64,
    calls: BTreeMap<Ticket, Arc<HostCall>>,
}

/// Maximum number of calls. Beyond it, the oldest are removed, for hosts that never came back.
const MOST: usize = 10_000;

/// A call that a host runs.
#[derive(Debug)]
struct HostCall {
    desk: Arc<Desk>,
    ordered: Mutex<Option<Ordered>>,
    changed: Notify,
}

/// An order that was given to the host, and the channel for its report.
#[derive(Debug)]
struct Ordered {
    attempt: u32,
    deadline: Option<Timestamp>,
    run: RunId,
    fetched: bool,
    report: oneshot::Sender<Answer>,
}

impl Engine {
    /// Begins a call whose tool the host runs, and returns an order to run it or the response.
    pub async fn begin(&self, envelope: CallEnvelope, options: CallOptions) -> Begun {
        let host = HostTool::default();
        let slot = host.call.clone();
        let mut calling = self.dispatch(Arc::new(envelope), Arc::new(host), options, RunBy::Host);
        let call = Arc::new(HostCall {
            desk: calling.desk.clone(),
            ordered: Mutex::default(),
            changed: Notify::new(),
        });
        *slot.lock() = Some(call.clone());
        let ticket = self.inner.hosted.enter(call.clone());
        calling.detach();
        self.next(ticket, &call).await
    }

    /// Reports the result of an attempt by the host.
    pub async fn report(&self, call: Ticket, attempt: u32, answer: Answer) -> Result<Begun, HostError> {
        let host = self.inner.hosted.find(call)?;
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
    pub fn heartbeat(&self, call: Ticket, attempt: u32) -> Result<Pulse, HostError> {
        let host = self.inner.hosted.find(call)?;
        let ordered = host.ordered.lock();
        let ordered = ordered.as_ref().filter(|ordered| ordered.attempt == attempt);
        let Some(ordered) = ordered else { return Err(HostError::NotThisAttempt) };
        host.desk.control.progress();
        let unwanted = host.desk.unwanted.is_cancelled(attempt) || ordered.report.is_closed();
        Ok(if unwanted { Pulse::Unwanted } else { Pulse::Wanted })
    }

    /// Cancels a call on behalf of its caller.
    pub fn cancel(&self, call: Ticket) -> Result<(), HostError> {
        self.inner.hosted.find(call)?.desk.control.cancel();
        Ok(())
    }

    /// Returns an order that never reached the host, so that nothing ran. The call ends and does not count for its
    /// tool.
    pub async fn give_back(&self, order: &Order) -> Result<(), HostError> {
        let gone = Source::Transport { error: Transport::ConnectionClosed, written: false };
        let fault = Fault::new(gone, "the host was gone before it received the order to run");
        self.report(order.call, order.attempt, Err(NotDone::NotRun(fault))).await.map(|_| ())
    }

    /// Waits for the next order or for the response.
    async fn next(&self, call: Ticket, host: &HostCall) -> Begun {
        loop {
            let (answered, changed) = (host.desk.answered.notified(), host.changed.notified());
            if let Some(called) = host.desk.take() {
                self.inner.hosted.leave(call);
                return Begun::Answered(Box::new(called));
            }
            if let Some(order) = host.order(call) {
                return Begun::Run(order);
            }
            tokio::select! {
                () = answered => {}
                () = changed => {}
            }
        }
    }
}

impl HostCalls {
    fn enter(&self, call: Arc<HostCall>) -> Ticket {
        let mut numbered = self.calls.lock();
        numbered.next += 1;
        let ticket = Ticket(numbered.next);
        numbered.calls.insert(ticket, call);
        if numbered.calls.len() > MOST {
            numbered.calls.pop_first();
        }
        ticket
    }

    fn find(&self, call: Ticket) -> Result<Arc<HostCall>, HostError> {
        self.calls.lock().calls.get(&call).cloned().ok_or(HostError::NoSuchCall)
    }

    fn leave(&self, call: Ticket) {
        self.calls.lock().calls.remove(&call);
    }
}

impl HostCall {
    fn order(&self, call: Ticket) -> Option<Order> {
        let mut ordered = self.ordered.lock();
        let ordered = ordered.as_mut().filter(|ordered| !ordered.fetched)?;
        ordered.fetched = true;
        Some(Order { call, attempt: ordered.attempt, deadline: ordered.deadline, run: ordered.run.clone() })
    }
}

/// The tool that represents the host: an attempt is an order, and lasts until its report.
#[derive(Debug, Default)]
struct HostTool {
    call: Arc<Mutex<Option<Arc<HostCall>>>>,
}

impl Tool for HostTool {
    fn run(&self, attempt: Attempt) -> impl Future<Output = Answer> + Send + 'static {
        let call = self.call.lock().clone();
        async move {
            let (report, reported) = oneshot::channel();
            if let Some(call) = call {
                *call.ordered.lock() = Some(Ordered {
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
