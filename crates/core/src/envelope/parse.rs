//! Parsing of a call envelope: reports all errors at once, each with the path to its field, the expected value and the
//! actual value.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use steadfast_json::{JsonDocument, JsonError, JsonKind, JsonLimits, JsonValue, RawJson, TextPosition};

use super::call::{
    BreakerHint, CallControl, CallEnvelope, CallHints, CallPayload, CallerIdentity, ContractVersion,
    EnvelopeTrace, ExtraFields, PayloadVersion, RetryLimits, TransportOptions, TurnControl,
};
use super::{MAX_BAGGAGE_BYTES, MAX_BAGGAGE_ENTRIES, MAX_TAGS};
use crate::Timestamp;
use crate::code::Code;
use crate::id::{ActorId, InvalidId, check_id};
use crate::key::DedupeMode;

impl CallEnvelope {
    /// Parses an envelope, or returns all its errors.
    pub fn parse(text: &[u8], unknown: UnknownFieldPolicy) -> Result<Self, EnvelopeError> {
        Self::parse_from(text, unknown, None)
    }

    /// Parses an envelope from a known sender, if there is one. An envelope without an actor belongs to the sender.
    pub fn parse_from(
        text: &[u8],
        unknown: UnknownFieldPolicy,
        sender: Option<&ActorId>,
    ) -> Result<Self, EnvelopeError> {
        let document = JsonDocument::parse(text, JsonLimits::ENVELOPE).map_err(EnvelopeError::Json)?;
        let mut reader = EnvelopeReader::from(unknown, sender);
        let call = reader.call(document.root());
        reader.finish(call)
    }
}

/// The handling of unknown fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownFieldPolicy {
    /// Unknown fields are kept and ignored. A newer client may know more fields.
    Keep,
    /// The envelope is refused. For strict callers that want to detect misspelt fields.
    Refuse,
}

/// The reason why an envelope is invalid. The same envelope will never be valid, so this is final.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// The text is not JSON, or is too large or too deep.
    #[error("the envelope is not readable JSON: {0}")]
    Json(#[source] JsonError),
    /// The arguments of a call without an envelope are not JSON that every reader parses in the same way.
    #[error("the arguments at line {}, column {}: {}", .position.line, .position.column, .error.problem)]
    Arguments {
        /// Problem with the arguments.
        #[source]
        error: JsonError,
        /// Position in the arguments as they were sent.
        position: TextPosition,
    },
    /// The text is JSON, but not an envelope.
    #[error("the envelope is not valid: {}", EnvelopeProblem::list(.problems, *.more))]
    Fields {
        /// `unsupported_version` if a version is not supported, otherwise `invalid_envelope`.
        code: Code,
        /// Problems in the order of the contract.
        problems: Vec<EnvelopeProblem>,
        /// Number of further problems that are not listed.
        more: usize,
        /// Number of unknown fields among all problems. Only a strict caller counts them as errors.
        unknown: usize,
    },
}

impl EnvelopeError {
    /// Returns true if the envelope matches the schema except for unknown fields.
    pub fn has_only_unknown_fields(&self) -> bool {
        match self {
            Self::Json(_) | Self::Arguments { .. } => false,
            Self::Fields { problems, more, unknown, .. } => problems.len() + more == *unknown,
        }
    }

    /// Returns the error code for the response.
    pub const fn code(&self) -> Code {
        match self {
            Self::Json(_) | Self::Arguments { .. } => Code::InvalidEnvelope,
            Self::Fields { code, .. } => *code,
        }
    }
}

/// A problem of an envelope. Everything in it is bounded and redacted, so it may be logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvelopeProblem {
    /// Path of the field, as `payload.callHints.timeoutMs`. Empty for the envelope itself.
    pub path: String,
    /// Expected value.
    pub expected: Cow<'static, str>,
    /// Actual value.
    pub found: String,
}

