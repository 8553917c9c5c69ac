//! Where users put their own code: before and after each attempt, at a short circuit, and for the key.
//!
//! A hook sees; it cannot change parameters, and it cannot break a call: one that panics, or takes longer than
//! [`PATIENCE`], is told of in the log and the call goes on.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::code::Code;
use steadfast_core::envelope::CallEnvelope;

use crate::catch::Caught;
use crate::tool::Answer;

/// What a hook gives back: it may take its time, within [`PATIENCE`].
pub type HookFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// How long a call waits for a hook.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// Code of the user's at named points of a call. Each has a default that does nothing.
pub trait Hooks: Send + Sync + 'static {
    /// The key of a call whose caller gave none; asked once, before the claim.
    fn key<'a>(&'a self, _call: &'a CallEnvelope) -> HookFuture<'a, Option<String>> {
        Box::pin(async { None })
    }

    /// An attempt is about to be made.
    fn before_attempt<'a>(&'a self, _call: &'a CallEnvelope, _attempt: u32) -> HookFuture<'a, ()> {
        Box::pin(async {})
    }

    /// An attempt was made.
    fn after_attempt<'a>(
        &'a self,
        _call: &'a CallEnvelope,
        _attempt: u32,
        _answer: &'a Answer,
    ) -> HookFuture<'a, ()> {
        Box::pin(async {})
    }

    /// The call was answered without an attempt: replayed (no code) or refused.
    fn short_circuit<'a>(&'a self, _call: &'a CallEnvelope, _code: Option<Code>) -> HookFuture<'a, ()> {
        Box::pin(async {})
    }
}

/// The hooks of an engine, if it has any.
#[derive(Clone, Default)]
pub(crate) struct Hooked(pub(crate) Option<Arc<dyn Hooks>>);

impl Hooked {
    pub(crate) async fn key(&self, call: &CallEnvelope) -> Option<String> {
        let hooks = self.0.as_ref()?;
        guarded("key", || hooks.key(call)).await.flatten()
    }

    pub(crate) async fn before_attempt(&self, call: &CallEnvelope, attempt: u32) {
        if let Some(hooks) = &self.0 {
            guarded("before_attempt", || hooks.before_attempt(call, attempt)).await;
        }
    }

    pub(crate) async fn after_attempt(&self, call: &CallEnvelope, attempt: u32, answer: &Answer) {
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

/// Runs a hook so that nothing it does can reach the call.
async fn guarded<'a, T>(name: &str, hook: impl FnOnce() -> HookFuture<'a, T>) -> Option<T> {
    let made = std::panic::catch_unwind(AssertUnwindSafe(hook)).ok();
    let Some(future) = made else {
        tracing::warn!(event = "hook.failed", hook = name, "a hook panicked; the call goes on");
        return None;
    };
    match tokio::time::timeout(PATIENCE, Caught(future)).await {
        Ok(Ok(value)) => Some(value),
        Ok(Err(_)) => {
            tracing::warn!(event = "hook.failed", hook = name, "a hook panicked; the call goes on");
            None
        }
        Err(_) => {
            tracing::warn!(event = "hook.failed", hook = name, "a hook took too long; the call goes on");
            None
        }
    }
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Hooked" } else { "NotHooked" })
    }
}
