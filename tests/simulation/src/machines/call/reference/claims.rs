//! Refusals, claims and approvals: the part before an attempt.

use super::*;

impl ReferenceCall {
    pub(super) fn refusal(&self) -> Option<ExpectedRefusal> {
        if self.is_late() {
            return Some(by_steadfast(deadline_passed()));
        }
        if self.policy.arguments == ArgumentCheck::Enforce && self.request.invalid_arguments.is_some() {
            return Some(by_steadfast(failed(Code::InvalidArguments, "schema", false)));
        }
        let modes = self.policy.modes;
        if modes.guard == EnforcementMode::Enforce
            && let Some(refused) =
                self.machines.guard.would_refuse(&self.policy.guard, self.guarded(), self.now)
        {
            let failed = failed(refused.code, refused.layer.as_str(), false);
            return Some(ExpectedRefusal { failed, breaker: None, by: RefusalSource::Guard(refused.layer) });
        }
        let breakers = [Some(&self.machines.breaker), self.machines.dependency.as_ref()];
        let mut refused = breakers
            .into_iter()
            .flatten()
            .filter_map(|breaker| breaker.check(&self.policy.breaker, self.now).err());
        if modes.breaker == EnforcementMode::Enforce
            && let Some(refused) = refused.next()
        {
            return Some(self.circuit_open(refused));
        }
        match self.need() {
            ReferenceApprovalNeed::Refuse { operator_only } if modes.trust == EnforcementMode::Enforce => {
                Some(not_approved(operator_only))
            }
            ReferenceApprovalNeed::Refuse { .. }
            | ReferenceApprovalNeed::NotNeeded
            | ReferenceApprovalNeed::Spend(_)
            | ReferenceApprovalNeed::Ask { .. } => None,
        }
    }

    pub(super) fn circuit_open(&self, refused: breaker::BreakerRefusal) -> ExpectedRefusal {
        let retry_after = refused.retry_at.map(|at| at.since(self.now));
        let failed = ExpectedFailure { retry_after, ..failed(Code::CircuitOpen, refused.by.rule(), true) };
        ExpectedRefusal { failed, breaker: Some(refused.state), by: RefusalSource::Us }
    }

    pub(super) fn refuse(&mut self, refusal: ExpectedRefusal) -> ExpectedStep {
        // The store could not be asked for an answer: that is reported instead.
        let unlooked =
            self.is_explicit() && self.dedupes() && self.sight == ClaimCondition::Down && self.attempts == 0;
        let refusal = if unlooked { by_steadfast(store_unavailable()) } else { refusal };
        let state = self.machines.breaker.state(&self.policy.breaker, self.now);
        let breaker = refusal.breaker.or(Some(state));
        self.notices.push(CallNotice::CallBlocked { code: refusal.failed.code, retriable: false, breaker });
        let mut response =
            ExpectedResponse { breaker: refusal.breaker, ..self.response(Err(refusal.failed)) };
        let mut follow_ups = Vec::new();
        match refusal.by {
            RefusalSource::Us => response = self.judge(response, None),
            RefusalSource::Guard(layer) => {
                self.notices.push(CallNotice::GuardTripped { layer });
                self.abandon();
                self.is_judged = true;
                let _counted =
                    self.with_guard(|guard, policy, call, now| guard.check(&policy.guard, call, now));
            }
            RefusalSource::Trust { operator_only } => {
                follow_ups.push(ExpectedFollowUp::Park { operator_only });
                response = self.judge(response, None);
            }
        }
        self.release(response, follow_ups)
    }

