//! The claim table, row by row, each in its four columns. The first call uses one handle, the second call the other.

use std::time::Duration;

use steadfast_core::dedupe::{
    Claim, ClaimIntent, ClaimRole, ClaimVerdict, DedupeRecord, DedupeRules, DedupeState, LeaseOwnerState,
    LocalKnowledge, ReplayedResult, SettleDelay, SettleStatus, SettleTime, StartVerdict, UnknownOutcome,
    UnknownOutcomeReason,
};
use steadfast_core::policy::{FailureReplayPolicy, UnknownOutcomePolicy};

use super::world::{
    COLUMNS, FailurePermanence, LONG, SuiteColumn, SuiteWorld, done, failed, failure, final_unknown, output,
    rules, save, tool, unknown,
};

pub(super) async fn a_claim_that_finds_nothing_is_mine(world: SuiteWorld) {
    for column in COLUMNS {
        let claim = world.leader(column, "new");
        let record = world.take(&claim).await;
        assert_eq!(
            (record.key, &record.owner, &record.run, record.digest, record.version),
            (claim.address.own(), &claim.owner, &claim.run, claim.digest, 1),
        );
        assert!(record.started && record.state == DedupeState::Inflight);
        assert_eq!(world.found(record.key).await, record, "what was claimed is what is stored");
    }
}

pub(super) async fn a_claim_is_repeated_under_its_own_token(world: SuiteWorld) {
    for column in COLUMNS {
        let claim = world.leader(column, "repeated");
        let record = world.take(&claim).await;
        let again = world.take(&claim).await;
        assert_eq!((again.key, &again.run, again.version), (record.key, &record.run, 2));
        let late = world.take(&Claim { intent: ClaimIntent::Take { started: false }, ..claim.clone() }).await;
        assert!(late.started, "what was started stays so");
        // Other callers have received a final response meanwhile, and may act on it.
        world.save(&save(&late, final_unknown())).await.unwrap();
        assert_eq!(world.verdict(&claim).await, "tell final", "{column:?}");
        // A result is final, also for the owner.
        world.save(&save(&late, done("paid"))).await.unwrap();
        assert!(world.verdict(&claim).await.starts_with("replay"), "{column:?}");
    }
}

pub(super) async fn a_claim_in_flight_is_followed(world: SuiteWorld) {
    for column in COLUMNS {
        let record = world.take(&world.leader(column, "held")).await;
        let second = world.duplicate(column, "held", &record);
        assert_eq!(world.ask(&second).await, ClaimVerdict::Follow(record.key), "{column:?}");
        assert_eq!(world.verdict(&second).await, "follow", "{column:?}");
        assert_eq!(world.found(record.key).await, record, "nothing is written");
    }
    let best_effort = Claim { best_effort: true, ..world.leader(SuiteColumn::Explicit, "held") };
    assert_eq!(world.verdict(&best_effort).await, "busy");
}

pub(super) async fn a_lapsed_claim_that_was_not_started_is_mine(world: SuiteWorld) {
    for column in COLUMNS {
        let claim = world.leader(column, "idle");
        let first =
            world.take_and_lapse(Claim { intent: ClaimIntent::Take { started: false }, ..claim }).await;
        let second = world.duplicate(column, "idle", &first);
        let taken = world.take(&second).await;
        assert_eq!((&taken.owner, taken.version), (&second.owner, 2), "{column:?}");
        assert_eq!(taken.key, first.key, "in place, so that its late owner meets the fence");
        assert_eq!(world.start(first.key, &first.owner).await.unwrap(), StartVerdict::Lost);
    }
}

