//! From an envelope to a request: what the call is, which key it has, what may be done for it.
//!
//! Everything that is derived from the parameters (digest, signature, domain, dangerous shape, fit with the
//! tool's schema) is derived here, from one reading of their text and one canonical form.

use std::sync::Arc;

use super::request::{
    AttemptEnd, CallId, Duplicates, EqualCalls, Hints, KeysOf, Request, RunBy, SentKey, Waits,
};
use crate::approval::Channel;
use crate::classify::{Aims, danger, signature};
use crate::dedupe::{Address, Process, RunId};
use crate::envelope::{CallContext, CallEnvelope, EnvelopeError, IdempotencyKey};
use crate::guard::check_arguments;
use crate::id::{Digest, ToolRef, TurnId};
use crate::json::{Document, Limits, Value};
use crate::key::{self, DedupeMode, GivenKey, Key, Scope};
use crate::policy::{ArgumentCheck, ComputedKeys, Conflict, Policy, ToolClass};

/// What the surface knows about a call that its envelope does not say.
#[derive(Clone, Copy, Debug)]
pub struct Intake<'a> {
    /// The process that drives the call.
    pub process: &'a Process,
    /// The call within the process.
    pub number: u64,
    /// The id of its run, should it be the first.
    pub run: &'a RunId,
    /// Whether anybody can be asked.
    pub channel: Channel,
    /// The key that the `key` hook gave. The caller's own counts before it.
    pub hook_key: Option<&'a str>,
    /// Whether it belongs to a turn that may be submitted again, which gave it its own key.
    pub in_turn: bool,
    /// What becomes of equal calls without a key.
    pub equal_calls: EqualCalls,
    /// The client's id of this dispatch. It counts where nobody gave a key.
    pub call_id: Option<&'a CallId>,
    /// Whose keys those are that callers give.
    pub keys_of: KeysOf,
    /// How long the caller is known to wait.
    pub waits: Waits,
    /// What the client brings back to a call that asked for input; see [`key::continuation_digest`].
    pub continuation: Option<Digest>,
    /// The trace that the call belongs to, where those of a conversation may be its turns. It counts where nobody names the
    /// turn.
    pub trace: Option<&'a TurnId>,
    /// The tool's own input schema, where it is known. Only looked at where the policy enforces it.
    pub input_schema: Option<Value<'a>>,
}

impl Request {
    /// The request that an envelope makes.
    #[cfg(test)]
    pub(super) fn from_envelope(
        envelope: &CallEnvelope,
        policy: &Policy,
        intake: Intake<'_>,
    ) -> Result<Self, EnvelopeError> {
        Ok(Self::from_params(envelope, Self::params(envelope)?.root(), policy, intake))
    }

    /// The parameters of an envelope, read. Fails only where they are no JSON, which an envelope that was
    /// [parsed](CallEnvelope::parse) cannot have.
    pub fn params(envelope: &CallEnvelope) -> Result<Document<'_>, EnvelopeError> {
        let params = envelope.payload.params.as_str();
        Document::parse(params.as_bytes(), Limits::PARAMS).map_err(|error| {
            let position = error.position(params.as_bytes());
            EnvelopeError::Arguments { error, position }
        })
    }

    /// The request that an envelope makes whose [parameters](Self::params) were read already, to find its policy.
    pub fn from_params(
        envelope: &CallEnvelope,
        params: Value<'_>,
        policy: &Policy,
        intake: Intake<'_>,
    ) -> Self {
        let tool = envelope.tool();
        let target = &envelope.target;
        let digest = key::arguments_digest(params, policy.class, &policy.dedupe);
        let own_key = envelope.payload.idempotency_key.as_ref().map(IdempotencyKey::as_str);
        // The key of a turn is no caller's: the arguments must be there as without it, because the tool is given what they make.
        let has_callers = !intake.in_turn && own_key.or(intake.hook_key).is_some();
        let template = policy.dedupe.key.as_ref().filter(|_| !has_callers);
        let made = template.map(|template| template.fill(params));
        let made_key = made.as_ref().and_then(|made| made.as_deref().ok());
        let given = GivenKey::choose(own_key.or(made_key), intake.hook_key);
        let unmade = made.as_ref().and_then(|made| made.as_ref().err());
        let aims = Aims::of(params);
        Self {
            id: envelope.request_id.clone(),
            tool_call: envelope.tool_call_id.clone(),
            context: CallContext::of(envelope).map(Arc::new),
            session: Some(target.session_key.clone()),
            actor: Some(target.actor_id.clone()),
            tenant: target.tenant_id.clone(),
            turn: target.turn_id.clone(),
            trace: intake.trace.cloned(),
            model: target.model_id.clone(),
            duplicates: duplicates(envelope, &tool, digest, policy, given, &intake),
            sent_key: match given {
                GivenKey::ByCaller(_) | GivenKey::ByHook(_) => SentKey::Given,
                GivenKey::None => SentKey::Run,
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
            invalid_arguments: match unmade {
                Some(missing) => Some(no_key(missing)),
                None => invalid_arguments(policy, intake.input_schema, params),
            },
            limits: envelope.caller_limits(),
            waits: intake.waits,
            run_by: RunBy::Driver,
            end: AttemptEnd::Unseen,
            reads: Arc::default(),
            hints: Hints {
                expected_retry_safe: envelope.payload.call_hints.expected_retry_safe.unwrap_or(false),
                safety_critical: envelope.payload.call_hints.safety_critical,
            },
            channel: intake.channel,
            tool,
        }
    }
}

