//! Runs turns: starts the calls that the machine orders, reports their results to it, and wakes it at the deadline.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use serde::Serialize;
use steadfast_core::Timestamp;
use steadfast_core::breaker::State as BreakerState;
use steadfast_core::call::{CallerPatience, RunnerKind};
use steadfast_core::classify::FaultNature;
use steadfast_core::code::Code;
use steadfast_core::envelope::{
    CallControl, CallEnvelope, CallHints, CallPayload, CallerIdentity, ContractVersion, EnvelopeTrace,
    ExtraFields, IdempotencyKey, PayloadVersion, TransportOptions, TurnControl,
};
use steadfast_core::id::{Digest, RequestId, ToolCallId, ToolRef, TurnId};
use steadfast_core::policy::ToolClass;
use steadfast_json::RawJson;
use steadfast_store::{JournalPage, StoreError, StoreErrorKind};
use steadfast_turn::trace::{ToolFailureDetails, TraceId, TraceNote, TurnFact};
use steadfast_turn::{
    CallNeed, CallProgress, CandidateChoice, DependantCounts, FailureFacts, PlannedCall, PlannedCallEnd,
    RepeatSafety, SubmissionHistory, ToolFacts, TurnCallFailure, TurnEndEffect, TurnEvent, TurnMachine,
    TurnPlan, TurnResult, TurnStep, UnknownOutcomeHandling, decide,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

use super::call_listener::{CallPolicyFacts, TurnCallChange, TurnCallEvent, TurnCallListener};
use super::hold::{self, HoldRequest, HoldResult, TurnHold};
use super::options::TurnOptions;
use super::parent_span::ParentSpan;
use super::trace_journal::{TraceJournal, TurnQuery, TurnTraceView};
use super::trace_recorder::TraceRecorder;
use crate::call::options::{CallOptions, TurnResubmission};
use crate::call::pending::CallCanceller;
use crate::call::registry::{ResolvedTool, ToolRegistry};
use crate::call::slot::CallResponse;
use crate::drive::services::CallServices;
use crate::observe::listener::TurnContext;
use crate::observe::turn_summary::TurnSummary;
use crate::state::next_call_number;

/// Result of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnResponse {
    /// The result.
    #[serde(flatten)]
    pub result: TurnResult,
    /// Its trace.
    #[serde(rename = "traceId")]
    pub trace: TraceId,
    /// Maximum bytes of output text to give to the caller for these calls. The outputs in the result are complete. See
    /// [`CallResponse::text_limit`].
    #[serde(skip)]
    pub text_limits: BTreeMap<ToolCallId, usize>,
}

/// Reason why a turn was not started. Nothing of it ran.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TurnRejection {
    /// The same turn is in flight, for at most this long.
    #[error(
        "the same turn is in flight: wait for it, or submit it again later; calls that it finishes are not run again"
    )]
    InFlight(Duration),
    /// The limit of concurrent turns is reached.
    #[error("{MOST_TURNS} turns run here already, which is the limit: submit it again in a moment")]
    Overloaded,
    /// The store failed, so that it is unknown which calls have already run.
    #[error("the turn was not started, because it is unknown which of its calls have run: {0}")]
    Store(StoreError),
}

/// The future of a call in flight.
type TurnCallFuture = Pin<Box<dyn Future<Output = (ToolCallId, TurnCallResponse)> + Send>>;

/// End of a call.
struct TurnCallResponse {
    called: CallResponse,
    tool: ToolRef,
    progress: CallProgress,
    /// Facts from the policy of the call. Absent if the call was rejected before its record was read.
    known: Option<CallPolicyFacts>,
}

/// The turns of an engine.
#[derive(Debug)]
pub(crate) struct EngineTurns {
    calls: Arc<CallServices>,
    running: Arc<RunningTurns>,
    journal: Arc<TraceJournal>,
}

impl EngineTurns {
    pub(crate) fn new(calls: Arc<CallServices>, journal: Arc<TraceJournal>) -> Self {
        Self { calls, running: Arc::default(), journal }
    }

