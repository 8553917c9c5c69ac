//! Outcomes that are not known: recorded before anybody is told, and told as final only when the attempt can take no effect
//! any more.
//!
//! ```text
//!   Attempting ── cut, lost or ambiguous ──▶ Marking ── recorded ──▶ Settling ── its end was seen ──▶ Marking
//!                                                                      │  ▲                              │
//!                                      the caller's time is up: answer *not yet*, and go on              │
//!                                                                      │                                 │
//!                    it still succeeds: Saving ◀───────────────────────┴──── settled: answer *final* ◀───┘
//! ```
//!
//! An error that comes back after we cut an attempt counts as the cut that it answers, and not as its end: servers answer a
//! cancel at once and go on working. A success is a result at any time.

use std::sync::Arc;
use std::time::Duration;

use super::step::Recorded;
use super::{
    Attempt, AttemptEnd, Call, CallResult, Caller, Cut, Kept, Notice, Outcome, Shared, State, Step,
    StoreSight, ToldUnknown, Upstream, say,
};
use crate::Timestamp;
use crate::classify::Severity;
use crate::dedupe::{End, Ending, Observed, Receipt, SaveVerdict, SettlesIn, UnknownEnding, Unsettled};
use crate::output::Output;
use crate::policy::{AfterUnknown, SettlingPolicy};

/// An outcome that is not known, and is being settled.
#[derive(Debug)]
pub(super) struct Settling {
    /// The attempt, as long as it may still answer.
    pub(super) attempt: Option<Attempt>,
    pub(super) observed: Observed,
    pub(super) words: Option<Arc<str>>,
    pub(super) output: Option<Output>,
    /// How it counts for trust and scores; nothing where it says nothing about the tool.
    pub(super) severity: Option<Severity>,
    /// What the caller is told beside that nobody knows.
    pub(super) why: Why,
    /// What is recorded of when it settles.
    pub(super) settles: SettlesIn,
    /// From when on the attempt can take no effect any more, by our own clock; nothing where its end will be seen.
    pub(super) by: Option<Timestamp>,
    /// Whether the tool is to be told that nobody wants its answer any more.
    pub(super) cancel: bool,
    pub(super) receipt: Option<Receipt>,
    /// The tool was told to stop: before this moment it may still say that it was never reached, and nobody is told
    /// otherwise.
    pub(super) told_from: Option<Timestamp>,
    /// Whether the store could not be told.
    pub(super) unsaved: bool,
    /// When it is told again.
    pub(super) save_at: Option<Timestamp>,
}

/// Why an attempt was given up.
#[derive(Clone, Debug)]
pub(super) enum Why {
    /// Our own clock cut it.
    Cut(Cut),
    /// What came back decided it, by this rule.
    Rule(std::borrow::Cow<'static, str>),
}

impl Call {
    /// The outcome of the attempt is not known. That is recorded first.
    pub(super) fn outcome_unknown(
        &mut self,
        shared: &mut Shared<'_>,
        settling: Settling,
        settles: SettlesIn,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        notices.push(Notice::OutcomeUnknown { of_earlier: None });
        self.settling_since.get_or_insert(now);
        self.mark(shared, settling, settles, now, notices)
    }

    /// Records what is known of the end of the attempt.
    fn mark(
        &mut self,
        shared: &mut Shared<'_>,
        mut settling: Settling,
        settles: SettlesIn,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        settling.settles = settles;
        settling.counts_from(now);
        let save = self.save_of(Ending::Unknown(settling.ending(settles)));
        match save.filter(|_| self.store != StoreSight::Down) {
            Some(save) => {
                self.state = State::Marking(Box::new(settling));
                Step::Save(save)
            }
            None => {
                settling.unsaved = self.record.is_some();
                settling.save_at = Some(now + SAVE_AGAIN);
                self.marked(shared, Box::new(settling), now, notices)
            }
        }
    }

    pub(super) fn mark_saved(
        &mut self,
        shared: &mut Shared<'_>,
        mut settling: Box<Settling>,
        verdict: SaveVerdict,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        match verdict {
            SaveVerdict::Saved(receipt) => {
                settling.unsaved = false;
                settling.receipt = Some(receipt);
                // The store counts from when it was told, which was before now.
                settling.counts_from(now);
            }
            SaveVerdict::FenceLost => {
                if self.store == StoreSight::Fine {
                    notices.push(Notice::FenceLost);
                }
                self.store = StoreSight::FenceLost;
                // There is nothing left to save it in.
                settling.unsaved = false;
                settling.receipt = None;
            }
        }
        self.marked(shared, settling, now, notices)
    }

