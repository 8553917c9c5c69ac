//! The operations on records.
//!
//! The tables of the core decide each operation here. The script `decide.lua` executes the decision only if the
//! values that it was based on are still there. The crate documentation explains why this is equivalent to deciding
//! on the server.

use std::sync::Arc;
use std::time::Instant;

use steadfast_core::Timestamp;
use steadfast_core::dedupe::{
    Claim, ClaimVerdict, Decided, Found, IndexMove, Intent, Known, LeaseSight, Owner, Receipt, Record,
    RecordState, Release, RenewVerdict, Resolve, ResolveVerdict, Role, Rules, Save, SaveVerdict,
    StartVerdict, Write, decide_abandoned, decide_claim, decide_delivered, decide_release, decide_renew,
    decide_resolve, decide_save, decide_start,
};
use steadfast_core::key::Key;
use steadfast_core::policy::Lifetimes;
use steadfast_store::{StoreError, Trouble};

use crate::Inner;
use crate::names::District;
use crate::script::{Body, Expect, Request, Validity, Wake};
use crate::value::{self, Head, Marked, Marks, OwnerMark};

/// The most decisions of one operation. Each repetition means that another caller succeeded, so this many mean that
/// more callers compete for the key than it can serve.
const TRIES: usize = 16;

impl Inner {
    pub(crate) async fn claim(
        self: &Arc<Self>,
        claim: &Claim,
        known: &Known,
    ) -> Result<ClaimVerdict, StoreError> {
        let own = claim.address.own();
        let district = District::of(&own);
        self.markers.lease(claim.rules.keep.lease);
        let places = Places {
            own,
            index: claim.address.index(),
            followed: match claim.role {
                Role::Fresh => None,
                Role::Waiter { followed } => Some(followed).filter(|key| *key != own),
            },
        };
        let guess = match (claim.intent, claim.role) {
            // Most calls have no record yet.
            (Intent::Take { .. }, Role::Fresh) => Some(Sight::nothing()),
            // A lookup rarely writes anything, and the result that a waiter followed has probably arrived.
            (Intent::Look, _) | (_, Role::Waiter { .. }) => None,
        };
        self.transact(&places, guess, Shape::Whole, |sight, now| {
            let found = sight.found(&places, claim.role);
            let decided = decide_claim(claim, found, known, now);
            let own_already = found.own.is_some_and(|(record, _)| record.owner == claim.owner);
            match &decided.verdict {
                ClaimVerdict::Mine(_)
                    if !own_already && !self.markers.admits(district, claim.retry_safe, now) =>
                {
                    Decided { verdict: ClaimVerdict::Closed, write: Write::Nothing }
                }
                ClaimVerdict::Mine(_)
                | ClaimVerdict::Follow(_)
                | ClaimVerdict::Busy
                | ClaimVerdict::Replay(_)
                | ClaimVerdict::Unknown(_)
                | ClaimVerdict::Conflict
                | ClaimVerdict::Nothing
                | ClaimVerdict::Full
                | ClaimVerdict::Closed
                | ClaimVerdict::RecordsLost => decided,
            }
        })
        .await
    }

    pub(crate) async fn start(self: &Arc<Self>, key: Key, owner: &Owner) -> Result<StartVerdict, StoreError> {
        let guess = self.held(&key, owner);
        self.transact(&Places::only(key), guess, Shape::Whole, |sight, now| {
            decide_start(owner, sight.own(), now)
        })
        .await
    }

    pub(crate) async fn renew(
        self: &Arc<Self>,
        claimed: &Record,
        keep: &Lifetimes,
    ) -> Result<RenewVerdict, StoreError> {
        self.markers.lease(keep.lease);
        let district = District::of(&claimed.key);
        let places = Places { own: claimed.key, index: claimed.index, followed: None };
        let guess = self
            .held(&claimed.key, &claimed.owner)
            .or_else(|| Some(Sight::mine(Marked::new(Arc::new(claimed.clone()), &self.marks))));
        self.transact(&places, guess, Shape::Whole, |sight, now| {
            decide_renew(claimed, keep, sight.own(), self.markers.absence(district, now), now)
        })
        .await
    }

