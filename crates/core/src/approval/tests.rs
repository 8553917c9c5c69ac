use proptest::prelude::*;

use super::*;
use crate::classify::Severity;
use crate::id::{Namespace, ToolName};
use crate::policy::TrustRule;
use crate::trust::{FinishedOutcome, PromptLevel, TrustLedger, TrustRules, TrustState, TrustSubject};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

fn owner(number: u8) -> Digest {
    Digest::of(&[number])
}

/// A call of a test, with everything in which it can differ from others.
struct ApprovalTestCall {
    tool: ToolRef,
    arguments: Digest,
    signature: Signature,
    session: Option<SessionKey>,
}

impl ApprovalTestCall {
    fn new(tool: &str, arguments: &str, signature: &str, session: Option<&str>) -> Self {
        Self {
            tool: ToolRef { namespace: Namespace::new("cli").unwrap(), tool: ToolName::new(tool).unwrap() },
            arguments: Digest::of(arguments.as_bytes()),
            signature: Signature(signature.into()),
            session: session.map(|session| SessionKey::new(session).unwrap()),
        }
    }

    fn subject(&self) -> ApprovalSubject<'_> {
        ApprovalSubject {
            tool: &self.tool,
            arguments: self.arguments,
            signature: &self.signature,
            session: self.session.as_ref(),
            blocked: false,
        }
    }

    fn blocked_subject(&self) -> ApprovalSubject<'_> {
        ApprovalSubject { blocked: true, ..self.subject() }
    }
}

fn push() -> ApprovalTestCall {
    ApprovalTestCall::new("bash", "git push", "bash|command=git", Some("s1"))
}

fn ask(approvals: &mut ApprovalLedger, subject: ApprovalSubject<'_>, seconds: u64) -> ParkedRequestId {
    let prompt = Escalation::routine(subject.tool);
    approvals.ask(subject, &prompt, None, &ApprovalPolicy::default(), at(seconds)).id
}

/// Returns the grant that a decision on this call creates.
fn granted(
    approvals: &mut ApprovalLedger,
    subject: ApprovalSubject<'_>,
    decision: ApprovalDecision,
    by: Grantor,
) -> GrantId {
    let id = ask(approvals, subject, 0);
    match approvals.decide(id, decision, by, at(0)) {
        Ok(DecisionEffect::Granted { grant, dropped: None }) => grant,
        other => panic!("{other:?}"),
    }
}

fn escalation(state: TrustState) -> Escalation {
    Escalation { state, ..Escalation::routine(&push().tool) }
}

#[test]
fn rp_7_the_plan_for_every_trust_state_setting_and_channel() {
    use ApprovalChannel::{Headless, Interactive};
    use ApprovalTrigger::{Always, Escalated, Never};
    let (free, lost, blocked) = (
        TrustDecision::Allowed(TrustState::Recovering),
        TrustDecision::NeedsApproval(escalation(TrustState::Escalated)),
        TrustDecision::Blocked(escalation(TrustState::Blocked)),
    );
    let until = ApprovalPlan::Ask { until: at(45) };
    let grant = ApprovalPlan::Spend(GrantId(7));
    #[rustfmt::skip]
    let table = [
        // standing  setting    channel      without a grant      with one
        (&free,      Never,     Interactive, ApprovalPlan::Go,            ApprovalPlan::Go),
        (&free,      Escalated, Headless,    ApprovalPlan::Go,            ApprovalPlan::Go),
        (&free,      Always,    Interactive, until,               grant),
        (&free,      Always,    Headless,    ApprovalPlan::Park,          grant),
        (&lost,      Never,     Headless,    ApprovalPlan::Go,            ApprovalPlan::Go),
        (&lost,      Escalated, Interactive, until,               grant),
        (&lost,      Escalated, Headless,    ApprovalPlan::Park,          grant),
        (&lost,      Always,    Interactive, until,               grant),
        (&blocked,   Never,     Interactive, ApprovalPlan::RefuseBlocked, grant),
        (&blocked,   Escalated, Interactive, ApprovalPlan::RefuseBlocked, grant),
        (&blocked,   Always,    Headless,    ApprovalPlan::RefuseBlocked, grant),
    ];
    for (standing, when, channel, without, with) in table {
        let policy = &ApprovalPolicy { when, ..ApprovalPolicy::default() };
        let situation = ApprovalInput {
            standing,
            policy,
            shape: ArgumentRisk::Ordinary,
            channel,
            grant: None,
            deadline: None,
        };
        assert_eq!(plan(situation, at(0)), without, "{standing:?} {when:?} {channel:?}");
        assert_eq!(
            plan(ApprovalInput { grant: Some(GrantId(7)), ..situation }, at(0)),
            with,
            "{standing:?} {when:?}"
        );
    }
}

