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
use steadfast_core::breaker::Transition;
use steadfast_core::call::{CallResult, Notice, Request};
use steadfast_core::code::Code;
use steadfast_core::dedupe::Owner;
use steadfast_core::envelope::{CallEnvelope, ErrorBody, Target};
use steadfast_core::id::{Digest, RequestId, SessionKey, TenantId, ToolRef, TurnId};
use steadfast_core::notification::Notification;
use steadfast_core::policy::Policy;
use steadfast_core::trust::TrustChange;
use steadfast_core::turn::trace::{Event, Note, Span, TraceId};
use steadfast_store::{News, StoreError};
use tokio::sync::broadcast;

use crate::audit::AuditEntry;
use crate::breakers::BreakerKey;
use crate::turns::TurnHead;

/// A listener for everything that happens. Redact all of it before it leaves the process.
pub trait Listener: Send + Sync + 'static {
    /// Called for each fact about a call.
    fn notice(&self, _about: &About<'_>, _notice: &Notice) {}

    /// Called at the end of a call, with the result that its caller gets, or would have got.
    fn finished(&self, _about: &About<'_>, _result: &CallResult) {}

    /// Called for a rejected call: it was malformed, or the limit of calls in flight was reached.
    fn turned_away(&self, _away: &TurnedAway<'_>) {}

    /// Returns the W3C `traceparent` of the span of this attempt, for the tool to pass on. Called before the attempt
    /// starts and after its notice. The first listener that returns one decides.
    fn traceparent(&self, _about: &About<'_>, _attempt: u32) -> Option<String> {
        None
    }

    /// Called for each event of a turn. These include every failure, with the decision of the error handler.
    fn turn(&self, _about: &TurnAbout<'_>, _note: &Note) {}

    /// Called when a span of a turn ends: that of a tool that ran for one of its calls or, last, that of the turn
    /// itself. It has the same ids as in the trace, and its texts are redacted like those in the trace. `_turn` is the
    /// current state of the turn. If it has no status in its own span, the caller of the turn is gone.
    fn turn_span(&self, _turn: &TurnHead, _span: &TurnSpan<'_>) {}

    /// Called for each notification of operators. It is already redacted.
    fn notification(&self, _notification: &Arc<Notification>) {}

    /// Called for each event outside of any call.
    fn outside(&self, _fact: &Outside<'_>) {}

    /// Called when a store operation failed.
    fn store_failed(&self, _store: &str, _error: &StoreError) {}

    /// Called for each event of the store itself.
    fn store_news(&self, _store: &str, _news: &News) {}
}

impl fmt::Debug for dyn Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineListener")
    }
}

/// The call that a fact is about.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The envelope of the call.
    pub envelope: &'a CallEnvelope,
    /// The request that was made of it.
    pub request: &'a Request,
    /// The policy that applies to it.
    pub policy: &'a Policy,
    /// Time of the fact.
    pub at: Timestamp,
}

/// The turn that a fact is about.
#[derive(Clone, Copy, Debug)]
pub struct TurnAbout<'a> {
    /// Name of the turn in its plan.
    pub turn: Option<&'a TurnId>,
    /// Its trace.
    pub trace: TraceId,
    /// Target of its calls.
    pub target: &'a Target,
    /// Its deadline.
    pub deadline: Timestamp,
}

/// A completed span of a turn.
#[derive(Clone, Copy, Debug)]
pub struct TurnSpan<'a> {
    /// The same span as in the trace, with its end.
    pub span: &'a Span,
    /// The tool that ran. Absent for the turn itself.
    pub tool: Option<&'a ToolRef>,
    /// Failure code, if it failed.
    pub failed: Option<Code>,
    /// True unless the caller of the turn has a span of its own that is not sampled.
    pub sampled: bool,
    /// Events since it began.
    pub(crate) since: &'a [Event],
}

impl<'a> TurnSpan<'a> {
    /// Returns the events of the span, in order.
    pub fn events(&self) -> impl Iterator<Item = &'a Event> {
        let id = self.span.span_id;
        self.since.iter().filter(move |event| event.span_id == Some(id))
    }
}

/// A call that was rejected before it began.
#[derive(Clone, Copy, Debug)]
pub struct TurnedAway<'a> {
    /// The envelope of the call. Absent if it could not be parsed.
    pub envelope: Option<&'a CallEnvelope>,
    /// The response.
    pub error: &'a ErrorBody,
    /// Time of the rejection.
    pub at: Timestamp,
}

