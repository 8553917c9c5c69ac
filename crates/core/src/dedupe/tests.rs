//! Tests of the tables. Each row has one test with every column.

use std::sync::Arc;
use std::time::Duration;

use steadfast_json::RawJson;

use super::*;
use crate::Timestamp;
use crate::code::Code;
use crate::id::{Digest, Namespace, RequestId, RunId, ToolName, ToolRef};
use crate::key::RecordKey;
use crate::output::ToolOutput;
use crate::policy::{
    CallPolicy, DedupePolicy, FailureReplayPolicy, PolicyProfile, ToolClass, UnknownOutcomePolicy,
};

mod several_records;
mod written_fields;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);
const SECOND: Duration = Duration::from_secs(1);

fn key(name: &str) -> RecordKey {
    RecordKey(Digest::of(name.as_bytes()))
}

fn owner(call: u64) -> ClaimOwner {
    ClaimOwner { process: ProcessIdentity { boot: "boot".into(), pid: 1, started: 1 }, call, claim: 1 }
}

fn tool() -> ToolRef {
    ToolRef { namespace: Namespace::new("bank").unwrap(), tool: ToolName::new("pay").unwrap() }
}

fn output() -> ToolOutput {
    ToolOutput { content: RawJson::string("paid"), metadata: None }
}

/// Returns an unknown outcome that can no longer take effect.
fn settled() -> DedupeState {
    DedupeState::Unknown(UnknownOutcome::settled(UnknownOutcomeReason::NoAnswer))
}

/// Returns an unknown outcome that settles at this time.
fn settles(settles: SettleTime) -> DedupeState {
    DedupeState::Unknown(UnknownOutcome {
        settles,
        ..UnknownOutcome::settled(UnknownOutcomeReason::NoAnswer)
    })
}

fn unknown_ending() -> RunOutcome {
    RunOutcome::Unknown(UnknownOutcomeReport::settled(UnknownOutcomeReason::NoAnswer))
}

fn policy() -> CallPolicy {
    PolicyProfile::Standard.policy(ToolClass::Mutating)
}

fn failure(terminal: bool) -> CallFailure {
    CallFailure {
        code: Code::ToolError,
        message: "no".into(),
        retriable: !terminal,
        terminal,
        rule: None,
        verify: None,
        retry_after: None,
        output: None,
    }
}

/// The four columns of the claim table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaimTestColumn {
    Explicit,
    CallId,
    Equal,
    Waiter,
}

const COLUMNS: [ClaimTestColumn; 4] =
    [ClaimTestColumn::Explicit, ClaimTestColumn::CallId, ClaimTestColumn::Equal, ClaimTestColumn::Waiter];

fn claim(column: ClaimTestColumn) -> Claim {
    let (address, role) = match column {
        ClaimTestColumn::Explicit => (RecordAddress::Explicit(key("k")), ClaimRole::Fresh),
        ClaimTestColumn::CallId => {
            (RecordAddress::CallId { id: key("k"), index: key("i") }, ClaimRole::Fresh)
        }
        ClaimTestColumn::Equal => {
            (RecordAddress::Keyless { run: key("new"), index: key("i") }, ClaimRole::Fresh)
        }
        ClaimTestColumn::Waiter => (
            RecordAddress::Keyless { run: key("new"), index: key("i") },
            ClaimRole::Waiter { followed: key("k") },
        ),
    };
    Claim {
        address,
        intent: ClaimIntent::Take { started: true },
        role,
        owner: owner(2),
        digest: Digest::of(b"arguments"),
        retry_safe: false,
        best_effort: false,
        arrived: NOW,
        age: Duration::ZERO,
        end_observed_within: None,
        run: RunId("run-2".into()),
        rules: DedupeRules::from(&policy()),
        tool: tool(),
        request: RequestId::new("second").unwrap(),
        tool_call: None,
        context: None,
        session: None,
        actor: None,
        tenant: None,
    }
}

/// Returns a record of another owner, one minute old, that is found through the column.
fn record(column: ClaimTestColumn, state: DedupeState) -> DedupeRecord {
    let long_ago = NOW.before(60 * SECOND);
    DedupeRecord {
        key: key("k"),
        origin: match column {
            ClaimTestColumn::Explicit => RecordOrigin::Explicit,
            ClaimTestColumn::CallId => RecordOrigin::CallId,
            ClaimTestColumn::Equal | ClaimTestColumn::Waiter => RecordOrigin::Run,
        },
        index: (column != ClaimTestColumn::Explicit).then(|| key("i")),
        call_id: (column == ClaimTestColumn::CallId).then(|| key("k")),
        tool: tool(),
        state,
        owner: owner(1),
        started: true,
        retry_safe: false,
        digest: Digest::of(b"arguments"),
        run: RunId("run-1".into()),
        lease: Lease::Until(NOW + SECOND),
        end_observed_by: None,
        delivered: None,
        version: 7,
        arrived: long_ago,
        created: long_ago,
        updated: long_ago,
        expires: Some(NOW + 3600 * SECOND),
        request: RequestId::new("first").unwrap(),
        tool_call: None,
        context: None,
        session: None,
        actor: None,
        tenant: None,
        attempts: Vec::new(),
    }
}

fn decide(
    column: ClaimTestColumn,
    claim: &Claim,
    record: Option<&DedupeRecord>,
    sight: LeaseOwnerState,
) -> ClaimDecision {
    let found_record = record.map(|record| (record, sight));
    let found = match column {
        ClaimTestColumn::Explicit | ClaimTestColumn::CallId => {
            FoundRecords { own: found_record, ..FoundRecords::default() }
        }
        ClaimTestColumn::Equal => FoundRecords { indexed: found_record, ..FoundRecords::default() },
        ClaimTestColumn::Waiter => FoundRecords { followed: found_record, indexed: found_record, own: None },
    };
    decide_claim(claim, found, &LocalKnowledge::default(), NOW)
}

fn verdict(column: ClaimTestColumn, record: &DedupeRecord) -> &'static str {
    name(&decide(column, &claim(column), Some(record), LeaseOwnerState::Time))
}

fn name(decision: &ClaimDecision) -> &'static str {
    match &decision.verdict {
        ClaimVerdict::Acquired(_) => "mine",
        ClaimVerdict::Follow(_) => "follow",
        ClaimVerdict::Busy => "busy",
        ClaimVerdict::Replay(replay) => match replay.reason {
            ReplayReason::SameKey => "replay",
            ReplayReason::Undelivered => "replay undelivered",
            ReplayReason::DoubleDispatch => "replay double dispatch",
            ReplayReason::Waited => "answer",
        },
        ClaimVerdict::Unknown(unknown) => match unknown.end {
            SettleStatus::Settled => "tell",
            SettleStatus::NotYet(_) => "not yet",
        },
        ClaimVerdict::Conflict => "conflict",
        ClaimVerdict::Nothing => "nothing",
        ClaimVerdict::Full => "full",
        ClaimVerdict::StoreRecovering => "closed",
        ClaimVerdict::RecordsLost => "records lost",
    }
}

/// Returns one verdict per column, in the order of the table.
fn row(make: impl Fn(ClaimTestColumn) -> DedupeRecord) -> [&'static str; 4] {
    COLUMNS.map(|column| verdict(column, &make(column)))
}

