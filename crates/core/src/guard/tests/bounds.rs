//! Stored state across a restart, and attempts to fill it or to get around it.

use super::*;

#[test]
fn a_snapshot_keeps_the_loop_over_a_restart() {
    let mut session = GuardSession::new();
    let same = fails("same", "{}", DOWN).turn("1");
    session.steps(&[same, same, fails("a", "{}", "a").turn("1"), fails("b", "{}", "b").turn("1")]);
    session.guard.begin(
        &session.policy,
        GuardedCall { tool: &tool("x"), arguments: Digest::of(b""), turn: None },
        session.now,
    );
    let text = serde_json::to_string(&session.guard.snapshot()).unwrap();
    session.guard = LoopGuard::restore(serde_json::from_str(&text).unwrap()).unwrap();
    assert_eq!(session.guard.turns.sizes(), (1, 0), "what was in flight is gone");
    assert_eq!(session.step(same).short(), "refused loop");
    assert_eq!(session.step(ok("c", "{}").turn("1")).short(), "refused turn_limit");

    let newer = text.replacen("\"version\":1", "\"version\":2", 1);
    let refused = LoopGuard::restore(serde_json::from_str(&newer).unwrap()).map(|_| ());
    assert_eq!(refused, Err(UnsupportedGuardSnapshot { version: 2 }));
}

#[test]
fn a_guard_in_use_adopts_only_a_reset_from_another_process() {
    let looping = || {
        let mut session = GuardSession::new();
        session.steps(&[fails("pay", "{}", DOWN), fails("pay", "{}", DOWN)]);
        session
    };
    let stopped = |session: &GuardSession| session.guard.stopped(&session.policy, session.now).len();
    let (mut here, mut there) = (looping(), looping());
    here.guard.adopt(&LoopGuard::default().snapshot()).unwrap();
    assert_eq!(stopped(&here), 1, "one that knows nothing does not make others forget");
    there.guard.reset(there.now);
    let text = serde_json::to_string(&there.guard.snapshot()).unwrap();
    let stored: GuardSnapshot = serde_json::from_str(&text).unwrap();
    here.guard.adopt(&stored).unwrap();
    assert_eq!(stopped(&here), 0);

    // Once: failures after that count, here and after a restart.
    here.steps(&[fails("pay", "{}", DOWN), fails("pay", "{}", DOWN)]);
    here.guard.adopt(&stored).unwrap();
    here.guard = LoopGuard::restore(here.guard.snapshot()).unwrap();
    here.guard.adopt(&stored).unwrap();
    assert_eq!(stopped(&here), 1);

    // The clock of the machine of the second reset is behind.
    there.guard.reset(Timestamp::from_millis(1));
    here.guard.adopt(&there.guard.snapshot()).unwrap();
    assert_eq!(stopped(&here), 0);

    let newer: GuardSnapshot =
        serde_json::from_str(&text.replacen("\"version\":1", "\"version\":2", 1)).unwrap();
    assert_eq!(here.guard.adopt(&newer), Err(UnsupportedGuardSnapshot { version: 2 }));
}

#[test]
fn a_snapshot_that_is_too_large_loses_its_oldest_part() {
    let mut session = GuardSession::new();
    session.steps(&[fails("old", "{}", DOWN), fails("old", "{}", DOWN)]);
    let mut snapshot = serde_json::to_value(session.guard.snapshot()).unwrap();
    let failing = snapshot["failing"].as_array_mut().unwrap();
    let one = failing[0].clone();
    let mut newest = one.clone();
    newest["subject"]["tool"]["tool"] = "newest".into();
    failing.extend(vec![one; 500]);
    failing.push(newest);
    let guard = LoopGuard::restore(serde_json::from_value(snapshot).unwrap()).unwrap();
    assert_eq!(guard.failing.len(), MOST_CALLS);
    assert_eq!(guard.failing.back().unwrap().subject.tool, tool("newest"));
}