    /// Runs a turn. It ends by its deadline. Dropping the future leaves calls in flight to the engine.
    pub(crate) async fn run(
        &self,
        plan: Arc<TurnPlan>,
        registry: Arc<dyn ToolRegistry>,
        options: TurnOptions,
    ) -> Result<TurnResponse, TurnRejection> {
        let calls = &self.calls;
        let number = next_call_number();
        // The time starts here, however long the store takes to grant the turn: the hold lasts no longer.
        let now = calls.clock.now();
        let caller = options.trace.traceparent.as_deref().and_then(ParentSpan::read);
        let seed = calls.state.seed_of(number);
        let trace = caller.map_or_else(|| own_trace(seed, now), |caller| caller.trace);
        let name = plan.turn().cloned();
        let Some(underway) =
            TurnRegistration::begin(self.running.clone(), number, name.clone(), trace, &options)
        else {
            return Err(TurnRejection::Overloaded);
        };
        let facts = self.facts(&plan, &options.target);
        let mut guard = HoldGuard { hold: None, calls: calls.clone() };
        let submitted = match plan.turn() {
            None => SubmissionHistory::First,
            Some(turn) => {
                let wish = HoldRequest {
                    process: calls.state.process.clone(),
                    number,
                    deadline: plan.deadline(),
                    // The last of them may begin at the deadline.
                    lasts: facts.records_last + plan.deadline(),
                };
                let name = hold::name(turn, &options);
                let taking = TurnHold::take(&mut guard.hold, calls.store.clone(), name, wish);
                match tokio::time::timeout(plan.deadline().max(LEAST_FOR_STORE), taking).await {
                    Ok(Ok(HoldResult::Ours(submitted))) => submitted,
                    Ok(Ok(HoldResult::Busy(until))) => {
                        return Err(TurnRejection::InFlight(until.since(calls.store.now())));
                    }
                    Ok(Err(error)) => return Err(TurnRejection::Store(error)),
                    Err(_) => return Err(TurnRejection::Store(silent())),
                }
            }
        };
        let story = TraceRecorder::begin(
            self.journal.clone(),
            calls.clock.clone(),
            plan.clone(),
            &options,
            trace,
            caller,
            seed,
            now,
        );
        let mut notes = Vec::new();
        let (turn, steps) = TurnMachine::begin(plan.clone(), &facts.tools, submitted, now, &mut notes);
        let (tell, call_events) = unbounded_channel();
        let guarded_as = name.clone().or_else(|| TurnId::new(trace.to_string()).ok());
        let running = RunningTurn {
            calls: calls.clone(),
            registry,
            options,
            plan,
            turn,
            story: Some(story),
            guard,
            name,
            guarded_as,
            trace,
            classes: facts.classes,
            going: FuturesUnordered::new(),
            arrived: VecDeque::new(),
            sent_to: BTreeMap::new(),
            tell,
            sent: 0,
            text_limits: BTreeMap::new(),
        };
        let (result, text_limits) = running.run(steps, notes, call_events).await;
        drop(underway);
        Ok(TurnResponse { result, trace, text_limits })
    }

    /// Cancels the turns with this name or trace that run here and for which `is_theirs` returns true. Returns the number
    /// of turns.
    pub(crate) fn cancel(&self, name: &str, is_theirs: impl Fn(&CallerIdentity) -> bool) -> usize {
        let running = self.running.lock();
        let named = running.values().filter(|turn| turn.is_called(name) && is_theirs(&turn.target));
        named.inspect(|turn| turn.withdrawn.cancel()).count()
    }

    /// Returns the turns that match, newest first.
    pub(crate) async fn turns(&self, query: &TurnQuery) -> Result<JournalPage<TurnSummary>, StoreError> {
        self.write_traces().await;
        query.read(&*self.calls.store).await
    }

    /// Returns the stored trace of a turn.
    pub(crate) async fn trace(&self, name: &str) -> Result<Option<TurnTraceView>, StoreError> {
        self.write_traces().await;
        TurnTraceView::read(&*self.calls.store, name).await
    }

