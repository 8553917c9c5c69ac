//! Broken stores, one for each guarantee, to show that the suite can fail.
//!
//! Each is the memory store in a wrapper with one fault. Each fault has a list of cases that must fail. The runtime
//! has one thread and paused time, so that a case that would wait for ever ends at once.

#![expect(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "each fault is one of many")]

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::dedupe::{
    Claim, ClaimIntent, ClaimOwner, ClaimVerdict, DedupeRecord, DedupeRules, DedupeState, DeliveryReceipt,
    LeaseOwnerState, LocalKnowledge, ProcessIdentity, RecordAddress, ReleaseRequest, RenewVerdict,
    ResolutionRequest, ResolveVerdict, RunOutcome, SaveRequest, SaveVerdict, SettleDelay, StartVerdict,
};
use steadfast_core::id::Digest;
use steadfast_core::key::RecordKey;
use steadfast_core::policy::{FailureReplayPolicy, RecordLifetimes};
use steadfast_store::suite::{CASES, SuiteCase};
use steadfast_store::{
    Document, DocumentKind, DocumentName, DocumentWrite, DocumentWriteOutcome, FlushTarget, Journal,
    JournalEntry, JournalLimits, JournalPosition, JournalQuery, MemoryOptions, MemoryStore, ProcessMonitor,
    RecordFilter, RecordPage, StateStore, StoreEvent, StoreFuture, SweepResult,
};
use tokio::sync::broadcast;

const LONG: Duration = Duration::from_secs(1_000_000);

/// The fault of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BrokenStoreFault {
    Nothing,
    ForgetsClaims,
    ChangesTokens,
    NobodyDies,
    ForgetsStarts,
    CountsLooksAsDeliveries,
    IgnoresDeliveries,
    IgnoresKnownDeliveries,
    SeesNoDoubleDispatch,
    IgnoresOverlap,
    IgnoresUnsavedAnswers,
    IgnoresAge,
    ReplaysEveryFailure,
    RunsAfterUnknown,
    IgnoresVerifications,
    TakesCutForOver,
    ForgetsWhenItEnds,
    ForgetsWhoSeesTheEnd,
    TakesGoneForOver,
    IgnoresArguments,
    LooksWrite,
    ForgetsIndex,
    TakesCallIdsForRuns,
    IgnoresOwner,
    RenewsAnything,
    SavesOver,
    TakesUnknownForFinal,
    SavesOnlyWhatIsThere,
    SavesOverTheIndex,
    OwnersIgnoreTheIndex,
    DeliversAnything,
    MarksBeforeTheEnd,
    ForgetsWhatArrived,
    ResolvesAnything,
    ResolvesBeforeTheEnd,
    NeverSettles,
    LosesWakeUps,
    KeepsForEver,
    SweepsOpen,
    FlushesOpen,
    ForgetsHold,
    SweepsForEver,
    FlushesNothing,
    IgnoresSelections,
    RepeatsPages,
    EvictsOpen,
    HasNoBound,
    LastWriterWins,
    ReusesVersions,
    MixesKinds,
    TellsNoNews,
    ReadsOldestFirst,
    RepeatsEntries,
    ForgetsWhereItWas,
    JournalsGrow,
    MixesJournals,
    DecidesOnAnEarlierLook,
    LocksAsItGoes,
}

