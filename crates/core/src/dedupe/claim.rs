//! Claim, look-up, and what a waiter does when it wakes: one table.
//!
//! | found | explicit key | own call id | equal arguments only | waiter |
//! | --- | --- | --- | --- | --- |
//! | nothing | mine | mine | mine | mine |
//! | own token, `inflight` | mine | mine | mine | mine |
//! | `inflight`, lease holds | follow (`in_flight` under `bestEffort`) | follow | follow | follow |
//! | `inflight`, lease ended, not `started` | mine | mine | mine | mine |
//! | `inflight`, lease ended, `started`, `retry_safe` | take over | take over | take over | take over |
//! | `inflight`, lease ended, `started`, not `retry_safe` | write `unknown`, tell | same | same | same |
//! | `done`, not delivered | replay | replay | replay (10 min, then mine) | answer |
//! | `done`, delivered | replay | replay | mine (calls that overlap: replay) | answer |
//! | `failed` | by `cache_failures` | mine | mine | answer |
//! | `unknown`, not settled | tell *not yet* | same | same | same |
//! | `unknown`, settled, no final answer delivered | tell *final* | same | same | same |
//! | `unknown`, settled, final answer delivered, then a verification read | tell *final* | same | mine (`hold`: tell) | tell *final* |
//! | `unknown`, settled, final answer delivered 10 s ago or more | tell *final* | same | mine (`hold`: tell) | tell *final* |
//!
//! *Settled* means that the attempt can take no effect any more. Nothing that was said or read before that counts: an answer
//! *not yet* is never marked as delivered, and a read that began before a final answer arrived is no verification of it.
//!
//! Finished answers that a computed key finds and that were recorded before [`Rules::computed_since`] count as nothing.
//!
//! An explicit key with another digest is a conflict in every row, for waiters too, and nothing is written.
//!
//! A call id with other arguments finds nothing: it is another call. One whose own record failed, or lapsed before
//! its start, stands back behind an equal run that is open or owes its answer, and takes the third column there.

use std::sync::Arc;
use std::time::Duration;

use super::record::{
    Failure, IndexMove, Lease, LeaseSight, Observed, Origin, Owner, Receipt, Record, RecordState, RunId,
    Settles, UnknownOutcome, Write, lifetime,
};
use crate::Timestamp;
use crate::envelope::CallContext;
use crate::id::{ActorId, Digest, RequestId, SessionKey, TenantId, ToolCallId, ToolRef};
use crate::key::Key;
use crate::output::Output;
use crate::policy::{AfterUnknown, CacheFailures, Lifetimes, Policy};

/// Where a call looks for its record, and where it would write one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// Under a key that means intent.
    Explicit(Key),
    /// Under the client's id of this dispatch; else through the index of equal arguments.
    CallId {
        /// The id.
        id: Key,
        /// The computed key.
        index: Key,
    },
    /// Through the index of equal arguments; written under the id of the run.
    Keyless {
        /// The id of the run.
        run: Key,
        /// The computed key.
        index: Key,
    },
}

impl Address {
    /// Where the record of this call is written.
    pub fn own(&self) -> Key {
        match *self {
            Self::Explicit(key) => key,
            Self::CallId { id, .. } => id,
            Self::Keyless { run, .. } => run,
        }
    }

    /// The index of equal arguments, where it counts.
    pub fn index(&self) -> Option<Key> {
        match *self {
            Self::Explicit(_) => None,
            Self::CallId { index, .. } | Self::Keyless { index, .. } => Some(index),
        }
    }

    /// The same address in the space of shadow mode.
    pub fn shadowed(&self) -> Self {
        match *self {
            Self::Explicit(key) => Self::Explicit(key.shadowed()),
            Self::CallId { id, index } => Self::CallId { id: id.shadowed(), index: index.shadowed() },
            Self::Keyless { run, index } => Self::Keyless { run: run.shadowed(), index: index.shadowed() },
        }
    }