impl EnvelopeProblem {
    /// Lists these problems and the number of further ones.
    pub(crate) fn list(problems: &[Self], more: usize) -> String {
        let mut listed: Vec<_> = problems.iter().map(ToString::to_string).collect();
        if more > 0 {
            listed.push(format!("and {more} more"));
        }
        listed.join("; ")
    }
}

impl fmt::Display for EnvelopeProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path.is_empty() { "the envelope" } else { &self.path };
        write!(f, "{path}: expected {}, found {}", self.expected, self.found)
    }
}

/// A reader that reads objects field by field and collects all problems.
pub(crate) struct EnvelopeReader {
    unknown: UnknownFieldPolicy,
    /// Actor that counts if the envelope names none.
    sender: Option<ActorId>,
    /// Set once a version is not supported.
    version: Option<Code>,
    problems: Vec<EnvelopeProblem>,
    more: usize,
    /// Number of unknown fields among the problems.
    refused: usize,
}

/// An object that is being read. Without a value it is absent, or its problem was already reported.
#[derive(Clone, Copy)]
pub(crate) struct EnvelopeObject<'d> {
    pub(crate) path: &'static str,
    pub(crate) value: Option<JsonValue<'d>>,
    pub(crate) known: &'static [&'static str],
}

/// Description of the actual value.
pub(crate) type ValueDescription = String;

impl EnvelopeReader {
    pub(crate) const fn new(unknown: UnknownFieldPolicy) -> Self {
        Self { unknown, sender: None, version: None, problems: Vec::new(), more: 0, refused: 0 }
    }

    /// Returns a reader for an envelope of this sender.
    pub(super) fn from(unknown: UnknownFieldPolicy, sender: Option<&ActorId>) -> Self {
        Self { sender: sender.cloned(), ..Self::new(unknown) }
    }

    /// Returns the parsed value if there are no problems.
    pub(super) fn finish<T>(self, read: Option<T>) -> Result<T, EnvelopeError> {
        match read {
            Some(read) if self.problems.is_empty() => Ok(read),
            Some(_) | None => Err(EnvelopeError::Fields {
                code: self.version.unwrap_or(Code::InvalidEnvelope),
                problems: self.problems,
                more: self.more,
                unknown: self.refused,
            }),
        }
    }

    /// Returns the problems, and the number of further ones.
    pub(crate) fn problems(self) -> (Vec<EnvelopeProblem>, usize) {
        (self.problems, self.more)
    }

    fn call(&mut self, root: JsonValue<'_>) -> Option<CallEnvelope> {
        if !root.is_object() {
            self.problem(String::new(), "an object", describe(root));
            return None;
        }
        let call = EnvelopeObject { path: "", value: Some(root), known: CALL };
        let contract_version = self.version(call, "contractVersion", ContractVersion::V1_1, "1.1");
        let request_id = self.required(call, "requestId", ID, id);
        let tool_call_id = self.optional(call, "toolCallId", ID, id);
        let tool_name = self.required(call, "toolName", ID, id);
        let tool_namespace = self.required(call, "toolNamespace", ID, id);
        let target = self.target(call);
        let payload = self.payload(call);
        let transport = self.transport(call);
        let control = self.control(call);
        let trace = self.trace(call);
        let unknown = self.unknown(call);
        Some(CallEnvelope {
            contract_version: contract_version?,
            request_id: request_id?,
            tool_call_id,
            tool_name: tool_name?,
            tool_namespace: tool_namespace?,
            target: target?,
            payload: payload?,
            transport,
            control,
            trace,
            unknown,
        })
    }

