//! The entry point of the crate: calls, options, shutdown and the builder.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::io::Write as _;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::approval::ApprovalChannel;
use steadfast_core::call::{
    Call, CallId, CallNotice, CallRequest, CallResult, CallerKeyScope, CallerPatience, EqualCallPolicy,
    IntakeContext, RunnerKind,
};
use steadfast_core::code::Code;
use steadfast_core::dedupe::{Claim, ClaimOwner, LocalKnowledge, ProcessIdentity, RunId};
use steadfast_core::envelope::{
    BreakerHint, CallEnvelope, EnvelopeError, ErrorBody, ResultEnvelope, UnknownFieldPolicy,
};
use steadfast_core::id::{ActorId, Digest, Domain, TurnId};
use steadfast_core::notification::Notification;
use steadfast_core::policy::{AnnotationHints, ArgumentCheck, CallPolicy, PolicyProfile, ToolClass};
use steadfast_core::trust::TrustBounds;
use steadfast_json::JsonDocument;
use steadfast_replay::{EventTrail, RecordedEvent, RecordedEventKind};
use steadfast_store::{
    JournalEntry, JournalLimits, LocalProcessMonitor, MemoryOptions, MemoryStore, StateStore, StoreError,
    SystemClock, TimeSource, this_process,
};
use tokio::runtime::Handle;
use tokio::sync::{Notify, broadcast};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::admin::guards::GuardTrips;
use crate::call::hooks::{HookRunner, Hooks};
use crate::call::policy_source::PolicySource;
use crate::call::registry::ToolRegistry;
use crate::call::signals::{AttemptCancellation, CallSignals};
use crate::call::tool::{DynTool, ToolDescription, ToolHandler};
use crate::call::tool_info::{ArgumentAssistance, ToolInfo};
use crate::drive::steps::CallDriver;
use crate::engine::host_calls::HostCalls;
use crate::observe::failures;
use crate::observe::history::{self, FinishedCall, SurfaceFacts};
use crate::observe::listener::{EngineEvent, EngineListener, NoticeContext, RejectedCall, TelemetryHooks};
use crate::shared::approvals::ApprovalPrompter;
use crate::shared::cells::{CallMachines, DependencyKey, MachineRegistry, SessionId, ToolKey};
use crate::shared::followers::InFlightRuns;
use crate::shared::pauses::DedupePauses;
use crate::shared::persistence::DirtyDocuments;
use crate::shared::tool_lists::ToolListCache;
use crate::shared::trust_file::{TrustFile, TrustStorage};
use crate::shared::verification_log::{OutcomeRecipient, VerificationLog};
use crate::turns::{self, RunningTurns};
use crate::writes::deferred::RetryQueue;
use crate::writes::deliveries::{Deliveries, DeliveryHandle};
use crate::writes::queue::WriteQueue;

/// Runs calls with deduplication, retries, circuit breakers, approvals and the other mechanisms of Steadfast.
/// Cheap to clone; all clones are one engine.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) inner: Arc<EngineInner>,
    /// Ends the engine's own tasks when the last clone is dropped.
    _life: Arc<DropGuard>,
}

/// The state that all clones of an engine share.
pub(crate) struct EngineInner {
    pub(crate) clock: Arc<dyn TimeSource>,
    pub(crate) store: Arc<dyn StateStore>,
    /// The store for read-only calls. Losing its records costs one more run and nothing else.
    pub(crate) local: Arc<dyn StateStore>,
    pub(crate) policies: Box<dyn PolicySource>,
    pub(crate) machines: MachineRegistry,
    pub(crate) runs: Arc<InFlightRuns>,
    pub(crate) hooks: HookRunner,
    pub(crate) keeper: RetryQueue,
    pub(crate) deliveries: Deliveries,
    pub(crate) verifications: VerificationLog,
    pub(crate) telemetry_hooks: TelemetryHooks,
    pub(crate) stopping: CancellationToken,
    /// Background tasks that a shutdown waits for: turns that are released because their runner is gone, writes of tool
    /// lists, and checks of open records.
    pub(crate) background_tasks: TaskTracker,
    pub(crate) hosted: HostCalls,
    pub(crate) marks: DirtyDocuments,
    pauses: DedupePauses,
    pub(crate) history: WriteQueue<FinishedCall>,
    pub(crate) failures: WriteQueue<steadfast_core::classify::record::FailureRecord>,
    pub(crate) registered: ToolListCache,
    pub(crate) history_kept: JournalLimits,
    pub(crate) traces_kept: JournalLimits,
    pub(crate) trips: GuardTrips,
    pub(crate) trace_queue: WriteQueue<JournalEntry>,
    pub(crate) running_turns: RunningTurns,
    pub(crate) trust_kept: TrustStorage,
    pub(crate) trust_bounds: TrustBounds,
    gate: CallGate,
    /// True once the state that was stored before this process started has been loaded.
    pub(crate) is_loaded: AtomicBool,
    pub(crate) process: ProcessIdentity,
    /// Name of this engine in the ids of its runs and in its history.
    pub(crate) tag: Arc<str>,
    /// Sequence number of all events that are fed to call machines, in their order.
    pub(crate) sequence: AtomicU64,
    seed: u64,
}

