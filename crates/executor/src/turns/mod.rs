//! Turns: several calls that depend on each other, carried out as [`steadfast_core::turn`] decides.
//!
//! Each call of a turn is a call of the engine, with its own retries, breaker, dedupe and guard. This file starts what the
//! machine wants started, tells it how calls ended, and wakes it at the deadline.
//!
//! A turn whose plan has a name can be submitted again. Its calls have keys that are made of that name, so what was
//! finished is answered from its record, in this process or after a crash, and the rest goes on. Nothing runs unless
//! somebody submits the turn and waits for it: who drops the future leaves the calls that run to the engine, and starts no
//! others.
//!
//! | file | what it does |
//! | --- | --- |
//! | `hold` | who runs a turn, and what was chosen in it |
//! | `watch` | what a turn hears of its calls while they run |
//! | `story` | the trace, and what is kept of it |

mod hold;
mod story;
mod watch;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::approval::Channel;
use steadfast_core::breaker::State as BreakerState;
use steadfast_core::call::{KeysOf, Waits};
use steadfast_core::classify::{Nature, Reach};
use steadfast_core::code::Code;
use steadfast_core::envelope::{
    CallEnvelope, CallHints, ContractVersion, Control, IdempotencyKey, Payload, PayloadVersion, Target,
    Trace as EnvelopeTrace, Transport, Unknown,
};
use steadfast_core::id::{Digest, RequestId, ToolCallId, ToolRef, TurnId};
use steadfast_core::output::RawJson;
use steadfast_core::policy::ToolClass;
use steadfast_core::turn::trace::{Fact, Note, SpanId, ToolFault, TraceId};
use steadfast_core::turn::{
    CallEnd, Choice, Dependants, Event, Facts, Failure, Need, Plan, Repeat, Step, Stop, Submitted, ToolFacts,
    Turn, TurnResult, decide,
};
use steadfast_store::StoreError;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_util::sync::CancellationToken;

use crate::approvals::Asker;
use crate::engine::{CALLS, CallOptions, Called, Canceller, Engine, InTurn};
use crate::shelf::{Found, Shelf};
use crate::telling::TurnAbout;

use hold::{Hold, Taken};
pub(crate) use story::Stories;
use story::Story;
pub use story::{TurnHead, TurnStory};
use watch::{Last, Told, Watch, What};

/// Who submits a turn.
#[derive(Clone, Debug)]
pub struct TurnOptions {
    /// For whom its calls are made. The turn that it names is replaced by that of the plan.
    pub target: Target,
    /// The W3C trace that it belongs to.
    pub traceparent: Option<String>,
    /// Whether somebody can be asked while a call waits.
    pub channel: Channel,
    /// Who puts a question to the person at the caller's end.
    pub asker: Option<Arc<dyn Asker>>,
    /// Within what the same name is the same turn.
    pub keys_of: KeysOf,
    /// Withdraws the turn: nothing more starts, what runs is told to stop.
    pub withdrawn: CancellationToken,
}

/// What came of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turned {
    /// How it ended.
    pub result: TurnResult,
    /// Its trace.
    pub trace: TraceId,
}

/// Why a turn was not begun. Nothing of it ran.
#[derive(Debug)]
#[non_exhaustive]
pub enum TurnRefused {
    /// The same turn is under way elsewhere; it may be for so long.
    InFlight(Duration),
    /// The store cannot say whether any of it has run.
    Store(StoreError),
}

impl fmt::Display for TurnRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InFlight(_) => f.write_str(
                "the same turn is under way: wait for it, or submit it again later; what it finishes is not run again",
            ),
            Self::Store(error) => {
                write!(f, "the turn was not begun, because nobody can say what of it has run: {error}")
            }
        }
    }
}

impl std::error::Error for TurnRefused {}

/// A call of the turn on its way.
type Going = Pin<Box<dyn Future<Output = (ToolCallId, Ended)> + Send>>;

/// How it ended.
struct Ended {
    tool: ToolRef,
    called: Called,
    last: Last,
    class: ToolClass,
}

