//! Calls, the tools for them, and checks of their results.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use steadfast_core::call::CallNotice;
use steadfast_core::classify::{AttemptFault, FaultSource};
use steadfast_core::code::{CallStatus, Code};
use steadfast_core::envelope::{CallEnvelope, ErrorBody, UnknownFieldPolicy};
use steadfast_core::output::ToolOutput;
use steadfast_executor::{Attempt, CallResponse, Engine, EngineEvent, ToolHandler, ToolResult};
use steadfast_json::RawJson;
use tokio::sync::{Semaphore, broadcast, watch};

/// Timeout of tests, and of a store that waits for its server. It only prevents hanging and is not measured.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(120);
/// A limit that no test reaches, for settings that the test is not about.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// Returns a call of `bank/pay` with these changes. `null` removes a field.
pub(crate) fn envelope(changes: Value) -> Value {
    let mut envelope = json!({
        "contractVersion": "1.1", "requestId": "r-1", "toolName": "pay", "toolNamespace": "bank",
        "target": { "sessionKey": "s-1", "actorId": "ann" },
        "payload": { "version": "1.0", "params": { "to": "bob", "amount": 5 } },
    });
    change(&mut envelope, changes);
    envelope
}

/// Returns the same as a parsed call.
pub(crate) fn call(changes: Value) -> CallEnvelope {
    read(&envelope(changes)).unwrap()
}

/// Returns a call with this key.
pub(crate) fn keyed(key: &str) -> CallEnvelope {
    call(json!({ "payload": { "idempotencyKey": key } }))
}

/// Returns a call without a key that equals no other one.
pub(crate) fn single(number: usize) -> CallEnvelope {
    call(json!({ "payload": { "params": { "amount": number } } }))
}

/// Reads an envelope like a surface does.
pub(crate) fn read(envelope: &Value) -> Result<CallEnvelope, ErrorBody> {
    let text = envelope.to_string();
    CallEnvelope::parse(text.as_bytes(), UnknownFieldPolicy::Refuse).map_err(|error| ErrorBody::from(&error))
}

fn change(value: &mut Value, changes: Value) {
    let Value::Object(changes) = changes else {
        *value = changes;
        return;
    };
    let Value::Object(fields) = value else { panic!("{value} has no fields to change") };
    for (name, changed) in changes {
        if changed.is_null() {
            fields.remove(&name);
        } else {
            change(fields.entry(name).or_insert_with(|| json!({})), changed);
        }
    }
}

pub(crate) fn paid() -> ToolResult {
    text_result("paid")
}

pub(crate) fn text_result(text: &str) -> ToolResult {
    Ok(ToolOutput { content: RawJson::string(text), metadata: None })
}

pub(crate) fn http(status: u16) -> ToolResult {
    Err(AttemptFault::new(FaultSource::Http { status }, format!("the server said {status}")).into())
}

/// Returns the status and code of a result.
pub(crate) fn status(called: &CallResponse) -> (CallStatus, Option<Code>) {
    (called.result.status, called.result.error.as_ref().map(|error| error.code))
}

pub(crate) const SUCCESS: (CallStatus, Option<Code>) = (CallStatus::Success, None);
pub(crate) const OPEN: (CallStatus, Option<Code>) = (CallStatus::CircuitOpen, Some(Code::CircuitOpen));

/// A tool that counts its runs, answers each by its number, and may wait for a permit.
#[derive(Clone)]
pub(crate) struct CountingTool {
    runs: watch::Sender<u32>,
    leave: Option<Arc<Semaphore>>,
    answer: Arc<dyn Fn(u32) -> ToolResult + Send + Sync>,
}

impl CountingTool {
    /// Creates one that answers at once. The first run has the number 1.
    pub(crate) fn new(answer: impl Fn(u32) -> ToolResult + Send + Sync + 'static) -> Self {
        Self { runs: watch::Sender::new(0), leave: None, answer: Arc::new(answer) }
    }

    /// Creates one that pays.
    pub(crate) fn paying() -> Self {
        Self::new(|_| paid())
    }

    /// Creates one that pays once it has a permit.
    pub(crate) fn gated() -> Self {
        Self { leave: Some(Arc::new(Semaphore::new(0))), ..Self::paying() }
    }

    /// Lets this many runs end.
    pub(crate) fn finish_runs(&self, runs: usize) {
        self.leave.as_ref().unwrap().add_permits(runs);
    }

    pub(crate) fn runs(&self) -> u32 {
        *self.runs.borrow()
    }

    /// Waits until this many runs have begun.
    pub(crate) async fn wait_for_runs(&self, runs: u32) {
        let mut run_count = self.runs.subscribe();
        within("the tool is run", run_count.wait_for(|count| *count >= runs)).await.unwrap();
    }
}

impl ToolHandler for CountingTool {
    fn run(&self, _attempt: Attempt) -> impl Future<Output = ToolResult> + Send + 'static {
        let this = self.clone();
        async move {
            let mut run = 0;
            this.runs.send_modify(|runs| {
                *runs += 1;
                run = *runs;
            });
            if let Some(leave) = &this.leave {
                leave.acquire().await.unwrap().forget();
            }
            (this.answer)(run)
        }
    }
}

/// Makes this many calls fail with 503, one attempt each.
pub(crate) async fn fail(engine: &Engine, calls: usize) {
    for number in 0..calls {
        let once = call(json!({
            "payload": { "params": { "failing": number } },
            "transport": { "retryBudget": { "maxAttempts": 1 } },
        }));
        let called = engine.call(once, CountingTool::new(|_| http(503))).await;
        assert_eq!(called.result.attempts, 1, "{called:?}");
    }
}

/// Waits for a notice of a call.
pub(crate) async fn wait_for_notice(
    events: &mut broadcast::Receiver<EngineEvent>,
    predicate: impl Fn(&CallNotice) -> bool,
) -> CallNotice {
    within("the notice", async {
        loop {
            let event = events.recv().await.unwrap();
            if predicate(&event.notice) {
                return event.notice;
            }
        }
    })
    .await
}

/// Waits for a future, and fails after the timeout.
pub(crate) async fn within<T>(condition: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, future)
        .await
        .unwrap_or_else(|_| panic!("it is still not so that {condition}"))
}
