//! Records of failed calls, and detection of failures in successful results.
//!
//! A record contains everything needed to judge and explain a failure, and nothing that could reveal a secret.
//! Arguments are present only as their digest and as a summary that was redacted before.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use steadfast_json::{JsonDocument, JsonKind, JsonLimits, JsonValue, RawJson};

use super::text::cut;
use super::{AttemptFault, FaultSource, Overrides, Severity, classify};
use crate::Timestamp;
use crate::id::{Digest, Domain, ModelId, RequestId, SessionKey, TenantId, ToolCallId, ToolRef, TurnId};
use crate::output::ToolOutput;
use crate::trust::Signature;

/// The maximum length of a stored message, in bytes.
const LONGEST_MESSAGE: usize = 1024;
/// The maximum length of an error type, in bytes.
const LONGEST_TYPE: usize = 128;

/// One failed call of a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FailureRecord {
    /// Tool that failed.
    pub tool: ToolRef,
    /// Time of the failure.
    #[serde(rename = "atMs")]
    pub at: Timestamp,
    /// Severity of the failure.
    pub severity: Severity,
    /// Class of the error as its author named it, or else the rule that classified it.
    pub error_type: String,
    /// Message without secrets.
    pub message: String,
    /// HTTP status, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_status: Option<u16>,
    /// True if the failure could pass by itself.
    pub transient: bool,
    /// Number of attempts after the first one.
    #[serde(default)]
    pub retries: u32,
    /// Digest of the arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments_digest: Option<Digest>,
    /// Targets of the call: its command, folder or URL, without secrets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub argument_summary: BTreeMap<String, String>,
    /// Domain that the call depended on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<Domain>,
    /// Service that a report named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Domain>,
    /// Id of the call. Absent if a host reported the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// Id that the model gave to the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<ToolCallId>,
    /// Tenant of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    /// Session of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionKey>,
    /// Turn of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// Model that requested the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelId>,
    /// Further context from the host, without secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<RawJson>,
}

/// The details of a failed call.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "as in the record that is made of it")]
pub struct FailureDetails<'a> {
    pub severity: Severity,
    /// Used as the error type if the message names none.
    pub rule: &'a str,
    /// Message, not redacted.
    pub message: &'a str,
    pub http_status: Option<u16>,
    pub transient: bool,
}

impl FailureRecord {
    /// Returns a record with the facts that are known of every failure. The caller adds the others.
    pub fn new(tool: ToolRef, trouble: &FailureDetails<'_>, at: Timestamp) -> Self {
        Self {
            tool,
            at,
            severity: trouble.severity,
            error_type: cut(error_class(trouble.message).unwrap_or(trouble.rule), LONGEST_TYPE).to_owned(),
            message: steadfast_redact::excerpt(trouble.message, LONGEST_MESSAGE),
            http_status: trouble.http_status,
            transient: trouble.transient,
            retries: 0,
            arguments_digest: None,
            argument_summary: BTreeMap::new(),
            domain: None,
            service: None,
            request_id: None,
            tool_call_id: None,
            tenant: None,
            session: None,
            turn: None,
            model: None,
            context: None,
        }
    }
}

/// Returns the parts of a signature that come from the arguments, without secrets.
pub fn argument_summary(signature: &Signature) -> BTreeMap<String, String> {
    let parts = signature.0.split('|').skip(1).filter_map(|part| part.split_once('='));
    parts.map(|(name, value)| (name.to_owned(), steadfast_redact::text(value).into_owned())).collect()
}

/// Returns the name before the first colon, if it looks like the class of an exception.
fn error_class(message: &str) -> Option<&str> {
    let (name, _) = cut(message, LONGEST_TYPE).split_once(':')?;
    let word =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.".contains(&byte));
    let class = ["Error", "Exception", "Fault", "Failure"].iter().any(|end| name.ends_with(end));
    (word && class && name != "Error").then_some(name)
}

