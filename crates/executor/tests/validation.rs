//! Rejected calls, and details of a tool beyond its name.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_core::call::CallNotice;
use steadfast_core::classify::{AttemptFault, FaultSource};
use steadfast_core::code::Code;
use steadfast_core::envelope::{CallEnvelope, UnknownFieldPolicy};
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{
    AnnotationHints, ArgumentCheck, CallPolicy, EnforcementMode, MechanismModes, PolicyProfile, ToolClass,
};
use steadfast_executor::{
    Attempt, CallOptions, CallResponse, Engine, EngineListener, RejectedCall, RuntimeClock, ToolInfo,
    ToolResult, TrustStorage,
};
use steadfast_json::{JsonValue, RawJson};
use steadfast_store::{DocumentKind, MemoryOptions, MemoryStore, StateStore};

fn text(params: &str) -> String {
    format!(
        r#"{{"contractVersion":"1.1","requestId":"r","toolName":"pay","toolNamespace":"bank",
            "target":{{"sessionKey":"s","actorId":"ann"}},"payload":{{"version":"1.0","params":{params}}}}}"#
    )
}

fn call(params: &str) -> CallEnvelope {
    CallEnvelope::parse(text(params).as_bytes(), UnknownFieldPolicy::Refuse).unwrap()
}

fn ok() -> ToolResult {
    Ok(ToolOutput { content: RawJson::from_trusted("\"paid\""), metadata: None })
}

fn code(called: &CallResponse) -> Option<Code> {
    called.result.error.as_ref().map(|error| error.code)
}

/// A listener that records rejected calls.
#[derive(Default)]
struct RejectionListener(Mutex<Vec<(Option<String>, Code)>>);

impl EngineListener for RejectionListener {
    fn call_rejected(&self, away: &RejectedCall<'_>) {
        let request = away.envelope.map(|envelope| envelope.request_id.as_str().to_owned());
        self.0.lock().push((request, away.error.code));
    }
}

#[tokio::test(start_paused = true)]
async fn a_rejected_call_is_reported_to_listeners_and_to_the_stream() {
    let porter = Arc::new(RejectionListener::default());
    let start = || {
        let clock = Arc::new(RuntimeClock::new());
        Engine::builder().clock(clock).listener(porter.clone())
    };
    let engine = start().max_calls(1).start().await;
    let mut events = engine.events();
    let first = engine.call(call("{}"), async |_: Attempt| std::future::pending::<ToolResult>().await);
    let second = engine.call(call("{}"), async |_: Attempt| ok()).await;
    assert_eq!(code(&second), Some(Code::Overloaded));
    assert!(matches!(
        events.try_recv().unwrap().notice,
        CallNotice::CallBlocked { code: Code::Overloaded, .. }
    ));
    drop(first);

    let mut by_hand = call("{}");
    by_hand.payload.params = RawJson::from_trusted("{");
    let engine = start().start().await;
    assert_eq!(code(&engine.call(by_hand, async |_: Attempt| ok()).await), Some(Code::InvalidEnvelope));
    engine.read(b"{\"contractVersion\":", UnknownFieldPolicy::Refuse).unwrap_err();
    engine.read(text("{}").as_bytes(), UnknownFieldPolicy::Refuse).unwrap();
    engine.shutdown(Duration::ZERO).await;
    engine.call(call("{}"), async |_: Attempt| ok()).await;

    let request_id = || Some("r".to_owned());
    let expected = [
        (request_id(), Code::Overloaded),
        (request_id(), Code::InvalidEnvelope),
        (None, Code::InvalidEnvelope),
        (request_id(), Code::Overloaded),
    ];
    assert_eq!(*porter.0.lock(), expected);
}

const SCHEMA: &str = r#"{"type":"object","properties":{"amount":{"type":"integer"}},"required":["amount"]}"#;

fn options(schema: &str) -> CallOptions {
    let tool = ToolInfo {
        annotations: AnnotationHints::default(),
        input_schema: Some(RawJson::from_trusted(schema)),
    };
    CallOptions { tool: Some(Arc::new(tool)), ..CallOptions::default() }
}

async fn engine(check: ArgumentCheck) -> Engine {
    let policy = CallPolicy { arguments: check, ..PolicyProfile::Standard.policy(ToolClass::Unknown) };
    Engine::builder().clock(Arc::new(RuntimeClock::new())).policies(Arc::new(policy)).start().await
}

