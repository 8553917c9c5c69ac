//! What became of calls.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steadfast::{CallFacts, Store, StoreError};
use steadfast_core::Timestamp;
use steadfast_core::code::Status;
use steadfast_core::id::{SessionKey, ToolRef};
use steadfast_store::{Journal, Query};

use super::{limit, tool};

/// The most that can be had at once.
const MOST: usize = 1000;
/// How many are looked through for those that fit.
const LOOKED_THROUGH: usize = 20_000;

/// Which calls are asked for.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HistoryAsked {
    /// The call with this request id.
    request: Option<String>,
    /// Of this tool: `namespace/tool`.
    tool: Option<String>,
    /// Of this conversation.
    session: Option<String>,
    /// That ended so.
    status: Option<Status>,
    /// Not older than this, in milliseconds since 1970.
    since: Option<u64>,
    /// So many, up to 1000.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
}

/// The same, understood.
#[derive(Clone, Debug)]
pub struct HistoryWanted {
    query: Query,
    tool: Option<ToolRef>,
    session: Option<SessionKey>,
    status: Option<Status>,
    limit: usize,
}

impl HistoryAsked {
    /// What is meant, or what is wrong with it.
    pub fn read(self) -> Result<HistoryWanted, String> {
        let limit = limit(self.limit, MOST)?;
        let session =
            self.session.map(SessionKey::new).transpose().map_err(|why| format!("session: {why}"))?;
        let tool = self.tool.as_deref().map(tool).transpose()?;
        let filters = tool.is_some() || session.is_some() || self.status.is_some();
        let query = Query {
            journal: Journal::History,
            subject: self.request.map(Into::into),
            since: Timestamp::from_millis(self.since.unwrap_or(0)),
            limit: if filters { LOOKED_THROUGH } else { limit },
        };
        Ok(HistoryWanted { query, tool, session, status: self.status, limit })
    }
}

/// Calls that are over.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct History {
    /// The newest first.
    pub calls: Vec<CallFacts>,
}

/// The newest calls that fit.
pub async fn history(store: &dyn Store, wanted: &HistoryWanted) -> Result<History, StoreError> {
    let fits = |facts: &CallFacts| {
        wanted.tool.as_ref().is_none_or(|tool| facts.tool == *tool)
            && wanted.session.as_ref().is_none_or(|session| facts.session.as_ref() == Some(session))
            && wanted.status.is_none_or(|status| facts.status == status)
    };
    let entries = store.entries(&wanted.query).await?;
    // One that a newer version wrote is not ours to read.
    let facts = entries.iter().filter_map(|entry| serde_json::from_str(&entry.body).ok());
    Ok(History { calls: facts.filter(fits).take(wanted.limit).collect() })
}
