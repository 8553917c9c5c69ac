//! The store for several machines: Redis or Valkey, as one server, behind Sentinel, or as a Cluster.
//!
//! # Atomic decisions
//!
//! The tables of [`steadfast_core::dedupe`] decide here, in Rust. There is no second copy of them in Lua. One generic
//! script executes the decisions: it gets the keys that a decision was based on, the expected values, and the writes.
//! If everything is as expected, it writes, all or nothing. If not, it writes nothing and returns the current values,
//! and the tables decide again.
//!
//! This is equivalent to deciding inside the script. The tables are functions of the values found and of the time.
//! The values are compared at the moment of the write, by owner and version, which change with every write. So the
//! decision is the one that the script would have made. The time was read a little earlier, by an estimate
//! (`clock.rs`) that is never ahead of the server's clock. The script refuses a decision whose time the server has
//! not reached yet, or has passed by more than the command timeout. So a decision is never early: a lease has expired
//! when it is taken for expired. It is late at most by the duration of a command. And a claim that was delayed in
//! transit is void by the time its caller has given up.
//!
//! Because the tables are applied before the server is contacted, the common case takes one round trip: a claim
//! expects that there is no record, a save expects its record as this process wrote it last. Races, take-overs and
//! repeated arguments take two. Followers and replays take one, because the reply to a wrong guess contains all the
//! necessary values.
//!
//! # Guarantees when servers fail
//!
//! | server | possible loss in a crash or failover |
//! | --- | --- |
//! | `appendfsync always`, [`WriteConfirmation::Replicas`] with 1 or more | nothing that was acknowledged |
//! | `appendfsync everysec`, one server | up to a second of claims and results, if the machine loses power |
//! | replicas, [`WriteConfirmation::Primary`] | the writes that the new primary had not received |
//! | no persistence | everything; detected by a marker, see below |
//!
//! A lost claim can be made twice, and then its tool runs twice. A server that comes back **empty** is detected:
//! every district of keys has a marker, and a process that finds another one than before sends [`StoreEvent::Emptied`],
//! lets owners write their claims again, and for one lease refuses new claims of tools that must not run twice
//! ([`ClaimVerdict::StoreRecovering`]). Records that it finds are still used. A replica that lags and takes over looks like
//! the old primary, and is not detected. Use [`WriteConfirmation`] against that.
//!
//! The server must not evict (`maxmemory-policy noeviction`): an evicted record is lost, and this is not detected.
//! Redis 6.2 or newer, or Valkey. A user needs `+@read +@write +@scripting +@pubsub +time +wait +ping` on the keys
//! and channels of the prefix, and `+cluster|slots` in a Cluster, `+role` behind Sentinel.

mod clock;
mod confirmation;
mod documents;
mod fault;
mod health;
mod journals;
mod link;
mod listing;
mod markers;
mod names;
mod options;
mod random;
mod record_cache;
mod records;
mod script;
mod subscription;
mod value;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Instant;

use redis::Value;
use steadfast_core::Timestamp;
use steadfast_core::dedupe::{
    Claim, ClaimOwner, ClaimVerdict, DedupeRecord, DedupeRules, DeliveryReceipt, LocalKnowledge,
    MarkerStatus, ReleaseRequest, RenewVerdict, ResolutionRequest, ResolveVerdict, SaveRequest, SaveVerdict,
    StartVerdict,
};
use steadfast_core::key::RecordKey;
use steadfast_core::policy::RecordLifetimes;
use steadfast_store::{
    Document, DocumentKind, DocumentName, DocumentWrite, DocumentWriteOutcome, FlushTarget, Journal,
    JournalEntry, JournalLimits, JournalPosition, JournalQuery, RecordFilter, RecordPage, StateStore,
    StoreError, StoreErrorKind, StoreEvent, StoreFuture, SweepResult, SystemClock, TimeSource,
};
use tokio::sync::broadcast;

use clock::ServerClock;
use confirmation::ReplicaConfirmations;
use health::{HealthPart, RedisHealth};
use link::{CommandConnection, CommandReply, CommandTarget, RedisLink};
use markers::DistrictMarkers;
pub use names::{InvalidKeyPrefix, KeyPrefix};
use names::{KeyDistrict, KeyNames};
pub use options::{
    HostPort, InvalidRedisUrl, Options, RedisAddress, RedisLogin, RedisTls, WriteConfirmation,
};
use record_cache::RecordCache;
use script::{DecisionOutcome, DecisionValidity, RedisScript, ScriptReference, ScriptRequest};
use subscription::RedisSubscription;
use value::OwnerMarks;

