//! The machine of a turn, the handler of its errors, the hold on a turn, and the reach of its calls.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::breaker::State as Circuit;
use steadfast_core::call::{Cut, FailedAttempt, Notice};
use steadfast_core::classify::{Nature, Reach, Severity};
use steadfast_core::code::Code;
use steadfast_core::dedupe::{LeaseSight, Observed, Process};
use steadfast_core::id::{Namespace, ToolCallId, ToolName, ToolRef};
use steadfast_core::output::RawJson;
use steadfast_core::turn::{
    CallEnd, Choice, Dependants, Doubt, Draft, DraftAlternative, DraftCall, DraftDependency, EndedBy, Event,
    Facts, Failure, Heard, Hold, Holder, Kept, Limits, Misuse, Need, Outcome, Plan, Repeat, Stale, Step,
    Stop, Strategy, Submitted, Take, ToolFacts, Turn, TurnStatus, decide,
};

use super::{Story, agree, millis, next_moment, perhaps};
use crate::invariants::Broken;
use crate::rng::Rng;

const PROMISE: &str = "turns take their path";

const CODES: [Code; 12] = [
    Code::ToolError,
    Code::ToolError,
    Code::Timeout,
    Code::RetryExhausted,
    Code::CircuitOpen,
    Code::OutcomeUnknown,
    Code::StoreUnavailable,
    Code::ApprovalDenied,
    Code::Cancelled,
    Code::InFlight,
    Code::DeadlineExceeded,
    Code::ToolErrorLimit,
];

pub(super) fn check(rng: &mut Rng, story: &mut Story) -> Result<(), Broken> {
    for _ in 0..4 {
        handler(rng, story)?;
        holds(rng, story)?;
        heard(rng, story)?;
    }
    turns(rng, story)
}

/// Returns true if another tool may do the job: not if the call ran or runs or could not be looked up, not if an
/// approval was denied, and not if the turn may make no more calls.
fn another_may(code: Code) -> bool {
    !matches!(
        code,
        Code::IdempotencyConflict
            | Code::InFlight
            | Code::OutcomeUnknown
            | Code::ResultNotKept
            | Code::ResultTooLarge
            | Code::StoreUnavailable
            | Code::ApprovalDenied
            | Code::DeadlineExceeded
            | Code::ToolErrorLimit
            | Code::Cancelled
    )
}

fn lets_through(circuit: Circuit) -> bool {
    matches!(circuit, Circuit::Closed | Circuit::HalfOpen)
}

/// Returns the strategy for a failure: the cheapest one that can still bring the result, an operator last.
fn strategy(facts: &Facts) -> Strategy {
    let in_doubt = facts.reach == Reach::Unknown;
    if facts.code == Code::OutcomeUnknown || in_doubt && facts.repeat == Repeat::Unsafe {
        return Strategy::Escalate;
    }
    if facts.remaining == Duration::ZERO || facts.code == Code::Cancelled {
        return if facts.succeeded > 0 { Strategy::PartialSuccess } else { Strategy::GracefulFailure };
    }
    let is_transient = facts.nature == Nature::Transient;
    if is_transient && lets_through(facts.breaker) && facts.attempts_left > 0 && facts.wait < facts.remaining
    {
        return Strategy::Retry;
    }
    let twice = in_doubt && facts.repeat == Repeat::BySameTool;
    if facts.alternatives > 0 && another_may(facts.code) && !twice {
        return Strategy::AlternativeTool;
    }
    let Dependants { covered, stranded } = facts.dependants;
    if facts.need == Need::Optional || covered > 0 && stranded == 0 {
        return Strategy::PartialSuccess;
    }
    if is_transient && stranded == 0 { Strategy::GracefulFailure } else { Strategy::Escalate }
}