/// The response to a call, with what the surface needs to deliver it.
#[derive(Clone, Debug)]
pub struct CallResponse {
    /// The result.
    pub result: ResultEnvelope,
    /// Handle for marking the response as [delivered](Engine::mark_delivered), where that matters.
    pub delivery: Option<DeliveryHandle>,
    /// Remarks of the loop guard for the model, one paragraph each. The error text of the result contains them too.
    /// They are for surfaces that pass the tool's own output on unchanged.
    pub remarks: Vec<Cow<'static, str>>,
    /// Maximum bytes of output text to give to the caller, if limited. The output here is complete: a surface that
    /// stores the rest for its caller shortens it.
    pub text_limit: Option<usize>,
}

/// Facts about a call that the surface knows and the envelope does not contain.
#[derive(Clone, Debug)]
pub struct CallOptions {
    /// Possibility to request approval while the call waits.
    pub channel: ApprovalChannel,
    /// Interface to the user at the client, for surfaces that can ask one. Operators are asked as well.
    pub prompter: Option<Arc<dyn ApprovalPrompter>>,
    /// Details of the tool beyond its name.
    pub tool: Option<Arc<ToolInfo>>,
    /// Handling of equal calls without an idempotency key. A surface that joins them must report which responses were
    /// [delivered](Engine::mark_delivered): until then a response is replayed.
    pub equal_calls: EqualCallPolicy,
    /// The client's id of this dispatch, if it has one. A resend of the same dispatch gets the same response. Used only
    /// if there is no idempotency key.
    pub call_id: Option<CallId>,
    /// Scope of the idempotency keys that callers give.
    pub key_scope: CallerKeyScope,
    /// Time for which the caller is known to wait.
    pub waits: CallerPatience,
    /// Digest of the input that the client brings back to a call that asked for it, so that this round is a different
    /// call from the first. See [`continuation_digest`](steadfast_core::key::continuation_digest).
    pub continuation: Option<Digest>,
    /// The trace that the call belongs to, for hosts that name no turn and may use traces as turns. A trace counts as a
    /// turn if two calls of a conversation share it.
    pub trace: Option<TurnId>,
    /// A listener for this call alone. It must be quick and must not panic.
    pub listener: Option<Arc<dyn EngineListener>>,
    /// Membership of the call in a turn that may be submitted again.
    pub in_turn: TurnResubmission,
    /// Time after which no attempt starts. An attempt that already runs continues.
    pub start_by: Option<Timestamp>,
    /// Read-only tools of the same server, by which a caller can find out if a call took effect.
    pub reads: Arc<[Box<str>]>,
    /// Registry with the tool that verifies the effect of a call, if such a tool is configured.
    pub registry: Option<Arc<dyn ToolRegistry>>,
}

/// Membership of a call in a turn that may be submitted again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TurnResubmission {
    /// The call belongs to no such turn.
    #[default]
    NotPossible,
    /// The call belongs to such a turn. Its end is stored durably in every case, and its key never stands for another
    /// call.
    Possible,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self {
            channel: ApprovalChannel::Headless,
            prompter: None,
            tool: None,
            equal_calls: EqualCallPolicy::Separate,
            call_id: None,
            key_scope: CallerKeyScope::Conversation,
            waits: CallerPatience::MayGiveUp,
            continuation: None,
            trace: None,
            listener: None,
            in_turn: TurnResubmission::NotPossible,
            start_by: None,
            reads: Arc::default(),
            registry: None,
        }
    }
}

/// Result of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownReport {
    /// Number of calls that had to be ended. Their outcome is recorded as unknown, unless they are safe to run again.
    pub ended: usize,
    /// Number of store operations that did not complete and are lost with this process.
    pub lost: usize,
}

impl Engine {
    /// Returns a builder with all defaults: the standard profile, and an in-memory store.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

    /// Parses a call. A call that cannot be parsed is reported to the listeners, and the error is the response.
    pub fn read(&self, text: &[u8], unknown: UnknownFieldPolicy) -> Result<CallEnvelope, EnvelopeError> {
        self.read_from(text, unknown, None)
    }

