//! The invariants, in words and in code. A simulation finds only violations of stated invariants.
//!
//! | | |
//! | --- | --- |
//! | one run per key | no explicit key and no call id has two effects, unless the tool is safe to repeat; an explicit key also where the store has lost its records, noticed that, and no operator has accepted it |
//! | told before run again | equal arguments run again only after the answer of the first run reached a client, or ten minutes after it ended undelivered; where its outcome is unknown, only after a client received the final response and then verified or waited. So the first run has taken effect by then, if it has one |
//! | nothing after the end | a run has no effect once its record counts as settled, or once a response said that it is over |
//! | recorded before told | an unknown outcome is in the store before any caller receives it, unless the store is down |
//! | patience is enough | a run is over by the time that was announced to its callers, unless something else fails meanwhile |
//! | once for the obedient | a goal of a client that follows the responses has at most one effect |
//! | done for the obedient | at rest, a goal of such a client is done, unless an operator refused it |
//! | one effect for a double dispatch | two equal calls have one effect if the second arrived before the answer to the first |
//! | two meant as two | a call is not answered with the answer to an equal earlier one that its own connection has already brought |
//! | claims what happened | an answer never claims more than the history shows: a result is that of an effect, an unknown outcome reports what came of an attempt of its run, the number of attempts is that of those made, and what is reported as recorded was in the store |
//! | a mark belongs to one answer | what is marked as delivered is the very answer that was delivered, and nothing that replaced it |
//! | recorded stays | an answer that was given out as recorded under a key is the answer to all later calls with it, and no save changes an answer |
//! | waiters are answered | a call that waited for a completed run does not run |
//! | right arguments | no call gets the answer to other arguments |
//! | late answers count | at rest, no record is open whose owner got an answer and lives |
//! | one probe | a half-open breaker has one probe in flight, over all processes that share it |
//! | own epoch | an answer changes a breaker only if its attempt began in the same epoch |
//! | forced by an operator | a breaker that an operator forced open stays open until an operator or its time ends that, whatever processes conclude that do not know of it |
//! | no refusal again | a replayed answer is never a refusal by Steadfast |
//! | grants once | a grant for one call is spent at most once and only for an attempt that started: it is released if none did, and if the tool only asked for input |
//! | each conversation is asked for | calls of two conversations never share a request for approval |
//! | guard counts calls | a loop is reported only after two failures were reported, each to a caller that waited |
//! | not started, not unknown | an outcome is unknown only if an attempt was sent, or a process died about to send it |
//! | as the tables say | every operation of the store finds, gets and changes what its table says, and leaves the index of others unchanged |
//! | no more attempts than allowed | a call makes no more attempts than its policy and its caller allow |
//! | what is blocked does not run | no attempt starts while an operator blocks the tool, unless an operator allowed it |
//! | limits hold, slots are released | no more attempts run at once than allowed, none is refused that the limits allow, and an idle process has all its slots |
//! | a caller's limit judges nobody | an attempt that its caller did not wait for changes no breaker |
//! | runs under its claim | an attempt starts only while its claim holds in the store and says that it may have been sent |
//! | nothing runs without its claim | a call continues without the store only where its settings say so |
//! | calls end in time | no attempt lasts longer than its call, and no call waits for another one for longer than its caller allows |
//! | breakers do as they say | every change of a breaker is the one that all outcomes so far lead to, and every outcome that should change it does |
//! | retries keep to their policy | a call that may be retried is, after the wait and within the limits and the retry budget, and no other call is |
//! | loops end | a call that has just failed as often as a model may repeat it does not run, and asking again does not make that last longer |
//! | a healthy tool is free | a tool that never failed is not refused because another one did, in a guessed turn |
//! | trust has reasons | every change of trust, and every request for approval, follows from what the tool did |
//! | nobody runs what is not trusted | a call that came after trust was lost runs only with a grant |
//! | an end | when the faults have stopped, every call ends, every caller is answered, and no process that lives has left a claim behind |
//! | bounded | nothing is left behind but records, and no more of them than there were goals |
//! | turns end | a turn ends by its deadline and a short grace, as long as its process lives |
//! | one true state | when a turn ends, each of its calls is in one state, and that state is true |
//! | no dependant without | no call of a turn runs before its dependencies have succeeded, unless it has a default for them |
//! | done once in a turn | over all submissions of a turn, at most one candidate of a call has an effect, and a call that is recorded as done is not started again |
//! | one submission at a time | a turn that a live process runs is run by no other one |
//! | parallelism | no more calls of a turn run at once than its plan says |
//! | nothing after the deadline | from the deadline of a turn on no attempt of its calls starts |
//! | not unattended | a call of a turn begins only while a client waits for the turn, also after a crash |
//! | own key | a call of a turn gets no key conflict, unless it is made with other arguments than before |
//! | calls take their path | every step of a call, and everything it reports to the machines that calls share, follows its path |
//! | turns take their path | every step of a turn follows from its plan and the ends of its calls |
//! | approvals as documented | a grant allows the calls it was given for, as often and as long as it was given for |
//! | servers are restarted as documented | a server that died is restarted after its wait, and no longer once it died too often |
//! | faults mean what they say | a structured fault means what the design says |
//!
//! Not promised, and excused here: an answer that crosses another message of its client counts as delivered, and may be
//! lost all the same. Effects that come later than the settings allow are not simulated; `settling` has the laws.
//!
//! A store that loses everything excuses a second run, and another recorded answer, only in the cases that the module
//! for store losses lists.