#[test]
fn rp_7_a_dangerous_command_requires_approval_if_the_policy_is_set_so() {
    let standing = &TrustDecision::Allowed(TrustState::Trusted);
    for (shape, dangerous, when, expected) in [
        (
            ArgumentRisk::Dangerous,
            DangerousCommandPolicy::Record,
            ApprovalTrigger::Escalated,
            ApprovalPlan::Go,
        ),
        (
            ArgumentRisk::Dangerous,
            DangerousCommandPolicy::Ask,
            ApprovalTrigger::Escalated,
            ApprovalPlan::Park,
        ),
        (ArgumentRisk::Dangerous, DangerousCommandPolicy::Ask, ApprovalTrigger::Never, ApprovalPlan::Park),
        (ArgumentRisk::Ordinary, DangerousCommandPolicy::Ask, ApprovalTrigger::Escalated, ApprovalPlan::Go),
    ] {
        let policy = &ApprovalPolicy { when, dangerous, ..ApprovalPolicy::default() };
        let situation = ApprovalInput {
            standing,
            policy,
            shape,
            channel: ApprovalChannel::Headless,
            grant: None,
            deadline: None,
        };
        assert_eq!(plan(situation, at(0)), expected, "{shape:?} {dangerous:?} {when:?}");
    }
}

#[test]
fn rp_7_a_wait_ends_with_the_call_and_a_call_without_time_does_not_wait() {
    let standing = &TrustDecision::NeedsApproval(escalation(TrustState::Escalated));
    let policy = &ApprovalPolicy::default();
    for (deadline, expected) in [
        (None, ApprovalPlan::Ask { until: at(145) }),
        (Some(at(110)), ApprovalPlan::Ask { until: at(110) }),
        (Some(at(500)), ApprovalPlan::Ask { until: at(145) }),
        (Some(at(100)), ApprovalPlan::Park),
        (Some(at(10)), ApprovalPlan::Park),
    ] {
        let (shape, channel) = (ArgumentRisk::Ordinary, ApprovalChannel::Interactive);
        let situation = ApprovalInput { standing, policy, shape, channel, grant: None, deadline };
        assert_eq!(plan(situation, at(100)), expected);
    }
}

/// The whole layer: a tool that the host allows loses trust, asks for approval, and its prompt carries what an approver
/// needs to know. The host's own list has no effect: it is not an input.
#[test]
fn rp_7_an_escalated_tool_requires_approval_with_a_complete_prompt() {
    let (call, rule) = (push(), TrustRule::default());
    let rules = TrustRules { signature: &rule, domain: None };
    let subject = TrustSubject { tool: &call.tool, signature: &call.signature, domain: None };
    let mut ledger = TrustLedger::default();
    for _ in 0..3 {
        let failure = FinishedOutcome::Failure { severity: Severity::Crash, recoverable: true };
        ledger.record(rules, subject, failure, at(0));
    }
    let standing = ledger.check(rules, subject, at(1));
    let TrustDecision::NeedsApproval(prompt) = &standing else { panic!("{standing:?}") };
    assert_eq!(prompt.state, TrustState::Escalated);
    assert_eq!(
        (prompt.reason.as_str(), prompt.failures, prompt.window.as_str()),
        ("3 failures in 1 h", 3, "1 h")
    );
    assert_eq!(prompt.summary, "cli/bash has lost trust and needs approval");
    let hint = "runs without approval after 1970-01-01T00:30:00.000Z; 3 successful calls then restore trust";
    assert_eq!(prompt.recovery_hint, hint);
    assert_eq!(prompt.warnings, ["why: 3 failures in 1 h", "counted failures: 3 (window: 1 h)", hint]);
    assert_eq!((prompt.level, prompt.format_hint.as_str()), (PromptLevel::Warning, "text"));
    assert_eq!(serde_json::to_value(prompt.level).unwrap(), "warning");

    // The prompt is what an operator finds in the parked request, and the approval overrides the escalation.
    let mut approvals = ApprovalLedger::default();
    let policy = ApprovalPolicy::default();
    let id = approvals.ask(call.subject(), prompt, Some("git push"), &policy, at(1)).id;
    let (_, parked) = approvals.parked(at(1)).next().unwrap();
    assert_eq!((&parked.prompt, parked.shown.as_deref()), (prompt, Some("git push")));
    approvals.decide(id, ApprovalDecision::Once, Grantor::Client, at(2)).unwrap();
    let grant = approvals.grant_for(call.subject(), at(3));
    let situation = ApprovalInput {
        standing: &standing,
        policy: &policy,
        shape: ArgumentRisk::Ordinary,
        channel: ApprovalChannel::Headless,
        grant,
        deadline: None,
    };
    assert!(matches!(plan(situation, at(3)), ApprovalPlan::Spend(_)));
}