    /// Writes the queued entries to the store. Runs in a task, so that it continues if the caller is dropped.
    async fn write_traces(&self) {
        let journal = self.journal.clone();
        let _ = tokio::spawn(async move { journal.write_now().await }).await;
    }

    /// Returns the facts about the tools of a plan that the machine needs. Descriptions by servers are added when the
    /// tools are called.
    fn facts(&self, plan: &TurnPlan, target: &CallerIdentity) -> PlanFacts {
        let mut facts = PlanFacts { tools: BTreeMap::new(), classes: BTreeMap::new(), records_last: LASTS };
        for tool in plan.tools() {
            let Some(envelope) = envelope(tool, RawJson::from_trusted("{}"), target.clone()) else {
                continue;
            };
            let Ok(policy) = self.calls.policies.of_envelope(&envelope) else { continue };
            let keep = &policy.dedupe.keep;
            // Calls that outlive the turn are recorded after the last event of the turn.
            let longest = keep.done.max(keep.failed).max(keep.open) + policy.time.total;
            facts.records_last = facts.records_last.max(longest);
            facts.classes.insert(tool.clone(), policy.class);
            let breaker = breaker_of(&self.calls, target, tool);
            facts.tools.insert(tool.clone(), ToolFacts { breaker, stop: stop(policy.class) });
        }
        facts
    }
}

/// Returns the state of the breaker of a tool.
fn breaker_of(calls: &CallServices, target: &CallerIdentity, tool: &ToolRef) -> BreakerState {
    calls.policies.breaker_state(&target.tenant_id, tool, calls.clock.now())
}

/// Maximum number of concurrent turns; more are refused at once. Each may hold 64 MiB of outputs.
const MOST_TURNS: usize = 256;
/// Minimum time for which the choices of a turn are stored.
const LASTS: Duration = Duration::from_secs(24 * 3600);

struct PlanFacts {
    tools: BTreeMap<ToolRef, ToolFacts>,
    classes: BTreeMap<ToolRef, ToolClass>,
    /// The longest time for which any record of its calls is stored.
    records_last: Duration,
}

/// Returns the handling of in-flight calls of this class at the end of a turn.
const fn stop(class: ToolClass) -> TurnEndEffect {
    match class {
        ToolClass::ReadOnly | ToolClass::Idempotent => TurnEndEffect::Cancel,
        ToolClass::Mutating | ToolClass::Unknown => TurnEndEffect::Leave,
    }
}

/// Returns the safety of repeating a call of this class.
const fn repeat(class: ToolClass) -> RepeatSafety {
    match class {
        ToolClass::ReadOnly => RepeatSafety::Safe,
        ToolClass::Idempotent => RepeatSafety::BySameTool,
        ToolClass::Mutating | ToolClass::Unknown => RepeatSafety::Unsafe,
    }
}

/// The turns that run here, by number.
type RunningTurns = Mutex<BTreeMap<u64, CancellableTurn>>;

/// A turn that others than its caller can cancel.
#[derive(Debug)]
struct CancellableTurn {
    name: Option<TurnId>,
    trace: TraceId,
    target: CallerIdentity,
    withdrawn: CancellationToken,
}

impl CancellableTurn {
    fn is_called(&self, name: &str) -> bool {
        self.name.as_ref().is_some_and(|turn| turn.as_str() == name)
            || TraceId::from_hex(name) == Some(self.trace)
    }
}

/// Registration of a running turn, removed on drop.
struct TurnRegistration {
    running: Arc<RunningTurns>,
    number: u64,
}

impl TurnRegistration {
    /// Registers the turn, or returns `None` if the limit is reached.
    fn begin(
        running: Arc<RunningTurns>,
        number: u64,
        name: Option<TurnId>,
        trace: TraceId,
        options: &TurnOptions,
    ) -> Option<Self> {
        let (target, withdrawn) = (options.target.clone(), options.cancelled.clone());
        let mut turning = running.lock();
        if turning.len() >= MOST_TURNS {
            return None;
        }
        turning.insert(number, CancellableTurn { name, trace, target, withdrawn });
        drop(turning);
        Some(Self { running, number })
    }
}

