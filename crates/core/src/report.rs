//! Reports of a host about a tool that it ran itself: a failure or a success.
//!
//! A report counts as a finished call of that tool, for trust and for scores. It has the arguments if the failure
//! belongs to a part of the tool (a host, a folder, a command). Without them it is about the tool as a whole. The
//! fields are those of the report interface for plugins, spelled as in the envelopes. The namespace of the tool is its
//! plugin, else its service, else the host.

use std::time::Duration;

use steadfast_json::{JsonDocument, JsonError, JsonLimits, JsonValue, RawJson};

use crate::Timestamp;
use crate::classify::record::{FailureDetails, FailureRecord, argument_summary, detect};
use crate::classify::signature::Signature;
use crate::classify::{
    ArgumentTargets, AttemptFault, FaultNature, FaultSource, Overrides, Severity, classify, signature,
};
use crate::envelope::parse::{
    EnvelopeObject, EnvelopeReader, ID, MILLISECONDS, TRUTH, boolean, describe, id, integer, object_value,
    one_of,
};
use crate::envelope::{EnvelopeProblem, UnknownFieldPolicy};
use crate::id::{Digest, Domain, ModelId, Namespace, TenantId, ToolName, ToolRef};
use crate::key::arguments_digest;
use crate::policy::{PolicyProfile, ToolClass};
use crate::stats::ScoreOutcome;
use crate::trust::{ReportedFailure, TrustReport};

/// A report about a tool that the host ran.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolReport {
    /// The tool.
    pub tool: ToolRef,
    /// Signature of the relevant part of its arguments, if the report has them; otherwise the report is about the tool
    /// as a whole.
    pub signature: Option<Signature>,
    /// Host that the tool depends on: as reported, else from its arguments; `None` if a service is reported instead.
    pub domain: Option<Domain>,
    /// Server or service of the tool.
    pub service: Option<Domain>,
    /// Model that made the call.
    pub model: Option<ModelId>,
    /// Duration of the call.
    pub took: Option<Duration>,
    /// Digest of its arguments.
    pub arguments: Option<Digest>,
    /// Additional context from the host, redacted and shortened.
    pub context: Option<RawJson>,
    /// Outcome of the call.
    pub result: ReportOutcome,
}

/// The outcome of a reported call.
#[derive(Clone, Debug, PartialEq)]
pub enum ReportOutcome {
    /// The call succeeded.
    Success,
    /// The call failed.
    Failure {
        /// Error message, redacted and shortened.
        message: String,
        /// HTTP status, if there was one.
        http_status: Option<u16>,
        /// Severity set by the reporter. It overrides the classification.
        severity: Option<Severity>,
        /// True if the tool can recover by itself; otherwise an operator has to reset it.
        recoverable: bool,
    },
}

/// The kind of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportKind {
    /// A failure of a tool.
    Failure,
    /// A success of a tool.
    Success,
}

/// The reason why a report is not valid. Sending it again does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The report is not JSON, or too large, or too deep.
    #[error("the report is not valid JSON: {0}")]
    Json(#[source] JsonError),
    /// The JSON is not a valid report.
    #[error("the report is not valid: {}", EnvelopeProblem::list(.problems, *.more))]
    Fields {
        /// Problems by field.
        problems: Vec<EnvelopeProblem>,
        /// Number of further problems that are not listed.
        more: usize,
    },
}

impl ToolReport {
    /// Parses a report of this kind, or returns all its problems.
    pub fn parse(text: &[u8], kind: ReportKind) -> Result<Self, ReportError> {
        let document = JsonDocument::parse(text, JsonLimits::ENVELOPE).map_err(ReportError::Json)?;
        let mut reader = EnvelopeReader::new(UnknownFieldPolicy::Refuse);
        let report = read(&mut reader, document.root(), kind);
        let (problems, more) = reader.problems();
        match report {
            Some(report) if problems.is_empty() => Ok(report),
            Some(_) | None => Err(ReportError::Fields { problems, more }),
        }
    }

