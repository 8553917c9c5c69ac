//! Parameters: their canonical form, the keys that are derived from it, and the parts that may be shown.

use serde_json::{Map, Number};
use steadfast_core::id::{ActorId, Namespace, SessionKey, TenantId, ToolName, ToolRef, WorkspaceId};
use steadfast_core::key::{
    CanonicalForm, Canonicalizer, KeyInputs, arguments_digest, call_id_key, computed_key,
    continuation_digest, explicit_key, separate_key,
};
use steadfast_core::policy::{DedupePolicy, KeyScope, StringRule, ToolClass};
use steadfast_json::{JsonDocument, JsonKind, JsonLimits, JsonValue};

/// Checks that the canonical form is a fixed point, and that of RFC 8785 where it applies; that keys are stable and
/// distinguish calls; that redacted text stays redacted, and that JSON stays JSON.
pub fn canonical(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    redacted(&text);
    keys(&text);
    let Ok(document) = JsonDocument::parse(input, JsonLimits::ENVELOPE) else { return };
    let root = document.root();
    for strings in [StringRule::Exact, StringRule::Trim, StringRule::Collapse] {
        for volatile in [&[][..], &volatile()] {
            fixed_point(root, CanonicalForm { strings, volatile });
        }
    }
    if let Some(value) = within_the_rfc(root) {
        let expected = serde_json_canonicalizer::to_string(&value).ok();
        let mut canonicalizer = Canonicalizer::default();
        assert_eq!(
            Some(canonicalizer.write(root, CanonicalForm::EXACT)),
            expected.as_deref(),
            "not as RFC 8785 has it"
        );
    }
    digests(root);
    shown(root);
}

fn volatile() -> [Box<str>; 2] {
    ["clientTs", "a"].map(Box::from)
}

/// Checks that reading and writing a canonical form again changes nothing.
fn fixed_point(value: JsonValue<'_>, form: CanonicalForm<'_>) {
    let mut canonicalizer = Canonicalizer::default();
    let once = canonicalizer.write(value, form).to_owned();
    let again = JsonDocument::parse(once.as_bytes(), JsonLimits { bytes: usize::MAX, depth: usize::MAX });
    match again {
        Ok(document) => assert_eq!(canonicalizer.write(document.root(), form), once, "under {form:?}"),
        Err(mistake) => unreachable!("the canonical form is not valid JSON, {mistake:?}: {once}"),
    }
}

/// Returns the value if RFC 8785 fully defines its form: no number whose digits we keep, no string that we change.
fn within_the_rfc(value: JsonValue<'_>) -> Option<serde_json::Value> {
    Some(match value.kind() {
        JsonKind::Null => serde_json::Value::Null,
        JsonKind::Bool(flag) => flag.into(),
        JsonKind::Number(digits) => {
            let double: f64 = digits.parse().ok()?;
            let small =
                digits.len() <= 15 && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
            // A double with a fraction has no whole number near that could have been meant.
            if !small && double.fract() == 0.0 {
                return None;
            }
            Number::from_f64(double)?.into()
        }
        JsonKind::String(text) => Some(text).filter(|text| !text.contains('\r'))?.into_owned().into(),
        JsonKind::Array(items) => items.map(within_the_rfc).collect::<Option<Vec<_>>>()?.into(),
        JsonKind::Object(members) => members
            .map(|(name, member)| Some((name.into_owned(), within_the_rfc(member)?)))
            .collect::<Option<Map<_, _>>>()?
            .into(),
    })
}

