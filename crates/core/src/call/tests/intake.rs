//! From an envelope to a request, and from a result to an envelope.

use steadfast_json::{JsonDocument, JsonLimits, JsonValue};

use super::*;
use crate::code::CallStatus;
use crate::envelope::CacheMatch;
use crate::guard::{GuardLayer, GuardRemark};
use crate::id::ToolCallId;
use crate::key::{KeyInputs, computed_key, explicit_key, separate_key};
use crate::policy::{ComputedKeyPolicy, KeyConflictPolicy, KeyScope};

fn of(
    envelope: &Json,
    policy: &CallPolicy,
    hook_key: Option<&str>,
    input_schema: Option<JsonValue<'_>>,
) -> CallRequest {
    let envelope = CallEnvelope::parse(envelope.to_string().as_bytes(), UnknownFieldPolicy::Keep).unwrap();
    let (run, process) = (RunId("run-1".into()), process());
    let channel = ApprovalChannel::Interactive;
    let intake = IntakeContext { number: 3, channel, hook_key, input_schema, ..intake(&process, &run) };
    CallRequest::from_envelope(&envelope, policy, intake).unwrap()
}

fn dedupe(envelope: &Json, policy: &CallPolicy, hook_key: Option<&str>) -> Deduplication {
    of(envelope, policy, hook_key, None).duplicates
}

