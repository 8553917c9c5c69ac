//! Scripted tools, turns that use them, and assertions about these. Shared by the tests of the engine and those of the
//! crate `steadfast`.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::classify::{AttemptFault, FaultSource, TransportError};
use steadfast_core::envelope::{CallEnvelope, UnknownFieldPolicy};
use steadfast_core::id::{Namespace, ToolName, ToolRef};
use steadfast_core::output::ToolOutput;
use steadfast_executor::{
    Attempt, BreakerKey, Engine, ResolvedTool, ToolRegistry, ToolResult, TurnOptions, TurnResponse,
    TurnTraceView,
};
use steadfast_json::RawJson;
use steadfast_turn::{TurnCallOutcome, TurnLimits, TurnPlan};

/// The behavior of a tool in its n-th run.
pub(crate) type ToolScript = Box<dyn Fn(u32, Attempt) -> ScriptedAttempt + Send + Sync>;
pub(crate) type ScriptedAttempt = Pin<Box<dyn Future<Output = ToolResult> + Send>>;

/// Tools by name, with the number of their runs.
#[derive(Clone, Default)]
pub(crate) struct ScriptedTools {
    scripts: Arc<BTreeMap<&'static str, ToolScript>>,
    runs: Arc<Mutex<BTreeMap<String, u32>>>,
}

impl ScriptedTools {
    pub(crate) fn new(scripts: impl IntoIterator<Item = (&'static str, ToolScript)>) -> Self {
        Self { scripts: Arc::new(scripts.into_iter().collect()), runs: Arc::default() }
    }

    pub(crate) fn runs(&self, tool: &str) -> usize {
        self.runs.lock().get(tool).map_or(0, |runs| *runs as usize)
    }
}

impl ToolRegistry for ScriptedTools {
    fn find<'a>(
        &'a self,
        envelope: &'a CallEnvelope,
    ) -> Pin<Box<dyn Future<Output = Option<ResolvedTool>> + Send + 'a>> {
        let name = envelope.tool_name.to_string();
        let found = self.scripts.contains_key(name.as_str()).then(|| {
            let this = self.clone();
            ResolvedTool::new(move |attempt: Attempt| {
                let number = {
                    let mut runs = this.runs.lock();
                    let ran = runs.entry(name.clone()).or_default();
                    *ran += 1;
                    *ran
                };
                (this.scripts.get(name.as_str()).unwrap())(number, attempt)
            })
        });
        Box::pin(async move { found })
    }
}

/// Returns the script of a tool.
pub(crate) fn script<F: Future<Output = ToolResult> + Send + 'static>(
    run: impl Fn(u32) -> F + Send + Sync + 'static,
) -> ToolScript {
    Box::new(move |number, _| Box::pin(run(number)))
}

pub(crate) fn replies(output: &'static str) -> ToolScript {
    Box::new(move |_, _| Box::pin(async move { Ok(tool_output(output)) }))
}

pub(crate) fn tool_output(output: &str) -> ToolOutput {
    ToolOutput { content: RawJson::from_trusted(output), metadata: None }
}

/// Lets all tasks run until they wait.
pub(crate) async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

pub(crate) fn ok() -> ToolResult {
    Ok(tool_output("\"paid\""))
}

pub(crate) fn reset() -> ToolResult {
    let source = FaultSource::Transport { error: TransportError::ConnectionReset, written: true };
    Err(AttemptFault::new(source, "connection reset").into())
}

pub(crate) fn invalid() -> ToolResult {
    Err(AttemptFault::new(FaultSource::Http { status: 400 }, "Invalid airport code: XYZ").into())
}

pub(crate) fn refuses() -> ToolScript {
    Box::new(|_, _| Box::pin(async { invalid() }))
}

/// Runs until it is cancelled.
pub(crate) fn hangs() -> ToolScript {
    Box::new(|_, attempt| {
        Box::pin(async move {
            attempt.cancelled().await;
            reset()
        })
    })
}

pub(crate) fn plan(text: &str) -> Arc<TurnPlan> {
    Arc::new(TurnPlan::parse(text.as_bytes(), &TurnLimits::DEFAULT).unwrap())
}

pub(crate) fn options() -> TurnOptions {
    let text = r#"{"contractVersion":"1.1","requestId":"r","toolName":"t","toolNamespace":"t",
        "target":{"sessionKey":"s","actorId":"ann"},"payload":{"version":"1.0","params":{}}}"#;
    TurnOptions::of(CallEnvelope::parse(text.as_bytes(), UnknownFieldPolicy::Refuse).unwrap().target)
}

pub(crate) async fn turn(engine: &Engine, tools: &ScriptedTools, text: &str) -> TurnResponse {
    engine.turn(plan(text), Arc::new(tools.clone()), options()).await.unwrap()
}

pub(crate) async fn story(engine: &Engine, turned: &TurnResponse) -> TurnTraceView {
    engine.turn_trace(&turned.trace.to_string()).await.unwrap().unwrap()
}

pub(crate) fn sentences(story: &TurnTraceView) -> Vec<&str> {
    story.events.iter().map(|event| event.sentence.as_str()).collect()
}

#[track_caller]
pub(crate) fn assert_sentence(story: &TurnTraceView, sentence: &str) {
    assert!(sentences(story).iter().any(|line| line.starts_with(sentence)), "{:#?}", sentences(story));
}

pub(crate) fn outcomes(turned: &TurnResponse) -> Vec<(&str, TurnCallOutcome)> {
    turned.result.calls.iter().map(|call| (call.id.as_str(), call.outcome)).collect()
}

pub(crate) const SEARCHES: &str = r#"{"deadlineMs":300000,"calls":[{"id":"f","tool":"t/flight_search"},
    {"id":"h","tool":"t/hotel_search"},{"id":"a","tool":"t/activity_search"}]}"#;

pub(crate) const WITH_BACKUP: &str = r#"{"turnId":"trip","calls":[{"id":"f","tool":"t/flight_search","params":{"to":"LIS"},
    "alternatives":["t/flight_search_backup"]}]}"#;

pub(crate) fn first_tool() -> BreakerKey {
    let (namespace, tool) = (Namespace::new("t").unwrap(), ToolName::new("flight_search").unwrap());
    BreakerKey::Tool(ToolRef { namespace, tool })
}
