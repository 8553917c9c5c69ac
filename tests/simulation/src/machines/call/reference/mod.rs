//! The next step of a call, derived from the path of a call in ARCHITECTURE.md and from the decisions in the design.
//!
//! The machines that calls share are a second copy of the core's own. The reference decides what a call reports to
//! them. Afterwards they have to equal those that the call itself was lent.

mod attempts;
mod claims;
mod departure;
mod ends;
mod unknown;

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::approval::{self, ApprovalInput, ApprovalLedger, ApprovalPlan, ArgumentRisk, GrantId};
use steadfast_core::breaker::{
    self, BreakerTicket, BreakerTransition, BreakerVerdict, CircuitBreaker, TicketRenewal,
};
use steadfast_core::call::{
    ApprovalOutcome, AttemptEndVisibility, AttemptReport, BreakerScope, CallEvent, CallNotice, CallRequest,
    CallerPatience, CutReason, Deduplication, FailedAttempt, OtherWaiters, RecordStatus, RunnerKind,
    StoreFault, UnknownOutcomeInfo, UpstreamKey, UpstreamSignal, WakeReason,
};
use steadfast_core::classify::{
    AttemptFault, AttemptReach, Classification, FaultNature, FaultSource, ModelMistake, Severity, classify,
};
use steadfast_core::code::Code;
use steadfast_core::dedupe::{
    Claim, ClaimIntent, ClaimOwner, ClaimRole, ClaimVerdict, DedupeRecord, DedupeRules, DeliveryReceipt,
    FoundRecords, LocalKnowledge, RecordAddress, ReleaseRequest, RenewVerdict, ReplayReason, SaveVerdict,
    SettleDelay, SettleStatus, StartVerdict, UnknownOutcomeReason, UnknownOutcomeStatus, decide_claim,
};
use steadfast_core::guard::{GuardLayer, GuardedCall, GuardedResult, LoopGuard};
use steadfast_core::key::RecordKey;
use steadfast_core::limit::{LimitError, Limiter};
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{
    AmbiguousOutcomePolicy, ApprovalTrigger, ArgumentCheck, CallPolicy, DangerousCommandPolicy,
    EnforcementMode, FailureReplayPolicy, SilencePolicy, StoreFailurePolicy, ToolClass, UnknownOutcomePolicy,
};
use steadfast_core::retry::{RetryBudget, RetrySchedule, RetryStop};
use steadfast_core::trust::{FinishedOutcome, TrustDecision, TrustLedger, TrustSubject};
use steadfast_core::watchdog::{self, Watchdog};

use crate::transition::approval_subject;

/// The machines that a call shares with others.
#[derive(Clone, Debug)]
pub(super) struct ReferenceMachines {
    pub(super) breaker: CircuitBreaker,
    pub(super) dependency: Option<CircuitBreaker>,
    pub(super) budget: RetryBudget,
    pub(super) limiter: Limiter,
    pub(super) dependency_limiter: Limiter,
    pub(super) guard: LoopGuard,
    pub(super) trust: TrustLedger,
    pub(super) approvals: ApprovalLedger,
}

/// The expected step.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ExpectedStep {
    Claim(Box<Claim>),
    Follow(RecordKey),
    AwaitEnd(RecordKey),
    Ask { operator_only: bool, until: Timestamp },
    Spend(GrantId, ClaimOwner),
    Start(RecordKey, ClaimOwner),
    Probe(BreakerScope),
    Renew,
    Run { attempt: u32, deadline: Option<Timestamp>, run: String },
    Cut(CutReason),
    Wait,
    Save(ExpectedSave),
    Release(ReleaseRequest),
    Answer(ExpectedResponse, UpstreamSignal),
    CancelUpstream,
    Stay,
    Finish(ExpectedResponse, Vec<ExpectedFollowUp>),
}

