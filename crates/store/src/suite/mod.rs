//! The suite that every store passes.
//!
//! Written against the [`Store`] trait only, from what is required of a store. A store crate makes a factory and lets
//! [`store_suite!`](crate::store_suite) write one test per case:
//!
//! ```text
//! use steadfast_store::suite::{Fixture, Leases, Time};
//!
//! async fn fixture() -> Fixture { /* a store with nothing in it */ }
//!
//! mod suite {
//!     steadfast_store::store_suite!(super::fixture);
//! }
//! ```
//!
//! The crate of the tests needs `steadfast-store` with the feature `suite`, and `tokio` with `macros` and
//! `rt-multi-thread`. A single case is a function: `suite::an_unknown_outcome_is_told(fixture().await).await`;
//! [`CASES`] lists them all.
//!
//! What a [`Fixture`] says about its store:
//!
//! - `second` is another handle to the same data, as another process has it: a second connection to the file, a
//!   second client of the server. Nothing if the store is of one process; then `store` is used for both.
//! - `time` is the clock by hand that both handles use, or the real one. Cases are written in *moments*; where the
//!   time is real, a few of them are waited for, so a moment is short (50 ms). That something lives for less than an hour and
//!   is still there is only looked at where time stands still: a machine may be slower than any moment.
//! - `leases` says what ends a lease: the end of a process (memory, SQLite), or time (Redis). [`Children`] are
//!   real processes, which the usual [`Neighbours`](crate::Neighbours) see; [`Mortals`] are made up, for a store
//!   that takes a [`Sight`].
//! - `most` is the cap of the store, if it has one; some hundreds are enough. Nothing else is in the store.
//! - `histories` is how many random histories are compared with the reference. A history is some hundred operations.
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
mod keeping;
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
use steadfast_core::dedupe::{LeaseSight, Process};

use crate::Store;
use crate::clock::ManualClock;
use crate::process::{Sight, process};

/// A store to be tested. See the head of this module.
pub struct Fixture {
    /// The store, with nothing in it.
    pub store: Arc<dyn Store>,
    /// The same data as another process sees it.
    pub second: Option<Arc<dyn Store>>,
    /// How time passes.
    pub time: Time,
    /// What ends a lease.
    pub leases: Leases,
    /// The most records that the store takes.
    pub most: Option<usize>,
    /// How many random histories are compared.
    pub histories: u64,
    /// What has to live as long as the store.
    pub keep: Box<dyn Any + Send + Sync>,
}

/// How time passes for a store.
#[derive(Clone, Debug)]
pub enum Time {
    /// When somebody moves this clock.
    Manual(Arc<ManualClock>),
    /// On its own.
    Real {
        /// The shortest span that a case waits for the end of.
        moment: Duration,
    },
}

/// What ends the lease of a claim.
#[derive(Clone, Debug)]
pub enum Leases {
    /// The end of the process that made it.
    Process(Arc<dyn Processes>),
    /// Time.
    Time,
}

/// Processes that can be ended.
pub trait Processes: fmt::Debug + Send + Sync {
    /// A new one, which the store sees alive.
    fn spawn(&self) -> Process;
    /// Ends it; from now on the store sees it gone.
    fn kill(&self, process: &Process);
}

/// Made-up processes, for a store that takes a [`Sight`].
#[derive(Debug, Default)]
pub struct Mortals {
    spawned: AtomicU32,
    dead: Mutex<BTreeSet<Process>>,
}

impl Processes for Mortals {
    fn spawn(&self) -> Process {
        let pid = self.spawned.fetch_add(1, Ordering::SeqCst);
        Process { boot: "mortals".into(), pid, started: 1 }
    }

    fn kill(&self, process: &Process) {
        self.dead.lock().insert(process.clone());
    }
}

impl Sight for Mortals {
    fn sight(&self, process: &Process) -> LeaseSight {
        if self.dead.lock().contains(process) { LeaseSight::Gone } else { LeaseSight::Alive }
    }
}

/// Real processes that sleep until they are ended. Only where processes can be told apart (Linux).
#[derive(Debug, Default)]
pub struct Children {
    children: Mutex<BTreeMap<u32, Child>>,
}

impl Processes for Children {
    fn spawn(&self) -> Process {
        let child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let process = process(child.id()).unwrap();
        self.children.lock().insert(child.id(), child);
        process
    }

    fn kill(&self, process: &Process) {
        end(self.children.lock().remove(&process.pid).unwrap());
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        std::mem::take(self.children.get_mut()).into_values().for_each(end);
    }
}

fn end(mut child: Child) {
    // One that has ended already cannot be ended; either way it is waited for.
    let _ = child.kill();
    let _ = child.wait();
}

