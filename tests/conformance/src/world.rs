//! The environment of one test: an empty store of some kind, a clock that can be moved, and engines on both.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::dedupe::DedupeRecord;
use steadfast_core::policy::{CallPolicy, EnforcementMode, PolicyProfile, ToolClass};
use steadfast_executor::{Engine, EngineBuilder, RuntimeClock};
use steadfast_store::{MemoryOptions, MemoryStore, RecordFilter, RecordPage, StateStore, TimeSource};
use steadfast_store_redis::{KeyPrefix, Options, RedisStore};
use steadfast_store_sqlite::{SqliteOptions, SqliteStore};
use steadfast_testkit::redis::RedisServer;

use crate::calls::{LONG, TEST_TIMEOUT};

/// A store of some kind, and the clock of its users.
pub(crate) struct ConformanceWorld {
    clock: Arc<AdjustableClock>,
    home: StoreLocation,
}

/// The location of the data.
enum StoreLocation {
    Memory(Arc<dyn StateStore>),
    Sqlite(SqliteFolder),
    Redis { server: Arc<RedisServer>, prefix: String },
}

/// A folder with a state file, and the clocks of the stores that were opened on it. A store keeps its clock until its
/// threads have ended, which is after its last handle was dropped.
struct SqliteFolder {
    folder: ConformanceFolder,
    opened: Mutex<Vec<Weak<StoreClock>>>,
}

impl Drop for SqliteFolder {
    fn drop(&mut self) {
        // An engine releases its store shortly after it was dropped, and a store recreates a missing folder.
        let deadline = Instant::now() + TEST_TIMEOUT;
        while self.opened.get_mut().iter().any(|clock| clock.strong_count() > 0) && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Writes a module of tests for each kind of store: each case is an async function over a [`ConformanceWorld`].
///
/// In memory the time is paused and waits cost nothing. Stores on a disk or a server need the real time.
macro_rules! for_every_store {
    ($($group:ident::{$($case:ident),+ $(,)?}),+ $(,)?) => {
        mod memory {
            $($(
                #[tokio::test(start_paused = true)]
                async fn $case() { super::$group::$case(crate::world::ConformanceWorld::memory()).await; }
            )+)+
        }
        mod sqlite {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() { super::$group::$case(crate::world::ConformanceWorld::sqlite()).await; }
            )+)+
        }
        mod redis {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() { super::$group::$case(crate::world::ConformanceWorld::redis()).await; }
            )+)+
        }
    };
}
pub(crate) use for_every_store;

impl ConformanceWorld {
    pub(crate) fn memory() -> Self {
        let clock = Arc::new(AdjustableClock::default());
        let store = Arc::new(MemoryStore::new(MemoryOptions::new(clock.clone())));
        Self { clock, home: StoreLocation::Memory(store) }
    }

    pub(crate) fn sqlite() -> Self {
        Self {
            clock: Arc::default(),
            home: StoreLocation::Sqlite(SqliteFolder {
                folder: ConformanceFolder::new(),
                opened: Mutex::default(),
            }),
        }
    }

    pub(crate) fn redis() -> Self {
        Self {
            clock: Arc::default(),
            home: StoreLocation::Redis { server: RedisServer::shared(), prefix: unused_prefix() },
        }
    }

    /// Returns a new handle to the store, like that of another process.
    pub(crate) async fn store(&self) -> Arc<dyn StateStore> {
        match &self.home {
            StoreLocation::Memory(store) => store.clone(),
            StoreLocation::Sqlite(SqliteFolder { folder, opened }) => {
                let clock = Arc::new(StoreClock(self.clock.clone()));
                opened.lock().push(Arc::downgrade(&clock));
                let options = SqliteOptions { clock, ..sqlite_options(folder.file("state.db")) };
                Arc::new(SqliteStore::open(options).unwrap())
            }
            StoreLocation::Redis { server, prefix } => {
                Arc::new(RedisStore::connect(redis_options(&server.url(), prefix)).await.unwrap())
            }
        }
    }

    /// Returns a builder for an engine with a handle of its own to the store.
    pub(crate) async fn builder(&self) -> EngineBuilder {
        Engine::builder().clock(self.clock.clone()).store(self.store().await)
    }

    /// Returns an engine that has the same policy for every call.
    pub(crate) async fn engine(&self, policy: &CallPolicy) -> Engine {
        self.builder().await.policies(Arc::new(policy.clone())).start().await
    }

    /// Returns true if an engine learns of the writes of another one. A store in memory belongs to one process and
    /// notifies no other.
    pub(crate) fn notifies_engines(&self) -> bool {
        match &self.home {
            StoreLocation::Memory(_) => false,
            StoreLocation::Sqlite(_) | StoreLocation::Redis { .. } => true,
        }
    }

    /// Returns true if waits cost nothing: everything happens in this process, and its time advances when nothing does.
    pub(crate) fn has_paused_time(&self) -> bool {
        matches!(self.home, StoreLocation::Memory(_))
    }

