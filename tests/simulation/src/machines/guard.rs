//! The loop guard of one conversation: its refusals, their duration, and its remarks on answers.

use std::collections::VecDeque;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::classify::ModelMistake;
use steadfast_core::code::Code;
use steadfast_core::guard::{GuardLayer, GuardRemark, GuardedCall, GuardedResult, LoopGuard, mask};
use steadfast_core::id::{Digest, Namespace, ToolName, ToolRef, TurnId};
use steadfast_core::policy::{GuardPolicy, RepeatedSuccessPolicy};

use super::{MachineTrace, agree, few, millis, next_moment};
use crate::invariants::InvariantViolation;
use crate::rng::Rng;
use crate::transition::digest;

const PROMISE: &str = "loops end";
/// Time for which a turn that its host named is shown as stopped.
const SHOWN: Duration = Duration::from_secs(1800);

/// A call, with the turn that its host names.
#[derive(Clone, Debug, PartialEq)]
struct ReferenceGuardCall {
    tool: ToolRef,
    arguments: Digest,
    turn: Option<TurnId>,
}

impl ReferenceGuardCall {
    fn guarded(&self) -> GuardedCall<'_> {
        GuardedCall { tool: &self.tool, arguments: self.arguments, turn: self.turn.as_ref() }
    }

    /// Returns the subject of its failure. A tool that does not exist fails with any arguments.
    fn subject(&self, mistake: Option<ModelMistake>) -> FailureSubject {
        (self.tool.clone(), (mistake != Some(ModelMistake::UnknownTool)).then_some(self.arguments))
    }

    fn is_about(&self, (tool, arguments): &FailureSubject) -> bool {
        self.tool == *tool && arguments.is_none_or(|arguments| arguments == self.arguments)
    }
}

type FailureSubject = (ToolRef, Option<Digest>);

/// A refusal until a time. Each try makes the next hold twice as long.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ReferenceGuardHold {
    since: Timestamp,
    until: Timestamp,
    span: Duration,
}

impl ReferenceGuardHold {
    fn new(policy: &GuardPolicy, now: Timestamp) -> Self {
        let span = policy.hold.min(policy.longest_hold);
        Self { since: now, until: now + span, span }
    }

    fn start_trial(&mut self, policy: &GuardPolicy, now: Timestamp) {
        self.span = (self.span * 2).min(policy.longest_hold);
        self.until = now + self.span;
    }

    fn try_fails(&mut self, now: Timestamp) {
        self.until = now + self.span;
    }

    fn lasts(&self, now: Timestamp) -> bool {
        self.until > now
    }
}

/// A point in a conversation: its turn, and the number of successes before it.
#[derive(Clone, Debug, PartialEq)]
struct ConversationPoint {
    turn: TurnSource,
    successes: u64,
}

#[derive(Clone, Debug, PartialEq)]
enum TurnSource {
    Named(TurnId),
    Guessed(u64),
}

#[derive(Clone, Debug)]
struct FailingSubject {
    subject: FailureSubject,
    kinds: VecDeque<(String, u32)>,
    failures: u32,
    mistake: Option<ModelMistake>,
    last: ConversationPoint,
    tried: Option<ConversationPoint>,
    hold: Option<ReferenceGuardHold>,
}

impl FailingSubject {
    /// Returns true if something else has worked since or the turn is another one, and it has not been tried since
    /// that.
    fn is_excused(&self, moment: &ConversationPoint) -> bool {
        self.mistake.is_none() && *self.tried.as_ref().unwrap_or(&self.last) != *moment
    }
}

#[derive(Clone, Debug)]
struct RepeatedResult {
    subject: FailureSubject,
    result: Digest,
    count: u32,
    turn: TurnSource,
    hold: Option<ReferenceGuardHold>,
}

#[derive(Clone, Debug)]
struct HostNamedTurn {
    turn: TurnId,
    failures: u32,
    last: Timestamp,
    limited_at: Option<Timestamp>,
}

/// The failures of the current guessed turn.
#[derive(Clone, Debug, Default)]
struct GuessedTurn {
    failures: u32,
    loops: u32,
    row: u32,
    uncured: u32,
    warned: bool,
    limit: Option<(ReferenceGuardHold, bool)>,
    tools: Vec<ToolRef>,
}

