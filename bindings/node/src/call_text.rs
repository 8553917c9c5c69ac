//! Calls as JSON: an object with the fields of `Call` in `index.d.ts`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use steadfast::Timestamp;
use steadfast::call::envelope::{
    CallControl, CallEnvelope, CallHints, CallPayload, CallerIdentity, ContractVersion, EnvelopeTrace,
    ExtraFields, PayloadVersion, RetryLimits, TransportOptions,
};
use steadfast::call::id::{
    CorrelationId, InvalidId, RequestId,
};
use steadfast::call::json::{JsonDocument, JsonLimits, JsonValue, RawJson};
use steadfast::call::{CallId, CallOptions, EqualCallPolicy, ToolInfo};
use steadfast_core::approval::ApprovalChannel;
use steadfast_core::policy::AnnotationHints;

use crate::environment::{Environment, Recipient};
use crate::failure::Failure;
use crate::prompts::HostPrompter;

/// The handling of arguments that are not an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArgumentForm {
    /// They are an error of the program.
    Object,
    /// They are what the model sent, and the host refused them.
    Anything,
}

/// Reads a call.
pub(crate) fn read(text: &str, form: ArgumentForm) -> Result<CallEnvelope, Failure> {
    let (document, mut reader) = open(text, "the call")?;
    let root = document.root();
    reader.refuse_unknown(root, &[TARGET_FIELDS, CALL_FIELDS]);
    let tool = reader.text(root, "tool").unwrap_or_default();
    let namespace = reader.text(root, "namespace");
    let (namespace, tool) = match (&namespace, tool.split_once('/')) {
        (Some(namespace), _) => (namespace.as_ref(), tool.as_ref()),
        (None, Some(parts)) => parts,
        (None, None) => {
            reader.problem("tool", "must be \"namespace/name\", or namespace must be given");
            ("", "")
        }
    };
    let tool_name = reader.made("tool", tool.to_owned());
    let tool_namespace = reader.made("namespace", namespace.to_owned());
    let target = reader.target(root);
    let params = reader.arguments(root, form);
    let idempotency_key = reader.id(root, "key");
    let call_hints = CallHints {
        safety_critical: reader.boolean(root, "safetyCritical").unwrap_or_default(),
        expected_retry_safe: reader.boolean(root, "retrySafe"),
        timeout_ms: reader.positive(root, "timeoutMs"),
        unknown: ExtraFields::new(),
    };
    let max_attempts = reader.positive(root, "maxAttempts");
    let control = CallControl {
        deadline_at_ms: reader.number(root, "deadlineAtMs").map(Timestamp::from_millis),
        request_tags: reader.tags(root),
        from_hook: None,
        unknown: ExtraFields::new(),
    };
    let tool_call_id = reader.id(root, "callId");
    let trace = reader.trace(root);
    let request_id = RequestId::new(next_request()).ok();
    match (reader.finish(), request_id, tool_name, tool_namespace, target, params) {
        (Ok(()), Some(request_id), Some(tool_name), Some(tool_namespace), Some(target), Some(params)) => {
            Ok(CallEnvelope {
                contract_version: ContractVersion::V1_1,
                request_id,
                tool_call_id,
                tool_name,
                tool_namespace,
                target,
                payload: CallPayload {
                    version: PayloadVersion::V1_0,
                    params,
                    idempotency_key,
                    call_hints,
                    unknown: ExtraFields::new(),
                },
                transport: TransportOptions {
                    retry_budget: RetryLimits {
                        max_attempts: max_attempts.map(|most| u32::try_from(most).unwrap_or(u32::MAX)),
                        ..RetryLimits::default()
                    },
                    ..TransportOptions::default()
                },
                control,
                trace,
                unknown: ExtraFields::new(),
            })
        }
        (Err(failure), ..) => Err(failure),
        (Ok(()), ..) => Err(Failure::invalid(INVALID, "the call cannot be read")),
    }
}

/// The caller of a turn.
pub(crate) struct TurnCaller {
    pub(crate) target: CallerIdentity,
    pub(crate) tags: Vec<String>,
    pub(crate) trace: EnvelopeTrace,
}

/// Reads the options of a turn.
pub(crate) fn read_turn(text: &str) -> Result<TurnCaller, Failure> {
    let (document, mut reader) = open(text, "the options of the turn")?;
    let root = document.root();
    reader.refuse_unknown(root, &[TARGET_FIELDS]);
    let target = reader.target(root);
    let (tags, trace) = (reader.tags(root), reader.trace(root));
    reader.finish()?;
    let target = target.ok_or_else(|| Failure::invalid(INVALID, "the options of the turn cannot be read"))?;
    Ok(TurnCaller { target, tags, trace })
}

const INVALID: &str = "invalid_envelope";

const TARGET_FIELDS: &[&str] = &[
    "session", "turn", "model", "agent", "actor", "tenant", "workspace", "correlation", "domain", "tags",
    "traceparent", "baggage",
];
const CALL_FIELDS: &[&str] = &[
    "tool", "namespace", "args", "key", "callId", "timeoutMs", "deadlineAtMs", "maxAttempts", "retrySafe",
    "safetyCritical",
];