/// Every fault, with the cases that detect it.
const BROKEN: &[(BrokenStoreFault, &[&str])] = &[
    (
        BrokenStoreFault::ForgetsClaims,
        &[
            "a_claim_that_finds_nothing_is_mine",
            "a_claim_in_flight_is_followed",
            "sf_1_of_many_claimers_one_runs",
            "random_histories_match_the_reference",
        ],
    ),
    (BrokenStoreFault::ChangesTokens, &["a_claim_is_repeated_under_its_own_token"]),
    (
        BrokenStoreFault::NobodyDies,
        &[
            "a_lapsed_claim_that_was_not_started_is_mine",
            "a_lapsed_run_that_is_safe_to_repeat_is_taken_over",
            "a_lapsed_run_that_is_not_safe_to_repeat_is_reported_as_unknown",
            "an_attempt_of_a_dead_owner_settles_after_a_time",
            "an_abandoned_run_is_recorded_as_unknown_once",
            "a_follower_is_woken_when_the_lease_ends",
            "random_histories_match_the_reference",
        ],
    ),
    (
        BrokenStoreFault::ForgetsStarts,
        &[
            "a_lapsed_run_that_is_not_safe_to_repeat_is_reported_as_unknown",
            "a_start_is_written_once_and_for_its_owner_only",
            "random_histories_match_the_reference",
        ],
    ),
    (BrokenStoreFault::CountsLooksAsDeliveries, &["an_undelivered_result_is_replayed"]),
    (
        BrokenStoreFault::IgnoresDeliveries,
        &[
            "a_delivered_result_does_not_affect_equal_arguments",
            "a_delivery_marks_only_the_result_with_its_receipt",
            "random_histories_match_the_reference",
        ],
    ),
    (
        BrokenStoreFault::IgnoresKnownDeliveries,
        &["a_delivery_that_is_not_in_the_store_counts", "random_histories_match_the_reference"],
    ),
    (
        BrokenStoreFault::SeesNoDoubleDispatch,
        &[
            "a_double_dispatch_is_one_call",
            "a_double_dispatch_through_another_process_is_one_call",
            "random_histories_match_the_reference",
        ],
    ),
    (BrokenStoreFault::IgnoresUnsavedAnswers, &["a_double_dispatch_is_one_call"]),
    (
        BrokenStoreFault::IgnoresOverlap,
        &["a_double_dispatch_is_one_call", "random_histories_match_the_reference"],
    ),
    (
        BrokenStoreFault::IgnoresAge,
        &["a_double_dispatch_through_another_process_is_one_call", "random_histories_match_the_reference"],
    ),
    (
        BrokenStoreFault::ReplaysEveryFailure,
        &["a_failure_is_replayed_according_to_the_rules", "random_histories_match_the_reference"],
    ),
    (BrokenStoreFault::RunsAfterUnknown, &["an_unknown_outcome_is_reported"]),
    (
        BrokenStoreFault::IgnoresVerifications,
        &["an_unknown_outcome_that_was_verified_runs_again", "random_histories_match_the_reference"],
    ),
    (
        BrokenStoreFault::TakesCutForOver,
        &[
            "an_attempt_that_may_still_take_effect_is_reported_as_pending",
            "an_attempt_of_a_dead_owner_settles_after_a_time",
            "an_owner_that_observed_the_end_overrides",
            "a_response_before_the_end_is_never_marked_as_delivered",
            "a_call_cannot_be_resolved_as_not_run_before_its_end",
            "random_histories_match_the_reference",
        ],
    ),
    (
        BrokenStoreFault::ForgetsWhenItEnds,
        &[
            "an_attempt_that_may_still_take_effect_is_reported_as_pending",
            "an_attempt_is_over_when_its_time_has_come",
            "a_call_cannot_be_resolved_as_not_run_before_its_end",
            "random_histories_match_the_reference",
        ],
    ),
    (
        BrokenStoreFault::ForgetsWhoSeesTheEnd,
        &[
            "an_attempt_settles_when_its_owner_would_have_observed_its_end",
            "random_histories_match_the_reference",
        ],
    ),
    (
        BrokenStoreFault::TakesGoneForOver,
        &[
            "a_lapsed_run_that_is_not_safe_to_repeat_is_reported_as_unknown",
            "an_attempt_of_a_dead_owner_settles_after_a_time",
            "random_histories_match_the_reference",
        ],
    ),
    (
        BrokenStoreFault::IgnoresArguments,
        &[
            "tr_4_the_same_key_with_other_arguments_is_a_conflict",
            "a_call_id_with_other_arguments_is_another_call",
            "random_histories_match_the_reference",
        ],
    ),
    (BrokenStoreFault::LooksWrite, &["a_lookup_writes_nothing", "random_histories_match_the_reference"]),
    (
        BrokenStoreFault::ForgetsIndex,
        &[
            "a_record_that_only_the_index_finds_is_replaced",
            "a_failed_dispatch_yields_to_an_equal_run",
            "sf_1_of_many_equal_calls_one_runs",
            "random_histories_match_the_reference",
        ],
    ),
    (BrokenStoreFault::TakesCallIdsForRuns, &["a_call_id_keeps_its_record_when_the_index_moves_on"]),
    (
        BrokenStoreFault::IgnoresOwner,
        &[
            "a_start_is_written_once_and_for_its_owner_only",
            "a_renewal_extends_the_lease_of_its_owner_only",
            "a_result_is_saved_under_the_fence",
            "a_release_affects_only_its_own_claim",
            "random_histories_match_the_reference",
        ],
    ),
    (
        BrokenStoreFault::RenewsAnything,
        &["a_renewal_brings_nothing_back", "random_histories_match_the_reference"],
    ),
    (
        BrokenStoreFault::SavesOver,
        &["a_save_that_is_repeated_changes_nothing", "random_histories_match_the_reference"],
    ),
    (
        BrokenStoreFault::TakesUnknownForFinal,
        &[
            "a_late_result_turns_unknown_into_done",
            "an_owner_that_observed_the_end_overrides",
            "random_histories_match_the_reference",
        ],
    ),
    (
        BrokenStoreFault::SavesOnlyWhatIsThere,
        &["a_save_that_finds_nothing_writes", "random_histories_match_the_reference"],
    ),
    (BrokenStoreFault::SavesOverTheIndex, &["a_save_that_finds_nothing_does_not_change_a_newer_index"]),
    (
        BrokenStoreFault::OwnersIgnoreTheIndex,
        &[
            "a_save_finds_its_run_through_the_index",
            "a_release_finds_its_run_through_the_index",
            "random_histories_match_the_reference",
        ],
    ),
    (BrokenStoreFault::DeliversAnything, &["a_delivery_marks_only_the_result_with_its_receipt"]),
    (
        BrokenStoreFault::MarksBeforeTheEnd,
        &["a_response_before_the_end_is_never_marked_as_delivered", "random_histories_match_the_reference"],
    ),
    (BrokenStoreFault::ForgetsWhatArrived, &["a_delivered_final_response_stays_delivered"]),
    (BrokenStoreFault::ResolvesAnything, &["an_operator_resolves_an_unknown_outcome"]),
    (
        BrokenStoreFault::ResolvesBeforeTheEnd,
        &["a_call_cannot_be_resolved_as_not_run_before_its_end", "random_histories_match_the_reference"],
    ),
    (BrokenStoreFault::NeverSettles, &["a_settled_record_is_not_waited_for"]),
    (
        BrokenStoreFault::LosesWakeUps,
        &[
            "a_follower_is_woken_by_every_end",
            "a_follower_of_another_handle_is_woken",
            "a_follower_is_woken_when_the_lease_ends",
            "every_follower_is_woken",
            "tr_2_many_callers_get_the_same_result",
        ],
    ),
    (
        BrokenStoreFault::KeepsForEver,
        &["expired_records_are_absent", "a_document_is_removed_when_it_expires"],
    ),
    (BrokenStoreFault::SweepsOpen, &["open_records_are_pinned", "an_unknown_outcome_under_hold_stays"]),
    (
        BrokenStoreFault::FlushesOpen,
        &["open_records_are_pinned", "a_flush_removes_the_finished_records_of_a_selection"],
    ),
    (
        BrokenStoreFault::ForgetsHold,
        &["an_unknown_outcome_under_hold_stays", "random_histories_match_the_reference"],
    ),
    (BrokenStoreFault::SweepsForEver, &["a_sweep_comes_to_an_end"]),
    (BrokenStoreFault::FlushesNothing, &["a_flush_of_a_key_removes_it_in_any_state"]),
    (
        BrokenStoreFault::IgnoresSelections,
        &["a_flush_removes_the_finished_records_of_a_selection", "records_come_in_pages"],
    ),
    (BrokenStoreFault::RepeatsPages, &["records_come_in_pages"]),
    (
        BrokenStoreFault::EvictsOpen,
        &["a_full_store_evicts_finished_records_only", "a_store_full_of_open_records_reports_it"],
    ),
    (
        BrokenStoreFault::HasNoBound,
        &["a_full_store_evicts_finished_records_only", "a_store_full_of_open_records_reports_it"],
    ),
    (
        BrokenStoreFault::LastWriterWins,
        &[
            "a_document_is_replaced_only_by_a_writer_that_has_read_it",
            "one_of_many_writers_of_a_document_wins",
        ],
    ),
    (BrokenStoreFault::ReusesVersions, &["a_version_is_never_given_twice"]),
    (BrokenStoreFault::MixesKinds, &["documents_are_listed_by_kind"]),
    (BrokenStoreFault::TellsNoNews, &["other_processes_get_an_event_for_a_document"]),
    (BrokenStoreFault::ReadsOldestFirst, &["a_journal_is_read_newest_first"]),
    (
        BrokenStoreFault::RepeatsEntries,
        &["a_journal_is_read_page_by_page", "filtering_a_journal_returns_the_position_to_continue"],
    ),
    (
        BrokenStoreFault::ForgetsWhereItWas,
        &["a_journal_is_read_page_by_page", "a_page_of_a_journal_continues_after_a_removed_position"],
    ),
    (
        BrokenStoreFault::JournalsGrow,
        &["a_journal_is_bounded_in_number", "a_journal_is_bounded_by_subject", "a_journal_is_bounded_in_age"],
    ),
    (BrokenStoreFault::MixesJournals, &["journals_are_apart"]),
    (
        BrokenStoreFault::DecidesOnAnEarlierLook,
        &[
            "sf_1_of_many_claimers_one_runs",
            "sf_1_of_many_equal_calls_one_runs",
            "sf_1_of_many_waiters_for_a_lapsed_run_one_takes_it_over",
            "tr_2_many_callers_get_the_same_result",
        ],
    ),
    (BrokenStoreFault::LocksAsItGoes, &["calls_that_cross_do_not_block_each_other"]),
];

