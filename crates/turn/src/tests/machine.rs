//! Decisions of a turn, by requirement and by state and event.

use super::*;

#[test]
fn eh_5_1_dependants_of_a_failed_call_are_skipped_and_other_calls_continue() {
    let mut stage = TurnHarness::new(
        r#"{"calls":[
            {"id":"a","tool":"travel/flight_search"},
            {"id":"b","tool":"travel/compare_prices","dependsOn":["a"]},
            {"id":"c","tool":"travel/create_itinerary","dependsOn":["b"]},
            {"id":"d","tool":"travel/hotel_search"}]}"#,
    );
    stage.fail("a", permanent());
    assert!(stage.result.is_none(), "d still runs");
    stage.succeed("d", "{}");
    assert_eq!(stage.started(), ["a", "d"]);
    assert_eq!(
        ["a", "b", "c", "d"].map(|id| stage.outcome(id)),
        [
            TurnCallOutcome::Failed,
            TurnCallOutcome::Skipped,
            TurnCallOutcome::Skipped,
            TurnCallOutcome::Succeeded
        ]
    );
    assert_eq!(stage.call("c").code, Some(Code::DependencyFailed));
    assert_eq!(stage.result().status, TurnStatus::Partial);
}

#[test]
fn eh_5_2_optional_dependants_are_skipped_and_required_ones_escalate() {
    let mut stage = TurnHarness::new(
        r#"{"calls":[
            {"id":"a","tool":"travel/flight_search"},
            {"id":"b","tool":"travel/compare_prices","dependsOn":["a"],"required":false},
            {"id":"c","tool":"travel/create_itinerary","dependsOn":["a"]}]}"#,
    );
    stage.fail("a", permanent());
    assert_eq!((stage.outcome("b"), stage.call("b").escalated), (TurnCallOutcome::Skipped, false));
    assert_eq!((stage.outcome("c"), stage.call("c").escalated), (TurnCallOutcome::Skipped, true));
    stage.assert_event("Required tool skipped due to dependency failure");
    assert!(stage.result().escalated);
    assert!(
        stage.result().summary.ends_with("create itinerary need your attention"),
        "{}",
        stage.result().summary
    );
}

#[test]
fn a_passing_failure_escalates_if_other_calls_need_its_output() {
    let dependants =
        r#"{"id":"b","tool":"travel/b","dependsOn":["a"]},{"id":"c","tool":"travel/c","dependsOn":["a"]}"#;
    for (others, escalated, reason) in [
        (String::new(), false, "it may work later"),
        (format!(",{dependants}"), true, "2 other calls need its output"),
    ] {
        let mut stage = TurnHarness::new(&format!(r#"{{"calls":[{{"id":"a","tool":"travel/a"}}{others}]}}"#));
        stage.fail("a", exhausted());
        assert_eq!(stage.call("a").escalated, escalated, "{others}");
        assert!(stage.sentences().iter().any(|event| event.contains(reason)), "{:#?}", stage.sentences());
    }
}

#[test]
fn eh_5_3_a_default_replaces_the_output_that_is_missing() {
    let plan = r#"{"calls":[
        {"id":"a","tool":"travel/flight_search"},
        {"id":"b","tool":"travel/compare_prices","params":{"best":{"$from":"a","path":"/best/0"},"all":{"$from":"a"}},
         "dependsOn":[{"id":"a","default":{"best":[12.50]}}]}]}"#;
    let mut stage = TurnHarness::new(plan);
    stage.fail("a", permanent());
    assert_eq!(stage.started[1].2, r#"{"best":12.50,"all":{"best":[12.50]}}"#);
    stage.succeed("b", "1");
    assert_eq!(
        (stage.outcome("a"), stage.outcome("b")),
        (TurnCallOutcome::Failed, TurnCallOutcome::Succeeded)
    );
    stage.assert_event("Used default value for compare_prices");
    assert!(!stage.result().escalated, "the plan foresaw it");

    let mut stage = TurnHarness::new(plan);
    stage.succeed("a", r#"{"best":["LIS"]}"#);
    assert_eq!(stage.started[1].2, r#"{"best":"LIS","all":{"best":["LIS"]}}"#, "an output beats the default");
    assert!(!facts(&stage).iter().any(|fact| matches!(fact, TurnFact::DefaultUsed { .. })));
}

#[test]
fn eh_5_4_independent_calls_continue_despite_failures() {
    let mut stage = TurnHarness::new(
        r#"{"calls":[{"id":"a","tool":"travel/flight_search"},{"id":"b","tool":"travel/hotel_search"},
            {"id":"c","tool":"travel/activity_search"}]}"#,
    );
    assert_eq!(stage.started(), ["a", "b", "c"], "all at once");
    stage.fail("a", permanent()).succeed("b", "1").succeed("c", "2");
    assert_eq!(
        ["a", "b", "c"].map(|id| stage.outcome(id)),
        [TurnCallOutcome::Failed, TurnCallOutcome::Succeeded, TurnCallOutcome::Succeeded]
    );
    assert_eq!(stage.call("c").output, Some(RawJson::from_trusted("2")));
    assert_eq!(stage.result().ended_by, TurnEndReason::Finished);
}

const THREE_SEARCHES: &str = r#"{"calls":[{"id":"f","tool":"travel/flight_search"},
    {"id":"h","tool":"travel/hotel_search"},{"id":"a","tool":"travel/activity_search"},
    {"id":"late","tool":"travel/create_itinerary","dependsOn":["h"]}]}"#;