pub(super) async fn a_lapsed_run_that_is_safe_to_repeat_is_taken_over(world: SuiteWorld) {
    for column in COLUMNS {
        let claim = Claim { retry_safe: true, ..world.leader(column, "safe") };
        let first = world.take_and_lapse(claim).await;
        let second = Claim { retry_safe: true, ..world.duplicate(column, "safe", &first) };
        let taken = world.take(&second).await;
        assert_eq!(
            (&taken.owner, taken.key, &taken.run),
            (&second.owner, first.key, &first.run),
            "{column:?}"
        );
        let third = world.duplicate(column, "safe", &first);
        assert_eq!(world.verdict(&third).await, "follow", "{column:?}");
    }
}

pub(super) async fn a_lapsed_run_that_is_not_safe_to_repeat_is_reported_as_unknown(world: SuiteWorld) {
    for column in COLUMNS {
        let first = world.take_and_lapse(world.leader(column, "unsafe")).await;
        let second = world.duplicate(column, "unsafe", &first);
        let lookup = Claim { intent: ClaimIntent::Look, ..second.clone() };
        let status = world.unknown_status(&lookup).await;
        let found = world.found(first.key).await;
        assert_eq!(world.verdict(&second).await, "tell not yet", "{column:?}");
        assert_eq!(
            world.found(first.key).await,
            found,
            "the time has begun with the first who asked: {column:?}"
        );
        assert_eq!(
            (&found.owner, found.version),
            (&first.owner, first.version + 1),
            "its late answer counts"
        );
        assert_eq!(found.receipt(), status.receipt);
        let UnknownOutcome { settles, observed, details: words, output } = unknown_outcome(&found);
        let reason = match world.sight(&first.owner) {
            LeaseOwnerState::Gone => UnknownOutcomeReason::ProcessDied,
            LeaseOwnerState::Alive | LeaseOwnerState::Time => UnknownOutcomeReason::NoAnswer,
        };
        assert_eq!((observed, words, output), (reason, None, None));
        assert_eq!((status.observed, status.output), (reason, None));
        assert!(matches!(settles, SettleTime::By(_)), "nobody can see its end: {settles:?}");
        let SettleStatus::NotYet(left) = status.end else { panic!("{column:?}") };
        assert!(world.is_left(left, LONG), "as long as it may linger: {left:?}");
    }
}

/// Returns the details of an outcome that must be unknown.
fn unknown_outcome(record: &DedupeRecord) -> UnknownOutcome {
    let DedupeState::Unknown(unknown) = &record.state else { panic!("expected unknown, got {record:?}") };
    unknown.clone()
}

pub(super) async fn an_undelivered_result_is_replayed(world: SuiteWorld) {
    let expected = ["replay", "replay", "replay undelivered", "answer"];
    let too_late = ["replay", "replay", "mine", "answer"];
    for (place, column) in COLUMNS.into_iter().enumerate() {
        let (record, receipt) = world.run(&world.leader(column, "done"), done("paid")).await;
        assert_eq!(record.state, DedupeState::Done(Some(output("paid"))));
        let second = world.duplicate(column, "done", &record);
        let verdict = world.ask(&second).await;
        let ClaimVerdict::Replay(replay) = &verdict else { panic!("{column:?}: {verdict:?}") };
        let ReplayedResult { answer, receipt: given, .. } = &**replay;
        assert_eq!((answer, given), (&Ok(Some(output("paid"))), &receipt));
        for _ in 0..2 {
            assert_eq!(
                world.verdict(&second).await,
                expected[place],
                "as often as it is asked for: {column:?}"
            );
        }
        let waited_long = Claim { rules: DedupeRules { undelivered: Duration::ZERO, ..rules() }, ..second };
        assert_eq!(world.verdict(&waited_long).await, too_late[place], "{column:?}");
    }
}

pub(super) async fn a_delivered_result_does_not_affect_equal_arguments(world: SuiteWorld) {
    let expected = ["replay", "replay", "mine", "answer"];
    for (place, column) in COLUMNS.into_iter().enumerate() {
        let (record, receipt) = world.run(&world.leader(column, "told"), done("paid")).await;
        world.delivered(&receipt, world.now()).await.unwrap();
        let second = world.duplicate(column, "told", &record);
        assert_eq!(world.verdict(&second).await, expected[place], "{column:?}");
    }
}