fn handler(rng: &mut Rng, story: &mut Story) -> Result<(), Broken> {
    let number = |rng: &mut Rng, most| usize::try_from(rng.between(0, most)).unwrap_or(0);
    let span = |rng: &mut Rng| millis(*rng.pick(&[0, 1, 1_000]));
    let facts = Facts {
        code: *rng.pick(&CODES),
        nature: *rng.pick(&[Nature::Transient, Nature::Permanent]),
        reach: *rng.pick(&[Reach::NotSent, Reach::Refused, Reach::Unknown, Reach::Answered]),
        repeat: *rng.pick(&[Repeat::Safe, Repeat::BySameTool, Repeat::Unsafe]),
        breaker: circuit(rng),
        attempts: 1,
        attempts_left: u32::try_from(rng.between(0, 1)).unwrap_or(0),
        wait: span(rng),
        remaining: span(rng),
        alternatives: number(rng, 1),
        need: *rng.pick(&[Need::Required, Need::Optional]),
        dependants: Dependants { covered: number(rng, 1), stranded: number(rng, 1) },
        succeeded: number(rng, 1),
    };
    let decision = decide(facts);
    story.tell(|| format!("{decision:?}"));
    agree(PROMISE, "what is done about a failure", &decision.strategy, &strategy(&facts))
}

fn circuit(rng: &mut Rng) -> Circuit {
    *rng.pick(&[Circuit::Closed, Circuit::Closed, Circuit::HalfOpen, Circuit::Open, Circuit::ForcedOpen])
}

// ---- the hold on a turn ----

fn holds(rng: &mut Rng, story: &mut Story) -> Result<(), Broken> {
    let process = |pid| Process { boot: "boot".into(), pid, started: 0 };
    let now = Timestamp::from_millis(10_000);
    let call = id(0);
    let choice = Choice { candidate: usize::from(rng.chance(50)), ..Choice::default() };
    let until = now.before(millis(1)) + millis(rng.between(0, 2));
    let holder = perhaps(rng, |_| Holder { process: process(1), number: 5, until });
    let mut choices = BTreeMap::new();
    if rng.chance(50) {
        choices.insert(call.clone(), Choice { candidate: 1, ..Choice::default() });
    }
    let kept = Kept { format: Kept::FORMAT, holder: holder.clone(), choices: choices.clone() };
    let found = perhaps(rng, |_| (3, kept));
    let me = Holder { process: process(2), number: 8, until: now + millis(1_000) };
    let sight = *rng.pick(&[LeaseSight::Alive, LeaseSight::Gone, LeaseSight::Time]);
    let taken = Hold::take(found.clone(), me.clone(), |_| sight, now);
    story.tell(|| format!("{found:?}, its holder is {sight:?}: {taken:?}"));
    let held = holder.filter(|holder| found.is_some() && now < holder.until && sight != LeaseSight::Gone);
    let (mut hold, submitted) = match (taken, held) {
        (Take::Busy(until), Some(holder)) => return agree(PROMISE, "until when", &until, &holder.until),
        (Take::Ours(hold, submitted), None) => (hold, submitted),
        (taken, held) => return Err((PROMISE, format!("{taken:?}, and it is held by {held:?}"))),
    };
    let choices = if found.is_some() { choices } else { BTreeMap::new() };
    let due = if found.is_some() { Submitted::Again(choices.clone()) } else { Submitted::First };
    agree(PROMISE, "whether it came before", &submitted, &due)?;
    agree(PROMISE, "who holds it", &hold.kept().holder, &Some(me.clone()))?;
    agree(PROMISE, "what was chosen", &hold.kept().choices, &choices)?;
    agree(PROMISE, "what it replaces", &hold.replaces(), &found.map(|(version, _)| version))?;
    // A choice is written unless the document has the same one, or has none and the choice is the planned one.
    let is_known = choices.get(&call).map_or(choice == Choice::default(), |known| *known == choice);
    let written = hold.choosing(&call, &choice);
    agree(PROMISE, "whether a choice is written", &written.is_none(), &is_known)?;
    if let Some(kept) = written {
        agree(PROMISE, "the choice that is written", &kept.choices.get(&call), &Some(&choice))?;
        agree(PROMISE, "who chose", &kept.holder, &Some(me.clone()))?;
        hold.wrote(kept.clone(), 9);
        agree(PROMISE, "what is written", &(hold.kept(), hold.replaces()), &(&kept, Some(9)))?;
    }
    agree(PROMISE, "holder after the release", &hold.giving_back().holder, &None)?;
    let there = match rng.between(0, 3) {
        0 => None,
        1 => Some(None),
        2 => Some(Some(Holder { number: 9, ..me.clone() })),
        _ => Some(Some(Holder { until: me.until + millis(1), ..me.clone() })),
    };
    let kept = there.clone().map(|holder| Kept { format: Kept::FORMAT, holder, choices: BTreeMap::new() });
    let is_mine = |holder: &Holder| holder.process == me.process && holder.number == me.number;
    let due = match &there {
        None => Stale::Again,
        Some(holder) if holder.as_ref().is_some_and(is_mine) => Stale::Again,
        Some(_) => Stale::Lost,
    };
    let before = hold.replaces();
    agree(PROMISE, "a write that came too late", &hold.stale(kept.as_ref().map(|kept| (12, kept))), &due)?;
    let due = if due == Stale::Lost { before } else { kept.map(|_| 12) };
    agree(PROMISE, "what it replaces then", &hold.replaces(), &due)
}

