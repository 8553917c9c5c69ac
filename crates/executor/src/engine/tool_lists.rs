//! The tools that servers listed.

use steadfast_core::id::{Namespace, ToolName, ToolRef};
use steadfast_core::policy::AnnotationHints;
use steadfast_store::StoreError;

use super::api::Engine;
use crate::shared::tool_lists::LastAnnotations;

impl Engine {
    /// Stores the tools that a server listed, in the background. Only a [shutdown](Engine::shutdown) waits for it. A
    /// list that was written recently is not written again. A failure of the store is only logged.
    pub fn register_tools(&self, server: Namespace, tools: Vec<(ToolName, AnnotationHints)>) {
        let lists = self.inner.tool_lists.clone();
        self.inner.calls.state.background_tasks.spawn(async move { lists.write(&server, tools).await });
    }

    /// Returns the last known annotations of a tool, from a list or a call. Returns `None` if it was never seen.
    pub async fn last_annotations(&self, tool: &ToolRef) -> Result<Option<LastAnnotations>, StoreError> {
        self.inner.tool_lists.last_annotations(tool).await
    }
}
