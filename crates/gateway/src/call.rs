//! `tools/call`: the envelope for the engine, and the upstream tool that the engine runs.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use steadfast_core::call::{AttemptEnd, CallId};
use steadfast_core::envelope::{
    CallEnvelope, CallHints, ContractVersion, Control, Payload, PayloadVersion, Target, Trace, Transport,
    TurnControl, Unknown, write_baggage,
};
use steadfast_core::id::{Namespace, RequestId, SessionKey, ToolName};
use steadfast_core::output::RawJson as Kept;
use steadfast_core::policy::SettlingPolicy;
use steadfast_executor::{Answer, Attempt, Description, Tool};
use steadfast_mcp::message::{Id, Message, code};
use steadfast_mcp::raw::RawJson;
use tokio::sync::watch;

use crate::made::answer_of;
use crate::news::News;
use crate::outbox::Outbox;
use crate::server::{Hear, Sent, Server, gone, meta_of};
use crate::servers::{Behind, reads_of};
use crate::who::{Connection, Said};

/// Builds the envelope of a call.
pub(crate) fn envelope(
    request: RequestId,
    server: &Namespace,
    tool: ToolName,
    arguments: String,
    said: Said,
    connection: &Connection,
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
        payload: Payload {
            version: PayloadVersion::V1_0,
            params: Kept::from_trusted(arguments),
            idempotency_key: said.key.clone(),
            call_hints: CallHints::default(),
            unknown: Unknown::new(),
        },
        transport: Transport::default(),
        control: Control { request_tags, from_hook, ..Control::default() },
        trace: trace(&said),
        unknown: Unknown::new(),
    }
}

/// Returns the target of a call: the caller, its session and its turn.
pub(crate) fn target(said: &Said, connection: &Connection) -> Target {
    Target {
        agent_id: said.agent.clone(),
        session_key: said.session.clone().unwrap_or_else(nobody_knows),
        actor_id: connection.actor.clone(),
        workspace_id: None,
        correlation_id: said.correlation.clone(),
        tenant_id: connection.tenant.clone(),
        turn_id: said.turn.clone(),
        model_id: said.model.clone(),
        domain: None,
        unknown: Unknown::new(),
    }
}

/// Returns the tags of a request.
pub(crate) fn control(said: &Said) -> TurnControl {
    TurnControl { request_tags: said.tags.clone(), from_hook: said.hook.clone(), unknown: Unknown::new() }
}

/// Returns the trace context of a request.
pub(crate) fn trace(said: &Said) -> Trace {
    let (traceparent, baggage) = (said.traceparent.clone(), said.baggage.clone());
    Trace { traceparent, baggage, unknown: Unknown::new() }
}

/// Builds an empty envelope for looking up the policy of a tool.
pub(crate) fn envelope_of(server: &Namespace, tool: ToolName, connection: &Connection) -> CallEnvelope {
    envelope(next_request(None), server, tool, "{}".to_owned(), Said::default(), connection)
}

/// The tool name whose policy applies to requests other than calls.
#[expect(clippy::expect_used, reason = "a constant that is a name")]
pub(crate) fn requests() -> ToolName {
    ToolName::new("requests").expect("it is short and printable")
}