#[derive(Clone, Debug, Default)]
struct ReferenceGuard {
    failing: Vec<FailingSubject>,
    row: Vec<FailureSubject>,
    repeated: Vec<RepeatedResult>,
    named_turns: Vec<HostNamedTurn>,
    guess: GuessedTurn,
    turn: u64,
    last: Option<Timestamp>,
    open: Vec<FailureSubject>,
    successes: u64,
    reset: Option<Timestamp>,
    traces: Vec<TurnId>,
}

impl ReferenceGuard {
    fn guess_is_over(&self, policy: &GuardPolicy, now: Timestamp) -> bool {
        let gap = policy.turn_gap.max(millis(1));
        self.open.is_empty() && self.last.is_some_and(|last| now >= last + gap)
    }

    fn moment(&self, policy: &GuardPolicy, call: &ReferenceGuardCall, now: Timestamp) -> ConversationPoint {
        let turn = match &call.turn {
            Some(turn) => TurnSource::Named(turn.clone()),
            None => TurnSource::Guessed(self.turn + u64::from(self.guess_is_over(policy, now))),
        };
        ConversationPoint { turn, successes: self.successes }
    }

    /// Records an event in a guessed turn.
    fn touch(&mut self, policy: &GuardPolicy, call: &ReferenceGuardCall, now: Timestamp) {
        if call.turn.is_some() {
            return;
        }
        if self.guess_is_over(policy, now) {
            self.turn += 1;
            self.guess = GuessedTurn::default();
        }
        self.last = Some(now);
    }

    /// Returns the reason for which a call is refused, and the number that is reported.
    fn refuses(
        &self,
        policy: &GuardPolicy,
        call: &ReferenceGuardCall,
        now: Timestamp,
    ) -> Option<(Code, GuardLayer, u32)> {
        let stopped = match &call.turn {
            Some(turn) => {
                let named = self.named_turns.iter().find(|named| named.turn == *turn);
                named.map(|named| named.failures).filter(|failures| *failures >= policy.per_turn.get())
            }
            None => {
                let holds = self.guess.limit.is_some_and(|(hold, _)| hold.lasts(now));
                let applies =
                    holds && self.guess.tools.contains(&call.tool) && !self.guess_is_over(policy, now);
                applies.then_some(self.guess.failures)
            }
        };
        if let Some(failures) = stopped {
            return Some((Code::ToolErrorLimit, GuardLayer::TurnLimit, failures));
        }
        let moment = self.moment(policy, call, now);
        let looping = self.failing.iter().find(|failing| {
            call.is_about(&failing.subject)
                && failing.hold.is_some_and(|hold| hold.lasts(now))
                && !failing.is_excused(&moment)
        });
        if let Some(failing) = looping {
            return Some((Code::LoopDetected, GuardLayer::Loop, failing.failures));
        }
        let repeated = self.repeated.iter().find(|repeated| {
            call.is_about(&repeated.subject)
                && repeated.turn == moment.turn
                && repeated.hold.is_some_and(|hold| hold.lasts(now))
        });
        repeated.map(|repeated| (Code::LoopDetected, GuardLayer::RepeatedSuccess, repeated.count))
    }

    /// Counts a refusal in its turn. Returns the number of failures if that ends the turn.
    fn refused(&mut self, policy: &GuardPolicy, call: &ReferenceGuardCall, now: Timestamp) -> Option<u32> {
        self.touch(policy, call, now);
        let limit = self.guess.limit;
        let reached =
            self.counts(policy, call, true, now).filter(|(_, ends)| *ends).map(|(failures, _)| failures);
        if call.turn.is_none() {
            self.guess.limit = limit.or(self.guess.limit);
        }
        reached
    }

    /// Counts a failure of a turn. Returns the number of failures if it is worth a remark, and whether the turn ends.
    fn counts(
        &mut self,
        policy: &GuardPolicy,
        call: &ReferenceGuardCall,
        is_loop: bool,
        now: Timestamp,
    ) -> Option<(u32, bool)> {
        let most = policy.per_turn.get();
        if let Some(turn) = &call.turn {
            let place = self.named_turns.iter().position(|named| named.turn == *turn);
            let mut named = match place {
                Some(place) => self.named_turns.remove(place),
                None => HostNamedTurn { turn: turn.clone(), failures: 0, last: now, limited_at: None },
            };
            (named.failures, named.last) = (named.failures + 1, now);
            let failures = named.failures;
            if failures >= most && named.limited_at.is_none() {
                named.limited_at = Some(now);
            }
            self.named_turns.push(named);
            return (failures >= most).then_some((failures, true));
        }
        let guess = &mut self.guess;
        if !guess.tools.contains(&call.tool) {
            guess.tools.push(call.tool.clone());
        }
        (guess.failures, guess.uncured) = (guess.failures + 1, guess.uncured + 1);
        if is_loop {
            guess.loops += 1;
        } else {
            guess.row += 1;
        }
        match &mut guess.limit {
            Some((hold, _)) => hold.try_fails(now),
            None if guess.loops + guess.row >= most => {
                guess.limit = Some((ReferenceGuardHold::new(policy, now), false))
            }
            None => {
                let warns = guess.uncured >= most && !guess.warned;
                guess.warned |= warns;
                return warns.then_some((guess.uncured, false));
            }
        }
        Some((guess.failures, true))
    }