impl Engine {
    /// Runs a turn. It ends by its deadline; whoever drops the future leaves what runs to the engine.
    pub async fn turn(
        &self,
        plan: Arc<Plan>,
        shelf: Arc<dyn Shelf>,
        options: TurnOptions,
    ) -> Result<Turned, TurnRefused> {
        let inner = &self.inner;
        let number = CALLS.fetch_add(1, Ordering::Relaxed);
        let facts = self.facts(&plan, &options.target);
        let (hold, submitted) = match plan.turn() {
            None => (None, Submitted::First),
            Some(turn) => {
                let me = (inner.process.clone(), number);
                let store = inner.store.clone();
                match Hold::take(store, hold::name(turn, &options), me, facts.records_last).await {
                    Ok(Taken::Ours(hold, submitted)) => (Some(*hold), submitted),
                    Ok(Taken::Busy(until)) => {
                        return Err(TurnRefused::InFlight(until.since(inner.store.now())));
                    }
                    Err(error) => return Err(TurnRefused::Store(error)),
                }
            }
        };
        let now = inner.clock.now();
        let (trace, parent) = options.traceparent.as_deref().and_then(traced).unzip();
        let trace = trace.unwrap_or_else(|| own_trace(inner.seed_of(number), now));
        let story = Story::begin(inner.clone(), plan.clone(), &options.target, trace, parent, now);
        let mut notes = Vec::new();
        let (turn, steps) = Turn::begin(plan.clone(), &facts.tools, submitted, now, &mut notes);
        let (tell, told) = unbounded_channel();
        let name = plan.turn().cloned();
        let guarded_as = name.clone().or_else(|| TurnId::new(trace.to_string()).ok());
        let running = Running {
            engine: self.clone(),
            shelf,
            options,
            turn,
            story: Some(story),
            held: Held { hold, engine: self.clone() },
            name,
            guarded_as,
            trace,
            classes: facts.classes,
            going: FuturesUnordered::new(),
            stops: BTreeMap::new(),
            tell,
            sent: 0,
        };
        Ok(Turned { result: running.run(steps, notes, told).await, trace })
    }

    /// The turns that began last, the newest first.
    pub async fn turns(&self, limit: usize) -> Result<Vec<TurnHead>, StoreError> {
        self.inner.write_stories_now().await;
        story::heads(&*self.inner.store, limit).await
    }

    /// What is kept of a turn, by its trace or by the name that its plan gave it; the newest of that name.
    pub async fn story(&self, name: &str) -> Result<Option<TurnStory>, StoreError> {
        let fits = |head: &TurnHead| {
            head.turn_id.as_ref().is_some_and(|turn| turn.as_str() == name)
                || TraceId::from_hex(name) == Some(head.trace_id)
        };
        let found = self.turns(MOST_HEADS).await?.into_iter().find(fits);
        match found {
            Some(head) => story::story(&*self.inner.store, head).await.map(Some),
            None => Ok(None),
        }
    }

    /// What the machine has to know about the tools of a plan.
    fn facts(&self, plan: &Plan, target: &Target) -> PlanFacts {
        let mut facts = PlanFacts { tools: BTreeMap::new(), classes: BTreeMap::new(), records_last: LASTS };
        for tool in plan.tools() {
            let Some(envelope) = envelope(tool, RawJson::from_trusted("{}"), target.clone()) else {
                continue;
            };
            let Ok(policy) = self.policy_of(&envelope) else { continue };
            let keep = &policy.dedupe.keep;
            facts.records_last = facts.records_last.max(keep.done.max(keep.failed).max(keep.open));
            facts.classes.insert(tool.clone(), policy.class);
            let breaker = self.breaker_of(target, tool);
            facts.tools.insert(tool.clone(), ToolFacts { breaker, stop: stop(policy.class) });
        }
        facts
    }

    /// How the breaker of a tool stands.
    fn breaker_of(&self, target: &Target, tool: &ToolRef) -> BreakerState {
        self.inner.breaker_state(&target.tenant_id, tool)
    }
}

/// The most turns that are looked through for one.
const MOST_HEADS: usize = 10_000;
/// What is chosen in a turn is kept for at least so long.
const LASTS: Duration = Duration::from_secs(24 * 3600);

struct PlanFacts {
    tools: BTreeMap<ToolRef, ToolFacts>,
    classes: BTreeMap<ToolRef, ToolClass>,
    /// As long as any record of its calls.
    records_last: Duration,
}

/// What the end of a turn does to a call of this class.
const fn stop(class: ToolClass) -> Stop {
    match class {
        ToolClass::ReadOnly | ToolClass::Idempotent => Stop::Cancel,
        ToolClass::Mutating | ToolClass::Unknown => Stop::Leave,
    }
}

/// Whether a call of this class may be made twice.
const fn repeat(class: ToolClass) -> Repeat {
    match class {
        ToolClass::ReadOnly | ToolClass::Idempotent => Repeat::Safe,
        ToolClass::Mutating | ToolClass::Unknown => Repeat::Unsafe,
    }
}

