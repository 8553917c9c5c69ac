//! Lists the tools of a server.

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::classify::AttemptFault;
use steadfast_json::scan;
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::{RpcId, RpcMessage};
use tokio::time::{Instant, timeout};

use super::{UpstreamServer, not_sent};
use crate::json_parts::json;

/// The time that a call waits for the tool list of its server. Without the list the tool may or may not exist, and it
/// is treated as mutating.
pub(crate) const LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// The time after a failed listing during which it is not waited for again.
pub(crate) const LIST_BACKOFF: Duration = Duration::from_secs(30);
/// The maximum number of pages that are read.
const MOST_PAGES: usize = 64;

impl UpstreamServer {
    /// Lists the tools, unless they are known or listing failed recently. `meta` is sent with the request.
    pub(crate) async fn list_once(self: &Arc<Self>, meta: Option<&JsonText>) {
        if self.catalog.is_listed() {
            return;
        }
        let mut failed = self.catalog.listing.lock().await;
        if self.catalog.is_listed() || failed.is_some_and(|at| at.elapsed() < LIST_BACKOFF) {
            return;
        }
        let listed = timeout(LIST_TIMEOUT, self.list(meta, |_, _| {})).await;
        *failed = (!matches!(listed, Ok(Ok(())))).then(Instant::now);
    }

    /// Lists the tools and stores them. Calls `page` for every page.
    pub(crate) async fn list(
        self: &Arc<Self>,
        meta: Option<&JsonText>,
        mut page: impl FnMut(&RpcMessage, &RpcMessage),
    ) -> Result<(), AttemptFault> {
        let mut cursor: Option<JsonText> = None;
        for _ in 0..MOST_PAGES {
            let members = [("_meta", meta), ("cursor", cursor.as_ref())];
            let members = members.into_iter().filter_map(|(name, value)| Some((name, value?)));
            let members: Vec<_> =
                members.map(|(name, value)| format!(r#""{name}":{}"#, value.as_str())).collect();
            let params = (!members.is_empty()).then(|| json(&format!("{{{}}}", members.join(","))));
            let request = RpcMessage::request(&RpcId::number(0), "tools/list", params.as_ref());
            let answered = async { self.send(&request, None).await?.answer().await };
            let answer = match timeout(LIST_TIMEOUT, answered).await {
                Ok(answer) => answer?,
                Err(_) => return Err(not_sent("the server did not list its tools in time")),
            };
            if answer.result().is_none() {
                return Err(not_sent(&answer.error_text().unwrap_or_default()));
            }
            let _ = self.catalog.learn(&request, &answer);
            page(&request, &answer);
            match answer.result().and_then(|result| scan::get(result, "nextCursor")) {
                Some(next) if next.starts_with('"') => cursor = Some(json(next)),
                Some(_) | None => break,
            }
        }
        Ok(())
    }
}

/// Returns the client's introduction from a request, for a request of the gateway on its behalf.
pub(crate) fn meta_of(request: &RpcMessage) -> Option<JsonText> {
    const PREFIX: &str = "io.modelcontextprotocol/";
    let meta: serde_json::Map<String, serde_json::Value> = serde_json::from_str(request.meta()?).ok()?;
    let meta: serde_json::Map<_, _> = meta.into_iter().filter(|(name, _)| name.starts_with(PREFIX)).collect();
    (!meta.is_empty()).then(|| json(&serde_json::Value::Object(meta).to_string()))
}