    /// How the record of this call is found.
    pub fn origin(&self) -> Origin {
        match self {
            Self::Explicit(_) => Origin::Explicit,
            Self::CallId { .. } => Origin::CallId,
            Self::Keyless { .. } => Origin::Run,
        }
    }

    fn call_id(&self) -> Option<Key> {
        match *self {
            Self::CallId { id, .. } => Some(id),
            Self::Explicit(_) | Self::Keyless { .. } => None,
        }
    }
}

/// What a call wants of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// To run, if the table lets it. `started`: the attempt follows at once.
    Take {
        /// Written with the claim.
        started: bool,
    },
    /// To know whether there is an answer. Nothing is taken.
    Look,
}

/// Whether the call has waited for a record before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It comes for the first time.
    Fresh,
    /// It followed this record and was woken.
    Waiter {
        /// The record.
        followed: Key,
    },
}

/// The settings that the table depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Which failures an explicit key gets again.
    pub cache_failures: CacheFailures,
    /// What equal arguments get after an unknown outcome.
    pub after_unknown: AfterUnknown,
    /// Whether equal calls that overlap are one that was dispatched twice.
    pub double_dispatch: bool,
    /// How long an undelivered answer waits for equal arguments.
    pub undelivered: Duration,
    /// After a final answer was delivered, equal arguments run no sooner than this, unless somebody has looked.
    pub after_telling: Duration,
    /// How long an attempt may still take effect whose end nobody can see.
    pub linger: Duration,
    /// How long work may still take effect that a child of ours had handed on.
    pub settle: Duration,
    /// How long records are kept.
    pub keep: Lifetimes,
    /// Given where nobody gave the key, and duplicates were not recognised for a while: answers from before that
    /// moment are not given again. What was open then, and who waited for it, stays.
    pub computed_since: Option<Timestamp>,
}

impl From<&Policy> for Rules {
    fn from(policy: &Policy) -> Self {
        let Policy { dedupe, settling, .. } = policy;
        Self {
            cache_failures: dedupe.cache_failures,
            after_unknown: dedupe.after_unknown,
            double_dispatch: dedupe.double_dispatch,
            undelivered: dedupe.undelivered,
            after_telling: dedupe.after_telling,
            linger: settling.linger,
            settle: settling.after_child(),
            keep: dedupe.keep,
            computed_since: None,
        }
    }
}

/// How long the leash of a child takes to end its whole group when its owner is gone.
const LEASH: Duration = Duration::from_secs(5);

/// A call that looks for its record, and wants it if it may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Where.
    pub address: Address,
    /// What for.
    pub intent: Intent,
    /// As whom.
    pub role: Role,
    /// Under which token.
    pub owner: Owner,
    /// The canonical arguments.
    pub digest: Digest,
    /// Whether it may run again if nobody knows.
    pub retry_safe: bool,
    /// Whether the caller would rather be refused than wait, and have a retriable failure run again.
    pub best_effort: bool,
    /// When the call came, for people to see.
    pub arrived: Timestamp,
    /// How long ago that was. Clocks of two machines are never compared.
    pub age: Duration,
    /// Where its driver can see the end of an attempt: how long after this it will have seen it at the latest.
    pub seen_end_within: Option<Duration>,
    /// The id of its run, should it be the first.
    pub run: RunId,
    /// The settings.
    pub rules: Rules,
    /// The tool.
    pub tool: ToolRef,
    /// Who asked.
    pub request: RequestId,
    /// The model's id of the call.
    pub tool_call: Option<ToolCallId>,
    /// The caller's own words about it.
    pub context: Option<Arc<CallContext>>,
    /// The conversation.
    pub session: Option<SessionKey>,
    /// Who acts.
    pub actor: Option<ActorId>,
    /// Whose data it is.
    pub tenant: Option<TenantId>,
}