#[test]
fn rp_7_prompts_without_lost_trust_state_their_reason() {
    let tool = push().tool;
    assert_eq!(Escalation::routine(&tool).level, PromptLevel::Info);
    let dangerous = Escalation::dangerous(&tool, "recursive delete");
    assert_eq!(dangerous.level, PromptLevel::Error);
    assert_eq!(dangerous.warnings, ["why: the command has a dangerous shape: recursive delete"]);
}

#[test]
fn a_grant_applies_only_within_its_scope() {
    let call = push();
    let pull = ApprovalTestCall::new("bash", "git pull", "bash|command=git", Some("s1"));
    let elsewhere = ApprovalTestCall::new("bash", "git push", "bash|command=git", Some("s2"));
    let nowhere = ApprovalTestCall::new("bash", "git push", "bash|command=git", None);
    let list = ApprovalTestCall::new("bash", "ls", "bash|command=ls", Some("s1"));
    let other_tool = ApprovalTestCall::new("sh", "git push", "bash|command=git", Some("s1"));
    let calls = [&call, &pull, &elsewhere, &nowhere, &list, &other_tool];
    let time = ApprovalDecision::Time { until: at(60) };
    #[rustfmt::skip]
    let table = [
        // decision           same   pull   elsewhere nowhere list   other tool
        (ApprovalDecision::Once,     [true,  false, true,     true,   false, false]),
        (ApprovalDecision::Session,  [true,  true,  false,    false,  false, false]),
        (time,               [true,  true,  true,     true,   false, false]),
    ];
    for (decision, expected) in table {
        let mut approvals = ApprovalLedger::default();
        let grant = granted(&mut approvals, call.subject(), decision, Grantor::Client);
        for (call, expected) in calls.iter().zip(expected) {
            let found = approvals.grant_for(call.subject(), at(1));
            assert_eq!(found, expected.then_some(grant), "{decision:?}, {:?}", call.arguments);
        }
    }
    // A call without a session has none to grant for: such an approval is for the one call.
    let mut approvals = ApprovalLedger::default();
    granted(&mut approvals, nowhere.subject(), ApprovalDecision::Session, Grantor::Client);
    assert!(approvals.grant_for(nowhere.subject(), at(1)).is_some());
    assert!(approvals.grant_for(pull.subject(), at(1)).is_none());
}

#[test]
fn a_grant_that_is_not_used_up_is_used_before_one_that_is() {
    let call = push();
    let mut approvals = ApprovalLedger::default();
    let once = granted(&mut approvals, call.subject(), ApprovalDecision::Once, Grantor::Client);
    let time =
        granted(&mut approvals, call.subject(), ApprovalDecision::Time { until: at(60) }, Grantor::Client);
    assert_eq!(approvals.grant_for(call.subject(), at(1)), Some(time));
    assert_eq!(approvals.grant_for(call.subject(), at(60)), Some(once));
}

