//! The last calls of this process step by step, and its last hour in numbers.

use schemars::JsonSchema;
use serde::Serialize;
use steadfast::{CallFacts, Steadfast, StoreError};
use steadfast_core::Timestamp;
use steadfast_executor::{CallTrace, Series};
use steadfast_store::{Journal, Query};

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
    let query = Query {
        journal: Journal::History,
        subject: Some(request.into()),
        since: Timestamp::ZERO,
        limit: MOST,
    };
    let entries = steadfast.store().entries(&query).await?;
    let calls: Vec<_> = entries.iter().filter_map(|entry| serde_json::from_str(&entry.body).ok()).collect();
    let mut traces = steadfast.recent().of_request(request);
    traces.truncate(MOST);
    Ok((!calls.is_empty() || !traces.is_empty()).then_some(Story { calls, traces }))
}

/// Calls that run in this process.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Running {
    /// The newest first, each as far as it has come.
    pub calls: Vec<CallTrace>,
}

/// The calls that run.
pub fn running(steadfast: &Steadfast) -> Running {
    Running { calls: steadfast.recent().running() }
}

/// How calls went of late.
pub fn series(steadfast: &Steadfast) -> Series {
    steadfast.recent().series(steadfast.engine().now())
}