    fn begin(&mut self, policy: &GuardPolicy, call: &ReferenceGuardCall, now: Timestamp) {
        self.touch(policy, call, now);
        if call.turn.is_none() {
            self.open.push(call.subject(None));
            let failed = self.guess.tools.contains(&call.tool);
            if let Some((hold, tried)) =
                self.guess.limit.as_mut().filter(|(hold, _)| failed && !hold.lasts(now))
            {
                hold.start_trial(policy, now);
                *tried = true;
            }
        }
        let moment = self.moment(policy, call, now);
        for failing in self.failing.iter_mut().filter(|failing| call.is_about(&failing.subject)) {
            let is_excused = failing.is_excused(&moment);
            match &mut failing.hold {
                None => {}
                Some(_) if is_excused => failing.tried = Some(moment.clone()),
                Some(hold) if !hold.lasts(now) => hold.start_trial(policy, now),
                Some(_) => {}
            }
        }
        for repeated in self.repeated.iter_mut().filter(|repeated| call.is_about(&repeated.subject)) {
            if let Some(hold) = repeated.hold.as_mut().filter(|hold| !hold.lasts(now)) {
                hold.start_trial(policy, now);
            }
        }
    }

    fn leaves(&mut self, policy: &GuardPolicy, call: &ReferenceGuardCall, now: Timestamp) {
        self.touch(policy, call, now);
        if call.turn.is_none()
            && let Some(place) = self.open.iter().position(|open| call.is_about(open))
        {
            self.open.remove(place);
        }
    }

