//! A call as events while it runs: its attempts, their heartbeats, and its result.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use serde::Serialize;
use steadfast::call::{CallOptions, ProgressSignals, SharedTool, ToolResult};
use steadfast::{Attempt, CallResponse, Engine, ToolHandler};
use steadfast_core::call::AttemptEndVisibility;
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::large_result::ResultReader;
use steadfast_core::policy::SettlingPolicy;
use steadfast_gateway::{LargeResults, ReadMethod};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::call_request::{CallRequestParts, IDEMPOTENCY_KEY};
use super::call_response::ResultDelivery;
use crate::encoding::{EVENTS, KEEP_ALIVE_INTERVAL, event, whole};

/// The maximum number of unsent events. A slower client misses further ones, but never the result.
const MOST_UNSENT: usize = 256;

/// The state of an attempt: `event: attempt`.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AttemptUpdate {
    /// The number of the attempt, from 1.
    attempt: u32,
    state: AttemptStage,
    /// The duration, once it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    took_ms: Option<u64>,
}

/// The stage of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum AttemptStage {
    #[serde(rename = "begun")]
    Started,
    Answered,
    Failed,
    /// It was ended by a timeout or a cancellation.
    Ended,
}

/// A heartbeat: `event: progress`.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ProgressEvent {
    elapsed_ms: u64,
}

/// Builds the event stream of a call. The status is sent before the outcome is known, so it is always 200.
pub(super) fn answer(
    engine: &Engine,
    envelope: CallEnvelope,
    run: SharedTool,
    options: CallOptions,
    request: CallRequestParts,
    results: ResultShortener,
) -> Response {
    let (sender, updates) = mpsc::channel(MOST_UNSENT);
    let calling = engine.call_with(envelope, WatchedTool { tool: run, sender }, options);
    let signs = calling.progress_signals();
    let following = CallEventStream {
        // In its own task: a client that reads slowly must not delay the call.
        call: Some(CallTask(tokio::spawn(calling))),
        updates,
        signs,
        delivery: ResultDelivery::new(engine, request.link, None),
        engine: engine.clone(),
        results,
        began: Instant::now(),
    };
    let events = stream::unfold(following, |mut following| async move {
        let event = following.next().await?;
        Some((Ok::<_, Infallible>(event), following))
    });
    let mut response = whole(StatusCode::OK, EVENTS, Body::from_stream(events));
    if let Some(key) = request.key {
        response.headers_mut().insert(IDEMPOTENCY_KEY, key);
    }
    response
}

/// A tool whose attempts are sent as events.
struct WatchedTool {
    tool: SharedTool,
    sender: mpsc::Sender<AttemptUpdate>,
}

impl ToolHandler for WatchedTool {
    fn run(&self, attempt: Attempt) -> impl Future<Output = ToolResult> + Send + 'static {
        let watch = AttemptWatch::begin(attempt.number, self.sender.clone());
        let running = self.tool.run(attempt);
        async move {
            let answer = running.await;
            watch.over(&answer);
            answer
        }
    }

    fn sees_end(&self) -> AttemptEndVisibility {
        self.tool.sees_end()
    }

    fn end(&self, settling: SettlingPolicy) -> impl Future<Output = ()> + Send + 'static {
        self.tool.end(settling)
    }
}

/// The event stream of one call.
struct CallEventStream {
    /// `None` after the result was sent.
    call: Option<CallTask>,
    updates: mpsc::Receiver<AttemptUpdate>,
    signs: ProgressSignals,
    delivery: ResultDelivery,
    engine: Engine,
    results: ResultShortener,
    began: Instant,
}

/// The store of large results, and their reader.
pub(super) struct ResultShortener {
    pub(super) large: Arc<LargeResults>,
    pub(super) reader: ResultReader,
}

/// The task of a call. If the client disconnects it is aborted, and the engine decides about the call.
struct CallTask(JoinHandle<CallResponse>);

impl Drop for CallTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl CallEventStream {
    async fn next(&mut self) -> Option<Bytes> {
        let call = &mut self.call.as_mut()?.0;
        tokio::select! {
            biased;
            Some(update) = self.updates.recv() => Some(event("attempt", &update)),
            called = call => {
                self.call = None;
                // A call that panicked has no result, and its stream just ends.
                let mut called = called.ok()?;
                let ResultShortener { large, reader } = &self.results;
                large.shorten(&mut called, reader, ReadMethod::Http, self.engine.now()).await;
                self.delivery.carry(called.delivery);
                self.delivery.record_handover();
                Some(event("result", &called.result))
            }
            () = self.signs.next() => {
                let elapsed_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
                Some(event("progress", &ProgressEvent { elapsed_ms }))
            }
            () = tokio::time::sleep(KEEP_ALIVE_INTERVAL) => Some(Bytes::from_static(b":\n\n")),
        }
    }
}

/// Sends the events of one attempt, including its end on drop.
struct AttemptWatch {
    attempt: u32,
    began: Instant,
    sender: mpsc::Sender<AttemptUpdate>,
    end: AttemptStage,
}

impl AttemptWatch {
    fn begin(attempt: u32, sender: mpsc::Sender<AttemptUpdate>) -> Self {
        let _ = sender.try_send(AttemptUpdate { attempt, state: AttemptStage::Started, took_ms: None });
        Self { attempt, began: Instant::now(), sender, end: AttemptStage::Ended }
    }

    fn over(mut self, answer: &ToolResult) {
        self.end = if answer.is_ok() { AttemptStage::Answered } else { AttemptStage::Failed };
    }
}

impl Drop for AttemptWatch {
    fn drop(&mut self) {
        let took_ms = u64::try_from(self.began.elapsed().as_millis()).ok();
        let _ = self.sender.try_send(AttemptUpdate { attempt: self.attempt, state: self.end, took_ms });
    }
}
