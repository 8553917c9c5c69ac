//! Asking a person: requests, grants, and how a grant is spent.
//!
//! A run that nobody watches must not wait for a person. So a call that needs approval either waits for a short
//! while, where somebody can answer now, or is refused at once and *parked*: a request that an operator finds
//! later. The answer becomes a *grant*, and the next such call passes. The channel through which a person is
//! asked is the shell's business; whether to ask, to park or to refuse is decided by [`plan`].
//!
//! A `once` grant belongs to the tool and the digest of the arguments, never to a call id, because a resend has
//! a new one. It is spent in one atomic step that names the owner of the claim, before the attempt is marked as
//! started: of two claims that saw the same grant one runs and the other asks again, and the one whose answer was
//! lost may ask whether it was the one. If the tool then asks for input instead of doing what was approved, the grant is
//! given back: nothing was done under it, and the person has answered for the call that comes again. Grants for a session
//! or a time belong to the signature and are not used up.
//!
//! A denial answers the calls that wait for it and is then forgotten: the next call asks again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::id::{Digest, SessionKey, ToolRef};
use crate::policy::{ApprovalPolicy, AskWhen, Dangerous};
use crate::trust::{Escalation, Signature, Standing};

/// What an approval is asked for, and what a grant must fit.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The tool.
    pub tool: &'a ToolRef,
    /// Its canonical arguments.
    pub arguments: Digest,
    /// What trust judges it by.
    pub signature: &'a Signature,
    /// The conversation.
    pub session: Option<&'a SessionKey>,
    /// Whether only an operator's grant counts (the tool is blocked).
    pub blocked: bool,
}

/// Names a grant within its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GrantId(pub u64);

/// Names a parked request within its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct ParkedId(pub u64);

/// Whether somebody can answer while the call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Somebody can.
    Interactive,
    /// Nobody can; a call that waited would hang.
    Headless,
}

/// What the arguments of the call look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Nothing special.
    Ordinary,
    /// A command of a dangerous shape.
    Dangerous,
}

/// Everything that decides how a call comes to its approval.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// What trust says.
    pub standing: &'a Standing,
    /// What the policy of the tool says.
    pub policy: &'a ApprovalPolicy,
    /// What the arguments look like.
    pub shape: Shape,
    /// Whether somebody can answer.
    pub channel: Channel,
    /// A grant that fits, from [`Approvals::grant_for`].
    pub grant: Option<GrantId>,
    /// The end of the call's time.
    pub deadline: Option<Timestamp>,
}

/// How a call comes to its approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// It needs none.
    Go,
    /// It has one, which is to be spent first.
    Spend(GrantId),
    /// A person is asked, and the call waits until then at the longest. What comes later finds the request parked.
    Ask {
        /// The end of the wait.
        until: Timestamp,
    },
    /// It is refused with `approval_required`, and the request is parked.
    Park,
    /// It is refused with `tool_blocked`, and the request is parked for an operator.
    RefuseBlocked,
}

/// Whether to go on, to ask, to park or to refuse.
///
/// A host's own list of allowed tools is not looked at: an escalated tool asks although it is on one. `never` is
/// different; it is the operator's word about this very layer. Neither lets a blocked tool run.
pub fn plan(situation: Situation<'_>, now: Timestamp) -> Plan {
    let Situation { standing, policy, shape, channel, grant, deadline } = situation;
    let lost_trust = match (standing, policy.when) {
        (Standing::Blocked(_), _) => return grant.map_or(Plan::RefuseBlocked, Plan::Spend),
        (Standing::Ask(_), AskWhen::Escalated | AskWhen::Always) | (Standing::Free(_), AskWhen::Always) => {
            true
        }
        (Standing::Ask(_), AskWhen::Never) | (Standing::Free(_), AskWhen::Escalated | AskWhen::Never) => {
            false
        }
    };
    let dangerous = match (shape, policy.dangerous) {
        (Shape::Dangerous, Dangerous::Ask) => true,
        (Shape::Dangerous, Dangerous::Record) | (Shape::Ordinary, _) => false,
    };
    if !lost_trust && !dangerous {
        return Plan::Go;
    }
    if let Some(grant) = grant {
        return Plan::Spend(grant);
    }
    let until = (now + policy.timeout).min(deadline.unwrap_or(Timestamp::MAX));
    match channel {
        Channel::Interactive if until > now => Plan::Ask { until },
        Channel::Interactive | Channel::Headless => Plan::Park,
    }
}

