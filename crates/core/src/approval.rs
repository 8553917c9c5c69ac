//! Approvals: requests, grants, and the rules for spending a grant.
//!
//! An unattended run must not wait for an approver. A call that needs approval either waits for a short time, if an
//! approver can answer now, or is refused at once and *parked* as a request that an operator finds later. A positive
//! decision becomes a *grant*, and the next such call passes. The shell owns the channel to the approver; [`plan`]
//! decides whether to ask, to park or to refuse.
//!
//! A `once` grant belongs to the tool and the digest of the arguments. It does not belong to a call id, because a
//! resend has a new one. It is spent in one atomic step that names the owner of the claim, before the attempt is marked
//! as started. Of two claims that saw the same grant, one runs and the other asks again. A claim whose answer was lost
//! may ask whether it spent the grant. If the tool then asks for input instead of doing what was approved, the grant is
//! returned: nothing was done under it, and the decision also covers the repeated call. Grants for a session or
//! a time belong to the signature and are not used up.
//!
//! A denial answers the calls that wait for it and is then deleted: the next call asks again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::classify::signature::Signature;
use crate::id::{Digest, SessionKey, ToolRef};
use crate::policy::{ApprovalPolicy, ApprovalTrigger, DangerousCommandPolicy};
use crate::trust::{Escalation, TrustDecision};

/// The call that needs approval, and that a grant must match.
#[derive(Clone, Copy, Debug)]
pub struct ApprovalSubject<'a> {
    /// The tool.
    pub tool: &'a ToolRef,
    /// Digest of its canonical arguments.
    pub arguments: Digest,
    /// Signature that trust is kept for.
    pub signature: &'a Signature,
    /// The session.
    pub session: Option<&'a SessionKey>,
    /// True if only an operator's grant counts, because the tool is blocked.
    pub blocked: bool,
}

/// The number of a grant within its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GrantId(pub u64);

/// The number of a parked request within its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct ParkedRequestId(pub u64);

/// Availability of an approver while the call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalChannel {
    /// An approver can answer.
    Interactive,
    /// No approver can answer; a call that waited would hang.
    Headless,
}

/// Risk of the call, by its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentRisk {
    /// No known risk.
    Ordinary,
    /// The arguments match a dangerous command pattern.
    Dangerous,
}

/// Inputs of the decision about approval.
#[derive(Clone, Copy, Debug)]
pub struct ApprovalInput<'a> {
    /// Trust in the tool.
    pub standing: &'a TrustDecision,
    /// Approval policy of the tool.
    pub policy: &'a ApprovalPolicy,
    /// Risk of the call.
    pub shape: ArgumentRisk,
    /// Availability of an approver.
    pub channel: ApprovalChannel,
    /// A matching grant, from [`ApprovalLedger::grant_for`].
    pub grant: Option<GrantId>,
    /// Deadline of the call.
    pub deadline: Option<Timestamp>,
}

/// A decision about approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalPlan {
    /// No approval is needed.
    Go,
    /// A grant exists, and is spent first.
    Spend(GrantId),
    /// An approver is asked, and the call waits until the given time at most. A later decision applies to the parked
    /// request.
    Ask {
        /// The end of the wait.
        until: Timestamp,
    },
    /// The call is refused with `approval_required`, and the request is parked.
    Park,
    /// The call is refused with `tool_blocked`, and the request is parked for an operator.
    RefuseBlocked,
}

/// Decides whether a call runs, waits for approval, is parked or is refused.
///
/// The host's own list of allowed tools is not considered: an escalated tool asks although it is on that list. `never`
/// is different, because it is the operator's setting for this very layer. Neither lets a blocked tool run.
pub fn plan(situation: ApprovalInput<'_>, now: Timestamp) -> ApprovalPlan {
    let ApprovalInput { standing, policy, shape, channel, grant, deadline } = situation;
    let lost_trust = match (standing, policy.when) {
        (TrustDecision::Blocked(_), _) => {
            return grant.map_or(ApprovalPlan::RefuseBlocked, ApprovalPlan::Spend);
        }
        (TrustDecision::NeedsApproval(_), ApprovalTrigger::Escalated | ApprovalTrigger::Always)
        | (TrustDecision::Allowed(_), ApprovalTrigger::Always) => true,
        (TrustDecision::NeedsApproval(_), ApprovalTrigger::Never)
        | (TrustDecision::Allowed(_), ApprovalTrigger::Escalated | ApprovalTrigger::Never) => false,
    };
    let dangerous = match (shape, policy.dangerous) {
        (ArgumentRisk::Dangerous, DangerousCommandPolicy::Ask) => true,
        (ArgumentRisk::Dangerous, DangerousCommandPolicy::Record) | (ArgumentRisk::Ordinary, _) => false,
    };
    if !lost_trust && !dangerous {
        return ApprovalPlan::Go;
    }
    if let Some(grant) = grant {
        return ApprovalPlan::Spend(grant);
    }
    let until = (now + policy.timeout).min(deadline.unwrap_or(Timestamp::MAX));
    match channel {
        ApprovalChannel::Interactive if until > now => ApprovalPlan::Ask { until },
        ApprovalChannel::Interactive | ApprovalChannel::Headless => ApprovalPlan::Park,
    }
}

