//! The history of calls: digests, derived facts and failure messages, without parameters and results. Stored for a day.
//!
//! It is written in the background and may lose its last entries in a crash. No decision depends on it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use steadfast_core::approval::ApprovalChannel;
use steadfast_core::call::{
    AttemptEndVisibility, Call, CallResult, CallerPatience, Deduplication, Provenance, RecordStatus,
    RecordedAttempt, ResultStage, RunnerKind, UpstreamKey,
};
use steadfast_core::code::{CallStatus, Code};
use steadfast_core::dedupe::{AttemptRecord, CallContext};
use steadfast_core::envelope::BreakerHint;
use steadfast_core::id::{
    ActorId, Digest, Domain, ModelId, RequestId, SessionKey, TenantId, ToolCallId, ToolRef, TurnId,
};
use steadfast_core::policy::{AnnotationHints, ToolClass};
use steadfast_core::stats::ScoreOutcome;
use steadfast_core::{Timestamp, millis};
use steadfast_replay::{EventTrail, RecordedEvent, RecordedRequest};
use steadfast_store::{Journal, JournalEntry, JournalLimits, JournalQuery, StateStore, StoreError};

use super::telemetry_hooks::TelemetryHooks;
use crate::writes::queue::WriteQueue;

/// One call in the history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the facts of a call, by name")]
pub struct CallFacts {
    /// Format version. Readers refuse a newer one.
    pub format: u32,
    pub request_id: RequestId,
    pub tool: ToolRef,
    pub class: ToolClass,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<ToolCallId>,
    /// The caller's own context of the call, without the idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<CallContext>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionKey>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<ActorId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<Domain>,
    /// Signature that trust judged the call by.
    pub signature: String,
    /// Digest of the canonical arguments.
    pub digest: Digest,
    /// Fingerprint of the key of its record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// True if a duplicate would have been refused instead of waiting.
    pub best_effort: bool,
    /// Form of the dangerous command in its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub danger: Option<String>,
    /// Violation of the tool's schema by the arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invalid_arguments: Option<String>,
    /// Seed of its jitter.
    pub seed: u64,
    #[serde(rename = "arrivedAtMs")]
    pub arrived: Timestamp,
    pub took_ms: u64,
    pub attempts: Vec<AttemptRecord>,
    pub status: CallStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// The rule that decided its failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Failure message for its caller, without secrets. Absent in calls that an older version recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    pub replayed: bool,
    /// True if the tool asked for input and has done nothing yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub input_required: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<bool>,
    /// Effect on the score of its tool. Absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scored: Option<ScoreOutcome>,
    /// Engine that made the call. The order of moments is valid within one engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<Arc<str>>,
    /// Further parameters of the call. Absent in calls that an older version recorded, which cannot be replayed.
    #[serde(rename = "asked", default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RecordedRequest>,
    /// All events of the call: `[order, milliseconds after the arrival, what]`. Empty if there were too many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trail: Vec<RecordedEvent>,
    /// Ends of its attempts, as far as a decision depended on them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outcomes: Vec<RecordedAttempt>,
}

/// Facts from the surface about a call that are recorded beside its envelope.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SurfaceFacts {
    pub(crate) annotations: AnnotationHints,
    /// True if the call belongs to a turn that may be submitted again.
    pub(crate) in_turn: bool,
    /// True if the host answered the call itself. The machine made no decision that a replay could repeat.
    pub(crate) is_answered_by_host: bool,
}

/// A call that has ended, ready to be written.
#[derive(Debug)]
pub(crate) struct FinishedCall {
    call: Call,
    status: CallStatus,
    code: Option<Code>,
    rule: Option<String>,
    message: Option<Cow<'static, str>>,
    took: Duration,
    replayed: bool,
    stage: ResultStage,
    recorded: RecordStatus,
    trail: EventTrail,
    surface: SurfaceFacts,
    hint: Option<BreakerHint>,
}

/// Default size of the history.
pub(crate) const KEEP: JournalLimits =
    JournalLimits { most: 100_000, most_per_subject: None, age: Duration::from_secs(24 * 3600) };
