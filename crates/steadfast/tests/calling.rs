//! The calls that a program makes through the builders: outputs, errors and typed settings.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says so by panicking")]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{fs, io};

use serde::{Deserialize, Serialize, Serializer};
use steadfast::admin::approval::{
    ApprovalChannel, ApprovalDecision, Grantor, ParkedRequest, ParkedRequestId,
};
use steadfast::admin::{
    ApprovalPrompter, ClientDecision, ClientDecisionFuture, OperatorIdentity, OperatorSurface,
};
use steadfast::call::classify::TransportError;
use steadfast::call::envelope::CallEnvelope;
use steadfast::call::id::InvalidId;
use steadfast::call::output::ToolOutput;
use steadfast::call::{CallOptions, EqualCallPolicy, InvalidCall};
use steadfast::config::Sources;
use steadfast::policy::{AmbiguousOutcomePolicy, ApprovalTrigger, EnforcementMode, ToolClass};
use steadfast::store::RuntimeClock;
use steadfast::{
    Attempt, BoxError, CallError, Code, OpenError, Steadfast, SteadfastBuilder, Store, ToolFault, ToolPolicy,
};

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct PaidReceipt {
    number: u64,
    lines: Vec<String>,
    note: Option<String>,
}

fn receipt() -> PaidReceipt {
    PaidReceipt { number: u64::MAX, lines: vec!["tea \"green\"\n".to_owned()], note: None }
}

fn opening() -> SteadfastBuilder {
    Steadfast::builder().store(Store::memory()).clock(Arc::new(RuntimeClock::new()))
}

/// Opens an instance for the tool `bank/pay` with this policy.
async fn bank(policy: ToolPolicy) -> Steadfast {
    opening().tool("bank/pay", policy).build().await.unwrap()
}

async fn works(_: Attempt) -> Result<PaidReceipt, ToolFault> {
    Ok(receipt())
}

fn lost() -> ToolFault {
    ToolFault::connection_lost(TransportError::ConnectionReset, "the bank closed the connection")
}

/// Makes a call whose tool returns this error in every attempt.
async fn failed<E: Into<BoxError> + Send + 'static>(steadfast: &Steadfast, error: fn() -> E) -> CallError {
    let tool = move |_: Attempt| async move { Err::<(), E>(error()) };
    steadfast.call("bank/pay").run(tool).await.unwrap_err()
}