#[test]
fn a_model_that_varies_everything_does_not_get_around_the_cap_of_a_turn() {
    // In a guessed turn each of the seven tools may still show that it works.
    for (turn, tried) in [(Some("1"), 5), (None, 7)] {
        let mut session = GuardSession::new();
        let policy = session.policy;
        let turn = turn.map(|turn| TurnId::new(turn).unwrap());
        let mut ran = 0;
        for number in 0..10_000_u32 {
            session.now = session.now + Duration::from_millis(1);
            let tool = tool(&format!("tool{}", number % 7));
            let call = GuardedCall {
                tool: &tool,
                arguments: Digest::of(&number.to_be_bytes()),
                turn: turn.as_ref(),
            };
            if session.guard.check(&policy, call, session.now).is_ok() {
                ran += 1;
                session.guard.begin(&policy, call, session.now);
                let message = format!("{}", char::from_u32(0x4e00 + number).unwrap());
                session.guard.end(
                    &policy,
                    call,
                    GuardedResult::Failure { message: &message, mistake: None },
                    session.now,
                );
            }
        }
        assert_eq!(ran, tried);
    }
}

fn any_step() -> impl Strategy<Value = GuardTestStep> {
    let tools = prop::sample::select(vec!["a", "b", "c"]);
    let arguments = prop::sample::select(vec!["1", "2", "3"]);
    let turn = prop::sample::select(vec![None, None, Some("1"), Some("2")]);
    let ending = prop::sample::select(vec![
        GuardedResult::Success { result: Some(Digest::from_bytes([1; 32])) },
        GuardedResult::Failure { message: "one", mistake: None },
        GuardedResult::Failure { message: "two", mistake: None },
        GuardedResult::Failure { message: "bad", mistake: Some(ModelMistake::Arguments) },
        GuardedResult::Failure { message: "gone", mistake: Some(ModelMistake::UnknownTool) },
    ]);
    (prop::sample::select(vec![0, 1, 30, 61, 100]), turn, tools, arguments, ending).prop_map(
        |(after, turn, tool, arguments, ending)| GuardTestStep { after, turn, tool, arguments, ending },
    )
}

fn any_policy() -> impl Strategy<Value = GuardPolicy> {
    let two = NonZeroU32::MIN.saturating_add(1);
    let repeated = prop::sample::select(vec![
        RepeatedSuccessPolicy::Ignore,
        RepeatedSuccessPolicy::Warn(two),
        RepeatedSuccessPolicy::Refuse(two),
    ]);
    (1_u32..4, 1_u32..8, repeated).prop_map(|(identical, per_turn, repeated_success)| GuardPolicy {
        identical: NonZeroU32::new(identical).unwrap(),
        per_turn: NonZeroU32::new(per_turn).unwrap(),
        repeated_success,
        ..GuardPolicy::default()
    })
}

