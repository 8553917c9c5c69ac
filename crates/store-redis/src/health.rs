//! The health of the connections to the server, and its events.

use std::fmt::Display;
use std::sync::atomic::{AtomicU8, Ordering};

use steadfast_store::StoreEvent;
use tokio::sync::broadcast;

/// A part that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum HealthPart {
    /// The connection for commands.
    Commands = 1,
    /// The subscription. While it is broken, events of other processes are missed.
    Subscription = 2,
    /// The server accepts writes. A server that refuses writes can still be read.
    Writes = 4,
}

/// Sends one event when something breaks, and one when everything works again.
#[derive(Debug)]
pub(crate) struct RedisHealth {
    broken: AtomicU8,
    events: broadcast::Sender<StoreEvent>,
}

impl RedisHealth {
    pub(crate) fn new(events: broadcast::Sender<StoreEvent>) -> Self {
        Self { broken: AtomicU8::new(0), events }
    }

    pub(crate) fn is_broken(&self, part: HealthPart) -> bool {
        self.broken.load(Ordering::Relaxed) & part as u8 != 0
    }

    /// Marks a part as broken. Returns true if it worked until now.
    pub(crate) fn mark_broken(&self, part: HealthPart, reason: impl Display) -> bool {
        let before = self.broken.fetch_or(part as u8, Ordering::SeqCst);
        if before == 0 {
            // There may be no receivers.
            let _ = self.events.send(StoreEvent::Unavailable(reason.to_string().into()));
        }
        before & part as u8 == 0
    }

    pub(crate) fn mark_working(&self, part: HealthPart) {
        // Runs for every reply, and writes only for the first one after a failure.
        if self.is_broken(part) && self.broken.fetch_and(!(part as u8), Ordering::SeqCst) == part as u8 {
            let _ = self.events.send(StoreEvent::Available);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_reported_once_and_ends_when_everything_works_again() {
        let (sender, mut receiver) = broadcast::channel(8);
        let health = RedisHealth::new(sender);
        health.mark_working(HealthPart::Commands);
        assert!(health.mark_broken(HealthPart::Commands, "a test"));
        assert!(!health.mark_broken(HealthPart::Commands, "a test"));
        assert!(health.mark_broken(HealthPart::Subscription, "a test"));
        assert_eq!(receiver.try_recv(), Ok(StoreEvent::Unavailable("a test".into())));
        health.mark_working(HealthPart::Commands);
        assert!(receiver.try_recv().is_err(), "the subscription is still broken");
        health.mark_working(HealthPart::Subscription);
        assert_eq!(receiver.try_recv(), Ok(StoreEvent::Available));
        health.mark_working(HealthPart::Subscription);
        assert!(receiver.try_recv().is_err());
    }
}
