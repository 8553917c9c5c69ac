//! The tables, row by row. One row, one test; every column in it.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::Timestamp;
use crate::code::Code;
use crate::id::{Digest, Namespace, RequestId, ToolName, ToolRef};
use crate::key::Key;
use crate::output::{Output, RawJson};
use crate::policy::{AfterUnknown, CacheFailures, DedupePolicy};

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
        run: RunId("run-2".into()),
        rules: Rules::from(&DedupePolicy::default()),
        tool: tool(),
        request: RequestId::new("second").unwrap(),
        tool_call: None,
        session: None,
        actor: None,
        tenant: None,
    }
}

/// A record of somebody else, found through the column, a minute old.
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
        delivered: None,
        version: 7,
        arrived: long_ago,
        created: long_ago,
        updated: long_ago,
        expires: Some(NOW + 3600 * SECOND),
        request: RequestId::new("first").unwrap(),
        tool_call: None,
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
    decide_claim(claim, found, &[], NOW)
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
        ClaimVerdict::Unknown(_) => "tell",
        ClaimVerdict::Conflict => "conflict",
        ClaimVerdict::Nothing => "nothing",
        ClaimVerdict::Full => "full",
        ClaimVerdict::Closed => "closed",
    }
}

/// One verdict per column, in the order of the table.
fn row(make: impl Fn(Column) -> Record) -> [&'static str; 4] {
    COLUMNS.map(|column| verdict(column, &make(column)))
}

