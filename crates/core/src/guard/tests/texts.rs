//! Exact texts and stored forms of the guard, and guessed turns.

use super::*;

fn three() -> NonZeroU32 {
    NonZeroU32::new(3).unwrap()
}

#[test]
fn two_calls_that_alternate_are_both_named() {
    let mut session = GuardSession::new();
    let mut last = String::new();
    for message in ["one", "two", "three", "four"] {
        let name = if message == "one" || message == "three" { "read" } else { "write" };
        last = session.step(fails(name, "{}", message)).text();
    }
    assert!(last.contains("between \"read\" and \"write\""), "{last}");
}

#[test]
fn a_repeated_success_is_reported_with_its_tool_and_its_count() {
    let poll = ok("poll", "{}").gives(&[1; 32]);
    let policy =
        GuardPolicy { repeated_success: RepeatedSuccessPolicy::Refuse(three()), ..GuardPolicy::default() };
    let mut session = GuardSession::under(policy);
    session.steps(&[poll, poll]);
    let text = session.step(poll).text();
    assert!(text.contains("The tool \"poll\" has given this same result to the same call 3 times"), "{text}");
    let refused = session.step(poll).text();
    assert!(refused.contains("the tool \"poll\" has given the same result to it 3 times"), "{refused}");
}

#[test]
fn a_try_of_a_success_that_repeats_is_spent_when_it_begins() {
    let poll = ok("poll", "{}").gives(&[1; 32]);
    let policy =
        GuardPolicy { repeated_success: RepeatedSuccessPolicy::Refuse(three()), ..GuardPolicy::default() };
    let mut session = GuardSession::under(policy);
    session.steps(&[poll, poll, poll]);
    session.now = session.now + session.policy.hold;
    let tool = tool("poll");
    let call = GuardedCall { tool: &tool, arguments: Digest::of(b"{}"), turn: None };
    assert_eq!(session.guard.would_refuse(&session.policy, call, session.now), None, "one try is due");
    session.guard.begin(&session.policy, call, session.now);
    let second = session.guard.would_refuse(&session.policy, call, session.now);
    assert_eq!(second.map(|refusal| refusal.layer), Some(GuardLayer::RepeatedSuccess));
}

#[test]
fn results_are_compared_only_where_repeated_successes_are_watched() {
    use steadfast_json::RawJson;
    let output = |text| ToolOutput { content: RawJson::string(text), metadata: None };
    let watched =
        GuardPolicy { repeated_success: RepeatedSuccessPolicy::Warn(three()), ..GuardPolicy::default() };
    assert_eq!(result_digest(&GuardPolicy::default(), &output("a")), None);
    let digest = |text| result_digest(&watched, &output(text)).unwrap();
    assert_eq!(digest("a"), digest("a"));
    assert_ne!(digest("a"), digest("b"));
}

/// Marks of errors are stored with the guard, so another version must compute the same ones.
#[test]
fn the_mark_of_an_error_never_changes() {
    assert_eq!(ErrorMark::of("").0, 0xcbf2_9ce4_8422_2325);
    assert_eq!(ErrorMark::of("a").0, 0xaf63_dc4c_8601_ec8c);
    assert_eq!(ErrorMark::of("foobar").0, 0x8594_4171_f739_67e8);
}

#[test]
fn the_error_digest_reveals_nothing_and_is_stable_under_masking() {
    let word = error_digest("request 1 of ann failed");
    assert_eq!(word.len(), 16);
    assert!(word.chars().all(|letter| ('g'..='v').contains(&letter)), "{word}");
    assert_eq!(error_digest("request 2 of ann failed"), word, "the same to the guard");
    assert_ne!(error_digest("request 1 of bob failed"), word);
    assert_eq!(mask(&word), word);
}

#[test]
fn a_snapshot_of_a_later_version_is_named_with_its_version() {
    let text = UnsupportedGuardSnapshot { version: 9 }.to_string();
    assert!(text.contains("version 9"), "{text}");
}