#[test]
fn nothing_found_is_acquired_in_every_column() {
    for column in COLUMNS {
        let decision = decide(column, &claim(column), None, LeaseOwnerState::Time);
        let ClaimVerdict::Acquired(record) = &decision.verdict else { panic!("{column:?}: {decision:?}") };
        assert_eq!(record.owner, owner(2));
        assert_eq!(record.run, RunId("run-2".into()));
        assert!(record.started && record.delivered.is_none());
        assert!(
            matches!(&decision.write, RecordWrite::Put { record: written, index: IndexUpdate::Point, remove } if written == record && remove.is_empty())
        );
    }
}

#[test]
fn an_expired_record_is_nothing() {
    let expired =
        |column| DedupeRecord { expires: Some(NOW), ..record(column, DedupeState::Done(Some(output()))) };
    assert_eq!(row(expired), ["mine"; 4]);
}

#[test]
fn own_token_in_flight_is_acquired_again() {
    let own = |column| DedupeRecord { owner: owner(2), ..record(column, DedupeState::Inflight) };
    assert_eq!(row(own), ["mine"; 4]);
    for column in COLUMNS {
        let decision = decide(column, &claim(column), Some(&own(column)), LeaseOwnerState::Time);
        let ClaimVerdict::Acquired(again) = decision.verdict else { panic!("{column:?}") };
        assert_eq!(again.state, DedupeState::Inflight);
        assert!(again.started, "what was started stays started");
    }
    // A caller that received the final response may have acted on it.
    let delivered = |column| DedupeRecord { owner: owner(2), ..record(column, settled()) };
    assert_eq!(row(delivered), ["tell"; 4]);
}

#[test]
fn in_flight_with_a_valid_lease_is_waited_for() {
    assert_eq!(row(|column| record(column, DedupeState::Inflight)), ["follow"; 4]);
    let best_effort = Claim { best_effort: true, ..claim(ClaimTestColumn::Explicit) };
    let found = record(ClaimTestColumn::Explicit, DedupeState::Inflight);
    assert_eq!(
        name(&decide(ClaimTestColumn::Explicit, &best_effort, Some(&found), LeaseOwnerState::Time)),
        "busy"
    );
}

#[test]
fn the_lease_ends_with_the_process_on_one_machine_and_with_time_on_others() {
    let found = DedupeRecord { started: false, ..record(ClaimTestColumn::Explicit, DedupeState::Inflight) };
    let lapsed = DedupeRecord { lease: Lease::Until(NOW), ..found.clone() };
    let unlimited = DedupeRecord { lease: Lease::Record, ..found.clone() };
    for (record, sight, expected) in [
        (&found, LeaseOwnerState::Time, "follow"),
        (&found, LeaseOwnerState::Gone, "mine"),
        (&lapsed, LeaseOwnerState::Time, "mine"),
        (&lapsed, LeaseOwnerState::Alive, "follow"),
        (&unlimited, LeaseOwnerState::Time, "follow"),
        (&unlimited, LeaseOwnerState::Gone, "mine"),
    ] {
        assert_eq!(
            name(&decide(ClaimTestColumn::Explicit, &claim(ClaimTestColumn::Explicit), Some(record), sight)),
            expected
        );
    }
}

#[test]
fn a_lapsed_claim_that_was_not_started_is_mine() {
    let lapsed = |column| DedupeRecord {
        lease: Lease::Until(NOW),
        started: false,
        ..record(column, DedupeState::Inflight)
    };
    assert_eq!(row(lapsed), ["mine"; 4]);
}

#[test]
fn a_lapsed_run_that_is_safe_to_repeat_is_taken_over_under_its_run_id() {
    let lapsed = |column| DedupeRecord {
        lease: Lease::Until(NOW),
        retry_safe: true,
        ..record(column, DedupeState::Inflight)
    };
    assert_eq!(row(lapsed), ["mine"; 4]);
    for column in COLUMNS {
        let decision = decide(column, &claim(column), Some(&lapsed(column)), LeaseOwnerState::Time);
        let ClaimVerdict::Acquired(taken) = decision.verdict else { panic!("{column:?}") };
        assert_eq!(taken.run, RunId("run-1".into()), "the tool must be able to recognise the run");
        assert_eq!(
            (taken.key, taken.version),
            (key("k"), 8),
            "in place, so that its late owner meets the fence"
        );
    }
}

#[test]
fn a_lapsed_run_that_is_not_safe_to_repeat_becomes_unknown_and_is_reported() {
    let lapsed = |column| DedupeRecord { lease: Lease::Until(NOW), ..record(column, DedupeState::Inflight) };
    assert_eq!(row(lapsed), ["not yet"; 4]);
    let linger = policy().settling.linger;
    for column in COLUMNS {
        let decision = decide(column, &claim(column), Some(&lapsed(column)), LeaseOwnerState::Time);
        let RecordWrite::Put { record: written, index: IndexUpdate::Keep, .. } = decision.write else {
            panic!()
        };
        let DedupeState::Unknown(unknown) = &written.state else { panic!("{written:?}") };
        assert_eq!(
            (unknown.settles, unknown.observed),
            (SettleTime::By(NOW + linger), UnknownOutcomeReason::NoAnswer)
        );
        assert_eq!(written.owner, owner(1), "its late answer must still count");
        let ClaimVerdict::Unknown(unknown) = decision.verdict else { panic!("{column:?}") };
        assert_eq!((unknown.end, unknown.receipt), (SettleStatus::NotYet(Some(linger)), written.receipt()));
    }
}

#[test]
fn a_run_whose_owner_saw_its_end_is_settled_by_the_leash_or_by_the_limit_of_its_claim() {
    let lapsed = DedupeRecord {
        lease: Lease::Until(NOW),
        end_observed_by: Some(NOW + 90 * SECOND),
        ..record(ClaimTestColumn::Equal, DedupeState::Inflight)
    };
    let by = |record: &DedupeRecord, sight, settle| {
        let mut claim = claim(ClaimTestColumn::Equal);
        claim.rules.settle = settle;
        let decision = decide(ClaimTestColumn::Equal, &claim, Some(record), sight);
        let RecordWrite::Put { record: written, .. } = decision.write else { panic!("{decision:?}") };
        let DedupeState::Unknown(unknown) = &written.state else { panic!("{written:?}") };
        unknown.settles
    };
    let zero = Duration::ZERO;
    assert_eq!(
        by(&lapsed, LeaseOwnerState::Gone, zero),
        SettleTime::By(NOW + 5 * SECOND),
        "its leash ends it"
    );
    assert_eq!(
        by(&lapsed, LeaseOwnerState::Gone, 5 * SECOND),
        SettleTime::By(NOW + 10 * SECOND),
        "it may have handed work on"
    );
    assert_eq!(
        by(&lapsed, LeaseOwnerState::Time, zero),
        SettleTime::By(NOW + 90 * SECOND),
        "its owner may live"
    );
    // The same if the owner had recorded the unknown outcome and is gone before it observed the end.
    let unreported = DedupeRecord { state: settles(SettleTime::WhenOwnerReports), ..lapsed };
    assert_eq!(by(&unreported, LeaseOwnerState::Gone, zero), SettleTime::By(NOW + 5 * SECOND));
    assert_eq!(by(&unreported, LeaseOwnerState::Time, zero), SettleTime::By(NOW + 90 * SECOND));
    let decision = decide(
        ClaimTestColumn::Equal,
        &claim(ClaimTestColumn::Equal),
        Some(&unreported),
        LeaseOwnerState::Alive,
    );
    assert_eq!(
        (name(&decision), &decision.write),
        ("not yet", &RecordWrite::Nothing),
        "its owner lives, and will say"
    );
}

