//! Notifications for one request before its response, with the client's own ids: progress, log messages and
//! subscription events.
//!
//! Many clients give up on a call when the server is silent for long. A client that asked for progress gets progress
//! notifications from the gateway in that case.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::RpcMessage;
use tokio::time::Instant;

use crate::client::request_channel::RequestChannel;
use crate::protocol::{LOG_LEVEL, SUBSCRIPTION};
use crate::servers::upstream::NotificationHandler;

/// The silence after which the client gets a progress notification from the gateway. Shorter than the 30 seconds after
/// which the least patient clients give up.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);

/// The notifications of one request.
#[derive(Debug)]
pub(crate) struct RequestNotifications {
    channel: RequestChannel,
    /// The client's progress token, if it asked for progress.
    token: Option<JsonText>,
    id: JsonText,
    last: Mutex<LastProgress>,
}

/// The last progress notification.
#[derive(Debug)]
struct LastProgress {
    at: Instant,
    /// Progress must never decrease.
    progress: f64,
}

impl RequestNotifications {
    /// Returns `None` if the client wants the response only.
    pub(crate) fn of(request: &RpcMessage, channel: &RequestChannel) -> Option<Arc<Self>> {
        let (token, id) = (request.progress_token(), request.id()?.to_json());
        let accepts_logs = request.meta_member(LOG_LEVEL).is_some();
        if token.is_none() && !accepts_logs && request.method() != Some("subscriptions/listen") {
            return None;
        }
        let last = Mutex::new(LastProgress { at: Instant::now(), progress: 0.0 });
        Some(Arc::new(Self { channel: channel.clone(), token, id, last }))
    }

    /// Returns true if the client asked for progress.
    pub(crate) fn sends_progress(&self) -> bool {
        self.token.is_some()
    }

    /// Returns the handler that forwards the server's notifications. Progress also calls `pulse`, as a sign of life.
    pub(crate) fn into_handler(
        self: Arc<Self>,
        pulse: impl Fn() + Send + Sync + 'static,
    ) -> NotificationHandler {
        Arc::new(move |message: &RpcMessage| {
            let named = match (message.method(), &self.token) {
                (Some("notifications/progress"), Some(token)) => {
                    pulse();
                    let mut last = self.last.lock();
                    last.at = Instant::now();
                    let progress = message.param("progress").and_then(|progress| progress.parse().ok());
                    last.progress = progress.unwrap_or(last.progress);
                    message.rewrite().param("progressToken", token.clone())
                }
                (Some("notifications/message"), _) => message.rewrite(),
                _ => message.rewrite().meta(SUBSCRIPTION, self.id.clone()),
            };
            self.channel.try_send(named.finish());
        })
    }

    /// Sends progress notifications while the call runs and the server sends none.
    pub(crate) async fn keep_alive(&self) -> Infallible {
        let Some(token) = &self.token else { return std::future::pending().await };
        loop {
            let due = self.last.lock().at + SILENCE_LIMIT;
            if Instant::now() < due {
                tokio::time::sleep_until(due).await;
                continue;
            }
            let progress = {
                let mut last = self.last.lock();
                last.at = Instant::now();
                // A minimal increase: only the server knows the real progress.
                last.progress += STEP;
                last.progress
            };
            let params = format!(
                r#"{{"progressToken":{},"progress":{progress},"message":"still running"}}"#,
                token.as_str()
            );
            let params = JsonText::parse(params).ok();
            self.channel.try_send(RpcMessage::notification("notifications/progress", params.as_ref()));
        }
    }
}

const STEP: f64 = 0.001;

#[cfg(test)]
mod tests {
    use steadfast_mcp::delivery::DeliveryLink;
    use steadfast_mcp::lines::{LineItem, LineReader, WriteQueueLimits, line_writer};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_gets_progress_from_the_gateway_while_its_server_is_silent() {
        let (local, remote) = tokio::io::duplex(1 << 16);
        let (line, writing) = line_writer(local, DeliveryLink::new(), WriteQueueLimits::default());
        tokio::spawn(writing);
        let mut lines = LineReader::new(remote, 1 << 16);
        let request = |params: &str| {
            let text = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{params}}}"#);
            RpcMessage::parse(text, usize::MAX).unwrap()
        };
        let channel = RequestChannel::Line(line);
        assert!(RequestNotifications::of(&request("{}"), &channel).is_none());
        let notifications =
            RequestNotifications::of(&request(r#"{"_meta":{"progressToken":"mine"}}"#), &channel).unwrap();
        let began = Instant::now();
        tokio::spawn({
            let notifications = notifications.clone();
            async move { notifications.keep_alive().await }
        });
        let mut next_progress = async || {
            let Some(Ok(LineItem::Message(message))) = lines.next().await else { panic!("a message") };
            assert_eq!(message.param("progressToken"), Some("\"mine\""));
            (message.param("progress").unwrap().parse::<f64>().unwrap(), began.elapsed().as_secs())
        };
        assert_eq!(next_progress().await, (0.001, 10));
        assert_eq!(next_progress().await.1, 20);
        // Server progress is forwarded, and the gateway continues from it after another silence.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let params = JsonText::parse(r#"{"progressToken":1,"progress":4}"#.to_owned()).unwrap();
        let of_server = RpcMessage::notification("notifications/progress", Some(&params));
        notifications.into_handler(|| {})(&of_server);
        assert_eq!(next_progress().await, (4.0, 25));
        assert_eq!(next_progress().await, (4.001, 35));
    }
}