    /// Parses a call like [`read`](Self::read). If the sender is known, it becomes the actor of a call that names none.
    pub fn read_from(
        &self,
        text: &[u8],
        unknown: UnknownFieldPolicy,
        sender: Option<&ActorId>,
    ) -> Result<CallEnvelope, EnvelopeError> {
        CallEnvelope::parse_from(text, unknown, sender).inspect_err(|error| {
            self.inner.turn_away(None, &ErrorBody::from(error));
        })
    }

    /// Makes a call. The tool runs as often as the policy allows, and the future completes in bounded time.
    ///
    /// Dropping the future is a disconnect: an attempt that has not started is abandoned and its claim released. One
    /// that has started continues, and its result is recorded.
    pub fn call(&self, envelope: CallEnvelope, tool: impl ToolHandler) -> PendingCall {
        self.call_with(envelope, tool, CallOptions::default())
    }

    /// Makes a call like [`call`](Self::call), with facts that the envelope does not contain.
    pub fn call_with(
        &self,
        envelope: CallEnvelope,
        tool: impl ToolHandler,
        options: CallOptions,
    ) -> PendingCall {
        self.dispatch(Arc::new(envelope), Arc::new(tool), options, RunnerKind::Driver)
    }

    /// Marks a response as delivered. From now on, equal calls without an idempotency key are new calls.
    pub fn mark_delivered(&self, arrival: DeliveryHandle) {
        if let Some(told) = arrival.told.clone() {
            self.inner.verifications.told(told, arrival.receipt.owner.clone());
        }
        let now = arrival.store.now();
        self.inner.deliveries.arrived(arrival, now);
    }

    /// Returns the policy for an envelope, for surfaces that do more with a tool's server than call it.
    pub fn policy_of(&self, envelope: &CallEnvelope) -> Result<Arc<CallPolicy>, EnvelopeError> {
        let params = CallRequest::params(envelope)?;
        Ok(self.inner.policies.policy(envelope, params.root(), AnnotationHints::default()))
    }

    /// Returns the current time of the engine's clock.
    pub fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    /// Subscribes to the events of all calls. A reader that is too slow misses events and gets an error that says so.
    pub fn events(&self) -> broadcast::Receiver<EngineEvent> {
        self.inner.telemetry_hooks.stream()
    }

    /// Subscribes to the notifications for operators. A reader that is too slow misses some and gets an error that says
    /// so.
    pub fn notifications(&self) -> broadcast::Receiver<Arc<Notification>> {
        self.inner.telemetry_hooks.notifications()
    }

    /// Returns the number of calls in flight.
    pub fn in_flight_calls(&self) -> usize {
        self.inner.gate.open.load(Ordering::Acquire)
    }

    /// Accepts no more calls, waits for those in flight, and ends them after `limit`. Calls that may have taken effect
    /// are recorded with an unknown outcome.
    ///
    /// It also waits for calls whose caller already has a response. These continue only while their record is open: a
    /// result that comes in time is saved and turns the unknown outcome into a known one. Ending them sooner would only
    /// leave calls that an operator has to resolve.
    pub async fn shutdown(&self, limit: Duration) -> ShutdownReport {
        let inner = &self.inner;
        inner.gate.closing.store(true, Ordering::Release);
        let drained = tokio::time::timeout(limit, inner.gate.empty()).await.is_ok();
        let ended = if drained { 0 } else { self.in_flight_calls() };
        inner.stopping.cancel();
        // Calls that were told to end still have a last chance to report and one store operation.
        let _ = tokio::time::timeout(LAST_STEPS, inner.gate.empty()).await;
        let _ = tokio::time::timeout(LAST_STEPS, inner.keeper.drain(inner)).await;
        inner.background_tasks.close();
        let _ = tokio::time::timeout(LAST_STEPS, inner.background_tasks.wait()).await;
        let _ = tokio::time::timeout(LAST_STEPS, inner.persist_now()).await;
        let _ = tokio::time::timeout(LAST_STEPS, inner.write_history_now()).await;
        let _ = tokio::time::timeout(LAST_STEPS, inner.write_failures_now()).await;
        let _ = tokio::time::timeout(LAST_STEPS, inner.write_stories_now()).await;
        ShutdownReport { ended, lost: inner.keeper.len() }
    }

    pub(crate) fn dispatch(
        &self,
        envelope: Arc<CallEnvelope>,
        tool: Arc<dyn DynTool>,
        options: CallOptions,
        run_by: RunnerKind,
    ) -> PendingCall {
        self.inner.dispatch(envelope, tool, options, run_by)
    }
}