#[test]
fn nothing_found_is_mine_in_every_column() {
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
fn own_token_in_flight_or_unknown_is_mine_again() {
    for state in [RecordState::Inflight, RecordState::Unknown] {
        let own = |column| Record { owner: owner(2), ..record(column, state.clone()) };
        assert_eq!(row(own), ["mine"; 4]);
        for column in COLUMNS {
            let decision = decide(column, &claim(column), Some(&own(column)), LeaseSight::Time);
            let ClaimVerdict::Mine(again) = decision.verdict else { panic!("{column:?}") };
            assert_eq!(again.state, RecordState::Inflight);
            assert!(again.started, "what was started stays started");
        }
    }
}

#[test]
fn in_flight_with_a_lease_that_holds_is_followed() {
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
fn a_lapsed_run_that_is_not_safe_to_repeat_becomes_unknown_and_is_told() {
    let lapsed = |column| Record { lease: Lease::Until(NOW), ..record(column, RecordState::Inflight) };
    assert_eq!(row(lapsed), ["tell"; 4]);
    for column in COLUMNS {
        let decision = decide(column, &claim(column), Some(&lapsed(column)), LeaseSight::Time);
        let Write::Put { record: written, index: IndexMove::Keep, .. } = decision.write else { panic!() };
        assert_eq!(written.state, RecordState::Unknown);
        assert_eq!(written.owner, owner(1), "its late answer must still count");
        assert_eq!(decision.verdict, ClaimVerdict::Unknown(written.receipt()));
    }
}

#[test]
fn done_and_not_delivered_is_given_again() {
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
    let together = |column| Record { arrived: NOW.before(Duration::from_millis(20)), ..done(column) };
    assert_eq!(row(together), ["replay", "replay", "replay double dispatch", "answer"]);
    let later = |column| Record { arrived: NOW.before(Duration::from_millis(21)), ..done(column) };
    assert_eq!(row(later), ["replay", "replay", "mine", "answer"]);
}

#[test]
fn without_a_span_for_it_two_calls_of_one_millisecond_are_two() {
    let done = Record {
        delivered: Some(NOW),
        arrived: NOW,
        ..record(Column::Equal, RecordState::Done(Some(output())))
    };
    let mut second = claim(Column::Equal);
    assert_eq!(
        name(&decide(Column::Equal, &second, Some(&done), LeaseSight::Time)),
        "replay double dispatch"
    );
    second.rules.double_dispatch = Duration::ZERO;
    assert_eq!(name(&decide(Column::Equal, &second, Some(&done), LeaseSight::Time)), "mine");
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
    assert_eq!(name(&decide(Column::Equal, &second, Some(&done), LeaseSight::Time)), "mine");
    let one_id = Record { call_id: None, ..done };
    assert_eq!(
        name(&decide(Column::Equal, &second, Some(&one_id), LeaseSight::Time)),
        "replay double dispatch"
    );
}

#[test]
fn what_this_process_knows_about_a_delivery_counts_before_the_store_knows_it() {
    let done = record(Column::Equal, RecordState::Done(Some(output())));
    let found = Found { indexed: Some((&done, LeaseSight::Time)), ..Found::default() };
    let known = [(done.receipt(), NOW)];
    assert_eq!(name(&decide_claim(&claim(Column::Equal), found, &known, NOW)), "mine");
    let other = Receipt { version: 6, ..done.receipt() };
    assert_eq!(name(&decide_claim(&claim(Column::Equal), found, &[(other, NOW)], NOW)), "replay undelivered");
}

#[test]
fn failed_is_given_again_by_policy_to_explicit_keys_and_always_to_waiters() {
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
fn unknown_is_told_until_that_arrived_and_ten_seconds_longer() {
    let unknown = |column| record(column, RecordState::Unknown);
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
fn a_cancelled_record_answers_nobody() {
    assert_eq!(row(|column| record(column, RecordState::Cancelled)), ["mine"; 4]);
}

#[test]
fn an_explicit_key_with_other_arguments_conflicts_in_every_state_for_waiters_too() {
    let states = [
        RecordState::Inflight,
        RecordState::Done(Some(output())),
        RecordState::Failed(failure(true)),
        RecordState::Unknown,
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
fn a_look_up_writes_nothing_whatever_it_finds() {
    let states = [
        RecordState::Inflight,
        RecordState::Done(None),
        RecordState::Failed(failure(false)),
        RecordState::Unknown,
        RecordState::Cancelled,
    ];
    for column in COLUMNS {
        let look = Claim { intent: Intent::Look, ..claim(column) };
        assert_eq!(name(&decide(column, &look, None, LeaseSight::Time)), "nothing");
        for state in &states {
            for sight in [LeaseSight::Alive, LeaseSight::Gone] {
                let decision = decide(column, &look, Some(&record(column, state.clone())), sight);
                assert_eq!(decision.write, Write::Nothing);
                assert_ne!(name(&decision), "mine");
            }
        }
    }
}

#[test]
fn whoever_waited_hears_what_there_is_and_takes_nothing_from_anybody() {
    for column in COLUMNS {
        let heard = |record: &Record, sight| {
            let claim =
                Claim::to_hear_of(record, owner(2), Rules::from(&DedupePolicy::default()), NOW).unwrap();
            let seen = Some((record, sight));
            let decided = decide_claim(&claim, Found { followed: seen, own: seen, indexed: seen }, &[], NOW);
            (name(&decided), decided.write)
        };
        for (state, told) in [
            (RecordState::Done(Some(output())), "answer"),
            (RecordState::Failed(failure(false)), "answer"),
            (RecordState::Failed(failure(true)), "answer"),
            (RecordState::Unknown, "tell"),
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
        assert_eq!(told, "tell");
        assert!(matches!(write, Write::Put { record, .. } if record.state == RecordState::Unknown));
        let rules = Rules::from(&DedupePolicy::default());
        for repeatable in
            [Record { started: false, ..running.clone() }, Record { retry_safe: true, ..running.clone() }]
        {
            assert_eq!(Claim::to_hear_of(&repeatable, owner(2), rules, NOW), None, "a call finds out");
        }
    }
}

#[test]
fn what_only_the_index_can_find_goes_when_the_index_moves_and_the_rest_stays() {
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
fn a_waiter_whose_record_is_gone_follows_what_took_its_place() {
    let successor = record(Column::Equal, RecordState::Inflight);
    let found = Found { indexed: Some((&successor, LeaseSight::Time)), ..Found::default() };
    let mut waiter = claim(Column::Waiter);
    waiter.role = Role::Waiter { followed: key("gone") };
    assert_eq!(name(&decide_claim(&waiter, found, &[], NOW)), "follow");
}

/// Regression (seed 6600): four calls waited for the record of a dispatch whose process had died before its
/// start. Each of them took it over under an address of its own, and because the record itself stayed, the next
/// one found it lapsed as well: four runs instead of one.
#[test]
fn what_is_taken_over_is_gone_for_the_next_waiter() {
    let lapsed =
        Record { lease: Lease::Until(NOW), started: false, ..record(Column::CallId, RecordState::Inflight) };
    let found = Found {
        followed: Some((&lapsed, LeaseSight::Time)),
        indexed: Some((&lapsed, LeaseSight::Time)),
        own: None,
    };
    let first = decide_claim(&claim(Column::Waiter), found, &[], NOW);
    let Write::Put { record: taken, remove, .. } = first.write else { panic!("{:?}", first.verdict) };
    assert_eq!(remove, [lapsed.key]);
    let found = Found { indexed: Some((&taken, LeaseSight::Time)), ..Found::default() };
    let second = Claim { owner: owner(3), ..claim(Column::Waiter) };
    assert_eq!(decide_claim(&second, found, &[], NOW).verdict, ClaimVerdict::Follow(taken.key));
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
        decide_claim(&claim(Column::Waiter), found, &[], NOW).verdict,
        ClaimVerdict::Follow(key("live"))
    );
}

/// Regression (seeds 15583 and 23936): a dispatch that had failed was sent again. It found its own record, ran, and
/// moved the index away from an equal run that was still going on; when the caller of that run came back without
/// an id, nothing led to it any more, and it ran a second time. The same with an answer that was not delivered.
#[test]
fn a_failed_dispatch_that_comes_again_joins_an_equal_run_that_owes_its_answer() {
    let failed = record(Column::CallId, RecordState::Failed(failure(true)));
    let verdict = |state, delivered| {
        let open = Record { key: key("open"), delivered, ..record(Column::Equal, state) };
        let found = Found {
            own: Some((&failed, LeaseSight::Time)),
            indexed: Some((&open, LeaseSight::Time)),
            followed: None,
        };
        name(&decide_claim(&claim(Column::CallId), found, &[], NOW))
    };
    assert_eq!(verdict(RecordState::Inflight, None), "follow");
    assert_eq!(verdict(RecordState::Unknown, None), "tell");
    assert_eq!(verdict(RecordState::Done(Some(output())), None), "replay undelivered");
    assert_eq!(verdict(RecordState::Done(Some(output())), Some(NOW)), "mine");
}

#[test]
fn what_was_saved_under_hold_is_held_whoever_asks() {
    let held = Record {
        delivered: Some(NOW.before(60 * SECOND)),
        expires: None,
        ..record(Column::Equal, RecordState::Unknown)
    };
    assert_eq!(verdict(Column::Equal, &held), "tell");
}

// ---- what the owner does ----

fn mine(state: RecordState) -> Record {
    Record { owner: owner(2), ..record(Column::Explicit, state) }
}

fn all_states() -> [RecordState; 5] {
    [
        RecordState::Inflight,
        RecordState::Done(Some(output())),
        RecordState::Failed(failure(true)),
        RecordState::Unknown,
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
    let repeat = decide_start(&owner(2), Some(&mine(RecordState::Inflight)), NOW);
    assert_eq!(repeat, Decided { verdict: StartVerdict::Started, write: Write::Nothing });
}

#[test]
fn a_renewal_extends_only_what_is_ours_and_in_flight() {
    let keep = DedupePolicy::default().keep;
    let claimed = mine(RecordState::Inflight);
    let renewed = decide_renew(&claimed, &keep, Some(&claimed), Absence::Removed, NOW);
    assert_eq!(renewed.verdict, RenewVerdict::Renewed);
    assert!(
        matches!(renewed.write, Write::Put { record, .. } if record.lease == Lease::Until(NOW + keep.lease))
    );
    let unknown = decide_renew(&claimed, &keep, Some(&mine(RecordState::Unknown)), Absence::Removed, NOW);
    assert_eq!(unknown, Decided { verdict: RenewVerdict::MarkedUnknown, write: Write::Nothing });
    let other = decide_renew(
        &claimed,
        &keep,
        Some(&record(Column::Explicit, RecordState::Inflight)),
        Absence::Removed,
        NOW,
    );
    assert_eq!(other, Decided { verdict: RenewVerdict::Lost, write: Write::Nothing });
    // Regression (seed 3665): a renewal of a frozen process came after its save, and after the record had been
    // replaced by the next run; it brought the finished claim back to life.
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
        let found = [None, Some(mine(RecordState::Inflight)), Some(mine(RecordState::Unknown))];
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
        let decision = decide_save(&save(Ending::Unknown), found.as_ref(), None, NOW);
        assert_eq!(decision.write != Write::Nothing, saved, "{found:?}");
    }
}

#[test]
fn a_save_that_was_saved_before_says_so_and_writes_nothing() {
    for (ending, state) in [
        (Ending::Done(Some(output())), RecordState::Done(Some(output()))),
        (Ending::Failed(failure(true)), RecordState::Failed(failure(true))),
        (Ending::Unknown, RecordState::Unknown),
    ] {
        let found = mine(state);
        let decision = decide_save(&save(ending), Some(&found), None, NOW);
        assert_eq!(decision, Decided { verdict: SaveVerdict::Saved(found.receipt()), write: Write::Nothing });
    }
}

#[test]
fn a_save_under_another_owner_meets_the_fence() {
    for state in all_states() {
        for ending in [Ending::Done(None), Ending::Failed(failure(false)), Ending::Unknown] {
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

/// Regression (seed 2327): three claims in a row were applied and never answered. The first one had taken over
/// a keyless run in place; the call went on without the store and saved its answer under its own run id, so the
/// record that it really held stayed in flight for as long as its process lived.
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
fn a_delivery_mark_hits_the_answer_it_is_about_and_no_other() {
    let told = mine(RecordState::Unknown);
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
    assert_eq!(decide_delivered(&receipt, NOW, None), Write::Nothing);
}

#[test]
fn an_operator_settles_what_is_unknown_and_nothing_else() {
    let keep = DedupePolicy::default().keep;
    for state in all_states() {
        let found = mine(state.clone());
        for resolution in [Resolution::Ran, Resolution::DidNotRun] {
            let settled = decide_resolve(Some(&found), resolution, &keep, NOW).verdict;
            assert_eq!(settled, state == RecordState::Unknown);
        }
    }
    let unknown = mine(RecordState::Unknown);
    let ran = decide_resolve(Some(&unknown), Resolution::Ran, &keep, NOW).write;
    assert!(matches!(ran, Write::Put { record, .. } if record.state == RecordState::Done(None)));
    let not = decide_resolve(Some(&unknown), Resolution::DidNotRun, &keep, NOW).write;
    assert!(matches!(not, Write::Remove { .. }));
}

#[test]
fn open_records_live_a_day_and_under_hold_until_settled() {
    let keep = DedupePolicy::default().keep;
    let held = Save { hold: true, ..save(Ending::Unknown) };
    let Write::Put { record, .. } = decide_save(&held, None, None, NOW).write else { panic!() };
    assert_eq!(record.expires, None);
    for (ending, life) in [
        (Ending::Unknown, keep.open),
        (Ending::Done(None), keep.done),
        (Ending::Failed(failure(true)), keep.failed),
    ] {
        let Write::Put { record, .. } = decide_save(&save(ending), None, None, NOW).write else { panic!() };
        assert_eq!(record.expires, Some(NOW + life));
    }
}

// ---- the stored form ----

#[test]
fn records_survive_being_written_down() {
    let described = Output { metadata: Some(RawJson::from_trusted(r#"{"a":[1,2]}"#)), ..output() };
    let answers = [RecordState::Done(None), RecordState::Done(Some(described))];
    for state in all_states().into_iter().chain(answers) {
        for column in COLUMNS {
            let mut before = record(column, state.clone());
            before.lease = Lease::Record;
            before.attempts = vec![AttemptFact {
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
fn an_unknown_outcome_is_stored_as_a_failure_that_says_so() {
    let text = mine(RecordState::Unknown).to_json();
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
            // Nobody gave the key, or these rules would not say so.
            Column::Explicit | Column::Equal => {
                assert!(matches!(done(later), ClaimVerdict::Mine(_)), "{column:?}")
            }
            Column::CallId | Column::Waiter => {
                assert!(matches!(done(later), ClaimVerdict::Replay(_)), "{column:?}")
            }
        }
        let open = |state| verdict(column, state, later);
        assert!(matches!(open(RecordState::Inflight), ClaimVerdict::Follow(_)), "{column:?}");
        assert!(matches!(open(RecordState::Unknown), ClaimVerdict::Unknown(_)), "{column:?}");
    }
}

/// What a claim cannot find need not be known to it, and what it can must be.
#[test]
fn a_claim_may_find_its_own_record_and_whatever_an_index_or_a_wait_leads_to() {
    for (column, finds_others) in
        [(Column::Explicit, false), (Column::CallId, true), (Column::Equal, true), (Column::Waiter, true)]
    {
        assert!(claim(column).may_find(key("k")), "{column:?}");
        assert_eq!(claim(column).may_find(key("another")), finds_others, "{column:?}");
    }
    let waits = Claim { role: Role::Waiter { followed: key("followed") }, ..claim(Column::Explicit) };
    assert!(waits.may_find(key("followed")));
}
