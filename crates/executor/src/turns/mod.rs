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

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use serde::Serialize;
use steadfast_core::Timestamp;
use steadfast_core::approval::Channel;
use steadfast_core::breaker::State as BreakerState;
use steadfast_core::call::{KeysOf, Waits};
use steadfast_core::classify::Nature;
use steadfast_core::code::Code;
use steadfast_core::envelope::{
    CallEnvelope, CallHints, ContractVersion, Control, IdempotencyKey, Payload, PayloadVersion, Target,
    Trace as EnvelopeTrace, Transport, TurnControl, Unknown,
};
use steadfast_core::id::{Digest, RequestId, ToolCallId, ToolRef, TurnId};
use steadfast_core::output::RawJson;
use steadfast_core::policy::ToolClass;
use steadfast_core::turn::trace::{Event as TraceEvent, Fact, Note, SpanId, ToolFault, TraceId};
use steadfast_core::turn::{
    CallEnd, Choice, Dependants, Doubt, Event, Facts, Failure, Heard, Need, Plan, PlannedCall, Repeat, Step,
    Stop, Submitted, ToolFacts, Turn, TurnResult, decide,
};
use steadfast_store::{Part, StoreError, Trouble};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

use crate::approvals::Asker;
use crate::engine::{CALLS, CallOptions, Called, Canceller, Engine, InTurn, Inner};
use crate::shelf::{Found, Shelf};
use crate::telling::TurnAbout;

use hold::{Hold, Taken, Wish};
use story::Story;
pub(crate) use story::{KEEP as TRACES_KEPT, gathered};
pub use story::{TurnHead, TurnStory, TurnsWanted};
use watch::{Known, Told, Watch, What};

/// Who submits a turn.
#[derive(Clone, Debug)]
pub struct TurnOptions {
    /// For whom its calls are made. The turn that it names is replaced by that of the plan.
    pub target: Target,
    /// What its calls are tagged with.
    pub control: TurnControl,
    /// The W3C trace that it belongs to, with the baggage that is passed on to its tools.
    pub trace: EnvelopeTrace,
    /// Whether somebody can be asked while a call waits.
    pub channel: Channel,
    /// Who puts a question to the person at the caller's end.
    pub asker: Option<Arc<dyn Asker>>,
    /// Within what the same name is the same turn.
    pub keys_of: KeysOf,
    /// Withdraws the turn: nothing more starts, what runs is told to stop.
    pub withdrawn: CancellationToken,
    /// Hears of what happens in it, as it happens.
    pub follower: Option<UnboundedSender<TraceEvent>>,
}

impl TurnOptions {
    /// For whoever cannot be asked anything, as most callers of a turn: its name is its own within the conversation.
    pub fn of(target: Target) -> Self {
        Self {
            target,
            control: TurnControl::default(),
            trace: EnvelopeTrace::default(),
            channel: Channel::Headless,
            asker: None,
            keys_of: KeysOf::Conversation,
            withdrawn: CancellationToken::new(),
            follower: None,
        }
    }
}

/// What came of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Turned {
    /// How it ended.
    #[serde(flatten)]
    pub result: TurnResult,
    /// Its trace.
    #[serde(rename = "traceId")]
    pub trace: TraceId,
    /// The most bytes of text that the caller is to be given of the outputs of these calls. They stand in the result whole; see
    /// [`Called::text_limit`].
    #[serde(skip)]
    pub text_limits: BTreeMap<ToolCallId, usize>,
}

/// Why a turn was not begun. Nothing of it ran.
#[derive(Debug)]
#[non_exhaustive]
pub enum TurnRefused {
    /// The same turn is under way; it may be for so long.
    InFlight(Duration),
    /// As many turns run here as may.
    Overloaded,
    /// The store cannot say whether any of it has run.
    Store(StoreError),
}