impl EngineInner {
    pub(crate) fn dispatch(
        self: &Arc<Self>,
        envelope: Arc<CallEnvelope>,
        tool: Arc<dyn DynTool>,
        options: CallOptions,
        run_by: RunnerKind,
    ) -> PendingCall {
        let desk = Arc::new(CallerSlot::default());
        let Some(place) = CallGate::enter(self) else {
            desk.give(self.turned_away(&envelope, self.gate.refusal()));
            return PendingCall { drive: None, desk };
        };
        let received = CallArrival { order: self.next_sequence(), at: self.clock.now() };
        let drive = drive(self.clone(), place, envelope, tool, desk.clone(), options, run_by, received);
        PendingCall { drive: Some(Box::pin(drive)), desk }
    }
}

/// Arrival of a call.
#[derive(Clone, Copy)]
struct CallArrival {
    /// Its sequence number.
    order: u64,
    at: Timestamp,
}

/// Runs one call from its arrival to its end.
#[expect(clippy::too_many_arguments, reason = "the parts of a call, named once")]
async fn drive(
    inner: Arc<EngineInner>,
    place: CallPermit,
    envelope: Arc<CallEnvelope>,
    tool: Arc<dyn DynTool>,
    desk: Arc<CallerSlot>,
    mut options: CallOptions,
    run_by: RunnerKind,
    received: CallArrival,
) {
    let hook_key = match envelope.payload.idempotency_key {
        None => inner.hooks.key(&envelope).await,
        Some(_) => None,
    };
    let number = CALLS.fetch_add(1, Ordering::Relaxed);
    let mut taken = inner.take_in(&envelope, &options, hook_key.as_deref(), number);
    // A tool is not asked to describe itself if no mechanism acts on the call.
    if let Ok((policy, _)) = &taken
        && options.tool.is_none()
        && (!policy.modes.is_pass_through() || inner.acts_on_some_class(&envelope))
        && let Some(ToolDescription { info, reads }) = tool.any_describe().await
    {
        (options.tool, options.reads) = (info, reads);
        taken = inner.take_in(&envelope, &options, hook_key.as_deref(), number);
    }
    let (policy, mut request) = match taken {
        Ok(taken) => taken,
        Err(error) => return desk.give(inner.turned_away(&envelope, ErrorBody::from(&error))),
    };
    request.run_by = run_by;
    request.end = tool.any_sees_end();
    request.reads = options.reads;
    request.limits.start_by = options.start_by;
    desk.left_alone.store(policy.modes.is_pass_through(), Ordering::Release);
    let (asker, listener) = (options.prompter, options.listener);
    let annotations = options.tool.as_ref().map(|tool| tool.annotations).unwrap_or_default();
    let surface = SurfaceFacts { annotations, in_turn: options.in_turn };
    if let (ArgumentCheck::Assist, false, Some(tool)) =
        (policy.arguments, policy.modes.is_pass_through(), options.tool)
    {
        let put_there = policy.dedupe.key_argument.clone();
        desk.assist_with(ArgumentAssistance { envelope: envelope.clone(), tool, put_there });
    }
    let cells = inner.cells(&envelope, &request);
    let store = match policy.class {
        ToolClass::ReadOnly if options.in_turn == TurnResubmission::NotPossible => inner.local.clone(),
        ToolClass::ReadOnly | ToolClass::Idempotent | ToolClass::Mutating | ToolClass::Unknown => {
            inner.store.clone()
        }
    };
    request.computed_since = inner.pauses.before(&request, policy.modes.dedupe, || store.now());
    let seed = inner.seed_of(number);
    // Notices are passed on after each step, and few steps have more.
    let mut notices = Vec::with_capacity(4);
    let mut trail = EventTrail::new();
    let (call, step) = cells.with(|shared| {
        trail.add(RecordedEvent { order: inner.next_sequence(), after_ms: 0, what: RecordedEventKind::Came });
        Call::begin(shared, request, policy, seed, received.at, &mut notices)
    });
    let mut drive = CallDriver::new(inner, envelope, call, cells, store, tool, desk, asker, notices);
    drive.listener = listener;
    drive.trail = trail;
    drive.surface = surface;
    drive.received = received.order;
    drive.shelf = options.registry;
    drive.note_read();
    let result = drive.run(step).await;
    drive.finish(&result);
    drop(place);
}

/// Returns the schema that arguments are checked against before the tool is called, if the policy asks for that.
fn checked_against<'t>(tool: &'t ToolInfo, policy: &CallPolicy) -> Option<JsonDocument<'t>> {
    match policy.arguments {
        ArgumentCheck::Enforce => tool.schema(),
        ArgumentCheck::Assist | ArgumentCheck::Off => None,
    }
}

/// A call in flight. Dropping it leaves the call to the engine.
#[must_use = "a call that is not awaited is a disconnect"]
pub struct PendingCall {
    drive: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    pub(crate) desk: Arc<CallerSlot>,
}

