//! Listeners for logs, metrics, spans, the dashboard and user code.
//!
//! The machine's notices leave the engine only through this module. A [`Listener`] is called in line and must be quick.
//! For slower work, subscribe to the [stream](crate::Engine::events). If a listener panics, that is logged, and neither
//! the call nor the other listeners are affected.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::breaker::BreakerTransition;
use steadfast_core::call::{CallNotice, CallRequest, CallResult};
use steadfast_core::code::Code;
use steadfast_core::dedupe::ClaimOwner;
use steadfast_core::envelope::{CallEnvelope, CallerIdentity, ErrorBody};
use steadfast_core::id::{Digest, RequestId, SessionKey, TenantId, ToolRef, TurnId};
use steadfast_core::notification::Notification;
use steadfast_core::policy::CallPolicy;
use steadfast_core::trust::TrustChange;
use steadfast_store::{StoreError, StoreEvent};
use steadfast_turn::trace::{TraceEvent, TraceId, TraceNote, TraceSpan};
use tokio::sync::broadcast;

use crate::admin::breakers::BreakerKey;
use crate::observe::audit::AuditEntry;
use crate::turns::TurnSummary;

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
    fn store_event(&self, _store: &str, _news: &StoreEvent) {}
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

/// The listeners and subscriptions of an engine.
pub(crate) struct TelemetryHooks {
    listeners: Vec<Arc<dyn EngineListener>>,
    stream: broadcast::Sender<EngineEvent>,
    notifications: broadcast::Sender<Arc<Notification>>,
    /// Earlier calls whose unknown outcome was already notified.
    told: Mutex<VecDeque<Digest>>,
}

/// Number of events that a slow reader of the stream may be behind before it misses some.
const STREAM: usize = 1024;

impl TelemetryHooks {
    pub(crate) fn to(listeners: Vec<Arc<dyn EngineListener>>) -> Self {
        Self {
            listeners,
            stream: broadcast::Sender::new(STREAM),
            notifications: broadcast::Sender::new(STREAM),
            told: Mutex::default(),
        }
    }

    pub(crate) fn stream(&self) -> broadcast::Receiver<EngineEvent> {
        self.stream.subscribe()
    }

    pub(crate) fn notifications(&self) -> broadcast::Receiver<Arc<Notification>> {
        self.notifications.subscribe()
    }

    /// Returns true if there is any listener or subscriber.
    pub(crate) fn has_listeners(&self) -> bool {
        !self.listeners.is_empty()
            || self.stream.receiver_count() > 0
            || self.notifications.receiver_count() > 0
    }

    /// Sends a notification to operators.
    pub(crate) fn notify(&self, notification: Notification) {
        let notification = Arc::new(notification);
        self.each(|listener| listener.notification(&notification));
        // A send without receivers is no failure.
        let _ = self.notifications.send(notification);
    }

    /// Notifies operators of facts about a call that require their attention.
    fn notify_of(&self, about: &NoticeContext<'_>, notice: &CallNotice) {
        let request = about.request;
        if let CallNotice::TrustChanged(change) = notice {
            let of_call = Notification::trust(request.tenant.as_ref(), change);
            self.notify(Notification {
                session: request.session.clone(),
                request_id: Some(request.id.clone()),
                ..of_call
            });
        }
    }

    /// Notifies operators of an unknown outcome, if the notice reports one.
    pub(crate) fn notify_of_unknown(&self, about: &NoticeContext<'_>, notice: &CallNotice) {
        let request = about.request;
        if let CallNotice::OutcomeUnknown { of_earlier } = notice {
            // The process of the earlier call has sent the notification, unless it died.
            let is_told = of_earlier
                .as_ref()
                .is_some_and(|owner| owner.process == request.process || !self.is_first(owner.digest()));
            if !is_told {
                let unknown = Notification::outcome_unknown(request, about.at);
                self.notify(Notification { for_client: about.policy.trust.notify, ..unknown });
            }
        }
    }

    /// Notifies operators of a call whose process is gone, once.
    pub(crate) fn notify_of_abandoned(&self, owner: &ClaimOwner, notification: Notification) {
        if self.is_first(owner.digest()) {
            self.notify(notification);
        }
    }