/// The requests and grants of one tenant that are not over yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct Approvals {
    /// The number that the next request or grant gets. Numbers are never given twice.
    next: u64,
    parked: BTreeMap<ParkedId, Parked>,
    denied: BTreeMap<ParkedId, Timestamp>,
    grants: BTreeMap<GrantId, Grant>,
}

/// A request that waits for an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Parked {
    /// The tool.
    pub tool: ToolRef,
    /// Its canonical arguments.
    pub arguments: Digest,
    /// What trust judges it by.
    pub signature: Signature,
    /// The conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionKey>,
    /// Whether only an operator can answer.
    pub blocked: bool,
    /// What the person reads.
    pub prompt: Escalation,
    /// What may be shown of the arguments; whoever asks has redacted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<Arc<str>>,
    /// How many calls asked for this.
    pub askers: u32,
    /// When the first one did.
    pub asked_at: Timestamp,
    /// When the last one did.
    pub last_asked: Timestamp,
    /// When it is dropped unanswered.
    pub expires: Timestamp,
}

/// Leave for a call to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The tool.
    pub tool: ToolRef,
    /// Which of its calls.
    pub fits: Fits,
    /// Who gave it.
    pub by: Grantor,
    /// Whether it was given for a blocked tool.
    pub blocked: bool,
    /// When it was given.
    pub granted_at: Timestamp,
    /// When it ends.
    pub expires: Timestamp,
    /// The claim that used it up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent_by: Option<Digest>,
}

/// Which calls a grant is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fits {
    /// One call with exactly these arguments.
    Once {
        /// The digest of them.
        arguments: Digest,
    },
    /// All calls of this signature in one conversation.
    Session {
        /// The signature.
        signature: Signature,
        /// The conversation.
        session: SessionKey,
    },
    /// All calls of this signature until the grant ends.
    Time {
        /// The signature.
        signature: Signature,
    },
}

/// Who answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grantor {
    /// Whoever sits at the client that made the call. Cannot let a blocked tool run.
    Client,
    /// An operator, with a token to show for it.
    Operator,
}

/// What a person said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// This call may run.
    Once,
    /// Calls of this signature may run in this conversation. Where there is none, it means this call only.
    Session,
    /// Calls of this signature may run until then.
    Time {
        /// The end.
        until: Timestamp,
    },
    /// This call may run, and what it asks for may earn its trust back from now on.
    Recover,
    /// It may not run.
    Deny,
}

/// A request was noted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Its number.
    pub id: ParkedId,
    /// The oldest request, if it had to make room; people should be told that it is gone.
    pub dropped: Option<Parked>,
}

/// What came of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decided {
    /// The next such call passes.
    Granted {
        /// The grant.
        grant: GrantId,
        /// The oldest grant, if it had to make room.
        dropped: Option<Grant>,
    },
    /// The calls that wait are refused.
    Denied,
}

/// Why a decision was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotDecided {
    /// There is no such request any more: answered, expired or dropped.
    Gone,
    /// The tool is blocked, and only an operator may let it run.
    OperatorOnly,
    /// The tool is blocked, and calls of it are approved one by one.
    OnlyOnce,
    /// The time of the grant would end before it begins.
    EndsInThePast,
}

impl NotDecided {
    /// Whether there is nothing to decide, rather than something against this decision.
    pub const fn is_gone(self) -> bool {
        match self {
            Self::Gone => true,
            Self::OperatorOnly | Self::OnlyOnce | Self::EndsInThePast => false,
        }
    }
}

impl fmt::Display for NotDecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "there is no such request any more: it was answered, it expired or it made room",
            Self::OperatorOnly => "the tool is blocked: only an operator can approve a call of it",
            Self::OnlyOnce => "the tool is blocked: approve single calls, or reset it",
            Self::EndsInThePast => "the grant would end before it begins: name a later time",
        })
    }
}

impl std::error::Error for NotDecided {}