// ---- the reach of a call ----

fn heard(rng: &mut Rng, story: &mut Story) -> Result<(), Broken> {
    let now = Timestamp::from_millis(1_000);
    let mut heard = Heard::default();
    // The reach of every attempt that was begun; unknown as long as it runs.
    let mut reaches: Vec<Reach> = Vec::new();
    let (mut failed, mut asked, mut followed, mut cut) = (None, false, false, None);
    for number in 1..=rng.between(0, 4) {
        let attempt = u32::try_from(number).unwrap_or(1);
        match rng.between(0, 3) {
            0 => {
                heard.hear(&Notice::Following);
                followed = true;
            }
            _ => {
                heard.hear(&Notice::AttemptStarted { attempt, at: now });
                reaches.push(Reach::Unknown);
                (failed, asked, cut) = (None, false, None);
                if rng.chance(20) {
                    let allowed = millis(number);
                    heard.hear(&Notice::AttemptCut { cut: Cut::Silent(allowed) });
                    cut = Some(allowed);
                }
                let reach = *rng.pick(&[Reach::NotSent, Reach::Refused, Reach::Unknown, Reach::Answered]);
                let how = FailedAttempt {
                    nature: Nature::Transient,
                    reach,
                    severity: Severity::Transient,
                    rule: "a rule".into(),
                    observed: Observed::NoAnswer,
                    said: "".into(),
                };
                let ends = rng.between(0, 4);
                let failure = (ends > 1).then(|| how.clone());
                if ends > 0 {
                    heard.hear(&Notice::AttemptEnded {
                        attempt,
                        took: Duration::ZERO,
                        failure: failure.clone(),
                    });
                    cut = cut.filter(|_| failure.is_some());
                    if failure.is_some() {
                        reaches.pop();
                        reaches.push(reach);
                    }
                    failed = failure;
                }
                if ends == 1 && rng.chance(50) {
                    heard.hear(&Notice::InputRequired);
                    reaches.pop();
                    reaches.push(Reach::Answered);
                    asked = true;
                }
            }
        }
        story.tell(|| format!("{heard:?}"));
        // Once an attempt may have run, the call may have run, whatever came later.
        let due =
            if reaches.contains(&Reach::Unknown) { Some(Reach::Unknown) } else { reaches.last().copied() };
        agree(PROMISE, "reach", &heard.reach(), &due.unwrap_or(Reach::NotSent))?;
        agree(PROMISE, "failure", &heard.failed(), &failed.as_ref())?;
        agree(PROMISE, "question", &heard.has_asked(), &asked)?;
        agree(PROMISE, "start", &heard.has_begun(), &(followed || !reaches.is_empty()))?;
        agree(PROMISE, "cut", &heard.cut(), &cut)?;
    }
    Ok(())
}

