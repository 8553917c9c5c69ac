//! The loop guard: detects loops of malformed calls and ends them.
//!
//! A model that gets an error often sends the very same call again, for minutes, until its context is full. The guard
//! of a session checks every call before it runs and every response before it is sent. It ends such loops in three
//! steps. It marks errors that a repetition cannot cure (layer A). It informs the model about identical failures and
//! then refuses the call (layer B). It stops a turn with too many failures (layer C). Layer D, the [`log`], records the
//! model.
//!
//! Two failures are identical if the tool, the canonical arguments and the masked error text ([`mask`]) are. For a tool
//! that does not exist the arguments are ignored, because no arguments make it exist.
//!
//! ```text
//!            failure                    identical failure, n-th
//!   unknown ─────────▶ watched ───────────────────────────────────▶ held ──┐ one more failure:
//!      ▲                  │ turn changed: the count restarts         │  ▲  │ still held
//!      │                  ▼                                          │  └──┘
//!      └────── success ───┴──────────────────────────────────────────┘
//! ```
//!
//! A held call is refused. A try is admitted
//! - when another call has succeeded since its last failure, or the turn has changed, once each time. This does not
//!   apply to invalid calls by the model: a malformed call stays wrong when other calls succeed;
//! - when the hold is over, once, for any kind of failure. The hold then doubles. So nothing is refused forever, not
//!   even after a validation failure: schemas change and servers are restarted.
//!
//! The memory is bounded: at most [`MOST_CALLS`] failing calls and [`MOST_TURNS`] turns, with the oldest evicted first.
//! Failures of a turn are counted separately, so that a model that varies its arguments neither grows the memory nor
//! avoids the limit.

mod hint;
mod hold;
pub mod log;
mod mask;
mod refusals;
mod snapshot;
mod text;
mod turns;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use hint::{ArgumentProblem, SchemaViolation, check_arguments, hint};
pub use mask::mask;
pub use refusals::ActiveRefusal;
pub use snapshot::{GuardSnapshot, UnsupportedGuardSnapshot};

use crate::Timestamp;
use crate::classify::ModelMistake;
use crate::code::Code;
use crate::id::{Digest, ToolRef, TurnId};
use crate::output::ToolOutput;
use crate::policy::{GuardPolicy, RepeatedSuccessPolicy};
use hold::RefusalHold;
use turns::{LoopEvidence, SessionTurns, TurnLimitStatus, TurnMark};

/// Maximum number of failing calls stored per session.
pub const MOST_CALLS: usize = 64;
/// Maximum number of turns named by the host that are stored per session, and of traces that may be turns.
pub const MOST_TURNS: usize = 32;

/// A call, reduced to the data that the guard needs.
#[derive(Clone, Copy, Debug)]
pub struct GuardedCall<'a> {
    /// The tool.
    pub tool: &'a ToolRef,
    /// Its canonical arguments.
    pub arguments: Digest,
    /// The turn, if the host names it. Otherwise the turn is guessed.
    pub turn: Option<&'a TurnId>,
}

/// The result of a finished call, reduced to the data that the guard needs.
#[derive(Clone, Copy, Debug)]
pub enum GuardedResult<'a> {
    /// The call succeeded.
    Success {
        /// The digest of its result, if repeated successes are watched.
        result: Option<Digest>,
    },
    /// The call failed, after all retries.
    Failure {
        /// The error message.
        message: &'a str,
        /// The mistake of the model, if it was one.
        mistake: Option<ModelMistake>,
    },
}

/// A refusal that the model gets instead of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardRefusal {
    /// `loop_detected` or `tool_error_limit`.
    pub code: Code,
    /// The layer that refused.
    pub layer: GuardLayer,
    /// The text for the model.
    pub text: String,
}

/// The layers of the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum GuardLayer {
    /// A: the error is marked as not retryable.
    NonRetryable,
    /// B: identical failures.
    Loop,
    /// C: too many failures in a turn. A remark of this layer without `[TOOL ERROR LIMIT]` only warns.
    TurnLimit,
    /// Two failing calls that alternate.
    PingPong,
    /// The same success repeatedly.
    RepeatedSuccess,
}

