//! Conversion of an envelope into a request: identity, idempotency key and allowed mechanisms of the call.
//!
//! Everything that is derived from the parameters (digest, signature, domain, dangerous command pattern, schema check)
//! is derived here, from one parse of their text and one canonical form.

use std::sync::Arc;

use steadfast_json::{JsonDocument, JsonLimits, JsonValue};

use super::request::{
    AttemptEndVisibility, CallId, CallRequest, CallerHints, CallerKeyScope, CallerPatience, Deduplication,
    EqualCallPolicy, RunnerKind, UpstreamKey,
};
use crate::approval::ApprovalChannel;
use crate::classify::{ArgumentTargets, danger, signature};
use crate::dedupe::{ProcessIdentity, RecordAddress};
use crate::envelope::{CallEnvelope, EnvelopeError, IdempotencyKey};
use crate::guard::check_arguments;
use crate::id::{Digest, RunId, ToolRef, TurnId};
use crate::key::{self, DedupeMode, KeyInputs, KeySource, RecordKey};
use crate::policy::{ArgumentCheck, CallPolicy, ComputedKeyPolicy, KeyConflictPolicy, ToolClass};

/// Facts about a call that the surface knows and the envelope does not say.
#[derive(Clone, Copy, Debug)]
pub struct IntakeContext<'a> {
    /// The process that drives the call.
    pub process: &'a ProcessIdentity,
    /// Number of the call within the process.
    pub number: u64,
    /// Id of its run, if this call is the first with its key.
    pub run: &'a RunId,
    /// The channel for approvals.
    pub channel: ApprovalChannel,
    /// The idempotency key from the `key` hook. A key from the caller goes first.
    pub hook_key: Option<&'a str>,
    /// True if the call belongs to a turn that may be submitted again, which gave it its own key.
    pub in_turn: bool,
    /// Deduplication of equal calls without a key.
    pub equal_calls: EqualCallPolicy,
    /// The client's id of this dispatch. It is used if no key was given.
    pub call_id: Option<&'a CallId>,
    /// The scope of keys from callers.
    pub keys_of: CallerKeyScope,
    /// Time for which the caller is known to wait.
    pub waits: CallerPatience,
    /// Digest of the input that the client returns to a call that asked for it; see [`key::continuation_digest`].
    pub continuation: Option<Digest>,
    /// The trace of the call, if the traces of a session may be its turns. It is used if the turn is not named.
    pub trace: Option<&'a TurnId>,
    /// The tool's own input schema, if it is known. Only used if the policy enforces it.
    pub input_schema: Option<JsonValue<'a>>,
}

impl CallRequest {
    /// Returns the request of an envelope.
    #[cfg(test)]
    pub(super) fn from_envelope(
        envelope: &CallEnvelope,
        policy: &CallPolicy,
        intake: IntakeContext<'_>,
    ) -> Result<Self, EnvelopeError> {
        Ok(Self::from_params(envelope, Self::params(envelope)?.root(), policy, intake))
    }

    /// Parses the parameters of an envelope. Fails only if they are not valid JSON, which cannot happen for an envelope
    /// that was [parsed](CallEnvelope::parse).
    pub fn params(envelope: &CallEnvelope) -> Result<JsonDocument<'_>, EnvelopeError> {
        let params = envelope.payload.params.as_str();
        JsonDocument::parse(params.as_bytes(), JsonLimits::PARAMS).map_err(|error| {
            let position = error.position(params.as_bytes());
            EnvelopeError::Arguments { error, position }
        })
    }

    /// Returns the request of an envelope whose [parameters](Self::params) were already parsed to find its policy.
    pub fn from_params(
        envelope: &CallEnvelope,
        params: JsonValue<'_>,
        policy: &CallPolicy,
        intake: IntakeContext<'_>,
    ) -> Self {
        let tool = envelope.tool();
        let target = &envelope.target;
        let digest = key::arguments_digest(params, policy.class, &policy.dedupe);
        let own_key = envelope.payload.idempotency_key.as_ref().map(IdempotencyKey::as_str);
        // The key of a turn is not from a caller. The arguments must be present as without it, because the tool is
        // given what they make.
        let has_callers = !intake.in_turn && own_key.or(intake.hook_key).is_some();
        let template = policy.dedupe.key.as_ref().filter(|_| !has_callers);
        let made = template.map(|template| template.fill(params));
        let made_key = made.as_ref().and_then(|made| made.as_deref().ok());
        let given = KeySource::choose(own_key.or(made_key), intake.hook_key);
        let key_error = made.as_ref().and_then(|made| made.as_ref().err());
        let aims = ArgumentTargets::of(params);
        Self {
            id: envelope.request_id.clone(),
            tool_call: envelope.tool_call_id.clone(),
            context: envelope.context().map(Arc::new),
            session: Some(target.session_key.clone()),
            actor: Some(target.actor_id.clone()),
            tenant: target.tenant_id.clone(),
            turn: target.turn_id.clone(),
            trace: intake.trace.cloned(),
            model: target.model_id.clone(),
            duplicates: duplicates(envelope, &tool, digest, policy, given, &intake),
            sent_key: match given {
                KeySource::ByCaller(_) | KeySource::ByHook(_) => UpstreamKey::Given,
                KeySource::None => UpstreamKey::Run,
            },
            computed_since: None,
            in_turn: intake.in_turn,
            digest,
            run: intake.run.clone(),
            process: intake.process.clone(),
            number: intake.number,
            signature: signature::signature(&tool, &aims),
            domain: Some(target.domain.clone().unwrap_or_else(|| signature::domain(&tool, &aims))),
            danger: danger::dangerous(&aims, &policy.shapes).map(|shape| Arc::from(shape.name)),
            invalid_arguments: match key_error {
                Some(missing) => Some(no_key(missing)),
                None => invalid_arguments(policy, intake.input_schema, params),
            },
            limits: envelope.caller_limits(),
            waits: intake.waits,
            run_by: RunnerKind::Driver,
            end: AttemptEndVisibility::Hidden,
            reads: Arc::default(),
            hints: CallerHints {
                expected_retry_safe: envelope.payload.call_hints.expected_retry_safe.unwrap_or(false),
                safety_critical: envelope.payload.call_hints.safety_critical,
            },
            channel: intake.channel,
            tool,
        }
    }
}

