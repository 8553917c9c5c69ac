//! Names and messages of the Model Context Protocol that several parts of the gateway use.

use steadfast_json::scan;
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::{RpcId, RpcMessage};

/// The member of `_meta` with the id of the subscription request.
pub(crate) const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
/// The member of `_meta` with the lowest log level that a request wants.
pub(crate) const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";

/// Returns the notification that cancels a request.
pub(crate) fn cancel(id: &RpcId, reason: &str) -> RpcMessage {
    let params = format!(r#"{{"requestId":{id},"reason":{}}}"#, JsonText::string(reason).as_str());
    RpcMessage::notification("notifications/cancelled", JsonText::parse(params).ok().as_ref())
}

/// Returns true if a client with these capabilities supports form elicitation.
pub(crate) fn elicits(capabilities: &str) -> bool {
    scan::get(capabilities, "elicitation").is_some_and(|elicitation| {
        let has = |mode| scan::get(elicitation, mode).is_some();
        elicitation.starts_with('{') && (has("form") || !has("url"))
    })
}