/// What a waiting call learns about its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nobody has answered yet.
    Pending,
    /// There is a grant, to be spent.
    Granted(GrantId),
    /// A person said no.
    Denied,
    /// The request is gone without an answer.
    Gone,
}

/// What came of spending a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spend {
    /// This owner has it now, and nobody else can.
    Spent,
    /// This owner had it already: the answer to an earlier try was lost.
    AlreadyMine,
    /// It holds for more than one call and is not used up.
    Holds,
    /// Another owner was faster.
    Lost,
    /// It has ended, or never was.
    Gone,
}

impl Spend {
    /// Whether the call may run.
    pub const fn may_run(self) -> bool {
        match self {
            Self::Spent | Self::AlreadyMine | Self::Holds => true,
            Self::Lost | Self::Gone => false,
        }
    }
}

impl Approvals {
    /// The most requests that are kept.
    pub const MOST_PARKED: usize = 1024;
    /// The most grants that are kept.
    pub const MOST_GRANTS: usize = 4096;
    /// How long a grant lasts that nobody used, and one for a session at the longest.
    pub const GRANT_LASTS: Duration = Duration::from_secs(24 * 3600);
    /// How long the calls that wait can learn of a denial; longer than any of them waits between two looks.
    pub const DENIAL_KEPT: Duration = Duration::from_secs(120);
    /// The most that is kept of what may be shown of the arguments, in bytes.
    pub const MOST_SHOWN: usize = 4096;

    /// A grant that lets this call run and is not spent. One that is not used up goes before one that is.
    pub fn grant_for(&self, wanted: Wanted<'_>, now: Timestamp) -> Option<GrantId> {
        let fitting = self.grants.iter().filter(|(_, grant)| grant.fits(wanted, now));
        fitting.min_by_key(|(id, grant)| (grant.is_used_up_by_a_call(), **id)).map(|(id, _)| *id)
    }

    /// Notes that a call asks. Calls that want the same share one request.
    pub fn ask(
        &mut self,
        wanted: Wanted<'_>,
        prompt: &Escalation,
        shown: Option<&str>,
        policy: &ApprovalPolicy,
        now: Timestamp,
    ) -> Asked {
        let expires = now + policy.parked;
        let mut open = self.parked.iter_mut().filter(|(_, parked)| now < parked.expires);
        if let Some((id, parked)) = open.find(|(_, parked)| parked.is_for(wanted)) {
            parked.askers = parked.askers.saturating_add(1);
            parked.last_asked = now;
            parked.expires = expires;
            // The tool may have been blocked, or reset, since the first call asked.
            parked.blocked = wanted.blocked;
            parked.prompt = prompt.clone();
            return Asked { id: *id, dropped: None };
        }
        let dropped = (self.parked.len() >= Self::MOST_PARKED).then(|| self.parked.pop_first()).flatten();
        let id = ParkedId(self.number());
        let parked = Parked {
            tool: wanted.tool.clone(),
            arguments: wanted.arguments,
            signature: wanted.signature.clone(),
            session: wanted.session.cloned(),
            blocked: wanted.blocked,
            prompt: prompt.clone(),
            shown: shown.map(|shown| cut(shown, Self::MOST_SHOWN).into()),
            askers: 1,
            asked_at: now,
            last_asked: now,
            expires,
        };
        self.parked.insert(id, parked);
        Asked { id, dropped: dropped.map(|(_, parked)| parked) }
    }

    /// What a call that asked learns when it looks again.
    pub fn answer(&self, id: ParkedId, wanted: Wanted<'_>, now: Timestamp) -> Answer {
        if let Some(grant) = self.grant_for(wanted, now) {
            return Answer::Granted(grant);
        }
        if self.denied.get(&id).is_some_and(|until| now < *until) {
            return Answer::Denied;
        }
        match self.parked.get(&id) {
            Some(parked) if now < parked.expires => Answer::Pending,
            Some(_) | None => Answer::Gone,
        }
    }

