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
use steadfast_mcp::message::{Message, code};
use steadfast_mcp::raw::RawJson;

use crate::made::answer_of;
use crate::news::News;
use crate::outbox::Outbox;
use crate::server::Server;
use crate::servers::Behind;
use crate::who::{Connection, Said};

/// The envelope of a call.
pub(crate) fn envelope(
    server: &Namespace,
    tool: ToolName,
    arguments: String,
    said: Said,
    connection: &Connection,
) -> CallEnvelope {
    CallEnvelope {
        contract_version: ContractVersion::V1_1,
        request_id: next_request(),
        // By its form the model can be guessed that made it, where nobody names one.
        tool_call_id: said.call_id.as_ref().map(|id| match id {
            CallId::Unique(id) | CallId::InSession(id) => id.clone(),
        }),
        tool_name: tool,
        tool_namespace: server.clone(),
        target: Target {
            agent_id: None,
            session_key: said.session.unwrap_or_else(nobody_knows),
            actor_id: connection.actor.clone(),
            workspace_id: None,
            correlation_id: None,
            tenant_id: None,
            turn_id: said.turn,
            model_id: said.model,
            domain: None,
            unknown: Unknown::new(),
        },
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

/// An envelope with nothing in it, by which the policy of a tool is found.
pub(crate) fn envelope_of(server: &Namespace, tool: ToolName, connection: &Connection) -> CallEnvelope {
    envelope(server, tool, "{}".to_owned(), Said::default(), connection)
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

/// A name for a request, unlike all others of this process.
#[expect(clippy::expect_used, reason = "two numbers and two hyphens")]
fn next_request() -> RequestId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    static PROCESS: LazyLock<u32> = LazyLock::new(std::process::id);
    let text = format!("mcp-{}-{}", *PROCESS, NEXT.fetch_add(1, Ordering::Relaxed));
    RequestId::new(text).expect("it is short and printable")
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
        let running = match self {
            Self::At { server, outbox, request, news } => {
                let (server, outbox, news) = (server.clone(), outbox.clone(), news.clone());
                let sent = sent(request, &attempt);
                Ok(async move {
                    outbox.is_behind().await;
                    run(server, sent, news, attempt).await
                })
            }
            Self::Nowhere { why } => {
                let refusal = Message::error_response(None, code::INVALID_PARAMS, why, None);
                Err(answer_of(&refusal))
            }
        };
        async {
            match running {
                Ok(running) => running.await,
                Err(refused) => refused,
            }
        }
    }
}

/// A request as the server gets it: with the key, the number of the attempt and the time that is left.
fn sent(request: &Message, attempt: &Attempt) -> Message {
    if attempt.modes.are_off() {
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

async fn run(server: Arc<Server>, sent: Message, news: Option<Arc<News>>, attempt: Attempt) -> Answer {
    server.handshake.spoke();
    let pulse = attempt.clone();
    let hear = news.map(|news| news.hear(move || pulse.progress()));
    let mut place = server.send(&sent, hear).await?;
    let answer = tokio::select! {
        answer = place.answer() => Some(answer),
        () = attempt.cancelled() => None,
    };
    let answer = match answer {
        Some(answer) => answer,
        None => {
            let withdrawing = server.withdraw(&place);
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
