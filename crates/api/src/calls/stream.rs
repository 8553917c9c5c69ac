//! A call as events while it runs: its attempts, their heartbeats, and its result.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use serde::Serialize;
use steadfast::{Answer, Attempt, CallOptions, Called, Engine, Run, SignsOfLife, Tool};
use steadfast_core::call::AttemptEnd;
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::large_result::Reader;
use steadfast_core::policy::SettlingPolicy;
use steadfast_gateway::{LargeResults, ReadBy};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::read::{IDEMPOTENCY_KEY, Wanted};
use super::said::Letter;
use crate::answer::{EVENTS, SILENT, event, whole};

/// The maximum number of unsent events. A slower client misses further ones, but never the result.
const BEHIND: usize = 256;

/// The state of an attempt: `event: attempt`.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Told {
    /// The number of the attempt, from 1.
    attempt: u32,
    state: Stage,
    /// The duration, once it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    took_ms: Option<u64>,
}

/// The stage of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Stage {
    Begun,
    Answered,
    Failed,
    /// It was ended by a timeout or a cancellation.
    Ended,
}

/// A heartbeat: `event: progress`.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Progress {
    elapsed_ms: u64,
}

/// Builds the event stream of a call. The status is sent before the outcome is known, so it is always 200.
pub(super) fn answer(
    engine: &Engine,
    envelope: CallEnvelope,
    run: Run,
    options: CallOptions,
    wanted: Wanted,
    results: Results,
) -> Response {
    let (tell, told) = mpsc::channel(BEHIND);
    let calling = engine.call_with(envelope, Watched { tool: run, tell }, options);
    let signs = calling.signs_of_life();
    let following = Following {
        // In its own task: a client that reads slowly must not delay the call.
        call: Some(Task(tokio::spawn(calling))),
        told,
        signs,
        letter: Letter::new(engine, wanted.link, None),
        engine: engine.clone(),
        results,
        began: Instant::now(),
    };
    let events = stream::unfold(following, |mut following| async move {
        let event = following.next().await?;
        Some((Ok::<_, Infallible>(event), following))
    });
    let mut response = whole(StatusCode::OK, EVENTS, Body::from_stream(events));
    if let Some(key) = wanted.key {
        response.headers_mut().insert(IDEMPOTENCY_KEY, key);
    }
    response
}

/// A tool whose attempts are sent as events.
struct Watched {
    tool: Run,
    tell: mpsc::Sender<Told>,
}

impl Tool for Watched {
    fn run(&self, attempt: Attempt) -> impl Future<Output = Answer> + Send + 'static {
        let watch = Watch::begin(attempt.number, self.tell.clone());
        let running = self.tool.run(attempt);
        async move {
            let answer = running.await;
            watch.over(&answer);
            answer
        }
    }

    fn sees_end(&self) -> AttemptEnd {
        self.tool.sees_end()
    }

    fn end(&self, settling: SettlingPolicy) -> impl Future<Output = ()> + Send + 'static {
        self.tool.end(settling)
    }
}

/// The event stream of one call.
struct Following {
    /// `None` after the result was sent.
    call: Option<Task>,
    told: mpsc::Receiver<Told>,
    signs: SignsOfLife,
    letter: Letter,
    engine: Engine,
    results: Results,
    began: Instant,
}

/// The store of large results, and their reader.
pub(super) struct Results {
    pub(super) large: Arc<LargeResults>,
    pub(super) reader: Reader,
}

/// The task of a call. If the client disconnects it is aborted, and the engine decides about the call.
struct Task(JoinHandle<Called>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Following {
    async fn next(&mut self) -> Option<Bytes> {
        let call = &mut self.call.as_mut()?.0;
        tokio::select! {
            biased;
            Some(told) = self.told.recv() => Some(event("attempt", &told)),
            called = call => {
                self.call = None;
                // A call that panicked has no result, and its stream just ends.
                let mut called = called.ok()?;
                let Results { large, reader } = &self.results;
                large.shorten(&mut called, reader, ReadBy::Http, self.engine.now()).await;
                self.letter.carry(called.arrival);
                self.letter.handed_over();
                Some(event("result", &called.result))
            }
            () = self.signs.next() => {
                let elapsed_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
                Some(event("progress", &Progress { elapsed_ms }))
            }
            () = tokio::time::sleep(SILENT) => Some(Bytes::from_static(b":\n\n")),
        }
    }
}

/// Sends the events of one attempt, including its end on drop.
struct Watch {
    attempt: u32,
    began: Instant,
    tell: mpsc::Sender<Told>,
    end: Stage,
}

impl Watch {
    fn begin(attempt: u32, tell: mpsc::Sender<Told>) -> Self {
        let _ = tell.try_send(Told { attempt, state: Stage::Begun, took_ms: None });
        Self { attempt, began: Instant::now(), tell, end: Stage::Ended }
    }

    fn over(mut self, answer: &Answer) {
        self.end = if answer.is_ok() { Stage::Answered } else { Stage::Failed };
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let took_ms = u64::try_from(self.began.elapsed().as_millis()).ok();
        let _ = self.tell.try_send(Told { attempt: self.attempt, state: self.end, took_ms });
    }
}