impl Claim {
    /// What somebody asks the store who waited for this record, lost its connection, and does not call again but wants to
    /// hear what came of it. Nothing where only a call can find out: the run may be made again.
    ///
    /// It takes nothing from anybody. Where the record has gone meanwhile the claim may be given all the same, and is to be
    /// given back.
    pub fn to_hear_of(record: &Record, owner: Owner, rules: Rules, now: Timestamp) -> Option<Self> {
        match record.state {
            RecordState::Inflight if record.may_be_taken_over() => return None,
            RecordState::Cancelled => return None,
            RecordState::Inflight
            | RecordState::Done(_)
            | RecordState::Failed(_)
            | RecordState::Unknown(_) => {}
        }
        let address = match (record.origin, record.index) {
            (Origin::Explicit, _) | (_, None) => Address::Explicit(record.key),
            (Origin::CallId, Some(index)) => Address::CallId { id: record.key, index },
            (Origin::Run, Some(index)) => Address::Keyless { run: record.key, index },
        };
        Some(Self {
            address,
            intent: Intent::Take { started: false },
            role: Role::Waiter { followed: record.key },
            owner,
            digest: record.digest,
            retry_safe: record.retry_safe,
            best_effort: false,
            arrived: now,
            age: Duration::ZERO,
            seen_end_within: None,
            run: record.run.clone(),
            rules,
            tool: record.tool.clone(),
            request: record.request.clone(),
            tool_call: record.tool_call.clone(),
            context: record.context.clone(),
            session: record.session.clone(),
            actor: record.actor.clone(),
            tenant: record.tenant.clone(),
        })
    }

    /// Whether the record of this key can be the one that the claim is decided by. Where an index points is not known before
    /// somebody has looked.
    pub fn may_find(&self, key: Key) -> bool {
        match (self.address, self.role) {
            (Address::Explicit(own), Role::Fresh) => own == key,
            (Address::Explicit(_), Role::Waiter { .. })
            | (Address::CallId { .. } | Address::Keyless { .. }, _) => true,
        }
    }

    fn is_same_call(&self, record: &Record) -> bool {
        record.digest == self.digest && record.tool == self.tool
    }
}

/// What the store found for a claim.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found<'r> {
    /// The record that a waiter followed.
    pub followed: Option<(&'r Record, LeaseSight)>,
    /// The record under [`Address::own`].
    pub own: Option<(&'r Record, LeaseSight)>,
    /// The record that the index points to.
    pub indexed: Option<(&'r Record, LeaseSight)>,
}

/// What a claim gets, and what is written with it.
pub type ClaimDecision = Decided<ClaimVerdict>;

/// A verdict and what has to be written in the same atomic operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided<V> {
    /// What the caller learns.
    pub verdict: V,
    /// What the store writes.
    pub write: Write,
}

impl<V> Decided<V> {
    pub(super) fn only(verdict: V) -> Self {
        Self { verdict, write: Write::Nothing }
    }
}

/// What a claim gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimVerdict {
    /// The call may run; this is its record.
    Mine(Arc<Record>),
    /// Somebody else is at it: wait for this record.
    Follow(Key),
    /// Somebody else is at it, and the caller does not want to wait.
    Busy,
    /// There is an answer.
    Replay(Box<Replay>),
    /// It may have run; nobody knows.
    Unknown(Box<Unsettled>),
    /// The key stands for another call.
    Conflict,
    /// A look-up found nothing that answers.
    Nothing,
    /// The store is full of open records.
    Full,
    /// The store has lost everything a moment ago, and the tool must not run twice: holders come first.
    Closed,
    /// The store has lost records, nobody has accepted that, and the run of this call may be among them.
    RecordsLost,
}

/// An unknown outcome that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsettled {
    /// Whether the attempt can take no effect any more.
    pub end: End,
    /// What was seen of it.
    pub observed: Observed,
    /// What was said about it.
    pub words: Option<Arc<str>>,
    /// What the tool itself said, word for word.
    pub output: Option<Output>,
    /// When the same call will be run again, if nobody looks before; nothing where it never will by itself.
    pub runs_in: Option<Duration>,
    /// The record, and for a final answer what to mark its arrival by.
    pub receipt: Receipt,
}

/// Whether an attempt can take no effect any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It cannot.
    Settled,
    /// It may, for so long at most; nothing where only its owner can say.
    NotYet(Option<Duration>),
}