/// The expected save, and its claim.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ExpectedSave {
    pub(super) owner: ClaimOwner,
    pub(super) key: RecordKey,
    pub(super) started: bool,
    pub(super) ending: ExpectedEnding,
    /// The attempts in the record: number, start, end, the code of a failure, and whether it is transient.
    pub(super) attempts: Vec<(u32, Timestamp, Timestamp, Option<Code>, bool)>,
    pub(super) hold: bool,
}

/// The end that a record gets.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ExpectedEnding {
    Done(Option<ToolOutput>),
    Failed(ExpectedFailure),
    Unknown(SettleDelay, UnknownOutcomeReason, Option<ToolOutput>),
}

/// The work that is left after the end of a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ExpectedFollowUp {
    Save(ExpectedSave),
    Park { operator_only: bool },
    Release(ReleaseRequest),
    GiveBack(GrantId, ClaimOwner),
}

/// A failure without its texts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ExpectedFailure {
    pub(super) code: Code,
    pub(super) rule: Option<String>,
    pub(super) retriable: bool,
    pub(super) retry_after: Option<Duration>,
}

/// A response without its texts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ExpectedResponse {
    pub(super) outcome: Result<Option<ToolOutput>, ExpectedFailure>,
    pub(super) input_required: bool,
    pub(super) replayed: Option<ReplayReason>,
    pub(super) attempts: u32,
    /// Each retry: number of the failed attempt, its duration, and the wait after it.
    pub(super) retries: Vec<(u32, Duration, Duration)>,
    pub(super) took: Duration,
    pub(super) recorded: RecordStatus,
    pub(super) receipt: Option<DeliveryReceipt>,
    pub(super) remarks: usize,
    pub(super) breaker: Option<breaker::State>,
    pub(super) unknown: Option<UnknownOutcomeInfo>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum CallerPresence {
    Waiting,
    Gone,
    GaveUp,
}

/// The relation between the call and its record.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ClaimCondition {
    Fine,
    Down,
    MarkedUnknown,
    Lost,
}

#[derive(Debug)]
struct ReferenceAttempt {
    number: u32,
    started: Timestamp,
    watchdog: Watchdog,
    tickets: ReferenceTickets,
    cut: Option<CutReason>,
}

#[derive(Debug, Default)]
struct ReferenceTickets {
    tool: Option<BreakerTicket>,
    dependency: Option<BreakerTicket>,
    has_places: bool,
}

#[derive(Debug)]
enum ReferenceCallState {
    Looking(ExpectedRefusal),
    Claiming(ClaimRole, u32),
    Following(RecordKey),
    AwaitingEnd(RecordKey, Timestamp),
    AwaitingApproval { operator_only: bool, until: Timestamp },
    GivingBack,
    Spending,
    Starting,
    Probing(BreakerScope, ReferenceTickets),
    Attempting(ReferenceAttempt),
    BackingOff(Timestamp),
    Renewing,
    Marking(ReferenceSettling),
    Settling(ReferenceSettling),
    Saving(ExpectedResponse, ExpectedEnding),
    Releasing(ExpectedResponse, Vec<ExpectedFollowUp>),
    Finished,
}

/// An unknown outcome.
#[derive(Debug)]
struct ReferenceSettling {
    attempt: Option<ReferenceAttempt>,
    observed: UnknownOutcomeReason,
    output: Option<ToolOutput>,
    severity: Option<Severity>,
    /// The code and the rule with which it is reported.
    code: Code,
    rule: String,
    settles: SettleDelay,
    by: Option<Timestamp>,
    cancel: bool,
    receipt: Option<DeliveryReceipt>,
    /// Before this time the tool may still say that it was never reached.
    proof_expected_until: Option<Timestamp>,
    unsaved: bool,
    save_at: Option<Timestamp>,
}

#[derive(Clone, Debug)]
struct ExpectedRefusal {
    failed: ExpectedFailure,
    breaker: Option<breaker::State>,
    by: RefusalSource,
}

