//! Plans that are invalid, too large, or hostile.

use super::*;

#[track_caller]
fn mistakes(plan: &str) -> Vec<String> {
    let errors = TurnPlan::parse(plan.as_bytes(), &TurnLimits::DEFAULT).expect_err("the plan is wrong");
    assert!(!errors.errors.is_empty());
    errors.errors.iter().map(ToString::to_string).collect()
}

#[test]
fn each_error_has_its_path_and_the_expected_value() {
    let call =
        |rest: &str| format!(r#"{{"calls":[{{"id":"a","tool":"t/a"}},{{"id":"b","tool":"t/b",{rest}}}]}}"#);
    let cases: Vec<(String, &str)> = vec![
        ("{".into(), "the plan: "),
        ("[]".into(), "the plan: expected an object, found an array"),
        ("{}".into(), "the plan: `calls` is missing"),
        (r#"{"calls":{}}"#.into(), "/calls: expected an array, found an object"),
        (r#"{"calls":[]}"#.into(), "/calls: expected at least one call, found none"),
        (r#"{"calls":[7]}"#.into(), "/calls/0: expected an object, found a number"),
        (r#"{"calls":[{"tool":"t/a"}]}"#.into(), "/calls/0: `id` is missing"),
        (r#"{"calls":[{"id":"a"}]}"#.into(), "/calls/0: `tool` is missing"),
        (r#"{"calls":[{"id":"","tool":"t/a"}]}"#.into(), "/calls/0/id: must not be empty"),
        (r#"{"calls":[{"id":"a","tool":"t"}]}"#.into(), "/calls/0/tool: a tool is named as \"namespace/tool\""),
        (r#"{"calls":[{"id":"a","tool":"t/"}]}"#.into(), "/calls/0/tool: must not be empty"),
        (r#"{"calls":[{"id":"a","tool":{"tool":"x"}}]}"#.into(), "/calls/0/tool: `namespace` is missing"),
        (r#"{"calls":[{"id":"a","tool":3}]}"#.into(), "/calls/0/tool: expected \"namespace/tool\", or an object"),
        (r#"{"turnId":3,"calls":[{"id":"a","tool":"t/a"}]}"#.into(), "/turnId: expected a string, found a number"),
        (r#"{"deadlineMs":0,"calls":[{"id":"a","tool":"t/a"}]}"#.into(), "/deadlineMs: expected a whole number"),
        (r#"{"parallelism":1.5,"calls":[{"id":"a","tool":"t/a"}]}"#.into(), "/parallelism: expected a whole number"),
        (r#"{"call":1,"calls":[{"id":"a","tool":"t/a"}]}"#.into(), "the plan: unknown field \"call\""),
        (call(r#""dependson":["a"]"#), "/calls/1: unknown field \"dependson\""),
        (call(r#""dependsOn":"a""#), "/calls/1/dependsOn: expected an array, found a string"),
        (call(r#""dependsOn":[1]"#), "/calls/1/dependsOn/0: expected the id of a call"),
        (call(r#""dependsOn":[{"default":1}]"#), "/calls/1/dependsOn/0: `id` is missing"),
        (call(r#""dependsOn":[{"id":"a","dfault":1}]"#), "/calls/1/dependsOn/0: unknown field \"dfault\""),
        (call(r#""dependsOn":["c"]"#), "/calls/1/dependsOn/0: no call of this plan has the id \"c\""),
        (call(r#""dependsOn":["b"]"#), "/calls/1/dependsOn/0: a call cannot depend on itself"),
        (call(r#""dependsOn":["a","a"]"#), "/calls/1/dependsOn/1: the dependency on \"a\" is named twice"),
        (call(r#""required":"no""#), "/calls/1/required: expected true or false, found a string"),
        (call(r#""timeoutMs":-1"#), "/calls/1/timeoutMs: expected a whole number of at least 1, found another number"),
        (call(r#""params":[1]"#), "/calls/1/params: expected an object, found an array"),
        (call(r#""params":{"x":{"$from":"b"}}"#), "/calls/1/params/x: a call cannot depend on itself"),
        (call(r#""params":{"x":[{"$from":"c"}]}"#), "/calls/1/params/x/0: no call of this plan has the id \"c\""),
        (call(r#""params":{"x":{"$from":1}}"#), "/calls/1/params/x/$from: expected the id of a call, found a number"),
        (
            call(r#""params":{"a/b":{"$from":"a","path":"best"}}"#),
            "/calls/1/params/a~1b/path: a JSON Pointer is empty or begins with `/`",
        ),
        (call(r#""params":{"x":{"$from":"a","path":"/~2"}}"#), "/calls/1/params/x/path: in a JSON Pointer `~`"),
        (call(r#""params":{"x":{"$from":"a","path":"/~"}}"#), "/calls/1/params/x/path: in a JSON Pointer `~`"),
        (call(r#""params":{"x":{"$from":"a","path":7}}"#), "/calls/1/params/x/path: expected a JSON Pointer"),
        (call(r#""params":{"x":{"$from":"a","default":1}}"#), "/calls/1/params/x: an object with `$from` may have"),
        (call(r#""alternatives":[{"params":{}}]"#), "/calls/1/alternatives/0: `tool` is missing"),
        (
            call(r#""alternatives":["t/x",{"tool":"t/y","params":{"q":{"$from":"z"}}}]"#),
            "/calls/1/alternatives/1/params/q: no call of this plan has the id \"z\"",
        ),
        (
            call(r#""alternatives":["t/1","t/2","t/3","t/4","t/5","t/6","t/7","t/8","t/9"]"#),
            "/calls/1/alternatives: has 9 alternatives, at most 8 are allowed",
        ),
        (
            call(r#""params":{"x":{"$from":"a","path":"/best/0"}},"dependsOn":[{"id":"a","default":{"best":"none"}}]"#),
            "/calls/1/dependsOn/0/default: the default has nothing at \"/best/0\", which the arguments take from \"a\"",
        ),
        (
            call(r#""params":{"$from":"a"},"dependsOn":[{"id":"a","default":"none"}]"#),
            "/calls/1/dependsOn/0/default: all the arguments are taken from \"a\", and what the default has there is not",
        ),
        (
            call(
                r#""alternatives":[{"tool":"t/c","params":{"$from":"a","path":"/x"}}],
                    "dependsOn":[{"id":"a","default":{"x":[{}]}}]"#,
            ),
            "/calls/1/dependsOn/0/default: all the arguments are taken from \"a\", and what the default has there is not",
        ),
        (
            r#"{"calls":[{"id":"a","tool":"t/a"},{"id":"a","tool":"t/b"}]}"#.into(),
            "/calls/1/id: the id \"a\" is already used at /calls/0/id",
        ),
        (
            r#"{"calls":[{"id":"x","tool":"t/a"},{"id":"a","tool":"t/a","dependsOn":["b","x"]},
                {"id":"b","tool":"t/b","params":{"x":{"$from":"c"}}},{"id":"c","tool":"t/b","dependsOn":["a"]}]}"#
                .into(),
            "/calls/1: dependency cycle (each call depends on the next): a -> b -> c -> a",
        ),
    ];
    for (plan, expected) in cases {
        let errors = mistakes(&plan);
        assert_eq!(errors.len(), 1, "{plan}: {errors:?}");
        assert!(errors[0].starts_with(expected), "{plan}: {errors:?}");
    }
}

#[test]
fn all_errors_are_reported_at_once() {
    let errors = mistakes(
        r#"{"deadlineMs":"soon","calls":[
            {"id":"a","tool":"nowhere","dependsOn":["a","ghost"]},
            {"id":"b","tool":"t/b","dependsOn":["c"]},
            {"id":"c","tool":"t/c","params":{"x":{"$from":"b","path":"x"},"y":{"$from":"b"}}},
            {"id":"c","tool":"t/d","dependsOn":["phantom"]}]}"#,
    );
    let places: Vec<&str> = errors.iter().map(|error| error.split(": ").next().unwrap()).collect();
    assert_eq!(
        places,
        [
            "/deadlineMs",
            "/calls/0/tool",
            "/calls/2/params/x/path",
            "/calls/3/id",
            "/calls/0/dependsOn/0",
            "/calls/0/dependsOn/1",
            "/calls/3/dependsOn/0",
            "/calls/1",
        ],
        "{errors:#?}"
    );
}

#[test]
fn a_draft_in_rust_is_held_to_the_same_rules() {
    let call = |id: &str, params: Option<&str>| DraftCall {
        id: call_id(id),
        tool: tool(id),
        params: params.map(RawJson::from_trusted),
        depends_on: Vec::new(),
        need: CallNeed::Required,
        alternatives: Vec::new(),
        timeout: None,
    };
    let plan = TurnPlan::new(
        PlanDraft {
            deadline: Some(Duration::from_secs(9)),
            calls: vec![call("a", None), call("b", Some(r#"{"x":{"$from":"a"}}"#))],
            ..PlanDraft::default()
        },
        &TurnLimits::DEFAULT,
    )
    .unwrap();
    assert_eq!(plan.deadline(), Duration::from_secs(9));
    assert_eq!(plan.calls()[1].depends_on.len(), 1, "the reference implies the dependency");

    let mut wrong = call("b", Some("{"));
    wrong.timeout = Some(Duration::ZERO);
    wrong.depends_on = vec![DraftDependency { on: call_id("ghost"), default: None }];
    wrong.alternatives =
        vec![DraftAlternative { tool: tool("x"), params: Some(RawJson::from_trusted("[]")) }];
    let draft = PlanDraft {
        deadline: Some(Duration::ZERO),
        calls: vec![call("a", None), wrong],
        ..PlanDraft::default()
    };
    let errors = TurnPlan::new(draft, &TurnLimits::DEFAULT).unwrap_err();
    let places: Vec<&str> = errors.errors.iter().map(|error| error.path.as_str()).collect();
    assert_eq!(
        places,
        [
            "/deadlineMs",
            "/calls/1/timeoutMs",
            "/calls/1/params",
            "/calls/1/alternatives/0/params",
            "/calls/1/dependsOn/0"
        ]
    );
    let large = call("a", Some(&format!("{{\"x\":\"{}\"}}", "y".repeat(2 << 20))));
    let errors =
        TurnPlan::new(PlanDraft { calls: vec![large], ..PlanDraft::default() }, &TurnLimits::DEFAULT)
            .unwrap_err();
    assert!(errors.to_string().contains("bytes of JSON"), "{errors}");
}

#[test]
fn a_plan_may_lower_the_limits_and_never_raise_them() {
    let parse = |plan: &str| TurnPlan::parse(plan.as_bytes(), &TurnLimits::DEFAULT).unwrap();
    let plan = parse(r#"{"deadlineMs":99999999999999,"parallelism":5000,"calls":[{"id":"a","tool":"t/a"}]}"#);
    assert_eq!((plan.deadline(), plan.parallelism().get()), (Duration::from_secs(300), 16));
    let plan = parse(
        r#"{"deadlineMs":5,"parallelism":2,"calls":[{"id":"a","tool":{"namespace":"a/b","tool":"c"}}]}"#,
    );
    assert_eq!((plan.deadline(), plan.parallelism().get()), (Duration::from_millis(5), 2));
    assert_eq!(plan.calls()[0].tool.namespace.as_str(), "a/b");
}

/// Returns a chain of calls, each depending on the one before it by a reference.
fn chain(length: usize) -> String {
    let calls: Vec<String> = (0..length)
        .map(|call| match call.checked_sub(1) {
            None => r#"{"id":"0","tool":"t/a"}"#.to_owned(),
            Some(before) => {
                format!(r#"{{"id":"{call}","tool":"t/a","params":{{"x":{{"$from":"{before}"}}}}}}"#)
            }
        })
        .collect();
    format!(r#"{{"calls":[{}]}}"#, calls.join(","))
}

const LARGE: TurnLimits = TurnLimits { calls: TurnLimits::MAX_CALLS, bytes: 16 << 20, ..TurnLimits::DEFAULT };

#[test]
fn ten_thousand_calls_are_refused_clearly_unless_they_were_allowed() {
    let plan = chain(10_000);
    let refused = TurnPlan::parse(plan.as_bytes(), &TurnLimits { bytes: LARGE.bytes, ..TurnLimits::DEFAULT })
        .unwrap_err();
    assert_eq!(refused.to_string(), "/calls: has 10000 calls, at most 1000 are allowed");
    assert!(TurnPlan::parse(plan.as_bytes(), &LARGE).is_ok());
    let more = TurnLimits { calls: usize::MAX, ..LARGE };
    let refused = TurnPlan::parse(chain(10_001).as_bytes(), &more).unwrap_err();
    assert_eq!(refused.to_string(), "/calls: has 10001 calls, at most 10000 are allowed");
    let refused = TurnPlan::parse(chain(900).as_bytes(), &TurnLimits { bytes: 1000, ..TurnLimits::DEFAULT })
        .unwrap_err();
    assert!(refused.to_string().contains("at most 1000 are allowed"), "{refused}");
}

#[test]
fn a_chain_of_ten_thousand_runs_and_fails_without_stack() {
    let plan = Arc::new(TurnPlan::parse(chain(10_000).as_bytes(), &LARGE).unwrap());
    let mut notes = Vec::new();
    let now = Timestamp::ZERO;
    let begin = |notes: &mut Vec<TraceNote>| {
        TurnMachine::begin(plan.clone(), &BTreeMap::new(), SubmissionHistory::First, now, notes)
    };

    let (mut turn, mut steps) = begin(&mut notes);
    let mut ran = 0;
    while let [TurnStep::Run { id, .. }] = steps.as_slice() {
        ran += 1;
        let end = PlannedCallEnd::Succeeded { output: RawJson::from_trusted("{}"), attempts: 1 };
        steps = turn
            .handle_event(now, TurnEvent::Ended { id: id.clone(), end, replayed: false }, &mut notes)
            .unwrap();
    }
    assert_eq!(ran, 10_000);
    assert!(matches!(steps.as_slice(), [TurnStep::Done(result)] if result.status == TurnStatus::Completed));

    let (mut turn, _) = begin(&mut notes);
    let end = PlannedCallEnd::Failed(permanent());
    let steps = turn
        .handle_event(now, TurnEvent::Ended { id: call_id("0"), end, replayed: false }, &mut notes)
        .unwrap();
    let [TurnStep::Done(result)] = steps.as_slice() else { panic!("{}", steps.len()) };
    assert_eq!(result.calls.iter().filter(|call| call.outcome == TurnCallOutcome::Skipped).count(), 9_999);
    assert!(result.summary.len() < 500, "{}", result.summary);
}

#[test]
fn ten_thousand_dependants_of_one_call_become_ready_at_once_and_run_a_few_at_a_time() {
    let calls: Vec<String> = (1..10_000)
        .map(|call| format!(r#"{{"id":"{call}","tool":"t/a","params":{{"x":{{"$from":"0"}}}}}}"#))
        .collect();
    let plan = format!(r#"{{"calls":[{{"id":"0","tool":"t/a"}},{}]}}"#, calls.join(","));
    let plan = Arc::new(TurnPlan::parse(plan.as_bytes(), &LARGE).unwrap());
    let (mut turn, _) = TurnMachine::begin(
        plan,
        &BTreeMap::new(),
        SubmissionHistory::First,
        Timestamp::ZERO,
        &mut Vec::new(),
    );
    // Each argument is as large as the output. As many exist at once as calls may run.
    let output = RawJson::string(&"x".repeat(100_000));
    let end = PlannedCallEnd::Succeeded { output, attempts: 1 };
    let mut notes = Vec::new();
    let event = TurnEvent::Ended { id: call_id("0"), end, replayed: false };
    let steps = turn.handle_event(Timestamp::ZERO, event, &mut notes).unwrap();
    assert_eq!(
        (steps.len(), turn.running()),
        (TurnLimits::DEFAULT.parallelism, TurnLimits::DEFAULT.parallelism)
    );
}

#[test]
fn the_memory_of_a_turn_is_bounded_for_all_outputs() {
    let limits =
        TurnLimits { output_bytes: 1_000, stored_bytes: 5_000, parallelism: 100, ..TurnLimits::DEFAULT };
    let calls: Vec<String> = (0..100).map(|call| format!(r#"{{"id":"{call}","tool":"t/a"}}"#)).collect();
    let plan = TurnPlan::parse(format!(r#"{{"calls":[{}]}}"#, calls.join(",")).as_bytes(), &limits).unwrap();
    let mut notes = Vec::new();
    let now = Timestamp::ZERO;
    let (mut turn, _) =
        TurnMachine::begin(Arc::new(plan), &BTreeMap::new(), SubmissionHistory::First, now, &mut notes);
    let mut result = None;
    for call in 0..100_u32 {
        let long = "x".repeat(if call % 10 == 0 { 100_000 } else { 900 });
        let end = match call % 2 {
            0 => PlannedCallEnd::Succeeded { output: RawJson::string(&long), attempts: 1 },
            _ => PlannedCallEnd::Failed(TurnCallFailure { message: "y".repeat(100_000), ..permanent() }),
        };
        let event = TurnEvent::Ended { id: call_id(&call.to_string()), end, replayed: false };
        let steps = turn.handle_event(now, event, &mut notes).unwrap();
        result = steps.into_iter().find_map(|step| match step {
            TurnStep::Done(result) => Some(result),
            TurnStep::Run { .. } | TurnStep::Cancel { .. } | TurnStep::Leave { .. } => None,
        });
    }
    let result = result.expect("the turn is over");
    let outputs: usize =
        result.calls.iter().filter_map(|call| Some(call.output.as_ref()?.as_str().len())).sum();
    assert!(outputs <= 5_000 && outputs > 4_000, "{outputs}");
    let was_too_large =
        |call: &TurnCallResult| call.code == Some(Code::ResultNotKept) && call.message.is_some();
    assert_eq!(result.calls.iter().filter(|call| was_too_large(call)).count(), 45);
    let messages = result.calls.iter().filter_map(|call| Some(call.message.as_ref()?.len()));
    assert!(messages.max().unwrap() < 2_100, "what tools say is cut");
    assert!(result.summary.len() < 500, "{}", result.summary);
}

#[test]
fn a_missing_output_path_is_named() {
    let mut stage = TurnHarness::new(
        r#"{"calls":[{"id":"a","tool":"travel/a"},
            {"id":"b","tool":"travel/b","params":{"x":{"$from":"a","path":"/best/0/price"}}}]}"#,
    );
    stage.succeed("a", r#"{"best":[]}"#);
    let failed = stage.call("b");
    assert_eq!((failed.outcome, failed.code), (TurnCallOutcome::Failed, Some(Code::DependencyFailed)));
    let message = failed.message.as_deref().unwrap();
    assert!(message.contains("\"a\"") && message.contains("/best/0/price"), "{message}");
}

#[test]
fn a_ring_of_ten_thousand_is_named_briefly() {
    let ring: Vec<String> = (0..10_000)
        .map(|call| format!(r#"{{"id":"{call}","tool":"t/a","dependsOn":["{}"]}}"#, (call + 1) % 10_000))
        .collect();
    let plan = format!(r#"{{"calls":[{}]}}"#, ring.join(","));
    let errors = TurnPlan::parse(plan.as_bytes(), &LARGE).unwrap_err();
    let text = errors.to_string();
    assert!(text.contains("0 -> 1 -> 2") && text.contains("9990 more") && text.ends_with("-> 0"), "{text}");
    assert!(text.len() < 300, "{text}");
}

#[test]
fn messages_about_too_many_dependencies_and_errors_are_bounded() {
    let all: Vec<String> = (0..250).map(|call| format!("\"{call}\"")).collect();
    let dense: Vec<String> = (0..250)
        .map(|call| format!(r#"{{"id":"{call}","tool":"t/a","dependsOn":[{}]}}"#, all[..call].join(",")))
        .collect();
    let plan = format!(r#"{{"calls":[{}]}}"#, dense.join(","));
    let text = TurnPlan::parse(plan.as_bytes(), &TurnLimits::DEFAULT).unwrap_err().to_string();
    assert_eq!(text, "the plan: has 31125 dependencies, at most 20000 are allowed");

    let calls = vec![r#"{"id":7,"tool":7,"hm":7}"#; 1000].join(",");
    let errors =
        TurnPlan::parse(format!(r#"{{"calls":[{calls}]}}"#).as_bytes(), &TurnLimits::DEFAULT).unwrap_err();
    assert_eq!((errors.errors.len(), errors.omitted), (PlanErrors::MAX, 2900));
    assert!(errors.to_string().ends_with("; and 2900 more"));
}

#[test]
fn a_long_name_makes_no_long_message() {
    let name = "n".repeat(100_000);
    let nested = (0..40)
        .fold(r#"{"$from":"ghost"}"#.to_owned(), |inner, _| format!(r#"{{"{}":{inner}}}"#, "k".repeat(900)));
    for plan in [
        format!(r#"{{"{name}":1,"calls":[{{"id":"a","tool":"t/a"}}]}}"#),
        format!(r#"{{"calls":[{{"id":"{name}","tool":"t/a"}}]}}"#),
        format!(r#"{{"calls":[{{"id":"a","tool":"t/a","dependsOn":["{name}"]}}]}}"#),
        format!(
            r#"{{"calls":[{{"id":"a","tool":"t/a","params":{{"{name}":{{"$from":"ghost","path":"/{name}"}}}}}}]}}"#
        ),
        format!(
            r#"{{"calls":[{{"id":"a","tool":"t/a","params":{{"{name}":{{"$from":"ghost","{name}":1}}}}}}]}}"#
        ),
        format!(r#"{{"calls":[{{"id":"a","tool":"t/a","params":{nested}}}]}}"#),
    ] {
        let errors = TurnPlan::parse(plan.as_bytes(), &TurnLimits::DEFAULT).unwrap_err();
        assert!(errors.to_string().len() < 1200, "{errors}");
    }
}

#[test]
fn pointers_resolve_only_to_the_named_value() {
    let text = r#"{"a":[10,{"x/y":1,"~":2,"":3}],"":{"":4},"0":5,"-":6,"01":7,"~1":8}"#;
    let cases = [
        ("", Some(text)),
        ("/a", Some(r#"[10,{"x/y":1,"~":2,"":3}]"#)),
        ("/a/0", Some("10")),
        ("/a/1/x~1y", Some("1")),
        ("/a/1/~0", Some("2")),
        ("/a/1/", Some("3")),
        ("//", Some("4")),
        ("/0", Some("5")),
        ("/-", Some("6")),
        ("/01", Some("7")),
        ("/~01", Some("8")),
        ("/a/2", None),
        ("/a/-", None),
        ("/a/00", None),
        ("/a/+1", None),
        ("/a/0/x", None),
        ("/b", None),
        ("/a/99999999999999999999999", None),
    ];
    let pointers: Vec<JsonPointer> =
        cases.iter().map(|(pointer, _)| JsonPointer::parse(pointer).unwrap()).collect();
    let limits = steadfast_json::JsonLimits { bytes: 1000, depth: 8 };
    let pieces = OutputParts::select(RawJson::from_trusted(text), &pointers, limits);
    for ((name, expected), pointer) in cases.iter().zip(&pointers) {
        assert_eq!(pieces.piece(&call_id("a"), pointer).ok(), *expected, "{name:?}");
    }
    assert_eq!(JsonPointer::parse(&"/x".repeat(129)), Err(InvalidJsonPointer::TooDeep));
    assert_eq!(JsonPointer::parse(&format!("/{}", "x".repeat(1024))), Err(InvalidJsonPointer::TooLong));
}
