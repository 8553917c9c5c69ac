//! Loops of malformed calls, and how they end.
//!
//! A model that gets an error often sends the very same call again, for minutes, until its context is
//! full. The guard of a session sees every call before it runs and every answer before it goes out, and
//! ends such loops in three steps: it marks errors that a repetition cannot cure (layer A), it tells the
//! model about identical failures and then refuses the call (layer B), and it stops a turn in which too
//! much fails (layer C). Layer D, the [`log`], says which model did it.
//!
//! Two failures are identical if tool, canonical arguments and the masked error text ([`mask`]) are. For a
//! tool that does not exist the arguments are left out: no arguments make it exist.
//!
//! ```text
//!            failure                    identical failure, n-th
//!   unknown ─────────▶ watched ───────────────────────────────────▶ held ──┐ one more failure:
//!      ▲                  │ turn changed: the count starts anew      │  ▲  │ held on
//!      │                  ▼                                          │  └──┘
//!      └────── success ───┴──────────────────────────────────────────┘
//! ```
//!
//! A held call is refused. It is tried again
//! - when another call succeeded since its last failure, or the turn is another one (not for mistakes of
//!   the model: what is refused for its shape stays wrong however much else works), once each time;
//! - when the hold is over, once, whatever kind of failure it was; the hold then doubles. So nothing is
//!   locked out for good, not even a validation failure: schemas change and servers are restarted.
//!
//! What is remembered is bounded: at most [`MOST_CALLS`] failing calls and [`MOST_TURNS`] turns, the oldest
//! forgotten first. Failures of a turn are a number of their own, so that a model that varies its arguments
//! neither grows the memory nor gets around the limit.

mod hint;
mod hold;
pub mod log;
mod mask;
mod snapshot;
mod stopped;
mod text;
mod turns;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use hint::{Problem, Wrong, check_arguments, hint};
pub use mask::mask;
pub use snapshot::{Snapshot, UnsupportedSnapshot};
pub use stopped::Stopped;

use crate::Timestamp;
use crate::classify::Mistake;
use crate::code::Code;
use crate::id::{Digest, ToolRef, TurnId};
use crate::output::Output;
use crate::policy::{GuardPolicy, RepeatedSuccess};
use hold::Hold;
use turns::{Certainty, Reached, TurnMark, Turns};

/// How many failing calls are remembered per session.
pub const MOST_CALLS: usize = 64;
/// How many turns that the host named are remembered per session, and how many traces that may be turns.
pub const MOST_TURNS: usize = 32;

/// A call as the guard sees it.
#[derive(Clone, Copy, Debug)]
pub struct GuardedCall<'a> {
    /// The tool.
    pub tool: &'a ToolRef,
    /// Its canonical arguments.
    pub arguments: Digest,
    /// The turn, if the host tells it; guessed otherwise.
    pub turn: Option<&'a TurnId>,
}

/// How a finished call ended, as the guard sees it.
#[derive(Clone, Copy, Debug)]
pub enum Ending<'a> {
    /// It worked.
    Success {
        /// The digest of its result, where repeated successes are watched.
        result: Option<Digest>,
    },
    /// It failed, after all retries.
    Failure {
        /// What was said.
        message: &'a str,
        /// Whether it was a mistake of the model.
        mistake: Option<Mistake>,
    },
}

/// A refusal that the model gets instead of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// `loop_detected` or `tool_error_limit`.
    pub code: Code,
    /// Which layer.
    pub layer: Layer,
    /// What the model is told.
    pub text: String,
}

/// The layers of the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// A: the error is marked as not worth a retry.
    NonRetryable,
    /// B: identical failures.
    Loop,
    /// C: too many failures in a turn. A remark of this layer without `[TOOL ERROR LIMIT]` only warns.
    TurnLimit,
    /// Two failing calls that alternate.
    PingPong,
    /// The same success again and again.
    RepeatedSuccess,
}

impl Layer {
    /// The label in logs and metrics.
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

/// What the guard adds to an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// Which layer.
    pub layer: Layer,
    /// What is put with the answer.
    pub text: Cow<'static, str>,
}

/// The digest of a result, where repeated successes are watched; it costs a pass over the whole of it.
pub fn result_digest(policy: &GuardPolicy, output: &Output) -> Option<Digest> {
    match policy.repeated_success {
        RepeatedSuccess::Ignore => None,
        RepeatedSuccess::Warn(_) | RepeatedSuccess::Refuse(_) => {
            Some(Digest::of(output.content.as_str().as_bytes()))
        }
    }
}

