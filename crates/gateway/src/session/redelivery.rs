//! Undelivered answers, for a legacy client that resumes a stream which this process does not know. The stream belonged
//! to an earlier process or to an evicted session.
//!
//! The record of a call contains the id of its request; see [decision
//! 0012](../../../../docs/decisions/0012-resuming-an-unknown-stream.md).

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::dedupe::DedupeRecord;
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::RequestId;
use steadfast_executor::UndeliveredResponse;
use steadfast_mcp::delivery::{DeliveryCallback, PendingDelivery};
use steadfast_mcp::http::ProtocolEra;
use steadfast_mcp::http::server::Notifier;

use super::GatewaySession;
use crate::calls::envelope::envelope_of;
use crate::calls::request_name::named;
use crate::calls::responses;
use crate::client::identity::ClientIdentity;

/// The answers that are being delivered again.
pub(super) struct UndeliveredAnswers {
    /// Requests of this process from this number on belong to the current session, which answers them itself.
    since: u64,
    /// The answers being sent, with their receivers.
    given: Mutex<HashMap<RequestId, ResumedClient>>,
}

/// A client that resumes an unknown stream.
#[derive(Clone)]
pub(crate) struct ResumedClient {
    /// The last event id that the client has seen.
    pub(crate) last: Box<str>,
    /// The stream that it has open now.
    pub(crate) stream: Notifier,
}

impl UndeliveredAnswers {
    pub(super) fn since(number: u64) -> Self {
        Self { since: number, given: Mutex::default() }
    }

    /// Returns true if this receiver gets the answer. A client that resumes several streams gets it on one of them. A
    /// client that resumes after the same event again has lost its connection, even if that is not detected yet.
    fn take(&self, request: &RequestId, by: &ResumedClient) -> bool {
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

impl GatewaySession {
    /// Sends undelivered answers on the stream of a client that resumes an unknown one.
    pub(crate) fn give_missed(self: &Arc<Self>, to: ResumedClient) {
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
                        session.await_delivery(delivery).await;
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
    fn is_missed_answer(&self, record: &DedupeRecord) -> Option<CallEnvelope> {
        let (number, _) = named(&record.request)?;
        let ClientIdentity { actor, tenant, .. } = &self.connection;
        let is_own = record.actor.as_ref() == Some(actor) && record.tenant == *tenant;
        let is_here = self.servers.iter().any(|behind| behind.server.name == record.tool.namespace);
        let is_answered =
            number >= self.missed.since && record.owner.process == steadfast_store::this_process();
        let is_missed = is_own && is_here && !is_answered;
        is_missed.then(|| envelope_of(&record.tool.namespace, record.tool.tool.clone(), &self.connection))
    }

    /// Sends an answer on this stream, if there is room.
    fn give(&self, missed: &UndeliveredResponse, stream: &Notifier) -> Option<PendingDelivery> {
        let (_, id) = named(&missed.request)?;
        let response = responses::response(&id, ProtocolEra::Legacy, &missed.called);
        let engine = self.engine.clone();
        let arrived = missed.called.delivery.clone();
        let arrived =
            arrived.map(|arrival| -> DeliveryCallback { Box::new(move || engine.mark_delivered(arrival)) });
        stream.answer(response, arrived).ok()
    }
}
