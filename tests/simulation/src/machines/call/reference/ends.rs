//! The ends of calls and the counters that receive them.

use super::*;

impl ReferenceCall {
    pub(super) fn guarded(&self) -> GuardedCall<'_> {
        GuardedCall {
            tool: &self.request.tool,
            arguments: self.request.digest,
            turn: self.request.turn.as_ref(),
        }
    }

    pub(super) fn with_guard<R>(
        &mut self,
        act: impl FnOnce(&mut LoopGuard, &CallPolicy, GuardedCall<'_>, Timestamp) -> R,
    ) -> R {
        let call = GuardedCall {
            tool: &self.request.tool,
            arguments: self.request.digest,
            turn: self.request.turn.as_ref(),
        };
        act(&mut self.machines.guard, &self.policy, call, self.now)
    }

    pub(super) fn enter(&mut self) {
        if self.policy.modes.guard != EnforcementMode::Off && !std::mem::replace(&mut self.is_entered, true) {
            self.with_guard(|guard, policy, call, now| guard.begin(&policy.guard, call, now));
        }
    }

    pub(super) fn leave_guard(&mut self) {
        self.with_guard(|guard, policy, call, now| guard.abandon(&policy.guard, call, now));
    }

    /// Reports the response to the guard, once.
    pub(super) fn judge(
        &mut self,
        response: ExpectedResponse,
        mistake: Option<ModelMistake>,
    ) -> ExpectedResponse {
        if std::mem::replace(&mut self.is_judged, true) || self.policy.modes.guard == EnforcementMode::Off {
            return response;
        }
        self.enter();
        let was_replayed_before =
            self.request.in_turn && response.replayed.is_some_and(|reason| reason != ReplayReason::Waited);
        let is_uninformative = match &response.outcome {
            Ok(_) => false,
            Err(failed) => {
                matches!(failed.code, Code::InFlight | Code::Cancelled)
                    || response.unknown.is_some() && self.dedupes()
            }
        };
        if !self.is_waited_for() || was_replayed_before || is_uninformative {
            self.leave_guard();
            return response;
        }
        let is_ok = response.outcome.is_ok();
        let remarks = self.with_guard(|guard, policy, call, now| {
            let ending = match is_ok {
                true => GuardedResult::Success { result: None },
                false => GuardedResult::Failure { message: "", mistake },
            };
            guard.end(&policy.guard, call, ending, now)
        });
        self.notices.extend(remarks.iter().map(|remark| CallNotice::GuardTripped { layer: remark.layer }));
        // One answer, one instruction: a refusal with a retry-after delay does not also say "do not retry".
        let is_refusal = response.outcome.as_ref().is_err_and(|failed| {
            self.attempts == 0
                && failed.code.is_refusal()
                && (failed.retry_after.is_some()
                    || matches!(
                        failed.code,
                        Code::ApprovalRequired | Code::ApprovalDenied | Code::ToolBlocked
                    ))
        });
        ExpectedResponse { remarks: if is_refusal { 0 } else { remarks.len() }, ..response }
    }

    pub(super) fn report_to_trust(&mut self, finished: FinishedOutcome) {
        let rules = steadfast_core::trust::TrustRules {
            signature: &self.policy.trust,
            domain: self.policy.domain_trust.as_ref(),
        };
        let subject = TrustSubject {
            tool: &self.request.tool,
            signature: &self.request.signature,
            domain: self.request.domain.as_ref(),
        };
        let changes = self.machines.trust.record_with_start(rules, subject, finished, self.arrived, self.now);
        self.notices.extend(changes.into_iter().map(CallNotice::TrustChanged));
    }

    /// Costs the tool its trust if a dangerous command was run, whatever came of it.
    pub(super) fn danger_counts(&mut self) {
        if self.request.danger.is_some() && self.policy.approval.dangerous == DangerousCommandPolicy::Record {
            self.report_to_trust(FinishedOutcome::Failure {
                severity: Severity::Security,
                recoverable: true,
            });
        }
    }

    /// Reports a call that ran to trust and guard, once.
    pub(super) fn judge_run(
        &mut self,
        response: ExpectedResponse,
        severity: Option<Severity>,
        mistake: Option<ModelMistake>,
    ) -> ExpectedResponse {
        if self.is_judged {
            return response;
        }
        if self.policy.modes.trust != EnforcementMode::Off {
            let severity = severity.or(response.outcome.is_err().then_some(Severity::Informational));
            self.report_to_trust(match severity {
                Some(severity) => FinishedOutcome::Failure { severity, recoverable: true },
                None => FinishedOutcome::Success,
            });
            self.danger_counts();
        }
        self.judge(response, mistake)
    }

    pub(super) fn abandon(&mut self) {
        if std::mem::replace(&mut self.is_judged, true) {
            return;
        }
        if self.is_entered {
            self.leave_guard();
        }
        if self.attempts > 0 && self.policy.modes.trust != EnforcementMode::Off {
            self.danger_counts();
        }
    }

    /// Ends a call whose work has not begun, so that no counter counts it.
    pub(super) fn put_off(&mut self) {
        if self.is_entered && !std::mem::replace(&mut self.is_judged, true) {
            self.leave_guard();
        }
    }

    pub(super) fn response(&self, outcome: Result<Option<ToolOutput>, ExpectedFailure>) -> ExpectedResponse {
        ExpectedResponse {
            outcome,
            input_required: false,
            replayed: None,
            attempts: self.attempts,
            retries: self.retries.clone(),
            took: self.now.since(self.arrived),
            recorded: RecordStatus::NotAsked,
            receipt: None,
            remarks: 0,
            breaker: None,
            unknown: None,
        }
    }

    pub(super) fn saved(&self, ending: ExpectedEnding) -> Option<ExpectedSave> {
        let record = self.record.as_ref()?;
        Some(ExpectedSave {
            owner: record.owner.clone(),
            key: record.key,
            started: record.started,
            ending,
            attempts: self.facts.clone(),
            hold: self.holds(),
        })
    }

    pub(super) fn save(&mut self, response: ExpectedResponse, ending: ExpectedEnding) -> ExpectedStep {
        let Some(saved) = self.saved(ending.clone()) else { return self.finish(response, Vec::new()) };
        if self.sight == ClaimCondition::Down {
            return self.finish(
                ExpectedResponse { recorded: RecordStatus::No, ..response },
                vec![ExpectedFollowUp::Save(saved)],
            );
        }
        self.state = ReferenceCallState::Saving(response, ending);
        ExpectedStep::Save(saved)
    }

    pub(super) fn release_of_claim(&self) -> Option<ReleaseRequest> {
        let record = self.record.as_ref()?;
        Some(ReleaseRequest { key: record.key, index: record.index, owner: record.owner.clone() })
    }

    pub(super) fn release(
        &mut self,
        response: ExpectedResponse,
        mut follow_ups: Vec<ExpectedFollowUp>,
    ) -> ExpectedStep {
        match self.release_of_claim() {
            None => self.finish(response, follow_ups),
            Some(release) if self.sight == ClaimCondition::Down => {
                follow_ups.push(ExpectedFollowUp::Release(release));
                self.finish(response, follow_ups)
            }
            Some(release) => {
                self.state = ReferenceCallState::Releasing(response, follow_ups);
                ExpectedStep::Release(release)
            }
        }
    }

    /// Removes the receipt of a late answer. It may have missed its caller, and is replayed then.
    pub(super) fn if_in_time(&self, response: ExpectedResponse) -> ExpectedResponse {
        let has_waited = self.attempts == 0 || self.request.run_by == RunnerKind::Driver;
        let is_late = has_waited && response.took > self.policy.dedupe.late_after;
        let receipt = response.receipt.filter(|_| !is_late);
        ExpectedResponse { receipt, ..response }
    }

    pub(super) fn answer_early(
        &mut self,
        state: ReferenceCallState,
        response: ExpectedResponse,
        upstream: UpstreamSignal,
    ) -> ExpectedStep {
        let response = self.if_in_time(response);
        if let Err(failed) = &response.outcome {
            self.notices.push(CallNotice::AnsweredEarly { code: failed.code });
        }
        self.state = state;
        self.caller =
            if upstream == UpstreamSignal::Cancel { CallerPresence::GaveUp } else { CallerPresence::Gone };
        ExpectedStep::Answer(response, upstream)
    }

    pub(super) fn finish(
        &mut self,
        response: ExpectedResponse,
        mut follow_ups: Vec<ExpectedFollowUp>,
    ) -> ExpectedStep {
        // Nothing was done with the approval.
        if let Some((grant, owner)) = self.spent.take().filter(|_| self.attempts == 0) {
            follow_ups.push(ExpectedFollowUp::GiveBack(grant, owner));
        }
        if let Some(address) = self.address() {
            let (key, index) = (address.own(), address.index());
            let doubts = std::mem::take(&mut self.doubts).into_iter();
            follow_ups
                .extend(doubts.map(|owner| ExpectedFollowUp::Release(ReleaseRequest { key, index, owner })));
        }
        let response = self.if_in_time(ExpectedResponse { took: self.now.since(self.arrived), ..response });
        self.notices.push(CallNotice::CallFinished {
            code: response.outcome.as_ref().err().map(|failed| failed.code),
            took: response.took,
            attempts: response.attempts,
            replayed: response.replayed.is_some(),
        });
        self.state = ReferenceCallState::Finished;
        ExpectedStep::Finish(response, follow_ups)
    }

    pub(super) fn no_change(&mut self, state: ReferenceCallState) -> ExpectedStep {
        self.state = state;
        ExpectedStep::Stay
    }
}