/// A turn that runs.
struct Running {
    engine: Engine,
    shelf: Arc<dyn Shelf>,
    options: TurnOptions,
    turn: Turn,
    /// Until it is closed.
    story: Option<Story>,
    held: Held,
    name: Option<TurnId>,
    /// The turn that the guard counts failures in.
    guarded_as: Option<TurnId>,
    trace: TraceId,
    classes: BTreeMap<ToolRef, ToolClass>,
    going: FuturesUnordered<Going>,
    stops: BTreeMap<ToolCallId, Arc<Mutex<Option<Canceller>>>>,
    tell: tokio::sync::mpsc::UnboundedSender<Told>,
    /// Calls that were sent, alternatives included.
    sent: u64,
}

/// The turn is given back when it is over, and also when nobody waits for it any more.
struct Held {
    hold: Option<Hold>,
    engine: Engine,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let (Some(hold), Ok(runtime)) = (self.hold.take(), tokio::runtime::Handle::try_current()) {
            let engine = self.engine.clone();
            runtime.spawn(async move {
                if let Err(error) = hold.release().await {
                    engine.inner.store_trouble(&*engine.inner.store, &error);
                }
            });
        }
    }
}

impl Running {
    async fn run(
        mut self,
        mut steps: Vec<Step>,
        mut notes: Vec<Note>,
        mut told: UnboundedReceiver<Told>,
    ) -> TurnResult {
        let withdrawn = self.options.withdrawn.clone();
        let mut cancelled = false;
        let mut renewal = tokio::time::interval(hold::RENEWAL);
        renewal.reset();
        loop {
            self.record(&mut notes);
            if let Some(result) = self.take(steps, &mut notes).await {
                self.record(&mut notes);
                if let Some(story) = self.story.take() {
                    story.close(&result);
                }
                if let Some(hold) = self.held.hold.take()
                    && let Err(error) = hold.release().await
                {
                    self.engine.inner.store_trouble(&*self.engine.inner.store, &error);
                }
                return result;
            }
            self.record(&mut notes);
            let left = self.turn.deadline().since(self.engine.now());
            let event = tokio::select! {
                biased;
                Some(heard) = told.recv() => self.heard(heard, &mut notes),
                Some((id, ended)) = self.going.next() => {
                    // What was heard of it before comes first.
                    while let Ok(heard) = told.try_recv() {
                        if let Some(event) = self.heard(heard, &mut notes) {
                            let steps = self.feed(event, &mut notes);
                            debug_assert!(steps.is_empty(), "a breaker starts nothing");
                        }
                    }
                    Some(self.ended(id, ended, &mut notes))
                }
                () = withdrawn.cancelled(), if !cancelled => {
                    cancelled = true;
                    Some(Event::Cancel)
                }
                () = tokio::time::sleep(left) => Some(Event::Tick),
                _ = renewal.tick() => {
                    self.renew().await;
                    None
                }
            };
            steps = match event {
                Some(event) => self.feed(event, &mut notes),
                None => Vec::new(),
            };
        }
    }

    fn feed(&mut self, event: Event, notes: &mut Vec<Note>) -> Vec<Step> {
        self.turn.on(self.engine.now(), event, notes).unwrap_or_else(|misuse| {
            // A mistake of this file: the turn goes on to its deadline, and somebody has to hear of it.
            tracing::error!(event = "turn.misuse", %misuse);
            debug_assert!(false, "{misuse}");
            Vec::new()
        })
    }

    /// Does what the machine wants; the result when it is over.
    async fn take(&mut self, steps: Vec<Step>, notes: &mut Vec<Note>) -> Option<TurnResult> {
        let mut queue = std::collections::VecDeque::from(steps);
        while let Some(step) = queue.pop_front() {
            match step {
                Step::Run { id, tool, arguments, timeout, choice } => {
                    self.record(notes);
                    if let Err(error) = self.keep(&id, &choice).await {
                        let end = CallEnd::Failed(unkept(&error));
                        queue.extend(self.feed(Event::Ended { id, end, replayed: false }, notes));
                    } else {
                        self.start(id, tool, arguments, timeout, &choice);
                    }
                }
                Step::Cancel { id } => {
                    if let Some(canceller) = self.stops.remove(&id).and_then(|stop| stop.lock().take()) {
                        canceller.cancel();
                    }
                }
                // The call goes on when its future is dropped with the turn.
                Step::Leave { .. } => {}
                Step::Done(result) => return Some(result),
            }
        }
        None
    }

