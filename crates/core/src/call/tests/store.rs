//! Store failures, the fencing token, and deferred writes.

use super::*;

/// The store does not process the next operations.
fn down(world: &mut CallTestWorld, operations: usize, fault: StoreFault) {
    world.store.faults = std::iter::repeat_n(Some(fault), operations).collect();
}

#[test]
fn a_call_continues_without_the_store_if_a_second_run_is_harmless() {
    use StoreFailurePolicy::{GoOn, Refuse};
    use ToolClass::{Idempotent, Mutating, ReadOnly, Unknown};
    let critical = json!({ "payload": { "callHints": { "safetyCritical": true } } });
    let plain = json!({});
    // Class, the setting for class `unknown`, the setting for explicit keys, hints; whether the call runs.
    for (class, unknown, explicit, hints, runs) in [
        (ReadOnly, GoOn, GoOn, &plain, true),
        (Idempotent, GoOn, GoOn, &plain, true),
        (Mutating, GoOn, GoOn, &plain, false),
        (Unknown, GoOn, GoOn, &plain, true),
        (Unknown, Refuse, GoOn, &plain, false),
        (ReadOnly, Refuse, GoOn, &plain, true),
        (ReadOnly, GoOn, Refuse, &plain, false),
        (Idempotent, GoOn, Refuse, &plain, false),
        (Unknown, GoOn, Refuse, &plain, false),
        (ReadOnly, GoOn, GoOn, &critical, false),
        (Idempotent, GoOn, GoOn, &critical, false),
        (Unknown, GoOn, GoOn, &critical, false),
    ] {
        let mut policy = policy(class);
        policy.dedupe.on_store_failure = unknown;
        policy.dedupe.explicit_key_on_store_failure = explicit;
        let mut envelope = envelope_with(hints);
        envelope["payload"]["idempotencyKey"] = json!("k");
        let mut world = CallTestWorld::new();
        down(&mut world, 3, StoreFault::NotDone);
        let (mut call, step) = world.begin(from_envelope(&envelope, &policy), &policy);
        let row = format!("{class:?} {unknown:?} {explicit:?} {hints}");
        assert!(world.has(&CallNotice::StoreFailed { continues: runs }), "{row}");
        if !runs {
            let (result, deferred) = finished_with_deferred(step);
            assert_eq!(code(&result), Some(Code::StoreUnavailable), "{row}");
            assert_eq!((world.runs, deferred), (0, vec![]), "{row}");
            continue;
        }
        let (result, deferred) = finished_with_deferred(world.on(&mut call, CallEvent::Ran(paid())));
        assert_eq!(result.outcome, Ok(answer("paid")), "{row}");
        assert_eq!((result.recorded, result.receipt), (RecordStatus::No, None), "{row}");
        // The result is saved under its fencing token when the store is available again.
        let [DeferredWrite::Save(save)] = &deferred[..] else { panic!("{row}: {deferred:?}") };
        assert!(matches!(world.store.save(save, world.now), SaveVerdict::Saved(_)));
        assert_eq!(world.store.state(), "done");
    }
}

/// A turn took a refusal by the breaker as proof that nothing had run, and had another tool do the job again. The first
/// tool had done it in an earlier submission, and the store was unavailable.
#[test]
fn a_refusal_without_a_lookup_reports_that_a_result_may_exist() {
    for (class, keyless, expected) in [
        (ToolClass::Mutating, false, Code::StoreUnavailable),
        (ToolClass::Mutating, true, Code::CircuitOpen),
        (ToolClass::Idempotent, false, Code::StoreUnavailable),
        (ToolClass::Idempotent, true, Code::CircuitOpen),
    ] {
        let policy = policy(class);
        let mut world = CallTestWorld::new();
        let request = if keyless { self::keyless(&policy) } else { request(&policy) };
        world.breaker.force_open(None, world.now);
        down(&mut world, 1, StoreFault::NotDone);
        let (_, step) = world.begin(request, &policy);
        assert_eq!(code(&finished(step)), Some(expected), "{class:?}, keyless: {keyless}");
        assert_eq!(
            world.has(&CallNotice::StoreFailed { continues: false }),
            expected == Code::StoreUnavailable
        );
    }
}