impl Drop for TurnRegistration {
    fn drop(&mut self) {
        self.running.lock().remove(&self.number);
    }
}

/// A running turn.
struct RunningTurn {
    calls: Arc<CallServices>,
    registry: Arc<dyn ToolRegistry>,
    options: TurnOptions,
    plan: Arc<TurnPlan>,
    turn: TurnMachine,
    /// The trace, until it is closed.
    story: Option<TraceRecorder>,
    guard: HoldGuard,
    name: Option<TurnId>,
    /// The turn in which the loop guard counts failures.
    guarded_as: Option<TurnId>,
    trace: TraceId,
    classes: BTreeMap<ToolRef, ToolClass>,
    going: FuturesUnordered<TurnCallFuture>,
    /// Calls that ended during a store operation.
    arrived: VecDeque<(ToolCallId, TurnCallResponse)>,
    sent_to: BTreeMap<ToolCallId, DispatchedCall>,
    tell: UnboundedSender<TurnCallEvent>,
    /// Number of calls that were sent, alternatives included.
    sent: u64,
    /// Maximum bytes of output text for the caller, for calls with such a limit.
    text_limits: BTreeMap<ToolCallId, usize>,
}

/// A call that was sent to its tool.
struct DispatchedCall {
    watch: Arc<TurnCallListener>,
    /// Cancels the call, once the engine has it.
    stop: Arc<Mutex<Option<CallCanceller>>>,
}

/// Releases a turn on drop: when it is over, when its caller is gone, or when the store did not confirm the hold. A
/// failed release is retried for as long as it would keep others from the turn and the engine lives. At a shutdown
/// there is one last try.
struct HoldGuard {
    hold: Option<TurnHold>,
    calls: Arc<CallServices>,
}

impl Drop for HoldGuard {
    fn drop(&mut self) {
        let Some(mut hold) = self.hold.take() else { return };
        let state = &self.calls.state;
        let (stopping, calls) = (state.stopping.clone(), Arc::downgrade(&self.calls));
        let left = hold.remaining_time();
        let trying = async move {
            while let Err(error) = hold.release().await {
                let Some(calls) = calls.upgrade() else { return };
                calls.store_trouble(&error);
                drop(calls);
                tokio::select! {
                    () = tokio::time::sleep(PAUSE) => {}
                    () = stopping.cancelled() => return drop(hold.release().await),
                }
            }
        };
        // The timer is made in the task, because this may be a thread without a runtime.
        let trying = async move { tokio::time::timeout(left, trying).await };
        state.background_tasks.spawn_on(trying, &state.runtime);
    }
}

/// Returns the next call that has ended.
async fn next(
    arrived: &mut VecDeque<(ToolCallId, TurnCallResponse)>,
    going: &mut FuturesUnordered<TurnCallFuture>,
) -> Option<(ToolCallId, TurnCallResponse)> {
    match arrived.pop_front() {
        Some(first) => Some(first),
        None => going.next().await,
    }
}

/// Pause between two tries to release a turn.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum time that the end of a turn waits for its release.
const GRACE: Duration = Duration::from_secs(2);

