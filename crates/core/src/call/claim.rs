//! Claims of an idempotency key: making one, waiting for the in-flight call, and continuing without the store.

use super::*;

impl Call {
    pub(super) fn dedupe(&self) -> Mode {
        match self.request.address() {
            Some(_) => self.policy.modes.dedupe,
            None => Mode::Off,
        }
    }

    pub(super) fn claim_or_go(
        &mut self,
        shared: &mut Shared<'_>,
        role: Role,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        if self.dedupe() == Mode::Off {
            self.tell_withheld(notices);
            return self.ask_or_go(shared, now, notices);
        }
        self.claims += 1;
        self.state = State::Claiming { role, repeats: 0 };
        self.lease_from(now);
        let at_once =
            self.policy.modes.trust != Mode::Enforce || matches!(self.need(shared, now), Need::Nobody);
        self.claim_step(Intent::Take { started: at_once }, role, now)
    }

    pub(super) fn claim_step(&self, intent: Intent, role: Role, now: Timestamp) -> Step {
        self.claim(intent, role, now).map_or(Step::Stay, |claim| Step::Claim(Box::new(claim)))
    }

    pub(super) fn claim(&self, intent: Intent, role: Role, now: Timestamp) -> Option<Claim> {
        let request = &self.request;
        let mut rules = crate::dedupe::Rules::from(&*self.policy);
        if request.hints.safety_critical {
            rules.after_unknown = AfterUnknown::Hold;
        }
        rules.computed_since = match request.sent_key {
            SentKey::Given => None,
            SentKey::Run => request.computed_since,
        };
        let address = request.address()?;
        Some(Claim {
            // Shadow records are separate, so that they are never replayed to a call in enforce mode.
            address: if self.dedupe() == Mode::Shadow { address.shadowed() } else { address },
            intent,
            role,
            owner: self.owner(),
            digest: request.digest,
            retry_safe: self.retry_safe,
            best_effort: matches!(request.duplicates, Duplicates::Refused(_)),
            arrived: self.arrived,
            age: now.since(self.arrived),
            seen_end_within: match request.end {
                AttemptEnd::Seen => Some(self.policy.time.total + self.policy.settling.to_end_child()),
                AttemptEnd::Unseen => None,
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

    pub(super) fn owner(&self) -> Owner {
        Owner { process: self.request.process.clone(), call: self.request.number, claim: self.claims }
    }

    /// Continues with the store's verdict on a claim.
    pub(super) fn found(
        &mut self,
        shared: &mut Shared<'_>,
        verdict: ClaimVerdict,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        // A verdict that found an earlier call takes precedence over every reason against a run.
        match &verdict {
            ClaimVerdict::Mine(_)
            | ClaimVerdict::Nothing
            | ClaimVerdict::Full
            | ClaimVerdict::Closed
            | ClaimVerdict::RecordsLost => {
                self.tell_withheld(notices);
            }
            ClaimVerdict::Follow(_)
            | ClaimVerdict::Busy
            | ClaimVerdict::Replay(_)
            | ClaimVerdict::Unknown(_)
            | ClaimVerdict::Conflict => {}
        }
        if self.dedupe() == Mode::Shadow
            && let Some(shadowed) = instead_of_a_run(&verdict)
        {
            self.withheld = None;
            self.shadow(shadowed, notices);
            return self.ask_or_go(shared, now, notices);
        }
        match verdict {
            ClaimVerdict::Mine(record) => {
                if record.run != self.request.run {
                    notices.push(Notice::TookOver);
                }
                self.claims_in_doubt.retain(|owner| *owner != record.owner);
                self.record = Some(record);
                self.store = StoreSight::Fine;
                self.ask_or_go(shared, now, notices)
            }
            ClaimVerdict::Follow(record) => {
                notices.push(Notice::Following);
                self.state = State::Following { record };
                Step::Follow(record)
            }
            ClaimVerdict::Replay(replay) => self.replay(shared, *replay, now, notices),
            ClaimVerdict::Unknown(unsettled) if unsettled.receipt.owner == self.owner() => {
                self.claim_given_up(shared, now, notices)
            }
            ClaimVerdict::Unknown(unsettled) => self.found_unknown(shared, *unsettled, now, notices),
            ClaimVerdict::Busy => self.turn_away(shared, say::in_flight(), now, notices),
            ClaimVerdict::Conflict => {
                notices.push(Notice::KeyConflict);
                self.turn_away(shared, say::conflict(), now, notices)
            }
            ClaimVerdict::Full => self.turn_away(shared, say::store_full(), now, notices),
            ClaimVerdict::Closed => {
                self.turn_away(shared, say::store_unavailable(&self.request), now, notices)
            }
            ClaimVerdict::RecordsLost => {
                self.turn_away(shared, say::records_lost(&self.request), now, notices)
            }
            // A claim never gets this verdict, and a lookup is handled before.
            ClaimVerdict::Nothing => {
                self.turn_away(shared, say::store_unavailable(&self.request), now, notices)
            }
        }
    }

    /// Ends a call whose own claim was answered too late: other callers already saw an unknown outcome for it. Nothing
    /// was sent under the claim, and nothing will be, because another caller may know that it has ended.
    fn claim_given_up(&mut self, shared: &mut Shared<'_>, now: Timestamp, notices: &mut Vec<Notice>) -> Step {
        self.doubt_claim();
        let failure = say::stood_still(&self.request);
        notices.push(self.blocked(shared, &failure, now));
        let result = self.failed(failure, now);
        let result = self.judge(shared, result, now, notices);
        self.finish(result, Vec::new(), now, notices)
    }

    /// Handles a claim that the store did not answer, or refused. A claim without answer is repeated under the same
    /// token.
    pub(super) fn claim_failed(
        &mut self,
        shared: &mut Shared<'_>,
        role: Role,
        repeats: u32,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        if repeats < CLAIM_REPEATS {
            self.state = State::Claiming { role, repeats: repeats + 1 };
            self.lease_from(now);
            return self.claim_step(Intent::Take { started: false }, role, now);
        }
        self.tell_withheld(notices);
        let would_go_on = self.goes_on_without_store();
        if self.dedupe() == Mode::Shadow && !would_go_on {
            self.shadow(Shadowed::Refused(Code::StoreUnavailable), notices);
        }
        let goes_on = self.dedupe() == Mode::Shadow || would_go_on;
        notices.push(Notice::StoreFailed { goes_on });
        if goes_on {
            // The record that the store would have written, so that the result can be saved when the store is back.
            if let Some(claim) = self.claim(Intent::Take { started: true }, role, now)
                && let ClaimVerdict::Mine(record) =
                    decide_claim(&claim, Found::default(), &Known::default(), now).verdict
            {
                self.claims_in_doubt.retain(|owner| *owner != record.owner);
                self.record = Some(record);
            }
            self.store = StoreSight::Down;
            return self.ask_or_go(shared, now, notices);
        }
        let failure = say::store_unavailable(&self.request);
        notices.push(self.blocked(shared, &failure, now));
        let result = self.failed(failure, now);
        let result = self.judge(shared, result, now, notices);
        self.finish(result, Vec::new(), now, notices)
    }

    pub(super) fn goes_on_without_store(&self) -> bool {
        let dedupe = &self.policy.dedupe;
        if self.request.hints.safety_critical
            || (self.is_explicit() && dedupe.explicit_key_on_store_failure == OnStoreFailure::Refuse)
        {
            return false;
        }
        match self.policy.class {
            ToolClass::ReadOnly | ToolClass::Idempotent => true,
            ToolClass::Mutating => false,
            ToolClass::Unknown => dedupe.on_store_failure == OnStoreFailure::GoOn,
        }
    }

    /// Returns true if its key was given explicitly.
    pub(super) fn is_explicit(&self) -> bool {
        matches!(self.request.address(), Some(Address::Explicit(_)))
    }

    pub(super) fn follow_until(&self) -> Timestamp {
        let time = &self.policy.time;
        let patience =
            self.patience().unwrap_or(time.total).min(self.request.limits.elapsed.unwrap_or(time.total));
        (self.arrived + patience).min(self.latest_start().unwrap_or(Timestamp::MAX))
    }

    pub(super) fn woke_following(
        &mut self,
        shared: &mut Shared<'_>,
        record: Key,
        wake: Wake,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        match wake {
            Wake::LeaderRefused(failure) => {
                notices.push(self.blocked(shared, &failure, now));
                let result = self.failed(*failure, now);
                self.conclude(shared, result, now, notices)
            }
            Wake::Time if now >= self.follow_until() => {
                let failure = if self.is_late(now) { say::deadline_passed() } else { say::in_flight() };
                self.turn_away(shared, failure, now, notices)
            }
            Wake::Time | Wake::Changed => {
                let role = Role::Waiter { followed: record };
                // A reason against a run may still apply. The awaited result is used all the same.
                let is_asked = self.withheld.take().is_some() || self.held_back;
                let refusal = if is_asked { self.refusal(shared, now) } else { None };
                // A refusal in shadow mode is only reported.
                match refusal.filter(|_| self.held_back) {
                    Some(refusal) => {
                        self.state = State::Looking { refusal };
                        self.claim_step(Intent::Look, role, now)
                    }
                    None => self.claim_or_go(shared, role, now, notices),
                }
            }
        }
    }

    /// Handles a claim that was lost before anything was sent.
    pub(super) fn lost_the_claim(
        &mut self,
        shared: &mut Shared<'_>,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) -> Step {
        match self.store {
            // Other callers saw an unknown outcome and may act on it, so the call must not run now. Releasing the claim
            // lets them call again at once.
            StoreSight::MarkedUnknown => {
                self.refuse(shared, Refusal::us(say::stood_still(&self.request)), now, notices)
            }
            StoreSight::FenceLost | StoreSight::Fine | StoreSight::Down => self.look_again(now),
        }
    }

    /// Looks up the record again, as a waiter would.
    pub(super) fn look_again(&mut self, now: Timestamp) -> Step {
        let followed = self
            .record
            .take()
            .map(|record| record.key)
            .or(self.request.address().map(|address| address.own()));
        let Some(followed) = followed else { return Step::Stay };
        self.claims += 1;
        let role = Role::Waiter { followed };
        self.state = State::Claiming { role, repeats: 0 };
        self.lease_from(now);
        self.claim_step(Intent::Take { started: false }, role, now)
    }

    /// Starts the lease when the claim is sent: if the claim succeeds, its lease may have begun at once, however long
    /// the answer takes.
    fn lease_from(&mut self, now: Timestamp) {
        self.lease_until = now + self.policy.dedupe.keep.lease;
    }
}

/// Returns the decision that an enforced claim would have led to instead of a run.
fn instead_of_a_run(verdict: &ClaimVerdict) -> Option<Shadowed> {
    match verdict {
        ClaimVerdict::Mine(_) => None,
        ClaimVerdict::Follow(_) | ClaimVerdict::Replay(_) | ClaimVerdict::Unknown(_) => {
            Some(Shadowed::Duplicate)
        }
        ClaimVerdict::Busy => Some(Shadowed::Refused(Code::InFlight)),
        ClaimVerdict::Conflict => Some(Shadowed::Refused(Code::IdempotencyConflict)),
        ClaimVerdict::Full => Some(Shadowed::Refused(Code::Overloaded)),
        ClaimVerdict::Closed | ClaimVerdict::RecordsLost | ClaimVerdict::Nothing => {
            Some(Shadowed::Refused(Code::StoreUnavailable))
        }
    }
}
