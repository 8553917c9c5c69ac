//! Stores of call records: the trait, and the three that exist. A program chooses one with [`Store`](crate::Store).
//!
//! ```
//! use std::sync::Arc;
//! use steadfast::store::{MemoryOptions, MemoryStore, SystemClock};
//!
//! let store = MemoryStore::new(MemoryOptions::new(Arc::new(SystemClock::default())));
//! println!("{store:?}");
//! ```

pub use steadfast_executor::RuntimeClock;
pub use steadfast_store::{
    FlushTarget, MemoryOptions, MemoryStore, RecordFilter, RecordPage, StateStore, StoreError, SystemClock,
    TimeSource,
};
pub use steadfast_store_redis::{Options as RedisOptions, RedisStore};
pub use steadfast_store_sqlite::{CommitLossPolicy, FileDamagePolicy, SqliteOptions, SqliteStore};
