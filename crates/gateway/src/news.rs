//! What a client hears of a request before its answer, under its own names for it: progress, what is logged, and what it
//! listens for.
//!
//! A server that says nothing for long is silent towards its client too, and many clients give up then. So one that asked
//! for progress gets some from us.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_mcp::message::Message;
use steadfast_mcp::raw::RawJson;
use tokio::time::Instant;

use crate::client::Voice;
use crate::server::Hear;

/// The member of `_meta` with the id of the request that listens.
pub(crate) const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
/// The member of `_meta` that says how much a request wants to hear of what the server logs.
pub(crate) const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";

/// After so long without a word the client hears from us that the call is still running. Below the half minute that
/// the least patient of them wait.
const QUIET: Duration = Duration::from_secs(10);

/// The news of one request.
#[derive(Debug)]
pub(crate) struct News {
    voice: Voice,
    /// The client's token, if it wants to hear of progress.
    token: Option<RawJson>,
    id: RawJson,
    last: Mutex<Last>,
}

/// What was heard last.
#[derive(Debug)]
struct Last {
    at: Instant,
    /// Progress must not go back.
    progress: f64,
}

impl News {
    /// Nothing if the client wants to hear of nothing but the answer.
    pub(crate) fn of(request: &Message, voice: &Voice) -> Option<Arc<Self>> {
        let (token, id) = (request.progress_token(), request.id()?.to_json());
        let wants_logs = request.meta_member(LOG_LEVEL).is_some();
        if token.is_none() && !wants_logs && request.method() != Some("subscriptions/listen") {
            return None;
        }
        let last = Mutex::new(Last { at: Instant::now(), progress: 0.0 });
        Some(Arc::new(Self { voice: voice.clone(), token, id, last }))
    }

    /// Whether the client hears of progress.
    pub(crate) fn tells_progress(&self) -> bool {
        self.token.is_some()
    }

    /// Passes on what the server says, which is a sign of life where it is progress.
    pub(crate) fn hear(self: Arc<Self>, pulse: impl Fn() + Send + Sync + 'static) -> Hear {
        Arc::new(move |message: &Message| {
            let named = match (message.method(), &self.token) {
                (Some("notifications/progress"), Some(token)) => {
                    pulse();
                    let mut last = self.last.lock();
                    last.at = Instant::now();
                    let told = message.param("progress").and_then(|progress| progress.parse().ok());
                    last.progress = told.unwrap_or(last.progress);
                    message.rewrite().param("progressToken", token.clone())
                }
                (Some("notifications/message"), _) => message.rewrite(),
                _ => message.rewrite().meta(SUBSCRIPTION, self.id.clone()),
            };
            self.voice.mention(named.finish());
        })
    }

    /// Tells the client again and again that the call is still running, as long as nobody else does.
    pub(crate) async fn keep_alive(&self) -> Infallible {
        let Some(token) = &self.token else { return std::future::pending().await };
        loop {
            let due = self.last.lock().at + QUIET;
            if Instant::now() < due {
                tokio::time::sleep_until(due).await;
                continue;
            }
            let progress = {
                let mut last = self.last.lock();
                last.at = Instant::now();
                // Hardly more than before: how far the call is, only its server knows.
                last.progress += STEP;
                last.progress
            };
            let params = format!(
                r#"{{"progressToken":{},"progress":{progress},"message":"still running"}}"#,
                token.as_str()
            );
            let params = RawJson::parse(params).ok();
            self.voice.mention(Message::notification("notifications/progress", params.as_ref()));
        }
    }
}

const STEP: f64 = 0.001;

#[cfg(test)]
mod tests {
    use steadfast_mcp::delivery::Link;
    use steadfast_mcp::lines::{LineReader, QueueLimits, Received, line_writer};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_wants_progress_hears_from_us_while_its_server_is_silent() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (line, writing) = line_writer(ours, Link::new(), QueueLimits::default());
        tokio::spawn(writing);
        let mut lines = LineReader::new(theirs, 1 << 16);
        let request = |params: &str| {
            let text = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{params}}}"#);
            Message::parse(text, usize::MAX).unwrap()
        };
        let voice = Voice::Line(line);
        assert!(News::of(&request("{}"), &voice).is_none());
        let news = News::of(&request(r#"{"_meta":{"progressToken":"mine"}}"#), &voice).unwrap();
        let began = Instant::now();
        tokio::spawn({
            let news = news.clone();
            async move { news.keep_alive().await }
        });
        let mut told = async || {
            let Some(Ok(Received::Message(message))) = lines.next().await else { panic!("a message") };
            assert_eq!(message.param("progressToken"), Some("\"mine\""));
            (message.param("progress").unwrap().parse::<f64>().unwrap(), began.elapsed().as_secs())
        };
        assert_eq!(told().await, (0.001, 10));
        assert_eq!(told().await.1, 20);
        // What the server says comes through, and ours goes on from there, after another while.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let params = RawJson::parse(r#"{"progressToken":1,"progress":4}"#.to_owned()).unwrap();
        let of_server = Message::notification("notifications/progress", Some(&params));
        news.hear(|| {})(&of_server);
        assert_eq!(told().await, (4.0, 25));
        assert_eq!(told().await, (4.001, 35));
    }
}