#[derive(Clone, Copy, Debug)]
enum RefusalSource {
    Us,
    Guard(GuardLayer),
    Trust { operator_only: bool },
}

enum ReferenceApprovalNeed {
    NotNeeded,
    Spend(GrantId),
    Ask { operator_only: bool, until: Timestamp },
    Refuse { operator_only: bool },
}

/// The reference of one call.
#[derive(Debug)]
pub(super) struct ReferenceCall {
    pub(super) machines: ReferenceMachines,
    pub(super) notices: Vec<CallNotice>,
    request: CallRequest,
    policy: Arc<CallPolicy>,
    seed: u64,
    arrived: Timestamp,
    now: Timestamp,
    claims: u32,
    doubts: Vec<ClaimOwner>,
    record: Option<DedupeRecord>,
    sight: ClaimCondition,
    lease_until: Timestamp,
    spent: Option<(GrantId, ClaimOwner)>,
    approved_blocked: bool,
    schedule: Option<RetrySchedule>,
    first: Option<Timestamp>,
    settling_since: Option<Timestamp>,
    attempts: u32,
    facts: Vec<(u32, Timestamp, Timestamp, Option<Code>, bool)>,
    retries: Vec<(u32, Duration, Duration)>,
    last: Option<(Classification, ExpectedFailure)>,
    caller: CallerPresence,
    is_entered: bool,
    is_judged: bool,
    delayed: bool,
    state: ReferenceCallState,
}

fn failed(code: Code, rule: &str, retriable: bool) -> ExpectedFailure {
    ExpectedFailure { code, rule: Some(rule.to_owned()), retriable, retry_after: None }
}

impl ReferenceCall {
    pub(super) fn begin(
        machines: ReferenceMachines,
        request: CallRequest,
        policy: Arc<CallPolicy>,
        seed: u64,
        now: Timestamp,
    ) -> (Self, ExpectedStep) {
        let mut call = Self {
            machines,
            notices: vec![CallNotice::CallStarted { at: now }],
            request,
            policy,
            seed,
            arrived: now,
            now,
            claims: 0,
            doubts: Vec::new(),
            record: None,
            sight: ClaimCondition::Fine,
            lease_until: now,
            spent: None,
            approved_blocked: false,
            schedule: None,
            first: None,
            settling_since: None,
            attempts: 0,
            facts: Vec::new(),
            retries: Vec::new(),
            last: None,
            caller: CallerPresence::Waiting,
            is_entered: false,
            is_judged: false,
            delayed: false,
            state: ReferenceCallState::Finished,
        };
        let due = match call.refusal() {
            Some(refusal) if call.dedupes() => {
                call.state = ReferenceCallState::Looking(refusal);
                ExpectedStep::Claim(Box::new(call.claim(ClaimIntent::Look, ClaimRole::Fresh)))
            }
            Some(refusal) => call.refuse(refusal),
            None => {
                call.enter();
                call.claim_or_start(ClaimRole::Fresh)
            }
        };
        (call, due)
    }