#[test]
fn spending_goes_by_owner_and_time() {
    let call = push();
    let mut approvals = ApprovalLedger::default();
    let id = granted(&mut approvals, call.subject(), ApprovalDecision::Once, Grantor::Client);
    assert_eq!(approvals.spend(GrantId(99), owner(1), at(1)), SpendVerdict::Gone);
    assert_eq!(approvals.spend(id, owner(1), at(1)), SpendVerdict::Spent);
    assert_eq!(approvals.spend(id, owner(1), at(2)), SpendVerdict::AlreadyMine);
    assert_eq!(approvals.spend(id, owner(2), at(2)), SpendVerdict::Lost);
    assert_eq!(approvals.grant_for(call.subject(), at(2)), None, "the next call asks again");
    let day = 24 * 3600;
    assert_eq!(
        approvals.spend(id, owner(1), at(day)),
        SpendVerdict::AlreadyMine,
        "a late repeat of the owner is still right"
    );

    let unused = granted(&mut approvals, call.subject(), ApprovalDecision::Once, Grantor::Client);
    assert_eq!(approvals.spend(unused, owner(1), at(day)), SpendVerdict::Gone);
    for decision in [ApprovalDecision::Session, ApprovalDecision::Time { until: at(60) }] {
        let id = granted(&mut approvals, call.subject(), decision, Grantor::Client);
        assert_eq!(approvals.spend(id, owner(1), at(59)), SpendVerdict::Holds);
        assert_eq!(approvals.spend(id, owner(2), at(59)), SpendVerdict::Holds);
    }
    assert!(
        SpendVerdict::Spent.may_run() && SpendVerdict::AlreadyMine.may_run() && SpendVerdict::Holds.may_run()
    );
    assert!(!SpendVerdict::Lost.may_run() && !SpendVerdict::Gone.may_run());
}

proptest! {
    /// Any number of claims race for any number of grants, ask again, and repeat requests whose answer was lost.
    #[test]
    fn a_grant_is_never_spent_by_two_owners(
        steps in prop::collection::vec((0_u8..3, 0_u8..4, 0_u8..3, 0_u64..40_000), 1..60),
    ) {
        let calls = [
            push(),
            ApprovalTestCall::new("bash", "git pull", "bash|command=git", Some("s1")),
            ApprovalTestCall::new("bash", "git push", "bash|command=git", Some("s2")),
        ];
        let mut approvals = ApprovalLedger::default();
        let mut spent: BTreeMap<GrantId, Digest> = BTreeMap::new();
        let mut now = 0;
        for (action, claimant, which, passed) in steps {
            now += passed / 10;
            let subject = calls[usize::from(which)].subject();
            match action {
                0 => {
                    let id = ask(&mut approvals, subject, now);
                    approvals.decide(id, ApprovalDecision::Once, Grantor::Client, at(now)).unwrap();
                }
                1 => {
                    if let Some(id) = approvals.grant_for(subject, at(now)) {
                        prop_assert!(!spent.contains_key(&id), "a spent grant was offered");
                        prop_assert_eq!(approvals.spend(id, owner(claimant), at(now)), SpendVerdict::Spent);
                        spent.insert(id, owner(claimant));
                    }
                }
                _ => for (id, by) in &spent {
                    // A repeat by the owner that spent it, or a try by an owner that found the grant before.
                    let answer = approvals.spend(*id, owner(claimant), at(now));
                    let expected = if *by == owner(claimant) { SpendVerdict::AlreadyMine } else { SpendVerdict::Lost };
                    prop_assert!(answer == expected || (answer == SpendVerdict::Gone && !approvals.grants.contains_key(id)));
                },
            }
        }
    }
}

#[test]
fn only_an_operator_lets_a_blocked_tool_run_and_only_one_call_at_a_time() {
    let call = push();
    let mut approvals = ApprovalLedger::default();
    let id = ask(&mut approvals, call.blocked_subject(), 0);
    let decide = |approvals: &mut ApprovalLedger, decision, by| approvals.decide(id, decision, by, at(1));
    assert_eq!(
        decide(&mut approvals, ApprovalDecision::Once, Grantor::Client),
        Err(ApprovalDecisionError::OperatorOnly)
    );
    assert_eq!(
        decide(&mut approvals, ApprovalDecision::Session, Grantor::Operator),
        Err(ApprovalDecisionError::OnlyOnce)
    );
    let time = ApprovalDecision::Time { until: at(60) };
    assert_eq!(decide(&mut approvals, time, Grantor::Operator), Err(ApprovalDecisionError::OnlyOnce));
    assert_eq!(approvals.parked(at(1)).count(), 1, "a decision that is not accepted leaves the request");
    assert!(decide(&mut approvals, ApprovalDecision::Once, Grantor::Operator).is_ok());
    assert!(approvals.grant_for(call.blocked_subject(), at(2)).is_some());
}