/// A word that is the same for errors that are the same to the guard, and says nothing of what was in them. It stays as it
/// is when it is [masked](mask).
pub fn error_word(message: &str) -> String {
    let ErrorMark(mark) = ErrorMark::of(message);
    // From g to v: none of the letters is a hex digit, so that it is not taken for a hash.
    let letters = mark.to_be_bytes().into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
    letters.map(|nibble| char::from(b'g' + nibble)).collect()
}

/// The guard of one session.
///
/// For each call, in this order: [`would_refuse`](Self::would_refuse) looks ahead; a call that is then
/// really refused goes through [`check`](Self::check) once and through nothing else; any other call goes
/// through [`begin`](Self::begin), and then through exactly one of [`end`](Self::end) and
/// [`abandon`](Self::abandon). An answer that is replayed without a begin goes through `end` alone.
#[derive(Clone, Debug, Default)]
pub struct LoopGuard {
    /// Calls that failed and have not succeeded since; the one that failed last is last.
    failing: VecDeque<Failing>,
    /// The last failures in a row, for finding two calls that alternate.
    row: VecDeque<Subject>,
    /// Successes that repeat, where they are watched; the newest is last.
    repeats: VecDeque<Repeat>,
    turns: Turns,
    /// Traces of which there was a call; the newest is last. Not kept across restarts: a trace is seldom older than that.
    traces: VecDeque<TurnId>,
    /// Successes so far; two readings that differ say that something worked in between.
    successes: u64,
    /// When a person last set the conversation free, by which other processes that serve it know that one did.
    reset: Option<Timestamp>,
}

/// What a failure is about: a call, or a tool that does not exist.
#[derive(Clone, Debug, Eq, Serialize, Deserialize)]
struct Subject {
    tool: ToolRef,
    /// Nothing for a tool that does not exist.
    arguments: Option<Digest>,
}

/// The arguments tell nearly all of them apart, so they are looked at first: every failure is compared with many.
impl PartialEq for Subject {
    fn eq(&self, other: &Self) -> bool {
        self.arguments == other.arguments && self.tool == other.tool
    }
}

impl Subject {
    fn of(call: GuardedCall<'_>, mistake: Option<Mistake>) -> Self {
        let arguments = match mistake {
            Some(Mistake::UnknownTool) => None,
            Some(Mistake::Arguments) | None => Some(call.arguments),
        };
        Self { tool: call.tool.clone(), arguments }
    }

    fn covers(&self, call: GuardedCall<'_>) -> bool {
        self.arguments.is_none_or(|arguments| arguments == call.arguments) && self.tool == *call.tool
    }
}

/// A call that failed and has not succeeded since.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Failing {
    subject: Subject,
    /// How often each error was seen; the last [`MOST_ERRORS`] kinds.
    errors: VecDeque<(ErrorMark, u32)>,
    /// All of them together.
    failures: u32,
    /// What the last failure was.
    mistake: Option<Mistake>,
    /// When it was.
    last: Moment,
    /// When a try was let through since, because something had changed.
    tried: Option<Moment>,
    /// Set once the model was told.
    hold: Option<Hold>,
}

/// Tells the errors of one call apart, by the FNV-1a hash of their masked text. Every refusal and every
/// failure is marked, so it must cost little; who makes two errors of one call collide gains nothing but that
/// they count as the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct ErrorMark(u64);

impl ErrorMark {
    fn of(message: &str) -> Self {
        let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        Self(mask(message).bytes().fold(0xcbf2_9ce4_8422_2325, hash))
    }
}

/// A point in the story of a session: two that differ lie apart by a success or by a change of turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Moment {
    turn: TurnMark,
    successes: u64,
}

impl Failing {
    /// Whether something has changed that may make the call work now, and no try was spent on it yet.
    fn is_excused(&self, now: &Moment) -> bool {
        self.mistake.is_none() && self.tried.as_ref().unwrap_or(&self.last) != now
    }

    /// Whether a failure of now starts the count anew. A gap alone does not do it: a model that waits
    /// between identical failures still loops.
    fn is_forgotten(&self, now: &Moment) -> bool {
        self.hold.is_none()
            && self.last.turn != now.turn
            && (self.last.turn.is_told_apart(&now.turn) || self.last.successes != now.successes)
    }