    /// Returns the subject of the report, for trust.
    pub fn about(&self) -> TrustReport<'_> {
        TrustReport {
            tool: &self.tool,
            signature: self.signature.as_ref(),
            domain: self.domain.as_ref(),
            service: self.service.as_ref(),
        }
    }

    /// Returns the failure for trust; `None` for a success.
    pub fn failure(&self, overrides: &Overrides, now: Timestamp) -> Option<ReportedFailure> {
        match &self.result {
            ReportOutcome::Success => None,
            ReportOutcome::Failure { message, http_status, severity, recoverable } => {
                let classified = classify(&fault(message, *http_status), overrides, now).severity;
                Some(ReportedFailure { classified, severity: *severity, recoverable: *recoverable })
            }
        }
    }

    /// Returns the failure record; `None` for a success.
    pub fn failure_record(
        &self,
        tenant: Option<&TenantId>,
        overrides: &Overrides,
        now: Timestamp,
    ) -> Option<FailureRecord> {
        let ReportOutcome::Failure { message, http_status, severity, .. } = &self.result else {
            return None;
        };
        let fault = fault(message, *http_status);
        let classified = classify(&fault, overrides, now);
        let trouble = FailureDetails {
            severity: severity.unwrap_or(classified.severity),
            rule: &classified.rule,
            message,
            http_status: *http_status,
            transient: classified.nature == FaultNature::Transient,
        };
        Some(FailureRecord {
            arguments_digest: self.arguments,
            argument_summary: self.signature.as_ref().map(argument_summary).unwrap_or_default(),
            domain: self.domain.clone(),
            service: self.service.clone(),
            tenant: tenant.cloned(),
            model: self.model.clone(),
            context: self.context.clone(),
            ..FailureRecord::new(self.tool.clone(), &trouble, now)
        })
    }

    /// Returns the outcome for scores.
    pub fn outcome(&self, failure: Option<ReportedFailure>) -> ScoreOutcome {
        ScoreOutcome::of(failure.map(|failure| failure.severity.unwrap_or(failure.classified)), None)
    }
}

fn fault(message: &str, http_status: Option<u16>) -> AttemptFault {
    let source = http_status.map_or(FaultSource::Tool, |status| FaultSource::Http { status });
    AttemptFault::new(source, message)
}

fn read(reader: &mut EnvelopeReader, root: JsonValue<'_>, kind: ReportKind) -> Option<ToolReport> {
    if !root.is_object() {
        reader.problem("the report".to_owned(), "an object", describe(root));
        return None;
    }
    let known = match kind {
        ReportKind::Failure => FAILURE,
        ReportKind::Success => SUCCESS,
    };
    let report = EnvelopeObject { path: "", value: Some(root), known };
    let tool: Option<ToolName> = reader.required(report, "toolName", ID, id);
    let plugin: Option<Namespace> = reader.optional(report, "pluginName", ID, id);
    let result = match kind {
        ReportKind::Failure => failure(reader, report),
        ReportKind::Success => Some(ReportOutcome::Success),
    };
    let domain: Option<Domain> = reader.optional(report, "domain", ID, id);
    let service: Option<Domain> = reader.optional(report, "service", ID, id);
    let arguments = reader.optional(report, "arguments", "an object", object_value);
    // The host may add any context. No decision depends on it.
    let context =
        reader.optional(report, "context", "an object", object_value).map(steadfast_redact::summary);
    let model = reader.optional(report, "modelId", ID, id);
    let took = reader.optional(report, "durationMs", MILLISECONDS, integer).map(Duration::from_millis);
    reader.unknown(report);
    let namespace = plugin
        .or_else(|| service.as_ref().and_then(|service| Namespace::new(service.as_str()).ok()))
        .or_else(|| Namespace::new(HOST).ok())?;
    let tool = ToolRef { namespace, tool: tool? };
    let empty = JsonDocument::parse(b"{}", JsonLimits::ENVELOPE).ok()?;
    let aims = ArgumentTargets::of(arguments.unwrap_or_else(|| empty.root()));
    let signature = arguments.map(|_| signature::signature(&tool, &aims));
    // A call without a host depends on its server, and so does a report.
    let domain = match (domain, &service) {
        (Some(domain), _) => Some(domain),
        (None, Some(_)) => None,
        (None, None) => Some(signature::domain(&tool, &aims)),
    };
    let dedupe = PolicyProfile::Standard.policy(ToolClass::Unknown).dedupe;
    let arguments = arguments.map(|arguments| arguments_digest(arguments, ToolClass::Unknown, &dedupe));
    Some(ToolReport { tool, signature, domain, service, model, took, arguments, context, result: result? })
}

