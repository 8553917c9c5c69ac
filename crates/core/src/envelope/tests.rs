use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use steadfast_json::RawJson;

use super::*;
use crate::Timestamp;
use crate::breaker;
use crate::code::{CallStatus, Code};
use crate::id::{ActorId, RequestId, ToolName, TurnId};
use crate::key::DedupeMode;
use crate::large_result::ShortenedText;
use crate::output::ToolOutput;
use crate::retry::CallerLimits;

fn minimal() -> Json {
    json!({
        "contractVersion": "1.1",
        "requestId": "0192f0c1-7b1a-7000-8000-000000000001",
        "toolName": "send_email",
        "toolNamespace": "agents.tools.messaging",
        "target": { "sessionKey": "s-1", "actorId": "bob" },
        "payload": { "version": "1.0", "params": { "to": "ann@example.com" } },
    })
}

fn full() -> Json {
    json!({
        "contractVersion": "1.1",
        "requestId": "r-1",
        "toolCallId": "toolu_1",
        "toolName": "send_email",
        "toolNamespace": "mail",
        "target": {
            "agentId": "a", "sessionKey": "s", "actorId": "b", "workspaceId": "w", "correlationId": "c",
            "tenantId": "t", "turnId": "turn-7", "modelId": "m", "domain": "smtp.example.com",
        },
        "payload": {
            "version": "1.0",
            "params": { "n": 1 },
            "idempotencyKey": "order-17",
            "callHints": { "safetyCritical": true, "expectedRetrySafe": false, "timeoutMs": 1500 },
        },
        "transport": {
            "dedupeMode": "bestEffort",
            "retryBudget": { "maxAttempts": 2, "maxElapsedMs": 900 },
            "circuitBreakerHint": "dependency",
        },
        "control": { "deadlineAtMs": 1_762_338_645_007_u64, "requestTags": ["x", "y"], "fromHook": "h" },
        "trace": { "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "baggage": { "k": "v" } },
    })
}

fn parse(envelope: &Json) -> Result<CallEnvelope, EnvelopeError> {
    CallEnvelope::parse(envelope.to_string().as_bytes(), UnknownFieldPolicy::Keep)
}

/// Returns the minimal envelope with one field set, or removed if the value is `None`.
fn with(pointer: &str, value: Option<Json>) -> Json {
    let mut envelope = minimal();
    let mut place = &mut envelope;
    let mut names = pointer.split('.').peekable();
    while let Some(name) = names.next() {
        if names.peek().is_some() {
            place = place.as_object_mut().unwrap().entry(name).or_insert_with(|| json!({}));
        } else {
            let object = place.as_object_mut().unwrap();
            match &value {
                Some(value) => drop(object.insert(name.to_owned(), value.clone())),
                None => drop(object.remove(name)),
            }
        }
    }
    envelope
}

fn problems(result: Result<CallEnvelope, EnvelopeError>) -> Vec<String> {
    match result {
        Err(EnvelopeError::Fields { problems, .. }) => problems.iter().map(ToString::to_string).collect(),
        other => panic!("expected problems with fields: {other:?}"),
    }
}

#[test]
fn tr_1_a_malformed_envelope_is_a_terminal_error_and_never_becomes_a_call() {
    let mut envelope = minimal();
    envelope.as_object_mut().unwrap().remove("toolName");
    envelope["contractVersion"] = json!("9.0");
    // It never becomes a call, so there is nothing to record, claim or retry.
    let error = parse(&envelope).unwrap_err();
    let body = ErrorBody::from(&error);
    assert_eq!((body.code, body.code.status(body.retriable)), (Code::UnsupportedVersion, CallStatus::Error));
    assert!(body.terminal && !body.retriable && body.retry_after_ms.is_none());
    assert_eq!(
        body.message,
        "the envelope is not valid: contractVersion: expected \"1.1\", found the text \"9.0\"; \
         toolName: expected a text of 1 to 256 characters without control characters, found nothing"
    );

    let valid = parse(&minimal()).unwrap();
    assert_eq!(valid.tool().to_string(), "agents.tools.messaging/send_email");
}

#[test]
fn tr_1_every_error_is_reported_with_its_path() {
    const ID: &str = "expected a text of 1 to 256 characters without control characters, found";
    const MODE: &str = "expected \"enforced\", \"bestEffort\" or \"disabled\", found";
    let cases: Vec<(&str, Option<Json>, String)> = vec![
        ("requestId", None, format!("requestId: {ID} nothing")),
        ("requestId", Some(json!(7)), format!("requestId: {ID} the number 7")),
        ("requestId", Some(json!(null)), format!("requestId: {ID} null")),
        ("requestId", Some(json!("")), format!("requestId: {ID} an empty text")),
        ("requestId", Some(json!("x".repeat(257))), format!("requestId: {ID} 257 characters")),
        ("toolName", Some(json!("a\nb")), format!("toolName: {ID} a control character in it")),
        ("toolNamespace", Some(json!({})), format!("toolNamespace: {ID} an object")),
        ("target", None, "target: expected an object, found nothing".into()),
        ("target", Some(json!("bob")), "target: expected an object, found the text \"bob\"".into()),
        ("target.sessionKey", None, format!("target.sessionKey: {ID} nothing")),
        ("target.actorId", Some(json!(true)), format!("target.actorId: {ID} true")),
        ("target.turnId", Some(json!([])), format!("target.turnId: {ID} an array")),
        ("payload", None, "payload: expected an object, found nothing".into()),
        ("payload.version", Some(json!("2.0")), "payload.version: expected \"1.0\", found the text \"2.0\"".into()),
        ("payload.version", Some(json!(1.0)), "payload.version: expected \"1.0\", found the number 1.0".into()),
        ("payload.params", Some(json!([1])), "payload.params: expected an object, found an array".into()),
        ("payload.params", None, "payload.params: expected an object, found nothing".into()),
        ("payload.idempotencyKey", Some(json!("")), format!("payload.idempotencyKey: {ID} an empty text")),
        (
            "payload.callHints.timeoutMs",
            Some(json!(-5)),
            "payload.callHints.timeoutMs: expected a whole number of milliseconds, at least 1, found the number -5".into(),
        ),
        (
            "payload.callHints.timeoutMs",
            Some(json!(0)),
            "payload.callHints.timeoutMs: expected a whole number of milliseconds, at least 1, found the number 0".into(),
        ),
        (
            "payload.callHints.safetyCritical",
            Some(json!("yes")),
            "payload.callHints.safetyCritical: expected true or false, found the text \"yes\"".into(),
        ),
        ("transport", Some(json!([])), "transport: expected an object, found an array".into()),
        ("transport.dedupeMode", Some(json!("always")), format!("transport.dedupeMode: {MODE} the text \"always\"")),
        ("transport.dedupeMode", Some(json!(true)), format!("transport.dedupeMode: {MODE} true")),
        (
            "transport.retryBudget.maxAttempts",
            Some(json!(0)),
            "transport.retryBudget.maxAttempts: expected a whole number, at least 1, found the number 0".into(),
        ),
        (
            "transport.retryBudget.maxElapsedMs",
            Some(json!(1.5)),
            "transport.retryBudget.maxElapsedMs: expected a whole number of milliseconds, found the number 1.5".into(),
        ),
        (
            "transport.circuitBreakerHint",
            Some(json!("all")),
            "transport.circuitBreakerHint: expected \"tool\", \"dependency\" or \"global\", found the text \"all\"".into(),
        ),
        (
            "control.deadlineAtMs",
            Some(json!("soon")),
            "control.deadlineAtMs: expected milliseconds since the epoch, a whole number, found the text \"soon\"".into(),
        ),
        (
            "control.requestTags",
            Some(json!(vec!["t"; 65])),
            "control.requestTags: expected an array of at most 64 texts, found 65 of them".into(),
        ),
        ("control.requestTags", Some(json!(["a", 1])), format!("control.requestTags[1]: {ID} the number 1")),
        ("trace.baggage", Some(json!({"k": 1})), "trace.baggage.k: expected a text, found a number".into()),
        (
            "trace.baggage",
            Some(json!({"k": "x".repeat(9000)})),
            "trace.baggage: expected an object of at most 64 texts and 8192 bytes, found 9001 bytes".into(),
        ),
    ];
    for (pointer, value, message) in cases {
        let result = parse(&with(pointer, value));
        let version = pointer == "payload.version" && message.contains("2.0");
        let code = if version { Code::UnsupportedVersion } else { Code::InvalidEnvelope };
        assert_eq!(result.as_ref().unwrap_err().code(), code, "{message}");
        assert_eq!(problems(result), [message]);
    }
    let not_an_object = CallEnvelope::parse(b"[]", UnknownFieldPolicy::Keep);
    assert_eq!(problems(not_an_object), ["the envelope: expected an object, found an array"]);
}

#[test]
fn all_problems_are_reported_at_once_and_their_number_is_bounded() {
    assert_eq!(problems(parse(&json!({}))).len(), 6);
    let envelope = json!({ "contractVersion": 1, "target": {}, "payload": { "callHints": 3 }, "transport": { "retryBudget": 4 } });
    assert_eq!(problems(parse(&envelope)).len(), 10);

    let mut envelope = minimal();
    for n in 0..1000 {
        envelope[format!("field{n}")] = json!(n);
    }
    let error = CallEnvelope::parse(envelope.to_string().as_bytes(), UnknownFieldPolicy::Refuse).unwrap_err();
    assert!(error.to_string().ends_with("; and 968 more"), "{error}");
    assert!(error.to_string().len() < 10_000);
}

#[test]
fn unknown_fields_are_preserved_or_refused_with_a_suggestion() {
    let mut envelope = with("payload.callHints.colour", Some(json!({"a": [1]})));
    envelope["tool_call_id"] = json!("x");
    let parsed = parse(&envelope).unwrap();
    assert_eq!(parsed.payload.call_hints.unknown["colour"], RawJson::from_trusted(r#"{"a":[1]}"#));
    assert_eq!(serde_json::to_value(&parsed).unwrap(), envelope);

    let refused = CallEnvelope::parse(envelope.to_string().as_bytes(), UnknownFieldPolicy::Refuse);
    assert_eq!(
        problems(refused),
        [
            "payload.callHints.colour: expected no such field; there are safetyCritical, expectedRetrySafe, timeoutMs, \
             found an object",
            "tool_call_id: expected no such field; \"toolCallId\" may be meant, found the text \"x\"",
        ]
    );

    let mut misspelt = with("toolName", None);
    misspelt["tool_name"] = json!("read");
    assert_eq!(
        problems(parse(&misspelt)),
        ["toolName: expected a text of 1 to 256 characters without control characters, \
          found nothing (\"tool_name\" is spelled \"toolName\")"]
    );
}

#[test]
fn an_idempotency_key_in_the_wrong_place_is_refused_and_never_ignored() {
    let places = ["idempotencyKey", "idempotency_key", "Idempotency-Key"];
    let parents = ["", "target.", "payload.callHints.", "transport.", "control.", "trace."];
    for parent in parents {
        for name in places {
            let path = format!("{parent}{name}");
            let error = parse(&with(&path, Some(json!("invoice 42")))).unwrap_err();
            let expected = format!(
                "{path}: expected no idempotency key here; in a call it is \"payload.idempotencyKey\""
            );
            assert!(error.to_string().contains(&expected), "{error}");
            assert!(error.has_only_unknown_fields(), "{path}");
            assert!(!error.to_string().contains("invoice 42"), "{error}");
        }
    }
    let misspelt = parse(&with("payload.idempotency_key", Some(json!("invoice 42")))).unwrap_err();
    assert!(misspelt.to_string().contains("payload.idempotency_key"), "{misspelt}");
}

#[test]
fn optional_fields_have_defaults_and_null_counts_as_absent() {
    let call = parse(&minimal()).unwrap();
    assert_eq!(call.caller_limits(), CallerLimits::default());
    assert_eq!(
        (&call.transport, &call.control, &call.trace),
        (&TransportOptions::default(), &CallControl::default(), &EnvelopeTrace::default())
    );
    for field in [
        "toolCallId",
        "target.turnId",
        "payload.callHints",
        "transport",
        "control.requestTags",
        "trace.baggage",
    ] {
        assert_eq!(parse(&with(field, Some(Json::Null))).as_ref(), Ok(&call), "{field}");
    }
}

#[test]
fn the_caller_may_set_limits_and_the_mode_follows_the_key() {
    let call = parse(&full()).unwrap();
    let limits = CallerLimits {
        attempts: Some(2),
        elapsed: Some(Duration::from_millis(900)),
        attempt: Some(Duration::from_millis(1500)),
        deadline: Some(Timestamp::from_millis(1_762_338_645_007)),
        start_by: None,
    };
    assert_eq!(call.caller_limits(), limits);
    assert_eq!(call.dedupe_mode(), DedupeMode::BestEffort);
    for (envelope, mode) in [
        (minimal(), DedupeMode::Disabled),
        (with("payload.idempotencyKey", Some(json!("k"))), DedupeMode::Enforced),
        (with("transport.dedupeMode", Some(json!("enforced"))), DedupeMode::Enforced),
        (with("transport.dedupeMode", Some(json!("enabled"))), DedupeMode::Enforced),
        (with("transport.dedupeMode", Some(json!("disabled"))), DedupeMode::Disabled),
    ] {
        assert_eq!(parse(&envelope).unwrap().dedupe_mode(), mode);
    }
    let many = parse(&with("transport.retryBudget.maxAttempts", Some(json!(u64::MAX)))).unwrap();
    assert_eq!(many.caller_limits().attempts, Some(u32::MAX));
}

#[test]
fn params_keep_every_digit_and_every_space() {
    let text =
        minimal().to_string().replace(r#"{"to":"ann@example.com"}"#, r#"{ "n" : 12345678901234567890.10 }"#);
    let call = CallEnvelope::parse(text.as_bytes(), UnknownFieldPolicy::Refuse).unwrap();
    assert_eq!(call.payload.params.as_str(), r#"{ "n" : 12345678901234567890.10 }"#);
}

/// Hostile input gets a clear error, and never causes a panic.
#[test]
fn hostile_texts_get_a_clear_error_with_the_place() {
    let valid = minimal().to_string();
    let deep = with("payload.params.a", Some(json!(0)))
        .to_string()
        .replace(":0", &format!(":{}1{}", "[".repeat(70), "]".repeat(70)));
    let large = valid.replace("ann@example.com", &"x".repeat(1 << 20));
    let twice = valid.replacen('{', r#"{"toolName":"other","#, 1);
    let hostile: Vec<(&str, Vec<u8>)> = vec![
        ("empty", Vec::new()),
        ("truncated", valid.as_bytes()[..valid.len() - 3].to_vec()),
        ("too deep", deep.into_bytes()),
        ("too large", large.into_bytes()),
        ("a name twice", twice.into_bytes()),
        ("not UTF-8", [b"{\"requestId\":\"\xff\"}".as_slice()].concat()),
        ("a nul", b"\0".to_vec()),
        ("trailing", format!("{valid} x").into_bytes()),
        ("lone surrogate", br#"{"requestId":"\ud800"}"#.to_vec()),
    ];
    for (name, text) in hostile {
        let error = CallEnvelope::parse(&text, UnknownFieldPolicy::Keep).unwrap_err();
        assert!(matches!(&error, EnvelopeError::Json(json) if json.offset <= text.len()), "{name}: {error}");
        assert!(error.to_string().contains(" at byte "), "{name}: {error}");
        assert_eq!(error.code(), Code::InvalidEnvelope);
        assert!(ErrorBody::from(&error).terminal);
    }
    for cut in 0..valid.len() {
        assert!(CallEnvelope::parse(&valid.as_bytes()[..cut], UnknownFieldPolicy::Keep).is_err());
    }
    let huge = valid.replace("\"1.0\"", &"9".repeat(100_000));
    let error = CallEnvelope::parse(huge.as_bytes(), UnknownFieldPolicy::Keep).unwrap_err();
    assert!(error.to_string().len() < 300, "{error}");
}

#[test]
fn tr_15_neither_errors_nor_debug_show_the_parameters() {
    let secret = format!("ghp_{}", "9aK3xQ7mZ2pL5vB8nR1tY6wC4dF0gH");
    for field in
        ["contractVersion", "payload.params", "target", "transport.dedupeMode", "payload.callHints.timeoutMs"]
    {
        let error = parse(&with(field, Some(json!(secret)))).unwrap_err();
        assert!(!error.to_string().contains(&secret) && !format!("{error:?}").contains(&secret), "{error}");
    }
    let mut envelope = minimal();
    envelope[&secret] = json!(1);
    let error = CallEnvelope::parse(envelope.to_string().as_bytes(), UnknownFieldPolicy::Refuse).unwrap_err();
    assert!(!error.to_string().contains(&secret), "{error}");

    let mut envelope = full();
    envelope["payload"]["params"] = json!({ "note": "hunter2" });
    envelope["payload"]["idempotencyKey"] = json!("hunter2");
    envelope["trace"]["baggage"] = json!({ "hunter2": "hunter2" });
    let call = parse(&envelope).unwrap();
    assert!(!format!("{call:?}").contains("hunter2"), "{call:?}");
}

#[test]
fn the_full_envelope_survives_its_text_form() {
    let call = CallEnvelope::parse(full().to_string().as_bytes(), UnknownFieldPolicy::Refuse).unwrap();
    assert_eq!(serde_json::to_value(&call).unwrap(), full());
}

#[test]
fn results_have_the_fields_of_the_contract() {
    let result = ResultEnvelope {
        request_id: RequestId::new("r-1").unwrap(),
        status: CallStatus::CircuitOpen,
        from_cache: true,
        cache: Some(CacheHit {
            matched_on: CacheMatch::Inflight,
            age_ms: 3,
            key_fingerprint: "ba7816bf8f01".into(),
        }),
        tool_name: ToolName::new("t").unwrap(),
        duration_ms: 12,
        attempts: 2,
        output: Some(ToolOutput { content: RawJson::from_trusted("[1.10]"), metadata: None }),
        error: Some(ErrorBody {
            code: Code::CircuitOpen,
            message: "m".into(),
            retriable: true,
            terminal: false,
            breaker_state: Some(breaker::State::HalfOpen),
            rule: Some("breaker".into()),
            verify: Some("look".into()),
            retry_after_ms: Some(30_000),
            observed: None,
            is_final: None,
        }),
        retried_by: vec![RetryEntry {
            attempt: 1,
            delay_ms: 200,
            reason_code: "http_503".into(),
            latency_ms: 9,
        }],
        recorded: Some(false),
        escalated: true,
        turn: Some(TurnId::new("turn-7").unwrap()),
        shortened: Some(ShortenedText {
            id: "a-1".to_owned(),
            bytes: 9000,
            gap_start: 750,
            gap_end: 8750,
            read_at: "/v1/results/a-1".to_owned(),
        }),
    };
    let text = serde_json::to_string(&result).unwrap();
    assert_eq!(
        serde_json::from_str::<Json>(&text).unwrap(),
        json!({
            "requestId": "r-1", "status": "circuit_open", "fromCache": true,
            "cache": { "matchedOn": "inflight", "ageMs": 3, "keyFingerprint": "ba7816bf8f01" },
            "toolName": "t", "durationMs": 12, "attempts": 2, "output": { "content": [1.10] },
            "error": {
                "code": "circuit_open", "message": "m", "retriable": true, "terminal": false, "breakerState": "HALF_OPEN",
                "rule": "breaker", "verify": "look", "retryAfterMs": 30000,
            },
            "retriedBy": [{ "attempt": 1, "delayMs": 200, "reasonCode": "http_503", "latencyMs": 9 }],
            "recorded": false, "escalated": true, "turn": "turn-7",
            "shortened": { "id": "a-1", "bytes": 9000, "gapStart": 750, "gapEnd": 8750, "readAt": "/v1/results/a-1" },
        })
    );
    assert_eq!(serde_json::from_str::<ResultEnvelope>(&text).unwrap(), result);

    let plain = r#"{"requestId":"r","status":"success","fromCache":false,"toolName":"t","durationMs":1,"attempts":1,"output":{"content":{ "a" : 1e2 }}}"#;
    let read: ResultEnvelope = serde_json::from_str(plain).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), plain);
}

#[test]
fn every_code_has_a_page_that_names_its_status() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
    let index = std::fs::read_to_string(folder.join("README.md")).unwrap();
    for code in Code::ALL {
        let page = std::fs::read_to_string(folder.join(format!("{code}.md"))).unwrap();
        let passes = [Code::InFlight, Code::Overloaded, Code::StoreUnavailable, Code::UpstreamUnavailable];
        let status = serde_json::to_value(code.status(passes.contains(code))).unwrap();
        let status = status.as_str().unwrap();
        assert!(page.starts_with(&format!("# `{code}`\n")), "{code}");
        assert!(page.contains(&format!("| `{status}` |")), "{code}");
        assert!(index.contains(&format!("| [`{code}`]({code}.md) | `{status}` |")), "{code}");
    }
    let pages = std::fs::read_dir(folder).unwrap().count();
    assert_eq!(pages, Code::ALL.len() + 1, "a page for each code, and the index");
}

#[test]
fn an_envelope_without_an_actor_belongs_to_its_sender() {
    let with = |actor: &str| {
        let text = format!(
            r#"{{"contractVersion":"1.1","requestId":"r","toolName":"t","toolNamespace":"n","target":{{"sessionKey":"s"{actor}}},"payload":{{"version":"1.0","params":{{}}}}}}"#
        );
        let sender = ActorId::new("ann").unwrap();
        let read = CallEnvelope::parse_from(text.as_bytes(), UnknownFieldPolicy::Refuse, Some(&sender));
        (
            read.map(|call| call.target.actor_id.to_string()),
            CallEnvelope::parse(text.as_bytes(), UnknownFieldPolicy::Refuse),
        )
    };
    for absent in ["", r#","actorId":null"#] {
        let (of_sender, of_no_actor) = with(absent);
        assert_eq!(of_sender.unwrap(), "ann");
        assert!(of_no_actor.unwrap_err().to_string().contains("target.actorId"));
    }
    // The reader does not decide if the caller may name this actor.
    assert_eq!(with(r#","actorId":"bob""#).0.unwrap(), "bob");
    assert!(with(r#","actorId":17"#).0.unwrap_err().to_string().contains("target.actorId"));
}

#[cfg(feature = "schema")]
#[test]
fn schemas_name_the_fields_of_the_contract() {
    let call = serde_json::to_value(schemars::schema_for!(CallEnvelope)).unwrap();
    let required = ["contractVersion", "requestId", "toolName", "toolNamespace", "target", "payload"];
    assert_eq!(call["required"], json!(required));
    let result = serde_json::to_value(schemars::schema_for!(ResultEnvelope)).unwrap();
    assert!(result["properties"]["retriedBy"].is_object());
}

fn a_text() -> impl Strategy<Value = String> {
    "[^\\p{Cc}]{1,12}"
}

fn an_envelope() -> impl Strategy<Value = Json> {
    let any_json =
        prop_oneof![Just(json!(null)), any::<u32>().prop_map(Json::from), a_text().prop_map(Json::from)];
    let extra = prop::collection::btree_map("x[a-z]{1,3}", any_json.clone(), 0..3);
    let params = prop::collection::btree_map(".{0,6}", any_json, 0..4);
    let limits =
        (prop::option::of(1..u64::MAX), prop::option::of(1..u32::MAX), prop::option::of(any::<u64>()));
    let tags = prop::collection::vec(a_text(), 1..4);
    let baggage: BTreeMap<String, String> = [("k".to_owned(), "v".to_owned())].into();
    (a_text(), prop::option::of(a_text()), params, extra, limits, tags, any::<bool>()).prop_map(
        move |(id, key, params, extra, (timeout, attempts, deadline), tags, flag)| {
            let mut envelope = full();
            envelope["requestId"] = json!(id);
            envelope["payload"]["params"] = json!(params);
            envelope["control"]["requestTags"] = json!(tags);
            envelope["payload"]["callHints"]["expectedRetrySafe"] = json!(flag);
            envelope["trace"]["baggage"] = json!(baggage);
            let mut set = |pointer: &str, name: &str, value: Option<Json>| {
                let object = envelope.pointer_mut(pointer).unwrap().as_object_mut().unwrap();
                match value {
                    Some(value) => drop(object.insert(name.to_owned(), value)),
                    None => drop(object.remove(name)),
                }
            };
            set("/payload", "idempotencyKey", key.map(Json::from));
            set("/payload/callHints", "timeoutMs", timeout.map(Json::from));
            set("/transport/retryBudget", "maxAttempts", attempts.map(Json::from));
            set("/control", "deadlineAtMs", deadline.map(Json::from));
            for (name, value) in extra {
                set("", &name, Some(value.clone()));
                set("/trace", &name, Some(value));
            }
            envelope
        },
    )
}

proptest! {
    #[test]
    fn a_parsed_envelope_survives_serialization(envelope in an_envelope()) {
        let call = parse(&envelope).unwrap();
        let text = serde_json::to_string(&call).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Json>(&text).unwrap(), &envelope);
        prop_assert_eq!(CallEnvelope::parse(text.as_bytes(), UnknownFieldPolicy::Keep).unwrap(), call);
    }

    #[test]
    fn no_text_makes_it_panic(mut text in an_envelope().prop_map(|json| json.to_string().into_bytes()), edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        for (place, byte) in edits {
            let place = place.index(text.len());
            text[place] = byte;
        }
        if let Err(error) = CallEnvelope::parse(&text, UnknownFieldPolicy::Refuse) {
            prop_assert!(error.to_string().len() < 10_000);
        }
    }
}