    /// Returns the layers that add a remark, each with the number that it reports.
    fn failed(
        &mut self,
        policy: &GuardPolicy,
        call: &ReferenceGuardCall,
        message: &str,
        mistake: Option<ModelMistake>,
        now: Timestamp,
    ) -> Vec<(GuardLayer, u32)> {
        self.leaves(policy, call, now);
        let subject = call.subject(mistake);
        self.repeated.retain(|repeated| repeated.subject != subject);
        let longest = (policy.identical.get() as usize * 2).clamp(4, 32);
        self.row.push(subject.clone());
        self.row.drain(..self.row.len().saturating_sub(longest));
        let moment = self.moment(policy, call, now);
        let place = self.failing.iter().position(|failing| failing.subject == subject);
        let mut failing = place.map_or_else(
            || FailingSubject {
                subject: subject.clone(),
                kinds: VecDeque::new(),
                failures: 0,
                mistake: None,
                last: moment.clone(),
                tried: None,
                hold: None,
            },
            |place| self.failing.remove(place),
        );
        let worked = failing.last.successes != moment.successes;
        // A new turn clears everything that is not held: a turn that the host named, or a guessed one in which
        // something else worked.
        let two_named = matches!((&failing.last.turn, &moment.turn), (TurnSource::Named(one), TurnSource::Named(other)) if one != other);
        if failing.hold.is_none() && failing.last.turn != moment.turn && (two_named || worked) {
            failing.kinds.clear();
            failing.failures = 0;
        }
        failing.failures += 1;
        let kind = mask(message);
        let same = match failing.kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => {
                *count += 1;
                *count
            }
            None => {
                failing.kinds.push_back((kind, 1));
                if failing.kinds.len() > 4 {
                    failing.kinds.pop_front();
                }
                1
            }
        };
        (failing.mistake, failing.last, failing.tried) = (mistake, moment, None);
        let other = self.row.iter().rev().nth(1).filter(|other| **other != subject).cloned();
        let partner = other.filter(|other| {
            let alternates = |(place, failed): (usize, &FailureSubject)| {
                *failed == if place % 2 == 0 { subject.clone() } else { other.clone() }
            };
            self.row.len() == longest && self.row.iter().rev().enumerate().all(alternates)
        });
        match &mut failing.hold {
            Some(hold) => hold.try_fails(now),
            None if same >= policy.identical.get() || partner.is_some() => {
                failing.hold = Some(ReferenceGuardHold::new(policy, now))
            }
            None => {}
        }
        let (is_held, failures) = (failing.hold.is_some(), failing.failures);
        self.failing.push(failing);
        let mut speaks: Vec<(GuardLayer, u32)> =
            mistake.iter().map(|_| (GuardLayer::NonRetryable, 0)).collect();
        if let Some(partner) = partner {
            if let Some(failing) = self.failing.iter_mut().find(|failing| failing.subject == partner) {
                failing.hold = failing.hold.or(Some(ReferenceGuardHold::new(policy, now)));
            }
            speaks.push((GuardLayer::PingPong, 0));
        } else if is_held {
            speaks.push((GuardLayer::Loop, failures));
        }
        let is_loop = mistake.is_some() || is_held && !worked;
        speaks.extend(
            self.counts(policy, call, is_loop, now).map(|(failures, _)| (GuardLayer::TurnLimit, failures)),
        );
        speaks
    }

    fn succeeded(
        &mut self,
        policy: &GuardPolicy,
        call: &ReferenceGuardCall,
        result: Option<Digest>,
        now: Timestamp,
    ) -> Vec<(GuardLayer, u32)> {
        self.leaves(policy, call, now);
        self.successes += 1;
        self.row.clear();
        let cured: u32 = self
            .failing
            .iter()
            .filter(|failing| call.is_about(&failing.subject))
            .map(|failing| failing.failures)
            .sum();
        self.failing.retain(|failing| !call.is_about(&failing.subject));
        if call.turn.is_none() {
            self.guess.row = 0;
            self.guess.uncured = self.guess.uncured.saturating_sub(cured);
            if self.guess.limit.is_some_and(|(_, tried)| tried) && self.guess.tools.contains(&call.tool) {
                self.guess = GuessedTurn::default();
            }
        }
        let most = match policy.repeated_success {
            RepeatedSuccessPolicy::Ignore => return Vec::new(),
            RepeatedSuccessPolicy::Warn(most) | RepeatedSuccessPolicy::Refuse(most) => most.get(),
        };
        let turn = self.moment(policy, call, now).turn;
        let place = self.repeated.iter().position(|repeated| call.is_about(&repeated.subject));
        let known = place.map(|place| self.repeated.remove(place));
        let Some(result) = result else { return Vec::new() };
        let mut repeated = known
            .filter(|known| known.result == result && known.turn == turn)
            .unwrap_or(RepeatedResult { subject: call.subject(None), result, count: 0, turn, hold: None });
        repeated.count += 1;
        let count = repeated.count;
        if count >= most && matches!(policy.repeated_success, RepeatedSuccessPolicy::Refuse(_)) {
            match &mut repeated.hold {
                Some(hold) => hold.try_fails(now),
                None => repeated.hold = Some(ReferenceGuardHold::new(policy, now)),
            }
        }
        self.repeated.push(repeated);
        if count >= most { vec![(GuardLayer::RepeatedSuccess, count)] } else { Vec::new() }
    }

    fn forget(&mut self, at: Timestamp) {
        self.reset = Some(at);
        self.failing.clear();
        self.repeated.clear();
        self.row.clear();
        self.named_turns.clear();
        self.guess = GuessedTurn::default();
    }

    fn stopped(&self, policy: &GuardPolicy, now: Timestamp) -> Vec<GuardRefusalRow> {
        let holds = |hold: Option<ReferenceGuardHold>| hold.filter(|hold| hold.lasts(now));
        let failing = self.failing.iter().filter_map(|failing| {
            let hold = holds(failing.hold)?;
            Some((
                GuardLayer::Loop,
                Some(failing.subject.clone()),
                None,
                failing.mistake,
                failing.failures,
                hold.since,
                Some(hold.until),
            ))
        });
        let repeated = self.repeated.iter().filter_map(|repeated| {
            let hold = holds(repeated.hold)?;
            Some((
                GuardLayer::RepeatedSuccess,
                Some(repeated.subject.clone()),
                None,
                None,
                repeated.count,
                hold.since,
                Some(hold.until),
            ))
        });
        let named = self.named_turns.iter().filter(|named| now < named.last + SHOWN).filter_map(|named| {
            Some((
                GuardLayer::TurnLimit,
                None,
                Some(named.turn.clone()),
                None,
                named.failures,
                named.limited_at?,
                None,
            ))
        });
        let guessed = self
            .guess
            .limit
            .map(|(hold, _)| hold)
            .filter(|hold| hold.lasts(now) && !self.guess_is_over(policy, now));
        let guessed = guessed.map(|hold| {
            (GuardLayer::TurnLimit, None, None, None, self.guess.failures, hold.since, Some(hold.until))
        });
        let mut all: Vec<GuardRefusalRow> = failing.chain(repeated).chain(named).chain(guessed).collect();
        all.sort_by_key(|(.., since, _)| *since);
        all
    }

    fn moments(&self, policy: &GuardPolicy) -> Vec<Timestamp> {
        let holds = self
            .failing
            .iter()
            .map(|failing| failing.hold)
            .chain(self.repeated.iter().map(|repeated| repeated.hold));
        let holds = holds.chain([self.guess.limit.map(|(hold, _)| hold)]).flatten().map(|hold| hold.until);
        holds
            .chain(self.last.map(|last| last + policy.turn_gap))
            .chain(self.named_turns.iter().map(|named| named.last + SHOWN))
            .collect()
    }
}

