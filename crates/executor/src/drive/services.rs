//! The components that a call uses.

use std::fmt;
use std::sync::Arc;

use steadfast_core::dedupe::{Claim, LocalKnowledge};
use steadfast_core::envelope::{CallEnvelope, ErrorBody};
use steadfast_store::{StateStore, TimeSource};

use super::deferred::StoreOperation;
use super::gate::CallGate;
use crate::admin::engine_admin::EngineAdmin;
use crate::call::hooks::HookRunner;
use crate::keys::SessionId;
use crate::observe::failures::FailureLog;
use crate::observe::history::CallHistory;
use crate::observe::listener::RejectedCall;
use crate::observe::telemetry_hooks::TelemetryHooks;
use crate::shared::approvals::ApprovalBook;
use crate::shared::cells::MachineRegistry;
use crate::shared::followers::InFlightRuns;
use crate::shared::pauses::DedupePauses;
use crate::shared::persistence::Persister;
use crate::shared::policies::PolicyResolver;
use crate::shared::verification_log::VerificationLog;
use crate::state::{EngineState, next_call_number};
use crate::writes::deferred::RetryQueue;
use crate::writes::deliveries::{Deliveries, DeliveryHandle};

/// The components that all calls of an engine share.
pub(crate) struct CallServices {
    pub(crate) state: Arc<EngineState>,
    pub(crate) clock: Arc<dyn TimeSource>,
    pub(crate) store: Arc<dyn StateStore>,
    /// The store for read-only calls. Losing its records costs one more run and nothing else.
    pub(crate) local: Arc<dyn StateStore>,
    pub(crate) gate: Arc<CallGate>,
    pub(crate) policies: Arc<PolicyResolver>,
    pub(crate) machines: Arc<MachineRegistry>,
    pub(crate) runs: Arc<InFlightRuns>,
    pub(crate) hooks: HookRunner,
    pub(crate) pauses: DedupePauses,
    pub(crate) approvals: Arc<ApprovalBook>,
    pub(crate) persister: Arc<Persister>,
    pub(crate) retries: RetryQueue<StoreOperation>,
    pub(crate) deliveries: Deliveries,
    pub(crate) verifications: VerificationLog,
    pub(crate) telemetry: Arc<TelemetryHooks>,
    pub(crate) history: Arc<CallHistory>,
    pub(crate) failures: Arc<FailureLog>,
    pub(crate) admin: EngineAdmin,
}

impl CallServices {
    /// Returns the facts about a claim that this process knows in addition to the store, for a call with this sequence
    /// number.
    pub(crate) fn known_to(&self, claim: &Claim, session: &SessionId, received: u64) -> LocalKnowledge {
        LocalKnowledge {
            delivered: self.deliveries.known_to(claim),
            overlapped: self.deliveries.overlapping(received),
            answered_unsaved: self.deliveries.answered_unsaved(received),
            verified: self.verifications.verified(session),
        }
    }

    /// Marks a response as delivered.
    pub(crate) fn mark_delivered(&self, arrival: DeliveryHandle) {
        if let Some(recipient) = arrival.recipient.clone() {
            self.verifications.record_unknown_outcome(recipient, arrival.receipt.owner.clone());
        }
        let now = arrival.store.now();
        self.deliveries.arrived(arrival, now);
    }

    /// Reports a rejected call to the listeners.
    pub(crate) fn reject(&self, envelope: Option<&CallEnvelope>, error: &ErrorBody) {
        let number = next_call_number();
        self.telemetry.turned_away(&RejectedCall { envelope, error, at: self.clock.now() }, number);
    }

    pub(crate) fn store_trouble(&self, error: &steadfast_store::StoreError) {
        self.telemetry.store_failed(self.store.kind(), error);
    }
}

impl fmt::Debug for CallServices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallServices").field("store", &self.store.kind()).finish_non_exhaustive()
    }
}