/// The call continues without the store, and then finds the breaker open.
#[test]
fn a_refusal_of_a_keyed_call_that_continued_without_the_store_reports_the_store() {
    for (keyless, expected) in [(false, Code::StoreUnavailable), (true, Code::CircuitOpen)] {
        let policy = policy(ToolClass::Idempotent);
        let mut world = CallTestWorld::new();
        let request = if keyless { self::keyless(&policy) } else { request(&policy) };
        down(&mut world, 100, StoreFault::NotDone);
        let (mut call, step) = world.begin_only(request, &policy);
        world.breaker.force_open(None, world.now);
        let step = world.serve(&mut call, step);
        assert_eq!((code(&finished(step)), world.runs), (Some(expected), 0), "keyless: {keyless}");
    }
}

#[test]
fn at_the_gateway_an_explicit_key_needs_the_store_for_every_class() {
    for class in [ToolClass::ReadOnly, ToolClass::Idempotent, ToolClass::Unknown, ToolClass::Mutating] {
        let policy = policy(class).for_gateway();
        let mut world = CallTestWorld::new();
        down(&mut world, 3, StoreFault::NotDone);
        let (_, step) = world.begin(request(&policy), &policy);
        assert_eq!(code(&finished(step)), Some(Code::StoreUnavailable), "{class:?}");
        let mut world = CallTestWorld::new();
        down(&mut world, 3, StoreFault::NotDone);
        let (_, step) = world.begin(keyless(&policy), &policy);
        assert_eq!(name_of(&step) == "Run", class != ToolClass::Mutating, "{class:?} without a key");
    }
}

#[test]
fn a_claim_whose_answer_was_lost_is_repeated_under_the_same_token_and_found() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    world.store.faults = [Some(StoreFault::Unanswered), Some(StoreFault::NotDone), None].into();
    let (mut call, step) = world.begin(request(&policy), &policy);
    assert_eq!(name_of(&step), "Run");
    assert_eq!(world.steps, ["Claim", "ClaimOnly", "ClaimOnly", "Run"], "what was started stays so");
    assert_eq!(call.record().map(|record| record.owner.claim), Some(1));
    assert_eq!(finished(world.on(&mut call, CallEvent::Ran(paid()))).recorded, RecordStatus::Yes);
    assert_eq!((world.store.state(), world.runs), ("done", 1));
}

/// A release after the end would delete an unknown outcome, and the call would be made again.
#[test]
fn a_claim_that_the_call_continued_with_is_not_released_when_it_ends() {
    for (class, unanswered) in
        [(ToolClass::Mutating, 1), (ToolClass::Mutating, 2), (ToolClass::Idempotent, 1 + CLAIM_REPEATS)]
    {
        let policy = policy(class);
        let mut world = CallTestWorld::new();
        down(&mut world, unanswered as usize, StoreFault::Unanswered);
        let (mut call, step) = world.begin(keyless(&policy), &policy);
        assert_eq!(name_of(&step), "Run");
        let (_, deferred) = finished_with_deferred(world.on(&mut call, CallEvent::Ran(paid())));
        let released = deferred.iter().any(|write| matches!(write, DeferredWrite::Release(_)));
        assert!(!released, "{class:?}, {unanswered} without an answer: {deferred:?}");
    }
}

#[test]
fn a_claim_that_was_given_up_keeps_its_release_until_it_is_through() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    down(&mut world, 3, StoreFault::Unanswered);
    let (_, step) = world.begin(request(&policy), &policy);
    let (result, deferred) = finished_with_deferred(step);
    assert_eq!((code(&result), world.runs), (Some(Code::StoreUnavailable), 0));
    assert_eq!(world.store.state(), "inflight", "the claim was applied, and a living process holds it");
    let [DeferredWrite::Release(release)] = &deferred[..] else { panic!("{deferred:?}") };
    world.store.release(release);
    assert_eq!(world.store.state(), "none");
}

#[test]
fn a_release_that_fails_is_deferred() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    down(&mut world, 1, StoreFault::NotDone);
    let (result, deferred) = finished_with_deferred(world.on(&mut call, CallEvent::Ran(http(413))));
    assert_eq!((code(&result), world.store.state()), (Some(Code::ToolError), "inflight"));
    let [DeferredWrite::Release(release)] = &deferred[..] else { panic!("{deferred:?}") };
    world.store.release(release);
    assert_eq!(world.store.state(), "none");
}

