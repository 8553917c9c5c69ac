//! The claim table, row by row, each in its four columns. The first call goes through one handle, the second through
//! the other.

use std::time::Duration;

use steadfast_core::dedupe::{
    Claim, ClaimVerdict, Ending, Intent, RecordState, Replay, Role, Rules, StartVerdict,
};
use steadfast_core::policy::{AfterUnknown, CacheFailures};

use super::world::{COLUMNS, Column, Failed, LONG, World, done, failed, failure, output, rules, save, tool};

pub(super) async fn a_claim_that_finds_nothing_is_mine(world: World) {
    for column in COLUMNS {
        let claim = world.leader(column, "new");
        let record = world.take(&claim).await;
        assert_eq!(
            (record.key, &record.owner, &record.run, record.digest, record.version),
            (claim.address.own(), &claim.owner, &claim.run, claim.digest, 1),
        );
        assert!(record.started && record.state == RecordState::Inflight);
        assert_eq!(world.found(record.key).await, record, "what was claimed is what is stored");
    }
}

pub(super) async fn a_claim_is_repeated_under_its_own_token(world: World) {
    for column in COLUMNS {
        let claim = world.leader(column, "repeated");
        let record = world.take(&claim).await;
        let again = world.take(&claim).await;
        assert_eq!((again.key, &again.run, again.version), (record.key, &record.run, 2));
        // Others declared it unknown meanwhile; the owner knows better.
        world.save(&save(&again, Ending::Unknown)).await.unwrap();
        let late = world.take(&Claim { intent: Intent::Take { started: false }, ..claim.clone() }).await;
        assert_eq!((late.key, &late.state), (record.key, &RecordState::Inflight), "{column:?}");
        assert!(late.started, "what was started stays so");
        // An answer is an answer, for the owner too.
        world.save(&save(&late, done("paid"))).await.unwrap();
        assert!(world.verdict(&claim).await.starts_with("replay"), "{column:?}");
    }
}

pub(super) async fn a_claim_in_flight_is_followed(world: World) {
    for column in COLUMNS {
        let record = world.take(&world.leader(column, "held")).await;
        let second = world.duplicate(column, "held", &record);
        assert_eq!(world.ask(&second).await, ClaimVerdict::Follow(record.key), "{column:?}");
        assert_eq!(world.verdict(&second).await, "follow", "{column:?}");
        assert_eq!(world.found(record.key).await, record, "nothing is written");
    }
    let best_effort = Claim { best_effort: true, ..world.leader(Column::Explicit, "held") };
    assert_eq!(world.verdict(&best_effort).await, "busy");
}

pub(super) async fn a_lapsed_claim_that_was_not_started_is_mine(world: World) {
    for column in COLUMNS {
        let claim = world.leader(column, "idle");
        let first = world.take_and_lapse(Claim { intent: Intent::Take { started: false }, ..claim }).await;
        let second = world.duplicate(column, "idle", &first);
        let taken = world.take(&second).await;
        assert_eq!((&taken.owner, taken.version), (&second.owner, 2), "{column:?}");
        assert_eq!(taken.key, first.key, "in place, so that its late owner meets the fence");
        assert_eq!(world.start(first.key, &first.owner).await.unwrap(), StartVerdict::Lost);
    }
}

