//! Attempts, and the decision on another one.

use super::*;

impl ReferenceCall {
    /// Starts an attempt if the one predicate that guards every attempt allows it (D43).
    pub(super) fn attempt(&mut self) -> ExpectedStep {
        if self.caller == CallerPresence::GaveUp {
            self.abandon();
            let response = self.response(Err(cancelled()));
            return self.release(response, Vec::new());
        }
        if matches!(self.sight, ClaimCondition::Lost | ClaimCondition::MarkedUnknown) {
            return if self.attempts == 0 { self.handle_lost_claim() } else { self.give_up() };
        }
        if self.renews().is_some() && self.now >= self.lease_until {
            self.state = ReferenceCallState::Renewing;
            return ExpectedStep::Renew;
        }
        let late = match &self.schedule {
            None => self.is_late().then_some(RetryStop::Deadline),
            Some(schedule) => schedule.may_start(self.now).err(),
        };
        if let Some(stop) = late {
            if self.attempts == 0 {
                return self.refuse(by_steadfast(deadline_passed()));
            }
            self.notices.push(CallNotice::RetryStopped { stop });
            return self.too_late(stop);
        }
        let is_blocked = matches!(self.standing(), TrustDecision::Blocked(_));
        if self.policy.modes.trust == EnforcementMode::Enforce && !self.approved_blocked && is_blocked {
            let refusal = match self.need() {
                ReferenceApprovalNeed::Refuse { operator_only }
                | ReferenceApprovalNeed::Ask { operator_only, .. } => not_approved(operator_only),
                ReferenceApprovalNeed::NotNeeded | ReferenceApprovalNeed::Spend(_) => {
                    by_steadfast(approval_lost())
                }
            };
            return if self.attempts == 0 { self.refuse(refusal) } else { self.refused_again(refusal) };
        }
        match self.admit() {
            Err(refusal) if self.attempts == 0 => self.refuse(refusal),
            Err(refusal) => self.refused_again(refusal),
            Ok(tickets) if is_probe(&tickets.tool) => self.probe(BreakerScope::Tool, tickets),
            Ok(tickets) if is_probe(&tickets.dependency) => self.probe(BreakerScope::Dependency, tickets),
            Ok(tickets) => self.go(tickets),
        }
    }

    pub(super) fn admit(&mut self) -> Result<ReferenceTickets, ExpectedRefusal> {
        let (now, policy) = (self.now, self.policy.clone());
        let machines = &mut self.machines;
        let overloaded = |overloaded: LimitError, rules: [&str; 2]| {
            let (rule, retry_after) = match overloaded {
                LimitError::Concurrency => (rules[0], None),
                LimitError::Rate(at) => (rules[1], Some(at.since(now))),
            };
            by_steadfast(ExpectedFailure { retry_after, ..failed(Code::Overloaded, rule, true) })
        };
        if let Err(reason) = machines.limiter.try_acquire(&policy.limits, now) {
            return Err(overloaded(reason, ["limit.concurrency", "limit.rate"]));
        }
        if let Err(reason) = machines.dependency_limiter.try_acquire(&policy.dependency_limits, now) {
            machines.limiter.withdraw();
            return Err(overloaded(reason, ["limit.dependency_concurrency", "limit.dependency_rate"]));
        }
        let mut tickets = ReferenceTickets { has_places: true, ..ReferenceTickets::default() };
        if policy.modes.breaker == EnforcementMode::Off {
            return Ok(tickets);
        }
        let mut refused = None;
        match machines.breaker.admit(&policy.breaker, now) {
            Err(reason) => refused = Some(reason),
            Ok((ticket, change)) => {
                tickets.tool = Some(ticket);
                self.notices.extend(changed(BreakerScope::Tool, change));
                match machines.dependency.as_mut().map(|breaker| breaker.admit(&policy.breaker, now)) {
                    None => {}
                    Some(Err(reason)) => refused = Some(reason),
                    Some(Ok((ticket, change))) => {
                        tickets.dependency = Some(ticket);
                        self.notices.extend(changed(BreakerScope::Dependency, change));
                    }
                }
            }
        }
        match refused {
            None => Ok(tickets),
            Some(refused) => {
                self.step_back(tickets);
                Err(self.circuit_open(refused))
            }
        }
    }