    /// Writes a choice down that would not be made again of itself.
    async fn keep(&mut self, id: &ToolCallId, choice: &Choice) -> Result<(), StoreError> {
        match &mut self.held.hold {
            Some(hold) if !choice.is_as_planned() => hold.choose(id.clone(), choice.clone()).await,
            Some(_) | None => Ok(()),
        }
    }

    /// Says that somebody runs the turn. One that cannot is found out when it has a choice to keep.
    async fn renew(&mut self) {
        if let Some(hold) = &mut self.held.hold
            && let Err(error) = hold.renew().await
        {
            self.engine.inner.store_trouble(&*self.engine.inner.store, &error);
        }
    }

    fn start(
        &mut self,
        id: ToolCallId,
        tool: ToolRef,
        arguments: RawJson,
        timeout: Option<Duration>,
        choice: &Choice,
    ) {
        self.sent += 1;
        let target = Target { turn_id: self.guarded_as.clone(), ..self.options.target.clone() };
        let Some(mut envelope) = envelope(&tool, arguments, target) else { return };
        if let Ok(request) = RequestId::new(format!("{}.{}", self.trace, self.sent)) {
            envelope.request_id = request;
        }
        // No attempt starts when the turn is over.
        let left = self.turn.deadline().since(self.engine.now());
        envelope.transport.retry_budget.max_elapsed_ms = Some(steadfast_core::millis(left));
        envelope.payload.call_hints.timeout_ms = timeout.map(steadfast_core::millis);
        envelope.payload.idempotency_key =
            self.name.as_ref().and_then(|turn| key(turn, &id, choice.candidate));
        envelope.trace.traceparent = self.story.as_ref().map(|story| story.traceparent(&id));
        envelope.tool_call_id = Some(id.clone());
        let watch = Arc::new(Watch::new(id.clone(), tool.clone(), self.tell.clone()));
        let stop = Arc::new(Mutex::new(None));
        self.stops.insert(id.clone(), stop.clone());
        let class = self.classes.get(&tool).copied().unwrap_or(ToolClass::Unknown);
        let options = CallOptions {
            channel: self.options.channel,
            asker: self.options.asker.clone(),
            keys_of: self.options.keys_of,
            waits: Waits::AsLongAsItTakes,
            listener: Some(watch.clone()),
            in_turn: if self.name.is_some() { InTurn::ThatMayComeAgain } else { InTurn::Not },
            ..CallOptions::default()
        };
        let (engine, shelf) = (self.engine.clone(), self.shelf.clone());
        self.going.push(Box::pin(async move {
            let found = shelf.find(&envelope).await;
            let Found { run, domain, info } = found.unwrap_or_else(|| Found::nobody(&tool));
            if envelope.target.domain.is_none() {
                envelope.target.domain = domain;
            }
            let calling = engine.call_with(envelope, run, CallOptions { tool: info, ..options });
            *stop.lock() = Some(calling.canceller());
            let called = calling.await;
            (id, Ended { tool, called, last: watch.last(), class })
        }));
    }

    /// Something was heard of a call that runs.
    fn heard(&mut self, told: Told, notes: &mut Vec<Note>) -> Option<Event> {
        let Told { call, tool, at, what } = told;
        match what {
            What::Breaker(state) => Some(Event::BreakerChanged { tool, state }),
            What::Retries { attempt, next_at, attempts_left, last } => {
                notes.extend(self.retried(&call, &tool, at, attempt, next_at, attempts_left, &last));
                None
            }
        }
    }

    /// An attempt failed and is made again: what the error handler says of it, with what it knew.
    #[expect(clippy::too_many_arguments, reason = "the facts of one attempt, named once")]
    fn retried(
        &self,
        call: &ToolCallId,
        tool: &ToolRef,
        at: Timestamp,
        next: u32,
        next_at: Timestamp,
        attempts_left: u32,
        last: &Last,
    ) -> [Note; 3] {
        let code = if last.cut.is_some() { Code::Timeout } else { Code::ToolError };
        let breaker = self.engine.breaker_of(&self.options.target, tool);
        let nature = last.failed.as_ref().map_or(Nature::Transient, |failed| failed.nature);
        let attempts = next.saturating_sub(1);
        let wait = next_at.since(at);
        let decision = decide(Facts {
            code,
            nature,
            reach: last.reach(),
            // It is made again because that is safe.
            repeat: Repeat::Safe,
            breaker,
            attempts,
            attempts_left,
            wait,
            remaining: self.turn.deadline().since(at),
            alternatives: 0,
            need: Need::Required,
            dependants: Dependants::default(),
            succeeded: 0,
        });
        let error = last.failed.as_ref().map_or_else(String::new, |failed| failed.rule.to_string());
        let fault = ToolFault { error, code, nature, breaker, attempts, decision: decision.strategy };
        let fault = match last.cut {
            Some(timeout) => Fact::ToolTimeout { timeout, fault },
            None => Fact::ToolError(fault),
        };
        let note = |fact| Note { at, call: Some(call.clone()), tool: Some(tool.clone()), fact };
        [
            note(fault),
            note(Fact::Decision { strategy: decision.strategy, reason: decision.reason }),
            note(Fact::ToolRetry { attempt: next, delay: wait }),
        ]
    }

