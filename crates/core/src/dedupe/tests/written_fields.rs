//! Tests of the fields that each write leaves in a record.

use super::*;

fn put(write: RecordWrite) -> DedupeRecord {
    match write {
        RecordWrite::Put { record, .. } => (*record).clone(),
        other @ (RecordWrite::Nothing | RecordWrite::Remove { .. }) => panic!("{other:?}"),
    }
}

#[test]
fn a_start_changes_only_its_own_fields() {
    let claimed = DedupeRecord { started: false, ..own_record(DedupeState::Inflight) };
    let started = put(decide_start(&owner(2), Some(&claimed), NOW).write);
    assert_eq!(started, DedupeRecord { started: true, version: 8, updated: NOW, ..claimed });
}

#[test]
fn a_renewal_extends_lease_and_lifetime_and_nothing_else() {
    let keep = DedupePolicy::default().keep;
    let claimed = own_record(DedupeState::Inflight);
    let (lease, expires) = (Lease::Until(NOW + keep.lease), Some(NOW + keep.open));
    let renewed = put(decide_renew(&claimed, &keep, Some(&claimed), RecordAbsence::Removed, NOW).write);
    assert_eq!(renewed, DedupeRecord { lease, expires, updated: NOW, version: 8, ..claimed.clone() });
    // The version of this key before the store was emptied is unknown, so the new version is one that it never had.
    let again = put(decide_renew(&claimed, &keep, None, RecordAbsence::StoreEmptied, NOW).write);
    let version = NOW.as_millis();
    assert_eq!(again, DedupeRecord { lease, expires, updated: NOW, version, ..claimed });
}

#[test]
fn a_version_after_a_loss_is_above_every_version_before_it() {
    let saved = |version| {
        let claimed = Arc::new(DedupeRecord { version, ..own_record(DedupeState::Inflight) });
        let save = SaveRequest { claimed, ..save(RunOutcome::Done(None)) };
        put(decide_save(&save, None, None, NOW).write).version
    };
    assert_eq!(saved(7), NOW.as_millis() + 1);
    assert_eq!(saved(NOW.as_millis()), NOW.as_millis() + 2);
}

#[test]
fn a_saved_result_marks_the_record_as_started() {
    let unmarked = DedupeRecord { started: false, ..own_record(DedupeState::Inflight) };
    let saved = put(decide_save(&save(RunOutcome::Done(None)), Some(&unmarked), None, NOW).write);
    assert!(saved.started);
    assert_eq!((saved.updated, saved.version), (NOW, 8));
}

#[test]
fn a_delivery_before_the_end_does_not_count_for_the_final_response() {
    let early = DedupeRecord {
        delivered: Some(NOW.before(SECOND)),
        ..own_record(settles(SettleTime::WhenOwnerReports))
    };
    let saved = put(decide_save(&save(unknown_ending()), Some(&early), None, NOW).write);
    assert_eq!(saved.delivered, None);
}

#[test]
fn a_late_result_is_not_delivered_by_an_unknown_outcome() {
    let delivered = DedupeRecord { delivered: Some(NOW.before(SECOND)), ..own_record(settled()) };
    for ending in [RunOutcome::Done(Some(output())), RunOutcome::Failed(failure(true))] {
        let saved = put(decide_save(&save(ending), Some(&delivered), None, NOW).write);
        assert_eq!(saved.delivered, None, "{:?}", saved.state);
    }
}

#[test]
fn a_delivery_mark_changes_nothing_but_the_mark() {
    let done = own_record(DedupeState::Done(Some(output())));
    let marked = put(decide_delivered(&done.receipt(), NOW, Some(&done)));
    assert_eq!(marked, DedupeRecord { delivered: Some(NOW), version: 8, ..done });
}

#[test]
fn a_resolved_result_is_not_delivered() {
    let rules = DedupeRules::from(&policy());
    let delivered = DedupeRecord { delivered: Some(NOW.before(SECOND)), ..own_record(settled()) };
    let ran = put(decide_resolve(
        &by_hand(Resolution::Ran),
        Some((&delivered, LeaseOwnerState::Alive)),
        &rules,
        NOW,
    )
    .write);
    let (state, expires) = (DedupeState::Done(None), Some(NOW + rules.keep.done));
    assert_eq!(ran, DedupeRecord { state, delivered: None, version: 8, updated: NOW, expires, ..delivered });
}

#[test]
fn an_outcome_that_becomes_unknown_is_held_by_policy_or_because_its_record_was() {
    let lapsed =
        DedupeRecord { lease: Lease::Until(NOW), ..record(ClaimTestColumn::Equal, DedupeState::Inflight) };
    let forever = DedupeRecord { expires: None, ..lapsed.clone() };
    let a_day = Some(NOW + DedupePolicy::default().keep.open);
    for (found, after_unknown, expires) in [
        (&lapsed, UnknownOutcomePolicy::TellOnce, a_day),
        (&lapsed, UnknownOutcomePolicy::Hold, None),
        (&forever, UnknownOutcomePolicy::TellOnce, None),
        (&forever, UnknownOutcomePolicy::Hold, None),
    ] {
        let mut claim = claim(ClaimTestColumn::Equal);
        claim.rules.after_unknown = after_unknown;
        let written = put(decide(ClaimTestColumn::Equal, &claim, Some(found), LeaseOwnerState::Time).write);
        assert_eq!(written.expires, expires, "{after_unknown:?}, {:?}", found.expires);
    }
}