impl RunningTurn {
    async fn run(
        mut self,
        mut steps: Vec<TurnStep>,
        mut notes: Vec<TraceNote>,
        mut call_events: UnboundedReceiver<TurnCallEvent>,
    ) -> (TurnResult, BTreeMap<ToolCallId, usize>) {
        let withdrawn = self.options.cancelled.clone();
        let mut cancelled = false;
        loop {
            self.record(&mut notes);
            if let Some(result) = self.take(steps, &mut notes).await {
                self.record(&mut notes);
                if let Some(mut story) = self.story.take() {
                    story.close(&result);
                }
                self.give_back().await;
                return (result, self.text_limits);
            }
            self.record(&mut notes);
            let left = self.turn.deadline().since(self.calls.clock.now());
            let events = tokio::select! {
                biased;
                Some(event) = call_events.recv() => {
                    self.handle_call_event(event, &mut notes).into_iter().collect()
                }
                Some((id, response)) = next(&mut self.arrived, &mut self.going) => {
                    // Earlier events of the call come first.
                    let mut events = Vec::new();
                    while let Ok(event) = call_events.try_recv() {
                        events.extend(self.handle_call_event(event, &mut notes));
                    }
                    events.extend(self.handle_call_end(id, response));
                    events
                }
                () = withdrawn.cancelled(), if !cancelled => {
                    cancelled = true;
                    let unsent = self.unsent(|sent| sent.stop.lock().is_none());
                    unsent.chain([TurnEvent::Cancel]).collect()
                }
                () = tokio::time::sleep(left) => self.time_is_over(),
            };
            steps = events.into_iter().flat_map(|event| self.feed(event, &mut notes)).collect();
        }
    }

    /// Returns the events for the machine when time has passed. From the deadline on, no attempt starts.
    fn time_is_over(&self) -> Vec<TurnEvent> {
        let is_over = self.calls.clock.now() >= self.turn.deadline();
        self.unsent(|sent| is_over && !sent.watch.progress().has_started()).chain([TurnEvent::Tick]).collect()
    }

    /// Returns events for calls that have not run yet. The machine needs them before the event of the end.
    fn unsent(&self, is_unsent: impl Fn(&DispatchedCall) -> bool) -> impl Iterator<Item = TurnEvent> {
        let unsent = self.sent_to.iter().filter(move |(_, sent)| is_unsent(sent));
        unsent.map(|(id, _)| TurnEvent::NotStarted { id: id.clone() })
    }

    fn feed(&mut self, event: TurnEvent, notes: &mut Vec<TraceNote>) -> Vec<TurnStep> {
        self.turn.handle_event(self.calls.clock.now(), event, notes).unwrap_or_else(|misuse| {
            // A bug in this file: the turn continues to its deadline, and the log reports it.
            tracing::error!(event = "turn.misuse", %misuse);
            debug_assert!(false, "{misuse}");
            Vec::new()
        })
    }

    /// Performs the steps of the machine. Returns the result when the turn is over.
    async fn take(&mut self, steps: Vec<TurnStep>, notes: &mut Vec<TraceNote>) -> Option<TurnResult> {
        let mut queue = VecDeque::from(steps);
        while let Some(step) = queue.pop_front() {
            match step {
                TurnStep::Run { id, .. }
                    if self.options.cancelled.is_cancelled()
                        || self.calls.clock.now() >= self.turn.deadline() =>
                {
                    queue.extend(self.feed(TurnEvent::NotStarted { id }, notes));
                }
                TurnStep::Run { id, tool, arguments, timeout, choice } => {
                    self.record(notes);
                    let stored = self.keep(&id, &choice).await;
                    if self.options.cancelled.is_cancelled() {
                        queue.extend(self.feed(TurnEvent::NotStarted { id }, notes));
                    } else if let Err(error) = stored {
                        let end = PlannedCallEnd::Failed(choice_not_stored(&error));
                        queue.extend(self.feed(TurnEvent::Ended { id, end, replayed: false }, notes));
                    } else {
                        self.start(id, tool, arguments, timeout, &choice);
                    }
                }
                TurnStep::Cancel { id } => {
                    let stop = self.sent_to.remove(&id).and_then(|sent| sent.stop.lock().take());
                    if let Some(canceller) = stop {
                        canceller.cancel();
                    }
                }
                // The call continues when its future is dropped with the turn.
                TurnStep::Leave { .. } => {}
                TurnStep::Done(result) => return Some(result),
            }
        }
        None
    }