// ---- the machine ----

/// A call of the plan and its state.
#[derive(Clone, Debug)]
struct Call {
    candidates: Vec<ToolRef>,
    /// The calls that it depends on, each with true if there is a default for it.
    depends: Vec<(usize, bool)>,
    need: Need,
    place: Place,
    tried: BTreeSet<usize>,
    ran_with: Option<usize>,
    has_failed: bool,
    attempts: u32,
}

#[derive(Clone, Debug, PartialEq)]
enum Place {
    Waiting,
    Ready,
    /// It was to be started and was not.
    Put,
    Running(usize),
    Ended(End),
}

#[derive(Clone, Debug, PartialEq)]
struct End {
    outcome: Outcome,
    tool: ToolRef,
    code: Option<Code>,
    escalated: bool,
}

struct Reference {
    calls: Vec<Call>,
    facts: BTreeMap<ToolRef, ToolFacts>,
    chosen: Option<BTreeMap<ToolCallId, Choice>>,
    parallelism: usize,
    deadline: Timestamp,
    now: Timestamp,
    cut_off: BTreeSet<usize>,
    over: Option<EndedBy>,
    steps: Vec<Did>,
}

/// A step without its texts.
#[derive(Clone, Debug, PartialEq)]
enum Did {
    Run { call: usize, tool: ToolRef, candidate: usize, defaults: Vec<ToolCallId>, named: Option<ToolRef> },
    Cancel(usize),
    Leave(usize),
    Done { by: EndedBy, status: TurnStatus, escalated: bool, calls: Vec<(End, u32)> },
}

impl Reference {
    fn succeeded(&self, call: usize) -> bool {
        matches!(&self.calls[call].place, Place::Ended(end) if end.outcome == Outcome::Succeeded)
    }

    fn choice(&self, call: usize) -> Option<&Choice> {
        self.chosen.as_ref()?.get(&id(call))
    }

    fn untried(&self, call: usize) -> Vec<usize> {
        let is_open = |tool: &ToolRef| self.facts.get(tool).is_some_and(|facts| !lets_through(facts.breaker));
        let one = &self.calls[call];
        let all = one.candidates.iter().enumerate();
        all.filter(|(candidate, tool)| !one.tried.contains(candidate) && !is_open(tool))
            .map(|(candidate, _)| candidate)
            .collect()
    }

    /// Starts calls whose dependencies have all ended, with success or with a default for them.
    fn propagate(&mut self) {
        loop {
            let waiting = (0..self.calls.len()).filter(|call| self.calls[*call].place == Place::Waiting);
            let mut changed = false;
            for call in waiting.collect::<Vec<_>>() {
                let ended = |dependency: usize| matches!(self.calls[dependency].place, Place::Ended(_));
                let depends = self.calls[call].depends.clone();
                let fails = |(dependency, default): &(usize, bool)| {
                    ended(*dependency) && !self.succeeded(*dependency) && !default
                };
                if depends.iter().any(fails) {
                    let escalated = self.calls[call].need == Need::Required;
                    self.ends(call, Outcome::Skipped, 0, Some(Code::DependencyFailed), escalated);
                    changed = true;
                } else if depends.iter().all(|(dependency, _)| ended(*dependency)) {
                    self.calls[call].place = Place::Ready;
                    changed = true;
                }
            }
            if !changed {
                return;
            }
        }
    }

    fn ends(&mut self, call: usize, outcome: Outcome, candidate: usize, code: Option<Code>, escalated: bool) {
        let tool = self.calls[call].candidates[candidate].clone();
        self.calls[call].place = Place::Ended(End { outcome, tool, code, escalated });
    }