#[test]
fn eh_4_2_the_deadline_returns_finished_calls() {
    let mut stage =
        TurnHarness::with(THREE_SEARCHES, &stoppable(&["hotel_search"]), SubmissionHistory::First);
    stage.at(50).succeed("f", r#"{"best":1}"#).at(100);
    assert!(stage.result.is_none());
    stage.at(299);
    assert!(stage.result.is_none());
    stage.at(300);
    assert_eq!(stage.call("f").output, Some(RawJson::from_trusted(r#"{"best":1}"#)));
    assert_eq!(
        ["f", "h", "a", "late"].map(|id| (stage.outcome(id), stage.call(id).code)),
        [
            (TurnCallOutcome::Succeeded, None),
            (TurnCallOutcome::Cancelled, Some(Code::DeadlineExceeded)),
            (TurnCallOutcome::LeftRunning, Some(Code::InFlight)),
            (TurnCallOutcome::Skipped, Some(Code::DeadlineExceeded)),
        ]
    );
    assert_eq!(stage.cut, [TurnStep::Cancel { id: call_id("h") }, TurnStep::Leave { id: call_id("a") }]);
    assert_eq!(stage.result().ended_by, TurnEndReason::Deadline);
    assert!(stage.result().summary.starts_with("Completed flight search, but hotel search timed out"));
    stage.assert_event("Turn timeout after 300000 ms");
}

#[test]
fn eh_7_4_a_call_that_runs_at_the_deadline_of_the_turn_is_neither_retried_nor_replaced() {
    let mut stage = TurnHarness::with(
        r#"{"deadlineMs":60000,"calls":[{"id":"f","tool":"travel/flight_search","alternatives":["travel/backup"]},
            {"id":"h","tool":"travel/hotel_search"}]}"#,
        &stoppable(&["flight_search"]),
        SubmissionHistory::First,
    );
    stage.at(25).succeed("h", "{}").at(60);
    assert_eq!(stage.cut, [TurnStep::Cancel { id: call_id("f") }]);
    assert_eq!(stage.result().summary, "Completed hotel search, but flight search timed out");
    // Its result comes later: it is recorded, and nothing else starts.
    stage.fail("f", timed_out());
    assert_eq!(stage.started(), ["f", "h"]);
    stage.assert_event("Failed after the end of the turn: flight_search (timeout)");
}

#[test]
fn a_result_that_comes_in_with_the_deadline_still_counts_but_starts_nothing() {
    let mut stage = TurnHarness::new(
        r#"{"deadlineMs":1000,"calls":[{"id":"a","tool":"travel/a"},{"id":"b","tool":"travel/b","dependsOn":["a"]}]}"#,
    );
    stage.now = Timestamp::from_millis(5000);
    stage.succeed("a", "{}").on(TurnEvent::Tick);
    assert_eq!(
        (stage.outcome("a"), stage.outcome("b")),
        (TurnCallOutcome::Succeeded, TurnCallOutcome::Skipped)
    );
    assert_eq!(stage.started(), ["a"]);
}

#[test]
fn eh_6_4_an_alternative_steps_in_when_the_tool_fails_for_good() {
    let plan = r#"{"calls":[{"id":"f","tool":"travel/flight_search","params":{"to":"LIS"},
        "alternatives":["travel/flight_search_backup",{"tool":"travel/cards","params":{"text":"LIS"}}]}]}"#;
    let mut stage = TurnHarness::new(plan);
    stage.fail("f", permanent());
    assert_eq!(stage.started[1], ("f".into(), "flight_search_backup".into(), r#"{"to":"LIS"}"#.into()));
    stage.assert_event("Used alternative tool flight_search_backup");
    stage.fail("f", permanent());
    assert_eq!(stage.started[2], ("f".into(), "cards".into(), r#"{"text":"LIS"}"#.into()));
    stage.succeed_after("f", "{}", 2);
    assert_eq!((stage.outcome("f"), stage.call("f").attempts), (TurnCallOutcome::Succeeded, 4));
    assert_eq!(stage.call("f").tool.tool.as_str(), "cards");
    assert_eq!(stage.result().status, TurnStatus::Completed);

    let mut stage = TurnHarness::new(plan);
    stage.fail("f", permanent()).fail("f", permanent()).fail("f", permanent());
    assert_eq!((stage.outcome("f"), stage.call("f").escalated), (TurnCallOutcome::Failed, true));
}

#[test]
fn an_open_breaker_sends_the_call_to_its_alternative_at_once() {
    let plan = r#"{"parallelism":1,"calls":[{"id":"x","tool":"travel/x"},
        {"id":"f","tool":"travel/flight_search","alternatives":["travel/backup"]}]}"#;
    let starts =
        |stage: &TurnHarness| stage.started.iter().map(|(_, tool, _)| tool.clone()).collect::<Vec<_>>();

    let mut stage =
        TurnHarness::with(plan, &breaker("flight_search", BreakerState::Open), SubmissionHistory::First);
    stage.succeed("x", "1");
    assert_eq!(starts(&stage), ["x", "backup"]);
    // The skipped candidate is tried if its circuit breaker admits calls again.
    stage.on(TurnEvent::BreakerChanged { tool: tool("flight_search"), state: BreakerState::HalfOpen });
    stage.fail("f", permanent());
    assert_eq!(starts(&stage), ["x", "backup", "flight_search"]);

    let mut stage = TurnHarness::new(plan);
    stage.on(TurnEvent::BreakerChanged { tool: tool("flight_search"), state: BreakerState::Open });
    stage.assert_event("Circuit breaker opened for flight_search");
    stage.succeed("x", "1");
    assert_eq!(starts(&stage), ["x", "backup"]);

    let mut all_open = breaker("flight_search", BreakerState::Open);
    all_open.extend(breaker("backup", BreakerState::ForcedOpen));
    let mut stage = TurnHarness::with(plan, &all_open, SubmissionHistory::First);
    stage.succeed("x", "1");
    assert_eq!(starts(&stage), ["x", "flight_search"], "the engine may have an answer for it");
    stage.fail(
        "f",
        TurnCallFailure { code: Code::CircuitOpen, nature: FaultNature::Transient, ..permanent() },
    );
    assert_eq!(stage.outcome("f"), TurnCallOutcome::Failed);
}

#[test]
fn nothing_runs_twice_when_the_outcome_is_unknown() {
    for failure in [
        TurnCallFailure { code: Code::OutcomeUnknown, ..permanent() },
        TurnCallFailure { repeat: RepeatSafety::Unsafe, ..timed_out() },
        TurnCallFailure { code: Code::ApprovalDenied, ..permanent() },
    ] {
        let mut stage = TurnHarness::new(
            r#"{"calls":[{"id":"pay","tool":"travel/pay","alternatives":["travel/pay_backup"]}]}"#,
        );
        stage.fail("pay", failure);
        assert_eq!(stage.started(), ["pay"]);
        assert!(stage.call("pay").escalated);
    }
}

#[test]
fn eh_4_4_a_timeout_is_in_the_trace_with_its_limit() {
    let mut stage = TurnHarness::new(r#"{"calls":[{"id":"f","tool":"travel/flight_search"}]}"#);
    stage.fail("f", timed_out());
    let timeout = traced(&stage, "ToolTimeout", "flight_search");
    assert_eq!(timeout["timeout_ms"], 30_000);
    assert_eq!(timeout["timestamp"], "1970-01-01T00:00:01.000Z");
    assert_eq!(timeout["kind"], "Error");
}

#[test]
fn eh_6_6_the_trace_has_every_error_its_class_breaker_decision_and_outcome() {
    let mut stage = TurnHarness::new(
        r#"{"calls":[{"id":"f","tool":"travel/flight_search","alternatives":["travel/backup"]},
            {"id":"h","tool":"travel/hotel_search","required":false}]}"#,
    );
    stage.fail("f", timed_out()).succeed_after("f", "{}", 2).fail("h", permanent());
    let timeout = traced(&stage, "ToolTimeout", "flight_search");
    assert_eq!(timeout["classification"], "transient");
    assert_eq!(timeout["circuit_breaker_state"], "CLOSED");
    assert_eq!(timeout["retry_count"], 4);
    assert_eq!(timeout["decision"], "ALTERNATIVE_TOOL");
    assert_eq!(traced(&stage, "ToolSucceeded", "backup")["sentence"], "Tool succeeded on retry 2: backup");
    let error = traced(&stage, "ToolError", "hotel_search");
    assert_eq!(error["classification"], "permanent");
    assert_eq!(error["decision"], "PARTIAL_SUCCESS");
    assert_eq!(
        traced(&stage, "Decision", "hotel_search")["reason"],
        "permanent error (no retry helps) of an optional call"
    );
    assert_eq!(trace_of(&stage).last().unwrap()["event_type"], "TurnEnded");
}

