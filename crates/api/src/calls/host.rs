//! Calls whose tool the host runs itself: the host asks for permission, runs the tool, and reports the outcome. Calls
//! that the host answered without asking are counted.

use std::borrow::Cow;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Extension, Request, State as Shared};
use axum::response::Response;
use http::{HeaderValue, StatusCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steadfast::call::{AnsweredCall, AttemptError, HeartbeatReply, HostCallId, HostError, HostStep, RunOrder, ToolResult};
use steadfast::{CallResponse, Timestamp, ToolFault};
use steadfast_core::classify::{
    ArgumentTargets, AttemptFault, FaultSource, RetryAfter, TransportError, signature,
};
use steadfast_core::envelope::{CallEnvelope, ResultEnvelope};
use steadfast_core::guard::GuardVerdict;
use steadfast_core::id::Domain;
use steadfast_core::output::ToolOutput;
use steadfast_json::{JsonDocument, JsonLimits, RawJson};
use steadfast_mcp::delivery::DeliveryLink;

use super::call_request::{self, CallRequestParts};
use super::call_response::{ResultDelivery, answered_with};
use super::{CallIdSeal, streaming_options};
use crate::access::Requester;
use crate::encoding::json as answer;
use crate::extractors::{JsonBody, PathParam, body, whole, whole_or_none};
use crate::problem::ApiProblem;
use crate::reports::check_report_target;
use crate::{ApiState, HandlerResult, State};

/// The maximum size of a report, in bytes: more than any result that is stored.
const LONGEST_REPORT: usize = 16 << 20;

/// The next step for the host.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "next", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum HostCallStep {
    /// Run the tool once and report the outcome.
    Run {
        /// The id of the call, for reports. It is valid for this caller only.
        id: String,
        /// The number of the attempt, from 1.
        attempt: u32,
        /// Time at which the attempt counts as lost, unless the host sends heartbeats.
        #[serde(skip_serializing_if = "Option::is_none")]
        deadline_at_ms: Option<Timestamp>,
        /// An id of the run for upstreams that recognise duplicates. It is the same for every attempt.
        run: String,
    },
    /// Nothing: this is the result.
    Answer {
        /// The result of the call.
        result: Box<ResultEnvelope>,
    },
}

/// The outcome of an attempt: exactly one of `output`, `failure` and `inputRequired`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("oneOf" = [
    only("output", "failure", "inputRequired"),
    only("failure", "inputRequired", "output"),
    only("inputRequired", "output", "failure"),
]))]
pub struct HostReport {
    /// The number of the attempt.
    #[serde(deserialize_with = "whole")]
    attempt: u32,
    /// The output of the tool.
    output: Option<ToolOutput>,
    /// The failure of the tool.
    failure: Option<HostFailure>,
    /// The input that the tool requires before it has any effect. The call ends and is made again with the input.
    input_required: Option<ToolOutput>,
}

/// Returns the schema of an object with one field and without two others.
fn only(one: &str, other: &str, another: &str) -> Value {
    let nothing = json!({ "type": "null" });
    json!({ "required": [one], "properties": { one: { "type": "object" }, other: nothing, another: nothing } })
}

/// A failure of a tool.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostFailure {
    /// The error message.
    message: String,
    /// The source of the failure. The default is the tool itself.
    source: Option<HostFailureSource>,
    /// Delay after which the other side asked to be called again, in milliseconds.
    #[serde(default, deserialize_with = "whole_or_none")]
    retry_after_ms: Option<u64>,
    /// The output of the failed tool, unchanged.
    output: Option<ToolOutput>,
}