    /// Returns the step that follows from an event.
    pub(super) fn on(&mut self, event: &CallEvent, now: Timestamp) -> ExpectedStep {
        self.now = now;
        let state = std::mem::replace(&mut self.state, ReferenceCallState::Finished);
        match (state, event) {
            (state, CallEvent::Cancelled(others)) => self.cancelled(state, *others),
            (state, CallEvent::Disconnected(others)) => self.disconnected(state, *others),
            (ReferenceCallState::Renewing, CallEvent::Renewed { owner, sent, verdict })
                if self.owns(owner) =>
            {
                self.renewed(*verdict, *sent);
                self.attempt()
            }
            (state, CallEvent::Renewed { owner, sent, verdict }) => {
                let ends = matches!(
                    state,
                    ReferenceCallState::Saving(..)
                        | ReferenceCallState::Releasing(..)
                        | ReferenceCallState::Marking(_)
                        | ReferenceCallState::Settling(_)
                );
                if self.owns(owner) && !ends {
                    self.renewed(*verdict, *sent);
                }
                self.no_change(state)
            }
            (ReferenceCallState::Looking(refusal), CallEvent::Claimed(verdict)) => match verdict {
                ClaimVerdict::Nothing
                | ClaimVerdict::Acquired(_)
                | ClaimVerdict::Full
                | ClaimVerdict::StoreRecovering
                | ClaimVerdict::RecordsLost => self.refuse(refusal),
                found => {
                    self.delayed = true;
                    self.enter();
                    self.found(found)
                }
            },
            (ReferenceCallState::Looking(refusal), CallEvent::StoreFailed(_)) => {
                if self.is_explicit() {
                    self.notices.push(CallNotice::StoreFailed { continues: false });
                }
                self.sight = ClaimCondition::Down;
                self.refuse(refusal)
            }
            (ReferenceCallState::Claiming(..), CallEvent::Claimed(verdict)) => self.found(verdict),
            (ReferenceCallState::Claiming(role, repeats), CallEvent::StoreFailed(fault)) => {
                if *fault == StoreFault::Unanswered {
                    self.doubt();
                }
                self.claim_failed(role, repeats)
            }
            (ReferenceCallState::Following(key), CallEvent::Woke(wake)) => self.woke(key, wake),
            (ReferenceCallState::AwaitingEnd(key, _), CallEvent::Woke(wake)) => {
                let wake = if matches!(wake, WakeReason::Time) { &WakeReason::Changed } else { wake };
                self.woke(key, wake)
            }
            (ReferenceCallState::AwaitingApproval { operator_only, .. }, CallEvent::Answered(answer)) => {
                self.answered(operator_only, answer)
            }
            (ReferenceCallState::AwaitingApproval { operator_only, until }, CallEvent::Woke(_))
                if now >= until =>
            {
                self.answered(operator_only, &ApprovalOutcome::Unreachable)
            }
            (ReferenceCallState::GivingBack, CallEvent::Released) => self.claim_or_start(ClaimRole::Fresh),
            (ReferenceCallState::GivingBack, CallEvent::StoreFailed(_)) => {
                self.notices.push(CallNotice::StoreFailed { continues: false });
                let response = self.response(Err(store_unavailable()));
                let response = self.judge(response, None);
                self.doubt();
                self.finish(response, Vec::new())
            }
            (ReferenceCallState::Spending, CallEvent::Spent(spend)) if spend.may_run() => {
                self.start_or_attempt()
            }
            (ReferenceCallState::Spending, CallEvent::Spent(_)) => {
                self.spent = None;
                match self.need() {
                    ReferenceApprovalNeed::Ask { operator_only, until } => self.ask(operator_only, until),
                    ReferenceApprovalNeed::Refuse { operator_only } => {
                        self.refuse(not_approved(operator_only))
                    }
                    ReferenceApprovalNeed::Spend(_) | ReferenceApprovalNeed::NotNeeded => {
                        self.refuse(by_steadfast(approval_lost()))
                    }
                }
            }
            (ReferenceCallState::Starting, CallEvent::Started(StartVerdict::Started)) => {
                let since = now.since(self.arrived);
                if let Some(record) = &mut self.record {
                    record.started = true;
                    record.end_observed_by = record.end_observed_by.map(|by| by + since);
                }
                self.attempt()
            }
            (ReferenceCallState::Starting, CallEvent::Started(StartVerdict::Lost)) => self.look_again(),
            (ReferenceCallState::Starting, CallEvent::StoreFailed(_)) if self.continues() => {
                self.notices.push(CallNotice::StoreFailed { continues: true });
                self.sight = ClaimCondition::Down;
                self.attempt()
            }
            (ReferenceCallState::Spending | ReferenceCallState::Starting, CallEvent::StoreFailed(_)) => {
                self.notices.push(CallNotice::StoreFailed { continues: false });
                self.refuse(by_steadfast(store_unavailable()))
            }
            (ReferenceCallState::Probing(scope, tickets), CallEvent::Probed) => {
                match scope {
                    BreakerScope::Tool => {
                        tickets.tool.iter().for_each(|ticket| self.machines.breaker.confirm_probe(ticket));
                    }
                    BreakerScope::Dependency => {
                        if let (Some(ticket), Some(breaker)) =
                            (&tickets.dependency, &mut self.machines.dependency)
                        {
                            breaker.confirm_probe(ticket);
                        }
                    }
                }
                self.probed(scope, tickets)
            }
            (ReferenceCallState::Probing(scope, tickets), CallEvent::StoreFailed(_)) => {
                self.probed(scope, tickets)
            }
            (ReferenceCallState::Attempting(attempt), CallEvent::Ran(outcome)) => self.ran(attempt, outcome),
            (ReferenceCallState::Attempting(attempt), CallEvent::Progressed) => self.progressed(attempt),
            (ReferenceCallState::Attempting(attempt), CallEvent::Woke(_)) => self.time_is_up(attempt),
            (ReferenceCallState::BackingOff(until), CallEvent::Woke(_)) if now >= until => self.attempt(),
            (ReferenceCallState::Renewing, CallEvent::StoreFailed(_)) => {
                self.notices.push(CallNotice::StoreFailed { continues: false });
                self.give_up()
            }
            (ReferenceCallState::Marking(mut settling), CallEvent::Saved(verdict)) => {
                match verdict {
                    SaveVerdict::Saved(receipt) => {
                        (settling.unsaved, settling.receipt) = (false, Some(receipt.clone()));
                        settling.by = by(settling.settles, now);
                    }
                    SaveVerdict::FenceLost => {
                        self.fence_is_lost();
                        (settling.unsaved, settling.receipt) = (false, None);
                    }
                }
                self.marked(settling)
            }
            (ReferenceCallState::Marking(settling), CallEvent::StoreFailed(_)) => {
                self.notices.push(CallNotice::StoreFailed { continues: true });
                let save_at = Some(now + Duration::from_secs(1));
                self.marked(ReferenceSettling { unsaved: true, save_at, ..settling })
            }
            (ReferenceCallState::Settling(settling), CallEvent::Ran(outcome)) => {
                self.ran_late(settling, outcome)
            }
            (ReferenceCallState::Settling(settling), CallEvent::Settled) => self.end_observed(settling),
            (ReferenceCallState::Settling(settling), CallEvent::Woke(_)) => self.marked(settling),
            (ReferenceCallState::Settling(settling), CallEvent::DriverEnds) => self.close(settling),
            (ReferenceCallState::Saving(response, _), CallEvent::Saved(verdict)) => {
                let (recorded, receipt) = match verdict {
                    SaveVerdict::Saved(receipt) => (RecordStatus::Yes, Some(receipt.clone())),
                    SaveVerdict::FenceLost => {
                        if self.sight == ClaimCondition::Fine {
                            self.notices.push(CallNotice::FenceLost);
                        }
                        (RecordStatus::No, None)
                    }
                };
                self.finish(ExpectedResponse { recorded, receipt, ..response }, Vec::new())
            }
            (ReferenceCallState::Saving(response, ending), CallEvent::StoreFailed(_)) => {
                self.notices.push(CallNotice::StoreFailed { continues: true });
                let follow_ups = self.saved(ending).map(ExpectedFollowUp::Save).into_iter().collect();
                self.finish(
                    ExpectedResponse { recorded: RecordStatus::No, receipt: None, ..response },
                    follow_ups,
                )
            }
            (ReferenceCallState::Releasing(response, follow_ups), CallEvent::Released) => {
                self.finish(response, follow_ups)
            }
            (ReferenceCallState::Releasing(response, mut follow_ups), CallEvent::StoreFailed(_)) => {
                follow_ups.extend(self.release_of_claim().map(ExpectedFollowUp::Release));
                self.finish(response, follow_ups)
            }
            (state, _) => self.no_change(state),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, ReferenceCallState::Finished)
    }

