//! Faults, and the other classifications of the texts of a call and its answer.
//!
//! The first bytes choose the source, its number, the retry-after delay and the tool's own rules. The rest is the
//! message.

use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::classify::ModelMistake;
use steadfast_core::classify::danger::{DangerousShapes, dangerous};
use steadfast_core::classify::record::{FailureDetails, FailureRecord, detect};
use steadfast_core::classify::signature::{domain, signature};
use steadfast_core::classify::{
    ArgumentTargets, AttemptFault, AttemptReach, Classification, FaultMatcher, FaultNature, FaultSource,
    OverrideRule, Overrides, RetryAfter, TransportError, classify as judge,
};
use steadfast_core::guard;
use steadfast_core::guard::log::{MalformedCall, MalformedCallKind, ModelAttribution};
use steadfast_core::id::{Namespace, ToolCallId, ToolName, ToolRef};
use steadfast_json::{JsonDocument, JsonLimits, JsonValue};

use crate::draw::InputDraw;

/// Checks that every fault is classified by a named rule, and that texts never prove that a tool did not run.
pub fn classify(input: &[u8]) {
    let mut draw = InputDraw::new(input);
    let source = source(&mut draw);
    let retry_after = retry_after(&mut draw);
    let own = draw.byte();
    let message = String::from_utf8_lossy(draw.rest()).into_owned();
    let fault = AttemptFault { retry_after, ..AttemptFault::new(source, message) };
    built_in(&fault);
    overridden(&fault, own);
    text(&fault.message);
    if let Ok(document) = JsonDocument::parse(fault.message.as_bytes(), JsonLimits::ENVELOPE) {
        json(document.root(), &fault.message);
    }
}

const NOW: Timestamp = Timestamp::from_millis(1_762_338_645_000);
const LONGEST_WAIT: Duration = Duration::from_secs(366 * 24 * 3600);

fn source(draw: &mut InputDraw<'_>) -> FaultSource {
    let kind = draw.byte();
    let number = draw.short();
    match kind % 11 {
        0 => FaultSource::Tool,
        1 => FaultSource::IsError,
        2 => FaultSource::Http { status: number },
        3 => FaultSource::JsonRpc { code: -i64::from(number) },
        4 => {
            let errors = [
                TransportError::ConnectionRefused,
                TransportError::ConnectionReset,
                TransportError::ConnectionClosed,
                TransportError::TimedOut,
                TransportError::NameNotFound,
                TransportError::Unreachable,
                TransportError::Tls,
                TransportError::Other,
            ];
            let error =
                errors.get(usize::from(number / 2) % errors.len()).copied().unwrap_or(TransportError::Other);
            FaultSource::Transport { error, written: number % 2 == 1 }
        }
        5 => FaultSource::SessionLost,
        6 => FaultSource::WebSocket { code: number },
        7 => {
            let number = i32::from(number % 512);
            match number {
                0..256 => FaultSource::Exit { code: Some(number), signal: None },
                _ => FaultSource::Exit { code: None, signal: Some(number - 256) },
            }
        }
        8 => FaultSource::Timeout { after: Duration::from_millis(u64::from(number)) },
        9 => FaultSource::Panic,
        _ => FaultSource::BadAnswer,
    }
}

fn retry_after(draw: &mut InputDraw<'_>) -> Option<RetryAfter> {
    match draw.byte() {
        0 => None,
        255 => Some(RetryAfter::At(Timestamp::MAX)),
        254 => Some(RetryAfter::Delay(Duration::MAX)),
        number if number % 2 == 0 => Some(RetryAfter::Delay(Duration::from_secs(u64::from(number)))),
        number => Some(RetryAfter::At(Timestamp::from_millis(u64::from(number) << 33))),
    }
}