    pub(super) fn target(&mut self, call: EnvelopeObject<'_>) -> Option<CallerIdentity> {
        let target = self.required_object(call, "target", "target", TARGET);
        let agent_id = self.optional(target, "agentId", ID, id);
        let session_key = self.required(target, "sessionKey", ID, id);
        let actor_id = match self.sender.clone() {
            Some(sender) => self.optional(target, "actorId", ID, id).or(Some(sender)),
            None => self.required(target, "actorId", ID, id),
        };
        let target = CallerIdentity {
            agent_id,
            workspace_id: self.optional(target, "workspaceId", ID, id),
            correlation_id: self.optional(target, "correlationId", ID, id),
            tenant_id: self.optional(target, "tenantId", ID, id),
            turn_id: self.optional(target, "turnId", ID, id),
            model_id: self.optional(target, "modelId", ID, id),
            domain: self.optional(target, "domain", ID, id),
            unknown: self.unknown(target),
            session_key: session_key?,
            actor_id: actor_id?,
        };
        Some(target)
    }

    fn payload(&mut self, call: EnvelopeObject<'_>) -> Option<CallPayload> {
        let payload = self.required_object(call, "payload", "payload", PAYLOAD);
        let version = self.version(payload, "version", PayloadVersion::V1_0, "1.0");
        let params = self.required(payload, "params", "an object", |value| {
            if value.is_object() { Ok(RawJson::from_trusted(value.raw())) } else { Err(describe(value)) }
        });
        let idempotency_key = self.optional(payload, "idempotencyKey", ID, id);
        let hints = self.object(payload, "callHints", "payload.callHints", CALL_HINTS);
        let call_hints = CallHints {
            safety_critical: self.optional(hints, "safetyCritical", TRUTH, boolean).unwrap_or_default(),
            expected_retry_safe: self.optional(hints, "expectedRetrySafe", TRUTH, boolean),
            timeout_ms: self.optional(
                hints,
                "timeoutMs",
                "a whole number of milliseconds, at least 1",
                positive,
            ),
            unknown: self.unknown(hints),
        };
        let unknown = self.unknown(payload);
        Some(CallPayload { version: version?, params: params?, idempotency_key, call_hints, unknown })
    }

    fn transport(&mut self, call: EnvelopeObject<'_>) -> TransportOptions {
        let transport = self.object(call, "transport", "transport", TRANSPORT);
        let dedupe_mode = self.optional(
            transport,
            "dedupeMode",
            "\"enforced\", \"bestEffort\" or \"disabled\"",
            one_of(&[
                ("enforced", DedupeMode::Enforced),
                ("enabled", DedupeMode::Enforced),
                ("bestEffort", DedupeMode::BestEffort),
                ("disabled", DedupeMode::Disabled),
            ]),
        );
        let budget = self.object(transport, "retryBudget", "transport.retryBudget", RETRY_BUDGET);
        let retry_budget = RetryLimits {
            max_attempts: self.optional(budget, "maxAttempts", "a whole number, at least 1", |value| {
                // A number of attempts that does not fit is the largest one that does.
                positive(value).map(|count| u32::try_from(count).unwrap_or(u32::MAX))
            }),
            max_elapsed_ms: self.optional(budget, "maxElapsedMs", MILLISECONDS, integer),
            unknown: self.unknown(budget),
        };
        let circuit_breaker_hint = self.optional(
            transport,
            "circuitBreakerHint",
            "\"tool\", \"dependency\" or \"global\"",
            one_of(&[
                ("tool", BreakerHint::Tool),
                ("dependency", BreakerHint::Dependency),
                ("global", BreakerHint::Global),
            ]),
        );
        TransportOptions { dedupe_mode, retry_budget, circuit_breaker_hint, unknown: self.unknown(transport) }
    }

    fn control(&mut self, call: EnvelopeObject<'_>) -> CallControl {
        let control = self.object(call, "control", "control", CONTROL);
        CallControl {
            deadline_at_ms: self
                .optional(control, "deadlineAtMs", "milliseconds since the epoch, a whole number", integer)
                .map(Timestamp::from_millis),
            request_tags: self.tags(control),
            from_hook: self.optional(control, "fromHook", ID, text),
            unknown: self.unknown(control),
        }
    }