    /// Returns true if this call was not checked before, among the last ones that are kept.
    fn is_first(&self, call: Digest) -> bool {
        let mut told = self.told.lock();
        if told.contains(&call) {
            return false;
        }
        if told.len() == STREAM {
            told.pop_front();
        }
        told.push_back(call);
        true
    }

    /// Passes notices on to the listeners and subscribers. `own` is the listener for this call alone.
    pub(crate) fn notices(
        &self,
        about: &NoticeContext<'_>,
        own: Option<&dyn EngineListener>,
        notices: &mut Vec<CallNotice>,
    ) {
        for notice in &*notices {
            self.each(|listener| listener.notice(about, notice));
            own.into_iter().for_each(|own| own.notice(about, notice));
            self.notify_of(about, notice);
        }
        if self.stream.receiver_count() == 0 {
            notices.clear();
            return;
        }
        for notice in notices.drain(..) {
            let request = about.request;
            // A send without receivers is no failure.
            let _ = self.stream.send(EngineEvent {
                request: request.id.clone(),
                call: request.number,
                tool: request.tool.clone(),
                tenant: request.tenant.clone(),
                session: request.session.clone(),
                at: about.at,
                notice,
            });
        }
    }

    /// Reports the end of a call. `about` is only called if there is a listener.
    pub(crate) fn finished<'a>(&self, about: impl FnOnce() -> NoticeContext<'a>, result: &CallResult) {
        if !self.listeners.is_empty() {
            let about = about();
            self.each(|listener| listener.finished(&about, result));
        }
    }

    pub(crate) fn turned_away(&self, away: &RejectedCall<'_>, call: u64) {
        self.each(|listener| listener.call_rejected(away));
        let Some(envelope) = away.envelope.filter(|_| self.stream.receiver_count() > 0) else { return };
        let target = &envelope.target;
        let _ = self.stream.send(EngineEvent {
            request: envelope.request_id.clone(),
            call,
            tool: envelope.tool(),
            tenant: target.tenant_id.clone(),
            session: Some(target.session_key.clone()),
            at: away.at,
            notice: CallNotice::CallBlocked {
                code: away.error.code,
                retriable: away.error.retriable,
                breaker: None,
            },
        });
    }

    pub(crate) fn traceparent<'a>(
        &self,
        about: impl FnOnce() -> NoticeContext<'a>,
        attempt: u32,
    ) -> Option<String> {
        if self.listeners.is_empty() {
            return None;
        }
        let (about, mut own) = (about(), None);
        self.each(|listener| {
            if own.is_none() {
                own = listener.traceparent(&about, attempt);
            }
        });
        own
    }

    pub(crate) fn turn(&self, about: &TurnContext<'_>, note: &TraceNote) {
        self.each(|listener| listener.turn(about, note));
    }

    pub(crate) fn turn_span(&self, turn: &TurnSummary, span: &TurnSpan<'_>) {
        self.each(|listener| listener.turn_span(turn, span));
    }

    pub(crate) fn outside(&self, fact: &SystemEvent<'_>) {
        self.each(|listener| listener.system_event(fact));
        if let SystemEvent::Trust { tenant, change } = fact {
            self.notify(Notification::trust(*tenant, change));
        }
    }

    pub(crate) fn store_failed(&self, store: &str, error: &StoreError) {
        self.each(|listener| listener.store_failed(store, error));
    }

    pub(crate) fn store_news(&self, store: &str, news: &StoreEvent) {
        self.each(|listener| listener.store_event(store, news));
    }

    fn each(&self, mut tell: impl FnMut(&dyn EngineListener)) {
        for listener in &self.listeners {
            if catch_unwind(AssertUnwindSafe(|| tell(&**listener))).is_err() {
                tracing::warn!(event = "listener.failed", "a listener panicked; the call continues");
            }
        }
    }
}

impl fmt::Debug for TelemetryHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TelemetryHooks").field("listeners", &self.listeners.len()).finish_non_exhaustive()
    }
}
