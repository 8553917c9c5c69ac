//! The health of the connections to the server, and its events.

use std::fmt::Display;
use std::sync::atomic::{AtomicU8, Ordering};

use steadfast_store::News;
use tokio::sync::broadcast;

/// A part that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Part {
    /// The connection for commands.
    Commands = 1,
    /// The subscription. While it is broken, events of other processes are missed.
    Ears = 2,
    /// The server accepts writes. A server that refuses writes can still be read.
    Writes = 4,
}

/// Sends one event when something breaks, and one when everything works again.
#[derive(Debug)]
pub(crate) struct Health {
    broken: AtomicU8,
    news: broadcast::Sender<News>,
}

impl Health {
    pub(crate) fn new(news: broadcast::Sender<News>) -> Self {
        Self { broken: AtomicU8::new(0), news }
    }

    pub(crate) fn is_broken(&self, part: Part) -> bool {
        self.broken.load(Ordering::Relaxed) & part as u8 != 0
    }

    /// Marks a part as broken. Returns true if it worked until now.
    pub(crate) fn broke(&self, part: Part, why: impl Display) -> bool {
        let before = self.broken.fetch_or(part as u8, Ordering::SeqCst);
        if before == 0 {
            // There may be no receivers.
            let _ = self.news.send(News::Lost(why.to_string().into()));
        }
        before & part as u8 == 0
    }

    pub(crate) fn works(&self, part: Part) {
        // Runs for every reply, and writes only for the first one after a failure.
        if self.is_broken(part) && self.broken.fetch_and(!(part as u8), Ordering::SeqCst) == part as u8 {
            let _ = self.news.send(News::Back);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_reported_once_and_ends_when_everything_works_again() {
        let (news, mut heard) = broadcast::channel(8);
        let health = Health::new(news);
        health.works(Part::Commands);
        assert!(health.broke(Part::Commands, "a test"));
        assert!(!health.broke(Part::Commands, "a test"));
        assert!(health.broke(Part::Ears, "a test"));
        assert_eq!(heard.try_recv(), Ok(News::Lost("a test".into())));
        health.works(Part::Commands);
        assert!(heard.try_recv().is_err(), "the subscription is still broken");
        health.works(Part::Ears);
        assert_eq!(heard.try_recv(), Ok(News::Back));
        health.works(Part::Ears);
        assert!(heard.try_recv().is_err());
    }
}