pub(super) async fn a_lapsed_run_that_is_safe_to_repeat_is_taken_over(world: World) {
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

pub(super) async fn a_lapsed_run_that_is_not_safe_to_repeat_is_told_as_unknown(world: World) {
    for column in COLUMNS {
        let first = world.take_and_lapse(world.leader(column, "unsafe")).await;
        let second = world.duplicate(column, "unsafe", &first);
        let look = Claim { intent: Intent::Look, ..second.clone() };
        assert_eq!(world.verdict(&look).await, "tell", "{column:?}");
        assert_eq!(world.found(first.key).await, first, "a look writes nothing");

        let ClaimVerdict::Unknown(receipt) = world.ask(&second).await else { panic!("{column:?}") };
        let unknown = world.found(first.key).await;
        assert_eq!((&unknown.state, &unknown.owner), (&RecordState::Unknown, &first.owner));
        assert_eq!(unknown.receipt(), receipt);
    }
}

pub(super) async fn an_answer_that_did_not_arrive_is_replayed(world: World) {
    let expected = ["replay", "replay", "replay undelivered", "answer"];
    let too_late = ["replay", "replay", "mine", "answer"];
    for (place, column) in COLUMNS.into_iter().enumerate() {
        let (record, receipt) = world.run(&world.leader(column, "done"), done("paid")).await;
        assert_eq!(record.state, RecordState::Done(Some(output("paid"))));
        let second = world.duplicate(column, "done", &record);
        let verdict = world.ask(&second).await;
        let ClaimVerdict::Replay(replay) = &verdict else { panic!("{column:?}: {verdict:?}") };
        let Replay { answer, receipt: given, .. } = &**replay;
        assert_eq!((answer, given), (&Ok(Some(output("paid"))), &receipt));
        for _ in 0..2 {
            assert_eq!(
                world.verdict(&second).await,
                expected[place],
                "as often as it is asked for: {column:?}"
            );
        }
        let waited_long = Claim { rules: Rules { undelivered: Duration::ZERO, ..rules() }, ..second };
        assert_eq!(world.verdict(&waited_long).await, too_late[place], "{column:?}");
    }
}

pub(super) async fn an_answer_that_arrived_is_history_for_equal_arguments(world: World) {
    let expected = ["replay", "replay", "mine", "answer"];
    for (place, column) in COLUMNS.into_iter().enumerate() {
        let early = Claim { arrived: world.now().before(LONG), ..world.leader(column, "told") };
        let (record, receipt) = world.run(&early, done("paid")).await;
        world.delivered(&receipt, world.now()).await.unwrap();
        let second = world.duplicate(column, "told", &record);
        assert_eq!(world.verdict(&second).await, expected[place], "{column:?}");
    }
}

pub(super) async fn a_double_dispatch_is_one_call(world: World) {
    let (at, span) = (world.now(), Duration::from_millis(20));
    let together = |claim: Claim, after: u64| Claim {
        arrived: at + Duration::from_millis(after),
        rules: Rules { double_dispatch: span, ..rules() },
        ..claim
    };
    let first = together(world.call_id("one", "equal"), 0);
    let (_, receipt) = world.run(&first, done("paid")).await;
    world.delivered(&receipt, at).await.unwrap();
    let look = |claim: Claim| Claim { intent: Intent::Look, ..claim };
    for (claim, expected) in [
        (together(world.keyless("equal"), 20), "replay double dispatch"),
        (together(world.keyless("equal"), 21), "nothing"),
        (together(world.call_id("two", "equal"), 1), "nothing"),
        (together(world.keyless("other"), 1), "nothing"),
    ] {
        assert_eq!(world.verdict(&look(claim)).await, expected);
    }
}

pub(super) async fn a_delivery_that_the_store_does_not_know_counts(world: World) {
    let early = Claim { arrived: world.now().before(LONG), ..world.keyless("known") };
    let (_, receipt) = world.run(&early, done("paid")).await;
    let look = Claim { intent: Intent::Look, ..world.keyless("known") };
    let known = [(receipt, world.now())];
    let verdict = world.second().claim(&look, &known).await.unwrap();
    assert_eq!(verdict, ClaimVerdict::Nothing, "the caller knows that the answer has arrived");
    let verdict = world.second().claim(&look, &[]).await.unwrap();
    assert!(matches!(verdict, ClaimVerdict::Replay(_)), "{verdict:?}");
}

pub(super) async fn a_failure_is_replayed_as_the_rules_say(world: World) {
    for (place, column) in COLUMNS.into_iter().enumerate() {
        for (kind, cache, best_effort, explicit) in [
            (Failed::ForGood, CacheFailures::Terminal, false, "replay"),
            (Failed::ForNow, CacheFailures::Terminal, false, "mine"),
            (Failed::ForGood, CacheFailures::None, false, "mine"),
            (Failed::ForNow, CacheFailures::All, false, "replay"),
            (Failed::ForNow, CacheFailures::All, true, "mine"),
        ] {
            let name = format!("{kind:?} {cache:?} {best_effort}");
            let (record, _) = world.run(&world.leader(column, &name), failed(kind)).await;
            assert_eq!(record.state, RecordState::Failed(failure(kind)), "word for word");
            let rules = Rules { cache_failures: cache, ..rules() };
            let second = Claim { rules, best_effort, ..world.duplicate(column, &name, &record) };
            let expected = [explicit, "mine", "mine", "answer"];
            assert_eq!(world.verdict(&second).await, expected[place], "{name} {column:?}");
        }
    }
}

pub(super) async fn an_unknown_outcome_is_told(world: World) {
    for (place, column) in COLUMNS.into_iter().enumerate() {
        let (record, receipt) = world.run(&world.leader(column, "unknown"), Ending::Unknown).await;
        let second = world.duplicate(column, "unknown", &record);
        let at_once = Claim { rules: Rules { after_telling: Duration::ZERO, ..rules() }, ..second.clone() };
        assert_eq!(world.verdict(&at_once).await, "tell", "nobody was told: {column:?}");
        world.delivered(&receipt, world.now()).await.unwrap();
        assert_eq!(world.verdict(&second).await, "tell", "told a moment ago: {column:?}");
        let hold = Rules { after_unknown: AfterUnknown::Hold, after_telling: Duration::ZERO, ..rules() };
        let held = Claim { rules: hold, ..second.clone() };
        assert_eq!(world.verdict(&held).await, "tell", "{column:?}");
        let expected = ["tell", "tell", "mine", "tell"];
        assert_eq!(world.verdict(&at_once).await, expected[place], "told long ago: {column:?}");
    }
}

pub(super) async fn tr_4_the_same_key_with_other_arguments_is_a_conflict(world: World) {
    let endings = [None, Some(done("paid")), Some(failed(Failed::ForGood)), Some(Ending::Unknown)];
    for (number, ending) in endings.into_iter().enumerate() {
        let name = format!("conflict {number}");
        let record = world.take(&world.leader(Column::Explicit, &name)).await;
        if let Some(ending) = ending {
            world.save(&save(&record, ending)).await.unwrap();
        }
        let before = world.found(record.key).await;
        let other_arguments =
            Claim { digest: world.explicit("").digest, ..world.leader(Column::Explicit, &name) };
        let other_tool = Claim { tool: tool("refund"), ..world.leader(Column::Explicit, &name) };
        for claim in [other_arguments, other_tool] {
            let waiter = Claim { role: Role::Waiter { followed: record.key }, ..claim.clone() };
            assert_eq!(world.verdict(&claim).await, "conflict", "{name}");
            assert_eq!(world.verdict(&waiter).await, "conflict", "{name}");
        }
        assert_eq!(world.found(record.key).await, before, "nothing is written");
    }
}

pub(super) async fn a_call_id_with_other_arguments_is_another_call(world: World) {
    let (record, _) = world.run(&world.call_id("again", "these"), done("paid")).await;
    let other = world.take(&world.call_id("again", "those")).await;
    assert_eq!((other.key, other.version), (record.key, record.version + 1));
    // The record is that of the other call now, and nothing of the first is found in it.
    let first = Claim { intent: Intent::Look, ..world.keyless("these") };
    assert_eq!(world.verdict(&first).await, "nothing");
    assert_eq!(world.verdict(&world.keyless("those")).await, "follow");
}

pub(super) async fn a_look_writes_nothing(world: World) {
    for column in COLUMNS {
        let look = Claim { intent: Intent::Look, ..world.leader(column, "looked for") };
        assert_eq!(world.verdict(&look).await, "nothing");
        assert!(world.is_absent(look.address.own()).await, "{column:?}");
        let record = world.take(&world.leader(column, "looked for")).await;
        let look = Claim { intent: Intent::Look, ..world.duplicate(column, "looked for", &record) };
        assert_eq!(world.verdict(&look).await, "follow");
        assert_eq!(world.found(record.key).await, record);
    }
}

pub(super) async fn a_record_that_only_the_index_finds_is_replaced(world: World) {
    let early = Claim { arrived: world.now().before(LONG), ..world.keyless("pay") };
    let (old, receipt) = world.run(&early, done("paid")).await;
    world.delivered(&receipt, world.now()).await.unwrap();
    let new = world.take(&world.keyless("pay")).await;
    assert_ne!(new.key, old.key, "another run");
    assert!(world.is_absent(old.key).await, "nobody can find it any more");
    assert_eq!(world.ask(&world.keyless("pay")).await, ClaimVerdict::Follow(new.key), "the index has moved");
    assert_eq!(world.ask(&world.call_id("with an id", "pay")).await, ClaimVerdict::Follow(new.key));
}

pub(super) async fn a_call_id_keeps_its_record_when_the_index_moves_on(world: World) {
    let early = Claim { arrived: world.now().before(LONG), ..world.call_id("first", "pay") };
    let (old, receipt) = world.run(&early, done("paid")).await;
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

pub(super) async fn a_dispatch_that_failed_stands_back_behind_an_equal_run(world: World) {
    world.run(&world.call_id("dispatch", "pay"), failed(Failed::ForGood)).await;
    let equal = world.take(&world.call_id("another", "pay")).await;
    assert_eq!(world.ask(&world.call_id("dispatch", "pay")).await, ClaimVerdict::Follow(equal.key));
}