    pub(super) fn claim(&self, intent: ClaimIntent, role: ClaimRole) -> Claim {
        let (request, policy) = (&self.request, &self.policy);
        let address = self.address().expect("only calls that are recognised are claimed");
        let mut rules = DedupeRules::from(&**policy);
        if request.hints.safety_critical {
            rules.after_unknown = UnknownOutcomePolicy::Hold;
        }
        rules.computed_since = request.computed_since.filter(|_| request.sent_key == UpstreamKey::Run);
        let to_end = policy.settling.grace + policy.settling.drain + Duration::from_secs(10);
        Claim {
            address,
            intent,
            role,
            owner: self.owner(),
            digest: request.digest,
            retry_safe: self.retry_safe(),
            best_effort: matches!(request.duplicates, Deduplication::Refused(_)),
            arrived: self.arrived,
            age: self.now.since(self.arrived),
            end_observed_within: (request.end == AttemptEndVisibility::Visible)
                .then_some(policy.time.total + to_end),
            run: request.run.clone(),
            rules,
            tool: request.tool.clone(),
            request: request.id.clone(),
            tool_call: request.tool_call.clone(),
            context: request.context.clone(),
            session: request.session.clone(),
            actor: request.actor.clone(),
            tenant: request.tenant.clone(),
        }
    }

    pub(super) fn take(&mut self, role: ClaimRole, repeats: u32, started: bool) -> ExpectedStep {
        self.state = ReferenceCallState::Claiming(role, repeats);
        self.lease_until = self.now + self.policy.dedupe.keep.lease;
        ExpectedStep::Claim(Box::new(self.claim(ClaimIntent::Take { started }, role)))
    }

    pub(super) fn claim_or_start(&mut self, role: ClaimRole) -> ExpectedStep {
        if !self.dedupes() {
            return self.ask_or_start();
        }
        self.claims += 1;
        let at_once = self.policy.modes.trust != EnforcementMode::Enforce
            || matches!(self.need(), ReferenceApprovalNeed::NotNeeded);
        self.take(role, 0, at_once)
    }

    pub(super) fn look_again(&mut self) -> ExpectedStep {
        let own = self.address().map(|address| address.own());
        let Some(followed) = self.record.take().map(|record| record.key).or(own) else {
            return ExpectedStep::Stay;
        };
        self.claims += 1;
        self.take(ClaimRole::Waiter { followed }, 0, false)
    }

    pub(super) fn claim_failed(&mut self, role: ClaimRole, repeats: u32) -> ExpectedStep {
        if repeats < 2 {
            return self.take(role, repeats + 1, false);
        }
        let continues = self.continues();
        self.notices.push(CallNotice::StoreFailed { continues });
        if continues {
            let claim = self.claim(ClaimIntent::Take { started: true }, role);
            let decided = decide_claim(&claim, FoundRecords::default(), &LocalKnowledge::default(), self.now);
            if let ClaimVerdict::Acquired(record) = decided.verdict {
                self.doubts.retain(|owner| *owner != record.owner);
                self.record = Some((*record).clone());
            }
            self.sight = ClaimCondition::Down;
            return self.ask_or_start();
        }
        self.turned_away(store_unavailable())
    }

    /// Refuses a call without a claim.
    pub(super) fn turned_away(&mut self, failed: ExpectedFailure) -> ExpectedStep {
        let breaker = Some(self.machines.breaker.state(&self.policy.breaker, self.now));
        self.notices.push(CallNotice::CallBlocked { code: failed.code, retriable: false, breaker });
        let response = self.response(Err(failed));
        let response = self.judge(response, None);
        self.finish(response, Vec::new())
    }

