//! Claims of an idempotency key: making one, waiting for the in-flight call, and continuing without the store.

use super::context::StepContext;
use super::grant::ApprovalNeed;
use super::messages;
use super::notice::{CallNotice, ShadowDecision};
use super::refusal::CallRefusal;
use super::request::{AttemptEndVisibility, Deduplication, UpstreamKey};
use super::state::{Call, State, StoreState};
use super::step::{NextStep, WakeReason};
use crate::Timestamp;
use crate::code::Code;
use crate::dedupe::{
    Claim, ClaimIntent, ClaimOwner, ClaimRole, ClaimVerdict, FoundRecords, LocalKnowledge, RenewVerdict,
    decide_claim,
};
use crate::key::RecordKey;
use crate::policy::{EnforcementMode, StoreFailurePolicy, ToolClass, UnknownOutcomePolicy};

/// Number of repeats of a claim without answer before the call treats the store as unavailable.
pub(super) const CLAIM_REPEATS: u32 = 2;

impl Call {
    /// Claims the key, or goes on if the call is not deduplicated.
    pub(super) fn claim_or_start(&mut self, role: ClaimRole, cx: &mut StepContext<'_, '_>) -> NextStep {
        if self.dedupe() == EnforcementMode::Off {
            self.report_withheld(cx.notices);
            return self.ask_or_start(cx);
        }
        self.claims += 1;
        self.state = State::Claiming { role, repeats: 0 };
        self.lease_from(cx.now);
        let at_once = self.policy.modes.trust != EnforcementMode::Enforce
            || matches!(self.need(cx), ApprovalNeed::NotNeeded);
        self.claim_step(ClaimIntent::Take { started: at_once }, role, cx.now)
    }

    /// Returns the step that asks the store to decide this claim.
    pub(super) fn claim_step(&self, intent: ClaimIntent, role: ClaimRole, now: Timestamp) -> NextStep {
        self.claim(intent, role, now).map_or(NextStep::Stay, |claim| NextStep::Claim(Box::new(claim)))
    }

    /// Returns the claim of this call, if it is deduplicated.
    pub(super) fn claim(&self, intent: ClaimIntent, role: ClaimRole, now: Timestamp) -> Option<Claim> {
        let request = &self.request;
        let mut rules = crate::dedupe::DedupeRules::from(&*self.policy);
        if request.hints.safety_critical {
            rules.after_unknown = UnknownOutcomePolicy::Hold;
        }
        rules.computed_since = match request.sent_key {
            UpstreamKey::Given => None,
            UpstreamKey::Run => request.computed_since,
        };
        let address = request.address()?;
        Some(Claim {
            // Shadow records are separate, so that they are never replayed to a call in enforce mode.
            address: if self.dedupe() == EnforcementMode::Shadow { address.shadowed() } else { address },
            intent,
            role,
            owner: self.owner(),
            digest: request.digest,
            retry_safe: self.retry_safe,
            best_effort: matches!(request.duplicates, Deduplication::Refused(_)),
            arrived: self.arrived,
            age: now.since(self.arrived),
            end_observed_within: match request.end {
                AttemptEndVisibility::Visible => {
                    Some(self.policy.time.total + self.policy.settling.child_stop_time())
                }
                AttemptEndVisibility::Hidden => None,
            },
            run: request.run.clone(),
            rules,
            tool: request.tool.clone(),
            request: request.id.clone(),
            tool_call: request.tool_call.clone(),
            context: request.context.clone(),
            session: request.session.clone(),
            actor: request.actor.clone(),
            tenant: request.tenant.clone(),
        })
    }

    /// Returns the owner token of the last claim.
    pub(super) fn owner(&self) -> ClaimOwner {
        ClaimOwner { process: self.request.process.clone(), call: self.request.number, claim: self.claims }
    }

