//! Turns of an engine.

use std::sync::Arc;

use steadfast_core::envelope::CallerIdentity;
use steadfast_store::{JournalPage, StoreError};
use steadfast_turn::TurnPlan;
use tokio_util::context::TokioContext;

use super::api::Engine;
use crate::call::registry::ToolRegistry;
use crate::observe::turn_summary::TurnSummary;
use crate::turns::options::TurnOptions;
use crate::turns::runner::{TurnRejection, TurnResponse};
use crate::turns::trace_journal::{TurnQuery, TurnTraceView};

impl Engine {
    /// Runs a turn. It ends by its deadline. Dropping the future leaves calls in flight to the engine.
    /// Like a call, it may be polled outside of a runtime.
    pub async fn turn(
        &self,
        plan: Arc<TurnPlan>,
        registry: Arc<dyn ToolRegistry>,
        options: TurnOptions,
    ) -> Result<TurnResponse, TurnRejection> {
        let runtime = self.inner.calls.state.runtime.clone();
        TokioContext::new(self.inner.turns.run(plan, registry, options), runtime).await
    }

    /// Cancels the turns with this name or trace that run here and for which `is_theirs` returns true: nothing more of
    /// them starts, and calls in flight are cancelled. Returns the number of turns.
    pub fn cancel_turn(&self, name: &str, is_theirs: impl Fn(&CallerIdentity) -> bool) -> usize {
        self.inner.turns.cancel(name, is_theirs)
    }

    /// Returns the turns that match, newest first.
    pub async fn turns(&self, query: &TurnQuery) -> Result<JournalPage<TurnSummary>, StoreError> {
        self.inner.turns.turns(query).await
    }

    /// Returns the stored trace of a turn, by its trace id or by the name in its plan (the newest of that name).
    pub async fn turn_trace(&self, name: &str) -> Result<Option<TurnTraceView>, StoreError> {
        self.inner.turns.trace(name).await
    }
}