fn open<'t>(text: &'t str, subject: &str) -> Result<(JsonDocument<'t>, FieldReader), Failure> {
    let document = JsonDocument::parse(text.as_bytes(), JsonLimits::PARAMS)
        .map_err(|error| Failure::invalid(INVALID, format!("{subject} cannot be read: {error}")))?;
    if !document.root().is_object() {
        return Err(Failure::invalid(INVALID, format!("{subject} must be an object")));
    }
    Ok((document, FieldReader::default()))
}

/// Reads fields and collects what is wrong with them.
#[derive(Default)]
struct FieldReader {
    problems: Vec<String>,
    code: Option<&'static str>,
}

impl FieldReader {
    fn problem(&mut self, field: &str, problem: impl AsRef<str>) {
        self.problems.push(format!("{field} {}", problem.as_ref()));
    }

    fn finish(self) -> Result<(), Failure> {
        if self.problems.is_empty() {
            return Ok(());
        }
        let message = format!("the call is not valid: {}", self.problems.join("; "));
        Err(Failure::invalid(self.code.unwrap_or(INVALID), message).with_problems(self.problems))
    }

    fn refuse_unknown(&mut self, root: JsonValue<'_>, known: &[&[&str]]) {
        for (name, _) in root.members().into_iter().flatten() {
            if !known.iter().any(|names| names.contains(&name.as_ref())) {
                let name = steadfast::call::redact::excerpt(&name, LONGEST_NAME);
                self.problem(&name, "is not a field of a call");
            }
        }
    }

    fn text<'d>(&mut self, root: JsonValue<'d>, field: &str) -> Option<Cow<'d, str>> {
        let value = root.get(field).filter(|value| !value.is_null())?;
        let text = value.as_str();
        if text.is_none() {
            self.problem(field, "must be a text");
        }
        text
    }

    fn made<T: TryFrom<String, Error = InvalidId>>(&mut self, field: &str, text: String) -> Option<T> {
        T::try_from(text).map_err(|why| self.problem(field, why.to_string())).ok()
    }

    fn id<T: TryFrom<String, Error = InvalidId>>(&mut self, root: JsonValue<'_>, field: &str) -> Option<T> {
        let text = self.text(root, field)?;
        self.made(field, text.into_owned())
    }

    fn boolean(&mut self, root: JsonValue<'_>, field: &str) -> Option<bool> {
        let value = root.get(field).filter(|value| !value.is_null())?;
        let truth = value.as_bool();
        if truth.is_none() {
            self.problem(field, "must be true or false");
        }
        truth
    }

    fn number(&mut self, root: JsonValue<'_>, field: &str) -> Option<u64> {
        let value = root.get(field).filter(|value| !value.is_null())?;
        let number = value.as_u64();
        if number.is_none() {
            self.problem(field, "must be a whole number");
        }
        number
    }

    fn positive(&mut self, root: JsonValue<'_>, field: &str) -> Option<u64> {
        let number = self.number(root, field)?;
        if number == 0 {
            self.problem(field, "must be at least 1");
            return None;
        }
        Some(number)
    }

    fn target(&mut self, root: JsonValue<'_>) -> Option<CallerIdentity> {
        let usual = || "default".to_owned();
        let session = self.text(root, "session").map_or_else(usual, Cow::into_owned);
        let actor = self.text(root, "actor").map_or_else(usual, Cow::into_owned);
        Some(CallerIdentity {
            agent_id: self.id(root, "agent"),
            session_key: self.made("session", session)?,
            actor_id: self.made("actor", actor)?,
            workspace_id: self.id(root, "workspace"),
            correlation_id: self.id(root, "correlation"),
            tenant_id: self.id(root, "tenant"),
            turn_id: self.id(root, "turn"),
            model_id: self.id(root, "model"),
            domain: self.id(root, "domain"),
            unknown: ExtraFields::new(),
        })
    }

    fn arguments(&mut self, root: JsonValue<'_>, form: ArgumentForm) -> Option<RawJson> {
        let Some(value) = root.get("args").filter(|value| !value.is_null()) else {
            return Some(RawJson::from_trusted("{}"));
        };
        match (value.is_object(), form) {
            (true, _) => Some(RawJson::from_trusted(value.raw())),
            (false, ArgumentForm::Anything) => {
                Some(RawJson::from_trusted(format!("{{\"$arguments\":{}}}", value.raw())))
            }
            (false, ArgumentForm::Object) => {
                self.code = Some("invalid_arguments");
                self.problem("args", "must be an object");
                None
            }
        }
    }

    fn tags(&mut self, root: JsonValue<'_>) -> Vec<String> {
        let Some(value) = root.get("tags").filter(|value| !value.is_null()) else { return Vec::new() };
        let tags: Option<Vec<Cow<'_, str>>> =
            value.items().and_then(|items| items.map(JsonValue::as_str).collect());
        match tags {
            Some(tags) if tags.len() <= MOST => {
                let tag = |tag: Cow<'_, str>| self.made::<CorrelationId>("tags", tag.into_owned());
                tags.into_iter().filter_map(tag).map(String::from).collect()
            }
            Some(_) | None => {
                self.problem("tags", "must be an array of at most 64 texts");
                Vec::new()
            }
        }
    }

    fn trace(&mut self, root: JsonValue<'_>) -> EnvelopeTrace {
        let traceparent: Option<CorrelationId> = self.id(root, "traceparent");
        EnvelopeTrace {
            traceparent: traceparent.map(String::from),
            baggage: self.baggage(root),
            unknown: ExtraFields::new(),
        }
    }

    fn baggage(&mut self, root: JsonValue<'_>) -> BTreeMap<String, String> {
        let Some(value) = root.get("baggage").filter(|value| !value.is_null()) else {
            return BTreeMap::new();
        };
        let entries: Option<BTreeMap<String, String>> = value.members().and_then(|members| {
            members.map(|(name, value)| Some((name.into_owned(), value.as_str()?.into_owned()))).collect()
        });
        let size = |entries: &BTreeMap<String, String>| -> usize {
            entries.iter().map(|(name, value)| name.len() + value.len()).sum()
        };
        match entries {
            Some(entries) if entries.len() <= MOST && size(&entries) <= LONGEST_BAGGAGE => entries,
            Some(_) | None => {
                self.problem("baggage", "must be an object of at most 64 texts and 8192 bytes");
                BTreeMap::new()
            }
        }
    }
}