/// The open requests and grants of one tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StoredApprovals", into = "StoredApprovals")]
pub struct ApprovalLedger {
    /// Number of the next request or grant. Numbers are never reused.
    next: u64,
    parked: BTreeMap<ParkedRequestId, ParkedRequest>,
    denied: BTreeMap<ParkedRequestId, Timestamp>,
    grants: BTreeMap<GrantId, Grant>,
}

/// A request that waits for approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ParkedRequest {
    /// The tool.
    pub tool: ToolRef,
    /// Digest of its canonical arguments.
    pub arguments: Digest,
    /// Signature that trust is kept for.
    pub signature: Signature,
    /// The session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionKey>,
    /// True if only an operator can approve it.
    pub blocked: bool,
    /// The prompt that the approver reads.
    pub prompt: Escalation,
    /// Arguments that may be shown, already redacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<Arc<str>>,
    /// Number of calls that asked for this.
    #[serde(rename = "askers")]
    pub request_count: u32,
    /// Time of the first of these calls.
    #[serde(rename = "asked_at")]
    pub first_requested: Timestamp,
    /// Time of the last of these calls.
    #[serde(rename = "last_asked")]
    pub last_requested: Timestamp,
    /// Time at which the request is dropped without a decision.
    pub expires: Timestamp,
}

/// A permission for a call to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The tool.
    pub tool: ToolRef,
    /// Calls that the grant covers.
    pub fits: GrantScope,
    /// Side that gave it.
    pub by: Grantor,
    /// True if it was given for a blocked tool.
    pub blocked: bool,
    /// Time at which it was given.
    pub granted_at: Timestamp,
    /// Time at which it ends.
    pub expires: Timestamp,
    /// The claim that spent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent_by: Option<Digest>,
}

/// The calls that a grant covers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrantScope {
    /// One call with exactly these arguments.
    Once {
        /// Digest of the arguments.
        arguments: Digest,
    },
    /// All calls of this signature in one session.
    Session {
        /// The signature.
        signature: Signature,
        /// The session.
        session: SessionKey,
    },
    /// All calls of this signature until the grant ends.
    Time {
        /// The signature.
        signature: Signature,
    },
}

/// The side that decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grantor {
    /// The user of the client that made the call. Cannot let a blocked tool run.
    Client,
    /// An operator, who needs the admin token.
    Operator,
}

/// A decision on a request for approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalDecision {
    /// This call may run.
    Once,
    /// Calls of this signature may run in this session. Without a session, this call only.
    Session,
    /// Calls of this signature may run until the given time.
    Time {
        /// The end.
        until: Timestamp,
    },
    /// This call may run, and its signature may regain its trust from now on.
    Recover,
    /// The call may not run.
    Deny,
}

/// The result of recording a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkResult {
    /// Number of the request.
    pub id: ParkedRequestId,
    /// The oldest request, if it had to make room. Operators should be notified that it is gone.
    pub dropped: Option<ParkedRequest>,
}

/// The result of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecisionEffect {
    /// The next such call passes.
    Granted {
        /// The grant.
        grant: GrantId,
        /// The oldest grant, if it had to make room.
        dropped: Option<Grant>,
    },
    /// The waiting calls are refused.
    Denied,
}

/// The reason why a decision was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApprovalDecisionError {
    /// No such request is open: it was decided, expired or dropped.
    #[error("the request is no longer pending: it was decided, it expired, or newer requests displaced it")]
    Gone,
    /// The tool is blocked, and only an operator may let it run.
    #[error("the tool is blocked: only an operator can approve its calls")]
    OperatorOnly,
    /// The tool is blocked, and its calls are approved one by one.
    #[error("the tool is blocked: approve single calls, or reset it")]
    OnlyOnce,
    /// The grant would end before it begins.
    #[error("the grant would end before it begins; set a later time")]
    EndsInThePast,
}

