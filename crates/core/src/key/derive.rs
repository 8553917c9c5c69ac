//! Derivation of keys from the fields of a call.
//!
//! Each key is the SHA-256 of one text, with its last four bytes replaced by its [`KeyHome`]. The parts of the text are
//! joined by `::`. Within a part, `:` is written `\:` and `\` is written `\\`, so that no two lists of parts give the
//! same text (`a::b` + `c` is not `a` + `b::c`). An absent part is empty, which no identifier can be. Every kind has
//! its own number of parts in its own order:
//!
//! ```text
//! steadfast-key-1::explicit::TENANT::ACTOR::NAMESPACE::SESSION::TEXT::CONTINUATION
//! steadfast-key-1::separate::TENANT::ACTOR::NAMESPACE::SESSION::TEXT::TOOL::ARGUMENTS::CONTINUATION
//! steadfast-key-1::call-id::TENANT::ACTOR::NAMESPACE::SESSION::ID::TOOL::ARGUMENTS::CONTINUATION
//! steadfast-key-1::computed::TENANT::WORKSPACE::NAMESPACE::TOOL::ARGUMENTS::SESSION::ACTOR::CONTINUATION
//! steadfast-key-1::global::TENANT::WORKSPACE::NAMESPACE::TOOL::ARGUMENTS::CONTINUATION
//! steadfast-key-1::run::RUN
//! ```
//!
//! The first part is the version of this derivation. Records with another version are not found, which costs one more
//! run and never a wrong response. The second part separates the kinds: no caller can send an explicit key that is
//! another call's computed one.
//!
//! ARGUMENTS is the digest of the canonical parameters in hex, not the parameters themselves. The digest already exists
//! (the conflict check, the loop guard and approvals compare it), so long parameters are hashed only once, and it needs
//! no escaping. The tool is not a part of an explicit key: the same key for another tool is a conflict, not a second
//! call. Tool and arguments are a part of the key of a call id, because call ids never conflict: a client that uses one
//! twice makes two calls, and neither may overwrite the other's record.

use sha2::{Digest as _, Sha256};
use steadfast_json::JsonValue;

use super::{CanonicalForm, Canonicalizer, KeyHome, RecordKey};
use crate::id::{ActorId, Digest, RunId, SessionKey, TenantId, ToolRef, WorkspaceId};
use crate::policy::{DedupePolicy, KeyScope, StringRule, ToolClass};

/// The version that is hashed into every key. A change of the text or of the canonical form needs a new one.
const DERIVATION: &str = "steadfast-key-1";

/// The owner and the target of a call.
#[derive(Clone, Copy, Debug)]
pub struct KeyInputs<'a> {
    /// Tool of the call. Its namespace is a part of every key, its name a part of the computed ones.
    pub tool: &'a ToolRef,
    /// Tenant whose data the call uses.
    pub tenant: Option<&'a TenantId>,
    /// Workspace of the caller. Only a part of computed keys, because arguments may be relative to it.
    pub workspace: Option<&'a WorkspaceId>,
    /// Session of the call. For explicit keys and call ids the caller of this module decides if it counts. It does for
    /// envelopes, and does not for ids that are unique by themselves.
    pub session: Option<&'a SessionKey>,
    /// Actor that makes the call.
    pub actor: Option<&'a ActorId>,
    /// Digest that distinguishes the next round of a call that asked for input from the first one, although its
    /// arguments are the same. See [`continuation_digest`].
    pub continuation: Option<Digest>,
}

/// Returns the key of a call for which its caller (or `key` hook) gave this text.
pub fn explicit_key(scope: &KeyInputs<'_>, text: &str) -> RecordKey {
    own_key("explicit", scope, text).finish(scope, KeyHome::of(scope))
}

/// Returns the key if the same text with another tool or other arguments means another call.
pub fn separate_key(scope: &KeyInputs<'_>, text: &str, arguments: Digest) -> RecordKey {
    own_key("separate", scope, text)
        .part(scope.tool.tool.as_str())
        .digest(Some(arguments))
        .finish(scope, KeyHome::of(scope))
}

/// Returns the key under which a resend of the same dispatch is found. The same id with another tool or other arguments
/// is another dispatch.
pub fn call_id_key(scope: &KeyInputs<'_>, id: &str, arguments: Digest) -> RecordKey {
    own_key("call-id", scope, id)
        .part(scope.tool.tool.as_str())
        .digest(Some(arguments))
        .finish(scope, KeyHome::of(scope))
}

/// Returns the key of a run that only the index of equal arguments finds. It has the home of its index.
pub fn run_key(index: RecordKey, run: &RunId) -> RecordKey {
    RecordKey::at(index.home(), Digest::of(KeyText::new("run").part(&run.0).0.as_bytes()))
}

