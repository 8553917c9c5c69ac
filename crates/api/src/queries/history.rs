//! The history of calls.

use std::cmp::Reverse;

use schemars::JsonSchema;
use serde::Serialize;
use steadfast::admin::CallFacts;
use steadfast::store::{StateStore, StoreError};
use steadfast_core::Timestamp;
use steadfast_core::code::CallStatus;
use steadfast_core::id::{SessionKey, TenantId};
use steadfast_store::{Journal, JournalEntry, JournalPosition, JournalQuery, filter_entries};

use super::paging::{NamedTool, fits, list_query};

/// The number of entries that are searched for one page. If they are not enough, the next page continues.
const MOST_SEARCHED: usize = 20_000;

list_query! {
    /// Filters for finished calls.
    HistoryQuery by Reverse<JournalPosition> {
        /// Only calls of this tenant.
        tenant: TenantId,
        /// Only calls with this request id.
        request: String,
        /// Only calls of this tool: `namespace/tool`.
        tool: NamedTool,
        /// Only calls of this session.
        session: SessionKey,
        /// Only calls with this status.
        status: CallStatus,
        /// Only calls since this time, in milliseconds since 1970.
        since: u64,
    }
}

/// A parsed query of the history.
#[derive(Clone, Debug)]
pub struct HistorySearch {
    query: JournalQuery,
    filters: HistoryQuery,
}

impl HistoryQuery {
    /// Returns the query, or a description of the error.
    pub fn read(self) -> Result<HistorySearch, String> {
        let page = self.page()?;
        let query = JournalQuery {
            subject: self.request.as_deref().map(Into::into),
            since: Timestamp::from_millis(self.since.unwrap_or(0)),
            before: page.after.map(|Reverse(place)| place),
            ..JournalQuery::newest(Journal::History, page.limit)
        };
        Ok(HistorySearch { query, filters: self })
    }
}

/// A page of finished calls.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct History {
    /// The calls, the last finished first.
    pub calls: Vec<CallFacts>,
    /// Cursor of the next page, for `after`. `null` on the last page. If few entries match the filters, a page may be
    /// short or empty although more pages follow.
    pub next: Option<String>,
}

/// Returns the newest calls that match.
pub async fn history(store: &dyn StateStore, search: &HistorySearch) -> Result<History, StoreError> {
    let filters = &search.filters;
    let is_wanted = |facts: &CallFacts| {
        fits(filters.tenant.as_ref(), facts.tenant.as_ref())
            && fits(filters.tool.as_ref().map(|named| &named.0), Some(&facts.tool))
            && fits(filters.session.as_ref(), facts.session.as_ref())
            && fits(filters.status.as_ref(), Some(&facts.status))
    };
    // Entries of a newer version are skipped.
    let read = |entry: &JournalEntry| serde_json::from_str(&entry.body).ok().filter(is_wanted);
    let part = filter_entries(store, &search.query, MOST_SEARCHED, read).await?;
    Ok(History { calls: part.found, next: part.next.map(|place| place.to_string()) })
}