    fn running(&self) -> usize {
        self.calls.iter().filter(|call| matches!(call.place, Place::Running(_))).count()
    }

    fn advance(&mut self) {
        while self.over.is_none() && self.now < self.deadline && self.running() < self.parallelism {
            let Some(call) = self.calls.iter().position(|call| call.place == Place::Ready) else { break };
            let candidate = match (&self.chosen, self.choice(call)) {
                (None, _) => Some(self.untried(call).first().copied().unwrap_or(0)),
                (Some(_), None) => Some(0),
                // A call that may have run is looked up first, if the plan still has it.
                (Some(_), Some(chosen)) => {
                    let there = self.calls[call].candidates.get(chosen.candidate);
                    there
                        .filter(|there| chosen.tool.as_ref().is_none_or(|tool| tool == *there))
                        .map(|_| chosen.candidate)
                }
            };
            match candidate {
                Some(candidate) => self.run(call, candidate),
                None => {
                    let failure =
                        Failure::not_sent(Code::IdempotencyConflict, Nature::Permanent, String::new());
                    self.fails(call, 0, &failure, failure.reach);
                }
            }
        }
        let all_ended = self.calls.iter().all(|call| matches!(call.place, Place::Ended(_)));
        if all_ended && self.over.is_none() {
            self.finish(EndedBy::Finished);
        }
    }

    fn run(&mut self, call: usize, candidate: usize) {
        let pinned = self.choice(call).map(|chosen| chosen.defaults.clone()).unwrap_or_default();
        let takes_default = |(dependency, default): &&(usize, bool)| {
            *default && (!self.succeeded(*dependency) || pinned.contains(&id(*dependency)))
        };
        let defaults = self.calls[call]
            .depends
            .iter()
            .filter(takes_default)
            .map(|(dependency, _)| id(*dependency))
            .collect();
        let one = &mut self.calls[call];
        one.tried.insert(candidate);
        (one.ran_with, one.place) = (Some(candidate), Place::Running(candidate));
        let tool = one.candidates[candidate].clone();
        let named = (candidate > 0).then(|| tool.clone());
        self.steps.push(Did::Run { call, tool, candidate, defaults, named });
    }

    fn fails(&mut self, call: usize, candidate: usize, failure: &Failure, reach: Reach) {
        let one = &self.calls[call];
        let waiting = |other: &&Call| other.place == Place::Waiting;
        let on_it = |default: bool| {
            self.calls.iter().filter(waiting).filter(|other| other.depends.contains(&(call, default))).count()
        };
        let facts = Facts {
            code: failure.code,
            nature: failure.nature,
            reach,
            repeat: failure.repeat,
            breaker: self
                .facts
                .get(&one.candidates[candidate])
                .map_or(Circuit::Closed, |facts| facts.breaker),
            attempts: failure.attempts,
            attempts_left: 0,
            wait: Duration::ZERO,
            remaining: self.deadline.since(self.now),
            alternatives: self.untried(call).len(),
            need: one.need,
            dependants: Dependants { covered: on_it(true), stranded: on_it(false) },
            succeeded: (0..self.calls.len()).filter(|call| self.succeeded(*call)).count(),
        };
        self.calls[call].attempts += failure.attempts;
        let strategy = strategy(&facts);
        if strategy == Strategy::AlternativeTool
            && let Some(next) = self.untried(call).first()
        {
            return self.run(call, *next);
        }
        self.ends(call, Outcome::Failed, candidate, Some(failure.code), strategy == Strategy::Escalate);
        self.propagate();
    }