/// Returns the key of a call without a key.
///
/// `arguments` is the result of [`arguments_digest`] for its parameters with the same class and policy.
pub fn computed_key(
    scope: &KeyInputs<'_>,
    arguments: Digest,
    class: ToolClass,
    policy: &DedupePolicy,
) -> RecordKey {
    // Actors may share results only if a run changes nothing.
    let is_shared = match (policy.scope, class) {
        (KeyScope::Global, ToolClass::ReadOnly) => true,
        (KeyScope::Global, ToolClass::Idempotent | ToolClass::Mutating | ToolClass::Unknown) => false,
        (KeyScope::Session, _) => false,
    };
    let kind = if is_shared { "global" } else { "computed" };
    let key = KeyText::new(kind)
        .part(text(scope.tenant.map(TenantId::as_str)))
        .part(text(scope.workspace.map(WorkspaceId::as_str)))
        .part(scope.tool.namespace.as_str())
        .part(scope.tool.tool.as_str())
        .digest(Some(arguments));
    let key = match is_shared {
        true => key,
        false => {
            key.part(text(scope.session.map(SessionKey::as_str))).part(text(scope.actor.map(ActorId::as_str)))
        }
    };
    let home = if is_shared { KeyHome::of(&KeyInputs { actor: None, ..*scope }) } else { KeyHome::of(scope) };
    key.finish(scope, home)
}

/// Returns the digest of a call's parameters, which is stored with its record and compared when its key is used again.
pub fn arguments_digest(params: JsonValue<'_>, class: ToolClass, policy: &DedupePolicy) -> Digest {
    let form = CanonicalForm { strings: string_rule(class, policy), volatile: &policy.volatile };
    Digest::of(Canonicalizer::default().write(params, form).as_bytes())
}

/// Returns the digest of the fields that an MCP client adds to a call that asked for input (`inputResponses`,
/// `requestState`). It is a part of the key, so the next round is not a duplicate of the first. It is not a part of the
/// arguments, so it is no conflict either.
pub fn continuation_digest(
    input_responses: Option<JsonValue<'_>>,
    request_state: Option<JsonValue<'_>>,
) -> Option<Digest> {
    if input_responses.is_none() && request_state.is_none() {
        return None;
    }
    let mut canonical = Canonicalizer::default();
    let mut hash = Sha256::new();
    for part in [input_responses, request_state] {
        let text = part.map_or("", |value| canonical.write(value, CanonicalForm::EXACT));
        // Canonical JSON contains no line breaks, so the end of the first part is unambiguous.
        hash.update(text);
        hash.update("\n");
    }
    Some(Digest::from_bytes(hash.finalize().into()))
}

/// Returns the comparison of this tool's strings: as configured, or else loose only if a run changes nothing.
fn string_rule(class: ToolClass, policy: &DedupePolicy) -> StringRule {
    policy.strings.unwrap_or(match class {
        ToolClass::ReadOnly => StringRule::Collapse,
        ToolClass::Idempotent | ToolClass::Mutating | ToolClass::Unknown => StringRule::Exact,
    })
}

/// Returns the common parts of all explicit keys and call ids.
fn own_key(kind: &str, scope: &KeyInputs<'_>, own: &str) -> KeyText {
    KeyText::new(kind)
        .part(text(scope.tenant.map(TenantId::as_str)))
        .part(text(scope.actor.map(ActorId::as_str)))
        .part(scope.tool.namespace.as_str())
        .part(text(scope.session.map(SessionKey::as_str)))
        .part(own)
}

fn text(part: Option<&str>) -> &str {
    part.unwrap_or_default()
}

impl KeyHome {
    /// FNV-1a of tenant, namespace and actor. It places keys and proves nothing, so it need not be strong.
    fn of(scope: &KeyInputs<'_>) -> Self {
        let parts = [
            text(scope.tenant.map(TenantId::as_str)),
            scope.tool.namespace.as_str(),
            text(scope.actor.map(ActorId::as_str)),
        ];
        let mut hash: u32 = 0x811c_9dc5;
        for byte in parts.iter().flat_map(|part| part.bytes().chain([0])) {
            hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        }
        Self(hash.to_be_bytes())
    }
}

/// The text of a key while it is being written.
struct KeyText(String);

impl KeyText {
    fn new(kind: &str) -> Self {
        let mut text = String::with_capacity(256);
        text.push_str(DERIVATION);
        Self(text).part(kind)
    }

    fn part(mut self, part: &str) -> Self {
        self.0.push_str("::");
        if !part.bytes().any(|byte| matches!(byte, b':' | b'\\')) {
            self.0.push_str(part);
            return self;
        }
        for character in part.chars() {
            if matches!(character, ':' | '\\') {
                self.0.push('\\');
            }
            self.0.push(character);
        }
        self
    }

    fn digest(mut self, digest: Option<Digest>) -> Self {
        self.0.push_str("::");
        if let Some(digest) = digest {
            digest.write_hex(&mut self.0);
        }
        self
    }

    fn finish(self, scope: &KeyInputs<'_>, home: KeyHome) -> RecordKey {
        RecordKey::at(home, Digest::of(self.digest(scope.continuation).0.as_bytes()))
    }
}
