//! Notifications from the gateway to the client: changed trust, pending approvals, unknown outcomes.
//!
//! They are sent as log messages, and only if the client asked for them: in the legacy era with `logging/setLevel`, in
//! the modern era with each request. So the gateway offers the logging capability even if no server has it.

use std::sync::Arc;

use steadfast_core::id::RequestId;
use steadfast_core::notification::{Notification, NotificationEvent};
use steadfast_core::trust::PromptLevel;
use steadfast_json::scan;
use steadfast_mcp::http::ProtocolEra;
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::{RpcId, RpcMessage, code};
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{Mutex as AsyncMutex, broadcast};

use super::{GatewaySession, empty};
use crate::client::connection::ClientConnection;
use crate::client::request_channel::RequestChannel;
use crate::json_parts::object;
use crate::protocol::LOG_LEVEL;

/// The log levels of MCP, in ascending order.
const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// The lowest log level that a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ClientLogLevel(usize);

/// The log subscription of a legacy client.
#[derive(Debug)]
pub(super) struct LogSubscription {
    level: ClientLogLevel,
    /// The notifications that have not been sent yet.
    receiver: Arc<AsyncMutex<broadcast::Receiver<Arc<Notification>>>>,
}

impl ClientLogLevel {
    /// Parses a level in JSON.
    fn of(level: Option<&str>) -> Option<Self> {
        let level = level.and_then(scan::string)?;
        LEVELS.iter().position(|known| *known == level).map(Self)
    }

    fn name(self) -> &'static str {
        match LEVELS.get(self.0) {
            Some(name) => name,
            None => "info",
        }
    }
}

impl From<PromptLevel> for ClientLogLevel {
    fn from(level: PromptLevel) -> Self {
        Self(match level {
            PromptLevel::Info => 1,
            PromptLevel::Warning => 3,
            PromptLevel::Error => 4,
        })
    }
}

impl GatewaySession {
    /// Adds the gateway's own logging to the response of a request.
    pub(super) fn with_logging(
        self: &Arc<Self>,
        id: &RpcId,
        request: &RpcMessage,
        answered: RpcMessage,
    ) -> RpcMessage {
        match (request.method(), answered.result()) {
            (Some("initialize"), Some(result)) => match with_capability(result) {
                Some(result) => RpcMessage::result_response(id, &result),
                None => answered,
            },
            (Some("logging/setLevel"), result) if ProtocolEra::of_request(request) == ProtocolEra::Legacy => {
                let is_unknown = answered.error_code() == Some(code::METHOD_NOT_FOUND);
                let Some(level) = ClientLogLevel::of(request.param("level")) else { return answered };
                if result.is_none() && !is_unknown {
                    return answered;
                }
                self.set_log_level(level);
                // The gateway logs even if the server does not.
                if is_unknown { RpcMessage::result_response(id, &empty()) } else { answered }
            }
            _ => answered,
        }
    }

    /// Sets the lowest level that the client wants.
    fn set_log_level(self: &Arc<Self>, level: ClientLogLevel) {
        let mut wake = self.engine.notifications();
        {
            let mut logging = self.logging.lock();
            if let Some(logging) = logging.as_mut() {
                logging.level = level;
                return;
            }
            let receiver = Arc::new(AsyncMutex::new(self.engine.notifications()));
            *logging = Some(LogSubscription { level, receiver });
        }
        let (session, disconnected) = (Arc::downgrade(self), self.disconnected.clone());
        tokio::spawn(async move {
            loop {
                let received = tokio::select! {
                    () = disconnected.cancelled() => return,
                    received = wake.recv() => received,
                };
                let Some(session) = session.upgrade() else { return };
                session.notify_all().await;
                if received == Err(RecvError::Closed) {
                    return;
                }
            }
        });
    }

    /// Sends all new notifications in order. A call does so before its answer, so that its notifications arrive before
    /// the answer and on the same stream.
    pub(super) async fn notify_all(&self) {
        let logging = self.logging.lock().as_ref().map(|logging| (logging.level, logging.receiver.clone()));
        let Some((level, receiver)) = logging else { return };
        let mut receiver = receiver.lock().await;
        loop {
            match receiver.try_recv() {
                Ok(notification) => self.notify(&notification, level).await,
                Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            }
        }
    }

