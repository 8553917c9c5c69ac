//! Random plans with random results: invariants of every turn.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::strategy::Strategy;

use super::*;

#[derive(Clone, Debug)]
struct RandomCall {
    /// Earlier calls that it depends on, each with true if there is a default.
    depends_on: BTreeMap<usize, bool>,
    required: bool,
    alternatives: usize,
}

/// The next action of the driver: an index among the running calls, and the result of the call.
type DriverMove = (prop::sample::Index, u8);

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

/// The engine's records beyond one submission: results by call and candidate, and choices.
#[derive(Debug, Default)]
struct EngineRecords {
    runs: BTreeMap<(ToolCallId, usize), (String, PlannedCallEnd)>,
    choices: BTreeMap<ToolCallId, CandidateChoice>,
}

impl EngineRecords {
    /// Returns the result of an earlier run of the same call, if there is one. A successful call must not run again in
    /// any form.
    fn replays(&self, id: &ToolCallId, choice: &CandidateChoice, arguments: &str) -> Option<PlannedCallEnd> {
        if let Some((before, end)) = self.runs.get(&(id.clone(), choice.candidate)) {
            assert_eq!(before, arguments, "{id} is another call than before");
            return Some(end.clone());
        }
        let succeeded = self
            .runs
            .iter()
            .any(|((ran, _), (_, end))| ran == id && matches!(end, PlannedCallEnd::Succeeded { .. }));
        assert!(!succeeded, "{id} was finished earlier");
        None
    }
}