    /// Stores a choice that could be made differently after a restart. The other calls continue meanwhile. The turn
    /// waits neither beyond its deadline nor after a cancellation.
    async fn keep(&mut self, id: &ToolCallId, choice: &CandidateChoice) -> Result<(), StoreError> {
        let left = self.turn.deadline().since(self.calls.clock.now());
        let withdrawn = self.options.cancelled.clone();
        let Some(hold) = &mut self.guard.hold else { return Ok(()) };
        let mut writing = pin!(tokio::time::timeout(left, hold.choose(id, choice)));
        loop {
            tokio::select! {
                biased;
                written = &mut writing => return written.unwrap_or_else(|_| Err(silent())),
                Some(response) = self.going.next() => self.arrived.push_back(response),
                () = withdrawn.cancelled() => return Err(silent()),
            }
        }
    }

    /// Releases the turn before its result is returned, so that it can be submitted again. Failures are retried later.
    async fn give_back(&mut self) {
        let Some(hold) = &mut self.guard.hold else { return };
        match tokio::time::timeout(GRACE, hold.release()).await {
            Ok(Ok(())) => self.guard.hold = None,
            Ok(Err(error)) => self.calls.store_trouble(&error),
            Err(_) => {}
        }
    }

    fn start(
        &mut self,
        id: ToolCallId,
        tool: ToolRef,
        arguments: RawJson,
        timeout: Option<Duration>,
        choice: &CandidateChoice,
    ) {
        self.sent += 1;
        let target = CallerIdentity { turn_id: self.guarded_as.clone(), ..self.options.target.clone() };
        let Some(mut envelope) = envelope(&tool, arguments, target) else { return };
        if let Some(story) = &mut self.story
            && let Ok(request) = RequestId::new(format!("{}.{}", story.root_span(), self.sent))
        {
            story.sent(&id, &request, self.calls.clock.now());
            envelope.request_id = request;
        }
        envelope.payload.call_hints.timeout_ms = timeout.map(steadfast_core::millis);
        envelope.payload.idempotency_key =
            self.name.as_ref().and_then(|turn| key(turn, &id, choice.candidate));
        let TurnControl { request_tags, from_hook, .. } = self.options.control.clone();
        envelope.control = CallControl { request_tags, from_hook, ..CallControl::default() };
        envelope.trace = self.options.trace.clone();
        envelope.trace.traceparent = self.story.as_ref().map(|story| story.traceparent(&id));
        envelope.tool_call_id = Some(id.clone());
        let class = self.class_of(&tool);
        let watch = Arc::new(TurnCallListener::new(id.clone(), tool.clone(), class, self.tell.clone()));
        let stop = Arc::new(Mutex::new(None));
        self.sent_to.insert(id.clone(), DispatchedCall { watch: watch.clone(), stop: stop.clone() });
        let options = CallOptions {
            channel: self.options.channel,
            prompter: self.options.prompter.clone(),
            key_scope: self.options.key_scope,
            waits: CallerPatience::UntilDone,
            listener: Some(watch.clone()),
            // No attempt starts when the turn is over.
            start_by: Some(self.turn.deadline()),
            in_turn: if self.name.is_some() {
                TurnResubmission::Possible
            } else {
                TurnResubmission::NotPossible
            },
            ..CallOptions::default()
        };
        let (calls, registry) = (self.calls.clone(), self.registry.clone());
        self.going.push(Box::pin(async move {
            let found = registry.find(&envelope).await;
            let found = found.unwrap_or_else(|| ResolvedTool::unknown_tool(&tool));
            found.complete(&mut envelope);
            let ResolvedTool { run, info, reads, .. } = found;
            let options = CallOptions { tool: info, reads, registry: Some(registry), ..options };
            let calling = calls.dispatch(Arc::new(envelope), Arc::new(run), options, RunnerKind::Driver);
            *stop.lock() = Some(calling.canceller());
            let called = calling.await;
            (id, TurnCallResponse { called, tool, progress: watch.progress(), known: watch.known() })
        }));
    }

    /// Returns the class of a tool, as far as it is known without its server.
    fn class_of(&self, tool: &ToolRef) -> ToolClass {
        self.classes.get(tool).copied().unwrap_or(ToolClass::Unknown)
    }