#[test]
fn each_broken_store_fails_the_cases_that_watch_its_promise() {
    let mut undetected = Vec::new();
    for (fault, cases) in BROKEN {
        for name in *cases {
            let case =
                CASES.iter().find(|case| case.name == *name).unwrap_or_else(|| panic!("no case {name}"));
            if passes(case, *fault) {
                undetected.push((fault, name));
            }
        }
    }
    assert!(undetected.is_empty(), "these faults were not seen: {undetected:#?}");
}

#[test]
fn every_case_fails_for_some_broken_store_and_for_no_sound_one() {
    let watched: BTreeSet<&str> = BROKEN.iter().flat_map(|(_, cases)| cases.iter().copied()).collect();
    let unwatched: Vec<_> = CASES.iter().filter(|case| !watched.contains(case.name)).collect();
    assert!(unwatched.is_empty(), "no broken store fails {unwatched:?}");
    for case in CASES {
        assert!(passes(case, BrokenStoreFault::Nothing), "{} fails for a sound store", case.name);
    }
}

/// Returns true if a case passes for a store with this fault.
fn passes(case: &SuiteCase, fault: BrokenStoreFault) -> bool {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let mut fixture = super::memory_with(|options| Arc::new(BrokenStore::new(fault, options)));
    fixture.histories = 40;
    if fault == BrokenStoreFault::TellsNoNews {
        fixture.second = Some(Arc::clone(&fixture.store));
    }
    catch_unwind(AssertUnwindSafe(|| runtime.block_on((case.run)(fixture)))).is_ok()
}