/// Returns the events of the turn's trace in their stored form.
fn trace_of(stage: &TurnHarness) -> Vec<serde_json::Value> {
    let mut trace = TurnTrace::start(TraceId::from_bytes([1; 16]), None, 1000, Timestamp::ZERO);
    stage.notes.iter().for_each(|note| trace.record(note, None).unwrap());
    trace.events().iter().map(|event| serde_json::to_value(event).unwrap()).collect()
}

/// Returns the first event of this type about this tool.
fn traced(stage: &TurnHarness, kind: &str, tool: &str) -> serde_json::Value {
    let events = trace_of(stage);
    let of_tool = |event: &&serde_json::Value| event["event_type"] == kind && event["tool_id"] == tool;
    events.iter().find(of_tool).cloned().unwrap_or_else(|| panic!("no {kind} of {tool}: {events:#?}"))
}

#[test]
fn arguments_that_cannot_be_built_fail_their_call() {
    let plan = r#"{"calls":[{"id":"a","tool":"travel/a"},
        {"id":"b","tool":"travel/b","params":{"x":{"$from":"a","path":"/best/0"}}}]}"#;
    for (output, message) in [
        (r#"{"best":[]}"#, r#"the output of "a" has nothing at "/best/0""#),
        ("{\"best\":", r#"the output of "a" cannot be read"#),
    ] {
        let mut stage = TurnHarness::new(plan);
        stage.succeed("a", output);
        assert_eq!(stage.started(), ["a"]);
        let call = stage.call("b");
        assert_eq!(
            (call.outcome, call.code, call.escalated),
            (TurnCallOutcome::Failed, Some(Code::DependencyFailed), true)
        );
        assert!(call.message.as_ref().unwrap().starts_with(message), "{:?}", call.message);
    }

    let whole = r#"{"calls":[{"id":"a","tool":"travel/a"},{"id":"b","tool":"travel/b","params":{"$from":"a"},
        "alternatives":[{"tool":"travel/c","params":{"a":{"$from":"a"}}}]}]}"#;
    let mut stage = TurnHarness::new(whole);
    stage.succeed("a", "[1]");
    assert_eq!(
        stage.started[1],
        ("b".into(), "c".into(), r#"{"a":[1]}"#.into()),
        "other params can still be made"
    );
    let mut stage = TurnHarness::new(whole);
    stage.succeed("a", r#" {"q":1}"#);
    assert_eq!(stage.started[1], ("b".into(), "b".into(), r#" {"q":1}"#.into()));
}

#[test]
fn an_output_that_is_too_large_is_a_success_without_output() {
    let limits = TurnLimits { output_bytes: 8, stored_bytes: 12, argument_bytes: 40, ..TurnLimits::DEFAULT };
    let plan = br#"{"calls":[{"id":"a","tool":"t/a"},{"id":"b","tool":"t/b"},{"id":"c","tool":"t/c"},
        {"id":"uses","tool":"t/d","params":{"x":{"$from":"a"}}},{"id":"waits","tool":"t/e","dependsOn":["a"]},
        {"id":"many","tool":"t/f","params":{"x":[{"$from":"b"},{"$from":"b"},{"$from":"b"},{"$from":"b"},{"$from":"b"}]}}]}"#;
    let plan = Arc::new(TurnPlan::parse(plan, &limits).unwrap());
    let mut notes = Vec::new();
    let now = Timestamp::ZERO;
    let (mut turn, _) = TurnMachine::begin(plan, &BTreeMap::new(), SubmissionHistory::First, now, &mut notes);
    let mut end = |id: &str, output: &str| {
        let end = PlannedCallEnd::Succeeded { output: RawJson::from_trusted(output), attempts: 1 };
        turn.handle_event(now, TurnEvent::Ended { id: call_id(id), end, replayed: false }, &mut notes)
            .unwrap()
    };
    end("a", "[1,2,3,4,5]");
    end("b", "[1,2,3]");
    end("c", "[1,23]");
    let steps = end("waits", "1");
    let Some(TurnStep::Done(result)) = steps.last() else { panic!("{steps:?}") };
    let actual: Vec<_> =
        result.calls.iter().map(|call| (call.outcome, call.code, call.output.is_some())).collect();
    assert_eq!(
        actual,
        [
            (TurnCallOutcome::Succeeded, Some(Code::ResultNotKept), false),
            (TurnCallOutcome::Succeeded, None, true),
            (TurnCallOutcome::Succeeded, Some(Code::ResultNotKept), false),
            (TurnCallOutcome::Failed, Some(Code::DependencyFailed), false),
            (TurnCallOutcome::Succeeded, None, true),
            (TurnCallOutcome::Failed, Some(Code::DependencyFailed), false),
        ]
    );
}

#[test]
fn a_resubmitted_turn_makes_the_same_calls_and_gets_finished_results() {
    let mut second =
        TurnHarness::with(THREE_SEARCHES, &BTreeMap::new(), SubmissionHistory::Repeated(BTreeMap::new()));
    second.again("f", PlannedCallEnd::Succeeded { output: RawJson::from_trusted("1"), attempts: 0 });
    second.again("a", PlannedCallEnd::Failed(permanent()));
    second.assert_event("Finished earlier, not run again: flight_search");
    assert_eq!(
        (second.outcome_so_far("f"), second.outcome_so_far("a")),
        ("Succeeded".into(), "Failed".into())
    );
}

#[test]
fn a_tool_that_may_have_run_precedes_its_alternatives_in_any_breaker_state() {
    const PLAN: &str = r#"{"calls":[{"id":"a","tool":"travel/a","alternatives":["travel/b","travel/c"]}]}"#;
    let open = breaker("a", BreakerState::Open);
    let first_tool = |submitted| TurnHarness::with(PLAN, &open, submitted).started[0].1.clone();
    assert_eq!(first_tool(SubmissionHistory::First), "b", "nothing of it can have run");
    assert_eq!(first_tool(SubmissionHistory::Repeated(BTreeMap::new())), "a", "it may have its answer");
    let chosen = |candidate, named: Option<&str>| {
        let choice = CandidateChoice { candidate, tool: named.map(tool), ..CandidateChoice::default() };
        SubmissionHistory::Repeated(BTreeMap::from([(call_id("a"), choice)]))
    };
    assert_eq!(first_tool(chosen(1, Some("b"))), "b", "as it was chosen");
    assert_eq!(first_tool(chosen(1, None)), "b", "as an older version kept it");
    for other in [chosen(1, Some("c")), chosen(7, Some("d")), chosen(usize::MAX, None)] {
        let stage = TurnHarness::with(PLAN, &open, other);
        assert!(stage.started.is_empty(), "it was done by another one");
        assert_eq!(stage.call("a").code, Some(Code::IdempotencyConflict));
    }

    let mut again = TurnHarness::with(PLAN, &open, chosen(1, Some("b")));
    again.fail("a", permanent());
    assert_eq!(again.started[1].1, "c", "what was tried before the chosen one is not tried again");
}

#[test]
fn a_call_that_ran_with_a_default_gets_it_again_although_the_output_is_there_now() {
    const PLAN: &str = r#"{"calls":[{"id":"a","tool":"travel/a"},{"id":"b","tool":"travel/b","params":{"x":{"$from":"a"}},
        "dependsOn":[{"id":"a","default":"none"}]}]}"#;
    let mut first = TurnHarness::new(PLAN);
    first.fail("a", permanent());
    let (arguments, choice) = (first.started[1].2.clone(), first.choices[1].clone());
    assert_eq!(choice, CandidateChoice { defaults: vec![call_id("a")], ..CandidateChoice::default() });
    assert_eq!(first.choices[0], CandidateChoice::default(), "as planned");

    let mut again = TurnHarness::with(
        PLAN,
        &BTreeMap::new(),
        SubmissionHistory::Repeated(BTreeMap::from([(call_id("b"), choice)])),
    );
    again.succeed("a", "1");
    assert_eq!(again.started[1].2, arguments, "the same arguments are the same call");
    again.assert_event("Used default value for b");
}

