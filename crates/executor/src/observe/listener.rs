//! Listeners for logs, metrics, spans, the dashboard and user code.
//!
//! An [`EngineListener`] is called in line and must be quick. For slower work, subscribe to the
//! [stream](crate::Engine::events).

use std::fmt;
use std::sync::Arc;

use steadfast_core::Timestamp;
use steadfast_core::breaker::BreakerTransition;
use steadfast_core::call::{CallNotice, CallRequest, CallResult};
use steadfast_core::code::Code;
use steadfast_core::envelope::{CallEnvelope, CallerIdentity, ErrorBody};
use steadfast_core::id::{RequestId, SessionKey, TenantId, ToolRef, TurnId};
use steadfast_core::notification::Notification;
use steadfast_core::policy::CallPolicy;
use steadfast_core::trust::TrustChange;
use steadfast_store::{StoreError, StoreEvent};
use steadfast_turn::trace::{TraceEvent, TraceId, TraceNote, TraceSpan};

use super::audit_entry::AuditEntry;
use super::turn_summary::TurnSummary;
use crate::keys::BreakerKey;

/// A listener for everything that happens. Redact all of it before it leaves the process.
pub trait EngineListener: Send + Sync + 'static {
    /// Called for each fact about a call.
    fn notice(&self, _about: &NoticeContext<'_>, _notice: &CallNotice) {}

    /// Called at the end of a call, with the result that its caller gets, or would have got.
    fn finished(&self, _about: &NoticeContext<'_>, _result: &CallResult) {}

    /// Called for a rejected call: it was malformed, or the limit of calls in flight was reached.
    fn call_rejected(&self, _away: &RejectedCall<'_>) {}

    /// Returns the W3C `traceparent` of the span of this attempt, for the tool to pass on. Called before the attempt
    /// starts and after its notice. The first listener that returns one decides.
    fn traceparent(&self, _about: &NoticeContext<'_>, _attempt: u32) -> Option<String> {
        None
    }

    /// Called for each event of a turn. These include every failure, with the decision of the error handler.
    fn turn(&self, _about: &TurnContext<'_>, _note: &TraceNote) {}

    /// Called when a span of a turn ends: that of a tool that ran for one of its calls or, last, that of the turn
    /// itself. It has the same ids as in the trace, and its texts are redacted like those in the trace. `_turn` is the
    /// current state of the turn. If it has no status in its own span, the caller of the turn is gone.
    fn turn_span(&self, _turn: &TurnSummary, _span: &TurnSpan<'_>) {}

    /// Called for each notification of operators. It is already redacted.
    fn notification(&self, _notification: &Arc<Notification>) {}

    /// Called for each event outside of any call.
    fn system_event(&self, _fact: &SystemEvent<'_>) {}

    /// Called when a store operation failed.
    fn store_failed(&self, _store: &str, _error: &StoreError) {}

    /// Called for each event of the store itself.
    fn store_event(&self, _store: &str, _event: &StoreEvent) {}
}

impl fmt::Debug for dyn EngineListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineListener")
    }
}

/// The call that a fact is about.
#[derive(Clone, Copy, Debug)]
pub struct NoticeContext<'a> {
    /// The envelope of the call.
    pub envelope: &'a CallEnvelope,
    /// The request that was made of it.
    pub request: &'a CallRequest,
    /// The policy that applies to it.
    pub policy: &'a CallPolicy,
    /// Time of the fact.
    pub at: Timestamp,
}

/// The turn that a fact is about.
#[derive(Clone, Copy, Debug)]
pub struct TurnContext<'a> {
    /// Name of the turn in its plan.
    pub turn: Option<&'a TurnId>,
    /// Its trace.
    pub trace: TraceId,
    /// Target of its calls.
    pub target: &'a CallerIdentity,
    /// Its deadline.
    pub deadline: Timestamp,
}

/// A completed span of a turn.
#[derive(Clone, Copy, Debug)]
pub struct TurnSpan<'a> {
    /// The same span as in the trace, with its end.
    pub span: &'a TraceSpan,
    /// The tool that ran. Absent for the turn itself.
    pub tool: Option<&'a ToolRef>,
    /// Failure code, if it failed.
    pub failed: Option<Code>,
    /// True unless the caller of the turn has a span of its own that is not sampled.
    pub sampled: bool,
    /// Events since it began.
    pub(crate) since: &'a [TraceEvent],
}

impl<'a> TurnSpan<'a> {
    /// Returns the events of the span, in order.
    pub fn events(&self) -> impl Iterator<Item = &'a TraceEvent> {
        let id = self.span.span_id;
        self.since.iter().filter(move |event| event.span_id == Some(id))
    }
}

/// A call that was rejected before it began.
#[derive(Clone, Copy, Debug)]
pub struct RejectedCall<'a> {
    /// The envelope of the call. Absent if it could not be parsed.
    pub envelope: Option<&'a CallEnvelope>,
    /// The response.
    pub error: &'a ErrorBody,
    /// Time of the rejection.
    pub at: Timestamp,
}

/// An event outside of any call.
#[derive(Clone, Copy, Debug)]
pub enum SystemEvent<'a> {
    /// An operator changed the state of a breaker.
    Breaker {
        /// Tenant of the breaker.
        tenant: Option<&'a TenantId>,
        /// The breaker.
        key: &'a BreakerKey,
        /// The transition.
        change: &'a BreakerTransition,
    },
    /// A report of a host or a change by an operator changed the trust in a tool or domain.
    Trust {
        /// Tenant of the trust.
        tenant: Option<&'a TenantId>,
        /// The change.
        change: &'a TrustChange,
    },
    /// The number of pending approval requests changed.
    Waiting {
        /// Number before.
        before: usize,
        /// Number now.
        now: usize,
    },
    /// An operator changed something, with the entry of the audit log.
    ByHand(&'a AuditEntry),
}

/// An owned fact about a call.
#[derive(Clone, Debug)]
pub struct EngineEvent {
    /// The request.
    pub request: RequestId,
    /// Number of the call within this process.
    pub call: u64,
    /// The tool.
    pub tool: ToolRef,
    /// Tenant whose data it uses.
    pub tenant: Option<TenantId>,
    /// The session.
    pub session: Option<SessionKey>,
    /// Time of the fact.
    pub at: Timestamp,
    /// The fact.
    pub notice: CallNotice,
}
