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
    let kept = CallEnvelope::parse(input, UnknownFieldPolicy::Keep);
    let strict = CallEnvelope::parse(input, UnknownFieldPolicy::Refuse);
    for read in [&kept, &strict] {
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
        assert_eq!(Ok(strict), kept, "strict and lenient reading differ in more than unknown fields");
    }
}

/// Limits that are small enough for the fuzzer to meet both often.
const SMALL: JsonLimits = JsonLimits { bytes: 256, depth: 3 };

/// Checks that an input is accepted exactly if the other reader accepts it within the limits, with the same result.
fn read_alike(input: &[u8], limits: JsonLimits) {
    let theirs = reader::read(input, limits.depth).filter(|_| input.len() <= limits.bytes);
    match (JsonDocument::parse(input, limits), theirs) {
        (Ok(document), Some(theirs)) => {
            same(document.root(), &theirs);
            assert!(reader::depth(&theirs) <= limits.depth, "deeper than the limit");
        }
        (Err(mistake), None) => {
            assert!(mistake.offset <= input.len(), "the mistake is placed beyond the end: {mistake:?}");
            assert!(!mistake.problem.is_empty(), "a mistake without words: {mistake:?}");
            let position = mistake.position(input);
            assert!(position.line > 0 && position.column > 0, "places are counted from one: {position:?}");
        }
        (Ok(document), None) => unreachable!("only we accept {:?} within {limits:?}", document.text()),
        (Err(mistake), Some(theirs)) => {
            unreachable!("only we refuse {theirs:?} within {limits:?}: {mistake:?}")
        }
    }
}

fn same(ours: JsonValue<'_>, theirs: &JsonTree) {
    match (ours.kind(), theirs) {
        (JsonKind::Null, JsonTree::Null) => {}
        (JsonKind::Bool(ours), JsonTree::Bool(theirs)) => assert_eq!(ours, *theirs),
        (JsonKind::Number(digits), JsonTree::Number(theirs)) => {
            assert_eq!((digits, ours.raw()), (theirs.as_str(), theirs.as_str()));
        }
        (JsonKind::String(text), JsonTree::String(theirs)) => assert_eq!(text, theirs.as_str()),
        (JsonKind::Array(items), JsonTree::Array(theirs)) => {
            assert_eq!(items.clone().count(), theirs.len());
            for (place, (item, theirs)) in items.zip(theirs).enumerate() {
                same(item, theirs);
                if place < LOOKED_UP {
                    assert_eq!(ours.item(place).map(JsonValue::span), Some(item.span()));
                }
            }
        }
        (JsonKind::Object(members), JsonTree::Object(theirs)) => {
            assert_eq!(members.clone().count(), theirs.len());
            for (place, ((name, member), (their_name, theirs))) in members.zip(theirs).enumerate() {
                assert_eq!(name, their_name.as_str());
                same(member, theirs);
                if place < LOOKED_UP {
                    assert_eq!(ours.get(&name).map(JsonValue::span), Some(member.span()), "{name:?}");
                    let pointer = format!("/{}", name.replace('~', "~0").replace('/', "~1"));
                    assert_eq!(
                        ours.pointer(&pointer).map(JsonValue::span),
                        Some(member.span()),
                        "{pointer:?}"
                    );
                }
            }
        }
        (ours, theirs) => unreachable!("{ours:?} is not {theirs:?}"),
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
    let said = error.to_string();
    assert!(!said.is_empty() && said.len() < 64 << 10, "{} bytes of {said:.100}", said.len());
    if let EnvelopeError::Fields { problems, .. } = error {
        assert!(!problems.is_empty(), "refused without a reason");
    }
}