impl fmt::Display for TurnRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InFlight(_) => f.write_str(
                "the same turn is under way: wait for it, or submit it again later; what it finishes is not run again",
            ),
            Self::Overloaded => write!(f, "{MOST_TURNS} turns run here already: submit it again in a moment"),
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
    called: Called,
    tool: ToolRef,
    heard: Heard,
    /// Nothing where it was turned away at the door: nobody looked for its record.
    known: Option<Known>,
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
        // Its time runs from here, however long the store takes to say that it may begin: it holds the turn no longer.
        let now = inner.clock.now();
        let caller = options.trace.traceparent.as_deref().and_then(Caller::read);
        let seed = inner.seed_of(number);
        let trace = caller.map_or_else(|| own_trace(seed, now), |caller| caller.trace);
        let name = plan.turn().cloned();
        let Some(underway) = Underway::begin(inner.clone(), number, name.clone(), trace, &options) else {
            return Err(TurnRefused::Overloaded);
        };
        let facts = self.facts(&plan, &options.target);
        let mut held = Held { hold: None, engine: self.clone() };
        let submitted = match plan.turn() {
            None => Submitted::First,
            Some(turn) => {
                let wish = Wish {
                    process: inner.process.clone(),
                    number,
                    deadline: plan.deadline(),
                    // The last of them may begin at the deadline.
                    lasts: facts.records_last + plan.deadline(),
                };
                let name = hold::name(turn, &options);
                let taking = Hold::take(&mut held.hold, inner.store.clone(), name, wish);
                match tokio::time::timeout(plan.deadline().max(LEAST_FOR_STORE), taking).await {
                    Ok(Ok(Taken::Ours(submitted))) => submitted,
                    Ok(Ok(Taken::Busy(until))) => {
                        return Err(TurnRefused::InFlight(until.since(inner.store.now())));
                    }
                    Ok(Err(error)) => return Err(TurnRefused::Store(error)),
                    Err(_) => return Err(TurnRefused::Store(silent())),
                }
            }
        };
        let story = Story::begin(inner.clone(), plan.clone(), &options, trace, caller, seed, now);
        let mut notes = Vec::new();
        let (turn, steps) = Turn::begin(plan.clone(), &facts.tools, submitted, now, &mut notes);
        let (tell, told) = unbounded_channel();
        let guarded_as = name.clone().or_else(|| TurnId::new(trace.to_string()).ok());
        let running = Running {
            engine: self.clone(),
            shelf,
            options,
            plan,
            turn,
            story: Some(story),
            held,
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
        let (result, text_limits) = running.run(steps, notes, told).await;
        drop(underway);
        Ok(Turned { result, trace, text_limits })
    }

    /// Withdraws the turns of this name or trace that run here and whose caller may be told so: nothing more of them
    /// starts, what runs is told to stop. Says how many there were.
    pub fn withdraw_turn(&self, name: &str, is_theirs: impl Fn(&Target) -> bool) -> usize {
        let running = self.inner.turning.lock();
        let named = running.values().filter(|turn| turn.is_called(name) && is_theirs(&turn.target));
        named.inspect(|turn| turn.withdrawn.cancel()).count()
    }

    /// The turns that are wanted, those first that began last.
    pub async fn turns(&self, wanted: &TurnsWanted) -> Result<Part<TurnHead>, StoreError> {
        self.write_stories().await;
        wanted.read(&*self.inner.store).await
    }

    /// What is kept of a turn, by its trace or by the name that its plan gave it; the newest of that name.
    pub async fn story(&self, name: &str) -> Result<Option<TurnStory>, StoreError> {
        self.write_stories().await;
        TurnStory::read(&*self.inner.store, name).await
    }

    /// Brings what waits into the store. In a task, because what is on its way must not go with whoever asked.
    async fn write_stories(&self) {
        let inner = self.inner.clone();
        let _ = tokio::spawn(async move { inner.write_stories_now().await }).await;
    }

    /// What the machine has to know about the tools of a plan. What their servers say of them is heard when they are called.
    fn facts(&self, plan: &Plan, target: &Target) -> PlanFacts {
        let mut facts = PlanFacts { tools: BTreeMap::new(), classes: BTreeMap::new(), records_last: LASTS };
        for tool in plan.tools() {
            let Some(envelope) = envelope(tool, RawJson::from_trusted("{}"), target.clone()) else {
                continue;
            };
            let Ok(policy) = self.policy_of(&envelope) else { continue };
            let keep = &policy.dedupe.keep;
            // What the turn leaves running is recorded later than anything is heard of the turn.
            let longest = keep.done.max(keep.failed).max(keep.open) + policy.time.total;
            facts.records_last = facts.records_last.max(longest);
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

/// The most turns at once; further ones are refused at once. Each may hold 64 MiB of what its calls gave.
const MOST_TURNS: usize = 256;
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
        ToolClass::ReadOnly => Repeat::Safe,
        ToolClass::Idempotent => Repeat::BySameTool,
        ToolClass::Mutating | ToolClass::Unknown => Repeat::Unsafe,
    }
}

