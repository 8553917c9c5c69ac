//! The operations on records.
//!
//! The tables of the core decide each operation here. The script `decide.lua` executes the decision only if the
//! values that it was based on are still there. The crate documentation explains why this is equivalent to deciding
//! on the server.

use std::sync::Arc;
use std::time::Instant;

use steadfast_core::Timestamp;
use steadfast_core::dedupe::{
    Claim, ClaimIntent, ClaimOwner, ClaimRole, ClaimVerdict, DedupeDecision, DedupeRecord, DedupeRules,
    DedupeState, DeliveryReceipt, FoundRecords, IndexUpdate, LeaseOwnerState, LocalKnowledge, RecordWrite,
    ReleaseRequest, RenewVerdict, ResolutionRequest, ResolveVerdict, SaveRequest, SaveVerdict, StartVerdict,
    decide_abandoned, decide_claim, decide_delivered, decide_release, decide_renew, decide_resolve,
    decide_save, decide_start,
};
use steadfast_core::key::RecordKey;
use steadfast_core::policy::RecordLifetimes;
use steadfast_store::{StoreError, StoreErrorKind};

use crate::RedisInner;
use crate::names::KeyDistrict;
use crate::script::{DecisionOutcome, DecisionValidity, ExpectedValue, ScriptRequest, WakeTarget};
use crate::value::{self, MarkedRecord, OwnerMark, OwnerMarks, RecordHead};

/// The most decisions of one operation. Each repetition means that another caller succeeded, so this many mean that
/// more callers compete for the key than it can serve.
const ATTEMPTS: usize = 16;

impl RedisInner {
    pub(crate) async fn claim(
        self: &Arc<Self>,
        claim: &Claim,
        known: &LocalKnowledge,
    ) -> Result<ClaimVerdict, StoreError> {
        let own = claim.address.own();
        let district = KeyDistrict::of(&own);
        self.markers.lease(claim.rules.keep.lease);
        let places = OperationKeys {
            own,
            index: claim.address.index(),
            followed: match claim.role {
                ClaimRole::Fresh => None,
                ClaimRole::Waiter { followed } => Some(followed).filter(|key| *key != own),
            },
        };
        let guess = match (claim.intent, claim.role) {
            // Most calls have no record yet.
            (ClaimIntent::Take { .. }, ClaimRole::Fresh) => Some(RecordSnapshot::nothing()),
            // A lookup rarely writes anything, and the result that a waiter followed has probably arrived.
            (ClaimIntent::Look, _) | (_, ClaimRole::Waiter { .. }) => None,
        };
        self.transact(&places, guess, WriteExtent::Whole, |sight, now| {
            let found = sight.found(&places, claim.role);
            let decided = decide_claim(claim, found, known, now);
            let is_own = found.own.is_some_and(|(record, _)| record.owner == claim.owner);
            match &decided.verdict {
                ClaimVerdict::Acquired(_)
                    if !is_own && !self.markers.admits(district, claim.retry_safe, now) =>
                {
                    DedupeDecision { verdict: ClaimVerdict::StoreRecovering, write: RecordWrite::Nothing }
                }
                ClaimVerdict::Acquired(_)
                | ClaimVerdict::Follow(_)
                | ClaimVerdict::Busy
                | ClaimVerdict::Replay(_)
                | ClaimVerdict::Unknown(_)
                | ClaimVerdict::Conflict
                | ClaimVerdict::Nothing
                | ClaimVerdict::Full
                | ClaimVerdict::StoreRecovering
                | ClaimVerdict::RecordsLost => decided,
            }
        })
        .await
    }

    pub(crate) async fn start(
        self: &Arc<Self>,
        key: RecordKey,
        owner: &ClaimOwner,
    ) -> Result<StartVerdict, StoreError> {
        let guess = self.cached(&key, owner);
        self.transact(&OperationKeys::only(key), guess, WriteExtent::Whole, |sight, now| {
            decide_start(owner, sight.own(), now)
        })
        .await
    }

