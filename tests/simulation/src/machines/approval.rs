//! Requests and grants: the calls that a grant allows, the number of its uses, and its expiry.

use std::collections::BTreeMap;

use steadfast_core::Timestamp;
use steadfast_core::approval::{
    ApprovalChannel, ApprovalDecision, ApprovalDecisionError, ApprovalInput, ApprovalLedger, ApprovalPlan,
    ApprovalStatus, ApprovalSubject, ArgumentRisk, DecisionEffect, GrantId, GrantScope, Grantor,
    ParkedRequestId, SpendVerdict, plan,
};
use steadfast_core::classify::signature::Signature;
use steadfast_core::id::{Digest, SessionKey, ToolRef};
use steadfast_core::policy::{ApprovalPolicy, ApprovalTrigger, DangerousCommandPolicy};
use steadfast_core::trust::{Escalation, TrustDecision, TrustState};

use super::{MachineTrace, agree, millis, next_moment, optional};
use crate::invariants::InvariantViolation;
use crate::rng::Rng;
use crate::system::session_of;
use crate::transition::{digest, tool};

const PROMISE: &str = "approvals as documented";
const DAY: u64 = 24 * 3600 * 1000;

/// The part of a call that approvals consider.
#[derive(Clone, Debug, PartialEq)]
struct ReferenceApprovalCall {
    tool: ToolRef,
    arguments: Digest,
    signature: Signature,
    session: Option<SessionKey>,
}

impl ReferenceApprovalCall {
    fn draw(rng: &mut Rng) -> Self {
        let mut tool = tool();
        if rng.chance(15) {
            tool.namespace = steadfast_core::id::Namespace::new("shop").expect("a name");
        }
        Self {
            tool,
            arguments: digest(rng.between(0, 1)),
            signature: Signature(format!("signature {}", rng.between(0, 1)).into()),
            session: optional(rng, |rng| session_of(usize::from(rng.chance(50)))).flatten(),
        }
    }

    fn subject(&self, blocked: bool) -> ApprovalSubject<'_> {
        ApprovalSubject {
            tool: &self.tool,
            arguments: self.arguments,
            signature: &self.signature,
            session: self.session.as_ref(),
            blocked,
        }
    }
}

#[derive(Debug)]
struct ReferenceApprovalRequest {
    call: ReferenceApprovalCall,
    blocked: bool,
    request_count: u32,
    first: Timestamp,
    last: Timestamp,
    expires: Timestamp,
    over: bool,
}

#[derive(Debug)]
struct ReferenceGrant {
    call: ReferenceApprovalCall,
    kind: GrantKind,
    by: Grantor,
    blocked: bool,
    expires: Timestamp,
    spent_by: Option<Digest>,
    removed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum GrantKind {
    Once,
    Session,
    Time,
}

impl ReferenceGrant {
    fn is_for(&self, call: &ReferenceApprovalCall) -> bool {
        self.call.tool == call.tool
            && match self.kind {
                GrantKind::Once => self.call.arguments == call.arguments,
                GrantKind::Session => {
                    self.call.signature == call.signature
                        && call.session.is_some()
                        && self.call.session == call.session
                }
                GrantKind::Time => self.call.signature == call.signature,
            }
    }
}

/// All requests and answers.
#[derive(Debug, Default)]
struct ReferenceApprovals {
    requests: BTreeMap<ParkedRequestId, ReferenceApprovalRequest>,
    denied: BTreeMap<ParkedRequestId, Timestamp>,
    grants: BTreeMap<GrantId, ReferenceGrant>,
}

impl ReferenceApprovals {
    fn grant_for(&self, call: &ReferenceApprovalCall, blocked: bool, now: Timestamp) -> Option<GrantId> {
        let fits = |grant: &&ReferenceGrant| {
            grant.is_for(call)
                && !grant.removed
                && grant.spent_by.is_none()
                && now < grant.expires
                && (!blocked || grant.blocked && grant.by == Grantor::Operator)
        };
        // The oldest grant that is not used up, else the oldest one.
        let fitting: Vec<(&GrantId, &ReferenceGrant)> =
            self.grants.iter().filter(|(_, grant)| fits(grant)).collect();
        let lasting = fitting.iter().find(|(_, grant)| grant.kind != GrantKind::Once);
        lasting.or(fitting.first()).map(|(id, _)| **id)
    }