/// Checks that parameters and their canonical form are the same call.
fn digests(params: JsonValue<'_>) {
    let policy = DedupePolicy::default();
    for class in [ToolClass::ReadOnly, ToolClass::Mutating] {
        let digest = arguments_digest(params, class, &policy);
        let strings = if class == ToolClass::ReadOnly { StringRule::Collapse } else { StringRule::Exact };
        let form = CanonicalForm { strings, volatile: &policy.volatile };
        let mut canonicalizer = Canonicalizer::default();
        let written = canonicalizer.write(params, form);
        let limits = JsonLimits { bytes: usize::MAX, depth: usize::MAX };
        let of_written = JsonDocument::parse(written.as_bytes(), limits)
            .map(|document| arguments_digest(document.root(), class, &policy));
        assert_eq!(of_written, Ok(digest), "for {class:?}");
    }
    let rounds = [
        continuation_digest(None, None),
        continuation_digest(Some(params), None),
        continuation_digest(None, Some(params)),
        continuation_digest(Some(params), Some(params)),
    ];
    differ(&rounds);
}

/// Checks that different parts of a call's scope make a different call, however a text is cut into them.
fn keys(text: &str) {
    let places: Vec<usize> =
        text.char_indices().map(|(at, _)| at).skip(1).filter(|at| at % 3 != 2).take(4).collect();
    let mut keys = Vec::new();
    for place in places {
        let (left, right) = text.split_at(place);
        let (Ok(session), Ok(actor)) = (SessionKey::new(left), ActorId::new(right)) else { continue };
        let (Ok(tenant), Ok(workspace)) = (TenantId::new(left), WorkspaceId::new(right)) else { continue };
        let (Ok(namespace), Ok(tool)) = (Namespace::new(left), ToolName::new(right)) else { continue };
        let arguments = steadfast_core::id::Digest::of(b"{}");
        let tool = ToolRef { namespace, tool };
        let whole = KeyInputs {
            tool: &tool,
            tenant: Some(&tenant),
            workspace: Some(&workspace),
            session: Some(&session),
            actor: Some(&actor),
            continuation: None,
        };
        let policy = DedupePolicy::default();
        let shared = DedupePolicy { scope: KeyScope::Global, ..DedupePolicy::default() };
        for scope in [whole, KeyInputs { tenant: None, ..whole }, KeyInputs { session: None, ..whole }] {
            keys.push(explicit_key(&scope, right));
            keys.push(separate_key(&scope, right, arguments));
            keys.push(call_id_key(&scope, right, arguments));
            keys.push(computed_key(&scope, arguments, ToolClass::Unknown, &policy));
        }
        // Calls of all sessions: the session is no part of the key.
        keys.push(computed_key(&whole, arguments, ToolClass::ReadOnly, &shared));
        let alone =
            computed_key(&KeyInputs { session: None, ..whole }, arguments, ToolClass::ReadOnly, &shared);
        assert_eq!(keys.last(), Some(&alone), "a shared key depends on the session");
        assert_eq!(explicit_key(&whole, right), explicit_key(&whole, right), "a key is not stable");
    }
    differ(&keys);
}

fn differ<T: Ord + Copy + std::fmt::Debug>(all: &[T]) {
    let mut sorted = all.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), all.len(), "two of them are one: {all:?}");
}

/// Checks that a second redaction changes nothing, that JSON stays JSON, and that the size is bounded.
fn redacted(text: &str) {
    let once = steadfast_redact::text(text);
    assert_eq!(steadfast_redact::text(&once), once, "redacted a second time: {text:?}");
    assert!(once.len() <= 8 * text.len() + 64, "{} bytes became {}", text.len(), once.len());
    if is_json(text) {
        assert!(is_json(&once), "no longer JSON: {once}");
    }
    for most in [16, 100] {
        let excerpt = steadfast_redact::excerpt(text, most);
        assert!(excerpt.len() <= most, "{} bytes instead of {most}: {excerpt:?}", excerpt.len());
    }
}

fn is_json(text: &str) -> bool {
    JsonDocument::parse(text.as_bytes(), JsonLimits::ENVELOPE).is_ok()
}

/// Checks that the summary of arguments is JSON of bounded size.
fn shown(params: JsonValue<'_>) {
    let summary = steadfast_redact::summary(params);
    assert!(is_json(summary.as_str()), "the summary is not valid JSON: {}", summary.as_str());
    assert!(
        summary.as_str().len() <= steadfast_redact::MAX_SUMMARY_BYTES,
        "{} bytes",
        summary.as_str().len()
    );
}