    pub(crate) async fn renew(
        self: &Arc<Self>,
        claimed: &DedupeRecord,
        keep: &RecordLifetimes,
    ) -> Result<RenewVerdict, StoreError> {
        self.markers.lease(keep.lease);
        let district = KeyDistrict::of(&claimed.key);
        let places = OperationKeys { own: claimed.key, index: claimed.index, followed: None };
        let guess = self.cached(&claimed.key, &claimed.owner).or_else(|| {
            Some(RecordSnapshot::of_own(MarkedRecord::new(Arc::new(claimed.clone()), &self.marks)))
        });
        self.transact(&places, guess, WriteExtent::Whole, |sight, now| {
            decide_renew(claimed, keep, sight.own(), self.markers.absence(district, now), now)
        })
        .await
    }

    pub(crate) async fn save(self: &Arc<Self>, save: &SaveRequest) -> Result<SaveVerdict, StoreError> {
        let claimed = &save.claimed;
        let places = OperationKeys { own: claimed.key, index: claimed.index, followed: None };
        let guess = self
            .cached(&claimed.key, &claimed.owner)
            .or_else(|| Some(RecordSnapshot::of_own(MarkedRecord::new(Arc::clone(claimed), &self.marks))));
        self.transact(&places, guess, WriteExtent::Whole, |sight, now| {
            decide_save(save, sight.own(), sight.indexed(&places), now)
        })
        .await
    }

    pub(crate) async fn release(self: &Arc<Self>, release: &ReleaseRequest) -> Result<(), StoreError> {
        let places = OperationKeys { own: release.key, index: release.index, followed: None };
        let guess = self.cached(&release.key, &release.owner);
        self.transact(&places, guess, WriteExtent::Whole, |sight, _| {
            let write = decide_release(release, sight.own(), sight.indexed(&places));
            DedupeDecision { verdict: (), write }
        })
        .await
    }

    pub(crate) async fn delivered(
        self: &Arc<Self>,
        receipt: &DeliveryReceipt,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        let guess = self.cached(&receipt.key, &receipt.owner);
        self.transact(&OperationKeys::only(receipt.key), guess, WriteExtent::Head, |sight, _| {
            DedupeDecision { verdict: (), write: decide_delivered(receipt, at, sight.own()) }
        })
        .await
    }

    pub(crate) async fn resolve(
        self: &Arc<Self>,
        resolve: &ResolutionRequest,
        rules: &DedupeRules,
    ) -> Result<ResolveVerdict, StoreError> {
        self.transact(&OperationKeys::only(resolve.key), None, WriteExtent::Whole, |sight, now| {
            let found = sight.own().map(|record| (record, LeaseOwnerState::Time));
            decide_resolve(resolve, found, rules, now)
        })
        .await
    }

    pub(crate) async fn mark_abandoned(
        self: &Arc<Self>,
        key: RecordKey,
        rules: &DedupeRules,
    ) -> Result<Option<Arc<DedupeRecord>>, StoreError> {
        self.transact(&OperationKeys::only(key), None, WriteExtent::Whole, |sight, now| {
            decide_abandoned(sight.own().map(|record| (record, LeaseOwnerState::Time)), rules, now)
        })
        .await
    }

    /// Removes a record if `is_removable` returns true for it. Returns true if it was removed.
    pub(crate) async fn forget(
        self: &Arc<Self>,
        key: RecordKey,
        is_removable: impl Fn(&DedupeRecord, Timestamp) -> bool,
    ) -> Result<bool, StoreError> {
        self.transact(&OperationKeys::only(key), None, WriteExtent::Whole, |sight, now| match sight.own() {
            Some(record) if is_removable(record, now) => {
                DedupeDecision { verdict: true, write: RecordWrite::Remove { key, index: record.index } }
            }
            Some(_) | None => DedupeDecision { verdict: false, write: RecordWrite::Nothing },
        })
        .await
    }