    pub(super) fn found(&mut self, verdict: &ClaimVerdict) -> ExpectedStep {
        match verdict {
            ClaimVerdict::Acquired(record) => {
                if record.run != self.request.run {
                    self.notices.push(CallNotice::TookOver);
                }
                self.doubts.retain(|owner| *owner != record.owner);
                self.record = Some((**record).clone());
                self.sight = ClaimCondition::Fine;
                self.ask_or_start()
            }
            ClaimVerdict::Follow(key) => {
                self.notices.push(CallNotice::Following);
                self.state = ReferenceCallState::Following(*key);
                ExpectedStep::Follow(*key)
            }
            ClaimVerdict::Replay(replay) => {
                self.notices.push(CallNotice::Replayed { reason: replay.reason });
                let result = match &replay.answer {
                    Ok(Some(output)) => Ok(Some(output.clone())),
                    Ok(None) => Err(ExpectedFailure {
                        code: Code::ResultNotKept,
                        rule: None,
                        retriable: false,
                        retry_after: None,
                    }),
                    Err(failure) => Err(of_failure(failure)),
                };
                let response = ExpectedResponse {
                    replayed: Some(replay.reason),
                    recorded: RecordStatus::Yes,
                    receipt: Some(replay.receipt.clone()),
                    ..self.response(result)
                };
                let response = self.judge(response, None);
                self.finish(response, Vec::new())
            }
            ClaimVerdict::Unknown(unsettled) if unsettled.receipt.owner == self.owner() => {
                // Another process has taken it for a lost run: nothing is sent under it.
                self.doubt();
                self.turned_away(failed(Code::Overloaded, "lease", true))
            }
            ClaimVerdict::Unknown(unsettled) => self.found_unknown(unsettled),
            ClaimVerdict::Busy => self.turned_away(in_flight()),
            ClaimVerdict::Conflict => {
                self.notices.push(CallNotice::KeyConflict);
                self.turned_away(failed(Code::IdempotencyConflict, "key.conflict", false))
            }
            ClaimVerdict::Full => self.turned_away(failed(Code::Overloaded, "store.full", true)),
            ClaimVerdict::StoreRecovering | ClaimVerdict::Nothing => self.turned_away(store_unavailable()),
            ClaimVerdict::RecordsLost => {
                self.turned_away(failed(Code::StoreUnavailable, "store.records_lost", true))
            }
        }
    }

    pub(super) fn found_unknown(&mut self, unsettled: &UnknownOutcomeStatus) -> ExpectedStep {
        if unsettled.end != SettleStatus::Settled && self.can_wait(unsettled.end) {
            let half = Duration::from_millis(500);
            let left =
                if let SettleStatus::NotYet(Some(left)) = unsettled.end { left.min(half) } else { half };
            let key = unsettled.receipt.key;
            self.state = ReferenceCallState::AwaitingEnd(key, (self.now + left).min(self.waits_until()));
            return ExpectedStep::AwaitEnd(key);
        }
        let owner = unsettled.receipt.owner.clone();
        self.notices.push(CallNotice::OutcomeUnknown { of_earlier: Some(owner) });
        let is_over = unsettled.end == SettleStatus::Settled;
        let retry_after = self.comes_again(unsettled.end, unsettled.runs_in);
        let response = ExpectedResponse {
            recorded: RecordStatus::Yes,
            receipt: Some(unsettled.receipt.clone()).filter(|_| is_over),
            unknown: Some(UnknownOutcomeInfo { observed: unsettled.observed, is_final: is_over }),
            ..self.response(Err(ExpectedFailure {
                retry_after,
                ..failed(Code::OutcomeUnknown, "unknown", false)
            }))
        };
        let response = self.judge(response, None);
        self.finish(response, Vec::new())
    }

    /// Returns the time after which a caller with an unknown outcome should call again.
    pub(super) fn comes_again(&self, end: SettleStatus, runs_in: Option<Duration>) -> Option<Duration> {
        let settling = &self.policy.settling;
        match end {
            SettleStatus::Settled => runs_in,
            SettleStatus::NotYet(Some(left)) => Some(left),
            SettleStatus::NotYet(None) => Some(settling.child_stop_time() + settling.after_child()),
        }
    }

    pub(super) fn woke(&mut self, key: RecordKey, wake: &WakeReason) -> ExpectedStep {
        match wake {
            WakeReason::LeaderRefused(failure) => {
                let refused = of_failure(failure);
                self.turned_away(refused)
            }
            WakeReason::Time if self.now >= self.follows_until() => {
                let failed = if self.is_late() { deadline_passed() } else { in_flight() };
                self.turned_away(failed)
            }
            WakeReason::Time | WakeReason::Changed => {
                let role = ClaimRole::Waiter { followed: key };
                match self.refusal().filter(|_| self.delayed) {
                    Some(refusal) => {
                        self.state = ReferenceCallState::Looking(refusal);
                        ExpectedStep::Claim(Box::new(self.claim(ClaimIntent::Look, role)))
                    }
                    None => self.claim_or_start(role),
                }
            }
        }
    }