/// A failure that a successful result reports in its structure. It affects trust and scores only: the caller still gets
/// the result as a success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetectedFailure {
    /// Class of the error, as the result names it.
    pub error_type: String,
    /// Message of the error.
    pub message: String,
    /// HTTP status that the result names.
    pub http_status: Option<u16>,
    /// Severity of the failure.
    pub severity: Severity,
}

/// Returns the failure that a result reports in its structure: a meaningful `error`, a status of 400 or more, or
/// `isError`. Many tools set `error` to null, false, zero or an empty value if there was none.
pub fn detect(result: JsonValue<'_>, overrides: &Overrides, now: Timestamp) -> Option<DetectedFailure> {
    let found = stated(result).or_else(|| stated(result.get("structuredContent")?))?;
    let source = match found.http_status {
        Some(status) => FaultSource::Http { status },
        None => FaultSource::Tool,
    };
    let fault = AttemptFault::new(source, found.message);
    let severity = classify(&fault, overrides, now).severity;
    Some(DetectedFailure {
        error_type: found.error_type,
        message: fault.message,
        http_status: found.http_status,
        severity,
    })
}

/// Returns the severity of the failure that an output reports in its structure, if it reports one. Most outputs have no
/// member of such a name, and are not parsed.
pub fn detect_severity(output: &ToolOutput, overrides: &Overrides, now: Timestamp) -> Option<Severity> {
    Some(detected_in(output, overrides, now)?.severity)
}

/// Returns the failure that an output reports in its structure.
pub(crate) fn detected_in(
    output: &ToolOutput,
    overrides: &Overrides,
    now: Timestamp,
) -> Option<DetectedFailure> {
    let text = output.content.as_str();
    // `error`, `isError`, and the four spellings of a status.
    if !["rror\"", "tatus"].iter().any(|part| text.contains(part)) {
        return None;
    }
    let document = JsonDocument::parse(text.as_bytes(), JsonLimits::ENVELOPE).ok()?;
    detect(document.root(), overrides, now)
}

/// The failure fields of a result.
#[derive(Debug)]
pub(super) struct StatedFailure {
    error_type: String,
    pub(super) message: String,
    pub(super) http_status: Option<u16>,
}

pub(super) fn stated(result: JsonValue<'_>) -> Option<StatedFailure> {
    let JsonKind::Object(_) = result.kind() else { return None };
    let http_status = status_of(result);
    let named = |otherwise: &str| {
        let given = result.get("error_type").and_then(JsonValue::as_str);
        cut(given.as_deref().unwrap_or(otherwise), LONGEST_TYPE).to_owned()
    };
    if let Some(message) = result.get("error").and_then(error_text) {
        let error_type = named(error_class(&message).unwrap_or("unknown"));
        let http_status = http_status.or_else(|| status_of(result.get("error")?));
        return Some(StatedFailure { error_type, message, http_status });
    }
    let is_error = result.get("isError").is_some_and(|flag| matches!(flag.kind(), JsonKind::Bool(true)));
    if http_status.is_none() && !is_error {
        return None;
    }
    let message =
        ["message", "body", "content"].into_iter().find_map(|name| result.get(name).and_then(words));
    let error_type = named(if is_error { "is_error" } else { "http_error" });
    Some(StatedFailure { error_type, message: message.unwrap_or_default(), http_status })
}