    /// Releases everything that was taken for an attempt that is not made.
    pub(super) fn step_back(&mut self, mut tickets: ReferenceTickets) {
        self.release_tickets(&mut tickets);
        if tickets.has_places {
            self.machines.limiter.withdraw();
            self.machines.dependency_limiter.withdraw();
        }
    }

    pub(super) fn release_tickets(&mut self, tickets: &mut ReferenceTickets) {
        if let Some(ticket) = tickets.tool.take() {
            if ticket.is_probe() {
                self.notices.push(CallNotice::ProbeMoved { scope: BreakerScope::Tool });
            }
            self.machines.breaker.release(ticket);
        }
        if let (Some(ticket), Some(breaker)) = (tickets.dependency.take(), &mut self.machines.dependency) {
            if ticket.is_probe() {
                self.notices.push(CallNotice::ProbeMoved { scope: BreakerScope::Dependency });
            }
            breaker.release(ticket);
        }
    }

    pub(super) fn probe(&mut self, scope: BreakerScope, tickets: ReferenceTickets) -> ExpectedStep {
        self.state = ReferenceCallState::Probing(scope, tickets);
        ExpectedStep::Probe(scope)
    }

    pub(super) fn probed(&mut self, scope: BreakerScope, tickets: ReferenceTickets) -> ExpectedStep {
        let policy = &self.policy.breaker;
        let holds = |breaker: &CircuitBreaker, ticket: &Option<BreakerTicket>| {
            ticket.as_ref().is_none_or(|ticket| breaker.holds(policy, ticket, self.now))
        };
        let all_hold = holds(&self.machines.breaker, &tickets.tool)
            && self.machines.dependency.as_ref().is_none_or(|breaker| holds(breaker, &tickets.dependency));
        let is_late = match &self.schedule {
            None => self.is_late(),
            Some(schedule) => schedule.may_start(self.now).is_err(),
        };
        let is_over = self.renews().is_some() && self.now >= self.lease_until;
        let is_blocked = self.policy.modes.trust == EnforcementMode::Enforce
            && !self.approved_blocked
            && matches!(self.standing(), TrustDecision::Blocked(_));
        let is_lost = matches!(self.sight, ClaimCondition::Lost | ClaimCondition::MarkedUnknown)
            || self.caller == CallerPresence::GaveUp;
        if !all_hold || is_late || is_over || is_blocked || is_lost {
            self.step_back(tickets);
            return self.attempt();
        }
        if scope == BreakerScope::Tool && is_probe(&tickets.dependency) {
            return self.probe(BreakerScope::Dependency, tickets);
        }
        self.go(tickets)
    }

    pub(super) fn go(&mut self, tickets: ReferenceTickets) -> ExpectedStep {
        let (now, policy) = (self.now, self.policy.clone());
        if self.schedule.is_none() {
            self.machines.budget.deposit(&policy.retry.budget, now);
            let last = Some(policy.time.latest_retry());
            self.schedule =
                Some(RetrySchedule::new(&policy.retry, &self.request.limits, last, self.seed, now));
        }
        let first = *self.first.get_or_insert(now);
        self.attempts += 1;
        self.notices.push(CallNotice::AttemptStarted { attempt: self.attempts, at: now });
        let mut time = policy.time;
        time.attempt = self.request.limits.attempt.map_or(time.attempt, |own| own.min(time.attempt));
        time.total = time.total.saturating_sub(now.since(first));
        let watchdog = Watchdog::new(&time, now);
        let deadline = [Some(watchdog.due()), self.request.limits.deadline].into_iter().flatten().min();
        let claimed = self.record.as_ref().filter(|_| self.dedupes());
        let run = claimed.map_or(&self.request.run, |record| &record.run).0.to_string();
        self.state = ReferenceCallState::Attempting(ReferenceAttempt {
            number: self.attempts,
            started: now,
            watchdog,
            tickets,
            cut: None,
        });
        ExpectedStep::Run { attempt: self.attempts, deadline, run }
    }