    /// Returns the time at which the call has to be woken.
    pub(super) fn wakes_at(&self) -> Option<Timestamp> {
        match &self.state {
            ReferenceCallState::Following(_) => Some(self.follows_until()),
            ReferenceCallState::AwaitingApproval { until, .. } | ReferenceCallState::BackingOff(until) => {
                Some(*until)
            }
            ReferenceCallState::AwaitingEnd(_, look_at) => Some(*look_at),
            ReferenceCallState::Attempting(attempt) if attempt.cut.is_none() => {
                let waits = |at: Option<Timestamp>| at.filter(|_| self.is_waited_for());
                let limits = [waits(self.request.limits.deadline), waits(self.answers_by())];
                limits.into_iter().flatten().chain([attempt.watchdog.due()]).min()
            }
            ReferenceCallState::Settling(settling) => self.settling_wakes_at(settling),
            _ => None,
        }
    }

    /// Returns the claim that is renewed while the call is open.
    pub(super) fn renews(&self) -> Option<&DedupeRecord> {
        let ends = matches!(
            self.state,
            ReferenceCallState::Saving(..)
                | ReferenceCallState::Releasing(..)
                | ReferenceCallState::Marking(_)
                | ReferenceCallState::Settling(_)
        );
        self.record.as_ref().filter(|_| self.sight == ClaimCondition::Fine && !ends)
    }

