//! A cache of the records that this process wrote last, so that the next step can be decided without reading them.
//!
//! The cached records are only a guess. The script compares them with the stored values, and returns those if the
//! guess is wrong. So an error only costs a round trip, and entries may be dropped at any time.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::dedupe::{DedupeRecord, DedupeState};
use steadfast_core::key::RecordKey;

use crate::value::{MarkedRecord, OwnerMark};

/// Records of calls that run here, and of results whose delivery will be recorded soon.
#[derive(Debug, Default)]
pub(crate) struct RecordCache {
    inner: Mutex<RecordCacheInner>,
}

#[derive(Debug, Default)]
struct RecordCacheInner {
    records: HashMap<RecordKey, MarkedRecord>,
    /// Keys of finished records, oldest first.
    finished: VecDeque<RecordKey>,
}

/// The most concurrent calls. Further ones need one more round trip.
const MOST_OPEN: usize = 65_536;
/// The most results that wait for their delivery mark.
const MOST_FINISHED: usize = 4096;

impl RecordCache {
    /// Returns the last record that was written under this key.
    pub(crate) fn get(&self, key: &RecordKey) -> Option<MarkedRecord> {
        self.inner.lock().records.get(key).cloned()
    }

    /// Adds a written record.
    pub(crate) fn put(&self, mut record: Arc<DedupeRecord>, owner: OwnerMark) {
        let finished = !matches!(record.state, DedupeState::Inflight);
        drop_output(&mut record);
        let key = record.key;
        let mut inner = self.inner.lock();
        let room = MOST_OPEN + MOST_FINISHED;
        if inner.records.len() >= room && !inner.records.contains_key(&key) {
            return;
        }
        inner.records.insert(key, MarkedRecord { record, owner });
        if finished {
            inner.finished.push_back(key);
            if inner.finished.len() > MOST_FINISHED
                && let Some(oldest) = inner.finished.pop_front()
                && inner
                    .records
                    .get(&oldest)
                    .is_some_and(|old| !matches!(old.record.state, DedupeState::Inflight))
            {
                inner.records.remove(&oldest);
            }
        }
    }

    /// Replaces a wrong guess by the record that was found.
    pub(crate) fn correct(&self, key: &RecordKey, found: Option<&MarkedRecord>) {
        let mut inner = self.inner.lock();
        if inner.records.get(key).map(MarkedRecord::stamp) != found.map(MarkedRecord::stamp) {
            inner.records.remove(key);
        }
    }

    /// Removes a record that is gone or has another owner.
    pub(crate) fn forget(&self, key: &RecordKey) {
        self.inner.lock().records.remove(key);
    }
}

/// Drops the output, which is large and not needed to record a delivery. A finished record usually has no other
/// users, and then nothing is copied.
fn drop_output(record: &mut Arc<DedupeRecord>) {
    match &record.state {
        DedupeState::Done(Some(_)) => Arc::make_mut(record).state = DedupeState::Done(None),
        DedupeState::Failed(failure) if failure.output.is_some() => {
            if let DedupeState::Failed(failure) = &mut Arc::make_mut(record).state {
                failure.output = None;
            }
        }
        DedupeState::Unknown(unknown) if unknown.output.is_some() => {
            if let DedupeState::Unknown(unknown) = &mut Arc::make_mut(record).state {
                unknown.output = None;
            }
        }
        DedupeState::Done(None)
        | DedupeState::Failed(_)
        | DedupeState::Inflight
        | DedupeState::Unknown(_)
        | DedupeState::Cancelled => {}
    }
}

#[cfg(test)]
mod tests {
    use steadfast_core::Timestamp;
    use steadfast_core::dedupe::{
        ClaimOwner, Lease, ProcessIdentity, RecordOrigin, SettleTime, UnknownOutcome, UnknownOutcomeReason,
    };
    use steadfast_core::id::{Digest, Namespace, RequestId, RunId, ToolName, ToolRef};
    use steadfast_core::output::ToolOutput;
    use steadfast_json::RawJson;

    use super::*;

    fn record(number: usize, state: DedupeState) -> DedupeRecord {
        DedupeRecord {
            key: RecordKey(Digest::of(&number.to_be_bytes())),
            origin: RecordOrigin::Explicit,
            index: None,
            call_id: None,
            tool: ToolRef { namespace: Namespace::new("a").unwrap(), tool: ToolName::new("b").unwrap() },
            state,
            owner: ClaimOwner {
                process: ProcessIdentity { boot: "here".into(), pid: 1, started: 1 },
                call: 1,
                claim: 1,
            },
            started: true,
            retry_safe: false,
            digest: Digest::of(b""),
            run: RunId("run".into()),
            lease: Lease::Record,
            end_observed_by: None,
            delivered: None,
            version: 1,
            arrived: Timestamp::ZERO,
            created: Timestamp::ZERO,
            updated: Timestamp::ZERO,
            expires: None,
            request: RequestId::new("r").unwrap(),
            tool_call: None,
            context: None,
            session: None,
            actor: None,
            tenant: None,
            attempts: Vec::new(),
        }
    }

    #[test]
    fn finished_records_make_room_and_open_ones_stay() {
        let cache = RecordCache::default();
        let open = record(0, DedupeState::Inflight);
        cache.put(Arc::new(open.clone()), OwnerMark::UNOWNED);
        for number in 1..=MOST_FINISHED + 10 {
            cache.put(Arc::new(record(number, DedupeState::Done(None))), OwnerMark::UNOWNED);
        }
        assert!(cache.get(&open.key).is_some());
        assert!(cache.get(&record(10, DedupeState::Inflight).key).is_none(), "the oldest is forgotten");
        assert!(cache.get(&record(11, DedupeState::Inflight).key).is_some());
        assert_eq!(cache.inner.lock().records.len(), MOST_FINISHED + 1);
    }

    #[test]
    fn outputs_are_not_cached() {
        let output = ToolOutput { content: RawJson::string("a large answer"), metadata: None };
        let unknown = UnknownOutcome {
            settles: SettleTime::WhenOwnerReports,
            observed: UnknownOutcomeReason::ErrorAnswer,
            details: None,
            output: Some(output.clone()),
        };
        let without = UnknownOutcome { output: None, ..unknown.clone() };
        for (state, cached_as) in [
            (DedupeState::Done(Some(output)), DedupeState::Done(None)),
            (DedupeState::Unknown(unknown), DedupeState::Unknown(without)),
        ] {
            let (cache, written) = (RecordCache::default(), Arc::new(record(0, state)));
            cache.put(Arc::clone(&written), OwnerMark::UNOWNED);
            let expected = DedupeRecord { state: cached_as, ..(*written).clone() };
            assert_eq!(*cache.get(&written.key).unwrap().record, expected);
        }
    }

    #[test]
    fn a_wrong_guess_is_dropped() {
        let cache = RecordCache::default();
        let believed = record(0, DedupeState::Inflight);
        let found = |version| MarkedRecord {
            record: Arc::new(DedupeRecord { version, ..believed.clone() }),
            owner: OwnerMark::UNOWNED,
        };
        cache.put(Arc::new(believed.clone()), OwnerMark::UNOWNED);
        cache.correct(&believed.key, Some(&found(1)));
        assert!(cache.get(&believed.key).is_some());
        cache.correct(&believed.key, Some(&found(2)));
        assert!(cache.get(&believed.key).is_none());
        cache.put(Arc::new(believed.clone()), OwnerMark::UNOWNED);
        cache.correct(&believed.key, None);
        assert!(cache.get(&believed.key).is_none());
    }
}
