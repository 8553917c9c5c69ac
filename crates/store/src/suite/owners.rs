//! Operations that only the owner of a record may do.

use std::time::Duration;

use steadfast_core::dedupe::{
    AttemptRecord, Claim, ClaimIntent, ClaimOwner, ClaimVerdict, DedupeRecord, DedupeRules, DedupeState,
    DeliveryReceipt, Lease, ReleaseRequest, RenewVerdict, Resolution, ResolutionRequest, ResolveVerdict,
    RunOutcome, SaveRequest, SaveVerdict, SettleDelay, StartVerdict,
};
use steadfast_core::policy::RecordLifetimes;

use super::world::{
    COLUMNS, FailurePermanence, LONG, SuiteWorld, done, failed, final_unknown, lifetimes, long_after, output,
    release, rules, save, saved, unknown,
};

pub(super) async fn a_start_is_written_once_and_for_its_owner_only(world: SuiteWorld) {
    let idle = Claim { intent: ClaimIntent::Take { started: false }, ..world.explicit("k") };
    let record = world.take(&idle).await;
    assert_eq!(world.start(record.key, &world.owner()).await.unwrap(), StartVerdict::Lost);
    assert_eq!(world.found(record.key).await, record, "a foreign token writes nothing");

    assert_eq!(world.start(record.key, &record.owner).await.unwrap(), StartVerdict::Started);
    let started = world.found(record.key).await;
    assert_eq!((started.started, started.version), (true, 2));
    assert_eq!(world.start(record.key, &record.owner).await.unwrap(), StartVerdict::Started);
    assert_eq!(world.found(record.key).await, started, "once is enough");

    world.save(&save(&record, done("paid"))).await.unwrap();
    assert_eq!(world.start(record.key, &record.owner).await.unwrap(), StartVerdict::Lost, "it is over");
    let nowhere = world.explicit("nowhere").address.own();
    assert_eq!(world.start(nowhere, &record.owner).await.unwrap(), StartVerdict::Lost);
    assert!(world.is_absent(nowhere).await);
}

pub(super) async fn a_renewal_extends_the_lease_of_its_owner_only(world: SuiteWorld) {
    let record = world.take(&world.explicit("k")).await;
    let stranger = DedupeRecord { owner: world.owner(), ..record.clone() };
    assert_eq!(world.renew(&stranger, &lifetimes()).await.unwrap(), RenewVerdict::Lost);
    assert_eq!(world.found(record.key).await, record, "a foreign token writes nothing");

    world.pass(1).await;
    assert_eq!(world.renew(&record, &lifetimes()).await.unwrap(), RenewVerdict::Renewed);
    let renewed = world.found(record.key).await;
    let (Lease::Until(before), Lease::Until(after)) = (record.lease, renewed.lease) else {
        panic!("a claim has a lease with an end")
    };
    assert!(after > before && renewed.expires > record.expires && renewed.version == 2);

    world.save(&save(&record, final_unknown())).await.unwrap();
    let unknown = world.found(record.key).await;
    assert_eq!(world.renew(&record, &lifetimes()).await.unwrap(), RenewVerdict::MarkedUnknown);
    assert_eq!(world.found(record.key).await, unknown);
}

pub(super) async fn a_renewal_brings_nothing_back(world: SuiteWorld) {
    let record = world.take(&world.explicit("released")).await;
    world.release(&release(&record)).await.unwrap();
    assert_eq!(world.renew(&record, &lifetimes()).await.unwrap(), RenewVerdict::Lost);
    assert!(world.is_absent(record.key).await);

    let (record, _) = world.run(&world.explicit("answered"), done("paid")).await;
    assert_eq!(world.renew(&record, &lifetimes()).await.unwrap(), RenewVerdict::Lost);
    assert_eq!(world.found(record.key).await, record);
}