    pub(super) fn awaits_end(&self) -> bool {
        matches!(&self.state, ReferenceCallState::Settling(settling) if settling.by.is_none() && self.request.end == AttemptEndVisibility::Visible)
    }

    // ---- queries ----

    fn dedupes(&self) -> bool {
        self.policy.modes.dedupe == EnforcementMode::Enforce
            && self.request.duplicates != Deduplication::Allowed
    }

    fn address(&self) -> Option<RecordAddress> {
        match self.request.duplicates {
            Deduplication::Allowed => None,
            Deduplication::Joined(address) | Deduplication::Refused(address) => Some(address),
        }
    }

    fn is_explicit(&self) -> bool {
        matches!(self.address(), Some(RecordAddress::Explicit(_)))
    }

    fn is_waited_for(&self) -> bool {
        self.caller == CallerPresence::Waiting
    }

    fn owns(&self, owner: &ClaimOwner) -> bool {
        self.record.as_ref().is_some_and(|record| record.owner == *owner)
    }

    fn owner(&self) -> ClaimOwner {
        ClaimOwner { process: self.request.process.clone(), call: self.request.number, claim: self.claims }
    }

    fn doubt(&mut self) {
        let owner = self.owner();
        if !self.doubts.contains(&owner) {
            self.doubts.push(owner);
        }
    }

    fn retry_safe(&self) -> bool {
        let repeat = &self.policy.repeat;
        let vouched = repeat.retry_safe || repeat.honours_key && self.request.sent_key == UpstreamKey::Given;
        match self.policy.class {
            ToolClass::ReadOnly | ToolClass::Idempotent => true,
            ToolClass::Mutating => vouched,
            ToolClass::Unknown => {
                vouched
                    || self.request.hints.expected_retry_safe
                    || repeat.ambiguous == AmbiguousOutcomePolicy::Retry
            }
        }
    }

    /// Returns true if it continues when the store cannot be asked (D17).
    fn continues(&self) -> bool {
        let dedupe = &self.policy.dedupe;
        let refuses_key =
            self.is_explicit() && dedupe.explicit_key_on_store_failure == StoreFailurePolicy::Refuse;
        !self.request.hints.safety_critical
            && !refuses_key
            && match self.policy.class {
                ToolClass::ReadOnly | ToolClass::Idempotent => true,
                ToolClass::Mutating => false,
                ToolClass::Unknown => dedupe.on_store_failure == StoreFailurePolicy::GoOn,
            }
    }