/// What a process knows and the store may not have been told, or is never told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Answers that have reached their callers.
    pub delivered: Vec<(Receipt, Timestamp)>,
    /// Runs of this process whose answers were handed over after the call was received.
    pub overlapped: Vec<Owner>,
    /// Runs whose answers were handed over before the call came, and could only be saved later.
    pub answered_unsaved: Vec<Owner>,
    /// Runs whose outcome is unknown and that the caller has looked into since it was told so.
    pub verified: Vec<Owner>,
}

/// An answer that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// What it is.
    pub answer: Result<Option<Output>, Failure>,
    /// Why it is given again.
    pub reason: ReplayReason,
    /// How old it is.
    pub age: Duration,
    /// For marking its arrival.
    pub receipt: Receipt,
}

/// Why an answer is given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayReason {
    /// The same key, or the same dispatch.
    SameKey,
    /// Equal arguments, and the answer never arrived.
    Undelivered,
    /// Equal arguments, and the second call came before the first one was answered.
    DoubleDispatch,
    /// The call had waited for it.
    Waited,
}

/// Decides a claim. `known` is what the process of the caller knows beside what the store knows.
pub fn decide_claim(claim: &Claim, found: Found<'_>, known: &Known, now: Timestamp) -> ClaimDecision {
    let Some((record, sight, column)) = pick(claim, found, now) else {
        return mine(claim, None, found, now);
    };
    if !claim.is_same_call(record) {
        return Decided::only(ClaimVerdict::Conflict);
    }
    if record.owner == claim.owner && record.state == RecordState::Inflight {
        return mine(claim, Some(record), found, now);
    }
    let receipt = record.receipt();
    let known_here = known.delivered.iter().find(|(delivered, _)| *delivered == receipt).map(|(_, at)| *at);
    let delivered = record.delivered.or(known_here);
    match &record.state {
        RecordState::Inflight if record.lease_holds(sight, now) => match column {
            Column::Explicit if claim.best_effort => Decided::only(ClaimVerdict::Busy),
            Column::Explicit | Column::CallId | Column::Equal | Column::Waiter => {
                Decided::only(ClaimVerdict::Follow(record.key))
            }
        },
        RecordState::Done(output) => match done_is_replayed(claim, record, column, delivered, known, now) {
            Some(reason) => replay(record, Ok(output.clone()), reason, now),
            None => mine(claim, Some(record), found, now),
        },
        RecordState::Failed(failure) => match failure_is_replayed(claim, failure, column) {
            Some(reason) => replay(record, Err(failure.clone()), reason, now),
            None => mine(claim, Some(record), found, now),
        },
        RecordState::Inflight | RecordState::Unknown(_) => {
            let Some((unknown, is_new)) = unknown_outcome(record, sight, &claim.rules, now) else {
                // Its holder is gone, and it may run again.
                return mine(claim, Some(record), found, now);
            };
            let is_waited = delivered.is_some_and(|at| now.since(at) >= claim.rules.after_telling);
            let is_verified = delivered.is_some() && known.verified.contains(&record.owner);
            match column {
                _ if is_new => begins_to_settle(claim, record, unknown, now),
                Column::Equal
                    if unknown.is_settled(now)
                        && may_run_again(claim, record)
                        && (is_waited || is_verified) =>
                {
                    mine(claim, Some(record), found, now)
                }
                Column::Explicit | Column::CallId | Column::Equal | Column::Waiter => {
                    Decided::only(told(claim, record, &unknown, delivered, now))
                }
            }
        }
        RecordState::Cancelled => mine(claim, Some(record), found, now),
    }
}

/// The columns of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Explicit,
    CallId,
    Equal,
    Waiter,
}