    pub(super) fn mark_failed(
        &mut self,
        shared: &mut Shared<'_>,
        mut settling: Box<Settling>,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        notices.push(Notice::StoreFailed { goes_on: true });
        settling.unsaved = true;
        settling.save_at = Some(now + SAVE_AGAIN);
        self.marked(shared, settling, now, notices)
    }

    /// It is recorded, or could not be: now the tool may be told to stop, and the caller what is known.
    pub(super) fn marked(
        &mut self,
        shared: &mut Shared<'_>,
        mut settling: Box<Settling>,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        if self.end_was_missed(&settling, now) {
            let linger = SettlesIn::After(self.policy.settling.linger);
            return self.mark(shared, *settling, linger, now, notices);
        }
        if settling.attempt.is_some() && settling.unsaved && settling.save_at.is_some_and(|at| at <= now) {
            let settles = settling.left(now);
            return self.mark(shared, *settling, settles, now, notices);
        }
        // What can take no effect any more is in nobody's way.
        if settling.is_settled(now)
            && let Some(attempt) = &mut settling.attempt
        {
            attempt.leave_places(shared);
        }
        if std::mem::take(&mut settling.cancel) && settling.attempt.is_some() {
            settling.told_from = Some(now + LAST_WORDS);
            self.state = State::Settling(settling);
            return Step::CancelUpstream;
        }
        if self.is_to_be_told(&settling, now) {
            return self.tell(shared, settling, now, notices);
        }
        if self.is_done_with(&settling, now) {
            return self.close(shared, settling, now, notices);
        }
        self.state = State::Settling(settling);
        Step::Wait
    }

    /// Whether the caller gets its answer now: it is final, or the time of the caller is up.
    fn is_to_be_told(&self, settling: &Settling, now: Timestamp) -> bool {
        self.caller == Caller::Waiting
            && settling.speaks_until().is_none_or(|until| until <= now)
            && (settling.is_settled(now) || !self.can_wait(settling.end(now), now))
    }

    /// Whether the caller has the time to wait for the end.
    pub(super) fn can_wait(&self, end: End, now: Timestamp) -> bool {
        let until = self.waits_until();
        match end {
            End::Settled => true,
            End::NotYet(Some(left)) => now + left <= until,
            End::NotYet(None) => now < until,
        }
    }

    /// Until when the caller is kept waiting for the end of an attempt. What comes later may miss it.
    pub(super) fn waits_until(&self) -> Timestamp {
        let late = self.policy.dedupe.late_after;
        let limits = [self.patience(), self.request.limits.elapsed];
        let patience = limits.into_iter().flatten().fold(late, Duration::min);
        (self.arrived + patience).min(self.latest_start().unwrap_or(Timestamp::MAX))
    }

    /// Whether nothing more can be learnt about the attempt.
    fn is_done_with(&self, settling: &Settling, now: Timestamp) -> bool {
        self.caller != Caller::Waiting && settling.attempt.is_none() && settling.by.is_some()
            || self.observed_until(settling).is_some_and(|until| until <= now)
    }

    /// How long the attempt is listened to, at most.
    fn observed_until(&self, settling: &Settling) -> Option<Timestamp> {
        match self.request.end {
            AttemptEnd::Seen if settling.by.is_none() => {
                self.settling_since.map(|since| since + self.policy.settling.to_end_child())
            }
            AttemptEnd::Seen | AttemptEnd::Unseen => {
                let total = settling.attempt.as_ref()?.watchdog?.total_at();
                Some(settling.speaks_until().map_or(total, |until| until.max(total)))
            }
        }
    }

    pub(super) fn settling_wakes_at(&self, settling: &Settling) -> Option<Timestamp> {
        let waiting = self.caller == Caller::Waiting;
        let told = |at: Timestamp| settling.speaks_until().map_or(at, |until| until.max(at));
        let until = waiting.then(|| told(self.waits_until()));
        let by = settling.by.filter(|_| waiting).map(told);
        let leaves = settling.by.filter(|_| settling.attempt.as_ref().is_some_and(Attempt::has_places));
        let save_at = settling.save_at.filter(|_| settling.unsaved && settling.attempt.is_some());
        [until, by, leaves, save_at, self.observed_until(settling)].into_iter().flatten().min()
    }

    /// Whether the attempt was to be ended by now, and nobody has seen its end.
    fn end_was_missed(&self, settling: &Settling, now: Timestamp) -> bool {
        settling.by.is_none() && self.observed_until(settling).is_some_and(|until| until <= now)
    }

    /// Nothing is left of the attempt: whatever it had not done by now it will not do.
    pub(super) fn end_was_seen(
        &mut self,
        shared: &mut Shared<'_>,
        mut settling: Box<Settling>,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        if settling.by.is_some() {
            return self.marked(shared, settling, now, notices);
        }
        self.drop_attempt(shared, &mut settling, now, notices);
        let after = self.policy.settling.after_child();
        let settles = if after.is_zero() { SettlesIn::Settled } else { SettlesIn::After(after) };
        self.mark(shared, *settling, settles, now, notices)
    }

