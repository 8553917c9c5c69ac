//! `tools/call`: the envelope that the engine takes, and the tool that it runs.

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

/// The envelope of a call.
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
        // By its form the model can be guessed that made it, where nobody names one.
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

/// For whom a call is made.
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

/// The tags of a request.
pub(crate) fn control(said: &Said) -> TurnControl {
    TurnControl { request_tags: said.tags.clone(), from_hook: said.hook.clone(), unknown: Unknown::new() }
}

/// The trace that a request belongs to.
pub(crate) fn trace(said: &Said) -> Trace {
    let (traceparent, baggage) = (said.traceparent.clone(), said.baggage.clone());
    Trace { traceparent, baggage, unknown: Unknown::new() }
}

/// An envelope with nothing in it, by which the policy of a tool is found.
pub(crate) fn envelope_of(server: &Namespace, tool: ToolName, connection: &Connection) -> CallEnvelope {
    envelope(next_request(None), server, tool, "{}".to_owned(), Said::default(), connection)
}

/// The name under which the policy of a server stands for what it is asked beside calls.
#[expect(clippy::expect_used, reason = "a constant that is a name")]
pub(crate) fn requests() -> ToolName {
    ToolName::new("requests").expect("it is short and printable")
}

/// The conversation of those who name none.
#[expect(clippy::expect_used, reason = "a constant that is a session key")]
fn nobody_knows() -> SessionKey {
    SessionKey::new("unknown").expect("it is short and printable")
}

/// The number of the next request of this process.
static NEXT: AtomicU64 = AtomicU64::new(1);
static PROCESS: LazyLock<u32> = LazyLock::new(std::process::id);

/// What stands before the client's own id of a request in our name for it.
const ITS_OWN: char = '#';
/// The longest id of a client that is kept.
const LONGEST_ID: usize = 64;

/// A name for a request, unlike all others of this process. Where the client may come back for the answer after we have
/// gone, it has the client's own id in it, so that whoever finds the record can answer. An id that is long or odd is left
/// out: then the answer is found by calling again.
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

/// How many requests this process has named so far.
pub(crate) fn named_so_far() -> u64 {
    NEXT.load(Ordering::Relaxed)
}

/// The number that a request has in its process, and the client's own id of it.
pub(crate) fn named(request: &RequestId) -> Option<(u64, Id)> {
    let (ours, id) = request.as_str().split_once(ITS_OWN)?;
    let (_, number) = ours.strip_prefix("mcp-")?.split_once('-')?;
    Some((number.parse().ok()?, Id::parse(id)?))
}

/// A tool of a server behind us, as one request wants it.
pub(crate) enum Upstream {
    At {
        server: Arc<Server>,
        /// What goes before it.
        outbox: Arc<Outbox>,
        request: Message,
        news: Option<Arc<News>>,
        sent_to: SentTo,
        /// What stands before the names of its tools.
        prefix: Option<Box<str>>,
    },
    /// No server has it, and this is what is said then.
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

/// Where the last attempt of a call was sent to.
#[derive(Clone)]
pub(crate) struct SentTo(Arc<watch::Sender<Option<Sent>>>);

impl Default for SentTo {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

/// Ends the last attempt of a call, and comes back when nothing is left of it.
pub(crate) async fn end(server: Arc<Server>, sent_to: SentTo, settling: SettlingPolicy) {
    let mut sent = sent_to.0.subscribe();
    // Until it is sent, whoever makes the attempt may say that it is not.
    let sent = sent.wait_for(Option::is_some).await.ok().and_then(|sent| sent.clone());
    match sent {
        Some(sent) => server.end(sent, settling).await,
        None => std::future::pending().await,
    }
}

/// A request as the server gets it: with the key, the number of the attempt and the time that is left.
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
    // What the client sent in the same place goes on as it stands.
    if request.meta_member("baggage").is_none()
        && let Some(baggage) = write_baggage(&attempt.envelope.trace.baggage)
    {
        sent = sent.meta("baggage", RawJson::string(&baggage));
    }
    sent.finish()
}

/// Sends it, and waits for the answer as long as it is wanted.
pub(crate) async fn run(
    server: Arc<Server>,
    sent: Message,
    hear: Option<Hear>,
    attempt: Attempt,
    sent_to: SentTo,
) -> Answer {
    server.handshake.spoke();
    sent_to.0.send_replace(None);
    // What is not sent yet is not sent any more when nobody wants it.
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
            // Seldom done, and not small.
            let withdrawing = Box::pin(server.withdraw(&place));
            let mut answering = pin!(place.answer());
            // What it still says counts, also while it does not take that nobody wants it.
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