/// Checks the properties of every fault of a tool without rules of its own.
fn built_in(fault: &AttemptFault) {
    let judged = judge(fault, &Overrides::default(), NOW);
    assert_eq!(judged, judge(fault, &Overrides::default(), NOW), "judged differently the second time");
    sound(&judged);
    let without_message =
        judge(&AttemptFault { message: String::new(), ..fault.clone() }, &Overrides::default(), NOW);
    if judged.reach.proves_not_run() {
        assert!(
            without_message.reach.proves_not_run(),
            "words prove that it did not run: {fault:?} is {judged:?}"
        );
    }
    match fault.source {
        FaultSource::IsError | FaultSource::Tool | FaultSource::TooLarge => {
            assert!(!judged.reach.proves_not_run(), "a tool that spoke has run");
        }
        FaultSource::Timeout { .. } | FaultSource::Panic => assert_eq!(judged.reach, AttemptReach::Unknown),
        FaultSource::Transport { written: false, .. } => {
            assert!(judged.reach.proves_not_run(), "what was not written cannot have run: {judged:?}");
        }
        FaultSource::Transport { .. }
        | FaultSource::Http { .. }
        | FaultSource::JsonRpc { .. }
        | FaultSource::SessionLost
        | FaultSource::WebSocket { .. }
        | FaultSource::Exit { .. }
        | FaultSource::BadAnswer => {}
    }
    record(fault, &judged);
}

fn sound(judged: &Classification) {
    assert!(!judged.rule.is_empty() && judged.rule.len() <= 80, "a rule that cannot be named: {judged:?}");
    assert!(!judged.rule.chars().any(char::is_control), "a rule that breaks a log line: {judged:?}");
    assert!(judged.retry_after.is_none_or(|wait| wait <= LONGEST_WAIT), "an endless wait: {judged:?}");
}

/// Checks that the tool's own rules come first, and that a rule that does not match changes nothing.
fn overridden(fault: &AttemptFault, own: u8) {
    let unknown = if own & 1 == 0 { FaultNature::Transient } else { FaultNature::Permanent };
    let nature = if own & 2 == 0 { FaultNature::Transient } else { FaultNature::Permanent };
    let reach =
        [None, Some(AttemptReach::Refused), Some(AttemptReach::Unknown), Some(AttemptReach::Answered)];
    let reach = reach.get(usize::from(own >> 2 & 3)).copied().flatten();
    // Patterns are costly to build, so only some inputs have one.
    let pattern = (own & 16 != 0).then(|| fault.message.lines().next().unwrap_or_default().to_owned());
    let rule = OverrideRule {
        name: (own & 32 != 0).then(|| "own".to_owned()),
        when: match pattern {
            Some(pattern) => FaultMatcher { text: Some(pattern), ..FaultMatcher::default() },
            None => FaultMatcher {
                source: Some(fault.source.kind()),
                status: (own & 64 != 0).then_some(503),
                ..FaultMatcher::default()
            },
        },
        nature,
        severity: None,
        reach,
        retry_after: (own & 128 != 0).then_some(Duration::from_secs(7)),
        matches: Vec::new(),
        misses: Vec::new(),
    };
    let Ok(overrides) = Overrides::new(vec![rule]) else { return };
    let overrides = overrides.with_unknown(unknown);
    let judged = judge(fault, &overrides, NOW);
    sound(&judged);
    if judged.rule == "own" || judged.rule == "override.0" {
        assert_eq!(judged.nature, nature, "the rule is named and not obeyed");
        assert!(reach.is_none_or(|reach| reach == judged.reach), "the rule is named and not obeyed");
    } else {
        let alone = judge(fault, &Overrides::default().with_unknown(unknown), NOW);
        assert_eq!(judged, alone, "a rule that does not hold changed the verdict");
    }
}

fn record(fault: &AttemptFault, judged: &Classification) {
    let trouble = FailureDetails {
        severity: judged.severity,
        rule: &judged.rule,
        message: &fault.message,
        http_status: None,
        transient: judged.nature == FaultNature::Transient,
    };
    let record = FailureRecord::new(tool(), &trouble, NOW);
    let size = [&record.error_type, &record.message].map(String::len);
    assert!(size.iter().sum::<usize>() <= 128 + 1024 + 3, "the record is not bounded: {size:?}");
    assert!(!record.error_type.is_empty(), "an error without a type");
}