#[test]
fn an_answer_that_could_not_be_saved_is_deferred_and_returned_to_the_caller() {
    for fault in [StoreFault::NotDone, StoreFault::Unanswered] {
        let policy = policy(ToolClass::Mutating);
        let mut world = CallTestWorld::new();
        let (mut call, _) = world.begin(request(&policy), &policy);
        down(&mut world, 1, fault);
        let (result, deferred) = finished_with_deferred(world.on(&mut call, CallEvent::Ran(paid())));
        assert_eq!((result.outcome, result.recorded), (Ok(answer("paid")), RecordStatus::No));
        let [DeferredWrite::Save(save)] = &deferred[..] else { panic!("{deferred:?}") };
        assert!(matches!(world.store.save(save, world.now), SaveVerdict::Saved(_)), "{fault:?}");
        assert_eq!(world.store.state(), "done");
    }
}

#[test]
fn a_fence_that_was_lost_leaves_the_caller_its_answer_marked_as_not_recorded() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    world.store.steal();
    let result = finished(world.on(&mut call, CallEvent::Ran(paid())));
    assert_eq!(
        (result.outcome, result.recorded, result.receipt),
        (Ok(answer("paid")), RecordStatus::No, None)
    );
    assert!(world.has(&CallNotice::FenceLost));
    assert_eq!(world.store.state(), "inflight", "the record of the other owner is unchanged");
}

#[test]
fn no_further_attempt_starts_when_the_fence_was_lost_during_one() {
    let policy = policy(ToolClass::Idempotent);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    world.store.steal();
    let verdict = world.store.renew(&call, world.now);
    assert_eq!(name_of(&world.renewed(&mut call, verdict)), "Stay", "a running attempt goes on");
    assert_eq!(call.record(), None, "there is nothing to renew any more");
    let result = finished(world.on(&mut call, CallEvent::Ran(http(500))));
    assert_eq!((code(&result), world.runs), (Some(Code::ToolError), 1));
    assert_eq!(world.store.state(), "inflight");
}

#[test]
fn no_further_attempt_starts_when_the_fence_was_lost_between_two() {
    let policy = policy(ToolClass::Idempotent);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    assert_eq!(name_of(&world.on(&mut call, CallEvent::Ran(http(500)))), "Wait");
    world.renewed(&mut call, RenewVerdict::Lost);
    let (result, deferred) = finished_with_deferred(world.wake(&mut call));
    assert_eq!(
        (code(&result), message(&result)),
        (Some(Code::ToolError), "it failed"),
        "the last failure is the answer"
    );
    assert_eq!((result.recorded, deferred, world.runs), (RecordStatus::No, vec![], 1));
    assert_eq!(world.count(|notice| *notice == CallNotice::FenceLost), 1);
}

#[test]
fn a_holder_that_was_silent_for_longer_than_its_lease_renews_before_a_further_attempt() {
    let mut policy = policy(ToolClass::Idempotent);
    policy.dedupe.keep.lease = 150 * MS;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    world.on(&mut call, CallEvent::Ran(http(500)));
    assert_eq!(name_of(&world.wake(&mut call)), "Run");
    assert_eq!(world.steps, ["Claim", "Run", "Wait", "Renew", "Run"]);

    // Renewed in the meantime, it need not ask.
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    world.on(&mut call, CallEvent::Ran(http(500)));
    world.pass(100 * MS);
    world.renewed(&mut call, RenewVerdict::Renewed);
    assert_eq!(name_of(&world.wake(&mut call)), "Run");
    assert_eq!(world.steps, ["Claim", "Run", "Wait", "Stay", "Run"]);

    // Another call owns it by now.
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    world.on(&mut call, CallEvent::Ran(http(500)));
    world.store.steal();
    let result = finished(world.wake(&mut call));
    assert_eq!((code(&result), result.recorded, world.runs), (Some(Code::ToolError), RecordStatus::No, 1));
}

#[test]
fn a_call_that_cannot_renew_starts_nothing_and_keeps_its_release() {
    let mut policy = policy(ToolClass::Idempotent);
    policy.dedupe.keep.lease = 150 * MS;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    world.on(&mut call, CallEvent::Ran(http(500)));
    down(&mut world, 1, StoreFault::NotDone);
    let (result, deferred) = finished_with_deferred(world.wake(&mut call));
    assert_eq!((code(&result), result.recorded, world.runs), (Some(Code::ToolError), RecordStatus::No, 1));
    // Its process is alive, so no other process would ever end this record.
    let [DeferredWrite::Release(release)] = &deferred[..] else { panic!("{deferred:?}") };
    world.store.release(release);
    assert_eq!(world.store.state(), "none");
}

