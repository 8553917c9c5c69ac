//! The builder of engines.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use steadfast_core::dedupe::ProcessIdentity;
use steadfast_core::policy::{PolicyProfile, ToolClass};
use steadfast_core::trust::TrustBounds;
use steadfast_store::{
    JournalLimits, LocalProcessMonitor, MemoryOptions, MemoryStore, StateStore, SystemClock, TimeSource,
    this_process,
};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::api::{Engine, EngineInner};
use super::tasks;
use crate::admin::engine_admin::EngineAdmin;
use crate::admin::guard_trips::GuardTrips;
use crate::call::hooks::{HookRunner, Hooks};
use crate::call::policy_source::PolicySource;
use crate::drive::gate::CallGate;
use crate::drive::host_calls::HostCalls;
use crate::drive::services::CallServices;
use crate::observe::audit::AuditLog;
use crate::observe::failures::FailureLog;
use crate::observe::history::{self, CallHistory};
use crate::observe::listener::EngineListener;
use crate::observe::telemetry_hooks::TelemetryHooks;
use crate::shared::approvals::ApprovalBook;
use crate::shared::cells::MachineRegistry;
use crate::shared::documents::DirtyDocuments;
use crate::shared::pauses::DedupePauses;
use crate::shared::persistence::Persister;
use crate::shared::policies::PolicyResolver;
use crate::shared::tool_lists::ToolLists;
use crate::shared::trust_file::{TrustFile, TrustStorage};
use crate::shared::verification_log::VerificationLog;
use crate::state::EngineState;
use crate::turns::runner::EngineTurns;
use crate::turns::trace_journal::{self, TraceJournal};
use crate::writes::deferred::RetryQueue;
use crate::writes::deliveries::Deliveries;

impl Engine {
    /// Returns a builder with all defaults: the standard profile, and an in-memory store.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }
}

/// A builder of engines.
#[derive(Default)]
pub struct EngineBuilder {
    clock: Option<Arc<dyn TimeSource>>,
    store: Option<Arc<dyn StateStore>>,
    policies: Option<Box<dyn PolicySource>>,
    hooks: Option<Arc<dyn Hooks>>,
    listeners: Vec<Arc<dyn EngineListener>>,
    process: Option<ProcessIdentity>,
    max_calls: Option<usize>,
    trust_storage: TrustStorage,
    trust_history: Option<usize>,
    records_in_memory: Option<usize>,
    history: Option<JournalLimits>,
    traces: Option<JournalLimits>,
    maintenance_only: bool,
}

impl EngineBuilder {
    /// Sets the store of the call records. Default: in memory.
    pub fn store(mut self, store: Arc<dyn StateStore>) -> Self {
        self.store = Some(store);
        self
    }

    /// Sets the source of policies. Default: the standard profile, with no tool class.
    pub fn policies(mut self, policies: impl PolicySource) -> Self {
        self.policies = Some(Box::new(policies));
        self
    }

    /// Sets the user code that runs at named points of a call.
    pub fn hooks(mut self, hooks: Arc<dyn Hooks>) -> Self {
        self.hooks = Some(hooks);
        self
    }

    /// Adds a listener for all events. May be called more than once.
    pub fn listener(mut self, listener: Arc<dyn EngineListener>) -> Self {
        self.listeners.push(listener);
        self
    }