    pub(super) fn progressed(&mut self, mut attempt: ReferenceAttempt) -> ExpectedStep {
        attempt.watchdog.progress(self.now);
        let mut renew = |breaker: &mut CircuitBreaker, ticket: &Option<BreakerTicket>, scope| {
            let renewal = ticket.as_ref().map(|ticket| breaker.renew(&self.policy.breaker, ticket, self.now));
            if renewal == Some(TicketRenewal::Extended) {
                self.notices.push(CallNotice::ProbeMoved { scope });
            }
        };
        renew(&mut self.machines.breaker, &attempt.tickets.tool, BreakerScope::Tool);
        if let Some(breaker) = &mut self.machines.dependency {
            renew(breaker, &attempt.tickets.dependency, BreakerScope::Dependency);
        }
        self.no_change(ReferenceCallState::Attempting(attempt))
    }

    pub(super) fn time_is_up(&mut self, mut attempt: ReferenceAttempt) -> ExpectedStep {
        if attempt.cut.is_some() {
            return self.no_change(ReferenceCallState::Attempting(attempt));
        }
        let is_waited_for = self.is_waited_for();
        let is_due = self.request.limits.deadline.is_some_and(|deadline| deadline <= self.now);
        let cut = match attempt.watchdog.verdict(self.now) {
            watchdog::WatchdogVerdict::TotalLimit => Some(CutReason::TooLong),
            _ if is_waited_for && is_due => Some(CutReason::Deadline),
            watchdog::WatchdogVerdict::Stuck => Some(CutReason::Silent(self.now.since(attempt.started))),
            watchdog::WatchdogVerdict::Fine { .. } => None,
        };
        match cut {
            Some(cut) if self.may_be_cut() => {
                self.notices.push(CallNotice::AttemptCut { cut });
                attempt.cut = Some(cut);
                self.state = ReferenceCallState::Attempting(attempt);
                ExpectedStep::Cut(cut)
            }
            Some(CutReason::Deadline) => {
                let unknown =
                    Some(UnknownOutcomeInfo { observed: UnknownOutcomeReason::NoAnswer, is_final: false });
                let response = self.response(Err(failed(Code::OutcomeUnknown, "deadline", false)));
                let response = self.judge(ExpectedResponse { unknown, ..response }, None);
                self.answer_early(ReferenceCallState::Attempting(attempt), response, UpstreamSignal::NoSignal)
            }
            Some(cut) => self.cut_unknown(attempt, cut),
            None if is_waited_for && self.answers_by().is_some_and(|by| by <= self.now) => {
                let response = self.response(Err(in_flight()));
                self.answer_early(ReferenceCallState::Attempting(attempt), response, UpstreamSignal::NoSignal)
            }
            None => self.no_change(ReferenceCallState::Attempting(attempt)),
        }
    }

    /// Returns true if a host that runs the tool itself gives no sign of life.
    pub(super) fn host_is_silent(&self, attempt: &ReferenceAttempt) -> bool {
        self.request.run_by == RunnerKind::Host && !attempt.watchdog.is_alive(attempt.started, self.now)
    }

    /// Returns true if a cut says nothing about the tool, because the tool had not used up its own time (D44).
    pub(super) fn is_callers_limit(&self, attempt: &ReferenceAttempt) -> bool {
        let time = &self.policy.time;
        attempt.cut.is_some()
            && self.now.since(attempt.watchdog.last_sign()) < time.attempt
            && self.now.since(attempt.started) < time.total
    }

    pub(super) fn cut_unknown(&mut self, mut attempt: ReferenceAttempt, cut: CutReason) -> ExpectedStep {
        let is_silent = self.host_is_silent(&attempt);
        if is_silent {
            self.abandon();
        }
        attempt.cut = Some(cut);
        let counts = !is_silent && !self.is_callers_limit(&attempt);
        let took = self.now.since(attempt.started);
        self.record_breakers(&mut attempt.tickets, counts.then_some(BreakerVerdict::Failure { took }));
        self.notices.push(CallNotice::AttemptCut { cut });
        let is_stuck = self.policy.time.silence == SilencePolicy::Stuck;
        let (code, rule) = match cut {
            CutReason::Silent(_) | CutReason::TooLong if is_stuck => (Code::StuckCall, "watchdog"),
            CutReason::Silent(_) | CutReason::TooLong => (Code::OutcomeUnknown, "timeout"),
            CutReason::Deadline => (Code::OutcomeUnknown, "deadline"),
            CutReason::Cancelled => (Code::OutcomeUnknown, "cancelled"),
        };
        let settles = match self.request.end {
            AttemptEndVisibility::Visible => SettleDelay::WhenOwnerReports,
            AttemptEndVisibility::Hidden => SettleDelay::After(self.policy.settling.linger),
        };
        let severity = counts.then_some(Severity::Timeout);
        let settling = ReferenceSettling {
            cancel: true,
            ..self.settling(UnknownOutcomeReason::NoAnswer, severity, code, rule)
        };
        self.becomes_unknown(ReferenceSettling { attempt: Some(attempt), ..settling }, settles)
    }