    async fn notify(&self, notification: &Notification, level: ClientLogLevel) {
        let concerns_client = match notification.event {
            // Lost trust concerns every session of the tenant.
            NotificationEvent::TrustChanged => true,
            NotificationEvent::ApprovalRequested | NotificationEvent::OutcomeUnknown => {
                notification.session.is_some() && notification.session == self.connection.session
            }
        };
        if !concerns_client || notification.tenant != self.connection.tenant {
            return;
        }
        let Some(message) = message(notification, level) else { return };
        let channel = match &self.client {
            ClientConnection::Line(_) => None,
            ClientConnection::Streams(_) | ClientConnection::Answers => {
                let running = self.running.lock();
                let mut channels = running.values().map(|running| &running.channel);
                channels.next().filter(|_| channels.next().is_none()).cloned()
            }
        };
        match channel {
            Some(channel) => channel.send(&message).await,
            None => self.client.send(&message).await,
        }
    }
}

/// The notifications of a modern call before its answer.
pub(super) struct CallNotifications {
    level: ClientLogLevel,
    notifications: broadcast::Receiver<Arc<Notification>>,
}

impl CallNotifications {
    /// Returns `None` if the call did not ask for log messages.
    pub(super) fn of(session: &GatewaySession, request: &RpcMessage) -> Option<Self> {
        let level = ClientLogLevel::of(request.meta_member(LOG_LEVEL))?;
        Some(Self { level, notifications: session.engine.notifications() })
    }

    /// Sends the notifications of this call to the client.
    pub(super) fn forward(mut self, call: &RequestId, channel: &RequestChannel) {
        loop {
            match self.notifications.try_recv() {
                Ok(notification) if notification.request_id.as_ref() == Some(call) => {
                    if let Some(message) = message(&notification, self.level) {
                        channel.try_send(message);
                    }
                }
                Ok(_) | Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            }
        }
    }
}

/// Converts a notification to an MCP message. Returns `None` below the level of the client, or if it is not for
/// clients.
fn message(notification: &Notification, least: ClientLogLevel) -> Option<RpcMessage> {
    let level = ClientLogLevel::from(notification.level);
    if !notification.for_client || level < least {
        return None;
    }
    let data = serde_json::to_string(notification).ok()?;
    let params = format!(r#"{{"level":"{}","logger":"steadfast","data":{data}}}"#, level.name());
    Some(RpcMessage::notification("notifications/message", JsonText::parse(params).ok().as_ref()))
}

/// Adds the logging capability to the result of a handshake. Returns `None` if it is already there.
fn with_capability(result: &str) -> Option<JsonText> {
    let capabilities = scan::get(result, "capabilities").unwrap_or("{}").trim();
    if scan::get(capabilities, "logging").is_some() {
        return None;
    }
    let inside = capabilities.strip_prefix('{')?.strip_suffix('}')?;
    let comma = if inside.trim().is_empty() { "" } else { "," };
    let capabilities = format!(r#"{{{inside}{comma}"logging":{{}}}}"#);
    let mut members: Vec<(String, String)> = Vec::new();
    for member in scan::members(result) {
        let value = result.get(member.value).unwrap_or("null");
        if &*member.name != "capabilities" {
            members.push((member.name.into_owned(), value.to_owned()));
        }
    }
    members.push(("capabilities".to_owned(), capabilities));
    Some(object(members))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capability_is_added_where_it_is_not() {
        let with = |result| with_capability(result).map(|result| result.as_str().to_owned());
        assert_eq!(
            with(r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{}}"#)
                .as_deref(),
            Some(
                r#"{"protocolVersion":"2025-06-18","serverInfo":{},"capabilities":{"tools":{},"logging":{}}}"#
            )
        );
        assert_eq!(with(r#"{"capabilities":{ }}"#).as_deref(), Some(r#"{"capabilities":{ "logging":{}}}"#));
        assert_eq!(with(r#"{"capabilities":{"logging":{}}}"#), None);
    }

    #[test]
    fn levels_are_those_of_the_protocol() {
        assert!(ClientLogLevel::of(Some("\"debug\"")) < Some(PromptLevel::Info.into()));
        assert!(ClientLogLevel::of(Some("\"warning\"")) == Some(PromptLevel::Warning.into()));
        assert!(ClientLogLevel::of(Some("\"emergency\"")) > Some(PromptLevel::Error.into()));
        assert_eq!((ClientLogLevel::of(Some("\"loud\"")), ClientLogLevel::of(None)), (None, None));
    }
}
