//! Error responses.

use std::borrow::Cow;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT_ENCODING, ALLOW, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, StatusCode};
use schemars::JsonSchema;
use serde::Serialize;
use steadfast::call::redact;
use steadfast::store::StoreError;
use steadfast_core::dedupe::RecordLoss;
use steadfast_core::envelope::EnvelopeError;
use steadfast_mcp::http::server::{ENCODED, TooManyStreams};
use steadfast_turn::PlanErrors;

use crate::encoding::json;

/// The action to take for lost records.
pub const RECORDS_LOST_ADVICE: &str = "calls with an idempotency key to tools that are not safe to repeat may already have run. They \
                                     are refused until the lost records would have expired: check what those calls did, then run \
                                     `steadfast state accept`";

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiProblem {
    status: StatusCode,
    error: Box<ProblemBody>,
    retry_after: Option<Duration>,
    /// The methods that the path supports, if another one was used.
    allow: Option<Box<[Method]>>,
}

/// The default retry delay.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The body of an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ProblemBody {
    /// A stable code for programs.
    pub code: Cow<'static, str>,
    /// A description of the error and its remedy.
    pub message: String,
    /// Delay after which a retry makes sense, in milliseconds, if known.
    #[serde(default, rename = "retryAfterMs", skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// All errors in a plan, each with its position.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mistakes: Vec<PlanMistake>,
}

/// An error in a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PlanMistake {
    /// The position, as a JSON Pointer into the plan.
    pub path: String,
    /// The description.
    pub message: String,
}

/// The body of a response to an invalid or refused request.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ErrorResponse {
    /// The error.
    pub error: ProblemBody,
}

impl ApiProblem {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            error: Box::new(ProblemBody {
                code: code.into(),
                message: message.into(),
                retry_after_ms: None,
                mistakes: Vec::new(),
            }),
            retry_after: None,
            allow: None,
        }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::bad("bad_request", message)
    }

    /// An error whose message quotes the request. Secrets in it are redacted.
    pub(crate) fn misread(message: impl AsRef<str>) -> Self {
        Self::bad_request(redact::text(message.as_ref()).into_owned())
    }

    /// A malformed request, with this code.
    pub(crate) fn bad(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// A well-formed request that contradicts itself in a way that no schema can express.
    pub(crate) fn contradiction(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, message)
    }

    /// An invalid envelope.
    pub(crate) fn wrong_envelope(error: &EnvelopeError) -> Self {
        let (code, message) = (error.code().as_str(), error.to_string());
        if error.has_only_unknown_fields() {
            Self::contradiction(code, message)
        } else {
            Self::bad(code, message)
        }
    }

    /// An invalid plan, with all its errors.
    pub(crate) fn wrong_plan(errors: &PlanErrors) -> Self {
        let mistakes = errors.errors.iter().map(|error| PlanMistake {
            path: redact::text(&error.path).into_owned(),
            message: redact::text(&error.problem.to_string()).into_owned(),
        });
        let message = format!("the plan has errors, and no call was made: {errors}");
        let message = redact::text(&message).into_owned();
        let mut problem = match errors.is_only_semantic() {
            true => Self::contradiction("invalid_plan", message),
            false => Self::bad("invalid_plan", message),
        };
        problem.error.mistakes = mistakes.collect();
        problem
    }

    /// Adds the delay after which a retry makes sense.
    pub(crate) fn after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self.error.retry_after_ms = Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// An unknown id of this kind.
    pub(crate) fn no_such(kind: &str, id: &str) -> Self {
        Self::not_found(format!("there is no {kind} `{}`", shown(id)))
    }

    /// Adds the reason.
    #[must_use]
    pub(crate) fn because(mut self, reason: &impl ToString) -> Self {
        self.error.message = format!("{}: {}", self.error.message, redact::text(&reason.to_string()));
        self
    }

    /// An unknown subject, with this message.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// An unknown path.
    pub(crate) fn no_such_path(path: &str) -> Self {
        Self::not_found(format!(
            "there is no path `{}`; `GET /openapi.json` lists all paths with their methods and parameters",
            shown(path)
        ))
    }

    /// A method that the path does not support.
    pub(crate) fn wrong_method(method: &Method, path: &str, allow: &[Method]) -> Self {
        let message = format!(
            "`{}` does not take the method {}; it takes {}",
            shown(path),
            shown(method.as_str()),
            listed(allow.iter().map(Method::as_str))
        );
        let problem = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
        Self { allow: Some(allow.into()), ..problem }
    }

    /// Query parameters that the endpoint does not know.
    pub(crate) fn unknown_parameters(unknown: &[&str], endpoint: &str, known: &[String]) -> Self {
        let names = listed(unknown.iter().take(MOST_NAMED).map(|name| format!("`{}`", shown(name))));
        let parameters = if unknown.len() == 1 { "parameter" } else { "parameters" };
        let takes = match known {
            [] => "no query parameters".to_owned(),
            known => listed(known.iter().map(|name| format!("`{name}`"))),
        };
        Self::bad_request(format!("unknown query {parameters} {names}: {endpoint} takes {takes}"))
    }

    /// The body has a content coding, which no endpoint decodes.
    pub(crate) fn encoded() -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", ENCODED)
    }

    /// Records are lost, and no operator has accepted the loss.
    pub(crate) fn records_lost(loss: &RecordLoss) -> Self {
        let message = format!("{loss}; {}", RECORDS_LOST_ADVICE);
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", message)
    }

    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    #[cfg(test)]
    pub(crate) const fn status(&self) -> StatusCode {
        self.status
    }
}

/// Returns an id, path or name for an error message: redacted and shortened. The ids of Steadfast are hexadecimal and
/// never secret.
fn shown(text: &str) -> String {
    let is_own_id = text.len() <= OWN_ID && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    if is_own_id { text.to_owned() } else { redact::excerpt(text, LONGEST_SHOWN) }
}

/// The length of the longest ids of Steadfast.
const OWN_ID: usize = 64;
const LONGEST_SHOWN: usize = 256;
/// The maximum number of parameters that an error names.
const MOST_NAMED: usize = 10;

fn listed(items: impl Iterator<Item = impl AsRef<str>>) -> String {
    let items: Vec<_> = items.collect();
    items.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join(", ")
}

impl From<StoreError> for ApiProblem {
    fn from(error: StoreError) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", error.to_string())
    }
}

impl From<TooManyStreams> for ApiProblem {
    fn from(error: TooManyStreams) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", error.message())
            .after(TooManyStreams::RETRY_AFTER_DELAY)
    }
}

impl IntoResponse for ApiProblem {
    fn into_response(self) -> Response {
        let status = self.status;
        let mut response = json(status, &ErrorResponse { error: *self.error });
        let headers = response.headers_mut();
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if status == StatusCode::UNSUPPORTED_MEDIA_TYPE {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        if let Some(allow) = &self.allow
            && let Ok(allow) = HeaderValue::from_str(&listed(allow.iter().map(Method::as_str)))
        {
            headers.insert(ALLOW, allow);
        }
        let soon = (status == StatusCode::SERVICE_UNAVAILABLE).then_some(RETRY_DELAY);
        if let Some(wait) = self.retry_after.or(soon) {
            let seconds = u64::try_from(wait.as_millis().div_ceil(1000)).unwrap_or(u64::MAX);
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}