    /// Counts a failure and gives how often this very error was seen.
    fn count(&mut self, error: ErrorMark) -> u32 {
        self.failures = self.failures.saturating_add(1);
        if let Some((_, seen)) = self.errors.iter_mut().find(|(known, _)| *known == error) {
            *seen = seen.saturating_add(1);
            return *seen;
        }
        if self.errors.len() >= MOST_ERRORS {
            self.errors.pop_front();
        }
        self.errors.push_back((error, 1));
        1
    }
}

/// A call that gives the same result again and again.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Repeat {
    subject: Subject,
    result: Digest,
    count: u32,
    turn: TurnMark,
    hold: Option<Hold>,
}

impl LoopGuard {
    /// A call belongs to this trace and its host names no turn; whether the trace is its turn. It is once an earlier call of
    /// the session shared it: a client may give every call a trace of its own, and those are no turns. The first call of a
    /// trace is therefore not of the turn that it begins; what it did counts where the turn is guessed.
    pub fn is_turn(&mut self, trace: &TurnId) -> bool {
        let known = self.traces.iter().position(|known| known == trace);
        let trace = known.and_then(|at| self.traces.remove(at)).unwrap_or_else(|| trace.clone());
        push_bounded(&mut self.traces, trace, MOST_TURNS);
        known.is_some()
    }

    /// Whether the call would be refused now. Counts nothing.
    pub fn would_refuse(
        &self,
        policy: &GuardPolicy,
        call: GuardedCall<'_>,
        now: Timestamp,
    ) -> Option<Refusal> {
        if let Some(failures) = self.turns.limit(policy, call, now) {
            let text = text::turn_limit(call, failures);
            return Some(Refusal { code: Code::ToolErrorLimit, layer: Layer::TurnLimit, text });
        }
        if self.failing.is_empty() && self.repeats.is_empty() {
            return None;
        }
        let moment = self.moment(policy, call, now);
        let held = self.failing.iter().find(|failing| {
            failing.subject.covers(call)
                && failing.hold.is_some_and(|hold| hold.lasts(now))
                && !failing.is_excused(&moment)
        });
        if let Some(failing) = held {
            let text = text::refused_loop(call.tool, failing.failures, failing.mistake);
            return Some(Refusal { code: Code::LoopDetected, layer: Layer::Loop, text });
        }
        let repeat = self.repeats.iter().find(|repeat| {
            repeat.subject.covers(call)
                && repeat.turn == moment.turn
                && repeat.hold.is_some_and(|hold| hold.lasts(now))
        })?;
        let text = text::refused_repeat(call.tool, repeat.count);
        Some(Refusal { code: Code::LoopDetected, layer: Layer::RepeatedSuccess, text })
    }

    /// Whether the call may run. A refusal counts as a failure of the turn, so this is asked once per call,
    /// and neither `begin` nor `end` follows a refusal.
    pub fn check(
        &mut self,
        policy: &GuardPolicy,
        call: GuardedCall<'_>,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let Some(mut refusal) = self.would_refuse(policy, call, now) else { return Ok(()) };
        let reached = self.turns.refused(policy, call, now);
        match refusal.layer {
            Layer::TurnLimit => {}
            Layer::NonRetryable | Layer::Loop | Layer::PingPong | Layer::RepeatedSuccess => match reached {
                Reached::Limit { failures } => {
                    refusal.text.push('\n');
                    refusal.text.push_str(&text::turn_limit(call, failures));
                }
                Reached::Warning { .. } | Reached::Nothing => {}
            },
        }
        Err(refusal)
    }

    /// A call that was let through has begun. A try that it owes to a change or to the end of a hold is
    /// spent here, so that a call which is only looked at spends none.
    pub fn begin(&mut self, policy: &GuardPolicy, call: GuardedCall<'_>, now: Timestamp) {
        self.turns.begin(policy, call, now);
        if self.failing.is_empty() && self.repeats.is_empty() {
            return;
        }
        let moment = self.moment(policy, call, now);
        for failing in self.failing.iter_mut().filter(|failing| failing.subject.covers(call)) {
            let excused = failing.is_excused(&moment);
            let Some(hold) = &mut failing.hold else { continue };
            if excused {
                failing.tried = Some(moment.clone());
            } else if !hold.lasts(now) {
                hold.spend(policy, now);
            }
        }
        for repeat in self.repeats.iter_mut().filter(|repeat| repeat.subject.covers(call)) {
            if let Some(hold) = repeat.hold.as_mut().filter(|hold| !hold.lasts(now)) {
                hold.spend(policy, now);
            }
        }
    }