    pub(super) fn turn_control(&mut self, turn: EnvelopeObject<'_>) -> TurnControl {
        let control = self.object(turn, "control", "control", TURN_CONTROL);
        TurnControl {
            request_tags: self.tags(control),
            from_hook: self.optional(control, "fromHook", ID, text),
            unknown: self.unknown(control),
        }
    }

    fn tags(&mut self, control: EnvelopeObject<'_>) -> Vec<String> {
        let tags = self.optional(control, "requestTags", "an array of at most 64 texts", |value| {
            let items = value.items().ok_or_else(|| describe(value))?;
            let count = items.clone().count();
            if count > MAX_TAGS { Err(format!("{count} of them")) } else { Ok(items) }
        });
        let mut read = Vec::new();
        for (place, item) in tags.into_iter().flatten().enumerate() {
            match text(item) {
                Ok(tag) => read.push(tag),
                Err(found) => self.problem(format!("control.requestTags[{place}]"), ID, found),
            }
        }
        read
    }

    pub(super) fn trace(&mut self, call: EnvelopeObject<'_>) -> EnvelopeTrace {
        let trace = self.object(call, "trace", "trace", TRACE);
        EnvelopeTrace {
            traceparent: self.optional(trace, "traceparent", ID, text),
            baggage: self.baggage(trace),
            unknown: self.unknown(trace),
        }
    }

    fn baggage(&mut self, trace: EnvelopeObject<'_>) -> BTreeMap<String, String> {
        let expected = "an object of at most 64 texts and 8192 bytes";
        let members = self.optional(trace, "baggage", expected, |value| {
            let members = value.members().ok_or_else(|| describe(value))?;
            let count = members.clone().count();
            let bytes: usize = members
                .clone()
                .map(|(name, value)| name.len() + value.as_str().map_or(0, |text| text.len()))
                .sum();
            if count > MAX_BAGGAGE_ENTRIES {
                Err(format!("{count} of them"))
            } else if bytes > MAX_BAGGAGE_BYTES {
                Err(format!("{bytes} bytes"))
            } else {
                Ok(members)
            }
        });
        let mut read = BTreeMap::new();
        for (name, value) in members.into_iter().flatten() {
            match value.as_str() {
                Some(text) => {
                    read.insert(name.into_owned(), text.into_owned());
                }
                // Baggage is never shown, only the kind of its value.
                None => self.problem(join("trace.baggage", &shown(&name)), "a text", value.kind().describe()),
            }
        }
        read
    }

    pub(super) fn version<V>(
        &mut self,
        object: EnvelopeObject<'_>,
        name: &'static str,
        accepted: V,
        written: &'static str,
    ) -> Option<V> {
        let expected = format!("\"{written}\"");
        let given = self.required(object, name, expected.clone(), |value| {
            value.as_str().ok_or_else(|| describe(value))
        })?;
        if given == written {
            return Some(accepted);
        }
        self.version = Some(Code::UnsupportedVersion);
        self.problem(join(object.path, name), expected, quoted(&given));
        None
    }

