//! What became of calls.

use std::cmp::Reverse;

use schemars::JsonSchema;
use serde::Serialize;
use steadfast::{CallFacts, Store, StoreError};
use steadfast_core::Timestamp;
use steadfast_core::code::Status;
use steadfast_core::id::{SessionKey, TenantId};
use steadfast_store::{Entry, Journal, Position, Query, look_through};

use super::paging::{NamedTool, asks, fits};

/// How many are looked through at once for those that fit. Where that is not enough, the next page goes on.
const LOOKED_THROUGH: usize = 20_000;

asks! {
    /// Which calls are asked for.
    HistoryAsked by Reverse<Position> {
        /// Of this tenant.
        tenant: TenantId,
        /// Under this request id.
        request: String,
        /// Of this tool: `namespace/tool`.
        tool: NamedTool,
        /// Of this conversation.
        session: SessionKey,
        /// That ended so.
        status: Status,
        /// Not older than this, in milliseconds since 1970.
        since: u64,
    }
}

/// The same, understood.
#[derive(Clone, Debug)]
pub struct HistoryWanted {
    query: Query,
    asked: HistoryAsked,
}

impl HistoryAsked {
    /// What is meant, or what is wrong with it.
    pub fn read(self) -> Result<HistoryWanted, String> {
        let page = self.page()?;
        let query = Query {
            subject: self.request.as_deref().map(Into::into),
            since: Timestamp::from_millis(self.since.unwrap_or(0)),
            behind: page.after.map(|Reverse(place)| place),
            ..Query::newest(Journal::History, page.limit)
        };
        Ok(HistoryWanted { query, asked: self })
    }
}

/// A page of calls that are over.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct History {
    /// Those first that were over last.
    pub calls: Vec<CallFacts>,
    /// What to ask for `after` next; nothing at the end. Where few of many fit there may be more behind a short page, or an
    /// empty one.
    pub next: Option<String>,
}

/// The newest calls that fit.
pub async fn history(store: &dyn Store, wanted: &HistoryWanted) -> Result<History, StoreError> {
    let asked = &wanted.asked;
    let is_wanted = |facts: &CallFacts| {
        fits(asked.tenant.as_ref(), facts.tenant.as_ref())
            && fits(asked.tool.as_ref().map(|named| &named.0), Some(&facts.tool))
            && fits(asked.session.as_ref(), facts.session.as_ref())
            && fits(asked.status.as_ref(), Some(&facts.status))
    };
    // One that a newer version wrote is not ours to read.
    let read = |entry: &Entry| serde_json::from_str(&entry.body).ok().filter(is_wanted);
    let part = look_through(store, &wanted.query, LOOKED_THROUGH, read).await?;
    Ok(History { calls: part.found, next: part.next.map(|place| place.to_string()) })
}