    pub(crate) async fn save(self: &Arc<Self>, save: &Save) -> Result<SaveVerdict, StoreError> {
        let claimed = &save.claimed;
        let places = Places { own: claimed.key, index: claimed.index, followed: None };
        let guess = self
            .held(&claimed.key, &claimed.owner)
            .or_else(|| Some(Sight::mine(Marked::new(Arc::clone(claimed), &self.marks))));
        self.transact(&places, guess, Shape::Whole, |sight, now| {
            decide_save(save, sight.own(), sight.indexed(&places), now)
        })
        .await
    }

    pub(crate) async fn release(self: &Arc<Self>, release: &Release) -> Result<(), StoreError> {
        let places = Places { own: release.key, index: release.index, followed: None };
        let guess = self.held(&release.key, &release.owner);
        self.transact(&places, guess, Shape::Whole, |sight, _| {
            let write = decide_release(release, sight.own(), sight.indexed(&places));
            Decided { verdict: (), write }
        })
        .await
    }

    pub(crate) async fn delivered(
        self: &Arc<Self>,
        receipt: &Receipt,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        let guess = self.held(&receipt.key, &receipt.owner);
        self.transact(&Places::only(receipt.key), guess, Shape::Head, |sight, _| Decided {
            verdict: (),
            write: decide_delivered(receipt, at, sight.own()),
        })
        .await
    }

    pub(crate) async fn resolve(
        self: &Arc<Self>,
        resolve: &Resolve,
        rules: &Rules,
    ) -> Result<ResolveVerdict, StoreError> {
        self.transact(&Places::only(resolve.key), None, Shape::Whole, |sight, now| {
            let found = sight.own().map(|record| (record, LeaseSight::Time));
            decide_resolve(resolve, found, rules, now)
        })
        .await
    }

    pub(crate) async fn mark_abandoned(
        self: &Arc<Self>,
        key: Key,
        rules: &Rules,
    ) -> Result<Option<Arc<Record>>, StoreError> {
        self.transact(&Places::only(key), None, Shape::Whole, |sight, now| {
            decide_abandoned(sight.own().map(|record| (record, LeaseSight::Time)), rules, now)
        })
        .await
    }

    /// Removes a record if `goes` returns true for it. Returns true if it was removed.
    pub(crate) async fn forget(
        self: &Arc<Self>,
        key: Key,
        goes: impl Fn(&Record, Timestamp) -> bool,
    ) -> Result<bool, StoreError> {
        self.transact(&Places::only(key), None, Shape::Whole, |sight, now| match sight.own() {
            Some(record) if goes(record, now) => {
                Decided { verdict: true, write: Write::Remove { key, index: record.index } }
            }
            Some(_) | None => Decided { verdict: false, write: Write::Nothing },
        })
        .await
    }

    /// Decides on the expected values, and again on the values found, until a decision holds.
    async fn transact<V>(
        self: &Arc<Self>,
        places: &Places,
        guess: Option<Sight>,
        shape: Shape,
        decide: impl Fn(&Sight, Timestamp) -> Decided<V>,
    ) -> Result<V, StoreError> {
        let district = District::of(&places.own);
        let mut now = self.time_in(district).await?;
        let mut seen = guess.map(|sight| (sight, Source::Guess));
        for _ in 0..TRIES {
            let decided = seen.as_ref().map(|(sight, source)| (decide(sight, now), *source));
            let (request, valid, decided) = match (&seen, decided) {
                (_, Some((Decided { verdict, write: Write::Nothing }, Source::Server))) => {
                    return Ok(verdict);
                }
                (Some((sight, _)), Some((Decided { verdict, write }, _))) if write != Write::Nothing => {
                    let owner = sight.owner_of(&write, &self.marks);
                    let mut request = self.looks(places, sight);
                    self.write(&mut request, &write, (owner, shape), sight.indexed(places), now);
                    let valid = Validity { from: now, until: now + self.options.command_timeout };
                    (request, valid, Some((verdict, write, owner)))
                }
                _ => (self.question(places), Validity::NEVER, None),
            };
            let answer = self.run(district, &request, valid).await?;
            now = Timestamp::from_millis(answer.micros / 1000);
            match (answer.body, decided) {
                (Body::Done, Some((verdict, write, owner))) => {
                    if shape == Shape::Whole {
                        self.confirm(district, answer.line).await?;
                    }
                    self.wrote(write, owner);
                    return Ok(verdict);
                }
                (Body::Found(values), _) => {
                    let sight = self.sight(places, &request, values)?;
                    self.held.correct(&places.own, sight.own.as_ref());
                    seen = Some((sight, Source::Server));
                }
                // The marker was read and is known now. The guess may still be right.
                (Body::OtherMarker, _) => {}
                // A query is never executed.
                (Body::Done, None) => {}
            }
        }
        Err(StoreError::not_done(
            Trouble::Unreachable,
            "redis: too many callers want the same key at once; try again in a moment",
        ))
    }