impl PendingCall {
    /// Cancels the call. The call must still be awaited, because the cancellation may come too late.
    pub fn cancel(&self) {
        self.desk.control.cancel();
    }

    /// Returns true if no mechanism acts on the call, by the policy that it began with. Returns false until the call
    /// has begun, because its policy is not known before.
    pub fn is_bypassed(&self) -> bool {
        self.desk.left_alone.load(Ordering::Acquire)
    }

    /// Returns a handle that cancels the call from elsewhere.
    pub fn canceller(&self) -> CallCanceller {
        CallCanceller { desk: self.desk.clone() }
    }

    /// Returns a receiver of the progress signals of the call's attempts.
    pub fn progress_signals(&self) -> ProgressSignals {
        ProgressSignals { desk: self.desk.clone(), seen: 0 }
    }

    /// Moves the rest of the call to a task of its own.
    pub(crate) fn detach(&mut self) {
        if let Some(drive) = self.drive.take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(drive);
        }
    }
}

impl Future for PendingCall {
    type Output = CallResponse;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CallResponse> {
        if let Some(drive) = &mut self.drive
            && drive.as_mut().poll(context).is_ready()
        {
            self.drive = None;
        }
        let Some(called) = self.desk.take() else { return Poll::Pending };
        // The caller has its response: the rest continues without it.
        self.detach();
        Poll::Ready(called)
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if self.drive.is_some() {
            self.desk.control.gone();
            self.detach();
        }
    }
}

impl fmt::Debug for PendingCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingCall").field("over", &self.drive.is_none()).finish_non_exhaustive()
    }
}

/// A handle that cancels a call from elsewhere.
#[derive(Clone, Debug)]
pub struct CallCanceller {
    desk: Arc<CallerSlot>,
}

impl CallCanceller {
    /// Cancels the call. The cancellation may come too late.
    pub fn cancel(&self) {
        self.desk.control.cancel();
    }
}

/// A receiver of the progress signals of a call's attempts. A call that waits for another run has none.
#[derive(Debug)]
pub struct ProgressSignals {
    desk: Arc<CallerSlot>,
    seen: u32,
}

impl ProgressSignals {
    /// Waits for the next signal. Several signals since the last wait count as one.
    pub async fn next(&mut self) {
        self.seen = self.desk.control.signs(self.seen).await;
    }
}

/// State that a call shares with its caller: the response and the signals.
#[derive(Debug, Default)]
pub(crate) struct CallerSlot {
    pub(crate) control: CallSignals,
    pub(crate) unwanted: AttemptCancellation,
    answer: Mutex<Option<CallResponse>>,
    given: AtomicBool,
    pub(crate) answered: Notify,
    left_alone: AtomicBool,
    assistance: OnceLock<ArgumentAssistance>,
}

impl CallerSlot {
    /// Sends the response to the caller, once. `at` is its sequence number.
    pub(crate) fn answer(
        &self,
        result: &CallResult,
        request: &CallRequest,
        text_limit: Option<usize>,
        store: &Arc<dyn StateStore>,
        deliveries: &Deliveries,
        at: u64,
    ) {
        if !self.given.load(Ordering::Acquire) {
            let told = result.is_unknown_outcome().then(|| OutcomeRecipient {
                session: SessionId::of(request),
                server: request.tool.namespace.clone(),
            });
            let receipt = result.receipt.clone();
            let arrival = receipt.map(|receipt| deliveries.hand_over(receipt, store.clone(), told, at));
            let remarks = result.remarks().collect();
            let mut result = result.to_envelope(request);
            if let Some(assistance) = self.assistance.get() {
                assistance.add_to(&mut result);
            }
            self.give(CallResponse { result, delivery: arrival, remarks, text_limit });
        }
    }

    /// Sets the explanation to add for the model if the tool refuses the arguments.
    fn assist_with(&self, assistance: ArgumentAssistance) {
        // Each slot belongs to one call.
        let _ = self.assistance.set(assistance);
    }

    fn give(&self, called: CallResponse) {
        if !self.given.swap(true, Ordering::AcqRel) {
            *self.answer.lock() = Some(called);
            self.answered.notify_waiters();
        }
    }

    /// Returns true if the caller has its response.
    pub(crate) fn is_given(&self) -> bool {
        self.given.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self) -> Option<CallResponse> {
        if self.given.load(Ordering::Acquire) { self.answer.lock().take() } else { None }
    }
}