    fn required_object<'d>(
        &mut self,
        parent: EnvelopeObject<'d>,
        name: &'static str,
        path: &'static str,
        known: &'static [&'static str],
    ) -> EnvelopeObject<'d> {
        let value = self.required(parent, name, "an object", object_value);
        EnvelopeObject { path, value, known }
    }

    fn object<'d>(
        &mut self,
        parent: EnvelopeObject<'d>,
        name: &'static str,
        path: &'static str,
        known: &'static [&'static str],
    ) -> EnvelopeObject<'d> {
        let value = self.optional(parent, name, "an object", object_value);
        EnvelopeObject { path, value, known }
    }

    pub(crate) fn required<'d, T>(
        &mut self,
        object: EnvelopeObject<'d>,
        name: &'static str,
        expected: impl Into<Cow<'static, str>>,
        read: impl FnOnce(JsonValue<'d>) -> Result<T, ValueDescription>,
    ) -> Option<T> {
        let parent = object.value?;
        let Some(value) = parent.get(name) else {
            let found = match find_similar_field(object, name) {
                Some(other) => format!("nothing (\"{}\" is spelled \"{name}\")", shown(&other)),
                None => "nothing".to_owned(),
            };
            self.problem(join(object.path, name), expected, found);
            return None;
        };
        self.read(object, name, value, expected, read)
    }

    /// Returns a field that may be absent. `null` counts as absent.
    pub(crate) fn optional<'d, T>(
        &mut self,
        object: EnvelopeObject<'d>,
        name: &'static str,
        expected: impl Into<Cow<'static, str>>,
        read: impl FnOnce(JsonValue<'d>) -> Result<T, ValueDescription>,
    ) -> Option<T> {
        let value = object.value?.get(name).filter(|value| !value.is_null())?;
        self.read(object, name, value, expected, read)
    }

    fn read<'d, T>(
        &mut self,
        object: EnvelopeObject<'d>,
        name: &'static str,
        value: JsonValue<'d>,
        expected: impl Into<Cow<'static, str>>,
        read: impl FnOnce(JsonValue<'d>) -> Result<T, ValueDescription>,
    ) -> Option<T> {
        match read(value) {
            Ok(value) => Some(value),
            Err(found) => {
                self.problem(join(object.path, name), expected, found);
                None
            }
        }
    }

    pub(crate) fn unknown(&mut self, object: EnvelopeObject<'_>) -> ExtraFields {
        let mut extra = ExtraFields::new();
        for (name, value) in object.value.and_then(JsonValue::members).into_iter().flatten() {
            if object.known.contains(&name.as_ref()) {
                continue;
            }
            // A caller that sends a key relies on it, so a key that would have no effect is an error.
            if is_alike(KEY_FIELD, &name) {
                self.refused += 1;
                let expected = format!("no idempotency key here; in a call it is \"payload.{KEY_FIELD}\"");
                // A key is never shown elsewhere either.
                self.problem(join(object.path, &shown(&name)), expected, "one".to_owned());
                continue;
            }
            match self.unknown {
                UnknownFieldPolicy::Keep => {
                    extra.insert(name.into_owned(), RawJson::from_trusted(value.raw()));
                }
                UnknownFieldPolicy::Refuse => {
                    let similar = object.known.iter().find(|known| is_alike(known, &name));
                    let expected = match similar {
                        Some(known) => format!("no such field; \"{known}\" may be meant"),
                        None => format!("no such field; there are {}", object.known.join(", ")),
                    };
                    self.refused += 1;
                    self.problem(join(object.path, &shown(&name)), expected, describe(value));
                }
            }
        }
        extra
    }

    pub(crate) fn problem(
        &mut self,
        path: String,
        expected: impl Into<Cow<'static, str>>,
        found: impl Into<String>,
    ) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(EnvelopeProblem { path, expected: expected.into(), found: found.into() });
        } else {
            self.more += 1;
        }
    }
}

pub(crate) fn id<T: TryFrom<String, Error = InvalidId>>(value: JsonValue<'_>) -> Result<T, ValueDescription> {
    let text = value.as_str().ok_or_else(|| describe(value))?;
    T::try_from(text.into_owned()).map_err(describe_invalid)
}

pub(crate) fn text(value: JsonValue<'_>) -> Result<String, ValueDescription> {
    let text = value.as_str().ok_or_else(|| describe(value))?;
    check_id(&text).map_err(describe_invalid)?;
    Ok(text.into_owned())
}

pub(crate) fn boolean(value: JsonValue<'_>) -> Result<bool, ValueDescription> {
    value.as_bool().ok_or_else(|| describe(value))
}

pub(crate) fn integer(value: JsonValue<'_>) -> Result<u64, ValueDescription> {
    value.as_u64().ok_or_else(|| describe(value))
}

fn positive(value: JsonValue<'_>) -> Result<u64, ValueDescription> {
    value.as_u64().filter(|number| *number > 0).ok_or_else(|| describe(value))
}