#[test]
fn a_cancelled_turn_ends_at_once_and_reports_calls_that_may_still_take_effect() {
    let mut stage = TurnHarness::with(
        THREE_SEARCHES,
        &stoppable(&["hotel_search", "flight_search"]),
        SubmissionHistory::First,
    );
    stage.succeed("f", "1").on(TurnEvent::Cancel);
    assert_eq!(stage.cut, [TurnStep::Cancel { id: call_id("h") }, TurnStep::Cancel { id: call_id("a") }]);
    assert_eq!(
        ["f", "h", "a", "late"].map(|id| (stage.outcome(id), stage.call(id).code)),
        [
            (TurnCallOutcome::Succeeded, None),
            (TurnCallOutcome::Cancelled, Some(Code::Cancelled)),
            (TurnCallOutcome::LeftRunning, Some(Code::InFlight)),
            (TurnCallOutcome::Skipped, Some(Code::Cancelled)),
        ]
    );
    assert_eq!(stage.result().ended_by, TurnEndReason::Cancel);
}

/// Checks the state of a call after each event in each state.
#[test]
fn every_state_with_every_event() {
    // `x` is brought into the state; `y` keeps the turn open; `z` waits for `x`.
    let plan = r#"{"parallelism":2,"calls":[{"id":"y","tool":"t/y"},{"id":"w","tool":"t/w"},
        {"id":"x","tool":"t/x","dependsOn":["w"]},{"id":"z","tool":"t/z","dependsOn":["x"]}]}"#;
    let ready_plan = r#"{"parallelism":1,"calls":[{"id":"y","tool":"t/y"},{"id":"x","tool":"t/x"}]}"#;
    let success = || PlannedCallEnd::Succeeded { output: RawJson::from_trusted("1"), attempts: 1 };
    let failure = || PlannedCallEnd::Failed(permanent());
    let x = || call_id("x");
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum CallPosition {
        Waiting,
        Ready,
        Running,
        Succeeded,
        Failed,
        CutOff,
        Late,
    }
    let bring = |at: CallPosition| {
        let mut stage = TurnHarness::new(if at == CallPosition::Ready { ready_plan } else { plan });
        match at {
            CallPosition::Waiting | CallPosition::Ready => {}
            CallPosition::Running => {
                stage.succeed("w", "1");
            }
            CallPosition::Succeeded => {
                stage.succeed("w", "1").succeed("x", "1");
            }
            CallPosition::Failed => {
                stage.succeed("w", "1").fail("x", permanent());
            }
            CallPosition::CutOff => {
                stage.succeed("w", "1").at(300);
            }
            CallPosition::Late => {
                stage.succeed("w", "1").at(300).succeed("x", "1");
            }
        }
        stage
    };
    let events: [(&str, TurnEvent); 8] = [
        ("success", TurnEvent::Ended { id: x(), end: success(), replayed: false }),
        ("failure", TurnEvent::Ended { id: x(), end: failure(), replayed: false }),
        (
            "breaker",
            TurnEvent::BreakerChanged {
                tool: ToolRef {
                    namespace: steadfast_core::id::Namespace::new("t").unwrap(),
                    tool: steadfast_core::id::ToolName::new("x").unwrap(),
                },
                state: BreakerState::Open,
            },
        ),
        ("tick", TurnEvent::Tick),
        ("deadline", TurnEvent::Tick),
        ("cancel", TurnEvent::Cancel),
        ("not started", TurnEvent::NotStarted { id: x() }),
        ("known", TurnEvent::ToolKnown { tool: tool("x"), stop: TurnEndEffect::Cancel }),
    ];
    // For each state: the state of `x` after each event.
    const REFUSED: &str = "refused";
    let table = [
        (
            CallPosition::Waiting,
            [REFUSED, REFUSED, "Waiting", "Waiting", "Skipped", "Skipped", REFUSED, "Waiting"],
        ),
        (CallPosition::Ready, [REFUSED, REFUSED, "Ready", "Ready", "Skipped", "Skipped", REFUSED, "Ready"]),
        (
            CallPosition::Running,
            ["Succeeded", "Failed", "Running", "Running", "LeftRunning", "LeftRunning", "Ready", "Running"],
        ),
        (
            CallPosition::Succeeded,
            [REFUSED, REFUSED, "Succeeded", "Succeeded", "Succeeded", "Succeeded", REFUSED, "Succeeded"],
        ),
        (CallPosition::Failed, [REFUSED, REFUSED, "Failed", "Failed", "Failed", "Failed", REFUSED, "Failed"]),
        (
            CallPosition::CutOff,
            [
                "LeftRunning",
                "LeftRunning",
                "LeftRunning",
                "LeftRunning",
                "LeftRunning",
                "LeftRunning",
                REFUSED,
                "LeftRunning",
            ],
        ),
        (
            CallPosition::Late,
            [
                REFUSED,
                REFUSED,
                "LeftRunning",
                "LeftRunning",
                "LeftRunning",
                "LeftRunning",
                REFUSED,
                "LeftRunning",
            ],
        ),
    ];
    for (at, expected) in table {
        for ((name, event), expected) in events.clone().into_iter().zip(expected) {
            let mut stage = bring(at);
            let now = if name == "deadline" { stage.turn.deadline() } else { stage.now };
            let was_over = stage.turn.is_over();
            let after = match stage.turn.handle_event(now, event, &mut stage.notes) {
                Err(TurnMisuse::NotRunning(id)) => {
                    assert_eq!(id, x());
                    REFUSED.to_owned()
                }
                Err(other) => panic!("{at:?} {name}: {other}"),
                Ok(steps) => {
                    assert!(!was_over || steps.is_empty(), "{at:?} {name}: nothing follows the end");
                    stage.turn.state_name(&x())
                }
            };
            assert_eq!(after, expected, "{at:?} {name}");
            let ends = matches!(name, "deadline" | "cancel");
            assert_eq!(stage.turn.is_over(), was_over || ends, "{at:?} {name}");
        }
    }
}