/// The session key of callers that name no session.
#[expect(clippy::expect_used, reason = "a constant that is a session key")]
fn nobody_knows() -> SessionKey {
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
pub(crate) fn next_request(of: Option<&Id>) -> RequestId {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let is_plain = |id: &&str| id.len() <= LONGEST_ID && id.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let text = match of.map(Id::as_str).filter(is_plain) {
        Some(id) => format!("mcp-{}-{number}{ITS_OWN}{id}", *PROCESS),
        None => format!("mcp-{}-{number}", *PROCESS),
    };
    RequestId::new(text).expect("it is short and printable")
}

/// Returns the number that the next request of this process gets.
pub(crate) fn named_so_far() -> u64 {
    NEXT.load(Ordering::Relaxed)
}

/// Parses the number of a request in its process, and the client's own id.
pub(crate) fn named(request: &RequestId) -> Option<(u64, Id)> {
    let (ours, id) = request.as_str().split_once(ITS_OWN)?;
    let (_, number) = ours.strip_prefix("mcp-")?.split_once('-')?;
    Some((number.parse().ok()?, Id::parse(id)?))
}

/// A tool of an upstream server, as one request calls it.
pub(crate) enum Upstream {
    At {
        server: Arc<Server>,
        /// Notifications for the server that are sent before the call.
        outbox: Arc<Outbox>,
        request: Message,
        news: Option<Arc<News>>,
        sent_to: SentTo,
        /// The prefix of the tool names of this server.
        prefix: Option<Box<str>>,
    },
    /// No server has the tool. The call is refused with this message.
    Nowhere { why: String },
}

impl Upstream {
    pub(crate) fn at(behind: &Behind, request: Message, news: Option<Arc<News>>) -> Self {
        let Behind { server, outbox, prefix, .. } = behind;
        let (server, outbox, prefix) = (server.clone(), outbox.clone(), prefix.clone());
        Self::At { server, outbox, request, news, sent_to: SentTo::default(), prefix }
    }

    pub(crate) fn nowhere(why: String) -> Self {
        Self::Nowhere { why }
    }
}

impl Tool for Upstream {
    fn run(&self, attempt: Attempt) -> impl Future<Output = Answer> + Send + 'static {
        let wanted = match self {
            Self::At { server, outbox, request, news, sent_to, .. } => {
                let pulse = attempt.clone();
                let hear = news.clone().map(|news| news.hear(move || pulse.progress()));
                Ok((server.clone(), outbox.clone(), hear, sent(request, &attempt), sent_to.clone()))
            }
            Self::Nowhere { why } => {
                let refusal = Message::error_response(None, code::INVALID_PARAMS, why, None);
                Err(answer_of(&refusal))
            }
        };
        async move {
            match wanted {
                Ok((server, outbox, hear, sent, sent_to)) => {
                    outbox.is_behind().await;
                    run(server, sent, hear, attempt, sent_to).await
                }
                Err(refused) => refused,
            }
        }
    }

    fn sees_end(&self) -> AttemptEnd {
        match self {
            Self::At { server, .. } => server.sees_end(),
            Self::Nowhere { .. } => AttemptEnd::Unseen,
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

    fn describe(&self) -> impl Future<Output = Option<Description>> + Send + 'static {
        let asked = match self {
            Self::At { server, outbox, request, prefix, .. } if !server.catalog.is_listed() => {
                Some((server.clone(), outbox.clone(), request.clone(), prefix.clone()))
            }
            Self::At { .. } | Self::Nowhere { .. } => None,
        };
        async move {
            let (server, outbox, request, prefix) = asked?;
            outbox.is_behind().await;
            server.handshake.spoke();
            server.list_once(meta_of(&request).as_ref()).await;
            let info = request.param_text("name").and_then(|name| server.catalog.tool(&name));
            Some(Description { info, reads: reads_of(&server, prefix.as_deref()) })
        }
    }
}

/// The server generation and request number of the last attempt of a call.
#[derive(Clone)]
pub(crate) struct SentTo(Arc<watch::Sender<Option<Sent>>>);

impl Default for SentTo {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

/// Ends the last attempt of a call. Returns when the attempt can no longer take effect.
pub(crate) async fn end(server: Arc<Server>, sent_to: SentTo, settling: SettlingPolicy) {
    let mut sent = sent_to.0.subscribe();
    // Until the request is sent, the code that makes the attempt may still report that it was not sent.
    let sent = sent.wait_for(Option::is_some).await.ok().and_then(|sent| sent.clone());
    match sent {
        Some(sent) => server.end(sent, settling).await,
        None => std::future::pending().await,
    }
}

/// Returns the request as it is sent to the server: with idempotency key, attempt number and deadline.
pub(crate) fn sent(request: &Message, attempt: &Attempt) -> Message {
    if attempt.modes.leave_alone() {
        return request.clone();
    }
    let mut sent = request
        .rewrite()
        .meta("dev.steadfast/idempotency-key", RawJson::string(attempt.idempotency_key()))
        .meta("dev.steadfast/attempt", RawJson::number(attempt.number.into()));
    if attempt.has_key_argument()
        && let Ok(arguments) = RawJson::parse(attempt.params().to_owned())
    {
        sent = sent.param("arguments", arguments);
    }
    if let Some(deadline) = attempt.deadline {
        sent = sent.meta("dev.steadfast/deadline", RawJson::number(deadline.as_millis()));
    }
    if let Some(trace) = &attempt.traceparent {
        sent = sent.meta("traceparent", RawJson::string(trace));
    }
    // Baggage that the client itself sent in `_meta` is kept unchanged.
    if request.meta_member("baggage").is_none()
        && let Some(baggage) = write_baggage(&attempt.envelope.trace.baggage)
    {
        sent = sent.meta("baggage", RawJson::string(&baggage));
    }
    sent.finish()
}

/// Sends the request and waits for the answer until the attempt is cancelled.
pub(crate) async fn run(
    server: Arc<Server>,
    sent: Message,
    hear: Option<Hear>,
    attempt: Attempt,
    sent_to: SentTo,
) -> Answer {
    server.handshake.spoke();
    sent_to.0.send_replace(None);
    // A request that is not sent yet is not sent after a cancellation.
    tokio::select! {
        biased;
        () = attempt.cancelled() => return Err(gone("its server was not ready").into()),
        ready = server.may_be_asked() => ready?,
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
            let before = named_so_far();
            let (number, own) = named(&next_request(Id::parse(id).as_ref())).unwrap();
            assert_eq!(own.as_str(), id);
            assert!(number >= before);
        }
        let long = format!("\"{}\"", "x".repeat(LONGEST_ID));
        for id in [None, Id::parse(&long), Id::parse("\"\u{e4}\"")] {
            assert_eq!(named(&next_request(id.as_ref())), None, "{id:?}");
        }
    }
}
