//! Tests of the choice between several records that a claim finds.

use super::*;

fn seen(record: &Record) -> Option<(&Record, LeaseSight)> {
    Some((record, LeaseSight::Time))
}

/// Returns an equal run with its own key.
fn equal_run(state: RecordState) -> Record {
    Record { key: key("equal"), ..record(Column::Equal, state) }
}

#[test]
fn a_dispatch_that_runs_or_has_its_answer_does_not_look_at_an_equal_run() {
    let equal = equal_run(RecordState::Done(Some(output())));
    let verdict = |own: &Record| {
        let found = Found { own: seen(own), indexed: seen(&equal), followed: None };
        decide_claim(&claim(Column::CallId), found, &Known::default(), NOW).verdict
    };
    // It holds its claim, and its attempt is about to be sent.
    let running = Record { started: false, ..record(Column::CallId, RecordState::Inflight) };
    assert_eq!(verdict(&running), ClaimVerdict::Follow(running.key));
    let done = record(Column::CallId, RecordState::Done(Some(output())));
    let ClaimVerdict::Replay(replay) = verdict(&done) else { panic!("{:?}", verdict(&done)) };
    assert_eq!((replay.reason, replay.receipt), (ReplayReason::SameKey, done.receipt()));
}

#[test]
fn a_repeated_failed_dispatch_gets_no_result_delivered_elsewhere() {
    let failed = record(Column::CallId, RecordState::Failed(failure(true)));
    let arrived = Record { delivered: Some(NOW), ..equal_run(RecordState::Done(Some(output()))) };
    let found = Found { own: seen(&failed), indexed: seen(&arrived), followed: None };
    let overlapped = Known { overlapped: vec![arrived.owner.clone()], ..Known::default() };
    let decision = decide_claim(&claim(Column::CallId), found, &overlapped, NOW);
    assert_eq!(name(&decision), "mine");
    let Write::Put { record: written, remove, .. } = decision.write else { panic!("{:?}", decision.write) };
    assert_eq!(
        (written.key, remove),
        (failed.key, vec![arrived.key]),
        "nothing finds the other one any more"
    );
}

#[test]
fn a_repeated_claim_leaves_an_equal_run_that_is_open() {
    let again = Record { owner: owner(2), ..record(Column::CallId, RecordState::Inflight) };
    for open in [RecordState::Inflight, settled()] {
        let equal = equal_run(open);
        let found = Found { own: seen(&again), indexed: seen(&equal), followed: None };
        let decision = decide_claim(&claim(Column::CallId), found, &Known::default(), NOW);
        assert_eq!(name(&decision), "mine");
        assert!(matches!(decision.write, Write::Put { remove, .. } if remove.is_empty()));
    }
}

#[test]
fn a_waiter_keeps_its_record_while_it_runs_or_has_ended() {
    let equal = equal_run(RecordState::Done(Some(output())));
    let verdict = |followed: &Record| {
        let found = Found { followed: seen(followed), indexed: seen(&equal), own: None };
        decide_claim(&claim(Column::Waiter), found, &Known::default(), NOW).verdict
    };
    let running = Record { started: false, ..record(Column::Waiter, RecordState::Inflight) };
    assert_eq!(verdict(&running), ClaimVerdict::Follow(running.key));
    let failed = record(Column::Waiter, RecordState::Failed(failure(false)));
    let ClaimVerdict::Replay(replay) = verdict(&failed) else { panic!("{:?}", verdict(&failed)) };
    assert_eq!((replay.reason, replay.answer), (ReplayReason::Waited, Err(failure(false))));
}

#[test]
fn a_waiter_whose_record_is_gone_finds_its_own_before_an_equal_one() {
    let own = record(Column::CallId, RecordState::Done(Some(output())));
    let equal = equal_run(RecordState::Inflight);
    let waiter = Claim { role: Role::Waiter { followed: key("gone") }, ..claim(Column::CallId) };
    let verdict = |own: &Record| {
        let found = Found { own: seen(own), indexed: seen(&equal), followed: None };
        decide_claim(&waiter, found, &Known::default(), NOW).verdict
    };
    assert!(matches!(verdict(&own), ClaimVerdict::Replay(replay) if replay.receipt == own.receipt()));
    let lapsed =
        Record { lease: Lease::Until(NOW), started: false, ..record(Column::CallId, RecordState::Inflight) };
    assert_eq!(verdict(&lapsed), ClaimVerdict::Follow(equal.key), "of all who waited one runs");
}

#[test]
fn a_call_runs_again_by_itself_only_where_the_index_leads_to_the_record() {
    let runs_in = |claim: &Claim, record: &Record| {
        let found = Found { own: seen(record), ..Found::default() };
        let ClaimVerdict::Unknown(told) = decide_claim(claim, found, &Known::default(), NOW).verdict else {
            panic!("{record:?}")
        };
        told.runs_in
    };
    let (with, without) = (record(Column::CallId, settled()), record(Column::Explicit, settled()));
    assert_eq!(runs_in(&claim(Column::CallId), &with), Some(10 * SECOND));
    assert_eq!(runs_in(&claim(Column::CallId), &without), None);
    assert_eq!(runs_in(&claim(Column::Explicit), &with), None);
}