    /// Returns the values for a decision of this process, if no other process has written since.
    fn held(&self, key: &Key, owner: &Owner) -> Option<Sight> {
        self.held.get(key).filter(|held| held.record.owner == *owner).map(Sight::mine)
    }

    /// Caches the written record.
    fn wrote(&self, write: Write, owner: OwnerMark) {
        match write {
            Write::Nothing => {}
            Write::Put { record, remove, .. } => {
                for key in &remove {
                    self.held.forget(key);
                }
                self.held.put(record, owner);
            }
            Write::Remove { key, .. } => self.held.forget(&key),
        }
    }

    /// Returns a request that only reads the current values.
    fn question(&self, places: &Places) -> Request {
        let mut request = Request::new(self.names.record(&places.own), Expect::Anything);
        if let Some(index) = &places.index {
            request.look_at_index(self.names.index(index), Expect::Anything);
        }
        if let Some(followed) = &places.followed {
            request.look(self.names.record(followed), Expect::Anything);
        }
        request
    }

    /// Returns a request that holds if these are the current values.
    fn looks(&self, places: &Places, sight: &Sight) -> Request {
        let expect = |found: &Option<Marked>| {
            found.as_ref().map_or(Expect::Absent, |found| Expect::Stamped(found.stamp()))
        };
        let mut request = Request::new(self.names.record(&places.own), expect(&sight.own));
        if let Some(index) = &places.index {
            let pointer = match &sight.pointer {
                Pointer::Unseen => Expect::Anything,
                Pointer::Nowhere => Expect::Absent,
                Pointer::To(key) => Expect::Names(self.names.record(key)),
            };
            request.look_at_index(self.names.index(index), pointer);
        }
        if let Some(followed) = &places.followed {
            request.look(self.names.record(followed), expect(&sight.followed));
        }
        if let Pointer::To(key) = &sight.pointer
            && *key != places.own
            && Some(*key) != places.followed
        {
            request.look(self.names.record(key), expect(&sight.indexed));
        }
        request
    }