#[test]
fn nothing_counts_before_the_end() {
    let delivered_early = |column| DedupeRecord {
        delivered: Some(NOW.before(3600 * SECOND)),
        ..record(column, settles(SettleTime::By(NOW + SECOND)))
    };
    assert_eq!(row(delivered_early), ["not yet"; 4]);
    let delivered_early = |column| DedupeRecord { lease: Lease::Record, ..delivered_early(column) };
    let unreported =
        |column| DedupeRecord { state: settles(SettleTime::WhenOwnerReports), ..delivered_early(column) };
    assert_eq!(row(unreported), ["not yet"; 4]);
    let looked = LocalKnowledge { verified: vec![owner(1)], ..LocalKnowledge::default() };
    let early = delivered_early(ClaimTestColumn::Equal);
    let found = FoundRecords { indexed: Some((&early, LeaseOwnerState::Time)), ..FoundRecords::default() };
    assert_eq!(name(&decide_claim(&claim(ClaimTestColumn::Equal), found, &looked, NOW)), "not yet");
    // From the announced time on, the attempt counts as settled although that is not written.
    let over = |column| record(column, settles(SettleTime::By(NOW)));
    assert_eq!(row(over), ["tell"; 4]);
}

#[test]
fn a_caller_that_verified_after_the_final_response_may_call_again() {
    let looked = LocalKnowledge { verified: vec![owner(1)], ..LocalKnowledge::default() };
    let with = |record: &DedupeRecord, known: &LocalKnowledge| {
        let found =
            FoundRecords { indexed: Some((record, LeaseOwnerState::Time)), ..FoundRecords::default() };
        name(&decide_claim(&claim(ClaimTestColumn::Equal), found, known, NOW))
    };
    let delivered = DedupeRecord { delivered: Some(NOW), ..record(ClaimTestColumn::Equal, settled()) };
    assert_eq!(with(&delivered, &LocalKnowledge::default()), "tell");
    assert_eq!(with(&delivered, &looked), "mine");
    let another = LocalKnowledge { verified: vec![owner(3)], ..LocalKnowledge::default() };
    assert_eq!(with(&delivered, &another), "tell", "it looked into another run");
    let undelivered = DedupeRecord { delivered: None, ..delivered.clone() };
    assert_eq!(with(&undelivered, &looked), "tell", "nobody has heard of it");
    for column in [ClaimTestColumn::Explicit, ClaimTestColumn::CallId, ClaimTestColumn::Waiter] {
        let delivered = DedupeRecord { delivered: Some(NOW), ..record(column, settled()) };
        let found_record = Some((&delivered, LeaseOwnerState::Time));
        let found = match column {
            ClaimTestColumn::Waiter => FoundRecords { followed: found_record, ..FoundRecords::default() },
            ClaimTestColumn::Explicit | ClaimTestColumn::CallId | ClaimTestColumn::Equal => {
                FoundRecords { own: found_record, ..FoundRecords::default() }
            }
        };
        assert_eq!(name(&decide_claim(&claim(column), found, &looked, NOW)), "tell", "{column:?}");
    }
}

#[test]
fn a_response_contains_the_time_of_the_next_run() {
    let runs_in = |column, record: &DedupeRecord| {
        let decision = decide(column, &claim(column), Some(record), LeaseOwnerState::Time);
        let ClaimVerdict::Unknown(unknown) = decision.verdict else { panic!("{decision:?}") };
        unknown.runs_in
    };
    let unknown = record(ClaimTestColumn::Equal, settled());
    assert_eq!(runs_in(ClaimTestColumn::Equal, &unknown), Some(10 * SECOND));
    let delivered = DedupeRecord { delivered: Some(NOW.before(4 * SECOND)), ..unknown.clone() };
    assert_eq!(runs_in(ClaimTestColumn::Equal, &delivered), Some(6 * SECOND), "what is left of it");
    let held_record = DedupeRecord { expires: None, ..delivered };
    assert_eq!(runs_in(ClaimTestColumn::Equal, &held_record), None, "somebody has to resolve it");
    assert_eq!(runs_in(ClaimTestColumn::Explicit, &record(ClaimTestColumn::Explicit, settled())), None);
}

#[test]
fn done_and_not_delivered_is_replayed() {
    let done = |column| record(column, DedupeState::Done(Some(output())));
    assert_eq!(row(done), ["replay", "replay", "replay undelivered", "answer"]);
    let old = |column| DedupeRecord { updated: NOW.before(600 * SECOND), ..done(column) };
    assert_eq!(row(old), ["replay", "replay", "mine", "answer"], "equal arguments wait ten minutes at most");
}

#[test]
fn done_and_delivered_is_history_for_equal_arguments() {
    let done = |column| DedupeRecord {
        delivered: Some(NOW.before(SECOND)),
        ..record(column, DedupeState::Done(Some(output())))
    };
    assert_eq!(row(done), ["replay", "replay", "mine", "answer"]);
}

/// Returns the verdict for a call that arrived while this or another process sent the response to an equal one.
fn overlapping(claim: &Claim, record: &DedupeRecord, overlapped: &[ClaimOwner]) -> &'static str {
    let known = LocalKnowledge { overlapped: overlapped.to_vec(), ..LocalKnowledge::default() };
    let found = FoundRecords { indexed: Some((record, LeaseOwnerState::Time)), ..FoundRecords::default() };
    name(&decide_claim(claim, found, &known, NOW))
}

#[test]
fn a_call_before_the_response_to_an_equal_one_is_a_duplicate() {
    let answered = |process: u32| {
        let mut record = record(ClaimTestColumn::Equal, DedupeState::Done(Some(output())));
        record.owner.process.pid = process;
        DedupeRecord { delivered: Some(NOW), updated: NOW.before(10 * SECOND), ..record }
    };
    let (here, elsewhere) = (answered(1), answered(2));
    let second = claim(ClaimTestColumn::Equal);
    assert_eq!(overlapping(&second, &here, &[]), "mine", "it came after the answer, however soon");
    assert_eq!(overlapping(&second, &here, std::slice::from_ref(&here.owner)), "replay double dispatch");
    // The response was sent before it could be saved, and the call arrived in between.
    let old = Claim { age: 3600 * SECOND, ..second.clone() };
    let answered = LocalKnowledge { answered_unsaved: vec![here.owner.clone()], ..LocalKnowledge::default() };
    let found = FoundRecords { indexed: Some((&here, LeaseOwnerState::Time)), ..FoundRecords::default() };
    assert_eq!(name(&decide_claim(&old, found, &answered, NOW)), "mine");
    // This process ran the call, and another one sent the response because the client here was gone.
    assert_eq!(overlapping(&old, &here, &[]), "replay double dispatch");
    // For another process only the ages can be compared, both by the clock of the store.
    assert_eq!(overlapping(&second, &elsewhere, &[]), "mine");
    let before = Claim { age: 10 * SECOND + Duration::from_millis(1), ..second.clone() };
    assert_eq!(overlapping(&before, &elsewhere, &[]), "replay double dispatch");
    let after = Claim { age: 10 * SECOND, ..second };
    assert_eq!(overlapping(&after, &elsewhere, &[]), "mine");
    let mut off = before;
    off.rules.double_dispatch = false;
    assert_eq!(overlapping(&off, &elsewhere, &[]), "mine");
}

