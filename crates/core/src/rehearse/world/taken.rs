//! Unexplained calls: the recording is right, and they are taken from it.

use super::*;

impl World<'_> {
    /// Ends a call whose replay under the current configuration deviates from the recording. The recording is right.
    pub(super) fn not_explained(&mut self, index: usize, mut active: Active, now: Timestamp) {
        let blocked = self.replayed.calls.get(index).and_then(|call| call.blocked);
        self.clean_up(index, &mut active, now);
        self.over(index, &active, None, now);
        self.end_as(index, End::Taken(WhyTaken::NotExplained));
        self.was_wrong(index, blocked, now);
        let is_last = self.calls.get(index).is_some_and(|call| active.moment + 1 >= call.trail.len());
        if is_last {
            self.take(index, now);
        }
    }

    pub(super) fn was_wrong(&mut self, index: usize, blocked: Option<Code>, now: Timestamp) {
        let recorded = self.calls.get(index).and_then(|call| call.ending.code);
        let believed = match blocked {
            Some(code) if recorded == Some(code) => None,
            Some(Code::CircuitOpen) => Some(Believed::ToolIsDown),
            Some(Code::LoopDetected | Code::ToolErrorLimit) => Some(Believed::ModelLoops),
            Some(Code::ApprovalRequired | Code::ToolBlocked) => Some(Believed::TrustIsLost),
            Some(_) | None => None,
        };
        if let Some(believed) = believed {
            self.forget(index, believed, now);
            self.replayed.wrong.insert(self.place, (index, believed));
        }
    }

    pub(super) fn forget(&mut self, index: usize, believed: Believed, now: Timestamp) {
        if let Some(recorded) = self.calls.get(index) {
            self.machines.forget(&Uses::of(recorded), believed, now);
        }
    }

    /// Takes a call from the recording: applies its known effects on circuit breaker, trust, loop guard and records.
    pub(super) fn take(&mut self, index: usize, now: Timestamp) {
        let Some(recorded) = self.calls.get(index) else { return };
        if recorded.attempts.is_empty() {
            return;
        }
        let policy = self.policy(recorded);
        let request = request(recorded, &policy);
        let uses = Uses::of(recorded);
        let failed = match recorded.outcomes.last() {
            Some(AttemptOutcome::Failed(failed)) => Some(failed),
            Some(AttemptOutcome::Answered { .. } | AttemptOutcome::InputRequired) | None => None,
        };
        let mut changed = Vec::new();
        self.machines.lend(&uses, &Approvals::default(), |shared| {
            for (attempt, number) in recorded.attempts.iter().zip(0..) {
                let took = attempt.finished.since(attempt.started);
                let outcome = recorded.outcomes.get::<usize>(number);
                let lost = matches!(outcome, Some(AttemptOutcome::Failed(failed)) if failed.manner == Manner::SessionLost);
                let verdict = match &attempt.rule {
                    None => Verdict::Success { took },
                    Some(_) if attempt.retriable && !lost => Verdict::Failure { took },
                    Some(_) => Verdict::Neutral,
                };
                let own = (BreakerScope::Tool, Some(&mut *shared.breaker));
                let coarser = (BreakerScope::Dependency, shared.dependency.as_deref_mut());
                for (scope, breaker) in [own, coarser] {
                    if policy.modes.breaker != Mode::Off
                        && let Some(breaker) = breaker
                        && let Ok((ticket, _)) = breaker.admit(&policy.breaker, attempt.started)
                    {
                        let transition = breaker.record(&policy.breaker, ticket, verdict, attempt.finished);
                        changed.extend(transition.map(|transition| (scope, transition)));
                    }
                }
            }
            let ended_well = recorded.ending.status == Status::Success && !recorded.ending.input_required;
            let finished = match failed {
                Some(failed) if !ended_well => {
                    Some(Finished::Failure { severity: failed.severity, recoverable: true })
                }
                Some(_) | None => ended_well.then_some(Finished::Success),
            };
            if let (Some(finished), true) = (finished, policy.modes.trust != Mode::Off) {
                let rules = TrustRules { signature: &policy.trust, domain: policy.domain_trust.as_ref() };
                let subject = Subject {
                    tool: &request.tool,
                    signature: &request.signature,
                    domain: request.domain.as_ref(),
                };
                drop(shared.trust.record_begun(rules, subject, finished, recorded.arrived, now));
            }
            if policy.modes.guard != Mode::Off {
                let call = GuardedCall {
                    tool: &request.tool,
                    arguments: request.digest,
                    turn: request.turn.as_ref(),
                };
                let ending = match failed {
                    Some(failed) if !ended_well => {
                        guard::Ending::Failure { message: &failed.error, mistake: failed.mistake }
                    }
                    Some(_) | None => guard::Ending::Success { result: None },
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
        request: &Request,
        policy: &Policy,
        recorded: &Recorded,
        now: Timestamp,
    ) {
        let Some(address) = request.address().filter(|_| policy.modes.dedupe == Mode::Enforce) else {
            return;
        };
        let done = recorded.ending.status == Status::Success && !recorded.ending.input_required;
        let ending = match recorded.ending.code {
            None if done => RecordEnding::Done(Some(nothing())),
            Some(Code::OutcomeUnknown) => RecordEnding::Unknown(UnknownEnding::settled(Observed::NoAnswer)),
            Some(_) | None => return,
        };
        let claim = claim(request, address, policy, recorded);
        let records = self.records.entry(memory(recorded, policy)).or_default();
        if let ClaimVerdict::Mine(claimed) =
            records.claim(&claim, &Known::default(), |_| LeaseSight::Alive, now)
        {
            let attempts = recorded.attempts.clone();
            let keep = policy.dedupe.keep;
            let save = Save { claimed, ending, attempts, delivered: None, hold: false, keep };
            records.save(&save, now);
        }
    }
}
