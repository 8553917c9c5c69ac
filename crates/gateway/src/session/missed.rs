//! Undelivered answers, for a legacy client that resumes a stream which this process does not know. The stream belonged
//! to an earlier process or to an evicted session.
//!
//! The record of a call contains the id of its request; see [decision
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

/// The answers that are being delivered again.
pub(super) struct Missed {
    /// Requests of this process from this number on belong to the current session, which answers them itself.
    since: u64,
    /// The answers being sent, with their receivers.
    given: Mutex<HashMap<RequestId, Returned>>,
}

/// A client that resumes an unknown stream.
#[derive(Clone)]
pub(crate) struct Returned {
    /// The last event id that the client has seen.
    pub(crate) last: Box<str>,
    /// The stream that it has open now.
    pub(crate) stream: Notifier,
}

impl Missed {
    pub(super) fn since(number: u64) -> Self {
        Self { since: number, given: Mutex::default() }
    }

    /// Returns true if this receiver gets the answer. A client that resumes several streams gets it on one of them. A
    /// client that resumes after the same event again has lost its connection, even if that is not detected yet.
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
    /// Sends undelivered answers on the stream of a client that resumes an unknown one.
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
                    // The stream has no room. The rest is sent when the client resumes again.
                    None => return session.missed.settled(&request),
                }
            }
        });
    }

    /// Returns the envelope of the tool if the record is an undelivered call of this client. A different client with
    /// the same session key gets nothing.
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

    /// Sends an answer on this stream, if there is room.
    fn give(&self, missed: &Undelivered, stream: &Notifier) -> Option<Delivery> {
        let (_, id) = named(&missed.request)?;
        let response = made::response(&id, Era::Legacy, &missed.called);
        let engine = self.engine.clone();
        let arrived = missed.called.arrival.clone();
        let arrived = arrived.map(|arrival| -> Arrived { Box::new(move || engine.delivered(arrival)) });
        stream.answer(response, arrived).ok()
    }
}