/// A retry was refused after an attempt had done the job in an earlier submission that left no record.
#[test]
fn a_call_repeated_after_an_unknown_outcome_is_not_replaced_in_a_resubmitted_turn() {
    const PLAN: &str = r#"{"turnId":"t","calls":[{"id":"a","tool":"travel/a","alternatives":["travel/b"],"required":false}]}"#;
    let refused =
        TurnCallFailure { reach: AttemptReach::Refused, repeat: RepeatSafety::Unsafe, ..permanent() };
    let again = || SubmissionHistory::Repeated(BTreeMap::new());
    for (doubt, submitted, replayed, replaced) in [
        (UnknownOutcomeHandling::Rerun, SubmissionHistory::First, false, true),
        (UnknownOutcomeHandling::Rerun, SubmissionHistory::First, true, false),
        (UnknownOutcomeHandling::Rerun, again(), false, false),
        (UnknownOutcomeHandling::Reported, again(), false, true),
        (UnknownOutcomeHandling::Reported, again(), true, true),
    ] {
        let mut stage = TurnHarness::with(PLAN, &BTreeMap::new(), submitted.clone());
        let end = PlannedCallEnd::Failed(TurnCallFailure { unknown_outcome: doubt, ..refused.clone() });
        stage.on(TurnEvent::Ended { id: call_id("a"), end, replayed });
        assert_eq!(stage.started.len() == 2, replaced, "{doubt:?} {submitted:?} {replayed}");
    }
    // A call that no other tool can or may do is reported with its own result.
    let later = TurnCallFailure {
        code: Code::InFlight,
        nature: FaultNature::Transient,
        unknown_outcome: UnknownOutcomeHandling::Rerun,
        ..refused
    };
    let mut stage = TurnHarness::with(PLAN, &BTreeMap::new(), again());
    stage.again("a", PlannedCallEnd::Failed(later));
    assert!(!stage.call("a").escalated);
}