    fn ended(&mut self, call: usize, end: &CallEnd, replayed: bool) -> bool {
        if self.cut_off.remove(&call) {
            return true;
        }
        let Place::Running(candidate) = self.calls[call].place else { return false };
        match end {
            CallEnd::Succeeded { attempts, .. } => {
                self.calls[call].attempts += attempts;
                self.ends(call, Outcome::Succeeded, candidate, None, false);
                self.propagate();
            }
            CallEnd::Failed(failure) => {
                self.calls[call].has_failed = true;
                // If it is made again on a guess, an earlier attempt may have done the job, whatever came of the last
                // one.
                let came_before = replayed || self.chosen.is_some();
                let is_doubtful =
                    failure.doubt == Doubt::MadeAgain && came_before && another_may(failure.code);
                let reach = if is_doubtful && !self.untried(call).is_empty() {
                    Reach::Unknown
                } else {
                    failure.reach
                };
                self.fails(call, candidate, failure, reach);
            }
        }
        true
    }

    fn finish(&mut self, by: EndedBy) {
        self.over = Some(by);
        let code = if by == EndedBy::Cancel { Code::Cancelled } else { Code::DeadlineExceeded };
        for call in 0..self.calls.len() {
            let one = &self.calls[call];
            match one.place {
                Place::Ended(_) => {}
                Place::Ready | Place::Put if one.has_failed => {
                    self.ends(call, Outcome::Failed, one.ran_with.unwrap_or(0), Some(code), false);
                }
                Place::Waiting | Place::Ready | Place::Put => {
                    self.ends(call, Outcome::Skipped, 0, Some(code), false)
                }
                Place::Running(candidate) => {
                    let stop =
                        self.facts.get(&one.candidates[candidate]).map_or(Stop::Leave, |facts| facts.stop);
                    let is_told = stop == Stop::Cancel || by == EndedBy::Cancel;
                    self.steps.push(if is_told { Did::Cancel(call) } else { Did::Leave(call) });
                    let (outcome, code) = match stop {
                        Stop::Leave => (Outcome::LeftRunning, Code::InFlight),
                        Stop::Cancel => (Outcome::Cancelled, code),
                    };
                    self.cut_off.insert(call);
                    self.ends(call, outcome, candidate, Some(code), false);
                }
            }
        }
        let calls: Vec<(End, u32)> = self
            .calls
            .iter()
            .filter_map(|call| {
                if let Place::Ended(end) = &call.place { Some((end.clone(), call.attempts)) } else { None }
            })
            .collect();
        let done = calls.iter().filter(|(end, _)| end.outcome == Outcome::Succeeded).count();
        let status = match done {
            0 => TurnStatus::Failed,
            done if done == calls.len() => TurnStatus::Completed,
            _ => TurnStatus::Partial,
        };
        let escalated = calls.iter().any(|(end, _)| end.escalated);
        self.steps.push(Did::Done { by, status, escalated, calls });
    }
}

fn id(call: usize) -> ToolCallId {
    ToolCallId::new(format!("call{call}")).expect("a name")
}

fn tool(number: u64) -> ToolRef {
    ToolRef {
        namespace: Namespace::new("bank").expect("a name"),
        tool: ToolName::new(format!("tool{number}")).expect("a name"),
    }
}

fn place_of(id: &ToolCallId) -> usize {
    id.as_str().trim_start_matches("call").parse().unwrap_or(0)
}

fn as_did(step: &Step) -> Did {
    match step {
        Step::Run { id, tool, choice, .. } => Did::Run {
            call: place_of(id),
            tool: tool.clone(),
            candidate: choice.candidate,
            defaults: choice.defaults.clone(),
            named: choice.tool.clone(),
        },
        Step::Cancel { id } => Did::Cancel(place_of(id)),
        Step::Leave { id } => Did::Leave(place_of(id)),
        Step::Done(result) => Did::Done {
            by: result.ended_by,
            status: result.status,
            escalated: result.escalated,
            calls: result
                .calls
                .iter()
                .map(|call| {
                    (
                        End {
                            outcome: call.outcome,
                            tool: call.tool.clone(),
                            code: call.code,
                            escalated: call.escalated,
                        },
                        call.attempts,
                    )
                })
                .collect(),
        },
    }
}

