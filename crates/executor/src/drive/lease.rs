//! The lease of a call: its renewal while the call runs.

use std::time::Duration;

use steadfast_core::call::CallEvent;
use steadfast_store::StoreError;

use super::driver::{CallDriver, LeaseRenewal, RenewalResult};

impl CallDriver {
    pub(super) fn lease(&self) -> Duration {
        self.call.policy().dedupe.keep.lease
    }

    pub(super) fn ask_renewal(&mut self) {
        let Some(record) = self.call.claimed_record().cloned() else {
            self.renewal = LeaseRenewal::None;
            return;
        };
        let (store, keep) = (self.store.clone(), self.call.policy().dedupe.keep);
        let sent = self.calls.clock.now();
        self.renewal = LeaseRenewal::Asked(Box::pin(async move {
            let verdict = store.renew(&record, &keep).await?;
            Ok(RenewalResult { owner: record.owner, sent, verdict })
        }));
    }

    pub(super) fn renewed(&mut self, RenewalResult { owner, sent, verdict }: RenewalResult) -> CallEvent {
        self.renewal = LeaseRenewal::Due(sent + self.lease() / 3);
        CallEvent::Renewed { owner, sent, verdict }
    }

    /// Waits for a renewal in flight, so that the next store operation does not overtake it.
    pub(super) async fn finish_renewal(&mut self) {
        if let LeaseRenewal::Asked(renewal) = &mut self.renewal {
            if let Err(error) = renewal.await {
                self.store_trouble(&error);
            }
            self.renewal = LeaseRenewal::None;
        }
    }
}

/// Waits for the renewal in flight.
pub(super) async fn answered(renewal: &mut LeaseRenewal) -> Result<RenewalResult, StoreError> {
    match renewal {
        LeaseRenewal::Asked(future) => future.await,
        LeaseRenewal::None | LeaseRenewal::Due(_) => std::future::pending().await,
    }
}
