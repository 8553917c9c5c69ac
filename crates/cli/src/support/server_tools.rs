//! The tools of servers, for calls over plain HTTP.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use steadfast::admin::AvailableTool;
use steadfast::call::{ResolvedTool, ToolRegistry};
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::Namespace;
use steadfast_gateway::DirectServers;

/// The tools of the servers behind a gateway.
pub(crate) struct ServerTools(pub(crate) Arc<DirectServers>);

impl ToolRegistry for ServerTools {
    fn find<'a>(&'a self, envelope: &'a CallEnvelope) -> BoxFuture<'a, Option<ResolvedTool>> {
        async {
            let (tool, info) = self.0.find(envelope).await?;
            let (namespace, reads) = (self.0.name(&envelope.tool_namespace), tool.reads());
            Some(ResolvedTool { namespace, info, reads, ..ResolvedTool::new(tool) })
        }
        .boxed()
    }

    fn runs(&self, namespace: &Namespace) -> bool {
        self.0.has(namespace)
    }

    fn list(&self) -> Vec<AvailableTool> {
        self.0.tools()
    }
}