impl EngineInner {
    /// Returns the policy of a call and its request, from one parse of its parameters.
    fn take_in(
        &self,
        envelope: &CallEnvelope,
        options: &CallOptions,
        hook_key: Option<&str>,
        number: u64,
    ) -> Result<(Arc<CallPolicy>, CallRequest), EnvelopeError> {
        let params = CallRequest::params(envelope)?;
        let tool = options.tool.as_deref();
        let annotations = tool.map(|tool| tool.annotations).unwrap_or_default();
        let policy = self.policies.policy(envelope, params.root(), annotations);
        let policy = match options.in_turn {
            TurnResubmission::NotPossible => policy,
            TurnResubmission::Possible => Arc::new(policy.for_turn()),
        };
        let schema = tool.and_then(|tool| checked_against(tool, &policy));
        let intake = IntakeContext {
            process: &self.process,
            number,
            run: &self.run_id(number),
            channel: options.channel,
            hook_key,
            in_turn: options.in_turn == TurnResubmission::Possible,
            equal_calls: options.equal_calls,
            call_id: options.call_id.as_ref(),
            keys_of: options.key_scope,
            waits: options.waits,
            continuation: options.continuation,
            trace: options.trace.as_ref(),
            input_schema: schema.as_ref().map(JsonDocument::root),
        };
        let request = CallRequest::from_params(envelope, params.root(), &policy, intake);
        Ok((policy, request))
    }

    /// Returns the class of the tool of a call, as far as it is known.
    pub(crate) fn class_of(
        &self,
        envelope: &CallEnvelope,
        annotations: AnnotationHints,
    ) -> Option<ToolClass> {
        let params = CallRequest::params(envelope).ok()?;
        Some(self.policies.policy(envelope, params.root(), annotations).class)
    }

    /// Returns true if some mechanism would act on the tool for at least one class.
    fn acts_on_some_class(&self, envelope: &CallEnvelope) -> bool {
        let Ok(params) = CallRequest::params(envelope) else { return false };
        let read_only = AnnotationHints { read_only: Some(true), ..AnnotationHints::default() };
        let idempotent = AnnotationHints { idempotent: Some(true), ..AnnotationHints::default() };
        let mutating = AnnotationHints { read_only: Some(false), ..AnnotationHints::default() };
        [read_only, idempotent, mutating].into_iter().any(|annotations| {
            !self.policies.policy(envelope, params.root(), annotations).modes.is_pass_through()
        })
    }

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

    /// Returns the id of a run, made of the engine's name and the number of the call.
    fn run_id(&self, number: u64) -> RunId {
        // Both parts are short, so that the text needs no allocation before it is shared.
        let mut text = [0; 64];
        let mut rest = &mut text[..];
        let _ = write!(rest, "{}-{number:x}", self.tag);
        let left = rest.len();
        let written = text.get(..text.len() - left).unwrap_or_default();
        RunId(std::str::from_utf8(written).unwrap_or_default().into())
    }

    /// Returns the machines that this call shares with others.
    fn cells(&self, envelope: &CallEnvelope, request: &CallRequest) -> CallMachines {
        let machines = &self.machines;
        let tenant = &request.tenant;
        let own = machines.dependencies.get(&dependency(request));
        let coarser = coarser(envelope, request).map(|key| machines.dependencies.get(&key));
        CallMachines {
            tool: machines.tools.get(&ToolKey { tenant: tenant.clone(), tool: request.tool.clone() }),
            dependency: own,
            coarser,
            guard: machines.sessions.get(&SessionId::of(request)),
            tenant: machines.tenants.get(tenant),
            trust_of: match self.trust_kept {
                TrustStorage::NotStored => request.session.clone(),
                TrustStorage::InFile(_) | TrustStorage::InStore => None,
            },
        }
    }

    /// Returns the response to a rejected call and reports it to the listeners.
    fn turned_away(&self, envelope: &CallEnvelope, error: ErrorBody) -> CallResponse {
        self.turn_away(Some(envelope), &error);
        let result = ResultEnvelope::refused(envelope, error);
        CallResponse { result, delivery: None, remarks: Vec::new(), text_limit: None }
    }

    fn turn_away(&self, envelope: Option<&CallEnvelope>, error: &ErrorBody) {
        let number = CALLS.fetch_add(1, Ordering::Relaxed);
        self.telemetry_hooks.turned_away(&RejectedCall { envelope, error, at: self.clock.now() }, number);
    }

    pub(crate) fn about<'a>(&self, envelope: &'a CallEnvelope, call: &'a Call) -> NoticeContext<'a> {
        NoticeContext { envelope, request: call.request(), policy: call.policy(), at: self.clock.now() }
    }

    /// Returns the sequence number of the next event for a machine. Take it while the machine is borrowed, so that the
    /// numbers follow the order of the events.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a seed for this call number that no other engine shares.
    pub(crate) fn seed_of(&self, number: u64) -> u64 {
        spread(self.seed ^ number)
    }

