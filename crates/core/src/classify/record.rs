//! Failures as trust and scores remember them, and failures that hide in successful results.
//!
//! A record keeps what is needed to judge and to explain, and nothing that could give a secret away:
//! arguments are present only as their digest and as a summary that was redacted before it came here.

use serde::{Deserialize, Serialize};

use super::text::cut;
use super::{Classified, Fault, Nature, Overrides, Severity, Source, classify};
use crate::Timestamp;
use crate::id::{Digest, Domain, Namespace, SessionKey, ToolCallId, ToolName, ToolRef};
use crate::json::{Document, Kind, Limits, Value};
use crate::output::Output;

/// The longest message that a record keeps, in bytes.
const LONGEST_MESSAGE: usize = 1024;
/// The longest summary and type of an error, in bytes.
const LONGEST_SUMMARY: usize = 512;
const LONGEST_TYPE: usize = 128;

/// One failed call, as trust and scores remember it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureRecord {
    /// The tool that failed.
    pub tool_name: ToolName,
    /// The plugin or server that it belongs to.
    pub plugin_name: Namespace,
    /// When.
    pub timestamp: Timestamp,
    /// The digest of its arguments.
    pub arguments_hash: Digest,
    /// What may be said about its arguments.
    pub argument_summary: String,
    /// What it depended on.
    pub domain: Option<Domain>,
    /// The external service behind it, where one is known by name.
    pub service: Option<String>,
    /// The class of the error as its author named it, else the kind of its source.
    pub error_type: String,
    /// What was said.
    pub error_message: String,
    /// How bad it is.
    pub severity: Severity,
    /// Links the record to other records of the call.
    pub call_id: Option<ToolCallId>,
    /// The conversation.
    pub session_id: Option<SessionKey>,
    /// Where in the conversation.
    pub turn_index: Option<u64>,
    /// The HTTP status, where there was one.
    pub http_status: Option<u16>,
    /// Attempts after the first one.
    pub retry_count: u32,
    /// Whether it could have passed by itself.
    pub was_transient: bool,
}

/// The call that failed, as far as a record tells it.
#[derive(Clone, Copy, Debug)]
pub struct Occasion<'a> {
    /// The tool.
    pub tool: &'a ToolRef,
    /// The digest of its arguments.
    pub arguments: Digest,
    /// A summary of its arguments, redacted already.
    pub summary: &'a str,
    /// What it depends on.
    pub domain: Option<&'a Domain>,
    /// The external service behind it, where one is known by name.
    pub service: Option<&'a str>,
    /// The id that the model gave to the call.
    pub call_id: Option<&'a ToolCallId>,
    /// The conversation.
    pub session: Option<&'a SessionKey>,
    /// Where in the conversation.
    pub turn_index: Option<u64>,
    /// Attempts after the first one.
    pub retries: u32,
}

impl FailureRecord {
    /// The record of a call that ended with this fault. The message must have been redacted before.
    pub fn new(occasion: Occasion<'_>, fault: &Fault, classified: &Classified, now: Timestamp) -> Self {
        let facts = super::text::Facts::of(fault);
        Self {
            tool_name: occasion.tool.tool.clone(),
            plugin_name: occasion.tool.namespace.clone(),
            timestamp: now,
            arguments_hash: occasion.arguments,
            argument_summary: cut(occasion.summary, LONGEST_SUMMARY).to_owned(),
            domain: occasion.domain.cloned(),
            service: occasion.service.map(|service| cut(service, LONGEST_TYPE).to_owned()),
            error_type: error_class(&fault.message).unwrap_or(fault.source.kind().as_str()).to_owned(),
            error_message: cut(&fault.message, LONGEST_MESSAGE).to_owned(),
            severity: classified.severity,
            call_id: occasion.call_id.cloned(),
            session_id: occasion.session.cloned(),
            turn_index: occasion.turn_index,
            http_status: facts.status,
            retry_count: occasion.retries,
            was_transient: classified.nature == Nature::Transient,
        }
    }
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
    let text = output.content.as_str();
    // `error`, `isError`, and the four spellings of a status.
    if !["rror\"", "tatus"].iter().any(|part| text.contains(part)) {
        return None;
    }
    let document = Document::parse(text.as_bytes(), Limits::ENVELOPE).ok()?;
    Some(detect(document.root(), overrides, now)?.severity)
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

    #[test]
    fn rp_1_a_record_has_all_its_fields_and_arguments_only_as_hash_and_summary() {
        let tool = ToolRef { namespace: Namespace::new("svc").unwrap(), tool: ToolName::new("get").unwrap() };
        let (call_id, session) = (ToolCallId::new("toolu_1").unwrap(), SessionKey::new("s1").unwrap());
        let domain = Domain::new("api.example.com").unwrap();
        let arguments = Digest::of(br#"{"url":"https://api.example.com/","token":"s3cr3t"}"#);
        let occasion = Occasion {
            tool: &tool,
            arguments,
            summary: "url=https://api.example.com/ token=[redacted]",
            domain: Some(&domain),
            service: Some("example"),
            call_id: Some(&call_id),
            session: Some(&session),
            turn_index: Some(7),
            retries: 3,
        };
        let fault = Fault::new(Source::Http { status: 503 }, "UpstreamError: try later");
        let classified = classify(&fault, &Overrides::default(), Timestamp::ZERO);
        let record = FailureRecord::new(occasion, &fault, &classified, Timestamp::from_millis(5));
        let written = serde_json::to_value(&record).unwrap();
        assert_eq!(
            written,
            serde_json::json!({
                "tool_name": "get",
                "plugin_name": "svc",
                "timestamp": 5,
                "arguments_hash": arguments.to_hex(),
                "argument_summary": "url=https://api.example.com/ token=[redacted]",
                "domain": "api.example.com",
                "service": "example",
                "error_type": "UpstreamError",
                "error_message": "UpstreamError: try later",
                "severity": "server_error",
                "call_id": "toolu_1",
                "session_id": "s1",
                "turn_index": 7,
                "http_status": 503,
                "retry_count": 3,
                "was_transient": true,
            })
        );
        assert_eq!(serde_json::from_value::<FailureRecord>(written).unwrap(), record);
    }

    #[test]
    fn rp_1_a_record_is_bounded_whatever_was_said() {
        let tool = ToolRef { namespace: Namespace::new("svc").unwrap(), tool: ToolName::new("get").unwrap() };
        let long = "ä".repeat(100_000);
        let occasion = Occasion {
            tool: &tool,
            arguments: Digest::of(b""),
            summary: &long,
            domain: None,
            service: Some(&long),
            call_id: None,
            session: None,
            turn_index: None,
            retries: 0,
        };
        let fault = Fault::new(Source::Tool, long.clone());
        let classified = classify(&fault, &Overrides::default(), Timestamp::ZERO);
        let record = FailureRecord::new(occasion, &fault, &classified, Timestamp::ZERO);
        assert!(serde_json::to_string(&record).unwrap().len() < 3000);
        assert_eq!((record.error_type.as_str(), record.was_transient), ("tool", false));
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
