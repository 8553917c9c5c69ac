//! Requests that wait for the answer of a server, by the ids that we gave them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use steadfast_core::classify::Fault;
use steadfast_mcp::lines::Taken;
use steadfast_mcp::message::{Id, Message};
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

use super::Life;
use super::bridge::Running;
use crate::news::SUBSCRIPTION;

/// Hears what belongs to one request besides its answer.
pub(crate) type Hear = Arc<dyn Fn(&Message) + Send + Sync>;

/// Makes of an answer what whoever asked understands.
type Turn = Box<dyn FnOnce(Message) -> Message + Send + Sync>;

/// Who hears what concerns one request besides its answer.
#[derive(Clone, Default)]
pub(super) struct Ears {
    /// What names the request.
    pub(super) hear: Option<Hear>,
    /// What a server of the older era says or asks while it runs.
    pub(super) running: Option<Arc<Running>>,
}

impl From<Option<Hear>> for Ears {
    fn from(hear: Option<Hear>) -> Self {
        Self { hear, running: None }
    }
}

/// All that wait.
#[derive(Default)]
pub(crate) struct Pending {
    waiting: Mutex<HashMap<u64, Waiting>>,
    next: AtomicU64,
    /// One of them waits no more.
    left: Notify,
}

struct Waiting {
    at: Life,
    answer: oneshot::Sender<Result<Message, Fault>>,
    ears: Ears,
    /// Whether the server can have read the request, where that can be told.
    taken: Option<Taken>,
    /// Whether the server was told that nobody wants the answer any more.
    withdrawn: bool,
}

/// The place of one request. Dropping it gives the place up: an answer that comes later is nobody's.
pub(crate) struct Place {
    pub(crate) number: u64,
    /// Which life of the server it waits for.
    pub(crate) at: Life,
    answer: oneshot::Receiver<Result<Message, Fault>>,
    pending: Arc<Pending>,
    /// What fetches the answer; ends with the place, unless it has brought one.
    fetching: Option<AbortHandle>,
    /// How the server knows the request, where that is not by the number of the place.
    sent_as: Option<Arc<SentAs>>,
    turn: Option<Turn>,
}

/// How a server knows a request that is sent to it on behalf of another one, perhaps several times.
pub(super) struct SentAs {
    number: AtomicU64,
    at: AtomicU64,
}

impl SentAs {
    pub(super) fn of(place: &Place) -> Arc<Self> {
        Arc::new(Self { number: AtomicU64::new(place.number), at: AtomicU64::new(place.at.0) })
    }

    /// It was sent once more.
    pub(super) fn is_now(&self, place: &Place) {
        self.number.store(place.number, Ordering::Relaxed);
        self.at.store(place.at.0, Ordering::Relaxed);
    }

    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }
}

/// Names a request that was sent, for as long as somebody may have to end it.
#[derive(Clone)]
pub(crate) struct Sent {
    at: Life,
    sent_as: Option<Arc<SentAs>>,
}

impl Sent {
    /// The life that it was sent to last.
    pub(super) fn life(&self) -> Life {
        self.sent_as.as_ref().map_or(self.at, |sent_as| Life(sent_as.at.load(Ordering::Relaxed)))
    }
}

