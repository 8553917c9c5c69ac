//! The memory store passes the suite, and stores that break a promise do not.

mod broken;

use std::sync::Arc;

use steadfast_core::Timestamp;
use steadfast_store::suite::{Fixture, Leases, Mortals, Time};
use steadfast_store::{ManualClock, MemoryOptions, MemoryStore};

async fn memory() -> Fixture {
    memory_with(|options| Arc::new(MemoryStore::new(options)))
}

/// A fixture around whatever is made of these options.
fn memory_with(make: impl FnOnce(MemoryOptions) -> Arc<dyn steadfast_store::Store>) -> Fixture {
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

mod memory_store {
    steadfast_store::store_suite!(super::memory);
}
