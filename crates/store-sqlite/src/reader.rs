//! Reader threads. They never wait for a sync or a writer.
//!
//! Lookups that are queued when a transaction begins are read in it. So a caller sees everything that was
//! acknowledged before its request.

use std::sync::Arc;

use rusqlite::Connection;
use steadfast_store::{StoreError, Trouble};
use tokio::sync::oneshot;

use crate::fault::Fault;
use crate::queue::Queue;
use crate::shared::{Link, Shared};
use crate::view::View;

/// A lookup.
pub(crate) trait Question: Send {
    /// Runs the lookup, and sends the result to its caller.
    fn answer(self: Box<Self>, view: Result<View<'_>, StoreError>) -> Result<(), Fault>;
}

pub(crate) type Questions = Queue<Box<dyn Question>>;

/// A lookup made from a function.
pub(crate) struct Sought<F, T> {
    work: F,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<F, T> Sought<F, T> {
    pub(crate) fn new(work: F) -> (Self, oneshot::Receiver<Result<T, StoreError>>) {
        let (reply, answer) = oneshot::channel();
        (Self { work, reply }, answer)
    }
}

impl<F, T> Question for Sought<F, T>
where
    F: FnOnce(View<'_>) -> Result<T, Fault> + Send,
    T: Send,
{
    fn answer(self: Box<Self>, view: Result<View<'_>, StoreError>) -> Result<(), Fault> {
        let Self { work, reply } = *self;
        let (told, found) = match view {
            Err(error) => (Ok(()), Err(error)),
            Ok(view) => match work(view) {
                Ok(found) => (Ok(()), Ok(found)),
                Err(fault) => {
                    let error = fault.not_done(&view.shared.place.path);
                    (Err(fault), Err(error))
                }
            },
        };
        // The caller may have gone.
        let _ = reply.send(found);
        told
    }
}

/// A reader, on its thread.
pub(crate) struct Reader {
    pub(crate) shared: Arc<Shared>,
    pub(crate) queue: Arc<Questions>,
    pub(crate) link: Link,
}

/// The most lookups in one transaction.
const BATCH: usize = 64;

impl Reader {
    pub(crate) fn run(mut self) {
        let queue = self.queue.clone();
        let _taker = queue.taker();
        let mut batch = Vec::new();
        while self.queue.take(&mut batch, BATCH).is_some() {
            match self.link.connection(&self.shared) {
                Ok(sql) => {
                    if answer_all(sql, &self.shared, &mut batch).is_err() {
                        self.link.forget();
                    }
                }
                Err(fault) => refuse_all(&fault, &self.shared, &mut batch),
            }
        }
    }
}

fn answer_all(sql: &Connection, shared: &Shared, batch: &mut Vec<Box<dyn Question>>) -> Result<(), Trouble> {
    let begun = sql.prepare_cached("BEGIN").and_then(|mut begin| begin.execute([]));
    if let Err(error) = begun {
        refuse_all(&Fault::from(error), shared, batch);
        return Err(Trouble::Unreachable);
    }
    let view = View { sql, shared };
    let mut broken = None;
    if let Err(fault) = view.is_of_today() {
        refuse_all(&fault, shared, batch);
        broken = fault.breaks_connection().then(|| fault.trouble());
    }
    for question in batch.drain(..) {
        if let Err(fault) = question.answer(Ok(view))
            && fault.breaks_connection()
        {
            broken = Some(fault.trouble());
        }
    }
    let ended = sql.prepare_cached("COMMIT").and_then(|mut end| end.execute([]));
    match (ended, broken) {
        (Ok(_), None) => Ok(()),
        (Ok(_), Some(trouble)) => Err(trouble),
        (Err(_), _) => Err(Trouble::Unreachable),
    }
}

fn refuse_all(fault: &Fault, shared: &Shared, batch: &mut Vec<Box<dyn Question>>) {
    for question in batch.drain(..) {
        // The caller gets the error, so there is nothing to add.
        let _ = question.answer(Err(fault.not_done(&shared.place.path)));
    }
}
