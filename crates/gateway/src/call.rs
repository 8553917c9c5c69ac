//! `tools/call`: the envelope for the engine, and the upstream tool that the engine runs.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use steadfast_core::call::{AttemptEndVisibility, CallId};
use steadfast_core::envelope::{
    CallControl, CallEnvelope, CallHints, CallPayload, CallerIdentity, ContractVersion, EnvelopeTrace,
    ExtraFields, PayloadVersion, TransportOptions, TurnControl, write_baggage,
};
use steadfast_core::id::{Namespace, RequestId, SessionKey, ToolName};
use steadfast_core::policy::SettlingPolicy;
use steadfast_executor::{Attempt, ToolDescription, ToolHandler, ToolResult};
use steadfast_json::RawJson as Kept;
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::{RpcId, RpcMessage, code};
use tokio::sync::watch;

use crate::identity::{ClientIdentity, RequestContext};
use crate::outbox::Outbox;
use crate::request_notifications::RequestNotifications;
use crate::responses::answer_of;
use crate::server::{NotificationHandler, SentRequest, UpstreamServer, meta_of, not_sent};
use crate::servers::{BackingServer, reads_of};

/// Builds the envelope of a call.
pub(crate) fn envelope(
    request: RequestId,
    server: &Namespace,
    tool: ToolName,
    arguments: String,
    said: RequestContext,
    connection: &ClientIdentity,
) -> CallEnvelope {
    let TurnControl { request_tags, from_hook, .. } = control(&said);
    CallEnvelope {
        contract_version: ContractVersion::V1_1,
        request_id: request,
        // Its format reveals the model of the caller if no field names one.
        tool_call_id: said.call_id.as_ref().map(|id| match id {
            CallId::Unique(id) | CallId::InSession(id) => id.clone(),
        }),
        tool_name: tool,
        tool_namespace: server.clone(),
        target: target(&said, connection),
        payload: CallPayload {
            version: PayloadVersion::V1_0,
            params: Kept::from_trusted(arguments),
            idempotency_key: said.key.clone(),
            call_hints: CallHints::default(),
            unknown: ExtraFields::new(),
        },
        transport: TransportOptions::default(),
        control: CallControl { request_tags, from_hook, ..CallControl::default() },
        trace: trace(&said),
        unknown: ExtraFields::new(),
    }
}

/// Returns the target of a call: the caller, its session and its turn.
pub(crate) fn target(said: &RequestContext, connection: &ClientIdentity) -> CallerIdentity {
    CallerIdentity {
        agent_id: said.agent.clone(),
        session_key: said.session.clone().unwrap_or_else(unknown_session),
        actor_id: connection.actor.clone(),
        workspace_id: None,
        correlation_id: said.correlation.clone(),
        tenant_id: connection.tenant.clone(),
        turn_id: said.turn.clone(),
        model_id: said.model.clone(),
        domain: None,
        unknown: ExtraFields::new(),
    }
}

/// Returns the tags of a request.
pub(crate) fn control(said: &RequestContext) -> TurnControl {
    TurnControl { request_tags: said.tags.clone(), from_hook: said.hook.clone(), unknown: ExtraFields::new() }
}

/// Returns the trace context of a request.
pub(crate) fn trace(said: &RequestContext) -> EnvelopeTrace {
    let (traceparent, baggage) = (said.traceparent.clone(), said.baggage.clone());
    EnvelopeTrace { traceparent, baggage, unknown: ExtraFields::new() }
}

/// Builds an empty envelope for looking up the policy of a tool.
pub(crate) fn envelope_of(server: &Namespace, tool: ToolName, connection: &ClientIdentity) -> CallEnvelope {
    envelope(next_request(None), server, tool, "{}".to_owned(), RequestContext::default(), connection)
}

/// The tool name whose policy applies to requests other than calls.
#[expect(clippy::expect_used, reason = "a constant that is a name")]
pub(crate) fn requests() -> ToolName {
    ToolName::new("requests").expect("it is short and printable")
}

/// The session key of callers that name no session.
#[expect(clippy::expect_used, reason = "a constant that is a session key")]
fn unknown_session() -> SessionKey {
    SessionKey::new("unknown").expect("it is short and printable")
}

/// The number of the next request of this process.
static NEXT: AtomicU64 = AtomicU64::new(1);
static PROCESS: LazyLock<u32> = LazyLock::new(std::process::id);

