//! Random plans with random endings: what must hold for every turn.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::strategy::Strategy;

use super::*;

#[derive(Clone, Debug)]
struct RandomCall {
    /// Earlier calls that it depends on, each with whether there is a default.
    depends_on: BTreeMap<usize, bool>,
    required: bool,
    alternatives: usize,
}

/// What the driver does next: which of the running calls, and how it ends.
type Move = (prop::sample::Index, u8);

fn random_plan() -> impl Strategy<Value = (Vec<RandomCall>, usize)> {
    let call = (prop::collection::btree_map(0..12_usize, any::<bool>(), 0..3), any::<bool>(), 0..3_usize)
        .prop_map(|(depends_on, required, alternatives)| RandomCall { depends_on, required, alternatives });
    (prop::collection::vec(call, 1..12), 1..4_usize).prop_map(|(mut calls, parallelism)| {
        for (position, call) in calls.iter_mut().enumerate() {
            call.depends_on.retain(|dependency, _| *dependency < position);
        }
        (calls, parallelism)
    })
}

fn write(calls: &[RandomCall], parallelism: usize) -> String {
    let calls: Vec<String> = calls
        .iter()
        .enumerate()
        .map(|(position, call)| {
            let needs: Vec<String> = call
                .depends_on
                .iter()
                .map(|(on, default)| {
                    let default = if *default { r#","default":{"n":-1}"# } else { "" };
                    format!(r#"{{"id":"{on}"{default}}}"#)
                })
                .collect();
            let references: Vec<String> =
                call.depends_on.keys().map(|on| format!(r#"{{"$from":"{on}","path":"/n"}}"#)).collect();
            let alternatives: Vec<String> =
                (0..call.alternatives).map(|number| format!(r#""t/{position}_{number}""#)).collect();
            format!(
                r#"{{"id":"{position}","tool":"t/{position}","required":{},"params":{{"in":[{}]}},"dependsOn":[{}],
                    "alternatives":[{}]}}"#,
                call.required,
                references.join(","),
                needs.join(","),
                alternatives.join(",")
            )
        })
        .collect();
    format!(r#"{{"turnId":"t","deadlineMs":100,"parallelism":{parallelism},"calls":[{}]}}"#, calls.join(","))
}

/// Plays a turn with the moves, then lets the time run out.
fn play(
    plan: &str,
    calls: &[RandomCall],
    parallelism: usize,
    moves: &[Move],
    earlier: Vec<CallResult>,
) -> Played {
    let plan = Arc::new(Plan::parse(plan.as_bytes(), &Limits::DEFAULT).unwrap());
    let mut notes = Vec::new();
    let mut now = Timestamp::from_millis(5);
    let finished: BTreeSet<String> =
        earlier.iter().filter(|call| call.is_finished()).map(|call| call.id.to_string()).collect();
    let (mut turn, mut steps) = Turn::begin(plan, &BTreeMap::new(), earlier, now, &mut notes).unwrap();
    let mut played = Played::default();
    let mut running: Vec<ToolCallId> = Vec::new();
    let mut succeeded: BTreeSet<usize> = BTreeSet::new();
    let mut over = false;
    let mut moves = moves.iter();
    loop {
        for step in steps {
            assert!(!over, "nothing follows the end");
            match step {
                Step::Run { id, arguments, .. } => {
                    assert!(!finished.contains(id.as_str()), "{id} was finished earlier");
                    assert!(now < turn.deadline());
                    serde_json::from_str::<serde_json::Value>(arguments.as_str()).unwrap();
                    let call: usize = id.as_str().parse().unwrap();
                    for (dependency, default) in &calls[call].depends_on {
                        let there =
                            succeeded.contains(dependency) || finished.contains(&dependency.to_string());
                        assert!(there || *default, "{call} ran without {dependency}");
                    }
                    played.ran.push(id.to_string());
                    running.push(id);
                }
                Step::Cancel { id } | Step::Leave { id } => running.retain(|known| *known != id),
                Step::Done(result) => {
                    over = true;
                    played.result = Some(result);
                }
            }
        }
        assert!(running.len() <= parallelism, "{} calls run at once", running.len());
        assert_eq!(running.len(), turn.running());
        if over {
            break;
        }
        assert!(!running.is_empty(), "a turn that is not over waits for something");
        let event = match moves.next() {
            Some((index, how)) => {
                now = now + Duration::from_millis(u64::from(how / 16));
                let id = running.swap_remove(index.index(running.len()));
                let failure = match how % 8 {
                    0..=3 => {
                        succeeded.insert(id.as_str().parse().unwrap());
                        None
                    }
                    4 => Some(permanent()),
                    5 => Some(exhausted()),
                    6 => Some(Failure { code: Code::OutcomeUnknown, ..permanent() }),
                    _ => Some(timed_out()),
                };
                let success = CallEnd::Succeeded { output: RawJson::from_trusted(r#"{"n":1}"#), attempts: 1 };
                Event::Ended { id, end: failure.map_or(success, CallEnd::Failed) }
            }
            None => {
                now = turn.deadline();
                Event::Tick
            }
        };
        steps = turn.on(now, event, &mut notes).unwrap();
        assert!(over || now < turn.deadline() || turn.is_over(), "the deadline ends the turn");
    }
    played.notes = notes;
    played
}

#[derive(Debug, Default, PartialEq)]
struct Played {
    ran: Vec<String>,
    result: Option<TurnResult>,
    notes: Vec<Note>,
}

proptest! {
    #[test]
    fn every_turn_ends_by_its_deadline_with_each_call_in_one_state(
        (calls, parallelism) in random_plan(),
        moves in prop::collection::vec(any::<Move>(), 0..40),
    ) {
        let text = write(&calls, parallelism);
        let played = play(&text, &calls, parallelism, &moves, Vec::new());
        let result = played.result.clone().unwrap();
        prop_assert_eq!(result.calls.len(), calls.len());
        for (position, call) in result.calls.iter().enumerate() {
            prop_assert_eq!(call.id.as_str(), position.to_string());
            let runs = played.ran.iter().filter(|id| id.as_str() == call.id.as_str()).count();
            prop_assert!(runs <= 1 + calls[position].alternatives);
            prop_assert_eq!(runs == 0, call.outcome == Outcome::Skipped);
            prop_assert_eq!(call.code.is_none(), call.outcome == Outcome::Succeeded);
            prop_assert!(!call.escalated || matches!(call.outcome, Outcome::Failed | Outcome::Skipped));
            // A call that lacks a dependency without default is skipped, and told if somebody needs it.
            let is_lacking = calls[position].depends_on.iter().any(|(on, default)| {
                !default && matches!(result.calls[*on].outcome, Outcome::Failed | Outcome::Skipped)
                    && result.calls[*on].code != Some(Code::DeadlineExceeded)
            });
            if is_lacking {
                prop_assert_eq!(call.outcome, Outcome::Skipped);
                prop_assert_eq!(call.escalated, calls[position].required);
                prop_assert_eq!(call.code, Some(Code::DependencyFailed));
            }
        }
        // The same events give the same turn, to the last note.
        prop_assert_eq!(play(&text, &calls, parallelism, &moves, Vec::new()), played);
    }

    #[test]
    fn a_resubmitted_turn_runs_no_finished_call_again_and_keeps_its_result(
        (calls, parallelism) in random_plan(),
        first in prop::collection::vec(any::<Move>(), 0..20),
        second in prop::collection::vec(any::<Move>(), 0..20),
    ) {
        let text = write(&calls, parallelism);
        let before = play(&text, &calls, parallelism, &first, Vec::new()).result.unwrap();
        // `play` asserts that nothing finished is started.
        let after = play(&text, &calls, parallelism, &second, before.calls.clone()).result.unwrap();
        for (before, after) in before.calls.iter().zip(&after.calls) {
            if before.is_finished() {
                prop_assert_eq!(before, after);
            }
        }
    }

    #[test]
    fn no_text_makes_the_reader_panic(
        (calls, parallelism) in random_plan(),
        place in any::<prop::sample::Index>(),
        length in 0..20_usize,
        put in prop::sample::select(vec!["", "{}", "[]", "null", "\"0\"", "{\"$from\":\"0\"}", "-1", "\"\\u0000\"", "\u{fffd}"]),
    ) {
        let text: Vec<char> = write(&calls, parallelism).chars().collect();
        let start = place.index(text.len());
        let end = (start + length).min(text.len());
        let text: String = text[..start].iter().chain(put.chars().collect::<Vec<_>>().iter()).chain(&text[end..]).collect();
        if let Err(errors) = Plan::parse(text.as_bytes(), &Limits::DEFAULT) {
            prop_assert!(!errors.errors.is_empty());
        }
    }
}