pub(super) async fn a_result_is_saved_under_the_fence(world: SuiteWorld) {
    for column in COLUMNS {
        let record = world.take(&world.leader(column, "fence")).await;
        let stranger = DedupeRecord { owner: world.owner(), ..record.clone() };
        for ending in [done("stolen"), failed(FailurePermanence::ForGood), final_unknown()] {
            let verdict = world.second().save(&save(&stranger, ending)).await.unwrap();
            assert_eq!(verdict, SaveVerdict::FenceLost);
            assert_eq!(world.found(record.key).await, record, "a foreign token writes nothing");
        }
        let attempts: Vec<_> = (0..20).map(|number| attempt(&world, number)).collect();
        let answer = SaveRequest { attempts: attempts.clone(), ..save(&record, done("paid")) };
        let receipt = saved(world.save(&answer).await.unwrap());
        let stored = world.found(record.key).await;
        assert_eq!(stored.receipt(), receipt);
        assert_eq!((&stored.state, stored.delivered), (&DedupeState::Done(Some(output("paid"))), None));
        assert_eq!(stored.attempts, attempts[4..], "the last of them, word for word");
    }
    let record = world.take(&world.explicit("kept back")).await;
    let at = world.now();
    let late = SaveRequest { delivered: Some(at), ..save(&record, RunOutcome::Done(None)) };
    saved(world.save(&late).await.unwrap());
    let stored = world.found(record.key).await;
    assert_eq!((stored.state, stored.delivered), (DedupeState::Done(None), Some(at)));
}

fn attempt(world: &SuiteWorld, number: u32) -> AttemptRecord {
    let started = world.now() + Duration::from_millis(number.into());
    let rule = number.is_multiple_of(2).then(|| format!("rule {number}").into());
    AttemptRecord {
        number,
        code: None,
        started,
        finished: long_after(started),
        rule,
        retriable: number.is_multiple_of(3),
    }
}

pub(super) async fn a_save_that_is_repeated_changes_nothing(world: SuiteWorld) {
    for (name, ending, other) in [
        ("done", done("paid"), failed(FailurePermanence::ForGood)),
        ("failed", failed(FailurePermanence::ForGood), done("paid")),
        ("done for good", done("paid"), final_unknown()),
    ] {
        let claim = world.explicit(name);
        let record = world.take(&claim).await;
        let receipt = saved(world.save(&save(&record, ending.clone())).await.unwrap());
        let stored = world.found(record.key).await;
        assert_eq!(saved(world.second().save(&save(&record, ending)).await.unwrap()), receipt, "{name}");
        assert_eq!(world.save(&save(&record, other)).await.unwrap(), SaveVerdict::FenceLost, "{name}");
        assert_eq!(world.found(record.key).await, stored, "{name}");
    }
    let record = world.take(&world.explicit("unknown")).await;
    let receipt = saved(world.save(&save(&record, final_unknown())).await.unwrap());
    assert_eq!(saved(world.save(&save(&record, final_unknown())).await.unwrap()), receipt);
}

pub(super) async fn a_late_result_turns_unknown_into_done(world: SuiteWorld) {
    for column in COLUMNS {
        let first = world.take_and_lapse(world.leader(column, "late")).await;
        let rules = DedupeRules { linger: Duration::ZERO, ..rules() };
        let second = Claim { rules, ..world.duplicate(column, "late", &first) };
        let earlier = world.unknown_status(&second).await.receipt;
        world.delivered(&earlier, long_after(world.now())).await.unwrap();
        assert!(world.found(first.key).await.delivered.is_some(), "{column:?}");
        let receipt = saved(world.save(&save(&first, done("paid"))).await.unwrap());
        let stored = world.found(first.key).await;
        assert_eq!(stored.receipt(), receipt);
        assert_eq!(stored.delivered, None, "what was told is not this answer");
        // The delivery of the earlier response is recorded late, and has no effect.
        world.delivered(&earlier, world.now()).await.unwrap();
        assert_eq!(world.found(first.key).await, stored);
        assert!(matches!(world.ask(&second).await, ClaimVerdict::Replay(_)), "{column:?}");
    }
    // In any state that the owner has reported before.
    for settles in [SettleDelay::WhenOwnerReports, SettleDelay::After(LONG), SettleDelay::Settled] {
        for ending in [done("paid"), failed(FailurePermanence::ForGood)] {
            let name = format!("{settles:?} {ending:?}");
            let record = world.take(&world.explicit(&name)).await;
            let earlier = saved(world.save(&save(&record, unknown(settles))).await.unwrap());
            let receipt = saved(world.second().save(&save(&record, ending)).await.unwrap());
            assert!(receipt.version > earlier.version, "{name}");
            let stored = world.found(record.key).await;
            assert!(!stored.is_open() && stored.receipt() == receipt, "{name}: {stored:?}");
            // Reporting an unknown outcome comes too late.
            let late = world.save(&save(&record, unknown(settles))).await.unwrap();
            assert_eq!(late, SaveVerdict::FenceLost, "{name}");
            assert_eq!(world.found(record.key).await, stored, "{name}");
        }
    }
}

