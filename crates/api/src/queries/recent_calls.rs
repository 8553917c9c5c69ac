//! Recent calls of this process, step by step, and the statistics of its last hour.

use std::cmp::Reverse;

use schemars::JsonSchema;
use serde::Serialize;
use steadfast::Steadfast;
use steadfast::admin::CallFacts;
use steadfast::store::StoreError;
use steadfast_core::id::{SessionKey, TenantId};
use steadfast_executor::{CallSeries, CallTrace};
use steadfast_store::{Journal, JournalQuery};

use super::paging::{NamedTool, fits, list_query};

/// The maximum number of calls of one request that are shown.
const MOST: usize = 50;

/// All known facts about the calls of one request.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RequestHistory {
    /// The results of the calls, newest first, including calls of other processes that share the store.
    pub calls: Vec<CallFacts>,
    /// The steps of the calls that ran in this process and are still in memory.
    pub traces: Vec<CallTrace>,
}

/// Returns all known facts about the calls of a request, or `None` if the request is unknown.
pub async fn request_history(
    steadfast: &Steadfast,
    request: &str,
) -> Result<Option<RequestHistory>, StoreError> {
    let query =
        JournalQuery { subject: Some(request.into()), ..JournalQuery::newest(Journal::History, MOST) };
    let entries = steadfast.store().entries(&query).await?;
    let calls: Vec<_> =
        entries.iter().filter_map(|(_, entry)| serde_json::from_str(&entry.body).ok()).collect();
    let mut traces = steadfast.recent().of_request(request);
    traces.truncate(MOST);
    Ok((!calls.is_empty() || !traces.is_empty()).then_some(RequestHistory { calls, traces }))
}

list_query! {
    /// Filters for running calls.
    RunningCallsQuery by Reverse<u64> {
        /// Only calls of this tenant.
        tenant: TenantId,
        /// Only calls of this tool: `namespace/tool`.
        tool: NamedTool,
        /// Only calls of this session.
        session: SessionKey,
    }
}

/// A page of the calls in flight in this process.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RunningCalls {
    /// The calls with their steps so far, newest first.
    pub calls: Vec<CallTrace>,
    /// Cursor of the next page, for `after`. `null` on the last page.
    pub next: Option<String>,
}

/// Returns the calls in flight.
pub fn running(steadfast: &Steadfast, query: &RunningCallsQuery) -> Result<RunningCalls, String> {
    let page = query.page()?;
    let all = steadfast.recent().running().into_iter().filter(|call| {
        fits(query.tenant.as_ref(), call.tenant.as_ref())
            && fits(query.tool.as_ref().map(|named| &named.0), Some(&call.tool))
            && fits(query.session.as_ref(), call.session.as_ref())
    });
    let listed = page.of(all, |call| Reverse(call.call));
    Ok(RunningCalls { calls: listed.rows, next: listed.next })
}

/// Returns the recent statistics of calls.
pub fn series(steadfast: &Steadfast) -> CallSeries {
    steadfast.recent().series(steadfast.engine().now())
}