    /// Decides on the expected values, and again on the values found, until a decision holds.
    async fn transact<V>(
        self: &Arc<Self>,
        places: &OperationKeys,
        guess: Option<RecordSnapshot>,
        shape: WriteExtent,
        decide: impl Fn(&RecordSnapshot, Timestamp) -> DedupeDecision<V>,
    ) -> Result<V, StoreError> {
        let district = KeyDistrict::of(&places.own);
        let mut now = self.time_in(district).await?;
        let mut snapshot = guess.map(|sight| (sight, SnapshotSource::Guess));
        for _ in 0..ATTEMPTS {
            let decided = snapshot.as_ref().map(|(sight, source)| (decide(sight, now), *source));
            let (request, valid, decided) = match (&snapshot, decided) {
                (
                    _,
                    Some((DedupeDecision { verdict, write: RecordWrite::Nothing }, SnapshotSource::Server)),
                ) => {
                    return Ok(verdict);
                }
                (Some((sight, _)), Some((DedupeDecision { verdict, write }, _)))
                    if write != RecordWrite::Nothing =>
                {
                    let owner = sight.owner_of(&write, &self.marks);
                    let mut request = self.lookup_request(places, sight);
                    self.write(&mut request, &write, (owner, shape), sight.indexed(places), now);
                    let valid = DecisionValidity { from: now, until: now + self.options.command_timeout };
                    (request, valid, Some((verdict, write, owner)))
                }
                _ => (self.question(places), DecisionValidity::NEVER, None),
            };
            let answer = self.run(district, &request, valid).await?;
            now = Timestamp::from_millis(answer.micros / 1000);
            match (answer.body, decided) {
                (DecisionOutcome::Done, Some((verdict, write, owner))) => {
                    if shape == WriteExtent::Whole {
                        self.confirm(district, answer.line).await?;
                    }
                    self.wrote(write, owner);
                    return Ok(verdict);
                }
                (DecisionOutcome::Found(values), _) => {
                    let sight = self.sight(places, &request, values)?;
                    self.cache.correct(&places.own, sight.own.as_ref());
                    snapshot = Some((sight, SnapshotSource::Server));
                }
                // The marker was read and is known now. The guess may still be right.
                (DecisionOutcome::OtherMarker, _) => {}
                // A query is never executed.
                (DecisionOutcome::Done, None) => {}
            }
        }
        Err(StoreError::not_done(
            StoreErrorKind::Unreachable,
            "redis: too many callers want the same key at once; try again in a moment",
        ))
    }

    /// Returns the values for a decision of this process, if no other process has written since.
    fn cached(&self, key: &RecordKey, owner: &ClaimOwner) -> Option<RecordSnapshot> {
        self.cache.get(key).filter(|cached| cached.record.owner == *owner).map(RecordSnapshot::of_own)
    }

    /// Caches the written record.
    fn wrote(&self, write: RecordWrite, owner: OwnerMark) {
        match write {
            RecordWrite::Nothing => {}
            RecordWrite::Put { record, remove, .. } => {
                for key in &remove {
                    self.cache.forget(key);
                }
                self.cache.put(record, owner);
            }
            RecordWrite::Remove { key, .. } => self.cache.forget(&key),
        }
    }

    /// Returns a request that only reads the current values.
    fn question(&self, places: &OperationKeys) -> ScriptRequest {
        let mut request = ScriptRequest::new(self.names.record(&places.own), ExpectedValue::Anything);
        if let Some(index) = &places.index {
            request.check_index(self.names.index(index), ExpectedValue::Anything);
        }
        if let Some(followed) = &places.followed {
            request.check(self.names.record(followed), ExpectedValue::Anything);
        }
        request
    }

    /// Returns a request that holds if these are the current values.
    fn lookup_request(&self, places: &OperationKeys, sight: &RecordSnapshot) -> ScriptRequest {
        let expect = |found: &Option<MarkedRecord>| {
            found.as_ref().map_or(ExpectedValue::Absent, |found| ExpectedValue::Stamped(found.stamp()))
        };
        let mut request = ScriptRequest::new(self.names.record(&places.own), expect(&sight.own));
        if let Some(index) = &places.index {
            let pointer = match &sight.pointer {
                IndexPointer::NotRead => ExpectedValue::Anything,
                IndexPointer::Nowhere => ExpectedValue::Absent,
                IndexPointer::To(key) => ExpectedValue::Names(self.names.record(key)),
            };
            request.check_index(self.names.index(index), pointer);
        }
        if let Some(followed) = &places.followed {
            request.check(self.names.record(followed), expect(&sight.followed));
        }
        if let IndexPointer::To(key) = &sight.pointer
            && *key != places.own
            && Some(*key) != places.followed
        {
            request.check(self.names.record(key), expect(&sight.indexed));
        }
        request
    }