    fn spend(&mut self, id: GrantId, owner: Digest, now: Timestamp) -> SpendVerdict {
        let Some(grant) = self.grants.get_mut(&id).filter(|grant| !grant.removed) else {
            return SpendVerdict::Gone;
        };
        match (grant.kind, grant.spent_by) {
            (GrantKind::Once, Some(spender)) => {
                if spender == owner {
                    SpendVerdict::AlreadyMine
                } else {
                    SpendVerdict::Lost
                }
            }
            (GrantKind::Once | GrantKind::Session | GrantKind::Time, _) if now >= grant.expires => {
                SpendVerdict::Gone
            }
            (GrantKind::Once, None) => {
                grant.spent_by = Some(owner);
                SpendVerdict::Spent
            }
            (GrantKind::Session | GrantKind::Time, _) => SpendVerdict::Holds,
        }
    }

    fn answer(
        &self,
        id: ParkedRequestId,
        call: &ReferenceApprovalCall,
        blocked: bool,
        now: Timestamp,
    ) -> ApprovalStatus {
        if let Some(grant) = self.grant_for(call, blocked, now) {
            return ApprovalStatus::Granted(grant);
        }
        if self.denied.get(&id).is_some_and(|until| now < *until) {
            return ApprovalStatus::Denied;
        }
        match self.requests.get(&id) {
            Some(request) if !request.over && now < request.expires => ApprovalStatus::Pending,
            _ => ApprovalStatus::Gone,
        }
    }
}

pub(super) fn check(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    plans(rng, machine_trace)?;
    let policy =
        ApprovalPolicy { parked: millis(*rng.pick(&[500, 5_000, DAY])), ..ApprovalPolicy::default() };
    let (mut approvals, mut reference) = (ApprovalLedger::default(), ReferenceApprovals::default());
    let mut now = Timestamp::from_millis(1_000_000);
    for _ in 0..50 {
        let expiries = reference.requests.values().map(|request| request.expires);
        let moments: Vec<Timestamp> = expiries
            .chain(reference.grants.values().map(|grant| grant.expires))
            .chain(reference.denied.values().copied())
            .collect();
        now = next_moment(rng, now, &moments);
        let (call, blocked) = (ReferenceApprovalCall::draw(rng), rng.chance(25));
        let owner = digest(100 + rng.between(0, 2));
        let at = now.as_millis();
        match rng.between(0, 9) {
            0..3 => {
                let open = reference.requests.iter_mut().find(|(_, request)| {
                    !request.over
                        && now < request.expires
                        && (&request.call.tool, request.call.arguments, &request.call.session)
                            == (&call.tool, call.arguments, &call.session)
                });
                let prompt = prompt(blocked);
                let got = approvals.ask(call.subject(blocked), &prompt, None, &policy, now);
                machine_trace.log(|| format!("{at}: {call:?} asks: {got:?}"));
                agree(PROMISE, "what makes room", &got.dropped, &None)?;
                match open {
                    Some((id, request)) => {
                        agree(PROMISE, "a request that joins", &got.id, id)?;
                        request.request_count += 1;
                        (request.last, request.expires, request.blocked) =
                            (now, now + policy.parked, blocked);
                    }
                    None => {
                        if reference.requests.contains_key(&got.id)
                            || reference.grants.contains_key(&GrantId(got.id.0))
                        {
                            return Err((PROMISE, format!("number {:?} is given twice", got.id)));
                        }
                        let request = ReferenceApprovalRequest {
                            call,
                            blocked,
                            request_count: 1,
                            first: now,
                            last: now,
                            expires: now + policy.parked,
                            over: false,
                        };
                        reference.requests.insert(got.id, request);
                    }
                }
            }
            3..6 if !reference.requests.is_empty() => {
                decide(rng, machine_trace, &mut approvals, &mut reference, now)?
            }
            6 | 7 if !reference.grants.is_empty() => {
                let ids: Vec<GrantId> = reference.grants.keys().copied().collect();
                let id = *rng.pick(&ids);
                let (got, due) = (approvals.spend(id, owner, now), reference.spend(id, owner, now));
                machine_trace.log(|| format!("{at}: {id:?} is spent: {got:?}"));
                agree(PROMISE, "spending", &got, &due)?;
                agree(
                    PROMISE,
                    "whether it may run",
                    &got.may_run(),
                    &matches!(due, SpendVerdict::Spent | SpendVerdict::AlreadyMine | SpendVerdict::Holds),
                )?;
                agree(
                    PROMISE,
                    "whom it is for",
                    &approvals.is_for(id, call.subject(blocked)),
                    &reference.grants.get(&id).is_some_and(|grant| !grant.removed && grant.is_for(&call)),
                )?;
            }
            8 if !reference.grants.is_empty() => {
                let ids: Vec<GrantId> = reference.grants.keys().copied().collect();
                let id = *rng.pick(&ids);
                approvals.return_grant(id, owner);
                machine_trace.log(|| format!("{at}: {id:?} is given back"));
                if let Some(grant) =
                    reference.grants.get_mut(&id).filter(|grant| grant.spent_by == Some(owner))
                {
                    grant.spent_by = None;
                }
            }
            9 if rng.chance(40) => {
                let over: Vec<ParkedRequestId> = reference
                    .requests
                    .iter()
                    .filter(|(_, request)| !request.over && now >= request.expires)
                    .map(|(id, _)| *id)
                    .collect();
                agree(PROMISE, "what expires", &approvals.expire(now).len(), &over.len())?;
                over.iter()
                    .filter_map(|id| reference.requests.get_mut(id).map(|request| request.over = true))
                    .for_each(drop);
                reference
                    .grants
                    .values_mut()
                    .filter(|grant| now >= grant.expires)
                    .for_each(|grant| grant.removed = true);
            }
            9 if rng.chance(30) => {
                if let Some(session) = &call.session {
                    approvals.end_session(session);
                    let of_it = |grant: &&mut ReferenceGrant| {
                        grant.kind == GrantKind::Session && grant.call.session.as_ref() == Some(session)
                    };
                    reference.grants.values_mut().filter(of_it).for_each(|grant| grant.removed = true);
                }
            }
            _ => {}
        }
        compare(rng, &approvals, &reference, now)?;
    }
    Ok(())
}

fn decide(
    rng: &mut Rng,
    machine_trace: &mut MachineTrace,
    approvals: &mut ApprovalLedger,
    reference: &mut ReferenceApprovals,
    now: Timestamp,
) -> Result<(), InvariantViolation> {
    let ids: Vec<ParkedRequestId> = reference.requests.keys().copied().collect();
    let id = *rng.pick(&ids);
    let by = *rng.pick(&[Grantor::Client, Grantor::Operator]);
    let until = now + millis(rng.between(0, 2_000));
    let decision = *rng.pick(&[
        ApprovalDecision::Once,
        ApprovalDecision::Once,
        ApprovalDecision::Session,
        ApprovalDecision::Time { until },
        ApprovalDecision::Recover,
        ApprovalDecision::Deny,
    ]);
    let got = approvals.decide(id, decision, by, now);
    machine_trace.log(|| format!("{}: {by:?} decides {id:?} {decision:?}: {got:?}", now.as_millis()));
    let request = reference.requests.get_mut(&id).filter(|request| !request.over && now < request.expires);
    let Some(request) = request else {
        return agree(PROMISE, "a decision too late", &got, &Err(ApprovalDecisionError::Gone));
    };
    let kind = match decision {
        ApprovalDecision::Deny => {
            request.over = true;
            reference.denied.insert(id, now + millis(120_000));
            return agree(PROMISE, "a denial", &got, &Ok(DecisionEffect::Denied));
        }
        _ if request.blocked && by == Grantor::Client => {
            return agree(PROMISE, "a client that unblocks", &got, &Err(ApprovalDecisionError::OperatorOnly));
        }
        ApprovalDecision::Session | ApprovalDecision::Time { .. } | ApprovalDecision::Recover
            if request.blocked =>
        {
            return agree(
                PROMISE,
                "more than one call of a blocked tool",
                &got,
                &Err(ApprovalDecisionError::OnlyOnce),
            );
        }
        ApprovalDecision::Time { until } if until <= now => {
            return agree(PROMISE, "a grant that is over", &got, &Err(ApprovalDecisionError::EndsInThePast));
        }
        ApprovalDecision::Time { .. } => GrantKind::Time,
        ApprovalDecision::Session if request.call.session.is_some() => GrantKind::Session,
        ApprovalDecision::Session | ApprovalDecision::Once | ApprovalDecision::Recover => GrantKind::Once,
    };
    let Ok(DecisionEffect::Granted { grant, dropped: None }) = got else {
        return Err((PROMISE, format!("{decision:?} of {request:?} got {got:?}")));
    };
    request.over = true;
    let expires = if kind == GrantKind::Time { until } else { now + millis(DAY) };
    let given = ReferenceGrant {
        call: request.call.clone(),
        kind,
        by,
        blocked: request.blocked,
        expires,
        spent_by: None,
        removed: false,
    };
    if reference.grants.insert(grant, given).is_some()
        || reference.requests.contains_key(&ParkedRequestId(grant.0))
    {
        return Err((PROMISE, format!("number {grant:?} is given twice")));
    }
    Ok(())
}

fn compare(
    rng: &mut Rng,
    approvals: &ApprovalLedger,
    reference: &ReferenceApprovals,
    now: Timestamp,
) -> Result<(), InvariantViolation> {
    let (call, blocked) = (ReferenceApprovalCall::draw(rng), rng.chance(30));
    let due = reference.grant_for(&call, blocked, now);
    agree(PROMISE, "a grant that fits", &approvals.grant_for(call.subject(blocked), now), &due)?;
    for id in reference.requests.keys() {
        let due = reference.answer(*id, &call, blocked, now);
        agree(PROMISE, "the answer", &approvals.answer(*id, call.subject(blocked), now), &due)?;
    }
    let open = reference.requests.iter().filter(|(_, request)| !request.over && now < request.expires);
    let due: Vec<_> = open
        .map(|(id, request)| {
            (
                *id,
                request.request_count,
                request.first,
                request.last,
                request.expires,
                request.blocked,
                request.call.session.clone(),
                request.call.signature.clone(),
            )
        })
        .collect();
    let got: Vec<_> = approvals
        .parked(now)
        .map(|(id, parked)| {
            (
                id,
                parked.request_count,
                parked.first_requested,
                parked.last_requested,
                parked.expires,
                parked.blocked,
                parked.session.clone(),
                parked.signature.clone(),
            )
        })
        .collect();
    agree(PROMISE, "what waits", &got, &due)?;
    let holding = reference.grants.iter().filter(|(_, grant)| !grant.removed && now < grant.expires);
    let due: Vec<_> = holding
        .map(|(id, grant)| (*id, grant.kind, grant.by, grant.blocked, grant.expires, grant.spent_by))
        .collect();
    let kind = |fits: &GrantScope| match fits {
        GrantScope::Once { .. } => GrantKind::Once,
        GrantScope::Session { .. } => GrantKind::Session,
        GrantScope::Time { .. } => GrantKind::Time,
    };
    let got: Vec<_> = approvals
        .grants(now)
        .map(|(id, grant)| (id, kind(&grant.fits), grant.by, grant.blocked, grant.expires, grant.spent_by))
        .collect();
    agree(PROMISE, "what is granted", &got, &due)
}

/// Checks the path of a call to its approval, as D24 to D26 describe it.
fn plans(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    let policy = ApprovalPolicy {
        when: *rng.pick(&[ApprovalTrigger::Never, ApprovalTrigger::Escalated, ApprovalTrigger::Always]),
        timeout: millis(*rng.pick(&[0, 1_000])),
        dangerous: *rng.pick(&[DangerousCommandPolicy::Record, DangerousCommandPolicy::Ask]),
        ..ApprovalPolicy::default()
    };
    let standing = match rng.between(0, 2) {
        0 => TrustDecision::Allowed(TrustState::Trusted),
        1 => TrustDecision::NeedsApproval(prompt(false)),
        _ => TrustDecision::Blocked(prompt(true)),
    };
    let shape = *rng.pick(&[ArgumentRisk::Ordinary, ArgumentRisk::Dangerous]);
    let channel = *rng.pick(&[ApprovalChannel::Interactive, ApprovalChannel::Headless]);
    let grant = optional(rng, |_| GrantId(3));
    let now = Timestamp::from_millis(10_000);
    let deadline = optional(rng, |rng| now + millis(*rng.pick(&[0, 1, 500, 2_000])));
    let got =
        plan(ApprovalInput { standing: &standing, policy: &policy, shape, channel, grant, deadline }, now);
    let is_blocked = matches!(standing, TrustDecision::Blocked(_));
    let by_trust = match policy.when {
        ApprovalTrigger::Never => false,
        ApprovalTrigger::Escalated => matches!(standing, TrustDecision::NeedsApproval(_)),
        ApprovalTrigger::Always => true,
    };
    let needs_approval = is_blocked
        || by_trust
        || shape == ArgumentRisk::Dangerous && policy.dangerous == DangerousCommandPolicy::Ask;
    let waits = policy.timeout.min(deadline.map_or(policy.timeout, |deadline| deadline.since(now)));
    let due = match grant {
        _ if !needs_approval => ApprovalPlan::Go,
        Some(grant) => ApprovalPlan::Spend(grant),
        None if is_blocked => ApprovalPlan::RefuseBlocked,
        None if channel == ApprovalChannel::Headless || waits.is_zero() => ApprovalPlan::Park,
        None => ApprovalPlan::Ask { until: now + waits },
    };
    machine_trace.log(|| {
        format!(
            "{standing:?} under {policy:?}, {shape:?}, {channel:?}, {grant:?}, until {deadline:?}: {got:?}"
        )
    });
    agree(PROMISE, "the plan", &got, &due)
}

fn prompt(blocked: bool) -> Escalation {
    let mut prompt = Escalation::routine(&tool());
    prompt.state = if blocked { TrustState::Blocked } else { TrustState::Escalated };
    prompt
}