#[test]
fn a_claim_that_was_lost_before_the_start_is_claimed_again_or_followed() {
    let mut policy = policy(ToolClass::Mutating);
    policy.approval.when = ApprovalTrigger::Always;
    let request = from_envelope_on(&keyed("k"), &policy, ApprovalChannel::Interactive);
    // Found by the write of `started`.
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request.clone(), &policy);
    world.store.steal();
    let step = world.on(&mut call, CallEvent::Answered(ApprovalOutcome::Granted(None)));
    assert_eq!((name_of(&step), world.runs), ("Follow", 0));
    assert_eq!(world.steps, ["ClaimOnly", "Ask", "Start", "ClaimOnly", "Follow"]);

    // Found by a renewal, while the call waited for approval.
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request, &policy);
    world.store.steal();
    let verdict = world.store.renew(&call, world.now);
    world.renewed(&mut call, verdict);
    let step = world.on(&mut call, CallEvent::Answered(ApprovalOutcome::Granted(None)));
    assert_eq!((name_of(&step), world.runs), ("Follow", 0), "another holds the record: {:?}", world.steps);
}

#[test]
fn a_start_that_cannot_be_written_starts_nothing() {
    let mut policy = policy(ToolClass::Mutating);
    policy.approval.when = ApprovalTrigger::Always;
    let mut world = CallTestWorld::new();
    let (mut call, _) =
        world.begin(from_envelope_on(&keyed("k"), &policy, ApprovalChannel::Interactive), &policy);
    world.store.faults = [Some(StoreFault::Unanswered), None].into();
    let result = finished(world.on(&mut call, CallEvent::Answered(ApprovalOutcome::Granted(None))));
    assert_eq!((code(&result), world.runs, world.store.state()), (Some(Code::StoreUnavailable), 0, "none"));
}

#[test]
fn a_full_store_answers_overloaded() {
    let policy = policy(ToolClass::ReadOnly);
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin_only(request(&policy), &policy);
    let result = finished(world.on(&mut call, CallEvent::Claimed(ClaimVerdict::Full)));
    assert_eq!((code(&result), rule(&result)), (Some(Code::Overloaded), "store.full"));
}

#[test]
fn a_run_of_a_dead_owner_is_taken_over_if_safe_and_unknown_if_not() {
    for (class, expected) in [(ToolClass::Idempotent, "Run"), (ToolClass::Mutating, "Finish")] {
        let mut policy = policy(class);
        policy.settling.linger = 20 * SECOND;
        let mut world = CallTestWorld::new();
        let (first, _) = world.begin(request(&policy), &policy);
        world.store.sight = LeaseOwnerState::Gone;
        let (mut second, mut step) = world.begin(request(&policy), &policy);
        while let NextStep::AwaitEnd(_) = step {
            step = world.wake(&mut second);
        }
        assert_eq!(name_of(&step), expected);
        match step {
            NextStep::Run(run) => {
                assert_eq!(run.run, first.request().run, "the tool may recognise the run");
                assert!(world.has(&CallNotice::TookOver));
            }
            step => {
                let result = finished(step);
                assert_eq!(code(&result), Some(Code::OutcomeUnknown));
                assert_eq!(world.now, START + 20 * SECOND, "it is answered at the end");
                assert!(result.receipt.is_some(), "the telling has to arrive");
                assert_eq!(world.store.state(), "unknown");
            }
        }
    }
}