/// The record that the table is about, and its column. A waiter looks at what it followed; if that is gone, or
/// its holder is, at what took its place, so that of all who waited for a claim one runs and the rest wait on.
fn pick<'r>(claim: &Claim, found: Found<'r>, now: Timestamp) -> Option<(&'r Record, LeaseSight, Column)> {
    type Seen<'r> = Option<(&'r Record, LeaseSight)>;
    let explicit = claim.address.origin() == Origin::Explicit;
    // A call id that comes again with other arguments is another call: it finds nothing of the first one.
    let fresh = |seen: Seen<'r>| {
        seen.filter(|(record, _)| !record.is_expired(now) && (explicit || claim.is_same_call(record)))
    };
    let counts = |(record, _): &(&Record, LeaseSight)| {
        record.is_open() || claim.rules.computed_since.is_none_or(|since| record.updated >= since)
    };
    let own = fresh(found.own).filter(|seen| !explicit || counts(seen));
    let (indexed, followed) = (fresh(found.indexed).filter(counts), fresh(found.followed));
    // What nobody holds and nobody has an answer of stands back behind an equal run that is open or owes its answer.
    let stands_back = |(record, sight): &(&Record, LeaseSight)| match record.state {
        RecordState::Inflight => {
            record.owner != claim.owner && !record.lease_holds(*sight, now) && record.may_be_taken_over()
        }
        RecordState::Failed(_) | RecordState::Cancelled => true,
        RecordState::Done(_) | RecordState::Unknown(_) => false,
    };
    let (seen, column) = match claim.role {
        Role::Fresh if explicit => (own, Column::Explicit),
        Role::Fresh => {
            let owing = indexed.filter(|(record, _)| owes(record, &claim.rules, now));
            match (own, owing) {
                (Some(own), Some(owing)) if stands_back(&own) && own.0.key != owing.0.key => {
                    (Some(owing), Column::Equal)
                }
                (Some(own), _) => (Some(own), Column::CallId),
                (None, _) => (indexed, Column::Equal),
            }
        }
        Role::Waiter { .. } => {
            let lapsed = |seen: &(&Record, LeaseSight)| {
                matches!(seen.0.state, RecordState::Inflight) && stands_back(seen)
            };
            let left = followed.filter(lapsed);
            let holds = followed.filter(|seen| !lapsed(seen));
            (holds.or(own.filter(|seen| !lapsed(seen))).or(indexed).or(own).or(left), Column::Waiter)
        }
    };
    seen.map(|(record, sight)| (record, sight, column))
}

fn done_is_replayed(
    claim: &Claim,
    record: &Record,
    column: Column,
    delivered: Option<Timestamp>,
    known: &Known,
    now: Timestamp,
) -> Option<ReplayReason> {
    match (column, delivered) {
        (Column::Explicit | Column::CallId, _) => Some(ReplayReason::SameKey),
        (Column::Waiter, _) => Some(ReplayReason::Waited),
        (Column::Equal, None) => {
            (now.since(record.updated) < claim.rules.undelivered).then_some(ReplayReason::Undelivered)
        }
        (Column::Equal, Some(_)) => {
            let differing_ids = match (record.call_id, claim.address.call_id()) {
                (Some(theirs), Some(ours)) => theirs != ours,
                (None, _) | (_, None) => false,
            };
            let overlap = claim.rules.double_dispatch && overlaps(claim, record, known, now);
            (overlap && !differing_ids).then_some(ReplayReason::DoubleDispatch)
        }
    }
}

/// Whether the call came before the answer in this record was given. An engine knows that of the answers that it has handed over
/// itself. Of all others, also those that another engine or process has handed over, the age of the call says whether it came
/// before the answer was saved, both by the time of the store.
fn overlaps(claim: &Claim, record: &Record, known: &Known, now: Timestamp) -> bool {
    let came_before_the_save = now.since(record.updated) < claim.age;
    known.overlapped.contains(&record.owner)
        // An answer that could not be saved at once was given before it was saved.
        || came_before_the_save && !known.answered_unsaved.contains(&record.owner)
}

