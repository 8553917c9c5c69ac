//! Envelopes, and the reader of JSON below them.

use steadfast_core::code::Code;
use steadfast_core::envelope::{CallEnvelope, EnvelopeError, UnknownFieldPolicy};
use steadfast_json::{JsonDocument, JsonKind, JsonLimits, JsonValue};

use crate::reader::{self, JsonTree};

/// Checks that any envelope is read as serde_json reads it, within limits, or refused with a position in the text, and
/// that a parsed call can be read again from its serialized form.
pub fn envelope(input: &[u8]) {
    read_alike(input, JsonLimits::ENVELOPE);
    read_alike(input, SMALL);
    let lenient = CallEnvelope::parse(input, UnknownFieldPolicy::Keep);
    let strict = CallEnvelope::parse(input, UnknownFieldPolicy::Refuse);
    for read in [&lenient, &strict] {
        match read {
            Ok(call) => {
                written_again(call);
                // Accessors that every caller needs must work for every call.
                let _ = (call.tool(), call.caller_limits(), call.dedupe_mode());
            }
            Err(error) => refusal_is_usable(error),
        }
    }
    if let Ok(strict) = strict {
        assert_eq!(Ok(strict), lenient, "strict and lenient reading differ in more than unknown fields");
    }
}

/// Limits that are small enough for the fuzzer to meet both often.
const SMALL: JsonLimits = JsonLimits { bytes: 256, depth: 3 };

/// Checks that an input is accepted exactly if the other reader accepts it within the limits, with the same result.
fn read_alike(input: &[u8], limits: JsonLimits) {
    let reference = reader::read(input, limits.depth).filter(|_| input.len() <= limits.bytes);
    match (JsonDocument::parse(input, limits), reference) {
        (Ok(document), Some(reference)) => {
            same(document.root(), &reference);
            assert!(reader::depth(&reference) <= limits.depth, "deeper than the limit");
        }
        (Err(mistake), None) => {
            assert!(mistake.offset <= input.len(), "the mistake is placed beyond the end: {mistake:?}");
            assert!(!mistake.problem.is_empty(), "a mistake without words: {mistake:?}");
            let position = mistake.position(input);
            assert!(position.line > 0 && position.column > 0, "places are counted from one: {position:?}");
        }
        (Ok(document), None) => unreachable!("only we accept {:?} within {limits:?}", document.text()),
        (Err(mistake), Some(reference)) => {
            unreachable!("only we refuse {reference:?} within {limits:?}: {mistake:?}")
        }
    }
}

fn same(value: JsonValue<'_>, reference: &JsonTree) {
    match (value.kind(), reference) {
        (JsonKind::Null, JsonTree::Null) => {}
        (JsonKind::Bool(value), JsonTree::Bool(reference)) => assert_eq!(value, *reference),
        (JsonKind::Number(digits), JsonTree::Number(reference)) => {
            assert_eq!((digits, value.raw()), (reference.as_str(), reference.as_str()));
        }
        (JsonKind::String(text), JsonTree::String(reference)) => assert_eq!(text, reference.as_str()),
        (JsonKind::Array(items), JsonTree::Array(reference)) => {
            assert_eq!(items.clone().count(), reference.len());
            for (place, (item, reference)) in items.zip(reference).enumerate() {
                same(item, reference);
                if place < LOOKED_UP {
                    assert_eq!(value.item(place).map(JsonValue::span), Some(item.span()));
                }
            }
        }
        (JsonKind::Object(members), JsonTree::Object(reference)) => {
            assert_eq!(members.clone().count(), reference.len());
            for (place, ((name, member), (reference_name, reference))) in members.zip(reference).enumerate() {
                assert_eq!(name, reference_name.as_str());
                same(member, reference);
                if place < LOOKED_UP {
                    assert_eq!(value.get(&name).map(JsonValue::span), Some(member.span()), "{name:?}");
                    let pointer = format!("/{}", name.replace('~', "~0").replace('/', "~1"));
                    assert_eq!(
                        value.pointer(&pointer).map(JsonValue::span),
                        Some(member.span()),
                        "{pointer:?}"
                    );
                }
            }
        }
        (value, reference) => unreachable!("{value:?} is not {reference:?}"),
    }
}

/// Maximum number of children that are also looked up one by one, which is slow for many.
const LOOKED_UP: usize = 16;

/// Checks that the call is passed on unchanged.
fn written_again(call: &CallEnvelope) {
    let written = serde_json::to_string(call);
    assert!(written.is_ok(), "a call that cannot be written: {written:?}");
    let written = written.unwrap_or_default();
    if written.len() > JsonLimits::ENVELOPE.bytes {
        return;
    }
    let again = CallEnvelope::parse(written.as_bytes(), UnknownFieldPolicy::Keep);
    assert_eq!(again.as_ref(), Ok(call), "read differently from {written}");
}

/// Checks that a refusal can be logged and handled.
fn refusal_is_usable(error: &EnvelopeError) {
    assert!(matches!(error.code(), Code::InvalidEnvelope | Code::UnsupportedVersion), "{error:?}");
    let message = error.to_string();
    assert!(!message.is_empty() && message.len() < 64 << 10, "{} bytes of {message:.100}", message.len());
    if let EnvelopeError::Fields { problems, .. } = error {
        assert!(!problems.is_empty(), "refused without a reason");
    }
}