/// Returns the deduplication of a call.
///
/// A caller that requests deduplication without a key means the computed key, which then counts as if the caller had
/// given it. If no key may be computed, the call is not deduplicated. Without a key and without a request, the surface
/// decides about equal calls.
fn duplicates(
    envelope: &CallEnvelope,
    tool: &ToolRef,
    digest: Digest,
    policy: &CallPolicy,
    given: KeySource<'_>,
    intake: &IntakeContext<'_>,
) -> Deduplication {
    let target = &envelope.target;
    let scope = KeyInputs {
        tool,
        tenant: target.tenant_id.as_ref(),
        workspace: target.workspace_id.as_ref(),
        session: Some(&target.session_key),
        actor: Some(&target.actor_id),
        continuation: intake.continuation,
    };
    let requested = envelope.transport.dedupe_mode;
    if (requested, given) == (None, KeySource::None) {
        return keyless(&scope, digest, policy, intake);
    }
    if given == KeySource::None && policy.dedupe.computed_keys == ComputedKeyPolicy::Never {
        return Deduplication::Allowed;
    }
    let address = || RecordAddress::Explicit(key_of(&scope, digest, policy, given, intake.keys_of));
    match DedupeMode::resolve(requested, given) {
        DedupeMode::Disabled => Deduplication::Allowed,
        DedupeMode::Enforced => Deduplication::Joined(address()),
        DedupeMode::BestEffort => Deduplication::Refused(address()),
    }
}

/// Returns the deduplication by the id of the dispatch, and by equal arguments if they count between these calls.
fn keyless(
    scope: &KeyInputs<'_>,
    digest: Digest,
    policy: &CallPolicy,
    intake: &IntakeContext<'_>,
) -> Deduplication {
    let joined = match (intake.equal_calls, policy.class) {
        (EqualCallPolicy::Separate, _) => false,
        (EqualCallPolicy::Joined, _) => true,
        (EqualCallPolicy::JoinedIfRepeatable, ToolClass::ReadOnly | ToolClass::Idempotent) => true,
        (EqualCallPolicy::JoinedIfRepeatable, ToolClass::Mutating | ToolClass::Unknown) => false,
    };
    let index = match policy.dedupe.computed_keys {
        ComputedKeyPolicy::Derive if joined => {
            Some(key::computed_key(scope, digest, policy.class, &policy.dedupe))
        }
        ComputedKeyPolicy::Derive | ComputedKeyPolicy::Never => None,
    };
    let call_id = intake.call_id.map(|id| match id {
        CallId::Unique(id) => key::call_id_key(&KeyInputs { session: None, ..*scope }, id.as_str(), digest),
        CallId::InSession(id) => key::call_id_key(scope, id.as_str(), digest),
    });
    Deduplication::keyless(call_id, index, intake.run)
}

fn key_of(
    scope: &KeyInputs<'_>,
    digest: Digest,
    policy: &CallPolicy,
    given: KeySource<'_>,
    keys_of: CallerKeyScope,
) -> RecordKey {
    let key_inputs = match keys_of {
        CallerKeyScope::Conversation => *scope,
        CallerKeyScope::Actor => KeyInputs { session: None, ..*scope },
    };
    match (given.explicit(), policy.dedupe.conflict) {
        (Some(text), KeyConflictPolicy::Reject) => key::explicit_key(&key_inputs, text),
        (Some(text), KeyConflictPolicy::Separate) => key::separate_key(&key_inputs, text, digest),
        (None, _) => key::computed_key(scope, digest, policy.class, &policy.dedupe),
    }
}

/// Returns the message for a call whose idempotency key cannot be made of its arguments.
fn no_key(missing: &[String]) -> Arc<str> {
    let named: Vec<_> = missing.iter().map(|name| format!("`{name}`")).collect();
    let named = named.join(" and ");
    format!("the idempotency key of this tool is made of {named}, which must be a string or a number").into()
}

/// Returns the violations of the tool's schema, if the policy enforces it.
fn invalid_arguments(
    policy: &CallPolicy,
    schema: Option<JsonValue<'_>>,
    params: JsonValue<'_>,
) -> Option<Arc<str>> {
    let problems = match policy.arguments {
        ArgumentCheck::Enforce => check_arguments(schema?, params, policy.dedupe.key_argument.as_deref()),
        // The tool checks for itself. Its refusal is explained when it comes.
        ArgumentCheck::Assist | ArgumentCheck::Off => return None,
    };
    let listed: Vec<String> = problems.iter().map(ToString::to_string).collect();
    (!listed.is_empty()).then(|| listed.join("; ").into())
}