    /// Returns true if an unknown outcome is held until an operator resolves it.
    fn holds(&self) -> bool {
        self.request.hints.safety_critical || self.policy.dedupe.after_unknown == UnknownOutcomePolicy::Hold
    }

    fn latest_start(&self) -> Option<Timestamp> {
        [self.request.limits.deadline, self.request.limits.start_by].into_iter().flatten().min()
    }

    fn is_late(&self) -> bool {
        self.latest_start().is_some_and(|latest| self.now >= latest)
    }

    fn patience(&self) -> Option<Duration> {
        self.policy.time.answer_by.filter(|_| self.request.waits == CallerPatience::MayGiveUp)
    }

    fn follows_until(&self) -> Timestamp {
        let total = self.policy.time.total;
        let spans = [self.patience().unwrap_or(total), self.request.limits.elapsed.unwrap_or(total)];
        let until = spans.into_iter().min().map_or(self.arrived, |span| self.arrived + span);
        self.latest_start().map_or(until, |latest| until.min(latest))
    }

    /// Returns the time until which its caller waits for the end of a run.
    fn waits_until(&self) -> Timestamp {
        let spans = [Some(self.policy.dedupe.late_after), self.patience(), self.request.limits.elapsed];
        let until = spans.into_iter().flatten().min().map_or(self.arrived, |span| self.arrived + span);
        self.latest_start().map_or(until, |latest| until.min(latest))
    }

    fn can_wait(&self, end: SettleStatus) -> bool {
        match end {
            SettleStatus::Settled => true,
            SettleStatus::NotYet(Some(left)) => self.now + left <= self.waits_until(),
            SettleStatus::NotYet(None) => self.now < self.waits_until(),
        }
    }

    /// Returns the time at which its caller learns that the call is still running.
    fn answers_by(&self) -> Option<Timestamp> {
        let is_found_again = self.dedupes() && self.record.is_some();
        self.patience().filter(|_| is_found_again).map(|span| self.arrived + span)
    }

    fn may_be_cut(&self) -> bool {
        self.retry_safe() || self.record.is_none() || !self.dedupes()
    }

    fn standing(&self) -> TrustDecision {
        let rules = steadfast_core::trust::TrustRules {
            signature: &self.policy.trust,
            domain: self.policy.domain_trust.as_ref(),
        };
        let subject = TrustSubject {
            tool: &self.request.tool,
            signature: &self.request.signature,
            domain: self.request.domain.as_ref(),
        };
        self.machines.trust.check(rules, subject, self.now)
    }

    fn need(&self) -> ReferenceApprovalNeed {
        let standing = self.standing();
        let operator_only = matches!(standing, TrustDecision::Blocked(_));
        let is_dangerous = self.request.danger.is_some();
        if matches!(standing, TrustDecision::Allowed(_))
            && self.policy.approval.when != ApprovalTrigger::Always
            && !is_dangerous
        {
            return ReferenceApprovalNeed::NotNeeded;
        }
        let situation = ApprovalInput {
            standing: &standing,
            policy: &self.policy.approval,
            shape: if is_dangerous { ArgumentRisk::Dangerous } else { ArgumentRisk::Ordinary },
            channel: self.request.channel,
            grant: self
                .machines
                .approvals
                .grant_for(approval_subject(&self.request, operator_only), self.now),
            deadline: self.latest_start(),
        };
        match approval::plan(situation, self.now) {
            ApprovalPlan::Go => ReferenceApprovalNeed::NotNeeded,
            ApprovalPlan::Spend(grant) => ReferenceApprovalNeed::Spend(grant),
            ApprovalPlan::Ask { until } => ReferenceApprovalNeed::Ask { operator_only, until },
            ApprovalPlan::Park | ApprovalPlan::RefuseBlocked => {
                ReferenceApprovalNeed::Refuse { operator_only }
            }
        }
    }
}