    /// A call has ended and its answer goes out; what is added to the answer. Once per finished call,
    /// however many attempts it took, and also for a failure that is replayed.
    pub fn end(
        &mut self,
        policy: &GuardPolicy,
        call: GuardedCall<'_>,
        ending: Ending<'_>,
        now: Timestamp,
    ) -> Vec<Remark> {
        self.turns.end(policy, call, now);
        match ending {
            Ending::Success { result } => {
                self.succeeded(policy, call, result, now).map_or_else(Vec::new, |remark| vec![remark])
            }
            Ending::Failure { message, mistake } => self.failed(policy, call, message, mistake, now),
        }
    }

    /// A call that had begun is gone without an answer, for instance because its caller withdrew it.
    pub fn abandon(&mut self, policy: &GuardPolicy, call: GuardedCall<'_>, now: Timestamp) {
        self.turns.end(policy, call, now);
    }

    /// Forgets all that failed or was repeated, because a person says so. What is in flight still counts when it ends.
    pub fn reset(&mut self, now: Timestamp) {
        // Always later than the one before, also where the clocks of two machines differ.
        let later = self.reset.map(|before| before + Duration::from_millis(1));
        self.forget(later.map_or(now, |later| later.max(now)));
    }

    /// Hears what another process that serves the same conversation has stored. A guard that is in use knows more than
    /// that, but for one thing: a person may have set the conversation free there.
    pub fn adopt(&mut self, stored: &Snapshot) -> Result<(), UnsupportedSnapshot> {
        if let Some(reset) =
            stored.last_reset()?.filter(|reset| self.reset.is_none_or(|known| known < *reset))
        {
            self.forget(reset);
        }
        Ok(())
    }

