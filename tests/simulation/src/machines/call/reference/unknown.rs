//! Unknown outcomes, until they are settled.

use super::*;

impl ReferenceCall {
    pub(super) fn becomes_unknown(
        &mut self,
        settling: ReferenceSettling,
        settles: SettleDelay,
    ) -> ExpectedStep {
        self.notices.push(CallNotice::OutcomeUnknown { of_earlier: None });
        self.settling_since.get_or_insert(self.now);
        self.mark(settling, settles)
    }

    pub(super) fn mark(&mut self, mut settling: ReferenceSettling, settles: SettleDelay) -> ExpectedStep {
        settling.settles = settles;
        settling.by = by(settles, self.now);
        let ending = ExpectedEnding::Unknown(settles, settling.observed, settling.output.clone());
        match self.saved(ending).filter(|_| self.sight != ClaimCondition::Down) {
            Some(saved) => {
                self.state = ReferenceCallState::Marking(settling);
                ExpectedStep::Save(saved)
            }
            None => {
                settling.unsaved = self.record.is_some();
                settling.save_at = Some(self.now + Duration::from_secs(1));
                self.marked(settling)
            }
        }
    }

    pub(super) fn marked(&mut self, mut settling: ReferenceSettling) -> ExpectedStep {
        let now = self.now;
        if settling.by.is_none() && self.observed_until(&settling).is_some_and(|until| until <= now) {
            return self.mark(settling, SettleDelay::After(self.policy.settling.linger));
        }
        let is_due = settling.save_at.is_some_and(|at| at <= now);
        if settling.attempt.is_some() && settling.unsaved && is_due {
            let left = left(settling.by, now);
            return self.mark(settling, left);
        }
        let is_settled = settling.by.is_some_and(|by| by <= now);
        if is_settled && let Some(mut attempt) = settling.attempt.take() {
            self.leave_places(&mut attempt);
            settling.attempt = Some(attempt);
        }
        if std::mem::take(&mut settling.cancel) && settling.attempt.is_some() {
            settling.proof_expected_until = Some(now + Duration::from_millis(100));
            self.state = ReferenceCallState::Settling(settling);
            return ExpectedStep::CancelUpstream;
        }
        let end = end(settling.by, now);
        let may_speak = proof_expected_until(&settling).is_none_or(|until| until <= now);
        if self.is_waited_for() && may_speak && (is_settled || !self.can_wait(end)) {
            return self.answer_caller(settling);
        }
        let is_all = !self.is_waited_for() && settling.attempt.is_none() && settling.by.is_some();
        if is_all || self.observed_until(&settling).is_some_and(|until| until <= now) {
            return self.close(settling);
        }
        self.state = ReferenceCallState::Settling(settling);
        ExpectedStep::Wait
    }

    /// Returns the time until which the attempt is observed.
    pub(super) fn observed_until(&self, settling: &ReferenceSettling) -> Option<Timestamp> {
        if self.request.end == AttemptEndVisibility::Visible && settling.by.is_none() {
            return self.settling_since.map(|since| since + self.policy.settling.child_stop_time());
        }
        let total = settling.attempt.as_ref()?.watchdog.total_at();
        Some(proof_expected_until(settling).map_or(total, |until| until.max(total)))
    }

    pub(super) fn settling_wakes_at(&self, settling: &ReferenceSettling) -> Option<Timestamp> {
        let respond_at = |at: Timestamp| proof_expected_until(settling).map_or(at, |until| until.max(at));
        let waits = self.is_waited_for().then(|| respond_at(self.waits_until()));
        let by = settling.by.filter(|_| self.is_waited_for()).map(respond_at);
        let has_places = settling.attempt.as_ref().is_some_and(|attempt| attempt.tickets.has_places);
        let leaves = settling.by.filter(|_| has_places);
        let saves = settling.save_at.filter(|_| settling.unsaved && settling.attempt.is_some());
        [waits, by, leaves, saves, self.observed_until(settling)].into_iter().flatten().min()
    }

    pub(super) fn end_observed(&mut self, mut settling: ReferenceSettling) -> ExpectedStep {
        if settling.by.is_some() {
            return self.marked(settling);
        }
        self.drop_attempt(&mut settling);
        let after = self.policy.settling.after_child();
        let settles = if after.is_zero() { SettleDelay::Settled } else { SettleDelay::After(after) };
        self.mark(settling, settles)
    }

