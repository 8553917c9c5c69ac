//! Records of failed calls, and failures that hide in successful results.
//!
//! A record keeps what is needed to judge and to explain, and nothing that could give a secret away:
//! arguments are present only as their digest and as a summary that was redacted before it came here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::text::cut;
use super::{Fault, Overrides, Severity, Source, classify};
use crate::Timestamp;
use crate::id::{Digest, Domain, ModelId, RequestId, SessionKey, TenantId, ToolCallId, ToolRef, TurnId};
use crate::json::{Document, Kind, Limits, Value};
use crate::output::{Output, RawJson};
use crate::redact;
use crate::trust::Signature;

/// The longest message that a record keeps, in bytes.
const LONGEST_MESSAGE: usize = 1024;
/// The longest type of an error, in bytes.
const LONGEST_TYPE: usize = 128;

/// One failed call of a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FailureRecord {
    /// The tool that failed.
    pub tool: ToolRef,
    /// When it failed.
    #[serde(rename = "atMs")]
    pub at: Timestamp,
    /// How bad it is.
    pub severity: Severity,
    /// The class of the error as its author named it, else the rule that classified it.
    pub error_type: String,
    /// What was said, without secrets.
    pub message: String,
    /// The HTTP status, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_status: Option<u16>,
    /// Whether it could have passed by itself.
    pub transient: bool,
    /// Attempts after the first one.
    #[serde(default)]
    pub retries: u32,
    /// The digest of the arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments_digest: Option<Digest>,
    /// What the call worked on: its command, folder or URL, without secrets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub argument_summary: BTreeMap<String, String>,
    /// What it depended on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<Domain>,
    /// The service that a report named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Domain>,
    /// The call; nothing where a host reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// The id that the model gave to the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<ToolCallId>,
    /// Whose it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    /// The session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionKey>,
    /// The turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// The model that asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelId>,
    /// What the host said beside, without secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<RawJson>,
}

/// What went wrong in a failed call.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "as in the record that is made of it")]
pub struct Trouble<'a> {
    pub severity: Severity,
    /// Stands for the type of the error where the message names none.
    pub rule: &'a str,
    /// Not redacted.
    pub message: &'a str,
    pub http_status: Option<u16>,
    pub transient: bool,
}