/// Changes the settling time that an owner reports for its attempt.
fn settle(save: &mut SaveRequest, change: impl Fn(SettleDelay) -> SettleDelay) {
    if let RunOutcome::Unknown(unknown) = &mut save.ending {
        unknown.settles = change(unknown.settles);
    }
}

/// The memory store with one fault.
#[derive(Debug)]
struct BrokenStore {
    inner: MemoryStore,
    fault: BrokenStoreFault,
    most: usize,
    count: AtomicU64,
    /// The newest claim of each index.
    newest: Mutex<BTreeMap<RecordKey, RecordKey>>,
    /// Open records in the order of their claims.
    open: Mutex<Vec<RecordKey>>,
    versions: Mutex<BTreeMap<DocumentName, u64>>,
    locks: Mutex<BTreeMap<RecordKey, Arc<tokio::sync::Mutex<()>>>>,
}

/// Reports every process as alive.
#[derive(Debug)]
struct ImmortalProcesses;

impl ProcessMonitor for ImmortalProcesses {
    fn check_process(&self, _: &ProcessIdentity) -> LeaseOwnerState {
        LeaseOwnerState::Alive
    }
}

impl BrokenStore {
    fn new(fault: BrokenStoreFault, mut options: MemoryOptions) -> Self {
        let most = options.most;
        if fault == BrokenStoreFault::NobodyDies {
            options.sight = Arc::new(ImmortalProcesses);
        }
        if fault == BrokenStoreFault::HasNoBound {
            options.most = usize::MAX / 4;
        }
        Self {
            inner: MemoryStore::new(options),
            fault,
            most,
            count: AtomicU64::new(0),
            newest: Mutex::default(),
            open: Mutex::default(),
            versions: Mutex::default(),
            locks: Mutex::default(),
        }
    }