#[test]
fn a_grant_from_before_the_block_does_not_override_it() {
    let call = push();
    for by in [Grantor::Client, Grantor::Operator] {
        for decision in
            [ApprovalDecision::Once, ApprovalDecision::Session, ApprovalDecision::Time { until: at(60) }]
        {
            let mut approvals = ApprovalLedger::default();
            granted(&mut approvals, call.subject(), decision, by);
            assert!(approvals.grant_for(call.subject(), at(1)).is_some());
            assert!(approvals.grant_for(call.blocked_subject(), at(1)).is_none(), "{by:?} {decision:?}");
        }
    }
    // A request that was parked before the block needs an operator as soon as it is asked again.
    let mut approvals = ApprovalLedger::default();
    let id = ask(&mut approvals, call.subject(), 0);
    assert_eq!(ask(&mut approvals, call.blocked_subject(), 1), id);
    assert_eq!(
        approvals.decide(id, ApprovalDecision::Once, Grantor::Client, at(2)),
        Err(ApprovalDecisionError::OperatorOnly)
    );
}

#[test]
fn equal_calls_share_one_approval_request() {
    let call = push();
    let mut approvals = ApprovalLedger::default();
    let id = ask(&mut approvals, call.subject(), 0);
    assert_eq!(ask(&mut approvals, call.subject(), 100), id);
    // A grant for one session must not apply to another session that asked for the same.
    for other in [
        ApprovalTestCall::new("sh", "git push", "bash|command=git", Some("s1")),
        ApprovalTestCall::new("bash", "git push --force", "bash|command=git", Some("s1")),
        ApprovalTestCall::new("bash", "git push", "bash|command=git", Some("s2")),
        ApprovalTestCall::new("bash", "git push", "bash|command=git", None),
    ] {
        assert_ne!(ask(&mut approvals, other.subject(), 100), id);
    }
    let (_, parked) = approvals.parked(at(100)).next().unwrap();
    assert_eq!((parked.request_count, parked.first_requested, parked.last_requested), (2, at(0), at(100)));
    assert_eq!(parked.expires, at(100) + 24 * HOUR);
}

#[test]
fn a_denial_answers_waiting_calls_and_the_next_call_requests_approval_again() {
    let call = push();
    let mut approvals = ApprovalLedger::default();
    let first = ask(&mut approvals, call.subject(), 0);
    assert_eq!(approvals.answer(first, call.subject(), at(1)), ApprovalStatus::Pending);
    assert_eq!(
        approvals.decide(first, ApprovalDecision::Deny, Grantor::Client, at(2)),
        Ok(DecisionEffect::Denied)
    );
    assert_eq!(approvals.answer(first, call.subject(), at(3)), ApprovalStatus::Denied);
    assert_eq!(
        approvals.decide(first, ApprovalDecision::Once, Grantor::Client, at(3)),
        Err(ApprovalDecisionError::Gone)
    );
    let second = ask(&mut approvals, call.subject(), 4);
    assert_ne!(second, first);
    assert_eq!(approvals.answer(second, call.subject(), at(5)), ApprovalStatus::Pending);
    assert_eq!(
        approvals.answer(first, call.subject(), at(2) + ApprovalLedger::DENIAL_LIFETIME),
        ApprovalStatus::Gone
    );
    approvals.decide(second, ApprovalDecision::Once, Grantor::Client, at(6)).unwrap();
    assert!(matches!(approvals.answer(second, call.subject(), at(7)), ApprovalStatus::Granted(_)));
}

#[test]
fn requests_and_grants_expire() {
    let call = push();
    let mut approvals = ApprovalLedger::default();
    let id = ask(&mut approvals, call.subject(), 0);
    let day = at(0) + 24 * HOUR;
    assert_eq!(approvals.answer(id, call.subject(), day), ApprovalStatus::Gone);
    assert_eq!(
        approvals.decide(id, ApprovalDecision::Once, Grantor::Operator, day),
        Err(ApprovalDecisionError::Gone)
    );
    assert_eq!(approvals.parked(day).count(), 0);
    assert_eq!(approvals.expire(day).len(), 1);

    let id = ask(&mut approvals, call.subject(), 0);
    let past = ApprovalDecision::Time { until: at(1) };
    assert_eq!(
        approvals.decide(id, past, Grantor::Operator, at(1)),
        Err(ApprovalDecisionError::EndsInThePast)
    );
    granted(&mut approvals, call.subject(), ApprovalDecision::Session, Grantor::Client);
    assert!(approvals.grant_for(call.subject(), day.before(SECOND)).is_some());
    assert!(approvals.grant_for(call.subject(), day).is_none());
    approvals.expire(day);
    assert_eq!(approvals.grants.len(), 0);
}