// ---- the stored form ----

#[test]
fn an_unknown_outcome_is_stored_with_all_its_details() {
    for settles in [SettleTime::WhenOwnerReports, SettleTime::By(NOW + SECOND), SettleTime::Settled] {
        let before = own_record(DedupeState::Unknown(UnknownOutcome {
            settles,
            observed: UnknownOutcomeReason::ConnectionLost,
            details: Some("reset by peer".into()),
            output: Some(output()),
        }));
        assert_eq!(DedupeRecord::from_json(&before.to_json()).unwrap(), before);
    }
}

#[test]
fn a_failure_is_stored_with_all_its_fields() {
    let before = own_record(DedupeState::Failed(CallFailure {
        rule: Some("http.429".into()),
        verify: Some("list the payments".into()),
        retry_after: Some(Duration::from_millis(1500)),
        output: Some(output()),
        ..failure(false)
    }));
    assert_eq!(DedupeRecord::from_json(&before.to_json()).unwrap(), before);
}

#[test]
fn an_output_of_any_size_is_stored_unchanged() {
    let content = RawJson::string(&"x".repeat(100_000));
    let before = own_record(DedupeState::Done(Some(ToolOutput { content, metadata: None })));
    assert_eq!(DedupeRecord::from_json(&before.to_json()).unwrap(), before);
}

#[test]
fn a_record_without_attempts_stores_none() {
    let text = own_record(DedupeState::Inflight).to_json();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json.get("execution"), None);
}

#[test]
fn an_unreadable_record_reports_the_reason_and_the_solution() {
    let text_of = |error: UnreadableRecord| error.to_string();
    let newer = text_of(UnreadableRecord::Newer(2));
    assert!(newer.contains("format 2") && newer.contains("update steadfast"), "{newer}");
    let damaged = text_of(UnreadableRecord::Damaged("no owner".into()));
    assert!(damaged.ends_with("cannot be read: no owner"), "{damaged}");
}

// ---- the in-memory store ----

fn stored(records: &[&DedupeRecord]) -> MemoryRecords {
    let mut store = MemoryRecords::default();
    for &record in records {
        store.apply(RecordWrite::Put {
            record: Arc::new(record.clone()),
            index: IndexUpdate::Point,
            remove: Vec::new(),
        });
    }
    store
}

#[test]
fn the_index_goes_with_the_record_that_it_points_to_and_not_with_another() {
    let (first, second) = (
        DedupeRecord { key: key("first"), ..record(ClaimTestColumn::Equal, DedupeState::Inflight) },
        DedupeRecord { key: key("second"), ..record(ClaimTestColumn::Equal, DedupeState::Inflight) },
    );
    let mut store = stored(&[&first, &second]);
    let remove = |record: &DedupeRecord| RecordWrite::Remove { key: record.key, index: record.index };
    store.apply(remove(&first));
    assert_eq!(store.indexed(Some(key("i"))).map(|record| record.key), Some(second.key));
    store.apply(remove(&second));
    assert_eq!(store.indexed(Some(key("i"))), None);
    store.apply(RecordWrite::Put {
        record: Arc::new(first.clone()),
        index: IndexUpdate::Keep,
        remove: Vec::new(),
    });
    assert_eq!(store.indexed(Some(key("i"))), None, "a removed record leaves no entry behind");
}

#[test]
fn waiters_of_written_and_removed_records_are_woken() {
    let (old, new) = (
        DedupeRecord { key: key("old"), ..record(ClaimTestColumn::Equal, DedupeState::Inflight) },
        DedupeRecord { key: key("new"), ..record(ClaimTestColumn::Equal, DedupeState::Inflight) },
    );
    let mut store = stored(&[&old]);
    assert_eq!(store.changed(), [old.key]);
    let (record, index, remove) = (Arc::new(new.clone()), IndexUpdate::Point, vec![old.key]);
    store.apply(RecordWrite::Put { record, index, remove });
    assert_eq!(store.changed(), [old.key, new.key]);
    store.apply(RecordWrite::Remove { key: new.key, index: None });
    assert_eq!(store.changed(), [new.key]);
    store.apply(RecordWrite::Nothing);
    assert!(store.changed().is_empty());
}

#[test]
fn a_sweep_removes_expired_records_and_their_index_entries() {
    let expired =
        DedupeRecord { expires: Some(NOW), ..record(ClaimTestColumn::Equal, DedupeState::Done(None)) };
    let held_record =
        DedupeRecord { key: key("held"), expires: None, ..record(ClaimTestColumn::Explicit, settled()) };
    let mut store = stored(&[&expired, &held_record]);
    assert_eq!((store.len(), store.is_empty()), (2, false));
    store.sweep(NOW.before(SECOND));
    assert_eq!(store.len(), 2);
    store.sweep(NOW);
    assert_eq!(store.iter().collect::<Vec<_>>(), [&held_record]);
    assert_eq!(store.indexed(Some(key("i"))), None);
    store.apply(RecordWrite::Put { record: Arc::new(expired), index: IndexUpdate::Keep, remove: Vec::new() });
    assert_eq!(store.indexed(Some(key("i"))), None, "the entry went too");
    assert!(!store.is_empty() && MemoryRecords::default().is_empty());
}
