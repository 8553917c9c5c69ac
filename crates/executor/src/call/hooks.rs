//! Extension points for user code: before and after each attempt, at a short circuit, and for the key.
//!
//! A hook observes. It cannot change parameters and cannot break a call: if it panics or takes longer than
//! [`PATIENCE`], that is logged and the call continues.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::code::Code;
use steadfast_core::envelope::CallEnvelope;

use crate::call::panics::CatchPanic;
use crate::call::tool::ToolResult;

/// The future that a hook returns. It may take up to [`PATIENCE`].
pub type HookFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Maximum time that a call waits for a hook.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// User code at named points of a call. The default of each hook does nothing.
pub trait Hooks: Send + Sync + 'static {
    /// Returns a key for a call without an idempotency key. Runs once, before the claim.
    fn key<'a>(&'a self, _call: &'a CallEnvelope) -> HookFuture<'a, Option<String>> {
        Box::pin(async { None })
    }

    /// Runs before each attempt.
    fn before_attempt<'a>(&'a self, _call: &'a CallEnvelope, _attempt: u32) -> HookFuture<'a, ()> {
        Box::pin(async {})
    }

    /// Runs after each attempt.
    fn after_attempt<'a>(
        &'a self,
        _call: &'a CallEnvelope,
        _attempt: u32,
        _answer: &'a ToolResult,
    ) -> HookFuture<'a, ()> {
        Box::pin(async {})
    }

    /// Runs when a call ends without an attempt: replayed (no code) or refused.
    fn short_circuit<'a>(&'a self, _call: &'a CallEnvelope, _code: Option<Code>) -> HookFuture<'a, ()> {
        Box::pin(async {})
    }
}

/// The hooks of an engine, if it has any.
#[derive(Clone, Default)]
pub(crate) struct HookRunner(pub(crate) Option<Arc<dyn Hooks>>);

impl HookRunner {
    pub(crate) async fn key(&self, call: &CallEnvelope) -> Option<String> {
        let hooks = self.0.as_ref()?;
        guarded("key", || hooks.key(call)).await.flatten()
    }

    pub(crate) async fn before_attempt(&self, call: &CallEnvelope, attempt: u32) {
        if let Some(hooks) = &self.0 {
            guarded("before_attempt", || hooks.before_attempt(call, attempt)).await;
        }
    }

    pub(crate) async fn after_attempt(&self, call: &CallEnvelope, attempt: u32, answer: &ToolResult) {
        if let Some(hooks) = &self.0 {
            guarded("after_attempt", || hooks.after_attempt(call, attempt, answer)).await;
        }
    }

    pub(crate) async fn short_circuit(&self, call: &CallEnvelope, code: Option<Code>) {
        if let Some(hooks) = &self.0 {
            guarded("short_circuit", || hooks.short_circuit(call, code)).await;
        }
    }
}

/// Runs a hook in isolation: neither a panic nor a delay reaches the call.
async fn guarded<'a, T>(name: &str, hook: impl FnOnce() -> HookFuture<'a, T>) -> Option<T> {
    let made = std::panic::catch_unwind(AssertUnwindSafe(hook)).ok();
    let Some(future) = made else {
        tracing::warn!(event = "hook.failed", hook = name, "a hook panicked; the call continues");
        return None;
    };
    match tokio::time::timeout(PATIENCE, CatchPanic(future)).await {
        Ok(Ok(value)) => Some(value),
        Ok(Err(_)) => {
            tracing::warn!(event = "hook.failed", hook = name, "a hook panicked; the call continues");
            None
        }
        Err(_) => {
            tracing::warn!(event = "hook.failed", hook = name, "a hook timed out; the call continues");
            None
        }
    }
}

impl fmt::Debug for HookRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Hooked" } else { "NotHooked" })
    }
}