/// Several calls end by the deadline, and the driver reports them a moment later.
#[test]
fn results_up_to_the_deadline_count_and_nothing_starts_after_it() {
    let mut stage = TurnHarness::new(
        r#"{"calls":[{"id":"a","tool":"travel/a"},{"id":"b","tool":"travel/b","alternatives":["travel/c"]},
            {"id":"d","tool":"travel/d"},{"id":"e","tool":"travel/e","dependsOn":["a"]}]}"#,
    );
    stage.now = stage.turn.deadline();
    stage.succeed("a", "1").fail("b", permanent()).succeed("d", "1").on(TurnEvent::Tick);
    let outcomes = ["a", "b", "d", "e"].map(|id| stage.outcome(id));
    assert_eq!(
        outcomes,
        [
            TurnCallOutcome::Succeeded,
            TurnCallOutcome::Failed,
            TurnCallOutcome::Succeeded,
            TurnCallOutcome::Skipped
        ]
    );
    assert_eq!((stage.started.len(), stage.result().ended_by), (3, TurnEndReason::Deadline));
    stage.assert_event(
        "Decided to continue without it for b: the deadline of the turn has passed; finished results are returned",
    );
}

/// Regression: a call that was not sent before the deadline was reported as left running.
#[test]
fn calls_that_never_started_are_skipped_or_have_failed_before() {
    let mut stage = TurnHarness::new(
        r#"{"calls":[{"id":"a","tool":"travel/a"},{"id":"b","tool":"travel/b","alternatives":["travel/c"]},
            {"id":"d","tool":"travel/d"},{"id":"e","tool":"travel/e","dependsOn":["b"]}]}"#,
    );
    stage.fail("b", permanent());
    stage.now = stage.turn.deadline();
    for id in ["a", "b"] {
        stage.on(TurnEvent::NotStarted { id: call_id(id) });
    }
    assert!(!stage.turn.is_over(), "something else may have ended by then");
    stage.on(TurnEvent::Tick);
    let outcomes = ["a", "b", "d", "e"].map(|id| stage.outcome(id));
    assert_eq!(
        outcomes,
        [
            TurnCallOutcome::Skipped,
            TurnCallOutcome::Failed,
            TurnCallOutcome::LeftRunning,
            TurnCallOutcome::Skipped
        ]
    );
    let codes = ["a", "b", "e"].map(|id| stage.call(id).code);
    assert_eq!(codes, [Some(Code::DeadlineExceeded); 3]);
    assert_eq!(stage.result().ended_by, TurnEndReason::Deadline);
    assert_eq!(stage.cut, [TurnStep::Leave { id: call_id("d") }]);
}

#[test]
fn events_about_unknown_calls_are_refused_and_about_unknown_tools_ignored() {
    let mut stage = TurnHarness::new(THREE_SEARCHES);
    let end = PlannedCallEnd::Failed(permanent());
    let answer = stage.turn.handle_event(
        stage.now,
        TurnEvent::Ended { id: call_id("nobody"), end, replayed: false },
        &mut stage.notes,
    );
    assert_eq!(answer, Err(TurnMisuse::UnknownCall(call_id("nobody"))));
    let notes = stage.notes.len();
    stage.on(TurnEvent::BreakerChanged { tool: tool("nobody"), state: BreakerState::Open });
    assert_eq!(stage.notes.len(), notes);
}

#[test]
fn a_clock_that_jumps_back_does_not_give_the_turn_more_time() {
    let mut stage = TurnHarness::new(THREE_SEARCHES);
    stage.at(299);
    stage.now = Timestamp::ZERO;
    stage.succeed("f", "1");
    stage.at(300);
    assert!(stage.turn.is_over());
    assert!(stage.notes.is_sorted_by_key(|note| note.at), "the story does not go back either");
    assert_eq!(stage.result().ended_at_ms, Timestamp::from_millis(301_000));
}