/// Separates our number from the client's own id in the name of a request.
const ITS_OWN: char = '#';
/// The longest client id that a request name includes.
const LONGEST_ID: usize = 64;

/// Returns a name for a request, unique in this process. If the client may fetch the answer after a restart of the
/// gateway, the name contains the client's own id, so that the process that finds the record can answer it. An id that
/// is long or has unusual characters is left out. The client then gets the answer by calling again.
#[expect(clippy::expect_used, reason = "two numbers, a few signs, and an id that was looked at")]
pub(crate) fn next_request(of: Option<&RpcId>) -> RequestId {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let is_plain = |id: &&str| id.len() <= LONGEST_ID && id.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let text = match of.map(RpcId::as_str).filter(is_plain) {
        Some(id) => format!("mcp-{}-{number}{ITS_OWN}{id}", *PROCESS),
        None => format!("mcp-{}-{number}", *PROCESS),
    };
    RequestId::new(text).expect("it is short and printable")
}

/// Returns the number that the next request of this process gets.
pub(crate) fn next_request_number() -> u64 {
    NEXT.load(Ordering::Relaxed)
}

/// Parses the number of a request in its process, and the client's own id.
pub(crate) fn named(request: &RequestId) -> Option<(u64, RpcId)> {
    let (ours, id) = request.as_str().split_once(ITS_OWN)?;
    let (_, number) = ours.strip_prefix("mcp-")?.split_once('-')?;
    Some((number.parse().ok()?, RpcId::parse(id)?))
}

/// A tool of an upstream server, as one request calls it.
pub(crate) enum UpstreamTool {
    At {
        server: Arc<UpstreamServer>,
        /// Notifications for the server that are sent before the call.
        outbox: Arc<Outbox>,
        request: RpcMessage,
        news: Option<Arc<RequestNotifications>>,
        sent_to: SentAttempt,
        /// The prefix of the tool names of this server.
        prefix: Option<Box<str>>,
    },
    /// No server has the tool. The call is refused with this message.
    Nowhere { why: String },
}

impl UpstreamTool {
    pub(crate) fn at(
        behind: &BackingServer,
        request: RpcMessage,
        news: Option<Arc<RequestNotifications>>,
    ) -> Self {
        let BackingServer { server, outbox, prefix, .. } = behind;
        let (server, outbox, prefix) = (server.clone(), outbox.clone(), prefix.clone());
        Self::At { server, outbox, request, news, sent_to: SentAttempt::default(), prefix }
    }

    pub(crate) fn nowhere(why: String) -> Self {
        Self::Nowhere { why }
    }
}

impl ToolHandler for UpstreamTool {
    fn run(&self, attempt: Attempt) -> impl Future<Output = ToolResult> + Send + 'static {
        let wanted = match self {
            Self::At { server, outbox, request, news, sent_to, .. } => {
                let pulse = attempt.clone();
                let hear = news.clone().map(|news| news.hear(move || pulse.progress()));
                Ok((server.clone(), outbox.clone(), hear, sent(request, &attempt), sent_to.clone()))
            }
            Self::Nowhere { why } => {
                let refusal = RpcMessage::error_response(None, code::INVALID_PARAMS, why, None);
                Err(answer_of(&refusal))
            }
        };
        async move {
            match wanted {
                Ok((server, outbox, hear, sent, sent_to)) => {
                    outbox.wait_for_earlier().await;
                    run(server, sent, hear, attempt, sent_to).await
                }
                Err(refused) => refused,
            }
        }
    }

    fn sees_end(&self) -> AttemptEndVisibility {
        match self {
            Self::At { server, .. } => server.sees_end(),
            Self::Nowhere { .. } => AttemptEndVisibility::Hidden,
        }
    }

    fn end(&self, settling: SettlingPolicy) -> impl Future<Output = ()> + Send + 'static {
        let sent = match self {
            Self::At { server, sent_to, .. } => Some((server.clone(), sent_to.clone())),
            Self::Nowhere { .. } => None,
        };
        async move {
            match sent {
                Some((server, sent_to)) => end(server, sent_to, settling).await,
                None => std::future::pending().await,
            }
        }
    }

    fn describe(&self) -> impl Future<Output = Option<ToolDescription>> + Send + 'static {
        let asked = match self {
            Self::At { server, outbox, request, prefix, .. } if !server.catalog.is_listed() => {
                Some((server.clone(), outbox.clone(), request.clone(), prefix.clone()))
            }
            Self::At { .. } | Self::Nowhere { .. } => None,
        };
        async move {
            let (server, outbox, request, prefix) = asked?;
            outbox.wait_for_earlier().await;
            server.handshake.spoke();
            server.list_once(meta_of(&request).as_ref()).await;
            let info = request.param_text("name").and_then(|name| server.catalog.tool(&name));
            Some(ToolDescription { info, reads: reads_of(&server, prefix.as_deref()) })
        }
    }
}