pub(super) async fn an_owner_that_observed_the_end_overrides(world: SuiteWorld) {
    let delays = [SettleDelay::WhenOwnerReports, SettleDelay::After(LONG), SettleDelay::Settled];
    for column in COLUMNS {
        let mut before = world.take(&world.leader(column, "end")).await;
        let claimed = before.clone();
        for (step, settles) in delays.into_iter().enumerate() {
            let receipt =
                saved(world.handle(step as u64).save(&save(&claimed, unknown(settles))).await.unwrap());
            let stored = world.found(claimed.key).await;
            assert_eq!(
                (stored.receipt(), stored.version),
                (receipt.clone(), before.version + 1),
                "{settles:?}"
            );
            for known in &delays[..=step] {
                // An announced time does not change.
                let again = world.save(&save(&claimed, unknown(*known))).await.unwrap();
                assert_eq!(saved(again), receipt, "{known:?} after {settles:?}");
                assert_eq!(world.found(claimed.key).await, stored, "{known:?} after {settles:?}");
            }
            // The delivery of an earlier response does not count for the current one.
            world.delivered(&before.receipt(), world.now() + 2 * LONG).await.unwrap();
            assert_eq!(world.found(claimed.key).await, stored, "{settles:?}");
            before = stored;
        }
        let second = world.duplicate(column, "end", &claimed);
        assert_eq!(world.verdict(&second).await, "tell final", "{column:?}");
    }
}

pub(super) async fn a_delivered_final_response_stays_delivered(world: SuiteWorld) {
    let record = world.take(&world.keyless("told")).await;
    let over = unknown(SettleDelay::After(Duration::ZERO));
    let receipt = saved(world.save(&save(&record, over)).await.unwrap());
    let at = long_after(world.now());
    world.delivered(&receipt, at).await.unwrap();
    let marked = world.found(record.key).await;
    assert_eq!(marked.delivered, Some(at));
    saved(world.save(&save(&record, final_unknown())).await.unwrap());
    let stored = world.found(record.key).await;
    assert_eq!(
        (stored.delivered, stored.version),
        (Some(at), marked.version + 1),
        "its owner has seen the end too"
    );
}

pub(super) async fn a_save_that_finds_nothing_writes(world: SuiteWorld) {
    for column in COLUMNS {
        let record = world.take(&world.leader(column, "gone")).await;
        world.release(&release(&record)).await.unwrap();
        assert!(world.is_absent(record.key).await);
        let receipt = saved(world.save(&save(&record, done("paid"))).await.unwrap());
        let stored = world.found(record.key).await;
        assert_eq!((stored.receipt(), &stored.owner), (receipt, &record.owner));
        assert!(stored.version > record.version, "a mark for what was there before must miss");
        let second = world.duplicate(column, "gone", &record);
        assert!(
            matches!(world.ask(&second).await, ClaimVerdict::Replay(_)),
            "the index finds it: {column:?}"
        );
    }
}

pub(super) async fn a_save_that_finds_nothing_does_not_change_a_newer_index(world: SuiteWorld) {
    let old = world.take(&world.call_id("old", "pay")).await;
    world.release(&release(&old)).await.unwrap();
    let new = world.take(&world.call_id("new", "pay")).await;
    saved(world.save(&save(&old, done("paid"))).await.unwrap());
    assert_eq!(world.ask(&world.keyless("pay")).await, ClaimVerdict::Follow(new.key));
    assert_eq!(world.verdict(&world.call_id("old", "pay")).await, "replay", "it is found under its id");
}