impl FailureRecord {
    /// What is known of every failure; the rest is added where it is known.
    pub fn new(tool: ToolRef, trouble: &Trouble<'_>, at: Timestamp) -> Self {
        Self {
            tool,
            at,
            severity: trouble.severity,
            error_type: cut(error_class(trouble.message).unwrap_or(trouble.rule), LONGEST_TYPE).to_owned(),
            message: redact::excerpt(trouble.message, LONGEST_MESSAGE),
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

/// What a signature says about the arguments, without secrets.
pub fn argument_summary(signature: &Signature) -> BTreeMap<String, String> {
    let parts = signature.0.split('|').skip(1).filter_map(|part| part.split_once('='));
    parts.map(|(name, value)| (name.to_owned(), redact::text(value).into_owned())).collect()
}

/// The name before the first colon, if it looks like the class of an exception.
fn error_class(message: &str) -> Option<&str> {
    let (name, _) = cut(message, LONGEST_TYPE).split_once(':')?;
    let word =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.".contains(&byte));
    let class = ["Error", "Exception", "Fault", "Failure"].iter().any(|end| name.ends_with(end));
    (word && class && name != "Error").then_some(name)
}

/// A failure that a successful result tells of in its structure. It feeds trust and scores only: the caller
/// still gets the result as a success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detected {
    /// The class of the error, as the result names it.
    pub error_type: String,
    /// What it says.
    pub message: String,
    /// The HTTP status that it names.
    pub http_status: Option<u16>,
    /// How bad it is.
    pub severity: Severity,
}

/// The failure that a result tells of in its structure: a telling `error`, a status of 400 or more, or
/// `isError`. An `error` of null, false, zero or nothing is how many tools say that there was none.
pub fn detect(result: Value<'_>, overrides: &Overrides, now: Timestamp) -> Option<Detected> {
    let found = stated(result).or_else(|| stated(result.get("structuredContent")?))?;
    let source = match found.http_status {
        Some(status) => Source::Http { status },
        None => Source::Tool,
    };
    let fault = Fault::new(source, found.message);
    let severity = classify(&fault, overrides, now).severity;
    Some(Detected {
        error_type: found.error_type,
        message: fault.message,
        http_status: found.http_status,
        severity,
    })
}

/// How bad the failure is that an output tells of in its structure, if it tells of one. Most outputs do not even
/// have a member of such a name, and are not read.
pub fn concern(output: &Output, overrides: &Overrides, now: Timestamp) -> Option<Severity> {
    Some(detected_in(output, overrides, now)?.severity)
}

/// The failure that an output tells of in its structure.
pub(crate) fn detected_in(output: &Output, overrides: &Overrides, now: Timestamp) -> Option<Detected> {
    let text = output.content.as_str();
    // `error`, `isError`, and the four spellings of a status.
    if !["rror\"", "tatus"].iter().any(|part| text.contains(part)) {
        return None;
    }
    let document = Document::parse(text.as_bytes(), Limits::ENVELOPE).ok()?;
    detect(document.root(), overrides, now)
}

/// What a result states about a failure of its own.
#[derive(Debug)]
pub(super) struct Stated {
    error_type: String,
    pub(super) message: String,
    pub(super) http_status: Option<u16>,
}

pub(super) fn stated(result: Value<'_>) -> Option<Stated> {
    let Kind::Object(_) = result.kind() else { return None };
    let http_status = status_of(result);
    let named = |otherwise: &str| {
        let given = result.get("error_type").and_then(Value::as_str);
        cut(given.as_deref().unwrap_or(otherwise), LONGEST_TYPE).to_owned()
    };
    if let Some(message) = result.get("error").and_then(telling) {
        let error_type = named(error_class(&message).unwrap_or("unknown"));
        let http_status = http_status.or_else(|| status_of(result.get("error")?));
        return Some(Stated { error_type, message, http_status });
    }
    let is_error = result.get("isError").is_some_and(|flag| matches!(flag.kind(), Kind::Bool(true)));
    if http_status.is_none() && !is_error {
        return None;
    }
    let message =
        ["message", "body", "content"].into_iter().find_map(|name| result.get(name).and_then(words));
    let error_type = named(if is_error { "is_error" } else { "http_error" });
    Some(Stated { error_type, message: message.unwrap_or_default(), http_status })
}

/// A status of 400 or more, as a number or as its digits.
fn status_of(object: Value<'_>) -> Option<u16> {
    ["http_status", "status_code", "httpStatus", "statusCode"].into_iter().find_map(|name| {
        let status: f64 = match object.get(name)?.kind() {
            Kind::Number(digits) => digits.parse().ok()?,
            Kind::String(digits) => digits.trim().parse().ok()?,
            Kind::Null | Kind::Bool(_) | Kind::Array(_) | Kind::Object(_) => return None,
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked")]
        (400.0..1000.0).contains(&status).then_some(status as u16)
    })
}

/// What an `error` member says, if it says that there was an error.
fn telling(error: Value<'_>) -> Option<String> {
    let text = match error.kind() {
        Kind::Null | Kind::Bool(false) => return None,
        Kind::Bool(true) => "unspecified error".to_owned(),
        Kind::Number(digits) if digits.parse() == Ok(0.0) => return None,
        Kind::Number(digits) => format!("error {digits}"),
        Kind::String(text) => text.trim().to_owned(),
        Kind::Array(_) => words(error)?,
        Kind::Object(mut members) => {
            members.next()?;
            words(error)?
        }
    };
    (!text.is_empty()).then(|| cut(&text, LONGEST_MESSAGE).to_owned())
}

/// The words in a value: a string, the message of an object, the first words of a list of them.
fn words(value: Value<'_>) -> Option<String> {
    let text = match value.kind() {
        Kind::String(text) => text.into_owned(),
        Kind::Array(mut items) => items.find_map(|item| match item.kind() {
            Kind::String(text) => Some(text.into_owned()),
            Kind::Object(_) => message_of(item),
            Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::Array(_) => None,
        })?,
        Kind::Object(_) => message_of(value).unwrap_or_else(|| value.raw().to_owned()),
        Kind::Null | Kind::Bool(_) | Kind::Number(_) => return None,
    };
    Some(cut(text.trim(), LONGEST_MESSAGE).to_owned())
}

fn message_of(object: Value<'_>) -> Option<String> {
    ["message", "text", "error", "detail", "description"]
        .into_iter()
        .find_map(|name| object.get(name).and_then(Value::as_str))
        .map(|text| text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Namespace, ToolName};
    use crate::json::{Document, Limits};

    fn detected(result: &str) -> Option<Detected> {
        let document = Document::parse(result.as_bytes(), Limits::ENVELOPE).unwrap();
        detect(document.root(), &Overrides::default(), Timestamp::ZERO)
    }

    #[test]
    fn the_class_of_an_error_is_one_word_that_says_so() {
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
    fn an_output_that_tells_of_a_failure_is_of_concern() {
        use crate::output::RawJson;
        let concern_of = |text: &'static str| {
            let output = Output { content: RawJson::from_trusted(text), metadata: None };
            concern(&output, &Overrides::default(), Timestamp::ZERO)
        };
        assert_eq!(concern_of(r#"{"statusCode":404}"#), Some(Severity::NotFound));
        assert!(concern_of(r#"{"error":"no such file"}"#).is_some());
        for fine in [r#"{"statusCode":200}"#, r#"{"error":null}"#, r#"{"paid":true}"#, r#""status 404""#] {
            assert_eq!(concern_of(fine), None, "{fine}");
        }
    }

    fn record(message: &str) -> FailureRecord {
        let tool = ToolRef { namespace: Namespace::new("svc").unwrap(), tool: ToolName::new("get").unwrap() };
        let trouble = Trouble {
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
    fn rp_1_a_record_is_bounded_whatever_was_said() {
        let long = record(&"ä".repeat(100_000));
        assert!(serde_json::to_string(&long).unwrap().len() < 1500);
    }

    #[test]
    fn rp_1_what_a_call_worked_on_is_told_without_its_arguments() {
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
