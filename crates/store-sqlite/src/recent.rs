//! The calls in flight that this process wrote last, with what was written: so that the next step of a call need not
//! read it again.
//!
//! Nothing is believed: a record is taken from here only if the file holds the very bytes that were made of it. So it
//! does not matter whether they were ever committed, and this may forget whatever it likes.

use std::collections::HashMap;
use std::sync::Arc;

use steadfast_core::dedupe::Record;
use steadfast_core::key::Key;

#[derive(Debug, Default)]
pub(crate) struct Recent {
    records: HashMap<Key, (Arc<Record>, Vec<u8>)>,
}

/// Each is about two kilobytes. Calls beyond cost a little more time.
const MOST: usize = 1024;

impl Recent {
    /// The record that these bytes were made of, if that is known.
    pub(crate) fn get(&self, key: &Key, body: &[u8]) -> Option<Arc<Record>> {
        self.records.get(key).filter(|(_, written)| written == body).map(|(record, _)| record.clone())
    }

    /// A record and the bytes that were made of it.
    pub(crate) fn put(&mut self, record: Arc<Record>, body: Vec<u8>) {
        if self.records.len() >= MOST {
            // Some were ended by other processes and would stay for ever; which, nobody here knows.
            self.records.clear();
        }
        self.records.insert(record.key, (record, body));
    }

    /// A record that is no longer in flight.
    pub(crate) fn forget(&mut self, key: &Key) {
        self.records.remove(key);
    }
}