    /// The attempt has answered after all.
    pub(super) fn ran_late(
        &mut self,
        shared: &mut Shared<'_>,
        mut settling: Box<Settling>,
        outcome: Outcome,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        if let Some(heard) = self.unsent(&outcome, now)
            && let Some(attempt) = settling.attempt.take()
        {
            return self.never_sent(shared, attempt, heard, now, notices);
        }
        match (settling.attempt.take(), outcome) {
            // Who asks a question, or was never reached, has done nothing.
            (
                Some(attempt),
                outcome @ (Outcome::Success { .. } | Outcome::InputRequired { .. } | Outcome::NotRun { .. }),
            ) => self.ran(shared, attempt, outcome, now, notices),
            // Nobody says so much to a cancel.
            (Some(attempt), outcome) if outcome.is_too_large() => {
                self.ran(shared, attempt, outcome, now, notices)
            }
            (attempt, _) => {
                settling.attempt = attempt;
                self.drop_attempt(shared, &mut settling, now, notices);
                self.marked(shared, settling, now, notices)
            }
        }
    }

    /// Nobody listens to the attempt any more.
    fn drop_attempt(
        &mut self,
        shared: &mut Shared<'_>,
        settling: &mut Settling,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) {
        let Some(mut attempt) = settling.attempt.take() else { return };
        attempt.leave_places(shared);
        self.cut_ended(&attempt, now, notices);
    }

    /// The caller withdraws the call, or is gone. What was begun is settled all the same.
    pub(super) fn left_settling(
        &mut self,
        shared: &mut Shared<'_>,
        mut settling: Box<Settling>,
        cancelled: Option<CallResult>,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        match (self.caller, cancelled) {
            // Nothing more can be learnt about it.
            (Caller::Waiting, Some(result)) if settling.attempt.is_none() && settling.by.is_some() => {
                self.abandon(shared, now, notices);
                let kept = self.unsaved(&mut settling, now);
                self.finish(result, kept, now, notices)
            }
            (Caller::Waiting, Some(result)) => {
                self.answer_early(State::Settling(settling), result, Upstream::LeaveAlone, notices)
            }
            (_, _) => {
                if self.caller == Caller::Waiting {
                    self.caller = Caller::Gone;
                }
                self.marked(shared, settling, now, notices)
            }
        }
    }

    /// Whoever drives the call ends: what is not settled by now will be settled by others.
    pub(super) fn driver_ends(
        &mut self,
        shared: &mut Shared<'_>,
        settling: Box<Settling>,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        self.close(shared, settling, now, notices)
    }

    /// Answers the caller with what is known now, and goes on where there is more to learn.
    fn tell(
        &mut self,
        shared: &mut Shared<'_>,
        mut settling: Box<Settling>,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        let result = self.unknown_result(shared, &settling, now, notices);
        if settling.attempt.is_none() && settling.by.is_some() {
            return self.finish(result, self.unsaved(&mut settling, now), now, notices);
        }
        let step = self.answer_early(State::Settling(settling), result, Upstream::LeaveAlone, notices);
        // It was cut by us: what it still says is no answer to a caller who gave up.
        self.caller = Caller::Gone;
        step
    }

    /// The end of a call whose caller was answered, or never will be.
    fn close(
        &mut self,
        shared: &mut Shared<'_>,
        mut settling: Box<Settling>,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        self.drop_attempt(shared, &mut settling, now, notices);
        let result = self.unknown_result(shared, &settling, now, notices);
        let kept = self.unsaved(&mut settling, now);
        self.finish(result, kept, now, notices)
    }

    /// What has to be recorded still.
    fn unsaved(&self, settling: &mut Settling, now: Timestamp) -> Vec<Kept> {
        if !std::mem::take(&mut settling.unsaved) {
            return Vec::new();
        }
        let settles = match settling.left(now) {
            // Nobody will be there to say so. By then its child was ended, by us or by its leash, and what it handed on is over.
            SettlesIn::WhenOwnerSays => {
                let settling = &self.policy.settling;
                let ended = settling.to_end_child() + settling.after_child();
                SettlesIn::After(ended.max(settling.linger))
            }
            settles @ (SettlesIn::After(_) | SettlesIn::Settled) => settles,
        };
        self.save_of(Ending::Unknown(settling.ending(settles))).map(Kept::Save).into_iter().collect()
    }

