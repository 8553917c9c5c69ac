//! Whether the server answers, as everybody is told.

use std::fmt::Display;
use std::sync::atomic::{AtomicU8, Ordering};

use steadfast_store::News;
use tokio::sync::broadcast;

/// What can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Part {
    /// The connection for commands.
    Commands = 1,
    /// The subscription: while it is broken, news of other processes are missed.
    Ears = 2,
    /// The server accepts writes. A server that refuses writes can still be read.
    Writes = 4,
}

/// Tells once when something breaks, and once when all is well again.
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

    /// Says whether it was whole until now.
    pub(crate) fn broke(&self, part: Part, why: impl Display) -> bool {
        let before = self.broken.fetch_or(part as u8, Ordering::SeqCst);
        if before == 0 {
            // Nobody has to listen.
            let _ = self.news.send(News::Lost(why.to_string().into()));
        }
        before & part as u8 == 0
    }

    pub(crate) fn works(&self, part: Part) {
        // Every answer comes by here; only the first after a failure writes.
        if self.is_broken(part) && self.broken.fetch_and(!(part as u8), Ordering::SeqCst) == part as u8 {
            let _ = self.news.send(News::Back);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_once_and_ends_when_everything_works_again() {
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
