//! The part of the call history that can be replayed.

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::approval::Channel;
use steadfast_core::call::{AttemptEnd, Duplicates, Hints, Request, RunBy, SentKey, Waits};
use steadfast_core::dedupe::{Address, Origin, Process, RunId};
use steadfast_core::id::Digest;
use steadfast_core::key::Key;
use steadfast_core::policy::Annotations;
use steadfast_core::rehearse::{Asked, Ending, Recorded};
use steadfast_core::retry::CallerLimits;
use steadfast_core::trust::Signature;
use steadfast_store::{Entry, Journal, Query, Store, StoreError, look_through};

use crate::history::{CallFacts, FORMAT};

/// A section of the call history, in order of arrival.
#[derive(Debug, Default)]
pub struct Recording {
    /// The calls.
    pub facts: Vec<CallFacts>,
    /// The same calls, for a [rehearsal](steadfast_core::rehearse::Rehearsal).
    pub calls: Vec<Recorded>,
    /// Number of entries that a newer version wrote.
    pub unreadable: usize,
}

impl Recording {
    /// Reads the newest calls that arrived since then, at most this many.
    pub async fn read(store: &dyn Store, since: Timestamp, most: usize) -> Result<Self, StoreError> {
        let query = Query { since, ..Query::newest(Journal::History, most) };
        let facts = |entry: &Entry| Some(serde_json::from_str::<CallFacts>(&entry.body).ok());
        let found = look_through(store, &query, usize::MAX, facts).await?.found;
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
        let process = Process { boot: "recording".into(), pid: 0, started: 0 };
        let calls = facts.iter().zip(1..).map(|(facts, number)| facts.recorded(&process, number)).collect();
        Self { facts, calls, unreadable }
    }
}

impl CallFacts {
    fn recorded(&self, process: &Process, number: u64) -> Recorded {
        let nothing = Asked::default();
        let asked = self.asked.as_ref().unwrap_or(&nothing);
        // Without the parameters of the call, its events cannot be interpreted.
        let is_known = self.asked.is_some() && self.engine.is_some();
        Recorded {
            request: Request {
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
                duplicates: self.duplicates(asked),
                sent_key: if asked.key_given { SentKey::Given } else { SentKey::Run },
                computed_since: asked.computed_since,
                in_turn: asked.in_turn,
                digest: self.digest,
                run: RunId(number.to_string().into()),
                process: process.clone(),
                number,
                signature: Signature(self.signature.as_str().into()),
                domain: self.domain.clone(),
                danger: self.danger.as_deref().map(Arc::from),
                invalid_arguments: self.invalid_arguments.as_deref().map(Arc::from),
                limits: CallerLimits {
                    attempts: asked.most_attempts,
                    elapsed: asked.most_elapsed_ms.map(Duration::from_millis),
                    attempt: asked.timeout_ms.map(Duration::from_millis),
                    deadline: asked.deadline_at_ms,
                    start_by: asked.start_by_ms,
                },
                waits: if asked.waits_long { Waits::AsLongAsItTakes } else { Waits::NotForLong },
                end: if asked.end_seen { AttemptEnd::Seen } else { AttemptEnd::Unseen },
                reads: Arc::default(),
                run_by: if asked.run_by_host { RunBy::Host } else { RunBy::Driver },
                hints: Hints {
                    expected_retry_safe: asked.expected_retry_safe,
                    safety_critical: asked.safety_critical,
                },
                channel: if asked.interactive { Channel::Interactive } else { Channel::Headless },
            },
            breaker: asked.breaker_hint,
            annotations: Annotations {
                read_only: asked.read_only_hint,
                destructive: asked.destructive_hint,
                idempotent: asked.idempotent_hint,
            },
            in_turn: asked.in_turn,
            seed: self.seed,
            arrived: self.arrived,
            ended: self.arrived + Duration::from_millis(self.took_ms),
            engine: self.engine.clone().unwrap_or_else(|| "".into()),
            trail: if is_known { self.trail.clone() } else { Vec::new() },
            attempts: self.attempts.clone(),
            outcomes: self.outcomes.clone(),
            ending: Ending {
                status: self.status,
                code: self.code,
                rule: self.rule.clone(),
                replayed: self.replayed,
                input_required: self.input_required,
                attempts: self.attempts.len(),
            },
        }
    }

    fn duplicates(&self, asked: &Asked) -> Duplicates {
        let (Some(own), Some(origin)) = (&self.key, asked.found_by) else { return Duplicates::Allowed };
        let key = |fingerprint: &str| Key(Digest::of(fingerprint.as_bytes()));
        let own = key(own);
        let index = asked.index.as_deref().map_or(own, key);
        let address = match origin {
            Origin::Explicit => Address::Explicit(own),
            Origin::CallId => Address::CallId { id: own, index },
            Origin::Run => Address::Keyless { run: own, index },
        };
        if self.best_effort { Duplicates::Refused(address) } else { Duplicates::Joined(address) }
    }
}