    /// Forgets what failed or was repeated of this tool: its server has taken it away, brought it back or changed it.
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
        mistake: Option<Mistake>,
        now: Timestamp,
    ) -> Vec<Remark> {
        let subject = Subject::of(call, mistake);
        self.repeats.retain(|repeat| repeat.subject != subject);
        self.put_in_row(policy, &subject);
        let moment = self.moment(policy, call, now);
        let mut failing = self.take_failing(&subject, &moment);
        let something_worked = failing.last.successes != moment.successes;
        if failing.is_forgotten(&moment) {
            failing.errors.clear();
            failing.failures = 0;
        }
        let same = failing.count(ErrorMark::of(message));
        failing.mistake = mistake;
        failing.last = moment;
        failing.tried = None;
        let partner = self.partner(policy, &subject);
        match &mut failing.hold {
            Some(hold) => hold.again(now),
            None if same >= policy.identical.get() || partner.is_some() => {
                failing.hold = Some(Hold::start(policy, now));
            }
            None => {}
        }
        let looped = failing.hold.is_some();
        let failures = failing.failures;
        self.keep_failing(failing);

        let mut remarks = Vec::new();
        if let Some(mistake) = mistake {
            let text = text::non_retryable(mistake).into();
            remarks.push(Remark { layer: Layer::NonRetryable, text });
        }
        if let Some(partner) = partner {
            self.hold_partner(policy, &partner, now);
            let text = text::ping_pong(call.tool, &partner.tool).into();
            remarks.push(Remark { layer: Layer::PingPong, text });
        } else if looped {
            let text = text::loop_detected(call.tool, failures, mistake).into();
            remarks.push(Remark { layer: Layer::Loop, text });
        }
        // A guessed turn may be hours long. A call that fails again while other things work, such as a
        // test run between edits, is told, but does not bring such a turn nearer to its end.
        let certainty = if mistake.is_some() || (looped && !something_worked) {
            Certainty::Loops
        } else {
            Certainty::MayBeBadLuck
        };
        let text = match self.turns.failed(policy, call, certainty, now) {
            Reached::Nothing => return remarks,
            Reached::Warning { failures } => text::many_failures(failures),
            Reached::Limit { failures } => text::turn_limit(call, failures),
        };
        remarks.push(Remark { layer: Layer::TurnLimit, text: text.into() });
        remarks
    }

    fn succeeded(
        &mut self,
        policy: &GuardPolicy,
        call: GuardedCall<'_>,
        result: Option<Digest>,
        now: Timestamp,
    ) -> Option<Remark> {
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
            RepeatedSuccess::Ignore => return None,
            RepeatedSuccess::Warn(most) | RepeatedSuccess::Refuse(most) => most.get(),
        };
        let turn = self.turns.mark(policy, call.turn, now);
        let position = self.repeats.iter().position(|repeat| repeat.subject.covers(call));
        let known = position.and_then(|position| self.repeats.remove(position));
        let result = result?;
        let mut repeat =
            known.filter(|known| known.result == result && known.turn == turn).unwrap_or_else(|| Repeat {
                subject: Subject::of(call, None),
                result,
                count: 0,
                turn,
                hold: None,
            });
        repeat.count = repeat.count.saturating_add(1);
        let count = repeat.count;
        if count >= most {
            match policy.repeated_success {
                RepeatedSuccess::Ignore | RepeatedSuccess::Warn(_) => repeat.hold = None,
                RepeatedSuccess::Refuse(_) => match &mut repeat.hold {
                    Some(hold) => hold.again(now),
                    None => repeat.hold = Some(Hold::start(policy, now)),
                },
            }
        }
        push_bounded(&mut self.repeats, repeat, MOST_CALLS);
        (count >= most).then(|| Remark {
            layer: Layer::RepeatedSuccess,
            text: text::repeated_success(call.tool, count).into(),
        })
    }

    fn moment(&self, policy: &GuardPolicy, call: GuardedCall<'_>, now: Timestamp) -> Moment {
        Moment { turn: self.turns.mark(policy, call.turn, now), successes: self.successes }
    }

    fn take_failing(&mut self, subject: &Subject, now: &Moment) -> Failing {
        let position = self.failing.iter().position(|failing| failing.subject == *subject);
        position.and_then(|position| self.failing.remove(position)).unwrap_or_else(|| Failing {
            subject: subject.clone(),
            errors: VecDeque::new(),
            failures: 0,
            mistake: None,
            last: now.clone(),
            tried: None,
            hold: None,
        })
    }

    fn keep_failing(&mut self, failing: Failing) {
        push_bounded(&mut self.failing, failing, MOST_CALLS);
    }

    fn put_in_row(&mut self, policy: &GuardPolicy, subject: &Subject) {
        self.row.push_back(subject.clone());
        while self.row.len() > row_length(policy) {
            self.row.pop_front();
        }
    }

    /// The call that alternates with this one, if the last failures were nothing but the two in turn, each
    /// as often as identical failures are allowed. Their errors need not be the same each time.
    fn partner(&self, policy: &GuardPolicy, subject: &Subject) -> Option<Subject> {
        if self.row.len() < row_length(policy) {
            return None;
        }
        let partner = self.row.iter().rev().nth(1).filter(|partner| *partner != subject)?;
        let alternate = self.row.iter().rev().zip([subject, partner].into_iter().cycle());
        alternate.into_iter().all(|(failed, expected)| failed == expected).then(|| partner.clone())
    }

    fn hold_partner(&mut self, policy: &GuardPolicy, partner: &Subject, now: Timestamp) {
        let known = self.failing.iter_mut().find(|failing| failing.subject == *partner);
        if let Some(failing) = known.filter(|failing| failing.hold.is_none()) {
            failing.hold = Some(Hold::start(policy, now));
        }
    }
}

/// How many failures in a row show that two calls alternate.
fn row_length(policy: &GuardPolicy) -> usize {
    let identical = usize::try_from(policy.identical.get()).unwrap_or(LONGEST_ROW);
    // One failure each is no alternation yet, however strict the policy is.
    identical.saturating_mul(2).clamp(4, LONGEST_ROW)
}

fn push_bounded<T>(list: &mut VecDeque<T>, item: T, most: usize) {
    if list.len() >= most {
        list.pop_front();
    }
    list.push_back(item);
}

/// How many kinds of errors are told apart per call; enough for a call that fails in turns of two or three.
const MOST_ERRORS: usize = 4;
/// The longest row of failures that is kept, for policies that allow very many identical ones.
const LONGEST_ROW: usize = 32;