    fn is(&self, fault: BrokenStoreFault) -> bool {
        self.fault == fault
    }

    async fn found(&self, key: RecordKey) -> Option<DedupeRecord> {
        self.inner.record(key).await.unwrap()
    }

    async fn forget(&self, key: RecordKey) {
        self.inner.flush(&FlushTarget::Key(key)).await.unwrap();
    }

    /// Returns the owner of the current record, for any caller.
    async fn owner_of(&self, key: RecordKey, asking: &ClaimOwner) -> ClaimOwner {
        match self.found(key).await {
            Some(record) if self.is(BrokenStoreFault::IgnoresOwner) => record.owner,
            Some(_) | None => asking.clone(),
        }
    }

    fn keep(&self, keep: RecordLifetimes) -> RecordLifetimes {
        if self.is(BrokenStoreFault::KeepsForEver) {
            RecordLifetimes { done: LONG, failed: LONG, open: LONG, ..keep }
        } else {
            keep
        }
    }

    async fn altered(&self, claim: &Claim) -> Claim {
        let mut claim = claim.clone();
        claim.rules.keep = self.keep(claim.rules.keep);
        let number = self.count.fetch_add(1, Ordering::SeqCst);
        match self.fault {
            BrokenStoreFault::ChangesTokens => claim.owner.call += 1_000_000 * (number + 1),
            BrokenStoreFault::SeesNoDoubleDispatch => claim.rules.double_dispatch = false,
            BrokenStoreFault::IgnoresAge => claim.age = Duration::ZERO,
            BrokenStoreFault::ForgetsWhoSeesTheEnd => claim.end_observed_within = None,
            BrokenStoreFault::TakesGoneForOver => claim.rules.linger = Duration::ZERO,
            BrokenStoreFault::ReplaysEveryFailure => claim.rules.cache_failures = FailureReplayPolicy::All,
            BrokenStoreFault::RunsAfterUnknown => claim.rules.after_telling = Duration::ZERO,
            BrokenStoreFault::IgnoresArguments => {
                if let Some(record) = self.found(claim.address.own()).await {
                    claim.digest = record.digest;
                }
            }
            BrokenStoreFault::LooksWrite if claim.intent == ClaimIntent::Look => {
                claim.intent = ClaimIntent::Take { started: false }
            }
            BrokenStoreFault::ForgetsStarts if claim.intent != ClaimIntent::Look => {
                claim.intent = ClaimIntent::Take { started: false };
            }
            BrokenStoreFault::ForgetsIndex => {
                let index = RecordKey(Digest::of(&number.to_le_bytes()));
                claim.address = match claim.address {
                    RecordAddress::CallId { id, .. } => RecordAddress::CallId { id, index },
                    RecordAddress::Keyless { run, .. } => RecordAddress::Keyless { run, index },
                    RecordAddress::Explicit(key) => RecordAddress::Explicit(key),
                };
            }
            BrokenStoreFault::TakesCallIdsForRuns => {
                if let RecordAddress::CallId { id, index } = claim.address {
                    claim.address = RecordAddress::Keyless { run: id, index };
                }
            }
            _ => {}
        }
        claim
    }