    pub(super) fn drop_attempt(&mut self, settling: &mut ReferenceSettling) {
        let Some(mut attempt) = settling.attempt.take() else { return };
        self.leave_places(&mut attempt);
        let fault = AttemptFault::new(FaultSource::Timeout { after: self.now.since(attempt.started) }, "");
        let classified = classify(&fault, &self.policy.classify, self.now);
        self.attempt_ended(&attempt, Some((&classified, UnknownOutcomeReason::NoAnswer)));
    }

    pub(super) fn ran_late(
        &mut self,
        mut settling: ReferenceSettling,
        outcome: &AttemptReport,
    ) -> ExpectedStep {
        // A driver that could not send it reports that, without a message of the tool.
        if let AttemptReport::Failure { fault, output: None } = outcome {
            let classified = classify(fault, &self.policy.classify, self.now);
            if classified.reach == AttemptReach::NotSent
                && let Some(attempt) = settling.attempt.take()
            {
                return self.never_began(
                    attempt,
                    fault,
                    &classified,
                    failed(Code::UpstreamUnavailable, "not_sent", true),
                );
            }
        }
        let is_conclusive = matches!(
            outcome,
            AttemptReport::Success { .. }
                | AttemptReport::InputRequired { .. }
                | AttemptReport::NotRun { .. }
                | AttemptReport::Failure { fault: AttemptFault { source: FaultSource::TooLarge, .. }, .. }
        );
        match settling.attempt.take() {
            Some(attempt) if is_conclusive => self.ran(attempt, outcome),
            attempt => {
                settling.attempt = attempt;
                self.drop_attempt(&mut settling);
                self.marked(settling)
            }
        }
    }

    pub(super) fn answer_caller(&mut self, mut settling: ReferenceSettling) -> ExpectedStep {
        let response = self.unknown(&settling);
        if settling.attempt.is_none() && settling.by.is_some() {
            let follow_ups = self.unsaved(&mut settling);
            return self.finish(response, follow_ups);
        }
        self.answer_early(ReferenceCallState::Settling(settling), response, UpstreamSignal::NoSignal)
    }

    pub(super) fn close(&mut self, mut settling: ReferenceSettling) -> ExpectedStep {
        self.drop_attempt(&mut settling);
        let response = self.unknown(&settling);
        let follow_ups = self.unsaved(&mut settling);
        self.finish(response, follow_ups)
    }

    /// Returns the records that are still to be written. If the end will not be reported, it is the time by which the
    /// child was ended in any case.
    pub(super) fn unsaved(&self, settling: &mut ReferenceSettling) -> Vec<ExpectedFollowUp> {
        if !std::mem::take(&mut settling.unsaved) {
            return Vec::new();
        }
        let policy = &self.policy.settling;
        let settles = match left(settling.by, self.now) {
            SettleDelay::WhenOwnerReports => {
                SettleDelay::After((policy.child_stop_time() + policy.after_child()).max(policy.linger))
            }
            settles => settles,
        };
        let ending = ExpectedEnding::Unknown(settles, settling.observed, settling.output.clone());
        self.saved(ending).map(ExpectedFollowUp::Save).into_iter().collect()
    }

    pub(super) fn unknown(&mut self, settling: &ReferenceSettling) -> ExpectedResponse {
        let end = end(settling.by, self.now);
        let is_over = end == SettleStatus::Settled;
        let is_keyless = self.address().is_some_and(|address| address.index().is_some());
        let runs_in = (is_keyless && !self.holds()).then_some(self.policy.dedupe.after_telling);
        let retry_after = self.comes_again(end, runs_in);
        let recorded = match (&self.record, &settling.receipt) {
            (None, _) => RecordStatus::NotAsked,
            (Some(_), Some(_)) => RecordStatus::Yes,
            (Some(_), None) => RecordStatus::No,
        };
        let response = ExpectedResponse {
            recorded,
            receipt: settling.receipt.clone().filter(|_| is_over),
            unknown: Some(UnknownOutcomeInfo { observed: settling.observed, is_final: is_over }),
            ..self.response(Err(ExpectedFailure {
                retry_after,
                ..failed(settling.code, &settling.rule, false)
            }))
        };
        match settling.severity {
            Some(severity) => self.judge_run(response, Some(severity), None),
            None => self.judge(response, None),
        }
    }
}