impl GuardLayer {
    /// Returns the label in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NonRetryable => "non_retryable",
            Self::Loop => "loop",
            Self::TurnLimit => "turn_limit",
            Self::PingPong => "ping_pong",
            Self::RepeatedSuccess => "repeated_success",
        }
    }
}

/// The finding of the guard about the model, for hosts that can end a turn. Ordered by its weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum GuardVerdict {
    /// There is no loop.
    #[default]
    None,
    /// The model repeats a call that brings nothing. Further equal calls are refused.
    LoopDetected,
    /// Too many calls of the turn have failed. The model should stop calling tools.
    ToolErrorLimit,
}

/// A text that the guard adds to a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardRemark {
    /// The layer.
    pub layer: GuardLayer,
    /// The text.
    pub text: Cow<'static, str>,
}

impl GuardRemark {
    /// Returns the finding that the remark states.
    pub fn verdict(&self) -> GuardVerdict {
        match self.layer {
            GuardLayer::TurnLimit if text::is_turn_limit(&self.text) => GuardVerdict::ToolErrorLimit,
            GuardLayer::NonRetryable | GuardLayer::TurnLimit => GuardVerdict::None,
            GuardLayer::Loop | GuardLayer::PingPong | GuardLayer::RepeatedSuccess => {
                GuardVerdict::LoopDetected
            }
        }
    }
}

impl GuardVerdict {
    /// Returns the finding that a refusal of the guard states. The refusal of a loop may also say that the limit of the
    /// turn is reached.
    pub fn of_refusal(code: Code, message: &str) -> Self {
        if code == Code::ToolErrorLimit || (code == Code::LoopDetected && text::is_turn_limit(message)) {
            Self::ToolErrorLimit
        } else if code == Code::LoopDetected {
            Self::LoopDetected
        } else {
            Self::None
        }
    }
}

/// Returns the digest of a result if repeated successes are watched. It costs a pass over the whole result.
pub fn result_digest(policy: &GuardPolicy, output: &ToolOutput) -> Option<Digest> {
    match policy.repeated_success {
        RepeatedSuccessPolicy::Ignore => None,
        RepeatedSuccessPolicy::Warn(_) | RepeatedSuccessPolicy::Refuse(_) => {
            Some(Digest::of(output.content.as_str().as_bytes()))
        }
    }
}

/// Returns a word that is equal for errors that the guard treats as equal. It reveals nothing of their text, and
/// masking ([`mask`]) does not change it.
pub fn error_digest(message: &str) -> String {
    let ErrorMark(mark) = ErrorMark::of(message);
    // The letters g to v are not hex digits, so the word is not masked as a hash.
    let letters = mark.to_be_bytes().into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
    letters.map(|nibble| char::from(b'g' + nibble)).collect()
}

/// The loop guard of one session.
///
/// For each call, in this order: [`would_refuse`](Self::would_refuse) checks in advance. A call that is then actually
/// refused goes through [`check`](Self::check) once and through nothing else. Any other call goes through
/// [`begin`](Self::begin), and then through exactly one of [`end`](Self::end) and [`abandon`](Self::abandon). A
/// replayed response without a begin goes through `end` alone.
#[derive(Clone, Debug, Default)]
pub struct LoopGuard {
    /// Calls that failed and have not succeeded since, ordered by their last failure.
    failing: VecDeque<FailingCall>,
    /// The last failures in a row, to find two calls that alternate.
    row: VecDeque<GuardSubject>,
    /// Repeated successes, if they are watched, the newest last.
    repeats: VecDeque<RepeatedCall>,
    turns: SessionTurns,
    /// Traces with a call, the newest last. Not stored across restarts, because a trace seldom lasts longer.
    traces: VecDeque<TurnId>,
    /// Number of successes so far. Two different values mean that a call succeeded in between.
    successes: u64,
    /// Time of the last reset of the session by an operator. Other processes that serve the session detect a reset by
    /// it.
    reset: Option<Timestamp>,
}

/// The subject of a failure: a call, or a tool that does not exist.
#[derive(Clone, Debug, Eq, Serialize, Deserialize)]
struct GuardSubject {
    tool: ToolRef,
    /// The digest of the arguments. None for a tool that does not exist.
    arguments: Option<Digest>,
}