fn turns(rng: &mut Rng, story: &mut Story) -> Result<(), Broken> {
    let mut now = Timestamp::from_millis(1_000_000);
    let calls: Vec<Call> = (0..rng.between(1, 5))
        .map(|number| {
            let earlier = 0..usize::try_from(number).unwrap_or(0);
            Call {
                candidates: (0..=rng.between(0, 2))
                    .map(|candidate| tool(number % 2 * 3 + candidate))
                    .collect(),
                depends: earlier
                    .map(|on| (on, rng.chance(40), rng.chance(40)))
                    .filter_map(|(on, is_there, is_optional)| is_there.then_some((on, is_optional)))
                    .collect(),
                need: *rng.pick(&[Need::Required, Need::Optional]),
                place: Place::Waiting,
                tried: BTreeSet::new(),
                ran_with: None,
                has_failed: false,
                attempts: 0,
            }
        })
        .collect();
    let parallelism = NonZeroUsize::new(usize::try_from(rng.between(1, 3)).unwrap_or(1));
    let deadline = millis(*rng.pick(&[1, 1_000, 5_000]));
    let draft = Draft {
        turn: None,
        deadline: Some(deadline),
        parallelism,
        calls: calls.iter().enumerate().map(|(number, call)| drafted(number, call)).collect(),
    };
    let plan = match Plan::new(draft, &Limits::DEFAULT) {
        Ok(plan) => Arc::new(plan),
        Err(errors) => return Err((PROMISE, format!("a plan is refused: {errors:?}"))),
    };
    let facts: BTreeMap<ToolRef, ToolFacts> = (0..6)
        .map(|number| {
            (tool(number), ToolFacts { breaker: circuit(rng), stop: *rng.pick(&[Stop::Cancel, Stop::Leave]) })
        })
        .collect();
    let chosen = rng.chance(35).then(|| chosen(rng, &calls));
    let submitted = chosen.clone().map_or(Submitted::First, Submitted::Again);
    let mut reference = Reference {
        facts: facts.clone(),
        parallelism: parallelism.map_or(1, NonZeroUsize::get),
        deadline: now + deadline,
        now,
        cut_off: BTreeSet::new(),
        over: None,
        steps: Vec::new(),
        calls,
        chosen,
    };
    // The candidates before the choice were tried, or could not be.
    for call in 0..reference.calls.len() {
        let tried = reference.choice(call).map_or(0, |chosen| chosen.candidate);
        let most = reference.calls[call].candidates.len() - 1;
        reference.calls[call].tried = (0..tried.min(most)).collect();
    }
    reference.propagate();
    reference.advance();
    let mut notes = Vec::new();
    let (mut turn, mut steps) = Turn::begin(plan, &facts, submitted, now, &mut notes);
    for _ in 0..30 {
        story.tell(|| format!("{}: {steps:?}", now.as_millis()));
        agree(
            PROMISE,
            "the steps",
            &steps.iter().map(as_did).collect(),
            &std::mem::take(&mut reference.steps),
        )?;
        agree(PROMISE, "whether it is over", &turn.is_over(), &reference.over.is_some())?;
        agree(PROMISE, "how many run", &turn.running(), &reference.running())?;
        now = next_moment(rng, now, &[reference.deadline]).min(reference.deadline + millis(1)).max(now);
        reference.now = now;
        let call = usize::try_from(rng.between(0, reference.calls.len() as u64 - 1)).unwrap_or(0);
        let event = event(rng, call);
        story.tell(|| format!("{}: {event:?}", now.as_millis()));
        let fits = match &event {
            Event::Ended { end, replayed, .. } => reference.ended(call, end, *replayed),
            Event::NotStarted { .. } => {
                let runs = matches!(reference.calls[call].place, Place::Running(_));
                if runs {
                    reference.calls[call].place = Place::Put;
                }
                runs
            }
            Event::BreakerChanged { tool, state } => {
                if reference.over.is_none()
                    && let Some(facts) = reference.facts.get_mut(tool)
                {
                    facts.breaker = *state;
                }
                true
            }
            Event::Known { tool, stop } => {
                if let Some(facts) = reference.facts.get_mut(tool) {
                    facts.stop = *stop;
                }
                true
            }
            Event::Tick => {
                if reference.over.is_none() && now >= reference.deadline {
                    reference.finish(EndedBy::Deadline);
                }
                true
            }
            Event::Cancel => {
                if reference.over.is_none() {
                    reference.finish(EndedBy::Cancel);
                }
                true
            }
        };
        if fits {
            reference.advance();
        }
        steps = match turn.on(now, event, &mut notes) {
            Ok(steps) if fits => steps,
            Err(Misuse::NotRunning(_)) if !fits => Vec::new(),
            other => return Err((PROMISE, format!("an event that fits ({fits}): {other:?}"))),
        };
    }
    Ok(())
}