pub(super) async fn a_save_finds_its_run_through_the_index(world: SuiteWorld) {
    // The claim took over another run, and its response was lost: the caller does not know the key.
    let claim = Claim { retry_safe: true, ..world.keyless("pay") };
    let first = world.take_and_lapse(claim).await;
    let second = world.keyless("pay");
    let taken = world.take(&second).await;
    assert_eq!(taken.key, first.key);
    let believed = DedupeRecord { key: second.address.own(), ..taken };
    let receipt = saved(world.save(&save(&believed, done("paid"))).await.unwrap());
    assert_eq!(receipt.key, first.key);
    assert!(world.is_absent(second.address.own()).await);
    assert!(matches!(world.ask(&world.keyless("pay")).await, ClaimVerdict::Replay(_)));
}

pub(super) async fn a_release_affects_only_its_own_claim(world: SuiteWorld) {
    for column in COLUMNS {
        let record = world.take(&world.leader(column, "foreign release")).await;
        let foreign = ReleaseRequest { owner: world.owner(), ..release(&record) };
        world.release(&foreign).await.unwrap();
        assert_eq!(world.found(record.key).await, record, "a foreign token removes nothing");

        world.release(&release(&record)).await.unwrap();
        assert!(world.is_absent(record.key).await);
        let second = world.duplicate(column, "foreign release", &record);
        let taken = world.take(&second).await;
        assert_eq!(taken.key, second.address.own(), "{column:?}");
        world.release(&release(&record)).await.unwrap();
        assert_eq!(world.found(taken.key).await, taken, "a repeated release is too late");

        world.save(&save(&taken, final_unknown())).await.unwrap();
        world.release(&release(&taken)).await.unwrap();
        assert!(world.is_absent(taken.key).await, "the owner knows that nothing ran");
    }
    let (record, _) = world.run(&world.explicit("answered"), done("paid")).await;
    world.release(&release(&record)).await.unwrap();
    assert_eq!(world.found(record.key).await, record, "an answer stays");
}

pub(super) async fn a_release_finds_its_run_through_the_index(world: SuiteWorld) {
    let first = world.take_and_lapse(Claim { retry_safe: true, ..world.keyless("pay") }).await;
    let second = world.keyless("pay");
    let taken = world.take(&second).await;
    assert_eq!(taken.key, first.key);
    let believed = ReleaseRequest { key: second.address.own(), ..release(&taken) };
    world.release(&believed).await.unwrap();
    assert!(world.is_absent(first.key).await);
    assert_eq!(world.verdict(&world.keyless("pay")).await, "mine");
}

pub(super) async fn a_delivery_marks_only_the_result_with_its_receipt(world: SuiteWorld) {
    let at = world.now();
    let (record, receipt) = world.run(&world.explicit("k"), done("paid")).await;
    let stranger = ClaimOwner { claim: 99, ..receipt.owner.clone() };
    for wrong in [
        DeliveryReceipt { version: receipt.version + 1, ..receipt.clone() },
        DeliveryReceipt { version: receipt.version - 1, ..receipt.clone() },
        DeliveryReceipt { owner: stranger, ..receipt.clone() },
    ] {
        world.delivered(&wrong, at).await.unwrap();
        assert_eq!(world.found(record.key).await, record);
    }
    world.second().delivered(&receipt, at).await.unwrap();
    let marked = world.found(record.key).await;
    assert_eq!((marked.delivered, marked.version), (Some(at), record.version + 1));
    assert_eq!(marked.expires, record.expires);
    world.delivered(&marked.receipt(), long_after(at)).await.unwrap();
    assert_eq!(world.found(record.key).await.delivered, Some(at), "the first arrival counts");

    let inflight = world.take(&world.explicit("in flight")).await;
    world.delivered(&inflight.receipt(), at).await.unwrap();
    assert_eq!(world.found(inflight.key).await, inflight, "there is no answer yet");
    let nowhere = world.explicit("nowhere").address.own();
    world.delivered(&DeliveryReceipt { key: nowhere, ..receipt }, at).await.unwrap();
    assert!(world.is_absent(nowhere).await);
}