/// Maximum number of calls that wait to be written or are being written. Each takes a few KiB.
const WAITING: usize = 8192;
pub(crate) const FORMAT: u32 = 1;
/// Maximum bytes of a failure message for the caller.
const LONGEST_MESSAGE: usize = 1024;
/// Maximum bytes of the message of an attempt.
const LONGEST_WORDS: usize = 256;

impl FinishedCall {
    pub(crate) fn new(
        call: Call,
        trail: EventTrail,
        surface: SurfaceFacts,
        hint: Option<BreakerHint>,
        result: &CallResult,
    ) -> Self {
        let failure = result.outcome.as_ref().err();
        Self {
            status: result.status(),
            code: failure.map(|failure| failure.code),
            rule: failure.and_then(|failure| failure.rule.as_ref().map(ToString::to_string)),
            message: failure.map(|failure| failure.message.clone()),
            took: result.took,
            replayed: matches!(result.provenance, Provenance::Replayed { .. }),
            stage: result.stage,
            recorded: result.recorded,
            trail,
            surface,
            hint,
            call,
        }
    }

    pub(crate) fn request(&self) -> &steadfast_core::call::CallRequest {
        self.call.request()
    }

    fn facts(&self, writing: &mut HistoryWriter) -> CallFacts {
        let request = self.call.request();
        CallFacts {
            format: FORMAT,
            request_id: request.id.clone(),
            tool: request.tool.clone(),
            class: self.call.policy().class,
            tool_call_id: request.tool_call.clone(),
            context: request.context.as_deref().cloned(),
            tenant: request.tenant.clone(),
            session: request.session.clone(),
            actor: request.actor.clone(),
            turn: request.turn.clone(),
            model: request.model.clone(),
            domain: request.domain.clone(),
            signature: writing.signature(&request.signature.0),
            digest: request.digest,
            key: request.address().map(|address| address.own().fingerprint()),
            best_effort: matches!(request.duplicates, Deduplication::Refused(_)),
            danger: request.danger.as_ref().map(ToString::to_string),
            invalid_arguments: request
                .invalid_arguments
                .as_ref()
                .map(|reason| steadfast_redact::text(reason).into_owned()),
            seed: self.call.seed(),
            arrived: self.call.arrived(),
            took_ms: millis(self.took),
            attempts: self.call.attempts().to_vec(),
            status: self.status,
            code: self.code,
            rule: self.rule.clone(),
            message: self
                .message
                .as_deref()
                .map(|message| steadfast_redact::excerpt(message, LONGEST_MESSAGE)),
            replayed: self.replayed,
            input_required: self.stage == ResultStage::InputRequired,
            recorded: match self.recorded {
                RecordStatus::NotAsked => None,
                RecordStatus::Yes => Some(true),
                RecordStatus::No => Some(false),
            },
            scored: self.call.score_outcome(),
            engine: Some(writing.engine.clone()),
            request: (!self.surface.is_answered_by_host).then(|| self.recorded_request()),
            trail: self.trail.moments().to_vec(),
            outcomes: self.call.outcomes().iter().map(|outcome| outcome.redacted(LONGEST_WORDS)).collect(),
        }
    }

    fn recorded_request(&self) -> RecordedRequest {
        let request = self.call.request();
        let AnnotationHints { read_only, destructive, idempotent } = self.surface.annotations;
        let address = request.address();
        RecordedRequest {
            most_attempts: request.limits.attempts,
            most_elapsed_ms: request.limits.elapsed.map(millis),
            timeout_ms: request.limits.attempt.map(millis),
            deadline_at_ms: request.limits.deadline,
            start_by_ms: request.limits.start_by,
            waits_long: request.waits == CallerPatience::UntilDone,
            run_by_host: request.run_by != RunnerKind::Driver,
            is_host_in_process: request.run_by == RunnerKind::InProcessHost,
            is_end_visible: request.end == AttemptEndVisibility::Visible,
            expected_retry_safe: request.hints.expected_retry_safe,
            safety_critical: request.hints.safety_critical,
            interactive: request.channel == ApprovalChannel::Interactive,
            breaker_hint: self.hint,
            found_by: address.map(|address| address.origin()),
            index: address.and_then(|address| address.index()).map(|index| index.fingerprint()),
            key_given: request.sent_key == UpstreamKey::Given,
            computed_since: request.computed_since,
            read_only_hint: read_only,
            destructive_hint: destructive,
            idempotent_hint: idempotent,
            in_turn: self.surface.in_turn,
        }
    }