    /// Stops the clock for all decisions, except for [`ConformanceWorld::pass`]. A sleeping task wakes and finds that its time has
    /// not come, so retries must not happen from here on.
    pub(crate) fn stop_clock(&self) {
        self.clock.stop();
    }

    /// Advances the clock for all decisions. No sleeping task is woken.
    pub(crate) fn advance_clock(&self, span: Duration) {
        self.clock.ahead.fetch_add(steadfast_core::millis(span), Ordering::SeqCst);
    }

    /// Returns all records in the store.
    pub(crate) async fn records(&self) -> Vec<DedupeRecord> {
        let page = RecordPage { after: None, limit: 1000 };
        self.store().await.records(&RecordFilter::default(), page).await.unwrap()
    }

    /// Returns all stored bytes.
    pub(crate) async fn stored_bytes(&self) -> Vec<u8> {
        match &self.home {
            StoreLocation::Memory(store) => {
                let mut text = format!("{:?}", self.records().await);
                for kind in steadfast_store::DocumentKind::ALL {
                    text.push_str(&format!("{:?}", store.documents(kind).await.unwrap()));
                }
                text.into_bytes()
            }
            StoreLocation::Sqlite(SqliteFolder { folder, .. }) => {
                let files = fs::read_dir(&folder.path).unwrap();
                files.flat_map(|file| fs::read(file.unwrap().path()).unwrap()).collect()
            }
            StoreLocation::Redis { server, prefix } => {
                let keys = server.command(&["KEYS", &format!("{prefix}*")]);
                let mut bytes = keys.clone().into_bytes();
                for key in keys.split(' ') {
                    let script = "local t = redis.call('TYPE', KEYS[1]).ok \
                        if t == 'string' then return redis.call('GET', KEYS[1]) end \
                        if t == 'hash' then return redis.call('HGETALL', KEYS[1]) end \
                        if t == 'zset' then return redis.call('ZRANGE', KEYS[1], 0, -1) end \
                        if t == 'set' then return redis.call('SMEMBERS', KEYS[1]) end \
                        if t == 'list' then return redis.call('LRANGE', KEYS[1], 0, -1) end \
                        if t == 'stream' then return cjson.encode(redis.call('XRANGE', KEYS[1], '-', '+')) end \
                        return redis.error_reply('an unexpected type: ' .. t)";
                    let value = server.command(&["EVAL", script, "1", key]);
                    assert!(!value.contains("an unexpected type"), "{value}");
                    bytes.extend(value.into_bytes());
                }
                bytes
            }
        }
    }
}

/// Returns a policy of the standard profile in which only deduplication, retries and the breaker act. Guard and trust
/// have their own tests, and would act before the others. No attempt takes too long because the machine is slow.
pub(crate) fn plain(class: ToolClass) -> CallPolicy {
    let mut policy = PolicyProfile::Standard.policy(class);
    (policy.time.attempt, policy.time.total, policy.retry.total) = (LONG, LONG, None);
    policy.modes.guard = EnforcementMode::Off;
    policy.modes.trust = EnforcementMode::Off;
    policy
}

/// Returns options with which a slow disk never times out.
pub(crate) fn sqlite_options(path: impl Into<PathBuf>) -> SqliteOptions {
    SqliteOptions { patience: TEST_TIMEOUT, ..SqliteOptions::at(path) }
}

/// Returns options with which a slow server never times out.
pub(crate) fn redis_options(url: &str, prefix: &str) -> Options {
    let (command_timeout, connect_timeout) = (TEST_TIMEOUT, TEST_TIMEOUT);
    let prefix = KeyPrefix::new(prefix).unwrap();
    Options { prefix, command_timeout, connect_timeout, ..Options::parse(url).unwrap() }
}

/// Returns a prefix that no other test has.
pub(crate) fn unused_prefix() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("conformance{}:", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// The time of the runtime, or the time at which it was stopped, plus the advances.
#[derive(Debug, Default)]
struct AdjustableClock {
    runtime: RuntimeClock,
    stopped: OnceLock<Timestamp>,
    ahead: AtomicU64,
}

impl AdjustableClock {
    fn stop(&self) {
        self.stopped.get_or_init(|| self.runtime.now());
    }
}

impl TimeSource for AdjustableClock {
    fn now(&self) -> Timestamp {
        let now = self.stopped.get().copied().unwrap_or_else(|| self.runtime.now());
        now + Duration::from_millis(self.ahead.load(Ordering::SeqCst))
    }
}

/// The clock of a world, for one store.
#[derive(Debug)]
struct StoreClock(Arc<AdjustableClock>);

impl TimeSource for StoreClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

/// A temporary folder of a test, removed with it.
#[derive(Debug)]
pub(crate) struct ConformanceFolder {
    path: PathBuf,
}

impl ConformanceFolder {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("steadfast-conformance-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self { path }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for ConformanceFolder {
    fn drop(&mut self) {
        // A store that is being closed still removes and creates files of its own.
        for _ in 0..100 {
            let _ = fs::remove_dir_all(&self.path);
            std::thread::sleep(Duration::from_millis(10));
            if !self.path.exists() {
                return;
            }
        }
    }
}