pub(super) async fn a_response_before_the_end_is_never_marked_as_delivered(world: SuiteWorld) {
    let now = world.now();
    for column in COLUMNS {
        for (settles, at) in [
            (SettleDelay::WhenOwnerReports, now),
            (SettleDelay::WhenOwnerReports, long_after(long_after(now))),
            (SettleDelay::After(LONG), now),
        ] {
            let name = format!("{settles:?} {at:?}");
            let (record, receipt) = world.run(&world.leader(column, &name), unknown(settles)).await;
            world.delivered(&receipt, at).await.unwrap();
            assert_eq!(world.found(record.key).await, record, "{name}: {column:?}");
            // It does not count later either. Only a response from then on does.
            saved(world.save(&save(&record, final_unknown())).await.unwrap());
            let rules = DedupeRules { after_telling: Duration::ZERO, ..rules() };
            let second = Claim { rules, ..world.duplicate(column, &name, &record) };
            assert_eq!(world.verdict(&second).await, "tell final", "{name}: {column:?}");
        }
        for (settles, at) in [(SettleDelay::Settled, now), (SettleDelay::After(LONG), now + 2 * LONG)] {
            let name = format!("{settles:?} {at:?}");
            let (record, receipt) = world.run(&world.leader(column, &name), unknown(settles)).await;
            world.delivered(&receipt, at).await.unwrap();
            let marked = world.found(record.key).await;
            assert_eq!((marked.delivered, marked.version), (Some(at), record.version + 1), "{name}");
            // The wait starts with the first response that was delivered.
            world.delivered(&marked.receipt(), long_after(at)).await.unwrap();
            assert_eq!(world.found(record.key).await, marked, "{name}");
        }
    }
}

pub(super) async fn an_operator_resolves_an_unknown_outcome(world: SuiteWorld) {
    let keep = RecordLifetimes { done: 2 * LONG, ..lifetimes() };
    let rules = || DedupeRules { keep, ..rules() };
    for column in COLUMNS {
        let (ran, _) = world.run(&world.leader(column, "ran"), final_unknown()).await;
        let verdict = world
            .second()
            .resolve(&ResolutionRequest::by_operator(ran.key, Resolution::Ran), &rules())
            .await
            .unwrap();
        assert_eq!(verdict, ResolveVerdict::Resolved);
        let resolved = world.found(ran.key).await;
        assert_eq!(resolved.state, DedupeState::Done(None));
        assert!(resolved.expires > ran.expires, "it lives as long as an answer");
        let again = world
            .resolve(&ResolutionRequest::by_operator(ran.key, Resolution::DidNotRun), &rules())
            .await
            .unwrap();
        assert_eq!(again, ResolveVerdict::NotUnknown, "there is nothing left to resolve");
        assert_eq!(world.found(ran.key).await, resolved);

        let (idle, _) = world.run(&world.leader(column, "did not"), final_unknown()).await;
        let verdict = world
            .resolve(&ResolutionRequest::by_operator(idle.key, Resolution::DidNotRun), &rules())
            .await
            .unwrap();
        assert_eq!(verdict, ResolveVerdict::Resolved);
        assert!(world.is_absent(idle.key).await);
        let second = world.duplicate(column, "did not", &idle);
        assert_eq!(world.verdict(&second).await, "mine", "{column:?}");
    }
    let inflight = world.take(&world.explicit("in flight")).await;
    let nowhere = world.explicit("nowhere").address.own();
    for key in [inflight.key, nowhere] {
        let verdict =
            world.resolve(&ResolutionRequest::by_operator(key, Resolution::Ran), &rules()).await.unwrap();
        assert_eq!(verdict, ResolveVerdict::NotUnknown);
    }
    assert_eq!(world.found(inflight.key).await, inflight);
}