    /// Adds the writes. `indexed` is the record that the index points to.
    fn write(
        &self,
        request: &mut ScriptRequest,
        write: &RecordWrite,
        (owner, shape): (OwnerMark, WriteExtent),
        indexed: Option<&DedupeRecord>,
        now: Timestamp,
    ) {
        match write {
            RecordWrite::Nothing => {}
            RecordWrite::Put { record, .. } if shape == WriteExtent::Head => {
                request.head(&self.names.record(&record.key), &RecordHead::of(record, owner).to_bytes());
            }
            RecordWrite::Put { record, index, remove } => {
                for key in remove {
                    request.drop_key(&self.names.record(key));
                }
                let name = self.names.record(&record.key);
                let lifetime = record.expires.map(|expires| steadfast_core::millis(expires.since(now)));
                if let Some(entry) = &record.index {
                    let entry = self.names.index(entry);
                    let points = match index {
                        IndexUpdate::Keep => false,
                        IndexUpdate::Point => true,
                        IndexUpdate::PointIfFree => indexed.is_none(),
                    };
                    if points {
                        request.put(&entry, name.clone().into_bytes(), lifetime, WakeTarget::NoOne);
                    } else {
                        // A record that only the index finds must be found as long as it lives.
                        request.keep(&entry, &name, lifetime);
                    }
                }
                let wake = match record.state {
                    DedupeState::Inflight => WakeTarget::NoOne,
                    DedupeState::Done(_)
                    | DedupeState::Failed(_)
                    | DedupeState::Unknown(_)
                    | DedupeState::Cancelled => WakeTarget::Waiters,
                };
                request.put(&name, value::encode(&self.options.codec, record, owner), lifetime, wake);
            }
            RecordWrite::Remove { key, index } => {
                let name = self.names.record(key);
                if let Some(entry) = index {
                    request.drop_if(&self.names.index(entry), &name);
                }
                request.drop_key(&name);
            }
        }
    }

    /// Converts the values in a reply.
    fn sight(
        &self,
        places: &OperationKeys,
        request: &ScriptRequest,
        values: Vec<Option<Vec<u8>>>,
    ) -> Result<RecordSnapshot, StoreError> {
        let looked = request.looked().iter().map(String::as_bytes);
        let value = |name: &[u8]| {
            looked.clone().zip(&values).find(|(looked, _)| *looked == name).map(|(_, value)| value)
        };
        let read = |key: &RecordKey, value: Option<&Option<Vec<u8>>>| match value.and_then(Option::as_ref) {
            Some(value) => self.decode(*key, value).map(Some),
            None => Ok(None),
        };
        let record = |key: &RecordKey| read(key, value(self.names.record(key).as_bytes()));
        let pointer = places.index.and_then(|index| value(self.names.index(&index).as_bytes())?.as_ref());
        let mut sight = RecordSnapshot { own: record(&places.own)?, ..RecordSnapshot::nothing() };
        if let Some(followed) = &places.followed {
            sight.followed = record(followed)?;
        }
        // An entry with a foreign target counts as no entry.
        if let Some(target) = pointer.and_then(|name| self.names.key_of(name)) {
            sight.pointer = IndexPointer::To(target);
            if target != places.own && Some(target) != places.followed {
                let name = self.names.record(&target);
                sight.indexed = read(&target, value(name.as_bytes()).or_else(|| values.get(looked.len())))?;
            }
        }
        Ok(sight)
    }