#[test]
fn a_start_that_cannot_be_written_continues_if_a_second_run_is_harmless() {
    use StoreFailurePolicy::{GoOn, Refuse};
    use ToolClass::{Idempotent, Mutating, ReadOnly, Unknown};
    for (class, unknown, critical, runs) in [
        (ReadOnly, Refuse, false, true),
        (Idempotent, Refuse, false, true),
        (Unknown, GoOn, false, true),
        (Unknown, Refuse, false, false),
        (Mutating, GoOn, false, false),
        (ReadOnly, GoOn, true, false),
    ] {
        for fault in [StoreFault::NotDone, StoreFault::Unanswered] {
            let row = format!("{class:?} {unknown:?} {critical} {fault:?}");
            let mut policy = policy(class);
            policy.approval.when = ApprovalTrigger::Always;
            policy.dedupe.on_store_failure = unknown;
            let mut request = from_envelope_on(&keyed("k"), &policy, ApprovalChannel::Interactive);
            request.hints.safety_critical = critical;
            let mut world = CallTestWorld::new();
            let (mut call, _) = world.begin(request, &policy);
            world.store.faults = [Some(fault)].into();
            let step = world.on(&mut call, CallEvent::Answered(ApprovalOutcome::Granted(None)));
            assert!(world.has(&CallNotice::StoreFailed { continues: runs }), "{row}");
            if !runs {
                assert_eq!(code(&finished(step)), Some(Code::StoreUnavailable), "{row}");
                assert_eq!((world.runs, world.store.state()), (0, "none"), "{row}");
                continue;
            }
            assert_eq!((name_of(&step), call.record()), ("Run", None), "{row}: nothing to renew");
            let (result, deferred) = finished_with_deferred(world.on(&mut call, CallEvent::Ran(paid())));
            assert_eq!((result.outcome, result.recorded), (Ok(answer("paid")), RecordStatus::No), "{row}");
            let [DeferredWrite::Save(save)] = &deferred[..] else { panic!("{row}: {deferred:?}") };
            assert!(matches!(world.store.save(save, world.now), SaveVerdict::Saved(_)), "{row}");
            assert_eq!(world.store.state(), "done", "{row}");
        }
    }
}

/// Another process finds that the lease of the only record has ended, and declares its outcome unknown.
fn declared_unknown(world: &mut CallTestWorld) {
    let record = world.store.records.iter().next().expect("there is a record").clone();
    let unknown = DedupeRecord {
        state: DedupeState::Unknown(UnknownOutcome::settled(UnknownOutcomeReason::ProcessDied)),
        version: record.version + 1,
        ..record
    };
    let write = RecordWrite::Put { record: Arc::new(unknown), index: IndexUpdate::Keep, remove: Vec::new() };
    world.store.records.apply(write);
    assert_eq!(world.store.state(), "unknown");
}

#[test]
fn nothing_more_starts_after_others_got_an_unknown_outcome() {
    let policy = policy(ToolClass::Mutating);
    // During an attempt: its result still counts.
    for (outcome, state) in [(paid(), "done"), (busy(Duration::ZERO), "none"), (timed_out(), "unknown")] {
        let mut world = CallTestWorld::new();
        let (mut call, _) = world.begin(request(&policy), &policy);
        declared_unknown(&mut world);
        let verdict = world.store.renew(&call, world.now);
        assert_eq!(verdict, RenewVerdict::MarkedUnknown);
        assert_eq!(world.renewed(&mut call, verdict), NextStep::Stay, "a running attempt goes on");
        assert_eq!(call.record(), None, "there is nothing to renew any more");
        finished(world.on(&mut call, CallEvent::Ran(outcome)));
        assert_eq!((world.runs, world.store.state()), (1, state));
    }
    // Between two attempts: the owner knows that nothing ran, and releases it.
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    assert_eq!(name_of(&world.on(&mut call, CallEvent::Ran(busy(Duration::ZERO)))), "Wait");
    declared_unknown(&mut world);
    world.renewed(&mut call, RenewVerdict::MarkedUnknown);
    let (result, deferred) = finished_with_deferred(world.wake(&mut call));
    assert_eq!((message(&result), result.recorded, world.runs), ("busy", RecordStatus::No, 1));
    let [DeferredWrite::Release(release)] = &deferred[..] else { panic!("{deferred:?}") };
    world.store.release(release);
    assert_eq!(world.store.state(), "none");
}

#[test]
fn a_claim_is_not_marked_as_started_while_approval_is_pending() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let request = from_envelope_on(&keyed("k"), &policy, ApprovalChannel::Interactive);
    let (mut call, step) = world.begin_only(request, &policy);
    // The claim says `started`, because there was no reason against the attempt; then the tool loses trust.
    approval::escalated(&mut world, &policy);
    let step = world.serve(&mut call, step);
    assert_eq!((name_of(&step), call.record().map(|record| record.started)), ("Ask", Some(false)));
    // If this process died now, the next one would take over the call and ask as well.
    world.store.sight = LeaseOwnerState::Gone;
    let again = from_envelope_on(&keyed("k"), &policy, ApprovalChannel::Interactive);
    let (mut other, step) = world.begin(again, &policy);
    assert_eq!(name_of(&step), "Ask");
    world.on(&mut other, CallEvent::Answered(ApprovalOutcome::Granted(None)));
    finished(world.on(&mut other, CallEvent::Ran(paid())));
    assert_eq!((world.runs, world.store.state()), (1, "done"));
}