pub(super) async fn a_call_cannot_be_resolved_as_not_run_before_its_end(world: SuiteWorld) {
    for column in COLUMNS {
        for (settles, announced) in
            [(SettleDelay::WhenOwnerReports, None), (SettleDelay::After(LONG), Some(LONG))]
        {
            let name = format!("{settles:?}");
            let (record, _) = world.run(&world.leader(column, &name), unknown(settles)).await;
            let verdict = world
                .second()
                .resolve(&ResolutionRequest::by_operator(record.key, Resolution::DidNotRun), &rules())
                .await
                .unwrap();
            let ResolveVerdict::NotSettled(left) = verdict else { panic!("{name}: {column:?}: {verdict:?}") };
            match announced {
                Some(span) => assert!(world.is_left(left, span), "{name}: {column:?}: {left:?}"),
                None => assert_eq!(left, None, "{name}: {column:?}"),
            }
            assert_eq!(world.found(record.key).await, record, "nothing is written: {name}: {column:?}");
            // That it ran can be resolved as soon as it is seen.
            let verdict = world
                .resolve(&ResolutionRequest::by_operator(record.key, Resolution::Ran), &rules())
                .await
                .unwrap();
            assert_eq!(verdict, ResolveVerdict::Resolved, "{name}: {column:?}");
            assert_eq!(world.found(record.key).await.state, DedupeState::Done(None));
        }
    }
    for column in COLUMNS {
        // The owner is gone, and no claim has come since.
        let record = world.take_and_lapse(world.leader(column, "gone")).await;
        for _ in 0..2 {
            let verdict = world
                .resolve(&ResolutionRequest::by_operator(record.key, Resolution::DidNotRun), &rules())
                .await
                .unwrap();
            let ResolveVerdict::NotSettled(left) = verdict else { panic!("{column:?}: {verdict:?}") };
            assert!(world.is_left(left, LONG), "as long as it may linger: {left:?}");
        }
        let second = world.duplicate(column, "gone", &record);
        assert_eq!(world.verdict(&second).await, "tell not yet", "its time has begun: {column:?}");
        let at_once = DedupeRules { linger: Duration::ZERO, ..rules() };
        let brief = world.take_and_lapse(world.leader(column, "brief")).await;
        let verdict = world
            .resolve(&ResolutionRequest::by_operator(brief.key, Resolution::DidNotRun), &at_once)
            .await
            .unwrap();
        assert_eq!(verdict, ResolveVerdict::Resolved, "{column:?}");
        assert!(world.is_absent(brief.key).await);
    }
    let over = unknown(SettleDelay::After(Duration::ZERO));
    let (record, _) = world.run(&world.explicit("over"), over).await;
    let verdict = world
        .resolve(&ResolutionRequest::by_operator(record.key, Resolution::DidNotRun), &rules())
        .await
        .unwrap();
    assert_eq!(verdict, ResolveVerdict::Resolved);
    assert!(world.is_absent(record.key).await);
}

pub(super) async fn an_abandoned_run_is_recorded_as_unknown_once(world: SuiteWorld) {
    for column in COLUMNS {
        let live = world.take(&world.leader(column, "held")).await;
        assert_eq!(world.mark_abandoned(live.key, &rules()).await.unwrap(), None, "{column:?}");
        assert_eq!(world.found(live.key).await, live);

        let abandoned = world.take_and_lapse(world.leader(column, "gone")).await;
        let marked =
            world.second().mark_abandoned(abandoned.key, &rules()).await.unwrap().expect("it is abandoned");
        assert_eq!(world.found(abandoned.key).await, marked);
        let DedupeState::Unknown(unknown) = &marked.state else { panic!("{column:?}: {:?}", marked.state) };
        assert!(!unknown.is_settled(world.now()), "its time begins now: {column:?}");
        assert_eq!(world.mark_abandoned(abandoned.key, &rules()).await.unwrap(), None, "once: {column:?}");
        let second = world.duplicate(column, "gone", &abandoned);
        assert_eq!(world.verdict(&second).await, "tell not yet", "{column:?}");
    }
    // A call that was not sent, or is safe to repeat, may be run by the next caller.
    let safe = world.take_and_lapse(Claim { retry_safe: true, ..world.explicit("safe") }).await;
    assert_eq!(world.mark_abandoned(safe.key, &rules()).await.unwrap(), None);
    let nowhere = world.explicit("nowhere").address.own();
    assert_eq!(world.mark_abandoned(nowhere, &rules()).await.unwrap(), None);
}