    /// Handles an event of a call in flight.
    fn handle_call_event(&mut self, event: TurnCallEvent, notes: &mut Vec<TraceNote>) -> Option<TurnEvent> {
        let TurnCallEvent { call, tool, at, change } = event;
        match change {
            TurnCallChange::Breaker(state) => Some(TurnEvent::BreakerChanged { tool, state }),
            TurnCallChange::Class(class) => Some(TurnEvent::ToolKnown { tool, stop: stop(class) }),
            TurnCallChange::Retries { attempt, next_at, attempts_left, progress } => {
                notes.extend(self.retried(&call, &tool, at, attempt, next_at, attempts_left, &progress));
                None
            }
        }
    }

    /// Records a retry: the decision of the error handler, and the facts that it was based on.
    #[expect(clippy::too_many_arguments, reason = "the facts of one attempt, named once")]
    fn retried(
        &self,
        call: &ToolCallId,
        tool: &ToolRef,
        at: Timestamp,
        next: u32,
        next_at: Timestamp,
        attempts_left: u32,
        progress: &CallProgress,
    ) -> [TraceNote; 3] {
        let code = if progress.timed_out_after().is_some() { Code::Timeout } else { Code::ToolError };
        let breaker = breaker_of(&self.calls, &self.options.target, tool);
        let nature = progress.failure().map_or(FaultNature::Transient, |failed| failed.nature);
        let attempts = next.saturating_sub(1);
        let wait = next_at.since(at);
        let decision = decide(FailureFacts {
            code,
            nature,
            reach: progress.reach(),
            // It is retried because that is safe.
            repeat: RepeatSafety::Safe,
            breaker,
            attempts,
            attempts_left,
            wait,
            remaining: self.turn.deadline().since(at),
            alternatives: 0,
            need: CallNeed::Required,
            dependants: DependantCounts::default(),
            succeeded: 0,
        });
        let error = progress.failure().map_or_else(String::new, |failed| failed.message.to_string());
        let rule = progress.failure().map(|failed| failed.rule.to_string());
        let fault =
            ToolFailureDetails { error, rule, code, nature, breaker, attempts, decision: decision.strategy };
        let fault = match progress.timed_out_after() {
            Some(timeout) => TurnFact::ToolTimeout { timeout, fault },
            None => TurnFact::ToolError(fault),
        };
        let note = |fact| TraceNote { at, call: Some(call.clone()), tool: Some(tool.clone()), fact };
        [
            note(fault),
            note(TurnFact::Decision { strategy: decision.strategy, reason: decision.reason }),
            note(TurnFact::ToolRetry { attempt: next, delay: wait }),
        ]
    }

    /// Returns the events for the machine when a call has ended, after the current breaker states of all candidates.
    fn handle_call_end(&mut self, id: ToolCallId, response: TurnCallResponse) -> Vec<TurnEvent> {
        self.sent_to.remove(&id);
        let TurnCallResponse { called, tool, progress, known } = response;
        match called.text_limit {
            Some(limit) => _ = self.text_limits.insert(id.clone(), limit),
            None => _ = self.text_limits.remove(&id),
        }
        let CallPolicyFacts { class, doubt } = known.unwrap_or_else(|| CallPolicyFacts {
            class: self.class_of(&tool),
            doubt: UnknownOutcomeHandling::Rerun,
        });
        let result = called.result;
        if let Some(arrival) = called.delivery {
            self.calls.mark_delivered(arrival);
        }
        let replayed = result.from_cache;
        let rule = result.error.as_ref().and_then(|error| error.rule.clone());
        let failed = |code, message, nature| {
            PlannedCallEnd::Failed(TurnCallFailure {
                code,
                message,
                rule: rule.clone(),
                nature,
                reach: progress.reach(),
                repeat: repeat(class),
                unknown_outcome: doubt,
                attempts: result.attempts,
                timed_out_after: progress.timed_out_after(),
            })
        };
        let end = match (result.output, result.error) {
            (_, None) if progress.is_input_required() => {
                failed(Code::ToolError, ASKS.into(), FaultNature::Permanent)
            }
            (_, Some(error)) if error.retriable => failed(error.code, error.message, FaultNature::Transient),
            (_, Some(error)) => failed(error.code, error.message, FaultNature::Permanent),
            (output, None) => PlannedCallEnd::Succeeded {
                output: output.map_or_else(|| RawJson::from_trusted("null"), |output| output.content),
                attempts: result.attempts,
            },
        };
        let mut events = Vec::new();
        for tool in self.plan.call(&id).into_iter().flat_map(PlannedCall::tools) {
            let state = breaker_of(&self.calls, &self.options.target, tool);
            events.push(TurnEvent::BreakerChanged { tool: tool.clone(), state });
        }
        events.push(TurnEvent::Ended { id, end, replayed });
        events
    }

