//! What a client says to one of its servers without wanting an answer.
//!
//! It is said in the order in which it came, and beside everything else: a server that does not take what it is told holds
//! up nobody but whoever wants something of that server. What is asked goes behind what was said before it, because there
//! are servers that answer nothing before they have heard that their client is ready.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_mcp::message::Message;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::server::Life;

/// What waits to be said to a server.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    waiting: Mutex<Waiting>,
    /// How many have been said.
    said: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Waiting {
    words: VecDeque<Word>,
    /// How many ever came.
    came: u64,
    /// Whether somebody says them.
    is_said: bool,
}

/// Something that wants no answer.
#[derive(Debug)]
pub(crate) enum Word {
    /// A notification.
    Told(Message),
    /// The answer to what this life of the server asked.
    Answer(Life, Message),
}

/// What became of something that was put into an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// Whoever put it there has to say it, and what comes meanwhile.
    ToBeSaid,
    /// It is said behind the others.
    Waits,
    /// There is no room for it.
    Full,
}

/// The most that waits for one server.
const MOST: usize = 256;
/// How long what is asked waits for what was said before it.
const BEFORE: Duration = Duration::from_secs(10);

impl Outbox {
    pub(crate) fn put(&self, word: Word) -> Put {
        let mut waiting = self.waiting.lock();
        if waiting.words.len() >= MOST {
            return Put::Full;
        }
        waiting.words.push_back(word);
        waiting.came += 1;
        match std::mem::replace(&mut waiting.is_said, true) {
            true => Put::Waits,
            false => Put::ToBeSaid,
        }
    }

    /// What is to be said next, for the one who does; then it has been [`Self::said`]. After the last one somebody else does.
    pub(crate) fn next(&self) -> Option<Word> {
        let mut waiting = self.waiting.lock();
        let next = waiting.words.pop_front();
        waiting.is_said = next.is_some();
        next
    }

    pub(crate) fn said(&self) {
        self.said.send_modify(|said| *said += 1);
    }

    /// Waits until everything has been said that came before this; not for ever.
    pub(crate) async fn is_behind(&self) {
        let came = {
            let waiting = self.waiting.lock();
            if !waiting.is_said {
                return;
            }
            waiting.came
        };
        let mut said = self.said.subscribe();
        let _ = timeout(BEFORE, said.wait_for(|said| *said >= came)).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn word() -> Word {
        Word::Told(Message::notification("notifications/initialized", None))
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_asked_goes_behind_what_was_said_before_it_and_waits_for_nothing_else() {
        let outbox = Outbox::default();
        assert!(outbox.is_behind().now_or_never().is_some());
        assert_eq!((outbox.put(word()), outbox.put(word())), (Put::ToBeSaid, Put::Waits));
        let mut behind = Box::pin(outbox.is_behind());
        assert!((&mut behind).now_or_never().is_none());
        for _ in 0..2 {
            assert_eq!(outbox.put(word()), Put::Waits);
            assert!(outbox.next().is_some());
            outbox.said();
        }
        assert!(behind.now_or_never().is_some());
        // The others are not said by anybody; that is waited for, and not for ever.
        let began = tokio::time::Instant::now();
        outbox.is_behind().await;
        assert_eq!(began.elapsed(), BEFORE);
    }

    #[test]
    fn an_outbox_that_is_full_takes_no_more_and_one_that_is_empty_needs_somebody_again() {
        let outbox = Outbox::default();
        let put: Vec<Put> = (0..=MOST).map(|_| outbox.put(word())).collect();
        assert_eq!((put[0], put[1], put[MOST]), (Put::ToBeSaid, Put::Waits, Put::Full));
        while outbox.next().is_some() {}
        assert_eq!(outbox.put(word()), Put::ToBeSaid);
    }
}