/// Checks all functions that take a text.
fn text(text: &str) {
    for retry_after in [RetryAfter::parse(text), RetryAfter::parse_ms(text)] {
        let wait = retry_after.and_then(|retry_after| retry_after.resolve(NOW));
        assert!(wait.is_none_or(|wait| wait <= LONGEST_WAIT), "an endless wait: {wait:?}");
    }
    let masked = guard::mask(text);
    assert!(masked.len() <= 4 * 4096, "the mask is longer than what it masks: {} bytes", masked.len());
    assert!(!masked.contains("  ") && masked.trim_end() == masked, "white space is left: {masked:?}");
    // A number after one of these words stays. Every other digit varies from call to call.
    let named = ["status", "http", "code", "errno", "exit", "signal"];
    let small = text.to_ascii_lowercase();
    if !named.iter().any(|name| small.contains(name)) {
        let other: String = text.chars().map(other_digit).collect();
        assert_eq!(guard::mask(&other), masked, "another number is another error: {other:?}");
    }
    let line = MalformedCall {
        model: ModelAttribution::of(None, ToolCallId::new(text).ok().as_ref()),
        tool: tool(),
        arguments: text.to_owned(),
        error_type: MalformedCallKind::Mistake(ModelMistake::Arguments),
        at: NOW,
    };
    let line = line.to_line();
    assert!(!line.is_empty() && !line.contains('\n'), "not one line: {line:?}");
    assert!(JsonDocument::parse(line.as_bytes(), JsonLimits::ENVELOPE).is_ok(), "no JSON: {line}");
}

fn other_digit(character: char) -> char {
    match character {
        '9' => '0',
        '0'..='8' => char::from_u32(u32::from(character) + 1).unwrap_or('0'),
        _ => character,
    }
}

/// Checks all functions that take parameters and results.
fn json(value: JsonValue<'_>, message: &str) {
    let tool = tool();
    let found = detect(value, &Overrides::default(), NOW);
    assert_eq!(found, detect(value, &Overrides::default(), NOW), "found differently the second time");
    if let Some(found) = found {
        assert!(found.message.len() <= 1024 && found.error_type.len() <= 128, "not bounded: {found:?}");
        assert!(found.http_status.is_none_or(|status| status >= 400), "not a failure: {found:?}");
    }
    let aims = ArgumentTargets::of(value);
    let signed = signature(&tool, &aims);
    assert_eq!(signed, signature(&tool, &ArgumentTargets::of(value)), "signed differently the second time");
    assert!(signed.0.len() <= 4096 && !signed.0.chars().any(char::is_control), "cannot be shown: {signed:?}");
    let _ = domain(&tool, &aims);
    assert_eq!(dangerous(&aims, &DangerousShapes::NONE), None, "dangerous by no shape");
    if let Some(shape) = dangerous(&aims, &DangerousShapes::default()) {
        assert!(
            DangerousShapes::default().names().any(|name| name == shape.name),
            "an unknown shape: {shape:?}"
        );
        let without = DangerousShapes::default().without(&shape.name);
        assert_ne!(dangerous(&aims, &without), Some(shape), "found though it was taken out");
    }
    let (schema, sent) = (value.item(0).unwrap_or(value), value.item(1).unwrap_or(value));
    let hint = guard::hint(schema, sent, message, None);
    assert!(!hint.is_empty() && hint.len() <= 1500 + '…'.len_utf8(), "{} bytes of hint", hint.len());
    assert!(guard::check_arguments(schema, sent, None).len() <= 8, "too many problems for one answer");
}

fn tool() -> ToolRef {
    let names = (Namespace::new("files"), ToolName::new("read"));
    let (Ok(namespace), Ok(tool)) = names else { unreachable!("these can be names") };
    ToolRef { namespace, tool }
}