#[test]
fn two_different_call_ids_are_not_a_double_dispatch() {
    let done = DedupeRecord {
        delivered: Some(NOW),
        arrived: NOW,
        origin: RecordOrigin::CallId,
        call_id: Some(key("first id")),
        ..record(ClaimTestColumn::Equal, DedupeState::Done(Some(output())))
    };
    let mut second = claim(ClaimTestColumn::Equal);
    second.address = RecordAddress::CallId { id: key("second id"), index: key("i") };
    let overlapped = [done.owner.clone()];
    assert_eq!(overlapping(&second, &done, &overlapped), "mine");
    let one_id = DedupeRecord { call_id: None, ..done };
    assert_eq!(overlapping(&second, &one_id, &overlapped), "replay double dispatch");
}

#[test]
fn a_delivery_known_to_this_process_counts_before_it_is_stored() {
    let done = record(ClaimTestColumn::Equal, DedupeState::Done(Some(output())));
    let found = FoundRecords { indexed: Some((&done, LeaseOwnerState::Time)), ..FoundRecords::default() };
    let with = |receipt| {
        let known = LocalKnowledge { delivered: vec![(receipt, NOW)], ..LocalKnowledge::default() };
        name(&decide_claim(&claim(ClaimTestColumn::Equal), found, &known, NOW))
    };
    assert_eq!(with(done.receipt()), "mine");
    assert_eq!(with(DeliveryReceipt { version: 6, ..done.receipt() }), "replay undelivered");
}

#[test]
fn failed_is_replayed_by_policy_to_explicit_keys_and_always_to_waiters() {
    let expected = [
        (FailureReplayPolicy::Terminal, true, "replay"),
        (FailureReplayPolicy::Terminal, false, "mine"),
        (FailureReplayPolicy::All, true, "replay"),
        (FailureReplayPolicy::All, false, "replay"),
        (FailureReplayPolicy::None, true, "mine"),
        (FailureReplayPolicy::None, false, "mine"),
    ];
    for (cache_failures, terminal, explicit) in expected {
        let verdicts = COLUMNS.map(|column| {
            let mut claim = claim(column);
            claim.rules.cache_failures = cache_failures;
            let failed = record(column, DedupeState::Failed(failure(terminal)));
            name(&decide(column, &claim, Some(&failed), LeaseOwnerState::Time))
        });
        assert_eq!(
            verdicts,
            [explicit, "mine", "mine", "answer"],
            "{cache_failures:?}, terminal: {terminal}"
        );
    }
    let mut best_effort = Claim { best_effort: true, ..claim(ClaimTestColumn::Explicit) };
    best_effort.rules.cache_failures = FailureReplayPolicy::All;
    let failed = record(ClaimTestColumn::Explicit, DedupeState::Failed(failure(false)));
    assert_eq!(
        name(&decide(ClaimTestColumn::Explicit, &best_effort, Some(&failed), LeaseOwnerState::Time)),
        "mine"
    );
}

#[test]
fn unknown_is_reported_until_delivered_and_ten_seconds_longer() {
    let unknown = |column| record(column, settled());
    assert_eq!(row(unknown), ["tell"; 4]);
    let just_delivered = |column| DedupeRecord { delivered: Some(NOW.before(9 * SECOND)), ..unknown(column) };
    assert_eq!(row(just_delivered), ["tell"; 4]);
    let delivered = |column| DedupeRecord { delivered: Some(NOW.before(10 * SECOND)), ..unknown(column) };
    assert_eq!(row(delivered), ["tell", "tell", "mine", "tell"]);
    let mut hold = claim(ClaimTestColumn::Equal);
    hold.rules.after_unknown = UnknownOutcomePolicy::Hold;
    assert_eq!(
        name(&decide(
            ClaimTestColumn::Equal,
            &hold,
            Some(&delivered(ClaimTestColumn::Equal)),
            LeaseOwnerState::Time
        )),
        "tell"
    );
}

#[test]
fn a_cancelled_record_is_never_replayed() {
    assert_eq!(row(|column| record(column, DedupeState::Cancelled)), ["mine"; 4]);
}

#[test]
fn an_explicit_key_with_other_arguments_conflicts_in_every_state_for_waiters_too() {
    let states = [
        DedupeState::Inflight,
        DedupeState::Done(Some(output())),
        DedupeState::Failed(failure(true)),
        settled(),
        DedupeState::Cancelled,
    ];
    for state in states {
        for role in [ClaimRole::Fresh, ClaimRole::Waiter { followed: key("k") }] {
            let other = Claim { digest: Digest::of(b"other"), role, ..claim(ClaimTestColumn::Explicit) };
            let found = record(ClaimTestColumn::Explicit, state.clone());
            let decision = decide(ClaimTestColumn::Explicit, &other, Some(&found), LeaseOwnerState::Gone);
            assert_eq!(
                decision,
                DedupeDecision { verdict: ClaimVerdict::Conflict, write: RecordWrite::Nothing }
            );
        }
    }
    let other = Claim { digest: Digest::of(b"other"), ..claim(ClaimTestColumn::CallId) };
    let found = record(ClaimTestColumn::CallId, DedupeState::Done(Some(output())));
    let decision = decide(ClaimTestColumn::CallId, &other, Some(&found), LeaseOwnerState::Time);
    assert_eq!(name(&decision), "mine", "call ids never conflict; with other arguments it is another call");
}

#[test]
fn a_lookup_never_claims() {
    let states = [
        DedupeState::Inflight,
        DedupeState::Done(None),
        DedupeState::Failed(failure(false)),
        settled(),
        DedupeState::Cancelled,
    ];
    for column in COLUMNS {
        let lookup = Claim { intent: ClaimIntent::Look, ..claim(column) };
        assert_eq!(name(&decide(column, &lookup, None, LeaseOwnerState::Time)), "nothing");
        for state in &states {
            for sight in [LeaseOwnerState::Alive, LeaseOwnerState::Gone] {
                let decision = decide(column, &lookup, Some(&record(column, state.clone())), sight);
                let begins_to_settle = *state == DedupeState::Inflight && sight == LeaseOwnerState::Gone;
                assert_eq!(decision.write != RecordWrite::Nothing, begins_to_settle, "{state:?}");
                assert_ne!(name(&decision), "mine");
            }
        }
    }
}

