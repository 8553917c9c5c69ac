//! Messages of a client to one of its servers that need no response.
//!
//! They are sent in order and in their own task, so that a server that does not read them delays only its own requests.
//! A request is sent after the messages before it, because some servers answer nothing before `initialized`.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_mcp::message::RpcMessage;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::servers::upstream::Generation;

/// The queue of messages for a server.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    waiting: Mutex<OutboxQueue>,
    /// The number of sent messages.
    sent_count: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct OutboxQueue {
    entries: VecDeque<OutboxMessage>,
    /// The number of queued messages so far.
    queued: u64,
    /// True while a task sends the messages.
    is_sending: bool,
}

/// A message that needs no response.
#[derive(Debug)]
pub(crate) enum OutboxMessage {
    /// A notification.
    Notification(RpcMessage),
    /// The response to a request of this server generation.
    Answer(Generation, RpcMessage),
}

/// The state of a message after it was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnqueueResult {
    /// The caller has to send it and the messages that follow.
    StartSender,
    /// Another task sends it after the others.
    Waits,
    /// The queue is full.
    Full,
}

/// The maximum number of messages that wait for one server.
const MOST: usize = 256;
/// The maximum time that a request waits for the messages before it.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

impl Outbox {
    pub(crate) fn put(&self, entry: OutboxMessage) -> EnqueueResult {
        let mut waiting = self.waiting.lock();
        if waiting.entries.len() >= MOST {
            return EnqueueResult::Full;
        }
        waiting.entries.push_back(entry);
        waiting.queued += 1;
        match std::mem::replace(&mut waiting.is_sending, true) {
            true => EnqueueResult::Waits,
            false => EnqueueResult::StartSender,
        }
    }

    /// Returns the next message for the task that sends them; it then calls [`Self::mark_sent`]. After `None`, the next
    /// caller of [`Self::put`] has to send.
    pub(crate) fn next(&self) -> Option<OutboxMessage> {
        let mut waiting = self.waiting.lock();
        let next = waiting.entries.pop_front();
        waiting.is_sending = next.is_some();
        next
    }

    pub(crate) fn mark_sent(&self) {
        self.sent_count.send_modify(|sent_count| *sent_count += 1);
    }

    /// Waits until all messages before this are sent, up to a limit.
    pub(crate) async fn wait_for_earlier(&self) {
        let queued = {
            let waiting = self.waiting.lock();
            if !waiting.is_sending {
                return;
            }
            waiting.queued
        };
        let mut sent_count = self.sent_count.subscribe();
        let _ = timeout(QUEUE_TIMEOUT, sent_count.wait_for(|sent_count| *sent_count >= queued)).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn entry() -> OutboxMessage {
        OutboxMessage::Notification(RpcMessage::notification("notifications/initialized", None))
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_only_for_the_messages_before_it() {
        let outbox = Outbox::default();
        assert!(outbox.wait_for_earlier().now_or_never().is_some());
        assert_eq!(
            (outbox.put(entry()), outbox.put(entry())),
            (EnqueueResult::StartSender, EnqueueResult::Waits)
        );
        let mut behind = Box::pin(outbox.wait_for_earlier());
        assert!((&mut behind).now_or_never().is_none());
        for _ in 0..2 {
            assert_eq!(outbox.put(entry()), EnqueueResult::Waits);
            assert!(outbox.next().is_some());
            outbox.mark_sent();
        }
        assert!(behind.now_or_never().is_some());
        // The remaining messages are never sent; the wait ends at the limit.
        let began = tokio::time::Instant::now();
        outbox.wait_for_earlier().await;
        assert_eq!(began.elapsed(), QUEUE_TIMEOUT);
    }

    #[test]
    fn a_full_outbox_refuses_messages_and_an_empty_one_needs_a_new_sender() {
        let outbox = Outbox::default();
        let put: Vec<EnqueueResult> = (0..=MOST).map(|_| outbox.put(entry())).collect();
        assert_eq!(
            (put[0], put[1], put[MOST]),
            (EnqueueResult::StartSender, EnqueueResult::Waits, EnqueueResult::Full)
        );
        while outbox.next().is_some() {}
        assert_eq!(outbox.put(entry()), EnqueueResult::StartSender);
    }
}
