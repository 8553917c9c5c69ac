//! Reader threads. They never wait for a sync or a writer.
//!
//! Lookups that are queued when a transaction begins are read in it. So a caller sees everything that was
//! acknowledged before its request.

use std::sync::Arc;

use rusqlite::Connection;
use steadfast_store::{StoreError, StoreErrorKind};
use tokio::sync::oneshot;

use crate::fault::SqliteFault;
use crate::queue::WorkQueue;
use crate::shared::{FileConnection, SqliteShared};
use crate::view::FileView;

/// A lookup.
pub(crate) trait LookupRequest: Send {
    /// Runs the lookup, and sends the result to its caller.
    fn answer(self: Box<Self>, view: Result<FileView<'_>, StoreError>) -> Result<(), SqliteFault>;
}

pub(crate) type LookupQueue = WorkQueue<Box<dyn LookupRequest>>;

/// A lookup made from a function.
pub(crate) struct LookupFunction<F, T> {
    work: F,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<F, T> LookupFunction<F, T> {
    pub(crate) fn new(work: F) -> (Self, oneshot::Receiver<Result<T, StoreError>>) {
        let (reply, answer) = oneshot::channel();
        (Self { work, reply }, answer)
    }
}

impl<F, T> LookupRequest for LookupFunction<F, T>
where
    F: FnOnce(FileView<'_>) -> Result<T, SqliteFault> + Send,
    T: Send,
{
    fn answer(self: Box<Self>, view: Result<FileView<'_>, StoreError>) -> Result<(), SqliteFault> {
        let Self { work, reply } = *self;
        let (outcome, found) = match view {
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
        outcome
    }
}

/// A reader, on its thread.
pub(crate) struct SqliteReader {
    pub(crate) shared: Arc<SqliteShared>,
    pub(crate) queue: Arc<LookupQueue>,
    pub(crate) link: FileConnection,
}

/// The most lookups in one transaction.
const BATCH: usize = 64;

impl SqliteReader {
    pub(crate) fn run(mut self) {
        let queue = self.queue.clone();
        let _consumer = queue.consumer();
        let mut batch = Vec::new();
        while self.queue.take(&mut batch, BATCH).is_some() {
            match self.link.connection(&self.shared) {
                Ok(sql) => {
                    if reply_all(sql, &self.shared, &mut batch).is_err() {
                        self.link.forget();
                    }
                }
                Err(fault) => refuse_all(&fault, &self.shared, &mut batch),
            }
        }
    }
}

fn reply_all(
    sql: &Connection,
    shared: &SqliteShared,
    batch: &mut Vec<Box<dyn LookupRequest>>,
) -> Result<(), StoreErrorKind> {
    let started = sql.prepare_cached("BEGIN").and_then(|mut begin| begin.execute([]));
    if let Err(error) = started {
        refuse_all(&SqliteFault::from(error), shared, batch);
        return Err(StoreErrorKind::Unreachable);
    }
    let view = FileView { sql, shared };
    let mut broken = None;
    if let Err(fault) = view.check_format() {
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
    let committed = sql.prepare_cached("COMMIT").and_then(|mut end| end.execute([]));
    match (committed, broken) {
        (Ok(_), None) => Ok(()),
        (Ok(_), Some(trouble)) => Err(trouble),
        (Err(_), _) => Err(StoreErrorKind::Unreachable),
    }
}

fn refuse_all(fault: &SqliteFault, shared: &SqliteShared, batch: &mut Vec<Box<dyn LookupRequest>>) {
    for question in batch.drain(..) {
        // The caller gets the error, so there is nothing to add.
        let _ = question.answer(Err(fault.not_done(&shared.place.path)));
    }
}