/// The source of a failure.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum HostFailureSource {
    /// The tool returned or threw an error.
    Tool {},
    /// An HTTP response with an error status.
    Http {
        /// The status code.
        #[serde(deserialize_with = "whole")]
        status: u16,
    },
    /// A JSON-RPC error.
    JsonRpc {
        /// The error code.
        #[serde(deserialize_with = "whole")]
        code: i64,
    },
    /// A result that is marked as an error.
    IsError {},
    /// A connection failure.
    Transport {
        /// The kind of failure.
        error: TransportError,
        /// True if the other side may have received any of the request.
        written: bool,
    },
    /// A WebSocket that was closed.
    WebSocket {
        /// The close code.
        #[serde(deserialize_with = "whole")]
        code: u16,
    },
    /// A process that exited without an answer.
    Exit {
        /// The exit code.
        #[serde(default, deserialize_with = "whole_or_none")]
        code: Option<i32>,
        /// The signal that ended it.
        #[serde(default, deserialize_with = "whole_or_none")]
        signal: Option<i32>,
    },
    /// A timeout of the host.
    Timeout {
        /// The timeout, in milliseconds.
        #[serde(deserialize_with = "whole")]
        after_ms: u64,
    },
    /// An invalid answer.
    BadAnswer {},
}

/// A call that the host answered itself.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AnsweredCallRequest {
    /// The call.
    #[schemars(with = "CallEnvelope")]
    call: RawJson,
    /// The answer that the model got.
    answer: HostAnswer,
}

/// The host's own answer to a call.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum HostAnswer {
    /// The host ran the tool, which succeeded.
    Output {
        /// The output of the tool.
        output: ToolOutput,
    },
    /// The host ran the tool, which failed.
    Failure {
        /// The failure of the tool.
        failure: HostFailure,
    },
    /// The host refused the arguments, as it does every time. The tool did not run.
    InvalidArguments {
        /// The error message.
        message: String,
    },
    /// The host has no tool of this name.
    UnknownTool {
        /// The error message.
        message: String,
    },
    /// A policy of the host or its user denied the call. The tool did not run.
    Denied {
        /// The error message.
        message: String,
    },
}

/// The response to a call that the host answered itself.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct AnsweredCallResponse {
    /// The finding of the loop guard. A host that can end the turn should do so at `tool_error_limit`.
    pub verdict: GuardVerdict,
    /// Remarks for the model, one paragraph each, to add to the host's answer.
    pub remarks: Vec<Cow<'static, str>>,
    /// The host's answer as a result, with the remarks.
    pub result: ResultEnvelope,
}

/// A heartbeat of an attempt.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    /// The number of the attempt.
    #[serde(deserialize_with = "whole")]
    attempt: u32,
}

/// The response to a heartbeat.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct HeartbeatResponse {
    /// True if the result is still wanted. If not, stop the tool if that is safe, and report the outcome.
    #[serde(rename = "wanted")]
    pub should_continue: bool,
}

/// The response to a cancellation.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct CancelResponse {
    /// Always true. The cancellation may have come too late; the next heartbeat or report shows it.
    pub cancelled: bool,
}

/// `POST /v1/calls/begin`.
pub(crate) async fn begin(Shared(State(inner)): Shared<State>, request: Request) -> HandlerResult {
    let engine = inner.steadfast.engine().clone();
    let (request, mut envelope) = call_request::call(&engine, request).await?;
    check_report_target(&inner, &request.caller, &envelope.tool(), [&envelope.target.domain, &None])?;
    reassign_own_host(&inner, &request.caller, &mut envelope);
    // If the client leaves, this future is dropped, and the engine takes back the permission to run.
    let step = engine.begin(envelope, streaming_options()).await;
    next(&inner, step, request)
}

/// Counts a call of a client for the namespace that the client gives, if its arguments name a host that our own tools
/// or servers use. The client's reports then do not count for that host.
fn reassign_own_host(inner: &ApiState, caller: &Requester, envelope: &mut CallEnvelope) {
    if matches!(caller, Requester::Admin) || envelope.target.domain.is_some() {
        return;
    }
    let tool = envelope.tool();
    let Ok(params) = JsonDocument::parse(envelope.payload.params.as_str().as_bytes(), JsonLimits::ENVELOPE)
    else {
        return;
    };
    if inner.steadfast.config().is_own_host(&signature::domain(&tool, &ArgumentTargets::of(params.root()))) {
        envelope.target.domain = Some(Domain::from(&tool.namespace));
    }
}

