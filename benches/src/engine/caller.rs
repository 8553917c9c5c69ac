//! The caller of the engine in these measurements, and its input.

use std::future::{Future, ready};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt as _};
use steadfast_core::classify::{AttemptFault, FaultSource};
use steadfast_core::code::{CallStatus, Code};
use steadfast_core::envelope::{CallEnvelope, IdempotencyKey, UnknownFieldPolicy};
use steadfast_core::id::{SessionKey, TurnId};
use steadfast_core::key::DedupeMode;
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{CallPolicy, EnforcementMode, PolicyProfile, ToolClass};
use steadfast_executor::{Attempt, CallResponse, Engine, PolicySource, ToolHandler, ToolResult};
use steadfast_json::RawJson;
use steadfast_store::StateStore;
use tokio::runtime::Runtime;

use super::MeasurementError;
use crate::sample;

/// The way in which a call ends here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EngineCallScenario {
    Fresh,
    Replayed,
    RefusedByBreaker,
    RefusedByGuard,
}

impl EngineCallScenario {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Replayed => "replay",
            Self::RefusedByBreaker => "refused by the open breaker",
            Self::RefusedByGuard => "refused by the guard",
        }
    }

    /// Returns true if a call ended this way. A race in which one takes a short cut means nothing.
    fn matches(self, called: &CallResponse) -> bool {
        let result = &called.result;
        let code = result.error.as_ref().map(|error| error.code);
        match self {
            Self::Fresh => result.status == CallStatus::Success && !result.from_cache && result.attempts == 1,
            Self::Replayed => result.status == CallStatus::Success && result.from_cache,
            Self::RefusedByBreaker => code == Some(Code::CircuitOpen),
            Self::RefusedByGuard => matches!(code, Some(Code::LoopDetected | Code::ToolErrorLimit)),
        }
    }
}

/// The identification that the caller sends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EngineKeyChoice {
    /// None, but the caller asks for deduplication.
    Nothing,
    Key,
}

/// A program that calls a tool through an engine, one call after the other, from a task of its runtime.
pub(crate) struct EngineCaller {
    runtime: Arc<Runtime>,
    engine: Engine,
    scenario: EngineCallScenario,
    given: EngineKeyChoice,
    template: CallEnvelope,
    params: String,
    tool: InstantTool,
    number: u64,
}

impl EngineCaller {
    /// Creates a caller with an engine of its own, whose next calls end this way.
    pub(crate) fn new(
        runtime: &Arc<Runtime>,
        store: Option<Arc<dyn StateStore>>,
        scenario: EngineCallScenario,
        given: EngineKeyChoice,
    ) -> Result<Self, MeasurementError> {
        let builder = Engine::builder().policies(policies());
        let builder = match store {
            Some(store) => builder.store(store),
            None => builder,
        };
        let mut caller = Self {
            runtime: Arc::clone(runtime),
            engine: runtime.block_on(builder.start()),
            scenario,
            given,
            template: template()?,
            params: sample::params(1024),
            tool: InstantTool::well(),
            number: 0,
        };
        caller.prepare_engine()?;
        assert!(caller.call_once().is_some_and(|called| scenario.matches(&called)), "{}", scenario.name());
        Ok(caller)
    }

    /// Makes this many calls and returns their duration. The envelopes are made before, because a caller already has
    /// them.
    pub(crate) fn calls(&mut self, count: u32) -> Duration {
        let envelopes: Vec<_> = (0..count).filter_map(|_| self.envelope()).collect();
        let (engine, tool, scenario) = (self.engine.clone(), self.tool.clone(), self.scenario);
        let calls = async move {
            let started = Instant::now();
            for envelope in envelopes {
                let called = engine.call(envelope, tool.clone()).await;
                assert!(scenario.matches(&called), "a call went another way than {}", scenario.name());
            }
            started.elapsed()
        };
        // In a task, because calls are made from tasks.
        self.runtime.block_on(async { tokio::spawn(calls).await }).unwrap_or(Duration::MAX)
    }

    /// Makes the same number of calls with this concurrency.
    pub(super) fn calls_at_once(&mut self, count: u32, at_once: usize) -> Duration {
        let envelopes: Vec<_> = (0..count).filter_map(|_| self.envelope()).collect();
        let (engine, tool, scenario) = (self.engine.clone(), self.tool.clone(), self.scenario);
        let calls = async move {
            let started = Instant::now();
            let calls = envelopes.into_iter().map(|envelope| engine.call(envelope, tool.clone()));
            let mut calls = stream::iter(calls).buffer_unordered(at_once);
            while let Some(called) = calls.next().await {
                assert!(scenario.matches(&called), "a call went another way than {}", scenario.name());
            }
            started.elapsed()
        };
        self.runtime.block_on(async { tokio::spawn(calls).await }).unwrap_or(Duration::MAX)
    }

    /// Returns the same caller with arguments of this size.
    pub(super) fn with_params(self, bytes: usize) -> Self {
        Self { params: sample::params(bytes), ..self }
    }

    /// Makes one call on this thread, for counting its allocations. The envelope of the caller is counted as well.
    pub(crate) fn call_once(&mut self) -> Option<CallResponse> {
        let envelope = self.envelope()?;
        Some(self.runtime.block_on(self.engine.call(envelope, self.tool.clone())))
    }

