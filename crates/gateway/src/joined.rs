//! One subscription at several servers: what each of them promises is promised to the client once, and before anything that
//! was promised comes.

use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_mcp::message::Message;

use crate::client::Voice;
use crate::merge;

/// The voice of a request that several servers were asked, each under its number.
#[derive(Debug)]
pub(crate) struct Joined {
    voice: Voice,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// What the servers promise is being collected.
    Collecting(Promises),
    /// The client knows what it will hear.
    Promised,
}

#[derive(Debug)]
struct Promises {
    /// From whom one may still come.
    open: Vec<usize>,
    /// Whether those who have promised nothing yet are not waited for any more.
    is_due: bool,
    promised: Vec<Message>,
    /// What came meanwhile.
    held: Vec<Message>,
}

/// The most that is held back.
const MOST_HELD: usize = 256;

const PROMISE: &str = "notifications/subscriptions/acknowledged";

impl Joined {
    pub(crate) fn new(voice: Voice, servers: usize) -> Arc<Self> {
        let (promised, held) = (Vec::new(), Vec::new());
        let promises = Promises { open: (0..servers).collect(), is_due: false, promised, held };
        Arc::new(Self { voice, state: Mutex::new(State::Collecting(promises)) })
    }

    pub(crate) fn voice(&self) -> &Voice {
        &self.voice
    }

    /// The server at this place says something.
    pub(crate) fn mention(&self, at: usize, message: Message) {
        let mut state = self.state.lock();
        match (&mut *state, message.method() == Some(PROMISE)) {
            (State::Collecting(promises), true) => {
                promises.open.retain(|one| *one != at);
                promises.promised.push(message);
            }
            (State::Collecting(promises), false) => {
                if promises.held.len() < MOST_HELD {
                    promises.held.push(message);
                }
            }
            // It came too late to be promised; what it promises is heard all the same.
            (State::Promised, true) => {}
            (State::Promised, false) => self.voice.mention(message),
        }
        self.promise(&mut state);
    }

    /// The server at this place promises nothing.
    pub(crate) fn is_over(&self, at: usize) {
        self.change(|promises| promises.open.retain(|one| *one != at));
    }

    /// Whoever has promised nothing yet is not waited for any more.
    pub(crate) fn is_due(&self) {
        self.change(|promises| promises.is_due = true);
    }

    fn change(&self, change: impl FnOnce(&mut Promises)) {
        let mut state = self.state.lock();
        if let State::Collecting(promises) = &mut *state {
            change(promises);
        }
        self.promise(&mut state);
    }

    /// Tells the client what it will hear, if that is known.
    fn promise(&self, state: &mut State) {
        let State::Collecting(promises) = state else { return };
        let Some(first) = promises.promised.first().filter(|_| promises.is_due || promises.open.is_empty())
        else {
            return;
        };
        let parts: Vec<&str> =
            promises.promised.iter().filter_map(|promise| promise.param("notifications")).collect();
        self.voice.mention(first.rewrite().param("notifications", merge::promises(&parts)).finish());
        for message in promises.held.drain(..) {
            self.voice.mention(message);
        }
        *state = State::Promised;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use steadfast_mcp::delivery::Link;
    use steadfast_mcp::lines::{LineReader, QueueLimits, Received, line_writer};

    use super::*;

    fn promise(filter: &str) -> Message {
        let text =
            format!(r#"{{"jsonrpc":"2.0","method":"{PROMISE}","params":{{"notifications":{filter}}}}}"#);
        Message::parse(text, usize::MAX).unwrap()
    }

    /// What the client heard, of each message what it is about.
    async fn heard(say: impl FnOnce(&Joined)) -> Vec<String> {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (line, writing) = line_writer(ours, Link::new(), QueueLimits::default());
        let writing = tokio::spawn(writing);
        let joined = Joined::new(Voice::Line(line), 3);
        say(&joined);
        drop(joined);
        writing.await.unwrap().unwrap();
        let mut lines = LineReader::new(theirs, 1 << 16);
        let mut heard = Vec::new();
        while let Some(Some(Ok(Received::Message(message)))) = lines.next().now_or_never() {
            heard.push(message.param("notifications").or(message.method()).unwrap().to_owned());
        }
        heard
    }

    #[tokio::test]
    async fn what_several_servers_promise_is_promised_once_and_first() {
        let news = || Message::notification("news", None);
        let told = heard(|joined| {
            joined.mention(1, promise(r#"{"toolsListChanged":true,"resourceSubscriptions":["a:1","a:2"]}"#));
            joined.mention(1, news());
            joined.is_over(0);
            joined
                .mention(2, promise(r#"{"promptsListChanged":true,"resourceSubscriptions":["a:2","a:3"]}"#));
            joined.mention(2, news());
        });
        let all = r#"{"promptsListChanged":true,"resourceSubscriptions":["a:1","a:2","a:3"],"toolsListChanged":true}"#;
        assert_eq!(told.await, [all, "news", "news"]);
        let told = heard(|joined| {
            joined.is_due();
            joined.mention(0, news());
            joined.mention(0, promise("{}"));
            joined.mention(1, promise(r#"{"toolsListChanged":true}"#));
            joined.mention(1, news());
        });
        assert_eq!(told.await, ["{}", "news", "news"], "nobody waits for the slowest");
        let told = heard(|joined| (0..3).for_each(|at| joined.is_over(at)));
        assert!(told.await.is_empty());
    }
}
