//! The census of a store: a count of its records. No event reports a record that expires or whose owner dies, so they
//! must be counted.

use std::collections::BTreeMap;

use steadfast_core::Timestamp;
use steadfast_core::dedupe::{DedupeRecord, DedupeState, Lease};
use steadfast_core::id::ToolRef;
use steadfast_store::{RecordFilter, RecordPage, StateStore, StoreError};

/// The counts of the records in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreCensus {
    tools: BTreeMap<ToolRef, ToolCensus>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ToolCensus {
    pub(super) records: u64,
    pub(super) inflight: u64,
    pub(super) stale: u64,
}

impl StoreCensus {
    /// Counts up to `most` records of a store. Reads them page by page, so once a minute is often enough.
    pub async fn take(store: &dyn StateStore, most: usize) -> Result<Self, StoreError> {
        let mut census = Self::default();
        let everything = RecordFilter::default();
        let (mut after, mut left) = (None, most);
        while left > 0 {
            let page = RecordPage { after, limit: left.min(PAGE) };
            let records = store.records(&everything, page).await?;
            let now = store.now();
            for record in &records {
                census.count(record, now);
            }
            if records.len() < page.limit {
                break;
            }
            left -= records.len();
            after = records.last().map(|record| record.key);
        }
        Ok(census)
    }

    /// Adds one record.
    pub fn count(&mut self, record: &DedupeRecord, now: Timestamp) {
        let counted = self.tools.entry(record.tool.clone()).or_default();
        counted.records += 1;
        match record.state {
            DedupeState::Inflight => {
                counted.inflight += 1;
                counted.stale += u64::from(match record.lease {
                    Lease::Until(end) => end <= now,
                    Lease::Record => false,
                });
            }
            DedupeState::Done(_)
            | DedupeState::Failed(_)
            | DedupeState::Unknown(_)
            | DedupeState::Cancelled => {}
        }
    }

    pub(super) fn tools(&self) -> impl Iterator<Item = (&ToolRef, &ToolCensus)> {
        self.tools.iter()
    }
}

/// Records that are read at once.
const PAGE: usize = 500;