#[tokio::test(start_paused = true)]
async fn if_the_schema_is_enforced_invalid_arguments_do_not_reach_the_tool() {
    let runs = Arc::new(AtomicU32::new(0));
    let tool = {
        let runs = runs.clone();
        move |_: Attempt| {
            runs.fetch_add(1, Ordering::SeqCst);
            async { ok() }
        }
    };
    let enforcing = engine(ArgumentCheck::Enforce).await;
    let refused = enforcing.call_with(call("{}"), tool.clone(), options(SCHEMA)).await;
    assert_eq!((code(&refused), runs.load(Ordering::SeqCst)), (Some(Code::InvalidArguments), 0));
    assert!(refused.result.error.unwrap().message.contains("\"amount\" is missing"));
    let ran = enforcing.call_with(call(r#"{"amount":1}"#), tool.clone(), options(SCHEMA)).await;
    assert_eq!((code(&ran), runs.load(Ordering::SeqCst)), (None, 1));
    let unread = enforcing.call_with(call("{}"), tool.clone(), options("{")).await;
    assert_eq!(code(&unread), None, "a schema that cannot be read refuses nobody");
    let assisting = engine(ArgumentCheck::Assist).await;
    assert_eq!(code(&assisting.call_with(call("{}"), tool, options(SCHEMA)).await), None, "the tool answers");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_tool_is_explained_from_its_schema() {
    let refuse = async |_: Attempt| -> ToolResult {
        Err(AttemptFault::new(FaultSource::JsonRpc { code: -32602 }, "invalid arguments").into())
    };
    let message_for = async |check| {
        let called = engine(check).await.call_with(call(r#"{"sum":1}"#), refuse, options(SCHEMA)).await;
        called.result.error.unwrap().message
    };
    let helped = message_for(ArgumentCheck::Assist).await;
    assert!(helped.starts_with("invalid arguments"), "{helped}");
    for part in ["\"amount\" is missing", "You sent:", "The schema wants:"] {
        assert!(helped.contains(part), "{helped}");
    }
    assert!(!message_for(ArgumentCheck::Off).await.contains("The schema wants"));
}

/// A tool with a read-only annotation may be resolved as such; that is the decision of the policies.
#[tokio::test(start_paused = true)]
async fn annotations_of_a_tool_reach_the_policies() {
    #[derive(Clone, Default)]
    struct AnnotationRecorder(Arc<Mutex<Vec<AnnotationHints>>>);
    impl steadfast_executor::PolicySource for AnnotationRecorder {
        fn policy(
            &self,
            _: &CallEnvelope,
            _: JsonValue<'_>,
            annotations: AnnotationHints,
        ) -> Arc<CallPolicy> {
            self.0.lock().push(annotations);
            Arc::new(PolicyProfile::Standard.policy(ToolClass::Unknown))
        }
    }
    let recorder = AnnotationRecorder::default();
    let clock = Arc::new(RuntimeClock::new());
    let engine = Engine::builder().clock(clock).policies(recorder.clone()).start().await;
    let annotations = AnnotationHints { read_only: Some(true), ..AnnotationHints::default() };
    let options = CallOptions {
        tool: Some(Arc::new(ToolInfo { annotations, input_schema: None })),
        ..CallOptions::default()
    };
    engine.call_with(call("{}"), async |_: Attempt| ok(), options).await;
    engine.call(call("{}"), async |_: Attempt| ok()).await;
    assert_eq!(*recorder.0.lock(), [annotations, AnnotationHints::default()]);
}

#[tokio::test(start_paused = true)]
async fn rp_17_trust_that_is_not_stored_ends_with_the_process() {
    let clock = Arc::new(RuntimeClock::new());
    let store: Arc<dyn StateStore> = Arc::new(MemoryStore::new(MemoryOptions::new(clock.clone())));
    let start = async |storage| {
        let mut policy = PolicyProfile::Standard.policy(ToolClass::Idempotent);
        policy.modes = MechanismModes {
            retry: EnforcementMode::Off,
            breaker: EnforcementMode::Off,
            guard: EnforcementMode::Off,
            ..policy.modes
        };
        let builder = Engine::builder().clock(clock.clone()).store(store.clone()).trust_storage(storage);
        builder.policies(Arc::new(policy)).start().await
    };
    let fail = async |_: Attempt| -> ToolResult {
        Err(AttemptFault::new(FaultSource::Http { status: 500 }, "internal error").into())
    };
    for (storage, documents) in [(TrustStorage::NotStored, 0), (TrustStorage::InStore, 1)] {
        let engine = start(storage).await;
        for amount in 0..3 {
            engine.call(call(&format!(r#"{{"amount":{amount}}}"#)), fail).await;
        }
        let escalated = engine.call(call("{}"), async |_: Attempt| ok()).await;
        assert_eq!(code(&escalated), Some(Code::ApprovalRequired), "within the process it counts");
        engine.shutdown(Duration::from_secs(1)).await;
        assert_eq!(store.documents(DocumentKind::Trust).await.unwrap().len(), documents);
    }
    let reading = start(TrustStorage::InStore).await;
    let called = reading.call(call("{}"), async |_: Attempt| ok()).await;
    assert_eq!(code(&called), Some(Code::ApprovalRequired), "it was stored");
    let called = start(TrustStorage::NotStored).await.call(call("{}"), async |_: Attempt| ok()).await;
    assert_eq!(code(&called), None, "and is not read");
}