/// A store on a Redis or Valkey server.
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<RedisInner>,
}

impl RedisStore {
    /// Creates a store that connects when it is first used, and reports a failure then. Must be called inside a Tokio
    /// runtime.
    pub fn open(options: Options) -> Self {
        let options = Arc::new(options);
        let (events, _) = broadcast::channel(EVENT_CAPACITY);
        let link = Arc::new(RedisLink::new(Arc::clone(&options), RedisHealth::new(events.clone())));
        let names = KeyNames::new(options.prefix.clone());
        let instance = format!("{:016x}", random::number());
        let subscription =
            RedisSubscription::new(Arc::clone(&link), names.clone(), instance.clone(), events.clone());
        let clocks = if link.is_spread() { KeyDistrict::COUNT } else { 1 };
        let inner = RedisInner {
            options,
            names,
            decisions: RedisScript::decisions(),
            appending: journals::script(),
            clocks: (0..clocks).map(|_| ServerClock::default()).collect(),
            latest_clock: AtomicU8::new(0),
            latest: AtomicU64::new(0),
            before_contact: SystemClock::default(),
            markers: DistrictMarkers::new(),
            cache: RecordCache::default(),
            marks: OwnerMarks::default(),
            confirmations: ReplicaConfirmations::default(),
            limits: journals::KnownJournalLimits::default(),
            instance,
            subscription,
            link,
            events,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Creates a connected store, or returns the error.
    pub async fn connect(options: Options) -> Result<Self, StoreError> {
        let store = Self::open(options);
        store.inner.read_all_markers().await?;
        store.inner.subscription.ready().await?;
        Ok(store)
    }
}

/// Events that a slow receiver may lag behind.
const EVENT_CAPACITY: usize = 1024;

struct RedisInner {
    options: Arc<Options>,
    names: KeyNames,
    decisions: RedisScript,
    appending: RedisScript,
    /// One clock, or one for each district if they are on different servers.
    clocks: Vec<ServerClock>,
    /// The clock with the latest update.
    latest_clock: AtomicU8,
    /// The latest time that was returned.
    latest: AtomicU64,
    before_contact: SystemClock,
    markers: DistrictMarkers,
    cache: RecordCache,
    marks: OwnerMarks,
    confirmations: ReplicaConfirmations,
    limits: journals::KnownJournalLimits,
    /// Distinguishes messages of this store from those of others.
    instance: String,
    subscription: RedisSubscription,
    link: Arc<RedisLink>,
    events: broadcast::Sender<StoreEvent>,
}

/// The result of the script.
struct ScriptRun {
    micros: u64,
    body: DecisionOutcome,
    line: Arc<CommandConnection>,
}

impl RedisInner {
    /// Returns the server's time, which never goes backwards. Before the first reply, this machine's time.
    fn now(&self) -> Timestamp {
        let clock = self.clocks.get(usize::from(self.latest_clock.load(Ordering::Relaxed)));
        match clock.and_then(|clock| clock.now(Instant::now())) {
            Some(now) => {
                let latest = self.latest.fetch_max(now.as_millis(), Ordering::Relaxed);
                now.max(Timestamp::from_millis(latest))
            }
            None => self.before_contact.now(),
        }
    }

    fn clock(&self, district: KeyDistrict) -> &ServerClock {
        let index = if self.clocks.len() == 1 { 0 } else { district.index() };
        #[expect(clippy::indexing_slicing, reason = "there is one clock, or one for each district")]
        &self.clocks[index]
    }

    /// Sends a decision to the script.
    async fn run(
        self: &Arc<Self>,
        district: KeyDistrict,
        request: &ScriptRequest,
        valid: DecisionValidity,
    ) -> Result<ScriptRun, StoreError> {
        let Some(marker) = self.markers.known(district) else {
            Box::pin(self.read_all_markers()).await?;
            let line = self.ask(&redis::cmd("PING"), CommandTarget::Keys).await?.line;
            return Ok(ScriptRun {
                micros: self.now().as_millis() * 1000,
                body: DecisionOutcome::OtherMarker,
                line,
            });
        };
        let marker = (self.names.marker(district), marker.as_slice());
        let reply =
            self.evaluate(|reference| request.command(&self.decisions, reference, marker, valid)).await?;
        let answer = script::read(reply.value).ok_or_else(unexpected_reply)?;
        self.clock(district).observe(reply.sent, reply.received, answer.micros);
        if self.clocks.len() > 1 {
            self.latest_clock.store(district.0, Ordering::Relaxed);
        }
        match answer.body {
            DecisionOutcome::Done => self.link.health().mark_working(HealthPart::Writes),
            DecisionOutcome::OtherMarker => Box::pin(self.check_marker(district)).await?,
            DecisionOutcome::Found(_) => {}
        }
        Ok(ScriptRun { micros: answer.micros, body: answer.body, line: reply.line })
    }

    /// Runs a script, and loads it on a server that does not have it.
    async fn evaluate(
        self: &Arc<Self>,
        command: impl Fn(ScriptReference) -> redis::Cmd,
    ) -> Result<CommandReply, StoreError> {
        match self.link.send(&command(ScriptReference::Digest), CommandTarget::Keys).await {
            Err(failed) if script::is_unknown_script(&failed) => {
                self.ask(&command(ScriptReference::Text), CommandTarget::Keys).await
            }
            result => result.map_err(|failed| self.link.store_error(&failed)),
        }
    }

    async fn ask(
        self: &Arc<Self>,
        command: &redis::Cmd,
        target: CommandTarget<'_>,
    ) -> Result<CommandReply, StoreError> {
        self.link.send(command, target).await.map_err(|failed| self.link.store_error(&failed))
    }

    /// Reads the marker of a district, and creates it if it is missing.
    async fn check_marker(self: &Arc<Self>, district: KeyDistrict) -> Result<(), StoreError> {
        let name = self.names.marker(district);
        let fresh = markers::text(steadfast_core::dedupe::StoreMarker(random::number()));
        self.ask(redis::cmd("SET").arg(name).arg(fresh.as_slice()).arg("NX"), CommandTarget::Keys).await?;
        let found = self.ask(redis::cmd("GET").arg(name), CommandTarget::Keys).await?;
        let Value::BulkString(found) = found.value else { return Ok(()) };
        if self.see(district, &found) == MarkerStatus::Emptied && self.markers.begin_reporting() {
            // There may be no receivers.
            let _ = self.events.send(StoreEvent::Emptied);
            let inner = Arc::clone(self);
            tokio::spawn(async move {
                // Markers that cannot be read now are read when they are needed.
                let _ = inner.read_all_markers().await;
                inner.markers.end_reporting();
            });
        }
        Ok(())
    }

    /// Reads the server's time and all markers, at the first contact.
    async fn read_all_markers(self: &Arc<Self>) -> Result<(), StoreError> {
        let time = self.ask(&redis::cmd("TIME"), CommandTarget::Keys).await?;
        let (seconds, micros): (u64, u64) =
            redis::from_redis_value(time.value).map_err(|_| unexpected_reply())?;
        for clock in &self.clocks {
            if clock.micros(time.received).is_none() {
                clock.observe(
                    time.sent,
                    time.received,
                    seconds.saturating_mul(1_000_000).saturating_add(micros),
                );
            }
        }
        let names: Vec<String> =
            KeyDistrict::all().map(|district| self.names.marker(district).to_owned()).collect();
        let missing: Vec<bool> = self.read_all(&names).await?.iter().map(Option::is_none).collect();
        for (name, _) in names.iter().zip(missing).filter(|(_, missing)| *missing) {
            let fresh = markers::text(steadfast_core::dedupe::StoreMarker(random::number()));
            self.ask(redis::cmd("SET").arg(name).arg(fresh.as_slice()).arg("NX"), CommandTarget::Keys)
                .await?;
        }
        let mut emptied = false;
        for (district, found) in KeyDistrict::all().zip(self.read_all(&names).await?) {
            if let Some(found) = found {
                emptied |= self.see(district, &found) == MarkerStatus::Emptied;
            }
        }
        if emptied && self.markers.begin_reporting() {
            let _ = self.events.send(StoreEvent::Emptied);
            self.markers.end_reporting();
        }
        Ok(())
    }

    fn see(&self, district: KeyDistrict, found: &[u8]) -> MarkerStatus {
        let now = self.clock(district).now(Instant::now()).unwrap_or_else(|| self.now());
        self.markers.see(district, markers::from_text(found), now)
    }

    /// Returns the values of keys on any server.
    async fn read_all(self: &Arc<Self>, names: &[String]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let reply = self.ask(redis::cmd("MGET").arg(names), CommandTarget::Keys).await?;
        redis::from_redis_value(reply.value).map_err(|_| unexpected_reply())
    }

    /// Returns the record under this key.
    async fn record(self: &Arc<Self>, key: RecordKey) -> Result<Option<DedupeRecord>, StoreError> {
        let reply = self.ask(redis::cmd("GET").arg(self.names.record(&key)), CommandTarget::Keys).await?;
        let Value::BulkString(value) = reply.value else { return Ok(None) };
        let record = Arc::unwrap_or_clone(self.decode(key, &value)?.record);
        Ok(Some(record).filter(|record| !record.is_expired(self.now())))
    }
}

/// Returns the error for an unexpected reply of the server.
fn unexpected_reply() -> StoreError {
    StoreError::outcome_unknown(
        StoreErrorKind::Unreadable,
        "unexpected reply from redis: is this a redis or valkey server, 6.2 or newer?",
    )
}

impl StateStore for RedisStore {
    fn kind(&self) -> &'static str {
        "redis"
    }

    fn now(&self) -> Timestamp {
        self.inner.now()
    }

    fn claim<'a>(&'a self, claim: &'a Claim, known: &'a LocalKnowledge) -> StoreFuture<'a, ClaimVerdict> {
        Box::pin(self.inner.claim(claim, known))
    }

    fn start<'a>(&'a self, key: RecordKey, owner: &'a ClaimOwner) -> StoreFuture<'a, StartVerdict> {
        Box::pin(self.inner.start(key, owner))
    }

    fn renew<'a>(
        &'a self,
        claimed: &'a DedupeRecord,
        keep: &'a RecordLifetimes,
    ) -> StoreFuture<'a, RenewVerdict> {
        Box::pin(self.inner.renew(claimed, keep))
    }

    fn save<'a>(&'a self, save: &'a SaveRequest) -> StoreFuture<'a, SaveVerdict> {
        Box::pin(self.inner.save(save))
    }

    fn release<'a>(&'a self, release: &'a ReleaseRequest) -> StoreFuture<'a, ()> {
        Box::pin(self.inner.release(release))
    }

    fn delivered<'a>(&'a self, receipt: &'a DeliveryReceipt, at: Timestamp) -> StoreFuture<'a, ()> {
        Box::pin(self.inner.delivered(receipt, at))
    }

    fn resolve<'a>(
        &'a self,
        resolve: &'a ResolutionRequest,
        rules: &'a DedupeRules,
    ) -> StoreFuture<'a, ResolveVerdict> {
        Box::pin(self.inner.resolve(resolve, rules))
    }

    fn mark_abandoned<'a>(
        &'a self,
        key: RecordKey,
        rules: &'a DedupeRules,
    ) -> StoreFuture<'a, Option<DedupeRecord>> {
        Box::pin(async move { Ok(self.inner.mark_abandoned(key, rules).await?.map(Arc::unwrap_or_clone)) })
    }

    fn settled<'a>(&'a self, key: RecordKey) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(self.inner.settled(key))
    }

    fn record(&self, key: RecordKey) -> StoreFuture<'_, Option<DedupeRecord>> {
        Box::pin(self.inner.record(key))
    }

    fn records<'a>(
        &'a self,
        selection: &'a RecordFilter,
        page: RecordPage,
    ) -> StoreFuture<'a, Vec<DedupeRecord>> {
        Box::pin(self.inner.records(selection, page))
    }

    fn flush<'a>(&'a self, flush: &'a FlushTarget) -> StoreFuture<'a, u64> {
        Box::pin(self.inner.flush(flush))
    }

    fn sweep(&self) -> StoreFuture<'_, SweepResult> {
        Box::pin(self.inner.sweep())
    }

    fn read<'a>(&'a self, name: &'a DocumentName) -> StoreFuture<'a, Option<Document>> {
        Box::pin(self.inner.read(name))
    }

    fn write<'a>(
        &'a self,
        name: &'a DocumentName,
        write: DocumentWrite,
    ) -> StoreFuture<'a, DocumentWriteOutcome> {
        Box::pin(self.inner.write_document(name, write))
    }

    fn documents(&self, kind: DocumentKind) -> StoreFuture<'_, Vec<(DocumentName, Document)>> {
        Box::pin(self.inner.documents(kind))
    }

    fn append<'a>(
        &'a self,
        journal: Journal,
        entries: &'a [JournalEntry],
        keep: JournalLimits,
    ) -> StoreFuture<'a, ()> {
        Box::pin(self.inner.append(journal, entries, keep))
    }

    fn entries<'a>(
        &'a self,
        query: &'a JournalQuery,
    ) -> StoreFuture<'a, Vec<(JournalPosition, JournalEntry)>> {
        Box::pin(self.inner.entries(query))
    }

    fn events(&self) -> broadcast::Receiver<StoreEvent> {
        self.inner.events.subscribe()
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("place", &self.inner.options.place).finish_non_exhaustive()
    }
}