pub(crate) fn object_value(value: JsonValue<'_>) -> Result<JsonValue<'_>, ValueDescription> {
    if value.is_object() { Ok(value) } else { Err(describe(value)) }
}

pub(crate) fn one_of<'d, T: Copy>(
    choices: &[(&str, T)],
) -> impl FnOnce(JsonValue<'d>) -> Result<T, ValueDescription> {
    move |value| {
        let text = value.as_str().ok_or_else(|| describe(value))?;
        choices
            .iter()
            .find(|(known, _)| *known == text)
            .map(|(_, choice)| *choice)
            .ok_or_else(|| describe(value))
    }
}

fn describe_invalid(invalid: InvalidId) -> ValueDescription {
    match invalid {
        InvalidId::Empty => "an empty text".to_owned(),
        InvalidId::TooLong { length } => format!("{length} characters"),
        InvalidId::ControlCharacter => "a control character in it".to_owned(),
    }
}

/// Describes a value in words. Of containers, only their kind is shown.
pub(crate) fn describe(value: JsonValue<'_>) -> ValueDescription {
    match value.kind() {
        JsonKind::Null => "null".to_owned(),
        JsonKind::Bool(truth) => truth.to_string(),
        JsonKind::Number(digits) => format!("the number {}", steadfast_redact::excerpt(digits, MAX_SHOWN)),
        JsonKind::String(text) => quoted(&text),
        kind @ (JsonKind::Array(_) | JsonKind::Object(_)) => kind.describe().to_owned(),
    }
}

fn quoted(text: &str) -> String {
    format!("the text {:?}", shown(text))
}

/// Returns the part of the caller's text that may appear in a message.
fn shown(text: &str) -> String {
    steadfast_redact::excerpt(text, MAX_SHOWN)
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Returns a field with nearly the name of a missing one.
fn find_similar_field<'d>(object: EnvelopeObject<'d>, name: &str) -> Option<Cow<'d, str>> {
    object.value?.members()?.map(|(other, _)| other).find(|other| is_alike(name, other))
}

/// Returns true if two names differ only in case, underscores and dashes.
fn is_alike(known: &str, other: &str) -> bool {
    fn letters(name: &str) -> impl Iterator<Item = u8> {
        name.bytes().filter(|byte| !matches!(byte, b'_' | b'-')).map(|byte| byte.to_ascii_lowercase())
    }
    letters(known).eq(letters(other))
}

/// The field of the payload with the idempotency key.
const KEY_FIELD: &str = "idempotencyKey";
/// The maximum number of listed problems. The others are counted.
const MAX_PROBLEMS: usize = 32;
/// The maximum bytes of the caller's text in one problem.
const MAX_SHOWN: usize = 48;

pub(crate) const ID: &str = "a text of 1 to 256 characters without control characters";
pub(crate) const TRUTH: &str = "true or false";
pub(crate) const MILLISECONDS: &str = "a whole number of milliseconds";

const CALL: &[&str] = &[
    "contractVersion",
    "requestId",
    "toolCallId",
    "toolName",
    "toolNamespace",
    "target",
    "payload",
    "transport",
    "control",
    "trace",
];
const TARGET: &[&str] = &[
    "agentId",
    "sessionKey",
    "actorId",
    "workspaceId",
    "correlationId",
    "tenantId",
    "turnId",
    "modelId",
    "domain",
];
const PAYLOAD: &[&str] = &["version", "params", "idempotencyKey", "callHints"];
const CALL_HINTS: &[&str] = &["safetyCritical", "expectedRetrySafe", "timeoutMs"];
const TRANSPORT: &[&str] = &["dedupeMode", "retryBudget", "circuitBreakerHint"];
const RETRY_BUDGET: &[&str] = &["maxAttempts", "maxElapsedMs"];
const CONTROL: &[&str] = &["deadlineAtMs", "requestTags", "fromHook"];
const TURN_CONTROL: &[&str] = &["requestTags", "fromHook"];
const TRACE: &[&str] = &["traceparent", "baggage"];