type GuardRefusalRow = (
    GuardLayer,
    Option<FailureSubject>,
    Option<TurnId>,
    Option<ModelMistake>,
    u32,
    Timestamp,
    Option<Timestamp>,
);

pub(super) fn check(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    let policy = GuardPolicy {
        identical: few(rng, 1, 3),
        per_turn: few(rng, 1, 6),
        hold: millis(*rng.pick(&[0, 1_000, 60_000])),
        longest_hold: millis(*rng.pick(&[500, 3_000, 3_600_000])),
        turn_gap: millis(*rng.pick(&[0, 1, 2_000, 90_000])),
        repeated_success: match rng.between(0, 3) {
            0 => RepeatedSuccessPolicy::Warn(few(rng, 1, 3)),
            1 => RepeatedSuccessPolicy::Refuse(few(rng, 1, 3)),
            _ => RepeatedSuccessPolicy::Ignore,
        },
    };
    let names_turns = rng.between(0, 100);
    let (mut guard, mut reference) = (LoopGuard::default(), ReferenceGuard::default());
    let mut under_way: Vec<ReferenceGuardCall> = Vec::new();
    let mut now = Timestamp::from_millis(1_000_000);
    for _ in 0..70 {
        now = next_moment(rng, now, &reference.moments(&policy));
        let call = ReferenceGuardCall {
            tool: ToolRef {
                namespace: Namespace::new("bank").expect("a name"),
                tool: ToolName::new(*rng.pick(&["pay", "pay", "look"])).expect("a name"),
            },
            arguments: digest(rng.between(0, 1)),
            turn: rng
                .chance(names_turns)
                .then(|| TurnId::new(format!("turn {}", rng.between(0, 1))).expect("a name")),
        };
        let at = now.as_millis();
        match rng.between(0, 19) {
            0..8 => {
                let due = reference.refuses(&policy, &call, now);
                let got = guard.would_refuse(&policy, call.guarded(), now);
                machine_trace.log(|| format!("{at}: {call:?} would be refused: {got:?}"));
                check_refusal(
                    got.as_ref().map(|refusal| (refusal.code, refusal.layer, refusal.text.as_str())),
                    due,
                )?;
                if due.is_some() {
                    let ends = reference.refused(&policy, &call, now);
                    let refusal = guard.check(&policy, call.guarded(), now).err();
                    check_refusal(
                        refusal.as_ref().map(|refusal| (refusal.code, refusal.layer, refusal.text.as_str())),
                        due,
                    )?;
                    let text = refusal.map(|refusal| refusal.text).unwrap_or_default();
                    let is_limit = due.is_some_and(|(_, layer, _)| layer == GuardLayer::TurnLimit);
                    agree(
                        PROMISE,
                        "whether the turn ends",
                        &text.contains("[TOOL ERROR LIMIT]"),
                        &(is_limit || ends.is_some()),
                    )?;
                } else {
                    reference.begin(&policy, &call, now);
                    guard.begin(&policy, call.guarded(), now);
                    under_way.push(call);
                }
            }
            8..17 if !under_way.is_empty() => {
                let place = rng.between(0, under_way.len() as u64 - 1);
                let call = under_way.swap_remove(usize::try_from(place).unwrap_or(0));
                let (got, due) = if rng.chance(30) {
                    let result = rng.chance(80).then(|| digest(10 + rng.between(0, 1)));
                    let due = reference.succeeded(&policy, &call, result, now);
                    (guard.end(&policy, call.guarded(), GuardedResult::Success { result }, now), due)
                } else {
                    let message = *rng.pick(&[
                        "no such account",
                        "no such account",
                        "request 12 failed",
                        "request 13 failed",
                        "status 404",
                        "status 500",
                        "it is closed",
                        "try later",
                    ]);
                    let mistake = *rng.pick(&[
                        None,
                        None,
                        None,
                        Some(ModelMistake::Arguments),
                        Some(ModelMistake::UnknownTool),
                    ]);
                    let due = reference.failed(&policy, &call, message, mistake, now);
                    (
                        guard.end(&policy, call.guarded(), GuardedResult::Failure { message, mistake }, now),
                        due,
                    )
                };
                machine_trace.log(|| format!("{at}: {call:?} ends: {got:?}"));
                remarks(&got, &due)?;
            }
            17 if !under_way.is_empty() => {
                let call = under_way.swap_remove(0);
                machine_trace.log(|| format!("{at}: {call:?} is abandoned"));
                reference.leaves(&policy, &call, now);
                guard.abandon(&policy, call.guarded(), now);
            }
            18 if rng.chance(20) => {
                let at = reference.reset.map_or(now, |before| now.max(before + millis(1)));
                reference.forget(at);
                guard.reset(now);
            }
            18 if rng.chance(30) => {
                let mut elsewhere = LoopGuard::default();
                let then = now.before(millis(rng.between(0, 2_000)));
                elsewhere.reset(then);
                if reference.reset.is_none_or(|known| known < then) {
                    reference.forget(then);
                }
                guard.adopt(&elsewhere.snapshot()).expect("of this version");
            }
            19 if rng.chance(30) => {
                machine_trace.log(|| format!("{at}: the process starts again"));
                guard = LoopGuard::restore(guard.snapshot()).expect("of this version");
                (reference.open, reference.traces) = (Vec::new(), Vec::new());
                under_way.clear();
            }
            19 => {
                let trace = TurnId::new(format!("trace {}", rng.between(0, 3))).expect("a name");
                let due = reference.traces.contains(&trace);
                agree(PROMISE, "whether a trace is a turn", &guard.is_turn(&trace), &due)?;
                reference.traces.push(trace);
            }
            _ => {}
        }
        let shown = guard.stopped(&policy, now).into_iter().map(|stopped| {
            let subject = stopped.tool.map(|tool| (tool, stopped.arguments));
            (
                stopped.layer,
                subject,
                stopped.turn,
                stopped.mistake,
                stopped.count,
                stopped.since,
                stopped.until,
            )
        });
        agree(PROMISE, "what is stopped", &shown.collect(), &reference.stopped(&policy, now))?;
    }
    Ok(())
}

