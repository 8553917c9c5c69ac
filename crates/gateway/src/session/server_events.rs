//! Events of the servers of a session, and their messages to the client.

use std::sync::Weak;
use std::sync::atomic::Ordering;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use steadfast_mcp::message::{RpcId, RpcMessage, code};

use super::{GatewaySession, MOST_OPEN_REQUESTS, RequestKind, ServerRequest};
use crate::client::connection::ClientConnection;
use crate::protocol::cancel;
use crate::servers::shared::SharedServerUser;
use crate::servers::upstream::{Generation, ServerEvent, ServerOwner};

/// Handles events of one server of a session, without keeping either alive.
pub(super) struct SessionEventHandler {
    pub(super) session: Weak<GatewaySession>,
    pub(super) at: usize,
}

impl ServerOwner for SessionEventHandler {
    fn handle_event(&self, event: ServerEvent) -> BoxFuture<'_, ()> {
        async {
            if let Some(session) = self.session.upgrade() {
                session.handle_event(self.at, event).await;
            }
        }
        .boxed()
    }
}

impl SharedServerUser for GatewaySession {
    fn take_from_server(&self, at: usize, event: ServerEvent) -> BoxFuture<'_, ()> {
        self.handle_event(at, event).boxed()
    }

    fn calls_at(&self, at: usize) -> usize {
        let running = self.running.lock();
        running.values().filter(|one| one.at == Some(at) && matches!(one.kind, RequestKind::Call(_))).count()
    }
}

impl GatewaySession {
    /// Handles an event of a server.
    async fn handle_event(&self, at: usize, event: ServerEvent) {
        match event {
            ServerEvent::Notification(message) if message.method() == Some("notifications/cancelled") => {
                if let Some(message) = self.translate_cancellation(at, &message) {
                    self.send_to_client(at, &message).await;
                }
            }
            ServerEvent::Notification(message) => self.send_to_client(at, &message).await,
            ServerEvent::Request(by, message) => self.forward_request(at, by, &message).await,
            ServerEvent::Died(generation) => {
                let cancelled: Vec<u64> = {
                    let mut server_requests = self.server_requests.lock();
                    let is_over = |question: &ServerRequest| question.at == at && question.by == generation;
                    let cancelled = server_requests
                        .iter()
                        .filter(|(_, question)| is_over(question))
                        .map(|(id, _)| *id)
                        .collect();
                    server_requests.retain(|_, question| !is_over(question));
                    cancelled
                };
                for id in cancelled {
                    self.send_to_client(at, &cancel(&RpcId::number(id), "the server that asked has ended"))
                        .await;
                }
            }
            ServerEvent::Recovered(recovery) => {
                let Some(behind) = self.servers.get(at) else { return };
                tracing::warn!(
                    event = "server.recovered",
                    server = %behind.server.name,
                    "the server was restarted; its state in memory may be lost"
                );
                if behind.was_missed() {
                    // The client lists the tools again, which failed while the server was down.
                    behind.server.breaker.with(|breaker| breaker.reset(self.engine.now()));
                    self.lists_changed(at).await;
                } else if recovery.tools_changed {
                    self.send_to_client(
                        at,
                        &RpcMessage::notification("notifications/tools/list_changed", None),
                    )
                    .await;
                }
            }
        }
    }

    /// Forwards a request of a server to the client.
    async fn forward_request(&self, at: usize, by: Generation, request: &RpcMessage) {
        let Some(id) = request.id() else { return };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let has_room = {
            let mut server_requests = self.server_requests.lock();
            let has_room = server_requests.len() < MOST_OPEN_REQUESTS;
            if has_room {
                server_requests.insert(number, ServerRequest { at, by, id: id.clone() });
            }
            has_room
        };
        if !has_room {
            let reason = "too many requests wait for the client";
            let refusal = RpcMessage::error_response(Some(&id), code::INTERNAL_ERROR, reason, None);
            if let Some(behind) = self.servers.get(at) {
                behind.server.answer(by, &refusal).await;
            }
            return;
        }
        self.send_to_client(at, &request.rewrite().id(&RpcId::number(number)).finish()).await;
    }

    /// Sends a message of a server to the client. With exactly one request in flight it most likely belongs to that,
    /// and a client without an open stream receives it there.
    pub(super) async fn send_to_client(&self, at: usize, message: &RpcMessage) {
        let channel = match &self.client {
            ClientConnection::Line(_) => None,
            ClientConnection::Streams(_) | ClientConnection::Answers => {
                let running = self.running.lock();
                let of_server = running.values().filter(|one| one.at.is_none_or(|of| of == at));
                let mut channels = of_server.map(|running| &running.channel);
                channels.next().filter(|_| channels.next().is_none()).cloned()
            }
        };
        match channel {
            Some(channel) => channel.send(message).await,
            None => self.client.send(message).await,
        }
    }

    /// Translates the cancellation of a server request into the client's id. Returns `None` if the request was already
    /// answered.
    fn translate_cancellation(&self, at: usize, notification: &RpcMessage) -> Option<RpcMessage> {
        let text = notification.param("requestId")?;
        let mut server_requests = self.server_requests.lock();
        let matches = |question: &ServerRequest| question.at == at && question.id.is(text);
        let number =
            server_requests.iter().find(|(_, question)| matches(question)).map(|(number, _)| *number)?;
        server_requests.remove(&number);
        Some(notification.rewrite().param("requestId", RpcId::number(number).to_json()).finish())
    }
}