    pub(super) fn settling(
        &self,
        observed: UnknownOutcomeReason,
        severity: Option<Severity>,
        code: Code,
        rule: &str,
    ) -> ReferenceSettling {
        ReferenceSettling {
            attempt: None,
            observed,
            output: None,
            severity,
            code,
            rule: rule.to_owned(),
            settles: SettleDelay::WhenOwnerReports,
            by: None,
            cancel: false,
            receipt: None,
            proof_expected_until: None,
            unsaved: false,
            save_at: None,
        }
    }

    pub(super) fn record_breakers(
        &mut self,
        tickets: &mut ReferenceTickets,
        verdict: Option<BreakerVerdict>,
    ) {
        let (now, policy) = (self.now, self.policy.clone());
        let mut back = |breaker: &mut CircuitBreaker, ticket: BreakerTicket, scope| {
            let is_probe = ticket.is_probe();
            let change = match verdict {
                Some(verdict) => breaker.record(&policy.breaker, ticket, verdict, now),
                None => {
                    breaker.release(ticket);
                    None
                }
            };
            match change {
                None if is_probe => self.notices.push(CallNotice::ProbeMoved { scope }),
                change => self.notices.extend(changed(scope, change)),
            }
        };
        if let Some(ticket) = tickets.tool.take() {
            back(&mut self.machines.breaker, ticket, BreakerScope::Tool);
        }
        if let (Some(ticket), Some(breaker)) = (tickets.dependency.take(), &mut self.machines.dependency) {
            back(breaker, ticket, BreakerScope::Dependency);
        }
    }

    pub(super) fn leave_places(&mut self, attempt: &mut ReferenceAttempt) {
        if std::mem::take(&mut attempt.tickets.has_places) {
            self.machines.limiter.release();
            self.machines.dependency_limiter.release();
        }
    }

    pub(super) fn attempt_ended(
        &mut self,
        attempt: &ReferenceAttempt,
        failure: Option<(&Classification, UnknownOutcomeReason)>,
    ) {
        let code = failure.map(|(classified, _)| classified.code);
        let is_transient = failure.is_some_and(|(classified, _)| classified.nature == FaultNature::Transient);
        self.facts.push((attempt.number, attempt.started, self.now, code, is_transient));
        self.facts.drain(..self.facts.len().saturating_sub(16));
        self.notices.push(CallNotice::AttemptEnded {
            attempt: attempt.number,
            took: self.now.since(attempt.started),
            failure: failure.map(|(classified, observed)| FailedAttempt {
                nature: classified.nature,
                reach: classified.reach,
                severity: classified.severity,
                rule: classified.rule.clone(),
                observed,
                message: "".into(),
            }),
        });
    }

