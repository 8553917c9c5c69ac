//! The part of the call history that can be replayed.

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::approval::ApprovalChannel;
use steadfast_core::call::{
    AttemptEndVisibility, CallRequest, CallerHints, CallerPatience, Deduplication, RunnerKind, UpstreamKey,
};
use steadfast_core::classify::signature::Signature;
use steadfast_core::dedupe::{ProcessIdentity, RecordAddress, RecordOrigin};
use steadfast_core::id::{Digest, RunId};
use steadfast_core::key::RecordKey;
use steadfast_core::policy::AnnotationHints;
use steadfast_core::retry::CallerLimits;
use steadfast_replay::{RecordedCall, RecordedRequest, RecordedResult};
use steadfast_store::{Journal, JournalEntry, JournalQuery, StateStore, StoreError, filter_entries};

use crate::observe::history::{CallFacts, FORMAT};

/// A section of the call history, in order of arrival.
#[derive(Debug, Default)]
pub struct Recording {
    /// The calls.
    pub facts: Vec<CallFacts>,
    /// The same calls, for a [rehearsal](steadfast_replay::Rehearsal).
    pub calls: Vec<RecordedCall>,
    /// Number of entries that a newer version wrote.
    pub unreadable: usize,
}

impl Recording {
    /// Reads the newest calls that arrived since then, at most this many.
    pub async fn read(store: &dyn StateStore, since: Timestamp, most: usize) -> Result<Self, StoreError> {
        let query = JournalQuery { since, ..JournalQuery::newest(Journal::History, most) };
        let facts = |entry: &JournalEntry| Some(serde_json::from_str::<CallFacts>(&entry.body).ok());
        let found = filter_entries(store, &query, usize::MAX, facts).await?.found;
        let entries = found.len();
        let recording = Self::of(found.into_iter().flatten().collect());
        Ok(Self { unreadable: entries - recording.facts.len(), ..recording })
    }

    /// Returns a recording of these calls.
    pub fn of(mut facts: Vec<CallFacts>) -> Self {
        let entries = facts.len();
        // Facts of a newer version are not interpreted.
        facts.retain(|facts| facts.format <= FORMAT);
        let unreadable = entries - facts.len();
        facts.sort_by_key(|facts| (facts.arrived, facts.trail.first().map(|moment| moment.order)));
        let process = ProcessIdentity { boot: "recording".into(), pid: 0, started: 0 };
        let calls = facts.iter().zip(1..).map(|(facts, number)| facts.recorded(&process, number)).collect();
        Self { facts, calls, unreadable }
    }
}

impl CallFacts {
    fn recorded(&self, process: &ProcessIdentity, number: u64) -> RecordedCall {
        let nothing = RecordedRequest::default();
        let request = self.request.as_ref().unwrap_or(&nothing);
        // Without the parameters of the call, its events cannot be interpreted.
        let is_known = self.request.is_some() && self.engine.is_some();
        RecordedCall {
            request: CallRequest {
                id: self.request_id.clone(),
                tool: self.tool.clone(),
                tool_call: self.tool_call_id.clone(),
                context: None,
                session: self.session.clone(),
                actor: self.actor.clone(),
                tenant: self.tenant.clone(),
                turn: self.turn.clone(),
                trace: None,
                model: self.model.clone(),
                duplicates: self.duplicates(request),
                sent_key: if request.key_given { UpstreamKey::Given } else { UpstreamKey::Run },
                computed_since: request.computed_since,
                in_turn: request.in_turn,
                digest: self.digest,
                run: RunId(number.to_string().into()),
                process: process.clone(),
                number,
                signature: Signature(self.signature.as_str().into()),
                domain: self.domain.clone(),
                danger: self.danger.as_deref().map(Arc::from),
                invalid_arguments: self.invalid_arguments.as_deref().map(Arc::from),
                limits: CallerLimits {
                    attempts: request.most_attempts,
                    elapsed: request.most_elapsed_ms.map(Duration::from_millis),
                    attempt: request.timeout_ms.map(Duration::from_millis),
                    deadline: request.deadline_at_ms,
                    start_by: request.start_by_ms,
                },
                waits: if request.waits_long { CallerPatience::UntilDone } else { CallerPatience::MayGiveUp },
                end: if request.is_end_visible {
                    AttemptEndVisibility::Visible
                } else {
                    AttemptEndVisibility::Hidden
                },
                reads: Arc::default(),
                run_by: match (request.run_by_host, request.is_host_in_process) {
                    (false, _) => RunnerKind::Driver,
                    (true, false) => RunnerKind::Host,
                    (true, true) => RunnerKind::InProcessHost,
                },
                hints: CallerHints {
                    expected_retry_safe: request.expected_retry_safe,
                    safety_critical: request.safety_critical,
                },
                channel: if request.interactive {
                    ApprovalChannel::Interactive
                } else {
                    ApprovalChannel::Headless
                },
            },
            breaker: request.breaker_hint,
            annotations: AnnotationHints {
                read_only: request.read_only_hint,
                destructive: request.destructive_hint,
                idempotent: request.idempotent_hint,
            },
            in_turn: request.in_turn,
            seed: self.seed,
            arrived: self.arrived,
            finished: self.arrived + Duration::from_millis(self.took_ms),
            engine: self.engine.clone().unwrap_or_else(|| "".into()),
            trail: if is_known { self.trail.clone() } else { Vec::new() },
            attempts: self.attempts.clone(),
            outcomes: self.outcomes.clone(),
            ending: RecordedResult {
                status: self.status,
                code: self.code,
                rule: self.rule.clone(),
                replayed: self.replayed,
                input_required: self.input_required,
                attempts: self.attempts.len(),
            },
        }
    }

    fn duplicates(&self, request: &RecordedRequest) -> Deduplication {
        let (Some(own), Some(origin)) = (&self.key, request.found_by) else { return Deduplication::Allowed };
        let key = |fingerprint: &str| RecordKey(Digest::of(fingerprint.as_bytes()));
        let own = key(own);
        let index = request.index.as_deref().map_or(own, key);
        let address = match origin {
            RecordOrigin::Explicit => RecordAddress::Explicit(own),
            RecordOrigin::CallId => RecordAddress::CallId { id: own, index },
            RecordOrigin::Run => RecordAddress::Keyless { run: own, index },
        };
        if self.best_effort { Deduplication::Refused(address) } else { Deduplication::Joined(address) }
    }
}