    pub(crate) fn decode(&self, key: RecordKey, value: &[u8]) -> Result<MarkedRecord, StoreError> {
        value::decode(&self.options.codec, key, value).map_err(|error| {
            StoreError::not_done(
                StoreErrorKind::Unreadable,
                format!("redis, key {}: {error}", key.fingerprint()),
            )
        })
    }

    /// Returns the time of the server with this district. Makes the first contact if needed.
    async fn time_in(self: &Arc<Self>, district: KeyDistrict) -> Result<Timestamp, StoreError> {
        if let Some(now) =
            self.clock(district).now(Instant::now()).filter(|_| self.markers.known(district).is_some())
        {
            return Ok(now);
        }
        Box::pin(self.read_all_markers()).await?;
        Ok(self.clock(district).now(Instant::now()).unwrap_or_else(|| self.now()))
    }
}

/// The keys that an operation reads.
#[derive(Clone, Copy, Debug)]
struct OperationKeys {
    own: RecordKey,
    index: Option<RecordKey>,
    followed: Option<RecordKey>,
}

impl OperationKeys {
    fn only(own: RecordKey) -> Self {
        Self { own, index: None, followed: None }
    }
}

/// The values found, or the expected ones.
#[derive(Clone, Debug)]
struct RecordSnapshot {
    own: Option<MarkedRecord>,
    followed: Option<MarkedRecord>,
    pointer: IndexPointer,
    /// The record that the index points to, if it is neither of the others.
    indexed: Option<MarkedRecord>,
}

/// The target of the index of equal arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IndexPointer {
    /// Not read, because the decision does not depend on it.
    NotRead,
    Nowhere,
    To(RecordKey),
}

/// The source of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SnapshotSource {
    Guess,
    Server,
}

/// The part of a record that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteExtent {
    Whole,
    /// Only the head changes. A loss of this write does no harm.
    Head,
}

impl RecordSnapshot {
    fn nothing() -> Self {
        Self { own: None, followed: None, pointer: IndexPointer::Nowhere, indexed: None }
    }

    fn of_own(record: MarkedRecord) -> Self {
        Self { own: Some(record), pointer: IndexPointer::NotRead, ..Self::nothing() }
    }

    fn own(&self) -> Option<&DedupeRecord> {
        self.own.as_ref().map(|own| &*own.record)
    }

    fn followed(&self) -> Option<&DedupeRecord> {
        self.followed.as_ref().map(|followed| &*followed.record)
    }

    /// Returns the mark of the writer, usually taken from the known values.
    fn owner_of(&self, write: &RecordWrite, marks: &OwnerMarks) -> OwnerMark {
        match (write, &self.own) {
            (RecordWrite::Put { record, .. }, Some(own)) if own.record.owner == record.owner => own.owner,
            (RecordWrite::Put { record, .. }, _) => marks.of(&record.owner),
            // These writes have no stamp.
            (RecordWrite::Nothing | RecordWrite::Remove { .. }, _) => OwnerMark::UNOWNED,
        }
    }

    fn indexed(&self, places: &OperationKeys) -> Option<&DedupeRecord> {
        match self.pointer {
            IndexPointer::To(key) if key == places.own => self.own(),
            IndexPointer::To(key) if Some(key) == places.followed => self.followed(),
            IndexPointer::To(_) => self.indexed.as_ref().map(|indexed| &*indexed.record),
            IndexPointer::NotRead | IndexPointer::Nowhere => None,
        }
    }

    /// Returns the values in the form for the claim table. Across machines, only the lease time shows that an owner
    /// is gone.
    fn found(&self, places: &OperationKeys, role: ClaimRole) -> FoundRecords<'_> {
        let followed = match role {
            ClaimRole::Fresh => None,
            ClaimRole::Waiter { followed } if followed == places.own => self.own(),
            ClaimRole::Waiter { .. } => self.followed(),
        };
        FoundRecords {
            followed: followed.map(|record| (record, LeaseOwnerState::Time)),
            own: self.own().map(|record| (record, LeaseOwnerState::Time)),
            indexed: self.indexed(places).map(|record| (record, LeaseOwnerState::Time)),
        }
    }
}