fn failure_is_replayed(claim: &Claim, failure: &Failure, column: Column) -> Option<ReplayReason> {
    match column {
        Column::Waiter => Some(ReplayReason::Waited),
        Column::CallId | Column::Equal => None,
        Column::Explicit => {
            let kept = match claim.rules.cache_failures {
                CacheFailures::None => false,
                CacheFailures::Terminal => failure.terminal,
                CacheFailures::All => !(claim.best_effort && failure.retriable),
            };
            kept.then_some(ReplayReason::SameKey)
        }
    }
}

/// Whether a call with equal arguments may ever run again without somebody who resolves the outcome.
fn may_run_again(claim: &Claim, record: &Record) -> bool {
    // A record without an end was saved under hold, whatever this caller asks for.
    record.expires.is_some()
        && match claim.rules.after_unknown {
            AfterUnknown::Hold => false,
            AfterUnknown::TellOnce => true,
        }
}

/// What a caller is told of an unknown outcome.
fn told(
    claim: &Claim,
    record: &Record,
    unknown: &UnknownOutcome,
    delivered: Option<Timestamp>,
    now: Timestamp,
) -> ClaimVerdict {
    let end = match unknown.settles {
        _ if unknown.is_settled(now) => End::Settled,
        Settles::By(at) => End::NotYet(Some(at.since(now))),
        Settles::WhenOwnerSays | Settles::Settled => End::NotYet(None),
    };
    let by_itself = claim.address.index().is_some() && record.index.is_some() && may_run_again(claim, record);
    let waited = delivered.map_or(Duration::ZERO, |at| now.since(at));
    ClaimVerdict::Unknown(Box::new(Unsettled {
        end,
        observed: unknown.observed,
        words: unknown.words.clone(),
        output: unknown.output.clone(),
        runs_in: by_itself.then(|| claim.rules.after_telling.saturating_sub(waited)),
        receipt: record.receipt(),
    }))
}

/// Whether equal calls still have to find this record: it is open, or nobody has received its answer.
fn owes(record: &Record, rules: &Rules, now: Timestamp) -> bool {
    match record.state {
        RecordState::Inflight | RecordState::Unknown(_) => true,
        RecordState::Done(_) => record.delivered.is_none() && now.since(record.updated) < rules.undelivered,
        RecordState::Failed(_) | RecordState::Cancelled => false,
    }
}

/// What is known of a run whose outcome is not, and whether the record does not say so yet. Nothing where the outcome is known,
/// the run goes on, or may be made again. The owner stays, so that its late answer still counts.
pub(super) fn unknown_outcome(
    record: &Record,
    sight: LeaseSight,
    rules: &Rules,
    now: Timestamp,
) -> Option<(UnknownOutcome, bool)> {
    let is_held = record.lease_holds(sight, now);
    match &record.state {
        RecordState::Inflight if is_held || record.may_be_taken_over() => None,
        RecordState::Inflight => {
            let settles = unseen_end(record, sight, rules, now);
            let observed = match sight {
                LeaseSight::Gone => Observed::ProcessDied,
                // It was not heard of for one lease, and may live all the same.
                LeaseSight::Alive | LeaseSight::Time => Observed::NoAnswer,
            };
            Some((UnknownOutcome { settles, ..UnknownOutcome::settled(observed) }, true))
        }
        RecordState::Unknown(unknown) if unknown.settles == Settles::WhenOwnerSays && !is_held => {
            let settles = unseen_end(record, sight, rules, now);
            Some((UnknownOutcome { settles, ..unknown.clone() }, true))
        }
        RecordState::Unknown(unknown) => Some((unknown.clone(), false)),
        RecordState::Done(_) | RecordState::Failed(_) | RecordState::Cancelled => None,
    }
}

/// When an attempt is over whose owner does not say so any more.
fn unseen_end(record: &Record, sight: LeaseSight, rules: &Rules, now: Timestamp) -> Settles {
    let Rules { linger, settle, .. } = *rules;
    Settles::By(match (record.seen_end_by, sight) {
        (None, _) => now + linger,
        // What is left of it is ended by its leash.
        (Some(_), LeaseSight::Gone) => now + LEASH + settle,
        // Its owner may live, and has seen the end by then.
        (Some(by), LeaseSight::Alive | LeaseSight::Time) => by.max(now) + settle,
    })
}

