//! What happened, for whoever listens: logs, metrics, spans, the dashboard, users' own code.
//!
//! The machine's notices leave through here and nowhere else. A [`Listener`] is called in line and must be quick;
//! whoever wants to take its time subscribes to the [stream](crate::Engine::events). A listener that panics is
//! told of in the log, and neither the call nor the other listeners notice.

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

/// Hears of everything. All of it has to be redacted before it leaves the process.
pub trait Listener: Send + Sync + 'static {
    /// A fact about a call.
    fn notice(&self, _about: &About<'_>, _notice: &Notice) {}

    /// A call is over: this is what its caller gets, or would have got.
    fn finished(&self, _about: &About<'_>, _result: &CallResult) {}

    /// A call never came in: it was malformed, or there was no room for it.
    fn turned_away(&self, _away: &TurnedAway<'_>) {}

    /// The W3C `traceparent` of the span that this attempt has, for the tool to pass on. Asked after the attempt was
    /// told of, before it starts; the first listener that has one decides.
    fn traceparent(&self, _about: &About<'_>, _attempt: u32) -> Option<String> {
        None
    }

    /// Something happened in a turn: among it every failure, with what the error handler decided.
    fn turn(&self, _about: &TurnAbout<'_>, _note: &Note) {}

    /// A stretch of a turn is over: a tool was at work for one of its calls, or, told last, the turn itself. It has the ids
    /// that it has in the trace, and its texts are redacted like there. The turn is told as it stands; if it has no status at
    /// its own end, nobody waits for it any more.
    fn turn_span(&self, _turn: &TurnHead, _span: &TurnSpan<'_>) {}

    /// Something that people want to know at once. It is redacted already.
    fn notification(&self, _notification: &Arc<Notification>) {}

    /// Something happened outside of any call.
    fn outside(&self, _fact: &Outside<'_>) {}

    /// A store operation failed.
    fn store_failed(&self, _store: &str, _error: &StoreError) {}

    /// Something happened to the store itself.
    fn store_news(&self, _store: &str, _news: &News) {}
}

impl fmt::Debug for dyn Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

/// Which call a fact is about.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The call as it came.
    pub envelope: &'a CallEnvelope,
    /// What was made of it.
    pub request: &'a Request,
    /// By which policy it is decided.
    pub policy: &'a Policy,
    /// When the fact was told.
    pub at: Timestamp,
}

/// Which turn a fact is about.
#[derive(Clone, Copy, Debug)]
pub struct TurnAbout<'a> {
    /// The name that its plan gave it.
    pub turn: Option<&'a TurnId>,
    /// Its trace.
    pub trace: TraceId,
    /// For whom its calls are made.
    pub target: &'a Target,
    /// When it ends at the latest.
    pub deadline: Timestamp,
}

/// A stretch of a turn that is over.
#[derive(Clone, Copy, Debug)]
pub struct TurnSpan<'a> {
    /// The same as in the trace, with its end.
    pub span: &'a Span,
    /// The tool that was at work; none for the turn itself.
    pub tool: Option<&'a ToolRef>,
    /// Why it was of no use, if it was not.
    pub failed: Option<Code>,
    /// Whether the caller of the turn, if it has a span of its own, wants spans of it.
    pub sampled: bool,
    /// What happened since it began.
    pub(crate) since: &'a [Event],
}

impl<'a> TurnSpan<'a> {
    /// What happened in it, in order.
    pub fn events(&self) -> impl Iterator<Item = &'a Event> {
        let id = self.span.span_id;
        self.since.iter().filter(move |event| event.span_id == Some(id))
    }
}

/// A call that was answered at the door.
#[derive(Clone, Copy, Debug)]
pub struct TurnedAway<'a> {
    /// The call as it came; nothing where it could not even be read.
    pub envelope: Option<&'a CallEnvelope>,
    /// The answer.
    pub error: &'a ErrorBody,
    /// When.
    pub at: Timestamp,
}

/// A fact that no call brought.
#[derive(Clone, Copy, Debug)]
pub enum Outside<'a> {
    /// A person changed the state of a breaker.
    Breaker {
        /// Whose.
        tenant: Option<&'a TenantId>,
        /// Which one.
        key: &'a BreakerKey,
        /// How.
        change: &'a Transition,
    },
    /// A report of a host, or a person, changed how far something is trusted.
    Trust {
        /// Whose.
        tenant: Option<&'a TenantId>,
        /// How.
        change: &'a TrustChange,
    },
    /// Other requests wait for a person's answer than before.
    Waiting {
        /// How many did.
        before: usize,
        /// How many do.
        now: usize,
    },
    /// A person changed something; the same as in the audit.
    ByHand(&'a AuditEntry),
}

/// A fact about a call, to keep.
#[derive(Clone, Debug)]
pub struct EngineEvent {
    /// The request.
    pub request: RequestId,
    /// The call within this process.
    pub call: u64,
    /// The tool.
    pub tool: ToolRef,
    /// Whose data it is.
    pub tenant: Option<TenantId>,
    /// The conversation.
    pub session: Option<SessionKey>,
    /// When it was told.
    pub at: Timestamp,
    /// The fact.
    pub notice: Notice,
}

/// Everyone who listens.
pub(crate) struct Telling {
    listeners: Vec<Arc<dyn Listener>>,
    stream: broadcast::Sender<EngineEvent>,
    notifications: broadcast::Sender<Arc<Notification>>,
    /// Earlier calls whose outcome was told as unknown.
    told: Mutex<VecDeque<Digest>>,
}

/// How many events a slow reader of the stream may be behind before it misses some.
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

    /// Whether there is anybody to tell.
    pub(crate) fn is_heard(&self) -> bool {
        !self.listeners.is_empty()
            || self.stream.receiver_count() > 0
            || self.notifications.receiver_count() > 0
    }

    /// Tells people at once.
    pub(crate) fn notify(&self, notification: Notification) {
        let notification = Arc::new(notification);
        self.each(|listener| listener.notification(&notification));
        // Nobody left to hear it is no failure.
        let _ = self.notifications.send(notification);
    }

    /// Tells people of what they want to know among the facts about a call.
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

    /// Tells people that the outcome of a call is unknown, if this says so.
    pub(crate) fn notify_of_unknown(&self, about: &About<'_>, notice: &Notice) {
        let request = about.request;
        if let Notice::OutcomeUnknown { of_earlier } = notice {
            // Whoever made the earlier call told of it, unless its process died.
            let is_told = of_earlier
                .as_ref()
                .is_some_and(|owner| owner.process == request.process || !self.is_first(owner.digest()));
            if !is_told {
                let unknown = Notification::outcome_unknown(request, about.at);
                self.notify(Notification { for_client: about.policy.trust.notify, ..unknown });
            }
        }
    }

    /// Notifies people of a call of another process that is gone, once.
    pub(crate) fn notify_of_abandoned(&self, owner: &Owner, notification: Notification) {
        if self.is_first(owner.digest()) {
            self.notify(notification);
        }
    }

    /// Whether this was not asked before, of as many as are remembered.
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

    /// `own` hears of this call alone.
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
            // Nobody left to hear it is no failure.
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

    /// `about` is only made where somebody asks.
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
                tracing::warn!(event = "listener.failed", "a listener panicked; the call goes on");
            }
        }
    }
}

impl fmt::Debug for Telling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telling").field("listeners", &self.listeners.len()).finish_non_exhaustive()
    }
}
