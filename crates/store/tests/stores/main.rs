//! The memory store passes the suite, and broken stores do not.

mod broken;

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::dedupe::{LeaseOwnerState, ProcessIdentity};
use steadfast_store::suite::{LeaseModel, SimulatedProcesses, StoreFixture, TimeModel};
use steadfast_store::{ManualClock, MemoryOptions, MemoryStore, ProcessMonitor, StateStore};

async fn memory() -> StoreFixture {
    memory_with(|options| Arc::new(MemoryStore::new(options)))
}

/// A fixture for a store with these options.
fn memory_with(make: impl FnOnce(MemoryOptions) -> Arc<dyn StateStore>) -> StoreFixture {
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_000_000_000)));
    let simulated = Arc::new(SimulatedProcesses::default());
    let most = 300;
    let options = MemoryOptions { most, sight: simulated.clone(), ..MemoryOptions::new(clock.clone()) };
    StoreFixture {
        store: make(options),
        second: None,
        time: TimeModel::Manual(clock),
        leases: LeaseModel::Process(simulated),
        most: Some(most),
        histories: 200,
        keep: Box::new(()),
    }
}

/// The same store with the behaviour of a server: real time, and leases that end by time.
async fn memory_by_time() -> StoreFixture {
    let options = MemoryOptions { most: 300, sight: Arc::new(UnknownProcesses), ..MemoryOptions::default() };
    StoreFixture {
        store: Arc::new(MemoryStore::new(options)),
        second: None,
        time: TimeModel::Real { moment: Duration::from_millis(50) },
        leases: LeaseModel::Time,
        most: Some(300),
        histories: 50,
        keep: Box::new(()),
    }
}

/// Cannot check any process.
#[derive(Debug)]
struct UnknownProcesses;

impl ProcessMonitor for UnknownProcesses {
    fn check_process(&self, _: &ProcessIdentity) -> LeaseOwnerState {
        LeaseOwnerState::Time
    }
}

mod memory_store {
    steadfast_store::store_suite!(super::memory);
}

mod memory_store_by_time {
    steadfast_store::store_suite!(super::memory_by_time);
}