#[test]
fn a_waiter_gets_the_result_and_takes_no_claim() {
    for column in COLUMNS {
        let decision_for = |record: &DedupeRecord, sight| {
            let claim = Claim::to_await_result(record, owner(2), DedupeRules::from(&policy()), NOW).unwrap();
            let found_record = Some((record, sight));
            let decided = decide_claim(
                &claim,
                FoundRecords { followed: found_record, own: found_record, indexed: found_record },
                &LocalKnowledge::default(),
                NOW,
            );
            (name(&decided), decided.write)
        };
        for (state, expected) in [
            (DedupeState::Done(Some(output())), "answer"),
            (DedupeState::Failed(failure(false)), "answer"),
            (DedupeState::Failed(failure(true)), "answer"),
            (settled(), "tell"),
        ] {
            let found = record(column, state);
            assert_eq!(
                decision_for(&found, LeaseOwnerState::Gone),
                (expected, RecordWrite::Nothing),
                "{column:?} {:?}",
                found.state
            );
        }
        let running = record(column, DedupeState::Inflight);
        assert_eq!(decision_for(&running, LeaseOwnerState::Alive), ("follow", RecordWrite::Nothing));
        let (actual, write) = decision_for(&running, LeaseOwnerState::Gone);
        assert_eq!(actual, "not yet");
        assert!(
            matches!(write, RecordWrite::Put { record, .. } if matches!(record.state, DedupeState::Unknown(_)))
        );
        let rules = DedupeRules::from(&policy());
        for repeatable in [
            DedupeRecord { started: false, ..running.clone() },
            DedupeRecord { retry_safe: true, ..running.clone() },
        ] {
            assert_eq!(Claim::to_await_result(&repeatable, owner(2), rules, NOW), None, "a call finds out");
        }
    }
}

#[test]
fn a_record_only_the_index_can_find_is_removed_when_the_index_moves() {
    let done = DedupeRecord {
        delivered: Some(NOW),
        arrived: NOW.before(SECOND),
        ..record(ClaimTestColumn::Equal, DedupeState::Done(None))
    };
    let decision =
        decide(ClaimTestColumn::Equal, &claim(ClaimTestColumn::Equal), Some(&done), LeaseOwnerState::Time);
    assert!(matches!(decision.write, RecordWrite::Put { remove, .. } if remove == [key("k")]));
    let with_id = DedupeRecord { origin: RecordOrigin::CallId, call_id: Some(key("k")), ..done };
    let decision =
        decide(ClaimTestColumn::Equal, &claim(ClaimTestColumn::Equal), Some(&with_id), LeaseOwnerState::Time);
    assert!(
        matches!(decision.write, RecordWrite::Put { remove, .. } if remove.is_empty()),
        "a late duplicate of that dispatch must find it"
    );
}

#[test]
fn a_waiter_whose_record_was_removed_waits_for_its_replacement() {
    let successor = record(ClaimTestColumn::Equal, DedupeState::Inflight);
    let found =
        FoundRecords { indexed: Some((&successor, LeaseOwnerState::Time)), ..FoundRecords::default() };
    let mut waiter = claim(ClaimTestColumn::Waiter);
    waiter.role = ClaimRole::Waiter { followed: key("gone") };
    assert_eq!(name(&decide_claim(&waiter, found, &LocalKnowledge::default(), NOW)), "follow");
}

/// Regression (seed 6600): four calls waited for the record of a dispatch whose process had died before its start. Each
/// took it over under its own address. The record itself stayed, so the next one found it lapsed as well: four runs
/// instead of one.
#[test]
fn a_record_that_was_taken_over_is_removed_for_the_next_waiter() {
    let lapsed = DedupeRecord {
        lease: Lease::Until(NOW),
        started: false,
        ..record(ClaimTestColumn::CallId, DedupeState::Inflight)
    };
    let found = FoundRecords {
        followed: Some((&lapsed, LeaseOwnerState::Time)),
        indexed: Some((&lapsed, LeaseOwnerState::Time)),
        own: None,
    };
    let first = decide_claim(&claim(ClaimTestColumn::Waiter), found, &LocalKnowledge::default(), NOW);
    let RecordWrite::Put { record: taken, remove, .. } = first.write else { panic!("{:?}", first.verdict) };
    assert_eq!(remove, [lapsed.key]);
    let found = FoundRecords { indexed: Some((&taken, LeaseOwnerState::Time)), ..FoundRecords::default() };
    let second = Claim { owner: owner(3), ..claim(ClaimTestColumn::Waiter) };
    assert_eq!(
        decide_claim(&second, found, &LocalKnowledge::default(), NOW).verdict,
        ClaimVerdict::Follow(taken.key)
    );
}

#[test]
fn a_waiter_of_a_lapsed_run_follows_the_equal_run_that_lives() {
    let lapsed = DedupeRecord {
        lease: Lease::Until(NOW),
        retry_safe: true,
        ..record(ClaimTestColumn::CallId, DedupeState::Inflight)
    };
    let live = DedupeRecord { key: key("live"), ..record(ClaimTestColumn::Equal, DedupeState::Inflight) };
    let found = FoundRecords {
        followed: Some((&lapsed, LeaseOwnerState::Time)),
        indexed: Some((&live, LeaseOwnerState::Time)),
        own: None,
    };
    assert_eq!(
        decide_claim(&claim(ClaimTestColumn::Waiter), found, &LocalKnowledge::default(), NOW).verdict,
        ClaimVerdict::Follow(key("live"))
    );
}

/// Regression (seeds 15583 and 23936): a failed dispatch was sent again. It found its own record, ran, and moved the
/// index away from an equal run that was still in flight. When the caller of that run came back without an id, nothing
/// led to the run, and it ran a second time. The same happened with a response that was not delivered.
#[test]
fn a_repeated_failed_dispatch_joins_an_equal_run_with_an_undelivered_result() {
    let failed = record(ClaimTestColumn::CallId, DedupeState::Failed(failure(true)));
    let verdict = |state, delivered| {
        let open = DedupeRecord { key: key("open"), delivered, ..record(ClaimTestColumn::Equal, state) };
        let found = FoundRecords {
            own: Some((&failed, LeaseOwnerState::Time)),
            indexed: Some((&open, LeaseOwnerState::Time)),
            followed: None,
        };
        name(&decide_claim(&claim(ClaimTestColumn::CallId), found, &LocalKnowledge::default(), NOW))
    };
    assert_eq!(verdict(DedupeState::Inflight, None), "follow");
    assert_eq!(verdict(settled(), None), "tell");
    assert_eq!(verdict(DedupeState::Done(Some(output())), None), "replay undelivered");
    assert_eq!(verdict(DedupeState::Done(Some(output())), Some(NOW)), "mine");
}

#[test]
fn a_record_saved_under_hold_is_held_for_every_caller() {
    let held_record = DedupeRecord {
        delivered: Some(NOW.before(60 * SECOND)),
        expires: None,
        ..record(ClaimTestColumn::Equal, settled())
    };
    assert_eq!(verdict(ClaimTestColumn::Equal, &held_record), "tell");
}

// ---- operations of the owner ----

fn own_record(state: DedupeState) -> DedupeRecord {
    DedupeRecord { owner: owner(2), ..record(ClaimTestColumn::Explicit, state) }
}