impl ApprovalDecisionError {
    /// Returns true if there is nothing to decide, rather than a reason against this decision.
    pub const fn is_gone(self) -> bool {
        match self {
            Self::Gone => true,
            Self::OperatorOnly | Self::OnlyOnce | Self::EndsInThePast => false,
        }
    }
}

/// The state of a request, as a waiting call sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalStatus {
    /// No decision yet.
    Pending,
    /// A grant exists, to be spent.
    Granted(GrantId),
    /// The request was denied.
    Denied,
    /// The request is gone without a decision.
    Gone,
}

/// The result of spending a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpendVerdict {
    /// This owner has the grant now, exclusively.
    Spent,
    /// This owner had the grant already: the answer to an earlier try was lost.
    AlreadyMine,
    /// The grant holds for more than one call and is not used up.
    Holds,
    /// Another owner spent the grant first.
    Lost,
    /// The grant has ended, or never existed.
    Gone,
}

impl SpendVerdict {
    /// Returns true if the call may run.
    pub const fn may_run(self) -> bool {
        match self {
            Self::Spent | Self::AlreadyMine | Self::Holds => true,
            Self::Lost | Self::Gone => false,
        }
    }
}

impl ApprovalLedger {
    /// Maximum number of stored requests.
    pub const MOST_PARKED: usize = 1024;
    /// Maximum number of stored grants.
    pub const MOST_GRANTS: usize = 4096;
    /// Lifetime of an unused grant, and maximum lifetime of a grant for a session.
    pub const GRANT_LIFETIME: Duration = Duration::from_secs(24 * 3600);
    /// Time for which waiting calls can find a denial. Longer than their polling interval.
    pub const DENIAL_LIFETIME: Duration = Duration::from_secs(120);
    /// Maximum length of the shown arguments, in bytes.
    pub const MOST_SHOWN: usize = 4096;

    /// Returns an unspent grant that lets this call run. A grant that is not used up goes before one that is.
    pub fn grant_for(&self, subject: ApprovalSubject<'_>, now: Timestamp) -> Option<GrantId> {
        let fitting = self.grants.iter().filter(|(_, grant)| grant.fits(subject, now));
        fitting.min_by_key(|(id, grant)| (grant.is_used_up_by_a_call(), **id)).map(|(id, _)| *id)
    }

    /// Records a request for approval. Equal calls share one request.
    pub fn ask(
        &mut self,
        subject: ApprovalSubject<'_>,
        prompt: &Escalation,
        shown: Option<&str>,
        policy: &ApprovalPolicy,
        now: Timestamp,
    ) -> ParkResult {
        let expires = now + policy.parked;
        let mut open = self.parked.iter_mut().filter(|(_, parked)| now < parked.expires);
        if let Some((id, parked)) = open.find(|(_, parked)| parked.is_for(subject)) {
            parked.request_count = parked.request_count.saturating_add(1);
            parked.last_requested = now;
            parked.expires = expires;
            // The tool may have been blocked, or reset, since the first request.
            parked.blocked = subject.blocked;
            parked.prompt = prompt.clone();
            return ParkResult { id: *id, dropped: None };
        }
        let dropped = (self.parked.len() >= Self::MOST_PARKED).then(|| self.parked.pop_first()).flatten();
        let id = ParkedRequestId(self.number());
        let parked = ParkedRequest {
            tool: subject.tool.clone(),
            arguments: subject.arguments,
            signature: subject.signature.clone(),
            session: subject.session.cloned(),
            blocked: subject.blocked,
            prompt: prompt.clone(),
            shown: shown.map(|shown| cut(shown, Self::MOST_SHOWN).into()),
            request_count: 1,
            first_requested: now,
            last_requested: now,
            expires,
        };
        self.parked.insert(id, parked);
        ParkResult { id, dropped: dropped.map(|(_, parked)| parked) }
    }

    /// Returns the state of a request for the call that waits for it.
    pub fn answer(
        &self,
        id: ParkedRequestId,
        subject: ApprovalSubject<'_>,
        now: Timestamp,
    ) -> ApprovalStatus {
        if let Some(grant) = self.grant_for(subject, now) {
            return ApprovalStatus::Granted(grant);
        }
        if self.denied.get(&id).is_some_and(|until| now < *until) {
            return ApprovalStatus::Denied;
        }
        match self.parked.get(&id) {
            Some(parked) if now < parked.expires => ApprovalStatus::Pending,
            Some(_) | None => ApprovalStatus::Gone,
        }
    }