fn drafted(number: usize, call: &Call) -> DraftCall {
    DraftCall {
        id: id(number),
        tool: call.candidates[0].clone(),
        params: None,
        depends_on: call
            .depends
            .iter()
            .map(|(on, default)| DraftDependency {
                on: id(*on),
                default: default.then(|| RawJson::string("instead")),
            })
            .collect(),
        need: call.need,
        alternatives: call.candidates[1..]
            .iter()
            .map(|tool| DraftAlternative { tool: tool.clone(), params: None })
            .collect(),
        timeout: None,
    }
}

/// Draws the choices of an earlier submission. The plan may have changed since.
fn chosen(rng: &mut Rng, calls: &[Call]) -> BTreeMap<ToolCallId, Choice> {
    let mut chosen = BTreeMap::new();
    for (number, call) in calls.iter().enumerate() {
        if rng.chance(50) {
            continue;
        }
        let candidate = usize::try_from(rng.between(0, 2)).unwrap_or(0);
        let there = call.candidates.get(candidate).cloned().unwrap_or_else(|| tool(5));
        let named = if rng.chance(85) { there } else { tool(4) };
        let defaults =
            call.depends.iter().filter(|_| rng.chance(30)).map(|(dependency, _)| id(*dependency)).collect();
        chosen.insert(id(number), Choice { candidate, defaults, tool: (candidate > 0).then_some(named) });
    }
    chosen
}

fn event(rng: &mut Rng, call: usize) -> Event {
    match rng.between(0, 19) {
        0 => Event::Tick,
        1 => Event::Cancel,
        2 => Event::BreakerChanged { tool: tool(rng.between(0, 5)), state: circuit(rng) },
        3 => Event::Known { tool: tool(rng.between(0, 5)), stop: *rng.pick(&[Stop::Cancel, Stop::Leave]) },
        4 => Event::NotStarted { id: id(call) },
        5..9 => Event::Ended {
            id: id(call),
            end: CallEnd::Succeeded { output: RawJson::string("done"), attempts: 2 },
            replayed: rng.chance(20),
        },
        9 | 10 => Event::Tick,
        _ => {
            let failure = Failure {
                code: *rng.pick(&CODES),
                message: "it failed".to_owned(),
                rule: None,
                nature: *rng.pick(&[Nature::Transient, Nature::Permanent]),
                reach: *rng.pick(&[Reach::NotSent, Reach::Refused, Reach::Unknown, Reach::Answered]),
                repeat: *rng.pick(&[Repeat::Safe, Repeat::BySameTool, Repeat::Unsafe]),
                doubt: *rng.pick(&[Doubt::Told, Doubt::MadeAgain]),
                attempts: 1,
                timed_out_after: None,
            };
            Event::Ended { id: id(call), end: CallEnd::Failed(failure), replayed: rng.chance(20) }
        }
    }
}