fn failure(reader: &mut EnvelopeReader, report: EnvelopeObject<'_>) -> Option<ReportOutcome> {
    let error =
        reader.required(report, "error", ERROR, |value| error_of(value).ok_or_else(|| describe(value)));
    let severity = reader.optional(report, "severity", SEVERITY, one_of(Severity::WORDS));
    let status = reader.optional(report, "httpStatus", "a status from 100 to 599", |value| {
        let status = value.as_u64().and_then(|status| u16::try_from(status).ok());
        status.filter(|status| (100..600).contains(status)).ok_or_else(|| describe(value))
    });
    let recoverable = reader.optional(report, "recoverable", TRUTH, boolean).unwrap_or(true);
    let ReportedError { message, http_status } = error?;
    Some(ReportOutcome::Failure { message, http_status: status.or(http_status), severity, recoverable })
}

/// An error as reported.
struct ReportedError {
    message: String,
    http_status: Option<u16>,
}

/// Parses an error: a text; an object with an `error`, as results have it; an exception with its `type` and `message`;
/// or any other object, whose text becomes the message.
fn error_of(value: JsonValue<'_>) -> Option<ReportedError> {
    let shorten = |message: &str| steadfast_redact::excerpt(message.trim(), LONGEST_MESSAGE);
    if let Some(text) = value.as_str() {
        return (!text.is_empty()).then(|| ReportedError { message: shorten(&text), http_status: None });
    }
    value.members()?.next()?;
    if let Some(detected) = detect(value, &Overrides::default(), Timestamp::ZERO) {
        return Some(ReportedError {
            message: shorten(&detected.message),
            http_status: detected.http_status,
        });
    }
    let text = |name| value.get(name).and_then(JsonValue::as_str);
    let Some(message) = text("message") else {
        return Some(ReportedError {
            message: shorten(steadfast_redact::summary(value).as_str()),
            http_status: None,
        });
    };
    let message = text("type").map_or_else(|| message.to_string(), |kind| format!("{kind}: {message}"));
    Some(ReportedError { message: shorten(&message), http_status: None })
}

/// Namespace of a tool that is reported without a plugin or service.
const HOST: &str = "host";
/// Maximum length of a message, in bytes.
const LONGEST_MESSAGE: usize = 1024;
const ERROR: &str =
    "a text, an object with an \"error\", or an exception with its \"message\"; neither empty";
