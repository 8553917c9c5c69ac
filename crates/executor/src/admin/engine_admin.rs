//! The component through which surfaces read and change the state of an engine.

use std::sync::Arc;

use steadfast_core::dedupe::ProcessIdentity;
use steadfast_store::{StateStore, TimeSource};

use super::guard_trips::GuardTrips;
use crate::observe::audit::AuditLog;
use crate::observe::failures::FailureLog;
use crate::observe::history::CallHistory;
use crate::observe::telemetry_hooks::TelemetryHooks;
use crate::shared::approvals::ApprovalBook;
use crate::shared::cells::MachineRegistry;
use crate::shared::persistence::Persister;
use crate::shared::policies::PolicyResolver;

/// The state of an engine for operators: breakers, guards, trust, records, tools, approvals and journals. See
/// [`Engine::admin`](crate::Engine::admin).
///
/// A change applies also to other processes that share the store, and is recorded in the audit log.
#[derive(Debug)]
pub struct EngineAdmin {
    pub(crate) clock: Arc<dyn TimeSource>,
    pub(crate) store: Arc<dyn StateStore>,
    /// The store for read-only calls.
    pub(crate) local: Arc<dyn StateStore>,
    pub(crate) process: ProcessIdentity,
    pub(crate) machines: Arc<MachineRegistry>,
    pub(crate) policies: Arc<PolicyResolver>,
    pub(crate) persister: Arc<Persister>,
    pub(crate) approvals: Arc<ApprovalBook>,
    pub(crate) hooks: Arc<TelemetryHooks>,
    pub(crate) audit: AuditLog,
    pub(crate) history: Arc<CallHistory>,
    pub(crate) failures: Arc<FailureLog>,
    pub(crate) trips: GuardTrips,
}
