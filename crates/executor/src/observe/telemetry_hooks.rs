//! The listeners and subscriptions of an engine.
//!
//! The machine's notices leave the engine only through this module. If a listener panics, that is logged, and neither
//! the call nor the other listeners are affected.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::call::{CallNotice, CallResult};
use steadfast_core::dedupe::ClaimOwner;
use steadfast_core::id::Digest;
use steadfast_core::notification::Notification;
use steadfast_store::{StoreError, StoreEvent};
use steadfast_turn::trace::TraceNote;
use tokio::sync::broadcast;

use super::listener::{
    EngineEvent, EngineListener, NoticeContext, RejectedCall, SystemEvent, TurnContext, TurnSpan,
};
use super::turn_summary::TurnSummary;

/// The listeners and subscriptions of an engine.
pub(crate) struct TelemetryHooks {
    listeners: Vec<Arc<dyn EngineListener>>,
    stream: broadcast::Sender<EngineEvent>,
    notifications: broadcast::Sender<Arc<Notification>>,
    /// Earlier calls whose unknown outcome was already notified.
    notified: Mutex<VecDeque<Digest>>,
}

/// Number of events that a slow reader of the stream may be behind before it misses some.
const STREAM: usize = 1024;

impl TelemetryHooks {
    pub(crate) fn to(listeners: Vec<Arc<dyn EngineListener>>) -> Self {
        Self {
            listeners,
            stream: broadcast::Sender::new(STREAM),
            notifications: broadcast::Sender::new(STREAM),
            notified: Mutex::default(),
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
            let is_notified = of_earlier
                .as_ref()
                .is_some_and(|owner| owner.process == request.process || !self.is_first(owner.digest()));
            if !is_notified {
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
        let mut notified = self.notified.lock();
        if notified.contains(&call) {
            return false;
        }
        if notified.len() == STREAM {
            notified.pop_front();
        }
        notified.push_back(call);
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

    pub(crate) fn store_event(&self, store: &str, event: &StoreEvent) {
        self.each(|listener| listener.store_event(store, event));
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