fn all_states() -> [DedupeState; 5] {
    [
        DedupeState::Inflight,
        DedupeState::Done(Some(output())),
        DedupeState::Failed(failure(true)),
        settled(),
        DedupeState::Cancelled,
    ]
}

#[test]
fn started_is_written_by_the_owner_in_flight_only() {
    for state in all_states() {
        let fresh = DedupeRecord { started: false, ..own_record(state.clone()) };
        let decision = decide_start(&owner(2), Some(&fresh), NOW);
        if state == DedupeState::Inflight {
            assert_eq!(decision.verdict, StartVerdict::Started);
            assert!(
                matches!(decision.write, RecordWrite::Put { record, .. } if record.started && record.version == 8)
            );
        } else {
            assert_eq!(decision, DedupeDecision { verdict: StartVerdict::Lost, write: RecordWrite::Nothing });
        }
        let other = decide_start(&owner(3), Some(&fresh), NOW);
        assert_eq!(other, DedupeDecision { verdict: StartVerdict::Lost, write: RecordWrite::Nothing });
    }
    assert_eq!(decide_start(&owner(2), None, NOW).verdict, StartVerdict::Lost);
    // An approval took a while, and the attempt begins only now.
    let by = NOW + Duration::from_secs(30);
    let waiting =
        DedupeRecord { started: false, end_observed_by: Some(by), ..own_record(DedupeState::Inflight) };
    let waited = Duration::from_secs(40);
    let decision = decide_start(&owner(2), Some(&waiting), waiting.created + waited);
    assert!(
        matches!(decision.write, RecordWrite::Put { record, .. } if record.end_observed_by == Some(by + waited))
    );
    let repeat = decide_start(&owner(2), Some(&own_record(DedupeState::Inflight)), NOW);
    assert_eq!(repeat, DedupeDecision { verdict: StartVerdict::Started, write: RecordWrite::Nothing });
}

#[test]
fn a_renewal_extends_only_own_records_in_flight() {
    let keep = DedupePolicy::default().keep;
    let claimed = own_record(DedupeState::Inflight);
    let renewed = decide_renew(&claimed, &keep, Some(&claimed), RecordAbsence::Removed, NOW);
    assert_eq!(renewed.verdict, RenewVerdict::Renewed);
    assert!(
        matches!(renewed.write, RecordWrite::Put { record, .. } if record.lease == Lease::Until(NOW + keep.lease))
    );
    let unknown = decide_renew(&claimed, &keep, Some(&own_record(settled())), RecordAbsence::Removed, NOW);
    assert_eq!(unknown, DedupeDecision { verdict: RenewVerdict::MarkedUnknown, write: RecordWrite::Nothing });
    let other = decide_renew(
        &claimed,
        &keep,
        Some(&record(ClaimTestColumn::Explicit, DedupeState::Inflight)),
        RecordAbsence::Removed,
        NOW,
    );
    assert_eq!(other, DedupeDecision { verdict: RenewVerdict::Lost, write: RecordWrite::Nothing });
    // Regression (seed 3665): a renewal from a frozen process came after its save, and after the next run had replaced
    // the record. It brought the finished claim back.
    let removed = decide_renew(&claimed, &keep, None, RecordAbsence::Removed, NOW);
    assert_eq!(removed, DedupeDecision { verdict: RenewVerdict::Lost, write: RecordWrite::Nothing });
    let emptied = decide_renew(&claimed, &keep, None, RecordAbsence::StoreEmptied, NOW);
    assert!(
        matches!(emptied.write, RecordWrite::Put { record, index: IndexUpdate::PointIfFree, .. } if record.owner == owner(2))
    );
}

fn save(ending: RunOutcome) -> SaveRequest {
    SaveRequest {
        claimed: Arc::new(own_record(DedupeState::Inflight)),
        ending,
        attempts: Vec::new(),
        delivered: None,
        hold: false,
        keep: DedupePolicy::default().keep,
    }
}

#[test]
fn an_answer_is_saved_by_the_owner_over_in_flight_and_unknown_and_over_nothing() {
    for ending in [RunOutcome::Done(Some(output())), RunOutcome::Failed(failure(true))] {
        let found = [None, Some(own_record(DedupeState::Inflight)), Some(own_record(settled()))];
        for record in found {
            let decision = decide_save(&save(ending.clone()), record.as_ref(), None, NOW);
            let RecordWrite::Put { record: written, .. } = decision.write else { panic!("{record:?}") };
            assert_eq!(decision.verdict, SaveVerdict::Saved(written.receipt()));
            assert_eq!(written.delivered, None);
            assert!(!written.is_open());
        }
    }
}

#[test]
fn unknown_is_saved_over_in_flight_and_over_nothing_only() {
    for (found, saved) in [
        (None, true),
        (Some(own_record(DedupeState::Inflight)), true),
        (Some(own_record(DedupeState::Done(None))), false),
        (Some(own_record(DedupeState::Failed(failure(true)))), false),
    ] {
        let decision = decide_save(&save(unknown_ending()), found.as_ref(), None, NOW);
        assert_eq!(decision.write != RecordWrite::Nothing, saved, "{found:?}");
    }
}

#[test]
fn a_repeated_save_writes_nothing() {
    for (ending, state) in [
        (RunOutcome::Done(Some(output())), DedupeState::Done(Some(output()))),
        (RunOutcome::Failed(failure(true)), DedupeState::Failed(failure(true))),
        (unknown_ending(), settled()),
    ] {
        let found = own_record(state);
        let decision = decide_save(&save(ending), Some(&found), None, NOW);
        assert_eq!(
            decision,
            DedupeDecision { verdict: SaveVerdict::Saved(found.receipt()), write: RecordWrite::Nothing }
        );
    }
}

#[test]
fn a_save_under_another_owner_meets_the_fence() {
    for state in all_states() {
        for ending in [RunOutcome::Done(None), RunOutcome::Failed(failure(false)), unknown_ending()] {
            let found = record(ClaimTestColumn::Explicit, state.clone());
            let decision = decide_save(&save(ending), Some(&found), None, NOW);
            assert_eq!(
                decision,
                DedupeDecision { verdict: SaveVerdict::FenceLost, write: RecordWrite::Nothing }
            );
        }
    }
}

#[test]
fn a_deferred_result_that_was_delivered_before_its_save_is_saved_as_delivered() {
    let late = SaveRequest { delivered: Some(NOW), ..save(RunOutcome::Done(Some(output()))) };
    let RecordWrite::Put { record, .. } = decide_save(&late, None, None, NOW).write else { panic!() };
    assert_eq!(record.delivered, Some(NOW));
}

/// Regression (seed 2327): three claims in a row were applied, and their responses were lost. The first one had taken
/// over a keyless run in place. The call continued without the store and saved its result under its own run id, so the
/// record that it really owned stayed in flight as long as its process lived.
#[test]
fn a_save_after_an_unanswered_take_over_finds_its_record_through_the_index() {
    let taken = DedupeRecord {
        key: key("taken over in place"),
        index: Some(key("i")),
        ..own_record(DedupeState::Inflight)
    };
    let decision = decide_save(&save(RunOutcome::Done(Some(output()))), None, Some(&taken), NOW);
    assert!(
        matches!(decision.write, RecordWrite::Put { record, .. } if record.key == taken.key && !record.is_open())
    );
    let another = DedupeRecord { owner: owner(9), ..taken };
    let decision = decide_save(&save(RunOutcome::Done(Some(output()))), None, Some(&another), NOW);
    assert!(matches!(decision.write, RecordWrite::Put { record, .. } if record.key == key("k")));
}

