//! The suite for all stores, with two handles on one file, like two processes.

#![expect(clippy::unwrap_used, reason = "a store that cannot be made fails its test")]

mod folder;

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_store::suite::{
    self, ChildProcesses, KillableProcesses, LeaseModel, SimulatedProcesses, StoreFixture, TimeModel,
};
use steadfast_store::{LocalProcessMonitor, ManualClock, ProcessMonitor, RecordCodec, this_process};
use steadfast_store_sqlite::{SqliteOptions, SqliteStore};

use crate::folder::SqliteSuiteFolder;

async fn two_handles() -> StoreFixture {
    let simulated = Arc::new(SimulatedProcesses::default());
    fixture(simulated.clone(), simulated, RecordCodec::default())
}

async fn two_handles_with_a_secret() -> StoreFixture {
    let simulated = Arc::new(SimulatedProcesses::default());
    // Only the file differs, and unoptimised encryption is slow.
    StoreFixture {
        histories: 4,
        ..fixture(simulated.clone(), simulated, RecordCodec::encrypted(&[7; 32]).unwrap())
    }
}

async fn real_processes() -> StoreFixture {
    let neighbours = Arc::new(LocalProcessMonitor::of(this_process()));
    fixture(Arc::new(ChildProcesses::default()), neighbours, RecordCodec::default())
}

fn fixture(
    processes: Arc<dyn KillableProcesses>,
    sight: Arc<dyn ProcessMonitor>,
    codec: RecordCodec,
) -> StoreFixture {
    let folder = SqliteSuiteFolder::new();
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_700_000_000_000)));
    let most = 200;
    let open = || {
        let options = SqliteOptions {
            clock: clock.clone(),
            sight: sight.clone(),
            codec: codec.clone(),
            most_records: most,
            // No working disk is too slow.
            patience: Duration::from_secs(120),
            ..SqliteOptions::at(folder.file("state.db"))
        };
        Arc::new(SqliteStore::open(options).unwrap())
    };
    StoreFixture {
        store: open(),
        second: Some(open()),
        time: TimeModel::Manual(clock.clone()),
        leases: LeaseModel::Process(processes),
        most: Some(usize::try_from(most).unwrap()),
        histories: 20,
        keep: Box::new(folder),
    }
}

mod plain {
    steadfast_store::store_suite!(super::two_handles);
}

/// Encryption changes the content of the file, and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_histories_match_the_reference_with_a_secret() {
    suite::random_histories_match_the_reference(two_handles_with_a_secret().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lapsed_run_of_a_real_process_is_reported_as_unknown() {
    suite::a_lapsed_run_that_is_not_safe_to_repeat_is_reported_as_unknown(real_processes().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_is_woken_when_a_real_process_is_killed() {
    suite::a_follower_is_woken_when_the_lease_ends(real_processes().await).await;
}
