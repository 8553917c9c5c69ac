//! The receivers of messages that a server sends while a request runs.

use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::RpcMessage;
use tokio::sync::mpsc;

use super::Generation;
use crate::json_parts::json;
use crate::protocol::LOG_LEVEL;

/// A handler for the notifications of one request.
pub(crate) type NotificationHandler = Arc<dyn Fn(&RpcMessage) + Send + Sync>;

/// The receivers of the notifications of one request.
#[derive(Clone, Default)]
pub(super) struct NotificationReceivers {
    /// Receives notifications that name the request.
    pub(super) on_notification: Option<NotificationHandler>,
    /// Receives notifications and requests of a legacy server while the request runs.
    pub(super) running: Option<Arc<RunningRequest>>,
}

impl From<Option<NotificationHandler>> for NotificationReceivers {
    fn from(on_notification: Option<NotificationHandler>) -> Self {
        Self { on_notification, running: None }
    }
}

/// A request in flight at the server, with the state for messages of the server that do not name it.
pub(super) struct RunningRequest {
    /// The lowest log level that it wants, and the receiver of log messages.
    log: Mutex<Option<(LogSeverity, NotificationHandler)>>,
    /// The capabilities of its client.
    pub(super) capabilities: Mutex<JsonText>,
    /// The task that holds the call, if its client can be asked for input.
    pub(super) events: Option<mpsc::Sender<HoldEvent>>,
}

/// An event for the task that holds a call.
pub(super) enum HoldEvent {
    /// The server requests input.
    InputRequested(Generation, RpcMessage),
    /// The server cancelled the request with this id.
    InputCancelled(String),
    /// The client sent the call again, with this request number and its input.
    Resumed(u64, Option<JsonText>),
}

impl RunningRequest {
    pub(super) fn new(
        request: &RpcMessage,
        capabilities: JsonText,
        on_notification: Option<NotificationHandler>,
        events: Option<mpsc::Sender<HoldEvent>>,
    ) -> Arc<Self> {
        let running = Self { log: Mutex::default(), capabilities: Mutex::new(json("{}")), events };
        running.resume(request, capabilities, on_notification);
        Arc::new(running)
    }

    /// Attaches a new request of the client to the running call.
    pub(super) fn resume(
        &self,
        request: &RpcMessage,
        capabilities: JsonText,
        on_notification: Option<NotificationHandler>,
    ) {
        let level = request.meta_text(LOG_LEVEL).and_then(|text| LogSeverity::of(&text));
        *self.log.lock() = level.zip(on_notification);
        *self.capabilities.lock() = capabilities;
    }

    pub(super) fn level(&self) -> Option<LogSeverity> {
        self.log.lock().as_ref().map(|(level, _)| *level)
    }

    /// Returns the receiver of a log message of this level.
    pub(super) fn log_receiver(&self, logged: LogSeverity) -> Option<NotificationHandler> {
        self.log
            .lock()
            .as_ref()
            .filter(|(level, _)| *level <= logged)
            .map(|(_, on_notification)| on_notification.clone())
    }
}

/// The severity of a log message, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LogSeverity(usize);

const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

impl LogSeverity {
    pub(super) fn of(name: &str) -> Option<Self> {
        LEVELS.iter().position(|level| *level == name).map(Self)
    }

    pub(super) fn name(self) -> &'static str {
        LEVELS.get(self.0).copied().unwrap_or("emergency")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_levels_are_ordered_by_severity() {
        let level = |name| LogSeverity::of(name).unwrap();
        assert!(level("debug") < level("info") && level("error") < level("emergency"));
        assert_eq!(level("warning").name(), "warning");
        assert_eq!(LogSeverity::of("loud"), None);
    }
}
