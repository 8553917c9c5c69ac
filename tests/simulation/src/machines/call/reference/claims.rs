//! Refusals, claims and approvals: the part before an attempt.

use super::*;

impl Reference {
    pub(super) fn refusal(&self) -> Option<Refusal> {
        if self.is_late() {
            return Some(by_us(deadline_passed()));
        }
        if self.policy.arguments == ArgumentCheck::Enforce && self.request.invalid_arguments.is_some() {
            return Some(by_us(failed(Code::InvalidArguments, "schema", false)));
        }
        let modes = self.policy.modes;
        if modes.guard == Mode::Enforce
            && let Some(refused) =
                self.machines.guard.would_refuse(&self.policy.guard, self.guarded(), self.now)
        {
            let failed = failed(refused.code, refused.layer.as_str(), false);
            return Some(Refusal { failed, breaker: None, by: By::Guard(refused.layer) });
        }
        let breakers = [Some(&self.machines.breaker), self.machines.dependency.as_ref()];
        let mut refused = breakers
            .into_iter()
            .flatten()
            .filter_map(|breaker| breaker.check(&self.policy.breaker, self.now).err());
        if modes.breaker == Mode::Enforce
            && let Some(refused) = refused.next()
        {
            return Some(self.circuit_open(refused));
        }
        match self.need() {
            Need::Refuse { operator_only } if modes.trust == Mode::Enforce => {
                Some(not_approved(operator_only))
            }
            Need::Refuse { .. } | Need::Nobody | Need::Spend(_) | Need::Ask { .. } => None,
        }
    }

    pub(super) fn circuit_open(&self, refused: breaker::Refused) -> Refusal {
        let retry_after = refused.retry_at.map(|at| at.since(self.now));
        let failed = Failed { retry_after, ..failed(Code::CircuitOpen, refused.by.rule(), true) };
        Refusal { failed, breaker: Some(refused.state), by: By::Us }
    }

    pub(super) fn refuse(&mut self, refusal: Refusal) -> Due {
        // The store could not be asked for an answer: that is reported instead.
        let unlooked =
            self.is_explicit() && self.dedupes() && self.sight == Sight::Down && self.attempts == 0;
        let refusal = if unlooked { by_us(store_unavailable()) } else { refusal };
        let state = self.machines.breaker.state(&self.policy.breaker, self.now);
        let breaker = refusal.breaker.or(Some(state));
        self.notices.push(Notice::CallBlocked { code: refusal.failed.code, retriable: false, breaker });
        let mut told = Told { breaker: refusal.breaker, ..self.told(Err(refusal.failed)) };
        let mut kept = Vec::new();
        match refusal.by {
            By::Us => told = self.judge(told, None),
            By::Guard(layer) => {
                self.notices.push(Notice::GuardTripped { layer });
                self.abandon();
                self.is_judged = true;
                let _counted =
                    self.with_guard(|guard, policy, call, now| guard.check(&policy.guard, call, now));
            }
            By::Trust { operator_only } => {
                kept.push(Kept::Park { operator_only });
                told = self.judge(told, None);
            }
        }
        self.release(told, kept)
    }