/// An error of a program, with another one as its source.
#[derive(Debug, thiserror::Error)]
#[error("the payment failed")]
struct PaymentFailure(#[source] BoxError);

#[tokio::test(start_paused = true)]
async fn a_key_deduplicates_within_a_session_and_a_tenant() {
    let steadfast = bank(ToolPolicy::mutating()).await;
    let runs = Arc::new(AtomicU32::new(0));
    let counted = runs.clone();
    let count = move |_: Attempt| {
        let runs = counted.clone();
        async move { Ok::<_, ToolFault>(runs.fetch_add(1, Ordering::SeqCst)) }
    };
    let pay = || steadfast.call("bank/pay").key("invoice 42").args(&[("cents", 1000)]);
    let first = pay().run(count.clone()).await.unwrap();
    assert_eq!((first.is_replayed(), first.attempts(), first.output::<u32>().unwrap()), (false, 1, 0));
    let again = pay().run(count.clone()).await.unwrap();
    assert_eq!((again.is_replayed(), again.attempts(), again.output::<u32>().unwrap()), (true, 0, 0));
    assert!(!pay().key("invoice 43").run(count.clone()).await.unwrap().is_replayed());
    assert!(!pay().session("s-2").run(count.clone()).await.unwrap().is_replayed());
    assert!(!pay().tenant("acme").run(count.clone()).await.unwrap().is_replayed());
    assert_eq!(runs.load(Ordering::SeqCst), 4);

    let conflict = pay().args(&[("cents", 1)]).run(count).await.unwrap_err();
    assert_eq!(conflict.code(), Code::IdempotencyConflict);
    assert!(!conflict.may_have_run() && !conflict.is_retriable() && conflict.source().is_none());
}

#[tokio::test(start_paused = true)]
async fn outputs_come_back_as_they_were_also_from_the_store() {
    let steadfast = bank(ToolPolicy::mutating()).await;
    for replayed in [false, true] {
        let paid = steadfast.call("bank/pay").key("k").run(works).await.unwrap();
        assert_eq!(paid.output::<PaidReceipt>().unwrap(), receipt());
        assert_eq!((paid.is_replayed(), paid.response().result.from_cache), (replayed, replayed));
    }
    let nothing = steadfast.call("bank/pay").key("n").run(async |_| Ok::<_, ToolFault>(())).await.unwrap();
    assert_eq!(nothing.json(), "null");
    nothing.output::<()>().unwrap();
    let wrong = nothing.output::<PaidReceipt>().unwrap_err();
    assert_eq!(wrong.code(), "invalid_output");
    assert!(wrong.to_string().contains("PaidReceipt"), "{wrong}");
    assert!(wrong.source().is_some_and(|source| source.is::<serde_json::Error>()));
    assert_eq!(nothing.into_response().result.attempts, 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_carries_the_values_of_its_builder() {
    let steadfast = bank(ToolPolicy::new()).await;
    let now = steadfast.engine().now();
    let call = steadfast.call("bank/pay").args(&BTreeMap::from([("cents", 5)])).key("k").session("s");
    let call = call.actor("ann").tenant("acme").timeout(Duration::from_millis(1500));
    let envelope: CallEnvelope = call.deadline_after(Duration::from_secs(9)).envelope().unwrap();
    assert_eq!(envelope.tool().to_string(), "bank/pay");
    assert_eq!(envelope.payload.params.as_str(), r#"{"cents":5}"#);
    assert_eq!(envelope.payload.idempotency_key.as_ref().unwrap().as_str(), "k");
    assert_eq!(envelope.payload.call_hints.timeout_ms, Some(1500));
    assert_eq!(envelope.target.session_key.as_str(), "s");
    assert_eq!(envelope.target.actor_id.as_str(), "ann");
    assert_eq!(envelope.target.tenant_id.as_ref().unwrap().as_str(), "acme");
    assert_eq!(envelope.control.deadline_at_ms, Some(now + Duration::from_secs(9)));
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_is_reported_with_a_way_to_verify_it() {
    let policy = ToolPolicy::mutating().verify("search the statement");
    let error = failed(&bank(policy).await, lost).await;
    assert_eq!((error.code(), error.code().as_str()), (Code::OutcomeUnknown, "outcome_unknown"));
    assert!(error.is_outcome_unknown() && error.may_have_run());
    assert_eq!((error.verify(), error.attempts()), (Some("search the statement"), 1));
    assert!(error.rule().is_some() && !error.message().is_empty());
    assert!(error.to_string().starts_with("outcome_unknown: "), "{error}");
    assert_eq!(error.response().unwrap().result.error.as_ref().unwrap().code, Code::OutcomeUnknown);
    let source = error.source().unwrap().downcast_ref::<ToolFault>().unwrap();
    assert_eq!(source.to_string(), "the bank closed the connection");
}

#[tokio::test]
async fn a_call_whose_record_may_be_lost_is_refused_and_may_have_run() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("lost-{}", std::process::id()));
    let file = folder.join("state.db");
    let open = || {
        let builder = Steadfast::builder().store(Store::sqlite(&file));
        builder.tool("bank/pay", ToolPolicy::mutating()).build()
    };
    let steadfast = open().await.unwrap();
    assert!(!steadfast.call("bank/pay").key("invoice 42").run(works).await.unwrap().is_replayed());
    steadfast.shutdown(Duration::from_secs(60)).await;
    drop(steadfast);
    fs::remove_file(&file).unwrap();
    let steadfast = open().await.unwrap();
    let error = steadfast.call("bank/pay").key("invoice 42").run(works).await.unwrap_err();
    assert_eq!((error.code(), error.attempts()), (Code::StoreUnavailable, 0), "{error}");
    assert!(error.may_have_run(), "the payment of before the loss");
    steadfast.shutdown(Duration::from_secs(60)).await;
    fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_open_circuit_breaker_refuses_with_the_time_to_try_again() {
    let steadfast = bank(ToolPolicy::idempotent().attempts(1).breaker(1, Duration::from_secs(7))).await;
    let first = failed(&steadfast, || ToolFault::http(503, "down")).await;
    assert!(first.may_have_run() && first.source().is_some());
    let refused = steadfast.call("bank/pay").run(works).await.unwrap_err();
    assert_eq!(refused.code(), Code::CircuitOpen);
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(7)));
    assert!(refused.is_retriable() && !refused.may_have_run() && refused.source().is_none());
    assert_eq!(refused.attempts(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_without_approval_is_refused() {
    let policy = ToolPolicy::mutating().approval(ApprovalTrigger::Always);
    let error = bank(policy).await.call("bank/pay").run(works).await.unwrap_err();
    assert_eq!(error.code(), Code::ApprovalRequired);
    assert!(!error.may_have_run() && !error.is_outcome_unknown());
}

/// A prompter whose user has decided already.
#[derive(Debug)]
struct DecidedPrompter(ApprovalDecision);

impl ApprovalPrompter for DecidedPrompter {
    fn ask(&self, _: ParkedRequestId, _: ParkedRequest) -> ClientDecisionFuture {
        let decision = self.0;
        Box::pin(async move { ClientDecision::Decided(decision) })
    }
}

#[tokio::test(start_paused = true)]
async fn a_user_or_an_operator_approves_or_denies_a_call_that_waits() {
    let policy = ToolPolicy::mutating().approval(ApprovalTrigger::Always);
    let steadfast = bank(policy).await;
    for (decision, denied) in [(ApprovalDecision::Once, false), (ApprovalDecision::Deny, true)] {
        let options = CallOptions {
            channel: ApprovalChannel::Interactive,
            prompter: Some(Arc::new(DecidedPrompter(decision))),
            ..CallOptions::default()
        };
        let call = steadfast.call("bank/pay").args(&[("user", denied)]).options(options);
        let error = call.run(works).await.err();
        assert_eq!(error.is_some(), denied);
        assert!(error.is_none_or(|error| error.code() == Code::ApprovalDenied && !error.may_have_run()));

        let running = steadfast.clone();
        let waiting = tokio::spawn(async move {
            let call = running.call("bank/pay").args(&[("operator", denied)]).wait_for_approval();
            call.run(works).await.err()
        });
        while steadfast.engine().admin().approvals(None).is_empty() {
            tokio::task::yield_now().await;
        }
        let (id, _) = steadfast.engine().admin().approvals(None).pop().unwrap();
        let by = OperatorIdentity { name: "ann".to_owned(), from: OperatorSurface::Library };
        steadfast.engine().admin().decide(None, id, decision, Grantor::Operator, &by).await.unwrap();
        let error = waiting.await.unwrap();
        assert_eq!(error.map(|error| error.code()), denied.then_some(Code::ApprovalDenied));
    }
}

#[tokio::test(start_paused = true)]
async fn equal_calls_without_a_key_are_new_calls_also_where_a_double_dispatch_is_joined() {
    let steadfast = bank(ToolPolicy::mutating()).await;
    for equal_calls in [EqualCallPolicy::Separate, EqualCallPolicy::Joined] {
        for _ in 0..2 {
            let options = CallOptions { equal_calls, ..CallOptions::default() };
            let paid = steadfast.call("bank/pay").options(options).run(works).await.unwrap();
            assert!(!paid.is_replayed(), "{equal_calls:?}: the response to the first has arrived");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_chain_of_the_documentation_needs_no_types() {
    let steadfast = bank(ToolPolicy::mutating()).await;
    let invoice = BTreeMap::from([("cents", 1000)]);
    let paid = steadfast.call("bank/pay").key("invoice 42").args(&invoice);
    let paid = paid.run(async |attempt| works(attempt).await).await.unwrap();
    assert_eq!(paid.output::<PaidReceipt>().unwrap(), receipt());
}

#[tokio::test(start_paused = true)]
async fn timeout_and_deadline_end_a_call_that_hangs() {
    let steadfast = bank(ToolPolicy::read_only().attempts(1)).await;
    let hangs = async |_: Attempt| std::future::pending::<Result<(), ToolFault>>().await;
    let start = tokio::time::Instant::now();
    let short = steadfast.call("bank/pay").timeout(Duration::from_secs(3));
    let error = short.run(hangs).await.unwrap_err();
    assert_eq!((error.code(), start.elapsed().as_secs()), (Code::Timeout, 3));
    assert!(error.may_have_run());

    let start = tokio::time::Instant::now();
    let due = steadfast.call("bank/pay").args(&[("n", 2)]).deadline_after(Duration::from_secs(2));
    let error = due.run(hangs).await.unwrap_err();
    assert_eq!((error.code(), start.elapsed().as_secs()), (Code::DeadlineExceeded, 2));

    let past = steadfast.call("bank/pay").args(&[("n", 3)]).deadline(steadfast::Timestamp::from_millis(1));
    let error = past.run(works).await.unwrap_err();
    assert_eq!((error.code(), error.attempts()), (Code::DeadlineExceeded, 0));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_not_valid_names_its_error_and_runs_nothing() {
    let steadfast = bank(ToolPolicy::new()).await;
    let never = async |_: Attempt| -> Result<(), ToolFault> { panic!("this must not run") };
    let mut cases = Vec::new();
    for tool in ["pay", "bank/", "/pay"] {
        cases.push((steadfast.call(tool), Code::InvalidEnvelope, tool == "pay"));
    }
    let call = || steadfast.call("bank/pay");
    cases.push((call().key(""), Code::InvalidEnvelope, false));
    cases.push((call().session(""), Code::InvalidEnvelope, false));
    cases.push((call().tenant(""), Code::InvalidEnvelope, false));
    cases.push((call().actor(""), Code::InvalidEnvelope, false));
    cases.push((call().args(&[1, 2]), Code::InvalidArguments, false));
    cases.push((call().args("text"), Code::InvalidArguments, false));
    for (call, code, is_tool) in cases {
        let error = call.run(never).await.unwrap_err();
        assert_eq!(error.code(), code);
        assert!(error.response().is_none() && !error.may_have_run() && !error.is_retriable());
        let source = error.source().unwrap().downcast_ref::<InvalidCall>().unwrap();
        assert_eq!((source.code(), matches!(source, InvalidCall::Tool(_))), (code, is_tool));
        assert_eq!(error.message(), source.to_string());
    }
    let nameless = call().key("").envelope().unwrap_err();
    assert_eq!(nameless, InvalidCall::Name { field: "key", reason: InvalidId::Empty });
    assert!(nameless.source().is_some_and(|source| source.is::<InvalidId>()));
}

#[tokio::test(start_paused = true)]
async fn the_error_of_the_tool_is_the_source_and_decides_by_the_fault_within() {
    let steadfast = bank(ToolPolicy::mutating().breaker_mode(EnforcementMode::Off)).await;
    let missing = failed(&steadfast, || io::Error::from(io::ErrorKind::NotFound)).await;
    assert_eq!(missing.code(), Code::ToolError);
    let source = missing.source().unwrap().downcast_ref::<io::Error>().unwrap();
    assert_eq!(source.kind(), io::ErrorKind::NotFound);
    assert!(missing.clone().source().is_some());

    let text = failed(&steadfast, || "no seats left").await;
    assert!(text.message().contains("no seats left"), "{text}");

    let inner = failed(&steadfast, || PaymentFailure("the card is blocked".into())).await;
    assert!(inner.message().contains("the payment failed: the card is blocked"), "{inner}");

    // A fault among the sources counts like one that is returned.
    let wrapped = failed(&steadfast, || PaymentFailure(lost().into())).await;
    assert_eq!(wrapped.code(), Code::OutcomeUnknown);
    assert!(wrapped.source().unwrap().is::<PaymentFailure>());
}

#[tokio::test(start_paused = true)]
async fn a_fault_that_was_not_sent_is_retried_and_its_delay_is_honoured() {
    let steadfast = bank(ToolPolicy::mutating()).await;
    let flaky = async |attempt: Attempt| match attempt.number {
        1 => Err(ToolFault::not_sent(TransportError::ConnectionRefused, "connection refused")
            .retry_after(Duration::from_secs(5))),
        number => Ok(number),
    };
    let start = tokio::time::Instant::now();
    let paid = steadfast.call("bank/pay").run(flaky).await.unwrap();
    assert_eq!((paid.attempts(), paid.output::<u32>().unwrap()), (2, 2));
    assert!(start.elapsed() >= Duration::from_secs(5), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_output_of_a_failed_tool_is_preserved() {
    let steadfast = bank(ToolPolicy::mutating()).await;
    let error = failed(&steadfast, || ToolFault {
        output: Some(ToolOutput::text("no seats left")),
        ..ToolFault::new("no seats left")
    });
    let error = error.await;
    assert_eq!(error.output::<String>().unwrap().unwrap(), "no seats left");
    assert!(failed(&steadfast, || "without").await.output::<String>().is_none());
}

/// An output that cannot be serialized.
struct UnserializableOutput;

impl Serialize for UnserializableOutput {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("a loop"))
    }
}

#[tokio::test(start_paused = true)]
async fn an_output_that_cannot_be_serialized_is_an_error_and_the_tool_is_not_repeated() {
    let steadfast = bank(ToolPolicy::mutating()).await;
    let tool = async |_: Attempt| Ok::<_, ToolFault>(UnserializableOutput);
    let error = steadfast.call("bank/pay").run(tool).await.unwrap_err();
    assert!(error.message().contains("a loop") && error.may_have_run(), "{error}");
    assert_eq!(error.attempts(), 1);
    assert!(error.source().unwrap().is::<serde_json::Error>());
}

/// A policy, and the same settings as text.
type PolicyCase = (ToolPolicy, &'static [(&'static str, &'static str)]);

#[tokio::test]
async fn typed_settings_equal_the_string_form() {
    let ms = Duration::from_millis;
    let new = ToolPolicy::new;
    let cases: [PolicyCase; 24] = [
        (ToolPolicy::read_only(), &[("class", "read_only")]),
        (ToolPolicy::idempotent(), &[("class", "idempotent")]),
        (ToolPolicy::mutating(), &[("class", "mutating")]),
        (new().class(ToolClass::Unknown), &[("class", "unknown")]),
        (new().mode(EnforcementMode::Shadow), &[("mode", "shadow")]),
        (new().timeout(ms(1500)), &[("timeout", "1500ms")]),
        (new().total_timeout(ms(90_000)), &[("total_timeout", "90s")]),
        (new().attempts(7), &[("retry.attempts", "7")]),
        (new().backoff(ms(50), ms(800)), &[("retry.base", "50ms"), ("retry.cap", "800ms")]),
        (new().retry_safe(), &[("retry_safe", "true")]),
        (new().honours_key(), &[("honours_key", "true")]),
        (new().ambiguous(AmbiguousOutcomePolicy::Stop), &[("ambiguous", "stop")]),
        (new().key("{invoice}"), &[("key", "{invoice}")]),
        (new().verify("look"), &[("verify", "look")]),
        (new().approval(ApprovalTrigger::Never), &[("approval", "never")]),
        (new().approval(ApprovalTrigger::Always), &[("approval", "always")]),
        (new().approval_timeout(ms(3000)), &[("approval_timeout", "3s")]),
        (new().breaker(9, ms(4000)), &[("breaker.consecutive", "9"), ("breaker.cooldown", "4s")]),
        (new().breaker_mode(EnforcementMode::Off), &[("breaker.mode", "off")]),
        (new().concurrency(3), &[("limits.concurrency", "3")]),
        (new().rate(10, ms(1000)), &[("limits.rate", "10/1s")]),
        (new().keep_results(ms(7000)), &[("dedupe.keep_done", "7s")]),
        (new().set("dedupe.scope", "global"), &[("dedupe.scope", "global")]),
        (new().attempts(2).attempts(6), &[("retry.attempts", "6")]),
    ];
    let resolved = async |opening: SteadfastBuilder| {
        let steadfast = opening.build().await.unwrap();
        let envelope = steadfast.call("bank/pay").envelope().unwrap();
        format!("{:?}", steadfast.engine().policy_of(&envelope).unwrap())
    };
    let default = resolved(opening()).await;
    for (policy, settings) in cases {
        let text = settings.iter().fold(opening(), |opening, (name, value)| {
            opening.set(&format!("tools.\"bank/pay\".{name}"), value)
        });
        let (typed, text) = (resolved(opening().tool("bank/pay", policy)).await, resolved(text).await);
        assert_eq!(typed, text, "{settings:?}");
        let is_default = settings == [("class", "unknown")];
        assert_eq!(typed == default, is_default, "{settings:?} has an effect");
    }
}

#[tokio::test]
async fn the_policy_of_a_tool_is_stronger_than_the_defaults_and_both_than_the_sources() {
    let environment = BTreeMap::from([("STEADFAST_RETRY_ATTEMPTS".to_owned(), "9".to_owned())]);
    let sources = Sources { environment, ..Sources::default() };
    let attempts = async |opening: SteadfastBuilder, tool: &str| {
        let steadfast = opening.sources(sources.clone()).build().await.unwrap();
        let envelope = steadfast.call(tool).envelope().unwrap();
        steadfast.engine().policy_of(&envelope).unwrap().retry.attempts.get()
    };
    assert_eq!(attempts(opening(), "bank/pay").await, 9);
    let both =
        || opening().tool("bank/pay", ToolPolicy::new().attempts(2)).defaults(ToolPolicy::new().attempts(3));
    assert_eq!(attempts(both(), "bank/pay").await, 2);
    assert_eq!(attempts(both(), "bank/send").await, 3);
}

#[tokio::test]
async fn a_tool_may_have_quotes_and_backslashes_in_its_name() {
    let name = "bank/say \"hi\" \\ twice";
    let steadfast = opening().tool(name, ToolPolicy::mutating()).build().await.unwrap();
    let envelope = steadfast.call(name).envelope().unwrap();
    assert_eq!(steadfast.engine().policy_of(&envelope).unwrap().class, ToolClass::Mutating);
}

async fn refused(opening: SteadfastBuilder) -> OpenError {
    opening.build().await.err().unwrap_or_else(|| panic!("this must not open"))
}

#[tokio::test]
async fn invalid_values_are_reported_by_build_all_at_once_like_those_of_a_file() {
    let policy = ToolPolicy::mutating().attempts(0).timeout(Duration::from_micros(1500)).concurrency(0);
    let error = refused(opening().tool("bank/pay", policy).defaults(ToolPolicy::mutating())).await;
    let OpenError::Configuration(errors) = &error else { panic!("{error:?}") };
    assert_eq!(errors.problems().len(), 4, "{error}");
    assert_eq!((error.code(), error.is_configuration()), ("invalid_configuration", true));
    assert!(error.source().is_some());
    let text = error.to_string();
    for part in ["tools.\"bank/pay\".retry.attempts", "from 1 to 100", "1.5ms", "class"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let same = refused(opening().set("tools.\"bank/pay\".retry.attempts", "0")).await.to_string();
    let (same, _) = same.split_once("1 error in").unwrap();
    assert!(text.contains(same), "{text}\n---\n{same}");

    for name in ["a/b = 1 #", "bank/", ""] {
        let nameless = opening().tool(name, ToolPolicy::mutating()).build().await.err();
        assert!(nameless.is_some_and(|error| error.is_configuration()), "{name:?}");
    }
    // Nothing is read, so no home folder is known.
    let placeless = refused(Steadfast::builder()).await;
    assert!(matches!(placeless, OpenError::Setting { setting: "store.path", .. }), "{placeless}");
}

#[cfg(unix)]
#[tokio::test]
async fn a_path_that_is_not_unicode_is_refused_instead_of_using_another_file() {
    use std::os::unix::ffi::OsStrExt as _;
    let path = std::ffi::OsStr::from_bytes(b"/no/such/\xff.db");
    for store in [Store::sqlite(path), Store::memory().key_file(path)] {
        let error = refused(Steadfast::builder().store(store)).await;
        assert!(matches!(error, OpenError::Setting { .. }) && error.to_string().contains("UTF-8"), "{error}");
    }
}

#[tokio::test]
async fn stores_equal_the_string_form() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("calling-{}.db", std::process::id()));
    assert_eq!(opening().build().await.unwrap().store().kind(), "memory");
    let steadfast = Steadfast::builder().store(Store::sqlite(&path)).build().await.unwrap();
    assert_eq!(steadfast.store().kind(), "sqlite");
    assert!(path.is_file());
    drop(steadfast);
    let _ = fs::remove_file(&path);

    let redis = refused(Steadfast::builder().store(Store::redis("http://localhost"))).await.to_string();
    let text = Steadfast::builder().set("store.kind", "redis").set("store.url", "http://localhost");
    assert_eq!(redis, refused(text).await.to_string());
    for (typed, setting, value) in [
        (Store::memory().prefix("a b"), "store.prefix", "a b"),
        (Store::memory().key_file("/no/such/key"), "store.key_file", "/no/such/key"),
    ] {
        let text = opening().set(setting, value);
        let typed = refused(Steadfast::builder().store(typed)).await.to_string();
        assert!(typed.contains(setting), "{typed}");
        assert_eq!(typed, refused(text).await.to_string());
    }
}