    pub(crate) fn tell(
        &self,
        envelope: &CallEnvelope,
        call: &Call,
        own: Option<&dyn EngineListener>,
        notices: &mut Vec<CallNotice>,
    ) {
        if notices.is_empty() {
            return;
        }
        self.marks.note(call.request(), || coarser(envelope, call.request()), notices);
        if own.is_some() || self.telemetry_hooks.has_listeners() {
            self.telemetry_hooks.notices(&self.about(envelope, call), own, notices);
        } else {
            notices.clear();
        }
    }

    /// Removes expired records from the stores, counts the pending approvals, and finds calls whose process is gone,
    /// for as long as the engine lives.
    async fn sweep(self: &Arc<Self>, judges: bool) {
        let mut pause = SWEEP;
        let mut judge_at = self.clock.now();
        loop {
            if judges && judge_at <= self.clock.now() {
                judge_at = self.clock.now() + JUDGE_EVERY;
                // A shutdown waits for it: recording an unknown outcome includes the notification of operators.
                let judging = self.clone();
                let judged = self.background_tasks.spawn(async move { judging.judge_open_records().await });
                _ = judged.await;
            }
            tokio::time::sleep(pause).await;
            pause = SWEEP;
            for store in [&self.store, &self.local] {
                match store.sweep().await {
                    Ok(swept) if swept.more => pause = SWEEP_MORE,
                    Ok(_) => {}
                    Err(error) => self.store_trouble(&**store, &error),
                }
            }
            self.recount_waiting();
        }
    }

    pub(crate) fn store_trouble(&self, store: &dyn StateStore, error: &StoreError) {
        self.telemetry_hooks.store_failed(store.kind(), error);
    }
}

/// Returns the dependency of a call: the host that its arguments name, else the server of its tool.
fn dependency(request: &CallRequest) -> DependencyKey {
    let name = request.domain.as_ref().map_or_else(|| request.tool.namespace.to_shared(), Domain::to_shared);
    DependencyKey { tenant: request.tenant.clone(), name }
}

/// Returns the key of the coarser circuit breaker that the caller asked for.
pub(crate) fn coarser(envelope: &CallEnvelope, request: &CallRequest) -> Option<DependencyKey> {
    match envelope.transport.circuit_breaker_hint {
        None | Some(BreakerHint::Tool) => None,
        Some(BreakerHint::Dependency) => Some(dependency(request)),
        Some(BreakerHint::Global) => Some(DependencyKey { tenant: request.tenant.clone(), name: "*".into() }),
    }
}

impl fmt::Debug for EngineInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("store", &self.store.kind())
            .field("open", &self.gate.open)
            .finish_non_exhaustive()
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
    most_calls: Option<usize>,
    trust_kept: TrustStorage,
    trust_history: Option<usize>,
    records_in_memory: Option<usize>,
    history: Option<JournalLimits>,
    traces: Option<JournalLimits>,
    only_looks: bool,
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
        self.most_calls = Some(most);
        self
    }

    /// Marks a short-lived engine that makes no calls. It does not search for calls whose process is gone.
    pub fn maintenance_only(mut self) -> Self {
        self.only_looks = true;
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
    pub fn trust_storage(mut self, kept: TrustStorage) -> Self {
        self.trust_kept = kept;
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
    /// Needs a tokio runtime whose time driver is enabled.
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
        // Makes this engine differ from another one of this process that started in the same millisecond.
        let number = CALLS.fetch_add(1, Ordering::Relaxed);
        let me = ClaimOwner { process: process.clone(), call: number, claim: 0 }.digest();
        let seed = seed(me, clock.now().as_millis());
        let inner = Arc::new(EngineInner {
            local: memory(),
            store: self.store.unwrap_or_else(memory),
            policies: self
                .policies
                .unwrap_or_else(|| Box::new(Arc::new(PolicyProfile::Standard.policy(ToolClass::Unknown)))),
            machines: MachineRegistry::new(seed, trust_bounds),
            runs: Arc::default(),
            hooks: HookRunner(self.hooks),
            keeper: RetryQueue::new(),
            deliveries,
            verifications: VerificationLog::default(),
            telemetry_hooks: TelemetryHooks::to(self.listeners),
            stopping: CancellationToken::new(),
            background_tasks: TaskTracker::new(),
            hosted: HostCalls::default(),
            marks: DirtyDocuments::default(),
            pauses: DedupePauses::default(),
            history: history::new_queue(),
            failures: failures::new_queue(),
            registered: ToolListCache::default(),
            trips: GuardTrips::default(),
            trace_queue: turns::new_queue(),
            running_turns: RunningTurns::default(),
            history_kept: self.history.unwrap_or(history::KEEP),
            traces_kept: self.traces.unwrap_or(turns::TRACES_KEPT),
            trust_kept: self.trust_kept,
            trust_bounds,
            is_loaded: AtomicBool::new(false),
            gate: CallGate::of_at_most(self.most_calls.unwrap_or(MOST_CALLS)),
            tag: me.fingerprint().into(),
            sequence: AtomicU64::new(1),
            seed,
            process,
            clock,
        });
        let ended = CancellationToken::new();
        let task = |work: Pin<Box<dyn Future<Output = ()> + Send>>| {
            let ended = ended.clone();
            tokio::spawn(async move {
                tokio::select! {
                    () = work => {}
                    () = ended.cancelled() => {}
                }
            });
        };
        let listening = inner.clone();
        task(Box::pin(async move { listening.listen_to_store().await }));
        inner.load().await;
        inner.load_scores().await;
        if let TrustStorage::InFile(file) = &inner.trust_kept {
            inner.load_trust_file(file);
        }
        inner.is_loaded.store(true, Ordering::Release);
        let persisting = inner.clone();
        task(Box::pin(async move { persisting.persist().await }));
        let remembering = inner.clone();
        task(Box::pin(async move { remembering.write_history().await }));
        let failing = inner.clone();
        task(Box::pin(async move { failing.write_failures().await }));
        let telling = inner.clone();
        task(Box::pin(async move { telling.write_stories().await }));
        let sweeping = inner.clone();
        task(Box::pin(async move { sweeping.sweep(!self.only_looks).await }));
        let keeping = inner.clone();
        task(Box::pin(async move { keeping.keeper.run(&keeping).await }));
        let delivering = inner.clone();
        task(Box::pin(async move { delivering.deliveries.write(arrivals).await }));
        Engine { inner, _life: Arc::new(ended.drop_guard()) }
    }
}