#[test]
fn only_the_owner_releases_a_record_and_only_an_open_one() {
    let release = |call| ReleaseRequest { key: key("k"), index: Some(key("i")), owner: owner(call) };
    for state in all_states() {
        let found = own_record(state);
        let removed = matches!(decide_release(&release(2), Some(&found), None), RecordWrite::Remove { .. });
        assert_eq!(removed, found.is_open(), "{:?}", found.state);
        assert_eq!(decide_release(&release(3), Some(&found), None), RecordWrite::Nothing);
    }
    let elsewhere = DedupeRecord { key: key("taken over in place"), ..own_record(DedupeState::Inflight) };
    let write = decide_release(&release(2), None, Some(&elsewhere));
    assert!(matches!(write, RecordWrite::Remove { key, .. } if key == elsewhere.key));
    assert_eq!(decide_release(&release(2), None, None), RecordWrite::Nothing);
}

#[test]
fn a_delivery_mark_applies_to_one_response_only() {
    let delivered = own_record(settled());
    let receipt = delivered.receipt();
    assert!(
        matches!(decide_delivered(&receipt, NOW, Some(&delivered)), RecordWrite::Put { record, .. } if record.delivered == Some(NOW))
    );
    let late_answer =
        delivered.after_write(DedupeState::Done(Some(output())), &DedupePolicy::default().keep, false, NOW);
    assert_eq!(decide_delivered(&receipt, NOW, Some(&late_answer)), RecordWrite::Nothing);
    let another = DedupeRecord { owner: owner(9), ..delivered };
    assert_eq!(decide_delivered(&receipt, NOW, Some(&another)), RecordWrite::Nothing);
    let running = own_record(DedupeState::Inflight);
    assert_eq!(decide_delivered(&running.receipt(), NOW, Some(&running)), RecordWrite::Nothing);
    for early in [SettleTime::WhenOwnerReports, SettleTime::By(NOW + SECOND)] {
        let not_over = own_record(settles(early));
        let write = decide_delivered(&not_over.receipt(), NOW, Some(&not_over));
        assert_eq!(write, RecordWrite::Nothing, "that it is not over yet is no answer");
    }
    assert_eq!(decide_delivered(&receipt, NOW, None), RecordWrite::Nothing);
}

fn by_hand(resolution: Resolution) -> ResolutionRequest {
    ResolutionRequest::by_operator(key("k"), resolution)
}

#[test]
fn an_operator_resolves_only_unknown_outcomes() {
    let rules = DedupeRules::from(&policy());
    for state in all_states() {
        let found = own_record(state.clone());
        for resolution in [Resolution::Ran, Resolution::DidNotRun] {
            let verdict =
                decide_resolve(&by_hand(resolution), Some((&found, LeaseOwnerState::Alive)), &rules, NOW)
                    .verdict;
            let unknown = state == settled();
            let expected = if unknown { ResolveVerdict::Resolved } else { ResolveVerdict::NotUnknown };
            assert_eq!(verdict, expected);
        }
    }
    let unknown = own_record(settled());
    let ran =
        decide_resolve(&by_hand(Resolution::Ran), Some((&unknown, LeaseOwnerState::Alive)), &rules, NOW)
            .write;
    assert!(matches!(ran, RecordWrite::Put { record, .. } if record.state == DedupeState::Done(None)));
    let not = decide_resolve(
        &by_hand(Resolution::DidNotRun),
        Some((&unknown, LeaseOwnerState::Alive)),
        &rules,
        NOW,
    )
    .write;
    assert!(matches!(not, RecordWrite::Remove { .. }));
}

#[test]
fn a_verification_settles_the_run_that_it_was_about_and_no_other() {
    let rules = DedupeRules::from(&policy());
    let unknown = own_record(settled());
    for resolution in [Resolution::Ran, Resolution::DidNotRun] {
        for (of, expected) in [(owner(2), ResolveVerdict::Resolved), (owner(3), ResolveVerdict::NotUnknown)] {
            let verified = ResolutionRequest { of: Some(of), ..by_hand(resolution) };
            let decided = decide_resolve(&verified, Some((&unknown, LeaseOwnerState::Alive)), &rules, NOW);
            assert_eq!(decided.verdict, expected, "{resolution:?}");
            assert_eq!(decided.write == RecordWrite::Nothing, expected == ResolveVerdict::NotUnknown);
        }
    }
}

#[test]
fn time_alone_does_not_prove_no_run_if_the_end_must_be_observed() {
    let rules = DedupeRules::from(&policy());
    for (settles_at, verdict) in [
        (SettleTime::By(NOW), ResolveVerdict::NotSettled(Some(Duration::ZERO))),
        (SettleTime::Settled, ResolveVerdict::Resolved),
    ] {
        let found = own_record(settles(settles_at));
        for (resolution, expected) in
            [(Resolution::DidNotRun, verdict), (Resolution::Ran, ResolveVerdict::Resolved)]
        {
            let resolve = ResolutionRequest { requires_observed_end: true, ..by_hand(resolution) };
            let decided = decide_resolve(&resolve, Some((&found, LeaseOwnerState::Alive)), &rules, NOW);
            assert_eq!(decided.verdict, expected, "{settles_at:?}");
        }
    }
}

#[test]
fn did_not_run_cannot_be_known_before_the_end() {
    let rules = DedupeRules::from(&policy());
    for (state, left) in [
        (settles(SettleTime::By(NOW + 7 * SECOND)), Some(7 * SECOND)),
        (settles(SettleTime::WhenOwnerReports), None),
    ] {
        let early = own_record(state);
        let refused = decide_resolve(
            &by_hand(Resolution::DidNotRun),
            Some((&early, LeaseOwnerState::Alive)),
            &rules,
            NOW,
        );
        let verdict = ResolveVerdict::NotSettled(left);
        assert_eq!(refused, DedupeDecision { verdict, write: RecordWrite::Nothing });
        let ran =
            decide_resolve(&by_hand(Resolution::Ran), Some((&early, LeaseOwnerState::Alive)), &rules, NOW);
        assert_eq!(ran.verdict, ResolveVerdict::Resolved, "that it ran may be seen at any time");
    }
    // The owner is gone, so no other process will report the end.
    for state in [DedupeState::Inflight, settles(SettleTime::WhenOwnerReports)] {
        let left = own_record(state);
        let found = Some((&left, LeaseOwnerState::Gone));
        let refused = decide_resolve(&by_hand(Resolution::DidNotRun), found, &rules, NOW);
        assert_eq!(refused.verdict, ResolveVerdict::NotSettled(Some(rules.linger)));
        let RecordWrite::Put { record, .. } = refused.write else { panic!("{:?}", refused.write) };
        let DedupeState::Unknown(unknown) = &record.state else { panic!("{record:?}") };
        assert_eq!(unknown.settles, SettleTime::By(NOW + rules.linger));
        let ran = decide_resolve(&by_hand(Resolution::Ran), found, &rules, NOW);
        assert_eq!(ran.verdict, ResolveVerdict::Resolved);
    }
}

