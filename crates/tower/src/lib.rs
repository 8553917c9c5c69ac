//! A tower layer for the engine.
//!
//! The layer wraps a service that makes single attempts, and turns it into a service that makes whole calls:
//!
//! ```text
//!   CallEnvelope ──▶ SteadfastService<S> ──▶ CallResponse   never an error: a failed tool is a value
//!                        │  as often as the policy allows
//!                        ▼
//!                  Attempt ──▶ S ──▶ Output, or a fault
//! ```
//!
//! Retry, timeout, limit and breaker layers below it would duplicate its work. Leave them out, and set the policy
//! instead.

use std::convert::Infallible;
use std::future::Future;
use std::task::{Context, Poll};

use steadfast_core::envelope::CallEnvelope;
use steadfast_core::output::ToolOutput;
use steadfast_executor::{Attempt, CallResponse, Engine, PendingCall, ToolFault, ToolResult};
use tower::{Layer, Service, ServiceExt};

/// A layer that puts an engine in front of a service.
#[derive(Clone, Debug)]
pub struct SteadfastLayer {
    engine: Engine,
}

impl SteadfastLayer {
    /// Creates a layer with this engine.
    pub fn new(engine: Engine) -> Self {
        Self { engine }
    }
}

impl<S> Layer<S> for SteadfastLayer {
    type Service = SteadfastService<S>;

    fn layer(&self, inner: S) -> SteadfastService<S> {
        SteadfastService { engine: self.engine.clone(), inner }
    }
}

/// A service that runs every call through an engine.
#[derive(Clone, Debug)]
pub struct SteadfastService<S> {
    engine: Engine,
    inner: S,
}

impl<S> Service<CallEnvelope> for SteadfastService<S>
where
    S: Service<Attempt, Response = ToolOutput> + Clone + Send + Sync + 'static,
    S::Error: Into<ToolFault> + Send,
    S::Future: Send,
{
    type Response = CallResponse;
    type Error = Infallible;
    type Future = CallFuture;

    /// Always ready: the limits are checked for each call, and a refusal is a response.
    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: CallEnvelope) -> CallFuture {
        let service = self.inner.clone();
        let tool = move |attempt: Attempt| {
            let service = service.clone();
            async move { answer(service, attempt).await }
        };
        CallFuture(self.engine.call(call, tool))
    }
}

async fn answer<S>(service: S, attempt: Attempt) -> ToolResult
where
    S: Service<Attempt, Response = ToolOutput>,
    S::Error: Into<ToolFault>,
{
    service.oneshot(attempt).await.map_err(|error| error.into().into())
}

/// The future of a call. Dropping it is a disconnect: an attempt in flight continues, and its result is recorded.
#[derive(Debug)]
pub struct CallFuture(PendingCall);

impl Future for CallFuture {
    type Output = Result<CallResponse, Infallible>;

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        std::pin::Pin::new(&mut self.0).poll(context).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use steadfast_core::classify::{AttemptFault, FaultSource};
    use steadfast_core::code::CallStatus;
    use steadfast_core::envelope::UnknownFieldPolicy;
    use steadfast_core::policy::{PolicyProfile, ToolClass};
    use steadfast_executor::RuntimeClock;
    use steadfast_json::RawJson;
    use tower::{ServiceBuilder, service_fn};

    use super::*;

    fn envelope() -> CallEnvelope {
        let text = r#"{"contractVersion":"1.1","requestId":"r","toolName":"search","toolNamespace":"web",
            "target":{"sessionKey":"s","actorId":"ann"},
            "payload":{"version":"1.0","params":{"q":"rust"},"idempotencyKey":"k"}}"#;
        CallEnvelope::parse(text.as_bytes(), UnknownFieldPolicy::Refuse).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_behind_the_layer_is_retried_and_its_answer_is_replayed() {
        let policy = Arc::new(PolicyProfile::Standard.policy(ToolClass::Idempotent));
        let clock = Arc::new(RuntimeClock::new());
        let engine = Engine::builder().clock(clock).policies(policy).start().await;
        let runs = Arc::new(AtomicU32::new(0));
        let counted = runs.clone();
        let service = service_fn(move |_: Attempt| {
            let run = counted.fetch_add(1, Ordering::SeqCst);
            async move {
                match run {
                    0 => Err(AttemptFault::new(FaultSource::Http { status: 503 }, "unavailable")),
                    _ => Ok(ToolOutput { content: RawJson::string("found"), metadata: None }),
                }
            }
        });
        let mut guarded = ServiceBuilder::new().layer(SteadfastLayer::new(engine)).service(service);
        let first = guarded.ready().await.unwrap().call(envelope()).await.unwrap();
        assert_eq!((first.result.status, first.result.attempts), (CallStatus::Success, 2));
        let again = guarded.ready().await.unwrap().call(envelope()).await.unwrap();
        assert!(again.result.from_cache);
        assert_eq!(runs.load(Ordering::SeqCst), 2);
    }
}
