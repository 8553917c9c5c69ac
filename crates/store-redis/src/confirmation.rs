//! Confirmation of writes by replicas.
//!
//! `WAIT` covers everything that was written on its connection before it, and delays everything after it on that
//! connection. So callers share it: while one is in flight, the later writers gather for the next one.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use redis::Value;
use steadfast_store::{StoreError, StoreErrorKind};
use tokio::sync::watch;

use crate::RedisInner;
use crate::link::{CommandConnection, CommandTarget};
use crate::names::KeyDistrict;
use crate::options::WriteConfirmation;

/// Callers that gather for the next round, by connection and district.
#[derive(Debug, Default)]
pub(crate) struct ReplicaConfirmations {
    rounds: Mutex<HashMap<(u64, u8), ConfirmationRound>>,
}

type ConfirmationResult = Option<Result<i64, StoreError>>;

/// The next round, for which callers gather while one is in flight.
#[derive(Debug, Default)]
struct ConfirmationRound {
    next: Option<watch::Sender<ConfirmationResult>>,
}

impl RedisInner {
    /// Returns when the required number of replicas have everything written on this connection.
    pub(crate) async fn confirm(
        self: &Arc<Self>,
        district: KeyDistrict,
        line: Arc<CommandConnection>,
    ) -> Result<(), StoreError> {
        let WriteConfirmation::Replicas { count, .. } = self.options.confirm else { return Ok(()) };
        // A single server confirms for all districts at once.
        let district = if self.link.is_spread() { district } else { KeyDistrict(0) };
        let place = (line.number(), district.0);
        let mut verdict = {
            let mut rounds = self.confirmations.rounds.lock();
            let begins = !rounds.contains_key(&place);
            let verdict_sender =
                rounds.entry(place).or_default().next.get_or_insert_with(|| watch::channel(None).0);
            let verdict = verdict_sender.subscribe();
            if begins {
                tokio::spawn(Arc::clone(self).rounds(place, district, line));
            }
            verdict
        };
        let confirmed = match verdict.wait_for(Option::is_some).await.map(|verdict| verdict.clone()) {
            Ok(Some(result)) => result?,
            Ok(None) | Err(_) => 0,
        };
        if confirmed >= i64::from(count) {
            return Ok(());
        }
        Err(StoreError::outcome_unknown(
            StoreErrorKind::Unreachable,
            format!("redis wrote it, but only {confirmed} of {count} replicas have confirmed that in time"),
        ))
    }

    async fn rounds(self: Arc<Self>, place: (u64, u8), district: KeyDistrict, line: Arc<CommandConnection>) {
        let WriteConfirmation::Replicas { count, within } = self.options.confirm else { return };
        let marker = self.names.marker(district).to_owned();
        loop {
            let batch = {
                let mut rounds = self.confirmations.rounds.lock();
                match rounds.get_mut(&place).and_then(|round| round.next.take()) {
                    Some(batch) => batch,
                    None => {
                        rounds.remove(&place);
                        return;
                    }
                }
            };
            let mut command = redis::cmd("WAIT");
            command.arg(count).arg(steadfast_core::millis(within).max(1));
            let reply = self.link.send_on(Arc::clone(&line), &command, CommandTarget::Holder(&marker)).await;
            let verdict = match reply {
                Ok(reply) => Ok(if let Value::Int(confirmed) = reply.value { confirmed } else { 0 }),
                Err(failed) => Err(self.link.store_error(&failed)),
            };
            batch.send_replace(Some(verdict));
        }
    }
}