/// `POST /v1/calls/{id}/report`.
pub(crate) async fn report(
    Shared(State(inner)): Shared<State>,
    Extension(caller): Extension<Requester>,
    PathParam(id): PathParam,
    request: Request,
) -> HandlerResult {
    let engine = inner.steadfast.engine().clone();
    let call = found(&inner, &id, &caller)?;
    let link = request.extensions().get::<DeliveryLink>().cloned();
    let text = body(request.into_body(), LONGEST_REPORT).await?;
    let unreadable = |error| ApiProblem::misread(format!("the report cannot be read: {error}"));
    let report: HostReport = serde_json::from_slice(&text).map_err(unreadable)?;
    let attempt = report.attempt;
    let answer = report.into_answer()?;
    let step = engine.report(call, attempt, answer).await.map_err(|error| refused(&error, &id))?;
    let request = CallRequestParts { caller, headers: http::HeaderMap::new(), link, key: None };
    next(&inner, step, request)
}

/// `POST /v1/calls/{id}/heartbeat`.
pub(crate) async fn heartbeat(
    Shared(State(inner)): Shared<State>,
    Extension(caller): Extension<Requester>,
    PathParam(id): PathParam,
    JsonBody(Heartbeat { attempt }): JsonBody<Heartbeat>,
) -> HandlerResult {
    let call = found(&inner, &id, &caller)?;
    let pulse = inner.steadfast.engine().heartbeat(call, attempt);
    let should_continue = match pulse.map_err(|error| refused(&error, &id))? {
        HeartbeatReply::Continue => true,
        HeartbeatReply::Stop => false,
    };
    Ok(answer(StatusCode::OK, &HeartbeatResponse { should_continue }))
}

/// `POST /v1/calls/{id}/cancel`.
pub(crate) async fn cancel(
    Shared(State(inner)): Shared<State>,
    Extension(caller): Extension<Requester>,
    PathParam(id): PathParam,
) -> HandlerResult {
    let call = found(&inner, &id, &caller)?;
    inner.steadfast.engine().cancel(call).map_err(|error| refused(&error, &id))?;
    Ok(answer(StatusCode::OK, &CancelResponse { cancelled: true }))
}

/// `POST /v1/calls/answered`.
pub(crate) async fn answered(Shared(State(inner)): Shared<State>, request: Request) -> HandlerResult {
    let engine = inner.steadfast.engine();
    let split = |text: Bytes| {
        let unreadable = |error| ApiProblem::misread(format!("the body cannot be read: {error}"));
        let body: AnsweredCallRequest = serde_json::from_slice(&text).map_err(unreadable)?;
        Ok((Bytes::from(body.call.as_str().to_owned()), body.answer))
    };
    let (request, mut envelope, answered) =
        call_request::call_within(engine, request, LONGEST_REPORT, split).await?;
    check_report_target(&inner, &request.caller, &envelope.tool(), [&envelope.target.domain, &None])?;
    reassign_own_host(&inner, &request.caller, &mut envelope);
    let CallResponse { result, remarks, verdict, .. } =
        engine.answered(envelope, streaming_options(), answered.into());
    Ok(answer(StatusCode::OK, &AnsweredCallResponse { verdict, remarks, result }))
}

/// Returns the call of this id. The call of another caller counts as unknown.
fn found(inner: &ApiState, id: &str, caller: &Requester) -> Result<HostCallId, ApiProblem> {
    let call = inner.seal.as_ref().and_then(|seal| seal.call(id, caller));
    call.ok_or_else(|| refused(&HostError::NoSuchCall, id))
}

