//! Scans of all records, for an operator who lists or removes some of them.
//!
//! The server has no order of keys, so a list reads all names and keeps the first matching ones. That is fine for an
//! operator's command, but not for every call.

use std::collections::BTreeMap;
use std::sync::Arc;

use redis::Value;
use steadfast_core::dedupe::DedupeRecord;
use steadfast_core::key::RecordKey;
use steadfast_store::{FlushTarget, RecordFilter, RecordPage, StoreError, StoreErrorKind};

use crate::RedisInner;
use crate::link::CommandTarget;
use crate::options::HostPort;

/// Keys that the server scans in one step.
const STEP: usize = 512;
/// Records that are read at once. Each may have some MiB.
const BATCH: usize = 32;

impl RedisInner {
    pub(crate) async fn records(
        self: &Arc<Self>,
        selection: &RecordFilter,
        page: RecordPage,
    ) -> Result<Vec<DedupeRecord>, StoreError> {
        let mut first: BTreeMap<RecordKey, DedupeRecord> = BTreeMap::new();
        if page.limit == 0 {
            return Ok(Vec::new());
        }
        let mut scan = KeyScan::over(self.link.nodes().await?);
        while let Some(keys) = self.scan(&mut scan).await? {
            let is_after = |key: &RecordKey| page.after.is_none_or(|after| *key > after);
            let keys: Vec<RecordKey> = keys.into_iter().filter(is_after).collect();
            for keys in keys.chunks(BATCH) {
                // Once the page is full, keys after its last one need not be read.
                let last = first.last_key_value().map(|(key, _)| *key).filter(|_| first.len() >= page.limit);
                let keys: Vec<RecordKey> =
                    keys.iter().copied().filter(|key| last.is_none_or(|last| *key < last)).collect();
                for record in
                    self.read_records(&keys).await?.into_iter().filter(|record| selection.matches(record))
                {
                    first.insert(record.key, record);
                    if first.len() > page.limit {
                        first.pop_last();
                    }
                }
            }
        }
        Ok(first.into_values().collect())
    }

    pub(crate) async fn flush(self: &Arc<Self>, flush: &FlushTarget) -> Result<u64, StoreError> {
        match flush {
            FlushTarget::Key(key) => match self.forget(*key, |record, now| !record.is_expired(now)).await {
                // An operator who names an unreadable record wants to remove it.
                Err(error) if error.kind() == StoreErrorKind::Unreadable => {
                    let removed =
                        self.ask(redis::cmd("DEL").arg(self.names.record(key)), CommandTarget::Keys).await?;
                    Ok(u64::from(removed.value == Value::Int(1)))
                }
                forgotten => forgotten.map(u64::from),
            },
            FlushTarget::Finished(selection) => {
                let is_selected = |record: &DedupeRecord| selection.matches(record) && !record.is_open();
                let mut flushed = 0;
                let mut scan = KeyScan::over(self.link.nodes().await?);
                while let Some(keys) = self.scan(&mut scan).await? {
                    for keys in keys.chunks(BATCH) {
                        for record in
                            self.read_records(keys).await?.iter().filter(|record| is_selected(record))
                        {
                            // It may have changed since, so the current record decides.
                            flushed +=
                                u64::from(self.forget(record.key, |record, _| is_selected(record)).await?);
                        }
                    }
                }
                Ok(flushed)
            }
        }
    }

    /// Returns the records of keys, without those that are gone or unreadable, so that one of them cannot make a list
    /// fail.
    async fn read_records(self: &Arc<Self>, keys: &[RecordKey]) -> Result<Vec<DedupeRecord>, StoreError> {
        let names: Vec<String> = keys.iter().map(|key| self.names.record(key)).collect();
        let values = self.read_all(&names).await?;
        let now = self.now();
        let read = |(key, value): (&RecordKey, Option<Vec<u8>>)| {
            self.decode(*key, &value?).ok().map(|found| Arc::unwrap_or_clone(found.record))
        };
        Ok(keys.iter().zip(values).filter_map(read).filter(|record| !record.is_expired(now)).collect())
    }

    /// Returns some more keys, or `None` at the end. A key may occur twice.
    async fn scan(self: &Arc<Self>, scan: &mut KeyScan) -> Result<Option<Vec<RecordKey>>, StoreError> {
        let Some(node) = scan.nodes.last() else { return Ok(None) };
        let mut command = redis::cmd("SCAN");
        command.arg(scan.cursor.as_bytes()).arg("MATCH").arg(self.names.all_records()).arg("COUNT").arg(STEP);
        let target = node.as_ref().map_or(CommandTarget::Keys, CommandTarget::Node);
        let reply = self.ask(&command, target).await?;
        let (cursor, names): (String, Vec<Vec<u8>>) =
            redis::from_redis_value(reply.value).map_err(|_| crate::unexpected_reply())?;
        if cursor == "0" {
            scan.nodes.pop();
        }
        scan.cursor = cursor;
        Ok(Some(names.iter().filter_map(|name| self.names.key_of(name)).collect()))
    }
}

/// The state of a scan through all keys.
struct KeyScan {
    /// The remaining nodes. The last one is being scanned.
    nodes: Vec<Option<HostPort>>,
    cursor: String,
}

impl KeyScan {
    fn over(nodes: Vec<Option<HostPort>>) -> Self {
        Self { nodes, cursor: "0".to_owned() }
    }
}
