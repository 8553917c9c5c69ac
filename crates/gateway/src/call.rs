//! `tools/call`: the envelope that the engine takes, and the tool that it runs.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use steadfast_core::call::CallId;
use steadfast_core::envelope::{
    CallEnvelope, CallHints, ContractVersion, Control, Payload, PayloadVersion, Target, Trace, Transport,
    Unknown,
};
use steadfast_core::id::{Namespace, RequestId, SessionKey, ToolName};
use steadfast_core::output::RawJson as Kept;
use steadfast_executor::{Answer, Attempt, Tool};
use steadfast_mcp::message::{Id, Message, code};
use steadfast_mcp::raw::RawJson;

use crate::made::answer_of;
use crate::news::News;
use crate::outbox::Outbox;
use crate::server::{Hear, Server};
use crate::servers::Behind;
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
            idempotency_key: said.key,
            call_hints: CallHints::default(),
            unknown: Unknown::new(),
        },
        transport: Transport::default(),
        control: Control::default(),
        trace: Trace { traceparent: said.traceparent, ..Trace::default() },
        unknown: Unknown::new(),
    }
}

/// For whom a call is made.
pub(crate) fn target(said: &Said, connection: &Connection) -> Target {
    Target {
        agent_id: None,
        session_key: said.session.clone().unwrap_or_else(nobody_knows),
        actor_id: connection.actor.clone(),
        workspace_id: None,
        correlation_id: None,
        tenant_id: connection.tenant.clone(),
        turn_id: said.turn.clone(),
        model_id: said.model.clone(),
        domain: None,
        unknown: Unknown::new(),
    }
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
    },
    /// No server has it, and this is what is said then.
    Nowhere { why: String },
}

impl Upstream {
    pub(crate) fn at(behind: &Behind, request: Message, news: Option<Arc<News>>) -> Self {
        Self::At { server: behind.server.clone(), outbox: behind.outbox.clone(), request, news }
    }

    pub(crate) fn nowhere(why: String) -> Self {
        Self::Nowhere { why }
    }
}

impl Tool for Upstream {
    fn run(&self, attempt: Attempt) -> impl Future<Output = Answer> + Send + 'static {
        let wanted = match self {
            Self::At { server, outbox, request, news } => {
                let pulse = attempt.clone();
                let hear = news.clone().map(|news| news.hear(move || pulse.progress()));
                Ok((server.clone(), outbox.clone(), hear, sent(request, &attempt)))
            }
            Self::Nowhere { why } => {
                let refusal = Message::error_response(None, code::INVALID_PARAMS, why, None);
                Err(answer_of(&refusal))
            }
        };
        async move {
            match wanted {
                Ok((server, outbox, hear, sent)) => {
                    outbox.is_behind().await;
                    run(server, sent, hear, attempt).await
                }
                Err(refused) => refused,
            }
        }
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
    if let Some(deadline) = attempt.deadline {
        sent = sent.meta("dev.steadfast/deadline", RawJson::number(deadline.as_millis()));
    }
    if let Some(trace) = &attempt.traceparent {
        sent = sent.meta("traceparent", RawJson::string(trace));
    }
    sent.finish()
}

/// Sends it, and waits for the answer as long as it is wanted.
pub(crate) async fn run(server: Arc<Server>, sent: Message, hear: Option<Hear>, attempt: Attempt) -> Answer {
    server.handshake.spoke();
    let mut place = server.send(&sent, hear).await?;
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