    /// A person has decided. The request is over either way.
    pub fn decide(
        &mut self,
        id: ParkedId,
        decision: Decision,
        by: Grantor,
        now: Timestamp,
    ) -> Result<Decided, NotDecided> {
        let parked = self.parked.get(&id).filter(|parked| now < parked.expires).ok_or(NotDecided::Gone)?;
        if parked.blocked && by == Grantor::Client && decision != Decision::Deny {
            return Err(NotDecided::OperatorOnly);
        }
        let lasts = now + Self::GRANT_LASTS;
        let once = Fits::Once { arguments: parked.arguments };
        let signature = || parked.signature.clone();
        let (fits, expires) = match (decision, &parked.session) {
            (Decision::Deny, _) => {
                self.parked.remove(&id);
                self.denied.retain(|_, until| now < *until);
                if self.denied.len() >= Self::MOST_PARKED {
                    self.denied.pop_first();
                }
                self.denied.insert(id, now + Self::DENIAL_KEPT);
                return Ok(Decided::Denied);
            }
            (Decision::Session | Decision::Time { .. } | Decision::Recover, _) if parked.blocked => {
                return Err(NotDecided::OnlyOnce);
            }
            (Decision::Time { until }, _) if until <= now => return Err(NotDecided::EndsInThePast),
            (Decision::Time { until }, _) => (Fits::Time { signature: signature() }, until),
            (Decision::Session, Some(session)) => {
                (Fits::Session { signature: signature(), session: session.clone() }, lasts)
            }
            (Decision::Session, None) | (Decision::Once | Decision::Recover, _) => (once, lasts),
        };
        let (tool, blocked) = (parked.tool.clone(), parked.blocked);
        let grant = Grant { tool, fits, by, blocked, granted_at: now, expires, spent_by: None };
        self.parked.remove(&id);
        let dropped = self.make_room_for_a_grant(now);
        let id = GrantId(self.number());
        self.grants.insert(id, grant);
        Ok(Decided::Granted { grant: id, dropped })
    }

    /// Whether this grant is one for this call. Numbers begin anew in a store that was emptied, so whoever spends a
    /// grant that was seen earlier asks first, in the same atomic step.
    pub fn is_for(&self, id: GrantId, wanted: Wanted<'_>) -> bool {
        self.grants.get(&id).is_some_and(|grant| grant.is_for(wanted))
    }

    /// Spends a grant for the owner of a claim. Stores do this in one atomic step, before the attempt is marked
    /// as started; the same owner may repeat it when the answer was lost.
    pub fn spend(&mut self, id: GrantId, owner: Digest, now: Timestamp) -> Spend {
        self.grants.get_mut(&id).map_or(Spend::Gone, |grant| grant.spend(owner, now))
    }

    /// Gives back what this owner spent, because nothing was done under it. The grant of another stays as it is.
    pub fn give_back(&mut self, id: GrantId, owner: Digest) {
        if let Some(grant) = self.grants.get_mut(&id).filter(|grant| grant.spent_by == Some(owner)) {
            grant.spent_by = None;
        }
    }

    /// A conversation is over, and with it what was granted for it.
    pub fn end_session(&mut self, ended: &SessionKey) {
        self.grants.retain(|_, grant| match &grant.fits {
            Fits::Session { session, .. } => session != ended,
            Fits::Once { .. } | Fits::Time { .. } => true,
        });
    }

    /// Drops what is over; gives back the requests that nobody answered.
    pub fn expire(&mut self, now: Timestamp) -> Vec<Parked> {
        self.denied.retain(|_, until| now < *until);
        self.grants.retain(|_, grant| now < grant.expires);
        let over: Vec<_> =
            self.parked.iter().filter(|(_, parked)| now >= parked.expires).map(|(id, _)| *id).collect();
        over.iter().filter_map(|id| self.parked.remove(id)).collect()
    }

    /// The requests that wait for an answer, oldest first.
    pub fn parked(&self, now: Timestamp) -> impl Iterator<Item = (ParkedId, &Parked)> {
        self.parked.iter().filter(move |(_, parked)| now < parked.expires).map(|(id, parked)| (*id, parked))
    }

    /// The grants that still hold, oldest first.
    pub fn grants(&self, now: Timestamp) -> impl Iterator<Item = (GrantId, &Grant)> {
        self.grants.iter().filter(move |(_, grant)| now < grant.expires).map(|(id, grant)| (*id, grant))
    }

