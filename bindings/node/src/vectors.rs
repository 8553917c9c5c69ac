//! The vectors that all languages share, for the tests.

#![allow(unreachable_pub, reason = "the macro exports them to Node")]

use napi::bindgen_prelude::Buffer;
use napi_derive::napi;
use serde::{Deserialize, Serialize};
use steadfast::call::id::{ActorId, Digest, Namespace, SessionKey, TenantId, ToolName, ToolRef, WorkspaceId};
use steadfast::call::json::{JsonDocument, JsonLimits};
use steadfast_core::key::{
    CanonicalForm, Canonicalizer, KeyInputs, RecordKey, arguments_digest, call_id_key, computed_key,
    continuation_digest, explicit_key, separate_key,
};
use steadfast_core::policy::{DedupePolicy, KeyScope, StringRule, ToolClass};

#[derive(Deserialize)]
struct FormText {
    strings: StringRule,
    volatile: Vec<Box<str>>,
}

#[derive(Serialize)]
struct CanonicalText<'a> {
    canonical: &'a str,
    sha256: Digest,
}

/// Returns the canonical form of a text and its digest.
#[napi]
pub fn vector_canonical(input: String, form: String) -> Option<String> {
    let form: FormText = serde_json::from_str(&form).ok()?;
    let document = JsonDocument::parse(input.as_bytes(), JsonLimits::ENVELOPE).ok()?;
    let mut canonicalizer = Canonicalizer::default();
    let form = CanonicalForm { strings: form.strings, volatile: &form.volatile };
    let canonical = canonicalizer.write(document.root(), form);
    serde_json::to_string(&CanonicalText { canonical, sha256: Digest::of(canonical.as_bytes()) }).ok()
}

/// Returns the position of the mistake in a text that is refused.
#[napi]
pub fn vector_refused(input: Buffer) -> Option<u32> {
    let error = JsonDocument::parse(&input, JsonLimits::ENVELOPE).err()?;
    u32::try_from(error.offset).ok()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeyText {
    kind: String,
    namespace: Namespace,
    tool: ToolName,
    tenant: Option<TenantId>,
    workspace: Option<WorkspaceId>,
    session: Option<SessionKey>,
    actor: Option<ActorId>,
    #[serde(default)]
    text: String,
    params: Option<String>,
    class: Option<ToolClass>,
    scope: Option<KeyScope>,
    input_responses: Option<String>,
    request_state: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct KeyResult {
    key: RecordKey,
    fingerprint: String,
    arguments_digest: Option<Digest>,
}

/// Returns the key of a vector.
#[napi]
pub fn vector_key(vector: String) -> Option<String> {
    let vector: KeyText = serde_json::from_str(&vector).ok()?;
    let read = |text: &Option<String>| {
        let text: &'static str = text.clone()?.leak();
        JsonDocument::parse(text.as_bytes(), JsonLimits::ENVELOPE).ok()
    };
    let (responses, state) = (read(&vector.input_responses), read(&vector.request_state));
    let tool = ToolRef { namespace: vector.namespace, tool: vector.tool };
    let inputs = KeyInputs {
        tenant: vector.tenant.as_ref(),
        workspace: vector.workspace.as_ref(),
        session: vector.session.as_ref(),
        actor: vector.actor.as_ref(),
        tool: &tool,
        continuation: continuation_digest(
            responses.as_ref().map(JsonDocument::root),
            state.as_ref().map(JsonDocument::root),
        ),
    };
    let class = vector.class.unwrap_or(ToolClass::Unknown);
    let policy = DedupePolicy { scope: vector.scope.unwrap_or(KeyScope::Session), ..DedupePolicy::default() };
    let params = read(&vector.params);
    let digest = params.as_ref().map(|params| arguments_digest(params.root(), class, &policy));
    let key = match vector.kind.as_str() {
        "explicit" => explicit_key(&inputs, &vector.text),
        "separate" => separate_key(&inputs, &vector.text, digest?),
        "callId" => call_id_key(&inputs, &vector.text, digest?),
        "computed" => computed_key(&inputs, digest?, class, &policy),
        _ => return None,
    };
    let result = KeyResult { key, fingerprint: key.fingerprint(), arguments_digest: digest };
    serde_json::to_string(&result).ok()
}