/// A process claims, and is frozen until its lease ends. By then other processes have found that the call did not run,
/// and have run it.
#[test]
fn a_call_frozen_between_claim_and_attempt_starts_nothing() {
    let policy = policy(ToolClass::Mutating);
    type RequestFn = fn(&CallPolicy) -> CallRequest;
    for (name, request_of) in [("explicit", request as RequestFn), ("keyless", keyless)] {
        let mut world = CallTestWorld::new();
        let (mut frozen, step) = world.begin_only(request_of(&policy), &policy);
        let NextStep::Claim(claim) = step else { panic!("{step:?}") };
        let claimed = world.store.claim(&claim, world.now);
        let key = *world.store.records.iter().map(|record| &record.key).next().unwrap();
        world.pass(policy.dedupe.keep.lease);
        world.store.sight = LeaseOwnerState::Time;
        let unknown = world.drive(request_of(&policy), &policy, &[]);
        assert_eq!(code(&unknown), Some(Code::OutcomeUnknown), "{name}");
        world.pass(policy.settling.linger);
        let resolved = world.store.records.resolve(
            &crate::dedupe::ResolutionRequest::by_operator(key, crate::dedupe::Resolution::DidNotRun),
            &crate::dedupe::DedupeRules::from(&policy),
            |_| LeaseOwnerState::Time,
            world.now,
        );
        assert_eq!(resolved, crate::dedupe::ResolveVerdict::Resolved, "{name}");
        let ran = world.drive(request_of(&policy), &policy, &at_once(paid()));
        assert!(ran.outcome.is_ok(), "{name}");
        // The store's answer has been waiting for the frozen process all the time.
        let step = world.on(&mut frozen, CallEvent::Claimed(claimed));
        let result = finished(step);
        assert!(matches!(result.provenance, Provenance::Replayed { .. }), "{name}: {result:?}");
        assert_eq!(world.runs, 1, "{name}");
    }
}

#[test]
fn a_frozen_call_declared_unknown_runs_nothing_and_releases_its_claim() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut frozen, step) = world.begin_only(request(&policy), &policy);
    let NextStep::Claim(claim) = step else { panic!("{step:?}") };
    let claimed = world.store.claim(&claim, world.now);
    world.pass(policy.dedupe.keep.lease);
    declared_unknown(&mut world);
    // Another caller may have got the response that it is over.
    let result = finished(world.on(&mut frozen, CallEvent::Claimed(claimed)));
    assert_eq!(code(&result), Some(Code::Overloaded));
    assert!(message(&result).contains("Nothing was sent. Call again"), "{}", message(&result));
    assert_eq!((world.runs, world.store.state()), (0, "none"), "its owner knows that nothing ran");
}

#[test]
fn a_renewal_of_an_earlier_claim_does_not_affect_the_current_one() {
    // A first claim is lost before its start, and the call gets a second one. Then the answer to a renewal of the first
    // one arrives.
    let mut policy = policy(ToolClass::Mutating);
    policy.approval.when = ApprovalTrigger::Always;
    let mut world = CallTestWorld::new();
    let (mut call, _) =
        world.begin(from_envelope_on(&keyed("k"), &policy, ApprovalChannel::Interactive), &policy);
    let first = call.record().unwrap().owner.clone();
    world.store.records = MemoryRecords::default();
    assert_eq!(name_of(&world.on(&mut call, CallEvent::Answered(ApprovalOutcome::Granted(None)))), "Ask");
    assert_eq!(name_of(&world.on(&mut call, CallEvent::Answered(ApprovalOutcome::Granted(None)))), "Run");
    assert_ne!(call.record().map(|record| &record.owner), Some(&first), "another claim");
    for verdict in [RenewVerdict::Lost, RenewVerdict::MarkedUnknown, RenewVerdict::Renewed] {
        let before = format!("{call:?}");
        let stale = CallEvent::Renewed { owner: first.clone(), sent: world.now + SECOND, verdict };
        assert_eq!(world.on(&mut call, stale), NextStep::Stay);
        assert_eq!(format!("{call:?}"), before, "{verdict:?}");
    }
    assert_eq!(name_of(&world.on(&mut call, CallEvent::Ran(busy(Duration::ZERO)))), "Wait");
    assert_eq!(name_of(&world.wake(&mut call)), "Run", "the record is still ours");
    assert!(!world.has(&CallNotice::FenceLost));

    // It is not the answer to the requested renewal either.
    policy.approval.when = ApprovalTrigger::Escalated;
    policy.dedupe.keep.lease = 100 * MS;
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin(request(&policy), &policy);
    world.on(&mut call, CallEvent::Ran(busy(Duration::ZERO)));
    world.now = call.wake_at().unwrap();
    assert_eq!(world.on_only(&mut call, CallEvent::Woke(WakeReason::Time)), Ok(NextStep::Renew));
    let other = ClaimOwner { claim: first.claim + 1, ..first };
    let stale = CallEvent::Renewed { owner: other, sent: world.now, verdict: RenewVerdict::Lost };
    assert_eq!((world.on(&mut call, stale), call.state()), (NextStep::Stay, "Renewing"));
    assert_eq!(name_of(&world.renewed(&mut call, RenewVerdict::Renewed)), "Run");
}