/// Runs a turn with the moves, then lets the time run out.
fn play(
    plan: &str,
    calls: &[RandomCall],
    parallelism: usize,
    moves: &[DriverMove],
    submitted: SubmissionHistory,
    engine: &mut EngineRecords,
) -> PlayedTurn {
    let plan = Arc::new(TurnPlan::parse(plan.as_bytes(), &TurnLimits::DEFAULT).unwrap());
    let mut notes = Vec::new();
    let mut now = Timestamp::from_millis(5);
    let (mut turn, mut steps) = TurnMachine::begin(plan, &BTreeMap::new(), submitted, now, &mut notes);
    let mut replayed = Vec::new();
    let mut started = BTreeMap::new();
    let mut played = PlayedTurn::default();
    let mut running: Vec<ToolCallId> = Vec::new();
    let mut succeeded: BTreeSet<usize> = BTreeSet::new();
    let mut over = false;
    let mut moves = moves.iter();
    loop {
        for step in steps {
            assert!(!over, "nothing follows the end");
            match step {
                TurnStep::Run { id, arguments, choice, .. } => {
                    assert!(now < turn.deadline());
                    serde_json::from_str::<serde_json::Value>(arguments.as_str()).unwrap();
                    let call: usize = id.as_str().parse().unwrap();
                    for (dependency, default) in &calls[call].depends_on {
                        let there = succeeded.contains(dependency);
                        assert!(there || *default, "{call} ran without {dependency}");
                    }
                    let before = engine.choices.insert(id.clone(), choice.clone());
                    let is_consistent = before.is_none_or(|before| {
                        before.candidate <= choice.candidate && before.defaults == choice.defaults
                    });
                    assert!(is_consistent, "{id} was chosen otherwise");
                    match engine.replays(&id, &choice, arguments.as_str()) {
                        Some(end) => replayed.push((id.clone(), end)),
                        None => played.ran.push(id.to_string()),
                    }
                    started.insert(id.clone(), (choice.candidate, arguments.as_str().to_owned()));
                    running.push(id);
                }
                TurnStep::Cancel { id } | TurnStep::Leave { id } => running.retain(|known| *known != id),
                TurnStep::Done(result) => {
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
        replayed.retain(|(id, _)| running.contains(id));
        if let Some((id, end)) = replayed.pop() {
            running.retain(|known| *known != id);
            if matches!(end, PlannedCallEnd::Succeeded { .. }) {
                succeeded.insert(id.as_str().parse().unwrap());
            }
            steps = turn.handle_event(now, TurnEvent::Ended { id, end, replayed: true }, &mut notes).unwrap();
            continue;
        }
        let event = match moves.next() {
            Some((index, roll)) => {
                now = now + Duration::from_millis(u64::from(roll / 16));
                let id = running.swap_remove(index.index(running.len()));
                let failure = match roll % 10 {
                    0..=3 => {
                        succeeded.insert(id.as_str().parse().unwrap());
                        None
                    }
                    4 => Some(permanent()),
                    5 => Some(exhausted()),
                    6 => Some(TurnCallFailure { code: Code::OutcomeUnknown, ..permanent() }),
                    7 => Some(timed_out()),
                    // It never ran, so nothing is recorded.
                    _ => Some(TurnCallFailure {
                        code: Code::CircuitOpen,
                        reach: AttemptReach::NotSent,
                        ..exhausted()
                    }),
                };
                let success =
                    PlannedCallEnd::Succeeded { output: RawJson::from_trusted(r#"{"n":1}"#), attempts: 1 };
                let end = failure.map_or(success, PlannedCallEnd::Failed);
                if !matches!(&end, PlannedCallEnd::Failed(failure) if failure.reach == AttemptReach::NotSent)
                {
                    let (candidate, arguments) = started[&id].clone();
                    engine.runs.insert((id.clone(), candidate), (arguments, end.clone()));
                }
                TurnEvent::Ended { id, end, replayed: false }
            }
            None => {
                now = turn.deadline();
                TurnEvent::Tick
            }
        };
        steps = turn.handle_event(now, event, &mut notes).unwrap();
        if now >= turn.deadline() {
            steps.extend(turn.handle_event(now, TurnEvent::Tick, &mut notes).unwrap());
        }
        assert!(over || now < turn.deadline() || turn.is_over(), "the deadline ends the turn");
    }
    played.notes = notes;
    played
}

#[derive(Debug, Default, PartialEq)]
struct PlayedTurn {
    ran: Vec<String>,
    result: Option<TurnResult>,
    notes: Vec<TraceNote>,
}

proptest! {
    #[test]
    fn every_turn_ends_by_its_deadline_with_each_call_in_one_state(
        (calls, parallelism) in random_plan(),
        moves in prop::collection::vec(any::<DriverMove>(), 0..40),
    ) {
        let text = write(&calls, parallelism);
        let first = || play(&text, &calls, parallelism, &moves, SubmissionHistory::First, &mut EngineRecords::default());
        let played = first();
        let result = played.result.clone().unwrap();
        prop_assert_eq!(result.calls.len(), calls.len());
        for (position, call) in result.calls.iter().enumerate() {
            prop_assert_eq!(call.id.as_str(), position.to_string());
            let runs = played.ran.iter().filter(|id| id.as_str() == call.id.as_str()).count();
            prop_assert!(runs <= 1 + calls[position].alternatives);
            prop_assert_eq!(runs == 0, call.outcome == TurnCallOutcome::Skipped);
            prop_assert_eq!(call.code.is_none(), call.outcome == TurnCallOutcome::Succeeded);
            prop_assert!(!call.escalated || matches!(call.outcome, TurnCallOutcome::Failed | TurnCallOutcome::Skipped));
            // A call that lacks a dependency without default is skipped, and escalated if it is required.
            let has_missing_input = calls[position].depends_on.iter().any(|(on, default)| {
                !default && matches!(result.calls[*on].outcome, TurnCallOutcome::Failed | TurnCallOutcome::Skipped)
                    && result.calls[*on].code != Some(Code::DeadlineExceeded)
            });
            if has_missing_input {
                prop_assert_eq!(call.outcome, TurnCallOutcome::Skipped);
                prop_assert_eq!(call.escalated, calls[position].required);
                prop_assert_eq!(call.code, Some(Code::DependencyFailed));
            }
        }
        // The same events give the same turn, to the last note.
        prop_assert_eq!(first(), played);
    }

    #[test]
    fn a_resubmitted_turn_runs_no_finished_call_again_and_keeps_its_result(
        (calls, parallelism) in random_plan(),
        first in prop::collection::vec(any::<DriverMove>(), 0..20),
        second in prop::collection::vec(any::<DriverMove>(), 0..20),
    ) {
        let text = write(&calls, parallelism);
        let mut engine = EngineRecords::default();
        let before = play(&text, &calls, parallelism, &first, SubmissionHistory::First, &mut engine).result.unwrap();
        let submitted = SubmissionHistory::Repeated(engine.choices.clone());
        // `play` and `replays` assert that no finished call runs again.
        let after = play(&text, &calls, parallelism, &second, submitted, &mut engine).result.unwrap();
        for (before, after) in before.calls.iter().zip(&after.calls) {
            let is_complete = after.code != Some(Code::DeadlineExceeded) && after.outcome != TurnCallOutcome::LeftRunning;
            if before.outcome == TurnCallOutcome::Succeeded && is_complete {
                prop_assert_eq!((after.outcome, &after.output), (TurnCallOutcome::Succeeded, &before.output));
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
        if let Err(errors) = TurnPlan::parse(text.as_bytes(), &TurnLimits::DEFAULT) {
            prop_assert!(!errors.errors.is_empty());
        }
    }
}