    pub(super) fn ran(&mut self, mut attempt: ReferenceAttempt, outcome: &AttemptReport) -> ExpectedStep {
        self.leave_places(&mut attempt);
        let took = self.now.since(attempt.started);
        match outcome {
            AttemptReport::Success { output, concern } => {
                self.record_breakers(&mut attempt.tickets, Some(BreakerVerdict::Success { took }));
                self.attempt_ended(&attempt, None);
                let response = self.response(Ok(Some(output.clone())));
                let response = self.judge_run(response, *concern, None);
                let fits = output.len() <= self.policy.dedupe.largest_output;
                self.save(response, ExpectedEnding::Done(fits.then(|| output.clone())))
            }
            AttemptReport::InputRequired { output } => {
                self.record_breakers(&mut attempt.tickets, Some(BreakerVerdict::Success { took }));
                self.attempt_ended(&attempt, None);
                self.ask_caller(output)
            }
            AttemptReport::NotRun { fault } => {
                let classified = classify(fault, &self.policy.classify, self.now);
                self.never_began(attempt, fault, &classified, cancelled())
            }
            AttemptReport::Failure { fault, output } => {
                // A tool's reply to our cut counts as the cut (D42). A host reports what it observed itself.
                let answers_cut = fault.source != FaultSource::TooLarge
                    && self.request.run_by == RunnerKind::Driver
                    && attempt.cut.is_some_and(|cut| cut != CutReason::Cancelled);
                let timeout = AttemptFault::new(FaultSource::Timeout { after: took }, "");
                let (fault, output) = if answers_cut { (&timeout, &None) } else { (fault, output) };
                let classified = classify(fault, &self.policy.classify, self.now);
                self.went_wrong(attempt, fault, output.as_ref(), &classified)
            }
            AttemptReport::Replayed(_) => ExpectedStep::Stay,
        }
    }

    /// Handles an attempt for which it is certain that the tool did not run.
    pub(super) fn never_began(
        &mut self,
        mut attempt: ReferenceAttempt,
        fault: &AttemptFault,
        classified: &Classification,
        failure: ExpectedFailure,
    ) -> ExpectedStep {
        self.leave_places(&mut attempt);
        self.release_tickets(&mut attempt.tickets);
        self.attempt_ended(&attempt, Some((classified, observed(&fault.source))));
        self.put_off();
        let response = self.response(Err(failure));
        self.release(response, Vec::new())
    }

    pub(super) fn went_wrong(
        &mut self,
        mut attempt: ReferenceAttempt,
        fault: &AttemptFault,
        output: Option<&ToolOutput>,
        classified: &Classification,
    ) -> ExpectedStep {
        let took = self.now.since(attempt.started);
        let is_timeout = matches!(fault.source, FaultSource::Timeout { .. });
        let is_lost = is_timeout && attempt.cut.is_some() && self.host_is_silent(&attempt);
        let has_no_message =
            attempt.cut == Some(CutReason::Cancelled) || self.is_callers_limit(&attempt) || is_lost;
        let verdict = match classified.nature {
            _ if has_no_message => None,
            FaultNature::Transient if !is_session_lost(fault) => Some(BreakerVerdict::Failure { took }),
            FaultNature::Transient | FaultNature::Permanent => Some(BreakerVerdict::Neutral),
        };
        self.record_breakers(&mut attempt.tickets, verdict);
        let observed = observed(&fault.source);
        self.attempt_ended(&attempt, Some((classified, observed)));

        let proved = matches!(classified.reach, AttemptReach::NotSent | AttemptReach::Refused);
        if attempt.cut == Some(CutReason::Cancelled) && (self.may_be_cut() || proved) {
            self.abandon();
            let response = self.response(Err(cancelled()));
            return self.release(response, Vec::new());
        }
        if is_lost {
            self.abandon();
        }
        let may_repeat = (proved || self.retry_safe()) && self.caller != CallerPresence::GaveUp && !is_lost;
        let helps = classified.nature == FaultNature::Transient && may_repeat;
        let holds_claim = matches!(self.sight, ClaimCondition::Fine | ClaimCondition::Down);
        let mut stop = None;
        if helps && holds_claim && attempt.cut != Some(CutReason::TooLong) {
            let last = self.last_word(classified, None, attempt.cut);
            self.last = Some((classified.clone(), last));
            match self.retry(&attempt, classified) {
                Ok(due) => return due,
                Err(reason) => stop = Some(reason),
            }
        }
        if let Some(NoRetryReason::Schedule(stop)) = stop {
            self.notices.push(CallNotice::RetryStopped { stop });
        }
        let may_have_run = classified.reach == AttemptReach::Unknown && !self.retry_safe();
        let answers_cancel = classified.reach == AttemptReach::Answered
            && classified.code != Code::ResultTooLarge
            && self.caller == CallerPresence::GaveUp
            && !self.retry_safe();
        if self.record.is_some() && self.dedupes() && (may_have_run || answers_cancel) {
            let linger =
                self.caller == CallerPresence::GaveUp && observed == UnknownOutcomeReason::ErrorAnswer;
            let settles = match (observed, self.request.end) {
                _ if linger => SettleDelay::After(self.policy.settling.linger),
                (UnknownOutcomeReason::ErrorAnswer, _) => SettleDelay::After(self.policy.settling.settle),
                (_, AttemptEndVisibility::Visible) => SettleDelay::WhenOwnerReports,
                (_, AttemptEndVisibility::Hidden) => SettleDelay::After(self.policy.settling.linger),
            };
            let severity = Some(classified.severity);
            let settling = self.settling(observed, severity, Code::OutcomeUnknown, &classified.rule);
            return self.becomes_unknown(ReferenceSettling { output: output.cloned(), ..settling }, settles);
        }
        let failed = self.last_word(classified, stop, attempt.cut);
        let unknown =
            (failed.code == Code::OutcomeUnknown).then_some(UnknownOutcomeInfo { observed, is_final: false });
        let breaker = matches!(stop, Some(NoRetryReason::Breaker(_)))
            .then(|| self.machines.breaker.state(&self.policy.breaker, self.now));
        let mut response = ExpectedResponse { breaker, unknown, ..self.response(Err(failed)) };
        if self.is_callers_limit(&attempt) {
            response = self.judge(response, None);
            self.is_judged = true;
        }
        self.settle_failed(response, Some(classified))
    }