/// An event outside of any call.
#[derive(Clone, Copy, Debug)]
pub enum Outside<'a> {
    /// An operator changed the state of a breaker.
    Breaker {
        /// Tenant of the breaker.
        tenant: Option<&'a TenantId>,
        /// The breaker.
        key: &'a BreakerKey,
        /// The transition.
        change: &'a Transition,
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
    pub notice: Notice,
}

/// The listeners and subscriptions of an engine.
pub(crate) struct Telling {
    listeners: Vec<Arc<dyn Listener>>,
    stream: broadcast::Sender<EngineEvent>,
    notifications: broadcast::Sender<Arc<Notification>>,
    /// Earlier calls whose unknown outcome was already notified.
    told: Mutex<VecDeque<Digest>>,
}

/// Number of events that a slow reader of the stream may be behind before it misses some.
const STREAM: usize = 1024;

impl Telling {
    pub(crate) fn to(listeners: Vec<Arc<dyn Listener>>) -> Self {
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
    pub(crate) fn is_heard(&self) -> bool {
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
    fn notify_of(&self, about: &About<'_>, notice: &Notice) {
        let request = about.request;
        if let Notice::TrustChanged(change) = notice {
            let of_call = Notification::trust(request.tenant.as_ref(), change);
            self.notify(Notification {
                session: request.session.clone(),
                request_id: Some(request.id.clone()),
                ..of_call
            });
        }
    }

    /// Notifies operators of an unknown outcome, if the notice reports one.
    pub(crate) fn notify_of_unknown(&self, about: &About<'_>, notice: &Notice) {
        let request = about.request;
        if let Notice::OutcomeUnknown { of_earlier } = notice {
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
    pub(crate) fn notify_of_abandoned(&self, owner: &Owner, notification: Notification) {
        if self.is_first(owner.digest()) {
            self.notify(notification);
        }
    }

    /// Returns true if this call was not checked before, among the last ones that are remembered.
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
    pub(crate) fn notices(&self, about: &About<'_>, own: Option<&dyn Listener>, notices: &mut Vec<Notice>) {
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
    pub(crate) fn finished<'a>(&self, about: impl FnOnce() -> About<'a>, result: &CallResult) {
        if !self.listeners.is_empty() {
            let about = about();
            self.each(|listener| listener.finished(&about, result));
        }
    }

    pub(crate) fn turned_away(&self, away: &TurnedAway<'_>, call: u64) {
        self.each(|listener| listener.turned_away(away));
        let Some(envelope) = away.envelope.filter(|_| self.stream.receiver_count() > 0) else { return };
        let target = &envelope.target;
        let _ = self.stream.send(EngineEvent {
            request: envelope.request_id.clone(),
            call,
            tool: envelope.tool(),
            tenant: target.tenant_id.clone(),
            session: Some(target.session_key.clone()),
            at: away.at,
            notice: Notice::CallBlocked {
                code: away.error.code,
                retriable: away.error.retriable,
                breaker: None,
            },
        });
    }

    pub(crate) fn traceparent<'a>(&self, about: impl FnOnce() -> About<'a>, attempt: u32) -> Option<String> {
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

    pub(crate) fn turn(&self, about: &TurnAbout<'_>, note: &Note) {
        self.each(|listener| listener.turn(about, note));
    }

    pub(crate) fn turn_span(&self, turn: &TurnHead, span: &TurnSpan<'_>) {
        self.each(|listener| listener.turn_span(turn, span));
    }

    pub(crate) fn outside(&self, fact: &Outside<'_>) {
        self.each(|listener| listener.outside(fact));
        if let Outside::Trust { tenant, change } = fact {
            self.notify(Notification::trust(*tenant, change));
        }
    }

    pub(crate) fn store_failed(&self, store: &str, error: &StoreError) {
        self.each(|listener| listener.store_failed(store, error));
    }

    pub(crate) fn store_news(&self, store: &str, news: &News) {
        self.each(|listener| listener.store_news(store, news));
    }

    fn each(&self, mut tell: impl FnMut(&dyn Listener)) {
        for listener in &self.listeners {
            if catch_unwind(AssertUnwindSafe(|| tell(&**listener))).is_err() {
                tracing::warn!(event = "listener.failed", "a listener panicked; the call continues");
            }
        }
    }
}

impl fmt::Debug for Telling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TelemetryHooks").field("listeners", &self.listeners.len()).finish_non_exhaustive()
    }
}
