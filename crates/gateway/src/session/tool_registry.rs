//! The servers of a session as a tool registry, for the calls of a turn.

use std::pin::Pin;
use std::sync::Arc;

use serde_json::json;
use steadfast_core::envelope::CallEnvelope;
use steadfast_executor::{ResolvedTool, ToolRegistry};
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::{RpcId, RpcMessage};

use super::GatewaySession;
use crate::calls::upstream_tool::UpstreamTool;

/// The servers of a session as a tool registry.
pub(super) struct SessionToolRegistry(pub(super) Arc<GatewaySession>);

impl ToolRegistry for SessionToolRegistry {
    fn find<'a>(
        &'a self,
        envelope: &'a CallEnvelope,
    ) -> Pin<Box<dyn Future<Output = Option<ResolvedTool>> + Send + 'a>> {
        Box::pin(async {
            let namespace = envelope.tool_namespace.configured();
            let behind = self.0.servers().iter().find(|one| one.server.name.configured() == namespace)?;
            let params = json!({ "name": envelope.tool_name.as_str(), "arguments": null }).to_string();
            let params = params.replacen("null", envelope.payload.params.as_str(), 1);
            let params = JsonText::parse(params).ok()?;
            let request = RpcMessage::request(&RpcId::number(0), "tools/call", Some(&params));
            let upstream = UpstreamTool::at(behind, request, None);
            let info = behind.server.catalog.tool(envelope.tool_name.as_str());
            let namespace = Some(behind.server.name.clone());
            Some(ResolvedTool { namespace, info, reads: behind.reads(), ..ResolvedTool::new(upstream) })
        })
    }
}
