//! The memory store passes the suite, and broken stores do not.

mod broken;

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::dedupe::{LeaseSight, Process};
use steadfast_store::suite::{Fixture, Leases, Mortals, Time};
use steadfast_store::{ManualClock, MemoryOptions, MemoryStore, Sight, Store};

async fn memory() -> Fixture {
    memory_with(|options| Arc::new(MemoryStore::new(options)))
}

/// A fixture for a store with these options.
fn memory_with(make: impl FnOnce(MemoryOptions) -> Arc<dyn Store>) -> Fixture {
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_000_000_000)));
    let mortals = Arc::new(Mortals::default());
    let most = 300;
    let options = MemoryOptions { most, sight: mortals.clone(), ..MemoryOptions::new(clock.clone()) };
    Fixture {
        store: make(options),
        second: None,
        time: Time::Manual(clock),
        leases: Leases::Process(mortals),
        most: Some(most),
        histories: 200,
        keep: Box::new(()),
    }
}

/// The same store with the behaviour of a server: real time, and leases that end by time.
async fn memory_by_time() -> Fixture {
    let options = MemoryOptions { most: 300, sight: Arc::new(Strangers), ..MemoryOptions::default() };
    Fixture {
        store: Arc::new(MemoryStore::new(options)),
        second: None,
        time: Time::Real { moment: Duration::from_millis(50) },
        leases: Leases::Time,
        most: Some(300),
        histories: 50,
        keep: Box::new(()),
    }
}

/// Cannot check any process.
#[derive(Debug)]
struct Strangers;

impl Sight for Strangers {
    fn sight(&self, _: &Process) -> LeaseSight {
        LeaseSight::Time
    }
}

mod memory_store {
    steadfast_store::store_suite!(super::memory);
}

mod memory_store_by_time {
    steadfast_store::store_suite!(super::memory_by_time);
}