/// The reason for making no further attempt.
#[derive(Clone, Copy)]
enum NoRetryReason {
    NotAsked,
    Schedule(RetryStop),
    Breaker(breaker::BreakerRefusal),
}

fn is_probe(ticket: &Option<BreakerTicket>) -> bool {
    ticket.as_ref().is_some_and(BreakerTicket::is_probe)
}

fn is_session_lost(fault: &AttemptFault) -> bool {
    fault.source == FaultSource::SessionLost || steadfast_core::classify::is_session_lost(fault)
}

fn changed(scope: BreakerScope, change: Option<BreakerTransition>) -> Option<CallNotice> {
    change.map(|transition| CallNotice::BreakerChanged { scope, transition })
}

fn by(settles: SettleDelay, now: Timestamp) -> Option<Timestamp> {
    match settles {
        SettleDelay::WhenOwnerReports => None,
        SettleDelay::After(span) => Some(now + span),
        SettleDelay::Settled => Some(now),
    }
}

fn left(by: Option<Timestamp>, now: Timestamp) -> SettleDelay {
    match by {
        None => SettleDelay::WhenOwnerReports,
        Some(by) if by <= now => SettleDelay::Settled,
        Some(by) => SettleDelay::After(by.since(now)),
    }
}

fn end(by: Option<Timestamp>, now: Timestamp) -> SettleStatus {
    match by {
        Some(by) if by <= now => SettleStatus::Settled,
        by => SettleStatus::NotYet(by.map(|by| by.since(now))),
    }
}

fn proof_expected_until(settling: &ReferenceSettling) -> Option<Timestamp> {
    settling.proof_expected_until.filter(|_| settling.attempt.is_some())
}

fn observed(source: &FaultSource) -> UnknownOutcomeReason {
    use steadfast_core::classify::TransportError;
    match source {
        FaultSource::Timeout { .. } | FaultSource::Transport { error: TransportError::TimedOut, .. } => {
            UnknownOutcomeReason::NoAnswer
        }
        FaultSource::Transport { .. } | FaultSource::WebSocket { .. } => UnknownOutcomeReason::ConnectionLost,
        FaultSource::Exit { .. } => UnknownOutcomeReason::ProcessDied,
        _ => UnknownOutcomeReason::ErrorAnswer,
    }
}

pub(super) fn of_failure(failure: &steadfast_core::dedupe::CallFailure) -> ExpectedFailure {
    ExpectedFailure {
        code: failure.code,
        rule: failure.rule.as_ref().map(ToString::to_string),
        retriable: failure.retriable,
        retry_after: failure.retry_after,
    }
}

fn by_steadfast(failed: ExpectedFailure) -> ExpectedRefusal {
    ExpectedRefusal { failed, breaker: None, by: RefusalSource::Us }
}

fn not_approved(operator_only: bool) -> ExpectedRefusal {
    let failed = match operator_only {
        true => failed(Code::ToolBlocked, "trust.blocked", false),
        false => failed(Code::ApprovalRequired, "trust.escalated", false),
    };
    ExpectedRefusal { failed, breaker: None, by: RefusalSource::Trust { operator_only } }
}

fn approval_lost() -> ExpectedFailure {
    failed(Code::ApprovalRequired, "approval", false)
}

fn store_unavailable() -> ExpectedFailure {
    failed(Code::StoreUnavailable, "store", true)
}

fn deadline_passed() -> ExpectedFailure {
    failed(Code::DeadlineExceeded, "deadline", false)
}

fn in_flight() -> ExpectedFailure {
    failed(Code::InFlight, "in_flight", true)
}

fn cancelled() -> ExpectedFailure {
    ExpectedFailure { code: Code::Cancelled, rule: None, retriable: false, retry_after: None }
}