/// Checks that a refusal reports its code and count.
fn check_refusal(
    got: Option<(Code, GuardLayer, &str)>,
    due: Option<(Code, GuardLayer, u32)>,
) -> Result<(), InvariantViolation> {
    agree(
        PROMISE,
        "a refusal",
        &got.map(|(code, layer, _)| (code, layer)),
        &due.map(|(code, layer, _)| (code, layer)),
    )?;
    match (got, due) {
        (Some((_, layer, text)), Some((_, _, number))) if !mentions_count(layer, number, text) => {
            Err((PROMISE, format!("{layer:?} should report {number}: {text}")))
        }
        _ => Ok(()),
    }
}

fn remarks(got: &[GuardRemark], due: &[(GuardLayer, u32)]) -> Result<(), InvariantViolation> {
    let layers: Vec<GuardLayer> = got.iter().map(|remark| remark.layer).collect();
    agree(PROMISE, "what is added", &layers, &due.iter().map(|(layer, _)| *layer).collect())?;
    let wrong =
        got.iter().zip(due).find(|(remark, (layer, number))| !mentions_count(*layer, *number, &remark.text));
    wrong.map_or(Ok(()), |(remark, (_, number))| {
        Err((PROMISE, format!("the remark should contain {number}: {}", remark.text)))
    })
}

fn mentions_count(layer: GuardLayer, number: u32, text: &str) -> bool {
    let times = if number == 1 { "once".to_owned() } else { format!("{number} times") };
    match layer {
        GuardLayer::NonRetryable | GuardLayer::PingPong => true,
        GuardLayer::Loop => text.contains(&format!("failed {times}")),
        GuardLayer::TurnLimit => text.contains(&format!("{number} tool calls have failed")),
        GuardLayer::RepeatedSuccess => text.contains(&format!("{number} times")),
    }
}
