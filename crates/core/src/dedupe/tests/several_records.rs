//! Tests of the choice between several records that a claim finds.

use super::*;

fn found(record: &DedupeRecord) -> Option<(&DedupeRecord, LeaseOwnerState)> {
    Some((record, LeaseOwnerState::Time))
}

/// Returns an equal run with its own key.
fn equal_run(state: DedupeState) -> DedupeRecord {
    DedupeRecord { key: key("equal"), ..record(ClaimTestColumn::Equal, state) }
}

#[test]
fn a_dispatch_that_runs_or_has_its_answer_ignores_an_equal_run() {
    let equal = equal_run(DedupeState::Done(Some(output())));
    let verdict = |own: &DedupeRecord| {
        let found = FoundRecords { own: found(own), indexed: found(&equal), followed: None };
        decide_claim(&claim(ClaimTestColumn::CallId), found, &LocalKnowledge::default(), NOW).verdict
    };
    // It holds its claim, and its attempt is about to be sent.
    let running = DedupeRecord { started: false, ..record(ClaimTestColumn::CallId, DedupeState::Inflight) };
    assert_eq!(verdict(&running), ClaimVerdict::Follow(running.key));
    let done = record(ClaimTestColumn::CallId, DedupeState::Done(Some(output())));
    let ClaimVerdict::Replay(replay) = verdict(&done) else { panic!("{:?}", verdict(&done)) };
    assert_eq!((replay.reason, replay.receipt), (ReplayReason::SameKey, done.receipt()));
}

#[test]
fn a_repeated_failed_dispatch_gets_no_result_that_another_caller_received() {
    let failed = record(ClaimTestColumn::CallId, DedupeState::Failed(failure(true)));
    let arrived = DedupeRecord { delivered: Some(NOW), ..equal_run(DedupeState::Done(Some(output()))) };
    let found = FoundRecords { own: found(&failed), indexed: found(&arrived), followed: None };
    let overlapped = LocalKnowledge { overlapped: vec![arrived.owner.clone()], ..LocalKnowledge::default() };
    let decision = decide_claim(&claim(ClaimTestColumn::CallId), found, &overlapped, NOW);
    assert_eq!(name(&decision), "mine");
    let RecordWrite::Put { record: written, remove, .. } = decision.write else {
        panic!("{:?}", decision.write)
    };
    assert_eq!(
        (written.key, remove),
        (failed.key, vec![arrived.key]),
        "nothing finds the other one any more"
    );
}

#[test]
fn a_repeated_claim_leaves_an_equal_run_that_is_open() {
    let again = DedupeRecord { owner: owner(2), ..record(ClaimTestColumn::CallId, DedupeState::Inflight) };
    for open in [DedupeState::Inflight, settled()] {
        let equal = equal_run(open);
        let found = FoundRecords { own: found(&again), indexed: found(&equal), followed: None };
        let decision = decide_claim(&claim(ClaimTestColumn::CallId), found, &LocalKnowledge::default(), NOW);
        assert_eq!(name(&decision), "mine");
        assert!(matches!(decision.write, RecordWrite::Put { remove, .. } if remove.is_empty()));
    }
}

#[test]
fn a_waiter_keeps_its_record_while_it_runs_or_has_ended() {
    let equal = equal_run(DedupeState::Done(Some(output())));
    let verdict = |followed: &DedupeRecord| {
        let found = FoundRecords { followed: found(followed), indexed: found(&equal), own: None };
        decide_claim(&claim(ClaimTestColumn::Waiter), found, &LocalKnowledge::default(), NOW).verdict
    };
    let running = DedupeRecord { started: false, ..record(ClaimTestColumn::Waiter, DedupeState::Inflight) };
    assert_eq!(verdict(&running), ClaimVerdict::Follow(running.key));
    let failed = record(ClaimTestColumn::Waiter, DedupeState::Failed(failure(false)));
    let ClaimVerdict::Replay(replay) = verdict(&failed) else { panic!("{:?}", verdict(&failed)) };
    assert_eq!((replay.reason, replay.answer), (ReplayReason::Waited, Err(failure(false))));
}

#[test]
fn a_waiter_whose_record_was_removed_finds_its_own_before_an_equal_one() {
    let own = record(ClaimTestColumn::CallId, DedupeState::Done(Some(output())));
    let equal = equal_run(DedupeState::Inflight);
    let waiter =
        Claim { role: ClaimRole::Waiter { followed: key("gone") }, ..claim(ClaimTestColumn::CallId) };
    let verdict = |own: &DedupeRecord| {
        let found = FoundRecords { own: found(own), indexed: found(&equal), followed: None };
        decide_claim(&waiter, found, &LocalKnowledge::default(), NOW).verdict
    };
    assert!(matches!(verdict(&own), ClaimVerdict::Replay(replay) if replay.receipt == own.receipt()));
    let lapsed = DedupeRecord {
        lease: Lease::Until(NOW),
        started: false,
        ..record(ClaimTestColumn::CallId, DedupeState::Inflight)
    };
    assert_eq!(verdict(&lapsed), ClaimVerdict::Follow(equal.key), "of all who waited one runs");
}

#[test]
fn a_call_runs_again_by_itself_only_where_the_index_leads_to_the_record() {
    let runs_in = |claim: &Claim, record: &DedupeRecord| {
        let found = FoundRecords { own: found(record), ..FoundRecords::default() };
        let ClaimVerdict::Unknown(unknown) =
            decide_claim(claim, found, &LocalKnowledge::default(), NOW).verdict
        else {
            panic!("{record:?}")
        };
        unknown.runs_in
    };
    let (with, without) =
        (record(ClaimTestColumn::CallId, settled()), record(ClaimTestColumn::Explicit, settled()));
    assert_eq!(runs_in(&claim(ClaimTestColumn::CallId), &with), Some(10 * SECOND));
    assert_eq!(runs_in(&claim(ClaimTestColumn::CallId), &without), None);
    assert_eq!(runs_in(&claim(ClaimTestColumn::Explicit), &with), None);
}