/// Compares the arguments first, because they differ in most cases and every failure is compared with many.
impl PartialEq for GuardSubject {
    fn eq(&self, other: &Self) -> bool {
        self.arguments == other.arguments && self.tool == other.tool
    }
}

impl GuardSubject {
    fn of(call: GuardedCall<'_>, mistake: Option<ModelMistake>) -> Self {
        let arguments = match mistake {
            Some(ModelMistake::UnknownTool) => None,
            Some(ModelMistake::Arguments) | None => Some(call.arguments),
        };
        Self { tool: call.tool.clone(), arguments }
    }

    fn covers(&self, call: GuardedCall<'_>) -> bool {
        self.arguments.is_none_or(|arguments| arguments == call.arguments) && self.tool == *call.tool
    }
}

/// A call that failed and has not succeeded since.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct FailingCall {
    subject: GuardSubject,
    /// The count of each error, for the last [`MOST_ERRORS`] kinds.
    errors: VecDeque<(ErrorMark, u32)>,
    /// The count of all errors.
    failures: u32,
    /// The mistake of the last failure.
    mistake: Option<ModelMistake>,
    /// The time of the last failure.
    last: SessionMoment,
    /// The time of the last try that was admitted because of a change.
    tried: Option<SessionMoment>,
    /// The hold, once the model was informed.
    hold: Option<RefusalHold>,
}

/// The identity of an error among the errors of one call: the FNV-1a hash of its masked text. Every refusal and every
/// failure computes it, so it must be cheap. An attacker who makes two errors of one call collide only makes them count
/// as the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct ErrorMark(u64);

impl ErrorMark {
    fn of(message: &str) -> Self {
        let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        Self(mask(message).bytes().fold(0xcbf2_9ce4_8422_2325, hash))
    }
}

/// A position in a session: two different positions are separated by a success or by a change of turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SessionMoment {
    turn: TurnMark,
    successes: u64,
}

impl FailingCall {
    /// Returns true if a change may let the call succeed now, and no try was admitted for that change yet.
    fn may_retry(&self, now: &SessionMoment) -> bool {
        self.mistake.is_none() && self.tried.as_ref().unwrap_or(&self.last) != now
    }

    /// Returns true if a failure restarts the count. A gap alone does not: a model that waits between identical
    /// failures still loops.
    fn restarts_count(&self, now: &SessionMoment) -> bool {
        self.hold.is_none()
            && self.last.turn != now.turn
            && (self.last.turn.is_distinct(&now.turn) || self.last.successes != now.successes)
    }

    /// Counts a failure and returns the count of this error.
    fn count(&mut self, error: ErrorMark) -> u32 {
        self.failures = self.failures.saturating_add(1);
        if let Some((_, count)) = self.errors.iter_mut().find(|(known, _)| *known == error) {
            *count = count.saturating_add(1);
            return *count;
        }
        if self.errors.len() >= MOST_ERRORS {
            self.errors.pop_front();
        }
        self.errors.push_back((error, 1));
        1
    }
}

/// A call that repeatedly has the same result.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RepeatedCall {
    subject: GuardSubject,
    result: Digest,
    count: u32,
    turn: TurnMark,
    hold: Option<RefusalHold>,
}

impl LoopGuard {
    /// Records a call of this trace whose host names no turn. Returns true if the trace is its turn, i.e. if an earlier
    /// call of the session had the same trace. A client may give every call its own trace, and those are not turns. So
    /// the first call of a trace does not belong to the turn that it begins, and counts in the guessed turn.
    pub fn is_turn(&mut self, trace: &TurnId) -> bool {
        let known = self.traces.iter().position(|known| known == trace);
        let trace = known.and_then(|at| self.traces.remove(at)).unwrap_or_else(|| trace.clone());
        push_bounded(&mut self.traces, trace, MOST_TURNS);
        known.is_some()
    }