    /// Records a decision. The request ends in either case.
    pub fn decide(
        &mut self,
        id: ParkedRequestId,
        decision: ApprovalDecision,
        by: Grantor,
        now: Timestamp,
    ) -> Result<DecisionEffect, ApprovalDecisionError> {
        let parked =
            self.parked.get(&id).filter(|parked| now < parked.expires).ok_or(ApprovalDecisionError::Gone)?;
        if parked.blocked && by == Grantor::Client && decision != ApprovalDecision::Deny {
            return Err(ApprovalDecisionError::OperatorOnly);
        }
        let lasts = now + Self::GRANT_LIFETIME;
        let once = GrantScope::Once { arguments: parked.arguments };
        let signature = || parked.signature.clone();
        let (fits, expires) = match (decision, &parked.session) {
            (ApprovalDecision::Deny, _) => {
                self.parked.remove(&id);
                self.denied.retain(|_, until| now < *until);
                if self.denied.len() >= Self::MOST_PARKED {
                    self.denied.pop_first();
                }
                self.denied.insert(id, now + Self::DENIAL_LIFETIME);
                return Ok(DecisionEffect::Denied);
            }
            (ApprovalDecision::Session | ApprovalDecision::Time { .. } | ApprovalDecision::Recover, _)
                if parked.blocked =>
            {
                return Err(ApprovalDecisionError::OnlyOnce);
            }
            (ApprovalDecision::Time { until }, _) if until <= now => {
                return Err(ApprovalDecisionError::EndsInThePast);
            }
            (ApprovalDecision::Time { until }, _) => (GrantScope::Time { signature: signature() }, until),
            (ApprovalDecision::Session, Some(session)) => {
                (GrantScope::Session { signature: signature(), session: session.clone() }, lasts)
            }
            (ApprovalDecision::Session, None) | (ApprovalDecision::Once | ApprovalDecision::Recover, _) => {
                (once, lasts)
            }
        };
        let (tool, blocked) = (parked.tool.clone(), parked.blocked);
        let grant = Grant { tool, fits, by, blocked, granted_at: now, expires, spent_by: None };
        self.parked.remove(&id);
        let dropped = self.make_room_for_a_grant(now);
        let id = GrantId(self.number());
        self.grants.insert(id, grant);
        Ok(DecisionEffect::Granted { grant: id, dropped })
    }

    /// Returns true if this grant is for this call. Numbers start again in a store that was emptied, so a caller that
    /// spends a grant it found earlier checks this first, in the same atomic step.
    pub fn is_for(&self, id: GrantId, subject: ApprovalSubject<'_>) -> bool {
        self.grants.get(&id).is_some_and(|grant| grant.is_for(subject))
    }

    /// Spends a grant for the owner of a claim. Stores do this in one atomic step, before the attempt is marked as
    /// started. The same owner may repeat it if the answer was lost.
    pub fn spend(&mut self, id: GrantId, owner: Digest, now: Timestamp) -> SpendVerdict {
        self.grants.get_mut(&id).map_or(SpendVerdict::Gone, |grant| grant.spend(owner, now))
    }

    /// Returns a grant that this owner spent, because nothing was done under it. A grant of another owner does not
    /// change.
    pub fn return_grant(&mut self, id: GrantId, owner: Digest) {
        if let Some(grant) = self.grants.get_mut(&id).filter(|grant| grant.spent_by == Some(owner)) {
            grant.spent_by = None;
        }
    }

    /// Ends a session, and drops its grants.
    pub fn end_session(&mut self, closed: &SessionKey) {
        self.grants.retain(|_, grant| match &grant.fits {
            GrantScope::Session { session, .. } => session != closed,
            GrantScope::Once { .. } | GrantScope::Time { .. } => true,
        });
    }

    /// Drops everything that has expired; returns the requests that got no decision.
    pub fn expire(&mut self, now: Timestamp) -> Vec<ParkedRequest> {
        self.denied.retain(|_, until| now < *until);
        self.grants.retain(|_, grant| now < grant.expires);
        let over: Vec<_> =
            self.parked.iter().filter(|(_, parked)| now >= parked.expires).map(|(id, _)| *id).collect();
        over.iter().filter_map(|id| self.parked.remove(id)).collect()
    }

