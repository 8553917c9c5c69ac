//! Tests of the tables. Each row has one test with every column.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::Timestamp;
use crate::code::Code;
use crate::id::{Digest, Namespace, RequestId, ToolName, ToolRef};
use crate::key::Key;
use crate::output::{Output, RawJson};
use crate::policy::{AfterUnknown, CacheFailures, DedupePolicy, Policy, Profile, ToolClass};

mod several;
mod written;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);
const SECOND: Duration = Duration::from_secs(1);

fn key(name: &str) -> Key {
    Key(Digest::of(name.as_bytes()))
}

fn owner(call: u64) -> Owner {
    Owner { process: Process { boot: "boot".into(), pid: 1, started: 1 }, call, claim: 1 }
}

fn tool() -> ToolRef {
    ToolRef { namespace: Namespace::new("bank").unwrap(), tool: ToolName::new("pay").unwrap() }
}

fn output() -> Output {
    Output { content: RawJson::string("paid"), metadata: None }
}

/// Returns an unknown outcome that can no longer take effect.
fn settled() -> RecordState {
    RecordState::Unknown(UnknownOutcome::settled(Observed::NoAnswer))
}

/// Returns an unknown outcome that settles at this time.
fn settles(settles: Settles) -> RecordState {
    RecordState::Unknown(UnknownOutcome { settles, ..UnknownOutcome::settled(Observed::NoAnswer) })
}

fn unknown_ending() -> Ending {
    Ending::Unknown(UnknownEnding::settled(Observed::NoAnswer))
}

fn policy() -> Policy {
    Profile::Standard.policy(ToolClass::Mutating)
}