use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::code::Code;
use steadfast_core::dedupe::{Claim, DedupeRecord, DedupeState, RecordAddress};

use crate::model::{CallIdentity, Effect, GoalStatus, GroundTruth, UniqueEffect};
use crate::store_loss::RecordLookup;
use crate::system::SimulatedWorld;
use crate::transition::COMMAND_LIFETIME;
use crate::turns;

/// A violated invariant: its name and a description.
pub(crate) type InvariantViolation = (&'static str, String);

/// Checked whenever a tool that must not be repeated takes effect.
pub(crate) fn effect(
    model: &GroundTruth,
    new: &Effect,
    after_telling: Duration,
) -> Result<(), InvariantViolation> {
    if let Some(intent) = new.intent {
        let unprotected = match intent {
            UniqueEffect::Explicit(key) => model.unprotected_keys.contains(&key),
            UniqueEffect::CallId(..) => model.unprotected.contains(&new.equal),
            UniqueEffect::Turn(made) => {
                turns::done_once(model, made, new)?;
                model.unprotected_turns.contains(&(made.turn, made.call))
            }
        };
        let mut same = model.effects.iter().filter(|effect| effect.intent == Some(intent));
        let first = same.find(|other| !forgotten(model, other, new, RecordLookup::Key));
        if let Some(first) = first.filter(|_| !unprotected) {
            return Err((
                "one run per key",
                format!(
                    "{intent:?} had its effect at {} and again at {}",
                    first.at.as_millis(),
                    new.at.as_millis()
                ),
            ));
        }
    }
    if model.unprotected.contains(&new.equal) {
        return Ok(());
    }
    // Effects are compared in the order in which they happen.
    for other in model.effects.iter().filter(|other| other.equal == new.equal) {
        runs_again(model, other, new, after_telling)?;
    }
    Ok(())
}

/// Returns true if the later of two equal effects belongs to a run that was claimed in the knowledge of the earlier
/// one.
fn runs_again(
    model: &GroundTruth,
    earlier: &Effect,
    later: &Effect,
    after_telling: Duration,
) -> Result<(), InvariantViolation> {
    let explicit =
        |effect: &Effect| matches!(effect.intent, Some(UniqueEffect::Explicit(_) | UniqueEffect::Turn(_)));
    let Some(owner) = earlier.owner.as_ref().filter(|_| !explicit(earlier) && !explicit(later)) else {
        return Ok(());
    };
    if forgotten(model, earlier, later, RecordLookup::EqualArguments) {
        return Ok(());
    }
    let was_delivered = model.delivered_at.get(owner).is_some_and(|at| *at <= later.claimed);
    let waited = has_waited(model, earlier, later);
    let may_run_again = model.may_run_again(owner, after_telling, later.claimed);
    let reason = if later.claimed < earlier.at {
        "the first one came after the second had been claimed"
    } else if was_delivered || waited || may_run_again {
        return Ok(());
    } else {
        "no response in between, or no verification or wait since"
    };
    let (client, arguments) = later.equal;
    Err((
        "told before run again",
        format!(
            "client {client} asked for arguments {arguments}: effect {} was claimed at {} and came at {}, effect {} was claimed at {}; {reason}",
            earlier.number,
            clock(earlier.claimed),
            clock(earlier.at),
            later.number,
            clock(later.claimed)
        ),
    ))
}

/// Returns true if the answer of the earlier run had waited for its client for so long that it is no longer replayed.
fn has_waited(model: &GroundTruth, earlier: &Effect, later: &Effect) -> bool {
    let finished_at = earlier.owner.as_ref().and_then(|owner| model.finished_at.get(owner));
    finished_at.is_some_and(|at| later.claimed.since(*at).as_secs() >= 600)
}

/// Checks that a goal of an obedient client has one effect.
pub(crate) fn once_for_the_obedient(model: &GroundTruth, new: &Effect) -> Result<(), InvariantViolation> {
    if model.unprotected.contains(&new.equal) || model.crossed.contains(&new.equal) {
        return Ok(());
    }
    let of_the_same = |other: &&Effect| {
        other.goal == new.goal
            && !forgotten(model, other, new, RecordLookup::EqualArguments)
            && !has_waited(model, other, new)
    };
    match model.effects.iter().find(of_the_same) {
        Some(first) => Err((
            "once for the obedient",
            format!("wish {} had effect {} and has effect {} now", new.goal, first.number, new.number),
        )),
        None => Ok(()),
    }
}

impl SimulatedWorld {
    /// Checked when a call gets a run in place of an earlier one. Two equal calls are one call that was sent twice if
    /// the second arrived before the first had its answer. The age of a call does not include the time that its claim
    /// is in transit.
    pub(crate) fn check_double_dispatch(
        &self,
        node: usize,
        claim: &Claim,
        before: &[DedupeRecord],
    ) -> Option<InvariantViolation> {
        let home = &self.nodes[node];
        let running = home.calls.get(&claim.owner.call)?;
        let index = claim.address.index().filter(|_| claim.rules.double_dispatch && self.defect.is_none())?;
        let arrived = home.moment(running.call.arrived());
        let is_earlier = |record: &&DedupeRecord| {
            let two_ids = match claim.address {
                RecordAddress::CallId { id, .. } => record.call_id.is_some_and(|call_id| call_id != id),
                RecordAddress::Keyless { .. } | RecordAddress::Explicit(_) => false,
            };
            let is_over = matches!(record.state, DedupeState::Done(_)) && record.index == Some(index);
            let finished_at = self.model.finished_at.get(&record.owner);
            is_over
                && !two_ids
                && finished_at.is_some_and(|finished_at| {
                    arrived + COMMAND_LIFETIME < *finished_at && self.now.since(*finished_at).as_secs() < 600
                })
        };
        let record = before.iter().find(is_earlier)?;
        Some((
            "one effect for a double dispatch",
            format!(
                "{:?} runs, which came at {}, before {:?} was answered",
                claim.owner,
                clock(arrived),
                record.owner
            ),
        ))
    }

    /// Checked at rest.
    pub(crate) fn obedient_at_rest(&self) -> Result<(), InvariantViolation> {
        for (number, goal) in self.model.goals.iter().enumerate() {
            let is_done = match goal.fate {
                GoalStatus::Refused => true,
                GoalStatus::Done => {
                    self.model.matching_effects(goal) > goal.before.filter(|_| goal.is_indexed()).unwrap_or(0)
                }
                GoalStatus::Open => false,
            };
            if self.is_obedient(number) && !matches!(goal.kind, CallIdentity::Turn(_)) && !is_done {
                return Err((
                    "done for the obedient",
                    format!("wish {number} is {:?} after {} tries", goal.fate, goal.tries),
                ));
            }
        }
        Ok(())
    }
}

/// Returns true if the store lost everything between the two runs. A claim decides whether a run knows of another one.
/// So this compares which claim came first and what the store lost before the second, whichever effect comes first.
fn forgotten(model: &GroundTruth, one: &Effect, other: &Effect, by: RecordLookup) -> bool {
    let (earlier, later) = if one.claimed < other.claimed { (one, other) } else { (other, one) };
    model.lost_between(earlier, later, by)
}

/// Returns true for refusals by Steadfast. They are made for each call and never stored.
pub(crate) fn is_refusal(code: Code) -> bool {
    match code {
        Code::CircuitOpen
        | Code::Overloaded
        | Code::LoopDetected
        | Code::ToolErrorLimit
        | Code::ApprovalRequired
        | Code::ApprovalDenied
        | Code::ToolBlocked
        | Code::Cancelled
        | Code::StoreUnavailable
        | Code::InFlight
        | Code::DeadlineExceeded
        | Code::IdempotencyConflict => true,
        Code::InvalidEnvelope
        | Code::UnsupportedVersion
        | Code::InvalidArguments
        | Code::UnknownTool
        | Code::RetryExhausted
        | Code::Timeout
        | Code::StuckCall
        | Code::OutcomeUnknown
        | Code::DependencyFailed
        | Code::ResultNotKept
        | Code::ResultTooLarge
        | Code::UpstreamUnavailable
        | Code::ToolError => false,
    }
}

/// Checks that under an explicit key all calls get the same answer once it was given out as recorded.
pub(crate) fn recorded(
    model: &mut GroundTruth,
    key: u64,
    content: &str,
    now: Timestamp,
) -> Result<(), InvariantViolation> {
    if model.unprotected_keys.contains(&key) {
        return Ok(());
    }
    let runs = |first: &str| model.effect_of(first).zip(model.effect_of(content));
    let lost =
        |first: &str| runs(first).is_some_and(|(one, other)| forgotten(model, one, other, RecordLookup::Key));
    // Finished records are lost with the store.
    let is_there = |at: &Timestamp| !model.emptyings.iter().any(|emptying| emptying.at >= *at);
    let first = model.recorded.get(&key).filter(|(first, at)| first != content && is_there(at));
    if let Some((first, _)) = first.filter(|(first, _)| !lost(first)) {
        return Err((
            "recorded stays",
            format!("key {key} was answered with {first} and later with {content}"),
        ));
    }
    model.recorded.insert(key, (content.to_owned(), now));
    Ok(())
}

/// Formats the time `at` for a story.
pub(crate) fn clock(at: Timestamp) -> String {
    let millis = at.as_millis();
    format!("{:>4}.{:03}", millis / 1000, millis % 1000)
}
