//! The table of the state machine: every state with every event.

use std::sync::Arc;

use super::accounting::CallAccounting;
use super::admission::AdmissionStage;
use super::caller::CallerState;
use super::context::{CallMechanisms, StepContext};
use super::messages;
use super::notice::{CallNotice, ShadowDecision};
use super::refusal::{ArrivalCheck, CallRefusal};
use super::request::CallRequest;
use super::shadow::ShadowReport;
use super::state::{AnswerSource, Call, State, StoreState};
use super::step::{
    ApprovalOutcome, CallEvent, CallResult, DeferredWrite, NextStep, RecordStatus, StoreFault, WakeReason,
};
use crate::Timestamp;
use crate::code::Code;
use crate::dedupe::{ClaimIntent, ClaimRole, ClaimVerdict, StartVerdict};
use crate::policy::{CallPolicy, EnforcementMode};

/// An event that does not belong to the current state. The state machine is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "event {event} is not valid in state {state}: the driver answered a step that the call did not return"
)]
pub struct CallMisuse {
    /// Name of the state.
    pub state: &'static str,
    /// Name of the event.
    pub event: &'static str,
}

impl Call {
    /// Starts a call. `seed` decides its jitter and nothing else.
    pub fn begin(
        shared: &mut CallMechanisms<'_>,
        request: CallRequest,
        policy: Arc<CallPolicy>,
        seed: u64,
        now: Timestamp,
        notices: &mut Vec<CallNotice>,
    ) -> (Self, NextStep) {
        let cx = &mut StepContext { shared, now, notices };
        let mut call = Self::arrive(request, policy, seed, cx);
        let step = match call.refusal(cx) {
            Some(refusal) if call.dedupe() == EnforcementMode::Enforce => {
                call.state = State::Looking { refusal };
                call.claim_step(ClaimIntent::Look, ClaimRole::Fresh, cx.now)
            }
            Some(refusal) => call.refuse(*refusal, cx),
            None => {
                call.enter(cx);
                call.claim_or_start(ClaimRole::Fresh, cx)
            }
        };
        (call, step)
    }

    /// Returns a call that has arrived. It is neither checked nor counted yet.
    pub(super) fn arrive(
        mut request: CallRequest,
        policy: Arc<CallPolicy>,
        seed: u64,
        cx: &mut StepContext<'_, '_>,
    ) -> Self {
        cx.notices.push(CallNotice::CallStarted { at: cx.now });
        // Decided once: a call does not change its turn because another call arrived.
        let turn = match request.turn.clone() {
            None if policy.modes.guard != EnforcementMode::Off => {
                request.trace.take().filter(|trace| cx.shared.guard.is_turn(trace))
            }
            known => known,
        };
        if !policy.modes.is_pass_through() {
            request.turn.clone_from(&turn);
        }
        let retry_safe = request.is_retry_safe(&policy);
        Self {
            request,
            policy,
            seed,
            arrived: cx.now,
            turn,
            retry_safe,
            claims: 0,
            claims_in_doubt: Vec::new(),
            spent: None,
            record: None,
            store: StoreState::Available,
            lease_until: cx.now,
            schedule: None,
            first_attempt: None,
            settling_since: None,
            attempts: 0,
            facts: Vec::new(),
            outcomes: Vec::new(),
            trouble: None,
            retries: Vec::new(),
            last: None,
            caller: CallerState::Waiting,
            accounting: CallAccounting::default(),
            arrival_check: ArrivalCheck::default(),
            shadow_report: ShadowReport::default(),
            answered_by: AnswerSource::Steadfast,
            state: State::Finished,
        }
    }