    /// Adds the writes. `indexed` is the record that the index points to.
    fn write(
        &self,
        request: &mut Request,
        write: &Write,
        (owner, shape): (OwnerMark, Shape),
        indexed: Option<&Record>,
        now: Timestamp,
    ) {
        match write {
            Write::Nothing => {}
            Write::Put { record, .. } if shape == Shape::Head => {
                request.head(&self.names.record(&record.key), &Head::of(record, owner).to_bytes());
            }
            Write::Put { record, index, remove } => {
                for key in remove {
                    request.drop_key(&self.names.record(key));
                }
                let name = self.names.record(&record.key);
                let life = record.expires.map(|expires| steadfast_core::millis(expires.since(now)));
                if let Some(entry) = &record.index {
                    let entry = self.names.index(entry);
                    let points = match index {
                        IndexMove::Keep => false,
                        IndexMove::Point => true,
                        IndexMove::PointIfFree => indexed.is_none(),
                    };
                    if points {
                        request.put(&entry, name.clone().into_bytes(), life, Wake::Nobody);
                    } else {
                        // A record that only the index finds must be found as long as it lives.
                        request.keep(&entry, &name, life);
                    }
                }
                let wake = match record.state {
                    RecordState::Inflight => Wake::Nobody,
                    RecordState::Done(_)
                    | RecordState::Failed(_)
                    | RecordState::Unknown(_)
                    | RecordState::Cancelled => Wake::Waiters,
                };
                request.put(&name, value::encode(&self.options.codec, record, owner), life, wake);
            }
            Write::Remove { key, index } => {
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
        places: &Places,
        asked: &Request,
        values: Vec<Option<Vec<u8>>>,
    ) -> Result<Sight, StoreError> {
        let looked = asked.looked().iter().map(String::as_bytes);
        let value = |name: &[u8]| {
            looked.clone().zip(&values).find(|(looked, _)| *looked == name).map(|(_, value)| value)
        };
        let read = |key: &Key, value: Option<&Option<Vec<u8>>>| match value.and_then(Option::as_ref) {
            Some(value) => self.decode(*key, value).map(Some),
            None => Ok(None),
        };
        let record = |key: &Key| read(key, value(self.names.record(key).as_bytes()));
        let pointer = places.index.and_then(|index| value(self.names.index(&index).as_bytes())?.as_ref());
        let mut sight = Sight { own: record(&places.own)?, ..Sight::nothing() };
        if let Some(followed) = &places.followed {
            sight.followed = record(followed)?;
        }
        // An entry with a foreign target counts as no entry.
        if let Some(target) = pointer.and_then(|name| self.names.key_of(name)) {
            sight.pointer = Pointer::To(target);
            if target != places.own && Some(target) != places.followed {
                let name = self.names.record(&target);
                sight.indexed = read(&target, value(name.as_bytes()).or_else(|| values.get(looked.len())))?;
            }
        }
        Ok(sight)
    }

    pub(crate) fn decode(&self, key: Key, value: &[u8]) -> Result<Marked, StoreError> {
        value::decode(&self.options.codec, key, value).map_err(|why| {
            StoreError::not_done(Trouble::Unreadable, format!("redis, key {}: {why}", key.fingerprint()))
        })
    }

    /// Returns the time of the server with this district. Makes the first contact if needed.
    async fn time_in(self: &Arc<Self>, district: District) -> Result<Timestamp, StoreError> {
        if let Some(now) =
            self.clock(district).now(Instant::now()).filter(|_| self.markers.known(district).is_some())
        {
            return Ok(now);
        }
        Box::pin(self.survey()).await?;
        Ok(self.clock(district).now(Instant::now()).unwrap_or_else(|| self.now()))
    }
}

/// The keys that an operation reads.
#[derive(Clone, Copy, Debug)]
struct Places {
    own: Key,
    index: Option<Key>,
    followed: Option<Key>,
}

impl Places {
    fn only(own: Key) -> Self {
        Self { own, index: None, followed: None }
    }
}

/// The values found, or the expected ones.
#[derive(Clone, Debug)]
struct Sight {
    own: Option<Marked>,
    followed: Option<Marked>,
    pointer: Pointer,
    /// The record that the index points to, if it is neither of the others.
    indexed: Option<Marked>,
}

/// The target of the index of equal arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pointer {
    /// Not read, because the decision does not depend on it.
    Unseen,
    Nowhere,
    To(Key),
}

/// The source of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Guess,
    Server,
}

/// The part of a record that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Whole,
    /// Only the head changes. A loss of this write does no harm.
    Head,
}

impl Sight {
    fn nothing() -> Self {
        Self { own: None, followed: None, pointer: Pointer::Nowhere, indexed: None }
    }

    fn mine(record: Marked) -> Self {
        Self { own: Some(record), pointer: Pointer::Unseen, ..Self::nothing() }
    }

    fn own(&self) -> Option<&Record> {
        self.own.as_ref().map(|own| &*own.record)
    }

    fn followed(&self) -> Option<&Record> {
        self.followed.as_ref().map(|followed| &*followed.record)
    }

    /// Returns the mark of the writer, usually taken from the known values.
    fn owner_of(&self, write: &Write, marks: &Marks) -> OwnerMark {
        match (write, &self.own) {
            (Write::Put { record, .. }, Some(own)) if own.record.owner == record.owner => own.owner,
            (Write::Put { record, .. }, _) => marks.of(&record.owner),
            // These writes have no stamp.
            (Write::Nothing | Write::Remove { .. }, _) => OwnerMark::NOBODY,
        }
    }

    fn indexed(&self, places: &Places) -> Option<&Record> {
        match self.pointer {
            Pointer::To(key) if key == places.own => self.own(),
            Pointer::To(key) if Some(key) == places.followed => self.followed(),
            Pointer::To(_) => self.indexed.as_ref().map(|indexed| &*indexed.record),
            Pointer::Unseen | Pointer::Nowhere => None,
        }
    }

    /// Returns the values in the form for the claim table. Across machines, only the lease time shows that an owner
    /// is gone.
    fn found(&self, places: &Places, role: Role) -> Found<'_> {
        let followed = match role {
            Role::Fresh => None,
            Role::Waiter { followed } if followed == places.own => self.own(),
            Role::Waiter { .. } => self.followed(),
        };
        Found {
            followed: followed.map(|record| (record, LeaseSight::Time)),
            own: self.own().map(|record| (record, LeaseSight::Time)),
            indexed: self.indexed(places).map(|record| (record, LeaseSight::Time)),
        }
    }
}