    fn number(&mut self) -> u64 {
        let number = self.next;
        self.next = self.next.saturating_add(1);
        number
    }

    /// What is over goes first, then what is spent, then the oldest.
    fn make_room_for_a_grant(&mut self, now: Timestamp) -> Option<Grant> {
        if self.grants.len() < Self::MOST_GRANTS {
            return None;
        }
        self.grants.retain(|_, grant| now < grant.expires);
        if self.grants.len() < Self::MOST_GRANTS {
            return None;
        }
        let oldest_spent = self.grants.iter().find(|(_, grant)| grant.spent_by.is_some()).map(|(id, _)| *id);
        match oldest_spent {
            Some(id) => {
                self.grants.remove(&id);
                None
            }
            None => self.grants.pop_first().map(|(_, grant)| grant),
        }
    }
}

impl Parked {
    fn is_for(&self, wanted: Wanted<'_>) -> bool {
        self.tool == *wanted.tool
            && self.arguments == wanted.arguments
            && self.session.as_ref() == wanted.session
    }
}

impl Grant {
    /// Spends it for this owner. A pure step over the record, for stores that keep grants one by one.
    pub fn spend(&mut self, owner: Digest, now: Timestamp) -> Spend {
        match (&self.fits, self.spent_by) {
            (Fits::Once { .. }, Some(by)) if by == owner => Spend::AlreadyMine,
            (Fits::Once { .. }, Some(_)) => Spend::Lost,
            (Fits::Once { .. } | Fits::Session { .. } | Fits::Time { .. }, _) if now >= self.expires => {
                Spend::Gone
            }
            (Fits::Once { .. }, None) => {
                self.spent_by = Some(owner);
                Spend::Spent
            }
            (Fits::Session { .. } | Fits::Time { .. }, _) => Spend::Holds,
        }
    }

    fn is_for(&self, wanted: Wanted<'_>) -> bool {
        let same_call = match &self.fits {
            Fits::Once { arguments } => *arguments == wanted.arguments,
            Fits::Session { signature, session } => {
                signature == wanted.signature && wanted.session == Some(session)
            }
            Fits::Time { signature } => signature == wanted.signature,
        };
        self.tool == *wanted.tool && same_call
    }

    fn fits(&self, wanted: Wanted<'_>, now: Timestamp) -> bool {
        // What was granted before the block was granted without knowing of it.
        let despite_block = !wanted.blocked || (self.blocked && self.by == Grantor::Operator);
        self.is_for(wanted) && despite_block && self.spent_by.is_none() && now < self.expires
    }

    const fn is_used_up_by_a_call(&self) -> bool {
        match self.fits {
            Fits::Once { .. } => true,
            Fits::Session { .. } | Fits::Time { .. } => false,
        }
    }
}

/// The approvals of a tenant as they are stored.
#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    next: u64,
    #[serde(default)]
    parked: BTreeMap<ParkedId, Parked>,
    #[serde(default)]
    denied: BTreeMap<ParkedId, Timestamp>,
    #[serde(default)]
    grants: BTreeMap<GrantId, Grant>,
}

const VERSION: u32 = 1;

impl From<Approvals> for Stored {
    fn from(approvals: Approvals) -> Self {
        let Approvals { next, parked, denied, grants } = approvals;
        Self { version: VERSION, next, parked, denied, grants }
    }
}

impl TryFrom<Stored> for Approvals {
    type Error = String;

    fn try_from(stored: Stored) -> Result<Self, String> {
        let Stored { version, next, parked, denied, grants } = stored;
        if version != VERSION {
            return Err(format!(
                "stored approvals have version {version}, this program knows version {VERSION}"
            ));
        }
        // A number that is given twice would let one person's answer reach another's request.
        let used = [parked.last_key_value().map(|(id, _)| id.0), denied.last_key_value().map(|(id, _)| id.0)];
        let used = used.into_iter().chain([grants.last_key_value().map(|(id, _)| id.0)]).flatten().max();
        if used.is_some_and(|used| used >= next) {
            return Err(format!("stored approvals say that number {next} is free, but it is in use"));
        }
        Ok(Self { next, parked, denied, grants })
    }
}

/// The longest part that fits and does not end within a character.
fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    end.and_then(|end| text.get(..end)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