proptest! {
    #[test]
    fn every_refused_call_eventually_runs(
        policy in any_policy(),
        history in prop::collection::vec(any_step(), 0..40),
        call in any_step(),
    ) {
        let mut session = GuardSession::under(policy);
        session.steps(&history);
        // A turn named by the host ends when the host ends it. Any other refusal ends by itself, also for a model that
        // keeps calling without pause.
        let repeated_call = GuardTestStep { after: 20, turn: call.turn.and(Some("new")), ..call };
        let tries = policy.longest_hold.as_secs() / repeated_call.after + 2;
        let was_admitted = (0..tries).any(|_| {
            session.now = session.now + Duration::from_secs(repeated_call.after);
            let tool = tool(repeated_call.tool);
            let turn = repeated_call.turn.map(|turn| TurnId::new(turn).unwrap());
            let call = GuardedCall { tool: &tool, arguments: Digest::of(repeated_call.arguments.as_bytes()), turn: turn.as_ref() };
            let refusal = session.guard.would_refuse(&policy, call, session.now);
            // Within the new turn the refusals themselves reach the limit. That is not tested here.
            if repeated_call.turn.is_none() {
                return session.guard.check(&policy, call, session.now).is_ok();
            }
            refusal.is_none()
        });
        prop_assert!(was_admitted);
    }

    #[test]
    fn successes_never_trip_anything(steps in prop::collection::vec(any_step(), 0..60)) {
        let mut session = GuardSession::new();
        for step in steps {
            let step = GuardTestStep { ending: GuardedResult::Success { result: Some(Digest::from_bytes([1; 32])) }, ..step };
            prop_assert_eq!(session.step(step), GuardVerdict::Ran(vec![]));
        }
    }

    #[test]
    fn a_restart_at_any_point_changes_no_decision(
        policy in any_policy(),
        before in prop::collection::vec(any_step(), 0..20),
        after in prop::collection::vec(any_step(), 0..20),
    ) {
        let mut session = GuardSession::under(policy);
        session.steps(&before);
        let text = serde_json::to_string(&session.guard.snapshot()).unwrap();
        let guard = LoopGuard::restore(serde_json::from_str(&text).unwrap()).unwrap();
        let mut restarted = GuardSession { guard, policy, now: session.now };
        prop_assert_eq!(session.steps(&after), restarted.steps(&after));
    }
}

#[test]
fn a_trace_is_a_turn_from_its_second_call_on_and_only_the_newest_are_known() {
    let mut guard = LoopGuard::default();
    let trace = |number: usize| TurnId::new(format!("trace {number}")).unwrap();
    assert!(!guard.is_turn(&trace(0)));
    assert!(guard.is_turn(&trace(0)) && guard.is_turn(&trace(0)));
    for number in 1..MOST_TURNS {
        assert!(!guard.is_turn(&trace(number)), "{number}");
    }
    assert!(guard.is_turn(&trace(0)), "it is used again, and so not the oldest");
    for number in 1_000..1_000 + MOST_TURNS {
        assert!(!guard.is_turn(&trace(number)), "{number}");
    }
    assert!(!guard.is_turn(&trace(0)), "forgotten");
    assert_eq!(guard.traces.len(), MOST_TURNS);
}

#[test]
fn memory_stays_bounded_for_every_sequence_of_calls() {
    let policy = GuardPolicy {
        per_turn: NonZeroU32::MAX,
        repeated_success: RepeatedSuccessPolicy::Warn(NonZeroU32::MIN),
        ..GuardPolicy::default()
    };
    let mut guard = LoopGuard::default();
    let now = Timestamp::from_millis(5);
    for number in 0..6000_u32 {
        let tool = tool(&format!("tool{number}"));
        let turn = (number % 2 == 0).then(|| TurnId::new(format!("{number}")).unwrap());
        let call =
            GuardedCall { tool: &tool, arguments: Digest::of(&number.to_be_bytes()), turn: turn.as_ref() };
        guard.begin(&policy, call, now);
        let never_ends = number % 5 == 0;
        if !never_ends {
            let message = format!("{}", char::from_u32(0x4e00 + number).unwrap());
            guard.end(&policy, call, GuardedResult::Failure { message: &message, mistake: None }, now);
            let again = format!("{message} again");
            guard.end(&policy, call, GuardedResult::Failure { message: &again, mistake: None }, now);
        }
        if number % 3 == 0 {
            guard.end(&policy, call, GuardedResult::Success { result: Some(Digest::of(b"")) }, now);
        }
    }
    assert_eq!(guard.failing.len(), MOST_CALLS);
    assert_eq!(guard.repeats.len(), MOST_CALLS);
    let (turns, open) = guard.turns.sizes();
    assert!(turns == MOST_TURNS && (250..=256).contains(&open), "{turns} turns, {open} in flight");
    assert!(
        guard.row.len() <= LONGEST_ROW
            && guard.failing.iter().all(|failing| failing.errors.len() <= MOST_ERRORS)
    );
    assert!(serde_json::to_string(&guard.snapshot()).unwrap().len() < 256 * 1024);
}