#[test]
fn a_claim_that_was_lost_and_made_again_is_the_call_s_own() {
    let mut policy = policy(ToolClass::Mutating);
    policy.approval.when = ApprovalTrigger::Always;
    let mut world = CallTestWorld::new();
    let (mut call, _) =
        world.begin(from_envelope_on(&keyed("k"), &policy, ApprovalChannel::Interactive), &policy);
    world.store.records = MemoryRecords::default();
    assert_eq!(world.renewed(&mut call, RenewVerdict::Lost), NextStep::Stay, "approval is still pending");
    assert_eq!(name_of(&world.on(&mut call, CallEvent::Answered(ApprovalOutcome::Granted(None)))), "Ask");
    assert_eq!(name_of(&world.on(&mut call, CallEvent::Answered(ApprovalOutcome::Granted(None)))), "Run");
    assert_eq!(finished(world.on(&mut call, CallEvent::Ran(paid()))).recorded, RecordStatus::Yes);
    assert_eq!((world.store.state(), world.runs), ("done", 1));
}

#[test]
fn a_lease_is_counted_from_the_store_request_not_from_its_answer() {
    let mut policy = policy(ToolClass::Idempotent);
    policy.dedupe.keep.lease = SECOND;
    // The claim was sent at the start; its answer took most of the lease.
    let slowly_claimed = || {
        let mut world = CallTestWorld::new();
        let (mut call, step) = world.begin_only(request(&policy), &policy);
        let NextStep::Claim(claim) = step else { panic!("{step:?}") };
        let verdict = world.store.claim(&claim, world.now);
        world.pass(900 * MS);
        assert_eq!(name_of(&world.on(&mut call, CallEvent::Claimed(verdict))), "Run");
        assert_eq!(name_of(&world.on(&mut call, CallEvent::Ran(http(500)))), "Wait");
        assert_eq!(call.wake_at(), Some(START + 1100 * MS));
        (world, call)
    };
    let woken = |(mut world, mut call): (CallTestWorld, Call)| {
        world.now = call.wake_at().unwrap();
        name_of(&world.on_only(&mut call, CallEvent::Woke(WakeReason::Time)).unwrap())
    };
    assert_eq!(woken(slowly_claimed()), "Renew", "it may have ended at one second");
    for (name, renewals, expected) in [
        ("sent in time, answered late", vec![(200 * MS, RenewVerdict::Renewed)], "Run"),
        ("sent too early to last", vec![(50 * MS, RenewVerdict::Renewed)], "Renew"),
        (
            "overtaken by a later one",
            vec![(200 * MS, RenewVerdict::Renewed), (50 * MS, RenewVerdict::Renewed)],
            "Run",
        ),
    ] {
        let (mut world, mut call) = slowly_claimed();
        world.pass(100 * MS);
        for (sent, verdict) in renewals {
            let event = renewed(&call, START + sent, verdict);
            world.on(&mut call, event);
        }
        assert_eq!(woken((world, call)), expected, "{name}");
    }

    // The lease of a repeated claim counts from the repeat that was answered.
    let mut world = CallTestWorld::new();
    let (mut call, _) = world.begin_only(request(&policy), &policy);
    world.pass(500 * MS);
    let step = world.on_only(&mut call, CallEvent::StoreFailed(StoreFault::NotDone)).unwrap();
    world.serve(&mut call, step);
    assert_eq!(name_of(&world.on(&mut call, CallEvent::Ran(http(500)))), "Wait");
    world.now = START + 1499 * MS;
    assert_eq!(name_of(&world.on_only(&mut call, CallEvent::Woke(WakeReason::Time)).unwrap()), "Run");
}