    /// Continues with the store's verdict on a claim.
    pub(super) fn handle_claim_verdict(
        &mut self,
        verdict: ClaimVerdict,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        // A verdict that found an earlier call takes precedence over every reason against a run.
        match &verdict {
            ClaimVerdict::Acquired(_)
            | ClaimVerdict::Nothing
            | ClaimVerdict::Full
            | ClaimVerdict::StoreRecovering
            | ClaimVerdict::RecordsLost => {
                self.report_withheld(cx.notices);
            }
            ClaimVerdict::Follow(_)
            | ClaimVerdict::Busy
            | ClaimVerdict::Replay(_)
            | ClaimVerdict::Unknown(_)
            | ClaimVerdict::Conflict => {}
        }
        if self.dedupe() == EnforcementMode::Shadow
            && let Some(shadowed) = instead_of_a_run(&verdict)
        {
            self.arrival_check.take_withheld();
            self.shadow_report.send(shadowed, cx.notices);
            return self.ask_or_start(cx);
        }
        match verdict {
            ClaimVerdict::Acquired(record) => {
                if record.run != self.request.run {
                    cx.notices.push(CallNotice::TookOver);
                }
                self.claims_in_doubt.retain(|owner| *owner != record.owner);
                self.record = Some(record);
                self.store = StoreState::Available;
                self.ask_or_start(cx)
            }
            ClaimVerdict::Follow(record) => {
                cx.notices.push(CallNotice::Following);
                self.state = State::Following { record };
                NextStep::Follow(record)
            }
            ClaimVerdict::Replay(replay) => self.replay(*replay, cx),
            ClaimVerdict::Unknown(unsettled) if unsettled.receipt.owner == self.owner() => {
                self.claim_given_up(cx)
            }
            ClaimVerdict::Unknown(unsettled) => self.found_unknown(*unsettled, cx),
            ClaimVerdict::Busy => self.refuse_unclaimed(messages::in_flight(), cx),
            ClaimVerdict::Conflict => {
                cx.notices.push(CallNotice::KeyConflict);
                self.refuse_unclaimed(messages::conflict(), cx)
            }
            ClaimVerdict::Full => self.refuse_unclaimed(messages::store_full(), cx),
            ClaimVerdict::StoreRecovering => {
                self.refuse_unclaimed(messages::store_unavailable(&self.request), cx)
            }
            ClaimVerdict::RecordsLost => self.refuse_unclaimed(messages::records_lost(&self.request), cx),
            // A claim never gets this verdict, and a lookup is handled before.
            ClaimVerdict::Nothing => self.refuse_unclaimed(messages::store_unavailable(&self.request), cx),
        }
    }

    /// Ends a call whose own claim was answered too late: other callers already saw an unknown outcome for it. Nothing
    /// was sent under the claim, and nothing will be, because another caller may know that it has ended.
    fn claim_given_up(&mut self, cx: &mut StepContext<'_, '_>) -> NextStep {
        self.doubt_claim();
        let failure = messages::process_paused(&self.request);
        cx.notices.push(self.blocked(&failure, cx));
        let result = self.failed(failure, cx.now);
        let result = self.count_response(result, cx);
        self.finish(result, Vec::new(), cx)
    }

    /// Handles a claim that the store did not answer, or refused. A claim without answer is repeated under the same
    /// token.
    pub(super) fn claim_failed(
        &mut self,
        role: ClaimRole,
        repeats: u32,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        if repeats < CLAIM_REPEATS {
            self.state = State::Claiming { role, repeats: repeats + 1 };
            self.lease_from(cx.now);
            return self.claim_step(ClaimIntent::Take { started: false }, role, cx.now);
        }
        self.report_withheld(cx.notices);
        let would_continue = self.continues_without_store();
        if self.dedupe() == EnforcementMode::Shadow && !would_continue {
            self.shadow_report.send(ShadowDecision::Refused(Code::StoreUnavailable), cx.notices);
        }
        let continues = self.dedupe() == EnforcementMode::Shadow || would_continue;
        cx.notices.push(CallNotice::StoreFailed { continues });
        if continues {
            // The record that the store would have written, so that the result can be saved when the store is back.
            if let Some(claim) = self.claim(ClaimIntent::Take { started: true }, role, cx.now)
                && let ClaimVerdict::Acquired(record) =
                    decide_claim(&claim, FoundRecords::default(), &LocalKnowledge::default(), cx.now).verdict
            {
                self.claims_in_doubt.retain(|owner| *owner != record.owner);
                self.record = Some(record);
            }
            self.store = StoreState::Down;
            return self.ask_or_start(cx);
        }
        let failure = messages::store_unavailable(&self.request);
        cx.notices.push(self.blocked(&failure, cx));
        let result = self.failed(failure, cx.now);
        let result = self.count_response(result, cx);
        self.finish(result, Vec::new(), cx)
    }

    /// Returns true if the call runs although the store is unavailable.
    pub(super) fn continues_without_store(&self) -> bool {
        let dedupe = &self.policy.dedupe;
        if self.request.hints.safety_critical
            || (self.is_explicit() && dedupe.explicit_key_on_store_failure == StoreFailurePolicy::Refuse)
        {
            return false;
        }
        match self.policy.class {
            ToolClass::ReadOnly | ToolClass::Idempotent => true,
            ToolClass::Mutating => false,
            ToolClass::Unknown => dedupe.on_store_failure == StoreFailurePolicy::GoOn,
        }
    }

    /// Returns the time until which the call waits for the call in flight.
    pub(super) fn follow_until(&self) -> Timestamp {
        let time = &self.policy.time;
        let patience =
            self.patience().unwrap_or(time.total).min(self.request.limits.elapsed.unwrap_or(time.total));
        (self.arrived + patience).min(self.latest_start().unwrap_or(Timestamp::MAX))
    }