    /// Processes an event and returns the next step.
    pub fn handle_event(
        &mut self,
        shared: &mut CallMechanisms<'_>,
        now: Timestamp,
        event: CallEvent,
        notices: &mut Vec<CallNotice>,
    ) -> Result<NextStep, CallMisuse> {
        let cx = &mut StepContext { shared, now, notices };
        let step = match (std::mem::replace(&mut self.state, State::Finished), event) {
            (State::Looking { refusal }, CallEvent::Claimed(verdict)) => match verdict {
                ClaimVerdict::Nothing
                | ClaimVerdict::Acquired(_)
                | ClaimVerdict::Full
                | ClaimVerdict::StoreRecovering
                | ClaimVerdict::RecordsLost => self.refuse(*refusal, cx),
                verdict @ (ClaimVerdict::Follow(_)
                | ClaimVerdict::Busy
                | ClaimVerdict::Replay(_)
                | ClaimVerdict::Unknown(_)
                | ClaimVerdict::Conflict) => {
                    self.arrival_check.hold_back();
                    self.enter(cx);
                    self.handle_claim_verdict(verdict, cx)
                }
            },
            (State::Looking { refusal }, CallEvent::StoreFailed(_)) => {
                if self.is_explicit() {
                    cx.notices.push(CallNotice::StoreFailed { continues: false });
                }
                self.store = StoreState::Down;
                self.refuse(*refusal, cx)
            }

            (State::Claiming { .. }, CallEvent::Claimed(verdict)) => self.handle_claim_verdict(verdict, cx),
            (State::Claiming { role, repeats }, CallEvent::StoreFailed(fault)) => {
                if fault == StoreFault::Unanswered {
                    self.doubt_claim();
                }
                self.claim_failed(role, repeats, cx)
            }

            (State::Following { record }, CallEvent::Woke(wake)) => self.wake_follower(record, wake, cx),

            // If no time is left, the caller gets a response that says that the earlier call has not ended.
            (State::AwaitingEnd { record, .. }, CallEvent::Woke(WakeReason::Time)) => {
                self.wake_follower(record, WakeReason::Changed, cx)
            }
            (State::AwaitingEnd { record, .. }, CallEvent::Woke(wake)) => {
                self.wake_follower(record, wake, cx)
            }

            (State::AwaitingApproval { ask }, CallEvent::Answered(answer)) => self.answered(*ask, answer, cx),
            (State::AwaitingApproval { ask }, CallEvent::Woke(_)) if cx.now >= ask.until => {
                self.answered(*ask, ApprovalOutcome::Unreachable, cx)
            }
            (state @ State::AwaitingApproval { .. }, CallEvent::Woke(_)) => self.stay(state),

            (State::GivingBack, CallEvent::Released) => self.claim_or_start(ClaimRole::Fresh, cx),
            (State::Spending, CallEvent::Spent(spend)) if spend.may_run() => self.start_or_go(cx),
            (State::Spending, CallEvent::Spent(_)) => {
                self.spent = None;
                self.lost_the_grant(cx)
            }
            (State::Starting, CallEvent::Started(StartVerdict::Started)) => self.started(cx),
            (State::Starting, CallEvent::Started(StartVerdict::Lost)) => self.look_again(cx.now),
            // In shadow mode the record protects nothing.
            (State::Starting, CallEvent::StoreFailed(_)) if self.dedupe() == EnforcementMode::Shadow => {
                if !self.continues_without_store() {
                    self.shadow_report.send(ShadowDecision::Refused(Code::StoreUnavailable), cx.notices);
                }
                self.next_attempt(AdmissionStage::Begin, cx)
            }
            (State::Starting, CallEvent::StoreFailed(_)) if self.continues_without_store() => {
                cx.notices.push(CallNotice::StoreFailed { continues: true });
                self.store = StoreState::Down;
                self.next_attempt(AdmissionStage::Begin, cx)
            }
            (State::GivingBack, CallEvent::StoreFailed(_)) => {
                cx.notices.push(CallNotice::StoreFailed { continues: false });
                let result = self.failed(messages::store_unavailable(&self.request), cx.now);
                let result = self.count_response(result, cx);
                self.doubt_claim();
                self.finish(result, Vec::new(), cx)
            }
            (State::Spending | State::Starting, CallEvent::StoreFailed(_)) => {
                cx.notices.push(CallNotice::StoreFailed { continues: false });
                let refusal = CallRefusal::by_steadfast(messages::store_unavailable(&self.request));
                self.refuse(refusal, cx)
            }

            (State::Probing { scope, tickets }, CallEvent::Probed) => {
                tickets.confirm_probe(scope, cx.shared);
                self.next_attempt(AdmissionStage::ProbeRecorded { scope, tickets }, cx)
            }
            // If the store is unavailable, each process probes for itself.
            (State::Probing { scope, tickets }, CallEvent::StoreFailed(_)) => {
                self.next_attempt(AdmissionStage::ProbeRecorded { scope, tickets }, cx)
            }

            (State::Attempting(attempt), CallEvent::Ran(outcome)) => self.ran(attempt, outcome, cx),
            (State::Attempting(attempt), CallEvent::Progressed) => self.progressed(attempt, cx),
            (State::Attempting(attempt), CallEvent::Woke(_)) => self.check_limits(attempt, cx),

            (State::BackingOff { until }, CallEvent::Woke(_)) if cx.now >= until => {
                self.next_attempt(AdmissionStage::Begin, cx)
            }
            (state @ State::BackingOff { .. }, CallEvent::Woke(_)) => self.stay(state),
            (State::Renewing, CallEvent::Renewed { owner, sent, verdict }) if self.owns(&owner) => {
                self.renewed(verdict, sent.min(cx.now), cx.notices);
                self.next_attempt(AdmissionStage::Begin, cx)
            }
            (State::Renewing, CallEvent::StoreFailed(_)) if self.dedupe() == EnforcementMode::Shadow => {
                // A shadow record blocks nothing.
                self.record = None;
                self.next_attempt(AdmissionStage::Begin, cx)
            }
            (State::Renewing, CallEvent::StoreFailed(_)) => {
                // Without a renewal, the call cannot know that it still owns the record.
                cx.notices.push(CallNotice::StoreFailed { continues: false });
                self.give_up(cx)
            }

            (State::Marking(settling), CallEvent::Saved(verdict)) => self.mark_saved(settling, verdict, cx),
            (State::Marking(settling), CallEvent::StoreFailed(_)) => self.mark_failed(settling, cx),
            (State::Settling(settling), CallEvent::Ran(outcome)) => self.ran_late(settling, outcome, cx),
            (State::Settling(settling), CallEvent::Settled) => self.handle_attempt_end(settling, cx),
            (State::Settling(settling), CallEvent::Woke(_)) => self.marked(settling, cx),
            (State::Settling(settling), CallEvent::DriverEnds) => self.driver_ends(settling, cx),
            // The result of an attempt that ended by itself decides how it counts.
            (state @ (State::Attempting(_) | State::Saving { .. }), CallEvent::Settled) => self.stay(state),

            (State::Saving { result, .. }, CallEvent::Saved(verdict)) => self.saved(result, verdict, cx),
            (State::Saving { result, ending }, CallEvent::StoreFailed(_)) => {
                cx.notices.push(CallNotice::StoreFailed { continues: true });
                let deferred = self.save_of(ending).map(DeferredWrite::Save);
                let result = CallResult { recorded: RecordStatus::No, receipt: None, ..*result };
                self.finish(result, deferred.into_iter().collect(), cx)
            }
            (State::Releasing { result, deferred }, CallEvent::Released) => self.finish(result, deferred, cx),
            (State::Releasing { result, mut deferred }, CallEvent::StoreFailed(_)) => {
                deferred.extend(self.deferred_release());
                self.finish(result, deferred, cx)
            }

            (state, CallEvent::Cancelled(others)) if !matches!(state, State::Finished) => {
                self.cancelled(state, others, cx)
            }
            (state, CallEvent::Disconnected(others)) if !matches!(state, State::Finished) => {
                self.disconnected(state, others, cx)
            }
            // The lease can be renewed at any time while the call is open; a progress event may be late.
            (
                state @ (State::Saving { .. }
                | State::Releasing { .. }
                | State::Marking(_)
                | State::Settling(_)),
                CallEvent::Renewed { .. },
            ) => self.stay(state),
            (state, CallEvent::Renewed { owner, sent, verdict }) if !matches!(state, State::Finished) => {
                if self.owns(&owner) {
                    self.renewed(verdict, sent.min(cx.now), cx.notices);
                }
                self.stay(state)
            }
            (state, CallEvent::Progressed) if !matches!(state, State::Finished) => self.stay(state),
            // A timer that fires late, or a record that changes once more, is not a misuse by the driver.
            (state, CallEvent::Woke(_)) if !matches!(state, State::Finished) => self.stay(state),

            (state, event) => {
                let misuse = CallMisuse { state: state.name(), event: event.name() };
                self.state = state;
                return Err(misuse);
            }
        };
        Ok(step)
    }

    /// Returns the time at which the machine needs [`CallEvent::Woke`] if no other event comes before.
    pub fn wake_at(&self) -> Option<Timestamp> {
        match &self.state {
            State::Following { .. } => Some(self.follow_until()),
            State::AwaitingApproval { ask } => Some(ask.until),
            State::AwaitingEnd { look_at, .. } => Some(*look_at),
            State::BackingOff { until } => Some(*until),
            State::Attempting(attempt) => self.attempt_wakes_at(attempt),
            State::Settling(settling) => self.settling_wakes_at(settling),
            State::Looking { .. }
            | State::Claiming { .. }
            | State::GivingBack
            | State::Spending
            | State::Starting
            | State::Probing { .. }
            | State::Renewing
            | State::Marking(_)
            | State::Saving { .. }
            | State::Releasing { .. }
            | State::Finished => None,
        }
    }
}