#[test]
fn a_claim_declared_unknown_before_it_was_answered_is_reported_as_never_sent() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut call, step) = world.begin_only(request(&policy), &policy);
    let NextStep::Claim(claim) = step else { panic!("{step:?}") };
    world.store.claim(&claim, world.now);
    // The process is frozen, and another one finds a run that is lost.
    world.store.sight = LeaseOwnerState::Time;
    world.now = world.now + policy.dedupe.keep.lease;
    let other = Claim { owner: ClaimOwner { call: 99, ..claim.owner.clone() }, ..(*claim).clone() };
    assert!(matches!(world.store.claim(&other, world.now), ClaimVerdict::Unknown(_)));
    // It continues, and knows that nothing was sent.
    let step = world.on_only(&mut call, CallEvent::StoreFailed(StoreFault::Unanswered)).unwrap();
    let NextStep::Claim(again) = step else { panic!("{step:?}") };
    let found = world.store.claim(&again, world.now);
    let (result, deferred) =
        finished_with_deferred(world.on_only(&mut call, CallEvent::Claimed(found)).unwrap());
    assert_eq!(code(&result), Some(Code::Overloaded));
    let [DeferredWrite::Release(release)] = &deferred[..] else { panic!("{deferred:?}") };
    world.store.release(release);
    assert_eq!((world.store.state(), world.runs), ("none", 0));
}

#[test]
fn a_claim_without_an_answer_is_released_when_its_repeat_finds_the_result_of_another_call() {
    let policy = policy(ToolClass::Mutating);
    let mut world = CallTestWorld::new();
    let (mut first, _) = world.begin(request(&policy), &policy);
    let (mut call, step) = world.begin_only(request(&policy), &policy);
    let NextStep::Claim(claim) = step else { panic!("{step:?}") };
    assert!(finished(world.on(&mut first, CallEvent::Ran(paid()))).outcome.is_ok());
    // The claim is still in transit when it is repeated, and the repeat is answered.
    let step = world.on_only(&mut call, CallEvent::StoreFailed(StoreFault::Unanswered)).unwrap();
    let NextStep::Claim(again) = step else { panic!("{step:?}") };
    let found = world.store.claim(&again, world.now);
    assert!(matches!(found, ClaimVerdict::Replay(_)), "{found:?}");
    let (result, deferred) =
        finished_with_deferred(world.on_only(&mut call, CallEvent::Claimed(found)).unwrap());
    assert!(result.outcome.is_ok());
    // It arrives when the result is no longer stored. No call runs under it.
    world.store.records = MemoryRecords::default();
    world.store.claim(&claim, world.now);
    let [DeferredWrite::Release(release)] = &deferred[..] else { panic!("{deferred:?}") };
    world.store.release(release);
    assert_eq!((world.store.state(), world.runs), ("none", 1));
}

#[test]
fn a_claim_that_could_not_be_released_keeps_its_release() {
    for leaves in [CallEvent::StoreFailed(StoreFault::NotDone), CallEvent::Cancelled(OtherWaiters::None)] {
        let policy = policy(ToolClass::Mutating);
        let mut world = CallTestWorld::new();
        let interactive = from_envelope_on(&keyed("k"), &policy, ApprovalChannel::Interactive);
        let (mut call, step) = world.begin_only(interactive, &policy);
        let NextStep::Claim(claim) = step else { panic!("{step:?}") };
        let claimed = world.store.claim(&claim, world.now);
        // Trust is lost while the claim is in transit: approval comes first, and the claim must not say that the call
        // runs.
        Arc::make_mut(&mut call.policy).approval.when = ApprovalTrigger::Always;
        let step = world.on_only(&mut call, CallEvent::Claimed(claimed)).unwrap();
        assert_eq!((name_of(&step), call.state()), ("Release", "GivingBack"));
        let (_, deferred) = finished_with_deferred(world.on_only(&mut call, leaves).unwrap());
        let [DeferredWrite::Release(release)] = &deferred[..] else { panic!("{deferred:?}") };
        world.store.release(release);
        assert_eq!((world.store.state(), world.runs), ("none", 0));
    }
}