// ---- guessed turns ----

/// Returns a policy with turns that end long before a refusal does.
fn short_turns() -> GuardPolicy {
    let (turn_gap, hold) = (Duration::from_secs(10), Duration::from_secs(600));
    GuardPolicy { turn_gap, hold, ..GuardPolicy::default() }
}

#[test]
fn a_gap_is_another_turn_in_which_a_call_that_failed_may_work() {
    let mut session = GuardSession::under(short_turns());
    let down = fails("pay", "{}", DOWN);
    assert_eq!(session.steps(&[down, down, down]), ["ran", "ran loop", "refused loop"]);
    assert_eq!(session.step(down.after(9)).short(), "refused loop", "no gap yet");
    assert_eq!(session.step(down.after(10)).short(), "ran loop", "another turn");
}

#[test]
fn the_limit_of_a_guessed_turn_ends_with_it_and_is_shown_until_then() {
    let mut session = GuardSession::under(short_turns());
    for _ in 0..5 {
        session.step(malformed("read", "{}", MISSING));
    }
    let limit = |session: &GuardSession| {
        let stopped = session.guard.stopped(&session.policy, session.now);
        stopped.into_iter().find(|stopped| stopped.layer == GuardLayer::TurnLimit)
    };
    let refused = |session: &GuardSession| {
        let tool = tool("read");
        let call = GuardedCall { tool: &tool, arguments: Digest::of(b"other"), turn: None };
        session.guard.would_refuse(&session.policy, call, session.now).is_some()
    };
    let shown = limit(&session).expect("five failures are a limit");
    assert_eq!((shown.count, shown.turn, refused(&session)), (5, None, true));
    session.now = session.now + Duration::from_secs(9);
    assert!(limit(&session).is_some() && refused(&session));
    session.now = session.now + Duration::from_secs(1);
    assert!(limit(&session).is_none() && !refused(&session), "the turn is over");
}

#[test]
fn the_limit_of_a_guessed_turn_is_not_shown_when_a_try_is_due() {
    let policy = GuardPolicy { turn_gap: Duration::from_secs(3600), ..GuardPolicy::default() };
    let mut session = GuardSession::under(policy);
    for _ in 0..5 {
        session.step(malformed("read", "{}", MISSING));
    }
    let limits = |session: &GuardSession| {
        let stopped = session.guard.stopped(&session.policy, session.now);
        stopped.iter().filter(|stopped| stopped.layer == GuardLayer::TurnLimit).count()
    };
    assert_eq!(limits(&session), 1);
    session.now = session.now + session.policy.hold;
    assert_eq!(limits(&session), 0);
}

#[test]
fn a_turn_that_a_host_named_is_shown_for_half_an_hour_after_its_last_failure() {
    let mut session = GuardSession::new();
    for _ in 0..5 {
        session.step(malformed("read", "{}", MISSING).turn("1"));
    }
    let half_an_hour = Duration::from_secs(30 * 60);
    let shown = |after: Duration| {
        let stopped = session.guard.stopped(&session.policy, session.now + after);
        stopped.iter().filter(|stopped| stopped.layer == GuardLayer::TurnLimit).count()
    };
    assert_eq!((shown(half_an_hour - Duration::from_millis(1)), shown(half_an_hour)), (1, 0));
}

#[test]
fn the_recorded_tools_of_a_guessed_turn_are_bounded() {
    let mut session = GuardSession::new();
    for number in 0..100 {
        let tool = tool(&format!("tool{number}"));
        let call = GuardedCall { tool: &tool, arguments: Digest::of(b"{}"), turn: None };
        session.guard.begin(&session.policy, call, session.now);
        let ending = GuardedResult::Failure { message: DOWN, mistake: None };
        session.guard.end(&session.policy, call, ending, session.now);
    }
    let saved = serde_json::to_value(session.guard.snapshot()).unwrap();
    assert_eq!(saved["guess"]["tally"]["tools"].as_array().map(Vec::len), Some(64));
}