/// Returns a status of 400 or more, given as a number or as its digits.
fn status_of(object: JsonValue<'_>) -> Option<u16> {
    ["http_status", "status_code", "httpStatus", "statusCode"].into_iter().find_map(|name| {
        let status: f64 = match object.get(name)?.kind() {
            JsonKind::Number(digits) => digits.parse().ok()?,
            JsonKind::String(digits) => digits.trim().parse().ok()?,
            JsonKind::Null | JsonKind::Bool(_) | JsonKind::Array(_) | JsonKind::Object(_) => return None,
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked")]
        (400.0..1000.0).contains(&status).then_some(status as u16)
    })
}

/// Returns the text of an `error` member, if it reports an error.
fn error_text(error: JsonValue<'_>) -> Option<String> {
    let text = match error.kind() {
        JsonKind::Null | JsonKind::Bool(false) => return None,
        JsonKind::Bool(true) => "unspecified error".to_owned(),
        JsonKind::Number(digits) if digits.parse() == Ok(0.0) => return None,
        JsonKind::Number(digits) => format!("error {digits}"),
        JsonKind::String(text) => text.trim().to_owned(),
        JsonKind::Array(_) => words(error)?,
        JsonKind::Object(mut members) => {
            members.next()?;
            words(error)?
        }
    };
    (!text.is_empty()).then(|| cut(&text, LONGEST_MESSAGE).to_owned())
}

/// Returns the text of a value: a string, the message of an object, or the first text in a list of them.
fn words(value: JsonValue<'_>) -> Option<String> {
    let text = match value.kind() {
        JsonKind::String(text) => text.into_owned(),
        JsonKind::Array(mut items) => items.find_map(|item| match item.kind() {
            JsonKind::String(text) => Some(text.into_owned()),
            JsonKind::Object(_) => message_of(item),
            JsonKind::Null | JsonKind::Bool(_) | JsonKind::Number(_) | JsonKind::Array(_) => None,
        })?,
        JsonKind::Object(_) => message_of(value).unwrap_or_else(|| value.raw().to_owned()),
        JsonKind::Null | JsonKind::Bool(_) | JsonKind::Number(_) => return None,
    };
    Some(cut(text.trim(), LONGEST_MESSAGE).to_owned())
}

fn message_of(object: JsonValue<'_>) -> Option<String> {
    ["message", "text", "error", "detail", "description"]
        .into_iter()
        .find_map(|name| object.get(name).and_then(JsonValue::as_str))
        .map(|text| text.into_owned())
}

#[cfg(test)]
mod tests {
    use steadfast_json::{JsonDocument, JsonLimits};

    use super::*;
    use crate::id::{Namespace, ToolName};

    fn detected(result: &str) -> Option<DetectedFailure> {
        let document = JsonDocument::parse(result.as_bytes(), JsonLimits::ENVELOPE).unwrap();
        detect(document.root(), &Overrides::default(), Timestamp::ZERO)
    }

    #[test]
    fn the_class_of_an_error_is_one_word() {
        for (message, class) in [
            ("ValueError: bad", Some("ValueError")),
            ("a.b_c.IOException: bad", Some("a.b_c.IOException")),
            ("Error: bad", None),
            ("hello: bad", None),
            ("no such Error: bad", None),
            (": bad", None),
            ("ValueError", None),
        ] {
            assert_eq!(error_class(message), class, "{message}");
        }
    }

    #[test]
    fn an_output_that_reports_a_failure_is_detected() {
        use steadfast_json::RawJson;
        let concern_of = |text: &'static str| {
            let output = ToolOutput { content: RawJson::from_trusted(text), metadata: None };
            detect_severity(&output, &Overrides::default(), Timestamp::ZERO)
        };
        assert_eq!(concern_of(r#"{"statusCode":404}"#), Some(Severity::NotFound));
        assert!(concern_of(r#"{"error":"no such file"}"#).is_some());
        for fine in [r#"{"statusCode":200}"#, r#"{"error":null}"#, r#"{"paid":true}"#, r#""status 404""#] {
            assert_eq!(concern_of(fine), None, "{fine}");
        }
    }

    fn record(message: &str) -> FailureRecord {
        let tool = ToolRef { namespace: Namespace::new("svc").unwrap(), tool: ToolName::new("get").unwrap() };
        let trouble = FailureDetails {
            severity: Severity::ServerError,
            rule: "http.503",
            message,
            http_status: Some(503),
            transient: true,
        };
        FailureRecord::new(tool, &trouble, Timestamp::from_millis(5))
    }

    #[test]
    fn rp_1_a_record_names_the_error_and_keeps_no_secret() {
        let named = record("UpstreamError: try later, Authorization: Bearer abcdefghijklmnop1234");
        assert_eq!((named.error_type.as_str(), named.http_status), ("UpstreamError", Some(503)));
        assert!(named.message.starts_with("UpstreamError: try later"), "{}", named.message);
        assert!(!named.message.contains("abcdefghijklmnop1234"), "{}", named.message);
        assert_eq!(record("try later").error_type, "http.503");
        let written = serde_json::to_string(&named).unwrap();
        assert_eq!(serde_json::from_str::<FailureRecord>(&written).unwrap(), named);
    }

    #[test]
    fn rp_1_a_record_is_bounded_for_every_message() {
        let long = record(&"ä".repeat(100_000));
        assert!(serde_json::to_string(&long).unwrap().len() < 1500);
    }

    #[test]
    fn rp_1_the_target_of_a_call_is_recorded_without_its_arguments() {
        let summary = argument_summary(&Signature("svc/get|command=git|url=host.example/x".into()));
        let told: Vec<_> = summary.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(told, [("command", "git"), ("url", "host.example/x")]);
        assert!(argument_summary(&Signature("svc/get".into())).is_empty());
    }

    #[test]
    fn rp_10_failures_are_found_in_the_structure_of_a_result() {
        for (result, error_type, message, status, severity) in [
            (r#"{"error":"no such file"}"#, "unknown", "no such file", None, Severity::NotFound),
            (r#"{"error":"KeyError: 'x'"}"#, "KeyError", "KeyError: 'x'", None, Severity::Informational),
            (r#"{"error":"odd","error_type":"Odd"}"#, "Odd", "odd", None, Severity::Informational),
            (r#"{"error":"no","http_status":403}"#, "unknown", "no", Some(403), Severity::Permission),
            (
                r#"{"error":{"message":"slow","statusCode":429}}"#,
                "unknown",
                "slow",
                Some(429),
                Severity::Transient,
            ),
            (r#"{"error":{"code":7}}"#, "unknown", r#"{"code":7}"#, None, Severity::Informational),
            (r#"{"error":true}"#, "unknown", "unspecified error", None, Severity::Informational),
            (r#"{"error":5}"#, "unknown", "error 5", None, Severity::Informational),
            (r#"{"error":["timed out"]}"#, "unknown", "timed out", None, Severity::Timeout),
            (r#"{"status_code":503,"body":"down"}"#, "http_error", "down", Some(503), Severity::ServerError),
            (r#"{"status_code":"404"}"#, "http_error", "", Some(404), Severity::NotFound),
            (r#"{"status_code":404.0}"#, "http_error", "", Some(404), Severity::NotFound),
            (
                r#"{"isError":true,"content":[{"type":"text","text":"Permission denied"}]}"#,
                "is_error",
                "Permission denied",
                None,
                Severity::Permission,
            ),
            (
                r#"{"content":[],"structuredContent":{"error":"Access denied"}}"#,
                "unknown",
                "Access denied",
                None,
                Severity::Permission,
            ),
        ] {
            let found = detected(result).unwrap_or_else(|| panic!("nothing found in {result}"));
            let expected = (error_type, message, status, severity);
            assert_eq!(
                (found.error_type.as_str(), found.message.as_str(), found.http_status, found.severity),
                expected,
                "{result}"
            );
        }
    }

    #[test]
    fn rp_10_an_error_of_nothing_is_no_failure() {
        for result in [
            r#"{"error":null}"#,
            r#"{"error":false}"#,
            r#"{"error":""}"#,
            r#"{"error":"  "}"#,
            r#"{"error":0}"#,
            r#"{"error":{}}"#,
            r#"{"error":[]}"#,
            r#"{"error":null,"status_code":200}"#,
            r#"{"status_code":"ok"}"#,
            r#"{"status_code":"399"}"#,
            r#"{"status_code":1e999}"#,
            r#"{"status_code":null,"isError":false}"#,
            r#"{"isError":"true"}"#,
            r#"{"content":"error: timed out"}"#,
            r#"[{"error":"x"}]"#,
            r#""error""#,
            "{}",
        ] {
            assert_eq!(detected(result), None, "{result}");
        }
    }
}