impl Pending {
    /// A place for a request that goes to this life.
    pub(super) fn enter(self: &Arc<Self>, at: Life, ears: Ears) -> Place {
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, answer) = oneshot::channel();
        self.waiting
            .lock()
            .insert(number, Waiting { at, answer: sender, ears, taken: None, withdrawn: false });
        Place { number, at, answer, pending: Arc::clone(self), fetching: None, sent_as: None, turn: None }
    }

    /// The place of a request that has its answer.
    pub(super) fn answered_with(self: &Arc<Self>, answer: Result<Message, Fault>) -> Place {
        let place = self.enter(Life::NONE, Ears::default());
        self.settle(place.number, answer);
        place
    }

    /// An answer has come. Says whether anybody waited for it.
    pub(crate) fn answered(&self, at: Life, id: &Id, answer: Message) -> bool {
        let Some(number) = id.as_u64() else { return false };
        let mut waiting = self.waiting.lock();
        // An old life cannot answer what a newer one was asked.
        if waiting.get(&number).is_none_or(|place| place.at != at) {
            return false;
        }
        let place = waiting.remove(&number);
        drop(waiting);
        self.left.notify_waiters();
        place.is_some_and(|place| place.answer.send(Ok(answer)).is_ok())
    }

    /// Something for the request that this names by the token of its progress or as what it listens for. Says whether
    /// there is one.
    pub(crate) fn heard(&self, at: Life, message: &Message) -> bool {
        let name = match message.method() {
            Some("notifications/progress") => message.param("progressToken"),
            _ => message.meta_member(SUBSCRIPTION),
        };
        let number = name.and_then(|name| name.parse().ok());
        let heard = number.and_then(|number: u64| {
            let waiting = self.waiting.lock();
            waiting.get(&number).filter(|place| place.at == at).and_then(|place| place.ears.hear.clone())
        });
        match heard {
            Some(hear) => {
                hear(message);
                true
            }
            None => false,
        }
    }

    /// This request gets no answer.
    pub(crate) fn failed(&self, number: u64, fault: Fault) {
        self.settle(number, Err(fault));
    }

    /// Returns the only pending request of this life, if there is exactly one.
    pub(super) fn only(&self, at: Life) -> Option<u64> {
        let waiting = self.waiting.lock();
        let mut waiting = waiting.iter().filter(|(_, place)| place.at == at).map(|(number, _)| *number);
        waiting.next().filter(|_| waiting.next().is_none())
    }

    /// Fails this request if it waits for this life. Returns true if it did.
    pub(super) fn failed_at(&self, at: Life, number: u64, fault: Fault) -> bool {
        let is_asked = self.waiting.lock().get(&number).is_some_and(|place| place.at == at);
        is_asked && self.settle(number, Err(fault))
    }

    /// What became of this request. Says whether anybody waits for it.
    pub(super) fn settle(&self, number: u64, answer: Result<Message, Fault>) -> bool {
        let place = self.waiting.lock().remove(&number);
        self.left.notify_waiters();
        place.is_some_and(|place| place.answer.send(answer).is_ok())
    }

    /// The server is told that nobody wants the answer to this request any more.
    pub(super) fn withdraw(&self, number: u64) {
        if let Some(place) = self.waiting.lock().get_mut(&number) {
            place.withdrawn = true;
        }
        self.left.notify_waiters();
    }

    /// Waits until this life has nothing to answer any more that anybody wants.
    pub(super) async fn is_unwanted(&self, at: Life) {
        loop {
            let left = self.left.notified();
            if self.waiting.lock().values().all(|place| place.at != at || place.withdrawn) {
                return;
            }
            left.await;
        }
    }

    /// Another one hears from now on what names this request.
    pub(super) fn hears(&self, number: u64, hear: Option<Hear>) {
        if let Some(place) = self.waiting.lock().get_mut(&number) {
            place.ears.hear = hear;
        }
    }

    /// The requests that something may belong to which this life said: the one on whose stream it came, else any.
    pub(super) fn running(&self, at: Life, on: Option<u64>) -> Vec<Arc<Running>> {
        let waiting = self.waiting.lock();
        let of = |place: &Waiting| place.ears.running.clone().filter(|_| place.at == at);
        match on.and_then(|number| waiting.get(&number)) {
            Some(place) => of(place).into_iter().collect(),
            None => waiting.values().filter_map(of).collect(),
        }
    }

    /// All requests that something may belong to which their server says.
    pub(super) fn all_running(&self) -> Vec<Arc<Running>> {
        self.waiting.lock().values().filter_map(|place| place.ears.running.clone()).collect()
    }

    /// The request with this number is on its way.
    pub(crate) fn sent(&self, number: u64, taken: Taken) {
        if let Some(place) = self.waiting.lock().get_mut(&number) {
            place.taken = Some(taken);
        }
    }

    /// The life is gone: nobody who waits for it will get an answer. What it cannot have read can be sent again.
    pub(crate) fn lost(&self, at: Life, fault: &Fault) {
        let mut waiting = self.waiting.lock();
        let gone: Vec<u64> =
            waiting.iter().filter(|(_, place)| place.at == at).map(|(number, _)| *number).collect();
        let gone: Vec<Waiting> = gone.iter().filter_map(|number| waiting.remove(number)).collect();
        drop(waiting);
        for place in gone {
            let unread = place.taken.is_some_and(|taken| !taken.is_possible());
            let fault = match unread {
                true => super::gone(&format!("{} before it read this", fault.message)),
                false => fault.clone(),
            };
            let _ = place.answer.send(Err(fault));
        }
    }
}

impl Place {
    /// The id under which the request goes out.
    pub(crate) fn id(&self) -> Id {
        Id::number(self.sent_as())
    }

    /// The number that the server knows it by.
    pub(super) fn sent_as(&self) -> u64 {
        self.sent_as.as_ref().map_or(self.number, |sent_as| sent_as.number())
    }

    /// Where it was sent to.
    pub(crate) fn sent(&self) -> Sent {
        Sent { at: self.at, sent_as: self.sent_as.clone() }
    }

    /// The answer is brought by this, from a request that the server knows by another number.
    pub(super) fn brought_by(mut self, bringing: AbortHandle, sent_as: Arc<SentAs>) -> Self {
        (self.fetching, self.sent_as) = (Some(bringing), Some(sent_as));
        self
    }

    /// Whoever asked gets this instead of the answer that comes.
    pub(super) fn turned(mut self, turn: impl FnOnce(Message) -> Message + Send + Sync + 'static) -> Self {
        self.turn = Some(Box::new(turn));
        self
    }

    /// The answer is fetched by this.
    pub(super) fn fetched_by(mut self, fetching: AbortHandle) -> Self {
        self.fetching = Some(fetching);
        self
    }

    /// Gives the place up: this is what whoever waits for the answer is told.
    pub(super) fn leave(&self, fault: Fault) {
        self.pending.failed(self.number, fault);
        if let Some(fetching) = &self.fetching {
            fetching.abort();
        }
    }

    /// The answer, or what became of it instead.
    pub(crate) async fn answer(&mut self) -> Result<Message, Fault> {
        match ((&mut self.answer).await, self.turn.take()) {
            (Ok(Ok(answer)), Some(turn)) => Ok(turn(answer)),
            (Ok(answer), _) => answer,
            (Err(_), _) => Err(super::gone("the connection to the server was given up")),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let waited = self.pending.waiting.lock().remove(&self.number).is_some();
        self.pending.left.notify_waiters();
        if let Some(fetching) = self.fetching.as_ref().filter(|_| waited) {
            fetching.abort();
        }
    }
}