    /// Returns the next envelope for this way.
    pub(crate) fn envelope(&mut self) -> Option<CallEnvelope> {
        self.number += 1;
        let number = self.number;
        let mut envelope = self.template.clone();
        let (key, same_arguments) = match self.scenario {
            EngineCallScenario::Fresh | EngineCallScenario::RefusedByBreaker => (number, false),
            EngineCallScenario::Replayed => (0, true),
            EngineCallScenario::RefusedByGuard => (number, true),
        };
        let text = numbered(&self.params, if same_arguments { 0 } else { number });
        envelope.payload.params = RawJson::from_trusted(text);
        match self.given {
            EngineKeyChoice::Key => {
                envelope.payload.idempotency_key =
                    Some(IdempotencyKey::new(format!("order-{key:016x}")).ok()?);
            }
            EngineKeyChoice::Nothing => envelope.transport.dedupe_mode = Some(DedupeMode::Enforced),
        }
        // Refusals count as failures of their turn, and too many of them cause a refusal by the guard.
        if self.scenario == EngineCallScenario::RefusedByBreaker {
            envelope.target.turn_id = Some(TurnId::new(format!("turn-{number}")).ok()?);
        }
        Some(envelope)
    }

    /// Prepares the engine so that calls end this way.
    fn prepare_engine(&mut self) -> Result<(), MeasurementError> {
        let failures = match self.scenario {
            EngineCallScenario::Fresh => 0,
            EngineCallScenario::Replayed => {
                self.call_once();
                0
            }
            EngineCallScenario::RefusedByBreaker => 5,
            EngineCallScenario::RefusedByGuard => 2,
        };
        for number in 0..failures {
            let mut envelope = self.template.clone();
            let same = self.scenario == EngineCallScenario::RefusedByGuard;
            envelope.payload.params =
                RawJson::from_trusted(numbered(&self.params, if same { 0 } else { number }));
            // The calls of one session must not cause refusals in another.
            if !same {
                envelope.target.session_key = SessionKey::new(format!("{OTHER_SESSIONS}{number}"))?;
            }
            // One attempt each, without a key: nothing to replay, and nothing to wait for.
            envelope.transport.retry_budget.max_attempts = Some(1);
            self.runtime.block_on(
                self.engine.call(envelope, if same { InstantTool::badly() } else { InstantTool::dead() }),
            );
        }
        Ok(())
    }
}

/// Returns the arguments with this number in place of their last bytes, so that no two calls have the same.
pub(super) fn numbered(params: &str, number: u64) -> String {
    let tail = format!("{number:016x}\"}}");
    let mut text = String::with_capacity(params.len());
    text.push_str(params.get(..params.len().saturating_sub(tail.len())).unwrap_or_default());
    text.push_str(&tail);
    text
}

/// Returns the arguments of this many calls in a row.
pub(crate) fn arguments(count: u64) -> Vec<String> {
    let params = sample::params(1024);
    (0..count).map(|number| numbered(&params, number)).collect()
}

/// Prefix of the sessions whose calls fail so that the breaker opens. Trust does not judge them, because it would
/// request approval before the breaker has counted enough failures.
const OTHER_SESSIONS: &str = "another-";

pub(super) fn policies() -> impl PolicySource {
    let usual = policy();
    let mut without_trust = (*usual).clone();
    without_trust.modes.trust = EnforcementMode::Off;
    let without_trust = Arc::new(without_trust);
    move |call: &CallEnvelope| {
        let other = call.target.session_key.as_str().starts_with(OTHER_SESSIONS);
        if other { without_trust.clone() } else { usual.clone() }
    }
}

pub(crate) fn policy() -> Arc<CallPolicy> {
    Arc::new(PolicyProfile::Standard.policy(ToolClass::Unknown))
}

pub(super) fn template() -> Result<CallEnvelope, MeasurementError> {
    let text = r#"{"contractVersion":"1.1","requestId":"request-0123456789abcdef","toolCallId":"call-0123456789",
        "toolName":"update_entries","toolNamespace":"accounts",
        "target":{"sessionKey":"session-0123456789abcdef","actorId":"someone"},
        "payload":{"version":"1.0","params":{}}}"#;
    Ok(CallEnvelope::parse(text.as_bytes(), UnknownFieldPolicy::Refuse)?)
}

/// A tool that always gives the same answer at once.
#[derive(Clone)]
pub(super) struct InstantTool(Arc<ToolResult>);

impl InstantTool {
    pub(super) fn well() -> Self {
        let content =
            RawJson::from_trusted(r#"{"content":[{"type":"text","text":"42 entries were updated"}]}"#);
        Self(Arc::new(Ok(ToolOutput { content, metadata: None })))
    }

    /// Creates one that answers with an error.
    fn badly() -> Self {
        Self(Arc::new(Err(AttemptFault::new(FaultSource::Tool, "the entry is not there").into())))
    }

    /// Creates one whose server is down.
    fn dead() -> Self {
        Self(Arc::new(Err(AttemptFault::new(FaultSource::Http { status: 503 }, "unavailable").into())))
    }
}

impl ToolHandler for InstantTool {
    fn run(&self, _: Attempt) -> impl Future<Output = ToolResult> + Send + 'static {
        ready(ToolResult::clone(&self.0))
    }
}
