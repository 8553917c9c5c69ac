//! The test suite that every store must pass.
//!
//! It uses the [`StateStore`] trait only, and follows from the requirements of a store. A store crate provides a fixture,
//! and [`store_suite!`](crate::store_suite) generates one test per case:
//!
//! ```text
//! use steadfast_store::suite::{Fixture, Leases, Time};
//!
//! async fn fixture() -> Fixture { /* an empty store */ }
//!
//! mod suite {
//!     steadfast_store::store_suite!(super::fixture);
//! }
//! ```
//!
//! The crate of the tests needs `steadfast-store` with the feature `suite`, and `tokio` with `macros` and
//! `rt-multi-thread`. A single case is a function: `suite::an_unknown_outcome_is_reported(fixture().await).await`.
//! [`CASES`] lists them all.
//!
//! Fields of a [`StoreFixture`]:
//!
//! - `second` is another handle to the same data, as another process has it: a second connection to the file, a
//!   second client of the server. It is `None` for a store of one process, and then `store` is used for both.
//! - `time` is the manual clock that both handles use, or real time. Cases are written in *moments*. With real time,
//!   the suite waits for a few of them, so a moment is short (50 ms). With a manual clock only, the suite checks that
//!   something with a lifetime below an hour is still there, because a machine may be slower than any moment.
//! - `leases` is what ends a lease: the end of a process (memory, SQLite), or time (Redis). [`ChildProcesses`] are real
//!   processes, which the default [`LocalProcessMonitor`](crate::LocalProcessMonitor) can check. [`SimulatedProcesses`] are simulated, for a store
//!   that takes a [`ProcessMonitor`].
//! - `most` is the record limit of the store, if it has one. Some hundreds are enough. The store contains nothing
//!   else.
//! - `histories` is the number of random histories that are compared with the reference. Each has some hundred
//!   operations.
//! - `keep` is dropped after the case: a temporary folder, a server.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "these are tests, though in a library"
)]

mod claims;
mod documents;
mod journals;
mod lifetimes;
mod owners;
mod races;
mod random;
mod waiting;
mod world;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_core::dedupe::{LeaseOwnerState, ProcessIdentity};

use crate::StateStore;
use crate::clock::ManualClock;
use crate::process::{ProcessMonitor, process};

/// A store under test. See the module documentation.
pub struct StoreFixture {
    /// The empty store.
    pub store: Arc<dyn StateStore>,
    /// A handle to the same data from another process.
    pub second: Option<Arc<dyn StateStore>>,
    /// The source of time.
    pub time: TimeModel,
    /// The event that ends a lease.
    pub leases: LeaseModel,
    /// The most records that the store takes.
    pub most: Option<usize>,
    /// Number of random histories that are compared.
    pub histories: u64,
    /// Resources that must live as long as the store.
    pub keep: Box<dyn Any + Send + Sync>,
}

/// The source of time of a store.
#[derive(Clone, Debug)]
pub enum TimeModel {
    /// A manual clock.
    Manual(Arc<ManualClock>),
    /// Real time.
    Real {
        /// The shortest span whose end a case waits for.
        moment: Duration,
    },
}

/// The event that ends the lease of a claim.
#[derive(Clone, Debug)]
pub enum LeaseModel {
    /// The end of the process that made it.
    Process(Arc<dyn KillableProcesses>),
    /// Time.
    Time,
}

/// Processes that can be killed.
pub trait KillableProcesses: fmt::Debug + Send + Sync {
    /// Starts a process, which the store sees alive.
    fn spawn(&self) -> ProcessIdentity;
    /// Kills a process. From now on the store sees it gone.
    fn kill(&self, process: &ProcessIdentity);
}

/// Simulated processes, for a store that takes a [`ProcessMonitor`].
#[derive(Debug, Default)]
pub struct SimulatedProcesses {
    spawned: AtomicU32,
    dead: Mutex<BTreeSet<ProcessIdentity>>,
}

impl KillableProcesses for SimulatedProcesses {
    fn spawn(&self) -> ProcessIdentity {
        let pid = self.spawned.fetch_add(1, Ordering::SeqCst);
        ProcessIdentity { boot: "mortals".into(), pid, started: 1 }
    }

    fn kill(&self, process: &ProcessIdentity) {
        self.dead.lock().insert(process.clone());
    }
}

impl ProcessMonitor for SimulatedProcesses {
    fn check_process(&self, process: &ProcessIdentity) -> LeaseOwnerState {
        if self.dead.lock().contains(process) { LeaseOwnerState::Gone } else { LeaseOwnerState::Alive }
    }
}

/// Real processes that sleep until they are killed. Only on Linux, where processes can be identified.
#[derive(Debug, Default)]
pub struct ChildProcesses {
    children: Mutex<BTreeMap<u32, Child>>,
}

impl KillableProcesses for ChildProcesses {
    fn spawn(&self) -> ProcessIdentity {
        let child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let process = process(child.id()).unwrap();
        self.children.lock().insert(child.id(), child);
        process
    }

    fn kill(&self, process: &ProcessIdentity) {
        end(self.children.lock().remove(&process.pid).unwrap());
    }
}

impl Drop for ChildProcesses {
    fn drop(&mut self) {
        std::mem::take(self.children.get_mut()).into_values().for_each(end);
    }
}

fn end(mut child: Child) {
    // A process that has already ended cannot be killed. In both cases this waits for it.
    let _ = child.kill();
    let _ = child.wait();
}