    fn lock_of(&self, key: RecordKey) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(self.locks.lock().entry(key).or_default())
    }

    async fn claim_broken(&self, claim: &Claim, known: &LocalKnowledge) -> ClaimVerdict {
        let claim = self.altered(claim).await;
        let mut known = known.clone();
        match self.fault {
            BrokenStoreFault::IgnoresKnownDeliveries => known.delivered.clear(),
            BrokenStoreFault::IgnoresOverlap => known.overlapped.clear(),
            BrokenStoreFault::IgnoresUnsavedAnswers => known.answered_unsaved.clear(),
            BrokenStoreFault::IgnoresVerifications => known.verified.clear(),
            _ => {}
        }
        let known = &known;
        if self.is(BrokenStoreFault::EvictsOpen) && self.open.lock().len() >= self.most / 8 {
            let oldest = self.open.lock().remove(0);
            self.forget(oldest).await;
        }
        if self.is(BrokenStoreFault::DecidesOnAnEarlierLook) && claim.intent != ClaimIntent::Look {
            let lookup = Claim { intent: ClaimIntent::Look, ..claim.clone() };
            let verdict = self.inner.claim(&lookup, known).await.unwrap();
            tokio::task::yield_now().await;
            if verdict != ClaimVerdict::Nothing {
                return verdict;
            }
            self.forget(claim.address.own()).await;
            let newest = claim.address.index().and_then(|index| self.newest.lock().get(&index).copied());
            if let Some(newest) = newest {
                self.forget(newest).await;
            }
        }
        let verdict = self.inner.claim(&claim, known).await.unwrap();
        match &verdict {
            ClaimVerdict::Acquired(record) => {
                self.open.lock().push(record.key);
                if let Some(index) = record.index {
                    self.newest.lock().insert(index, record.key);
                }
                if self.is(BrokenStoreFault::ForgetsClaims) {
                    self.forget(record.key).await;
                }
            }
            ClaimVerdict::Replay(replay) if self.is(BrokenStoreFault::CountsLooksAsDeliveries) => {
                self.inner.delivered(&replay.receipt, self.inner.now().before(LONG)).await.unwrap();
            }
            _ => {}
        }
        verdict
    }

    async fn save_broken(&self, save: &SaveRequest) -> SaveVerdict {
        let mut save = save.clone();
        let key = save.claimed.key;
        save.keep = self.keep(save.keep);
        let owner = self.owner_of(key, &save.claimed.owner).await;
        Arc::make_mut(&mut save.claimed).owner = owner;
        let found = self.found(key).await;
        let is_unknown = found.as_ref().is_some_and(|record| matches!(record.state, DedupeState::Unknown(_)));
        match self.fault {
            BrokenStoreFault::SavesOver => self.forget(key).await,
            BrokenStoreFault::TakesUnknownForFinal if is_unknown => return SaveVerdict::FenceLost,
            BrokenStoreFault::SavesOnlyWhatIsThere if found.is_none() => return SaveVerdict::FenceLost,
            BrokenStoreFault::OwnersIgnoreTheIndex => Arc::make_mut(&mut save.claimed).index = None,
            BrokenStoreFault::ForgetsHold => save.hold = false,
            BrokenStoreFault::TakesCutForOver => settle(&mut save, |_| SettleDelay::Settled),
            BrokenStoreFault::ForgetsWhenItEnds => settle(&mut save, |settles| match settles {
                SettleDelay::After(_) => SettleDelay::WhenOwnerReports,
                SettleDelay::WhenOwnerReports | SettleDelay::Settled => settles,
            }),
            // Overwrites known facts.
            BrokenStoreFault::ForgetsWhatArrived if is_unknown => self.forget(key).await,
            BrokenStoreFault::SavesOverTheIndex if found.is_none() => {
                let newest = save.claimed.index.and_then(|index| self.newest.lock().get(&index).copied());
                if let Some(newest) = newest {
                    self.forget(newest).await;
                }
            }
            _ => {}
        }
        self.inner.save(&save).await.unwrap()
    }

    /// Removes all matching records, in any state.
    async fn forget_all(&self, selection: &RecordFilter) -> u64 {
        let page = RecordPage { after: None, limit: usize::MAX };
        let records = self.inner.records(selection, page).await.unwrap();
        for record in &records {
            self.forget(record.key).await;
        }
        records.len() as u64
    }

    async fn settle_broken(&self, key: RecordKey) {
        let in_flight = match self.found(key).await {
            Some(record) => record.state == DedupeState::Inflight && self.is(BrokenStoreFault::LosesWakeUps),
            None => false,
        };
        if in_flight || self.is(BrokenStoreFault::NeverSettles) {
            std::future::pending().await
        }
        self.inner.settled(key).await;
    }
}