/// The record says from now on that its outcome is unknown, and when it settles. Who only looks writes that too: the time has to
/// begin, and the owner has to learn that nobody waits for it any more.
fn begins_to_settle(
    claim: &Claim,
    record: &Record,
    unknown: UnknownOutcome,
    now: Timestamp,
) -> ClaimDecision {
    let written = record.now_unknown(unknown.clone(), &claim.rules, now);
    Decided {
        verdict: told(claim, &written, &unknown, None, now),
        write: Write::Put { record: Arc::new(written), index: IndexMove::Keep, remove: Vec::new() },
    }
}

fn replay(
    record: &Record,
    answer: Result<Option<Output>, Failure>,
    reason: ReplayReason,
    now: Timestamp,
) -> ClaimDecision {
    let age = now.since(record.updated);
    let replay = Replay { answer, reason, age, receipt: record.receipt() };
    Decided::only(ClaimVerdict::Replay(Box::new(replay)))
}

/// The call may run: its record is written, the index moves to it, and what only the index could find goes.
fn mine(claim: &Claim, over: Option<&Record>, found: Found<'_>, now: Timestamp) -> ClaimDecision {
    let Intent::Take { started } = claim.intent else {
        return Decided::only(ClaimVerdict::Nothing);
    };
    let again = over.filter(|record| record.owner == claim.owner);
    let taken = over.filter(|record| matches!(record.state, RecordState::Inflight));
    // A take-over of a run that only the index finds stays where it is, so that its late owner meets the fence.
    let in_place =
        taken.filter(|record| record.origin == Origin::Run && claim.address.origin() == Origin::Run);
    let key = in_place.map_or(claim.address.own(), |record| record.key);
    let mut places =
        [found.own, found.indexed, found.followed].into_iter().flatten().map(|(record, _)| record);
    let before = places.find(|record| record.key == key);
    let record = Record {
        key,
        origin: in_place.map_or(claim.address.origin(), |record| record.origin),
        index: claim.address.index(),
        call_id: claim.address.call_id(),
        tool: claim.tool.clone(),
        state: RecordState::Inflight,
        owner: claim.owner.clone(),
        // A repeated claim may follow an attempt: what was started stays so.
        started: started || again.is_some_and(|record| record.started),
        retry_safe: claim.retry_safe,
        digest: claim.digest,
        run: taken.or(again).map_or_else(|| claim.run.clone(), |record| record.run.clone()),
        lease: Lease::Until(now + claim.rules.keep.lease),
        seen_end_by: claim.seen_end_within.map(|span| now + span),
        delivered: None,
        version: before.map_or(1, |record| record.version + 1),
        arrived: again.map_or(claim.arrived, |record| record.arrived),
        created: again.map_or(now, |record| record.created),
        updated: now,
        expires: lifetime(&RecordState::Inflight, &claim.rules.keep, false).map(|life| now + life),
        request: claim.request.clone(),
        tool_call: claim.tool_call.clone(),
        context: claim.context.clone(),
        session: claim.session.clone(),
        actor: claim.actor.clone(),
        tenant: claim.tenant.clone(),
        attempts: again.map_or_else(Vec::new, |record| record.attempts.clone()),
    };
    // What was taken over goes, or everyone who waited for it would take it over in turn; and what nothing but the
    // index could find goes when the index moves on.
    let passed = found.indexed.map(|(other, _)| other);
    let orphan = passed.filter(|other| other.origin == Origin::Run && other.key != key && !other.is_open());
    let replaced = over.filter(|old| old.key != key && (old.origin == Origin::Run || taken.is_some()));
    let mut remove: Vec<Key> = [orphan, replaced].into_iter().flatten().map(|old| old.key).collect();
    remove.dedup();
    let record = Arc::new(record);
    Decided {
        verdict: ClaimVerdict::Mine(Arc::clone(&record)),
        write: Write::Put { record, index: IndexMove::Point, remove },
    }
}