/// One case.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What it shows.
    pub name: &'static str,
    /// Panics if it does not.
    pub run: fn(Fixture) -> Pin<Box<dyn Future<Output = ()>>>,
}

/// Makes of one list of cases: a public function for each, the list of them, and the macro that writes the tests. A case
/// that is not in the list is dead code, and the compiler says so.
macro_rules! cases {
    ($dollar:tt $($group:ident: $($case:ident),+ ;)+) => {
        $($(
            #[doc = concat!("A case: ", stringify!($case), ".")]
            pub async fn $case(fixture: Fixture) {
                $group::$case(fixture.into()).await;
            }
        )+)+

        /// All cases.
        pub const CASES: &[Case] = &[$($(
            Case { name: stringify!($case), run: |fixture| Box::pin($case(fixture)) }
        ),+),+];

        /// Writes one test per case of the suite, for the stores that this async function makes.
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
        a_lapsed_run_that_is_not_safe_to_repeat_is_told_as_unknown,
        an_answer_that_did_not_arrive_is_replayed,
        an_answer_that_arrived_is_history_for_equal_arguments,
        a_double_dispatch_is_one_call,
        a_double_dispatch_through_another_process_is_one_call,
        a_delivery_that_the_store_does_not_know_counts,
        a_failure_is_replayed_as_the_rules_say,
        an_unknown_outcome_is_told,
        an_unknown_outcome_that_was_looked_into_runs_again,
        an_attempt_that_may_still_take_effect_is_told_as_not_yet,
        an_attempt_is_over_when_its_time_has_come,
        an_attempt_whose_holder_is_gone_is_over_after_a_time,
        an_attempt_that_its_holder_would_have_seen_the_end_of_is_over_by_then,
        tr_4_the_same_key_with_other_arguments_is_a_conflict,
        a_call_id_with_other_arguments_is_another_call,
        a_look_writes_nothing,
        a_record_that_only_the_index_finds_is_replaced,
        a_call_id_keeps_its_record_when_the_index_moves_on,
        a_dispatch_that_failed_stands_back_behind_an_equal_run;
    owners:
        a_start_is_written_once_and_for_its_owner_only,
        a_renewal_extends_the_lease_of_its_owner_only,
        a_renewal_brings_nothing_back,
        an_answer_is_saved_under_the_fence,
        a_save_that_is_repeated_changes_nothing,
        a_late_answer_turns_unknown_into_done,
        an_owner_that_knows_more_of_the_end_is_believed,
        a_final_answer_that_arrived_stays_one,
        a_save_that_finds_nothing_writes,
        a_save_that_finds_nothing_leaves_a_newer_index_alone,
        a_save_finds_its_run_through_the_index,
        a_release_gives_back_what_is_its_own,
        a_release_finds_its_run_through_the_index,
        a_delivery_marks_the_answer_it_names_and_no_other,
        an_answer_before_the_end_is_never_marked,
        an_operator_resolves_an_unknown_outcome,
        that_a_call_did_not_run_is_not_believed_before_its_end,
        an_abandoned_run_is_recorded_as_unknown_once;
    waiting:
        what_is_settled_is_not_waited_for,
        a_follower_is_woken_by_every_end,
        a_follower_of_another_handle_is_woken,
        a_follower_is_woken_when_the_lease_ends,
        every_follower_is_woken;
    keeping:
        what_is_past_its_lifetime_is_absent,
        open_records_are_pinned,
        an_unknown_outcome_under_hold_stays,
        a_sweep_comes_to_an_end,
        a_flush_of_a_key_forgets_it_whatever_it_is,
        a_flush_forgets_what_is_finished_and_selected,
        records_come_in_pages,
        a_full_store_forgets_finished_records_only,
        a_store_full_of_open_records_says_so;
    documents:
        a_document_is_replaced_only_by_who_has_read_it,
        a_version_is_never_given_twice,
        a_document_is_forgotten_when_it_expires,
        documents_are_listed_by_kind,
        one_of_many_writers_of_a_document_wins,
        other_processes_hear_of_a_document;
    journals:
        a_journal_is_read_newest_first,
        a_journal_is_read_page_by_page,
        a_page_of_a_journal_goes_on_where_the_one_before_was_forgotten,
        looking_through_a_journal_says_where_to_go_on,
        a_journal_is_bounded_in_number,
        a_journal_is_bounded_in_what_is_about_one_subject,
        a_journal_is_bounded_in_age,
        journals_are_apart;
    races:
        sf_1_of_many_claimers_one_runs,
        sf_1_of_many_equal_calls_one_runs,
        sf_1_of_many_who_wait_for_a_lapsed_run_one_takes_it_over,
        tr_2_many_callers_get_the_one_answer,
        calls_that_cross_do_not_block_each_other;
    random:
        random_histories_go_as_in_the_reference;
}