    /// Returns the refusal that the call would get now. Counts nothing.
    pub fn would_refuse(
        &self,
        policy: &GuardPolicy,
        call: GuardedCall<'_>,
        now: Timestamp,
    ) -> Option<GuardRefusal> {
        if let Some(failures) = self.turns.limit(policy, call, now) {
            let text = text::turn_limit(call, failures);
            return Some(GuardRefusal { code: Code::ToolErrorLimit, layer: GuardLayer::TurnLimit, text });
        }
        if self.failing.is_empty() && self.repeats.is_empty() {
            return None;
        }
        let moment = self.moment(policy, call, now);
        let on_hold = self.failing.iter().find(|failing| {
            failing.subject.covers(call)
                && failing.hold.is_some_and(|hold| hold.lasts(now))
                && !failing.may_retry(&moment)
        });
        if let Some(failing) = on_hold {
            let text = text::refused_loop(call.tool, failing.failures, failing.mistake);
            return Some(GuardRefusal { code: Code::LoopDetected, layer: GuardLayer::Loop, text });
        }
        let repeat = self.repeats.iter().find(|repeat| {
            repeat.subject.covers(call)
                && repeat.turn == moment.turn
                && repeat.hold.is_some_and(|hold| hold.lasts(now))
        })?;
        let text = text::refused_repeat(call.tool, repeat.count);
        Some(GuardRefusal { code: Code::LoopDetected, layer: GuardLayer::RepeatedSuccess, text })
    }

    /// Returns the refusal of a call, if it is refused. A refusal counts as a failure of the turn, so this is called
    /// once per call, and neither `begin` nor `end` follows a refusal.
    pub fn check(
        &mut self,
        policy: &GuardPolicy,
        call: GuardedCall<'_>,
        now: Timestamp,
    ) -> Result<(), GuardRefusal> {
        let Some(mut refusal) = self.would_refuse(policy, call, now) else { return Ok(()) };
        let reached = self.turns.refused(policy, call, now);
        match refusal.layer {
            GuardLayer::TurnLimit => {}
            GuardLayer::NonRetryable
            | GuardLayer::Loop
            | GuardLayer::PingPong
            | GuardLayer::RepeatedSuccess => match reached {
                TurnLimitStatus::Limit { failures } => {
                    refusal.text.push('\n');
                    refusal.text.push_str(&text::turn_limit(call, failures));
                }
                TurnLimitStatus::Warning { .. } | TurnLimitStatus::Nothing => {}
            },
        }
        Err(refusal)
    }

    /// Records the start of an admitted call. A try because of a change or an expired hold is used up here, so that a
    /// check without a run does not use it.
    pub fn begin(&mut self, policy: &GuardPolicy, call: GuardedCall<'_>, now: Timestamp) {
        self.turns.begin(policy, call, now);
        if self.failing.is_empty() && self.repeats.is_empty() {
            return;
        }
        let moment = self.moment(policy, call, now);
        for failing in self.failing.iter_mut().filter(|failing| failing.subject.covers(call)) {
            let excused = failing.may_retry(&moment);
            let Some(hold) = &mut failing.hold else { continue };
            if excused {
                failing.tried = Some(moment.clone());
            } else if !hold.lasts(now) {
                hold.admit_try(policy, now);
            }
        }
        for repeat in self.repeats.iter_mut().filter(|repeat| repeat.subject.covers(call)) {
            if let Some(hold) = repeat.hold.as_mut().filter(|hold| !hold.lasts(now)) {
                hold.admit_try(policy, now);
            }
        }
    }

    /// Records the end of a call and returns the remarks for its response. Called once per finished call, after all its
    /// attempts, and also for a replayed failure.
    pub fn end(
        &mut self,
        policy: &GuardPolicy,
        call: GuardedCall<'_>,
        ending: GuardedResult<'_>,
        now: Timestamp,
    ) -> Vec<GuardRemark> {
        self.turns.end(policy, call, now);
        match ending {
            GuardedResult::Success { result } => {
                self.succeeded(policy, call, result, now).map_or_else(Vec::new, |remark| vec![remark])
            }
            GuardedResult::Failure { message, mistake } => self.failed(policy, call, message, mistake, now),
        }
    }

    /// Records that a started call ended without a response, e.g. because its caller cancelled it.
    pub fn abandon(&mut self, policy: &GuardPolicy, call: GuardedCall<'_>, now: Timestamp) {
        self.turns.end(policy, call, now);
    }

    /// Clears all failures and repetitions, on behalf of an operator. Calls in flight still count when they end.
    pub fn reset(&mut self, now: Timestamp) {
        // Always later than the last one, even if the clocks of two machines differ.
        let later = self.reset.map(|before| before + Duration::from_millis(1));
        self.forget(later.map_or(now, |later| later.max(now)));
    }