fn next(inner: &ApiState, step: HostStep, request: CallRequestParts) -> HandlerResult {
    match step {
        HostStep::Run(order) => {
            let seal = inner.seal.as_ref().ok_or_else(no_names)?;
            Ok(ordered(seal, &order, &request.caller, request.key))
        }
        HostStep::Answered(called) => {
            let CallResponse { result, delivery: arrival, .. } = *called;
            let letter = ResultDelivery::new(inner.steadfast.engine(), request.link, arrival);
            let next = HostCallStep::Answer { result: Box::new(result.clone()) };
            Ok(answered_with(&result, &next, letter, request.key))
        }
    }
}

fn ordered(seal: &CallIdSeal, order: &RunOrder, caller: &Requester, key: Option<HeaderValue>) -> Response {
    let next = HostCallStep::Run {
        id: seal.name(order.call, caller),
        attempt: order.attempt,
        deadline_at_ms: order.deadline,
        run: order.run.0.to_string(),
    };
    let mut response = answer(StatusCode::OK, &next);
    if let Some(key) = key {
        response.headers_mut().insert(call_request::IDEMPOTENCY_KEY, key);
    }
    response
}

fn no_names() -> ApiProblem {
    let reason = "the operating system provides no randomness, which ids of calls require";
    ApiProblem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", reason)
}

impl HostReport {
    fn into_answer(self) -> Result<ToolResult, ApiProblem> {
        match (self.output, self.failure, self.input_required) {
            (Some(output), None, None) => Ok(Ok(output)),
            (None, Some(failed), None) => Ok(Err(AttemptError::Failed(failed.into()))),
            (None, None, Some(question)) => Ok(Err(AttemptError::InputRequired(question))),
            _ => Err(ApiProblem::bad_request(
                "the report must have exactly one of output, failure and inputRequired",
            )),
        }
    }
}

impl From<HostAnswer> for AnsweredCall {
    fn from(answer: HostAnswer) -> Self {
        match answer {
            HostAnswer::Output { output } => Self::Ran(Ok(output)),
            HostAnswer::Failure { failure } => Self::Ran(Err(failure.into())),
            HostAnswer::InvalidArguments { message } => Self::InvalidArguments { message },
            HostAnswer::UnknownTool { message } => Self::UnknownTool { message },
            HostAnswer::Denied { message } => Self::Denied { message },
        }
    }
}

impl From<HostFailure> for ToolFault {
    fn from(failed: HostFailure) -> Self {
        let source = failed.source.map_or(FaultSource::Tool, FaultSource::from);
        let retry_after = failed.retry_after_ms.map(|ms| RetryAfter::Delay(Duration::from_millis(ms)));
        Self {
            fault: AttemptFault { retry_after, ..AttemptFault::new(source, failed.message) },
            output: failed.output,
        }
    }
}

impl From<HostFailureSource> for FaultSource {
    fn from(source: HostFailureSource) -> Self {
        match source {
            HostFailureSource::Tool {} => Self::Tool,
            HostFailureSource::Http { status } => Self::Http { status },
            HostFailureSource::JsonRpc { code } => Self::JsonRpc { code },
            HostFailureSource::IsError {} => Self::IsError,
            HostFailureSource::Transport { error, written } => Self::Transport { error, written },
            HostFailureSource::WebSocket { code } => Self::WebSocket { code },
            HostFailureSource::Exit { code, signal } => Self::Exit { code, signal },
            HostFailureSource::Timeout { after_ms } => {
                Self::Timeout { after: Duration::from_millis(after_ms) }
            }
            HostFailureSource::BadAnswer {} => Self::BadAnswer,
        }
    }
}

/// Converts an error of the engine about the call of this id.
fn refused(error: &HostError, id: &str) -> ApiProblem {
    if error.is_no_such_call() {
        ApiProblem::no_such("call", id)
            .because(&"it never began in this process, or it has ended; begin it again")
    } else {
        ApiProblem::new(StatusCode::CONFLICT, "conflict", error.to_string())
    }
}