pub(super) async fn a_double_dispatch_is_one_call(world: SuiteWorld) {
    let twice = |claim: Claim| Claim {
        intent: ClaimIntent::Look,
        rules: DedupeRules { double_dispatch: true, ..rules() },
        ..claim
    };
    let (record, receipt) = world.run(&world.call_id("one", "equal"), done("paid")).await;
    world.delivered(&receipt, world.now()).await.unwrap();
    let nothing = LocalKnowledge::default();
    // The process that returned the result knows which calls it had received by then.
    let overlapped = |owner| LocalKnowledge { overlapped: vec![owner], ..LocalKnowledge::default() };
    let overlap = overlapped(record.owner.clone());
    // A result that could not be saved at once was returned before.
    let unsaved =
        LocalKnowledge { answered_unsaved: vec![record.owner.clone()], ..LocalKnowledge::default() };
    let without_double_dispatch = |claim: Claim| Claim { rules: rules(), ..twice(claim) };
    let old = |age: Duration| Claim { age, ..twice(world.keyless("equal")) };
    for (case, known, claim, expected) in [
        ("before the answer", &overlap, twice(world.keyless("equal")), "replay double dispatch"),
        ("before that of another", &overlapped(world.owner()), twice(world.keyless("equal")), "nothing"),
        ("after the answer", &nothing, twice(world.keyless("equal")), "nothing"),
        ("before it was saved", &nothing, old(LONG), "replay double dispatch"),
        ("before it was saved, after the answer", &unsaved, old(LONG), "nothing"),
        ("another dispatch", &overlap, twice(world.call_id("two", "equal")), "nothing"),
        ("other arguments", &overlap, twice(world.keyless("other")), "nothing"),
        ("where that is no rule", &overlap, without_double_dispatch(world.keyless("equal")), "nothing"),
    ] {
        assert_eq!(world.verdict_with(known, &claim).await, expected, "{case}");
    }
}

/// Clocks of different machines are not compared: the call carries its own age.
pub(super) async fn a_double_dispatch_through_another_process_is_one_call(world: SuiteWorld) {
    let (_, receipt) = world.run(&world.call_id("one", "equal"), done("paid")).await;
    world.delivered(&receipt, world.now()).await.unwrap();
    let elsewhere = world.spawn();
    let dispatched = |claim: Claim, age: Duration| {
        let mut claim = Claim { intent: ClaimIntent::Look, age, ..claim };
        claim.rules.double_dispatch = true;
        claim.owner.process = elsewhere.clone();
        claim
    };
    let equal = |age| dispatched(world.keyless("equal"), age);
    assert_eq!(world.verdict(&equal(LONG)).await, "replay double dispatch", "older than the answer");
    assert_eq!(world.verdict(&equal(Duration::ZERO)).await, "nothing", "it comes now");
    let other = dispatched(world.call_id("two", "equal"), LONG);
    assert_eq!(world.verdict(&other).await, "nothing", "another dispatch");
    let mut without_double_dispatch = equal(LONG);
    without_double_dispatch.rules.double_dispatch = false;
    assert_eq!(world.verdict(&without_double_dispatch).await, "nothing", "where that is no rule");
    if world.has_manual_clock() {
        world.pass(2).await;
        let since = 2 * world.moment();
        assert_eq!(world.verdict(&equal(since)).await, "nothing", "as old as the answer");
        let before = since + Duration::from_millis(1);
        assert_eq!(world.verdict(&equal(before)).await, "replay double dispatch");
    }
}

pub(super) async fn a_delivery_that_is_not_in_the_store_counts(world: SuiteWorld) {
    let (_, receipt) = world.run(&world.keyless("known"), done("paid")).await;
    let lookup = Claim { intent: ClaimIntent::Look, ..world.keyless("known") };
    let known = LocalKnowledge { delivered: vec![(receipt, world.now())], ..LocalKnowledge::default() };
    let verdict = world.verdict_with(&known, &lookup).await;
    assert_eq!(verdict, "nothing", "the caller knows that the answer has arrived");
    assert_eq!(world.verdict(&lookup).await, "replay undelivered");
}

