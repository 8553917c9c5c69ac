//! Answers that never arrived, for a client of the older era that goes on with a stream which nobody here knows: it waits for
//! what was to come on that. Another process of ours had the stream, or we had no place for it any more.
//!
//! The record of a call says which request it was made for; see [decision
//! 0012](../../../../docs/decisions/0012-what-an-unknown-stream-gets.md).

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::dedupe::Record;
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::RequestId;
use steadfast_executor::Undelivered;
use steadfast_mcp::delivery::{Arrived, Delivery};
use steadfast_mcp::http::Era;
use steadfast_mcp::http::front::Notifier;

use super::Session;
use crate::call::{envelope_of, named};
use crate::made;
use crate::who::Connection;

/// Answers that never arrived.
pub(super) struct Missed {
    /// Requests of this process from this number on are of this session, which has its own ways to answer them.
    since: u64,
    /// Those that are on their way again, and for whom.
    given: Mutex<HashMap<RequestId, Returned>>,
}

/// A client that goes on with a stream which is not known.
#[derive(Clone)]
pub(crate) struct Returned {
    /// The last event that it says it has seen.
    pub(crate) last: Box<str>,
    /// Where it listens now.
    pub(crate) stream: Notifier,
}

impl Missed {
    pub(super) fn since(number: u64) -> Self {
        Self { since: number, given: Mutex::default() }
    }

    /// Whether the answer to this is to be given to this one. A client that goes on with several streams gets it on one of
    /// them; but one that comes again behind the same event has lost the connection before, even if we do not see that yet.
    fn take(&self, request: &RequestId, by: &Returned) -> bool {
        let mut given = self.given.lock();
        if given.get(request).is_some_and(|before| before.last != by.last && !before.stream.is_gone()) {
            return false;
        }
        given.insert(request.clone(), by.clone());
        true
    }

    fn settled(&self, request: &RequestId) {
        self.given.lock().remove(request);
    }
}

impl Session {
    /// The client goes on with a stream that is not known. What never arrived goes out where it listens now.
    pub(crate) fn give_missed(self: &Arc<Self>, to: Returned) {
        self.spawn(|session| async move {
            let Some(conversation) = &session.connection.session else { return };
            let missed = session.engine.undelivered(conversation, |record| session.is_missed_answer(record));
            for mut one in missed.await {
                let request = one.request.clone();
                if !session.missed.take(&request, &to) {
                    continue;
                }
                session.shorten(&mut one.called, &session.connection.reader()).await;
                match session.give(&one, &to.stream) {
                    Some(delivery) => session.spawn(|session| async move {
                        session.hear_of(delivery).await;
                        session.missed.settled(&request);
                    }),
                    // There is no room for more. It is there when the client comes again.
                    None => return session.missed.settled(&request),
                }
            }
        });
    }

    /// Whether this is a call that the client made here before: an envelope of its tool. Who else names the conversation of
    /// this client gets nothing by that.
    fn is_missed_answer(&self, record: &Record) -> Option<CallEnvelope> {
        let (number, _) = named(&record.request)?;
        let Connection { actor, tenant, .. } = &self.connection;
        let is_own = record.actor.as_ref() == Some(actor) && record.tenant == *tenant;
        let is_here = self.servers.iter().any(|behind| behind.server.name == record.tool.namespace);
        let is_answered =
            number >= self.missed.since && record.owner.process == steadfast_store::this_process();
        let is_missed = is_own && is_here && !is_answered;
        is_missed.then(|| envelope_of(&record.tool.namespace, record.tool.tool.clone(), &self.connection))
    }

    /// Gives an answer on this stream, if there is room for it.
    fn give(&self, missed: &Undelivered, stream: &Notifier) -> Option<Delivery> {
        let (_, id) = named(&missed.request)?;
        let response = made::response(&id, Era::Legacy, &missed.called);
        let engine = self.engine.clone();
        let arrived = missed.called.arrival.clone();
        let arrived = arrived.map(|arrival| -> Arrived { Box::new(move || engine.delivered(arrival)) });
        stream.answer(response, arrived).ok()
    }
}
