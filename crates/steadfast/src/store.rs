//! Stores of call records: the records, pages of them, and the three stores that exist. A program chooses one with
//! [`Store`](crate::Store), and operators read records through [`EngineAdmin`](crate::admin::EngineAdmin).
//!
//! ```
//! use steadfast::store::{DedupeState, RecordFilter, RecordPage};
//! use steadfast::{Attempt, Steadfast, Store, ToolFault};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
//! steadfast.call("bank/pay").key("42").run(async |_: Attempt| Ok::<_, ToolFault>("paid")).await?;
//!
//! let page = RecordPage { after: None, limit: 10 };
//! let records = steadfast.engine().admin().records(&RecordFilter::default(), page).await?;
//! assert!(matches!(records[0].state, DedupeState::Done(_)));
//! # Ok(())
//! # }
//! ```
//!
//! A store can also be opened without an engine, to look at its records from another program:
//!
//! ```no_run
//! use steadfast::store::{RecordFilter, RecordPage, SqliteOptions, SqliteStore, StateStore};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = SqliteStore::open(SqliteOptions::at("state.db"))?;
//! let open = RecordFilter { open: true, ..RecordFilter::default() };
//! println!("{} calls are in flight", store.records(&open, RecordPage { after: None, limit: 100 }).await?.len());
//! # Ok(())
//! # }
//! ```

pub use steadfast_core::call::StoreFault;
pub use steadfast_core::dedupe::{
    AttemptRecord, CallContext, CallFailure, ClaimOwner, DedupeRecord, DedupeState, Lease, LeaseOwnerState,
    LossCause, ProcessIdentity, RecordLoss, RecordOrigin, Resolution, ResolveVerdict, SettleTime,
    UnknownOutcome, UnknownOutcomeReason,
};
pub use steadfast_core::key::RecordKey;
pub use steadfast_store::{
    DocumentKind, DocumentName, FlushTarget, InvalidPosition, InvalidSecret, JournalPage, JournalPosition,
    ProcessMonitor, RecordCodec, RecordFilter, RecordPage, StoreErrorKind, StoreFuture,
};
pub use steadfast_store_redis::{
    HostPort, InvalidKeyPrefix, InvalidRedisUrl, KeyPrefix, RedisAddress, RedisLogin, RedisTls,
    WriteConfirmation,
};
pub use steadfast_store_sqlite::{CommitLossPolicy, FileDamagePolicy, SqliteOpenError};

/// A store of any kind. [`Steadfast::store`](crate::Steadfast::store) returns that of an instance.
///
/// A program reads it. Its writes belong to the engine, and a new store is written with the crates `steadfast-store`
/// and `steadfast-core`, which have the types of all operations.
///
/// ```
/// use steadfast::store::{DedupeState, RecordFilter, RecordPage, StateStore, StoreError};
///
/// async fn calls_with_unknown_outcome(store: &dyn StateStore) -> Result<usize, StoreError> {
///     let open = RecordFilter { open: true, ..RecordFilter::default() };
///     let records = store.records(&open, RecordPage { after: None, limit: 100 }).await?;
///     Ok(records.iter().filter(|record| matches!(record.state, DedupeState::Unknown(_))).count())
/// }
/// ```
pub use steadfast_store::StateStore;

/// The clock of a tokio runtime, for tests that pause time.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use steadfast::store::RuntimeClock;
/// use steadfast::{Attempt, Steadfast, Store, ToolFault, ToolPolicy};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // In a test: #[tokio::test(start_paused = true)]
/// let policy = ToolPolicy::read_only().attempts(2).backoff(Duration::from_secs(10), Duration::from_secs(10));
/// let builder = Steadfast::builder().store(Store::memory()).tool("web/fetch", policy);
/// let steadfast = builder.clock(Arc::new(RuntimeClock::new())).build().await?;
/// // The wait before the second attempt takes no real time.
/// let fails = async |_: Attempt| Err::<(), _>(ToolFault::http(503, "later"));
/// assert_eq!(steadfast.call("web/fetch").run(fails).await.unwrap_err().attempts(), 2);
/// # Ok(())
/// # }
/// ```
pub use steadfast_executor::RuntimeClock;

/// A clock. [`SteadfastBuilder::clock`](crate::SteadfastBuilder::clock) installs it.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use steadfast::Timestamp;
/// use steadfast::store::TimeSource;
///
/// /// A clock that a test moves by hand.
/// #[derive(Debug)]
/// struct HandClock(AtomicU64);
///
/// impl TimeSource for HandClock {
///     fn now(&self) -> Timestamp {
///         Timestamp::from_millis(self.0.load(Ordering::Relaxed))
///     }
/// }
/// ```
pub use steadfast_store::TimeSource;

/// The clock of the operating system.
///
/// ```
/// use steadfast::store::{SystemClock, TimeSource};
///
/// assert!(SystemClock::default().now().as_millis() > 0);
/// ```
pub use steadfast_store::SystemClock;

/// The error of a store, with the fact that decides about a retry: may the operation have happened?
///
/// ```
/// use steadfast::store::{StoreError, StoreErrorKind};
///
/// let error = StoreError::not_done(StoreErrorKind::Unreachable, "connection refused");
/// assert!(error.is_retryable());
/// ```
pub use steadfast_store::StoreError;

/// A store in the memory of this process.
///
/// ```
/// use std::sync::Arc;
/// use steadfast::store::{MemoryOptions, MemoryStore, StateStore, SystemClock};
///
/// let store = MemoryStore::new(MemoryOptions::new(Arc::new(SystemClock::default())));
/// assert_eq!(store.kind(), "memory");
/// ```
pub use steadfast_store::MemoryStore;

/// The limits of a [`MemoryStore`].
///
/// ```
/// use std::sync::Arc;
/// use steadfast::store::{MemoryOptions, SystemClock};
///
/// let options = MemoryOptions { most: 1000, ..MemoryOptions::new(Arc::new(SystemClock::default())) };
/// assert_eq!(options.most, 1000);
/// ```
pub use steadfast_store::MemoryOptions;

/// The address and the options of a [`RedisStore`].
///
/// ```
/// use steadfast::store::RedisOptions;
///
/// let options = RedisOptions::parse("redis://127.0.0.1/3").unwrap();
/// assert_eq!(options.database, 3);
/// ```
pub use steadfast_store_redis::Options as RedisOptions;

/// A store on a Redis or Valkey server.
///
/// ```no_run
/// use steadfast::store::{RedisOptions, RedisStore, StateStore};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::connect(RedisOptions::parse("redis://127.0.0.1")?).await?;
/// assert_eq!(store.kind(), "redis");
/// # Ok(())
/// # }
/// ```
pub use steadfast_store_redis::RedisStore;

/// The path and the limits of a [`SqliteStore`].
///
/// ```
/// use steadfast::store::SqliteOptions;
///
/// let options = SqliteOptions { most_bytes: 100 << 20, ..SqliteOptions::at("state.db") };
/// assert_eq!(options.path.to_str(), Some("state.db"));
/// ```
pub use steadfast_store_sqlite::SqliteOptions;

/// A store in a file on this machine.
///
/// ```no_run
/// use steadfast::store::{SqliteOptions, SqliteStore, StateStore};
///
/// let store = SqliteStore::open(SqliteOptions::at("state.db"))?;
/// assert_eq!(store.kind(), "sqlite");
/// # Ok::<(), steadfast::store::SqliteOpenError>(())
/// ```
pub use steadfast_store_sqlite::SqliteStore;