pub(super) async fn a_failure_is_replayed_according_to_the_rules(world: SuiteWorld) {
    for (place, column) in COLUMNS.into_iter().enumerate() {
        for (kind, cache, best_effort, explicit) in [
            (FailurePermanence::ForGood, FailureReplayPolicy::Terminal, false, "replay"),
            (FailurePermanence::ForNow, FailureReplayPolicy::Terminal, false, "mine"),
            (FailurePermanence::ForGood, FailureReplayPolicy::None, false, "mine"),
            (FailurePermanence::ForNow, FailureReplayPolicy::All, false, "replay"),
            (FailurePermanence::ForNow, FailureReplayPolicy::All, true, "mine"),
        ] {
            let name = format!("{kind:?} {cache:?} {best_effort}");
            let (record, _) = world.run(&world.leader(column, &name), failed(kind)).await;
            assert_eq!(record.state, DedupeState::Failed(failure(kind)), "word for word");
            let rules = DedupeRules { cache_failures: cache, ..rules() };
            let second = Claim { rules, best_effort, ..world.duplicate(column, &name, &record) };
            let expected = [explicit, "mine", "mine", "answer"];
            assert_eq!(world.verdict(&second).await, expected[place], "{name} {column:?}");
        }
    }
}

pub(super) async fn an_unknown_outcome_is_reported(world: SuiteWorld) {
    for (place, column) in COLUMNS.into_iter().enumerate() {
        let (record, receipt) = world.run(&world.leader(column, "unknown"), final_unknown()).await;
        let second = world.duplicate(column, "unknown", &record);
        let status = world.unknown_status(&second).await;
        assert_eq!(
            (status.end, status.observed),
            (SettleStatus::Settled, UnknownOutcomeReason::ErrorAnswer),
            "{column:?}"
        );
        assert_eq!((status.output, status.receipt), (Some(output("what it said")), receipt.clone()));
        let at_once =
            Claim { rules: DedupeRules { after_telling: Duration::ZERO, ..rules() }, ..second.clone() };
        assert_eq!(world.verdict(&at_once).await, "tell final", "nobody was told: {column:?}");
        world.delivered(&receipt, world.now()).await.unwrap();
        assert_eq!(world.verdict(&second).await, "tell final", "told a moment ago: {column:?}");
        let hold = DedupeRules {
            after_unknown: UnknownOutcomePolicy::Hold,
            after_telling: Duration::ZERO,
            ..rules()
        };
        let holding = Claim { rules: hold, ..second.clone() };
        assert_eq!(world.verdict(&holding).await, "tell final", "{column:?}");
        assert_eq!(world.unknown_status(&holding).await.runs_in, None, "not by itself: {column:?}");
        if world.has_manual_clock() {
            world.pass(1).await;
            let runs_in = world.unknown_status(&second).await.runs_in;
            match column {
                SuiteColumn::Explicit => assert_eq!(runs_in, None, "a key is for one run"),
                SuiteColumn::Equal => {
                    assert_eq!(runs_in, Some(LONG - world.moment()), "what is left of the wait")
                }
                SuiteColumn::CallId | SuiteColumn::Waiter => {}
            }
        }
        let expected = ["tell final", "tell final", "mine", "tell final"];
        assert_eq!(world.verdict(&at_once).await, expected[place], "told long ago: {column:?}");
    }
}