fn failure(terminal: bool) -> Failure {
    Failure {
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
enum Column {
    Explicit,
    CallId,
    Equal,
    Waiter,
}

const COLUMNS: [Column; 4] = [Column::Explicit, Column::CallId, Column::Equal, Column::Waiter];

fn claim(column: Column) -> Claim {
    let (address, role) = match column {
        Column::Explicit => (Address::Explicit(key("k")), Role::Fresh),
        Column::CallId => (Address::CallId { id: key("k"), index: key("i") }, Role::Fresh),
        Column::Equal => (Address::Keyless { run: key("new"), index: key("i") }, Role::Fresh),
        Column::Waiter => {
            (Address::Keyless { run: key("new"), index: key("i") }, Role::Waiter { followed: key("k") })
        }
    };
    Claim {
        address,
        intent: Intent::Take { started: true },
        role,
        owner: owner(2),
        digest: Digest::of(b"arguments"),
        retry_safe: false,
        best_effort: false,
        arrived: NOW,
        age: Duration::ZERO,
        seen_end_within: None,
        run: RunId("run-2".into()),
        rules: Rules::from(&policy()),
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
fn record(column: Column, state: RecordState) -> Record {
    let long_ago = NOW.before(60 * SECOND);
    Record {
        key: key("k"),
        origin: match column {
            Column::Explicit => Origin::Explicit,
            Column::CallId => Origin::CallId,
            Column::Equal | Column::Waiter => Origin::Run,
        },
        index: (column != Column::Explicit).then(|| key("i")),
        call_id: (column == Column::CallId).then(|| key("k")),
        tool: tool(),
        state,
        owner: owner(1),
        started: true,
        retry_safe: false,
        digest: Digest::of(b"arguments"),
        run: RunId("run-1".into()),
        lease: Lease::Until(NOW + SECOND),
        seen_end_by: None,
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

fn decide(column: Column, claim: &Claim, record: Option<&Record>, sight: LeaseSight) -> ClaimDecision {
    let seen = record.map(|record| (record, sight));
    let found = match column {
        Column::Explicit | Column::CallId => Found { own: seen, ..Found::default() },
        Column::Equal => Found { indexed: seen, ..Found::default() },
        Column::Waiter => Found { followed: seen, indexed: seen, own: None },
    };
    decide_claim(claim, found, &Known::default(), NOW)
}

fn verdict(column: Column, record: &Record) -> &'static str {
    name(&decide(column, &claim(column), Some(record), LeaseSight::Time))
}

fn name(decision: &ClaimDecision) -> &'static str {
    match &decision.verdict {
        ClaimVerdict::Mine(_) => "mine",
        ClaimVerdict::Follow(_) => "follow",
        ClaimVerdict::Busy => "busy",
        ClaimVerdict::Replay(replay) => match replay.reason {
            ReplayReason::SameKey => "replay",
            ReplayReason::Undelivered => "replay undelivered",
            ReplayReason::DoubleDispatch => "replay double dispatch",
            ReplayReason::Waited => "answer",
        },
        ClaimVerdict::Unknown(unknown) => match unknown.end {
            End::Settled => "tell",
            End::NotYet(_) => "not yet",
        },
        ClaimVerdict::Conflict => "conflict",
        ClaimVerdict::Nothing => "nothing",
        ClaimVerdict::Full => "full",
        ClaimVerdict::Closed => "closed",
        ClaimVerdict::RecordsLost => "records lost",
    }
}

/// Returns one verdict per column, in the order of the table.
fn row(make: impl Fn(Column) -> Record) -> [&'static str; 4] {
    COLUMNS.map(|column| verdict(column, &make(column)))
}

#[test]
fn nothing_found_is_acquired_in_every_column() {
    for column in COLUMNS {
        let decision = decide(column, &claim(column), None, LeaseSight::Time);
        let ClaimVerdict::Mine(record) = &decision.verdict else { panic!("{column:?}: {decision:?}") };
        assert_eq!(record.owner, owner(2));
        assert_eq!(record.run, RunId("run-2".into()));
        assert!(record.started && record.delivered.is_none());
        assert!(
            matches!(&decision.write, Write::Put { record: written, index: IndexMove::Point, remove } if written == record && remove.is_empty())
        );
    }
}

#[test]
fn an_expired_record_is_nothing() {
    let expired = |column| Record { expires: Some(NOW), ..record(column, RecordState::Done(Some(output()))) };
    assert_eq!(row(expired), ["mine"; 4]);
}

#[test]
fn own_token_in_flight_is_acquired_again() {
    let own = |column| Record { owner: owner(2), ..record(column, RecordState::Inflight) };
    assert_eq!(row(own), ["mine"; 4]);
    for column in COLUMNS {
        let decision = decide(column, &claim(column), Some(&own(column)), LeaseSight::Time);
        let ClaimVerdict::Mine(again) = decision.verdict else { panic!("{column:?}") };
        assert_eq!(again.state, RecordState::Inflight);
        assert!(again.started, "what was started stays started");
    }
    // A caller that received the final response may have acted on it.
    let told = |column| Record { owner: owner(2), ..record(column, settled()) };
    assert_eq!(row(told), ["tell"; 4]);
}

#[test]
fn in_flight_with_a_valid_lease_is_waited_for() {
    assert_eq!(row(|column| record(column, RecordState::Inflight)), ["follow"; 4]);
    let best_effort = Claim { best_effort: true, ..claim(Column::Explicit) };
    let found = record(Column::Explicit, RecordState::Inflight);
    assert_eq!(name(&decide(Column::Explicit, &best_effort, Some(&found), LeaseSight::Time)), "busy");
}

#[test]
fn the_lease_ends_with_the_process_on_one_machine_and_with_time_elsewhere() {
    let found = Record { started: false, ..record(Column::Explicit, RecordState::Inflight) };
    let lapsed = Record { lease: Lease::Until(NOW), ..found.clone() };
    let unlimited = Record { lease: Lease::Record, ..found.clone() };
    for (record, sight, expected) in [
        (&found, LeaseSight::Time, "follow"),
        (&found, LeaseSight::Gone, "mine"),
        (&lapsed, LeaseSight::Time, "mine"),
        (&lapsed, LeaseSight::Alive, "follow"),
        (&unlimited, LeaseSight::Time, "follow"),
        (&unlimited, LeaseSight::Gone, "mine"),
    ] {
        assert_eq!(name(&decide(Column::Explicit, &claim(Column::Explicit), Some(record), sight)), expected);
    }
}

#[test]
fn a_lapsed_claim_that_was_not_started_is_mine() {
    let lapsed =
        |column| Record { lease: Lease::Until(NOW), started: false, ..record(column, RecordState::Inflight) };
    assert_eq!(row(lapsed), ["mine"; 4]);
}

#[test]
fn a_lapsed_run_that_is_safe_to_repeat_is_taken_over_under_its_run_id() {
    let lapsed = |column| Record {
        lease: Lease::Until(NOW),
        retry_safe: true,
        ..record(column, RecordState::Inflight)
    };
    assert_eq!(row(lapsed), ["mine"; 4]);
    for column in COLUMNS {
        let decision = decide(column, &claim(column), Some(&lapsed(column)), LeaseSight::Time);
        let ClaimVerdict::Mine(taken) = decision.verdict else { panic!("{column:?}") };
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
    let lapsed = |column| Record { lease: Lease::Until(NOW), ..record(column, RecordState::Inflight) };
    assert_eq!(row(lapsed), ["not yet"; 4]);
    let linger = policy().settling.linger;
    for column in COLUMNS {
        let decision = decide(column, &claim(column), Some(&lapsed(column)), LeaseSight::Time);
        let Write::Put { record: written, index: IndexMove::Keep, .. } = decision.write else { panic!() };
        let RecordState::Unknown(unknown) = &written.state else { panic!("{written:?}") };
        assert_eq!((unknown.settles, unknown.observed), (Settles::By(NOW + linger), Observed::NoAnswer));
        assert_eq!(written.owner, owner(1), "its late answer must still count");
        let ClaimVerdict::Unknown(told) = decision.verdict else { panic!("{column:?}") };
        assert_eq!((told.end, told.receipt), (End::NotYet(Some(linger)), written.receipt()));
    }
}

#[test]
fn a_run_whose_owner_saw_its_end_is_settled_by_the_leash_or_by_the_limit_of_its_claim() {
    let lapsed = Record {
        lease: Lease::Until(NOW),
        seen_end_by: Some(NOW + 90 * SECOND),
        ..record(Column::Equal, RecordState::Inflight)
    };
    let by = |record: &Record, sight, settle| {
        let mut claim = claim(Column::Equal);
        claim.rules.settle = settle;
        let decision = decide(Column::Equal, &claim, Some(record), sight);
        let Write::Put { record: written, .. } = decision.write else { panic!("{decision:?}") };
        let RecordState::Unknown(unknown) = &written.state else { panic!("{written:?}") };
        unknown.settles
    };
    let zero = Duration::ZERO;
    assert_eq!(by(&lapsed, LeaseSight::Gone, zero), Settles::By(NOW + 5 * SECOND), "its leash ends it");
    assert_eq!(
        by(&lapsed, LeaseSight::Gone, 5 * SECOND),
        Settles::By(NOW + 10 * SECOND),
        "it may have handed work on"
    );
    assert_eq!(by(&lapsed, LeaseSight::Time, zero), Settles::By(NOW + 90 * SECOND), "its owner may live");
    // The same if the owner had recorded the unknown outcome and is gone before it observed the end.
    let unsaid = Record { state: settles(Settles::WhenOwnerSays), ..lapsed };
    assert_eq!(by(&unsaid, LeaseSight::Gone, zero), Settles::By(NOW + 5 * SECOND));
    assert_eq!(by(&unsaid, LeaseSight::Time, zero), Settles::By(NOW + 90 * SECOND));
    let decision = decide(Column::Equal, &claim(Column::Equal), Some(&unsaid), LeaseSight::Alive);
    assert_eq!(
        (name(&decision), &decision.write),
        ("not yet", &Write::Nothing),
        "its owner lives, and will say"
    );
}

#[test]
fn nothing_counts_before_the_end() {
    let told_early = |column| Record {
        delivered: Some(NOW.before(3600 * SECOND)),
        ..record(column, settles(Settles::By(NOW + SECOND)))
    };
    assert_eq!(row(told_early), ["not yet"; 4]);
    let told_early = |column| Record { lease: Lease::Record, ..told_early(column) };
    let unsaid = |column| Record { state: settles(Settles::WhenOwnerSays), ..told_early(column) };
    assert_eq!(row(unsaid), ["not yet"; 4]);
    let looked = Known { verified: vec![owner(1)], ..Known::default() };
    let early = told_early(Column::Equal);
    let found = Found { indexed: Some((&early, LeaseSight::Time)), ..Found::default() };
    assert_eq!(name(&decide_claim(&claim(Column::Equal), found, &looked, NOW)), "not yet");
    // From the announced time on, the attempt counts as settled although that is not written.
    let over = |column| record(column, settles(Settles::By(NOW)));
    assert_eq!(row(over), ["tell"; 4]);
}

#[test]
fn a_caller_that_verified_after_the_final_response_may_call_again() {
    let looked = Known { verified: vec![owner(1)], ..Known::default() };
    let with = |record: &Record, known: &Known| {
        let found = Found { indexed: Some((record, LeaseSight::Time)), ..Found::default() };
        name(&decide_claim(&claim(Column::Equal), found, known, NOW))
    };
    let told = Record { delivered: Some(NOW), ..record(Column::Equal, settled()) };
    assert_eq!(with(&told, &Known::default()), "tell");
    assert_eq!(with(&told, &looked), "mine");
    let another = Known { verified: vec![owner(3)], ..Known::default() };
    assert_eq!(with(&told, &another), "tell", "it looked into another run");
    let undelivered = Record { delivered: None, ..told.clone() };
    assert_eq!(with(&undelivered, &looked), "tell", "nobody has heard of it");
    for column in [Column::Explicit, Column::CallId, Column::Waiter] {
        let told = Record { delivered: Some(NOW), ..record(column, settled()) };
        let seen = Some((&told, LeaseSight::Time));
        let found = match column {
            Column::Waiter => Found { followed: seen, ..Found::default() },
            Column::Explicit | Column::CallId | Column::Equal => Found { own: seen, ..Found::default() },
        };
        assert_eq!(name(&decide_claim(&claim(column), found, &looked, NOW)), "tell", "{column:?}");
    }
}

#[test]
fn a_response_contains_the_time_of_the_next_run() {
    let runs_in = |column, record: &Record| {
        let decision = decide(column, &claim(column), Some(record), LeaseSight::Time);
        let ClaimVerdict::Unknown(told) = decision.verdict else { panic!("{decision:?}") };
        told.runs_in
    };
    let unknown = record(Column::Equal, settled());
    assert_eq!(runs_in(Column::Equal, &unknown), Some(10 * SECOND));
    let told = Record { delivered: Some(NOW.before(4 * SECOND)), ..unknown.clone() };
    assert_eq!(runs_in(Column::Equal, &told), Some(6 * SECOND), "what is left of it");
    let held = Record { expires: None, ..told };
    assert_eq!(runs_in(Column::Equal, &held), None, "somebody has to resolve it");
    assert_eq!(runs_in(Column::Explicit, &record(Column::Explicit, settled())), None);
}

#[test]
fn done_and_not_delivered_is_replayed() {
    let done = |column| record(column, RecordState::Done(Some(output())));
    assert_eq!(row(done), ["replay", "replay", "replay undelivered", "answer"]);
    let old = |column| Record { updated: NOW.before(600 * SECOND), ..done(column) };
    assert_eq!(row(old), ["replay", "replay", "mine", "answer"], "equal arguments wait ten minutes at most");
}

#[test]
fn done_and_delivered_is_history_for_equal_arguments() {
    let done = |column| Record {
        delivered: Some(NOW.before(SECOND)),
        ..record(column, RecordState::Done(Some(output())))
    };
    assert_eq!(row(done), ["replay", "replay", "mine", "answer"]);
}

/// Returns the verdict for a call that arrived while this or another process sent the response to an equal one.
fn overlapping(claim: &Claim, record: &Record, overlapped: &[Owner]) -> &'static str {
    let known = Known { overlapped: overlapped.to_vec(), ..Known::default() };
    let found = Found { indexed: Some((record, LeaseSight::Time)), ..Found::default() };
    name(&decide_claim(claim, found, &known, NOW))
}

#[test]
fn a_call_before_the_response_to_an_equal_one_is_a_duplicate() {
    let answered = |process: u32| {
        let mut record = record(Column::Equal, RecordState::Done(Some(output())));
        record.owner.process.pid = process;
        Record { delivered: Some(NOW), updated: NOW.before(10 * SECOND), ..record }
    };
    let (here, elsewhere) = (answered(1), answered(2));
    let second = claim(Column::Equal);
    assert_eq!(overlapping(&second, &here, &[]), "mine", "it came after the answer, however soon");
    assert_eq!(overlapping(&second, &here, std::slice::from_ref(&here.owner)), "replay double dispatch");
    // The response was sent before it could be saved, and the call arrived in between.
    let old = Claim { age: 3600 * SECOND, ..second.clone() };
    let answered = Known { answered_unsaved: vec![here.owner.clone()], ..Known::default() };
    let found = Found { indexed: Some((&here, LeaseSight::Time)), ..Found::default() };
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
fn two_call_ids_that_differ_are_no_double_dispatch() {
    let done = Record {
        delivered: Some(NOW),
        arrived: NOW,
        origin: Origin::CallId,
        call_id: Some(key("first id")),
        ..record(Column::Equal, RecordState::Done(Some(output())))
    };
    let mut second = claim(Column::Equal);
    second.address = Address::CallId { id: key("second id"), index: key("i") };
    let overlapped = [done.owner.clone()];
    assert_eq!(overlapping(&second, &done, &overlapped), "mine");
    let one_id = Record { call_id: None, ..done };
    assert_eq!(overlapping(&second, &one_id, &overlapped), "replay double dispatch");
}

#[test]
fn a_delivery_known_to_this_process_counts_before_the_store_knows_it() {
    let done = record(Column::Equal, RecordState::Done(Some(output())));
    let found = Found { indexed: Some((&done, LeaseSight::Time)), ..Found::default() };
    let with = |receipt| {
        let known = Known { delivered: vec![(receipt, NOW)], ..Known::default() };
        name(&decide_claim(&claim(Column::Equal), found, &known, NOW))
    };
    assert_eq!(with(done.receipt()), "mine");
    assert_eq!(with(Receipt { version: 6, ..done.receipt() }), "replay undelivered");
}

#[test]
fn failed_is_replayed_by_policy_to_explicit_keys_and_always_to_waiters() {
    let expected = [
        (CacheFailures::Terminal, true, "replay"),
        (CacheFailures::Terminal, false, "mine"),
        (CacheFailures::All, true, "replay"),
        (CacheFailures::All, false, "replay"),
        (CacheFailures::None, true, "mine"),
        (CacheFailures::None, false, "mine"),
    ];
    for (cache_failures, terminal, explicit) in expected {
        let verdicts = COLUMNS.map(|column| {
            let mut claim = claim(column);
            claim.rules.cache_failures = cache_failures;
            let failed = record(column, RecordState::Failed(failure(terminal)));
            name(&decide(column, &claim, Some(&failed), LeaseSight::Time))
        });
        assert_eq!(
            verdicts,
            [explicit, "mine", "mine", "answer"],
            "{cache_failures:?}, terminal: {terminal}"
        );
    }
    let mut best_effort = Claim { best_effort: true, ..claim(Column::Explicit) };
    best_effort.rules.cache_failures = CacheFailures::All;
    let failed = record(Column::Explicit, RecordState::Failed(failure(false)));
    assert_eq!(name(&decide(Column::Explicit, &best_effort, Some(&failed), LeaseSight::Time)), "mine");
}

#[test]
fn unknown_is_reported_until_delivered_and_ten_seconds_longer() {
    let unknown = |column| record(column, settled());
    assert_eq!(row(unknown), ["tell"; 4]);
    let just_told = |column| Record { delivered: Some(NOW.before(9 * SECOND)), ..unknown(column) };
    assert_eq!(row(just_told), ["tell"; 4]);
    let told = |column| Record { delivered: Some(NOW.before(10 * SECOND)), ..unknown(column) };
    assert_eq!(row(told), ["tell", "tell", "mine", "tell"]);
    let mut hold = claim(Column::Equal);
    hold.rules.after_unknown = AfterUnknown::Hold;
    assert_eq!(name(&decide(Column::Equal, &hold, Some(&told(Column::Equal)), LeaseSight::Time)), "tell");
}

#[test]
fn a_cancelled_record_is_never_replayed() {
    assert_eq!(row(|column| record(column, RecordState::Cancelled)), ["mine"; 4]);
}

#[test]
fn an_explicit_key_with_other_arguments_conflicts_in_every_state_for_waiters_too() {
    let states = [
        RecordState::Inflight,
        RecordState::Done(Some(output())),
        RecordState::Failed(failure(true)),
        settled(),
        RecordState::Cancelled,
    ];
    for state in states {
        for role in [Role::Fresh, Role::Waiter { followed: key("k") }] {
            let other = Claim { digest: Digest::of(b"other"), role, ..claim(Column::Explicit) };
            let found = record(Column::Explicit, state.clone());
            let decision = decide(Column::Explicit, &other, Some(&found), LeaseSight::Gone);
            assert_eq!(decision, Decided { verdict: ClaimVerdict::Conflict, write: Write::Nothing });
        }
    }
    let other = Claim { digest: Digest::of(b"other"), ..claim(Column::CallId) };
    let found = record(Column::CallId, RecordState::Done(Some(output())));
    let decision = decide(Column::CallId, &other, Some(&found), LeaseSight::Time);
    assert_eq!(name(&decision), "mine", "call ids never conflict; with other arguments it is another call");
}

#[test]
fn a_lookup_never_claims() {
    let states = [
        RecordState::Inflight,
        RecordState::Done(None),
        RecordState::Failed(failure(false)),
        settled(),
        RecordState::Cancelled,
    ];
    for column in COLUMNS {
        let look = Claim { intent: Intent::Look, ..claim(column) };
        assert_eq!(name(&decide(column, &look, None, LeaseSight::Time)), "nothing");
        for state in &states {
            for sight in [LeaseSight::Alive, LeaseSight::Gone] {
                let decision = decide(column, &look, Some(&record(column, state.clone())), sight);
                let begins_to_settle = *state == RecordState::Inflight && sight == LeaseSight::Gone;
                assert_eq!(decision.write != Write::Nothing, begins_to_settle, "{state:?}");
                assert_ne!(name(&decision), "mine");
            }
        }
    }
}

#[test]
fn a_waiter_gets_the_result_and_takes_no_claim() {
    for column in COLUMNS {
        let heard = |record: &Record, sight| {
            let claim = Claim::to_hear_of(record, owner(2), Rules::from(&policy()), NOW).unwrap();
            let seen = Some((record, sight));
            let decided = decide_claim(
                &claim,
                Found { followed: seen, own: seen, indexed: seen },
                &Known::default(),
                NOW,
            );
            (name(&decided), decided.write)
        };
        for (state, told) in [
            (RecordState::Done(Some(output())), "answer"),
            (RecordState::Failed(failure(false)), "answer"),
            (RecordState::Failed(failure(true)), "answer"),
            (settled(), "tell"),
        ] {
            let found = record(column, state);
            assert_eq!(
                heard(&found, LeaseSight::Gone),
                (told, Write::Nothing),
                "{column:?} {:?}",
                found.state
            );
        }
        let running = record(column, RecordState::Inflight);
        assert_eq!(heard(&running, LeaseSight::Alive), ("follow", Write::Nothing));
        let (told, write) = heard(&running, LeaseSight::Gone);
        assert_eq!(told, "not yet");
        assert!(
            matches!(write, Write::Put { record, .. } if matches!(record.state, RecordState::Unknown(_)))
        );
        let rules = Rules::from(&policy());
        for repeatable in
            [Record { started: false, ..running.clone() }, Record { retry_safe: true, ..running.clone() }]
        {
            assert_eq!(Claim::to_hear_of(&repeatable, owner(2), rules, NOW), None, "a call finds out");
        }
    }
}

#[test]
fn a_record_only_the_index_can_find_is_removed_when_the_index_moves() {
    let done = Record {
        delivered: Some(NOW),
        arrived: NOW.before(SECOND),
        ..record(Column::Equal, RecordState::Done(None))
    };
    let decision = decide(Column::Equal, &claim(Column::Equal), Some(&done), LeaseSight::Time);
    assert!(matches!(decision.write, Write::Put { remove, .. } if remove == [key("k")]));
    let with_id = Record { origin: Origin::CallId, call_id: Some(key("k")), ..done };
    let decision = decide(Column::Equal, &claim(Column::Equal), Some(&with_id), LeaseSight::Time);
    assert!(
        matches!(decision.write, Write::Put { remove, .. } if remove.is_empty()),
        "a late duplicate of that dispatch must find it"
    );
}

#[test]
fn a_waiter_whose_record_is_gone_waits_for_its_replacement() {
    let successor = record(Column::Equal, RecordState::Inflight);
    let found = Found { indexed: Some((&successor, LeaseSight::Time)), ..Found::default() };
    let mut waiter = claim(Column::Waiter);
    waiter.role = Role::Waiter { followed: key("gone") };
    assert_eq!(name(&decide_claim(&waiter, found, &Known::default(), NOW)), "follow");
}

/// Regression (seed 6600): four calls waited for the record of a dispatch whose process had died before its start. Each
/// took it over under its own address. The record itself stayed, so the next one found it lapsed as well: four runs
/// instead of one.
#[test]
fn a_record_that_was_taken_over_is_gone_for_the_next_waiter() {
    let lapsed =
        Record { lease: Lease::Until(NOW), started: false, ..record(Column::CallId, RecordState::Inflight) };
    let found = Found {
        followed: Some((&lapsed, LeaseSight::Time)),
        indexed: Some((&lapsed, LeaseSight::Time)),
        own: None,
    };
    let first = decide_claim(&claim(Column::Waiter), found, &Known::default(), NOW);
    let Write::Put { record: taken, remove, .. } = first.write else { panic!("{:?}", first.verdict) };
    assert_eq!(remove, [lapsed.key]);
    let found = Found { indexed: Some((&taken, LeaseSight::Time)), ..Found::default() };
    let second = Claim { owner: owner(3), ..claim(Column::Waiter) };
    assert_eq!(decide_claim(&second, found, &Known::default(), NOW).verdict, ClaimVerdict::Follow(taken.key));
}

#[test]
fn a_waiter_of_a_lapsed_run_follows_the_equal_run_that_lives() {
    let lapsed = Record {
        lease: Lease::Until(NOW),
        retry_safe: true,
        ..record(Column::CallId, RecordState::Inflight)
    };
    let live = Record { key: key("live"), ..record(Column::Equal, RecordState::Inflight) };
    let found = Found {
        followed: Some((&lapsed, LeaseSight::Time)),
        indexed: Some((&live, LeaseSight::Time)),
        own: None,
    };
    assert_eq!(
        decide_claim(&claim(Column::Waiter), found, &Known::default(), NOW).verdict,
        ClaimVerdict::Follow(key("live"))
    );
}

/// Regression (seeds 15583 and 23936): a failed dispatch was sent again. It found its own record, ran, and moved the
/// index away from an equal run that was still in flight. When the caller of that run came back without an id, nothing
/// led to the run, and it ran a second time. The same happened with a response that was not delivered.
#[test]
fn a_repeated_failed_dispatch_joins_an_equal_run_with_an_undelivered_result() {
    let failed = record(Column::CallId, RecordState::Failed(failure(true)));
    let verdict = |state, delivered| {
        let open = Record { key: key("open"), delivered, ..record(Column::Equal, state) };
        let found = Found {
            own: Some((&failed, LeaseSight::Time)),
            indexed: Some((&open, LeaseSight::Time)),
            followed: None,
        };
        name(&decide_claim(&claim(Column::CallId), found, &Known::default(), NOW))
    };
    assert_eq!(verdict(RecordState::Inflight, None), "follow");
    assert_eq!(verdict(settled(), None), "tell");
    assert_eq!(verdict(RecordState::Done(Some(output())), None), "replay undelivered");
    assert_eq!(verdict(RecordState::Done(Some(output())), Some(NOW)), "mine");
}

#[test]
fn a_record_saved_under_hold_is_held_for_every_caller() {
    let held = Record {
        delivered: Some(NOW.before(60 * SECOND)),
        expires: None,
        ..record(Column::Equal, settled())
    };
    assert_eq!(verdict(Column::Equal, &held), "tell");
}

// ---- operations of the owner ----

fn mine(state: RecordState) -> Record {
    Record { owner: owner(2), ..record(Column::Explicit, state) }
}

fn all_states() -> [RecordState; 5] {
    [
        RecordState::Inflight,
        RecordState::Done(Some(output())),
        RecordState::Failed(failure(true)),
        settled(),
        RecordState::Cancelled,
    ]
}

#[test]
fn started_is_written_by_the_owner_in_flight_only() {
    for state in all_states() {
        let fresh = Record { started: false, ..mine(state.clone()) };
        let decision = decide_start(&owner(2), Some(&fresh), NOW);
        if state == RecordState::Inflight {
            assert_eq!(decision.verdict, StartVerdict::Started);
            assert!(
                matches!(decision.write, Write::Put { record, .. } if record.started && record.version == 8)
            );
        } else {
            assert_eq!(decision, Decided { verdict: StartVerdict::Lost, write: Write::Nothing });
        }
        let other = decide_start(&owner(3), Some(&fresh), NOW);
        assert_eq!(other, Decided { verdict: StartVerdict::Lost, write: Write::Nothing });
    }
    assert_eq!(decide_start(&owner(2), None, NOW).verdict, StartVerdict::Lost);
    // An approval took a while, and the attempt begins only now.
    let by = NOW + Duration::from_secs(30);
    let asked = Record { started: false, seen_end_by: Some(by), ..mine(RecordState::Inflight) };
    let waited = Duration::from_secs(40);
    let decision = decide_start(&owner(2), Some(&asked), asked.created + waited);
    assert!(matches!(decision.write, Write::Put { record, .. } if record.seen_end_by == Some(by + waited)));
    let repeat = decide_start(&owner(2), Some(&mine(RecordState::Inflight)), NOW);
    assert_eq!(repeat, Decided { verdict: StartVerdict::Started, write: Write::Nothing });
}

#[test]
fn a_renewal_extends_only_own_records_in_flight() {
    let keep = DedupePolicy::default().keep;
    let claimed = mine(RecordState::Inflight);
    let renewed = decide_renew(&claimed, &keep, Some(&claimed), Absence::Removed, NOW);
    assert_eq!(renewed.verdict, RenewVerdict::Renewed);
    assert!(
        matches!(renewed.write, Write::Put { record, .. } if record.lease == Lease::Until(NOW + keep.lease))
    );
    let unknown = decide_renew(&claimed, &keep, Some(&mine(settled())), Absence::Removed, NOW);
    assert_eq!(unknown, Decided { verdict: RenewVerdict::MarkedUnknown, write: Write::Nothing });
    let other = decide_renew(
        &claimed,
        &keep,
        Some(&record(Column::Explicit, RecordState::Inflight)),
        Absence::Removed,
        NOW,
    );
    assert_eq!(other, Decided { verdict: RenewVerdict::Lost, write: Write::Nothing });
    // Regression (seed 3665): a renewal from a frozen process came after its save, and after the next run had replaced
    // the record. It brought the finished claim back.
    let removed = decide_renew(&claimed, &keep, None, Absence::Removed, NOW);
    assert_eq!(removed, Decided { verdict: RenewVerdict::Lost, write: Write::Nothing });
    let emptied = decide_renew(&claimed, &keep, None, Absence::StoreEmptied, NOW);
    assert!(
        matches!(emptied.write, Write::Put { record, index: IndexMove::PointIfFree, .. } if record.owner == owner(2))
    );
}

fn save(ending: Ending) -> Save {
    Save {
        claimed: Arc::new(mine(RecordState::Inflight)),
        ending,
        attempts: Vec::new(),
        delivered: None,
        hold: false,
        keep: DedupePolicy::default().keep,
    }
}

#[test]
fn an_answer_is_saved_by_the_owner_over_in_flight_and_unknown_and_over_nothing() {
    for ending in [Ending::Done(Some(output())), Ending::Failed(failure(true))] {
        let found = [None, Some(mine(RecordState::Inflight)), Some(mine(settled()))];
        for record in found {
            let decision = decide_save(&save(ending.clone()), record.as_ref(), None, NOW);
            let Write::Put { record: written, .. } = decision.write else { panic!("{record:?}") };
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
        (Some(mine(RecordState::Inflight)), true),
        (Some(mine(RecordState::Done(None))), false),
        (Some(mine(RecordState::Failed(failure(true)))), false),
    ] {
        let decision = decide_save(&save(unknown_ending()), found.as_ref(), None, NOW);
        assert_eq!(decision.write != Write::Nothing, saved, "{found:?}");
    }
}

#[test]
fn a_repeated_save_writes_nothing() {
    for (ending, state) in [
        (Ending::Done(Some(output())), RecordState::Done(Some(output()))),
        (Ending::Failed(failure(true)), RecordState::Failed(failure(true))),
        (unknown_ending(), settled()),
    ] {
        let found = mine(state);
        let decision = decide_save(&save(ending), Some(&found), None, NOW);
        assert_eq!(decision, Decided { verdict: SaveVerdict::Saved(found.receipt()), write: Write::Nothing });
    }
}

#[test]
fn a_save_under_another_owner_meets_the_fence() {
    for state in all_states() {
        for ending in [Ending::Done(None), Ending::Failed(failure(false)), unknown_ending()] {
            let found = record(Column::Explicit, state.clone());
            let decision = decide_save(&save(ending), Some(&found), None, NOW);
            assert_eq!(decision, Decided { verdict: SaveVerdict::FenceLost, write: Write::Nothing });
        }
    }
}

#[test]
fn a_kept_result_that_was_delivered_meanwhile_is_saved_as_delivered() {
    let late = Save { delivered: Some(NOW), ..save(Ending::Done(Some(output()))) };
    let Write::Put { record, .. } = decide_save(&late, None, None, NOW).write else { panic!() };
    assert_eq!(record.delivered, Some(NOW));
}

/// Regression (seed 2327): three claims in a row were applied, and their responses were lost. The first one had taken
/// over a keyless run in place. The call continued without the store and saved its result under its own run id, so the
/// record that it really owned stayed in flight as long as its process lived.
#[test]
fn a_save_after_an_unanswered_take_over_finds_its_record_through_the_index() {
    let taken =
        Record { key: key("taken over in place"), index: Some(key("i")), ..mine(RecordState::Inflight) };
    let decision = decide_save(&save(Ending::Done(Some(output()))), None, Some(&taken), NOW);
    assert!(
        matches!(decision.write, Write::Put { record, .. } if record.key == taken.key && !record.is_open())
    );
    let another = Record { owner: owner(9), ..taken };
    let decision = decide_save(&save(Ending::Done(Some(output()))), None, Some(&another), NOW);
    assert!(matches!(decision.write, Write::Put { record, .. } if record.key == key("k")));
}

#[test]
fn only_the_owner_releases_and_only_what_is_open() {
    let release = |call| Release { key: key("k"), index: Some(key("i")), owner: owner(call) };
    for state in all_states() {
        let found = mine(state);
        let removed = matches!(decide_release(&release(2), Some(&found), None), Write::Remove { .. });
        assert_eq!(removed, found.is_open(), "{:?}", found.state);
        assert_eq!(decide_release(&release(3), Some(&found), None), Write::Nothing);
    }
    let elsewhere = Record { key: key("taken over in place"), ..mine(RecordState::Inflight) };
    let write = decide_release(&release(2), None, Some(&elsewhere));
    assert!(matches!(write, Write::Remove { key, .. } if key == elsewhere.key));
    assert_eq!(decide_release(&release(2), None, None), Write::Nothing);
}

#[test]
fn a_delivery_mark_applies_to_one_response_only() {
    let told = mine(settled());
    let receipt = told.receipt();
    assert!(
        matches!(decide_delivered(&receipt, NOW, Some(&told)), Write::Put { record, .. } if record.delivered == Some(NOW))
    );
    let late_answer =
        told.written(RecordState::Done(Some(output())), &DedupePolicy::default().keep, false, NOW);
    assert_eq!(decide_delivered(&receipt, NOW, Some(&late_answer)), Write::Nothing);
    let another = Record { owner: owner(9), ..told };
    assert_eq!(decide_delivered(&receipt, NOW, Some(&another)), Write::Nothing);
    let running = mine(RecordState::Inflight);
    assert_eq!(decide_delivered(&running.receipt(), NOW, Some(&running)), Write::Nothing);
    for early in [Settles::WhenOwnerSays, Settles::By(NOW + SECOND)] {
        let not_over = mine(settles(early));
        let write = decide_delivered(&not_over.receipt(), NOW, Some(&not_over));
        assert_eq!(write, Write::Nothing, "that it is not over yet is no answer");
    }
    assert_eq!(decide_delivered(&receipt, NOW, None), Write::Nothing);
}

fn by_hand(resolution: Resolution) -> Resolve {
    Resolve::by_hand(key("k"), resolution)
}

#[test]
fn an_operator_settles_what_is_unknown_and_nothing_else() {
    let rules = Rules::from(&policy());
    for state in all_states() {
        let found = mine(state.clone());
        for resolution in [Resolution::Ran, Resolution::DidNotRun] {
            let verdict =
                decide_resolve(&by_hand(resolution), Some((&found, LeaseSight::Alive)), &rules, NOW).verdict;
            let unknown = state == settled();
            let expected = if unknown { ResolveVerdict::Resolved } else { ResolveVerdict::NotUnknown };
            assert_eq!(verdict, expected);
        }
    }
    let unknown = mine(settled());
    let ran =
        decide_resolve(&by_hand(Resolution::Ran), Some((&unknown, LeaseSight::Alive)), &rules, NOW).write;
    assert!(matches!(ran, Write::Put { record, .. } if record.state == RecordState::Done(None)));
    let not =
        decide_resolve(&by_hand(Resolution::DidNotRun), Some((&unknown, LeaseSight::Alive)), &rules, NOW)
            .write;
    assert!(matches!(not, Write::Remove { .. }));
}

#[test]
fn a_verification_settles_the_run_that_it_was_about_and_no_other() {
    let rules = Rules::from(&policy());
    let unknown = mine(settled());
    for resolution in [Resolution::Ran, Resolution::DidNotRun] {
        for (of, expected) in [(owner(2), ResolveVerdict::Resolved), (owner(3), ResolveVerdict::NotUnknown)] {
            let verified = Resolve { of: Some(of), ..by_hand(resolution) };
            let decided = decide_resolve(&verified, Some((&unknown, LeaseSight::Alive)), &rules, NOW);
            assert_eq!(decided.verdict, expected, "{resolution:?}");
            assert_eq!(decided.write == Write::Nothing, expected == ResolveVerdict::NotUnknown);
        }
    }
}

#[test]
fn time_alone_does_not_prove_no_run_if_the_end_must_be_observed() {
    let rules = Rules::from(&policy());
    for (settles_at, verdict) in [
        (Settles::By(NOW), ResolveVerdict::NotSettled(Some(Duration::ZERO))),
        (Settles::Settled, ResolveVerdict::Resolved),
    ] {
        let found = mine(settles(settles_at));
        for (resolution, expected) in
            [(Resolution::DidNotRun, verdict), (Resolution::Ran, ResolveVerdict::Resolved)]
        {
            let resolve = Resolve { needs_seen_end: true, ..by_hand(resolution) };
            let decided = decide_resolve(&resolve, Some((&found, LeaseSight::Alive)), &rules, NOW);
            assert_eq!(decided.verdict, expected, "{settles_at:?}");
        }
    }
}

#[test]
fn did_not_run_cannot_be_known_before_the_end() {
    let rules = Rules::from(&policy());
    for (state, left) in
        [(settles(Settles::By(NOW + 7 * SECOND)), Some(7 * SECOND)), (settles(Settles::WhenOwnerSays), None)]
    {
        let early = mine(state);
        let refused =
            decide_resolve(&by_hand(Resolution::DidNotRun), Some((&early, LeaseSight::Alive)), &rules, NOW);
        let verdict = ResolveVerdict::NotSettled(left);
        assert_eq!(refused, Decided { verdict, write: Write::Nothing });
        let ran = decide_resolve(&by_hand(Resolution::Ran), Some((&early, LeaseSight::Alive)), &rules, NOW);
        assert_eq!(ran.verdict, ResolveVerdict::Resolved, "that it ran may be seen at any time");
    }
    // The owner is gone, so no other process will report the end.
    for state in [RecordState::Inflight, settles(Settles::WhenOwnerSays)] {
        let left = mine(state);
        let found = Some((&left, LeaseSight::Gone));
        let refused = decide_resolve(&by_hand(Resolution::DidNotRun), found, &rules, NOW);
        assert_eq!(refused.verdict, ResolveVerdict::NotSettled(Some(rules.linger)));
        let Write::Put { record, .. } = refused.write else { panic!("{:?}", refused.write) };
        let RecordState::Unknown(unknown) = &record.state else { panic!("{record:?}") };
        assert_eq!(unknown.settles, Settles::By(NOW + rules.linger));
        let ran = decide_resolve(&by_hand(Resolution::Ran), found, &rules, NOW);
        assert_eq!(ran.verdict, ResolveVerdict::Resolved);
    }
}

#[test]
fn the_end_is_recorded_once_and_never_taken_back() {
    let ending = |settles| {
        save(Ending::Unknown(UnknownEnding { settles, ..UnknownEnding::settled(Observed::NoAnswer) }))
    };
    let after =
        |found: RecordState, said| match decide_save(&ending(said), Some(&mine(found)), None, NOW).write {
            Write::Put { record, .. } => {
                let RecordState::Unknown(unknown) = &record.state else { panic!("{record:?}") };
                Some(unknown.settles)
            }
            Write::Nothing => None,
            other @ Write::Remove { .. } => panic!("{other:?}"),
        };
    let in_a_second = SettlesIn::After(SECOND);
    assert_eq!(after(settles(Settles::WhenOwnerSays), in_a_second), Some(Settles::By(NOW + SECOND)));
    assert_eq!(after(settles(Settles::WhenOwnerSays), SettlesIn::Settled), Some(Settles::Settled));
    assert_eq!(after(settles(Settles::By(NOW)), SettlesIn::Settled), Some(Settles::Settled));
    // An observed end is better than an estimated one. An announced time is never moved later.
    assert_eq!(after(settles(Settles::By(NOW + 2 * SECOND)), in_a_second), Some(Settles::By(NOW + SECOND)));
    assert_eq!(after(settles(Settles::By(NOW + SECOND)), in_a_second), None);
    for found in [Settles::Settled, Settles::By(NOW)] {
        for said in [SettlesIn::WhenOwnerSays, in_a_second] {
            assert_eq!(after(settles(found), said), None, "{found:?} {said:?}");
        }
    }
    // The delivery of a final response is not lost with the write.
    let told = Record { delivered: Some(NOW), ..mine(settles(Settles::By(NOW))) };
    let written = decide_save(&ending(SettlesIn::Settled), Some(&told), None, NOW).write;
    assert!(matches!(written, Write::Put { record, .. } if record.delivered == Some(NOW)));
}

#[test]
fn open_records_live_a_day_and_under_hold_until_settled() {
    let keep = DedupePolicy::default().keep;
    let held = Save { hold: true, ..save(unknown_ending()) };
    let Write::Put { record, .. } = decide_save(&held, None, None, NOW).write else { panic!() };
    assert_eq!(record.expires, None);
    for (ending, life) in [
        (unknown_ending(), keep.open),
        (Ending::Done(None), keep.done),
        (Ending::Failed(failure(true)), keep.failed),
    ] {
        let Write::Put { record, .. } = decide_save(&save(ending), None, None, NOW).write else { panic!() };
        assert_eq!(record.expires, Some(NOW + life));
    }
}

// ---- the stored form ----

#[test]
fn records_survive_serialization() {
    let described = Output { metadata: Some(RawJson::from_trusted(r#"{"a":[1,2]}"#)), ..output() };
    let answers = [RecordState::Done(None), RecordState::Done(Some(described))];
    for state in all_states().into_iter().chain(answers) {
        for column in COLUMNS {
            let mut before = record(column, state.clone());
            before.lease = Lease::Record;
            before.attempts = vec![AttemptFact {
                number: 1,
                code: None,
                started: NOW,
                finished: NOW + SECOND,
                rule: Some("http.503".into()),
                retriable: true,
            }];
            assert_eq!(Record::from_json(&before.to_json()).unwrap(), before);
        }
    }
}

#[test]
fn an_unknown_outcome_is_stored_as_a_failure() {
    let text = mine(settled()).to_json();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((json["format"].as_u64(), json["state"].as_str()), (Some(1), Some("failed")));
    assert_eq!(json["error"]["code"], "outcome_unknown");
}

#[test]
fn a_record_of_a_newer_format_or_a_damaged_one_is_refused_with_its_reason() {
    let text = mine(RecordState::Inflight).to_json();
    let newer = text.replacen("\"format\":1", "\"format\":2", 1);
    assert!(matches!(Record::from_json(&newer), Err(UnreadableRecord::Newer(2))));
    assert!(matches!(Record::from_json(&text[..text.len() - 1]), Err(UnreadableRecord::Damaged(_))));
    assert!(matches!(Record::from_json("{}"), Err(UnreadableRecord::Damaged(_))));
}

#[test]
fn answers_that_a_computed_key_finds_count_only_since_duplicates_are_recognised_again() {
    let age = NOW.since(record(Column::Equal, RecordState::Inflight).updated);
    let verdict = |column, state: RecordState, since: Duration| {
        let mut claim = claim(column);
        claim.rules.computed_since = Some(NOW.before(since));
        let record = record(column, state);
        decide(column, &claim, Some(&record), LeaseSight::Alive).verdict
    };
    let (later, then) = (age - SECOND, age);
    for column in COLUMNS {
        let done = |since| verdict(column, RecordState::Done(None), since);
        assert!(matches!(done(then), ClaimVerdict::Replay(_)), "{column:?}: recorded since then");
        match column {
            // The key is not explicit, or these rules would not apply.
            Column::Explicit | Column::Equal => {
                assert!(matches!(done(later), ClaimVerdict::Mine(_)), "{column:?}")
            }
            Column::CallId | Column::Waiter => {
                assert!(matches!(done(later), ClaimVerdict::Replay(_)), "{column:?}")
            }
        }
        let open = |state| verdict(column, state, later);
        assert!(matches!(open(RecordState::Inflight), ClaimVerdict::Follow(_)), "{column:?}");
        assert!(matches!(open(settled()), ClaimVerdict::Unknown(_)), "{column:?}");
    }
}

/// A claim may lack a record that it cannot find, but must have every record that it can find.
#[test]
fn a_claim_may_find_its_own_record_and_those_of_an_index_or_a_wait() {
    for (column, finds_others) in
        [(Column::Explicit, false), (Column::CallId, true), (Column::Equal, true), (Column::Waiter, true)]
    {
        assert!(claim(column).may_find(key("k")), "{column:?}");
        assert_eq!(claim(column).may_find(key("another")), finds_others, "{column:?}");
    }
    let waits = Claim { role: Role::Waiter { followed: key("followed") }, ..claim(Column::Explicit) };
    assert!(waits.may_find(key("followed")));
}
