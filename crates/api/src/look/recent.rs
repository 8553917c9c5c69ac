//! The last calls of this process step by step, and its last hour in numbers.

use std::cmp::Reverse;

use schemars::JsonSchema;
use serde::Serialize;
use steadfast::{CallFacts, Steadfast, StoreError};
use steadfast_core::id::{SessionKey, TenantId};
use steadfast_executor::{CallTrace, Series};
use steadfast_store::{Journal, Query};

use super::paging::{NamedTool, asks, fits};

/// The most calls under one request that are shown.
const MOST: usize = 50;

/// All that is known of the calls under one request.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Story {
    /// What became of them, the newest first; those of other processes that share the store are among them.
    pub calls: Vec<CallFacts>,
    /// What happened at each step, where this process saw it and still knows.
    pub traces: Vec<CallTrace>,
}

/// All that is known of the calls under this request; nothing if nobody has heard of it.
pub async fn story(steadfast: &Steadfast, request: &str) -> Result<Option<Story>, StoreError> {
    let query = Query { subject: Some(request.into()), ..Query::newest(Journal::History, MOST) };
    let entries = steadfast.store().entries(&query).await?;
    let calls: Vec<_> =
        entries.iter().filter_map(|(_, entry)| serde_json::from_str(&entry.body).ok()).collect();
    let mut traces = steadfast.recent().of_request(request);
    traces.truncate(MOST);
    Ok((!calls.is_empty() || !traces.is_empty()).then_some(Story { calls, traces }))
}

asks! {
    /// Which calls are asked for.
    RunningAsked by Reverse<u64> {
        /// Of this tenant.
        tenant: TenantId,
        /// Of this tool: `namespace/tool`.
        tool: NamedTool,
        /// Of this conversation.
        session: SessionKey,
    }
}

/// A page of the calls that run in this process.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Running {
    /// The newest first, each as far as it has come.
    pub calls: Vec<CallTrace>,
    /// What to ask for `after` next; nothing at the end.
    pub next: Option<String>,
}

/// The calls that run.
pub fn running(steadfast: &Steadfast, asked: &RunningAsked) -> Result<Running, String> {
    let page = asked.page()?;
    let all = steadfast.recent().running().into_iter().filter(|call| {
        fits(asked.tenant.as_ref(), call.tenant.as_ref())
            && fits(asked.tool.as_ref().map(|named| &named.0), Some(&call.tool))
            && fits(asked.session.as_ref(), call.session.as_ref())
    });
    let listed = page.of(all, |call| Reverse(call.call));
    Ok(Running { calls: listed.rows, next: listed.next })
}

/// How calls went of late.
pub fn series(steadfast: &Steadfast) -> Series {
    steadfast.recent().series(steadfast.engine().now())
}