pub(super) async fn an_unknown_outcome_that_was_verified_runs_again(world: SuiteWorld) {
    let expected = ["tell final", "tell final", "mine", "tell final"];
    let verified_by = |owner| LocalKnowledge { verified: vec![owner], ..LocalKnowledge::default() };
    for (place, column) in COLUMNS.into_iter().enumerate() {
        let (record, receipt) = world.run(&world.leader(column, "looked"), final_unknown()).await;
        let second = world.duplicate(column, "looked", &record);
        let looked = verified_by(record.owner.clone());
        let verdict = world.verdict_with(&looked, &second).await;
        assert_eq!(verdict, "tell final", "who was not told has looked for nothing: {column:?}");
        world.delivered(&receipt, world.now()).await.unwrap();
        assert_eq!(world.verdict(&second).await, "tell final", "nobody has looked: {column:?}");
        let another = verified_by(world.owner());
        assert_eq!(world.verdict_with(&another, &second).await, "tell final", "{column:?}");
        let rules = DedupeRules { after_unknown: UnknownOutcomePolicy::Hold, ..rules() };
        let holding = Claim { rules, ..second.clone() };
        assert_eq!(world.verdict_with(&looked, &holding).await, "tell final", "{column:?}");
        assert_eq!(world.verdict_with(&looked, &second).await, expected[place], "{column:?}");
    }
    // The delivery of the response need not be known to the store.
    let (record, receipt) = world.run(&world.keyless("known"), final_unknown()).await;
    let delivered = vec![(receipt, world.now())];
    let known = LocalKnowledge { delivered, ..verified_by(record.owner) };
    assert_eq!(world.verdict_with(&known, &world.keyless("known")).await, "mine");
}

pub(super) async fn an_attempt_that_may_still_take_effect_is_reported_as_pending(world: SuiteWorld) {
    for (name, settles, announced) in [
        ("only its owner can say", SettleDelay::WhenOwnerReports, None),
        ("nobody can see its end", SettleDelay::After(LONG), Some(LONG)),
    ] {
        for column in COLUMNS {
            let (record, receipt) = world.run(&world.leader(column, name), unknown(settles)).await;
            let second = world.duplicate(column, name, &record);
            let status = world.unknown_status(&second).await;
            let SettleStatus::NotYet(left) = status.end else { panic!("{name}: {column:?}") };
            match announced {
                Some(span) => assert!(world.is_left(left, span), "{name}: {column:?}: {left:?}"),
                None => assert_eq!(left, None, "{name}: {column:?}"),
            }
            assert_eq!((status.output, &status.receipt), (Some(output("what it said")), &receipt));

            // Not even for a caller that got a response, has waited long enough, and has checked.
            world.delivered(&receipt, world.now()).await.unwrap();
            let known = LocalKnowledge {
                delivered: vec![(receipt, world.now())],
                verified: vec![record.owner.clone()],
                ..LocalKnowledge::default()
            };
            let rules = DedupeRules { after_telling: Duration::ZERO, ..rules() };
            let patient = Claim { rules, ..second };
            assert_eq!(world.verdict_with(&known, &patient).await, "tell not yet", "{name}: {column:?}");
            assert_eq!(world.found(record.key).await, record, "nothing is written: {name}: {column:?}");
        }
    }
}

pub(super) async fn an_attempt_is_over_when_its_time_has_come(world: SuiteWorld) {
    let expected = ["tell final", "tell final", "mine", "tell final"];
    for (place, column) in COLUMNS.into_iter().enumerate() {
        let ending = unknown(SettleDelay::After(2 * world.moment()));
        let (record, receipt) = world.run(&world.leader(column, "over"), ending).await;
        let rules = DedupeRules { after_telling: Duration::ZERO, ..rules() };
        let second = Claim { rules, ..world.duplicate(column, "over", &record) };
        if world.has_manual_clock() {
            world.pass(1).await;
            assert_eq!(
                world.unknown_status(&second).await.end,
                SettleStatus::NotYet(Some(world.moment())),
                "{column:?}"
            );
        }
        world.pass(2).await;
        assert_eq!(world.verdict(&second).await, "tell final", "{column:?}");
        assert_eq!(world.found(record.key).await, record, "nobody has to write that down");
        let SettleTime::By(end) = unknown_outcome(&record).settles else { panic!("{record:?}") };
        world.delivered(&receipt, end).await.unwrap();
        assert_eq!(world.verdict(&second).await, expected[place], "{column:?}");
    }
}