    /// Sets the clock. Default: the system clock.
    pub fn clock(mut self, clock: Arc<dyn TimeSource>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets the process identity under which claims are made. Default: this process.
    pub fn process(mut self, process: ProcessIdentity) -> Self {
        self.process = Some(process);
        self
    }

    /// Sets the maximum number of calls in flight. Calls beyond it are refused at once. Each takes a few KiB.
    pub fn max_calls(mut self, most: usize) -> Self {
        self.max_calls = Some(most);
        self
    }

    /// Marks a short-lived engine that makes no calls. It does not search for calls whose process is gone.
    pub fn maintenance_only(mut self) -> Self {
        self.maintenance_only = true;
        self
    }

    /// Sets the size of the call history. Default: 100,000 calls, for a day.
    pub fn history(mut self, keep: JournalLimits) -> Self {
        self.history = Some(keep);
        self
    }

    /// Stores the trust of calls without a tenant in this file instead of the store.
    pub fn trust_file(self, file: TrustFile) -> Self {
        self.trust_storage(TrustStorage::InFile(file))
    }

    /// Sets the place where trust is stored beyond this process. Default: the store.
    pub fn trust_storage(mut self, storage: TrustStorage) -> Self {
        self.trust_storage = storage;
        self
    }

    /// Sets the size of the stored traces of turns, counted in entries. Default: 200,000, for a day.
    pub fn traces(mut self, keep: JournalLimits) -> Self {
        self.traces = Some(keep);
        self
    }

    /// Sets the number of failures in the trust history, for calls without a tenant. Default: 1000.
    pub fn trust_history(mut self, most: usize) -> Self {
        self.trust_history = Some(most);
        self
    }

    /// Sets the maximum number of records in memory: those of read-only calls, and all records if no store is set.
    /// Default: 25,000. Each takes about as much memory as the response in it.
    pub fn records_in_memory(mut self, most: usize) -> Self {
        self.records_in_memory = Some(most);
        self
    }

    /// Starts the engine and loads the stored state. If the store fails now, the engine starts anyway and loads the
    /// state when the store recovers.
    ///
    /// Needs a tokio runtime whose time driver is enabled. The engine keeps it: calls that are polled or dropped on
    /// other threads have their timers and their remaining work there. The runtime must live as long as the engine.
    pub async fn start(self) -> Engine {
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock::default()));
        let process = self.process.unwrap_or_else(this_process);
        let memory = || -> Arc<dyn StateStore> {
            let usual = MemoryOptions::new(clock.clone());
            Arc::new(MemoryStore::new(MemoryOptions {
                most: self.records_in_memory.unwrap_or(usual.most),
                process: process.clone(),
                sight: Arc::new(LocalProcessMonitor::of(process.clone())),
                ..usual
            }))
        };
        let usual = TrustBounds::default();
        let trust_bounds = TrustBounds { history: self.trust_history.unwrap_or(usual.history), ..usual };
        let (deliveries, arrivals) = Deliveries::new();
        let state = Arc::new(EngineState::new(process.clone(), &*clock, Handle::current()));
        let local = memory();
        let store = self.store.unwrap_or_else(memory);
        let telemetry = Arc::new(TelemetryHooks::to(self.listeners));
        let machines = Arc::new(MachineRegistry::new(state.seed(), trust_bounds));
        let source = self
            .policies
            .unwrap_or_else(|| Box::new(Arc::new(PolicyProfile::Standard.policy(ToolClass::Unknown))));
        let policies = Arc::new(PolicyResolver::new(source, machines.clone()));
        let approvals = Arc::new(ApprovalBook {
            store: store.clone(),
            clock: clock.clone(),
            state: state.clone(),
            machines: machines.clone(),
            policies: policies.clone(),
            hooks: telemetry.clone(),
        });
        let persister = Arc::new(Persister {
            store: store.clone(),
            clock: clock.clone(),
            state: state.clone(),
            machines: machines.clone(),
            policies: policies.clone(),
            approvals: approvals.clone(),
            hooks: telemetry.clone(),
            trust_storage: self.trust_storage,
            trust_bounds,
            marks: DirtyDocuments::default(),
        });
        let limits = self.history.unwrap_or(history::KEEP);
        let history = Arc::new(CallHistory::new(store.clone(), telemetry.clone(), limits, state.tag.clone()));
        let failures = Arc::new(FailureLog::new(store.clone(), telemetry.clone()));
        let admin = EngineAdmin {
            clock: clock.clone(),
            store: store.clone(),
            local: local.clone(),
            process,
            machines: machines.clone(),
            policies: policies.clone(),
            persister: persister.clone(),
            approvals: approvals.clone(),
            hooks: telemetry.clone(),
            audit: AuditLog::new(store.clone(), clock.clone(), telemetry.clone()),
            history: history.clone(),
            failures: failures.clone(),
            trips: GuardTrips::default(),
        };
        let tool_lists = Arc::new(ToolLists::new(store.clone(), clock.clone(), policies.clone()));
        let traces = self.traces.unwrap_or(trace_journal::KEEP);
        let traces = Arc::new(TraceJournal::new(store.clone(), telemetry.clone(), traces));
        let calls = Arc::new(CallServices {
            retries: RetryQueue::new(clock.clone(), approvals.clone()),
            state,
            clock,
            store,
            local,
            gate: Arc::new(CallGate::of_at_most(self.max_calls.unwrap_or(MOST_CALLS))),
            policies,
            machines,
            runs: Arc::default(),
            hooks: HookRunner(self.hooks),
            pauses: DedupePauses::default(),
            approvals,
            persister,
            deliveries,
            verifications: VerificationLog::default(),
            telemetry,
            history,
            failures,
            admin,
        });
        let inner = EngineInner {
            turns: EngineTurns::new(calls.clone(), traces.clone()),
            hosted: HostCalls::default(),
            traces: traces.clone(),
            tool_lists,
            calls: calls.clone(),
        };
        let shutdown = CancellationToken::new();
        // Ends the tasks also if this future is dropped while it loads.
        let life = Arc::new(shutdown.clone().drop_guard());
        let task = |work: Pin<Box<dyn Future<Output = ()> + Send>>| {
            let shutdown = shutdown.clone();
            tokio::spawn(async move {
                tokio::select! {
                    () = work => {}
                    () = shutdown.cancelled() => {}
                }
            });
        };
        task(Box::pin(tasks::listen_to_store(calls.clone())));
        calls.persister.load().await;
        calls.admin.load_scores().await;
        calls.persister.load_trust_file();
        calls.state.set_loaded();
        let persister = calls.persister.clone();
        task(Box::pin(async move { persister.run().await }));
        let history = calls.history.clone();
        task(Box::pin(async move { history.run().await }));
        let failures = calls.failures.clone();
        task(Box::pin(async move { failures.run().await }));
        task(Box::pin(async move { traces.run().await }));
        task(Box::pin(tasks::sweep(calls.clone(), !self.maintenance_only)));
        let retrying = calls.clone();
        task(Box::pin(async move { retrying.retries.run().await }));
        task(Box::pin(async move { calls.deliveries.write(arrivals).await }));
        Engine { inner: Arc::new(inner), _life: life }
    }
}

impl fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineBuilder").field("store", &self.store).finish_non_exhaustive()
    }
}

/// Default maximum number of calls in flight.
const MOST_CALLS: usize = 10_000;