const SEVERITY: &str = "\"transient\", \"not_found\", \"invalid_input\", \"permission\", \"validation\", \"timeout\", \"server_error\", \"crash\", \"corruption\", \"security\", \"repeated_auth\" or \"informational\"";
const FAILURE: &[&str] = &[
    "toolName",
    "pluginName",
    "error",
    "severity",
    "httpStatus",
    "domain",
    "service",
    "arguments",
    "context",
    "recoverable",
    "modelId",
    "durationMs",
];
const SUCCESS: &[&str] =
    &["toolName", "pluginName", "domain", "service", "arguments", "context", "modelId", "durationMs"];

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(text: &str) -> ToolReport {
        ToolReport::parse(text.as_bytes(), ReportKind::Failure).unwrap()
    }

    fn severity(text: &str) -> Severity {
        let report = failed(text);
        let failure = report.failure(&Overrides::default(), Timestamp::ZERO).unwrap();
        failure.severity.unwrap_or(failure.classified)
    }

    #[test]
    fn rp_9_a_report_carries_its_severity_domain_service_and_recoverable_flag() {
        let report = failed(
            r#"{"toolName":"search","error":"data is damaged","severity":"corruption","domain":"api.example.com",
                "service":"atlassian","recoverable":false,"context":{"turn":3},"modelId":"m","durationMs":1500}"#,
        );
        assert_eq!(report.tool.to_string(), "atlassian/search");
        let about = report.about();
        assert_eq!(about.domain.map(Domain::as_str), Some("api.example.com"));
        assert_eq!(about.service.map(Domain::as_str), Some("atlassian"));
        assert!(about.signature.is_none(), "it names no arguments, so it is about the tool as a whole");
        let failure = report.failure(&Overrides::default(), Timestamp::ZERO).unwrap();
        assert_eq!((failure.severity, failure.recoverable), (Some(Severity::Corruption), false));
        assert_eq!(
            (report.outcome(Some(failure)), report.took),
            (ScoreOutcome::Failure, Some(Duration::from_millis(1500)))
        );
    }

    #[test]
    fn rp_9_missing_fields_are_as_for_a_call() {
        let report = failed(
            r#"{"toolName":"get","pluginName":"web","error":"x","arguments":{"url":"https://a.example/x"}}"#,
        );
        assert_eq!(report.domain.as_ref().map(Domain::as_str), Some("a.example"));
        assert!(report.signature.is_some());
        let bare = failed(r#"{"toolName":"get","error":"x"}"#);
        assert_eq!(
            (bare.tool.to_string().as_str(), bare.domain.as_ref().map(Domain::as_str)),
            ("host/get", Some("host"))
        );
        assert!(matches!(bare.result, ReportOutcome::Failure { recoverable: true, severity: None, .. }));
        let worked = ToolReport::parse(br#"{"toolName":"get","service":"s"}"#, ReportKind::Success).unwrap();
        assert_eq!(
            (worked.about().depends_on().map(Domain::as_str), worked.outcome(None)),
            (Some("s"), ScoreOutcome::Success)
        );
    }

    #[test]
    fn rp_9_an_error_in_any_form_is_classified_unless_its_severity_is_given() {
        for (error, expected) in [
            (r#""connection timed out""#, Severity::Timeout),
            (r#"{"error":"no","http_status":403}"#, Severity::Permission),
            (r#"{"error":"no such file"}"#, Severity::NotFound),
            (r#"{"type":"TimeoutError","message":"timed out after 3 s"}"#, Severity::Timeout),
            (r#""oops","httpStatus":503"#, Severity::ServerError),
            (r#"{"error":"no such file"},"httpStatus":500"#, Severity::ServerError),
            (r#""connection timed out","severity":"crash""#, Severity::Crash),
        ] {
            assert_eq!(severity(&format!(r#"{{"toolName":"t","error":{error}}}"#)), expected, "{error}");
        }
    }

    #[test]
    fn rp_9_an_invalid_report_lists_all_problems_with_their_places() {
        let wrong = br#"{"tool_name":"t","error":{},"severity":"bad","recoverable":"no","httpStatus":42,"domain":""}"#;
        let error = ToolReport::parse(wrong, ReportKind::Failure).unwrap_err().to_string();
        for part in [
            r#"toolName: expected a text of 1 to 256 characters without control characters, found nothing ("tool_name" is spelled "toolName")"#,
            "error: expected a text, an object with an",
            "severity: expected \"transient\"",
            "found the text \"bad\"",
            "recoverable: expected true or false, found the text \"no\"",
            "httpStatus: expected a status from 100 to 599, found the number 42",
            "domain: expected a text of 1 to 256 characters",
        ] {
            assert!(error.contains(part), "{part}\nin {error}");
        }
        for (text, kind, part) in [
            ("[1]", ReportKind::Failure, "the report: expected an object, found"),
            ("{", ReportKind::Success, "not valid JSON"),
            (r#"{"toolName":"t","error":"x"}"#, ReportKind::Success, "error: expected no such field"),
        ] {
            let error = ToolReport::parse(text.as_bytes(), kind).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn rp_9_no_secret_of_a_report_is_stored() {
        let report = failed(r#"{"toolName":"t","error":"401 for https://ann:hunter2secret@example.com/"}"#);
        assert!(!format!("{report:?}").contains("hunter2secret"));
    }
}