/// The limits of the envelope for tags and baggage.
const MOST: usize = 64;
const LONGEST_BAGGAGE: usize = 8192;
/// Maximum length of an unknown name in a message.
const LONGEST_NAME: usize = 48;

/// Returns a request id that is unique in this process.
fn next_request() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("node-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The options of a call as bits, which `lib/options.cjs` sets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallFlags(pub(crate) u32);

impl CallFlags {
    const CANNOT_REPEAT: u32 = 1 << 6;
    const WAIT_FOR_APPROVAL: u32 = 1 << 7;
    const ASK_FOR_APPROVAL: u32 = 1 << 8;
    const CALL_ID_OF_ACTOR: u32 = 1 << 9;
    const JOIN_EQUAL_CALLS: u32 = 1 << 10;
    const KEEPS_RESULT: u32 = 1 << 11;

    fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    /// Two bits: unknown, true, false.
    fn hint(self, place: u32) -> Option<bool> {
        match (self.0 >> place) & 0b11 {
            1 => Some(true),
            2 => Some(false),
            _ => None,
        }
    }

    pub(crate) fn annotations(self) -> AnnotationHints {
        AnnotationHints { read_only: self.hint(0), destructive: self.hint(2), idempotent: self.hint(4) }
    }

    /// Returns true if the host cannot run the tool again.
    pub(crate) fn cannot_repeat(self) -> bool {
        self.has(Self::CANNOT_REPEAT)
    }

    /// Returns true if JavaScript keeps the result of its function, so that it need not be sent back.
    pub(crate) fn keeps_result(self) -> bool {
        self.has(Self::KEEPS_RESULT)
    }

    pub(crate) fn equal_calls(self) -> EqualCallPolicy {
        match self.has(Self::JOIN_EQUAL_CALLS) {
            true => EqualCallPolicy::Joined,
            false => EqualCallPolicy::Separate,
        }
    }

    /// Returns true if approval may take as long as a user or an operator needs.
    pub(crate) fn channel(self) -> ApprovalChannel {
        match self.has(Self::WAIT_FOR_APPROVAL | Self::ASK_FOR_APPROVAL) {
            true => ApprovalChannel::Interactive,
            false => ApprovalChannel::Headless,
        }
    }
}

/// Returns the description of a tool.
pub(crate) fn tool_info(annotations: AnnotationHints, schema: Option<String>) -> Option<Arc<ToolInfo>> {
    if schema.is_none() && annotations == AnnotationHints::default() {
        return None;
    }
    let input_schema = schema.map(RawJson::from_trusted);
    Some(Arc::new(ToolInfo { annotations, input_schema }))
}

/// Returns the options of a call.
pub(crate) fn options(
    environment: &Arc<Environment>,
    to: Recipient,
    envelope: &CallEnvelope,
    flags: CallFlags,
    schema: Option<String>,
) -> CallOptions {
    let call_id = envelope.tool_call_id.clone().map(|id| match flags.has(CallFlags::CALL_ID_OF_ACTOR) {
        true => CallId::Unique(id),
        false => CallId::InSession(id),
    });
    let mut options = CallOptions {
        channel: flags.channel(),
        tool: tool_info(flags.annotations(), schema),
        equal_calls: flags.equal_calls(),
        call_id,
        ..CallOptions::default()
    };
    if flags.has(CallFlags::ASK_FOR_APPROVAL) {
        options.prompter = Some(Arc::new(HostPrompter { environment: environment.clone(), to }));
    }
    options
}