    pub(super) fn retry(
        &mut self,
        attempt: &ReferenceAttempt,
        classified: &Classification,
    ) -> Result<ExpectedStep, NoRetryReason> {
        let (now, policy) = (self.now, self.policy.clone());
        if policy.modes.retry == EnforcementMode::Off {
            return Err(NoRetryReason::NotAsked);
        }
        let schedule = self.schedule.as_mut().ok_or(NoRetryReason::NotAsked)?;
        let until = schedule
            .next(&policy.retry, attempt.started, classified.retry_after, now)
            .map_err(NoRetryReason::Schedule)?;
        let breakers = [Some(&self.machines.breaker), self.machines.dependency.as_ref()];
        let mut refused =
            breakers.into_iter().flatten().filter_map(|breaker| breaker.check(&policy.breaker, until).err());
        if policy.modes.breaker == EnforcementMode::Enforce
            && let Some(refused) = refused.next()
        {
            return Err(NoRetryReason::Breaker(refused));
        }
        if !self.machines.budget.withdraw(&policy.retry.budget, now) {
            return Err(NoRetryReason::Schedule(RetryStop::Budget));
        }
        self.notices.push(CallNotice::RetryScheduled { attempt: self.attempts + 1, at: until });
        self.retries.push((attempt.number, now.since(attempt.started), until.since(now)));
        self.state = ReferenceCallState::BackingOff(until);
        Ok(ExpectedStep::Wait)
    }

    /// Returns the failure that the caller gets.
    pub(super) fn last_word(
        &self,
        classified: &Classification,
        stop: Option<NoRetryReason>,
        cut: Option<CutReason>,
    ) -> ExpectedFailure {
        let is_transient = classified.nature == FaultNature::Transient;
        let rule = classified.rule.to_string();
        if classified.reach == AttemptReach::Unknown && !self.retry_safe() {
            return failed(Code::OutcomeUnknown, &rule, false);
        }
        let is_stuck = self.policy.time.silence == SilencePolicy::Stuck
            && matches!(cut, Some(CutReason::Silent(_) | CutReason::TooLong));
        let deadline = || (Code::DeadlineExceeded, "deadline".to_owned());
        let (code, rule) = match stop {
            None if classified.code == Code::ResultTooLarge => (classified.code, rule),
            _ if cut == Some(CutReason::Deadline) => deadline(),
            None | Some(NoRetryReason::NotAsked) if is_stuck => (Code::StuckCall, rule),
            None | Some(NoRetryReason::NotAsked) => (classified.code, rule),
            Some(NoRetryReason::Breaker(refused)) => (Code::CircuitOpen, refused.by.rule().to_owned()),
            Some(NoRetryReason::Schedule(RetryStop::Deadline)) => deadline(),
            Some(NoRetryReason::Schedule(RetryStop::Budget)) => {
                (Code::RetryExhausted, "retry_budget".to_owned())
            }
            Some(NoRetryReason::Schedule(_)) if is_stuck => (Code::StuckCall, rule),
            Some(NoRetryReason::Schedule(RetryStop::Attempts)) if self.attempts == 1 => {
                (classified.code, rule)
            }
            Some(NoRetryReason::Schedule(_)) => (Code::RetryExhausted, rule),
        };
        let retry_after = match stop {
            Some(NoRetryReason::Schedule(RetryStop::RetryAfter(wait))) => Some(wait),
            Some(NoRetryReason::Breaker(refused)) => refused.retry_at.map(|at| at.since(self.now)),
            Some(NoRetryReason::NotAsked | NoRetryReason::Schedule(_)) | None => classified.retry_after,
        };
        ExpectedFailure { code, rule: Some(rule), retriable: is_transient, retry_after }
    }

