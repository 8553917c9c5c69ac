//! The upstream tool that the engine runs for `tools/call`: one request, sent to its server in each attempt.

use std::pin::pin;
use std::sync::Arc;

use steadfast_core::call::AttemptEndVisibility;
use steadfast_core::envelope::write_baggage;
use steadfast_core::policy::SettlingPolicy;
use steadfast_executor::{Attempt, ToolDescription, ToolHandler, ToolResult};
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::{RpcMessage, code};
use tokio::sync::watch;

use crate::calls::responses::answer_of;
use crate::client::request_notifications::RequestNotifications;
use crate::servers::backing::{BackingServer, reads_of};
use crate::servers::outbox::Outbox;
use crate::servers::upstream::{NotificationHandler, SentRequest, UpstreamServer, meta_of, not_sent};

/// A tool of an upstream server, as one request calls it.
pub(crate) enum UpstreamTool {
    At {
        server: Arc<UpstreamServer>,
        /// Notifications for the server that are sent before the call.
        outbox: Arc<Outbox>,
        request: RpcMessage,
        notifications: Option<Arc<RequestNotifications>>,
        sent_to: SentAttempt,
        /// The prefix of the tool names of this server.
        prefix: Option<Box<str>>,
    },
    /// No server has the tool. The call is refused with this message.
    Nowhere { reason: String },
}

impl UpstreamTool {
    pub(crate) fn at(
        behind: &BackingServer,
        request: RpcMessage,
        notifications: Option<Arc<RequestNotifications>>,
    ) -> Self {
        let BackingServer { server, outbox, prefix, .. } = behind;
        let (server, outbox, prefix) = (server.clone(), outbox.clone(), prefix.clone());
        Self::At { server, outbox, request, notifications, sent_to: SentAttempt::default(), prefix }
    }

    pub(crate) fn nowhere(reason: String) -> Self {
        Self::Nowhere { reason }
    }
}

impl ToolHandler for UpstreamTool {
    fn run(&self, attempt: Attempt) -> impl Future<Output = ToolResult> + Send + 'static {
        let target = match self {
            Self::At { server, outbox, request, notifications, sent_to, .. } => {
                let pulse = attempt.clone();
                let on_notification = notifications
                    .clone()
                    .map(|notifications| notifications.into_handler(move || pulse.progress()));
                Ok((
                    server.clone(),
                    outbox.clone(),
                    on_notification,
                    sent(request, &attempt),
                    sent_to.clone(),
                ))
            }
            Self::Nowhere { reason } => {
                let refusal = RpcMessage::error_response(None, code::INVALID_PARAMS, reason, None);
                Err(answer_of(&refusal))
            }
        };
        async move {
            match target {
                Ok((server, outbox, on_notification, sent, sent_to)) => {
                    outbox.wait_for_earlier().await;
                    run(server, sent, on_notification, attempt, sent_to).await
                }
                Err(refused) => refused,
            }
        }
    }

    fn sees_end(&self) -> AttemptEndVisibility {
        match self {
            Self::At { server, .. } => server.end_visibility(),
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
        let target = match self {
            Self::At { server, outbox, request, prefix, .. } if !server.catalog.is_listed() => {
                Some((server.clone(), outbox.clone(), request.clone(), prefix.clone()))
            }
            Self::At { .. } | Self::Nowhere { .. } => None,
        };
        async move {
            let (server, outbox, request, prefix) = target?;
            outbox.wait_for_earlier().await;
            server.handshake.mark_started();
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
    on_notification: Option<NotificationHandler>,
    attempt: Attempt,
    sent_to: SentAttempt,
) -> ToolResult {
    server.handshake.mark_started();
    sent_to.0.send_replace(None);
    // A request that is not sent yet is not sent after a cancellation.
    tokio::select! {
        biased;
        () = attempt.cancelled() => return Err(not_sent("its server was not ready").into()),
        ready = server.wait_until_sendable() => ready?,
    }
    let mut place = server.send(&sent, on_notification).await?;
    sent_to.0.send_replace(Some(place.sent()));
    let answer = tokio::select! {
        answer = place.answer() => Some(answer),
        () = attempt.cancelled() => None,
    };
    let answer = match answer {
        Some(answer) => answer,
        None => {
            // Rare, and a large future.
            let cancelling = Box::pin(server.cancel_at_server(&place));
            let mut answering = pin!(place.answer());
            // An answer still counts, even while the cancellation is being sent.
            tokio::select! {
                answer = &mut answering => answer,
                () = cancelling => answering.await,
            }
        }
    };
    answer_of(&answer?)
}