    pub(super) fn ask(&mut self, operator_only: bool, until: Timestamp) -> ExpectedStep {
        self.notices.push(CallNotice::ApprovalRequested);
        self.state = ReferenceCallState::AwaitingApproval { operator_only, until };
        ExpectedStep::Ask { operator_only, until }
    }

    pub(super) fn ask_or_start(&mut self) -> ExpectedStep {
        let checks_trust = self.spent.is_none() && self.policy.modes.trust == EnforcementMode::Enforce;
        let need = if checks_trust { self.need() } else { ReferenceApprovalNeed::NotNeeded };
        let must_mark_started =
            self.attempts == 0 && self.dedupes() && self.renews().is_some_and(|record| record.started);
        match need {
            ReferenceApprovalNeed::NotNeeded => self.start_or_attempt(),
            ReferenceApprovalNeed::Refuse { operator_only } => self.refuse(not_approved(operator_only)),
            ReferenceApprovalNeed::Spend(_) | ReferenceApprovalNeed::Ask { .. } if must_mark_started => {
                let release = self.release_of_claim();
                self.record = None;
                self.state = ReferenceCallState::GivingBack;
                release.map_or(ExpectedStep::Stay, ExpectedStep::Release)
            }
            ReferenceApprovalNeed::Spend(grant) => {
                let blocked = matches!(self.standing(), TrustDecision::Blocked(_));
                self.spend(grant, blocked)
            }
            ReferenceApprovalNeed::Ask { operator_only, until } => self.ask(operator_only, until),
        }
    }

    pub(super) fn spend(&mut self, grant: GrantId, blocked: bool) -> ExpectedStep {
        let owner = self.owner();
        self.approved_blocked = blocked;
        self.spent = Some((grant, owner.clone()));
        self.state = ReferenceCallState::Spending;
        ExpectedStep::Spend(grant, owner)
    }

    pub(super) fn answered(&mut self, operator_only: bool, answer: &ApprovalOutcome) -> ExpectedStep {
        self.notices
            .push(CallNotice::ApprovalEnded { granted: matches!(answer, ApprovalOutcome::Granted(_)) });
        match answer {
            ApprovalOutcome::Granted(Some(grant)) => self.spend(*grant, operator_only),
            ApprovalOutcome::Granted(None) => self.start_or_attempt(),
            ApprovalOutcome::Denied => {
                self.refuse(by_steadfast(failed(Code::ApprovalDenied, "approval", false)))
            }
            ApprovalOutcome::Unreachable => self.refuse(not_approved(operator_only)),
            ApprovalOutcome::ReturnedToCaller(question) => self.ask_caller(question),
        }
    }

    pub(super) fn ask_caller(&mut self, question: &ToolOutput) -> ExpectedStep {
        self.notices.push(CallNotice::InputRequired);
        self.put_off();
        let response = ExpectedResponse { input_required: true, ..self.response(Ok(Some(question.clone()))) };
        let unused = self.spent.take().filter(|_| self.attempts <= 1);
        let give_back = unused.map(|(grant, owner)| ExpectedFollowUp::GiveBack(grant, owner));
        self.release(response, give_back.into_iter().collect())
    }

    pub(super) fn start_or_attempt(&mut self) -> ExpectedStep {
        if matches!(self.sight, ClaimCondition::Lost | ClaimCondition::MarkedUnknown) {
            return self.handle_lost_claim();
        }
        match self.renews().filter(|record| !record.started) {
            Some(record) => {
                let due = ExpectedStep::Start(record.key, record.owner.clone());
                self.state = ReferenceCallState::Starting;
                due
            }
            None => self.attempt(),
        }
    }

    pub(super) fn handle_lost_claim(&mut self) -> ExpectedStep {
        match self.sight {
            ClaimCondition::MarkedUnknown => {
                self.refuse(by_steadfast(failed(Code::Overloaded, "lease", true)))
            }
            ClaimCondition::Lost | ClaimCondition::Fine | ClaimCondition::Down => self.look_again(),
        }
    }
}
