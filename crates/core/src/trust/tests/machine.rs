//! Every state with every event, and random sequences against a model that stores everything.

use proptest::prelude::*;

use super::*;
use crate::policy::TrustRecovery;
use crate::trust::{NotifyChoice, TrustTarget};

const BAD: FinishedOutcome = FinishedOutcome::Failure { severity: Severity::ServerError, recoverable: true };
const HOPELESS: FinishedOutcome =
    FinishedOutcome::Failure { severity: Severity::ServerError, recoverable: false };
const MISTAKE: FinishedOutcome =
    FinishedOutcome::Failure { severity: Severity::InvalidInput, recoverable: true };

/// Half an hour after the escalation at second 0, when recovery may begin.
const DUE: u64 = 1800;

fn in_state(state: TrustState) -> SingleToolLedger {
    match state {
        TrustState::Trusted => SingleToolLedger::new(TrustRule::default()),
        TrustState::Escalated => SingleToolLedger::escalated(TrustRule::default(), 0),
        TrustState::Recovering => {
            let mut one = SingleToolLedger::escalated(TrustRule::default(), 0);
            one.record(OK, DUE);
            one
        }
        TrustState::Blocked => {
            let mut one = SingleToolLedger::escalated(TrustRule::default(), 0);
            one.records(&[BAD; 10], 0);
            one
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum LedgerTestEvent {
    /// A number of calls with this result.
    Calls(FinishedOutcome, usize),
    /// Time until the recovery is due.
    Time,
    ApproveRecovery,
    Reset,
}

#[test]
fn rp_6_every_state_with_every_event() {
    use TrustState::{Blocked, Escalated, Recovering, Trusted};
    let security = failure(Severity::Security);
    let denied = failure(Severity::RepeatedAuth);
    #[rustfmt::skip]
    let table = [
        // event                        TRUSTED    ESCALATED   RECOVERING  BLOCKED
        (LedgerTestEvent::Calls(OK, 1),          [Trusted,   Escalated,  Recovering, Blocked]),
        (LedgerTestEvent::Calls(OK, 2),          [Trusted,   Escalated,  Trusted,    Blocked]),
        (LedgerTestEvent::Calls(BAD, 1),         [Trusted,   Escalated,  Escalated,  Blocked]),
        (LedgerTestEvent::Calls(BAD, 3),         [Escalated, Escalated,  Escalated,  Blocked]),
        (LedgerTestEvent::Calls(BAD, 9),         [Escalated, Escalated,  Escalated,  Blocked]),
        (LedgerTestEvent::Calls(BAD, 10),        [Escalated, Blocked,    Escalated,  Blocked]),
        (LedgerTestEvent::Calls(BAD, 13),        [Blocked,   Blocked,    Blocked,    Blocked]),
        (LedgerTestEvent::Calls(MISTAKE, 20),    [Trusted,   Escalated,  Recovering, Blocked]),
        (LedgerTestEvent::Calls(denied, 1),      [Escalated, Escalated,  Escalated,  Blocked]),
        (LedgerTestEvent::Calls(security, 1),    [Blocked,   Blocked,    Blocked,    Blocked]),
        (LedgerTestEvent::Time,                  [Trusted,   Recovering, Recovering, Blocked]),
        (LedgerTestEvent::ApproveRecovery,       [Trusted,   Recovering, Recovering, Blocked]),
        (LedgerTestEvent::Reset,                 [Trusted,   Trusted,    Trusted,    Trusted]),
    ];
    for (event, expected) in table {
        for (from, to) in [Trusted, Escalated, Recovering, Blocked].into_iter().zip(expected) {
            let mut one = in_state(from);
            let start = if from == Recovering { DUE } else { 1 };
            assert_eq!(one.state(start), from);
            let mut now = start;
            match event {
                LedgerTestEvent::Calls(finished, times) => one.records(&vec![finished; times], now),
                LedgerTestEvent::Time => now = start + DUE,
                LedgerTestEvent::ApproveRecovery => {
                    one.ledger.approve_recovery(TrustTarget::Signature(&one.tool, &one.signature), at(now));
                }
                LedgerTestEvent::Reset => {
                    one.ledger.reset(TrustTarget::Tool(&one.tool), at(now));
                }
            }
            assert_eq!(one.state(now), to, "{from} with {event:?}");
        }
    }
}

#[test]
fn rp_6_recovery_begins_at_the_later_of_expiry_and_cooldown() {
    let mut one = SingleToolLedger::escalated(TrustRule::default(), 0);
    assert_eq!((one.state(1799), one.state(1800)), (TrustState::Escalated, TrustState::Recovering));
    one.record(BAD, 1000);
    assert_eq!(
        one.state(1899),
        TrustState::Escalated,
        "the cool-down of 900 s runs from the last counted failure"
    );
    assert_eq!(one.state(1900), TrustState::Recovering);
    one.record(MISTAKE, 1500);
    assert_eq!(one.state(1900), TrustState::Recovering, "what does not count does not disturb the cool-down");
}

#[test]
fn rp_6_a_query_does_not_change_the_state() {
    let one = SingleToolLedger::escalated(TrustRule::default(), 0);
    assert_eq!(one.state(5000), TrustState::Recovering);
    assert_eq!(one.state(10), TrustState::Escalated);
}

#[test]
fn rp_6_a_failure_on_trial_escalates_with_a_fresh_expiry() {
    let mut one = SingleToolLedger::escalated(TrustRule::default(), 0);
    one.record(OK, 2000);
    let changes = one.record(BAD, 2001);
    assert_eq!(one.reason(2001), "failed again while recovering (server_error)");
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].until, Some(at(2001 + 1800)));
    one.record(OK, 2002);
    assert_eq!(one.state(2002), TrustState::Escalated, "the old expiry is of no use any more");
    assert_eq!((one.state(3800), one.state(3801)), (TrustState::Escalated, TrustState::Recovering));
}

#[test]
fn rp_6_recovery_restarts_its_count_each_time() {
    let mut one = SingleToolLedger::escalated(TrustRule::default(), 0);
    one.records(&[OK, OK, BAD], 2000);
    one.record(OK, 4000);
    assert_eq!(one.state(4000), TrustState::Recovering);
    one.records(&[OK, OK], 4001);
    assert_eq!(one.state(4001), TrustState::Trusted);
}

#[test]
fn rp_6_old_failures_do_not_count_again_after_recovery_or_reset() {
    let mut recovered = SingleToolLedger::escalated(TrustRule::default(), 0);
    recovered.records(&[OK; 3], 1800);
    let mut reset =
        SingleToolLedger::escalated(TrustRule { consecutive: Some(n(3)), ..TrustRule::default() }, 1800);
    reset.ledger.reset(TrustTarget::All, at(1801));
    for mut one in [recovered, reset] {
        one.records(&[BAD, BAD], 1802);
        assert_eq!(one.state(1802), TrustState::Trusted);
        one.record(BAD, 1803);
        assert_eq!(one.reason(1803), "3 failures in 1 h");
    }
}

#[test]
fn rp_6_manual_recovery_waits_for_an_operator() {
    let rule = TrustRule { recovery: TrustRecovery::Ask, ..TrustRule::default() };
    let mut one = SingleToolLedger::escalated(rule, 0);
    one.records(&[OK; 10], 90_000);
    assert_eq!(one.state(90_000), TrustState::Escalated);
    let changes = one.ledger.approve_recovery(TrustTarget::Tool(&one.tool), at(90_001));
    assert_eq!((changes.len(), changes[0].to, changes[0].notify), (1, TrustState::Recovering, false));
    assert_eq!(one.state(90_001), TrustState::Recovering);
    one.records(&[OK; 3], 90_002);
    assert_eq!(one.state(90_002), TrustState::Trusted);
}

#[test]
fn rp_6_changing_the_rule_to_automatic_recovery_starts_pending_recoveries() {
    let mut one =
        SingleToolLedger::escalated(TrustRule { recovery: TrustRecovery::Ask, ..TrustRule::default() }, 0);
    assert_eq!(one.state(5000), TrustState::Escalated);
    one.rule.recovery = TrustRecovery::Auto;
    assert_eq!(one.state(5000), TrustState::Recovering);
}

#[test]
fn rp_6_an_unrecoverable_escalation_ends_only_with_approval() {
    let mut before = SingleToolLedger::new(TrustRule::default());
    before.records(&[HOPELESS, BAD, BAD], 0);
    let mut during = SingleToolLedger::escalated(TrustRule::default(), 0);
    during.record(HOPELESS, 10);
    let mut on_trial = SingleToolLedger::escalated(TrustRule::default(), 0);
    on_trial.record(HOPELESS, 1800);
    for mut one in [before, during, on_trial] {
        assert_eq!(one.state(1_000_000), TrustState::Escalated);
        let TrustDecision::NeedsApproval(prompt) = one.standing(1_000_000) else { panic!("it asks") };
        assert!(
            prompt.recovery_hint.starts_with("an operator has to approve its recovery"),
            "{}",
            prompt.recovery_hint
        );
        one.ledger.approve_recovery(TrustTarget::Signature(&one.tool, &one.signature), at(1_000_000));
        assert_eq!(one.state(1_000_000), TrustState::Recovering);
    }
}

#[test]
fn rp_6_a_blocked_tool_keeps_its_reason() {
    let mut one = SingleToolLedger::escalated(TrustRule::default(), 0);
    one.records(&[BAD; 10], 5);
    assert_eq!(one.reason(5), "10 more failures while approval was needed (first: 3 failures in 1 h)");
    one.records(&[OK; 10], 1_000_000);
    assert_eq!(one.state(1_000_000), TrustState::Blocked);
}

/// A burst of parallel calls to a host that just died: all of them were in flight when the third one failed. If they
/// counted towards a block, a tool that is merely down would be blocked.
#[test]
fn calls_in_flight_when_trust_was_lost_do_not_block() {
    let mut one = SingleToolLedger::new(TrustRule::default());
    let rules = TrustRules { signature: &one.rule, domain: None };
    let subject = TrustSubject { tool: &one.tool, signature: &one.signature, domain: None };
    for _ in 0..64 {
        one.ledger.record_with_start(rules, subject, BAD, at(0), at(30));
    }
    assert_eq!(one.state(30), TrustState::Escalated);
    one.records(&[BAD; 10], 31);
    assert_eq!(one.state(31), TrustState::Blocked);
}

#[test]
fn rp_8_the_status_has_the_time_of_recovery_under_the_given_rule() {
    let rule = TrustRule { window: MINUTE, cooldown: HOUR, ..TrustRule::default() };
    let mut one = SingleToolLedger::escalated(rule, 0);
    let blocked = tool("web", "blocked");
    one.ledger.block_tool(&blocked, "by hand", NotifyChoice::Yes, at(0));
    let shown =
        |one: &SingleToolLedger, rule: &TrustRule, now| one.ledger.status(|_, _| rule.clone(), at(now));
    let status = shown(&one, &one.rule, 0);
    let states: Vec<_> = status.iter().map(|one| one.standing.state).collect();
    assert_eq!(states, [TrustState::Blocked, TrustState::Escalated], "the worst first");
    let ends: Vec<_> = status.iter().map(|one| (one.recovers_at, one.waits_for_approval)).collect();
    assert_eq!(ends, [(None, false), (Some(at(3600)), false)]);
    assert_eq!((status[0].window_ms, status[0].cooldown_ms), (60_000, 3_600_000));
    // At that time it recovers, and not before.
    for (now, state, recovers_at) in
        [(3599, TrustState::Escalated, Some(at(3600))), (3600, TrustState::Recovering, None)]
    {
        let view = &shown(&one, &one.rule, now)[1];
        assert_eq!(
            (view.standing.state, view.recovers_at, view.waits_for_approval),
            (state, recovers_at, false)
        );
    }
    // With manual recovery no time leads back.
    let manual = TrustRule { recovery: TrustRecovery::Ask, ..one.rule.clone() };
    let view = &shown(&one, &manual, 1_000_000)[1];
    assert_eq!((view.standing.state, view.recovers_at), (TrustState::Escalated, None));
    assert!(view.waits_for_approval);
    // The rule is that of the tool, or of the domain alone.
    let queries = std::cell::RefCell::new(Vec::new());
    one.ledger.status(
        |tool, domain| {
            queries.borrow_mut().push((tool.is_some(), domain.is_some()));
            TrustRule::default()
        },
        at(0),
    );
    assert_eq!(queries.into_inner(), [(true, false), (true, false)]);
}

/// The same decisions, derived from a list of all events.
#[derive(Default)]
struct LedgerModel {
    state: Option<ModelTrustLoss>,
    failures: Vec<u64>,
    run: u32,
}

enum ModelTrustLoss {
    Escalated { expires: u64, last: u64, further: u32 },
    Recovering { successes: u32 },
    Blocked,
}

impl LedgerModel {
    // The window outlasts a recovery, so that a failure that was not cleared shows.
    const WINDOW: u64 = 100;
    const DURATION: u64 = 20;
    const COOLDOWN: u64 = 15;

    fn rule() -> TrustRule {
        let seconds = |seconds| Duration::from_secs(seconds);
        TrustRule {
            count: Some(n(4)),
            consecutive: Some(n(3)),
            window: seconds(Self::WINDOW),
            duration: seconds(Self::DURATION),
            cooldown: seconds(Self::COOLDOWN),
            successes_to_recover: n(2),
            block_after: n(3),
            ..TrustRule::default()
        }
    }

    fn advance_to(&mut self, now: u64) {
        if let Some(ModelTrustLoss::Escalated { expires, last, .. }) = self.state
            && now >= expires.max(last + Self::COOLDOWN)
        {
            self.state = Some(ModelTrustLoss::Recovering { successes: 0 });
        }
    }

    fn success(&mut self, now: u64) {
        self.advance_to(now);
        self.run = 0;
        if let Some(ModelTrustLoss::Recovering { successes }) = &mut self.state {
            *successes += 1;
            if *successes == 2 {
                *self = Self::default();
            }
        }
    }

    fn failure(&mut self, now: u64) {
        self.advance_to(now);
        self.failures.push(now);
        self.run += 1;
        let fresh = ModelTrustLoss::Escalated { expires: now + Self::DURATION, last: now, further: 0 };
        match &mut self.state {
            None => {
                let within = |failure: &&u64| **failure + Self::WINDOW >= now;
                let count = self.failures.iter().filter(within).count();
                let run = self.failures.iter().rev().take(self.run as usize).filter(within).count();
                if count >= 4 || run >= 3 {
                    self.state = Some(fresh);
                }
            }
            Some(ModelTrustLoss::Recovering { .. }) => self.state = Some(fresh),
            Some(ModelTrustLoss::Escalated { last, further, .. }) => {
                *last = now;
                *further += 1;
                if *further == 3 {
                    self.state = Some(ModelTrustLoss::Blocked);
                }
            }
            Some(ModelTrustLoss::Blocked) => {}
        }
    }

    fn name(&self) -> TrustState {
        match self.state {
            None => TrustState::Trusted,
            Some(ModelTrustLoss::Escalated { .. }) => TrustState::Escalated,
            Some(ModelTrustLoss::Recovering { .. }) => TrustState::Recovering,
            Some(ModelTrustLoss::Blocked) => TrustState::Blocked,
        }
    }
}

proptest! {
    #[test]
    fn any_sequence_of_calls_agrees_with_the_model(
        steps in prop::collection::vec((0_u64..16, 0_u8..12), 1..80),
    ) {
        let mut one = SingleToolLedger::new(LedgerModel::rule());
        let mut model = LedgerModel::default();
        let mut now = 0;
        for (passed, action) in steps {
            now += passed;
            let before = one.state(now);
            let changes = match action {
                0..5 => {
                    model.success(now);
                    one.record(OK, now)
                }
                5..10 => {
                    model.failure(now);
                    one.record(BAD, now)
                }
                10 => {
                    model.advance_to(now);
                    one.record(MISTAKE, now)
                }
                _ => {
                    model = LedgerModel::default();
                    one.ledger.reset(TrustTarget::Signature(&one.tool, &one.signature), at(now))
                }
            };
            model.advance_to(now);
            prop_assert_eq!(one.state(now), model.name());
            // Changes are consistent: each change starts where the one before it ended.
            for pair in changes.windows(2) {
                prop_assert_eq!(pair[0].to, pair[1].from);
            }
            match changes.last() {
                Some(last) => prop_assert_eq!(last.to, one.state(now)),
                None => prop_assert_eq!(before, one.state(now)),
            }
            // A restart in between does not change the state.
            let restored = TrustLedger::restore(one.ledger.snapshot(at(now)), crate::trust::TrustBounds::default());
            let after_restart = SingleToolLedger { ledger: restored.unwrap(), rule: LedgerModel::rule(), ..SingleToolLedger::new(LedgerModel::rule()) };
            prop_assert_eq!(after_restart.standing(now), one.standing(now));
        }
    }
}