    pub(super) fn claim(&self, intent: Intent, role: Role) -> Claim {
        let (request, policy) = (&self.request, &self.policy);
        let address = self.address().expect("only calls that are recognised are claimed");
        let mut rules = Rules::from(&**policy);
        if request.hints.safety_critical {
            rules.after_unknown = AfterUnknown::Hold;
        }
        rules.computed_since = request.computed_since.filter(|_| request.sent_key == SentKey::Run);
        let to_end = policy.settling.grace + policy.settling.drain + Duration::from_secs(10);
        Claim {
            address,
            intent,
            role,
            owner: self.owner(),
            digest: request.digest,
            retry_safe: self.retry_safe(),
            best_effort: matches!(request.duplicates, Duplicates::Refused(_)),
            arrived: self.arrived,
            age: self.now.since(self.arrived),
            seen_end_within: (request.end == AttemptEnd::Seen).then_some(policy.time.total + to_end),
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

    pub(super) fn take(&mut self, role: Role, repeats: u32, started: bool) -> Due {
        self.state = State::Claiming(role, repeats);
        self.lease_until = self.now + self.policy.dedupe.keep.lease;
        Due::Claim(Box::new(self.claim(Intent::Take { started }, role)))
    }

    pub(super) fn claim_or_go(&mut self, role: Role) -> Due {
        if !self.dedupes() {
            return self.ask_or_go();
        }
        self.claims += 1;
        let at_once = self.policy.modes.trust != Mode::Enforce || matches!(self.need(), Need::Nobody);
        self.take(role, 0, at_once)
    }

    pub(super) fn look_again(&mut self) -> Due {
        let own = self.address().map(|address| address.own());
        let Some(followed) = self.record.take().map(|record| record.key).or(own) else { return Due::Stay };
        self.claims += 1;
        self.take(Role::Waiter { followed }, 0, false)
    }

    pub(super) fn claim_failed(&mut self, role: Role, repeats: u32) -> Due {
        if repeats < 2 {
            return self.take(role, repeats + 1, false);
        }
        let goes_on = self.goes_on();
        self.notices.push(Notice::StoreFailed { goes_on });
        if goes_on {
            let claim = self.claim(Intent::Take { started: true }, role);
            let decided = decide_claim(&claim, Found::default(), &Known::default(), self.now);
            if let ClaimVerdict::Mine(record) = decided.verdict {
                self.doubts.retain(|owner| *owner != record.owner);
                self.record = Some((*record).clone());
            }
            self.sight = Sight::Down;
            return self.ask_or_go();
        }
        self.turned_away(store_unavailable())
    }

    /// Refuses a call without a claim.
    pub(super) fn turned_away(&mut self, failed: Failed) -> Due {
        let breaker = Some(self.machines.breaker.state(&self.policy.breaker, self.now));
        self.notices.push(Notice::CallBlocked { code: failed.code, retriable: false, breaker });
        let told = self.told(Err(failed));
        let told = self.judge(told, None);
        self.finish(told, Vec::new())
    }

    pub(super) fn found(&mut self, verdict: &ClaimVerdict) -> Due {
        match verdict {
            ClaimVerdict::Mine(record) => {
                if record.run != self.request.run {
                    self.notices.push(Notice::TookOver);
                }
                self.doubts.retain(|owner| *owner != record.owner);
                self.record = Some((**record).clone());
                self.sight = Sight::Fine;
                self.ask_or_go()
            }
            ClaimVerdict::Follow(key) => {
                self.notices.push(Notice::Following);
                self.state = State::Following(*key);
                Due::Follow(*key)
            }
            ClaimVerdict::Replay(replay) => {
                self.notices.push(Notice::Replayed { reason: replay.reason });
                let ended = match &replay.answer {
                    Ok(Some(output)) => Ok(Some(output.clone())),
                    Ok(None) => Err(Failed {
                        code: Code::ResultNotKept,
                        rule: None,
                        retriable: false,
                        retry_after: None,
                    }),
                    Err(failure) => Err(of_failure(failure)),
                };
                let told = Told {
                    replayed: Some(replay.reason),
                    recorded: Recorded::Yes,
                    receipt: Some(replay.receipt.clone()),
                    ..self.told(ended)
                };
                let told = self.judge(told, None);
                self.finish(told, Vec::new())
            }
            ClaimVerdict::Unknown(unsettled) if unsettled.receipt.owner == self.owner() => {
                // Another process has taken it for a lost run: nothing is sent under it.
                self.doubt();
                self.turned_away(failed(Code::Overloaded, "lease", true))
            }
            ClaimVerdict::Unknown(unsettled) => self.found_unknown(unsettled),
            ClaimVerdict::Busy => self.turned_away(in_flight()),
            ClaimVerdict::Conflict => {
                self.notices.push(Notice::KeyConflict);
                self.turned_away(failed(Code::IdempotencyConflict, "key.conflict", false))
            }
            ClaimVerdict::Full => self.turned_away(failed(Code::Overloaded, "store.full", true)),
            ClaimVerdict::Closed | ClaimVerdict::Nothing => self.turned_away(store_unavailable()),
            ClaimVerdict::RecordsLost => {
                self.turned_away(failed(Code::StoreUnavailable, "store.records_lost", true))
            }
        }
    }

    pub(super) fn found_unknown(&mut self, unsettled: &Unsettled) -> Due {
        if unsettled.end != End::Settled && self.can_wait(unsettled.end) {
            let half = Duration::from_millis(500);
            let left = if let End::NotYet(Some(left)) = unsettled.end { left.min(half) } else { half };
            let key = unsettled.receipt.key;
            self.state = State::AwaitingEnd(key, (self.now + left).min(self.waits_until()));
            return Due::AwaitEnd(key);
        }
        let owner = unsettled.receipt.owner.clone();
        self.notices.push(Notice::OutcomeUnknown { of_earlier: Some(owner) });
        let is_over = unsettled.end == End::Settled;
        let retry_after = self.comes_again(unsettled.end, unsettled.runs_in);
        let told = Told {
            recorded: Recorded::Yes,
            receipt: Some(unsettled.receipt.clone()).filter(|_| is_over),
            unknown: Some(ToldUnknown { observed: unsettled.observed, ended: is_over }),
            ..self.told(Err(Failed { retry_after, ..failed(Code::OutcomeUnknown, "unknown", false) }))
        };
        let told = self.judge(told, None);
        self.finish(told, Vec::new())
    }

    /// Returns the time after which a caller with an unknown outcome should call again.
    pub(super) fn comes_again(&self, end: End, runs_in: Option<Duration>) -> Option<Duration> {
        let settling = &self.policy.settling;
        match end {
            End::Settled => runs_in,
            End::NotYet(Some(left)) => Some(left),
            End::NotYet(None) => Some(settling.to_end_child() + settling.after_child()),
        }
    }

    pub(super) fn woke(&mut self, key: Key, wake: &Wake) -> Due {
        match wake {
            Wake::LeaderRefused(failure) => {
                let refused = of_failure(failure);
                self.turned_away(refused)
            }
            Wake::Time if self.now >= self.follows_until() => {
                let failed = if self.is_late() { deadline_passed() } else { in_flight() };
                self.turned_away(failed)
            }
            Wake::Time | Wake::Changed => {
                let role = Role::Waiter { followed: key };
                match self.refusal().filter(|_| self.held_back) {
                    Some(refusal) => {
                        self.state = State::Looking(refusal);
                        Due::Claim(Box::new(self.claim(Intent::Look, role)))
                    }
                    None => self.claim_or_go(role),
                }
            }
        }
    }

    pub(super) fn ask(&mut self, operator_only: bool, until: Timestamp) -> Due {
        self.notices.push(Notice::ApprovalAsked);
        self.state = State::AwaitingApproval { operator_only, until };
        Due::Ask { operator_only, until }
    }

    pub(super) fn ask_or_go(&mut self) -> Due {
        let is_asked = self.spent.is_none() && self.policy.modes.trust == Mode::Enforce;
        let need = if is_asked { self.need() } else { Need::Nobody };
        let says_started =
            self.attempts == 0 && self.dedupes() && self.renews().is_some_and(|record| record.started);
        match need {
            Need::Nobody => self.start_or_go(),
            Need::Refuse { operator_only } => self.refuse(not_approved(operator_only)),
            Need::Spend(_) | Need::Ask { .. } if says_started => {
                let release = self.release_of_claim();
                self.record = None;
                self.state = State::GivingBack;
                release.map_or(Due::Stay, Due::Release)
            }
            Need::Spend(grant) => {
                let blocked = matches!(self.standing(), Standing::Blocked(_));
                self.spend(grant, blocked)
            }
            Need::Ask { operator_only, until } => self.ask(operator_only, until),
        }
    }

    pub(super) fn spend(&mut self, grant: GrantId, blocked: bool) -> Due {
        let owner = self.owner();
        self.approved_blocked = blocked;
        self.spent = Some((grant, owner.clone()));
        self.state = State::Spending;
        Due::Spend(grant, owner)
    }

    pub(super) fn answered(&mut self, operator_only: bool, answer: &Approval) -> Due {
        self.notices.push(Notice::ApprovalEnded { granted: matches!(answer, Approval::Granted(_)) });
        match answer {
            Approval::Granted(Some(grant)) => self.spend(*grant, operator_only),
            Approval::Granted(None) => self.start_or_go(),
            Approval::Denied => self.refuse(by_us(failed(Code::ApprovalDenied, "approval", false))),
            Approval::Nobody => self.refuse(not_approved(operator_only)),
            Approval::PutToCaller(question) => self.ask_caller(question),
        }
    }

    pub(super) fn ask_caller(&mut self, question: &Output) -> Due {
        self.notices.push(Notice::InputRequired);
        self.put_off();
        let told = Told { asks: true, ..self.told(Ok(Some(question.clone()))) };
        let unused = self.spent.take().filter(|_| self.attempts <= 1);
        let kept = unused.map(|(grant, owner)| Kept::GiveBack(grant, owner));
        self.release(told, kept.into_iter().collect())
    }

    pub(super) fn start_or_go(&mut self) -> Due {
        if matches!(self.sight, Sight::Lost | Sight::MarkedUnknown) {
            return self.lost_the_claim();
        }
        match self.renews().filter(|record| !record.started) {
            Some(record) => {
                let due = Due::Start(record.key, record.owner.clone());
                self.state = State::Starting;
                due
            }
            None => self.attempt(),
        }
    }

    pub(super) fn lost_the_claim(&mut self) -> Due {
        match self.sight {
            Sight::MarkedUnknown => self.refuse(by_us(failed(Code::Overloaded, "lease", true))),
            Sight::Lost | Sight::Fine | Sight::Down => self.look_again(),
        }
    }
}
