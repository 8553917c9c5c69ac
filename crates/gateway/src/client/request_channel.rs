//! The channel for messages that belong to one request, other than its response.
//!
//! A subscription at several servers has a merged channel: the client gets a single acknowledgement for all of them,
//! before any notification of the subscription.

use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_mcp::http::ProtocolEra;
use steadfast_mcp::http::server::Notifier;
use steadfast_mcp::lines::LineSender;
use steadfast_mcp::message::RpcMessage;

use crate::servers::merge;

/// The channel for messages that belong to one request, other than its response.
#[derive(Clone, Debug)]
pub(crate) enum RequestChannel {
    Line(LineSender),
    Http(Notifier, ProtocolEra),
    /// One of several servers that got the same request and whose messages are merged.
    Joined(Arc<MergedChannel>, usize),
    /// The request is the gateway's own, and messages for it are dropped.
    Discarded,
}

impl RequestChannel {
    /// Sends a message that the client can do without: a client that reads too slowly misses it.
    pub(crate) fn try_send(&self, message: RpcMessage) {
        match self {
            Self::Line(line) => _ = line.try_send(&message),
            Self::Http(notifier, _) => _ = notifier.send(message),
            Self::Joined(joined, at) => joined.mention(*at, message),
            Self::Discarded => {}
        }
    }

    /// Sends a message. On a line, waits for room.
    pub(crate) async fn send(&self, message: &RpcMessage) {
        match self {
            Self::Line(line) => _ = line.send(message).await,
            Self::Http(notifier, _) => _ = notifier.send(message.clone()),
            Self::Joined(joined, at) => joined.mention(*at, message.clone()),
            Self::Discarded => {}
        }
    }

    /// Completes when the client has closed the connection of the request, which cancels it in the modern era.
    pub(crate) async fn cancelled(&self) {
        match self {
            Self::Http(notifier, ProtocolEra::Modern) => notifier.closed().await,
            Self::Joined(joined, _) => Box::pin(joined.channel().cancelled()).await,
            Self::Http(_, ProtocolEra::Legacy) | Self::Line(_) | Self::Discarded => {
                std::future::pending().await
            }
        }
    }
}

/// The merged channel of a request that several servers got, each with its number.
#[derive(Debug)]
pub(crate) struct MergedChannel {
    channel: RequestChannel,
    state: Mutex<AcknowledgementState>,
}

#[derive(Debug)]
enum AcknowledgementState {
    /// Acknowledgements of the servers are being collected.
    Collecting(PendingAcknowledgements),
    /// The client got the acknowledgement.
    Promised,
}

#[derive(Debug)]
struct PendingAcknowledgements {
    /// The servers that have not acknowledged yet.
    open: Vec<usize>,
    /// True when servers without an acknowledgement are no longer waited for.
    is_due: bool,
    promised: Vec<RpcMessage>,
    /// Notifications that arrived in the meantime.
    deferred: Vec<RpcMessage>,
}

/// The maximum number of notifications that are held back.
const MOST_HELD: usize = 256;

const PROMISE: &str = "notifications/subscriptions/acknowledged";

impl MergedChannel {
    pub(crate) fn new(channel: RequestChannel, servers: usize) -> Arc<Self> {
        let (promised, deferred) = (Vec::new(), Vec::new());
        let promises =
            PendingAcknowledgements { open: (0..servers).collect(), is_due: false, promised, deferred };
        Arc::new(Self { channel, state: Mutex::new(AcknowledgementState::Collecting(promises)) })
    }

    pub(crate) fn channel(&self) -> &RequestChannel {
        &self.channel
    }

    /// Takes a message of the server with this number.
    pub(crate) fn mention(&self, at: usize, message: RpcMessage) {
        let mut state = self.state.lock();
        match (&mut *state, message.method() == Some(PROMISE)) {
            (AcknowledgementState::Collecting(promises), true) => {
                promises.open.retain(|one| *one != at);
                promises.promised.push(message);
            }
            (AcknowledgementState::Collecting(promises), false) => {
                if promises.deferred.len() < MOST_HELD {
                    promises.deferred.push(message);
                }
            }
            // Too late to be part of the acknowledgement. Its notifications still reach the client.
            (AcknowledgementState::Promised, true) => {}
            (AcknowledgementState::Promised, false) => self.channel.try_send(message),
        }
        self.promise(&mut state);
    }

