//! The driver of one call: its parts, and what its steps have in common.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use steadfast_core::Timestamp;
use steadfast_core::approval::ParkedRequestId;
use steadfast_core::call::{ApprovalRequest, Call, CallEvent, CallNotice, OtherWaiters, WakeReason};
use steadfast_core::dedupe::{ClaimOwner, RenewVerdict};
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::key::RecordKey;
use steadfast_core::policy::ToolClass;
use steadfast_replay::EventTrail;
use steadfast_store::{StateStore, StoreError};

use super::services::CallServices;
use crate::call::prompter::{ApprovalPrompter, ClientDecisionFuture};
use crate::call::registry::ToolRegistry;
use crate::call::slot::CallerSlot;
use crate::call::tool::{AttemptEndFuture, AttemptFuture, DynTool};
use crate::keys::{DependencyKey, SessionId};
use crate::observe::history::SurfaceFacts;
use crate::observe::listener::{EngineListener, NoticeContext};
use crate::shared::cells::CallMachines;
use crate::shared::followers::RunRegistration;

/// The driver of one call.
pub(super) struct CallDriver {
    pub(super) calls: Arc<CallServices>,
    pub(super) envelope: Arc<CallEnvelope>,
    pub(super) call: Call,
    pub(super) cells: CallMachines,
    pub(super) store: Arc<dyn StateStore>,
    pub(super) tool: Arc<dyn DynTool>,
    pub(super) slot: Arc<CallerSlot>,
    pub(super) asker: Option<Arc<dyn ApprovalPrompter>>,
    /// The listener for this call alone.
    pub(super) listener: Option<Arc<dyn EngineListener>>,
    pub(super) notices: Vec<CallNotice>,
    /// All events that were fed to the machine, for a later replay.
    pub(super) trail: EventTrail,
    pub(super) surface: SurfaceFacts,
    pub(super) activity: DriverActivity,
    /// The future that ends an attempt with an unknown outcome, if its end is visible.
    pub(super) ending: Option<AttemptEndFuture>,
    pub(super) is_settling: bool,
    pub(super) entered: Option<(RecordKey, RunRegistration)>,
    pub(super) renewal: LeaseRenewal,
    /// Owner of the run, if its result could not be saved.
    pub(super) unsaved: Option<ClaimOwner>,
    pub(super) stopped: bool,
    /// Notice of an unknown outcome. Operators are notified if the outcome is still unknown at the end of the call.
    pub(super) unnotified: Option<CallNotice>,
    /// Sequence number of the call's arrival.
    pub(super) received: u64,
    /// Runs with an unknown outcome that this call verifies, if it is a read that succeeds.
    pub(super) looks_into: Vec<ClaimOwner>,
    /// Registry with the tool that verifies if this call took effect. Used once.
    pub(super) registry: Option<Arc<dyn ToolRegistry>>,
}

/// The activity that the machine waits for.
pub(super) enum DriverActivity {
    Nothing,
    Attempt { running: AttemptFuture, number: u32, started: Timestamp },
    Following { key: RecordKey, changed: Pin<Box<dyn Future<Output = WakeReason> + Send>> },
    Asking { id: ParkedRequestId, ask: Box<ApprovalRequest>, caller: Option<ClientDecisionFuture> },
}

/// State of the lease renewal.
pub(super) enum LeaseRenewal {
    /// There is no lease to renew.
    None,
    /// The renewal is due at this time.
    Due(Timestamp),
    /// The renewal is in flight.
    Asked(Pin<Box<dyn Future<Output = Result<RenewalResult, StoreError>> + Send>>),
}

/// Result of a renewal.
pub(super) struct RenewalResult {
    pub(super) owner: ClaimOwner,
    pub(super) sent: Timestamp,
    pub(super) verdict: RenewVerdict,
}

impl CallDriver {
    #[expect(clippy::too_many_arguments, reason = "the parts of a call, named once")]
    pub(super) fn new(
        calls: Arc<CallServices>,
        envelope: Arc<CallEnvelope>,
        call: Call,
        cells: CallMachines,
        store: Arc<dyn StateStore>,
        tool: Arc<dyn DynTool>,
        slot: Arc<CallerSlot>,
        asker: Option<Arc<dyn ApprovalPrompter>>,
        notices: Vec<CallNotice>,
    ) -> Self {
        let (activity, renewal) = (DriverActivity::Nothing, LeaseRenewal::None);
        Self {
            calls,
            envelope,
            call,
            cells,
            store,
            tool,
            slot,
            asker,
            listener: None,
            notices,
            trail: EventTrail::default(),
            surface: SurfaceFacts::default(),
            activity,
            ending: None,
            is_settling: false,
            entered: None,
            renewal,
            unsaved: None,
            stopped: false,
            unnotified: None,
            received: 0,
            looks_into: Vec::new(),
            registry: None,
        }
    }

    /// Notes a read-only call that can show if earlier calls of this session at the same server took effect.
    pub(super) fn note_read(&mut self) {
        let (request, policy) = (self.call.request(), self.call.policy());
        if policy.class == ToolClass::ReadOnly {
            let session = SessionId::of(request);
            self.looks_into = self.calls.verifications.read_begins(&session, &request.tool.namespace);
        }
    }

    pub(super) fn others(&self) -> OtherWaiters {
        self.entered.as_ref().map_or(OtherWaiters::None, |(_, entered)| entered.others())
    }

    /// Returns the facts of the call for listeners.
    pub(super) fn about(&self) -> NoticeContext<'_> {
        NoticeContext {
            envelope: &self.envelope,
            request: self.call.request(),
            policy: self.call.policy(),
            at: self.calls.clock.now(),
        }
    }

    pub(super) fn store_trouble(&self, error: &StoreError) {
        self.calls.telemetry.store_failed(self.store.kind(), error);
    }

    pub(super) fn store_failed(&self, error: &StoreError) -> CallEvent {
        self.store_trouble(error);
        CallEvent::StoreFailed(error.fault())
    }

    pub(super) fn tell(&mut self) {
        let unknown = self.notices.iter().find(|notice| matches!(notice, CallNotice::OutcomeUnknown { .. }));
        if let Some(unknown) = unknown {
            self.unnotified = Some(unknown.clone());
        }
        if self.notices.is_empty() {
            return;
        }
        let coarser = || DependencyKey::coarser(&self.envelope, self.call.request());
        self.calls.persister.marks.note(self.call.request(), coarser, &self.notices);
        let mut notices = std::mem::take(&mut self.notices);
        let own = self.listener.as_deref();
        if own.is_some() || self.calls.telemetry.has_listeners() {
            self.calls.telemetry.notices(&self.about(), own, &mut notices);
        } else {
            notices.clear();
        }
        self.notices = notices;
    }
}