#[test]
fn the_end_of_a_session_ends_its_grants() {
    let call = push();
    let mut approvals = ApprovalLedger::default();
    granted(&mut approvals, call.subject(), ApprovalDecision::Session, Grantor::Client);
    approvals.end_session(&SessionKey::new("s2").unwrap());
    assert!(approvals.grant_for(call.subject(), at(1)).is_some());
    approvals.end_session(&SessionKey::new("s1").unwrap());
    assert!(approvals.grant_for(call.subject(), at(1)).is_none());
}

#[test]
fn everything_is_bounded_and_dropped_entries_are_returned() {
    let mut approvals = ApprovalLedger::default();
    let calls: Vec<_> = (0..=ApprovalLedger::MOST_PARKED)
        .map(|number| ApprovalTestCall::new("bash", &number.to_string(), "bash", None))
        .collect();
    let prompt = Escalation::routine(&calls[0].tool);
    for (number, call) in calls.iter().enumerate() {
        let policy = ApprovalPolicy::default();
        let parked = approvals.ask(call.subject(), &prompt, Some(&"ä".repeat(4000)), &policy, at(0));
        let dropped = parked.dropped.map(|parked| parked.arguments);
        assert_eq!(dropped, (number == ApprovalLedger::MOST_PARKED).then_some(calls[0].arguments));
    }
    assert_eq!(approvals.parked.len(), ApprovalLedger::MOST_PARKED);
    let shown = approvals.parked.values().next().unwrap().shown.as_ref().unwrap().len();
    assert!(shown <= ApprovalLedger::MOST_SHOWN && shown > ApprovalLedger::MOST_SHOWN - 4);

    let mut approvals = ApprovalLedger::default();
    let call = push();
    let spent = granted(&mut approvals, call.subject(), ApprovalDecision::Once, Grantor::Client);
    let oldest =
        granted(&mut approvals, call.subject(), ApprovalDecision::Time { until: at(600) }, Grantor::Client);
    approvals.spend(spent, owner(1), at(0));
    for _ in 2..=ApprovalLedger::MOST_GRANTS {
        granted(&mut approvals, call.subject(), ApprovalDecision::Once, Grantor::Client);
    }
    assert!(!approvals.grants.contains_key(&spent) && approvals.grants.contains_key(&oldest));
    let id = ask(&mut approvals, call.subject(), 0);
    let Ok(DecisionEffect::Granted { dropped: Some(dropped), .. }) =
        approvals.decide(id, ApprovalDecision::Once, Grantor::Client, at(0))
    else {
        panic!("the oldest made room")
    };
    assert_eq!((dropped.expires, approvals.grants.len()), (at(600), ApprovalLedger::MOST_GRANTS));
}

#[test]
fn approvals_survive_their_stored_form() {
    let call = push();
    let mut approvals = ApprovalLedger::default();
    let spent = granted(&mut approvals, call.subject(), ApprovalDecision::Once, Grantor::Operator);
    approvals.spend(spent, owner(1), at(1));
    granted(&mut approvals, call.subject(), ApprovalDecision::Session, Grantor::Client);
    granted(&mut approvals, call.subject(), ApprovalDecision::Time { until: at(60) }, Grantor::Client);
    let denied = ask(&mut approvals, call.subject(), 0);
    approvals.decide(denied, ApprovalDecision::Deny, Grantor::Client, at(0)).unwrap();
    ask(&mut approvals, call.subject(), 0);
    let stored = serde_json::to_value(&approvals).unwrap();
    assert_eq!(stored["version"], 1);
    assert_eq!(serde_json::from_value::<ApprovalLedger>(stored.clone()).unwrap(), approvals);

    for (name, value) in [("version", 2), ("next", 3)] {
        let mut wrong = stored.clone();
        wrong[name] = value.into();
        assert!(serde_json::from_value::<ApprovalLedger>(wrong).is_err(), "{name}");
    }
}
