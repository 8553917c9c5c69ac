//! The rules of D20 one by one, the scenarios of the requirements, and a corpus of legitimate work that must not be
//! affected.

mod bounds;
mod sequences;
mod texts;

use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::id::{Namespace, ToolName};

/// A session with its clock.
struct GuardSession {
    guard: LoopGuard,
    policy: GuardPolicy,
    now: Timestamp,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
enum GuardVerdict {
    Ran(Vec<GuardRemark>),
    Refused(GuardRefusal),
}

impl GuardVerdict {
    /// Returns the layers that added a remark, and `run` if the call ran.
    fn short(&self) -> String {
        match self {
            Self::Ran(remarks) if remarks.is_empty() => "ran".to_owned(),
            Self::Ran(remarks) => {
                let layers: Vec<&str> = remarks.iter().map(|remark| remark.layer.as_str()).collect();
                format!("ran {}", layers.join(" "))
            }
            Self::Refused(refusal) => format!("refused {}", refusal.layer.as_str()),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Ran(remarks) => {
                remarks.iter().map(|remark| remark.text.as_ref()).collect::<Vec<_>>().join("\n")
            }
            Self::Refused(refusal) => refusal.text.clone(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct GuardTestStep {
    after: u64,
    turn: Option<&'static str>,
    tool: &'static str,
    arguments: &'static str,
    ending: GuardedResult<'static>,
}

const fn ok(tool: &'static str, arguments: &'static str) -> GuardTestStep {
    GuardTestStep { after: 1, turn: None, tool, arguments, ending: GuardedResult::Success { result: None } }
}

const fn fails(tool: &'static str, arguments: &'static str, message: &'static str) -> GuardTestStep {
    GuardTestStep {
        after: 1,
        turn: None,
        tool,
        arguments,
        ending: GuardedResult::Failure { message, mistake: None },
    }
}

const fn malformed(tool: &'static str, arguments: &'static str, message: &'static str) -> GuardTestStep {
    let ending = GuardedResult::Failure { message, mistake: Some(ModelMistake::Arguments) };
    GuardTestStep { after: 1, turn: None, tool, arguments, ending }
}

const fn unknown(tool: &'static str, arguments: &'static str) -> GuardTestStep {
    let ending = GuardedResult::Failure { message: "no such tool", mistake: Some(ModelMistake::UnknownTool) };
    GuardTestStep { after: 1, turn: None, tool, arguments, ending }
}

impl GuardTestStep {
    const fn gives(self, result: &'static [u8; 32]) -> Self {
        Self { ending: GuardedResult::Success { result: Some(Digest::from_bytes(*result)) }, ..self }
    }

    const fn turn(self, turn: &'static str) -> Self {
        Self { turn: Some(turn), ..self }
    }

    const fn after(self, seconds: u64) -> Self {
        Self { after: seconds, ..self }
    }
}

impl GuardSession {
    fn new() -> Self {
        Self::under(GuardPolicy::default())
    }

    fn under(policy: GuardPolicy) -> Self {
        Self { guard: LoopGuard::default(), policy, now: Timestamp::from_millis(1_000_000) }
    }

    fn step(&mut self, step: GuardTestStep) -> GuardVerdict {
        self.now = self.now + Duration::from_secs(step.after);
        let tool = tool(step.tool);
        let turn = step.turn.map(|turn| TurnId::new(turn).unwrap());
        let call = GuardedCall {
            tool: &tool,
            arguments: Digest::of(step.arguments.as_bytes()),
            turn: turn.as_ref(),
        };
        let ahead = self.guard.would_refuse(&self.policy, call, self.now);
        if let Err(refusal) = self.guard.check(&self.policy, call, self.now) {
            let same = ahead.is_some_and(|ahead| (ahead.code, ahead.layer) == (refusal.code, refusal.layer));
            assert!(same, "the look ahead and the check disagree");
            return GuardVerdict::Refused(refusal);
        }
        assert_eq!(ahead, None);
        self.guard.begin(&self.policy, call, self.now);
        GuardVerdict::Ran(self.guard.end(&self.policy, call, step.ending, self.now))
    }

    fn steps(&mut self, steps: &[GuardTestStep]) -> Vec<String> {
        steps.iter().map(|step| self.step(*step).short()).collect()
    }
}

fn tool(name: &str) -> ToolRef {
    ToolRef { namespace: Namespace::new("server").unwrap(), tool: ToolName::new(name).unwrap() }
}

const MISSING: &str = "Missing required parameter: path";
const DOWN: &str = "upstream answered 500";

#[test]
fn tg_1_an_identical_failure_loop_is_broken_after_the_second_call() {
    let mut session = GuardSession::new();
    let read = malformed("read", "{}", MISSING).turn("1");
    assert_eq!(session.step(read).short(), "ran non_retryable");
    let second = session.step(read);
    assert_eq!(second.short(), "ran non_retryable loop");
    for part in
        ["[NON-RETRYABLE]", "[LOOP DETECTED]", "\"read\"", "2 times", "Do NOT retry", "different approach"]
    {
        assert!(second.text().contains(part), "{part} in {}", second.text());
    }
    let GuardVerdict::Refused(third) = session.step(read) else { panic!("the third call ran") };
    assert_eq!((third.code, third.layer), (Code::LoopDetected, GuardLayer::Loop));
    assert!(third.text.contains("[LOOP DETECTED]") && third.text.contains("not run"), "{}", third.text);
}

#[test]
fn stopped_sessions_are_listed_and_can_be_released() {
    let mut session = GuardSession::new();
    let stopped = |session: &GuardSession| session.guard.stopped(&session.policy, session.now);
    assert_eq!(stopped(&session), []);
    session.steps(&[fails("pay", "{}", DOWN), fails("pay", "{}", DOWN)]);
    let holds = stopped(&session);
    assert_eq!(holds.len(), 1);
    assert_eq!(
        (holds[0].layer, holds[0].tool.as_ref(), holds[0].count),
        (GuardLayer::Loop, Some(&tool("pay")), 2)
    );
    assert_eq!((holds[0].since, holds[0].until), (session.now, Some(session.now + session.policy.hold)));
    for _ in 0..4 {
        session.step(malformed("read", "{}", MISSING).turn("1"));
    }
    session.step(ok("list", "{}").turn("1"));
    let turn = stopped(&session).into_iter().find(|stopped| stopped.layer == GuardLayer::TurnLimit);
    assert_eq!(turn, None, "four failures are not five");
    session.step(malformed("read", "{}", MISSING).turn("1"));
    let turn = stopped(&session).into_iter().find(|stopped| stopped.layer == GuardLayer::TurnLimit).unwrap();
    assert_eq!((turn.count, turn.until, turn.since), (5, None, session.now));
    assert_eq!(turn.turn.as_ref().map(TurnId::as_str), Some("1"));
    let restored = LoopGuard::restore(session.guard.snapshot()).unwrap();
    assert_eq!(restored.stopped(&session.policy, session.now), stopped(&session), "also after a restart");

    session.guard.reset(session.now);
    assert_eq!(stopped(&session), []);
    assert_eq!(session.step(fails("pay", "{}", DOWN).turn("1")).short(), "ran");
    session.now = session.now + Duration::from_secs(3600);
    assert_eq!(stopped(&session), [], "a turn that nobody speaks of any more is not shown");
}

#[test]
fn resetting_a_replaced_tool_leaves_other_tools_unchanged() {
    let mut session = GuardSession::new();
    let (bad, same) = (unknown("raed", "{}"), fails("same", "{}", DOWN));
    session.steps(&[bad, bad, same, same]);
    session.guard.forget_tool(&tool("raed"));
    assert_eq!(session.step(ok("raed", "{}")).short(), "ran");
    let mut other = GuardSession::new();
    other.steps(&[same, same]);
    other.guard.forget_tool(&tool("raed"));
    assert_eq!(other.step(same).short(), "refused loop");
}

#[test]
fn repeats_and_alternations_of_a_reset_tool_restart_and_those_of_others_continue() {
    let poll = ok("poll", "{}").gives(&[1; 32]);
    let two = NonZeroU32::new(2).unwrap();
    for (forgotten, expected) in [("poll", "ran"), ("other", "ran repeated_success")] {
        let policy =
            GuardPolicy { repeated_success: RepeatedSuccessPolicy::Warn(two), ..GuardPolicy::default() };
        let mut session = GuardSession::under(policy);
        session.step(poll);
        session.guard.forget_tool(&tool(forgotten));
        assert_eq!(session.step(poll).short(), expected, "{forgotten} was forgotten");
    }

    let failures = [fails("a", "{}", "one"), fails("b", "{}", "two"), fails("a", "{}", "three")];
    for (forgotten, expected) in [("a", "ran"), ("other", "ran ping_pong")] {
        let mut session = GuardSession::new();
        session.steps(&failures);
        session.guard.forget_tool(&tool(forgotten));
        assert_eq!(session.step(fails("b", "{}", "four")).short(), expected, "{forgotten} was forgotten");
    }
}

#[test]
fn tg_2_the_fifth_failure_of_a_turn_stops_the_turn() {
    let mut session = GuardSession::new();
    let tools = ["a", "b", "c", "d", "e"];
    let verdicts: Vec<GuardVerdict> =
        tools.map(|name| session.step(fails(name, "{}", name).turn("1"))).into();
    assert!(verdicts[..4].iter().all(|verdict| verdict.short() == "ran"));
    assert_eq!(verdicts[4].short(), "ran turn_limit");
    assert!(verdicts[4].text().contains("[TOOL ERROR LIMIT] 5 tool calls"), "{}", verdicts[4].text());
    let GuardVerdict::Refused(refusal) = session.step(ok("f", "{}").turn("1")) else {
        panic!("a sixth call ran")
    };
    assert_eq!((refusal.code, refusal.layer), (Code::ToolErrorLimit, GuardLayer::TurnLimit));
    assert!(refusal.text.contains("[TOOL ERROR LIMIT]"));
    assert!(session.step(ok("f", "{}").turn("1")).text().contains(" 6 tool calls"), "refusals count too");
}

#[test]
fn tg_3_successes_do_not_count_towards_any_limit() {
    let mut session = GuardSession::new();
    for name in ["a", "b", "c", "d"] {
        assert_eq!(session.step(fails(name, "{}", name).turn("1")).short(), "ran");
        for _ in 0..20 {
            assert_eq!(session.step(ok("list", "{}").turn("1")).short(), "ran");
        }
    }
    assert_eq!(session.step(fails("e", "{}", "e").turn("1")).short(), "ran turn_limit");
}

#[test]
fn tg_4_only_deterministic_errors_are_marked_as_not_worth_a_retry() {
    let mut session = GuardSession::new();
    assert!(session.step(malformed("read", "{}", MISSING)).text().contains("[NON-RETRYABLE]"));
    assert!(session.step(unknown("raed", "{}")).text().contains("[NON-RETRYABLE]"));
    assert_eq!(session.step(fails("fetch", "{}", "timeout")).text(), "");
}

#[test]
fn tg_6_a_new_turn_restarts_the_count() {
    let mut session = GuardSession::new();
    for turn in ["1", "2", "3"] {
        assert_eq!(session.step(fails("same", "{}", DOWN).turn(turn)).short(), "ran");
        for name in ["a", "b", "c"] {
            assert_eq!(session.step(fails(name, turn, name).turn(turn)).short(), "ran");
        }
    }
    assert_eq!(session.step(fails("d", "{}", "d").turn("3")).short(), "ran turn_limit");
    assert_eq!(session.step(ok("e", "{}").turn("3")).short(), "refused turn_limit");
    assert_eq!(session.step(ok("e", "{}").turn("4")).short(), "ran");
}

#[test]
fn tg_7_limits_of_the_policy_are_respected() {
    let most = |count| NonZeroU32::new(count).unwrap();
    let policy = GuardPolicy { identical: most(3), per_turn: most(7), ..GuardPolicy::default() };
    let mut session = GuardSession::under(policy);
    let same = fails("same", "{}", DOWN).turn("1");
    assert_eq!(session.steps(&[same, same, same, same]), ["ran", "ran", "ran loop", "refused loop"]);
    let others = ["a", "b", "c"].map(|name| fails(name, "{}", name).turn("1"));
    assert_eq!(session.steps(&others), ["ran", "ran", "ran turn_limit"]);

    let mut strict = GuardSession::under(GuardPolicy { identical: most(1), ..policy });
    assert_eq!(strict.steps(&[same, same]), ["ran loop", "refused loop"]);
}

/// Checks the effect of each rule of D20, as a sequence with the result of each step.
#[test]
fn d20_every_rule() {
    let same = fails("same", "{}", DOWN);
    let read = malformed("read", "{}", MISSING);
    let other = ok("other", "{}");
    let cases: &[(&str, &[(GuardTestStep, &str)])] = &[
        (
            "another identical call is refused at once",
            &[(same, "ran"), (same, "ran loop"), (same, "refused loop"), (same, "refused loop")],
        ),
        (
            "masked: another number in the error does not make it another error",
            &[
                (fails("same", "{}", "request 123 failed"), "ran"),
                (fails("same", "{}", "request 124 failed"), "ran loop"),
            ],
        ),
        (
            "errors that take turns are counted each",
            &[
                (fails("same", "{}", "one"), "ran"),
                (fails("same", "{}", "two"), "ran"),
                (fails("same", "{}", "one"), "ran loop"),
            ],
        ),
        (
            "another call that succeeds earns one try, and one more failure refuses again",
            &[
                (same, "ran"),
                (same, "ran loop"),
                (other, "ran"),
                (same, "ran loop"),
                (same, "refused loop"),
                (other, "ran"),
                (same, "ran loop turn_limit"),
            ],
        ),
        (
            "the try that is earned may fail in another way and is still the last one",
            &[
                (same, "ran"),
                (same, "ran loop"),
                (other, "ran"),
                (fails("same", "{}", "something else"), "ran loop"),
                (same, "refused loop"),
            ],
        ),
        (
            "a turn that changed earns one try",
            &[
                (same.turn("1"), "ran"),
                (same.turn("1"), "ran loop"),
                (same.turn("1"), "refused loop"),
                (same.turn("2"), "ran loop"),
                (same.turn("2"), "refused loop"),
            ],
        ),
        (
            "malformed calls are refused outright: neither a success nor a new turn earns a try",
            &[
                (read.turn("1"), "ran non_retryable"),
                (read.turn("1"), "ran non_retryable loop"),
                (other.turn("1"), "ran"),
                (read.turn("1"), "refused loop"),
                (read.turn("2"), "refused loop"),
            ],
        ),
        (
            "a tool that does not exist is refused whatever its arguments are",
            &[
                (unknown("raed", "{}"), "ran non_retryable"),
                (unknown("raed", "{a}"), "ran non_retryable loop"),
                (other, "ran"),
                (unknown("raed", "{b}"), "refused loop"),
            ],
        ),
        (
            "after the hold a malformed call is tried too",
            &[
                (read, "ran non_retryable"),
                (read, "ran non_retryable loop"),
                (read.after(60), "ran non_retryable loop"),
                (read.after(61), "refused loop"),
            ],
        ),
        (
            "a success makes the call as good as new",
            &[
                (same, "ran"),
                (same, "ran loop"),
                (ok("same", "{}").after(60), "ran"),
                (same, "ran"),
                (same, "ran loop"),
                (same.after(60), "ran loop"),
            ],
        ),
        (
            "a gap without turns from the host does not end a streak",
            &[(same, "ran"), (same.after(3600), "ran loop")],
        ),
        (
            "a gap with something that worked in between does",
            &[(same, "ran"), (other, "ran"), (same.after(3600), "ran")],
        ),
        (
            "something that worked within the turn does not: the second identical failure is told",
            &[(same, "ran"), (other, "ran"), (same, "ran loop")],
        ),
        (
            "two failing calls that alternate are both stopped, even if each error is new",
            &[
                (fails("a", "{}", "one"), "ran"),
                (fails("b", "{}", "two"), "ran"),
                (fails("a", "{}", "three"), "ran"),
                (fails("b", "{}", "four"), "ran ping_pong"),
                (fails("a", "{}", "five"), "refused loop"),
            ],
        ),
        (
            "a success between them breaks the alternation",
            &[
                (fails("a", "{}", "one"), "ran"),
                (fails("b", "{}", "two"), "ran"),
                (ok("c", "{}"), "ran"),
                (fails("a", "{}", "three"), "ran"),
                (fails("b", "{}", "four"), "ran"),
            ],
        ),
        (
            "refusals count towards the turn, and the one that is the fifth says so",
            &[
                (same.turn("1"), "ran"),
                (same.turn("1"), "ran loop"),
                (same.turn("1"), "refused loop"),
                (same.turn("1"), "refused loop"),
                (same.turn("1"), "refused loop"),
                (ok("b", "{}").turn("1"), "refused turn_limit"),
            ],
        ),
        (
            "a guessed turn: five failures in a row end it",
            &[
                (fails("a", "{}", "a"), "ran"),
                (fails("b", "{}", "b"), "ran"),
                (fails("c", "{}", "c"), "ran"),
                (fails("d", "{}", "d"), "ran"),
                (fails("e", "{}", "e"), "ran turn_limit"),
                (ok("a", "{}"), "refused turn_limit"),
                (ok("f", "{}"), "ran"),
                (ok("a", "{}"), "refused turn_limit"),
                (ok("a", "{}").after(90), "ran"),
            ],
        ),
        (
            "a guessed turn: five malformed calls end it, whatever works in between",
            &[
                (malformed("a", "1", MISSING), "ran non_retryable"),
                (other, "ran"),
                (malformed("a", "2", MISSING), "ran non_retryable"),
                (other, "ran"),
                (malformed("a", "3", MISSING), "ran non_retryable"),
                (other, "ran"),
                (malformed("a", "4", MISSING), "ran non_retryable"),
                (other, "ran"),
                (malformed("a", "5", MISSING), "ran non_retryable turn_limit"),
                (ok("a", "6"), "refused turn_limit"),
                (other, "ran"),
            ],
        ),
        (
            "a guessed turn: other failures only warn, once",
            &[
                (fails("a", "1", "a"), "ran"),
                (other, "ran"),
                (fails("a", "2", "a"), "ran"),
                (other, "ran"),
                (fails("a", "3", "a"), "ran"),
                (other, "ran"),
                (fails("a", "4", "a"), "ran"),
                (other, "ran"),
                (fails("a", "5", "a"), "ran turn_limit"),
                (other, "ran"),
                (fails("a", "6", "a"), "ran"),
            ],
        ),
        (
            "a guessed turn that hit its limit gets a try after the hold, and a success lifts the limit",
            &[
                (fails("a", "{}", "a"), "ran"),
                (fails("b", "{}", "b"), "ran"),
                (fails("c", "{}", "c"), "ran"),
                (fails("d", "{}", "d"), "ran"),
                (fails("e", "{}", "e"), "ran turn_limit"),
                (ok("a", "2").after(59), "refused turn_limit"),
                (fails("a", "3", "a").after(1), "ran turn_limit"),
                (ok("b", "4").after(60), "refused turn_limit"),
                (ok("b", "5").after(60), "ran"),
                (ok("a", "6"), "ran"),
            ],
        ),
    ];
    for (name, expected_steps) in cases {
        let mut session = GuardSession::new();
        for (number, (step, expected)) in expected_steps.iter().enumerate() {
            assert_eq!(session.step(*step).short(), *expected, "{name}, step {}", number + 1);
        }
    }
}

#[test]
fn d20_each_hold_is_twice_as_long_as_the_one_before_up_to_the_longest() {
    let policy = GuardPolicy {
        per_turn: NonZeroU32::MAX,
        longest_hold: Duration::from_secs(200),
        ..GuardPolicy::default()
    };
    let mut session = GuardSession::under(policy);
    let same = fails("same", "{}", DOWN).turn("1");
    assert_eq!(session.steps(&[same, same]), ["ran", "ran loop"]);
    for hold in [60, 120, 200, 200] {
        let last_steps = [same.after(hold - 1), same.after(1), same.after(0)];
        assert_eq!(session.steps(&last_steps), ["refused loop", "ran loop", "refused loop"], "{hold} s");
    }
}

#[test]
fn a_try_without_a_result_does_not_lock_the_call_out() {
    let mut session = GuardSession::new();
    let same = fails("same", "{}", DOWN);
    session.steps(&[same, same]);
    let tool = tool("same");
    let call = GuardedCall { tool: &tool, arguments: Digest::of(b"{}"), turn: None };
    session.now = session.now + Duration::from_secs(60);
    session.guard.begin(&session.policy, call, session.now);
    assert_eq!(session.step(same.after(119)).short(), "refused loop", "one try at a time");
    assert_eq!(session.step(same.after(1)).short(), "ran loop");
}

/// Checks overlapping calls, which `step` cannot express.
#[test]
fn d20_one_success_allows_one_trial_and_the_hold_counts_from_its_failure() {
    let held_session = || {
        let mut session =
            GuardSession::under(GuardPolicy { per_turn: NonZeroU32::MAX, ..GuardPolicy::default() });
        let same = fails("same", "{}", DOWN);
        session.steps(&[same, same]);
        session
    };
    let tool = tool("same");
    let call = GuardedCall { tool: &tool, arguments: Digest::of(b"{}"), turn: None };
    let failure = GuardedResult::Failure { message: DOWN, mistake: None };

    let mut session = held_session();
    session.step(ok("other", "{}"));
    session.guard.begin(&session.policy, call, session.now);
    assert_eq!(session.step(fails("same", "{}", DOWN)).short(), "refused loop", "one success earns one try");
    session.step(ok("other", "{}"));
    session.guard.end(&session.policy, call, failure, session.now);
    let reason = "what succeeded before the try failed earns no further one";
    assert_eq!(session.step(fails("same", "{}", DOWN)).short(), "refused loop", "{reason}");

    let mut session = held_session();
    session.now = session.now + Duration::from_secs(60);
    session.guard.begin(&session.policy, call, session.now);
    session.now = session.now + Duration::from_secs(100);
    session.guard.end(&session.policy, call, failure, session.now);
    let reason = "the hold is counted from the failure, however slow the try was";
    assert_eq!(session.step(fails("same", "{}", DOWN).after(80)).short(), "refused loop", "{reason}");
}

#[test]
fn d20_the_limit_of_a_guessed_turn_while_calls_are_in_flight() {
    let mut session = GuardSession::new();
    let (policy, slow) = (session.policy, tool("a"));
    let call = |number: u8| GuardedCall { tool: &slow, arguments: Digest::of(&[number]), turn: None };
    session.guard.begin(&policy, call(1), session.now);
    session.guard.begin(&policy, call(2), session.now);
    session.steps(&["a", "b", "c", "d", "e"].map(|name| fails(name, "{}", name)));
    session.guard.end(&policy, call(1), GuardedResult::Success { result: None }, session.now);
    let reason = "a success that was under way all along proves nothing";
    assert_eq!(session.step(ok("b", "2").after(50)).short(), "refused turn_limit", "{reason}");
    session.guard.end(
        &policy,
        call(2),
        GuardedResult::Failure { message: "slow", mistake: None },
        session.now,
    );
    let reason = "a failure that comes late makes it as long again";
    assert_eq!(session.step(ok("b", "2").after(59)).short(), "refused turn_limit", "{reason}");
    assert_eq!(session.step(ok("b", "2").after(1)).short(), "ran");
}

#[test]
fn the_count_in_the_text_restarts_with_the_turn() {
    let mut session = GuardSession::new();
    let same = fails("same", "{}", DOWN);
    session.steps(&[same.turn("1"), same.turn("2")]);
    assert!(session.step(same.turn("2")).text().contains("has failed 2 times"));
}

#[test]
fn the_warning_of_a_guessed_turn_claims_no_limit() {
    let mut session = GuardSession::new();
    let mut last = String::new();
    for arguments in ["1", "2", "3", "4", "5"] {
        last = session.step(fails("a", arguments, "a")).text();
        session.step(ok("b", "{}"));
    }
    assert!(last.starts_with("5 tool calls have failed lately") && !last.contains('['), "{last}");
}

#[test]
fn the_refusal_that_is_the_fifth_failure_names_the_limit_as_well() {
    let mut session = GuardSession::new();
    let same = fails("same", "{}", DOWN).turn("1");
    let verdicts: Vec<GuardVerdict> = (0..5).map(|_| session.step(same)).collect();
    assert!(!verdicts[3].text().contains("[TOOL ERROR LIMIT]"));
    assert!(
        verdicts[4].text().contains("[LOOP DETECTED]")
            && verdicts[4].text().contains("[TOOL ERROR LIMIT] 5 ")
    );
}

#[test]
fn repeated_successes_are_ignored_reported_or_refused_by_policy() {
    let three = NonZeroU32::new(3).unwrap();
    let poll = ok("poll", "{}").gives(&[1; 32]);
    let changed = ok("poll", "{}").gives(&[2; 32]);
    let failed = fails("poll", "{}", DOWN);
    let other = ok("other", "{}").gives(&[3; 32]);
    for (repeated_success, steps, verdicts) in [
        (RepeatedSuccessPolicy::Ignore, vec![poll; 4], vec!["ran"; 4]),
        (
            RepeatedSuccessPolicy::Warn(three),
            vec![poll, other, poll, poll, poll, changed, poll],
            vec!["ran", "ran", "ran", "ran repeated_success", "ran repeated_success", "ran", "ran"],
        ),
        (
            RepeatedSuccessPolicy::Refuse(three),
            vec![poll, poll, poll, poll, other, poll, poll.after(60), poll, changed.after(120), changed],
            vec![
                "ran",
                "ran",
                "ran repeated_success",
                "refused repeated_success",
                "ran",
                "refused repeated_success",
                "ran repeated_success",
                "refused repeated_success",
                "ran",
                "ran",
            ],
        ),
        (RepeatedSuccessPolicy::Warn(three), vec![poll, poll, failed, poll, poll], vec!["ran"; 5]),
        (
            RepeatedSuccessPolicy::Refuse(three),
            vec![poll.turn("1"), poll.turn("1"), poll.turn("1"), poll.turn("2"), ok("poll", "{}").turn("2")],
            vec!["ran", "ran", "ran repeated_success", "ran", "ran"],
        ),
    ] {
        let mut session = GuardSession::under(GuardPolicy { repeated_success, ..GuardPolicy::default() });
        assert_eq!(session.steps(&steps), verdicts, "{repeated_success:?}");
    }
}

#[test]
fn calls_in_flight_together_are_of_one_turn_however_long_they_take() {
    let mut session = GuardSession::new();
    let (slow, quick) = (tool("slow"), tool("quick"));
    let call = |tool, number: u8| GuardedCall { tool, arguments: Digest::of(&[number]), turn: None };
    let policy = session.policy;
    let start = session.now;
    session.guard.begin(&policy, call(&slow, 0), start);
    let mistake = GuardedResult::Failure { message: MISSING, mistake: Some(ModelMistake::Arguments) };
    for number in 0..5 {
        let now = start + Duration::from_secs(1000 * u64::from(number));
        assert_eq!(session.guard.would_refuse(&policy, call(&quick, number), now), None, "{number}");
        session.guard.begin(&policy, call(&quick, number), now);
        session.guard.end(&policy, call(&quick, number), mistake, now);
    }
    let limit = start + Duration::from_secs(4001);
    assert!(session.guard.would_refuse(&policy, call(&quick, 9), limit).is_some(), "one turn, five mistakes");
    session.guard.abandon(&policy, call(&slow, 0), limit);
    let before_gap = limit + Duration::from_secs(50);
    assert!(session.guard.would_refuse(&policy, call(&quick, 9), before_gap).is_some());
    let after_gap = limit + Duration::from_secs(90);
    assert_eq!(session.guard.would_refuse(&policy, call(&quick, 9), after_gap), None);
}

#[test]
fn a_replayed_failure_counts_although_nothing_began() {
    let mut session = GuardSession::new();
    let tool = tool("same");
    let call = GuardedCall { tool: &tool, arguments: Digest::of(b"{}"), turn: None };
    let failure = GuardedResult::Failure { message: DOWN, mistake: None };
    let (policy, now) = (session.policy, session.now);
    session.guard.begin(&policy, call, now);
    assert_eq!(session.guard.end(&policy, call, failure, now), []);
    let replayed = session.guard.end(&policy, call, failure, now);
    assert_eq!(replayed.first().map(|remark| remark.layer), Some(GuardLayer::Loop));
}

#[test]
fn a_preview_of_a_refusal_changes_nothing() {
    let mut session = GuardSession::new();
    let same = fails("same", "{}", DOWN);
    session.steps(&[same, same]);
    let tool = tool("same");
    let call = GuardedCall { tool: &tool, arguments: Digest::of(b"{}"), turn: None };
    for _ in 0..100 {
        assert!(session.guard.would_refuse(&session.policy, call, session.now).is_some());
        let later = session.now + Duration::from_secs(60);
        assert!(session.guard.would_refuse(&session.policy, call, later).is_none());
    }
    assert_eq!(session.step(ok("other", "{}")).short(), "ran", "a hundred looks are no refusals");
}