    /// Continues a call that waited for another one.
    pub(super) fn wake_follower(
        &mut self,
        record: RecordKey,
        wake: WakeReason,
        cx: &mut StepContext<'_, '_>,
    ) -> NextStep {
        match wake {
            WakeReason::LeaderRefused(failure) => {
                cx.notices.push(self.blocked(&failure, cx));
                let result = self.failed(*failure, cx.now);
                self.conclude(result, cx)
            }
            WakeReason::Time if cx.now >= self.follow_until() => {
                let failure =
                    if self.is_late(cx.now) { messages::deadline_passed() } else { messages::in_flight() };
                self.refuse_unclaimed(failure, cx)
            }
            WakeReason::Time | WakeReason::Changed => {
                let role = ClaimRole::Waiter { followed: record };
                // A reason against a run may still apply. The awaited result is used all the same.
                let may_refuse =
                    self.arrival_check.take_withheld().is_some() || self.arrival_check.is_refusal_deferred();
                let refusal = if may_refuse { self.refusal(cx) } else { None };
                // A refusal in shadow mode is only reported.
                match refusal.filter(|_| self.arrival_check.is_refusal_deferred()) {
                    Some(refusal) => {
                        self.state = State::Looking { refusal };
                        self.claim_step(ClaimIntent::Look, role, cx.now)
                    }
                    None => self.claim_or_start(role, cx),
                }
            }
        }
    }

    /// Handles a claim that was lost before anything was sent.
    pub(super) fn handle_lost_claim(&mut self, cx: &mut StepContext<'_, '_>) -> NextStep {
        match self.store {
            // Other callers saw an unknown outcome and may act on it, so the call must not run now. Releasing the claim
            // lets them call again at once.
            StoreState::MarkedUnknown => {
                self.refuse(CallRefusal::by_steadfast(messages::process_paused(&self.request)), cx)
            }
            StoreState::FenceLost | StoreState::Available | StoreState::Down => self.look_again(cx.now),
        }
    }

    /// Looks up the record again, as a waiter would.
    pub(super) fn look_again(&mut self, now: Timestamp) -> NextStep {
        let followed = self
            .record
            .take()
            .map(|record| record.key)
            .or(self.request.address().map(|address| address.own()));
        let Some(followed) = followed else { return NextStep::Stay };
        self.claims += 1;
        let role = ClaimRole::Waiter { followed };
        self.state = State::Claiming { role, repeats: 0 };
        self.lease_from(now);
        self.claim_step(ClaimIntent::Take { started: false }, role, now)
    }

    /// Starts the lease when the claim is sent: if the claim succeeds, its lease may have begun at once, however long
    /// the answer takes.
    fn lease_from(&mut self, now: Timestamp) {
        self.lease_until = now + self.policy.dedupe.keep.lease;
    }

    /// Records the verdict on a renewal of the lease.
    pub(super) fn renewed(&mut self, verdict: RenewVerdict, sent: Timestamp, notices: &mut Vec<CallNotice>) {
        match verdict {
            // A renewal that was overtaken by a later one does not shorten the lease that the later one gained.
            RenewVerdict::Renewed => {
                self.lease_until = self.lease_until.max(sent + self.policy.dedupe.keep.lease);
            }
            // A shadow record blocks nothing.
            RenewVerdict::MarkedUnknown | RenewVerdict::Lost if self.dedupe() == EnforcementMode::Shadow => {
                self.record = None
            }
            RenewVerdict::MarkedUnknown => self.store = StoreState::MarkedUnknown,
            RenewVerdict::Lost => {
                if self.store == StoreState::Available {
                    notices.push(CallNotice::FenceLost);
                }
                self.store = StoreState::FenceLost;
            }
        }
    }
}

/// Returns the decision that an enforced claim would have led to instead of a run.
fn instead_of_a_run(verdict: &ClaimVerdict) -> Option<ShadowDecision> {
    match verdict {
        ClaimVerdict::Acquired(_) => None,
        ClaimVerdict::Follow(_) | ClaimVerdict::Replay(_) | ClaimVerdict::Unknown(_) => {
            Some(ShadowDecision::Duplicate)
        }
        ClaimVerdict::Busy => Some(ShadowDecision::Refused(Code::InFlight)),
        ClaimVerdict::Conflict => Some(ShadowDecision::Refused(Code::IdempotencyConflict)),
        ClaimVerdict::Full => Some(ShadowDecision::Refused(Code::Overloaded)),
        ClaimVerdict::StoreRecovering | ClaimVerdict::RecordsLost | ClaimVerdict::Nothing => {
            Some(ShadowDecision::Refused(Code::StoreUnavailable))
        }
    }
}