/// Whether and how duplicates are recognised. A caller that asks for it without a key means the computed one, and
/// means it: it counts as if the caller had given it. Where none may be computed, there is nothing to recognise it by.
/// Where nobody gave a key and nobody asked, the surface says what equal calls are to each other.
fn duplicates(
    envelope: &CallEnvelope,
    tool: &ToolRef,
    digest: Digest,
    policy: &Policy,
    given: GivenKey<'_>,
    intake: &Intake<'_>,
) -> Duplicates {
    let target = &envelope.target;
    let scope = Scope {
        tool,
        tenant: target.tenant_id.as_ref(),
        workspace: target.workspace_id.as_ref(),
        session: Some(&target.session_key),
        actor: Some(&target.actor_id),
        continuation: intake.continuation,
    };
    let asked = envelope.transport.dedupe_mode;
    if (asked, given) == (None, GivenKey::None) {
        return keyless(&scope, digest, policy, intake);
    }
    if given == GivenKey::None && policy.dedupe.computed_keys == ComputedKeys::Never {
        return Duplicates::Allowed;
    }
    let address = || Address::Explicit(key_of(&scope, digest, policy, given, intake.keys_of));
    match DedupeMode::resolve(asked, given) {
        DedupeMode::Disabled => Duplicates::Allowed,
        DedupeMode::Enforced => Duplicates::Joined(address()),
        DedupeMode::BestEffort => Duplicates::Refused(address()),
    }
}

/// By the id of the dispatch, and by equal arguments as far as they count between these calls.
fn keyless(scope: &Scope<'_>, digest: Digest, policy: &Policy, intake: &Intake<'_>) -> Duplicates {
    let joined = match (intake.equal_calls, policy.class) {
        (EqualCalls::Apart, _) => false,
        (EqualCalls::Joined, _) => true,
        (EqualCalls::JoinedIfRepeatable, ToolClass::ReadOnly | ToolClass::Idempotent) => true,
        (EqualCalls::JoinedIfRepeatable, ToolClass::Mutating | ToolClass::Unknown) => false,
    };
    let index = match policy.dedupe.computed_keys {
        ComputedKeys::Derive if joined => {
            Some(key::computed_key(scope, digest, policy.class, &policy.dedupe))
        }
        ComputedKeys::Derive | ComputedKeys::Never => None,
    };
    let call_id = intake.call_id.map(|id| match id {
        CallId::Unique(id) => key::call_id_key(&Scope { session: None, ..*scope }, id.as_str(), digest),
        CallId::InSession(id) => key::call_id_key(scope, id.as_str(), digest),
    });
    Duplicates::keyless(call_id, index, intake.run)
}

fn key_of(scope: &Scope<'_>, digest: Digest, policy: &Policy, given: GivenKey<'_>, keys_of: KeysOf) -> Key {
    let givens = match keys_of {
        KeysOf::Conversation => *scope,
        KeysOf::Actor => Scope { session: None, ..*scope },
    };
    match (given.explicit(), policy.dedupe.conflict) {
        (Some(text), Conflict::Reject) => key::explicit_key(&givens, text),
        (Some(text), Conflict::Separate) => key::separate_key(&givens, text, digest),
        (None, _) => key::computed_key(scope, digest, policy.class, &policy.dedupe),
    }
}

/// That the key of a call cannot be made of its arguments.
fn no_key(missing: &[String]) -> Arc<str> {
    let named: Vec<_> = missing.iter().map(|name| format!("`{name}`")).collect();
    let named = named.join(" and ");
    format!("the idempotency key of this tool is made of {named}, which must be a text or a number").into()
}

/// How the arguments break the tool's schema, where that is enforced.
fn invalid_arguments(policy: &Policy, schema: Option<Value<'_>>, params: Value<'_>) -> Option<Arc<str>> {
    let problems = match policy.arguments {
        ArgumentCheck::Enforce => check_arguments(schema?, params, policy.dedupe.key_argument.as_deref()),
        // The tool answers for itself; its refusal is explained when it comes.
        ArgumentCheck::Assist | ArgumentCheck::Off => return None,
    };
    let listed: Vec<String> = problems.iter().map(ToString::to_string).collect();
    (!listed.is_empty()).then(|| listed.join("; ").into())
}