pub(super) async fn an_attempt_of_a_dead_owner_settles_after_a_time(world: SuiteWorld) {
    for column in COLUMNS {
        let first = world.take_and_lapse(world.leader(column, "gone")).await;
        let ending = unknown(SettleDelay::WhenOwnerReports);
        world.save(&save(&first, ending.clone())).await.unwrap();
        let cut = world.found(first.key).await;
        let second = world.duplicate(column, "gone", &first);
        let lookup = Claim { intent: ClaimIntent::Look, ..second.clone() };
        let status = world.unknown_status(&lookup).await;
        let SettleStatus::NotYet(left) = status.end else { panic!("{column:?}") };
        assert!(world.is_left(left, LONG), "as long as it may linger: {left:?}");
        let found = world.found(first.key).await;
        assert_eq!((&found.owner, found.version), (&first.owner, cut.version + 1), "{column:?}");
        assert_eq!(found.receipt(), status.receipt);
        assert_eq!(world.verdict(&second).await, "tell not yet", "{column:?}");
        assert_eq!(
            world.found(first.key).await,
            found,
            "the time has begun with the first who asked: {column:?}"
        );
        let after = unknown_outcome(&found);
        assert!(matches!(after.settles, SettleTime::By(_)), "{after:?}");
        let before = unknown_outcome(&cut);
        assert_eq!((after.observed, after.output), (before.observed, before.output), "as it was seen");
        // An announced time stays the same for all callers.
        let at_once = DedupeRules { linger: Duration::ZERO, ..rules() };
        let third = Claim { rules: at_once, ..world.duplicate(column, "gone", &first) };
        assert_eq!(world.verdict(&third).await, "tell not yet", "{column:?}");
        assert_eq!(world.found(first.key).await, found, "{column:?}");

        let brief = world.take_and_lapse(world.leader(column, "brief")).await;
        world.save(&save(&brief, ending)).await.unwrap();
        let second = Claim { rules: at_once, ..world.duplicate(column, "brief", &brief) };
        assert_eq!(world.verdict(&second).await, "tell final", "it does not linger: {column:?}");
    }
}

/// If the owner would have seen the end of the attempt, other callers know the time limit for it. Work that the tool
/// had handed on may take a while more.
pub(super) async fn an_attempt_settles_when_its_owner_would_have_observed_its_end(world: SuiteWorld) {
    let within = 3 * LONG;
    for column in COLUMNS {
        let claim = Claim { end_observed_within: Some(within), ..world.leader(column, "child") };
        let first = world.take_and_lapse(claim).await;
        let observed_by = first.end_observed_by.expect("its driver sees the end of an attempt");
        assert!(observed_by <= world.now() + within, "counted from the claim");
        let rules = DedupeRules { linger: Duration::ZERO, settle: LONG, ..rules() };
        let second = Claim { rules, ..world.duplicate(column, "child", &first) };
        assert_eq!(world.verdict(&second).await, "tell not yet", "{column:?}");
        let SettleTime::By(end) = unknown_outcome(&world.found(first.key).await).settles else {
            panic!("{column:?}")
        };
        if world.ends_with_process() {
            // The process is certainly gone, and everything that it ran is being ended.
            let now = world.now();
            assert!(end > now + LONG && end < now + 2 * LONG, "{column:?}: {end:?}");
        } else {
            assert_eq!(end, observed_by + LONG, "it may live: {column:?}");
        }
    }
}