    fn entry(&self, writing: &mut HistoryWriter) -> Option<JournalEntry> {
        let facts = self.facts(writing);
        writing.text.clear();
        serde_json::to_writer(&mut writing.text, &facts).ok()?;
        let body = std::str::from_utf8(&writing.text).ok()?.into();
        Some(JournalEntry { at: facts.arrived, subject: facts.request_id.to_shared(), body })
    }
}

/// State that the writer reuses between entries.
struct HistoryWriter {
    /// Engine whose history it writes.
    engine: Arc<str>,
    text: Vec<u8>,
    /// Signatures in redacted form. There are few, they repeat often, and redacting one takes longer than the rest of
    /// the work here.
    signatures: HashMap<Arc<str>, String>,
}

/// Maximum number of remembered signatures. Beyond it, all of them are removed.
const SIGNATURES: usize = 1024;

impl HistoryWriter {
    fn of(engine: Arc<str>) -> Self {
        Self { engine, text: Vec::new(), signatures: HashMap::new() }
    }

    fn signature(&mut self, signature: &Arc<str>) -> String {
        if let Some(shown) = self.signatures.get(signature) {
            return shown.clone();
        }
        if self.signatures.len() >= SIGNATURES {
            self.signatures.clear();
        }
        let shown = steadfast_redact::text(signature).into_owned();
        self.signatures.insert(signature.clone(), shown.clone());
        shown
    }
}

/// The journal of calls.
#[derive(Debug)]
pub(crate) struct CallHistory {
    store: Arc<dyn StateStore>,
    hooks: Arc<TelemetryHooks>,
    queue: WriteQueue<FinishedCall>,
    keep: JournalLimits,
    /// Engine whose history it writes.
    engine: Arc<str>,
}

impl CallHistory {
    pub(crate) fn new(
        store: Arc<dyn StateStore>,
        hooks: Arc<TelemetryHooks>,
        keep: JournalLimits,
        engine: Arc<str>,
    ) -> Self {
        Self { store, hooks, queue: WriteQueue::new(Journal::History, |_| 1), keep, engine }
    }

    pub(crate) fn add(&self, finished: FinishedCall) {
        self.queue.add(finished, WAITING);
    }

    /// Writes the history, for as long as the engine lives.
    pub(crate) async fn run(&self) {
        let mut writing = HistoryWriter::of(self.engine.clone());
        loop {
            self.queue.due().await;
            self.write(&mut writing).await;
        }
    }

    /// Writes the queued calls. Used at the end of the engine.
    pub(crate) async fn write_now(&self) {
        self.write(&mut HistoryWriter::of(self.engine.clone())).await;
    }

    async fn write(&self, writing: &mut HistoryWriter) {
        let failed = |error: &StoreError| self.hooks.store_failed(self.store.kind(), error);
        let written = self.queue.write(
            &*self.store,
            self.keep,
            |calls| calls.iter().filter_map(|call| call.entry(writing)).collect(),
            failed,
        );
        written.await;
    }

    /// Returns the calls that ended last, in this process or another one, or nothing if the store fails.
    pub(crate) async fn newest<F: DeserializeOwned>(&self, limit: usize) -> Vec<F> {
        match self.store.entries(&JournalQuery::newest(Journal::History, limit)).await {
            Ok(entries) => {
                entries.iter().filter_map(|(_, entry)| serde_json::from_str(&entry.body).ok()).collect()
            }
            Err(error) => {
                self.hooks.store_failed(self.store.kind(), &error);
                Vec::new()
            }
        }
    }
}