    /// Merges the snapshot of another process that serves the same session. The guard in use has newer data, except
    /// that an operator may have reset the session in the other process.
    pub fn adopt(&mut self, stored: &GuardSnapshot) -> Result<(), UnsupportedGuardSnapshot> {
        if let Some(reset) =
            stored.last_reset()?.filter(|reset| self.reset.is_none_or(|known| known < *reset))
        {
            self.forget(reset);
        }
        Ok(())
    }

    /// Clears the failures and repetitions of this tool, because its server removed, restored or changed it.
    pub fn forget_tool(&mut self, tool: &ToolRef) {
        self.failing.retain(|failing| failing.subject.tool != *tool);
        self.repeats.retain(|repeat| repeat.subject.tool != *tool);
        self.row.retain(|subject| subject.tool != *tool);
    }

    fn forget(&mut self, reset: Timestamp) {
        self.reset = Some(reset);
        self.failing.clear();
        self.repeats.clear();
        self.row.clear();
        self.turns.forget();
    }

    fn failed(
        &mut self,
        policy: &GuardPolicy,
        call: GuardedCall<'_>,
        message: &str,
        mistake: Option<ModelMistake>,
        now: Timestamp,
    ) -> Vec<GuardRemark> {
        let subject = GuardSubject::of(call, mistake);
        self.repeats.retain(|repeat| repeat.subject != subject);
        self.put_in_row(policy, &subject);
        let moment = self.moment(policy, call, now);
        let mut failing = self.take_failing(&subject, &moment);
        let something_worked = failing.last.successes != moment.successes;
        if failing.restarts_count(&moment) {
            failing.errors.clear();
            failing.failures = 0;
        }
        let same = failing.count(ErrorMark::of(message));
        failing.mistake = mistake;
        failing.last = moment;
        failing.tried = None;
        let partner = self.partner(policy, &subject);
        match &mut failing.hold {
            Some(hold) => hold.restart(now),
            None if same >= policy.identical.get() || partner.is_some() => {
                failing.hold = Some(RefusalHold::start(policy, now));
            }
            None => {}
        }
        let looped = failing.hold.is_some();
        let failures = failing.failures;
        self.keep_failing(failing);

        let mut remarks = Vec::new();
        if let Some(mistake) = mistake {
            let text = text::non_retryable(mistake).into();
            remarks.push(GuardRemark { layer: GuardLayer::NonRetryable, text });
        }
        if let Some(partner) = partner {
            self.hold_partner(policy, &partner, now);
            let text = text::ping_pong(call.tool, &partner.tool).into();
            remarks.push(GuardRemark { layer: GuardLayer::PingPong, text });
        } else if looped {
            let text = text::loop_detected(call.tool, failures, mistake).into();
            remarks.push(GuardRemark { layer: GuardLayer::Loop, text });
        }
        // A guessed turn may be hours long. A call that fails again while other calls succeed, such as a test run
        // between edits, gets a remark but does not count towards the limit of such a turn.
        let certainty = if mistake.is_some() || (looped && !something_worked) {
            LoopEvidence::Loops
        } else {
            LoopEvidence::Inconclusive
        };
        let text = match self.turns.failed(policy, call, certainty, now) {
            TurnLimitStatus::Nothing => return remarks,
            TurnLimitStatus::Warning { failures } => text::many_failures(failures),
            TurnLimitStatus::Limit { failures } => text::turn_limit(call, failures),
        };
        remarks.push(GuardRemark { layer: GuardLayer::TurnLimit, text: text.into() });
        remarks
    }