impl fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineBuilder").field("store", &self.store).finish_non_exhaustive()
    }
}

/// Number of the next call of this process, across all its engines. Owner tokens are made of it and the process, and
/// two engines on one store must not make the same token.
pub(crate) static CALLS: AtomicU64 = AtomicU64::new(1);

/// Default maximum number of calls in flight.
const MOST_CALLS: usize = 10_000;
/// Interval of the sweeps, and the shorter one after a sweep that left work.
const SWEEP: Duration = Duration::from_secs(30);
const SWEEP_MORE: Duration = Duration::from_millis(100);
/// Interval of the search of open records for calls whose process has ended.
const JUDGE_EVERY: Duration = Duration::from_secs(5 * 60);
/// Time that calls have to end after they were told to.
const LAST_STEPS: Duration = Duration::from_secs(5);

/// Counter of the calls in flight.
#[derive(Debug)]
struct CallGate {
    open: AtomicUsize,
    most: usize,
    closing: AtomicBool,
    left: Notify,
}

/// A slot in the limit of calls in flight, released on drop.
struct CallPermit(Arc<EngineInner>);

impl CallGate {
    fn of_at_most(most: usize) -> Self {
        Self { open: AtomicUsize::new(0), most, closing: AtomicBool::new(false), left: Notify::new() }
    }

    fn enter(inner: &Arc<EngineInner>) -> Option<CallPermit> {
        let gate = &inner.gate;
        let inside = gate.open.fetch_add(1, Ordering::AcqRel);
        let place = CallPermit(inner.clone());
        // A slot is always counted and released on drop, also if there was no room.
        (inside < gate.most && !gate.closing.load(Ordering::Acquire)).then_some(place)
    }

    fn refusal(&self) -> ErrorBody {
        let why = if self.closing.load(Ordering::Acquire) {
            "the call was not run: steadfast is being shut down. Call again in a moment"
        } else {
            "the call was not run: concurrency limit reached. Wait a moment, then call again"
        };
        ErrorBody::temporary(Code::Overloaded, why)
    }

    async fn empty(&self) {
        loop {
            let left = self.left.notified();
            if self.open.load(Ordering::Acquire) == 0 {
                return;
            }
            left.await;
        }
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        let gate = &self.0.gate;
        if gate.open.fetch_sub(1, Ordering::AcqRel) == 1 && gate.closing.load(Ordering::Acquire) {
            gate.left.notify_waiters();
        }
    }
}

/// Returns a seed for jitter. It only has to differ between processes and calls; no safety depends on it.
fn seed(me: Digest, now: u64) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *me.as_bytes();
    spread(u64::from_be_bytes([a, b, c, d, e, f, g, h]) ^ now)
}

/// SplitMix64: maps neighbouring numbers to unrelated ones.
fn spread(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