pub(super) async fn tr_4_the_same_key_with_other_arguments_is_a_conflict(world: SuiteWorld) {
    let endings = [None, Some(done("paid")), Some(failed(FailurePermanence::ForGood)), Some(final_unknown())];
    for (number, ending) in endings.into_iter().enumerate() {
        let name = format!("conflict {number}");
        let record = world.take(&world.leader(SuiteColumn::Explicit, &name)).await;
        if let Some(ending) = ending {
            world.save(&save(&record, ending)).await.unwrap();
        }
        let before = world.found(record.key).await;
        let other_arguments =
            Claim { digest: world.explicit("").digest, ..world.leader(SuiteColumn::Explicit, &name) };
        let other_tool = Claim { tool: tool("refund"), ..world.leader(SuiteColumn::Explicit, &name) };
        for claim in [other_arguments, other_tool] {
            let waiter = Claim { role: ClaimRole::Waiter { followed: record.key }, ..claim.clone() };
            assert_eq!(world.verdict(&claim).await, "conflict", "{name}");
            assert_eq!(world.verdict(&waiter).await, "conflict", "{name}");
        }
        assert_eq!(world.found(record.key).await, before, "nothing is written");
    }
}

pub(super) async fn a_call_id_with_other_arguments_is_another_call(world: SuiteWorld) {
    let (record, _) = world.run(&world.call_id("again", "these"), done("paid")).await;
    let other = world.take(&world.call_id("again", "those")).await;
    assert_eq!((other.key, other.version), (record.key, record.version + 1));
    // The record now belongs to the other call, and contains nothing of the first one.
    let first = Claim { intent: ClaimIntent::Look, ..world.keyless("these") };
    assert_eq!(world.verdict(&first).await, "nothing");
    assert_eq!(world.verdict(&world.keyless("those")).await, "follow");
}

pub(super) async fn a_lookup_writes_nothing(world: SuiteWorld) {
    for column in COLUMNS {
        let lookup = Claim { intent: ClaimIntent::Look, ..world.leader(column, "looked for") };
        assert_eq!(world.verdict(&lookup).await, "nothing");
        assert!(world.is_absent(lookup.address.own()).await, "{column:?}");
        let record = world.take(&world.leader(column, "looked for")).await;
        let lookup = Claim { intent: ClaimIntent::Look, ..world.duplicate(column, "looked for", &record) };
        assert_eq!(world.verdict(&lookup).await, "follow");
        assert_eq!(world.found(record.key).await, record);
    }
}

pub(super) async fn a_record_that_only_the_index_finds_is_replaced(world: SuiteWorld) {
    let (old, receipt) = world.run(&world.keyless("pay"), done("paid")).await;
    world.delivered(&receipt, world.now()).await.unwrap();
    let new = world.take(&world.keyless("pay")).await;
    assert_ne!(new.key, old.key, "another run");
    assert!(world.is_absent(old.key).await, "it can no longer be found");
    assert_eq!(world.ask(&world.keyless("pay")).await, ClaimVerdict::Follow(new.key), "the index has moved");
    assert_eq!(world.ask(&world.call_id("with an id", "pay")).await, ClaimVerdict::Follow(new.key));
}

pub(super) async fn a_call_id_keeps_its_record_when_the_index_moves_on(world: SuiteWorld) {
    let (old, receipt) = world.run(&world.call_id("first", "pay"), done("paid")).await;
    world.delivered(&receipt, world.now()).await.unwrap();
    let new = world.take(&world.call_id("second", "pay")).await;
    assert_eq!(
        world.verdict(&world.call_id("first", "pay")).await,
        "replay",
        "a late duplicate of the first"
    );
    assert_eq!(world.found(old.key).await.owner, old.owner);
    assert_eq!(world.ask(&world.keyless("pay")).await, ClaimVerdict::Follow(new.key));
}

pub(super) async fn a_failed_dispatch_yields_to_an_equal_run(world: SuiteWorld) {
    world.run(&world.call_id("dispatch", "pay"), failed(FailurePermanence::ForGood)).await;
    let equal = world.take(&world.call_id("another", "pay")).await;
    assert_eq!(world.ask(&world.call_id("dispatch", "pay")).await, ClaimVerdict::Follow(equal.key));
}
