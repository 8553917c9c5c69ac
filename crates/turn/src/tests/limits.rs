//! Exact limits, and the fields of a turn's result.

use steadfast_core::id::TurnId;

use super::trace::TraceError;
use super::*;
use crate::trace::SpanId;

const ONE: &str = r#"{"turnId":"t-1","calls":[{"id":"a","tool":"travel/search","params":{}}]}"#;

fn parse(plan: &str, limits: &TurnLimits) -> Result<TurnPlan, String> {
    TurnPlan::parse(plan.as_bytes(), limits).map_err(|errors| errors.to_string())
}

#[test]
fn a_plan_has_its_turn_and_its_calls() {
    let plan = parse(ONE, &TurnLimits::DEFAULT).unwrap();
    assert_eq!(plan.turn().map(TurnId::as_str), Some("t-1"));
    assert_eq!(plan.call(&call_id("a")).map(|call| &call.tool), Some(&tool("search")));
    assert!(plan.call(&call_id("b")).is_none());
}

#[test]
fn a_plan_may_have_as_many_dependencies_and_alternatives_as_the_limit() {
    let dependent =
        r#"{"calls":[{"id":"a","tool":"travel/a"},{"id":"b","tool":"travel/b","dependsOn":["a"]}]}"#;
    for (edges, fits) in [(1, true), (0, false)] {
        let limits = TurnLimits { edges, ..TurnLimits::DEFAULT };
        assert_eq!(parse(dependent, &limits).is_ok(), fits, "{edges}: {:?}", parse(dependent, &limits).err());
    }
    let replaceable = r#"{"calls":[{"id":"a","tool":"travel/a","alternatives":[{"tool":"travel/b"}]}]}"#;
    for (alternatives, fits) in [(1, true), (0, false)] {
        let limits = TurnLimits { alternatives, ..TurnLimits::DEFAULT };
        let parsed = parse(replaceable, &limits);
        assert_eq!(parsed.is_ok(), fits, "{alternatives}: {:?}", parsed.err());
    }
}

#[test]
fn a_draft_may_have_as_many_bytes_of_json_as_the_limit() {
    let draft = || PlanDraft {
        calls: vec![DraftCall {
            id: call_id("a"),
            tool: tool("a"),
            params: Some(RawJson::from_trusted(r#"{"x":1}"#)),
            depends_on: Vec::new(),
            need: CallNeed::Required,
            alternatives: Vec::new(),
            timeout: None,
        }],
        ..PlanDraft::default()
    };
    for (bytes, fits) in [(7, true), (6, false)] {
        let planned = TurnPlan::new(draft(), &TurnLimits { bytes, ..TurnLimits::DEFAULT });
        assert_eq!(planned.is_ok(), fits, "{bytes}: {:?}", planned.err());
    }
}

#[test]
fn arguments_may_be_as_long_as_the_limit_once_they_are_filled_in() {
    let plan = r#"{"calls":[{"id":"a","tool":"travel/a"},{"id":"b","tool":"travel/b","params":{"x":{"$from":"a"}}}]}"#;
    let plan = parse(plan, &TurnLimits::DEFAULT).unwrap();
    let params = &plan.call(&call_id("b")).unwrap().params;
    let filled = r#"{"x":12345}"#;
    let resolve = |limit: usize| params.resolve(limit, |_| Ok("12345"));
    assert_eq!(resolve(filled.len()).unwrap().as_str(), filled);
    assert!(resolve(filled.len() - 1).is_err());
}

#[test]
fn a_pointer_may_be_as_long_and_as_deep_as_the_limit() {
    let long = |bytes: usize| format!("/{}", "x".repeat(bytes - 1));
    assert!(JsonPointer::parse(&long(1024)).is_ok() && JsonPointer::parse(&long(1025)).is_err());
    let deep = |levels: usize| "/x".repeat(levels);
    let deepest = TurnLimits::OUTPUT_DEPTH;
    assert!(JsonPointer::parse(&deep(deepest)).is_ok() && JsonPointer::parse(&deep(deepest + 1)).is_err());
}

#[test]
fn the_first_tool_is_not_an_alternative() {
    let mut stage =
        TurnHarness::new(r#"{"calls":[{"id":"a","tool":"travel/a","alternatives":[{"tool":"travel/b"}]}]}"#);
    let alternatives = |stage: &TurnHarness| {
        facts(stage).iter().filter(|fact| matches!(fact, TurnFact::AlternativeUsed { .. })).count()
    };
    assert_eq!((alternatives(&stage), stage.choices[0].tool.clone()), (0, None));
    stage.fail("a", permanent());
    assert_eq!((alternatives(&stage), stage.choices[1].tool.clone()), (1, Some(tool("b"))));
}

#[test]
fn a_breaker_change_is_recorded_only_before_the_end() {
    let mut stage = TurnHarness::new(ONE);
    let breaker_changes = |stage: &TurnHarness| {
        facts(stage).iter().filter(|fact| matches!(fact, TurnFact::CircuitBreaker { .. })).count()
    };
    let open = |stage: &mut TurnHarness, state| {
        stage.on(TurnEvent::BreakerChanged { tool: tool("search"), state });
    };
    open(&mut stage, BreakerState::Closed);
    assert_eq!(breaker_changes(&stage), 0, "it was closed before");
    open(&mut stage, BreakerState::Open);
    open(&mut stage, BreakerState::Open);
    assert_eq!(breaker_changes(&stage), 1);
    stage.succeed("a", "1");
    open(&mut stage, BreakerState::Closed);
    assert_eq!(breaker_changes(&stage), 1, "the turn is over");
}

#[test]
fn an_output_as_large_as_the_limit_is_stored() {
    for (output_bytes, stored_bytes, is_stored) in [(5, 5, true), (4, 5, false), (5, 4, false)] {
        let limits = TurnLimits { output_bytes, stored_bytes, ..TurnLimits::DEFAULT };
        let plan = Arc::new(parse(ONE, &limits).unwrap());
        let (mut turn, _) = TurnMachine::begin(
            plan,
            &BTreeMap::new(),
            SubmissionHistory::First,
            Timestamp::ZERO,
            &mut Vec::new(),
        );
        let end = PlannedCallEnd::Succeeded { output: RawJson::from_trusted("12345"), attempts: 1 };
        let event = TurnEvent::Ended { id: call_id("a"), end, replayed: false };
        let steps = turn.handle_event(Timestamp::ZERO, event, &mut Vec::new()).unwrap();
        let Some(TurnStep::Done(result)) = steps.last() else { panic!("{steps:?}") };
        assert_eq!(result.calls[0].output.is_some(), is_stored, "{output_bytes} {stored_bytes}");
    }
}

#[test]
fn misuse_and_trace_errors_name_their_subject() {
    assert_eq!(TurnMisuse::UnknownCall(call_id("a")).to_string(), "the plan has no call \"a\"");
    assert_eq!(TurnMisuse::NotRunning(call_id("a")).to_string(), "the call \"a\" is not running");
    let span = SpanId::from_bytes([1; 8]);
    let text = TraceError::UnknownSpan(span).to_string();
    assert!(text.contains("has no span") && text.contains(&span.to_string()), "{text}");
}