/// One case.
#[derive(Clone, Copy, Debug)]
pub struct SuiteCase {
    /// The name, which is the statement that it tests.
    pub name: &'static str,
    /// Runs the case, and panics if it fails.
    pub run: fn(StoreFixture) -> Pin<Box<dyn Future<Output = ()>>>,
}

/// Generates, from one list of cases: a public function for each, the list of them, and the macro for the tests. A
/// case that is missing in the list is dead code, which the compiler reports.
macro_rules! cases {
    ($dollar:tt $($group:ident: $($case:ident),+ ;)+) => {
        $($(
            #[doc = concat!("A case: ", stringify!($case), ".")]
            pub async fn $case(fixture: StoreFixture) {
                $group::$case(fixture.into()).await;
            }
        )+)+

        /// All cases.
        pub const CASES: &[SuiteCase] = &[$($(
            SuiteCase { name: stringify!($case), run: |fixture| Box::pin($case(fixture)) }
        ),+),+];

        /// Generates one test per case of the suite, for the stores that this async function creates.
        #[macro_export]
        macro_rules! store_suite {
            ($dollar make:path) => {
                $($(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $case() {
                        $crate::suite::$case($dollar make().await).await;
                    }
                )+)+
            };
        }
    };
}

cases! { $
    claims:
        a_claim_that_finds_nothing_is_mine,
        a_claim_is_repeated_under_its_own_token,
        a_claim_in_flight_is_followed,
        a_lapsed_claim_that_was_not_started_is_mine,
        a_lapsed_run_that_is_safe_to_repeat_is_taken_over,
        a_lapsed_run_that_is_not_safe_to_repeat_is_reported_as_unknown,
        an_undelivered_result_is_replayed,
        a_delivered_result_does_not_affect_equal_arguments,
        a_double_dispatch_is_one_call,
        a_double_dispatch_through_another_process_is_one_call,
        a_delivery_that_is_not_in_the_store_counts,
        a_failure_is_replayed_according_to_the_rules,
        an_unknown_outcome_is_reported,
        an_unknown_outcome_that_was_verified_runs_again,
        an_attempt_that_may_still_take_effect_is_reported_as_pending,
        an_attempt_is_over_when_its_time_has_come,
        an_attempt_of_a_dead_owner_settles_after_a_time,
        an_attempt_settles_when_its_owner_would_have_observed_its_end,
        tr_4_the_same_key_with_other_arguments_is_a_conflict,
        a_call_id_with_other_arguments_is_another_call,
        a_lookup_writes_nothing,
        a_record_that_only_the_index_finds_is_replaced,
        a_call_id_keeps_its_record_when_the_index_moves_on,
        a_failed_dispatch_yields_to_an_equal_run;
    owners:
        a_start_is_written_once_and_for_its_owner_only,
        a_renewal_extends_the_lease_of_its_owner_only,
        a_renewal_brings_nothing_back,
        a_result_is_saved_under_the_fence,
        a_save_that_is_repeated_changes_nothing,
        a_late_result_turns_unknown_into_done,
        an_owner_that_observed_the_end_overrides,
        a_delivered_final_response_stays_delivered,
        a_save_that_finds_nothing_writes,
        a_save_that_finds_nothing_does_not_change_a_newer_index,
        a_save_finds_its_run_through_the_index,
        a_release_affects_only_its_own_claim,
        a_release_finds_its_run_through_the_index,
        a_delivery_marks_only_the_result_with_its_receipt,
        a_response_before_the_end_is_never_marked_as_delivered,
        an_operator_resolves_an_unknown_outcome,
        a_call_cannot_be_resolved_as_not_run_before_its_end,
        an_abandoned_run_is_recorded_as_unknown_once;
    waiting:
        a_settled_record_is_not_waited_for,
        a_follower_is_woken_by_every_end,
        a_follower_of_another_handle_is_woken,
        a_follower_is_woken_when_the_lease_ends,
        every_follower_is_woken;
    lifetimes:
        expired_records_are_absent,
        open_records_are_pinned,
        an_unknown_outcome_under_hold_stays,
        a_sweep_comes_to_an_end,
        a_flush_of_a_key_removes_it_in_any_state,
        a_flush_removes_the_finished_records_of_a_selection,
        records_come_in_pages,
        a_full_store_evicts_finished_records_only,
        a_store_full_of_open_records_reports_it;
    documents:
        a_document_is_replaced_only_by_a_writer_that_has_read_it,
        a_version_is_never_given_twice,
        a_document_is_removed_when_it_expires,
        documents_are_listed_by_kind,
        one_of_many_writers_of_a_document_wins,
        other_processes_get_an_event_for_a_document;
    journals:
        a_journal_is_read_newest_first,
        a_journal_is_read_page_by_page,
        a_page_of_a_journal_continues_after_a_removed_position,
        filtering_a_journal_returns_the_position_to_continue,
        a_journal_is_bounded_in_number,
        a_journal_is_bounded_by_subject,
        a_journal_is_bounded_in_age,
        journals_are_apart;
    races:
        sf_1_of_many_claimers_one_runs,
        sf_1_of_many_equal_calls_one_runs,
        sf_1_of_many_waiters_for_a_lapsed_run_one_takes_it_over,
        tr_2_many_callers_get_the_same_result,
        calls_that_cross_do_not_block_each_other;
    random:
        random_histories_match_the_reference;
}
