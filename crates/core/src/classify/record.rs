//! Records of failed calls, and detection of failures in successful results.
//!
//! A record contains everything needed to judge and explain a failure, and nothing that could reveal a secret.
//! Arguments are present only as their digest and as a summary that was redacted before.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use steadfast_json::{JsonDocument, JsonLimits, JsonValue, RawJson};

use super::failure_fields::{self, LONGEST_MESSAGE, LONGEST_TYPE, error_class};
use super::signature::Signature;
use super::{AttemptFault, FaultSource, Overrides, Severity, classify, cut};
use crate::Timestamp;
use crate::id::{Digest, Domain, ModelId, RequestId, SessionKey, TenantId, ToolCallId, ToolRef, TurnId};
use crate::output::ToolOutput;

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
    let found = failure_fields::failure_in(result)
        .or_else(|| failure_fields::failure_in(result.get("structuredContent")?))?;
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
        let actual: Vec<_> = summary.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(actual, [("command", "git"), ("url", "host.example/x")]);
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
    fn rp_10_an_empty_error_is_not_a_failure() {
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