    /// Writes the notes of the machine to the trace, and passes them to the listeners.
    fn record(&mut self, notes: &mut Vec<TraceNote>) {
        let about = TurnContext {
            turn: self.name.as_ref(),
            trace: self.trace,
            target: &self.options.target,
            deadline: self.turn.deadline(),
        };
        for note in notes.drain(..) {
            self.calls.telemetry.turn(&about, &note);
            if let Some(story) = &mut self.story {
                story.note(note);
            }
        }
    }
}

/// Returns the envelope of a call of a turn, without the parts that only this turn knows.
fn envelope(tool: &ToolRef, arguments: RawJson, target: CallerIdentity) -> Option<CallEnvelope> {
    Some(CallEnvelope {
        contract_version: ContractVersion::V1_1,
        request_id: RequestId::new("turn").ok()?,
        tool_call_id: None,
        tool_name: tool.tool.clone(),
        tool_namespace: tool.namespace.clone(),
        target,
        payload: CallPayload {
            version: PayloadVersion::V1_0,
            params: arguments,
            idempotency_key: None,
            call_hints: CallHints::default(),
            unknown: ExtraFields::new(),
        },
        transport: TransportOptions::default(),
        control: CallControl::default(),
        trace: EnvelopeTrace::default(),
        unknown: ExtraFields::new(),
    })
}

/// Returns the idempotency key of a call of a turn. It is the same when the turn is submitted again.
fn key(turn: &TurnId, call: &ToolCallId, candidate: usize) -> Option<IdempotencyKey> {
    let text = serde_json::to_vec(&(turn, call, candidate)).ok()?;
    IdempotencyKey::new(format!("turn-{}", Digest::of(&text).to_hex())).ok()
}

/// Returns the failure of a call whose choice could not be stored. It is not sent, because a later submission could
/// choose differently.
fn choice_not_stored(error: &StoreError) -> TurnCallFailure {
    let message = format!("not sent: the choice for it could not be stored: {error}");
    TurnCallFailure::not_sent(Code::StoreUnavailable, FaultNature::Transient, message)
}

/// Message for a tool that asks for input and therefore has done nothing.
const ASKS: &str = "the tool asks for input first, which a turn cannot provide: call it outside of a turn";

/// Minimum time for the store to report which calls of a turn have run, even if the turn has less time. The turn then
/// ends with these results, and the rest fails because no time was left.
const LEAST_FOR_STORE: Duration = Duration::from_secs(10);

/// Returns the error of a store that did not respond within the time of the turn.
fn silent() -> StoreError {
    StoreError::outcome_unknown(StoreErrorKind::Unreachable, "it did not answer in the time of the turn")
}

/// Returns a new, unique trace id.
fn own_trace(seed: u64, now: Timestamp) -> TraceId {
    let digest = Digest::of(format!("trace {seed} {}", now.as_millis()).as_bytes());
    let mut bytes = [1; 16];
    bytes.iter_mut().zip(digest.as_bytes()).for_each(|(byte, random)| *byte = *random);
    TraceId::from_bytes(bytes)
}