    /// A call has ended: what the machine hears of it, after how the breaker of its tool stands now.
    fn ended(&mut self, id: ToolCallId, ended: Ended, notes: &mut Vec<Note>) -> Event {
        self.stops.remove(&id);
        let Ended { tool, called, last, class } = ended;
        let result = called.result;
        if let Some(arrival) = called.arrival {
            self.engine.delivered(arrival);
        }
        let state = self.engine.breaker_of(&self.options.target, &tool);
        let steps = self.feed(Event::BreakerChanged { tool, state }, notes);
        debug_assert!(steps.is_empty(), "a breaker starts nothing");
        let attempts = result.attempts;
        let end = match (result.output, result.error) {
            (Some(output), None) => CallEnd::Succeeded { output: output.content, attempts },
            (_, Some(error)) => CallEnd::Failed(Failure {
                code: error.code,
                message: error.message,
                nature: if error.retriable { Nature::Transient } else { Nature::Permanent },
                reach: last.reach(),
                repeat: repeat(class),
                attempts,
                timed_out_after: last.cut,
            }),
            (None, None) => CallEnd::Succeeded { output: RawJson::from_trusted("null"), attempts },
        };
        Event::Ended { id, end, replayed: result.from_cache }
    }

    /// Writes down what the machine noted, and tells whoever listens.
    fn record(&mut self, notes: &mut Vec<Note>) {
        let about = TurnAbout {
            turn: self.name.as_ref(),
            trace: self.trace,
            target: &self.options.target,
            deadline: self.turn.deadline(),
        };
        for note in notes.drain(..) {
            self.engine.inner.telling.turn(&about, &note);
            if let Some(story) = &mut self.story {
                story.note(&note);
            }
        }
    }
}

/// The call of a turn, without what only this turn knows.
fn envelope(tool: &ToolRef, arguments: RawJson, target: Target) -> Option<CallEnvelope> {
    Some(CallEnvelope {
        contract_version: ContractVersion::V1_1,
        request_id: RequestId::new("turn").ok()?,
        tool_call_id: None,
        tool_name: tool.tool.clone(),
        tool_namespace: tool.namespace.clone(),
        target,
        payload: Payload {
            version: PayloadVersion::V1_0,
            params: arguments,
            idempotency_key: None,
            call_hints: CallHints::default(),
            unknown: Unknown::new(),
        },
        transport: Transport::default(),
        control: Control::default(),
        trace: EnvelopeTrace::default(),
        unknown: Unknown::new(),
    })
}

/// What a call of a turn is known by: the same when the turn comes again.
fn key(turn: &TurnId, call: &ToolCallId, candidate: usize) -> Option<IdempotencyKey> {
    let text = serde_json::to_vec(&(turn, call, candidate)).ok()?;
    IdempotencyKey::new(format!("turn-{}", Digest::of(&text).to_hex())).ok()
}

/// A choice that could not be kept: the call is not sent, because the turn could not be told from it later.
fn unkept(error: &StoreError) -> Failure {
    Failure {
        code: Code::StoreUnavailable,
        message: format!("not sent: what was chosen for it could not be kept: {error}"),
        nature: Nature::Transient,
        reach: Reach::NotSent,
        repeat: Repeat::Safe,
        attempts: 0,
        timed_out_after: None,
    }
}

/// The trace and the span that a `traceparent` names.
fn traced(traceparent: &str) -> Option<(TraceId, SpanId)> {
    let mut parts = traceparent.split('-').skip(1);
    Some((TraceId::from_hex(parts.next()?)?, SpanId::from_hex(parts.next()?)?))
}

/// A trace of our own, unlike all others.
fn own_trace(seed: u64, now: Timestamp) -> TraceId {
    let digest = Digest::of(format!("trace {seed} {}", now.as_millis()).as_bytes());
    let mut bytes = [1; 16];
    bytes.iter_mut().zip(digest.as_bytes()).for_each(|(byte, random)| *byte = *random);
    TraceId::from_bytes(bytes)
}