    /// What the caller is told, judged once.
    fn unknown_result(
        &mut self,
        shared: &mut Shared<'_>,
        settling: &Settling,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> CallResult {
        let end = settling.end(now);
        let unknown = say::Unknown {
            end,
            observed: settling.observed,
            words: settling.words.clone(),
            output: settling.output.clone(),
            runs_in: self.runs_again_in(),
        };
        let failure = say::outcome_unknown(&self.request.reads, &self.policy, unknown);
        let failure = match &settling.why {
            Why::Cut(cut) => say::cut_unknown(failure, &self.policy, *cut),
            Why::Rule(rule) => failure.with_rule(rule.clone()),
        };
        let recorded = match (&self.record, &settling.receipt) {
            (None, _) => Recorded::NotAsked,
            (Some(_), Some(_)) => Recorded::Yes,
            (Some(_), None) => Recorded::No,
        };
        let receipt = settling.receipt.clone().filter(|_| end == End::Settled);
        let unknown = Some(ToldUnknown { observed: settling.observed, ended: end == End::Settled });
        let result = CallResult { recorded, receipt, unknown, ..self.failed(failure, now) };
        match settling.severity {
            Some(severity) => self.judge_run(shared, result, Some(severity), None, now, notices),
            None => self.judge(shared, result, now, notices),
        }
    }

    /// When the same call is run again after a final answer, if nobody looks before; nothing where it never is by itself.
    fn runs_again_in(&self) -> Option<Duration> {
        let hold =
            self.request.hints.safety_critical || self.policy.dedupe.after_unknown == AfterUnknown::Hold;
        let keyless = self.request.address().is_some_and(|address| address.index().is_some());
        (keyless && !hold).then_some(self.policy.dedupe.after_telling)
    }

    /// What is told of an unknown outcome that was found.
    pub(super) fn found_unknown(
        &mut self,
        shared: &mut Shared<'_>,
        unsettled: Unsettled,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        if unsettled.end != End::Settled && self.can_wait(unsettled.end, now) {
            let record = unsettled.receipt.key;
            let left = match unsettled.end {
                End::NotYet(Some(left)) => left.min(LOOK_AGAIN),
                End::NotYet(None) | End::Settled => LOOK_AGAIN,
            };
            let look_at = (now + left).min(self.waits_until());
            self.state = State::AwaitingEnd { record, look_at };
            return Step::AwaitEnd(record);
        }
        notices.push(Notice::OutcomeUnknown { of_earlier: Some(unsettled.receipt.owner.clone()) });
        let result = CallResult::unknown(unsettled, &self.request.reads, &self.policy);
        let result = self.with_what_was(result, now);
        self.conclude(shared, result, now, notices)
    }
}

/// How long a tool that was told to stop has to say that it was never reached, before its caller is told that nobody knows.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// How often the store is told again of an unknown outcome that it could not take.
const SAVE_AGAIN: Duration = Duration::from_secs(1);

/// Nobody tells us of an end that another process sees: it is looked for this often.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

impl Settling {
    /// The time until it is settled begins now.
    fn counts_from(&mut self, now: Timestamp) {
        self.by = match self.settles {
            SettlesIn::WhenOwnerSays => None,
            SettlesIn::After(span) => Some(now + span),
            SettlesIn::Settled => Some(now),
        };
    }

    /// Until when an attempt that was told to stop may say that it was never sent.
    fn speaks_until(&self) -> Option<Timestamp> {
        self.told_from.filter(|_| self.attempt.is_some())
    }

    /// What is left of that time.
    fn left(&self, now: Timestamp) -> SettlesIn {
        match self.by {
            None => SettlesIn::WhenOwnerSays,
            Some(by) if by <= now => SettlesIn::Settled,
            Some(by) => SettlesIn::After(by.since(now)),
        }
    }

    fn ending(&self, settles: SettlesIn) -> UnknownEnding {
        let (words, output) = (self.words.clone(), self.output.clone());
        UnknownEnding { settles, observed: self.observed, words, output }
    }

    fn is_settled(&self, now: Timestamp) -> bool {
        self.by.is_some_and(|by| by <= now)
    }

    fn end(&self, now: Timestamp) -> End {
        match self.by {
            Some(by) if by <= now => End::Settled,
            Some(by) => End::NotYet(Some(by.since(now))),
            None => End::NotYet(None),
        }
    }
}

/// From when on an attempt that was lost or cut can take no effect any more.
pub(super) fn settles_after(end: AttemptEnd, observed: Observed, policy: &SettlingPolicy) -> SettlesIn {
    match (observed, end) {
        // It has answered; what it had handed on may still go on.
        (Observed::ErrorAnswer, _) => SettlesIn::After(policy.settle),
        (_, AttemptEnd::Seen) => SettlesIn::WhenOwnerSays,
        (_, AttemptEnd::Unseen) => SettlesIn::After(policy.linger),
    }
}