    fn succeeded(
        &mut self,
        policy: &GuardPolicy,
        call: GuardedCall<'_>,
        result: Option<Digest>,
        now: Timestamp,
    ) -> Option<GuardRemark> {
        self.successes = self.successes.wrapping_add(1);
        self.row.clear();
        let mut cured: u32 = 0;
        self.failing.retain(|failing| {
            let covered = failing.subject.covers(call);
            cured = cured.saturating_add(if covered { failing.failures } else { 0 });
            !covered
        });
        self.turns.succeeded(call, cured);
        let most = match policy.repeated_success {
            RepeatedSuccessPolicy::Ignore => return None,
            RepeatedSuccessPolicy::Warn(most) | RepeatedSuccessPolicy::Refuse(most) => most.get(),
        };
        let turn = self.turns.mark(policy, call.turn, now);
        let position = self.repeats.iter().position(|repeat| repeat.subject.covers(call));
        let known = position.and_then(|position| self.repeats.remove(position));
        let result = result?;
        let mut repeat =
            known.filter(|known| known.result == result && known.turn == turn).unwrap_or_else(|| {
                RepeatedCall { subject: GuardSubject::of(call, None), result, count: 0, turn, hold: None }
            });
        repeat.count = repeat.count.saturating_add(1);
        let count = repeat.count;
        if count >= most {
            match policy.repeated_success {
                RepeatedSuccessPolicy::Ignore | RepeatedSuccessPolicy::Warn(_) => repeat.hold = None,
                RepeatedSuccessPolicy::Refuse(_) => match &mut repeat.hold {
                    Some(hold) => hold.restart(now),
                    None => repeat.hold = Some(RefusalHold::start(policy, now)),
                },
            }
        }
        push_bounded(&mut self.repeats, repeat, MOST_CALLS);
        (count >= most).then(|| GuardRemark {
            layer: GuardLayer::RepeatedSuccess,
            text: text::repeated_success(call.tool, count).into(),
        })
    }

    fn moment(&self, policy: &GuardPolicy, call: GuardedCall<'_>, now: Timestamp) -> SessionMoment {
        SessionMoment { turn: self.turns.mark(policy, call.turn, now), successes: self.successes }
    }

    fn take_failing(&mut self, subject: &GuardSubject, now: &SessionMoment) -> FailingCall {
        let position = self.failing.iter().position(|failing| failing.subject == *subject);
        position.and_then(|position| self.failing.remove(position)).unwrap_or_else(|| FailingCall {
            subject: subject.clone(),
            errors: VecDeque::new(),
            failures: 0,
            mistake: None,
            last: now.clone(),
            tried: None,
            hold: None,
        })
    }

    fn keep_failing(&mut self, failing: FailingCall) {
        push_bounded(&mut self.failing, failing, MOST_CALLS);
    }

    fn put_in_row(&mut self, policy: &GuardPolicy, subject: &GuardSubject) {
        self.row.push_back(subject.clone());
        while self.row.len() > row_length(policy) {
            self.row.pop_front();
        }
    }

    /// Returns the call that alternates with this one, if the last failures were only these two in turn, each as often
    /// as identical failures are allowed. Their errors may differ each time.
    fn partner(&self, policy: &GuardPolicy, subject: &GuardSubject) -> Option<GuardSubject> {
        if self.row.len() < row_length(policy) {
            return None;
        }
        let partner = self.row.iter().rev().nth(1).filter(|partner| *partner != subject)?;
        let alternate = self.row.iter().rev().zip([subject, partner].into_iter().cycle());
        alternate.into_iter().all(|(failed, expected)| failed == expected).then(|| partner.clone())
    }

    fn hold_partner(&mut self, policy: &GuardPolicy, partner: &GuardSubject, now: Timestamp) {
        let known = self.failing.iter_mut().find(|failing| failing.subject == *partner);
        if let Some(failing) = known.filter(|failing| failing.hold.is_none()) {
            failing.hold = Some(RefusalHold::start(policy, now));
        }
    }
}

/// Returns the number of failures in a row that show that two calls alternate.
fn row_length(policy: &GuardPolicy) -> usize {
    let identical = usize::try_from(policy.identical.get()).unwrap_or(LONGEST_ROW);
    // One failure each is no alternation yet, under any policy.
    identical.saturating_mul(2).clamp(4, LONGEST_ROW)
}

fn push_bounded<T>(list: &mut VecDeque<T>, item: T, most: usize) {
    if list.len() >= most {
        list.pop_front();
    }
    list.push_back(item);
}

/// Maximum number of error kinds per call, enough for a call that alternates between two or three.
const MOST_ERRORS: usize = 4;
/// Maximum length of a stored row of failures, for policies that allow very many identical ones.
const LONGEST_ROW: usize = 32;
