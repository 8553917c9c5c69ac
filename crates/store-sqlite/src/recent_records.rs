//! A cache of the in-flight calls that this process wrote last, so that the next step of a call need not decode its
//! record.
//!
//! A record is used only if the file contains the very bytes that it was encoded to. So it does not matter if they
//! were ever committed, and entries may be dropped at any time.

use std::collections::HashMap;
use std::sync::Arc;

use steadfast_core::dedupe::DedupeRecord;
use steadfast_core::key::RecordKey;

#[derive(Debug, Default)]
pub(crate) struct RecentRecords {
    records: HashMap<RecordKey, (Arc<DedupeRecord>, Vec<u8>)>,
}

/// Each needs about 2 KiB. Further calls take a little more time.
const MOST: usize = 1024;

impl RecentRecords {
    /// Returns the record that was encoded to these bytes, if it is known.
    pub(crate) fn get(&self, key: &RecordKey, body: &[u8]) -> Option<Arc<DedupeRecord>> {
        self.records.get(key).filter(|(_, written)| written == body).map(|(record, _)| record.clone())
    }

    /// Adds a record and its encoded bytes.
    pub(crate) fn put(&mut self, record: Arc<DedupeRecord>, body: Vec<u8>) {
        if self.records.len() >= MOST {
            // Some were finished by other processes, which this process does not know, and would stay for ever.
            self.records.clear();
        }
        self.records.insert(record.key, (record, body));
    }

    /// Removes a record that is no longer in flight.
    pub(crate) fn forget(&mut self, key: &RecordKey) {
        self.records.remove(key);
    }
}