    pub(super) fn too_late(&mut self, stop: RetryStop) -> ExpectedStep {
        let Some((classified, last)) = self.last.take() else { return self.give_up() };
        let code = if stop == RetryStop::Deadline { Code::DeadlineExceeded } else { Code::RetryExhausted };
        let response = self.response(Err(ExpectedFailure { code, ..last }));
        self.settle_failed(response, Some(&classified))
    }

    pub(super) fn give_up(&mut self) -> ExpectedStep {
        let last = self.last.take();
        let (classified, failed) =
            last.map_or((None, store_unavailable()), |(classified, last)| (Some(classified), last));
        let response = ExpectedResponse { recorded: RecordStatus::No, ..self.response(Err(failed)) };
        let response = match classified {
            Some(classified) => self.judge_run(response, Some(classified.severity), classified.mistake),
            None => self.judge(response, None),
        };
        let release = self.release_of_claim().filter(|_| self.sight != ClaimCondition::Lost);
        self.finish(response, release.map(ExpectedFollowUp::Release).into_iter().collect())
    }

    pub(super) fn refused_again(&mut self, refusal: ExpectedRefusal) -> ExpectedStep {
        let severity = self.last.take().map(|(classified, _)| classified.severity);
        let response = ExpectedResponse { breaker: refusal.breaker, ..self.response(Err(refusal.failed)) };
        let response = self.judge_run(response, severity, None);
        self.release(response, Vec::new())
    }

    /// Decides on the record of a call that failed.
    pub(super) fn settle_failed(
        &mut self,
        response: ExpectedResponse,
        classified: Option<&Classification>,
    ) -> ExpectedStep {
        let severity = classified.map(|classified| classified.severity);
        let mistake = classified.and_then(|classified| classified.mistake);
        let response = self.judge_run(response, severity, mistake);
        let Err(failed) = response.outcome.clone() else { return self.finish(response, Vec::new()) };
        // Other calls get the tool's own result, not the refusal of our breaker or the timeout of this caller.
        let stored = match (failed.code, classified) {
            (Code::CircuitOpen | Code::DeadlineExceeded, Some(classified)) => {
                ExpectedFailure { code: classified.code, rule: Some(classified.rule.to_string()), ..failed }
            }
            _ => failed,
        };
        match classified.map(|classified| classified.reach) {
            Some(AttemptReach::Unknown) if !self.retry_safe() => {
                self.notices.push(CallNotice::OutcomeUnknown { of_earlier: None });
                self.save(
                    response,
                    ExpectedEnding::Unknown(SettleDelay::Settled, UnknownOutcomeReason::NoAnswer, None),
                )
            }
            Some(AttemptReach::Answered)
                if classified.is_some_and(|classified| classified.code == Code::ResultTooLarge) =>
            {
                self.save(response, ExpectedEnding::Done(None))
            }
            Some(AttemptReach::Answered) => self.save(response, ExpectedEnding::Failed(stored)),
            Some(_) if self.policy.dedupe.cache_failures == FailureReplayPolicy::All => {
                self.save(response, ExpectedEnding::Failed(stored))
            }
            Some(_) | None => self.release(response, Vec::new()),
        }
    }
}