/// The turns that run here, by their numbers.
pub(crate) type Turning = Mutex<BTreeMap<u64, Withdrawable>>;

/// A turn that can be withdrawn by others than its caller.
#[derive(Debug)]
pub(crate) struct Withdrawable {
    name: Option<TurnId>,
    trace: TraceId,
    target: Target,
    withdrawn: CancellationToken,
}

impl Withdrawable {
    fn is_called(&self, name: &str) -> bool {
        self.name.as_ref().is_some_and(|turn| turn.as_str() == name)
            || TraceId::from_hex(name) == Some(self.trace)
    }
}

/// A turn is among those that run, until this is dropped.
struct Underway {
    inner: Arc<Inner>,
    number: u64,
}

impl Underway {
    /// If there is a place for it.
    fn begin(
        inner: Arc<Inner>,
        number: u64,
        name: Option<TurnId>,
        trace: TraceId,
        options: &TurnOptions,
    ) -> Option<Self> {
        let (target, withdrawn) = (options.target.clone(), options.withdrawn.clone());
        let mut turning = inner.turning.lock();
        if turning.len() >= MOST_TURNS {
            return None;
        }
        turning.insert(number, Withdrawable { name, trace, target, withdrawn });
        drop(turning);
        Some(Self { inner, number })
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.inner.turning.lock().remove(&self.number);
    }
}

/// A turn that runs.
struct Running {
    engine: Engine,
    shelf: Arc<dyn Shelf>,
    options: TurnOptions,
    plan: Arc<Plan>,
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
    /// Calls that ended while the store was waited for.
    arrived: VecDeque<(ToolCallId, Ended)>,
    sent_to: BTreeMap<ToolCallId, Sent>,
    tell: UnboundedSender<Told>,
    /// Calls that were sent, alternatives included.
    sent: u64,
    /// The most bytes of text that the caller is to be given, for calls that have such a limit.
    text_limits: BTreeMap<ToolCallId, usize>,
}

/// A call that is on its way to its tool.
struct Sent {
    watch: Arc<Watch>,
    /// Withdraws it, once it is with the engine.
    stop: Arc<Mutex<Option<Canceller>>>,
}

/// The turn is given back when it is over, and also when nobody waits for it any more, or when the store did not say whether
/// it is ours. What does not get through is tried again for as long as it would keep others from the turn and there is an
/// engine; a shutdown has one try left.
struct Held {
    hold: Option<Hold>,
    engine: Engine,
}

impl Drop for Held {
    fn drop(&mut self) {
        let (Some(mut hold), Ok(runtime)) = (self.hold.take(), tokio::runtime::Handle::try_current()) else {
            return;
        };
        let inner = &self.engine.inner;
        let (stopping, engine) = (inner.stopping.clone(), Arc::downgrade(inner));
        let left = hold.is_in_the_way_for();
        let trying = async move {
            while let Err(error) = hold.release().await {
                let Some(inner) = engine.upgrade() else { return };
                inner.store_trouble(&*inner.store, &error);
                drop(inner);
                tokio::select! {
                    () = tokio::time::sleep(PAUSE) => {}
                    () = stopping.cancelled() => return drop(hold.release().await),
                }
            }
        };
        inner.giving_back.spawn_on(tokio::time::timeout(left, trying), &runtime);
    }
}