    /// Returns the requests that wait for a decision, oldest first.
    pub fn parked(&self, now: Timestamp) -> impl Iterator<Item = (ParkedRequestId, &ParkedRequest)> {
        self.parked.iter().filter(move |(_, parked)| now < parked.expires).map(|(id, parked)| (*id, parked))
    }

    /// Returns the grants that are still valid, oldest first.
    pub fn grants(&self, now: Timestamp) -> impl Iterator<Item = (GrantId, &Grant)> {
        self.grants.iter().filter(move |(_, grant)| now < grant.expires).map(|(id, grant)| (*id, grant))
    }

    fn number(&mut self) -> u64 {
        let number = self.next;
        self.next = self.next.saturating_add(1);
        number
    }

    /// Removes expired grants first, then spent ones, then the oldest.
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

impl ParkedRequest {
    fn is_for(&self, subject: ApprovalSubject<'_>) -> bool {
        self.tool == *subject.tool
            && self.arguments == subject.arguments
            && self.session.as_ref() == subject.session
    }
}

impl Grant {
    /// Spends the grant for this owner. A pure step over the record, for stores that keep grants one by one.
    pub fn spend(&mut self, owner: Digest, now: Timestamp) -> SpendVerdict {
        match (&self.fits, self.spent_by) {
            (GrantScope::Once { .. }, Some(by)) if by == owner => SpendVerdict::AlreadyMine,
            (GrantScope::Once { .. }, Some(_)) => SpendVerdict::Lost,
            (GrantScope::Once { .. } | GrantScope::Session { .. } | GrantScope::Time { .. }, _)
                if now >= self.expires =>
            {
                SpendVerdict::Gone
            }
            (GrantScope::Once { .. }, None) => {
                self.spent_by = Some(owner);
                SpendVerdict::Spent
            }
            (GrantScope::Session { .. } | GrantScope::Time { .. }, _) => SpendVerdict::Holds,
        }
    }

    fn is_for(&self, subject: ApprovalSubject<'_>) -> bool {
        let same_call = match &self.fits {
            GrantScope::Once { arguments } => *arguments == subject.arguments,
            GrantScope::Session { signature, session } => {
                signature == subject.signature && subject.session == Some(session)
            }
            GrantScope::Time { signature } => signature == subject.signature,
        };
        self.tool == *subject.tool && same_call
    }

    fn fits(&self, subject: ApprovalSubject<'_>, now: Timestamp) -> bool {
        // A grant from before the block was given without knowing of it.
        let despite_block = !subject.blocked || (self.blocked && self.by == Grantor::Operator);
        self.is_for(subject) && despite_block && self.spent_by.is_none() && now < self.expires
    }

    const fn is_used_up_by_a_call(&self) -> bool {
        match self.fits {
            GrantScope::Once { .. } => true,
            GrantScope::Session { .. } | GrantScope::Time { .. } => false,
        }
    }
}

/// The approvals of a tenant, as they are stored.
#[derive(Serialize, Deserialize)]
struct StoredApprovals {
    version: u32,
    next: u64,
    #[serde(default)]
    parked: BTreeMap<ParkedRequestId, ParkedRequest>,
    #[serde(default)]
    denied: BTreeMap<ParkedRequestId, Timestamp>,
    #[serde(default)]
    grants: BTreeMap<GrantId, Grant>,
}

const VERSION: u32 = 1;

impl From<ApprovalLedger> for StoredApprovals {
    fn from(approvals: ApprovalLedger) -> Self {
        let ApprovalLedger { next, parked, denied, grants } = approvals;
        Self { version: VERSION, next, parked, denied, grants }
    }
}

impl TryFrom<StoredApprovals> for ApprovalLedger {
    type Error = String;

    fn try_from(stored: StoredApprovals) -> Result<Self, String> {
        let StoredApprovals { version, next, parked, denied, grants } = stored;
        if version != VERSION {
            return Err(format!(
                "stored approvals have version {version}; this program supports version {VERSION}"
            ));
        }
        // A reused number would apply one decision to another request.
        let used = [parked.last_key_value().map(|(id, _)| id.0), denied.last_key_value().map(|(id, _)| id.0)];
        let used = used.into_iter().chain([grants.last_key_value().map(|(id, _)| id.0)]).flatten().max();
        if used.is_some_and(|used| used >= next) {
            return Err(format!("stored approvals say that number {next} is free, but it is in use"));
        }
        Ok(Self { next, parked, denied, grants })
    }
}

/// Returns the longest prefix that fits and does not end within a character.
fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    end.and_then(|end| text.get(..end)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