impl StateStore for BrokenStore {
    fn kind(&self) -> &'static str {
        "broken"
    }

    fn now(&self) -> Timestamp {
        self.inner.now()
    }

    fn claim<'a>(&'a self, claim: &'a Claim, known: &'a LocalKnowledge) -> StoreFuture<'a, ClaimVerdict> {
        Box::pin(async move {
            if !self.is(BrokenStoreFault::LocksAsItGoes) {
                return Ok(self.claim_broken(claim, known).await);
            }
            let own = self.lock_of(claim.address.own());
            let _own = own.lock().await;
            tokio::task::yield_now().await;
            let newest = claim.address.index().and_then(|index| self.newest.lock().get(&index).copied());
            let other =
                newest.filter(|newest| *newest != claim.address.own()).map(|newest| self.lock_of(newest));
            let _other = match &other {
                Some(other) => Some(other.lock().await),
                None => None,
            };
            Ok(self.claim_broken(claim, known).await)
        })
    }

    fn start<'a>(&'a self, key: RecordKey, owner: &'a ClaimOwner) -> StoreFuture<'a, StartVerdict> {
        Box::pin(async move {
            if self.is(BrokenStoreFault::ForgetsStarts) {
                return Ok(StartVerdict::Started);
            }
            self.inner.start(key, &self.owner_of(key, owner).await).await
        })
    }

    fn renew<'a>(
        &'a self,
        claimed: &'a DedupeRecord,
        keep: &'a RecordLifetimes,
    ) -> StoreFuture<'a, RenewVerdict> {
        Box::pin(async move {
            if self.is(BrokenStoreFault::RenewsAnything) {
                return Ok(RenewVerdict::Renewed);
            }
            let owner = self.owner_of(claimed.key, &claimed.owner).await;
            self.inner.renew(&DedupeRecord { owner, ..claimed.clone() }, keep).await
        })
    }

    fn save<'a>(&'a self, save: &'a SaveRequest) -> StoreFuture<'a, SaveVerdict> {
        Box::pin(async move { Ok(self.save_broken(save).await) })
    }

    fn release<'a>(&'a self, release: &'a ReleaseRequest) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let owner = self.owner_of(release.key, &release.owner).await;
            let index = if self.is(BrokenStoreFault::OwnersIgnoreTheIndex) { None } else { release.index };
            self.inner.release(&ReleaseRequest { key: release.key, index, owner }).await
        })
    }

    fn delivered<'a>(&'a self, receipt: &'a DeliveryReceipt, at: Timestamp) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            match self.found(receipt.key).await {
                _ if self.is(BrokenStoreFault::IgnoresDeliveries) => Ok(()),
                Some(_) if self.is(BrokenStoreFault::MarksBeforeTheEnd) => {
                    self.inner.delivered(receipt, at + LONG).await
                }
                Some(record) if self.is(BrokenStoreFault::DeliversAnything) => {
                    self.inner.delivered(&record.receipt(), at).await
                }
                Some(_) | None => self.inner.delivered(receipt, at).await,
            }
        })
    }

    fn resolve<'a>(
        &'a self,
        resolve: &'a ResolutionRequest,
        rules: &'a DedupeRules,
    ) -> StoreFuture<'a, ResolveVerdict> {
        Box::pin(async move {
            let verdict = self.inner.resolve(resolve, rules).await?;
            match verdict {
                ResolveVerdict::NotSettled(_) if self.is(BrokenStoreFault::ResolvesBeforeTheEnd) => {
                    self.forget(resolve.key).await;
                    Ok(ResolveVerdict::Resolved)
                }
                _ if self.is(BrokenStoreFault::ResolvesAnything) => Ok(ResolveVerdict::Resolved),
                verdict => Ok(verdict),
            }
        })
    }

    fn mark_abandoned<'a>(
        &'a self,
        key: RecordKey,
        rules: &'a DedupeRules,
    ) -> StoreFuture<'a, Option<DedupeRecord>> {
        self.inner.mark_abandoned(key, rules)
    }

    fn settled<'a>(&'a self, key: RecordKey) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(self.settle_broken(key))
    }

    fn record(&self, key: RecordKey) -> StoreFuture<'_, Option<DedupeRecord>> {
        self.inner.record(key)
    }

    fn records<'a>(
        &'a self,
        selection: &'a RecordFilter,
        page: RecordPage,
    ) -> StoreFuture<'a, Vec<DedupeRecord>> {
        Box::pin(async move {
            let page = if self.is(BrokenStoreFault::RepeatsPages) {
                RecordPage { after: None, ..page }
            } else {
                page
            };
            let everything = RecordFilter::default();
            let selection =
                if self.is(BrokenStoreFault::IgnoresSelections) { &everything } else { selection };
            self.inner.records(selection, page).await
        })
    }

    fn flush<'a>(&'a self, flush: &'a FlushTarget) -> StoreFuture<'a, u64> {
        Box::pin(async move {
            match flush {
                FlushTarget::Key(_) if self.is(BrokenStoreFault::FlushesNothing) => Ok(0),
                FlushTarget::Finished(selection) if self.is(BrokenStoreFault::FlushesOpen) => {
                    Ok(self.forget_all(selection).await)
                }
                FlushTarget::Finished(_) if self.is(BrokenStoreFault::IgnoresSelections) => {
                    self.inner.flush(&FlushTarget::Finished(RecordFilter::default())).await
                }
                FlushTarget::Key(_) | FlushTarget::Finished(_) => self.inner.flush(flush).await,
            }
        })
    }

    fn sweep(&self) -> StoreFuture<'_, SweepResult> {
        Box::pin(async move {
            if self.is(BrokenStoreFault::SweepsOpen) {
                self.forget_all(&RecordFilter { open: true, ..RecordFilter::default() }).await;
            }
            let swept = self.inner.sweep().await?;
            Ok(SweepResult { more: swept.more || self.is(BrokenStoreFault::SweepsForEver), ..swept })
        })
    }

    fn read<'a>(&'a self, name: &'a DocumentName) -> StoreFuture<'a, Option<Document>> {
        Box::pin(async move {
            let document = self.inner.read(name).await?;
            Ok(document.map(|document| self.numbered(name, document)))
        })
    }

    fn write<'a>(
        &'a self,
        name: &'a DocumentName,
        write: DocumentWrite,
    ) -> StoreFuture<'a, DocumentWriteOutcome> {
        Box::pin(async move {
            let mut write = write;
            if self.is(BrokenStoreFault::KeepsForEver) {
                write.expires = None;
            }
            if self.is(BrokenStoreFault::LastWriterWins) {
                write.replaces = self.inner.read(name).await?.map(|document| document.version);
            }
            if !self.is(BrokenStoreFault::ReusesVersions) {
                return self.inner.write(name, write).await;
            }
            let found = self.inner.read(name).await?;
            let numbered = found.clone().map(|document| self.numbered(name, document));
            if numbered.as_ref().map(|document| document.version) != write.replaces {
                return Ok(DocumentWriteOutcome::Stale(numbered));
            }
            // Counts from one for every document, and restarts after a removal.
            let version = write.replaces.unwrap_or(0) + 1;
            self.versions.lock().insert(name.clone(), version);
            let replaces = found.map(|document| document.version);
            self.inner.write(name, DocumentWrite { replaces, ..write }).await?;
            Ok(DocumentWriteOutcome::Written(version))
        })
    }

    fn documents(&self, kind: DocumentKind) -> StoreFuture<'_, Vec<(DocumentName, Document)>> {
        Box::pin(async move {
            let mut documents = self.inner.documents(kind).await?;
            if self.is(BrokenStoreFault::MixesKinds) {
                documents.extend(self.inner.documents(DocumentKind::Trust).await?);
            }
            Ok(documents)
        })
    }

    fn append<'a>(
        &'a self,
        journal: Journal,
        entries: &'a [JournalEntry],
        keep: JournalLimits,
    ) -> StoreFuture<'a, ()> {
        let endless = JournalLimits { most: u64::MAX, most_per_subject: None, age: LONG };
        let keep = if self.is(BrokenStoreFault::JournalsGrow) { endless } else { keep };
        let journal = if self.is(BrokenStoreFault::MixesJournals) { Journal::History } else { journal };
        self.inner.append(journal, entries, keep)
    }

    fn entries<'a>(
        &'a self,
        query: &'a JournalQuery,
    ) -> StoreFuture<'a, Vec<(JournalPosition, JournalEntry)>> {
        Box::pin(async move {
            let mut query = query.clone();
            if self.is(BrokenStoreFault::MixesJournals) {
                query.journal = Journal::History;
            }
            if let Some(JournalPosition(number, _)) =
                query.before.as_mut().filter(|_| self.is(BrokenStoreFault::RepeatsEntries))
            {
                *number += 1;
            }
            let mut entries = self.inner.entries(&query).await?;
            if self.is(BrokenStoreFault::ForgetsWhereItWas) {
                for (JournalPosition(number, _), entry) in &mut entries {
                    *number = entry.at.as_millis();
                }
            }
            if self.is(BrokenStoreFault::ReadsOldestFirst) {
                entries.reverse();
            }
            Ok(entries)
        })
    }

    fn events(&self) -> broadcast::Receiver<StoreEvent> {
        self.inner.events()
    }
}

impl BrokenStore {
    /// Returns the document with the version of a store that restarts its count after a removal.
    fn numbered(&self, name: &DocumentName, document: Document) -> Document {
        match self.versions.lock().get(name) {
            Some(version) if self.is(BrokenStoreFault::ReusesVersions) => {
                Document { version: *version, ..document }
            }
            Some(_) | None => document,
        }
    }
}