    /// Records that the server with this number sends no acknowledgement.
    pub(crate) fn is_over(&self, at: usize) {
        self.change(|promises| promises.open.retain(|one| *one != at));
    }

    /// Stops waiting for servers without an acknowledgement.
    pub(crate) fn is_due(&self) {
        self.change(|promises| promises.is_due = true);
    }

    fn change(&self, change: impl FnOnce(&mut PendingAcknowledgements)) {
        let mut state = self.state.lock();
        if let AcknowledgementState::Collecting(promises) = &mut *state {
            change(promises);
        }
        self.promise(&mut state);
    }

    /// Sends the acknowledgement to the client once it is complete.
    fn promise(&self, state: &mut AcknowledgementState) {
        let AcknowledgementState::Collecting(promises) = state else { return };
        let Some(first) = promises.promised.first().filter(|_| promises.is_due || promises.open.is_empty())
        else {
            return;
        };
        let parts: Vec<&str> =
            promises.promised.iter().filter_map(|promise| promise.param("notifications")).collect();
        self.channel.try_send(first.rewrite().param("notifications", merge::promises(&parts)).finish());
        for message in promises.deferred.drain(..) {
            self.channel.try_send(message);
        }
        *state = AcknowledgementState::Promised;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use steadfast_mcp::delivery::DeliveryLink;
    use steadfast_mcp::lines::{LineItem, LineReader, WriteQueueLimits, line_writer};

    use super::*;

    fn promise(filter: &str) -> RpcMessage {
        let text =
            format!(r#"{{"jsonrpc":"2.0","method":"{PROMISE}","params":{{"notifications":{filter}}}}}"#);
        RpcMessage::parse(text, usize::MAX).unwrap()
    }

    /// The messages that the client received, each by its filter or method.
    async fn collect_received(send_parts: impl FnOnce(&MergedChannel)) -> Vec<String> {
        let (local, remote) = tokio::io::duplex(1 << 16);
        let (line, writing) = line_writer(local, DeliveryLink::new(), WriteQueueLimits::default());
        let writing = tokio::spawn(writing);
        let joined = MergedChannel::new(RequestChannel::Line(line), 3);
        send_parts(&joined);
        drop(joined);
        writing.await.unwrap().unwrap();
        let mut lines = LineReader::new(remote, 1 << 16);
        let mut received = Vec::new();
        while let Some(Some(Ok(LineItem::Message(message)))) = lines.next().now_or_never() {
            received.push(message.param("notifications").or(message.method()).unwrap().to_owned());
        }
        received
    }

    #[tokio::test]
    async fn acknowledgements_of_several_servers_are_merged_and_come_first() {
        let notification = || RpcMessage::notification("news", None);
        let received = collect_received(|joined| {
            joined.mention(1, promise(r#"{"toolsListChanged":true,"resourceSubscriptions":["a:1","a:2"]}"#));
            joined.mention(1, notification());
            joined.is_over(0);
            joined
                .mention(2, promise(r#"{"promptsListChanged":true,"resourceSubscriptions":["a:2","a:3"]}"#));
            joined.mention(2, notification());
        });
        let all = r#"{"promptsListChanged":true,"resourceSubscriptions":["a:1","a:2","a:3"],"toolsListChanged":true}"#;
        assert_eq!(received.await, [all, "news", "news"]);
        let received = collect_received(|joined| {
            joined.is_due();
            joined.mention(0, notification());
            joined.mention(0, promise("{}"));
            joined.mention(1, promise(r#"{"toolsListChanged":true}"#));
            joined.mention(1, notification());
        });
        assert_eq!(received.await, ["{}", "news", "news"], "nobody waits for the slowest");
        let received = collect_received(|joined| (0..3).for_each(|at| joined.is_over(at)));
        assert!(received.await.is_empty());
    }
}
