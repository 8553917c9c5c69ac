//! Unexplained calls: the recording is right, and they are taken from it.

use super::*;

impl ReplayWorld<'_> {
    /// Ends a call whose replay under the current configuration deviates from the recording. The recording is right.
    pub(super) fn not_explained(&mut self, index: usize, mut active: ReplayCallState, now: Timestamp) {
        let blocked = self.replayed.calls.get(index).and_then(|call| call.blocked);
        self.clean_up(index, &mut active, now);
        self.wake_followers(index, &active, None, now);
        self.end_as(index, ReplayEnd::Taken(TakenReason::NotExplained));
        self.record_false_refusal(index, blocked, now);
        let is_last = self.calls.get(index).is_some_and(|call| active.moment + 1 >= call.trail.len());
        if is_last {
            self.apply_recorded(index, now);
        }
    }

    pub(super) fn record_false_refusal(&mut self, index: usize, blocked: Option<Code>, now: Timestamp) {
        let recorded = self.calls.get(index).and_then(|call| call.ending.code);
        let believed = match blocked {
            Some(code) if recorded == Some(code) => None,
            Some(Code::CircuitOpen) => Some(FalseRefusalCause::ToolDown),
            Some(Code::LoopDetected | Code::ToolErrorLimit) => Some(FalseRefusalCause::ModelLoops),
            Some(Code::ApprovalRequired | Code::ToolBlocked) => Some(FalseRefusalCause::TrustLost),
            Some(_) | None => None,
        };
        if let Some(believed) = believed {
            self.forget(index, believed, now);
            self.replayed.false_refusals.insert(self.place, (index, believed));
        }
    }

    pub(super) fn forget(&mut self, index: usize, believed: FalseRefusalCause, now: Timestamp) {
        if let Some(recorded) = self.calls.get(index) {
            self.machines.forget(&MachineKeys::of(recorded), believed, now);
        }
    }

    /// Takes a call from the recording: applies its known effects on circuit breaker, trust, loop guard and records.
    pub(super) fn apply_recorded(&mut self, index: usize, now: Timestamp) {
        let Some(recorded) = self.calls.get(index) else { return };
        if recorded.attempts.is_empty() {
            return;
        }
        let policy = self.policy(recorded);
        let request = request(recorded, &policy);
        let uses = MachineKeys::of(recorded);
        let failed = match recorded.outcomes.last() {
            Some(RecordedAttempt::Failed(failed)) => Some(failed),
            Some(RecordedAttempt::Answered { .. } | RecordedAttempt::InputRequired) | None => None,
        };
        let mut changed = Vec::new();
        self.machines.lend(&uses, &ApprovalLedger::default(), |shared| {
            for (attempt, number) in recorded.attempts.iter().zip(0..) {
                let took = attempt.finished.since(attempt.started);
                let outcome = recorded.outcomes.get::<usize>(number);
                let lost = matches!(outcome, Some(RecordedAttempt::Failed(failed)) if failed.manner == RecordedFailureKind::SessionLost);
                let verdict = match &attempt.rule {
                    None => BreakerVerdict::Success { took },
                    Some(_) if attempt.retriable && !lost => BreakerVerdict::Failure { took },
                    Some(_) => BreakerVerdict::Neutral,
                };
                let own = (BreakerScope::Tool, Some(&mut *shared.breaker));
                let coarser = (BreakerScope::Dependency, shared.dependency.as_deref_mut());
                for (scope, breaker) in [own, coarser] {
                    if policy.modes.breaker != EnforcementMode::Off
                        && let Some(breaker) = breaker
                        && let Ok((ticket, _)) = breaker.admit(&policy.breaker, attempt.started)
                    {
                        let transition = breaker.record(&policy.breaker, ticket, verdict, attempt.finished);
                        changed.extend(transition.map(|transition| (scope, transition)));
                    }
                }
            }
            let ended_well = recorded.ending.status == CallStatus::Success && !recorded.ending.input_required;
            let finished = match failed {
                Some(failed) if !ended_well => {
                    Some(FinishedOutcome::Failure { severity: failed.severity, recoverable: true })
                }
                Some(_) | None => ended_well.then_some(FinishedOutcome::Success),
            };
            if let (Some(finished), true) = (finished, policy.modes.trust != EnforcementMode::Off) {
                let rules = TrustRules { signature: &policy.trust, domain: policy.domain_trust.as_ref() };
                let subject = TrustSubject {
                    tool: &request.tool,
                    signature: &request.signature,
                    domain: request.domain.as_ref(),
                };
                drop(shared.trust.record_with_start(rules, subject, finished, recorded.arrived, now));
            }
            if policy.modes.guard != EnforcementMode::Off {
                let call = GuardedCall {
                    tool: &request.tool,
                    arguments: request.digest,
                    turn: request.turn.as_ref(),
                };
                let ending = match failed {
                    Some(failed) if !ended_well => {
                        guard::GuardedResult::Failure { message: &failed.error, mistake: failed.mistake }
                    }
                    Some(_) | None => guard::GuardedResult::Success { result: None },
                };
                drop(shared.guard.end(&policy.guard, call, ending, now));
            }
        });
        for (scope, transition) in changed {
            self.machines.changed(&uses, scope, &transition, index);
        }
        self.take_record(&request, &policy, recorded, now);
    }

    pub(super) fn take_record(
        &mut self,
        request: &CallRequest,
        policy: &CallPolicy,
        recorded: &RecordedCall,
        now: Timestamp,
    ) {
        let Some(address) = request.address().filter(|_| policy.modes.dedupe == EnforcementMode::Enforce)
        else {
            return;
        };
        let done = recorded.ending.status == CallStatus::Success && !recorded.ending.input_required;
        let ending = match recorded.ending.code {
            None if done => RecordEnding::Done(Some(unknown_output())),
            Some(Code::OutcomeUnknown) => {
                RecordEnding::Unknown(UnknownOutcomeReport::settled(UnknownOutcomeReason::NoAnswer))
            }
            Some(_) | None => return,
        };
        let claim = claim(request, address, policy, recorded);
        let records = self.records.entry(memory(recorded, policy)).or_default();
        if let ClaimVerdict::Acquired(claimed) =
            records.claim(&claim, &LocalKnowledge::default(), |_| LeaseOwnerState::Alive, now)
        {
            let attempts = recorded.attempts.clone();
            let keep = policy.dedupe.keep;
            let save = SaveRequest { claimed, ending, attempts, delivered: None, hold: false, keep };
            records.save(&save, now);
        }
    }
}