/// The next call that has ended.
async fn next(
    arrived: &mut VecDeque<(ToolCallId, Ended)>,
    going: &mut FuturesUnordered<Going>,
) -> Option<(ToolCallId, Ended)> {
    match arrived.pop_front() {
        Some(ended) => Some(ended),
        None => going.next().await,
    }
}

/// Between two tries to give a turn back.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the end of a turn waits for the store to take it back.
const GRACE: Duration = Duration::from_secs(2);

impl Running {
    async fn run(
        mut self,
        mut steps: Vec<Step>,
        mut notes: Vec<Note>,
        mut told: UnboundedReceiver<Told>,
    ) -> (TurnResult, BTreeMap<ToolCallId, usize>) {
        let withdrawn = self.options.withdrawn.clone();
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
            let left = self.turn.deadline().since(self.engine.now());
            let events = tokio::select! {
                biased;
                Some(heard) = told.recv() => self.heard(heard, &mut notes).into_iter().collect(),
                Some((id, ended)) = next(&mut self.arrived, &mut self.going) => {
                    // What was heard of it before comes first.
                    let mut events = Vec::new();
                    while let Ok(heard) = told.try_recv() {
                        events.extend(self.heard(heard, &mut notes));
                    }
                    events.extend(self.ended(id, ended));
                    events
                }
                () = withdrawn.cancelled(), if !cancelled => {
                    cancelled = true;
                    let unsent = self.unsent(|sent| sent.stop.lock().is_none());
                    unsent.chain([Event::Cancel]).collect()
                }
                () = tokio::time::sleep(left) => self.time_is_over(),
            };
            steps = events.into_iter().flat_map(|event| self.feed(event, &mut notes)).collect();
        }
    }

    /// Time has passed, and from the deadline on no attempt starts any more.
    fn time_is_over(&self) -> Vec<Event> {
        let is_over = self.engine.now() >= self.turn.deadline();
        self.unsent(|sent| is_over && !sent.watch.heard().has_begun()).chain([Event::Tick]).collect()
    }

    /// What the machine has to hear of calls that have done nothing yet, before it hears of the end.
    fn unsent(&self, is_unsent: impl Fn(&Sent) -> bool) -> impl Iterator<Item = Event> {
        let unsent = self.sent_to.iter().filter(move |(_, sent)| is_unsent(sent));
        unsent.map(|(id, _)| Event::NotStarted { id: id.clone() })
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
        let mut queue = VecDeque::from(steps);
        while let Some(step) = queue.pop_front() {
            match step {
                Step::Run { id, .. }
                    if self.options.withdrawn.is_cancelled() || self.engine.now() >= self.turn.deadline() =>
                {
                    queue.extend(self.feed(Event::NotStarted { id }, notes));
                }
                Step::Run { id, tool, arguments, timeout, choice } => {
                    self.record(notes);
                    let kept = self.keep(&id, &choice).await;
                    if self.options.withdrawn.is_cancelled() {
                        queue.extend(self.feed(Event::NotStarted { id }, notes));
                    } else if let Err(error) = kept {
                        let end = CallEnd::Failed(unkept(&error));
                        queue.extend(self.feed(Event::Ended { id, end, replayed: false }, notes));
                    } else {
                        self.start(id, tool, arguments, timeout, &choice);
                    }
                }
                Step::Cancel { id } => {
                    let stop = self.sent_to.remove(&id).and_then(|sent| sent.stop.lock().take());
                    if let Some(canceller) = stop {
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

    /// Writes a choice down that would not be made again of itself. Meanwhile the other calls go on, and the turn does not wait
    /// beyond its deadline, nor when it is withdrawn.
    async fn keep(&mut self, id: &ToolCallId, choice: &Choice) -> Result<(), StoreError> {
        let left = self.turn.deadline().since(self.engine.now());
        let withdrawn = self.options.withdrawn.clone();
        let Some(hold) = &mut self.held.hold else { return Ok(()) };
        let mut writing = pin!(tokio::time::timeout(left, hold.choose(id, choice)));
        loop {
            tokio::select! {
                biased;
                written = &mut writing => return written.unwrap_or_else(|_| Err(silent())),
                Some(ended) = self.going.next() => self.arrived.push_back(ended),
                () = withdrawn.cancelled() => return Err(silent()),
            }
        }
    }

    /// The turn is over: whoever hears of its end can submit it again. What does not get through is tried again meanwhile.
    async fn give_back(&mut self) {
        let Some(hold) = &mut self.held.hold else { return };
        match tokio::time::timeout(GRACE, hold.release()).await {
            Ok(Ok(())) => self.held.hold = None,
            Ok(Err(error)) => self.engine.inner.store_trouble(&*self.engine.inner.store, &error),
            Err(_) => {}
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
        if let Some(story) = &mut self.story
            && let Ok(request) = RequestId::new(format!("{}.{}", story.root_span(), self.sent))
        {
            story.sent(&id, &request, self.engine.now());
            envelope.request_id = request;
        }
        envelope.payload.call_hints.timeout_ms = timeout.map(steadfast_core::millis);
        envelope.payload.idempotency_key =
            self.name.as_ref().and_then(|turn| key(turn, &id, choice.candidate));
        let TurnControl { request_tags, from_hook, .. } = self.options.control.clone();
        envelope.control = Control { request_tags, from_hook, ..Control::default() };
        envelope.trace = self.options.trace.clone();
        envelope.trace.traceparent = self.story.as_ref().map(|story| story.traceparent(&id));
        envelope.tool_call_id = Some(id.clone());
        let class = self.class_of(&tool);
        let watch = Arc::new(Watch::new(id.clone(), tool.clone(), class, self.tell.clone()));
        let stop = Arc::new(Mutex::new(None));
        self.sent_to.insert(id.clone(), Sent { watch: watch.clone(), stop: stop.clone() });
        let options = CallOptions {
            channel: self.options.channel,
            asker: self.options.asker.clone(),
            keys_of: self.options.keys_of,
            waits: Waits::AsLongAsItTakes,
            listener: Some(watch.clone()),
            // No attempt starts when the turn is over.
            start_by: Some(self.turn.deadline()),
            in_turn: if self.name.is_some() { InTurn::ThatMayComeAgain } else { InTurn::Not },
            ..CallOptions::default()
        };
        let (engine, shelf) = (self.engine.clone(), self.shelf.clone());
        self.going.push(Box::pin(async move {
            let found = shelf.find(&envelope).await;
            let found = found.unwrap_or_else(|| Found::nobody(&tool));
            found.complete(&mut envelope);
            let Found { run, info, reads, .. } = found;
            let calling = engine.call_with(
                envelope,
                run,
                CallOptions { tool: info, reads, shelf: Some(shelf), ..options },
            );
            *stop.lock() = Some(calling.canceller());
            let called = calling.await;
            (id, Ended { called, tool, heard: watch.heard(), known: watch.known() })
        }));
    }

    /// The class of a tool, as far as it is known without its server.
    fn class_of(&self, tool: &ToolRef) -> ToolClass {
        self.classes.get(tool).copied().unwrap_or(ToolClass::Unknown)
    }

    /// Something was heard of a call that runs.
    fn heard(&mut self, told: Told, notes: &mut Vec<Note>) -> Option<Event> {
        let Told { call, tool, at, what } = told;
        match what {
            What::Breaker(state) => Some(Event::BreakerChanged { tool, state }),
            What::Class(class) => Some(Event::Known { tool, stop: stop(class) }),
            What::Retries { attempt, next_at, attempts_left, heard } => {
                notes.extend(self.retried(&call, &tool, at, attempt, next_at, attempts_left, &heard));
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
        heard: &Heard,
    ) -> [Note; 3] {
        let code = if heard.cut().is_some() { Code::Timeout } else { Code::ToolError };
        let breaker = self.engine.breaker_of(&self.options.target, tool);
        let nature = heard.failed().map_or(Nature::Transient, |failed| failed.nature);
        let attempts = next.saturating_sub(1);
        let wait = next_at.since(at);
        let decision = decide(Facts {
            code,
            nature,
            reach: heard.reach(),
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
        let error = heard.failed().map_or_else(String::new, |failed| failed.said.to_string());
        let rule = heard.failed().map(|failed| failed.rule.to_string());
        let fault = ToolFault { error, rule, code, nature, breaker, attempts, decision: decision.strategy };
        let fault = match heard.cut() {
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

    /// A call has ended: what the machine hears of it, after how the breakers of all that could do it stand now.
    fn ended(&mut self, id: ToolCallId, ended: Ended) -> Vec<Event> {
        self.sent_to.remove(&id);
        let Ended { called, tool, heard, known } = ended;
        match called.text_limit {
            Some(limit) => _ = self.text_limits.insert(id.clone(), limit),
            None => _ = self.text_limits.remove(&id),
        }
        let Known { class, doubt } =
            known.unwrap_or_else(|| Known { class: self.class_of(&tool), doubt: Doubt::MadeAgain });
        let result = called.result;
        if let Some(arrival) = called.arrival {
            self.engine.delivered(arrival);
        }
        let replayed = result.from_cache;
        let rule = result.error.as_ref().and_then(|error| error.rule.clone());
        let failed = |code, message, nature| {
            CallEnd::Failed(Failure {
                code,
                message,
                rule: rule.clone(),
                nature,
                reach: heard.reach(),
                repeat: repeat(class),
                doubt,
                attempts: result.attempts,
                timed_out_after: heard.cut(),
            })
        };
        let end = match (result.output, result.error) {
            (_, None) if heard.has_asked() => failed(Code::ToolError, ASKS.into(), Nature::Permanent),
            (_, Some(error)) if error.retriable => failed(error.code, error.message, Nature::Transient),
            (_, Some(error)) => failed(error.code, error.message, Nature::Permanent),
            (output, None) => CallEnd::Succeeded {
                output: output.map_or_else(|| RawJson::from_trusted("null"), |output| output.content),
                attempts: result.attempts,
            },
        };
        let mut events = Vec::new();
        for tool in self.plan.call(&id).into_iter().flat_map(PlannedCall::tools) {
            let state = self.engine.breaker_of(&self.options.target, tool);
            events.push(Event::BreakerChanged { tool: tool.clone(), state });
        }
        events.push(Event::Ended { id, end, replayed });
        events
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
                story.note(note);
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
    let message = format!("not sent: what was chosen for it could not be kept: {error}");
    Failure::not_sent(Code::StoreUnavailable, Nature::Transient, message)
}

/// A tool that asks has done nothing.
const ASKS: &str = "the tool asks for input first, which a turn cannot give: call it by itself";

/// So long the store may take to say what of a turn has run, also where the turn itself has less time: it then ends with what is
/// known, and that no time was left for the rest.
const LEAST_FOR_STORE: Duration = Duration::from_secs(10);

/// The store did not say anything for as long as the turn may take.
fn silent() -> StoreError {
    StoreError::unanswered(Trouble::Unreachable, "it did not answer in the time of the turn")
}

/// Who submits a turn, as its `traceparent` says it.
#[derive(Clone, Copy)]
struct Caller {
    trace: TraceId,
    span: SpanId,
    /// Whether spans are wanted.
    sampled: bool,
}

impl Caller {
    /// What cannot be read is none.
    fn read(traceparent: &str) -> Option<Self> {
        let mut parts = traceparent.split('-').skip(1);
        let (trace, span) = (TraceId::from_hex(parts.next()?)?, SpanId::from_hex(parts.next()?)?);
        let flags = u8::from_str_radix(parts.next()?, 16).ok()?;
        Some(Self { trace, span, sampled: flags & 1 == 1 })
    }
}

/// A trace of our own, unlike all others.
fn own_trace(seed: u64, now: Timestamp) -> TraceId {
    let digest = Digest::of(format!("trace {seed} {}", now.as_millis()).as_bytes());
    let mut bytes = [1; 16];
    bytes.iter_mut().zip(digest.as_bytes()).for_each(|(byte, random)| *byte = *random);
    TraceId::from_bytes(bytes)
}