#[test]
fn the_end_is_recorded_once_and_never_taken_back() {
    let ending = |settles| {
        save(RunOutcome::Unknown(UnknownOutcomeReport {
            settles,
            ..UnknownOutcomeReport::settled(UnknownOutcomeReason::NoAnswer)
        }))
    };
    let after = |found: DedupeState, reported| match decide_save(
        &ending(reported),
        Some(&own_record(found)),
        None,
        NOW,
    )
    .write
    {
        RecordWrite::Put { record, .. } => {
            let DedupeState::Unknown(unknown) = &record.state else { panic!("{record:?}") };
            Some(unknown.settles)
        }
        RecordWrite::Nothing => None,
        other @ RecordWrite::Remove { .. } => panic!("{other:?}"),
    };
    let in_a_second = SettleDelay::After(SECOND);
    assert_eq!(after(settles(SettleTime::WhenOwnerReports), in_a_second), Some(SettleTime::By(NOW + SECOND)));
    assert_eq!(after(settles(SettleTime::WhenOwnerReports), SettleDelay::Settled), Some(SettleTime::Settled));
    assert_eq!(after(settles(SettleTime::By(NOW)), SettleDelay::Settled), Some(SettleTime::Settled));
    // An observed end is better than an estimated one. An announced time is never moved later.
    assert_eq!(
        after(settles(SettleTime::By(NOW + 2 * SECOND)), in_a_second),
        Some(SettleTime::By(NOW + SECOND))
    );
    assert_eq!(after(settles(SettleTime::By(NOW + SECOND)), in_a_second), None);
    for found in [SettleTime::Settled, SettleTime::By(NOW)] {
        for reported in [SettleDelay::WhenOwnerReports, in_a_second] {
            assert_eq!(after(settles(found), reported), None, "{found:?} {reported:?}");
        }
    }
    // The delivery of a final response is not lost with the write.
    let delivered = DedupeRecord { delivered: Some(NOW), ..own_record(settles(SettleTime::By(NOW))) };
    let written = decide_save(&ending(SettleDelay::Settled), Some(&delivered), None, NOW).write;
    assert!(matches!(written, RecordWrite::Put { record, .. } if record.delivered == Some(NOW)));
}

#[test]
fn open_records_live_a_day_and_under_hold_until_settled() {
    let keep = DedupePolicy::default().keep;
    let held_save = SaveRequest { hold: true, ..save(unknown_ending()) };
    let RecordWrite::Put { record, .. } = decide_save(&held_save, None, None, NOW).write else { panic!() };
    assert_eq!(record.expires, None);
    for (ending, keep_time) in [
        (unknown_ending(), keep.open),
        (RunOutcome::Done(None), keep.done),
        (RunOutcome::Failed(failure(true)), keep.failed),
    ] {
        let RecordWrite::Put { record, .. } = decide_save(&save(ending), None, None, NOW).write else {
            panic!()
        };
        assert_eq!(record.expires, Some(NOW + keep_time));
    }
}

// ---- the stored form ----

#[test]
fn records_survive_serialization() {
    let described = ToolOutput { metadata: Some(RawJson::from_trusted(r#"{"a":[1,2]}"#)), ..output() };
    let answers = [DedupeState::Done(None), DedupeState::Done(Some(described))];
    for state in all_states().into_iter().chain(answers) {
        for column in COLUMNS {
            let mut before = record(column, state.clone());
            before.lease = Lease::Record;
            before.attempts = vec![AttemptRecord {
                number: 1,
                code: None,
                started: NOW,
                finished: NOW + SECOND,
                rule: Some("http.503".into()),
                retriable: true,
            }];
            assert_eq!(DedupeRecord::from_json(&before.to_json()).unwrap(), before);
        }
    }
}

#[test]
fn an_unknown_outcome_is_stored_as_a_failure() {
    let text = own_record(settled()).to_json();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((json["format"].as_u64(), json["state"].as_str()), (Some(1), Some("failed")));
    assert_eq!(json["error"]["code"], "outcome_unknown");
}

#[test]
fn a_record_of_a_newer_format_or_a_damaged_one_is_refused_with_its_reason() {
    let text = own_record(DedupeState::Inflight).to_json();
    let newer = text.replacen("\"format\":1", "\"format\":2", 1);
    assert!(matches!(DedupeRecord::from_json(&newer), Err(UnreadableRecord::Newer(2))));
    assert!(matches!(DedupeRecord::from_json(&text[..text.len() - 1]), Err(UnreadableRecord::Damaged(_))));
    assert!(matches!(DedupeRecord::from_json("{}"), Err(UnreadableRecord::Damaged(_))));
}

#[test]
fn answers_that_a_computed_key_finds_count_only_since_duplicates_are_recognised_again() {
    let age = NOW.since(record(ClaimTestColumn::Equal, DedupeState::Inflight).updated);
    let verdict = |column, state: DedupeState, since: Duration| {
        let mut claim = claim(column);
        claim.rules.computed_since = Some(NOW.before(since));
        let record = record(column, state);
        decide(column, &claim, Some(&record), LeaseOwnerState::Alive).verdict
    };
    let (later, then) = (age - SECOND, age);
    for column in COLUMNS {
        let done = |since| verdict(column, DedupeState::Done(None), since);
        assert!(matches!(done(then), ClaimVerdict::Replay(_)), "{column:?}: recorded since then");
        match column {
            // The key is not explicit, or these rules would not apply.
            ClaimTestColumn::Explicit | ClaimTestColumn::Equal => {
                assert!(matches!(done(later), ClaimVerdict::Acquired(_)), "{column:?}")
            }
            ClaimTestColumn::CallId | ClaimTestColumn::Waiter => {
                assert!(matches!(done(later), ClaimVerdict::Replay(_)), "{column:?}")
            }
        }
        let open = |state| verdict(column, state, later);
        assert!(matches!(open(DedupeState::Inflight), ClaimVerdict::Follow(_)), "{column:?}");
        assert!(matches!(open(settled()), ClaimVerdict::Unknown(_)), "{column:?}");
    }
}

/// A claim may lack a record that it cannot find, but must have every record that it can find.
#[test]
fn a_claim_may_find_its_own_record_and_those_of_an_index_or_a_wait() {
    for (column, may_match_others) in [
        (ClaimTestColumn::Explicit, false),
        (ClaimTestColumn::CallId, true),
        (ClaimTestColumn::Equal, true),
        (ClaimTestColumn::Waiter, true),
    ] {
        assert!(claim(column).may_find(key("k")), "{column:?}");
        assert_eq!(claim(column).may_find(key("another")), may_match_others, "{column:?}");
    }
    let waits =
        Claim { role: ClaimRole::Waiter { followed: key("followed") }, ..claim(ClaimTestColumn::Explicit) };
    assert!(waits.may_find(key("followed")));
}