/// Returns the key of a call of the plain envelope.
fn key_by(make: impl FnOnce(&KeyInputs<'_>) -> RecordKey) -> RecordAddress {
    let policy = policy(ToolClass::Mutating);
    let tool = from_envelope(&envelope(), &policy).tool;
    let (session, actor) = (SessionKey::new("s-1").unwrap(), ActorId::new("bob").unwrap());
    let scope = KeyInputs {
        tool: &tool,
        tenant: None,
        workspace: None,
        session: Some(&session),
        actor: Some(&actor),
        continuation: None,
    };
    RecordAddress::Explicit(make(&scope))
}

#[test]
fn the_caller_s_key_counts_before_the_hook_s_and_that_before_the_computed_one() {
    let policy = policy(ToolClass::Mutating);
    let digest = from_envelope(&envelope(), &policy).digest;
    let enforced = envelope_with(&json!({ "transport": { "dedupeMode": "enforced" } }));
    let computed = key_by(|scope| computed_key(scope, digest, ToolClass::Mutating, &policy.dedupe));
    let explicit = |text| key_by(|scope| explicit_key(scope, text));
    assert_eq!(dedupe(&keyed("mine"), &policy, Some("hook")), Deduplication::Joined(explicit("mine")));
    assert_eq!(dedupe(&enforced, &policy, Some("hook")), Deduplication::Joined(explicit("hook")));
    assert_eq!(dedupe(&envelope(), &policy, Some("hook")), Deduplication::Joined(explicit("hook")));
    assert_eq!(dedupe(&enforced, &policy, None), Deduplication::Joined(computed));
    assert_eq!(dedupe(&envelope(), &policy, None), Deduplication::Allowed);
}

#[test]
fn duplicates_are_handled_as_the_caller_requests() {
    let policy = policy(ToolClass::Mutating);
    let explicit = key_by(|scope| explicit_key(scope, "k"));
    for (mode, expected) in [
        (json!(null), Deduplication::Joined(explicit)),
        (json!("enforced"), Deduplication::Joined(explicit)),
        (json!("enabled"), Deduplication::Joined(explicit)),
        (json!("bestEffort"), Deduplication::Refused(explicit)),
        (json!("disabled"), Deduplication::Allowed),
    ] {
        let envelope = envelope_with(
            &json!({ "payload": { "idempotencyKey": "k" }, "transport": { "dedupeMode": mode } }),
        );
        assert_eq!(dedupe(&envelope, &policy, None), expected, "{mode}");
    }
}

#[test]
fn a_key_belongs_to_its_session_actor_and_tenant() {
    let policy = policy(ToolClass::Mutating);
    let address = |target: Json| {
        let envelope = envelope_with(&json!({ "payload": { "idempotencyKey": "k" }, "target": target }));
        dedupe(&envelope, &policy, None)
    };
    let own = address(json!({}));
    assert_eq!(own, address(json!({ "turnId": "t", "modelId": "m", "correlationId": "c" })));
    for other in [json!({ "sessionKey": "s-2" }), json!({ "actorId": "eve" }), json!({ "tenantId": "acme" })]
    {
        assert_ne!(own, address(other.clone()), "{other}");
    }
}

#[test]
fn a_computed_key_is_shared_between_sessions_only_for_tools_that_change_nothing() {
    let address = |class, session: &str| {
        let mut policy = policy(class);
        policy.dedupe.scope = KeyScope::Global;
        let envelope = envelope_with(
            &json!({ "target": { "sessionKey": session }, "transport": { "dedupeMode": "enforced" } }),
        );
        dedupe(&envelope, &policy, None)
    };
    assert_eq!(address(ToolClass::ReadOnly, "s-1"), address(ToolClass::ReadOnly, "s-2"));
    assert_ne!(address(ToolClass::Mutating, "s-1"), address(ToolClass::Mutating, "s-2"));
}

#[test]
fn where_no_key_may_be_computed_only_those_that_are_given_count() {
    let mut policy = policy(ToolClass::Mutating);
    policy.dedupe.computed_keys = ComputedKeyPolicy::Never;
    let explicit = |text| Deduplication::Joined(key_by(|scope| explicit_key(scope, text)));
    let asking = |mode: &str| envelope_with(&json!({ "transport": { "dedupeMode": mode } }));
    assert_eq!(dedupe(&keyed("mine"), &policy, None), explicit("mine"));
    assert_eq!(dedupe(&asking("enforced"), &policy, Some("hook")), explicit("hook"));
    for mode in ["enforced", "bestEffort"] {
        assert_eq!(dedupe(&asking(mode), &policy, None), Deduplication::Allowed, "{mode}");
    }
    // Such a call runs on its own: nothing is looked up, nothing is stored.
    let mut world = CallTestWorld::new();
    for _ in 0..2 {
        assert!(!world.post(&asking("enforced"), &policy, &at_once(paid())).from_cache);
    }
    assert_eq!((world.runs, world.store.writes), (2, 0));
}

/// Returns the deduplication of a call that a surface such as the gateway accepts.
fn derived_key(
    changes: &Json,
    policy: &CallPolicy,
    equal_calls: EqualCallPolicy,
    call_id: Option<&CallId>,
) -> Deduplication {
    let text = envelope_with(changes).to_string();
    let envelope = CallEnvelope::parse(text.as_bytes(), UnknownFieldPolicy::Keep).unwrap();
    let (run, process) = (RunId("run-1".into()), process());
    let intake = IntakeContext { equal_calls, call_id, ..intake(&process, &run) };
    CallRequest::from_envelope(&envelope, policy, intake).unwrap().duplicates
}

#[test]
fn a_call_without_a_key_is_found_by_its_call_id_and_by_equal_arguments_as_far_as_they_may_be_used() {
    use EqualCallPolicy::{Joined, JoinedIfRepeatable, Separate};
    let unique = CallId::Unique(ToolCallId::new("toolu_1").unwrap());
    let mut policy = policy(ToolClass::Mutating);
    let plain = |policy: &CallPolicy, equal, id| derived_key(&json!({}), policy, equal, id);
    let Deduplication::Joined(RecordAddress::Keyless { run, index }) = plain(&policy, Joined, None) else {
        panic!()
    };
    assert_eq!(run.home(), index.home(), "one store operation touches both");
    let Deduplication::Joined(RecordAddress::CallId { id, index: same }) =
        plain(&policy, Joined, Some(&unique))
    else {
        panic!()
    };
    assert_eq!(same, index);
    // If equal arguments do not count, a separate index finds only this dispatch.
    let alone = Deduplication::Joined(RecordAddress::CallId { id, index: id });
    for equal in [Separate, JoinedIfRepeatable] {
        assert_eq!(plain(&policy, equal, None), Deduplication::Allowed, "{equal:?}");
        assert_eq!(plain(&policy, equal, Some(&unique)), alone, "{equal:?}");
    }
    for class in [ToolClass::ReadOnly, ToolClass::Idempotent] {
        let harmless = CallPolicy { class, ..policy.clone() };
        let found = plain(&harmless, JoinedIfRepeatable, None);
        assert!(
            matches!(found, Deduplication::Joined(RecordAddress::Keyless { .. })),
            "{class:?}: {found:?}"
        );
    }
    policy.dedupe.computed_keys = ComputedKeyPolicy::Never;
    assert_eq!(plain(&policy, Joined, None), Deduplication::Allowed);
    assert_eq!(plain(&policy, Joined, Some(&unique)), alone);
}

#[test]
fn the_request_of_a_caller_overrides_how_the_surface_handles_equal_calls() {
    let policy = policy(ToolClass::Mutating);
    let id = CallId::Unique(ToolCallId::new("toolu_1").unwrap());
    let asking = |changes: Json| derived_key(&changes, &policy, EqualCallPolicy::Joined, Some(&id));
    let explicit = key_by(|scope| explicit_key(scope, "k"));
    assert_eq!(asking(json!({ "payload": { "idempotencyKey": "k" } })), Deduplication::Joined(explicit));
    let mode = |mode: &str| asking(json!({ "transport": { "dedupeMode": mode } }));
    assert_eq!(mode("disabled"), Deduplication::Allowed);
    assert!(matches!(mode("enforced"), Deduplication::Joined(RecordAddress::Explicit(_))));
    assert!(matches!(mode("bestEffort"), Deduplication::Refused(RecordAddress::Explicit(_))));
}

#[test]
fn a_call_id_is_known_in_every_conversation_or_in_one() {
    let policy = policy(ToolClass::Mutating);
    let found = |id: &CallId, session: &str| {
        let changes = json!({ "target": { "sessionKey": session } });
        let Deduplication::Joined(address) =
            derived_key(&changes, &policy, EqualCallPolicy::Joined, Some(id))
        else {
            panic!()
        };
        address.own()
    };
    let id = || ToolCallId::new("7").unwrap();
    let (unique, in_session) = (CallId::Unique(id()), CallId::InSession(id()));
    assert_eq!(found(&unique, "s-1"), found(&unique, "s-2"));
    assert_ne!(found(&in_session, "s-1"), found(&in_session, "s-2"));
    assert_ne!(found(&unique, "s-1"), found(&in_session, "s-1"));
}

#[test]
fn a_resend_of_a_dispatch_is_found_and_an_equal_call_under_another_id_is_not_where_keys_are_not_computed() {
    let mut policy = policy(ToolClass::Mutating);
    policy.dedupe.computed_keys = ComputedKeyPolicy::Never;
    let mut world = CallTestWorld::new();
    let mut post = |id: &str| {
        let id = CallId::Unique(ToolCallId::new(id).unwrap());
        let duplicates = derived_key(&json!({}), &policy, EqualCallPolicy::Joined, Some(&id));
        let request = CallRequest { duplicates, ..from_envelope(&envelope(), &policy) };
        matches!(world.drive(request, &policy, &at_once(paid())).provenance, Provenance::Replayed { .. })
    };
    assert_eq!([post("one"), post("one"), post("two"), post("one")], [false, true, false, true]);
}

#[test]
fn under_separate_other_parameters_make_it_another_call() {
    let mut policy = policy(ToolClass::Mutating);
    policy.dedupe.conflict = KeyConflictPolicy::Separate;
    let digest = from_envelope(&envelope(), &policy).digest;
    let expected = key_by(|scope| separate_key(scope, "k", digest));
    assert_eq!(dedupe(&keyed("k"), &policy, None), Deduplication::Joined(expected));
    let other = envelope_with(&json!({ "payload": { "idempotencyKey": "k", "params": { "amount": 6 } } }));
    assert_ne!(dedupe(&other, &policy, None), Deduplication::Joined(expected));
}

#[test]
fn a_request_has_all_facts_of_the_envelope_and_the_surface() {
    let policy = policy(ToolClass::Mutating);
    let envelope = envelope_with(&json!({
        "toolCallId": "toolu_1",
        "target": { "turnId": "t-7", "modelId": "m" },
        "payload": {
            "params": { "url": "https://bank.example.com/v1/pay", "clientTs": 5 },
            "callHints": { "safetyCritical": true, "expectedRetrySafe": true, "timeoutMs": 1500 },
        },
        "transport": { "retryBudget": { "maxAttempts": 2, "maxElapsedMs": 900 } },
        "control": { "deadlineAtMs": 77 },
    }));
    let request = of(&envelope, &policy, None, None);
    assert_eq!((request.id.as_str(), request.tool.to_string().as_str()), ("r-1", "bank/pay"));
    assert_eq!(request.tool_call.unwrap().as_str(), "toolu_1");
    assert_eq!((request.session.unwrap().as_str(), request.actor.unwrap().as_str()), ("s-1", "bob"));
    assert_eq!((request.turn.unwrap().as_str(), request.model.unwrap().as_str()), ("t-7", "m"));
    assert_eq!((request.run, request.number, request.process), (RunId("run-1".into()), 3, process()));
    assert_eq!(request.channel, ApprovalChannel::Interactive);
    assert_eq!(request.hints, CallerHints { expected_retry_safe: true, safety_critical: true });
    assert_eq!(request.limits.attempts, Some(2));
    assert_eq!(request.limits.elapsed, Some(900 * MS));
    assert_eq!(request.limits.attempt, Some(1500 * MS));
    assert_eq!(request.limits.deadline, Some(Timestamp::from_millis(77)));
    assert_eq!(&*request.signature.0, "bank/pay|url=bank.example.com/v1");
    assert_eq!(request.domain.unwrap().as_str(), "bank.example.com");
    assert_eq!(
        request.digest,
        Digest::of(br#"{"amount":5,"to":"ann","url":"https://bank.example.com/v1/pay"}"#),
        "volatile fields are left out"
    );
    assert_eq!((request.danger, request.invalid_arguments), (None, None));
}

#[test]
fn the_domain_is_that_of_the_caller_else_of_the_url_else_the_server() {
    let policy = policy(ToolClass::Mutating);
    let domain = |envelope: &Json| from_envelope(envelope, &policy).domain.unwrap();
    let url = json!({ "payload": { "params": { "url": "https://a.example.com/x" } } });
    let mut explicit = url.clone();
    explicit["target"] = json!({ "domain": "told.example.com" });
    assert_eq!(domain(&envelope_with(&explicit)).as_str(), "told.example.com");
    assert_eq!(domain(&envelope_with(&url)).as_str(), "a.example.com");
    assert_eq!(domain(&envelope()).as_str(), "bank");
}

#[test]
fn a_dangerous_command_is_detected_before_it_runs() {
    let policy = policy(ToolClass::Mutating);
    let command = |line: &str| {
        let envelope = envelope_with(&json!({ "payload": { "params": { "command": line } } }));
        from_envelope(&envelope, &policy).danger
    };
    assert!(command("rm -rf /").is_some());
    assert_eq!(command("ls -l"), None);
}

#[test]
fn arguments_are_held_against_the_schema_only_where_that_is_enforced() {
    let schema =
        json!({ "type": "object", "properties": { "iban": { "type": "string" } }, "required": ["iban"] })
            .to_string();
    let schema = JsonDocument::parse(schema.as_bytes(), JsonLimits::ENVELOPE).unwrap();
    let problem = |check, known: bool| {
        let mut policy = policy(ToolClass::Mutating);
        policy.arguments = check;
        of(&envelope(), &policy, None, known.then(|| schema.root())).invalid_arguments
    };
    assert!(
        problem(ArgumentCheck::Enforce, true).is_some_and(|problem| problem.contains("\"iban\" is missing"))
    );
    assert_eq!(problem(ArgumentCheck::Enforce, false), None);
    assert_eq!(problem(ArgumentCheck::Assist, true), None);
    assert_eq!(problem(ArgumentCheck::Off, true), None);
}

#[test]
fn parameters_that_are_not_json_make_no_request() {
    let mut envelope =
        CallEnvelope::parse(envelope().to_string().as_bytes(), UnknownFieldPolicy::Keep).unwrap();
    envelope.payload.params = RawJson::from_trusted("{\"a\":");
    let (run, process) = (RunId("run-1".into()), process());
    let error = CallRequest::from_envelope(&envelope, &policy(ToolClass::Unknown), intake(&process, &run))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the arguments at line 1, column 6: expected a value, found the end of the text"
    );
}

// ---- results ----

fn failed(code: Code, retriable: bool, attempts: u32) -> CallResult {
    let policy = policy(ToolClass::Mutating);
    let failure = CallFailure {
        code,
        message: "no".into(),
        retriable,
        terminal: !retriable,
        rule: Some("rule".into()),
        verify: Some("look".into()),
        retry_after: Some(2 * SECOND),
        output: None,
    };
    let (call, _) = CallTestWorld::new().begin_only(request(&policy), &policy);
    CallResult { attempts, ..call.failed(failure, START) }
}

#[test]
fn the_status_follows_from_the_code_and_the_attempts() {
    for code in Code::ALL.iter().copied() {
        for (retriable, attempts) in [(true, 0), (false, 0), (true, 1), (false, 1)] {
            let envelope =
                failed(code, retriable, attempts).to_envelope(&request(&policy(ToolClass::Mutating)));
            let actual = (envelope.status, envelope.error.unwrap().retriable);
            assert!(
                !matches!(actual, (CallStatus::RetriableError, false) | (CallStatus::Error, true)),
                "{code}: {actual:?}"
            );
            if code != Code::CircuitOpen {
                assert_eq!(actual, (code.status(retriable), retriable), "{code}");
            }
        }
    }
    assert_eq!(failed(Code::ToolError, false, 1).status(), CallStatus::Error);
    assert_eq!(failed(Code::CircuitOpen, true, 0).status(), CallStatus::CircuitOpen);
    assert_eq!(
        failed(Code::CircuitOpen, true, 2).status(),
        CallStatus::RetryExhausted,
        "it opened between attempts"
    );
}

#[test]
fn an_envelope_has_the_reason_of_a_failure_and_the_remarks_of_the_guard() {
    let request = request(&policy(ToolClass::Mutating));
    let remark = |text: &'static str| GuardRemark { layer: GuardLayer::Loop, text: text.into() };
    let mut result = failed(Code::OutcomeUnknown, false, 1);
    result.remarks = vec![remark("[ONE] a"), remark("[TWO] b")];
    result.recorded = RecordStatus::No;
    result.took = 1500 * MS;
    result.breaker = Some(breaker::State::Open);
    result.retries.push(RetriedAttempt {
        attempt: 1,
        latency: 20 * MS,
        delay: 200 * MS,
        reason: "http.503".into(),
    });
    assert_eq!(
        serde_json::to_value(result.to_envelope(&request)).unwrap(),
        json!({
            "requestId": "r-1", "status": "error", "fromCache": false, "toolName": "pay", "durationMs": 1500,
            "attempts": 1, "recorded": false,
            "error": {
                "code": "outcome_unknown", "message": "no\n[ONE] a\n[TWO] b", "retriable": false, "terminal": true,
                "breakerState": "OPEN", "rule": "rule", "verify": "look", "retryAfterMs": 2000,
            },
            "retriedBy": [{ "attempt": 1, "delayMs": 200, "reasonCode": "http.503", "latencyMs": 20 }],
        })
    );
    assert_eq!(result.model_text().as_deref(), Some("no\n[ONE] a\n[TWO] b"));
}

#[test]
fn remarks_on_a_success_are_in_its_metadata() {
    let request = request(&policy(ToolClass::Mutating));
    for (metadata, expected) in [
        (None, Some(json!({ "dev.steadfast/remarks": ["again \"x\""] }))),
        (Some(" { } "), Some(json!({ "dev.steadfast/remarks": ["again \"x\""] }))),
        (Some(r#"{"a":1}"#), Some(json!({ "dev.steadfast/remarks": ["again \"x\""], "a": 1 }))),
        (Some("[1]"), Some(json!([1]))),
    ] {
        let output =
            ToolOutput { content: RawJson::string("paid"), metadata: metadata.map(RawJson::from_trusted) };
        let mut result = CallResult { outcome: Ok(output.clone()), ..failed(Code::Cancelled, false, 1) };
        assert_eq!(
            result.to_envelope(&request).output,
            Some(output),
            "nothing is added where there is nothing to say"
        );
        assert_eq!(result.model_text(), None);
        result.remarks = vec![GuardRemark { layer: GuardLayer::RepeatedSuccess, text: "again \"x\"".into() }];
        let envelope = serde_json::to_value(result.to_envelope(&request)).unwrap();
        assert_eq!(envelope["output"]["content"], json!("paid"));
        assert_eq!(envelope["output"].get("metadata").cloned(), expected);
        assert_eq!(result.model_text().as_deref(), Some("again \"x\""));
    }
}

#[test]
fn an_answer_of_another_call_is_marked_as_cached() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut leader, _) = world.begin(request(&policy), &policy);
    let (mut follower, step) = world.begin(request(&policy), &policy);
    assert_eq!(name_of(&step), "Follow");
    let first = finished(world.on(&mut leader, CallEvent::Ran(paid())));
    world.pass(40 * MS);
    let followed = finished(world.on(&mut follower, CallEvent::Woke(WakeReason::Changed)))
        .to_envelope(follower.request());
    let replayed = world.post(&keyed("k"), &policy, &[]);
    assert_eq!(first.to_envelope(leader.request()).cache, None);
    for (envelope, matched) in [(followed, CacheMatch::Inflight), (replayed, CacheMatch::Completed)] {
        let hit = envelope.cache.unwrap();
        assert!(envelope.from_cache);
        assert_eq!((hit.matched_on, hit.age_ms, envelope.attempts), (matched, 40, 0));
        assert_eq!(hit.key_fingerprint, leader.request().address().unwrap().own().fingerprint());
        assert_eq!(envelope.output, Some(answer("paid")));
    }
}

#[test]
fn a_key_that_is_given_counts_in_its_conversation_or_for_all_that_its_actor_does() {
    let policy = policy(ToolClass::Mutating);
    let (run, process) = (RunId("run-1".into()), process());
    let found = |session: &str, keys_of| {
        let text = envelope_with(&json!({
            "target": { "sessionKey": session, "actorId": "somebody" },
            "payload": { "idempotencyKey": "mine" },
        }));
        let envelope = CallEnvelope::parse(text.to_string().as_bytes(), UnknownFieldPolicy::Keep).unwrap();
        let intake = IntakeContext { keys_of, ..intake(&process, &run) };
        CallRequest::from_envelope(&envelope, &policy, intake).unwrap().duplicates
    };
    assert_ne!(found("one", CallerKeyScope::Conversation), found("other", CallerKeyScope::Conversation));
    assert_eq!(found("one", CallerKeyScope::Actor), found("other", CallerKeyScope::Actor));
    assert_ne!(found("one", CallerKeyScope::Actor), found("one", CallerKeyScope::Conversation));
}

#[test]
fn the_next_round_of_a_call_that_requested_input_is_another_call_and_not_a_conflict() {
    let policy = policy(ToolClass::Mutating);
    let (run, process) = (RunId("run-1".into()), process());
    let made = |changes: &Json, continuation| {
        let envelope =
            CallEnvelope::parse(envelope_with(changes).to_string().as_bytes(), UnknownFieldPolicy::Keep);
        let intake =
            IntakeContext { continuation, equal_calls: EqualCallPolicy::Joined, ..intake(&process, &run) };
        CallRequest::from_envelope(&envelope.unwrap(), &policy, intake).unwrap()
    };
    let brought = Some(Digest::of(b"{\"answer\":1}"));
    for changes in [json!({}), json!({ "payload": { "idempotencyKey": "mine" } })] {
        let (first, next) = (made(&changes, None), made(&changes, brought));
        assert_ne!(first.duplicates, next.duplicates);
        assert_eq!(next.duplicates, made(&changes, brought).duplicates);
        assert_eq!(first.digest, next.digest);
    }
}