/// The server generation and request number of the last attempt of a call.
#[derive(Clone)]
pub(crate) struct SentAttempt(Arc<watch::Sender<Option<SentRequest>>>);

impl Default for SentAttempt {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

/// Ends the last attempt of a call. Returns when the attempt can no longer take effect.
pub(crate) async fn end(server: Arc<UpstreamServer>, sent_to: SentAttempt, settling: SettlingPolicy) {
    let mut sent = sent_to.0.subscribe();
    // Until the request is sent, the code that makes the attempt may still report that it was not sent.
    let sent = sent.wait_for(Option::is_some).await.ok().and_then(|sent| sent.clone());
    match sent {
        Some(sent) => server.end(sent, settling).await,
        None => std::future::pending().await,
    }
}

/// Returns the request as it is sent to the server: with idempotency key, attempt number and deadline.
pub(crate) fn sent(request: &RpcMessage, attempt: &Attempt) -> RpcMessage {
    if attempt.modes.is_pass_through() {
        return request.clone();
    }
    let mut sent = request
        .rewrite()
        .meta("dev.steadfast/idempotency-key", JsonText::string(attempt.idempotency_key()))
        .meta("dev.steadfast/attempt", JsonText::number(attempt.number.into()));
    if attempt.has_key_argument()
        && let Ok(arguments) = JsonText::parse(attempt.params().to_owned())
    {
        sent = sent.param("arguments", arguments);
    }
    if let Some(deadline) = attempt.deadline {
        sent = sent.meta("dev.steadfast/deadline", JsonText::number(deadline.as_millis()));
    }
    if let Some(trace) = &attempt.traceparent {
        sent = sent.meta("traceparent", JsonText::string(trace));
    }
    // Baggage that the client itself sent in `_meta` is kept unchanged.
    if request.meta_member("baggage").is_none()
        && let Some(baggage) = write_baggage(&attempt.envelope.trace.baggage)
    {
        sent = sent.meta("baggage", JsonText::string(&baggage));
    }
    sent.finish()
}

/// Sends the request and waits for the answer until the attempt is cancelled.
pub(crate) async fn run(
    server: Arc<UpstreamServer>,
    sent: RpcMessage,
    hear: Option<NotificationHandler>,
    attempt: Attempt,
    sent_to: SentAttempt,
) -> ToolResult {
    server.handshake.spoke();
    sent_to.0.send_replace(None);
    // A request that is not sent yet is not sent after a cancellation.
    tokio::select! {
        biased;
        () = attempt.cancelled() => return Err(not_sent("its server was not ready").into()),
        ready = server.wait_until_sendable() => ready?,
    }
    let mut place = server.send(&sent, hear).await?;
    sent_to.0.send_replace(Some(place.sent()));
    let answer = tokio::select! {
        answer = place.answer() => Some(answer),
        () = attempt.cancelled() => None,
    };
    let answer = match answer {
        Some(answer) => answer,
        None => {
            // Rare, and a large future.
            let withdrawing = Box::pin(server.withdraw(&place));
            let mut answering = pin!(place.answer());
            // An answer still counts, even while the cancellation is being sent.
            tokio::select! {
                answer = &mut answering => answer,
                () = withdrawing => answering.await,
            }
        }
    };
    answer_of(&answer?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_request_has_the_id_of_its_client_in_it_if_that_is_plain() {
        for id in ["7", "-1", "\"a#b\"", "\"a b\""] {
            let before = next_request_number();
            let (number, own) = named(&next_request(RpcId::parse(id).as_ref())).unwrap();
            assert_eq!(own.as_str(), id);
            assert!(number >= before);
        }
        let long = format!("\"{}\"", "x".repeat(LONGEST_ID));
        for id in [None, RpcId::parse(&long), RpcId::parse("\"\u{e4}\"")] {
            assert_eq!(named(&next_request(id.as_ref())), None, "{id:?}");
        }
    }
}
